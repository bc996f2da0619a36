"""A decoded picture as a screen shows it: RGB, 8 bits, whatever its own mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from watcher.worker.imaging.inks import InkConversion
from watcher.worker.imaging.picture import DEEP_MODES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.picture import Picture, Pixels

_BAND_ROWS = 512


def rgb_of(picture: Picture, pixels: Pixels) -> NDArray[np.uint8]:
    """Return decoded pixels as RGB, without alpha; of 16 bits the upper 8, of inks what they print.

    Args:
        picture: opened and loaded.
        pixels: as its `load` returned them; the result may share their memory, and is not to be changed.

    Returns:
        uint8, (height, width, 3), stored orientation.
    """
    if picture.mode == "P":
        return np.asarray(picture.image.convert("RGB"))
    if picture.mode == "CMYK":
        return InkConversion(picture.icc_profile).to_rgb(pixels.astype(np.uint8, copy=False))
    if picture.mode == "1":
        plain = pixels.astype(np.uint8) * np.uint8(255)
    elif picture.mode in DEEP_MODES:
        plain = (pixels.astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    else:
        plain = pixels.astype(np.uint8, copy=False)
    planes = plain.reshape(*plain.shape[:2], -1)
    if planes.shape[2] >= 3:  # noqa: PLR2004 - R, G, B
        return planes[..., :3]
    return np.broadcast_to(planes[..., :1], (*plain.shape[:2], 3))


def shown_over(
    rgb: NDArray[np.uint8], opacity: NDArray[np.uint8], below: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Lay a picture over another, which is brought to its size.

    Args:
        rgb: uint8, (height, width, 3).
        opacity: uint8, (height, width).
        below: uint8, of any size, (height, width, 3).

    Returns:
        uint8, (height, width, 3), fresh.
    """
    height, width = opacity.shape
    behind = cv2.resize(np.ascontiguousarray(below), (width, height), interpolation=cv2.INTER_LINEAR)
    shown = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, _BAND_ROWS):
        band = slice(top, top + _BAND_ROWS)
        share = opacity[band, :, np.newaxis].astype(np.uint16)
        shown[band] = (rgb[band] * share + behind[band] * (255 - share) + 127) // 255
    return shown
