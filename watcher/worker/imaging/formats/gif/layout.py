"""The blocks of a GIF, read from bytes alone, before any decoder sees them.

Rules of this module:
- It parses lengths and labels, never pixels, and never trusts a length beyond the bytes.
- Blocks far shorter than any encoder writes are refused: each costs time and memory of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

GRAPHIC_CONTROL, COMMENT, APPLICATION, PLAIN_TEXT = 0xF9, 0xFE, 0xFF, 0x01
"""Labels of extensions (GIF89a, 23 to 26)."""
_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, 0x3B
_HEADER_BYTES, _DESCRIPTOR_BYTES = 13, 10
_HAS_TABLE, _INTERLACED, _SIZE_BITS = 0x80, 0x40, 0x07
_MOST_BLOCKS = 100_000
_BLOCK_BYTES = 64
"""Encoders fill their blocks (255 bytes), but for the last of each frame, comment or profile. In blocks of
one byte a gigabyte holds 500 million: a minute to walk them, and 36 GB for Pillow to keep."""


@dataclass(frozen=True, slots=True)
class GifExtension:
    """An extension: its label, and all its bytes as they stand in the file."""

    label: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class GifFrame:
    """The one image of a still GIF.

    Attributes:
        left: of the screen, in pixels.
        top: of the screen, in pixels.
        width: in pixels.
        height: in pixels.
        flags: of the image descriptor.
        table: the local colour table, 3 bytes an entry, or nothing.
        data: least code size and blocks of picture data, as they stand in the file.
    """

    left: int
    top: int
    width: int
    height: int
    flags: int
    table: bytes
    data: bytes

    @property
    def interlaced(self) -> bool:
        """Whether the rows are stored in four passes."""
        return bool(self.flags & _INTERLACED)


@dataclass(slots=True)
class GifLayout:
    """A GIF's blocks.

    Attributes:
        header: signature and screen descriptor.
        table: the global colour table, 3 bytes an entry, or nothing.
        frames: how many images there are.
        frame: the first of them.
        blocks: extensions in order; None stands for the first image.
        end: offset just behind the trailer.
    """

    header: bytes
    table: bytes
    frames: int = 0
    frame: GifFrame | None = None
    blocks: list[GifExtension | None] = field(default_factory=list)
    end: int = 0

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height of the screen, in pixels."""
        width, height = struct.unpack_from("<HH", self.header, 6)
        return width, height

    @property
    def background(self) -> int:
        """The entry of the global table that the screen has where there is no image."""
        return self.header[11]

    @property
    def transparent(self) -> int | None:
        """The entry that means transparent in the image, or None (GIF89a, 23)."""
        found: int | None = None
        for block in self.blocks:
            if block is None:
                break
            if block.label == GRAPHIC_CONTROL and len(block.raw) >= 8:  # noqa: PLR2004 - the fixed size of one
                found = block.raw[6] if block.raw[3] & 1 else None
        return found


@dataclass(slots=True)
class _Walk:
    """A way through the bytes, and how many blocks more there may be on it."""

    data: bytes
    blocks_left: int

    def behind_sub_blocks(self, position: int) -> int:
        """Return the offset behind a row of sub-blocks."""
        while position < len(self.data):
            length = self.data[position]
            position += 1 + length
            self.blocks_left -= 1
            if self.blocks_left < 0:
                raise RefusedError(
                    "too_large",
                    "this GIF is cut into blocks of a few bytes each: reading it would take very long",
                    "open it in a picture editor, save it anew and drop that",
                )
            if length == 0:
                return position
        raise IncompleteError("the GIF stops inside a block")


def gif_layout(data: bytes) -> GifLayout:
    """List a GIF's blocks up to the trailer.

    Raises:
        IncompleteError: the bytes stop before the trailer.
        RefusedError: an unknown block (undecodable), or far too many (too_large).
    """
    if len(data) < _HEADER_BYTES:
        raise IncompleteError("the GIF stops inside its header")
    position = _HEADER_BYTES + table_bytes(data[10])
    layout = GifLayout(data[:_HEADER_BYTES], data[_HEADER_BYTES:position])
    walk = _Walk(data, _MOST_BLOCKS + len(data) // _BLOCK_BYTES)
    while True:
        if position >= len(data):
            raise IncompleteError("the GIF stops before its trailer")
        block = data[position]
        if block == _TRAILER:
            layout.end = position + 1
            return layout
        if block == _IMAGE:
            position = _read_image(walk, position, layout)
        elif block == _EXTENSION:
            position = _read_extension(walk, position, layout)
        elif not data[position:].strip(b"\x00"):
            raise IncompleteError("the GIF goes on as zeros where its next block should be")
        else:
            raise _damaged(f"byte {position} begins no block")


def _damaged(reason: str) -> RefusedError:
    return RefusedError("undecodable", f"the GIF is damaged: {reason}", "restore it from a good copy")


def _read_image(walk: _Walk, position: int, layout: GifLayout) -> int:
    data = walk.data
    if position + _DESCRIPTOR_BYTES > len(data):
        raise IncompleteError("the GIF stops inside a frame")
    left, top, width, height, flags = struct.unpack_from("<HHHHB", data, position + 1)
    start = position + _DESCRIPTOR_BYTES
    stop = start + table_bytes(flags)
    end = walk.behind_sub_blocks(stop + 1)
    layout.frames += 1
    if layout.frame is None:
        layout.frame = GifFrame(left, top, width, height, flags, data[start:stop], data[stop:end])
        layout.blocks.append(None)
    return end


def _read_extension(walk: _Walk, position: int, layout: GifLayout) -> int:
    end = walk.behind_sub_blocks(position + 2)
    layout.blocks.append(GifExtension(walk.data[position + 1], walk.data[position:end]))
    return end


def table_bytes(flags: int) -> int:
    """Return the size of the colour table that a screen or image descriptor's flags tell of."""
    return 3 << ((flags & _SIZE_BITS) + 1) if flags & _HAS_TABLE else 0


def table_size_of(entries: int) -> int:
    """Return the size in a descriptor's flags of a colour table that has room for so many entries."""
    return max(0, (entries - 1).bit_length() - 1)


def sub_blocks(data: bytes) -> bytes:
    """Return bytes as a row of sub-blocks with its end."""
    parts = [data[at : at + 255] for at in range(0, len(data), 255)]
    return b"".join(bytes([len(part)]) + part for part in parts) + b"\x00"


def joined(blocks: bytes) -> bytes:
    """Return what a row of sub-blocks holds."""
    parts, position = [], 0
    while position < len(blocks) and blocks[position]:
        parts.append(blocks[position + 1 : position + 1 + blocks[position]])
        position += 1 + blocks[position]
    return b"".join(parts)
