"""TIFF-structured bytes: the directory of a TIFF file, and the same structure inside an EXIF block.

Rules of this module: it parses tags, never pixels, and never trusts an offset beyond the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from watcher.worker.imaging.refusals import IncompleteError

_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_INTEGERS = {1: "B", 3: "H", 4: "I", 13: "I"}


@dataclass(frozen=True, slots=True)
class IfdEntry:
    """One tag of a TIFF directory: type, count, and where its value lies (absolute in the bytes)."""

    kind: int
    count: int
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return _TIFF_SIZES.get(self.kind, 1) * self.count


@dataclass(slots=True)
class Ifd:
    """A TIFF directory.

    Attributes:
        order: struct's byte-order character.
        entries: by tag number.
        next_offset: of the next directory, 0 for none.
        next_field: where that offset stands.
        span: the directory's own first and last byte (exclusive).
    """

    order: str
    entries: dict[int, IfdEntry] = field(default_factory=dict)
    next_offset: int = 0
    next_field: int = 0
    span: tuple[int, int] = (0, 0)

    def integers(self, data: bytes, tag: int) -> tuple[int, ...]:
        """Return a tag's values where they are whole numbers, else nothing."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in _TIFF_INTEGERS:
            return ()
        return struct.unpack_from(
            f"{self.order}{entry.count}{_TIFF_INTEGERS[entry.kind]}", data, entry.offset
        )

    def raw(self, data: bytes, tag: int) -> bytes:
        """Return a tag's bytes, or nothing."""
        entry = self.entries.get(tag)
        return b"" if entry is None else data[entry.offset : entry.offset + entry.size]


def tiff_first_ifd(data: bytes) -> Ifd:
    """Read the first directory of TIFF-structured bytes (a TIFF file, or an EXIF block).

    Raises:
        IncompleteError: the directory, or a value it points at, lies beyond the bytes.
    """
    if len(data) < 8:  # noqa: PLR2004 - the fixed TIFF header
        raise IncompleteError("the TIFF stops inside its header")
    order = "<" if data[:2] == b"II" else ">"
    (offset,) = struct.unpack_from(f"{order}I", data, 4)
    if offset == 0:
        raise IncompleteError("the TIFF has no directory yet")
    return tiff_ifd(data, order, offset)


def tiff_ifd(data: bytes, order: str, offset: int) -> Ifd:
    """Read the directory at `offset`.

    Raises:
        IncompleteError: it, or a value it points at, lies beyond the bytes.
    """
    if offset + 2 > len(data):
        raise IncompleteError("the TIFF stops before its directory")
    (count,) = struct.unpack_from(f"{order}H", data, offset)
    if count == 0:  # the format demands at least one; a reserved file reads like this
        raise IncompleteError("the TIFF's directory is still empty")
    end = offset + 2 + 12 * count
    if end + 4 > len(data):
        raise IncompleteError("the TIFF stops inside its directory")
    ifd = Ifd(order, next_field=end, span=(offset, end + 4))
    for position in range(offset + 2, end, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, position)
        entry = IfdEntry(kind, number, position + 8)
        if entry.size > 4:  # noqa: PLR2004 - longer values live elsewhere (TIFF 6.0, section 2)
            entry = IfdEntry(kind, number, struct.unpack_from(f"{order}I", data, position + 8)[0])
        if entry.offset + entry.size > len(data):
            raise IncompleteError(f"the value of TIFF tag {tag} lies beyond the end of the file")
        ifd.entries[tag] = entry
    (ifd.next_offset,) = struct.unpack_from(f"{order}I", data, end)
    return ifd
