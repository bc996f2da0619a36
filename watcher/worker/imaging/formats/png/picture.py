"""PNG: lossless, in every depth and colour type, interlaced or not.

Rules of this module:
- The result is the source's file with other picture data: header, palette, transparency and ancillary chunks
  stay where and as they were, but for what would tell a lie about the new pixels.
- Grey of less than 8 bits is spread over 0 to 255 while it is filled; the fill is rounded to the levels that
  there are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import PngImagePlugin

from watcher.worker.imaging.formats.png.layout import (
    GREY,
    PALETTE,
    PNG_SIGNATURE,
    RGB,
    PngChunk,
    chunk_bytes,
    compressed_part,
    expanded,
    png_layout,
    refuse_expanding,
)
from watcher.worker.imaging.formats.png.metadata import kept_chunk, png_orientation
from watcher.worker.imaging.formats.png.samples import (
    decoded_deep_colour,
    is_deep_colour,
    picture_chunks,
    samples_of_shown,
    shown_png,
)
from watcher.worker.imaging.picture import Encoded, Picture, animated, damaged, guarded, open_image

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from watcher.worker.imaging.formats.png.layout import PngLayout
    from watcher.worker.imaging.formats.png.samples import Samples
    from watcher.worker.imaging.picture import Encoding, Filled, Palette, Pixels, Transparency
    from watcher.worker.imaging.sniffing import Container

_COLOUR_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_DEEP_MODES = {0: "I;16", 2: "RGB;16", 4: "LA;16", 6: "RGBA;16"}
_PROFILE_BYTES = 1 << 24


class PngPicture(Picture):
    """A PNG of one frame."""

    container: ClassVar[Container] = "PNG"
    encode_work: ClassVar[int] = 16
    """For 12 MP of noise two x86 cores took 0.14 s (JPEG) and 3.3 s (PNG)."""

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> PngPicture:  # noqa: ARG003 - a PNG has an end marker
        """Judge the structure and read the header."""
        layout = png_layout(data)
        if _is_animated(layout):
            raise animated("PNG")
        refuse_expanding(layout)
        if layout.colour_type == PALETTE and not layout.first(b"PLTE"):
            raise damaged("PNG", "it has no palette")
        shown = shown_png(data, layout)
        return cls(data, open_image("PNG", PngImagePlugin.PngImageFile, shown), layout, shown)

    def __init__(self, data: bytes, image: Image.Image, layout: PngLayout, shown: bytes) -> None:
        super().__init__(data, image, mode=_mode(layout), orientation=png_orientation(layout))
        self._layout = layout
        self._shown = shown
        self.transparency = _transparency(layout)
        self.icc_profile = _profile(layout)
        self.spare_entries[1 << layout.depth :] = False
        background = layout.first(b"bKGD")
        if layout.colour_type == PALETTE and background:
            self.spare_entries[background[0]] = False

    @property
    def encode_work_px(self) -> int:
        """How much encoding this picture has to do, in pixels of a JPEG."""
        twice = int(self._layout.interlaced) + int(is_deep_colour(self._layout))
        return super().encode_work_px << twice

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        if is_deep_colour(self._layout):
            return guarded(self._deep_colour, self._load_failure)
        samples = samples_of_shown(super().load(), self._layout)
        if self.mode == "1":
            return samples.astype(np.bool_)
        return samples * np.uint8(self._spread) if self.mode == "L" and self._spread > 1 else samples

    def _deep_colour(self) -> NDArray[np.uint16]:
        samples = decoded_deep_colour(self._shown)
        if samples is None:
            raise ValueError("its picture data cannot be decoded")
        return samples

    @property
    def _spread(self) -> int:
        """How far the levels of grey lie apart where they are spread over 0 to 255."""
        return 255 // ((1 << self._layout.depth) - 1) if self._layout.depth < 8 else 1  # noqa: PLR2004 - all levels

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        dropped: list[str] = []
        picture = picture_chunks(self._samples(filled), self._layout)
        parts = [PNG_SIGNATURE]
        written: set[bytes] = set()
        for chunk in self._layout.chunks:
            if chunk.kind == b"IDAT":
                parts.append(picture)
            elif chunk.kind not in _STRUCTURE:
                kept = kept_chunk(chunk, dropped, keep=how.keep_metadata)
                parts += [] if kept is None else [chunk_bytes(kept)]
            elif chunk.kind not in written:  # of two palettes decoders take the first
                parts.append(chunk_bytes(self._structure(chunk, filled.palette)))
            written.add(chunk.kind)
        trailer = self.data[self._layout.end :]
        if trailer.strip(b"\x00"):
            dropped.append(f"{len(trailer)} bytes behind the end of the picture")
        return Encoded(b"".join(parts), "identical", tuple(dict.fromkeys(dropped)))

    def _samples(self, filled: Filled) -> Samples:
        """Turn filled pixels into samples as the file has them."""
        if self.mode == "1":
            return filled.pixels.astype(np.uint8)
        if self.mode != "L" or self._spread == 1:
            return filled.pixels
        levels = (filled.pixels.astype(np.uint16) + self._spread // 2) // self._spread
        samples = levels.astype(np.uint8)
        if isinstance(self.transparency, int):  # what the fill kept off must not be where it is rounded to
            key = self.transparency // self._spread
            samples[(samples == key) & (filled.pixels != self.transparency)] = key ^ 1
        return samples

    def _structure(self, chunk: PngChunk, palette: Palette | None) -> PngChunk:
        """Return a chunk that says how samples become colours, for the filled palette if there is one."""
        if palette is None:
            return chunk
        if chunk.kind == b"PLTE":
            return PngChunk(chunk.kind, palette.colours.tobytes())
        if chunk.kind == b"tRNS":
            return PngChunk(chunk.kind, palette.alphas[: len(chunk.data)].tobytes())
        return chunk


_STRUCTURE = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IEND"})


def _mode(layout: PngLayout) -> str:
    if layout.depth == 16:  # noqa: PLR2004 - deepest
        return _DEEP_MODES[layout.colour_type]
    if layout.depth == 1 and layout.colour_type == GREY:
        return "1"
    return _COLOUR_MODES[layout.colour_type]


def _transparency(layout: PngLayout) -> Transparency:
    """Return what stands for transparent, as the mode's pixels have it (PNG, third edition, 11.3.2.1)."""
    data = layout.first(b"tRNS")
    if data is None:
        return None
    if layout.colour_type == PALETTE:
        return data
    top = (1 << layout.depth) - 1
    if layout.colour_type == GREY and len(data) >= 2:  # noqa: PLR2004 - one sample
        level = struct.unpack_from(">H", data)[0] & top
        return level * (255 // top) if 1 < layout.depth < 8 else int(level)  # noqa: PLR2004 - spread as pixels are
    if layout.colour_type == RGB and len(data) >= 6:  # noqa: PLR2004 - three samples
        return tuple(level & top for level in struct.unpack_from(">HHH", data))
    return None


def _profile(layout: PngLayout) -> bytes:
    chunk = next((chunk for chunk in layout.chunks if chunk.kind == b"iCCP" and chunk.intact), None)
    stream = None if chunk is None else compressed_part(chunk)
    return b"" if stream is None else expanded(stream, _PROFILE_BYTES) or b""


def _is_animated(layout: PngLayout) -> bool:
    """Whether there are frames besides the picture (PNG, third edition, 11.3.6)."""
    control = layout.first(b"acTL")
    if control is None:
        return False
    frames = struct.unpack_from(">I", control)[0] if len(control) == 8 else 2  # noqa: PLR2004 - frames and plays
    return frames > 1 or layout.first(b"fdAT") is not None
