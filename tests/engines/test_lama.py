"""Engine `lama`: the same bytes as SimpleLama, and no way to write what must not be written."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from watcher.worker import devices
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.protocol import (
    Crop,
    DeviceLostError,
    DeviceMemoryError,
    EngineUnavailableError,
    FillError,
)
from watcher.worker.filling import fill_within_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


class NotANumberOnBright(nn.Module):
    """Good on grey pictures, NaN on bright ones."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        broken = torch.full_like(image, float("nan"))
        good = image * (1 - mask) + mask * image.flip(3)
        return torch.where(image.mean() > 0.9, broken, good)


class Black(nn.Module):
    """Fills with black, as a broken half-precision transform does; its warm-up looks good."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return torch.where(image.mean() > 0.7, image * (1 - mask), image)


class White(nn.Module):
    """Fills with plain white."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return image * (1 - mask) + mask


class Always(nn.Module):
    """NaN, always."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return image + mask * float("nan")


class Raises(nn.Module):
    """Raises on pictures wider than 100 px."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        if image.size(3) > 100:
            raise ValueError("too wide for me")
        return image * (1 - mask) + mask * image.flip(3)


class TooSmall(nn.Module):
    """Returns half of pictures wider than 100 px."""

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        result = image * (1 - mask) + mask * image.flip(3)
        return result[:, :, :, :48] if image.size(3) > 100 else result


@pytest.fixture
def engine_of(tmp_path: Path) -> Callable[..., LamaEngine]:
    """Save a module as TorchScript and load it as the engine's weights."""

    def make(module: nn.Module, *, warm: bool = True) -> LamaEngine:
        from watcher.wire import EngineChoice  # noqa: PLC0415 - keeps the fixture in one place

        path = tmp_path / f"{type(module).__name__}.pt"
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning
            )
            torch.jit.script(module).save(str(path))  # type: ignore[no-untyped-call] # torch's
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        engine = LamaEngine(EngineChoice(weights_path=str(path), weights_sha256=sha256, device="cpu"))
        engine.load()
        if warm:
            engine.warm_up()
        return engine

    return make


def loaded(choice: Any) -> LamaEngine:
    engine = LamaEngine(choice)
    engine.load()
    engine.warm_up()
    return engine


def flat_crop(value: int, *, side: int = 128) -> Crop:
    hole = np.zeros((side, side), dtype=np.bool_)
    hole[40:80, 40:80] = True
    return Crop(pixels=np.full((side, side, 3), value, dtype=np.uint8), hole=hole)


@pytest.mark.kind("PD8")
@pytest.mark.parametrize("shape", [(64, 64), (64, 200), (256, 136)])
def test_the_result_is_bit_for_bit_what_simple_lama_gives(
    stand_in: Any,
    noise_crop: Callable[[int, int], Crop],
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int],
) -> None:
    from simple_lama_inpainting import SimpleLama  # noqa: PLC0415 - takes a second, and only here

    crop = noise_crop(*shape)
    (filled,) = loaded(stand_in.choice()).fill([crop])
    monkeypatch.setenv("LAMA_MODEL", str(stand_in.path))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"`torch\.jit\.load` is deprecated", category=DeprecationWarning
        )
        simple = SimpleLama(torch.device("cpu"))
    direct = np.asarray(simple(crop.pixels, crop.hole.astype(np.uint8) * 255))
    assert np.array_equal(filled, direct)
    assert not np.array_equal(direct, crop.pixels)


@pytest.mark.kind("PB2", "PB3")
def test_the_model_sees_the_crop_and_the_hole_unscaled_and_exactly(
    stand_in: Any, noise_crop: Callable[[int, int], Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, crop = loaded(stand_in.choice()), noise_crop(64, 200)
    seen: list[tuple[NDArray[Any], NDArray[Any]]] = []
    model = engine._simple.model

    def spy(image: Tensor, mask: Tensor) -> Tensor:
        seen.append((image.numpy().copy(), mask.numpy().copy()))
        return model(image, mask)  # type: ignore[no-any-return]

    monkeypatch.setattr(engine._simple, "model", spy)
    engine.fill([crop])
    ((image, mask),) = seen
    assert np.array_equal(image[0], crop.pixels.transpose(2, 0, 1).astype(np.float32) / 255)
    assert np.array_equal(mask[0, 0], crop.hole)


def test_the_environment_is_as_it_was(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os  # noqa: PLC0415 - read where it is checked

    loaded(stand_in.choice())
    assert "LAMA_MODEL" not in os.environ
    monkeypatch.setenv("LAMA_MODEL", "/somewhere/else.pt")
    loaded(stand_in.choice())
    assert os.environ["LAMA_MODEL"] == "/somewhere/else.pt"


def test_lama_model_names_the_weights(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMA_MODEL", str(stand_in.path))
    engine = loaded(stand_in.choice(weights_path=None))
    assert engine.facts().model_sha256 == stand_in.sha256


def test_evidence_of_a_run_on_the_cpu(stand_in: Any) -> None:
    facts = loaded(stand_in.choice(device="auto")).device()
    assert (facts.configured, facts.actual) == ("auto", "cpu")
    assert facts.evidence.parameters == "cpu"
    assert facts.evidence.kernel_time_share == {"cpu": 1.0}
    assert facts.evidence.fallback_ops == ()


@pytest.mark.kind("PB13")
def test_values_that_are_not_numbers_are_never_returned(engine_of: Callable[..., LamaEngine]) -> None:
    engine = engine_of(NotANumberOnBright())
    with pytest.raises(FillError, match="not numbers"):
        engine.fill([flat_crop(250)])
    engine.fill([flat_crop(100)])  # the engine lives on


@pytest.mark.kind("PB13")
def test_weights_that_give_nonsense_at_once_are_refused_at_warm_up(
    engine_of: Callable[..., LamaEngine],
) -> None:
    engine = engine_of(Always(), warm=False)
    with pytest.raises(EngineUnavailableError, match="not numbers") as caught:
        engine.warm_up()
    assert "published weights" in caught.value.remedy


@pytest.mark.kind("PB13")
@pytest.mark.parametrize(
    ("module", "crop", "reason"),
    [(Black, flat_crop(220), "black all over"), (NotANumberOnBright, flat_crop(250), "not numbers")],
    ids=["black", "not numbers"],
)
def test_nonsense_is_asked_for_twice_and_then_refused(
    engine_of: Callable[..., LamaEngine], module: type[nn.Module], crop: Crop, reason: str
) -> None:
    told: list[tuple[int | None, int]] = []
    with pytest.raises(FillError, match=rf"{reason}.*\(twice\)"):
        fill_within_memory(
            engine_of(module()), [flat_crop(100), crop], lambda over, begins: told.append((over, begins))
        )
    assert told[-1] == (None, 1), "the second try is told"


def test_plain_white_on_white_paper_is_a_good_fill(engine_of: Callable[..., LamaEngine]) -> None:
    paper = flat_crop(255)
    paper.pixels[10:20, 10:100] = 0
    engine = engine_of(White(), warm=False)
    (filled,) = fill_within_memory(engine, [paper], lambda _over, _begins: None)
    assert (filled[paper.hole] == 255).all()


def test_a_model_that_raises_fails_these_crops_only(
    engine_of: Callable[..., LamaEngine], noise_crop: Callable[[int, int], Crop]
) -> None:
    engine = engine_of(Raises())
    with pytest.raises(FillError, match="too wide for me"):
        engine.fill([noise_crop(64, 128)])
    engine.fill([noise_crop(64, 64)])


def test_a_result_of_another_size_is_refused(
    engine_of: Callable[..., LamaEngine], noise_crop: Callable[[int, int], Crop]
) -> None:
    with pytest.raises(FillError, match="returned"):
        engine_of(TooSmall()).fill([noise_crop(64, 128)])


@pytest.mark.kind("PB11")
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError], ids=["eager", "inside TorchScript"])
def test_out_of_memory_is_tried_once_more_then_fails_the_crop(
    stand_in: Any,
    noise_crop: Callable[[int, int], Crop],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[RuntimeError],
) -> None:
    engine = loaded(stand_in.choice())
    model, failures = engine._simple.model, [1]

    def short_of_memory(image: Tensor, mask: Tensor) -> Tensor:
        if failures:
            failures.pop()
            raise kind("CUDA out of memory. Tried to allocate 2 GiB")
        return model(image, mask)  # type: ignore[no-any-return]

    monkeypatch.setattr(engine._simple, "model", short_of_memory)
    engine.fill([noise_crop(64, 64)])
    failures.extend([1, 1, 1])
    with pytest.raises(FillError, match="out of memory") as caught:
        engine.fill([noise_crop(64, 64)])
    assert not isinstance(caught.value, (DeviceLostError, DeviceMemoryError)), (
        "there is nowhere to go from the CPU"
    )
    assert failures == [1]


@pytest.mark.kind("PB11")
def test_an_accelerators_memory_that_is_too_small_is_told_as_that(
    stand_in: Any, noise_crop: Callable[[int, int], Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(stand_in.choice())
    assert engine._placement is not None
    monkeypatch.setattr(engine, "_placement", replace(engine._placement, device="cuda:0"))
    tensors: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def short_of_memory(image: Tensor, mask: Tensor) -> Tensor:
        workspace = torch.cat((image, mask), dim=1)
        tensors.append(weakref.ref(workspace))
        raise RuntimeError(f"CUDA out of memory. Tried to allocate 2 GiB besides {workspace.shape}")

    def free_memory(device: str) -> None:
        assert device == "cuda:0"
        alive.extend(tensor() is not None for tensor in tensors)

    monkeypatch.setattr(engine._simple, "model", short_of_memory)
    monkeypatch.setattr(devices, "free_memory", free_memory)
    with pytest.raises(DeviceMemoryError, match="cuda:0"):
        engine.fill([noise_crop(64, 64)])
    assert len(tensors) == 2
    assert alive == [False], "what the first try held is free before the cache is emptied"


def test_a_sticky_device_error_says_that_the_process_must_end(
    stand_in: Any, noise_crop: Callable[[int, int], Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(stand_in.choice())

    def broken(image: Tensor, mask: Tensor) -> Tensor:
        raise RuntimeError(f"CUDA error: an illegal memory access was encountered {image.shape} {mask.shape}")

    monkeypatch.setattr(engine._simple, "model", broken)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        engine.fill([noise_crop(64, 64)])


@pytest.mark.kind("PD8")
@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        ("torch", "pip install 'torch>=2.6'"),
        ("simple_lama_inpainting", "--no-deps simple-lama-inpainting==0.1.2"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, package: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineUnavailableError, match="is not installed") as caught:
        LamaEngine(stand_in.choice()).load()
    assert remedy in caught.value.remedy


def test_a_file_with_the_right_hash_that_is_no_torchscript(tmp_path: Path, stand_in: Any) -> None:
    path = tmp_path / "not.pt"
    path.write_bytes(b"PK\x03\x04 but no archive" * 10)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    engine = LamaEngine(stand_in.choice(weights_path=str(path), weights_sha256=sha256))
    with pytest.raises(EngineUnavailableError, match="torch cannot load"):
        engine.load()
    assert engine.model_loads == 0


@pytest.mark.kind("PD1")
def test_a_file_swapped_between_its_check_and_its_load_is_refused(
    stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(stand_in.path.read_bytes())
    original = torch.jit.load

    def swap_then_load(*args: Any, **kwargs: Any) -> Any:
        (tmp_path / "other").write_bytes(stand_in.path.read_bytes())
        (tmp_path / "other").replace(path)
        return original(*args, **kwargs)  # type: ignore[no-untyped-call] # torch's

    monkeypatch.setattr(torch.jit, "load", swap_then_load)
    with pytest.raises(EngineUnavailableError, match="changed while it was being loaded"):
        LamaEngine(stand_in.choice(weights_path=str(path))).load()


@pytest.mark.kind("PD10", "PD12")
def test_threads_and_determinism_are_set_before_the_first_call(stand_in: Any) -> None:
    """In a process of its own: both settings hold for the whole process."""
    code = (
        "import os, sys; from watcher.wire import EngineChoice;"
        "from watcher.worker.engines.lama import LamaEngine;"
        "engine = LamaEngine(EngineChoice(weights_path=sys.argv[1], weights_sha256=sys.argv[2], threads=1,"
        " deterministic=True, device='cpu')); engine.load(); engine.warm_up(); import torch;"
        "print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),"
        " os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'], os.environ['LRU_CACHE_CAPACITY'],"
        " 'torch._dynamo' in sys.modules, 'torchvision' in sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(stand_in.path), stand_in.sha256]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.stderr == ""
    # the evidence must not cost the import of torch's compiler (1.2 s at each start)
    assert run.stdout.split() == ["1", "True", "64", "64", "False", "False"]
