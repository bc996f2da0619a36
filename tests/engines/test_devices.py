"""Devices: an accelerator that is not there or computes wrongly is never used, and the record says so."""

from __future__ import annotations

import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from watcher.worker import devices
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.protocol import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.worker.engines.protocol import Crop


class FakeAccelerators:
    """Accelerators whose self-test is off by a given amount, or raises."""

    def __init__(self, *names: str, notes: tuple[str, ...] = (), **errors: float | Exception) -> None:
        self._names = names
        self._notes = notes
        self._errors = errors
        self.tested: list[str] = []

    def available(self) -> tuple[str, ...]:
        return self._names

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def self_test_error(self, device: str) -> float:
        self.tested.append(device)
        error = self._errors.get(device.replace(":", ""), 1e-6)
        if isinstance(error, Exception):
            raise error
        return error


@pytest.mark.kind("PB14")
@pytest.mark.parametrize(
    ("configured", "machine", "device", "reason"),
    [
        ("auto", FakeAccelerators(), "cpu", None),
        ("cpu", FakeAccelerators("cuda:0"), "cpu", None),
        ("auto", FakeAccelerators("cuda:0", "cuda:1"), "cuda:0", None),
        ("auto", FakeAccelerators("mps"), "mps", None),
        ("cuda", FakeAccelerators("cuda:0"), "cuda:0", None),
        ("cuda:1", FakeAccelerators("cuda:0", "cuda:1"), "cuda:1", None),
        ("cuda", FakeAccelerators(), "cpu", "cuda:0 does not exist here; runs on cpu"),
        ("cuda:1", FakeAccelerators("cuda:0"), "cpu", "cuda:1 does not exist here; runs on cpu"),
        ("mps", FakeAccelerators("cuda:0"), "cpu", "mps does not exist here; runs on cpu"),
        (
            "auto",
            FakeAccelerators("mps", mps=0.3),
            "cpu",
            "mps computes wrongly: its Fourier transform is off by 0.3; runs on cpu",
        ),
        (
            "mps",
            FakeAccelerators("mps", mps=float("nan")),
            "cpu",
            "mps computes wrongly: its Fourier transform is off by nan; runs on cpu",
        ),
        (
            "auto",
            FakeAccelerators("cuda:0", "cuda:1", cuda0=RuntimeError("no kernel image\nstack")),
            "cuda:1",
            "cuda:0 failed its self-test: no kernel image; runs on cuda:1",
        ),
        (
            "cuda",
            FakeAccelerators(notes=("The NVIDIA driver on your system is too old",)),
            "cpu",
            "cuda:0 does not exist here; The NVIDIA driver on your system is too old; runs on cpu",
        ),
    ],
)
def test_placement(configured: str, machine: FakeAccelerators, device: str, reason: str | None) -> None:
    placement = devices.place(configured, machine)
    assert (placement.device, placement.reason) == (device, reason)
    assert placement.configured == configured
    assert placement.available == (*machine.available(), "cpu")


def test_the_cpu_by_choice_tests_no_accelerator() -> None:
    machine = FakeAccelerators("cuda:0")
    devices.place("cpu", machine)
    assert machine.tested == []


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:one", "CPU", "cpu:0", "", "mps:1"])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(EngineUnavailableError, match="there is no device named") as caught:
        devices.place(name, FakeAccelerators())
    assert "auto, cpu, cuda, cuda:N or mps" in caught.value.remedy


@pytest.mark.kind("PB14")
def test_the_self_test_sees_a_transform_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real self-test with the CPU as the device: exact, until its second inverse transform is off."""
    machine = devices.TorchAccelerators()
    assert machine.self_test_error("cpu") == 0
    original, calls = torch.fft.irfftn, [0]

    def off_the_second_time(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls[0] += 1
        result: torch.Tensor = original(*args, **kwargs)
        return result if calls[0] == 1 else result * 1.05

    monkeypatch.setattr(torch.fft, "irfftn", off_the_second_time)
    assert machine.self_test_error("cpu") > devices.SELF_TEST_TOLERANCE


def test_the_probe_agrees_with_torch_and_keeps_its_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn_and_refuse() -> bool:
        warnings.warn("CUDA initialization: the driver is too old\nsee the manual", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", warn_and_refuse)
    machine = devices.TorchAccelerators()
    assert machine.available() == (("mps",) if torch.backends.mps.is_available() else ())
    assert machine.notes() == ("CUDA initialization: the driver is too old",)


@pytest.mark.kind("PB14")
def test_operators_that_ran_elsewhere_are_evidence() -> None:
    """The tensors lie on the CPU, the claim is another device: every operator is a fallback."""
    tensor = torch.rand(1, 3, 32, 32)

    def run() -> None:
        spectrum = torch.fft.rfftn(tensor, dim=(-2, -1))
        torch.relu(torch.fft.irfftn(spectrum, dim=(-2, -1)))

    claimed = devices.observe_operators(run, "meta")
    assert claimed is not None
    assert claimed.time_share == {"cpu": 1.0}
    assert any("fft" in name for name in claimed.fallback_ops)
    assert any("relu" in name for name in claimed.fallback_ops)
    honest = devices.observe_operators(run, "cpu")
    assert honest == devices.OperatorEvidence(time_share={"cpu": 1.0}, fallback_ops=())


def test_scalars_and_integers_are_no_fallback() -> None:
    evidence = devices.observe_operators(lambda: torch.arange(9).sum() * torch.tensor(2), "meta")
    assert evidence is None  # nothing that computes on pictures was seen


@pytest.mark.kind("PB14")
def test_an_operator_that_mps_hands_to_the_cpu_is_named() -> None:
    def run() -> None:
        warnings.warn(
            "The operator 'aten::_fft_c2r' is not currently supported on the MPS backend and will fall back "
            "to run on the CPU.",
            stacklevel=1,
        )
        torch.relu(torch.rand(4))

    evidence = devices.observe_operators(run, "cpu")
    assert evidence is not None
    assert evidence.fallback_ops == ("aten::_fft_c2r",)


def test_every_fallback_counts_and_not_only_the_first_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives such warnings once in a process; this one of its own comes the same way, on any device."""
    monkeypatch.setattr(devices, "_FALLBACK_WARNING", re.compile(r"The use of `x\.(T)` on tensors"))

    def run() -> None:
        torch.relu(torch.rand(2, 3, 4).T)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()  # what the first warm-up does: from now on torch is silent
    for _ in range(2):
        evidence = devices.observe_operators(run, "cpu")
        assert evidence is not None
        assert evidence.fallback_ops == ("T",)
    assert not torch.is_warn_always_enabled(), "left as it was"


def test_the_device_is_where_the_output_of_the_last_call_was_seen(
    stand_in: Any, noise_crop: Callable[[int, int], Crop]
) -> None:
    engine = LamaEngine(stand_in.choice(device="cpu"))
    engine.load()
    engine.warm_up()
    engine.fill([noise_crop(64, 64)])
    assert engine._model is not None
    engine._model.output_device = "cuda:3"  # as a call after the warm-up may find
    facts = engine.device()
    assert (facts.actual, facts.evidence.output, facts.evidence.parameters) == ("cuda:3", "cuda:3", "cpu")


@pytest.mark.kind("PB11")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch that cannot reach a GPU")
def test_a_gpu_that_cannot_hold_the_model_is_left_for_the_cpu(
    stand_in: Any, noise_crop: Callable[[int, int], Crop]
) -> None:
    engine = LamaEngine(stand_in.choice(device="cuda"), accelerators=FakeAccelerators("cuda:0"))
    engine.load()
    engine.warm_up()
    facts = engine.device()
    assert (facts.configured, facts.available, facts.actual) == ("cuda", ("cuda:0", "cpu"), "cpu")
    assert facts.reason is not None
    assert "torch cannot load" in facts.reason
    assert facts.reason.endswith("runs on cpu")
    engine.fill([noise_crop(64, 64)])


@pytest.mark.kind("PB14")
def test_a_device_that_fails_the_warm_up_is_left_for_the_cpu(
    stand_in: Any, noise_crop: Callable[[int, int], Crop]
) -> None:
    """The meta device of torch holds no numbers, so the model loads there, and cannot give any back."""
    engine = LamaEngine(stand_in.choice(device="auto"), accelerators=FakeAccelerators("meta"))
    engine.load()
    engine.warm_up()
    facts = engine.device()
    assert facts.actual == facts.evidence.parameters == facts.evidence.output == "cpu"
    assert facts.reason is not None
    assert "the warm-up on meta failed" in facts.reason
    assert engine.model_loads == 2
    engine.fill([noise_crop(64, 64)])


def test_this_module_imports_torch_only_when_asked() -> None:
    assert "torch" not in vars(devices)
    assert "torch" in sys.modules
