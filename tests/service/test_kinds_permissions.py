"""Permissions, mounts and where files really are: H1, H2, H4, H5 and H7."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import struct
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import PATIENCE_S, Service, mask, picture, wait_until
from tests.service.namespaces import inside, read_only, seen_by, with_mounts
from tests.service.odd_disk import Rules, on_odd_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    NewService = Callable[..., Service]

CONFIGURATION: Final = 78
SCANS: Final = 10

_ACCESS, _MODIFY, _ATTRIB, _CLOSE_WRITE, _OPEN = 0x1, 0x2, 0x4, 0x8, 0x20
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
CHANGES: Final = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
READS: Final = _OPEN | _ACCESS


@contextmanager
def heard(paths: list[Path], kinds: int) -> Iterator[Callable[[], list[tuple[str, int]]]]:
    """Listen to what anybody does to files and folders; yields what returns (name, kind) of all so far."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    numbers = {libc.inotify_add_watch(queue, os.fsencode(path), kinds): path for path in paths}
    assert min(numbers) > 0
    found: list[tuple[str, int]] = []

    def so_far() -> list[tuple[str, int]]:
        while data := _read(queue):
            while data:
                number, kind, _, length = struct.unpack_from("iIII", data)
                found.append((str(numbers[number] / os.fsdecode(data[16 : 16 + length].rstrip(b"\0"))), kind))
                data = data[16 + length :]
        return found

    try:
        yield so_far
    finally:
        os.close(queue)


def _read(queue: int) -> bytes:
    try:
        return os.read(queue, 1 << 16)
    except BlockingIOError:
        return b""


# --- what may only be read ---------------------------------------------------------------------------------


@pytest.mark.kind("H2")
def test_an_inbox_that_may_only_be_read_is_served(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    for name in ("a.png", "sub/b.png"):
        service.put(name)
    service.wrapper = read_only(service.inbox)

    service.start()

    for name in ("a.png", "sub/b.png"):
        service.wait_record(name)
    service.assert_sound()


@pytest.mark.kind("H2")
def test_an_inbox_that_may_be_written_is_not(service: Service) -> None:
    folder = service.inbox / "never" / "sub"
    folder.mkdir(parents=True)
    service.put("never/sub/a.png")

    with heard([service.inbox, folder.parent, folder], CHANGES) as changes:
        service.wait_record("never/sub/a.png")
        assert changes() == []
        folder.touch()
        assert changes(), "this ear is deaf"


@pytest.mark.kind("H1")
def test_a_source_that_cannot_be_deleted_is_a_job_done_and_told_once(new_service: NewService) -> None:
    service = new_service(
        'after = "delete"', "[arrivals]", "quiet_s = 0.1", "rescan_s = 0.1", "[log]", 'level = "debug"'
    )
    service.put("theirs/1.png")
    service.put("ours/1.png")
    service.wrapper = read_only(service.inbox / "theirs")
    service.start()
    assert service.wait_record("theirs/1.png")["outcome"] == "done"
    wait_until(lambda: not (service.inbox / "ours/1.png").exists(), "the other source to go")
    (told,) = service.wait_log("after.failed", level="warning")
    assert told["source"] == "theirs/1.png"
    assert told["remedy"]

    service.wait_log("inbox.rescanned", count=len(service.log("inbox.rescanned")) + SCANS)

    assert len(service.records_of("theirs/1.png", outcome=())) == 1
    assert len(service.log("after.failed")) == 1
    service.assert_sound()


# --- a mount that goes and comes ---------------------------------------------------------------------------


class MountedService(Service):
    """Its inbox is a file system of its own, which only the service sees."""

    @property
    def store(self) -> Path:
        return self.root / "store"

    def mounted(self) -> Service:
        self.store.mkdir()
        self.wrapper = with_mounts(
            ["mount", "-t", "tmpfs", "tmpfs", str(self.store)],
            ["mount", "--bind", str(self.store), str(self.inbox)],
        )
        return self.start()

    def unmount(self) -> None:
        inside(self.pid, "umount", str(self.inbox))

    def mount(self) -> None:
        inside(self.pid, "mount", "--bind", str(self.store), str(self.inbox))

    def place(self, path: str, content: bytes) -> Path:
        target = seen_by(self.pid, self.store) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(".arriving")
        aside.write_bytes(content)
        return aside.replace(target)


@pytest.mark.kind("H4")
def test_a_mount_that_is_away_for_a_while_changes_nothing(tmp_path: Path) -> None:
    service = MountedService(tmp_path, ("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2"))
    try:
        service.mounted()
        for number in range(5):
            service.put(f"{number}.png")
        service.place("held.png", picture(600))
        service.wait_records(5)
        service.wait_note("held", "held.png")
        before = {(job.id, job.state, job.attempts) for job in service.jobs()}

        service.unmount()
        service.wait_log("inbox.lost")
        wait_until(lambda: service.status()["state"] == "inbox_lost", "a status that says so")
        shown = json.loads(service.run("status", "--json").stdout)
        assert shown["state"] == "inbox_lost"
        assert {(job.id, job.state, job.attempts) for job in service.jobs()} == before
        service.mount()

        service.wait_log("inbox.found", count=2)
        service.put("after.png")
        service.wait_record("after.png")
        assert {(job.id, job.state, job.attempts) for job in service.jobs()} >= before
        assert len(service.results()) == 6
        assert service.note("held", "held.png")
        service.assert_sound()
    finally:
        service.close()


# --- a system that denies ----------------------------------------------------------------------------------

PERMITTED: Final = Rules()


@pytest.mark.kind("H5", "W57", "PD19")
@pytest.mark.parametrize(
    ("name", "denied", "told"),
    [
        ("inbox", "list", "cannot be listed"),
        ("inbox", "open", "has files that cannot be opened, such as 'a.png'"),
        ("outbox", "create", "takes no files"),
        ("outbox", "unlink", "does not let a file go"),
    ],
)
def test_a_start_that_the_system_denies_its_folders_ends_at_once_and_says_why(
    new_service: NewService, name: str, denied: str, told: str
) -> None:
    """Permission bits say yes here, as they do on macOS while a person has not allowed it."""
    service = new_service("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2")
    service.put("a.png")
    folder = service.inbox if name == "inbox" else service.outbox
    service.wrapper, rules = on_odd_disk(folder, Rules(denied=(denied,)))

    service.start(ready=False)

    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == CONFIGURATION
    said = service.log_file.read_text("utf-8")
    assert f"error: the system denies access to the {name}: {folder} {told}" in said
    assert "Operation not permitted" in said
    assert "to do: " in said
    if denied != "create":
        return
    Rules().write(rules)
    service.start()
    service.wait_record("a.png")
    service.assert_sound()


@pytest.mark.kind("H5")
def test_an_outbox_on_a_disk_that_is_mounted_read_only_ends_a_start(new_service: NewService) -> None:
    service = new_service()
    service.wrapper = read_only(service.outbox)

    service.start(ready=False)

    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == CONFIGURATION
    assert f"outbox cannot be written: {service.outbox}" in service.log_file.read_text("utf-8")


@pytest.mark.kind("H5", "W57")
def test_what_is_denied_while_it_runs_is_a_state_and_ends_when_it_is_permitted(
    new_service: NewService,
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2")
    inner, inbox = on_odd_disk(service.inbox, PERMITTED)
    outer, outbox = on_odd_disk(service.outbox, PERMITTED)
    service.wrapper = [*outer, *inner]
    service.start()
    Rules(denied=("create",)).write(outbox)
    service.put("a.png")
    blocked = service.wait_log("publish.blocked")[0]
    assert "not permitted" in blocked["reason"]
    wait_until(lambda: service.status()["blocked"], "a status that says so")
    shown = service.run("status")
    assert "takes no results: " in shown.stdout
    assert "not permitted" in shown.stdout

    Rules(denied=("list",)).write(inbox)
    assert "not permitted" in service.wait_log("inbox.lost")[0]["reason"]
    wait_until(lambda: service.status()["state"] == "inbox_lost", "a status that says so")
    PERMITTED.write(outbox)
    PERMITTED.write(inbox)

    assert service.wait_record("a.png")["attempt"] == 1
    service.wait_log("inbox.found", count=2)
    service.assert_sound()


# --- bytes that are in the cloud ---------------------------------------------------------------------------

CLOUD = """
import runpy, stat, sys
import watcher.adapters.tree as tree
tree.is_placeholder = lambda status: bool(status.st_mode & stat.S_ISVTX)
sys.argv = ["watcher", *sys.argv[4:]]
runpy.run_module("watcher", run_name="__main__", alter_sys=True)
"""
"""Only macOS has such files: here the sticky bit stands for `SF_DATALESS`."""


@pytest.mark.kind("H7")
def test_a_placeholder_waits_unopened_and_is_served_when_its_bytes_are_there(new_service: NewService) -> None:
    service = new_service(
        *("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.1", "[log]", 'level = "debug"'),
        wrapper=[sys.executable, "-c", CLOUD],
    )
    evicted = service.place("evicted.png", b"\0" * 5000)
    evicted.chmod(0o644 | stat.S_ISVTX)
    service.place("evicted.png.mask.png", mask())

    with heard([evicted], READS) as opened:
        service.start()
        for number in range(3):
            service.put(f"meanwhile-{number}.png")
            service.wait_record(f"meanwhile-{number}.png")
        (told,) = service.wait_log("file.unreadable", path="evicted.png")
        assert "cloud" in told["reason"]
        service.wait_log("inbox.rescanned", count=len(service.log("inbox.rescanned")) + SCANS)
        wait_until(lambda: service.status()["counts"]["arriving"] == 1, "the status to count it as arriving")
        assert opened() == []
        assert len(service.log("file.unreadable")) == 1, "one line, not one a look"
        assert not [job for job in service.jobs() if job.source == "evicted.png"]
        assert service.notes("failed") == set()

    evicted.write_bytes(picture(610))
    evicted.chmod(0o644)
    service.expect("evicted.png", picture(610), mask())
    assert service.wait_record("evicted.png")["attempt"] == 1
    service.assert_sound()


@pytest.mark.kind("H7")
def test_the_names_that_clouds_give_to_what_is_not_there_are_never_opened(service: Service) -> None:
    names = [".clouds.png.icloud", "clouds.png.icloud", "clouds.png.nextcloud", "clouds.png.owncloud"]
    paths = [service.place(f"clouds/{name}", b"bplist00" * 20) for name in names]

    with heard(paths, READS) as opened:
        service.put("clouds/real.png")
        service.wait_record("clouds/real.png")
        service.assert_sound()
        assert opened() == []

    assert {job.source for job in service.jobs() if job.source.startswith("clouds/")} == {"clouds/real.png"}


@pytest.mark.kind("H7")
def test_a_file_without_blocks_is_no_placeholder(new_service: NewService) -> None:
    """Some take that for the mark of one; but sparse files, and those of whole file systems, have none."""
    service = new_service("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2")
    service.wrapper, _ = on_odd_disk(service.inbox, Rules(has_blocks=False))
    service.put("a.png")
    hole = service.inbox / "hole.png"
    with hole.open("wb") as file:
        file.truncate(5000)
    assert hole.stat().st_blocks == 0
    service.place("hole.png.mask.png", mask())
    service.start()

    service.wait_record("a.png")
    assert "only zeros" in service.wait_log("file.incomplete", source="hole.png")[0]["reason"], "it was read"
    hole.write_bytes(picture(620))
    service.expect("hole.png", picture(620), mask())
    service.wait_record("hole.png")
    service.assert_sound()
