"""The two pipes to the service: a thread that reads commands, and a writer of reports.

Rules of this module:
- Commands are read by a thread that does nothing else, so the end of the pipe is noticed in mid-item: for a
  resident worker it means that the service is gone, and the process leaves at once.
- After `Exit`, and for a one-shot, the end of the pipe only means that no more work comes; from then on the
  parent is watched by its process id.
- Reports are written whole, by the working thread only. A pipe that nobody reads any more ends the process.
- Both sides have bounds: the queue of commands and the length of a line.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from watcher.wire import (
    EXIT_INTERNAL,
    EXIT_PARENT_GONE,
    PROTOCOL,
    Configure,
    Exit,
    WireError,
    decode_to_worker,
    encode,
)
from watcher.worker.lifeline import leave, watch_parent

if TYPE_CHECKING:
    from watcher.wire import FromWorker, ToWorker

_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 24
_MAX_COMMANDS = 1024


class ProtocolMismatchError(Exception):
    """The service speaks another version.

    Attributes:
        protocol: the number that it sent.
    """

    def __init__(self, protocol: object) -> None:
        super().__init__(f"the service speaks protocol {protocol}, this worker {PROTOCOL}")
        self.protocol = protocol


class EndOfCommands:
    """Stands in the queue where the pipe ended."""


Received = tuple[int, "ToWorker | EndOfCommands | WireError | ProtocolMismatchError"]
"""When it was read (monotonic nanoseconds), and what."""


def read_command(line: bytes) -> ToWorker:
    """Decode a line; the protocol number is looked at before anything else is believed.

    Raises:
        ProtocolMismatchError: a `Configure` of another version, whatever else it holds.
        WireError: not a command.
    """
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        raw = None
    if isinstance(raw, dict) and raw.get("type") == "configure" and raw.get("protocol", PROTOCOL) != PROTOCOL:
        raise ProtocolMismatchError(raw["protocol"])
    return decode_to_worker(line)


class CommandReader:
    """Reads commands from a descriptor in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received: queue.Queue[Received] = queue.Queue(_MAX_COMMANDS)
        self._end_is_fine = False
        self._parent_pid: int | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="commands", daemon=True).start()

    def next(self, *, wait: bool) -> Received | None:
        """Return the next command; None if there is none now and `wait` is off."""
        try:
            return self._received.get(block=wait)
        except queue.Empty:
            return None

    def _run(self) -> None:
        buffer = bytearray()
        while data := os.read(self._descriptor, _READ_BYTES):
            received_ns = time.monotonic_ns()
            buffer += data
            *lines, rest = bytes(buffer).split(b"\n") if b"\n" in data else (bytes(buffer),)
            for line in lines:
                self._take(line, received_ns)
            buffer = bytearray(rest)
            if len(buffer) > _MAX_LINE_BYTES:
                self._put((received_ns, WireError(f"a command of more than {_MAX_LINE_BYTES} bytes")))
                return
        self._ended()

    def _take(self, line: bytes, received_ns: int) -> None:
        try:
            command = read_command(line)
        except (WireError, ProtocolMismatchError) as error:
            self._put((received_ns, error))
            return
        if isinstance(command, Configure):
            self._parent_pid = command.parent_pid
            self._end_is_fine = command.one_shot
        elif isinstance(command, Exit):
            self._end_is_fine = True
        self._put((received_ns, command))

    def _put(self, received: Received) -> None:
        try:
            self._received.put_nowait(received)
        except queue.Full:
            # Waiting here would blind this thread to the end of the pipe; a sane service never gets here.
            leave(EXIT_INTERNAL, f"more than {_MAX_COMMANDS} commands wait: the service is broken")

    def _ended(self) -> None:
        if not self._end_is_fine or self._parent_pid is None:
            leave(EXIT_PARENT_GONE)
        watch_parent(self._parent_pid)
        self._put((time.monotonic_ns(), EndOfCommands()))


class ReportWriter:
    """Writes reports to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: FromWorker) -> None:
        """Write a report whole; ends the process if nobody reads any more."""
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """Write bytes as they are."""
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            leave(EXIT_PARENT_GONE)
