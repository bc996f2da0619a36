"""`benchmarks/cuda_path.py`, which is for machines with an accelerator, as far as one without can tell."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pytest
import torch

from benchmarks.cuda_path import Run, on_device

SCRIPT: Final = Path(__file__).parents[2] / "benchmarks" / "cuda_path.py"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_the_device_it_says_so_and_measures_nothing() -> None:
    ended = run_script("--device", "cuda:1")
    assert (ended.returncode, ended.stderr) == (2, "")
    assert ended.stdout.startswith("nothing was measured: cuda:1 does not exist here")
    assert f"torch {torch.__version__}" in ended.stdout


@pytest.mark.soak
def test_a_rehearsal_on_the_cpu_finds_all_as_it_should_be() -> None:
    ended = run_script("--device", "cpu", "--tiny", "--pictures", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("ok  ") == 11
    assert "largest 0" in ended.stdout


# --- what it finds -----------------------------------------------------------------------------------------


def evidence(**changes: Any) -> dict[str, Any]:
    told = {"parameters": "cuda:0", "output": "cuda:0", "kernel_time_share": {"cuda:0": 0.98, "cpu": 0.02}}
    return {**told, "fallback_ops": [], **changes}


@dataclass
class ToldRun:
    """A service on a CUDA device that tells what a test wants."""

    device: str = "cuda:0"
    facts: dict[str, Any] = field(default_factory=lambda: {"actual": "cuda:0", "evidence": evidence()})
    loads: int = 1
    cold: str = "cold"
    replaced: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)

    def serve(self, name: str, _seed: int) -> None:
        path = self.cold if name == "cold.png" else "hot"
        self.records.append({"source": name, "path": path, "device": self.facts})

    def kill_worker(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"device": {"actual": self.facts["actual"]}}

    def log(self, event: str) -> list[dict[str, Any]]:
        if event == "worker.ready":
            return [{"device": self.facts, "model_loads": self.loads}]
        return [{}] * self.replaced


def failed(run: ToldRun) -> list[str]:
    return [check.what for check in on_device(cast("Run", run), 2) if not check.holds]


def test_a_device_that_does_its_work_passes() -> None:
    assert failed(ToldRun()) == []


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            ToldRun(facts={"actual": "cuda:0", "evidence": evidence(parameters="cpu")}),
            ["parameters lie on it"],
        ),
        (
            ToldRun(facts={"actual": "cuda:0", "evidence": evidence(output="cpu")}),
            ["the output was seen on it"],
        ),
        (
            ToldRun(facts={"actual": "cuda:0", "evidence": evidence(kernel_time_share={"cpu": 1.0})}),
            ["at least 90% of the time of operators is its"],
        ),
        (
            ToldRun(facts={"actual": "cuda:0", "evidence": evidence(kernel_time_share=None)}),
            ["at least 90% of the time of operators is its"],
        ),
        (
            ToldRun(facts={"actual": "cuda:0", "evidence": evidence(fallback_ops=["aten::x"])}),
            ["no operator fell back"],
        ),
        (
            ToldRun(facts={"actual": "cpu", "evidence": evidence()}),
            ["the worker is ready on it", "every record says that it ran on it", "the status says so"],
        ),
        (ToldRun(loads=2), ["the model was loaded once"]),
        (ToldRun(cold="hot"), ["the cold path served with it, too"]),
        (ToldRun(replaced=1), ["nothing was replaced"]),
    ],
    ids=["parameters", "output", "share", "no share", "fallback", "actual", "loads", "cold", "replaced"],
)
def test_what_is_not_as_it_should_be_is_found(run: ToldRun, says: list[str]) -> None:
    assert failed(run) == says
