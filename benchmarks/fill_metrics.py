"""How good a fill is, where the truth is known: closeness, texture, and the step at the border.

Rules of this module:
- Everything is measured on luma (ITU-R BT.601) or RGB of the whole picture after the fill was pasted, at the
  pixels of the hole: what a filter sees outside the hole is the same before and after.
- Closeness (PSNR, SSIM) rewards blur: the mean of all that might have been there is nearer to the truth than
  any one guess. It says whether a fill is right, not whether it shows.
- `texture` is what tells whether a fill shows. It compares distributions and not pixels, so another patch of
  the same grass is as good as the true one, and a blurred one is not. The experiment `statistic` of
  `fill_quality.py` holds that against real pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]
    Plane = NDArray[np.float32]

PEAK: Final = 255.0
SSIM_SIDE: Final = 11
SSIM_SIGMA: Final = 1.5
SSIM_K1: Final = 0.01
SSIM_K2: Final = 0.03
"""Window and constants of Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error
Visibility to Structural Similarity", IEEE Transactions on Image Processing 13 (2004)."""
TEXTURE_SIGMAS: Final = (0.0, 1.0, 2.0, 4.0)
"""One octave apart: detail of about 2, 4, 8 and 16 pixels. 0: the picture as it is."""
REACH_PX: Final = 16
"""Further from the hole than this nothing is looked at: four times the largest sigma."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured of one fill.

    Attributes:
        psnr_db: peak signal to noise ratio over R, G and B of the hole's pixels; higher is nearer.
        ssim: mean structural similarity at the hole's pixels; 1 is the truth.
        texture: distance of the distributions of detail, in octaves of contrast; 0 is the truth's own.
        step: contrast over the hole's border less the truth's own, in grey levels; above 0 it shows, below
            0 the fill is smoother than what was there.
    """

    psnr_db: float
    ssim: float
    texture: float
    step: float


def measure(filled: Rgb, truth: Rgb, hole: Mask) -> Quality:
    """Compare a filled picture with the truth inside the hole.

    Args:
        filled: uint8, (height, width, 3), equal to `truth` outside the hole.
        truth: likewise.
        hole: bool, (height, width), with at least one pixel.
    """
    box = _surroundings(hole)
    filled, truth, hole = filled[box], truth[box], hole[box]
    there, here = luma(truth), luma(filled)
    return Quality(
        psnr_db(filled, truth, hole),
        ssim(here, there, hole),
        texture(here, there, hole),
        _border_contrast(here, hole) - _border_contrast(there, hole),
    )


def luma(rgb: Rgb) -> Plane:
    """Return ITU-R BT.601 luma: float32, (height, width), 0..255."""
    weights = np.array([[0.299, 0.587, 0.114]], np.float32)
    return np.asarray(cv2.transform(rgb.astype(np.float32), weights), np.float32)


def psnr_db(filled: Rgb, truth: Rgb, hole: Mask) -> float:
    """Return the peak signal to noise ratio of the hole's pixels; 99 for no difference."""
    difference = filled[hole].astype(np.float32) - truth[hole]
    error = float(np.mean(difference**2))
    return 99.0 if error == 0 else min(99.0, 10 * float(np.log10(PEAK**2 / error)))


def ssim(here: Plane, there: Plane, hole: Mask) -> float:
    """Return the mean of the structural similarity map over the hole."""

    def mean(plane: Plane) -> Plane:
        side = (SSIM_SIDE, SSIM_SIDE)
        return np.asarray(
            cv2.GaussianBlur(plane, side, SSIM_SIGMA, borderType=cv2.BORDER_REFLECT), np.float32
        )

    small, tiny = (SSIM_K1 * PEAK) ** 2, (SSIM_K2 * PEAK) ** 2
    mean_here, mean_there = mean(here), mean(there)
    product = mean_here * mean_there
    squares = mean_here**2 + mean_there**2
    covariance = mean(here * there) - product
    variances = mean(here**2) + mean(there**2) - squares
    similarity = (2 * product + small) * (2 * covariance + tiny) / ((squares + small) * (variances + tiny))
    return float(similarity[hole].mean())


def texture(here: Plane, there: Plane, hole: Mask) -> float:
    """Return how far apart the detail of two planes is inside the hole, whatever lies where.

    For four scales and two directions: the magnitudes of the derivative on a logarithmic scale, and the
    Wasserstein-1 distance of their two distributions; the result is the mean of the eight. A fill whose
    detail is everywhere half as strong as the truth's is 1 away where that is strong, and less where it is
    near the grey level below which nobody sees it.
    """
    distances = [
        np.abs(np.sort(one[hole]) - np.sort(other[hole])).mean()
        for one, other in zip(_detail(here), _detail(there), strict=True)
    ]
    return float(np.mean(distances))


def _detail(plane: Plane) -> Iterator[Plane]:
    for sigma in TEXTURE_SIGMAS:
        smooth = (
            plane if sigma == 0 else cv2.GaussianBlur(plane, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)
        )
        gain = max(1.0, 2 * sigma)  # a derivative falls with the scale at which it is taken
        for across, down in ((1, 0), (0, 1)):
            derivative = cv2.Sobel(smooth, cv2.CV_32F, across, down, ksize=1, borderType=cv2.BORDER_REFLECT)
            yield np.log2(1 + np.abs(np.asarray(derivative, np.float32)) * gain / 2)


def _border_contrast(plane: Plane, hole: Mask) -> float:
    """Return the mean absolute difference of neighbours of which one is hole and one is not."""
    differences = [
        np.abs(plane[1:] - plane[:-1])[hole[1:] ^ hole[:-1]],
        np.abs(plane[:, 1:] - plane[:, :-1])[hole[:, 1:] ^ hole[:, :-1]],
    ]
    values = np.concatenate(differences)
    return float(values.mean()) if values.size else 0.0


def _surroundings(hole: Mask) -> tuple[slice, slice]:
    rows, columns = np.flatnonzero(hole.any(axis=1)), np.flatnonzero(hole.any(axis=0))
    return (
        slice(max(0, int(rows[0]) - REACH_PX), int(rows[-1]) + 1 + REACH_PX),
        slice(max(0, int(columns[0]) - REACH_PX), int(columns[-1]) + 1 + REACH_PX),
    )
