"""The stand-in: LaMa's size and interface, and the same weights from the same seed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lama_stand_in.py"


def test_the_full_network_has_lamas_51_million_parameters(stand_in_script: ModuleType) -> None:
    with torch.device("meta"):  # counted, not computed
        generator = stand_in_script.Generator(base=64, blocks=18)
    parameters = sum(parameter.numel() for parameter in generator.parameters())
    assert parameters == pytest.approx(51.0e6, rel=0.005)


def test_the_interface_is_that_of_the_published_file(stand_in_script: ModuleType) -> None:
    script = stand_in_script.build(tiny=True, seed=3)
    image = torch.rand(1, 3, 64, 88)
    mask = torch.zeros(1, 1, 64, 88, dtype=torch.int64)
    mask[:, :, 20:40, 30:60] = 1
    with torch.inference_mode():
        filled = script(image, mask)
        hidden = script(image * (1 - mask), mask)
    assert filled.shape == image.shape
    assert filled.dtype == torch.float32
    assert 0 <= filled.min() <= filled.max() <= 1
    known = (mask == 0).expand_as(image)
    assert torch.equal(filled[known], image[known])
    assert torch.equal(filled, hidden)  # what the mask covers is never seen
    assert filled[~known].std() > 0.01


def test_a_seed_gives_its_weights_and_leaves_the_callers_random_numbers_alone(
    stand_in_script: ModuleType,
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (stand_in_script.build(tiny=True, seed=1).state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    other = stand_in_script.build(tiny=True, seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_script_writes_a_small_file_and_names_its_hash(tmp_path: Path) -> None:
    out = tmp_path / "tiny.pt"
    command = [sys.executable, "-W", "error", str(SCRIPT), "--tiny", "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert out.stat().st_size < 1_000_000
    printed = run.stdout.split()[-1]
    assert printed == hashlib.sha256(out.read_bytes()).hexdigest()
