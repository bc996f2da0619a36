"""Coarse to fine: detail for a hole that was filled at a smaller scale."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker.bench import FlatEngine, photo, rectangle, save_mask
from watcher.wire import ItemProgressed, Limits
from watcher.worker.engines.protocol import Crop
from watcher.worker.imaging import detail
from watcher.worker.imaging.detail import enlarged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

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


@pytest.mark.parametrize("scale", [0.37, 0.5, 0.83])
def test_what_lies_in_the_hole_is_never_looked_at(scale: float) -> None:
    picture = texture("grass.png")[:400, :400]
    hole = rectangle(400, 400, (31, 31, 369, 369))  # no source is far from it
    painted = picture.copy()
    painted[hole] = (255, 0, 255)
    crop = coarse(picture, hole, scale)
    assert enlarged(picture, crop, crop.pixels).is_detailed
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


@settings(max_examples=40, deadline=None)
@given(st.integers(64, 240), st.integers(64, 240), st.floats(1, 9), st.floats(1, 9), st.data())
def test_no_source_reaches_into_a_hole(
    rows: int, columns: int, down: float, across: float, data: st.DataObject
) -> None:
    hole = np.zeros((rows, columns), np.bool_)
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    hole[top : top + data.draw(st.integers(1, 90)), left : left + data.draw(st.integers(1, 90))] = True
    scale = detail._Scale(round(rows * down) / rows, round(columns * across) / columns)
    high, wide, _ = detail._window(scale).shape
    corners = detail._native(detail._sources(hole), scale)
    native = np.array([np.flatnonzero(hole.any(axis=axis))[[0, -1]] for axis in (1, 0)])
    first = np.floor(native[:, 0] * np.array(scale))
    last = np.ceil((native[:, 1] + 1) * np.array(scale))
    apart = (np.add(corners, (high, wide)) <= first) | (corners >= last)
    assert apart.any(axis=1).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_detail_is_as_strong_where_blocks_overlap_and_fades_from_one_to_the_next(axis: int) -> None:
    random = np.random.default_rng(1)
    scale = detail._Scale(6.0, 6.0)
    noise = cv2.GaussianBlur(random.normal(0, 100, (960, 960, 3)), (0, 0), 3.0)
    picture = np.clip(128 + noise, 0, 255).astype(np.uint8)
    flat = np.full_like(picture, 128)
    targets = np.stack(np.meshgrid(*[np.arange(0, 150, detail.STRIDE_PX)] * 2, indexing="ij"), axis=-1)
    targets = targets.reshape(-1, 2)
    sources = random.integers(0, 150, targets.shape)
    bands = [band for _, band in detail._detail(picture, flat, targets, sources, scale)]
    found = np.concatenate(bands)[12:-60, 12:-60, 0]
    assert abs(found.std() / (picture[..., 0].std()) - 1) < 0.06
    at_seams = (
        np.arange(found.shape[axis] - 1) % 36 == 23
    )  # from one block's last row to the next one's first
    steps = np.abs(np.diff(found, axis=axis)).mean(axis=1 - axis)
    assert steps[at_seams].mean() < 1.5 * steps[~at_seams].mean()


def test_detail_beside_an_edge_is_no_stronger_than_the_pictures_own_there() -> None:
    """Strong detail that is put down a little beside its edge is a ghost in what is flat."""
    random = np.random.default_rng(2)
    picture = np.full((480, 480, 3), 60, np.uint8) + random.integers(0, 3, (480, 480, 1), np.uint8)
    for _ in range(60):  # bars of any place and angle: hardly any block has its equal
        at, turn = random.integers(0, 480, 2).tolist(), random.uniform(0, np.pi)
        end = (int(at[0] + 60 * np.cos(turn)), int(at[1] + 60 * np.sin(turn)))
        cv2.line(picture, tuple(at), end, (240, 240, 240), 5)
    hole = rectangle(480, 480, (140, 140, 340, 340))
    crop = coarse(picture, hole, 0.25)
    far = cv2.dilate((picture[..., 0] > 100).astype(np.uint8), np.ones((33, 33), np.uint8)) == 0
    assert np.count_nonzero(far & hole) > 2000
    result = enlarged(picture, crop, crop.pixels).rgb
    assert np.abs(result[far & hole].astype(int) - 61).max() <= 4


@pytest.mark.parametrize(
    ("box", "scale"),
    [
        ((0, 0, 200, 180), (0.21, 0.5)),
        ((311, 307, 512, 512), (0.5, 0.21)),
        ((0, 200, 512, 300), (0.97, 0.93)),
        ((100, 0, 400, 512), (0.3, 0.3)),
    ],
    ids=["corner", "other corner", "bar", "upright bar"],
)
def test_a_hole_may_lie_anywhere_and_be_scaled_by_any_factor(
    box: tuple[int, int, int, int], scale: tuple[float, float]
) -> None:
    picture = texture("gravel.webp")[:512, :512]
    hole = rectangle(512, 512, box)
    size = (round(512 * scale[0]), round(512 * scale[1]))
    small = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
    touched = cv2.resize(hole.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0
    fine = enlarged(picture, Crop(small, np.asarray(touched)), small)
    blurred = np.asarray(cv2.resize(small, (512, 512), interpolation=cv2.INTER_CUBIC), np.uint8)
    assert fine.is_detailed
    inner = cv2.erode(hole.astype(np.uint8), np.ones((9, 9), np.uint8), borderValue=1) > 0
    truth, plain, result = (roughness(pixels, inner) for pixels in (picture, blurred, fine.rgb))
    assert abs(truth - result) < 0.6 * (truth - plain) + 1


def test_what_is_transparent_gives_no_detail() -> None:
    picture = texture("grass.png")[:256, :256].copy()
    hole = rectangle(256, 256, (100, 0, 256, 256))
    clear = rectangle(256, 256, (0, 0, 100, 256))
    crop = coarse(picture, hole, 0.5)
    assert enlarged(picture, crop, crop.pixels).is_detailed
    assert not enlarged(picture, crop, crop.pixels, clear[::2, ::2]).is_detailed


def test_where_hardly_anything_is_known_nothing_is_added_and_it_is_said() -> None:
    picture = texture("grass.png")[:256, :256]
    hole = np.ones((256, 256), np.bool_)
    hole[:, :14] = False
    crop = coarse(picture, hole, 0.5)
    fine = enlarged(picture, crop, crop.pixels)
    assert not fine.is_detailed
    assert np.array_equal(fine.rgb, cv2.resize(crop.pixels, (256, 256), interpolation=cv2.INTER_CUBIC))


def test_memory_is_a_few_bytes_a_pixel() -> None:
    height, width = 2400, 3200
    picture = np.kron(photo(100, 75), np.ones((32, 32, 1), np.uint8))
    hole = rectangle(width, height, (400, 400, 2800, 2000))
    crop = Crop(np.asarray(cv2.resize(picture, (400, 300)), np.uint8), hole[4::8, 4::8])
    tracemalloc.start()
    try:
        enlarged(picture, crop, crop.pixels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * height * width + (32 << 20), "the result, a byte of limits, and what goes by the crop"


class Copying(FlatEngine):
    """Returns the crop as it is."""

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        super().fill(crops, progress=progress)
        return [crop.pixels.copy() for crop in crops]


@pytest.mark.kind("PB2")
def test_a_hole_over_the_budget_comes_back_with_detail_and_the_record_says_how(bench: Bench) -> None:
    picture = texture("gravel.webp")[:512, :512]
    source = bench.folder / "a.png"
    Image.fromarray(picture).save(source)
    mark = rectangle(512, 512, (100, 100, 412, 412))
    bench.engine, bench.limits = Copying(), Limits(crop_pixels=256 * 256)
    done, staged = bench.done(source, save_mask(bench.folder / "a.png.mask.png", mark))
    with Image.open(staged) as image:
        after = np.asarray(image)
    assert done.reason is not None
    assert "filled coarsely, with detail from around them" in done.reason
    assert "the coarsest at 53% of its size" in done.reason
    (told,) = (
        report
        for report in bench.reports
        if isinstance(report, ItemProgressed) and report.next == "composite"
    )
    assert told.units > 5 * 512 * 512, "it is waited for longer than for a plain paste"
    assert roughness(after, mark) > 0.85 * roughness(picture, mark)


def test_a_coarse_fill_without_surroundings_is_called_blurred(bench: Bench) -> None:
    source = bench.folder / "a.png"
    Image.fromarray(texture("gravel.webp")[:512, :512]).save(source)
    mark = rectangle(512, 512, (0, 13, 512, 499))
    bench.engine, bench.limits = Copying(), Limits(crop_pixels=256 * 256)
    done, _ = bench.done(source, save_mask(bench.folder / "a.png.mask.png", mark), grow_px=0)
    assert done.reason is not None
    assert "filled coarsely, and are blurred" in done.reason
