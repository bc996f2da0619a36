"""JPEG: what travels with the pixels, and which of it goes into the result."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.jpeg.layout import JpegSegment
from watcher.worker.imaging.ifd import tiff_first_ifd
from watcher.worker.imaging.metadata import (
    EXIF_PREFIX,
    JPEG_START,
    UNREADABLE,
    XMP_PREFIX,
    kept_exif,
    photoshop_without_thumbnails,
    xmp_without_pictures,
)

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.jpeg.layout import JpegLayout

_XMP_EXTENSION_PREFIX = b"http://ns.adobe.com/xmp/extension/\x00"
_PHOTOSHOP_PREFIX = b"Photoshop 3.0\x00"
_MPF_PREFIX = b"MPF\x00"
_ICC_PREFIX = b"ICC_PROFILE\x00"
_MP_ENTRIES = 0xB002
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
            except UNREADABLE:
                return ()
            attributes = [
                struct.unpack_from(f"{ifd.order}I", entries, at)[0] for at in range(0, len(entries) - 15, 16)
            ]
            return tuple(attribute & 0xFFFFFF for attribute in attributes[1:])
    return ()


def is_companion(kind: int) -> bool:
    """Tell a further picture that only serves the first (preview, gain map) from one of its own."""
    return kind in _MP_PREVIEWS or kind in (_MP_UNDEFINED, _MP_BASELINE)


def is_adobe(segment: JpegSegment) -> bool:
    """Tell Adobe's segment, by which decoders know how the colours are coded."""
    return (
        segment.marker == 0xEE  # noqa: PLR2004 - APP14
        and segment.payload.startswith(b"Adobe")
        and len(segment.payload) >= 12  # noqa: PLR2004 - libjpeg takes shorter ones for something else
    )


def jpeg_metadata(layout: JpegLayout, trailer: bytes, dropped: list[str], *, keep: bool) -> list[JpegSegment]:
    """Choose the source's segments that go into the result, in order; Adobe's is always among them.

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
    if trailer.startswith(JPEG_START):
        return "further pictures (preview, gain map, or other)"
    return f"{len(trailer)} bytes behind the end of the picture"


def _jpeg_segment(  # noqa: PLR0911 - a table of cases, one return each
    segment: JpegSegment, dropped: list[str], *, keep: bool, companions_lost: bool
) -> JpegSegment | None:
    marker, payload = segment.marker, segment.payload
    if is_adobe(segment):
        return segment
    if marker == 0xE0 and payload.startswith(b"JFIF\x00"):  # noqa: PLR2004 - APP0
        if payload[12:14].strip(b"\x00"):
            dropped.append("JFIF thumbnail")
        return JpegSegment(marker, payload[:12] + b"\x00\x00")
    if marker == 0xE2 and payload.startswith(_ICC_PREFIX):  # noqa: PLR2004 - APP2
        return segment
    if marker == 0xE1 and payload.startswith(EXIF_PREFIX):  # noqa: PLR2004 - APP1
        return JpegSegment(marker, kept_exif(payload, dropped, keep=keep))
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


def _segment_name(marker: int, payload: bytes) -> str:
    for number, start, name in _NAMED_SEGMENTS:
        if marker == number and payload.startswith(start):
            return name
    return f"APP{marker - 0xE0}"


def _is_settings(marker: int, payload: bytes) -> bool:
    named = _segment_name(marker, payload)
    unknown = named == f"APP{marker - 0xE0}"
    return unknown and len(payload) <= _SMALL_SEGMENT_BYTES and JPEG_START not in payload
