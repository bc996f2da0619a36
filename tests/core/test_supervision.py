"""The resident worker's life: its table, its times, and a random life in which no rule may ever be broken."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.core.supervised_life import SupervisedLife, wander
from watcher.core.commands import Command, DrainWorker, KillWorker, Log, StartWorker
from watcher.core.policy import WorkerPolicy
from watcher.core.supervision import ALIVE, TRANSITIONS, Report, Supervisor, Usage, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NS = 1_000_000_000
S, R = WorkerState, Report
STALL_S = 120
WARM = Usage(rss_bytes=400_000_000, open_files=20)
ENDS = {
    R.EXITED: S.BACKOFF,
    R.EXITED_TOO_OFTEN: S.OPEN,
    R.EXITED_UNWANTED: S.STOPPED,
}
EXPECTED = {
    S.STOPPED: {R.WANTED: S.STARTING},
    S.STARTING: {
        **ENDS,
        R.EXITED_FOR_GOOD: S.DISABLED,
        R.LOADED: S.WARMING,
        R.BECAME_READY: S.READY,
        R.DRAIN_BEGUN: S.KILLING,
        R.DEADLINE_PASSED: S.KILLING,
    },
    S.WARMING: {
        **ENDS,
        R.EXITED_FOR_GOOD: S.DISABLED,
        R.BECAME_READY: S.READY,
        R.DRAIN_BEGUN: S.KILLING,
        R.DEADLINE_PASSED: S.KILLING,
    },
    S.READY: {
        **ENDS,
        R.EXITED_USED_UP: S.STOPPED,
        R.BATCH_GIVEN: S.BUSY,
        R.PING_DUE: S.READY,
        R.DRAIN_BEGUN: S.DRAINING,
        R.DEADLINE_PASSED: S.KILLING,
    },
    S.BUSY: {
        **ENDS,
        R.EXITED_USED_UP: S.STOPPED,
        R.BATCH_ENDED: S.READY,
        R.DRAIN_BEGUN: S.DRAINING,
        R.DEADLINE_PASSED: S.KILLING,
    },
    S.DRAINING: {
        R.DEADLINE_PASSED: S.KILLING,
        R.EXITED_USED_UP: S.STOPPED,
        R.EXITED_UNWANTED: S.STOPPED,
    },
    S.KILLING: {**ENDS, R.DEADLINE_PASSED: S.KILLING},
    S.BACKOFF: {R.DRAIN_BEGUN: S.STOPPED, R.DEADLINE_PASSED: S.STARTING},
    S.OPEN: {R.DRAIN_BEGUN: S.STOPPED, R.DEADLINE_PASSED: S.HALF_OPEN},
    S.HALF_OPEN: {
        R.EXITED_TOO_OFTEN: S.OPEN,
        R.EXITED_UNWANTED: S.STOPPED,
        R.EXITED_FOR_GOOD: S.DISABLED,
        R.LOADED: S.HALF_OPEN,
        R.BECAME_READY: S.READY,
        R.DRAIN_BEGUN: S.KILLING,
        R.DEADLINE_PASSED: S.KILLING,
    },
    S.DISABLED: {},
}


def test_the_table_edge_by_edge() -> None:
    assert TRANSITIONS == EXPECTED


def test_killing_is_left_only_by_an_exit() -> None:
    ways_out = {report for report, target in TRANSITIONS[S.KILLING].items() if target is not S.KILLING}
    assert ways_out == set(ENDS)


class Life:
    """A supervisor, its clock, and the commands that it gave."""

    def __init__(self, policy: WorkerPolicy | None = None, jitter: float = 0.5) -> None:
        self.now_ns = 1000 * NS
        self.commands: list[Command] = []
        self.spawned = 0
        self.supervisor = Supervisor(policy or WorkerPolicy(), self._take_incarnation, lambda: jitter)

    def _take_incarnation(self) -> int:
        self.spawned += 1
        return self.spawned

    def take(self, commands: Iterable[Command]) -> None:
        self.commands.extend(commands)

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)
        deadline_ns = self.supervisor.deadline_ns
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.take(self.supervisor.deadline_passed(self.now_ns))

    def start(self) -> None:
        self.take(self.supervisor.want(self.now_ns))

    def ready(self) -> None:
        self.take(self.supervisor.became_ready(WARM, self.now_ns))

    def busy(self) -> None:
        self.take(self.supervisor.batch_given(self.now_ns + STALL_S * NS))

    def exit(self, code: int = -9) -> None:
        self.take(self.supervisor.exited(code, self.now_ns))

    def given(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.commands)

    @property
    def wait_s(self) -> float:
        """How long the next deadline is away."""
        assert self.supervisor.deadline_ns is not None
        return (self.supervisor.deadline_ns - self.now_ns) / NS


def test_it_is_started_once_however_often_it_is_wanted() -> None:
    life = Life()
    life.start()
    life.start()
    life.ready()
    life.start()
    assert life.commands == [StartWorker(1)]
    assert life.supervisor.is_current(1)


def test_the_pauses_between_starts_double_up_to_a_ceiling() -> None:
    life = Life(WorkerPolicy(breaker_crashes=100))
    life.start()
    pauses = []
    for _ in range(12):
        life.exit()
        pauses.append(life.wait_s)
        life.wait(life.wait_s)
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == 30.0
    assert life.given(StartWorker) == 13


def test_a_healthy_life_and_a_good_batch_start_the_pauses_over() -> None:
    life = Life(WorkerPolicy(breaker_crashes=100))
    life.start()
    for _ in range(4):
        life.exit()
        life.wait(life.wait_s)
    life.ready()
    life.wait(61)
    life.busy()
    life.take(life.supervisor.batch_ended(WARM, life.now_ns))
    life.exit()
    assert life.wait_s == 0.25


def test_a_worker_that_dies_young_does_not_start_the_pauses_over() -> None:
    life = Life(WorkerPolicy(breaker_crashes=100))
    life.start()
    for _ in range(3):
        life.ready()
        life.busy()
        life.take(life.supervisor.batch_ended(WARM, life.now_ns))
        life.exit()
        last_s = life.wait_s
        life.wait(last_s)
    assert last_s == 1.0


@pytest.mark.kind("W16")
def test_the_breaker_opens_ever_longer_and_closes_with_health() -> None:
    life = Life()
    life.start()
    for _ in range(4):
        life.exit()
        life.wait(life.wait_s)
    life.exit()
    states, pauses = [life.supervisor.state], [life.wait_s]
    for _ in range(6):
        life.wait(life.wait_s)
        states.append(life.supervisor.state)
        life.exit()
        pauses.append(life.wait_s)
    assert states == [S.OPEN] + [S.HALF_OPEN] * 6
    assert pauses == [60, 120, 240, 480, 900, 900, 900]
    life.wait(900)
    life.ready()
    assert (life.supervisor.state, life.supervisor.fault) == (S.READY, None)


@pytest.mark.kind("W13")
def test_at_most_five_starts_in_two_minutes() -> None:
    life = Life()
    life.start()
    until_ns = life.now_ns + 120 * NS
    while life.now_ns < until_ns:
        if life.supervisor.state in ALIVE:
            life.exit()
        life.wait(0.5)
    assert life.given(StartWorker) <= 6, "five, and the first trial of the breaker"


@pytest.mark.parametrize("state", [S.STARTING, S.BUSY, S.HALF_OPEN])
def test_a_deadline_kills_and_is_a_stall(state: WorkerState) -> None:
    life = Life(WorkerPolicy(breaker_crashes=1))
    life.start()
    if state is S.HALF_OPEN:
        life.exit()
        life.wait(60)
    if state is S.BUSY:
        life.ready()
        life.busy()
    assert life.supervisor.state is state
    life.wait(120)
    assert life.supervisor.state is S.KILLING
    assert life.supervisor.fault == "stalled", "known at the kill, not only at the death"
    life.exit()
    assert life.supervisor.fault == "stalled"


def test_a_kill_that_does_not_kill_is_repeated_ever_more_rarely() -> None:
    life = Life()
    life.start()
    life.wait(120)
    pauses = []
    for _ in range(6):
        pauses.append(life.wait_s)
        life.wait(life.wait_s)
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert life.given(KillWorker) == 7
    assert life.given(StartWorker) == 1
    kills = [command for command in life.commands if isinstance(command, Log)]
    assert [log.level for log in kills] == ["warning"] + ["error"] * 6


def test_progress_puts_the_deadline_off_only_while_busy() -> None:
    life = Life()
    life.start()
    life.wait(100)
    life.supervisor.put_off(life.now_ns + STALL_S * NS)
    assert life.wait_s == 20
    life.ready()
    life.busy()
    life.wait(100)
    life.supervisor.put_off(life.now_ns + STALL_S * NS)
    assert life.wait_s == 120


@pytest.mark.parametrize(
    ("policy", "usage", "scarce"),
    [
        (WorkerPolicy(recycle_items=3), WARM, False),
        (WorkerPolicy(recycle_growth_bytes=10), Usage(WARM.rss_bytes + 11, WARM.open_files), False),
        (WorkerPolicy(scarce_bytes=20), Usage(WARM.rss_bytes + 11, WARM.open_files), True),
        (WorkerPolicy(recycle_files=5), Usage(WARM.rss_bytes, 26), False),
        (WorkerPolicy(recycle_age_s=7.0), WARM, False),
    ],
    ids=["items", "memory", "scarce memory", "files", "age"],
)
def test_a_used_up_worker_is_drained_between_batches_and_replaced_without_a_fault(
    policy: WorkerPolicy,
    usage: Usage,
    scarce: bool,  # noqa: FBT001 - parametrised
) -> None:
    life = Life(policy)
    life.start()
    life.ready()
    life.wait(7)
    life.busy()
    for _ in range(3):
        life.supervisor.item_ended()
    life.take(life.supervisor.batch_ended(usage, life.now_ns, scarce=scarce))
    assert life.given(DrainWorker) == 1
    life.exit(0)
    assert life.supervisor.state is S.STARTING
    assert life.supervisor.fault is None
    assert life.supervisor.restarts == 0
    assert life.supervisor.is_current(2)
    assert not life.supervisor.is_current(1)


def test_exit_78_is_for_good() -> None:
    life = Life()
    life.start()
    life.exit(78)
    assert life.supervisor.state is S.DISABLED
    assert life.supervisor.deadline_ns is None
    life.start()
    assert life.given(StartWorker) == 1


def _live_to(state: WorkerState) -> Life:
    """A life that has come to this state."""
    life = Life(WorkerPolicy(breaker_crashes=2))
    ways: dict[WorkerState, tuple[Callable[[], object], ...]] = {
        S.STOPPED: (),
        S.STARTING: (life.start,),
        S.WARMING: (life.start, life.supervisor.loaded),
        S.READY: (life.start, life.ready),
        S.BUSY: (life.start, life.ready, life.busy),
        S.DRAINING: (life.start, life.ready, lambda: life.supervisor._drain(life.now_ns)),
        S.KILLING: (life.start, lambda: life.wait(120)),
        S.BACKOFF: (life.start, life.exit),
        S.OPEN: (life.start, life.exit, lambda: life.wait(1), life.exit),
        S.HALF_OPEN: (life.start, life.exit, lambda: life.wait(1), life.exit, lambda: life.wait(60)),
        S.DISABLED: (life.start, lambda: life.exit(78)),
    }
    for step in ways[state]:
        step()
    assert life.supervisor.state is state
    return life


@pytest.mark.parametrize("state", list(WorkerState))
def test_only_what_lives_is_killed(state: WorkerState) -> None:
    life = _live_to(state)
    life.commands.clear()
    life.take(life.supervisor.kill("a test", life.now_ns))
    assert life.given(KillWorker) == (state in ALIVE)
    assert life.supervisor.state is (S.KILLING if state in ALIVE else state)


@pytest.mark.parametrize("state", list(WorkerState))
def test_a_drain_ends_in_rest_from_every_state(state: WorkerState) -> None:
    life = _live_to(state)
    life.take(life.supervisor.drain(life.now_ns))
    starts = life.given(StartWorker)
    for _ in range(10):
        if life.supervisor.state is S.KILLING:
            life.exit()
        life.wait(100)
    assert life.supervisor.state in {S.STOPPED, S.DISABLED}
    assert life.given(StartWorker) == starts


SupervisedLife.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestSupervisedLife = SupervisedLife.TestCase


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_workers_live_for_a_long_time(seed: int) -> None:
    draw = Random(seed)
    for _ in range(5000):
        wander(SupervisedLife(), draw, 150)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_worker_lives_for_a_long_time() -> None:
    run_state_machine_as_test(
        SupervisedLife,
        settings=settings(
            max_examples=3000, stateful_step_count=100, deadline=None, report_multiple_bugs=False
        ),
    )
