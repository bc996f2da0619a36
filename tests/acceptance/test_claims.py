"""What a report claims, from scenes whose numbers are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.made_reports import record, scene, start
from watcher.acceptance.claims import claims_of
from watcher.acceptance.report import Ran, Sample
from watcher.core.timeline import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from watcher.acceptance.report import Claim, Scene

CHAIN = dict.fromkeys(SEGMENTS, 0.0) | {
    "settle": 1.0,
    "decode": 10.0,
    "inference": 100.0,
    "encode": 20.0,
    "publish": 5.0,
}
STARTED = {"process_start": 50.0, "import_": 400.0, "device_probe": 0.0, "warmup": 50.0}


def sample(
    picture: str = "a.jpg", *, path: str = "hot", worker: dict[str, int] | None = None, **changes: Any
) -> Sample:
    fields = {key: changes.pop(key) for key in ("outcome", "path_reason", "first_hot") if key in changes}
    made = record({**CHAIN, **changes}, picture=picture, path=path, worker=worker, **fields)
    return Sample(picture=picture, record=made)


FIRST = sample(first_hot=True)
NOT_KILLED = scene("recovery", [])


def scenes(**changed: Scene) -> list[Scene]:
    """A run in which all is well, but for what is changed."""
    worker = {"pid": 7, "model_loads": 1}
    start_ms: dict[str, Any] = {"process_start": 50.0, "import": 400.0, "warmup": 50.0}
    usual = {
        "batch": scene(
            "batch", [sample(worker=worker)] * 3, facts={"model_loads": 1.0, "amortised_ms": 90.0}
        ),
        "hot": scene("hot", [FIRST, *[sample()] * 5], starts=(start(1, **STARTED),)),
        "cold": scene(
            "cold",
            [
                sample(path="cold", **start_ms),
                sample(path="cold", path_reason="once", **start_ms),
            ],
        ),
        "recovery": scene("recovery", [sample()], facts={"recovery_1_s": 1.5}),
        "model_cache": scene("model_cache", [], skipped="the engine has no weights"),
    }
    return list({**usual, **changed}.values())


def test_first_requests_after_kills_count_too() -> None:
    """One of three fresh workers was slow: that is no rule."""
    slow = sample(inference=500.0, first_hot=True)
    played = scenes(
        hot=scene("hot", [slow, *[sample()] * 5]),
        recovery=scene("recovery", [FIRST, FIRST], facts={"recovery_1_s": 1.0}),
    )
    found = claim("first_hot_over_steady", played)
    assert found.holds
    assert "median of 3" in found.statement


def claim(name: str, played: Sequence[Scene]) -> Claim:
    return next(each for each in claims_of(played) if each.name == name)


def test_a_run_in_which_all_is_well() -> None:
    told = {each.name: each.holds for each in claims_of(scenes())}
    assert told.pop("model_cache") is None
    assert set(told.values()) == {True}
    assert len(told) == 9


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("model_loaded_once", {"batch": scene("batch", [sample()], facts={"model_loads": 2.0})}),
        ("first_hot_over_steady", {"hot": scene("hot", [sample(inference=200.0, first_hot=True), sample()])}),
        ("service_overhead", {"hot": scene("hot", [sample(), *[sample(publish=50.0)] * 5])}),
        ("cold_path_answers", {"cold": scene("cold", [sample(path="cold", outcome="failed")])}),
        ("cold_path_answers", {"cold": scene("cold", [sample(path="hot")])}),
        (
            "recovers",
            {"recovery": scene("recovery", [sample(path="cold")], facts={"recovery_1_s": 1.0})},
        ),
        (
            "cold_is_its_parts",
            {
                "cold": scene(
                    "cold", [sample(path="cold", path_reason="once", process_start=200.0, inference=600.0)]
                )
            },
        ),
        (
            "engine_as_configured",
            {"cold": scene("cold", [sample(path="cold")], engine=Ran(configured="auto", actual="lama"))},
        ),
        (
            "device_as_configured",
            {"hot": scene("hot", [sample()], device=Ran(configured="cuda", actual="cpu", reason="no cuda"))},
        ),
    ],
)
def test_what_is_not_so_does_not_hold(name: str, changed: dict[str, Scene]) -> None:
    assert claim(name, scenes(**changed)).holds is False


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("model_loaded_once", {"batch": scene("batch", [sample()], facts={"model_loads": None})}),
        ("first_hot_over_steady", {"recovery": NOT_KILLED, "hot": scene("hot", [FIRST, sample("b.jpg")])}),
        (
            "first_hot_over_steady",
            {"recovery": NOT_KILLED, "hot": scene("hot", [FIRST, *[sample(path="cold")] * 5])},
        ),
        (
            "first_hot_over_steady",
            {"recovery": NOT_KILLED, "hot": scene("hot", [FIRST, *[sample(outcome="failed")] * 5])},
        ),
        ("first_hot_over_steady", {"recovery": NOT_KILLED, "hot": scene("hot", [sample()] * 5)}),
        ("service_overhead", {"hot": scene("hot", [FIRST])}),
        ("service_overhead", {"hot": scene("hot", [FIRST, sample(path="cold")])}),
        ("cold_path_answers", {"cold": scene("cold", [])}),
        ("recovers", {"recovery": scene("recovery", [])}),
        ("cold_is_its_parts", {"cold": scene("cold", [sample(path="cold")])}),
    ],
)
def test_what_was_not_measured_is_neither_true_nor_false(name: str, changed: dict[str, Scene]) -> None:
    assert claim(name, scenes(**changed)).holds is None


def test_the_wait_for_a_cold_job_is_no_part_of_what_it_takes() -> None:
    late_ms: dict[str, Any] = {"process_start": 50.0, "import": 400.0, "settle": 5000.0}
    late = sample(path="cold", path_reason="once", **late_ms)
    assert claim("cold_is_its_parts", scenes(cold=scene("cold", [late]))).holds is True


@pytest.mark.parametrize(
    ("unattributed", "total_off", "holds"),
    [(0.0, 0.0, True), (8.7, 8.7, True), (9.5, 9.5, False), (0.0, 1.5, False), (-1.5, -1.5, False)],
)
def test_records_must_add_up_and_leave_little_open(
    unattributed: float, total_off: float, *, holds: bool
) -> None:
    """5 % of the total and 2 ms may be open, here some 9.3 ms; the sum is right to 1 ms."""
    odd = sample()
    odd.record["segments_ms"]["unattributed"] = unattributed
    odd.record["total_ms"] += total_off
    found = claim(
        "time_is_attributed", scenes(recovery=scene("recovery", [odd], facts={"recovery_1_s": 1.0}))
    )
    assert found.holds is holds


@pytest.mark.parametrize(
    ("configured", "actual", "holds"),
    [
        ("auto", "cuda:0", True),
        ("cuda", "cuda:0", True),
        ("cuda:1", "cuda:1", True),
        ("cuda:1", "cuda:10", False),
        ("cpu", "mps", False),
    ],
)
def test_a_device_is_what_was_asked_for(configured: str, actual: str, *, holds: bool) -> None:
    played = scene("hot", [sample()], device=Ran(configured=configured, actual=actual))
    others = {
        name: scene(name, [], device=Ran(configured=configured, actual=None))
        for name in ("batch", "cold", "recovery")
    }
    assert claim("device_as_configured", scenes(hot=played, **others)).holds is holds
