"""One owner of a state folder at a time. The lock dies with its process, however that ends.

Rules of this file: whether somebody owns the folder is told by the operating system's lock alone. The pid
beside it is for people; it is believed only while the lock is held.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from filelock import FileLock, Timeout

from watcher.ports import RemediableError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LOCK_NAME: Final = "watcher.lock"
PID_NAME: Final = "watcher.pid"
_PATIENCE_S: Final = 0.5
"""A command that only looks holds the lock for a moment; the service outwaits it."""
_EXIT_TRY_AGAIN: Final = 75


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds the lock. `pid` is None where it could not be read."""

    pid: int | None


class AlreadyRunningError(RemediableError):
    """Another process owns the state folder (exit code 75).

    Attributes:
        owner: which.
    """

    def __init__(self, state_dir: Path, owner: Owner) -> None:
        who = "another process" if owner.pid is None else f"process {owner.pid}"
        super().__init__(
            f"a watcher is running already: {who} owns {state_dir}",
            "it serves the inbox by itself (see `watcher status`); stop it first, or set another state_dir",
            exit_code=_EXIT_TRY_AGAIN,
        )
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
            self._lock.acquire(timeout=_PATIENCE_S, poll_interval=0.02)
            (self._state_dir / PID_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout:
            raise AlreadyRunningError(self._state_dir, _named_owner(self._state_dir)) from None
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
