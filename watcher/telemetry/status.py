"""What the running service is doing, as a small file that other processes may read at any time.

Rules of this file: the file is a hint, not the truth. Whether a service runs is told by the lock of the
state folder, what became of the jobs by the journal. A reader sees a whole file or the one before it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = 1
FILE_NAME: Final = "status.json"

ServiceState = Literal["starting", "watching", "inbox_lost", "draining", "stopped"]
WorkerState = Literal["none", "starting", "ready", "busy", "draining", "backoff", "breaker_open", "disabled"]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, what runs, and why they differ (or why `auto` became this)."""

    configured: str
    actual: str | None = None
    reason: str | None = None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The resident worker."""

    state: WorkerState
    engine: Columns
    device: Columns
    pid: int | None = None
    incarnation: int | None = None
    restarts: int = 0
    trouble: str | None = None
    """Why it ended, in its own last words, and what to do; None once a worker is ready again."""


class LastJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that ended last."""

    job: str
    source: str
    outcome: str
    ts: str
    output: str | None = None
    path: str | None = None
    total_ms: float | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `started` and `written` are UTC, ISO 8601; `counts` are jobs by state."""

    schema: int = SCHEMA
    pid: int
    version: str
    state: ServiceState
    started: str
    written: str
    worker: WorkerStatus
    path: Literal["hot", "cold", "none"]
    path_reason: str
    blocked: str | None = None
    """Why the outbox takes no results, if it does not."""
    counts: dict[str, int] = {}
    last_job: LastJob | None = None


class StatusFile:
    """`status.json` of a state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._staged = state_dir / f".{FILE_NAME}.new"

    def write(self, status: Status) -> None:
        """Replace the file in one step. Not synced: after a crash of the machine it is out of date anyway.

        Raises:
            OSError: the state folder cannot be written.
        """
        self._staged.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")
        self._staged.replace(self._path)

    def read(self) -> Status | None:
        """The last status that was written, or None where there is none that this version can read."""
        try:
            status = msgspec.json.decode(self._path.read_bytes(), type=Status)
        except (OSError, msgspec.DecodeError):
            return None
        return status if status.schema == SCHEMA else None

    def remove(self) -> None:
        """Forget it."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
