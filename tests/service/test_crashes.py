"""Kills of the service and of its workers at any moment (items 4 and 5): once each, and nothing torn."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import is_alive, mask, picture, relative_files, seed_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

# --- the service dies --------------------------------------------------------------------------------------


@pytest.mark.kind("D2", "W23", "W51")
def test_three_kills_amid_30_pictures_leave_30_results_and_30_records(new_service: NewService) -> None:
    service = new_service(faults="slow_item=0.03").start()
    for number in range(30):
        service.put(f"batch/{number:02}.png")
    for killed_after in (3, 10, 20):
        service.wait_records(killed_after)
        service.kill9()
        assert len(service.results()) < 30, "the kill came too late to mean anything"
        service.start(ready=False)

    service.wait_records(30)

    service.assert_sound()
    assert len(service.results()) == 30 + service.canaries
    assert all(record["attempt"] == 1 for record in service.results()), "a kill of the service is no attempt"


@pytest.mark.kind("D2")
def test_kills_at_every_step_of_a_start_do_no_harm(new_service: NewService) -> None:
    service = new_service()
    for number in range(6):
        service.put(f"{number}.png")
    for step in ("service.started", "inbox.found", "worker.ready", "job.finished"):
        service.start(ready=False)
        service.wait_log(step)
        service.kill9()
        service.log_file.unlink()

    service.start()
    service.wait_records(6)

    service.assert_sound()


@pytest.mark.kind("D2")
@pytest.mark.soak
def test_twenty_kills_at_any_moment_amid_50_pictures(new_service: NewService) -> None:
    service = new_service(faults="slow_item=0.02")
    for number in range(50):
        service.put(f"{number:02}.png")
    for kill in range(20):
        service.start(ready=False)
        time.sleep(0.3 + kill * 7 % 20 / 15)  # moments all over a start and the first batches
        service.kill9()

    service.start()
    service.wait_records(50)

    service.assert_sound()


@pytest.mark.kind("D3")
def test_a_picture_published_before_the_kill_but_not_recorded_is_recorded_once(
    new_service: NewService,
) -> None:
    """The kill falls between the rename and the record: the outbox is what tells."""
    service = new_service(faults="slow_item=0.01").start()
    for number in range(12):
        service.put(f"{number}.png")
    wait_until(lambda: len(service.outputs()) >= 2, "the second output")
    service.kill9()

    service.start()
    service.wait_records(12)

    service.assert_sound()
    assert not [output for output in service.outputs() if "(2)" in output]


@pytest.mark.kind("D4")
def test_what_a_crash_left_in_staging_is_swept_at_the_start(new_service: NewService) -> None:
    service = new_service()
    left = [
        service.state / "staging" / "0123abcd-1.1",
        service.outbox / ".watcher" / "staging" / "0123abcd-1.2",
    ]
    for path in left:
        path.parent.mkdir(parents=True)
        path.write_bytes(picture(1)[:500])

    service.start()

    (swept,) = service.log("outbox.swept")
    assert swept["files"] == 2
    assert not (service.outbox / ".watcher").exists()
    service.assert_sound()


@pytest.mark.kind("W29")
def test_no_worker_outlives_a_killed_service(new_service: NewService) -> None:
    service = new_service(faults="slow_item=5").start()
    worker = service.worker_pid()
    service.put("slow.png")
    service.wait_state("running")
    service.kill9()

    wait_until(lambda: not is_alive(worker), "the orphan to end", patience_s=1.0)


@pytest.mark.kind("W50")
def test_a_second_service_on_the_same_state_is_refused(service: Service) -> None:
    second = service.run("run")

    assert second.returncode == 75
    assert str(service.pid) in second.stderr
    assert "running already" in second.stderr
    assert service.run("once").returncode == 75


@pytest.mark.kind("D9")
def test_an_outbox_that_is_away_costs_neither_an_attempt_nor_a_result_nor_a_record(
    new_service: NewService,
) -> None:
    service = new_service().start()
    service.put("before.png")
    service.wait_record("before.png")
    away = service.outbox.rename(service.root / "away")
    for number in range(3):
        service.put(f"{number}.png")

    (blocked,) = service.wait_log("publish.blocked")
    assert blocked["reason"]
    assert not service.outbox.exists(), "what is away must not be made anew"
    away.rename(service.outbox)

    for number in range(3):
        assert service.wait_record(f"{number}.png")["attempt"] == 1
    service.assert_sound()
    assert len(service.log("publish.blocked")) == 1, "told once, not at every try"


# --- the service is asked to end ---------------------------------------------------------------------------


@pytest.mark.kind("D12", "W38")
def test_sigterm_finishes_the_running_batch_and_leaves_the_rest_to_the_next_start(
    new_service: NewService,
) -> None:
    service = new_service("[batching]", "max_batch = 3", faults="slow_item=0.1").start()
    for number in range(12):
        service.put(f"{number:02}.png")
    service.wait_records(1)
    worker = service.worker_pid()

    assert service.terminate() == 0

    served = len(service.results())
    assert 1 <= served < 12, "it was to stop in the middle"
    assert not is_alive(worker)
    states = [job.state for job in service.jobs() if not job.is_final]
    assert set(states) <= {"ready", "waiting"}, "what ran was to be finished"
    assert service.log("service.stopped")
    assert service.status()["state"] == "stopped"
    service.faults = ""
    service.start()
    service.wait_records(12)
    assert all(record["attempt"] == 1 for record in service.results()), "a drain is no attempt"
    service.assert_sound()


@pytest.mark.kind("D12", "W38")
def test_a_second_sigterm_ends_at_once_and_loses_nothing(new_service: NewService) -> None:
    service = new_service(faults="slow_item=20").start()
    worker = service.worker_pid()
    service.put("slow.png")
    service.wait_state("running")
    assert service.process is not None
    service.process.terminate()
    service.wait_log("service.stopping")

    service.process.terminate()

    assert service.process.wait(5) == 0
    assert not is_alive(worker)
    service.faults = ""
    service.start()
    assert service.wait_record("slow.png")["attempt"] == 1
    service.assert_sound()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_of_a_terminal_drain_as_well(new_service: NewService, number: signal.Signals) -> None:
    service = new_service().start()

    os.kill(service.pid, number)

    assert service.process is not None
    assert service.process.wait(20) == 0
    assert service.log("service.stopping", reason=number.name)


# --- a worker dies -----------------------------------------------------------------------------------------


@pytest.mark.kind("W5", "W6", "W17")
def test_a_worker_killed_in_mid_batch_costs_no_picture_and_comes_back(new_service: NewService) -> None:
    service = new_service(faults="hot:slow_item=0.2").start()
    worker = service.worker_pid()
    names = [f"{number}.png" for number in range(8)]
    for name in names:
        service.put(name)
    service.wait_records(2)
    os.kill(worker, signal.SIGKILL)

    records = service.wait_records(8)

    late = [record for record in records if record["worker"]["pid"] != worker]
    assert late, "the kill came too late to mean anything"
    assert all(record["path"] == "cold" or record["attempt"] >= 2 for record in late[:1])
    again = [record for record in late if record["attempt"] >= 2]
    assert again, "the batch that was lost is told as an attempt"
    assert all(record["segments_ms"]["lost_attempts"] > 0 for record in again)
    assert all(record["path_reason"] in {"crashed", "suspect"} for record in late if record["path"] == "cold")
    assert service.wait_log("worker.exited", pid=worker)[0]["exit_code"] == -signal.SIGKILL
    fresh = wait_until(
        lambda: service.worker_pid() not in {worker, None} and service.worker_pid(), "a worker"
    )
    assert fresh != worker
    assert service.status()["worker"]["restarts"] == 1
    service.assert_sound()


@pytest.mark.kind("W51")
def test_a_one_shot_killed_in_mid_item_costs_no_picture(new_service: NewService) -> None:
    service = new_service(faults="hot:fail_start=78,cold:slow_item=0.5").start(ready=False)
    service.wait_log("worker.disabled")
    service.put("victim.png")
    service.wait_state("running")
    (cold,) = wait_until(service.children, "a one-shot")
    os.kill(cold, signal.SIGKILL)

    record = service.wait_record("victim.png")

    assert record["path"] == "cold"
    assert record["worker"]["pid"] != cold


@pytest.mark.kind("D7", "W18", "W21", "PD16")
def test_a_poison_picture_is_quarantined_and_its_neighbours_are_done_once(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.3", faults="crash@poison.png").start()
    service.put("poison.png", expect=False)
    for number in range(5):
        service.put(f"good-{number}.png")

    record = service.wait_record("poison.png", outcome={"quarantined"})
    service.wait_records(5)

    assert record["reason"]
    assert record["remedy"]
    note = service.wait_note("failed", "poison.png")
    assert note["state"] == "quarantined"
    assert note["reason"] == record["reason"]
    assert f"watcher retry {record['job']}" in note["remedy"]
    service.assert_sound()

    # neither a restart nor time tries it again; a person does, once what was wrong is mended
    assert service.terminate() == 0
    service.faults = ""
    service.start()
    service.assert_sound()
    assert len(service.records_of("poison.png", outcome=())) == 1
    assert service.run("retry", "poison.png").returncode == 0
    service.expect("poison.png", picture(seed_of("poison.png")), mask())
    assert service.wait_record("poison.png")["retry_of"] == record["job"]
    service.wait_no_note("failed", "poison.png")
    service.assert_sound()


@pytest.mark.kind("D8")
def test_a_worker_that_cannot_run_here_leaves_everything_to_the_cold_path(new_service: NewService) -> None:
    service = new_service(faults="hot:fail_start=78").start(ready=False)
    service.put("cold.png")

    record = service.wait_record("cold.png")

    assert (record["path"], record["path_reason"], record["attempt"]) == ("cold", "disabled", 1)
    segments = record["segments_ms"]
    assert segments["process_start"] > 0
    assert segments["import"] > 0
    assert segments["warmup"] > 0
    assert service.status()["worker"]["state"] == "disabled"
    assert len(service.wait_log("worker.disabled")) == 1


def test_a_worker_that_writes_garbage_is_replaced(new_service: NewService) -> None:
    service = new_service(faults="hot:garbage").start()
    service.put("garbage.png")

    record = service.wait_record("garbage.png")

    assert record["path"] == "cold"
    assert service.log("worker.garbage")
    assert service.wait_log("worker.exited", path="hot")


@pytest.mark.kind("D3")
@pytest.mark.parametrize("after", ["archive", "delete"])
def test_a_kill_amid_a_disposal_leaves_neither_a_picture_nor_its_mask_behind(
    new_service: NewService, after: str
) -> None:
    service = new_service(f'after = "{after}"', 'archive = "{root}/archive"')
    archive = service.root / "archive"
    archive.mkdir()
    service.start()
    for number in range(2):
        marked = service.inbox / f"{number}.png.mask.png"
        service.put(f"{number}.png")
        deadline = time.monotonic() + 30
        while marked.exists():  # without a pause: the kill is to fall between the two removals
            assert time.monotonic() < deadline
        service.kill9()
        service.start()
    wait_until(lambda: relative_files(service.inbox) == set(), "an empty inbox")
    assert len(service.results()) == 2
    if after == "archive":
        assert len(relative_files(archive)) == 4
