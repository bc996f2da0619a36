"""The marker segments of a JPEG, read from bytes alone, before any decoder sees them.

Rules of this module: it parses lengths and markers, never pixels, and never trusts a length beyond the bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset(range(0xD0, 0xD8)) | {0x01}
_NEXT_MARKER = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")
"""A marker inside entropy-coded data: not a stuffed zero and not a restart marker (ITU-T T.81, B.1.1.5)."""


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
    """

    segments: tuple[JpegSegment, ...]
    end: int
    frame: int
    precision: int
    tables: tuple[int, ...]


def jpeg_layout(data: bytes, start: int = 0) -> JpegLayout:
    """Walk the marker segments from a start-of-image to its own end-of-image.

    Walking, and not searching for FF D9 from the end, keeps thumbnails, previews and data that phones
    append behind the picture (motion photos, zero padding) from being mistaken for its end.

    Raises:
        IncompleteError: the bytes stop before the end-of-image marker.
        RefusedError: what stands there is not a marker (undecodable).
    """
    segments: list[JpegSegment] = []
    frame, precision = -1, 8
    tables: tuple[int, ...] = ()
    position = start + 2
    while True:
        marker, position = _jpeg_marker(data, position)
        if marker == _EOI:
            break
        if marker in _STANDALONE:
            continue
        payload, position = _jpeg_payload(data, position)
        if marker in _START_OF_FRAME and len(payload) >= 6:  # noqa: PLR2004 - fixed header of T.81, B.2.2
            frame, precision = marker - 0xC0, payload[0]
            tables = tuple(payload[8::3][: payload[5]])
        elif marker == _SOS:
            position = _jpeg_scan_end(data, position)
        elif 0xE0 <= marker <= 0xEF or marker == 0xFE:  # noqa: PLR2004 - APP0 to APP15, COM (T.81, table B.1)
            segments.append(JpegSegment(marker, payload))
    return JpegLayout(tuple(segments), position, frame, precision, tables)


def _jpeg_marker(data: bytes, position: int) -> tuple[int, int]:
    if position >= len(data):
        raise IncompleteError("the JPEG stops before its end-of-image marker")
    if data[position] != 0xFF:  # noqa: PLR2004 - the byte that starts every marker
        if not data[position:].strip(b"\x00"):
            raise IncompleteError("the JPEG goes on as zeros where its next part should be")
        raise RefusedError(
            "undecodable", f"the JPEG is damaged at byte {position}", "restore it from a good copy"
        )
    while position < len(data) and data[position] == 0xFF:  # noqa: PLR2004 - fill bytes may precede a marker
        position += 1
    if position >= len(data):
        raise IncompleteError("the JPEG stops inside a marker")
    return data[position], position + 1


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
    return found.start()
