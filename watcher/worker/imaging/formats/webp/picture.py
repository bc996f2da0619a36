"""WebP: a RIFF container with a lossy or a lossless picture.

Rules of this module:
- The result is the source's container with another picture in it: all other chunks stay where and as they
  are, but for pictures of the picture in them.
- Lossless stays lossless. A lossy picture is encoded as finely as the source was; where that was coarse as
  finely as `_FINE_QUALITY`, so that the second loss does not show, as far as the file does not outgrow
  `_MOST_GROWTH` times the source.
- The length in the RIFF header is believed; animations are refused, also those of one frame: it may be
  smaller than the picture, and no common program writes them.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import WebPImagePlugin

from watcher.worker.imaging.formats.webp.quality import index_of_quality, quality_of_index, quantiser_index
from watcher.worker.imaging.metadata import (
    JPEG_START,
    exif_orientation,
    exif_without_pictures,
    orientation_only,
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

_FINE_QUALITY = 92
"""Ten photos and pages were encoded at 30 to 80, and then at this a second time: the second loss was 42 to
48 dB, against 34 to 45 dB at the source's own quality. Above 90 the source's own is better in both, size and
likeness: 42 to 59 dB."""
_MOST_GROWTH = 1.5
_AIMED_GROWTH = 1.35
_USUAL_GROWTH = 0.93
"""Of a picture that is encoded a second time at its own quality (measured: 0.76 to 1.07)."""

_LOSSY_WORK, _LOSSLESS_WORK = 32, 32
"""How much dearer a pixel is than a JPEG's: for 12 MP of noise two x86 cores took 0.14 s (JPEG) and 4.5 s
(lossless WebP, and a lossy one that is encoded twice)."""

_CANVAS_BYTES = 8
"""For each pixel libwebp's animation decoder, which Pillow uses for all, keeps two canvases of RGBA."""


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

    @classmethod
    def bytes_to_open(cls, data: bytes) -> int:
        """Return how much memory reading the header takes: libwebp makes its canvases at once."""
        width, height = webp_canvas(data)
        return width * height * _CANVAS_BYTES

    def __init__(self, data: bytes, image: Image.Image, layout: WebpLayout) -> None:
        super().__init__(data, image, orientation=exif_orientation(layout.first(b"EXIF") or b""))
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
        dropped: list[str] = []
        image = pillow_image(self, filled)
        if self._layout.lossless:
            picture = webp_layout(_encoded(image, lossless=True))
        else:
            picture = webp_layout(self._lossy(image, how.quality))
        parts = self._chunks(picture, self._alpha_chunk(picture, filled), dropped, keep=how.keep_metadata)
        body = b"".join(_chunk_bytes(chunk) for chunk in parts)
        trailer = self.data[self._layout.end :]
        if trailer.strip(b"\x00"):
            dropped.append(f"{len(trailer)} bytes behind the end of the picture")
        outside: Outside = "identical" if self._layout.lossless else "reencoded"
        data = struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WEBP") + body
        return Encoded(data, outside, tuple(dict.fromkeys(dropped)))

    def _lossy(self, image: Image.Image, wanted: int | None) -> bytes:
        """Encode at the wanted quality, or as near to the source as its size allows."""
        if wanted is not None:
            return _encoded(image, quality=wanted)
        index = quantiser_index(self._layout.first(b"VP8 ") or b"")
        own = _FINE_QUALITY if index is None else quality_of_index(index)
        encoded = _encoded(image, quality=max(own, _FINE_QUALITY))
        if index is None or own >= _FINE_QUALITY or self._growth(encoded) <= _MOST_GROWTH:
            return encoded
        encoded = _encoded(image, quality=quality_of_index(_index_between(index, self._growth(encoded))))
        return encoded if self._growth(encoded) <= _MOST_GROWTH else _encoded(image, quality=own)

    def _growth(self, encoded: bytes) -> float:
        """Return by how much picture data grew."""
        return _picture_bytes(webp_layout(encoded)) / _picture_bytes(self._layout)

    def _alpha_chunk(self, picture: WebpLayout, filled: Filled) -> bytes | None:
        """Return a lossy picture's alpha plane: the source's own bytes unless something came back opaque."""
        if self.mode != "RGBA" or self._layout.lossless:
            return None
        before = np.asarray(self.image)[..., 3]
        return (self._layout if np.array_equal(before, filled.pixels[..., 3]) else picture).first(b"ALPH")

    def _chunks(
        self, picture: WebpLayout, alpha: bytes | None, dropped: list[str], *, keep: bool
    ) -> list[WebpChunk]:
        """Return the source's chunks with another picture among them."""
        chunks: list[WebpChunk] = []
        for chunk in self._layout.chunks:
            if chunk.kind in _LOSSY_OR_LOSSLESS:
                chunks += [WebpChunk(b"ALPH", alpha)] if alpha is not None else []
                chunks += [_like(chunk, new) for new in picture.chunks if new.kind == chunk.kind]
            elif chunk.kind != b"ALPH":
                kept = _kept(chunk, dropped, keep=keep)
                chunks += [] if kept is None else [kept]
        kinds = {chunk.kind for chunk in chunks}
        return [_with_flags(chunk, kinds) if chunk.kind == b"VP8X" else chunk for chunk in chunks]


_LOSSY_OR_LOSSLESS = (b"VP8 ", b"VP8L")
_LOOKS = frozenset({b"VP8X", b"ICCP"})
_FLAGS = {b"ICCP": 0x20, b"ALPH": 0x10, b"EXIF": 0x08, b"XMP ": 0x04}
"""Bits of the first byte of a VP8X chunk."""


def _encoded(image: Image.Image, **options: Any) -> bytes:  # noqa: ANN401 - Pillow's own
    return save(image, "WEBP", {"method": 4, "exact": True, **options})


def _index_between(own: float, growth: float) -> float:
    """Return the quantiser index that makes the file grow as aimed at.

    Args:
        own: the source's.
        growth: what came of `_FINE_QUALITY`.
    """
    fine = index_of_quality(_FINE_QUALITY)
    share = math.log(_AIMED_GROWTH / _USUAL_GROWTH) / math.log(growth / _USUAL_GROWTH)
    return own + (fine - own) * share


def _picture_bytes(layout: WebpLayout) -> int:
    return sum(len(chunk.data) for chunk in layout.chunks if chunk.kind in _LOSSY_OR_LOSSLESS)


_LOSSLESS_ALPHA_AT, _LOSSLESS_ALPHA = 4, 0x10
"""Where a VP8L picture says that its alpha is used (RFC 9649, 3.4): behind signature and sizes."""


def _like(source: WebpChunk, picture: WebpChunk) -> WebpChunk:
    """Return a picture that has an alpha channel if the source has, also where it became opaque."""
    at = _LOSSLESS_ALPHA_AT
    if picture.kind != b"VP8L" or len(source.data) <= at or not source.data[at] & _LOSSLESS_ALPHA:
        return picture
    data = picture.data
    return WebpChunk(picture.kind, data[:at] + bytes([data[at] | _LOSSLESS_ALPHA]) + data[at + 1 :])


def _kept(  # noqa: PLR0911 - a table of cases, one return each
    chunk: WebpChunk, dropped: list[str], *, keep: bool
) -> WebpChunk | None:
    """Return a chunk beside the picture as it goes into the result, or None."""
    if chunk.kind in _LOOKS:
        return chunk
    if chunk.kind == b"C2PA":
        dropped.append("content credentials (C2PA)")
        return None
    if chunk.kind == b"EXIF" and keep:
        return WebpChunk(chunk.kind, exif_without_pictures(chunk.data, dropped))
    if chunk.kind == b"EXIF":
        dropped.append("EXIF")
        return WebpChunk(chunk.kind, orientation_only(exif_orientation(chunk.data)))
    if not keep:
        dropped.append(chunk.kind.decode("latin-1").strip())
        return None
    if chunk.kind == b"XMP ":
        return WebpChunk(chunk.kind, xmp_without_pictures(chunk.data, dropped))
    if JPEG_START in chunk.data:
        dropped.append(f"{chunk.kind.decode('latin-1').strip()} (it holds a picture)")
        return None
    return chunk


def _with_flags(header: WebpChunk, kinds: set[bytes]) -> WebpChunk:
    """Say in a VP8X chunk which chunks there are; whether there is alpha stays as it was."""
    flags = header.data[0]
    for kind, bit in _FLAGS.items():
        if kind in kinds:
            flags |= bit
        elif kind != b"ALPH":
            flags &= ~bit
    return WebpChunk(header.kind, bytes([flags]) + header.data[1:])


# --- structure ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WebpChunk:
    """One chunk: its type of four letters and its data."""

    kind: bytes
    data: bytes


def _chunk_bytes(chunk: WebpChunk) -> bytes:
    """Return a chunk as it stands in a file."""
    return struct.pack("<4sI", chunk.kind, len(chunk.data)) + chunk.data + bytes(len(chunk.data) & 1)


@dataclass(frozen=True, slots=True)
class WebpLayout:
    """A WebP's chunks.

    Attributes:
        chunks: in order.
        end: offset just behind the RIFF container.
    """

    chunks: tuple[WebpChunk, ...]
    end: int

    @property
    def lossless(self) -> bool:
        """Whether the picture is VP8L."""
        return self.first(b"VP8L") is not None

    @property
    def animated(self) -> bool:
        """Whether it is an animation."""
        return self.first(b"ANIM") is not None or self.first(b"ANMF") is not None

    def first(self, kind: bytes) -> bytes | None:
        """Return the data of the first chunk of a kind, or None."""
        return next((chunk.data for chunk in self.chunks if chunk.kind == kind), None)


_MOST_CHUNKS = 1000
_WEBP_TAIL_BYTES = 512
_WEBP_TAIL_SHARE = 8
"""A tail of 512 zeros was only reserved by a sync client; in lossy files only if it is an eighth of the file
too, since their arithmetic coder ends flat pictures in zeros (measured: up to 5.4 % of the file)."""


def webp_canvas(data: bytes) -> tuple[int, int]:
    """Return width and height by the first chunk (RFC 9649, 2.5 to 2.7); zeros where it says none.

    Raises:
        struct.error: the bytes stop inside the header.
    """
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return width, height
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def webp_layout(data: bytes) -> WebpLayout:
    """List a WebP's chunks.

    Raises:
        IncompleteError: fewer bytes than the RIFF header promises, or a tail of zeros.
        RefusedError: more chunks than any program writes (undecodable).
    """
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise IncompleteError(f"the WebP promises {end} bytes and has {len(data)}")
    chunks: list[WebpChunk] = []
    position = 12
    while position + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, position)
        chunks.append(WebpChunk(kind, data[position + 8 : min(position + 8 + length, end)]))
        position += 8 + length + (length & 1)
        if len(chunks) > _MOST_CHUNKS:
            raise damaged("WEBP", f"it has more than {_MOST_CHUNKS} chunks")
    layout = WebpLayout(tuple(chunks), end)
    tail = _WEBP_TAIL_BYTES if layout.lossless else max(_WEBP_TAIL_BYTES, end // _WEBP_TAIL_SHARE)
    if end > 2 * tail and not data[end - tail : end].strip(b"\x00"):
        raise IncompleteError("the WebP ends in zeros")
    return layout
