"""How long a process was busy, or wanted to be: planted files, and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import wait_until
from watcher.adapters.processor_time import busy_ns, spent_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")


@pytest.fixture
def busy() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Four processes that want the same processor all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_who_shares_a_processor_with_three_others_wants_it_all_the_time(
    busy: list[subprocess.Popen[bytes]],
) -> None:
    pid = busy[0].pid
    wait_until(lambda: busy_ns(pid), "a process that runs")
    before = busy_ns(pid)
    wait_until(lambda: spent_ns(before, busy_ns(pid)) > 100_000_000, "it to want a tenth of a second")


def test_who_sleeps_is_not_busy(busy: list[subprocess.Popen[bytes]]) -> None:
    sleep = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", sleep], stdin=pipe, stdout=pipe) as asleep:
        assert asleep.stdout is not None
        asleep.stdout.readline()
        state = Path(f"/proc/{asleep.pid}/stat")
        wait_until(lambda: state.read_text("ascii").split()[2] == "S", "it to sleep")
        before, others = busy_ns(asleep.pid), busy_ns(busy[0].pid)
        wait_until(lambda: spent_ns(others, busy_ns(busy[0].pid)) > 100_000_000, "time to go by")
        assert spent_ns(before, busy_ns(asleep.pid)) < 50_000_000
        asleep.communicate(b"\n")


def test_all_threads_count_also_those_that_began_since(tmp_path: Path) -> None:
    for thread, text in (("7", "100 2000 5"), ("8", "0 300 1")):
        folder = tmp_path / "proc/7/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text, "ascii")
    after = busy_ns(7, tmp_path)
    assert after == {"7": 2100, "8": 300}, "on a processor, or waiting for one"
    assert spent_ns({"7": 1600, "8": 100, "9": 0}, after) == 500 + 200
    assert spent_ns({"7": 1600}, after) == 500 + 300
    assert spent_ns(after, {}) == spent_ns(after, {"7": 0}) == 0, "who has ended has done nothing"


def test_what_a_child_does_is_done_for_its_parent() -> None:
    """As with a JPEG: a child encodes it, and the worker sleeps meanwhile."""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], start_new_session=True) as process:
        before = busy_ns(process.pid)
        wait_until(lambda: len(busy_ns(process.pid)) > 1, "a child")
        try:
            wait_until(lambda: spent_ns(before, busy_ns(process.pid)) > 1_000_000_000, "a second of work")
            own = {thread: busy for thread, busy in busy_ns(process.pid).items() if thread in before}
            assert spent_ns(before, own) < 500_000_000, "the parent itself did it"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_children_of_children_are_looked_at_and_a_ring_of_them_ends(tmp_path: Path) -> None:
    for pid, children in (("7", "8 9"), ("8", "7"), ("9", "")):
        folder = tmp_path / f"proc/{pid}/task/{pid}"
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text("100 0 5", "ascii")
        (folder / "children").write_text(children, "ascii")
    assert busy_ns(7, tmp_path) == {"7": 100, "8": 100, "9": 100}


def test_a_system_that_does_not_tell_has_seen_nothing(tmp_path: Path) -> None:
    assert busy_ns(7, tmp_path) == {}
    assert spent_ns({}, {}) == spent_ns({"1": 5}, {}) == 0
