"""Waterfalls: which bar lies where on the axis of time, before anybody draws it.

Rules of this module:
- Pure. One linear scale a chart, from 0 to its longest row; a bar is as long as its time, never longer, so
  that bars can be compared. What is too thin to be seen is told beside its row, and in the tables.
- Worker starts have a chart of their own: on the axis of pictures that take 20 ms, a start of 3 s would leave
  nothing to be seen.
- Segments lie in the order of the time chain. It is a chain of sums: what a segment collected at several
  moments (`ipc`: there and back) is one bar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from watcher.core.timeline import ARRIVAL_SEGMENTS, SEGMENTS, START_SEGMENTS
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from watcher.acceptance.report import Sample, Scene

Group: TypeAlias = Literal["arrival", "waiting", "lost", "start", "prepare", "inference", "finish", "rest"]
GROUP_TITLES: Final[Mapping[Group, str]] = {
    "arrival": "arrival",
    "waiting": "waiting, messages",
    "lost": "lost attempts",
    "start": "start of a process",
    "prepare": "read to preprocess",
    "inference": "inference",
    "finish": "composite to publish",
    "rest": "unattributed",
}
"""Segments of one group share a colour: twenty colours could not be told apart."""
_GROUPS: Final[Mapping[str, Group]] = {
    **dict.fromkeys(ARRIVAL_SEGMENTS, "arrival"),
    **dict.fromkeys(START_SEGMENTS, "start"),
    **dict.fromkeys(("queue", "ipc", "batch_wait"), "waiting"),
    **dict.fromkeys(("read", "decode", "mask", "preprocess"), "prepare"),
    **dict.fromkeys(("composite", "encode", "publish"), "finish"),
    "lost_attempts": "lost",
    "inference": "inference",
}
MAX_ROWS: Final = 40
"""Of one chart; of more samples as many are shown, evenly picked."""
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment of one row, in ms on the chart's axis."""

    segment: str
    group: Group
    begins_ms: float
    lasts_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a chart.

    Attributes:
        label: what it is.
        bars: in the order of time.
        lasts_ms: what is told at its end.
    """

    label: str
    bars: tuple[Bar, ...]
    lasts_ms: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A waterfall.

    Attributes:
        title: what it shows.
        description: the same for somebody who does not see it, with its numbers.
        rows: from the top.
        span_ms: the length of the axis.
        ticks_ms: where the axis has its numbers.
        labelled: each row is one segment and says which, so that no key to the colours is needed.
    """

    title: str
    description: str
    rows: tuple[Row, ...]
    span_ms: float
    ticks_ms: tuple[float, ...]
    labelled: bool

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups that are drawn, in the order of time."""
        drawn = {bar.group for row in self.rows for bar in row.bars}
        return tuple(group for group in GROUP_TITLES if group in drawn)


def job_chart(scene: Scene) -> Chart:
    """The sample in the middle of all totals: one row a segment. The scene has samples."""
    by_total = sorted(scene.samples, key=lambda sample: _total(sample.record))
    sample = by_total[(len(by_total) - 1) // 2]
    bars = _bars(_segments(sample.record))
    rows = tuple(Row(bar.segment, (bar,), bar.lasts_ms) for bar in bars)
    picture, total_ms = printable(sample.picture), _total(sample.record)
    which = "the sample in the middle of all totals" if len(scene.samples) > 1 else "the only sample"
    title = f"Where the time of one picture went: {picture}, {which}, {_ms(total_ms)}"
    return _chart(title, _told(bars), rows, labelled=True)


def sample_chart(scene: Scene) -> Chart:
    """One row a sample, from its arrival on."""
    numbered = list(enumerate(scene.samples, 1))
    picked = _evenly(numbered)
    rows = tuple(
        Row(f"{number} {printable(sample.picture)}", _bars(_segments(sample.record)), _total(sample.record))
        for number, sample in picked
    )
    some = "" if len(picked) == len(numbered) else f" ({len(picked)} of {len(numbered)}, evenly picked)"
    title = f"All samples, each from its arrival on{some}"
    return _chart(title, "; ".join(f"{row.label}: {_ms(row.lasts_ms)}" for row in rows), rows)


def start_chart(scene: Scene) -> Chart:
    """One row a segment of each start of the resident worker. The scene has starts."""
    rows = tuple(
        Row(f"worker {start.incarnation}: {bar.segment}", (bar,), bar.lasts_ms)
        for start in scene.starts
        for bar in _bars(start.segments_ms)
    )
    told = "; ".join(
        f"worker {start.incarnation}: {_told(_bars(start.segments_ms))}" for start in scene.starts
    )
    some = "" if len(rows) <= MAX_ROWS else " (the first ones)"
    title = f"Starts of the resident worker, to the end of its warm-up{some}"
    return _chart(title, told, rows[:MAX_ROWS], labelled=True)


def ticks(span_ms: float, wanted: int = _TICKS) -> tuple[float, ...]:
    """Round numbers from 0 up to the span, about as many as are wanted."""
    if span_ms <= 0:
        return (0.0,)
    rough = span_ms / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return tuple(number * step for number in range(math.floor(span_ms / step * (1 + 1e-9)) + 1))


def _chart(title: str, told: str, rows: tuple[Row, ...], *, labelled: bool = False) -> Chart:
    ends = [bar.begins_ms + bar.lasts_ms for row in rows for bar in row.bars]
    span_ms = max(ends, default=0.0)
    return Chart(title, told, rows, span_ms, ticks(span_ms), labelled)


def _bars(segments: Mapping[str, float]) -> tuple[Bar, ...]:
    """Bars end to end. A segment of 0 has none, nor has one below 0 (a clock that was wrong)."""
    others = sorted(segments.keys() - {*SEGMENTS, "unattributed"})
    bars: list[Bar] = []
    begins_ms = 0.0
    for name in (*SEGMENTS, *others, "unattributed"):
        lasts_ms = segments.get(name, 0.0)
        if lasts_ms > 0:
            bars.append(Bar(printable(name), _GROUPS.get(name, "rest"), begins_ms, lasts_ms))
            begins_ms += lasts_ms
    return tuple(bars)


def _evenly(numbered: Sequence[tuple[int, Sample]]) -> Sequence[tuple[int, Sample]]:
    count = len(numbered)
    if count <= MAX_ROWS:
        return numbered
    return [numbered[index * (count - 1) // (MAX_ROWS - 1)] for index in range(MAX_ROWS)]


def _told(bars: Iterable[Bar]) -> str:
    return ", ".join(f"{bar.segment} {_ms(bar.lasts_ms)}" for bar in bars) or "nothing"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"  # noqa: PLR2004 - powers of ten


def _segments(record: Mapping[str, Any]) -> Mapping[str, float]:
    segments = record.get("segments_ms")
    return segments if isinstance(segments, dict) else {}


def _total(record: Mapping[str, Any]) -> float:
    return float(record.get("total_ms") or 0.0)
