"""Crops through the engine: halved where the device's memory is short, and no result is believed unseen.

Rules of this module:
- What has been filled is kept; only a part that did not fit is filled again, in two halves, down to one crop.
- One crop that does not fit alone is told by `DeviceMemoryError`: this process cannot serve it.
- A crop whose fill is nonsense is asked for once more, alone; nonsense twice fails. It is never handed on.
- Before each crop it is told which one begins, so that somebody can tell how long that one may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.engines.protocol import DeviceMemoryError, FillError, NonsenseFillError
from watcher.worker.plausibility import nonsense_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop, Engine

    Told = Callable[[int | None, int], None]
    Judge = Callable[[NDArray[np.uint8], Crop], str | None]


def fill_within_memory(
    engine: Engine, crops: Sequence[Crop], told: Told, judge: Judge = nonsense_in
) -> list[NDArray[np.uint8]]:
    """Fill each crop; results are of the crops' order, shapes and type.

    Args:
        engine: warm.
        crops: at least one.
        told: called before each crop but the first, with the index of the one that is over (None: what was
            done last is to be done anew) and the one that begins.
        judge: says why a fill is nonsense, or nothing.

    Raises:
        DeviceMemoryError: one crop alone is too large for the device.
        FillError: the result is not fit to be written.
    """
    filling = _Filling(engine, crops, told, judge)
    filling.fill_all()
    filling.ask_again()
    return filling.results()


class _Filling:
    """What has come of some crops so far."""

    def __init__(self, engine: Engine, crops: Sequence[Crop], told: Told, judge: Judge) -> None:
        self._engine = engine
        self._crops = crops
        self._told = told
        self._judge = judge
        self._filled: dict[int, NDArray[np.uint8]] = {}
        self._doubted: dict[int, str] = {}

    def results(self) -> list[NDArray[np.uint8]]:
        return [self._filled[index] for index in range(len(self._crops))]

    def fill_all(self) -> None:
        parts = [range(len(self._crops))]
        while parts:
            part = parts.pop()
            if self._fill(part):
                continue
            middle = part.start + len(part) // 2
            parts += [range(middle, part.stop), range(part.start, middle)]
            self._told(None, part.start)

    def ask_again(self) -> None:
        for index, reason in self._doubted.items():
            self._told(None, index)
            crop = self._crops[index]
            try:
                results = self._engine.fill([crop])
            except NonsenseFillError as error:
                raise FillError(_twice(reason, str(error))) from error
            _check([crop], results)
            still = self._judge(results[0], crop)
            if still is not None:
                raise FillError(_twice(reason, still))
            self._filled[index] = results[0]

    def _fill(self, part: range) -> bool:
        """Fill some of the crops; False if they are to be tried in smaller parts.

        Errors end here on purpose: a traceback would keep the failed call's tensors while the halves run.
        """

        def progress(done: int) -> None:
            over = part.start + done
            if over + 1 < len(self._crops):
                self._told(over, over + 1)

        these = [self._crops[index] for index in part]
        try:
            results = self._engine.fill(these, progress=progress)
        except DeviceMemoryError:
            if len(part) == 1:
                raise
            return False
        except NonsenseFillError as error:
            if len(part) > 1:
                return False  # it does not say which one it was
            self._doubted[part.start] = str(error)
            progress(0)
            return True
        _check(these, results)
        for index, result in zip(part, results, strict=True):
            reason = self._judge(result, self._crops[index])
            if reason is None:
                self._filled[index] = result
            else:
                self._doubted[index] = reason
        return True


def _twice(first: str, second: str) -> str:
    return f"{first} (twice)" if first == second else f"{first}; asked once more: {second}"


def _check(crops: Sequence[Crop], results: Sequence[NDArray[np.uint8]]) -> None:
    if len(results) != len(crops):
        raise FillError(f"{len(crops)} crops went in and {len(results)} came out")
    for crop, result in zip(crops, results, strict=True):
        if result.shape != crop.pixels.shape or result.dtype != np.uint8:
            raise FillError(f"a crop of {crop.pixels.shape} came back as {result.dtype} {result.shape}")
