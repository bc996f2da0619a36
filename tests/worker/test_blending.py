"""Seams: the ramp in the grown rim, and the offset that is taken out of a fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.bench import photo, rectangle
from watcher.worker.engines.protocol import Crop
from watcher.worker.imaging.blending import ALL_FILL, blended, fill_share, levelled
from watcher.worker.imaging.crops import Rect
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIDE = 160
WHOLE = Rect(0, 0, SIDE, SIDE)
MARK = rectangle(SIDE, SIDE, (60, 60, 100, 100))


@pytest.mark.parametrize("grow", [1, 2, 4, 8, 20])
def test_only_the_outer_part_of_what_was_grown_is_blended(grow: int) -> None:
    hole = grown(MARK, grow)
    share = fill_share(MARK, hole, WHOLE)
    assert share is not None
    assert (share[MARK] == ALL_FILL).all()
    row = share[80, 100 : 100 + grow].astype(int)
    assert (np.diff(row) <= 0).all(), "less and less towards the border"
    assert (row[: grow // 2] == ALL_FILL).all(), "the inner half may still hold what was to go"
    assert row[-1] > 0
    assert np.count_nonzero(share[hole] < ALL_FILL) > 0 or grow == 1


def test_nothing_is_blended_where_nothing_was_grown() -> None:
    assert fill_share(MARK, MARK, WHOLE) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 90), st.integers(0, 90), st.integers(20, 70), st.integers(20, 70))
def test_a_box_has_the_shares_of_the_whole(top: int, left: int, height: int, width: int) -> None:
    hole = grown(MARK, 6)
    whole = fill_share(MARK, hole, WHOLE)
    box = Rect(top, left, top + height, left + width)
    part = fill_share(MARK, hole, box)
    assert whole is not None
    inside = hole[box.slices]
    assert np.array_equal(
        whole[box.slices][inside], np.full(inside.sum(), ALL_FILL) if part is None else part[inside]
    )


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_blending_goes_from_the_one_to_the_other(kind: Any) -> None:
    most = np.iinfo(kind).max
    before: NDArray[Any] = np.array([[0], [most], [100]], kind)
    fill: NDArray[Any] = np.array([[most], [0], [100]], kind)
    assert blended(before, fill, np.array([255, 255, 7], np.uint8)).tolist() == [[most], [0], [100]]
    assert blended(before, fill, np.array([0, 0, 200], np.uint8)).tolist() == before.tolist()


def step(pixels: NDArray[np.uint8], hole: NDArray[np.bool_]) -> float:
    """The mean difference of luma between 3 px inside and 3 px outside of the border."""
    inside, outside = hole & grown(~hole, 3), ~hole & grown(hole, 3)
    luma = pixels.astype(float).mean(axis=2)
    return abs(float(luma[inside].mean() - luma[outside].mean()))


@pytest.mark.kind("PB5")
@pytest.mark.parametrize("offset", [-15, -8, 8, 15])
def test_an_offset_along_a_calm_border_is_taken_out(offset: int) -> None:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    truth = np.clip(np.stack([60 + x // 2, 80 + x // 3, 100 + y // 4], axis=-1), 0, 255).astype(np.uint8)
    hole = grown(MARK, 4)
    filled = truth.copy()
    filled[hole] = np.clip(truth[hole].astype(int) + offset, 0, 255)
    result = levelled(Crop(truth, hole), filled)
    joined = np.where(hole[..., np.newaxis], filled, truth)
    after = np.where(hole[..., np.newaxis], result, truth)
    assert step(joined, hole) > 0.8 * abs(offset)
    assert step(after, hole) < 2
    assert np.abs(after.astype(int) - truth)[hole].mean() < 0.35 * abs(offset)


def test_a_real_edge_along_the_border_stays() -> None:
    truth = photo(SIDE, SIDE)
    hole = grown(MARK, 4)
    filled = truth.copy()
    filled[hole] = (250, 240, 230)
    assert np.array_equal(levelled(Crop(truth, hole), filled), filled)


def test_what_fits_is_left_alone() -> None:
    grey = np.full((SIDE, SIDE, 3), 90, np.uint8)
    assert levelled(Crop(grey, MARK), grey) is grey
