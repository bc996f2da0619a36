"""Composition root: the only place that builds adapters and ties them to the core.

Rules of this file: it decides nothing. Which adapter stands behind which port is read off `_edges`; what they
do together is the runtime's and the core's business.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from watcher import __version__
from watcher.adapters import service_manager
from watcher.adapters.bounded_log import BoundedLog
from watcher.adapters.clock import SystemClock
from watcher.adapters.event_queue import EventQueue
from watcher.adapters.inbox import WatchedInbox
from watcher.adapters.journal import SqliteJournal
from watcher.adapters.lock import FolderLock, StateLock
from watcher.adapters.memory import SystemMemory
from watcher.adapters.outbox import FolderOutbox
from watcher.adapters.processes import ColdExecutor, HotExecutor, WorkerSetup
from watcher.adapters.requests import RequestFolder
from watcher.adapters.state_owner import claim
from watcher.adapters.status_board import FileStatusBoard
from watcher.adapters.timing_log import JsonlTimingLog
from watcher.core.pipeline import Pipeline
from watcher.runtime import Edges, Runtime
from watcher.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from watcher.core.job import Job
    from watcher.ports import Journal, RemediableError
    from watcher.settings import Settings

_MIB: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class OnceSummary:
    """What one `watcher once` did.

    Attributes:
        finished: the jobs that ended.
        held: those that wait for a mask.
        failed_before: pictures of the inbox that an earlier run gave up.
        unreadable: files that could not be read, with the reason.
        trouble: why other pictures were not served.
    """

    finished: tuple[Job, ...]
    held: tuple[Job, ...]
    failed_before: tuple[Job, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    trouble: RemediableError | None = None


def run_service(chosen: Settings) -> int:
    """Run the service until a signal ends it. Returns the exit code.

    The caller has checked the folders (`settings.check_folders`).

    Raises:
        RemediableError: another service owns the state, it is of other folders, or the journal is damaged.
    """
    with _journal_of(chosen) as journal:
        runtime = _build(chosen, journal, once=False)
        with _signals(runtime):
            log.write(
                "info",
                "service.started",
                {
                    "version": __version__,
                    "inbox": str(chosen.inbox),
                    "outbox": str(chosen.outbox),
                    "engine": chosen.engine.name,
                    "device": chosen.engine.device,
                },
            )
            _work(runtime, until_idle=False)
        log.write("info", "service.stopped", {})
    return 0


def run_once(chosen: Settings, on_progress: Callable[[Job, int], None]) -> OnceSummary:
    """Work off what is in the inbox, then stop.

    Args:
        chosen: the configuration, its folders checked.
        on_progress: called with each job that ends and the number of those still to come.

    Raises:
        RemediableError: as for `run_service`.
    """
    finished: list[Job] = []

    def note(job: Job) -> None:
        finished.append(job)
        on_progress(job, runtime.open_jobs)

    with _journal_of(chosen) as journal:
        runtime = _build(chosen, journal, once=True, on_finished=note)
        with _signals(runtime):
            _work(runtime, until_idle=True)
        ended = {job.id for job in finished}
        return OnceSummary(
            finished=tuple(finished),
            held=runtime.held,
            failed_before=tuple(
                job for job in journal.given_up() if job.id not in ended and _is_there(job, chosen)
            ),
            unreadable=runtime.unreadable,
            trouble=runtime.trouble(),
        )


def _is_there(job: Job, chosen: Settings) -> bool:
    return os.path.lexists(os.path.join(chosen.inbox, job.source))  # noqa: PTH118 - a name may not be UTF-8


@contextlib.contextmanager
def _journal_of(chosen: Settings) -> Iterator[SqliteJournal]:
    """Own the folders, see that the state is of these, and open its journal."""
    with (
        StateLock(chosen.state_dir),
        FolderLock("inbox", chosen.inbox),
        FolderLock("outbox", chosen.outbox),
    ):
        claim(chosen.state_dir, inbox=chosen.inbox, outbox=chosen.outbox)
        with SqliteJournal(chosen.journal_file) as journal:
            yield journal


def _work(runtime: Runtime, *, until_idle: bool) -> None:
    try:
        runtime.start()
        runtime.run(until_idle=until_idle)
    finally:
        runtime.close()


def _build(
    chosen: Settings, journal: Journal, *, once: bool, on_finished: Callable[[Job], None] | None = None
) -> Runtime:
    events = EventQueue()
    # Full jitter only spreads restarts; it guards no secret.
    pipeline = Pipeline(chosen.policy(once=once), jitter=random.random)
    return Runtime(pipeline, _edges(chosen, journal, events), events, on_finished)


def _edges(chosen: Settings, journal: Journal, events: EventQueue) -> Edges:
    clock = SystemClock()
    sink = events.put
    outbox = FolderOutbox(
        inbox=chosen.inbox,
        outbox=chosen.outbox,
        state_dir=chosen.state_dir,
        archive=chosen.archive,
        after=chosen.after,
        on_conflict=chosen.output.on_conflict,
        sink=sink,
        clock=clock,
    )
    setup = WorkerSetup(
        engine=chosen.engine_choice(),
        limits=chosen.limits(),
        inbox=chosen.inbox,
        staging=outbox.staging,
        log=BoundedLog(chosen.state_dir / "worker.log"),
    )
    return Edges(
        clock=clock,
        inbox=WatchedInbox(
            chosen.inbox,
            observer=chosen.arrivals.observer,
            recursive=chosen.arrivals.recursive,
            ignore=chosen.arrivals.ignore,
            sink=events.put_arrival,
            clock=clock,
        ),
        journal=journal,
        timings=JsonlTimingLog(
            chosen.outbox / "logs",
            clock,
            max_bytes=chosen.log.timings_max_mb * _MIB,
            keep_days=chosen.log.timings_keep_days,
        ),
        outbox=outbox,
        hot=HotExecutor(setup, sink, clock),
        cold=ColdExecutor(setup, sink, clock),
        memory=SystemMemory(),
        manager=service_manager.from_environment(os.environ),
        requests=RequestFolder(chosen.state_dir),
        status=FileStatusBoard(
            chosen.state_dir, clock, engine=chosen.engine.name, device=chosen.engine.device
        ),
    )


@contextlib.contextmanager
def _signals(runtime: Runtime) -> Iterator[None]:
    """A first SIGTERM, SIGINT or SIGHUP drains, a second one ends at once."""

    def ask(number: int, _frame: object) -> None:
        runtime.drain(signal.Signals(number).name)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
