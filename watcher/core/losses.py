"""Processes that end, or do not end: their jobs are judged and go on without them.

Rules of this file:
- `retry` says who is to blame for a loss; here it is carried out, once a flight.
- A one-shot without progress is killed here; the resident worker is the supervisor's until it is killed.
- Time in which the service itself stood still is held against nobody: it listens before it kills.
- A restart makes way for one-shots that work: two processes that load a model at the same time take twice as
  long each, and a person waits for one of them. It waits until they were foreseen to end, or have ended.
- A job takes the story of each of its losses along: who is given up is given up with evidence.
- A process that outlives its kill is given up: its jobs go on under other stage names, and what it may still
  say is stale. While the service stops they stay for the next start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from watcher.core import commands as c
from watcher.core.job import Cause
from watcher.core.retry import MAX_LOSSES, Verdict, after_loss, being_served, unblamed
from watcher.core.settle import NS_PER_S
from watcher.core.supervision import EXIT_CONFIGURATION, EXIT_USED_UP, LATE_NS, WorkerState

if TYPE_CHECKING:
    from watcher.core import events as e
    from watcher.core.drain import Drain
    from watcher.core.flights import Flight
    from watcher.core.job import Job, JsonObject, JsonValue
    from watcher.core.lanes import Lanes
    from watcher.core.ledger import Ledger
    from watcher.core.policy import RetryPolicy
    from watcher.core.returns import Returns


_ANSWER_NS: Final = 100_000_000
_OUTPUT_CHARS: Final = 4096
"""So much of what the process wrote last goes with a job."""


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
        hot = self._lanes.flights.get(supervisor.incarnation)
        if supervisor.deadline_ns is not None and now.mono_ns >= supervisor.deadline_ns:
            supervisor.make_way(self._lanes.flights.foreseen_ns(now.mono_ns))
        if supervisor.deadline_ns is not None and now.mono_ns >= supervisor.deadline_ns:
            if hot is None or supervisor.state is not WorkerState.BUSY:
                self._ledger.emit(*supervisor.deadline_passed(now.mono_ns))
            elif not self._listens_first(hot, now):
                self._examine_or_kill(hot, now)
        if hot is not None and hot.killed_ns is None and supervisor.state is WorkerState.KILLING:
            hot.killed_ns = now.mono_ns
        for flight in self._lanes.flights.overdue(now.mono_ns):
            if flight.killed_ns is not None:
                self._give_up(flight, now)
            elif not self._listens_first(flight, now):
                self._kill_cold(flight, self._silence(flight, now), now)

    def hurry_restart(self, now: e.Instant) -> None:
        """A restart that made way waits for nobody who has ended. Asked after every dispatch."""
        self._lanes.supervisor.way_clears(self._lanes.flights.foreseen_ns(now.mono_ns))

    def _listens_first(self, flight: Flight, now: e.Instant) -> bool:
        """Whether the service was late itself: what the process said meanwhile may not have been heard."""
        flights = self._lanes.flights
        late = now.mono_ns - flights.silent_until_ns(flight) > LATE_NS
        if not late or flight.extra_ns:
            return False
        flights.listen(flight, now.mono_ns)
        self._lanes.hot_is_heard()
        return True

    def _examine_or_kill(self, hot: Flight, now: e.Instant) -> None:
        """Who is slow does not stand still: the kernel is asked, once for each deadline."""
        if hot.answer_ns:
            self._stalled(hot, now)
            return
        # it comes at once, unless the process is dying
        hot.answer_ns = now.mono_ns - self._lanes.flights.silent_until_ns(hot) + _ANSWER_NS
        self._lanes.hot_is_heard()
        self._ledger.emit(c.ExamineWorker(hot.incarnation))

    def worker_examined(self, event: e.WorkerExamined, now: e.Instant) -> None:
        """The kernel has told whether the silent process works."""
        hot = self._lanes.flights.get(event.origin.incarnation)
        is_awaited = hot is not None and hot.answer_ns > 0 and hot.killed_ns is None
        if hot is None or not is_awaited or self._lanes.supervisor.state is not WorkerState.BUSY:
            return
        hot.answer_ns = 0
        silent_ns = now.mono_ns - hot.progressed_ns
        hot.busy_ns = silent_ns if event.waits_for_disk else min(event.busy_ns, silent_ns)
        if now.mono_ns + _ANSWER_NS >= self._lanes.flights.silent_until_ns(hot):
            self._stalled(hot, now)
            return
        self._ledger.log(
            "info",
            "worker.slow",
            incarnation=hot.incarnation,
            phase=hot.phase,
            busy_ms=round(event.busy_ns / 1e6, 3),
            waits_for_disk=event.waits_for_disk,
        )
        self._lanes.hot_is_heard()

    def _stalled(self, hot: Flight, now: e.Instant) -> None:
        self._ledger.emit(*self._lanes.supervisor.stalled(self._silence(hot, now), now.mono_ns))
        hot.killed_ns = now.mono_ns

    def _silence(self, flight: Flight, now: e.Instant) -> str:
        silent_s = (now.mono_ns - flight.progressed_ns) / NS_PER_S
        return f"no progress for {silent_s:.1f} s in phase {flight.phase}"

    def kill_all(self, reason: str, now: e.Instant) -> None:
        """Nothing that runs is waited for any more."""
        for flight in self._lanes.flights:
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
        # What outlives a SIGKILL hangs in the kernel (a disk, a driver), not in what a picture made it do.
        # The attempt counts: under its stage name the process may still write.
        verdicts = [Verdict(job, "release") for job in self._ledger.jobs.among(flight.jobs)]
        story = "it stood still, and could not be killed"
        self._carry_out(flight, verdicts, _loss(flight, None, story, now), now)
        flight.jobs.clear()

    # --- it has ended --------------------------------------------------------------------------------------

    def worker_exited(self, event: e.WorkerExited, now: e.Instant) -> None:
        """A process was reaped."""
        flight = self._lanes.flights.end(event.origin.incarnation)
        supervisor = self._lanes.supervisor
        current = event.origin.path == "hot" and supervisor.is_current(event.origin.incarnation)
        recycled = current and supervisor.state is WorkerState.DRAINING
        has_served = flight is not None and len(flight.jobs) < flight.size
        has_served = has_served or (current and supervisor.items_served > 0)
        used_up = event.exit_code == EXIT_USED_UP and has_served
        wanted = recycled or used_up or self._drain.is_asked_for
        self._tell_exit(event, flight, expected=wanted)
        if current:
            self._lanes.worker_ready = None
            self._lanes.trouble = event.reason if event.remedy is None else f"{event.reason}: {event.remedy}"
            self._ledger.emit(*supervisor.exited(event.exit_code, now.mono_ns))
        if flight is not None and flight.jobs:
            verdicts = self._judge(flight, event, now, wanted=wanted)
            self._carry_out(flight, verdicts, _loss(flight, event, event.story, now), now)

    def _tell_exit(self, event: e.WorkerExited, flight: Flight | None, *, expected: bool) -> None:
        calm = expected or (event.exit_code == 0 and (flight is None or not flight.jobs))
        level: c.LogLevel = "warning"
        if calm:
            level = "debug" if event.reason is None else "info"  # who wanted to end said why
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
            **_evidence_fields(event.evidence),
        )

    def _judge(self, flight: Flight, event: e.WorkerExited, now: e.Instant, *, wanted: bool) -> list[Verdict]:
        if not wanted and flight.started:
            return self._blame(flight, event.evidence)
        if not wanted and flight.path == "cold":
            self._cold_start_failed(event, now)
        return unblamed(self._ledger.jobs.among(flight.jobs))

    def _blame(self, flight: Flight, evidence: e.Evidence | None) -> list[Verdict]:
        unreported = self._ledger.jobs.among(flight.jobs)
        return after_loss(
            unreported,
            flight.in_progress,
            alone=flight.size == 1,
            is_foreign=evidence is not None and evidence.is_foreign,
            policy=self._policy,
        )

    def _cold_start_failed(self, event: e.WorkerExited, now: e.Instant) -> None:
        for_good = event.exit_code == EXIT_CONFIGURATION
        wait_s = self._lanes.cold_start_failed(now.mono_ns, for_good=for_good)
        self._ledger.log("error", "worker.cold_start_failed", story=event.story, next_try_in_s=wait_s)

    def _carry_out(self, flight: Flight, verdicts: list[Verdict], loss: JsonObject, now: e.Instant) -> None:
        served = being_served(flight.jobs, flight.in_progress) if flight.started else None
        for verdict in verdicts:
            job = _with_loss(verdict.job, loss, served=verdict.job.id == served)
            company_ns = flight.company_ns(job.id)
            if verdict.action == "release":
                self._returns.release(job, now, company_ns)
            else:
                self._quarantine(job.lost_so_far(now.mono_ns, company_ns), str(loss["reason"]), now)

    def _quarantine(self, job: Job, story: str, now: e.Instant) -> None:
        self._ledger.end(
            job,
            Cause.POISONED,
            now,
            reason=f"it ended its process {job.solo_faults} times; the last time: {story}",
            remedy=f"look at the picture; to try it again all the same: watcher retry {job.id}",
        )


def _with_loss(job: Job, loss: JsonObject, *, served: bool) -> Job:
    """The job with one more loss; the stacks are kept by the one that was being served alone."""
    told = {**loss, "serving": served}
    if not served:
        del told["output"]
    return replace(job, losses=(*job.losses, told)[-MAX_LOSSES:])


def _loss(flight: Flight, event: e.WorkerExited | None, story: str, now: e.Instant) -> JsonObject:
    """How a process ended that had jobs, as the records of these jobs tell it."""
    evidence = event.evidence if event is not None else None
    return {
        "reason": story,
        "path": flight.path,
        "incarnation": flight.incarnation,
        "alone": flight.size == 1,
        "phase": flight.phase,
        "silent_ms": round((now.mono_ns - flight.progressed_ns) / 1e6, 3),
        "exit_code": evidence.exit_code if evidence is not None else None,
        **_evidence_fields(evidence),
        "output": evidence.output[-_OUTPUT_CHARS:] if evidence is not None else "",
    }


def _evidence_fields(evidence: e.Evidence | None) -> dict[str, JsonValue]:
    return {
        "cause": evidence.cause if evidence is not None else None,
        "signal": evidence.signal if evidence is not None else None,
        "rss_bytes": evidence.rss_bytes if evidence is not None else None,
        "oom_kills": evidence.oom_kills if evidence is not None else None,
        "process_state": evidence.process_state if evidence is not None else None,
    }
