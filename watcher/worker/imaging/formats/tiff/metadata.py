"""TIFF: what would still show what was removed, taken out of a file that is edited in place.

Rules of this module:
- Smaller copies of the picture, Photoshop's thumbnails and layers, XMP's thumbnails and every JPEG in between
  are zeroed where they lie and named; nothing else is touched.
- What the picture itself needs (its directory, its structure, its pieces, its profile) is never searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.jpeg.layout import jpeg_layout
from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.spans import gaps, spans_of, without
from watcher.worker.imaging.formats.tiff.structure import (
    inner_directories,
    jpeg_spans,
    needed_spans,
    own_ranges,
    piece_spans,
)
from watcher.worker.imaging.metadata import (
    JPEG_START,
    UNREADABLE,
    photoshop_without_thumbnails,
    xmp_without_pictures,
)
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watcher.worker.imaging.formats.tiff.edit import TiffEdit
    from watcher.worker.imaging.formats.tiff.spans import Spans
    from watcher.worker.imaging.formats.tiff.structure import TiffStructure
    from watcher.worker.imaging.ifd import Ifd

_MIN_JPEG_BYTES = 100
_MAX_JPEG_BYTES = 1 << 25
_MAX_FALSE_STARTS = 256
"""So many beginnings of a JPEG that is none are looked at: chance makes one in 16 MB."""


def remove_pictures(edit: TiffEdit, data: bytes, structure: TiffStructure, pieces: Spans) -> tuple[str, ...]:
    """Take every embedded picture of the picture out of an edited file.

    Args:
        edit: the edited file.
        data: as it was.
        structure: its directories.
        pieces: where the picture's own pixels lay.

    Returns:
        The names of what was taken out.
    """
    dropped: list[str] = []
    ifd = structure.ifd
    if structure.copies:
        _erase_copies(edit, data, structure, pieces)
        if tags.SUB_IFDS in ifd.entries:
            edit.remove(tags.SUB_IFDS)
        dropped.append("TIFF thumbnail")
    for tag in (tags.LAYERS, tags.CONTENT_CREDENTIALS):
        if tag in ifd.entries:
            edit.remove(tag)
            dropped.append(tags.name_of(tag))
    _replace(edit, data, ifd, tags.XMP, lambda value: xmp_without_pictures(value, dropped))
    _replace(edit, data, ifd, tags.PHOTOSHOP, lambda value: _photoshop(value, dropped))
    if tags.JPEG_OFFSET in edit.tags:
        _erase_preview(edit, data, ifd, pieces)
        dropped.append("embedded preview")
    if _erase_jpegs(edit, data, structure, pieces):
        dropped.append("embedded preview")
    return tuple(dict.fromkeys(dropped))


def _replace(edit: TiffEdit, data: bytes, ifd: Ifd, tag: int, clean: Callable[[bytes], bytes]) -> None:
    value = ifd.raw(data, tag)
    cleaned = clean(value)
    if cleaned != value:
        edit.set_bytes(tag, cleaned)


def _photoshop(value: bytes, dropped: list[str]) -> bytes:
    named: list[str] = []
    cleaned = photoshop_without_thumbnails(value, named)
    block = bytearray(cleaned if named else value)
    for start, stop in _jpegs(bytes(block), 0, len(block), _Budget()):
        block[start:stop] = bytes(stop - start)
        named.append("Photoshop preview")
    dropped += named
    return bytes(block)


def _erase_copies(edit: TiffEdit, data: bytes, structure: TiffStructure, pieces: Spans) -> None:
    edit.unlink()
    kept = np.concatenate([needed_spans(data, structure.ifd), pieces])
    for start, stop in without(_copy_spans(data, structure), kept, len(data)).tolist():
        edit.erase(start, stop)


def _erase_preview(edit: TiffEdit, data: bytes, ifd: Ifd, pieces: Spans) -> None:
    """Take out a JPEG that the picture's own directory has besides the picture."""
    kept = np.concatenate([needed_spans(data, ifd), pieces])
    for start, stop in without(jpeg_spans(data, ifd), kept, len(data)).tolist():
        edit.erase(start, stop)
    for tag in tags.OLD_JPEG & edit.tags:
        edit.remove(tag)


def _copy_spans(data: bytes, structure: TiffStructure) -> Spans:
    spans = [spans_of([])]
    for copy in structure.copies:
        spans += [spans_of(own_ranges(copy)), piece_spans(data, copy), jpeg_spans(data, copy)]
    return np.concatenate(spans)


def _erase_jpegs(edit: TiffEdit, data: bytes, structure: TiffStructure, pieces: Spans) -> int:
    """Zero every whole JPEG that lies in nothing that the picture needs, or that was cleaned before."""
    ifd = structure.ifd
    seen = tags.STRUCTURE | tags.LOOKS | tags.NAMES.keys() | {tags.XMP, tags.PHOTOSHOP}
    values = [(entry.offset, entry.offset + entry.size) for tag, entry in ifd.entries.items() if tag in seen]
    directories = [directory.span for directory in (ifd, *inner_directories(data, ifd))]
    kept = [spans_of([(0, 8), *values, *directories]), pieces]
    between = gaps(np.concatenate([*kept, _copy_spans(data, structure)]), len(data))
    between = between[between[:, 1] - between[:, 0] >= _MIN_JPEG_BYTES]
    found, budget = 0, _Budget()
    for start, stop in between.tolist():
        for first, last in _jpegs(data, start, stop, budget):
            edit.erase(first, last)
            found += 1
    return found


class _Budget:
    """How many beginnings of a JPEG may still turn out to be none."""

    def __init__(self) -> None:
        self.left = _MAX_FALSE_STARTS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RefusedError(
                "unsupported",
                "this TIFF holds data that looks like very many pictures, and what they show cannot be told",
                "export it as a plain TIFF and drop that",
            )


def _jpegs(data: bytes, start: int, stop: int, budget: _Budget) -> Iterator[tuple[int, int]]:
    """Yield where whole JPEGs lie in a range."""
    while (start := data.find(JPEG_START, start, stop)) >= 0:
        try:
            end = start + jpeg_layout(data[start : min(stop, start + _MAX_JPEG_BYTES)]).end
        except UNREADABLE:
            budget.spend()
            start += 1
            continue
        yield start, end
        start = end
