"""Worker processes: how they are started, spoken to, listened to, killed and reaped.

Rules of this file:
- A worker is our own interpreter, by exec, in a session of its own: a Ctrl-C reaches the service only, and a
  kill reaches whatever the worker started.
- Messages travel on two pipes that nobody else has; stdout and stderr are drained into a log with a limit.
- The service's thread never writes to a pipe itself: a worker that does not read must not stop it.
- `WorkerExited` is sent once, last, and only after the process was reaped. Only the reading thread reaps: a
  process number is signalled while it is surely ours.
- Processes are started on the service's main thread: Linux ties the parent-death signal to that thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec
import structlog

from watcher import wire
from watcher.core import events as e

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from watcher.core.commands import Batch, BatchItem
    from watcher.core.job import JsonObject
    from watcher.ports import Clock, Sink

_LOG: Final = structlog.get_logger("watcher.processes")
_PROGRAM: Final = ("-P", "-m", "watcher.worker")
"""-P: a file of a library's name in the service's working folder must not be imported by the worker."""
_MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""A longer line is no message: the worker is broken and is killed."""
_STACK_DUMP_S: Final = 0.2
"""Time between asking for the stacks and the kill."""
_AFTER_EOF_S: Final = 10.0
"""A worker that closed its pipe has so long to end by itself."""
_LOG_BYTES: Final = 1_000_000
_LOG_BACKUPS: Final = 2


class BoundedLog:
    """An append-only file that is renamed to `.1`, `.2` when it is full. One writer process, many threads."""

    def __init__(self, path: Path, max_bytes: int = _LOG_BYTES, backups: int = _LOG_BACKUPS) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Append; a disk that takes no more loses the text, never the service."""
        with self._lock:
            try:
                self._rotate_if_full(len(data))
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                _LOG.debug("worker_log.lost", reason=str(error))

    def _rotate_if_full(self, more_bytes: int) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size + more_bytes <= self._max_bytes:
            return
        for number in range(self._backups, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)


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
        self._setup = setup
        self._sink = sink
        self._clock = clock
        self._killed_for: str | None = None
        self._fatal: wire.Fatal | None = None
        self._rss_bytes = 0
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._signalling = threading.Lock()
        self._reaped = False
        spawned_ns = clock.now().mono_ns
        self._process, self._commands_write, self._reports_read = _spawn(setup.environment)
        self.origin = e.Origin(path, incarnation, self._process.pid, socket.gethostname())
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
        self._threads = [
            threading.Thread(target=target, name=f"{path}-{incarnation}-{name}", daemon=True)
            for target, name in (
                (self._write, "write"),
                (self._read, "read"),
                (self._drain_output, "output"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: wire.ToWorker) -> None:
        """Queue a message; a dead worker's messages are dropped."""
        self._outgoing.put(wire.encode(message))

    def send_batch(self, batch: Batch) -> None:
        """Queue a batch."""
        items = tuple(_wire_item(item, self._setup) for item in batch.items)
        self.send(wire.RunBatch(batch=batch.id, sent_ns=self._clock.now().mono_ns, items=items))

    def end_of_work(self) -> None:
        """Close the command pipe once all that was queued is written."""
        self._outgoing.put(None)

    def kill(self, reason: str) -> None:
        """Dump the stacks into the worker's log, then kill the process and all that it started."""
        if self._killed_for is not None or not self.is_alive:
            return
        self._killed_for = reason
        threading.Thread(target=self._kill, name=f"kill-{self.origin.incarnation}", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """It was not reaped yet."""
        return not self._reaped

    def close(self, timeout_s: float) -> None:
        """Kill what still runs and wait for the reaping."""
        self.kill("the service ends")
        for thread in self._threads:
            thread.join(timeout_s)

    # --- threads ---

    def _write(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._commands_write, view) :]
        except OSError as error:  # it died: the reader tells
            _LOG.debug("worker.pipe_closed", incarnation=self.origin.incarnation, reason=str(error))
        finally:
            os.close(self._commands_write)

    def _read(self) -> None:
        with os.fdopen(self._reports_read, "rb") as reports:
            try:
                while line := reports.readline(_MAX_LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                        break  # it died in the middle of a word
                    self._report(line)
            except wire.WireError as error:
                _LOG.warning("worker.garbage", incarnation=self.origin.incarnation, reason=str(error))
                self.kill("it wrote something that is no message")
        self._reap()

    def _drain_output(self) -> None:
        output = self._process.stdout
        if output is None:
            return
        with output:
            while data := os.read(output.fileno(), 65536):
                self._setup.log.write(data)

    def _kill(self) -> None:
        self._signal(os.kill, signal.SIGUSR1)
        time.sleep(_STACK_DUMP_S)
        self._signal(os.killpg, signal.SIGKILL)  # also reaches what it started, which lives in its session

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        # not Popen.send_signal: that reaps a process that has just died, and its number is then nobody's
        with self._signalling, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                send(self.origin.pid, number)

    def _reap(self) -> None:
        dead = self._await_death(_AFTER_EOF_S)
        if not dead:
            self.kill("it closed its pipe and lived on")
            dead = self._await_death(_AFTER_EOF_S)
        self._signal(os.killpg, signal.SIGKILL)  # what it left behind; its number is ours until it is reaped
        if not dead:  # it cannot even be killed, as with a disk that hangs: nobody else may wait for our lock
            self._process.wait()
        with self._signalling:
            exit_code = self._process.wait()
            self._reaped = True
        self._outgoing.put(None)
        self._sink(
            e.WorkerExited(
                self.origin,
                exit_code,
                self._story(exit_code),
                reason=self._fatal.reason if self._fatal is not None else None,
                remedy=self._fatal.remedy if self._fatal is not None else None,
            )
        )

    def _await_death(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True if it is dead."""
        deadline_ns = self._clock.now().mono_ns + round(timeout_s * 1e9)
        pause_s = 0.001
        while not self._has_died():
            if self._clock.now().mono_ns >= deadline_ns:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return True

    def _has_died(self) -> bool:
        """Look without reaping, where the system can (macOS: from Python 3.13 on)."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.origin.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        with self._signalling:
            self._reaped = self._process.poll() is not None
            return self._reaped

    def _story(self, exit_code: int) -> str:
        memory = f"; it last used {self._rss_bytes // 1_000_000} MB" if self._rss_bytes else ""
        if self._killed_for is not None:
            return f"killed by the service: {self._killed_for}{memory}"
        if exit_code < 0:
            suspicion = ", out of memory suspected" if exit_code == -signal.SIGKILL else ""
            return f"killed by {_signal_name(-exit_code)}{suspicion}{memory}"
        return f"exited with code {exit_code}{memory}"

    def _report(self, line: bytes) -> None:
        received_ns = self._clock.now().mono_ns
        message = wire.decode_from_worker(line)
        match message:
            case wire.Hello() if message.protocol != wire.PROTOCOL:
                self.kill(f"it speaks protocol {message.protocol}, the service {wire.PROTOCOL}")
            case wire.Hello():
                pass
            case wire.Fatal():
                self._fatal = message
            case wire.Ready() | wire.ItemDone() | wire.BatchDone():
                self._rss_bytes = message.rss_bytes
                self._sink(_event(message, self.origin, received_ns))
            case _:
                self._sink(_event(message, self.origin, received_ns))


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
            process.close(timeout_s=5.0)

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


def _spawn(environment: Mapping[str, str] | None) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the program; returns it, our end for commands and our end for reports.

    Raises:
        OSError: no memory, no processes or no descriptors left; nothing of it is left open.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        commands_read, commands_write = os.pipe()
        theirs.callback(os.close, commands_read)
        ours.callback(os.close, commands_write)
        reports_read, reports_write = os.pipe()
        theirs.callback(os.close, reports_write)
        ours.callback(os.close, reports_read)
        descriptors = ["--commands-fd", str(commands_read), "--reports-fd", str(reports_write)]
        process = subprocess.Popen(
            [sys.executable, *_PROGRAM, *descriptors],
            pass_fds=(commands_read, reports_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        ours.pop_all()
    return process, commands_write, reports_read


def _wire_item(item: BatchItem, setup: WorkerSetup) -> wire.Item:
    job = item.job
    return wire.Item(
        job=job.id,
        source=os.path.join(setup.inbox, job.source),  # noqa: PTH118 - a name may not be UTF-8 and stays a str
        sha256=job.identity.picture_sha256,
        mask=os.path.join(setup.inbox, job.mask) if job.mask is not None else None,  # noqa: PTH118 - as above
        mask_sha256=job.identity.mask_sha256,
        staging=setup.staging,
        stage_name=item.stage_name,
        recipe=job.identity.recipe,
        marks=cast("tuple[wire.MarkSource, ...]", item.marks),
        grow_px=item.grow_px,
        unmarked=item.unmarked,
        quality=item.quality,
        keep_metadata=item.keep_metadata,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _json(fact: msgspec.Struct) -> JsonObject:
    return cast("JsonObject", msgspec.to_builtins(fact))


def _work_segments(segments: wire.StartSegments | wire.WorkSegments) -> dict[str, int]:
    """`decode_ns` becomes `decode`."""
    return {name.removesuffix("_ns"): ns for name, ns in msgspec.structs.asdict(segments).items()}


def _work_report(
    message: wire.ItemDone | wire.ItemHeld | wire.ItemIncomplete | wire.ItemFailed, received_ns: int
) -> e.WorkReport:
    image = None if isinstance(message, wire.ItemIncomplete) else message.image
    report = e.WorkReport(
        received_ns=received_ns,
        batch_received_ns=message.times.batch_received_ns,
        started_ns=message.times.started_ns,
        finished_ns=message.times.finished_ns,
        segments_ns=_work_segments(message.segments),
        image=_json(image) if image is not None else None,
    )
    if not isinstance(message, wire.ItemDone):
        return report
    return replace(
        report,
        engine=_json(message.engine),
        device=_json(message.device),
        marks=message.marks,
        sha256_in=message.sha256_in,
        sha256_out=message.sha256_out,
        rss_bytes=message.rss_bytes,
    )


def _event(message: wire.FromWorker, origin: e.Origin, received_ns: int) -> e.Event:  # noqa: C901, PLR0911 - a table
    match message:
        case wire.Ready():
            return e.WorkerReady(
                origin,
                message.ready_ns,
                _work_segments(message.segments),
                _json(message.engine),
                _json(message.device),
                message.rss_bytes,
                message.model_loads,
                message.open_files,
                message.golden_px,
                message.golden_ns,
            )
        case wire.Warming():
            return e.WorkerWarming(origin)
        case wire.Pong():
            return e.WorkerPonged(origin, message.number)
        case wire.BatchStarted():
            return e.BatchStarted(origin, message.batch)
        case wire.ItemStarted():
            return e.ItemStarted(origin, message.batch, message.job)
        case wire.ItemProgressed():
            return e.ItemProgressed(
                origin,
                message.batch,
                message.job,
                message.phase,
                message.spent_ns,
                message.next,
                message.units,
            )
        case wire.ItemDone():
            return e.ItemDone(
                origin,
                message.batch,
                message.job,
                message.outcome == "unchanged",
                message.reason,
                _work_report(message, received_ns),
            )
        case wire.ItemHeld():
            return e.ItemHeld(origin, message.batch, message.job, _work_report(message, received_ns))
        case wire.ItemIncomplete():
            report = _work_report(message, received_ns)
            return e.ItemIncomplete(origin, message.batch, message.job, message.reason, report)
        case wire.ItemFailed():
            return e.ItemFailed(
                origin,
                message.batch,
                message.job,
                message.code,
                message.reason,
                message.remedy,
                _work_report(message, received_ns),
            )
        case wire.BatchDone():
            return e.BatchDone(origin, message.batch, message.rss_bytes, message.open_files)
        case _:
            raise wire.WireError(f"{type(message).__name__} is no event")
