"""How long a process may be silent, who is asked whether he still lives, and who is listened to first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.conversation import MS, NS, START_SEGMENTS, World
from tests.core.test_pipeline_workers import drop_marked, ready_world, sources
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.pace import ITEM
from watcher.core.policy import BatchPolicy, Policy, WorkerPolicy

if TYPE_CHECKING:
    from watcher.core.flights import Flight

START_S = sum(START_SEGMENTS.values()) / NS
ALONE = Policy(batching=BatchPolicy(max_batch=1))


def flight(world: World, path: str = "hot") -> Flight:
    """The youngest flight of this path."""
    return [flight for flight in world.pipeline._lanes.flights if flight.path == path][-1]


def patience_s(world: World, path: str = "hot") -> float:
    return world.pipeline._lanes.flights.patience_s(flight(world, path))


def kills(world: World) -> list[str]:
    return [kill.reason for kill in world.given(c.KillWorker)]


def stand_still(world: World, seconds: float) -> None:
    """The whole service is stopped; when it goes on, it sees its timer first."""
    world.now_ns += round(seconds * NS)
    world.send(e.TimerFired())


def experienced_world(policy: Policy | None = None) -> World:
    """It has served enough pictures of a size to know what they take."""
    world = ready_world(policy)
    for number in range(25):
        drop_marked(world, f"known {number}.jpg", b"%03d".ljust(1000, b"x") % number)
    world.work()
    world.hush()
    return world


# --- how long ----------------------------------------------------------------------------------------------


def test_a_format_that_was_never_met_has_its_own_time() -> None:
    world = experienced_world()
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    item = world.hot.come_to("encode", units=800_000_000)
    in_a_hurry_s = patience_s(world)
    world.hot.format = "HEIC"
    world.hot.progress(item, "encode", "encode", 800_000_000)
    assert flight(world).kind == "encode HEIC"
    assert patience_s(world) > 30 > in_a_hurry_s
    world.advance(30)
    assert not kills(world)


def test_a_hot_process_is_not_waited_for_longer_than_a_cold_job_takes() -> None:
    world = experienced_world()
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    world.hot.come_to("inference", units=50_000_000)
    cold_time = world.pipeline._lanes.flights.cold_time
    assert patience_s(world) == cold_time.slow_s(1006, "inference", 50_000_000) < START_S + 1.0
    world.advance(patience_s(world) + 0.1)
    assert len(kills(world)) == 1
    assert "in phase inference" in kills(world)[0]


def test_a_known_phase_is_not_waited_for_as_long_as_that() -> None:
    world = experienced_world()
    lanes = world.pipeline._lanes
    for _ in range(9):
        lanes.flights.cold_time.note_start(100.0, cold=True)
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    world.hot.begin()
    assert patience_s(world) == 3.0
    flight(world).crowd = 3
    assert patience_s(world) == 9.0, "three work beside each other"


def test_who_works_beside_others_has_longer() -> None:
    """A one-shot starts beside the resident worker: both are slower from then on."""
    world = ready_world(ALONE)
    drop_marked(world, "poison.jpg", b"poison")
    world.hot.serve(world.hot.begin())
    world.advance(0.3)
    assert len(world.given(c.StartWorker)) == 1, "the restart makes way for it"
    world.advance(25)
    world.hot.ready()
    assert flight(world, "cold").crowd == 1, "it has not said anything since"
    drop_marked(world, "a.jpg")
    world.hot.begin()
    assert flight(world).crowd == 2
    assert flight(world, "cold").crowd == 2, "at once"
    world.cold.crash()
    assert flight(world).crowd == 2, "it was slower meanwhile"
    world.hot.progress(world.hot.unreported[0], "read", "decode")
    world.hot.progress(world.hot.unreported[0], "decode", "mask")
    assert flight(world).crowd == 1, "from its next word on it has the machine for itself"


def test_a_restart_makes_way_no_longer_than_the_one_shot_works() -> None:
    """What a cold job takes was foreseen before anything was measured, and far too long."""
    world = ready_world(ALONE)
    drop_marked(world, "poison.jpg", b"poison")
    world.hot.serve(world.hot.begin())
    world.advance(2)
    assert len(world.given(c.StartWorker)) == 1, "its pause is over, and it makes way"
    world.cold.crash()
    world.advance(0.01)
    assert len(world.given(c.StartWorker)) == 2


def test_a_restart_does_not_cut_in_where_the_next_one_shot_follows_at_once() -> None:
    world = ready_world(ALONE)
    for name in ("a", "b"):
        drop_marked(world, f"{name}.jpg", name.encode())
    world.hot.begin()
    world.hot.crash()
    one_shots = world.colds
    assert len(one_shots) == 2
    for one_shot in one_shots:
        one_shot.ready()
        one_shot.begin()
    world.advance(2)
    for one_shot in one_shots:
        one_shot.crash()
    world.advance(0.01)
    assert len(world.colds) == 1, "b has one more try"
    assert len(world.given(c.StartWorker)) == 1


def test_a_one_shot_beside_it_puts_the_resident_workers_deadline_off() -> None:
    world = experienced_world(ALONE)
    drop_marked(world, "huge.jpg", b"a huge picture")
    world.hot.failed(world.hot.begin(), "device_memory")
    (run,) = world.given(c.RunCold)
    assert run.device == "cpu"
    world.hot.batch_done()
    world.cold.ready()
    world.cold.begin()
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    world.hot.begin()
    assert flight(world).crowd == 2
    deadline_ns = world.pipeline._lanes.supervisor.deadline_ns
    assert deadline_ns == flight(world).progressed_ns + round(patience_s(world) * NS)


def test_a_one_shot_that_starts_has_the_start_timeout() -> None:
    world = World(Policy(once=True))
    drop_marked(world, "a.jpg")
    assert patience_s(world, "cold") == 120.0
    world.cold.ready()
    assert patience_s(world, "cold") < 120.0
    world.cold.read_batch()
    assert patience_s(world, "cold") < 120.0


def test_a_second_opinion_is_not_hurried() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.hot.begin()
    first_s = patience_s(world)
    world.hot.crash()
    world.cold.ready()
    world.cold.begin()
    assert flight(world, "cold").solo_faults == 1
    crowd = flight(world, "cold").crowd
    assert patience_s(world, "cold") >= 2 * first_s * crowd / max(1, crowd)
    world.cold.progress(world.cold.unreported[0], "read", "encode", 10_000_000)
    once_s = patience_s(world, "cold")
    flight(world, "cold").solo_faults = 0
    assert once_s == 2 * patience_s(world, "cold")


def test_who_was_ended_is_no_sample() -> None:
    world = experienced_world()
    pace = world.pipeline._lanes.flights.pace
    before = pace.slow_s(ITEM, 1006), pace.slow_s("read", 1006)
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    world.hot.begin()
    world.advance(30)
    assert len(kills(world)) == 1
    assert (pace.slow_s(ITEM, 1006), pace.slow_s("read", 1006)) == before


def test_progress_teaches_what_a_phase_takes() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    world.advance(0.5)
    world.hot.progress(item, "read", "decode", 700)
    world.advance(1.5)
    world.hot.started_ns = world.now_ns - 1500 * MS
    world.hot.progress(item, "decode", "mask", 5_000_000)
    assert world.pipeline._lanes.flights.pace.usual_s("decode", 700) == pytest.approx(1.5, abs=0.01)


def test_word_of_another_phase_than_it_is_in_teaches_nothing() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    world.advance(1)
    world.hot.progress(item, "decode", "mask", 5_000_000)
    pace = world.pipeline._lanes.flights.pace
    assert (pace.usual_s("decode", 700), pace.usual_s("read", 700)) == (None, None)


# --- the service stands still ------------------------------------------------------------------------------


def _starting(world: World) -> None:
    world.advance(100)


def _pinged(world: World) -> None:
    world.work()
    world.hot.deaf = True
    world.advance(11)
    assert world.given(c.PingWorker) != []


def _busy(world: World) -> None:
    world.work()
    drop_marked(world, "a.jpg")
    world.hot.begin()


def _cold(world: World) -> None:
    world.hot.exit(78)
    drop_marked(world, "a.jpg")
    world.cold.ready()
    world.cold.begin()


def _cold_start(world: World) -> None:
    world.hot.exit(78)
    drop_marked(world, "a.jpg")


def _recycled(world: World) -> None:
    world.work()
    drop_marked(world, "a.jpg")
    world.work()
    drop_marked(world, "b.jpg")
    world.hot.serve(world.hot.begin())
    world.hot.draining = True
    hot = world.hot
    batch_id = hot.batch.id if hot.batch is not None else ""
    hot.batch = None
    world.send(e.BatchDone(hot.origin, batch_id, 9_000_000_000))
    assert world.given(c.DrainWorker) != []


SITUATIONS = [_starting, _pinged, _busy, _cold, _cold_start, _recycled]


@pytest.mark.parametrize("come_to", SITUATIONS, ids=lambda come_to: come_to.__name__.strip("_"))
def test_time_in_which_the_service_stood_still_is_held_against_nobody(come_to: object) -> None:
    world = World()
    come_to(world)  # type: ignore[operator] # parametrised functions
    stand_still(world, 500)
    assert kills(world) == [], "first it listens"
    world.advance(0.4)
    assert kills(world) == []
    world.advance(0.2)
    assert len(kills(world)) == 1, "it has heard nothing"


@pytest.mark.parametrize("come_to", [_busy, _cold, _pinged], ids=lambda come_to: come_to.__name__.strip("_"))
def test_it_listens_once_and_not_for_ever(come_to: object) -> None:
    world = World()
    come_to(world)  # type: ignore[operator] # parametrised functions
    stand_still(world, 100)
    assert kills(world) == []
    stand_still(world, 100)
    assert len(kills(world)) == 1


def test_it_listens_again_after_word_of_it() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    stand_still(world, 100)
    world.hot.progress(item, "read", "decode")
    stand_still(world, 100)
    assert kills(world) == []
    world.advance(1)
    assert len(kills(world)) == 1


def test_what_was_said_meanwhile_is_heard() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    item = world.hot.begin()
    stand_still(world, 60)
    world.hot.progress(item, "read", "decode")
    world.advance(1)
    assert kills(world) == []
    world.hot.done(item)
    world.hot.batch_done()
    assert world.states() == ["done"]


def test_an_answer_to_a_ping_that_waits_in_the_pipe_is_heard() -> None:
    world = ready_world()
    world.hot.deaf = True
    world.advance(11)
    (ping,) = world.given(c.PingWorker)
    stand_still(world, 60)
    world.send(e.WorkerPonged(world.hot.origin, ping.number))
    world.hot.deaf = False
    world.advance(100)
    assert kills(world) == []


def test_a_start_that_ended_while_the_service_stood_still_was_in_time() -> None:
    world = World()
    world.advance(100)
    stand_still(world, 60)
    world.hot.ready()
    world.advance(5)
    assert kills(world) == []
    assert world.pipeline.snapshot()["worker"]["state"] == "ready"  # type: ignore[index,call-overload] # JSON


# --- pings -------------------------------------------------------------------------------------------------


def test_an_idle_worker_is_asked_every_ten_seconds() -> None:
    world = ready_world()
    world.hush()
    world.advance(100)
    assert [ping.number for ping in world.given(c.PingWorker)] == list(range(1, 11))
    assert kills(world) == []


def test_one_that_does_not_answer_is_killed_after_five_seconds_and_nobody_waits_for_it() -> None:
    world = ready_world()
    world.hot.deaf = True
    world.advance(14.9)
    assert kills(world) == []
    world.advance(0.2)
    assert kills(world) == ["idle, and no answer for 5 s"]
    drop_marked(world, "a.jpg")
    world.work()
    assert world.line("a.jpg")["path_reason"] == "stalled"


def test_a_batch_is_given_although_an_answer_is_owed() -> None:
    """The answer comes first, then the work: the batch has its own deadline."""
    world = ready_world()
    world.hot.deaf = True
    world.advance(14)
    drop_marked(world, "a.jpg")
    assert len(world.given(c.RunBatch)) == 1
    world.advance(2)
    assert kills(world) == [], "not the ping's deadline"
    world.send(e.WorkerPonged(world.hot.origin, 1))
    world.hot.deaf = False
    world.work()
    world.advance(30)
    assert kills(world) == []
    assert world.states() == ["done"]


def test_an_answer_to_an_older_ping_is_none() -> None:
    world = ready_world()
    world.advance(11)
    world.hot.deaf = True
    world.advance(10)
    world.send(e.WorkerPonged(world.hot.origin, 1))
    world.advance(5)
    assert len(kills(world)) == 1


def test_an_answer_of_another_incarnation_is_none() -> None:
    world = ready_world()
    world.hot.deaf = True
    world.advance(11)
    world.send(e.WorkerPonged(e.Origin("hot", 999, 1, "testhost"), 1))
    world.advance(5)
    assert len(kills(world)) == 1


# --- recycling ---------------------------------------------------------------------------------------------


def test_a_worker_with_little_memory_left_to_the_machine_makes_room() -> None:
    world = ready_world()
    world.send(e.MemoryObserved(100_000_000))
    drop_marked(world, "a.jpg")
    world.hot.serve(world.hot.begin())
    world.hot.batch_done(rss_bytes=400_000_000 + 200_000_000)
    assert world.given(c.DrainWorker) == [], "it has not grown by much"
    drop_marked(world, "b.jpg")
    world.hot.serve(world.hot.begin())
    world.hot.batch_done(rss_bytes=400_000_000 + 300_000_000)
    (recycled,) = world.said("worker.recycling")
    assert "memory is scarce" in recycled["reason"]


def test_work_that_waits_while_a_worker_is_recycled_is_served_by_the_next_one() -> None:
    world = ready_world(Policy(worker=WorkerPolicy(recycle_items=1), batching=BatchPolicy(max_batch=2)))
    for number in range(6):
        drop_marked(world, f"{number}.jpg")
    world.work()
    assert world.states() == ["done"] * 6
    assert len(world.given(c.StartWorker)) >= 2
    assert kills(world) == []
    assert world.said("worker.restarting") == []


def test_a_worker_that_says_it_is_used_up_is_replaced_at_once() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    world.hot.exit(75)
    assert len(world.given(c.StartWorker)) == 2
    assert world.said("worker.restarting") == []


def test_a_worker_that_says_so_before_it_served_anything_has_crashed() -> None:
    world = ready_world()
    world.hot.exit(75)
    assert len(world.given(c.StartWorker)) == 1
    assert len(world.said("worker.restarting")) == 1


def test_a_worker_that_says_so_while_it_is_killed_is_not_forgotten() -> None:
    """Its last words and the kill cross: there is another one all the same."""
    world = ready_world()
    drop_marked(world, "a.jpg")
    world.work()
    drop_marked(world, "b.jpg")
    world.hot.begin()
    hot = world.hot
    hot.unkillable = True
    world.advance(5)
    assert len(kills(world)) >= 1
    hot.exit(75)
    world.work()
    world.advance(25)
    assert len(world.given(c.StartWorker)) == 2


def test_the_configuration_is_only_believed_to_be_wrong_before_it_ever_worked() -> None:
    world = ready_world()
    world.hot.exit(78)
    world.advance(1)
    assert len(world.given(c.StartWorker)) == 2


# --- the queue ---------------------------------------------------------------------------------------------


def _long_queue(memory_bytes: int | None) -> World:
    """The resident worker has much to do that takes long, and others wait: first a large one."""
    world = ready_world(Policy(batching=BatchPolicy(max_batch=4)))
    lanes = world.pipeline._lanes
    if memory_bytes is not None:
        world.send(e.MemoryObserved(memory_bytes))
    drop_marked(world, "0.jpg")
    item = world.hot.begin()
    for number in range(5):
        drop_marked(world, f"large {number}.jpg", b"%d".ljust(1 << 20, b"x") % number)
    drop_marked(world, "small.jpg")
    lanes.flights.cold_time.note_start(1.0, cold=True)
    lanes.flights.pace.note(ITEM, 1 << 20, 50.0)
    world.hot.done(item)
    world.hot.batch_done()
    assert world.hot.sources == [f"large {number}.jpg" for number in range(4)]
    return world


@pytest.mark.parametrize(
    ("memory_bytes", "goes"), [(8_000_000_000, True), (400_000_000, False), (None, False)]
)
def test_a_long_queue_goes_cold_where_memory_for_a_second_model_is_known_to_be_free(
    memory_bytes: int | None,
    goes: bool,  # noqa: FBT001 - parametrised
) -> None:
    world = _long_queue(memory_bytes)
    assert [sources(run)[0] for run in world.given(c.RunCold)] == ["large 4.jpg"] * goes
    if goes:
        world.cold.ready()
        world.cold.serve(world.cold.begin())
        assert world.line("large 4.jpg")["path_reason"] == "queue_too_long"
        world.hot.serve(world.hot.begin())
        assert world.said("path.changed") == [], "both ways are used, and nothing is wrong"


def test_the_line_is_not_jumped() -> None:
    """The oldest one would take longer cold than it has to wait: no younger one goes before it."""
    world = _long_queue(None)
    for _ in range(3):
        world.hot.done(world.hot.begin())
    world.send(e.MemoryObserved(8_000_000_000))
    assert world.given(c.RunCold) == []


# --- a machine that is busy elsewhere ----------------------------------------------------------------------


def silent_world(busy_s: float) -> World:
    """A resident worker has said nothing for as long as it may, and had no processor for some of that."""
    world = experienced_world()
    drop_marked(world, "a.jpg", b"a".ljust(1000, b"x"))
    world.hot.come_to("inference", units=1)
    world.hot.busy_ns = round(busy_s * NS)
    return world


def test_a_worker_that_had_no_processor_is_waited_for_as_much_longer() -> None:
    world = silent_world(busy_s=1.0)
    limit_s = patience_s(world)
    world.advance(limit_s + 0.9)
    assert kills(world) == []
    assert world.said("worker.slow")[0]["busy_ms"] == 1000.0
    world.advance(0.3)
    assert len(kills(world)) == 1, "it was asked again, and had no more excuse"
    assert f"{limit_s + 1.0:.1f} s" in kills(world)[0]


def test_a_worker_that_hangs_has_no_excuse() -> None:
    world = silent_world(busy_s=0.0)
    world.advance(patience_s(world) + 0.001)
    assert len(kills(world)) == 1
    assert world.said("worker.slow") == []


def test_a_machine_that_gives_it_nothing_for_ever_is_not_waited_for() -> None:
    world = silent_world(busy_s=1e6)
    limit_s = patience_s(world)
    world.advance(3.9 * limit_s)
    assert kills(world) == []
    world.advance(0.3 * limit_s)
    assert len(kills(world)) == 1


def test_a_worker_that_waits_for_a_disk_is_waited_for() -> None:
    world = silent_world(busy_s=0.0)
    world.hot.waits_for_disk = True
    limit_s = patience_s(world)
    world.advance(3.9 * limit_s)
    assert kills(world) == []
    world.advance(0.3 * limit_s)
    assert len(kills(world)) == 1


def test_its_next_word_starts_over() -> None:
    world = silent_world(busy_s=1.0)
    world.advance(patience_s(world) + 0.5)
    world.hot.progress(world.hot.unreported[0], "inference", "composite")
    world.hot.busy_ns = 0
    world.advance(patience_s(world) + 0.001)
    assert len(kills(world)) == 1


def test_who_looks_a_little_late_asks_before_it_kills() -> None:
    """Other events may stand before the answer."""
    world = silent_world(busy_s=1.0)
    world.now_ns += round((patience_s(world) + 0.3) * NS)
    now = e.Instant(world.now_ns, 0.0)
    asked = world.pipeline.handle(e.TimerFired(), now)
    assert any(isinstance(command, c.ExamineWorker) for command in asked)
    then = world.pipeline.handle(e.MemoryObserved(10**10), now)
    assert not any(isinstance(command, c.KillWorker) for command in then)


# --- the first picture -------------------------------------------------------------------------------------


def test_pictures_that_were_only_held_say_nothing_of_how_long_others_take() -> None:
    world = ready_world()
    for number in range(3):
        world.drop(f"{number}.jpg", b"held %d" % number)
        item = world.hot.begin()
        world.hot.progress(item, "read", "decode")
        world.hot.started_ns = world.now_ns
        world.hot.progress(item, "decode", "mask")
        world.hot.held(item)
        world.hot.batch_done()
    drop_marked(world, "a.jpg", b"large")
    world.hot.progress(world.hot.begin(), "read", "decode", 600_000_000)
    assert patience_s(world) > 5.0


def test_the_first_picture_of_all_is_not_waited_for_like_one_on_the_slowest_machine() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"small")
    world.hot.begin()
    assert START_S + 1.0 <= patience_s(world) + 0.2 < START_S + 1.5
