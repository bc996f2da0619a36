"""Batches, processes that die, stand still or do not start, and the two paths."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.core.conversation import NS, START_SEGMENTS, World, cleaned
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import ArrivalPolicy, BatchPolicy, ColdPolicy, Policy, WorkerPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

HOT_ONLY = Policy(cold=ColdPolicy(enabled=False))


def ready_world(policy: Policy | None = None) -> World:
    world = World(policy)
    world.work()
    return world


def drop_marked(world: World, path: str, data: bytes | None = None) -> None:
    world.drop_mask(path)
    world.drop(path, data or f"picture {path}".encode())


def sources(command: c.RunBatch | c.RunCold) -> list[str]:
    return [item.job.source for item in command.batch.items]


# --- batches -----------------------------------------------------------------------------------------------


def test_what_waits_goes_together_when_the_model_is_free() -> None:
    world = ready_world(Policy(batching=BatchPolicy(max_batch=4)))
    for number in range(10):
        drop_marked(world, f"{number}.jpg")
    world.work()
    assert [len(sources(run)) for run in world.given(c.RunBatch)] == [1, 4, 4, 1]
    assert [source for run in world.given(c.RunBatch) for source in sources(run)] == [
        f"{number}.jpg" for number in range(10)
    ]
    assert world.states() == ["done"] * 10
    assert world.line("2.jpg")["batch_size"] == 4


def test_a_lone_picture_is_not_made_to_wait_for_company() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    assert len(world.given(c.RunBatch)) == 1


def test_linger_waits_for_company_and_no_longer() -> None:
    world = ready_world(Policy(batching=BatchPolicy(max_batch=3, linger_s=0.5)))
    drop_marked(world, "a.jpg")
    world.advance(0.3)
    drop_marked(world, "b.jpg")
    world.advance(0.1)
    assert world.given(c.RunBatch) == []
    world.advance(0.2)
    (run,) = world.given(c.RunBatch)
    assert sources(run) == ["a.jpg", "b.jpg"]


def test_a_full_batch_does_not_linger() -> None:
    world = ready_world(Policy(batching=BatchPolicy(max_batch=2, linger_s=5)))
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg")
    assert len(world.given(c.RunBatch)) == 1


def test_the_first_of_a_fresh_worker_is_marked_as_such() -> None:
    world = ready_world()
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.work()
    assert [world.line(path)["first_hot"] for path in ("a.jpg", "b.jpg", "c.jpg")] == [True, False, False]


def test_ten_thousand_pictures_cost_the_core_little_each() -> None:
    """The time of an event must not grow with what waits: a burst would take the square of it."""
    world = World()
    calls = 0
    facts = world.pipeline._intake.facts

    def counted(path: str) -> object:
        nonlocal calls
        calls += 1
        return facts(path)

    world.pipeline._intake.facts = counted  # type: ignore[method-assign,assignment] # to count
    for number in range(1500):
        drop_marked(world, f"{number}.jpg")
    assert calls < 1500 * 40


# --- a worker dies -----------------------------------------------------------------------------------------


def test_a_crash_in_mid_batch_blames_only_the_one_that_was_served() -> None:
    world = ready_world()
    drop_marked(world, "0.jpg")
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    hot = world.hot
    hot.serve(hot.begin("a.jpg"))
    hot.begin("b.jpg")
    hot.crash()
    assert world.states("a.jpg") == ["done"]
    assert world.job("b.jpg").suspect
    assert not world.job("c.jpg").suspect
    assert world.job("c.jpg").solo_faults == world.job("b.jpg").solo_faults == 0
    assert sources(world.given(c.RunCold)[0]) == ["b.jpg"]
    world.work()
    assert world.states() == ["done"] * 4
    line = world.line("b.jpg")
    assert (line["path"], line["path_reason"], line["attempt"], line["batch_size"]) == (
        "cold",
        "suspect",
        2,
        1,
    )
    assert line["segments_ms"]["lost_attempts"] > 0
    assert line["segments_ms"]["model_load"] > 0
    assert world.staging == {}


def test_the_unblamed_go_cold_while_the_worker_is_down() -> None:
    world = ready_world(Policy(cold=ColdPolicy(max_parallel=2)))
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    world.hot.begin("a.jpg")
    world.hot.crash()
    assert [sources(run) for run in world.given(c.RunCold)] == [["a.jpg"], ["b.jpg", "c.jpg"]]
    world.work()
    assert (world.line("b.jpg")["path"], world.line("b.jpg")["path_reason"]) == ("cold", "crashed")


def test_the_worker_is_started_again_after_a_pause_and_serves() -> None:
    world = ready_world()
    world.hot.crash()
    assert len(world.given(c.StartWorker)) == 1
    world.advance(0.5)
    assert len(world.given(c.StartWorker)) == 2
    world.work()
    drop_marked(world, "a.jpg")
    world.work()
    assert (world.line("a.jpg")["path"], world.line("a.jpg")["worker"]["incarnation"]) == ("hot", 2)
    assert world.pipeline.snapshot()["worker"]["restarts"] == 1  # type: ignore[index,call-overload] # JSON


def test_a_poison_picture_is_quarantined_after_two_faults_alone_and_nobody_else_is_harmed() -> None:
    world = ready_world(Policy(batching=BatchPolicy(max_batch=16)))
    for number in range(63):
        drop_marked(world, f"{number:02}.jpg")
        if number == 40:
            drop_marked(world, "poison.jpg", b"poison")
    world.settle()
    assert world.states("poison.jpg") == ["quarantined"]
    assert sorted(set(world.states())) == ["done", "quarantined"]
    assert len(world.outbox) == 63
    assert all(job.solo_faults == 0 for job in world.journal.jobs.values() if job.source != "poison.jpg")
    exits = [said for said in world.said("worker.exited") if said["exit_code"] == -9]
    assert [said["path"] for said in exits] == ["hot", "cold", "cold"]
    segments = world.line("poison.jpg")["segments_ms"]
    assert segments["lost_attempts"] > 2 * 2000, "two starts of a one-shot were lost on it"
    note = world.notes["failed", "poison.jpg"]
    assert note["state"] == "quarantined"
    assert "killed by signal 9" in note["reason"]


def test_a_poison_count_outlives_the_service() -> None:
    world = ready_world()
    drop_marked(world, "poison.jpg", b"poison")
    world.hot.serve(world.hot.begin())
    assert world.job("poison.jpg").solo_faults == 1
    world.restart()
    world.settle()
    assert world.states() == ["quarantined"]
    crashes = [said for said in world.said("worker.exited") if said["exit_code"] == -9]
    assert len(crashes) == 2


def test_a_suspect_that_is_served_is_cleared() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.hot.crash()
    world.work()
    assert world.states() == ["done"]
    assert not world.job("a.jpg").suspect


def test_a_suspect_that_is_held_is_cleared() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.hot.begin()
    world.hot.crash()
    world.work()
    assert world.states() == ["held"]
    assert not world.job("a.jpg").suspect


def test_between_two_items_the_next_one_is_taken_to_be_served() -> None:
    world = ready_world()
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    world.hot.serve(world.hot.begin())
    world.hot.crash()
    assert [world.job(path).suspect for path in ("b.jpg", "c.jpg")] == [True, False]


def test_a_worker_that_dies_before_it_reads_the_batch_blames_nobody() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.crash()
    world.work()
    line = world.line("a.jpg")
    assert (line["outcome"], line["path_reason"], line["attempt"]) == ("done", "crashed", 1)


def test_without_a_cold_path_a_suspect_goes_alone_to_the_resident_worker() -> None:
    world = ready_world(HOT_ONLY)
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg", "d.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    world.hot.begin("a.jpg")
    world.hot.crash()
    world.settle()
    assert [sources(run) for run in world.given(c.RunBatch)] == [
        ["0.jpg"],
        ["a.jpg", "b.jpg", "c.jpg", "d.jpg"],
        ["a.jpg"],
        ["b.jpg", "c.jpg", "d.jpg"],
    ]
    assert world.states() == ["done"] * 5


def test_a_picture_whose_worker_was_lost_stands_first_in_the_line() -> None:
    world = ready_world(Policy(cold=ColdPolicy(enabled=False), batching=BatchPolicy(max_batch=1)))
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.begin()
    world.hot.crash()
    world.settle()
    assert [sources(run) for run in world.given(c.RunBatch)] == [["a.jpg"], ["a.jpg"], ["b.jpg"], ["c.jpg"]]


def test_reports_of_the_dead_change_nothing() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    dead = world.hot
    item = dead.begin()
    report = dead.report(item, cleaned(b"picture a.jpg", b"a mask"))
    dead.crash()
    before = world.job("a.jpg")
    world.hush()
    for event in (
        e.WorkerReady(dead.origin, world.now_ns, {}, {}, {}, 0, 1),
        e.BatchStarted(dead.origin, "b1"),
        e.ItemStarted(dead.origin, "b1", item.job.id),
        e.ItemProgressed(dead.origin, "b1", item.job.id, "decode"),
        e.ItemDone(dead.origin, "b1", item.job.id, unchanged=False, reason=None, report=report),
        e.ItemHeld(dead.origin, "b1", item.job.id, report),
        e.ItemIncomplete(dead.origin, "b1", item.job.id, "no end", report),
        e.ItemFailed(dead.origin, "b1", item.job.id, "bad", "bad", "none", report),
        e.BatchDone(dead.origin, "b1", 0),
        e.WorkerExited(dead.origin, -9, "again"),
    ):
        world.send(event)
    assert world.job("a.jpg") == before
    assert {type(command) for command in world.commands} == {c.Log}
    world.work()
    assert world.states() == ["done"]


def test_a_report_that_comes_twice_counts_once() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    report = world.hot.report(item, cleaned(b"picture a.jpg", b"a mask"))
    done = e.ItemDone(world.hot.origin, "b1", item.job.id, unchanged=False, reason=None, report=report)
    world.send(done)
    world.send(done)
    assert world.states() == ["done"]
    assert len(world.given(c.SealResult)) == 1


def test_a_worker_that_forgets_an_item_is_not_asked_for_ever() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    for _ in range(10):
        busy = [process for process in world.processes if process.alive and process.batch]
        if not busy:
            break
        busy[0].read_batch()
        busy[0].batch_done()
        world.advance(1)
        for process in world.processes:
            if process.alive and not process.is_ready:
                process.ready()
    assert world.states() == ["failed"]
    assert world.notes["failed", "a.jpg"]["reason"] == "the worker did not report on it"


def test_an_engine_error_is_tried_once_more_alone_and_then_the_picture_has_failed() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a picture on which the engine raises")
    drop_marked(world, "b.jpg")
    world.settle()
    assert world.states("a.jpg") == ["failed"]
    assert world.line("a.jpg")["attempt"] == 2
    assert world.states("b.jpg") == ["done"]
    assert len(world.said("job.engine_failed")) == 1


def test_crashes_of_others_do_not_count_as_engine_errors() -> None:
    world = ready_world()
    for path in ("0.jpg", "poison.jpg", "a.jpg"):
        drop_marked(world, path, {"poison.jpg": b"poison", "a.jpg": b"the engine raises"}.get(path))
    world.settle()
    assert world.states("a.jpg") == ["failed"]
    assert len(world.said("job.engine_failed")) == 1, "one more try, although an attempt was lost before"


# --- a worker that does not start --------------------------------------------------------------------------


def test_a_starting_worker_is_waited_for_no_longer_than_a_cold_job_takes() -> None:
    world = World()
    drop_marked(world, "a.jpg")
    world.advance(9.9)
    assert world.given(c.RunCold) == []
    world.advance(0.2)
    (run,) = world.given(c.RunCold)
    assert sources(run) == ["a.jpg"]
    world.cold.ready()
    world.cold.serve(world.cold.begin())
    assert world.line("a.jpg")["path_reason"] == "starting"


def test_each_waiting_picture_is_waited_for_in_its_turn() -> None:
    """The first one cannot go; that must not hide that the second one has waited long enough."""
    world = World()
    drop_marked(world, "a.jpg")
    world.advance(5)
    drop_marked(world, "b.jpg")
    world.grow("a.jpg", b"a picture that grows again")
    world.unkillable = True  # type: ignore[attr-defined] # nothing steps the processes here
    world.advance(10.1)
    assert [sources(run) for run in world.given(c.RunCold)] == [["b.jpg"]]


def test_the_measured_cold_time_is_what_a_start_is_worth_waiting_for() -> None:
    world = ready_world()
    world.hot.crash()
    drop_marked(world, "a.jpg")
    world.cold.ready()
    world.cold.serve(world.cold.begin())
    world.cold.batch_done()
    assert 2 < world.pipeline._lanes.cold_s(world.job("a.jpg")) < 3


def test_a_start_that_takes_too_long_is_killed_and_called_stalled() -> None:
    world = World(Policy(worker=WorkerPolicy(start_timeout_s=30)))
    world.advance(31)
    assert len(world.given(c.KillWorker)) == 1
    drop_marked(world, "a.jpg")
    world.work()
    assert world.line("a.jpg")["path_reason"] == "stalled"


def test_the_breaker_opens_after_too_many_crashes_and_the_cold_path_serves() -> None:
    world = World()
    for _ in range(5):
        world.hot.crash()
        world.advance(20)
        if not any(process.alive for process in world.processes):
            break
    assert world.pipeline.snapshot()["worker"]["state"] == "open"  # type: ignore[index,call-overload] # JSON
    drop_marked(world, "a.jpg")
    world.cold.ready()
    world.cold.serve(world.cold.begin())
    assert world.line("a.jpg")["path_reason"] == "breaker_open"
    starts = len(world.given(c.StartWorker))
    world.cold.batch_done()
    world.advance(61)
    assert len(world.given(c.StartWorker)) == starts + 1
    drop_marked(world, "b.jpg")
    assert sources(world.given(c.RunCold)[-1]) == ["b.jpg"], "half open: nobody waits for the trial"
    world.work()
    drop_marked(world, "d.jpg")
    world.work()
    assert world.line("d.jpg")["path"] == "hot"


def test_a_worker_that_cannot_run_as_configured_is_not_started_again() -> None:
    world = World()
    world.hot.exit(78, "no such engine")
    world.advance(4000)
    assert len(world.given(c.StartWorker)) == 1
    drop_marked(world, "a.jpg")
    world.work()
    assert world.line("a.jpg")["path_reason"] == "disabled"


def test_a_cold_start_that_fails_blames_nobody_and_is_tried_ever_more_rarely() -> None:
    world = ready_world(Policy(once=True))
    drop_marked(world, "a.jpg")
    starts = []
    for _ in range(8):
        starts.append(world.now_ns)
        world.cold.crash()
        assert world.job("a.jpg").state == "ready"
        assert (world.job("a.jpg").attempts, world.job("a.jpg").solo_faults) == (0, 0)
        count = len(world.given(c.RunCold))
        while len(world.given(c.RunCold)) == count:
            world.advance(0.5)
    gaps_s = [(later - sooner) / 1e9 for sooner, later in pairwise(starts)]
    assert gaps_s[0] >= 1
    assert gaps_s == sorted(gaps_s)
    assert 59 <= gaps_s[-1] <= 62
    world.settle()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["attempt"] == 1


def test_a_cold_process_that_is_ready_and_dies_before_it_reads_is_no_endless_loop() -> None:
    world = ready_world(Policy(once=True))
    drop_marked(world, "a.jpg")
    deaths = 0
    until_ns = world.now_ns + 300 * 1_000_000_000
    while world.now_ns < until_ns:
        if world.colds:
            world.cold.ready()
            world.cold.crash()
            deaths += 1
        world.advance(1)
    assert 5 < deaths < 14
    assert not world.job("a.jpg").suspect


# --- a worker that stands still ----------------------------------------------------------------------------


def test_a_worker_that_makes_no_progress_is_killed_and_its_picture_served_cold() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.advance(2.9)
    assert world.given(c.KillWorker) == []
    world.advance(0.4)
    assert len(world.given(c.KillWorker)) == 1
    world.work()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["path"] == "cold"


def test_progress_puts_the_stall_off() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    for _ in range(5):
        world.advance(2.9)
        progress = e.ItemProgressed(world.hot.origin, "b1", item.job.id, "inference", NS, next_phase="read")
        world.send(progress)
    assert world.given(c.KillWorker) == []


def test_others_go_cold_as_soon_as_a_kill_is_decided() -> None:
    """Whether the process dies of it is not theirs to wait for."""
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.hot.unkillable = True
    drop_marked(world, "b.jpg")
    world.advance(5.1)
    assert [sources(run) for run in world.given(c.RunCold)] == [["b.jpg"]]
    world.cold.ready()
    world.cold.serve(world.cold.begin())
    assert world.line("b.jpg")["path_reason"] == "stalled"


def test_the_pictures_of_a_process_that_cannot_be_killed_are_served_without_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    stuck = world.hot
    item = stuck.begin()
    stuck.unkillable = True
    world.advance(11)
    (run,) = world.given(c.RunCold)
    assert run.batch.items[0].stage_name != item.stage_name, "it may still write under the old name"
    report = stuck.report(item, cleaned(b"picture a.jpg", b"a mask"))
    world.send(e.ItemDone(stuck.origin, "b1", item.job.id, unchanged=False, reason=None, report=report))
    assert world.states() == ["running"]
    world.cold.ready()
    world.cold.serve(world.cold.begin())
    assert world.states() == ["done"]
    world.advance(3600)
    assert len(world.given(c.StartWorker)) == 1, "no second resident worker beside it"
    assert len(world.given(c.KillWorker)) < 80
    stuck.exit(-9)
    world.advance(60)
    assert len(world.given(c.StartWorker)) == 2


def test_a_one_shot_that_cannot_be_killed_does_not_block_the_cold_path() -> None:
    world = World(Policy(once=True))
    drop_marked(world, "a.jpg")
    world.cold.ready()
    world.cold.begin()
    world.cold.unkillable = True
    world.advance(130)
    assert len(world.given(c.RunCold)) == 2


def test_a_one_shot_that_never_gets_ready_is_killed() -> None:
    world = World(Policy(once=True))
    drop_marked(world, "a.jpg")
    world.advance(121)
    assert len(world.given(c.KillWorker)) == 1
    world.settle()
    assert world.states() == ["done"]


# --- the two paths -----------------------------------------------------------------------------------------


def test_a_busy_healthy_worker_sends_nobody_to_the_cold_path() -> None:
    world = ready_world()
    for number in range(5):
        drop_marked(world, f"{number}.jpg")
    item = world.hot.begin()
    for _ in range(60):
        world.advance(2.9)
        progress = e.ItemProgressed(world.hot.origin, "b1", item.job.id, "inference", NS, next_phase="read")
        world.send(progress)
    assert world.given(c.RunCold) == []


def test_the_change_of_path_is_told_both_ways() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.hot.crash()
    drop_marked(world, "b.jpg")
    world.work()
    world.advance(5)
    world.work()
    drop_marked(world, "d.jpg")
    world.work()
    assert [(said["path"], said["reason"]) for said in world.said("path.changed")] == [
        ("cold", "crashed"),
        ("hot", "ready"),
    ]


def test_a_recycled_worker_is_replaced_and_nothing_is_called_a_crash() -> None:
    world = ready_world(Policy(worker=WorkerPolicy(recycle_items=2)))
    for number in range(5):
        drop_marked(world, f"{number}.jpg")
    world.settle()
    assert world.states() == ["done"] * 5
    assert len(world.given(c.StartWorker)) >= 2
    assert world.said("worker.restarting") == []
    assert {line["path"] for line in world.journal.lines} == {"hot"}


def test_a_lazy_worker_starts_with_the_first_picture() -> None:
    world = World(Policy(worker=WorkerPolicy(lazy=True)))
    assert world.given(c.StartWorker) == []
    drop_marked(world, "a.jpg")
    assert len(world.given(c.StartWorker)) == 1
    world.work()
    assert world.line("a.jpg")["path"] == "hot"


# --- the end -----------------------------------------------------------------------------------------------


def test_a_drain_finishes_what_runs_and_begins_nothing() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg")
    world.send(e.DrainRequested("SIGTERM"))
    drop_marked(world, "d.jpg")
    assert not world.is_drained()
    world.work()
    assert world.is_drained()
    assert world.states("a.jpg") == ["done"]
    assert world.states("b.jpg") == world.states("d.jpg") == ["ready"]
    assert len(world.given(c.StartWorker)) == 1
    world.restart()
    world.settle()
    assert world.states() == ["done"] * 3


def test_a_drain_that_takes_too_long_kills_and_is_no_attempt() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.send(e.DrainRequested("SIGTERM"))
    world.advance(24)
    assert world.given(c.KillWorker) == []
    world.advance(2)
    assert len(world.given(c.KillWorker)) == 1
    assert world.is_drained()
    assert world.job("a.jpg").state == "ready"
    assert (world.job("a.jpg").attempts, world.job("a.jpg").suspect) == (0, False)


def test_a_drain_ends_although_a_process_does_not() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.hot.unkillable = True
    world.send(e.DrainRequested("SIGTERM"))
    world.advance(31)
    assert world.is_drained()
    world.restart()
    world.settle()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["attempt"] == 1


def test_a_drain_kills_one_shots_too() -> None:
    world = World(Policy(once=True))
    drop_marked(world, "a.jpg")
    world.cold.ready()
    world.cold.begin()
    world.send(e.DrainRequested("SIGTERM"))
    world.advance(26)
    assert world.is_drained()
    assert (world.job("a.jpg").state, world.job("a.jpg").solo_faults) == ("ready", 0)


@pytest.mark.parametrize("state", ["starting", "ready", "backoff"])
def test_an_idle_service_drains_at_once(state: str) -> None:
    world = World()
    if state != "starting":
        world.work()
    if state == "backoff":
        world.hot.crash()
    world.send(e.DrainRequested("SIGTERM"))
    world.send(e.DrainRequested("SIGTERM"))
    world.work()
    assert world.is_drained()
    world.advance(100)
    assert len(world.given(c.StartWorker)) == 1


# --- once --------------------------------------------------------------------------------------------------


def test_once_serves_all_that_is_there_in_one_process_and_is_idle() -> None:
    world = World(Policy(once=True), listed=False)
    for number in range(40):
        world.put(f"{number}.jpg", f"picture {number}".encode())
        world.put(f"{number}.jpg.mask.png", b"a mask")
    world.put("unmarked.jpg", b"a picture")
    world.put("empty.jpg", b"")
    world.advance(10)
    world.send(world.journal.opened())
    assert not world.is_idle()
    world.send(e.InboxFound("native"))
    assert not world.is_idle()
    world.listing()
    assert not world.is_idle()
    assert world.given(c.StartWorker) == []
    (run,) = world.given(c.RunCold)
    assert len(sources(run)) == 41
    world.work()
    assert world.is_idle()
    assert sorted(set(world.states())) == ["done", "held"]
    assert world.line("7.jpg")["path_reason"] == "once"


def test_once_serves_more_than_fits_into_memory_at_a_time_in_several_processes() -> None:
    world = World(Policy(once=True, arrivals=ArrivalPolicy(window_once=8)), listed=False)
    for number in range(40):
        world.put(f"{number}.jpg", b"picture %d" % number)
        world.put(f"{number}.jpg.mask.png", b"a mask")
    world.advance(10)
    world.send(world.journal.opened())
    world.send(e.InboxFound("native"))
    world.listing()
    world.settle()
    assert world.states() == ["done"] * 40
    assert world.is_idle()
    assert 5 <= len(world.given(c.RunCold)) <= 12


def test_once_is_not_idle_between_the_listing_and_the_first_look() -> None:
    world = World(Policy(once=True), listed=False)
    world.put("a.jpg", b"a picture")
    pipeline = world.pipeline
    pipeline.handle(world.journal.opened(), world.now)
    pipeline.handle(e.InboxFound("native"), world.now)
    listed = world._list()
    assert listed is not None
    looks = pipeline.handle(listed, world.now)
    assert c.ObserveFile("a.jpg") in looks
    assert not pipeline.is_idle


@pytest.mark.parametrize(("code", "tries"), [(78, 1), (1, 5)])
def test_once_does_not_wait_for_a_process_that_cannot_start(code: int, tries: int) -> None:
    world = World(Policy(once=True))
    drop_marked(world, "a.jpg")
    for _ in range(tries):
        assert not world.is_idle()
        while not world.colds:
            world.advance(1)
        world.cold.exit(code)
    assert world.is_idle()
    assert world.pipeline.open_jobs == 1
    assert world.states() == ["ready"]


def test_once_does_not_wait_for_a_file_that_nobody_can_read() -> None:
    world = World(Policy(once=True), listed=False)
    world.put("a.jpg", b"a picture", unreadable="permission denied")
    world.advance(10)
    world.start()
    assert not world.is_idle()
    world.advance(20)
    assert world.is_idle()


# --- devices -----------------------------------------------------------------------------------------------


def says_ready(
    world: World, path: str, device: Mapping[str, str | None], *, asked: str | None = None
) -> None:
    """The newest process of this kind says that it is ready, and on which device."""
    process = world.hot if path == "hot" else world.cold
    assert process.device == asked
    process.is_ready = True
    world.send(
        e.WorkerReady(process.origin, world.now_ns, dict.fromkeys(START_SEGMENTS, 0), {}, device, 1, 1)
    )


ON_CPU = {"configured": "cuda", "actual": "cpu", "reason": "cuda:0 does not exist here; runs on cpu"}


def test_a_device_that_is_not_there_is_told_once_however_many_workers_start() -> None:
    world = World(Policy(device="cuda"))
    for _ in range(3):
        says_ready(world, "hot", ON_CPU)
        world.advance(200)
        world.hot.crash()
        drop_marked(world, f"{world.now_ns}.jpg")
        says_ready(world, "cold", ON_CPU)
        world.cold.crash()
        world.advance(30)
    (told,) = world.said("device.replaced")
    assert told == {**ON_CPU}


def test_a_device_that_is_not_there_is_told_where_only_one_shots_serve() -> None:
    world = World(Policy(device="cuda", once=True))
    drop_marked(world, "a.jpg")
    says_ready(world, "cold", ON_CPU)
    assert len(world.said("device.replaced")) == 1


@pytest.mark.parametrize(
    ("configured", "actual", "told"),
    [
        ("auto", "cpu", 0),
        ("cuda", "cuda:0", 0),
        ("cuda:1", "cuda:1", 0),
        ("cuda:1", "cuda:10", 1),
        ("cuda:1", "cuda:0", 1),
        ("mps", "cpu", 1),
        ("cpu", "cpu", 0),
    ],
)
def test_a_replacement_is_what_a_person_did_not_name(configured: str, actual: str, told: int) -> None:
    world = World(Policy(device=configured))
    says_ready(world, "hot", {"configured": configured, "actual": actual, "reason": None})
    assert len(world.said("device.replaced")) == told
