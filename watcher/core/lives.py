"""Worker lives: when each process was started, was ready and ended, for whoever asks later where time went.

Rules of this file:
- A life is noted when a worker is ready and when it has ended, as reports say; a start that goes on is not.
- Nothing is decided by it: what cannot be noted is missing from a trace, and nowhere else.
- Instants are of the monotonic clock; each life carries one pair of it and the wall clock, read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from watcher.core import commands as c
from watcher.core.record import unix_us
from watcher.core.timeline import START_SEGMENTS

if TYPE_CHECKING:
    from watcher.core import events as e
    from watcher.core.job import JsonObject
    from watcher.core.lanes import Lanes
    from watcher.core.ledger import Ledger


UNTOLD: Final = "unattributed"
"""What of its start a process itself cannot say where it went."""


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """One process that served, or was to serve.

    Attributes:
        run: which start of the service, as the journal counts them; 0 where nobody counted.
        incarnation: its spawn number, unique within the run.
        path: `hot` or `cold`.
        pid: its process id.
        host: its machine.
        started_ns: when the service had it started.
        ready_ns: when its model was warm; None if it never was.
        exited_ns: when the service saw its end; None while it has not.
        noted_ns: when this was written, on the monotonic clock.
        noted_unix_us: the same instant on the wall clock, in microseconds since 1970.
        facts: `segments_ms` of the start (they add up to `ready_ns - started_ns`), `engine`, `device`,
            `rss_bytes`, `model_loads`, as far as it told them; after its end `exit_code`, `story`, `reason`.
    """

    run: int
    incarnation: int
    path: str
    pid: int
    host: str
    started_ns: int
    ready_ns: int | None
    exited_ns: int | None
    noted_ns: int
    noted_unix_us: int
    facts: JsonObject


@dataclass(slots=True)
class Lives:
    """Notes the lives of the processes that live now."""

    lanes: Lanes
    ledger: Ledger
    _living: dict[int, WorkerLife] = field(default_factory=dict)

    def became_ready(self, event: e.WorkerReady, now: e.Instant) -> None:
        """A process is ready. A resident worker's life is written now, a one-shot's at its end."""
        started_ns = self._started_ns(event.origin)
        if started_ns is None:
            return  # a stale report
        told_ms = {name: round(event.segments_ns.get(name, 0) / 1e6, 3) for name in (*START_SEGMENTS, UNTOLD)}
        # As in a job's own chain: what lies before the process's first instant belongs to its start.
        untold_ns = max(0, event.ready_ns - started_ns - sum(event.segments_ns.values()))
        told_ms["process_start"] = round(told_ms["process_start"] + untold_ns / 1e6, 3)
        life = replace(
            self._life(event.origin, started_ns, now),
            ready_ns=event.ready_ns,
            facts={
                "segments_ms": told_ms,
                "engine": event.engine,
                "device": event.device,
                "rss_bytes": event.rss_bytes,
                "model_loads": event.model_loads,
            },
        )
        self._living[event.origin.incarnation] = life
        if event.origin.path == "hot":
            self.ledger.emit(c.SaveWorkerLife(life))

    def exited(self, event: e.WorkerExited, now: e.Instant) -> None:
        """A process was reaped. To be told before its flight is ended."""
        life = self._living.pop(event.origin.incarnation, None)
        if life is None:
            started_ns = self._started_ns(event.origin)
            if started_ns is None:
                return
            life = self._life(event.origin, started_ns, now)
        end: JsonObject = {"exit_code": event.exit_code, "story": event.story, "reason": event.reason}
        ended = replace(
            life,
            exited_ns=now.mono_ns,
            noted_ns=now.mono_ns,
            noted_unix_us=unix_us(now, now.mono_ns),
            facts={**life.facts, **end},
        )
        self.ledger.emit(c.SaveWorkerLife(ended))

    def _started_ns(self, origin: e.Origin) -> int | None:
        if origin.path == "hot":
            supervisor = self.lanes.supervisor
            return supervisor.started_ns if supervisor.is_current(origin.incarnation) else None
        flight = self.lanes.flights.get(origin.incarnation)
        return flight.sent_ns if flight is not None else None

    def _life(self, origin: e.Origin, started_ns: int, now: e.Instant) -> WorkerLife:
        return WorkerLife(
            run=self.ledger.run,
            incarnation=origin.incarnation,
            path=origin.path,
            pid=origin.pid,
            host=origin.host,
            started_ns=started_ns,
            ready_ns=None,
            exited_ns=None,
            noted_ns=now.mono_ns,
            noted_unix_us=unix_us(now, now.mono_ns),
            facts={},
        )
