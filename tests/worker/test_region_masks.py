"""Which pixels regions mark: by exact counts, and by another way to reckon it, in fractions."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from watcher.regions import Region, RegionError, regions_from
from watcher.worker.imaging import region_masks
from watcher.worker.imaging.region_masks import MAX_CROSSINGS, mask_of_regions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Point = tuple[Fraction, Fraction]

SIZE = (40, 30)


def drawn(*listed: object, size: tuple[int, int] = SIZE, **options: Any) -> Mask:
    return mask_of_regions(regions_from(listed), size, **options)


def rows(mask: Mask) -> list[str]:
    return ["".join("#" if marked else "." for marked in row) for row in mask]


def extent(mask: Mask) -> tuple[int, int, int, int]:
    """x, y, width and height of what is marked, which is a full box."""
    y, x = np.nonzero(mask)
    found = (int(x.min()), int(y.min()), int(np.ptp(x)) + 1, int(np.ptp(y)) + 1)
    assert mask.sum() == found[2] * found[3]
    return found


# --- boxes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "corner", "expected"),
    [
        ([3, 4, 5, 6], "top-left", (3, 4, 5, 6)),
        ([3, 4, 5, 6], "top-right", (32, 4, 5, 6)),
        ([3, 4, 5, 6], "bottom-left", (3, 20, 5, 6)),
        ([3, 4, 5, 6], "bottom-right", (32, 20, 5, 6)),
        ([0, 0, 40, 30], "bottom-right", (0, 0, 40, 30)),
        ([0, 0, 1, 1], "bottom-right", (39, 29, 1, 1)),
        (["75%", "90%", "25%", "10%"], "top-left", (30, 27, 10, 3)),
        (["0%", "0%", "25%", "10 %"], "bottom-right", (30, 27, 10, 3)),
        (["-10%", 2, "20%", 3], "top-left", (0, 2, 4, 3)),
        ([-5, -5, 10, 10], "bottom-right", (35, 25, 5, 5)),
        ([-100, -100, 1000, 1000], "top-left", (0, 0, 40, 30)),
        ([-1e9, -1e9, 1e9, 1e9], "bottom-right", None),
        ([-9e8, -9e8, 1e9, 1e9], "top-left", (0, 0, 40, 30)),
        ([40, 0, 5, 5], "top-left", None),
        ([-5, 0, 5, 5], "top-left", None),
        (["100%", 0, 5, 5], "top-right", None),
        (
            [2.5, 2.5, 2, 2],
            "top-left",
            (2, 2, 2, 2),
        ),  # a centre on the left edge is inside, on the right is not
        ([2.51, 2.49, 2, 2], "top-left", (3, 2, 2, 2)),
        ([7.1, 4, 0.2, 6], "top-left", (7, 4, 1, 6)),
        ([7.9, 4.9, 0.2, 0.2], "top-left", (8, 5, 1, 1)),
        ([7.9, 4.6, 1e-300, 1e-300], "top-left", (7, 4, 1, 1)),
        ([0, 0, 1e-9, 1e-9], "bottom-right", (39, 29, 1, 1)),
        (["0%", "33.3%", "100%", "0.001%"], "top-left", (0, 9, 40, 1)),
        ([-5, 4, 5.2, 1], "top-left", (0, 4, 1, 1)),
    ],
)
def test_a_box_marks_its_pixels_and_no_other(
    box: list[object], corner: str, expected: tuple[int, int, int, int] | None
) -> None:
    mask = drawn({"box": box, "corner": corner}, outside="nothing")
    assert mask.shape == (30, 40)
    assert mask.dtype == np.bool_
    assert (extent(mask) if mask.any() else None) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=9), st.integers(1, 997), st.integers(1, 61))
@example([33_333, 66_667], 101, 3)
@example([50_000], 101, 1)
def test_boxes_that_divide_a_picture_mark_every_pixel_once(cuts: list[int], width: int, height: int) -> None:
    edges = sorted({0, *cuts, 100_000})
    parts = [{"box": [f"{a / 1000:.3f}%", 0, f"{(b - a) / 1000:.3f}%", height]} for a, b in pairwise(edges)]
    wide = [part for part, (a, b) in zip(parts, pairwise(edges), strict=True) if (b - a) * width >= 100_000]
    counted = sum(drawn(part, size=(width, height)).astype(int) for part in wide)
    assert np.max(counted) <= 1 if wide else True
    assert drawn(*parts, size=(width, height)).all()


FOURTHS = st.integers(-30, 130).map(lambda number: Fraction(number, 4))
EXTENTS = st.integers(1, 130).map(lambda number: Fraction(number, 4)) | st.sampled_from(
    [Fraction(1, 64), Fraction(3, 16)]
)


def pixels_between(low: Fraction, high: Fraction, size: int) -> set[int]:
    """By looking at every pixel: those whose centre is in between; else the one in the middle."""
    if high <= 0 or low >= size:
        return set()
    low, high = max(low, Fraction(0)), min(high, Fraction(size))
    inside = {pixel for pixel in range(size) if low <= pixel + Fraction(1, 2) < high}
    return inside or {min(floor((low + high) / 2), size - 1)}


@settings(max_examples=100, deadline=None)
@given(FOURTHS, FOURTHS, EXTENTS, EXTENTS, st.integers(1, 24), st.integers(1, 24))
def test_boxes_by_brute_force(
    x: Fraction, y: Fraction, w: Fraction, h: Fraction, width: int, height: int
) -> None:
    box = [float(value) for value in (x, y, w, h)]
    mask = drawn({"box": box}, size=(width, height), outside="nothing")
    across, down = pixels_between(x, x + w, width), pixels_between(y, y + h, height)
    assert {(int(py), int(px)) for py, px in np.argwhere(mask)} == {(py, px) for py in down for px in across}


# --- polygons ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "top"), [(3, 4), (2.5, 2.5), (2.75, 3.25)])
def test_a_polygon_of_a_box_marks_what_the_box_marks(left: float, top: float) -> None:
    box = drawn({"box": [left, top, 5, 6]})
    right, bottom = left + 5, top + 6
    clockwise = [[left, top], [right, top], [right, bottom], [left, bottom]]
    for points in (clockwise, clockwise[::-1], [*clockwise[2:], *clockwise[:2]]):
        assert np.array_equal(drawn({"polygon": points}), box)


def test_a_triangle_and_a_diamond_by_hand() -> None:
    assert rows(drawn({"polygon": [[0, 0], [5, 0], [0, 5]]}, size=(6, 6))) == [
        "#####.",  # the last has no centre inside, but the line through its column's centres passes: thin
        "###...",
        "##....",
        "#.....",
        "#.....",  # likewise, along its row
        "......",
    ]
    assert rows(drawn({"polygon": [[3, 0], [6, 3], [3, 6], [0, 3]]}, size=(6, 6))) == [
        "..#...",
        ".###..",
        "#####.",
        "#####.",
        ".###..",
        "..#...",
    ]


@pytest.mark.parametrize(
    ("a", "b", "below", "pixel"),
    [
        ([-3.6, -8.7], [27.0, 18.5], [-90, 90], (13, 6)),
        ([27.0, 14.3], [-4.0, 4.7], [-90, 90], (11, 9)),
        ([-0.9, 11.5], [6.8, -2.5], [90, 90], (3, 3)),
    ],
)
def test_of_two_polygons_with_a_line_in_common_each_pixel_on_it_is_in_one(
    a: list[float], b: list[float], below: list[float], pixel: tuple[int, int]
) -> None:
    """Lines through the centre of a pixel, where the rounding depends on which end comes first."""
    above = [-below[0], -below[1]]
    counted = drawn({"polygon": [a, b, below]}).astype(int) + drawn({"polygon": [b, a, above]})
    assert counted[pixel[1], pixel[0]] == 1


def test_where_a_polygon_crosses_itself_twice_enclosed_is_outside() -> None:
    star = [[50, 0], [79, 90], [2, 35], [98, 35], [21, 90]]
    mask = drawn({"polygon": star}, size=(100, 100))
    assert not mask[50, 50]
    assert mask[10, 50]
    bow = drawn({"polygon": [[0, 0], [20, 20], [20, 0], [0, 20]]}, size=(20, 20))
    assert bow[10, 1]
    assert bow[10, 18]
    assert not bow[2, 10]
    twice = [[0, 0], [10, 0], [10, 10], [0, 10]] * 2
    assert drawn({"polygon": twice}, size=(20, 20), outside="nothing").sum() <= 44  # its outline at most


def test_regions_over_one_another_add_up() -> None:
    box, sail = {"box": [5, 5, 20, 10]}, {"polygon": [[0, 0], [30, 8], [3, 25]]}
    assert np.array_equal(drawn(box, sail, box), drawn(box) | drawn(sail))


@pytest.mark.parametrize(
    "points",
    [
        [[1, 1], [38, 27], [38.2, 27]],
        [[2.1, 3.2], [37.9, 3.3], [2.1, 3.35]],
        [[2.9, 1], [3.1, 28], [3.0, 28]],
        [[1, 1], [20, 14], [39, 27]],  # no area at all
        [[3, 7], [37, 7], [20, 7]],
        [[39, 1], [1, 28], [1, 27.8]],
    ],
)
def test_a_hairline_is_marked_from_end_to_end(points: list[list[float]]) -> None:
    y, x = np.nonzero(drawn({"polygon": points}))
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    assert set(x) >= set(range(ceil(low[0] - 0.5), ceil(high[0] - 0.5)))
    assert set(y) >= set(range(ceil(low[1] - 0.5), ceil(high[1] - 0.5)))


@pytest.mark.parametrize(
    ("points", "pixel"),
    [
        ([[7.6, 4.6], [7.9, 4.6], [7.6, 4.9]], (7, 4)),
        ([[7, 4], [7, 4], [7, 4]], (7, 4)),
        ([[0, 0], [0, 0], [0, 0]], (0, 0)),
        ([[-3, 5.6], [0.2, 5.7], [-3, 5.8]], (0, 5)),
        ([[39.9, 29.9], [60, 29.9], [60, 60]], (39, 29)),
    ],
)
def test_a_speck_is_the_pixel_that_it_lies_in(points: list[list[float]], pixel: tuple[int, int]) -> None:
    assert extent(drawn({"polygon": points})) == (*pixel, 1, 1)


def even_odd(points: list[Point], x: Fraction, y: Fraction) -> bool:
    """Whether a ray to the left crosses the outline an odd number of times."""
    inside = False
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
        if (y0 <= y) != (y1 <= y) and x0 + (y - y0) * (x1 - x0) / (y1 - y0) <= x:
            inside = not inside
    return inside


def touches(points: list[Point], px: int, py: int) -> bool:
    """Whether the outline has a point in the closed square of a pixel (Liang and Barsky's clipping)."""
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
        begin, end = Fraction(0), Fraction(1)
        for start, step, low in ((x0, x1 - x0, px), (y0, y1 - y0, py)):
            if step == 0:
                if not low <= start <= low + 1:
                    begin, end = Fraction(1), Fraction(0)
                continue
            first, second = sorted(((low - start) / step, (low + 1 - start) / step))
            begin, end = max(begin, first), min(end, second)
        if begin <= end:
            return True
    return False


POINTS = st.lists(st.tuples(FOURTHS, FOURTHS), min_size=3, max_size=7)


@settings(max_examples=70, deadline=None)
@given(POINTS, st.integers(1, 16), st.integers(1, 16))
def test_polygons_by_brute_force(points: list[Point], width: int, height: int) -> None:
    """What has its centre inside is marked; and what is marked is inside, or the outline runs through it."""
    plain = [[float(x), float(y)] for x, y in points]
    mask = drawn({"polygon": plain}, size=(width, height), outside="nothing")
    half = Fraction(1, 2)
    for py in range(height):
        for px in range(width):
            if even_odd(points, px + half, py + half):
                assert mask[py, px], (px, py)
            elif mask[py, px]:
                assert touches(points, px, py), (px, py)
    if mask.any():
        assert np.array_equal(drawn({"polygon": plain}, size=(width, height)), mask)
    else:
        with pytest.raises(RegionError, match="outside the picture"):
            drawn({"polygon": plain}, size=(width, height))


FLOATS = st.lists(st.tuples(st.floats(-5, 45), st.floats(-5, 35)), min_size=3, max_size=8)


@settings(max_examples=30, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=3))
def test_from_another_corner_it_is_the_mirror_image(polygons: list[list[tuple[float, float]]]) -> None:
    def mask(corner: str) -> Mask:
        listed = [{"polygon": [list(p) for p in points], "corner": corner} for points in polygons]
        return drawn(*listed, outside="nothing")

    # At random places no centre lies on an edge, but for what hypothesis likes best: whole and half numbers.
    odd = [[(x + 0.0123, y + 0.0371) for x, y in points] for points in polygons]
    polygons[:] = odd
    assert np.array_equal(mask("top-right"), mask("top-left")[:, ::-1])
    assert np.array_equal(mask("bottom-left"), mask("top-left")[::-1])
    assert np.array_equal(mask("bottom-right"), mask("top-left")[::-1, ::-1])


# --- another size, and what does not fit -------------------------------------------------------------------


def test_pixels_are_scaled_and_shares_are_not() -> None:
    assert extent(drawn({"box": [300, 400, 500, 600]}, drawn_on=(4000, 3000))) == (3, 4, 5, 6)
    assert extent(drawn({"box": [3, 4, 5, 6], "corner": "bottom-right"}, size=(400, 300), drawn_on=SIZE)) == (
        320,
        200,
        50,
        60,
    )
    shares = {"box": ["25%", "50%", "25%", "10%"]}
    assert np.array_equal(drawn(shares, drawn_on=(400, 300)), drawn(shares))
    sail = [[100, 100], [3900, 700], [500, 2900]]
    small = {"polygon": [[x / 100, y / 100] for x, y in sail]}
    assert np.array_equal(drawn({"polygon": sail}, drawn_on=(4000, 3000), size=SIZE), drawn(small))


@pytest.mark.parametrize(
    ("drawn_on", "size"),
    [
        ((4000, 3000), (1000, 750)),
        ((1000, 750), (4000, 3000)),
        ((4, 3), (4000, 3000)),
        ((100, 67), (1501, 1000)),
        ((4000, 2667), (500, 333)),  # three pixels of 2667, but less than one of 333
        ((500, 333), (4000, 2667)),
        ((10_000, 503), (1000, 50)),  # a third of a pixel of its height, though 6 pixels of its width
        ((4032, 3024), (1333, 1000)),
        ((3024, 4032), (1000, 1333)),
        ((1, 1), (1, 1)),
        ((640, 427), (4000, 2667)),
    ],
)
def test_the_same_shape_to_rounding_is_taken(drawn_on: tuple[int, int], size: tuple[int, int]) -> None:
    assert drawn({"box": [0, 0, *drawn_on]}, drawn_on=drawn_on, size=size).all()


@pytest.mark.parametrize(
    ("drawn_on", "remedy"),
    [
        ((30, 40), "stored on its side"),
        ((40, 40), "on the picture itself"),
        ((4000, 2000), "on the picture itself"),
        ((1, 1), "on the picture itself"),
        ((2, 1), "on the picture itself"),
        ((12, 10), "on the picture itself"),  # a pixel, but a tenth of its height
        ((4000, 3200), "on the picture itself"),
    ],
)
def test_another_shape_is_refused_with_both_sizes(drawn_on: tuple[int, int], remedy: str) -> None:
    with pytest.raises(RegionError) as caught:
        drawn({"box": [0, 0, 1, 1]}, drawn_on=drawn_on)
    sizes = f"a picture of {drawn_on[0]}x{drawn_on[1]}, and this one is 40x30 as it is seen"
    assert caught.value.reason == f"size: the regions are for {sizes}"
    assert remedy in caught.value.remedy


OUTSIDE: dict[str, dict[str, object]] = {
    "right of it": {"box": [40, 0, 5, 5]},
    "left of it": {"box": [-5, 0, 5, 5]},
    "above it": {"box": [0, 30, 5, 5], "corner": "bottom-left", "name": "sky"},
    "below it": {"polygon": [[0, 30], [40, 30], [20, 99]]},
    "around it": {
        "polygon": [[-9, -9], [50, -9], [50, 40], [-5, 40], [-5, 35], [45, 35], [45, -5], [-9, -5]]
    },
    "far away": {"polygon": [[1e9, 1e9], [1e9, 0.5e9], [0.5e9, 1e9]]},
    "on the border": {"polygon": [[40, 0], [40, 10], [40, 20]]},
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_region_outside_is_refused_by_its_name_or_is_nothing(kind: str) -> None:
    inside, name = {"box": [1, 1, 2, 2]}, ' ("sky")' if "name" in OUTSIDE[kind] else ""
    with pytest.raises(RegionError) as caught:
        drawn(inside, OUTSIDE[kind], inside)
    assert (
        caught.value.reason == f"regions[2]{name}: it lies outside the picture, which is 40x30 as it is seen"
    )
    assert np.array_equal(drawn(inside, OUTSIDE[kind], outside="nothing"), drawn(inside))


def test_no_region_is_nothing() -> None:
    assert not drawn().any()


# --- bounds ------------------------------------------------------------------------------------------------


def random_regions(seed: int) -> tuple[Region, ...]:
    random = np.random.default_rng(seed)
    boxes = [{"box": [float(v) for v in random.uniform(0.1, 60, 4)]} for _ in range(8)]
    polygons = [{"polygon": random.uniform(-20, 120, (9, 2)).tolist()} for _ in range(8)]
    return regions_from([*boxes, *polygons])


@pytest.mark.parametrize("seed", range(3))
def test_in_however_small_parts_it_is_drawn_the_mask_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, size = random_regions(seed), (97, 61)
    whole = mask_of_regions(listed, size, outside="nothing")
    monkeypatch.setattr(region_masks, "_TILE_PX", 200)
    monkeypatch.setattr(region_masks, "_TILE_COLUMNS", 16)
    monkeypatch.setattr(region_masks, "_CROSSINGS_AT_ONCE", 7)
    assert np.array_equal(mask_of_regions(listed, size, outside="nothing"), whole)
    one_by_one: Iterable[Mask] = (mask_of_regions([region], size, outside="nothing") for region in listed)
    assert np.array_equal(np.any(list(one_by_one), axis=0), whole)


def zigzag(points: int, height: int) -> dict[str, list[list[int]]]:
    return {"polygon": [[x, height * (x % 2)] for x in range(points)]}


def test_outlines_without_end_are_refused() -> None:
    with pytest.raises(
        RegionError, match=r"^regions: the outlines of the polygons are too long: they cross [\d,]+ rows"
    ):
        drawn(*[zigzag(1000, 9000)] * (MAX_CROSSINGS // 9_000_000 + 1), size=(9000, 9000))


def test_what_is_covered_often_is_drawn_once_and_nothing_else_is_as_large_as_the_mask() -> None:
    width, height = 6000, 4000
    down = zigzag(300, height)
    across = {"polygon": [[y, x] for x, y in zigzag(300, width)["polygon"]]}
    listed = regions_from([{"box": [0, 0, width, height]}] * 9_998 + [down, across])
    tracemalloc.start()
    try:
        mask = mask_of_regions(listed, (width, height))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert mask.all()
    assert peak < mask.nbytes + (64 << 20)
