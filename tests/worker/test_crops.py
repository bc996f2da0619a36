"""What the model sees: properties over random masks, and the cases that the rules were made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.bench import photo, rectangle
from watcher.worker.imaging.crops import (
    MAX_CROPS,
    MIN_BUDGET,
    cut,
    mean_colour,
    plan_crops,
    uncut,
    waves,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUDGET = 1_048_576


@st.composite
def masks(draw: st.DrawFn) -> NDArray[np.bool_]:
    width, height = draw(st.integers(1, 900)), draw(st.integers(1, 900))
    mask = np.zeros((height, width), np.bool_)
    for _ in range(draw(st.integers(1, 40))):
        left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        mask[top : top + draw(st.integers(1, 300)), left : left + draw(st.integers(1, 300))] = True
    return mask


@pytest.mark.kind("PB8")
@settings(max_examples=80, deadline=None)
@given(masks(), st.sampled_from([MIN_BUDGET, 200_000, BUDGET]))
def test_every_hole_pixel_is_pasted_by_exactly_one_crop(mask: NDArray[np.bool_], budget: int) -> None:
    plans = plan_crops(mask, crop_pixels=budget)
    assert 1 <= len(plans) <= MAX_CROPS
    pasted = np.zeros(mask.shape, np.int64)
    remaining = mask.copy()
    for plan in plans:
        top, left, bottom, right = plan.box
        assert 0 <= top <= plan.core.top < plan.core.bottom <= bottom <= mask.shape[0]
        assert 0 <= left <= plan.core.left < plan.core.right <= right <= mask.shape[1]
        assert plan.height % 8 == plan.width % 8 == 0
        assert min(plan.height, plan.width) >= 64
        assert plan.model_px <= budget
        assert (plan.scale < 1) or (plan.height >= plan.box.height and plan.width >= plan.box.width)
        pasted[plan.core.slices] += remaining[plan.core.slices]
        remaining[plan.core.slices] = False
    assert np.array_equal(pasted == 1, mask)
    assert pasted.max() == 1


@pytest.mark.kind("PA1", "PA3", "PA16", "PB3", "PB6")
@settings(max_examples=60, deadline=None)
@given(masks())
def test_cut_and_uncut_fit_and_padding_is_never_hole(mask: NDArray[np.bool_]) -> None:
    picture = photo(mask.shape[1], mask.shape[0])
    for plan in plan_crops(mask, crop_pixels=200_000):
        rgb, hole = picture[plan.box.slices].copy(), mask[plan.box.slices]
        crop = cut(rgb, hole, plan)
        assert crop.pixels.shape == (plan.height, plan.width, 3)
        assert crop.hole.shape == (plan.height, plan.width)
        assert np.array_equal(rgb, picture[plan.box.slices])
        assert not np.shares_memory(crop.pixels, picture)
        restored = uncut(crop.pixels, plan)
        assert restored.shape == rgb.shape
        if plan.scale == 1:
            assert np.array_equal(restored, rgb)
            assert crop.hole.sum() == hole.sum()


@pytest.mark.parametrize("size", [(857, 225), (17_000, 40), (40, 17_000)])
def test_what_exceeds_the_budget_only_when_it_is_padded_is_scaled_down(size: tuple[int, int]) -> None:
    """225 x 857 is below 200,000 pixels, and 232 x 864 is not."""
    width, height = size
    mask = np.ones((height, width), np.bool_)
    mask[height * 9 // 10 :, width * 9 // 10 :] = False
    plans = plan_crops(mask, crop_pixels=200_000)
    assert plans
    for plan in plans:
        assert plan.model_px <= 200_000
        rgb = photo(plan.box.width, plan.box.height)
        crop = cut(rgb, mask[plan.box.slices], plan)
        assert crop.pixels.shape == (plan.height, plan.width, 3)
        assert uncut(crop.pixels, plan).shape == rgb.shape


@pytest.mark.kind("PB8")
def test_no_wave_sees_a_core_that_it_fills_itself() -> None:
    mask = np.zeros((3000, 4000), np.bool_)
    np.fill_diagonal(mask[:, :3000], val=True)
    plans = plan_crops(mask, crop_pixels=BUDGET)
    grouped = waves(plans)
    assert [plan for wave in grouped for plan in wave] == plans
    for wave in grouped:
        for one in wave:
            assert not any(one.box.intersects(other.core) for other in wave if other is not one)


def specks(width: int, height: int, count: int) -> NDArray[np.bool_]:
    random = np.random.default_rng(5)
    mask = np.zeros((height, width), np.bool_)
    for x, y in zip(random.integers(0, width - 9, count), random.integers(0, height - 9, count), strict=True):
        mask[y : y + 9, x : x + 9] = True
    return mask


@pytest.mark.kind("PB2", "PB8")
@pytest.mark.parametrize("size", [(640, 480), (4000, 3000)])
def test_300_specks_are_a_few_crops_at_native_scale(size: tuple[int, int]) -> None:
    plans = plan_crops(specks(*size, 300), crop_pixels=BUDGET)
    assert len(plans) <= MAX_CROPS
    assert all(plan.scale == 1 for plan in plans)


def test_a_mask_of_noise_is_planned_quickly_and_within_bounds() -> None:
    mask = np.random.default_rng(1).random((1500, 2000)) < 0.05
    plans = plan_crops(mask, crop_pixels=BUDGET)
    assert len(plans) <= MAX_CROPS
    assert sum(plan.model_px for plan in plans) <= MAX_CROPS * BUDGET


@pytest.mark.kind("PB8")
def test_distant_holes_get_crops_of_their_own_and_near_ones_share() -> None:
    mask = rectangle(2000, 1500, (100, 100, 140, 140)) | rectangle(2000, 1500, (1800, 1300, 1840, 1340))
    assert len(plan_crops(mask, crop_pixels=BUDGET)) == 2
    mask = rectangle(2000, 1500, (100, 100, 140, 140)) | rectangle(2000, 1500, (180, 100, 220, 140))
    assert len(plan_crops(mask, crop_pixels=BUDGET)) == 1


@pytest.mark.kind("PB2")
def test_a_hole_in_12_megapixels_is_seen_with_its_thickness_around_it() -> None:
    (plan,) = plan_crops(rectangle(4000, 3000, (1500, 1200, 1800, 1400)), crop_pixels=BUDGET)
    assert plan.scale == 1
    assert plan.core.left - plan.box.left >= 200
    assert plan.box.bottom - plan.core.bottom >= 200
    assert plan.model_px < 12_000_000 / 20


@pytest.mark.kind("PB2")
def test_a_wire_across_a_photo_is_cut_into_cells_at_native_scale() -> None:
    mask = np.zeros((3000, 4000), np.bool_)
    for x in range(4000):
        y = 200 + x * 2500 // 4000
        mask[y : y + 12, x] = True
    plans = plan_crops(mask, crop_pixels=BUDGET)
    assert 1 < len(plans) <= MAX_CROPS
    assert all(plan.scale == 1 for plan in plans)


def test_a_hole_larger_than_the_budget_is_coarse_with_context() -> None:
    (plan,) = plan_crops(rectangle(4000, 3000, (500, 400, 3500, 2600)), crop_pixels=BUDGET)
    assert plan.scale < 1
    assert plan.model_px <= BUDGET
    assert plan.box.area > 1.1 * plan.core.area


def test_coarse_crops_never_trust_a_pixel_that_was_partly_marked() -> None:
    mask = rectangle(2000, 2000, (401, 403, 1603, 1601))
    (plan,) = plan_crops(mask, crop_pixels=MIN_BUDGET)
    rgb = np.zeros((plan.box.height, plan.box.width, 3), np.uint8)
    rgb[mask[plan.box.slices]] = 255
    crop = cut(rgb, mask[plan.box.slices], plan)
    assert crop.pixels[~crop.hole].max() == 0


@pytest.mark.kind("PB6")
@pytest.mark.parametrize("box", [(0, 0, 30, 30), (370, 0, 400, 30), (0, 270, 30, 300), (370, 270, 400, 300)])
def test_boxes_are_shifted_inward_at_borders(box: tuple[int, int, int, int]) -> None:
    (plan,) = plan_crops(rectangle(400, 300, box), crop_pixels=BUDGET)
    assert (plan.height, plan.width) == (plan.box.height, plan.box.width)


@pytest.mark.kind("PB6", "PB7")
@pytest.mark.parametrize("box", [(0, 0, 40, 40), (560, 0, 600, 40), (0, 200, 40, 240), (280, 460, 320, 500)])
def test_a_hole_at_the_border_sees_as_much_as_any(box: tuple[int, int, int, int]) -> None:
    """What the picture's edge takes of the margin is added on the open side."""
    (plan,) = plan_crops(rectangle(600, 500, box), crop_pixels=BUDGET)
    (middle,) = plan_crops(rectangle(600, 500, (280, 200, 320, 240)), crop_pixels=BUDGET)
    assert (plan.box.height, plan.box.width) == (middle.box.height, middle.box.width) == (168, 168)


@pytest.mark.kind("PB6")
def test_padding_does_not_mirror_what_was_marked() -> None:
    picture = np.zeros((40, 40, 3), np.uint8)
    mask = rectangle(40, 40, (20, 20, 40, 40))
    picture[mask] = 255
    (plan,) = plan_crops(mask, crop_pixels=BUDGET)
    crop = cut(picture, mask, plan)
    assert crop.pixels[~crop.hole].max() == 0


def test_the_mean_of_nothing_is_grey() -> None:
    assert mean_colour(np.zeros((0, 3), np.uint8)).tolist() == [128, 128, 128]


def test_an_empty_mask_plans_nothing() -> None:
    assert plan_crops(np.zeros((10, 10), np.bool_), crop_pixels=BUDGET) == []
