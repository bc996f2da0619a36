"""Results -> outbox: sealing, publishing, copies, and what is done when the outbox refuses.

Rules of this file:
- From the request to seal until its end a job is in the outbox's hands (`holds`), and nobody else moves it.
  Answers about a job that is not in its hands are late and change nothing.
- Sealed before published: the name is journalled before the rename, so that a crash in between is finished.
- A refusal is not an end: all that were refused are offered again together, ever later while it goes on. When
  the service stops they stay as the journal has them; the next start finishes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watcher.core import commands as c
from watcher.core import record as records
from watcher.core.job import UNTOUCHED, Cause, JobState

if TYPE_CHECKING:
    from watcher.core import events as e
    from watcher.core.backpressure import Backpressure
    from watcher.core.drain import Drain
    from watcher.core.job import Job
    from watcher.core.ledger import Ledger
    from watcher.core.policy import Policy
    from watcher.core.returns import Returns


class Publication:
    """Owns the jobs that are in the outbox's hands."""

    def __init__(
        self, policy: Policy, ledger: Ledger, returns: Returns, backpressure: Backpressure, drain: Drain
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._returns = returns
        self._backpressure = backpressure
        self._drain = drain
        self._asked: dict[str, c.SealResult | None] = {}
        """Jobs in the outbox's hands, with what it was asked first (None: rescued)."""
        self._blocked: dict[str, str] = {}
        """Jobs whose result the outbox would not take, with the reason, until it has taken it."""
        self._refused: dict[str, None] = {}
        """Those of them that are to be offered again."""
        self._again_ns: int | None = None
        self._failures = 0

    # --- what others ask -----------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Some job is in the outbox's hands."""
        return bool(self._asked)

    @property
    def blocked_reason(self) -> str | None:
        """Why the outbox takes no results, if it does not."""
        return next(iter(self._blocked.values()), None)

    def is_untouched(self, job: Job) -> bool:
        """Nobody works on this active job: no worker, and not the outbox."""
        return job.state in UNTOUCHED and job.id not in self._asked

    def due_ns(self) -> int | None:
        """When refused results are to be offered again."""
        return self._again_ns

    # --- what others want ----------------------------------------------------------------------------------

    def seal(self, job: Job) -> None:
        """The result lies in staging: publish it."""
        self._ask(c.SealResult(job, job.stage_name or "", job.sha256_out or ""))

    def copy(self, primary: Job, duplicate: Job, now: e.Instant) -> None:
        """The result exists: publish a copy of it under the duplicate's own name."""
        stage_name = f"{duplicate.id}.copy"
        duplicate = replace(
            duplicate,
            created_s=duplicate.created_s or now.wall_s,
            stage_name=stage_name,
            sha256_out=primary.sha256_out,
            reason=primary.reason,
            record={
                **records.draft_copy(duplicate, primary.record, self._policy, now.mono_ns),
                "unchanged": primary.state is JobState.UNCHANGED,
            },
        )
        self._ledger.save(duplicate)
        self._ask(c.SealResult(duplicate, stage_name, primary.sha256_out or "", copy_from=primary.output))

    def rescue(self, job: Job) -> None:
        """A crash left this job publishing: finish it if its bytes are anywhere."""
        self._ledger.keep(job)
        self._asked[job.id] = None
        self._ledger.emit(c.PublishResult(job, rescue=True))

    def let_go_refused(self) -> None:
        """The service stops: nothing is offered again."""
        for job_id in self._refused:
            self._asked.pop(job_id, None)
        self._refused.clear()
        self._again_ns = None

    def forget(self, job_id: str) -> None:
        """The outbox has done with this job, one way or the other."""
        self._asked.pop(job_id, None)
        self._refused.pop(job_id, None)
        if self._blocked.pop(job_id, None) is not None and not self._blocked:
            self._failures = 0
            self._again_ns = None
            self._backpressure.outbox_resumed()

    def fire_timers(self, now: e.Instant) -> None:
        """Offer again what was refused, if it is time."""
        if self._again_ns is None or now.mono_ns < self._again_ns:
            return
        self._again_ns = None
        refused = tuple(self._refused)
        self._refused.clear()
        for job in self._ledger.jobs.among(refused):
            self._offer_again(job)

    def _ask(self, command: c.SealResult) -> None:
        self._asked[command.job.id] = command
        self._ledger.emit(command)

    def _offer_again(self, job: Job) -> None:
        asked = self._asked.get(job.id)
        if job.state is JobState.PUBLISHING:
            self._ledger.emit(c.PublishResult(job, rescue=True))
        elif asked is not None:
            self._ledger.emit(replace(asked, job=job))

    # --- what the outbox answers ---------------------------------------------------------------------------

    def result_sealed(self, event: e.ResultSealed) -> None:
        """The result has a name, which is journalled before it is taken."""
        job = self._held(event.job)
        if job is None:
            return  # it ended meanwhile, and its stage was discarded then
        sealed = replace(job, output=event.output, sha256_out=event.sha256_out)
        if job.state is not JobState.PUBLISHING:
            cause = Cause.COPIED if job.state is JobState.WAITING else Cause.STAGED
            sealed = self._ledger.change(sealed, cause)
        else:  # its first name was taken
            self._ledger.save(sealed)
        self._ledger.emit(c.PublishResult(sealed))

    def source_changed(self, event: e.SourceChanged, now: e.Instant) -> None:
        """The result is of bytes that are no more."""
        job = self._taken_back(event.job)
        if job is not None:
            self._returns.source_changed(job, event.what, now)

    def stage_lost(self, event: e.StageLost, now: e.Instant) -> None:
        """There is nothing to publish: the result must be made again."""
        job = self._taken_back(event.job)
        if job is None:
            return
        self._ledger.log("warning", "publish.stage_lost", job=job.id, source=job.source, reason=event.reason)
        again = replace(job, stage_name=None, output=None, sha256_out=None, record=None, duplicate_of=None)
        if job.state is JobState.PUBLISHING:
            lost = again.lost_so_far(now.mono_ns)
            self._returns.look_again(self._ledger.change(lost, Cause.STAGE_LOST))
        elif job.state is JobState.RUNNING:
            self._backpressure.staging_failed(now.mono_ns, event.reason)
            self._returns.release(again, now)
        else:  # there is nothing to copy: it is served itself
            self._ledger.save(again)
            self._returns.look_at(again)

    def name_taken(self, event: e.NameTaken) -> None:
        """Somebody else has the sealed name: seal again, under another."""
        job = self._held(event.job)
        if job is not None and job.state is JobState.PUBLISHING:
            self.seal(job)

    def result_published(self, event: e.ResultPublished, now: e.Instant) -> None:
        """The result is where it belongs."""
        was_blocked = bool(self._blocked) or self._backpressure.staging_trouble is not None
        job = self._taken_back(event.job)
        if job is None:
            return
        self._backpressure.result_published()
        if was_blocked and not self._blocked:
            self._ledger.log("info", "publish.resumed", job=job.id)
        unchanged = bool(job.record and job.record.get("unchanged"))
        cause = Cause.PUBLISHED_UNCHANGED if unchanged else Cause.PUBLISHED
        self._ledger.end(replace(job, output=event.output), cause, now, ended_ns=event.published_ns)

    def publish_blocked(self, event: e.PublishBlocked, now: e.Instant) -> None:
        """The outbox would not take the result."""
        job = self._held(event.job)
        if job is None:
            return
        if not self._blocked:
            self._ledger.log("error", "publish.blocked", job=job.id, source=job.source, reason=event.reason)
        if job.id not in self._blocked:
            self._backpressure.outbox_refused()
        self._blocked[job.id] = event.reason
        if self._drain.is_asked_for:
            self._asked.pop(job.id, None)
            return
        self._refused[job.id] = None
        if self._again_ns is None:
            self._again_ns = now.mono_ns + self._backpressure.patience_ns(self._failures)
            self._failures += 1
        self._backpressure.wait_for_outbox(self._again_ns)

    def _held(self, job_id: str) -> Job | None:
        return self._ledger.jobs.get(job_id) if job_id in self._asked else None

    def _taken_back(self, job_id: str) -> Job | None:
        self.forget(job_id)
        return self._ledger.jobs.get(job_id)
