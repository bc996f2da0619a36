"""What others met with fills (kinds PB), and with masks that are inverted or empty, through the front door.

Rules of this file:
- Pictures go in as files and come out as files. What an engine is given is seen by one that can be watched,
  and where that lies in the picture is found here, by its pixels.
- An engine may return anything outside of its hole, so the ones here return what shows if it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.worker import independent
from tests.worker.bench import FILL, Bench, FlatEngine, photo, rectangle, save_mask
from watcher.wire import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop

    Mask = NDArray[np.bool_]
    Box = tuple[int, int, int, int]

SMALL_BUDGET_PX = 65_536
CONTEXT_PX = 64
"""What an engine sees around a hole at least, where the picture goes on so far."""


@dataclass
class PaintingEngine(FlatEngine):
    """Returns what a test paints."""

    paint: Callable[[Crop], NDArray[np.uint8]] = lambda crop: crop.pixels

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        super().fill(crops, progress=progress)
        return [self.paint(crop) for crop in crops]


def noise(crop: Crop) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, crop.pixels.shape, np.uint8)


same_photo = cache(photo)


def put(bench: Bench, pixels: NDArray[Any] | Image.Image, name: str = "a.bmp", **options: Any) -> Path:
    path = bench.folder / name
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path


def put_mask(bench: Bench, mask: Mask) -> Path:
    return save_mask(bench.folder / "mask.png", mask)


def stored(path: Path) -> NDArray[Any]:
    return independent.look(path.read_bytes()).stored


def changed(before: NDArray[Any], after: NDArray[Any]) -> Mask:
    assert before.shape == after.shape
    return np.asarray((before != after).reshape(*before.shape[:2], -1).any(axis=2))


def dilated(mask: Mask, radius_px: int) -> Mask:
    """The mask and every pixel that is not farther from it."""
    y, x = np.mgrid[-radius_px : radius_px + 1, -radius_px : radius_px + 1]
    disc = (x * x + y * y <= radius_px * radius_px).astype(np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), disc) > 0)


def holes(width: int, height: int, *boxes: Box) -> Mask:
    mask = np.zeros((height, width), np.bool_)
    for box in boxes:
        mask |= rectangle(width, height, box)
    return mask


# --- only the hole -----------------------------------------------------------------------------------------

W, H = 320, 240
PHOTO = photo(W, H)
MARK = holes(W, H, (130, 90, 170, 120), (0, 20, 30, 40), (290, 215, 320, 240), (180, 95, 215, 125))
LOSSLESS: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "a.png": (Image.fromarray(PHOTO), {}),
    "a.webp": (Image.fromarray(PHOTO), {"lossless": True, "exact": True}),
    "a.tiff": (Image.fromarray(PHOTO), {"compression": "tiff_lzw"}),
    "a.bmp": (Image.fromarray(PHOTO), {}),
    "grey.png": (Image.fromarray(PHOTO).convert("L"), {}),
}


@pytest.mark.kind("PB1")
@pytest.mark.parametrize("name", LOSSLESS)
def test_an_engine_that_returns_noise_everywhere_changes_nothing_outside_the_hole(
    bench: Bench, name: str
) -> None:
    image, options = LOSSLESS[name]
    bench.engine = PaintingEngine(paint=noise)
    bench.limits = Limits(crop_pixels=SMALL_BUDGET_PX)
    source = put(bench, image, name, **options)

    _, staged = bench.done(source, put_mask(bench, MARK))

    assert len(bench.engine.seen) > 1, "boxes that overlap"
    touched = changed(stored(source), stored(staged))
    grown = dilated(MARK, 4)
    assert not touched[~grown].any()
    assert touched[MARK].mean() > 0.95
    assert touched[grown].mean() > 0.9


# --- the border of the fill ---------------------------------------------------------------------------------

RAMP = np.broadcast_to(np.linspace(30, 220, 400)[np.newaxis, :, np.newaxis], (300, 400, 3)).astype(np.uint8)
STEP_LEVELS = 3
"""The most by which two neighbours may differ more than before; 2 do not show, and 14 are a line."""
ON_RAMP: dict[str, Box] = {"inside": (150, 100, 250, 180), "at the edge": (320, 0, 400, 90)}


def steepest(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> int:
    """The most by which neighbours differ more, or less, than they did."""
    change = after.astype(int) - before
    return max(int(np.abs(np.diff(change, axis=axis)).max()) for axis in (0, 1))


@pytest.mark.kind("PB5")
@pytest.mark.parametrize("place", ON_RAMP)
@pytest.mark.parametrize("offset", [-14, -5, 5, 14])
@pytest.mark.parametrize("grow_px", [None, 0, 12])
def test_a_fill_of_another_tone_leaves_no_step_on_a_gradient(
    bench: Bench, place: str, offset: int, grow_px: int | None
) -> None:
    """The engine gives back what was there, a little darker or brighter all over."""
    bench.engine = PaintingEngine(paint=lambda crop: (crop.pixels.astype(int) + offset).astype(np.uint8))
    mark = rectangle(400, 300, ON_RAMP[place])

    _, staged = bench.done(put(bench, RAMP), put_mask(bench, mark), grow_px=grow_px)

    after = stored(staged)
    assert steepest(RAMP, after) <= STEP_LEVELS
    assert not changed(RAMP, after)[~dilated(mark, 4 if grow_px is None else grow_px)].any()


@pytest.mark.kind("PB5")
@pytest.mark.parametrize("grow_px", [None, 0, 12])
def test_a_border_is_blended_within_the_grown_rim_and_what_was_marked_is_all_fill(
    bench: Bench, grow_px: int | None
) -> None:
    """Where the fill is another thing than its surroundings, nothing of the old one is mixed into it."""
    mark = rectangle(400, 300, ON_RAMP["inside"])

    _, staged = bench.done(put(bench, RAMP), put_mask(bench, mark), grow_px=grow_px)

    after = stored(staged)
    rim_px = 4 if grow_px is None else grow_px
    assert (after[mark] == FILL).all()
    assert not changed(RAMP, after)[~dilated(mark, rim_px)].any()
    rim, was = after[140, 250 : 250 + rim_px].astype(int), RAMP[140, 250 : 250 + rim_px].astype(int)
    assert (rim[: rim_px // 2] == FILL).all(), "the inner half may hold its shadow"
    if rim_px:
        assert (np.abs(rim[-1] - was[-1]) < 0.6 * np.abs(FILL - was[-1])).all(), "the last pixel is a mixture"


# --- what the engine sees ----------------------------------------------------------------------------------

PATCH_PX = 12


class Window(NamedTuple):
    """A rectangle that lies in a crop and in the picture."""

    in_crop: tuple[slice, slice]
    in_picture: tuple[slice, slice]


def window_of(crop: Crop, picture: NDArray[np.uint8]) -> Window:
    """What of a crop is picture and no padding, by where a patch of it that is known lies in the picture."""
    rows, columns = crop.hole.shape
    for top, left in product(range(0, rows - PATCH_PX, PATCH_PX), range(0, columns - PATCH_PX, PATCH_PX)):
        patch = (slice(top, top + PATCH_PX), slice(left, left + PATCH_PX))
        if not crop.hole[patch].any():
            differences = cv2.matchTemplate(picture, crop.pixels[patch], cv2.TM_SQDIFF)
            _, _, (x, y), _ = cv2.minMaxLoc(differences)
            break
    else:
        raise AssertionError("the crop is hole all over")
    first_row, first_column = y - top, x - left
    above, before = max(0, -first_row), max(0, -first_column)
    end_row = min(picture.shape[0], first_row + rows)
    end_column = min(picture.shape[1], first_column + columns)
    return Window(
        (slice(above, end_row - first_row), slice(before, end_column - first_column)),
        (slice(first_row + above, end_row), slice(first_column + before, end_column)),
    )


def outside(inner: tuple[slice, slice], shape: tuple[int, ...]) -> Mask:
    mask = np.ones(shape[:2], np.bool_)
    mask[inner] = False
    return mask


VIEWS: dict[str, tuple[int, int, Box]] = {
    "a large picture": (1200, 900, (500, 400, 620, 500)),
    "a hole that is as large as the budget allows": (1000, 900, (250, 200, 750, 700)),
    "sides of no 8": (203, 101, (90, 40, 121, 63)),
    "smaller than any model's least": (50, 41, (20, 15, 33, 30)),
    "a strip": (331, 23, (150, 5, 170, 15)),
}


@pytest.mark.kind("PB2", "PB3", "PB6")
@pytest.mark.parametrize("name", VIEWS)
def test_the_engine_sees_the_pictures_own_pixels_and_padding_that_is_no_hole(bench: Bench, name: str) -> None:
    width, height, box = VIEWS[name]
    picture, mark = photo(width, height), rectangle(width, height, box)

    report, _ = bench.done(put(bench, picture), put_mask(bench, mark), grow_px=0)

    (crop,) = bench.engine.seen
    inner, outer = window_of(crop, picture)
    known = ~crop.hole[inner]
    assert np.array_equal(crop.hole[inner], mark[outer]), "not scaled, and where it was marked"
    assert np.array_equal(crop.pixels[inner][known], picture[outer][known])
    assert not crop.hole[outside(inner, crop.hole.shape)].any()
    for axis, (first, last, side) in enumerate(
        ((box[1], box[3], height), (box[0], box[2], width)),
    ):
        padding = crop.hole.shape[axis] - (inner[axis].stop - inner[axis].start)
        assert padding < 8 or crop.hole.shape[axis] == 64, "no more than a model needs"
        assert outer[axis].start <= max(0, first - CONTEXT_PX)
        assert outer[axis].stop >= min(side, last + CONTEXT_PX)
    assert report.image.model_px == crop.hole.size
    assert report.reason is None


BORDERS: dict[str, Box] = {
    f"{across} {down}": (left, top, left + 30, top + 24)
    for (across, left), (down, top) in product(
        (("left", 0), ("centre", 185), ("right", 370)), (("top", 0), ("middle", 130), ("bottom", 276))
    )
}


@pytest.mark.kind("PB6")
@pytest.mark.parametrize("place", BORDERS)
def test_at_the_pictures_edge_the_engine_sees_more_of_the_picture_and_nothing_else(
    bench: Bench, place: str
) -> None:
    picture, mark = same_photo(400, 300), rectangle(400, 300, BORDERS[place])

    bench.done(put(bench, picture), put_mask(bench, mark))

    (crop,) = bench.engine.seen
    inner, outer = window_of(crop, picture)
    assert not outside(inner, crop.hole.shape).any(), "no padding"
    assert np.array_equal(crop.hole, dilated(mark, 4)[outer])
    assert np.array_equal(crop.pixels[~crop.hole], picture[outer][~crop.hole])
    assert crop.hole.sum() == dilated(mark, 4).sum(), "all of it"


@pytest.mark.kind("PB7")
@pytest.mark.parametrize("place", BORDERS)
@pytest.mark.parametrize("thickness_px", [24, 90])
def test_a_hole_at_the_pictures_edge_is_known_from_as_many_pixels_as_any(
    bench: Bench, place: str, thickness_px: int
) -> None:
    """What the edge takes of its surroundings is made good on the side that is open."""
    width, height = 600, 500
    across, down = place.split()
    left = {"left": 0, "centre": 250, "right": width - thickness_px}[across]
    top = {"top": 0, "middle": 200, "bottom": height - thickness_px}[down]
    picture = same_photo(width, height)
    mark = rectangle(width, height, (left, top, left + thickness_px, top + thickness_px))

    bench.done(put(bench, picture), put_mask(bench, mark), grow_px=0)

    (crop,) = bench.engine.seen
    _, (rows, columns) = window_of(crop, picture)
    context_px = max(CONTEXT_PX, thickness_px)
    for seen, first, side in ((rows, top, height), (columns, left, width)):
        before, behind = first - seen.start, seen.stop - first - thickness_px
        assert before + behind >= 2 * context_px
        if first == 0:
            assert behind >= 2 * context_px
        elif first + thickness_px == side:
            assert before >= 2 * context_px
        else:
            assert min(before, behind) >= context_px


# --- many holes --------------------------------------------------------------------------------------------

MOST_CALLS = 16


@pytest.mark.kind("PB8")
@pytest.mark.parametrize("size", [(640, 480), (1500, 1100)], ids=["dense", "sparse"])
def test_300_dots_are_a_few_calls_and_each_is_filled(bench: Bench, size: tuple[int, int]) -> None:
    width, height = size
    random = np.random.default_rng(8)
    dots = zip(random.integers(0, width - 6, 300), random.integers(0, height - 6, 300), strict=True)
    mark = holes(width, height, *((int(x), int(y), int(x) + 6, int(y) + 6) for x, y in dots))
    before = photo(width, height)
    bench.engine = PaintingEngine(paint=noise)

    report, staged = bench.done(put(bench, before), put_mask(bench, mark), grow_px=0)

    assert report.image.crops == len(bench.engine.seen) <= MOST_CALLS
    assert all(crop.hole.any() for crop in bench.engine.seen)
    after = stored(staged)
    count, dots_found = cv2.connectedComponents(mark.astype(np.uint8), connectivity=8)
    assert count > 100
    filled = np.unique(dots_found[changed(before, after)])
    assert np.array_equal(filled, np.arange(1, count)), "each of them, and nothing else"


@pytest.mark.kind("PB8")
def test_two_near_holes_that_are_too_large_for_one_call_are_both_filled(bench: Bench) -> None:
    """Their boxes overlap: each holds some of the other's hole."""
    left, right = (60, 100, 160, 200), (170, 100, 270, 200)
    mark = holes(W, 300, left, right)
    before = photo(W, 300)
    bench.limits = Limits(crop_pixels=SMALL_BUDGET_PX)

    _, staged = bench.done(put(bench, before), put_mask(bench, mark), grow_px=0)

    first, second = bench.engine.seen
    after = stored(staged)
    assert (after[mark] == FILL).all(), "neither was painted over"
    assert not changed(before, after)[~mark].any()
    assert [int(crop.hole.sum()) for crop in (first, second)] == [
        int(mark[window_of(first, before).in_picture].sum()),
        100 * 100,
    ], "what the first call filled is no hole for the second"
    assert (second.pixels[~second.hole] == FILL).all(axis=1).any(), "which sees it filled"


# --- size --------------------------------------------------------------------------------------------------


@pytest.mark.kind("PB12")
def test_a_large_picture_comes_back_as_large(bench: Bench) -> None:
    width, height = 6001, 2003
    before = np.add.outer(np.arange(height) * 3, np.arange(width)).astype(np.uint8)
    mark = rectangle(width, height, (5000, 1000, 5200, 1100))

    report, staged = bench.done(put(bench, before), put_mask(bench, mark), grow_px=0)

    with Image.open(staged) as after:
        assert after.size == (width, height)
        touched = np.asarray(after) != before
    assert touched[mark].mean() > 0.9
    assert np.count_nonzero(touched) == np.count_nonzero(touched[mark])
    assert (report.image.width, report.image.height) == (width, height)


# --- what is to be filled ----------------------------------------------------------------------------------


@pytest.mark.kind("PA9")
@pytest.mark.parametrize("grow_px", [0, None])
def test_an_inverted_mask_that_its_recipe_names_so_is_the_plain_one(
    bench: Bench, grow_px: int | None
) -> None:
    bench.engine = PaintingEngine(paint=noise)
    source = put(bench, PHOTO, "a.png")
    plain, staged = bench.done(source, put_mask(bench, MARK), grow_px=grow_px)
    data = staged.read_bytes()

    inverted, staged = bench.done(source, put_mask(bench, ~MARK), grow_px=grow_px, invert=True)

    assert staged.read_bytes() == data
    assert (inverted.marks, inverted.reason) == (plain.marks, plain.reason) == ("mask", None)
    assert inverted.image == plain.image


@pytest.mark.kind("PA11")
@pytest.mark.parametrize(("white", "invert"), [(False, False), (True, True)], ids=["plain", "inverted"])
def test_a_mask_that_marks_nothing_leaves_the_file_as_it_is_and_says_so(
    bench: Bench, *, white: bool, invert: bool
) -> None:
    source = put(bench, PHOTO, "a.jpg", quality=80)

    report, staged = bench.done(source, put_mask(bench, np.full((H, W), white)), invert=invert)

    assert (report.outcome, report.marks, report.image.hole_px) == ("unchanged", "mask", 0)
    assert report.reason is not None
    assert "empty" in report.reason
    assert staged.read_bytes() == source.read_bytes()
    assert bench.engine.seen == []
