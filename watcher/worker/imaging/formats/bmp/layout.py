"""A BMP's headers: where its pixels and its palette lie, and what their bits mean.

Words: a BMP is a file header of 14 bytes, an info header whose size tells its version, sometimes masks of
channels, a palette, and the rows of pixels, mostly the last one first. Rules of this module:
- It parses headers, never pixels, and never trusts an offset beyond the bytes.
- The pixel array is measured by width, height and bits; the header's own sizes are often wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

FILE_HEADER_BYTES = 14
_CORE_HEADER_BYTES, _INFO_HEADER_BYTES, _OS2_HEADER_BYTES = 12, 40, 64
_ALPHA_IN_HEADER_BYTES, V5_HEADER_BYTES = 56, 124
FILE_SIZE_AT, PIXELS_AT, COMPRESSION_AT, PIXEL_BYTES_AT, USED_COLOURS_AT, PROFILE_AT = 2, 10, 30, 34, 46, 126
"""Offsets of fields in the file."""
PLAIN, RUNS_OF_8, RUNS_OF_4, MASKS, MASKS_WITH_ALPHA = 0, 1, 2, 3, 6
"""Values of the compression field."""
_DEPTHS = (1, 2, 4, 8, 16, 24, 32)
_USUAL_MASKS = {16: (0x7C00, 0x03E0, 0x001F, 0), 32: (0x00FF0000, 0x0000FF00, 0x000000FF, 0)}
_PALETTE_DEPTH = 8


@dataclass(frozen=True, slots=True)
class BmpLayout:
    """The facts of a BMP's headers.

    Attributes:
        width: in pixels.
        height: in pixels.
        top_down: the first row comes first.
        bits: of a pixel.
        compression: PLAIN, RUNS_OF_8, RUNS_OF_4, MASKS or MASKS_WITH_ALPHA.
        masks: bits of red, green, blue and alpha in a pixel of 16 or 32 bits; 0 for none.
        header_bytes: of the info header.
        table: offset of the palette.
        entries: in the palette.
        entry_bytes: 3 or 4.
        pixels: offset of the pixels.
    """

    width: int
    height: int
    top_down: bool
    bits: int
    compression: int
    masks: tuple[int, int, int, int]
    header_bytes: int
    table: int
    entries: int
    entry_bytes: int
    pixels: int

    @property
    def has_palette(self) -> bool:
        """Whether pixels are numbers of palette entries."""
        return self.bits <= _PALETTE_DEPTH

    @property
    def run_length_coded(self) -> bool:
        """Whether the pixels are compressed."""
        return self.compression in (RUNS_OF_8, RUNS_OF_4)

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return (self.width * self.bits + 31) // 32 * 4

    @property
    def pixel_bytes(self) -> int:
        """Bytes of all rows, uncompressed."""
        return self.row_bytes * self.height

    @property
    def may_grow(self) -> bool:
        """Whether the palette is said to have fewer entries than its numbers can tell apart."""
        return self.has_palette and self.header_bytes >= _INFO_HEADER_BYTES and self.entries < 1 << self.bits


def bmp_layout(data: bytes) -> BmpLayout:
    """Read a BMP's headers.

    Raises:
        IncompleteError: the bytes stop inside the headers.
        RefusedError: they are of no kind that is served (unsupported), or make no sense (undecodable).
    """
    if len(data) < FILE_HEADER_BYTES + _CORE_HEADER_BYTES:
        raise IncompleteError("the BMP stops inside its header")
    pixels, header_bytes = struct.unpack_from("<II", data, PIXELS_AT)
    if header_bytes > len(data) - FILE_HEADER_BYTES:
        raise IncompleteError("the BMP stops inside its header")
    width, height, bits, compression, used = _fields(data, header_bytes)
    _refuse_unknown(header_bytes, width, height, bits, compression)
    if pixels < FILE_HEADER_BYTES + header_bytes:
        raise RefusedError("undecodable", "the BMP's header makes no sense", "restore it from a good copy")
    masks_behind = {MASKS: 12, MASKS_WITH_ALPHA: 16}.get(compression, 0)
    table = FILE_HEADER_BYTES + header_bytes + (masks_behind if header_bytes == _INFO_HEADER_BYTES else 0)
    entry_bytes = 3 if header_bytes == _CORE_HEADER_BYTES else 4
    entries = 0
    if bits <= _PALETTE_DEPTH:
        entries = min(used or 1 << bits, 1 << bits, max(0, pixels - table) // entry_bytes)
    return BmpLayout(
        width=width,
        height=abs(height),
        top_down=height < 0,
        bits=bits,
        compression=compression,
        masks=_masks(data, header_bytes, bits, compression),
        header_bytes=header_bytes,
        table=table,
        entries=entries,
        entry_bytes=entry_bytes,
        pixels=pixels,
    )


def _fields(data: bytes, header_bytes: int) -> tuple[int, int, int, int, int]:
    """Return width, height, bits, compression and how many palette entries there are said to be."""
    if header_bytes == _CORE_HEADER_BYTES:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        return width, height, bits, PLAIN, 0
    width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    compression = struct.unpack_from("<I", data, COMPRESSION_AT)[0] if header_bytes > 16 else PLAIN  # noqa: PLR2004 - OS/2 may stop there
    used = struct.unpack_from("<I", data, USED_COLOURS_AT)[0] if header_bytes >= _INFO_HEADER_BYTES else 0
    return width, height, bits, compression, used


def _refuse_unknown(header_bytes: int, width: int, height: int, bits: int, compression: int) -> None:
    """Refuse what is not served; OS/2 has numbers of compressions of its own."""
    if header_bytes < _CORE_HEADER_BYTES or width <= 0 or height == 0 or bits not in _DEPTHS:
        raise RefusedError("undecodable", "the BMP's header makes no sense", "restore it from a good copy")
    depths = {
        PLAIN: _DEPTHS,
        RUNS_OF_8: (8,),
        RUNS_OF_4: (4,),
        MASKS: () if header_bytes == _OS2_HEADER_BYTES else (16, 32),
        MASKS_WITH_ALPHA: (16, 32),
    }.get(compression, ())
    if bits not in depths or (compression in (RUNS_OF_8, RUNS_OF_4) and height < 0):
        raise RefusedError(
            "unsupported",
            f"this BMP is of a rare kind that is not served (compression {compression}, {bits} bits a pixel)",
            "save it as an ordinary BMP, or as PNG, and drop that",
        )


def _masks(data: bytes, header_bytes: int, bits: int, compression: int) -> tuple[int, int, int, int]:
    if compression not in (MASKS, MASKS_WITH_ALPHA):
        return _USUAL_MASKS.get(bits, (0, 0, 0, 0))
    has_alpha = header_bytes >= _ALPHA_IN_HEADER_BYTES or (
        header_bytes == _INFO_HEADER_BYTES and compression == MASKS_WITH_ALPHA
    )
    at = FILE_HEADER_BYTES + _INFO_HEADER_BYTES
    red, green, blue = struct.unpack_from("<III", data, at)
    alpha = struct.unpack_from("<I", data, at + 12)[0] if has_alpha else 0
    masks = tuple(mask & ((1 << bits) - 1) for mask in (red, green, blue, alpha))
    for mask in masks:
        run = mask >> _shift(mask)
        if run & (run + 1):
            raise RefusedError(
                "unsupported",
                "this BMP's colour channels are scattered over their pixels' bits",
                "save it as an ordinary BMP, or as PNG, and drop that",
            )
    return masks[0], masks[1], masks[2], masks[3]


def _shift(mask: int) -> int:
    return max(0, (mask & -mask).bit_length() - 1)
