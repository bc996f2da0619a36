"""The outer structure of picture files, read from bytes alone, before any decoder sees them.

What this module owns: telling formats apart by content, finding the real end of a file, and listing the
parts (segments, chunks, tags) that carry metadata. Rules:
- It parses lengths and tags, never pixels, and never trusts a length beyond the bytes that are there.
- A missing end is `IncompleteError`; a recognised format that is not served is `RefusedError` (unsupported)
  with a remedy; anything else is undecodable.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Literal

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

Container = Literal["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"]

_RIFF_HEADER_BYTES = 12
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIGNATURES: tuple[tuple[bytes, Container], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (PNG_SIGNATURE, "PNG"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_EXPORT = "export it as JPEG, PNG, WebP or TIFF and drop that"
_DEVELOP = "develop it in a RAW converter and drop the JPEG or TIFF"
_RECOGNISED: tuple[tuple[bytes, str, str], ...] = (
    (b"II+\x00", "BigTIFF", "save it as a classic TIFF"),
    (b"MM\x00+", "BigTIFF", "save it as a classic TIFF"),
    (b"IIRO", "an Olympus RAW file", _DEVELOP),
    (b"IIRS", "an Olympus RAW file", _DEVELOP),
    (b"IIU\x00", "a Panasonic RAW file", _DEVELOP),
    (b"FUJIFILMCCD-RAW", "a Fujifilm RAW file", _DEVELOP),
    (b"8BPS", "a Photoshop document", _EXPORT),
    (b"%PDF", "a PDF document", _EXPORT),
    (b"\xff\x0a", "a JPEG XL picture", _EXPORT),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "a JPEG XL picture", _EXPORT),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "a JPEG 2000 picture", _EXPORT),
)
_BRANDS: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    (
        (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
        "a HEIC/HEIF picture",
        _EXPORT,
    ),
    ((b"avif", b"avis"), "an AVIF picture", _EXPORT),
    ((b"crx ",), "a Canon RAW file", _DEVELOP),
)


def sniff(data: bytes) -> Container:
    """Return the container format of a file's bytes.

    Raises:
        IncompleteError: the file is empty, a prefix of a signature, or zeros as far as one can see.
        RefusedError: recognised but not served (`unsupported`), or not a picture at all (`undecodable`).
    """
    head = data[:32]
    if not head.strip(b"\x00"):
        raise IncompleteError("the file is empty or holds only zeros so far")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for signature, container in _SIGNATURES:
        if head.startswith(signature):
            return container
    if any(signature.startswith(data) for signature, _ in _SIGNATURES) or (
        len(data) < _RIFF_HEADER_BYTES and (data[:4] == b"RIFF" or b"RIFF".startswith(data))
    ):
        raise IncompleteError(f"the file ends after {len(data)} bytes, inside its signature")
    _refuse_recognised(head)
    raise RefusedError(
        "undecodable",
        "this is not a picture in any format that is known here, whatever its name says",
        "drop a JPEG, PNG, WebP, TIFF, BMP or single-frame GIF",
    )


def _refuse_recognised(head: bytes) -> None:
    for signature, name, remedy in _RECOGNISED:
        if head.startswith(signature):
            raise RefusedError("unsupported", f"this is {name}, which is not served", remedy)
    if head[4:8] == b"ftyp":
        for brands, name, remedy in _BRANDS:
            if head[8:12] in brands:
                raise RefusedError("unsupported", f"this is {name}, which is not served", remedy)


# --- JPEG --------------------------------------------------------------------------------------------------

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


# --- PNG ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PngChunk:
    """One chunk: its type and its data, without length and checksum."""

    kind: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class PngLayout:
    """A PNG's chunks and the facts of its header that decoders hide.

    Attributes:
        chunks: all chunks in order; the data of IDAT chunks is left out (empty).
        end: offset just behind IEND.
        depth: bits per sample.
        colour_type: 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGBA.
        interlaced: Adam7.
    """

    chunks: tuple[PngChunk, ...]
    end: int
    depth: int
    colour_type: int
    interlaced: bool


def png_layout(data: bytes) -> PngLayout:
    """List a PNG's chunks.

    Raises:
        IncompleteError: the bytes stop before IEND, or turn to zeros.
        RefusedError: what stands where a chunk should be is not one (undecodable).
    """
    chunks: list[PngChunk] = []
    position = len(PNG_SIGNATURE)
    while not chunks or chunks[-1].kind != b"IEND":
        if position + 8 > len(data):
            raise IncompleteError("the PNG stops before its IEND chunk")
        length, kind = struct.unpack_from(">I4s", data, position)
        if not kind.isalpha():
            if not data[position:].strip(b"\x00"):
                raise IncompleteError("the PNG goes on as zeros where its next chunk should be")
            raise RefusedError(
                "undecodable", f"the PNG is damaged at byte {position}", "restore it from a good copy"
            )
        if position + 12 + length > len(data):
            raise IncompleteError("the PNG stops inside a chunk")
        body = b"" if kind == b"IDAT" else data[position + 8 : position + 8 + length]
        chunks.append(PngChunk(kind, body))
        position += 12 + length
    header = chunks[0].data
    if chunks[0].kind != b"IHDR" or len(header) != 13:  # noqa: PLR2004 - the fixed size of IHDR
        raise RefusedError("undecodable", "the PNG has no valid header", "restore it from a good copy")
    return PngLayout(tuple(chunks), position, header[8], header[9], interlaced=header[12] == 1)


# --- WebP --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WebpLayout:
    """A WebP's chunks.

    Attributes:
        kinds: four-letter types in order.
        lossless: the picture is VP8L.
        animated: it is an animation.
        end: offset just behind the RIFF container.
    """

    kinds: tuple[bytes, ...]
    lossless: bool
    animated: bool
    end: int


_WEBP_TAIL_BYTES = 512
_WEBP_TAIL_SHARE = 8
"""A tail of 512 zeros was only reserved by a sync client; in lossy files only if it is an eighth of the file
too, since their arithmetic coder ends flat pictures in zeros (measured: up to 5.4 % of the file)."""


def webp_layout(data: bytes) -> WebpLayout:
    """List a WebP's chunks.

    Raises:
        IncompleteError: fewer bytes than the RIFF header promises, or a tail of zeros.
    """
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise IncompleteError(f"the WebP promises {end} bytes and has {len(data)}")
    kinds: list[bytes] = []
    position = 12
    while position + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, position)
        kinds.append(kind)
        position += 8 + length + (length & 1)
    lossless = b"VP8L" in kinds
    tail = _WEBP_TAIL_BYTES if lossless else max(_WEBP_TAIL_BYTES, end // _WEBP_TAIL_SHARE)
    if end > 2 * tail and not data[end - tail : end].strip(b"\x00"):
        raise IncompleteError("the WebP ends in zeros")
    return WebpLayout(tuple(kinds), lossless, b"ANIM" in kinds or b"ANMF" in kinds, end)


# --- GIF ---------------------------------------------------------------------------------------------------


def gif_frames(data: bytes) -> int:
    """Count the frames of a GIF, walking its blocks to the trailer.

    Raises:
        IncompleteError: the bytes stop before the trailer.
        RefusedError: an unknown block (undecodable).
    """
    if len(data) < 13:  # noqa: PLR2004 - signature and screen descriptor
        raise IncompleteError("the GIF stops inside its header")
    flags = data[10]
    position = 13 + _gif_table_bytes(flags)
    frames = 0
    while True:
        if position >= len(data):
            raise IncompleteError("the GIF stops before its trailer")
        block = data[position]
        if block == 0x3B:  # noqa: PLR2004 - trailer (GIF89a, 27)
            return frames
        if block == 0x2C:  # noqa: PLR2004 - image descriptor (GIF89a, 20)
            frames += 1
            if position + 10 > len(data):
                raise IncompleteError("the GIF stops inside a frame")
            position = _gif_skip(data, position + 11 + _gif_table_bytes(data[position + 9]))
        elif block == 0x21:  # noqa: PLR2004 - extension (GIF89a, 23)
            position = _gif_skip(data, position + 2)
        elif not data[position:].strip(b"\x00"):
            raise IncompleteError("the GIF goes on as zeros where its next block should be")
        else:
            raise RefusedError(
                "undecodable", f"the GIF is damaged at byte {position}", "restore it from a good copy"
            )


def _gif_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_skip(data: bytes, position: int) -> int:
    while position < len(data):
        length = data[position]
        position += 1 + length
        if length == 0:
            return position
    raise IncompleteError("the GIF stops inside a block")


# --- BMP ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _BmpPixels:
    """Where a BMP's pixel array lies, and the bits of a pixel."""

    start: int
    size: int
    bits: int


def _bmp_pixels(data: bytes) -> _BmpPixels | None:
    """Measure the pixel array by the header; None where it is compressed."""
    if len(data) < 34:  # noqa: PLR2004 - file header and the part of the info header that is read here
        raise IncompleteError("the BMP stops inside its header")
    offset, header_size = struct.unpack_from("<II", data, 10)
    if header_size == 12:  # noqa: PLR2004 - BITMAPCOREHEADER
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        compression = 0
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if compression not in (0, 3):  # BI_RGB, BI_BITFIELDS
        return None
    return _BmpPixels(offset, (abs(width) * bits + 31) // 32 * 4 * abs(height), bits)


def check_bmp_end(data: bytes) -> None:
    """Compare a BMP's length with what its header promises.

    The header's file size is often wrong in old files, so the pixel array is measured instead; run-length
    data has no length to measure and is left to the decoder.

    Raises:
        IncompleteError: the pixel array is not all there.
    """
    pixels = _bmp_pixels(data)
    if pixels is not None and pixels.start + pixels.size > len(data):
        needed = pixels.start + pixels.size
        raise IncompleteError(f"the BMP needs {needed} bytes and has {len(data)}")


def refuse_zero_tail_of_bmp(data: bytes) -> None:
    """Take a whole BMP whose pixels end in zeros for one that was only reserved so far.

    Raises:
        IncompleteError: they do, and a zero is black and no number of a palette entry.
    """
    pixels = _bmp_pixels(data)
    if pixels is not None and pixels.bits >= 16:  # noqa: PLR2004 - fewer bits are numbers of palette entries
        _refuse_zero_tail("BMP", data, [(pixels.start, pixels.size)], _dark_tail_bytes(pixels.size))


_DARK_TAIL_SHARE = 4
_DARK_TAIL_MIN_BYTES = 4096
"""In formats without an end marker and without compression zeros are missing bytes, or black. A black quarter
at the end of a picture is rare enough to wait for; less than a page is not what a writer reserves."""


def _dark_tail_bytes(total_bytes: int) -> int:
    """How many zeros at the end of so many bytes of pixels are suspicious; 0 for none."""
    tail = total_bytes // _DARK_TAIL_SHARE
    return tail if tail >= _DARK_TAIL_MIN_BYTES else 0


def _refuse_zero_tail(name: str, data: bytes, parts: list[tuple[int, int]], tail_bytes: int) -> None:
    """Raise if the last bytes of these parts (offset, size), in the order of the file, are zeros."""
    left = tail_bytes
    for offset, size in sorted(parts, reverse=True):
        taken = min(size, left)
        if data[offset + size - taken : offset + size].strip(b"\x00"):
            return
        left -= taken
    if tail_bytes and left == 0:
        raise IncompleteError(f"the {name}'s picture data ends in zeros, and was written just now")


# --- TIFF --------------------------------------------------------------------------------------------------

_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_INTEGERS = {1: "B", 3: "H", 4: "I", 13: "I"}


@dataclass(frozen=True, slots=True)
class IfdEntry:
    """One tag of a TIFF directory: type, count, and where its value lies (absolute in the bytes)."""

    kind: int
    count: int
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return _TIFF_SIZES.get(self.kind, 1) * self.count


@dataclass(slots=True)
class Ifd:
    """A TIFF directory.

    Attributes:
        order: struct's byte-order character.
        entries: by tag number.
        next_offset: of the next directory, 0 for none.
        next_field: where that offset stands.
        span: the directory's own first and last byte (exclusive).
    """

    order: str
    entries: dict[int, IfdEntry] = field(default_factory=dict)
    next_offset: int = 0
    next_field: int = 0
    span: tuple[int, int] = (0, 0)

    def integers(self, data: bytes, tag: int) -> tuple[int, ...]:
        """Return a tag's values where they are whole numbers, else nothing."""
        entry = self.entries.get(tag)
        if entry is None or entry.kind not in _TIFF_INTEGERS:
            return ()
        return struct.unpack_from(
            f"{self.order}{entry.count}{_TIFF_INTEGERS[entry.kind]}", data, entry.offset
        )

    def raw(self, data: bytes, tag: int) -> bytes:
        """Return a tag's bytes, or nothing."""
        entry = self.entries.get(tag)
        return b"" if entry is None else data[entry.offset : entry.offset + entry.size]


def tiff_first_ifd(data: bytes) -> Ifd:
    """Read the first directory of TIFF-structured bytes (a TIFF file, or an EXIF block).

    Raises:
        IncompleteError: the directory, or a value it points at, lies beyond the bytes.
    """
    if len(data) < 8:  # noqa: PLR2004 - the fixed TIFF header
        raise IncompleteError("the TIFF stops inside its header")
    order = "<" if data[:2] == b"II" else ">"
    (offset,) = struct.unpack_from(f"{order}I", data, 4)
    if offset == 0:
        raise IncompleteError("the TIFF has no directory yet")
    return tiff_ifd(data, order, offset)


def tiff_ifd(data: bytes, order: str, offset: int) -> Ifd:
    """Read the directory at `offset`.

    Raises:
        IncompleteError: it, or a value it points at, lies beyond the bytes.
    """
    if offset + 2 > len(data):
        raise IncompleteError("the TIFF stops before its directory")
    (count,) = struct.unpack_from(f"{order}H", data, offset)
    if count == 0:  # the format demands at least one; a reserved file reads like this
        raise IncompleteError("the TIFF's directory is still empty")
    end = offset + 2 + 12 * count
    if end + 4 > len(data):
        raise IncompleteError("the TIFF stops inside its directory")
    ifd = Ifd(order, next_field=end, span=(offset, end + 4))
    for position in range(offset + 2, end, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, position)
        entry = IfdEntry(kind, number, position + 8)
        if entry.size > 4:  # noqa: PLR2004 - longer values live elsewhere (TIFF 6.0, section 2)
            entry = IfdEntry(kind, number, struct.unpack_from(f"{order}I", data, position + 8)[0])
        if entry.offset + entry.size > len(data):
            raise IncompleteError(f"the value of TIFF tag {tag} lies beyond the end of the file")
        ifd.entries[tag] = entry
    (ifd.next_offset,) = struct.unpack_from(f"{order}I", data, end)
    return ifd


_STRIP_OFFSETS, _STRIP_COUNTS, _TILE_OFFSETS, _TILE_COUNTS = 273, 279, 324, 325
_NEW_SUBFILE_TYPE, _COMPRESSION, _PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION = 254, 259, 262, 330, 50706
_RAW_PHOTOMETRICS = frozenset({32803, 34892})  # colour filter array, linear raw
_UNCOMPRESSED = 1
_EXTRA_SAMPLES = 338
_ZERO_IS_BLACK = frozenset(
    {1, 2}
)  # grey, RGB; elsewhere a zero is white, a number of a palette entry, or ink


def check_tiff(data: bytes) -> Ifd:
    """Return the one directory of a TIFF that holds one ordinary picture.

    Raises:
        IncompleteError: strips or tiles lie beyond the end, or a compressed one is all zeros.
        RefusedError: several pages, sub-pictures, or a camera's RAW data in a TIFF container.
    """
    if data[8:10] == b"CR":
        raise RefusedError("unsupported", "this is a Canon RAW file, which is not served", _DEVELOP)
    ifd = tiff_first_ifd(data)
    photometric = ifd.integers(data, _PHOTOMETRIC)
    if _DNG_VERSION in ifd.entries or _RAW_PHOTOMETRICS.intersection(photometric):
        raise RefusedError("unsupported", "this is a camera RAW file, which is not served", _DEVELOP)
    if _SUB_IFDS in ifd.entries or any(kind & 1 for kind in ifd.integers(data, _NEW_SUBFILE_TYPE)):
        raise RefusedError(
            "unsupported",
            "this TIFF holds further pictures inside the first (camera RAW, a pyramid or layers)",
            "export a flat, single picture and drop that",
        )
    if ifd.next_offset:
        raise RefusedError(
            "unsupported",
            "this TIFF has several pages, and only one would be cleaned",
            "split it into single pages and drop those",
        )
    _check_tiff_data(data, ifd)
    return ifd


def _check_tiff_data(data: bytes, ifd: Ifd) -> None:
    compressed = _is_compressed(data, ifd)
    for offset, count in _tiff_parts(data, ifd):
        if offset + count > len(data):
            raise IncompleteError("the TIFF's picture data lies beyond the end of the file")
        if compressed and count and not data[offset : offset + count].strip(b"\x00"):
            raise IncompleteError("a part of the TIFF's picture data is still zeros")


_COMPRESSED_TAIL_BYTES = 512
"""No compression ends in so many zeros; a writer may have padded its last strip with fewer."""


def refuse_zero_tail_of_tiff(data: bytes, ifd: Ifd) -> None:
    """Take a whole TIFF whose picture data ends in zeros for one that was only reserved so far.

    Raises:
        IncompleteError: it does, and zeros are black and not transparent, or nothing that was compressed.
    """
    parts = _tiff_parts(data, ifd)
    if _is_compressed(data, ifd):
        _refuse_zero_tail("TIFF", data, parts, _COMPRESSED_TAIL_BYTES)
    elif set(ifd.integers(data, _PHOTOMETRIC)) <= _ZERO_IS_BLACK and _EXTRA_SAMPLES not in ifd.entries:
        _refuse_zero_tail("TIFF", data, parts, _dark_tail_bytes(sum(size for _, size in parts)))


def _is_compressed(data: bytes, ifd: Ifd) -> bool:
    return ifd.integers(data, _COMPRESSION) not in ((), (_UNCOMPRESSED,))


def _tiff_parts(data: bytes, ifd: Ifd) -> list[tuple[int, int]]:
    """List offset and size of each strip and tile."""
    parts: list[tuple[int, int]] = []
    for offsets_tag, counts_tag in ((_STRIP_OFFSETS, _STRIP_COUNTS), (_TILE_OFFSETS, _TILE_COUNTS)):
        offsets, counts = ifd.integers(data, offsets_tag), ifd.integers(data, counts_tag)
        parts += zip(offsets, counts, strict=False)
    return parts
