"""What `status`, `jobs`, `once` and `retry` tell, as plain values: printed as JSON or shown as tables.

Rules of this file: it reads the state folder and writes only requests. Whether a service runs is told by its
lock; what it is doing by its status file, believed only if its pid is the owner's; the jobs by the journal.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from watcher.adapters.clock import SystemClock
from watcher.adapters.journal import open_readonly
from watcher.adapters.lock import owner_of
from watcher.adapters.requests import count_requests, write_retry
from watcher.adapters.state_owner import check_owner
from watcher.core.job import FINAL_STATES, JobState
from watcher.core.record import path_fields, printable, utc_text
from watcher.ports import RemediableError
from watcher.settings import ConfigurationError, check_folders
from watcher.telemetry.status import Columns, StatusFile

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from watcher.adapters.journal import SqliteJournal
    from watcher.app import OnceSummary
    from watcher.core.job import Job
    from watcher.settings import Settings
    from watcher.telemetry.status import Status, WorkerStatus

Report: TypeAlias = "dict[str, Any]"

SCHEMA: Final = 1
_LAST: Final = 5
_SILENT_S: Final = 15.0
"""The service writes its status each second; without a word for so long it is stuck."""
_EXIT_USAGE: Final = 2


def status_report(settings: Settings) -> Report:
    """How the service and its jobs stand."""
    owner = owner_of(settings.state_dir)
    written = StatusFile(settings.state_dir).read()
    live = written if owner is not None and written is not None and written.pid == owner.pid else None
    worker = live.worker if live else None
    last, counts = _last_jobs(settings)
    return {
        "schema": SCHEMA,
        "running": owner is not None,
        "pid": owner.pid if owner else None,
        "state": live.state if live else ("starting" if owner else "stopped"),
        "started": live.started if live else None,
        "version": live.version if live else None,
        "silent_s": _silence_s(live) if live else None,
        "problems": [] if owner else _why_it_cannot_start(settings),
        "worker": _worker_facts(worker),
        "path": live.path if live else None,
        "path_reason": live.path_reason if live else None,
        "blocked": live.blocked if live else None,
        "engine": msgspec.to_builtins(worker.engine if worker else Columns(configured=settings.engine.name)),
        "device": msgspec.to_builtins(
            worker.device if worker else Columns(configured=settings.engine.device)
        ),
        "jobs": {state.value: count for state in JobState if (count := counts[state])},
        "requests_waiting": count_requests(settings.state_dir),
        "last": [job_facts(job) for job in last],
        "config": str(settings.config_file) if settings.config_file else None,
        "inbox": str(settings.inbox),
        "outbox": str(settings.outbox),
        "state_dir": str(settings.state_dir),
    }


def _silence_s(live: Status) -> float | None:
    """How long the service has not told how it stands, if that is too long; None if it is not."""
    try:
        written_s = datetime.fromisoformat(live.written).timestamp()
    except ValueError:
        return None
    silence_s = SystemClock().now().wall_s - written_s
    return round(silence_s, 1) if silence_s > _SILENT_S else None


def _why_it_cannot_start(settings: Settings) -> list[Report]:
    """What would end a start at once: a service manager does not try again after that, so this must tell."""
    try:
        check_folders(settings)
        check_owner(settings.state_dir, inbox=settings.inbox, outbox=settings.outbox)
    except ConfigurationError as error:
        return [{"what": found.what, "remedy": found.remedy} for found in error.problems]
    except RemediableError as error:
        return [{"what": str(error), "remedy": error.remedy}]
    return []


def _worker_facts(worker: WorkerStatus | None) -> Report | None:
    if worker is None:
        return None
    return {
        "state": worker.state,
        "pid": worker.pid,
        "incarnation": worker.incarnation,
        "restarts": worker.restarts,
        "trouble": worker.trouble,
    }


def jobs_report(settings: Settings, *, states: Collection[JobState], limit: int) -> Report:
    """The newest jobs in these states (none: all), oldest first.

    Raises:
        RemediableError: there is no journal, or it cannot be read.
    """
    with open_readonly(settings.journal_file) as journal:
        newest = journal.newest(states=states, limit=limit)
        counts = journal.counts()
    found = sum(count for state, count in counts.items() if not states or state in states)
    return {"schema": SCHEMA, "found": found, "jobs": [job_facts(job) for job in newest]}


def once_report(summary: OnceSummary) -> Report:
    """What one run of `once` did."""
    counts = Counter(job.state.value for job in summary.finished)
    return {
        "schema": SCHEMA,
        **{state.value: counts[state.value] for state in JobState if state in FINAL_STATES},
        "held": len(summary.held),
        "failed_before": len(summary.failed_before),
        "unreadable": dict(summary.unreadable),
        "trouble": str(summary.trouble) if summary.trouble is not None else None,
        "jobs": [job_facts(job) for job in (*summary.finished, *summary.held)],
    }


def request_retry(settings: Settings, names: Sequence[str] | None) -> Report:
    """Ask the service to do jobs again.

    Args:
        settings: whose service.
        names: ids, or paths of pictures in the inbox; None for all that failed or are quarantined.

    Raises:
        RemediableError: there is no such job, or it is not finished.
    """
    with open_readonly(settings.journal_file) as journal:
        if names is None:
            chosen = journal.given_up()
        else:
            by_id = {job.id: job for job in journal.jobs(ids=[name for name in names if name.isascii()])}
            chosen = tuple(by_id.get(name) or job_at(name, journal, settings.inbox) for name in names)
    for job in chosen:
        _refuse_unfinished(job)
        if names is not None:
            _refuse_absent(job, settings.inbox)
    if chosen:
        write_retry(settings.state_dir, [job.id for job in chosen])
    owner = owner_of(settings.state_dir)
    return {
        "schema": SCHEMA,
        "requested": [
            {"id": job.id, **path_fields("source", job.source), "state": job.state.value} for job in chosen
        ],
        "running": owner is not None,
        "pid": owner.pid if owner else None,
    }


def job_facts(job: Job) -> Report:
    """One job as people ask about it."""
    record: Any = job.record or {}
    return {
        "id": job.id,
        "state": job.state.value,
        **path_fields("source", job.source),
        **_output_facts(job),
        "reason": job.reason,
        "recipe": job.identity.recipe,
        "marks": record.get("marks"),
        "attempts": job.attempts,
        "path": record.get("path"),
        "path_reason": record.get("path_reason"),
        "engine": (record.get("engine") or {}).get("actual"),
        "device": (record.get("device") or {}).get("actual"),
        "total_ms": record.get("total_ms"),
        "created": utc_text(job.created_s),
        "finished": record.get("ts") if job.is_final else None,
        "duplicate_of": job.duplicate_of,
        "retry_of": job.retry_of,
    }


def _output_facts(job: Job) -> Report:
    if job.output is None or job.state not in {JobState.DONE, JobState.UNCHANGED}:
        return {"output": None}
    return path_fields("output", job.output)


def _last_jobs(settings: Settings) -> tuple[tuple[Job, ...], Counter[JobState]]:
    """The last finished jobs, and how many there are in each state. Nothing, before the first run."""
    if not settings.journal_file.exists():
        return (), Counter()
    with open_readonly(settings.journal_file) as journal:
        return journal.newest(states=FINAL_STATES, limit=_LAST), Counter(journal.counts())


def job_at(name: str, journal: SqliteJournal, inbox: Path) -> Job:
    """The newest job of the bytes at this path, given as in the inbox or as the shell knows it.

    Where no job is of the bytes that are there, the newest of the path.

    Raises:
        RemediableError: there is none.
    """
    names = {os.path.normpath(name)}
    absolute = Path(os.path.abspath(name))  # noqa: PTH100 - Path.absolute leaves `..` in
    if absolute.is_relative_to(inbox):
        names.add(absolute.relative_to(inbox).as_posix())
    jobs = [job for source in names for job in journal.at(source)]
    here = [job for job in jobs if job.identity.picture_sha256 == journal.hash_at(job.source)]
    if jobs:
        return (here or jobs)[-1]
    raise RemediableError(
        f"there is no job {name}", "`watcher jobs` lists ids and pictures", exit_code=_EXIT_USAGE
    )


def _refuse_absent(job: Job, inbox: Path) -> None:
    if not os.path.lexists(os.path.join(inbox, job.source)):  # noqa: PTH118 - a name may not be UTF-8
        raise RemediableError(
            f"the picture of job {job.id} is not in the inbox any more: {printable(job.source)}",
            "put it there again first",
            exit_code=_EXIT_USAGE,
        )


def _refuse_unfinished(job: Job) -> None:
    if job.is_final:
        return
    remedy = "wait for it"
    if job.state == JobState.HELD:
        remedy = f"put a mask beside it, such as {job.source}.mask.png (white where something is to go)"
    raise RemediableError(
        f"job {job.id} ({job.source}) is {job.state.value}, not finished: there is nothing to do again",
        remedy,
        exit_code=_EXIT_USAGE,
    )
