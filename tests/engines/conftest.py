"""A tiny LaMa-shaped weights file, real textures, and crops to fill."""

from __future__ import annotations

import hashlib
import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from watcher.wire import EngineChoice
from watcher.worker.engines.protocol import Crop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Weights:
    path: Path
    sha256: str

    def choice(self, **changes: Any) -> EngineChoice:
        fields: dict[str, Any] = {
            "name": "lama",
            "weights_path": str(self.path),
            "weights_sha256": self.sha256,
            "device": "cpu",
            **changes,
        }
        return EngineChoice(**fields)


@pytest.fixture(scope="session")
def stand_in_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lama_stand_in", ROOT / "benchmarks" / "lama_stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def stand_in(stand_in_script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    path = tmp_path_factory.mktemp("weights") / "stand-in.pt"
    stand_in_script.build(tiny=True, seed=0).save(str(path))
    return Weights(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture(autouse=True)
def _no_network_and_no_foreign_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test of an engine may reach the network or make the folders of torch.hub (cases D5, D6)."""

    def refuse(*_: object) -> None:
        raise AssertionError("an engine opened a network connection")

    hub = tmp_path / "torch-home"
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TORCH_HOME", str(hub))
    monkeypatch.delenv("LAMA_MODEL", raising=False)
    yield
    assert not hub.exists(), "torch.hub's folders were made"


@pytest.fixture(scope="session")
def texture() -> Callable[[str], NDArray[np.uint8]]:
    """Real pictures that the repository ships, by file name, as RGB arrays."""

    def read(name: str) -> NDArray[np.uint8]:
        with Image.open(ROOT / "sample_inbox" / name) as picture:
            return np.asarray(picture.convert("RGB"))

    return read


@pytest.fixture(scope="session")
def noise_crop() -> Callable[[int, int], Crop]:
    """A crop of noise of any shape, with a hole in its middle third (one pixel at least)."""

    def make(height: int, width: int) -> Crop:
        pixels = np.random.default_rng(height * 1000 + width).integers(
            0, 256, (height, width, 3), dtype=np.uint8
        )
        hole = np.zeros((height, width), dtype=np.bool_)
        hole[
            height // 3 : height // 3 + max(1, height // 3), width // 3 : width // 3 + max(1, width // 3)
        ] = True
        return Crop(pixels=pixels, hole=hole)

    return make
