"""The record: one JSON object a finished job, complete from the first line (fields: docs/RECORDS.md).

Rules of this file:
- A record says what ran, not what was configured; `configured` stands beside `actual`, and a fact that nobody
  saw is null.
- A record is drafted when a worker reports and completed when the job ends, so that a crash in between loses
  none of it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from watcher.core.timeline import SEGMENTS, arrival_chain, empty_chain, finished_segments, work_chain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from watcher.core.events import Instant, Origin, WorkReport
    from watcher.core.job import Job, JsonObject, JsonValue
    from watcher.core.policy import Policy

SCHEMA: Final = 1
NO_IMAGE: Final[JsonObject] = {
    "format": None,
    "width": None,
    "height": None,
    "hole_px": None,
    "crops": None,
    "model_px": None,
    "sha256_in": None,
    "sha256_out": None,
    "outside": None,
    "dropped_metadata": [],
}


@dataclass(frozen=True, slots=True)
class Served:
    """How a job was served: what the record takes from its flight.

    Attributes:
        origin: the process that served it.
        path_reason: why the path was taken.
        first_hot: the first item of a fresh resident worker.
        batch: the micro-batch and its size.
        start_ns: start segments of the process where the job owns them (cold), else None.
        ready_ns: when that process was ready.
        cold_estimate_s: what a one-shot for this job alone was taken to need, where one was started.
    """

    origin: Origin
    path_reason: str
    first_hot: bool
    batch: str
    batch_size: int
    start_ns: Mapping[str, int] | None
    ready_ns: int | None
    cold_estimate_s: float | None = None


def utc_text(wall_s: float) -> str:
    """Format seconds since the epoch as `2026-01-31T10:00:00.123Z`."""
    text = datetime.fromtimestamp(wall_s, tz=UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def unix_us(now: Instant, at_ns: int) -> int:
    """An instant of the monotonic clock in microseconds since 1970, by two clocks that were read together."""
    return round(now.wall_s * 1e6) - round((now.mono_ns - at_ns) / 1e3)


def is_what_was_asked(configured: str, actual: str) -> bool:
    """Whether an engine or device is the configured one: `auto` asks for any, `cuda` for any of its kind."""
    return configured in {"auto", actual} or actual.startswith(f"{configured}:")


def printable(path: str) -> str:
    """Return the path with every byte that is not UTF-8 written as an escape."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def path_fields(key: str, path: str) -> dict[str, JsonValue]:
    """The fields of a path: `key`, and `key_b64` beside it where the name is not UTF-8."""
    raw = path.encode("utf-8", "surrogateescape")
    fields: dict[str, JsonValue] = {key: printable(path)}
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        fields[f"{key}_b64"] = base64.b64encode(raw).decode("ascii")
    return fields


def draft(job: Job, served: Served, report: WorkReport, policy: Policy) -> JsonObject:
    """Everything that is known when the worker has reported; `finish` takes its `_ns` fields out again."""
    clock = job.clock
    chain = (
        work_chain(clock, report, served.start_ns, served.ready_ns) if clock is not None else empty_chain()
    )
    fields = _head(job, policy)
    fields.update(
        marks=report.marks,
        batch=served.batch,
        batch_size=served.batch_size,
        path=served.origin.path,
        path_reason=served.path_reason,
        cold_estimate_ms=None if served.cold_estimate_s is None else round(served.cold_estimate_s * 1e3, 3),
        first_hot=served.first_hot,
        worker={
            "pid": served.origin.pid,
            "incarnation": served.origin.incarnation,
            "host": served.origin.host,
            "rss_bytes": report.rss_bytes,
            "model_loads": report.model_loads,
        },
    )
    if report.engine is not None:
        fields["engine"] = report.engine
    if report.device is not None:
        fields["device"] = report.device
    image: dict[str, JsonValue] = {**NO_IMAGE, **(report.image or {})}
    image["sha256_in"] = report.sha256_in or job.identity.picture_sha256
    image["sha256_out"] = report.sha256_out
    fields["image"] = image
    fields["chain_ns"] = dict(chain)
    fields["received_ns"] = report.received_ns
    fields["clock"] = {
        "served_ms": round((report.finished_ns - report.started_ns) / 1e6, 3),
        "ipc_back_ms": round((report.received_ns - report.finished_ns) / 1e6, 3),
    }
    return fields


def draft_copy(job: Job, primary_record: JsonObject | None, policy: Policy, begun_ns: int) -> JsonObject:
    """The record of a job that gets a copy of another job's result: no model ran.

    What lies before `begun_ns`, when the copy was begun, was spent waiting for that result.
    """
    fields = _head(job, policy)
    if primary_record is not None:
        fields["marks"] = primary_record.get("marks")
        fields["image"] = primary_record.get("image", NO_IMAGE)
    engine = cast("dict[str, JsonValue]", fields["engine"])
    engine["reason"] = f"copy of the result of job {job.duplicate_of}"
    clock = job.clock
    if clock is not None:
        fields["chain_ns"] = dict(arrival_chain(clock, begun_ns))
        fields["received_ns"] = begun_ns
    return fields


def finish(
    job: Job, drafted: JsonObject | None, policy: Policy, now: Instant, ended_ns: int, *, run: int = 0
) -> JsonObject:
    """Complete a record: outcome, output, segments and total.

    Args:
        job: in its final state.
        drafted: what `draft` gave, or None for a job that no worker reported on.
        policy: for the configured columns of such a job.
        now: for the record's `ts`.
        ended_ns: when the folder was synced, or the job's end was decided.
        run: which start of the service ends it.
    """
    fields: dict[str, JsonValue] = dict(drafted) if drafted is not None else _head(job, policy)
    chain = cast("dict[str, int] | None", fields.pop("chain_ns", None))
    received_ns = cast("int | None", fields.pop("received_ns", None))
    clock = job.clock
    if chain is None:
        chain = arrival_chain(clock, ended_ns) if clock is not None else empty_chain()
    if clock is not None:
        if received_ns is not None:
            chain["publish"] = max(0, ended_ns - received_ns)
        total_ns = ended_ns - clock.observed_ns
    else:  # its instants died with the process that took them (see rescue): what is known adds up
        fields["rescued"] = True
        total_ns = sum(chain.values())
    segments, total_ms = finished_segments({name: chain.get(name, 0) for name in SEGMENTS}, total_ns)
    fields.update(ts=utc_text(now.wall_s), outcome=job.state.value, reason=job.reason)
    if job.has_result:
        fields["after"] = policy.after
    if clock is not None and clock.resumed:
        fields["resumed"] = True
    fields.update(path_fields("output", job.output) if job.output is not None else {"output": None})
    fields["segments_ms"] = cast("JsonValue", segments)
    fields["total_ms"] = total_ms
    told = cast("JsonObject", fields.pop("clock", {}))
    fields["clock"] = {
        "run": run,
        "ended_ns": ended_ns,
        "ended_unix_us": unix_us(now, ended_ns),
        "served_ms": told.get("served_ms"),
        "ipc_back_ms": told.get("ipc_back_ms"),
    }
    return fields


def _head(job: Job, policy: Policy) -> dict[str, JsonValue]:
    """The fields that every record has, with null for what only a worker can know."""
    return {
        "schema": SCHEMA,
        "ts": None,
        "event": "job.finished",
        "job": job.id,
        **path_fields("source", job.source),
        "output": None,
        "outcome": job.state.value,
        "reason": job.reason,
        "duplicate_of": job.duplicate_of,
        "retry_of": job.retry_of,
        "attempt": job.attempts,
        "recipe": job.identity.recipe,
        "marks": None,
        "losses": [{key: told for key, told in loss.items() if key != "output"} for loss in job.losses],
        "batch": None,
        "batch_size": 0,
        "path": "none",
        "path_reason": None,
        "cold_estimate_ms": None,
        "first_hot": False,
        "worker": None,
        "engine": {
            "configured": policy.engine,
            "actual": None,
            "reason": None,
            "model_sha256": None,
        },
        "device": {
            "configured": policy.device,
            "available": [],
            "actual": None,
            "reason": None,
            "evidence": {
                "parameters": None,
                "output": None,
                "kernel_time_share": None,
                "fallback_ops": None,
            },
        },
        "image": {**NO_IMAGE, "sha256_in": job.identity.picture_sha256},
    }
