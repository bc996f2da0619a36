"""Strokes of a marker colour: what is found, with its halo, and what is not taken for one."""

from __future__ import annotations

import tracemalloc
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.worker import sources
from tests.worker.strokes import (
    DOUBLED,
    HALVED,
    JPEGS,
    LOSSLESS,
    MAGENTA,
    SAVINGS,
    WEBPS,
    Saving,
    brushed,
    chroma_along,
    freehand,
    painted,
    straight,
)
from watcher.worker.imaging import marker
from watcher.worker.imaging.marker import find_strokes, marker_colours
from watcher.worker.imaging.masks import default_grow_px, grown
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]
    Coverage = NDArray[np.float32]

PHOTOS = ("astronaut.jpg", "coffee.jpg", "rocket.jpg", "cat.jpg")
FINE = tuple(saving for saving in JPEGS if saving.quality >= 75)
COARSE = tuple(saving for saving in JPEGS if saving.quality < 75)
Q75 = next(saving for saving in JPEGS if saving.name == "q75 4:2:0")
STROKE = 0.6
"""A pixel that is covered by this much is more stroke than picture."""
TINT = 40
"""Levels of chroma, of 137: ringing in a JPEG does less to any pixel, a stroke's rim more."""
FAINT = 12
"""Likewise, for all but one in a thousand."""


def names(values: tuple[Saving, ...]) -> list[str]:
    return [value.name for value in values]


@cache
def photo(name: str, height: int = 260, width: int = 340) -> Rgb:
    with Image.open(Path(__file__).parents[2] / "sample_inbox" / name) as image:
        rgb = np.asarray(image.convert("RGB"))
    top, left = (rgb.shape[0] - height) // 2, (rgb.shape[1] - width) // 2
    return np.ascontiguousarray(rgb[top : top + height, left : left + width])


def found(rgb: Rgb, colour: tuple[int, int, int] = MAGENTA, visible: Mask | None = None) -> Mask:
    strokes = find_strokes(rgb, colour, visible)
    assert strokes is not None, "no stroke was found"
    assert strokes.shape == rgb.shape[:2]
    assert strokes.dtype == np.bool_
    return strokes


def fitted(coverage: Coverage, rgb: Rgb) -> Coverage:
    size = (rgb.shape[1], rgb.shape[0])
    return cv2.resize(coverage, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def answer(rgb: Rgb, colour: tuple[int, int, int] = MAGENTA) -> str:
    try:
        return "nothing" if find_strokes(rgb, colour, None) is None else "strokes"
    except RefusedError as refusal:
        return "refused" if refusal.code == "marks_ambiguous" else refusal.code


def check_strokes(plain: Rgb, coverage: Coverage, saving: Saving) -> None:
    """Paint, save and look: all of the stroke is found, and outside the grown mark nothing of it is left."""
    saved, unmarked = saving(painted(plain, coverage)), saving(plain)
    strokes = found(saved)
    covered = fitted(coverage, saved)
    assert strokes[covered > STROKE].all()
    hole = grown(strokes, default_grow_px(saved.shape[1], saved.shape[0]))
    left = (chroma_along(saved, MAGENTA) - chroma_along(unmarked, MAGENTA))[~hole]
    assert left.max() < TINT
    assert np.percentile(left, 99.9) < FAINT
    assert hole[covered == 0].mean() < 0.5, "the mark is not the whole picture"


# --- what is found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width_px", [3, 4, 6, 20])
@pytest.mark.parametrize("saving", [LOSSLESS, *FINE, *WEBPS[:2]], ids=lambda saving: saving.name)
def test_a_stroke_is_found_with_all_that_is_left_of_its_colour(saving: Saving, width_px: int) -> None:
    check_strokes(photo("coffee.jpg"), freehand((260, 340), width_px, seed=width_px), saving)


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("saving", [Q75, *COARSE, *WEBPS[2:], DOUBLED], ids=lambda saving: saving.name)
def test_so_is_one_that_was_saved_coarsely_or_enlarged(saving: Saving, name: str) -> None:
    check_strokes(photo(name), freehand((260, 340), 6, seed=7), saving)


@pytest.mark.parametrize("name", PHOTOS)
def test_a_stroke_on_a_picture_that_is_then_made_smaller_has_the_smaller_width(name: str) -> None:
    check_strokes(photo(name), freehand((260, 340), 8, seed=3), HALVED)


@pytest.mark.parametrize("width_px", [1, 2])
def test_hairlines_are_found_where_nothing_is_lost(width_px: int) -> None:
    check_strokes(photo("cat.jpg"), freehand((260, 340), width_px, seed=1), LOSSLESS)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("is_upright", [False, True], ids=["across", "down"])
@pytest.mark.parametrize("width_px", [3, 4, 5])
def test_straight_lines_are_found_wherever_they_lie_in_the_blocks_of_a_jpeg(
    width_px: int,
    place: int,
    is_upright: bool,  # noqa: FBT001 - pytest hands values over by name
) -> None:
    plain = photo("astronaut.jpg")
    check_strokes(plain, straight(plain.shape, width_px, place, is_upright=is_upright), Q75)


@pytest.mark.parametrize(("width_px", "softness"), [(10, 0.1), (24, 0.1), (24, 0.2), (60, 0.1)])
@pytest.mark.parametrize("saving", [LOSSLESS, Q75, DOUBLED], ids=lambda saving: saving.name)
def test_the_edge_of_a_soft_brush_goes_with_it(saving: Saving, width_px: int, softness: float) -> None:
    plain = photo("rocket.jpg")
    check_strokes(plain, freehand(plain.shape, width_px, seed=5, length_px=120, softness=softness), saving)


def test_the_halo_is_as_wide_as_the_brush_is_soft() -> None:
    plain = photo("rocket.jpg")
    beyond = []
    for softness in (0.0, 0.1, 0.2):
        coverage = freehand(plain.shape, 40, seed=5, length_px=100, softness=softness)
        beyond.append(np.count_nonzero(found(painted(plain, coverage)) & (coverage < STROKE)))
    assert beyond[0] * 1.3 < beyond[1]
    assert beyond[1] * 1.3 < beyond[2]


def test_a_hard_and_a_soft_brush_in_one_picture_each_have_their_own_halo() -> None:
    plain = photo("rocket.jpg")
    soft = np.zeros(plain.shape[:2], np.uint8)
    cv2.circle(soft, (80, 130), 40, 255, -1)
    hard = np.zeros(plain.shape[:2], np.uint8)
    cv2.line(hard, (200, 20), (320, 240), 255, 8, cv2.LINE_AA)
    cv2.line(hard, (320, 20), (200, 240), 255, 8, cv2.LINE_AA)
    coverage = np.maximum(brushed(soft, 8), brushed(hard))
    check_strokes(plain, coverage, LOSSLESS)
    strokes = found(painted(plain, coverage))
    # Only the near side of the soft one may count: each is looked at in its own half.
    beside = strokes[:, 190:] & ~grown(hard[:, 190:] > 0, 7)
    assert not beside.any()


@pytest.mark.parametrize(
    "box", [(0, 0, 30, 12), (300, 0, 340, 260), (0, 250, 340, 260), (330, 240, 340, 260)], ids=str
)
@pytest.mark.parametrize("saving", [LOSSLESS, Q75], ids=names((LOSSLESS, Q75)))
def test_a_stroke_may_lie_at_the_border(saving: Saving, box: tuple[int, int, int, int]) -> None:
    plain = photo("coffee.jpg")
    mask = np.zeros(plain.shape[:2], np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 255
    check_strokes(plain, brushed(mask), saving)


def test_a_dab_is_enough_and_specks_count_beside_it() -> None:
    plain = photo("cat.jpg")
    mask = np.zeros(plain.shape[:2], np.uint8)
    cv2.circle(mask, (200, 130), 8, 255, -1)
    for place in range(20, 320, 30):
        mask[30:33, place : place + 3] = 255
    check_strokes(plain, brushed(mask), LOSSLESS)


@pytest.mark.parametrize("side_px", [1, 2, 3])
def test_a_speck_alone_is_nothing(side_px: int) -> None:
    rgb = photo("cat.jpg").copy()
    rgb[100 : 100 + side_px, 100 : 100 + side_px] = MAGENTA
    assert find_strokes(rgb, MAGENTA, None) is None


@pytest.mark.parametrize(("width_px", "saving"), [(4, LOSSLESS), (4, Q75), (8, Q75)], ids=str)
def test_specks_that_are_the_only_marks_are_all_found(saving: Saving, width_px: int) -> None:
    plain = photo("coffee.jpg")
    fine = np.zeros((260 * 4, 340 * 4), np.uint8)
    for place in np.random.default_rng(2).uniform(20, 240, (60, 2)):
        x, y = (place * 4).astype(int).tolist()
        cv2.line(fine, (x + 80, y), (x + 110, y + 20), 255, width_px * 4, cv2.LINE_AA)
    check_strokes(plain, brushed(cv2.resize(fine, (340, 260), interpolation=cv2.INTER_AREA)), saving)


def test_many_strokes_are_all_found() -> None:
    plain = photo("astronaut.jpg")
    mask = np.zeros(plain.shape[:2], np.uint8)
    for number in range(60):
        x, y = 20 + number % 10 * 32, 20 + number // 10 * 42
        cv2.line(mask, (x, y), (x + 12, y + number % 3 * 8), 255, 6, cv2.LINE_AA)
    check_strokes(plain, brushed(mask), Q75)


@pytest.mark.parametrize(
    "colour",
    [
        (255, 0, 128),
        (128, 0, 255),
        (0, 255, 128),
        (0, 128, 255),
        (0, 255, 0),
        (0, 255, 255),
        (0, 0, 255),
        (255, 0, 0),
        (255, 255, 0),
        (255, 128, 0),
        (234, 51, 247),
    ],
    ids=str,
)
def test_any_saturated_colour_can_be_the_marker(colour: tuple[int, int, int]) -> None:
    plain = photo("cat.jpg")
    coverage = freehand(plain.shape, 6, seed=11)
    saved = Q75(painted(plain, coverage, colour))
    strokes = found(saved, colour)
    assert strokes[coverage > STROKE].all()
    excess = chroma_along(saved, colour) - chroma_along(Q75(plain), colour)
    assert excess[~grown(strokes, 4)].max() < TINT
    assert find_strokes(Q75(plain), colour, None) is None


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (128, 128, 128), (180, 140, 100)], ids=str)
@pytest.mark.parametrize("name", [*PHOTOS, "screenshot.png"])
def test_a_dull_marker_is_never_trusted(name: str, colour: tuple[int, int, int]) -> None:
    plain = photo(name)
    assert answer(plain, colour) != "strokes"
    assert answer(painted(plain, freehand(plain.shape, 12, seed=2), colour), colour) != "strokes"


def test_the_refusal_of_a_dull_marker_says_so() -> None:
    white = painted(np.full((200, 300, 3), 60, np.uint8), freehand((200, 300), 12, seed=2), (255, 255, 255))
    with pytest.raises(RefusedError, match="the marker colour #FFFFFF is too dull"):
        find_strokes(white, (255, 255, 255), None)


# --- what is not taken for one ------------------------------------------------------------------------------


@pytest.mark.parametrize("saving", SAVINGS, ids=names(SAVINGS))
@pytest.mark.parametrize("name", [*PHOTOS, "grass.png", "brick.png"])
def test_an_unmarked_photo_has_no_strokes(name: str, saving: Saving) -> None:
    assert find_strokes(saving(photo(name)), MAGENTA, None) is None


def turned(rgb: Rgb, hue: int, saturation: float) -> Rgb:
    """Turn all hues by so much of 256, and strengthen them."""
    hsv = cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] = (hsv[..., 0].astype(np.int64) + hue) % 256
    hsv[..., 1] = np.minimum(255, hsv[..., 1] * saturation)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL).astype(np.uint8)


@pytest.mark.parametrize("hue", range(0, 256, 16))
@pytest.mark.parametrize("name", PHOTOS)
def test_colours_by_nature_are_not_strokes(name: str, hue: int) -> None:
    # One of these turns brings each colour of the photo near to the marker's.
    for saturation in (1.0, 1.3):
        rgb = turned(photo(name), hue, saturation)
        assert answer(rgb) != "strokes"
        assert answer(Q75(rgb)) != "strokes"


@pytest.mark.parametrize("levels_a_pixel", [0.25, 0.5, 1, 2])
@pytest.mark.parametrize(
    "end", [(255, 255, 255), (0, 0, 0), (128, 128, 128), (255, 0, 0), (0, 0, 255), (105, 105, 105)], ids=str
)
@pytest.mark.parametrize("saving", [LOSSLESS, Q75], ids=names((LOSSLESS, Q75)))
def test_a_slope_through_the_colour_is_no_stroke(
    saving: Saving, end: tuple[int, int, int], levels_a_pixel: float
) -> None:
    way = np.array(end) - np.array(MAGENTA)
    there = np.clip(np.abs(np.arange(500) - 250) * levels_a_pixel / np.abs(way).max(), 0, 1)
    row = np.array(MAGENTA) + there[:, None] * way
    assert answer(saving(np.tile(row.round().astype(np.uint8)[None], (80, 1, 1)))) != "strokes"


def neon(shape: tuple[int, ...], seed: int = 3) -> Rgb:
    """Make a glow whose middle is the marker, with the grain of a photo."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    glow = np.exp(-((np.hypot(x - shape[1] / 2, y - shape[0] / 2) / 60) ** 2))[..., None]
    grain = np.random.default_rng(seed).normal(0, 5, (*shape[:2], 3))
    shining: Rgb = np.clip(30 + (np.array(MAGENTA) - 30) * glow + grain, 0, 255).astype(np.uint8)
    return shining


@pytest.mark.parametrize("saving", [LOSSLESS, Q75], ids=names((LOSSLESS, Q75)))
def test_a_glow_of_the_colour_is_no_stroke(saving: Saving) -> None:
    assert answer(saving(neon((260, 340)))) == "nothing"


@pytest.mark.parametrize("saving", [LOSSLESS, Q75], ids=names((LOSSLESS, Q75)))
def test_strokes_beside_the_colour_by_nature_are_refused_with_numbers_and_a_remedy(saving: Saving) -> None:
    rgb = neon((260, 500))
    coverage = np.zeros(rgb.shape[:2], np.uint8)
    cv2.line(coverage, (20, 20), (90, 240), 255, 10, cv2.LINE_AA)
    with pytest.raises(RefusedError, match=r"#FF00FF were found \(\d+ px .* at least \d+ px") as refusal:
        find_strokes(saving(painted(rgb, brushed(coverage))), MAGENTA, None)
    assert refusal.value.code == "marks_ambiguous"
    assert "marker" in refusal.value.remedy
    assert "mask file" in refusal.value.remedy


def test_strokes_within_like_colours_are_refused_and_not_left_unseen() -> None:
    rgb = np.random.default_rng(1).normal((225, 40, 225), 4, (200, 300, 3)).astype(np.uint8)
    cv2.line(rgb, (40, 40), (260, 160), MAGENTA, 14)
    with pytest.raises(RefusedError, match=r"\d+ px have the marker's colour #FF00FF") as refusal:
        find_strokes(rgb, MAGENTA, None)
    assert refusal.value.code == "marks_ambiguous"


def test_a_neighbour_of_a_like_colour_does_not_go_with_a_stroke() -> None:
    plain = photo("coffee.jpg").copy()
    noise = np.random.default_rng(4).normal(0, 3, (120, 120, 3))
    plain[130:250, 100:220] = np.clip(np.array([212, 38, 212]) + noise, 0, 255)
    coverage = np.zeros(plain.shape[:2], np.uint8)
    cv2.line(coverage, (30, 40), (300, 126), 255, 12, cv2.LINE_AA)
    strokes = found(painted(plain, brushed(coverage)))
    assert strokes[coverage > 150].all()
    assert not strokes[160:250, 100:220].any()


def test_what_is_fully_transparent_is_never_a_stroke() -> None:
    plain = photo("cat.jpg")
    coverage = freehand(plain.shape, 12, seed=2)
    marked = painted(plain, coverage)
    hidden = grown(coverage > 0, 20)
    assert find_strokes(marked, MAGENTA, ~hidden) is None
    half = np.ones(plain.shape[:2], np.bool_)
    half[:, : plain.shape[1] // 2] = False
    seen = found(marked, visible=half)
    assert not seen[~half].any()
    assert seen[half & (coverage > STROKE)].all()


def test_a_flat_panel_of_exactly_the_colour_counts_as_a_stroke() -> None:
    # The limit that the module states: nothing tells it from a filled one.
    rgb = photo("screenshot.png").copy()
    rgb[100:140, 60:200] = MAGENTA
    assert found(rgb)[100:140, 60:200].all()


def test_a_highlighter_is_not_found() -> None:
    plain = photo("cat.jpg")
    assert (
        find_strokes(painted(plain, freehand(plain.shape, 20, seed=2) * np.float32(0.5)), MAGENTA, None)
        is None
    )


# --- pictures of any size, in bands -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (3, 5), (8, 8), (20, 700)], ids=str)
def test_small_and_narrow_pictures_are_served(size: tuple[int, int]) -> None:
    for value in (0, 255):
        assert find_strokes(np.full((*size, 3), value, np.uint8), MAGENTA, None) is None
    full = np.tile(np.array(MAGENTA, np.uint8), (*size, 1))
    strokes = find_strokes(full, MAGENTA, None)
    assert strokes is None if full.size < 3 * 24 else strokes is not None


@pytest.mark.parametrize(
    "layout", [lambda rgb: rgb[:, ::-1][:, ::-1], lambda rgb: np.dstack([rgb, rgb])[..., :3]]
)
def test_views_of_an_array_are_served_and_not_changed(layout: Callable[[Rgb], Rgb]) -> None:
    rgb = painted(photo("cat.jpg"), freehand((260, 340), 6, seed=4))
    view, before = layout(rgb), rgb.copy()
    assert np.array_equal(found(view), found(rgb))
    assert np.array_equal(rgb, before)


@pytest.mark.parametrize("band_px", [340, 340 * 7, 340 * 64])
def test_bands_do_not_show(monkeypatch: pytest.MonkeyPatch, band_px: int) -> None:
    rgb = Q75(painted(photo("cat.jpg"), freehand((260, 340), 9, seed=6)))
    whole = found(rgb)
    monkeypatch.setattr(marker, "_BAND_PX", band_px)
    assert np.array_equal(found(rgb), whole)


@pytest.mark.parametrize("is_marked", [False, True])
def test_no_full_frame_plane_of_more_than_a_byte_a_pixel_is_made(
    is_marked: bool,  # noqa: FBT001 - pytest hands values over by name
) -> None:
    height, width = 4000, 5000
    rgb = np.full((height, width, 3), 90, np.uint8)
    if is_marked:
        cv2.ellipse(rgb, (2500, 2000), (2000, 1500), 10, 0, 360, MAGENTA, 40)
    tracemalloc.start()
    try:
        strokes = find_strokes(rgb, MAGENTA, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (strokes is not None) is is_marked
    planes = 2 if is_marked else 1
    bands = 64 * marker._BAND_PX
    assert peak < planes * height * width + bands


# --- the marker in the picture's own colour space -----------------------------------------------------------


def test_a_marker_is_also_looked_for_as_the_pictures_colour_space_has_it() -> None:
    same, converted = marker_colours(MAGENTA, sources.rgb_profile())
    assert same == MAGENTA
    # Display P3's own numbers for sRGB magenta.
    assert np.abs(np.array(converted) - (234, 51, 247)).max() <= 1
    plain = photo("cat.jpg")
    coverage = freehand(plain.shape, 6, seed=8)
    marked = Q75(painted(plain, coverage, (234, 51, 247)))
    assert find_strokes(marked, MAGENTA, None) is None
    assert found(marked, converted)[coverage > STROKE].all()


@pytest.mark.parametrize(
    "profile",
    [b"", b"no profile", sources.grey_profile(), sources.cmyk_profile()],
    ids=["none", "bad", "grey", "CMYK"],
)
def test_a_profile_that_says_nothing_of_rgb_leaves_the_marker_as_it_is(profile: bytes) -> None:
    assert marker_colours(MAGENTA, profile) == (MAGENTA,)
