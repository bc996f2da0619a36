"""What the core wants done. Imperative; data only. The runtime carries them out in order.

Rules of this file:
- `JournalWrite` commands are durable before any command that follows them is begun. Neighbours share one
  transaction.
- A command that takes time (hash, list, seal, publish, spawn) is begun, not awaited: its end is an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from watcher.core.events import SavedFile
    from watcher.core.job import Fingerprint, Identity, Job, JsonObject, JsonValue
    from watcher.core.lives import WorkerLife
    from watcher.core.policy import Recipe

# --- the inbox ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObserveFile:
    """Look at a path: answers `FileObserved` (hint `checked`) or `FileVanished`."""

    path: str


@dataclass(frozen=True, slots=True)
class RescanInbox:
    """List the inbox: answers `InboxListed` (or `InboxLost`)."""

    reason: str


@dataclass(frozen=True, slots=True)
class HashFile:
    """Read and hash a settled file: answers `FileHashed`, `FileUnreadable` or `FileVanished`."""

    path: str
    fingerprint: Fingerprint


# --- the journal -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Write the job as it is now."""

    job: Job


@dataclass(frozen=True, slots=True)
class FinishJob:
    """Write the final job with its record, then append the record to the timing log, once."""

    job: Job


@dataclass(frozen=True, slots=True)
class SaveFile:
    """Remember the hash of these bytes at this path."""

    file: SavedFile


@dataclass(frozen=True, slots=True)
class ForgetFile:
    """The path is gone from the inbox."""

    path: str


@dataclass(frozen=True, slots=True)
class FindPriorJobs:
    """Ask for the final jobs of a picture and recipe: answers `PriorJobsFound`, before any other event."""

    path: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class SaveWorkerLife:
    """Note a process's life, as far as it has come. Not synced and not retried: it only tells of the past."""

    life: WorkerLife


# --- executors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One job of a batch, as an executor needs it."""

    job: Job
    stage_name: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Batch:
    """The jobs that go to the model together."""

    id: str
    items: tuple[BatchItem, ...]


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a resident worker."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Give the batch to the resident worker of this incarnation."""

    incarnation: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class RunCold:
    """Start a one-shot process with this batch.

    `device` overrides the configured one: what did not fit into an accelerator's memory runs on the CPU.
    """

    incarnation: int
    batch: Batch
    device: str | None = None


@dataclass(frozen=True, slots=True)
class PingWorker:
    """Ask the idle resident worker whether its thread is free: answers `WorkerPonged`."""

    incarnation: int
    number: int


@dataclass(frozen=True, slots=True)
class ExamineWorker:
    """See whether the silent process works all the same: answers `WorkerExamined`, if it lives."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Dump its stacks, then kill it. It is dead when `WorkerExited` says so."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Let it finish what it has, then end."""

    incarnation: int


# --- the outbox --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealResult:
    """Check that the source's (and mask's) bytes are final, sync the staged file, choose a free name.

    With `copy_from`, stage a copy of that output first (it must still hash to `sha256_out`). Answers
    `ResultSealed`, `SourceChanged`, `StageLost` or `PublishBlocked`.
    """

    job: Job
    stage_name: str
    sha256_out: str
    copy_from: str | None = None


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Rename the staged file to its name without replacing, sync the folder.

    With `rescue`, look first whether the outbox already holds the bytes. Answers `ResultPublished`,
    `NameTaken`, `StageLost` or `PublishBlocked`.
    """

    job: Job
    rescue: bool = False


@dataclass(frozen=True, slots=True)
class DiscardStage:
    """Remove a staged file that nobody will publish."""

    stage_name: str


@dataclass(frozen=True, slots=True)
class WriteNote:
    """Write `failed/<source>.json` or `held/<source>.json` into the outbox."""

    kind: Literal["failed", "held"]
    source: str
    content: JsonObject


@dataclass(frozen=True, slots=True)
class RemoveNote:
    """Remove the notes of this source, if there are any."""

    source: str


@dataclass(frozen=True, slots=True)
class ApplyAfter:
    """Archive or delete the source (and its mask): only after the result is published and committed.

    `again`: at a start, since a crash may have kept it from happening; a failure was told of before.
    """

    job: Job
    again: bool = False


LogLevel = Literal["debug", "info", "warning", "error"]

# --- the log -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """One line of the service log."""

    level: LogLevel
    event: str
    fields: Mapping[str, JsonValue]


JournalWrite = SaveJob | FinishJob | SaveFile | ForgetFile
Command = (
    ObserveFile
    | RescanInbox
    | HashFile
    | SaveJob
    | FinishJob
    | SaveFile
    | ForgetFile
    | FindPriorJobs
    | SaveWorkerLife
    | StartWorker
    | RunBatch
    | RunCold
    | PingWorker
    | ExamineWorker
    | KillWorker
    | DrainWorker
    | SealResult
    | PublishResult
    | DiscardStage
    | WriteNote
    | RemoveNote
    | ApplyAfter
    | Log
)
