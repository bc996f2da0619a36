"""A job, its states, and the table of what moves it on.

Rules of this file:
- A job is one picture's bytes + its mask's bytes (or none) + its recipe's name: its `Identity`.
- `TRANSITIONS` is the whole truth about states. A (state, cause) pair that is not in it is a bug in the
  caller and raises `IllegalTransitionError`; nothing assigns `state` but `Job.moved`.
- A cause is a report of something that happened, named in the past tense, never a request.
- The last column of the table in docs/ARCHITECTURE.md, what a crash in that state leaves, is drawn from
  `AFTER_CRASH`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

JsonValue: TypeAlias = "str | int | float | bool | Mapping[str, JsonValue] | list[JsonValue] | None"
JsonObject: TypeAlias = "Mapping[str, JsonValue]"


class JobState(StrEnum):
    """Where a job is. The last six are final."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    PUBLISHING = "publishing"
    HELD = "held"
    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    SUPERSEDED = "superseded"
    GONE = "gone"


FINAL_STATES: Final = frozenset(
    {
        JobState.DONE,
        JobState.UNCHANGED,
        JobState.FAILED,
        JobState.QUARANTINED,
        JobState.SUPERSEDED,
        JobState.GONE,
    }
)

RESULTS: Final = frozenset({JobState.DONE, JobState.UNCHANGED})
REFUSALS: Final = frozenset({JobState.FAILED, JobState.QUARANTINED})
ANSWERS: Final = RESULTS | REFUSALS
"""Final states that answer for the same bytes for good; `superseded` and `gone` do not."""
UNTOUCHED: Final = frozenset({JobState.WAITING, JobState.READY, JobState.HELD})
"""Active states in which no worker has the job."""


class Cause(StrEnum):
    """What happened to a job."""

    ARRIVED = "arrived"
    """What it waited for came: its bytes grew complete, or the job it copies ended without a result."""
    DISPATCHED = "dispatched"
    FOUND_UNMARKED = "found_unmarked"
    FOUND_INCOMPLETE = "found_incomplete"
    MASK_ARRIVED = "mask_arrived"
    STAGED = "staged"
    COPIED = "copied"
    """The result of the job that it duplicates was staged for it."""
    STAGE_LOST = "stage_lost"
    """Neither the staged file nor the output exists: the result must be made again."""
    PUBLISHED = "published"
    PUBLISHED_UNCHANGED = "published_unchanged"
    REFUSED = "refused"
    POISONED = "poisoned"
    """It crashed or stalled its process alone, twice."""
    RELEASED = "released"
    """Its attempt ended through no fault of its own: worker lost, drained, recycled, or disk full."""
    BYTES_CHANGED = "bytes_changed"
    SOURCE_VANISHED = "source_vanished"


_S = JobState
_C = Cause

TRANSITIONS: Final[Mapping[JobState, Mapping[Cause, JobState]]] = {
    _S.WAITING: {
        _C.ARRIVED: _S.READY,
        _C.COPIED: _S.PUBLISHING,
        _C.REFUSED: _S.FAILED,
        _C.POISONED: _S.QUARANTINED,
        _C.BYTES_CHANGED: _S.SUPERSEDED,
        _C.SOURCE_VANISHED: _S.GONE,
    },
    _S.READY: {
        _C.DISPATCHED: _S.RUNNING,
        _C.BYTES_CHANGED: _S.SUPERSEDED,
        _C.SOURCE_VANISHED: _S.GONE,
    },
    _S.RUNNING: {
        _C.STAGED: _S.PUBLISHING,
        _C.FOUND_UNMARKED: _S.HELD,
        _C.FOUND_INCOMPLETE: _S.WAITING,
        _C.REFUSED: _S.FAILED,
        _C.POISONED: _S.QUARANTINED,
        _C.RELEASED: _S.READY,
        _C.BYTES_CHANGED: _S.SUPERSEDED,
        _C.SOURCE_VANISHED: _S.GONE,
    },
    _S.PUBLISHING: {
        _C.PUBLISHED: _S.DONE,
        _C.PUBLISHED_UNCHANGED: _S.UNCHANGED,
        _C.STAGE_LOST: _S.READY,
        _C.BYTES_CHANGED: _S.SUPERSEDED,  # its name was taken, and before it had another its source changed
    },
    _S.HELD: {
        _C.MASK_ARRIVED: _S.READY,
        _C.BYTES_CHANGED: _S.SUPERSEDED,
        _C.SOURCE_VANISHED: _S.GONE,
    },
    _S.DONE: {},
    _S.UNCHANGED: {},
    _S.FAILED: {},
    _S.QUARANTINED: {},
    _S.SUPERSEDED: {},
    _S.GONE: {},
}

AFTER_CRASH: Final[Mapping[JobState, str]] = {
    _S.WAITING: "waits on; the first rescan looks at its file again",
    _S.READY: "ready, once the first rescan has seen its bytes",
    _S.RUNNING: "ready again; the attempt is not held against it; its staged file is swept",
    _S.PUBLISHING: "finished if the outbox holds its bytes, renamed if staging does, else ready",
    _S.HELD: "held",
    _S.DONE: "done; its timing line is appended if it is missing",
    _S.UNCHANGED: "as done",
    _S.FAILED: "as done",
    _S.QUARANTINED: "as done",
    _S.SUPERSEDED: "as done",
    _S.GONE: "as done",
}


class IllegalTransitionError(RuntimeError):
    """A cause that the table does not know in this state: a bug, never a user's fault."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the file system says of a file's bytes without reading them.

    The device number is left out: it changes over reboots and remounts while the bytes do not.
    """

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    def is_same_file_as(self, other: Fingerprint) -> bool:
        """Whether only its names, links or permissions have changed; for files whose bytes are the same."""
        return replace(self, ctime_ns=0) == replace(other, ctime_ns=0)


@dataclass(frozen=True, slots=True)
class Identity:
    """The unit of exactly-once."""

    picture_sha256: str
    mask_sha256: str | None
    recipe: str

    def lacks_only_mask_of(self, other: Identity) -> bool:
        """The same picture and recipe, without the mask that the other has."""
        if self.mask_sha256 is not None or other.mask_sha256 is None:
            return False
        return replace(self, mask_sha256=other.mask_sha256) == other


@dataclass(frozen=True, slots=True)
class JobClock:
    """Monotonic instants of the chain before the worker, in ns. Kept in memory only: they die with a boot.

    `observed_ns`, `settled_ns` and `hashed_ns` belong to the last file that the job needed; `queued_ns`,
    `company_ns` and `lost_ns` add up over attempts.
    """

    observed_ns: int
    settled_ns: int
    hashed_ns: int
    ready_ns: int
    dispatched_ns: int = 0
    queued_ns: int = 0
    company_ns: int = 0
    """In batches that were lost: how long others were served before its turn came."""
    lost_ns: int = 0
    backlog_ns: int = 0
    """Of the time between the first two instants: how long nobody looked, since enough else was at hand."""
    resumed: bool = False
    """The job is older than this process: its chain begins with this process's first look."""


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work. Paths are relative to the inbox or outbox, with `/`, surrogate-escaped."""

    id: str
    source: str
    fingerprint: Fingerprint
    identity: Identity
    state: JobState
    created_s: float
    """Wall clock, seconds since the epoch; for people, never for arithmetic."""
    mask: str | None = None
    mask_fingerprint: Fingerprint | None = None
    attempts: int = 0
    """Dispatches, committed before the work starts."""
    solo_faults: int = 0
    """Crashes and stalls with this job alone in the process."""
    suspect: bool = False
    """It was being served when a process died: it runs alone until it is cleared."""
    cpu_only: bool = False
    """It did not fit into the accelerator's memory. Kept in memory only: another life may have more."""
    losses: tuple[JsonObject, ...] = ()
    """How the processes ended that had it and did not report on it, the last few (see `losses`)."""
    duplicate_of: str | None = None
    retry_of: str | None = None
    stage_name: str | None = None
    output: str | None = None
    sha256_out: str | None = None
    reason: str | None = None
    record: JsonObject | None = None
    """While publishing: the record as far as it is known. When final: the line of the timing log."""
    clock: JobClock | None = field(default=None, compare=False)

    @property
    def is_final(self) -> bool:
        """True if nothing moves it on any more."""
        return self.state in FINAL_STATES

    @property
    def has_result(self) -> bool:
        """True if it ended with a picture in the outbox."""
        return self.state in RESULTS

    @property
    def is_refused(self) -> bool:
        """True if it ended with a failed note."""
        return self.state in REFUSALS

    @property
    def is_answer(self) -> bool:
        """True if it answers for the same bytes for good."""
        return self.state in ANSWERS

    @property
    def needs_own_process(self) -> bool:
        """True if it must not go to the resident worker, nor in company."""
        return self.suspect or self.cpu_only

    @property
    def files_bytes(self) -> int:
        """Size of the picture's file and its mask's."""
        mask = self.mask_fingerprint
        return self.fingerprint.size_bytes + (mask.size_bytes if mask is not None else 0)

    def inheriting(self, other: Job) -> Job:
        """Return the job with what the same content was blamed for before: another name clears nobody."""
        if not other.suspect or other.solo_faults < self.solo_faults:
            return self
        return replace(self, suspect=True, solo_faults=other.solo_faults, losses=other.losses)

    def unattempted(self) -> Job:
        """Return the job with its last dispatch taken back: that was not an attempt."""
        return replace(self, attempts=max(0, self.attempts - 1))

    def lost_so_far(self, now_ns: int, company_ns: int = 0) -> Job:
        """Return the job as one whose time since its dispatch was lost; it waits from now on.

        Args:
            now_ns: when it was lost.
            company_ns: how long others of its batch were served before: that was a wait, and no loss.
        """
        clock = self.clock
        if clock is None or not clock.dispatched_ns:
            return self
        lost = replace(
            clock,
            company_ns=clock.company_ns + company_ns,
            lost_ns=clock.lost_ns + now_ns - clock.dispatched_ns - company_ns,
            ready_ns=now_ns,
        )
        return replace(self, clock=lost)

    def moved(self, cause: Cause) -> Job:
        """Return the job in the state that `cause` leads to.

        Raises:
            IllegalTransitionError: the table has no such edge.
        """
        try:
            return replace(self, state=TRANSITIONS[self.state][cause])
        except KeyError:
            raise IllegalTransitionError(f"job {self.id}: {cause} in state {self.state}") from None
