"""A TIFF written anew from another one's tags and pieces: what is not asked for does not come along.

Rules of this module:
- Pieces are taken over as they are stored; no pixel is decoded.
- Only tags whose values point at nothing may be asked for.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.ifd import tiff_first_ifd

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from watcher.worker.imaging.formats.tiff.spans import Spans

_HEADER_BYTES = 8
_LONG = 4


def rewritten(data: bytes, pieces: Spans, kept: AbstractSet[int]) -> bytes:
    """Return a new TIFF with the pieces of another.

    Args:
        data: the other one.
        pieces: where its pieces lie, in their order.
        kept: the tags that are taken over, besides those that say where the pieces are.
    """
    ifd = tiff_first_ifd(data)
    is_tiled = tags.TILE_OFFSETS in ifd.entries
    offsets_tag = tags.TILE_OFFSETS if is_tiled else tags.STRIP_OFFSETS
    entries = {
        tag: (entry.kind, entry.count, ifd.raw(data, tag))
        for tag, entry in ifd.entries.items()
        if tag in kept and tag not in tags.PLACES
    }
    count, number = len(pieces), f"{ifd.order}u4"
    sizes = (pieces[:, 1] - pieces[:, 0]).astype(number).tobytes()
    entries[tags.TILE_COUNTS if is_tiled else tags.STRIP_COUNTS] = (_LONG, count, sizes)
    entries[offsets_tag] = (_LONG, count, bytes(4 * count))
    slots, slot_of = np.unique(pieces, axis=0, return_inverse=True)  # pieces may share what they show
    lengths = slots[:, 1] - slots[:, 0]
    begin = _HEADER_BYTES + len(_directory(entries, ifd.order))
    places = begin + np.concatenate([[0], np.cumsum(lengths + (lengths & 1))[:-1]])
    entries[offsets_tag] = (_LONG, count, places[slot_of.ravel()].astype(number).tobytes())
    view = memoryview(data)
    body = [part for start, stop in slots.tolist() for part in (view[start:stop], bytes((stop - start) & 1))]
    head = data[:4] + struct.pack(f"{ifd.order}I", _HEADER_BYTES)
    return b"".join([head, _directory(entries, ifd.order), *body])


def _directory(entries: dict[int, tuple[int, int, bytes]], order: str) -> bytes:
    """Lay out a directory at the end of the header, with its values behind it."""
    records, values = b"", b""
    behind = _HEADER_BYTES + 2 + 12 * len(entries) + 4
    for tag, (kind, count, raw) in sorted(entries.items()):
        if len(raw) <= 4:  # noqa: PLR2004 - TIFF 6.0, section 2
            field = raw.ljust(4, b"\x00")
        else:
            field = struct.pack(f"{order}I", behind + len(values))
            values += raw + bytes(len(raw) & 1)
        records += struct.pack(f"{order}HHI", tag, kind, count) + field
    return struct.pack(f"{order}H", len(entries)) + records + bytes(4) + values
