"""The jobs, the only ways in which they change, and the list of what is to be done.

Rules of this file:
- A job changes state in `change` and `end` only, and is saved there in the same breath, so the journal is
  never behind what was commanded. Everybody else reads `jobs` and writes it through here.
- Commands leave in the order in which they were emitted; nothing else happens.
- A job that ends is first forgotten by whoever kept something about it, then journalled and told, then
  followed up. Who forgets and who follows up is wired once, by `on_end`: the ledger knows none of them.
- Job numbers are given out here, once each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from watcher.core import commands as c
from watcher.core import record as records
from watcher.core.job import Cause, Job, JobState
from watcher.core.notes import failed_note, held_note
from watcher.core.summary import Summary
from watcher.core.worklist import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.core.events import Instant
    from watcher.core.facts import PictureFacts
    from watcher.core.job import JsonObject, JsonValue
    from watcher.core.pairing import Recipes
    from watcher.core.policy import Policy


class Ledger:
    """Owns the active jobs, the commands of the event at hand, and what is told of finished jobs."""

    def __init__(self, policy: Policy, recipes: Recipes) -> None:
        self._policy = policy
        self._recipes = recipes
        self._jobs = Worklist()
        self._commands: list[c.Command] = []
        self._next_number = 1
        self.summary = Summary(None if policy.once else policy.summary_s)
        self.run = 0
        """Which start of the service this is: incarnations and batches are numbered within it."""
        self._finished: Counter[str] = Counter()
        self._last_finished: JsonObject | None = None
        self._forget: tuple[Callable[[str], None], ...] = ()
        self._follow_up: Callable[[Job, Instant], None] | None = None

    def on_end(
        self, forget: tuple[Callable[[str], None], ...], follow_up: Callable[[Job, Instant], None]
    ) -> None:
        """Wire what comes of an end.

        Args:
            forget: called with the id before the job leaves the worklist.
            follow_up: called with a job that has ended or is held, after all was told of it.
        """
        self._forget = forget
        self._follow_up = follow_up

    # --- what is to be done --------------------------------------------------------------------------------

    def emit(self, *commands: c.Command) -> None:
        """Have these commands carried out, after all that were emitted before."""
        self._commands.extend(commands)

    def log(self, level: c.LogLevel, event: str, **fields: JsonValue) -> None:
        """Have a line logged."""
        self.emit(c.Log(level, event, fields))

    def take_commands(self) -> list[c.Command]:
        """Everything that was emitted since the last call."""
        taken = list(self._commands)
        self._commands.clear()
        return taken

    # --- the jobs ------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Worklist:
        """The active jobs, to read."""
        return self._jobs

    @property
    def finished(self) -> dict[str, int]:
        """How many jobs ended in each state in the life of this process."""
        return dict(self._finished)

    @property
    def last_finished(self) -> JsonObject | None:
        """The record of the job that ended last."""
        return self._last_finished

    def number_from(self, next_number: int) -> None:
        """The journal knows which job numbers were given out before."""
        self._next_number = next_number

    def new_job(self, facts: PictureFacts) -> Job:
        """A waiting job for these files. It is nobody's yet: save or change it."""
        number, self._next_number = self._next_number, self._next_number + 1
        return Job(
            id=f"{facts.picture_sha256[:8]}-{number}",
            source=facts.path,
            fingerprint=facts.picture.fingerprint,
            identity=facts.identity,
            state=JobState.WAITING,
            created_s=0.0,
            mask=facts.mask_path,
            mask_fingerprint=facts.mask.fingerprint if facts.mask is not None else None,
        )

    def keep(self, job: Job) -> None:
        """Take a job as it is into memory alone: the journal has all of it that matters after a crash."""
        self._jobs.put(job)

    def save(self, job: Job) -> None:
        """Take a job as it is, in its state, and journal it."""
        self._jobs.put(job)
        self.emit(c.SaveJob(job))

    def change(self, job: Job, cause: Cause) -> Job:
        """Move a job that stays active, and save it."""
        moved = job.moved(cause)
        self.save(moved)
        return moved

    def hold(self, job: Job, reason: str, now: Instant) -> None:
        """Nothing is marked in its picture: it waits for a mask, and a person is told."""
        held = self.change(replace(job, reason=reason), Cause.FOUND_UNMARKED)
        self.summary.held(now.mono_ns)
        self.log("info", "job.held", job=held.id, source=held.source, reason=reason)
        self.remove_note(held.source)  # an earlier failure's
        self.write_held_note(held)
        self._follow(held, now)

    def fail(self, job: Job, reason: str, remedy: str, now: Instant) -> None:
        """End a job whose bytes cannot be served."""
        self.end(job, Cause.REFUSED, now, reason=reason, remedy=remedy)

    def end(
        self,
        job: Job,
        cause: Cause,
        now: Instant,
        *,
        reason: str | None = None,
        remedy: str | None = None,
        ended_ns: int | None = None,
    ) -> None:
        """Move a job to a final state: record, journal, timing line, notes, what follows."""
        ended = replace(job.moved(cause), reason=reason or job.reason)
        made = self._finished_record(ended, remedy, now, ended_ns or now.mono_ns)
        ended = replace(ended, record=made)
        for forget in self._forget:
            forget(job.id)
        self._jobs.remove(job.id)
        if not ended.is_refused:  # before the job is final: what a crash leaves undone then is done again
            self.remove_note(job.source)
        self.emit(c.FinishJob(ended))
        self._finished[ended.state.value] += 1
        self._last_finished = made
        self.summary.ended(ended, now.mono_ns)
        self._tell_end(ended, made, remedy)
        if not ended.has_result and ended.stage_name is not None:
            self.emit(c.DiscardStage(ended.stage_name))
        if ended.is_refused:
            self.write_failed_note(ended, remedy)
        self._follow(ended, now)

    def _finished_record(self, ended: Job, remedy: str | None, now: Instant, ended_ns: int) -> JsonObject:
        drafted = ended.record
        if drafted is not None:
            drafted = {key: value for key, value in drafted.items() if key != "unchanged"}
        made = records.finish(ended, drafted, self._policy, now, ended_ns, run=self.run)
        return made if remedy is None else {**made, "remedy": remedy}

    def _tell_end(self, job: Job, made: JsonObject, remedy: str | None) -> None:
        if job.is_refused:
            self.log(
                "error" if job.state is JobState.QUARANTINED else "warning",
                f"job.{job.state.value}",
                job=job.id,
                source=job.source,
                reason=job.reason,
                remedy=remedy,
            )
            return
        self.log(
            "info",
            "job.finished",
            job=job.id,
            source=job.source,
            outcome=job.state.value,
            output=job.output,
            path=made.get("path"),
            path_reason=made.get("path_reason"),
            total_ms=made.get("total_ms"),
        )

    def _follow(self, job: Job, now: Instant) -> None:
        if self._follow_up is not None:
            self._follow_up(job, now)

    # --- what a person finds beside the jobs ---------------------------------------------------------------

    def write_failed_note(self, job: Job, remedy: JsonValue) -> None:
        """Say at the job's path that it was refused, and what to do."""
        self.emit(c.WriteNote("failed", job.source, failed_note(job, remedy)))

    def write_held_note(self, job: Job) -> None:
        """Say at the job's path that it waits for a mask."""
        note = held_note(job, self._recipes.named(job.identity.recipe))
        self.emit(c.WriteNote("held", job.source, note))

    def remove_note(self, path: str) -> None:
        """Nothing is wrong with this picture (any more)."""
        self.emit(c.RemoveNote(path))

    def dispose_of_source(self, job: Job, *, again: bool = False) -> None:
        """Do with a served picture what the configuration wanted done with it when it was served."""
        after = job.record.get("after") if job.record is not None else None
        if job.has_result and self._policy.after == after != "keep":
            self.emit(c.ApplyAfter(job, again=again))
