"""What workers write: to a log that is bounded; too late, for nothing; and never to shared memory."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import exits, worker_log
from tests.service.harness import relative_files, sha256, wait_until
from tests.service.namespaces import with_mounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
LOG_BYTES: Final = 1_000_000
LOG_FILES: Final = 3
FLOOD_BYTES: Final = 8 << 20
DISPATCH_MS: Final = 5.0


@pytest.mark.kind("W42", "W43", "W60")
def test_workers_that_never_stop_talking_fill_no_disk_and_hold_up_nobody(new_service: NewService) -> None:
    """The resident worker and a one-shot write eight megabytes each, before their first picture.

    And `/dev/shm` holds one page: pictures go by path, not by shared tensors.
    """
    tiny = with_mounts(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"])  # noqa: S108 - that one
    faults = "stderr_flood,hot:hang_sleep@cold.png"
    service = new_service(*QUICK, wrapper=tiny, faults=faults).start()
    worker = service.worker_pid()
    assert re.search(r" /dev/shm .*size=4k", Path(f"/proc/{worker}/mountinfo").read_text("ascii"))
    service.put("hot.png")
    assert service.wait_record("hot.png")["path"] == "hot"
    service.put("cold.png")
    assert service.wait_record("cold.png")["path"] == "cold"

    written = sorted(file.name for file in service.state.glob("worker.log*"))

    assert written == ["worker.log", "worker.log.1", "worker.log.2"]
    kept = worker_log(service)
    assert 0.5 * LOG_FILES * LOG_BYTES < len(kept) <= LOG_FILES * LOG_BYTES < FLOOD_BYTES
    assert len(exits(service)) == 1, "but for the one that was made to hang"
    fresh = service.worker_pid()
    assert fresh != worker
    held = {link.name: str(link.readlink()) for link in Path(f"/proc/{fresh}/fd").iterdir()}
    assert not [path for path in held.values() if str(service.root) in path], "one writer: the service"
    assert held["1"].startswith("pipe:")
    assert held["1"] == held["2"]
    service.assert_sound()


@pytest.mark.kind("W7", "W50", "W51")
def test_what_a_dead_worker_writes_too_late_is_never_published(new_service: NewService) -> None:
    """The worker dies; a process that it left, out of anybody's reach, stages a result and reports it.

    That is 1.5 s later, while a one-shot has the same picture and is not done yet.
    """
    service = new_service(*QUICK, faults="hot:late_write@late.png,cold:slow_start=2.5").start()
    worker = service.worker_pid()
    service.put("late.png")
    staging = service.state / "staging"

    (stale,) = wait_until(
        lambda: [path for path in relative_files(staging) if (staging / path).read_bytes() == b"too late"],
        "the late result in staging",
    )

    assert [job.state for job in service.jobs()] == ["running"], "the one-shot was to have it still"
    record = service.wait_record("late.png")
    (exited,) = service.log("worker.exited", pid=worker)
    assert exited["cause"] == "oom_suspected"
    assert (record["path"], record["attempt"], record["engine"]["actual"]) == ("cold", 2, "patchmatch")
    assert service.outputs() == {"late.png"}
    assert sha256(service.output_of(record)) == record["image"]["sha256_out"]
    assert service.terminate() == 0
    service.faults = ""
    service.start()
    assert not (staging / stale).exists(), "the next start sweeps it"
    service.assert_sound()


@pytest.mark.kind("W55")
def test_a_lone_picture_waits_for_no_company(service: Service) -> None:
    """From complete to dispatched; the quickest of some, since other tests share the machine."""
    waits_ms: list[float] = []
    deadline = time.monotonic() + 30
    while min(waits_ms, default=DISPATCH_MS) >= DISPATCH_MS and time.monotonic() < deadline:
        name = f"lone/{len(waits_ms)}.png"
        service.put(name)
        segments = service.wait_record(name)["segments_ms"]
        waits_ms.append(segments["queue"] + segments["pair"] + segments["batch_wait"])
    assert min(waits_ms) < DISPATCH_MS, waits_ms
