"""From a staged result to its name in the outbox: what blocks it, what a crash leaves of it, what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.core.conversation import ServiceCrashed, World, cleaned
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import Policy

FULL = "no space left on device"


def ready_world(policy: Policy | None = None) -> World:
    world = World(policy)
    world.work()
    return world


def drop_marked(world: World, path: str, data: bytes | None = None) -> None:
    world.drop_mask(path)
    world.drop(path, data or f"picture {path}".encode())


# --- blocked -----------------------------------------------------------------------------------------------


def test_a_full_outbox_loses_nothing_and_costs_no_attempt() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.work()
    world.advance(1000)
    assert world.outbox == {}
    assert len(world.given(c.RunBatch)) == 2, "the model is not run for results that cannot be kept"
    assert len(world.given(c.RunBatch)[-1].batch.items) == 1, "but one is tried, were it only the first one"
    assert world.pipeline.snapshot()["blocked"] == FULL
    world.outbox_refuses = None
    world.settle()
    assert world.states() == ["done"] * 3
    assert [world.line(path)["attempt"] for path in ("a.jpg", "b.jpg", "c.jpg")] == [1, 1, 1]
    assert world.pipeline.snapshot()["blocked"] is None


def test_a_full_outbox_is_told_of_once_and_its_end_too() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.work()
    world.advance(3600)
    assert len(world.said("publish.blocked")) == 1
    assert world.said("publish.resumed") == []
    world.outbox_refuses = None
    world.settle()
    assert len(world.said("publish.resumed")) == 1


def test_the_outbox_is_asked_again_ever_more_rarely() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    drop_marked(world, "a.jpg")
    world.work()
    asked = []
    for _ in range(600):
        count = len(world.given(c.SealResult))
        world.advance(1)
        if len(world.given(c.SealResult)) > count:
            asked.append(round(world.now_ns / 1e9))
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert gaps[0] in {9, 10, 11}
    assert max(gaps) in {59, 60, 61}
    assert gaps == sorted(gaps)


def test_an_outbox_that_seals_and_does_not_rename_is_told_of_once() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    world.outbox_refuses = FULL
    world.patient = False
    world.finish_operations()
    assert world.states() == ["publishing"]
    world.advance(600)
    assert len(world.said("publish.blocked")) == 1
    assert world.said("publish.resumed") == []
    world.outbox_refuses = None
    world.settle()
    assert world.states() == ["done"]


def test_a_slow_outbox_is_not_asked_twice_for_the_same() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    drop_marked(world, "a.jpg")
    world.work()
    world.outbox_refuses = None
    world.patient = True
    world.advance(1000)
    assert len(world.operations) == 1


def test_what_was_blocked_and_then_lost_is_served_again_and_published_once() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg")
    world.work()
    world.staging.clear()
    world.outbox_refuses = None
    world.settle()
    assert world.states() == ["done", "done"]
    assert sorted(world.outbox) == ["a.jpg", "b.jpg"]


def test_what_was_blocked_and_then_changed_is_superseded() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    drop_marked(world, "a.jpg")
    world.work()
    world.drop("a.jpg", b"other bytes")
    world.outbox_refuses = None
    world.settle()
    assert world.states() == ["superseded", "done"]
    assert world.outbox == {"a.jpg": cleaned(b"other bytes", b"a mask")}


def test_full_staging_is_waited_for_without_an_attempt_and_without_noise() -> None:
    world = ready_world()
    world.staging_full = True
    for number in range(10):
        drop_marked(world, f"{number}.jpg")
    for _ in range(60):
        world.work()
        world.advance(10)
    assert set(world.states()) == {"ready"}
    assert {job.attempts for job in world.journal.jobs.values()} == {0}
    assert 2 <= len(world.said("publish.blocked")) <= 11
    assert len(world.given(c.RunBatch)) < 25
    world.staging_full = False
    world.settle()
    assert world.states() == ["done"] * 10
    assert world.line("3.jpg")["attempt"] == 1


def test_one_picture_that_the_outbox_refuses_for_ever_does_not_stop_the_others() -> None:
    world = ready_world()
    refuse = world._seal

    def seal(command: c.SealResult) -> e.Event:
        if command.job.source == "a.jpg":
            return e.PublishBlocked(command.job.id, "file name too long")
        return refuse(command)

    world._seal = seal  # type: ignore[method-assign] # the fault
    drop_marked(world, "a.jpg")
    world.settle(30)
    for number in range(200):
        drop_marked(world, f"{number}.jpg")
    world.settle(30)
    assert world.states().count("done") == 200
    drop_marked(world, "late.jpg")
    world.work()
    assert world.states("late.jpg") == ["done"]
    assert len(world.said("publish.blocked")) == 1


def test_a_drain_does_not_wait_for_a_full_outbox() -> None:
    world = ready_world()
    world.outbox_refuses = FULL
    drop_marked(world, "a.jpg")
    world.work()
    world.advance(300)
    world.send(e.DrainRequested("SIGTERM"))
    world.work()
    assert world.is_drained()
    world.outbox_refuses = None
    world.restart()
    world.settle()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["attempt"] == 1


# --- names and staged files that go ------------------------------------------------------------------------


def test_a_name_that_is_taken_between_sealing_and_renaming_gets_a_number() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    world.outbox["a.jpg"] = b"somebody's own"
    world.patient = False
    world.finish_operations()
    assert world.outbox["a.jpg"] == b"somebody's own"
    assert world.job("a.jpg").output == "a (2).jpg"
    assert world.states() == ["done"]


def test_a_source_that_changes_while_its_result_looks_for_another_name_is_superseded() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    world.outbox["a.jpg"] = b"somebody's own"
    world.finish_operations(1)  # the name is taken
    world.drop("a.jpg", b"other bytes")
    world.patient = False
    world.finish_operations()
    world.settle()
    assert world.states() == ["superseded", "done"]
    assert world.outbox["a (2).jpg"] == cleaned(b"other bytes", b"a mask")
    assert len(world.outbox) == 2


def test_a_staged_file_that_goes_missing_is_made_again() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.staging.clear()
    world.patient = False
    world.finish_operations()
    world.settle()
    assert world.states() == ["done"]
    line = world.line("a.jpg")
    assert line["attempt"] == 2
    assert line["segments_ms"]["lost_attempts"] > 0


def test_a_staged_file_that_goes_missing_after_it_was_sealed_is_made_again() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    assert world.states() == ["publishing"]
    world.advance(20)
    world.staging.clear()
    world.patient = False
    world.finish_operations()
    world.settle()
    assert world.states() == ["done"]
    line = world.line("a.jpg")
    assert line["segments_ms"]["lost_attempts"] > 20_000
    assert line["segments_ms"]["queue"] < 1000


def test_a_staging_folder_that_loses_everything_does_not_keep_the_model_running_hot() -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    for _ in range(60):
        world.work()
        world.staging.clear()
        world.finish_operations()
        world.advance(1)
    runs = len(world.given(c.RunBatch)) + len(world.given(c.RunCold))
    assert runs < 12
    world.patient = False
    world.settle()
    assert world.states() == ["done"]


def test_answers_about_jobs_that_are_not_in_the_outbox_change_nothing() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    job = world.job("a.jpg").id
    before = world.job("a.jpg")
    world.hush()
    for event in (
        e.ResultSealed(job, "a.jpg", "00"),
        e.PublishBlocked(job, FULL),
        e.NameTaken(job),
        e.ResultSealed("none-9", "a.jpg", "00"),
        e.SourceChanged("none-9", "it"),
        e.StageLost("none-9", "it"),
        e.NameTaken("none-9"),
        e.ResultPublished("none-9", "a.jpg", world.now_ns),
        e.PublishBlocked("none-9", FULL),
    ):
        world.send(event)
    assert world.job("a.jpg") == before
    assert world.commands == []


# --- after a crash -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [0, 1])
def test_publishing_is_finished_after_a_crash_without_running_the_model(operations: int) -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    assert world.states() == ["publishing"]
    world.patient = False
    world.hush()
    world.restart(operations_done=operations)
    world.settle()
    assert world.states() == ["done"]
    assert world.served() == []
    assert world.outbox == {"a.jpg": cleaned(b"picture a.jpg", b"a mask")}
    line = world.line("a.jpg")
    assert line["rescued"] is True
    assert line["segments_ms"]["inference"] > 0
    assert len(world.journal.lines) == 1


@pytest.mark.parametrize("first", ["the answer", "the listing"])
def test_publishing_whose_result_is_lost_is_served_again_after_a_crash(first: str) -> None:
    world = ready_world()
    world.patient = True
    drop_marked(world, "a.jpg")
    world.work()
    world.finish_operations(1)
    world.kill_service()
    world.staging.clear()
    world.patient = first == "the listing"
    world.start()
    assert world.states() == (["publishing"] if world.patient else ["ready"])
    world.patient = False
    world.finish_operations()
    world.settle()
    assert world.states() == ["done"], "it is not gone, and it is not forgotten"
    assert world.line("a.jpg")["outcome"] == "done"


def test_running_is_ready_after_a_crash_and_that_was_no_attempt() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    world.restart()
    assert world.states() == ["ready"]
    world.settle()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["attempt"] == 1


def test_every_crash_point_of_the_main_job_leads_to_one_result() -> None:
    """Kill the service before each command and after each commit, until none is left to kill it at."""
    for crash_in in range(100):
        world = World()
        world.crash_in = crash_in
        died = False
        try:
            world.work()
            drop_marked(world, "a.jpg")
            world.work()
        except ServiceCrashed:
            died = True
            for path, data in (("a.jpg.mask.png", b"a mask"), ("a.jpg", b"picture a.jpg")):
                if path not in world.disk:
                    world.put(path, data)
            world.restart()
            world.settle()
        assert world.states().count("done") == 1, crash_in
        assert set(world.states()) == {"done"}, crash_in
        assert world.outbox == {"a.jpg": cleaned(b"picture a.jpg", b"a mask")}, crash_in
        assert len(world.journal.lines) == 1, crash_in
        assert world.staging == {}, crash_in
        if not died:
            assert crash_in > 10
            return
    pytest.fail("the main job never came to its end")


# --- what follows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["keep", "archive", "delete"])
def test_the_source_is_disposed_of_only_after_the_result_is_committed(after: str) -> None:
    world = ready_world(Policy(after=after))  # type: ignore[arg-type] # parametrised literal
    world.patient = True
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg", b"picture a.jpg")
    drop_marked(world, "bad.jpg", b"a bad picture")
    world.work()
    assert world.disposed == []
    world.patient = False
    world.finish_operations()
    world.settle()
    assert world.disposed == ([] if after == "keep" else ["a.jpg", "b.jpg"])


@pytest.mark.parametrize(
    ("then", "later", "disposed"),
    [
        ("archive", "archive", ["a.jpg"]),
        ("delete", "delete", ["a.jpg"]),
        ("keep", "delete", []),
        ("archive", "keep", []),
        ("delete", "archive", []),
    ],
)
def test_a_disposal_that_a_crash_prevented_is_made_up_for_if_it_is_still_wanted(
    then: str, later: str, disposed: list[str]
) -> None:
    world = ready_world(Policy(after=then))  # type: ignore[arg-type] # parametrised literal
    drop_marked(world, "a.jpg")
    world.work()
    world.disposed.clear()  # the crash came before anything was moved
    world.policy = Policy(after=later)  # type: ignore[arg-type] # parametrised literal
    world.restart()
    world.settle()
    assert world.disposed == disposed
    assert world.states() == ["done"]


def test_a_crash_between_the_masks_disposal_and_the_pictures_is_made_up_for() -> None:
    world = ready_world(Policy(after="delete"))
    drop_marked(world, "a.jpg")
    world.work()
    world.disposed.clear()
    world.kill_service()
    del world.disk["a.jpg.mask.png"]  # the disposal had come so far
    world.start()
    world.settle()
    assert world.disposed == ["a.jpg"]
    assert world.states() == ["done"]


@pytest.mark.parametrize("mask_first", [True, False])
def test_a_source_that_is_taken_away_afterwards_is_no_new_job(mask_first: bool) -> None:  # noqa: FBT001 - parametrised
    world = ready_world(Policy(after="delete"))
    drop_marked(world, "a.jpg")
    world.work()
    for path in ("a.jpg.mask.png", "a.jpg") if mask_first else ("a.jpg", "a.jpg.mask.png"):
        world.remove(path)
    world.settle(1000)
    assert world.states() == ["done"]
    assert len(world.given(c.RunBatch)) == 1
    assert world.said("file.orphan_mask") == []
