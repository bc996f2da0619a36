"""The contract of both executors, on the real worker."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.executor_bench import Bench, Holdings, Kind, is_alive, is_in_an_environment, wait_until
from watcher.adapters.memory import look_at
from watcher.core.events import (
    BatchDone,
    BatchStarted,
    ItemDone,
    ItemFailed,
    ItemHeld,
    ItemProgressed,
    ItemStarted,
    WorkerExamined,
    WorkerExited,
    WorkerReady,
    WorkerWarming,
)
from watcher.worker.faults import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["hot", "cold"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return str(request.param)


@pytest.fixture
def bench(kind: Kind, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kind, tmp_path)
    yield made
    made.close()


@pytest.fixture
def faulty(kind: Kind, tmp_path: Path) -> Iterator[Any]:
    """A bench whose workers have faults."""
    made: list[Bench] = []

    def make(faults: str) -> Bench:
        made.append(Bench(kind, tmp_path, faults))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- the contract ------------------------------------------------------------------------------------------


def test_a_batch_is_reported_in_order_each_item_once_and_the_exit_last(bench: Bench) -> None:
    batch = bench.batch("one.png", "unmarked.png", "bad.png", "two.png")
    bench.start(7)

    bench.executor.submit(7, batch)
    events = bench.until(BatchDone)
    bench.end(7)
    events += bench.until(WorkerExited)

    told = [event for event in events if not isinstance(event, ItemProgressed)]
    assert [type(event) for event in told] == [
        WorkerWarming,
        WorkerReady,
        BatchStarted,
        *(ItemStarted, ItemDone),
        *(ItemStarted, ItemHeld),
        *(ItemStarted, ItemFailed),
        *(ItemStarted, ItemDone),
        BatchDone,
        WorkerExited,
    ]
    ends = [event for event in told if isinstance(event, ItemDone | ItemHeld | ItemFailed)]
    assert [event.job for event in ends] == [item.job.id for item in batch.items]
    assert {event.batch for event in ends} == {batch.id}
    exited = told[-1]
    assert (exited.exit_code, exited.reason) == (0, None)
    assert bench.nothing_more()


def test_every_event_says_which_process_it_comes_from(bench: Bench) -> None:
    bench.start(3)
    bench.executor.submit(3, bench.batch("one.png"))
    events = bench.until(BatchDone)
    bench.end(3)
    events += bench.until(WorkerExited)

    (origin,) = {event.origin for event in events}
    assert (origin.path, origin.incarnation) == (bench.kind, 3)
    assert origin.host
    assert not is_alive(origin.pid)


def test_a_result_lies_whole_in_staging_when_it_is_reported(bench: Bench) -> None:
    batch = bench.batch("one.png", "two.png")
    bench.start(1)
    bench.executor.submit(1, batch)

    done = [event for event in bench.until(BatchDone) if isinstance(event, ItemDone)]

    for event, item in zip(done, batch.items, strict=True):
        staged = bench.staging / item.stage_name
        assert hashlib.sha256(staged.read_bytes()).hexdigest() == event.report.sha256_out
        assert event.report.sha256_in == item.job.identity.picture_sha256
        times = event.report
        assert times.batch_received_ns <= times.started_ns <= times.finished_ns <= times.received_ns
        assert sum(times.segments_ns.values()) <= times.finished_ns - times.started_ns
    assert len(list(bench.staging.iterdir())) == 2


def test_a_killed_process_leaves_its_stacks_and_is_reported_once_and_last(faulty: Any) -> None:
    bench: Bench = faulty("hang_sleep@hangs.png")
    bench.start(1)
    bench.executor.submit(1, bench.batch("hangs.png", "never.png"))
    (*_, started) = bench.until(ItemStarted)

    bench.executor.kill(1, "no progress")
    bench.executor.kill(1, "said twice")
    (exited,) = bench.until(WorkerExited)

    assert exited.exit_code == -signal.SIGKILL
    assert exited.story.startswith("killed by the service: no progress")
    assert exited.origin == started.origin
    assert not is_alive(exited.origin.pid)
    for told in (exited.evidence.output, bench.log.read_text("utf-8")):
        assert "most recent call first" in told
        assert "in _run_batch" in told
    assert (exited.evidence.cause, exited.evidence.exit_code, exited.evidence.signal) == (
        "killed",
        None,
        "SIGKILL",
    )
    assert exited.evidence.process_state in ("R", "S")
    assert exited.evidence.rss_bytes > 10_000_000
    assert bench.nothing_more()


def test_a_process_that_holds_the_interpreter_lock_leaves_its_stacks_too(faulty: Any) -> None:
    bench: Bench = faulty("hang_gil@hangs.png")
    bench.start(1)
    bench.executor.submit(1, bench.batch("hangs.png"))
    bench.until(ItemStarted)

    bench.executor.kill(1, "no progress")
    (exited,) = bench.until(WorkerExited)

    assert "in _run_batch" in exited.evidence.output


def test_a_process_that_somebody_else_kills_is_reported_with_a_suspicion(faulty: Any) -> None:
    bench: Bench = faulty("slow_item=60")
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png"))
    (*_, started) = bench.until(ItemStarted)

    os.kill(started.origin.pid, signal.SIGKILL)
    (exited,) = bench.until(WorkerExited)

    assert exited.exit_code == -signal.SIGKILL
    assert "SIGKILL" in exited.story
    assert "out of memory suspected" in exited.story
    assert "MB" in exited.story
    assert (exited.evidence.cause, exited.evidence.signal) == ("oom_suspected", "SIGKILL")
    assert exited.evidence.rss_bytes > 10_000_000
    assert exited.evidence.process_state is None
    assert bench.nothing_more()


@pytest.mark.parametrize(
    ("fault", "exit_code", "story", "facts"),
    [
        ("segv@one.png", -signal.SIGSEGV, "killed by SIGSEGV", ("signal", None, "SIGSEGV")),
        ("crash@one.png", 139, "exited with code 139", ("exited", 139, None)),
    ],
)
def test_a_crash_tells_its_story(
    faulty: Any, fault: str, exit_code: int, story: str, facts: tuple[str, int | None, str | None]
) -> None:
    bench: Bench = faulty(fault)
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png", "two.png"))

    (*_, started, exited) = bench.until(WorkerExited)

    assert (type(started), type(exited)) == (ItemStarted, WorkerExited)
    assert exited.exit_code == exit_code
    assert exited.story.startswith(story)
    evidence = exited.evidence
    assert (evidence.cause, evidence.exit_code, evidence.signal) == facts
    assert ("Segmentation fault" in evidence.output) == ("segv" in fault)


def test_a_process_that_writes_garbage_is_killed(faulty: Any) -> None:
    bench: Bench = faulty("garbage")
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png"))

    events = bench.until(WorkerExited)

    assert not [event for event in events if isinstance(event, ItemDone)]
    assert "no message" in events[-1].story
    assert bench.nothing_more()


def test_a_start_that_fails_for_good_says_why_and_what_to_do(faulty: Any) -> None:
    bench: Bench = faulty("fail_start=78")
    bench.start(1)
    if bench.kind == "cold":
        bench.executor.submit(1, bench.batch("one.png"))

    (exited,) = bench.until(WorkerExited)

    assert exited.exit_code == 78
    assert exited.reason == "a planted fault"
    assert exited.remedy == f"unset {VARIABLE}"


def test_a_process_that_cannot_be_started_is_an_exit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bench.batch("one.png")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = Holdings.at_rest()

    bench.start(4)
    bench.executor.submit(4, batch)
    (exited,) = bench.until(WorkerExited)

    assert (exited.origin.incarnation, exited.origin.pid, exited.exit_code) == (4, 0, 1)
    assert "could not be started" in exited.story
    assert "/no/such/python" in exited.story
    assert Holdings.now() == before
    bench.executor.kill(4, "of one that never was")
    assert bench.nothing_more()


def test_a_batch_for_a_dead_process_is_told_by_its_exit_alone(bench: Bench) -> None:
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png"))
    bench.until(BatchDone)
    bench.end(1)
    bench.until(WorkerExited)

    if bench.kind == "hot":
        bench.executor.submit(1, bench.batch("two.png"))
    bench.executor.kill(1, "it is dead already")

    assert bench.nothing_more()


def test_close_kills_and_reaps_whatever_runs(faulty: Any) -> None:
    bench: Bench = faulty("slow_item=60")
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png"))
    (*_, started) = bench.until(ItemStarted)

    bench.executor.close()

    assert not Path(f"/proc/{started.origin.pid}").exists()
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith(f"{bench.kind}-")}
    (exited,) = bench.until(WorkerExited)
    assert "the service ends" in exited.story
    bench.executor.close()


# --- the resident one --------------------------------------------------------------------------------------


def test_the_resident_process_outlives_its_batches_and_loads_its_model_once(tmp_path: Path) -> None:
    bench = Bench("hot", tmp_path)
    try:
        bench.hot.start(1)
        (*_, ready) = bench.until(WorkerReady)
        assert ready.model_loads == 1
        assert ready.rss_bytes > 10_000_000
        assert set(ready.segments_ns) >= {"process_start", "import", "warmup"}
        pids = set()
        for _ in range(3):
            bench.hot.submit(1, bench.batch("one.png", "two.png"))
            pids |= {event.origin.pid for event in bench.until(BatchDone)}
        assert pids == {ready.origin.pid}
    finally:
        bench.close()


def test_a_drained_process_finishes_its_batch_first(tmp_path: Path) -> None:
    bench = Bench("hot", tmp_path, "slow_item=0.1")
    try:
        bench.hot.start(1)
        bench.hot.submit(1, bench.batch("one.png", "two.png", "three.png"))
        bench.until(ItemStarted)
        bench.hot.drain(1)
        events = bench.until(WorkerExited)
        assert sum(isinstance(event, ItemDone) for event in events) == 3
        assert events[-1].exit_code == 0
    finally:
        bench.close()


def test_a_successor_is_another_incarnation(tmp_path: Path) -> None:
    bench = Bench("hot", tmp_path)
    try:
        bench.hot.start(1)
        (*_, first) = bench.until(WorkerReady)
        bench.hot.kill(1, "a test")
        bench.until(WorkerExited)
        bench.hot.start(2)
        (*_, second) = bench.until(WorkerReady)
        assert (first.origin.incarnation, second.origin.incarnation) == (1, 2)
        bench.hot.submit(1, bench.batch("for-the-dead.png"))
        bench.hot.submit(2, bench.batch("one.png"))
        assert {event.origin for event in bench.until(BatchDone)} == {second.origin}
    finally:
        bench.close()


def test_what_a_dead_process_left_behind_is_not_heard(tmp_path: Path) -> None:
    """Its forked child holds the pipe, in a session of its own, and reports the item done after its death."""
    name = f"late-{os.getpid()}.png"  # its environment tells the child from all others
    bench = Bench("hot", tmp_path, f"late_write@{name}")
    try:
        bench.hot.start(1)
        batch = bench.batch(name)
        bench.hot.submit(1, batch)
        (*_, exited) = bench.until(WorkerExited)
        late = bench.staging / batch.items[0].stage_name
        assert not late.exists()
        assert exited.evidence.cause == "oom_suspected"

        wait_until(late.exists, "the late result")
        wait_until(lambda: not is_in_an_environment(name), "its child to end")
        assert bench.nothing_more()
    finally:
        bench.close()


def test_a_silent_process_is_seen_to_work_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    bench = Bench("hot", tmp_path, "slow_item=60")
    try:
        bench.start(1)
        bench.hot.submit(1, bench.batch("one.png"))
        bench.until(ItemStarted)
        process = bench.hot._processes[1]
        pid = process.origin.pid
        process._busy_ns = {str(pid): 0}  # all that it ever did counts as done since its last report
        bench.hot.examine(1)
        assert bench.until(WorkerExamined)[-1].busy_ns > 0
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (look := look_at(pid)) is not None and look.state == "T", "a stopped process")
        bench.hot.examine(1)
        assert bench.until(WorkerExamined)[-1].busy_ns == 0
    finally:
        bench.close()
