"""The two ways to a worker: who serves now, who is free, what a one-shot would cost.

Rules of this file:
- The hot lane carries one batch at a time; the cold lane `max_parallel` processes, each until it is reaped.
  Suspects have a lane of their own, one process wide: nobody waits behind what may hang. One that overstays
  leaves it to the next, so that two may run.
- A second one-shot is started only where memory for its model seems to be free.
- The supervisor's deadline of a busy worker is its flight's (`hot_is_heard`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from watcher.core.flights import Flights
from watcher.core.pace import ITEM
from watcher.core.routing import PathReason, Situation, route
from watcher.core.settle import NS_PER_S
from watcher.core.supervision import ALIVE, GETTING_READY, Supervisor, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.core.events import WorkerReady
    from watcher.core.flights import Flight
    from watcher.core.job import Job
    from watcher.core.policy import Policy
    from watcher.core.routing import Route

_SECOND_MODEL: Final = 1.25
"""So much more than a worker has used is taken to be enough for another one."""
_MAX_SUSPECTS: Final = 2
_MAX_UNKILLABLE: Final = 2
"""So many one-shots may outlive their kill: they hang in the machine's trouble, and others would too."""
_SECOND_MODEL_BYTES: Final = 268_435_456


@dataclass(slots=True)
class Lanes:
    """Owns the supervisor, the flights and the choice between them."""

    policy: Policy
    jitter: Callable[[], float]
    supervisor: Supervisor = field(init=False)
    flights: Flights = field(init=False)
    memory_bytes: int | None = None
    """What another process could take; None while unknown."""
    worker_ready: WorkerReady | None = None
    """The current resident worker's own start."""
    trouble: str | None = None
    """The last words of the resident worker that ended, and what to do; none since one was ready."""
    last_path: Literal["hot", "cold"] | None = None
    last_reason: str | None = None
    cold_start_failures: int = 0
    cold_blocked_until_ns: int = 0
    _cold_failed_for_good: bool = False
    _incarnations: int = 0
    _largest_rss_bytes: int = 0
    _last_hot: int = 0
    """The resident worker that was given a batch last."""

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.policy.worker, self.take_incarnation, self.jitter)
        self.flights = Flights(self.policy, self._starting)

    def take_incarnation(self) -> int:
        """The next spawn number, shared by both lanes."""
        self._incarnations += 1
        return self._incarnations

    def _starting(self) -> int:
        """A resident worker that has no flight and is not idle either."""
        worker = self.supervisor
        idle = worker.state not in ALIVE or worker.state is WorkerState.READY
        return 0 if idle or self.flights.get(worker.incarnation) is not None else 1

    # --- which way -----------------------------------------------------------------------------------------

    def cold_s(self, job: Job) -> float:
        """What a one-shot for this job usually takes, with all that runs beside it."""
        return self.flights.cold_time.usual_s(job.files_bytes, crowd=1 + self.flights.working)

    def route(self, job: Job, now_ns: int) -> Route:
        """The path of one ready job, as things stand."""
        waited_ns = now_ns - self.waits_since_ns(job) if job.clock is not None else 0
        has_room = self.supervisor.state is WorkerState.BUSY and self._has_room_for_another(default=False)
        situation = Situation(
            worker=self.supervisor.state,
            fault=self.supervisor.fault,
            waited_s=waited_ns / NS_PER_S,
            ready_in_s=self.supervisor.ready_in_s(self.flights.cold_time.start_s, now_ns),
            hot_wait_s=self._hot_wait_s(now_ns) if has_room else 0.0,
            cold_s=self.cold_s(job),
            memory_is_free=has_room,
            cold_works=not self.cold_is_hopeless,
            suspect=job.needs_own_process,
            once=self.policy.once,
        )
        return route(situation, self.policy.cold)

    def waits_since_ns(self, job: Job) -> int:
        """Since when it is the start of a resident worker that a job waits for: before, it stood in line."""
        ready_ns = job.clock.ready_ns if job.clock is not None else 0
        return max(ready_ns, self.supervisor.away_ns)

    def _hot_wait_s(self, now_ns: int) -> float:
        """How long the resident worker is busy yet with what it has, as far as that can be told."""
        flight = self.flights.get(self.supervisor.incarnation)
        if flight is None or not flight.jobs:
            return 0.0
        current, *others = [self.flights.pace.usual_s(ITEM, size) or 0.0 for size in flight.jobs.values()]
        since_s = (now_ns - flight.begun_ns) / NS_PER_S if flight.in_progress is not None else 0.0
        return max(0.0, current - since_s) + sum(others)

    def _has_room_for_another(self, *, default: bool) -> bool:
        """Whether the memory of one more model is free; `default` while that is unknown."""
        if self.memory_bytes is None or not self._largest_rss_bytes:
            return default
        return self.memory_bytes >= self._largest_rss_bytes * _SECOND_MODEL + _SECOND_MODEL_BYTES

    @property
    def memory_is_scarce(self) -> bool:
        """The machine has so little left that a worker that has grown should make room."""
        return self.memory_bytes is not None and self.memory_bytes < self.policy.worker.scarce_bytes

    def used_memory(self, rss_bytes: int, *, starts: bool = False) -> None:
        """A worker has told of its memory; at its start, what the one before it used is forgotten."""
        self._largest_rss_bytes = rss_bytes if starts else max(self._largest_rss_bytes, rss_bytes)

    @property
    def hot_is_free(self) -> bool:
        """The resident worker waits for a batch."""
        return self.supervisor.state is WorkerState.READY

    def cold_is_free(self, now_ns: int, *, suspect: bool = False) -> bool:
        """Another one-shot may be started: for a suspect, or for others."""
        if now_ns < self.cold_blocked_until_ns:
            return False
        cold = [flight for flight in self.flights if flight.path == "cold"]
        running = [flight for flight in cold if not flight.given_up]
        if len(cold) - len(running) >= _MAX_UNKILLABLE:
            return False
        lane = [flight for flight in running if flight.suspect is suspect]
        if suspect and len(lane) < _MAX_SUSPECTS:
            lane = [flight for flight in lane if now_ns < flight.overstays_ns]
        if len(lane) >= (1 if suspect else self.policy.cold.max_parallel):
            return False
        return not running or self._has_room_for_another(default=True)

    def next_change_ns(self, now_ns: int) -> int:
        """When, by time alone, another path may be right or free (0: never)."""
        times = [self.cold_blocked_until_ns]
        times += [flight.overstays_ns for flight in self.flights if flight.suspect]
        start_s = self.flights.cold_time.start_s
        if start_s is not None and self.supervisor.state in GETTING_READY:
            times.append(self.supervisor.overdue_ns(start_s))
        return min((at_ns for at_ns in times if at_ns > now_ns), default=0)

    # --- what is in flight ---------------------------------------------------------------------------------

    def take_off(
        self,
        incarnation: int,
        path: Literal["hot", "cold"],
        reason: PathReason,
        jobs: tuple[Job, ...],
        now_ns: int,
    ) -> Flight:
        """Begin a flight."""
        estimates_s = {job.id: self.cold_s(job) for job in jobs} if path == "cold" else {}
        flight = self.flights.begin(incarnation, path, reason, jobs, now_ns)
        flight.estimates_s = estimates_s
        if path == "hot":
            flight.first_hot_open = incarnation != self._last_hot
            self._last_hot = incarnation
        else:  # the resident worker is slower from now on
            self.hot_is_heard()
        return flight

    def hot_is_heard(self) -> None:
        """The resident worker has said something, or has longer for another reason."""
        flight = self.flights.get(self.supervisor.incarnation)
        if flight is not None:
            self.supervisor.put_off(self.flights.silent_until_ns(flight))

    def start_segments(self, flight: Flight) -> tuple[Mapping[str, int] | None, int | None]:
        """(start segments, ready instant) of the flight's process, as far as its jobs own them.

        What lies between their dispatch and the process's own first instant, the commit of the attempts and
        the call that starts it, belongs to its start too. What the process itself leaves `unattributed` does
        not: that stays so.
        """
        if flight.path == "hot" or flight.ready is None:
            return None, None
        told_ns, ready_ns = flight.ready.segments_ns, flight.ready.ready_ns
        untold_ns = max(0, ready_ns - flight.sent_ns - sum(told_ns.values()))
        return {**told_ns, "process_start": told_ns.get("process_start", 0) + untold_ns}, ready_ns

    @property
    def cold_is_hopeless(self) -> bool:
        """One-shots cannot start: for good, as the last one said, or time after time."""
        return self._cold_failed_for_good or self.cold_start_failures >= self.policy.worker.breaker_crashes

    def cold_started(self) -> None:
        """A one-shot has read its batch: its kind can start."""
        self.cold_start_failures = 0
        self._cold_failed_for_good = False

    def cold_start_failed(self, now_ns: int, *, for_good: bool) -> float:
        """A one-shot died before it was ready: wait before the next. Returns the wait in seconds."""
        self.cold_start_failures += 1
        self._cold_failed_for_good = for_good
        ceiling_s = self.policy.worker.backoff_max_s
        wait_s: float = min(
            ceiling_s, self.policy.worker.backoff_first_s * 2 ** min(self.cold_start_failures, 30)
        )
        if for_good:
            wait_s = ceiling_s
        self.cold_blocked_until_ns = now_ns + round(wait_s * NS_PER_S)
        return wait_s

    def next_deadline_ns(self) -> int | None:
        """The instant of the next deadline of either lane."""
        times = (self.flights.next_due_ns(), self.supervisor.deadline_ns)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)
