"""How large and how coarsely an AV1 still picture was coded, by its sequence and frame headers.

Rules of this module: it reads the few fields up to the quantiser (AV1 bitstream specification, 5.5 and 5.9)
and decodes nothing. Of an unusual stream it knows nothing; that is no error.
"""

from __future__ import annotations

from dataclasses import dataclass

from watcher.worker.imaging.formats.heif.bits import BitReader

_SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6
_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Av1Configuration:
    """An `av1C` property (AV1 codec ISO media file format binding, 2.3).

    Attributes:
        depth: bits a sample.
        grey: there is no colour.
        subsampling: as Pillow names it.
    """

    depth: int
    grey: bool
    subsampling: str


@dataclass(frozen=True, slots=True)
class Av1Coding:
    """How a picture was coded.

    Attributes:
        width: of the coded picture in pixels.
        height: likewise.
        quantiser: its base quantiser index, 0 to 255.
    """

    width: int
    height: int
    quantiser: int


def av1_configuration(body: bytes) -> Av1Configuration:
    """Read an `av1C` property's content.

    Raises:
        IndexError: it stops too early.
    """
    flags = body[2]
    depth = 12 if flags & 0x20 else 10 if flags & 0x40 else 8
    grey = bool(flags & 0x10)
    chroma = "4:2:0" if flags & 0x0C == 0x0C else "4:2:2" if flags & 0x08 else "4:4:4"  # noqa: PLR2004 - both bits
    return Av1Configuration(depth, grey, "4:0:0" if grey else chroma)


def av1_coding(data: bytes) -> Av1Coding | None:
    """Return how a still picture was coded, or None where that cannot be told.

    Args:
        data: the picture's open bitstream units.
    """
    try:
        units = dict(_units(data))
        sequence = _sequence(BitReader(units[_SEQUENCE][:_HEAD_BYTES]))
        frame = units.get(_FRAME) or units[_FRAME_HEADER]
        quantiser = _frame_quantiser(BitReader(frame[:_HEAD_BYTES]), sequence)
    except (IndexError, KeyError, ValueError):
        return None
    return Av1Coding(sequence.width, sequence.height, quantiser)


def _units(data: bytes) -> list[tuple[int, bytes]]:
    """List the units (5.3): type and content; of several of a type the first is the last in the list."""
    found, position = [], 0
    while position < len(data):
        head = data[position]
        position += 2 if head & 4 else 1
        size, shift = len(data) - position, 0
        if head & 2:
            size = 0
            while True:  # leb128 (4.10.5)
                byte = data[position]
                position += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128 or shift > 56:  # noqa: PLR2004 - the last of at most eight bytes
                    break
        found.append((head >> 3 & 15, data[position : position + min(size, _HEAD_BYTES)]))
        position += size
    return found[::-1]


@dataclass(frozen=True, slots=True)
class _Sequence:
    width: int
    height: int
    large_blocks: bool
    may_be_scaled: bool


def _sequence(bits: BitReader) -> _Sequence:
    """Read a sequence header of a still picture (5.5.1)."""
    bits.bits(3)
    if bits.bits(2) != 3:  # noqa: PLR2004 - still picture, reduced header
        raise ValueError("not a still picture with the short header")
    bits.bits(5)
    width_bits, height_bits = bits.bits(4) + 1, bits.bits(4) + 1
    width, height = bits.bits(width_bits) + 1, bits.bits(height_bits) + 1
    large_blocks = bits.flag()
    bits.bits(2)
    return _Sequence(width, height, large_blocks, bits.flag())


def _frame_quantiser(bits: BitReader, sequence: _Sequence) -> int:
    """Read a frame header up to `base_q_idx` (5.9.2)."""
    bits.bits(1)
    screen_content = bits.flag()
    if screen_content:
        bits.bits(1)
    if sequence.may_be_scaled and bits.flag():
        raise ValueError("it is coded smaller than it is shown")
    if bits.flag():
        bits.bits(32)
    if screen_content:
        bits.bits(1)
    _skip_tiles(bits, sequence)
    return bits.bits(8)


def _skip_tiles(bits: BitReader, sequence: _Sequence) -> None:
    """Pass over the tile structure (5.9.15)."""
    shift = 5 if sequence.large_blocks else 4
    columns, rows = (
        (2 * ((side + 7) >> 3) + (1 << shift) - 1) >> shift for side in (sequence.width, sequence.height)
    )
    block_shift = shift + 2
    least_columns = _log2(4096 >> block_shift, columns)
    least = max(least_columns, _log2((4096 * 2304) >> (2 * block_shift), rows * columns))
    if not bits.flag():
        raise ValueError("tiles of different sizes")
    columns_log2 = _counted(bits, least_columns, _log2(1, min(columns, 64)))
    rows_log2 = _counted(bits, max(least - columns_log2, 0), _log2(1, min(rows, 64)))
    if columns_log2 or rows_log2:
        bits.bits(columns_log2 + rows_log2 + 2)


def _log2(block: int, target: int) -> int:
    found = 0
    while block << found < target:
        found += 1
    return found


def _counted(bits: BitReader, least: int, most: int) -> int:
    while least < most and bits.flag():
        least += 1
    return least
