"""The real `python -m watcher.worker`, over real pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.worker.bench import ROOT, Bench, Conversation, photo, rectangle, save_mask
from watcher.wire import (
    EXIT_INTERNAL,
    PROTOCOL,
    BatchDone,
    BatchStarted,
    EngineChoice,
    Exit,
    Fatal,
    Hello,
    ItemDone,
    ItemFailed,
    ItemProgressed,
    ItemStarted,
    Limits,
    Ping,
    Pong,
    RunBatch,
    WireError,
    decode_from_worker,
)
from watcher.worker.engines.patchmatch import PatchmatchEngine
from watcher.worker.golden import golden_crop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from watcher.wire import Item

    Talk = Callable[..., Conversation]


@pytest.fixture
def marked(bench: Bench) -> Item:
    return make_item(bench, "good.png")


def make_item(bench: Bench, name: str) -> Item:
    source = bench.folder / name
    Image.fromarray(photo(96, 80)).save(source)
    mask = save_mask(bench.folder / f"{name}.mask.png", rectangle(96, 80, (30, 30, 50, 45)))
    return bench.item(source, mask)


def broken_item(bench: Bench) -> Item:
    source = bench.folder / "text.png"
    source.write_text("a text that somebody renamed")
    return bench.item(source, None)


def test_a_whole_life(talk: Talk, bench: Bench, marked: Item) -> None:
    worker = talk()
    hello = worker.next()
    assert hello == Hello(pid=worker.process.pid, version=hello.version)  # type: ignore[union-attr]  # asserted by ==
    worker.configure()
    ready = worker.warmed_up()
    assert ready.engine.actual == "patchmatch"
    assert ready.model_loads == 1
    assert ready.rss_bytes > 10_000_000
    assert ready.segments.process_start_ns > 0
    assert ready.segments.import_ns > 0
    engine = PatchmatchEngine(EngineChoice())
    engine.load()
    assert ready.golden_px == engine.work_px(golden_crop())
    assert 0 < ready.golden_ns < ready.segments.warmup_ns
    assert ready.open_files is not None
    assert ready.open_files >= 5, "standard streams and two pipes"
    spent = sum(getattr(ready.segments, name) for name in ready.segments.__struct_fields__)
    assert spent == ready.ready_ns - worker.spawned_ns, (
        "the parts of a start and what none claims are all of it"
    )

    said = worker.run(broken_item(bench), marked)
    assert isinstance(said[0], BatchStarted)
    failed = next(report for report in said if isinstance(report, ItemFailed))
    assert failed.code == "undecodable"
    done = next(report for report in said if isinstance(report, ItemDone))
    assert done.outcome == "done"
    assert done.image.crops == 1
    assert said.index(failed) < said.index(done)
    assert [type(report) for report in said].count(ItemStarted) == 2
    phases = [
        report.phase for report in said if isinstance(report, ItemProgressed) and report.job == "good.png"
    ]
    assert phases[:4] == ["read", "read", "decode", "mask"]
    assert "inference" in phases
    assert isinstance(said[-1], BatchDone)
    assert said[-1].given_back == ()
    assert said[-1].open_files == ready.open_files

    result = np.asarray(Image.open(bench.folder / "staging" / "good.png.staged"))
    assert not np.array_equal(result, photo(96, 80))

    worker.send(Ping(number=7))
    assert worker.next() == Pong(number=7)
    worker.send(Exit())
    assert worker.wait() == 0


def test_a_ping_waits_for_the_thread_that_works(talk: Talk, bench: Bench) -> None:
    worker = talk("slow_item=0.3")
    worker.ready()
    worker.send(RunBatch(batch="b", sent_ns=1, items=(make_item(bench, "a.png"), make_item(bench, "b.png"))))
    worker.until(ItemStarted)
    worker.send(Ping(number=1))
    said = worker.until(BatchDone)
    kinds = [type(report) for report in said]
    assert kinds.index(ItemDone) < kinds.index(Pong) < len(kinds) - 1 - kinds[::-1].index(ItemDone)


def test_every_batch_is_served_by_one_model_load(talk: Talk, marked: Item) -> None:
    worker = talk()
    assert worker.ready().model_loads == 1
    for number in range(3):
        said = worker.run(marked, batch=str(number))
        assert isinstance(said[-1], BatchDone)
        assert said[-1].batch == str(number)


def test_exit_finishes_the_batch_first_even_when_the_pipe_closes(talk: Talk, marked: Item) -> None:
    worker = talk("slow_item=0.2")
    worker.ready()
    worker.send(RunBatch(batch="b", sent_ns=1, items=(marked,)))
    worker.send(Exit())
    worker.hang_up()
    assert isinstance(worker.until(BatchDone)[-1], BatchDone)
    assert worker.wait() == 0


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
def test_a_resident_worker_leaves_when_its_pipe_ends(talk: Talk, marked: Item, *, busy: bool) -> None:
    worker = talk("hang_sleep@good.png")
    worker.ready()
    if busy:
        worker.send(RunBatch(batch="b", sent_ns=1, items=(marked,)))
        worker.until(ItemStarted)
    started = time.monotonic()
    worker.hang_up()
    assert worker.wait() == 70
    assert time.monotonic() - started < 1.0


def test_a_one_shot_serves_what_is_on_the_pipe_and_exits(talk: Talk, bench: Bench) -> None:
    worker = talk()
    worker.configure(one_shot=True)
    for name in ("a", "b"):
        worker.send(RunBatch(batch=name, sent_ns=1, items=(make_item(bench, f"{name}.png"),)))
    worker.hang_up()
    assert isinstance(worker.next(), Hello)
    worker.warmed_up()
    worker.until(BatchDone)
    last = worker.until(BatchDone)[-1]
    assert isinstance(last, BatchDone)
    assert last.batch == "b"
    assert worker.wait() == 0


def test_a_one_shot_without_work_exits_well(talk: Talk) -> None:
    worker = talk()
    worker.ready(one_shot=True)
    worker.hang_up()
    assert worker.wait() == 0


FAKE_PARENT = """
import os, sys, time
from tests.worker.bench import Conversation
worker = Conversation({faults!r})
worker.ready(one_shot={one_shot})
if {item!r}:
    import msgspec, json
    from watcher.wire import Item, RunBatch, ItemStarted
    item = msgspec.convert(json.loads({item!r}), Item)
    worker.send(RunBatch(batch="b", sent_ns=1, items=(item,)))
    worker.until(ItemStarted)
if {one_shot}:
    worker.hang_up()
print(worker.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("hang", ["hang_sleep", "hang_gil"])
def test_a_killed_parent_takes_its_worker_along(marked: Item, hang: str, *, one_shot: bool) -> None:
    script = textwrap.dedent(FAKE_PARENT).format(
        faults=f"{hang}@good.png", one_shot=one_shot, item=json.dumps(msgspec.to_builtins(marked))
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, env=environment
    ) as parent:
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        worker = psutil.Process(worker_pid)
        parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the worker outlived its parent"
            time.sleep(0.01)


def test_a_worker_whose_parent_is_another_leaves(talk: Talk) -> None:
    worker = talk()
    worker.configure(parent_pid=1)
    assert worker.wait() == 70


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_group_do_not_end_it(talk: Talk, marked: Item, number: signal.Signals) -> None:
    worker = talk()
    worker.ready()
    worker.process.send_signal(number)
    assert any(isinstance(report, ItemDone) for report in worker.run(marked))


# --- refusals of the conversation itself -------------------------------------------------------------------


def fatal_of(worker: Conversation) -> Fatal:
    said = worker.until(Fatal)[-1]
    assert isinstance(said, Fatal)
    assert worker.wait() == said.exit_code
    return said


def test_another_protocol_is_refused_whatever_else_it_says(talk: Talk) -> None:
    worker = talk()
    worker.send_line(b'{"type":"configure","protocol":%d,"news":true}\n' % (PROTOCOL + 1))
    fatal = fatal_of(worker)
    assert fatal.exit_code == 78
    assert "protocol" in fatal.reason
    assert "restart" in fatal.remedy


def test_garbage_is_refused(talk: Talk) -> None:
    worker = talk()
    worker.ready()
    worker.send_line(b"\x00\xff not json\n")
    assert fatal_of(worker).exit_code == EXIT_INTERNAL == 1


def test_work_before_configuration_is_refused(talk: Talk) -> None:
    worker = talk()
    worker.send(Exit())
    assert fatal_of(worker).exit_code == EXIT_INTERNAL == 1


def test_an_engine_that_does_not_exist_is_a_configuration_error(talk: Talk) -> None:
    worker = talk()
    worker.configure(engine=EngineChoice(name="patchmtch"))
    fatal = fatal_of(worker)
    assert fatal.exit_code == 78
    assert "patchmatch" in fatal.remedy


# --- planted faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "code"), [("crash", 139), ("segv", -signal.SIGSEGV)])
def test_a_planted_crash_is_the_named_items(talk: Talk, bench: Bench, fault: str, code: int) -> None:
    worker = talk(f"{fault}@bad.png")
    worker.ready()
    items = (make_item(bench, "good.png"), make_item(bench, "bad.png"))
    worker.send(RunBatch(batch="b", sent_ns=1, items=items))
    said = []
    while line := worker.line():
        said.append(decode_from_worker(line))
    assert any(isinstance(report, ItemDone) and report.job == "good.png" for report in said)
    assert said[-1] == ItemStarted(batch="b", job="bad.png")
    assert worker.wait() == code


def test_faults_can_be_meant_for_one_path(talk: Talk, marked: Item) -> None:
    worker = talk("cold:crash@*")
    worker.ready()
    assert any(isinstance(report, ItemDone) for report in worker.run(marked))


def test_planted_garbage_is_no_message(talk: Talk, marked: Item) -> None:
    worker = talk("garbage")
    worker.ready()
    worker.send(RunBatch(batch="b", sent_ns=1, items=(marked,)))
    with pytest.raises(WireError):
        worker.next()


def test_a_planted_failure_to_start(talk: Talk) -> None:
    worker = talk("fail_start=3")
    worker.configure()
    assert worker.wait() == 3
    worker = talk("fail_start=78")
    worker.configure()
    assert fatal_of(worker).exit_code == 78


def test_a_slow_start_is_counted(talk: Talk) -> None:
    worker = talk("slow_start=0.3")
    assert worker.ready().segments.import_ns > 300_000_000


def test_a_fault_that_means_nothing_is_refused(talk: Talk) -> None:
    worker = talk("crsh@a.png")
    worker.configure()
    assert fatal_of(worker).exit_code == 78


CHATTY = """
import os, threading, time
def chat():
    while True:
        os.write(1, b"chatty\\n")
        time.sleep(0.01)
threading.Thread(target=chat, daemon=True).start()
"""


def test_what_libraries_print_ends_up_in_the_log(talk: Talk, tmp_path: Path, marked: Item) -> None:
    (tmp_path / "sitecustomize.py").write_text(CHATTY)
    worker = talk(environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])})
    worker.ready()
    worker.run(marked)
    worker.send(Exit())
    assert worker.wait() == 0
    _, stderr = worker.process.communicate()
    assert b"chatty" in stderr


@pytest.mark.kind("W52")
def test_a_batch_ends_early_once_it_has_filled_its_pixels(bench: Bench, talk: Talk) -> None:
    items = [make_item(bench, f"{number}.png") for number in range(3)]
    conversation = talk()
    conversation.ready(limits=Limits(batch_pixels=96 * 80 + 1))
    reports = conversation.run(*items)
    assert [report.job for report in reports if isinstance(report, ItemDone)] == [
        item.job for item in items[:2]
    ]
    assert isinstance(reports[-1], BatchDone)
    assert reports[-1].given_back == (items[2].job,), "it was not begun"
