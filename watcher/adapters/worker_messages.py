"""Between the core's words and the wire's: jobs to items, reports to events.

Rules of this file:
- A table each way; nothing is decided and nothing is kept.
- `Hello` and `Fatal` are no events: whoever listens to the process takes them in.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from watcher import wire
from watcher.core import events as e
from watcher.core.pairing import mark_file_kind
from watcher.regions import region_from

if TYPE_CHECKING:
    from pathlib import Path

    from watcher.core.commands import BatchItem
    from watcher.core.job import JsonObject
    from watcher.core.policy import Recipe


def wire_item(item: BatchItem, *, inbox: Path, staging: str) -> wire.Item:
    """What a worker is told of one job."""
    job, recipe = item.job, item.recipe
    return wire.Item(
        job=job.id,
        source=os.path.join(inbox, job.source),  # noqa: PTH118 - a name may not be UTF-8 and stays a str
        sha256=job.identity.picture_sha256,
        mark_file=os.path.join(inbox, job.mask) if job.mask is not None else None,  # noqa: PTH118 - as above
        mark_file_kind=mark_file_kind(job.mask) if job.mask is not None else None,
        mark_file_sha256=job.identity.mask_sha256,
        staging=staging,
        stage_name=item.stage_name,
        recipe=recipe.name,
        marking=marking(recipe),
        unmarked=recipe.unmarked,
        quality=recipe.quality,
        keep_metadata=recipe.keep_metadata,
    )


def marking(recipe: Recipe) -> wire.Marking:
    """How a recipe's pictures are marked."""
    return wire.Marking(
        sources=cast("tuple[wire.MarkSource, ...]", recipe.marks),
        grow_px=recipe.grow_px,
        invert=recipe.invert,
        colour=recipe.colour,
        regions=tuple(region_from(region) for region in recipe.regions),
        region_mask=recipe.region_mask,
    )


def event_of(message: wire.FromWorker, origin: e.Origin, received_ns: int) -> e.Event:  # noqa: C901, PLR0911 - a table
    """The event that a report is.

    Raises:
        WireError: the message is none.
    """
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
                message.format or "",
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
            report = _work_report(message, received_ns)
            return e.ItemHeld(origin, message.batch, message.job, report, message.reason)
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
            return e.BatchDone(
                origin, message.batch, message.rss_bytes, message.open_files, message.given_back
            )
        case _:
            raise wire.WireError(f"{type(message).__name__} is no event")


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
        model_loads=message.model_loads,
    )
