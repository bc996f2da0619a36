"""`python -m watcher.worker.preview`: what would go from one picture, without filling it.

Rules of this module:
- One request on stdin, one answer on stdout, then the end: a process for each picture, like every other that
  reads one, so that a hostile file takes down nothing else.
- It looks with the same code as the worker (`marking`, `masks`, `crops`), and loads no engine.
- Everything is told and drawn as a person sees the picture.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from PIL import Image

from watcher.wire import (
    CropFacts,
    Previewed,
    PreviewRefused,
    decode_preview_request,
    encode,
)
from watcher.worker.imaging.crops import plan_crops
from watcher.worker.imaging.decode import load_pixels, open_picture
from watcher.worker.imaging.files import read_file
from watcher.worker.imaging.masks import grow_and_tell
from watcher.worker.imaging.orientation import to_viewed, viewed_box
from watcher.worker.imaging.overlay import overlay
from watcher.worker.imaging.refusals import IncompleteError, RefusedError, quoted
from watcher.worker.imaging.rgb import rgb_of
from watcher.worker.lifeline import prepare_process
from watcher.worker.marking import FILE_WORDS, MarkFile, find_mark, reason_unmarked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from watcher.wire import MarkSource, PreviewRequest
    from watcher.worker.imaging.crops import CropPlan
    from watcher.worker.imaging.picture import Picture, Pixels
    from watcher.worker.marking import Marked

    Mask = NDArray[np.bool_]

_QUALITY = 90
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""What a preview is written as, by its suffix. The command line offers the same."""
_PNG_LEVEL = 1
"""Looked at once: of 12 megapixels a level-1 PNG takes 1.5 s, one of the default level 2.8 s."""


def preview(request: PreviewRequest) -> Previewed | PreviewRefused:
    """Find what would go and, if something would, write the picture with it laid over."""
    try:
        return _preview(request)
    except RefusedError as refusal:
        return PreviewRefused(code=refusal.code, reason=quoted(refusal.reason), remedy=refusal.remedy)
    except IncompleteError as incomplete:
        remedy = "wait until it is complete, or restore it from a good copy"
        return PreviewRefused(code="incomplete", reason=quoted(incomplete.reason), remedy=remedy)
    except _NotWrittenError as error:
        remedy = "name another place with -o, or free space there"
        return PreviewRefused(code="not_written", reason=quoted(str(error)), remedy=remedy)
    except MemoryError:
        reason = "there was not enough memory for this picture"
        return PreviewRefused(code="too_large", reason=reason, remedy="make the picture smaller")


def _preview(request: PreviewRequest) -> Previewed:
    source = read_file(request.source, None, max_bytes=request.limits.max_file_bytes)
    picture = open_picture(source.data, max_pixels=request.limits.max_pixels)
    pixels = load_pixels(picture)
    picture.check_whole()
    in_vain: list[str] = []
    for path, file in _mark_files(request):
        marked = find_mark(picture, pixels, request.marking, file, request.limits)
        if marked is not None:
            told = _with_mark(request, picture, pixels, marked)
            from_file = file is not None and file.kind == marked.source
            return msgspec.structs.replace(told, mark_file=path if from_file else None)
        reason = reason_unmarked(request.marking, file)
        in_vain += [] if reason is None else [reason]
    return _told(picture, notes=tuple(in_vain))


def _mark_files(request: PreviewRequest) -> Iterator[tuple[str | None, MarkFile | None]]:
    """Read the mark files one by one; where there are none, there is still the picture itself."""
    for kind, path in request.mark_files:
        read = read_file(path, None, max_bytes=request.limits.max_file_bytes, what=FILE_WORDS[kind])
        yield path, MarkFile(kind, read.data)
    if not request.mark_files:
        yield None, None


def _told(picture: Picture, *, marks: MarkSource | None = None, notes: tuple[str, ...] = ()) -> Previewed:
    width, height = picture.viewed_size
    notes = tuple(quoted(note) for note in notes)
    return Previewed(format=picture.container, width=width, height=height, marks=marks, notes=notes)


def _with_mark(request: PreviewRequest, picture: Picture, pixels: Pixels, marked: Marked) -> Previewed:
    if not marked.mask.any():
        return _told(picture, marks=marked.source, notes=(marked.why_empty,))
    hole, grow_px = grow_and_tell(marked.mask, request.marking.grow_px)
    plans = plan_crops(hole, crop_pixels=request.limits.crop_pixels)
    crops = tuple(_crop_facts(plan, picture) for plan in plans)
    _write(request.output, _drawn(picture, pixels, marked.mask, hole, crops))
    return msgspec.structs.replace(
        _told(picture, marks=marked.source, notes=marked.notes),
        mark_px=int(np.count_nonzero(marked.mask)),
        hole_px=int(np.count_nonzero(hole)),
        grow_px=grow_px,
        crops=crops,
        output=request.output,
    )


def _crop_facts(plan: CropPlan, picture: Picture) -> CropFacts:
    stored = (plan.box.left, plan.box.top, plan.box.right, plan.box.bottom)
    box = viewed_box(stored, picture.orientation, (picture.width, picture.height))
    left, top, right, bottom = box
    return CropFacts(left=left, top=top, width=right - left, height=bottom - top, scale=round(plan.scale, 3))


def _drawn(
    picture: Picture, pixels: Pixels, mark: Mask, hole: Mask, crops: Sequence[CropFacts]
) -> NDArray[np.uint8]:
    def viewed(stored: Any) -> Any:  # noqa: ANN401 - an array of any type, and the same again
        return to_viewed(stored, picture.orientation)

    alpha = picture.alpha(pixels)
    clear = None if alpha is None else viewed(alpha == 0)
    boxes = [(crop.left, crop.top, crop.left + crop.width, crop.top + crop.height) for crop in crops]
    return overlay(viewed(rgb_of(picture, pixels)), viewed(mark), viewed(hole), boxes, clear)


def _write(path: str, rgb: NDArray[np.uint8]) -> None:
    """Write beside the place and rename: nobody sees half a preview."""
    container = FORMATS[os.path.splitext(path)[1].lower()]  # noqa: PTH122 - the path may hold surrogates
    part = f"{path}.part"
    options: dict[str, Any] = {"PNG": {"compress_level": _PNG_LEVEL}}.get(container, {"quality": _QUALITY})
    try:
        with open(part, "wb") as file:  # noqa: PTH123 - as above
            Image.fromarray(rgb).save(file, container, **options)
        os.replace(part, path)  # noqa: PTH105 - as above
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)  # noqa: PTH108 - as above
        raise _NotWrittenError(f"the preview cannot be written: {error.strerror or error}") from error


class _NotWrittenError(Exception):
    """The preview has no place."""


def main() -> int:
    """Answer the request on stdin; returns the exit code."""
    prepare_process()
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not speak in between
    answer = preview(decode_preview_request(sys.stdin.buffer.readline()))
    with os.fdopen(answers, "wb") as stream:
        stream.write(encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
