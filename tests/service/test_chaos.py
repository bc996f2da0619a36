"""A worker killed, stopped, hung, slow and leaking at random (`benchmarks/chaos.py`): all are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import chaos

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service


@pytest.mark.kind("W1", "W5", "W6", "W17", "W25")
def test_pictures_amid_random_faults_are_each_served_once(new_service: Callable[..., Service]) -> None:
    service = new_service(*chaos.SETTINGS, faults=chaos.FAULTS)
    groups = chaos.plan(24, seed=3, mean_pause_s=0.8, strike_every=2.0)
    assert {group.strike.kind for group in groups if group.strike} == set(chaos.STRIKES)

    _, story = chaos.run(service, groups, references=0)

    assert "x worker.restarting" in story


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [11, 12])
def test_300_pictures_amid_random_faults_each_wait_for_twice_a_cold_time_at_most(
    new_service: Callable[..., Service], seed: int
) -> None:
    service = new_service(*chaos.SETTINGS, faults=chaos.FAULTS)
    groups = chaos.plan(300, seed, mean_pause_s=3.5, strike_every=8.0)

    verdict, story = chaos.run(service, groups)

    assert not verdict.over, f"{story}\n{verdict.text}"
    for kind in ("killed", "stopped", "hung"):
        assert f"\n{kind} " in verdict.text, f"nothing was {kind}: {story}"


# --- the judge itself --------------------------------------------------------------------------------------

LOSS = {"process_state": None, "cause": "oom_suspected", "signal": "SIGKILL", "serving": True}


def record(name: str, wait_ms: float, *, path: str = "cold", losses: tuple[Any, ...] = ()) -> dict[str, Any]:
    """What is looked at of one; it was queued for a second."""
    segments = {**dict.fromkeys(chaos.NOT_WAITED, 0.0), "queue": 1000.0}
    return {
        "source": name,
        "path": path,
        "path_reason": "crashed",
        "losses": list(losses),
        "segments_ms": segments,
        "total_ms": wait_ms + 1000.0,
    }


def test_a_wait_is_held_against_twice_the_slowest_cold_job_of_its_size() -> None:
    references = [
        record(f"{number}-{size}/picture.png", wait_ms)
        for number, (size, wait_ms) in enumerate(
            [("small", 900.0), ("small", 1000.0), ("medium", 1500.0), ("large", 2500.0)]
        )
    ]
    within = record("7-small/picture.png", 2000.0, losses=(LOSS,))
    over = record("8-small/picture.png", 2001.0, losses=(LOSS,))
    larger = record("9-large/picture.png", 4999.0, losses=(LOSS,))

    verdict = chaos.judge([*references, within, over, larger])

    assert verdict.bounds_ms == {"small": 2000.0, "medium": 3000.0, "large": 5000.0}
    assert verdict.over == ("8-small/picture.png",)
    assert "OVER" in next(line for line in verdict.text.splitlines() if line.startswith("killed"))


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ([], "cold: crashed"),
        ([LOSS], "killed"),
        ([{**LOSS, "serving": False}], "killed, in its batch"),
        ([{**LOSS, "cause": "killed", "process_state": "T"}], "stopped"),
        ([{**LOSS, "cause": "killed", "process_state": "S"}], "hung"),
        ([LOSS, {**LOSS, "cause": "killed", "process_state": "S"}], "hung + killed"),
    ],
)
def test_what_befell_a_picture_is_read_from_its_losses(losses: list[dict[str, Any]], kind: str) -> None:
    assert chaos.kind_of(record("1-small/picture.png", 1.0, losses=tuple(losses))) == kind


def test_the_plan_is_the_seeds_alone_and_strikes_in_each_way_alike() -> None:
    groups = chaos.plan(300, 5, 1.0, 3.0)

    assert groups == chaos.plan(300, 5, 1.0, 3.0) != chaos.plan(300, 6, 1.0, 3.0)
    assert sum(len(group.names) for group in groups) == 300
    kinds = [group.strike.kind for group in groups if group.strike]
    assert max(map(kinds.count, chaos.STRIKES)) - min(map(kinds.count, chaos.STRIKES)) <= 1
