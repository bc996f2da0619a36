"""Crops through the engine: halved where the device's memory is short, and no result is believed unseen.

Rules of this module:
- What has been filled is kept; only a part that did not fit is filled again, in two halves, down to one crop.
- One crop that does not fit alone is told by `DeviceMemoryError`: this process cannot serve it.
- After each crop it is told which one begins, so that somebody can tell how long that one may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.engines.protocol import DeviceMemoryError, FillError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop, Engine


def fill_within_memory(
    engine: Engine, crops: Sequence[Crop], told: Callable[[int | None, int], None]
) -> list[NDArray[np.uint8]]:
    """Fill each crop; results are of the crops' order, shapes and type.

    Args:
        engine: warm.
        crops: at least one.
        told: called before each crop but the first, with the index of the one that is over (None: it did
            not fit, and a smaller part begins anew) and the one that begins.

    Raises:
        DeviceMemoryError: one crop alone is too large for the device.
        FillError: the result is not fit to be written.
    """
    results: list[NDArray[np.uint8]] = []
    parts = [range(len(crops))]
    while parts:
        part = parts.pop()
        filled = _fill_part(engine, crops, part, told)
        if filled is not None:
            results += filled
            continue
        middle = part.start + len(part) // 2
        parts += [range(middle, part.stop), range(part.start, middle)]
        told(None, part.start)
    return results


def _fill_part(
    engine: Engine, crops: Sequence[Crop], part: range, told: Callable[[int | None, int], None]
) -> list[NDArray[np.uint8]] | None:
    """Fill some of the crops; None if they do not fit together.

    The error ends here on purpose: its traceback would keep the failed call's tensors while the halves run.
    """

    def progress(index: int) -> None:
        over = part.start + index
        if over + 1 < len(crops):
            told(over, over + 1)

    these = [crops[index] for index in part]
    try:
        results = engine.fill(these, progress=progress)
    except DeviceMemoryError:
        if len(part) == 1:
            raise
        return None
    _check(these, results)
    return results


def _check(crops: Sequence[Crop], results: Sequence[NDArray[np.uint8]]) -> None:
    if len(results) != len(crops):
        raise FillError(f"{len(crops)} crops went in and {len(results)} came out")
    for crop, result in zip(crops, results, strict=True):
        if result.shape != crop.pixels.shape or result.dtype != np.uint8:
            raise FillError(f"a crop of {crop.pixels.shape} came back as {result.dtype} {result.shape}")
