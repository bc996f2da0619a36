"""What travels with the pixels: which of it goes into the result, and what would betray what was removed.

Rules of this module:
- Metadata is kept as the source's own bytes wherever the container allows; nothing is re-serialised, so
  maker notes with absolute offsets survive.
- Every embedded picture of the picture (EXIF thumbnail, preview, Photoshop thumbnail, depth original)
  would still show what was removed: it is blanked or left out, and named in `dropped`.
- Whatever is lost is named, in words that stand in the record.
- With `keep` off only what decides how the pixels look stays: the ICC profile, the orientation, PNG's
  colour chunks.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.jpeg.layout import jpeg_layout
from watcher.worker.imaging.ifd import tiff_first_ifd, tiff_ifd
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.ifd import Ifd

EXIF_PREFIX = b"Exif\x00\x00"
XMP_PREFIX = b"http://ns.adobe.com/xap/1.0/\x00"
_ORIENTATION = 274
JPEG_START = b"\xff\xd8\xff"
_MOST_EXIF_BYTES = 1 << 24
_MOST_JPEGS = 16
_MOST_MARKERS = 500
"""More bytes, JPEGs and markers of one than any camera puts into an EXIF block: each start of a JPEG is
followed for as long as it may be one."""
UNREADABLE = (IncompleteError, RefusedError, struct.error)

# --- EXIF --------------------------------------------------------------------------------------------------


def tiff_part(exif: bytes) -> bytes:
    """Return an EXIF block without the prefix that JPEG (and some WebP writers) put before it."""
    return exif.removeprefix(EXIF_PREFIX)


def exif_orientation(exif: bytes) -> int:
    """Return the EXIF orientation, 1 to 8; 1 where there is none or it is unreadable."""
    block = tiff_part(exif)
    if block[:4] not in (b"II*\x00", b"MM\x00*"):
        return 1
    try:
        values = tiff_first_ifd(block).integers(block, _ORIENTATION)
    except UNREADABLE:
        return _orientation_of_damaged(block)
    return values[0] if values and 1 <= values[0] <= 8 else 1  # noqa: PLR2004 - EXIF 2.32, 4.6.4


def _orientation_of_damaged(block: bytes) -> int:
    # One value beyond the end (a cut maker note) must not turn the picture: look at the plain entries alone.
    order = "<" if block[:2] == b"II" else ">"
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, offset)
        for position in range(offset + 2, offset + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", block, position)
            if tag == _ORIENTATION and 1 <= value <= 8:  # noqa: PLR2004 - EXIF 2.32, 4.6.4
                return int(value)
    except struct.error:
        pass
    return 1


def orientation_only(orientation: int) -> bytes:
    """Return the smallest EXIF block that says `orientation`, without prefix."""
    entry = struct.pack(">HHIHH", _ORIENTATION, 3, 1, orientation, 0)
    return b"MM\x00*" + struct.pack(">IH", 8, 1) + entry + struct.pack(">I", 0)


def exif_without_pictures(exif: bytes, dropped: list[str]) -> bytes:
    """Blank every picture inside an EXIF block, in place, so that no offset moves.

    Args:
        exif: the block, with or without prefix.
        dropped: names of what was blanked are appended.
    """
    prefix, block = exif[: len(exif) - len(tiff_part(exif))], bytearray(tiff_part(exif))
    if len(block) > _MOST_EXIF_BYTES or block.count(JPEG_START) > _MOST_JPEGS:
        dropped.append("EXIF")  # what cannot be looked into is not passed on
        return prefix + orientation_only(exif_orientation(exif))
    try:
        first = tiff_first_ifd(bytes(block))
        if first.next_offset:
            dropped.append("EXIF thumbnail")
            _blank_thumbnail(block, first)
    except UNREADABLE:
        pass
    if _blank_jpegs(block):
        dropped.append("EXIF preview")
    return prefix + bytes(block)


def _blank_thumbnail(block: bytearray, first: Ifd) -> None:
    source = bytes(block)
    struct.pack_into(f"{first.order}I", block, first.next_field, 0)
    thumbnail = tiff_ifd(source, first.order, first.next_offset)
    spans = [thumbnail.span]
    for offsets_tag, counts_tag in ((513, 514), (273, 279)):  # JPEG thumbnail, strips (EXIF 2.32, 4.5.3)
        offsets = thumbnail.integers(source, offsets_tag)
        counts = thumbnail.integers(source, counts_tag)
        spans += [(offset, offset + count) for offset, count in zip(offsets, counts, strict=False)]
    _blank(block, spans)


def _blank(block: bytearray, spans: list[tuple[int, int]]) -> None:
    """Put zeros into spans (first byte, last byte exclusive): each byte once, however many overlap there."""
    done = 0
    for start, stop in sorted(spans):
        first, last = max(start, done), min(stop, len(block))
        if first < last:
            block[first:last] = bytes(last - first)
            done = last


def _blank_jpegs(block: bytearray) -> int:
    """Blank what begins like a JPEG and goes on like one, and return how many there were."""
    source = bytes(block)
    blanked, start = 0, source.find(JPEG_START)
    while start >= 0:
        stop = _jpeg_stop(source, start)
        if stop is not None:
            block[start:stop] = bytes(stop - start)
            blanked += 1
        start = source.find(JPEG_START, start + 1 if stop is None else stop)
    return blanked


_TABLES, _FRAME, _END = b"\xff\xdb", re.compile(rb"\xff[\xc0-\xc2]"), b"\xff\xd9"
"""Quantisation tables, the start of a frame, and the end of a picture (ITU-T T.81, table B.1)."""


def _jpeg_stop(source: bytes, start: int) -> int | None:
    """Return where an embedded JPEG ends; None where none begins.

    A damaged one counts too: viewers show what is left of it.
    """
    try:
        return jpeg_layout(source, start, most_markers=_MOST_MARKERS).end
    except UNREADABLE:
        # One after the other: a pattern of all three searches the rest for each of the tables again.
        tables = source.find(_TABLES, start)
        frame = _FRAME.search(source, tables + 2) if tables >= 0 else None
        if frame is None:
            return None
        end = source.find(_END, frame.end())
        return len(source) if end < 0 else end + 2


# --- XMP and Photoshop -------------------------------------------------------------------------------------

_XMP_THUMBNAILS = re.compile(rb"<((?:xmp|xap):Thumbnails)\b")
_XMP_COMPANIONS = re.compile(
    rb"<((?:Container|GContainer):Directory)\b|<((?:GCamera|Camera):(?:MicroVideo|MotionPhoto)\w*)>"
)
_XMP_COMPANION_VALUES = re.compile(
    rb"""\s(?:GCamera|Camera):(?:MicroVideo|MotionPhoto)\w*\s*=\s*(?:"[^"]*"|'[^']*')"""
    rb"""|\shdrgm:\w+\s*=\s*(?:"[^"]*"|'[^']*')"""
    rb"""|\sxmpNote:HasExtendedXMP\s*=\s*(?:"[^"]*"|'[^']*')"""
)
"""Elements and attributes that tell a viewer of a motion clip, gain map or depth picture that is no longer in
the file."""
_MOST_OPEN_ELEMENTS = 64
"""Names of elements without an end: for each the whole packet is searched once."""


def xmp_without_pictures(xmp: bytes, dropped: list[str], *, companions_lost: bool = False) -> bytes:
    """Take thumbnails out of an XMP packet, and pointers to a motion clip or gain map that is lost."""
    cleaned = _without_elements(xmp, _XMP_THUMBNAILS)
    if cleaned != xmp:
        dropped.append("XMP thumbnail")
    if not companions_lost:
        return cleaned
    return _XMP_COMPANION_VALUES.sub(b"", _without_elements(cleaned, _XMP_COMPANIONS))


def _without_elements(text: bytes, start_tag: re.Pattern[bytes]) -> bytes:
    """Take out elements up to their own end tags; one without an end stays.

    Not one pattern from start tag to end tag: that searches the rest for each start again.

    Args:
        text: what they are in.
        start_tag: finds one; its one group that matches is the element's name.
    """
    kept, position = bytearray(), 0
    without_end: set[bytes] = set()
    for found in start_tag.finditer(text):
        name: bytes = found[found.lastindex or 0]
        if found.start() < position or name in without_end:
            continue
        end_tag = b"</" + name + b">"
        stop = text.find(end_tag, found.end())
        if stop >= 0:
            kept += text[position : found.start()]
            position = stop + len(end_tag)
        elif len(without_end) < _MOST_OPEN_ELEMENTS:
            without_end.add(name)
        else:
            break
    return bytes(kept + text[position:])


_PHOTOSHOP_THUMBNAILS = frozenset({1033, 1036})
_PHOTOSHOP_TYPES = frozenset({b"8BIM", b"MeSa", b"PHUT", b"AgHg", b"DCSR"})
"""Signatures of resources: Photoshop's own, ImageReady's, PhotoDeluxe's, Lightroom's and an older one."""


def photoshop_without_thumbnails(resources: bytes, dropped: list[str]) -> bytes:
    """Take the thumbnail resources out of a block of Photoshop image resources.

    What stands behind the last resource that can be read is kept, unless a picture may be in it.
    """
    kept, position = bytearray(), 0
    while position + 12 <= len(resources) and resources[position : position + 4] in _PHOTOSHOP_TYPES:
        (number,) = struct.unpack_from(">H", resources, position + 4)
        name_bytes = resources[position + 6] + 1
        size_at = position + 6 + name_bytes + (name_bytes & 1)
        if size_at + 4 > len(resources):
            break
        (size,) = struct.unpack_from(">I", resources, size_at)
        stop = size_at + 4 + size + (size & 1)
        if number in _PHOTOSHOP_THUMBNAILS:
            dropped.append("Photoshop thumbnail")
        else:
            kept += resources[position:stop]
        position = stop
    rest = resources[position:]
    if JPEG_START in rest:
        dropped.append("Photoshop data behind its last readable resource")
        return bytes(kept)
    return bytes(kept) + rest


def kept_exif(payload: bytes, dropped: list[str], *, keep: bool) -> bytes:
    """Return the EXIF block that goes into the result, with prefix.

    Args:
        payload: the source's, with prefix.
        dropped: names of what is left out are appended.
        keep: off leaves the orientation alone.
    """
    if keep:
        return exif_without_pictures(payload, dropped)
    dropped.append("EXIF")
    return EXIF_PREFIX + orientation_only(exif_orientation(payload))
