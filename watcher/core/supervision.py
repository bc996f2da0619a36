"""The resident worker's life.

Rules of this file:
- `TRANSITIONS` is the whole truth; a report that it does not know in a state is ignored there by name (`-`),
  not by accident.
- A state is left on a report, never on a request: `KillWorker` does not mean dead, `WorkerExited` does.
- A report of another incarnation than the current one is stale and never gets here (see `is_current`).
- Each state but `stopped`, `ready` and `disabled` has a deadline, so the machine cannot stand still.
- A process that outlives its kill is killed again, ever more rarely; nobody starts another beside it.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from watcher.core.commands import Command, DrainWorker, KillWorker, Log, StartWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.core.policy import WorkerPolicy

_NS_PER_S: Final = 1_000_000_000
EXIT_CONFIGURATION: Final = 78
"""Exit code of a worker whose configuration cannot work: starting it again would change nothing."""


class WorkerState(StrEnum):
    """Where the resident worker is."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    KILLING = "killing"
    BACKOFF = "backoff"
    OPEN = "open"
    HALF_OPEN = "half_open"
    DISABLED = "disabled"


class Report(StrEnum):
    """What can happen to the worker, as the machine sees it."""

    WANTED = "wanted"
    BECAME_READY = "became_ready"
    BATCH_GIVEN = "batch_given"
    BATCH_ENDED = "batch_ended"
    DRAIN_BEGUN = "drain_begun"
    DEADLINE_PASSED = "deadline_passed"
    EXITED = "exited"
    EXITED_TOO_OFTEN = "exited_too_often"
    EXITED_FOR_GOOD = "exited_for_good"
    EXITED_UNWANTED = "exited_unwanted"
    """It ended after the service had stopped wanting one."""


_S = WorkerState
_R = Report

TRANSITIONS: Final[Mapping[WorkerState, Mapping[Report, WorkerState]]] = {
    _S.STOPPED: {
        _R.WANTED: _S.STARTING,
    },
    _S.STARTING: {
        _R.BECAME_READY: _S.READY,
        _R.DRAIN_BEGUN: _S.KILLING,  # it has no work that could be finished
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.READY: {
        _R.BATCH_GIVEN: _S.BUSY,
        _R.DRAIN_BEGUN: _S.DRAINING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.BUSY: {
        _R.BATCH_ENDED: _S.READY,
        _R.DRAIN_BEGUN: _S.DRAINING,
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.DRAINING: {
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.STOPPED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.KILLING: {
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.BACKOFF: {
        _R.DRAIN_BEGUN: _S.STOPPED,
        _R.DEADLINE_PASSED: _S.STARTING,
    },
    _S.OPEN: {
        _R.DRAIN_BEGUN: _S.STOPPED,
        _R.DEADLINE_PASSED: _S.HALF_OPEN,
    },
    _S.HALF_OPEN: {
        _R.BECAME_READY: _S.READY,
        _R.DRAIN_BEGUN: _S.KILLING,  # it has no work that could be finished
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.OPEN,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.DISABLED: {},
}

ALIVE: Final = frozenset({_S.STARTING, _S.READY, _S.BUSY, _S.DRAINING, _S.KILLING, _S.HALF_OPEN})
"""States in which a process exists."""


class Supervisor:
    """Keeps one resident worker alive: starts, watches, kills, backs off, opens the breaker.

    Args:
        policy: limits and times.
        take_incarnation: returns the next spawn number, shared with the cold path.
        jitter: returns a number in [0, 1); full jitter on the backoff.
    """

    def __init__(
        self, policy: WorkerPolicy, take_incarnation: Callable[[], int], jitter: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._take_incarnation = take_incarnation
        self._jitter = jitter
        self.state = WorkerState.STOPPED
        self.incarnation = 0
        self.fault: Literal["crashed", "stalled"] | None = None
        """What ended the last incarnation, or what it is being killed for, until a worker is ready again."""
        self.deadline_ns: int | None = None
        self.items_served = 0
        self.restarts = 0
        """Ends of a worker that nobody wanted."""
        self._kill_reason = ""
        self._kills = 0
        self._crashes_in_a_row = 0
        self._crashed_ns: deque[int] = deque()
        self._openings = 0
        self._ready_ns = 0
        self._wanted = False

    def is_current(self, incarnation: int) -> bool:
        """True if a report with this number is about the process that lives now."""
        return incarnation == self.incarnation and self.state in ALIVE

    def want(self, now_ns: int) -> list[Command]:
        """The service wants a worker from now on."""
        self._wanted = True
        if self.state is WorkerState.STOPPED:
            return self._start(Report.WANTED, now_ns)
        return []

    def became_ready(self, now_ns: int) -> list[Command]:
        """The current worker says that its model is warm."""
        if self._move(Report.BECAME_READY):
            self.fault = None
            self._ready_ns = now_ns
            self.items_served = 0
            self.deadline_ns = None
        return []

    def batch_given(self, now_ns: int) -> list[Command]:
        """A batch was sent to it."""
        if self._move(Report.BATCH_GIVEN):
            self.deadline_ns = now_ns + round(self._policy.stall_s * _NS_PER_S)
        return []

    def progressed(self, now_ns: int) -> None:
        """It has finished a phase: the stall deadline starts over."""
        if self.state is WorkerState.BUSY:
            self.deadline_ns = now_ns + round(self._policy.stall_s * _NS_PER_S)

    def batch_ended(self, items: int, rss_bytes: int, now_ns: int) -> list[Command]:
        """It has reported every item of its batch; between batches it may be recycled."""
        self.items_served += items
        if self._move(Report.BATCH_ENDED):
            self.deadline_ns = None
            if now_ns - self._ready_ns >= self._policy.healthy_s * _NS_PER_S:
                self._crashes_in_a_row = 0
                self._openings = 0
            reason = self._recycle_reason(rss_bytes)
            if reason:
                return [
                    Log("info", "worker.recycling", {"incarnation": self.incarnation, "reason": reason}),
                    *self._drain(now_ns),
                ]
        return []

    def drain(self, now_ns: int) -> list[Command]:
        """The service stops: let it finish, start no other."""
        self._wanted = False
        return self._drain(now_ns)

    def kill(self, reason: str, now_ns: int) -> list[Command]:
        """End it without waiting; used when a drain took too long."""
        return self._kill(reason, now_ns)

    def exited(self, exit_code: int, now_ns: int) -> list[Command]:
        """The current process is gone and reaped."""
        was = self.state
        if not self._wanted:
            self._move(Report.EXITED_UNWANTED)
            self.deadline_ns = None
            return []
        if was is WorkerState.DRAINING:  # recycled: its successor is not a restart after a fault
            self._move(Report.EXITED)
            return self._start(Report.WANTED, now_ns)
        if was is not WorkerState.KILLING:  # else it was told when the kill was decided
            self.fault = "crashed"
        self._crashes_in_a_row += 1
        self.restarts += 1
        if exit_code == EXIT_CONFIGURATION:
            self._move(Report.EXITED_FOR_GOOD)
            self.deadline_ns = None
            return [
                Log("error", "worker.disabled", {"incarnation": self.incarnation, "exit_code": exit_code})
            ]
        return self._after_crash(was, now_ns)

    def deadline_passed(self, now_ns: int) -> list[Command]:
        """The instant `deadline_ns` has come."""
        match self.state:
            case WorkerState.STARTING | WorkerState.HALF_OPEN:
                return self._kill_stalled(f"not ready after {self._policy.start_timeout_s:g} s", now_ns)
            case WorkerState.BUSY:
                return self._kill_stalled(f"no progress for {self._policy.stall_s:g} s", now_ns)
            case WorkerState.DRAINING:
                return self._kill_stalled(f"did not end within {self._policy.drain_s:g} s", now_ns)
            case WorkerState.KILLING:
                return self._kill(self._kill_reason, now_ns)
            case WorkerState.BACKOFF | WorkerState.OPEN:
                return self._start(Report.DEADLINE_PASSED, now_ns)
            case _:
                self.deadline_ns = None
                return []

    # --- details ---

    def _move(self, report: Report) -> bool:
        target = TRANSITIONS[self.state].get(report)
        if target is None:
            return False
        self.state = target
        return True

    def _start(self, report: Report, now_ns: int) -> list[Command]:
        if not self._move(report):
            return []
        self.incarnation = self._take_incarnation()
        self.deadline_ns = now_ns + round(self._policy.start_timeout_s * _NS_PER_S)
        return [StartWorker(self.incarnation)]

    def _drain(self, now_ns: int) -> list[Command]:
        alive = self.state in ALIVE
        if not self._move(Report.DRAIN_BEGUN):
            return []
        if not alive:
            self.deadline_ns = None
            return []
        if self.state is WorkerState.KILLING:
            self._kill_reason = "the service stops before it was ready"
            self.deadline_ns = now_ns + round(self._policy.kill_s * _NS_PER_S)
            return [KillWorker(self.incarnation, self._kill_reason)]
        self.deadline_ns = now_ns + round(self._policy.drain_s * _NS_PER_S)
        return [DrainWorker(self.incarnation)]

    def _kill_stalled(self, reason: str, now_ns: int) -> list[Command]:
        self.fault = "stalled"
        return self._kill(reason, now_ns)

    def _kill(self, reason: str, now_ns: int) -> list[Command]:
        again = self.state is WorkerState.KILLING
        if not self._move(Report.DEADLINE_PASSED) or self.state is not WorkerState.KILLING:
            return []
        self._kill_reason = reason
        self._kills = self._kills + 1 if again else 1
        patience_s = self._policy.kill_s * 2 ** min(self._kills - 1, 30)
        ceiling_s = max(self._policy.kill_s, self._policy.backoff_max_s)
        self.deadline_ns = now_ns + round(min(patience_s, ceiling_s) * _NS_PER_S)
        level: Literal["error", "warning"] = "error" if again else "warning"
        return [
            Log(level, "worker.killed", {"incarnation": self.incarnation, "reason": reason, "again": again}),
            KillWorker(self.incarnation, reason),
        ]

    def _after_crash(self, was: WorkerState, now_ns: int) -> list[Command]:
        window_ns = round(self._policy.breaker_window_s * _NS_PER_S)
        self._crashed_ns.append(now_ns)
        while self._crashed_ns and self._crashed_ns[0] < now_ns - window_ns:
            self._crashed_ns.popleft()
        too_often = len(self._crashed_ns) >= self._policy.breaker_crashes
        if too_often or was is WorkerState.HALF_OPEN:
            return self._open_breaker(now_ns)
        self._move(Report.EXITED)
        ceiling_s = min(
            self._policy.backoff_max_s,
            self._policy.backoff_first_s * 2 ** min(self._crashes_in_a_row - 1, 30),
        )
        wait_s = ceiling_s * self._jitter()
        self.deadline_ns = now_ns + round(wait_s * _NS_PER_S)
        return [Log("warning", "worker.restarting", {"in_s": round(wait_s, 3), "fault": self.fault})]

    def _open_breaker(self, now_ns: int) -> list[Command]:
        self._move(Report.EXITED_TOO_OFTEN)
        wait_s = min(
            self._policy.breaker_open_max_s, self._policy.breaker_open_s * 2 ** min(self._openings, 30)
        )
        self._openings += 1
        self.deadline_ns = now_ns + round(wait_s * _NS_PER_S)
        return [
            Log("error", "worker.breaker_opened", {"crashes": len(self._crashed_ns), "next_try_in_s": wait_s})
        ]

    def _recycle_reason(self, rss_bytes: int) -> str | None:
        items, rss = self._policy.recycle_items, self._policy.recycle_rss_bytes
        if items is not None and self.items_served >= items:
            return f"served {self.items_served} items"
        if rss is not None and rss_bytes > rss:
            return f"uses {rss_bytes // 1_000_000} MB"
        return None
