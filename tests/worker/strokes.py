"""Strokes as editors paint them, and pictures as programs save them.

What this module owns: freehand lines of any width (antialiased, hard or soft), laid over a picture in one
colour, and the lossy ways in which such a picture comes back. The same arguments make the same pixels.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Coverage = NDArray[np.float32]

MAGENTA: Final = (255, 0, 255)
OPAQUE: Final = 0.99
_FINE: Final = 4
"""Lines are drawn at this many times the size and averaged: what antialiasing is."""


def freehand(
    shape: tuple[int, ...], width_px: float, seed: int, *, length_px: float = 240, softness: float = 0.0
) -> Coverage:
    """Draw a freehand line; returns how much of each pixel it covers, float32 (height, width), 0..1.

    Args:
        shape: of the picture.
        width_px: of the line.
        seed: which line.
        length_px: of the line.
        softness: standard deviation of the brush's edge as a share of its width; 0 for a hard one.
    """
    height, width = shape[:2]
    random = np.random.default_rng(seed)
    turns = np.cumsum(np.cumsum(random.normal(0, 0.004, round(length_px)))) + random.uniform(0, 2 * np.pi)
    steps = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    path = np.cumsum(steps, axis=0)
    path += np.array([width, height]) * random.uniform(0.35, 0.65, 2) - (path.min(0) + path.max(0)) / 2
    fine = np.zeros((height * _FINE, width * _FINE), np.uint8)
    points = np.round((path * _FINE + _FINE / 2) * 16).astype(np.int32).reshape(-1, 1, 2)
    cv2.polylines(fine, [points], False, 255, max(1, round(width_px * _FINE)), cv2.LINE_AA, 4)  # noqa: FBT003 - positional only
    return brushed(cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA), softness * width_px)


def straight(shape: tuple[int, ...], width_px: int, place: int, *, is_upright: bool) -> Coverage:
    """Draw a straight line across most of a picture, or down it, from a row or column on."""
    mask = np.zeros(shape[:2], np.uint8)
    line = mask.T if is_upright else mask
    middle = line.shape[0] // 4 * 2 + place
    line[middle : middle + width_px, line.shape[1] // 8 : -line.shape[1] // 8] = 255
    return brushed(mask)


def brushed(mask: NDArray[Any], sigma_px: float = 0.0) -> Coverage:
    """Turn a mask of 0..255 into coverage, with a soft edge if asked for."""
    coverage = mask.astype(np.float32) / np.float32(255)
    return cv2.GaussianBlur(coverage, (0, 0), sigma_px).astype(np.float32) if sigma_px else coverage


def painted(rgb: Rgb, coverage: Coverage, colour: tuple[int, int, int] = MAGENTA) -> Rgb:
    """Lay a colour over a picture."""
    share = coverage[..., None]
    return np.round(rgb * (1 - share) + np.array(colour, np.float32) * share).astype(np.uint8)


def chroma_along(rgb: Rgb, colour: tuple[int, int, int]) -> Coverage:
    """Return how much chroma of a colour's hue each pixel has, in levels: float32 (height, width)."""
    pixels = cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb)[..., 1:].astype(np.float32) - np.float32(128)
    hue = cv2.cvtColor(np.array([[colour]], np.uint8), cv2.COLOR_RGB2YCrCb)[0, 0, 1:].astype(np.float32) - 128
    along: Coverage = pixels @ (hue / np.linalg.norm(hue)).astype(np.float32)
    return along


@dataclass(frozen=True)
class Saving:
    """A way in which a picture is saved after it was painted on.

    Attributes:
        name: as tables print it.
        container: `PNG`, `JPEG` or `WEBP`.
        quality: of a lossy one.
        sampling: of a JPEG, as Pillow counts: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
        scale: it was resized by this much before.
    """

    name: str
    container: str = "JPEG"
    quality: int = 0
    sampling: int = 0
    scale: float = 1.0

    def __call__(self, rgb: Rgb) -> Rgb:
        """Return the pixels that are read back."""
        image = Image.fromarray(rgb)
        if self.scale != 1:
            size = (round(image.width * self.scale), round(image.height * self.scale))
            image = image.resize(size, Image.Resampling.LANCZOS)
        if self.container == "PNG":
            return np.asarray(image)
        options = {"subsampling": self.sampling} if self.container == "JPEG" else {}
        file = io.BytesIO()
        image.save(file, self.container, quality=self.quality, **options)
        return np.asarray(Image.open(file).convert("RGB"))


LOSSLESS: Final = Saving("lossless", "PNG")
JPEGS: Final = tuple(
    Saving(f"q{quality} {name}", "JPEG", quality, sampling)
    for quality in (98, 90, 75, 60, 50)
    for sampling, name in enumerate(("4:4:4", "4:2:2", "4:2:0"))
)
WEBPS: Final = tuple(Saving(f"WebP {quality}", "WEBP", quality) for quality in (90, 75, 50))
HALVED: Final = Saving("halved, q75 4:2:0", "JPEG", 75, 2, 0.5)
DOUBLED: Final = Saving("doubled, q75 4:2:0", "JPEG", 75, 2, 2.0)
SAVINGS: Final = (LOSSLESS, *JPEGS, *WEBPS, HALVED, DOUBLED)
