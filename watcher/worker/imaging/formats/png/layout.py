"""The chunks of a PNG, read from bytes alone, before any decoder sees them.

Rules of this module:
- It parses lengths, types and checksums, never pixels, and never trusts a length beyond the bytes.
- Compressed text and profiles are measured in steps and thrown away: what would fill memory is refused. So
  are chunks far shorter than any encoder writes: each costs time of its own.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
"""Colour types (PNG, third edition, 11.2.1)."""
_WHOLE_BYTES = (8, 16)
_DEPTHS = {
    GREY: (1, 2, 4, *_WHOLE_BYTES),
    RGB: _WHOLE_BYTES,
    PALETTE: (1, 2, 4, 8),
    GREY_ALPHA: _WHOLE_BYTES,
    RGB_ALPHA: _WHOLE_BYTES,
}
_HEADER_BYTES = 13
_MOST_CHUNKS = 20_000
"""More than any program writes besides picture data; each costs memory here."""
_CHUNK_BYTES = 64
"""Encoders write picture data in chunks of kilobytes; in empty ones a gigabyte holds 90 million."""
_MOST_EXPANDED_BYTES = 1 << 26
"""What all compressed text and profiles of a picture may expand to. Programs that keep their whole work in
there (node graphs, raw EXIF) need a few megabytes."""
_EXPANSION_STEP_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class PngChunk:
    """One chunk: its type and its data, without length and checksum.

    Attributes:
        kind: four letters.
        data: empty for picture data (IDAT).
        intact: the checksum was right; not known of picture data, which decoders check.
    """

    kind: bytes
    data: bytes
    intact: bool = True


@dataclass(frozen=True, slots=True)
class PngLayout:
    """A PNG's chunks and the facts of its header that decoders hide.

    Attributes:
        chunks: all chunks in order, but only the first one with picture data.
        picture_data: first and last byte (exclusive) of each IDAT chunk, its length and checksum included;
            neighbours are joined.
        end: offset just behind IEND.
        width: in pixels.
        height: in pixels.
        depth: bits per sample.
        colour_type: GREY, RGB, PALETTE, GREY_ALPHA or RGB_ALPHA.
        interlaced: Adam7.
    """

    chunks: tuple[PngChunk, ...]
    picture_data: tuple[tuple[int, int], ...]
    end: int
    width: int
    height: int
    depth: int
    colour_type: int
    interlaced: bool

    def first(self, kind: bytes) -> bytes | None:
        """Return the data of the first chunk of a kind, or None."""
        return next((chunk.data for chunk in self.chunks if chunk.kind == kind), None)


def png_layout(data: bytes) -> PngLayout:
    """List a PNG's chunks.

    Raises:
        IncompleteError: the bytes stop before IEND, or turn to zeros.
        RefusedError: what stands where a chunk should be is not one, or a chunk that the pixels depend on is
            damaged (undecodable); there are far too many chunks (too_large); the file is of Apple's own kind
            (unsupported).
    """
    chunks: list[PngChunk] = []
    spans: list[tuple[int, int]] = []
    position = len(PNG_SIGNATURE)
    left = _MOST_CHUNKS + len(data) // _CHUNK_BYTES
    while not chunks or chunks[-1].kind != b"IEND":
        kind, length = _chunk_head(data, position)
        stop = position + 12 + length
        if kind != b"IDAT":
            chunks.append(_chunk(data, position, kind, length))
        elif spans and spans[-1][1] == position:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((position, stop))
            if len(spans) == 1:
                chunks.append(PngChunk(kind, b""))
        left -= 1
        if left < 0 or len(chunks) > _MOST_CHUNKS or len(spans) > _MOST_CHUNKS:
            raise RefusedError(
                "too_large",
                "this PNG is cut into chunks of a few bytes each: reading it would take very long",
                "open it in a picture editor, save it anew and drop that",
            )
        position = stop
    if not spans:
        raise _damaged("it has no picture data")
    return _with_header(tuple(chunks), tuple(spans), position)


def _chunk_head(data: bytes, position: int) -> tuple[bytes, int]:
    if position + 8 > len(data):
        raise IncompleteError("the PNG stops before its IEND chunk")
    length, kind = struct.unpack_from(">I4s", data, position)
    if not kind.isalpha():
        if not data[position:].strip(b"\x00"):
            raise IncompleteError("the PNG goes on as zeros where its next chunk should be")
        raise _damaged(f"byte {position} begins no chunk")
    if position + 12 + length > len(data):
        raise IncompleteError("the PNG stops inside a chunk")
    return kind, length


_NEEDED = frozenset({b"IHDR", b"PLTE", b"tRNS"})


def _chunk(data: bytes, position: int, kind: bytes, length: int) -> PngChunk:
    body = data[position + 8 : position + 8 + length]
    (checksum,) = struct.unpack_from(">I", data, position + 8 + length)
    intact = zlib.crc32(body, zlib.crc32(kind)) == checksum
    if kind in _NEEDED and not intact:
        raise _damaged(f"its {kind.decode()} chunk has a wrong checksum")
    return PngChunk(kind, body, intact)


def _with_header(chunks: tuple[PngChunk, ...], spans: tuple[tuple[int, int], ...], end: int) -> PngLayout:
    if chunks[0].kind == b"CgBI":
        raise RefusedError(
            "unsupported",
            "this PNG is of Apple's own kind (CgBI, as inside iPhone apps), which other programs cannot read",
            "open it on a Mac or an iPhone, export it as an ordinary PNG and drop that",
        )
    header = chunks[0].data
    if chunks[0].kind != b"IHDR" or len(header) != _HEADER_BYTES:
        raise _damaged("it has no valid header")
    width, height, depth, colour_type, compression, filters, interlace = struct.unpack(">IIBBBBB", header)
    if depth not in _DEPTHS.get(colour_type, ()) or compression or filters or interlace > 1:
        raise _damaged("its header is of no kind that there is")
    return PngLayout(chunks, spans, end, width, height, depth, colour_type, interlaced=interlace == 1)


def _damaged(reason: str) -> RefusedError:
    return RefusedError("undecodable", f"the PNG is damaged: {reason}", "restore it from a good copy")


def chunk_bytes(chunk: PngChunk) -> bytes:
    """Return a chunk as it stands in a file: length, type, data, checksum."""
    body = chunk.kind + chunk.data
    return struct.pack(">I", len(chunk.data)) + body + struct.pack(">I", zlib.crc32(body))


def picture_bytes(data: bytes, layout: PngLayout) -> bytes:
    """Return the IDAT chunks as they stand in the file."""
    return b"".join(data[start:stop] for start, stop in layout.picture_data)


def zlib_stream(data: bytes, layout: PngLayout) -> bytes:
    """Return what the IDAT chunks hold together."""
    return b"".join(_bodies(data, layout))


def _bodies(data: bytes, layout: PngLayout) -> Iterator[bytes]:
    for start, stop in layout.picture_data:
        position = start
        while position < stop:
            (length,) = struct.unpack_from(">I", data, position)
            yield data[position + 8 : position + 8 + length]
            position += 12 + length


# --- compressed text and profiles --------------------------------------------------------------------------


def compressed_part(chunk: PngChunk) -> bytes | None:
    """Return the zlib stream inside a zTXt, iTXt or iCCP chunk; None where there is none."""
    _, found, rest = chunk.data.partition(b"\x00")
    if not found:
        return None
    if chunk.kind in (b"zTXt", b"iCCP"):
        return rest[1:]
    if chunk.kind == b"iTXt" and rest[:1] == b"\x01":
        parts = rest[2:].split(b"\x00", 2)
        return parts[2] if len(parts) == 3 else None  # noqa: PLR2004 - language, translated keyword, text
    return None


def refuse_expanding(layout: PngLayout) -> None:
    """Measure what compressed text and profiles expand to; nothing of it is kept.

    Raises:
        RefusedError: more than any program puts there (`too_large`).
    """
    left = _MOST_EXPANDED_BYTES
    for chunk in layout.chunks:
        stream = compressed_part(chunk)
        if stream is None:
            continue
        left -= _expanded_bytes(stream, left)
        if left < 0:
            raise RefusedError(
                "too_large",
                f"the PNG's texts and profiles expand to more than {_MOST_EXPANDED_BYTES >> 20} MB",
                "save it without metadata and drop that",
            )


def _expanded_bytes(stream: bytes, most: int) -> int:
    """Count what a stream expands to, up to a little more than `most`, or to where it is damaged."""
    expander, size, waiting = zlib.decompressobj(), 0, stream
    try:
        while waiting and size <= most:
            size += len(expander.decompress(waiting, _EXPANSION_STEP_BYTES))
            waiting = expander.unconsumed_tail
    except zlib.error:
        pass
    return size


def expanded(stream: bytes, most: int) -> bytes | None:
    """Return what a stream expands to, or None if it is damaged or expands to more than `most` bytes."""
    expander = zlib.decompressobj()
    try:
        result = expander.decompress(stream, most)
    except zlib.error:
        return None
    return result if expander.eof else None
