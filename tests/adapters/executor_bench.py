"""Executors on a bench: pictures to serve, real processes, and everything that was reported."""

from __future__ import annotations

import hashlib
import itertools
import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from PIL import Image

from watcher.adapters.bounded_log import BoundedLog
from watcher.adapters.clock import SystemClock
from watcher.adapters.memory import OomKills
from watcher.adapters.processes import ColdExecutor, HotExecutor, WorkerSetup
from watcher.core.commands import Batch, BatchItem
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.core.policy import Recipe
from watcher.wire import EngineChoice, Limits
from watcher.worker.faults import VARIABLE

if TYPE_CHECKING:
    from watcher.core.events import Event

PATIENCE_S: Final = 30.0
Kind: TypeAlias = str


class Bench:
    """An executor of one kind, pictures to serve, and everything that it has reported."""

    def __init__(self, kind: Kind, folder: Path, faults: str = "", oom_kills: OomKills | None = None) -> None:
        self.kind = kind
        self.inbox = folder / "inbox"
        self.staging = folder / "staging"
        self.log = folder / "worker.log"
        for made in (self.inbox, self.staging):
            made.mkdir()
        setup = WorkerSetup(
            engine=EngineChoice(name="patchmatch", device="auto"),
            limits=Limits(),
            inbox=self.inbox,
            staging=str(self.staging),
            log=BoundedLog(self.log),
            environment={**os.environ, VARIABLE: faults},
            oom_kills=oom_kills or OomKills(),
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
        return BatchItem(job, f"job-{number}.1", Recipe())

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


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z")


def state_of(pid: int) -> str | None:
    """The kernel's letter for it; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds that an executor may leak."""

    descriptors: int
    threads: int
    children: int

    @classmethod
    def at_rest(cls) -> Holdings:
        """Before a test: once the threads of the test before it have ended."""
        wait_until(
            lambda: not any(thread.name.startswith(("hot-", "cold-")) for thread in threading.enumerate()),
            "the threads of an earlier test to end",
        )
        return cls.now()

    @classmethod
    def now(cls) -> Holdings:
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is wanted
        return cls(descriptors, threading.active_count(), len(children_of(os.getpid())))


def children_of(pid: int) -> list[int]:
    """Numbers of its children, zombies among them."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names are wanted
        try:
            parent = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found.append(int(process))
    return found


def is_in_an_environment(text: str) -> bool:
    """Some living process was started with this text among its variables."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode("ascii") in environment.read_bytes():
                return True
        except OSError:  # it has just ended, or is another user's
            continue
    return False
