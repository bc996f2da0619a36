"""The edges of the service, as the runtime sees them. Each is implemented by one adapter, faked by one test.

Rules of this file:
- An adapter that works in the background reports by putting events on the `Sink` it was built with, from
  its own thread, and changes no state of the service.
- A method that blocks says for how long. Errors that a person can mend carry a remedy (`RemediableError`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypeAlias

    from watcher.core.commands import Batch, JournalWrite, PublishResult, SealResult, WriteNote
    from watcher.core.events import Event, Instant, JournalOpened
    from watcher.core.job import Fingerprint, Identity, Job, JobState, JsonObject
    from watcher.core.lives import WorkerLife

    Sink: TypeAlias = Callable[[Event], None]
    """Puts one event on the runtime's queue; never blocks, never raises, may be called from any thread."""


class RemediableError(Exception):
    """Something is wrong that a person can mend.

    Attributes:
        remedy: what to do, in plain words.
        exit_code: what a command ends with when this reaches it (78 configuration, 75 try again, ...).
    """

    def __init__(self, message: str, remedy: str, *, exit_code: int = 78) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.exit_code = exit_code


class Clock(Protocol):
    """The only clock of the service process."""

    def now(self) -> Instant:
        """Monotonic and wall time, read together."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...


class Inbox(Protocol):
    """Watches one folder and looks at its files. All answers are events; nothing here blocks."""

    def start(self) -> None:
        """Arm the watcher, then list once. Reports `InboxFound` and `InboxListed`, or `InboxLost`."""
        ...

    def observe(self, path: str) -> None:
        """Look at one path: `FileObserved` with hint `checked`, or `FileVanished`."""
        ...

    def rescan(self, reason: str) -> None:
        """List the folder: `InboxListed`. Requests that pile up are answered by one listing."""
        ...

    def hash_file(self, path: str, fingerprint: Fingerprint) -> None:
        """Hash a file on a thread of its own: `FileHashed`, `FileUnreadable` or `FileVanished`."""
        ...

    def close(self) -> None:
        """Stop all threads; at most a second."""
        ...


class Journal(Protocol):
    """The durable memory of the service. Used by one thread; each call is one transaction."""

    def load(self) -> JournalOpened:
        """What the core needs at start."""
        ...

    def commit(self, writes: Sequence[JournalWrite]) -> None:
        """Make the writes durable, all or none (blocks for one fsync, some milliseconds)."""
        ...

    def prior_jobs(self, identity: Identity, path: str) -> tuple[Job, ...]:
        """Jobs of the identity's picture and recipe, whatever their mask, oldest first.

        All final ones of the picture at this path, the newest answers for others, and the newest suspect that
        was not answered for.
        """
        ...

    def jobs(self, *, states: Collection[JobState] = (), ids: Collection[str] = ()) -> tuple[Job, ...]:
        """Jobs in any of these states and with any of these ids (empty: all), oldest first."""
        ...

    def given_up(self) -> tuple[Job, ...]:
        """Failed and quarantined jobs that are the last word on a picture of the inbox, oldest first."""
        ...

    def unlogged(self) -> tuple[Job, ...]:
        """Final jobs whose timing line is not known to be written: the oldest, some thousand at most."""
        ...

    def mark_logged(self, ids: Iterable[str]) -> None:
        """Their timing lines are on disk. May be lost in a crash: rescue looks at the log itself."""
        ...

    def save_life(self, life: WorkerLife) -> None:
        """Note a process's life, in place of what was noted of it before. A crash may lose it."""
        ...

    def prune(self, wall_s: float) -> bool:
        """Forget a few rows of what nobody needs any more (some milliseconds); whether there may be more."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


class TimingLog(Protocol):
    """`outbox/logs/timings-*.jsonl`: one line a finished job, no job twice."""

    def append(self, record: JsonObject) -> None:
        """Append one line. Raises OSError where the disk will not take it."""
        ...

    def logged(self, ids: Collection[str]) -> set[str]:
        """Which of these jobs have a line already; a torn last line is removed first."""
        ...


class Outbox(Protocol):
    """Staging, names, publication and notes. Slow calls work on one thread of their own, in order."""

    @property
    def staging(self) -> str:
        """Absolute path of the folder where workers put results."""
        ...

    def seal(self, command: SealResult) -> None:
        """See `SealResult`."""
        ...

    def publish(self, command: PublishResult) -> None:
        """See `PublishResult`."""
        ...

    def discard(self, stage_name: str) -> None:
        """Remove a staged file, if it is there."""
        ...

    def sweep(self, keep: Collection[str]) -> int:
        """Remove every staged file but these; at start only. Returns how many."""
        ...

    def sweep_notes(self, keep: Collection[str], next_number: int) -> None:
        """Remove the notes of older jobs that are not among these; at start."""
        ...

    def write_note(self, command: WriteNote) -> None:
        """See `WriteNote`. A failure is logged, never raised."""
        ...

    def remove_note(self, source: str) -> None:
        """Remove the notes of this source."""
        ...

    def apply_after(self, job: Job, *, again: bool = False) -> None:
        """Archive or delete the source. A failure is logged once (`again`: it was before), never raised."""
        ...

    def close(self) -> None:
        """Finish what was begun, then stop the thread."""
        ...


class Executor(Protocol):
    """Serves batches in processes of its own and reports events with their `Origin`.

    At-least-once: a batch may be reported in part and then lost (`WorkerExited`). Hot and cold pass one
    conformance suite.
    """

    def submit(self, incarnation: int, batch: Batch, *, device: str | None = None) -> None:
        """Begin the batch: `BatchStarted`, for each item `ItemStarted` and its end, then `BatchDone`.

        Args:
            incarnation: of the process that serves it; a one-shot is started under this number.
            batch: what to do.
            device: instead of the configured one; only where a process is started for the batch.
        """
        ...

    def kill(self, incarnation: int, reason: str) -> None:
        """Dump the stacks, then kill. `WorkerExited` follows."""
        ...

    def close(self) -> None:
        """Kill what still runs and reap it."""
        ...


class ResidentExecutor(Executor, Protocol):
    """An executor whose process outlives its batches."""

    def start(self, incarnation: int) -> None:
        """Start the process. Reports `WorkerReady`, or `WorkerExited`."""
        ...

    def ping(self, incarnation: int, number: int) -> None:
        """Ask whether its thread is free. `WorkerPonged` follows, if it is."""
        ...

    def examine(self, incarnation: int) -> None:
        """See whether it works, though it is silent. `WorkerExamined` follows, if it lives."""
        ...

    def drain(self, incarnation: int) -> None:
        """End after the running batch. `WorkerExited` follows."""
        ...


class MemoryGauge(Protocol):
    """Tells how much memory the machine has left."""

    def available_bytes(self) -> int | None:
        """What another process could take without swapping, the limits of control groups included.

        None where the system does not say. Takes a fraction of a millisecond.
        """
        ...


class RetryRequest(Protocol):
    """One wish of a person, as a file."""

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The jobs to do again; None for all that failed."""
        ...

    def remove(self) -> None:
        """It was taken up."""
        ...


class RetryRequests(Protocol):
    """What people asked of the service while it owned the journal."""

    def waiting(self) -> Sequence[RetryRequest]:
        """The requests that were not taken up yet, oldest first. Cheap where there are none."""
        ...


class ServiceManager(Protocol):
    """What started the service and watches over it (systemd), or nobody. No call blocks or raises."""

    def ready(self) -> None:
        """The service does its work from now on, if only by waiting for its inbox. Once is enough."""
        ...

    def stopping(self) -> None:
        """The service ends."""
        ...

    def show(self, snapshot: JsonObject) -> None:
        """A line for people, made of `Pipeline.snapshot()`. It is sent when it changes."""
        ...

    def live(self, now_ns: int) -> None:
        """The loop runs: called at each of its turns. What is due is sent now."""
        ...

    def next_due_ns(self) -> int | None:
        """When the loop has to call `live` at the latest; None: whenever it likes."""
        ...


class StatusBoard(Protocol):
    """Shows what the service is doing to other processes."""

    def write(self, snapshot: JsonObject, *, running: bool) -> None:
        """Replace what is shown by `Pipeline.snapshot()`. A failure is logged, never raised."""
        ...
