"""Records and worker lives as a trace: the Trace Event Format, which Perfetto and chrome://tracing open.

Rules of this file:
- Pure: records and lives in, a JSON value out.
- Times are whole microseconds since 1970, and a slice is as long as its record says, to the microsecond.
- No two slices of a track overlap: one lies inside the other, or after it.
- What a record does not tell is left out, never guessed. `ORDER` says where a segment is put whose place a
  record does not tell.
- Records may be of older watchers, and names of anybody: nothing is taken for granted, everything shown is
  printable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from watcher.core.timeline import (
    ARRIVAL_SEGMENTS,
    EXCHANGE_SEGMENTS,
    START_SEGMENTS,
    WORK_SEGMENTS,
)
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from watcher.core.lives import WorkerLife

Json: TypeAlias = "dict[str, Any]"
Place: TypeAlias = "tuple[str, int]"
"""A segment and its length in microseconds."""

ORDER: Final = (
    *ARRIVAL_SEGMENTS,
    *START_SEGMENTS,
    "unattributed",
    *EXCHANGE_SEGMENTS,
    *WORK_SEGMENTS,
    "unattributed",
    "ipc",
    "publish",
)
"""How segments follow each other in a trace. Two come in two parts: `ipc` there and back, and what of
`unattributed` lay outside and inside the time that the worker had the picture."""

JOBS_PID: Final = 2
WORKERS_PID: Final = 1
_STEP_US: Final = 20_000
"""The wall clock is followed when it is so much further ahead of the monotonic one than before (a machine
that slept, a clock that was set). Less may be the time between the two readings on a busy machine."""

_FACTS: Final = (
    *("job", "ts", "outcome", "reason", "remedy", "source", "output", "duplicate_of", "retry_of", "attempt"),
    *("recipe", "marks", "path", "path_reason", "first_hot", "batch", "batch_size", "worker", "engine"),
    *("device", "image", "losses", "resumed", "rescued", "total_ms"),
)
_COLOURS: Final = {"failed": "bad", "quarantined": "terrible", "done": "good"}


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that went on, on a track."""

    name: str
    category: str
    start_us: int
    duration_us: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_us(self) -> int:
        """When it was over."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Track:
    """One row of the trace: slices that do not overlap but by lying inside each other, outer ones first."""

    pid: int
    name: str
    slices: tuple[Slice, ...]

    @property
    def start_us(self) -> int:
        """When its first slice begins."""
        return min(piece.start_us for piece in self.slices)


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace shows.

    Attributes:
        jobs: a track each, by their begin.
        workers: a track each, by their begin.
    """

    jobs: tuple[Track, ...]
    workers: tuple[Track, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be seen."""
        return not self.jobs and not self.workers


def traced(
    records: Sequence[Mapping[str, Any]],
    lives: Sequence[WorkerLife],
    *,
    living: Collection[tuple[int, int]] = (),
    now_us: int = 0,
) -> Trace:
    """Place records and lives in time.

    Args:
        records: of finished jobs.
        lives: of the workers to be shown; those of other machines are left out.
        living: (run, incarnation) of those that live yet.
        now_us: until when these are shown.
    """
    clocks = _Clocks(records, lives)
    placed = sorted((_placed(record, clocks) for record in records), key=lambda job: job.start_us)
    jobs = tuple(_job_track(job) for job in placed)
    workers = [
        track
        for life in lives
        if (track := _worker_track(life, placed, clocks, living=living, now_us=now_us)) is not None
    ]
    known = {(life.run, life.incarnation) for life in lives}
    strangers = sorted({job.worker for job in placed if job.worker is not None} - known)
    workers += [_unknown_worker_track(worker, placed) for worker in strangers]
    return Trace(jobs, tuple(sorted(workers, key=lambda track: track.start_us)))


def trace_events(trace: Trace, about: Mapping[str, Any]) -> Iterator[str]:
    """The trace as text, in pieces: one JSON object, an event a line.

    Args:
        trace: what is to be shown.
        about: facts about the trace itself.
    """

    def text(value: object) -> str:
        # no \\u escapes: Perfetto shows them as they are
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    head = text({"displayTimeUnit": "ms", "otherData": _shown(about)})
    yield f'{head[:-1]},"traceEvents":[\n'
    first = True
    for event in _events(trace):
        yield ("" if first else ",\n") + text(event)
        first = False
    yield "\n]}\n"


def segments_us(record: Mapping[str, Any]) -> list[Place] | None:
    """The segments of a record in the order in which a trace shows them; None where it has none.

    Those of no length are left out. Where a record does not tell how `ipc` and `unattributed` were divided,
    the first part is the whole `ipc`, and the second the whole `unattributed`.
    """
    told = record.get("segments_ms")
    if not isinstance(told, dict):
        return None
    lengths = {str(name): _us(ms) for name, ms in told.items()}
    clock = _object(record.get("clock"))
    back_us = min(_us(clock.get("ipc_back_ms")), max(0, lengths.get("ipc", 0)))
    spare_us = max(0, lengths.get("unattributed", 0))
    inside_us = spare_us
    if clock.get("served_ms") is not None:
        worked_us = sum(lengths.get(name, 0) for name in WORK_SEGMENTS)
        inside_us = min(spare_us, max(0, _us(clock["served_ms"]) - worked_us))
    first = {"ipc": lengths.get("ipc", 0) - back_us, "unattributed": spare_us - inside_us}
    second = {"ipc": back_us, "unattributed": inside_us}
    places: list[Place] = []
    seen: set[str] = set()
    for name in ORDER:
        length_us = (second if name in seen else first).get(name, lengths.get(name, 0))
        seen.add(name)
        if length_us > 0:
            places.append((name, length_us))
    places += [(name, us) for name, us in lengths.items() if name not in ORDER and us > 0]
    return places


# --- placing -----------------------------------------------------------------------------------------------


class _Clocks:
    """The monotonic clock of each run of the service, on the wall's.

    Within a run instants keep their distances, but where the wall clock went ahead of the monotonic one. It
    is never followed backwards: that would lay what came later over what came before.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], lives: Iterable[WorkerLife]) -> None:
        pairs: dict[int, list[tuple[int, int]]] = {}
        for record in records:
            clock = _object(record.get("clock"))
            if _is_exact(clock):
                pairs.setdefault(clock["run"], []).append((clock["ended_ns"], clock["ended_unix_us"]))
        for life in lives:
            pairs.setdefault(life.run, []).append((life.noted_ns, life.noted_unix_us))
        self._offsets_us = {run: _offsets_us(sorted(found)) for run, found in pairs.items()}

    def unix_us(self, run: int, at_ns: int) -> int:
        """An instant of a run on the wall clock."""
        offsets = self._offsets_us[run]
        offset_us = offsets[0][1]
        for since_ns, later_us in offsets:
            if since_ns > at_ns:
                break
            offset_us = later_us
        return at_ns // 1000 + offset_us


def _offsets_us(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(instant, wall clock less monotonic clock from then on) of (instant, wall clock), in order."""
    offsets: list[tuple[int, int]] = []
    for at_ns, unix_us in pairs:
        offset_us = unix_us - at_ns // 1000
        if not offsets or offset_us > offsets[-1][1] + _STEP_US:
            offsets.append((at_ns, offset_us))
    return offsets


@dataclass(frozen=True, slots=True)
class _Job:
    """A record with its place.

    Attributes:
        record: as it is.
        start_us: when its first segment begins.
        end_us: when its last one ends.
        places: its segments in order; None where the record has none any more.
        worker: (run, incarnation) of the process that served it, where that is known for certain.
        served: when the worker turned to it and when it reported.
    """

    record: Mapping[str, Any]
    start_us: int
    end_us: int
    places: Sequence[Place] | None
    worker: tuple[int, int] | None = None
    served: tuple[int, int] | None = None


def _placed(record: Mapping[str, Any], clocks: _Clocks) -> _Job:
    clock = _object(record.get("clock"))
    exact = _is_exact(clock)
    end_us = clocks.unix_us(clock["run"], clock["ended_ns"]) if exact else _unix_us(record.get("ts"))
    places = segments_us(record)
    total_us = _us(record.get("total_ms")) if places is None else sum(length for _, length in places)
    job = _Job(record, end_us - total_us, end_us, places)
    incarnation = _object(record.get("worker")).get("incarnation")
    if places is None or not exact or not isinstance(incarnation, int) or record.get("rescued"):
        return job  # of a rescued one only the end is of this run
    if clock.get("served_ms") is None or clock.get("ipc_back_ms") is None:
        return job
    served_end_us = end_us - dict(places).get("publish", 0) - _us(clock["ipc_back_ms"])
    served = (served_end_us - _us(clock["served_ms"]), served_end_us)
    return _Job(record, job.start_us, end_us, places, (clock["run"], incarnation), served)


def _is_exact(clock: Mapping[str, Any]) -> bool:
    return all(isinstance(clock.get(name), int) for name in ("run", "ended_ns", "ended_unix_us"))


def _unix_us(ts: object) -> int:
    try:
        moment = datetime.fromisoformat(str(ts))
    except ValueError:
        return 0
    return round(moment.timestamp() * 1e6)


def _us(value: object) -> int:
    """Milliseconds of a record as microseconds: records have three decimals."""
    return round(value * 1000) if isinstance(value, int | float) else 0


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


# --- tracks ------------------------------------------------------------------------------------------------


def _job_track(job: _Job) -> Track:
    record = job.record
    facts = {name: record[name] for name in _FACTS if record.get(name) is not None}
    if not _is_exact(_object(record.get("clock"))):
        facts["placed_by"] = "ts: to some milliseconds"
    if job.places is None:
        facts["segments"] = "not kept any more"
    source = str(record.get("source"))
    whole = Slice(source, str(record.get("outcome")), job.start_us, job.end_us - job.start_us, facts)
    pieces = tuple(_row("segment", job.start_us, job.places or ()))
    return Track(JOBS_PID, f"{source} ({record.get('job')})", (whole, *pieces))


def _row(category: str, start_us: int, places: Iterable[Place]) -> Iterator[Slice]:
    for name, length_us in places:
        yield Slice(name, category, start_us, length_us)
        start_us += length_us


def _worker_track(
    life: WorkerLife,
    jobs: Sequence[_Job],
    clocks: _Clocks,
    *,
    living: Collection[tuple[int, int]],
    now_us: int,
) -> Track | None:
    key = (life.run, life.incarnation)
    served = [job for job in jobs if job.worker == key]
    start_us = clocks.unix_us(life.run, life.started_ns)
    batches = _batches(served)
    last_us = max((piece.end_us for piece in batches), default=start_us)
    ready_us = None if life.ready_ns is None else clocks.unix_us(life.run, life.ready_ns)
    if ready_us is not None:
        last_us = max(last_us, ready_us)
    facts = {**life.facts, "pid": life.pid, "host": life.host, "run": life.run, "path": life.path}
    if life.exited_ns is not None:
        end_us = max(last_us, clocks.unix_us(life.run, life.exited_ns))
    elif key in living:
        end_us, facts["end"] = max(last_us, now_us), "it lives"
    else:
        end_us, facts["end"] = last_us, "not seen: the service ended first"
    if ready_us is None:
        slices = [Slice("start", "worker", start_us, end_us - start_us, {**facts, "ready": False})]
    else:
        places = [(name, _us(ms)) for name, ms in _object(life.facts.get("segments_ms")).items()]
        start = Slice("start", "worker", start_us, ready_us - start_us, facts)
        rows = _within(start, _row("segment", start_us, [place for place in places if place[1] > 0]))
        slices = [start, *rows, Slice("ready", "worker", ready_us, end_us - ready_us, facts), *batches]
    name = f"worker {life.incarnation} ({life.path}, pid {life.pid}, run {life.run})"
    return Track(WORKERS_PID, name, tuple(slices))


def _unknown_worker_track(key: tuple[int, int], jobs: Sequence[_Job]) -> Track:
    """A worker whose life was not kept: what it served is known all the same."""
    served = [job for job in jobs if job.worker == key]
    pid = _object(served[0].record.get("worker")).get("pid")
    return Track(WORKERS_PID, f"worker {key[1]} (pid {pid}, run {key[0]})", tuple(_batches(served)))


def _batches(served: Sequence[_Job]) -> list[Slice]:
    """Batches with the pictures that a worker served in them, in the order of time."""
    groups: dict[str, list[_Job]] = {}
    for job in sorted(served, key=lambda job: job.served or (0, 0)):
        groups.setdefault(str(job.record.get("batch")), []).append(job)
    slices: list[Slice] = []
    for batch, jobs in groups.items():
        items = [piece for job in jobs for piece in _item(job)]
        start_us, end_us = min(item.start_us for item in items), max(item.end_us for item in items)
        facts = {
            "jobs": [job.record.get("job") for job in jobs],
            "batch_size": jobs[0].record.get("batch_size"),
        }
        slices += [Slice(f"batch {batch}", "batch", start_us, end_us - start_us, facts), *items]
    return slices


def _item(job: _Job) -> Iterator[Slice]:
    """A picture while the worker had it, with its work."""
    assert job.served is not None  # noqa: S101 - `worker` is None without it
    start_us, end_us = job.served
    whole = Slice(
        str(job.record.get("source")), "item", start_us, end_us - start_us, {"job": job.record["job"]}
    )
    places = [place for place in job.places or () if place[0] in WORK_SEGMENTS]
    yield whole
    yield from _within(whole, _row("segment", start_us, places))


def _within(outer: Slice, rows: Iterable[Slice]) -> Iterator[Slice]:
    """The rows that lie inside; what rounding takes beyond the end is cut off."""
    for row in rows:
        length_us = min(row.end_us, outer.end_us) - row.start_us
        if length_us > 0:
            yield Slice(row.name, row.category, row.start_us, length_us, row.facts)


# --- events ------------------------------------------------------------------------------------------------


def _events(trace: Trace) -> Iterator[Json]:
    for place, (pid, name, tracks) in enumerate(
        ((WORKERS_PID, "workers", trace.workers), (JOBS_PID, "jobs", trace.jobs))
    ):
        if not tracks:
            continue
        yield _metadata("process_name", pid, 0, name=name)
        yield _metadata("process_sort_index", pid, 0, sort_index=place)
        for number, track in enumerate(tracks, start=1):
            # threads of all processes are told apart by their numbers, which must not be those of processes
            tid = pid * 1_000_000 + number
            yield _metadata("thread_name", pid, tid, name=track.name)
            yield _metadata("thread_sort_index", pid, tid, sort_index=number)
            for piece in track.slices:
                yield _complete(piece, pid, tid)


def _metadata(what: str, pid: int, tid: int, **value: str | int) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": _shown(value)}


def _complete(piece: Slice, pid: int, tid: int) -> Json:
    event: Json = {
        "ph": "X",
        "name": printable(piece.name),
        "cat": printable(piece.category),
        "pid": pid,
        "tid": tid,
        "ts": piece.start_us,
        "dur": piece.duration_us,
    }
    if piece.facts:
        event["args"] = _shown(piece.facts)
    if piece.category in _COLOURS:
        event["cname"] = _COLOURS[piece.category]
    return event


def _shown(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with all its texts printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value
