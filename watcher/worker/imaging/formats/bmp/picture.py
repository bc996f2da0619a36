"""BMP: pixels without compression or an end marker, in many layouts.

Rules of this module:
- The result is the source's bytes with the filled pixels written over the old ones: header, channel layout,
  order of rows, padding, colour profile and all that nobody knows of stay by construction.
- Run lengths come back as plain rows of the same depth, and that is named.
- The palette grows only where the header says that it is shorter than the depth allows.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import BmpImagePlugin, Image

from watcher.worker.imaging.formats.bmp.layout import (
    COMPRESSION_AT,
    FILE_HEADER_BYTES,
    FILE_SIZE_AT,
    PIXEL_BYTES_AT,
    PIXELS_AT,
    PLAIN,
    PROFILE_AT,
    USED_COLOURS_AT,
    V5_HEADER_BYTES,
    bmp_layout,
)
from watcher.worker.imaging.formats.bmp.pixels import (
    packed_numbers,
    read_pixels,
    unpacked_runs,
    write_pixels,
)
from watcher.worker.imaging.picture import Encoded, Picture, open_image
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.zeros import dark_tail_bytes, refuse_zero_tail

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.bmp.layout import BmpLayout
    from watcher.worker.imaging.picture import Encoding, Filled, Palette, Pixels
    from watcher.worker.imaging.sniffing import Container

_LEAST_PICTURE_BYTES = 64
"""Less room than that between the parts of a file holds no picture: writers leave some there."""
_MOST_RUN_LENGTH_PIXELS = 25_000_000
"""Runs are decoded one by one in Python, and nobody has larger ones: these are files of the nineties."""


class BmpPicture(Picture):
    """A BMP."""

    container: ClassVar[Container] = "BMP"

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> BmpPicture:
        """Judge the structure and read the header."""
        layout = bmp_layout(data)
        if layout.run_length_coded:
            _refuse_long_runs(data, layout)
        else:
            _refuse_cut(data, layout, fresh=fresh)
        return cls(data, layout)

    def __init__(self, data: bytes, layout: BmpLayout) -> None:
        mode = "P" if layout.has_palette else "RGBA" if layout.masks[3] else "RGB"
        super().__init__(data, _size_alone(layout), mode=mode)
        self._layout = layout
        self._plain = data
        most = 1 << layout.bits if layout.may_grow else layout.entries
        self.spare_entries[most:] = False

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        if self._layout.run_length_coded:
            self._plain, self._layout = _without_runs(self.data, self._layout)
        pixels = read_pixels(self._plain, self._layout)
        if self.mode == "P":
            self.image = Image.frombytes("P", (self.width, self.height), pixels.tobytes())
            self.image.putpalette(_palette(self._plain, self._layout), "RGB")
        return pixels

    def encode(self, filled: Filled, how: Encoding) -> Encoded:  # noqa: ARG002 - a BMP has no quality, and only a profile
        """Return a filled picture in this container."""
        dropped = [] if self._plain is self.data else ["run-length compression"]
        result = bytearray(self._plain)
        _clear_strangers(result, self._layout, dropped)
        write_pixels(result, self._layout, filled.pixels, filled.hole)
        if filled.palette is not None:
            _write_palette(result, self._layout, filled.palette)
        return Encoded(bytes(result), "identical", tuple(dropped))


def _size_alone(layout: BmpLayout) -> Image.Image:
    """Return an image that knows the size: pixels are read here, for Pillow knows few layouts."""
    fields = struct.pack("<IiiHHIIiiII", 40, layout.width, layout.height, 1, 24, PLAIN, 0, 0, 0, 0, 0)
    header = struct.pack("<2sIHHI", b"BM", 0, 0, 0, FILE_HEADER_BYTES + len(fields))
    return open_image("BMP", BmpImagePlugin.BmpImageFile, header + fields)


# --- palette -----------------------------------------------------------------------------------------------


def _palette(data: bytes, layout: BmpLayout) -> bytes:
    """Return the palette's colours, red first."""
    stop = layout.table + layout.entries * layout.entry_bytes
    entries = np.frombuffer(data[layout.table : stop], np.uint8).reshape(-1, layout.entry_bytes)
    return entries[:, 2::-1].tobytes()


def _write_palette(data: bytearray, layout: BmpLayout, palette: Palette) -> None:
    """Write the entries that changed, and put new ones behind them."""
    size, there = layout.entry_bytes, layout.entries
    stop = layout.table + there * size
    entries = np.frombuffer(data[layout.table : stop], np.uint8).reshape(there, size).copy()
    entries[:, :3] = palette.colours[:there, ::-1]
    new = palette.colours[there:, ::-1]
    added = np.pad(new, ((0, 0), (0, size - 3))).tobytes()
    data[layout.table : stop] = entries.tobytes() + added
    if added:
        struct.pack_into("<I", data, USED_COLOURS_AT, there + len(new))
        _move(data, layout, len(added))


def _move(data: bytearray, layout: BmpLayout, by_bytes: int) -> None:
    """Correct the headers where bytes were put in before the pixels."""
    _add(data, PIXELS_AT, by_bytes)
    _add(data, FILE_SIZE_AT, by_bytes)
    if layout.header_bytes >= V5_HEADER_BYTES:
        _add(data, PROFILE_AT, by_bytes)


def _add(data: bytearray, at: int, number: int) -> None:
    """Add to a field, unless it says nothing."""
    (value,) = struct.unpack_from("<I", data, at)
    if value:
        struct.pack_into("<I", data, at, max(0, value + number))


# --- what does not belong to it ----------------------------------------------------------------------------


def _clear_strangers(data: bytearray, layout: BmpLayout, dropped: list[str]) -> None:
    """Take out what lies between the headers and the pixels, and behind the end: it may be a picture.

    Args:
        data: of the file; is changed.
        layout: of it.
        dropped: names of what is taken out are appended.
    """
    profile = _profile(data, layout)
    ends = [layout.pixels + layout.pixel_bytes, profile.stop]
    behind = bytes(data[max(ends) :])
    if behind.strip(b"\x00"):
        del data[max(ends) :]
        if struct.unpack_from("<I", data, FILE_SIZE_AT)[0] > len(data):
            struct.pack_into("<I", data, FILE_SIZE_AT, len(data))
        dropped.append(f"{len(behind)} bytes behind the end of the picture")
    headers = range(layout.table + layout.entries * layout.entry_bytes)
    belongs = [headers, profile, range(layout.pixels, ends[0])]
    for gap in _gaps(belongs, len(data)):
        if len(gap) >= _LEAST_PICTURE_BYTES and data[gap.start : gap.stop].strip(b"\x00"):
            data[gap.start : gap.stop] = bytes(len(gap))
            dropped.append(f"{len(gap)} bytes between the parts of the picture")


def _profile(data: bytearray, layout: BmpLayout) -> range:
    """Return where the colour profile lies; an empty range where there is none."""
    if layout.header_bytes < V5_HEADER_BYTES:
        return range(0)
    offset, size = struct.unpack_from("<II", data, PROFILE_AT)
    start = FILE_HEADER_BYTES + offset
    return range(start, min(start + size, len(data))) if offset and start < len(data) else range(0)


def _gaps(belongs: list[range], size_bytes: int) -> list[range]:
    """Return what lies between ranges, in order, up to the end of the file."""
    gaps, done = [], 0
    for part in sorted(belongs, key=lambda part: part.start):
        if part.start > done:
            gaps.append(range(done, part.start))
        done = max(done, part.stop)
    return [*gaps, range(done, max(done, size_bytes))]


# --- run lengths -------------------------------------------------------------------------------------------


def _refuse_long_runs(data: bytes, layout: BmpLayout) -> None:
    pixels = layout.width * layout.height
    coded_bytes = len(data) - layout.pixels
    if pixels > _MOST_RUN_LENGTH_PIXELS or coded_bytes > 4 * _MOST_RUN_LENGTH_PIXELS:
        raise RefusedError(
            "too_large",
            f"this BMP is run-length coded and has more than {_MOST_RUN_LENGTH_PIXELS} pixels",
            "save it as an ordinary BMP, or as PNG, and drop that",
        )


def _without_runs(data: bytes, layout: BmpLayout) -> tuple[bytes, BmpLayout]:
    """Return the same picture with plain rows, and its layout."""
    numbers = unpacked_runs(data, layout)
    per_row = layout.row_bytes * 8 // layout.bits
    rows = packed_numbers(np.pad(numbers, ((0, 0), (0, per_row - layout.width))), layout.bits).tobytes()
    (coded_bytes,) = struct.unpack_from("<I", data, PIXEL_BYTES_AT)
    behind = data[layout.pixels + coded_bytes :] if coded_bytes else b""
    result = bytearray(data[: layout.pixels] + rows + behind)
    struct.pack_into("<I", result, COMPRESSION_AT, PLAIN)
    struct.pack_into("<I", result, PIXEL_BYTES_AT, len(rows))
    struct.pack_into("<I", result, FILE_SIZE_AT, len(result))
    if layout.header_bytes >= V5_HEADER_BYTES:
        _add(result, PROFILE_AT, len(rows) - coded_bytes)
    return bytes(result), replace(layout, compression=PLAIN)


# --- ends --------------------------------------------------------------------------------------------------


def _refuse_cut(data: bytes, layout: BmpLayout, *, fresh: bool) -> None:
    """Compare a BMP's length with what its header promises.

    Raises:
        IncompleteError: the pixels are not all there; or they end in zeros, which are black and no number of
            a palette entry, in a file that somebody may still be writing.
    """
    needed = layout.pixels + layout.pixel_bytes
    if needed > len(data):
        raise IncompleteError(f"the BMP needs {needed} bytes and has {len(data)}")
    if fresh and not layout.has_palette:
        size = layout.pixel_bytes
        refuse_zero_tail("BMP", data, [(layout.pixels, size)], dark_tail_bytes(size))
