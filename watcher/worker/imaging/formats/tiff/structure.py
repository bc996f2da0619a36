"""Which of a TIFF's directories is the picture, what else the file holds, and whether it is all there.

Rules of this module:
- Several pages and camera RAW in a TIFF container are refused: only one picture would be cleaned. Directories
  that say that they are smaller copies of the picture are no pages.
- It never trusts a count: what it looks at is bounded by the file's size.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.spans import sized, spans_of, total_bytes, without
from watcher.worker.imaging.ifd import tiff_first_ifd, tiff_ifd
from watcher.worker.imaging.metadata import UNREADABLE
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.sniffing import DEVELOP
from watcher.worker.imaging.zeros import dark_tail_bytes, refuse_zero_tail

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.tiff.spans import Spans
    from watcher.worker.imaging.ifd import Ifd

_HEADER_BYTES = 8
_MAX_COPIES = 32
_MAX_PIECES = 1 << 19
"""200 megapixels in rows are 20,000, in tiles of 256 x 256 and four planes 12,000. Each takes 16 us to
decode; for millions, in a file of some megabytes, that would be minutes."""
_MAX_VALUES = 1 << 16
_UNCOMPRESSED = 1
_ZERO_IS_BLACK = frozenset({1, 2})
"""Grey, RGB; elsewhere a zero is white, a number of a palette entry, or ink."""


@dataclass(frozen=True, slots=True)
class TiffStructure:
    """A TIFF's directories.

    Attributes:
        ifd: the picture's.
        copies: of the smaller copies of the picture, inside it or behind it.
    """

    ifd: Ifd
    copies: tuple[Ifd, ...]


def broken(what: str) -> RefusedError:
    """Say that a TIFF contradicts itself."""
    return RefusedError("undecodable", f"the TIFF is damaged: {what}", "restore it from a good copy")


def tiff_structure(data: bytes, *, fresh: bool) -> TiffStructure:
    """Read the directories of a TIFF that holds one ordinary picture.

    Args:
        data: the whole file.
        fresh: the file changed so lately that zeros at its end may be bytes to come.

    Raises:
        IncompleteError: strips or tiles lie beyond the end, or are still zeros.
        RefusedError: several pages, sub-pictures, or a camera's RAW data in a TIFF container; or the
            directory is damaged.
    """
    if data[8:10] == b"CR":
        raise RefusedError("unsupported", "this is a Canon RAW file, which is not served", DEVELOP)
    ifd = tiff_first_ifd(data)
    _refuse_raw(data, ifd)
    _refuse_absurd(ifd)
    _refuse_entangled(data, ifd)
    copies = _copies(data, ifd)
    parts = _parts(data, ifd)
    _refuse_missing(data, ifd, parts)
    if fresh:
        _refuse_zero_tail(data, ifd, parts)
    return TiffStructure(ifd, copies)


def _refuse_raw(data: bytes, ifd: Ifd) -> None:
    photometric = ifd.integers(data, tags.PHOTOMETRIC)
    if tags.DNG_VERSION in ifd.entries or tags.RAW_PHOTOMETRICS.intersection(photometric):
        raise RefusedError("unsupported", "this is a camera RAW file, which is not served", DEVELOP)
    if _is_copy(data, ifd):
        raise _further_pictures()


def _further_pictures() -> RefusedError:
    return RefusedError(
        "unsupported",
        "this TIFF holds further pictures inside the first (camera RAW, a pyramid or layers)",
        "export a flat, single picture and drop that",
    )


def _refuse_absurd(ifd: Ifd) -> None:
    """Refuse a directory that says the same twice, or has more values than there can be."""
    ambiguous = ifd.repeated & (tags.STRUCTURE | tags.LOOKS | tags.NAMES.keys() | {tags.XMP, tags.PHOTOSHOP})
    if ambiguous:
        raise broken(f"its directory has tag {min(ambiguous)} twice")
    for tag in (tags.STRUCTURE - {tags.TRANSFER_FUNCTION, tags.JPEG_TABLES}) & ifd.entries.keys():
        if ifd.entries[tag].count > (_MAX_PIECES if tag in tags.PLACES else _MAX_VALUES):
            raise broken(f"its directory has {ifd.entries[tag].count} values for tag {tag}")


_EXCHANGED = tags.ENCODERS | tags.PICTURES | {tags.XMP, tags.PHOTOSHOP}


def _refuse_entangled(data: bytes, ifd: Ifd) -> None:
    """Refuse a directory in which a value that may be exchanged is also something else."""
    outside = [(tag, entry) for tag, entry in ifd.entries.items() if not entry.is_inline]
    mine = spans_of([(e.offset, e.offset + e.size) for tag, e in outside if tag in _EXCHANGED])
    others = spans_of([(e.offset, e.offset + e.size) for tag, e in outside if tag not in _EXCHANGED])
    inner = [range_ for directory in inner_directories(data, ifd) for range_ in own_ranges(directory)]
    fixed = spans_of([(0, _HEADER_BYTES), ifd.span, *inner])
    if total_bytes(without(mine, np.concatenate([others, fixed]), len(data))) != total_bytes(mine):
        raise broken("the values of its directory lie over one another")


def _is_copy(data: bytes, ifd: Ifd) -> bool:
    """Whether a directory says that its picture is another one, only smaller."""
    reduced = any(kind & 1 for kind in ifd.integers(data, tags.NEW_SUBFILE_TYPE))
    return reduced or ifd.integers(data, tags.SUBFILE_TYPE) == (2,)


def _is_thumbnail(ifd: Ifd) -> bool:
    """Whether a directory is one of EXIF's thumbnails: a JPEG, and no strips (EXIF 2.32, 4.5.3)."""
    return tags.JPEG_OFFSET in ifd.entries and not tags.PLACES & ifd.entries.keys()


def _copies(data: bytes, first: Ifd) -> tuple[Ifd, ...]:
    """Return all other directories if they are smaller copies of the first: inside it, and behind it."""
    inside: list[Ifd] = []
    for offset in first.integers(data, tags.SUB_IFDS):
        chain = _chain(data, first.order, offset)
        if chain is None or len(inside) > _MAX_COPIES:
            raise _further_pictures()
        inside += chain
    behind = _chain(data, first.order, first.next_offset)
    if behind is None:
        raise RefusedError(
            "unsupported",
            "this TIFF has several pages, and only one would be cleaned",
            "split it into single pages and drop those",
        )
    return (*inside, *behind)


def _chain(data: bytes, order: str, offset: int) -> list[Ifd] | None:
    """Return the directories from an offset on; None where one is no smaller copy, or they have no end."""
    pages: list[Ifd] = []
    while offset:
        page = _page(data, order, offset)
        if page is None or len(pages) == _MAX_COPIES:
            return None
        pages.append(page)
        offset = page.next_offset
    return pages


def _page(data: bytes, order: str, offset: int) -> Ifd | None:
    """Return a further directory if it is a smaller copy of the first and can be read."""
    try:
        page = tiff_ifd(data, order, offset)
    except UNREADABLE:
        return None
    if tags.SUB_IFDS in page.entries or not (_is_copy(data, page) or _is_thumbnail(page)):
        return None
    _refuse_absurd(page)
    return page


# --- is it all there ---------------------------------------------------------------------------------------

_COMPRESSED_TAIL_BYTES = 512
"""No compression ends in so many zeros; a writer may have padded its last strip with fewer."""


def piece_spans(data: bytes, ifd: Ifd) -> Spans:
    """Return each strip and tile, as the directory says."""
    found = []
    for offsets_tag, counts_tag in (
        (tags.STRIP_OFFSETS, tags.STRIP_COUNTS),
        (tags.TILE_OFFSETS, tags.TILE_COUNTS),
    ):
        offsets, counts = ifd.numbers(data, offsets_tag), ifd.numbers(data, counts_tag)
        known = min(len(offsets), len(counts))
        found.append(sized(offsets[:known], counts[:known]))
    return np.concatenate(found)


def _parts(data: bytes, ifd: Ifd) -> list[tuple[int, int]]:
    """List the pieces, each once.

    Raises:
        IncompleteError: one lies beyond the end.
        RefusedError: they lie over one another so much that looking at each would take for ever.
    """
    pieces = np.unique(piece_spans(data, ifd), axis=0)
    if int(pieces.max(initial=0)) > len(data):
        raise IncompleteError("the TIFF's picture data lies beyond the end of the file")
    if total_bytes(pieces) > 4 * len(data):
        raise broken("its parts lie over one another")
    return [(int(start), int(stop - start)) for start, stop in pieces]


def _refuse_missing(data: bytes, ifd: Ifd, parts: list[tuple[int, int]]) -> None:
    if not _is_compressed(data, ifd):
        return
    for offset, count in parts:
        if count and not data[offset : offset + count].strip(b"\x00"):
            raise IncompleteError("a part of the TIFF's picture data is still zeros")


def _refuse_zero_tail(data: bytes, ifd: Ifd, parts: list[tuple[int, int]]) -> None:
    """Take a whole TIFF whose picture data ends in zeros for one that was only reserved so far.

    Raises:
        IncompleteError: it does, and zeros are black and not transparent, or nothing that was compressed.
    """
    if _is_compressed(data, ifd):
        refuse_zero_tail("TIFF", data, parts, _COMPRESSED_TAIL_BYTES)
    elif (
        set(ifd.integers(data, tags.PHOTOMETRIC)) <= _ZERO_IS_BLACK and tags.EXTRA_SAMPLES not in ifd.entries
    ):
        refuse_zero_tail("TIFF", data, parts, dark_tail_bytes(sum(size for _, size in parts)))


def _is_compressed(data: bytes, ifd: Ifd) -> bool:
    return ifd.integers(data, tags.COMPRESSION) not in ((), (_UNCOMPRESSED,))


def jpeg_spans(data: bytes, ifd: Ifd) -> Spans:
    """Return where a directory says that a JPEG of the old kind lies."""
    place = ifd.integers(data, tags.JPEG_OFFSET)[:1] + ifd.integers(data, tags.JPEG_COUNT)[:1]
    return spans_of([(place[0], place[0] + place[1])] if len(place) == 2 else [])  # noqa: PLR2004 - both


# --- what belongs to whom ----------------------------------------------------------------------------------


def needed_spans(data: bytes, ifd: Ifd) -> Spans:
    """Return all that a picture's directory needs to stay where it is, but for the pieces.

    The header, the directory and its values, and the directories of EXIF and GPS with theirs.
    """
    ranges = [(0, _HEADER_BYTES), *own_ranges(ifd)]
    for directory in inner_directories(data, ifd):
        ranges += own_ranges(directory)
    return spans_of(ranges)


def inner_directories(data: bytes, ifd: Ifd) -> list[Ifd]:
    """Return the directories of EXIF and GPS, as far as they can be read."""
    found: list[Ifd] = []
    for tag in (tags.EXIF, tags.GPS):
        for offset in ifd.integers(data, tag)[:1]:
            with contextlib.suppress(*UNREADABLE):
                found.append(tiff_ifd(data, ifd.order, offset))
    return found


def own_ranges(ifd: Ifd) -> list[tuple[int, int]]:
    """Return start and stop of a directory and of each of its values that lie outside it."""
    values = [
        (entry.offset, entry.offset + entry.size) for entry in ifd.entries.values() if not entry.is_inline
    ]
    return [ifd.span, *values]
