"""The outbox on real folders: names, seals, publication, notes, and what becomes of sources."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import queue
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from watcher.adapters import outbox as outbox_module
from watcher.adapters.file_operations import Entry, FileOperations
from watcher.adapters.outbox import FolderOutbox
from watcher.adapters.output_names import note_name, unreserved, versions
from watcher.core.commands import PublishResult, SealResult, WriteNote
from watcher.core.events import (
    Instant,
    NameTaken,
    PublishBlocked,
    ResultPublished,
    ResultSealed,
    SourceChanged,
    StageLost,
)
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watcher.core.events import Event

RESULT = b"a clean picture " * 4000
NON_UTF8 = os.fsdecode(b"\xff\xfe\n 'q' %s.png")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class RunningClock:
    def now(self) -> Instant:
        return Instant(time.monotonic_ns(), time.time())

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the outbox waits for nothing, and not for {seconds} s")


class FaultyFiles(FileOperations):
    """The real file system, of a kind that lacks some calls, and with a fault at one operation.

    Attributes:
        lacks: `exclusive_rename` and `link` where the file system has none.
        fault_at: the operation, counted from 1 when this was set, that goes wrong.
        fault: what it raises.
        counted: operations so far.
        lasting: whether all that follow it go wrong too (a process that died).
    """

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks
        self.counted = 0
        self.fault_at: int | None = None
        self.fault: BaseException = OSError()
        self.lasting = False
        self.seen: list[str] = []

    def arm(self, at: int, fault: BaseException, *, lasting: bool = False) -> None:
        self.counted, self.fault_at, self.fault, self.lasting = 0, at, fault, lasting

    def disarm(self) -> None:
        self.fault_at = None

    def before(self, operation: str, name: str) -> None:
        self.counted += 1
        self.seen.append(operation)
        if self.fault_at is not None and (
            self.counted == self.fault_at or (self.lasting and self.counted > self.fault_at)
        ):
            raise self.fault
        if operation in self.lacks:
            number = errno.EINVAL if operation == "exclusive_rename" else errno.EPERM
            raise OSError(number, os.strerror(number), name)


class Bench:
    """One set of folders, an outbox on them, and the answers that it gives."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.inbox, self.outbox, self.archive = root / "in", root / "out", root / "archive"
        for folder in (self.inbox, self.outbox, self.archive):
            folder.mkdir(exist_ok=True)
        self.state_dir: Path = changes.pop("state_dir", root / "state")
        self.answers: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.numbers = iter(range(1, 1000))
        self.open(**changes)

    def open(self, **changes: Any) -> None:
        options: dict[str, Any] = {"archive": None, "after": "keep", "on_conflict": "version"}
        self.box = FolderOutbox(
            inbox=self.inbox,
            outbox=self.outbox,
            state_dir=self.state_dir,
            sink=self.answers.put,
            clock=RunningClock(),
            **{**options, **changes},
        )

    def close(self) -> None:
        self.box.close()

    def drop(self, source: str, content: bytes = b"picture", mask: str | None = None) -> Job:
        """Put a picture (and a mask) into the inbox, and return the job that is made of it."""
        number = next(self.numbers)
        mask_print = None if mask is None else self._put(mask, b"mask")
        return Job(
            id=f"t-{number}",
            source=source,
            fingerprint=self._put(source, content),
            identity=Identity(sha(content), None if mask is None else sha(b"mask"), "default"),
            state=JobState.RUNNING,
            created_s=0.0,
            mask=mask,
            mask_fingerprint=mask_print,
            stage_name=f"s{number}.png",
        )

    def _put(self, relative: str, content: bytes) -> Fingerprint:
        path = self.inbox / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        status = path.stat()
        return Fingerprint(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def stage(self, job: Job, content: bytes = RESULT) -> Path:
        """Do what the worker does."""
        path = Path(self.box.staging) / str(job.stage_name)
        path.write_bytes(content)
        return path

    def answer(self) -> Event:
        return self.answers.get(timeout=10)

    def seal(self, job: Job, content: bytes = RESULT, copy_from: str | None = None) -> Event:
        self.box.seal(SealResult(job, str(job.stage_name), sha(content), copy_from))
        return self.answer()

    def publish(self, job: Job, *, rescue: bool = False) -> Event:
        self.box.publish(PublishResult(job, rescue=rescue))
        return self.answer()

    def sealed(self, job: Job, content: bytes = RESULT) -> Job:
        """Stage and seal, and return the job as the core then has it."""
        self.stage(job, content)
        answer = self.seal(job, content)
        assert isinstance(answer, ResultSealed), answer
        return replace(job, state=JobState.PUBLISHING, output=answer.output, sha256_out=answer.sha256_out)

    def serve(self, source: str, content: bytes = RESULT) -> Job:
        """The whole way of one picture."""
        job = self.sealed(self.drop(source), content)
        answer = self.publish(job)
        assert isinstance(answer, ResultPublished), answer
        return job

    def settle(self) -> None:
        """Wait until the outbox's thread has done all that was asked."""
        done = threading.Event()
        self.box._calls.put(done.set)
        assert done.wait(10)

    def visible(self) -> dict[str, bytes]:
        """Every file of the outbox with its bytes, hidden ones too."""
        return contents(self.outbox)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**changes: Any) -> Bench:
        made.append(Bench(tmp_path, **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("IMG.jpg", "IMG.jpg"),
        ("a/b/IMG.jpg", "a/b/IMG.jpg"),
        ("logs/IMG.jpg", "logs_/IMG.jpg"),
        ("failed/a/IMG.jpg", "failed_/a/IMG.jpg"),
        ("held/IMG.jpg", "held_/IMG.jpg"),
        (".watcher/IMG.jpg", ".watcher_/IMG.jpg"),
        ("Logs/IMG.jpg", "Logs_/IMG.jpg"),
        ("a/logs/IMG.jpg", "a/logs/IMG.jpg"),
        ("logs", "logs_"),
        ("logs_/IMG.jpg", "logs_/IMG.jpg"),
        ("ä ö/ü ß 🐈.jpg", "ä ö/ü ß 🐈.jpg"),
        (f"{NON_UTF8}/{NON_UTF8}", f"{NON_UTF8}/{NON_UTF8}"),
        ("-rf.png", "-rf.png"),
        ("$(id) `x`.png", "$(id) `x`.png"),
        ("no suffix", "no suffix"),
        (".png", ".png"),
        ("x" * 251 + ".jpg", "x" * 251 + ".jpg"),
    ],
)
def test_a_result_has_its_sources_place_and_name(bench: Bench, source: str, output: str) -> None:
    job = bench.serve(source)
    assert job.output == output
    assert bench.visible() == {output: RESULT}


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("IMG.jpg", "IMG (2).jpg"),
        ("IMG (2).jpg", "IMG (2) (2).jpg"),
        ("two.dots.jpeg", "two.dots (2).jpeg"),
        ("no suffix", "no suffix (2)"),
        (".png", ".png (2)"),
        (NON_UTF8, NON_UTF8.replace(".png", " (2).png")),
        ("x" * 251 + ".jpg", "x" * 247 + " (2).jpg"),
        ("ä" * 125 + "b.png", "ä" * 123 + " (2).png"),
        ("🐈" * 62 + "b.png", "🐈" * 61 + " (2).png"),
        (os.fsdecode(b"\xff" * 251) + ".png", os.fsdecode(b"\xff" * 247) + " (2).png"),
        ("a." + "s" * 250, "a." + "s" * 249 + " (2)"),
    ],
)
def test_a_taken_name_gets_a_number(bench: Bench, name: str, second: str) -> None:
    bench.serve(name, b"first")
    assert bench.serve(name, b"second").output == second
    assert bench.visible() == {name: b"first", second: b"second"}
    assert len(os.fsencode(second)) <= 255


def test_numbers_go_on_and_are_never_more_than_a_name_can_hold() -> None:
    numbered = versions("x" * 251 + ".jpg")
    names = [next(numbered) for _ in range(1200)]
    assert names[9] == "x" * 246 + " (10).jpg"
    assert all(len(name) <= 255 for name in names)
    assert len(set(names)) == 1200
    assert next(versions("ü" * 100 + ".jpg", 143)) == "ü" * 69 + ".jpg"
    assert next(versions("abc.jpeg", 3)) == "a.jpeg", "no endless loop where nothing fits"


def test_only_the_top_of_the_outbox_is_reserved() -> None:
    assert unreserved(("a", "logs", "x")) == ("a", "logs", "x")
    assert unreserved(("FAILED",)) == ("FAILED_",)


def test_every_kind_of_thing_takes_a_name(bench: Bench) -> None:
    (bench.outbox / "IMG.jpg").mkdir()
    (bench.outbox / "IMG (2).jpg").symlink_to("nowhere")
    os.mkfifo(bench.outbox / "IMG (3).jpg")
    assert bench.serve("IMG.jpg").output == "IMG (4).jpg"


def test_names_that_are_sealed_are_taken_until_they_are_given_up(bench: Bench) -> None:
    first, second, third = (bench.drop("a/IMG.jpg", content) for content in (b"1", b"2", b"3"))
    (bench.inbox / "a/IMG.jpg").unlink()
    first, second = bench.sealed(first, b"one"), bench.sealed(second, b"two")
    assert (first.output, second.output) == ("a/IMG.jpg", "a/IMG (2).jpg")
    bench.box.discard(str(first.stage_name))
    assert bench.sealed(third, b"three").output == "a/IMG.jpg"
    assert bench.sealed(replace(second, output=None), b"two").output == "a/IMG (2).jpg"


def test_a_file_where_a_folder_is_needed_makes_another_folder(bench: Bench, tmp_path: Path) -> None:
    bench.serve("a.jpg")
    (bench.outbox / "way").mkdir()
    (bench.outbox / "way" / "out").symlink_to(tmp_path)
    (bench.inbox / "a.jpg").unlink()
    with capture_logs() as told:
        assert bench.serve("a.jpg/b.jpg").output == "a.jpg_/b.jpg"
        assert bench.serve("way/out/b.jpg").output == "way/out_/b.jpg"
        assert bench.serve("way/out/c.jpg").output == "way/out_/c.jpg"
    assert {entry["event"] for entry in told} == {"outbox.folder_renamed"}
    assert not (tmp_path / "b.jpg").exists()


def test_replace_gives_the_same_name_again(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(on_conflict="replace")
    assert bench.serve("a/IMG.jpg", b"first").output == "a/IMG.jpg"
    before = (bench.outbox / "a/IMG.jpg").stat().st_ino
    assert bench.serve("a/IMG.jpg", b"second").output == "a/IMG.jpg"
    assert bench.visible() == {"a/IMG.jpg": b"second"}
    assert (bench.outbox / "a/IMG.jpg").stat().st_ino != before, "written into, not replaced"


def test_replace_does_not_follow_a_link_nor_remove_a_folder(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(on_conflict="replace")
    precious = bench.root / "precious.jpg"
    precious.write_bytes(b"precious")
    (bench.outbox / "a.jpg").symlink_to(precious)
    (bench.outbox / "b.jpg").mkdir()
    assert bench.serve("a.jpg").output == "a.jpg"
    assert bench.serve("b.jpg").output == "b (2).jpg"
    assert precious.read_bytes() == b"precious"
    assert not (bench.outbox / "a.jpg").is_symlink()


# --- names that the file system refuses --------------------------------------------------------------------


class RefusingFiles(FileOperations):
    """The file system of a disk that has no names with these characters in them.

    Attributes:
        refused: the characters.
        number: how it says so.
        is_strict: such a name cannot even be looked for; else there is merely no such file.
    """

    def __init__(self, refused: str, number: int = errno.EINVAL, *, is_strict: bool = False) -> None:
        self.refused = refused
        self.number = number
        self.is_strict = is_strict

    def before(self, operation: str, name: str) -> None:
        if operation in {"mkdir", "exclusive_rename", "link", "replace"}:
            self._refuse(name)

    def open(self, entry: Entry, flags: int, mode: int = 0o666) -> int:
        if flags & os.O_CREAT or self.is_strict:
            self._refuse(entry.name)
        return super().open(entry, flags, mode)

    def _refuse(self, name: str) -> None:
        if set(self.refused) & set(name.rpartition("/")[2]):
            raise OSError(self.number, os.strerror(self.number), name)


def through(bench: Bench, job: Job, content: bytes = RESULT) -> tuple[Job, list[Event]]:
    """Seal and publish until it is published or blocked, as the core does; returns all answers."""
    answers: list[Event] = []
    bench.stage(job, content)
    while len(answers) < 20:
        sealed = bench.seal(job, content)
        answers.append(sealed)
        if not isinstance(sealed, ResultSealed):
            return job, answers
        job = replace(job, state=JobState.PUBLISHING, output=sealed.output, sha256_out=sha(content))
        answers.append(bench.publish(job))
        if not isinstance(answers[-1], NameTaken):
            return job, answers
    raise AssertionError(f"no end: {answers}")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG])
@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("a?.png", "a%3F.png"),
        ("d?/e/a.png", "d%3F/e/a.png"),
        ("ü/a?.png", "ü/a%3F.png"),
        ("logs/a?.png", "logs_/a%3F.png"),
    ],
)
def test_a_name_that_is_refused_is_escaped_and_told_of_once(
    make_bench: Callable[..., Bench], source: str, output: str, number: int
) -> None:
    bench = make_bench(files=RefusingFiles("?", number))
    with capture_logs() as told:
        job, answers = through(bench, bench.drop(source))
    assert isinstance(answers[-1], ResultPublished), answers
    assert job.output == output
    assert bench.visible() == {output: RESULT}
    (line,) = told
    assert (line["event"], line["source"], line["output"]) == ("outbox.name_escaped", source, output)
    assert not Path(bench.box.staging).joinpath(str(job.stage_name)).exists()


def test_escaped_names_are_not_overwritten_either(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=RefusingFiles("?"))
    bench.serve("a%3F.png", b"its own name")
    for content in (b"first", b"second"):
        through(bench, bench.drop("a?.png", content), content)
    assert bench.visible() == {
        "a%3F.png": b"its own name",
        "a%3F (2).png": b"first",
        "a%3F (3).png": b"second",
    }


def test_letters_that_are_refused_too_are_escaped_as_well(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=RefusingFiles("ü"))
    job, _ = through(bench, bench.drop("ü.png"))
    assert job.output == "%C3%BC.png"


def test_a_disk_that_refuses_every_spelling_blocks_and_does_not_try_for_ever(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(files=RefusingFiles("?%3F"))
    job, answers = through(bench, bench.drop("a?.png"))
    assert isinstance(answers[-1], PublishBlocked)
    assert len(answers) == 5, "two names were tried, and a third there is not"
    assert bench.visible() == {}
    assert Path(bench.box.staging).joinpath(str(job.stage_name)).exists(), "the result is not lost"


@pytest.mark.parametrize("is_strict", [False, True])
def test_rescue_of_a_name_that_was_sealed_and_is_refused(
    make_bench: Callable[..., Bench],
    is_strict: bool,  # noqa: FBT001 - a column of the table
) -> None:
    bench = make_bench()
    job = bench.sealed(bench.drop("a?.png"))
    (bench.inbox / "a?.png").unlink()  # a strict disk stands for the inbox too, and has no such file
    bench.close()
    bench.open(files=RefusingFiles("?", is_strict=is_strict))
    assert bench.publish(job, rescue=True) == NameTaken(job.id)
    if is_strict:
        return
    _, answers = through(bench, job)
    assert isinstance(answers[-1], ResultPublished)
    assert bench.visible() == {"a%3F.png": RESULT}


def test_the_notes_of_a_refused_name_are_escaped_and_found_again(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=RefusingFiles("?"))
    with capture_logs() as told:
        for kind in ("failed", "held"):
            bench.box.write_note(WriteNote(kind, "d?/a?.png", {"reason": "r"}))
        bench.settle()
        assert set(bench.visible()) == {"failed/d%3F/a%3F.png.json", "held/d%3F/a%3F.png.json"}
        bench.box.remove_note("d?/a?.png")
        bench.settle()
    assert told == []
    assert bench.visible() == {}
    assert not (bench.outbox / "failed" / "d%3F").exists()


# --- sealing -----------------------------------------------------------------------------------------------


def test_a_seal_syncs_looks_and_changes_nothing_in_the_outbox(make_bench: Callable[..., Bench]) -> None:
    files = FaultyFiles()
    bench = make_bench(files=files)
    job = bench.drop("a/IMG.jpg", mask="a/IMG.mask.png")
    files.seen.clear()
    job = bench.sealed(job)
    assert "fsync" in files.seen
    assert set(files.seen) <= {"open", "fsync"}
    assert (job.output, job.sha256_out) == ("a/IMG.jpg", sha(RESULT))
    assert bench.visible() == {}


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def rewritten(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def copied_back(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def vanished(path: Path) -> None:
    path.unlink()


def linked_away(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"other bytes")
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("which", ["source", "mask"])
@pytest.mark.parametrize(
    ("change", "final"),
    [
        (touched, True),
        (rewritten, False),
        (grown, False),
        (copied_back, True),
        (vanished, True),
        (linked_away, True),
    ],
)
def test_only_other_bytes_are_a_change(
    bench: Bench, which: str, change: Callable[[Path], None], *, final: bool
) -> None:
    job = bench.drop("a/IMG.jpg", mask="a/IMG.mask.png")
    bench.stage(job)
    change(bench.inbox / getattr(job, which))
    answer = bench.seal(job)
    if final:
        assert isinstance(answer, ResultSealed)
    else:
        assert isinstance(answer, SourceChanged)
        assert getattr(job, which) in answer.what
    assert bench.visible() == {}


def test_an_inbox_that_is_away_does_not_keep_what_was_read_from_being_published(bench: Bench) -> None:
    job = bench.drop("a/IMG.jpg")
    bench.stage(job)
    bench.inbox.rename(bench.root / "elsewhere")
    assert isinstance(bench.seal(job), ResultSealed)


@pytest.mark.parametrize(
    "source", ["../IMG.jpg", "a/../../IMG.jpg", "/etc/passwd", "", "a//b", "a/\0", "./a"]
)
def test_a_path_that_leads_out_is_refused(bench: Bench, source: str) -> None:
    (bench.root / "IMG.jpg").write_bytes(b"picture")
    job = replace(bench.drop("IMG.jpg"), source=source)
    bench.stage(job)
    assert isinstance(bench.seal(job), SourceChanged)
    for changes in ({"output": source or "/"}, {"output": "x", "stage_name": f"../{source}"}):
        job = replace(job, sha256_out=sha(RESULT), **changes)  # type: ignore[arg-type]  # both are texts
        assert isinstance(bench.publish(job, rescue=True), PublishBlocked)
    with capture_logs() as told:
        bench.box.write_note(WriteNote("failed", source, {}))
        bench.box.remove_note(source)
        bench.settle()
    assert [entry["event"] for entry in told][:2] == ["note.failed", "note.not_removed"]
    assert bench.visible() == {}
    assert (bench.root / "IMG.jpg").read_bytes() == b"picture"


def test_a_staged_file_that_vanished_is_lost(bench: Bench) -> None:
    job = bench.drop("IMG.jpg")
    assert isinstance(bench.seal(job), StageLost)
    for path in (Path(bench.box.staging), bench.state_dir):
        path.rmdir()
    bench.state_dir.mkdir()
    assert isinstance(bench.seal(job), StageLost)
    bench.sealed(job)  # the folder is there again


def test_a_duplicate_gets_a_copy_with_its_own_name_and_time(bench: Bench) -> None:
    first = bench.serve("a/IMG.jpg")
    assert first.output is not None
    (bench.outbox / first.output).chmod(0o640)
    second = bench.drop("b/other name.jpg")
    answer = bench.seal(second, copy_from=first.output)
    assert answer == ResultSealed(second.id, "b/other name.jpg", sha(RESULT))
    second = replace(second, output="b/other name.jpg", sha256_out=sha(RESULT))
    assert isinstance(bench.publish(second), ResultPublished)
    copy = (bench.outbox / "b/other name.jpg").stat()
    assert stat.S_IMODE(copy.st_mode) == 0o640
    assert copy.st_mtime_ns == second.fingerprint.mtime_ns
    assert copy.st_nlink == 1
    assert bench.visible() == {"a/IMG.jpg": RESULT, "b/other name.jpg": RESULT}


@pytest.mark.parametrize("loss", ["edited", "removed", "folder", "link", "outside"])
def test_a_copy_of_an_output_that_is_not_what_it_was_is_lost(bench: Bench, loss: str) -> None:
    bench.serve("IMG.jpg")
    output = bench.outbox / "IMG.jpg"
    if loss == "edited":
        output.write_bytes(b"by hand")
    else:
        output.unlink()
    if loss == "folder":
        output.mkdir()
    if loss == "link":
        (bench.root / "x").write_bytes(RESULT)
        output.symlink_to(bench.root / "x")
    duplicate = bench.drop("b.jpg")
    copy_from = "../x" if loss == "outside" else "IMG.jpg"
    assert isinstance(bench.seal(duplicate, copy_from=copy_from), StageLost)
    assert list(Path(bench.box.staging).iterdir()) == []


# --- publishing --------------------------------------------------------------------------------------------

METHODS = [(), ("exclusive_rename",), ("exclusive_rename", "link")]


@pytest.mark.parametrize("lacks", METHODS)
def test_publication_never_overwrites(make_bench: Callable[..., Bench], lacks: tuple[str, ...]) -> None:
    bench = make_bench(files=FaultyFiles(*lacks))
    job = bench.sealed(bench.drop("a/IMG.jpg"))
    (bench.outbox / "a").mkdir()
    (bench.outbox / "a/IMG.jpg").write_bytes(b"somebody else's")
    assert bench.publish(job) == NameTaken(job.id)
    again = bench.seal(job)
    assert isinstance(again, ResultSealed)
    assert again.output == "a/IMG (2).jpg"
    assert isinstance(bench.publish(replace(job, output=again.output)), ResultPublished)
    assert bench.visible() == {"a/IMG.jpg": b"somebody else's", "a/IMG (2).jpg": RESULT}
    assert contents(bench.state_dir) == {}


@pytest.mark.parametrize("lacks", METHODS)
def test_attributes_are_those_that_the_worker_gave(
    make_bench: Callable[..., Bench], lacks: tuple[str, ...]
) -> None:
    bench = make_bench(files=FaultyFiles(*lacks))
    job = bench.drop("IMG.jpg")
    staged = bench.stage(job)
    staged.chmod(0o644)
    os.utime(staged, ns=(5, 5))
    answer = bench.seal(job)
    assert isinstance(answer, ResultSealed)
    started = time.monotonic_ns()
    published = bench.publish(replace(job, output=answer.output, sha256_out=sha(RESULT)))
    assert isinstance(published, ResultPublished)
    assert started < published.published_ns < time.monotonic_ns()
    assert not published.rescued
    status = (bench.outbox / "IMG.jpg").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_nlink) == (0o644, 5, 1)


def test_the_folder_is_synced_after_the_name_and_each_new_folder_before(
    make_bench: Callable[..., Bench],
) -> None:
    files = FaultyFiles()
    bench = make_bench(files=files)
    job = bench.sealed(bench.drop("a/b/IMG.jpg"))
    files.seen.clear()
    bench.publish(job)
    changes = [operation for operation in files.seen if operation != "open"]
    assert changes == ["mkdir", "fsync", "mkdir", "fsync", "exclusive_rename", "fsync"]


def test_a_file_where_the_folder_was_to_be_is_a_taken_name(bench: Bench) -> None:
    job = bench.sealed(bench.drop("a/IMG.jpg"))
    (bench.outbox / "a").write_bytes(b"")
    assert bench.publish(job) == NameTaken(job.id)
    with capture_logs():
        assert bench.sealed(job).output == "a_/IMG.jpg"


def test_what_vanished_from_staging_is_lost(bench: Bench) -> None:
    job = bench.sealed(bench.drop("IMG.jpg"))
    (Path(bench.box.staging) / str(job.stage_name)).unlink()
    assert isinstance(bench.publish(job), StageLost)
    assert isinstance(bench.publish(job, rescue=True), StageLost)
    assert bench.visible() == {}


def test_an_outbox_that_is_away_is_not_made_again_and_everything_waits(bench: Bench) -> None:
    first, second = bench.sealed(bench.drop("a.jpg")), bench.drop("b.jpg")
    bench.stage(second)
    away = bench.root / "away"
    bench.outbox.rename(away)
    for answer in (bench.publish(first), bench.seal(second), bench.publish(first, rescue=True)):
        assert isinstance(answer, PublishBlocked)
        assert "away" in answer.reason
    with capture_logs() as told:
        bench.box.write_note(WriteNote("held", "a.jpg", {}))
        bench.box.remove_note("a.jpg")
        bench.settle()
    assert told[0]["event"] == "note.failed"
    assert not bench.outbox.exists()
    away.rename(bench.outbox)
    assert isinstance(bench.publish(first), ResultPublished)
    assert isinstance(bench.seal(second), ResultSealed)


def test_the_bare_mount_point_of_a_disk_is_an_outbox_that_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.sealed(bench.drop("a.jpg"))
    monkeypatch.setattr(outbox_module, "_is_mount_point", lambda _: True)
    job = bench.sealed(job)
    monkeypatch.setattr(outbox_module, "_is_mount_point", lambda _: False)
    assert isinstance(bench.publish(job), PublishBlocked)
    assert bench.visible() == {}
    monkeypatch.undo()
    assert isinstance(bench.publish(job), PublishBlocked)  # still: it was a mount and is none
    monkeypatch.setattr(outbox_module, "_is_mount_point", lambda _: True)
    assert isinstance(bench.publish(job), ResultPublished)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.EIO, "input/output"),
        (errno.ESTALE, "network"),
        (errno.EXFULL, "Exchange full"),
    ],
)
def test_a_disk_that_refuses_is_told_of_in_plain_words(
    make_bench: Callable[..., Bench], number: int, words: str
) -> None:
    files = FaultyFiles()
    bench = make_bench(files=files)
    job = bench.sealed(bench.drop("a/IMG.jpg"))
    files.arm(1, OSError(number, os.strerror(number), "IMG.jpg"), lasting=True)
    answer = bench.publish(job)
    assert isinstance(answer, PublishBlocked)
    assert words in answer.reason
    assert "IMG.jpg" in answer.reason
    files.disarm()
    assert isinstance(bench.publish(job), ResultPublished)


def test_a_mistake_of_ours_still_gives_an_answer_and_the_thread_lives(bench: Bench) -> None:
    job = bench.drop("IMG.jpg")
    with capture_logs() as told:
        answer = bench.publish(job)  # never sealed
    assert isinstance(answer, PublishBlocked)
    assert "internal" in answer.reason
    assert told[0]["event"] == "outbox.call_failed"
    bench.sealed(job)


# --- rescue ------------------------------------------------------------------------------------------------


def test_rescue_finds_the_output_that_stands(bench: Bench) -> None:
    job = bench.serve("a/IMG.jpg")
    bench.close()
    bench.open()
    answer = bench.publish(job, rescue=True)
    assert isinstance(answer, ResultPublished)
    assert (answer.output, answer.rescued) == ("a/IMG.jpg", True)
    assert bench.visible() == {"a/IMG.jpg": RESULT}


def test_rescue_syncs_every_folder_since_nobody_knows_which_are(make_bench: Callable[..., Bench]) -> None:
    files = FaultyFiles()
    bench = make_bench(files=files)
    job = bench.serve("a/b/IMG.jpg")
    files.seen.clear()
    bench.publish(job, rescue=True)
    assert files.seen.count("fsync") == 3


def test_rescue_removes_the_second_link(bench: Bench) -> None:
    job = bench.sealed(bench.drop("IMG.jpg"))
    staged = Path(bench.box.staging) / str(job.stage_name)
    os.link(staged, bench.outbox / "IMG.jpg")
    assert isinstance(bench.publish(job, rescue=True), ResultPublished)
    assert not staged.exists()
    assert (bench.outbox / "IMG.jpg").stat().st_nlink == 1


def test_rescue_publishes_what_is_staged_unless_the_name_was_taken(bench: Bench) -> None:
    first, second = bench.sealed(bench.drop("a.jpg")), bench.sealed(bench.drop("b.jpg"))
    bench.close()
    bench.open()
    (bench.outbox / "b.jpg").write_bytes(b"somebody else's")
    assert isinstance(bench.publish(first, rescue=True), ResultPublished)
    assert bench.publish(second, rescue=True) == NameTaken(second.id)
    assert bench.visible() == {"a.jpg": RESULT, "b.jpg": b"somebody else's"}


def test_rescue_does_not_trust_staged_bytes(bench: Bench) -> None:
    job = bench.sealed(bench.drop("a.jpg"))
    staged = Path(bench.box.staging) / str(job.stage_name)
    staged.write_bytes(RESULT[:100])
    assert isinstance(bench.publish(job, rescue=True), StageLost)
    assert not staged.exists()
    assert bench.visible() == {}


def test_rescue_fills_the_name_that_it_reserved(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(files=FaultyFiles("exclusive_rename", "link"))
    job = bench.sealed(bench.drop("a.jpg"))
    (bench.outbox / "a.jpg").write_bytes(b"")
    assert isinstance(bench.publish(job, rescue=True), ResultPublished)
    assert bench.visible() == {"a.jpg": RESULT}


# --- every operation goes wrong, in turn -------------------------------------------------------------------


class Died(BaseException):
    """Stands for SIGKILL: nothing of the process' own code runs after it, and no operation works."""


def converse(bench: Bench, job: Job, *, copy_from: str | None = None, rescue: bool = True) -> Event:
    """Ask as the core asks, until the job is published; a picture that was lost is served again."""
    for _ in range(8):
        if job.output is None:
            if copy_from is None:
                bench.stage(job)
            answer = bench.seal(job, copy_from=copy_from)
            if isinstance(answer, ResultSealed):
                job = replace(job, output=answer.output, sha256_out=answer.sha256_out)
                answer = bench.publish(job)
        else:
            answer = bench.publish(job, rescue=rescue)
        assert b"" not in bench.visible().values(), "an empty file stays under a final name"
        if isinstance(answer, ResultPublished):
            return answer
        if isinstance(answer, NameTaken | StageLost):
            job = replace(job, output=None)
        if isinstance(bench.box._files, FaultyFiles):
            bench.box._files.disarm()  # somebody made room
    raise AssertionError(f"never published: {answer}")


def assert_one_output_and_no_litter(bench: Bench, expected: dict[str, bytes]) -> None:
    assert bench.visible() == expected
    assert contents(bench.state_dir) == {}
    assert all((bench.outbox / name).stat().st_nlink == 1 for name in expected)


@pytest.mark.parametrize("rescue", [False, True])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("lacks", METHODS)
def test_any_operation_may_fail_and_one_output_comes_out(
    tmp_path: Path, lacks: tuple[str, ...], number: int, *, copied: bool, rescue: bool
) -> None:
    faults = 0
    for at in range(1, 200):
        root = tmp_path / str(at)
        root.mkdir()
        files = FaultyFiles(*lacks)
        bench = Bench(root, files=files)
        expected = {"a/b/IMG.jpg": RESULT}
        if copied:
            bench.serve("first.jpg")
            expected["first.jpg"] = RESULT
        job = bench.drop("a/b/IMG.jpg")
        files.arm(at, OSError(number, os.strerror(number)))
        converse(bench, job, copy_from="first.jpg" if copied else None, rescue=rescue)
        bench.close()
        assert_one_output_and_no_litter(bench, expected)
        if files.fault_at is not None and files.counted < at:
            break
        faults += 1
    assert faults >= 14, "the sweep never reached its end, or saw next to nothing"


@pytest.mark.parametrize("on_conflict", ["version", "replace"])
@pytest.mark.parametrize("lacks", METHODS)
def test_death_at_any_operation_and_one_output_comes_out(
    tmp_path: Path, lacks: tuple[str, ...], on_conflict: str
) -> None:
    deaths = 0
    for at in range(1, 200):
        root = tmp_path / str(at)
        root.mkdir()
        files = FaultyFiles(*lacks)
        bench = Bench(root, files=files, on_conflict=on_conflict)
        job = bench.drop("a/b/IMG.jpg")
        bench.stage(job)
        files.arm(at, Died(), lasting=True)
        try:
            # on this thread, so that death is seen; each assignment is what the journal has by then
            answer = bench.box._seal(SealResult(job, str(job.stage_name), sha(RESULT)))
            assert isinstance(answer, ResultSealed)
            job = replace(job, output=answer.output, sha256_out=answer.sha256_out)
            answer = bench.box._publish(PublishResult(job))
            assert isinstance(answer, ResultPublished)
        except Died:
            deaths += 1
        seen_by_others = bench.visible()
        bench.close()
        assert set(seen_by_others.values()) <= {RESULT} | ({b""} if len(lacks) == 2 else set())
        finished = files.counted < at
        bench.open(files=FaultyFiles(*lacks), on_conflict=on_conflict)
        bench.box.sweep({str(job.stage_name)} if job.output else set())
        converse(bench, job)
        bench.close()
        assert_one_output_and_no_litter(bench, {"a/b/IMG.jpg": RESULT})
        if finished:
            break
    assert deaths >= 14, "the sweep never reached its end, or saw next to nothing"


# --- staging -----------------------------------------------------------------------------------------------


def test_staging_is_private_and_in_the_state_folder_of_the_same_disk(bench: Bench) -> None:
    assert bench.box.staging == os.fspath(bench.state_dir / "staging")
    assert stat.S_IMODE((bench.state_dir / "staging").stat().st_mode) == 0o700
    assert list(bench.outbox.iterdir()) == []
    assert list((bench.state_dir / "staging").iterdir()) == []


def other_disk(tmp_path: Path) -> Path:
    """A folder on another file system than the test's."""
    shared = Path("/dev/shm")  # noqa: S108 - only to have a second file system
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system that a test may write to")
    return shared / f"watcher-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def far_state(tmp_path: Path) -> Iterator[Path]:
    folder = other_disk(tmp_path)
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_staging_is_beside_the_results_where_state_is_on_another_disk(
    make_bench: Callable[..., Bench], far_state: Path
) -> None:
    bench = make_bench(state_dir=far_state)
    assert bench.box.staging == os.fspath(bench.outbox / ".watcher" / "staging")
    assert stat.S_IMODE((bench.outbox / ".watcher").stat().st_mode) == 0o700
    bench.serve("a/IMG.jpg")
    bench.box.write_note(WriteNote("held", "b.jpg", {}))
    bench.settle()
    assert set(bench.visible()) == {"a/IMG.jpg", "held/b.jpg.json"}
    bench.box.sweep(set())
    assert Path(bench.box.staging).is_dir()


def test_an_outbox_that_comes_later_from_another_disk_gets_copies(tmp_path: Path, far_state: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "archive").mkdir()
    bench = Bench.__new__(Bench)
    bench.root, bench.inbox, bench.outbox = tmp_path, tmp_path / "in", tmp_path / "out"
    bench.state_dir, bench.answers, bench.numbers = far_state, queue.SimpleQueue(), iter(range(1, 9))
    bench.open()
    assert bench.box.staging == os.fspath(far_state / "staging")
    bench.outbox.mkdir()
    job = bench.drop("a/IMG.jpg")
    bench.stage(job).chmod(0o604)
    assert isinstance(bench.seal(job), ResultSealed)
    job = replace(job, output="a/IMG.jpg", sha256_out=sha(RESULT))
    assert isinstance(bench.publish(job), ResultPublished)
    bench.box.write_note(WriteNote("held", "b.jpg", {}))
    bench.settle()
    assert set(bench.visible()) == {"a/IMG.jpg", "held/b.jpg.json"}
    assert stat.S_IMODE((bench.outbox / "a/IMG.jpg").stat().st_mode) == 0o604
    assert contents(far_state) == {}
    bench.box.sweep(set())
    assert not (bench.outbox / ".watcher").exists()
    bench.close()


class TwoMounts(FileOperations):
    """One device, two mounts: a rename out of the state folder is refused, as with bind mounts."""

    def exclusive_rename(self, source: Entry, target: Entry) -> None:
        if source.folder is not None and os.fstat(source.folder).st_ino == self.staging.stat().st_ino:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source.name)
        super().exclusive_rename(source, target)

    def __init__(self, staging: Path) -> None:
        self.staging = staging


def test_a_rename_that_does_not_work_on_one_device_is_found_out_by_trying(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench(files=TwoMounts(tmp_path / "state" / "staging"))
    assert bench.box.staging == os.fspath(bench.outbox / ".watcher" / "staging")
    assert contents(bench.state_dir) == {}
    bench.serve("IMG.jpg")
    assert bench.visible() == {"IMG.jpg": RESULT}


def test_sweep_empties_both_places_but_for_what_is_kept(bench: Bench) -> None:
    beside = bench.outbox / ".watcher" / "staging"
    beside.mkdir(parents=True)
    for folder in (Path(bench.box.staging), beside):
        for name in ("s1.png", "s2.png", NON_UTF8):
            (folder / name).write_bytes(b"x")
    (beside / "s3.png").symlink_to(bench.root)
    (beside.parent / "probe").write_bytes(b"")
    assert bench.box.sweep({"s1.png"}) == 6
    assert set(contents(bench.state_dir)) == {"staging/s1.png"}
    assert set(bench.visible()) == {".watcher/staging/s1.png"}
    assert bench.root.is_dir()
    assert bench.box.sweep(set()) == 2
    assert list(bench.outbox.iterdir()) == []


def test_a_result_staged_in_the_other_place_before_the_last_start_is_found(bench: Bench) -> None:
    job = bench.sealed(bench.drop("IMG.jpg"))
    beside = bench.outbox / ".watcher" / "staging"
    beside.mkdir(parents=True)
    (Path(bench.box.staging) / str(job.stage_name)).rename(beside / str(job.stage_name))
    assert isinstance(bench.publish(job, rescue=True), ResultPublished)
    bench.box.sweep(set())
    assert bench.visible() == {"IMG.jpg": RESULT}


def test_discard_removes_a_staged_file_and_does_not_mind_if_there_is_none(bench: Bench) -> None:
    staged = bench.stage(bench.drop("IMG.jpg"))
    bench.box.discard(staged.name)
    bench.box.discard(staged.name)
    bench.settle()
    assert not staged.exists()


def test_a_state_folder_that_cannot_be_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RemediableError, match="no staging folder") as caught:
        Bench(tmp_path, state_dir=tmp_path / "file" / "state")
    assert "state_dir" in caught.value.remedy


def test_close_finishes_what_was_asked_for(bench: Bench) -> None:
    jobs = [bench.sealed(bench.drop(f"{n}.jpg", b"%d" % n)) for n in range(5)]
    for job in jobs:
        bench.box.publish(PublishResult(job))
    bench.close()
    assert len(bench.visible()) == 5
    assert not bench.box._thread.is_alive()


# --- notes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["failed", "held"])
@pytest.mark.parametrize("source", ["IMG.jpg", "a/b/IMG.jpg", f"{NON_UTF8}/{NON_UTF8}", "failed/held/x.png"])
def test_a_note_is_pretty_json_and_goes_with_its_folders(bench: Bench, kind: Any, source: str) -> None:
    bench.box.write_note(WriteNote(kind, source, {"reason": "old"}))
    bench.box.write_note(WriteNote(kind, source, {"reason": f"Größe of {NON_UTF8}", "list": [1]}))
    bench.settle()
    path = bench.outbox / kind / f"{source}.json"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("{\n  ")
    assert "Größe" in text
    assert "\\\\xff" in text
    assert json.loads(text)["list"] == [1]
    assert list(bench.visible()) == [f"{kind}/{source}.json"]
    bench.box.remove_note(source)
    bench.box.remove_note(source)
    bench.settle()
    assert [path.name for path in bench.outbox.iterdir()] == [kind]
    assert list((bench.outbox / kind).iterdir()) == []
    assert contents(bench.state_dir) == {}


def test_a_note_that_says_the_same_is_not_written_again(bench: Bench) -> None:
    path = bench.outbox / "held/a.jpg.json"
    bench.box.write_note(WriteNote("held", "a.jpg", {"reason": "one"}))
    bench.settle()
    first = path.stat()
    bench.box.write_note(WriteNote("held", "a.jpg", {"reason": "one"}))
    bench.settle()
    assert path.stat() == first
    bench.box.write_note(WriteNote("held", "a.jpg", {"reason": "two"}))
    bench.settle()
    assert json.loads(path.read_text())["reason"] == "two"


def test_a_start_sweeps_the_notes_of_jobs_that_are_over_and_nothing_else(bench: Bench) -> None:
    def note(kind: Any, source: str, job: str) -> str:
        bench.box.write_note(WriteNote(kind, source, {"job": job, "state": kind}))
        return f"{kind}/{source}.json"

    stale = [note("held", "a/b/gone.jpg", "x-1"), note("failed", "done.jpg", "x-2")]
    kept = [note("held", "a/c.jpg", "x-3"), note("failed", "bad.jpg", "x-4")]
    newer = note("held", "new.jpg", "x-9")
    bench.settle()
    theirs = {"held/mine.txt": b"words", "held/mine.json": b'{"job": "x-1"}', "failed/list.json": b"[1]"}
    for name, data in theirs.items():
        (bench.outbox / name).write_bytes(data)
    (bench.outbox / "held" / "link.json").symlink_to(bench.outbox / stale[0])

    bench.box.sweep_notes({"x-3", "x-4"}, 9)
    bench.settle()

    assert set(bench.visible()) - {"held/link.json"} == {*kept, newer, *theirs}
    assert (bench.outbox / "held" / "link.json").is_symlink()
    assert not (bench.outbox / "held" / "a" / "b").exists()


def test_a_sweep_of_many_notes_lets_a_result_go_first(bench: Bench) -> None:
    for number in range(300):
        bench.box.write_note(WriteNote("held", f"{number}.jpg", {"job": f"x-{number}", "state": "held"}))
    bench.settle()
    bench.box.sweep_notes(set(), 1000)
    job = bench.sealed(bench.drop("a.jpg"))
    left = sum(1 for _ in (bench.outbox / "held").iterdir())
    assert left > 100, "the sweep was through before the result was sealed"
    assert isinstance(bench.publish(job), ResultPublished)
    bench.settle()
    wait_until_empty(bench.outbox / "held")


def wait_until_empty(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while any(folder.iterdir()):
        assert time.monotonic() < deadline, "notes are left"
        time.sleep(0.01)


def test_folders_with_other_notes_stay(bench: Bench) -> None:
    for source in ("a/b/1.jpg", "a/2.jpg"):
        bench.box.write_note(WriteNote("failed", source, {}))
    bench.box.remove_note("a/b/1.jpg")
    bench.settle()
    assert list(bench.visible()) == ["failed/a/2.jpg.json"]
    assert not (bench.outbox / "failed/a/b").exists()


def test_notes_of_long_names_fit_and_are_told_apart(bench: Bench) -> None:
    long = [letter + "ä" * 125 + ".jpg" for letter in "xy"] + [("z" * 251) + ".jpg", ("z" * 251) + ".png"]
    for source in long:
        bench.box.write_note(WriteNote("held", source, {"source": source}))
    bench.settle()
    assert len(bench.visible()) == 4
    assert all(len(os.fsencode(Path(name).name)) <= 255 for name in bench.visible())
    assert note_name("z" * 250) == "z" * 250 + ".json"
    for source in long:
        bench.box.remove_note(source)
    bench.settle()
    assert bench.visible() == {}


def test_a_note_does_not_go_through_a_link(bench: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (bench.outbox / "held").symlink_to(elsewhere)
    with capture_logs() as told:
        bench.box.write_note(WriteNote("held", "a.jpg", {}))
        bench.settle()
    assert told[0]["event"] == "note.failed"
    assert list(elsewhere.iterdir()) == []


# --- what becomes of the source ----------------------------------------------------------------------------


def with_result(bench: Bench, job: Job) -> Job:
    """The job as it is when its source is disposed of: its result stands in the outbox."""
    output = bench.outbox / f"{job.id}.out"
    output.write_bytes(b"clean")
    return replace(job, output=output.name, sha256_out=hashlib.sha256(b"clean").hexdigest())


def events_of(bench: Bench, *jobs: Job) -> list[str]:
    served = [with_result(bench, job) for job in jobs]
    with capture_logs() as told:
        for job in served:
            bench.box.apply_after(job)
        bench.box.discard("none")
        bench.close()
    return [entry["event"] for entry in told]


def test_keep_keeps(bench: Bench) -> None:
    assert events_of(bench, bench.drop("a.jpg", mask="a.mask.png")) == []
    assert set(contents(bench.inbox)) == {"a.jpg", "a.mask.png"}


def test_delete_removes_the_picture_and_its_mask_and_nothing_else(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(after="delete")
    job = bench.drop(f"a/{NON_UTF8}", mask="a/x.mask.png")
    bench.drop("a/other.jpg")
    assert events_of(bench, job, job) == []
    assert set(contents(bench.inbox)) == {"a/other.jpg"}


def test_a_picture_stays_while_its_mask_cannot_go(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(after="delete")
    job = with_result(bench, bench.drop("a/IMG.jpg", mask="a/masks/IMG.png"))
    gone: list[str] = []

    class MaskStays(FileOperations):
        def unlink(self, entry: Entry) -> None:
            gone.append(entry.name)
            if entry.name == "IMG.png":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            super().unlink(entry)

    bench.box._disposal._files = MaskStays()
    with capture_logs() as told:
        bench.box.apply_after(job)
        bench.close()
    assert gone == ["IMG.png"], "the mask is taken first, and the picture is the start's way back to it"
    assert [entry["event"] for entry in told] == ["after.failed"]
    assert set(contents(bench.inbox)) == {"a/IMG.jpg", "a/masks/IMG.png"}


@pytest.mark.parametrize("loss", ["never published", "deleted", "replaced"])
def test_delete_wants_to_see_the_result(make_bench: Callable[..., Bench], loss: str) -> None:
    bench = make_bench(after="delete")
    job = bench.drop("IMG.jpg")
    served = with_result(bench, job)
    output = bench.outbox / (served.output or "")
    if loss == "replaced":
        output.write_bytes(b"something else")
    else:
        output.unlink()
    with capture_logs() as told:
        bench.box.apply_after(job if loss == "never published" else served)
        bench.close()
    assert [entry["event"] for entry in told] == ["after.skipped"]
    assert set(contents(bench.inbox)) == {"IMG.jpg"}


@pytest.mark.parametrize("lacks", METHODS)
def test_archive_moves_both_to_the_same_place_and_overwrites_nothing(
    make_bench: Callable[..., Bench], tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    bench = make_bench(after="archive", archive=tmp_path / "archive", files=FaultyFiles(*lacks))
    (bench.archive / "a").mkdir()
    (bench.archive / "a/IMG.jpg").write_bytes(b"older")
    job = bench.drop("a/IMG.jpg", mask="a/IMG.mask.png")
    assert events_of(bench, job) == []
    assert contents(bench.inbox) == {}
    assert contents(bench.archive) == {
        "a/IMG.jpg": b"older",
        "a/IMG (2).jpg": b"picture",
        "a/IMG.mask.png": b"mask",
    }


@pytest.mark.parametrize("after", ["archive", "delete"])
@pytest.mark.parametrize(
    ("change", "taken"),
    [(touched, True), (rewritten, False), (grown, False), (copied_back, True), (linked_away, False)],
)
def test_only_the_jobs_own_bytes_are_taken(
    make_bench: Callable[..., Bench],
    tmp_path: Path,
    after: str,
    change: Callable[[Path], None],
    *,
    taken: bool,
) -> None:
    bench = make_bench(after=after, archive=tmp_path / "archive")
    job = bench.drop("IMG.jpg")
    change(bench.inbox / "IMG.jpg")
    changed = (bench.inbox / "IMG.jpg").read_bytes()
    told = events_of(bench, job)
    assert (bench.inbox / "IMG.jpg").exists() is not taken
    assert told == (["after.skipped"] if change in {rewritten, grown} else [])
    if taken and after == "archive":
        assert contents(bench.archive) == {"IMG.jpg": b"picture"}
    if not taken:
        assert (bench.inbox / "IMG.jpg").read_bytes() == changed
        assert contents(bench.archive) == {}


class Swapping(FileOperations):
    """Somebody puts a new picture in the place of the one that we have just opened to look at."""

    def open(self, entry: Entry, flags: int, mode: int = 0o666) -> int:
        descriptor = super().open(entry, flags, mode)
        if entry.name == "IMG.jpg":
            (self.inbox / "new").write_bytes(b"another picture")
            (self.inbox / "new").replace(self.inbox / "IMG.jpg")
        return descriptor

    def __init__(self, inbox: Path) -> None:
        self.inbox = inbox


@pytest.mark.parametrize("after", ["archive", "delete"])
def test_a_picture_that_comes_while_we_look_is_not_taken(
    make_bench: Callable[..., Bench], tmp_path: Path, after: str
) -> None:
    bench = make_bench(after=after, archive=tmp_path / "archive", files=Swapping(tmp_path / "in"))
    job = bench.drop("IMG.jpg")
    touched(bench.inbox / "IMG.jpg")
    events_of(bench, job)
    assert contents(bench.inbox) == {"IMG.jpg": b"another picture"}
    assert contents(bench.archive) == {}


@pytest.mark.parametrize("after", ["archive", "delete"])
def test_a_source_in_an_inbox_that_is_away_is_seen_to_after_its_return(
    make_bench: Callable[..., Bench], tmp_path: Path, after: str
) -> None:
    bench = make_bench(after=after, archive=tmp_path / "archive")
    first, second, third = (bench.serve(f"a/{number}.png") for number in range(3))
    away = bench.root / "away"
    bench.inbox.rename(away)
    with capture_logs() as told:
        bench.box.apply_after(first)
        bench.box.apply_after(second)
        bench.settle()
        assert len(contents(away)) == 3
        away.rename(bench.inbox)

        bench.box.apply_after(third)
        bench.settle()

    assert contents(bench.inbox) == {}
    assert told == []


def test_a_source_that_has_gone_is_no_failure(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(after="delete")
    job = bench.drop("a/IMG.jpg")
    (bench.inbox / "a/IMG.jpg").unlink()
    (bench.inbox / "a").rmdir()
    assert events_of(bench, job) == []


def test_an_archive_that_is_away_is_told_of_once_and_not_made(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench(after="archive", archive=tmp_path / "archive")
    bench.archive.rmdir()
    job, other = bench.drop("a.jpg", mask="a.mask.png"), bench.drop("b.jpg")
    assert events_of(bench, job, job, other) == ["after.failed", "after.failed"]
    assert not bench.archive.exists()
    assert len(contents(bench.inbox)) == 3


def test_a_failure_names_what_to_do(make_bench: Callable[..., Bench]) -> None:
    files = FaultyFiles()
    bench = make_bench(after="delete", files=files)
    job = with_result(bench, bench.drop("a.jpg"))
    files.arm(3, OSError(errno.EACCES, os.strerror(errno.EACCES)), lasting=True)
    with capture_logs() as told:
        bench.box.apply_after(job)
        bench.close()
    assert (told[0]["event"], told[0]["log_level"], told[0]["job"]) == ("after.failed", "warning", job.id)
    assert "permission" in told[0]["reason"]
    assert os.fspath(bench.inbox) in told[0]["remedy"]


def test_a_path_that_leads_out_is_not_touched(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(after="delete")
    (bench.root / "IMG.jpg").write_bytes(b"picture")
    job = replace(bench.drop("IMG.jpg"), source="../IMG.jpg")
    assert events_of(bench, job) == ["after.failed"]
    assert (bench.root / "IMG.jpg").exists()


def test_the_archive_on_another_disk_gets_a_whole_copy(
    make_bench: Callable[..., Bench], far_state: Path
) -> None:
    far_state.mkdir()
    bench = make_bench(after="archive", archive=far_state)
    job = bench.drop("a/IMG.jpg", mask="a/IMG.mask.png")
    before = (bench.inbox / "a/IMG.jpg").stat()
    (far_state / "a").mkdir()
    (far_state / "a/IMG.mask.png").write_bytes(b"older")
    assert events_of(bench, job) == []
    assert contents(bench.inbox) == {}
    assert contents(far_state) == {
        "a/IMG.jpg": b"picture",
        "a/IMG.mask.png": b"older",
        "a/IMG.mask (2).png": b"mask",
    }
    after = (far_state / "a/IMG.jpg").stat()
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)


def test_a_copy_into_the_archive_that_was_interrupted_is_swept(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench(after="archive", archive=tmp_path / "archive")
    (bench.archive / ".watcher").mkdir()
    (bench.archive / ".watcher" / "arriving").write_bytes(b"half")
    bench.box.sweep(set())
    assert list(bench.archive.iterdir()) == []


@pytest.mark.parametrize("after", ["archive", "delete"])
def test_a_source_or_its_archived_copy_exists_whatever_operation_fails(tmp_path: Path, after: str) -> None:
    for at in range(1, 60):
        root = tmp_path / str(at)
        root.mkdir()
        files = FaultyFiles()
        bench = Bench(root, files=files, after=after, archive=root / "archive")
        job = bench.drop("a/IMG.jpg")
        files.arm(at, OSError(errno.EIO, os.strerror(errno.EIO)))
        told = events_of(bench, job)
        here, there = contents(bench.inbox), contents(bench.archive)
        if after == "archive":
            assert len(here) + len(there) == 1
        reached = files.counted >= at
        assert told[:1] in ([], ["after.failed"], ["after.skipped"], ["stage.not_removed"])
        assert told[1:] in ([], ["stage.not_removed"])
        if not reached:
            assert here == {}
            return
    raise AssertionError("the sweep never reached its end")


def test_archiving_needs_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs an archive"):
        Bench(tmp_path, after="archive")
