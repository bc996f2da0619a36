"""What can happen, as the core hears it. Named in the past tense; data only.

Rules of this file:
- An event is a fact that somebody saw. Events of an executor carry their `Origin`, so that a report from a
  dead incarnation is recognised.
- Paths are relative to the inbox (or outbox where said), with `/`, surrogate-escaped.
- Instants end in `_ns` and are of the machine's monotonic clock, taken where the thing happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from watcher.core.job import Fingerprint, Identity, Job, JsonObject


@dataclass(frozen=True, slots=True)
class Instant:
    """Now, as the runtime reads it once per event: the core's only clock."""

    mono_ns: int
    wall_s: float


# --- the inbox ---------------------------------------------------------------------------------------------


class Hint(StrEnum):
    """How a file came to be looked at. A hint, never the truth."""

    CREATED = "created"
    MODIFIED = "modified"
    CLOSED = "closed"
    MOVED_IN = "moved_in"
    LISTED = "listed"
    CHECKED = "checked"
    """The core asked (`ObserveFile`)."""


class Writer(StrEnum):
    """Whether somebody has the file open for writing, as a read lease tells."""

    NONE = "none"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FileObserved:
    """A regular file was looked at (stat, lease).

    Attributes:
        path: of the file.
        fingerprint: at this look.
        hint: how it came to be looked at.
        writer: whether somebody has it open for writing.
        links: its number of hard links.
        observed_ns: of this look.
        first_seen_ns: when the same fingerprint was first seen, if that was before (the core fills it in).
    """

    path: str
    fingerprint: Fingerprint
    hint: Hint
    writer: Writer
    links: int
    observed_ns: int
    first_seen_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FileVanished:
    """Nothing is at this path any more, or nothing that we follow (a folder, a link, a device)."""

    path: str
    observed_ns: int


@dataclass(frozen=True, slots=True)
class InboxListed:
    """A rescan: every file that is not ignored, as it was between the two instants.

    Of the folders in `unreadable` (and what lies under them) nothing is known: what was in them has not
    vanished.
    """

    files: Mapping[str, Fingerprint]
    started_ns: int
    finished_ns: int
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RescanWanted:
    """Something happened that only a listing can clear up: overflow, a folder moved in, a new root."""

    reason: str


@dataclass(frozen=True, slots=True)
class InboxLost:
    """The inbox itself is away (unmounted, renamed, deleted). What was in it is neither gone nor changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class InboxFound:
    """The inbox is back and watched."""

    mode: str
    """`native` or `polling`."""
    network: bool = False
    """It is on a network file system: what other machines write is not seen while they do."""


@dataclass(frozen=True, slots=True)
class FileHashed:
    """The bytes of a settled file have this sha256 and had this fingerprint before and after the reading."""

    path: str
    fingerprint: Fingerprint
    sha256: str
    finished_ns: int


@dataclass(frozen=True, slots=True)
class FileUnreadable:
    """Hashing failed, or the file changed under it. `permanent` is False where another look may help."""

    path: str
    reason: str
    permanent: bool


# --- the journal and people --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedFile:
    """What the journal remembers of a path: these bytes had this hash."""

    path: str
    fingerprint: Fingerprint
    sha256: str


@dataclass(frozen=True, slots=True)
class JournalOpened:
    """The service starts: every job that is not final, every file that was ever hashed and not forgotten."""

    jobs: tuple[Job, ...]
    files: tuple[SavedFile, ...]
    next_number: int
    """The first unused job number."""
    run: int = 0
    """Which start of the service this is, as the journal counts them."""


@dataclass(frozen=True, slots=True)
class PriorJobsFound:
    """Answer to `FindPriorJobs`: the final jobs of the picture and recipe, any mask, oldest first."""

    path: str
    identity: Identity
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class RetryRequested:
    """A person asked that these final jobs be done again. `unknown`: ids the journal does not have."""

    jobs: tuple[Job, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Accept nothing new, finish what runs (first SIGTERM or SIGINT)."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The instant that `Pipeline.next_wakeup_ns` named has come."""


# --- executors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Which process says so. `incarnation` is its spawn number, unique in the life of the service."""

    path: Literal["hot", "cold"]
    incarnation: int
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class WorkReport:
    """What a worker measured and found for one item. The JSON objects go into the record as they are."""

    received_ns: int
    """When the service read the report from the pipe."""
    batch_received_ns: int
    started_ns: int
    finished_ns: int
    segments_ns: Mapping[str, int]
    """`read`, `decode`, `mask`, `preprocess`, `inference`, `composite`, `encode`."""
    image: JsonObject | None = None
    engine: JsonObject | None = None
    device: JsonObject | None = None
    marks: str | None = None
    sha256_in: str | None = None
    sha256_out: str | None = None
    rss_bytes: int = 0
    model_loads: int | None = None
    """How often that process had loaded a model, by its own count."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has loaded and warmed its model.

    `segments_ns`: `process_start` ... `warmup`, and `unattributed`: what none of them claims.
    """

    origin: Origin
    ready_ns: int
    segments_ns: Mapping[str, int]
    engine: JsonObject
    device: JsonObject
    rss_bytes: int
    model_loads: int
    open_files: int | None = None
    golden_px: int = 0
    """What the self-test had to do, in units of `inference`, and how long the warm model took for it."""
    golden_ns: int = 0


@dataclass(frozen=True, slots=True)
class WorkerWarming:
    """A worker has loaded its model; warm-up and self-test begin."""

    origin: Origin


@dataclass(frozen=True, slots=True)
class WorkerPonged:
    """The thread that works has answered `PingWorker`: it is free."""

    origin: Origin
    number: int


@dataclass(frozen=True, slots=True)
class WorkerExamined:
    """Whether a silent process works.

    Attributes:
        busy_ns: how long its threads and children have computed since its last report, all together, or were
            ready to and had no processor.
        waits_for_disk: it hangs in the kernel now, as one does that waits for a disk.
    """

    origin: Origin
    busy_ns: int
    waits_for_disk: bool = False


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """The worker has read the batch."""

    origin: Origin
    batch: str


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """The worker turned to this job: until the next report a crash is taken to be its doing."""

    origin: Origin
    batch: str
    job: str


@dataclass(frozen=True, slots=True)
class ItemProgressed:
    """A phase or a crop is over.

    Attributes:
        phase: what is over; `spent_ns` is its time.
        next_phase: what begins, or None.
        units: how much it has to do; what is counted is the phase's own (`wire.ItemProgressed`).
        format: of the picture, or nothing.
    """

    origin: Origin
    batch: str
    job: str
    phase: str
    spent_ns: int = 0
    next_phase: str | None = None
    units: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A result lies in staging under the job's stage name."""

    origin: Origin
    batch: str
    job: str
    unchanged: bool
    reason: str | None
    report: WorkReport


@dataclass(frozen=True, slots=True)
class ItemHeld:
    """Looked at, nothing marked. `reason`: what was looked for in vain, or None for no more than that."""

    origin: Origin
    batch: str
    job: str
    report: WorkReport
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ItemIncomplete:
    """The file has no end yet."""

    origin: Origin
    batch: str
    job: str
    reason: str
    report: WorkReport


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """Refused. `code` is one of the wire's failure codes."""

    origin: Origin
    batch: str
    job: str
    code: str
    reason: str
    remedy: str
    report: WorkReport


@dataclass(frozen=True, slots=True)
class BatchDone:
    """Every item was reported on, or is given back: not begun, since the batch had enough pixels."""

    origin: Origin
    batch: str
    rss_bytes: int
    open_files: int | None = None
    given_back: tuple[str, ...] = ()


ExitCause = Literal["exited", "signal", "oom_suspected", "killed"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the end of a process.

    Attributes:
        cause: `exited` with a code; by a `signal`; `oom_suspected` for a SIGKILL that is none of ours;
            `killed` by the service.
        exit_code: its exit code, or None after a signal.
        signal: the signal's name.
        rss_bytes: the last memory that it told of, or 0.
        oom_kills: processes that the kernel killed for want of memory meanwhile; None where it does not say.
        process_state: before a kill of ours, the kernel's letter for it (`T` stopped, `D` waits for a disk).
        output: the end of what it wrote to standard error: its stacks, if it left any.
    """

    cause: ExitCause
    exit_code: int | None
    signal: str | None = None
    rss_bytes: int = 0
    oom_kills: int | None = None
    process_state: str | None = None
    output: str = ""

    @property
    def is_foreign(self) -> bool:
        """Somebody else did it: a SIGKILL that was not the kernel's for want of memory, or a SIGSTOP."""
        was_killed = self.cause == "oom_suspected" and self.oom_kills == 0
        return was_killed or self.process_state in {"T", "t"}


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process is gone and reaped. The only proof of death.

    Attributes:
        exit_code: its exit code, negative the signal that killed it (as subprocess tells it).
        story: one line for people: `killed by signal 9, out of memory suspected; 812 MB before`.
        reason: the worker's last words, if it had any.
        remedy: what it said a person can do.
    """

    origin: Origin
    exit_code: int
    story: str
    reason: str | None = None
    remedy: str | None = None
    evidence: Evidence | None = None


# --- the machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryObserved:
    """How much memory another process could take now, in bytes."""

    available_bytes: int


# --- the outbox --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultSealed:
    """The staged file is on disk, its source's bytes are final, and `output` was free a moment ago."""

    job: str
    output: str
    sha256_out: str


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """The bytes in the inbox are not the bytes that were served: no output is made from them."""

    job: str
    what: str


@dataclass(frozen=True, slots=True)
class StageLost:
    """Neither staging nor the outbox has the result (or the output to copy is not what it was)."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class NameTaken:
    """Somebody else took the name between sealing and renaming: seal again."""

    job: str


@dataclass(frozen=True, slots=True)
class ResultPublished:
    """The result stands under its name and the folder is synced. `rescued`: found so after a crash."""

    job: str
    output: str
    published_ns: int
    rescued: bool = False


@dataclass(frozen=True, slots=True)
class PublishBlocked:
    """The outbox cannot take the result now (disk full, folder away, read-only): nothing is lost."""

    job: str
    reason: str


Event = (
    FileObserved
    | FileVanished
    | InboxListed
    | RescanWanted
    | InboxLost
    | InboxFound
    | FileHashed
    | FileUnreadable
    | JournalOpened
    | PriorJobsFound
    | RetryRequested
    | DrainRequested
    | TimerFired
    | WorkerWarming
    | WorkerReady
    | WorkerPonged
    | WorkerExamined
    | BatchStarted
    | ItemStarted
    | ItemProgressed
    | ItemDone
    | ItemHeld
    | ItemIncomplete
    | ItemFailed
    | BatchDone
    | WorkerExited
    | MemoryObserved
    | ResultSealed
    | SourceChanged
    | StageLost
    | NameTaken
    | ResultPublished
    | PublishBlocked
)
