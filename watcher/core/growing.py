"""Jobs whose file turned out to have no end yet: they wait for it to grow.

Rules of this file:
- A file that is young may still be written: its job waits, and that was not an attempt. An old file, and one
  that did not grow for that long, is refused.
- Before it is refused for not growing, a worker has a last look: zeros at the end of a picture are bytes to
  come in a young file, and black in an old one.
- While the inbox is away nothing grows, and nothing is given up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watcher.core.job import Cause, JobState
from watcher.core.settle import NS_PER_S

if TYPE_CHECKING:
    from watcher.core.events import Instant
    from watcher.core.intake import Intake
    from watcher.core.job import Job
    from watcher.core.ledger import Ledger
    from watcher.core.policy import ArrivalPolicy
    from watcher.core.returns import Returns

_REMEDY = "put the complete file there again"


class GrowingFiles:
    """Owns the deadlines of incomplete files."""

    def __init__(self, policy: ArrivalPolicy, intake: Intake, ledger: Ledger, returns: Returns) -> None:
        self._policy = policy
        self._intake = intake
        self._ledger = ledger
        self._returns = returns
        self._until_ns: dict[str, int] = {}
        self._last_looks: set[str] = set()
        """Jobs whose time is up, and that a worker looks at once more."""

    def waits(self, job_id: str) -> bool:
        """The job waits for its file to grow."""
        return job_id in self._until_ns

    def forget(self, job_id: str) -> None:
        """The job does not wait for its file any more."""
        self._until_ns.pop(job_id, None)
        self._last_looks.discard(job_id)

    def due_ns(self) -> int | None:
        """When the next file is given up."""
        return min(self._until_ns.values(), default=None) if self._intake.listed else None

    def found_incomplete(self, job: Job, reason: str, now: Instant) -> None:
        """A worker found that the file of this running job has no end."""
        job = replace(job, stage_name=None)
        age_s = now.wall_s - job.fingerprint.ctime_ns / NS_PER_S
        if age_s >= self._policy.young_s or job.id in self._last_looks:
            self._ledger.fail(job, f"the file has no end, and does not grow any more: {reason}", _REMEDY, now)
            return
        waiting = self._ledger.change(job.unattempted(), Cause.FOUND_INCOMPLETE)
        left_s = min(self._policy.young_s, self._policy.young_s - age_s)
        self._until_ns[waiting.id] = now.mono_ns + round(left_s * NS_PER_S)
        self._ledger.log("info", "file.incomplete", job=job.id, source=job.source, reason=reason)
        self._returns.look_again(waiting)

    def fire_timers(self, now: Instant) -> None:
        """Have those looked at once more that did not grow in time."""
        if not self._intake.listed:
            return
        overdue = [job_id for job_id, at_ns in self._until_ns.items() if now.mono_ns >= at_ns]
        for job_id in overdue:
            self.forget(job_id)
            job = self._ledger.jobs.get(job_id)
            if job is not None and job.state is JobState.WAITING:
                self._look_once_more(job, now)

    def _look_once_more(self, job: Job, now: Instant) -> None:
        facts = self._intake.facts(job.source)
        if facts is None:
            return  # it grows: it is looked at when it is complete
        self._last_looks.add(job.id)
        self._ledger.change(replace(job, clock=facts.clock(now.mono_ns)), Cause.ARRIVED)
