"""A TIFF's pixels out of its pieces, and the pieces that a hole touches with their filled pixels in.

Rules of this module:
- Of a piece that is written again only the samples inside the hole differ, whatever else a pixel has.
- Whatever lies in a written tile beyond the picture's edge becomes zero: writers repeat the edge there.
- It holds the pixels, and one piece at most besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watcher.worker.imaging.formats.tiff.codecs import BAND_BYTES, compressed, decompressed
from watcher.worker.imaging.formats.tiff.layout import UNCOMPRESSED
from watcher.worker.imaging.formats.tiff.samples import (
    divide_by_alpha,
    from_pixels,
    packed,
    pixel_type,
    to_pixels,
    unpacked,
)
from watcher.worker.imaging.refusals import IncompleteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.tiff.layout import TiffLayout
    from watcher.worker.imaging.picture import Filled, Pixels


# --- out ---------------------------------------------------------------------------------------------------


def read_pixels(data: bytes, layout: TiffLayout) -> Pixels:
    """Return all pixels in the layout's mode.

    Raises:
        IncompleteError: a piece lies beyond the end.
        RefusedError: a piece is broken (undecodable).
    """
    if layout.end > len(data):
        raise IncompleteError("the TIFF's picture data lies beyond the end of the file")
    count = len(layout.channels)
    planes = np.empty((layout.height, layout.width, count), pixel_type(layout))
    if layout.planar:
        for channel, sample in enumerate(layout.channels):
            _read_plane(data, layout, sample, planes, channel)
    else:
        _read_plane(data, layout, 0, planes, None)
    if layout.premultiplied:
        for top in range(0, layout.height, _band_rows(planes)):
            divide_by_alpha(planes[top : top + _band_rows(planes)])
    return planes[..., 0] if count == 1 else planes


def _band_rows(planes: NDArray[Any]) -> int:
    return max(1, BAND_BYTES // max(1, int(planes[0].nbytes)))


def _read_plane(
    data: bytes, layout: TiffLayout, plane: int, target: NDArray[Any], channel: int | None
) -> None:
    """Read one plane into one channel of (height, width, channels), or a chunky picture into all."""
    chosen = _chosen(layout) if channel is None else slice(0, 1)
    into = target if channel is None else target[..., channel : channel + 1]
    for top, left, samples in _runs(data, layout, plane):
        height, width = min(len(samples), layout.height - top), min(samples.shape[1], layout.width - left)
        pixels = to_pixels(samples[:height, :width, chosen], layout, channel or 0)
        into[top : top + height, left : left + width] = pixels


def _chosen(layout: TiffLayout) -> slice | list[int]:
    """Return what takes the mode's channels out of a pixel's samples: a slice where it can be one."""
    count = len(layout.channels)
    return slice(0, count) if layout.channels == tuple(range(count)) else list(layout.channels)


def _runs(data: bytes, layout: TiffLayout, plane: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yield rectangles of a plane: first row, first column, and samples that may reach beyond the edge."""
    yield from (_runs_of_tiles if layout.tiled else _runs_of_strips)(data, layout, plane)


def _runs_of_strips(data: bytes, layout: TiffLayout, plane: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
    together = max(1, BAND_BYTES // (layout.piece_height * layout.row_bytes))
    top = 0
    for first in range(0, layout.down, together):
        strips = range(first, min(first + together, layout.down))
        rows = [layout.rows_of(strip) for strip in strips]
        pieces = [_piece(data, layout, plane * layout.down + strip) for strip in strips]
        for band in decompressed(layout, pieces, rows):
            yield top, 0, unpacked(band, layout)
            top += len(band)


def _runs_of_tiles(data: bytes, layout: TiffLayout, plane: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
    height, width = layout.piece_height, layout.piece_width
    together = max(1, BAND_BYTES // (height * layout.row_bytes))
    for down in range(layout.down):
        for first in range(0, layout.across, together):
            count = min(together, layout.across - first)
            start = (plane * layout.down + down) * layout.across + first
            pieces = [_piece(data, layout, index) for index in range(start, start + count)]
            bands = decompressed(layout, pieces, [height] * count)
            samples = unpacked(np.concatenate(list(bands)), layout)
            beside = samples.reshape(count, height, width, -1).swapaxes(0, 1)
            yield down * height, first * width, beside.reshape(height, count * width, -1)


def _piece(data: bytes, layout: TiffLayout, index: int) -> memoryview:
    offset = int(layout.offsets[index])
    return memoryview(data)[offset : offset + int(layout.sizes[index])]


# --- in ----------------------------------------------------------------------------------------------------


def changed_rows(data: bytes, layout: TiffLayout, filled: Filled) -> Iterator[tuple[int, bytes]]:
    """Yield what changes in a TIFF that is not compressed: offsets in the file, and the bytes there."""
    for plane, down, across in _touched(layout, filled.hole):
        index = _index(layout, plane, down, across)
        for first, last in _row_bands(layout, filled, down, across):
            offset = int(layout.offsets[index]) + first * layout.row_bytes
            raw = np.frombuffer(data, np.uint8, (last - first) * layout.row_bytes, offset)
            rows = raw.reshape(last - first, layout.row_bytes)
            yield offset, _filled_in(rows, layout, filled, (plane, down, across), first).tobytes()


def changed_pieces(data: bytes, layout: TiffLayout, filled: Filled) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces that change in a compressed TIFF: their numbers, and what is to be stored."""
    for place in _touched(layout, filled.hole):
        index = _index(layout, *place)
        count = layout.rows_of(place[1])
        rows = np.empty((count, layout.row_bytes), np.uint8)
        done = 0
        for band in decompressed(layout, [_piece(data, layout, index)], [count]):
            rows[done : done + len(band)] = _filled_in(band, layout, filled, place, done)
            done += len(band)
        yield index, compressed(layout, rows)


def _index(layout: TiffLayout, plane: int, down: int, across: int) -> int:
    return (plane * layout.down + down) * layout.across + across


def _touched(layout: TiffLayout, hole: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Yield plane, row and column of the pieces with a pixel of the hole."""
    rows = np.unique(np.flatnonzero(hole.any(axis=1)) // layout.piece_height)
    for plane in sorted(layout.channels) if layout.planar else (0,):
        for down in rows.tolist():
            band = hole[down * layout.piece_height : (down + 1) * layout.piece_height]
            columns = np.unique(np.flatnonzero(band.any(axis=0)) // layout.piece_width)
            yield from ((plane, down, across) for across in columns.tolist())


def _row_bands(layout: TiffLayout, filled: Filled, down: int, across: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a piece's rows that are written again, of about `BAND_BYTES` each."""
    top, left = down * layout.piece_height, across * layout.piece_width
    part = filled.hole[top : top + layout.piece_height, left : left + layout.piece_width]
    rows = np.flatnonzero(part.any(axis=1))
    first, last = int(rows[0]), int(rows[-1]) + 1
    if len(part) < layout.rows_of(down):
        last = layout.rows_of(down)
    step = max(1, BAND_BYTES // layout.row_bytes)
    for begin in range(first, last, step):
        yield begin, min(last, begin + step)


def _filled_in(
    raw: NDArray[np.uint8], layout: TiffLayout, filled: Filled, place: tuple[int, int, int], first: int
) -> NDArray[np.uint8]:
    """Return rows of a piece, from its `first` row on, with the filled pixels in."""
    plane, down, across = place
    samples = unpacked(raw, layout)
    if not samples.flags.writeable:
        samples = samples.copy()
    top, left = down * layout.piece_height + first, across * layout.piece_width
    height, width = max(0, layout.height - top), layout.width - left
    samples[height:], samples[:, width:] = 0, 0
    box = (slice(top, top + min(height, len(samples))), slice(left, left + min(width, samples.shape[1])))
    where = filled.hole[box]
    pixels = filled.pixels[box][where]
    values = from_pixels(pixels.reshape(len(pixels), len(layout.channels)), layout)
    inside = samples[: where.shape[0], : where.shape[1]]
    for channel, sample in enumerate(layout.channels):
        if layout.planar and sample == plane:
            inside[where, 0] = values[:, channel]
        elif not layout.planar:
            inside[where, sample] = values[:, channel]
    return packed(samples, layout)


def is_rewritten_in_rows(layout: TiffLayout) -> bool:
    """Whether `changed_rows` says what changes, and not `changed_pieces`."""
    return layout.compression == UNCOMPRESSED
