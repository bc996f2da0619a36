"""Printing inks to the colours that they make, and back, by the picture's own colour profile.

Rules of this module:
- Inks count as Pillow counts them: 0 is none and 255 is full, whatever the file stores.
- A profile that is missing, damaged or not of inks is replaced by the plain formula (colour = paper less
  ink): wrong in print, but the same way there and back.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageCms

if TYPE_CHECKING:
    from numpy.typing import NDArray


class InkConversion:
    """Both directions of one picture's profile.

    Args:
        profile: the embedded ICC profile, or nothing.
    """

    def __init__(self, profile: bytes) -> None:
        both = _transforms(profile)
        self._forth = None if both is None else both[0]
        self._back = None if both is None else both[1]

    def to_rgb(self, inks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return what inks (height, width, 4) look like: sRGB, uint8, (height, width, 3)."""
        return _converted(inks, "CMYK", "RGB", self._forth)

    def from_rgb(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return inks (height, width, 4) for sRGB colours (height, width, 3)."""
        return _converted(rgb, "RGB", "CMYK", self._back)


def _transforms(profile: bytes) -> tuple[ImageCms.ImageCmsTransform, ImageCms.ImageCmsTransform] | None:
    if not profile:
        return None
    try:
        inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if inks.profile.xcolor_space.strip() != "CMYK":
            return None
        screen = ImageCms.createProfile("sRGB")
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
        return (
            ImageCms.buildTransform(inks, screen, "CMYK", "RGB", intent, flags),
            ImageCms.buildTransform(screen, inks, "RGB", "CMYK", intent, flags),
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


def _converted(
    pixels: NDArray[np.uint8], source: str, target: str, transform: ImageCms.ImageCmsTransform | None
) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    image = Image.frombytes(source, (width, height), pixels.tobytes())
    made = image.convert(target) if transform is None else ImageCms.applyTransform(image, transform)
    return np.asarray(made).astype(np.uint8, copy=False)
