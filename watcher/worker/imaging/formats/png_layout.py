"""The chunks of a PNG, read from bytes alone, before any decoder sees them.

Rules of this module: it parses lengths and types, never pixels, and never trusts a length beyond the bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


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


def chunk_bytes(chunk: PngChunk) -> bytes:
    """Return a chunk as it stands in a file: length, type, data, checksum."""
    body = chunk.kind + chunk.data
    return struct.pack(">I", len(chunk.data)) + body + struct.pack(">I", zlib.crc32(body))
