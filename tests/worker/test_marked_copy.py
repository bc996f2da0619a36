"""Marked copies: what was drawn on them is found, and nothing else, however they were saved."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from watcher.worker.imaging.marked_copy import find_difference
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

SAMPLES = Path(__file__).parents[2] / "sample_inbox"
PHOTOS = (
    "astronaut.jpg",
    "coffee.jpg",
    "rocket.jpg",
    "gravel.webp",
    "screenshot.png",
    "space/hubble_deep_field.jpg",
)


def photo(name: str) -> Rgb:
    with Image.open(SAMPLES / name) as image:
        return np.asarray(image.convert("RGB"))


def saved(rgb: Rgb, kind: str = "JPEG", **options: Any) -> Rgb:
    target = BytesIO()
    Image.fromarray(rgb).save(target, kind, **options)
    with Image.open(target) as image:
        return np.asarray(image.convert("RGB"))


def scaled(rgb: Rgb, share: float, kernel: Image.Resampling) -> Rgb:
    size = (round(rgb.shape[1] * share), round(rgb.shape[0] * share))
    return np.asarray(Image.fromarray(rgb).resize(size, kernel))


def toned(rgb: Rgb, gains: tuple[float, float, float] = (1, 1, 1), gamma: float = 1.0) -> Rgb:
    values = 255 * (np.clip(rgb.astype(np.float32) * np.array(gains) / 255, 0, 1) ** gamma)
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


def through(rgb: Rgb, matrix: list[list[float]]) -> Rgb:
    """Read one profile's values as another's."""
    x = rgb.astype(np.float64) / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) @ np.array(matrix).T
    linear = np.clip(linear, 0, 1)
    back = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(back * 255), np.uint8)


TO_P3 = [[0.8225, 0.1774, 0.0], [0.0332, 0.9669, 0.0], [0.0171, 0.0724, 0.9108]]
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
LANCZOS, NEAREST = Image.Resampling.LANCZOS, Image.Resampling.NEAREST
SAVINGS: dict[str, Callable[[Rgb], Rgb]] = {
    "the same": lambda rgb: rgb.copy(),
    "JPEG 95": lambda rgb: saved(rgb, quality=95, subsampling=0),
    "JPEG 75": lambda rgb: saved(rgb, quality=75),
    "JPEG 50": lambda rgb: saved(rgb, quality=50),
    "WebP 70": lambda rgb: saved(rgb, "WEBP", quality=70),
    "half, JPEG": lambda rgb: saved(scaled(rgb, 0.5, BICUBIC), quality=85),
    "0.37": lambda rgb: saved(scaled(rgb, 0.37, LANCZOS), quality=85),
    "0.75, nearest": lambda rgb: saved(scaled(rgb, 0.75, NEAREST), quality=85),
    "1.2 times": lambda rgb: saved(scaled(rgb, 1.2, BICUBIC), quality=85),
    "brighter": lambda rgb: saved(toned(rgb, (1.05, 1.05, 1.05)), quality=85),
    "warmer": lambda rgb: saved(toned(rgb, (1.06, 1, 0.93)), quality=85),
    "gamma": lambda rgb: saved(toned(rgb, gamma=1.12), quality=85),
    "another profile": lambda rgb: saved(through(rgb, TO_P3), quality=85),
    "sharpened": lambda rgb: saved(
        cv2.addWeighted(rgb, 1.5, cv2.GaussianBlur(rgb, (0, 0), 1.0), -0.5, 0).astype(np.uint8), quality=85
    ),
    "half a pixel off": lambda rgb: saved(
        cv2.warpAffine(
            rgb,
            np.array([[1, 0, 0.5], [0, 1, 0.5]], np.float32),
            (rgb.shape[1], rgb.shape[0]),
            borderMode=cv2.BORDER_REPLICATE,
        ).astype(np.uint8),
        quality=85,
    ),
    "a phone": lambda rgb: saved(scaled(toned(rgb, (1.03, 1, 0.97), 0.95), 0.6, BILINEAR), quality=80),
}


# A third of them in `make test`, so that each photo and each way of saving is among them.
RESAVED = [
    pytest.param(name, how, marks=() if (row + column) % 3 == 0 else pytest.mark.soak)
    for row, name in enumerate(PHOTOS)
    for column, how in enumerate(SAVINGS)
]


@pytest.mark.parametrize(("name", "how"), RESAVED)
def test_a_copy_that_was_only_saved_again_shows_no_difference(name: str, how: str) -> None:
    picture = photo(name)
    assert find_difference(picture, SAVINGS[how](picture)) is None


def drawn(picture: Rgb, kind: str) -> tuple[Rgb, Mask]:
    """Draw on the lower left of a picture; also return where."""
    height, width = picture.shape[:2]
    canvas = Image.new("L", (width * 4, height * 4))
    pen = ImageDraw.Draw(canvas)
    unit = min(width, height) * 4 // 20
    x, y = width * 4 // 5, height * 4 // 2
    colour, opacity = np.array([255, 220, 0]), 1.0
    match kind:
        case "thin line":
            pen.line([(x, y), (x + 6 * unit, y + 3 * unit)], fill=255, width=12)
        case "brush":
            pen.line(
                [(x, y), (x + 3 * unit, y + 3 * unit), (x + 6 * unit, y)],
                fill=255,
                width=2 * unit,
                joint="curve",
            )
        case "filled shape":
            pen.ellipse((x, y, x + 5 * unit, y + 4 * unit), fill=255)
        case "highlighter":
            pen.rectangle((x, y, x + 7 * unit, y + 2 * unit), fill=255)
            opacity = 0.4
    share = np.asarray(canvas.resize((width, height), Image.Resampling.BOX)).astype(np.float32) / 255
    mix = (share * opacity)[..., np.newaxis]
    return np.rint(picture * (1 - mix) + colour * mix).astype(np.uint8), share >= 0.5


@pytest.mark.parametrize("name", ["astronaut.jpg", "coffee.jpg", "screenshot.png"])
@pytest.mark.parametrize("kind", ["thin line", "brush", "filled shape", "highlighter"])
@pytest.mark.parametrize("how", ["the same", "JPEG 75", "a phone"])
def test_what_was_drawn_is_found_whole_and_nothing_else(name: str, kind: str, how: str) -> None:
    picture = photo(name)
    copy, where = drawn(picture, kind)
    if kind == "thin line" and how == "a phone":
        pytest.skip("scaled down, it is less than 3 px wide")
    found = find_difference(picture, SAVINGS[how](copy))
    assert found is not None
    assert found.shape == where.shape
    assert (found & where).sum() / where.sum() >= 0.99
    near = cv2.dilate(where.astype(np.uint8), np.ones((25, 25), np.uint8)) > 0
    assert not (found & ~near).any(), "and nothing away from it"


def test_nothing_of_a_stroke_is_left_outside_of_the_mark() -> None:
    picture = photo("astronaut.jpg")
    copy, _ = drawn(picture, "brush")
    found = find_difference(picture, copy)
    assert found is not None
    assert np.array_equal(picture[~found], copy[~found])


@pytest.mark.parametrize("turn", ["another picture", "mirrored", "upside down"])
def test_another_picture_is_refused(turn: str) -> None:
    picture = photo("astronaut.jpg")
    other = np.asarray(Image.fromarray(photo("rocket.jpg")).resize(picture.shape[1::-1]))
    copies = {
        "another picture": other,
        "mirrored": picture[:, ::-1],
        "upside down": picture[::-1, ::-1],
    }
    with pytest.raises(RefusedError) as refusal:
        find_difference(picture, saved(np.ascontiguousarray(copies[turn]), quality=85))
    assert refusal.value.code == "mask_mismatch"
    assert ".marked" in refusal.value.remedy


def test_another_shape_is_refused_with_both_sizes() -> None:
    picture = photo("coffee.jpg")
    height, width = picture.shape[:2]
    with pytest.raises(RefusedError) as refusal:
        find_difference(picture, np.ascontiguousarray(picture[: height - 40]))
    assert refusal.value.code == "mask_mismatch"
    assert f"{width}x{height - 40}" in refusal.value.reason
    assert f"{width}x{height}" in refusal.value.reason


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (8, 8), (40, 8), (17, 23)])
def test_small_pictures_are_looked_at_too(size: tuple[int, int]) -> None:
    grey = np.full((*size[::-1], 3), 90, np.uint8)
    assert find_difference(grey, grey + np.uint8(1)) is None


def test_a_large_mark_on_a_flat_picture_is_found() -> None:
    flat = np.full((200, 300, 3), (40, 90, 160), np.uint8)
    copy = flat.copy()
    copy[50:150, 60:200] = (250, 240, 10)
    found = find_difference(flat, saved(copy, quality=80))
    assert found is not None
    assert found[52:148, 62:198].all()
    assert not found[:40].any()


def test_the_picture_itself_is_left_alone() -> None:
    picture = photo("coffee.jpg")
    copy, _ = drawn(picture, "brush")
    before = picture.copy(), copy.copy()
    find_difference(picture, copy)
    assert np.array_equal(picture, before[0])
    assert np.array_equal(copy, before[1])
