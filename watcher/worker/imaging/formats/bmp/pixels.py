"""A BMP's pixels, read from and written into its own bytes.

Rules of this module:
- Pixels are written where they lie, and only those that were filled: padding, unused bits and all that stands
  around them stay as they were.
- Channels of other than 8 bits are scaled to 8 bits and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.bmp.layout import BmpLayout

    Mask = NDArray[np.bool_]
    Buffer = bytes | bytearray


def read_pixels(data: Buffer, layout: BmpLayout) -> NDArray[np.uint8]:
    """Return the pixels of an uncompressed BMP: numbers of entries (height, width), or RGB or RGBA."""
    if layout.has_palette:
        return np.ascontiguousarray(_numbers(_rows(data, layout), layout.bits)[:, : layout.width])
    if layout.bits == 24:  # noqa: PLR2004 - blue, green, red
        return np.ascontiguousarray(_triples(data, layout)[..., ::-1])
    words = _words(data, layout)
    return np.stack([_channel(words, mask) for mask in _channels(layout)], axis=-1)


def write_pixels(data: bytearray, layout: BmpLayout, pixels: NDArray[np.uint8], where: Mask) -> None:
    """Write pixels, as `read_pixels` gives them, where `where` is True."""
    if layout.has_palette:
        _write_numbers(data, layout, pixels, where)
    elif layout.bits == 24:  # noqa: PLR2004 - blue, green, red
        _triples(data, layout)[where] = pixels[where][:, ::-1]
    else:
        words = _words(data, layout)
        words[where] = _packed(words[where], pixels[where], _channels(layout))


def _rows(data: Buffer, layout: BmpLayout) -> NDArray[np.uint8]:
    """Return the bytes of each row (height, row bytes), the topmost first, in place."""
    shape = (layout.height, layout.row_bytes)
    rows = np.ndarray(shape, np.uint8, data, layout.pixels)
    return rows if layout.top_down else rows[::-1]


def _triples(data: Buffer, layout: BmpLayout) -> NDArray[np.uint8]:
    """Return blue, green and red of each pixel (height, width, 3), in place."""
    shape, strides = (layout.height, layout.width, 3), (layout.row_bytes, 3, 1)
    pixels = np.ndarray(shape, np.uint8, data, layout.pixels, strides)
    return pixels if layout.top_down else pixels[::-1]


def _words(data: Buffer, layout: BmpLayout) -> NDArray[Any]:
    """Return the 16 or 32 bits of each pixel (height, width), in place."""
    shape, strides = (layout.height, layout.width), (layout.row_bytes, layout.bits // 8)
    pixels = np.ndarray(shape, f"<u{layout.bits // 8}", data, layout.pixels, strides)
    return pixels if layout.top_down else pixels[::-1]


# --- numbers of palette entries ----------------------------------------------------------------------------


def _numbers(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpack rows of bytes (height, row bytes) into numbers (height, row bytes * 8 / bits)."""
    if bits == 8:  # noqa: PLR2004 - a byte
        return rows
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    numbers: NDArray[np.uint8] = (rows[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(rows), -1)


def packed_numbers(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack numbers (height, multiple of 8 / bits) into rows of bytes."""
    if bits == 8:  # noqa: PLR2004 - a byte
        return numbers
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    shifted = numbers.reshape(len(numbers), -1, 8 // bits) << shifts
    rows: NDArray[np.uint8] = np.bitwise_or.reduce(shifted, axis=-1)
    return rows


def _write_numbers(data: bytearray, layout: BmpLayout, pixels: NDArray[np.uint8], where: Mask) -> None:
    rows = _rows(data, layout)
    touched = np.flatnonzero(where.any(axis=1))
    numbers = _numbers(rows[touched], layout.bits)
    numbers[:, : layout.width][where[touched]] = pixels[where]
    rows[touched] = packed_numbers(numbers, layout.bits)


# --- channels in words -------------------------------------------------------------------------------------


_ALPHA = 3


def _channels(layout: BmpLayout) -> tuple[int, ...]:
    """Return the masks of red, green, blue, and alpha if there is one."""
    return layout.masks if layout.masks[3] else layout.masks[:3]


def _shift_and_top(mask: int) -> tuple[int, int]:
    """Return how far a channel's lowest bit is from the word's, and its greatest value."""
    shift = max(0, (mask & -mask).bit_length() - 1)
    return shift, mask >> shift


def _channel(words: NDArray[Any], mask: int) -> NDArray[np.uint8]:
    """Return a channel of words, scaled to 8 bits; zeros where it has no bits."""
    shift, top = _shift_and_top(mask)
    values = (words & words.dtype.type(mask)) >> words.dtype.type(shift)
    if top <= 255:  # noqa: PLR2004 - 8 bits
        table = (np.arange(top + 1) * 255 + top // 2) // max(top, 1)
        scaled: NDArray[np.uint8] = table.astype(np.uint8)[values]
        return scaled
    high: NDArray[np.uint8] = (values >> words.dtype.type(top.bit_length() - 8)).astype(np.uint8)
    return high


def _packed(words: NDArray[Any], pixels: NDArray[np.uint8], masks: tuple[int, ...]) -> NDArray[Any]:
    """Return words (n) with the channels of pixels (n, channels) in them; alpha that is the same stays."""
    result = words.copy()
    for number, mask in enumerate(masks):
        shift, top = _shift_and_top(mask)
        wanted = pixels[:, number].astype(np.uint64)
        values = ((wanted * top + 127) // 255) << np.uint64(shift)
        changed = (result & ~words.dtype.type(mask)) | values.astype(words.dtype)
        stays = number == _ALPHA and _channel(words, mask) == pixels[:, number]
        result = np.where(stays, result, changed)
    return result


# --- run lengths -------------------------------------------------------------------------------------------

_END_OF_ROW, _END_OF_PICTURE, _DELTA = 0, 1, 2


def unpacked_runs(data: bytes, layout: BmpLayout) -> NDArray[np.uint8]:
    """Decode run lengths into numbers (height, width), the lowest row first; what is left out is 0.

    Raises:
        RefusedError: they stop before the picture does (undecodable).
    """
    width, height, bits = layout.width, layout.height, layout.bits
    numbers = np.zeros((height, width), np.uint8)
    x = y = 0
    position = layout.pixels
    while y < height:
        if position + 2 > len(data):
            raise _cut()
        count, code = data[position], data[position + 1]
        position += 2
        if count:
            _put(numbers, x, y, _run(count, code, bits))
            x += count
        elif code == _END_OF_ROW:
            x, y = 0, y + 1
        elif code == _END_OF_PICTURE:
            break
        elif code == _DELTA:
            if position + 2 > len(data):
                raise _cut()
            x, y = x + data[position], y + data[position + 1]
            position += 2
        else:
            size = code if bits == 8 else (code + 1) // 2  # noqa: PLR2004 - a byte
            literal = np.frombuffer(data[position : position + size], np.uint8)
            if len(literal) < size:
                raise _cut()
            _put(numbers, x, y, _numbers(literal[np.newaxis], bits)[0][:code])
            x += code
            position += size + (size & 1)
    return numbers


def _run(count: int, code: int, bits: int) -> NDArray[np.uint8]:
    if bits == 8:  # noqa: PLR2004 - a byte
        return np.full(count, code, np.uint8)
    return np.resize(np.array([code >> 4, code & 15], np.uint8), count)


def _put(numbers: NDArray[np.uint8], x: int, y: int, values: NDArray[np.uint8]) -> None:
    room = numbers[y, x : x + len(values)]
    room[:] = values[: len(room)]


def _cut() -> RefusedError:
    return RefusedError(
        "undecodable", "the BMP is damaged: its run lengths stop early", "restore it from a good copy"
    )
