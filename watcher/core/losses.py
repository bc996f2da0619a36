"""Processes that end, or do not end: their jobs are judged and go on without them.

Rules of this file:
- `retry` says who is to blame for a loss; here it is carried out, once a flight.
- A one-shot without progress is killed here; the resident worker is the supervisor's until it is killed.
- A process that outlives its kill is given up: its jobs go on under other stage names, and what it may still
  say is stale. While the service stops they stay for the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.core import commands as c
from watcher.core.job import Cause
from watcher.core.retry import Verdict, after_loss, unblamed
from watcher.core.supervision import EXIT_CONFIGURATION, WorkerState

if TYPE_CHECKING:
    from watcher.core import events as e
    from watcher.core.drain import Drain
    from watcher.core.lanes import Flight, Lanes
    from watcher.core.ledger import Ledger
    from watcher.core.policy import RetryPolicy
    from watcher.core.returns import Returns


class Losses:
    """Ends flights whose process has ended, or has to."""

    def __init__(
        self, policy: RetryPolicy, lanes: Lanes, ledger: Ledger, returns: Returns, drain: Drain
    ) -> None:
        self._policy = policy
        self._lanes = lanes
        self._ledger = ledger
        self._returns = returns
        self._drain = drain

    # --- it has to end -------------------------------------------------------------------------------------

    def fire_timers(self, now: e.Instant) -> None:
        """Kill what makes no progress; give up what does not die."""
        supervisor = self._lanes.supervisor
        if supervisor.deadline_ns is not None and now.mono_ns >= supervisor.deadline_ns:
            self._ledger.emit(*supervisor.deadline_passed(now.mono_ns))
        hot = self._lanes.flights.get(supervisor.incarnation)
        if hot is not None and hot.killed_ns is None and supervisor.state is WorkerState.KILLING:
            hot.killed_ns = now.mono_ns
        for flight in self._lanes.overdue_cold(now.mono_ns):
            self._kill_cold(flight, "no progress", now)
        for flight in self._lanes.unkillable(now.mono_ns):
            self._give_up(flight, now)

    def kill_all(self, reason: str, now: e.Instant) -> None:
        """Nothing that runs is waited for any more."""
        for flight in self._lanes.flights.values():
            if flight.path == "cold" and flight.killed_ns is None:
                self._kill_cold(flight, reason, now)
        if self._lanes.supervisor.state is not WorkerState.KILLING:
            self._ledger.emit(*self._lanes.supervisor.kill(reason, now.mono_ns))

    def _kill_cold(self, flight: Flight, reason: str, now: e.Instant) -> None:
        flight.killed_ns = now.mono_ns
        self._ledger.log(
            "warning", "worker.killed", incarnation=flight.incarnation, reason=reason, again=False
        )
        self._ledger.emit(c.KillWorker(flight.incarnation, reason))

    def _give_up(self, flight: Flight, now: e.Instant) -> None:
        flight.given_up = True
        self._ledger.log(
            "error",
            "worker.killed",
            incarnation=flight.incarnation,
            reason="it does not end; its pictures are served without it",
            again=True,
        )
        if self._drain.is_asked_for:
            return  # the next start finishes them
        # One that hangs before it has read its batch does so for reasons of its own.
        verdicts = self._blame(flight) if flight.started else unblamed(self._ledger.jobs.among(flight.jobs))
        flight.jobs.clear()
        self._carry_out(verdicts, "it stood still, and could not be killed", now)

    # --- it has ended --------------------------------------------------------------------------------------

    def worker_exited(self, event: e.WorkerExited, now: e.Instant) -> None:
        """A process was reaped."""
        flight = self._lanes.flights.pop(event.origin.incarnation, None)
        supervisor = self._lanes.supervisor
        current = event.origin.path == "hot" and supervisor.is_current(event.origin.incarnation)
        recycled = current and supervisor.state is WorkerState.DRAINING
        wanted = recycled or self._drain.is_asked_for
        self._tell_exit(event, flight, expected=wanted)
        if current:
            self._lanes.worker_ready = None
            self._lanes.trouble = event.reason if event.remedy is None else f"{event.reason}: {event.remedy}"
            self._ledger.emit(*supervisor.exited(event.exit_code, now.mono_ns))
        if flight is not None and flight.jobs:
            self._carry_out(self._judge(flight, event, now, wanted=wanted), event.story, now)

    def _tell_exit(self, event: e.WorkerExited, flight: Flight | None, *, expected: bool) -> None:
        calm = expected or (event.exit_code == 0 and (flight is None or not flight.jobs))
        level: c.LogLevel = "debug" if calm else "warning"
        self._ledger.log(
            level,
            "worker.exited",
            path=event.origin.path,
            incarnation=event.origin.incarnation,
            pid=event.origin.pid,
            exit_code=event.exit_code,
            story=event.story,
            reason=event.reason,
            remedy=event.remedy,
        )

    def _judge(self, flight: Flight, event: e.WorkerExited, now: e.Instant, *, wanted: bool) -> list[Verdict]:
        if not wanted and flight.started:
            return self._blame(flight)
        if not wanted and flight.path == "cold":
            self._cold_start_failed(event, now)
        return unblamed(self._ledger.jobs.among(flight.jobs))

    def _blame(self, flight: Flight) -> list[Verdict]:
        unreported = self._ledger.jobs.among(flight.jobs)
        return after_loss(unreported, flight.in_progress, alone=flight.size == 1, policy=self._policy)

    def _cold_start_failed(self, event: e.WorkerExited, now: e.Instant) -> None:
        for_good = event.exit_code == EXIT_CONFIGURATION
        wait_s = self._lanes.cold_start_failed(now.mono_ns, for_good=for_good)
        self._ledger.log("error", "worker.cold_start_failed", story=event.story, next_try_in_s=wait_s)

    def _carry_out(self, verdicts: list[Verdict], story: str, now: e.Instant) -> None:
        for verdict in verdicts:
            if verdict.action == "release":
                self._returns.release(verdict.job, now)
            else:
                self._quarantine(verdict, story, now)

    def _quarantine(self, verdict: Verdict, story: str, now: e.Instant) -> None:
        job = verdict.job
        self._ledger.end(
            job.lost_so_far(now.mono_ns),
            Cause.POISONED,
            now,
            reason=f"it ended its process {job.solo_faults} times; the last time: {story}",
            remedy=f"look at the picture; to try it again all the same: watcher retry {job.id}",
        )
