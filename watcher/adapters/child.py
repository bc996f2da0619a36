"""One child process of ours and its three pipes: commands to it, reports and output from it.

Rules of this file:
- The child is our own interpreter, by exec, in a session of its own: a Ctrl-C reaches the service only, and a
  kill reaches whatever the child started. Out of reach is a grandchild that makes a session of its own: it
  lives on, and is not listened to.
- Its death is seen at once by a descriptor that stands for the process (Linux), not by the end of a pipe,
  which a grandchild may hold open. Elsewhere the end of the pipe is the sign, and a look now and then.
- Nothing here waits for a grandchild: reading and writing never block for good.
- Only the thread that listens reaps. A process number is signalled while it is surely ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHUNK_BYTES: Final = 65536
_WRITE_PATIENCE_S: Final = 0.2
"""So often a thread that waits for room in the pipe looks whether anybody is left to read."""
_BLIND_LOOK_S: Final = 1.0
"""Without a descriptor for the process: so often we look whether it has died."""
_HUNG_UP_LOOK_S: Final = (0.001, 0.05)
"""The same once its pipe has ended: at first, and at most."""


class Source:
    """Our end of a pipe that the child writes to. Reading never waits."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.is_heard = True
        """Neither at its end nor given up."""
        self.has_ended = False

    def read(self) -> bytes:
        """Some of what is there; empty if there is nothing now, or nothing more (`has_ended`)."""
        if not self.is_heard:
            return b""
        try:
            data = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.has_ended = True
            self.is_heard = False
        return data

    def rest(self) -> bytes:
        """What lies in the pipe now. What somebody writes meanwhile is left there."""
        if not self.is_heard:
            return b""
        waiting = int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
        rest = b""
        while len(rest) < waiting and (data := os.read(self.descriptor, waiting - len(rest))):
            rest += data
        return rest

    def ignore(self) -> None:
        """Read no more of it; the pipe stays open, so that its writer meets no error."""
        self.is_heard = False


class Child:
    """A process from exec to reaping.

    Attributes:
        pid: its number.
        reports: what it tells.
        output: its standard output and error.
        sent: the signals of ours that may have ended it.
    """

    def __init__(self, program: Sequence[str], environment: Mapping[str, str] | None) -> None:
        """Start the interpreter on this program, with the numbers of its descriptors as further arguments.

        Raises:
            OSError: no memory, no processes or no descriptors left; nothing of it is left open.
        """
        self._lock = threading.Lock()
        self._is_reaped = False
        self.sent: set[int] = set()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, self._commands = _pipe(for_reading=theirs, for_writing=ours)
            reports_read, reports_write = _pipe(for_reading=ours, for_writing=theirs)
            output_read, output_write = _pipe(for_reading=ours, for_writing=theirs)
            descriptors = ["--commands-fd", str(commands_read), "--reports-fd", str(reports_write)]
            self._process = subprocess.Popen(
                [sys.executable, *program, *descriptors],
                pass_fds=(commands_read, reports_write),
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                start_new_session=True,
                env=environment,
            )
            ours.pop_all()
        self.pid = self._process.pid
        self._sentinel = _open_sentinel(self.pid)
        self._blind_look_s = _HUNG_UP_LOOK_S[0]
        os.set_blocking(self._commands, False)
        self.reports = Source(reports_read)
        self.output = Source(output_read)

    # --- the pipes -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write all of it; waits while the child does not read.

        Raises:
            OSError: nobody reads any more.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._commands, view) :]
            except BlockingIOError:
                self._await_room()

    def close_commands(self) -> None:
        """Tell the child that no more comes. Once, by the thread that writes."""
        os.close(self._commands)

    def await_news(self, timeout_s: float | None) -> bool:
        """Wait until something was written or ended, the child died, or time is over; True if it is dead."""
        if self._sentinel is None:
            timeout_s = min(self._next_blind_look_s(), timeout_s if timeout_s is not None else _BLIND_LOOK_S)
        poll = select.poll()
        for source in (self.reports, self.output):
            if source.is_heard:
                poll.register(source.descriptor, select.POLLIN)
        if self._sentinel is not None:
            poll.register(self._sentinel, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        return self._sentinel in ready if self._sentinel is not None else self._has_died()

    # --- life and death ------------------------------------------------------------------------------------

    @property
    def is_reaped(self) -> bool:
        """It is gone, and its number may be another's."""
        return self._is_reaped

    def send_signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal that may end it; with `group`, to all that it started in its session too."""
        # not Popen.send_signal: that reaps a process that has just died, and its number is then nobody's
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._is_reaped:
                self.sent.add(number)
                (os.killpg if group else os.kill)(self.pid, number)

    def kill_left_behind(self) -> None:
        """End what a dead child has left in its session; its number is ours until it is reaped."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._is_reaped:
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Take the exit code of a dead child and let go of all that is ours but the command pipe."""
        with self._lock:
            exit_code = self._process.wait()
            self._is_reaped = True
        for descriptor in (self.reports.descriptor, self.output.descriptor, self._sentinel):
            if descriptor is not None:
                os.close(descriptor)
        return exit_code

    def reap_left_behind(self) -> None:
        """Take the exit codes of what `kill_left_behind` has ended, where it became ours: as process 1.

        The number may be another's by now. So it is looked first, and who leads the group is not touched.
        """
        with contextlib.suppress(ChildProcessError):  # nobody is left, or it was never left to us
            while hasattr(os, "waitid"):
                ended = os.waitid(os.P_PGID, self.pid, os.WEXITED | os.WNOWAIT)
                if ended is None or ended.si_pid == self.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    # --- details -------------------------------------------------------------------------------------------

    def _await_room(self) -> None:
        if self._is_reaped:  # a grandchild holds the other end
            raise BrokenPipeError("the process that read it is dead")
        poll = select.poll()
        poll.register(self._commands, select.POLLOUT)
        poll.poll(_WRITE_PATIENCE_S * 1000)

    def _next_blind_look_s(self) -> float:
        if not self.reports.has_ended:
            return _BLIND_LOOK_S
        pause_s = self._blind_look_s
        self._blind_look_s = min(2 * pause_s, _HUNG_UP_LOOK_S[1])
        return pause_s

    def _has_died(self) -> bool:
        """Look without reaping, where the system can (macOS: from Python 3.13 on)."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        with self._lock:
            self._is_reaped = self._process.poll() is not None
            return self._is_reaped


def _pipe(*, for_reading: contextlib.ExitStack, for_writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these stacks."""
    reading, writing = os.pipe()
    for_reading.callback(os.close, reading)
    for_writing.callback(os.close, writing)
    return reading, writing


def _open_sentinel(pid: int) -> int | None:
    """A descriptor that is readable once the process is dead; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, a container that forbids it, no descriptor left
        return None
