"""The watched inbox on a real folder, with real notifications, real writers and real loss of the root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from structlog.testing import capture_logs
from watchdog.observers import inotify_c
from watchdog.observers.inotify_c import InotifyConstants
from watchdog.observers.inotify_move_event_grouper import InotifyMoveEventGrouper

from watcher.adapters import hearing, native_watch, pacing, tree
from watcher.adapters import inbox as inbox_module
from watcher.adapters.clock import SystemClock
from watcher.adapters.inbox import WatchedInbox
from watcher.adapters.native_watch import Change, NativeWatch, Notice
from watcher.core.events import (
    Event,
    FileHashed,
    FileObserved,
    FileUnreadable,
    FileVanished,
    Hint,
    InboxFound,
    InboxListed,
    InboxLost,
    RescanWanted,
    Writer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watcher.core.job import Fingerprint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify and leases are Linux'")

DEADLINE_S = 15.0
QUIET_S = 0.4
"""How long is waited before it is believed that nothing comes."""

E = TypeVar("E")


class Ear:
    """Collects events; waits for them with a deadline."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def of(self, kind: type[E], after: int = 0) -> list[E]:
        with self.changed:
            return [event for event in self.events[after:] if isinstance(event, kind)]

    def about(self, path: str, after: int = 0) -> list[FileObserved | FileVanished]:
        looks: list[FileObserved | FileVanished] = [
            *self.of(FileObserved, after),
            *self.of(FileVanished, after),
        ]
        return [event for event in looks if event.path == path]

    def wait(
        self,
        kind: type[E],
        test: Callable[[E], bool] = lambda _: True,
        *,
        after: int = 0,
        within_s: float = DEADLINE_S,
    ) -> E:
        deadline = time.monotonic() + within_s
        with self.changed:
            while True:
                for event in self.events[after:]:
                    if isinstance(event, kind) and test(event):
                        return event
                left = deadline - time.monotonic()
                assert left > 0, f"no such {kind.__name__} in {within_s} s; heard {self.events[after:][-20:]}"
                self.changed.wait(left)

    def observed(
        self, path: str, hint: Hint | None = None, *, after: int = 0, within_s: float = DEADLINE_S
    ) -> FileObserved:
        return self.wait(
            FileObserved,
            lambda event: event.path == path and hint in {None, event.hint},
            after=after,
            within_s=within_s,
        )

    def vanished(self, path: str, *, after: int = 0) -> FileVanished:
        return self.wait(FileVanished, lambda event: event.path == path, after=after)

    def mark(self) -> int:
        with self.changed:
            return len(self.events)


class Bench:
    """One inbox under test."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.ear = Ear()
        settings: dict[str, Any] = {"observer": "auto", "recursive": True, "ignore": ()} | options
        self.inbox = WatchedInbox(root, sink=self.ear, clock=SystemClock(), **settings)

    def start(self) -> Bench:
        self.inbox.start()
        return self

    def listing(self, after: int | None = None) -> InboxListed:
        """Ask for a listing and wait for it."""
        mark = self.ear.mark() if after is None else after
        self.inbox.rescan("test")
        return self.ear.wait(InboxListed, after=mark)

    def armed(self) -> Bench:
        self.start()
        self.ear.wait(InboxListed)
        return self


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def make(root: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def build(**options: Any) -> Bench:
        benches.append(Bench(root, **options))
        return benches[-1]

    yield build
    for bench in benches:
        bench.inbox.close()
    wait_until(lambda: not inbox_threads())


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make().armed()


def inbox_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("inbox-") or type(thread).__module__.startswith(("watchdog", "watcher"))
    ]


def wait_until(test: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not test():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def fingerprint(path: Path) -> Fingerprint:
    return tree.fingerprint_of(path.lstat())


@contextlib.contextmanager
def writing_child(path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `script` with the path; talks in lines."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), os.fspath(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def hear(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    assert child.stdout.readline().strip() == word


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


# --- starting ----------------------------------------------------------------------------------------------


def test_start_arms_first_and_then_lists_what_is_wanted(root: Path, make: Callable[..., Bench]) -> None:
    (root / "a.png").write_bytes(b"1")
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "deep" / "b.JPG").write_bytes(b"22")
    (root / "empty.png").touch()
    for name in ("note.txt", ".hidden.png", "~$a.png", "b.png.part"):
        (root / name).write_bytes(b"x")
    bench = make().armed()

    found, listed = bench.ear.events[:2]
    assert found == InboxFound("native")
    assert isinstance(listed, InboxListed)
    assert dict(listed.files) == {
        "a.png": fingerprint(root / "a.png"),
        "empty.png": fingerprint(root / "empty.png"),
        "sub/deep/b.JPG": fingerprint(root / "sub/deep/b.JPG"),
    }
    assert listed.started_ns <= listed.finished_ns <= time.monotonic_ns()
    assert listed.unreadable == ()


def test_a_missing_inbox_is_told_once_and_found_when_it_comes(root: Path, make: Callable[..., Bench]) -> None:
    root.rmdir()
    bench = make().start()
    assert "No such file" in bench.ear.wait(InboxLost).reason
    bench.inbox.rescan("while away")
    bench.inbox.observe("a.png")
    time.sleep(1.3)
    assert len(bench.ear.events) == 1

    root.mkdir()
    (root / "a.png").write_bytes(b"1")
    assert "a.png" in bench.ear.wait(InboxListed).files
    bench.ear.observed("a.png", Hint.CHECKED)
    assert [type(event) for event in bench.ear.events[:2]] == [InboxLost, InboxFound]


def test_not_recursive_is_the_top_folder_only(root: Path, make: Callable[..., Bench]) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a.png").write_bytes(b"1")
    bench = make(recursive=False).armed()
    (root / "sub" / "b.png").write_bytes(b"1")
    (root / "c.png").write_bytes(b"1")
    bench.ear.observed("c.png", Hint.CLOSED)
    assert set(bench.listing().files) == {"c.png"}
    assert not bench.ear.about("sub/b.png")


# --- writers -----------------------------------------------------------------------------------------------


def test_a_writer_is_seen_until_it_closes(bench: Bench, root: Path) -> None:
    script = """
        import sys
        file = open(sys.argv[1], "wb"); file.write(b"half"); file.flush()
        print("written", flush=True); sys.stdin.readline()
        file.write(b"whole"); file.close()
        print("closed", flush=True); sys.stdin.readline()
    """
    with writing_child(root / "a.png", script) as child:
        hear(child, "written")
        assert bench.ear.observed("a.png", Hint.CREATED).writer is Writer.PRESENT
        mark = bench.ear.mark()
        bench.inbox.observe("a.png")
        checked = bench.ear.observed("a.png", Hint.CHECKED, after=mark)
        assert (checked.writer, checked.fingerprint.size_bytes) == (Writer.PRESENT, 4)

        before_ns = time.monotonic_ns()
        tell(child)
        hear(child, "closed")
        closed = bench.ear.observed("a.png", Hint.CLOSED)
        assert (closed.writer, closed.links) == (Writer.NONE, 1)
        assert closed.fingerprint == fingerprint(root / "a.png")
        assert closed.fingerprint.size_bytes == 9
        assert before_ns <= closed.observed_ns <= time.monotonic_ns()


def test_a_writable_mapping_outlives_its_descriptor(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"x" * 4096)
    bench.ear.observed("a.png", Hint.CLOSED)
    script = """
        import mmap, os, sys
        fd = os.open(sys.argv[1], os.O_RDWR)
        view = mmap.mmap(fd, 4096); os.close(fd)
        print("mapped", flush=True); sys.stdin.readline()
        view.close()
        print("unmapped", flush=True); sys.stdin.readline()
    """
    with writing_child(root / "a.png", script) as child:
        hear(child, "mapped")
        mark = bench.ear.mark()
        bench.inbox.observe("a.png")
        assert bench.ear.observed("a.png", Hint.CHECKED, after=mark).writer is Writer.PRESENT
        tell(child)
        hear(child, "unmapped")
        mark = bench.ear.mark()
        bench.inbox.observe("a.png")
        assert bench.ear.observed("a.png", Hint.CHECKED, after=mark).writer is Writer.NONE


def test_many_closes_are_many_observations(bench: Bench, root: Path) -> None:
    for _ in range(5):
        mark = bench.ear.mark()
        with (root / "a.png").open("ab") as file:
            file.write(b"chunk")
        bench.ear.observed("a.png", Hint.CLOSED, after=mark)


def test_a_lease_is_not_possible_where_somebody_else_owns_the_file(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def refuse(fd: int, command: int, argument: int = 0) -> object:
        if command == fcntl.F_SETLEASE and argument == fcntl.F_RDLCK:
            raise PermissionError(errno.EACCES, "not the owner")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    (root / "a.png").write_bytes(b"1")
    assert bench.ear.observed("a.png", Hint.CLOSED).writer is Writer.UNKNOWN


def test_a_file_that_may_not_be_opened_is_observed_all_the_same(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = {"a.png": errno.EACCES, "b.png": errno.EBUSY}
    real = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if path in refusals:
            raise OSError(refusals[path], "refused")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    subprocess.run(["touch", root / "a.png", root / "b.png"], check=True)
    assert bench.ear.observed("a.png").writer is Writer.UNKNOWN
    assert bench.ear.observed("b.png").writer is Writer.PRESENT


def test_a_writer_that_comes_while_the_lease_is_held_does_not_kill_us(root: Path) -> None:
    """Breaking a lease sends a signal to its holder; SIGIO, the default one, kills."""
    (root / "a.png").write_bytes(b"1")
    script = """
        import os, signal, subprocess, sys
        from watcher.adapters.tree import writer_of
        assert signal.getsignal(signal.SIGIO) is signal.SIG_DFL
        fd = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
        def meanwhile():
            code = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)"
            broken = subprocess.run([sys.executable, "-c", code, sys.argv[1]], capture_output=True, text=True)
            assert "BlockingIOError" in broken.stderr, broken.stderr
        print(writer_of(fd, meanwhile).value, flush=True)
        sys.stdin.readline()
    """
    with writing_child(root / "a.png", script) as child:
        hear(child, "none")
        assert child.poll() is None


# --- moves, links, folders ---------------------------------------------------------------------------------


def test_a_file_moved_in_is_told_of_as_moved(bench: Bench, root: Path) -> None:
    outside = root.parent / "a.png"
    outside.write_bytes(b"1")
    outside.rename(root / "a.png")
    seen = bench.ear.observed("a.png")
    assert (seen.hint, seen.writer) == (Hint.MOVED_IN, Writer.NONE)


def test_a_hard_link_shows_its_count(bench: Bench, root: Path) -> None:
    (root.parent / "a.png").write_bytes(b"1")
    (root / "a.png").hardlink_to(root.parent / "a.png")
    seen = bench.ear.observed("a.png")
    assert (seen.hint, seen.writer, seen.links) == (Hint.CREATED, Writer.NONE, 2)


def test_a_rename_inside_is_a_vanishing_and_an_arrival(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    for number in range(20):
        mark = bench.ear.mark()
        source, target = (root / "a.png", root / "b.png")[:: -1 if number % 2 else 1]
        source.rename(target)
        bench.ear.vanished(source.name, after=mark)
        assert bench.ear.observed(target.name, after=mark).hint is Hint.MOVED_IN


def test_a_temporary_name_that_becomes_a_picture(bench: Bench, root: Path) -> None:
    for temporary in ("a.png.part", ".a.png.Xy12Ab", "a.jpg.tacitpart"):
        mark = bench.ear.mark()
        (root / temporary).write_bytes(b"1")
        (root / temporary).rename(root / "a.png")
        assert bench.ear.observed("a.png", after=mark).hint is Hint.MOVED_IN
        assert not bench.ear.about(temporary)
        (root / "a.png").unlink()
        bench.ear.vanished("a.png", after=mark)


def test_a_folder_moved_in_is_listed_and_watched(bench: Bench, root: Path) -> None:
    pack = root.parent / "pack"
    (pack / "deep").mkdir(parents=True)
    for name in ("a.png", "b.png", "deep/c.png"):
        (pack / name).write_bytes(b"1")
    pack.rename(root / "pack")
    bench.ear.wait(RescanWanted, lambda event: event.reason == "folder_changed")
    assert set(bench.listing().files) == {"pack/a.png", "pack/b.png", "pack/deep/c.png"}
    (root / "pack" / "deep" / "late.png").write_bytes(b"1")
    bench.ear.observed("pack/deep/late.png", Hint.CLOSED)


def test_a_folder_renamed_again_and_again_stays_watched(bench: Bench, root: Path) -> None:
    (root / "d0").mkdir()
    bench.ear.wait(RescanWanted)
    for number in range(30):
        (root / f"d{number}").rename(root / f"d{number + 1}")
    (root / "d30" / "a.png").write_bytes(b"1")
    bench.ear.observed("d30/a.png")
    assert len(bench.ear.of(RescanWanted)) <= 10  # a swarm of folders is one wish, not thirty


def test_a_folder_whose_rename_came_in_halves_keeps_its_name(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader finds the first half taken from the queue already, as happens on a busy machine."""
    monkeypatch.setattr(InotifyMoveEventGrouper, "get_queued_moved_from_event", lambda *_: None)
    (root / "t" / "a").mkdir(parents=True)
    time.sleep(QUIET_S)
    (root / "t").rename(root / "m")
    (root / "t").mkdir()
    time.sleep(QUIET_S)
    monkeypatch.undo()
    (root / "t").rename(root / "z")
    time.sleep(QUIET_S)
    (root / "m" / "a" / "new.png").write_bytes(b"1")
    bench.ear.observed("m/a/new.png", Hint.CLOSED)


def test_a_file_moved_out_does_not_hold_up_the_next(bench: Bench, root: Path) -> None:
    waits_ms = []
    for number in range(20):
        (root / "out.png").write_bytes(b"1")
        bench.ear.observed("out.png", Hint.CLOSED, after=bench.ear.mark() - 1)
        mark = bench.ear.mark()
        (root / "out.png").rename(root.parent / "out.png")
        begun = time.monotonic()
        (root / f"next{number}.png").write_bytes(b"1")
        bench.ear.observed(f"next{number}.png", Hint.CLOSED, after=mark)
        waits_ms.append((time.monotonic() - begun) * 1e3)
        bench.ear.vanished("out.png", after=mark)
    assert statistics.median(waits_ms) < 100


def test_links_are_not_followed_and_devices_not_opened(bench: Bench, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a.png").write_bytes(b"1")
    (root / "file.png").symlink_to(outside / "a.png")
    (root / "dangling.png").symlink_to(outside / "nothing.png")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "loop").symlink_to("..", target_is_directory=True)
    os.mkfifo(root / "pipe.png")
    (root / "folder.png").mkdir()
    (root / "last.png").write_bytes(b"1")
    bench.ear.observed("last.png", Hint.CLOSED)

    assert set(bench.listing().files) == {"last.png"}
    for path in ("file.png", "dangling.png", "folder/a.png", "loop/inbox/last.png", "pipe.png", "folder.png"):
        mark = bench.ear.mark()
        bench.inbox.observe(path)
        bench.ear.vanished(path, after=mark)
        bench.inbox.hash_file(path, fingerprint(outside / "a.png"))
        bench.ear.wait(FileVanished, lambda event, path=path: event.path == path, after=mark + 1)  # type: ignore[misc]  # the default binds the loop variable
    assert {event.path for event in bench.ear.of(FileObserved)} == {"last.png"}
    assert not bench.ear.of(FileHashed)


def test_a_file_that_turns_into_a_link_under_our_hands(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = root.parent / "secret.png"
    secret.write_bytes(b"not ours")
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    expected = fingerprint(secret)
    real = os.open

    def swap(path: Any, *args: Any, **options: Any) -> int:
        if path == "a.png" and not (root / "a.png").is_symlink():
            (root / "a.png").unlink()
            (root / "a.png").symlink_to(secret)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", swap)
    mark = bench.ear.mark()
    bench.inbox.observe("a.png")
    bench.ear.vanished("a.png", after=mark)
    (root / "a.png").unlink()
    (root / "a.png").write_bytes(b"1")
    bench.inbox.hash_file("a.png", expected)
    time.sleep(QUIET_S)
    assert not bench.ear.of(FileHashed)
    assert all(event.fingerprint != expected for event in bench.ear.of(FileObserved))


@pytest.mark.parametrize("path", ["../a.png", "x/../../a.png", "/a.png", "", ".", "a//b.png"])
def test_a_path_that_could_leave_the_inbox_is_refused(root: Path, path: str) -> None:
    (root.parent / "a.png").write_bytes(b"1")
    (root / "x").mkdir()
    fd = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(ValueError, match="below the inbox"):
            tree.look_at(fd, path)
    finally:
        os.close(fd)


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [b"\xff.png", b"a\nb.png", b"a b (1).png", b"'q' $(id).png", b"-rf.png", b"%s{}.png"]
)
def test_names_of_any_bytes(bench: Bench, root: Path, name: bytes) -> None:
    text = os.fsdecode(name)
    Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"content")
    seen = bench.ear.observed(text, Hint.CLOSED)
    assert text in bench.listing().files
    bench.inbox.hash_file(text, seen.fingerprint)
    assert bench.ear.wait(FileHashed).path == text


def test_litter_is_never_told_of(make: Callable[..., Bench], root: Path) -> None:
    bench = make(ignore=("private", "**/old/*.png")).armed()
    for folder in ("@eaDir", ".stversions", "x.png.download", "private", "old", "sub/private"):
        (root / folder).mkdir(parents=True)
        time.sleep(0.02)  # lets the watch reach the folder, so that the file in it makes a notice
        (root / folder / "a.png").write_bytes(b"1")
    for name in ("~$a.png", "a.png~", "Thumbs.db", "a.txt"):
        (root / name).write_bytes(b"1")
    (root / "last.png").write_bytes(b"1")
    bench.ear.observed("last.png", Hint.CLOSED)
    assert set(bench.listing().files) == {"last.png"}
    assert {event.path for event in bench.ear.of(FileObserved)} == {"last.png"}


def test_a_dot_file_is_not_observed_but_has_the_inbox_listed_soon(bench: Bench, root: Path) -> None:
    for number in range(5):
        (root / f".Screenshot {number}.png").write_bytes(b"1")
    began = time.monotonic()
    bench.ear.wait(RescanWanted, lambda event: event.reason == "hidden_file")
    assert time.monotonic() - began > QUIET_S  # its real name is to come by itself meanwhile
    assert len(bench.ear.of(RescanWanted)) == 1
    (root / ".DS_Store").write_bytes(b"1")
    (root / "._a.png").write_bytes(b"1")
    time.sleep(inbox_module.HIDDEN_RESCAN_S + QUIET_S)
    assert len(bench.ear.of(RescanWanted)) == 1
    assert not bench.ear.of(FileObserved)


# --- much at once, and loss --------------------------------------------------------------------------------


def test_a_burst_is_told_of_completely(bench: Bench, root: Path) -> None:
    names = {f"{number}.png" for number in range(2000)}
    for name in names:
        (root / name).write_bytes(b"1")
    wait_until(
        lambda: {event.path for event in bench.ear.of(FileObserved) if event.hint is Hint.CLOSED} == names
    )
    assert set(bench.listing().files) == names


def test_piled_up_requests_are_answered_by_few_listings(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.png").write_bytes(b"1")
    begun, go_on = threading.Event(), threading.Event()
    real = tree.list_files

    def slow(*args: Any, **options: Any) -> tree.Listing:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return real(*args, **options)

    monkeypatch.setattr(tree, "list_files", slow)
    mark = bench.ear.mark()
    bench.inbox.rescan("first")
    assert begun.wait(DEADLINE_S)
    for _ in range(50):
        bench.inbox.rescan("more")
    go_on.set()
    wait_until(lambda: len(bench.ear.of(InboxListed, mark)) >= 2)
    time.sleep(QUIET_S)
    assert len(bench.ear.of(InboxListed, mark)) == 2  # the one that ran, and one that saw all that came since


def test_an_overflow_of_the_kernels_queue_has_the_inbox_listed(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"the kernel's queue holds {limit} events here: filling it would take too long")
    held, go_on = threading.Event(), threading.Event()
    real = native_watch._ReportingInotify.handle_event

    def hold(self: Any, event: Any) -> None:
        held.set()
        assert go_on.wait(60)
        real(self, event)

    monkeypatch.setattr(native_watch._ReportingInotify, "handle_event", hold)
    bench = make().armed()
    (root / "first.png").touch()
    assert held.wait(DEADLINE_S)
    # what watchdog has read already, and two events for each file that is opened for writing and closed
    for number in range(limit // 2 + 4096):
        os.close(os.open(root / f"{number % 64}.png", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        if number % 64 == 63:
            for again in range(64):
                (root / f"{again}.png").unlink()
    go_on.set()
    bench.ear.wait(RescanWanted, lambda event: event.reason == "overflow")
    (root / "after.png").write_bytes(b"1")
    bench.ear.observed("after.png")


def test_more_notices_than_can_wait_are_dropped_for_a_listing(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    real = tree.look_at

    def slow(root_fd: int, path: str) -> tree.Look | None:
        assert go_on.wait(DEADLINE_S)
        return real(root_fd, path)

    monkeypatch.setattr(tree, "look_at", slow)
    monkeypatch.setattr(inbox_module, "MAX_WAITING_NOTICES", 10)
    for number in range(40):
        (root / f"{number}.png").write_bytes(b"1")
    bench.ear.wait(RescanWanted, lambda event: event.reason == "too_many_notices")
    assert bench.inbox._looks.qsize() <= 10
    go_on.set()
    assert len(bench.listing().files) == 40


def test_wishes_that_come_again_and_again_are_spaced() -> None:
    """An overflow every 10 ms for five seconds, on a clock of our own; then quiet, then one more."""
    wishes, told_s, now_s = pacing.Wishes(), [], 100.0
    while now_s < 105.0:
        wishes.add("overflow", round(now_s * 1e9))
        told_s += [now_s - 100.0 for _ in wishes.take_due(round(now_s * 1e9), 0)]
        now_s += 0.01
    assert told_s == pytest.approx([0.0, 0.2, 0.6, 1.4, 3.0], abs=0.05)
    assert wishes.take_due(round(120.0 * 1e9), 0) == ["overflow"], "the last one is not forgotten"
    for after_s in (0.0, 60.0):
        assert wishes.add("overflow", round((140.0 + after_s) * 1e9))
        assert wishes.take_due(round((140.0 + after_s) * 1e9), 0) == ["overflow"], "at once: it was quiet"


def test_wishes_are_spaced_up_to_a_limit_and_by_what_a_listing_costs() -> None:
    wishes, now_ns, gaps_s = pacing.Wishes(), 0, []
    for _ in range(12):
        wishes.add("folder_changed", now_ns)
        due_ns = wishes.next_ns()
        assert due_ns is not None
        gaps_s.append((due_ns - now_ns) / 1e9)
        now_ns = due_ns
        assert wishes.take_due(now_ns, 0) == ["folder_changed"]
    assert max(gaps_s) == pacing.WISH_MAX_S

    assert wishes.add("overflow", now_ns), "another kind is not held up"
    assert wishes.take_due(now_ns, least_pause_ns=60 * 10**9) == ["overflow"]
    wishes.add("overflow", now_ns + 10**9)
    assert wishes.next_ns() == now_ns + 60 * 10**9


def test_what_was_read_waits_in_bounds_and_the_rest_in_the_kernel(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    real = native_watch._Translator.dispatch

    def hold(self: Any, event: Any) -> None:
        assert go_on.wait(60)
        real(self, event)

    monkeypatch.setattr(native_watch, "MAX_BACKLOG", 100)
    monkeypatch.setattr(native_watch._Translator, "dispatch", hold)
    bench = make().armed()
    for number in range(2000):  # created, closed, deleted: three events
        path = root / f"{number % 2}.txt"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        path.unlink()
    (root / "last.png").write_bytes(b"1")
    watch: Any = bench.inbox._watch
    assert 100 < watch._observer._backlog() <= 100 + 2048
    go_on.set()
    bench.ear.observed("last.png", Hint.CLOSED)


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch lives, and nothing that it says arrives; and what takes seconds takes less."""
    monkeypatch.setattr(native_watch._Translator, "dispatch", lambda *_: None)
    monkeypatch.setattr(inbox_module, "CHECK_S", 0.1)
    monkeypatch.setattr(hearing, "CHECK_S", 0.1)
    monkeypatch.setattr(inbox_module, "PROBATION_RESCAN_S", 0.2)


def test_a_watch_that_hears_nothing_is_armed_anew_and_given_up_in_the_end(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    with capture_logs() as logs:
        bench = make().armed()
        for number in range(pacing.STRIKES):
            bench.listing()
            mark = bench.ear.mark()
            (root / f"{number}.png").write_bytes(b"1")
            bench.listing()
            bench.ear.wait(InboxFound, after=mark)
            # what follows a watch that failed comes by itself, and soon
            assert f"{number}.png" in bench.ear.wait(InboxListed, after=mark + 1).files
            if number < pacing.STRIKES - 1:
                bench.ear.wait(RescanWanted, lambda event: event.reason == "watch_on_probation", after=mark)
        (root / "polled.png").write_bytes(b"1")
        bench.ear.observed("polled.png", Hint.CREATED)
    assert [found.mode for found in bench.ear.of(InboxFound)] == ["native"] * 3 + ["polling"]
    assert [line["event"] for line in logs] == ["inbox.watch_failed"] * 2 + ["inbox.polling"]
    assert [line["path"] for line in logs] == ["0.png", "1.png", "2.png"]
    assert "limit" not in logs[-1]["remedy"]
    assert not bench.ear.of(InboxLost)


def test_silence_about_what_an_overflow_lost_is_no_fault(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    bench = make().armed()
    bench.listing()
    with capture_logs() as logs:
        (root / "lost.png").write_bytes(b"1")
        bench.inbox._on_notice(Notice(Change.OVERFLOWED))
        assert "lost.png" in bench.listing().files
        bench.listing()
        time.sleep(2 * QUIET_S)  # twice as long as it takes to be certain
    assert logs == []


def test_a_watch_that_hears_is_believed(bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the ways in which files come, with listings between them at any moment."""
    monkeypatch.setattr(inbox_module, "CHECK_S", 0.2)
    monkeypatch.setattr(hearing, "CHECK_S", 0.2)
    outside = root.parent / "outside"
    (outside / "a" / "b").mkdir(parents=True)
    (outside / "a" / "b" / "1.png").write_bytes(b"1")
    (outside / "old.png").write_bytes(b"1")
    with capture_logs() as logs:
        for number in range(2):
            bench.listing()
            shutil.copytree(outside / "a", root / f"copied-{number}")
            shutil.copytree(outside / "a", outside / "c")
            (outside / "c").rename(root / f"moved-{number}")
            bench.inbox.rescan("any time")
            (root / f"link-{number}.png").hardlink_to(outside / "old.png")
            (root / f".{number}.png.x7Gh").write_bytes(b"1")
            (root / f".{number}.png.x7Gh").rename(root / f"{number}.png")
            (root / f"{number}.png").chmod(0o600)
            bench.inbox.rescan("any time")
            (root / f"copied-{number}").rename(root / f"renamed-{number}")
            os.utime(root / f"{number}.png", ns=(0, 0))
            (root / f"renamed-{number}" / "late.png").write_bytes(b"1")
            bench.listing()
            time.sleep(0.9)  # more checks than it takes to be certain
    assert logs == []


def test_ignored_folders_get_no_watch(make: Callable[..., Bench], root: Path) -> None:
    for folder in ("@eaDir/deep", "kept/.stversions", "kept/node_modules/deep", "kept/deep"):
        (root / folder).mkdir(parents=True)
    bench = make(ignore=("node_modules",)).armed()
    watch: Any = bench.inbox._watch

    def watched() -> int:
        return Path(f"/proc/self/fdinfo/{watch._observer._inotify._inotify_fd}").read_text().count("wd:")

    assert watched() == 3  # the root, kept, kept/deep
    for folder in ("new/@eaDir/deep", "new/deep/node_modules", "node_modules/deep"):
        (root / folder).mkdir(parents=True)
    shutil.move(shutil.copytree(root / "new", root.parent / "twin"), root / "twin")
    wait_until(lambda: watched() == 7)
    (root / "twin" / "deep" / "a.png").write_bytes(b"1")
    bench.ear.observed("twin/deep/a.png", Hint.CLOSED)
    # a folder that sheds its ignored name is watched from then on
    (root / "node_modules").rename(root / "modules")
    wait_until(lambda: watched() == 9)
    (root / "modules" / "deep" / "b.png").write_bytes(b"1")
    bench.ear.observed("modules/deep/b.png", Hint.CLOSED)


def test_a_folder_that_gets_an_ignored_name_has_the_inbox_listed(bench: Bench, root: Path) -> None:
    (root / "album").mkdir()
    (root / "album" / "a.png").write_bytes(b"1")
    bench.ear.observed("album/a.png")
    bench.ear.wait(RescanWanted)
    time.sleep(QUIET_S)
    mark = bench.ear.mark()
    (root / "album").rename(root / "album.part")
    bench.ear.wait(RescanWanted, lambda event: event.reason == "folder_changed", after=mark)
    assert dict(bench.listing().files) == {}


def test_a_folder_with_very_much_in_it_is_left_to_the_listing(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_watch, "_MAX_SIMULATED", 5)
    pack = root.parent / "pack"
    (pack / "deep").mkdir(parents=True)
    for number in range(50):
        (pack / "deep" / f"{number}.png").write_bytes(b"1")
    shutil.copytree(pack, root / "copied")
    pack.rename(root / "moved")
    (root / "moved" / ".ignored").mkdir()
    bench.ear.wait(RescanWanted, lambda event: event.reason == "folder_changed")
    assert len(bench.listing().files) == 100
    (root / "moved" / "deep" / "late.png").write_bytes(b"1")
    bench.ear.observed("moved/deep/late.png", Hint.CLOSED)
    assert not [path for path in (f"moved/deep/{n}.png" for n in range(50)) if bench.ear.about(path)]
    # a folder that was filled before it got its watch is told of in part, an ignored one not at all
    watch: Any = bench.inbox._watch
    (emitter,) = watch._observer.emitters
    told = emitter._inotify._recursive_simulate(os.fsencode(root / "moved"))
    assert [event.name for event in told[:1]] == [b"deep"]
    assert len(told) == 5
    assert emitter._inotify._recursive_simulate(os.fsencode(root / "moved" / ".ignored")) == []


def test_a_question_is_owed_once_however_often_it_is_asked(make: Callable[..., Bench], root: Path) -> None:
    root.rmdir()
    bench = make().start()
    bench.ear.wait(InboxLost)
    for _ in range(100):
        bench.inbox.observe("a.png")
    wait_until(lambda: bench.inbox._looks.empty() and bench.inbox._owed)
    assert list(bench.inbox._owed) == ["a.png"]
    root.mkdir()
    bench.ear.vanished("a.png")
    time.sleep(QUIET_S)
    assert len(bench.ear.of(FileVanished)) == 1


def test_a_watch_whose_thread_died_is_armed_anew(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Any, _event: Any) -> None:
        monkeypatch.undo()
        raise KeyError("as watchdog's reader does now and then")

    with capture_logs() as logs:
        monkeypatch.setattr(native_watch._ReportingInotify, "handle_event", fail)
        mark = bench.ear.mark()
        (root / "killer.png").write_bytes(b"1")
        bench.ear.wait(InboxFound, after=mark)
        listed = bench.ear.wait(InboxListed, after=mark)
    assert "killer.png" in listed.files
    assert not bench.ear.of(InboxLost)
    assert [line["event"] for line in logs] == ["inbox.defect", "inbox.watch_failed"]
    (root / "next.png").write_bytes(b"1")
    bench.ear.observed("next.png", Hint.CLOSED)


def test_churn_of_folders_does_not_blind_us(bench: Bench, root: Path) -> None:
    ends = time.monotonic() + 2.0

    def churn(name: str) -> None:
        while time.monotonic() < ends:
            (root / name / "a" / "b").mkdir(parents=True)
            (root / name / "a" / "x.png").write_bytes(b"1")
            (root / name / "a").rename(root / name / "c")
            (root / name).rename(root / f"{name}-moved")
            shutil.rmtree(root / f"{name}-moved")

    threads = [threading.Thread(target=churn, args=(f"t{number}",)) for number in range(3)]
    with capture_logs() as logs:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mark = bench.ear.mark()
        (root / "after").mkdir()
        bench.ear.wait(RescanWanted, after=mark)
        time.sleep(QUIET_S)
        (root / "after" / "last.png").write_bytes(b"1")
        bench.ear.observed("after/last.png", Hint.CLOSED)
    assert logs == []
    watch: Any = bench.inbox._watch
    kernel = Path(f"/proc/self/fdinfo/{watch._observer._inotify._inotify_fd}").read_text()
    assert kernel.count("inotify wd:") == 2  # the root and `after`: nothing is watched that is gone


def test_folders_that_leave_and_come_back_do_not_end_the_reader(bench: Bench, root: Path) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            (root / "a" / "b").mkdir(parents=True)
            bench.ear.wait(RescanWanted, after=bench.ear.mark() - 1)
            (root / "a").rename(root.parent / "out")
            (root / "a" / "b").mkdir(parents=True)
            shutil.rmtree(root / "a")
            (root.parent / "out").rename(root / "c")
            (root / "c").rename(root.parent / "out")
            shutil.rmtree(root.parent / "out")
        mark = bench.ear.mark()
        (root / "last.png").write_bytes(b"1")
        bench.ear.observed("last.png", Hint.CLOSED, after=mark)
    assert logs == []


# --- the root goes away ------------------------------------------------------------------------------------


def test_a_root_renamed_away_and_back(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    mark = bench.ear.mark()
    away = root.with_name("away")
    root.rename(away)
    bench.inbox.observe("a.png")
    bench.ear.wait(InboxLost, after=mark)
    (away / "meanwhile.png").write_bytes(b"1")
    bench.inbox.rescan("while away")
    bench.inbox.hash_file("a.png", fingerprint(away / "a.png"))
    assert bench.ear.wait(FileUnreadable, after=mark).permanent is False
    time.sleep(1.3)
    assert [type(event) for event in bench.ear.events[mark:]] == [InboxLost, FileUnreadable]

    away.rename(root)
    assert set(bench.ear.wait(InboxListed, after=mark).files) == {"a.png", "meanwhile.png"}
    bench.ear.observed("a.png", Hint.CHECKED, after=mark)  # a question that was asked stays owed
    (root / "new.png").write_bytes(b"1")
    bench.ear.observed("new.png", Hint.CLOSED, within_s=5)
    assert not bench.ear.of(FileVanished)
    assert len(bench.ear.of(InboxLost)) == 1


def test_a_root_deleted_and_made_anew(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    mark = bench.ear.mark()
    shutil.rmtree(root)
    bench.ear.wait(InboxLost, after=mark, within_s=5)
    root.mkdir()
    assert dict(bench.ear.wait(InboxListed, after=mark).files) == {}
    (root / "b.png").write_bytes(b"1")
    bench.ear.observed("b.png", Hint.CLOSED, within_s=5)


def test_a_root_that_flaps_is_not_listed_each_time(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "CHECK_S", 0.02)
    away = root.with_name("away")
    ends = time.monotonic() + 1.6
    while time.monotonic() < ends:
        mark = bench.ear.mark()
        root.rename(away)
        bench.ear.wait(InboxLost)
        time.sleep(0.03)
        away.rename(root)
        time.sleep(0.03)
    found = len(bench.ear.of(InboxFound)) - 1
    assert 1 <= found <= 4  # after 0.2, 0.4, 0.8 and 1.6 s
    bench.ear.wait(InboxFound, after=mark)
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png")


def test_a_root_replaced_between_two_checks(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    mark = bench.ear.mark()
    (root.parent / "other").mkdir()
    (root.parent / "other" / "b.png").write_bytes(b"1")
    root.rename(root.parent / "old")
    (root.parent / "other").rename(root)
    bench.inbox.observe("a.png")
    assert "another folder" in bench.ear.wait(InboxLost, after=mark).reason
    assert isinstance(bench.ear.events[mark], InboxLost)
    assert set(bench.ear.wait(InboxListed, after=mark).files) == {"b.png"}
    (root / "c.png").write_bytes(b"1")
    bench.ear.observed("c.png", Hint.CLOSED)


def test_an_unmounted_root_is_lost_and_blocks_no_unmounting(tmp_path: Path) -> None:
    script = """
        import subprocess, sys, threading, time
        from pathlib import Path
        sys.path[:0] = [sys.argv[2]]
        from test_inbox import Bench, InboxFound, InboxListed, InboxLost, Hint, FileVanished
        root = Path(sys.argv[1])
        mount = ["mount", "-t", "tmpfs", "inbox", str(root)]
        subprocess.run(mount, check=True)
        (root / "a.png").write_bytes(b"1")
        bench = Bench(root).armed()
        mark = bench.ear.mark()
        subprocess.run(["umount", str(root)], check=True)
        lost = bench.ear.wait(InboxLost, after=mark)
        time.sleep(1.3)
        assert bench.ear.events[mark:] == [lost], bench.ear.events
        assert not bench.ear.of(FileVanished)
        subprocess.run(mount, check=True)
        (root / "b.png").write_bytes(b"1")
        assert set(bench.ear.wait(InboxListed, after=mark).files) == {"b.png"}
        (root / "c.png").write_bytes(b"1")
        bench.ear.observed("c.png", Hint.CLOSED)
        bench.inbox.close()
        print("good:", lost.reason)
    """
    (tmp_path / "mnt").mkdir()
    probe = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "probe", tmp_path / "mnt"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("mounting in a namespace of one's own is not allowed here")
    ran = subprocess.run(
        [
            "unshare",
            "-Urm",
            sys.executable,
            "-c",
            textwrap.dedent(script),
            tmp_path / "mnt",
            Path(__file__).parent,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ran.returncode == 0, ran.stderr
    assert "good: nothing is mounted" in ran.stdout


# --- polling -----------------------------------------------------------------------------------------------


def refuse_inotify(
    monkeypatch: pytest.MonkeyPatch, function: str, code: int, spare: bytes | None = None
) -> None:
    """Make the kernel refuse, except for the path `spare`."""
    real = getattr(inotify_c, function)

    def refuse(*args: Any) -> int:
        if spare is not None and args[1] == spare:
            return int(real(*args))
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(inotify_c, function, refuse)


@pytest.mark.parametrize(
    ("function", "code"), [("inotify_add_watch", errno.ENOSPC), ("inotify_init", errno.EMFILE)]
)
def test_refused_notifications_fall_back_to_polling_with_one_line(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    refuse_inotify(monkeypatch, function, code)
    with capture_logs() as logs:
        bench = make().armed()
        assert bench.ear.of(InboxFound) == [InboxFound("polling")]
        (root / "a.png").write_bytes(b"1")
        bench.ear.observed("a.png", Hint.CREATED)
    assert [(line["event"], line["log_level"]) for line in logs] == [("inbox.polling", "warning")]
    assert "max_user_watches" in logs[0]["remedy"]
    assert "max_user_instances" in logs[0]["remedy"]
    assert "limit reached" in logs[0]["reason"]


def test_notifications_are_tried_again_after_a_while(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "CHECK_S", 0.05)
    monkeypatch.setattr(pacing, "NATIVE_AGAIN_S", 0.2)
    tries: list[float] = []
    real = NativeWatch.__init__

    def count(self: Any, *args: Any, **options: Any) -> None:
        tries.append(time.monotonic())
        real(self, *args, **options)

    monkeypatch.setattr(NativeWatch, "__init__", count)
    with monkeypatch.context() as refusing, capture_logs() as logs:
        refuse_inotify(refusing, "inotify_init", errno.EMFILE)
        bench = make().armed()
        wait_until(lambda: len(tries) >= 3)
        (root / "a.png").write_bytes(b"1")
        bench.ear.observed("a.png", Hint.CREATED)
    assert tries[1] - tries[0] >= 0.2
    assert tries[2] - tries[1] >= 0.4, "twice as long each time"
    assert [line["event"] for line in logs] == ["inbox.polling"], "what goes on is told once"

    assert bench.ear.wait(InboxFound, lambda found: found.mode == "native").mode == "native"
    mark = bench.ear.mark()
    bench.listing()
    (root / "b.png").write_bytes(b"1")
    bench.ear.observed("b.png", Hint.CLOSED, after=mark)
    refuse_inotify(monkeypatch, "inotify_add_watch", errno.ENOSPC)
    (root / "sub").mkdir()
    assert bench.ear.wait(InboxFound, after=mark).mode == "polling"


def test_how_long_polling_lasts() -> None:
    trust, now_ns = pacing.Trust(), 0
    waits_s = []
    for _ in range(10):
        trust.wait(now_ns)
        assert trust.again_ns is not None
        waits_s.append((trust.again_ns - now_ns) / 1e9)
        now_ns = trust.again_ns
    assert waits_s[:3] == [600.0, 1200.0, 2400.0]
    assert max(waits_s) == pacing.NATIVE_AGAIN_MAX_S
    trust.try_again(now_ns)
    trust.wait(now_ns + 10**9)  # it lasted a second only
    assert trust.again_ns == now_ns + 10**9 + 6 * 3600 * 10**9
    trust.try_again(now_ns)
    trust.wait(now_ns + 3600 * 10**9)
    assert trust.again_ns == now_ns + 4200 * 10**9


def test_a_watch_that_fails_rarely_is_not_given_up() -> None:
    trust = pacing.Trust()
    assert not any(trust.strike(number * 601 * 10**9) for number in range(1, 100))
    assert [trust.strike((60_500 + number) * 10**9) for number in range(3)] == [False, False, True]
    trust.try_again(61_000 * 10**9)
    assert trust.strike(61_100 * 10**9), "once more is once too often"


def test_a_tree_that_is_watched_in_part_only_is_polled(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "sub").mkdir()
    refuse_inotify(monkeypatch, "inotify_add_watch", errno.ENOSPC, spare=os.fsencode(root))
    bench = make().armed()
    assert bench.ear.of(InboxFound) == [InboxFound("polling")]
    (root / "sub" / "a.png").write_bytes(b"1")
    bench.ear.observed("sub/a.png")


def test_a_folder_that_gets_no_watch_later_turns_to_polling(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make().armed()
    refuse_inotify(monkeypatch, "inotify_add_watch", errno.ENOSPC)
    mark = bench.ear.mark()
    (root / "sub").mkdir()
    assert bench.ear.wait(InboxFound, after=mark).mode == "polling"
    (root / "sub" / "a.png").write_bytes(b"1")
    # by the listing that follows the finding, if the file was faster
    wait_until(
        lambda: (
            bench.ear.about("sub/a.png", mark)
            or any("sub/a.png" in listed.files for listed in bench.ear.of(InboxListed, mark))
        )
    )


def test_polling_tells_of_all_that_happens(make: Callable[..., Bench], root: Path) -> None:
    (root / "old.png").write_bytes(b"1")
    bench = make(observer="polling").armed()
    assert bench.ear.of(InboxFound) == [InboxFound("polling")]
    mark = bench.ear.mark()
    (root / "new").mkdir()
    (root / "new" / "a.png").write_bytes(b"1")
    (root / "old.png").write_bytes(b"longer")
    (root / "loop").symlink_to("..")
    seen = bench.ear.observed("new/a.png", after=mark)
    assert (seen.hint, seen.writer) == (Hint.CREATED, Writer.NONE)
    assert bench.ear.observed("old.png", after=mark).hint is Hint.MODIFIED
    mark = bench.ear.mark()
    (root / "old.png").rename(root / "renamed.png")
    bench.ear.observed("renamed.png", after=mark)
    assert bench.ear.about("old.png", mark), "its old name goes first: a renamed file is no second copy"
    mark = bench.ear.mark()
    root.rename(root.with_name("away"))
    bench.ear.wait(InboxLost, after=mark)
    root.with_name("away").rename(root)
    bench.ear.wait(InboxListed, after=mark)
    (root / "b.png").write_bytes(b"1")
    bench.ear.observed("b.png", after=mark)
    assert not bench.ear.of(FileVanished, mark)


def test_a_poll_that_finds_very_much_hands_over_the_listing(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "POLL_S", 0.2)
    monkeypatch.setattr(inbox_module, "MAX_POLLED_LOOKS", 10)
    bench = make(observer="polling").armed()
    mark = bench.ear.mark()
    pack = root.parent / "pack"
    pack.mkdir()
    for number in range(30):
        (pack / f"{number}.png").write_bytes(b"1")
    pack.rename(root / "pack")
    assert len(bench.ear.wait(InboxListed, after=mark).files) == 30
    assert not bench.ear.of(FileObserved)
    (root / "one.png").write_bytes(b"1")
    bench.ear.observed("one.png", Hint.CREATED)
    time.sleep(QUIET_S)
    assert len(bench.ear.of(InboxListed, mark)) == 1


@pytest.mark.parametrize(("observer", "mode"), [("auto", "polling"), ("native", "native")])
def test_a_network_folder_is_polled_and_its_writers_are_not_known(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch, observer: str, mode: str
) -> None:
    monkeypatch.setattr(inbox_module, "is_network", lambda path: path == root)
    bench = make(observer=observer).armed()
    assert bench.ear.of(InboxFound) == [InboxFound(mode, network=True)]
    (root / "a.png").write_bytes(b"1")
    assert bench.ear.observed("a.png").writer is not Writer.NONE
    with (root / "b.png").open("wb") as file:
        file.write(b"1")
        file.flush()
        assert bench.ear.observed("b.png").writer is Writer.PRESENT


def test_a_malformed_glob_is_refused_at_once(make: Callable[..., Bench]) -> None:
    with pytest.raises(ValueError, match="stands alone"):
        make(ignore=("a**b",))


# --- listing -----------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_read_is_named_and_told_of_once(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("good", "locked/deep"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.png").write_bytes(b"1")
    real = tree._open_folder

    def refuse(root_fd: int, folder: str) -> Any:
        if folder.startswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(root_fd, folder)

    wait_until(lambda: len(bench.ear.of(FileObserved)) >= 2)
    monkeypatch.setattr(tree, "_open_folder", refuse)
    with capture_logs() as logs:
        for _ in range(3):
            listed = bench.listing()
            assert set(listed.files) == {"good/a.png"}
            assert listed.unreadable == ("locked",)
    assert [(line["event"], line["folder"]) for line in logs] == [("inbox.folder_unreadable", "locked")]

    mark = bench.ear.mark()
    bench.inbox.observe("locked/deep/a.png")
    time.sleep(QUIET_S)
    assert not bench.ear.about("locked/deep/a.png", mark), "neither there nor gone: it cannot be told"
    monkeypatch.undo()
    bench.ear.observed("locked/deep/a.png", Hint.CHECKED, after=mark)
    assert bench.listing().unreadable == ()


def test_very_many_folders_that_cannot_be_read_are_few_lines(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (root / f"locked-{number}").mkdir()
    real = tree._open_folder

    def refuse(root_fd: int, folder: str) -> Any:
        if folder.startswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(root_fd, folder)

    monkeypatch.setattr(tree, "_open_folder", refuse)
    with capture_logs() as logs:
        for _ in range(2):
            assert len(bench.listing().unreadable) == 30
    assert len(logs) == inbox_module.MAX_UNREADABLE_LINES + 1
    assert logs[-1]["more_folders"] == 30 - inbox_module.MAX_UNREADABLE_LINES
    assert all(line["remedy"] for line in logs)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permissions_are_honoured(bench: Bench, root: Path) -> None:
    (root / "locked").mkdir()
    (root / "locked").chmod(0)
    try:
        assert bench.listing().unreadable == ("locked",)
    finally:
        (root / "locked").chmod(0o700)


def test_a_root_that_cannot_be_listed_is_not_an_empty_inbox(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    tried = threading.Event()

    def fail(*_: Any) -> Any:
        tried.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tree, "_entries", fail)
    mark = bench.ear.mark()
    bench.inbox.rescan("test")
    assert tried.wait(DEADLINE_S)
    time.sleep(QUIET_S)
    assert not bench.ear.of(InboxListed, mark)
    monkeypatch.undo()
    assert set(bench.ear.wait(InboxListed, after=mark).files) == {"a.png"}


def test_our_own_reading_notifies_nobody(bench: Bench, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a.png").write_bytes(b"1")
    bench.ear.observed("sub/a.png")
    bench.ear.wait(RescanWanted)
    time.sleep(QUIET_S)
    mark = bench.ear.mark()
    for _ in range(5):
        bench.listing()
        bench.inbox.observe("sub/a.png")
        bench.inbox.hash_file("sub/a.png", fingerprint(root / "sub" / "a.png"))
    time.sleep(QUIET_S)
    kinds = [type(event).__name__ for event in bench.ear.events[mark:]]
    assert sorted(kinds) == ["FileHashed"] * 5 + ["FileObserved"] * 5 + ["InboxListed"] * 5

    watch: Any = bench.inbox._watch
    (emitter,) = watch._observer.emitters
    unwanted = (
        InotifyConstants.IN_OPEN
        | InotifyConstants.IN_CLOSE_NOWRITE
        | InotifyConstants.IN_ACCESS
        | InotifyConstants.IN_ATTRIB
        | InotifyConstants.IN_MODIFY
    )
    assert emitter._inotify.event_mask & unwanted == 0


# --- hashing -----------------------------------------------------------------------------------------------


def test_hashing(bench: Bench, root: Path) -> None:
    content = os.urandom(3 * tree.CHUNK_BYTES + 17)
    (root / "a.png").write_bytes(content)
    expected = fingerprint(root / "a.png")
    bench.inbox.hash_file("a.png", expected)
    hashed = bench.ear.wait(FileHashed)
    assert (hashed.path, hashed.fingerprint) == ("a.png", expected)
    assert hashed.sha256 == hashlib.sha256(content).hexdigest()
    assert hashed.finished_ns <= time.monotonic_ns()


def test_a_file_that_is_another_than_expected_is_not_hashed(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    old = fingerprint(root / "a.png")
    (root / "a.png").write_bytes(b"2")
    os.utime(root / "a.png", ns=(old.mtime_ns, old.mtime_ns))
    bench.inbox.hash_file("a.png", old)
    told = bench.ear.wait(FileUnreadable)
    assert (told.path, told.permanent) == ("a.png", False)
    assert "changed" in told.reason


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite", "replace"])
def test_a_file_that_changes_while_it_is_read_has_no_hash(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = root / "a.png"
    path.write_bytes(bytes(2 * tree.CHUNK_BYTES))
    real = os.read
    reads = 0

    def disturb(fd: int, count: int) -> bytes:
        nonlocal reads
        if count == tree.CHUNK_BYTES:
            reads += 1
            if reads == 2:
                disturbances[change]()
        return real(fd, count)

    def rewrite() -> None:
        with path.open("r+b") as file:
            file.write(b"other")

    def replace() -> None:
        (root / "b.txt").write_bytes(bytes(2 * tree.CHUNK_BYTES))
        (root / "b.txt").rename(path)

    def append() -> None:
        with path.open("ab") as file:
            file.write(b"more")

    disturbances: dict[str, Callable[[], object]] = {
        "append": append,
        "truncate": lambda: os.truncate(path, 10),
        "rewrite": rewrite,
        "replace": replace,
    }
    monkeypatch.setattr(os, "read", disturb)
    bench.inbox.hash_file("a.png", fingerprint(path))
    assert "changed while" in bench.ear.wait(FileUnreadable).reason
    assert not bench.ear.of(FileHashed)


def test_a_file_that_is_gone_or_forbidden_is_told_of(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.png").write_bytes(b"1")
    expected = fingerprint(root / "a.png")
    bench.inbox.hash_file("gone/b.png", expected)
    bench.ear.vanished("gone/b.png")

    def fail(_fd: int, _count: int) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "read", fail)
    bench.inbox.hash_file("a.png", expected)
    told = bench.ear.wait(FileUnreadable)
    assert told == FileUnreadable("a.png", "cannot be read: Permission denied", permanent=False)


def test_a_cloud_placeholder_is_observed_but_never_opened(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Evicted:
        st_flags = 0x4000_0020

    assert tree.is_placeholder(Evicted())  # type: ignore[arg-type]  # stands in for macOS' stat_result
    opened: list[object] = []
    real = os.open

    def spy(path: Any, *args: Any, **options: Any) -> int:
        opened.append(path)
        return real(path, *args, **options)

    monkeypatch.setattr(tree, "is_placeholder", lambda _status: True)
    (root / "a.png").write_bytes(b"1")
    monkeypatch.setattr(os, "open", spy)
    mark = bench.ear.mark()
    bench.inbox.observe("a.png")
    bench.inbox.hash_file("a.png", fingerprint(root / "a.png"))
    seen = bench.ear.observed("a.png", Hint.CHECKED, after=mark - 1 if mark else 0)
    assert (seen.writer, seen.fingerprint) == (Writer.UNKNOWN, fingerprint(root / "a.png"))
    assert "cloud" in bench.ear.wait(FileUnreadable).reason
    assert "a.png" in bench.listing().files
    assert "a.png" not in opened


# --- ending ------------------------------------------------------------------------------------------------


def test_close_ends_every_thread_within_a_second(make: Callable[..., Bench], root: Path) -> None:
    with (root / "huge.png").open("wb") as file:
        file.truncate(200 << 30)
    bench = make().armed()
    bench.inbox.hash_file("huge.png", fingerprint(root / "huge.png"))
    for number in range(500):
        bench.inbox.observe(f"{number}.png")
    time.sleep(0.1)
    began = time.monotonic()
    bench.inbox.close()
    assert time.monotonic() - began < 1.5
    assert not inbox_threads()
    mark = bench.ear.mark()
    (root / "a.png").write_bytes(b"1")
    bench.inbox.close()
    time.sleep(QUIET_S)
    assert bench.ear.mark() == mark


def test_closing_what_was_never_started(make: Callable[..., Bench]) -> None:
    make().inbox.close()


def test_a_file_system_that_hangs_holds_up_nobody_else(
    make: Callable[..., Bench], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.png").write_bytes(b"1")
    go_on = threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        go_on.wait(60)
        raise OSError(errno.EIO, "Input/output error")

    bench = make().armed()
    for name in ("look_at", "list_files", "hash_file", "identify_root"):
        monkeypatch.setattr(tree, name, hang)
    began = time.monotonic()
    for _ in range(100):
        bench.inbox.observe("a.png")
        bench.inbox.rescan("test")
        bench.inbox.hash_file("a.png", fingerprint(root / "a.png"))
    assert time.monotonic() - began < 1.0
    began = time.monotonic()
    bench.inbox.close()
    assert time.monotonic() - began < 2.0
    go_on.set()


def test_the_process_keeps_its_signals(bench: Bench, root: Path) -> None:
    (root / "a.png").write_bytes(b"1")
    bench.ear.observed("a.png", Hint.CLOSED)
    assert signal.getsignal(signal.SIGIO) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_a_burst_of_notices_leaves_no_open_descriptor(bench: Bench, root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(200):
        (root / f"{number}.png").write_bytes(b"1")
    wait_until(lambda: len(bench.ear.of(FileObserved)) >= 400)
    bench.listing()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
