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
   count alike. A process keeps a speed of its own for all of its life: what it served is one experiment, and
   its median is one value. The means over the processes are compared.
2. The machine is not equally fast in two runs. A slower machine stretches all work alike, a slower build
   stretches some of it: what the *other* segments of a worker's work have in common is taken off. That is
   believed to be the machine only as far as the reports' own reference work says (`REFERENCE_TOLERANCE`).
3. The processes are drawn anew with replacement (bootstrap), and the means taken again; that gives the
   standard error by chance. A scene with one process a run draws its samples, and has the spread from process
   to process from the hot scene. The error of one run against the next of the same build, which no resampling
   of one run can see, is added (`RUN_SPREADS`, `OTHER_SPREAD`).
4. The interval is as wide as Student's t wants it for *all* segments of all scenes together to be right
   (Bonferroni, `FAMILY_ERROR`, `ERROR_SHARES`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from watcher.acceptance.report import SERVED, ReportError
from watcher.acceptance.statistics import median, standard_deviation, student_quantile
from watcher.core.timeline import SEGMENTS, START_SEGMENTS, WORK_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from watcher.acceptance.report import Acceptance, Environment, Sample, Scene

PartName: TypeAlias = 'Literal["batch", "hot", "cold", "recovery", "model_cache", "worker_start"]'
Verdict: TypeAlias = 'Literal["faster", "slower", "no change", "cannot tell"]'
Stratum: TypeAlias = tuple[Any, ...]

FAMILY_ERROR: Final = 0.05
"""How often two reports of one build may be told apart by chance, as far as the constants below are right."""
ERROR_SHARES: Final[Mapping[PartName, float]] = {
    "hot": 0.5,
    "batch": 0.1,
    "cold": 0.15,
    "recovery": 0.1,
    "model_cache": 0.05,
    "worker_start": 0.1,
}
"""Of `FAMILY_ERROR`; a scene's segments have equal parts of its share. Most runs are about the hot path."""
RUN_SPREADS: Final[Mapping[str, float]] = {
    "read": 0.10,
    "decode": 0.025,
    "mask": 0.03,
    "preprocess": 0.06,
    "inference": 0.02,
    "composite": 0.04,
    "encode": 0.025,
    "publish": 0.30,
    **dict.fromkeys(START_SEGMENTS, 0.08),
}
OTHER_SPREAD: Final = 0.20
"""Standard deviations of the difference between two runs of one build beyond that from process to process,
as logarithms: for work, what is left when the machine's part is off. Others wait for the disk and for each
other. Measured on runs of eight workers on two cores that others used too, and tried by
`benchmarks/compare_builds.py`."""
LEAST_FREEDOM: Final = 5
"""With less, Student's t makes every interval wider than a doubling; such a scene is not tested at all, so
that the others need not be the more careful for it."""
REFERENCE_TOLERANCE: Final = 0.3
"""How much further than the reference work, as logarithms, other work may have gone for the machine's sake:
chosen, not measured."""
MACHINE_DOUBT: Final = 0.3
"""How well the machine's part is known: its standard deviation, as a part of itself. When other work slowed
all down by a tenth, decode did so by 1.4 times that, encode by 0.6, other long segments by 0.9 to 1.2."""
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
_AS_GOOD_AS_KNOWN: Final = 1000
"""Degrees of freedom from which on Student's t is the normal distribution, for our purpose."""
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
        workers_a: processes that served them.
        workers_b: likewise.
        left_out: pictures that only one of the two has.
        machine_change: what the other segments say about the machine, or None where they cannot.
        reference_change: what the fixed piece of work says, or None where it was not taken.
        total: of the samples that are compared, as measured.
        differences: in the order of time; segments that are 0 everywhere are not there.
    """

    name: PartName
    samples_a: int
    samples_b: int
    workers_a: int
    workers_b: int
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
    parts = tuple(map(_part, _estimates(compared)))
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
    """One sample: where it belongs, who served it, and its times in ms by segment."""

    stratum: Stratum
    worker: int | None
    times_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The rows of one scene in both reports that have a counterpart."""

    name: PartName
    a: tuple[_Row, ...]
    b: tuple[_Row, ...]
    left_out: tuple[str, ...] = ()

    @property
    def workers(self) -> tuple[int, int]:
        """How many processes served, in A and in B."""
        return len({row.worker for row in self.a}), len({row.worker for row in self.b})

    @property
    def is_by_worker(self) -> bool:
        """What differs from process to process can be seen in the scene itself."""
        return min(self.workers) > 1

    @property
    def freedom(self) -> int:
        """Degrees of freedom: processes (or samples of one), less what their kinds and two reports use up."""
        if self.is_by_worker:
            return sum(self.workers) - len(_kinds((*self.a, *self.b))) - 1
        return len(self.a) + len(self.b) - len({row.stratum for row in self.a}) - 1

    @property
    def tested(self) -> tuple[str, ...]:
        """The segments that are not 0 everywhere, in the order of time."""
        seen = {name for row in (*self.a, *self.b) for name, ms in row.times_ms.items() if ms}
        others = sorted(seen - {*SEGMENTS, _REFERENCE, _TOTAL, "unattributed"})
        return tuple(name for name in (*SEGMENTS, *others) if name in seen)


def _kinds(rows: Sequence[_Row]) -> list[set[Stratum]]:
    """Strata that no process links: what is usual in each is estimated apart, which uses up freedom."""
    kinds: list[set[Stratum]] = []
    served: dict[int | None, set[Stratum]] = {}
    for row in rows:
        served.setdefault(row.worker, set()).add(row.stratum)
    for strata in served.values():
        joined = [kind for kind in kinds if kind & strata]
        kinds = [kind for kind in kinds if not kind & strata]
        kinds.append(strata.union(*joined))
    return kinds


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
        yield _Row(stratum, (record.get("worker") or {}).get("pid"), times_ms)


def _pair_of_starts(a: Acceptance, b: Acceptance) -> _Pair:
    def rows(report: Acceptance) -> tuple[_Row, ...]:
        starts = [start for scene in report.scenes for start in scene.starts]
        return tuple(
            _Row(("worker",), number, {**start.segments_ms, _TOTAL: sum(start.segments_ms.values())})
            for number, start in enumerate(starts)
        )

    return _Pair("worker_start", rows(a), rows(b))


# --- estimates ---------------------------------------------------------------------------------------------

_Logs: TypeAlias = "list[float]"
"""Logarithms of one sample's times by column, against what is usual for its stratum."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What is estimated of one scene.

    Attributes:
        names: its segments, the total, and the reference work if all samples have it.
        others: of each column, those that say together what the machine did; None where they are too few.
    """

    names: tuple[str, ...]
    others: tuple[tuple[int, ...], ...] | None


def _columns(pair: _Pair) -> _Columns:
    has_reference = all(_REFERENCE in row.times_ms for row in (*pair.a, *pair.b))
    names = (*pair.tested, _TOTAL, *((_REFERENCE,) if has_reference else ()))

    def is_long(name: str) -> bool:
        return all(
            median([row.times_ms.get(name, 0.0) for row in rows]) >= _CONTROL_MS for rows in (pair.a, pair.b)
        )

    controls = [index for index, name in enumerate(names) if name in _CPU_BOUND and is_long(name)]
    others = tuple(tuple(control for control in controls if control != index) for index in range(len(names)))
    return _Columns(names, others if min(map(len, others)) >= _CONTROLS else None)


@dataclass(frozen=True, slots=True)
class _Worker:
    """What is usual for one process, as logarithms by column.

    Attributes:
        usual: the median of what it served.
        machine: what the other work has in common; None where it is too little to tell.
    """

    usual: tuple[float, ...]
    machine: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class _Shifts:
    """Differences of logarithms, B against A.

    Attributes:
        measured: by column.
        machine: of each column, what the other work has in common; None where they are too few to tell.
        adjusted: measured, less the machine's part.
    """

    measured: Mapping[str, float]
    machine: Mapping[str, float] | None
    adjusted: Mapping[str, float]

    @property
    def common(self) -> float | None:
        """What all work has in common."""
        return None if self.machine is None else self.machine[_TOTAL]


@dataclass(frozen=True, slots=True)
class _Errors:
    """Standard errors of `_Shifts`, and the degrees of freedom that they rest on."""

    measured: Mapping[str, float]
    adjusted: Mapping[str, float]
    freedom: int

    @property
    def can_tell(self) -> bool:
        """They rest on enough to tell anything."""
        return self.freedom >= LEAST_FREEDOM


@dataclass(frozen=True, slots=True)
class _Estimates:
    """What is known of one scene, before it is decided what of it counts."""

    pair: _Pair
    shifts: _Shifts
    errors: _Errors


def _estimates(pairs: Sequence[_Pair]) -> list[_Estimates]:
    """Estimate each scene; the hot one lends the others what they cannot know."""
    hot = next((_alone(pair) for pair in pairs if pair.name == "hot"), None)
    return [hot if hot is not None and pair is hot.pair else _lent(_alone(pair), hot) for pair in pairs]


def _alone(pair: _Pair) -> _Estimates:
    columns = _columns(pair)
    a, b = ([_worker(each, columns) for each in served] for served in _centred(pair, columns.names))
    errors = _errors(pair, columns)
    return _Estimates(
        pair, _shifts(a, b, columns), errors if pair.is_by_worker else replace(errors, freedom=0)
    )


def _lent(own: _Estimates, hot: _Estimates | None) -> _Estimates:
    """Add what the hot scene knows: how much processes differ, and what the machine did."""
    if hot is None or not hot.pair.is_by_worker:
        return own
    errors, shifts = own.errors, own.shifts
    if not own.pair.is_by_worker:
        # The standard error of a difference of means over workers; without it, that of two single ones.
        single = math.sqrt(2 / sum(1 / workers for workers in hot.pair.workers))
        errors = replace(
            _together(errors, hot.errors, single), freedom=min(own.pair.freedom, hot.errors.freedom)
        )
    if shifts.machine is None and hot.shifts.common is not None:
        machine = dict.fromkeys(shifts.measured, hot.shifts.common)
        adjusted = {
            name: shift - (machine[name] if name in _CPU_BOUND else 0.0)
            for name, shift in shifts.measured.items()
        }
        shifts = _Shifts(shifts.measured, machine, adjusted)
    return _Estimates(own.pair, shifts, errors)


def _together(own: _Errors, borrowed: _Errors, times: float) -> _Errors:
    """Errors that add up; of a segment that the other scene does not have, its total's is taken."""

    def added(mine: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
        return {
            name: math.hypot(error, other.get(name, other[_TOTAL]) * times) for name, error in mine.items()
        }

    return replace(
        own,
        measured=added(own.measured, borrowed.measured),
        adjusted=added(own.adjusted, borrowed.adjusted),
    )


def _centred(pair: _Pair, names: Sequence[str]) -> tuple[list[list[_Logs]], list[list[_Logs]]]:
    """By process, logarithms against what is usual for their stratum in both reports, each counting half."""
    usual: dict[Stratum, list[float]] = {}
    for stratum in {row.stratum for row in pair.a}:
        of_a = [_logs(row, names) for row in pair.a if row.stratum == stratum]
        of_b = [_logs(row, names) for row in pair.b if row.stratum == stratum]
        usual[stratum] = [
            (median(in_a) + median(in_b)) / 2
            for in_a, in_b in zip(zip(*of_a, strict=True), zip(*of_b, strict=True), strict=True)
        ]

    def centred(rows: Iterable[_Row]) -> list[list[_Logs]]:
        served: dict[int | None, list[_Logs]] = {}
        for row in rows:
            logs = zip(_logs(row, names), usual[row.stratum], strict=True)
            by = row.worker if pair.is_by_worker else None
            served.setdefault(by, []).append([log - middle for log, middle in logs])
        return list(served.values())

    return centred(pair.a), centred(pair.b)


def _logs(row: _Row, names: Sequence[str]) -> _Logs:
    return [math.log(max(_FLOOR_MS, row.times_ms.get(name, 0.0))) for name in names]


def _worker(served: Sequence[_Logs], columns: _Columns) -> _Worker:
    usual = tuple(median(logs) for logs in zip(*served, strict=True))
    if columns.others is None:
        return _Worker(usual, None)
    return _Worker(usual, tuple(median([usual[index] for index in others]) for others in columns.others))


def _shifts(a: Sequence[_Worker], b: Sequence[_Worker], columns: _Columns) -> _Shifts:
    usual = _difference_of_means([each.usual for each in a], [each.usual for each in b])
    measured = dict(zip(columns.names, usual, strict=True))
    machine_a, machine_b = (
        [each.machine for each in workers if each.machine is not None] for workers in (a, b)
    )
    if not machine_a or not machine_b:
        return _Shifts(measured, None, measured)
    reference = measured.get(_REFERENCE, 0.0)
    common = zip(columns.names, _difference_of_means(machine_a, machine_b), strict=True)
    machine = {
        name: min(max(shift, reference - REFERENCE_TOLERANCE), reference + REFERENCE_TOLERANCE)
        for name, shift in common
    }
    return _Shifts(measured, machine, {name: shift - machine[name] for name, shift in measured.items()})


def _difference_of_means(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """By column, the mean over the workers of B less that over those of A."""
    columns = zip(zip(*a, strict=True), zip(*b, strict=True), strict=True)
    return [fmean(of_b) - fmean(of_a) for of_a, of_b in columns]


def _errors(pair: _Pair, columns: _Columns) -> _Errors:
    """Draw anew, again and again: processes, or, where there was but one, what it served."""
    chance = random.Random(0)  # noqa: S311 - no secret: the same reports are to give the same answer

    def drawing(served: list[list[_Logs]]) -> Callable[[], list[_Worker]]:
        workers = [_worker(each, columns) for each in served]
        if pair.is_by_worker:
            return lambda: chance.choices(workers, k=len(workers))
        return lambda: [_worker(chance.choices(each, k=len(each)), columns) for each in served]

    draw_a, draw_b = map(drawing, _centred(pair, columns.names))
    replicates = [_shifts(draw_a(), draw_b(), columns) for _ in range(_REPLICATES)]
    # What is drawn was centred on what it gave itself, which took some of its spread away.
    count = sum(pair.workers) if pair.is_by_worker else len(pair.a) + len(pair.b)
    inflation = math.sqrt(count / max(1, pair.freedom))

    def error(shifts: Iterable[float]) -> float:
        return inflation * standard_deviation(list(shifts))

    return _Errors(
        {name: error(each.measured[name] for each in replicates) for name in columns.names},
        {name: error(each.adjusted[name] for each in replicates) for name in columns.names},
        pair.freedom,
    )


def _part(estimates: _Estimates) -> Part:
    pair, shifts = estimates.pair, estimates.shifts
    error = FAMILY_ERROR * ERROR_SHARES[pair.name] / max(1, len(pair.tested))
    reference, common = shifts.measured.get(_REFERENCE), shifts.common
    return Part(
        name=pair.name,
        samples_a=len(pair.a),
        samples_b=len(pair.b),
        workers_a=pair.workers[0],
        workers_b=pair.workers[1],
        left_out=pair.left_out,
        machine_change=None if common is None else _as_change(common),
        reference_change=None if reference is None else _as_change(reference),
        total=msgspec.structs.replace(_difference(_TOTAL, estimates, error), verdict=None),
        differences=tuple(_difference(name, estimates, error) for name in pair.tested),
    )


def _difference(name: str, estimates: _Estimates, error: float) -> Difference:
    pair, shifts, errors = estimates.pair, estimates.shifts, estimates.errors
    a_ms = median([row.times_ms.get(name, 0.0) for row in pair.a])
    b_ms = median([row.times_ms.get(name, 0.0) for row in pair.b])
    measured, adjusted = shifts.measured[name], shifts.adjusted[name]
    is_work = name in _CPU_BOUND and shifts.machine is not None
    spread = _run_spread(name, is_work=is_work, machine=shifts.common or 0.0)
    half = _half_width(errors.adjusted[name], spread, errors.freedom, error)
    half_measured = _half_width(errors.measured[name], spread, errors.freedom, error)
    shift = measured if name == _TOTAL else adjusted
    is_seen = measured * adjusted > 0 and abs(adjusted) > half and (is_work or abs(measured) > half_measured)
    matters = abs(shift) >= math.log1p(SMALLEST_SHARE) and abs(a_ms * _as_change(shift)) >= SMALLEST_MS
    verdict: Verdict
    if abs(shifts.measured.get(_REFERENCE, 0.0)) > MOST_MACHINE:
        verdict = "cannot tell"
    elif matters and is_seen and errors.can_tell:
        verdict = "slower" if shift > 0 else "faster"
    elif _could_hide_much(a_ms, half, estimates):
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
        seen_from=round(_as_change(max(half, math.log1p(SMALLEST_SHARE))), 4),
        verdict=verdict,
    )


def _run_spread(name: str, *, is_work: bool, machine: float) -> float:
    """The standard deviation from run to run of one build, beside that from process to process."""
    spread = RUN_SPREADS.get(name, OTHER_SPREAD)
    return math.hypot(spread, MACHINE_DOUBT * machine) if is_work else max(spread, OTHER_SPREAD)


def _half_width(chance: float, spread: float, freedom: int, error: float) -> float:
    """Of the interval of a sum of two errors, of which only the one by chance was estimated from the samples.

    Its degrees of freedom are those of F. E. Satterthwaite, An approximate distribution of estimates of
    variance components, Biometrics Bulletin 2 (1946).
    """
    if freedom < 1:
        return math.inf
    both = chance**2 + spread**2
    free = freedom * (both / chance**2) ** 2 if chance else _AS_GOOD_AS_KNOWN
    return student_quantile(error, round(min(free, _AS_GOOD_AS_KNOWN))) * math.sqrt(both)


def _could_hide_much(a_ms: float, half: float, estimates: _Estimates) -> bool:
    """Not even twice the time would have been seen, and that would matter."""
    total_ms = median([row.times_ms[_TOTAL] for row in estimates.pair.a])
    is_blind = not estimates.errors.can_tell or half > UNSEEN
    return is_blind and a_ms * _as_change(half) > max(SMALLEST_MS, UNSEEN_SHARE * total_ms)


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
        yield "too little is known to tell anything: ask `watcher accept` for more workers (--workers 16)"
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
