"""One item from its path to its report: read, decode, find the mark, fill, composite, encode, stage.

Rules of this module:
- Whatever happens to an item becomes exactly one final report; no item ends the batch, unless the process can
  go on with none: the device is lost, or its memory is too small for one crop.
- Time is counted by one `PhaseClock`. Each phase and crop that is over is reported as progress, with its
  time, and with what begins and how much that has to do: the times of all reports tile the item.
- How much a phase has to do is told in what its time goes by. A picture's header is read in `read`, so that
  `decode` can be told in bytes of pixels (a plain picture of 200 megapixels is a file of 600 kB). Engines
  measure crops themselves: patchmatch takes 10 ms or 9 s for one of 512 x 512. A phase that finds nothing to
  do is told as 0, lest its short times pass for those of work.
- The picture's pixels are not decoded while nothing says that something in them is marked.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from watcher.wire import (
    ImageFacts,
    ItemDone,
    ItemFailed,
    ItemHeld,
    ItemIncomplete,
    ItemProgressed,
    ItemStarted,
)
from watcher.worker.engines.protocol import DeviceLostError, DeviceMemoryError, FillError
from watcher.worker.filling import fill_within_memory
from watcher.worker.imaging import detail
from watcher.worker.imaging.blending import fill_share, levelled
from watcher.worker.imaging.composite import canvas_for
from watcher.worker.imaging.crops import cut, cut_mask, plan_crops, uncut, waves
from watcher.worker.imaging.decode import load_pixels, open_picture
from watcher.worker.imaging.files import read_file, stage
from watcher.worker.imaging.masks import grow
from watcher.worker.imaging.picture import Encoding
from watcher.worker.imaging.refusals import IncompleteError, RefusedError, quoted, quoted_names
from watcher.worker.marking import FILE_WORDS, MarkFile, find_mark, may_be_marked, reason_unmarked
from watcher.worker.phases import PhaseClock
from watcher.worker.plausibility import nonsense_in
from watcher.worker.usage import rss_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from numpy.typing import NDArray

    from watcher.wire import (
        FailureCode,
        FromWorker,
        Item,
        ItemTimes,
        Limits,
        MarkSource,
        Phase,
        WorkSegments,
    )
    from watcher.worker.engines.protocol import Crop, Engine
    from watcher.worker.faults import Faults
    from watcher.worker.filling import Judge
    from watcher.worker.imaging.composite import Canvas
    from watcher.worker.imaging.crops import CropPlan
    from watcher.worker.imaging.files import SourceFile
    from watcher.worker.imaging.picture import Picture, Pixels
    from watcher.worker.marking import Marked

    Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Hole:
    """What is to go, and what is filled for it: bool, (height, width), stored orientation."""

    mark: Mask
    grown: Mask


@dataclass(slots=True)
class _Course:
    """What is known of an item while it is served."""

    item: Item
    batch: str
    received_ns: int
    clock: PhaseClock = field(default_factory=PhaseClock)
    source: SourceFile | None = None
    mark_file: SourceFile | None = None
    image: ImageFacts | None = None

    @property
    def picture_px(self) -> int:
        """Pixels of the picture, or 0 while its header was not read."""
        return 0 if self.image is None else self.image.width * self.image.height


@dataclass(slots=True)
class _Fill:
    """What was filled so far, and how.

    Attributes:
        plans: of the crops that ran.
        without_detail: how many of them were filled coarsely, with too little around to take detail from.
    """

    plans: list[CropPlan] = field(default_factory=list)
    without_detail: int = 0

    def at_native_scale(
        self, canvas: Canvas, plan: CropPlan, crop: Crop, result: NDArray[np.uint8], hole: Mask
    ) -> NDArray[np.uint8]:
        """Bring an engine's result to its box: uint8, (height, width, 3). `hole` is the box's own."""
        transparent = canvas.clear(plan.box)
        clear = None if transparent is None else cut_mask(transparent, plan)
        tuned = levelled(crop, result, clear)
        if plan.scale == 1:
            return uncut(tuned, plan)
        fine = detail.enlarged(canvas.rgb(plan.box, hole), crop, tuned, clear)
        self.without_detail += not fine.is_detailed
        return fine.rgb


class ItemServer:
    """Serves items with one engine."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        report: Callable[[FromWorker], None],
        faults: Faults,
        judge: Judge = nonsense_in,
    ) -> None:
        self._engine = engine
        self._judge = judge
        self.limits = limits
        self._report = report
        self._faults = faults

    def serve(self, batch: str, item: Item, received_ns: int) -> int:
        """Serve an item, send exactly one final report for it and return the pixels of the filled picture.

        Raises:
            DeviceLostError: the process must end; the item has no report.
            DeviceMemoryError: the item was reported as `device_memory`, and the process must end.
        """
        course = _Course(item, batch, received_ns)
        self._report(ItemStarted(batch=batch, job=item.job))
        try:
            self._faults.at_item_start(batch, item)
            self._enter(course, "read", _file_bytes(item))
            report = self._work(course)
        except IncompleteError as incomplete:
            report = self._incomplete(course, incomplete.reason)
        except RefusedError as refusal:
            report = self._failed(course, refusal.code, refusal.reason, refusal.remedy)
        except DeviceLostError:
            raise  # this process cannot serve anything any more: the loop ends it
        except DeviceMemoryError as error:
            self._report(
                self._failed(
                    course,
                    "device_memory",
                    f"a part of it does not fit into the device's memory: {error}",
                    "nothing to do: it is served on the CPU; if it happens often, free memory on the device",
                )
            )
            raise  # what the device still holds is not to be trusted: the loop ends the process
        except FillError as error:
            report = self._failed(
                course, "engine", f"the engine could not fill it: {error}", "run: watcher retry --all"
            )
        except MemoryError:
            report = self._failed(
                course,
                "engine",
                "there was not enough memory for this picture",
                "free some memory or make the picture smaller, then run: watcher retry --all",
            )
        except Exception as error:  # noqa: BLE001 - no item may end the batch; the stack goes to the log
            traceback.print_exc(file=sys.stderr)
            report = self._failed(
                course,
                "engine",
                f"an unexpected error while in phase {course.clock.phase}: {type(error).__name__}: {error}",
                "run: watcher retry --all; if it comes back, report it with the worker's log",
            )
        self._report(report)
        return report.image.width * report.image.height if isinstance(report, ItemDone) else 0

    # --- reports -------------------------------------------------------------------------------------------

    def _incomplete(self, course: _Course, reason: str) -> FromWorker:
        segments, times = self._finish(course)
        return ItemIncomplete(
            batch=course.batch, job=course.item.job, reason=quoted(reason), segments=segments, times=times
        )

    def _failed(self, course: _Course, code: FailureCode, reason: str, remedy: str) -> FromWorker:
        segments, times = self._finish(course)
        return ItemFailed(
            batch=course.batch,
            job=course.item.job,
            code=code,
            reason=quoted(reason),
            remedy=remedy,
            image=course.image,
            segments=segments,
            times=times,
        )

    def _held(self, course: _Course, image: ImageFacts, reason: str | None) -> FromWorker:
        segments, times = self._finish(course)
        return ItemHeld(
            batch=course.batch,
            job=course.item.job,
            reason=reason,
            image=image,
            segments=segments,
            times=times,
        )

    def _enter(self, course: _Course, phase: Phase, units: int, *, crop: int | None = None) -> None:
        """Go on to the next phase or crop; what is over is proof of life.

        Args:
            course: of the item.
            phase: what begins.
            units: how much it has to do, as `ItemProgressed` counts it.
            crop: which crop is over.
        """
        self._faults.before_lap_ends(course.clock)
        over = course.clock.phase
        spent_ns = course.clock.enter(phase)
        self._report(
            ItemProgressed(
                batch=course.batch,
                job=course.item.job,
                phase=over,
                spent_ns=spent_ns,
                next=phase,
                units=units,
                format=None if course.image is None else course.image.format,
                crop=crop,
            )
        )
        self._faults.in_phase(phase)

    def _finish(self, course: _Course) -> tuple[WorkSegments, ItemTimes]:
        """Close the last phase; what comes after is no work of the item."""
        self._faults.before_lap_ends(course.clock)
        return course.clock.finish(course.received_ns)

    # --- the course of an item -----------------------------------------------------------------------------

    def _work(self, course: _Course) -> FromWorker:
        item = course.item
        source = read_file(item.source, item.sha256, max_bytes=self.limits.max_file_bytes)
        course.source = source
        mark_file = self._read_mark_file(course)
        picture = open_picture(source.data, max_pixels=self.limits.max_pixels, fresh=source.fresh)
        image = ImageFacts(format=picture.container, width=picture.width, height=picture.height)
        course.image = image
        worth_decoding = may_be_marked(picture, item.marking, mark_file)
        self._enter(course, "decode", picture.pixel_bytes if worth_decoding else 0)
        pixels = load_pixels(picture) if worth_decoding else None
        self._enter(course, "mask", course.picture_px if worth_decoding else 0)
        marked = None
        if pixels is not None:
            marked = find_mark(picture, pixels, item.marking, mark_file, self.limits)
        if marked is None or pixels is None:
            return self._unmarked(course, image, reason_unmarked(item.marking, mark_file))
        if not marked.mask.any():
            return self._unchanged(course, marked.source, marked.why_empty)
        return self._fill(course, picture, pixels, marked)

    def _read_mark_file(self, course: _Course) -> MarkFile | None:
        item, kind = course.item, course.item.mark_file_kind
        if item.mark_file is None or kind is None or kind not in item.marking.sources:
            return None
        course.mark_file = self._read_beside(item.mark_file, item.mark_file_sha256, FILE_WORDS[kind])
        return MarkFile(kind, course.mark_file.data)

    def _read_beside(self, path: str, sha256: str | None, what: str) -> SourceFile:
        try:
            return read_file(path, sha256, max_bytes=self.limits.max_file_bytes, what=what)
        except RefusedError as refusal:
            code: FailureCode = {"undecodable": "mask_undecodable"}.get(refusal.code, refusal.code)  # type: ignore[assignment]  # a subset of the codes
            raise RefusedError(code, refusal.reason, refusal.remedy) from refusal

    def _unmarked(self, course: _Course, image: ImageFacts, looked_in_vain: str | None) -> FromWorker:
        if course.item.unmarked == "hold":
            return self._held(course, image, looked_in_vain)
        return self._unchanged(course, None, looked_in_vain or "nothing marked")

    def _unchanged(self, course: _Course, marks: MarkSource | None, reason: str) -> FromWorker:
        self._enter(course, "encode", 0)
        assert course.source is not None  # noqa: S101 - set before anything can be unchanged
        assert course.image is not None  # noqa: S101 - likewise
        course.image = msgspec.structs.replace(course.image, outside="identical")
        return self._done(course, "unchanged", marks, reason, course.source.data)

    def _fill(self, course: _Course, picture: Picture, pixels: Pixels, marked: Marked) -> FromWorker:
        hole = grow(marked.mask, course.item.marking.grow_px)
        self._enter(course, "preprocess", course.picture_px)
        plans = plan_crops(hole, crop_pixels=self.limits.crop_pixels)
        canvas = canvas_for(picture, pixels, hole, marked.reopen)
        fill = self._fill_crops(course, canvas, _Hole(marked.mask, hole), plans)
        result = canvas.finish()
        self._enter(course, "encode", picture.encode_work_px)
        encoded = picture.encode(result, Encoding(course.item.quality, course.item.keep_metadata))
        course.image = ImageFacts(
            format=picture.container,
            width=picture.width,
            height=picture.height,
            hole_px=int(np.count_nonzero(hole)),
            crops=len(fill.plans),
            model_px=sum(plan.model_px for plan in fill.plans),
            outside=encoded.outside,
            dropped_metadata=quoted_names(encoded.dropped_metadata),
        )
        notes = [note for note in (*marked.notes, _coarse_note(fill), encoded.note) if note is not None]
        return self._done(course, "done", marked.source, "; ".join(notes) or None, encoded.data)

    def _fill_crops(self, course: _Course, canvas: Canvas, hole: _Hole, plans: list[CropPlan]) -> _Fill:
        """Fill wave by wave; a later wave sees the fill of an earlier one."""
        remaining = hole.grown.copy()
        fill = _Fill()
        for wave in waves(plans):
            todo = [plan for plan in wave if remaining[plan.core.slices].any()]
            if not todo:
                continue
            if course.clock.phase != "preprocess":
                self._enter(course, "preprocess", course.picture_px)
            crops = [
                cut(canvas.rgb(plan.box, part), part, plan)
                for plan in todo
                for part in (remaining[plan.box.slices],)
            ]
            results = self._run_engine(course, crops, todo, first=len(fill.plans))
            for plan, crop, result in zip(todo, crops, results, strict=True):
                rgb = fill.at_native_scale(canvas, plan, crop, result, remaining[plan.box.slices])
                where = np.zeros((plan.box.height, plan.box.width), np.bool_)
                inner = plan.core.within(plan.box).slices
                where[inner] = remaining[plan.core.slices]
                canvas.paste(plan.box, where, rgb, fill_share(hole.mark, hole.grown, plan.box))
                remaining[plan.core.slices] = False
            fill.plans += todo
        return fill

    def _run_engine(
        self, course: _Course, crops: Sequence[Crop], plans: Sequence[CropPlan], *, first: int
    ) -> list[NDArray[np.uint8]]:
        """Go through `inference` and on to `composite`; `first` is the first crop's number in the picture."""

        def told(over: int | None, begins: int) -> None:
            number = None if over is None else first + over
            self._enter(course, "inference", self._engine.work_px(crops[begins]), crop=number)

        self._enter(course, "inference", self._engine.work_px(crops[0]))
        results = fill_within_memory(self._engine, crops, told, self._judge)
        detail_px = sum(
            detail.work_px(plan, crop) for plan, crop in zip(plans, crops, strict=True) if plan.scale < 1
        )
        self._enter(course, "composite", course.picture_px + detail_px, crop=first + len(crops) - 1)
        return results

    def _done(
        self,
        course: _Course,
        outcome: Literal["done", "unchanged"],
        marks: MarkSource | None,
        reason: str | None,
        data: bytes,
    ) -> FromWorker:
        item = course.item
        assert course.source is not None  # noqa: S101 - read before anything can be done
        assert course.image is not None  # noqa: S101 - likewise
        sha256_out = stage(os.path.join(item.staging, item.stage_name), data, course.source)  # noqa: PTH118 - surrogates
        engine, device, rss = self._engine.facts(), self._engine.device(), rss_bytes()
        segments, times = self._finish(course)
        return ItemDone(
            batch=course.batch,
            job=item.job,
            outcome=outcome,
            reason=reason,
            marks=marks,
            sha256_in=course.source.sha256,
            mark_file_sha256_in=None if course.mark_file is None else course.mark_file.sha256,
            sha256_out=sha256_out,
            size_bytes=len(data),
            image=course.image,
            engine=engine,
            device=device,
            segments=segments,
            times=times,
            rss_bytes=rss,
            model_loads=self._engine.model_loads,
        )


def _file_bytes(item: Item) -> int:
    """Return how much there is to read; a file that is not there is nothing, and the reading will tell."""
    paths = [item.source] if item.mark_file is None else [item.source, item.mark_file]
    size_bytes = 0
    for path in paths:
        with suppress(OSError):
            size_bytes += os.stat(path).st_size  # noqa: PTH116 - surrogates
    return size_bytes


def _coarse_note(fill: _Fill) -> str | None:
    """Say which holes were too large for native scale, or nothing."""
    coarse = [plan for plan in fill.plans if plan.scale < 1]
    if not coarse:
        return None
    worst = min(coarse, key=lambda plan: plan.scale)
    size = f"{worst.scale:.0%} of its size ({worst.box.width}x{worst.box.height} px)"
    if fill.without_detail == len(coarse):
        how = "and are blurred: there is too little around them to take detail from"
    elif fill.without_detail:
        how = f"with detail from around them ({fill.without_detail} without)"
    else:
        how = "with detail from around them"
    return (
        f"{len(coarse)} of {len(fill.plans)} crops exceeded the crop budget and were filled coarsely, {how}; "
        f"the coarsest at {size}"
    )
