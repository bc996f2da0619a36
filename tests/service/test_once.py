"""`watcher once`: work off what is there, say what became of it, exit 0 or 1."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import mask, picture, relative_files, wait_until
from watcher.core.job import JobState
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service
    from watcher.core.job import Job

    NewService = Callable[..., Service]


def test_once_does_all_and_exits_0(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2")
    for number in range(5):
        service.put(f"{number}.png")
    service.place("held.png", picture(401))
    service.put("twin.png", picture(402))
    service.put("twin-2.png", picture(402))

    done = service.run("once", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["done"], report["failed"], report["held"]) == (7, 0, 1)
    assert {job["source"] for job in report["jobs"]} >= {"0.png", "held.png", "twin.png"}
    records = service.results()
    served = [record for record in records if record["duplicate_of"] is None]
    assert {(record["path"], record["path_reason"]) for record in served} == {("cold", "once")}
    assert len({record["batch"] for record in served}) == 1, "one start of the model for all of them"
    assert len({record["worker"]["pid"] for record in served}) == 1
    assert service.note("held", "held.png")
    assert relative_files(service.state / "staging") == set()

    again = service.run("once", "--json")

    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["done"] == 0
    assert len(service.results()) == 7
    service.start()
    service.assert_sound()


@pytest.mark.kind("PD18")
def test_once_exits_1_if_a_picture_failed_and_does_the_others(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2")
    service.put("bad.png", b"no picture" * 100, mask(), expect=False)
    service.put("good.png")

    done = service.run("once", "--json")

    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["done"], report["failed"]) == (1, 1)
    assert service.note("failed", "bad.png")
    assert service.results()[0]["source"] == "good.png"


def test_once_of_an_empty_inbox_starts_no_worker_and_exits_0(new_service: NewService) -> None:
    service = new_service()

    done = service.run("once", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == []
    assert not (service.state / "worker.log").exists()


def test_once_says_why_no_worker_can_be_started_and_loses_nothing(new_service: NewService) -> None:
    service = new_service(
        "[arrivals]", "quiet_s = 0.2", "[engine]", 'name = "lama"', "[model]", 'source = "no.pt"'
    )
    service.put("0.png")

    failed = service.run("once")

    assert failed.returncode == 78, failed.stderr
    assert "so 1 of the pictures wait" in failed.stderr
    assert "no.pt" in failed.stderr
    assert service.results() == []

    mended = service.run("once", "--engine", "patchmatch")

    assert mended.returncode == 0, mended.stderr
    assert [record["outcome"] for record in service.results()] == ["done"]


def test_once_quarantines_what_kills_its_process_and_does_the_others(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2", faults="segv@poison.png")
    service.put("poison.png", expect=False)
    for number in range(3):
        service.put(f"{number}.png")

    done = service.run("once", "--json")

    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["done"], report["quarantined"]) == (3, 1)
    assert service.note("failed", "poison.png")
    assert "SIGSEGV" in next(job["reason"] for job in report["jobs"] if job["state"] == "quarantined")


def test_once_takes_up_a_retry_that_was_asked_for_before(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2")
    service.put("retried.png", picture(403))
    assert service.run("once").returncode == 0
    assert service.run("retry", "retried.png").returncode == 0

    done = service.run("once", "--json")

    assert json.loads(done.stdout)["done"] == 1, done.stderr
    assert [record["output"] for record in service.results()] == ["retried.png", "retried (2).png"]


def test_status_and_jobs_tell_of_the_running_service_in_json(service: Service) -> None:
    service.put("told.png")
    record = service.wait_record("told.png")

    status = json.loads(service.run("status", "--json").stdout)
    jobs = json.loads(service.run("jobs", "--json", "--limit", "1000").stdout)

    assert (status["running"], status["pid"], status["state"]) == (True, service.pid, "watching")
    assert status["worker"]["state"] in {"ready", "busy"}
    assert status["engine"]["actual"] == "patchmatch"
    told = next(job for job in jobs["jobs"] if job["id"] == record["job"])
    assert (told["state"], told["source"], told["output"]) == ("done", "told.png", "told.png")
    assert told["total_ms"] == record["total_ms"]


def test_once_that_is_stopped_says_what_is_left_and_goes_on_the_next_time(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2", "[worker]", "drain_s = 0.3", faults="slow_item=2")
    for number in range(4):
        service.put(f"{number}.png")

    command = service.command("once")
    with subprocess.Popen(command, env=service.environment(), stderr=subprocess.PIPE, text=True) as once:
        wait_until(lambda: _running(service), "a job that runs")
        once.terminate()
        _, told = once.communicate(timeout=30)

    assert once.returncode == 75, told
    assert "stopped before the end" in told
    assert len(service.results()) < 4

    service.faults = ""
    assert service.run("once").returncode == 0
    assert sorted(record["source"] for record in service.results()) == [
        f"{number}.png" for number in range(4)
    ]
    assert {record["attempt"] for record in service.results()} == {1}, "a stop is not an attempt"


def _running(service: Service) -> tuple[Job, ...]:
    """The jobs that run; none while the journal is still being made."""
    try:
        return service.jobs(states=[JobState.RUNNING])
    except RemediableError:
        return ()
