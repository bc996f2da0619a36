"""How long a process was busy, or wanted to be: planted files, and real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import wait_until
from watcher.adapters.processor_time import busiest_ns, busy_ns

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
    wait_until(lambda: busiest_ns(before, busy_ns(pid)) > 100_000_000, "it to want a tenth of a second")


def test_who_sleeps_is_not_busy(busy: list[subprocess.Popen[bytes]]) -> None:
    sleep = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", sleep], stdin=pipe, stdout=pipe) as asleep:
        assert asleep.stdout is not None
        asleep.stdout.readline()
        state = Path(f"/proc/{asleep.pid}/stat")
        wait_until(lambda: state.read_text("ascii").split()[2] == "S", "it to sleep")
        before, others = busy_ns(asleep.pid), busy_ns(busy[0].pid)
        wait_until(lambda: busiest_ns(others, busy_ns(busy[0].pid)) > 100_000_000, "time to go by")
        assert busiest_ns(before, busy_ns(asleep.pid)) < 50_000_000
        asleep.communicate(b"\n")


def test_the_thread_that_waited_longest_counts(tmp_path: Path) -> None:
    for thread, text in (("7", "100 2000 5"), ("8", "0 300 1")):
        folder = tmp_path / "proc/7/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text, "ascii")
    after = busy_ns(7, tmp_path)
    assert after == {"7": 2100, "8": 300}, "on a processor, or waiting for one"
    assert busiest_ns({"7": 1600, "8": 100, "9": 0}, after) == 500


def test_a_system_that_does_not_tell_has_seen_nothing(tmp_path: Path) -> None:
    assert busy_ns(7, tmp_path) == {}
    assert busiest_ns({}, {}) == busiest_ns({"1": 5}, {}) == 0
