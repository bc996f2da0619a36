"""The marker segments of a JPEG, read from bytes alone, before any decoder sees them.

Rules of this module:
- It parses lengths and markers, never pixels, and never trusts a length beyond the bytes.
- What costs a decoder time or memory out of proportion to pixels and bytes is refused: passes over the
  picture that are drawn by ten bytes each, and segments by the million.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

_EOI, _SOS = 0xD9, 0xDA
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset(range(0xD0, 0xD8)) | {0x01}
_MARKER = re.compile(rb"\xff[\x01-\xfe]")
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""A marker inside entropy-coded data: not a stuffed zero and not a restart marker (ITU-T T.81, B.1.1.5). Fill
bytes before it are left out: a pattern that takes them is tried anew at each byte of a long run."""
_FILL = re.compile(rb"\xff+")
_EXIF_START = b"Exif\x00\x00"

_MOST_MARKERS = 20_000
"""Outside picture data. A gigabyte of full segments are 16,000."""
_MOST_FILL_BYTES = 1 << 20
"""Before markers. Pillow reads them one by one, half a microsecond each."""
_LONG_FILL = b"\xff" * 4096
"""Inside picture data, where encoders put none. While libjpeg passes over it, Pillow joins the file again and
again."""
_MOST_EXIF_SEGMENTS = 64
"""4 MB. Pillow joins them one by one: 1500 of them took a minute."""
_MOST_SCANS, _FEWEST_SCANS = 100, 25
_MOST_SCANNED_PIXELS = 5_000_000_000
"""Encoders draw a progressive JPEG in 10 to 20 scans. A scan without data costs a pass over the whole picture
all the same, up to 0.2 s for 200 megapixels of grey: the limit keeps that below the time of decoding three or
four times. libtiff allows 100 scans, libjpeg-turbo's own fuzzers 500."""


@dataclass(frozen=True, slots=True)
class JpegSegment:
    """One marker segment before the first scan: marker byte and payload without the length."""

    marker: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class JpegLayout:
    """Where a JPEG's parts are.

    Attributes:
        segments: APPn and COM segments, in order.
        end: offset just behind the picture's own end-of-image marker.
        frame: number of the start-of-frame marker minus 0xC0 (0 baseline, 2 progressive, ...).
        precision: bits per sample.
        tables: quantisation table number of each component, in component order.
        undrawn: numbers of components that no scan has.
    """

    segments: tuple[JpegSegment, ...]
    end: int
    frame: int
    precision: int
    tables: tuple[int, ...]
    undrawn: frozenset[int]


def jpeg_layout(
    data: bytes, start: int = 0, *, strict: bool = True, most_markers: int = _MOST_MARKERS
) -> JpegLayout:
    """Walk the marker segments from a start-of-image to its own end-of-image.

    Walking, and not searching for FF D9 from the end, keeps thumbnails, previews and data that phones
    append behind the picture (motion photos, zero padding) from being mistaken for its end.

    Args:
        data: the file's bytes.
        start: of the start-of-image.
        strict: off passes over bytes between segments that are no marker, as decoders do: programs exist
            that leave some there. On is for what may be no JPEG at all.
        most_markers: outside picture data; one with more is refused.

    Raises:
        IncompleteError: the bytes stop before the end-of-image marker.
        RefusedError: what stands there is not a marker (undecodable), or reading it would take very long
            (too_large).
    """
    segments: list[JpegSegment] = []
    frame, precision, pixels = -1, 8, 0
    tables: tuple[int, ...] = ()
    undrawn: set[int] = set()
    position = start + 2
    scans = exifs = fill_bytes = 0
    for _ in range(most_markers):
        before = position
        if not strict:
            position = _next_marker(data, position)
        marker, position = _jpeg_marker(data, position)
        fill_bytes += position - before - 2
        if fill_bytes > _MOST_FILL_BYTES:
            raise _disproportionate(f"has more than {_MOST_FILL_BYTES} bytes between its segments")
        if marker == _EOI:
            break
        if marker in _STANDALONE:
            continue
        payload, position = _jpeg_payload(data, position)
        if marker in _START_OF_FRAME and len(payload) >= 6:  # noqa: PLR2004 - fixed header of T.81, B.2.2
            frame, precision = marker - 0xC0, payload[0]
            pixels = max(pixels, math.prod(struct.unpack_from(">HH", payload, 1)))
            tables = tuple(payload[8::3][: payload[5]])
            undrawn = set(payload[6::3][: payload[5]])
        elif marker == _SOS:
            scans += 1
            _refuse_scans(scans, pixels)
            undrawn.difference_update(payload[1 : 1 + 2 * payload[0] : 2] if payload else b"")
            position = _jpeg_scan_end(data, position)
        elif 0xE0 <= marker <= 0xEF or marker == 0xFE:  # noqa: PLR2004 - APP0 to APP15, COM (T.81, table B.1)
            segments.append(JpegSegment(marker, payload))
            exifs += payload.startswith(_EXIF_START)
            if exifs > _MOST_EXIF_SEGMENTS:
                raise _disproportionate(f"has more than {_MOST_EXIF_SEGMENTS} EXIF blocks")
    else:
        raise _disproportionate(f"has more than {most_markers} segments")
    return JpegLayout(tuple(segments), position, frame, precision, tables, frozenset(undrawn))


def _jpeg_marker(data: bytes, position: int) -> tuple[int, int]:
    if position >= len(data):
        raise IncompleteError("the JPEG stops before its end-of-image marker")
    if data[position] != 0xFF:  # noqa: PLR2004 - the byte that starts every marker
        if not data[position:].strip(b"\x00"):
            raise IncompleteError("the JPEG goes on as zeros where its next part should be")
        raise RefusedError(
            "undecodable", f"the JPEG is damaged at byte {position}", "restore it from a good copy"
        )
    fill = _FILL.match(data, position)  # fill bytes may precede a marker
    position = position if fill is None else fill.end()
    if position >= len(data):
        raise IncompleteError("the JPEG stops inside a marker")
    return data[position], position + 1


def _next_marker(data: bytes, position: int) -> int:
    """Return where the next marker starts; `position` itself where no more of them come."""
    found = _MARKER.search(data, position)
    return position if found is None else found.start()


def _jpeg_payload(data: bytes, position: int) -> tuple[bytes, int]:
    if position + 2 > len(data):
        raise IncompleteError("the JPEG stops inside a segment")
    (length,) = struct.unpack_from(">H", data, position)
    if length < 2:  # noqa: PLR2004 - the length counts its own two bytes
        raise RefusedError(
            "undecodable", f"the JPEG is damaged at byte {position}", "restore it from a good copy"
        )
    if position + length > len(data):
        raise IncompleteError("the JPEG stops inside a segment")
    return data[position + 2 : position + length], position + length


def _jpeg_scan_end(data: bytes, position: int) -> int:
    found = _NEXT_MARKER.search(data, position)
    if found is None:
        raise IncompleteError("the JPEG stops inside its picture data")
    if data.find(_LONG_FILL, position, found.end()) >= 0:
        raise _disproportionate("has very long fill inside its picture data")
    return found.start()


def _refuse_scans(scans: int, pixels: int) -> None:
    most = max(_FEWEST_SCANS, min(_MOST_SCANS, _MOST_SCANNED_PIXELS // max(pixels, 1)))
    if scans > most:
        raise _disproportionate(f"is drawn in more than {most} passes over {pixels} pixels")


def _disproportionate(what: str) -> RefusedError:
    return RefusedError(
        "too_large",
        f"this JPEG {what}: reading it would take very long",
        "open it in a picture editor, save it anew and drop that",
    )
