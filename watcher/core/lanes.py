"""The two ways to a worker: who serves now, what is in flight, what the last cold job took.

Rules of this file:
- A flight is one batch in one process. Its reports count only while it is the flight of that incarnation;
  any other report is stale and is dropped by `flight_of`.
- The hot lane carries one batch at a time; the cold lane `max_parallel` processes, each until it is reaped.
- A process that outlives its kill is given up: its jobs go on without it, and its reports are stale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from watcher.core.routing import PathReason, Situation, route
from watcher.core.supervision import Supervisor, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.core.events import Origin, WorkerReady
    from watcher.core.job import Job
    from watcher.core.policy import Policy
    from watcher.core.routing import Route

_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class Flight:
    """One batch in one process."""

    incarnation: int
    batch: str
    path: Literal["hot", "cold"]
    reason: PathReason
    jobs: dict[str, None]
    """Jobs of the batch that were not reported on yet, in order."""
    size: int
    sent_ns: int
    progressed_ns: int
    in_progress: str | None = None
    ready: WorkerReady | None = None
    """Cold: the start of its own process."""
    started: bool = False
    """The process has read the batch."""
    killed_ns: int | None = None
    given_up: bool = False
    first_hot_open: bool = False
    """Hot: no item of this incarnation was reported before."""
    done: bool = False
    """`BatchDone` came; a cold process is still to be reaped."""


@dataclass(slots=True)
class Lanes:
    """Owns the supervisor, the flights and the choice between them."""

    policy: Policy
    jitter: Callable[[], float]
    supervisor: Supervisor = field(init=False)
    flights: dict[int, Flight] = field(default_factory=dict)
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
    _batches: int = 0
    _cold_seconds: float | None = None
    _served_hot: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.policy.worker, self.take_incarnation, self.jitter)

    def take_incarnation(self) -> int:
        """The next spawn number, shared by both lanes."""
        self._incarnations += 1
        return self._incarnations

    def take_batch_id(self) -> str:
        """The next batch number, as the record shows it."""
        self._batches += 1
        return f"b{self._batches}"

    @property
    def cold_estimate_s(self) -> float:
        """What a cold job takes: the last measured one, or the policy's guess."""
        return self._cold_seconds if self._cold_seconds is not None else self.policy.cold.first_estimate_s

    def measure_cold(self, seconds: float) -> None:
        """A cold job's first item took this long from its dispatch to its report."""
        self._cold_seconds = seconds

    def route(self, job: Job, now_ns: int) -> Route:
        """The path of one ready job, as things stand."""
        waited_ns = now_ns - job.clock.ready_ns if job.clock is not None else 0
        situation = Situation(
            worker=self.supervisor.state,
            fault=self.supervisor.fault,
            waited_s=waited_ns / _NS_PER_S,
            cold_estimate_s=self.cold_estimate_s,
            suspect=job.suspect,
            once=self.policy.once,
        )
        return route(situation, self.policy.cold)

    @property
    def hot_is_free(self) -> bool:
        """The resident worker waits for a batch."""
        return self.supervisor.state is WorkerState.READY

    def cold_is_free(self, now_ns: int) -> bool:
        """Another one-shot may be started."""
        running = sum(1 for f in self.flights.values() if f.path == "cold" and not f.given_up)
        return running < self.policy.cold.max_parallel and now_ns >= self.cold_blocked_until_ns

    def take_off(
        self,
        incarnation: int,
        path: Literal["hot", "cold"],
        reason: PathReason,
        jobs: tuple[Job, ...],
        now_ns: int,
    ) -> Flight:
        """Begin a flight."""
        flight = Flight(
            incarnation=incarnation,
            batch=self.take_batch_id(),
            path=path,
            reason=reason,
            jobs=dict.fromkeys(job.id for job in jobs),
            size=len(jobs),
            sent_ns=now_ns,
            progressed_ns=now_ns,
            first_hot_open=path == "hot" and incarnation not in self._served_hot,
        )
        if path == "hot":
            self._served_hot = {incarnation}
        self.flights[incarnation] = flight
        return flight

    def flight_of(self, origin: Origin, batch: str) -> Flight | None:
        """The flight that a report belongs to, or None if the report is stale."""
        flight = self.flights.get(origin.incarnation)
        return flight if flight is not None and flight.batch == batch else None

    def progressed(self, flight: Flight, now_ns: int) -> None:
        """Its process said something: whoever watches over it waits anew."""
        flight.progressed_ns = now_ns
        if flight.path == "hot":
            self.supervisor.progressed(now_ns)

    def start_segments(self, flight: Flight) -> tuple[Mapping[str, int] | None, int | None]:
        """(start segments, ready instant) of the flight's process, as far as its jobs own them."""
        if flight.path == "hot" or flight.ready is None:
            return None, None
        return flight.ready.segments_ns, flight.ready.ready_ns

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
        self.cold_blocked_until_ns = now_ns + round(wait_s * _NS_PER_S)
        return wait_s

    def next_deadline_ns(self) -> int | None:
        """The instant of the next deadline of either lane."""
        times = [
            at_ns for flight in self.flights.values() if (at_ns := self._flight_due_ns(flight)) is not None
        ]
        if self.supervisor.deadline_ns is not None:
            times.append(self.supervisor.deadline_ns)
        return min(times, default=None)

    def overdue_cold(self, now_ns: int) -> list[Flight]:
        """Cold flights whose process makes no progress."""
        return [
            flight
            for flight in self.flights.values()
            if flight.killed_ns is None and self._is_due(flight, now_ns)
        ]

    def unkillable(self, now_ns: int) -> list[Flight]:
        """Flights whose process was killed long ago and was not reaped yet."""
        return [
            flight
            for flight in self.flights.values()
            if flight.killed_ns is not None and self._is_due(flight, now_ns)
        ]

    def _is_due(self, flight: Flight, now_ns: int) -> bool:
        due_ns = self._flight_due_ns(flight)
        return due_ns is not None and now_ns >= due_ns

    def _flight_due_ns(self, flight: Flight) -> int | None:
        """When something is to be done about a flight; a hot one is the supervisor's until its kill."""
        if flight.given_up:
            return None
        if flight.killed_ns is not None:
            return flight.killed_ns + round(self.policy.worker.kill_s * _NS_PER_S)
        if flight.path == "hot":
            return None
        worker = self.policy.worker
        patience_s = worker.stall_s if flight.ready is not None else worker.start_timeout_s + worker.stall_s
        return flight.progressed_ns + round(patience_s * _NS_PER_S)
