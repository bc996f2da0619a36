"""Engine `auto`: LaMa if it can be, patchmatch if not, and a reason that helps."""

from __future__ import annotations

import hashlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from watcher.wire import EngineChoice
from watcher.worker.engines.auto import AutoEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from watcher.wire import EngineFacts
    from watcher.worker.engines.protocol import Crop


class NotANumber(nn.Module):
    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return image + mask * float("nan")


def started(choice: EngineChoice) -> AutoEngine:
    engine = AutoEngine(choice)
    engine.load()
    engine.warm_up()
    return engine


def assert_patchmatch_because(facts: EngineFacts, *parts: str) -> None:
    assert (facts.configured, facts.actual, facts.model_sha256) == ("auto", "patchmatch", None)
    assert facts.reason is not None
    for part in ("no LaMa", *parts):
        assert part in facts.reason


def test_verified_weights_mean_lama(stand_in: Any) -> None:
    engine = started(stand_in.choice(name="auto"))
    facts = engine.facts()
    assert (facts.configured, facts.actual, facts.model_sha256) == ("auto", "lama", stand_in.sha256)
    assert facts.reason == "verified LaMa weights are present"
    assert engine.device().evidence.parameters == "cpu"


@pytest.mark.kind("PD5", "PD6")
def test_no_weights_mean_patchmatch_and_the_way_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "simple_lama_inpainting", raising=False)
    facts = started(EngineChoice(model_cache_dir=str(tmp_path))).facts()
    assert_patchmatch_because(facts, "no weights file", "`source` under `[model]`", "LAMA_MODEL")
    assert "simple_lama_inpainting" not in sys.modules  # what is not needed is not imported
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kind("PD1")
def test_wrong_weights_mean_patchmatch_and_what_is_wrong(stand_in: Any) -> None:
    facts = started(stand_in.choice(name="auto", weights_sha256="0" * 64)).facts()
    assert_patchmatch_because(facts, f"has sha256 {stand_in.sha256}", "the configuration names 0000")


def test_a_missing_package_means_patchmatch(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simple_lama_inpainting", None)
    facts = started(stand_in.choice(name="auto")).facts()
    assert_patchmatch_because(facts, "simple-lama-inpainting is not installed", "--no-deps")


def test_weights_that_give_nonsense_mean_patchmatch(
    tmp_path: Path, noise_crop: Callable[[int, int], Crop]
) -> None:
    path = tmp_path / "nan.pt"
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning
        )
        torch.jit.script(NotANumber()).save(str(path))  # type: ignore[no-untyped-call] # torch's
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    engine = started(EngineChoice(weights_path=str(path), weights_sha256=sha256, device="cpu"))
    assert_patchmatch_because(engine.facts(), "not numbers")
    assert engine.model_loads == 2  # the weights were loaded, in vain
    (filled,) = engine.fill([noise_crop(64, 64)])
    assert filled.any()


def test_the_time_of_a_vain_attempt_is_in_the_segments(tmp_path: Path, stand_in: Any) -> None:
    wrong = tmp_path / "wrong.pt"
    wrong.write_bytes(b"PK" + bytes(20_000_000))
    segments = AutoEngine(stand_in.choice(name="auto", weights_path=str(wrong))).load()
    assert segments.model_read_ns > 1_000_000  # 20 MB were hashed
    assert segments.model_load_ns == 0


def test_a_self_test_that_fails_on_the_cpu_leaves_patchmatch(stand_in: Any) -> None:
    engine = started(stand_in.choice(name="auto"))
    assert engine.facts().actual == "lama"
    assert engine.give_way("it is all black")
    engine.warm_up()
    assert_patchmatch_because(engine.facts(), "it is all black")
    assert not engine.give_way("again"), "nothing stands behind patchmatch"
