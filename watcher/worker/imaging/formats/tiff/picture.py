"""TIFF: one picture of one page, edited in place.

Rules of this module:
- Only the strips and tiles that the hole touches are written, at any depth to 16 bits; all other bytes stay
  (docs/adr/0015). Their pixels are read by the same code that writes them.
- What only Pillow can decode (JPEG above all) is decoded and encoded again by Pillow, 8 bits a channel, and
  all pieces are exchanged; the rest of the file stays there too.
- Stored pixels are never turned. Pillow turns them when it decodes: that is undone here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image, TiffImagePlugin

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.edit import TiffEdit
from watcher.worker.imaging.formats.tiff.jpeg import quality_of
from watcher.worker.imaging.formats.tiff.layout import tiff_layout
from watcher.worker.imaging.formats.tiff.metadata import remove_pictures
from watcher.worker.imaging.formats.tiff.palette import put_palette, tiff_palette
from watcher.worker.imaging.formats.tiff.pieces import (
    changed_pieces,
    changed_rows,
    is_rewritten_in_rows,
    read_pixels,
)
from watcher.worker.imaging.formats.tiff.recoded import lost_layout, put_recoded
from watcher.worker.imaging.formats.tiff.slots import put_pieces
from watcher.worker.imaging.formats.tiff.spans import sized
from watcher.worker.imaging.formats.tiff.structure import jpeg_spans, piece_spans, tiff_structure
from watcher.worker.imaging.formats.tiff.writer import rewritten
from watcher.worker.imaging.ifd import tiff_first_ifd
from watcher.worker.imaging.orientation import to_stored
from watcher.worker.imaging.picture import Encoded, Picture, damaged, open_image, pillow_image, save
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from watcher.worker.imaging.formats.tiff.layout import TiffLayout
    from watcher.worker.imaging.formats.tiff.spans import Spans
    from watcher.worker.imaging.formats.tiff.structure import TiffStructure
    from watcher.worker.imaging.ifd import Ifd
    from watcher.worker.imaging.picture import Encoding, Filled, Pixels
    from watcher.worker.imaging.sniffing import Container

_GROWTH = 4
"""An edited file that grew by more than its fourth part is packed, where that loses nothing."""


def _orientation(data: bytes, ifd: Ifd) -> int:
    values = ifd.integers(data, tags.ORIENTATION)
    return values[0] if values and 1 <= values[0] <= 8 else 1  # noqa: PLR2004 - EXIF 2.32, 4.6.4


class TiffPicture(Picture):
    """A TIFF of one page."""

    container: ClassVar[Container] = "TIFF"
    encode_work: ClassVar[int] = 4

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> Picture:
        """Judge the structure and read the header; what comes back is one of the two below."""
        structure = tiff_structure(data, fresh=fresh)
        layout = tiff_layout(data, structure.ifd)
        if layout is not None:
            return EditedTiff(data, structure, layout)
        return RecodedTiff(data, structure)


class EditedTiff(TiffPicture):
    """A TIFF whose pieces are exchanged one by one.

    Args:
        data: the whole file.
        structure: its directories.
        layout: of its pixels.
    """

    def __init__(self, data: bytes, structure: TiffStructure, layout: TiffLayout) -> None:
        # Pillow knows less depths than are served here: its image stands in for the header's facts alone.
        facts = Image.new("P" if layout.mode == "P" else "L", (1, 1))
        facts.info["icc_profile"] = structure.ifd.raw(data, tags.ICC_PROFILE)
        if layout.mode == "P":
            facts.putpalette(tiff_palette(data, structure.ifd, layout.bits).tobytes(), "RGB")
        super().__init__(data, facts, mode=layout.mode, orientation=_orientation(data, structure.ifd))
        self.width, self.height = layout.width, layout.height
        self.spare_entries[1 << layout.bits :] = False
        self._structure = structure
        self._layout = layout

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        pixels = read_pixels(self.data, self._layout)
        if self.mode == "P":
            palette = self.image.getpalette("RGB")
            self.image = Image.fromarray(pixels)
            self.image.putpalette(palette or [], "RGB")
        return pixels

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return the file with the pieces that the hole touches exchanged."""
        ifd, layout = self._structure.ifd, self._layout
        edit = TiffEdit(self.data, ifd)
        if filled.palette is not None:
            put_palette(edit, self.data, ifd, filled.palette, layout.bits)
        self._put_pixels(edit, filled)
        pieces = sized(layout.offsets, layout.sizes)
        data, dropped = _finished(edit, self.data, self._structure, pieces, keep=how.keep_metadata)
        return Encoded(data, "identical", dropped)

    def _put_pixels(self, edit: TiffEdit, filled: Filled) -> None:
        if is_rewritten_in_rows(self._layout):
            for offset, rows in changed_rows(self.data, self._layout, filled):
                edit.put(offset, rows)
        else:
            put_pieces(edit, self._layout, dict(changed_pieces(self.data, self._layout, filled)))


def _finished(
    edit: TiffEdit, data: bytes, structure: TiffStructure, pieces: Spans, *, keep: bool
) -> tuple[bytes, tuple[str, ...]]:
    """Return an edited file, with or without its metadata, and the names of what it lost.

    Args:
        edit: with the new pixels.
        data: as it was.
        structure: its directories.
        pieces: where its pieces were.
        keep: off leaves what decides how the pixels look.
    """
    entries = structure.ifd.entries
    if not keep:
        kept = tags.STRUCTURE | tags.LOOKS
        dropped = [tags.name_of(tag) for tag in entries if tag not in kept]
        if structure.copies:
            dropped.append("TIFF thumbnail")
        return _packed(edit.result(), kept), tuple(dict.fromkeys(dropped))
    names = remove_pictures(edit, data, structure, pieces)
    edited = edit.result()
    points_nowhere = edit.tags <= tags.STRUCTURE | tags.LOOKS | tags.PLAIN
    if points_nowhere and len(edited) > len(data) * (1 + 1 / _GROWTH):
        edited = _packed(edited, frozenset(tiff_first_ifd(edited).entries))
    return edited, names


def _packed(data: bytes, kept: AbstractSet[int]) -> bytes:
    """Write an edited file anew with some of its tags."""
    ifd = tiff_first_ifd(data)
    layout = tiff_layout(data, ifd)
    pieces = piece_spans(data, ifd) if layout is None else sized(layout.offsets, layout.sizes)
    return rewritten(data, pieces, kept)


# --- by Pillow ---------------------------------------------------------------------------------------------

_YCBCR = 6
_LOSSY = frozenset({"jpeg"})
_ORDINARY = (
    "save it with 8 or 16 bits a channel and LZW or Deflate compression, or restore it from a good copy"
)
_OLD_JPEG = "tiff_jpeg"
"""Read, and written as the new kind."""
_WRITTEN = frozenset(
    {"raw", "tiff_ccitt", "group3", "group4", "tiff_lzw", "packbits", "tiff_adobe_deflate", "tiff_deflate"}
    | {"lzma", "zstd", "jpeg", _OLD_JPEG}
)
"""Compressions, by Pillow's names, that its libtiff reads and writes."""


class RecodedTiff(TiffPicture):
    """A TIFF whose pieces are all exchanged for those that Pillow encodes.

    Args:
        data: the whole file.
        structure: its directories.
    """

    def __init__(self, data: bytes, structure: TiffStructure) -> None:
        image = open_image("TIFF", TiffImagePlugin.TiffImageFile, data, remedy=_ORDINARY)
        assert isinstance(image, TiffImagePlugin.TiffImageFile)  # noqa: S101 - opened as one
        _refuse_unserved(data, image, structure.ifd)
        orientation = _orientation(data, structure.ifd)
        mode = "I;16" if image.mode.startswith("I;16") else image.mode
        super().__init__(data, image, mode=mode, orientation=orientation)
        if orientation >= 5:  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side
            self.width, self.height = self.height, self.width
        compression = _compression(image)
        self._compression = "jpeg" if compression == _OLD_JPEG else compression
        self._structure = structure

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        pixels = super().load()
        if self.mode == "I;16":
            pixels = pixels.astype(np.uint16, copy=False)
        return to_stored(pixels, self.orientation)

    def _load_failure(self, error: Exception) -> Exception:
        if "truncated" in str(error):
            return IncompleteError("the TIFF stops before its picture data does")
        return damaged("TIFF", error)

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        ifd = self._structure.ifd
        pieces = np.concatenate([piece_spans(self.data, ifd), jpeg_spans(self.data, ifd)])
        edit = TiffEdit(self.data, ifd)
        encoded = self._encoded(filled, how)
        put_recoded(edit, self.data, ifd, pieces, encoded)
        data, dropped = _finished(edit, self.data, self._structure, pieces, keep=how.keep_metadata)
        names = (*dropped, *lost_layout(self.data, ifd, encoded))
        return Encoded(data, "reencoded" if self._compression in _LOSSY else "identical", names)

    def _encoded(self, filled: Filled, how: Encoding) -> bytes:
        if self.mode == "I;16" and self._structure.ifd.order == ">":
            filled = replace(filled, pixels=filled.pixels.byteswap())  # Pillow writes the other order
        image = pillow_image(self, filled)
        options: dict[str, Any] = {"compression": self._compression}
        if self._compression == "jpeg":
            options["quality"] = self._quality if how.quality is None else how.quality
            if image.mode == "RGB" and self._structure.ifd.integers(self.data, tags.PHOTOMETRIC) == (_YCBCR,):
                image = image.convert("YCbCr")
        return save(image, "TIFF", options)

    @property
    def _quality(self) -> int:
        ifd = self._structure.ifd
        first = piece_spans(self.data, ifd)[:1].tolist()
        piece = b"".join(self.data[start:stop] for start, stop in first)
        return quality_of(ifd.raw(self.data, tags.JPEG_TABLES), piece)


def _compression(image: Image.Image) -> str:
    return str(image.info.get("compression") or "raw")


def _refuse_unserved(data: bytes, image: TiffImagePlugin.TiffImageFile, ifd: Ifd) -> None:
    """Refuse what Pillow would decode into something that is not the picture any more."""
    if _compression(image) not in _WRITTEN:
        raise RefusedError(
            "unsupported",
            f"this TIFF is compressed in a way that is not served ({_compression(image)})",
            "save it with LZW or Deflate compression, or none, and drop that",
        )
    bits = image.tag_v2.get(tags.BITS_PER_SAMPLE, (1,))
    if len(bits) > 1 and max(bits) > 8:  # noqa: PLR2004 - Pillow cuts deeper colour to 8 bits without a word
        raise RefusedError(
            "unsupported",
            f"this TIFF has {max(bits)} bits a colour channel, and as it is compressed 8 would be lost",
            "save it with LZW or Deflate compression, or none, and drop that",
        )
    if image.mode == "CMYK":
        raise RefusedError(
            "unsupported",
            "this TIFF is in printing inks, in a compression or a set of inks that is not served",
            "save it in CMYK with LZW or Deflate compression, or none, and drop that",
        )
    if not set(ifd.integers(data, tags.SAMPLE_FORMAT)) <= _UNSIGNED:
        raise RefusedError(
            "unsupported",
            "this TIFF holds measurements (signed or floating numbers) and not colours",
            "save it with 8 or 16 bits a channel and drop that",
        )


_UNSIGNED = frozenset({1, 4})
