"""One owner of a state folder, and one service on an inbox or outbox, at a time.

Rules of this file:
- Both kinds of lock die with their process, however that ends, and no child inherits them.
- Whether somebody owns a state folder is told by the operating system's lock alone. The pid beside it is for
  people; it is believed only while the lock is held.
- An inbox may be read-only, and either may be a disk that somebody wants to take out: for a lock nothing is
  written there, and nothing is kept open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from filelock import FileLock, Timeout

from watcher.ports import RemediableError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LOCK_NAME: Final = "watcher.lock"
PID_NAME: Final = "watcher.pid"
_PATIENCE_S: Final = 0.5
"""A command that only looks holds the lock for a moment; the service outwaits it."""
_POLL_S: Final = 0.02
_CALLERS: Final = 16
"""So many refused services learn whom they met; nobody answers, so that they are never taken off the list."""
_PEER: Final = struct.Struct("3i")
"""unix(7), SO_PEERCRED: pid, uid, gid."""
_EXIT_TRY_AGAIN: Final = 75


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds the lock. `pid` is None where it could not be read."""

    pid: int | None


class AlreadyRunningError(RemediableError):
    """Another process works on the folder (exit code 75).

    Attributes:
        owner: which.
    """

    def __init__(self, owner: Owner, doing: str, remedy: str) -> None:
        who = "another process" if owner.pid is None else f"process {owner.pid}"
        super().__init__(f"a watcher is running already: {who} {doing}", remedy, exit_code=_EXIT_TRY_AGAIN)
        self.owner = owner


class StateLock:
    """Ownership of a state folder, as a context or by `acquire` and `release`."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._lock = FileLock(state_dir / LOCK_NAME)

    def acquire(self) -> None:
        """Take the folder, which is made for this user alone where it is missing. Blocks for 0.5 s at most.

        Raises:
            AlreadyRunningError: another process has it.
            RemediableError: the folder cannot be made or written.
        """
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=_PATIENCE_S, poll_interval=_POLL_S)
            (self._state_dir / PID_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout:
            raise AlreadyRunningError(
                _named_owner(self._state_dir),
                f"owns {self._state_dir}",
                "it serves the inbox by itself (see `watcher status`); stop it first, or set another "
                "state_dir",
            ) from None
        except OSError as error:
            self._lock.release()
            raise RemediableError(
                f"state_dir cannot be used: {self._state_dir}: {error.strerror or error}",
                "give this user the permission, free some space, or set state_dir to another local folder",
            ) from error

    def release(self) -> None:
        """Give it back."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                (self._state_dir / PID_NAME).unlink()
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class FolderLock:
    """That no other service of this user works on a folder, whatever its state folder, as a context.

    The lock is a name in the kernel (an abstract socket address) made of the folder's device and inode. Only
    Linux has such names: elsewhere this does nothing. Containers have names of their own.

    Args:
        key: the folder's, in the configuration.
        folder: one that cannot be looked at is not locked.
    """

    def __init__(self, key: Literal["inbox", "outbox"], folder: Path) -> None:
        self._key = key
        self._folder = folder
        self._held: socket.socket | None = None

    def acquire(self) -> None:
        """Take the name, where there are such names. Blocks for 0.5 s at most.

        Raises:
            AlreadyRunningError: another process has it.
        """
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):  # no such folder, or a system that grants no such names
            name = self._name()
            deadline_s = time.monotonic() + _PATIENCE_S
            while (held := _bound(name)) is None:
                if time.monotonic() >= deadline_s:
                    raise self._refusal(_owner_of_name(name))
                time.sleep(_POLL_S)
            self._held = held

    def release(self) -> None:
        """Give it back."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _name(self) -> bytes:
        status = self._folder.stat()
        name = f"\0watcher-{self._key}-{os.getuid()}-{status.st_dev:x}-{status.st_ino:x}"
        return name.encode("ascii")

    def _refusal(self, owner: Owner) -> AlreadyRunningError:
        return AlreadyRunningError(
            owner,
            f"works on this {self._key}: {self._folder}",
            f"its state_dir is another, and two services on one {self._key} would do things twice: stop that "
            f"one first, or give this one its own {self._key}",
        )


def owner_of(state_dir: Path) -> Owner | None:
    """Who owns the folder now, or None. Takes the lock for an instant, and makes no file."""
    path = state_dir / LOCK_NAME
    if not path.exists():
        return None
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return _named_owner(state_dir)
    except OSError:
        return None  # not ours to open: then no service of this user holds it either
    lock.release()
    return None


def _named_owner(state_dir: Path) -> Owner:
    try:
        return Owner(int((state_dir / PID_NAME).read_text(encoding="ascii")))
    except (OSError, ValueError):
        return Owner(None)


def _bound(name: bytes) -> socket.socket | None:
    """A socket that has this name; None if another one has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(name)
        held.listen(_CALLERS)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return held


def _owner_of_name(name: bytes) -> Owner:
    """Who has the name, told by the kernel; nothing is said to them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0)
        try:
            caller.connect(name)
            peer = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return Owner(None)
    pid, _, _ = _PEER.unpack(peer)
    return Owner(pid or None)
