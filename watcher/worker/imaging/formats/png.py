"""PNG: lossless, in every depth.

Rules of this module:
- Pillow's (or OpenCV's) encoder writes the pixels; the source's ancillary chunks are spliced in as they were.
- It is deflated at level 4: on photos a third of the time of level 6 for about two per cent more bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import PngImagePlugin

from watcher.worker.imaging.formats.png_layout import PNG_SIGNATURE, chunk_bytes, png_layout
from watcher.worker.imaging.formats.png_metadata import png_metadata
from watcher.worker.imaging.metadata import exif_orientation
from watcher.worker.imaging.picture import Encoded, Picture, animated, open_image, pillow_image, save
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from PIL import Image

    from watcher.worker.imaging.formats.png_layout import PngLayout
    from watcher.worker.imaging.picture import Encoding, Filled, Pixels
    from watcher.worker.imaging.sniffing import Container

PNG_LEVEL = 4
_GREY = 0


class PngPicture(Picture):
    """A PNG of one frame."""

    container: ClassVar[Container] = "PNG"
    encode_work: ClassVar[int] = 16
    """For 12 MP of noise two x86 cores took 0.14 s (JPEG) and 3.3 s (PNG)."""

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> PngPicture:  # noqa: ARG003 - a PNG has an end marker
        """Judge the structure and read the header."""
        layout = png_layout(data)
        _refuse_animated(layout)
        return cls(data, open_image("PNG", PngImagePlugin.PngImageFile, data[: layout.end]), layout)

    def __init__(self, data: bytes, image: Image.Image, layout: PngLayout) -> None:
        if layout.depth > 8 and layout.colour_type != _GREY:  # noqa: PLR2004 - Pillow cuts deeper colour to 8 bits without a word
            raise RefusedError(
                "unsupported",
                f"this PNG has {layout.depth} bits a colour channel, and 8 of them would be lost",
                "save it with 8 bits a channel and drop that",
            )
        mode = "I;16" if image.mode.startswith("I;16") else image.mode
        super().__init__(data, image, mode=mode, orientation=_orientation(layout))
        self._layout = layout

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        pixels = super().load()
        return pixels.astype(np.uint16, copy=False) if self.mode == "I;16" else pixels

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        image = pillow_image(self, filled)
        transparency = image.info.get("transparency")
        options: dict[str, Any] = {"compress_level": PNG_LEVEL}
        if transparency is not None:
            options["transparency"] = transparency
        data, dropped = _spliced(save(image, "PNG", options), self._layout, keep=how.keep_metadata)
        return Encoded(data, "identical", dropped)


def _orientation(layout: PngLayout) -> int:
    for chunk in layout.chunks:
        if chunk.kind == b"eXIf":
            return exif_orientation(chunk.data)
    return 1


def _refuse_animated(layout: PngLayout) -> None:
    for chunk in layout.chunks:
        if chunk.kind == b"acTL" and struct.unpack_from(">I", chunk.data)[0] > 1:
            raise animated("PNG")


def _spliced(encoded: bytes, source: PngLayout, *, keep: bool) -> tuple[bytes, tuple[str, ...]]:
    """Put the source's ancillary chunks into an encoded picture; also name those that are lost."""
    dropped: list[str] = []
    own = png_layout(encoded)
    before, between, behind = png_metadata(source, dropped, keep=keep, same_depth=own.depth == source.depth)
    parts = [PNG_SIGNATURE]
    placed = False
    position = len(PNG_SIGNATURE)
    for chunk in own.chunks:
        (length,) = struct.unpack_from(">I", encoded, position)
        raw = encoded[position : position + 12 + length]
        position += 12 + length
        if chunk.kind == b"IDAT" and not placed:
            parts += [chunk_bytes(extra) for extra in between]
            placed = True
        if chunk.kind == b"IEND":
            parts += [chunk_bytes(extra) for extra in behind]
        parts.append(raw)
        if chunk.kind == b"IHDR":
            parts += [chunk_bytes(extra) for extra in before]
    return b"".join(parts), tuple(dict.fromkeys(dropped))
