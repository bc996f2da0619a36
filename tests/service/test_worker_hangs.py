"""Workers that hang, stop, or are killed in mid-work: noticed in time, told with evidence, and done without.

One service holds all hangs and another one all kills: four ends each, since the fifth opens the breaker.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import (
    MARGIN_S,
    STACK,
    assert_served_in_time,
    at_s,
    cold_s,
    exits,
    losses_of,
    slowest_cold_s,
    worker_log,
    zombies_of,
)
from tests.service.harness import Service, picture, wait_until
from watcher.worker.faults import BEAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
HANGS: Final = {
    "hang_sleep": ("S", "in _hang\n"),
    "hang_lock": ("S", "in _strike\n"),
    "hang_gil": ("S", "in _hang_with_the_interpreter_lock\n"),
    "stop_self": ("T", None),
}
"""The kernel's letter for the process before its kill, and the frame that its stacks must show."""
SEEN_S: Final = 0.1


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    faults = ",".join(f"hot:{kind}@{kind}.png" for kind in HANGS)
    service = Service(tmp_path_factory.mktemp("hanging"), QUICK, faults=faults).start()
    service.put("first.png")
    service.wait_record("first.png")
    yield service
    service.assert_sound()
    assert service.terminate() == 0
    service.close()


@pytest.mark.kind("W1", "W2", "W7", "W9", "W11")
@pytest.mark.parametrize("kind", HANGS)
def test_a_hang_is_ended_in_time_and_told_with_its_stacks(hanging: Service, kind: str) -> None:
    """In company of a picture that comes while it hangs: nothing more is sent to the one that hangs."""
    service, name = hanging, f"{kind}.png"
    state, frame = HANGS[kind]
    hung = service.worker_pid()
    service.put(name)
    service.wait_state("running")
    service.put(f"{kind}-meanwhile.png")

    record, meanwhile = service.wait_record(name), service.wait_record(f"{kind}-meanwhile.png")

    assert (record["path"], record["path_reason"], record["attempt"]) == ("cold", "suspect", 2)
    assert meanwhile["attempt"] == 1
    assert (meanwhile["path"], meanwhile["path_reason"]) in {("cold", "stalled"), ("hot", "ready")}
    assert meanwhile["worker"]["pid"] != hung
    (exited,) = service.log("worker.exited", pid=hung)
    (killed,) = service.log("worker.killed", incarnation=exited["incarnation"])
    assert "no progress for" in killed["reason"]
    assert killed["reason"] in exited["story"]
    assert (exited["cause"], exited["signal"], exited["process_state"]) == ("killed", "SIGKILL", state)
    assert ("stopped by a signal" in exited["story"]) == (state == "T")
    assert exited["rss_bytes"] > 10_000_000, "its memory is told: a lack of it may look like a hang"
    (loss,) = losses_of(service, name)
    assert (loss["path"], loss["alone"], loss["phase"], loss["serving"]) == ("hot", True, "read", True)
    assert loss["silent_ms"] / 1000 < slowest_cold_s([record]) + MARGIN_S, "the cold path was quicker"
    assert_served_in_time(service)
    if frame is not None:
        assert frame in loss["output"]
        assert loss["output"].count(STACK) >= 2, "of all its threads"
        assert frame.encode() in worker_log(service)
    if kind == "hang_lock":
        assert loss["output"].count(BEAT.decode()) >= 3, "it was to beat all the time"


@pytest.mark.kind("W1")
def test_a_hang_is_not_called_health_and_the_way_back_is_found(hanging: Service) -> None:
    """Runs after the hangs: the log has changed path for each of them, and back."""
    service = hanging
    service.wait_ready()
    service.put("after.png")
    assert service.wait_record("after.png")["path"] == "hot"
    kills = service.log("worker.killed")
    changes = service.log("path.changed")
    assert [change["path"] for change in changes] == ["cold", "hot"] * (len(changes) // 2)
    assert len(changes) >= 2
    assert {change["reason"] for change in changes if change["path"] == "cold"} <= {"stalled", "suspect"}
    assert service.status()["worker"]["restarts"] == len(kills)


# --- killed by somebody else -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("crashing"), QUICK, faults="hot:slow_item=0.1").start()
    yield service
    service.assert_sound()
    assert service.terminate() == 0
    service.close()


@pytest.mark.kind("W1", "W4", "W5", "W6", "W10", "W17")
def test_a_kill_amid_20_pictures_is_seen_at_once_and_costs_one_try_of_one_batch(crashing: Service) -> None:
    service = crashing
    worker = service.worker_pid()
    names = [f"queued-{number:02}.png" for number in range(20)]
    for name in names:
        service.put(name)
    service.wait_records(2)
    running = {job.source for job in service.wait_state("running")}

    os.kill(worker, signal.SIGKILL)

    records = {name: service.wait_record(name) for name in names}
    (exited,) = service.log("worker.exited", pid=worker)
    assert exited["cause"] == "oom_suspected"
    assert "killed by SIGKILL, out of memory suspected" in exited["story"]
    assert f"it last used {exited['rss_bytes'] // 1_000_000} MB" in exited["story"]
    again = {name for name, record in records.items() if record["attempt"] > 1}
    assert again, "the kill came too late to mean anything"
    assert again <= running
    assert all(record["attempt"] <= 2 for record in records.values())
    lost = [loss for record in records.values() for loss in record["losses"]]
    assert len(lost) == len(again)
    assert {(loss["cause"], loss["signal"]) for loss in lost} == {("oom_suspected", "SIGKILL")}
    assert all(loss["rss_bytes"] > 10_000_000 for loss in lost)
    assert sum(loss["serving"] for loss in lost) == 1
    reasons = {r["path_reason"] for r in records.values()}
    assert reasons <= {"ready", "crashed", "suspect", "queue_too_long"}
    assert "cold" in {record["path"] for record in records.values()}, "somebody serves while it starts"
    assert service.worker_pid() != worker
    assert service.log("worker.restarting", fault="crashed")
    wait_until(lambda: not zombies_of(service.pid), "every child to be reaped")


@pytest.mark.kind("W1", "W17")
def test_a_death_is_seen_within_a_tenth_of_a_second(crashing: Service) -> None:
    """The quickest of some: other tests share the machine."""
    service = crashing
    seen_s: list[float] = []
    while min(seen_s, default=SEEN_S) >= SEEN_S and len(seen_s) < 3:
        worker = service.worker_pid()
        killed_s = time.time()
        os.kill(worker, signal.SIGKILL)
        (exited,) = service.wait_log("worker.exited", pid=worker)
        seen_s.append(at_s(exited) - killed_s)
        wait_until(lambda: service.status()["worker"]["state"] != "ready", "a status that says so")
    assert min(seen_s) < SEEN_S
    assert service.worker_pid() != worker


@pytest.mark.kind("W4")
def test_a_worker_is_killed_while_the_service_writes_to_it(new_service: NewService) -> None:
    """It is stopped and reads nothing; the batch is larger than a pipe, so the writer waits for room."""
    service = new_service(*QUICK, "[batching]", "max_batch = 16", "linger_ms = 1500").start()
    folder = "/".join(12 * ["f" * 200])
    names = [f"{folder}/{number:02}.png" for number in range(16)]
    assert 2 * sum(len(name) for name in names) > 65536, "a pipe holds so much"
    worker = service.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    for name in names:
        service.put(name)
    assert len(service.wait_state("running", count=16)) == 16

    os.kill(worker, signal.SIGKILL)

    service.wait_records(16)
    (exited,) = service.log("worker.exited", pid=worker)
    assert exited["cause"] == "oom_suspected"
    assert {record["batch_size"] for record in service.results()} == {16}
    assert all(record["attempt"] == 1 for record in service.results()), "it had not even read them"
    wait_until(lambda: not zombies_of(service.pid), "every child to be reaped")
    service.assert_sound()


# --- slow is not hung --------------------------------------------------------------------------------------


@pytest.mark.kind("W8", "W54")
def test_a_start_that_takes_longer_than_any_work_may_is_waited_for(new_service: NewService) -> None:
    """What came meanwhile goes to it as one batch of just that many."""
    service = new_service(*QUICK, faults="hot:slow_start=2").start(ready=False)
    for number in range(5):
        service.put(f"{number}.png")

    records = service.wait_records(5)

    assert {record["path"] for record in records} == {"hot"}
    assert {record["worker"]["incarnation"] for record in records} == {1}
    assert {record["batch_size"] for record in records} == {5}
    assert {record["batch"] for record in records} == {records[0]["batch"]}
    assert all(record["attempt"] == 1 for record in records)
    assert service.log("worker.killed") == exits(service) == []


@pytest.mark.soak
@pytest.mark.kind("W8")
def test_pictures_wait_for_a_slow_start_no_longer_than_a_cold_one_would_take(new_service: NewService) -> None:
    """Nothing was measured yet: so long is what the first one-shot is taken to need."""
    estimate_s = 10.0
    service = new_service(*QUICK, faults="hot:slow_start=16").start(ready=False)
    service.put("meanwhile.png")

    record = service.wait_record("meanwhile.png")

    assert (record["path"], record["path_reason"]) == ("cold", "starting")
    assert estimate_s < record["segments_ms"]["queue"] / 1000 < estimate_s + MARGIN_S
    assert record["cold_estimate_ms"] >= 1000 * estimate_s
    service.put("known.png", picture(5))
    known = service.wait_record("known.png")
    assert (known["path"], known["path_reason"]) == ("cold", "starting")
    assert known["segments_ms"]["queue"] / 1000 < 2 * cold_s(record) + MARGIN_S, "now it is known"
    assert service.worker_pid() == service.wait_log("worker.ready", path="hot")[0]["pid"]
    assert service.log("worker.killed") == exits(service) == []
    service.assert_sound()
