"""The time chain for any life that a job can have: each segment is the span that it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conversation import MS, World
from watcher.core import events as e
from watcher.core.events import WorkReport
from watcher.core.job import Fingerprint, Identity, Job, JobClock, JobState
from watcher.core.lanes import Lanes
from watcher.core.policy import BatchPolicy, Policy
from watcher.core.routing import PathReason
from watcher.core.timeline import (
    SEGMENTS,
    START_SEGMENTS,
    WORK_SEGMENTS,
    arrival_chain,
    empty_chain,
    finished_segments,
    work_chain,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

begins_ns = st.integers(1, 10**12)
"""A clock of a machine that has booted: no instant is 0, which a job that never was dispatched has."""
ROUNDING_MS = 0.001 * (len(SEGMENTS) + 2)
"""Each segment, the total and the rest are told to the microsecond."""
spans_ns = st.integers(0, 10**12)


@dataclass(frozen=True)
class Attempt:
    """One attempt that was lost: the wait before it, siblings before its turn, and what was lost.

    Between two attempts a job may be nobody's for a while, which is a wait too.
    """

    queue_ns: int
    company_ns: int
    lost_ns: int


attempts = st.lists(st.builds(Attempt, spans_ns, spans_ns, spans_ns), max_size=4)
parts = {name: spans_ns for name in SEGMENTS if name not in {"publish", "lost_attempts"}}


def a_job(clock: JobClock) -> Job:
    return Job(
        "3fa9c1d2-1",
        "a.jpg",
        Fingerprint(1, 2, 3, 4),
        Identity("cafe", "beef", "default"),
        JobState.READY,
        0.0,
        clock=clock,
    )


def dispatched(job: Job, at_ns: int) -> Job:
    """As the dispatcher does it."""
    clock = job.clock
    assert clock is not None
    queued_ns = clock.queued_ns + at_ns - clock.ready_ns
    return replace(job, clock=replace(clock, dispatched_ns=at_ns, queued_ns=queued_ns))


def lived(spans: Mapping[str, int], lost: list[Attempt], begun_ns: int) -> tuple[Job, int]:
    """A job on its last dispatch, and when that was."""
    settled_ns = begun_ns + spans["backlog"] + spans["settle"]
    hashed_ns = settled_ns + spans["identify"]
    now_ns = hashed_ns + spans["pair"]
    job = a_job(JobClock(begun_ns, settled_ns, hashed_ns, ready_ns=now_ns, backlog_ns=spans["backlog"]))
    for attempt in lost:
        now_ns += attempt.queue_ns
        job = dispatched(job, now_ns)
        now_ns += attempt.company_ns + attempt.lost_ns
        job = job.lost_so_far(now_ns, attempt.company_ns)
    now_ns += spans["queue"]
    return dispatched(job, now_ns), now_ns


@given(
    spans=st.fixed_dictionaries(parts),
    back_ns=spans_ns,
    lost=attempts,
    begun_ns=begins_ns,
    is_cold=st.booleans(),
    early=st.booleans(),
)
def test_each_segment_is_its_span_whatever_happened_before(
    spans: dict[str, int], back_ns: int, lost: list[Attempt], begun_ns: int, *, is_cold: bool, early: bool
) -> None:
    """Any number of lost attempts, on either path; a cold process reads its batch early or late."""
    job, at_ns = lived(spans, lost, begun_ns)
    there_ns = spans["ipc"]
    start_ns = ready_ns = None
    if is_cold:
        start_ns = {name: spans[name] for name in START_SEGMENTS}
        ready_ns = at_ns + sum(start_ns.values())
        if early:  # what lies in the pipe of a process that starts is read within one of those segments
            there_ns, received_ns = 0, at_ns + sum(start_ns.values()) // 2
        else:
            received_ns = ready_ns + there_ns
        turn_ns = ready_ns + there_ns + spans["batch_wait"]
    else:
        received_ns = at_ns + there_ns
        turn_ns = received_ns + spans["batch_wait"]
    work_ns = {name: spans[name] for name in WORK_SEGMENTS}
    finished_ns = turn_ns + sum(work_ns.values())
    report = WorkReport(finished_ns + back_ns, received_ns, turn_ns, finished_ns, work_ns)
    assert job.clock is not None

    chain = work_chain(job.clock, report, start_ns, ready_ns)

    assert chain == {
        **empty_chain(),
        **{name: ns for name, ns in spans.items() if is_cold or name not in START_SEGMENTS},
        "queue": spans["queue"] + sum(attempt.queue_ns for attempt in lost),
        "lost_attempts": sum(attempt.lost_ns for attempt in lost),
        "batch_wait": spans["batch_wait"] + sum(attempt.company_ns for attempt in lost),
        "ipc": there_ns + back_ns,
    }
    assert sum(chain.values()) == report.received_ns - begun_ns, "a gap, or an overlap"


@given(spans=st.fixed_dictionaries(parts), lost=attempts, begun_ns=begins_ns, more_ns=spans_ns)
def test_the_chain_of_a_job_that_nobody_reported_on_has_no_gap_at_any_instant(
    spans: dict[str, int], lost: list[Attempt], begun_ns: int, more_ns: int
) -> None:
    """It ends while it waits: after it was hashed, or after an attempt was lost."""
    job, at_ns = lived(spans, lost, begun_ns)
    assert job.clock is not None
    chain = arrival_chain(job.clock, at_ns + more_ns)
    assert sum(chain.values()) == at_ns + more_ns - begun_ns
    assert min(chain.values()) >= 0
    assert (chain["backlog"], chain["settle"]) == (spans["backlog"], spans["settle"])
    assert chain["lost_attempts"] == sum(attempt.lost_ns for attempt in lost)
    waits_ns = spans["pair"] + spans["queue"] + sum(attempt.queue_ns for attempt in lost)
    assert chain["queue"] == waits_ns + more_ns


instants = st.integers(0, 10**13)


@given(data=st.data())
def test_whatever_the_order_of_the_instants_no_segment_is_negative_and_the_rest_is_told(
    data: st.DataObject,
) -> None:
    """The worker's instants in their own order, but any way beside the service's: nothing is made up."""
    observed, settled, hashed, ready, sent = sorted(data.draw(st.lists(instants, min_size=5, max_size=5)))
    received, started, finished = sorted(data.draw(st.lists(instants, min_size=3, max_size=3)))
    heard = finished + data.draw(spans_ns)
    clock = JobClock(observed, settled, hashed, ready, dispatched_ns=sent, queued_ns=sent - ready)
    cold = data.draw(st.booleans())
    start_ns = dict.fromkeys(START_SEGMENTS, data.draw(spans_ns)) if cold else None
    report = WorkReport(heard, received, started, finished, {"read": finished - started})
    chain = work_chain(clock, report, start_ns, data.draw(instants) if cold else None)
    assert min(chain.values()) >= 0
    total_ns = heard - observed
    segments, total_ms = finished_segments(chain, total_ns)
    assert abs(sum(segments.values()) - total_ms) <= ROUNDING_MS
    untold_ms = (total_ns - sum(chain.values())) / 1e6
    assert abs(segments["unattributed"] - untold_ms) <= ROUNDING_MS, (
        "what is claimed twice is not hidden either"
    )


@given(st.lists(spans_ns, min_size=len(SEGMENTS), max_size=len(SEGMENTS)))
def test_rounding_never_shows_as_less_than_nothing_or_as_more_than_it_is(parts_ns: list[int]) -> None:
    segments, total_ms = finished_segments(dict(zip(SEGMENTS, parts_ns, strict=True)), sum(parts_ns))
    assert 0 <= segments["unattributed"] <= ROUNDING_MS
    assert total_ms == round(sum(parts_ns) / 1e6, 3)
    assert all(segments[name] == round(ns / 1e6, 3) for name, ns in zip(SEGMENTS, parts_ns, strict=True))


# --- what a start leaves untold ----------------------------------------------------------------------------


def test_what_a_start_does_not_claim_stays_unattributed_and_only_what_was_before_it_is_its_own() -> None:
    """5 ms from the dispatch to the call that starts it, and 300 ms that no part of the start claims."""
    lanes = Lanes(Policy(), lambda: 0.5)
    flight = lanes.take_off(7, "cold", PathReason.CRASHED, (), 1_000 * MS)
    told = {"process_start": 40 * MS, "import": 500 * MS, "warmup": 50 * MS, "unattributed": 300 * MS}
    ready_ns = (1_000 + 5 + 890) * MS
    origin = e.Origin("cold", 7, 4711, "here")
    lanes.flights.is_ready(flight, e.WorkerReady(origin, ready_ns, told, {}, {}, 1, 1), ready_ns)
    start_ns, ready_at_ns = lanes.start_segments(flight)
    assert start_ns is not None
    assert (start_ns["process_start"], start_ns["import"], ready_at_ns) == (45 * MS, 500 * MS, ready_ns)

    clock = JobClock(900 * MS, 900 * MS, 900 * MS, 900 * MS, dispatched_ns=1_000 * MS, queued_ns=100 * MS)
    report = WorkReport(ready_ns + 9 * MS, ready_ns, ready_ns, ready_ns + 9 * MS, {"read": 9 * MS})
    chain = work_chain(clock, report, start_ns, ready_ns)
    segments, _ = finished_segments(chain, report.received_ns - clock.observed_ns)
    assert segments["unattributed"] == 300.0


# --- attempts that brought nothing -------------------------------------------------------------------------


def told_of(world: World, source: str, outcome: str) -> dict[str, float]:
    """The segments in the only line of this picture with this outcome."""
    lines = [line for line in world.journal.lines if (line["source"], line["outcome"]) == (source, outcome)]
    (segments,) = (line["segments_ms"] for line in lines)
    return segments  # type: ignore[no-any-return] # JSON


@pytest.mark.parametrize(("code", "outcome"), [("changed", "superseded"), ("vanished", "gone")])
def test_the_time_in_a_worker_that_found_other_bytes_or_none_is_no_wait_in_the_queue(
    code: str, outcome: str
) -> None:
    world = World()
    world.hot.ready()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    item = world.hot.begin("a.jpg")
    if code == "vanished":
        world.remove("a.jpg")
    world.now_ns += 700 * MS
    world.hot.failed(item, code)
    told = told_of(world, "a.jpg", outcome)
    assert told["lost_attempts"] >= 700
    assert told["queue"] < 100


def test_the_time_of_a_worker_that_said_nothing_of_its_picture_is_no_wait_in_the_queue() -> None:
    world = World()
    world.hot.ready()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    lost_ms = 0
    while busy := next((each for each in world.processes if each.alive and each.batch), None):
        if not busy.is_ready:
            busy.ready()
        busy.read_batch()
        world.now_ns += 300 * MS
        lost_ms += 300
        busy.batch_done()
        world.advance(0.01)
    told = told_of(world, "a.jpg", "failed")
    assert told["lost_attempts"] >= lost_ms >= 600
    assert told["queue"] < 100


def test_siblings_before_an_attempt_that_brought_nothing_are_no_loss() -> None:
    world = World(Policy(batching=BatchPolicy(max_batch=4)))
    for name in ("a.jpg", "b.jpg"):
        world.drop_mask(name)
        world.drop(name, name.encode())
    world.hot.ready()
    first = world.hot.begin("a.jpg")
    world.now_ns += 500 * MS
    world.hot.done(first)
    second = world.hot.begin("b.jpg")
    world.now_ns += 200 * MS
    world.hot.failed(second, "changed")
    told = told_of(world, "b.jpg", "superseded")
    assert told["batch_wait"] >= 500
    assert 200 <= told["lost_attempts"] < 400
