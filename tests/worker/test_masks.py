"""Masks as people and tools make them."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker.bench import photo, rectangle
from watcher.worker.imaging.decode import open_picture
from watcher.worker.imaging.masks import default_grow_px, fit_mask, grow, grown, read_mask
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.picture import Picture

WIDTH, HEIGHT = 203, 101
MARK = rectangle(WIDTH, HEIGHT, (60, 20, 100, 60))
GREY = MARK.astype(np.uint8) * np.uint8(255)


def png(image: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    target = BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def opened(width: int = WIDTH, height: int = HEIGHT) -> Picture:
    return open_picture(png(Image.fromarray(photo(width, height))), max_pixels=10**8)


def read(data: bytes, *, invert: bool = False) -> NDArray[np.bool_]:
    return read_mask(data, opened(), max_pixels=10**8, invert=invert).mask


def with_alpha(colour: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> Image.Image:
    channels = [colour, colour, colour, alpha]
    return Image.fromarray(np.stack(channels, axis=-1))


L = Image.fromarray(GREY)
FULL, NONE = np.full_like(GREY, 255), np.zeros_like(GREY)
KINDS = {
    "1": L.convert("1"),
    "L": L,
    "LA": L.convert("LA"),
    "P": L.convert("P"),
    "RGB": L.convert("RGB"),
    "RGBA": L.convert("RGBA"),
    "16 bit": Image.fromarray(GREY.astype(np.uint16) * 257),
    "white strokes on nothing": with_alpha(FULL, GREY),
    "black strokes on nothing": with_alpha(NONE, GREY),
    "white strokes on opaque black": with_alpha(GREY, FULL),
    "white strokes, hidden white elsewhere": with_alpha(FULL, GREY),
}


@pytest.mark.kind("PA2")
@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_all_kinds_say_the_same(kind: str) -> None:
    assert np.array_equal(read(png(KINDS[kind])), MARK)


def test_red_strokes_on_nothing_are_a_mark() -> None:
    strokes = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    strokes[MARK] = (255, 0, 0, 255)
    assert np.array_equal(read(png(Image.fromarray(strokes))), MARK)


@pytest.mark.parametrize("container", ["BMP", "TIFF", "GIF"])
def test_other_containers_hold_masks_too(container: str) -> None:
    assert np.array_equal(read(png(L, container)), MARK)


def test_a_lossless_webp_is_a_mask_too() -> None:
    assert np.array_equal(read(png(L.convert("RGB"), "WEBP", lossless=True)), MARK)


@pytest.mark.kind("PA6")
@pytest.mark.parametrize("quality", [50, 75, 95])
def test_jpeg_noise_is_no_mark(quality: int) -> None:
    aligned = rectangle(WIDTH, HEIGHT, (64, 24, 104, 64))
    noisy = png(Image.fromarray(aligned.astype(np.uint8) * np.uint8(255)), "JPEG", quality=quality)
    assert np.array_equal(read(noisy), aligned)


def inverted(image: Image.Image) -> Image.Image:
    """White for black, and nothing for something, as an editor's `invert` makes it."""
    if image.mode == "1":
        return Image.fromarray(~np.asarray(image))
    if image.mode == "P":
        return inverted(image.convert("RGB")).convert("P")
    values = np.array(image)
    colours = values[..., :-1] if image.mode in ("LA", "RGBA") else values
    colours[...] = np.iinfo(values.dtype).max - colours
    return Image.fromarray(values)


@pytest.mark.kind("PA9")
@pytest.mark.parametrize(
    "kind", ["1", "L", "LA", "P", "RGB", "RGBA", "16 bit", "white strokes on opaque black"]
)
def test_an_inverted_mask_is_read_as_its_recipe_says(kind: str) -> None:
    upside_down = png(inverted(KINDS[kind]))
    assert np.array_equal(read(upside_down, invert=True), MARK)
    assert np.array_equal(read(upside_down), ~MARK), "unless it says so"


def test_a_hole_in_an_inverted_mask_is_a_mark() -> None:
    assert np.array_equal(read(png(with_alpha(FULL, FULL - GREY)), invert=True), MARK)


@pytest.mark.kind("PA9")
@pytest.mark.parametrize("quality", [50, 95])
def test_jpeg_noise_in_an_inverted_mask_is_no_mark(quality: int) -> None:
    aligned = rectangle(WIDTH, HEIGHT, (64, 24, 104, 64))
    noisy = png(Image.fromarray((~aligned).astype(np.uint8) * np.uint8(255)), "JPEG", quality=quality)
    assert np.array_equal(read(noisy, invert=True), aligned)


@pytest.mark.kind("PA11")
@pytest.mark.parametrize(
    ("grey", "invert", "words"),
    [(0, False, "its brightest pixel is 0"), (127, False, "is 127"), (128, True, "its darkest pixel is 128")],
)
def test_an_empty_mask_says_how_empty_it_is(grey: int, invert: bool, words: str) -> None:  # noqa: FBT001 - parametrised
    data = png(Image.fromarray(np.full((HEIGHT, WIDTH), grey, np.uint8)))
    file = read_mask(data, opened(), max_pixels=10**8, invert=invert)
    assert not file.mask.any()
    assert file.note is not None
    assert words in file.note


@pytest.mark.kind("PA7")
def test_the_threshold_is_128() -> None:
    grey = np.full((HEIGHT, WIDTH), 127, np.uint8)
    grey[:, :100] = 128
    assert np.array_equal(read(png(Image.fromarray(grey))), grey == 128)


# --- size --------------------------------------------------------------------------------------------------


@pytest.mark.kind("PA10")
@pytest.mark.parametrize("size", [(100, 50), (101, 50), (101, 51), (406, 202), (405, 202)])
def test_the_same_aspect_is_scaled(size: tuple[int, int]) -> None:
    scaled = png(L.resize(size, Image.Resampling.NEAREST))
    result = read(scaled)
    assert result.shape == (HEIGHT, WIDTH)
    overlap = (result & MARK).sum() / (result | MARK).sum()
    assert overlap > 0.85


@pytest.mark.parametrize(
    ("mask", "picture", "fits"),
    [
        ((4000, 2667), (500, 333), True),
        ((500, 333), (4000, 2667), True),
        ((4000, 2640), (500, 333), False),
        ((2, 1), (20, 11), False),
        ((1024, 768), (64, 48), True),
        ((1025, 768), (63, 48), False),
    ],
)
def test_what_is_rounded_is_the_smaller_of_the_two(
    mask: tuple[int, int],
    picture: tuple[int, int],
    fits: bool,  # noqa: FBT001 - parametrised
) -> None:
    drawn = np.zeros(mask[::-1], np.bool_)
    if fits:
        assert fit_mask(drawn, picture).shape == picture[::-1]
    else:
        with pytest.raises(RefusedError, match=f"{mask[0]}x{mask[1]}"):
            fit_mask(drawn, picture)


def test_a_thin_stroke_survives_shrinking() -> None:
    large = np.zeros((1010, 2030), np.bool_)
    large[505, :] = True
    assert fit_mask(large, (203, 101))[50].all()


@pytest.mark.kind("PA10")
@pytest.mark.parametrize("size", [(50, 100), (101, 203), (1, 1), (203, 120), (4, 2), (196, 101)])
def test_another_aspect_is_refused_with_both_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(RefusedError) as refusal:
        read(png(L.resize(size)))
    assert refusal.value.code == "mask_mismatch"
    assert f"{size[0]}x{size[1]}" in refusal.value.reason
    assert "203x101" in refusal.value.reason


# --- damage ------------------------------------------------------------------------------------------------


def test_a_mask_that_is_no_picture() -> None:
    with pytest.raises(RefusedError) as refusal:
        read(b"a text that somebody renamed")
    assert refusal.value.code == "mask_undecodable"


def test_a_mask_that_is_still_being_written() -> None:
    with pytest.raises(IncompleteError, match="mask"):
        read(png(L)[:-20])


# --- growing -----------------------------------------------------------------------------------------------


@pytest.mark.kind("PA7", "PA8")
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(400, 1200))
def test_growing_is_the_euclidean_disc(radius: int, seed: int, width: int, height: int) -> None:
    random = np.random.default_rng(seed)
    mask = np.zeros((height, width), np.bool_)
    mask[random.integers(0, height, 5), random.integers(0, width, 5)] = True
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    disc = (x * x + y * y <= radius * radius).astype(np.uint8)
    expected = cv2.dilate(mask.astype(np.uint8), disc).astype(bool)
    assert np.array_equal(grown(mask, radius), expected)


@pytest.mark.kind("PA8")
def test_the_default_grow() -> None:
    assert default_grow_px(400, 300) == 4
    assert default_grow_px(3000, 4000) == 20


@pytest.mark.kind("PA8")
def test_growing_by_nothing_is_exact() -> None:
    assert np.array_equal(grow(MARK, 0), MARK)


@pytest.mark.kind("PA9", "PA12")
def test_a_mask_that_covers_all_is_refused() -> None:
    with pytest.raises(RefusedError) as refusal:
        grow(np.ones((50, 50), np.bool_), None)
    assert refusal.value.code == "mask_covers_all"
    assert "inverted" in refusal.value.remedy


def test_the_default_grow_gives_way_on_tiny_pictures_and_an_explicit_one_does_not() -> None:
    mask = rectangle(9, 9, (3, 3, 6, 6))
    result = grow(mask, None)
    assert 0 < result.mean() <= 0.95
    with pytest.raises(RefusedError):
        grow(mask, 8)
