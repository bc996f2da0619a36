"""Coarse to fine: detail for a hole that was filled at a smaller scale."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import rectangle
from watcher.worker.engines.protocol import Crop
from watcher.worker.imaging.detail import enlarged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]

SAMPLES = Path(__file__).parents[2] / "sample_inbox"


def texture(name: str) -> Rgb:
    with Image.open(SAMPLES / name) as image:
        return np.asarray(image.convert("RGB"))


def coarse(picture: Rgb, hole: NDArray[np.bool_], scale: float) -> Crop:
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    touched = cv2.resize(hole.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0
    return Crop(np.asarray(small, np.uint8), np.asarray(touched))


def roughness(rgb: Rgb, hole: NDArray[np.bool_]) -> float:
    """The mean size of the Laplacian: what blur takes away."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return float(np.abs(cv2.Laplacian(grey, cv2.CV_32F))[hole].mean())


@pytest.mark.kind("PB2")
@pytest.mark.parametrize("name", ["grass.png", "gravel.webp", "brick.png"])
@pytest.mark.parametrize("scale", [0.3, 0.6])
def test_a_coarse_fill_gets_the_grain_of_its_surroundings(name: str, scale: float) -> None:
    picture = texture(name)
    height, width = picture.shape[:2]
    hole = rectangle(width, height, (150, 150, 350, 350))
    crop = coarse(picture, hole, scale)
    blurred = np.asarray(cv2.resize(crop.pixels, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)
    result = enlarged(picture, crop, crop.pixels).rgb
    truth = roughness(picture, hole)
    assert roughness(blurred, hole) < roughness(result, hole) < 1.15 * truth
    lacking = truth - roughness(blurred, hole)
    assert truth - roughness(result, hole) < 0.75 * lacking
    assert np.abs(result[hole].mean(axis=0) - picture[hole].mean(axis=0)).max() < 3


def test_what_lies_in_the_hole_is_never_looked_at() -> None:
    picture = texture("grass.png")
    hole = rectangle(picture.shape[1], picture.shape[0], (150, 150, 350, 350))
    painted = picture.copy()
    painted[hole] = (255, 0, 255)
    crop = coarse(picture, hole, 0.5)
    assert np.array_equal(
        enlarged(picture, crop, crop.pixels).rgb[hole], enlarged(painted, crop, crop.pixels).rgb[hole]
    )


def test_the_same_again_and_grey_stays_grey() -> None:
    grey = np.repeat(cv2.cvtColor(texture("gravel.webp"), cv2.COLOR_RGB2GRAY)[..., np.newaxis], 3, axis=2)
    picture = np.asarray(grey, np.uint8)
    hole = rectangle(picture.shape[1], picture.shape[0], (150, 150, 350, 350))
    crop = coarse(picture, hole, 0.5)
    first, second = (enlarged(picture, crop, crop.pixels).rgb for _ in range(2))
    assert np.array_equal(first, second)
    inside = first[hole]
    assert (inside == inside[:, :1]).all()


def test_a_flat_picture_stays_flat() -> None:
    picture = np.full((400, 400, 3), (90, 140, 200), np.uint8)
    hole = rectangle(400, 400, (100, 100, 300, 300))
    crop = coarse(picture, hole, 0.4)
    assert np.abs(enlarged(picture, crop, crop.pixels).rgb.astype(int) - picture).max() <= 1
