"""Engine `patchmatch`: texture where there is texture, smooth where it is thin, and a bounded cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import patchmatch
import pytest

from benchmarks import fill_metrics
from watcher.wire import EngineChoice
from watcher.worker.engines import patchmatch as engine_module
from watcher.worker.engines.patchmatch import PatchmatchEngine, _navier_stokes
from watcher.worker.engines.protocol import Crop, FillError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Texture = Callable[[str], NDArray[np.uint8]]


class CountingPatchmatch:
    """The real library, with a note of each call's box."""

    def __init__(self) -> None:
        self.boxes: list[tuple[int, ...]] = []

    def set_random_seed(self, seed: int) -> None:
        patchmatch.set_random_seed(seed)

    def inpaint(
        self, pixels: NDArray[np.uint8], hole: NDArray[np.bool_], **options: Any
    ) -> NDArray[np.uint8]:
        self.boxes.append(hole.shape)
        return patchmatch.inpaint(pixels, hole, **options)


@pytest.fixture
def engine() -> PatchmatchEngine:
    built = PatchmatchEngine(EngineChoice(name="patchmatch"))
    built.load()
    return built


@pytest.fixture
def calls(engine: PatchmatchEngine, monkeypatch: pytest.MonkeyPatch) -> CountingPatchmatch:
    counting = CountingPatchmatch()
    monkeypatch.setattr(engine, "_patchmatch", counting)
    return counting


def square(pixels: NDArray[np.uint8], *, at: tuple[int, int], side: int) -> Crop:
    hole = np.zeros(pixels.shape[:2], dtype=np.bool_)
    hole[at[0] : at[0] + side, at[1] : at[1] + side] = True
    return Crop(pixels=pixels, hole=hole)


def composited(filled: NDArray[np.uint8], crop: Crop) -> NDArray[np.uint8]:
    return np.where(crop.hole[:, :, None], filled, crop.pixels)


def roughness(pixels: NDArray[np.uint8]) -> float:
    """Mean step between neighbours: what a blurred or flat fill lacks."""
    return float(np.abs(np.diff(pixels.astype(float), axis=0)).mean())


@pytest.mark.parametrize("name", ["brick.png", "grass.png", "gravel.webp"])
def test_a_texture_goes_on_through_the_hole(engine: PatchmatchEngine, texture: Texture, name: str) -> None:
    crop = square(texture(name)[:256, :256], at=(96, 96), side=64)
    (filled,) = engine.fill([crop])
    inside, original = filled[96:160, 96:160], crop.pixels[96:160, 96:160]
    around = crop.pixels[~crop.hole].astype(float)
    smooth = _navier_stokes(crop.pixels, crop.hole)[96:160, 96:160]
    assert roughness(inside) > 0.5 * roughness(original)  # a fill with the mean colour has 0
    assert roughness(inside) > 1.3 * roughness(smooth)
    assert np.abs(inside.mean(axis=(0, 1)) - around.mean(axis=0)).max() < 20
    assert inside.std() > 0.7 * around.std()


@pytest.mark.parametrize("at", [(96, 96), (40, 150)])
@pytest.mark.parametrize("name", ["brick.png", "grass.png", "gravel.webp"])
def test_its_texture_is_nearer_to_the_truth_than_opencv_comes(
    engine: PatchmatchEngine, texture: Texture, name: str, at: tuple[int, int]
) -> None:
    truth = texture(name)[:256, :256]
    crop = square(truth, at=at, side=64)

    def distance(filled: NDArray[np.uint8]) -> float:
        return fill_metrics.measure(composited(filled, crop), truth, crop.hole).texture

    mask = crop.hole.astype(np.uint8)
    by_opencv = [
        distance(np.asarray(cv2.inpaint(truth, mask, 3, method), np.uint8))
        for method in (cv2.INPAINT_TELEA, cv2.INPAINT_NS)
    ]
    (filled,) = engine.fill([crop])
    assert distance(filled) < 0.85 * min(by_opencv)  # of brick; of the others it is a fifth and less


def test_every_colour_of_the_fill_comes_from_around(engine: PatchmatchEngine) -> None:
    """Left blue, right green: nothing red may come, although the hole's old content is red."""
    pixels = np.zeros((192, 192, 3), dtype=np.uint8)
    pixels[:, :96, 2] = 200
    pixels[:, 96:, 1] = 200
    crop = square(pixels, at=(70, 70), side=50)
    pixels[crop.hole] = (255, 0, 0)
    (filled,) = engine.fill([crop])
    inside = composited(filled, crop)[crop.hole]
    assert inside[:, 0].max() == 0
    assert inside[:, 1].max() > 150
    assert inside[:, 2].max() > 150


def test_no_hole_is_a_source_for_another(engine: PatchmatchEngine, texture: Texture) -> None:
    """Thick, thin, touching the edge and side by side: what lies under any of them changes no byte."""
    pixels = texture("gravel.webp")[:256, :256].copy()
    hole = np.zeros((256, 256), dtype=np.bool_)
    hole[60:100, 60:100] = hole[60:100, 103:140] = hole[180:184, 20:230] = True
    hole[0:30, 0:30] = hole[226:256, 200:210] = hole[250:256, 0:60] = True
    results = []
    for colour in ((255, 0, 0), (0, 255, 0)):
        pixels[hole] = colour
        results.append(engine.fill([Crop(pixels=pixels, hole=hole)])[0][hole])
    assert np.array_equal(results[0], results[1])
    assert not (results[0] == (0, 255, 0)).all(axis=1).any()
    assert not (results[1] == (255, 0, 0)).all(axis=1).any()


@pytest.mark.parametrize(("side", "patches"), [(4, 0), (5, 1)])
def test_thin_holes_go_to_navier_stokes(
    engine: PatchmatchEngine, calls: CountingPatchmatch, texture: Texture, side: int, patches: int
) -> None:
    pixels = texture("grass.png")[:192, :192]
    hole = np.zeros((192, 192), dtype=np.bool_)
    hole[90 : 90 + side, 20:170] = True
    engine.fill([Crop(pixels=pixels, hole=hole)])
    assert len(calls.boxes) == patches


def test_a_scratch_over_a_smooth_sky_vanishes(engine: PatchmatchEngine) -> None:
    sky = np.linspace(60, 220, 192, dtype=np.float32)[:, None, None] + np.zeros((192, 192, 3), np.float32)
    pixels = sky.astype(np.uint8)
    hole = np.eye(192, dtype=np.bool_) | np.eye(192, k=1, dtype=np.bool_) | np.eye(192, k=-1, dtype=np.bool_)
    scratched = pixels.copy()
    scratched[hole] = 255
    (filled,) = engine.fill([Crop(pixels=scratched, hole=hole)])
    error = np.abs(filled[hole].astype(int) - pixels[hole])
    mean_fill = np.abs(pixels[~hole].mean() - pixels[hole])
    assert error.mean() < 3
    assert error.mean() < mean_fill.mean() / 10


def test_the_box_is_the_hole_and_its_margin(
    engine: PatchmatchEngine, calls: CountingPatchmatch, texture: Texture
) -> None:
    pixels = np.tile(texture("gravel.webp")[:256, :256], (2, 2, 1))
    engine.fill([square(pixels, at=(200, 200), side=20)])  # thickness 20: the margin is 64
    engine.fill([square(pixels, at=(200, 200), side=90)])  # thickness 90: the margin is 90
    assert calls.boxes == [(148, 148), (270, 270)]


@pytest.mark.kind("PB7")
@pytest.mark.parametrize("at", [(0, 0), (0, 240), (492, 240), (492, 492)])
def test_a_hole_at_the_edge_sees_as_much_as_any(
    engine: PatchmatchEngine, calls: CountingPatchmatch, texture: Texture, at: tuple[int, int]
) -> None:
    pixels = np.tile(texture("gravel.webp")[:256, :256], (2, 2, 1))
    engine.fill([square(pixels, at=at, side=20)])
    assert calls.boxes == [(148, 148)]


@pytest.mark.kind("PB8")
def test_hundreds_of_specks_cost_no_more_than_the_crop(
    engine: PatchmatchEngine, calls: CountingPatchmatch, texture: Texture
) -> None:
    pixels = texture("grass.png")[:256, :256]
    hole = np.zeros((256, 256), dtype=np.bool_)
    for top in range(8, 240, 24):
        for left in range(8, 240, 24):
            hole[top : top + 8, left : left + 8] = True
    (filled,) = engine.fill([Crop(pixels=pixels, hole=hole)])
    assert calls.boxes == [(256, 256)]
    labels_filled = (filled != pixels).any(axis=2)[hole].mean()
    assert labels_filled > 0.9


def test_a_huge_hole_is_filled_at_a_smaller_scale(
    engine: PatchmatchEngine, calls: CountingPatchmatch, texture: Texture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MAX_WORK", 40_000)  # the real bound takes 8 s to reach
    pixels = texture("gravel.webp")[:256, :256].copy()
    crop = square(pixels, at=(80, 80), side=96)
    pixels[10:30, 10:30] = 255  # part of another hole: must not leak when the picture is shrunk
    crop.hole[10:30, 10:30] = True
    (filled,) = engine.fill([crop])
    assert all(height * width < 40_000 for height, width in calls.boxes)
    inside, around = filled[80:176, 80:176], pixels[~crop.hole].astype(float)
    assert np.abs(inside.mean(axis=(0, 1)) - around.mean(axis=0)).max() < 25
    assert inside.std() > 0.3 * around.std()
    pixels[crop.hole] = (255, 0, 255)
    (again,) = engine.fill([crop])
    assert np.array_equal(again[crop.hole], filled[crop.hole])


def test_without_a_binary_it_fills_smoothly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, texture: Texture
) -> None:
    monkeypatch.setattr(patchmatch, "patchmatch_available", False)
    engine = PatchmatchEngine(EngineChoice(name="patchmatch"))
    engine.load()
    engine.warm_up()
    crop = square(texture("brick.png")[:256, :256], at=(96, 96), side=64)
    (filled,) = engine.fill([crop])
    assert (filled[crop.hole] != crop.pixels[crop.hole]).any()
    reason = engine.facts().reason
    assert reason is not None
    assert "no binary" in reason


@pytest.mark.parametrize(("known", "patches"), [(1, 0), (3, 0), (8, 0), (20, 1)])
def test_a_crop_that_is_nearly_all_hole_is_filled_from_what_is_left(
    engine: PatchmatchEngine, calls: CountingPatchmatch, known: int, patches: int
) -> None:
    pixels = np.full((64, 64, 3), 255, dtype=np.uint8)
    pixels[:known, :known] = (40, 80, 120)
    hole = np.ones((64, 64), dtype=np.bool_)
    hole[:known, :known] = False
    (filled,) = engine.fill([Crop(pixels=pixels, hole=hole)])
    assert len(calls.boxes) == patches  # fewer than 49 whole patches are nothing to copy from
    assert (filled[hole] != 255).any(axis=1).mean() > 0.99
    assert np.abs(filled[known : known + 3, :known].astype(int) - (40, 80, 120)).max() < 40


def test_a_crop_that_is_all_hole_is_refused(engine: PatchmatchEngine) -> None:
    with pytest.raises(FillError, match="nothing to copy from"):
        engine.fill([square(np.zeros((64, 64, 3), dtype=np.uint8), at=(0, 0), side=64)])


def test_a_crop_without_a_hole_comes_back_as_it_is(engine: PatchmatchEngine, texture: Texture) -> None:
    pixels = texture("brick.png")[:64, :64]
    (filled,) = engine.fill([Crop(pixels=pixels, hole=np.zeros((64, 64), dtype=np.bool_))])
    assert np.array_equal(filled, pixels)


def test_a_device_that_it_cannot_use_is_named() -> None:
    engine = PatchmatchEngine(EngineChoice(name="patchmatch", device="cuda:0"))
    engine.load()
    facts = engine.device()
    assert (facts.configured, facts.actual) == ("cuda:0", "cpu")
    assert facts.reason == "patchmatch runs on the CPU only"
    assert facts.evidence.kernel_time_share is None


def scratch(side: int) -> Crop:
    hole = np.zeros((side, side), dtype=np.bool_)
    hole[side // 2 : side // 2 + 4, 40:-40] = True
    return Crop(pixels=np.zeros((side, side, 3), np.uint8), hole=hole)


def test_work_goes_by_holes_and_not_by_crops(
    engine: PatchmatchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured for 512 x 512: 10 ms for a thin scratch, 1.4 s for a hole of a third, 4 s for most of it."""
    blank = np.zeros((512, 512, 3), np.uint8)
    thin, third, most = (
        scratch(512),
        square(blank, at=(170, 170), side=170),
        square(blank, at=(50, 50), side=410),
    )
    work = [engine.work_px(crop) for crop in (thin, third, most)]
    assert work[0] * 40 < work[1]
    assert work[1] * 2 < work[2] < 2 * engine_module.MAX_WORK
    monkeypatch.setattr(engine, "_patchmatch", None)
    assert engine.work_px(third) * 4 < work[1], "Navier-Stokes is fast"
    assert engine.work_px(Crop(pixels=blank, hole=np.zeros((512, 512), np.bool_))) < work[0]


def test_holes_are_looked_for_once_and_not_remembered(
    engine: PatchmatchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    find = engine_module._components

    def look(hole: NDArray[np.bool_]) -> list[engine_module.Component]:
        looked.append(hole.size)
        return find(hole)

    monkeypatch.setattr(engine_module, "_components", look)
    crop = scratch(128)
    engine.work_px(crop)
    engine.fill([crop])
    assert len(looked) == 1
    crop.hole[:] = False
    crop.hole[60:70, 60:70] = True
    (filled,) = engine.fill([crop])
    assert len(looked) == 2
    assert filled.shape == crop.pixels.shape
