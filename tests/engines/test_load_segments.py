"""A delay in the start of a model shows in the part of `load` that it was in, and in no other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from watcher.worker import devices
from watcher.worker.engines import lama
from watcher.worker.engines.auto import AutoEngine
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.models import store

if TYPE_CHECKING:
    from watcher.wire import EngineChoice

DELAY_NS = 300_000_000
NOISE_NS = 150_000_000
TRIES = 3
"""What is noise of the machine is not there every time."""
POINTS: dict[str, tuple[Any, str]] = {
    "import_ns": (lama, "_import_torch"),
    "device_probe_ns": (devices.TorchAccelerators, "available"),
    "model_read_ns": (store, "verify"),
    "model_load_ns": (torch.jit, "load"),
}


def load(kind: type[LamaEngine | AutoEngine], choice: EngineChoice) -> dict[str, int]:
    engine = kind(choice)
    parts = engine.load()
    assert engine.model_loads == 1
    return {name: getattr(parts, name) for name in POINTS}


@pytest.mark.parametrize(
    ("kind", "part"), [*((LamaEngine, part) for part in POINTS), (AutoEngine, "model_load_ns")]
)
def test_a_delay_in_loading_shows_in_its_part_and_in_no_other(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, kind: type[LamaEngine | AutoEngine], part: str
) -> None:
    choice = msgspec.structs.replace(stand_in.choice(), name=kind.name)
    plain = load(kind, choice)
    place, name = POINTS[part]
    real = getattr(place, name)

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(DELAY_NS / 1e9)
        return real(*arguments, **named)

    monkeypatch.setattr(place, name, slow)
    for _ in range(TRIES):
        more = {each: ns - plain[each] for each, ns in load(kind, choice).items()}
        assert more[part] > DELAY_NS - NOISE_NS
        if all(ns < NOISE_NS for each, ns in more.items() if each != part):
            return
    pytest.fail(f"a delay in {part} shows as {more}")
