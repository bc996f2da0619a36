"""Two acceptance reports, segment by segment: what changed between two builds, and what only seems to have.

Rules of this module:
- Pure, and the same answer for the same two reports: chance is seeded.
- Only like is compared with like: the same picture, served on the same path, in the same scene. What was
  configured or ran differently, and an environment that differs, is said before any number.
- A difference counts only if it is more than what the machine, chance and the next run of the same build
  explain, and more than a trifle. Where even a large change would have gone unseen, the answer is that it
  cannot be told, not that nothing changed.

How a difference is estimated, per scene and segment:

1. Times are compared as logarithms, each against what is usual for its picture, so that pictures of all sizes
   count alike. What disturbs a measurement makes it longer: the mean of the faster half is taken, not of all.
2. The machine is not equally fast in two runs. A slower machine stretches all work alike, a slower build
   stretches some of it: what the *other* segments of the worker's work have in common is taken off. That is
   believed to be the machine only as far as the reports' own reference work says (`REFERENCE_TOLERANCE`).
3. The samples are drawn anew with replacement (bootstrap), whole records at a time, and all of the above is
   done again; that gives the standard error by chance. The error of one run against the next of the same
   build, which no resampling of one run can see, is added (`RUN_SPREADS`, `OTHER_SPREAD`).
4. The interval is as wide as Student's t wants it for *all* segments of all scenes together to be right
   (Bonferroni, `FAMILY_ERROR`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from watcher.acceptance.report import SERVED, ReportError
from watcher.acceptance.statistics import faster_half, median, standard_deviation, student_quantile
from watcher.core.timeline import SEGMENTS, START_SEGMENTS, WORK_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from watcher.acceptance.report import Acceptance, Environment, Sample, Scene

PartName: TypeAlias = 'Literal["batch", "hot", "cold", "recovery", "model_cache", "worker_start"]'
Verdict: TypeAlias = 'Literal["faster", "slower", "no change", "cannot tell"]'
Stratum: TypeAlias = tuple[Any, ...]

FAMILY_ERROR: Final = 0.05
"""How often two reports of one build may be told apart by chance, as far as the constants below are right."""
RUN_SPREADS: Final[Mapping[str, float]] = {
    "decode": 0.025,
    "mask": 0.03,
    "inference": 0.035,
    "read": 0.045,
    "composite": 0.045,
    "preprocess": 0.12,
    "encode": 0.05,
}
OTHER_SPREAD: Final = 0.20
"""Standard deviations of the difference between two runs of one build beyond chance, as logarithms: for work,
what is left when the machine's part is off. Others wait for the disk and for each other. Measured on runs of
one build, 100 requests each, on two cores that others used too; `benchmarks/compare_builds.py` tries it."""
LEAST_FREEDOM: Final = 5
"""With less, Student's t makes every interval wider than a doubling; such a scene is not tested at all, so
that the others need not be the more careful for it."""
REFERENCE_TOLERANCE: Final = 0.3
"""How much further than the reference work, as logarithms, other work may have gone for the machine's sake:
chosen, not measured."""
MACHINE_DOUBT: Final = 0.2
"""How well the machine's part is known: its standard deviation, as a part of itself. The smallest of 0, 0.2,
0.35 and 0.5 that left no false change in 17 comparisons of one build, at loads of 1 to 7 on two cores."""
MOST_MACHINE: Final = math.log(2)
"""Where the reference work took more than twice as long in one of the two, something else ran beside it, and
that does not slow down all work alike."""
SMALLEST_SHARE: Final = 0.05
SMALLEST_MS: Final = 0.5
UNSEEN: Final = math.log(2)
"""Where even twice the time would not have been seen, nothing is said of a segment ..."""
UNSEEN_SHARE: Final = 0.05
"""... unless what may be hidden is less than this part of the total: then it does not matter."""
_FLOOR_MS: Final = 0.05
"""Shorter times are taken as this: below, the ratio of two is that of two interruptions."""
_CONTROL_MS: Final = 1.0
_CONTROLS: Final = 3
"""Segments that say together what the machine did: at least so many, each of at least so many ms."""
_REPLICATES: Final = 400
_CPU_BOUND: Final = frozenset({*WORK_SEGMENTS, *START_SEGMENTS})
_HOT: Final = frozenset({"batch", "hot"})
MACHINE_TOLD: Final = 0.1
"""A common change of all work from which on it is worth a line."""
TOTAL_TOLD: Final = 0.05
_REFERENCE: Final = "reference"
_TOTAL: Final = "total"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of one scene, B against A. Changes are parts of A's time: 0.2 is 20 % more.

    Attributes:
        a_ms: median, of the samples that are compared.
        b_ms: likewise.
        change: what is left of the difference after the machine's part is taken off.
        low: of the interval around `change`.
        high: likewise.
        change_as_measured: with the machine's part.
        seen_from: the smallest change that would have been seen.
        verdict: see the rules of this module; None for the total, which is a sum and decides nothing.
    """

    segment: str
    a_ms: float
    b_ms: float
    change: float
    low: float
    high: float
    change_as_measured: float
    seen_from: float
    verdict: Verdict | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One scene in both reports, or the starts of the worker in all scenes together.

    Attributes:
        samples_a: that are compared.
        samples_b: likewise.
        left_out: pictures that only one of the two has.
        machine_change: what the other segments say about the machine, or None where they cannot.
        reference_change: what the fixed piece of work says, or None where it was not taken.
        total: of the samples that are compared, as measured.
        differences: in the order of time; segments that are 0 everywhere are not there.
    """

    name: PartName
    samples_a: int
    samples_b: int
    left_out: tuple[str, ...]
    machine_change: float | None
    reference_change: float | None
    total: Difference | None
    differences: tuple[Difference, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What two reports say together.

    Attributes:
        a: when A was made.
        b: likewise.
        changed: what differs in configuration, in what ran, and in the environment.
        statements: the answer, in plain words.
        parts: the numbers behind it.
    """

    a: str
    b: str
    changed: tuple[str, ...]
    statements: tuple[str, ...]
    parts: tuple[Part, ...]


def compare(a: Acceptance, b: Acceptance) -> Comparison:
    """Compare report B against report A.

    Raises:
        ReportError: no scene has a picture that both reports have.
    """
    pairs = [_pair(scene, b.scene(scene.name)) for scene in a.scenes]
    compared = [pair for pair in pairs if pair is not None and pair.a and pair.b]
    if not compared:
        what = "the two reports have no picture in common that was served in the same scene"
        remedy = (
            "make both with the same pictures: `watcher accept`, or `watcher accept --pictures DIR` twice"
        )
        raise ReportError(what, remedy, exit_code=2)
    starts = _pair_of_starts(a, b)
    if starts.a and starts.b:
        compared.append(starts)
    parts = tuple(_part(pair, _allowed_error(pair, compared)) for pair in compared)
    return Comparison(
        a=a.ts,
        b=b.ts,
        changed=tuple(_changes(a, b)),
        statements=tuple(_statements(parts, b)),
        parts=parts,
    )


# --- what is compared with what ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """One sample: where it belongs, and its times in ms by segment."""

    stratum: Stratum
    times_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The rows of one scene in both reports that have a counterpart."""

    name: PartName
    a: tuple[_Row, ...]
    b: tuple[_Row, ...]
    left_out: tuple[str, ...] = ()

    @property
    def freedom(self) -> int:
        """Degrees of freedom: samples, less what their pictures and the two reports use up."""
        return len(self.a) + len(self.b) - len({row.stratum for row in self.a}) - 1

    @property
    def can_tell(self) -> bool:
        """There are enough samples to tell anything."""
        return min(len(self.a), len(self.b)) > 1 and self.freedom >= LEAST_FREEDOM

    @property
    def tested(self) -> tuple[str, ...]:
        """The segments that are not 0 everywhere, in the order of time."""
        seen = {name for row in (*self.a, *self.b) for name, ms in row.times_ms.items() if ms}
        others = sorted(seen - {*SEGMENTS, _REFERENCE, _TOTAL, "unattributed"})
        return tuple(name for name in (*SEGMENTS, *others) if name in seen)


def _pair(scene: Scene, other: Scene | None) -> _Pair | None:
    if other is None:
        return None
    rows_a, rows_b = list(_rows(scene.samples)), list(_rows(other.samples))
    both = {row.stratum for row in rows_a} & {row.stratum for row in rows_b}
    left_out = {str(row.stratum[0]) for row in (*rows_a, *rows_b)} - {str(stratum[0]) for stratum in both}
    return _Pair(
        scene.name,
        tuple(row for row in rows_a if row.stratum in both),
        tuple(row for row in rows_b if row.stratum in both),
        tuple(sorted(left_out)),
    )


def _rows(samples: Iterable[Sample]) -> Iterator[_Row]:
    for sample in samples:
        record = sample.record
        if record.get("outcome") not in SERVED:
            continue
        image = record.get("image") or {}
        size = (image.get("width"), image.get("height"))
        times_ms = {str(name): float(ms) for name, ms in record["segments_ms"].items()}
        times_ms[_TOTAL] = float(record["total_ms"])
        if sample.reference_ms:
            times_ms[_REFERENCE] = sample.reference_ms
        path = (record.get("path"), record.get("path_reason"))
        stratum = (sample.picture, size, *path, bool(record.get("first_hot")))
        yield _Row(stratum, times_ms)


def _pair_of_starts(a: Acceptance, b: Acceptance) -> _Pair:
    def rows(report: Acceptance) -> tuple[_Row, ...]:
        starts = [start.segments_ms for scene in report.scenes for start in scene.starts]
        return tuple(_Row(("worker",), {**start, _TOTAL: sum(start.values())}) for start in starts)

    return _Pair("worker_start", rows(a), rows(b))


# --- estimates ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shifts:
    """Differences of logarithms, B against A."""

    measured: Mapping[str, float]
    adjusted: Mapping[str, float]
    machine: float | None


def _allowed_error(pair: _Pair, compared: Sequence[_Pair]) -> float:
    """The part of `FAMILY_ERROR` that one segment of this scene gets: many samples get more of it."""
    whole = sum(each.freedom for each in compared if each.can_tell)
    return FAMILY_ERROR * max(1, pair.freedom) / max(1, whole, pair.freedom) / max(1, len(pair.tested))


def _part(pair: _Pair, error: float) -> Part:
    names = pair.tested
    columns = [*names, _TOTAL]
    if all(_REFERENCE in row.times_ms for row in (*pair.a, *pair.b)):
        columns.append(_REFERENCE)
    rows_a, rows_b = _centred(pair, columns)
    controls = _controls(pair, names)
    shifts = _shifts(rows_a, rows_b, columns, controls)
    errors = _errors(rows_a, rows_b, columns, controls, freedom=pair.freedom, count=len(pair.a) + len(pair.b))
    wide = student_quantile(error, max(1, pair.freedom))
    total_ms = median([row.times_ms[_TOTAL] for row in pair.a])
    differences = tuple(
        _difference(name, pair, shifts, errors, wide=wide, total_ms=total_ms) for name in names
    )
    total = _difference(_TOTAL, pair, shifts, errors, wide=wide, total_ms=total_ms)
    reference = shifts.measured.get(_REFERENCE)
    return Part(
        name=pair.name,
        samples_a=len(pair.a),
        samples_b=len(pair.b),
        left_out=pair.left_out,
        machine_change=None if shifts.machine is None else _as_change(shifts.machine),
        reference_change=None if reference is None else _as_change(reference),
        total=msgspec.structs.replace(total, verdict=None),
        differences=differences,
    )


def _centred(pair: _Pair, columns: Sequence[str]) -> tuple[list[list[float]], list[list[float]]]:
    """Logarithms against what is usual for their stratum in both reports, each report counting half."""
    usual: dict[Stratum, list[float]] = {}
    for stratum in {row.stratum for row in pair.a}:
        of_a = [_logs(row, columns) for row in pair.a if row.stratum == stratum]
        of_b = [_logs(row, columns) for row in pair.b if row.stratum == stratum]
        usual[stratum] = [
            (median([row[index] for row in of_a]) + median([row[index] for row in of_b])) / 2
            for index in range(len(columns))
        ]

    def centred(rows: Iterable[_Row]) -> list[list[float]]:
        return [
            [log - middle for log, middle in zip(_logs(row, columns), usual[row.stratum], strict=True)]
            for row in rows
        ]

    return centred(pair.a), centred(pair.b)


def _logs(row: _Row, columns: Sequence[str]) -> list[float]:
    return [math.log(max(_FLOOR_MS, row.times_ms.get(name, 0.0))) for name in columns]


def _controls(pair: _Pair, names: Sequence[str]) -> tuple[str, ...]:
    """Segments of work on the CPU that are long enough to tell what the machine did."""

    def is_long(rows: Sequence[_Row], name: str) -> bool:
        return median([row.times_ms.get(name, 0.0) for row in rows]) >= _CONTROL_MS

    return tuple(
        name for name in names if name in _CPU_BOUND and is_long(pair.a, name) and is_long(pair.b, name)
    )


def _shifts(
    rows_a: Sequence[Sequence[float]],
    rows_b: Sequence[Sequence[float]],
    columns: Sequence[str],
    controls: Sequence[str],
) -> _Shifts:
    measured = {
        name: faster_half([row[index] for row in rows_b]) - faster_half([row[index] for row in rows_a])
        for index, name in enumerate(columns)
    }
    reference = measured.get(_REFERENCE, 0.0)

    def machine(besides: str | None) -> float | None:
        others = [measured[name] for name in controls if name != besides]
        if len(others) < _CONTROLS:
            return None
        common = median(others)
        return min(max(common, reference - REFERENCE_TOLERANCE), reference + REFERENCE_TOLERANCE)

    adjusted = {name: shift - (machine(name) or 0.0) for name, shift in measured.items()}
    return _Shifts(measured, adjusted, machine(None))


@dataclass(frozen=True, slots=True)
class _Errors:
    """Standard errors of `_Shifts`."""

    measured: Mapping[str, float]
    adjusted: Mapping[str, float]


def _errors(
    rows_a: Sequence[Sequence[float]],
    rows_b: Sequence[Sequence[float]],
    columns: Sequence[str],
    controls: Sequence[str],
    *,
    freedom: int,
    count: int,
) -> _Errors:
    chance = random.Random(0)  # noqa: S311 - no secret: the same reports are to give the same answer
    replicates = [
        _shifts(
            chance.choices(rows_a, k=len(rows_a)),
            chance.choices(rows_b, k=len(rows_b)),
            columns,
            controls,
        )
        for _ in range(_REPLICATES)
    ]
    # Rows were centred on what they themselves gave, which took some of their spread away.
    inflation = math.sqrt(count / max(1, freedom))
    return _Errors(
        {
            name: inflation * standard_deviation([each.measured[name] for each in replicates])
            for name in columns
        },
        {
            name: inflation * standard_deviation([each.adjusted[name] for each in replicates])
            for name in columns
        },
    )


def _difference(
    name: str,
    pair: _Pair,
    shifts: _Shifts,
    errors: _Errors,
    *,
    wide: float,
    total_ms: float,
) -> Difference:
    a_ms = median([row.times_ms.get(name, 0.0) for row in pair.a])
    b_ms = median([row.times_ms.get(name, 0.0) for row in pair.b])
    is_work = name in _CPU_BOUND and shifts.machine is not None
    spread = RUN_SPREADS.get(name, OTHER_SPREAD) if is_work else OTHER_SPREAD
    spread = math.hypot(spread, MACHINE_DOUBT * (shifts.machine or 0.0))
    measured, adjusted = shifts.measured[name], shifts.adjusted[name]
    half = wide * math.hypot(errors.adjusted[name], spread)
    half_measured = wide * math.hypot(errors.measured[name], OTHER_SPREAD)
    shift = measured if name == _TOTAL else adjusted
    seen_from = _as_change(max(half, math.log1p(SMALLEST_SHARE)))
    matters = abs(shift) >= math.log1p(SMALLEST_SHARE) and abs(a_ms * _as_change(shift)) >= SMALLEST_MS
    is_seen = abs(adjusted) > half and (
        measured * adjusted > 0 if is_work else abs(measured) > half_measured and measured * adjusted > 0
    )
    verdict: Verdict
    if abs(shifts.measured.get(_REFERENCE, 0.0)) > MOST_MACHINE:
        verdict = "cannot tell"
    elif matters and is_seen and pair.can_tell:
        verdict = "slower" if shift > 0 else "faster"
    elif (not pair.can_tell or half > UNSEEN) and a_ms * _as_change(half) > max(
        SMALLEST_MS, UNSEEN_SHARE * total_ms
    ):
        verdict = "cannot tell"
    else:
        verdict = "no change"
    return Difference(
        segment=name,
        a_ms=round(a_ms, 3),
        b_ms=round(b_ms, 3),
        change=round(_as_change(shift), 4),
        low=round(_as_change(shift - half), 4),
        high=round(_as_change(shift + half), 4),
        change_as_measured=round(_as_change(measured), 4),
        seen_from=round(seen_from, 4),
        verdict=verdict,
    )


def _as_change(shift: float) -> float:
    """A difference of logarithms as a part of A's time; beyond a million it says no more than `very much`."""
    return math.expm1(min(shift, 14.0))


# --- words -------------------------------------------------------------------------------------------------


def _changes(a: Acceptance, b: Acceptance) -> Iterator[str]:
    """What differs besides the times: it explains them before any build does."""
    if a.pictures != b.pictures:
        yield f"pictures: {a.pictures}, then {b.pictures}"
    for scene in a.scenes:
        other = b.scene(scene.name)
        if other is None or scene.skipped is not None or other.skipped is not None:
            if (other is None or other.skipped is not None) != (scene.skipped is not None):
                played, not_played = ("A", "B") if scene.skipped is None else ("B", "A")
                yield f"{scene.name}: played in {played}, not in {not_played}"
            continue
        for what, one, two in (
            ("engine", scene.engine, other.engine),
            ("device", scene.device, other.device),
        ):
            if one.configured != two.configured:
                yield f"{scene.name}: configured {what} {one.configured}, then {two.configured}"
            if one.actual != two.actual:
                yield f"{scene.name}: {what} that ran {one.actual or '-'}, then {two.actual or '-'}"
    yield from _environment_changes(a.environment, b.environment)


def _environment_changes(a: Environment, b: Environment) -> Iterator[str]:
    named = {
        "watcher": (a.watcher, b.watcher),
        "Python": (a.python, b.python),
        "system": (a.system, b.system),
        "processor": (a.processor, b.processor),
        "CPUs": (a.cpu_count, b.cpu_count),
        "memory": (a.memory_bytes, b.memory_bytes),
        "devices available": (", ".join(a.devices_available), ", ".join(b.devices_available)),
    }
    for name in sorted(a.packages.keys() | b.packages.keys()):
        named[f"package {name}"] = (a.packages.get(name, "none"), b.packages.get(name, "none"))
    for name, (one, two) in named.items():
        if one != two:
            yield f"{name}: {one}, then {two}"


def _statements(parts: Sequence[Part], b: Acceptance) -> Iterator[str]:
    faster, slower = _moved(parts, "faster"), _moved(parts, "slower")
    untold = [] if all(map(_is_untold, parts)) else _moved(parts, "cannot tell")
    if not faster and not slower:
        yield from _nothing_moved(parts)
    for verdict, moved in (("slower", slower), ("faster", faster)):
        if moved:
            yield f"{verdict}: " + ", ".join(_told(part, difference) for part, difference in moved)
    hot, cold = (
        any((part.name in _HOT) == is_hot and part.name in (*_HOT, "cold") for part, _ in faster)
        for is_hot in (True, False)
    )
    if hot and not cold:
        yield f"faster only while the service is healthy: {_cold_time(b)}"
    if cold and not hot:
        yield "faster only while the worker is down: the hot path is as it was"
    if untold:
        yield f"cannot be told: {_listed(untold)}"
    yield from _about_the_machine(parts)


def _nothing_moved(parts: Sequence[Part]) -> Iterator[str]:
    referenced = [part for part in parts if part.reference_change is not None]
    if referenced and all(map(_was_disturbed, referenced)):
        return  # that is said, and nothing else can be
    if all(_is_untold(part) for part in parts):
        yield "too few samples to tell anything: ask `watcher accept` for more requests"
        return
    yield "no segment changed: not a speed-up"
    for part in parts:
        if part.total is not None and abs(part.total.change) >= TOTAL_TOLD and not _is_untold(part):
            moved = f"the total of {_title(part)} moved by {_percent(part.total.change)}"
            yield f"{moved}, and no segment of it by more than chance and the machine explain"


def _was_disturbed(part: Part) -> bool:
    return part.reference_change is not None and abs(math.log1p(part.reference_change)) > MOST_MACHINE


def _is_untold(part: Part) -> bool:
    """Most of its time lies in segments of which nothing can be said."""
    whole = sum(each.a_ms for each in part.differences)
    return sum(each.a_ms for each in part.differences if each.verdict == "cannot tell") > whole / 2


def _about_the_machine(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if _was_disturbed(part):
            fixed = f"the fixed reference work took {_percent(part.reference_change or 0.0)} in B"
            beside = f"something else ran beside one of the two ({fixed})"
            yield f"{_title(part)}: {beside}; run them again when it is quiet"
            continue
        common, reference = part.machine_change, part.reference_change
        if common is None or abs(common) < MACHINE_TOLD or _is_untold(part):
            continue
        beside = "" if reference is None else f" (the fixed reference work: {_percent(reference)})"
        machine = f"all work took {_percent(common)} together in B{beside}"
        yield f"{_title(part)}: {machine}; that is taken for the machine and off the changes"


def _moved(parts: Sequence[Part], verdict: Verdict) -> list[tuple[Part, Difference]]:
    return [(part, each) for part in parts for each in part.differences if each.verdict == verdict]


def _listed(moved: Sequence[tuple[Part, Difference]]) -> str:
    by_part: dict[str, list[str]] = {}
    for part, each in moved:
        by_part.setdefault(_title(part), []).append(each.segment)
        if _is_untold(part):
            by_part[_title(part)] = ["most of it"]
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in by_part.items())


def _told(part: Part, difference: Difference) -> str:
    return f"{difference.segment} ({_title(part)}: {_percent(difference.change)})"


def _title(part: Part) -> str:
    return part.name.replace("_", " ")


def _percent(change: float) -> str:
    return f"{change:+.0%}"


def _cold_time(report: Acceptance) -> str:
    cold = report.scene("cold")
    totals = [float(sample.record["total_ms"]) for sample in cold.samples] if cold is not None else []
    return (
        f"the cold path takes {median(totals) / 1000:.2f} s" if totals else "the cold path was not measured"
    )
