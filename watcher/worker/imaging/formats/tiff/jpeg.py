"""JPEG inside TIFF: how finely the source's pieces were quantised, so that they are not stored more coarsely.

Rule of this module: what cannot be read says nothing; the caller then takes a fine quality.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import JpegImagePlugin

FINE_QUALITY = 95
_LUMINANCE = bytes.fromhex(
    "100b0a101828333d0c0c0e131a3a3c370e0d1018283945380e11161d3357503e"
    "12162538446d674d182337405168715c31404e5767797865485c5f6270646763"
)
"""ITU-T T.81, table K.1, row by row: what libjpeg's qualities are multiples of."""


def quality_of(tables: bytes, piece: bytes) -> int:
    """Return the quality, on libjpeg's scale from 1 to 100, that quantises as a piece was quantised.

    Args:
        tables: of the TIFF's tag JPEGTables, or nothing.
        piece: a strip or tile.
    """
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(b"\xff\xd8" + tables[2:-2] + piece[2:]))
        wanted = sum(image.quantization[0])
    except Exception:  # noqa: BLE001 - hostile bytes; nothing depends on them
        return FINE_QUALITY
    return min(range(1, 101), key=lambda quality: (abs(_sum_at(quality) - wanted), -quality))


def _sum_at(quality: int) -> int:
    """Return the sum of libjpeg's luminance table at a quality (jcparam.c, jpeg_quality_scaling)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality  # noqa: PLR2004 - the scale's two halves
    return int(
        np.clip((np.frombuffer(_LUMINANCE, np.uint8).astype(np.int64) * scale + 50) // 100, 1, 255).sum()
    )
