from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.acceptance.made_reports import (
    PICTURES,
    USUAL_MS,
    changed,
    record,
    report,
    run,
    samples,
    scene,
    start,
)
from watcher.acceptance.comparison import compare
from watcher.acceptance.report import Ran, ReportError, Sample

if TYPE_CHECKING:
    from watcher.acceptance.comparison import Comparison, Difference

NOT_A_SPEED_UP = "no segment changed: not a speed-up"


def moved(comparison: Comparison) -> set[tuple[str, str, str]]:
    """(scene, segment, verdict) of what is called a change."""
    return {
        (part.name, each.segment, each.verdict)
        for part in comparison.parts
        for each in part.differences
        if each.verdict in {"faster", "slower"}
    }


def difference(comparison: Comparison, name: str, segment: str) -> Difference:
    part = next(part for part in comparison.parts if part.name == name)
    return next(each for each in part.differences if each.segment == segment)


# --- equal builds and planted effects ----------------------------------------------------------------------


def test_two_runs_of_one_build_are_told_apart_in_at_most_one_of_twenty() -> None:
    """The machine differs by 12 % (standard deviation) from run to run, each segment by some more."""
    found = [moved(compare(run(2 * seed), run(2 * seed + 1))) for seed in range(20)]
    assert sum(map(bool, found)) <= 1, found


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_decode_that_takes_a_fifth_longer_is_named_and_nothing_else(seed: int) -> None:
    factors = {"decode": 1.2}
    before = run(1000 + seed, requests=320, workers=32, machine=1.0)
    after = run(
        2000 + seed, requests=320, workers=32, machine=1.05, hot_factors=factors, cold_factors=factors
    )
    comparison = compare(before, after)
    assert moved(comparison) == {("hot", "decode", "slower")}
    decode = difference(comparison, "hot", "decode")
    assert decode.low < 0.2 < decode.high
    assert any(line.startswith("slower: decode (hot: +") for line in comparison.statements)
    assert NOT_A_SPEED_UP not in comparison.statements


def test_what_one_process_served_however_often_is_one_experiment() -> None:
    """A process keeps a speed of its own: a thousand requests to one say nothing of the next one."""
    before, after = (
        run(50, requests=1000, workers=1, hot_factors=factors) for factors in (None, {"decode": 1.3})
    )
    comparison = compare(before, after)
    assert moved(comparison) == set()
    assert any("--workers" in line for line in comparison.statements)
    assert difference(comparison, "hot", "decode").verdict == "cannot tell"


def test_a_scene_of_one_process_knows_from_the_hot_one_how_much_processes_differ() -> None:
    def made(seed: int, batch_factor: float, workers: int) -> Any:
        chance = random.Random(seed)
        batch = samples(chance, 60, factors={"encode": batch_factor}, workers=1)
        return report(scene("batch", batch), scene("hot", samples(chance, 80, workers=workers)))

    little, much = (compare(made(1, 1.0, 16), made(2, factor, 16)) for factor in (1.15, 3.0))
    assert moved(little) == set()
    assert moved(much) == {("batch", "encode", "slower")}
    batch, hot = (difference(much, name, "encode").seen_from for name in ("batch", "hot"))
    assert batch > 1.5 * hot
    assert moved(compare(made(1, 1.0, 1), made(2, 3.0, 1))) == set()


@pytest.mark.parametrize("machine", [0.6, 1.7])
def test_another_speed_of_the_machine_is_no_change_of_the_build(machine: float) -> None:
    comparison = compare(run(5, machine=1.0, requests=40), run(6, machine=machine, requests=40))
    assert moved(comparison) == set()
    assert NOT_A_SPEED_UP in comparison.statements
    assert any("all work took" in line and "taken for the machine" in line for line in comparison.statements)
    assert any("the total of hot moved by" in line for line in comparison.statements)


def test_a_change_is_found_on_another_speed_of_the_machine() -> None:
    after = run(8, machine=1.3, requests=60, hot_factors={"encode": 0.5})
    comparison = compare(run(7, machine=1.0, requests=60), after)
    assert ("hot", "encode", "faster") in moved(comparison)
    assert {segment for _, segment, _ in moved(comparison)} == {"encode"}


def test_work_that_all_became_twice_as_fast_on_the_same_machine_is_no_machine() -> None:
    """What the segments have in common is the machine only as far as the fixed reference work says so."""
    factors = dict.fromkeys(("decode", "mask", "preprocess", "inference", "composite", "encode"), 0.4)
    comparison = compare(
        run(9, machine=1.0, requests=40), run(10, machine=1.0, requests=40, hot_factors=factors)
    )
    faster = {
        segment for name, segment, verdict in moved(comparison) if name == "hot" and verdict == "faster"
    }
    assert faster >= {"inference", "encode", "composite"}


def test_a_report_is_no_different_from_itself() -> None:
    comparison = compare(run(1), run(1))
    assert moved(comparison) == set()
    assert all(each.change == 0 for part in comparison.parts for each in part.differences)
    assert comparison.statements[0] == NOT_A_SPEED_UP


def test_the_answer_is_the_same_each_time() -> None:
    assert compare(run(3), run(4)) == compare(run(3), run(4))


def test_the_other_way_round_faster_is_slower() -> None:
    before, after = run(11, requests=60), run(12, requests=60, hot_factors={"encode": 0.5})
    there, back = compare(before, after), compare(after, before)
    assert {(name, segment) for name, segment, _ in moved(there)} == {
        (name, segment) for name, segment, _ in moved(back)
    }
    assert {verdict for _, _, verdict in moved(there)} == {"faster"}
    assert {verdict for _, _, verdict in moved(back)} == {"slower"}


def test_a_trifle_is_no_change_however_sure_it_is() -> None:
    """Three times a fifth of a millisecond, with no noise at all."""

    def made(identify_ms: float) -> Any:
        chain = {**USUAL_MS, "identify": identify_ms}
        return report(
            scene(
                "hot",
                [
                    Sample(picture="a", record=record(chain, worker={"pid": pid}), reference_ms=8.0)
                    for pid in range(8)
                    for _ in range(25)
                ],
            )
        )

    assert moved(compare(made(0.1), made(0.3))) == set()
    assert ("hot", "identify", "slower") in moved(compare(made(1.0), made(3.0)))


def test_the_mix_of_pictures_does_not_matter() -> None:
    """B served the large picture more often: each picture is compared with itself."""
    chance = random.Random(4)
    few = samples(chance, 30, pictures=("coffee.jpg",))
    large = samples(chance, 40, pictures=PICTURES)
    mixed = tuple(each for each in large if each.picture == "astronaut.jpg")
    a = report(scene("hot", (*few, *mixed[:4])))
    b = report(scene("hot", (*few[:8], *mixed)))
    assert moved(compare(a, b)) == set()


# --- what is said ------------------------------------------------------------------------------------------


def test_a_faster_hot_path_alone_is_no_faster_service() -> None:
    after = run(22, requests=60, hot_factors={"inference": 0.5})
    comparison = compare(run(21, requests=60), after)
    cold_s = sorted(sample.record["total_ms"] for sample in after.scenes[2].samples)
    expected = f"the cold path takes {(cold_s[2] + cold_s[3]) / 2000:.2f} s"
    assert f"faster only while the service is healthy: {expected}" in comparison.statements


def test_a_faster_hot_path_without_a_cold_one_says_that_it_was_not_measured() -> None:
    def made(seed: int, inference: float) -> Any:
        return report(scene("hot", samples(random.Random(seed), 60, factors={"inference": inference})))

    comparison = compare(made(1, 1.0), made(2, 0.5))
    assert "faster only while the service is healthy: the cold path was not measured" in comparison.statements


def test_both_paths_faster_is_faster() -> None:
    factors = {"inference": 0.4}
    comparison = compare(
        run(23, requests=60, cold=20),
        run(24, requests=60, cold=20, hot_factors=factors, cold_factors=factors),
    )
    assert {("hot", "inference", "faster"), ("cold", "inference", "faster")} <= moved(comparison)
    assert not any("only while" in line for line in comparison.statements)


def test_a_faster_cold_path_alone_is_told_as_such() -> None:
    after = run(26, requests=60, cold=20, cold_factors={"import": 0.3})
    comparison = compare(run(25, requests=60, cold=20), after)
    assert ("cold", "import", "faster") in moved(comparison)
    assert "faster only while the worker is down: the hot path is as it was" in comparison.statements


def test_a_slower_segment_is_not_called_faster() -> None:
    comparison = compare(run(27, requests=60), run(28, requests=60, hot_factors={"encode": 2.0}))
    assert any(line.startswith("slower: encode") for line in comparison.statements)
    assert not any(line.startswith("faster") for line in comparison.statements)


@pytest.mark.parametrize("requests", [1, 2])
def test_too_few_samples_tell_nothing(requests: int) -> None:
    def made(factor: float) -> Any:
        served = samples(random.Random(requests), requests, factors={"inference": factor}, pictures=("a",))
        return report(scene("hot", served))

    comparison = compare(made(1.0), made(0.2))
    assert comparison.statements == (
        "too little is known to tell anything: ask `watcher accept` for more workers (--workers 16)",
    )
    assert difference(comparison, "hot", "inference").verdict == "cannot tell"


def test_what_cannot_be_told_is_not_called_unchanged() -> None:
    comparison = compare(run(31, cold=2), run(32, cold=2))
    assert comparison.statements[0] == NOT_A_SPEED_UP
    assert any(
        line.startswith("cannot be told: ") and "cold: most of it" in line for line in comparison.statements
    )


# --- what differs besides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"cpu_count": 8}, "CPUs: 2, then 8"),
        ({"packages": {"numpy": "3.0.0", "pillow": "12.3.0"}}, "package numpy: 2.4.6, then 3.0.0"),
        ({"packages": {"numpy": "2.4.6"}}, "package pillow: 12.3.0, then none"),
        (
            {"packages": {"numpy": "2.4.6", "pillow": "12.3.0", "torch": "2.13"}},
            "package torch: none, then 2.13",
        ),
        ({"python": "3.12.1"}, "Python: 3.11.9, then 3.12.1"),
        ({"watcher": "0.2.0"}, "watcher: 0.1.0, then 0.2.0"),
        ({"devices_available": ("cpu", "cuda:0")}, "devices available: cpu, then cpu, cuda:0"),
        ({"processor": "arm64"}, "processor: x86_64, then arm64"),
        ({"system": "Linux 6.2"}, "system: Linux 6.1, then Linux 6.2"),
    ],
)
def test_another_environment_is_said(environment: dict[str, Any], line: str) -> None:
    assert compare(run(1), changed(run(1), **environment)).changed == (line,)


def test_the_load_of_the_machine_is_no_change_of_the_environment() -> None:
    assert compare(run(1), changed(run(1), load_average=7.0)).changed == ()


def test_another_engine_or_device_is_said() -> None:
    served = samples(random.Random(1), 20)
    a = report(scene("hot", served))
    b = report(
        scene(
            "hot",
            served,
            engine=Ran(configured="lama", actual="lama"),
            device=Ran(configured="auto", actual="cuda:0"),
        )
    )
    assert compare(a, b).changed == (
        "hot: configured engine auto, then lama",
        "hot: engine that ran patchmatch, then lama",
        "hot: device that ran cpu, then cuda:0",
    )


def test_a_scene_that_only_one_played_is_said() -> None:
    served = samples(random.Random(1), 20)
    a = report(scene("hot", served), scene("cold", served))
    b = report(scene("hot", served), scene("cold", (), skipped="no time"))
    assert compare(a, b).changed == ("cold: played in A, not in B",)
    assert compare(b, a).changed == ("cold: played in B, not in A",)
    assert [part.name for part in compare(a, b).parts] == ["hot"]


# --- what is compared with what ----------------------------------------------------------------------------


def test_reports_of_other_pictures_are_refused_with_a_remedy() -> None:
    one = report(scene("hot", samples(random.Random(1), 8, pictures=("a.jpg",))))
    two = report(scene("hot", samples(random.Random(1), 8, pictures=("b.jpg",))))
    with pytest.raises(ReportError, match="no picture in common") as refused:
        compare(one, two)
    assert "same pictures" in refused.value.remedy
    assert refused.value.exit_code == 2


def test_only_the_pictures_that_both_have_are_compared() -> None:
    one = report(scene("hot", samples(random.Random(1), 40, pictures=("a.jpg", "b.jpg"))))
    two = report(scene("hot", samples(random.Random(2), 40, pictures=("b.jpg", "c.jpg"))))
    (part,) = compare(one, two).parts
    assert part.left_out == ("a.jpg", "c.jpg")
    assert (part.samples_a, part.samples_b) == (20, 20)


@pytest.mark.parametrize(
    "other",
    [
        {"image": {"width": 6000, "height": 4000}},
        {"path": "cold"},
        {"outcome": "failed"},
    ],
)
def test_unlike_samples_are_not_compared(other: dict[str, Any]) -> None:
    def made(**more: Any) -> Any:
        return report(scene("hot", [Sample(picture="a", record={**record(USUAL_MS), **more})] * 10))

    with pytest.raises(ReportError):
        compare(made(), made(**other))


def test_a_first_request_is_compared_with_a_first_request() -> None:
    """It is slower; a report with more of them is not the slower build."""
    slow = {name: 3 * ms for name, ms in USUAL_MS.items()}
    first = [Sample(picture="a", record=record(slow, first_hot=True), reference_ms=8.0)]
    steady = [Sample(picture="a", record=record(USUAL_MS), reference_ms=8.0)]
    comparison = compare(
        report(scene("hot", first + steady * 9)), report(scene("hot", first * 5 + steady * 5))
    )
    assert moved(comparison) == set()


def test_starts_of_the_worker_are_compared_over_all_scenes() -> None:
    served = samples(random.Random(1), 20)
    quick = [start(number) for number in range(6)]
    slow = [start(number, import_=1500.0) for number in range(6)]
    a = report(
        scene("batch", served, starts=tuple(quick[:2])), scene("recovery", (), starts=tuple(quick[2:]))
    )
    b = report(scene("batch", served, starts=tuple(slow[:2])), scene("recovery", (), starts=tuple(slow[2:])))
    comparison = compare(a, b)
    assert moved(comparison) == {("worker_start", "import", "slower")}


def test_reports_without_the_reference_work_are_compared_all_the_same() -> None:
    def made(seed: int, factor: float) -> Any:
        served = samples(random.Random(seed), 60, factors={"encode": factor})
        return report(scene("hot", [msgspec.structs.replace(each, reference_ms=None) for each in served]))

    comparison = compare(made(1, 1.0), made(2, 2.0))
    assert moved(comparison) == {("hot", "encode", "slower")}
    assert comparison.parts[0].reference_change is None


def test_the_comparison_is_plain_json() -> None:
    comparison = compare(run(1), run(2, cold=1))
    text = json.dumps(msgspec.to_builtins(comparison), allow_nan=False)
    assert json.loads(text)["parts"][0]["name"] == "batch"


@pytest.mark.parametrize("machine", [0.4, 2.6])
def test_a_run_beside_which_something_else_ran_says_nothing(machine: float) -> None:
    """Other work does not slow down all segments alike: it cannot be taken off."""
    after = run(41, machine=machine, requests=60, hot_factors={"inference": 3.0})
    comparison = compare(run(40, machine=1.0, requests=60), after)
    assert moved(comparison) == set()
    assert any("run them again when it is quiet" in line for line in comparison.statements)
    assert NOT_A_SPEED_UP not in comparison.statements
