"""Long runs with faults all the way (I2): nothing piles up, and a picture is always served soon.

Ten minutes by default; `WATCHER_SOAK_S=3600` makes it an hour, `WATCHER_SOAK_SEED` repeats one run's choices,
`WATCHER_SOAK_CANARY_S` is for machines that do other things besides.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import mask, memory_mb, picture, relative_files, source_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Record, Service

    NewService = Callable[..., Service]

DURATION_S: Final = float(os.environ.get("WATCHER_SOAK_S", "600"))
SEED: Final = int(os.environ.get("WATCHER_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
FILES_PER_S: Final = 5.0
CANARY_S: Final = float(os.environ.get("WATCHER_SOAK_CANARY_S", "5"))
"""No picture waits longer, whatever happens; what the test itself holds up (a stopped process, an inbox that
is away) counts as waiting too. For a machine that does nothing else."""
BETWEEN_FAULTS_S: Final = 10.0
"""Faults come in rounds of all of them, in any order: a worker dies once in a while, as in life, and not so
often that its breaker opens."""
FLOOD: Final = 3000
PATCHES: Final = 0.25
"""Of the samples, how many at the beginning and at the end are compared."""


@dataclass
class Sample:
    """The service's own process at one instant."""

    memory_mb: float
    descriptors: int
    threads: int
    children: int

    @classmethod
    def of(cls, service: Service) -> Sample:
        process = Path(f"/proc/{service.pid}")
        return cls(
            memory_mb(service.pid),
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
            len(service.children()),
        )


@dataclass
class Soak:
    """Puts pictures in at a steady pace, does harm in between, and watches what comes of them."""

    service: Service
    random: random.Random
    pending: dict[str, float] = field(default_factory=dict)
    """Pictures that are not served yet, and since when they are there."""
    slowest_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    harm_done: list[str] = field(default_factory=list)
    _number: int = 0
    _offsets: dict[Path, int] = field(default_factory=dict)

    def run(self) -> None:
        ends_s = time.monotonic() + DURATION_S
        next_put_s = time.monotonic()
        next_fault_s = next_put_s + BETWEEN_FAULTS_S
        faults: list[Callable[[], None]] = []
        while time.monotonic() < ends_s:
            now_s = time.monotonic()
            if now_s >= next_put_s:
                self._put()
                next_put_s = max(next_put_s + 1 / FILES_PER_S, now_s - 1)
            if now_s >= next_fault_s:
                self.samples.append(Sample.of(self.service))
                if not faults:
                    faults = [self._kill_worker, self._take_inbox_away, self._flood, self._stop_service]
                    self.random.shuffle(faults)
                self._do(faults.pop())
                next_fault_s = time.monotonic() + BETWEEN_FAULTS_S * self.random.uniform(0.5, 1.5)
            self._look()
            time.sleep(0.02)
        wait_until(lambda: not self._look(), "the last pictures", patience_s=2 * CANARY_S)

    # --- pictures ---

    def _put(self) -> None:
        self._number += 1
        name = f"{self.random.choice(('', 'a/', 'a/b/'))}{self._number:06}.png"
        data = picture(10_000 + self._number)
        how = self.random.choice((self._renamed_in, self._written, self._appended))
        files = [(f"{name}.mask.png", mask()), (name, data)]
        self.random.shuffle(files)
        for path, content in files:
            how(path, content)
        self.service.expect(name, data, mask())
        self.pending[name] = time.monotonic()

    def _renamed_in(self, path: str, content: bytes) -> None:
        self.service.place(path, content)

    def _written(self, path: str, content: bytes) -> None:
        self._at(path).write_bytes(content)

    def _appended(self, path: str, content: bytes) -> None:
        """With a close after each piece."""
        for start in range(0, len(content), 8000):
            with self._at(path).open("ab") as file:
                file.write(content[start : start + 8000])

    def _at(self, path: str) -> Path:
        target = self.service.inbox / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _look(self) -> bool:
        """Take note of what was served since the last look; returns whether something still waits."""
        now_s = time.monotonic()
        for record in self._new_records():
            if record["outcome"] == "done":
                since_s = self.pending.pop(source_of(record), now_s)
                self.slowest_s = max(self.slowest_s, now_s - since_s)
        late = {
            name: round(now_s - since_s, 1)
            for name, since_s in self.pending.items()
            if now_s - since_s > CANARY_S
        }
        assert not late, f"seed {SEED}: not served in time: {late}, after {self.harm_done[-4:]}"
        assert self.service.is_running
        return bool(self.pending)

    def _new_records(self) -> list[Record]:
        found = []
        for file in sorted((self.service.outbox / "logs").glob("timings-*.jsonl")):
            with file.open("rb") as opened:
                opened.seek(self._offsets.get(file, 0))
                *lines, torn = opened.read().split(b"\n")
                self._offsets[file] = opened.tell() - len(torn)
            found += [json.loads(line) for line in lines]
        return found

    # --- harm ---

    def _do(self, fault: Callable[[], None]) -> None:
        self.harm_done.append(fault.__name__.strip("_"))
        fault()

    def _kill_worker(self) -> None:
        pid = self.service.status()["worker"]["pid"]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _take_inbox_away(self) -> None:
        away = self.service.root / "away"
        self.service.inbox.rename(away)
        time.sleep(self.random.uniform(0.1, 1.0))
        away.rename(self.service.inbox)

    def _flood(self) -> None:
        """Events by the thousands for nothing, and some for names that count."""
        folder = self.service.inbox / "flood"
        folder.mkdir()
        for number in range(FLOOD):
            path = folder / (f"{number}.png" if number % 10 == 0 else f"{number}.tmp")
            path.touch()
            path.unlink()
        folder.rmdir()

    def _stop_service(self) -> None:
        os.kill(self.service.pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.2, 1.5))
        os.kill(self.service.pid, signal.SIGCONT)


def grown(samples: list[Sample], of: Callable[[Sample], float]) -> tuple[float, float]:
    """The median of the first samples (the very first, still growing, apart) and of the last."""
    values = [of(sample) for sample in samples[1:]]
    count = max(1, round(len(values) * PATCHES))
    return statistics.median(values[:count]), statistics.median(values[-count:])


@pytest.mark.soak
@pytest.mark.timeout(DURATION_S + 300)
@pytest.mark.kind("I2")
def test_it_serves_for_long_under_faults_and_nothing_piles_up(new_service: NewService) -> None:
    service = new_service('after = "delete"', "[arrivals]", "quiet_s = 0.2").start()
    soak = Soak(service, random.Random(SEED))

    try:
        soak.run()
    except AssertionError as error:
        error.add_note(service._last_words())
        raise

    print(  # noqa: T201 - what a long run was like is worth a line
        f"seed {SEED}: {len(service.expected)} pictures, slowest {soak.slowest_s:.2f} s, "
        f"{len(soak.harm_done)} faults; first {soak.samples[1]}, last {soak.samples[-1]}; "
        f"memory in MB: {[round(sample.memory_mb, 1) for sample in soak.samples]}"
    )
    memory, descriptors, threads, children = (
        grown(soak.samples, of)
        for of in (lambda s: s.memory_mb, lambda s: s.descriptors, lambda s: s.threads, lambda s: s.children)
    )
    assert memory[1] < memory[0] * 1.15 + 3, memory
    assert descriptors[1] <= descriptors[0] + 2, descriptors
    assert threads[1] <= threads[0] + 1, threads
    assert children[1] <= children[0] + 1, children
    assert service.notes("failed") == set(), "no fault here is a picture's own"
    assert {record["attempt"] for record in service.results()} <= {1, 2}
    assert service.status()["worker"]["restarts"] >= soak.harm_done.count("kill_worker") - 1
    assert (service.state / "journal.sqlite3-wal").stat().st_size < 32e6
    service.assert_sound()
    wait_until(lambda: not relative_files(service.inbox), "all sources to go")
