"""Bytes to an opened picture: which format it is, and whether it is one that is served.

Rules of this module:
- Only the formats listed here are ever handed to a decoder, and each to its own.
- The header is judged (format, frames, size, depth) before a pixel is decoded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.bmp import BmpPicture
from watcher.worker.imaging.formats.gif import GifPicture
from watcher.worker.imaging.formats.jpeg import JpegPicture
from watcher.worker.imaging.formats.png import PngPicture
from watcher.worker.imaging.formats.tiff import TiffPicture
from watcher.worker.imaging.formats.webp import WebpPicture
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.sniffing import sniff

if TYPE_CHECKING:
    from watcher.worker.imaging.picture import Picture
    from watcher.worker.imaging.sniffing import Container

_FORMATS: dict[Container, type[Picture]] = {
    "JPEG": JpegPicture,
    "PNG": PngPicture,
    "WEBP": WebpPicture,
    "TIFF": TiffPicture,
    "BMP": BmpPicture,
    "GIF": GifPicture,
}


def open_picture(data: bytes, *, max_pixels: int, fresh: bool = False) -> Picture:
    """Judge a picture by its bytes and read its header.

    Args:
        data: the whole file.
        max_pixels: more than this is refused before a pixel is decoded.
        fresh: the file changed so lately that zeros at its end may be bytes to come.

    Raises:
        IncompleteError: the file's end is missing.
        RefusedError: `undecodable`, `unsupported` or `too_large`.
    """
    container = sniff(data)
    try:
        picture = _FORMATS[container].open(data, fresh=fresh)
    except struct.error as error:
        raise IncompleteError(f"the {container} stops inside its header") from error
    if picture.width < 1 or picture.height < 1:
        raise RefusedError("undecodable", f"the {container} has no pixels", "restore it from a good copy")
    if picture.width * picture.height > max_pixels:
        raise RefusedError(
            "too_large",
            f"the picture is too large: {picture.width}x{picture.height} pixels, "
            f"and {max_pixels} pixels are allowed",
            "make it smaller, in any picture editor, and put it there again",
        )
    return picture
