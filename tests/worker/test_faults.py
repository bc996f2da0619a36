"""Each planted fault bites where it says, in a real worker: the tests of others rest on that."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from PIL import Image

from tests.worker.bench import Bench, Conversation, photo, rectangle, save_mask
from watcher.wire import (
    EXIT_INTERNAL,
    EXIT_RECYCLE,
    EXIT_STICKY_DEVICE,
    BatchDone,
    EngineChoice,
    Fatal,
    Hello,
    ItemDone,
    ItemFailed,
    ItemStarted,
    Ping,
    Pong,
    RunBatch,
    Warming,
    decode_from_worker,
)
from watcher.worker.faults import BEAT, DEADLOCK, ONCE_VARIABLE, read_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from watcher.wire import FromWorker, Item

    Talk = Callable[..., Conversation]

SILENT_S = 0.3
"""A free worker answers a ping in a hundredth of that."""


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two holes, two crops."""
    source = tmp_path_factory.mktemp("picture") / "good.png"
    Image.fromarray(photo(500, 96)).save(source)
    mask = rectangle(500, 96, (30, 30, 45, 45)) | rectangle(500, 96, (450, 30, 465, 45))
    save_mask(source.with_name("good.png.mask.png"), mask)
    return source


@pytest.fixture
def item(bench: Bench, picture: Path) -> Item:
    return bench.item(picture, picture.with_name("good.png.mask.png"))


def start(worker: Conversation, *items: Item) -> None:
    worker.send(RunBatch(batch="b", sent_ns=time.monotonic_ns(), items=items))


def to_the_end(worker: Conversation) -> list[FromWorker]:
    """All that it says until it hangs up."""
    said = []
    while line := worker.line():
        said.append(decode_from_worker(line))
    return said


def finals(said: list[FromWorker]) -> list[str]:
    """What became of the items, and of the batch."""
    return [type(report).__name__ for report in said if isinstance(report, ItemDone | ItemFailed | BatchDone)]


# --- hangs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hang", "frame"),
    [
        ("hang_sleep", b"in _hang"),
        ("hang_lock", b"in _strike"),
        ("hang_gil", b"in _hang_with_the_interpreter_lock"),
    ],
)
def test_stacks_of_all_threads_are_written_on_request(
    talk: Talk, item: Item, hang: str, frame: bytes
) -> None:
    worker = talk(f"{hang}@good.png")
    worker.ready()
    start(worker, item)
    worker.until(ItemStarted)
    if hang == "hang_gil":
        worker.stderr_until(DEADLOCK)  # only after that no Python, and so no handler in Python, runs any more
    # the report precedes the hang by a moment: ask until it hangs
    dump = worker.stderr_until(frame, b"in at_item_start", b"channel.py", ask=signal.SIGUSR1)
    assert b"Current thread" in dump or b"Thread 0x" in dump
    assert worker.is_silent(for_s=0)
    if hang == "hang_lock":
        beats = worker.stderr_until(BEAT * 2)
        assert beats, "its Python still runs"
    assert worker.process.poll() is None


def test_a_stopped_worker_goes_on_when_it_is_continued(talk: Talk, item: Item) -> None:
    worker = talk("stop_self@good.png")
    worker.ready()
    start(worker, item)
    worker.until(ItemStarted)
    process, deadline = psutil.Process(worker.process.pid), time.monotonic() + 5
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, process.status()
        time.sleep(0.005)
    worker.process.send_signal(signal.SIGCONT)
    assert finals(worker.until(BatchDone)) == ["ItemDone", "BatchDone"]


def test_a_worker_that_hangs_at_its_start_says_hello_and_no_more(talk: Talk) -> None:
    worker = talk("hang_start")
    assert isinstance(worker.next(), Hello)
    worker.configure()
    assert worker.is_silent(SILENT_S)
    worker.hang_up()
    assert worker.wait() == 70


def test_a_worker_that_hangs_when_idle_has_served_its_batch(talk: Talk, item: Item) -> None:
    worker = talk("hang_idle")
    worker.ready()
    worker.send(Ping(number=1))
    assert worker.next() == Pong(number=1)
    assert finals(worker.run(item)) == ["ItemDone", "BatchDone"]
    worker.send(Ping(number=2))
    assert worker.is_silent(SILENT_S)
    assert worker.process.poll() is None


# --- the device --------------------------------------------------------------------------------------------


def test_a_device_without_memory_ends_the_batch_and_the_process(talk: Talk, item: Item) -> None:
    worker = talk("oom@0")
    worker.ready(engine=EngineChoice(name="patchmatch"))
    start(worker, item, item)
    said = to_the_end(worker)
    assert finals(said) == ["ItemFailed"], "the second item is not begun, and the batch is not done"
    assert [report.code for report in said if isinstance(report, ItemFailed)] == ["device_memory"]
    assert isinstance(said[-1], Fatal)
    assert said[-1].exit_code == EXIT_RECYCLE
    assert "memory" in said[-1].reason
    assert worker.wait() == EXIT_RECYCLE == 75


def test_a_device_with_little_memory_serves_crop_by_crop(talk: Talk, item: Item) -> None:
    worker = talk("oom=1")
    worker.ready(engine=EngineChoice(name="patchmatch"))
    said = worker.run(item)
    done = next(report for report in said if isinstance(report, ItemDone))
    assert done.image.crops == 2


def test_a_cpu_without_memory_fails_the_item_only(talk: Talk, item: Item) -> None:
    worker = talk("oom=0")
    worker.ready(engine=EngineChoice(name="patchmatch", device="cpu"))
    said = worker.run(item, item)
    assert finals(said) == ["ItemFailed", "ItemFailed", "BatchDone"]
    assert {report.code for report in said if isinstance(report, ItemFailed)} == {"engine"}


def test_a_lost_device_ends_the_process_at_once(talk: Talk, item: Item) -> None:
    worker = talk("sticky_cuda@good.png")
    worker.ready()
    start(worker, item, item)
    said = to_the_end(worker)
    assert finals(said) == []
    assert isinstance(said[-1], Fatal)
    assert worker.wait() == said[-1].exit_code == EXIT_STICKY_DEVICE == 76


def test_an_engine_that_paints_black_never_gets_ready(talk: Talk) -> None:
    worker = talk("fail_selftest")
    assert isinstance(worker.next(), Hello)
    worker.configure()
    assert worker.next() == Warming()
    fatal = worker.next()
    assert isinstance(fatal, Fatal)
    assert "self-test failed" in fatal.reason
    assert "to cpu" in fatal.remedy
    assert "weights" in fatal.remedy
    assert worker.wait() == fatal.exit_code == EXIT_INTERNAL


# --- leaks, noise, life and death --------------------------------------------------------------------------


def test_leaks_show_in_what_a_batch_reports(talk: Talk, item: Item) -> None:
    worker = talk("leak=32,fdleak=7")
    worker.ready()
    done = [worker.run(item, batch=str(number))[-1] for number in range(3)]
    rss = [report.rss_bytes for report in done if isinstance(report, BatchDone)]
    files = [report.open_files or 0 for report in done if isinstance(report, BatchDone)]
    assert rss[2] - rss[0] > 2 * 30 * 1024 * 1024
    assert [files[1] - files[0], files[2] - files[1]] == [7, 7]


def test_a_flood_of_text_comes_with_the_first_batch_only(talk: Talk, item: Item) -> None:
    worker = talk("stderr_flood")
    worker.ready()
    sizes: list[int] = []

    def drain() -> None:
        assert worker.process.stderr is not None
        while data := os.read(worker.process.stderr.fileno(), 1 << 20):
            sizes.append(len(data))

    drainer = threading.Thread(target=drain)
    drainer.start()
    for batch in ("1", "2"):
        assert finals(worker.run(item, batch=batch)) == ["ItemDone", "BatchDone"]
    worker.hang_up()
    worker.wait()
    drainer.join()
    assert 8 << 20 < sum(sizes) < 9 << 20


def test_a_dead_workers_child_writes_late(talk: Talk, item: Item) -> None:
    worker = talk("late_write@good.png")
    worker.ready()
    start(worker, item)
    worker.until(ItemStarted)
    assert worker.wait() == -signal.SIGKILL
    died = time.monotonic()
    said = to_the_end(worker)
    assert time.monotonic() - died > 1.0
    (late,) = said
    assert isinstance(late, ItemDone)
    assert (late.batch, late.job) == ("b", item.job)
    staged = os.path.join(item.staging, item.stage_name)  # noqa: PTH118 - as the worker builds it
    with open(staged, "rb") as file:  # noqa: PTH123 - likewise
        assert file.read() == b"too late"


def test_a_grandchild_lives_in_the_workers_session(talk: Talk) -> None:
    worker = talk("spawn_grandchild")
    worker.ready()
    (child,) = psutil.Process(worker.process.pid).children()
    assert os.getsid(child.pid) == os.getpgid(child.pid) == worker.process.pid
    os.killpg(worker.process.pid, signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it outlived a kill of the worker's group"
        time.sleep(0.005)


def test_a_worker_that_is_used_up_says_so_after_its_batch(talk: Talk, item: Item) -> None:
    worker = talk("exit_recycle")
    worker.ready()
    start(worker, item)
    said = to_the_end(worker)
    assert finals(said) == ["ItemDone", "BatchDone"]
    assert isinstance(said[-1], Fatal)
    assert worker.wait() == said[-1].exit_code == EXIT_RECYCLE


def test_what_strikes_once_strikes_one_process_only(talk: Talk, item: Item, tmp_path: Path) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    environment = {ONCE_VARIABLE: str(markers)}
    first, second = (talk("crash_once@good.png", environment) for _ in range(2))
    first.ready()
    second.ready()
    start(first, item)
    assert finals(to_the_end(first)) == []
    assert first.wait() == 139
    assert finals(second.run(item)) == ["ItemDone", "BatchDone"]
    assert len(list(markers.iterdir())) == 1


# --- the plan ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "crsh@a.png",
        "warm:crash@a.png",
        "hot:cold:crash@a.png",
        "crash",
        "leak",
        "oom",
        "leak=much",
        "slow_phase=infer:1",
        "slow_phase=encode",
        "stretch=decoding:2",
        "stretch=decode",
        "stretch=decode:0.9",
        "stretch=decode:nan",
        "stretch=decode:inf",
        "hang_idle=1",
        "hot:nothing",
        "hang_once@a.png",
    ],
)
def test_an_entry_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"WATCHER_TEST_FAULTS|could not convert"):
        read_plan(text, one_shot=False)


def test_entries_are_read_with_their_scope() -> None:
    text = (
        "hot:slow_phase=encode:0.5,hot:stretch=read:1.5, cold:oom@3,hot:oom=2,segv@a:b.png,cold:hang_idle,"
        "hot:exit_recycle"
    )
    hot, cold = (read_plan(text, one_shot=one_shot) for one_shot in (False, True))
    assert hot.slow_phases == (("encode", 0.5),)
    assert hot.stretches == (("read", 1.5),)
    assert cold.slow_phases == cold.stretches == ()
    assert (hot.values, cold.values) == ((("oom", 2.0),), (("oom", 3.0),))
    assert hot.at_item == cold.at_item == {("segv", "a:b.png")}
    assert hot.plain == {"exit_recycle"}
    assert cold.plain == {"hang_idle"}
    assert hot.kinds == {"oom", "segv", "exit_recycle"}


def test_nothing_planted_is_nothing_planted() -> None:
    assert read_plan("", one_shot=False).kinds == frozenset()
