"""A TIFF's pieces to rows of bytes and back: the compressions that can be undone without knowing the pixels.

Rules of this module:
- Deflate is zlib's. All others are libtiff's, by way of Pillow: pieces are dressed up as a TIFF of bytes, or
  of black and white lines, that Pillow knows, whatever the picture is.
- What comes out of a piece is bounded by what its rows need, whatever it would go on to say.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, TiffImagePlugin

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.layout import (
    GROUP_3,
    GROUP_4,
    LZMA,
    LZW,
    PACKBITS,
    RUN_LENGTHS,
    UNCOMPRESSED,
    ZSTD,
)
from watcher.worker.imaging.ifd import tiff_first_ifd
from watcher.worker.imaging.picture import damaged, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.tiff.layout import TiffLayout

BAND_BYTES = 1 << 22
"""About so many bytes of rows are handled at a time."""
_INPUT_BYTES = 1 << 16
_DEFLATE_LEVEL = 6
"""zlib's own default, as libtiff writes it."""
_BYTES = {LZW: "tiff_lzw", PACKBITS: "packbits", LZMA: "lzma", ZSTD: "zstd"}
_LINES = {RUN_LENGTHS: "tiff_ccitt", GROUP_3: "group3", GROUP_4: "group4"}
_MIRRORED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def decompressed(
    layout: TiffLayout, pieces: Sequence[memoryview], rows: Sequence[int]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the rows of some pieces, one behind the other, (rows, bytes), in bands of about `BAND_BYTES`.

    Args:
        layout: of the picture.
        pieces: as they are stored.
        rows: of each piece; all but the last have the same number.

    Raises:
        RefusedError: a piece is broken, or holds less than its rows (undecodable).
    """
    band = max(1, BAND_BYTES // layout.row_bytes)
    if layout.compression in _BYTES or layout.compression in _LINES:
        stored = [bytes(piece).translate(_MIRRORED) for piece in pieces] if layout.mirrored else pieces
        yield from _by_libtiff(layout, stored, rows, band)
        return
    undone = _plain if layout.compression == UNCOMPRESSED else _inflated
    for piece, count in zip(pieces, rows, strict=True):
        yield from undone(piece, count, layout.row_bytes, band)


def compressed(layout: TiffLayout, rows: NDArray[np.uint8]) -> bytes:
    """Return rows, (rows, bytes), as one piece."""
    rows = np.ascontiguousarray(rows)
    if layout.compression in _BYTES or layout.compression in _LINES:
        piece = _to_libtiff(layout, rows)
        return piece.translate(_MIRRORED) if layout.mirrored else piece
    return rows.tobytes() if layout.compression == UNCOMPRESSED else zlib.compress(rows.data, _DEFLATE_LEVEL)


def _plain(piece: memoryview, rows: int, row_bytes: int, band: int) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, rows, band):
        count = min(band, rows - first)
        yield np.frombuffer(piece, np.uint8, count * row_bytes, first * row_bytes).reshape(count, row_bytes)


def _inflated(piece: memoryview, rows: int, row_bytes: int, band: int) -> Iterator[NDArray[np.uint8]]:
    stream = guarded(lambda: _Inflation(piece), lambda error: damaged("TIFF", error))
    for first in range(0, rows, band):
        count = min(band, rows - first)
        raw = guarded(lambda: stream.read(count * row_bytes), lambda error: damaged("TIFF", error))  # noqa: B023 - called at once
        yield np.frombuffer(raw, np.uint8).reshape(count, row_bytes)


class _Inflation:
    """A deflated piece that is read bit by bit."""

    def __init__(self, piece: memoryview) -> None:
        self._piece = piece
        self._position = 0
        self._stream = zlib.decompressobj()
        self._pending = b""

    def read(self, size_bytes: int) -> bytearray:
        """Return the next so many bytes.

        Raises:
            ValueError: there are no more.
            zlib.error: they are broken.
        """
        result = bytearray()
        while len(result) < size_bytes:
            if not self._pending:
                self._pending = bytes(self._piece[self._position : self._position + _INPUT_BYTES])
                self._position += len(self._pending)
            out = self._stream.decompress(self._pending, size_bytes - len(result))
            if not out and (self._stream.eof or not self._pending):
                raise ValueError("a part of its picture data is too short")
            self._pending = self._stream.unconsumed_tail
            result += out
        return result


# --- libtiff -----------------------------------------------------------------------------------------------


def _by_libtiff(
    layout: TiffLayout, pieces: Sequence[bytes | memoryview], rows: Sequence[int], band: int
) -> Iterator[NDArray[np.uint8]]:
    file = _dressed_up(layout, pieces, rows)

    def image() -> Image.Image:
        opened = TiffImagePlugin.TiffImageFile(io.BytesIO(file))
        opened.load()
        return opened

    loaded = guarded(image, lambda error: damaged("TIFF", error))
    total = sum(rows)
    for first in range(0, total, band):
        part = np.asarray(loaded.crop((0, first, loaded.width, min(total, first + band))))
        yield np.packbits(part, axis=1) if layout.compression in _LINES else part.astype(np.uint8, copy=False)


def _dressed_up(layout: TiffLayout, pieces: Sequence[bytes | memoryview], rows: Sequence[int]) -> bytes:
    """Return a TIFF whose strips are these pieces: black and white for faxes, else grey, a byte a pixel."""
    is_fax = layout.compression in _LINES
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    count, entry_count = len(pieces), 10
    values_at = 8 + 2 + 12 * entry_count + 4
    offsets = values_at + 8 * count + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    lists = offsets.astype("<u4").tobytes() + sizes.astype("<u4").tobytes()
    first, second = (values_at, values_at + 4 * count) if count > 1 else (int(offsets[0]), int(sizes[0]))
    fields = (
        (tags.WIDTH, 4, 1, layout.piece_width if is_fax else layout.row_bytes),
        (tags.HEIGHT, 4, 1, sum(rows)),
        (tags.BITS_PER_SAMPLE, 3, 1, 1 if is_fax else 8),
        (tags.COMPRESSION, 3, 1, layout.compression),
        (tags.PHOTOMETRIC, 3, 1, 1),
        (tags.STRIP_OFFSETS, 4, count, first),
        (tags.SAMPLES, 3, 1, 1),
        (tags.ROWS_PER_STRIP, 4, 1, rows[0]),
        (tags.STRIP_COUNTS, 4, count, second),
        (tags.FAX_OPTIONS, 4, 1, layout.fax_options),
    )
    head = b"II*\x00" + struct.pack("<IH", 8, entry_count)
    head += b"".join(struct.pack("<HHII", *each) for each in fields) + bytes(4)
    return b"".join([head, lists, *pieces])


def _to_libtiff(layout: TiffLayout, rows: NDArray[np.uint8]) -> bytes:
    height, row_bytes = rows.shape
    options: dict[str, Any] = {"strip_size": row_bytes * height}
    if layout.compression in _LINES:
        bits = np.unpackbits(rows, axis=1, count=layout.piece_width).astype(np.bool_)
        image = Image.fromarray(bits)
        if layout.fax_options:
            options["tiffinfo"] = {tags.FAX_OPTIONS: layout.fax_options}
    else:
        image = Image.frombuffer("L", (row_bytes, height), rows, "raw", "L", 0, 1)
    target = io.BytesIO()
    name = (_BYTES | _LINES)[layout.compression]
    image.save(target, "TIFF", compression=name, **options)
    file = target.getvalue()
    ifd = tiff_first_ifd(file)
    (offset,), (size,) = ifd.integers(file, tags.STRIP_OFFSETS), ifd.integers(file, tags.STRIP_COUNTS)
    return file[offset : offset + size]
