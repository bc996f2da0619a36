"""Stored and viewed, there and back."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from watcher.worker.imaging.orientation import to_stored, to_viewed, viewed_box

WIDTH, HEIGHT = 7, 5
STORED = np.arange(WIDTH * HEIGHT, dtype=np.uint8).reshape(HEIGHT, WIDTH)


def by_pillow(orientation: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    image = Image.fromarray(STORED)
    image.getexif()[274] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_viewed_is_what_others_show_and_comes_back(orientation: int) -> None:
    viewed = to_viewed(STORED, orientation)
    assert np.array_equal(viewed, by_pillow(orientation))
    assert np.array_equal(to_stored(viewed, orientation), STORED)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_is_seen_where_its_pixels_are(orientation: int) -> None:
    left, top, right, bottom = box = (1, 0, 4, 2)
    stored = np.zeros((HEIGHT, WIDTH), np.bool_)
    stored[top:bottom, left:right] = True
    rows, columns = np.nonzero(to_viewed(stored, orientation))
    seen = viewed_box(box, orientation, (WIDTH, HEIGHT))
    assert seen == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
