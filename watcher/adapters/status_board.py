"""Shows the pipeline's snapshot to other processes, through the status file.

Rules of this file: what cannot be written is not shown, once told; the service goes on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, cast

from watcher import __version__
from watcher.core.record import utc_text
from watcher.telemetry import log
from watcher.telemetry.status import Columns, LastJob, Status, StatusFile, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from watcher.core.job import JsonObject
    from watcher.ports import Clock
    from watcher.telemetry.status import ServiceState, WorkerState

_WORKER_STATES: Final[Mapping[str, WorkerState]] = {
    "stopped": "none",
    "starting": "starting",
    "warming": "starting",
    "half_open": "starting",
    "ready": "ready",
    "busy": "busy",
    "draining": "draining",
    "killing": "backoff",
    "backoff": "backoff",
    "open": "breaker_open",
    "disabled": "disabled",
}


class FileStatusBoard:
    """Implements `watcher.ports.StatusBoard` on `state_dir/status.json`."""

    def __init__(self, state_dir: Path, clock: Clock, *, engine: str, device: str) -> None:
        self._file = StatusFile(state_dir)
        self._clock = clock
        self._engine = engine
        self._device = device
        self._started = utc_text(clock.now().wall_s)
        self._failed = False

    def write(self, snapshot: JsonObject, *, running: bool) -> None:
        """See the port."""
        try:
            self._file.write(self._status(cast("Mapping[str, Any]", snapshot), running=running))
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.write("warning", "status.failed", {"reason": str(error)})
            self._failed = True

    def _status(self, snapshot: Mapping[str, Any], *, running: bool) -> Status:
        worker = snapshot["worker"]
        return Status(
            pid=os.getpid(),
            version=__version__,
            state=_service_state(snapshot) if running else "stopped",
            started=self._started,
            written=utc_text(self._clock.now().wall_s),
            worker=WorkerStatus(
                state=_WORKER_STATES[worker["state"]] if running else "none",
                engine=_columns(worker["engine"], self._engine),
                device=_columns(worker["device"], self._device),
                pid=worker["pid"] if running else None,
                incarnation=(worker["incarnation"] or None) if running else None,
                restarts=worker["restarts"],
                trouble=worker["trouble"],
            ),
            path=snapshot["path"] or "none",
            path_reason=snapshot["path_reason"] or "",
            blocked=snapshot["blocked"] if running else None,
            counts={**snapshot["jobs"], **snapshot["finished"]},
            last_job=_last_job(snapshot["last"]),
        )


def _service_state(snapshot: Mapping[str, Any]) -> ServiceState:
    if snapshot["draining"] is not None:
        return "draining"
    states: Mapping[str, ServiceState] = {"lost": "inbox_lost", "watched": "watching", "listing": "starting"}
    return states[snapshot["inbox"]]


def _columns(facts: Mapping[str, Any] | None, configured: str) -> Columns:
    if facts is None:
        return Columns(configured=configured)
    return Columns(configured=facts["configured"], actual=facts["actual"], reason=facts["reason"])


def _last_job(record: Mapping[str, Any] | None) -> LastJob | None:
    if record is None:
        return None
    return LastJob(
        job=record["job"],
        source=record["source"],
        outcome=record["outcome"],
        ts=record["ts"],
        output=record["output"],
        path=record["path"],
        total_ms=record["total_ms"],
    )
