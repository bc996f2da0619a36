"""Jobs that come back, from a worker or from the outbox, and the next look at their pictures.

Rules of this file:
- A job that nobody works on is ready, or held, or waits for bytes or for the job that it copies. Whatever may
  move it on touches its picture.
- Time and attempts that were lost are told apart from waiting.
- Nothing is made of files that are not what they were taken for before they were hashed again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from watcher.core import commands as c
from watcher.core.job import Cause

if TYPE_CHECKING:
    from watcher.core.events import Instant
    from watcher.core.intake import Intake
    from watcher.core.job import Job
    from watcher.core.ledger import Ledger
    from watcher.core.served import ServedPictures


_MAX_MISSED: Final = 3
"""After that the worker is believed: it may see another folder than the service does."""


class Returns:
    """Puts jobs back where they can be moved on from."""

    def __init__(self, intake: Intake, ledger: Ledger, served: ServedPictures) -> None:
        self._intake = intake
        self._ledger = ledger
        self._served = served
        self._missed: Counter[str] = Counter()
        """How often a worker found no file for a job where the inbox shows one."""

    def release(self, job: Job, now: Instant, company_ns: int = 0) -> None:
        """Back to the line; what was staged is void. `company_ns`: see `Job.lost_so_far`."""
        if job.stage_name is not None:
            self._ledger.emit(c.DiscardStage(job.stage_name))
        lost = job.lost_so_far(now.mono_ns, company_ns)
        released = replace(lost, stage_name=None, record=None, sha256_out=None)
        self.look_again(self._ledger.change(released, Cause.RELEASED))

    def look_again(self, job: Job) -> None:
        """Resolve the picture once more, unless it needs nothing."""
        facts = self._intake.facts(job.source)
        if job.is_answer and self._intake.is_present(job.source):
            self._served.note(job, facts)
            if facts is not None and facts.identity == job.identity:
                return
        self._intake.touch(job.source)

    def look_at(self, job: Job) -> None:
        """Resolve the picture of a job that may be moved on now."""
        self._intake.touch(job.source)

    def read_other_bytes(self, job: Job, now: Instant, company_ns: int = 0) -> None:
        """What the worker read is not what was settled. `company_ns`: see `Job.lost_so_far`."""
        if self._intake.lost is not None:
            self.release(job.unattempted(), now, company_ns)
        else:
            reason = "it was changed before it was read"
            self.source_changed(job.lost_so_far(now.mono_ns, company_ns), reason, now)

    def found_nothing(self, job: Job, now: Instant, company_ns: int = 0) -> None:
        """The worker found no file to read. `company_ns`: see `Job.lost_so_far`."""
        if self._intake.lost is None and not self._intake.is_present(job.source):
            lost = job.lost_so_far(now.mono_ns, company_ns)
            self._ledger.end(lost, Cause.SOURCE_VANISHED, now, reason="it vanished before it was read")
        elif self._missed[job.id] < _MAX_MISSED:
            # The inbox may have gone, and that is noticed later than a worker's failure: what the next look
            # finds decides.
            self._missed[job.id] += 1
            self.release(job.unattempted(), now, company_ns)
            self._doubt_files(job, now)
        else:
            self.read_other_bytes(job, now, company_ns)

    def found_markless(self, job: Job) -> None:
        """The worker found nothing marked: another mark file of the picture has its turn, if there is one."""
        self._intake.found_markless(job)

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self._missed.pop(job_id, None)

    def source_changed(self, job: Job, reason: str, now: Instant) -> None:
        """End a job of bytes that are no more."""
        self._doubt_files(job, now)
        self._ledger.end(job, Cause.BYTES_CHANGED, now, reason=reason)

    def _doubt_files(self, job: Job, now: Instant) -> None:
        self._intake.doubt(job.source, now)
        if job.mask is not None:
            self._intake.doubt(job.mask, now)
