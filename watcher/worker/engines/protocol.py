"""What the worker asks of an engine, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from watcher.wire import DeviceFacts, EngineFacts


class EngineUnavailableError(RuntimeError):
    """The configured engine cannot run here; no retry will change that (exit code 78).

    Attributes:
        remedy: what the user can do, in plain words.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class FillError(RuntimeError):
    """The engine failed on these crops, or returned something that must not be written (NaN, wrong size)."""


class NonsenseFillError(FillError):
    """What came back must not be written: values that are no numbers, or one colour that is nowhere around.

    Where the device did it and not the model, the next try may be right.
    """


class DeviceMemoryError(FillError):
    """An accelerator's memory is too small for these crops together, also with its cache freed.

    Never the CPU's memory: there is no other device to go to from there.
    """


class DeviceLostError(FillError):
    """The accelerator's state is broken until this process ends (a sticky CUDA error): exit code 76."""


@dataclass(frozen=True, slots=True)
class Crop:
    """One box of a picture, at native scale.

    Attributes:
        pixels: uint8, (height, width, 3), RGB; both sides are multiples of 8 and at least 64.
        hole: bool, (height, width); True where the picture is to be filled. Padding is never hole.
    """

    pixels: NDArray[np.uint8]
    hole: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LoadSegments:
    """How long the parts of `Engine.load` took, in nanoseconds of the monotonic clock."""

    import_ns: int = 0
    device_probe_ns: int = 0
    model_read_ns: int = 0
    model_load_ns: int = 0


class Engine(Protocol):
    """Life of an engine: `load` once, `warm_up` once, then `fill` any number of times, one thread."""

    @property
    def name(self) -> str:
        """The engine's name in the configuration and the record."""
        ...

    @property
    def model_loads(self) -> int:
        """How often a model was loaded by this process; an engine without weights counts its one `load`."""
        ...

    def load(self) -> LoadSegments:
        """Import libraries, probe devices, verify and load the model; measure each.

        Raises:
            EngineUnavailableError: a library or the weights are missing or not what was named.
        """
        ...

    def warm_up(self) -> None:
        """Run the model on tiny synthetic crops until the first user's crop costs what every crop costs."""
        ...

    def give_way(self, reason: str) -> bool:
        """Its fill of a known picture is no fill: move on to what is left (the CPU, another engine), loaded.

        Returns:
            False if nothing is left. Else it is to be warmed up and tried again.
        """
        ...

    def work_px(self, crop: Crop) -> int:
        """Tell how much a crop is for this engine, in pixels that take equally long, before it is filled.

        The service takes a worker for dead that is silent for much longer than other crops of so much work.
        """
        ...

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        """Fill the holes, one result per crop, in order.

        Args:
            crops: what to fill.
            progress: called with the index of each crop as soon as it is done, before the next one begins.

        Returns:
            Arrays of the shape and type of each crop's pixels. Pixels outside the hole are unspecified:
            the caller composites.

        Raises:
            DeviceMemoryError: fewer crops at a time, or the CPU, may succeed.
            DeviceLostError: this process can fill nothing any more.
            NonsenseFillError: the result must not be written; another try may be right.
            FillError: the engine failed on these crops.
        """
        ...

    def facts(self) -> EngineFacts:
        """Configured and actual engine; valid after `load`."""
        ...

    def device(self) -> DeviceFacts:
        """Configured, available and actual device with the evidence; valid after `warm_up`."""
        ...
