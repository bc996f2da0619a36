"""It always answers: how long a picture waits when the process that serves it dies or stands still.

Processes take their time here, and run beside each other: a small simulation drives the fake world. One fault
befalls each picture on the hot path; the cold path is healthy. What is promised (docs/adr/0013): from
its dispatch on, queueing and the company of its batch apart, no picture waits longer than twice the cold time
of a picture of its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.conversation import NS, Process, World
from watcher.core.policy import BatchPolicy, Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S: Final = 2.1
PIXELS_PER_BYTE: Final = 10_000
SHARES: Final = {
    "read": 0.02,
    "decode": 0.08,
    "mask": 0.05,
    "preprocess": 0.05,
    "inference": 0.6,
    "composite": 0.05,
    "encode": 0.15,
}
"""Of the time that a picture's work takes."""
CROPS: Final = 4
KILL_S: Final = 0.2
"""What a kill, a death and a dispatch take in all."""
NOT_ITS_WAIT: Final = ("backlog", "settle", "identify", "pair", "queue", "batch_wait", "publish")


@dataclass(slots=True)
class Fault:
    """What befalls a picture's process on the hot path, when this phase (or crop) begins."""

    kind: Literal["none", "dies", "hangs"]
    step: int = 0


@dataclass(slots=True)
class Simulation:
    """The world, with processes that take their time.

    Attributes:
        world: it.
        faults: by source.
        work_s: how long a picture's work takes, by source, alone on the machine.
        start_factor: so much longer than usual a resident worker takes to start after the first one.
    """

    world: World
    faults: dict[str, Fault]
    work_s: dict[str, float]
    start_factor: float = 1.0
    lives: dict[int, Iterator[float]] = field(default_factory=dict)
    due_ns: dict[int, float] = field(default_factory=dict)
    crowd: int = 1
    """The most that ever worked beside each other."""

    def run(self, until: int) -> None:
        """Go on until so many jobs are done."""
        world = self.world
        for _ in range(20_000):
            if world.states().count("done") >= until:
                return
            self._meet()
            wake_ns = world.pipeline.next_wakeup_ns()
            next_id = min(self.due_ns, key=lambda number: self.due_ns[number], default=None)
            next_ns = inf if next_id is None else self.due_ns[next_id]
            if wake_ns is not None and wake_ns <= next_ns:
                world.now_ns = max(world.now_ns, wake_ns)
                world.wake()
            elif next_id is not None and next_ns < inf:
                world.now_ns = max(world.now_ns, round(next_ns))
                self._go_on(next_id)
            else:
                break
        raise AssertionError(f"they are not all served: {world.states()}")

    def _meet(self) -> None:
        """New processes begin to live, dead ones are forgotten, idle ones see that they have a batch."""
        alive = {process.incarnation: process for process in self.world.processes if process.alive}
        for number in tuple(self.lives):
            if number not in alive:
                del self.lives[number], self.due_ns[number]
        for number, process in alive.items():
            if number not in self.lives:
                self.lives[number] = self._live(process)
                self._go_on(number)
            elif self.due_ns[number] == inf and process.batch is not None and not process.stuck:
                self.due_ns[number] = self.world.now_ns
        self.crowd = max(self.crowd, self._working)

    @property
    def _working(self) -> int:
        return sum(
            1 for process in self.world.processes if process.alive and (process.batch or not process.is_ready)
        )

    def _go_on(self, number: int) -> None:
        pause_s = next(self.lives[number], inf)
        self.due_ns[number] = self.world.now_ns + pause_s * NS

    def _live(self, process: Process) -> Iterator[float]:
        slow = self.start_factor if process.path == "hot" and process.incarnation > 1 else 1.0
        yield 0.7 * START_S * slow * max(1, self._working)
        process.warm()
        yield 0.3 * START_S * slow * max(1, self._working)
        process.ready()
        while process.alive:
            while process.batch is None:
                yield inf
            yield from self._serve_batch(process)

    def _serve_batch(self, process: Process) -> Iterator[float]:
        process.read_batch()
        yield 0.001
        while process.unreported:
            item = process.begin()
            source = item.job.source
            fault = self.faults[source] if process.path == "hot" else Fault("none")
            for number, (over, begins, share) in enumerate(_steps()):
                if fault.kind != "none" and fault.step == number:
                    self.faults[source] = Fault("none")  # one fault befalls it
                    yield 0.001
                    if fault.kind == "dies":
                        process.crash()
                    process.stuck = True
                    yield inf
                yield share * self.work_s[source] * max(1, self._working)
                if begins is not None:
                    process.progress(item, over, begins, item.job.files_bytes * PIXELS_PER_BYTE)
            process.done(item)
            yield 0.001
        process.batch_done()

    def waited_s(self, source: str) -> float:
        """From its first dispatch to its result, the waits that are nobody's fault apart."""
        line = self.world.line(source)
        segments = line["segments_ms"]
        waited_ms: float = line["total_ms"] - sum(segments[name] for name in NOT_ITS_WAIT)
        return waited_ms / 1000


def _steps() -> list[tuple[str, str | None, float]]:
    """(what is over, what begins, its share of the time), crop by crop."""
    phases = [phase for phase in SHARES for _ in range(CROPS if phase == "inference" else 1)]
    shares = [SHARES[phase] / (CROPS if phase == "inference" else 1) for phase in phases]
    following = [*phases[1:], None]
    return list(zip(phases, following, shares, strict=True))


STEPS: Final = len(_steps())
KNOWN: Final = 30
"""So many pictures are served before anything goes wrong: times are known by then."""
SIZES: Final = (300, 1000, 3000)

faults = st.builds(Fault, st.sampled_from(["none", "dies", "hangs"]), st.integers(0, STEPS - 1))


def simulate(
    befalls: list[tuple[int, Fault]], *, known: int, max_batch: int, pace: float, start_factor: float
) -> Simulation:
    """Serve some pictures in peace, then these, each with its fault."""
    world = World(Policy(batching=BatchPolicy(max_batch=max_batch)))
    simulation = Simulation(world, {}, {}, start_factor)

    def drop(name: str, size: int, fault: Fault) -> None:
        simulation.faults[name] = fault
        simulation.work_s[name] = pace * size / 1000
        world.drop_mask(name)
        world.drop(name, name.encode().ljust(size, b"x"))

    for number in range(known):
        drop(f"known {number}.jpg", SIZES[number % len(SIZES)], Fault("none"))
    simulation.run(known)
    for number, (size, fault) in enumerate(befalls):
        drop(f"{number}.jpg", size, fault)
    simulation.run(known + len(befalls))
    return simulation


def check_waits(simulation: Simulation, count: int, least_cold_s: float = 0.0) -> None:
    """Nobody waited for longer than twice the cold time of its size, with all that ran beside it.

    What its process did of its work before it stood still was no wait for the fault to be noticed.
    """
    world = simulation.world
    cold_time, crowd = world.pipeline._lanes.flights.cold_time, simulation.crowd
    for number in range(count):
        job = world.job(f"{number}.jpg")
        line = world.line(job.source)
        units = job.files_bytes * PIXELS_PER_BYTE
        known_s = cold_time.slow_s(job.files_bytes, "inference", units, crowd=crowd)
        cold_s = max(least_cold_s, known_s - (cold_time.start_s or 0.0) + START_S * crowd)
        silent_s = {True: 0.0, False: 0.0}
        for loss in line["losses"]:
            silent_s[loss["serving"]] += loss["silent_ms"] / 1000
        # How long another one of its batch stood still goes by that one's size: the batch's company too.
        waited_s = simulation.waited_s(job.source) - silent_s[False]
        done_s = line["segments_ms"]["lost_attempts"] / 1000 - silent_s[True] - silent_s[False]
        assert waited_s - done_s <= 2 * cold_s + KILL_S, (job.source, waited_s, done_s, cold_s, crowd, line)
        assert silent_s[True] <= cold_s + KILL_S, "its fault was noticed too late"


@given(
    befalls=st.lists(st.tuples(st.sampled_from(SIZES), faults), min_size=1, max_size=10),
    max_batch=st.sampled_from([1, 4, 16]),
    pace=st.sampled_from([0.2, 1.0, 10.0]),
    start_factor=st.sampled_from([1.0, 5.0]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nobody_waits_longer_than_twice_the_cold_time(
    befalls: list[tuple[int, Fault]], max_batch: int, pace: float, start_factor: float
) -> None:
    simulation = simulate(befalls, known=KNOWN, max_batch=max_batch, pace=pace, start_factor=start_factor)
    check_waits(simulation, len(befalls))
    assert {line["outcome"] for line in simulation.world.journal.lines} == {"done"}
    guilty = {f"{number}.jpg" for number, (_, fault) in enumerate(befalls) if fault.kind != "none"}
    blamed = {
        line["source"]
        for line in simulation.world.journal.lines
        if any(loss["serving"] for loss in line["losses"])
    }
    assert blamed <= guilty, "a picture was blamed that did nothing"


@given(
    befalls=st.lists(st.tuples(st.sampled_from(SIZES), faults), min_size=1, max_size=6),
    max_batch=st.sampled_from([1, 4]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_before_anything_is_known_the_first_estimate_is_the_cold_time(
    befalls: list[tuple[int, Fault]], max_batch: int
) -> None:
    simulation = simulate(befalls, known=0, max_batch=max_batch, pace=0.5, start_factor=1.0)
    guess_s = Policy().cold.first_estimate_s
    check_waits(simulation, len(befalls), least_cold_s=(START_S + guess_s) * simulation.crowd)
