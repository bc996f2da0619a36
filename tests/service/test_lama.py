"""Engine `lama` through the whole service, on a stand-in of LaMa's shape (item 6)."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.service.harness import encoded, mask, pixels
from tests.service.namespaces import without_network
from watcher.worker.devices import TorchAccelerators
from watcher.worker.engines.protocol import Crop
from watcher.worker.imaging.blending import levelled
from watcher.worker.imaging.masks import grow

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tests.service.harness import Service

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="engine lama is not installed here"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "stand-in.pt"
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "lama_stand_in.py"), "--tiny", "--out", str(path)],
        check=True,
        capture_output=True,
    )
    return path


SIMPLE_LAMA = """
import sys
from PIL import Image
from simple_lama_inpainting import SimpleLama
picture, mask, result = sys.argv[1:]
SimpleLama(device="cpu")(Image.open(picture).convert("RGB"), Image.open(mask).convert("L")).save(result)
"""


def simple_lama(folder: Path, weights: Path, picture: bytes, grown: bytes) -> NDArray[np.uint8]:
    """What SimpleLama paints by itself, in an interpreter of its own."""
    (folder / "picture.png").write_bytes(picture)
    (folder / "grown.png").write_bytes(grown)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIMPLE_LAMA, "picture.png", "grown.png", "result.png"],
        check=True,
        cwd=folder,
        env={**os.environ, "LAMA_MODEL": str(weights)},
    )
    with Image.open(folder / "result.png") as result:
        return np.asarray(result)


@pytest.mark.kind("PD5", "PD6", "PD8")
def test_lama_serves_what_simple_lama_itself_paints(
    new_service: Callable[..., Service], weights: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    service = new_service(
        "[engine]",
        'name = "lama"',
        'device = "cpu"',
        "[model]",
        f'source = "{weights}"',
        f'sha256 = "{digest}"',
    )
    service.wrapper = without_network()
    service.start()
    before = pixels(601)
    service.put("lama.png", encoded(before))

    record = service.wait_record("lama.png")

    assert (record["path"], record["first_hot"]) == ("hot", True)
    assert record["engine"] == {
        "configured": "lama",
        "actual": "lama",
        "reason": None,
        "model_sha256": digest,
    }
    device = record["device"]
    assert (device["configured"], device["actual"], device["reason"]) == ("cpu", "cpu", None)
    assert device["evidence"]["parameters"] == device["evidence"]["output"] == "cpu"
    (ready,) = service.log("worker.ready")
    assert ready["model_loads"] == 1
    assert ready["segments_ms"]["model_load"] > 0
    # the picture is smaller than any crop: what the model sees is the whole of it
    assert record["image"]["model_px"] == before.shape[0] * before.shape[1]
    drawn = np.zeros(before.shape[:2], np.bool_)
    drawn[24:32, 40:48] = True
    grown = grow(drawn, None)
    painted = simple_lama(tmp_path, weights, encoded(before), encoded(grown.astype(np.uint8) * np.uint8(255)))
    with Image.open(service.output_of(record)) as result:
        after = np.asarray(result)
    joined = levelled(Crop(before, grown), painted)
    assert np.array_equal(after[drawn], joined[drawn]), "the rim around it is blended"
    assert np.array_equal(after[~grown], before[~grown])
    assert not np.array_equal(after[grown], before[grown])
    home = {path.name for path in service.root.iterdir()}
    assert home <= {"inbox", "outbox", "state", "models", "aside", "watcher.toml", "service.log"}
    assert not list((service.root / "models").rglob("*.pt")), "nothing was fetched, and nothing copied"


@pytest.mark.kind("PD1")
def test_the_wrong_weights_are_refused_and_told(new_service: Callable[..., Service], weights: Path) -> None:
    service = new_service(
        "[engine]", 'name = "lama"', "[model]", f'source = "{weights}"', f'sha256 = "{"0" * 64}"'
    ).start(ready=False)

    (disabled,) = service.wait_log("worker.disabled")
    (exited,) = service.log("worker.exited")

    assert disabled["exit_code"] == 78
    assert "sha256" in exited["reason"].lower() or "hash" in exited["reason"].lower()
    assert exited["remedy"]
    assert service.is_running


def test_auto_without_weights_says_so_and_uses_the_embedded_engine(
    new_service: Callable[..., Service],
) -> None:
    service = new_service("[engine]", 'name = "auto"').start()
    service.put("auto.png", marked=mask())

    engine = service.wait_record("auto.png")["engine"]

    assert (engine["configured"], engine["actual"]) == ("auto", "patchmatch")
    assert engine["reason"]


@pytest.mark.parametrize(
    "device", ["cuda", *(pytest.param(device, marks=pytest.mark.soak) for device in ("cuda:1", "mps"))]
)
def test_a_device_that_is_not_there_means_the_cpu_and_is_told(
    new_service: Callable[..., Service], weights: Path, device: str
) -> None:
    missing = "cuda:0" if device == "cuda" else device
    if missing in TorchAccelerators().available():
        pytest.skip(f"there is a {missing} here")
    service = new_service(
        *("[engine]", 'name = "lama"', f'device = "{device}"'),
        *(
            "[model]",
            f'source = "{weights}"',
            f'sha256 = "{hashlib.sha256(weights.read_bytes()).hexdigest()}"',
        ),
    ).start()
    service.put("a.png")
    seen = service.wait_record("a.png")["device"]
    assert (seen["configured"], seen["actual"]) == (device, "cpu")
    assert seen["reason"].startswith(f"{missing} does not exist here")
    assert seen["evidence"] == {
        "parameters": "cpu",
        "output": "cpu",
        "kernel_time_share": {"cpu": 1.0},
        "fallback_ops": [],
    }
    assert len(service.log("device.replaced")) == 1
