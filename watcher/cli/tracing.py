"""What `watcher trace` shows: it chooses records and lives, from journal or timing log, and writes them.

Rules of this file: it only reads the state and the outbox, beside a service that runs or does not; how a
trace looks is the business of `watcher.telemetry.trace`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from watcher import __version__
from watcher.adapters.clock import SystemClock
from watcher.adapters.journal import open_readonly
from watcher.adapters.lock import owner_of
from watcher.adapters.timing_log import records_in
from watcher.core.job import FINAL_STATES
from watcher.core.record import utc_text
from watcher.ports import RemediableError
from watcher.telemetry.trace import trace_events, traced

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from watcher.adapters.journal import SqliteJournal
    from watcher.core.job import Job
    from watcher.core.lives import WorkerLife
    from watcher.settings import Settings
    from watcher.telemetry.trace import Trace

Report: TypeAlias = "dict[str, Any]"

_EXIT_USAGE: Final = 2
_EXIT_TRY_AGAIN: Final = 75
_SEARCHED: Final = 20_000
"""So many of the newest jobs are looked through: as many as the journal keeps whole records of."""
_AGO: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_BATCH: Final = re.compile(r"(?:(?P<run>\d+)/)?(?P<batch>\S+)")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants to see: one of these, or all.

    Attributes:
        job: an id, or a picture's path.
        batch: `b3` of the newest run of the service that had one, or `12/b3` of run 12.
        since: an instant, or how long ago.
        until: as `since`.
        limit: so many jobs at most, the newest.
    """

    job: str | None = None
    batch: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class _Span:
    """From when until when, in seconds since 1970; None: without end."""

    since_s: float | None
    until_s: float | None

    def has(self, start_s: float, end_s: float) -> bool:
        """Whether something of what went on between the two lies in it."""
        return (self.since_s is None or end_s >= self.since_s) and (
            self.until_s is None or start_s <= self.until_s
        )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Records to be shown, lives to be shown with them, and how many records were left out."""

    records: Sequence[Report]
    lives: Sequence[WorkerLife]
    left_out: int = 0


def make_trace(settings: Settings, wish: Wish) -> tuple[Trace, Report]:
    """The trace that a person wants, and facts about it.

    Raises:
        RemediableError: there is no journal, no such job or batch, or nothing in the span.
    """
    if sum(part is not None for part in (wish.job, wish.batch, wish.since or wish.until)) > 1:
        raise RemediableError(
            "a job, a batch and a span of time were asked for at once",
            "name one of them: JOB, --batch, or --since and --until",
            exit_code=_EXIT_USAGE,
        )
    now_s = SystemClock().now().wall_s
    with open_readonly(settings.journal_file) as journal:
        lives, run = journal.lives(), journal.run
        chosen = _chosen(settings, journal, lives, wish, now_s)
    is_running = owner_of(settings.state_dir) is not None
    living = {(life.run, life.incarnation) for life in lives if is_running and _lives_in(life, run)}
    trace = traced(chosen.records, chosen.lives, living=living, now_us=round(now_s * 1e6))
    if trace.is_empty:
        raise _nothing("there is nothing to show yet", "`watcher jobs` shows what the service knows")
    facts = {
        "made_by": f"watcher {__version__}",
        "made": utc_text(now_s),
        "jobs": len(trace.jobs),
        "workers": len(trace.workers),
        "jobs_left_out": chosen.left_out,
    }
    return trace, facts


def write_trace(trace: Trace, facts: Report, output: Path | None, wish: Wish) -> Path | None:
    """Write a trace to a file, or to stdout where that is piped and no file is named.

    Returns:
        The file, or None where it went to stdout.

    Raises:
        RemediableError: the file cannot be written.
    """
    if str(output) == "-" or (output is None and not sys.stdout.isatty()):
        sys.stdout.writelines(trace_events(trace, facts))
        return None
    target = output or Path(f"{_named_after(wish)}.trace.json")
    folder = target.parent
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".watcher-trace-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(trace_events(trace, facts))
            Path(name).chmod(0o644)
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise RemediableError(
            f"the trace cannot be written to {target}: {error.strerror}",
            "name another file: -o FILE (or -o - for the standard output)",
            exit_code=_EXIT_USAGE,
        ) from error
    return target


def _named_after(wish: Wish) -> str:
    name = wish.job or (f"batch-{wish.batch}" if wish.batch is not None else "watcher")
    return _UNSAFE.sub("_", name).strip("._")[-100:] or "watcher"


# --- choosing ----------------------------------------------------------------------------------------------


def _chosen(
    settings: Settings, journal: SqliteJournal, lives: Sequence[WorkerLife], wish: Wish, now_s: float
) -> _Chosen:
    if wish.job is not None:
        record = _record_of(settings, journal, wish.job)
        return _Chosen([record], _lives_of([record], lives))
    if wish.batch is not None:
        records = _batch(journal, wish.batch)
        return _Chosen(records, _lives_of(records, lives))
    span = _Span(_instant_s(wish.since, now_s, "--since"), _instant_s(wish.until, now_s, "--until"))
    return _in_span(settings, journal, lives, span, wish.limit)


def _record_of(settings: Settings, journal: SqliteJournal, name: str) -> Report:
    from watcher.cli.reports import job_at  # noqa: PLC0415 - its imports are needed for this only

    by_id = journal.jobs(ids=[name]) if name.isascii() else ()
    job = by_id[0] if by_id else job_at(name, journal, settings.inbox)
    if job.record is None or not job.is_final:
        raise RemediableError(
            f"job {job.id} is {job.state.value}: it has no time chain before it has ended",
            "wait for it, or see how it stands: watcher jobs",
            exit_code=_EXIT_TRY_AGAIN,
        )
    record = _whole(job)
    if "segments_ms" in record:
        return record
    return next(records_in(settings.outbox / "logs", job=job.id), record)


def _batch(journal: SqliteJournal, name: str) -> list[Report]:
    match = _BATCH.fullmatch(name)
    if match is not None:
        found = [record for record in _records(journal) if record.get("batch") == match["batch"]]
        runs = [_run(record) for record in found]
        wanted = max(runs, default=0) if match["run"] is None else int(match["run"])
        found = [record for record in found if _run(record) == wanted]
        if found:
            return found
    raise _nothing(
        f"there is no batch {name} whose jobs have ended",
        "a record names its batch (`batch`), and the run of the service that it was of (`clock.run`): "
        "--batch b3 is that of the newest run, --batch 12/b3 that of run 12",
    )


def _in_span(
    settings: Settings, journal: SqliteJournal, lives: Sequence[WorkerLife], span: _Span, limit: int
) -> _Chosen:
    records = {str(record.get("job")): record for record in _records(journal) if _is_in(record, span)}
    if any("segments_ms" not in record for record in records.values()) or _may_be_older(span, records):
        days = (_day(span.since_s), _day(span.until_s))
        for record in records_in(settings.outbox / "logs", days=days):
            if _is_in(record, span):
                records[str(record.get("job"))] = record
    found = sorted(records.values(), key=lambda record: str(record.get("ts")))
    shown = found[-limit:]
    first_s = _bounds_s(shown[0])[0] if len(found) > len(shown) else span.since_s
    seen = _Span(first_s, span.until_s)
    chosen = _Chosen(shown, [life for life in lives if _life_is_in(life, seen)], len(found) - len(shown))
    if not chosen.records and not chosen.lives:
        raise _nothing(
            "no job ended and no worker lived in that span",
            "name a longer one; times are UTC if they name no zone; `watcher jobs` lists jobs. The journal "
            "has records of a month, the timing log those of log.timings_keep_days",
        )
    return chosen


def _may_be_older(span: _Span, records: dict[str, Report]) -> bool:
    """Whether jobs may lie in the span that the journal has forgotten: it has a begin, and none is there."""
    return span.since_s is not None and not records


def _records(journal: SqliteJournal) -> Iterable[Report]:
    """The records of the journal, oldest first."""
    newest = journal.newest(states=FINAL_STATES, limit=_SEARCHED)
    return [_whole(job) for job in newest if job.record is not None]


def _whole(job: Job) -> Report:
    """The record of a job; one that was shortened gets back what the journal keeps besides."""
    record: Report = dict(job.record or {})
    known = {"job": job.id, "source": job.source, "output": job.output, "outcome": job.state.value}
    return {**known, "reason": job.reason, **record}


def _run(record: Report) -> int:
    run = (record.get("clock") or {}).get("run")
    return run if isinstance(run, int) else 0


def _is_in(record: Report, span: _Span) -> bool:
    return span.has(*_bounds_s(record))


def _bounds_s(record: Report) -> tuple[float, float]:
    try:
        end_s = datetime.fromisoformat(str(record.get("ts"))).timestamp()
    except ValueError:
        end_s = 0.0
    total_ms = record.get("total_ms")
    return end_s - (total_ms / 1e3 if isinstance(total_ms, int | float) else 0.0), end_s


def _life_is_in(life: WorkerLife, span: _Span) -> bool:
    noted_s = life.noted_unix_us / 1e6
    start_s = noted_s - (life.noted_ns - life.started_ns) / 1e9
    return span.has(start_s, noted_s if life.exited_ns is not None else max(noted_s, span.since_s or 0.0))


def _lives_of(records: Sequence[Report], lives: Sequence[WorkerLife]) -> list[WorkerLife]:
    served = {(_run(record), (record.get("worker") or {}).get("incarnation")) for record in records}
    return [life for life in lives if (life.run, life.incarnation) in served]


def _lives_in(life: WorkerLife, run: int) -> bool:
    return life.run == run and life.exited_ns is None


def _instant_s(text: str | None, now_s: float, option: str) -> float | None:
    """An instant as people write it: `2026-11-30`, `2026-11-30T10:00`, with a zone or without, `2h` ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        with suppress(OverflowError):
            return now_s - timedelta(**{_UNITS[ago["unit"]]: float(ago["count"])}).total_seconds()
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise RemediableError(
            f"{option} {text} is no time",
            "write 2026-11-30, 2026-11-30T10:00 (UTC if it names no zone), or how long ago: 90s, 30m, 2h, 7d",
            exit_code=_EXIT_USAGE,
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _day(instant_s: float | None) -> str | None:
    if instant_s is None:
        return None
    try:
        return datetime.fromtimestamp(instant_s, tz=UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def _nothing(what: str, remedy: str) -> RemediableError:
    return RemediableError(what, remedy, exit_code=_EXIT_USAGE)
