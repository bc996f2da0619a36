"""Measures the journal when it is large: loading, forgetting, and what `watcher jobs` and `status` ask.

It makes a journal of so many held pictures, and one of so many finished jobs (a tenth of their pictures still
in the inbox, the newest 60,000 with their whole records). Memory is what the loading adds to the process.

    python benchmarks/journal.py --finished 1000000 --held 100000
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watcher.adapters.journal import SqliteJournal, open_readonly
from watcher.core.commands import FinishJob, SaveFile, SaveJob
from watcher.core.events import SavedFile
from watcher.core.job import FINAL_STATES, RESULTS, Fingerprint, Identity, Job, JobState
from watcher.core.timeline import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.core.commands import JournalWrite
    from watcher.core.job import JsonObject

NOW_S: Final = 1_796_032_800.0
WHOLE: Final = 60_000
A_COMMIT: Final = 1000
RECORD: Final[JsonObject] = {
    "schema": 1,
    "ts": "2026-11-30T10:00:00.123Z",
    "event": "job.finished",
    "path": "hot",
    "path_reason": "ready",
    "worker": {"pid": 22255, "incarnation": 1, "host": "host", "rss_bytes": 75_325_440},
    "engine": {"configured": "auto", "actual": "patchmatch", "reason": "r" * 250, "model_sha256": None},
    "device": {"configured": "auto", "available": ["cpu"], "actual": "cpu", "evidence": {"output": "cpu"}},
    "image": {"format": "JPEG", "width": 4000, "height": 3000, "sha256_in": "a" * 64, "sha256_out": "b" * 64},
    "segments_ms": dict.fromkeys(SEGMENTS, 12.345),
    "total_ms": 574.058,
}


def a_job(number: int, state: JobState, record: JsonObject | None) -> Job:
    """A job as real ones are, with names and hashes of their length."""
    sha256 = hashlib.sha256(f"{number}".encode()).hexdigest()
    name = f"2026/holidays/IMG_{number:07d}.jpg"
    return Job(
        id=f"{sha256[:8]}-{number}",
        source=name,
        fingerprint=Fingerprint(number, 3_000_000 + number, 10**18 + number, 10**18 + number),
        identity=Identity(sha256, None, "default"),
        state=state,
        created_s=NOW_S,
        attempts=1,
        output=name if state in RESULTS else None,
        sha256_out=sha256 if state in RESULTS else None,
        record=record,
    )


def fill(journal: SqliteJournal, jobs: int, a_finished: bool) -> None:  # noqa: FBT001 - a private script
    """Write so many jobs, with the files of those whose pictures are in the inbox."""
    journal._database.execute("PRAGMA synchronous = OFF")  # noqa: SLF001 - only what is measured need be durable
    short = {name: RECORD[name] for name in ("ts", "image", "path", "path_reason", "total_ms")}
    for first in range(0, jobs, A_COMMIT):
        writes: list[JournalWrite] = []
        for number in range(first, min(first + A_COMMIT, jobs)):
            state = JobState.HELD
            if a_finished:
                state = JobState.SUPERSEDED if number % 20 == 0 else JobState.DONE
            record = None if not a_finished else RECORD if number > jobs - WHOLE else short
            job = a_job(number, state, record)
            if not a_finished or number > 0.9 * jobs:
                writes.append(SaveFile(SavedFile(job.source, job.fingerprint, job.identity.picture_sha256)))
            writes.append(FinishJob(job) if a_finished else SaveJob(job))
        journal.commit(writes)
        journal.mark_logged([write.job.id for write in writes if isinstance(write, FinishJob)])
    journal._database.execute("PRAGMA synchronous = FULL")  # noqa: SLF001 - as above


def took_ms(action: Callable[[], object]) -> float:
    """How long a call takes."""
    begun_s = time.perf_counter()
    action()
    return (time.perf_counter() - begun_s) * 1000


def memory_mb() -> float:
    """The resident memory of this process."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError


def measure_held(path: Path, held: int) -> None:
    """A start with so many held pictures."""
    with SqliteJournal(path) as journal:
        fill(journal, held, a_finished=False)
    print(f"{held} held pictures: {path.stat().st_size / 1e6:.0f} MB")
    begun_s = time.perf_counter()
    with SqliteJournal(path) as journal:
        print(f"  open, and check the file    {(time.perf_counter() - begun_s) * 1000:10.1f} ms")
        before_mb = memory_mb()
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        opened = journal.load()
        cpu_ms = (time.process_time() - begun_cpu_s) * 1000
        wall_ms = (time.perf_counter() - begun_s) * 1000
        print(f"  load                        {wall_ms:10.1f} ms ({cpu_ms:.0f} of the CPU)")
        print(f"  memory of what was loaded   {memory_mb() - before_mb:10.1f} MB for {len(opened.jobs)} jobs")


def measure_finished(path: Path, finished: int) -> None:
    """Looking at, and forgetting in, a journal of so many finished jobs."""
    with SqliteJournal(path) as journal:
        fill(journal, finished, a_finished=True)
    print(f"{finished} finished jobs: {path.stat().st_size / 1e6:.0f} MB")
    with SqliteJournal(path) as journal, open_readonly(path) as reader:
        calls: dict[str, Callable[[], object]] = {
            "jobs": lambda: reader.newest(limit=50),
            "jobs --state failed": lambda: reader.newest(states=[JobState.FAILED], limit=50),
            "status, the last": lambda: reader.newest(states=FINAL_STATES, limit=5),
            "status, the counts": reader.counts,
            "was it served before?": lambda: reader.prior_jobs(a_job(7, JobState.DONE, None).identity, ""),
        }
        for name, call in calls.items():
            print(f"  {name:28}{took_ms(call):10.1f} ms")
        steps_ms = [took_ms(lambda: journal.prune(NOW_S)) for _ in range(500)]
        quantiles = statistics.quantiles(steps_ms, n=100)
        print(f"  a step of forgetting, p50   {quantiles[49]:10.1f} ms")
        print(f"  a step of forgetting, p95   {quantiles[94]:10.1f} ms")
        print(f"  a step of forgetting, worst {max(steps_ms):10.1f} ms")


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description="How the journal does when it is large.")
    parser.add_argument("--finished", type=int, default=200_000, help="finished jobs (default 200000)")
    parser.add_argument("--held", type=int, default=100_000, help="held pictures (default 100000)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_held(Path(folder) / "held.sqlite3", asked.held)
        measure_finished(Path(folder) / "finished.sqlite3", asked.finished)


if __name__ == "__main__":
    main()
