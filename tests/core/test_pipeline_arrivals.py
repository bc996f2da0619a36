"""From a file in the inbox to a job, and to its result: the main job, and all that may come in between."""

from __future__ import annotations

import pytest

from tests.core.conversation import World, cleaned, sha256
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import ArrivalPolicy, Policy, Recipe

ALPHA = Policy(recipes=(Recipe("erased", ("erased/**",), ("mask", "alpha")), Recipe()))
COPY = Policy(recipes=(Recipe(unmarked="copy"),))


def ready_world(policy: Policy | None = None) -> World:
    world = World(policy)
    world.work()
    return world


# --- the main job ------------------------------------------------------------------------------------------


def test_a_marked_picture_comes_out_clean_with_one_record() -> None:
    world = ready_world()
    world.drop("a/b/IMG.jpg", b"a picture")
    world.drop_mask("a/b/IMG.jpg", b"a mask")
    world.work()
    assert world.outbox == {"a/b/IMG.jpg": cleaned(b"a picture", b"a mask")}
    (line,) = world.journal.lines
    assert (line["source"], line["output"], line["outcome"]) == ("a/b/IMG.jpg", "a/b/IMG.jpg", "done")
    assert (line["path"], line["path_reason"], line["attempt"]) == ("hot", "ready", 1)
    assert world.staging == {}
    assert world.states() == ["done"]


def test_the_attempt_is_saved_before_the_work_begins() -> None:
    world = ready_world()
    world.hush()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    kinds = [type(command) for command in world.commands]
    (run,) = world.given(c.RunBatch)
    saved = [cmd for cmd in world.commands[: kinds.index(c.RunBatch)] if isinstance(cmd, c.SaveJob)]
    assert saved[-1].job == run.batch.items[0].job
    assert saved[-1].job.attempts == 1


def test_nothing_happens_after_the_job_is_done() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    world.hush()
    for _ in range(10):
        world.rescan()
    world.notify("a.jpg", e.Hint.MODIFIED)
    world.settle(3600.0)
    assert {type(command) for command in world.commands} <= {c.RescanInbox, c.Log, c.PingWorker}
    assert world.said("job.already_done") == []


def test_a_picture_that_has_just_been_done_is_not_called_done_before() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.drop_mask("a.jpg")
    world.work()
    world.drop("a_mask.png", b"another mask, which a.jpg does not use")
    world.settle()
    assert world.said("job.already_done") == []


@pytest.mark.parametrize("order", ["mask first", "picture first", "both found by a listing"])
def test_the_order_of_picture_and_mask_does_not_matter(order: str) -> None:
    world = ready_world()
    if order == "mask first":
        world.drop_mask("a.jpg")
        world.drop("a.jpg", b"a picture")
    elif order == "picture first":
        world.drop("a.jpg", b"a picture")
        world.drop_mask("a.jpg")
    else:
        world.put("a.jpg", b"a picture")
        world.put("a.jpg.mask.png", b"a mask")
        world.rescan()
    world.settle()
    assert world.states() == ["done"]
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a mask")}
    assert world.notes == {}


def test_a_mask_an_hour_later_serves_the_held_job() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["held"]
    note = world.notes["held", "a.jpg"]
    assert "a.jpg.mask.png" in note["how_to_mark"]
    world.advance(3600)
    world.drop_mask("a.jpg")
    world.work()
    assert world.states() == ["done"]
    assert world.notes == {}
    line = world.line("a.jpg")
    assert line["attempt"] == 1
    assert line["total_ms"] < 1000, "the wait for a person is no part of the chain"


@pytest.mark.parametrize("mark_file", ["a.marked.jpg", "a.jpg.marks.json", "a.jpg.marked.png"])
@pytest.mark.parametrize("picture_first", [True, False])
def test_a_marked_copy_or_a_sidecar_serves_a_picture_like_a_mask(
    mark_file: str,
    picture_first: bool,  # noqa: FBT001 - parametrised
) -> None:
    world = ready_world()
    both = [("a.jpg", b"a picture"), (mark_file, b"a mark")]
    for path, data in both if picture_first else reversed(both):
        world.drop(path, data)
        world.work()
    assert world.states() == ["done"]
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a mark")}
    assert world.notes == {}


def test_a_marked_copy_without_a_difference_gives_way_to_the_sidecar() -> None:
    world = ready_world()
    world.drop("a.marked.jpg", b"no difference")
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["held"]
    assert "the marked copy shows no difference" in world.notes["held", "a.jpg"]["reason"]
    assert world.said("job.held")[-1]["reason"] == "the marked copy shows no difference"
    world.drop("a.jpg.marks.json", b"a sidecar")
    world.work()
    assert world.states() == ["done"]
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a sidecar")}
    assert world.notes == {}
    world.restart()
    world.work()
    assert [state for state in world.states() if state != "superseded"] == ["done"], "nothing is done twice"
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a sidecar")}
    assert world.notes == {}


def test_a_new_marked_copy_has_its_turn_before_the_sidecar() -> None:
    world = ready_world()
    world.drop("a.jpg.marks.json", b"a sidecar")
    world.drop("a.marked.jpg", b"no difference")
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a sidecar")}
    world.drop("a.marked.jpg", b"scribbles")
    world.work()
    assert world.outbox["a (2).jpg"] == cleaned(b"a picture", b"scribbles")


def test_a_recipe_that_looks_for_no_marked_copies_serves_them_as_pictures() -> None:
    world = ready_world(Policy(recipes=(Recipe(marks=("mask",)),)))
    world.drop("sale.jpg", b"a picture")
    world.drop("sale.marked.jpg", b"another picture")
    world.drop_mask("sale.marked.jpg")
    world.work()
    assert sorted(world.states()) == ["done", "held"]
    assert list(world.outbox) == ["sale.marked.jpg"]


def test_the_held_note_tells_each_way_of_its_recipe() -> None:
    recipes = (
        Recipe("strokes", ("strokes/**",), ("mask", "colour"), colour="#00FF88", invert=True),
        Recipe("erased", ("erased/**",), ("alpha",)),
        Recipe("stamps", ("stamps/**",), ("regions",)),
        Recipe(),
    )
    world = ready_world(Policy(recipes=recipes))
    for folder in ("strokes", "erased", "stamps", "others"):
        world.drop(f"{folder}/a.jpg", f"a picture in {folder}".encode())
    world.work()
    ways = {folder: note["how_to_mark"] for (_, folder), note in world.notes.items()}
    assert "strokes/a.jpg.mask.png" in ways["strokes/a.jpg"]
    assert "black where something is to go" in ways["strokes/a.jpg"]
    assert "#00FF88" in ways["strokes/a.jpg"]
    assert "erase what is to go" in ways["erased/a.jpg"]
    assert "mask" not in ways["erased/a.jpg"]
    assert "change the recipe" in ways["stamps/a.jpg"]
    for name in ("others/a.jpg.mask.png", "others/a.marked.jpg", "others/a.jpg.marks.json"):
        assert name in ways["others/a.jpg"], name


def test_the_held_note_of_a_mark_file_with_a_wrong_name_says_the_right_one() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.drop("a_Mask.png", b"what is to go")
    world.work()
    notes = {picture: note for (_, picture), note in world.notes.items()}
    assert "a.mask.png" in notes["a_Mask.png"]["did_you_mean"]
    assert "did_you_mean" not in notes["a.jpg"]


def test_a_held_job_outlives_a_restart_and_is_not_looked_at_again() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    world.hush()
    world.restart()
    world.settle()
    assert world.states() == ["held"]
    assert world.served() == []
    world.drop_mask("a.jpg")
    world.work()
    assert world.states() == ["done"]


def test_an_unmarked_picture_that_vanishes_is_gone_with_its_note() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    world.remove("a.jpg")
    assert world.states() == ["gone"]
    assert world.notes == {}


def test_an_unmarked_picture_is_copied_where_the_recipe_says_so() -> None:
    world = ready_world(COPY)
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["unchanged"]
    assert world.outbox == {"a.jpg": b"a picture"}


def test_an_empty_mask_leaves_the_picture_unchanged() -> None:
    world = ready_world()
    world.drop_mask("a.jpg", b"an empty mask")
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["unchanged"]
    assert world.outbox == {"a.jpg": b"a picture"}


# --- masks that come, go and change ------------------------------------------------------------------------


def test_a_mask_for_a_done_picture_makes_a_new_job_and_a_version() -> None:
    world = ready_world(ALPHA)
    world.drop("erased/a.png", b"an alpha picture")
    world.work()
    assert world.line("erased/a.png")["marks"] == "alpha"
    world.drop_mask("erased/a.png", b"a mask")
    world.work()
    assert world.states() == ["done", "done"]
    assert world.outbox == {
        "erased/a.png": cleaned(b"an alpha picture", b""),
        "erased/a (2).png": cleaned(b"an alpha picture", b"a mask"),
    }


def test_a_mask_that_comes_while_the_alpha_job_runs_makes_a_version() -> None:
    world = ready_world(ALPHA)
    world.drop("erased/a.png", b"an alpha picture")
    item = world.hot.begin()
    world.drop_mask("erased/a.png", b"a mask")
    world.hot.done(item, marks="alpha")
    world.work()
    assert world.states() == ["done", "done"]
    assert len(world.outbox) == 2


def test_another_mask_for_a_done_picture_makes_a_version() -> None:
    world = ready_world()
    world.drop_mask("a.jpg", b"mask one")
    world.drop("a.jpg", b"a picture")
    world.work()
    world.drop_mask("a.jpg", b"mask two")
    world.work()
    assert world.states() == ["done", "done"]
    assert world.outbox["a (2).jpg"] == cleaned(b"a picture", b"mask two")


def test_the_first_mask_again_is_nothing_new() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    for mask in (b"mask one", b"mask two", b"mask one"):
        world.drop_mask("a.jpg", mask)
        world.work()
    assert world.states("a.jpg") == ["done", "done"]
    assert len(world.said("job.already_done")) == 1


def test_a_mask_that_is_cleared_away_afterwards_asks_for_nothing() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    world.remove("a.jpg.mask.png")
    world.settle()
    assert world.states() == ["done"]
    assert world.notes == {}


def test_a_mask_that_goes_before_dispatch_leaves_a_held_job() -> None:
    world = World()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.remove("a.jpg.mask.png")
    world.work()
    assert world.states() == ["held"]
    assert world.job("a.jpg").identity.mask_sha256 is None


def test_a_mask_that_changes_before_dispatch_is_served_as_it_is_then() -> None:
    world = World()
    world.drop_mask("a.jpg", b"mask one")
    world.drop("a.jpg", b"a picture")
    world.drop_mask("a.jpg", b"mask two")
    world.work()
    assert world.states() == ["done"]
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"mask two")}


def test_a_job_is_not_given_away_while_its_mask_is_in_question() -> None:
    """The worker is free, the mask's bytes are known, the journal's answer about them is still to come."""
    world = ready_world()
    drop_busy(world)
    world.drop_mask("a.jpg", b"mask one")
    world.drop("a.jpg", b"a picture")
    world.grow("a.jpg.mask.png", b"mask")
    world.work()
    assert world.states("a.jpg") == ["ready"]
    world.grow("a.jpg.mask.png", b"mask two")
    world.close("a.jpg.mask.png")
    (item,) = world.given(c.RunBatch)[-1].batch.items
    assert item.job.identity.mask_sha256 == sha256(b"mask two")


def drop_busy(world: World) -> None:
    """Keep the worker busy with another picture."""
    world.drop_mask("busy.jpg")
    world.drop("busy.jpg", b"another picture")


def test_a_mask_that_changes_while_the_job_runs_gives_no_output_of_the_old_one() -> None:
    world = ready_world()
    world.drop_mask("a.jpg", b"mask one")
    world.drop("a.jpg", b"a picture")
    item = world.hot.begin()
    result = cleaned(b"a picture", b"mask one")
    report = world.hot.report(item, result, marks="mask")
    world.drop_mask("a.jpg", b"mask two")
    world.send(e.ItemDone(world.hot.origin, "b1", item.job.id, unchanged=False, reason=None, report=report))
    world.hot.unreported = []
    world.settle()
    assert world.states() == ["superseded", "done"]
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"mask two")}


def test_a_growing_mask_is_waited_for() -> None:
    world = ready_world()
    world.grow("a.jpg.mask.png", b"half")
    world.drop("a.jpg", b"a picture")
    world.settle(5)
    assert world.states() == []
    world.grow("a.jpg.mask.png", b"a mask at last")
    world.close("a.jpg.mask.png")
    world.work()
    assert world.outbox == {"a.jpg": cleaned(b"a picture", b"a mask at last")}


def test_a_mask_by_stem_serves_only_a_single_picture() -> None:
    world = ready_world()
    world.drop("IMG_mask.png", b"a mask")
    world.drop("IMG.jpg", b"a picture")
    world.work()
    assert world.states("IMG.jpg") == ["done"]


def test_when_a_rival_goes_the_mask_serves_the_one_that_is_left() -> None:
    world = ready_world()
    world.drop("IMG.jpg", b"a picture")
    world.drop("IMG.png", b"another picture of the same stem")
    world.drop("IMG_mask.png", b"a mask")
    world.settle()
    assert world.states() == ["held", "held"]
    world.remove("IMG.png")
    world.work()
    assert world.states("IMG.jpg") == ["done"]


def test_when_a_rival_comes_before_dispatch_the_mask_is_nobodys() -> None:
    world = World()
    world.drop("IMG_mask.png", b"a mask")
    world.drop("IMG.jpg", b"a picture")
    world.drop("IMG.png", b"another picture of the same stem")
    world.work()
    assert world.states() == ["held", "held"]


def test_an_orphan_mask_is_told_of_once() -> None:
    world = ready_world()
    world.drop("a.jpg.mask.png", b"a mask")
    world.advance(59)
    assert world.said("file.orphan_mask") == []
    for _ in range(5):
        world.advance(60)
    assert world.said("file.orphan_mask") == [{"path": "a.jpg.mask.png"}]
    assert world.states() == []
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["done"]


def test_a_restart_is_no_news_about_orphan_masks() -> None:
    world = ready_world()
    world.drop("a.jpg.mask.png", b"a mask")
    world.advance(100)
    world.hush()
    world.restart()
    world.settle()
    assert world.said("file.orphan_mask") == []


def test_a_mask_without_its_picture_is_told_of_when_the_picture_goes() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.drop_mask("a.jpg")
    world.work()
    world.remove("a.jpg")
    world.advance(100)
    assert world.said("file.orphan_mask") == [{"path": "a.jpg.mask.png"}]


def test_an_orphan_mask_may_be_a_picture() -> None:
    world = ready_world(Policy(recipes=(Recipe(orphan_masks="picture", unmarked="copy"),)))
    world.drop("a_mask.png", b"a picture with an odd name")
    world.work()
    assert world.states("a_mask.png") == ["unchanged"]
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.outbox["a.jpg"] == cleaned(b"a picture", b"a picture with an odd name")


def test_a_held_picture_that_turns_out_to_be_a_mask_is_not_held_any_more() -> None:
    world = ready_world(Policy(recipes=(Recipe(orphan_masks="picture"),)))
    world.drop("a_mask.png", b"a mask that came first")
    world.work()
    assert world.states() == ["held"]
    world.drop("a.jpg", b"a picture")
    world.settle()
    assert world.states("a_mask.png") == ["superseded"]
    assert world.states("a.jpg") == ["done"]
    assert world.notes == {}


# --- recipes -----------------------------------------------------------------------------------------------


def test_the_first_recipe_whose_glob_matches_serves() -> None:
    recipes = (
        Recipe("scans", ("scans/**/*.png",), unmarked="copy", quality=90, grow_px=7, keep_metadata=False),
        Recipe("rest", ("**/*.jpg",)),
    )
    world = ready_world(Policy(recipes=recipes))
    world.drop("scans/x/a.png", b"a scan")
    (item,) = world.given(c.RunBatch)[-1].batch.items
    recipe = item.recipe
    assert (recipe.unmarked, recipe.quality, recipe.grow_px, recipe.keep_metadata) == ("copy", 90, 7, False)
    world.work()
    world.drop("b.jpg", b"a photograph")
    world.work()
    world.drop("c.png", b"of no recipe")
    world.settle()
    assert world.states("scans/x/a.png") == ["unchanged"]
    assert world.line("scans/x/a.png")["recipe"] == "scans"
    assert world.states("b.jpg") == ["held"]
    assert world.states("c.png") == []


def test_a_job_whose_recipe_is_gone_from_the_configuration_does_not_wait_for_ever() -> None:
    world = World(Policy(recipes=(Recipe("rest", ("**",)),)))
    world.drop("a.jpg", b"a picture")
    world.work()
    assert world.states() == ["held"]
    world.policy = Policy(recipes=(Recipe("scans", ("scans/**",)),))
    world.restart()
    world.settle()
    assert world.states() == ["superseded"]
    assert world.is_idle()


# --- files that change, vanish, grow -----------------------------------------------------------------------


def test_a_picture_that_changes_before_dispatch_is_superseded() -> None:
    world = World()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"first bytes")
    world.drop("a.jpg", b"second bytes")
    world.work()
    assert world.states() == ["superseded", "done"]
    assert world.outbox == {"a.jpg": cleaned(b"second bytes", b"a mask")}


def test_a_picture_that_changes_while_it_runs_gives_no_output() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"first bytes")
    item = world.hot.begin()
    report = world.hot.report(item, cleaned(b"first bytes", b"a mask"), marks="mask")
    world.drop("a.jpg", b"second bytes")
    world.send(e.ItemDone(world.hot.origin, "b1", item.job.id, unchanged=False, reason=None, report=report))
    world.hot.unreported = []
    world.settle()
    assert world.states() == ["superseded", "done"]
    assert world.outbox == {"a.jpg": cleaned(b"second bytes", b"a mask")}
    assert world.staging == {}


def test_a_picture_that_changes_after_it_was_done_is_a_new_job_and_a_version() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"first bytes")
    world.work()
    world.drop("a.jpg", b"second bytes")
    world.work()
    assert world.states() == ["done", "done"]
    assert sorted(world.outbox) == ["a (2).jpg", "a.jpg"]


def test_a_worker_that_finds_other_bytes_is_not_asked_again_before_they_were_hashed() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"first bytes")
    world.put("a.jpg", b"second bytes, of which nobody told")
    world.settle()
    assert world.states() == ["superseded", "done"]
    assert len(world.given(c.RunBatch)) == 2


def test_a_worker_that_always_finds_other_bytes_does_not_keep_the_core_busy() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    for _ in range(3):
        item = world.hot.begin()
        world.answers_looks = False
        world.deaf = True
        world.hot.failed(item, "changed")
        world.hot.batch_done()
        world.advance(5)
        if world.hot.batch is None:
            break
    assert world.states() == ["superseded"]


def test_a_picture_that_vanishes_before_it_is_read_is_gone() -> None:
    world = World()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.remove("a.jpg")
    world.work()
    assert world.states() == ["gone"]
    assert world.outbox == {}


def test_a_picture_that_vanishes_under_the_worker_is_gone() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.remove("a.jpg")
    world.work()
    assert world.states() == ["gone"]


def test_a_picture_that_was_read_before_it_vanished_is_done() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    item = world.hot.begin()
    report = world.hot.report(item, cleaned(b"a picture", b"a mask"), marks="mask")
    world.remove("a.jpg")
    world.send(e.ItemDone(world.hot.origin, "b1", item.job.id, unchanged=False, reason=None, report=report))
    assert world.states() == ["done"]


def test_a_ready_picture_that_is_emptied_is_not_waited_for() -> None:
    world = World(Policy(once=True))
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.colds[0].unkillable = True
    world.drop("b.jpg", b"another")
    world.drop("b.jpg", b"")
    world.settle()
    assert world.states("b.jpg") == ["superseded"]
    assert world.is_idle()


def test_a_touch_is_no_change() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    world.touch("a.jpg")
    world.settle()
    assert world.states() == ["done"]
    assert len(world.said("job.already_done")) == 1


def test_a_half_written_file_is_waited_for_and_no_attempt() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"half a pict")
    world.work()
    assert world.states() == ["waiting"]
    world.advance(30)
    world.drop("a.jpg", b"the whole picture")
    world.work()
    assert world.states() == ["done"]
    assert world.line("a.jpg")["attempt"] == 1
    assert world.notes == {}


def test_a_half_written_file_that_stays_so_fails_once_and_is_served_when_it_is_whole() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"half a pict")
    world.settle(300)
    assert world.states() == ["failed"]
    assert ("failed", "a.jpg") in world.notes
    world.drop("a.jpg", b"the whole picture")
    world.work()
    assert world.states() == ["failed", "done"]
    assert world.notes == {}


def test_a_half_written_file_that_grows_slowly_does_not_fail() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"half a pict")
    world.work()
    world.advance(40)
    world.grow("a.jpg", b"half a picture, some more of it")
    world.settle(100)
    assert world.states() == ["waiting"]
    world.grow("a.jpg", b"the whole picture")
    world.close("a.jpg")
    world.work()
    assert world.states() == ["superseded", "done"]


def test_an_old_file_without_an_end_fails_at_once() -> None:
    world = ready_world()
    world.put("a.jpg", b"half a picture, of last year")
    world.put("a.jpg.mask.png", b"a mask")
    world.deaf = True
    world.advance(100)
    world.work()
    assert world.states() == ["failed"]


def test_a_waiting_job_is_looked_at_again_after_a_restart() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"half a pict")
    world.work()
    world.restart()
    world.settle(100)
    assert world.states() == ["failed"]


# --- the inbox itself --------------------------------------------------------------------------------------


def test_while_the_inbox_is_away_nothing_in_it_is_gone_and_nothing_is_started() -> None:
    world = ready_world()
    world.drop_mask("running.jpg")
    world.drop("running.jpg", b"a picture that runs")
    world.drop_mask("ready.jpg")
    world.drop("ready.jpg", b"a picture that is ready")
    world.drop("held.jpg", b"a picture that is unmarked")
    item = world.hot.begin("running.jpg")
    world.lose()
    world.hot.failed(item, "vanished")
    world.work()
    world.advance(4000)
    assert sorted(set(world.states())) == ["ready"]
    assert len(world.given(c.RunBatch)) == 1
    world.find()
    world.settle()
    assert world.states("running.jpg") == world.states("ready.jpg") == ["done"]
    assert world.line("running.jpg")["attempt"] == 1
    assert world.states("held.jpg") == ["held"]


def test_what_vanished_while_the_inbox_was_away_is_gone_when_it_is_back() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    world.lose()
    del world.disk["a.jpg"]
    world.advance(100)
    assert world.states() == ["held"]
    world.find()
    assert world.states() == ["gone"]


def test_a_file_that_was_arriving_when_the_inbox_went_is_served_when_it_is_back() -> None:
    """Looks that were planned meanwhile went unanswered."""
    world = ready_world()
    world.drop_mask("a.jpg")
    world.grow("a.jpg", b"a picture", writer=e.Writer.UNKNOWN)
    world.lose()
    world.advance(30)
    world.find()
    world.settle()
    assert world.states() == ["done"]


def test_a_file_that_was_being_hashed_when_the_inbox_went_is_served_when_it_is_back() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    fingerprint = world.fingerprint(b"a picture", 99)
    world.pipeline.handle(
        e.FileObserved("a.jpg", fingerprint, e.Hint.MOVED_IN, e.Writer.NONE, 1, world.now_ns), world.now
    )
    world.put("a.jpg", b"a picture")
    world.disk["a.jpg"].fingerprint = fingerprint
    world.lose()
    world.send(e.FileVanished("a.jpg", world.now_ns))  # the hasher's answer, of a mount point that is empty
    world.advance(10)
    world.find()
    world.settle()
    assert world.states() == ["done"]


def test_a_half_written_file_does_not_fail_while_the_inbox_is_away() -> None:
    world = ready_world()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"half a pict")
    world.work()
    world.lose()
    world.advance(300)
    assert world.states() == ["waiting"]
    world.find()
    world.settle(100)
    assert world.states() == ["failed"]


def test_what_lies_in_a_folder_that_cannot_be_read_has_not_vanished() -> None:
    world = ready_world()
    world.drop("sub/a.jpg", b"a picture")
    world.drop("b.jpg", b"another")
    world.work()
    world.unreadable_folders = ("sub",)
    world.rescan()
    assert world.states("sub/a.jpg") == ["held"]
    world.hush()
    world.restart()
    world.settle()
    assert world.states("sub/a.jpg") == ["held"]
    assert world.given(c.ForgetFile) == []
    world.unreadable_folders = ()
    world.rescan()
    world.drop_mask("sub/a.jpg")
    world.work()
    assert world.states("sub/a.jpg") == ["done"]


def test_a_file_that_changed_while_the_service_was_away_is_not_called_gone() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    world.kill_service()
    world.put("a.jpg", b"another picture")
    world.start()
    world.settle()
    assert world.states() == ["superseded", "held"]


def test_a_held_job_whose_file_was_touched_while_the_service_was_away_stays_held() -> None:
    world = ready_world()
    world.drop("a.jpg", b"a picture")
    world.work()
    world.kill_service()
    world.put("a.jpg", b"a picture")
    world.start()
    world.settle()
    assert world.states() == ["held"]


def test_files_of_which_nobody_told_are_found_by_the_next_listing() -> None:
    world = ready_world()
    world.deaf = True
    for number in range(20):
        world.drop_mask(f"{number}.jpg")
        world.drop(f"{number}.jpg", f"picture {number}".encode())
    world.settle(100)
    assert world.states() == ["done"] * 20


def test_a_loud_source_of_events_does_not_make_for_a_storm_of_listings() -> None:
    world = ready_world()
    world.hush()
    for _ in range(500):
        world.send(e.RescanWanted("overflow"))
        world.advance(0.01)
    assert len(world.given(c.RescanInbox)) <= 26


def test_a_dear_listing_is_made_rarely() -> None:
    world = ready_world(Policy(arrivals=ArrivalPolicy(rescan_s=1.0, rescan_share=0.05)))
    world.send(e.InboxListed({}, world.now_ns, world.now_ns + 10_000_000_000))
    world.hush()
    world.advance(199)
    assert world.given(c.RescanInbox) == []
    world.advance(2)
    assert len(world.given(c.RescanInbox)) == 1


def test_a_file_that_cannot_be_read_is_tried_ever_more_rarely_and_never_given_up() -> None:
    world = ready_world()
    world.put("a.jpg", b"a picture", unreadable="permission denied")
    world.put("a.jpg.mask.png", b"a mask")
    world.rescan()
    world.settle(5)
    world.hush()
    world.advance(600)
    assert 3 < len(world.given(c.HashFile)) < 20
    assert world.said("file.unreadable") == []
    world.disk["a.jpg"].unreadable = None
    world.settle(100)
    assert world.states() == ["done"]


def test_an_event_that_was_overtaken_does_not_hide_the_file() -> None:
    world = ready_world()
    vanished = e.FileVanished("a.jpg", world.now_ns)
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.send(vanished)
    world.work()
    assert world.states() == ["done"]
