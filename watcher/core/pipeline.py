"""Composes the decisions: `handle(event, now) -> commands`.

Rules of this file:
- One event in, a list of commands out, in the order in which they must be carried out; nothing else happens.
- `_take` is one flat table of all events: each goes to the room whose business it is.
- After every event, `_settle_accounts` looks at the deadlines, at the pictures that were touched and at the
  lanes that are free. No room dispatches by itself.
- The rooms are built in the order in which they know each other; none knows a later one. The one way back,
  from the end of a job to those that care, is wired in `__init__`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watcher.core import events as e
from watcher.core.backpressure import Backpressure
from watcher.core.dispatching import Dispatching
from watcher.core.drain import Drain
from watcher.core.duplicates import Duplicates
from watcher.core.growing import GrowingFiles
from watcher.core.intake import Intake
from watcher.core.job import Cause, Job, JobState
from watcher.core.lanes import Lanes
from watcher.core.ledger import Ledger
from watcher.core.lives import Lives
from watcher.core.losses import Losses
from watcher.core.matching import Matching
from watcher.core.pairing import Recipes
from watcher.core.publication import Publication
from watcher.core.record import printable
from watcher.core.reports import Reports
from watcher.core.returns import Returns
from watcher.core.served import ServedPictures
from watcher.core.supervision import ALIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.core import commands as c
    from watcher.core.job import JsonObject, JsonValue
    from watcher.core.policy import Policy


class Pipeline:
    """The service's whole decision.

    Args:
        policy: the configuration, as plain values.
        jitter: returns a number in [0, 1), for the restart backoff.
    """

    def __init__(self, policy: Policy, jitter: Callable[[], float]) -> None:
        recipes = Recipes(policy.recipes)
        served = ServedPictures()
        self._backpressure = backpressure = Backpressure(policy.retry)
        self._policy = policy
        self._now_ns = 0
        self._drain = drain = Drain(policy.worker)
        self._lanes = lanes = Lanes(policy, jitter)
        self._ledger = ledger = Ledger(policy, recipes)
        self._lives = Lives(lanes, ledger)
        self._intake = intake = Intake(
            policy.arrivals,
            recipes,
            ledger.emit,
            in_line=lambda: ledger.jobs.in_line,
            window=policy.arrivals.window_once if policy.once else policy.arrivals.window,
        )
        self._returns = returns = Returns(intake, ledger, served)
        self._growing = growing = GrowingFiles(policy.arrivals, intake, ledger, returns)
        self._publication = publication = Publication(policy, ledger, returns, backpressure, drain)
        self._duplicates = duplicates = Duplicates(intake, ledger, publication, returns)
        self._matching = matching = Matching(intake, ledger, publication, duplicates, served, growing)
        self._reports = Reports(policy, lanes, ledger, publication, returns, growing, backpressure)
        self._losses = Losses(policy.retry, lanes, ledger, returns, drain)
        self._dispatching = Dispatching(policy, recipes, intake, lanes, ledger, backpressure, matching)
        ledger.on_end(
            forget=(publication.forget, growing.forget, returns.forget, self._reports.forget),
            follow_up=self._job_ended,
        )

    # --- what the runtime asks -----------------------------------------------------------------------------

    def handle(self, event: e.Event, now: e.Instant) -> list[c.Command]:
        """Take one event into account and return what is to be done about it."""
        self._now_ns = now.mono_ns
        self._take(event, now)
        self._settle_accounts(now)
        return self._ledger.take_commands()

    def next_wakeup_ns(self) -> int | None:
        """The instant at which `TimerFired` is wanted, if nothing happens before."""
        times = (
            self._intake.next_due_ns(),
            self._lanes.next_deadline_ns(),
            self._publication.due_ns(),
            self._growing.due_ns(),
            self._matching.due_ns(),
            self._drain.due_ns(),
            self._ledger.summary.due_ns(),
            None if self._drain.is_asked_for else self._dispatching.due_ns(self._now_ns),
        )
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    @property
    def is_drained(self) -> bool:
        """A drain was asked for, and nothing runs any more."""
        at_rest = self._is_quiet and self._lanes.supervisor.state not in ALIVE
        return self._drain.is_asked_for and (at_rest or self._drain.is_given_up)

    @property
    def is_idle(self) -> bool:
        """All that is there is worked off: what is left waits for a person (held) or for bytes (waiting).

        Or, with `once`, for a process that cannot be started; then `open_jobs` is not 0.
        """
        all_known = self._intake.is_settled and not self._matching.has_questions
        return all_known and self._is_quiet and not self._has_work

    @property
    def _is_quiet(self) -> bool:
        """Nothing is in flight, and nothing in the outbox's hands."""
        return not self._lanes.flights and not self._publication.is_busy

    @property
    def _has_work(self) -> bool:
        """Some job is ready, its files are there, and somebody can serve it."""
        if self._policy.once and self._lanes.cold_is_hopeless:
            return False
        return any(self._intake.facts(job.source) is not None for job in self._ledger.jobs.ready())

    @property
    def is_watching(self) -> bool:
        """The inbox is there and was listed: what is in it is known."""
        return self._intake.lost is None and self._intake.listed

    @property
    def open_jobs(self) -> int:
        """How many jobs and files are still to be worked off, as far as they are known."""
        counts = self._ledger.jobs.count()
        return self._intake.waiting + sum(counts.values()) - counts[JobState.HELD] - counts[JobState.WAITING]

    @property
    def held(self) -> tuple[Job, ...]:
        """The jobs that wait for a mask."""
        return tuple(job for job in self._ledger.jobs if job.state is JobState.HELD)

    def snapshot(self) -> JsonObject:
        """What `watcher status` shows."""
        counts: dict[str, JsonValue] = dict(self._ledger.jobs.count())
        counts["arriving"] = self._intake.waiting
        return {
            "inbox": self._inbox_state(),
            "inbox_reason": self._intake.lost,
            "files": self._intake.known,
            "draining": self._drain.reason,
            "worker": self._worker_state(),
            "path": self._lanes.last_path,
            "path_reason": self._lanes.last_reason,
            "blocked": self._publication.blocked_reason or self._backpressure.staging_trouble,
            "unreadable": {printable(path): reason for path, reason in self._intake.troubles.items()},
            "jobs": counts,
            "finished": self._ledger.finished,
            "last": self._ledger.last_finished,
        }

    def _inbox_state(self) -> str:
        if self._intake.lost is not None:
            return "lost"
        return "watched" if self._intake.listed else "listing"

    def _worker_state(self) -> JsonObject:
        supervisor = self._lanes.supervisor
        ready = self._lanes.worker_ready
        return {
            "state": supervisor.state.value,
            "incarnation": supervisor.incarnation,
            "fault": supervisor.fault,
            "trouble": self._lanes.trouble,
            "restarts": supervisor.restarts,
            "pid": ready.origin.pid if ready is not None else None,
            "engine": ready.engine if ready is not None else None,
            "device": ready.device if ready is not None else None,
        }

    # --- events --------------------------------------------------------------------------------------------

    def _take(self, event: e.Event, now: e.Instant) -> None:  # noqa: C901, PLR0912, PLR0915 - one flat table
        match event:
            case e.FileObserved():
                self._intake.observed(event, now)
            case e.FileVanished():
                self._intake.vanished(event, now)
            case e.InboxListed():
                self._intake.listed_now(event, now)
                self._matching.inbox_listed(now)
            case e.RescanWanted():
                self._intake.rescan_wanted(event)
            case e.InboxLost():
                self._intake.inbox_lost(event)
            case e.InboxFound():
                self._intake.inbox_found(event)
            case e.FileHashed():
                self._intake.hashed(event)
            case e.FileUnreadable():
                self._intake.unreadable(event, now)
            case e.JournalOpened():
                self._journal_opened(event, now)
            case e.PriorJobsFound():
                self._matching.prior_jobs_found(event, now)
            case e.RetryRequested():
                self._matching.retry_requested(event, now)
            case e.DrainRequested():
                self._drain_requested(event, now)
            case e.TimerFired():
                pass  # deadlines are looked at after every event
            case e.WorkerWarming():
                self._reports.worker_warming(event)
            case e.WorkerReady():
                self._lives.became_ready(event, now)
                self._reports.worker_ready(event, now)
            case e.WorkerPonged():
                self._reports.worker_ponged(event, now)
            case e.WorkerExamined():
                self._losses.worker_examined(event, now)
            case e.BatchStarted() | e.ItemStarted() | e.ItemProgressed():
                self._reports.progressed(event, now)
            case e.ItemDone():
                self._reports.item_done(event, now)
            case e.ItemHeld():
                self._reports.item_held(event, now)
            case e.ItemIncomplete():
                self._reports.item_incomplete(event, now)
            case e.ItemFailed():
                self._reports.item_failed(event, now)
            case e.BatchDone():
                self._reports.batch_done(event, now)
            case e.WorkerExited():
                self._lives.exited(event, now)
                self._losses.worker_exited(event, now)
            case e.MemoryObserved():
                self._lanes.memory_bytes = event.available_bytes
            case e.ResultSealed():
                self._publication.result_sealed(event)
            case e.SourceChanged():
                self._publication.source_changed(event, now)
            case e.StageLost():
                self._publication.stage_lost(event, now)
            case e.NameTaken():
                self._publication.name_taken(event)
            case e.ResultPublished():
                self._publication.result_published(event, now)
            case e.PublishBlocked():
                self._publication.publish_blocked(event, now)

    def _settle_accounts(self, now: e.Instant) -> None:
        """What every event is followed by: timers, touched pictures, free lanes."""
        self._fire_timers(now)
        while touched := self._intake.take_touched():
            for path in touched:
                self._matching.resolve(path, now)
        if not self._drain.is_asked_for:
            self._dispatching.dispatch(now)
            self._losses.hurry_restart(now)
            self._intake.admit()
        self._sum_up(now)

    def _fire_timers(self, now: e.Instant) -> None:
        self._intake.fire_timers(now)
        self._losses.fire_timers(now)
        self._publication.fire_timers(now)
        self._growing.fire_timers(now)
        self._matching.fire_timers(now)
        if self._drain.fire_timers(now.mono_ns):
            self._losses.kill_all("the service stops", now)

    def _sum_up(self, now: e.Instant) -> None:
        """Tell what was done, when it is time, and at the end of a drain."""
        summary = self._ledger.summary
        summary.restarted(self._lanes.supervisor.restarts, now.mono_ns)
        due_ns = summary.due_ns()
        if due_ns is None or (now.mono_ns < due_ns and not self.is_drained):
            return
        fields = summary.take(now.mono_ns)
        if fields is not None:
            self._ledger.log("info", "service.summed_up", **fields)

    def _job_ended(self, job: Job, now: e.Instant) -> None:
        """A job has ended, or is held: those that wait for it, its source, the next look at its path."""
        job = self._duplicates.release(job, now)
        self._ledger.dispose_of_source(job)
        self._returns.look_again(job)

    # --- start and stop ------------------------------------------------------------------------------------

    def _journal_opened(self, event: e.JournalOpened, now: e.Instant) -> None:
        self._ledger.number_from(event.next_number)
        self._ledger.run = event.run
        self._intake.restore(event.files)
        for job in event.jobs:
            self._rescue(job)
        if not self._policy.once and not self._policy.worker.lazy:
            self._ledger.emit(*self._lanes.supervisor.want(now.mono_ns))

    def _rescue(self, job: Job) -> None:
        """A crash left this job as it is: see `AFTER_CRASH`."""
        if job.state is JobState.PUBLISHING:
            self._publication.rescue(job)
            return
        # What was staged and drafted is void: its instants are of another life.
        if any(part is not None for part in (job.stage_name, job.sha256_out, job.record)):
            job = replace(job, stage_name=None, sha256_out=None, record=None)
        if job.state is JobState.RUNNING:
            # The service died, not the picture's process: that was not an attempt.
            self._ledger.change(job.unattempted(), Cause.RELEASED)
        else:
            self._ledger.keep(job)

    def _drain_requested(self, event: e.DrainRequested, now: e.Instant) -> None:
        if self._drain.is_asked_for:
            return
        self._drain.begin(event.reason, now.mono_ns)
        self._ledger.log("info", "service.stopping", reason=event.reason)
        self._publication.let_go_refused()
        self._ledger.emit(*self._lanes.supervisor.drain(now.mono_ns))
