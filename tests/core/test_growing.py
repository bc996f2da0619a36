"""Files without an end: how long they are waited for, and the last look before they are given up."""

from __future__ import annotations

from tests.core.conversation import World, cleaned
from watcher.core.policy import ArrivalPolicy

YOUNG_S = ArrivalPolicy().young_s


def world_with_an_incomplete_picture() -> World:
    world = World()
    world.work()
    world.drop_mask("a.tif", b"a mask")
    world.drop("a.tif", b"a picture that ends in zeros")
    world.hot.incomplete(world.hot.begin())
    world.work()
    assert world.states() == ["waiting"]
    return world


def test_what_only_seemed_to_have_no_end_is_done_when_it_stays_so() -> None:
    world = world_with_an_incomplete_picture()
    world.advance(YOUNG_S - 1)
    assert world.states() == ["waiting"], "not before its time"

    world.advance(2)
    world.work()

    assert world.states() == ["done"]
    assert world.outbox == {"a.tif": cleaned(b"a picture that ends in zeros", b"a mask")}
    record = world.job("a.tif").record
    assert record is not None
    assert record["attempt"] == 1


def test_the_last_look_is_the_last() -> None:
    world = world_with_an_incomplete_picture()
    world.advance(YOUNG_S + 1)

    world.hot.incomplete(world.hot.begin())
    world.work()

    assert world.states() == ["failed"]
    assert "does not grow" in world.notes["failed", "a.tif"]["reason"]
    record = world.job("a.tif").record
    assert record is not None
    assert record["attempt"] == 1, "the looks while it was young were none, this one was"


def test_a_clock_that_is_behind_the_files_does_not_make_it_wait_for_ever() -> None:
    world = world_with_an_incomplete_picture()
    world.advance(YOUNG_S + 1)
    item = world.hot.begin()
    world.wall_shift_s = -10_000

    world.hot.incomplete(item)
    world.work()

    assert world.states() == ["failed"]


def test_after_a_crash_in_the_last_look_it_is_still_the_last() -> None:
    world = world_with_an_incomplete_picture()
    world.advance(YOUNG_S + 1)
    world.hot.begin()
    world.hot.crash()

    world.settle()

    assert world.states() == ["done"]
    assert world.outbox.keys() == {"a.tif"}


def test_a_file_that_grows_during_the_last_look_is_a_job_of_its_new_bytes() -> None:
    world = world_with_an_incomplete_picture()
    world.advance(YOUNG_S + 1)
    item = world.hot.begin()
    world.drop("a.tif", b"the whole picture")

    world.hot.incomplete(item)
    world.settle()

    assert world.states() == ["failed", "done"]
    assert world.notes == {}
