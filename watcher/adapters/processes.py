"""Worker processes: how they are started, spoken to, listened to, killed and reaped.

Rules of this file:
- Two threads a process: one writes what was queued, so that a worker that does not read stops nobody; one
  listens to all that comes from it, and to its death.
- `WorkerExited` is sent once, last, and only after the process was reaped. What lay in its pipes at its death
  is taken in before; what somebody else writes there later is never heard (`child` says who that may be).
- A kill of ours lets the worker leave its stacks first, and asks the kernel how it fares.
- Processes are started on the service's main thread: Linux ties the parent-death signal to that thread.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import socket
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import structlog

from watcher import wire
from watcher.adapters.bounded_log import BoundedLog, OutputTail
from watcher.adapters.child import Child
from watcher.adapters.memory import OomKills, look_at
from watcher.adapters.process_evidence import Ending
from watcher.adapters.processor_time import busy_ns, spent_ns
from watcher.adapters.worker_messages import event_of, wire_item
from watcher.core import events as e

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from watcher.adapters.memory import ProcessLook
    from watcher.core.commands import Batch
    from watcher.ports import Clock, Sink

_LOG: Final = structlog.get_logger("watcher.processes")
_PROGRAM: Final = ("-P", "-m", "watcher.worker")
"""-P: a file of a library's name in the service's working folder must not be imported by the worker."""
_MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""A longer line is no message: the worker is broken and is killed."""
_DUMP_WORDS: Final = b"most recent call first"
_DUMP_SILENCE_S: Final = 0.03
"""The stacks are all there once nothing came for so long."""
_DUMP_TIMEOUT_S: Final = 0.5
"""A worker that is asked for its stacks has so long before it is killed."""
_AFTER_EOF_S: Final = 10.0
"""A worker that closed its pipe has so long to end by itself."""
_MEMORY_LOOK_S: Final = 0.25
"""So often the memory of a working process is looked at: the last look is what is known when it is killed."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What every worker of this service is started with."""

    engine: wire.EngineChoice
    limits: wire.Limits
    inbox: Path
    staging: str
    log: BoundedLog
    environment: Mapping[str, str] | None = None
    """None: the service's own."""
    oom_kills: OomKills = field(default_factory=OomKills)


class WorkerProcess:
    """One process from exec to reaping; reports events to the sink."""

    def __init__(
        self,
        incarnation: int,
        path: Literal["hot", "cold"],
        setup: WorkerSetup,
        sink: Sink,
        clock: Clock,
    ) -> None:
        """Start it.

        Raises:
            OSError: no memory, processes, threads or descriptors left; nothing of it is left.
        """
        self._setup = setup
        self._sink = sink
        self._clock = clock
        self._kill_once = threading.Lock()
        self._killed_for: str | None = None
        self._look: ProcessLook | None = None
        self._fatal: wire.Fatal | None = None
        self._rss_bytes = 0
        self._is_working = True
        self._looked_ns = 0
        self._busy_ns: dict[str, int] | None = None
        """Of its threads and children, soon after its last report or batch; None until it was looked at."""
        self._hung_up_ns: int | None = None
        self._lines = _Lines()
        self._tail = OutputTail()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._oom_kills_before = setup.oom_kills.count()
        spawned_ns = clock.now().mono_ns
        self._child = Child(_PROGRAM, setup.environment)
        self.origin = e.Origin(path, incarnation, self._child.pid, socket.gethostname())
        self.send(
            wire.Configure(
                incarnation=incarnation,
                parent_pid=os.getpid(),
                spawned_ns=spawned_ns,
                engine=setup.engine,
                limits=setup.limits,
                one_shot=path == "cold",
            )
        )
        self._writer = self._thread(self._write, "write")
        self._listener = self._thread(self._listen, "listen")
        self._killer = self._thread(self._kill, "kill")
        self._start_threads()

    def send(self, message: wire.ToWorker) -> None:
        """Queue a message; a dead worker's messages are dropped."""
        self._outgoing.put(wire.encode(message))

    def send_batch(self, batch: Batch) -> None:
        """Queue a batch."""
        setup = self._setup
        items = tuple(wire_item(item, inbox=setup.inbox, staging=setup.staging) for item in batch.items)
        self._busy_ns = busy_ns(self.origin.pid)  # who is idle is not looked at until it has read this
        self.send(wire.RunBatch(batch=batch.id, sent_ns=self._clock.now().mono_ns, items=items))

    def end_of_work(self) -> None:
        """Close the command pipe once all that was queued is written."""
        self._outgoing.put(None)

    def kill(self, reason: str) -> None:
        """Dump the stacks into the worker's log, then kill the process and all that it started."""
        if not self.is_alive:
            return
        if not self._kill_once.acquire(blocking=False):
            if not self._killer.is_alive():  # it outlived its kill, or that has failed
                self._child.send_signal(signal.SIGKILL, group=True)
            return
        self._killed_for = reason
        try:
            self._killer.start()
        except RuntimeError:  # no thread left: then without its stacks
            self._child.send_signal(signal.SIGKILL, group=True)

    def examine(self) -> None:
        """Tell whether it works, though it is silent; reads a few of the kernel's files."""
        if self.is_alive:
            look = look_at(self.origin.pid)
            state = look.state if look is not None else ""
            known = self._busy_ns
            busy = 0 if known is None else spent_ns(known, busy_ns(self.origin.pid))
            if state in {"T", "t"}:  # what it did before it was stopped does not make it go on
                busy = 0
            self._sink(e.WorkerExamined(self.origin, busy, waits_for_disk=state == "D"))

    @property
    def is_alive(self) -> bool:
        """It was not reaped yet."""
        return not self._child.is_reaped

    def join(self, timeout_s: float) -> None:
        """Wait for the reaping and for `WorkerExited`."""
        for thread in (self._listener, self._writer):
            thread.join(timeout_s)

    # --- the thread that writes ----------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                self._child.write(data)
        except OSError as error:  # it died: the listener tells
            _LOG.debug("worker.pipe_closed", incarnation=self.origin.incarnation, reason=str(error))
        finally:
            self._child.close_commands()

    # --- the thread that kills -----------------------------------------------------------------------------

    def _kill(self) -> None:
        self._look = self._look_at_memory()
        if self._look is None or self._look.state not in "Tt":  # who is stopped cannot answer
            before = self._tail.position
            self._child.send_signal(signal.SIGUSR1)
            self._tail.await_words(_DUMP_WORDS, before, silence_s=_DUMP_SILENCE_S, timeout_s=_DUMP_TIMEOUT_S)
        self._child.send_signal(signal.SIGKILL, group=True)

    # --- the thread that listens ---------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while not self._child.await_news(self._patience_s()):
                self._hear(self._child.reports.read())
                self._keep(self._child.output.read())
                self._look_now_and_then()
                self._end_who_hung_up()
        except Exception as error:  # noqa: BLE001 - whatever it is: who is not listened to is ended, and told of
            _LOG.error("worker.unheard", incarnation=self.origin.incarnation, reason=repr(error))
            self._child.reports.ignore()
            self._child.send_signal(signal.SIGKILL, group=True)
            self._killed_for = self._killed_for or "the service failed to listen to it"
        self._bury()

    def _patience_s(self) -> float | None:
        if self._hung_up_ns is not None:
            return min(_AFTER_EOF_S, _MEMORY_LOOK_S)
        return _MEMORY_LOOK_S if self._is_working else None

    def _hear(self, data: bytes) -> None:
        if not data:
            return
        try:
            for line in self._lines.split(data):
                self._report(line)
        except wire.WireError as error:
            _LOG.warning("worker.garbage", incarnation=self.origin.incarnation, reason=str(error))
            self._child.reports.ignore()
            self.kill("it wrote something that is no message")
        except _OtherProtocolError as error:
            self._child.reports.ignore()
            self.kill(str(error))

    def _report(self, line: bytes) -> None:
        received_ns = self._clock.now().mono_ns
        self._busy_ns = None
        message = wire.decode_from_worker(line)
        match message:
            case wire.Hello() if message.protocol != wire.PROTOCOL:
                raise _OtherProtocolError(
                    f"it speaks protocol {message.protocol}, the service {wire.PROTOCOL}"
                )
            case wire.Hello():
                return
            case wire.Fatal():
                self._fatal = message
                return
            case wire.Ready() | wire.ItemDone() | wire.BatchDone():
                self._rss_bytes = message.rss_bytes
        if isinstance(message, wire.Ready | wire.BatchDone):
            self._is_working = False
        elif isinstance(message, wire.BatchStarted):
            self._is_working = True
        self._sink(event_of(message, self.origin, received_ns))

    def _keep(self, output: bytes) -> None:
        if output:
            self._tail.append(output)
            self._setup.log.write(output)

    def _look_now_and_then(self) -> None:
        now_ns = self._clock.now().mono_ns
        if self._is_working and now_ns - self._looked_ns >= _MEMORY_LOOK_S * 1e9:
            self._looked_ns = now_ns
            self._look_at_memory()
            if self._busy_ns is None:
                self._busy_ns = busy_ns(self.origin.pid)

    def _look_at_memory(self) -> ProcessLook | None:
        look = look_at(self.origin.pid)
        if look is not None:
            self._rss_bytes = look.rss_bytes
        return look

    def _end_who_hung_up(self) -> None:
        if not self._child.reports.has_ended:
            return
        now_ns = self._clock.now().mono_ns
        if self._hung_up_ns is None:
            self._hung_up_ns = now_ns
        elif now_ns - self._hung_up_ns >= _AFTER_EOF_S * 1e9:
            self.kill("it closed its pipe and lived on")

    def _bury(self) -> None:
        sent = frozenset(self._child.sent)
        self._child.kill_left_behind()
        self._hear(self._child.reports.rest())
        self._keep(self._child.output.rest())
        self._tail.end()
        exit_code = self._child.reap()
        self._outgoing.put(None)
        ending = Ending(
            exit_code=exit_code,
            killed_for=self._killed_for,
            sent=sent,
            rss_bytes=self._rss_bytes,
            look=self._look,
            oom_kills=self._oom_kills_since(),
            output=self._tail.text(),
        )
        self._sink(
            e.WorkerExited(
                self.origin,
                exit_code,
                ending.story(),
                reason=self._fatal.reason if self._fatal is not None else None,
                remedy=self._fatal.remedy if self._fatal is not None else None,
                evidence=ending.evidence(),
            )
        )
        self._child.reap_left_behind()

    def _oom_kills_since(self) -> int | None:
        now = self._setup.oom_kills.count()
        if now is None or self._oom_kills_before is None:
            return None
        return max(0, now - self._oom_kills_before)

    # --- details -------------------------------------------------------------------------------------------

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        name = f"{self.origin.path}-{self.origin.incarnation}-{name}"
        return threading.Thread(target=target, name=name, daemon=True)

    def _start_threads(self) -> None:
        try:
            self._writer.start()
            self._listener.start()
        except RuntimeError as error:
            self._child.send_signal(signal.SIGKILL, group=True)
            self._child.reap()
            if self._writer.ident is None:
                self._child.close_commands()
            self._outgoing.put(None)
            raise OSError(errno.EAGAIN, str(error)) from error


class _OtherProtocolError(Exception):
    """The worker is of another version."""


class _Lines:
    """Cuts what a pipe delivers into lines."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def split(self, data: bytes) -> Iterator[bytes]:
        """The lines that end in this data; one that is too long ends where it is too long."""
        *ends, begun = data.split(b"\n")
        for end in ends:
            line = bytes(self._begun) + end
            self._begun.clear()
            yield line
        self._begun += begun
        if len(self._begun) >= _MAX_LINE_BYTES:
            yield bytes(self._begun)


class _Processes:
    """The processes of one executor, by incarnation: what hot and cold path have in common."""

    _path: Literal["hot", "cold"]

    def __init__(self, setup: WorkerSetup, sink: Sink, clock: Clock) -> None:
        self._setup = setup
        self._sink = sink
        self._clock = clock
        self._processes: dict[int, WorkerProcess] = {}

    def kill(self, incarnation: int, reason: str) -> None:
        """Dump the stacks, then kill; numbers of the other path are none of ours."""
        process = self._processes.get(incarnation)
        if process is not None:
            process.kill(reason)

    def close(self) -> None:
        """Kill and reap."""
        for process in self._processes.values():
            process.kill("the service ends")
        for process in self._processes.values():
            process.join(timeout_s=5.0)

    def _start(self, incarnation: int, device: str | None = None) -> WorkerProcess | None:
        """Start a process; a start that fails is told as an exit."""
        setup = self._setup
        if device is not None:
            setup = replace(setup, engine=msgspec.structs.replace(setup.engine, device=device))
        self._processes = {number: process for number, process in self._processes.items() if process.is_alive}
        try:
            process = WorkerProcess(incarnation, self._path, setup, self._sink, self._clock)
        except OSError as error:  # no memory, no processes, no descriptors left
            origin = e.Origin(self._path, incarnation, 0, socket.gethostname())
            self._sink(e.WorkerExited(origin, 1, f"could not be started: {error}"))
            return None
        self._processes[incarnation] = process
        return process


class HotExecutor(_Processes):
    """Implements `watcher.ports.ResidentExecutor`: one process that outlives its batches."""

    _path = "hot"

    def start(self, incarnation: int) -> None:
        """Start the process."""
        self._start(incarnation)

    def submit(self, incarnation: int, batch: Batch, *, device: str | None = None) -> None:  # noqa: ARG002 - its process has a device
        """Send the batch to that incarnation; if it is dead, its exit tells."""
        process = self._processes.get(incarnation)
        if process is not None:
            process.send_batch(batch)

    def ping(self, incarnation: int, number: int) -> None:
        """Ask whether its thread is free."""
        process = self._processes.get(incarnation)
        if process is not None:
            process.send(wire.Ping(number=number))

    def examine(self, incarnation: int) -> None:
        """See whether it works, though it is silent."""
        process = self._processes.get(incarnation)
        if process is not None:
            process.examine()

    def drain(self, incarnation: int) -> None:
        """End after the running batch."""
        process = self._processes.get(incarnation)
        if process is not None:
            process.send(wire.Exit())


class ColdExecutor(_Processes):
    """Implements `watcher.ports.Executor`: one process for each batch."""

    _path = "cold"

    def submit(self, incarnation: int, batch: Batch, *, device: str | None = None) -> None:
        """Start a one-shot with this batch."""
        process = self._start(incarnation, device)
        if process is not None:
            process.send_batch(batch)
            process.end_of_work()
