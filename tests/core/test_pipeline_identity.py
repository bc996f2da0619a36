"""The same content is served once, whatever its name; and again when a person says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conversation import World, cleaned
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import Policy, Recipe

COPY = Policy(recipes=(Recipe(unmarked="copy"),))


def ready_world(policy: Policy | None = None) -> World:
    world = World(policy)
    world.work()
    return world


def drop_marked(world: World, path: str, data: bytes = b"a picture", mask: bytes = b"a mask") -> None:
    world.drop_mask(path, mask)
    world.drop(path, data)


# --- a second path -----------------------------------------------------------------------------------------


def test_a_second_path_gets_a_copy_of_a_finished_result() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    drop_marked(world, "b.jpg")
    world.work()
    assert world.served() == ["a.jpg"]
    assert world.outbox == {name: cleaned(b"a picture", b"a mask") for name in ("a.jpg", "b.jpg")}
    line = world.line("b.jpg")
    assert (line["path"], line["duplicate_of"]) == ("none", world.job("a.jpg").id)
    assert (line["attempt"], line["outcome"]) == (0, "done")
    assert line["image"]["width"] == 8


def test_second_paths_wait_for_the_result_that_is_being_made() -> None:
    world = ready_world()
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    assert world.states() == ["running", "waiting", "waiting"]
    world.work()
    assert world.states() == ["done", "done", "done"]
    assert world.served() == ["a.jpg"]
    assert sorted(world.outbox) == ["a.jpg", "b.jpg", "c.jpg"]
    assert len(world.said("job.duplicate")) == 2


def test_when_the_first_is_superseded_only_one_of_the_others_is_served() -> None:
    world = World()
    for path in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
        drop_marked(world, path)
    world.drop("a.jpg", b"another picture")
    world.work()
    assert world.states() == ["superseded", "done", "done", "done", "done"]
    assert sorted(world.served()) == ["a.jpg", "b.jpg"]
    assert world.outbox["d.jpg"] == cleaned(b"a picture", b"a mask")


def test_when_the_first_gets_another_mask_the_others_do_not_get_its_result() -> None:
    world = World(COPY)
    world.drop("a.jpg", b"a picture")
    world.drop("b.jpg", b"a picture")
    assert world.states() == ["ready", "waiting"]
    world.drop_mask("a.jpg", b"a mask")
    world.work()
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a mask"), "b.jpg": b"a picture"}
    assert world.job("b.jpg").duplicate_of is None


def test_second_paths_of_a_refused_picture_are_refused_with_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    drop_marked(world, "b.jpg", b"a bad picture")
    world.work()
    assert world.states() == ["failed", "failed"]
    assert world.served() == ["a.jpg"]
    assert set(world.notes) == {("failed", "a.jpg"), ("failed", "b.jpg")}


def test_a_refused_picture_at_another_path_is_not_tried_there_either() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    drop_marked(world, "b.jpg", b"a bad picture")
    world.work()
    assert world.states() == ["failed", "failed"]
    assert world.served() == ["a.jpg"]
    assert world.notes["failed", "b.jpg"]["reason"] == "it is undecodable"
    assert world.line("b.jpg")["duplicate_of"] == world.job("a.jpg").id


def test_unmarked_copies_of_one_picture_are_all_held() -> None:
    world = ready_world()
    for path in ("a.jpg", "b.jpg", "c.jpg"):
        world.drop(path, b"a picture")
    world.work()
    assert world.states() == ["held", "held", "held"]
    assert set(world.notes) == {("held", "a.jpg"), ("held", "b.jpg"), ("held", "c.jpg")}


def test_a_copy_whose_original_output_is_gone_is_served_itself() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.outbox.clear()
    drop_marked(world, "b.jpg")
    world.work()
    assert world.states() == ["done", "done"]
    assert world.served() == ["a.jpg", "b.jpg"]
    assert world.job("b.jpg").duplicate_of is None


def test_a_copy_that_was_interrupted_is_made_after_a_restart() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.patient = True
    drop_marked(world, "b.jpg")
    world.patient = False
    world.restart(operations_done=1)
    world.settle()
    assert world.states() == ["done", "done"]
    assert world.served() == ["a.jpg"]
    assert world.staging == {}


def test_the_record_of_a_copy_that_was_interrupted_is_of_its_second_life() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.outbox_refuses = "no space left on device"
    drop_marked(world, "b.jpg")
    world.advance(1000)
    world.kill_service()
    del world.disk["a.jpg"]
    world.start()
    world.settle(50)
    assert world.states("b.jpg") == ["done", "superseded"], "what was a copy is a rename now"
    line = world.line("b.jpg")
    assert (line["outcome"], line["path"]) == ("superseded", "none")
    assert line["total_ms"] < 1000


def test_a_duplicate_survives_that_its_original_is_finished_by_a_rescue() -> None:
    """Before the first listing nobody may conclude that the original's picture has gone."""
    world = ready_world()
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg")
    world.patient = True
    world.work()
    world.finish_operations(1)  # sealed; not published
    assert world.states() == ["publishing", "waiting"]
    world.patient = False
    world.restart()
    world.settle()
    assert world.states() == ["done", "done"]
    assert sorted(world.outbox) == ["a.jpg", "b.jpg"]
    assert world.served() == ["a.jpg"]


# --- a rename ----------------------------------------------------------------------------------------------


def test_a_done_picture_that_is_renamed_is_nothing_to_do() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.rename("a.jpg.mask.png", "b.jpg.mask.png")
    world.rename("a.jpg", "b.jpg")
    world.settle()
    assert world.states() == ["done"]
    assert world.job("b.jpg").output == "a.jpg"
    (said,) = world.said("job.renamed")
    assert (said["source"], said["now"], said["output"]) == ("a.jpg", "b.jpg", "a.jpg")
    assert "watcher retry" in said["remedy"]
    world.hush()
    world.restart()
    world.settle()
    assert world.said("job.renamed") == world.said("job.already_done") == []
    assert world.served() == []


def test_a_rename_of_which_only_the_new_name_is_told_makes_no_copy() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.move_unseen("a.jpg", "b.jpg")
    for path in ("b.jpg.mask.png", "b.jpg"):
        world.notify(path, e.Hint.MOVED_IN)
    world.settle()
    assert world.states() == ["done"]
    assert len(world.said("job.renamed")) == 1


def test_a_copy_waits_for_word_of_its_original() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.slow_looks = True
    drop_marked(world, "b.jpg", world.disk["a.jpg"].data)
    world.finish_looks(2)  # both are hashed
    assert world.states() == ["done"]
    assert not world.is_idle()
    world.slow_looks = False
    world.finish_looks()
    world.settle()
    assert world.states() == ["done", "done"]
    assert world.line("b.jpg")["duplicate_of"] == world.job("a.jpg").id
    assert world.is_idle()


def test_copies_that_wait_for_word_of_the_same_original_all_get_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.slow_looks = True
    copies = [f"copy-{number}.jpg" for number in range(5)]
    for path in copies:
        drop_marked(world, path, world.disk["a.jpg"].data)
    world.finish_looks()
    world.slow_looks = False
    world.settle()
    assert world.states() == ["done"] * 6
    assert {world.line(path)["duplicate_of"] for path in copies} == {world.job("a.jpg").id}
    assert world.is_idle()


def test_after_a_rename_a_second_path_gets_its_copy() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.send(e.RetryRequested((world.job("a.jpg"),)))
    world.work()
    world.rename("a.jpg.mask.png", "b.jpg.mask.png")
    world.rename("a.jpg", "b.jpg")
    drop_marked(world, "c.jpg")
    world.settle()
    assert "c.jpg" in world.outbox
    assert {job.source for job in world.journal.jobs.values()} == {"b.jpg", "c.jpg"}


def test_a_rename_while_the_service_was_away_is_nothing_to_do() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.kill_service()
    world.move_unseen("a.jpg", "b.jpg")
    world.start()
    world.settle()
    assert world.states() == ["done"]
    assert world.served() == ["a.jpg"]


def test_a_rename_while_it_is_published_leaves_one_result() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.patient = True
    world.work()
    world.finish_operations(1)
    world.rename("a.jpg.mask.png", "b.jpg.mask.png")
    world.rename("a.jpg", "b.jpg")
    drop_marked(world, "c.jpg")
    world.patient = False
    world.finish_operations()
    world.settle()
    assert sorted(world.outbox) == ["a.jpg", "c.jpg"]
    assert world.states("b.jpg") == ["done", "superseded"]
    assert world.states("c.jpg") == ["done"]
    assert world.served() == ["a.jpg"]


def test_a_file_that_is_being_hashed_again_is_not_taken_to_have_moved() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.grow("a.jpg", b"a picture")  # somebody has it open again
    drop_marked(world, "b.jpg")
    world.work()
    world.close("a.jpg")
    world.settle()
    assert sorted(world.outbox) == ["a.jpg", "b.jpg"]
    assert world.states("a.jpg") == ["done"]


def test_a_refused_picture_that_is_renamed_keeps_its_note() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    world.move_unseen("a.jpg", "b.jpg")
    world.rescan()
    world.settle()
    assert set(world.notes) == {("failed", "b.jpg")}
    assert world.states() == ["failed"]
    assert world.served() == ["a.jpg"]


# --- again -------------------------------------------------------------------------------------------------


def test_the_same_content_again_is_nothing_but_one_notice() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.drop("a.jpg", b"a picture")
    world.rescan()
    world.settle()
    (said,) = world.said("job.already_done")
    assert said["output"] == "a.jpg"
    assert said["remedy"] == f"to do it again: watcher retry {world.job('a.jpg').id}"
    assert world.states() == ["done"]


def test_the_same_content_removed_and_dropped_again_is_one_notice_each_time() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    for _ in range(2):
        world.remove("a.jpg")
        world.drop("a.jpg", b"a picture")
        world.settle()
    assert world.states() == ["done"]
    assert len(world.said("job.already_done")) == 2


def test_a_restart_is_no_news() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    drop_marked(world, "b.jpg", b"a bad picture")
    world.drop("c.jpg", b"unmarked")
    world.work()
    notes = {("held", "c.jpg"), ("failed", "b.jpg")}
    for _ in range(3):
        world.hush()
        world.notes.clear()  # a crash may have kept them from the disk
        world.restart()
        world.settle()
        assert world.said("job.already_done") == []
        assert not any(world.given(kind) for kind in (c.SaveJob, c.FinishJob, c.HashFile))
        assert set(world.notes) == notes


def test_what_has_other_inodes_after_a_move_of_the_inbox_is_not_done_again() -> None:
    world = ready_world()
    for number in range(5):
        drop_marked(world, f"{number}.jpg", f"picture {number}".encode())
    world.work()
    world.kill_service()
    for file in world.disk.values():
        file.fingerprint = replace(file.fingerprint, inode=file.fingerprint.inode + 1000)
    world.start()
    world.settle()
    assert world.states() == ["done"] * 5
    assert len(world.outbox) == 5


def test_a_failed_picture_is_not_tried_again() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    world.restart()
    world.settle()
    world.drop("a.jpg", b"a bad picture")
    world.settle()
    assert world.states() == ["failed"]
    assert world.served() == ["a.jpg"]


def test_a_failed_picture_that_is_changed_is_tried_and_its_note_goes() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    world.drop("a.jpg", b"a good picture")
    world.work()
    assert world.states() == ["failed", "done"]
    assert world.notes == {}


def test_the_note_of_a_failed_picture_goes_with_it_and_comes_back_with_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    world.remove("a.jpg")
    assert world.notes == {}
    world.drop("a.jpg", b"a bad picture")
    assert set(world.notes) == {("failed", "a.jpg")}
    assert world.states() == ["failed"]


def test_the_note_of_bad_bytes_goes_when_bytes_that_were_done_come_back() -> None:
    world = ready_world()
    for data in (b"a picture", b"a bad picture", b"a picture"):
        drop_marked(world, "a.jpg", data)
        world.work()
    assert world.states() == ["done", "failed"]
    assert world.notes == {}


def test_a_failed_picture_whose_mask_goes_is_held_with_one_note() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", mask=b"a misfit")
    world.work()
    world.remove("a.jpg.mask.png")
    world.settle()
    assert world.states() == ["failed", "held"]
    assert set(world.notes) == {("held", "a.jpg")}


# --- a person says so --------------------------------------------------------------------------------------


def test_a_retry_does_a_failed_picture_again_and_its_time_starts_then() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    world.advance(3600)
    world.send(e.RetryRequested((world.job("a.jpg"),), unknown=("none-7",)))
    world.work()
    assert world.states() == ["failed", "failed"]
    line = world.line("a.jpg")
    assert line["retry_of"] == world.journal.lines[0]["job"]
    assert line["total_ms"] < 1000
    assert world.said("retry.unknown")[0]["job"] == "none-7"


def test_a_retry_of_a_done_picture_makes_a_version() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.send(e.RetryRequested((world.job("a.jpg"),)))
    world.work()
    assert world.states() == ["done", "done"]
    assert sorted(world.outbox) == ["a (2).jpg", "a.jpg"]
    world.restart()
    world.settle()
    assert world.states() == ["done", "done"]


def test_a_retry_of_a_quarantined_picture_runs_alone() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"poison")
    world.settle()
    assert world.states() == ["quarantined"]
    crashes = len(world.said("worker.restarting"))
    world.send(e.RetryRequested((world.job("a.jpg"),)))
    world.settle()
    assert world.states() == ["quarantined", "quarantined"]
    assert len(world.said("worker.restarting")) == crashes, "the resident worker is kept out of it"


def test_a_retry_that_waits_for_the_service_is_done_when_the_inbox_is_known() -> None:
    """Requests are read when the service starts, before anything was listed."""
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    drop_marked(world, "b.jpg", b"another bad picture")
    world.work()
    world.kill_service()
    del world.disk["b.jpg"]
    jobs = (world.job("a.jpg"), world.job("b.jpg"))
    world.send(world.journal.opened())
    world.send(e.RetryRequested(jobs))
    assert world.said("retry.refused") == []
    world.send(e.InboxFound("native"))
    world.listing()
    world.work()
    assert world.states("a.jpg") == ["failed", "failed"]
    assert world.states("b.jpg") == ["failed"]
    assert [said["job"] for said in world.said("retry.refused")] == [jobs[1].id]


def test_a_retry_while_the_inbox_is_away_waits_for_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.lose()
    world.send(e.RetryRequested((world.job("a.jpg"),)))
    world.advance(100)
    world.find()
    world.work()
    assert world.states() == ["done", "done"]


def test_a_retry_is_not_undone_by_an_answer_of_the_journal_that_comes_after_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"a bad picture")
    world.work()
    failed = world.job("a.jpg")
    world.send(e.RetryRequested((failed,)))
    world.hot.read_batch()
    world.hot.crash()
    world.lose()  # it is ready again, and stays so
    world.find()
    world.send(e.PriorJobsFound("a.jpg", failed.identity, (failed,)))
    assert world.states()[-1] != "superseded"


@pytest.mark.parametrize("change", ["gone", "changed", "at work"])
def test_a_retry_that_cannot_be_is_refused_with_a_reason(change: str) -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    job = world.job("a.jpg")
    if change == "gone":
        world.remove("a.jpg")
    else:
        world.drop("a.jpg", b"another picture")
    if change == "changed":
        world.work()
    before = len(world.journal.jobs)
    world.send(e.RetryRequested((job,)))
    assert len(world.said("retry.refused")) == 1
    assert len(world.journal.jobs) == before
