"""Nobody outlives the service, whatever the worker does at that moment; nobody is left behind unburied."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import exits, zombies_of
from tests.service.harness import (
    PATIENCE_S,
    Service,
    cpu_s,
    encoded,
    is_alive,
    mask,
    pixels,
    relative_files,
    wait_until,
)
from tests.service.namespaces import UNSHARE, with_mounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Record

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
GONE_S: Final = 1.0


# --- the service is killed ---------------------------------------------------------------------------------


def worker_at_rest(service: Service) -> int:
    return service.start().worker_pid()


def worker_in_python(service: Service) -> int:
    """Another thread of it runs a loop in Python, and the main thread waits for a lock."""
    return worker_with(service, "hang_lock")


def worker_with_the_interpreter_lock(service: Service) -> int:
    return worker_with(service, "hang_gil")


def worker_with(service: Service, hang: str) -> int:
    service.faults = f"{hang}@victim.png"
    worker = service.start().worker_pid()
    service.put("victim.png")
    service.wait_state("running")
    wait_until((service.state / "worker.log").exists, "a word from the hang")
    return worker


def worker_in_a_model_call(service: Service) -> int:
    """In C code that works: a large hole keeps it busy for seconds."""
    worker = service.start().worker_pid()
    before_s = cpu_s(worker)
    data = encoded(pixels(1, 1600, 1200), compress_level=1)
    service.put("victim.png", data, mask(1600, 1200, (100, 100, 1500, 1100)))
    service.wait_state("running")
    wait_until(lambda: cpu_s(worker) - before_s > 0.8, "a worker that computes")
    return worker


def worker_that_starts(service: Service) -> int:
    service.faults = "hot:slow_start=60"
    return child_of(service.start(ready=False))


def one_shot_with_the_interpreter_lock(service: Service) -> int:
    service.faults = "hot:fail_start=78,cold:hang_gil@victim.png"
    service.start(ready=False).wait_log("worker.disabled")
    service.put("victim.png")
    one_shot = child_of(service)
    wait_until(lambda: b"interpreter lock held" in log_of_workers(service), "the hang")
    return one_shot


def child_of(service: Service) -> int:
    (child,) = wait_until(service.children, "a process of the service")
    return int(child)


def log_of_workers(service: Service) -> bytes:
    file = service.state / "worker.log"
    return file.read_bytes() if file.exists() else b""


@pytest.mark.kind("W23", "W29", "W32", "W51")
@pytest.mark.parametrize(
    "begin",
    [
        worker_at_rest,
        worker_in_python,
        worker_in_a_model_call,
        worker_with_the_interpreter_lock,
        worker_that_starts,
        one_shot_with_the_interpreter_lock,
    ],
    ids=lambda begin: begin.__name__,
)
def test_a_worker_ends_with_a_killed_service(
    new_service: NewService, begin: Callable[[Service], int]
) -> None:
    service = new_service(*QUICK)
    worker = begin(service)
    assert is_alive(worker)

    service.kill9()

    wait_until(lambda: not is_alive(worker), "the orphan to end", patience_s=GONE_S)
    assert service.outputs() == set(), "what it was making is nowhere to be seen"
    assert not list(service.root.rglob("core*"))
    if begin is one_shot_with_the_interpreter_lock:
        service.faults = ""
        service.start()
        assert service.wait_record("victim.png")["attempt"] == 1, "a killed service is no attempt"
        service.assert_sound()
        assert relative_files(service.state / "staging") == set()


# --- what a worker starts ----------------------------------------------------------------------------------


@pytest.mark.kind("W29", "W34")
def test_what_a_worker_has_started_ends_with_it(new_service: NewService) -> None:
    """Of the resident worker that is killed, and of a one-shot that ends as it should."""
    service = new_service(*QUICK, faults="spawn_grandchild").start()
    worker = service.worker_pid()
    (grandchild,) = children_of(worker)
    os.kill(worker, signal.SIGKILL)
    service.put("meanwhile.png")
    assert service.wait_record("meanwhile.png")["path"] == "cold"
    service.wait_ready()

    wait_until(lambda: not is_alive(grandchild), "the grandchild to end")
    assert service.log("worker.exited", pid=worker), "its end is seen though the pipes are held open"
    (fresh,) = service.children()
    assert len(children_of(fresh)) == 1
    assert len(sleepers_of(service)) == 1, "nothing but the new worker's own"
    wait_until(lambda: not zombies_of(service.pid), "every child to be reaped")
    service.assert_sound()
    assert service.terminate() == 0
    wait_until(lambda: not sleepers_of(service), "the last grandchild to end")


def children_of(pid: int) -> set[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return {int(child) for child in found.split() if is_alive(int(child))}


def sleepers_of(service: Service) -> set[int]:
    """Sleepers, as the fault makes them, that know this service's folders by their environment."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except (OSError, ProcessLookupError):
            continue
        if b"time.sleep" in command and os.fsencode(service.root / "models") in environment:
            found.add(int(process.name))
    return found


# --- as process 1 ------------------------------------------------------------------------------------------


@dataclass
class ContainedService(Service):
    """A service that is process 1 of its own namespace, as in a container without an init."""

    @property
    def inner_pid(self) -> int:
        """The service's number as we see it: the child of what made the namespace."""
        assert self.process is not None
        outer = self.process.pid
        (inner,) = wait_until(lambda: children_of(outer), "the process in the namespace")
        return int(inner)

    @property
    def pid(self) -> int:
        return self.inner_pid

    def status(self) -> Record:
        """As process 1 writes it."""
        try:
            status: Record = json.loads((self.state / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return status if status["pid"] == 1 else {}


def contained(root: Path, *settings: str, faults: str = "") -> ContainedService:
    with_mounts()  # skips where the kernel does not let us
    wrapper = (*UNSHARE, "--pid", "--fork", "--mount-proc", "--kill-child")
    return ContainedService(root, settings, faults=faults, wrapper=wrapper)


@pytest.mark.kind("W31", "W34")
@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_process_1_has_workers_that_live_and_none_that_are_undead(tmp_path: Path, count: int) -> None:
    """One-shots by the handful, each with a child of its own that is left to process 1 when it ends."""
    service = contained(
        tmp_path,
        *QUICK,
        "[batching]",
        "max_batch = 1",
        "[cold]",
        "max_parallel = 2",
        faults="hot:fail_start=78,cold:spawn_grandchild",
    )
    try:
        service.start(ready=False)
        service.wait_log("worker.disabled")
        for number in range(count):
            service.put(f"{number:03}.png")
        records = service.wait_records(count, patience_s=PATIENCE_S + 3 * count)
        assert {record["path"] for record in records} == {"cold"}
        assert len({record["worker"]["pid"] for record in records}) == count
        wait_until(lambda: not children_of(service.pid), "the last one-shot to end")
        wait_until(lambda: not zombies_of(service.pid), "every child to be reaped", patience_s=5.0)
        assert exits(service, "cold") == []
    finally:
        service.close()


@pytest.mark.kind("W31")
def test_process_1_has_a_resident_worker_that_does_not_take_itself_for_an_orphan(tmp_path: Path) -> None:
    service = contained(tmp_path, *QUICK)
    try:
        service.start()
        service.put("hot.png")
        assert service.wait_record("hot.png")["path"] == "hot"
        (worker,) = children_of(service.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: exits(service), "its end")
        service.wait_ready()
        wait_until(lambda: not zombies_of(service.pid), "every child to be reaped")
        os.kill(service.pid, signal.SIGTERM)
        assert service.process is not None
        assert service.process.wait(PATIENCE_S) == 0
    finally:
        service.close()
