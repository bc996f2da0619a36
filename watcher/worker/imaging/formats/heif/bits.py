"""Numbers in a bit stream, most significant bit first."""

from __future__ import annotations

_LONGEST_CODE = 32


class BitReader:
    """The bits of some bytes, read from the front.

    Args:
        data: the bytes.

    Every method raises IndexError at their end, and ValueError for a code that is none.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def bits(self, count: int) -> int:
        """Read an unsigned number of so many bits."""
        value = 0
        for _ in range(count):
            value = value << 1 | (self._data[self._position >> 3] >> (7 - (self._position & 7)) & 1)
            self._position += 1
        return value

    def flag(self) -> bool:
        """Read one bit."""
        return bool(self.bits(1))

    def unsigned(self) -> int:
        """Read an Exp-Golomb code (ITU-T H.265, 9.2)."""
        zeros = 0
        while not self.bits(1):
            zeros += 1
            if zeros > _LONGEST_CODE:
                raise ValueError("no Exp-Golomb code")
        return (1 << zeros) - 1 + self.bits(zeros)

    def signed(self) -> int:
        """Read a signed Exp-Golomb code (ITU-T H.265, 9.2.2)."""
        value = self.unsigned()
        return (value + 1) // 2 if value & 1 else -(value // 2)

    def skip(self, count: int) -> None:
        """Pass over so many Exp-Golomb codes."""
        for _ in range(count):
            self.unsigned()
