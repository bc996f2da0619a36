"""A random life of the resident worker, beside an independent model of what must hold of it.

The model knows times, processes and the design's numbers; it never looks into the supervisor but at its
state, its deadline and what it says it knows. It is built for any class that looks like `Supervisor`, so that
broken ones can be shown to fail (see `test_supervision_mutants`).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from watcher.core.commands import Command, DrainWorker, KillWorker, Log, PingWorker, StartWorker
from watcher.core.policy import WorkerPolicy
from watcher.core.supervision import ALIVE, Supervisor, Usage, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

NS: Final = 1_000_000_000
MB: Final = 1_000_000
LATE_NS: Final = NS // 2
"""Who looks so late has stood still himself, and listens as long again."""
S = WorkerState
BASE: Final = WorkerPolicy(
    breaker_crashes=3,
    breaker_window_s=40.0,
    recycle_items=3,
    recycle_age_s=400.0,
    recycle_growth_bytes=1000 * MB,
    recycle_files=100,
    scarce_bytes=600 * MB,
)
POLICIES: Final = (
    BASE,
    WorkerPolicy(),
    replace(BASE, breaker_crashes=100, recycle_items=5, backoff_max_s=3.0),
    replace(BASE, breaker_crashes=2, breaker_window_s=1.0, healthy_s=20.0, recycle_items=None),
    replace(BASE, ping_s=2000.0, recycle_age_s=60.0, recycle_items=None),  # long quiet lives
    replace(BASE, breaker_crashes=1, breaker_open_max_s=100.0, healthy_s=1.0),
)
USUAL: Final = (400 * MB, 20)


class Worker:
    """What the model knows of the one process there may be."""

    def __init__(self, incarnation: int, now_ns: int, *, probes: bool) -> None:
        self.incarnation = incarnation
        self.probes = probes
        """The breaker is open, and this one may close it."""
        self.started_ns = now_ns
        self.loaded = False
        self.ready_ns: int | None = None
        self.warm = USUAL
        self.spread = 1.0
        self.heard_ns = now_ns
        self.ping: int | None = None
        self.pinged_ns = 0
        self.batch_due_ns: int | None = None
        """It has a batch."""
        self.items = 0
        self.good_batches = 0
        self.drain_due_ns: int | None = None
        self.kill_due_ns: int | None = None
        self.kills = 0
        self.excused = False
        """The service was late to look, and listens once."""

    @property
    def is_idle(self) -> bool:
        return (
            self.ready_ns is not None
            and self.batch_due_ns is None
            and self.drain_due_ns is None
            and self.kill_due_ns is None
        )


class SupervisedLife(RuleBasedStateMachine):
    """Everything that can happen to a worker, in any order."""

    supervisor_type: type[Any] = Supervisor
    """Of the supervisor that is tried."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1000 * NS

    @initialize(policy=st.sampled_from(POLICIES))
    def configure(self, policy: WorkerPolicy) -> None:
        """A service starts."""
        self.policy = policy
        self.spawned = 0
        self.stops = False
        self.jitter = 0.5
        self.worker: Worker | None = None
        self.wanted = self.disabled = False
        self.next_start_ns: int | None = None
        """Nothing lives, and then the next one is to be started."""
        self.breaker_is_open = False
        self.crashes_ns: list[int] = []
        self.crashes_in_a_row = 0
        self.openings = 0
        self.pings = 0
        self.got: list[Command] = []
        self.allowed: frozenset[str] = frozenset()
        self.supervisor: Any = self.supervisor_type(policy, self._take_incarnation, lambda: self.jitter)

    def _take_incarnation(self) -> int:
        self.spawned += 1
        return self.spawned

    # --- what it commands ---

    def take(self, commands: Iterable[Command]) -> None:
        """Carry out what the supervisor wants; nothing may be wanted that the model would not allow."""
        self.got = [command for command in commands if not isinstance(command, Log)]
        for command in self.got:
            worker = self.worker
            if isinstance(command, StartWorker):
                self._started(command)
                continue
            assert worker is not None, "there is nobody to command"
            assert command.incarnation == worker.incarnation  # type: ignore[union-attr] # they all have one
            if isinstance(command, KillWorker):
                assert "kill" in self.allowed, command.reason
                worker.kills += 1
                pause_s = self.policy.kill_s * 2 ** min(worker.kills - 1, 60)  # far beyond the longest
                worker.kill_due_ns = self.after(
                    min(pause_s, max(self.policy.kill_s, self.policy.backoff_max_s))
                )
            elif isinstance(command, DrainWorker):
                assert "drain" in self.allowed
                assert worker.kill_due_ns is None
                worker.drain_due_ns, worker.excused = self.after(self.policy.drain_s), False
            elif isinstance(command, PingWorker):
                assert worker.is_idle, "only an idle worker is asked"
                self.pings += 1
                assert command.number == self.pings
                worker.ping, worker.pinged_ns, worker.excused = command.number, self.now_ns, False

    def _started(self, command: StartWorker) -> None:
        assert self.worker is None, "two processes"
        assert self.wanted, "nobody wants one"
        assert not self.disabled, "that would change nothing"
        assert self.next_start_ns is None or self.now_ns >= self.next_start_ns, "it was not to be started yet"
        assert command.incarnation == self.spawned
        self.worker = Worker(command.incarnation, self.now_ns, probes=self.breaker_is_open)
        self.next_start_ns = None

    def call(self, commands: Iterable[Command], *allowed: str) -> None:
        self.allowed = frozenset(allowed)
        self.take(commands)
        self.allowed = frozenset()

    def after(self, seconds: float) -> int:
        return self.now_ns + round(seconds * NS)

    def told(self, kind: type[Command]) -> bool:
        """The last call gave this command."""
        return any(isinstance(command, kind) for command in self.got)

    # --- what is wanted ---

    @precondition(lambda self: not self.stops)
    @rule()
    def want(self) -> None:
        first = not self.wanted
        self.wanted = True
        self.call(self.supervisor.want(self.now_ns))
        assert self.told(StartWorker) is first

    @precondition(lambda self: self.wanted)
    @rule(really=st.sampled_from([False] * 9 + [True]))
    def drain(self, *, really: bool) -> None:
        """The service stops, now and then."""
        if not really:
            return
        self.wanted, self.stops = False, True
        self.next_start_ns = None
        worker = self.worker
        self.call(self.supervisor.drain(self.now_ns), "kill", "drain")
        if worker is not None and worker.kill_due_ns is None and worker.drain_due_ns is None:
            raise AssertionError("it was not told to end")

    @precondition(lambda self: self.worker is not None and self.stops)
    @rule(really=st.sampled_from([False, True]))
    def kill(self, *, really: bool) -> None:
        """The stop takes too long."""
        if really:
            self.call(self.supervisor.kill("a test", self.now_ns), "kill")
            assert self.told(KillWorker)

    @precondition(lambda self: self.worker is None and (self.stops or self.disabled))
    @rule(policy=st.sampled_from(POLICIES))
    def start_anew(self, policy: WorkerPolicy) -> None:
        """The service has stopped, and starts again."""
        self.configure(policy)

    # --- what workers say ---

    def is_heard(self, age: int) -> bool:
        """Whether the supervisor takes a report of the process before so many others for a current one."""
        incarnation = self.spawned - age
        lives: bool = self.worker is not None and self.worker.incarnation == incarnation
        current: bool = self.supervisor.is_current(incarnation)
        assert current is lives, "a stale report counts, or a current one does not"
        return lives

    ages = st.sampled_from([0, 0, 0, 0, 1, 2])

    @rule(age=ages)
    def loaded(self, age: int) -> None:
        if not self.is_heard(age):
            return
        self.supervisor.loaded()
        worker = self.worker
        assert worker is not None
        if worker.ready_ns is None and worker.kill_due_ns is None and (worker.probes or not worker.loaded):
            worker.loaded, worker.excused = True, False
            assert self.supervisor.state == (S.HALF_OPEN if worker.probes else S.WARMING)

    @rule(
        age=ages,
        rss_mb=st.sampled_from([100, 400, 5000]),
        files=st.sampled_from([None, 20]),
        jitter=st.sampled_from([0.0, 0.5, 0.999]),
    )
    def ready(self, age: int, rss_mb: int, files: int | None, jitter: float) -> None:
        if not self.is_heard(age):
            return
        self.jitter = jitter
        self.call(self.supervisor.became_ready(Usage(rss_mb * MB, files), self.now_ns))
        assert self.got == []
        worker = self.worker
        assert worker is not None
        if worker.ready_ns is None and worker.kill_due_ns is None:
            worker.ready_ns = worker.heard_ns = self.now_ns
            worker.warm = (rss_mb * MB, files)  # type: ignore[assignment] # files may be unknown
            worker.spread = 0.8 + 0.4 * jitter
            worker.excused = False
            self.breaker_is_open = False
            assert self.supervisor.state == S.READY
            assert self.supervisor.fault is None

    @rule(age=ages, late=st.booleans())
    def pong(self, age: int, *, late: bool) -> None:
        if not self.is_heard(age):
            return
        number = self.pings - late
        self.supervisor.ponged(number, self.now_ns)
        worker = self.worker
        assert worker is not None
        if worker.is_idle and number == self.pings:
            worker.heard_ns, worker.ping = self.now_ns, None

    @rule(patience_s=st.sampled_from([1, 20, 200]))
    def give(self, patience_s: int) -> None:
        """A batch is given, whether it can be or not: only a worker that is idle takes it."""
        due_ns = self.after(patience_s)
        before = self.supervisor.state
        self.call(self.supervisor.batch_given(due_ns))
        assert self.got == []
        if self.worker is not None and self.worker.is_idle:
            self.worker.batch_due_ns, self.worker.ping = due_ns, None
            assert self.supervisor.state == S.BUSY
        else:
            assert self.supervisor.state == before, "a batch was given to one that cannot take it"

    @precondition(lambda self: self.worker is not None)
    @rule(patience_s=st.sampled_from([1, 20, 200]))
    def progress(self, patience_s: int) -> None:
        self.supervisor.put_off(self.after(patience_s))
        worker = self.worker
        assert worker is not None
        if worker.batch_due_ns is not None and worker.kill_due_ns is None and worker.drain_due_ns is None:
            worker.batch_due_ns = self.after(patience_s)

    @precondition(lambda self: self.worker is not None and self.worker.batch_due_ns is not None)
    @rule(items=st.integers(1, 3))
    def serve(self, items: int) -> None:
        assert self.worker is not None
        for _ in range(items):
            self.supervisor.item_ended()
            self.worker.items += 1
        assert self.supervisor.items_served == self.worker.items

    @rule(
        age=ages,
        grown_mb=st.sampled_from([0, 0, 0, 299, 301, 999, 1001]),
        more_files=st.sampled_from([0, 0, 100, 101, None]),
        scarce=st.booleans(),
    )
    def end_batch(self, age: int, grown_mb: int, more_files: int | None, *, scarce: bool) -> None:
        if not self.is_heard(age):
            return
        worker = self.worker
        assert worker is not None
        rss_bytes = worker.warm[0] + grown_mb * MB
        files = None if more_files is None or worker.warm[1] is None else worker.warm[1] + more_files
        usage = Usage(rss_bytes, files)
        self.call(self.supervisor.batch_ended(usage, self.now_ns, scarce=scarce), "drain")
        ends = worker.batch_due_ns is not None and worker.kill_due_ns is None
        if not ends or (self.told(DrainWorker) is False and worker.drain_due_ns is not None):
            assert self.got == []
            return
        worker.batch_due_ns = None
        worker.good_batches += 1
        worker.heard_ns = self.now_ns
        wanted = self._is_used_up(worker, rss_bytes, files, scarce=scarce)
        assert self.told(DrainWorker) is wanted, "recycled for no reason, or not at all"

    def _is_used_up(self, worker: Worker, rss_bytes: int, files: int | None, *, scarce: bool) -> bool:
        policy, grown_bytes = self.policy, rss_bytes - worker.warm[0]
        growth_bytes = policy.recycle_growth_bytes
        return (
            (policy.recycle_items is not None and worker.items >= policy.recycle_items * worker.spread)
            or (growth_bytes is not None and grown_bytes > growth_bytes)
            or (scarce and grown_bytes > policy.scarce_bytes / 2)
            or (files is not None and files - worker.warm[1] > policy.recycle_files)
            or self._is_too_old(worker)
        )

    def _is_too_old(self, worker: Worker) -> bool:
        assert worker.ready_ns is not None
        age_s = self.policy.recycle_age_s
        return age_s is not None and self.now_ns - worker.ready_ns >= age_s * worker.spread * NS

    # --- how they end ---

    @precondition(lambda self: self.worker is not None)
    @rule(
        code=st.sampled_from([0, -9, -9, 1, 1, 70, 75, 75, 76, 78]), jitter=st.sampled_from([0.0, 0.5, 0.999])
    )
    def end(self, code: int, jitter: float) -> None:
        worker = self.worker
        assert worker is not None
        assert self.is_heard(0)
        self._forgive(worker)
        self.worker, self.jitter = None, jitter
        planned = worker.kill_due_ns is None and (
            worker.drain_due_ns is not None or (code == 75 and worker.items > 0)
        )
        restarts = self.supervisor.restarts
        self.call(self.supervisor.exited(code, self.now_ns))
        assert self.supervisor.is_current(worker.incarnation) is False
        if not self.wanted:
            assert self.got == []
            assert self.supervisor.state == S.STOPPED
        elif planned:
            assert self.told(StartWorker), "it is used up, and has no successor"
            assert self.supervisor.restarts == restarts
        else:
            self._crashed(worker, code)
            assert self.supervisor.restarts == restarts + 1
            assert self.supervisor.fault in {"crashed", "stalled"}

    def _forgive(self, worker: Worker) -> None:
        healthy_ns = round(self.policy.healthy_s * NS)
        if (
            worker.good_batches
            and worker.ready_ns is not None
            and self.now_ns - worker.ready_ns >= healthy_ns
        ):
            self.crashes_in_a_row = self.openings = 0

    def _crashed(self, worker: Worker, code: int) -> None:
        assert self.got == [], "it is started again without a pause"
        if code == 78 and worker.ready_ns is None and worker.kill_due_ns is None:
            self.disabled = True
            self.breaker_is_open = False
            assert self.supervisor.state == S.DISABLED
            return
        self.crashes_ns.append(self.now_ns)
        self.crashes_in_a_row += 1
        since_ns = self.now_ns - round(self.policy.breaker_window_s * NS)
        recent = [at_ns for at_ns in self.crashes_ns if at_ns >= since_ns]
        if len(recent) >= self.policy.breaker_crashes or (worker.probes and worker.ready_ns is None):
            self.breaker_is_open = True
            pause_s = min(self.policy.breaker_open_max_s, self.policy.breaker_open_s * 2**self.openings)
            self.openings += 1
            assert self.supervisor.state == S.OPEN
        else:
            ceiling_s = min(self.policy.backoff_max_s, 0.5 * 2 ** (self.crashes_in_a_row - 1))
            pause_s = ceiling_s * self.jitter
            assert self.supervisor.state == S.BACKOFF
        self.next_start_ns = self.after(pause_s)

    # --- time ---

    @rule(seconds=st.sampled_from([0.1, 1, 4.9, 10, 24, 30, 61, 130, 1000]))
    def wait(self, seconds: float) -> None:
        """Time passes; the service is awake whenever it wants to be."""
        until_ns, looks = self.after(seconds), 0
        while (due_ns := self.supervisor.deadline_ns) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.look()
            looks += 1
            assert looks < 20 + 10 * seconds, "it never sleeps"
        self.now_ns = until_ns

    @rule(seconds=st.sampled_from([0.4, 0.6, 6, 131, 2000]))
    def stand_still(self, seconds: float) -> None:
        """Time passes; the service is not awake, and looks afterwards."""
        self.now_ns = self.after(seconds)
        for _ in range(3):
            if self.supervisor.deadline_ns is None or self.supervisor.deadline_ns > self.now_ns:
                return
            self.look()

    def look(self) -> None:
        """The deadline has come; the model says what is to come of it."""
        worker, supervisor = self.worker, self.supervisor
        if worker is None:
            assert self.next_start_ns is not None, "it waits for nothing"
            self.call(supervisor.deadline_passed(self.now_ns))
            assert self.told(StartWorker)
            probes = self.worker is not None and self.worker.probes
            assert (supervisor.state == S.HALF_OPEN) is probes
            return
        due_ns = self._due_ns(worker)
        if worker.batch_due_ns is not None and worker.drain_due_ns is None and worker.kill_due_ns is None:
            self.call(supervisor.stalled("no progress", self.now_ns), "kill")
            assert self.told(KillWorker)
        elif worker.is_idle and worker.ping is None:
            self.call(supervisor.deadline_passed(self.now_ns), "drain")
            assert self.told(DrainWorker) is self._is_too_old(worker)
            assert self.told(PingWorker) is not self.told(DrainWorker)
        elif worker.kill_due_ns is None and self.now_ns - due_ns > LATE_NS and not worker.excused:
            worker.excused = True
            worker.started_ns = worker.pinged_ns = self.now_ns + LATE_NS  # so much longer, whatever it is
            self.call(supervisor.deadline_passed(self.now_ns))
            assert self.got == [], "the service was late itself"
            self._shift(worker)
        else:
            self.call(supervisor.deadline_passed(self.now_ns), "kill")
            assert self.told(KillWorker)
            assert supervisor.state == S.KILLING

    def _shift(self, worker: Worker) -> None:
        """It is listened to for half a second more."""
        until_ns = self.now_ns + LATE_NS
        worker.started_ns = until_ns - round(self.policy.start_timeout_s * NS)
        worker.pinged_ns = until_ns - round(self.policy.pong_s * NS)
        if worker.drain_due_ns is not None:
            worker.drain_due_ns = until_ns

    def _due_ns(self, worker: Worker) -> int:
        """When something is to be done about this process."""
        if worker.kill_due_ns is not None:
            return worker.kill_due_ns
        if worker.drain_due_ns is not None:
            return worker.drain_due_ns
        if worker.ready_ns is None:
            return worker.started_ns + round(self.policy.start_timeout_s * NS)
        if worker.batch_due_ns is not None:
            return worker.batch_due_ns
        if worker.ping is not None:
            return worker.pinged_ns + round(self.policy.pong_s * NS)
        return worker.heard_ns + round(self.policy.ping_s * NS)

    # --- what must hold ---

    @invariant()
    def a_process_is_there_exactly_when_the_state_says_so(self) -> None:
        assert (self.worker is not None) is (self.supervisor.state in ALIVE)

    @invariant()
    def the_state_is_what_the_process_does(self) -> None:
        assert self.supervisor.state in self._possible_states()

    def _possible_states(self) -> set[WorkerState]:  # noqa: PLR0911 - one flat table of situations
        worker = self.worker
        if worker is None:
            if self.disabled:
                return {S.DISABLED}
            if self.next_start_ns is None:
                return {S.STOPPED}
            return {S.OPEN} if self.breaker_is_open else {S.BACKOFF}
        if worker.kill_due_ns is not None:
            return {S.KILLING}
        if worker.drain_due_ns is not None:
            return {S.DRAINING}
        if worker.ready_ns is None:
            return {S.HALF_OPEN} if worker.probes else {S.STARTING, S.WARMING}
        return {S.READY} if worker.batch_due_ns is None else {S.BUSY}

    @invariant()
    def the_deadline_is_the_models(self) -> None:
        deadline_ns = self.supervisor.deadline_ns
        if self.worker is not None:
            assert deadline_ns == self._due_ns(self.worker), self.supervisor.state
        else:
            assert deadline_ns == self.next_start_ns, self.supervisor.state

    @invariant()
    def crashes_do_not_become_a_storm(self) -> None:
        """In no window are there as many crashes as open the breaker, and the breaker still closed."""
        if self.worker is not None and self.worker.ready_ns is not None:
            return
        since_ns = self.now_ns - round(self.policy.breaker_window_s * NS)
        recent = [at_ns for at_ns in self.crashes_ns if at_ns >= since_ns]
        if len(recent) >= self.policy.breaker_crashes and not self.disabled:
            assert self.supervisor.state not in {S.BACKOFF, S.STARTING, S.WARMING}

    @invariant()
    def nobody_knows_better_than_the_clock(self) -> None:
        """What it says of the time until a worker is ready is a time."""
        ready_in_s = self.supervisor.ready_in_s(2.0, self.now_ns)
        assert 0 <= ready_in_s <= inf
        assert (ready_in_s == 0) or self.supervisor.state not in {S.READY, S.BUSY}


AGES: Final = (0, 0, 0, 0, 0, 0, 1, 2)
JITTERS: Final = (0.0, 0.5, 0.999)


def wander(life: SupervisedLife, draw: Random, steps: int) -> None:
    """Live a random life without Hypothesis: nothing is shrunk, and a step takes microseconds.

    It dares what matters more often than chance would: crashes come in rows, batches end, probes succeed.
    """
    life.configure(draw.choice(POLICIES))
    for _ in range(steps):
        _step(life, draw)
        life.a_process_is_there_exactly_when_the_state_says_so()
        life.the_state_is_what_the_process_does()
        life.the_deadline_is_the_models()
        life.crashes_do_not_become_a_storm()
        life.nobody_knows_better_than_the_clock()


def _step(life: SupervisedLife, draw: Random) -> None:  # noqa: C901, PLR0912 - one flat table of events
    match draw.choices(_WHAT, _HOW_OFTEN)[0]:
        case "want" if not life.stops:
            life.want()
        case "drain" if life.wanted:
            life.drain(really=True)
        case "kill" if life.worker is not None and life.stops:
            life.kill(really=True)
        case "start_anew" if life.worker is None and (life.stops or life.disabled):
            life.start_anew(draw.choice(POLICIES))
        case "loaded":
            life.loaded(draw.choice(AGES))
        case "ready":
            usage = {"rss_mb": draw.choice((100, 400, 5000)), "files": draw.choice((None, 20, 70))}
            life.ready(draw.choice(AGES), **usage, jitter=draw.choice(JITTERS))
        case "pong":
            life.pong(draw.choice(AGES), late=draw.random() < 0.5)
        case "give":
            life.give(draw.choice((1, 20, 200)))
        case "progress" if life.worker is not None:
            life.progress(draw.choice((1, 20, 200)))
        case "serve" if life.worker is not None and life.worker.batch_due_ns is not None:
            life.serve(draw.choice((1, 1, 2, 3)))
        case "end_batch":
            usage = {
                "grown_mb": draw.choice((0, 0, 0, 0, 0, 299, 301, 999, 1001)),
                "more_files": draw.choice((0, 0, 0, 100, 101, None)),
            }
            life.end_batch(draw.choice(AGES), **usage, scarce=draw.random() < 0.4)
        case "end" if life.worker is not None:
            life.end(draw.choice((0, -9, -9, -9, 1, 1, 70, 75, 75, 75, 76, 78)), draw.choice(JITTERS))
        case "wait":
            life.wait(draw.choice((0.1, 0.1, 0.1, 1, 1, 1, 1, 1, 4.9, 10, 24, 30, 61, 130, 1000)))
        case "stand_still":
            life.stand_still(draw.choice((0.4, 0.6, 6, 131, 2000)))


_MOVES: Final = {
    "want": 30,
    "drain": 0.3,
    "kill": 2,
    "start_anew": 30,
    "loaded": 2,
    "ready": 15,
    "pong": 5,
    "give": 12,
    "progress": 3,
    "serve": 10,
    "end_batch": 10,
    "end": 6,
    "wait": 12,
    "stand_still": 4,
}
_WHAT: Final = tuple(_MOVES)
_HOW_OFTEN: Final = tuple(_MOVES.values())
