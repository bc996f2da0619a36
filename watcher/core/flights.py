"""Batches in the air: what is told of them, and how long their processes may be silent.

Rules of this file:
- A flight is one batch in one process. Its reports count only while it is the flight of that incarnation;
  any other report is stale and is dropped by `Flights.of`.
- A flight is due when its process was silent for three times what one of a hundred such phases takes, and
  never later than a slow cold job of that size: from then on the cold path would have been quicker.
  Processes that work beside each other slow each other down: the time grows with their number. A
  resident worker that is seen to compute, to want to, or to wait for a disk is slow and does not stand still:
  it has up to four times as long.
- A one-shot is the second opinion, and is not hurried: what one picture takes says little of another (12 MP
  of noise are encoded 20 times as long as 12 MP of sky). It has what no healthy machine exceeds, and after
  a picture was blamed twice that. A suspect that takes so long leaves its lane to the next one.
- A process that outlives its kill is given up: its jobs go on without it, and its reports are stale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from watcher.core.pace import ITEM, PICKUP, TURN, ColdTime, Pace, kind_of_work, prior_s
from watcher.core.settle import NS_PER_S
from watcher.core.supervision import LISTEN_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from watcher.core.events import Origin, WorkerReady
    from watcher.core.job import Job
    from watcher.core.policy import Policy
    from watcher.core.routing import PathReason

_MAX_BUSY: Final = 3
"""Who works is waited for so much longer: it may be slow, as on a busy machine, or turn in circles."""
CPU: Final = "cpu"
"""The device that is always there."""


@dataclass(slots=True)
class Flight:
    """One batch in one process."""

    incarnation: int
    batch: str
    path: Literal["hot", "cold"]
    reason: PathReason
    jobs: dict[str, int]
    """Jobs of the batch that were not reported on yet, in order, with the bytes of their files."""
    size: int
    sent_ns: int
    progressed_ns: int
    suspect: bool = False
    """It carries one suspect, alone."""
    estimates_s: Mapping[str, float] = field(default_factory=dict)
    """Cold: what it was taken to need for each job alone, when it was dispatched."""
    device: str | None = None
    """Cold: instead of the configured one."""
    solo_faults: int = 0
    """Of its only job, before."""
    in_progress: str | None = None
    begun_ns: int = 0
    """When that job was begun."""
    phase: str = PICKUP
    """What the process is doing, and how much of it there is to do (see `pace`)."""
    units: int = 0
    format: str = ""
    """Of the picture that it does it to, as far as it was told."""
    crowd: int = 1
    """The most processes that worked beside each other since the last report."""
    ready: WorkerReady | None = None
    """Cold: the start of its own process."""
    started: bool = False
    """The process has read the batch, at `read_ns`."""
    read_ns: int = 0
    killed_ns: int | None = None
    given_up: bool = False
    first_hot_open: bool = False
    """Hot: no item of this incarnation was reported before."""
    done: bool = False
    """`BatchDone` came; a cold process is still to be reaped."""
    extra_ns: int = 0
    """The service was late to look at its deadline: so much longer is it waited for."""
    busy_ns: int = 0
    """For so long since its last report it was seen to work, or to want to: that is no standstill."""
    answer_ns: int = 0
    """The kernel was asked whether it works: so much longer is it waited for, for the answer."""

    @property
    def overstays_ns(self) -> int:
        """When it will have taken twice as long as was foreseen: from then on nobody waits for it."""
        return self.sent_ns + round(2 * NS_PER_S * sum(self.estimates_s.values()))

    @property
    def kind(self) -> str:
        """What its phase is known by to `pace`."""
        return kind_of_work(self.phase, self.format)

    @property
    def is_working(self) -> bool:
        """Its process does something, as far as is known."""
        return not self.done and not self.given_up

    def company_ns(self, job_id: str) -> int:
        """How long others were served before this job of a flight that was lost."""
        if not self.started:
            return 0
        until_ns = self.begun_ns if job_id == self.in_progress else self.progressed_ns
        return max(0, until_ns - self.read_ns)


@dataclass(slots=True)
class Flights:
    """All flights, by incarnation, and what their reports teach of times.

    Attributes:
        policy: limits and times.
        others_working: how many processes without a flight work now: a resident worker that starts.
        pace: of the work.
        cold_time: what a cold job takes.
    """

    policy: Policy
    others_working: Callable[[], int]
    pace: Pace = field(default_factory=Pace)
    cold_time: ColdTime = field(init=False)
    _flights: dict[int, Flight] = field(default_factory=dict)
    _batches: int = 0

    def __post_init__(self) -> None:
        self.cold_time = ColdTime(self.pace, self.policy.cold.first_estimate_s)

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, incarnation: int) -> Flight | None:
        """The flight of this process."""
        return self._flights.get(incarnation)

    def of(self, origin: Origin, batch: str) -> Flight | None:
        """The flight that a report belongs to, or None if the report is stale."""
        flight = self._flights.get(origin.incarnation)
        return flight if flight is not None and flight.batch == batch else None

    def begin(
        self,
        incarnation: int,
        path: Literal["hot", "cold"],
        reason: PathReason,
        jobs: tuple[Job, ...],
        now_ns: int,
    ) -> Flight:
        """Jobs are given to a process: from now on all that work are slower."""
        self._batches += 1
        alone = jobs[0] if len(jobs) == 1 else None
        flight = Flight(
            incarnation=incarnation,
            batch=f"b{self._batches}",
            path=path,
            reason=reason,
            jobs={job.id: job.files_bytes for job in jobs},
            size=len(jobs),
            sent_ns=now_ns,
            progressed_ns=now_ns,
            suspect=alone is not None and alone.needs_own_process,
            device=CPU if alone is not None and alone.cpu_only and path == "cold" else None,
            solo_faults=alone.solo_faults if alone is not None else 0,
        )
        self._flights[incarnation] = flight
        for other in self._flights.values():
            other.crowd = max(other.crowd, self.crowd)
        return flight

    def end(self, incarnation: int) -> Flight | None:
        """The flight is over, whatever became of its jobs; returns it."""
        return self._flights.pop(incarnation, None)

    # --- what their processes say --------------------------------------------------------------------------

    def is_ready(self, flight: Flight, event: WorkerReady, now_ns: int) -> None:
        """Its process, a one-shot, has warmed its model."""
        flight.ready = event
        self.progressed(flight, PICKUP, 0, now_ns)

    def was_read(self, flight: Flight, now_ns: int) -> None:
        """Its process has read the batch."""
        if flight.started:
            return
        self.spent(flight, PICKUP, (now_ns - flight.progressed_ns) / NS_PER_S)
        flight.started, flight.read_ns = True, now_ns
        self.progressed(flight, TURN, 0, now_ns)

    def began(self, flight: Flight, job_id: str, now_ns: int) -> None:
        """Its process turns to this job."""
        self.spent(flight, TURN, (now_ns - flight.progressed_ns) / NS_PER_S)
        flight.in_progress = job_id
        flight.begun_ns = now_ns
        self.progressed(flight, "read", flight.jobs.get(job_id, 0), now_ns)

    def spent(self, flight: Flight, phase: str, seconds: float) -> None:
        """The phase that it was in took so long."""
        if phase == flight.phase:
            self.pace.note(flight.kind, flight.units, seconds)

    def landed(self, flight: Flight, job_id: str, seconds: float | None, now_ns: int) -> None:
        """Its process has reported on this job; `seconds`: what its work took, if all of it was done."""
        size = flight.jobs.pop(job_id)
        if seconds is not None:
            self.pace.note(ITEM, size, seconds)
        flight.in_progress = None
        self.progressed(flight, TURN, 0, now_ns)

    def progressed(
        self, flight: Flight, phase: str, units: int, now_ns: int, picture_format: str = ""
    ) -> None:
        """Its process said something, and is in this phase now: it is waited for anew."""
        flight.phase, flight.units, flight.format = phase, units, picture_format
        flight.progressed_ns = now_ns
        flight.crowd = self.crowd
        flight.extra_ns = flight.busy_ns = flight.answer_ns = 0

    # --- how long they may be silent -----------------------------------------------------------------------

    @property
    def are_coming_back(self) -> bool:
        """A process is being killed that has jobs: they will be released when it is dead."""
        return any(
            flight.killed_ns is not None and flight.jobs and not flight.given_up
            for flight in self._flights.values()
        )

    def foreseen_ns(self, now_ns: int) -> int:
        """When the one-shots that work will have served their first picture each, as far as was foreseen.

        No later than the longest of them was taken to need from now on.
        """
        working = [flight for flight in self._flights.values() if flight.path == "cold" and flight.is_working]
        needed_ns = [round(NS_PER_S * next(iter(f.estimates_s.values()), 0.0)) for f in working]
        ends_ns = [flight.sent_ns + ns for flight, ns in zip(working, needed_ns, strict=True)]
        return min(max(ends_ns, default=now_ns), now_ns + max(needed_ns, default=0))

    @property
    def working(self) -> int:
        """How many of their processes do something, as far as is known."""
        return sum(1 for flight in self._flights.values() if flight.is_working)

    @property
    def crowd(self) -> int:
        """How many processes work beside each other."""
        return max(1, self.working + self.others_working())

    def patience_s(self, flight: Flight) -> float:
        """How long its process may be silent now."""
        if flight.path == "cold" and flight.ready is None and not flight.started:
            return self.policy.worker.start_timeout_s
        known_s = self.pace.patience_s(flight.kind, flight.units)
        if flight.path == "cold":
            longest_s = max(known_s, prior_s(flight.kind, flight.units))
            return flight.crowd * 2.0**flight.solo_faults * longest_s
        size = flight.jobs.get(flight.in_progress or "", max(flight.jobs.values(), default=0))
        slow_s = self.cold_time.slow_s(size, flight.kind, flight.units, crowd=flight.crowd)
        return min(flight.crowd * known_s, slow_s)

    def silent_until_ns(self, flight: Flight) -> int:
        """When its process will have been silent for too long."""
        patience_ns = round(self.patience_s(flight) * NS_PER_S)
        busy_ns = min(flight.busy_ns, _MAX_BUSY * patience_ns)
        return flight.progressed_ns + patience_ns + busy_ns + flight.extra_ns + flight.answer_ns

    def listen(self, flight: Flight, now_ns: int) -> None:
        """The service itself stood still: its process has a moment more to be heard."""
        flight.extra_ns += now_ns - self.silent_until_ns(flight) + LISTEN_NS

    def due_ns(self, flight: Flight) -> int | None:
        """When something is to be done about a flight; a hot one is the supervisor's until its kill."""
        if flight.given_up:
            return None
        if flight.killed_ns is not None:
            return flight.killed_ns + round(self.policy.worker.kill_s * NS_PER_S)
        return None if flight.path == "hot" else self.silent_until_ns(flight)

    def next_due_ns(self) -> int | None:
        """The instant of the next of these."""
        times = (self.due_ns(flight) for flight in self._flights.values())
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def overdue(self, now_ns: int) -> list[Flight]:
        """Those about which something is to be done now."""
        dues = ((flight, self.due_ns(flight)) for flight in self._flights.values())
        return [flight for flight, due_ns in dues if due_ns is not None and now_ns >= due_ns]
