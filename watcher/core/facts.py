"""What is known of a file that is complete, and of a picture with its mask. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from watcher.core.job import Identity, JobClock

if TYPE_CHECKING:
    from watcher.core.job import Fingerprint, Job
    from watcher.core.policy import Recipe


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A settled file. `sha256` is None while it is being hashed."""

    fingerprint: Fingerprint
    observed_ns: int
    settled_ns: int
    backlog_ns: int = 0
    """How long it was only known to be there, since enough else was at hand."""
    hashed_ns: int = 0
    sha256: str | None = None
    restored: bool = False
    """Known from the journal: it did not arrive in the life of this process."""


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """What is known of a picture and its mask, both complete and hashed."""

    path: str
    picture: KnownFile
    picture_sha256: str
    mask_path: str | None
    mask: KnownFile | None
    recipe: Recipe

    @property
    def mask_sha256(self) -> str | None:
        """The hash of the mask's bytes, if there is a mask."""
        return self.mask.sha256 if self.mask is not None else None

    @property
    def identity(self) -> Identity:
        """The identity of the job that these files need."""
        return Identity(self.picture_sha256, self.mask_sha256, self.recipe.name)

    @property
    def is_restored(self) -> bool:
        """All of it is known from an earlier life of the service: none of it is news."""
        return self.picture.restored and (self.mask is None or self.mask.restored)

    @property
    def hashed_ns(self) -> tuple[int, int]:
        """When picture and mask were hashed: it changes when the files come again."""
        return self.picture.hashed_ns, self.mask.hashed_ns if self.mask is not None else 0

    @property
    def last(self) -> KnownFile:
        """The file that was observed last: the time chain starts with it."""
        if self.mask is not None and self.mask.observed_ns > self.picture.observed_ns:
            return self.mask
        return self.picture

    def clock(self, ready_ns: int) -> JobClock:
        """The clock of a job on these files that is ready at this instant."""
        last = self.last
        return JobClock(
            last.observed_ns,
            last.settled_ns,
            last.hashed_ns,
            ready_ns=ready_ns,
            backlog_ns=last.backlog_ns,
        )

    def carried_by(self, job: Job) -> Job:
        """Return the job with these files as its own (one object for each name and fingerprint, not two)."""
        return replace(
            job,
            source=self.path if job.source == self.path else job.source,
            identity=self.identity if job.identity == self.identity else job.identity,
            fingerprint=self.picture.fingerprint,
            mask=self.mask_path,
            mask_fingerprint=self.mask.fingerprint if self.mask is not None else None,
        )
