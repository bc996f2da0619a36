"""How finely a lossy WebP was quantised, read from its VP8 frame header (RFC 6386, 9.2 to 9.6 and 19.2).

Rules of this module: it reads the header's few bits with the format's own decoder of bits, and no pixel; a
header that makes no sense gives no answer.
"""

from __future__ import annotations

_FRAME_HEADER_BYTES = 10
_EVEN_ODDS = 128
_TOP_INDEX = 127
_MOST_HEADER_BYTES = 256


class _Bits:
    """The bits of a header, each as likely 0 as 1 (RFC 6386, 7.3); behind the end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = 2
        self._value = int.from_bytes(data[:2].ljust(2, b"\x00"), "big")
        self._range = 255
        self._shifted = 0

    def flag(self) -> bool:
        split = 1 + (((self._range - 1) * _EVEN_ODDS) >> 8)
        bit = self._value >= split << 8
        if bit:
            self._range -= split
            self._value -= split << 8
        else:
            self._range = split
        while self._range < _EVEN_ODDS:
            self._shift()
        return bit

    def _shift(self) -> None:
        self._value <<= 1
        self._range <<= 1
        self._shifted += 1
        if self._shifted == 8:  # noqa: PLR2004 - bits of a byte
            self._shifted = 0
            self._value |= self._data[self._next] if self._next < len(self._data) else 0
            self._next += 1

    def number(self, bits: int) -> int:
        value = 0
        for _ in range(bits):
            value = value << 1 | self.flag()
        return value

    def optional(self, bits: int) -> int:
        """Return a number with a sign behind a flag that says whether it is there; else 0."""
        if not self.flag():
            return 0
        value = self.number(bits)
        return -value if self.flag() else value


def quantiser_index(frame: bytes) -> float | None:
    """Return the mean quantiser index of a VP8 key frame's segments, 0 (finest) to 127.

    Args:
        frame: the data of the VP8 chunk.
    """
    if len(frame) < _FRAME_HEADER_BYTES or frame[0] & 1 or frame[3:6] != b"\x9d\x01\x2a":
        return None
    bits = _Bits(frame[_FRAME_HEADER_BYTES : _FRAME_HEADER_BYTES + _MOST_HEADER_BYTES])
    bits.number(2)  # colour space, clamping
    segments, absolute = _segment_quantisers(bits) if bits.flag() else ([], False)
    bits.number(1 + 6 + 3)  # loop filter: kind, level, sharpness
    if bits.flag() and bits.flag():  # adjustments of the loop filter, and they are here
        for _ in range(4 + 4):
            bits.optional(6)
    bits.number(2)  # partitions
    base = bits.number(7)
    if not segments:
        return float(base)
    indices = segments if absolute else [base + change for change in segments]
    return sum(min(max(index, 0), _TOP_INDEX) for index in indices) / len(indices)


def _segment_quantisers(bits: _Bits) -> tuple[list[int], bool]:
    """Read the segments' part (RFC 6386, 9.3): quantisers, and whether they are absolute."""
    has_map, has_data = bits.flag(), bits.flag()
    quantisers, absolute = [0, 0, 0, 0], False
    if has_data:
        absolute = bits.flag()
        quantisers = [bits.optional(7) for _ in range(4)]
        for _ in range(4):
            bits.optional(6)  # loop filter levels
    if has_map:
        for _ in range(3):
            if bits.flag():
                bits.number(8)
    return quantisers, absolute


def index_of_quality(quality: float) -> float:
    """Return the quantiser index that libwebp takes for a quality of 0 to 100 where a picture is plain."""
    share = quality / 100
    linear = share * (2 / 3) if share < 0.75 else 2 * share - 1  # noqa: PLR2004 - libwebp's own curve
    return float(_TOP_INDEX * (1 - linear ** (1 / 3)))


def quality_of_index(index: float) -> float:
    """Return the quality, 0 to 100, for which libwebp takes a quantiser index."""
    linear = (1 - index / _TOP_INDEX) ** 3
    share = linear * 1.5 if linear < 0.5 else (linear + 1) / 2  # noqa: PLR2004 - as above
    return float(100 * share)
