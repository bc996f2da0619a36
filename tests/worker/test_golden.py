"""The golden self-test: what a broken engine gives does not pass. Working ones: tests/engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.worker.bench import OVERHEAD_PX, FlatEngine
from watcher.wire import EXIT_INTERNAL
from watcher.worker.engines.protocol import DeviceLostError, DeviceMemoryError, FillError
from watcher.worker.golden import GoldenTestError, golden_crop, run_golden_test
from watcher.worker.loop import _FatalError, _warm_up_and_try

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop


@dataclass
class PaintingEngine(FlatEngine):
    """Paints what the test says."""

    paint: Callable[[Crop], NDArray[np.uint8]] = lambda crop: crop.pixels

    def fill(
        self,
        crops: Sequence[Crop],
        *,
        progress: Callable[[int], None] | None = None,  # noqa: ARG002 - the Protocol's
    ) -> list[NDArray[np.uint8]]:
        return [self.paint(crop) for crop in crops]


def noise(crop: Crop) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, crop.pixels.shape, dtype=np.uint8)


def mostly(colour: tuple[int, int, int]) -> Callable[[Crop], NDArray[np.uint8]]:
    """Some noise in a hole that is otherwise of one colour."""

    def paint(crop: Crop) -> NDArray[np.uint8]:
        result = noise(crop)
        result[:54] = colour  # the hole's rows are 36 to 60
        return result

    return paint


def not_numbers(crop: Crop) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore"):
        return np.full(crop.pixels.shape, np.nan, np.float32).astype(np.uint8)


BROKEN = {
    "zeros": lambda crop: np.zeros_like(crop.pixels),
    "white": lambda crop: np.full_like(crop.pixels, 255),
    "grey": lambda crop: np.full_like(crop.pixels, 128),
    "NaN made bytes": not_numbers,
    "the blank": lambda crop: crop.pixels.copy(),
    "mostly black": mostly((0, 0, 0)),
    "mostly the blank": mostly((255, 0, 255)),
    "floats": lambda crop: noise(crop).astype(np.float32),
    "too small": lambda crop: noise(crop)[:-8],
    "grey only": lambda crop: noise(crop)[..., 0],
}


@pytest.mark.kind("PB13")
@pytest.mark.parametrize("kind", BROKEN)
def test_what_a_broken_engine_gives_does_not_pass(kind: str) -> None:
    with pytest.raises(GoldenTestError, match="golden picture"):
        run_golden_test(PaintingEngine(paint=BROKEN[kind]))


@pytest.mark.parametrize("error", [FillError("no"), DeviceMemoryError("too small")])
def test_an_engine_that_cannot_fill_it_does_not_pass(error: FillError) -> None:
    with pytest.raises(GoldenTestError, match=str(error)):
        run_golden_test(FlatEngine(error=error))


def test_a_lost_device_is_told_as_that() -> None:
    with pytest.raises(DeviceLostError):
        run_golden_test(FlatEngine(error=DeviceLostError("gone")))


def test_noise_of_a_model_that_runs_passes_and_its_time_is_told() -> None:
    result = run_golden_test(PaintingEngine(paint=noise))
    assert result.work_px == golden_crop().hole.size + OVERHEAD_PX
    assert result.spent_ns > 0


def test_the_picture_is_the_same_each_time_and_known_around_its_hole() -> None:
    one, two = golden_crop(), golden_crop()
    assert np.array_equal(one.pixels, two.pixels)
    known = one.pixels[~one.hole]
    assert known.min() >= 64
    assert known.max() <= 192
    assert 0.02 < one.hole.mean() < 0.2


@dataclass
class LastResort(PaintingEngine):
    """Has something left that works, or not."""

    left: int = 1
    told: str = ""

    def give_way(self, reason: str) -> bool:
        self.told = reason
        self.left -= 1
        if self.left == 0:
            self.paint = noise
        return self.left >= 0


def test_an_engine_that_fails_it_makes_way_for_what_is_left() -> None:
    engine = LastResort(paint=BROKEN["zeros"])
    assert _warm_up_and_try(engine).work_px > 0
    assert engine.told


def test_nobody_is_ready_where_nothing_is_left() -> None:
    with pytest.raises(_FatalError) as ended:
        _warm_up_and_try(LastResort(paint=BROKEN["zeros"], left=0))
    assert ended.value.message.exit_code == EXIT_INTERNAL
    assert "self-test" in ended.value.message.reason
