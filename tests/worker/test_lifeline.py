"""The worker's ties to its parent: one that dies early, one that is PID 1, and who is killed for memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.worker.bench import ROOT, Conversation
from watcher.wire import EXIT_INTERNAL, Configure, EngineChoice, Hello, Ping, decode_from_worker, encode
from watcher.worker import lifeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Talk = Callable[..., Conversation]

EARLY_DEATH = """
import os, sys, time
if "-c" not in sys.orig_argv:
    parent = os.getppid()
    open({marker!r}, "w").close()
    while os.getppid() == parent:
        time.sleep(0.005)
"""
PARENT = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-m", "watcher.worker", *sys.argv[2:]], close_fds=False)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
os.write({commands}, {configure!r}.replace(b"4194305", b"%d" % os.getpid()))
print(worker.pid, flush=True)
os._exit(0)
"""


@pytest.mark.kind("W31")
def test_a_parent_that_died_before_the_worker_could_ask_for_a_signal(tmp_path: Path) -> None:
    """The pipes stay open, in this process: only the parent's number tells."""
    marker = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(EARLY_DEATH.format(marker=str(marker)))
    commands_read, commands = os.pipe()
    reports, reports_write = os.pipe()
    for descriptor in (commands_read, commands, reports_write):
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - the standard library's own signature
    configure = encode(
        Configure(incarnation=1, parent_pid=4194305, spawned_ns=1, engine=EngineChoice(), one_shot=False)
    )
    run = subprocess.run(
        [
            *(sys.executable, "-c", PARENT.format(commands=commands, configure=configure), str(marker)),
            *("--commands-fd", str(commands_read), "--reports-fd", str(reports_write)),
        ],
        pass_fds=(commands_read, commands, reports_write),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        timeout=20,
        check=True,
    )
    worker = psutil.Process(int(run.stdout.split()[0]))
    deadline = time.monotonic() + 5.0  # for its own start; to leave takes no time
    try:
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it lives on without a parent"
            time.sleep(0.01)
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
        for descriptor in (commands_read, commands, reports_write):
            os.close(descriptor)
    with os.fdopen(reports, "rb") as pipe:
        assert [type(decode_from_worker(line)) for line in pipe] == [Hello]


@pytest.mark.kind("W31")
@pytest.mark.parametrize(("parent_pid", "left"), [(1, []), (4711, [70])])
def test_pid_1_may_be_the_parent(monkeypatch: pytest.MonkeyPatch, parent_pid: int, left: list[int]) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(lifeline, "leave", codes.append)
    lifeline.leave_if_orphaned(parent_pid)
    assert codes == left


@pytest.mark.parametrize(("before", "after"), [("0\n", "500"), ("-17\n", "500"), ("900\n", "900\n")])
def test_the_score_for_the_oom_killer_is_raised_and_never_lowered(
    tmp_path: Path, before: str, after: str
) -> None:
    file = tmp_path / "oom_score_adj"
    file.write_text(before)
    assert lifeline.offer_to_oom_killer(file) is None
    assert file.read_text() == after


@pytest.mark.parametrize("content", [None, "what is this"])
def test_a_score_that_cannot_be_raised_is_told(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "oom_score_adj"
    if content is not None:
        file.write_text(content)
    refusal = lifeline.offer_to_oom_killer(file)
    assert refusal is not None
    assert "the kernel may take the service" in refusal


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux scores processes")
def test_a_worker_offers_itself_to_the_oom_killer(talk: Talk) -> None:
    with open("/proc/self/oom_score_adj") as file:  # noqa: PTH123 - as plain as the file
        own = int(file.read())
    worker = talk()
    assert isinstance(worker.next(), Hello)
    with open(f"/proc/{worker.process.pid}/oom_score_adj") as file:  # noqa: PTH123 - likewise
        assert int(file.read()) == max(own, 500)


def test_a_service_that_floods_a_busy_worker_is_not_mistaken_for_a_dead_one(talk: Talk) -> None:
    worker = talk("hang_start")
    worker.configure()
    for number in range(1100):
        worker.send(Ping(number=number))
    assert worker.wait() == EXIT_INTERNAL
    assert "the service is broken" in worker.last_words()
