"""The line that sums up: when it comes, what it counts, and that nothing makes no line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.core.conversation import NS, World
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.core.policy import Policy
from watcher.core.summary import MAX_TIMES, Summary

if TYPE_CHECKING:
    from watcher.core.job import JsonObject

HOUR_NS = 3600 * NS


def ended(state: JobState = JobState.DONE, path: str = "hot", total_ms: float = 100.0) -> Job:
    record: JsonObject = {"path": path, "total_ms": total_ms}
    made = Job("a-1", "a", Fingerprint(1, 1, 1, 1), Identity("a", None, "default"), state, 0.0)
    return replace(made, record=record)


def told(summary: Summary, now_ns: int = HOUR_NS) -> dict[str, Any]:
    fields = summary.take(now_ns)
    assert fields is not None
    return dict(fields)


def test_nothing_makes_no_line_and_wakes_nobody() -> None:
    summary = Summary(3600.0)
    summary.restarted(0, 5)
    assert summary.due_ns() is None
    assert summary.take(HOUR_NS) is None


def test_a_line_is_due_so_long_after_the_first_thing_and_no_later_for_the_second() -> None:
    summary = Summary(3600.0)
    summary.ended(ended(), 7 * NS)
    summary.held(9 * NS)
    assert summary.due_ns() == 7 * NS + HOUR_NS
    assert told(summary, 7 * NS + HOUR_NS)["over_s"] == 3600.0
    assert summary.due_ns() is None


def test_outcomes_paths_and_restarts_are_counted_and_begin_anew() -> None:
    summary = Summary(3600.0)
    for state, path in (
        (JobState.DONE, "hot"),
        (JobState.DONE, "cold"),
        (JobState.UNCHANGED, "hot"),
        (JobState.FAILED, "hot"),
        (JobState.QUARANTINED, "none"),
        (JobState.SUPERSEDED, "none"),
        (JobState.GONE, "none"),
    ):
        summary.ended(ended(state, path), 0)
    summary.held(0)
    summary.restarted(3, 0)
    first = told(summary)
    counts = (
        "done",
        "unchanged",
        "failed",
        "quarantined",
        "superseded",
        "gone",
        "held",
        "hot",
        "cold",
        "restarts",
    )
    assert [first[name] for name in counts] == [2, 1, 1, 1, 1, 1, 1, 3, 1, 3]
    summary.restarted(4, 0)
    second = told(summary)
    assert [second[name] for name in counts] == [0] * 9 + [1]
    assert second["p50_ms"] is second["p95_ms"] is None


@pytest.mark.parametrize(
    ("count", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (3, 2, 3), (20, 10, 19), (100, 50, 95), (101, 51, 96)]
)
def test_percentiles_are_of_the_nearest_rank(count: int, p50: float, p95: float) -> None:
    summary = Summary(3600.0)
    for number in range(count, 0, -1):
        summary.ended(ended(total_ms=float(number)), 0)
    fields = told(summary)
    assert (fields["p50_ms"], fields["p95_ms"]) == (p50, p95)


def test_times_are_of_pictures_that_a_worker_served_and_that_came_out() -> None:
    summary = Summary(3600.0)
    summary.ended(ended(total_ms=5.0), 0)
    summary.ended(ended(JobState.FAILED, total_ms=900.0), 0)
    summary.ended(ended(path="none", total_ms=900.0), 0)
    assert told(summary)["p95_ms"] == 5.0


def test_what_is_kept_is_bounded_and_what_is_counted_is_not() -> None:
    summary = Summary(3600.0)
    for number in range(MAX_TIMES + 100):
        summary.ended(ended(total_ms=float(number)), 0)
    assert len(summary._times_ms) == MAX_TIMES
    fields = told(summary)
    assert fields["done"] == MAX_TIMES + 100
    assert fields["p50_ms"] >= 100


# --- in the service ----------------------------------------------------------------------------------------


def serve(world: World, name: str) -> None:
    world.drop_mask(name)
    world.drop(name, name.encode())
    world.work()


def test_the_service_sums_up_after_an_hour_and_is_silent_when_nothing_happened() -> None:
    world = World()
    world.work()
    serve(world, "a.jpg")
    serve(world, "b.jpg")
    world.advance(3500)
    assert world.said("service.summed_up") == []
    world.advance(200)
    (line,) = world.said("service.summed_up")
    assert (line["done"], line["hot"], line["restarts"]) == (2, 2, 0)
    world.advance(3 * 3600)
    assert len(world.said("service.summed_up")) == 1


def test_the_service_wakes_up_for_it() -> None:
    world = World(Policy(summary_s=0.5))
    world.work()
    serve(world, "a.jpg")
    woken_ns = world.pipeline.next_wakeup_ns()
    assert woken_ns is not None
    assert woken_ns <= world.now_ns + NS // 2


def test_a_restart_alone_is_something() -> None:
    world = World()
    world.work()
    world.hot.crash()
    world.advance(30)
    world.work()
    world.advance(3700)
    (line,) = world.said("service.summed_up")
    assert (line["restarts"], line["done"]) == (1, 0)


def test_what_was_done_is_summed_up_when_the_service_stops() -> None:
    world = World()
    world.work()
    serve(world, "a.jpg")
    world.send(e.DrainRequested("a test"))
    world.work()
    assert world.is_drained()
    (line,) = world.said("service.summed_up")
    assert line["done"] == 1
    said = [command.event for command in world.given(c.Log)]
    assert said.index("service.stopping") < said.index("service.summed_up")


@pytest.mark.parametrize("policy", [Policy(summary_s=None), Policy(once=True)], ids=["never", "once"])
def test_who_wants_none_gets_none(policy: Policy) -> None:
    world = World(policy)
    world.work()
    serve(world, "a.jpg")
    world.advance(4000)
    world.send(e.DrainRequested("a test"))
    world.work()
    assert world.said("service.summed_up") == []
