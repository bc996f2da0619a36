"""Failure -> release, isolate or quarantine.

Rules of this file:
- Only a process that died or stalled while it served one job alone blames that job. In company, the item that
  was being served becomes a suspect and runs alone next; the others go on unblamed. Between two items, the
  next one in the batch is taken to be served.
- A signal from outside is not held against a job at first. But a program of the user's that kills what takes
  too much memory looks the same, so not for ever.
- Draining, recycling, a start that failed and an end before the batch was read blame nobody.
- Every loss makes progress: it ends in fewer jobs in company with a suspect, or in one more solo fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from watcher.core.job import Job
    from watcher.core.policy import RetryPolicy


MAX_LOSSES: Final = 4
"""So many of its losses a job remembers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one job of a lost batch; `job` carries the new counters, not the new state."""

    job: Job
    action: Literal["release", "quarantine"]


def being_served(unreported: Iterable[str], in_progress: str | None) -> str | None:
    """The job that a process was serving: the one it named last or, between two, the next of its batch."""
    return in_progress if in_progress is not None else next(iter(unreported), None)


def after_loss(
    unreported: Sequence[Job],
    in_progress: str | None,
    *,
    alone: bool,
    policy: RetryPolicy,
    is_foreign: bool = False,
) -> list[Verdict]:
    """Judge the jobs that a dead process had not reported on.

    Args:
        unreported: the jobs without a report, in the order of the batch.
        in_progress: the job that was being served, or None between two items.
        alone: the batch had one job.
        policy: how many solo faults quarantine a job.
        is_foreign: what ended the process came from outside, by all that was seen.
    """
    verdicts = []
    in_progress = being_served((job.id for job in unreported), in_progress)
    for job in unreported:
        if job.id != in_progress:
            verdicts.append(Verdict(job, "release"))
        elif not alone or (is_foreign and job.attempts < policy.foreign_attempts):
            verdicts.append(Verdict(replace(job, suspect=True), "release"))
        else:
            blamed = replace(job, suspect=True, solo_faults=job.solo_faults + 1)
            given_up = blamed.solo_faults >= policy.max_solo_faults
            verdicts.append(Verdict(blamed, "quarantine" if given_up else "release"))
    return verdicts


def unblamed(unreported: Sequence[Job]) -> list[Verdict]:
    """Release all: the end of the process was wanted, or came before any work. It was not an attempt."""
    return [Verdict(job.unattempted(), "release") for job in unreported]
