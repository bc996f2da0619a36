"""How large and how coarsely an HEVC picture was coded, by its parameter sets and its first slice.

Rules of this module: it reads the few fields up to the quantiser (ITU-T H.265, clause 7.3) and decodes
nothing. Of an unusual stream it knows nothing; that is no error.
"""

from __future__ import annotations

from dataclasses import dataclass

from watcher.worker.imaging.formats.heif.bits import BitReader

_SPS, _PPS = 33, 34
_FIRST_INTRA, _LAST_INTRA = 16, 23
_IDR = frozenset({19, 20})
_I_SLICE = 2
_FULL_CHROMA = 3
_HEAD_BYTES = 400
"""What is read here stands in the first bytes of a unit, also with scaling lists."""


@dataclass(frozen=True, slots=True)
class HevcConfiguration:
    """An `hvcC` property (ISO/IEC 14496-15, 8.3.3.1).

    Attributes:
        chroma_format: 0 for grey, 1 for 4:2:0, 2 for 4:2:2, 3 for 4:4:4.
        depth: bits a sample of the brightness.
        chroma_depth: bits a sample of the colour.
        length_bytes: size of the number before each unit of the data.
        units: parameter sets, by type.
    """

    chroma_format: int
    depth: int
    chroma_depth: int
    length_bytes: int
    units: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class HevcCoding:
    """How a picture was coded.

    Attributes:
        width: of the coded picture in pixels, margins included.
        height: likewise.
        quantiser: QP that its first slice begins with; 0 to 51, below that at more than 8 bits.
        may_be_lossless: blocks may pass by the quantiser.
    """

    width: int
    height: int
    quantiser: int
    may_be_lossless: bool


def hevc_configuration(body: bytes) -> HevcConfiguration:
    """Read an `hvcC` property's content.

    Raises:
        IndexError: it stops too early.
    """
    units: dict[int, bytes] = {}
    position = 23
    for _ in range(body[22]):
        kind = body[position] & 63
        count = int.from_bytes(body[position + 1 : position + 3], "big")
        position += 3
        for _ in range(count):
            size = int.from_bytes(body[position : position + 2], "big")
            units.setdefault(kind, body[position + 2 : position + 2 + size])
            position += 2 + size
    return HevcConfiguration(body[16] & 3, 8 + (body[17] & 7), 8 + (body[18] & 7), (body[21] & 3) + 1, units)


def hevc_coding(configuration: HevcConfiguration, data: bytes) -> HevcCoding | None:
    """Return how an intra picture was coded, or None where that cannot be told.

    Args:
        configuration: of the picture.
        data: the picture's units, each with its length before it.
    """
    try:
        kind, part = _first_slice(data, configuration.length_bytes)
        sequence = _sequence(_content(configuration.units[_SPS]))
        picture = _picture(_content(configuration.units[_PPS]))
        quantiser = _slice_quantiser(kind, part, sequence, picture)
    except (IndexError, KeyError, ValueError):
        return None
    return HevcCoding(sequence.width, sequence.height, quantiser, picture.may_be_lossless)


def _content(unit: bytes) -> BitReader:
    """Return the bits of a unit behind its head, less the bytes that keep start codes out (7.3.1.1)."""
    return BitReader(unit[2:_HEAD_BYTES].replace(b"\x00\x00\x03", b"\x00\x00"))


def _first_slice(data: bytes, length_bytes: int) -> tuple[int, BitReader]:
    position = 0
    while position + length_bytes < len(data):
        size = int.from_bytes(data[position : position + length_bytes], "big")
        position += length_bytes
        kind = data[position] >> 1 & 63
        if _FIRST_INTRA <= kind <= _LAST_INTRA:
            return kind, _content(data[position : position + min(size, _HEAD_BYTES)])
        position += size
    raise ValueError("no intra slice")


@dataclass(frozen=True, slots=True)
class _Sequence:
    chroma_format: int
    width: int
    height: int
    separate_planes: bool
    adaptive_offset: bool


def _sequence(sps: BitReader) -> _Sequence:
    """Read a sequence parameter set up to `sample_adaptive_offset_enabled_flag` (7.3.2.2.1)."""
    sps.bits(4)
    layers = sps.bits(3)
    sps.bits(1)
    if layers:
        raise ValueError("temporal layers")
    sps.bits(96)  # profile_tier_level of one layer
    sps.skip(1)
    chroma_format = sps.unsigned()
    separate = chroma_format == _FULL_CHROMA and sps.flag()
    width, height = sps.unsigned(), sps.unsigned()
    if sps.flag():
        sps.skip(4)  # conformance window
    sps.skip(3)  # depths, order count
    sps.bits(1)
    sps.skip(3)  # one layer's buffering
    sps.skip(6)  # block sizes and depths
    if sps.flag() and sps.flag():
        _skip_scaling_lists(sps)
    sps.bits(1)
    return _Sequence(chroma_format, width, height, separate, sps.flag())


def _skip_scaling_lists(sps: BitReader) -> None:
    for size in range(4):
        for _ in range(2 if size == 3 else 6):  # noqa: PLR2004 - 7.3.4
            if not sps.flag():
                sps.skip(1)
                continue
            if size > 1:
                sps.signed()
            sps.skip(min(64, 1 << (4 + (size << 1))))


@dataclass(frozen=True, slots=True)
class _Picture:
    output_flag: int
    extra_bits: int
    initial: int
    may_be_lossless: bool


def _picture(pps: BitReader) -> _Picture:
    """Read a picture parameter set up to `transquant_bypass_enabled_flag` (7.3.2.3.1)."""
    pps.skip(2)
    pps.bits(1)  # dependent slices: the first is none
    output_flag = pps.bits(1)
    extra_bits = pps.bits(3)
    pps.bits(2)
    pps.skip(2)
    initial = 26 + pps.signed()
    pps.bits(2)
    if pps.flag():
        pps.skip(1)
    pps.signed()
    pps.signed()
    pps.bits(3)
    return _Picture(output_flag, extra_bits, initial, pps.flag())


def _slice_quantiser(kind: int, part: BitReader, sequence: _Sequence, picture: _Picture) -> int:
    """Read a slice segment's head up to `slice_qp_delta` (7.3.6.1)."""
    if not part.flag():
        raise ValueError("not the first slice")
    part.bits(1)
    part.skip(1)
    part.bits(picture.extra_bits)
    if part.unsigned() != _I_SLICE or kind not in _IDR:
        raise ValueError("not an intra slice without an order count")
    part.bits(picture.output_flag)
    if sequence.separate_planes:
        part.bits(2)
    if sequence.adaptive_offset:
        part.bits(2 if sequence.chroma_format and not sequence.separate_planes else 1)
    return picture.initial + part.signed()
