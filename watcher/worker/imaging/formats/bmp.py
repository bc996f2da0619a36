"""BMP: pixels without compression, metadata or an end marker.

Rules of this module:
- The pixel array is measured by the header; the header's own file size is often wrong.
- Pillow writes no alpha: a BMP with alpha gets a BITMAPV4HEADER written here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import BmpImagePlugin

from watcher.worker.imaging.picture import Encoded, Picture, damaged, open_image, pillow_image, save
from watcher.worker.imaging.refusals import IncompleteError
from watcher.worker.imaging.zeros import dark_tail_bytes, refuse_zero_tail

if TYPE_CHECKING:
    from PIL import Image

    from watcher.worker.imaging.picture import Encoding, Filled
    from watcher.worker.imaging.sniffing import Container


class BmpPicture(Picture):
    """A BMP."""

    container: ClassVar[Container] = "BMP"

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> BmpPicture:
        """Judge the structure and read the header."""
        check_bmp_end(data)
        if fresh:
            refuse_zero_tail_of_bmp(data)
        return cls(data, open_image("BMP", BmpImagePlugin.BmpImageFile, data))

    def _load_failure(self, error: Exception) -> Exception:
        if "truncated" in str(error):
            return IncompleteError("the BMP stops before its picture data does")
        return damaged("BMP", error)

    def encode(self, filled: Filled, how: Encoding) -> Encoded:  # noqa: ARG002 - a BMP has no quality and no metadata
        """Return a filled picture in this container."""
        image = pillow_image(self, filled)
        dpi = self.image.info.get("dpi")
        if self.mode == "RGBA":
            return Encoded(_bmp_with_alpha(image, dpi), "identical")
        return Encoded(save(image, "BMP", {"dpi": dpi} if dpi else {}), "identical")


# --- structure ---------------------------------------------------------------------------------------------


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
        refuse_zero_tail("BMP", data, [(pixels.start, pixels.size)], dark_tail_bytes(pixels.size))


_BMP_V4_HEADER = 108
_BITFIELDS = 3


def _bmp_with_alpha(image: Image.Image, dpi: tuple[float, float] | None) -> bytes:
    """Write a BITMAPV4HEADER with an alpha mask: Pillow's writer leaves the alpha out."""
    pixels = np.asarray(image)[::-1, :, [2, 1, 0, 3]].tobytes()
    offset = 14 + _BMP_V4_HEADER
    per_metre = [round(value * 39.3701) for value in dpi or (0.0, 0.0)]
    header = struct.pack("<2sIHHI", b"BM", offset + len(pixels), 0, 0, offset)
    header += struct.pack(
        "<IiiHHII", _BMP_V4_HEADER, image.width, image.height, 1, 32, _BITFIELDS, len(pixels)
    )
    header += struct.pack("<iiII", *per_metre, 0, 0)
    header += struct.pack("<IIII4s", 0x00FF0000, 0x0000FF00, 0x000000FF, 0xFF000000, b"BGRs")
    return header.ljust(offset, b"\x00") + pixels
