"""The jobs that are not final, indexed the ways the pipeline asks for them.

Rules of this file:
- `put` and `remove` keep every index; nothing else writes them.
- A ready job keeps its place in the line while its `ready_ns` stays. One that was dispatched before (its
  worker was lost) stands before all that were not: no crash sends a picture to the end of the line.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from watcher.core.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from watcher.core.job import Identity, Job


class Worklist:
    """Active jobs by id, by source path, by identity; the ready ones in the order in which they go."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._by_source: dict[str, str] = {}
        self._primaries: dict[Identity, str] = {}
        self._duplicates: dict[str, dict[str, None]] = {}
        self._returned: dict[str, None] = {}
        """Ready jobs that were dispatched before."""
        self._fresh: dict[str, None] = {}
        """All other ready jobs."""
        self._suspects: dict[str, None] = {}
        self._counts: Counter[str] = Counter()
        self._in_line = 0
        self._aside: set[str] = set()
        """Jobs that cannot go on for now, since one of their files is not complete."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def get(self, job_id: str) -> Job | None:
        """The active job with this id."""
        return self._jobs.get(job_id)

    def among(self, job_ids: Iterable[str]) -> list[Job]:
        """Those of these jobs that are active."""
        return [job for job_id in job_ids if (job := self._jobs.get(job_id)) is not None]

    def at(self, source: str) -> Job | None:
        """The active job of the picture at this path."""
        job_id = self._by_source.get(source)
        return self._jobs[job_id] if job_id is not None else None

    def primary(self, identity: Identity) -> Job | None:
        """The active job with this identity that others may copy: not held, not itself a copy."""
        job_id = self._primaries.get(identity)
        return self._jobs[job_id] if job_id is not None else None

    def duplicates(self, job_id: str) -> tuple[Job, ...]:
        """The jobs that wait for the result of this one."""
        return tuple(self._jobs[dup] for dup in self._duplicates.get(job_id, ()))

    def ready(self) -> Iterator[Job]:
        """Ready jobs, longest waiting first. The list must not change while the caller goes through it."""
        return (self._jobs[job_id] for line in (self._returned, self._fresh) for job_id in line)

    def suspects(self) -> Iterator[Job]:
        """The ready ones among the suspects, longest waiting first; else as `ready`."""
        return (self._jobs[job_id] for job_id in self._suspects)

    @property
    def has_ready(self) -> bool:
        """Some job is ready."""
        return bool(self._returned or self._fresh)

    @property
    def in_line(self) -> int:
        """How many jobs of this life of the service wait to be served, copied or published, and can be."""
        return self._in_line

    def set_aside(self, job_id: str) -> None:
        """The job cannot go on for now: it is not in line, and nobody waits to copy it."""
        job = self._jobs[job_id]
        self._in_line -= self._is_counted(job)
        self._aside.add(job_id)
        if self._primaries.get(job.identity) == job_id:
            del self._primaries[job.identity]

    def back_in_line(self, job_id: str) -> None:
        """The job can go on."""
        if job_id in self._aside:
            self._aside.discard(job_id)
            self._in_line += self._is_counted(self._jobs[job_id])
            self._offer(self._jobs[job_id])

    def count(self) -> Counter[str]:
        """How many jobs are in each state."""
        return +self._counts

    def put(self, job: Job) -> None:
        """Add a job or replace its older self."""
        older = self._jobs.get(job.id)
        if older is not None:
            self._unlink(older)
        self._jobs[job.id] = job
        self._by_source[job.source] = job.id
        if job.duplicate_of is not None:
            self._duplicates.setdefault(job.duplicate_of, {})[job.id] = None
        self._offer(job)
        self._line_up(job, older)
        self._counts[job.state.value] += 1
        self._in_line += self._is_counted(job)

    def remove(self, job_id: str) -> None:
        """The job is final, or about to be put again. Unknown ids are fine."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._leave_line(job_id)
        self._unlink(job)
        self._aside.discard(job_id)

    def _is_counted(self, job: Job) -> bool:
        return _is_in_line(job) and job.id not in self._aside

    def _offer(self, job: Job) -> None:
        """Others may copy it, if it is one of its kind."""
        if job.duplicate_of is None and job.state is not JobState.HELD and job.id not in self._aside:
            self._primaries.setdefault(job.identity, job.id)

    def _line_up(self, job: Job, older: Job | None) -> None:
        if job.state is not JobState.READY:
            self._leave_line(job.id)
            return
        line = self._returned if _was_dispatched(job) else self._fresh
        if job.id not in line or older is None or _ready_ns(older) != _ready_ns(job):
            self._leave_line(job.id)
            line[job.id] = None
        if not job.needs_own_process:
            self._suspects.pop(job.id, None)
        elif job.id not in self._suspects:
            self._suspects[job.id] = None

    def _leave_line(self, job_id: str) -> None:
        for line in (self._returned, self._fresh, self._suspects):
            line.pop(job_id, None)

    def _unlink(self, job: Job) -> None:
        job_id = job.id
        self._counts[job.state.value] -= 1
        self._in_line -= self._is_counted(job)
        if self._by_source.get(job.source) == job_id:
            del self._by_source[job.source]
        if self._primaries.get(job.identity) == job_id:
            del self._primaries[job.identity]
        if job.duplicate_of is not None:
            waiting = self._duplicates[job.duplicate_of]
            del waiting[job_id]
            if not waiting:
                del self._duplicates[job.duplicate_of]


def _is_in_line(job: Job) -> bool:
    """It moves on by itself. One from before a restart waits for its file to be seen first."""
    if job.clock is None:
        return False
    copies = job.state is JobState.WAITING and job.duplicate_of is not None
    return copies or job.state in {JobState.READY, JobState.PUBLISHING}


def _ready_ns(job: Job) -> int | None:
    return job.clock.ready_ns if job.clock is not None else None


def _was_dispatched(job: Job) -> bool:
    return job.clock is not None and job.clock.dispatched_ns > 0
