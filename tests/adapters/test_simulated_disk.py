"""The simulated disk itself: what it keeps, what it loses, and what no power cut can do."""

from __future__ import annotations

import errno
import json
import os
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.adapters.simulated_disk import SECTOR_BYTES, Adversary, Died, SimulatedDisk
from watcher.adapters.clock import SystemClock
from watcher.adapters.file_operations import Entry
from watcher.adapters.timing_log import JsonlTimingLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at open files through /proc")

OLD, NEW = b"o" * 3 * SECTOR_BYTES, b"n" * 3 * SECTOR_BYTES
NAMED = [Adversary.EVERYTHING, Adversary.EMPTY, Adversary.ZEROED, Adversary.TORN, Adversary.DOUBLED]


class Shelf:
    """A folder on the simulated disk, opened as the product opens it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "old").write_bytes(OLD)
        self.disk = SimulatedDisk([root])
        self.folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def at(self, name: str) -> Entry:
        return Entry(self.folder, name)

    def write(self, name: str, content: bytes, *, flags: int = os.O_TRUNC, sync: bool = False) -> None:
        descriptor = self.disk.open(self.at(name), os.O_RDWR | os.O_CREAT | flags)
        try:
            self.disk.write_all(descriptor, content, name)
            if sync:
                self.disk.fsync(descriptor, name)
        finally:
            os.close(descriptor)

    def sync_names(self) -> None:
        self.disk.fsync_folder(self.folder, "the shelf")

    def left(self, adversary: Adversary, seed: int = 1) -> dict[str, bytes]:
        """What a power cut would leave."""
        files = self.disk.files_after_cut(adversary, Random(seed))
        return {os.path.relpath(path, self.root): content for path, content in files.items()}

    def any_left(self, cuts: int = 200) -> list[dict[str, bytes]]:
        """Many of the things that it might leave."""
        return [self.left(adversary, seed) for seed in range(cuts) for adversary in Adversary]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    root = tmp_path / "disk"
    root.mkdir()
    made = Shelf(root)
    yield made
    os.close(made.folder)
    made.disk.close()


def test_what_is_there_at_first_and_what_was_synced_stays(shelf: Shelf) -> None:
    shelf.write("new", NEW, sync=True)
    shelf.sync_names()

    assert all(left == {"old": OLD, "new": NEW} for left in shelf.any_left())


def test_a_synced_file_whose_folder_was_not_synced_may_have_no_name(shelf: Shelf) -> None:
    shelf.write("new", NEW, sync=True)

    assert {tuple(left) for left in shelf.any_left()} == {("old",), ("old", "new")}
    assert all(left.get("new", NEW) == NEW for left in shelf.any_left())


def test_a_name_that_was_synced_may_have_none_of_its_bytes_or_a_part_or_zeros(shelf: Shelf) -> None:
    shelf.write("new", NEW)
    shelf.sync_names()

    assert shelf.left(Adversary.NOTHING)["new"] == b""
    assert shelf.left(Adversary.EMPTY)["new"] == b""
    assert shelf.left(Adversary.ZEROED)["new"] == bytes(len(NEW))
    assert shelf.left(Adversary.EVERYTHING)["new"] == NEW
    torn = {left["new"] for left in (shelf.left(Adversary.TORN, seed) for seed in range(50))}
    assert NEW[:SECTOR_BYTES] in torn
    assert NEW[:SECTOR_BYTES] + bytes(2 * SECTOR_BYTES) in torn
    mixed = {left["new"] for left in (shelf.left(Adversary.MIXED, seed) for seed in range(300))}
    assert bytes(SECTOR_BYTES) + NEW[: 2 * SECTOR_BYTES] in mixed, "a later sector may come alone"


def test_an_appended_tail_is_torn_and_what_was_synced_before_it_is_not(shelf: Shelf) -> None:
    shelf.write("old", b"tail" * 300, flags=os.O_APPEND)

    tails = {left["old"][len(OLD) :] for left in shelf.any_left()}
    assert all(left["old"].startswith(OLD) for left in shelf.any_left())
    assert {b"", b"tail" * 300, bytes(1200)} <= tails
    assert any(tail and tail != b"tail" * 300 for tail in tails)


def test_a_rename_leaves_the_old_name_or_the_new_or_both_and_never_none(shelf: Shelf) -> None:
    shelf.disk.exclusive_rename(shelf.at("old"), shelf.at("new"))

    assert {tuple(sorted(left)) for left in shelf.any_left()} == {("old",), ("new",), ("new", "old")}
    assert all(set(left.values()) == {OLD} for left in shelf.any_left())


def test_a_rename_over_a_file_leaves_one_or_the_other_whole(shelf: Shelf) -> None:
    shelf.write("new", NEW, sync=True)
    shelf.sync_names()
    shelf.disk.replace(shelf.at("new"), shelf.at("old"))

    assert {left["old"] for left in shelf.any_left()} == {OLD, NEW}


def test_a_removed_name_may_come_back_until_its_folder_is_synced(shelf: Shelf) -> None:
    shelf.disk.unlink(shelf.at("old"))
    assert {tuple(left) for left in shelf.any_left()} == {(), ("old",)}

    shelf.sync_names()
    assert all(left == {} for left in shelf.any_left())


def test_a_folder_without_a_durable_name_takes_along_what_was_synced_in_it(shelf: Shelf) -> None:
    shelf.disk.mkdir(shelf.at("a"))
    inner = shelf.disk.open(shelf.at("a"), os.O_RDONLY | os.O_DIRECTORY)
    descriptor = shelf.disk.open(Entry(inner, "new"), os.O_RDWR | os.O_CREAT)
    shelf.disk.write_all(descriptor, NEW, "new")
    shelf.disk.fsync(descriptor, "new")
    shelf.disk.fsync_folder(inner, "a")
    os.close(descriptor)
    os.close(inner)

    assert shelf.left(Adversary.NOTHING) == {"old": OLD}
    shelf.sync_names()
    assert shelf.left(Adversary.NOTHING) == {"old": OLD, "a/new": NEW}


def test_a_sync_that_failed_has_given_up_on_the_bytes_and_the_next_does_not_help(shelf: Shelf) -> None:
    descriptor = shelf.disk.open(shelf.at("new"), os.O_RDWR | os.O_CREAT)
    shelf.sync_names()
    shelf.disk.write_all(descriptor, NEW, "new")

    def refuse(_operation: str, _name: str) -> None:
        raise OSError(errno.EIO, "broken")

    shelf.disk.on_step = refuse
    with pytest.raises(OSError, match="broken"):
        shelf.disk.fsync(descriptor, "new")
    shelf.disk.on_step = lambda _operation, _name: None
    shelf.disk.fsync(descriptor, "new")
    assert all(left["new"] == bytes(len(NEW)) for left in shelf.any_left(20))

    os.lseek(descriptor, 0, os.SEEK_SET)
    shelf.disk.write_all(descriptor, NEW, "new")
    shelf.disk.fsync(descriptor, "new")
    os.close(descriptor)
    assert all(left["new"] == NEW for left in shelf.any_left(20))


@pytest.mark.parametrize("adversary", Adversary)
def test_a_power_cut_makes_of_the_real_folders_what_it_said(shelf: Shelf, adversary: Adversary) -> None:
    shelf.write("new", NEW)
    shelf.write("old", b"tail", flags=os.O_APPEND)
    shelf.disk.exclusive_rename(shelf.at("old"), shelf.at("older"))
    shelf.disk.mkdir(shelf.at("empty"))
    (shelf.root / "unknown").write_bytes(b"to the model")
    expected = shelf.left(adversary)

    shelf.disk.power_cut(adversary, Random(1))

    there = {path.name: path.read_bytes() for path in shelf.root.iterdir() if path.is_file()}
    assert there == {**expected, "unknown": b"to the model"}
    assert shelf.left(Adversary.NOTHING) == there, "what is there after a power cut is durable"
    if {"old", "older"} <= there.keys():
        assert (shelf.root / "old").samefile(shelf.root / "older")


@pytest.mark.parametrize("adversary", NAMED)
def test_the_timing_log_is_whole_again_after_any_power_cut(shelf: Shelf, adversary: Adversary) -> None:
    """Its last line may lack its end, its beginning, or all but its newline."""
    for seed in range(20):
        name = f"logs-{seed}"
        clock = SystemClock()
        records = [{"job": f"j-{number}", "ts": None, "what": "x" * 700} for number in range(4)]
        log = JsonlTimingLog(shelf.root / name, clock, max_bytes=1 << 20, keep_days=9, files=shelf.disk)
        for record in records[:3]:
            log.append(record)
        steps = iter(["open", "open", "create", "write"])

        def die_before_the_sync(operation: str, _name: str, steps: Iterator[str] = steps) -> None:
            if operation == "fsync" or next(steps, None) is None:
                raise Died

        shelf.disk.on_step = die_before_the_sync
        with pytest.raises(Died):
            log.append(records[3])
        shelf.disk.on_step = lambda _operation, _name: None
        shelf.disk.power_cut(Adversary.MIXED if seed % 2 else adversary, Random(seed))

        log = JsonlTimingLog(shelf.root / name, clock, max_bytes=1 << 20, keep_days=9, files=shelf.disk)
        logged = log.logged([str(record["job"]) for record in records])
        for record in records:
            if record["job"] not in logged:
                log.append(record)

        (file,) = (shelf.root / name).iterdir()
        assert [json.loads(line)["job"] for line in file.read_bytes().splitlines()] == [
            record["job"] for record in records
        ]
