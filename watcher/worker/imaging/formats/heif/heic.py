"""HEIC: HEVC in a HEIF container, by the package `pillow-heif`, which is an extra.

Rules of this module:
- The package is imported when the first HEIC comes, and never told to Pillow: nothing else is opened with it.
- A result is coded with the quantiser, depth and chroma sampling of its source.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from watcher.worker.imaging.formats.heif.hevc import hevc_coding, hevc_configuration
from watcher.worker.imaging.formats.heif.picture import Coding, HeifPicture
from watcher.worker.imaging.picture import damaged, guarded, open_image
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from PIL import Image

    from watcher.worker.imaging.formats.heif.isobmff import Item
    from watcher.worker.imaging.formats.heif.picture import Order
    from watcher.worker.imaging.picture import Pixels
    from watcher.worker.imaging.sniffing import Container

INSTALL = "pip install pillow-heif"
_EXPORT = "export it as JPEG or PNG and drop that"
_DEPTHS = frozenset({8, 10, 12})
"""What x265 writes."""
_SUBSAMPLINGS = ("4:0:0", "4:2:0", "4:2:2", "4:4:4")
_WRITABLE_MATRICES = frozenset({1, 4, 5, 6, 7, 9})
"""Matrices of ISO/IEC 23091-2 that libheif turns RGB into; for others it is told BT.601."""
_PLAIN_COLOUR = (1, 13, 6, True)
"""sRGB by BT.601, full range: what libheif writes if it is told nothing."""
_LOSSLESS_QUANTISER = 4
"""What x265 writes in a slice that passes by the quantiser."""
_PRESET = "veryfast"
"""Slower presets of x265 took up to four times as long on 5 and 12 MP photos, for the same size and error."""


class HeicPicture(HeifPicture):
    """A HEIC of one picture."""

    container: ClassVar[Container] = "HEIC"
    encode_work: ClassVar[int] = 64
    """For 12 MP of noise two x86 cores took 0.14 s (JPEG) and 6 to 9 s (HEIC; AVIF as long)."""
    coded_kind: ClassVar[bytes] = b"hvc1"
    configuration_kind: ClassVar[bytes] = b"hvcC"
    smallest_tile: ClassVar[int] = 64
    default_quality: ClassVar[int] = 70

    @classmethod
    def check_support(cls) -> None:
        """See that `pillow-heif` is installed, and was built with a coder: distributions leave it out."""
        try:
            from pillow_heif import libheif_info

            can_encode = bool(libheif_info()["HEIF"])
        except ImportError as error:
            raise RefusedError(
                "unsupported",
                "this is a HEIC picture, and the package that reads them is not installed",
                f"run: {INSTALL}; then: watcher retry --all; or export it as JPEG and drop that",
            ) from error
        if not can_encode:
            raise RefusedError(
                "unsupported",
                "this is a HEIC picture, and the installed pillow-heif can read them only",
                "run: pip install --force-reinstall pillow-heif; then: watcher retry --all; or " + _EXPORT,
            )

    @classmethod
    def header(cls, data: bytes) -> Image.Image:
        """Let pillow-heif read the header."""
        from pillow_heif import HeifImageFile

        return open_image("HEIC", HeifImageFile, data)

    @classmethod
    def judge(cls, item: Item) -> Coding:
        """Tell how a coded item is coded."""
        configuration = hevc_configuration(item.all_of(b"hvcC")[0].body)
        uneven = configuration.chroma_format and configuration.depth != configuration.chroma_depth
        if configuration.depth not in _DEPTHS or uneven:
            raise RefusedError(
                "unsupported",
                "this HEIC has a depth that is not served, or two of them for brightness and colour",
                _EXPORT,
            )
        coding = hevc_coding(configuration, item.data)
        return Coding(
            grey=configuration.chroma_format == 0,
            depth=configuration.depth,
            subsampling=_SUBSAMPLINGS[configuration.chroma_format],
            quality=None if coding is None else _quality(coding.quantiser),
            lossless=coding is not None
            and coding.may_be_lossless
            and coding.quantiser <= _LOSSLESS_QUANTISER,
            coded_pixels=0 if coding is None else coding.width * coding.height,
        )

    def decode(self, data: bytes) -> Pixels:
        """Decode with libheif."""
        import pillow_heif

        return guarded(
            lambda: np.asarray(pillow_heif.open_heif(data, convert_hdr_to_8bit=False)),
            lambda error: damaged("HEIC", error),
        )

    def encode_picture(self, pixels: Pixels, order: Order) -> bytes:
        """Encode with x265, by libheif."""
        import pillow_heif

        deep = pixels.dtype == np.uint16
        mode = ("RGB" if pixels.ndim == 3 else "L") + (";16" if deep else "")  # noqa: PLR2004 - (height, width, 3)
        primaries, transfer, matrix, full = order.colour or _PLAIN_COLOUR
        if matrix not in _WRITABLE_MATRICES:
            matrix, full = 6, True
        options: dict[str, Any] = {
            "quality": -1 if order.lossless else order.quality,
            "bit_depth": order.depth,
            "enc_params": {"preset": _PRESET},
            "color_primaries": primaries,
            "transfer_characteristics": transfer,
            "matrix_coefficients": matrix,
            "full_range_flag": int(full),
        }
        if pixels.ndim == 3:  # noqa: PLR2004 - likewise
            options["subsampling"] = order.subsampling
        target = io.BytesIO()
        size = (pixels.shape[1], pixels.shape[0])
        pillow_heif.encode(mode, size, np.ascontiguousarray(pixels).tobytes(), target, **options)
        return target.getvalue()


def _quality(quantiser: int) -> int:
    """Return the quality by which x265 begins with a quantiser (measured: QP = 47 - quality / 2)."""
    return max(0, min(100, 94 - 2 * quantiser))
