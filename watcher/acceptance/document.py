"""What a readable report says, in which order: one content for every form that it is printed in.

Rules of this module:
- Pure. It works numbers out of a report and puts them into words; it knows nothing of Markdown or HTML.
- A value that nobody saw is `-`, never 0 and never left out.
- Nothing is concluded from the environment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from watcher.acceptance.statistics import median, percentile
from watcher.acceptance.waterfall import Chart, job_chart, sample_chart, start_chart
from watcher.core.timeline import SEGMENTS, START_SEGMENTS
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from watcher.acceptance.report import Acceptance, Claim, Environment, Ran, Sample, Scene, SceneName

UNKNOWN: Final = "-"
SCENE_TITLES: Final[Mapping[SceneName, str]] = {
    "batch": "Batch",
    "hot": "Hot path",
    "cold": "Cold path",
    "recovery": "Recovery",
    "model_cache": "Model cache",
}
SCENE_MEANINGS: Final[Mapping[SceneName, str]] = {
    "batch": "Many pictures at once, on one worker.",
    "hot": "One picture after the other, on a worker that is warm.",
    "cold": "The worker is down: each picture gets a process of its own.",
    "recovery": "From the end of a worker to the next one that is ready.",
    "model_cache": "The weights read from their source, and from the local cache; the model is built apart.",
}
_P95_SAMPLES: Final = 20
"""With fewer, the 95th percentile by nearest rank is the slowest sample."""
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under headings.

    Attributes:
        caption: what it shows, in a few words.
        headings: of the columns.
        rows: as many cells each as there are headings; the first heads its row.
        numbers: indices of the columns that hold numbers.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, in order."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    blocks: tuple[Block, ...]
    sections: tuple[Section, ...]


Block: TypeAlias = str | Table | Chart
"""A paragraph of plain text, a table, or a chart that the tables beside it tell as well."""


def compose(report: Acceptance) -> Document:
    """Put a report into words and tables."""
    pictures = "the sample pictures" if report.pictures == "samples" else "the user's own pictures"
    about = f"Run on {report.ts}, took {_number(report.took_s, 's')}, with {pictures}."
    sections = [
        Section("Claims", tuple(_claims(report.claims))),
        Section("Environment", tuple(_environment(report.environment))),
        *(Section(SCENE_TITLES[scene.name], tuple(_scene(scene))) for scene in report.scenes),
    ]
    return Document("Acceptance report", (about,), tuple(sections))


def milliseconds(value: float) -> str:
    """Format a time in milliseconds with as many decimals as tell something."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"  # noqa: PLR2004 - powers of ten


def segment_names(samples: Iterable[Sample]) -> tuple[str, ...]:
    """The segments of these samples: those of the chain in the order of time, then what else a record has."""
    seen = {name for sample in samples for name in _segments(sample)}
    others = sorted(seen - {*SEGMENTS, "unattributed"})
    return tuple(name for name in (*SEGMENTS, *others, "unattributed") if name in seen)


# --- sections ----------------------------------------------------------------------------------------------


def _claims(claims: Sequence[Claim]) -> Iterable[Block]:
    if not claims:
        yield "This run makes no claims."
        return
    words = {True: "holds", False: "does not hold", None: "could not be told"}
    counts = Counter(words[claim.holds] for claim in claims)
    yield ", ".join(f"{counts[word]} {word}" for word in words.values() if counts[word]) + "."
    rows = [
        (claim.name, words[claim.holds], claim.statement, _bare(claim.measured), _bare(claim.limit),
         claim.segment or UNKNOWN)
        for claim in claims
    ]  # fmt: skip
    headings = ("claim", "verdict", "statement", "measured", "limit", "segment")
    yield _table("What this run states", headings, rows, numbers=(3, 4))


def _environment(environment: Environment) -> Iterable[Block]:
    yield "Facts about the machine. No claim about speed follows from them."
    memory, load = environment.memory_bytes, environment.load_average
    rows = [
        ("watcher", environment.watcher),
        ("Python", environment.python),
        ("system", environment.system),
        ("processor", environment.processor),
        ("CPUs", str(environment.cpu_count)),
        ("memory", UNKNOWN if memory is None else f"{memory / _GIB:.1f} GiB"),
        ("load average before the run", UNKNOWN if load is None else f"{load:.2f}"),
        ("devices available", ", ".join(environment.devices_available) or "none"),
        *((f"package {name}", version) for name, version in sorted(environment.packages.items())),
    ]
    yield _table("The machine and what is installed on it", ("fact", "value"), rows)


def _scene(scene: Scene) -> Iterable[Block]:
    yield SCENE_MEANINGS[scene.name]
    if scene.skipped is not None:
        yield f"Not played: {printable(scene.skipped)}."
    rows = [("engine", *_ran(scene.engine)), ("device", *_ran(scene.device))]
    yield _table("What was asked for, and what ran", ("", "configured", "actual", "why they differ"), rows)
    if scene.samples:
        yield from _evidence(scene.samples)
        yield from _times(scene)
    if scene.starts:
        yield start_chart(scene)
        yield _starts(scene)
    if scene.facts:
        facts = [(name, _fact(name, value)) for name, value in scene.facts.items()]
        yield _table("Facts", ("fact", "value"), facts, numbers=(1,))
    if scene.samples:
        yield _samples(scene.samples)


def _ran(ran: Ran) -> tuple[str, str, str]:
    return ran.configured, ran.actual or UNKNOWN, ran.reason or UNKNOWN


def _evidence(samples: Sequence[Sample]) -> Iterable[Block]:
    """What the records of a scene have as evidence, each kind of it once."""
    kinds = Counter(_evidence_row(sample.record) for sample in samples)
    headings = ("engine", "device", "parameters", "output", "kernel time share", "fallback ops", "samples")
    rows = [(*row, str(count)) for row, count in sorted(kinds.items())]
    yield _table("Evidence of what ran, from the records", headings, rows, numbers=(6,))


def _evidence_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    engine, device = _mapping(record.get("engine")), _mapping(record.get("device"))
    evidence = _mapping(device.get("evidence"))
    share, fallen = evidence.get("kernel_time_share"), evidence.get("fallback_ops")
    shares = ", ".join(f"{name} {part:.1%}" for name, part in sorted(_mapping(share).items()))
    fallbacks = UNKNOWN if fallen is None else ", ".join(str(name) for name in fallen) or "none"
    seen = (engine.get("actual"), device.get("actual"), evidence.get("parameters"), evidence.get("output"))
    return (*(UNKNOWN if value is None else str(value) for value in seen), shares or UNKNOWN, fallbacks)


def _times(scene: Scene) -> Iterable[Block]:
    samples = scene.samples
    yield job_chart(scene)
    if len(samples) > 1:
        yield sample_chart(scene)
    by_name = {
        name: [_segments(sample).get(name, 0.0) for sample in samples] for name in segment_names(samples)
    }
    totals = [float(sample.record.get("total_ms", 0.0)) for sample in samples]
    shown = {name: values for name, values in by_name.items() if any(values) or name == "unattributed"}
    summed = sum(totals)
    rows = [(name, *_spread(values), _share(sum(values), summed)) for name, values in shown.items()]
    rows.append(("total", *_spread(totals), _share(summed, summed)))
    headings = ("segment", "median ms", "p95 ms", "longest ms", "share of the total")
    yield _table(f"Time chain of {_count(len(samples), 'sample')}", headings, rows, numbers=(1, 2, 3, 4))
    notes = []
    if len(samples) < _P95_SAMPLES:
        notes.append(f"With fewer than {_P95_SAMPLES} samples p95 is the slowest one.")
    if absent := [name for name in by_name if name not in shown]:
        notes.append(f"0 in every sample: {', '.join(absent)}.")
    if notes:
        yield " ".join(notes)


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    return (milliseconds(median(values)), milliseconds(percentile(values, 95)), milliseconds(max(values)))


def _starts(scene: Scene) -> Table:
    rows = [
        (
            str(start.incarnation),
            start.ts,
            str(start.pid),
            str(start.model_loads),
            *(milliseconds(start.segments_ms.get(name, 0.0)) for name in START_SEGMENTS),
            milliseconds(sum(start.segments_ms.values())),
        )
        for start in scene.starts
    ]
    headings = ("worker", "ready at", "pid", "model loads", *START_SEGMENTS, "sum")
    numbers = range(2, len(headings))
    return _table("Starts of the resident worker, times in ms", headings, rows, numbers=numbers)


def _samples(samples: Sequence[Sample]) -> Table:
    rows = []
    for number, sample in enumerate(samples, 1):
        record = sample.record
        path = str(record.get("path") or UNKNOWN)
        reason = record.get("path_reason")
        reference = UNKNOWN if sample.reference_ms is None else milliseconds(sample.reference_ms)
        rows.append(
            (
                str(number),
                sample.picture,
                f"{path} ({reason})" if reason else path,
                str(record.get("outcome") or UNKNOWN),
                milliseconds(float(record.get("total_ms", 0.0))),
                reference,
            )
        )
    headings = ("sample", "picture", "path (why)", "outcome", "total ms", "reference ms")
    caption = "Samples; reference is a fixed piece of work just before, so it tells how fast the machine was"
    return _table(caption, headings, rows, numbers=(0, 4, 5))


# --- cells -------------------------------------------------------------------------------------------------


def _table(
    caption: str, headings: Sequence[str], rows: Iterable[tuple[str, ...]], *, numbers: Iterable[int] = ()
) -> Table:
    clean: Callable[[str], str] = printable
    return Table(
        clean(caption),
        tuple(headings),
        tuple(tuple(clean(cell) for cell in row) for row in rows),
        frozenset(numbers),
    )


def _segments(sample: Sample) -> dict[str, float]:
    return dict(_mapping(sample.record.get("segments_ms")))


def _mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one: a record may come from an older version."""
    return value if isinstance(value, dict) else {}


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else UNKNOWN


def _fact(name: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if name.endswith("_ms"):
        return f"{milliseconds(value)} ms"
    if name.endswith("_s"):
        return _number(value, "s")
    if name.endswith("_bytes"):
        return f"{value / _MIB:.1f} MiB"
    return _bare(value)


def _number(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"  # noqa: PLR2004 - powers of ten


def _bare(value: float | None) -> str:
    """A number whose unit stands beside it, or a count."""
    if value is None:
        return UNKNOWN
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
