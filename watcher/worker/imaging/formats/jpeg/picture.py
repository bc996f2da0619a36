"""JPEG: all blocks that the hole does not touch stay as they are; only the hole's are encoded anew.

Rules of this module:
- Where that cannot be done, or the recipe asks for a quality, the whole picture is encoded anew, with the
  source's own quantisation tables and chroma subsampling (or that quality), and the report says so.
- Progressive stays progressive, RGB-coded stays RGB-coded, inks stay as they are stored.
- The source's segments take the place of the encoder's. Where the whole picture is encoded anew, the one that
  says how to read the colours is the encoder's.
- A picture whose data ends early, end marker or not, is not done.
- Further pictures that only serve the first (preview, gain map) are left out and named; others are refused.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import ImageFile, JpegImagePlugin

from watcher.worker.imaging.formats.jpeg.blocks import (
    BlocksLostError,
    Sampling,
    Transcoded,
    inspect,
    with_new_blocks,
)
from watcher.worker.imaging.formats.jpeg.layout import JpegSegment, jpeg_layout
from watcher.worker.imaging.formats.jpeg.metadata import (
    is_adobe,
    is_companion,
    jpeg_metadata,
    multi_picture_kinds,
)
from watcher.worker.imaging.metadata import exif_orientation
from watcher.worker.imaging.picture import Encoded, Picture, damaged, open_image, pillow_image, save
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

    from watcher.worker.imaging.formats.jpeg.layout import JpegLayout
    from watcher.worker.imaging.picture import Encoding, Filled
    from watcher.worker.imaging.sniffing import Container


class JpegPicture(Picture):
    """A JPEG, or the first picture of a multi-picture one."""

    container: ClassVar[Container] = "JPEG"

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> JpegPicture:
        """Judge the structure and read the header."""
        layout = jpeg_layout(data, strict=False)
        _refuse(layout)
        # Not Image.open, which hands multi-picture files to MPO.
        image = open_image("JPEG", JpegImagePlugin.JpegImageFile, data[: layout.end])
        return cls(data, image, layout, fresh=fresh)

    def __init__(self, data: bytes, image: Image.Image, layout: JpegLayout, *, fresh: bool) -> None:
        super().__init__(data, image, orientation=exif_orientation(image.info.get("exif") or b""))
        self._layout = layout
        self._fresh = fresh

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container.

        Raises:
            IncompleteError: the picture's data ends early, and the file is fresh.
            RefusedError: it ends early, and the file is not fresh (undecodable).
        """
        dropped: list[str] = []
        kept = jpeg_metadata(self._layout, self.data[self._layout.end :], dropped, keep=how.keep_metadata)
        names = tuple(dict.fromkeys(dropped))
        note = None
        try:
            transcoded = self._transcoded(filled, how)
        except BlocksLostError as reason:
            note = f"the whole JPEG was encoded anew, as its blocks could not be kept: {reason}"
            transcoded = Transcoded(cut_off=False, data=b"")
        if transcoded.cut_off:
            raise self._cut_off()
        if transcoded.data:
            return Encoded(_spliced(transcoded.data, kept), "blocks", names)
        encoded = self._encoded(filled, how)
        return Encoded(_spliced(encoded, [s for s in kept if not is_adobe(s)]), "reencoded", names, note)

    def check_whole(self) -> None:
        """Look whether the pixels are all there."""
        with contextlib.suppress(BlocksLostError):  # without libjpeg nobody can tell
            source = self.data[: self._layout.end]
            if inspect(source, megapixels=self.width * self.height / 1e6).cut_off:
                raise self._cut_off()

    def _transcoded(self, filled: Filled, how: Encoding) -> Transcoded:
        """Put new blocks into the source; where a quality is asked for, only look whether it is whole."""
        source = self.data[: self._layout.end]
        if how.quality is not None:
            return inspect(source, megapixels=self.width * self.height / 1e6)
        image = self.image
        assert isinstance(image, JpegImagePlugin.JpegImageFile)  # noqa: S101 - opened as one
        samplings = [Sampling(horizontal, vertical) for _, horizontal, vertical, _ in image.layer]
        # Inks are stored from 255 (none) down: so Adobe began, and so decoders read all, its segment or not.
        stored = np.uint8(255) - filled.pixels if self.mode == "CMYK" else filled.pixels
        return with_new_blocks(source, samplings, stored, filled.hole)

    def _cut_off(self) -> Exception:
        if self._fresh:
            return IncompleteError("the JPEG's picture data stops before its end")
        return damaged("JPEG", "its picture data stops before the picture does")

    def _encoded(self, filled: Filled, how: Encoding) -> bytes:
        """Encode the whole picture anew."""
        source, layout = self.image, self._layout
        assert isinstance(source, JpegImagePlugin.JpegImageFile)  # noqa: S101 - opened as one
        options: dict[str, Any] = {
            "subsampling": max(
                0, JpegImagePlugin.get_sampling(source)
            ),  # unknown layouts: full chroma, no loss
            "progressive": bool(source.info.get("progressive")),
            "optimize": True,
            "keep_rgb": _is_rgb_coded(source, layout),
            # Pillow would take these from the source's info; they come with the spliced segments.
            "comment": b"",
        }
        if how.quality is None:
            options["qtables"] = _tables(source, layout)
        else:
            options["quality"] = how.quality
        with _buffer_room(4 * self.width * self.height):
            return save(pillow_image(self, filled), "JPEG", options)


def _refuse(layout: JpegLayout) -> None:
    if layout.precision != 8 or layout.frame in (3, 7, 11, 15):  # noqa: PLR2004 - T.81: 8 bits; lossless frames
        raise RefusedError(
            "unsupported",
            f"this JPEG has {layout.precision} bits a sample or is lossless, which is not served",
            "save it as an ordinary 8-bit JPEG, or as PNG or TIFF",
        )
    if layout.undrawn:
        raise IncompleteError("the JPEG ends before all of its colours have come")
    others = [kind for kind in multi_picture_kinds(layout) if not is_companion(kind)]
    if others:
        raise RefusedError(
            "unsupported",
            f"this JPEG holds {len(others) + 1} pictures (stereo, panorama, burst), and only one would stay",
            "split it into single pictures and drop those",
        )


def _tables(source: JpegImagePlugin.JpegImageFile, layout: JpegLayout) -> list[list[int]]:
    """Return the source's quantisation tables, one a component, less repetitions of the last."""
    found = source.quantization
    numbers = [number for number in layout.tables if number in found] or sorted(found)
    while len(numbers) > 1 and numbers[-1] == numbers[-2]:
        numbers.pop()  # the encoder uses the last table for all components that are left
    return [found[number] for number in numbers]


def _is_rgb_coded(source: JpegImagePlugin.JpegImageFile, layout: JpegLayout) -> bool:
    """Whether the components are R, G, B and not Y, Cb, Cr (libjpeg decides by the same signs)."""
    if source.mode != "RGB" or any(s.payload.startswith(b"JFIF\x00") for s in layout.segments):
        return False
    adobe = source.info.get("adobe_transform")
    if adobe is not None:
        return bool(adobe == 0)
    return [component[0] for component in source.layer] == [ord(letter) for letter in "RGB"]


def _spliced(encoded: bytes, kept: list[JpegSegment]) -> bytes:
    """Put the source's segments in the place of the encoder's, whose Adobe one stays: it says how to read."""
    own = jpeg_layout(encoded).segments
    position = 2
    for segment in own:
        position += 4 + len(segment.payload)
    adobe = [segment for segment in own if segment.marker == 0xEE]  # noqa: PLR2004 - APP14
    segments = [
        struct.pack(">BBH", 0xFF, segment.marker, len(segment.payload) + 2) + segment.payload
        for segment in [*kept, *adobe]
    ]
    return b"".join([encoded[:2], *segments, encoded[position:]])


@contextlib.contextmanager
def _buffer_room(size_bytes: int) -> Iterator[None]:
    """Let Pillow's encoder buffer hold an optimised JPEG of noise, which can exceed its guess."""
    before = ImageFile.MAXBLOCK
    ImageFile.MAXBLOCK = max(before, size_bytes)
    try:
        yield
    finally:
        ImageFile.MAXBLOCK = before
