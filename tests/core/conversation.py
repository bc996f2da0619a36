"""A fake world around `Pipeline`, so that a test reads as a conversation.

The clock stands unless a test says `advance`; inbox, journal, outbox and processes answer as the real ones
do. A picture's bytes say what a worker makes of it: see `Process.serve`. What no test may ever see (a job
that is final twice, work that begins before it is saved, a record that does not add up, a timer that fires
for nothing) fails the test from in here.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.job import Fingerprint, Job, JobState
from watcher.core.pipeline import Pipeline
from watcher.core.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from watcher.core.job import JsonObject

NS = 1_000_000_000
MS = 1_000_000
HOST = "testhost"
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
        self.unreported = list(batch.items)

    # --- what it says ---

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
        self.world.send(e.ItemStarted(self.origin, self.batch.id, item.job.id))
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
            device=DEVICE,
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

    def held(self, item: c.BatchItem) -> None:
        self._say(item, e.ItemHeld(self.origin, self._batch_id, item.job.id, self.report(item)))

    def incomplete(self, item: c.BatchItem) -> None:
        self._say(
            item, e.ItemIncomplete(self.origin, self._batch_id, item.job.id, "no end", self.report(item))
        )

    def failed(self, item: c.BatchItem, code: str) -> None:
        report = self.report(item)
        self._say(
            item,
            e.ItemFailed(
                self.origin, self._batch_id, item.job.id, code, f"it is {code}", "change it", report
            ),
        )

    def batch_done(self) -> None:
        batch_id, self.batch = self._batch_id, None
        self.unreported = []
        self.world.tick()
        self.world.send(e.BatchDone(self.origin, batch_id, 500_000_000))
        if self.path == "cold" or self.draining:
            self.exit(0)

    def exit(self, code: int, story: str = "it ended") -> None:
        assert self.alive
        self.alive = False
        self.world.tick()
        self.world.send(e.WorkerExited(self.origin, code, story))

    def crash(self) -> None:
        self.exit(-9, "killed by signal 9")

    # --- playing by the bytes ---

    def serve(self, item: c.BatchItem) -> bool:
        """Do what the bytes of the item say; False if that ended the process.

        `poison` kills the process, `half` has no end, `bad` is undecodable, `engine` makes the engine raise.
        `alpha` marks itself where the recipe looks for that; else a mask does, unless it is a `misfit`.
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
        elif mask is not None:
            self.done(item, unchanged=b"empty" in mask.data)
        elif b"alpha" in data and "alpha" in item.marks:
            self.done(item, marks="alpha")
        elif item.unmarked == "copy":
            self.done(item, unchanged=True)
        else:
            self.held(item)

    def step(self) -> bool:
        """Do the next thing that a worker does by itself; False if there is nothing to do."""
        if not self.alive:
            return False
        if not self.is_ready:
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


class World:
    """Everything outside the core.

    Args:
        policy: the configuration.
        listed: whether the service has been started and has listed its (empty) inbox.
    """

    def __init__(self, policy: Policy | None = None, *, listed: bool = True) -> None:
        self.policy = policy or Policy()
        self.now_ns = 1000 * NS
        self.journal = Journal()
        self.disk: dict[str, DiskFile] = {}
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
        self.crash_in: int | None = None
        """The service dies when it begins the command after so many others."""

        self.processes: list[Process] = []
        self._answers: deque[e.Event] = deque()
        self.operations: deque[Callable[[], e.Event | None]] = deque()
        """Slow ones of the outbox, in order."""
        self._reports: deque[Callable[[], e.Event | None]] = deque()
        """Looks, hashes, listings."""
        self._sealed: dict[str, str] = {}
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
        return 1_800_000_000.0 + self.now_ns / NS

    def tick(self) -> int:
        """A millisecond passes."""
        self.now_ns += MS
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the core when it wants to be."""
        until_ns = self.now_ns + round(seconds * NS)
        while (at_ns := self.pipeline.next_wakeup_ns()) is not None and at_ns <= until_ns:
            self.now_ns = max(self.now_ns, at_ns)
            self.wake()
        self.now_ns = max(self.now_ns, until_ns)
        self.send(e.TimerFired())

    def wake(self) -> None:
        """The timer fires: something must come of it, and it must not be due at once again."""
        at_ns = self.pipeline.next_wakeup_ns()
        mark = len(self.commands)
        self.send(e.TimerFired())
        again_ns = self.pipeline.next_wakeup_ns()
        idle = all(isinstance(command, c.Log) for command in self.commands[mark:])
        assert again_ns is None or again_ns > self.now_ns or not idle, "a busy loop"
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
        self.send(opened)
        if not self.lost:
            self.send(e.InboxFound("native"))
            self.listing()

    def kill_service(self, *, operations_done: int = 0) -> None:
        """SIGKILL: all that is in memory is gone; some of the outbox's operations may have got through."""
        for _ in range(min(operations_done, len(self.operations))):
            self.operations.popleft()()
        self._answers.clear()
        self.operations.clear()
        self._reports.clear()
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
            while self._answers or self._reports or (self.operations and not self.patient):
                self._turn()
        finally:
            self._busy = False

    def _turn(self) -> None:
        if not self._answers:
            work = self._reports.popleft() if self._reports else self.operations.popleft()
            self.tick()
            answer = work()
            if answer is None:
                return
            self._answers.append(answer)
        event = self._answers.popleft()
        commands = self.pipeline.handle(event, self.now)
        self._carry_out(commands)

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
        self.journal.commit(writes)
        self._count_down()
        for write in writes:
            if isinstance(write, c.FinishJob):
                check_record(write.job)
        self.journal.append_lines()
        writes.clear()

    def _begin(self, command: c.Command) -> None:  # noqa: C901, PLR0912 - one flat table of commands
        match command:
            case c.ObserveFile():
                self._reports.append(lambda: self._observe(command.path))
            case c.RescanInbox():
                self._reports.append(self._list)
            case c.HashFile():
                self._reports.append(lambda: self._hash(command))
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
                process = Process(self, "cold", command.incarnation, spawned_ns=self.now_ns)
                self.processes.append(process)
                process.give(command.batch)
            case c.KillWorker():
                process = self._process(command.incarnation)
                if process.alive and not process.unkillable:
                    self._reports.append(lambda: self._die(process))
            case c.DrainWorker():
                self._process(command.incarnation).draining = True
            case c.SealResult():
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
                self.notes[command.kind, command.source] = command.content
            case c.RemoveNote():
                for kind in ("failed", "held"):
                    self.notes.pop((kind, command.source), None)
            case c.ApplyAfter():
                assert self.journal.jobs[command.job.id].is_final
                self.disposed.append(command.job.source)
                if self.disposes:
                    self.operations.append(lambda: self._dispose(command.job))
            case _:
                raise AssertionError(command)

    def _check_saved(self, batch: c.Batch) -> None:
        for item in batch.items:
            stored = self.journal.jobs[item.job.id]
            assert stored.state is JobState.RUNNING
            assert stored.attempts == item.job.attempts >= 1
            assert stored.stage_name == item.stage_name
        stages = [item.stage_name for item in batch.items]
        assert len(set(stages)) == len(stages)

    def _process(self, incarnation: int) -> Process:
        found = [process for process in self.processes if process.incarnation == incarnation]
        assert found, f"there never was a process {incarnation}, or it is long gone"
        return found[0]

    def _die(self, process: Process) -> e.Event | None:
        if not process.alive:
            return None
        process.alive = False
        return e.WorkerExited(process.origin, -9, "killed by signal 9")

    # --- the inbox ---

    def look(self, path: str) -> DiskFile | None:
        return None if self.lost else self.disk.get(path)

    def fingerprint(self, data: bytes, inode: int) -> Fingerprint:
        wall_ns = round(self.wall_s * NS)
        return Fingerprint(inode, len(data), wall_ns, wall_ns)

    def put(self, path: str, data: bytes, **facts: Any) -> None:
        """A file is there with these bytes; nobody tells."""
        self.tick()
        before = self.disk.get(path)
        self._inode += 1
        inode = before.fingerprint.inode if before is not None else self._inode
        self.disk[path] = DiskFile(data, self.fingerprint(data, inode), **facts)

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
        del self.disk[path]
        self.tick()
        self.notify(path, e.Hint.MODIFIED)

    def rename(self, old: str, new: str) -> None:
        self.disk[new] = self.disk.pop(old)
        self.tick()
        self.notify(old, e.Hint.MODIFIED)
        self.notify(new, e.Hint.MOVED_IN)

    def move_unseen(self, old: str, new: str) -> None:
        """A picture and its mask get other names; the next listing finds out."""
        for suffix in ("", ".mask.png"):
            self.disk[new + suffix] = self.disk.pop(old + suffix)

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
        self.send(e.InboxLost("nothing is mounted there"))

    def find(self) -> None:
        self.lost = False
        self.send(e.InboxFound("native"))
        self.listing()

    def listing(self) -> None:
        """The adapter lists by itself, as after every `InboxFound`."""
        event = self._list()
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
        if self.lost:
            return None
        started_ns = self.now_ns
        files = {path: file.fingerprint for path, file in self.disk.items() if not self._is_hidden(path)}
        return e.InboxListed(files, started_ns, self.tick(), self.unreadable_folders)

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
        if (command.rescue or staged is None) and standing is not None and sha256(standing) == job.sha256_out:
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
        for path, expected in (
            (job.mask, job.identity.mask_sha256),
            (job.source, job.identity.picture_sha256),
        ):
            file = self.look(path) if path is not None else None
            if path is not None and file is not None and sha256(file.data) == expected:
                self.remove(path)

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
        rest_s = seconds
        while rest_s > 0:
            self.work()
            mark = len(self.commands)
            at_ns = self.pipeline.next_wakeup_ns()
            step_s = min(rest_s, max((at_ns - self.now_ns) / NS, 0.001) if at_ns is not None else rest_s)
            self.advance(step_s)
            quiet = all(
                isinstance(command, c.RescanInbox | c.Log | c.ObserveFile) for command in self.commands[mark:]
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
