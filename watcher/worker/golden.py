"""The golden self-test: a warm engine fills one known picture before it is trusted with anybody's.

Rules of this module:
- The picture is made here, the same on every machine: a slow gradient under a fine texture, grain, and a
  round hole that is blanked with a colour that is nowhere else in it.
- It goes through `Engine.fill`, the call that users' crops go through, and is larger than what engines warm
  up on.
- The test asks whether the engine works, not whether it is good. What it refuses no working model gives,
  whatever its weights: no result, another shape or type, one flat colour in a textured place, black, white,
  or the blank itself. A model of random weights passes.
- A failure is never a user's picture's doing: the process ends before it is ready, and that counts as a crash
  at its start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from watcher.worker.engines.protocol import Crop, DeviceLostError, FillError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Engine

SIDE_PX: Final = 96
_HOLE_RADIUS_PX: Final = 12
_SEED: Final = 4
_BLANK: Final = (255, 0, 255)
_LOWEST, _HIGHEST = 16, 240
"""The picture's values lie in 64..192; a fill may leave that, but not go to black, white or the blank."""
_PLAUSIBLE_SHARE: Final = 0.5


class GoldenTestError(RuntimeError):
    """The engine did not fill the golden picture as a working one does."""


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """How much the warm engine filled, as it measures work itself, and how long it took."""

    work_px: int
    spent_ns: int


def run_golden_test(engine: Engine) -> GoldenResult:
    """Fill the golden picture and judge the fill.

    Raises:
        GoldenTestError: the engine failed, or what came back is no fill.
        DeviceLostError: the device's state is broken until this process ends.
    """
    crop = golden_crop()
    work_px = engine.work_px(crop)
    started_ns = time.monotonic_ns()
    try:
        results = engine.fill([crop])
    except DeviceLostError:
        raise
    except FillError as error:
        raise GoldenTestError(f"the engine could not fill the golden picture: {error}") from error
    spent_ns = time.monotonic_ns() - started_ns
    if len(results) != 1:
        raise GoldenTestError(f"one golden picture went in and {len(results)} came out")
    _judge(results[0], crop)
    return GoldenResult(work_px=work_px, spent_ns=spent_ns)


def golden_crop() -> Crop:
    """Make the picture; it is the same each time."""
    y, x = np.mgrid[0:SIDE_PX, 0:SIDE_PX]
    texture = 30 * np.sin(x / 5) * np.cos(y / 7)
    colours = np.stack([80 + 80 * x / SIDE_PX, 80 + 80 * y / SIDE_PX, 110 + texture], axis=-1)
    colours += np.random.default_rng(_SEED).normal(0, 6, colours.shape)
    pixels = np.clip(colours, 64, 192).astype(np.uint8)
    middle = SIDE_PX // 2
    hole = (x - middle) ** 2 + (y - middle) ** 2 < _HOLE_RADIUS_PX**2
    pixels[hole] = _BLANK
    return Crop(pixels=pixels, hole=hole)


def _judge(result: NDArray[np.uint8], crop: Crop) -> None:
    if result.shape != crop.pixels.shape or result.dtype != np.uint8:
        raise GoldenTestError(
            f"the golden picture of uint8 {crop.pixels.shape} came back as {result.dtype} {result.shape}"
        )
    fill = result[crop.hole]
    if (fill == _BLANK).all():
        raise GoldenTestError("the golden picture came back with its hole as it was")
    if (fill == fill[0]).all():
        raise GoldenTestError(
            f"the golden picture's hole was filled with one colour, {tuple(fill[0].tolist())}"
        )
    plausible = np.count_nonzero((fill >= _LOWEST) & (fill <= _HIGHEST)) / fill.size
    if plausible < _PLAUSIBLE_SHARE:
        raise GoldenTestError(
            f"{1 - plausible:.0%} of the golden picture's fill is black, white or the blank colour"
        )
