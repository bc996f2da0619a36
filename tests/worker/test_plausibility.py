"""What is never written: a fill that no picture can look like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import FlatEngine, photo, rectangle, save_mask
from watcher.wire import ItemFailed
from watcher.worker.engines.protocol import Crop
from watcher.worker.plausibility import nonsense_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

SIDE = 128
HOLE = rectangle(SIDE, SIDE, (48, 48, 80, 80))
PHOTO = photo(SIDE, SIDE)


def crop(pixels: NDArray[np.uint8], hole: NDArray[np.bool_] = HOLE) -> Crop:
    return Crop(pixels, hole)


def flat(colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    return np.full((SIDE, SIDE, 3), colour, np.uint8)


@pytest.mark.kind("PB13")
@pytest.mark.parametrize(
    ("colour", "word"), [((0, 0, 0), "black"), ((255, 255, 255), "white"), ((255, 0, 255), "one colour")]
)
def test_one_colour_that_is_nowhere_around_is_nonsense(colour: tuple[int, int, int], word: str) -> None:
    reason = nonsense_in(flat(colour), crop(PHOTO))
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (120, 170, 230)])
def test_one_colour_in_a_flat_place_is_right(colour: tuple[int, int, int]) -> None:
    pixels = PHOTO.copy()
    pixels[20:110, 20:110] = colour
    assert nonsense_in(flat(colour), crop(pixels)) is None


def test_a_texture_that_passes_through_a_colour_is_no_flat_place() -> None:
    rough = np.random.default_rng(3).normal(128, 40, (SIDE, SIDE, 1)).clip(0, 255).astype(np.uint8)
    assert nonsense_in(flat((128, 128, 128)), crop(np.repeat(rough, 3, axis=2))) is not None


def test_a_fill_with_anything_in_it_is_the_engines_business() -> None:
    assert nonsense_in(photo(SIDE, SIDE, seed=7), crop(PHOTO)) is None


def test_of_a_speck_one_colour_says_nothing() -> None:
    speck = rectangle(SIDE, SIDE, (60, 60, 67, 67))
    assert nonsense_in(flat((0, 0, 0)), crop(PHOTO, speck)) is None


@dataclass
class Stammering(FlatEngine):
    """Gives nonsense some times before it gives a fill."""

    nonsense: int = 1
    calls: list[int] = field(default_factory=list)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        self.calls.append(len(crops))
        results = super().fill(crops, progress=progress)
        for index, asked in enumerate(crops):
            if len(self.calls) > self.nonsense:
                results[index] = photo(asked.hole.shape[1], asked.hole.shape[0], seed=9)
        return results


def serve(bench: Bench, engine: FlatEngine) -> object:
    source = bench.folder / "a.png"
    Image.fromarray(photo(300, 200)).save(source)
    mask = save_mask(bench.folder / "a.png.mask.png", rectangle(300, 200, (100, 60, 140, 100)))
    bench.engine, bench.judge = engine, nonsense_in
    return bench.serve(source, mask)


@pytest.mark.kind("PB13")
def test_nonsense_is_asked_for_once_more(bench: Bench) -> None:
    engine = Stammering()
    report = serve(bench, engine)
    assert not isinstance(report, ItemFailed)
    assert engine.calls == [1, 1]


@pytest.mark.kind("PB13")
def test_nonsense_twice_fails_with_the_reason_and_nothing_is_staged(bench: Bench) -> None:
    engine = Stammering(nonsense=5, colour=(0, 0, 0))
    report = serve(bench, engine)
    assert isinstance(report, ItemFailed)
    assert report.code == "engine"
    assert "black all over" in report.reason
    assert "twice" in report.reason
    assert engine.calls == [1, 1]
    assert not (bench.folder / "staging" / "a.png.staged").exists()
