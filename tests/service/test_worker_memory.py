"""Workers that grow, or were made to: recycled between batches, relative to what the warm worker needs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import exits
from tests.service.harness import memory_mb, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.harness import Service

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1", "[batching]", "max_batch = 4")
LIMIT_MB: Final = 45


@pytest.mark.kind("W12", "W24", "W25", "PB10")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("leak=60", "has grown by "),
        pytest.param("fdleak=300", "holds 3", marks=pytest.mark.soak),
        pytest.param("", "served ", marks=pytest.mark.soak),
    ],
)
def test_recycling_under_load_loses_nothing_and_blames_nobody(
    new_service: NewService, fault: str, reason: str
) -> None:
    """By memory, by descriptors, and by items where the configuration says so."""
    limit = f"recycle_growth_mb = {LIMIT_MB}" if fault else "recycle_items = 4"
    service = new_service(*QUICK, "[worker]", limit, faults=f"hot:{fault}" if fault else "").start()
    names = [f"{number:02}.png" for number in range(12)]
    for name in names:
        service.put(name)

    records = {name: service.wait_record(name) for name in names}

    recycled = service.wait_log("worker.recycling")
    assert all(entry["reason"].startswith(reason) for entry in recycled)
    assert all(record["attempt"] == 1 and record["losses"] == [] for record in records.values())
    assert {record["path_reason"] for record in records.values()} <= {"ready", "starting", "queue_too_long"}
    hot = [record["worker"] for record in records.values() if record["path"] == "hot"]
    assert len({worker["incarnation"] for worker in hot}) > 1 or len(hot) < len(records)
    assert exits(service) == [], "an end that was wanted is no crash"
    assert all(job.solo_faults == 0 and not job.suspect for job in service.jobs())
    service.wait_ready()
    assert service.status()["worker"]["restarts"] == 0
    service.assert_sound()
    for record in records.values():
        others = [r for r in records.values() if r["batch"] == record["batch"]]
        assert len({r["worker"]["pid"] for r in others}) == 1, "recycled between batches only"


@pytest.mark.kind("W26")
def test_a_limit_counts_from_what_the_warm_worker_needs(new_service: NewService) -> None:
    """It is smaller than that, and a worker that does not grow is left alone."""
    service = new_service(*QUICK, "[worker]", "recycle_growth_mb = 40").start()
    worker = service.worker_pid()
    assert memory_mb(worker) > 1.3 * 40, "the limit is to be smaller than the warm worker"
    for number in range(10):
        service.put(f"{number}.png")
    service.wait_records(10)

    service.assert_sound()

    assert service.worker_pid() == worker
    assert service.log("worker.recycling") == []
    assert {record["worker"]["pid"] for record in service.results()} == {worker}


# --- a limit of the kernel's -------------------------------------------------------------------------------

GROUPS: Final = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""Of version 1 and of version 2."""
ROOM_BYTES: Final = 300_000_000


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, in which nobody is; skipped where we may make none."""
    group = _made_group()
    yield group
    wait_until(lambda: _is_removed(group), "an empty group")


def _made_group() -> Path:
    for root, limit in GROUPS:
        group = root / f"watcher-test-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(ROOM_BYTES))
        except OSError:
            group.rmdir()
            continue
        return group
    pytest.skip("this system lets nobody limit a group's memory")


def _is_removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.kind("W10", "W11")
def test_a_real_kill_for_want_of_memory_is_told_as_that(new_service: NewService, small_group: Path) -> None:
    """The kernel takes the worker and not the service; the next one works in what is left."""
    joined = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$0" "$@"')
    service = new_service(*QUICK, wrapper=joined, faults="hot:leak=400")
    service.start()
    service.put("first.png")

    (exited,) = service.wait_log("worker.exited", path="hot", level="warning")

    assert exited["cause"] == "oom_suspected"
    assert exited["oom_kills"] >= 1
    assert "the kernel counted" in exited["story"]
    assert exited["rss_bytes"] > 50_000_000
    assert service.wait_record("first.png")["outcome"] == "done"
    assert service.is_running
    service.close()
