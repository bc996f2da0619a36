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

from watcher.worker.imaging.formats.jpeg_layout import jpeg_layout
from watcher.worker.imaging.ifd import tiff_first_ifd, tiff_ifd
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.ifd import Ifd

EXIF_PREFIX = b"Exif\x00\x00"
XMP_PREFIX = b"http://ns.adobe.com/xap/1.0/\x00"
_ORIENTATION = 274
JPEG_START = b"\xff\xd8\xff"
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
    try:
        first = tiff_first_ifd(bytes(block))
        if first.next_offset:
            _blank_thumbnail(block, first)
            dropped.append("EXIF thumbnail")
    except UNREADABLE:
        pass
    if _blank_jpegs(block):
        dropped.append("EXIF preview")
    return prefix + bytes(block)


def _blank_thumbnail(block: bytearray, first: Ifd) -> None:
    source = bytes(block)
    struct.pack_into(f"{first.order}I", block, first.next_field, 0)
    thumbnail = tiff_ifd(source, first.order, first.next_offset)
    for offsets_tag, counts_tag in ((513, 514), (273, 279)):  # JPEG thumbnail, strips (EXIF 2.32, 4.5.3)
        offsets = thumbnail.integers(source, offsets_tag)
        counts = thumbnail.integers(source, counts_tag)
        for offset, count in zip(offsets, counts, strict=False):
            stop = min(offset + count, len(block))
            block[offset:stop] = bytes(max(0, stop - offset))
    start, stop = thumbnail.span
    block[start:stop] = bytes(stop - start)


def _blank_jpegs(block: bytearray) -> int:
    blanked, position = 0, 0
    while (start := block.find(JPEG_START, position)) >= 0:
        position = start + 1
        try:
            stop = jpeg_layout(bytes(block), start).end
        except UNREADABLE:
            continue
        block[start:stop] = bytes(stop - start)
        blanked += 1
    return blanked


# --- XMP and Photoshop -------------------------------------------------------------------------------------

_XMP_THUMBNAILS = re.compile(rb"<(xmp|xap):Thumbnails\b.*?</\1:Thumbnails>", re.DOTALL)
_XMP_COMPANIONS = re.compile(
    rb"""<(Container|GContainer):Directory\b.*?</\1:Directory>"""
    rb"""|\s(?:GCamera|Camera):(?:MicroVideo|MotionPhoto)\w*\s*=\s*(?:"[^"]*"|'[^']*')"""
    rb"""|<(GCamera|Camera):(?P<name>(?:MicroVideo|MotionPhoto)\w*)>.*?</\2:(?P=name)>"""
    rb"""|\shdrgm:\w+\s*=\s*(?:"[^"]*"|'[^']*')"""
    rb"""|\sxmpNote:HasExtendedXMP\s*=\s*(?:"[^"]*"|'[^']*')""",
    re.DOTALL,
)
"""What tells a viewer of a motion clip, gain map or depth picture that is no longer in the file."""


def xmp_without_pictures(xmp: bytes, dropped: list[str], *, companions_lost: bool = False) -> bytes:
    """Take thumbnails out of an XMP packet, and pointers to a motion clip or gain map that is lost."""
    cleaned = _XMP_THUMBNAILS.sub(b"", xmp)
    if cleaned != xmp:
        dropped.append("XMP thumbnail")
    return _XMP_COMPANIONS.sub(b"", cleaned) if companions_lost else cleaned


_PHOTOSHOP_THUMBNAILS = frozenset({1033, 1036})


def photoshop_without_thumbnails(resources: bytes, dropped: list[str]) -> bytes:
    """Take the thumbnail resources out of a block of Photoshop image resources ('8BIM' records)."""
    kept, position = bytearray(), 0
    while position + 12 <= len(resources) and resources[position : position + 4] in (
        b"8BIM",
        b"MeSa",
        b"PHUT",
    ):
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
    return bytes(kept)


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
