"""Bytes to an opened picture: which format it is, and whether it is one that is served.

Rules of this module:
- Only the formats listed here are ever handed to a decoder, and each to its own.
- The header is judged (format, frames, size, depth) before a pixel is decoded.
- Whatever reads a picture's bytes does so within `memory_limit`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.bmp.picture import BmpPicture
from watcher.worker.imaging.formats.gif.picture import GifPicture
from watcher.worker.imaging.formats.heif.avif import AvifPicture
from watcher.worker.imaging.formats.heif.heic import HeicPicture
from watcher.worker.imaging.formats.jpeg.picture import JpegPicture
from watcher.worker.imaging.formats.png.picture import PngPicture
from watcher.worker.imaging.formats.tiff.picture import TiffPicture
from watcher.worker.imaging.formats.webp.picture import WebpPicture
from watcher.worker.imaging.memory_limit import memory_limit, room_to_decode, room_to_open
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.sniffing import sniff

if TYPE_CHECKING:
    from watcher.wire import FailureCode
    from watcher.worker.imaging.picture import Picture, Pixels
    from watcher.worker.imaging.sniffing import Container

_FORMATS: dict[Container, type[Picture]] = {
    kind.container: kind
    for kind in (
        JpegPicture,
        PngPicture,
        WebpPicture,
        TiffPicture,
        BmpPicture,
        GifPicture,
        HeicPicture,
        AvifPicture,
    )
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
    kind = _FORMATS[container]
    try:
        with memory_limit(room_to_open(len(data)) + kind.bytes_to_open(data)):
            picture = kind.open(data, fresh=fresh)
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


def load_pixels(picture: Picture) -> Pixels:
    """Decode an opened picture: own mode, stored orientation.

    Raises:
        IncompleteError: the decoder ran out of bytes in a format whose end cannot be told beforehand.
        RefusedError: the decoder gave up (`undecodable`), or wanted far more memory than there are pixels
            (`too_large`).
        MemoryError: the machine has no more memory.
    """
    room_bytes = room_to_decode(picture.width * picture.height, picture.pixel_bytes, len(picture.data))
    with memory_limit(room_bytes):
        return picture.load()


def load_mark_file(data: bytes, *, max_pixels: int, word: str, remedy: str) -> tuple[Picture, Pixels]:
    """Open and decode a picture that says what is to go in another one.

    Args:
        data: the file's bytes.
        max_pixels: limit for this file itself.
        word: what it is called in reasons (`mask`, `marked copy`).
        remedy: what to do where it cannot be used.

    Raises:
        IncompleteError: it has no end yet.
        RefusedError: `mask_undecodable` or `too_large`.
    """
    try:
        opened = open_picture(data, max_pixels=max_pixels)
        opened.check_whole()
        return opened, load_pixels(opened)
    except IncompleteError as error:
        raise IncompleteError(f"the {word} is not complete: {error.reason}") from error
    except RefusedError as refusal:
        code: FailureCode = "too_large" if refusal.code == "too_large" else "mask_undecodable"
        raise RefusedError(code, f"the {word} cannot be used: {refusal.reason}", remedy) from refusal
