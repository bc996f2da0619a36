"""The resident worker's life.

Rules of this file:
- `TRANSITIONS` is the whole truth; a report that it does not know in a state is ignored there by name (`-`),
  not by accident.
- A state is left on a report, never on a request: `KillWorker` does not mean dead, `WorkerExited` does.
- A report of another incarnation than the current one is stale and never gets here (see `is_current`).
- Each state but `stopped` and `disabled` has a deadline, so the machine cannot stand still. Only that of
  `busy` is set from outside: how long a picture's phase may take depends on its size (see `lanes`).
- Only the working thread's own words count as life: its progress while busy, its answers to pings while idle.
- A worker that is recycled, or asks for it (exit 75) after it served something, has not crashed. What it says
  of its configuration (exit 78) is believed only of one that never was ready.
- A process that outlives its kill is killed again, ever more rarely; nobody starts another beside it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from watcher.core.commands import Command, DrainWorker, KillWorker, Log, PingWorker, StartWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.core.policy import WorkerPolicy

_NS_PER_S: Final = 1_000_000_000
_OVERDUE_FACTOR: Final = 2.0
"""A start that takes so much longer than usual may take any time."""
_LEAST_SPREAD: Final = 0.8
"""Limits of items and age are spread by a fifth either way: services that started together recycle apart."""
LATE_NS: Final = 500_000_000
"""Who looks at a deadline so long after it has stood still."""
LISTEN_NS: Final = 500_000_000
"""So long it listens then before it judges."""
EXIT_USED_UP: Final = 75
"""Exit code of a worker that wants a fresh process in its place."""
EXIT_CONFIGURATION: Final = 78
"""Exit code of a worker whose configuration cannot work: starting it again would change nothing."""


class WorkerState(StrEnum):
    """Where the resident worker is."""

    STOPPED = "stopped"
    STARTING = "starting"
    """The process starts, imports and loads its model."""
    WARMING = "warming"
    """The model is loaded: warm-up and golden self-test."""
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    KILLING = "killing"
    BACKOFF = "backoff"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One process may try: it closes the breaker by its self-test, never by a user's picture."""
    DISABLED = "disabled"


class Report(StrEnum):
    """What can happen to the worker, as the machine sees it."""

    WANTED = "wanted"
    LOADED = "loaded"
    BECAME_READY = "became_ready"
    PING_DUE = "ping_due"
    BATCH_GIVEN = "batch_given"
    BATCH_ENDED = "batch_ended"
    DRAIN_BEGUN = "drain_begun"
    DEADLINE_PASSED = "deadline_passed"
    EXITED = "exited"
    EXITED_TOO_OFTEN = "exited_too_often"
    EXITED_USED_UP = "exited_used_up"
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
        _R.LOADED: _S.WARMING,
        _R.BECAME_READY: _S.READY,
        _R.DRAIN_BEGUN: _S.KILLING,  # it has no work that could be finished
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.WARMING: {
        _R.BECAME_READY: _S.READY,
        _R.DRAIN_BEGUN: _S.KILLING,  # as above
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.READY: {
        _R.BATCH_GIVEN: _S.BUSY,
        _R.PING_DUE: _S.READY,
        _R.DRAIN_BEGUN: _S.DRAINING,
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_USED_UP: _S.STOPPED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.BUSY: {
        _R.BATCH_ENDED: _S.READY,
        _R.DRAIN_BEGUN: _S.DRAINING,
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_USED_UP: _S.STOPPED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.DRAINING: {
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED_USED_UP: _S.STOPPED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.KILLING: {
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED: _S.BACKOFF,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
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
        _R.LOADED: _S.HALF_OPEN,
        _R.BECAME_READY: _S.READY,
        _R.DRAIN_BEGUN: _S.KILLING,  # it has no work that could be finished
        _R.DEADLINE_PASSED: _S.KILLING,
        _R.EXITED_TOO_OFTEN: _S.OPEN,
        _R.EXITED_FOR_GOOD: _S.DISABLED,
        _R.EXITED_UNWANTED: _S.STOPPED,
    },
    _S.DISABLED: {},
}

ALIVE: Final = frozenset({_S.STARTING, _S.WARMING, _S.READY, _S.BUSY, _S.DRAINING, _S.KILLING, _S.HALF_OPEN})
"""States in which a process exists."""
GETTING_READY: Final = frozenset({_S.STARTING, _S.WARMING, _S.HALF_OPEN})
"""States in which a process exists that was never ready."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the worker says of itself between batches.

    Attributes:
        rss_bytes: its memory.
        open_files: its descriptors, or None where unknown.
    """

    rss_bytes: int = 0
    open_files: int | None = None


class Supervisor:
    """Keeps one resident worker alive: starts, watches, kills, backs off, opens the breaker.

    Args:
        policy: limits and times.
        take_incarnation: returns the next spawn number, shared with the cold path.
        jitter: returns a number in [0, 1); full jitter on the backoff, a spread on recycling.
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
        self.started_ns = 0
        """When the current process was started, or the last one."""
        self.away_ns = 0
        """Since when it is waited for, if it is: since it was first wanted, or was to be replaced."""
        self.items_served = 0
        self.restarts = 0
        """Ends of a worker that nobody wanted."""
        self._kill_reason = ""
        self._kills = 0
        self._crashes_in_a_row = 0
        self._crashed_ns: deque[int] = deque()
        self._openings = 0
        self._ready_ns = 0
        self._good_batches = 0
        self._baseline = Usage()
        self._spread = 1.0
        self._pings = 0
        self._ping_open = False
        self._on_trial = False
        """The breaker is half open, also while the process that tries is being killed."""
        self._made_way = False
        """This pause was made longer once, for others."""
        self._listened = False
        """The service was late to look at this deadline, and has waited a moment more."""
        self._wanted = False

    # --- reports -------------------------------------------------------------------------------------------

    def is_current(self, incarnation: int) -> bool:
        """True if a report with this number is about the process that lives now."""
        return incarnation == self.incarnation and self.state in ALIVE

    def want(self, now_ns: int) -> list[Command]:
        """The service wants a worker from now on."""
        self._wanted = True
        if self.state is WorkerState.STOPPED:
            self.away_ns = now_ns
            return self._start(Report.WANTED, now_ns)
        return []

    def loaded(self) -> None:
        """The current worker has loaded its model; the deadline of its start stays."""
        self._move(Report.LOADED)

    def became_ready(self, usage: Usage, now_ns: int) -> list[Command]:
        """The current worker says that its model is warm and has passed its self-test."""
        if self._move(Report.BECAME_READY):
            self.fault = None
            self._on_trial = False
            self._ready_ns = now_ns
            self._baseline = usage
            self._spread = _LEAST_SPREAD + 2 * (1 - _LEAST_SPREAD) * self._jitter()
            self._expect_idle(now_ns)
        return []

    def batch_given(self, due_ns: int) -> list[Command]:
        """A batch was sent to it; by `due_ns` it must have said something."""
        if self._move(Report.BATCH_GIVEN):
            self.deadline_ns = due_ns
        return []

    def make_way(self, until_ns: int) -> None:
        """Others work who would be slowed down by a start: it waits for them, once after each end."""
        if self.state is WorkerState.BACKOFF and self.deadline_ns is not None and not self._made_way:
            self._made_way = True
            self.deadline_ns = max(self.deadline_ns, until_ns)

    def way_clears(self, at_ns: int) -> None:
        """Those for whom this start made way are done at `at_ns`, maybe sooner than it was foreseen."""
        if self.state is WorkerState.BACKOFF and self.deadline_ns is not None and self._made_way:
            self.deadline_ns = min(self.deadline_ns, at_ns)

    def put_off(self, due_ns: int) -> None:
        """It has said something about its batch: now it has until `due_ns`."""
        if self.state is WorkerState.BUSY:
            self.deadline_ns = due_ns

    def ponged(self, number: int, now_ns: int) -> None:
        """Its working thread has answered a ping."""
        if self.state is WorkerState.READY and number == self._pings:
            self._expect_idle(now_ns)

    def item_ended(self) -> None:
        """It has reported on a picture."""
        self.items_served += 1

    def stalled(self, reason: str, now_ns: int) -> list[Command]:
        """It was silent for too long about its batch."""
        return self._kill_stalled(reason, now_ns)

    def batch_ended(self, usage: Usage, now_ns: int, *, scarce: bool = False) -> list[Command]:
        """It has ended its batch; between batches it may be recycled.

        Args:
            usage: what it uses now.
            now_ns: of the report.
            scarce: the machine has little memory left.
        """
        if not self._move(Report.BATCH_ENDED):
            return []
        self._good_batches += 1
        self._forgive_if_healthy(now_ns)
        self._expect_idle(now_ns)
        return self._recycle(self._used_up(usage, scarce=scarce) or self._too_old(now_ns), now_ns)

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
        self.deadline_ns = None
        if not self._wanted:
            self._move(Report.EXITED_UNWANTED)
            return []
        self._forgive_if_healthy(now_ns)
        asked_for_it = exit_code == EXIT_USED_UP and self.items_served > 0 and was is not WorkerState.KILLING
        if was is WorkerState.DRAINING or asked_for_it:  # its successor is not a restart after a fault
            if was is not WorkerState.DRAINING:
                self.away_ns = now_ns
            self._move(Report.EXITED_USED_UP)
            return self._start(Report.WANTED, now_ns)
        if was is not WorkerState.KILLING:  # else it was told when the kill was decided
            self.fault = "crashed"
        self.restarts += 1
        if exit_code == EXIT_CONFIGURATION and was in GETTING_READY:
            self._move(Report.EXITED_FOR_GOOD)
            return [
                Log("error", "worker.disabled", {"incarnation": self.incarnation, "exit_code": exit_code})
            ]
        return self._after_crash(now_ns)

    def deadline_passed(self, now_ns: int) -> list[Command]:  # noqa: PLR0911 - one flat table of states
        """The instant `deadline_ns` has come.

        Who looks at it late has stood still itself: what the worker said meanwhile is to be heard before it
        is killed.
        """
        if self._is_late_to_look(now_ns):
            self._listened = True
            self.deadline_ns = now_ns + LISTEN_NS
            return []
        match self.state:
            case WorkerState.STARTING | WorkerState.WARMING | WorkerState.HALF_OPEN:
                return self._kill_stalled(f"not ready after {self._policy.start_timeout_s:g} s", now_ns)
            case WorkerState.READY if self._ping_open:
                return self._kill_stalled(f"idle, and no answer for {self._policy.pong_s:g} s", now_ns)
            case WorkerState.READY:
                return self._recycle(self._too_old(now_ns), now_ns) or self._ping(now_ns)
            case WorkerState.BUSY:
                return self._kill_stalled("no progress", now_ns)
            case WorkerState.DRAINING:
                return self._kill_stalled(f"did not end within {self._policy.drain_s:g} s", now_ns)
            case WorkerState.KILLING:
                return self._kill(self._kill_reason, now_ns)
            case WorkerState.BACKOFF | WorkerState.OPEN:
                return self._start(Report.DEADLINE_PASSED, now_ns)
            case _:
                self.deadline_ns = None
                return []

    def ready_in_s(self, start_s: float | None, now_ns: int) -> float:
        """How long it will take until a worker can serve, as far as anybody knows; inf if nobody does.

        Args:
            start_s: what a start usually takes, if that was ever measured.
            now_ns: of the question.
        """
        if start_s is None:
            return 0.0 if self.state in {_S.STOPPED, _S.DRAINING, *GETTING_READY} else inf
        match self.state:
            case _S.READY | _S.BUSY:
                return 0.0
            case _S.STARTING | _S.WARMING:
                since_s = (now_ns - self.started_ns) / _NS_PER_S
                return max(0.0, start_s - since_s) if now_ns < self.overdue_ns(start_s) else inf
            case _S.STOPPED | _S.DRAINING:
                return start_s
            case _:
                return inf

    def overdue_ns(self, start_s: float) -> int:
        """When the start that runs takes so long that nobody knows any more when it will end."""
        return self.started_ns + round(_OVERDUE_FACTOR * start_s * _NS_PER_S) + 1

    # --- details -------------------------------------------------------------------------------------------

    def _is_late_to_look(self, now_ns: int) -> bool:
        waits_for_word = self._ping_open or self.state is not WorkerState.READY
        if self._listened or self.deadline_ns is None or self.state not in ALIVE or not waits_for_word:
            return False
        return self.state is not WorkerState.KILLING and now_ns - self.deadline_ns > LATE_NS

    def _move(self, report: Report) -> bool:
        target = TRANSITIONS[self.state].get(report)
        if target is None:
            return False
        self._listened = self._made_way = False
        self.state = target
        return True

    def _start(self, report: Report, now_ns: int) -> list[Command]:
        if not self._move(report):
            return []
        self._on_trial = self.state is WorkerState.HALF_OPEN
        self.items_served = self._good_batches = 0
        self.incarnation = self._take_incarnation()
        self.started_ns = now_ns
        self.deadline_ns = now_ns + round(self._policy.start_timeout_s * _NS_PER_S)
        return [StartWorker(self.incarnation)]

    def _expect_idle(self, now_ns: int) -> None:
        self._ping_open = False
        self.deadline_ns = now_ns + round(self._policy.ping_s * _NS_PER_S)

    def _ping(self, now_ns: int) -> list[Command]:
        self._move(Report.PING_DUE)
        self._ping_open = True
        self._pings += 1
        self.deadline_ns = now_ns + round(self._policy.pong_s * _NS_PER_S)
        return [PingWorker(self.incarnation, self._pings)]

    def _drain(self, now_ns: int) -> list[Command]:
        alive = self.state in ALIVE
        if not self._move(Report.DRAIN_BEGUN):
            return []
        if not alive:
            self.deadline_ns = None
            return []
        if self.state is WorkerState.KILLING:
            self._kill_reason = "the service stops before it was ready"
            self._kills = 1
            self.deadline_ns = now_ns + round(self._policy.kill_s * _NS_PER_S)
            return [KillWorker(self.incarnation, self._kill_reason)]
        self.deadline_ns = now_ns + round(self._policy.drain_s * _NS_PER_S)
        return [DrainWorker(self.incarnation)]

    def _kill_stalled(self, reason: str, now_ns: int) -> list[Command]:
        self.fault = "stalled"
        return self._kill(reason, now_ns)

    def _kill(self, reason: str, now_ns: int) -> list[Command]:
        again = self.state is WorkerState.KILLING
        if self.state not in ALIVE or not self._move(Report.DEADLINE_PASSED):
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

    def _forgive_if_healthy(self, now_ns: int) -> None:
        """Long ready, and one good batch: the backoff and the breaker start over."""
        healthy_ns = round(self._policy.healthy_s * _NS_PER_S)
        if self._good_batches and now_ns - self._ready_ns >= healthy_ns:
            self._crashes_in_a_row = 0
            self._openings = 0

    def _after_crash(self, now_ns: int) -> list[Command]:
        self._crashes_in_a_row += 1
        window_ns = round(self._policy.breaker_window_s * _NS_PER_S)
        self._crashed_ns.append(now_ns)
        while self._crashed_ns and self._crashed_ns[0] < now_ns - window_ns:
            self._crashed_ns.popleft()
        too_often = len(self._crashed_ns) >= self._policy.breaker_crashes
        if too_often or self._on_trial:
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

    # --- recycling -----------------------------------------------------------------------------------------

    def _recycle(self, reason: str | None, now_ns: int) -> list[Command]:
        if reason is None:
            return []
        self.away_ns = now_ns
        return [
            Log("info", "worker.recycling", {"incarnation": self.incarnation, "reason": reason}),
            *self._drain(now_ns),
        ]

    def _used_up(self, usage: Usage, *, scarce: bool) -> str | None:
        items, growth_bytes = self._policy.recycle_items, self._policy.recycle_growth_bytes
        if items is not None and self.items_served >= items * self._spread:
            return f"served {self.items_served} items"
        grown_bytes = usage.rss_bytes - self._baseline.rss_bytes
        if growth_bytes is not None and grown_bytes > growth_bytes:
            return f"has grown by {grown_bytes // 1_000_000} MB"
        if scarce and grown_bytes > self._policy.scarce_bytes // 2:
            return f"has grown by {grown_bytes // 1_000_000} MB, and memory is scarce"
        if usage.open_files is not None and self._baseline.open_files is not None:
            more = usage.open_files - self._baseline.open_files
            if more > self._policy.recycle_files:
                return f"holds {more} more files open than at first"
        return None

    def _too_old(self, now_ns: int) -> str | None:
        age_s = self._policy.recycle_age_s
        lived_s = (now_ns - self._ready_ns) / _NS_PER_S
        return f"is {lived_s:.0f} s old" if age_s is not None and lived_s >= age_s * self._spread else None
