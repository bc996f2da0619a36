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
import zlib
from typing import TYPE_CHECKING

from watcher.worker.imaging.containers import JpegSegment, PngChunk, jpeg_layout, tiff_first_ifd, tiff_ifd
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.containers import Ifd, JpegLayout, PngLayout

EXIF_PREFIX = b"Exif\x00\x00"
XMP_PREFIX = b"http://ns.adobe.com/xap/1.0/\x00"
_XMP_EXTENSION_PREFIX = b"http://ns.adobe.com/xmp/extension/\x00"
_PHOTOSHOP_PREFIX = b"Photoshop 3.0\x00"
_ORIENTATION = 274
_JPEG_START = b"\xff\xd8\xff"
_UNREADABLE = (IncompleteError, RefusedError, struct.error)

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
    except _UNREADABLE:
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
    except _UNREADABLE:
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
    while (start := block.find(_JPEG_START, position)) >= 0:
        position = start + 1
        try:
            stop = jpeg_layout(bytes(block), start).end
        except _UNREADABLE:
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


# --- JPEG --------------------------------------------------------------------------------------------------

_MPF_PREFIX = b"MPF\x00"
_ICC_PREFIX = b"ICC_PROFILE\x00"
_MP_ENTRIES, _MP_INDEX = 0xB002, 0xB001
_MP_PREVIEWS = frozenset({0x010001, 0x010002})
_MP_UNDEFINED = 0x000000
_MP_BASELINE = 0x030000
_SMALL_SEGMENT_BYTES = 4096
"""Unknown application segments up to this size are settings; larger ones tend to be previews."""


def multi_picture_kinds(layout: JpegLayout) -> tuple[int, ...]:
    """Return the MP type of every further picture that a JPEG's multi-picture index lists (CIPA DC-007)."""
    for segment in layout.segments:
        if segment.marker == 0xE2 and segment.payload.startswith(_MPF_PREFIX):  # noqa: PLR2004 - APP2
            block = segment.payload.removeprefix(_MPF_PREFIX)
            try:
                ifd = tiff_first_ifd(block)
                entries = ifd.raw(block, _MP_ENTRIES)
            except _UNREADABLE:
                return ()
            attributes = [
                struct.unpack_from(f"{ifd.order}I", entries, at)[0] for at in range(0, len(entries) - 15, 16)
            ]
            return tuple(attribute & 0xFFFFFF for attribute in attributes[1:])
    return ()


def is_companion(kind: int) -> bool:
    """Tell a further picture that only serves the first (preview, gain map) from one of its own."""
    return kind in _MP_PREVIEWS or kind in (_MP_UNDEFINED, _MP_BASELINE)


def jpeg_metadata(layout: JpegLayout, trailer: bytes, dropped: list[str], *, keep: bool) -> list[JpegSegment]:
    """Choose the source's segments that go into the result, in order.

    Args:
        layout: of the source.
        trailer: the bytes behind the picture's end.
        dropped: names of what is left out are appended.
        keep: the recipe's `keep_metadata`.
    """
    companions_lost = bool(trailer.strip(b"\x00")) or bool(multi_picture_kinds(layout))
    kept: list[JpegSegment] = []
    for segment in layout.segments:
        chosen = _jpeg_segment(segment, dropped, keep=keep, companions_lost=companions_lost)
        if chosen is not None:
            kept.append(chosen)
    if trailer.strip(b"\x00"):
        dropped.append(_name_of_trailer(trailer))
    return kept


def _name_of_trailer(trailer: bytes) -> str:
    if b"ftyp" in trailer[:64] or b"MotionPhoto_Data" in trailer:
        return "motion photo clip"
    if trailer.startswith(_JPEG_START):
        return "companion pictures (preview, gain map)"
    return f"{len(trailer)} bytes behind the end of the picture"


def _jpeg_segment(  # noqa: PLR0911 - a table of cases, one return each
    segment: JpegSegment, dropped: list[str], *, keep: bool, companions_lost: bool
) -> JpegSegment | None:
    marker, payload = segment.marker, segment.payload
    if marker == 0xEE and payload.startswith(b"Adobe"):  # noqa: PLR2004 - APP14: the encoder writes its own
        return None
    if marker == 0xE0 and payload.startswith(b"JFIF\x00"):  # noqa: PLR2004 - APP0
        if payload[12:14].strip(b"\x00"):
            dropped.append("JFIF thumbnail")
        return JpegSegment(marker, payload[:12] + b"\x00\x00")
    if marker == 0xE2 and payload.startswith(_ICC_PREFIX):  # noqa: PLR2004 - APP2
        return segment
    if marker == 0xE1 and payload.startswith(EXIF_PREFIX):  # noqa: PLR2004 - APP1
        return JpegSegment(marker, _kept_exif(payload, dropped, keep=keep))
    name = _segment_name(marker, payload)
    if not keep:
        dropped.append(name)
        return None
    if marker == 0xE1 and payload.startswith(XMP_PREFIX):  # noqa: PLR2004 - APP1
        return JpegSegment(marker, xmp_without_pictures(payload, dropped, companions_lost=companions_lost))
    if marker == 0xED and payload.startswith(_PHOTOSHOP_PREFIX):  # noqa: PLR2004 - APP13
        resources = payload.removeprefix(_PHOTOSHOP_PREFIX)
        return JpegSegment(marker, _PHOTOSHOP_PREFIX + photoshop_without_thumbnails(resources, dropped))
    if marker == 0xFE or _is_settings(marker, payload):  # noqa: PLR2004 - COM
        return segment
    dropped.append(name)
    return None


def _kept_exif(payload: bytes, dropped: list[str], *, keep: bool) -> bytes:
    if keep:
        return exif_without_pictures(payload, dropped)
    dropped.append("EXIF")
    return EXIF_PREFIX + orientation_only(exif_orientation(payload))


_NAMED_SEGMENTS: tuple[tuple[int, bytes, str], ...] = (
    (0xE0, b"JFXX\x00", "JFXX thumbnail"),
    (0xE1, XMP_PREFIX, "XMP"),
    (0xE1, _XMP_EXTENSION_PREFIX, "extended XMP"),
    (0xE2, _MPF_PREFIX, "multi-picture index"),
    (0xE2, b"FPXR", "FlashPix data"),
    (0xEB, b"JP", "content credentials (C2PA)"),
    (0xED, _PHOTOSHOP_PREFIX, "Photoshop/IPTC data"),
    (0xFE, b"", "comment"),
)
_NEVER_KEPT = frozenset({"JFXX thumbnail", "extended XMP", "multi-picture index", "FlashPix data"})


def _segment_name(marker: int, payload: bytes) -> str:
    for number, start, name in _NAMED_SEGMENTS:
        if marker == number and payload.startswith(start):
            return name
    return f"APP{marker - 0xE0}"


def _is_settings(marker: int, payload: bytes) -> bool:
    named = _segment_name(marker, payload)
    unknown = named == f"APP{marker - 0xE0}"
    return unknown and len(payload) <= _SMALL_SEGMENT_BYTES and _JPEG_START not in payload


# --- PNG ---------------------------------------------------------------------------------------------------

_PNG_COLOUR = frozenset({b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"cICP", b"mDCV", b"cLLI"})
_PNG_KEPT = frozenset(
    {b"pHYs", b"tIME", b"sPLT", b"oFFs", b"pCAL", b"sCAL", b"sTER", b"tEXt", b"zTXt", b"iTXt"}
)
_PNG_ENCODERS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_PNG_STALE = {
    b"hIST": "palette histogram",
    b"acTL": "animation data",
    b"fcTL": "animation data",
    b"fdAT": "animation data",
    b"dSIG": "digital signature",
    b"caBX": "content credentials (C2PA)",
    b"iDOT": "",  # Apple's offsets into the picture data; they describe the old bytes
}
PngPlaces = tuple[list[PngChunk], list[PngChunk], list[PngChunk]]


def png_metadata(layout: PngLayout, dropped: list[str], *, keep: bool, same_depth: bool) -> PngPlaces:
    """Choose the source's ancillary chunks that go into the result.

    Returns:
        Chunks before the palette, between palette and picture data, and behind the picture data.
    """
    before: list[PngChunk] = []
    between: list[PngChunk] = []
    behind: list[PngChunk] = []
    seen_data = False
    for chunk in layout.chunks:
        seen_data = seen_data or chunk.kind == b"IDAT"
        if chunk.kind in _PNG_ENCODERS:
            continue
        chosen = _png_chunk(chunk, dropped, keep=keep, same_depth=same_depth)
        if chosen is None:
            continue
        (before if chunk.kind in _PNG_COLOUR else behind if seen_data else between).append(chosen)
    if layout.interlaced:
        dropped.append("interlacing")
    return before, between, behind


def _png_chunk(  # noqa: PLR0911 - a table of cases, one return each
    chunk: PngChunk, dropped: list[str], *, keep: bool, same_depth: bool
) -> PngChunk | None:
    kind = chunk.kind
    if kind in _PNG_STALE or (kind in (b"bKGD", b"sBIT") and not same_depth):
        name = _PNG_STALE.get(kind, kind.decode("ascii"))
        if name and name not in dropped:
            dropped.append(name)
        return None
    if kind in _PNG_COLOUR:
        return chunk
    if kind == b"eXIf":
        return PngChunk(kind, _kept_exif(EXIF_PREFIX + chunk.data, dropped, keep=keep)[len(EXIF_PREFIX) :])
    name = _png_name(chunk)
    if keep and kind == b"iTXt" and chunk.data.startswith(b"XML:com.adobe.xmp\x00"):
        return _png_xmp(chunk, dropped)
    if keep and _raw_profile_has_picture(chunk):
        dropped.append(name)
        return None
    # For unknown chunks the format itself says whether they survive a change of the pixels (PNG 5.4, bit 5
    # of the fourth letter).
    if keep and (kind in _PNG_KEPT or kind == b"bKGD" or kind[3:4].islower()):
        return chunk
    dropped.append(name)
    return None


def _png_name(chunk: PngChunk) -> str:
    name = chunk.kind.decode("ascii")
    if chunk.kind in (b"tEXt", b"zTXt", b"iTXt"):
        keyword = chunk.data.split(b"\x00", 1)[0].decode("latin-1")
        return f"{name} {keyword}"
    return name


def _png_xmp(chunk: PngChunk, dropped: list[str]) -> PngChunk | None:
    header, compressed = chunk.data[:22], chunk.data[18:19] == b"\x01"
    if compressed:  # rare, and a packet that cannot be looked into is not passed on
        dropped.append("XMP (compressed)")
        return None
    return PngChunk(chunk.kind, header + xmp_without_pictures(chunk.data[22:], dropped))


_RAW_PROFILE = re.compile(rb"Raw profile type (?:exif|app1|8bim|iptc)\x00\x00?", re.IGNORECASE)
_RAW_PROFILE_BYTES = 1 << 22


def _raw_profile_has_picture(chunk: PngChunk) -> bool:
    found = _RAW_PROFILE.match(chunk.data)
    if found is None:
        return False
    text = chunk.data[found.end() :]
    try:
        if chunk.kind == b"zTXt":
            text = zlib.decompressobj().decompress(text, _RAW_PROFILE_BYTES)
        blob = bytes.fromhex(text.decode("latin-1").split("\n", 3)[-1])
    except (zlib.error, ValueError):
        return True  # what cannot be looked into is not passed on
    return _JPEG_START in blob
