"""The worker's life: hello, configure, load, ready, batches, exit.

Rules of this module:
- Hello goes out before anything heavy is imported: NumPy, Pillow and OpenCV load after `Configure`, in the
  measured import segment.
- One thread works; it answers pings between items, so a pong proves that it is free.
- Ready means warm and tried: the golden self-test belongs to the warm-up. One that fails ends the process
  before it has seen a user's picture.
- Every end has a code (`wire.EXIT_*`), and every end that is not 0 has last words (`Fatal`) unless the
  parent is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, NoReturn

import watcher
from watcher.wire import (
    EXIT_CONFIGURATION,
    EXIT_INTERNAL,
    EXIT_OK,
    EXIT_RECYCLE,
    EXIT_STICKY_DEVICE,
    BatchDone,
    BatchStarted,
    Configure,
    Exit,
    Fatal,
    Hello,
    Ping,
    Pong,
    Ready,
    RunBatch,
    StartSegments,
    Warming,
    WireError,
)
from watcher.worker.channel import CommandReader, EndOfCommands, ProtocolMismatchError, ReportWriter
from watcher.worker.engines.protocol import DeviceLostError, DeviceMemoryError, EngineUnavailableError
from watcher.worker.faults import ONCE_VARIABLE, VARIABLE, Faults, read_plan
from watcher.worker.lifeline import leave, leave_if_orphaned, prepare_process

if TYPE_CHECKING:
    from watcher.worker.channel import Received
    from watcher.worker.engines.protocol import Engine
    from watcher.worker.golden import GoldenResult
    from watcher.worker.items import ItemServer

_STDOUT, _STDERR = 1, 2
_REPORT_BUG = "restart the service; if it comes back, report it with the worker's log"
_FRESH_ONE = "nothing to do: a fresh worker is started"
_SELF_TEST_REMEDY = "set `device` under `[engine]` to cpu; if that does not help, replace the model's weights"
_UPGRADE = "the service and its workers are of different versions: restart the service after an upgrade"


def main(arguments: list[str], main_started_ns: int) -> NoReturn:
    """Run a worker on the descriptors that the command line names; never returns.

    Args:
        arguments: of the command line, without the program.
        main_started_ns: monotonic instant of the first line of the program.
    """
    parser = argparse.ArgumentParser(
        prog="python -m watcher.worker",
        description="A worker of the watcher service. The service starts it; it is of no use by hand.",
    )
    parser.add_argument(
        "--commands-fd", type=int, required=True, help="inherited descriptor to read commands from"
    )
    parser.add_argument(
        "--reports-fd", type=int, required=True, help="inherited descriptor to write reports to"
    )
    options = parser.parse_args(arguments)
    # A library that prints must not end up anywhere but in the log, and no child may hold the pipes open.
    os.dup2(_STDERR, _STDOUT)
    for descriptor in (options.commands_fd, options.reports_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's own signature
    prepare_process()
    worker = Worker(CommandReader(options.commands_fd), ReportWriter(options.reports_fd), main_started_ns)
    leave(worker.run())


class Worker:
    """One worker process, from its first word to its exit code."""

    def __init__(self, commands: CommandReader, reports: ReportWriter, main_started_ns: int) -> None:
        self._commands = commands
        self._reports = reports
        self._main_started_ns = main_started_ns
        self._pending: deque[Received] = deque()
        self._faults = Faults()

    def run(self) -> int:
        """Live; return the exit code."""
        try:
            self._reports.send(Hello(pid=os.getpid(), version=watcher.__version__))
            hello_ns = time.monotonic_ns()
            self._commands.start()
            configure = self._configure()
            return self._serve(self._start(configure, hello_ns))
        except _FatalError as fatal:
            self._reports.send(fatal.message)
            return fatal.message.exit_code
        except DeviceLostError as error:
            return self._farewell(EXIT_STICKY_DEVICE, str(error), _FRESH_ONE)
        except DeviceMemoryError as error:
            return self._farewell(EXIT_RECYCLE, f"the device's memory is short: {error}", _FRESH_ONE)
        except Exception as error:  # noqa: BLE001 - last words before the end; the stack goes to the log
            traceback.print_exc(file=sys.stderr)
            return self._farewell(EXIT_INTERNAL, f"{type(error).__name__}: {error}", _REPORT_BUG)

    def _farewell(self, exit_code: int, reason: str, remedy: str) -> int:
        self._reports.send(Fatal(exit_code=exit_code, reason=reason, remedy=remedy))
        return exit_code

    # --- start ---------------------------------------------------------------------------------------------

    def _configure(self) -> Configure:
        _, command = self._next()
        if not isinstance(command, Configure):
            raise _fatal(f"the first command was not configure but {type(command).__name__}", _REPORT_BUG)
        leave_if_orphaned(command.parent_pid)
        try:
            plan = read_plan(
                os.environ.get(VARIABLE, ""),
                one_shot=command.one_shot,
                once_dir=os.environ.get(ONCE_VARIABLE),
            )
        except ValueError as error:
            raise _fatal(str(error), f"unset {VARIABLE}", EXIT_CONFIGURATION) from error
        self._faults = Faults(plan, self._reports.send)
        return command

    def _start(self, configure: Configure, hello_ns: int) -> ItemServer:
        configured_ns = time.monotonic_ns()
        try:
            self._faults.at_start()
            server, engine, imported_ns = _import_and_build(configure, self._reports, self._faults)
            load = engine.load()
            loaded_ns = time.monotonic_ns()
            self._reports.send(Warming())
            golden = _warm_up_and_try(engine)
        except EngineUnavailableError as error:
            raise _fatal(str(error), error.remedy, EXIT_CONFIGURATION) from error
        ready_ns = time.monotonic_ns()
        import_ns = hello_ns - self._main_started_ns + imported_ns - configured_ns + load.import_ns
        loading_ns = load.device_probe_ns + load.model_read_ns + load.model_load_ns
        warmup_ns = ready_ns - loaded_ns
        segments = StartSegments(
            process_start_ns=max(0, self._main_started_ns - configure.spawned_ns),
            import_ns=import_ns,
            device_probe_ns=load.device_probe_ns,
            model_read_ns=load.model_read_ns,
            model_load_ns=load.model_load_ns,
            warmup_ns=warmup_ns,
            unattributed_ns=ready_ns - self._main_started_ns - import_ns - loading_ns - warmup_ns,
        )
        self._reports.send(_ready(engine, segments, ready_ns, golden))
        return server

    # --- work ----------------------------------------------------------------------------------------------

    def _serve(self, server: ItemServer) -> int:
        while True:
            received_ns, command = self._next()
            match command:
                case RunBatch():
                    self._run_batch(server, command, received_ns)
                case Ping():
                    self._reports.send(Pong(number=command.number))
                case Exit() | EndOfCommands():
                    return EXIT_OK
                case _:
                    raise _fatal("a worker is configured once, and it already was", _REPORT_BUG)

    def _run_batch(self, server: ItemServer, batch: RunBatch, received_ns: int) -> None:
        from watcher.worker.usage import open_files, rss_bytes

        self._reports.send_line(self._faults.at_batch_start())
        self._reports.send(BatchStarted(batch=batch.batch, received_ns=received_ns))
        filled_px = 0
        left = deque(batch.items)
        while left and filled_px < server.limits.batch_pixels:
            self._answer_pings()
            filled_px += server.serve(batch.batch, left.popleft(), received_ns)
        self._faults.before_batch_done()
        self._reports.send(
            BatchDone(
                batch=batch.batch,
                rss_bytes=rss_bytes(),
                open_files=open_files(),
                given_back=tuple(item.job for item in left),
            )
        )
        if self._faults.after_batch_done():
            raise _fatal("a planted fault", _FRESH_ONE, EXIT_RECYCLE)

    def _answer_pings(self) -> None:
        while (received := self._commands.next(wait=False)) is not None:
            if isinstance(received[1], Ping):
                self._reports.send(Pong(number=received[1].number))
            else:
                self._pending.append(received)

    def _next(self) -> tuple[int, Configure | RunBatch | Ping | Exit | EndOfCommands]:
        received = self._pending.popleft() if self._pending else self._commands.next(wait=True)
        assert received is not None  # noqa: S101 - a waiting read always returns something
        received_ns, command = received
        if isinstance(command, ProtocolMismatchError):
            raise _fatal(str(command), _UPGRADE, EXIT_CONFIGURATION)
        if isinstance(command, WireError):
            raise _fatal(str(command), _REPORT_BUG)
        return received_ns, command


def _import_and_build(
    configure: Configure, reports: ReportWriter, faults: Faults
) -> tuple[ItemServer, Engine, int]:
    """Import what decodes and encodes, and build the engine; returns the instant after the imports too."""
    import cv2
    from PIL import Image

    from watcher.worker.engines.registry import build_engine
    from watcher.worker.items import ItemServer

    if configure.engine.threads is not None:
        cv2.setNumThreads(configure.engine.threads)
    # Ours is checked first and has the better words; Pillow's own is the second line.
    Image.MAX_IMAGE_PIXELS = configure.limits.max_pixels
    imported_ns = time.monotonic_ns()
    engine = faults.in_engine(build_engine(configure.engine), configure.engine.device)
    return ItemServer(engine, configure.limits, reports.send, faults), engine, imported_ns


def _warm_up_and_try(engine: Engine) -> GoldenResult:
    """Warm the engine up, then let it fill the golden picture; what fails it makes way for what is left.

    Raises:
        EngineUnavailableError: the engine cannot run here.
        _FatalError: the golden self-test failed.
    """
    from watcher.worker.golden import GoldenTestError, run_golden_test

    while True:
        engine.warm_up()
        try:
            return run_golden_test(engine)
        except GoldenTestError as error:
            if not engine.give_way(str(error)):
                raise _fatal(f"the self-test failed: {error}", _SELF_TEST_REMEDY) from error


def _ready(engine: Engine, segments: StartSegments, ready_ns: int, golden: GoldenResult) -> Ready:
    from watcher.worker.usage import open_files, rss_bytes

    return Ready(
        engine=engine.facts(),
        device=engine.device(),
        segments=segments,
        ready_ns=ready_ns,
        rss_bytes=rss_bytes(),
        model_loads=engine.model_loads,
        open_files=open_files(),
        golden_px=golden.work_px,
        golden_ns=golden.spent_ns,
    )


class _FatalError(Exception):
    """Ends the worker with last words."""

    def __init__(self, message: Fatal) -> None:
        super().__init__(message.reason)
        self.message = message


def _fatal(reason: str, remedy: str, exit_code: int = EXIT_INTERNAL) -> _FatalError:
    return _FatalError(Fatal(exit_code=exit_code, reason=reason, remedy=remedy))
