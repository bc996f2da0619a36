"""Jobs -> lanes: which ready jobs go now, together, and which way.

Rules of this file:
- Nobody dispatches but `dispatch`, once after every event: what is ready goes to whoever is free.
- Attempts are committed before the work starts.
- A job goes only while its files are what it was made for, complete and seen in this life of the service.
- The line is not jumped: if the job that has waited longest does not go cold, no younger one does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, cast

from watcher.core import commands as c
from watcher.core.batching import choose_batch, linger_until_ns
from watcher.core.job import Cause
from watcher.core.policy import Recipe
from watcher.core.routing import PathReason
from watcher.core.settle import NS_PER_S
from watcher.core.supervision import WorkerState

if TYPE_CHECKING:
    from typing import Literal

    from watcher.core import events as e
    from watcher.core.backpressure import Backpressure
    from watcher.core.intake import Intake
    from watcher.core.job import Job, JobClock
    from watcher.core.lanes import Lanes
    from watcher.core.ledger import Ledger
    from watcher.core.matching import Matching
    from watcher.core.pairing import Recipes
    from watcher.core.policy import Policy


_WAITED_FOR: Final = frozenset({WorkerState.STARTING, WorkerState.WARMING, WorkerState.DRAINING})
"""States in which a job waits for the resident worker's start, for a while."""


class Dispatching:
    """Gives ready jobs to the lanes."""

    def __init__(
        self,
        policy: Policy,
        recipes: Recipes,
        intake: Intake,
        lanes: Lanes,
        ledger: Ledger,
        backpressure: Backpressure,
        matching: Matching,
    ) -> None:
        self._policy = policy
        self._recipes = recipes
        self._intake = intake
        self._lanes = lanes
        self._ledger = ledger
        self._backpressure = backpressure
        self._matching = matching
        self._linger_until_ns = 0
        self._path_told: Literal["hot", "cold"] | None = None

    def dispatch(self, now: e.Instant) -> None:
        """Give what is ready to whoever is free."""
        if not self._is_time(now):
            return
        if self._policy.worker.lazy and not self._policy.once:
            self._ledger.emit(*self._lanes.supervisor.want(now.mono_ns))
        self._linger_until_ns = 0
        if self._lanes.hot_is_free:
            self._dispatch_hot(now)
        while self._dispatch_cold(now):
            pass

    def due_ns(self, now_ns: int) -> int | None:
        """When the answer of `dispatch` may change by time alone."""
        if not self._ledger.jobs.has_ready:
            return None
        limits = [
            self._backpressure.until_ns,
            self._lanes.next_change_ns(now_ns),
            self._linger_until_ns,
            self._start_late_ns(now_ns),
        ]
        # Limits that have passed were acted on; only the future wakes.
        return min((limit_ns for limit_ns in limits if limit_ns > now_ns), default=None)

    def _start_late_ns(self, now_ns: int) -> int:
        """When the next job has waited too long for a worker that starts (0: none will)."""
        if self._lanes.supervisor.state not in _WAITED_FOR or not self._lanes.cold_is_free(now_ns):
            return 0
        for job in self._ledger.jobs.ready():
            if job.clock is not None:
                late_ns = self._lanes.waits_since_ns(job) + round(self._lanes.cold_s(job) * NS_PER_S) + 1
                if late_ns > now_ns:
                    return late_ns
        return 0

    def _is_time(self, now: e.Instant) -> bool:
        if self._intake.lost is not None or not self._intake.listed:
            return False
        if now.mono_ns < self._backpressure.until_ns or not self._ledger.jobs.has_ready:
            return False
        # With `once`, one process for all of it: its start is paid once.
        if not self._policy.once or self._intake.is_full:
            return True
        return self._intake.is_settled and not self._matching.has_questions

    # --- hot -----------------------------------------------------------------------------------------------

    def _dispatch_hot(self, now: e.Instant) -> None:
        waiting = (job for job in self._ledger.jobs.ready() if self._may_go(job, now) == "hot")
        batch = choose_batch(waiting, self._policy.batching)
        if not batch:
            return
        until_ns = linger_until_ns(batch, self._policy.batching)
        if now.mono_ns < until_ns:
            self._linger_until_ns = until_ns
            return
        batch = self._with_care(batch)
        if any(job.needs_own_process for job in batch):  # only without a cold path that works: it goes alone
            batch = tuple(takewhile(lambda job: not job.needs_own_process, batch)) or batch[:1]
        incarnation = self._lanes.supervisor.incarnation
        flight = self._lanes.take_off(incarnation, "hot", PathReason.READY, batch, now.mono_ns)
        items = self._board(batch, now)
        self._tell_path("hot", flight.reason)
        self._ledger.emit(c.RunBatch(incarnation, c.Batch(flight.batch, items)))
        self._ledger.emit(*self._lanes.supervisor.batch_given(self._lanes.flights.silent_until_ns(flight)))

    # --- cold ----------------------------------------------------------------------------------------------

    def _dispatch_cold(self, now: e.Instant) -> bool:
        """Start one one-shot if a job is to go that way; True if one was started."""
        first = self._first_cold(now)
        if first is None:
            return False
        reason = self._lanes.route(first, now.mono_ns).reason
        batch = (first,) if first.needs_own_process else self._cold_batch(reason, now)
        incarnation = self._lanes.take_incarnation()
        flight = self._lanes.take_off(incarnation, "cold", reason, batch, now.mono_ns)
        items = self._board(batch, now)
        self._tell_path("cold", flight.reason)
        self._ledger.emit(c.RunCold(incarnation, c.Batch(flight.batch, items), flight.device))
        return True

    def _first_cold(self, now: e.Instant) -> Job | None:
        """A suspect, else the one that has waited longest: if it does not go cold, no younger one does."""
        if self._lanes.cold_is_free(now.mono_ns, suspect=True):
            for job in self._ledger.jobs.suspects():
                if self._may_go(job, now) == "cold":
                    return job
        if not self._lanes.cold_is_free(now.mono_ns):
            return None
        for job in self._ledger.jobs.ready():
            if job.needs_own_process or not self._is_complete(job):
                continue
            if self._may_go(job, now) == "cold":
                return job
            if job.clock is not None and not job.clock.dispatched_ns:
                return None  # those that were dispatched before stand first, whatever they waited since
        return None

    def _cold_batch(self, reason: PathReason, now: e.Instant) -> tuple[Job, ...]:
        same_way = (
            job
            for job in self._ledger.jobs.ready()
            if not job.needs_own_process
            and self._may_go(job, now) == "cold"
            and self._lanes.route(job, now.mono_ns).reason is reason
        )
        if reason is PathReason.ONCE:
            return self._with_care(tuple(same_way))
        return self._with_care(choose_batch(same_way, self._policy.batching))

    # --- both ----------------------------------------------------------------------------------------------

    def _with_care(self, batch: tuple[Job, ...]) -> tuple[Job, ...]:
        """Sometimes one job at a time goes.

        While the outbox refuses results, to learn whether it refuses all; and while a process is being
        killed, since its jobs stand before all others and come back in a moment.
        """
        careful = not self._backpressure.outbox_works or self._lanes.flights.are_coming_back
        return batch[:1] if careful else batch

    def _may_go(self, job: Job, now: e.Instant) -> Literal["hot", "cold", "wait"]:
        return self._lanes.route(job, now.mono_ns).path if self._is_complete(job) else "wait"

    def _is_complete(self, job: Job) -> bool:
        """False while its mask is still being written, or its bytes were not seen since a restart."""
        facts = self._intake.facts(job.source)
        return facts is not None and job.clock is not None and facts.identity == job.identity

    def _board(self, batch: tuple[Job, ...], now: e.Instant) -> tuple[c.BatchItem, ...]:
        """Commit the attempts, then return what the executor needs."""
        items = []
        for job in batch:
            attempts = job.attempts + 1
            clock = cast("JobClock", job.clock)
            clock = replace(
                clock,
                dispatched_ns=now.mono_ns,
                queued_ns=clock.queued_ns + now.mono_ns - clock.ready_ns,
            )
            stage_name = f"{job.id}.{attempts}"
            boarded = replace(job, attempts=attempts, clock=clock, stage_name=stage_name)
            running = self._ledger.change(boarded, Cause.DISPATCHED)
            recipe = self._recipes.named(job.identity.recipe) or Recipe(job.identity.recipe)
            items.append(c.BatchItem(running, stage_name, recipe))
        return tuple(items)

    def _tell_path(self, path: Literal["hot", "cold"], reason: PathReason) -> None:
        if reason is not PathReason.QUEUE_TOO_LONG:  # then both ways are used, and nothing is wrong
            if self._path_told not in {None, path}:
                level: c.LogLevel = "warning" if path == "cold" else "info"
                self._ledger.log(level, "path.changed", path=path, reason=reason.value)
            self._path_told = path
        self._lanes.last_path = path
        self._lanes.last_reason = reason.value
