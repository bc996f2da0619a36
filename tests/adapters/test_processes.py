"""The contract of both executors, on the real worker; and what they do with a process that breaks it."""

from __future__ import annotations

import hashlib
import itertools
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pytest
from PIL import Image

from watcher.adapters import processes
from watcher.adapters.clock import SystemClock
from watcher.adapters.processes import BoundedLog, ColdExecutor, HotExecutor, WorkerSetup
from watcher.core.commands import Batch, BatchItem
from watcher.core.events import (
    BatchDone,
    BatchStarted,
    ItemDone,
    ItemFailed,
    ItemHeld,
    ItemProgressed,
    ItemStarted,
    WorkerExited,
    WorkerReady,
)
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.wire import PROTOCOL, EngineChoice, Hello, Limits, encode
from watcher.worker.faults import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from watcher.core.events import Event

PATIENCE_S: Final = 30.0
Kind: TypeAlias = str


class Bench:
    """An executor of one kind, pictures to serve, and everything that it has reported."""

    def __init__(self, kind: Kind, folder: Path, faults: str = "") -> None:
        self.kind = kind
        self.inbox = folder / "inbox"
        self.staging = folder / "staging"
        self.log = folder / "worker.log"
        for made in (self.inbox, self.staging):
            made.mkdir()
        setup = WorkerSetup(
            engine=EngineChoice(name="patchmatch"),
            limits=Limits(),
            inbox=self.inbox,
            staging=str(self.staging),
            log=BoundedLog(self.log),
            environment={**os.environ, VARIABLE: faults},
        )
        self.reported: queue.SimpleQueue[Event] = queue.SimpleQueue()
        clock = SystemClock()
        self.hot = HotExecutor(setup, self.reported.put, clock)
        self.cold = ColdExecutor(setup, self.reported.put, clock)
        self.executor = self.hot if kind == "hot" else self.cold
        self.numbers = itertools.count(1)

    def start(self, incarnation: int) -> None:
        """Have a process that takes batches: the resident one, or none yet."""
        if self.kind == "hot":
            self.hot.start(incarnation)

    def end(self, incarnation: int) -> None:
        """What ends a process that has done its work."""
        if self.kind == "hot":
            self.hot.drain(incarnation)

    def batch(self, *names: str) -> Batch:
        return Batch(f"b{next(self.numbers)}", tuple(self.item(name) for name in names))

    def item(self, name: str) -> BatchItem:
        """A small picture of its own content; `unmarked` in its name: without a mask; `bad`: no picture."""
        path = self.inbox / name
        pixels = np.random.default_rng(len(name)).integers(0, 255, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        if "bad" in name:
            path.write_bytes(b"no picture" * 100)
        mask = None
        if "unmarked" not in name:
            drawn = np.zeros((64, 96), np.uint8)
            drawn[24:32, 40:48] = 255
            mask = f"{name}.mask.png"
            Image.fromarray(drawn).save(self.inbox / mask)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        mask_digest = hashlib.sha256((self.inbox / mask).read_bytes()).hexdigest() if mask else None
        number = next(self.numbers)
        job = Job(
            id=f"job-{number}",
            source=name,
            fingerprint=Fingerprint(0, path.stat().st_size, 0, 0),
            identity=Identity(digest, mask_digest, "default"),
            state=JobState.RUNNING,
            created_s=0.0,
            mask=mask,
        )
        return BatchItem(
            job=job,
            stage_name=f"job-{number}.1",
            marks=("mask",),
            grow_px=None,
            unmarked="hold",
            quality=None,
            keep_metadata=True,
        )

    def until(self, kind: type[Any], *, count: int = 1) -> list[Any]:
        """Collect events up to the count-th of a kind."""
        deadline = time.monotonic() + PATIENCE_S
        seen: list[Any] = []
        while sum(isinstance(event, kind) for event in seen) < count:
            try:
                seen.append(self.reported.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                log = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
                raise AssertionError(f"no {kind.__name__} came after {seen}; {log}") from None
        return seen

    def nothing_more(self) -> bool:
        return self.reported.empty()

    def close(self) -> None:
        self.hot.close()
        self.cold.close()


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


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


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
    wait_until(lambda: "most recent call first" in bench.log.read_text("utf-8"), "the stacks")
    wait_until(lambda: "in _run_batch" in bench.log.read_text("utf-8"), "the stack that tells where it hung")
    assert bench.nothing_more()


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
    assert bench.nothing_more()


@pytest.mark.parametrize(
    ("fault", "exit_code", "story"),
    [("segv@one.png", -signal.SIGSEGV, "killed by SIGSEGV"), ("crash@one.png", 139, "exited with code 139")],
)
def test_a_crash_tells_its_story(faulty: Any, fault: str, exit_code: int, story: str) -> None:
    bench: Bench = faulty(fault)
    bench.start(1)
    bench.executor.submit(1, bench.batch("one.png", "two.png"))

    events = bench.until(WorkerExited)

    assert [type(event) for event in events[-2:]] == [ItemStarted, WorkerExited]
    assert events[-1].exit_code == exit_code
    assert story in events[-1].story


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
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is wanted

    bench.start(4)
    bench.executor.submit(4, batch)
    (exited,) = bench.until(WorkerExited)

    assert (exited.origin.incarnation, exited.origin.pid, exited.exit_code) == (4, 0, 1)
    assert "could not be started" in exited.story
    assert "/no/such/python" in exited.story
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
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
        (ready,) = bench.until(WorkerReady)
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
        (first,) = bench.until(WorkerReady)
        bench.hot.kill(1, "a test")
        bench.until(WorkerExited)
        bench.hot.start(2)
        (second,) = bench.until(WorkerReady)
        assert (first.origin.incarnation, second.origin.incarnation) == (1, 2)
        bench.hot.submit(1, bench.batch("for-the-dead.png"))
        bench.hot.submit(2, bench.batch("one.png"))
        assert {event.origin for event in bench.until(BatchDone)} == {second.origin}
    finally:
        bench.close()


# --- processes that break the contract ---------------------------------------------------------------------

HEAD = f"""
import os, sys, time
reports = int(sys.argv[sys.argv.index("--reports-fd") + 1])
commands = int(sys.argv[sys.argv.index("--commands-fd") + 1])
PROTOCOL = b"{PROTOCOL}"
HELLO = {encode(Hello(pid=1, version="0"))!r}
"""


@pytest.fixture
def rogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a program of ours as the resident worker; returns its bench."""
    benches: list[Bench] = []

    def start(program: str) -> Bench:
        script = tmp_path / "rogue.py"
        script.write_text(HEAD + program, encoding="utf-8")
        monkeypatch.setattr(processes, "_PROGRAM", (str(script),))
        bench = Bench("hot", tmp_path)
        benches.append(bench)
        bench.hot.start(1)
        return bench

    yield start
    for bench in benches:
        bench.close()


def only_exit(events: Sequence[Any]) -> WorkerExited:
    (exited,) = events
    assert isinstance(exited, WorkerExited)
    return exited


def test_a_word_that_was_cut_short_is_no_garbage_but_a_death(rogue: Any) -> None:
    bench = rogue("os.write(reports, HELLO + HELLO[:20]); os.kill(os.getpid(), 9)")

    exited = only_exit(bench.until(WorkerExited))

    assert exited.story.startswith("killed by SIGKILL")


def test_a_line_without_end_is_garbage(rogue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LINE_BYTES", 100_000)
    bench = rogue("while True: os.write(reports, b'x' * 65536)")

    assert "no message" in only_exit(bench.until(WorkerExited)).story


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"type":"item_done"}', '{"type":"no such"}', "\\xff\\xfe", "null", "[" * 5000]
)
def test_what_is_no_message_is_garbage(rogue: Any, line: str) -> None:
    bench = rogue(f"os.write(reports, b'{line}\\n'); time.sleep(600)")

    assert "no message" in only_exit(bench.until(WorkerExited)).story


def test_another_protocol_is_refused(rogue: Any) -> None:
    bench = rogue("os.write(reports, HELLO.replace(PROTOCOL, b'99', 1)); time.sleep(600)")

    assert "protocol 99" in only_exit(bench.until(WorkerExited)).story


def test_a_process_that_hangs_up_and_lives_on_is_ended(rogue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_AFTER_EOF_S", 0.2)
    bench = rogue("os.close(reports); time.sleep(600)")

    exited = only_exit(bench.until(WorkerExited))

    assert "lived on" in exited.story
    assert not is_alive(exited.origin.pid)


def test_what_a_worker_has_started_ends_with_it(rogue: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "child.pid"
    bench = rogue(
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "os._exit(3)"
    )

    exited = only_exit(bench.until(WorkerExited))

    assert exited.exit_code == 3
    wait_until(lambda: not is_alive(int(pid_file.read_text("ascii"))), "the grandchild to end")


def test_a_worker_that_does_not_read_never_stops_the_caller(rogue: Any) -> None:
    bench = rogue("os.write(reports, HELLO); time.sleep(600)")
    batch = bench.batch(*(f"{number}-unmarked.png" for number in range(20)))

    before = time.monotonic()
    for _ in range(200):  # some MB: more than any pipe holds
        bench.hot.submit(1, batch)
    assert time.monotonic() - before < 5

    bench.hot.kill(1, "deaf")
    assert only_exit(bench.until(WorkerExited)).story.startswith("killed by the service: deaf")


def test_a_death_and_a_kill_at_the_same_time_are_one_exit(rogue: Any) -> None:
    """Whoever signals must not reap: then the reader would wait for a process that is nobody's."""
    bench = rogue("os.write(reports, HELLO); os.close(reports); time.sleep(0.2); os._exit(5)")
    for incarnation in range(1, 6):
        if incarnation > 1:
            bench.hot.start(incarnation)
        process = bench.hot._processes[incarnation]
        while is_alive(process.origin.pid):  # dead, and not reaped before the reader looks again
            pass
        process.kill("in a race")

        exited = only_exit(bench.until(WorkerExited))

        assert (exited.origin.incarnation, exited.exit_code) == (incarnation, 5)
    assert bench.nothing_more()


def test_a_flood_of_output_is_bounded_and_never_stops_the_worker(
    rogue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedLog.__init__, "__defaults__", (200_000, 2))
    bench = rogue("for n in range(2000): print('x' * 999 + str(n), flush=True)\nprint('the end', flush=True)")

    only_exit(bench.until(WorkerExited))

    wait_until(lambda: b"the end" in bench.log.read_bytes(), "the last words")
    logs = sorted(path.name for path in tmp_path.glob("worker.log*"))
    assert logs == ["worker.log", "worker.log.1", "worker.log.2"]
    assert sum(path.stat().st_size for path in tmp_path.glob("worker.log*")) <= 3 * 200_000


# --- the log -----------------------------------------------------------------------------------------------


def test_the_log_keeps_the_newest_and_forgets_the_oldest(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "made" / "worker.log", max_bytes=100, backups=2)
    for number in range(20):
        log.write(b"%02d" % number * 20)

    kept = {path.name: path.read_bytes()[:2] for path in (tmp_path / "made").iterdir()}

    assert kept == {"worker.log": b"18", "worker.log.1": b"16", "worker.log.2": b"14"}


def test_a_log_that_the_disk_refuses_is_lost_and_nothing_else(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "worker.log")
    (tmp_path / "worker.log").mkdir()

    log.write(b"lost")

    (tmp_path / "worker.log").rmdir()
    log.write(b"kept")
    assert (tmp_path / "worker.log").read_bytes() == b"kept"
