"""What an acceptance run shows: each claim of the product beside the measured value that decides it.

Rules of this module:
- Pure. A claim rests on records and on what workers said of themselves; nothing follows from the environment.
- What could not be measured is neither true nor false.
- A claim that does not hold is a result. It is not an error of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watcher.acceptance.report import SERVED, Claim
from watcher.acceptance.statistics import median
from watcher.core.record import is_what_was_asked
from watcher.core.timeline import START_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from watcher.acceptance.report import Ran, Record, Sample, Scene, SceneName, WorkerStart

MOST_FIRST_OVER_STEADY: Final = 1.2
MOST_COLD_OVER_PARTS: Final = 1.1
MOST_OVERHEAD_SHARE, MOST_OVERHEAD_MS = 0.05, 30.0
"""Of a hot request, beyond decode, model and encode: the project's targets, like the two ratios above."""
MOST_UNATTRIBUTED_SHARE, MOST_UNATTRIBUTED_MS = 0.05, 2.0
MOST_SUM_ERROR_MS: Final = 1.0
"""The record's contract."""
_MODEL_WORK: Final = ("decode", "inference", "encode")


def claims_of(scenes: Sequence[Scene]) -> tuple[Claim, ...]:
    """Judge what was measured."""
    by_name: dict[SceneName, Scene] = {scene.name: scene for scene in scenes}
    return tuple(_claims(by_name))


def _claims(scenes: Mapping[SceneName, Scene]) -> Iterator[Claim]:
    yield _model_loaded_once(scenes["batch"])
    yield _first_hot(scenes["hot"], scenes["recovery"])
    yield _overhead(scenes["hot"])
    yield _cold_answers(scenes["cold"])
    yield _recovers(scenes["recovery"])
    starts = (*scenes["batch"].starts, *scenes["hot"].starts)
    yield _cold_is_the_sum_of_its_parts(scenes["hot"], scenes["cold"], starts)
    yield _model_cache(scenes["model_cache"])
    yield _attributed([record for scene in scenes.values() for record in _records(scene)])
    played = [scene for scene in scenes.values() if scene.samples]
    yield _as_configured("engine", [scene.engine for scene in played])
    yield _as_configured("device", [scene.device for scene in played])


# --- one by one --------------------------------------------------------------------------------------------


def _model_loaded_once(batch: Scene) -> Claim:
    loads = batch.facts.get("model_loads")
    count = len(batch.samples)
    told = "was not counted" if loads is None else f"was loaded {_times(loads)}, by the workers' own count"
    each_ms = batch.facts.get("amortised_ms")
    return Claim(
        name="model_loaded_once",
        statement=f"over a batch of {count} pictures the model {told}; {each_ms} ms a picture",
        holds=None if loads is None else loads <= 1,
        measured=loads,
        limit=1,
        segment="model_load",
    )


def _first_hot(hot: Scene, recovery: Scene) -> Claim:
    """The first requests to fresh workers, of the hot scene and after each kill, against later ones."""
    first, steady = _first_and_steady(hot, recovery)
    if not first or not steady:
        return _untold("first_hot_over_steady", "there was no first and steady hot request of one picture")
    ratio = median(first) / median(steady)
    return Claim(
        name="first_hot_over_steady",
        statement=f"a first request to a fresh worker takes {median(first):.0f} ms (median of {len(first)}), "
        f"the same picture later {median(steady):.0f} ms: {ratio:.2f} times",
        holds=ratio <= MOST_FIRST_OVER_STEADY,
        measured=round(ratio, 3),
        limit=MOST_FIRST_OVER_STEADY,
        segment="inference",
    )


def _overhead(hot: Scene) -> Claim:
    rows = [
        (
            _total(sample.record) - sum(sample.record["segments_ms"][name] for name in _MODEL_WORK),
            _total(sample.record),
        )
        for sample in hot.samples
        if _is_hot(sample) and not sample.record["first_hot"]
    ]
    if not rows:
        return _untold("service_overhead", "there was no steady hot request")
    over_ms = median([over for over, _ in rows])
    limit_ms = MOST_OVERHEAD_SHARE * median([total for _, total in rows]) + MOST_OVERHEAD_MS
    return Claim(
        name="service_overhead",
        statement=f"a steady hot request takes {over_ms:.1f} ms beyond decode, model and encode",
        holds=over_ms <= limit_ms,
        measured=round(over_ms, 3),
        limit=round(limit_ms, 3),
    )


def _cold_answers(cold: Scene) -> Claim:
    answered = [
        record for record in _served(cold) if record["path"] == "cold" or record["path_reason"] == "once"
    ]
    if not cold.samples:
        return _untold("cold_path_answers", "nothing was asked of the cold path")
    by_reason: dict[str, list[float]] = {}
    for record in answered:
        by_reason.setdefault(str(record["path_reason"]), []).append(_total(record))
    times = "; ".join(f"{reason} {_seconds(median(totals))}" for reason, totals in sorted(by_reason.items()))
    return Claim(
        name="cold_path_answers",
        statement=f"without a worker {len(answered)} of {len(cold.samples)} pictures came out ({times})",
        holds=len(answered) == len(cold.samples),
        measured=round(median(_totals(cold)), 1),
    )


def _recovers(recovery: Scene) -> Claim:
    times_s = [value for name, value in recovery.facts.items() if name.startswith("recovery_") and value]
    if not times_s:
        return _untold("recovers", "no worker was killed")
    back = [record for record in _served(recovery) if record["path"] == "hot"]
    return Claim(
        name="recovers",
        statement=f"after each of {len(times_s)} kills a worker was ready again, within "
        f"{_seconds(max(times_s) * 1e3)}; it served {len(back)} of {len(recovery.samples)} next pictures",
        holds=len(back) == len(recovery.samples),
        measured=round(max(times_s) * 1e3, 1),
    )


def _cold_is_the_sum_of_its_parts(hot: Scene, cold: Scene, ready: Sequence[WorkerStart]) -> Claim:
    """Hold a cold job that has the machine to itself against a worker's start and the same picture, warm."""
    alone = [
        sample for sample in cold.samples if sample.record["path_reason"] == "once" and _is_served(sample)
    ]
    _, warm = _first_and_steady(hot)
    starts = [sum(start.segments_ms.get(name, 0.0) for name in START_SEGMENTS) for start in ready]
    if not alone or not warm or not starts:
        return _untold("cold_is_its_parts", "no cold job had the machine to itself")
    cold_ms = median([_total(sample.record) - _waits(sample.record) for sample in alone])
    parts_ms = median(starts) + median(warm)
    return Claim(
        name="cold_is_its_parts",
        statement=f"a cold job takes {_seconds(cold_ms)}: {cold_ms / parts_ms:.2f} times a worker's start "
        f"and the same picture on the warm worker ({_seconds(parts_ms)})",
        holds=cold_ms <= MOST_COLD_OVER_PARTS * parts_ms,
        measured=round(cold_ms / parts_ms, 3),
        limit=MOST_COLD_OVER_PARTS,
        segment="process_start",
    )


def _model_cache(scene: Scene) -> Claim:
    source, cache = scene.facts.get("source_first_read_ms"), scene.facts.get("cache_again_read_ms")
    if source is None or cache is None:
        return _untold("model_cache", scene.skipped or "the weights were not read")
    loads = [value for name, value in scene.facts.items() if name.endswith("_load_ms") and value is not None]
    return Claim(
        name="model_cache",
        statement=f"weights that are new take {source:.0f} ms to read and verify, known ones in the cache "
        f"{cache:.0f} ms; to load the model from them is apart, {median(loads):.0f} ms",
        holds=cache < source,
        measured=cache,
        limit=source,
        segment="model_read",
    )


def _attributed(records: Sequence[Record]) -> Claim:
    if not records:
        return _untold("time_is_attributed", "nothing was served")
    wrong = [record for record in records if not _adds_up(record)]
    worst = max(record["segments_ms"]["unattributed"] / max(_total(record), 1e-9) for record in records)
    return Claim(
        name="time_is_attributed",
        statement=f"in {len(records) - len(wrong)} of {len(records)} records segments add up to the total, "
        f"and little is unattributed: at most {worst:.1%} of a total",
        holds=not wrong,
        measured=round(worst, 5),
        limit=MOST_UNATTRIBUTED_SHARE,
        segment="unattributed",
    )


def _as_configured(what: str, ran: Sequence[Ran]) -> Claim:
    name = f"{what}_as_configured"
    if not ran:
        return _untold(name, "nothing ran")
    configured = ", ".join(sorted({each.configured for each in ran}))
    actual = ", ".join(sorted({str(each.actual) for each in ran}))
    reasons = "; ".join(sorted({each.reason for each in ran if each.reason is not None}))
    is_one = len({each.actual for each in ran}) == 1
    return Claim(
        name=name,
        statement=f"configured {configured}, ran {actual}" + (f" ({reasons})" if reasons else ""),
        holds=is_one
        and all(each.actual is not None and is_what_was_asked(each.configured, each.actual) for each in ran),
    )


# --- values ------------------------------------------------------------------------------------------------


def _untold(name: str, why: str) -> Claim:
    return Claim(name=name, statement=why, holds=None)


def _records(scene: Scene) -> list[Record]:
    return [sample.record for sample in scene.samples]


def _is_served(sample: Sample) -> bool:
    return sample.record["outcome"] in SERVED


def _is_hot(sample: Sample) -> bool:
    return _is_served(sample) and sample.record["path"] == "hot"


def _served(scene: Scene) -> list[Record]:
    return [sample.record for sample in scene.samples if _is_served(sample)]


def _total(record: Record) -> float:
    return float(record["total_ms"])


def _totals(scene: Scene) -> list[float]:
    return [_total(record) for record in _records(scene)]


def _waits(record: Record) -> float:
    """What came before anybody could begin: it is no part of what a cold job takes."""
    return sum(float(record["segments_ms"][name]) for name in ("backlog", "settle", "identify", "pair"))


def _first_and_steady(hot: Scene, *more: Scene) -> tuple[list[float], list[float]]:
    """The totals of the first picture of the hot scene, on workers that had served nothing and on others."""
    first: list[float] = []
    steady: list[float] = []
    for sample in (sample for scene in (hot, *more) for sample in scene.samples):
        if _is_hot(sample) and sample.picture == hot.samples[0].picture:
            (first if sample.record["first_hot"] else steady).append(_total(sample.record))
    return first, steady


def _adds_up(record: Record) -> bool:
    segments = record["segments_ms"]
    total, unattributed = _total(record), float(segments["unattributed"])
    is_whole = abs(sum(segments.values()) - total) <= MOST_SUM_ERROR_MS
    return (
        is_whole
        and -MOST_SUM_ERROR_MS <= unattributed <= MOST_UNATTRIBUTED_SHARE * total + MOST_UNATTRIBUTED_MS
    )


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f} s"
