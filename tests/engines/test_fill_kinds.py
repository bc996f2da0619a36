"""What others met with a model behind the fill (kinds PB): its first calls, its memory, its device, nonsense.

Rules of this file:
- What is told of a model is told of engine `lama` and of a TorchScript archive that it loaded, as it loads
  the published one. Where pictures are served, they go through the worker's front door.
- What holds for a whole process is looked at in one of its own.
- There is no accelerator here: one is named that is the CPU, and its errors are raised as torch raises them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.worker.bench import Bench, photo, rectangle, save_mask
from watcher.wire import EngineChoice, ItemDone, ItemFailed
from watcher.worker import devices
from watcher.worker.engines.auto import AutoEngine
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.protocol import DeviceMemoryError
from watcher.worker.imaging.crops import plan_crops

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop, Engine

ROOT = Path(__file__).parents[2]


def started(engine: Engine) -> Any:
    engine.load()
    engine.warm_up()
    return engine


@pytest.fixture(scope="module")
def ready(stand_in: Any) -> LamaEngine:
    """The engine on the CPU, for tests that put back what they change of it."""
    engine: LamaEngine = started(LamaEngine(stand_in.choice()))
    return engine


def served_by(engine: Any, tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.engine = engine
    return bench


def put(
    bench: Bench, pixels: NDArray[np.uint8], name: str, *boxes: tuple[int, int, int, int]
) -> tuple[Path, Path]:
    height, width = pixels.shape[:2]
    mark = np.zeros((height, width), np.bool_)
    for box in boxes:
        mark |= rectangle(width, height, box)
    source = bench.folder / name
    Image.fromarray(pixels).save(source)
    return source, save_mask(bench.folder / f"{name}.mask.png", mark)


def staged_names(bench: Bench) -> list[str]:
    return [path.name for path in (bench.folder / "staging").iterdir()]


# --- the first calls ---------------------------------------------------------------------------------------


def executed() -> str:
    """The graph that TorchScript ran last in this thread, as it was when it ran."""
    return str(torch.jit.last_executed_optimized_graph())  # type: ignore[attr-defined] # torch's


@pytest.mark.kind("PB9")
def test_no_call_is_spent_on_watching_and_compiling(
    stand_in: Any, noise_crop: Callable[[int, int], Crop]
) -> None:
    """TorchScript's first call notes shapes, its second compiles for them; what it ran tells which."""
    engine = LamaEngine(stand_in.choice())
    engine.load()
    ran = []
    for shape in ((64, 64), (64, 64), (64, 64), (96, 128), (96, 128)):
        engine.fill([noise_crop(*shape)])
        ran.append(executed())
    assert set(ran) == {ran[0]}, "the very first call ran what all later ones run"
    assert "prim::profile" not in ran[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.load(str(stand_in.path))  # type: ignore[no-untyped-call] # torch's
    image, mask = torch.rand(1, 3, 64, 64), torch.zeros(1, 1, 64, 64, dtype=torch.int64)
    by_itself = []
    with torch.inference_mode():
        for _ in range(2):
            script(image, mask)
            by_itself.append(executed())
    assert "prim::profile" in by_itself[0], "by itself it does, and that is seen"
    assert by_itself[1] != by_itself[0]


# --- memory ------------------------------------------------------------------------------------------------

MANY_SHAPES = """
import os, sys

seen = {}

def note(event, arguments):
    if event == "import" and arguments[0] == "torch" and not seen:
        seen.update({name: os.environ.get(name) for name in CACHES})

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
sys.addaudithook(note)

import json, random
import numpy as np
import psutil
from watcher.wire import EngineChoice
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.protocol import Crop

weights, sha256, sides = sys.argv[1], sys.argv[2], int(sys.argv[3])
assert "torch" not in sys.modules
engine = LamaEngine(EngineChoice(weights_path=weights, weights_sha256=sha256, device="cpu", threads=1))
engine.load()
engine.warm_up()
shapes = [(64 + 8 * row, 64 + 8 * column) for row in range(sides) for column in range(sides)]
random.Random(0).shuffle(shapes)
resident_bytes = []
for height, width in shapes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    hole = np.zeros((height, width), np.bool_)
    hole[height // 3 : height // 2, width // 3 : width // 2] = True
    engine.fill([Crop(pixels, hole)])
    resident_bytes.append(psutil.Process().memory_info().rss)
print(json.dumps({"before_torch": seen, "resident_bytes": resident_bytes}))
"""
SIDES = 14
FEW_SHAPES = 60
"""After so many shapes, of all sizes, a process has the working memory for every one of them."""
GROWTH_LIMIT_BYTES = 18_000_000
"""Over the other 136 shapes. Measured on torch 2.13: 5 to 8 MB, and 40 to 42 MB with torch's own caches."""


class ManyShapes(NamedTuple):
    """A process that filled 196 crops, no two of one shape."""

    before_torch: dict[str, str | None]
    """The sizes of caches in its environment, when it came to import torch."""
    growth_bytes: int
    """Of its resident memory, since it had filled a few."""


def fill_many_shapes(stand_in: Any, **environment: str) -> ManyShapes:
    kept = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    ran = subprocess.run(
        [sys.executable, "-c", MANY_SHAPES, str(stand_in.path), stand_in.sha256, str(SIDES)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
    )
    told = json.loads(ran.stdout)
    resident_bytes = told["resident_bytes"]
    assert len(resident_bytes) == SIDES**2
    return ManyShapes(told["before_torch"], resident_bytes[-1] - resident_bytes[FEW_SHAPES])


@pytest.mark.kind("PB10")
def test_memory_does_not_grow_with_each_new_shape(stand_in: Any) -> None:
    many = fill_many_shapes(stand_in)
    assert many.before_torch == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
    assert many.growth_bytes < GROWTH_LIMIT_BYTES


@pytest.mark.soak
@pytest.mark.kind("PB10")
def test_memory_would_grow_with_torchs_own_caches_and_whoever_sets_them_is_heard(stand_in: Any) -> None:
    large = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"}
    many = fill_many_shapes(stand_in, **large)
    assert many.before_torch == large
    assert many.growth_bytes > GROWTH_LIMIT_BYTES


@pytest.mark.kind("PB10")
def test_200_sizes_of_holes_are_few_shapes_of_crops() -> None:
    shapes = set()
    for side in range(1, 201):
        (plan,) = plan_crops(rectangle(900, 900, (333, 333, 333 + side, 333 + side)), crop_pixels=1 << 20)
        shapes.add((plan.height, plan.width))
    assert all(height % 8 == width % 8 == 0 for height, width in shapes)
    assert len(shapes) <= 80


@dataclass
class SmallMemory:
    """A model on a device that has room for crops of so many pixels."""

    model: Any
    most_px: int
    refused_px: list[int] = field(default_factory=list)

    def __call__(self, image: Tensor, mask: Tensor) -> Tensor:
        pixels = image.shape[2] * image.shape[3]
        if pixels > self.most_px:
            self.refused_px.append(pixels)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")
        return self.model(image, mask)  # type: ignore[no-any-return] # the stand-in's own


@dataclass
class Rig:
    """Engine `lama` on such a device, and what was given back to it."""

    bench: Bench
    memory: SmallMemory
    freed: list[str]


@pytest.fixture
def rig(
    ready: LamaEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Rig:
    assert ready._placement is not None
    memory = SmallMemory(ready._simple.model, most_px=40_000)
    freed: list[str] = []
    monkeypatch.setattr(ready._simple, "model", memory)
    monkeypatch.setattr(ready, "_placement", replace(ready._placement, device=request.param))
    monkeypatch.setattr(devices, "free_memory", freed.append)
    return Rig(served_by(ready, tmp_path), memory, freed)


TWO_SMALL = ((30, 30, 50, 50), (800, 250, 820, 270))
ONE_LARGE = ((100, 60, 400, 220),)


@pytest.mark.kind("PB11")
@pytest.mark.parametrize("rig", ["cuda:0"], indirect=True)
def test_what_an_accelerator_has_no_room_for_goes_to_the_cpu_and_the_rest_stays(rig: Rig) -> None:
    done, _ = rig.bench.done(*put(rig.bench, photo(900, 300), "small.png", *TWO_SMALL))
    assert done.image.crops == 2
    assert rig.memory.refused_px == [], "a picture is not the model's as a whole"
    large = put(rig.bench, photo(900, 300), "large.png", *ONE_LARGE)

    with pytest.raises(DeviceMemoryError):  # which ends this process: another one serves it, on the CPU
        rig.bench.serve(*large)

    failed = rig.bench.reports[-1]
    assert isinstance(failed, ItemFailed)
    assert (failed.code, "on the CPU" in failed.remedy) == ("device_memory", True)
    assert rig.freed[:1] == ["cuda:0"], "what was kept for later calls was given back first"
    assert len(rig.memory.refused_px) >= 2, "and it was tried again with it"
    assert staged_names(rig.bench) == ["small.png.staged"]


@pytest.mark.kind("PB11")
@pytest.mark.parametrize("rig", ["cpu"], indirect=True)
def test_what_the_cpu_has_no_room_for_fails_by_itself(rig: Rig) -> None:
    failed = rig.bench.serve(*put(rig.bench, photo(900, 300), "large.png", *ONE_LARGE))
    assert isinstance(failed, ItemFailed)
    assert (failed.code, "out of memory" in failed.reason) == ("engine", True)
    assert failed.remedy

    assert isinstance(rig.bench.serve(*put(rig.bench, photo(900, 300), "small.png", *TWO_SMALL)), ItemDone)
    assert staged_names(rig.bench) == ["small.png.staged"]


# --- nonsense ----------------------------------------------------------------------------------------------


class OnBright(nn.Module):
    """Fills with what lies across; on bright pictures, with one value, as a transform of few bits does."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        fill = image.flip(3) if image.mean() < 0.7 else torch.full_like(image, self.value)
        return image * (1 - mask) + torch.where(mask.expand_as(image) > 0, fill, image * 0)


def archive_of(module: nn.Module, path: Path) -> EngineChoice:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning
        )
        torch.jit.script(module).save(str(path))  # type: ignore[no-untyped-call] # torch's
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return EngineChoice(name="lama", weights_path=str(path), weights_sha256=sha256, device="cpu")


@pytest.mark.kind("PB13")
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 0.0], ids=["nan", "inf", "-inf", "black"]
)
@pytest.mark.parametrize("engine_class", [LamaEngine, AutoEngine])
def test_a_result_that_is_no_picture_is_never_written(
    tmp_path: Path, engine_class: type[LamaEngine | AutoEngine], value: float
) -> None:
    bench = served_by(started(engine_class(archive_of(OnBright(value), tmp_path / "w.pt"))), tmp_path)
    dim = np.clip(photo(200, 150), 0, 180)
    bright = dim // 4 + np.uint8(205)

    failed = bench.serve(*put(bench, bright, "bright.png", (60, 40, 110, 90)))

    assert isinstance(failed, ItemFailed)
    assert failed.code == "engine"
    assert ("black all over" if value == 0 else "not numbers") in failed.reason
    assert "twice" in failed.reason
    assert failed.remedy
    assert not staged_names(bench)
    bench.done(*put(bench, dim, "dim.png", (60, 40, 110, 90)))


@pytest.mark.kind("PB13")
def test_the_model_computes_in_32_bits(
    ready: LamaEngine, noise_crop: Callable[[int, int], Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourier transforms of 16 bits overflow, and take sides that are powers of two only."""
    model, seen = ready._simple.model, []

    def spy(image: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = model(image, mask)
        seen.append((image.dtype, result.dtype, torch.is_autocast_enabled("cpu")))
        return result

    monkeypatch.setattr(ready._simple, "model", spy)
    ready.fill([noise_crop(72, 200)])
    assert seen == [(torch.float32, torch.float32, False)]
    weights = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    assert weights == {torch.float32}


# --- devices that compute wrongly --------------------------------------------------------------------------


@dataclass
class Machine:
    """Accelerators, best first, and by how much each one's self-test is off."""

    errors: dict[str, float]

    def available(self) -> tuple[str, ...]:
        return tuple(self.errors)

    def self_test_error(self, device: str) -> float:
        return self.errors[device]

    def notes(self) -> tuple[str, ...]:
        return ()


@pytest.mark.kind("PB14")
@pytest.mark.parametrize(
    ("errors", "device"),
    [
        ({"cuda:0": 1e-4, "mps": 1e-4}, "cuda:0"),
        ({"cuda:0": 0.5, "mps": 1e-4}, "mps"),
        ({"cuda:0": 0.5, "mps": 0.5}, "cpu"),
        ({"mps": 0.009}, "mps"),
        ({"mps": 0.011}, "cpu"),
        ({"mps": float("inf")}, "cpu"),
        ({"mps": float("nan")}, "cpu"),
        ({}, "cpu"),
    ],
)
def test_what_is_best_is_taken_and_what_is_off_is_passed_over(errors: dict[str, float], device: str) -> None:
    placement = devices.place("auto", Machine(errors))
    assert placement.device == device
    off = [name for name in errors if list(errors).index(name) < [*errors, "cpu"].index(device)]
    assert (placement.reason is None) == (not off)
    assert all(f"{name} computes wrongly" in str(placement.reason) for name in off)


@pytest.mark.kind("PB14")
def test_a_device_whose_transform_is_off_gets_no_picture_and_the_record_says_so(
    stand_in: Any, ready: LamaEngine, tmp_path: Path
) -> None:
    off = LamaEngine(stand_in.choice(device="auto"), accelerators=Machine({"mps": 3.0}))
    engines = {"off": started(off), "plain": ready}
    results, reports = [], []
    for name, engine in engines.items():
        (tmp_path / name).mkdir()
        bench = served_by(engine, tmp_path / name)
        done, staged = bench.done(*put(bench, photo(120, 90), "a.png", (40, 30, 70, 60)))
        results.append(staged.read_bytes())
        reports.append(done.device)
    assert results[0] == results[1]
    device, plain = reports
    assert device.actual == device.evidence.parameters == device.evidence.output == "cpu"
    assert (device.configured, device.available) == ("auto", ("mps", "cpu"))
    assert device.reason is not None
    assert "mps computes wrongly" in device.reason
    assert plain.reason is None
