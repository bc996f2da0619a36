"""A TIFF's bytes while single ones of them are exchanged: nothing moves that does not have to.

Rules of this module:
- What is replaced or removed is zeroed where it lay: nothing of it stays in the file.
- The directory stays where it is unless it grows. A value that shrinks stays at its place, an entry that goes
  is closed up; what grows goes to the end of the file.
- No offset outside the directory is ever touched: maker notes and unknown tags point where they did.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from watcher.worker.imaging.ifd import Ifd

_RECORD = 12
_LONG = 4
_MAX_OFFSET = (1 << 32) - 1
_ZEROS = bytes(1 << 20)


class TiffEdit:
    """An edited copy of a TIFF.

    Args:
        data: the file.
        ifd: its directory.
    """

    def __init__(self, data: bytes, ifd: Ifd) -> None:
        self._ifd = ifd
        self._buffer = io.BytesIO(data)
        self._end = len(data)
        start, stop = ifd.span
        self._records = [
            bytearray(data[place : place + _RECORD]) for place in range(start + 2, stop - 4, _RECORD)
        ]
        self._next = ifd.next_offset

    def put(self, offset: int, content: bytes) -> None:
        """Write over what is there."""
        self._buffer.seek(offset)
        self._buffer.write(content)

    def erase(self, start: int, stop: int) -> None:
        """Write zeros."""
        self._buffer.seek(start)
        for place in range(start, stop, len(_ZEROS)):
            self._buffer.write(_ZEROS[: min(len(_ZEROS), stop - place)])

    def append(self, content: bytes) -> int:
        """Write behind everything, at an even offset (TIFF 6.0, section 2); return that offset.

        Raises:
            RefusedError: `too_large` for a TIFF.
        """
        if self._end & 1:
            self.put(self._end, b"\x00")
            self._end += 1
        offset = self._end
        if offset + len(content) > _MAX_OFFSET:
            raise RefusedError(
                "too_large", "the result would be larger than a TIFF can be", "make it smaller"
            )
        self.put(offset, content)
        self._end = offset + len(content)
        return offset

    def give_back_tail(self, start: int) -> None:
        """Let the file end at `start`: what follows is erased, and nobody's."""
        self._end = start

    @property
    def end(self) -> int:
        """Where the file ends."""
        return self._end

    @property
    def tags(self) -> set[int]:
        """The tags that the directory has now."""
        return {self._number(record) for record in self._records}

    def unlink(self) -> None:
        """Make the directory the last one."""
        self._next = 0

    # --- values ------------------------------------------------------------------------------------------

    def set_numbers(self, tag: int, values: NDArray[np.int64]) -> None:
        """Replace a tag's whole numbers by as many others; a type that is too narrow is widened."""
        entry = self._ifd.entries[tag]
        kind, unit = entry.kind, entry.unit
        if int(values.max(initial=0)) >= 1 << (8 * unit):
            kind, unit = _LONG, 4
        self.set_value(tag, kind, len(values), values.astype(f"{self._ifd.order}u{unit}").tobytes())

    def set_value(self, tag: int, kind: int, count: int, raw: bytes) -> None:
        """Give a tag, which may be new, any value.

        Args:
            tag: its number.
            kind: type of the values.
            count: of the values.
            raw: the values, in the file's byte order.
        """
        entry = self._ifd.entries.get(tag)
        if entry is None:
            record = bytearray(struct.pack(f"{self._ifd.order}H", tag).ljust(_RECORD, b"\x00"))
            self._records.append(record)
            self._records.sort(key=self._number)
        else:
            record = self._record(tag)
            if not entry.is_inline:
                self.erase(entry.offset, entry.offset + entry.size)
        if len(raw) <= 4:  # noqa: PLR2004 - TIFF 6.0, section 2
            field = raw.ljust(4, b"\x00")
        elif entry is not None and not entry.is_inline and len(raw) <= entry.size:
            self.put(entry.offset, raw)
            field = bytes(record[8:])
        else:
            field = struct.pack(f"{self._ifd.order}I", self.append(raw))
        self._set_record(record, kind, count, field)

    def _number(self, record: bytearray) -> int:
        number: int = struct.unpack_from(f"{self._ifd.order}H", record)[0]
        return number

    def set_bytes(self, tag: int, value: bytes) -> None:
        """Replace a tag's value, its type stays; nothing at all removes the tag."""
        if not value:
            self.remove(tag)
            return
        entry = self._ifd.entries[tag]
        value += bytes(-len(value) % entry.unit)
        self.set_value(tag, entry.kind, len(value) // entry.unit, value)

    def remove(self, tag: int) -> None:
        """Take a tag and its value out."""
        entry = self._ifd.entries[tag]
        if not entry.is_inline:
            self.erase(entry.offset, entry.offset + entry.size)
        self._records.remove(self._record(tag))

    def _record(self, tag: int) -> bytearray:
        return next(record for record in self._records if self._number(record) == tag)

    def _set_record(self, record: bytearray, kind: int, count: int, field: bytes) -> None:
        record[2:] = struct.pack(f"{self._ifd.order}HI", kind, count) + field

    def result(self) -> bytes:
        """Return the edited file; the edit is over."""
        start, stop = self._ifd.span
        order = self._ifd.order
        directory = struct.pack(f"{order}H", len(self._records)) + b"".join(self._records)
        directory += struct.pack(f"{order}I", self._next)
        self.erase(start, stop)
        if len(directory) > stop - start:
            start = self.append(directory)
            self.put(4, struct.pack(f"{order}I", start))
        else:
            self.put(start, directory)
        self._buffer.truncate(self._end)
        return self._buffer.getvalue()
