"""The real service under a service manager, in a terminal and in a container: W39, W40, W56, W58 and W59.

The test stands in for systemd: it has the socket, and sends the signals.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import PATIENCE_S, ROOT, is_alive, sha256, wait_until
from watcher.adapters.service_manager import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.harness import Service

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
WATCHDOG_S: Final = 0.2
SIGNS: Final = 4
SIGN: Final = "WATCHDOG=1"
MORE_TIME: Final = "EXTEND_TIMEOUT_USEC=60000000"


class ServiceManager:
    """The other end of the socket; a thread of its own listens."""

    def __init__(self) -> None:
        self._name = f"watcher-test-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self._name}")
        self._socket.settimeout(0.1)
        self._closing = threading.Event()
        self.said: list[str] = []
        """Every line, in order."""
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                self.said += self._socket.recv(4096).decode().split("\n")
            except TimeoutError:
                continue

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._socket.close()

    @property
    def wrapper(self) -> list[str]:
        """A program that becomes the service, as a service manager would start it."""
        environment = f"NOTIFY_SOCKET=@{self._name} WATCHDOG_USEC={WATCHDOG_S * 1e6:.0f} WATCHDOG_PID=$$"
        return ["sh", "-c", f'export PYTHONFAULTHANDLER=1 {environment}; exec "$0" "$@"']

    def wait_for(self, line: str, *, times: int = 1, since: int = 0) -> None:
        """Wait until it was said so often, after the first `since` lines."""
        wait_until(lambda: self.said[since:].count(line) >= times, f"{times} x {line} in {self.said}")

    def wait_for_signs(self) -> None:
        """Wait for some signs of life that are given from now on."""
        self.wait_for(SIGN, times=SIGNS, since=len(self.said))


@contextmanager
def _managed() -> Iterator[ServiceManager]:
    manager = ServiceManager()
    try:
        yield manager
    finally:
        manager.close()


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    with _managed() as manager:
        yield manager


# --- signs of life -----------------------------------------------------------------------------------------


@pytest.mark.kind("W56", "W59")
def test_it_is_ready_and_alive_while_the_model_loads_and_says_when_it_ends(
    new_service: NewService, manager: ServiceManager
) -> None:
    service = new_service(*QUICK, faults="hot:slow_start=120", wrapper=manager.wrapper).start(ready=False)

    manager.wait_for("READY=1")
    manager.wait_for_signs()
    manager.wait_for("STATUS=watching; worker starting")

    assert service.status()["worker"]["state"] == "starting"
    assert not service.log("worker.ready")
    (loading,) = wait_until(service.children, "a worker")
    assert _variables_of(service.pid) == set(VARIABLES)
    assert _variables_of(loading) == set(), "it must not speak in the service's name"
    assert service.terminate() == 0
    manager.wait_for("STOPPING=1")
    said = [line for line in manager.said if line in {"READY=1", "STOPPING=1"}]
    assert said == ["READY=1", "STOPPING=1"]
    service.faults = ""
    service.start()
    service.assert_sound()


def _variables_of(pid: int) -> set[str]:
    """Those of a service manager that a process was started with."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {name for name in VARIABLES if any(line.startswith(f"{name}=".encode()) for line in environment)}


@pytest.mark.kind("W56")
def test_it_is_alive_while_its_worker_hangs(new_service: NewService, manager: ServiceManager) -> None:
    service = new_service(*QUICK, faults="hot:hang_sleep@hang.png", wrapper=manager.wrapper).start()
    worker = service.worker_pid()
    service.put("hang.png")
    service.wait_state("running")

    manager.wait_for_signs()

    assert service.worker_pid() == worker, "it was ended before that could be seen"
    assert {job.state for job in service.jobs()} == {"running"}
    os.kill(worker, signal.SIGKILL)
    assert service.wait_record("hang.png")["path"] == "cold"
    service.assert_sound()


@pytest.mark.kind("W56", "W9")
def test_a_loop_that_hangs_is_silent_and_leaves_its_stacks_when_it_is_aborted(
    new_service: NewService, manager: ServiceManager
) -> None:
    """The loop alone hangs, its other threads run: no other thread may give signs of life for it."""
    service = new_service(*QUICK, wrapper=manager.wrapper).start()
    worker = service.worker_pid()
    manager.wait_for_signs()

    pipe = service.state / ".status.json.new"
    wait_until(partial(_made_pipe, pipe), "a moment between two writes")
    wait_until(partial(_is_silent, manager), "silence")
    os.kill(service.pid, signal.SIGABRT)

    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == -signal.SIGABRT
    stacks = service.log_file.read_text("utf-8").rpartition("Fatal Python error: Aborted")[2]
    assert "in _write_status\n" in stacks, "where it hung"
    wait_until(lambda: not is_alive(worker), "the worker to follow")
    pipe.unlink()
    service.start()
    manager.wait_for_signs()
    service.assert_sound()


def _made_pipe(path: Path) -> bool:
    """Make a pipe that nobody reads where the loop writes next: it waits there for a reader."""
    try:
        os.mkfifo(path)
    except FileExistsError:
        return False
    return True


def _is_silent(manager: ServiceManager) -> bool:
    """Nothing was said for longer than a service may be silent."""
    before = len(manager.said)
    threading.Event().wait(2 * WATCHDOG_S)
    return len(manager.said) == before


# --- stops -------------------------------------------------------------------------------------------------


@pytest.mark.kind("W38", "W39", "W56")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_to_the_whole_group_lets_the_batch_be_finished(
    new_service: NewService, manager: ServiceManager, number: signal.Signals
) -> None:
    """Ctrl-C in a terminal, or a unit with KillMode=control-group."""
    wrapper = ["setsid", *manager.wrapper]
    service = new_service(*QUICK, faults="hot:slow_item=1.5", wrapper=wrapper).start()
    worker = service.worker_pid()
    service.put("in-flight.png")
    service.wait_state("running")
    assert os.getpgid(service.pid) == service.pid

    os.killpg(service.pid, number)

    manager.wait_for("STOPPING=1")
    manager.wait_for_signs()
    assert MORE_TIME in manager.said[manager.said.index("STOPPING=1") :], (
        "a longer drain than the unit expects is not cut off"
    )
    assert is_alive(worker)
    assert {job.state for job in service.jobs()} == {"running"}
    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == 0
    (record,) = service.results()
    assert (record["path"], record["attempt"], record["worker"]["pid"]) == ("hot", 1, worker)
    assert not is_alive(worker)
    service.faults, service.wrapper = "", ()
    service.start()
    service.assert_sound()


CONTAINER: Final = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.mark.kind("W40", "W38")
def test_as_the_first_process_of_a_container_it_takes_a_stop_politely(new_service: NewService) -> None:
    """The kernel keeps from that process each signal that it has no handler for: SIGTERM would do nothing."""
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody make a container of their own")
    service = new_service(*QUICK, faults="slow_item=0.5", wrapper=CONTAINER).start(ready=False)
    service.wait_log("worker.ready")
    (first,) = service.children()
    service.put("in-flight.png")
    service.wait_state("running")

    os.kill(first, signal.SIGTERM)

    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == 0
    (record,) = service.results()
    assert (record["path"], record["attempt"]) == ("hot", 1)
    assert service.log("service.stopped")
    service.faults, service.wrapper = "", ()
    service.start()
    service.assert_sound()


# --- hardening ---------------------------------------------------------------------------------------------

PR_SET_MDWE: Final = 65
DENIED: Final = f"""
import ctypes, os, sys
if ctypes.CDLL(None).prctl({PR_SET_MDWE}, 1, 0, 0, 0):
    sys.exit("this kernel does not know it")
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.soak
@pytest.mark.kind("W58")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="engine lama is not installed here")
def test_what_the_unit_must_not_have_keeps_the_model_from_running(
    new_service: NewService, tmp_path: Path
) -> None:
    """MemoryDenyWriteExecute. The pictures are not lost: they wait for a configuration that works.

    Once this fails, the kernels need no such memory any more, and the unit may deny it.
    """
    denied = [sys.executable, "-c", DENIED]
    if subprocess.run([*denied, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this kernel cannot deny it without systemd")
    weights = tmp_path / "stand-in.pt"
    maker = ROOT / "benchmarks" / "lama_stand_in.py"
    subprocess.run(
        [sys.executable, str(maker), "--tiny", "--out", str(weights)], check=True, capture_output=True
    )
    lama = ("[engine]", 'name = "lama"', 'device = "cpu"', "[model]", f'source = "{weights}"')
    service = new_service(*lama, f'sha256 = "{sha256(weights)}"', wrapper=denied).start(ready=False)

    (exited,) = service.wait_log("worker.exited")

    assert exited["exit_code"] == 78
    assert "could not create a primitive" in exited["reason"]
    service.wait_log("worker.disabled")
    assert service.terminate() == 0
