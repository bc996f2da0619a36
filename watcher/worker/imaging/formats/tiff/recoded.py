"""Another encoder's pixels in place of a TIFF's own: all pieces are exchanged, all other bytes stay.

Rules of this module:
- The tags that say how pixels are encoded come from the encoder's file, the others stay.
- The old pieces are zeroed; the new ones take their room first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.slots import places_for
from watcher.worker.imaging.formats.tiff.spans import without
from watcher.worker.imaging.formats.tiff.structure import needed_spans, piece_spans
from watcher.worker.imaging.ifd import tiff_first_ifd

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.tiff.edit import TiffEdit
    from watcher.worker.imaging.formats.tiff.spans import Spans
    from watcher.worker.imaging.ifd import Ifd


def put_recoded(edit: TiffEdit, data: bytes, ifd: Ifd, pieces: Spans, encoded: bytes) -> None:
    """Put the pixels of one TIFF into another.

    Args:
        edit: the file.
        data: as it was.
        ifd: its directory.
        pieces: where its pixels lie.
        encoded: a TIFF with the new pixels and nothing else.
    """
    free = without(pieces, needed_spans(data, ifd), len(data)).tolist()
    for start, stop in free:
        edit.erase(start, stop)
    new = tiff_first_ifd(encoded)
    spans = piece_spans(encoded, new)
    contents = {number: encoded[start:stop] for number, (start, stop) in enumerate(spans.tolist())}
    places = places_for(edit, [(start, stop) for start, stop in free], contents)
    for number, place in places.items():
        edit.put(place, contents[number])
    for tag in (tags.ENCODERS & ifd.entries.keys()) - new.entries.keys():
        edit.remove(tag)
    for tag in (tags.ENCODERS & new.entries.keys()) - {tags.STRIP_OFFSETS}:
        entry = new.entries[tag]
        edit.set_value(tag, entry.kind, entry.count, _turned(new.raw(encoded, tag), entry.unit, new, ifd))
    offsets = np.array([places[number] for number in range(len(spans))], np.int64)
    edit.set_value(tags.STRIP_OFFSETS, 4, len(spans), offsets.astype(f"{ifd.order}u4").tobytes())


_LAYOUT = (
    (tags.BITS_PER_SAMPLE, "bits a sample"),
    (tags.FILL_ORDER, "order of bits"),
    (tags.TILE_WIDTH, "tiles"),
    (tags.PLANAR, "planes"),
    (tags.CHROMA_SAMPLING, "chroma subsampling"),
)
_DEFAULTS = {tags.BITS_PER_SAMPLE: (1,), tags.FILL_ORDER: (1,), tags.PLANAR: (1,)}
"""What a directory says that does not say it (TIFF 6.0)."""


def lost_layout(data: bytes, ifd: Ifd, encoded: bytes) -> list[str]:
    """Name what of the source's layout another encoder's pixels do not have.

    Args:
        data: the source.
        ifd: its directory.
        encoded: a TIFF with the new pixels.
    """
    new = tiff_first_ifd(encoded)
    return [
        name
        for tag, name in _LAYOUT
        if (ifd.integers(data, tag) or _DEFAULTS.get(tag, ()))
        != (new.integers(encoded, tag) or _DEFAULTS.get(tag, ()))
    ]


def _turned(raw: bytes, unit: int, source: Ifd, target: Ifd) -> bytes:
    """Bring values into the other file's byte order."""
    if source.order == target.order or unit == 1:
        return raw
    return np.frombuffer(raw, f"u{min(unit, 4)}").byteswap().tobytes()  # a fraction is two numbers of four
