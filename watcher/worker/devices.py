"""Which devices exist, which one the model gets, and where its work was seen to happen.

Rules of this file:
- Configured, available and actual are three facts. A probe says what exists, never what is fast; only
  evidence taken from a run says what was used.
- An accelerator is used only after a numeric self-test against the CPU: some return wrong Fourier
  transforms without an error. One that fails it, and one that is not there, means the CPU, and a reason.
- torch is imported inside functions, never at import of this module.
"""

from __future__ import annotations

import re
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from watcher.worker.engines.protocol import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

CPU = "cpu"
AUTO = "auto"
SELF_TEST_TOLERANCE = 1e-2
"""Largest absolute difference from the CPU on values of order 1: far above float32 and TF32 rounding, far
below what a wrong transform gives."""

_NAME = re.compile(r"cpu|cuda(:\d+)?|mps")
_FALLBACK_WARNING = re.compile(r"operator '([^']+)' is not currently supported on the MPS backend")


class Accelerators(Protocol):
    """What the placement needs to know of the machine."""

    def available(self) -> tuple[str, ...]:
        """Return the accelerators that exist, best first, by canonical name (`cuda:0`, `mps`)."""
        ...

    def self_test_error(self, device: str) -> float:
        """Return the largest difference from the CPU over a small network pass; raise if it cannot run."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what the probe was warned of (a driver that is too old, ...)."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the model is to go. Where it ran is evidence, and comes later."""

    configured: str
    available: tuple[str, ...]
    device: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorEvidence:
    """What one observed pass of the model showed.

    Attributes:
        time_share: share of the time of all operators by the device that holds their result; sums to 1,
            but for rounding.
        fallback_ops: operators whose result was computed elsewhere than on the model's device.
    """

    time_share: dict[str, float]
    fallback_ops: tuple[str, ...]


def place(configured: str, accelerators: Accelerators) -> Placement:
    """Decide which device the model gets.

    `auto` is the first accelerator that passes the self-test, else the CPU. A named device that does not
    exist or fails the test is replaced by the CPU, with the reason: a picture that comes out late is
    better than none.

    Raises:
        EngineUnavailableError: `configured` is not a device's name.
    """
    if configured != AUTO and not _NAME.fullmatch(configured):
        raise EngineUnavailableError(
            f"there is no device named {configured!r}",
            "Set `device` under `[engine]` to auto, cpu, cuda, cuda:N or mps.",
        )
    available = accelerators.available()
    wanted = available if configured == AUTO else _wanted(configured)
    reasons: list[str] = []
    for device in wanted:
        refusal = _refusal(device, available, accelerators)
        if refusal is None:
            return _placement(configured, available, device, reasons)
        reasons.append(refusal)
    if CPU not in wanted:
        reasons.extend(accelerators.notes())
    return _placement(configured, available, CPU, reasons)


def _wanted(configured: str) -> tuple[str, ...]:
    return ("cuda:0",) if configured == "cuda" else (configured,)


def _refusal(device: str, available: tuple[str, ...], accelerators: Accelerators) -> str | None:
    """Return why `device` is not to be used, or None."""
    if device == CPU:
        return None
    if device not in available:
        return f"{device} does not exist here"
    try:
        error = accelerators.self_test_error(device)
    except RuntimeError as failure:
        return f"{device} failed its self-test: {_first_line(failure)}"
    if error <= SELF_TEST_TOLERANCE:  # not `>`: NaN must fail
        return None
    return f"{device} computes wrongly: its Fourier transform is off by {error:.2g}"


def _placement(configured: str, available: tuple[str, ...], device: str, reasons: Sequence[str]) -> Placement:
    reason = f"{'; '.join(reasons)}; runs on {device}" if reasons else None
    return Placement(configured=configured, available=(*available, CPU), device=device, reason=reason)


class TorchAccelerators:
    """The accelerators that the installed torch can see."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def available(self) -> tuple[str, ...]:
        """Return `cuda:N` of each GPU, then `mps`."""
        import torch

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cuda = [f"cuda:{index}" for index in range(_cuda_count(torch.cuda.is_available))]
        self._notes = [str(warning.message).strip().splitlines()[0] for warning in caught]
        return (*cuda, "mps") if torch.backends.mps.is_available() else tuple(cuda)

    def notes(self) -> tuple[str, ...]:
        """Return what the last probe was warned of."""
        return tuple(self._notes)

    def self_test_error(self, device: str) -> float:
        """Compare one Fourier unit, forward and back, with the CPU. Raises RuntimeError if it cannot run."""
        import torch

        generator = torch.Generator().manual_seed(0)
        features = torch.randn(2, 8, 48, 40, generator=generator)
        weights = torch.randn(16, 16, 1, 1, generator=generator) / 4
        with torch.inference_mode():
            expected = _fourier_unit(features, weights)
            actual = _fourier_unit(features.to(device), weights.to(device))
            return max(
                float((seen.to(CPU) - wanted).abs().max())
                for seen, wanted in zip(actual, expected, strict=True)
            )


def _cuda_count(is_available: Callable[[], bool]) -> int:
    import torch

    return torch.cuda.device_count() if is_available() else 0


def _fourier_unit(features: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what LaMa does in the frequency domain; returns the mixed spectrum and the features made of it."""
    import torch

    spectrum = torch.fft.rfftn(features, dim=(-2, -1), norm="ortho")
    mixed = torch.nn.functional.conv2d(torch.cat((spectrum.real, spectrum.imag), dim=1), weights)
    real, imaginary = torch.chunk(mixed, 2, dim=1)
    back = torch.complex(real.contiguous(), imaginary.contiguous())
    return mixed, torch.fft.irfftn(back, s=features.shape[-2:], dim=(-2, -1), norm="ortho")


def canonical_name(device: torch.device) -> str:
    """Return `cpu`, `mps` or `cuda:N`, whichever way torch spells it."""
    if device.type == "cuda":
        return f"cuda:{device.index or 0}"
    return device.type


def parameters_device(parameters: Iterator[torch.Tensor]) -> str | None:
    """Return where all parameters lie; several devices are joined by a comma; None without parameters."""
    return ",".join(sorted({canonical_name(parameter.device) for parameter in parameters})) or None


def observe_operators(run: Callable[[], object], device: str) -> OperatorEvidence | None:
    """Run once and record on which device each operator left its result, and for how long it ran.

    The time is wall time, with the accelerator waited for after each operator, so a small pass counts its
    launches too: it tells where the work was, not how fast it is. Scalars and integers are left out:
    shapes are computed on the CPU by design. An operator that the MPS backend hands to the CPU announces it
    by a warning, which torch gives once in the life of a process, whatever the operator: here each time.

    Returns:
        None where this torch has no way to observe operators.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        run()
        return None
    import torch

    log = _OperatorLog(device)

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves this base untyped
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True, the default, imports all of torch's compiler (1.2 s, 800 modules) to keep it out of here.
            return False

        def __torch_dispatch__(
            self,
            func: torch._ops.OpOverload[Any, Any],
            types: Iterable[type],
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            started_ns = time.monotonic_ns()
            result = func(*args, **(kwargs or {}))
            _wait_for(device)
            name: str = func.name()  # type: ignore[no-untyped-call] # torch leaves it untyped
            log.note(name, result, time.monotonic_ns() - started_ns)
            return result

    with warnings.catch_warnings(record=True) as caught, _every_warning():
        warnings.simplefilter("always")
        with torch.inference_mode(), Observer():  # type: ignore[no-untyped-call] # as its base
            run()
    for warning in caught:
        log.note_warning(str(warning.message))
    return log.evidence()


@contextmanager
def _every_warning() -> Iterator[None]:
    """Within the block, torch gives a warning each time that it has a reason, not only the first time."""
    import torch

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


class _OperatorLog:
    """Adds up the operators of one pass."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._spent_ns: dict[str, int] = {}
        self._elsewhere: set[str] = set()

    def note(self, name: str, result: object, spent_ns: int) -> None:
        import torch

        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, torch.Tensor) or not first.dim():
            return
        if not (first.is_floating_point() or first.is_complex()):
            return
        where = canonical_name(first.device)
        self._spent_ns[where] = self._spent_ns.get(where, 0) + spent_ns
        if where != self._device:
            self._elsewhere.add(name)

    def note_warning(self, message: str) -> None:
        found = _FALLBACK_WARNING.search(message)
        if found:
            self._elsewhere.add(found[1])

    def evidence(self) -> OperatorEvidence | None:
        total_ns = sum(self._spent_ns.values())
        if not total_ns:
            return None
        share = {where: round(spent / total_ns, 4) for where, spent in sorted(self._spent_ns.items())}
        return OperatorEvidence(time_share=share, fallback_ops=tuple(sorted(self._elsewhere)))


def free_memory(device: str) -> None:
    """Give back what torch keeps for later calls on an accelerator; nothing on the CPU."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device == "mps":
        torch.mps.empty_cache()


def _wait_for(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
