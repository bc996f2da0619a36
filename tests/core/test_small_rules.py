"""Batching, routing, retry and the worklist: rules that are small enough for tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.batching import choose_batch, linger_until_ns
from watcher.core.events import Evidence
from watcher.core.job import Fingerprint, Identity, Job, JobClock, JobState
from watcher.core.policy import BatchPolicy, ColdPolicy, RetryPolicy
from watcher.core.retry import after_loss, unblamed
from watcher.core.routing import PathReason, Situation, route
from watcher.core.supervision import WorkerState
from watcher.core.worklist import Worklist

MB = 1_000_000
W = WorkerState


def job(name: str = "a", size_bytes: int = 100, ready_ns: int = 0, **facts: object) -> Job:
    made = Job(
        id=name,
        source=f"{name}.jpg",
        fingerprint=Fingerprint(1, size_bytes, 0, 0),
        identity=Identity(name, None, "default"),
        state=JobState.READY,
        created_s=0.0,
        clock=JobClock(0, 0, 0, ready_ns),
    )
    return replace(made, **facts)  # type: ignore[arg-type] # facts are fields of a job


def named(jobs: object) -> list[str]:
    return [made.id for made in jobs]  # type: ignore[attr-defined] # an iterable of jobs


# --- batching ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "max_batch", "max_bytes", "taken"),
    [
        ([], 4, 100, 0),
        ([1], 4, 100, 1),
        ([1] * 5, 4, 100, 4),
        ([1] * 5, 8, 100, 5),
        ([1000], 4, 100, 1),
        ([1000, 1], 4, 100, 1),
        ([60, 60, 1], 4, 100, 1),
        ([50, 50, 1], 4, 100, 2),
        ([1, 1], 1, 100, 1),
    ],
)
def test_what_goes_together(sizes: list[int], max_batch: int, max_bytes: int, taken: int) -> None:
    waiting = [job(str(number), size) for number, size in enumerate(sizes)]
    chosen = choose_batch(waiting, BatchPolicy(max_batch=max_batch, max_file_bytes=max_bytes))
    assert chosen == tuple(waiting[:taken])


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 20), st.integers(1, 300))
def test_a_batch_keeps_its_limits_and_its_order(sizes: list[int], max_batch: int, max_bytes: int) -> None:
    waiting = [job(str(number), size) for number, size in enumerate(sizes)]
    chosen = choose_batch(iter(waiting), BatchPolicy(max_batch=max_batch, max_file_bytes=max_bytes))
    assert list(chosen) == waiting[: len(chosen)]
    assert len(chosen) <= max_batch
    assert len(chosen) <= 1 or sum(made.fingerprint.size_bytes for made in chosen) <= max_bytes
    assert bool(chosen) is bool(waiting)


def test_only_as_many_are_asked_as_fit() -> None:
    asked = []

    def waiting() -> object:
        for number in range(1000):
            asked.append(number)
            yield job(str(number))

    choose_batch(waiting(), BatchPolicy(max_batch=4))  # type: ignore[arg-type] # a generator of jobs
    assert len(asked) <= 5


def test_linger_counts_from_the_one_that_waits_longest() -> None:
    policy = BatchPolicy(max_batch=3, linger_s=0.5)
    batch = (job("a", ready_ns=2_000_000_000), job("b", ready_ns=1_000_000_000))
    assert linger_until_ns(batch, policy) == 1_500_000_000
    assert linger_until_ns((*batch, job("c")), policy) == 0
    assert linger_until_ns(batch, replace(policy, linger_s=0.0)) == 0


# --- routing -----------------------------------------------------------------------------------------------

R = PathReason
ROUTES = [
    # worker, fault, late: path, reason
    (W.READY, None, False, "hot", R.READY),
    (W.READY, None, True, "hot", R.READY),
    (W.BUSY, None, False, "wait", R.READY),
    (W.BUSY, None, True, "wait", R.READY),
    (W.STARTING, None, False, "wait", R.READY),
    (W.WARMING, None, False, "wait", R.READY),
    (W.WARMING, None, True, "cold", R.STARTING),
    (W.WARMING, "crashed", False, "cold", R.CRASHED),
    (W.STARTING, None, True, "cold", R.STARTING),
    (W.STARTING, "crashed", False, "cold", R.CRASHED),
    (W.STARTING, "stalled", False, "cold", R.STALLED),
    (W.STOPPED, None, False, "wait", R.READY),
    (W.STOPPED, None, True, "cold", R.STARTING),
    (W.DRAINING, None, False, "wait", R.READY),
    (W.DRAINING, None, True, "cold", R.STARTING),
    (W.BACKOFF, "crashed", False, "cold", R.CRASHED),
    (W.BACKOFF, "stalled", False, "cold", R.STALLED),
    (W.KILLING, "stalled", False, "cold", R.STALLED),
    (W.OPEN, "crashed", False, "cold", R.BREAKER_OPEN),
    (W.HALF_OPEN, "crashed", False, "cold", R.BREAKER_OPEN),
    (W.DISABLED, "crashed", False, "cold", R.DISABLED),
]


def situation(
    worker: WorkerState, fault: str | None = None, *, late: bool = False, **more: bool
) -> Situation:
    return Situation(
        worker=worker,
        fault=fault,  # type: ignore[arg-type] # parametrised literal
        waited_s=11.0 if late else 9.0,
        cold_s=10.0,
        suspect=more.get("suspect", False),
        once=more.get("once", False),
    )


@pytest.mark.parametrize(("worker", "fault", "late", "path", "reason"), ROUTES)
def test_the_path_of_a_job(
    worker: WorkerState,
    fault: str | None,
    late: bool,  # noqa: FBT001 - parametrised
    path: str,
    reason: PathReason,
) -> None:
    chosen = route(situation(worker, fault, late=late), ColdPolicy())
    assert (chosen.path, chosen.reason) == (path, reason)


def test_the_table_knows_every_state() -> None:
    assert {row[0] for row in ROUTES} == set(WorkerState)


@pytest.mark.parametrize("worker", WorkerState)
def test_a_suspect_goes_cold_whatever_the_worker_does(worker: WorkerState) -> None:
    chosen = route(situation(worker, suspect=True), ColdPolicy())
    assert (chosen.path, chosen.reason) == ("cold", R.SUSPECT)


@pytest.mark.parametrize(
    ("worker", "suspect", "late"), list(product(WorkerState, [False, True], [False, True]))
)
def test_without_a_cold_path_the_hot_one_is_waited_for(
    worker: WorkerState,
    suspect: bool,  # noqa: FBT001 - parametrised
    late: bool,  # noqa: FBT001 - parametrised
) -> None:
    chosen = route(situation(worker, "crashed", late=late, suspect=suspect), ColdPolicy(enabled=False))
    assert chosen.path == ("hot" if worker is W.READY else "wait")


@pytest.mark.parametrize("worker", WorkerState)
def test_once_is_cold_by_design(worker: WorkerState) -> None:
    for enabled in (True, False):
        policy = ColdPolicy(enabled=enabled)
        assert route(situation(worker, once=True), policy).reason is R.ONCE
        assert route(situation(worker, once=True, suspect=True), policy).reason is R.SUSPECT


# --- retry -------------------------------------------------------------------------------------------------

POLICY = RetryPolicy()


def test_alone_the_job_is_blamed_and_the_second_time_given_up() -> None:
    (first,) = after_loss([job("a", attempts=1)], "a", alone=True, policy=POLICY)
    assert (first.action, first.job.solo_faults, first.job.suspect) == ("release", 1, True)
    (second,) = after_loss([first.job], "a", alone=True, policy=POLICY)
    assert (second.action, second.job.solo_faults) == ("quarantine", 2)


def test_a_signal_from_outside_is_not_held_against_a_job_and_not_for_ever_either() -> None:
    for attempts, faults in ((1, 0), (5, 0), (6, 1), (9, 1)):
        (verdict,) = after_loss(
            [job("a", attempts=attempts)], "a", alone=True, policy=POLICY, is_foreign=True
        )
        assert (verdict.action, verdict.job.suspect) == ("release", True)
        assert verdict.job.solo_faults == faults


@pytest.mark.parametrize(
    ("evidence", "is_foreign"),
    [
        (Evidence("oom_suspected", None, "SIGKILL", oom_kills=0), True),
        (Evidence("oom_suspected", None, "SIGKILL", oom_kills=1), False),
        (Evidence("oom_suspected", None, "SIGKILL", oom_kills=None), False),
        (Evidence("killed", None, "SIGKILL", process_state="T"), True),
        (Evidence("killed", None, "SIGKILL", process_state="S"), False),
        (Evidence("signal", None, "SIGSEGV", oom_kills=0), False),
        (Evidence("exited", 139, oom_kills=0), False),
    ],
)
def test_what_is_taken_to_come_from_outside(
    evidence: Evidence,
    is_foreign: bool,  # noqa: FBT001 - parametrised
) -> None:
    assert evidence.is_foreign is is_foreign


def test_in_company_the_one_in_progress_is_a_suspect_and_nobody_is_blamed() -> None:
    verdicts = after_loss([job("a"), job("b"), job("c")], "b", alone=False, policy=POLICY)
    assert [verdict.action for verdict in verdicts] == ["release"] * 3
    assert [verdict.job.suspect for verdict in verdicts] == [False, True, False]
    assert {verdict.job.solo_faults for verdict in verdicts} == {0}


def test_between_two_items_the_next_is_taken_to_be_in_progress() -> None:
    verdicts = after_loss([job("b"), job("c")], None, alone=False, policy=POLICY)
    assert [verdict.job.suspect for verdict in verdicts] == [True, False]
    (alone,) = after_loss([job("b")], None, alone=True, policy=POLICY)
    assert alone.job.solo_faults == 1
    assert after_loss([], None, alone=True, policy=POLICY) == []


@given(st.integers(1, 16), st.data())
def test_every_loss_makes_progress(size: int, data: st.DataObject) -> None:
    """If nothing is ever reported, everything is given up after a bounded number of losses."""
    waiting = [job(str(number)) for number in range(size)]
    for _ in range(size * (POLICY.max_solo_faults + 1)):
        suspects = [made for made in waiting if made.suspect]
        batch = suspects[:1] or [made for made in waiting if not made.suspect]
        if not batch:
            return
        in_progress = data.draw(st.sampled_from([None, batch[0].id]))
        verdicts = after_loss(batch, in_progress, alone=len(batch) == 1, policy=POLICY)
        kept = {verdict.job.id: verdict.job for verdict in verdicts if verdict.action == "release"}
        gone = {verdict.job.id for verdict in verdicts if verdict.action == "quarantine"}
        waiting = [kept.get(made.id, made) for made in waiting if made.id not in gone]
    assert waiting == []


def test_the_unblamed_have_their_attempt_back() -> None:
    verdicts = unblamed([job("a", attempts=3, solo_faults=1), job("b", attempts=0)])
    assert [(v.action, v.job.attempts, v.job.solo_faults) for v in verdicts] == [
        ("release", 2, 1),
        ("release", 0, 0),
    ]


# --- the worklist ------------------------------------------------------------------------------------------


def test_a_job_keeps_its_place_while_its_ready_ns_stays() -> None:
    jobs = Worklist()
    for name in ("a", "b", "c"):
        jobs.put(job(name, ready_ns=1))
    jobs.put(job("a", ready_ns=1, mask="a_mask.png"))
    assert named(jobs.ready()) == ["a", "b", "c"]
    jobs.put(job("a", ready_ns=2))
    assert named(jobs.ready()) == ["b", "c", "a"]


def test_the_ones_that_were_dispatched_before_stand_first() -> None:
    jobs = Worklist()
    jobs.put(job("a", ready_ns=1))
    jobs.put(job("b", clock=JobClock(0, 0, 0, ready_ns=5, dispatched_ns=3)))
    assert named(jobs.ready()) == ["b", "a"]


def test_suspects_are_an_index_of_the_ready_ones() -> None:
    jobs = Worklist()
    jobs.put(job("a", suspect=True))
    jobs.put(job("b"))
    assert named(jobs.suspects()) == ["a"]
    jobs.put(job("a", suspect=True, state=JobState.RUNNING))
    assert named(jobs.suspects()) == []
    assert named(jobs.ready()) == ["b"]


def test_the_primary_is_neither_held_nor_a_copy() -> None:
    identity = Identity("same", None, "default")
    jobs = Worklist()
    jobs.put(job("held", identity=identity, state=JobState.HELD))
    assert jobs.primary(identity) is None
    jobs.put(job("first", identity=identity))
    jobs.put(job("copy", identity=identity, state=JobState.WAITING, duplicate_of="first"))
    assert jobs.primary(identity) == jobs.get("first")
    assert named(jobs.duplicates("first")) == ["copy"]


def is_in_line(made: Job) -> bool:
    moves_on = made.state in {JobState.READY, JobState.PUBLISHING}
    copies = made.state is JobState.WAITING and made.duplicate_of is not None
    return made.clock is not None and (moves_on or copies)


CHANGES = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from([*JobState, None]),
    st.booleans(),
    st.sampled_from([None, "a", "b"]),
    st.integers(0, 2),
)


@given(st.lists(CHANGES, max_size=40))
def test_the_indexes_say_what_the_jobs_say(
    story: list[tuple[str, JobState | None, bool, str | None, int]],
) -> None:
    jobs = Worklist()
    kept: dict[str, Job] = {}
    aside: set[str] = set()
    for name, state, suspect, duplicate_of, dispatched_ns in story:
        if state is None:
            jobs.remove(name)
            kept.pop(name, None)
            aside.discard(name)
            continue
        clock = JobClock(0, 0, 0, ready_ns=1, dispatched_ns=dispatched_ns) if dispatched_ns else None
        made = job(name, state=state, suspect=suspect, duplicate_of=duplicate_of, clock=clock)
        jobs.put(made)
        kept[name] = made
        (jobs.set_aside if suspect else jobs.back_in_line)(name)
        (aside.add if suspect else aside.discard)(name)
    ready = [made for made in kept.values() if made.state is JobState.READY]
    assert len(jobs) == len(kept)
    assert sorted(named(jobs.ready())) == sorted(named(ready))
    assert sorted(named(jobs.suspects())) == sorted(made.id for made in ready if made.suspect)
    assert jobs.has_ready is bool(ready)
    assert jobs.count().total() == len(kept)
    assert jobs.in_line == sum(is_in_line(made) for made in kept.values() if made.id not in aside)
    for name in "abcd":
        assert jobs.get(name) == kept.get(name)
        assert jobs.at(f"{name}.jpg") == kept.get(name)
        copies = sorted(made.id for made in kept.values() if made.duplicate_of == name)
        assert sorted(named(jobs.duplicates(name))) == copies
