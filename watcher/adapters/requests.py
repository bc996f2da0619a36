"""What people ask of the running service: small files in `state_dir/requests/`, since it owns the journal.

Rules of this file:
- A request appears whole or not at all, and outlives a crash of either side. The service removes it after
  its journal has taken it up, so a request may be read twice and must be harmless the second time.
- A file that is no request is set aside, once, as `NAME.rejected`; it never stops the service. The newest few
  of these are kept.
- While nobody takes them up there is a limit on requests too.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watcher.ports import RemediableError
from watcher.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Collection

FOLDER: Final = "requests"
SCHEMA: Final = 1
MAX_BYTES: Final = 4_000_000
MAX_REQUESTS: Final = 1_000
"""Read at one time; the rest waits for the next look."""
MAX_WAITING: Final = 10_000
MAX_REJECTED: Final = 20
_TRY_AGAIN: Final = 75


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """Do these final jobs again. `ids` None: every job that failed or is quarantined."""

    path: Path
    ids: tuple[str, ...] | None

    def remove(self) -> None:
        """The journal has taken it up."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class RequestFolder:
    """Implements `watcher.ports.RetryRequests` on `state_dir/requests/`."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def waiting(self) -> list[RetryRequest]:
        """See `read_requests`."""
        return read_requests(self._state_dir)


def write_retry(state_dir: Path, ids: Collection[str] | None) -> Path:
    """Leave a request for the service of this state folder, running or not.

    Args:
        state_dir: the state folder.
        ids: of jobs; None for every job that failed or is quarantined.

    Returns:
        The file.

    Raises:
        RemediableError: the folder cannot be written, or is full of requests that nobody took up.
    """
    if count_requests(state_dir) >= MAX_WAITING:
        raise RemediableError(
            f"{MAX_WAITING} requests wait already: {state_dir / FOLDER}",
            "start the service (`watcher run` or `watcher once`): it takes them up",
            exit_code=_TRY_AGAIN,
        )
    content = {"schema": SCHEMA, "request": "retry", "jobs": None if ids is None else list(ids)}
    folder = state_dir / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _write_whole(folder, json.dumps(content).encode("ascii"))
    except OSError as error:
        raise RemediableError(
            f"the request cannot be written: {folder}: {error.strerror or error}",
            "run the command as the user that runs the service",
        ) from error


def read_requests(state_dir: Path) -> list[RetryRequest]:
    """The requests that wait, oldest first. Cheap where there is none; blocks for one listing."""
    folder = state_dir / FOLDER
    requests = []
    for name in _names(folder)[:MAX_REQUESTS]:
        path = folder / name
        try:
            requests.append(RetryRequest(path, _retried(path)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            _set_aside(path, str(error))
    return requests


def count_requests(state_dir: Path) -> int:
    """How many wait; touches none."""
    return len(_names(state_dir / FOLDER))


def _names(folder: Path, suffix: str = ".json") -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(suffix))  # noqa: PTH208 - names alone are wanted
    except FileNotFoundError:
        return []


def _write_whole(folder: Path, content: bytes) -> Path:
    descriptor, staged = tempfile.mkstemp(dir=folder, suffix=".new")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path = folder / f"{os.stat(staged).st_mtime_ns:020d}-{Path(staged).stem}.json"  # noqa: PTH116 - its time orders the requests
    Path(staged).rename(path)
    return path


def _retried(path: Path) -> tuple[str, ...] | None:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or content.get("request") != "retry" or content.get("schema") != SCHEMA:
        raise ValueError("it is not a request that this version knows")
    jobs = content.get("jobs")
    if jobs is None:
        return None
    if not isinstance(jobs, list) or not all(isinstance(job, str) for job in jobs):
        raise ValueError("its jobs are not a list of ids")
    return tuple(jobs)


def _set_aside(path: Path, reason: str) -> None:
    log.write("warning", "request.rejected", {"file": path.name, "reason": reason})
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(".rejected"))
    for name in _names(path.parent, ".rejected")[:-MAX_REJECTED]:
        with contextlib.suppress(OSError):
            (path.parent / name).unlink()
