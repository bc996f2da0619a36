"""The time chain of a job and its arithmetic.

Rules of this file:
- The chain has no gaps and no overlaps: each segment begins where the one before it ends.
- It starts when the final fingerprint of the last file that the job needed was first observed, and ends when
  the folder of the result was synced.
- What no segment claims is `unattributed`: reported, never spread over the others.
- Nanoseconds inside, milliseconds with three decimals in a record; the decimals of `unattributed` absorb the
  rounding, so that a record's segments add up to its total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from watcher.core.events import WorkReport
    from watcher.core.job import JobClock

ARRIVAL_SEGMENTS: Final = ("backlog", "settle", "identify", "pair", "queue", "lost_attempts")
START_SEGMENTS: Final = (
    "process_start",
    "import",
    "device_probe",
    "model_read",
    "model_load",
    "warmup",
)
EXCHANGE_SEGMENTS: Final = ("ipc", "batch_wait")
WORK_SEGMENTS: Final = ("read", "decode", "mask", "preprocess", "inference", "composite", "encode")
SEGMENTS: Final = (*ARRIVAL_SEGMENTS, *START_SEGMENTS, *EXCHANGE_SEGMENTS, *WORK_SEGMENTS, "publish")
"""In the order of time. Additions to the design's list, so that none hides in another: `backlog` (seen, and
not looked at while enough else was at hand), `identify` (hashing), `lost_attempts` (whose worker died)."""


_ROUNDING_MS: Final = 0.001 * len(SEGMENTS)
"""What rounding each segment to the microsecond may add up to; less than nothing it is only beyond that."""


def empty_chain() -> dict[str, int]:
    """All segments, 0 ns each."""
    return dict.fromkeys(SEGMENTS, 0)


def arrival_chain(clock: JobClock, ended_ns: int) -> dict[str, int]:
    """The chain of a job that no worker has reported on yet, up to `ended_ns`."""
    chain = empty_chain()
    chain["backlog"] = clock.backlog_ns
    chain["settle"] = clock.settled_ns - clock.observed_ns - clock.backlog_ns
    chain["identify"] = clock.hashed_ns - clock.settled_ns
    chain["lost_attempts"] = clock.lost_ns
    chain["batch_wait"] = clock.company_ns
    chain["queue"] = max(0, ended_ns - clock.hashed_ns - clock.lost_ns - clock.company_ns)
    return chain


def work_chain(
    clock: JobClock, report: WorkReport, start_ns: Mapping[str, int] | None, ready_ns: int | None
) -> dict[str, int]:
    """The chain up to the receipt of a worker's report, in ns per segment.

    Args:
        clock: the job's instants in the service.
        report: the worker's instants and segments.
        start_ns: the worker's start segments where the job owns them (cold path), else None.
        ready_ns: when that worker was ready; the batch lay in its pipe before.

    Returns:
        All segments but `publish` (0 here).
    """
    chain = empty_chain()
    chain["backlog"] = clock.backlog_ns
    chain["settle"] = clock.settled_ns - clock.observed_ns - clock.backlog_ns
    chain["identify"] = clock.hashed_ns - clock.settled_ns
    chain["queue"] = clock.queued_ns
    chain["lost_attempts"] = clock.lost_ns
    # What lies between hashing and the first readiness is pairing: the wait for a mask, a prior job, a look.
    before_ns = clock.queued_ns + clock.company_ns + clock.lost_ns
    chain["pair"] = max(0, clock.dispatched_ns - clock.hashed_ns - before_ns)
    handed_over_ns = clock.dispatched_ns
    if start_ns is not None:
        for name in START_SEGMENTS:
            chain[name] = start_ns.get(name, 0)
    if ready_ns is not None and start_ns is not None:
        handed_over_ns = max(ready_ns, clock.dispatched_ns)
    received_ns = max(report.batch_received_ns, handed_over_ns)
    chain["ipc"] = (received_ns - handed_over_ns) + (report.received_ns - report.finished_ns)
    chain["batch_wait"] = clock.company_ns + max(0, report.started_ns - received_ns)
    for name in WORK_SEGMENTS:
        chain[name] = report.segments_ns.get(name, 0)
    return chain


def finished_segments(chain: Mapping[str, int], total_ns: int) -> tuple[dict[str, float], float]:
    """Return (segments with `unattributed`, total), both in ms, that add up to within the rounding."""
    total_ms = round(total_ns / 1e6, 3)
    segments = {name: round(ns / 1e6, 3) for name, ns in chain.items()}
    unattributed_ms = round(total_ms - sum(segments.values()), 3)
    segments["unattributed"] = 0.0 if -_ROUNDING_MS < unattributed_ms < 0 else unattributed_ms
    return segments, total_ms
