"""An accelerator that is full or lost: halved, or served elsewhere, and the record says which device it was.

There is none here: an engine that runs on the CPU meets the errors of one, so `actual` is `cpu` throughout.
What the service decides by is the error, and what it tells is what it asked for, what ran, and why.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from tests.service.deaths import assert_served_in_time, exits
from tests.service.harness import Service, encoded, picture
from watcher.wire import EXIT_RECYCLE, EXIT_STICKY_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")


def two_holes() -> bytes:
    """So far apart that each is a crop of its own."""
    array = np.zeros((480, 960), np.uint8)
    array[40:60, 40:60] = array[420:440, 900:920] = 255
    return encoded(array)


@pytest.fixture(scope="module")
def ailing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its accelerator has room for one crop, and is lost with some pictures."""
    faults = "hot:oom=1,hot:sticky_cuda@sticky.png,sticky_cuda@poison.png"
    service = Service(tmp_path_factory.mktemp("ailing"), QUICK, faults=faults).start()
    yield service
    service.assert_sound()
    assert service.terminate() == 0
    service.close()


@pytest.mark.kind("W44", "PB11")
def test_what_does_not_fit_together_is_filled_in_halves_by_the_same_process(ailing: Service) -> None:
    service = ailing
    worker = service.worker_pid()
    service.put("halves.png", picture(3, 960, 480), two_holes())

    record = service.wait_record("halves.png")

    assert record["image"]["crops"] == 2
    assert (record["path"], record["attempt"], record["worker"]["pid"]) == ("hot", 1, worker)
    assert service.log("job.too_large_for_device") == exits(service) == []


@pytest.mark.kind("W45")
def test_a_lost_device_ends_the_process_at_once_and_its_picture_is_served_apart(ailing: Service) -> None:
    service = ailing
    worker = service.worker_pid()
    service.put("sticky.png")

    record = service.wait_record("sticky.png")

    assert (record["path"], record["path_reason"], record["attempt"]) == ("cold", "suspect", 2)
    (exited,) = service.log("worker.exited", pid=worker)
    assert exited["exit_code"] == EXIT_STICKY_DEVICE
    assert "the device failed: CUDA error" in exited["reason"]
    (loss,) = record["losses"]
    assert (loss["cause"], loss["serving"], loss["phase"]) == ("exited", True, "inference")
    assert f"exited with code {EXIT_STICKY_DEVICE}" in loss["reason"]
    assert service.worker_pid() != worker
    service.put("after.png")
    assert service.wait_record("after.png")["path"] == "hot"
    assert_served_in_time(service)


@pytest.mark.kind("W45")
def test_a_picture_that_loses_every_device_is_given_up_with_its_story(ailing: Service) -> None:
    service = ailing
    service.wait_ready()
    service.put("poison.png", expect=False)

    record = service.wait_record("poison.png", outcome={"quarantined"})

    assert f"exited with code {EXIT_STICKY_DEVICE}" in record["reason"]
    assert [loss["path"] for loss in record["losses"]] == ["hot", "cold"]
    evidence = service.wait_note("failed", "poison.png")["evidence"]
    assert [loss["reason"] for loss in evidence] == [loss["reason"] for loss in record["losses"]]


@pytest.mark.kind("W44", "PB11")
def test_what_does_not_fit_alone_is_served_on_the_cpu_by_a_fresh_process(new_service: NewService) -> None:
    service = new_service(*QUICK, faults="hot:oom=0").start()
    worker = service.worker_pid()
    service.put("large.png")

    record = service.wait_record("large.png")

    assert (record["path"], record["path_reason"], record["outcome"]) == ("cold", "suspect", "done")
    assert record["attempt"] == 1, "the device's lack of memory is not the picture's fault"
    device = record["device"]
    assert (device["configured"], device["actual"]) == ("auto", "cpu")
    assert device["reason"] == "the picture did not fit into the accelerator's memory"
    (told,) = service.log("job.too_large_for_device")
    assert told["source"] == "large.png"
    (exited,) = service.wait_log("worker.exited", pid=worker)
    assert (exited["exit_code"], exited["level"]) == (EXIT_RECYCLE, "info")
    assert "memory is short" in exited["reason"]
    assert service.worker_pid() != worker, "what the device still holds is not to be trusted"
    assert service.status()["worker"]["restarts"] == 0


# --- a device that is not there ----------------------------------------------------------------------------


def assert_told_of_the_cpu(service: Service, configured: str, reason: str) -> None:
    """In every record, in the status, and once in the log, however many processes were started."""
    for record in service.records():
        device = record["device"]
        assert (device["configured"], device["actual"], device["reason"]) == (configured, "cpu", reason)
        assert device["available"] == ["cpu"]
        assert device["evidence"]["output"] == "cpu"
    assert {record["path"] for record in service.records()} == {"hot", "cold"}
    status = json.loads(service.run("status", "--json").stdout)["device"]
    assert status == {"configured": configured, "actual": "cpu", "reason": reason}
    (told,) = service.log("device.replaced")
    assert (told["level"], told["configured"], told["actual"], told["reason"]) == (
        "warning",
        configured,
        "cpu",
        reason,
    )


def serve_hot_cold_and_hot_again(service: Service) -> None:
    service.put("one.png")
    service.wait_record("one.png")
    os.kill(service.worker_pid(), signal.SIGKILL)
    service.put("two.png")
    service.wait_record("two.png")
    service.worker_pid()
    service.put("three.png")
    service.wait_record("three.png")


def test_a_device_that_the_engine_cannot_use_is_told_in_every_record_and_once_in_the_log(
    new_service: NewService,
) -> None:
    service = new_service(*QUICK, "[engine]", 'name = "patchmatch"', 'device = "cuda"').start()
    serve_hot_cold_and_hot_again(service)
    assert_told_of_the_cpu(service, "cuda", "patchmatch runs on the CPU only")


def test_once_tells_of_it_too(new_service: NewService) -> None:
    service = new_service(*QUICK, "[engine]", 'name = "patchmatch"', 'device = "cuda:1"')
    for name in ("a.png", "b.png", "c.png"):
        service.put(name)
    ended = service.run("once")
    assert ended.returncode == 0
    told = [line for line in ended.stderr.splitlines() if "device.replaced" in line]
    assert len(told) == 1
    assert json.loads(told[0])["configured"] == "cuda:1"
