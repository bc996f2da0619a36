"""The whole service on a simulated disk, in one thread and in its own time: every step can be its last.

Real are the runtime, the core, the journal, the outbox, the timing log and the folders. Played are the clock
(time passes when nothing else can happen), the threads of the inbox and the outbox, and the worker, which
goes by a picture's bytes: `bad` is refused, `plain` has nothing marked, all else comes out clean.

Rules of this file:
- A step is an operation on the disk (see `SimulatedDisk`), a commit, or a commit's return. Steps are counted
  over one life of the process; the same machine with the same plan takes the same steps.
- What is asked of the outbox is done at once (`eager`), or only when the runtime has nothing else to do.
  The real thread lies between the two.
- SQLite is taken at its word: after a power cut a commit that has returned is there, another is there or not,
  one without a sync (`mark_logged`, `prune`) may be lost with those after it, whatever became of the
  other files. The journal's are put back so, with a torn part of the next commit at the end of its log.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import queue
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from unittest.mock import patch

from tests.adapters.simulated_disk import Adversary, Died, SimulatedDisk
from watcher.adapters import source_bytes, tree
from watcher.adapters.journal import SqliteJournal
from watcher.adapters.outbox import FolderOutbox
from watcher.adapters.service_manager import NoServiceManager
from watcher.adapters.timing_log import JsonlTimingLog
from watcher.core import events as e
from watcher.core.job import Fingerprint, JobState
from watcher.core.pipeline import Pipeline
from watcher.core.policy import ArrivalPolicy, Policy
from watcher.ports import RemediableError
from watcher.runtime import Edges, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from random import Random

    from watcher.core.commands import Batch, BatchItem, JournalWrite
    from watcher.core.job import Identity, Job, JsonObject
    from watcher.core.lives import WorkerLife

NS_PER_S: Final = 1_000_000_000
PATIENCE_S: Final = 900.0
"""So long a life may last in its own time before it is at rest."""
PICTURE: Final = b"a picture with something in it " * 60
MASK: Final = b"where it is " * 20
HIDDEN: Final = {"held", "failed", "logs", ".watcher"}


@functools.cache
def cleaned(picture: bytes, mask: bytes = b"") -> bytes:
    """What the worker makes of a picture: longer than a few sectors, and different in each of them."""
    digest = hashlib.sha256(picture + b"|" + mask).digest()
    return b"".join(hashlib.sha256(digest + bytes([at])).digest() for at in range(50))


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration, and what is in the folders at first."""

    after: Literal["keep", "archive", "delete"] = "keep"
    on_conflict: Literal["version", "replace"] = "version"
    eager: bool = True
    archive_apart: bool = False
    """The archive is on another disk."""
    state_apart: bool = False
    """The state folder is on another disk than the outbox."""
    lacks: tuple[str, ...] = ()
    """Calls that the file system does not have."""
    archived_by_hand: bool = False
    """Somebody has copied sources into the archive a moment ago, and synced nothing: for a quiet day only."""
    foreign: bool = True
    """Somebody else's file has one of the results' names."""

    @property
    def inbox(self) -> dict[str, bytes]:
        return {
            "trip/IMG.png": PICTURE,
            "copy.png": PICTURE,
            "m.png": b"another " + PICTURE,
            "m.png.mask.png": MASK,
            "bad.png": b"bad",
            "plain.png": b"plain",
        }

    @property
    def results(self) -> dict[str, bytes]:
        """Source to result."""
        return {
            "trip/IMG.png": cleaned(PICTURE),
            "copy.png": cleaned(PICTURE),
            "m.png": cleaned(b"another " + PICTURE, MASK),
        }

    @property
    def foreign_files(self) -> dict[str, bytes]:
        return {"copy.png": b"somebody else's"} if self.foreign else {}

    @property
    def stale_notes(self) -> dict[str, bytes]:
        """Notes of earlier failures that go when the pictures succeed."""
        return {"failed/m.png.json": b'{"source": "m.png"}', "held/trip/IMG.png.json": b'{"source": "IMG"}'}

    @property
    def outputs(self) -> dict[str, bytes]:
        """What must be in the outbox at the end, notes and logs apart."""
        if self.on_conflict == "replace" or not self.foreign:
            return self.results
        return {
            **self.foreign_files,
            **{("copy (2).png" if name == "copy.png" else name): data for name, data in self.results.items()},
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at which step of a life. `number` None: the process dies."""

    at: int
    number: int | None = None


class OwnTime:
    """A clock that moves a little at each look, and as far as somebody sleeps."""

    def __init__(self) -> None:
        self.mono_ns = 1_000 * NS_PER_S
        self._wall_s = time.time() - 1_000

    def now(self) -> e.Instant:
        self.mono_ns += 1_000
        return e.Instant(self.mono_ns, self._wall_s + self.mono_ns / NS_PER_S)

    def sleep(self, seconds: float) -> None:
        self.mono_ns += round(seconds * NS_PER_S)


class Calls:
    """Stands for the outbox's queue and thread."""

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False

    def put(self, call: Callable[[], None] | None) -> None:
        if call is not None:
            self._waiting.append(call)
        if call is None or (self._eager and not self._is_busy):
            self.finish()

    def work(self) -> bool:
        """Do the next thing; False if there is none."""
        if not self._waiting:
            return False
        self._is_busy = True
        self._waiting.popleft()()
        self._is_busy = False
        return True

    def finish(self) -> None:
        while self.work():
            pass


class Events:
    """The runtime's queue: where nothing waits in it others get their turn, and at last time passes."""

    def __init__(self, clock: OwnTime, calls: Calls) -> None:
        self._clock = clock
        self._calls = calls
        self._waiting: deque[e.Event] = deque()

    def put(self, event: e.Event) -> None:
        self._waiting.append(event)

    def get(self, timeout_s: float = 0.0) -> e.Event:
        while not self._waiting:
            if not self._calls.work():
                self._clock.sleep(timeout_s)
                raise queue.Empty
        return self._waiting.popleft()

    def get_nowait(self) -> e.Event:
        return self.get()

    def empty(self) -> bool:
        return not self._waiting

    def close(self) -> None:
        pass


class PlayedInbox:
    """Implements `watcher.ports.Inbox`: it looks at once, with the eyes of the real one."""

    def __init__(self, root: Path, say: Callable[[e.Event], None], clock: OwnTime) -> None:
        self._root = os.fspath(root)
        self._say = say
        self._clock = clock

    def start(self) -> None:
        self._say(e.InboxFound("native"))
        self.rescan("start")

    def rescan(self, reason: str) -> None:  # noqa: ARG002 - the port's
        started_ns = self._clock.now().mono_ns
        with tree.open_root(self._root, tree.identify_root(self._root)) as root:
            listing = tree.list_files(root, recursive=True, ignore=(), stopped=lambda: False)
        assert not listing.unreadable
        self._say(e.InboxListed(listing.files, started_ns, self._clock.now().mono_ns))

    def observe(self, path: str) -> None:
        with tree.open_root(self._root, tree.identify_root(self._root)) as root:
            seen = tree.look_at(root, path)
        now_ns = self._clock.now().mono_ns
        if seen is None:
            self._say(e.FileVanished(path, now_ns))
        else:
            self._say(e.FileObserved(path, seen.fingerprint, e.Hint.CHECKED, seen.writer, seen.links, now_ns))

    def hash_file(self, path: str, fingerprint: Fingerprint) -> None:
        with tree.open_root(self._root, tree.identify_root(self._root)) as root:
            try:
                digest = tree.hash_file(root, path, fingerprint, lambda: False)
            except tree.ChangedError:
                self._say(e.FileUnreadable(path, "it changed", permanent=False))
                return
        now_ns = self._clock.now().mono_ns
        self._say(
            e.FileVanished(path, now_ns)
            if digest is None
            else e.FileHashed(path, fingerprint, digest, now_ns)
        )

    def close(self) -> None:
        pass


class PlayedMemory:
    """Implements `watcher.ports.MemoryGauge`: nobody knows."""

    def available_bytes(self) -> int | None:
        return None


class PlayedWorker:
    """Implements `watcher.ports.ResidentExecutor`: it writes into staging as the real one does."""

    def __init__(
        self, inbox: Path, staging: str, disk: SimulatedDisk, say: Callable[[e.Event], None], clock: OwnTime
    ) -> None:
        self._inbox = inbox
        self._staging = Path(staging)
        self._disk = disk
        self._say = say
        self._clock = clock
        self._origin = e.Origin("hot", 0, 1, "here")
        self.served: Counter[str] = Counter()

    def start(self, incarnation: int) -> None:
        self._origin = e.Origin("hot", incarnation, 1, "here")
        now_ns = self._clock.now().mono_ns
        engine: JsonObject = {"configured": "auto", "actual": "played", "reason": None, "model_sha256": None}
        device: JsonObject = {
            "configured": "auto",
            "available": ["cpu"],
            "actual": "cpu",
            "reason": None,
            "evidence": {},
        }
        self._say(e.WorkerReady(self._origin, now_ns, {}, engine, device, 1, 1))

    def submit(self, incarnation: int, batch: Batch, *, device: str | None = None) -> None:  # noqa: ARG002 - the port's
        assert incarnation == self._origin.incarnation
        received_ns = self._clock.now().mono_ns
        self._say(e.BatchStarted(self._origin, batch.id))
        for item in batch.items:
            self._say(e.ItemStarted(self._origin, batch.id, item.job.id))
            self._serve(batch.id, item, received_ns)
        self._say(e.BatchDone(self._origin, batch.id, 1))

    def _serve(self, batch: str, item: BatchItem, received_ns: int) -> None:
        job = item.job
        self.served[job.source] += 1
        picture = (self._inbox / job.source).read_bytes()
        mask = (self._inbox / job.mask).read_bytes() if job.mask is not None else b""
        now_ns = self._clock.now().mono_ns
        report = e.WorkReport(
            received_ns=now_ns,
            batch_received_ns=received_ns,
            started_ns=received_ns,
            finished_ns=now_ns,
            segments_ns={"inference": now_ns - received_ns},
            sha256_in=hashlib.sha256(picture).hexdigest(),
        )
        if b"bad" in picture:
            answer: e.Event = e.ItemFailed(
                self._origin, batch, job.id, "undecodable", "no picture", "send another", report
            )
        elif b"plain" in picture:
            answer = e.ItemHeld(self._origin, batch, job.id, report)
        else:
            answer = self._staged(batch, item, cleaned(picture, mask), report)
        self._say(answer)

    def _staged(self, batch: str, item: BatchItem, result: bytes, report: e.WorkReport) -> e.Event:
        path = self._staging / item.stage_name
        try:
            self._disk.write_like_a_stranger(path, result)
        except OSError as error:
            path.unlink(missing_ok=True)
            return e.ItemFailed(
                self._origin, batch, item.job.id, "no_space", str(error), "free some space", report
            )
        report = replace(report, sha256_out=hashlib.sha256(result).hexdigest())
        return e.ItemDone(self._origin, batch, item.job.id, unchanged=False, reason=None, report=report)

    def ping(self, incarnation: int, number: int) -> None:
        self._say(e.WorkerPonged(e.Origin("hot", incarnation, 1, "here"), number))

    def examine(self, incarnation: int) -> None:
        """It is seen to work: a journal that is blocked for seconds keeps its reports from being heard."""
        self._say(e.WorkerExamined(e.Origin("hot", incarnation, 1, "here"), busy_ns=10**12))

    def drain(self, incarnation: int) -> None:
        self._say(e.WorkerExited(e.Origin("hot", incarnation, 1, "here"), 0, "drained"))

    def kill(self, incarnation: int, reason: str) -> None:
        raise AssertionError(f"nobody had reason to kill worker {incarnation}: {reason}")

    def close(self) -> None:
        pass


class NoRequests:
    """Implements `watcher.ports.RetryRequests`."""

    def waiting(self) -> Sequence[Any]:
        return ()


class NoBoard:
    """Implements `watcher.ports.StatusBoard`."""

    def write(self, snapshot: object, *, running: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Memory:
    """What a journal holds at one instant: as files, and as what it says."""

    files: Mapping[str, bytes]
    jobs: tuple[Job, ...]
    logged: frozenset[str]
    """Final jobs whose timing line is known to be written."""


class JournalFiles:
    """The journal's files, and what they may be after a power cut.

    Attributes:
        path: of the database.
        kept: the last commit that is durable for certain, then those that may be lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = (path.name, f"{path.name}-wal", f"{path.name}-shm")
        self.kept: list[Memory] = []

    def committed(self, journal: SqliteJournal, *, synced: bool) -> None:
        """This transaction is there after a power cut (`synced`), or it may be lost."""
        jobs = journal.jobs()
        unlogged = {job.id for job in journal.unlogged()}
        logged = frozenset(job.id for job in jobs if job.is_final and job.id not in unlogged)
        self.kept = [*([] if synced else self.kept), Memory(self.files(), jobs, logged)]

    def files(self) -> dict[str, bytes]:
        """The database and its write-ahead log; the third file is only memory."""
        paths = (self.path.with_name(name) for name in self.names[:2])
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def put_back(self, files: Mapping[str, bytes]) -> None:
        for name in self.names:
            self.path.with_name(name).unlink(missing_ok=True)
        for name, content in files.items():
            self.path.with_name(name).write_bytes(content)

    def power_cut(self, rng: Random) -> None:
        """Go back to one of the states that the journal may be in."""
        left, latest = rng.choice(self.kept), self.kept[-1].files
        name, log, _ = self.names
        files = dict(left.files)
        kept_bytes, most_bytes = len(files.get(log, b"")), len(latest.get(log, b""))
        if kept_bytes < most_bytes and files[name] == latest[name]:
            files[log] = latest[log][: rng.randrange(kept_bytes, most_bytes)]  # a part of the next commit
        self.put_back(files)
        self.kept = [replace(left, files=files)]


class SteppedJournal:
    """The real journal, with a step ahead of each commit and one behind it."""

    def __init__(self, journal: SqliteJournal, files: JournalFiles, step: Callable[[str, str], None]) -> None:
        self._journal = journal
        self._files = files
        self._step = step

    def commit(self, writes: Sequence[JournalWrite]) -> None:
        self._begin("commit")
        self._journal.commit(writes)
        self._files.committed(self._journal, synced=True)
        self._end("committed")

    def mark_logged(self, ids: Iterable[str]) -> None:
        self._begin("mark")
        self._journal.mark_logged(ids)
        self._files.committed(self._journal, synced=False)
        self._end("marked")

    def save_life(self, life: WorkerLife) -> None:
        self._begin("note")
        self._journal.save_life(life)
        self._files.committed(self._journal, synced=False)
        self._end("noted")

    def prune(self, wall_s: float) -> bool:
        self._begin("prune")
        more = self._journal.prune(wall_s)
        self._files.committed(self._journal, synced=False)
        self._end("pruned")
        return more

    def _begin(self, operation: str) -> None:
        try:
            self._step(operation, "journal")
        except OSError as error:
            raise RemediableError(f"the disk: {error}", "free some space", exit_code=75) from error

    def _end(self, operation: str) -> None:
        with suppress(OSError):  # SQLite has said that it worked
            self._step(operation, "journal")

    def load(self) -> e.JournalOpened:
        return self._journal.load()

    def prior_jobs(self, identity: Identity, path: str) -> tuple[Job, ...]:
        return self._journal.prior_jobs(identity, path)

    def jobs(self, **wanted: Any) -> tuple[Job, ...]:
        return self._journal.jobs(**wanted)

    def given_up(self) -> tuple[Job, ...]:
        return self._journal.given_up()

    def unlogged(self) -> tuple[Job, ...]:
        return self._journal.unlogged()

    def close(self) -> None:
        self._journal.close()


class Machine:
    """One machine: its folders, its disk, and the lives of the service on it.

    Attributes:
        steps: what was done in the life that is, or was the last, as `operation name`.
        watch: called after each change of the disk, and each commit.
    """

    def __init__(self, root: Path, plan: Plan) -> None:
        self.plan = plan
        self.inbox, self.outbox, self.archive, self.state = (
            root / name for name in ("in", "out", "archive", "state")
        )
        for folder in (self.inbox, self.outbox, self.archive, self.state):
            folder.mkdir(parents=True)
        self._fill(self.inbox, plan.inbox)
        self._fill(self.outbox, plan.foreign_files)
        self._fill(self.outbox, plan.stale_notes)
        here = [self.inbox, self.outbox]
        apart: list[Path] = []
        (apart if plan.archive_apart else here).append(self.archive)
        (apart if plan.state_apart else here).append(self.state)
        self.journal = JournalFiles(self.state / "journal.sqlite3")
        self.disk = SimulatedDisk(here, apart, strange=self.journal.names, lacks=plan.lacks)
        if plan.archived_by_hand:
            for name in ("m.png", "m.png.mask.png"):
                self.disk.write_like_a_stranger(self.archive / name, plan.inbox[name])
        self.disk.on_step = self._step
        self.disk.on_done = self._done
        self.clock = OwnTime()
        self.steps: list[str] = []
        self.watch: Callable[[], None] = lambda: None
        self._fault: Fault | None = None
        self._is_dead = False
        self._has_failed = False
        self._results = plan.results
        self._bytes = {*self._results.values(), *plan.foreign_files.values()}
        if "link" in plan.lacks:
            self._bytes.add(b"")  # the reservation: see rename_without_replacing
        self._pictures = plan.inbox
        self._whole: dict[tuple[str, int, int], bytes] = {}

    def close(self) -> None:
        self.disk.close()

    @staticmethod
    def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    # --- steps ---------------------------------------------------------------------------------------------

    def _step(self, operation: str, name: str) -> None:
        if self._is_dead:
            raise Died
        self.steps.append(f"{operation} {name}")
        if self._fault is None or self._fault.at != len(self.steps):
            return
        if self._fault.number is None:
            self._is_dead = True
            raise Died
        self._has_failed = True
        raise OSError(self._fault.number, os.strerror(self._fault.number), name)

    def _done(self) -> None:
        self.assert_nothing_partial_or_missing()
        self.watch()

    # --- lives ---------------------------------------------------------------------------------------------

    def live(self, fault: Fault | None = None) -> bool:
        """Start the service and let it work until it is at rest; True if it ended before."""
        self.steps, self._fault, self._is_dead = [], fault, False
        journal = SqliteJournal(self.journal.path)
        if not self.journal.kept:
            self.journal.committed(journal, synced=True)
        try:
            with (
                patch.object(tree, "fingerprint_of", self._fingerprint_of),
                patch.object(source_bytes, "fingerprint_of", self._fingerprint_of),
            ):
                self._work(SteppedJournal(journal, self.journal, self._journal_step))
        except Died:
            ended = True
        except RemediableError:
            if fault is None:
                raise
            ended = True  # it would not start with that fault
        else:
            ended = False
        left = self.journal.files()
        journal.close()
        if ended:
            self.journal.put_back(left)
        self._fault, self._is_dead, self._has_failed = None, False, False
        return ended

    def _fingerprint_of(self, status: os.stat_result) -> Fingerprint:
        """As `tree` has it: a file that a power cut has brought back is the file that it was."""
        inode, ctime_ns = self.disk.identity(status)
        return Fingerprint(inode, status.st_size, status.st_mtime_ns, ctime_ns)

    def _journal_step(self, operation: str, name: str) -> None:
        if operation in {"committed", "marked", "pruned"}:
            self.watch()
        self._step(operation, name)

    def _work(self, journal: SteppedJournal) -> None:
        runtime = self._start(journal)
        until_ns = self.clock.mono_ns + round(PATIENCE_S * NS_PER_S)
        runtime.start()
        while not runtime._pipeline.is_idle or not runtime._events.empty():
            assert self.clock.mono_ns < until_ns, f"never at rest: {runtime._pipeline.snapshot()}"
            runtime._handle(runtime._next_event())
            while runtime._answers:
                runtime._handle(runtime._next_event())
        runtime.close()

    def _start(self, journal: SteppedJournal) -> Runtime:
        plan, clock = self.plan, self.clock
        calls = Calls(eager=plan.eager)
        events = Events(clock, calls)
        outbox = FolderOutbox(
            inbox=self.inbox,
            outbox=self.outbox,
            state_dir=self.state,
            archive=self.archive if plan.after == "archive" else None,
            after=plan.after,
            on_conflict=plan.on_conflict,
            sink=events.put,
            clock=clock,
            files=self.disk,
        )
        outbox._calls.put(None)
        outbox._thread.join()
        outbox._calls = cast("Any", calls)
        edges = Edges(
            clock=clock,
            inbox=PlayedInbox(self.inbox, events.put, clock),
            journal=cast("Any", journal),
            timings=JsonlTimingLog(
                self.outbox / "logs", clock, max_bytes=1 << 20, keep_days=30, files=self.disk
            ),
            outbox=outbox,
            hot=PlayedWorker(self.inbox, outbox.staging, self.disk, events.put, clock),
            cold=PlayedWorker(self.inbox, outbox.staging, self.disk, events.put, clock),
            requests=NoRequests(),
            memory=PlayedMemory(),
            manager=NoServiceManager(),
            status=NoBoard(),
        )
        policy = Policy(after=plan.after, arrivals=ArrivalPolicy(quiet_s=0.05))
        return Runtime(Pipeline(policy, lambda: 0.5), edges, cast("Any", events))

    def power_cut(self, adversary: Adversary, rng: Random) -> None:
        """Cut the power and mount the disk again."""
        self.disk.power_cut(adversary, rng)
        self.journal.power_cut(rng)
        self._whole.clear()

    # --- what must hold ------------------------------------------------------------------------------------

    def assert_nothing_partial_or_missing(self) -> None:
        """At any instant: what the outbox shows is whole, and of each picture source or result is there."""
        outputs = self._visible(self.outbox)
        self.assert_whole(outputs)
        there = set(outputs.values())
        kept = set(self._visible(self.inbox).values())
        for source, result in self._results.items():
            assert result in there or self._pictures[source] in kept, f"neither source nor output: {source}"

    def assert_whole(self, outputs: Mapping[str, bytes]) -> None:
        """Nothing else shows in the outbox than what was there, and whole results."""
        for name, content in outputs.items():
            assert content in self._bytes, f"a partial file shows as {name}: {len(content)} bytes"

    def _visible(self, folder: Path) -> dict[str, bytes]:
        found = {}
        for above, folders, names in os.walk(folder):
            if above == os.fspath(self.outbox):
                folders[:] = [name for name in folders if name not in HIDDEN]
            for name in names:
                path = os.path.join(above, name)  # noqa: PTH118 - this runs after every operation
                status = os.stat(path)  # noqa: PTH116 - as above
                key = (path, status.st_ino, status.st_ctime_ns)
                if key not in self._whole:
                    self._whole[key] = Path(path).read_bytes()
                found[path[len(os.fspath(folder)) + 1 :]] = self._whole[key]
        return found

    def assert_at_rest(self) -> None:
        """Every picture has one answer and one output, and nothing else is left of the work."""
        assert self._visible(self.outbox) == self.plan.outputs
        with SqliteJournal(self.journal.path) as journal:
            jobs = journal.jobs()
        self._assert_jobs(jobs)
        self._assert_lines(jobs)
        self._assert_notes()
        self._assert_sources()
        self._assert_no_litter()

    def _assert_jobs(self, jobs: Iterable[Job]) -> None:
        answers: Counter[tuple[str, JobState]] = Counter()
        outputs = set()
        for job in jobs:
            answers[job.source, job.state] += 1
            if job.state is not JobState.DONE:
                continue
            assert job.output is not None
            data = (self.outbox / job.output).read_bytes()
            assert hashlib.sha256(data).hexdigest() == job.sha256_out
            picture = self._pictures[job.source]
            assert job.identity.picture_sha256 == hashlib.sha256(picture).hexdigest()
            assert data == self._results[job.source]
            outputs.add(job.output)
        assert answers == {
            **{(source, JobState.DONE): 1 for source in self._results},
            ("bad.png", JobState.FAILED): 1,
            ("plain.png", JobState.HELD): 1,
        }
        assert len(outputs) == len(self._results)

    def _assert_lines(self, jobs: Iterable[Job]) -> None:
        lines = [line for log in (self.outbox / "logs").iterdir() for line in log.read_bytes().splitlines()]
        told = Counter(str(_parsed(line).get("job")) for line in lines)
        assert told == {job.id: 1 for job in jobs if job.is_final}

    def _assert_notes(self) -> None:
        notes = {
            os.fspath(path.relative_to(self.outbox)): json.loads(path.read_bytes())["source"]
            for kind in ("failed", "held")
            for path in (self.outbox / kind).rglob("*")
            if path.is_file()
        }
        assert notes == {"failed/bad.png.json": "bad.png", "held/plain.png.json": "plain.png"}

    def _assert_sources(self) -> None:
        unserved = {name: self._pictures[name] for name in ("bad.png", "plain.png")}
        served = {name: data for name, data in self._pictures.items() if name not in unserved}
        kept = served if self.plan.after == "keep" else {}
        assert self._visible(self.inbox) == {**unserved, **kept}
        assert self._visible(self.archive) == (served if self.plan.after == "archive" else {})

    def _assert_no_litter(self) -> None:
        assert list((self.state / "staging").iterdir()) == []
        hidden = [path for path in (self.outbox / ".watcher").rglob("*") if path.is_file()]
        assert hidden == []
        assert not (self.archive / ".watcher").exists()
        folders = {path.name for path in self.outbox.rglob("*") if path.is_dir()}
        assert folders - {"staging"} <= HIDDEN | {"trip"}
        for path in self.outbox.rglob("*"):
            assert not path.is_file() or path.stat().st_nlink == 1

    # --- what a power cut would find at this instant -------------------------------------------------------

    def assert_survives(self, adversary: Adversary, rng: Random) -> None:
        """What a power cut would leave now keeps every promise that was made."""
        left = self.disk.files_after_cut(adversary, rng)
        in_inbox = dict(_below(self.inbox, left))
        in_archive = dict(_below(self.archive, left))
        in_outbox = dict(_below(self.outbox, left))
        results = {name: data for name, data in in_outbox.items() if name.split("/")[0] not in HIDDEN}
        self.assert_whole(results)
        self._assert_sources_survive(set(results.values()), in_inbox, in_archive)
        for name, data in in_outbox.items():
            if name.split("/")[0] in {"failed", "held"}:
                _parsed(data)
        for known in self.journal.kept:
            self._assert_promises_kept(known, in_outbox)

    def _assert_sources_survive(
        self, results: set[bytes], in_inbox: Mapping[str, bytes], in_archive: Mapping[str, bytes]
    ) -> None:
        archived = {name: data for name, data in in_archive.items() if not name.startswith(".watcher/")}
        sources = {*in_inbox.values(), *archived.values()}
        for source, result in self._results.items():
            data = self._pictures[source]
            assert result in results or data in in_inbox.values(), f"neither source nor output: {source}"
            assert data in sources or self.plan.after == "delete", f"on the way to the archive: {source}"
        assert "m.png" in in_inbox or "m.png.mask.png" not in in_inbox, "a mask lies in wait"
        if not self.plan.archived_by_hand:
            for name, data in archived.items():
                assert data == self._pictures[name], f"a partial file in the archive: {name}"

    def _assert_promises_kept(self, known: Memory, in_outbox: Mapping[str, bytes]) -> None:
        for job in known.jobs:
            if job.state is JobState.DONE:
                assert in_outbox.get(str(job.output)) == self._results[job.source], (
                    f"done, and not in the outbox: {job.source}"
                )
                notes = {f"{kind}/{job.source}.json" for kind in ("failed", "held")}
                # one that could not be removed is logged, and tried once more after the commit
                assert self._has_failed or not notes & in_outbox.keys(), f"a note of old: {job.source}"
        lines = b"".join(data for name, data in in_outbox.items() if name.startswith("logs/"))
        for job_id in known.logged:
            assert b'"job":"%s"' % job_id.encode() in lines, f"marked as logged, and no line: {job_id}"


def _below(folder: Path, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The files in a folder, by their path in it."""
    above = f"{folder}/"
    return ((path[len(above) :], data) for path, data in files.items() if path.startswith(above))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line.decode())
    except ValueError:
        raise AssertionError(f"a line of the log is torn: {line!r}") from None
    return record
