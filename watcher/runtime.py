"""The only loop: take an event -> ask the core -> carry out its commands.

Rules of this file:
- One thread changes state: the one in `run`. Observer, pipe and outbox threads only put events on the queue.
- Journal writes are committed before any command that follows them is begun, but for those that only look.
  Neighbours share a commit, and so do an event and the answers to its questions: from the last byte of a file
  to its dispatch there is one.
- A question to the journal is answered at once, before any other event.
- What fails here for want of disk is kept and tried again; nothing that was promised is dropped.
"""

from __future__ import annotations

import queue
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.job import JobState
from watcher.ports import RemediableError
from watcher.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.adapters.event_queue import EventQueue
    from watcher.core.job import Job
    from watcher.core.pipeline import Pipeline
    from watcher.ports import (
        Clock,
        Executor,
        Inbox,
        Journal,
        MemoryGauge,
        Outbox,
        ResidentExecutor,
        RetryRequests,
        ServiceManager,
        StatusBoard,
        TimingLog,
    )

_NS_PER_S: Final = 1_000_000_000
_HOUSEKEEPING_NS: Final = _NS_PER_S
"""How often requests are looked for and the status is written, at least."""
_STATUS_NS: Final = _NS_PER_S // 4
"""How often the status is written at most."""
_PRUNING_NS: Final = 3600 * _NS_PER_S
"""How often the journal is asked to forget; while it has more to forget, at each housekeeping."""
_MARK_AFTER: Final = 64
"""Timing lines are marked as written in groups: a mark that is lost costs a look into the log at start."""
_MAX_REQUESTS: Final = 20
"""So many requests are taken up at a housekeeping: each costs a commit."""
_JOURNAL_RETRY_S: Final = 1.0
_TRY_AGAIN: Final = 75
_CONFIGURATION: Final = 78
_TELLING: Final = (
    e.InboxListed,
    e.InboxLost,
    e.InboxFound,
    e.WorkerReady,
    e.WorkerExited,
    e.BatchDone,
    e.PublishBlocked,
    e.DrainRequested,
)
"""Events that change what the status shows and may write nothing to the journal."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Everything outside the core, as ports."""

    clock: Clock
    inbox: Inbox
    journal: Journal
    timings: TimingLog
    outbox: Outbox
    hot: ResidentExecutor
    cold: Executor
    requests: RetryRequests
    status: StatusBoard
    memory: MemoryGauge
    manager: ServiceManager


class Runtime:
    """Runs a pipeline against its edges.

    Args:
        pipeline: decides.
        edges: the world.
        events: where the edges put what happened: their sinks feed it.
        on_finished: told of each job that ends, after its record is durable.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        edges: Edges,
        events: EventQueue,
        on_finished: Callable[[Job], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._edges = edges
        self._events = events
        self._on_finished = on_finished
        self._answers: deque[e.Event] = deque()
        self._writes: list[c.JournalWrite] = []
        self._lines_owed = False
        """The timing log failed. What it lacks is in the journal, so that nothing piles up here."""
        self._unmarked: list[str] = []
        self._closing = False
        self._requests_due = False
        self._next_housekeeping_ns = 0
        self._next_pruning_ns = 0
        self._status_dirty = True
        self._status_written_ns = 0
        self._drains_asked = 0
        self._last_exit: e.WorkerExited | None = None

    # --- what others call, from any thread or a signal ---

    def drain(self, reason: str) -> None:
        """Accept nothing new and finish what runs; a second call ends at once."""
        self._drains_asked += 1
        self._events.put(e.DrainRequested(reason))

    @property
    def _hurry(self) -> bool:
        return self._drains_asked > 1

    @property
    def open_jobs(self) -> int:
        """How many pictures are still to be worked off, as far as they are known."""
        return self._pipeline.open_jobs

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Files that could not be read, with the reason."""
        return cast("Mapping[str, str]", self._pipeline.snapshot()["unreadable"])

    def trouble(self) -> RemediableError | None:
        """Why pictures that are ready are not being served, if there are such, with what a person can do."""
        if self._drains_asked and self.open_jobs:
            return RemediableError(
                f"stopped before the end: {self.open_jobs} of the pictures are left",
                "run it again: it goes on where it was",
                exit_code=_TRY_AGAIN,
            )
        ready = cast("Mapping[str, int]", self._pipeline.snapshot()["jobs"]).get(JobState.READY, 0)
        if not ready or self._last_exit is None:
            return None
        ended = self._last_exit
        return RemediableError(
            f"no worker can be started, so {ready} of the pictures wait: {ended.reason or ended.story}",
            ended.remedy or "worker.log in state_dir says more; `watcher doctor` looks at the installation",
            exit_code=_CONFIGURATION if ended.exit_code == _CONFIGURATION else _TRY_AGAIN,
        )

    @property
    def held(self) -> tuple[Job, ...]:
        """The jobs that wait for a mask."""
        return self._pipeline.held

    # --- the loop ---

    def start(self) -> None:
        """Rescue what a crash left, then watch."""
        edges = self._edges
        opened = edges.journal.load()
        keep = [job.stage_name for job in opened.jobs if job.state is JobState.PUBLISHING and job.stage_name]
        swept = edges.outbox.sweep(keep)
        if swept:
            log.write("info", "outbox.swept", {"files": swept})
        noted = {job.id for job in (*opened.jobs, *edges.journal.given_up())}
        edges.outbox.sweep_notes(noted, opened.next_number)
        while self._rescue_timing_lines():
            self._tell_that_it_lives()
        self._handle(opened)
        edges.inbox.start()

    def run(self, *, until_idle: bool = False) -> None:
        """Work until a drain is over, or (with `until_idle`) until nothing is left to do."""
        while not self._hurry:
            self._handle(self._next_event())
            if self._pipeline.is_drained:
                break
            if until_idle and not self._answers and self._events.empty() and self._pipeline.is_idle:
                break
        self._flush()

    def close(self) -> None:
        """End the edges; what was committed stays so."""
        edges = self._edges
        self._closing = True
        edges.manager.stopping()
        self._tell_that_it_lives()
        self._events.close()
        edges.inbox.close()
        edges.hot.close()
        edges.cold.close()
        edges.outbox.close()
        self._take_late_reports()
        self._pay_lines()
        edges.status.write(self._pipeline.snapshot(), running=False)

    def _take_late_reports(self) -> None:
        """The outbox finished what it had begun: commit it now instead of rescuing it at the next start."""
        with suppress(queue.Empty):
            while True:
                event = self._events.get()
                if isinstance(event, e.ResultPublished):
                    self._handle(event)

    def _next_event(self) -> e.Event:
        if self._answers:
            return self._answers.popleft()
        now_ns = self._edges.clock.now().mono_ns
        wake_ns = self._next_housekeeping_ns
        for due_ns in (self._pipeline.next_wakeup_ns(), self._edges.manager.next_due_ns()):
            if due_ns is not None:
                wake_ns = min(wake_ns, due_ns)
        if self._status_dirty:
            wake_ns = min(wake_ns, self._status_written_ns + _STATUS_NS)
        try:
            return self._events.get(timeout_s=(wake_ns - now_ns) / _NS_PER_S)
        except queue.Empty:
            return e.TimerFired()

    def _handle(self, event: e.Event) -> None:
        now = self._edges.clock.now()
        for command in self._pipeline.handle(event, now):
            self._carry_out(command)
        if not self._answers:
            self._flush()
        if isinstance(event, _TELLING):
            self._status_dirty = True
        if isinstance(event, e.InboxListed):
            self._requests_due = True
        if isinstance(event, e.WorkerExited):
            self._last_exit = event
        self._keep_house(now.mono_ns)
        # What is asked for or not written yet may be just what the journal is about to forget.
        if now.mono_ns >= self._next_pruning_ns and self._pipeline.is_watching and not self._answers:
            self._prune_journal(now)
        self._tell_manager(event, now.mono_ns)

    # --- commands ---

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.SaveJob() | c.FinishJob() | c.SaveFile() | c.ForgetFile():
                self._writes.append(command)
            case c.Log():
                log.write(command.level, command.event, command.fields)
            case c.SaveWorkerLife():
                self._save_life(command)
            case _ if not self._closing:
                if self._depends_on_writes(command):
                    self._flush()
                self._begin(command)
            case _:
                pass  # nothing is begun any more; the journal tells the next start

    def _save_life(self, command: c.SaveWorkerLife) -> None:
        try:
            self._edges.journal.save_life(command.life)
        except RemediableError as error:  # a trace will lack it
            log.write("debug", "journal.life_not_saved", {"reason": str(error)})

    def _depends_on_writes(self, command: c.Command) -> bool:
        """Whether what was gathered must be durable before this is begun."""
        match command:
            case c.ObserveFile() | c.HashFile() | c.RescanInbox():
                return False
            case c.FindPriorJobs():  # the answer is about jobs that are final
                return any(isinstance(w, c.SaveJob | c.FinishJob) and w.job.is_final for w in self._writes)
            case _:
                return True

    def _begin(self, command: c.Command) -> None:  # noqa: C901, PLR0912 - one flat table of commands
        edges = self._edges
        match command:
            case c.ObserveFile():
                edges.inbox.observe(command.path)
            case c.RescanInbox():
                edges.inbox.rescan(command.reason)
            case c.HashFile():
                edges.inbox.hash_file(command.path, command.fingerprint)
            case c.FindPriorJobs():
                jobs = edges.journal.prior_jobs(command.identity, command.path)
                self._answers.append(e.PriorJobsFound(command.path, command.identity, jobs))
            case c.StartWorker():
                log.write("info", "worker.starting", {"incarnation": command.incarnation})
                edges.hot.start(command.incarnation)
            case c.RunBatch():
                edges.hot.submit(command.incarnation, command.batch)
            case c.RunCold():
                edges.cold.submit(command.incarnation, command.batch, device=command.device)
            case c.ExamineWorker():
                edges.hot.examine(command.incarnation)
            case c.PingWorker():
                edges.hot.ping(command.incarnation, command.number)
            case c.KillWorker():
                edges.hot.kill(command.incarnation, command.reason)
                edges.cold.kill(command.incarnation, command.reason)
            case c.DrainWorker():
                edges.hot.drain(command.incarnation)
            case c.SealResult():
                edges.outbox.seal(command)
            case c.PublishResult():
                edges.outbox.publish(command)
            case c.DiscardStage():
                edges.outbox.discard(command.stage_name)
            case c.WriteNote():
                edges.outbox.write_note(command)
            case c.RemoveNote():
                edges.outbox.remove_note(command.source)
            case c.ApplyAfter():
                edges.outbox.apply_after(command.job, again=command.again)
            case _:
                raise AssertionError(command)

    def _flush(self) -> None:
        """Make the gathered writes durable, then append the lines of the jobs that they ended."""
        if not self._writes:
            return
        writes, self._writes = self._writes, []
        self._commit(writes)
        self._status_dirty = True
        finished = [write.job for write in writes if isinstance(write, c.FinishJob)]
        self._append_timing_lines(finished)
        if self._on_finished is not None:
            for job in finished:
                self._on_finished(job)

    def _commit(self, writes: list[c.JournalWrite]) -> None:
        """Commit, and wait as long as the disk is full: nothing may be begun before."""
        blocked = False
        while True:
            try:
                self._edges.journal.commit(writes)
            except RemediableError as error:
                if error.exit_code != _TRY_AGAIN or self._hurry or self._closing:
                    raise
                if not blocked:
                    log.write("error", "journal.blocked", {"reason": str(error), "remedy": error.remedy})
                blocked = True
                self._tell_that_it_lives()
                self._edges.clock.sleep(self._retry_pause_s())
            else:
                if blocked:
                    log.write("info", "journal.resumed", {})
                return

    def _retry_pause_s(self) -> float:
        """Not so long that the service manager would take this for a hang."""
        due_ns = self._edges.manager.next_due_ns()
        if due_ns is None:
            return _JOURNAL_RETRY_S
        return min(_JOURNAL_RETRY_S, max(0.0, (due_ns - self._edges.clock.now().mono_ns) / _NS_PER_S))

    # --- the service manager ---

    def _tell_manager(self, event: e.Event, now_ns: int) -> None:
        # It does not wait for the model: that may take long, and pictures are served meanwhile. An inbox that
        # is away is waited for, which is all that can be done.
        manager = self._edges.manager
        if self._pipeline.is_watching or isinstance(event, e.InboxLost):
            manager.ready()
        if isinstance(event, e.DrainRequested):
            manager.stopping()
        manager.live(now_ns)

    def _tell_that_it_lives(self) -> None:
        self._edges.manager.live(self._edges.clock.now().mono_ns)

    # --- timing lines ---

    def _append_timing_lines(self, finished: list[Job]) -> None:
        if self._lines_owed:
            return  # the journal knows these too
        try:
            self._append(finished)
        except OSError as error:
            self._owe_lines(error)
        if len(self._unmarked) >= _MARK_AFTER:
            self._mark_logged()

    def _rescue_timing_lines(self) -> bool:
        """Append lines that a crash or a failure kept from being written, never one twice.

        Returns:
            Whether there may be more: not all are read at once.
        """
        jobs = self._edges.journal.unlogged()
        try:
            present = self._edges.timings.logged([job.id for job in jobs]) if jobs else set()
            self._unmarked += [job.id for job in jobs if job.id in present]
            missing = [job for job in jobs if job.id not in present]
            self._append(missing)
        except OSError as error:
            self._owe_lines(error)
            return False
        if missing:
            log.write("info", "timings.rescued", {"lines": len(missing)})
        self._lines_owed = self._mark_logged() and bool(jobs)
        return self._lines_owed

    def _append(self, finished: list[Job]) -> None:
        for job in finished:
            if job.record is not None:
                self._edges.timings.append(job.record)
            self._unmarked.append(job.id)

    def _owe_lines(self, error: OSError) -> None:
        if not self._lines_owed:
            log.write("error", "timings.blocked", {"reason": str(error)})
        self._lines_owed = True

    def _mark_logged(self) -> bool:
        """Note which lines are written; return False if that could not be noted."""
        marked, self._unmarked = self._unmarked, []
        if not marked:
            return True
        try:
            self._edges.journal.mark_logged(marked)
        except RemediableError as error:  # the next start looks into the log instead
            log.write("debug", "journal.mark_failed", {"reason": str(error)})
            return False
        return True

    def _pay_lines(self) -> None:
        """Write what the timing log still lacks, and note what it has."""
        if self._lines_owed:
            try:
                self._rescue_timing_lines()
            except RemediableError as error:
                log.write("debug", "journal.unreadable", {"reason": str(error)})
        self._mark_logged()

    # --- housekeeping ---

    def _keep_house(self, now_ns: int) -> None:
        if now_ns >= self._next_housekeeping_ns:
            self._next_housekeeping_ns = now_ns + _HOUSEKEEPING_NS
            self._pay_lines()
            self._requests_due = True
            self._write_status(now_ns)
            self._look_at_memory()
        elif self._status_dirty and now_ns - self._status_written_ns >= _STATUS_NS:
            self._write_status(now_ns)
        # Before a listing nobody knows whether the pictures are there; an answer of the journal goes first.
        if self._requests_due and self._pipeline.is_watching and not self._answers:
            self._requests_due = False
            self._take_requests()

    def _look_at_memory(self) -> None:
        available_bytes = self._edges.memory.available_bytes()
        if available_bytes is not None:
            self._events.put(e.MemoryObserved(available_bytes))

    def _prune_journal(self, now: e.Instant) -> None:
        more = False
        try:
            more = self._edges.journal.prune(now.wall_s)
        except RemediableError as error:
            log.write("debug", "journal.prune_failed", {"reason": str(error)})
        self._next_pruning_ns = now.mono_ns + (_HOUSEKEEPING_NS if more else _PRUNING_NS)

    def _write_status(self, now_ns: int) -> None:
        self._status_dirty = False
        self._status_written_ns = now_ns
        snapshot = self._pipeline.snapshot()
        self._edges.status.write(snapshot, running=True)
        self._edges.manager.show(snapshot)

    def _take_requests(self) -> None:
        for request in islice(self._edges.requests.waiting(), _MAX_REQUESTS):
            self._handle(self._retry_event(request.ids))
            self._flush()
            request.remove()  # the journal has the new jobs; read twice it would find them at work

    def _retry_event(self, ids: tuple[str, ...] | None) -> e.RetryRequested:
        journal = self._edges.journal
        if ids is None:
            return e.RetryRequested(journal.given_up())
        found = tuple(job for job in journal.jobs(ids=ids) if job.is_final)
        known = {job.id for job in found}
        return e.RetryRequested(found, tuple(job_id for job_id in ids if job_id not in known))
