"""A real `kill -9` at 200 random moments while files arrive: none lost, none twice, nothing partial seen.

Rules of this file:
- All that is random comes from one seed, which is printed; `KILL_SWEEP_SEED` repeats a run's choices, if not
  its timing.
- What the service does is judged from outside: by the files, looked at all the while by an own thread, and by
  the records at the end. A result is known by the rows of its pixels that no mask covers.
- The inbox is looked at before the outbox, with the traffic halted: what has left the one by then must be in
  the other.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pytest
from PIL import Image

from tests.service.harness import (
    RESULTS,
    encoded,
    mask,
    pixels,
    relative_files,
    sha256,
    source_of,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.harness import Service

    NewService = Callable[..., Service]

Key: TypeAlias = tuple[str, str]
"""sha256 of a picture and of its mask: what is to be done exactly once."""

KILLS: Final = {"keep": 80, "archive": 60, "delete": 60}
"""By what becomes of sources."""
AFTER: Final = {
    "keep": (),
    "archive": ('after = "archive"', 'archive = "{root}/archive"'),
    "delete": ('after = "delete"',),
}
IN_THE_START: Final = 0.35
SEED_VARIABLE: Final = "KILL_SWEEP_SEED"
UNTOUCHED_ROWS: Final = 16
"""The masks begin below them, grown by the worker or not."""
MAX_WAITING: Final = 30
PATIENCE_S: Final = 180.0


def rows_of(data: bytes) -> str:
    """What tells a picture from others, before and after something in it was removed.

    Raises:
        OSError: these bytes are no whole picture.
    """
    with Image.open(io.BytesIO(data)) as image:
        return hashlib.sha256(np.asarray(image)[:UNTOUCHED_ROWS].tobytes()).hexdigest()


@dataclass
class Traffic:
    """Somebody who drops, renames, overwrites and copies pictures, and remembers what has to come of it.

    Attributes:
        service: where.
        chance: all choices come from it.
        kept: sources stay: then files are overwritten as they stand, and each place gets its own result.
    """

    service: Service
    chance: random.Random
    kept: bool
    halted: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    pictures: dict[str, bytes] = field(default_factory=dict)
    masks: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    """sha256 of every picture that was ever put there, to its untouched rows."""
    wanted: dict[str, Key] = field(default_factory=dict)
    """Path to what has to be done there, as it stands now."""
    settled: set[Key] = field(default_factory=set)
    """What has to have been done at a path where something else stands by now."""
    possible: set[Key] = field(default_factory=set)
    """What stood there for a while, and may have been done before it was overwritten."""
    copies: set[str] = field(default_factory=set)
    copied: set[Key] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    acts: Counter[str] = field(default_factory=Counter)
    number: int = 0

    @property
    def due(self) -> set[Key]:
        """All that has to be done in the end."""
        return set(self.wanted.values()) | self.settled

    def run(self) -> None:
        acts = [self.drop] * 3 + [self.copy, self.rename] + [self.overwrite] * 2
        while not self.stopped.wait(self.chance.uniform(0.0, 0.3)):
            if self._waiting() > MAX_WAITING:
                continue
            act = self.chance.choice(acts)
            with suppress(FileNotFoundError):  # the service has disposed of it meanwhile
                act()

    def _waiting(self) -> int:
        """How many contents have no result yet. Not places: a copy of what was disposed of gets none."""
        served = {record["image"]["sha256_in"] for record in self.service.results()}
        return sum(picture_key not in served for picture_key, _ in self.due)

    def drop(self) -> None:
        """A picture and its mask, in any order, the second at once or later."""
        self.number += 1
        folder = self.chance.choice(["", "a/", "a/b/", "c d/"])
        self._put(f"{folder}{self.number:04}.png", self._new_picture(), self._new_mask())
        self.acts["drop"] += 1

    def copy(self) -> None:
        """The same content under another name."""
        if not self.wanted:
            return
        path = self.chance.choice(sorted(self.wanted))
        self.number += 1
        twin = f"twins/{self.number:04}.png"
        picture_key, mask_key = self.wanted[path]
        self.copies.add(twin)
        self.copied.add(self.wanted[path])
        self._put(twin, self.pictures[picture_key], self.masks[mask_key])
        self.acts["copy"] += 1

    def rename(self) -> None:
        """The picture and its mask get another name, one after the other."""
        candidates = sorted(set(self.wanted) - self.copies - self.moved)
        if not candidates:
            return
        path = self.chance.choice(candidates)
        target = f"moved {os.path.basename(path)}"  # noqa: PTH119 - a path inside the inbox
        suffixes = ["", ".mask.png"]
        self.chance.shuffle(suffixes)
        for suffix in suffixes:
            with self.halted:
                (self.service.inbox / f"{path}{suffix}").rename(self.service.inbox / f"{target}{suffix}")
                if not suffix:
                    self.moved |= {path, target}
                    self.wanted[target] = self.wanted.pop(path)
            self.stopped.wait(self.chance.choice([0.0, 0.05, 0.2]))
        self.acts["rename"] += 1

    def overwrite(self) -> None:
        """Other bytes under a name that was used; where sources go, only once they have gone."""
        used = sorted(set(self.wanted) - self.copies - self.moved)
        candidates = [path for path in used if self.kept or not self._is_there(path)]
        if not candidates:
            return
        path = self.chance.choice(candidates)
        picture_key, _ = self.wanted[path]
        data, marked = self._new_picture(), self._new_mask()
        with self.halted:
            before = self.wanted.pop(path)
            if self.kept:
                self.possible |= {before, (picture_key, sha256(marked))}
                self.rows.pop(picture_key, None)
            else:
                self.settled.add(before)
        self._put(path, data, marked, mask_first=True)
        self.acts["overwrite"] += 1

    def _put(self, path: str, data: bytes, marked: bytes, *, mask_first: bool = False) -> None:
        files = [("", data), (".mask.png", marked)]
        if mask_first or self.chance.random() < 0.5:
            files.reverse()
        for number, (suffix, content) in enumerate(files):
            with self.halted:
                if not suffix:
                    self.rows[sha256(data)] = rows_of(data)
                self.service.place(f"{path}{suffix}", content)
                if number == 1:
                    self.wanted[path] = (sha256(data), sha256(marked))
            if number == 0:
                self.stopped.wait(self.chance.choice([0.0, 0.0, 0.05, 0.3]))

    def _is_there(self, path: str) -> bool:
        return any((self.service.inbox / f"{path}{suffix}").exists() for suffix in ("", ".mask.png"))

    def _new_picture(self) -> bytes:
        data = encoded(pixels(self.chance.randrange(1 << 30)))
        self.pictures[sha256(data)] = data
        return data

    def _new_mask(self) -> bytes:
        left = self.chance.randrange(60)
        data = mask(box=(left, 40, left + self.chance.randrange(4, 30), 56))
        self.masks[sha256(data)] = data
        return data


@dataclass
class Onlooker:
    """Looks at the folders all the while, and keeps what should not have been."""

    service: Service
    traffic: Traffic
    stopped: threading.Event = field(default_factory=threading.Event)
    looks: int = 0
    faults: list[str] = field(default_factory=list)
    seen: dict[str, set[str]] = field(default_factory=dict)
    """Output to the sha256 of all that ever stood there."""
    _known: dict[str, tuple[tuple[int, int, int], str]] = field(default_factory=dict)
    """Path to its stat, and the rows of its picture."""

    def run(self) -> None:
        while not self.stopped.wait(0.002):
            with self.traffic.halted:
                self._look()
            self.looks += 1

    def _look(self) -> None:
        sources = self._rows_in(self.service.inbox)
        results = self._rows_in(self.service.outbox)
        self._rows_in(self.service.root / "archive")  # what is moved there is whole at every instant, too
        for digest, rows in self.traffic.rows.items():
            if rows not in sources and rows not in results:
                self._fault(f"neither source nor output of {digest}")

    def _rows_in(self, folder: Path) -> set[str]:
        return {rows for path in pictures_in(folder) if (rows := self._rows(folder, path)) is not None}

    def _rows(self, folder: Path, path: str) -> str | None:
        whole = os.path.join(folder, path)  # noqa: PTH118 - called thousands of times a second
        try:
            status = os.stat(whole)  # noqa: PTH116 - as above
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if whole in self._known and self._known[whole][0] == stamp:
                return self._known[whole][1]
            data = (folder / path).read_bytes()
        except FileNotFoundError:
            return None  # it went while we looked: its other place is looked at after this one
        try:
            rows = rows_of(data)
        except (OSError, SyntaxError, ValueError) as error:
            self._fault(f"{whole} shows {len(data)} bytes that are no whole picture: {error}")
            return None
        self._known[whole] = (stamp, rows)
        if folder == self.service.outbox:
            self.seen.setdefault(path, set()).add(sha256(data))
        return rows

    def _fault(self, what: str) -> None:
        if what not in self.faults:
            self.faults.append(what)


def pictures_in(folder: Path) -> list[str]:
    """Pictures under their final names: no masks, nothing hidden, no reserved folders."""
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in {"logs", "failed", "held"}
        ]
        below = os.path.relpath(where, folder)
        found += [
            os.path.normpath(os.path.join(below, name))  # noqa: PTH118 - a path inside the folder
            for name in names
            if not name.endswith(".mask.png") and not name.startswith(".")
        ]
    return found


@pytest.mark.soak
@pytest.mark.kind("D2", "D3", "D4")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("after", KILLS)
def test_kills_at_random_moments_amid_arrivals_lose_nothing_and_repeat_nothing(
    new_service: NewService, after: str
) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 30))
    sys.stdout.write(f"{SEED_VARIABLE}={seed}\n")
    chance = random.Random(seed)
    service = new_service(*AFTER[after], "[arrivals]", "quiet_s = 0.1", "rescan_s = 1.0")
    (service.root / "archive").mkdir()
    traffic = Traffic(service, random.Random(chance.random()), kept=after == "keep")
    onlooker = Onlooker(service, traffic)
    threads = [threading.Thread(target=target, daemon=True) for target in (traffic.run, onlooker.run)]
    for thread in threads:
        thread.start()

    for _ in range(KILLS[after]):
        live_for_a_while(service, chance)
        assert onlooker.faults == []
    traffic.stopped.set()
    threads[0].join(10)
    service.start()
    wait_until(lambda: is_all_done(service, traffic), "the rest", patience_s=PATIENCE_S)
    service._wait(service._is_at_rest, "the service to come to rest")
    onlooker.stopped.set()
    threads[1].join(10)

    sys.stdout.write(f"{dict(traffic.acts)}, {onlooker.looks} looks, {len(service.records())} records\n")
    assert onlooker.faults == []
    assert onlooker.looks > 100
    assert all(traffic.acts[act] for act in ("drop", "copy", "rename", "overwrite")), traffic.acts
    assert_once_each(service, traffic)
    assert_only_whole_results_were_seen(service, onlooker)
    keys = keys_of(service)
    service.expected = [
        (source_of(record), *keys[record["job"]]) for record in service.results()
    ]  # judged above
    service.assert_sound()
    assert not [path for path in relative_files(service.root / "archive") if ".watcher" in path]
    shutil.rmtree(service.root / "archive")


def live_for_a_while(service: Service, chance: random.Random) -> None:
    """Start, and kill at a moment of the start and the rescue, or of the work that follows."""
    service.log_file.write_bytes(b"")
    service.start(ready=False)
    if chance.random() < IN_THE_START:
        time.sleep(chance.uniform(0.0, 1.0))
    else:
        service.wait_log("job.finished" if chance.random() < 0.5 else "worker.ready")
        time.sleep(chance.uniform(0.0, 1.0))
    assert service.is_running, f"it ended by itself with {service.process and service.process.returncode}"
    service.kill9()


def keys_of(service: Service) -> dict[str, Key]:
    """Job to what it did."""
    return {job.id: (job.identity.picture_sha256, job.identity.mask_sha256 or "") for job in service.jobs()}


def is_all_done(service: Service, traffic: Traffic) -> bool:
    keys = keys_of(service)
    done = {keys[record["job"]] for record in service.results()}
    return traffic.due <= done and (not traffic.kept or not missing_places(service, traffic))


def missing_places(service: Service, traffic: Traffic) -> set[str]:
    """Where a source stands that should have a result of its own.

    One that was renamed has it under its old name. A copy has none if its original was renamed or overwritten
    before the copy was seen: that is a rename as well.
    """
    stayed = set(traffic.wanted) - traffic.moved
    originals = {traffic.wanted[path] for path in stayed - traffic.copies}
    due = {path for path in stayed if traffic.wanted[path] in originals}
    return due - {source_of(record) for record in service.results()}


def assert_once_each(service: Service, traffic: Traffic) -> None:
    keys = keys_of(service)
    results = service.results()
    runs = Counter(keys[record["job"]] for record in results if record["duplicate_of"] is None)
    assert traffic.due <= set(runs), "lost"
    assert {key: count for key, count in runs.items() if count > 1} == {}, "done twice"
    assert set(runs) <= traffic.due | traffic.possible, "made of something that never stood there"
    places = Counter((source_of(record), keys[record["job"]]) for record in results)
    assert {place: count for place, count in places.items() if count > 1} == {}, "two results at one place"
    copied = {keys[record["job"]] for record in results if record["duplicate_of"] is not None}
    assert copied <= traffic.copied, "a copy of what was there once only"
    assert {record["outcome"] for record in results} <= RESULTS
    assert {record["attempt"] for record in results if record["duplicate_of"] is None} == {1}
    assert service.notes("failed") == set()


def assert_only_whole_results_were_seen(service: Service, onlooker: Onlooker) -> None:
    final = {record["output"]: record["image"]["sha256_out"] for record in service.results()}
    for path, digests in onlooker.seen.items():
        assert digests == {final.get(path)}, f"{path} was something else before it was {final.get(path)}"
