"""A fake world around `Pipeline`, so that a test reads as a conversation.

The clock stands unless a test says `advance`; inbox, journal, outbox and processes answer as the real ones
do. A picture's bytes say what a worker makes of it: see `Process.serve`. What no test may ever see (a job
that is final twice, work that begins before it is saved, an attempt or a blame that nobody earned, a file
that is read while a writer is known to have it, a source that goes without its result, a record that does not
add up, a timer that fires for nothing) fails the test from in here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.job import Fingerprint, Job, JobState
from watcher.core.pipeline import Pipeline
from watcher.core.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from watcher.core.job import JsonObject
    from watcher.core.lives import WorkerLife

NS = 1_000_000_000
MS = 1_000_000
HOST = "testhost"
MANY = 50
"""More than anything does in a row that comes to an end."""
START_SEGMENTS = {
    "process_start": 100 * MS,
    "import": 900 * MS,
    "device_probe": 1 * MS,
    "model_read": 100 * MS,
    "model_load": 500 * MS,
    "warmup": 400 * MS,
}
WORK_SEGMENTS = {
    "read": 1 * MS,
    "decode": 20 * MS,
    "mask": 2 * MS,
    "preprocess": 3 * MS,
    "inference": 100 * MS,
    "composite": 2 * MS,
    "encode": 30 * MS,
}
ENGINE: JsonObject = {
    "configured": "auto",
    "actual": "patchmatch",
    "reason": "no weights",
    "model_sha256": None,
}
DEVICE: JsonObject = {
    "configured": "auto",
    "available": ["cpu"],
    "actual": "cpu",
    "reason": None,
    "evidence": {},
}

MAX_SUSPECTS = 2
"""Suspects that run beside each other: a second one when the first has overstayed."""
EXIT_USED_UP = 75
CPU = "cpu"
_LOAD_NS = 2 * sum(START_SEGMENTS.values()) // 3
"""How far a start has come when its model is loaded."""

_Command = TypeVar("_Command")


class ServiceCrashed(Exception):  # noqa: N818 - something that happens to the fake service, not an error of ours
    """The service died where the test wanted it to."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cleaned(picture: bytes, mask: bytes) -> bytes:
    """What a fake worker makes of a picture and its mask."""
    return b"clean:" + picture + b"|" + mask


@dataclass(slots=True)
class DiskFile:
    data: bytes
    fingerprint: Fingerprint
    writer: e.Writer = e.Writer.NONE
    links: int = 1
    unreadable: str | None = None


@dataclass(slots=True)
class Journal:
    """What `SqliteJournal` keeps: all jobs ever, files, timing lines."""

    jobs: dict[str, Job] = field(default_factory=dict)
    files: dict[str, e.SavedFile] = field(default_factory=dict)
    unlogged: list[str] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """The timing log."""
    lives: dict[int, WorkerLife] = field(default_factory=dict)

    def opened(self) -> e.JournalOpened:
        numbers = [int(job_id.rpartition("-")[2]) for job_id in self.jobs]
        active = tuple(job for job in self.jobs.values() if not job.is_final)
        return e.JournalOpened(active, tuple(self.files.values()), max(numbers, default=0) + 1)

    def prior_jobs(self, command: c.FindPriorJobs) -> tuple[Job, ...]:
        wanted = (command.identity.picture_sha256, command.identity.recipe)
        return tuple(
            job
            for job in self.jobs.values()
            if job.is_final and (job.identity.picture_sha256, job.identity.recipe) == wanted
        )

    def commit(self, writes: Iterable[c.JournalWrite]) -> None:
        for write in writes:
            match write:
                case c.SaveJob():
                    self._save(write.job)
                case c.FinishJob():
                    self._finish(write.job)
                case c.SaveFile():
                    self.files[write.file.path] = write.file
                case c.ForgetFile():
                    self.files.pop(write.path, None)

    def _save(self, job: Job) -> None:
        older = self.jobs.get(job.id)
        if older is not None and older.is_final:
            assert replace(older, source=job.source, record=None) == replace(job, record=None), (
                "a final job was changed"
            )
        self.jobs[job.id] = _as_stored(job)

    def _finish(self, job: Job) -> None:
        assert job.is_final
        assert not job.has_result or job.sha256_out is not None
        older = self.jobs.get(job.id)
        assert older is None or not older.is_final, f"{job.id} ended twice"
        self.jobs[job.id] = _as_stored(job)
        self.unlogged.append(job.id)

    def append_lines(self) -> None:
        """Append the timing lines that are missing."""
        for job_id in self.unlogged:
            record = self.jobs[job_id].record
            assert record is not None
            self.lines.append(dict(record))
        self.unlogged.clear()


def _as_stored(job: Job) -> Job:
    record = json.loads(json.dumps(job.record)) if job.record is not None else None
    return replace(job, clock=None, record=record)


@dataclass(slots=True)
class Process:
    """A worker process, played by the test or by `World.work`."""

    world: World
    path: Literal["hot", "cold"]
    incarnation: int
    batch: c.Batch | None = None
    alive: bool = True
    is_ready: bool = False
    draining: bool = False
    unkillable: bool = False
    stuck: bool = False
    """It makes no progress any more."""
    deaf: bool = False
    """It does not answer pings: its thread hangs, and nobody knows yet."""
    device: str | None = None
    """It was started on this one, instead of the configured one."""
    is_warming: bool = False
    careful: bool = False
    """It has one suspect, alone."""
    has_worked: bool = False
    """It has begun an item of its batch."""
    busy_ns: int = 0
    format: str = ""
    """Of the pictures, as it tells with its progress."""
    """How long it has computed, or wanted to, since its last report."""
    waits_for_disk: bool = False
    judged: bool = False
    """What its end costs its jobs was counted."""
    read: bool = False
    received_ns: int = 0
    started_ns: int = 0
    spawned_ns: int = 0
    unreported: list[c.BatchItem] = field(default_factory=list)

    @property
    def origin(self) -> e.Origin:
        return e.Origin(self.path, self.incarnation, 1000 + self.incarnation, HOST)

    @property
    def sources(self) -> list[str]:
        """The sources of the batch that it has, reported or not."""
        return [item.job.source for item in self.batch.items] if self.batch else []

    def give(self, batch: c.Batch) -> None:
        assert self.alive
        assert self.batch is None, "a second batch was given to a busy worker"
        self.batch, self.read = batch, False
        self.careful = _is_careful(batch)
        self.has_worked = False
        self.unreported = list(batch.items)

    # --- what it says ---

    def warm(self) -> None:
        """Its model is loaded; its self-test begins."""
        self.is_warming = True
        world = self.world
        world.now_ns = max(world.now_ns, self.spawned_ns + _LOAD_NS)
        world.send(e.WorkerWarming(self.origin))

    def ready(self) -> None:
        self.is_ready = True
        world = self.world
        world.now_ns = max(world.now_ns, self.spawned_ns + sum(START_SEGMENTS.values()))
        segments = {**START_SEGMENTS}
        segments["process_start"] += world.now_ns - self.spawned_ns - sum(segments.values())
        world.send(e.WorkerReady(self.origin, world.now_ns, segments, ENGINE, DEVICE, 400_000_000, 1))

    def read_batch(self) -> None:
        assert self.batch is not None
        self.read = True
        self.received_ns = self.world.tick()
        self.world.send(e.BatchStarted(self.origin, self.batch.id))

    def begin(self, source: str | None = None) -> c.BatchItem:
        """Turn to an item: the one with this source, else the next."""
        assert self.batch is not None
        if not self.read:
            self.read_batch()
        item = next(item for item in self.unreported if source in {None, item.job.source})
        self.started_ns = self.world.tick()
        self.has_worked = True
        self.world.send(e.ItemStarted(self.origin, self.batch.id, item.job.id))
        return item

    def progress(self, item: c.BatchItem, over: str, begins: str | None, units: int = 1_000_000) -> None:
        """A phase of the item is over, another one begins."""
        self.world.tick()
        spent_ns = self.world.now_ns - self.started_ns
        self.world.send(
            e.ItemProgressed(
                self.origin, self._batch_id, item.job.id, over, spent_ns, begins, units, self.format
            )
        )

    def come_to(self, phase: str, source: str | None = None, units: int = 1_000_000) -> c.BatchItem:
        """Turn to an item, and work until this phase begins."""
        item = self.begin(source)
        phases = tuple(WORK_SEGMENTS)
        for over, begins in pairwise(phases[: phases.index(phase) + 1]):
            self.progress(item, over, begins, units)
        return item

    def report(self, item: c.BatchItem, result: bytes | None = None, **facts: Any) -> e.WorkReport:
        world, started_ns = self.world, self.started_ns
        world.now_ns = finished_ns = max(world.now_ns, started_ns + sum(WORK_SEGMENTS.values()))
        segments = {**WORK_SEGMENTS}
        segments["inference"] += finished_ns - started_ns - sum(segments.values())
        received_ns = self.world.tick()
        if result is not None:
            self.world.staging[item.stage_name] = result
        return e.WorkReport(
            received_ns=received_ns,
            batch_received_ns=self.received_ns,
            started_ns=started_ns,
            finished_ns=finished_ns,
            segments_ns=segments,
            image={"format": "PNG", "width": 8, "height": 8, "crops": 1},
            engine=ENGINE,
            device={**DEVICE, "configured": self.device or DEVICE["configured"]},
            sha256_in=item.job.identity.picture_sha256,
            sha256_out=sha256(result) if result is not None else None,
            rss_bytes=500_000_000,
            **facts,
        )

    def done(self, item: c.BatchItem, *, unchanged: bool = False, marks: str | None = "mask") -> None:
        data = self.world.disk[item.job.source].data
        mask = item.job.mask
        result = data if unchanged else cleaned(data, self.world.disk[mask].data if mask is not None else b"")
        report = self.report(item, result, marks=None if unchanged else marks)
        reason = "nothing is marked" if unchanged else None
        self._say(item, e.ItemDone(self.origin, self._batch_id, item.job.id, unchanged, reason, report))

    def held(self, item: c.BatchItem, reason: str | None = None) -> None:
        self._say(item, e.ItemHeld(self.origin, self._batch_id, item.job.id, self.report(item), reason))

    def incomplete(self, item: c.BatchItem) -> None:
        self._say(
            item, e.ItemIncomplete(self.origin, self._batch_id, item.job.id, "no end", self.report(item))
        )

    def failed(self, item: c.BatchItem, code: str) -> None:
        report = self.report(item)
        if code == "device_memory" and (item.job.cpu_only or not self.world.policy.cold.enabled):
            self.world.evidence.spent[item.job.id] += 1  # an engine error as any other
        self._say(
            item,
            e.ItemFailed(
                self.origin, self._batch_id, item.job.id, code, f"it is {code}", "change it", report
            ),
        )

    def batch_done(
        self, *, give_back: bool = False, rss_bytes: int = 500_000_000, open_files: int | None = None
    ) -> None:
        """All was reported; what was not, is given back, or else was forgotten."""
        left = tuple(item.job.id for item in self.unreported)
        if not give_back or not self.has_worked:  # to give all back is to forget it
            self.world.evidence.spent.update(left)
        batch_id, self.batch = self._batch_id, None
        self.unreported = []
        self.world.tick()
        given_back = left if give_back else ()
        self.world.send(e.BatchDone(self.origin, batch_id, rss_bytes, open_files, given_back))
        if self.path == "cold" or self.draining:
            self.exit(0)

    def exit(self, code: int, story: str = "it ended", evidence: e.Evidence | None = None) -> None:
        assert self.alive
        self.alive = False
        self.world.tick()
        lost: list[str] = []
        if not self._is_excused(code):
            self.world.count_loss(self)
            lost = self.world.lost_by(self)
        alone = len(self.sources) == 1
        self.world.send(e.WorkerExited(self.origin, code, story, evidence=evidence))
        self.world.evidence.surely_spent.update(lost)  # if the service lived to hear of it
        self.world.evidence.convicted.update(lost * alone)

    def _is_excused(self, code: int) -> bool:
        """It is used up, says so, and has served something of its batch: what is left is nobody's fault."""
        return code == EXIT_USED_UP and len(self.unreported) < len(self.sources)

    def crash(self, evidence: e.Evidence | None = None) -> None:
        self.exit(-9, "killed by signal 9", evidence)

    # --- playing by the bytes ---

    def serve(self, item: c.BatchItem) -> bool:
        """Do what the bytes of the item say; False if that ended the process.

        `poison` kills the process, `standstill` makes it hang, `huge` is too much for a device that is not
        the CPU, and the process is used up by it, `half` has no end, `bad` is undecodable, `engine` makes the
        engine raise.
        `alpha` marks itself where the recipe looks for that; else a mask does, unless it is a `misfit`. A
        marked copy with `no difference` marks nothing.
        """
        world, job = self.world, item.job
        picture = world.look(job.source)
        mask = world.look(job.mask) if job.mask is not None else None
        if picture is None or (job.mask is not None and mask is None):
            self.failed(item, "vanished")
        elif sha256(picture.data) != job.identity.picture_sha256 or (
            mask is not None and sha256(mask.data) != job.identity.mask_sha256
        ):
            self.failed(item, "changed")
        elif b"poison" in picture.data:
            self.crash()
            return False
        elif b"standstill" in picture.data:
            self.stuck = True
            return False
        elif b"huge" in picture.data and self.device != CPU:
            self.failed(item, "device_memory")
            self.exit(EXIT_USED_UP, "the device's memory is short")
            return False
        else:
            self._serve_bytes(item, picture.data, mask)
        return True

    def _serve_bytes(self, item: c.BatchItem, data: bytes, mask: DiskFile | None) -> None:
        if b"half" in data:
            self.incomplete(item)
        elif b"bad" in data:
            self.failed(item, "undecodable")
        elif b"engine" in data:
            self.failed(item, "engine")
        elif self.world.staging_full:
            self.failed(item, "no_space")
        elif mask is not None and b"misfit" in mask.data:
            self.failed(item, "mask_mismatch")
        elif mask is not None and b"no difference" in mask.data:
            self.held(item, "the marked copy shows no difference")
        elif mask is not None:
            self.done(item, unchanged=b"empty" in mask.data)
        elif b"alpha" in data and "alpha" in item.recipe.marks:
            self.done(item, marks="alpha")
        elif item.recipe.unmarked == "copy":
            self.done(item, unchanged=True)
        else:
            self.held(item)

    def step(self) -> bool:
        """Do the next thing that a worker does by itself; False if there is nothing to do."""
        if not self.alive or self.stuck:
            return False
        if not self.is_warming:
            self.warm()
        elif not self.is_ready:
            self.ready()
        elif self.batch is None:
            if not self.draining:
                return False
            self.exit(0)
        elif self.unreported:
            self.serve(self.begin())
        else:
            self.batch_done()
        return True

    @property
    def _batch_id(self) -> str:
        assert self.batch is not None
        return self.batch.id

    def _say(self, item: c.BatchItem, event: e.Event) -> None:
        self.unreported.remove(item)
        self.world.send(event)


@dataclass(slots=True)
class Evidence:
    """What the checks go by: what the core was told, what happened to files, what processes cost the jobs."""

    spent: Counter[str] = field(default_factory=Counter)
    """Attempts of each job that count: its process died or stalled, its engine or its result failed."""
    blamed: Counter[str] = field(default_factory=Counter)
    """Of each picture's bytes: how often they were alone in a process that died or stalled."""
    surely_spent: Counter[str] = field(default_factory=Counter)
    convicted: Counter[str] = field(default_factory=Counter)
    """Those of `spent` and of `blamed` that the service has surely journalled."""
    ever: set[str] = field(default_factory=set)
    """Every path at which there ever was a file."""
    gone_ns: dict[str, int] = field(default_factory=dict)
    """When a path was vacated last."""
    contents: dict[Fingerprint, set[str]] = field(default_factory=dict)
    """The sha256 of whatever bytes had this fingerprint."""
    edited: set[str] = field(default_factory=set)
    """Outputs that people changed or took away."""
    reports: deque[e.Event] = field(default_factory=lambda: deque(maxlen=30))
    """What workers have said lately in this life of the service."""
    away: set[str] = field(default_factory=set)
    """Paths of which it was told last that nothing is there."""
    seen: dict[str, e.FileObserved] = field(default_factory=dict)
    """The last look at each path that this life of the service was told of."""
    since: dict[str, tuple[Fingerprint, int]] = field(default_factory=dict)
    """What it was last told of each path, and since when it has been told the same."""

    def note(self, event: e.Event) -> None:
        """The core is told this."""
        if hasattr(event, "origin"):
            self.reports.append(event)
        match event:
            case e.FileVanished():
                self.away.add(event.path)
            case e.FileObserved():
                self.seen[event.path] = event
                self.away.discard(event.path)
                self._tell_of(event.path, event.fingerprint, event.observed_ns)
            case e.InboxListed():
                for path, fingerprint in event.files.items():
                    self._tell_of(path, fingerprint, event.started_ns)
            case e.ItemFailed() if event.code == "engine":
                self.spent[event.job] += 1
            case e.StageLost():
                self.spent[event.job] += 1

    def _tell_of(self, path: str, fingerprint: Fingerprint, told_ns: int) -> None:
        before = self.since.get(path)
        if before is None or before[0] != fingerprint:
            self.since[path] = (fingerprint, told_ns)

    def forget_what_was_told(self) -> None:
        """The service has died."""
        self.seen.clear()
        self.since.clear()
        self.away.clear()
        self.reports.clear()

    def check_known(self, path: str, fingerprint: Fingerprint) -> None:
        """It was seen in this life of the service, and nothing newer was told of it."""
        self.check_inside(path)
        assert path in self.since, "nobody has seen it since the start"
        seen = self.seen.get(path)
        assert seen is None or seen.fingerprint == fingerprint, "it was changed, and that is known"

    def check_inside(self, path: str) -> None:
        """It is, or was, a file of the inbox."""
        assert path in self.ever, f"there never was a file {path}"

    def check_hash(self, file: e.SavedFile) -> None:
        """These bytes had this fingerprint."""
        assert file.sha256 in self.contents.get(file.fingerprint, {file.sha256}), "other bytes were hashed"

    def check_left(self, path: str) -> None:
        """It was away at some time since the core was told that it was there."""
        told_ns = self.since[path][1] if path in self.since else 0
        assert self.gone_ns.get(path, -1) >= told_ns, "it is forgotten, and has always been there"

    def check_settled(self, command: c.HashFile, now_ns: int, quiet_s: float) -> None:
        """What is read was seen to be complete: nobody has it open, or it has been quiet."""
        self.check_inside(command.path)
        seen = self.seen.get(command.path)
        assert seen is not None
        assert seen.fingerprint == command.fingerprint
        assert seen.fingerprint.size_bytes > 0, "an empty file is read"
        assert seen.writer is not e.Writer.PRESENT, "a file is read while somebody writes it"
        if seen.writer is e.Writer.UNKNOWN:
            assert now_ns - self.since[command.path][1] >= round(quiet_s * NS), "a file is read too early"

    def check_attempts(self, job: Job, max_solo_faults: int) -> None:
        """A job that is given away has the attempts and the faults that it earned."""
        assert job.attempts <= self.spent[job.id] + 1, "an attempt was counted that was none"
        assert job.attempts > self.surely_spent[job.id], "an attempt was not counted"
        assert job.solo_faults <= self.blamed[job.identity.picture_sha256], (
            "it is blamed for what it did not do"
        )
        assert self.convicted[job.id] < max_solo_faults, "a poison job is tried once more"


class World:
    """Everything outside the core.

    Args:
        policy: the configuration.
        listed: whether the service has been started and has listed its (empty) inbox.
    """

    def __init__(self, policy: Policy | None = None, *, listed: bool = True) -> None:
        self.policy = policy or Policy()
        self.now_ns = 1000 * NS
        self.wall_shift_s = 0.0
        """How far somebody has set the wall clock forward (or back)."""
        self.journal = Journal()
        self.disk: dict[str, DiskFile] = {}
        self.archive: list[bytes] = []
        self.outbox: dict[str, bytes] = {}
        self.staging: dict[str, bytes] = {}
        self.notes: dict[tuple[str, str], Any] = {}
        self.disposed: list[str] = []
        """Sources that `ApplyAfter` was asked for."""
        self.commands: list[c.Command] = []
        self.lives: int = 0

        self.lost = False
        self.unreadable_folders: tuple[str, ...] = ()
        self.deaf = False
        """Notifications are lost."""
        self.answers_looks = True
        self.disposes = False
        """`ApplyAfter` takes the files away, as it really does."""
        self.outbox_refuses: str | None = None
        self.staging_full = False
        self.patient = False
        """Operations of the outbox wait until the test says `finish_operations`."""
        self.slow_looks = False
        """Looks, hashes and listings wait until the test says `finish_looks`."""
        self.is_seen_before: Callable[[str], bool] = lambda _path: False
        """Whether a slow listing shows this path as it was when the listing began, not as it is."""
        self.crash_in: int | None = None
        """The service dies when it begins the command after so many others."""
        self.draining = False

        self.evidence = Evidence()

        self.processes: list[Process] = []
        self._answers: deque[e.Event] = deque()
        self.operations: deque[Callable[[], e.Event | None]] = deque()
        """Slow ones of the outbox, in order."""
        self._reports: deque[Callable[[], e.Event | None]] = deque()
        """Looks, hashes, listings."""
        self._deaths: deque[Process] = deque()
        self._finds = 0
        self._sealed: dict[str, str] = {}
        self._begun: set[str] = set()
        """Stage names whose publication was begun in this life of the service."""
        self._inode = 0
        self._busy = False
        self.pipeline = Pipeline(self.policy, lambda: 0.5)
        if listed:
            self.start()

    # --- time ---

    @property
    def now(self) -> e.Instant:
        return e.Instant(self.now_ns, self.wall_s)

    @property
    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.now_ns / NS + self.wall_shift_s

    def tick(self) -> int:
        """A millisecond passes."""
        self.now_ns += MS
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the core when it wants to be."""
        until_ns = self.now_ns + round(seconds * NS)
        wakes = 0
        while (at_ns := self.pipeline.next_wakeup_ns()) is not None and at_ns <= until_ns:
            self.now_ns = max(self.now_ns, at_ns)
            self.wake()
            wakes += 1
            assert wakes < 100 + 50 * seconds, "it never sleeps"
        self.now_ns = max(self.now_ns, until_ns)
        self.send(e.TimerFired())

    def wake(self) -> None:
        """The timer fires: something must come of it, and it must not be due at once again."""
        at_ns = self.pipeline.next_wakeup_ns()
        mark, fired_ns = len(self.commands), self.now_ns
        self.send(e.TimerFired())
        again_ns = self.pipeline.next_wakeup_ns()
        idle = all(isinstance(command, c.Log) for command in self.commands[mark:])
        assert again_ns is None or again_ns > fired_ns or not idle, "a busy loop"
        assert again_ns != at_ns or not idle, "a busy loop"

    # --- the service ---

    def start(self) -> None:
        """The service starts: rescue, then the first listing."""
        self.lives += 1
        self.journal.append_lines()
        opened = self.journal.opened()
        keep = {job.stage_name for job in opened.jobs if job.state is JobState.PUBLISHING}
        self.staging = {name: data for name, data in self.staging.items() if name in keep}
        self._sealed.clear()
        self._begun.clear()
        self.send(opened)
        if not self.lost:
            self.send(e.InboxFound("native"))
            self.listing()

    def kill_service(self, *, operations_done: int = 0) -> None:
        """SIGKILL: all that is in memory is gone; some of the outbox's operations may have got through."""
        self._busy = True  # nobody is told of what the outbox still does
        for _ in range(min(operations_done, len(self.operations))):
            self.operations.popleft()()
        self._answers.clear()
        self.operations.clear()
        self._reports.clear()
        self._deaths.clear()
        self.evidence.forget_what_was_told()
        self.draining = False
        for process in self.processes:
            process.alive = False
        self.processes.clear()
        self._busy = False
        self.crash_in = None
        self.pipeline = Pipeline(self.policy, lambda: 0.5)

    def restart(self, *, operations_done: int = 0) -> None:
        """SIGKILL and a new start."""
        self.kill_service(operations_done=operations_done)
        self.tick()
        self.start()

    # --- events in, commands out ---

    def send(self, event: e.Event) -> None:
        """Tell the core, carry out what it says, and so on until nothing is on its way."""
        self._answers.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            turns = 0
            while self._is_something_on_its_way():
                self._turn()
                turns += 1
                assert turns < MANY * (10 + len(self.disk)), "it never comes to rest"
        finally:
            self._busy = False

    def _is_something_on_its_way(self) -> bool:
        looks = self._reports and not self.slow_looks
        return bool(self._answers or self._deaths or looks or (self.operations and not self.patient))

    def _turn(self) -> None:
        if not self._answers:
            self.tick()
            answer = self._next_work()()
            if answer is None:
                return
            self._answers.append(answer)
        event = self._answers.popleft()
        self.evidence.note(event)
        self.draining |= isinstance(event, e.DrainRequested)
        commands = self.pipeline.handle(event, self.now)
        self._carry_out(commands)

    def _next_work(self) -> Callable[[], e.Event | None]:
        if self._deaths:
            process = self._deaths.popleft()
            return lambda: self._die(process)
        if self._reports and not self.slow_looks:
            return self._reports.popleft()
        return self.operations.popleft()

    def finish_looks(self, count: int | None = None) -> None:
        """Let the inbox answer what it was asked."""
        left = len(self._reports) if count is None else count
        while self._reports and left:
            left -= 1
            answer = self.next_look()
            if answer is not None:
                self.send(answer)

    def next_look(self, which: int = 0) -> e.Event | None:
        """Let the inbox turn to one of its questions; the answer is still to be told."""
        self._reports.rotate(-which)
        work = self._reports.popleft()
        self._reports.rotate(which)
        self.tick()
        return work()

    @property
    def waiting_looks(self) -> int:
        """How many questions the inbox has not answered."""
        return len(self._reports)

    def finish_operations(self, count: int | None = None) -> None:
        """Let the outbox finish what it was asked."""
        left = len(self.operations) if count is None else count
        while self.operations and left:
            left -= 1
            answer = self.operations.popleft()()
            self.tick()
            if answer is not None:
                self.send(answer)

    def _carry_out(self, commands: list[c.Command]) -> None:
        writes: list[c.JournalWrite] = []
        for command in commands:
            self.commands.append(command)
            if isinstance(command, c.SaveJob | c.FinishJob | c.SaveFile | c.ForgetFile):
                writes.append(command)
            elif not isinstance(command, c.Log):
                self._count_down()
                self._commit(writes)
                self._begin(command)
        self._count_down()
        self._commit(writes)

    def _count_down(self) -> None:
        if self.crash_in is None:
            return
        self.crash_in -= 1
        if self.crash_in < 0:
            raise ServiceCrashed

    def _commit(self, writes: list[c.JournalWrite]) -> None:
        if not writes:
            return
        self._check_forgotten(writes)
        self.journal.commit(writes)
        self._count_down()
        for write in writes:
            if isinstance(write, c.FinishJob):
                self._check_end(write.job)
            elif isinstance(write, c.SaveFile):
                self.evidence.check_hash(write.file)
        self.journal.append_lines()
        writes.clear()

    def _check_forgotten(self, writes: Iterable[c.JournalWrite]) -> None:
        """The hash of a file that has always been there is not forgotten."""
        for write in writes:
            saved = self.journal.files.get(write.path) if isinstance(write, c.ForgetFile) else None
            file = self.disk.get(saved.path) if saved is not None else None
            if saved is not None and file is not None and file.fingerprint == saved.fingerprint:
                self.evidence.check_left(saved.path)

    def _check_end(self, job: Job) -> None:
        check_record(job)
        if job.has_result:
            self._check_result(job)
        if job.state is JobState.GONE and job.source in self.disk:
            since_ns = job.clock.observed_ns if job.clock is not None else 0
            assert self.evidence.gone_ns.get(job.source, -1) >= since_ns, "its picture has always been there"
        if job.state is JobState.QUARANTINED and job.duplicate_of is None:
            assert self.evidence.blamed[job.identity.picture_sha256] >= self.policy.retry.max_solo_faults, (
                "quarantined without guilt"
            )

    def _begin(self, command: c.Command) -> None:  # noqa: C901, PLR0912, PLR0915 - one flat table of commands
        match command:
            case c.ObserveFile() | c.RescanInbox() | c.HashFile():
                self._reports.append(self._look_wanted(command))
            case c.FindPriorJobs():
                prior = self.journal.prior_jobs(command)
                self._answers.appendleft(e.PriorJobsFound(command.path, command.identity, prior))
            case c.StartWorker():
                assert not any(p.alive and p.path == "hot" for p in self.processes), "two resident workers"
                self.processes.append(Process(self, "hot", command.incarnation, spawned_ns=self.now_ns))
            case c.RunBatch():
                self._check_saved(command.batch)
                self._process(command.incarnation).give(command.batch)
            case c.RunCold():
                self._check_saved(command.batch)
                careful = _is_careful(command.batch)
                beside = [
                    process for process in self.colds if not process.unkillable and process.careful is careful
                ]
                assert len(beside) < (MAX_SUSPECTS if careful else self.policy.cold.max_parallel)
                process = Process(
                    self, "cold", command.incarnation, device=command.device, spawned_ns=self.now_ns
                )
                assert command.device in {None, CPU}
                assert command.device is None or len(command.batch.items) == 1
                self.processes.append(process)
                process.give(command.batch)
            case c.ExamineWorker():
                process = self._process(command.incarnation)
                if process.alive:
                    self._answers.append(
                        e.WorkerExamined(process.origin, process.busy_ns, process.waits_for_disk)
                    )
            case c.PingWorker():
                process = self._process(command.incarnation)
                assert process.batch is None, "a busy worker is not asked"
                if process.alive and not process.stuck and not process.deaf:
                    self._answers.append(e.WorkerPonged(process.origin, command.number))
            case c.KillWorker():
                process = self._process(command.incarnation)
                self.count_loss(process)
                if process.alive and not process.unkillable:
                    self._deaths.append(process)
            case c.DrainWorker():
                self._process(command.incarnation).draining = True
            case c.SealResult():
                self._check_copy(command)
                self.operations.append(lambda: self._seal(command))
            case c.PublishResult():
                stored = self.journal.jobs[command.job.id]
                assert (stored.state, stored.output) == (JobState.PUBLISHING, command.job.output)
                assert stored.sha256_out == command.job.sha256_out is not None
                self.operations.append(lambda: self._publish(command))
            case c.DiscardStage():
                self.operations.append(lambda: self._discard(command.stage_name))
            case c.WriteNote():
                json.dumps(command.content)
                self.operations.append(lambda: self._write_note(command))
            case c.RemoveNote():
                self.operations.append(lambda: self._remove_notes(command.source))
            case c.ApplyAfter():
                self._check_result(self.journal.jobs[command.job.id])
                self.disposed.append(command.job.source)
                if self.disposes:
                    self.operations.append(lambda: self._dispose(command.job))
            case c.SaveWorkerLife():
                self.journal.lives[command.life.incarnation] = command.life
            case _:
                raise AssertionError(command)

    def _look_wanted(
        self, command: c.ObserveFile | c.RescanInbox | c.HashFile
    ) -> Callable[[], e.Event | None]:
        match command:
            case c.ObserveFile():
                self.evidence.check_inside(command.path)
                return lambda: self._observe(command.path)
            case c.RescanInbox():
                return self.begin_listing()
            case c.HashFile():
                self.evidence.check_settled(command, self.now_ns, self.policy.arrivals.quiet_s)
                return lambda: self._hash(command)

    def _check_saved(self, batch: c.Batch) -> None:
        for item in batch.items:
            stored = self.journal.jobs[item.job.id]
            assert stored.state is JobState.RUNNING
            assert stored.attempts == item.job.attempts >= 1
            assert stored.stage_name == item.stage_name
            self.evidence.check_attempts(stored, self.policy.retry.max_solo_faults)
            self.evidence.check_known(stored.source, stored.fingerprint)
            if stored.mask is not None and stored.mask_fingerprint is not None:
                self.evidence.check_known(stored.mask, stored.mask_fingerprint)
        stages = [item.stage_name for item in batch.items]
        assert len(set(stages)) == len(stages)

    def _check_result(self, job: Job) -> None:
        """This job is done, and the journal says so: its result stands, unless people took it away."""
        assert job.has_result
        assert job.output is not None
        if job.output not in self.evidence.edited:
            assert sha256(self.outbox[job.output]) == job.sha256_out

    def _check_copy(self, command: c.SealResult) -> None:
        """A picture that only moved takes its result along."""
        for job in self.journal.jobs.values():
            if job.output is not None and job.output == command.copy_from:
                away = job.source in self.evidence.away and job.source not in self.disk
                assert not away, "a copy is made for a picture that has only moved"

    def count_loss(self, process: Process) -> None:
        """A process ends, or is killed: what that costs its jobs is what they may have lost, and no more."""
        # One that cannot be killed may still read its batch, and write under its names.
        if process.judged or self.draining or not (process.read or process.unkillable):
            return
        process.judged = True
        alone = process.batch is not None and len(process.batch.items) == 1
        for item in process.unreported:
            self.evidence.spent[item.job.id] += 1
            self.evidence.blamed[item.job.identity.picture_sha256] += alone

    def lost_by(self, process: Process) -> list[str]:
        """The jobs whose attempt ends with this process."""
        if self.draining or not process.read:
            return []
        return [item.job.id for item in process.unreported]

    def _process(self, incarnation: int) -> Process:
        found = [process for process in self.processes if process.incarnation == incarnation]
        assert found, f"there never was a process {incarnation}, or it is long gone"
        return found[0]

    def _die(self, process: Process) -> e.Event | None:
        if not process.alive:
            return None
        process.alive = False
        self.count_loss(process)
        return e.WorkerExited(process.origin, -9, "killed by signal 9")

    # --- the inbox ---

    def look(self, path: str) -> DiskFile | None:
        return None if self.lost else self.disk.get(path)

    def fingerprint(self, data: bytes, inode: int) -> Fingerprint:
        wall_ns = round(self.wall_s * NS)
        return Fingerprint(inode, len(data), wall_ns, wall_ns)

    def put(self, path: str, data: bytes, **facts: Any) -> None:
        """A file is there with these bytes, written in place if there was one; nobody tells."""
        self.tick()
        before = self.disk.get(path)
        self._inode += 1
        inode = before.fingerprint.inode if before is not None else self._inode
        if before is not None:
            facts.setdefault("links", before.links)
        self.disk[path] = written = DiskFile(data, self.fingerprint(data, inode), **facts)
        self.had(written)
        self.evidence.ever.add(path)
        for other, file in self.disk.items():
            if file is before:  # another name of the same file
                self.disk[other] = written

    def had(self, file: DiskFile) -> None:
        """The file has these bytes and this fingerprint."""
        self.evidence.contents.setdefault(file.fingerprint, set()).add(sha256(file.data))

    def replace(self, path: str, data: bytes, **facts: Any) -> None:
        """Another file is renamed over this path; nobody tells."""
        self.unlink(path)
        self.put(path, data, **facts)

    def unlink(self, path: str) -> None:
        """A name goes away, if it is there; nobody tells."""
        file = self.disk.pop(path, None)
        if file is not None:
            self.evidence.gone_ns[path] = self.tick()
            file.links -= 1
            self.restamp(file)

    def link(self, old: str, new: str) -> None:
        """A file gets a second name; nobody tells."""
        self.unlink(new)
        file = self.disk[new] = self.disk[old]
        self.evidence.ever.add(new)
        file.links += 1
        self.restamp(file)

    def move(self, old: str, new: str) -> None:
        """A file gets another name, over whatever has it; nobody tells."""
        file = self.disk.pop(old)
        self.evidence.gone_ns[old] = self.tick()
        self.unlink(new)
        self.disk[new] = file
        self.evidence.ever.add(new)

    def restamp(self, file: DiskFile, *, mtime_ns: int | None = None) -> None:
        """Something about the file changed, and not its bytes; with `mtime_ns`, somebody set that."""
        self.tick()
        if mtime_ns is None:
            mtime_ns = file.fingerprint.mtime_ns
        ctime_ns = round(self.wall_s * NS)
        file.fingerprint = replace(file.fingerprint, mtime_ns=mtime_ns, ctime_ns=ctime_ns)
        self.had(file)

    def drop(self, path: str, data: bytes) -> None:
        """A complete file is moved into the inbox."""
        self.put(path, data)
        self.notify(path, e.Hint.MOVED_IN)

    def drop_mask(self, picture: str, data: bytes = b"a mask") -> None:
        """A mask for this picture is moved into the inbox."""
        self.drop(f"{picture}.mask.png", data)

    def grow(self, path: str, data: bytes, *, writer: e.Writer = e.Writer.PRESENT) -> None:
        """A writer writes and goes on."""
        hint = e.Hint.MODIFIED if path in self.disk else e.Hint.CREATED
        self.put(path, data, writer=writer)
        self.notify(path, hint)

    def close(self, path: str) -> None:
        """The writer closes the file."""
        self.disk[path].writer = e.Writer.NONE
        self.notify(path, e.Hint.CLOSED)

    def touch(self, path: str) -> None:
        """Other times, the same bytes."""
        self.put(path, self.disk[path].data)
        self.notify(path, e.Hint.MODIFIED)

    def remove(self, path: str) -> None:
        assert path in self.disk
        self.unlink(path)
        self.tick()
        self.notify(path, e.Hint.MODIFIED)

    def rename(self, old: str, new: str) -> None:
        self.move(old, new)
        self.tick()
        self.notify(old, e.Hint.MODIFIED)
        self.notify(new, e.Hint.MOVED_IN)

    def move_unseen(self, old: str, new: str) -> None:
        """A picture and its mask get other names; the next listing finds out."""
        for suffix in ("", ".mask.png"):
            self.move(old + suffix, new + suffix)

    def notify(self, path: str, hint: e.Hint) -> None:
        if not self.deaf and not self.lost:
            self.send(self.observation(path, hint))

    def observation(self, path: str, hint: e.Hint) -> e.Event:
        file = self.disk.get(path)
        if file is None:
            return e.FileVanished(path, self.now_ns)
        return e.FileObserved(path, file.fingerprint, hint, file.writer, file.links, self.now_ns)

    def lose(self) -> None:
        self.lost = True
        self._finds += 1
        self.send(e.InboxLost("nothing is mounted there"))

    def find(self) -> None:
        self.lost = False
        self.send(e.InboxFound("native"))
        self.listing()

    def listing(self) -> None:
        """The adapter lists by itself, as after every `InboxFound`."""
        work = self.begin_listing()
        if self.slow_looks:
            self._reports.append(work)
            return
        event = work()
        assert event is not None
        self.send(event)

    def rescan(self) -> None:
        """Something asks for a listing."""
        self.send(e.RescanWanted("test"))
        self.advance(0.3)

    def _is_hidden(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self.unreadable_folders)

    def _observe(self, path: str) -> e.Event | None:
        if self.lost or self._is_hidden(path) or not self.answers_looks:
            return None
        return self.observation(path, e.Hint.CHECKED)

    def _list(self) -> e.Event | None:
        return self.begin_listing()()

    def begin_listing(self) -> Callable[[], e.Event | None]:
        """A listing that begins now and ends when it is called."""
        started_ns, find = self.now_ns, self._finds
        before = {path: file.fingerprint for path, file in self.disk.items()}

        def finish() -> e.Event | None:
            if self.lost or find != self._finds:
                return None  # the one who lists found the inbox away
            files = {path: file.fingerprint for path, file in self.disk.items()}
            for path in filter(self.is_seen_before, {**before, **files}):
                if path in before:
                    files[path] = before[path]
                else:
                    del files[path]
            files = {path: seen for path, seen in files.items() if not self._is_hidden(path)}
            return e.InboxListed(files, started_ns, self.tick(), self.unreadable_folders)

        return finish

    def _hash(self, command: c.HashFile) -> e.Event:
        file = self.look(command.path)
        if self.lost:
            return e.FileUnreadable(command.path, "the inbox is away", permanent=False)
        if file is None:
            return e.FileVanished(command.path, self.now_ns)
        if file.unreadable is not None:
            return e.FileUnreadable(command.path, file.unreadable, permanent=False)
        if file.fingerprint != command.fingerprint:
            return e.FileUnreadable(command.path, "it changes", permanent=False)
        return e.FileHashed(command.path, command.fingerprint, sha256(file.data), self.now_ns)

    # --- the outbox ---

    def _seal(self, command: c.SealResult) -> e.Event:
        job = command.job
        self._sealed.pop(command.stage_name, None)
        if self.outbox_refuses is not None:
            return e.PublishBlocked(job.id, self.outbox_refuses)
        changed = self._changed(job)
        if changed is not None:
            return e.SourceChanged(job.id, changed)
        if command.copy_from is not None:
            data = self.outbox.get(command.copy_from)
            if data is None or sha256(data) != command.sha256_out:
                return e.StageLost(job.id, "the output is not what it was")
            self.staging[command.stage_name] = data
        if command.stage_name not in self.staging:
            return e.StageLost(job.id, "the staged file has gone")
        assert sha256(self.staging[command.stage_name]) == command.sha256_out
        output = self._free_name(job.source)
        self._sealed[command.stage_name] = output
        return e.ResultSealed(job.id, output, command.sha256_out)

    def _changed(self, job: Job) -> str | None:
        for path, expected in (
            (job.source, job.identity.picture_sha256),
            (job.mask, job.identity.mask_sha256),
        ):
            file = self.look(path) if path is not None else None
            if file is not None and sha256(file.data) != expected:
                return f"{path} was changed after it was read"
        return None

    def _free_name(self, source: str) -> str:
        stem, dot, suffix = source.rpartition(".")
        taken = {*self.outbox, *self._sealed.values()}
        version, name = 1, source
        while name in taken:
            version += 1
            name = f"{stem} ({version}){dot}{suffix}"
        return name

    def _publish(self, command: c.PublishResult) -> e.Event:
        job = command.job
        assert job.output is not None
        assert job.stage_name is not None
        if self.outbox_refuses is not None:
            return e.PublishBlocked(job.id, self.outbox_refuses)
        standing = self.outbox.get(job.output)
        staged = self.staging.get(job.stage_name)
        doubtful = command.rescue or job.stage_name in self._begun
        self._begun.add(job.stage_name)
        if doubtful and standing is not None and sha256(standing) == job.sha256_out:
            self._discard(job.stage_name)
            return e.ResultPublished(job.id, job.output, self.now_ns, rescued=True)
        if staged is None or sha256(staged) != job.sha256_out:
            self._discard(job.stage_name)
            return e.StageLost(job.id, "neither the outbox nor staging has the result")
        if standing is not None:
            self._sealed.pop(job.stage_name, None)
            return e.NameTaken(job.id)
        self.outbox[job.output] = staged
        self._discard(job.stage_name)
        return e.ResultPublished(job.id, job.output, self.now_ns)

    def _dispose(self, job: Job) -> None:
        """Take the mask, then the picture, if they are what was served and the result is there."""
        standing = self.outbox.get(job.output or "")
        if standing is None or sha256(standing) != job.sha256_out:
            return
        for path, expected in (
            (job.mask, job.identity.mask_sha256),
            (job.source, job.identity.picture_sha256),
        ):
            file = self.look(path) if path is not None else None
            if path is not None and file is not None and sha256(file.data) == expected:
                if self.policy.after == "archive":
                    self.archive.append(file.data)
                self.remove(path)

    def _write_note(self, command: c.WriteNote) -> None:
        self.notes[command.kind, command.source] = command.content

    def _remove_notes(self, source: str) -> None:
        for kind in ("failed", "held"):
            self.notes.pop((kind, source), None)

    def _discard(self, stage_name: str) -> None:
        self.staging.pop(stage_name, None)
        self._sealed.pop(stage_name, None)

    # --- workers ---

    @property
    def hot(self) -> Process:
        """The living resident worker."""
        return next(p for p in self.processes if p.alive and p.path == "hot")

    @property
    def cold(self) -> Process:
        """The youngest living one-shot."""
        return next(p for p in reversed(self.processes) if p.alive and p.path == "cold")

    @property
    def colds(self) -> list[Process]:
        return [p for p in self.processes if p.alive and p.path == "cold"]

    def work(self, limit: int = 2000) -> None:
        """Let all processes do what they do by themselves, until none has anything to do."""
        for _ in range(limit):
            if not any(process.step() for process in tuple(self.processes)):
                self.processes = [process for process in self.processes if process.alive]
                return
        raise AssertionError("the workers never come to rest")

    def settle(self, seconds: float = 200.0) -> None:
        """Work and wait, until nothing more happens by itself for so long."""
        rest_s, overdue = seconds, 0
        while rest_s > 0:
            self.work()
            mark = len(self.commands)
            at_ns = self.pipeline.next_wakeup_ns()
            overdue = overdue + 1 if at_ns is not None and at_ns <= self.now_ns else 0
            assert overdue < MANY, "it wants to be woken for ever"
            step_s = min(rest_s, max((at_ns - self.now_ns) / NS, 0.001) if at_ns is not None else rest_s)
            self.advance(step_s)
            quiet = all(
                isinstance(command, c.RescanInbox | c.Log | c.ObserveFile | c.PingWorker)
                for command in self.commands[mark:]
            )
            rest_s = rest_s - step_s if quiet else seconds
            if not quiet and self.lives > 0:
                self.work()

    # --- what a test asks ---

    def is_idle(self) -> bool:
        return self.pipeline.is_idle

    def is_drained(self) -> bool:
        return self.pipeline.is_drained

    def served(self) -> list[str]:
        """Sources that were given to a worker, in order."""
        runs = [cmd for cmd in self.commands if isinstance(cmd, c.RunBatch | c.RunCold)]
        return [item.job.source for run in runs for item in run.batch.items]

    def job(self, source: str) -> Job:
        """The youngest job of this picture."""
        return [job for job in self.journal.jobs.values() if job.source == source][-1]

    def states(self, source: str | None = None) -> list[str]:
        """States of the jobs (of this picture), oldest first."""
        jobs = self.journal.jobs.values()
        return [job.state.value for job in jobs if source is None or job.source == source]

    def line(self, source: str) -> dict[str, Any]:
        """The last timing line of this picture."""
        return [line for line in self.journal.lines if line["source"] == source][-1]

    def said(self, event: str) -> list[dict[str, Any]]:
        """Fields of the log lines with this event name."""
        logs = [command for command in self.commands if isinstance(command, c.Log)]
        return [dict(log.fields) for log in logs if log.event == event]

    def given(self, kind: type[_Command]) -> list[_Command]:
        """All commands of a kind so far."""
        return [command for command in self.commands if isinstance(command, kind)]

    def hush(self) -> None:
        """Forget the commands so far."""
        self.commands.clear()


def _is_careful(batch: c.Batch) -> bool:
    return any(item.job.needs_own_process for item in batch.items)


def check_record(job: Job) -> None:
    """What must hold of every record."""
    record = json.loads(json.dumps(job.record))
    segments = record["segments_ms"]
    assert abs(sum(segments.values()) - record["total_ms"]) < 0.01, record
    assert all(ms >= 0 for name, ms in segments.items() if name != "unattributed"), segments
    assert segments["unattributed"] > -0.01, segments
    if record["outcome"] in {"done", "unchanged"}:
        limit_ms = 0.05 * record["total_ms"] + 2
        assert segments["unattributed"] <= limit_ms, segments
        assert record["image"]["sha256_in"] == job.identity.picture_sha256
        assert record["output"] is not None
