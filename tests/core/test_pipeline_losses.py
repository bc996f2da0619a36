"""Who pays for a process that ends: poison, suspects, too small devices, and what records tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.test_pipeline_workers import HOT_ONLY, drop_marked, ready_world, sources
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.policy import BatchPolicy, ColdPolicy, Policy

if TYPE_CHECKING:
    from tests.core.conversation import World

BATCHES = Policy(batching=BatchPolicy(max_batch=16))
EVIDENCE = e.Evidence(
    "oom_suspected", None, signal="SIGKILL", rss_bytes=7_000_000_000, oom_kills=1, output="stacks\n" * 2000
)


def crashes(world: World) -> list[str]:
    """The paths of the processes that ended as nobody wanted."""
    return [said["path"] for said in world.said("worker.exited") if said["exit_code"] == -9]


def check_innocent(world: World, *guilty: str) -> None:
    """All others are done, once each, and nobody ever blamed them."""
    for job in world.journal.jobs.values():
        if job.source not in guilty:
            assert job.state == "done", job
            assert (job.suspect, job.solo_faults) == (False, 0), job
            assert not any(loss["alone"] for loss in job.losses), "it paid for a process of its own"
    served = [line["source"] for line in world.journal.lines if line["outcome"] == "done"]
    assert len(served) == len(set(served))


def told_to_be_serving(world: World) -> set[str]:
    """Sources of jobs that were being served, or next, when a process ended."""
    return {job.source for job in world.journal.jobs.values() if any(loss["serving"] for loss in job.losses)}


# --- poison ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [b"poison", b"a standstill"], ids=["dies", "hangs"])
@pytest.mark.parametrize("position", range(16))
def test_one_poison_among_sixty_three_good(position: int, poison: bytes) -> None:
    world = ready_world(BATCHES)
    drop_marked(world, "first.jpg")
    for number in range(62):
        if number == 16 + position:
            drop_marked(world, "poison.jpg", poison)
        drop_marked(world, f"{number:02}.jpg")
    world.settle()
    assert world.states("poison.jpg") == ["quarantined"]
    check_innocent(world, "poison.jpg")
    assert told_to_be_serving(world) == {"poison.jpg"}
    assert crashes(world) == ["hot", "cold", "cold"]
    assert len(world.outbox) == 63


@pytest.mark.parametrize("between", [0, 1, 7, 30], ids=str)
@pytest.mark.parametrize("second", [b"another poison", b"a standstill"], ids=["dies", "hangs"])
def test_two_of_them(between: int, second: bytes) -> None:
    world = ready_world(BATCHES)
    drop_marked(world, "first.jpg")
    for number in range(40):
        if number == 3:
            drop_marked(world, "one.jpg", b"one poison")
        if number == 3 + between:
            drop_marked(world, "two.jpg", second)
        drop_marked(world, f"{number:02}.jpg")
    world.settle()
    assert world.states("one.jpg") == world.states("two.jpg") == ["quarantined"]
    check_innocent(world, "one.jpg", "two.jpg")
    assert told_to_be_serving(world) == {"one.jpg", "two.jpg"}
    assert len(crashes(world)) <= 6


def test_one_that_hangs_in_the_suspects_lane_delays_nobody_in_the_cold_lane() -> None:
    world = ready_world(BATCHES)
    world.hot.exit(78)
    drop_marked(world, "standstill.jpg", b"a standstill")
    cold = world.cold
    cold.ready()
    cold.begin()
    cold.crash()
    (suspect,) = [process for process in world.colds if process.careful]
    suspect.ready()
    suspect.begin()
    suspect.stuck = True
    started_ns = world.now_ns
    for number in range(5):
        drop_marked(world, f"{number}.jpg")
        other = next(process for process in world.colds if process is not suspect)
        assert not other.careful
        other.ready()
        other.serve(other.begin())
        other.batch_done()
    assert suspect.alive
    assert world.states().count("done") == 5
    assert (world.now_ns - started_ns) / 1e9 < 5 * 2.5
    world.settle()
    assert world.states("standstill.jpg") == ["quarantined"]


@pytest.mark.parametrize("seen", [True, False], ids=["notified", "listed"])
def test_another_name_between_its_faults_clears_nobody(seen: bool) -> None:  # noqa: FBT001 - parametrised
    world = ready_world()
    drop_marked(world, "a.jpg", b"poison")
    world.hot.serve(world.hot.begin())
    assert world.job("a.jpg").solo_faults == 1
    if seen:
        world.rename("a.jpg", "b.jpg")
        world.rename("a.jpg.mask.png", "b.jpg.mask.png")
    else:
        world.deaf = True
        world.move_unseen("a.jpg", "b.jpg")
        world.rescan()
        world.deaf = False
    world.settle()
    assert world.states("b.jpg") == ["quarantined"]
    assert world.job("b.jpg").solo_faults <= 2
    assert crashes(world).count("hot") == 1, "under its new name it does not meet the resident worker"
    assert len(crashes(world)) <= 3


def test_a_restart_and_another_name_between_its_faults_clear_nobody() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"poison")
    world.hot.serve(world.hot.begin())
    world.kill_service()
    world.move_unseen("a.jpg", "b.jpg")
    world.tick()
    world.start()
    world.settle()
    assert world.states("b.jpg") == ["quarantined"]
    assert crashes(world).count("hot") == 1
    assert len(crashes(world)) <= 3


def test_a_restart_between_every_two_faults() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"poison")
    drop_marked(world, "good.jpg")
    world.hot.serve(world.hot.begin())
    world.restart()
    world.settle()
    world.restart()
    world.settle()
    assert world.states("a.jpg") == ["quarantined"]
    check_innocent(world, "a.jpg")
    assert len(crashes(world)) == 2


def test_poison_under_two_paths_at_once_costs_no_more_than_under_one() -> None:
    world = ready_world()
    for path in ("a.jpg", "b.jpg"):
        drop_marked(world, path, b"poison")
    world.settle()
    assert world.states() == ["quarantined"] * 2
    assert len(crashes(world)) == 2
    assert {source for _, source in world.notes} == {"a.jpg", "b.jpg"}


def test_the_one_that_it_copies_goes_away_between_its_faults() -> None:
    world = ready_world()
    for path in ("a.jpg", "b.jpg"):
        drop_marked(world, path, b"poison")
    world.hot.serve(world.hot.begin())
    world.remove("a.jpg")
    world.settle()
    assert world.states("b.jpg") == ["quarantined"]
    assert crashes(world).count("hot") == 1
    assert len(crashes(world)) <= 3


def test_without_a_cold_path_poison_is_quarantined_all_the_same() -> None:
    world = ready_world(Policy(cold=ColdPolicy(enabled=False), batching=BatchPolicy(max_batch=16)))
    drop_marked(world, "first.jpg")
    for number in range(20):
        drop_marked(world, f"{number:02}.jpg", b"poison" if number == 9 else None)
    world.settle()
    assert world.states("09.jpg") == ["quarantined"]
    check_innocent(world, "09.jpg")
    assert crashes(world) == ["hot"] * 3


def test_a_retry_of_poison_goes_alone_and_is_given_up_again() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"poison")
    world.settle()
    world.send(e.RetryRequested((world.job("a.jpg"),)))
    world.settle()
    assert world.states("a.jpg") == ["quarantined"] * 2
    assert crashes(world) == ["hot", "cold", "cold", "cold"]


# --- what is told ------------------------------------------------------------------------------------------


def test_a_record_tells_of_every_loss_with_what_is_known_of_it() -> None:
    world = ready_world()
    for path in ("0.jpg", "a.jpg", "b.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    world.hot.come_to("inference", "a.jpg")
    world.advance(1.5)
    world.hot.crash(EVIDENCE)
    world.work()
    served, waiting = world.line("a.jpg")["losses"], world.line("b.jpg")["losses"]
    assert len(served) == len(waiting) == 1
    assert served[0]["reason"] == "killed by signal 9"
    assert (served[0]["serving"], waiting[0]["serving"]) == (True, False)
    assert served[0]["phase"] == "inference"
    assert served[0]["silent_ms"] == pytest.approx(1500, abs=10)
    assert (served[0]["cause"], served[0]["oom_kills"]) == ("oom_suspected", 1)
    assert served[0]["rss_bytes"] == 7_000_000_000
    assert "output" not in served[0], "stacks are for the note, not for every line"
    assert world.line("0.jpg")["losses"] == []


def test_the_note_of_a_quarantined_job_has_the_evidence() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg")
    for process in (world.hot, None):
        process = process or world.cold  # noqa: PLW2901 - the first is there, the second is to come
        if process.path == "cold":
            process.ready()
        process.come_to("decode")
        process.crash(EVIDENCE)
    assert world.states() == ["quarantined"]
    note = world.notes["failed", "a.jpg"]
    assert "2 times" in note["reason"]
    assert "killed by signal 9" in note["reason"]
    evidence = str(note)
    assert "oom_suspected" in evidence
    assert "stacks" in evidence
    assert len(evidence) < 3 * 2 * 4096


def test_only_the_last_losses_are_remembered() -> None:
    world = ready_world(HOT_ONLY)
    for path in ("0.jpg", *"abcdefghij"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    for _ in range(6):  # each time another one is the suspect
        hot = world.hot
        while not hot.is_ready or hot.batch is None or len(hot.sources) == 1:
            assert hot.step()
        hot.begin()
        hot.crash()
        world.advance(70)
    assert len(world.job("j").losses) == 4
    world.settle()
    assert set(world.states()) == {"done"}


def test_the_time_of_a_lost_batch_is_told_apart_from_waiting_in_it() -> None:
    world = ready_world()
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    hot = world.hot
    item = hot.begin("a.jpg")
    world.advance(2)
    hot.done(item)
    hot.begin("b.jpg")
    world.advance(1)
    hot.crash()
    world.settle()
    assert set(world.states()) == {"done"}
    for path in ("b.jpg", "c.jpg"):
        segments = world.line(path)["segments_ms"]
        assert sum(segments.values()) == pytest.approx(world.line(path)["total_ms"], abs=0.01)
        assert segments["batch_wait"] >= 2000, path
        assert 1000 <= segments["lost_attempts"] < 2000, path
    assert world.line("a.jpg")["segments_ms"]["lost_attempts"] == 0


# --- a device that is too small ----------------------------------------------------------------------------


def test_what_does_not_fit_into_the_device_runs_on_the_cpu_and_its_record_says_so() -> None:
    world = ready_world(Policy(device="cuda:0"))
    for path in ("0.jpg", "a.jpg", "huge.jpg", "b.jpg"):
        drop_marked(world, path, b"a huge picture" if path == "huge.jpg" else None)
    world.settle()
    assert set(world.states()) == {"done"}
    line = world.line("huge.jpg")
    assert (line["path"], line["attempt"], line["batch_size"]) == ("cold", 1, 1)
    assert line["device"]["configured"] == "cuda:0", "what the person wanted"
    assert line["device"]["actual"] == "cpu"
    assert "did not fit" in line["device"]["reason"]
    assert line["losses"] == []
    (run,) = [run for run in world.given(c.RunCold) if sources(run) == ["huge.jpg"]]
    assert run.device == "cpu"
    assert all(run.device is None for run in world.given(c.RunCold) if sources(run) != ["huge.jpg"])
    check_innocent(world)
    assert world.said("worker.restarting") == [], "it was used up, and said so"


def test_what_does_not_fit_has_failed_where_there_is_no_other_device() -> None:
    world = ready_world(HOT_ONLY)
    drop_marked(world, "huge.jpg", b"a huge picture")
    drop_marked(world, "a.jpg")
    world.settle()
    assert world.states("huge.jpg") == ["failed"]
    check_innocent(world, "huge.jpg")


# --- what is given back ------------------------------------------------------------------------------------


def test_what_is_given_back_is_nobodys_fault_and_keeps_its_place() -> None:
    world = ready_world()
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    assert world.hot.sources == ["a.jpg", "b.jpg", "c.jpg"]
    world.hot.serve(world.hot.begin())
    drop_marked(world, "d.jpg")
    world.hot.batch_done(give_back=True)
    assert world.hot.sources == ["b.jpg", "c.jpg", "d.jpg"]
    world.work()
    for path in ("b.jpg", "c.jpg", "d.jpg"):
        line = world.line(path)
        assert (line["attempt"], line["losses"], line["path"]) == (1, [], "hot")
        assert line["segments_ms"]["lost_attempts"] < 5
    assert world.line("b.jpg")["segments_ms"]["batch_wait"] >= 158
    check_innocent(world)


def test_a_worker_that_is_used_up_in_mid_batch_blames_nobody() -> None:
    world = ready_world()
    for path in ("0.jpg", "a.jpg", "b.jpg", "c.jpg"):
        drop_marked(world, path)
    world.hot.serve(world.hot.begin())
    world.hot.batch_done()
    world.hot.serve(world.hot.begin("a.jpg"))
    world.hot.exit(75)
    world.settle()
    check_innocent(world)
    assert {line["attempt"] for line in world.journal.lines} == {1}
    assert world.said("worker.restarting") == []


def test_a_mask_that_comes_after_its_picture_clears_nobody() -> None:
    world = ready_world()
    drop_marked(world, "a.jpg", b"content")
    world.hot.begin()
    world.hot.crash()
    assert world.job("a.jpg").solo_faults == 1
    world.remove("a.jpg.mask.png")
    world.remove("a.jpg")
    for process in world.colds:
        process.crash()
    world.settle()
    world.drop("b.jpg", b"content")
    world.settle()
    world.drop_mask("b.jpg")
    world.advance(3)
    assert world.job("b.jpg").suspect


def test_processes_that_nobody_can_kill_are_not_piled_up_and_blame_nobody() -> None:
    """They hang in the kernel, as with a disk that does not answer."""
    world = ready_world()
    for name in "abcd":
        drop_marked(world, f"{name}.jpg")
    for _ in range(60):
        for process in world.processes:
            process.unkillable = process.stuck = True
            if process.batch is not None and not process.read:
                process.begin()
        world.advance(30)
    assert len(world.colds) <= 3
    assert "quarantined" not in world.states()
    assert all(job.solo_faults == 0 for job in world.journal.jobs.values())
