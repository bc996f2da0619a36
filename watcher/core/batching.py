"""Ready jobs -> micro-batches.

Rules of this file:
- When the model is free, whatever waits goes, oldest first, up to the limits: nobody waits for company unless
  `linger_s` says so, and a lone job never waits longer than that.
- The first job always goes, whatever its size; no later one may break a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watcher.core.job import Job
    from watcher.core.policy import BatchPolicy

_NS_PER_S: Final = 1_000_000_000


def choose_batch(waiting: Iterable[Job], policy: BatchPolicy) -> tuple[Job, ...]:
    """Return the jobs that go together now, in the order in which they wait."""
    chosen: list[Job] = []
    size_bytes = 0
    for job in waiting:
        size_bytes += job.fingerprint.size_bytes
        if chosen and (len(chosen) >= policy.max_batch or size_bytes > policy.max_file_bytes):
            break
        chosen.append(job)
    return tuple(chosen)


def linger_until_ns(batch: tuple[Job, ...], policy: BatchPolicy) -> int:
    """Return the instant at which the batch goes, full or not (0: at once)."""
    if policy.linger_s <= 0 or len(batch) >= policy.max_batch:
        return 0
    oldest_ns = min(job.clock.ready_ns for job in batch if job.clock is not None)
    return oldest_ns + round(policy.linger_s * _NS_PER_S)
