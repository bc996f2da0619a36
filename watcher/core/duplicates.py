"""Jobs that are the same work as another one, for another path: one is done, the others get copies.

Rules of this file:
- While the same work is under way a duplicate waits for it; it is released when that job ends or is held.
- The end of the other decides: a result is copied, a refusal refuses the duplicate too, and where no answer
  came the duplicate is looked at for itself.
- If the other's picture was renamed to the duplicate's path meanwhile, the result is that path's already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watcher.core import commands as c
from watcher.core.job import Cause, JobState

if TYPE_CHECKING:
    from watcher.core.events import Instant
    from watcher.core.facts import PictureFacts
    from watcher.core.intake import Intake
    from watcher.core.job import Job
    from watcher.core.ledger import Ledger
    from watcher.core.publication import Publication
    from watcher.core.returns import Returns


class Duplicates:
    """Makes, keeps waiting and releases the jobs that copy another."""

    def __init__(self, intake: Intake, ledger: Ledger, publication: Publication, returns: Returns) -> None:
        self._intake = intake
        self._ledger = ledger
        self._publication = publication
        self._returns = returns

    # --- the same work was met -----------------------------------------------------------------------------

    def wait_for(self, primary: Job, facts: PictureFacts, current: Job | None, now: Instant) -> None:
        """The same work is under way for another path: this one gets a copy.

        Args:
            primary: the job that does the work.
            facts: the picture that needs the same.
            current: the active job of that picture, if it has one.
            now: of the event.
        """
        duplicate = self._duplicate_job(primary, facts, current, now)
        self._ledger.save(duplicate)
        self._ledger.log(
            "info", "job.duplicate", job=duplicate.id, source=facts.path, duplicate_of=primary.id
        )

    def answer_like(self, answer: Job, facts: PictureFacts, current: Job | None, now: Instant) -> None:
        """The same work was done for another path: this one gets a copy, or is refused like it."""
        duplicate = self._duplicate_job(answer, facts, current, now)
        if answer.has_result:
            self._publication.copy(answer, duplicate, now)
        else:
            self._refuse_like(answer, duplicate, now)

    def _duplicate_job(self, primary: Job, facts: PictureFacts, current: Job | None, now: Instant) -> Job:
        """A waiting job for the same work at another path: `current` itself where it is one already."""
        if current is not None:
            if current.state is JobState.WAITING and current.identity == primary.identity:
                return replace(current, duplicate_of=primary.id)
            reason = f"the same work as job {primary.id}"
            self._ledger.end(current, Cause.BYTES_CHANGED, now, reason=reason)
        return replace(
            self._ledger.new_job(facts),
            duplicate_of=primary.id,
            clock=facts.clock(now.mono_ns),
            created_s=now.wall_s,
        )

    # --- the job that they wait for moved on ---------------------------------------------------------------

    def release(self, job: Job, now: Instant) -> Job:
        """The job that others wait for has ended, or is held. Returns it, maybe with their path."""
        for duplicate in self._ledger.jobs.duplicates(job.id):
            if duplicate.state is JobState.WAITING and self._publication.is_untouched(duplicate):
                job = self._release_one(job, duplicate, now)
        return job

    def dissolve(self, job_id: str) -> None:
        """This job is not the same work any more as those that wait for it."""
        job = self._ledger.jobs.get(job_id)
        for duplicate in self._ledger.jobs.duplicates(job_id):
            self._stand_alone(duplicate if job is None else duplicate.inheriting(job))

    def _release_one(self, job: Job, duplicate: Job, now: Instant) -> Job:
        if job.is_refused:
            self._refuse_like(job, duplicate, now)
        elif not job.has_result:
            self._stand_alone(duplicate.inheriting(job))
        elif self._intake.facts(duplicate.source) is None:
            pass  # its end is not known here: the journal is asked when its picture is known
        elif self._intake.may_hold(job.source, job.identity.picture_sha256):
            self._publication.copy(job, duplicate, now)
        else:
            return self._hand_over(job, duplicate, now)
        return job

    def _hand_over(self, job: Job, duplicate: Job, now: Instant) -> Job:
        reason = f"its picture was renamed while job {job.id} served it: see {job.output}"
        self._ledger.end(duplicate, Cause.BYTES_CHANGED, now, reason=reason)
        renamed = replace(job, source=duplicate.source)
        self._ledger.emit(c.SaveJob(renamed))
        return renamed

    def _refuse_like(self, answer: Job, duplicate: Job, now: Instant) -> None:
        """The same bytes were refused, or poison: they are not tried at another path either."""
        cause = Cause.REFUSED if answer.state is JobState.FAILED else Cause.POISONED
        duplicate = replace(duplicate, created_s=duplicate.created_s or now.wall_s)
        remedy = f"these are the bytes of job {answer.id}; to try them again: watcher retry {duplicate.id}"
        self._ledger.end(duplicate, cause, now, reason=answer.reason, remedy=remedy)

    def _stand_alone(self, duplicate: Job) -> None:
        """There is no result to wait for: it is looked at for itself."""
        self._ledger.save(replace(duplicate, duplicate_of=None))
        self._returns.look_at(duplicate)
