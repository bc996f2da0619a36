"""GIF: one frame of numbers of palette entries.

Rules of this module: the blocks are walked to the trailer; several frames are refused, for a single one would
be all that is left of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from PIL import GifImagePlugin

from watcher.worker.imaging.picture import Encoded, Picture, animated, open_image, pillow_image, save
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.picture import Encoding, Filled
    from watcher.worker.imaging.sniffing import Container


class GifPicture(Picture):
    """A GIF of one frame."""

    container: ClassVar[Container] = "GIF"
    encode_work: ClassVar[int] = 4

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> GifPicture:  # noqa: ARG003 - a GIF has an end marker
        """Judge the structure and read the header."""
        if gif_frames(data) > 1:
            raise animated("GIF")
        return cls(data, open_image("GIF", GifImagePlugin.GifImageFile, data))

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        image = pillow_image(self, filled)
        source = self.image
        dropped: list[str] = []
        options: dict[str, Any] = {"optimize": False, "interlace": int(bool(source.info.get("interlace")))}
        if image.info.get("transparency") is not None:
            options["transparency"] = image.info["transparency"]
        comment = source.info.get("comment")
        if comment and how.keep_metadata:
            options["comment"] = comment
        elif comment:
            dropped.append("comment")
        if source.info.get("xmp"):
            dropped.append("XMP")
        return Encoded(save(image, "GIF", options), "identical", tuple(dropped))


# --- structure ---------------------------------------------------------------------------------------------


def gif_frames(data: bytes) -> int:
    """Count the frames of a GIF, walking its blocks to the trailer.

    Raises:
        IncompleteError: the bytes stop before the trailer.
        RefusedError: an unknown block (undecodable).
    """
    if len(data) < 13:  # noqa: PLR2004 - signature and screen descriptor
        raise IncompleteError("the GIF stops inside its header")
    flags = data[10]
    position = 13 + _gif_table_bytes(flags)
    frames = 0
    while True:
        if position >= len(data):
            raise IncompleteError("the GIF stops before its trailer")
        block = data[position]
        if block == 0x3B:  # noqa: PLR2004 - trailer (GIF89a, 27)
            return frames
        if block == 0x2C:  # noqa: PLR2004 - image descriptor (GIF89a, 20)
            frames += 1
            if position + 10 > len(data):
                raise IncompleteError("the GIF stops inside a frame")
            position = _gif_skip(data, position + 11 + _gif_table_bytes(data[position + 9]))
        elif block == 0x21:  # noqa: PLR2004 - extension (GIF89a, 23)
            position = _gif_skip(data, position + 2)
        elif not data[position:].strip(b"\x00"):
            raise IncompleteError("the GIF goes on as zeros where its next block should be")
        else:
            raise RefusedError(
                "undecodable", f"the GIF is damaged at byte {position}", "restore it from a good copy"
            )


def _gif_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_skip(data: bytes, position: int) -> int:
    while position < len(data):
        length = data[position]
        position += 1 + length
        if length == 0:
            return position
    raise IncompleteError("the GIF stops inside a block")
