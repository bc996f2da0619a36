"""Kinds A: files that are not complete yet, whatever their writer does (tests/service/kinds.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import Service, encoded, mask, picture, pixels, seed_of, sha256, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.harness import Record

    NewService = Callable[..., Service]

PROMPT_S: Final = 2.0
"""How soon after its writer's last word a picture is done."""
SIZE: Final = (200, 150)
MASK: Final = mask(*SIZE)


def seen_of(service: Service, name: str) -> list[str]:
    """The states of all jobs that were ever made of a picture."""
    return [job.state for job in service.jobs() if job.source == name]


def assert_untouched(service: Service, name: str) -> None:
    """Nothing was made of a picture so far, and nothing said against it."""
    assert service.records_of(name, outcome=()) == []
    assert service.note("failed", name) is None
    assert [line for line in service.log() if name in line.values() and line["level"] != "info"] == []


def assert_done_once(service: Service, name: str, data: bytes) -> Record:
    """The picture has one result, of these bytes, at the first attempt, and none of its jobs has failed."""
    record = service.wait_record(name)
    assert record["image"]["sha256_in"] == sha256(data)
    assert record["attempt"] == 1
    assert len(service.records_of(name)) == 1
    assert set(seen_of(service, name)) <= {"done", "superseded"}
    assert service.note("failed", name) is None
    return record


# --- services ----------------------------------------------------------------------------------------------

IMPATIENT: Final = """
import runpy, sys
from watcher.core.policy import ArrivalPolicy
names = list(ArrivalPolicy.__dataclass_fields__)
defaults = dict(zip(names, ArrivalPolicy.__init__.__defaults__))
defaults.update(empty_warn_s=0.5, young_s=1.5)
ArrivalPolicy.__init__.__defaults__ = tuple(defaults.values())
sys.argv = sys.argv[3:]
runpy.run_module("watcher", run_name="__main__", alter_sys=True)
"""
"""The service, which tells of an empty file after half a second, and gives up half a file after 1.5 s."""


@pytest.fixture(scope="module")
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(
        tmp_path_factory.mktemp("impatient"),
        ("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2"),
        wrapper=(sys.executable, "-c", IMPATIENT),
    ).start()
    yield service
    assert service.terminate() == 0
    service.close()


@pytest.fixture
def impatient(_impatient: Service) -> Iterator[Service]:
    """A service that waits for nothing as long as it usually does; each test uses names of its own."""
    yield _impatient
    _impatient.assert_sound()


@pytest.fixture(scope="module")
def _polling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(
        tmp_path_factory.mktemp("polling"),
        ("[arrivals]", 'observer = "polling"', "quiet_s = 0.3", "rescan_s = 600"),
    ).start()
    yield service
    assert service.terminate() == 0
    service.close()


@pytest.fixture
def polling(_polling: Service) -> Iterator[Service]:
    """A service that nobody tells of anything, as on a share; each test uses names of its own."""
    yield _polling
    _polling.assert_sound()


# --- a writer that has the file open -----------------------------------------------------------------------

SLOW: Final = """
import sys
target, source = sys.argv[1:]
data = open(source, "rb").read()
with open(target, "wb") as file:
    for start in range(0, len(data), 4096):
        file.write(data[start:start + 4096])
        file.flush()
        if start >= len(data) // 2:
            sys.stdin.readline()
"""
"""Writes a half, and then 4 KiB for each line that it is told, with the file open all the time."""

RESERVED: Final = """
import os, sys
target, source = sys.argv[1:]
data = open(source, "rb").read()
fd = os.open(target, os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(fd, 0, len(data))
for start in range(0, len(data), 4096):
    os.pwrite(fd, data[start:start + 4096], start)
    if start >= len(data) // 2:
        sys.stdin.readline()
"""
"""The same, and the file has its final size from the start."""


def writer(program: str, service: Service, name: str, data: bytes) -> subprocess.Popen[bytes]:
    """Write a file from a process of its own."""
    source = service.root / "aside" / f"slow-{name}"
    source.write_bytes(data)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(service.inbox / name), str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def tell(process: subprocess.Popen[bytes]) -> None:
    """Let a writer go on."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def assert_waited_for(service: Service, process: subprocess.Popen[bytes], name: str) -> None:
    """A file whose writer goes on step by step, and then rests, is not taken, and others are."""
    for number in range(4):
        service.put(f"beside-{number}-{name}")
        service.wait_record(f"beside-{number}-{name}")
        tell(process)
    rest_from_writing(service.inbox / name)
    assert seen_of(service, name) == []
    assert_untouched(service, name)


def rest_from_writing(path: Path) -> None:
    """Let a file be unchanged for much longer than any quiet period of these tests."""
    wait_until(lambda: time.time() - path.stat().st_mtime > 0.7, "a while without a change")


@pytest.mark.kind("A6", "PD15")
@pytest.mark.parametrize(
    ("name", "program"),
    [
        pytest.param("slow.png", SLOW, marks=pytest.mark.kind("A1")),
        pytest.param("preallocated.png", RESERVED, marks=pytest.mark.kind("A8")),
    ],
)
def test_a_file_is_waited_for_as_long_as_its_writer_has_it_open_and_others_are_not_held_up(
    impatient: Service, name: str, program: str
) -> None:
    data = picture(seed_of(name), *SIZE)
    impatient.place(f"{name}.mask.png", MASK)
    impatient.expect(name, data, MASK)

    with writer(program, impatient, name, data) as process:
        wait_until((impatient.inbox / name).exists, "the first bytes")
        assert_waited_for(impatient, process, name)

    assert_done_once(impatient, name, data)
    assert seen_of(impatient, name) == ["done"]


@pytest.mark.kind("A9")
def test_a_file_that_is_being_written_at_the_start_is_waited_for(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    data = picture(1201, *SIZE)
    service.place("slow.png.mask.png", MASK)
    service.expect("slow.png", data, MASK)

    with writer(SLOW, service, "slow.png", data) as process:
        wait_until((service.inbox / "slow.png").exists, "the first bytes")
        service.start()
        assert_waited_for(service, process, "slow.png")

    assert_done_once(service, "slow.png", data)
    service.assert_sound()
    assert seen_of(service, "slow.png") == ["done"]


@pytest.mark.kind("A2")
def test_a_file_that_is_held_open_beyond_all_patience_is_taken_soon_after_its_close(
    service: Service, polling: Service
) -> None:
    """Looks at an open file become rarer, up to 10 quiet periods (3 s), and never end.

    All bytes are there long before the close, so that where nobody tells of it nothing else shows it.
    """
    data = picture(1204)
    both = (service, polling)
    with contextlib.ExitStack() as writers:
        for watching in both:
            watching.place("held-open.png.mask.png", mask())
            file = writers.enter_context((watching.inbox / "held-open.png").open("wb", buffering=0))
            file.write(data)
            watching.expect("held-open.png", data, mask())
        time.sleep(3.5)
        for watching in both:
            assert_untouched(watching, "held-open.png")
    closed_s = time.time()

    for watching, late_s in ((service, 0.0), (polling, 3.0)):  # nobody tells the second of the close
        assert_done_once(watching, "held-open.png", data)
        assert time.time() - closed_s < PROMPT_S + late_s


# --- a writer that has not begun ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filled",
    [
        pytest.param("much later", marks=pytest.mark.kind("A3")),
        pytest.param("at once", marks=pytest.mark.kind("A4")),
    ],
)
def test_an_empty_file_has_not_arrived_until_it_is_filled(service: Service, filled: str) -> None:
    name = f"scan-{filled.replace(' ', '-')}.png"
    data = picture(seed_of(name))
    service.place(f"{name}.mask.png", mask())
    (service.inbox / name).touch()
    if filled == "much later":
        service.put("other.png")
        service.wait_record("other.png")
    else:
        time.sleep(0.2)
    assert seen_of(service, name) == []
    assert_untouched(service, name)

    (service.inbox / name).write_bytes(data)
    service.expect(name, data, mask())

    assert_done_once(service, name, data)
    assert seen_of(service, name) == ["done"]


@pytest.mark.kind("A3")
def test_a_file_that_stays_empty_is_told_of_once_and_still_served_when_it_is_filled(
    impatient: Service,
) -> None:
    path = impatient.inbox / "empty.png"
    impatient.place("empty.png.mask.png", mask())
    path.touch()

    impatient.wait_log("file.empty", path="empty.png")
    told_s = time.time()
    impatient.put("beside-empty.png")
    impatient.wait_record("beside-empty.png")
    wait_until(lambda: time.time() - told_s > 1.5, "the next look for empty files")
    assert len(impatient.log("file.empty", path="empty.png")) == 1
    assert seen_of(impatient, "empty.png") == []
    assert impatient.status()["counts"]["arriving"] == 1
    path.write_bytes(picture(1205))
    impatient.expect("empty.png", picture(1205), mask())

    assert_done_once(impatient, "empty.png", picture(1205))


# --- a writer that closes before it is done ----------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A file of which half is there, and how the rest comes."""

    container: str
    reserved: bool
    """The other half is zeros: the file has its final size."""
    completed: str

    def __str__(self) -> str:
        return f"{self.container}-{'reserved' if self.reserved else 'cut'}-{self.completed}"

    @property
    def whole(self) -> bytes:
        return encoded(pixels(seed_of(str(self)), *SIZE), self.container)

    @property
    def half(self) -> bytes:
        kept = self.whole[: len(self.whole) // 2]
        return kept + bytes(len(self.whole) - len(kept)) if self.reserved else kept

    def complete(self, path: Path) -> None:
        """Let the rest come."""
        match self.completed:
            case "append":
                with path.open("ab") as file:
                    file.write(self.whole[len(self.half) :])
            case "overwrite":
                with path.open("r+b") as file:
                    file.seek(len(self.whole) // 2)
                    file.write(self.whole[len(self.whole) // 2 :])
            case "refill":
                path.write_bytes(self.whole)
            case "replace":
                fresh = path.with_name(f".{path.name}.part")
                fresh.write_bytes(self.whole)
                fresh.replace(path)


CUTS: Final = (
    Cut("PNG", reserved=False, completed="append"),
    Cut("PNG", reserved=True, completed="overwrite"),
    Cut("JPEG", reserved=False, completed="refill"),
    Cut("JPEG", reserved=True, completed="overwrite"),
    Cut("TIFF", reserved=False, completed="append"),
    Cut("TIFF", reserved=True, completed="overwrite"),
    Cut("BMP", reserved=False, completed="replace"),
    Cut("BMP", reserved=True, completed="overwrite"),
    Cut("WEBP", reserved=False, completed="append"),
    Cut("GIF", reserved=True, completed="replace"),
)


@pytest.mark.kind("A5", "A8", "A13", "PC13")
def test_half_a_file_is_no_failure_while_it_is_young_and_is_served_when_the_rest_comes(
    service: Service,
) -> None:
    """Its writer has closed it, so only its bytes can tell. Nobody has to do anything but write the rest."""
    names = {cut: f"cut/{cut}.{cut.container.lower()}" for cut in CUTS}
    for cut, name in names.items():
        service.place(f"{name}.mask.png", MASK)
        (service.inbox / name).write_bytes(cut.half)
    for name in names.values():
        service.wait_log("file.incomplete", source=name)
        wait_until(lambda name=name: seen_of(service, name) == ["waiting"], f"{name} to wait")  # type: ignore[misc]  # the default binds the loop variable
        assert_untouched(service, name)

    for cut, name in names.items():
        cut.complete(service.inbox / name)
        service.expect(name, cut.whole, MASK)

    for cut, name in names.items():
        assert_done_once(service, name, cut.whole)


@pytest.mark.kind("A8")
def test_a_file_that_is_only_reserved_is_not_there_yet(service: Service) -> None:
    data = picture(1206)
    path = service.inbox / "reserved.png"
    service.place("reserved.png.mask.png", mask())
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, len(data))
    service.wait_log("file.incomplete", source="reserved.png")

    with path.open("r+b") as file:
        file.write(data)
    service.expect("reserved.png", data, mask())

    assert_done_once(service, "reserved.png", data)


@pytest.mark.kind("A5", "PC13", "PA15")
def test_half_a_file_that_stays_so_fails_with_a_note_and_is_not_lost(impatient: Service) -> None:
    cut = Cut("PNG", reserved=False, completed="refill")
    path = impatient.inbox / "abandoned.png"
    impatient.place("abandoned.png.mask.png", MASK)
    path.write_bytes(cut.half)
    impatient.wait_log("file.incomplete", source="abandoned.png")

    record = impatient.wait_record("abandoned.png", outcome={"failed"})
    note = impatient.wait_note("failed", "abandoned.png")
    assert record["attempt"] == 1
    assert note["remedy"]

    cut.complete(path)
    impatient.expect("abandoned.png", cut.whole, MASK)

    impatient.wait_record("abandoned.png")
    impatient.wait_no_note("failed", "abandoned.png")


@pytest.mark.soak
@pytest.mark.kind("A5", "A8")
def test_half_a_file_is_given_up_after_a_minute_and_a_dark_picture_is_not(new_service: NewService) -> None:
    """With the patience that is shipped; what ends in zeros is black if nobody writes to it any more."""
    service = new_service().start()
    cut = Cut("TIFF", reserved=False, completed="append")
    dark = pixels(1207, *SIZE)
    dark[SIZE[1] // 2 :] = 0
    service.put("half.tif", cut.half, MASK, expect=False)
    service.put("dark.tif", encoded(dark, "TIFF"), MASK)
    for name in ("half.tif", "dark.tif"):
        service.wait_log("file.incomplete", source=name)

    service.wait_record("dark.tif", patience_s=100)
    service.wait_record("half.tif", outcome={"failed"}, patience_s=100)
    assert service.wait_note("failed", "half.tif")
    cut.complete(service.inbox / "half.tif")
    service.expect("half.tif", cut.whole, MASK)

    service.wait_record("half.tif")
    service.assert_sound()
    assert service.notes("failed") == set()


CLOSING: Final = """
import sys, time
target, source, chunks, pause_s = sys.argv[1:]
data = open(source, "rb").read()
step = -(-len(data) // int(chunks))
for start in range(0, len(data), step):
    with open(target, "ab") as file:
        file.write(data[start:start + step])
    time.sleep(float(pause_s))
"""
"""Opens, appends and closes for each chunk, as clients of network shares do."""


def append_in_chunks(service: Service, name: str, data: bytes, *, chunks: int, pause_s: float) -> None:
    source = service.root / "aside" / f"chunks-{name}"
    source.write_bytes(data)
    arguments = [str(service.inbox / name), str(source), str(chunks), str(pause_s)]
    subprocess.run([sys.executable, "-c", CLOSING, *arguments], check=True)


@pytest.mark.kind("A11")
def test_a_writer_that_closes_after_each_chunk_makes_one_result_and_no_failure(service: Service) -> None:
    """Each close looks like the end; what is served before the end is never published."""
    data = picture(1202, *SIZE)
    service.place("chunks.png.mask.png", MASK)
    service.expect("chunks.png", data, MASK)

    append_in_chunks(service, "chunks.png", data, chunks=20, pause_s=0.06)

    assert_done_once(service, "chunks.png", data)
    assert seen_of(service, "chunks.png").count("superseded") <= 1, "many closes, and hardly more jobs"


@pytest.mark.kind("A12")
def test_the_wait_begins_anew_with_each_growth(polling: Service) -> None:
    """Nobody tells of the closes, so that only the growth says that the file is not complete."""
    data = picture(1208, *SIZE)
    path = polling.inbox / "grows.png"
    polling.place("grows.png.mask.png", MASK)
    polling.expect("grows.png", data, MASK)

    append_in_chunks(polling, "grows.png", data, chunks=10, pause_s=0.2)

    record = assert_done_once(polling, "grows.png", data)
    assert seen_of(polling, "grows.png") == ["done"]
    assert job_created_s(polling, record) - path.stat().st_ctime >= 0.3


def job_created_s(service: Service, record: Record) -> float:
    (created_s,) = (job.created_s for job in service.jobs() if job.id == record["job"])
    assert created_s is not None
    return created_s


# --- a writer that has the file for itself -----------------------------------------------------------------

EXCLUSIVE: Final = """
import fcntl, os, signal, sys
target, source = sys.argv[1:]
data = open(source, "rb").read()
refusals = []
signal.signal(signal.SIGIO, lambda *_: refusals.append(1))
fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.write(fd, data[:-20])
os.rename(target, target.removesuffix(".part"))
print("held", flush=True)
sys.stdin.readline()
os.write(fd, data[-20:])
print("refused" if refusals else "never asked", flush=True)
os.close(fd)
"""
"""Holds a write lease: whoever opens the file meanwhile, not waiting, is refused with EWOULDBLOCK."""


@pytest.mark.kind("A14")
@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's; elsewhere nobody can refuse an open")
def test_a_file_that_its_writer_has_for_itself_is_waited_for(service: Service) -> None:
    """What a share's writer does with `EBUSY`, and Windows with a sharing violation."""
    data = picture(1209)
    service.place("locked.png.mask.png", mask())
    service.expect("locked.png", data, mask())

    with writer(EXCLUSIVE, service, "locked.png.part", data) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        service.put("unlocked.png")
        service.wait_record("unlocked.png")
        rest_from_writing(service.inbox / "locked.png")
        assert seen_of(service, "locked.png") == []
        assert_untouched(service, "locked.png")
        tell(process)
        assert process.stdout.readline() == b"refused\n"

    assert_done_once(service, "locked.png", data)
    assert seen_of(service, "locked.png") == ["done"]


# --- a copy that takes its time ----------------------------------------------------------------------------


def elsewhere(service: Service) -> Path:
    """A folder that is on another file system than the inbox."""
    folder = Path("/dev/shm")  # noqa: S108 - its own file system is what is wanted of it
    if not os.access(folder, os.W_OK) or folder.stat().st_dev == service.inbox.stat().st_dev:
        pytest.skip("this system has no second file system that anybody may write to")
    return folder


@pytest.mark.kind("A15")
@pytest.mark.skipif(sys.platform != "linux", reason="a copy cannot be stopped in the middle by chance alone")
def test_a_move_from_another_file_system_is_taken_at_its_end(service: Service) -> None:
    """It is a copy and a removal, as a move by a downloader is. It is stopped in the middle."""
    data = encoded(pixels(1210, 2400, 1600), "BMP")
    target = service.inbox / "moved.bmp"
    service.place("moved.bmp.mask.png", mask(2400, 1600))
    service.expect("moved.bmp", data, mask(2400, 1600))
    source = elsewhere(service) / f"watcher-test-{os.getpid()}.bmp"
    try:
        source.write_bytes(data)
        with subprocess.Popen(["mv", str(source), str(target)]) as move:
            try:
                halt_in_the_middle(move, target)
                assert 0 < target.stat().st_size < len(data), "it was not stopped in the middle"
                service.put("beside-the-move.png")
                service.wait_record("beside-the-move.png")
                rest_from_writing(target)
                assert seen_of(service, "moved.bmp") == []
            finally:
                move.send_signal(signal.SIGCONT)
    finally:
        source.unlink(missing_ok=True)

    assert_done_once(service, "moved.bmp", data)
    assert seen_of(service, "moved.bmp") == ["done"]


def halt_in_the_middle(process: subprocess.Popen[bytes], target: Path) -> None:
    """Stop a process as soon as it has written something; it runs only while we leave a processor idle."""
    os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if target.stat().st_size:
                process.send_signal(signal.SIGSTOP)
                return


# --- a sync client that delivers twice ---------------------------------------------------------------------


@pytest.mark.kind("A16")
def test_a_second_delivery_under_the_same_name_is_a_second_picture(service: Service) -> None:
    """Both look complete; a client shipped the file while its owner still worked on it."""
    first, second = picture(1211), picture(1212)
    service.put("twice.png", first)
    service.wait_record("twice.png")
    service.put("twice.png", second)

    service.wait_record("twice.png", count=2)
    outputs = {r["image"]["sha256_in"]: r["output"] for r in service.records_of("twice.png")}
    assert outputs == {sha256(first): "twice.png", sha256(second): "twice (2).png"}
    assert len(service.log("job.finished", source="twice.png", outcome="done")) == 2


@pytest.mark.kind("A16")
def test_a_half_written_delivery_is_not_served_and_the_whole_one_is(service: Service) -> None:
    data = picture(1213)
    service.put("again.png", data[: len(data) // 2], expect=False)
    service.wait_log("file.incomplete", source="again.png")

    service.put("again.png", data)

    assert assert_done_once(service, "again.png", data)["output"] == "again.png"


@pytest.mark.kind("A16")
def test_a_second_delivery_replaces_the_result_where_that_is_the_policy(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1", "[output]", 'on_conflict = "replace"').start()
    deliveries = [picture(1214), picture(1215)]
    for number, data in enumerate(deliveries, start=1):
        service.put("twice.png", data)
        last = service.wait_record("twice.png", count=number)

    assert [r["image"]["sha256_in"] for r in service.records_of("twice.png")] == [*map(sha256, deliveries)]
    assert {r["output"] for r in service.records_of("twice.png")} == {"twice.png"}
    assert sha256(service.outbox / "twice.png") == last["image"]["sha256_out"]
    # Two results have one output, so this cannot end with `assert_sound`.
    assert service.outputs() == {"twice.png"}
    assert service.is_healthy
