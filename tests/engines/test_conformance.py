"""What every engine must do, whatever it is made of. A new engine is one more line in `ENGINES`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from watcher.wire import EngineChoice
from watcher.worker.engines.protocol import EngineUnavailableError
from watcher.worker.engines.registry import ENGINE_NAMES, build_engine
from watcher.worker.golden import golden_crop, run_golden_test

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.worker.engines.protocol import Crop, Engine

ENGINES = ("patchmatch", "lama", "auto with weights", "auto without weights")
SHAPES = [(64, 64), (64, 512), (256, 192), (72, 200), (200, 8), (3, 500), (17, 13), (1, 2), (101, 203)]


def choice_of(kind: str, stand_in: Any) -> EngineChoice:
    if kind == "patchmatch":
        return EngineChoice(name="patchmatch")
    if kind == "auto without weights":
        return EngineChoice(name="auto")
    return stand_in.choice(name=kind.partition(" ")[0])  # type: ignore[no-any-return] # the fixture's own class


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, stand_in: Any) -> Engine:
    built = build_engine(choice_of(request.param, stand_in))
    built.load()
    built.warm_up()
    return built


@pytest.mark.kind("PA1", "PA4")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_the_result_has_the_crops_shape_and_the_hole_is_changed(
    engine: Engine, noise_crop: Callable[[int, int], Crop], shape: tuple[int, int]
) -> None:
    crop = noise_crop(*shape)
    (filled,) = engine.fill([crop])
    assert filled.shape == crop.pixels.shape
    assert filled.dtype == np.uint8
    assert (filled[crop.hole] != crop.pixels[crop.hole]).any()


@pytest.mark.kind("PA16")
def test_the_arrays_of_the_caller_stay_as_they_are(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    crop = noise_crop(96, 64)
    pixels, hole = crop.pixels.copy(), crop.hole.copy()
    (filled,) = engine.fill([crop])
    filled[:] = 7
    assert np.array_equal(crop.pixels, pixels)
    assert np.array_equal(crop.hole, hole)


def test_read_only_and_strided_crops_are_served(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    crop = noise_crop(64, 128)
    view = type(crop)(pixels=crop.pixels[:, ::2], hole=crop.hole[:, ::2])
    view.pixels.flags.writeable = view.hole.flags.writeable = False
    copy = type(crop)(pixels=view.pixels.copy(), hole=view.hole.copy())
    of_view, of_copy = engine.fill([view, copy])
    assert np.array_equal(of_view, of_copy)


def test_the_same_crop_gives_the_same_bytes_whatever_ran_before(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    crop, other = noise_crop(128, 128), noise_crop(72, 104)
    first, _, second = engine.fill([crop, other, crop])
    assert np.array_equal(first, second)


def test_results_come_in_order_and_each_is_reported(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    crops = [noise_crop(64, 64), noise_crop(80, 64), noise_crop(64, 88)]
    seen: list[int] = []
    results = engine.fill(crops, progress=seen.append)
    assert seen == [0, 1, 2]
    assert [result.shape for result in results] == [crop.pixels.shape for crop in crops]
    assert engine.fill([]) == []


class Lazily:
    """Crops that tell when the engine takes them."""

    def __init__(self, crops: list[Crop], log: list[tuple[str, int]]) -> None:
        self._crops = crops
        self._log = log

    def __len__(self) -> int:
        return len(self._crops)

    def __getitem__(self, index: int) -> Crop:
        crop = self._crops[index]
        self._log.append(("taken", index))
        return crop


def test_a_crop_is_reported_before_the_next_one_begins(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    """The service takes an engine for dead that is silent for longer than one crop may take."""
    log: list[tuple[str, int]] = []
    crops: Any = Lazily([noise_crop(64, 64)] * 3, log)
    engine.fill(crops, progress=lambda index: log.append(("told", index)))
    assert log == [(what, index) for index in range(3) for what in ("taken", "told")]


def test_more_to_fill_is_more_work(engine: Engine, noise_crop: Callable[[int, int], Crop]) -> None:
    small, large = noise_crop(64, 64), noise_crop(256, 256)
    assert 0 < 8 * engine.work_px(small) < engine.work_px(large)
    (before,), (after,) = engine.fill([small]), engine.fill([small])
    assert np.array_equal(before, after), "the question changes nothing"


def test_a_working_engine_passes_the_golden_self_test(engine: Engine) -> None:
    result = run_golden_test(engine)
    assert result.work_px == engine.work_px(golden_crop()) > 0
    assert result.spent_ns > 0


def test_what_lies_under_the_hole_does_not_matter(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    crop = noise_crop(128, 96)
    results = []
    for colour in (0, 90, 255):
        pixels = crop.pixels.copy()
        pixels[crop.hole] = colour
        results.append(engine.fill([type(crop)(pixels=pixels, hole=crop.hole)])[0][crop.hole])
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_one_model_is_loaded_once_and_the_facts_are_complete(
    engine: Engine, noise_crop: Callable[[int, int], Crop]
) -> None:
    engine.fill([noise_crop(64, 64)] * 3)
    assert engine.model_loads == 1
    facts, device = engine.facts(), engine.device()
    assert facts.configured == engine.name
    assert (facts.model_sha256 is None) == (facts.actual == "patchmatch")
    assert device.actual == "cpu"
    assert "cpu" in device.available
    assert device.evidence.output == "cpu"


@pytest.mark.parametrize("kind", ENGINES)
def test_load_accounts_for_its_time(kind: str, stand_in: Any) -> None:
    engine = build_engine(choice_of(kind, stand_in))
    segments = engine.load()
    assert segments.import_ns > 0
    assert (segments.model_load_ns > 0) == (engine.facts().actual == "lama")


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(EngineUnavailableError, match="no engine named 'patchmach'") as caught:
        build_engine(EngineChoice(name="patchmach"))
    assert "Did you mean 'patchmatch'?" in caught.value.remedy
    assert all(name in caught.value.remedy for name in ENGINE_NAMES)


def test_choosing_an_engine_imports_nothing_heavy() -> None:
    code = (
        "import sys; from watcher.wire import EngineChoice;"
        "from watcher.worker.engines.registry import build_engine;"
        "[build_engine(EngineChoice(name=name)) for name in ('auto', 'lama', 'patchmatch')];"
        "print(sorted({'torch', 'numpy', 'cv2', 'PIL', 'patchmatch'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
