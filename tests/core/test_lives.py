"""What is noted of workers' lives, and the instants in a record that place it in time."""

from __future__ import annotations

import pytest

from tests.core.conversation import HOST, NS, START_SEGMENTS, World
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import BatchPolicy, Policy, WorkerPolicy
from watcher.core.record import finish, unix_us


def notes(world: World) -> list[tuple[int, str, bool, bool]]:
    """(incarnation, path, was it ready, has it ended) of each note."""
    lives = [command.life for command in world.given(c.SaveWorkerLife)]
    return [
        (life.incarnation, life.path, life.ready_ns is not None, life.exited_ns is not None) for life in lives
    ]


def test_a_resident_workers_life_is_noted_when_it_is_ready_and_when_it_has_ended() -> None:
    world = World()
    world.work()
    worker = world.hot
    assert notes(world) == [(1, "hot", True, False)]
    world.advance(5)
    worker.exit(1, "it fell over")
    assert notes(world)[1:] == [(1, "hot", True, True)]
    ready, ended = (command.life for command in world.given(c.SaveWorkerLife)[:2])
    assert ready.started_ns == ended.started_ns == worker.spawned_ns
    assert (ended.pid, ended.host, ended.facts["story"]) == (worker.origin.pid, HOST, "it fell over")
    assert ended.facts["segments_ms"] == ready.facts["segments_ms"]
    assert ended.exited_ns == ended.noted_ns == world.now_ns
    assert ended.noted_unix_us == round(world.wall_s * 1e6)


def test_the_segments_of_a_start_add_up_to_it() -> None:
    world = World()
    world.hot.ready()
    (noted,) = world.given(c.SaveWorkerLife)
    assert noted.life.ready_ns is not None
    told = noted.life.facts["segments_ms"]
    assert isinstance(told, dict)
    assert list(told) == [*START_SEGMENTS, "unattributed"]
    assert sum(told.values()) == pytest.approx((noted.life.ready_ns - noted.life.started_ns) / 1e6, abs=0.01)


def test_what_a_start_does_not_tell_of_belongs_to_the_start_of_the_process() -> None:
    world = World()
    segments = dict.fromkeys(START_SEGMENTS, 1_000_000)
    world.now_ns += NS
    world.send(e.WorkerReady(world.hot.origin, world.now_ns, segments, {}, {}, 1, 1))
    (noted,) = world.given(c.SaveWorkerLife)
    told = noted.life.facts["segments_ms"]
    assert isinstance(told, dict)
    whole_ms = (world.now_ns - world.hot.spawned_ns) / 1e6
    assert told["process_start"] == pytest.approx(whole_ms - 5.0, abs=0.01)
    assert told["warmup"] == 1.0


def test_a_worker_that_never_was_ready_is_noted_at_its_end_alone() -> None:
    world = World()
    world.hot.exit(78, "it cannot work")
    assert notes(world)[0] == (1, "hot", False, True)


def test_a_one_shot_is_noted_once() -> None:
    world = World(Policy(worker=WorkerPolicy(lazy=True), once=True))
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    assert notes(world) == [(1, "cold", True, True)]
    (noted,) = world.given(c.SaveWorkerLife)
    (job,) = world.journal.jobs.values()
    assert job.record is not None
    own = job.record["segments_ms"]
    told = noted.life.facts["segments_ms"]
    assert isinstance(told, dict)
    assert isinstance(own, dict)
    assert {name: own[name] for name in START_SEGMENTS} == {name: told[name] for name in START_SEGMENTS}


def test_a_stale_report_of_a_worker_notes_nothing() -> None:
    world = World()
    world.work()
    before = len(notes(world))
    world.send(e.WorkerExited(e.Origin("hot", 99, 1, HOST), 0, "who is that"))
    assert len(notes(world)) == before


def test_a_record_tells_when_its_chain_ended_on_both_clocks_and_what_the_worker_took() -> None:
    world = World(Policy(batching=BatchPolicy(max_batch=4)))
    world.work()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    clock = world.line("a.jpg")["clock"]
    assert clock["run"] == world.pipeline._ledger.run
    assert clock["ended_ns"] <= world.now_ns
    wall_us = round(world.wall_s * 1e6) - (world.now_ns - clock["ended_ns"]) // 1000
    assert clock["ended_unix_us"] == pytest.approx(wall_us, abs=2)
    assert clock["served_ms"] > 0
    assert 0 <= clock["ipc_back_ms"] <= world.line("a.jpg")["segments_ms"]["ipc"]


def test_the_end_of_a_chain_is_its_own_and_not_that_of_the_event_that_told_of_it() -> None:
    world = World()
    world.work()
    world.drop_mask("a.jpg")
    world.drop("a.jpg", b"a picture")
    world.work()
    (job,) = world.journal.jobs.values()
    late = e.Instant(mono_ns=9_000_000_000, wall_s=1_800_000_000.0)
    clock = finish(job, None, Policy(), late, 8_750_000_000, run=7)["clock"]
    assert clock == {
        "run": 7,
        "ended_ns": 8_750_000_000,
        "ended_unix_us": 1_799_999_999_750_000,
        "served_ms": None,
        "ipc_back_ms": None,
    }


def test_an_instant_is_taken_to_the_wall_clock_by_the_two_that_were_read_together() -> None:
    now = e.Instant(mono_ns=5_000_000_000, wall_s=1_800_000_000.5)
    assert unix_us(now, 5_000_000_000) == 1_800_000_000_500_000
    assert unix_us(now, 4_999_000_000) == 1_800_000_000_499_000
    assert unix_us(now, 0) == 1_799_999_995_500_000
