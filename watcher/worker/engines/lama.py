"""Engine `lama`: simple-lama-inpainting's SimpleLama on a verified TorchScript file, one crop at a time.

Rules of this file:
- SimpleLama gets the crop and the hole as they are: the result is bit for bit what SimpleLama gives. Its
  model is only wrapped, to look at what comes out before it is rounded to bytes.
- Its downloader never runs: `LAMA_MODEL` is set to the verified file around the constructor, and only there.
- The file is verified before torch is even imported, so a machine without weights learns it in no time.
- TorchScript runs unoptimised. Its profiling executor makes the first two calls slow, and gives nothing
  back: on the stand-in (two x86 cores) 1.0 s and 1.2 s against 0.17 s and 0.13 s for the first two 64 x 64
  calls, 3.6-4.2 s against 3.5-3.6 s for steady 512 x 512 ones, the same bytes. On a GPU this is not measured.
- oneDNN keeps compiled primitives for the shapes it met, 1024 of them, and memory grows with each new size of
  crop. 64 hold the shapes in use: over 40 shapes memory stayed flat within 6 MB (1024: +140 MB and
  rising), and a call cost the same.
- `load` belongs in the main thread: `torch.jit.load` has hung in others.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from watcher.wire import DeviceEvidence, DeviceFacts, EngineFacts
from watcher.worker import devices
from watcher.worker.engines.load_clock import LoadClock
from watcher.worker.engines.protocol import (
    Crop,
    DeviceLostError,
    DeviceMemoryError,
    EngineUnavailableError,
    FillError,
    NonsenseFillError,
)
from watcher.worker.models import store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from watcher.wire import EngineChoice
    from watcher.worker.engines.protocol import LoadSegments

MIN_SIDE_PX = 64
"""LaMa's reflect padding after three halvings fails on sides under 16 px; smaller crops are mirrored."""

_PRIMITIVE_CACHE_SIZE = "64"
_STICKY = ("CUDA error", "device-side assert", "illegal memory access", "unspecified launch failure")

_INSTALL = f"{sys.executable} -m pip install"


class LamaEngine:
    """LaMa by SimpleLama."""

    name = "lama"

    def __init__(
        self,
        choice: EngineChoice,
        *,
        accelerators: devices.Accelerators | None = None,
    ) -> None:
        self._choice = choice
        self._accelerators = accelerators or devices.TorchAccelerators()
        self._clock = LoadClock()
        self._weights: store.VerifiedWeights | None = None
        self._placement: devices.Placement | None = None
        self._simple: Any = None
        self._model: _WatchedModel | None = None
        self._evidence = DeviceEvidence()
        self._model_loads = 0

    @property
    def model_loads(self) -> int:
        """How often a weights file was loaded by this engine."""
        return self._model_loads

    @property
    def spent(self) -> LoadSegments:
        """What `load` took so far, also where it failed."""
        return self._clock.segments()

    def load(self) -> LoadSegments:
        """Find the packages, verify the weights, import torch, choose the device, load.

        Raises:
            EngineUnavailableError: a package or the weights are missing or not what was named.
        """
        with self._clock.measure("import_ns"):
            _require_packages()
        with self._clock.measure("model_read_ns"):
            self._weights = store.locate_verified(self._choice, os.environ)
        with self._clock.measure("import_ns"):
            _import_torch(self._choice)
        with self._clock.measure("device_probe_ns"):
            self._placement = devices.place(self._choice.device, self._accelerators)
        with self._clock.measure("model_load_ns"):
            self._load_weights_somewhere()
        return self._clock.segments()

    def warm_up(self) -> None:
        """Fill a tiny synthetic crop twice; the second pass is the evidence of where the work is done.

        An accelerator that fails here is left for the CPU, which is named in the device's reason.

        Raises:
            EngineUnavailableError: the model gives nonsense on the CPU, too.
        """
        try:
            self._warm_up_once()
        except FillError as error:
            if self._placed().device == devices.CPU:
                raise EngineUnavailableError(
                    f"the model in {self._verified().path} does not work: {error}",
                    "Use the published weights, or a file that was exported the same way.",
                ) from error
            self._move_to_cpu(f"the warm-up on {self._placed().device} failed: {error}")
            self.warm_up()

    def give_way(self, reason: str) -> bool:
        """Leave an accelerator for the CPU; on the CPU nothing is left."""
        if self._placed().device == devices.CPU:
            return False
        self._move_to_cpu(f"the self-test on {self._placed().device} failed: {reason}")
        return True

    def work_px(self, crop: Crop) -> int:
        """Return the crop's pixels: the model does the same with each, hole or not."""
        return max(crop.hole.size, MIN_SIDE_PX**2)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        """Fill each crop by one call of SimpleLama. Contract: `Engine.fill`."""
        results = []
        for index, crop in enumerate(crops):
            results.append(self._fill_one(crop))
            if progress is not None:
                progress(index)
        return results

    def facts(self) -> EngineFacts:
        """Return the engine's two columns and the hash of its weights."""
        return EngineFacts(configured=self.name, actual=self.name, model_sha256=self._verified().sha256)

    def device(self) -> DeviceFacts:
        """Return the device's three columns; `actual` is where the output was seen."""
        placement, output = self._placed(), self._evidence.output
        if self._model is not None and self._model.output_device is not None:
            output = self._model.output_device  # of the call before, not of the warm-up
        return DeviceFacts(
            configured=placement.configured,
            available=placement.available,
            actual=output or placement.device,
            reason=placement.reason,
            evidence=msgspec.structs.replace(self._evidence, output=output),
        )

    def _placed(self) -> devices.Placement:
        if self._placement is None:
            raise RuntimeError("the engine is not loaded")
        return self._placement

    def _verified(self) -> store.VerifiedWeights:
        if self._weights is None:
            raise RuntimeError("the engine is not loaded")
        return self._weights

    def _load_weights_somewhere(self) -> None:
        try:
            self._load_weights()
        except EngineUnavailableError as error:
            if self._placed().device == devices.CPU:
                raise
            self._move_to_cpu(str(error))

    def _move_to_cpu(self, why: str) -> None:
        """Load once more, on the CPU: what an accelerator holds after a failure is not to be trusted."""
        self._placement = replace(self._placed(), device=devices.CPU, reason=f"{why}; runs on cpu")
        self._load_weights()

    def _load_weights(self) -> None:
        import torch
        from simple_lama_inpainting import SimpleLama

        weights, placement = self._verified(), self._placed()
        self._simple = self._model = None  # the memory of a failed load is free before the next one starts
        try:
            with _environment_set(store.ENVIRONMENT_VARIABLE, os.fspath(weights.path)), _quiet_load():
                simple = SimpleLama(torch.device(placement.device))
        except (RuntimeError, OSError, ValueError) as error:
            raise EngineUnavailableError(
                f"torch cannot load {weights.path} on {placement.device}: {_first_line(error)}",
                "If the file is not one of the published ones, it must be a TorchScript archive; "
                "else free some memory, or set `device` under `[engine]` to cpu.",
            ) from error
        self._model_loads += 1
        weights.check_unchanged()
        self._model = _WatchedModel(simple.model)
        simple.model = self._model
        self._simple = simple

    def _warm_up_once(self) -> None:
        crop = _synthetic_crop()
        self._fill_one(crop)
        model, device = self._watched(), self._placed().device
        observed: list[devices.OperatorEvidence] = []
        with model.observed_on(device, observed):
            self._fill_one(crop)
        self._evidence = DeviceEvidence(
            parameters=devices.parameters_device(model.parameters()),
            output=model.output_device,
            kernel_time_share=observed[0].time_share if observed else None,
            fallback_ops=observed[0].fallback_ops if observed else None,
        )

    def _watched(self) -> _WatchedModel:
        if self._model is None:
            raise RuntimeError("the engine is not loaded")
        return self._model

    def _fill_one(self, crop: Crop) -> NDArray[np.uint8]:
        import numpy as np

        height, width = crop.hole.shape
        pixels, hole = _at_least(crop.pixels, MIN_SIDE_PX), _at_least(crop.hole, MIN_SIDE_PX)
        mask = hole.astype(np.uint8) * np.uint8(255)
        filled = self._run(pixels, mask)[:height, :width]
        if filled.shape != crop.pixels.shape:
            raise FillError(f"the model returned {filled.shape} for a crop of {crop.pixels.shape}")
        return filled

    def _run(self, pixels: NDArray[np.uint8], mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        device = self._placed().device
        with suppress(_OutOfMemoryError):
            return self._call(pixels, mask)
        # Once more: what filled the device may be other crops' leftovers. Not in a handler: as long as the
        # error lives, its traceback keeps the failed call's tensors.
        devices.free_memory(device)
        try:
            return self._call(pixels, mask)
        except _OutOfMemoryError as error:
            if device == devices.CPU:
                raise
            raise DeviceMemoryError(f"on {device}: {error}") from error

    def _call(self, pixels: NDArray[np.uint8], mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np
        import torch

        # A failure inside TorchScript comes as its own Error, which is no RuntimeError, or as a RuntimeError
        # that has lost its class: torch.OutOfMemoryError is one only outside.
        unoptimised = torch.jit.optimized_execution(False)  # type: ignore[attr-defined] # noqa: FBT003 - torch's
        try:
            with unoptimised:
                return np.array(self._simple(pixels, mask))  # a copy: Pillow lends its memory read-only
        except FillError:
            raise
        except (RuntimeError, MemoryError, torch.jit.Error) as error:
            raise _as_fill_error(error) from error


class _OutOfMemoryError(FillError):
    """Worth one more try, once the device's cache is empty."""


class _WatchedModel:
    """The TorchScript module, called unchanged; what it returns is looked at before SimpleLama rounds it."""

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        self._script = script
        self._observe_on: str | None = None
        self._observed: list[devices.OperatorEvidence] = []
        self.output_device: str | None = None

    def __call__(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        import torch

        output: torch.Tensor
        output = self._script(image, mask) if self._observe_on is None else self._observe(image, mask)
        self.output_device = devices.canonical_name(output.device)
        if not bool(torch.isfinite(output).all()):
            raise NonsenseFillError("the model returned values that are not numbers (NaN or infinity)")
        return output

    @contextmanager
    def observed_on(self, device: str, into: list[devices.OperatorEvidence]) -> Iterator[None]:
        """Within the block, each call is observed, and its evidence appended to `into`."""
        self._observe_on, self._observed = device, into
        try:
            yield
        finally:
            self._observe_on = None

    def parameters(self) -> Iterator[torch.Tensor]:
        """Return the parameters and buffers."""
        yield from self._script.parameters()
        yield from self._script.buffers()

    def _observe(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        outputs: list[torch.Tensor] = []
        evidence = devices.observe_operators(
            lambda: outputs.append(self._script(image, mask)), self._observe_on or devices.CPU
        )
        if evidence is not None:
            self._observed.append(evidence)
        return outputs[0]


def _require_packages() -> None:
    """Look for the packages without importing them: that takes seconds where it succeeds."""
    if importlib.util.find_spec("torch") is None:
        raise EngineUnavailableError(
            "PyTorch is not installed",
            f"Install it into the environment that watcher runs in: {_INSTALL} 'torch>=2.6' "
            "(pytorch.org lists smaller builds for machines without a GPU).",
        )
    if importlib.util.find_spec("simple_lama_inpainting") is None:
        raise EngineUnavailableError(
            "simple-lama-inpainting is not installed",
            f"Install it without its dependencies: {_INSTALL} --no-deps simple-lama-inpainting==0.1.2 "
            "(it pins a Pillow whose decoders are unsafe; watcher brings everything that it needs).",
        )


def _import_torch(choice: EngineChoice) -> None:
    """Import torch and SimpleLama with the process-wide settings that must come before or right after."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PRIMITIVE_CACHE_SIZE)
    os.environ.setdefault("LRU_CACHE_CAPACITY", _PRIMITIVE_CACHE_SIZE)
    if choice.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it alone
    try:
        import torch

        with warnings.catch_warnings():  # SimpleLama probes CUDA at import; our own probe records the warning
            warnings.simplefilter("ignore", UserWarning)
            import simple_lama_inpainting  # noqa: F401 - the import is what is measured
    except (ImportError, OSError) as error:
        raise EngineUnavailableError(
            f"PyTorch or simple-lama-inpainting is installed, and cannot be imported: {_first_line(error)}",
            f"Reinstall them: {_INSTALL} --force-reinstall 'torch>=2.6', then "
            f"{_INSTALL} --no-deps --force-reinstall simple-lama-inpainting==0.1.2.",
        ) from error
    if choice.threads is not None:
        torch.set_num_threads(choice.threads)
    if choice.deterministic:
        torch.set_deterministic_debug_mode("error")  # its better-known twin also imports torch's compiler
        torch.backends.cudnn.benchmark = False


@contextmanager
def _environment_set(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def _quiet_load() -> Iterator[None]:
    """Silence one warning: TorchScript is deprecated since torch 2.13, and is what LaMa is published as."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"`torch\.jit\.load` is deprecated", category=DeprecationWarning
        )
        yield


def _as_fill_error(error: Exception) -> FillError:
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text:
        return _OutOfMemoryError(f"the crop does not fit into memory: {_first_line(error)}")
    if any(sign in text for sign in _STICKY):
        return DeviceLostError(f"the device failed: {_first_line(error)}")
    return FillError(f"the model failed: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    """Return the first line of the message; TorchScript puts the cause last, after its own stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "TorchScript interpreter" in lines[0] else lines[0]


def _synthetic_crop() -> Crop:
    import numpy as np

    pixels = np.random.default_rng(0).integers(64, 192, (MIN_SIDE_PX, MIN_SIDE_PX, 3), dtype=np.uint8)
    hole = np.zeros((MIN_SIDE_PX, MIN_SIDE_PX), dtype=np.bool_)
    hole[24:40, 24:40] = True
    return Crop(pixels=pixels, hole=hole)


def _at_least(array: NDArray[Any], side_px: int) -> NDArray[Any]:
    """Mirror an array below and to the right until both sides are long enough."""
    import numpy as np

    below, right = (max(0, side_px - side) for side in array.shape[:2])
    if not below and not right:
        return array
    padding = ((0, below), (0, right), (0, 0))[: array.ndim]
    return np.pad(array, padding, mode="symmetric")
