"""What workers say about the work that they were given.

Rules of this file:
- Reports of flights that are not in the air are stale and change nothing.
- Every job of a batch is reported on once; one that the worker forgot is treated as an engine error.
- An engine error is worth another try, alone; a restart of the service forgets the count.
- Full staging is nobody's fault: that was not an attempt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from watcher.core import events as e
from watcher.core import record as records
from watcher.core.pace import TURN
from watcher.core.settle import NS_PER_S
from watcher.core.supervision import Usage

if TYPE_CHECKING:
    from watcher.core.backpressure import Backpressure
    from watcher.core.flights import Flight
    from watcher.core.growing import GrowingFiles
    from watcher.core.job import Job, JsonObject, JsonValue
    from watcher.core.lanes import Lanes
    from watcher.core.ledger import Ledger
    from watcher.core.policy import Policy
    from watcher.core.publication import Publication
    from watcher.core.returns import Returns

_NO_SPACE_NOTICE_S: Final = 60.0
"""A full disk is told of once in so long a time."""


class Reports:
    """Lands the jobs of flights that are in the air."""

    def __init__(
        self,
        policy: Policy,
        lanes: Lanes,
        ledger: Ledger,
        publication: Publication,
        returns: Returns,
        growing: GrowingFiles,
        backpressure: Backpressure,
    ) -> None:
        self._policy = policy
        self._lanes = lanes
        self._ledger = ledger
        self._publication = publication
        self._returns = returns
        self._growing = growing
        self._backpressure = backpressure
        self._engine_faults: Counter[str] = Counter()
        self._space_told_ns: int | None = None
        self._replacements_told: set[str] = set()
        """Devices that run in the place of the configured one, as the log has said. There are few."""

    def forget(self, job_id: str) -> None:
        """The job has ended: its engine errors count no more."""
        self._engine_faults.pop(job_id, None)

    # --- a process -----------------------------------------------------------------------------------------

    def worker_ready(self, event: e.WorkerReady, now: e.Instant) -> None:
        """A process has warmed its model and passed its self-test."""
        supervisor = self._lanes.supervisor
        fields = _ready_fields(event)
        self._lanes.used_memory(event.rss_bytes, starts=event.origin.path == "hot")
        if event.origin.path == "hot" and supervisor.is_current(event.origin.incarnation):
            usage = Usage(event.rss_bytes, event.open_files)
            self._ledger.emit(*supervisor.became_ready(usage, now.mono_ns))
            self._note_start(event, supervisor.started_ns)
            self._lanes.worker_ready = event
            self._lanes.trouble = None
            self._ledger.log("info", "worker.ready", **fields)
            self._tell_replaced_device(event)
            return
        flight = self._lanes.flights.get(event.origin.incarnation)
        if flight is not None and flight.path == "cold":
            self._note_start(event, flight.sent_ns)
            self._lanes.flights.is_ready(flight, event, now.mono_ns)
            self._ledger.log("debug", "worker.ready", **fields)
            if flight.device is None:  # else the CPU is what it was told to use
                self._tell_replaced_device(event)

    def _note_start(self, event: e.WorkerReady, started_ns: int) -> None:
        """What the start took, and what the golden picture did: estimates go by both."""
        seconds = (event.ready_ns - started_ns) / NS_PER_S
        self._lanes.flights.cold_time.note_start(seconds, cold=event.origin.path == "cold")
        if event.golden_px and event.golden_ns:
            self._lanes.flights.pace.note("inference", event.golden_px, event.golden_ns / NS_PER_S)

    def worker_warming(self, event: e.WorkerWarming) -> None:
        """A process has loaded its model."""
        if event.origin.path == "hot" and self._lanes.supervisor.is_current(event.origin.incarnation):
            self._lanes.supervisor.loaded()

    def worker_ponged(self, event: e.WorkerPonged, now: e.Instant) -> None:
        """The resident worker's thread is free."""
        if self._lanes.supervisor.is_current(event.origin.incarnation):
            self._lanes.supervisor.ponged(event.number, now.mono_ns)

    def _tell_replaced_device(self, event: e.WorkerReady) -> None:
        """A person named a device, and another one runs: told once in the life of the service.

        Every record tells it, and the status; again here only if another device takes its place.
        """
        configured, actual = str(event.device.get("configured")), str(event.device.get("actual"))
        if not records.is_what_was_asked(configured, actual) and actual not in self._replacements_told:
            self._replacements_told.add(actual)
            reason = event.device.get("reason")
            self._ledger.log(
                "warning", "device.replaced", configured=configured, actual=actual, reason=reason
            )

    def progressed(self, event: e.BatchStarted | e.ItemStarted | e.ItemProgressed, now: e.Instant) -> None:
        """A process works on its batch."""
        flight = self._lanes.flights.of(event.origin, event.batch)
        if flight is None:
            return
        flights, at_ns = self._lanes.flights, now.mono_ns
        match event:
            case e.BatchStarted():
                flights.was_read(flight, at_ns)
            case e.ItemStarted():
                flights.began(flight, event.job, at_ns)
            case e.ItemProgressed():
                if (
                    event.phase != event.next_phase or event.phase == "inference"
                ):  # else it was announced only
                    flights.spent(flight, event.phase, event.spent_ns / NS_PER_S)
                phase = event.next_phase or flight.phase
                flights.progressed(flight, phase, event.units, at_ns, event.format)
        if flight.path == "cold":
            self._lanes.cold_started()
        self._lanes.hot_is_heard()

    def batch_done(self, event: e.BatchDone, now: e.Instant) -> None:
        """A process has reported on all of its batch, as it thinks."""
        flight = self._lanes.flights.of(event.origin, event.batch)
        if flight is None:
            return
        self._lanes.flights.progressed(flight, TURN, 0, now.mono_ns)
        self._lanes.used_memory(event.rss_bytes)
        flight.in_progress = None
        left = self._ledger.jobs.among(flight.jobs)
        has_worked = flight.begun_ns > 0  # else it would be asked again for ever
        flight.jobs.clear()
        for job in left:
            if job.id in event.given_back and has_worked:
                company_ns = now.mono_ns - flight.read_ns if flight.started else 0
                self._returns.release(job.unattempted(), now, company_ns)
            else:
                self._forgotten(job, now)
        flight.done = True
        if flight.path == "hot":
            self._lanes.flights.end(flight.incarnation)
            usage = Usage(event.rss_bytes, event.open_files)
            scarce = self._lanes.memory_is_scarce
            ended = self._lanes.supervisor.batch_ended(usage, now.mono_ns, scarce=scarce)
            self._ledger.emit(*ended)

    def _forgotten(self, job: Job, now: e.Instant) -> None:
        reason = "the worker did not report on it"
        if self._is_worth_another_try(job, reason):
            self._returns.release(replace(job, suspect=True), now)
        else:
            remedy = f"that is a fault of watcher; to try it again: watcher retry {job.id}"
            self._ledger.fail(job.lost_so_far(now.mono_ns), reason, remedy, now)

    # --- an item -------------------------------------------------------------------------------------------

    def item_done(self, event: e.ItemDone, now: e.Instant) -> None:
        """The result lies in staging."""
        landed = self._landed(event, now)
        if landed is None:
            return
        job, flight = landed
        drafted = self._draft(job, flight, event)
        job = replace(
            job,
            record={**drafted, "unchanged": event.unchanged},
            sha256_out=event.report.sha256_out,
            reason=event.reason,
            suspect=False,
            solo_faults=0,
        )
        self._ledger.keep(job)
        self._publication.seal(job)

    def item_held(self, event: e.ItemHeld, now: e.Instant) -> None:
        """Nothing is marked in the picture."""
        landed = self._landed(event, now)
        if landed is not None:
            job = replace(landed[0].unattempted(), stage_name=None, suspect=False, solo_faults=0)
            self._ledger.hold(job, event.reason or "nothing is marked in it", now)
            self._returns.found_markless(job)

    def item_incomplete(self, event: e.ItemIncomplete, now: e.Instant) -> None:
        """The file has no end."""
        landed = self._landed(event, now)
        if landed is not None:
            self._growing.found_incomplete(landed[0], event.reason, now)

    def item_failed(self, event: e.ItemFailed, now: e.Instant) -> None:
        """The picture was not served."""
        landed = self._landed(event, now)
        if landed is None:
            return
        job, flight = landed
        company_ns = max(0, event.report.started_ns - event.report.batch_received_ns)
        if event.code == "no_space":
            self._no_space(job, event.reason, now, company_ns)
        elif event.code == "device_memory" and not job.cpu_only and self._policy.cold.enabled:
            self._ledger.log("warning", "job.too_large_for_device", job=job.id, source=job.source)
            self._returns.release(replace(job.unattempted(), cpu_only=True), now, company_ns)
        elif event.code in {"engine", "device_memory"} and self._is_worth_another_try(job, event.reason):
            self._returns.release(replace(job, suspect=True), now, company_ns)
        elif event.code == "changed":
            self._returns.read_other_bytes(job, now, company_ns)
        elif event.code == "vanished":
            self._returns.found_nothing(job, now, company_ns)
        else:
            drafted = self._draft(job, flight, event)
            self._ledger.fail(replace(job, record=drafted), event.reason, event.remedy, now)

    def _landed(
        self, event: e.ItemDone | e.ItemHeld | e.ItemIncomplete | e.ItemFailed, now: e.Instant
    ) -> tuple[Job, Flight] | None:
        """The job and flight of an item's last report, or None if the report is stale."""
        flight = self._lanes.flights.of(event.origin, event.batch)
        job = self._ledger.jobs.get(event.job)
        if flight is None or event.job not in flight.jobs or job is None:
            self._ledger.log("info", "report.stale", job=event.job, incarnation=event.origin.incarnation)
            return None
        report, flights = event.report, self._lanes.flights
        last_ns = report.segments_ns.get(flight.phase)
        # A phase that was broken off says nothing of what it takes.
        if last_ns is not None and isinstance(event, e.ItemDone | e.ItemHeld):
            flights.spent(flight, flight.phase, last_ns / NS_PER_S)
        # What was held, refused or left as it was says nothing of what a fill takes.
        is_filled = isinstance(event, e.ItemDone) and not event.unchanged
        seconds = (report.finished_ns - report.started_ns) / NS_PER_S if is_filled else None
        self._lanes.used_memory(report.rss_bytes)
        flights.landed(flight, event.job, seconds, now.mono_ns)
        if flight.path == "hot":
            self._lanes.supervisor.item_ended()
        self._lanes.hot_is_heard()
        return job, flight

    def _draft(self, job: Job, flight: Flight, event: e.ItemDone | e.ItemFailed) -> JsonObject:
        start_ns, ready_ns = self._lanes.start_segments(flight)
        served = records.Served(
            origin=event.origin,
            path_reason=flight.reason.value,
            first_hot=flight.first_hot_open,
            batch=flight.batch,
            batch_size=flight.size,
            start_ns=start_ns,
            ready_ns=ready_ns,
            cold_estimate_s=flight.estimates_s.get(job.id),
        )
        flight.first_hot_open = False
        drafted = records.draft(job, served, event.report, self._policy)
        if flight.device is None:
            return drafted
        # What was asked of that process is not what the person configured.
        device = cast("JsonObject", drafted["device"])
        reason = "the picture did not fit into the accelerator's memory"
        return {**drafted, "device": {**device, "configured": self._policy.device, "reason": reason}}

    def _is_worth_another_try(self, job: Job, reason: str) -> bool:
        """Count an engine error."""
        self._engine_faults[job.id] += 1
        if self._engine_faults[job.id] >= self._policy.retry.engine_attempts:
            return False
        self._ledger.log("warning", "job.engine_failed", job=job.id, source=job.source, reason=reason)
        return True

    def _no_space(self, job: Job, reason: str, now: e.Instant, company_ns: int) -> None:
        """Staging is full: wait for space; that was not an attempt."""
        told_ns = self._space_told_ns
        if told_ns is None or now.mono_ns - told_ns >= round(_NO_SPACE_NOTICE_S * NS_PER_S):
            self._space_told_ns = now.mono_ns
            self._ledger.log("error", "publish.blocked", job=job.id, source=job.source, reason=reason)
        self._backpressure.staging_failed(now.mono_ns, reason)
        self._returns.release(job.unattempted(), now, company_ns)


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
