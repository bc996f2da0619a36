"""Pictures -> jobs: does this picture need a job, another job, or none?

Rules of this file:
- A picture is resolved anew whenever something about it changed; a job that somebody works on is left alone,
  for its end is followed by another look.
- Nothing is made of a picture before the journal was asked whether its bytes, mask and recipe were served
  before. They are served once: a picture that moved takes its jobs along, another one gets a copy.
- A person's wish to serve a picture again waits until it is known what lies there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from watcher.core import commands as c
from watcher.core.job import Cause, JobClock, JobState
from watcher.core.notes import retry_remedy
from watcher.core.pairing import mark_file_kind
from watcher.core.restored import Restored

if TYPE_CHECKING:
    from watcher.core import events as e
    from watcher.core.duplicates import Duplicates
    from watcher.core.facts import PictureFacts
    from watcher.core.growing import GrowingFiles
    from watcher.core.intake import Intake
    from watcher.core.job import Identity, Job
    from watcher.core.ledger import Ledger
    from watcher.core.publication import Publication
    from watcher.core.served import ServedPictures


_ORIGINALS: Final = 4
"""So many of the pictures with the same bytes, the newest, are looked at before another is called a copy."""


class Matching:
    """Owns the questions to the journal and the wishes to try again."""

    def __init__(
        self,
        intake: Intake,
        ledger: Ledger,
        publication: Publication,
        duplicates: Duplicates,
        served: ServedPictures,
        growing: GrowingFiles,
    ) -> None:
        self._intake = intake
        self._ledger = ledger
        self._publication = publication
        self._duplicates = duplicates
        self._served = served
        self._growing = growing
        self._questions = 0
        """Answers that the journal still owes."""
        self._retries: dict[str, Job] = {}
        """Jobs that a person wants again, by path, until it is known what lies there."""
        self._looked_first: dict[str, tuple[int, int]] = {}
        """Pictures for whose sake the originals were looked at, and when they themselves were hashed."""
        self._doubtful: dict[str, None] = {}
        """Pictures that were told to be gone while that was not certain: the next listing tells."""
        self._restored = Restored()
        self._clock: JobClock | None = None
        """Of the held job that was confirmed last: after a start they all have the same."""

    @property
    def has_questions(self) -> bool:
        """The journal still owes an answer, or is still to be asked."""
        return self._questions > 0 or len(self._restored) > 0 or self._intake.is_asking

    def due_ns(self) -> int | None:
        """When something is to be done about pictures of an earlier life."""
        return self._restored.due_ns()

    def fire_timers(self, now: e.Instant) -> None:
        """See to a few of the pictures that an earlier life of the service knew."""
        for path in self._restored.take_due(now):
            facts, job = self._intake.facts(path), self._ledger.jobs.at(path)
            if job is not None and job.state is JobState.HELD:
                self._ledger.write_held_note(job)  # a crash may have kept it from the disk
            elif facts is not None and job is None and not self._served.covers(facts, facts.identity):
                self._ask_journal(path, facts.identity)

    # --- a picture was touched -----------------------------------------------------------------------------

    def inbox_listed(self, now: e.Instant) -> None:
        """It is known now which pictures are gone, and what lies where a person wants another try."""
        for job in self._ledger.jobs:
            if self._publication.is_untouched(job) and self._intake.is_gone(job.source):
                self._end_gone(job, now)
        for path in (*self._retries, *self._doubtful):
            self._intake.touch(path)
        self._doubtful.clear()

    def resolve(self, path: str, now: e.Instant) -> None:
        """Something about this picture changed: does it need a job, another job, or none?"""
        facts = self._intake.facts(path)
        if path in self._retries and (facts is not None or self._intake.is_gone(path)):
            self._retry(self._retries.pop(path), now)
        job = self._ledger.jobs.at(path)
        if job is not None and not self._publication.is_untouched(job):
            return  # its end is followed by another look
        if job is not None:
            self._line_up(job, can_go=facts is not None)
        if not self._intake.is_present(path):
            self._picture_left(path, job, now)
        elif not self._intake.serves(path):
            self._supersede(job, "it is a mask now, or no recipe takes it", now)
        elif facts is not None:
            self._resolve_complete(facts, job, now)
        elif self._intake.is_empty(path):
            self._supersede(job, "the picture was emptied before it was served", now)

    def _line_up(self, job: Job, *, can_go: bool) -> None:
        """A job whose mask is being written cannot go on: it holds up neither the line nor its copies."""
        if can_go:
            self._ledger.jobs.back_in_line(job.id)
        else:
            self._ledger.jobs.set_aside(job.id)
            self._duplicates.dissolve(job.id)

    def _picture_left(self, path: str, job: Job | None, now: e.Instant) -> None:
        if not self._intake.is_gone(path):
            self._doubtful[path] = None
            return
        if job is not None:
            self._end_gone(job, now)
        elif mark_file_kind(path) in {None, "marked_copy"}:
            self._ledger.remove_note(path)
        self._served.forget(path)
        self._looked_first.pop(path, None)

    def _resolve_complete(self, facts: PictureFacts, job: Job | None, now: e.Instant) -> None:
        identity = facts.identity
        if job is None:
            if self._served.covers(facts, identity):
                return
            if facts.is_restored:
                self._restored.add(facts.path)
            else:
                self._ask_journal(facts.path, identity)
        elif job.identity.picture_sha256 != identity.picture_sha256 and not self._growing.waits(job.id):
            self._supersede(job, "the picture was changed before it was served", now)
        elif job.identity != identity:
            self._ask_journal(facts.path, identity)
        else:
            self._confirm(job, facts, now)

    def _confirm(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        """The job is what the inbox holds; after a restart its clock starts here."""
        moved_on = job.fingerprint != facts.picture.fingerprint
        if job.state is JobState.HELD and job.clock is None:
            self._restored.add(facts.path)
        job = facts.carried_by(replace(job, clock=job.clock or self._resumed_clock(facts, now)))
        self._ledger.keep(job)
        if job.state is not JobState.WAITING:
            return
        if job.duplicate_of is not None:
            if self._ledger.jobs.get(job.duplicate_of) is None:  # a restart lies between the two
                self._ask_journal(job.source, job.identity)
        elif moved_on or not self._growing.waits(job.id):
            self._begin(job, facts, now)

    def _resumed_clock(self, facts: PictureFacts, now: e.Instant) -> JobClock:
        clock = replace(facts.clock(now.mono_ns), resumed=True)
        if clock != self._clock:
            self._clock = clock
        return self._clock

    def _begin(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        primary = self._ledger.jobs.primary(job.identity)
        if primary is not None and primary.id != job.id:
            self._ledger.save(replace(job, duplicate_of=primary.id))
        else:
            self._make_ready(job, facts, now)

    def _make_ready(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        self._growing.forget(job.id)
        created_s = job.created_s or now.wall_s
        ready = replace(job, created_s=created_s, clock=facts.clock(now.mono_ns))
        self._ledger.change(ready, Cause.ARRIVED)

    def _supersede(self, job: Job | None, reason: str, now: e.Instant) -> None:
        if job is not None:
            self._ledger.end(job, Cause.BYTES_CHANGED, now, reason=reason)

    def _end_gone(self, job: Job, now: e.Instant) -> None:
        self._ledger.end(job, Cause.SOURCE_VANISHED, now, reason="its picture left the inbox")

    # --- was it served before? -----------------------------------------------------------------------------

    def _ask_journal(self, path: str, identity: Identity) -> None:
        self._questions += 1
        self._ledger.emit(c.FindPriorJobs(path, identity))

    def prior_jobs_found(self, event: e.PriorJobsFound, now: e.Instant) -> None:
        """The journal has answered."""
        self._questions -= 1
        facts = self._intake.facts(event.path)
        if facts is None or event.identity != facts.identity:
            return  # it changed again meanwhile, and will be resolved again
        current = self._ledger.jobs.at(event.path)
        if current is not None and not self._is_open_question(current, event.identity):
            return
        answered = [job for job in event.jobs if job.identity == event.identity and job.is_answer]
        masked = [job for job in event.jobs if _served_with_mask(job, facts)]
        if answered:
            self._answered_before(facts, answered, current, now)
        elif masked:
            self._needs_nothing(facts, masked[-1], current, now)
            if facts.picture.restored:  # a crash may have come between its mask's disposal and its own
                self._ledger.dispose_of_source(masked[-1], again=True)
        else:
            suspects = [job for job in event.jobs if job.identity == event.identity and job.needs_own_process]
            self._never_answered(facts, current, suspects[-1] if suspects else None, now)

    def _is_open_question(self, current: Job, identity: Identity) -> bool:
        """The answer is not too late: the job was not made for this identity, nor begun, meanwhile."""
        if not self._publication.is_untouched(current):
            return False
        if current.identity != identity:
            return True
        return current.duplicate_of is not None and self._ledger.jobs.get(current.duplicate_of) is None

    def _never_answered(
        self, facts: PictureFacts, current: Job | None, suspect: Job | None, now: e.Instant
    ) -> None:
        """The work is still to be done; `suspect`: a job that had it at another path, and ended processes."""
        primary = self._ledger.jobs.primary(facts.identity)
        if primary is not None and primary.source != facts.path:
            self._duplicates.wait_for(primary, facts, current, now)
        elif current is not None:
            self._rekey(current if suspect is None else current.inheriting(suspect), facts, now)
        else:
            new = self._ledger.new_job(facts)
            self._make_ready(new if suspect is None else new.inheriting(suspect), facts, now)

    def _answered_before(
        self, facts: PictureFacts, answered: list[Job], current: Job | None, now: e.Instant
    ) -> None:
        """These bytes, mask and recipe have been served: never twice."""
        here = [job for job in answered if job.source == facts.path]
        if here:
            self._answered_here(facts, here[-1], current, now)
            return
        best = [job for job in answered if job.has_result] or answered
        moved = [job for job in best if not self._intake.may_hold(job.source, facts.picture_sha256)]
        if moved and not _was_taken_away(moved[0], current):
            self._rename(facts, [job for job in answered if job.source == moved[0].source], current, now)
        elif self._were_looked_at({job.source for job in best[-_ORIGINALS:]}, facts, now):
            self._duplicates.answer_like(best[-1], facts, current, now)

    def _were_looked_at(self, originals: set[str], facts: PictureFacts, now: e.Instant) -> bool:
        """Word of a rename may come in halves: a picture is a copy only if its originals were seen there.

        If they were not looked at yet, they are now, and this picture is resolved again.
        """
        if self._looked_first.get(facts.path) != facts.hashed_ns:
            self._looked_first[facts.path] = facts.hashed_ns
            self._intake.look_first(sorted(originals), facts.path, now)
        if self._intake.is_looked_for(facts.path):
            return False
        del self._looked_first[facts.path]
        return True

    def _answered_here(self, facts: PictureFacts, answer: Job, current: Job | None, now: e.Instant) -> None:
        self._needs_nothing(facts, answer, current, now)
        if not answer.has_result:  # its note went with the picture, or a crash kept it from the disk
            self._write_failed_note(answer)
        if not facts.last.restored:  # a restart is no news
            self._ledger.log("info", "job.already_done", job=answer.id, source=facts.path, **_outcome(answer))
        else:  # a crash may have come between its end and this
            self._ledger.dispose_of_source(answer, again=True)

    def _needs_nothing(self, facts: PictureFacts, answer: Job, current: Job | None, now: e.Instant) -> None:
        self._served.note(answer, facts)
        if answer.has_result:  # other bytes, or another mask, may have failed here meanwhile
            self._ledger.remove_note(facts.path)
        self._supersede(current, f"served before as job {answer.id}", now)

    def _rename(self, facts: PictureFacts, jobs: list[Job], current: Job | None, now: e.Instant) -> None:
        """The picture that these jobs served is at another path now: they go with it."""
        answer = jobs[-1]
        self._needs_nothing(facts, answer, current, now)
        paths = {"source": answer.source, "now": facts.path}
        self._ledger.log("info", "job.renamed", job=answer.id, **paths, **_outcome(answer))
        for job in jobs:
            self._ledger.emit(c.SaveJob(replace(job, source=facts.path)))
        if not answer.has_result:  # the old path's note went with what was there, or is another's
            self._write_failed_note(replace(answer, source=facts.path))

    def _write_failed_note(self, job: Job) -> None:
        self._ledger.write_failed_note(job, job.record.get("remedy") if job.record is not None else None)

    def _rekey(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        """The mask of an untouched job came, went or changed."""
        self._duplicates.dissolve(job.id)
        clock = facts.clock(now.mono_ns)
        rekeyed = facts.carried_by(replace(job, identity=facts.identity))  # what it is blamed for stays
        if job.state is JobState.HELD:
            self._ledger.remove_note(job.source)
            self._ledger.change(replace(rekeyed, clock=clock), Cause.MASK_ARRIVED)
        elif job.state is JobState.WAITING:
            self._make_ready(replace(rekeyed, duplicate_of=None), facts, now)
        else:
            self._ledger.save(replace(rekeyed, clock=clock))

    # --- a person wants it again ---------------------------------------------------------------------------

    def retry_requested(self, event: e.RetryRequested, now: e.Instant) -> None:
        """Serve these jobs' pictures again, now or when it is known what lies there."""
        for job_id in event.unknown:
            self._ledger.log("warning", "retry.unknown", job=job_id, remedy="watcher jobs lists the ids")
        for job in event.jobs:
            if not self._intake.listed or self._is_incomplete(job.source):
                self._retries[job.source] = job
            else:
                self._retry(job, now)

    def _is_incomplete(self, path: str) -> bool:
        return self._intake.is_present(path) and self._intake.facts(path) is None

    def _retry(self, job: Job, now: e.Instant) -> None:
        facts = self._intake.facts(job.source)
        if self._ledger.jobs.at(job.source) is not None:
            reason = "its picture is being worked on already"
            self._ledger.log("info", "retry.refused", job=job.id, reason=reason)
        elif facts is None or facts.picture_sha256 != job.identity.picture_sha256:
            reason = "its picture is not in the inbox any more, or was changed"
            self._ledger.log("warning", "retry.refused", job=job.id, source=job.source, reason=reason)
        else:
            self._ledger.log("info", "retry.accepted", job=job.id, source=job.source)
            self._serve_again(job, facts, now)

    def _serve_again(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        # Its time starts with the wish: how long the file has been there is no wait of this job.
        again = replace(
            self._ledger.new_job(facts),
            retry_of=job.id,
            suspect=job.state is JobState.QUARANTINED,
            created_s=now.wall_s,
            clock=JobClock(now.mono_ns, now.mono_ns, now.mono_ns, ready_ns=now.mono_ns),
        )
        self._ledger.change(again, Cause.ARRIVED)


def _was_taken_away(answer: Job, current: Job | None) -> bool:
    """The service itself has disposed of that picture, and this one was met while it was there: no rename."""
    after = answer.record.get("after") if answer.record is not None else None
    return current is not None and current.duplicate_of is not None and after not in {None, "keep"}


def _served_with_mask(job: Job, facts: PictureFacts) -> bool:
    """This job served this very file while its mask was there."""
    is_result_here = (
        job.source == facts.path
        and job.fingerprint.is_same_file_as(facts.picture.fingerprint)
        and job.has_result
    )
    return is_result_here and facts.identity.lacks_only_mask_of(job.identity)


def _outcome(answer: Job) -> dict[str, str | None]:
    """The fields of a line that tell how a picture was answered for."""
    return {
        "outcome": answer.state.value,
        "output": answer.output,
        "remedy": retry_remedy(answer),
    }
