"""What executors do with processes that break the contract, and with every way in which one ends."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.adapters.executor_bench import Bench, Holdings, children_of, is_alive, state_of, wait_until
from watcher.adapters import child, processes
from watcher.adapters.bounded_log import BoundedLog
from watcher.adapters.memory import OomKills
from watcher.core.commands import Batch
from watcher.core.events import WorkerExited, WorkerPonged
from watcher.wire import PROTOCOL, Hello, Pong, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from watcher.core.events import Event

HEAD = f"""
import os, sys, time
reports = int(sys.argv[sys.argv.index("--reports-fd") + 1])
commands = int(sys.argv[sys.argv.index("--commands-fd") + 1])
PROTOCOL = b"{PROTOCOL}"
HELLO = {encode(Hello(pid=1, version="0"))!r}
PONG = {encode(Pong(number=7))!r}
"""


@pytest.fixture
def rogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a program of ours as the resident worker; returns its bench."""
    benches: list[Bench] = []

    def start(program: str, oom_kills: OomKills | None = None) -> Bench:
        script = tmp_path / "rogue.py"
        script.write_text(HEAD + program, encoding="utf-8")
        monkeypatch.setattr(processes, "_PROGRAM", (str(script),))
        bench = Bench("hot", tmp_path, oom_kills=oom_kills)
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
    "line",
    [
        "[]",
        "{}",
        '{"type":"item_done"}',
        '{"type":"no such"}',
        "\\xff\\xfe",
        "null",
        "[" * 5000,
        f'{{"type":"pong","number":{10**400}}}',
    ],
    ids=["list", "empty", "half", "unknown", "no text", "null", "deep", "a huge number"],
)
def test_what_is_no_message_is_garbage(rogue: Any, line: str) -> None:
    bench = rogue(f"os.write(reports, b'{line}\\n' + PONG); os.write(reports, PONG); time.sleep(600)")

    assert "no message" in only_exit(bench.until(WorkerExited)).story  # and nothing that it said after it


def test_whoever_is_not_listened_to_any_more_is_ended(rogue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours in the thread that listens must not leave a process that nobody reaps."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(processes, "event_of", fail)
    bench = rogue("os.write(reports, HELLO + PONG); time.sleep(600)")

    exited = only_exit(bench.until(WorkerExited))

    assert "failed to listen" in exited.story


def test_a_process_that_outlives_its_kill_is_killed_again(
    rogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.WorkerProcess, "_kill", lambda _: None)
    bench = rogue("os.write(reports, HELLO + PONG); time.sleep(600)")
    bench.until(WorkerPonged)
    bench.hot.kill(1, "the first kill comes to nothing")
    process = bench.hot._processes[1]
    process._killer.join()
    assert process.is_alive

    bench.hot.kill(1, "the second")

    assert only_exit(bench.until(WorkerExited)).exit_code == -signal.SIGKILL


def test_another_protocol_is_refused(rogue: Any) -> None:
    bench = rogue(
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "os.write(reports, HELLO.replace(PROTOCOL, b'99', 1) + PONG)\n"
        "while True: os.write(reports, PONG); time.sleep(0.01)"
    )

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
        assert "exited with code 5" in exited.story  # and not: killed by us
        assert exited.evidence is not None
        assert exited.evidence.cause == "exited"
    assert bench.nothing_more()


def test_a_flood_of_output_is_bounded_and_never_stops_the_worker(
    rogue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedLog.__init__, "__defaults__", (200_000, 2))
    bench = rogue("for n in range(2000): print('x' * 999 + str(n), flush=True)\nprint('the end', flush=True)")

    only_exit(bench.until(WorkerExited))

    assert bench.log.read_bytes().endswith(b"the end\n")
    logs = sorted(path.name for path in tmp_path.glob("worker.log*"))
    assert logs == ["worker.log", "worker.log.1", "worker.log.2"]
    assert sum(path.stat().st_size for path in tmp_path.glob("worker.log*")) <= 3 * 200_000


# --- death is seen at once, whoever holds the pipes --------------------------------------------------------

GRANDCHILD: Final = """
told, tell = os.pipe()
if os.fork() == 0:
    {session}
    os.write(tell, b"!")
    while not os.path.exists({asked!r}):
        time.sleep(0.001)
    try:
        print("late words", flush=True)
        os.write(reports, PONG)
    finally:
        os.close(os.open({asked!r} + ".done", os.O_CREAT))
        os._exit(0)
os.read(told, 1)
os.write(reports, PONG)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Grandchild:
    """Forked by a worker, so that it holds all pipes; it speaks when it is asked to, and ends."""

    asked: Path

    def program(self, *, own_session: bool) -> str:
        session = "os.setsid()" if own_session else "pass"
        return GRANDCHILD.format(session=session, asked=str(self.asked))

    def ask(self) -> None:
        self.asked.touch()

    def has_spoken(self) -> bool:
        return self.asked.with_name(f"{self.asked.name}.done").exists()


@pytest.fixture
def grandchild(tmp_path: Path) -> Iterator[Grandchild]:
    made = Grandchild(tmp_path / "asked")
    yield made
    made.ask()  # it must not outlive the test


@pytest.mark.parametrize("sees", ["sentinel", "blind"])
def test_a_grandchild_that_holds_the_pipes_delays_nothing_and_is_never_heard(
    rogue: Any, grandchild: Grandchild, monkeypatch: pytest.MonkeyPatch, sees: str
) -> None:
    if sees == "blind":  # an older kernel, another system: seen within a second
        monkeypatch.setattr(child, "_open_sentinel", lambda _pid: None)
    before = Holdings.at_rest()
    bench = rogue(grandchild.program(own_session=True))  # out of reach for a kill
    (ponged,) = bench.until(WorkerPonged)

    os.kill(ponged.origin.pid, signal.SIGKILL)
    exited = only_exit(bench.until(WorkerExited))
    grandchild.ask()
    wait_until(grandchild.has_spoken, "the late words")

    assert exited.origin == ponged.origin
    wait_until(lambda: Holdings.now() == before, "threads and descriptors to be let go")
    assert bench.nothing_more()
    assert exited.evidence is not None
    assert "late words" not in exited.evidence.output
    assert not bench.log.exists() or b"late words" not in bench.log.read_bytes()


def test_a_grandchild_in_the_same_session_ends_with_the_worker(rogue: Any, grandchild: Grandchild) -> None:
    before = Holdings.at_rest()
    bench = rogue(grandchild.program(own_session=False))
    (ponged,) = bench.until(WorkerPonged)
    (spawned,) = children_of(ponged.origin.pid)

    os.kill(ponged.origin.pid, signal.SIGKILL)
    only_exit(bench.until(WorkerExited))

    wait_until(lambda: not is_alive(spawned), "the grandchild to end")
    wait_until(lambda: Holdings.now() == before, "threads and descriptors to be let go")


def test_a_grandchild_that_does_not_read_holds_no_thread_back(rogue: Any, grandchild: Grandchild) -> None:
    before = Holdings.at_rest()
    bench = rogue(grandchild.program(own_session=True))
    bench.until(WorkerPonged)
    batch = bench.batch(*(f"{number}-unmarked.png" for number in range(20)))
    for _ in range(200):  # more than any pipe holds
        bench.hot.submit(1, batch)

    bench.hot.kill(1, "deaf")
    only_exit(bench.until(WorkerExited))

    wait_until(lambda: Holdings.now() == before, "the writing thread to end")
    assert not grandchild.has_spoken()  # it held the pipes all the time


def test_what_lay_in_the_pipes_at_its_death_is_heard_before_it(rogue: Any) -> None:
    bench = rogue(
        "import fcntl, termios\n"
        "fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 18)\n"
        "os.write(reports, PONG)\n"
        "while any(fcntl.ioctl(reports, termios.FIONREAD, bytes(4))): time.sleep(0.001)\n"
        "os.write(reports, PONG * 2000); os.write(1, b'x' * 200_000 + b'last words'); os._exit(4)"
    )
    bench.until(WorkerExited)

    def hear_slowly(event: Event) -> None:
        if isinstance(event, WorkerPonged) and state_of(event.origin.pid) != "Z":
            wait_until(lambda: state_of(event.origin.pid) == "Z", "the death while its first word is heard")
        bench.reported.put(event)

    bench.hot._sink = hear_slowly
    bench.hot.start(2)
    *ponged, exited = bench.until(WorkerExited)

    assert {type(event) for event in ponged} == {WorkerPonged}
    assert len(ponged) == 2001
    assert (exited.exit_code, exited.evidence.output[-11:]) == (4, "xlast words")
    assert bench.nothing_more()


# --- the evidence ------------------------------------------------------------------------------------------


def test_a_stopped_process_is_killed_without_waiting_for_its_stacks(
    rogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_DUMP_TIMEOUT_S", 60.0)
    bench = rogue("os.write(reports, PONG); time.sleep(600)")
    (ponged,) = bench.until(WorkerPonged)
    os.kill(ponged.origin.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(ponged.origin.pid) == "T", "it to stop")

    bench.hot.kill(1, "no progress")
    exited = only_exit(bench.until(WorkerExited))  # within less than the dump may take

    assert exited.story.startswith(
        "killed by the service: no progress; it was stopped by a signal; it last used"
    )
    assert exited.evidence is not None
    assert (exited.evidence.cause, exited.evidence.process_state) == ("killed", "T")


def test_a_process_that_ignores_the_question_and_never_falls_silent_is_killed(rogue: Any) -> None:
    bench = rogue(
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nos.write(reports, PONG)\n"
        "while True: print('most recent call first' * 40, flush=True); time.sleep(0.005)"
    )
    bench.until(WorkerPonged)

    asked_s = time.monotonic()
    bench.hot.kill(1, "no progress")
    exited = only_exit(bench.until(WorkerExited))

    assert time.monotonic() - asked_s < 5
    assert (exited.exit_code, exited.story[:34]) == (-signal.SIGKILL, "killed by the service: no progress")


@pytest.mark.parametrize(
    ("after", "told"),
    [(3, "the kernel counted no out"), (4, "the kernel counted 1 out-of-memory kill meanwhile")],
)
def test_kills_that_the_kernel_counted_meanwhile_are_told(
    rogue: Any, tmp_path: Path, after: int, told: str
) -> None:
    vmstat = tmp_path / "machine/proc/vmstat"
    vmstat.parent.mkdir(parents=True)
    vmstat.write_text("oom_kill 3\n", "ascii")
    bench = rogue("os.write(reports, PONG); time.sleep(600)", OomKills(tmp_path / "machine"))
    (ponged,) = bench.until(WorkerPonged)

    vmstat.write_text(f"oom_kill {after}\n", "ascii")
    os.kill(ponged.origin.pid, signal.SIGKILL)
    exited = only_exit(bench.until(WorkerExited))

    assert told in exited.story
    assert exited.evidence is not None
    assert exited.evidence.oom_kills == after - 3


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a process's memory in /proc")
def test_the_memory_of_a_process_that_never_told_of_it_was_looked_at(rogue: Any) -> None:
    bench = rogue("held = b'x' * 150_000_000; os.write(reports, PONG); time.sleep(600)")
    (ponged,) = bench.until(WorkerPonged)
    process = bench.hot._processes[1]
    wait_until(lambda: process._rss_bytes > 150_000_000, "a look at its memory")

    os.kill(ponged.origin.pid, signal.SIGKILL)
    exited = only_exit(bench.until(WorkerExited))

    assert exited.evidence is not None
    assert exited.evidence.rss_bytes > 150_000_000
    assert f"it last used {exited.evidence.rss_bytes // 1_000_000} MB" in exited.story


def test_each_process_has_its_own_output_as_evidence(rogue: Any) -> None:
    bench = rogue(
        "print('\\x1b[31mI am', os.getpid(), flush=True); os.write(2, b'no text: \\xff')\n"
        "os.write(reports, PONG); time.sleep(600)"
    )
    bench.hot.start(2)
    events = bench.until(WorkerPonged, count=2)
    for event in events:
        os.kill(event.origin.pid, signal.SIGTERM)

    for exited in bench.until(WorkerExited, count=2):
        assert exited.story.startswith("killed by SIGTERM")
        assert (exited.evidence.cause, exited.evidence.signal) == ("signal", "SIGTERM")
        assert exited.evidence.output == f"I am {exited.origin.pid}\nno text: \\xff"


def test_a_one_shot_is_started_with_the_device_that_was_asked_for(rogue: Any) -> None:
    bench = rogue("print(os.read(commands, 65536).decode(), flush=True)")
    only_exit(bench.until(WorkerExited))

    for incarnation, device in ((2, None), (3, "cpu")):
        bench.cold.submit(incarnation, Batch("b", ()), device=device)
        exited = only_exit(bench.until(WorkerExited))
        assert exited.evidence is not None
        assert f'"device":"{device or "auto"}"' in exited.evidence.output


# --- nothing is left over ----------------------------------------------------------------------------------


def test_two_hundred_starts_and_deaths_leave_nothing_behind(
    rogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Holdings.at_rest()
    bench = rogue("")
    only_exit(bench.until(WorkerExited))
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    delays_s = []
    incarnations = iter(range(2, 1000))
    for _ in range(50):
        for program in ("exit 3", "kill -9 $$", "sleep 600 & exit 0", "sleep 600"):
            monkeypatch.setattr(processes, "_PROGRAM", ("-c", program))
            bench.cold.submit(incarnation := next(incarnations), Batch("b", ()))
            killed_s = time.monotonic()
            if program == "sleep 600":
                os.kill(bench.cold._processes[incarnation].origin.pid, signal.SIGKILL)
            exited = only_exit(bench.until(WorkerExited))
            assert exited.origin.incarnation == incarnation
            if program == "sleep 600":
                delays_s.append(time.monotonic() - killed_s)

    wait_until(lambda: Holdings.now() == before, "zombies, threads and descriptors to be gone")
    assert len(bench.cold._processes) == 1  # the dead are forgotten at the next start
    assert statistics.median(delays_s) < 0.1


@pytest.mark.parametrize("missing", ["write", "listen"])
def test_a_process_for_which_no_thread_is_left_was_not_started(
    rogue: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    before = Holdings.at_rest()
    bench = rogue("")
    only_exit(bench.until(WorkerExited))
    refuse_threads(monkeypatch, missing)

    bench.hot.start(2)

    exited = only_exit(bench.until(WorkerExited))
    assert (exited.origin.incarnation, exited.origin.pid) == (2, 0)
    assert "could not be started: [Errno 11] can't start new thread" in exited.story
    wait_until(lambda: Holdings.now() == before, "what was begun to be undone")


def test_a_kill_for_which_no_thread_is_left_is_a_kill(rogue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = rogue("os.write(reports, PONG); time.sleep(600)")
    bench.until(WorkerPonged)
    refuse_threads(monkeypatch, "kill")

    bench.hot.kill(1, "no progress")

    assert only_exit(bench.until(WorkerExited)).story.startswith("killed by the service: no progress")


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
