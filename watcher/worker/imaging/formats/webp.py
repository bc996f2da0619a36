"""WebP: a RIFF container with a lossy or a lossless picture.

Rules of this module:
- Lossless stays lossless. A lossy WebP does not say how it was made and is written at `WEBP_QUALITY`.
- The length in the RIFF header is believed; animations are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import WebPImagePlugin

from watcher.worker.imaging.metadata import (
    exif_orientation,
    exif_without_pictures,
    orientation_only,
    tiff_part,
    xmp_without_pictures,
)
from watcher.worker.imaging.picture import (
    Encoded,
    Picture,
    animated,
    damaged,
    open_image,
    pillow_image,
    save,
)
from watcher.worker.imaging.refusals import IncompleteError

if TYPE_CHECKING:
    from PIL import Image

    from watcher.wire import Outside
    from watcher.worker.imaging.picture import Encoding, Filled
    from watcher.worker.imaging.sniffing import Container

WEBP_QUALITY = 92
"""A lossy WebP does not say how it was made; this is high enough not to be seen."""

_LOSSY_WORK, _LOSSLESS_WORK = 16, 32
"""How much dearer a pixel is than a JPEG's: for 12 MP of noise two x86 cores took 0.14 s (JPEG) and 4.5 s
(lossless WebP)."""


class WebpPicture(Picture):
    """A WebP of one frame."""

    container: ClassVar[Container] = "WEBP"

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> WebpPicture:  # noqa: ARG003 - a WebP tells its length
        """Judge the structure and read the header."""
        layout = webp_layout(data)
        if layout.animated:
            raise animated("WEBP")
        image = open_image("WEBP", WebPImagePlugin.WebPImageFile, data[: layout.end])
        return cls(data, image, layout)

    def __init__(self, data: bytes, image: Image.Image, layout: WebpLayout) -> None:
        super().__init__(data, image, orientation=exif_orientation(image.info.get("exif") or b""))
        self._layout = layout

    @property
    def encode_work_px(self) -> int:
        """How much encoding this picture has to do, in pixels of a JPEG."""
        return self.width * self.height * (_LOSSLESS_WORK if self._layout.lossless else _LOSSY_WORK)

    def _load_failure(self, error: Exception) -> Exception:
        if "truncated" in str(error):
            return IncompleteError("the WebP stops before its picture data does")
        return damaged("WEBP", error)

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        info = self.image.info
        dropped: list[str] = []
        options: dict[str, Any] = {"method": 4, "exact": True, "icc_profile": self.icc_profile}
        if self._layout.lossless:
            options["lossless"] = True
        else:
            options["quality"] = WEBP_QUALITY if how.quality is None else how.quality
        exif, xmp = info.get("exif") or b"", info.get("xmp") or b""
        if exif:
            options["exif"] = _exif(exif, dropped, keep=how.keep_metadata)
        if xmp and how.keep_metadata:
            options["xmp"] = xmp_without_pictures(xmp, dropped)
        elif xmp:
            dropped.append("XMP")
        dropped += [kind.decode("latin-1").strip() for kind in self._layout.kinds if kind not in _WEBP_KNOWN]
        data = save(pillow_image(self, filled), "WEBP", options)
        outside: Outside = "identical" if self._layout.lossless else "reencoded"
        return Encoded(data, outside, tuple(dict.fromkeys(dropped)))


_WEBP_KNOWN = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"EXIF", b"XMP "})


def _exif(exif: bytes, dropped: list[str], *, keep: bool) -> bytes:
    if keep:
        return tiff_part(exif_without_pictures(exif, dropped))
    dropped.append("EXIF")
    return orientation_only(exif_orientation(exif))


# --- structure ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WebpLayout:
    """A WebP's chunks.

    Attributes:
        kinds: four-letter types in order.
        lossless: the picture is VP8L.
        animated: it is an animation.
        end: offset just behind the RIFF container.
    """

    kinds: tuple[bytes, ...]
    lossless: bool
    animated: bool
    end: int


_WEBP_TAIL_BYTES = 512
_WEBP_TAIL_SHARE = 8
"""A tail of 512 zeros was only reserved by a sync client; in lossy files only if it is an eighth of the file
too, since their arithmetic coder ends flat pictures in zeros (measured: up to 5.4 % of the file)."""


def webp_layout(data: bytes) -> WebpLayout:
    """List a WebP's chunks.

    Raises:
        IncompleteError: fewer bytes than the RIFF header promises, or a tail of zeros.
    """
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise IncompleteError(f"the WebP promises {end} bytes and has {len(data)}")
    kinds: list[bytes] = []
    position = 12
    while position + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, position)
        kinds.append(kind)
        position += 8 + length + (length & 1)
    lossless = b"VP8L" in kinds
    tail = _WEBP_TAIL_BYTES if lossless else max(_WEBP_TAIL_BYTES, end // _WEBP_TAIL_SHARE)
    if end > 2 * tail and not data[end - tail : end].strip(b"\x00"):
        raise IncompleteError("the WebP ends in zeros")
    return WebpLayout(tuple(kinds), lossless, b"ANIM" in kinds or b"ANMF" in kinds, end)
