"""AVIF: AV1 in a HEIF container, by Pillow up to 8 bits a sample, and by OpenCV beyond.

Rules of this module:
- Pillow cuts deeper samples to 8 bits without a word, so it is given none.
- A result is coded with the quantiser, depth and chroma sampling of its source; lossless stays lossless.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import cv2
import numpy as np
from PIL import AvifImagePlugin, Image, features

from watcher.worker.imaging.formats.heif.av1 import av1_coding, av1_configuration
from watcher.worker.imaging.formats.heif.picture import Coding, HeifPicture
from watcher.worker.imaging.picture import DEEP_MODES, damaged, guarded, open_image, save
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.heif.isobmff import Item
    from watcher.worker.imaging.formats.heif.picture import Order
    from watcher.worker.imaging.picture import Encoding, Pixels
    from watcher.worker.imaging.sniffing import Container

_EXPORT = "export it as JPEG or PNG and drop that"
_QUANTISERS = (0, 4, 16, 32, 60, 92, 148, 196, 255)
_QUALITIES = (100, 99, 95, 90, 80, 70, 50, 30, 0)
"""Which quality of libavif gives libaom which base quantiser index (measured with libavif 1.4.2)."""
_IDENTITY = 0
"""Matrix of ISO/IEC 23091-2 by which R, G and B are coded as they are."""


class AvifPicture(HeifPicture):
    """An AVIF of one picture."""

    container: ClassVar[Container] = "AVIF"
    encode_work: ClassVar[int] = 64
    coded_kind: ClassVar[bytes] = b"av01"
    configuration_kind: ClassVar[bytes] = b"av1C"
    default_quality: ClassVar[int] = 80

    @classmethod
    def check_support(cls) -> None:
        """See that Pillow can read AVIF."""
        if not features.check("avif"):
            raise RefusedError(
                "unsupported",
                "this is an AVIF picture, and this Pillow was built without AVIF",
                "run: pip install --force-reinstall pillow; then: watcher retry --all; or " + _EXPORT,
            )

    @classmethod
    def header(cls, data: bytes) -> Image.Image:
        """Let Pillow read the header."""
        return open_image("AVIF", AvifImagePlugin.AvifImageFile, data)

    @classmethod
    def judge(cls, item: Item) -> Coding:
        """Tell how a coded item is coded."""
        configuration = av1_configuration(item.all_of(b"av1C")[0].body)
        coding = av1_coding(item.data)
        quantiser = None if coding is None else coding.quantiser
        lossless = quantiser == 0 and configuration.subsampling in ("4:4:4", "4:0:0")
        if configuration.depth > 8:  # noqa: PLR2004 - bits
            _refuse_depth(configuration.depth, configuration.subsampling, lossless=lossless)
        return Coding(
            grey=configuration.grey,
            depth=configuration.depth,
            subsampling=configuration.subsampling,
            quality=None if quantiser is None else _quality(quantiser),
            lossless=lossless,
            coded_pixels=0 if coding is None else coding.width * coding.height,
        )

    def decode(self, data: bytes) -> Pixels:
        """Decode with libavif."""
        if self.mode in DEEP_MODES:
            return guarded(lambda: _deep(data, self._coding.depth), lambda error: damaged("AVIF", error))
        image = self.header(data)
        guarded(image.load, lambda error: damaged("AVIF", error))
        return np.asarray(image)

    def order(self, how: Encoding) -> Order:
        """Say how a result is coded: YCbCr at the finest is not without loss, and does not pretend to be."""
        order = super().order(how)
        if order.depth > 8 or order.subsampling == "4:0:0":  # noqa: PLR2004 - bits
            return order
        identity = order.colour is not None and order.colour[2] == _IDENTITY
        return replace(order, lossless=order.lossless and identity)

    def encode_picture(self, pixels: Pixels, order: Order) -> bytes:
        """Encode with libaom, by libavif."""
        if pixels.dtype == np.uint16 or (order.lossless and pixels.ndim == 3):  # noqa: PLR2004 - (height, width, 3)
            return _by_opencv(pixels, order)
        full = order.colour is None or order.colour[3]
        options: dict[str, Any] = {
            "quality": 100 if order.lossless else order.quality,
            "subsampling": order.subsampling,
            "range": "full" if full else "limited",
        }
        return save(Image.fromarray(np.ascontiguousarray(pixels)), "AVIF", options)


def _refuse_depth(depth: int, subsampling: str, *, lossless: bool) -> None:
    if not cv2.haveImageWriter(".avif"):
        raise RefusedError(
            "unsupported",
            f"this AVIF has {depth} bits a sample, and this OpenCV was built without AVIF",
            "run: pip install --upgrade opencv-python-headless; then: watcher retry --all; or " + _EXPORT,
        )
    if subsampling not in ("4:2:0", "4:0:0") and not lossless:
        raise RefusedError(
            "unsupported",
            f"this AVIF has {depth} bits a sample and {subsampling} colour, which cannot be written back",
            _EXPORT,
        )


def _quality(quantiser: int) -> int:
    return round(float(np.interp(quantiser, _QUANTISERS, _QUALITIES)))


def _deep(data: bytes, depth: int) -> Pixels:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None:
        raise ValueError("the decoder gave up")
    if decoded.dtype != np.uint16:
        raise ValueError(f"the decoder gave {decoded.dtype}")
    if decoded.ndim == 3:  # noqa: PLR2004 - OpenCV's order is B, G, R, alpha
        decoded = decoded[..., [2, 1, 0, 3][: decoded.shape[2]]]
    deep: Pixels = decoded.astype(np.uint16, copy=False) << np.uint16(16 - depth)
    return deep


def _by_opencv(pixels: Pixels, order: Order) -> bytes:
    if pixels.dtype == np.uint16:
        pixels = pixels >> (16 - order.depth)
    if pixels.ndim == 3:  # noqa: PLR2004 - likewise
        pixels = pixels[..., ::-1]
    quality = 100 if order.lossless else min(order.quality, 99)  # 100 is another coding: without loss
    options = [cv2.IMWRITE_AVIF_QUALITY, quality, cv2.IMWRITE_AVIF_DEPTH, order.depth]
    done, encoded = cv2.imencode(".avif", np.ascontiguousarray(pixels), options)
    if not done:
        raise ValueError("the AVIF encoder gave up")
    return encoded.tobytes()
