"""GIF: one frame of numbers of palette entries.

Rules of this module:
- Several frames are refused, for a single one would be all that is left of them.
- The result is the source's file with other picture data, and with the fill's own colours in the frame's
  colour table, which may grow for them; all other blocks stay where and as they were.
- The frame may be smaller than the screen: around it is nothing, and nothing is put there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import GifImagePlugin, Image

from watcher.worker.imaging.formats.gif.layout import (
    APPLICATION,
    COMMENT,
    GRAPHIC_CONTROL,
    PLAIN_TEXT,
    GifExtension,
    gif_layout,
    joined,
    sub_blocks,
    table_size_of,
)
from watcher.worker.imaging.metadata import xmp_without_pictures
from watcher.worker.imaging.picture import Encoded, Picture, animated, damaged, open_image, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.gif.layout import GifFrame, GifLayout
    from watcher.worker.imaging.picture import Encoding, Filled, Mask, Palette, Pixels
    from watcher.worker.imaging.sniffing import Container

_GREYS = bytes(level for level in range(256) for _ in range(3))
"""What decoders take for a picture without a colour table."""
_INTERLACED_ROWS = ((0, 8), (4, 8), (2, 4), (1, 2))
"""First row and step of each pass (GIF89a, appendix E)."""


class GifPicture(Picture):
    """A GIF of one frame."""

    container: ClassVar[Container] = "GIF"
    encode_work: ClassVar[int] = 4

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> GifPicture:  # noqa: ARG003 - a GIF has an end marker
        """Judge the structure and read the header."""
        layout = gif_layout(data)
        if layout.frames > 1:
            raise animated("GIF")
        if layout.frame is None:
            raise damaged("GIF", "it has no picture")
        shown = _shown_gif(layout.frame)
        return cls(data, open_image("GIF", GifImagePlugin.GifImageFile, shown), layout, layout.frame)

    def __init__(self, data: bytes, image: Image.Image, layout: GifLayout, frame: GifFrame) -> None:
        super().__init__(data, image, mode="P")
        self._layout = layout
        self._frame = frame
        width, height = layout.screen
        self.width, self.height = max(width, frame.left + frame.width), max(height, frame.top + frame.height)
        self.transparency: int | None = layout.transparent
        table = frame.table or layout.table
        self.spare_entries[:] = bool(table)
        if not frame.table:
            self.spare_entries[layout.background] = False
        if self.transparency is not None:
            self.spare_entries[self.transparency] = False
        self._table = table or _GREYS

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        frame = super().load()
        nothing = self._layout.background if self.transparency is None else self.transparency
        screen = np.full((self.height, self.width), nothing, np.uint8)
        screen[self._place] = frame
        self.image = Image.frombytes("P", (self.width, self.height), screen.tobytes())
        self.image.putpalette(self._table[: 3 * self._entries(frame)], "RGB")
        return screen

    def _entries(self, frame: Pixels) -> int:
        """Count the entries of the colour table without the black ones at its end that only fill it up."""
        colours = len(self._table.rstrip(b"\x00"))
        shown = max(int(frame.max(initial=0)), self._layout.background, self.transparency or 0)
        return min(len(self._table) // 3, max(-(-colours // 3), shown + 1))

    @property
    def _place(self) -> tuple[slice, slice]:
        """The frame's rows and columns of the screen."""
        frame = self._frame
        return slice(frame.top, frame.top + frame.height), slice(frame.left, frame.left + frame.width)

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        dropped: list[str] = []
        frame = self._frame
        parts, frame_table = self._tables(filled.palette)
        for block in self._layout.blocks:
            if block is None:
                parts.append(frame_table)
                parts.append(_picture_data(filled.pixels[self._place], interlaced=frame.interlaced))
            else:
                parts.append(_kept(block, dropped, keep=how.keep_metadata))
        trailer = self.data[self._layout.end :]
        if trailer.strip(b"\x00"):
            dropped.append(f"{len(trailer)} bytes behind the end of the picture")
        names = tuple(dict.fromkeys(dropped))
        return Encoded(b"".join([*parts, b";"]), "identical", names, self._note_of_border(filled.hole))

    def _note_of_border(self, hole: Mask) -> str | None:
        """Tell of marked pixels where the GIF has none: on the screen, beside the frame."""
        beside = int(np.count_nonzero(hole)) - int(np.count_nonzero(hole[self._place]))
        if not beside:
            return None
        return f"{beside} marked pixels lie beside the GIF's picture, where there is nothing to fill"

    def _tables(self, palette: Palette | None) -> tuple[list[bytes], bytes]:
        """Return header and global table, and descriptor and local table; a filled palette is in its one."""
        layout, frame = self._layout, self._frame
        header, screen_table, flags, table = layout.header, layout.table, frame.flags, frame.table
        if palette is not None and table:
            flags, table = _with_table(flags, palette)
        elif palette is not None and screen_table:
            screen_flags, screen_table = _with_table(header[10], palette)
            header = header[:10] + bytes([screen_flags]) + header[11:]
        place = struct.pack("<BHHHHB", 0x2C, frame.left, frame.top, frame.width, frame.height, flags)
        return [header, screen_table], place + table


def _with_table(flags: int, palette: Palette) -> tuple[int, bytes]:
    """Return a descriptor's flags and its colour table (of 2, 4, ... 256 entries) for a palette."""
    size = table_size_of(len(palette.colours))
    return (flags & ~7) | size, palette.colours.tobytes().ljust(3 << (size + 1), b"\x00")


def _shown_gif(frame: GifFrame) -> bytes:
    """Return a GIF of the frame alone, with colours that make Pillow give the numbers of entries."""
    screen = struct.pack("<6sHHBBB", b"GIF89a", frame.width, frame.height, 0, 0, 0)
    interlace = 0x40 if frame.interlaced else 0
    place = struct.pack("<BHHHHB", 0x2C, 0, 0, frame.width, frame.height, 0x80 | interlace | 7)
    return screen + place + bytes(768) + frame.data + b";"


def _picture_data(indices: NDArray[np.uint8], *, interlaced: bool) -> bytes:
    """Return least code size and blocks of picture data."""
    if interlaced:
        indices = np.concatenate([indices[first::step] for first, step in _INTERLACED_ROWS])
    height, width = indices.shape
    image = Image.frombytes("P", (width, height), np.ascontiguousarray(indices).tobytes())
    image.putpalette(bytes(768))
    frame = gif_layout(save(image, "GIF", {"optimize": False, "interlace": 0})).frame
    assert frame is not None  # noqa: S101 - it was just written
    return frame.data


# --- extensions --------------------------------------------------------------------------------------------

_LOOPS_AND_LOOKS = (b"NETSCAPE2.0", b"ANIMEXTS1.0", b"ICCRGBG1012")
_XMP = b"XMP DataXMP"
_XMP_END = b"\x01" + bytes(range(255, -1, -1)) + b"\x00"
"""XMP stands there as it is, and not in sub-blocks: whoever takes a letter for a length comes out here."""
_HEAD_BYTES = 14
"""Introducer, label, length and name of an application extension."""


def _kept(block: GifExtension, dropped: list[str], *, keep: bool) -> bytes:
    """Return an extension as it goes into the result, or nothing."""
    if block.label in (GRAPHIC_CONTROL, PLAIN_TEXT):
        return block.raw
    name = block.raw[3:_HEAD_BYTES] if block.label == APPLICATION else b""
    if name in _LOOPS_AND_LOOKS:
        return block.raw
    if name.startswith(b"C2PA_GIF"):
        dropped.append("content credentials (C2PA)")
        return b""
    if not keep:
        dropped.append(
            "XMP" if name == _XMP else "comment" if block.label == COMMENT else _words(block, name)
        )
        return b""
    return _without_pictures(block.raw, dropped) if name == _XMP else block.raw


def _words(block: GifExtension, name: bytes) -> str:
    if name:
        return f"application extension {name.decode('latin-1').strip()}"
    return f"extension {block.label:#04x}"


def _without_pictures(raw: bytes, dropped: list[str]) -> bytes:
    head, body = raw[:_HEAD_BYTES], raw[_HEAD_BYTES:]
    if body.endswith(_XMP_END):
        return head + xmp_without_pictures(body, dropped)
    packet = joined(body)
    cleaned = xmp_without_pictures(packet, dropped)
    return raw if cleaned == packet else head + sub_blocks(cleaned)
