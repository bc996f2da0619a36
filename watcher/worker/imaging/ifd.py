"""TIFF-structured bytes: the directory of a TIFF file, and the same structure inside an EXIF block.

Rules of this module: it parses tags, never pixels, and never trusts an offset beyond the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.refusals import IncompleteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_INTEGERS = {1: "B", 3: "H", 4: "I", 13: "I"}
_MAX_INTEGERS = 65_536
"""More values than any tag has that is read as Python's numbers; the largest is a 14-bit colour map."""


@dataclass(frozen=True, slots=True)
class IfdEntry:
    """One tag of a TIFF directory.

    Attributes:
        kind: the type of its values (TIFF 6.0, section 2).
        count: of its values.
        offset: where they lie, absolute in the bytes.
        record: where the entry's own twelve bytes stand.
    """

    kind: int
    count: int
    offset: int
    record: int = 0

    @property
    def unit(self) -> int:
        """Bytes of one value."""
        return _TIFF_SIZES.get(self.kind, 1)

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return self.unit * self.count

    @property
    def is_inline(self) -> bool:
        """Whether the values stand in the entry itself."""
        return self.size <= 4  # noqa: PLR2004 - longer values live elsewhere (TIFF 6.0, section 2)


@dataclass(slots=True)
class Ifd:
    """A TIFF directory.

    Attributes:
        order: struct's byte-order character.
        entries: by tag number.
        next_offset: of the next directory, 0 for none.
        next_field: where that offset stands.
        span: the directory's own first and last byte (exclusive).
        repeated: tags that it has more than once, of which `entries` has the last.
    """

    order: str
    entries: dict[int, IfdEntry] = field(default_factory=dict)
    next_offset: int = 0
    next_field: int = 0
    span: tuple[int, int] = (0, 0)
    repeated: set[int] = field(default_factory=set)

    def integers(self, data: bytes, tag: int) -> tuple[int, ...]:
        """Return a tag's values where they are whole numbers and not absurdly many, else nothing."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in _TIFF_INTEGERS or entry.count > _MAX_INTEGERS:
            return ()
        return struct.unpack_from(
            f"{self.order}{entry.count}{_TIFF_INTEGERS[entry.kind]}", data, entry.offset
        )

    def numbers(self, data: bytes, tag: int) -> NDArray[np.int64]:
        """Return a tag's values, however many, where they are whole numbers, else nothing."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in _TIFF_INTEGERS:
            return np.zeros(0, np.int64)
        kind = f"{self.order}u{entry.unit}"
        return np.frombuffer(data, kind, entry.count, entry.offset).astype(np.int64)

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
        entry = IfdEntry(kind, number, position + 8, position)
        if not entry.is_inline:
            (place,) = struct.unpack_from(f"{order}I", data, position + 8)
            entry = IfdEntry(kind, number, place, position)
        if entry.offset + entry.size > len(data):
            raise IncompleteError(f"the value of TIFF tag {tag} lies beyond the end of the file")
        if tag in ifd.entries:
            ifd.repeated.add(tag)
        ifd.entries[tag] = entry
    (ifd.next_offset,) = struct.unpack_from(f"{order}I", data, end)
    return ifd
