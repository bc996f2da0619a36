"""Composes the decisions: `handle(event, now) -> commands`.

Rules of this file:
- One event in, a list of commands out, in the order in which they must be carried out; nothing else happens.
- A job changes state in `_change` and `_end` only, and is saved there in the same breath, so the journal is
  never behind what was commanded.
- After every event, `_settle_accounts` looks at the pictures that were touched and at the lanes that are
  free. No handler dispatches by itself.
- Reports of flights that are not in the air are stale and change nothing.
- A job that nobody works on is ready, or held, or waits for bytes or for the job that it copies. Whatever may
  move it on touches its picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, cast

from watcher.core import commands as c
from watcher.core import events as e
from watcher.core import record as records
from watcher.core.batching import choose_batch, linger_until_ns
from watcher.core.intake import Intake
from watcher.core.job import Cause, Identity, Job, JobClock, JobState
from watcher.core.lanes import Lanes
from watcher.core.pairing import Recipes, is_mask_name, mask_names
from watcher.core.policy import Recipe
from watcher.core.retry import Verdict, after_loss, unblamed
from watcher.core.routing import PathReason
from watcher.core.supervision import ALIVE, EXIT_CONFIGURATION, WorkerState
from watcher.core.worklist import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from watcher.core.intake import PictureFacts
    from watcher.core.job import JsonObject, JsonValue
    from watcher.core.lanes import Flight
    from watcher.core.policy import Policy

_NS_PER_S: Final = 1_000_000_000
_ANSWERED: Final = frozenset({JobState.DONE, JobState.UNCHANGED, JobState.FAILED, JobState.QUARANTINED})
"""Final states that answer for the same bytes for good; `superseded` and `gone` do not."""
_RESULTS: Final = frozenset({JobState.DONE, JobState.UNCHANGED})
_UNTOUCHED: Final = frozenset({JobState.WAITING, JobState.READY, JobState.HELD})
"""Active states in which nobody works on the job."""
_STALE_BYTES: Final = frozenset({"changed", "vanished"})
_NO_SPACE_NOTICE_S: Final = 60.0
"""A full disk is told of once in so long a time."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What was found when a picture was last seen to need nothing. A repeated look is then no news."""

    identity: Identity
    hashed_ns: tuple[int, int]
    """Of picture and mask: they change when the files come again."""
    has_result: bool


class Pipeline:
    """The service's whole decision.

    Args:
        policy: the configuration, as plain values.
        jitter: returns a number in [0, 1), for the restart backoff.
    """

    def __init__(self, policy: Policy, jitter: Callable[[], float]) -> None:
        self._policy = policy
        self._recipes = Recipes(policy.recipes)
        self._out: list[c.Command] = []
        self._intake = Intake(policy.arrivals, self._recipes, self._out.append)
        self._jobs = Worklist()
        self._lanes = Lanes(policy, jitter)
        self._next_number = 1
        self._sealing: dict[str, c.SealResult | None] = {}
        """Jobs whose result is in the outbox's hands, with what it was asked first (None: rescued)."""
        self._blocked: dict[str, str] = {}
        """Jobs whose result the outbox would not take, with the reason, until it has taken it."""
        self._refused: dict[str, None] = {}
        """Those of them that are to be offered again."""
        self._outbox_works = True
        """The last that was heard of the outbox, one refused job's further refusals apart."""
        self._publish_again_ns: int | None = None
        self._publish_failures = 0
        self._dispatch_blocked_until_ns = 0
        self._space_failures = 0
        self._space_told_ns: int | None = None
        self._linger_until_ns: int | None = None
        self._draining: str | None = None
        self._drain_deadline_ns: int | None = None
        self._drain_killed = False
        self._drain_given_up = False
        self._retries: dict[str, Job] = {}
        """Jobs that a person wants again, by path, until it is known what lies there."""
        self._engine_faults: dict[str, int] = {}
        self._served: dict[str, _Served] = {}
        self._incomplete_until_ns: dict[str, int] = {}
        self._finished: dict[str, int] = {}
        self._last_finished: JsonObject | None = None
        self._now_ns = 0
        self._questions = 0
        """Answers that the journal still owes."""

    # --- what the runtime asks -----------------------------------------------------------------------------

    def handle(self, event: e.Event, now: e.Instant) -> list[c.Command]:
        """Take one event into account and return what is to be done about it."""
        self._now_ns = now.mono_ns
        self._take(event, now)
        self._settle_accounts(now)
        taken = list(self._out)
        self._out.clear()
        return taken

    def next_wakeup_ns(self) -> int | None:
        """The instant at which `TimerFired` is wanted, if nothing happens before."""
        times: list[int | None] = [
            self._intake.next_due_ns(),
            self._lanes.next_deadline_ns(),
            self._publish_again_ns,
            self._drain_due_ns(),
            self._dispatch_due_ns(),
        ]
        if self._intake.listed:
            times += self._incomplete_until_ns.values()
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    @property
    def is_drained(self) -> bool:
        """A drain was asked for, and nothing runs any more."""
        at_rest = not self._lanes.flights and not self._sealing and self._lanes.supervisor.state not in ALIVE
        return self._draining is not None and (at_rest or self._drain_given_up)

    @property
    def is_idle(self) -> bool:
        """All that is there is worked off: what is left waits for a person (held) or for bytes (waiting).

        Or, with `once`, for a process that cannot be started; then `open_jobs` is not 0.
        """
        return (
            self._intake.is_settled
            and not self._questions
            and not self._lanes.flights
            and not self._sealing
            and not self._has_work
        )

    @property
    def _has_work(self) -> bool:
        """Some job is ready, its files are there, and somebody can serve it."""
        if self._policy.once and self._lanes.cold_is_hopeless:
            return False
        return any(self._intake.facts(job.source) is not None for job in self._jobs.ready())

    @property
    def is_watching(self) -> bool:
        """The inbox is there and was listed: what is in it is known."""
        return self._intake.lost is None and self._intake.listed

    @property
    def open_jobs(self) -> int:
        """How many jobs and files are still to be worked off, as far as they are known."""
        counts = self._jobs.count()
        return self._intake.waiting + sum(counts.values()) - counts[JobState.HELD] - counts[JobState.WAITING]

    @property
    def held(self) -> tuple[Job, ...]:
        """The jobs that wait for a mask."""
        return tuple(job for job in self._jobs if job.state is JobState.HELD)

    def snapshot(self) -> JsonObject:
        """What `watcher status` shows."""
        supervisor = self._lanes.supervisor
        ready = self._lanes.worker_ready
        counts: dict[str, JsonValue] = dict(self._jobs.count())
        counts["arriving"] = self._intake.waiting
        return {
            "inbox": "lost"
            if self._intake.lost is not None
            else "watched"
            if self._intake.listed
            else "listing",
            "inbox_reason": self._intake.lost,
            "files": self._intake.known,
            "draining": self._draining,
            "worker": {
                "state": supervisor.state.value,
                "incarnation": supervisor.incarnation,
                "fault": supervisor.fault,
                "restarts": supervisor.restarts,
                "pid": ready.origin.pid if ready is not None else None,
                "engine": ready.engine if ready is not None else None,
                "device": ready.device if ready is not None else None,
            },
            "path": self._lanes.last_path,
            "path_reason": self._lanes.last_reason,
            "blocked": next(iter(self._blocked.values()), None),
            "jobs": counts,
            "finished": dict(self._finished),
            "last": self._last_finished,
        }

    # --- events --------------------------------------------------------------------------------------------

    def _take(self, event: e.Event, now: e.Instant) -> None:  # noqa: C901, PLR0912, PLR0915 - one flat table
        match event:
            case e.FileObserved():
                self._intake.observed(event, now)
            case e.FileVanished():
                self._intake.vanished(event, now)
            case e.InboxListed():
                self._intake.listed_now(event, now)
                self._drop_absent_jobs(now)
                for path in self._retries:
                    self._intake.touch(path)
            case e.RescanWanted():
                self._intake.rescan_wanted(event)
            case e.InboxLost():
                self._intake.inbox_lost(event)
            case e.InboxFound():
                self._intake.inbox_found(event)
            case e.FileHashed():
                self._intake.hashed(event)
            case e.FileUnreadable():
                self._intake.unreadable(event, now)
            case e.JournalOpened():
                self._journal_opened(event, now)
            case e.PriorJobsFound():
                self._prior_jobs_found(event, now)
            case e.RetryRequested():
                self._retry_requested(event, now)
            case e.DrainRequested():
                self._drain_requested(event, now)
            case e.TimerFired():
                pass  # deadlines are looked at after every event
            case e.WorkerReady():
                self._worker_ready(event, now)
            case e.BatchStarted() | e.ItemStarted() | e.ItemProgressed():
                self._progressed(event, now)
            case e.ItemDone():
                self._item_done(event, now)
            case e.ItemHeld():
                self._item_held(event, now)
            case e.ItemIncomplete():
                self._item_incomplete(event, now)
            case e.ItemFailed():
                self._item_failed(event, now)
            case e.BatchDone():
                self._batch_done(event, now)
            case e.WorkerExited():
                self._worker_exited(event, now)
            case e.ResultSealed():
                self._result_sealed(event)
            case e.SourceChanged():
                self._source_changed(event, now)
            case e.StageLost():
                self._stage_lost(event, now)
            case e.NameTaken():
                self._name_taken(event)
            case e.ResultPublished():
                self._result_published(event, now)
            case e.PublishBlocked():
                self._publish_blocked(event, now)

    def _settle_accounts(self, now: e.Instant) -> None:
        """What every event is followed by: timers, touched pictures, free lanes."""
        self._intake.fire_timers(now)
        self._fire_deadlines(now)
        while touched := self._intake.take_touched():
            for path in touched:
                self._resolve(path, now)
        if self._draining is None:
            self._dispatch(now)

    # --- start and stop ------------------------------------------------------------------------------------

    def _journal_opened(self, event: e.JournalOpened, now: e.Instant) -> None:
        self._next_number = event.next_number
        self._intake.restore(event.files)
        for job in event.jobs:
            self._rescue(job)
        if not self._policy.once and not self._policy.worker.lazy:
            self._do(self._lanes.supervisor.want(now.mono_ns))

    def _rescue(self, job: Job) -> None:
        """A crash left this job as it is: see `AFTER_CRASH`."""
        if job.state is JobState.PUBLISHING:
            self._jobs.put(job)
            self._sealing[job.id] = None
            self._out.append(c.PublishResult(job, rescue=True))
            return
        # What was staged and drafted is void: its instants are of another life.
        job = replace(job, stage_name=None, sha256_out=None, record=None)
        if job.state is JobState.RUNNING:
            # The service died, not the picture's process: that was not an attempt.
            self._change(replace(job, attempts=max(0, job.attempts - 1)), Cause.RELEASED)
        else:
            self._jobs.put(job)

    def _drop_absent_jobs(self, now: e.Instant) -> None:
        """A listing lacks their pictures: jobs that nobody works on are gone."""
        for job in self._jobs:
            if self._is_untouched(job) and self._intake.is_gone(job.source):
                self._end(job, Cause.SOURCE_VANISHED, now, reason="its picture left the inbox")

    def _is_untouched(self, job: Job) -> bool:
        return job.state in _UNTOUCHED and job.id not in self._sealing

    def _drain_requested(self, event: e.DrainRequested, now: e.Instant) -> None:
        if self._draining is not None:
            return
        self._draining = event.reason
        self._drain_deadline_ns = now.mono_ns + round(self._policy.worker.drain_s * _NS_PER_S)
        self._log("info", "service.stopping", reason=event.reason)
        for job_id in self._refused:  # the outbox is blocked: the next start finishes them
            self._sealing.pop(job_id, None)
        self._refused.clear()
        self._publish_again_ns = None
        self._do(self._lanes.supervisor.drain(now.mono_ns))

    def _fire_deadlines(self, now: e.Instant) -> None:
        supervisor = self._lanes.supervisor
        if supervisor.deadline_ns is not None and now.mono_ns >= supervisor.deadline_ns:
            self._do(supervisor.deadline_passed(now.mono_ns))
        hot = self._lanes.flights.get(supervisor.incarnation)
        if hot is not None and hot.killed_ns is None and supervisor.state is WorkerState.KILLING:
            hot.killed_ns = now.mono_ns
        for flight in self._lanes.overdue_cold(now.mono_ns):
            self._kill_cold(flight, "no progress", now)
        for flight in self._lanes.unkillable(now.mono_ns):
            self._give_up(flight, now)
        if self._publish_again_ns is not None and now.mono_ns >= self._publish_again_ns:
            self._publish_again()
        self._give_up_incomplete(now)
        drain_due_ns = self._drain_due_ns()
        if drain_due_ns is not None and now.mono_ns >= drain_due_ns:
            self._end_drain(now)

    def _drain_due_ns(self) -> int | None:
        if self._drain_deadline_ns is None or self._drain_given_up:
            return None
        kill_ns = round(self._policy.worker.kill_s * _NS_PER_S)
        return self._drain_deadline_ns + (kill_ns if self._drain_killed else 0)

    def _end_drain(self, now: e.Instant) -> None:
        """The time for finishing is over: kill; the time for dying too: nobody is waited for any more."""
        if self._drain_killed:
            self._drain_given_up = True
            return
        self._drain_killed = True
        for flight in self._lanes.flights.values():
            if flight.path == "cold" and flight.killed_ns is None:
                self._kill_cold(flight, "the service stops", now)
        if self._lanes.supervisor.state is not WorkerState.KILLING:
            self._do(self._lanes.supervisor.kill("the service stops", now.mono_ns))

    def _give_up(self, flight: Flight, now: e.Instant) -> None:
        """It does not die. Its jobs go on under other stage names; what it may still say is stale."""
        flight.given_up = True
        self._log(
            "error",
            "worker.killed",
            incarnation=flight.incarnation,
            reason="it does not end; its pictures are served without it",
            again=True,
        )
        if self._draining is not None:
            return  # the next start finishes them
        unreported = self._jobs_of(flight)
        flight.jobs.clear()
        alone = flight.size == 1
        for verdict in after_loss(unreported, flight.in_progress, alone=alone, policy=self._policy.retry):
            self._carry_out(verdict, "it stood still, and could not be killed", now)

    def _kill_cold(self, flight: Flight, reason: str, now: e.Instant) -> None:
        flight.killed_ns = now.mono_ns
        self._log("warning", "worker.killed", incarnation=flight.incarnation, reason=reason, again=False)
        self._out.append(c.KillWorker(flight.incarnation, reason))

    # --- pictures -> jobs ----------------------------------------------------------------------------------

    def _resolve(self, path: str, now: e.Instant) -> None:
        """Something about this picture changed: does it need a job, another job, or none?"""
        facts = self._intake.facts(path)
        if path in self._retries and (facts is not None or self._intake.is_gone(path)):
            self._retry(self._retries.pop(path), now)
        job = self._jobs.at(path)
        if job is not None and not self._is_untouched(job):
            return  # its end is followed by another look
        if not self._intake.is_present(path):
            self._picture_left(path, job, now)
        elif not self._intake.serves(path):
            if job is not None:
                self._end(job, Cause.BYTES_CHANGED, now, reason="it is a mask now, or no recipe takes it")
        elif facts is not None:
            self._resolve_complete(facts, job, now)
        elif job is not None and self._intake.is_empty(path):
            self._end(job, Cause.BYTES_CHANGED, now, reason="the picture was emptied before it was served")

    def _picture_left(self, path: str, job: Job | None, now: e.Instant) -> None:
        if not self._intake.is_gone(path):
            return
        if job is not None:
            self._end(job, Cause.SOURCE_VANISHED, now, reason="its picture left the inbox")
        elif not is_mask_name(path):
            self._out.append(c.RemoveNote(path))
        self._served.pop(path, None)

    def _resolve_complete(self, facts: PictureFacts, job: Job | None, now: e.Instant) -> None:
        identity = _identity(facts)
        if job is None:
            if not self._is_served(facts, identity):
                self._ask_journal(facts.path, identity)
        elif job.identity.picture_sha256 != identity.picture_sha256:
            self._end(job, Cause.BYTES_CHANGED, now, reason="the picture was changed before it was served")
        elif job.identity != identity:
            self._ask_journal(facts.path, identity)
        else:
            self._confirm(job, facts, now)

    def _is_served(self, facts: PictureFacts, identity: Identity) -> bool:
        """This very arrival was answered; or it was served with a mask, and only its mask has gone since."""
        last = self._served.get(facts.path)
        if last is None:
            return False
        if last.identity == identity:
            return last.hashed_ns == _hashed_ns(facts)
        return last.has_result and _differs_by_lack_of_mask(identity, last.identity)

    def _note_served(self, job: Job, facts: PictureFacts | None) -> None:
        hashed_ns = _hashed_ns(facts) if facts is not None else (0, 0)
        path = facts.path if facts is not None else job.source
        self._served[path] = _Served(job.identity, hashed_ns, job.state in _RESULTS)

    def _confirm(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        """The job is what the inbox holds; after a restart its clock starts here."""
        moved_on = job.fingerprint != facts.picture.fingerprint
        if job.state is JobState.HELD and job.clock is None:  # a crash may have kept its note from the disk
            self._write_held_note(job)
        job = _with_files(replace(job, clock=job.clock or _clock(facts, now)), facts)
        self._jobs.put(job)
        if job.state is not JobState.WAITING:
            return
        if job.duplicate_of is not None:
            if self._jobs.get(job.duplicate_of) is None:  # a restart lies between the two
                self._ask_journal(job.source, job.identity)
            return
        if not moved_on and job.id in self._incomplete_until_ns:
            return
        primary = self._jobs.primary(job.identity)
        if primary is not None and primary.id != job.id:
            self._save(replace(job, duplicate_of=primary.id))
        else:
            self._make_ready(job, facts, now)

    def _ask_journal(self, path: str, identity: Identity) -> None:
        self._questions += 1
        self._out.append(c.FindPriorJobs(path, identity))

    def _prior_jobs_found(self, event: e.PriorJobsFound, now: e.Instant) -> None:
        self._questions -= 1
        facts = self._intake.facts(event.path)
        if facts is None or event.identity != _identity(facts):
            return  # it changed again meanwhile, and will be resolved again
        current = self._jobs.at(event.path)
        if current is not None and not self._is_open_question(current, event.identity):
            return
        answered = [job for job in event.jobs if job.identity == event.identity and job.state in _ANSWERED]
        masked = [
            job
            for job in event.jobs
            if job.source == event.path
            and job.state in _RESULTS
            and _differs_by_lack_of_mask(event.identity, job.identity)
        ]
        if answered:
            self._answered_before(facts, answered, current, now)
            return
        if masked:  # it was served while its mask was there
            self._needs_nothing(facts, masked[-1], current, now)
            return
        primary = self._jobs.primary(event.identity)
        if primary is not None and primary.source != event.path:
            self._wait_for(primary, facts, current, now)
        elif current is not None:
            self._rekey(current, event.identity, facts, now)
        else:
            self._make_ready(self._new_job(facts), facts, now)

    def _is_open_question(self, current: Job, identity: Identity) -> bool:
        """The answer is not too late: the job was not made for this identity, nor begun, meanwhile."""
        if not self._is_untouched(current):
            return False
        if current.identity != identity:
            return True
        return current.duplicate_of is not None and self._jobs.get(current.duplicate_of) is None

    def _answered_before(
        self, facts: PictureFacts, answered: list[Job], current: Job | None, now: e.Instant
    ) -> None:
        """These bytes, mask and recipe have been served: never twice."""
        here = [job for job in answered if job.source == facts.path]
        if here:
            self._needs_nothing(facts, here[-1], current, now)
            self._tell_done_before(here[-1], facts)
            return
        results = [job for job in answered if job.state in _RESULTS]
        moved = [
            job for job in results or answered if not self._intake.may_hold(job.source, facts.picture_sha256)
        ]
        if moved:
            self._rename(facts, [job for job in answered if job.source == moved[0].source], current, now)
        elif results:
            self._copy(results[-1], self._duplicate_job(results[-1], facts, current, now), now)
        else:
            self._end_like(answered[-1], self._duplicate_job(answered[-1], facts, current, now), now)

    def _needs_nothing(self, facts: PictureFacts, answer: Job, current: Job | None, now: e.Instant) -> None:
        self._note_served(answer, facts)
        if answer.state in _RESULTS and not facts.last.restored:  # other bytes may have failed here meanwhile
            self._out.append(c.RemoveNote(facts.path))
        if current is not None:
            self._end(current, Cause.BYTES_CHANGED, now, reason=f"served before as job {answer.id}")

    def _rename(self, facts: PictureFacts, jobs: list[Job], current: Job | None, now: e.Instant) -> None:
        """The picture that these jobs served is at another path now: they go with it."""
        answer = jobs[-1]
        self._needs_nothing(facts, answer, current, now)
        self._log(
            "info",
            "job.renamed",
            job=answer.id,
            source=answer.source,
            now=facts.path,
            outcome=answer.state.value,
            output=answer.output,
            remedy=_retry_remedy(answer),
        )
        for job in jobs:
            self._out.append(c.SaveJob(replace(job, source=facts.path)))
        if answer.state not in _RESULTS:  # the old path's note went with what was there, or is another's
            self._write_failed_note(replace(answer, source=facts.path))

    def _tell_done_before(self, job: Job, facts: PictureFacts) -> None:
        if job.state not in _RESULTS:  # its note went with the picture, or a crash kept it from the disk
            self._write_failed_note(job)
        if facts.last.restored:
            return  # a restart is no news
        self._log(
            "info",
            "job.already_done",
            job=job.id,
            source=facts.path,
            outcome=job.state.value,
            output=job.output,
            remedy=_retry_remedy(job),
        )

    def _write_failed_note(self, job: Job) -> None:
        remedy = job.record.get("remedy") if job.record is not None else None
        self._out.append(c.WriteNote("failed", job.source, _failed_note(job, remedy)))

    def _wait_for(self, primary: Job, facts: PictureFacts, current: Job | None, now: e.Instant) -> None:
        """The same work is under way for another path: this one gets a copy."""
        duplicate = self._duplicate_job(primary, facts, current, now)
        self._save(duplicate)
        self._log("info", "job.duplicate", job=duplicate.id, source=facts.path, duplicate_of=primary.id)

    def _duplicate_job(self, primary: Job, facts: PictureFacts, current: Job | None, now: e.Instant) -> Job:
        """A waiting job for the same work at another path: `current` itself where it is one already."""
        if current is not None:
            if current.state is JobState.WAITING and current.identity == primary.identity:
                return replace(current, duplicate_of=primary.id)
            self._end(current, Cause.BYTES_CHANGED, now, reason=f"the same work as job {primary.id}")
        return replace(
            self._new_job(facts), duplicate_of=primary.id, clock=_clock(facts, now), created_s=now.wall_s
        )

    def _rekey(self, job: Job, identity: Identity, facts: PictureFacts, now: e.Instant) -> None:
        """The mask of an untouched job came, went or changed."""
        for duplicate in self._jobs.duplicates(job.id):  # it is not the same work any more
            self._stand_alone(duplicate)
        rekeyed = _with_files(replace(job, identity=identity), facts)
        if job.state is JobState.HELD:
            self._out.append(c.RemoveNote(job.source))
            self._change(replace(rekeyed, clock=_clock(facts, now)), Cause.MASK_ARRIVED)
        elif job.state is JobState.WAITING:
            self._make_ready(replace(rekeyed, duplicate_of=None), facts, now)
        else:
            self._save(replace(rekeyed, clock=_clock(facts, now)))

    def _new_job(self, facts: PictureFacts) -> Job:
        number, self._next_number = self._next_number, self._next_number + 1
        return Job(
            id=f"{facts.picture_sha256[:8]}-{number}",
            source=facts.path,
            fingerprint=facts.picture.fingerprint,
            identity=_identity(facts),
            state=JobState.WAITING,
            created_s=0.0,
            mask=facts.mask_path,
            mask_fingerprint=facts.mask.fingerprint if facts.mask is not None else None,
        )

    def _make_ready(self, job: Job, facts: PictureFacts, now: e.Instant) -> None:
        created_s = job.created_s or now.wall_s
        self._incomplete_until_ns.pop(job.id, None)
        self._change(replace(job, created_s=created_s, clock=_clock(facts, now)), Cause.ARRIVED)

    def _retry_requested(self, event: e.RetryRequested, now: e.Instant) -> None:
        for job_id in event.unknown:
            self._log("warning", "retry.unknown", job=job_id, remedy="watcher jobs lists the ids")
        for job in event.jobs:
            if not self._intake.listed or self._is_incomplete(job.source):
                self._retries[job.source] = job
            else:
                self._retry(job, now)

    def _is_incomplete(self, path: str) -> bool:
        return self._intake.is_present(path) and self._intake.facts(path) is None

    def _retry(self, job: Job, now: e.Instant) -> None:
        facts = self._intake.facts(job.source)
        if self._jobs.at(job.source) is not None:
            self._log("info", "retry.refused", job=job.id, reason="its picture is being worked on already")
        elif facts is None or facts.picture_sha256 != job.identity.picture_sha256:
            reason = "its picture is not in the inbox any more, or was changed"
            self._log("warning", "retry.refused", job=job.id, source=job.source, reason=reason)
        else:
            self._log("info", "retry.accepted", job=job.id, source=job.source)
            alone = job.state is JobState.QUARANTINED
            again = replace(self._new_job(facts), retry_of=job.id, suspect=alone, created_s=now.wall_s)
            # Its time starts with the wish: how long the file has been there is no wait of this job.
            clock = JobClock(now.mono_ns, now.mono_ns, now.mono_ns, ready_ns=now.mono_ns)
            self._change(replace(again, clock=clock), Cause.ARRIVED)

    # --- jobs -> lanes -------------------------------------------------------------------------------------

    def _dispatch(self, now: e.Instant) -> None:
        """Give what is ready to whoever is free."""
        if self._intake.lost is not None or not self._intake.listed:
            return
        if now.mono_ns < self._dispatch_blocked_until_ns or not self._jobs.has_ready:
            return
        if self._policy.once and (self._questions or not self._intake.is_settled):
            return  # one process for all of it: its start is paid once
        if self._policy.worker.lazy and not self._policy.once:
            self._do(self._lanes.supervisor.want(now.mono_ns))
        self._linger_until_ns = None
        if self._lanes.hot_is_free:
            self._dispatch_hot(now)
        while self._lanes.cold_is_free(now.mono_ns) and self._dispatch_cold(now):
            pass

    def _dispatch_hot(self, now: e.Instant) -> None:
        waiting = (job for job in self._jobs.ready() if self._may_go(job, now) == "hot")
        batch = choose_batch(waiting, self._policy.batching)
        if not batch:
            return
        until_ns = linger_until_ns(batch, self._policy.batching)
        if now.mono_ns < until_ns:
            self._linger_until_ns = until_ns
            return
        batch = self._with_care(batch)
        if any(job.suspect for job in batch):  # only without a cold path: a suspect goes alone
            batch = tuple(takewhile(lambda job: not job.suspect, batch)) or batch[:1]
        incarnation = self._lanes.supervisor.incarnation
        flight = self._lanes.take_off(incarnation, "hot", PathReason.READY, batch, now.mono_ns)
        items = self._board(batch, now)
        self._tell_path("hot", flight.reason)
        self._out.append(c.RunBatch(incarnation, c.Batch(flight.batch, items)))
        self._do(self._lanes.supervisor.batch_given(now.mono_ns))

    def _dispatch_cold(self, now: e.Instant) -> bool:
        """Start one one-shot if a job is to go that way; True if one was started."""
        first = self._first_cold(now)
        if first is None:
            return False
        reason = self._lanes.route(first, now.mono_ns).reason
        batch = (first,) if first.suspect else self._cold_batch(reason, now)
        incarnation = self._lanes.take_incarnation()
        flight = self._lanes.take_off(incarnation, "cold", reason, batch, now.mono_ns)
        items = self._board(batch, now)
        self._tell_path("cold", flight.reason)
        self._out.append(c.RunCold(incarnation, c.Batch(flight.batch, items)))
        return True

    def _first_cold(self, now: e.Instant) -> Job | None:
        """A suspect, else the one that has waited longest: if it does not go cold, no younger one does."""
        for job in self._jobs.suspects():
            if self._may_go(job, now) == "cold":
                return job
        for job in self._jobs.ready():
            if job.suspect or not self._is_complete(job):
                continue
            if self._may_go(job, now) == "cold":
                return job
            if job.clock is not None and not job.clock.dispatched_ns:
                return None  # those that were dispatched before stand first, whatever they waited since
        return None

    def _cold_batch(self, reason: PathReason, now: e.Instant) -> tuple[Job, ...]:
        same_way = (
            job
            for job in self._jobs.ready()
            if self._may_go(job, now) == "cold" and self._lanes.route(job, now.mono_ns).reason is reason
        )
        if reason is PathReason.ONCE:
            return self._with_care(tuple(same_way))
        return self._with_care(choose_batch(same_way, self._policy.batching))

    def _with_care(self, batch: tuple[Job, ...]) -> tuple[Job, ...]:
        """While the outbox refuses results, one job at a time goes, to learn whether it refuses all."""
        return batch if self._outbox_works else batch[:1]

    def _may_go(self, job: Job, now: e.Instant) -> Literal["hot", "cold", "wait"]:
        return self._lanes.route(job, now.mono_ns).path if self._is_complete(job) else "wait"

    def _is_complete(self, job: Job) -> bool:
        """False while its mask is still being written, or its bytes were not seen since a restart."""
        facts = self._intake.facts(job.source)
        return facts is not None and job.clock is not None and _identity(facts) == job.identity

    def _board(self, batch: tuple[Job, ...], now: e.Instant) -> tuple[c.BatchItem, ...]:
        """Commit the attempts, then return what the executor needs."""
        items = []
        for job in batch:
            attempts = job.attempts + 1
            clock = cast("JobClock", job.clock)
            clock = replace(
                clock,
                dispatched_ns=now.mono_ns,
                queued_ns=clock.queued_ns + now.mono_ns - clock.ready_ns,
            )
            stage_name = f"{job.id}.{attempts}"
            boarded = replace(job, attempts=attempts, clock=clock, stage_name=stage_name)
            running = self._change(boarded, Cause.DISPATCHED)
            items.append(self._item(running, stage_name))
        return tuple(items)

    def _item(self, job: Job, stage_name: str) -> c.BatchItem:
        recipe = self._recipes.named(job.identity.recipe) or Recipe(job.identity.recipe)
        return c.BatchItem(
            job=job,
            stage_name=stage_name,
            marks=recipe.marks,
            grow_px=recipe.grow_px,
            unmarked=recipe.unmarked,
            quality=recipe.quality,
            keep_metadata=recipe.keep_metadata,
        )

    def _tell_path(self, path: Literal["hot", "cold"], reason: PathReason) -> None:
        if self._lanes.last_path not in {None, path}:
            level: c.LogLevel = "warning" if path == "cold" else "info"
            self._log(level, "path.changed", path=path, reason=reason.value)
        self._lanes.last_path = path
        self._lanes.last_reason = reason.value

    def _dispatch_due_ns(self) -> int | None:
        """When the answer of `_dispatch` may change by time alone."""
        if not self._jobs.has_ready or self._draining is not None:
            return None
        limits = [
            self._dispatch_blocked_until_ns,
            self._lanes.cold_blocked_until_ns,
            self._linger_until_ns or 0,
        ]
        waits_for_start = self._lanes.supervisor.state in {WorkerState.STARTING, WorkerState.DRAINING}
        if waits_for_start and self._lanes.cold_is_free(self._now_ns):
            patience_ns = round(self._lanes.cold_estimate_s * _NS_PER_S) + 1
            late_ns = (
                job.clock.ready_ns + patience_ns for job in self._jobs.ready() if job.clock is not None
            )
            limits.append(next((at_ns for at_ns in late_ns if at_ns > self._now_ns), 0))
        # Limits that have passed were acted on; only the future wakes.
        return min((limit_ns for limit_ns in limits if limit_ns > self._now_ns), default=None)

    # --- reports of workers --------------------------------------------------------------------------------

    def _worker_ready(self, event: e.WorkerReady, now: e.Instant) -> None:
        supervisor = self._lanes.supervisor
        fields = _ready_fields(event)
        if event.origin.path == "hot" and supervisor.is_current(event.origin.incarnation):
            self._do(supervisor.became_ready(now.mono_ns))
            self._lanes.worker_ready = event
            self._log("info", "worker.ready", **fields)
            return
        flight = self._lanes.flights.get(event.origin.incarnation)
        if flight is not None and flight.path == "cold":
            flight.ready = event
            flight.progressed_ns = now.mono_ns
            self._log("debug", "worker.ready", **fields)

    def _progressed(self, event: e.BatchStarted | e.ItemStarted | e.ItemProgressed, now: e.Instant) -> None:
        flight = self._lanes.flight_of(event.origin, event.batch)
        if flight is None:
            return
        self._note_progress(flight, now)
        flight.started = True
        if flight.path == "cold":
            self._lanes.cold_started()
        if isinstance(event, e.ItemStarted):
            flight.in_progress = event.job

    def _note_progress(self, flight: Flight, now: e.Instant) -> None:
        flight.progressed_ns = now.mono_ns
        if flight.path == "hot":
            self._lanes.supervisor.progressed(now.mono_ns)

    def _landed(
        self, event: e.ItemDone | e.ItemHeld | e.ItemIncomplete | e.ItemFailed, now: e.Instant
    ) -> tuple[Job, Flight] | None:
        """The job and flight of an item's last report, or None if the report is stale."""
        flight = self._lanes.flight_of(event.origin, event.batch)
        job = self._jobs.get(event.job)
        if flight is None or event.job not in flight.jobs or job is None:
            self._log("info", "report.stale", job=event.job, incarnation=event.origin.incarnation)
            return None
        self._note_progress(flight, now)
        del flight.jobs[event.job]
        flight.in_progress = None
        if flight.path == "cold" and len(flight.jobs) == flight.size - 1:
            self._lanes.measure_cold((now.mono_ns - flight.sent_ns) / _NS_PER_S)
        return job, flight

    def _item_done(self, event: e.ItemDone, now: e.Instant) -> None:
        landed = self._landed(event, now)
        if landed is None:
            return
        job, flight = landed
        job = replace(
            job,
            record={**self._draft(job, flight, event.origin, event.report), "unchanged": event.unchanged},
            sha256_out=event.report.sha256_out,
            reason=event.reason,
            suspect=False,
            solo_faults=0,
        )
        self._jobs.put(job)
        self._seal(job)

    def _draft(self, job: Job, flight: Flight, origin: e.Origin, report: e.WorkReport) -> JsonObject:
        start_ns, ready_ns = self._lanes.start_segments(flight)
        served = records.Served(
            origin=origin,
            path_reason=flight.reason.value,
            first_hot=flight.first_hot_open,
            batch=flight.batch,
            batch_size=flight.size,
            start_ns=start_ns,
            ready_ns=ready_ns,
        )
        flight.first_hot_open = False
        return records.draft(job, served, report, self._policy)

    def _item_held(self, event: e.ItemHeld, now: e.Instant) -> None:
        landed = self._landed(event, now)
        if landed is None:
            return
        job = replace(landed[0], attempts=max(0, landed[0].attempts - 1), stage_name=None, suspect=False)
        held = self._change(replace(job, solo_faults=0), Cause.FOUND_UNMARKED)
        self._log("info", "job.held", job=held.id, source=held.source)
        self._out.append(c.RemoveNote(held.source))  # an earlier failure's
        self._write_held_note(held)
        self._release_duplicates(held, now)
        self._look_again(held)

    def _item_incomplete(self, event: e.ItemIncomplete, now: e.Instant) -> None:
        landed = self._landed(event, now)
        if landed is None:
            return
        job = replace(landed[0], attempts=max(0, landed[0].attempts - 1), stage_name=None)
        age_s = now.wall_s - job.fingerprint.ctime_ns / _NS_PER_S
        if age_s >= self._policy.arrivals.young_s:
            self._fail(job, f"the file has no end: {event.reason}", "put the complete file there again", now)
            return
        waiting = self._change(job, Cause.FOUND_INCOMPLETE)
        left_s = min(self._policy.arrivals.young_s, self._policy.arrivals.young_s - age_s)
        self._incomplete_until_ns[waiting.id] = now.mono_ns + round(left_s * _NS_PER_S)
        self._log("info", "file.incomplete", job=job.id, source=job.source, reason=event.reason)
        self._look_again(waiting)

    def _give_up_incomplete(self, now: e.Instant) -> None:
        if not self._intake.listed:
            return  # while the inbox is away nothing grows
        for job_id, at_ns in tuple(self._incomplete_until_ns.items()):
            if now.mono_ns < at_ns:
                continue
            del self._incomplete_until_ns[job_id]
            job = self._jobs.get(job_id)
            if job is None or job.state is not JobState.WAITING:
                continue
            if (
                self._intake.facts(job.source) is not None
            ):  # else it grows: it is looked at when it is complete
                self._fail(
                    job,
                    f"the file has no end, and did not grow for {self._policy.arrivals.young_s:g} s",
                    "put the complete file there again",
                    now,
                )

    def _item_failed(self, event: e.ItemFailed, now: e.Instant) -> None:
        landed = self._landed(event, now)
        if landed is None:
            return
        job, flight = landed
        if event.code == "no_space":
            self._no_space(job, event.reason, now)
        elif event.code == "engine" and self._is_worth_another_try(job, event.reason):
            self._release(replace(job, suspect=True), now)
        elif event.code in _STALE_BYTES:
            self._bytes_moved(job, event.code, now)
        else:
            drafted = self._draft(job, flight, event.origin, event.report)
            self._fail(replace(job, record=drafted), event.reason, event.remedy, now)

    def _is_worth_another_try(self, job: Job, reason: str) -> bool:
        """Count an engine error; a restart of the service forgets the count."""
        faults = self._engine_faults.get(job.id, 0) + 1
        self._engine_faults[job.id] = faults
        if faults >= self._policy.retry.engine_attempts:
            return False
        self._log("warning", "job.engine_failed", job=job.id, source=job.source, reason=reason)
        return True

    def _no_space(self, job: Job, reason: str, now: e.Instant) -> None:
        """Staging is full: wait for space; that was not an attempt."""
        told_ns = self._space_told_ns
        if told_ns is None or now.mono_ns - told_ns >= round(_NO_SPACE_NOTICE_S * _NS_PER_S):
            self._space_told_ns = now.mono_ns
            self._log("warning", "publish.blocked", job=job.id, reason=reason)
        self._pause_dispatch(now)
        self._release(replace(job, attempts=max(0, job.attempts - 1)), now)

    def _pause_dispatch(self, now: e.Instant) -> None:
        """Staging refuses or loses results: give it time, ever more while it goes on."""
        if now.mono_ns < self._dispatch_blocked_until_ns:
            return
        self._dispatch_blocked_until_ns = now.mono_ns + self._publish_patience_ns(self._space_failures)
        self._space_failures += 1

    def _publish_patience_ns(self, failures: int) -> int:
        policy = self._policy.retry
        wait_s: float = min(policy.publish_retry_max_s, policy.publish_retry_s * 2 ** min(failures, 30))
        return round(wait_s * _NS_PER_S)

    def _bytes_moved(self, job: Job, code: str, now: e.Instant) -> None:
        """What the worker found is not what was settled."""
        if self._intake.lost is not None:
            self._release(replace(job, attempts=max(0, job.attempts - 1)), now)
        elif code == "vanished" and not self._intake.is_present(job.source):
            self._end(job, Cause.SOURCE_VANISHED, now, reason="it vanished before it was read")
        else:
            self._doubt_files(job, now)
            self._end(job, Cause.BYTES_CHANGED, now, reason="it was changed before it was read")

    def _doubt_files(self, job: Job, now: e.Instant) -> None:
        """Nothing is made of these files again before they were looked at and hashed again."""
        self._intake.doubt(job.source, now)
        if job.mask is not None:
            self._intake.doubt(job.mask, now)

    def _batch_done(self, event: e.BatchDone, now: e.Instant) -> None:
        flight = self._lanes.flight_of(event.origin, event.batch)
        if flight is None:
            return
        self._note_progress(flight, now)
        flight.in_progress = None
        forgotten = self._jobs_of(flight)
        flight.jobs.clear()
        for job in forgotten:
            reason = "the worker did not report on it"
            if self._is_worth_another_try(job, reason):
                self._release(replace(job, suspect=True), now)
            else:
                self._fail(
                    job, reason, f"that is a fault of watcher; to try it again: watcher retry {job.id}", now
                )
        flight.done = True
        if flight.path == "hot":
            del self._lanes.flights[flight.incarnation]
            self._do(self._lanes.supervisor.batch_ended(flight.size, event.rss_bytes, now.mono_ns))

    def _worker_exited(self, event: e.WorkerExited, now: e.Instant) -> None:
        flight = self._lanes.flights.pop(event.origin.incarnation, None)
        supervisor = self._lanes.supervisor
        current = event.origin.path == "hot" and supervisor.is_current(event.origin.incarnation)
        recycled = current and supervisor.state is WorkerState.DRAINING
        wanted = recycled or self._draining is not None
        self._tell_exit(event, flight, expected=wanted)
        if current:
            self._lanes.worker_ready = None
            self._do(supervisor.exited(event.exit_code, now.mono_ns))
        if flight is not None and flight.jobs:
            self._flight_lost(flight, event, now, wanted=wanted)

    def _tell_exit(self, event: e.WorkerExited, flight: Flight | None, *, expected: bool) -> None:
        calm = expected or (event.exit_code == 0 and (flight is None or not flight.jobs))
        level: c.LogLevel = "debug" if calm else "warning"
        self._log(
            level,
            "worker.exited",
            path=event.origin.path,
            incarnation=event.origin.incarnation,
            pid=event.origin.pid,
            exit_code=event.exit_code,
            story=event.story,
            reason=event.reason,
            remedy=event.remedy,
        )

    def _flight_lost(self, flight: Flight, event: e.WorkerExited, now: e.Instant, *, wanted: bool) -> None:
        unreported = self._jobs_of(flight)
        if wanted:
            verdicts = unblamed(unreported)
        elif not flight.started:
            verdicts = unblamed(unreported)
            if flight.path == "cold":
                for_good = event.exit_code == EXIT_CONFIGURATION
                wait_s = self._lanes.cold_start_failed(now.mono_ns, for_good=for_good)
                self._log("error", "worker.cold_start_failed", story=event.story, next_try_in_s=wait_s)
        else:
            alone = flight.size == 1
            verdicts = after_loss(unreported, flight.in_progress, alone=alone, policy=self._policy.retry)
        for verdict in verdicts:
            self._carry_out(verdict, event.story, now)

    def _carry_out(self, verdict: Verdict, story: str, now: e.Instant) -> None:
        job = verdict.job
        if verdict.action == "release":
            self._release(job, now)
            return
        self._end(
            _lost_so_far(job, now),
            Cause.POISONED,
            now,
            reason=f"it ended its process {job.solo_faults} times; the last time: {story}",
            remedy=f"look at the picture; to try it again all the same: watcher retry {job.id}",
        )

    def _release(self, job: Job, now: e.Instant) -> None:
        """Back to the queue; the lost time is told apart from waiting."""
        if job.stage_name is not None:
            self._out.append(c.DiscardStage(job.stage_name))
        released = replace(_lost_so_far(job, now), stage_name=None, record=None, sha256_out=None)
        self._look_again(self._change(released, Cause.RELEASED))

    def _jobs_of(self, flight: Flight) -> list[Job]:
        return [job for job_id in flight.jobs if (job := self._jobs.get(job_id)) is not None]

    # --- results -> outbox ---------------------------------------------------------------------------------

    def _seal(self, job: Job) -> None:
        self._ask_outbox(c.SealResult(job, job.stage_name or "", job.sha256_out or ""))

    def _ask_outbox(self, command: c.SealResult) -> None:
        self._sealing[command.job.id] = command
        self._out.append(command)

    def _copy(self, primary: Job, duplicate: Job, now: e.Instant) -> None:
        """The result exists: publish a copy of it under the duplicate's own name."""
        stage_name = f"{duplicate.id}.copy"
        duplicate = replace(
            duplicate,
            created_s=duplicate.created_s or now.wall_s,
            stage_name=stage_name,
            sha256_out=primary.sha256_out,
            reason=primary.reason,
            record={
                **records.draft_copy(duplicate, primary.record, self._policy, now.mono_ns),
                "unchanged": primary.state is JobState.UNCHANGED,
            },
        )
        self._save(duplicate)
        self._ask_outbox(
            c.SealResult(duplicate, stage_name, primary.sha256_out or "", copy_from=primary.output)
        )

    def _result_sealed(self, event: e.ResultSealed) -> None:
        job = self._jobs.get(event.job)
        if job is None or event.job not in self._sealing:
            return  # it ended meanwhile, and its stage was discarded then
        sealed = replace(job, output=event.output, sha256_out=event.sha256_out)
        if job.state is not JobState.PUBLISHING:
            cause = Cause.COPIED if job.state is JobState.WAITING else Cause.STAGED
            sealed = self._change(sealed, cause)
        else:  # its first name was taken
            self._save(sealed)
        self._out.append(c.PublishResult(sealed))

    def _source_changed(self, event: e.SourceChanged, now: e.Instant) -> None:
        job = self._leave_outbox(event.job)
        if job is not None:
            self._doubt_files(job, now)
            self._end(job, Cause.BYTES_CHANGED, now, reason=event.what)

    def _stage_lost(self, event: e.StageLost, now: e.Instant) -> None:
        job = self._leave_outbox(event.job)
        if job is None:
            return
        self._log("warning", "publish.stage_lost", job=job.id, source=job.source, reason=event.reason)
        again = replace(job, stage_name=None, output=None, sha256_out=None, record=None, duplicate_of=None)
        if job.state is JobState.PUBLISHING:
            self._look_again(self._change(_lost_so_far(again, now), Cause.STAGE_LOST))
        elif job.state is JobState.RUNNING:
            self._pause_dispatch(now)
            self._release(again, now)
        else:  # there is nothing to copy: it is served itself
            self._save(again)
            self._intake.touch(job.source)

    def _name_taken(self, event: e.NameTaken) -> None:
        job = self._jobs.get(event.job)
        if job is not None and job.state is JobState.PUBLISHING and job.id in self._sealing:
            self._seal(job)

    def _result_published(self, event: e.ResultPublished, now: e.Instant) -> None:
        was_blocked = bool(self._blocked)
        job = self._leave_outbox(event.job)
        if job is None:
            return
        self._space_failures = 0
        if not self._outbox_works:
            self._outbox_works = True
            self._dispatch_blocked_until_ns = 0
        if was_blocked and not self._blocked:
            self._log("info", "publish.resumed", job=job.id)
        unchanged = bool(job.record and job.record.get("unchanged"))
        cause = Cause.PUBLISHED_UNCHANGED if unchanged else Cause.PUBLISHED
        self._end(replace(job, output=event.output), cause, now, ended_ns=event.published_ns)

    def _publish_blocked(self, event: e.PublishBlocked, now: e.Instant) -> None:
        job = self._jobs.get(event.job)
        if job is None or job.id not in self._sealing:
            return
        if not self._blocked:
            self._log("error", "publish.blocked", job=job.id, source=job.source, reason=event.reason)
        if job.id not in self._blocked:
            self._outbox_works = False
        self._blocked[job.id] = event.reason
        if self._draining is not None:
            # It stays as the journal has it: the next start finishes it.
            self._sealing.pop(job.id, None)
            return
        self._refused[job.id] = None
        if self._publish_again_ns is None:
            self._publish_again_ns = now.mono_ns + self._publish_patience_ns(self._publish_failures)
            self._publish_failures += 1
        if not self._outbox_works:
            self._dispatch_blocked_until_ns = self._publish_again_ns

    def _publish_again(self) -> None:
        self._publish_again_ns = None
        refused = tuple(self._refused)
        self._refused.clear()
        for job_id in refused:
            job = self._jobs.get(job_id)
            asked = self._sealing.get(job_id)
            if job is None:
                continue
            if job.state is JobState.PUBLISHING:
                self._out.append(c.PublishResult(job, rescue=True))
            elif asked is not None:
                self._out.append(replace(asked, job=job))

    def _leave_outbox(self, job_id: str) -> Job | None:
        """The outbox has done with this job, one way or the other."""
        self._sealing.pop(job_id, None)
        self._refused.pop(job_id, None)
        if self._blocked.pop(job_id, None) is not None and not self._blocked:
            self._publish_failures = 0
            self._publish_again_ns = None
            self._outbox_works = True
            self._dispatch_blocked_until_ns = 0
        return self._jobs.get(job_id)

    # --- the two ways in which a job changes ---------------------------------------------------------------

    def _change(self, job: Job, cause: Cause) -> Job:
        """Move a job that stays active, and save it."""
        moved = job.moved(cause)
        self._save(moved)
        return moved

    def _save(self, job: Job) -> None:
        self._jobs.put(job)
        self._out.append(c.SaveJob(job))

    def _end(
        self,
        job: Job,
        cause: Cause,
        now: e.Instant,
        *,
        reason: str | None = None,
        remedy: str | None = None,
        ended_ns: int | None = None,
    ) -> None:
        """Move a job to a final state: record, journal, timing line, notes, what follows."""
        ended = replace(job.moved(cause), reason=reason or job.reason)
        drafted = ended.record
        if drafted is not None:
            drafted = {key: value for key, value in drafted.items() if key != "unchanged"}
        made = records.finish(ended, drafted, self._policy, now, ended_ns or now.mono_ns)
        if remedy is not None:
            made = {**made, "remedy": remedy}
        ended = replace(ended, record=made)
        self._leave_outbox(job.id)
        self._jobs.remove(job.id)
        self._incomplete_until_ns.pop(job.id, None)
        self._engine_faults.pop(job.id, None)
        refused = ended.state in {JobState.FAILED, JobState.QUARANTINED}
        if not refused:  # before the job is final: what a crash leaves undone then is done again
            self._out.append(c.RemoveNote(job.source))
        self._out.append(c.FinishJob(ended))
        self._finished[ended.state.value] = self._finished.get(ended.state.value, 0) + 1
        self._last_finished = made
        self._tell_end(ended, made, remedy)
        self._after_end(ended, remedy, now)

    def _fail(self, job: Job, reason: str, remedy: str, now: e.Instant) -> None:
        self._end(job, Cause.REFUSED, now, reason=reason, remedy=remedy)

    def _tell_end(self, job: Job, made: JsonObject, remedy: str | None) -> None:
        if job.state in {JobState.FAILED, JobState.QUARANTINED}:
            self._log(
                "warning",
                f"job.{job.state.value}",
                job=job.id,
                source=job.source,
                reason=job.reason,
                remedy=remedy,
            )
            return
        self._log(
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

    def _after_end(self, job: Job, remedy: str | None, now: e.Instant) -> None:
        if job.state not in _RESULTS and job.stage_name is not None:
            self._out.append(c.DiscardStage(job.stage_name))
        if job.state in {JobState.FAILED, JobState.QUARANTINED}:
            self._out.append(c.WriteNote("failed", job.source, _failed_note(job, remedy)))
        job = self._release_duplicates(job, now)
        if job.state in _RESULTS and self._policy.after != "keep":
            self._out.append(c.ApplyAfter(job))
        self._look_again(job)

    def _release_duplicates(self, job: Job, now: e.Instant) -> Job:
        """The job that others wait for has ended, or is held. Returns it, maybe with their path."""
        for duplicate in self._jobs.duplicates(job.id):
            if not self._is_untouched(duplicate) or duplicate.state is not JobState.WAITING:
                continue
            if job.state in {JobState.FAILED, JobState.QUARANTINED}:
                self._end_like(job, duplicate, now)
            elif job.state not in _RESULTS:
                self._stand_alone(duplicate)
            elif self._intake.facts(duplicate.source) is None:
                continue  # its end is not known here: `_confirm` asks the journal when its picture is known
            elif self._intake.may_hold(job.source, job.identity.picture_sha256):
                self._copy(job, duplicate, now)
            else:
                reason = f"its picture was renamed while job {job.id} served it: see {job.output}"
                self._end(duplicate, Cause.BYTES_CHANGED, now, reason=reason)
                job = replace(job, source=duplicate.source)
                self._out.append(c.SaveJob(job))
        return job

    def _end_like(self, answer: Job, duplicate: Job, now: e.Instant) -> None:
        """The same bytes were refused, or poison: they are not tried at another path either."""
        cause = Cause.REFUSED if answer.state is JobState.FAILED else Cause.POISONED
        duplicate = replace(duplicate, created_s=duplicate.created_s or now.wall_s)
        remedy = f"these are the bytes of job {answer.id}; to try them again: watcher retry {duplicate.id}"
        self._end(duplicate, cause, now, reason=answer.reason, remedy=remedy)

    def _stand_alone(self, duplicate: Job) -> None:
        """There is no result to wait for: it is looked at for itself."""
        self._save(replace(duplicate, duplicate_of=None))
        self._intake.touch(duplicate.source)

    def _look_again(self, job: Job) -> None:
        """Resolve the picture once more, unless it needs nothing."""
        facts = self._intake.facts(job.source)
        if job.state in _ANSWERED and self._intake.is_present(job.source):
            self._note_served(job, facts)
            if facts is not None and _identity(facts) == job.identity:
                return
        self._intake.touch(job.source)

    # --- details -------------------------------------------------------------------------------------------

    def _write_held_note(self, job: Job) -> None:
        self._out.append(c.WriteNote("held", job.source, self._held_note(job)))

    def _held_note(self, job: Job) -> JsonObject:
        certain, *others = mask_names(job.source)
        recipe = self._recipes.named(job.identity.recipe)
        marks: list[JsonValue] = list(recipe.marks) if recipe is not None else []
        return {
            "schema": 1,
            "job": job.id,
            **records.path_fields("source", job.source),
            "state": "held",
            "reason": "nothing is marked in this picture, so nothing was removed",
            "how_to_mark": (
                f"put a mask beside it: {records.printable(certain)}, the size of the picture, white where "
                "something is to go and black elsewhere; it is served as soon as the mask is there"
            ),
            "mask_names": [records.printable(name) for name in (certain, *others)],
            "marks_looked_for": marks,
        }

    def _do(self, commands: list[c.Command]) -> None:
        self._out.extend(commands)

    def _log(self, level: c.LogLevel, event: str, **fields: JsonValue) -> None:
        self._out.append(c.Log(level, event, fields))


def _failed_note(job: Job, remedy: JsonValue) -> JsonObject:
    return {
        "schema": 1,
        "job": job.id,
        **records.path_fields("source", job.source),
        "state": job.state.value,
        "reason": job.reason,
        "remedy": remedy,
        "try_again": f"watcher retry {job.id}",
    }


def _retry_remedy(job: Job) -> str:
    if job.state in _RESULTS:
        return f"to do it again: watcher retry {job.id}"
    return f"change the file, or: watcher retry {job.id}"


def _lost_so_far(job: Job, now: e.Instant) -> Job:
    """What passed since the job's dispatch was lost; it waits from now on."""
    clock = job.clock
    if clock is None or not clock.dispatched_ns:
        return job
    lost_ns = clock.lost_ns + now.mono_ns - clock.dispatched_ns
    return replace(job, clock=replace(clock, lost_ns=lost_ns, ready_ns=now.mono_ns))


def _hashed_ns(facts: PictureFacts) -> tuple[int, int]:
    return facts.picture.hashed_ns, facts.mask.hashed_ns if facts.mask is not None else 0


def _differs_by_lack_of_mask(identity: Identity, other: Identity) -> bool:
    """The same picture and recipe, this time without the mask that the other had."""
    has_lost_it = identity.mask_sha256 is None and other.mask_sha256 is not None
    return has_lost_it and replace(identity, mask_sha256=other.mask_sha256) == other


def _clock(facts: PictureFacts, now: e.Instant) -> JobClock:
    last = facts.last
    return JobClock(last.observed_ns, last.settled_ns, last.hashed_ns, ready_ns=now.mono_ns)


def _identity(facts: PictureFacts) -> Identity:
    return Identity(facts.picture_sha256, facts.mask_sha256, facts.recipe.name)


def _with_files(job: Job, facts: PictureFacts) -> Job:
    return replace(
        job,
        fingerprint=facts.picture.fingerprint,
        mask=facts.mask_path,
        mask_fingerprint=facts.mask.fingerprint if facts.mask is not None else None,
    )


def _ready_fields(event: e.WorkerReady) -> dict[str, JsonValue]:
    """The fields of a `worker.ready` line: a start is a record of its own."""
    return {
        "path": event.origin.path,
        "incarnation": event.origin.incarnation,
        "pid": event.origin.pid,
        "engine": event.engine,
        "device": event.device,
        "segments_ms": {name: round(ns / 1e6, 3) for name, ns in event.segments_ns.items()},
        "rss_bytes": event.rss_bytes,
        "model_loads": event.model_loads,
    }
