"""TIFF: one picture of one page, with its compression kept.

Rules of this module:
- Several pages, pyramids and camera RAW in a TIFF container are refused: only one picture would be cleaned.
- Pillow turns TIFF files by itself when it decodes: that is undone here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import TiffImagePlugin

from watcher.worker.imaging.ifd import Ifd, tiff_first_ifd
from watcher.worker.imaging.metadata import photoshop_without_thumbnails, xmp_without_pictures
from watcher.worker.imaging.orientation import to_stored
from watcher.worker.imaging.picture import Encoded, Picture, damaged, open_image, pillow_image, save
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.sniffing import DEVELOP
from watcher.worker.imaging.zeros import dark_tail_bytes, refuse_zero_tail

if TYPE_CHECKING:
    from PIL import Image

    from watcher.wire import Outside
    from watcher.worker.imaging.picture import Encoding, Filled, Pixels
    from watcher.worker.imaging.sniffing import Container

_BITS_PER_SAMPLE = 258


class TiffPicture(Picture):
    """A TIFF of one page."""

    container: ClassVar[Container] = "TIFF"
    encode_work: ClassVar[int] = 4

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> TiffPicture:
        """Judge the structure and read the header."""
        ifd = check_tiff(data)
        if fresh:
            refuse_zero_tail_of_tiff(data, ifd)
        return cls(data, open_image("TIFF", TiffImagePlugin.TiffImageFile, data), ifd)

    def __init__(self, data: bytes, image: Image.Image, ifd: Ifd) -> None:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)  # noqa: S101 - opened as one
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))
        if len(bits) > 1 and max(bits) > 8:  # noqa: PLR2004 - Pillow cuts deeper colour to 8 bits without a word
            raise RefusedError(
                "unsupported",
                f"this TIFF has {max(bits)} bits a colour channel, and 8 of them would be lost",
                "save it with 8 bits a channel and drop that",
            )
        if image.mode == "CMYK":
            raise RefusedError(
                "unsupported",
                "this picture is in CMYK (printing inks), which is not served",
                "convert it to RGB with its colour profile and drop that",
            )
        values = ifd.integers(data, _TIFF_ORIENTATION)
        orientation = values[0] if values and 1 <= values[0] <= 8 else 1  # noqa: PLR2004 - EXIF 2.32, 4.6.4
        mode = "I;16" if image.mode.startswith("I;16") else image.mode
        super().__init__(data, image, mode=mode, orientation=orientation)
        if orientation >= 5:  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side
            self.width, self.height = self.height, self.width
        self._source = image
        self._ifd = ifd

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
        image = pillow_image(self, filled)
        dropped: list[str] = []
        compression = str(self._source.info.get("compression") or "raw")
        if compression == "tiff_jpeg":
            compression = _TIFF_LOSSY
        tags = TiffImagePlugin.ImageFileDirectory_v2(prefix=self.data[:2])
        self._copy_tags(tags, dropped, keep=how.keep_metadata)
        if compression in ("tiff_lzw", "tiff_adobe_deflate", "tiff_deflate") and image.mode not in ("1", "P"):
            predictor = self._ifd.integers(self.data, _TIFF_PREDICTOR)
            if predictor == (2,):
                tags[_TIFF_PREDICTOR] = 2
        options: dict[str, Any] = {"compression": compression, "tiffinfo": tags}
        if compression == _TIFF_LOSSY:
            options["quality"] = 95 if how.quality is None else how.quality
        outside: Outside = "reencoded" if compression == _TIFF_LOSSY else "identical"
        return Encoded(save(image, "TIFF", options), outside, tuple(dict.fromkeys(dropped)))

    def _copy_tags(
        self, tags: TiffImagePlugin.ImageFileDirectory_v2, dropped: list[str], *, keep: bool
    ) -> None:
        source = self._source
        for tag, entry in self._ifd.entries.items():
            if tag in _TIFF_STRUCTURE:
                continue
            if tag == _TIFF_ORIENTATION:
                tags[tag] = self.orientation
            elif tag in _TIFF_ALWAYS or (keep and tag in _TIFF_KEPT and tag in source.tag_v2):
                tags[tag] = _tiff_value(tag, source.tag_v2[tag], dropped)
                tags.tagtype[tag] = entry.kind
            elif keep and tag in (34665, 34853):  # the EXIF and GPS directories
                tags[tag] = dict(source.getexif().get_ifd(tag))
            else:
                dropped.append(_TIFF_DIRECTORIES.get(tag, f"TIFF tag {tag}"))


_TIFF_ORIENTATION, _TIFF_PREDICTOR, _TIFF_PHOTOMETRIC = 274, 317, 262
_TIFF_ALWAYS = frozenset({_TIFF_ORIENTATION, 34675})  # and the ICC profile
_TIFF_KEPT = frozenset({269, 270, 271, 272, 282, 283, 285, 296, 305, 306, 315, 316, 33432, 33723, 34377, 700})
"""Descriptive tags of the baseline and XMP, IPTC and Photoshop blocks: their values stand alone."""
_TIFF_STRUCTURE = frozenset(
    {254, 255, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 280, 281, 284, 292, 293, 297, 317, 318, 319}
    | {320, 321, 322, 323, 324, 325, 338, 339, 347, 512, 513, 514, 515, 519, 520, 521, 529, 530, 531, 532}
)
"""Tags that say how the pixels are stored: the encoder writes its own."""
_TIFF_DIRECTORIES = {34665: "EXIF", 34853: "GPS", 40965: "interoperability data"}
_TIFF_XMP, _TIFF_PHOTOSHOP = 700, 34377
_TIFF_LOSSY = "jpeg"


def _tiff_value(tag: int, value: Any, dropped: list[str]) -> Any:  # noqa: ANN401 - a tag may hold anything
    if tag == _TIFF_XMP and isinstance(value, bytes):
        return xmp_without_pictures(value, dropped)
    if tag == _TIFF_PHOTOSHOP and isinstance(value, bytes):
        return photoshop_without_thumbnails(value, dropped)
    return value


# --- structure ---------------------------------------------------------------------------------------------

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
        raise RefusedError("unsupported", "this is a Canon RAW file, which is not served", DEVELOP)
    ifd = tiff_first_ifd(data)
    photometric = ifd.integers(data, _PHOTOMETRIC)
    if _DNG_VERSION in ifd.entries or _RAW_PHOTOMETRICS.intersection(photometric):
        raise RefusedError("unsupported", "this is a camera RAW file, which is not served", DEVELOP)
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
        refuse_zero_tail("TIFF", data, parts, _COMPRESSED_TAIL_BYTES)
    elif set(ifd.integers(data, _PHOTOMETRIC)) <= _ZERO_IS_BLACK and _EXTRA_SAMPLES not in ifd.entries:
        refuse_zero_tail("TIFF", data, parts, dark_tail_bytes(sum(size for _, size in parts)))


def _is_compressed(data: bytes, ifd: Ifd) -> bool:
    return ifd.integers(data, _COMPRESSION) not in ((), (_UNCOMPRESSED,))


def _tiff_parts(data: bytes, ifd: Ifd) -> list[tuple[int, int]]:
    """List offset and size of each strip and tile."""
    parts: list[tuple[int, int]] = []
    for offsets_tag, counts_tag in ((_STRIP_OFFSETS, _STRIP_COUNTS), (_TILE_OFFSETS, _TILE_COUNTS)):
        offsets, counts = ifd.integers(data, offsets_tag), ifd.integers(data, counts_tag)
        parts += zip(offsets, counts, strict=False)
    return parts
