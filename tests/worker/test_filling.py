"""Device memory: crops that do not fit together are halved; one that does not fit alone ends the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import Bench, FlatEngine, photo, rectangle, save_mask
from watcher.wire import ItemDone, ItemFailed, ItemProgressed
from watcher.worker.engines.protocol import Crop, DeviceMemoryError, FillError, NonsenseFillError
from watcher.worker.filling import fill_within_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass
class SmallDevice(FlatEngine):
    """Holds so many crops at a time, and fails in the middle of a call with more; adds one to every value."""

    capacity: int = 1
    calls: list[int] = field(default_factory=list)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        self.calls.append(len(crops))
        results = []
        for index, crop in enumerate(crops):
            if index == self.capacity:
                raise DeviceMemoryError("full")
            results.append(crop.pixels + np.uint8(1))
            if progress is not None:
                progress(index)
        return results


def crops(count: int) -> list[Crop]:
    return [
        Crop(np.full((64, 64 + 8 * number, 3), number, np.uint8), np.zeros((64, 64 + 8 * number), np.bool_))
        for number in range(count)
    ]


@pytest.mark.kind("PB11")
@pytest.mark.parametrize(
    ("capacity", "calls"),
    [(9, [5]), (4, [5, 2, 3]), (2, [5, 2, 3, 1, 2]), (1, [5, 2, 1, 1, 3, 1, 2, 1, 1])],
)
def test_what_does_not_fit_is_halved_and_the_order_stays(capacity: int, calls: list[int]) -> None:
    engine = SmallDevice(capacity=capacity)
    told: list[tuple[int | None, int]] = []
    results = fill_within_memory(engine, crops(5), lambda over, begins: told.append((over, begins)))
    assert [int(result[0, 0, 0]) for result in results] == [1, 2, 3, 4, 5]
    assert engine.calls == calls
    assert {over for over, _ in told} >= {0, 1, 2, 3}
    assert all(begins == over + 1 for over, begins in told if over is not None)
    again = [begins for over, begins in told if over is None]
    assert len(again) == len(calls) // 2, "each call in vain is told"


@pytest.mark.kind("PB11")
def test_one_crop_that_does_not_fit_is_told_as_that() -> None:
    engine = SmallDevice(capacity=0)
    with pytest.raises(DeviceMemoryError):
        fill_within_memory(engine, crops(4), lambda _over, _begins: None)
    assert engine.calls == [4, 2, 1]


def test_other_failures_are_not_tried_again() -> None:
    with pytest.raises(FillError, match="broken"):
        fill_within_memory(FlatEngine(error=FillError("broken")), crops(4), lambda _over, _begins: None)


@pytest.mark.kind("PB13")
@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([], "1 crops went in and 0 came out"),
        ([np.zeros((64, 56, 3), np.uint8)], "came back as uint8"),
        ([np.zeros((64, 64, 3), np.float32)], "came back as float32"),
    ],
)
def test_what_is_no_fill_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, results: list[NDArray[np.uint8]], reason: str
) -> None:
    engine = FlatEngine()
    monkeypatch.setattr(engine, "fill", lambda _crops, progress: [] if progress is None else results)
    with pytest.raises(FillError, match=reason):
        fill_within_memory(engine, crops(1), lambda _over, _begins: None)


# --- nonsense ----------------------------------------------------------------------------------------------


@dataclass
class Doubtful(FlatEngine):
    """Good, but for some crops: those it gives in black, or raises when they are alone, so many times.

    Crops are told apart by their width. Together with others nobody knows which of them it raises for.
    """

    bad: dict[int, int] = field(default_factory=dict)
    says_so: bool = False
    capacity: int = 99
    asked: list[list[int]] = field(default_factory=list)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        self.asked.append([crop.hole.shape[1] for crop in crops])
        if len(crops) > self.capacity:
            raise DeviceMemoryError("full")
        results = []
        for index, crop in enumerate(crops):
            results.append(self._fill_one(crop))
            if progress is not None:
                progress(index)
        return results

    def _fill_one(self, crop: Crop) -> NDArray[np.uint8]:
        width = crop.hole.shape[1]
        if not self.bad.get(width):
            return crop.pixels.copy()
        self.bad[width] -= not self.says_so or len(self.asked[-1]) == 1
        if self.says_so:
            raise NonsenseFillError("no numbers")
        return np.zeros_like(crop.pixels)


def bright_crops(count: int) -> list[Crop]:
    made = []
    for number in range(count):
        hole = np.zeros((64, 64 + 8 * number), np.bool_)
        hole[20:40, 20:40] = True
        pixels = np.random.default_rng(number).integers(120, 250, (*hole.shape, 3), np.uint8)
        made.append(Crop(pixels, hole))
    return made


@pytest.mark.kind("PB13")
@pytest.mark.parametrize("says_so", [False, True], ids=["seen", "said"])
@pytest.mark.parametrize("bad", [[0], [3], [1, 2], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("capacity", [99, 1])
def test_nonsense_is_asked_for_again_alone_and_the_rest_is_kept(
    bad: list[int], capacity: int, *, says_so: bool
) -> None:
    asked = bright_crops(4)
    widths = [crop.hole.shape[1] for crop in asked]
    engine = Doubtful(bad={widths[index]: 1 for index in bad}, says_so=says_so, capacity=capacity)
    told: list[tuple[int | None, int]] = []
    results = fill_within_memory(engine, asked, lambda over, begins: told.append((over, begins)))
    for crop, result in zip(asked, results, strict=True):
        assert np.array_equal(result, crop.pixels)
    assert not any(engine.bad.values())
    assert engine.asked[-len(bad) :] == [[widths[index]] for index in bad], "each once more, alone"
    assert [begins for over, begins in told if over is None][-len(bad) :] == bad
    assert len(engine.asked) <= 7 + len(bad)


@pytest.mark.kind("PB13")
@pytest.mark.parametrize(("says_so", "reason"), [(False, "black all over"), (True, "no numbers")])
def test_nonsense_that_stays_is_a_failure_with_its_reason(reason: str, *, says_so: bool) -> None:
    engine = Doubtful(bad={72: 99}, says_so=says_so)
    with pytest.raises(FillError, match=rf"{reason}.*\(twice\)"):
        fill_within_memory(engine, bright_crops(3), lambda _over, _begins: None)
    assert engine.asked[-1] == [72]


def test_each_crop_is_told_before_it_begins_whatever_was_nonsense() -> None:
    """Somebody waits for each crop as long as that one may take."""
    asked = bright_crops(4)
    begun: list[int] = [0]
    order: list[int] = []

    class Watched(Doubtful):
        def _fill_one(self, crop: Crop) -> NDArray[np.uint8]:
            number = (crop.hole.shape[1] - 64) // 8
            order.append(number)
            assert begun[-1] == number, "it begins unannounced"
            return super()._fill_one(crop)

    engine = Watched(bad={72: 1, 88: 1}, says_so=True)
    fill_within_memory(engine, asked, lambda _over, begins: begun.append(begins))
    assert set(order) == {0, 1, 2, 3}
    assert order[-2:] == [1, 3]


def put(bench: Bench) -> tuple[Path, Path]:
    source = bench.folder / "picture.png"
    Image.fromarray(photo(900, 300)).save(source)
    mask = rectangle(900, 300, (40, 40, 70, 70)) | rectangle(900, 300, (800, 200, 840, 240))
    return source, save_mask(bench.folder / "picture.png.mask.png", mask)


@pytest.mark.kind("PB11")
def test_a_picture_of_several_crops_is_served_on_a_small_device(bench: Bench) -> None:
    bench.engine = engine = SmallDevice(capacity=1)
    done, _ = bench.done(*put(bench))
    assert isinstance(done, ItemDone)
    assert engine.calls == [2, 1, 1]
    told = [report for report in bench.reports if isinstance(report, ItemProgressed)]
    assert [report.crop for report in told if report.phase == "inference"] == [0, None, 0, 1]
    assert (
        sum(report.spent_ns for report in told if report.phase == "inference") == done.segments.inference_ns
    )


@pytest.mark.kind("PB11")
def test_a_crop_that_never_fits_is_reported_before_the_process_ends(bench: Bench) -> None:
    bench.engine = SmallDevice(capacity=0)
    with pytest.raises(DeviceMemoryError):
        bench.serve(*put(bench))
    failed = bench.reports[-1]
    assert isinstance(failed, ItemFailed)
    assert failed.code == "device_memory"
    assert "CPU" in failed.remedy
