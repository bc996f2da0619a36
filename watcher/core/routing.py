"""Hot path or cold path, and why.

Rules of this file:
- The hot path serves whenever it can serve sooner. A healthy worker that is busy is waited for, unless that
  wait alone exceeds a cold job, and memory for a second model is free.
- After a fault (crash, stall, open breaker) the cold path serves until a worker has said that it is ready.
- A worker that starts without a fault behind it is waited for, but no longer than a cold job would take.
- A suspect never goes to the resident worker while there is a cold path that works.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from watcher.core.supervision import WorkerState

if TYPE_CHECKING:
    from watcher.core.policy import ColdPolicy


class PathReason(StrEnum):
    """Why a job took its path: the record's `path_reason`."""

    READY = "ready"
    STARTING = "starting"
    CRASHED = "crashed"
    STALLED = "stalled"
    BREAKER_OPEN = "breaker_open"
    DISABLED = "disabled"
    SUSPECT = "suspect"
    QUEUE_TOO_LONG = "queue_too_long"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class Route:
    """`hot` and `cold` mean now; `wait` means that the hot path will serve it."""

    path: Literal["hot", "cold", "wait"]
    reason: PathReason


_WAIT = Route("wait", PathReason.READY)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a routing decision looks at.

    Attributes:
        worker: state of the resident worker.
        fault: what it ended by since it was last ready, if anything.
        waited_s: how long the job has been ready.
        ready_in_s: how long it will take until the resident worker is ready (0: it is; inf: nobody knows).
        hot_wait_s: how long the resident worker is busy yet with what it has.
        cold_s: what a cold job of this size takes, with all that runs beside it.
        memory_is_free: a second model would fit.
        cold_works: one-shots can start, as far as is known.
        suspect: the job was being served when a process died.
        once: there is no resident worker by design.
    """

    worker: WorkerState
    fault: Literal["crashed", "stalled"] | None = None
    waited_s: float = 0.0
    ready_in_s: float = 0.0
    hot_wait_s: float = 0.0
    cold_s: float = 10.0
    memory_is_free: bool = False
    cold_works: bool = True
    suspect: bool = False
    once: bool = False


def route(situation: Situation, policy: ColdPolicy) -> Route:
    """Choose the path of one job."""
    if situation.once:
        return Route("cold", PathReason.SUSPECT if situation.suspect else PathReason.ONCE)
    if not policy.enabled or (not situation.cold_works and situation.worker is WorkerState.READY):
        return _hot_if_ready(situation)
    if situation.suspect:
        return Route("cold", PathReason.SUSPECT)
    return _cold_rule(situation) or _hot_if_ready(situation)


def _hot_if_ready(situation: Situation) -> Route:
    return Route("hot", PathReason.READY) if situation.worker is WorkerState.READY else _WAIT


def _cold_rule(situation: Situation) -> Route | None:  # noqa: PLR0911 - one flat table of states
    match situation.worker:
        case WorkerState.OPEN | WorkerState.HALF_OPEN:
            return Route("cold", PathReason.BREAKER_OPEN)
        case WorkerState.DISABLED:
            return Route("cold", PathReason.DISABLED)
        case WorkerState.BACKOFF | WorkerState.KILLING if situation.fault:
            return Route("cold", PathReason(situation.fault))
        case WorkerState.STARTING | WorkerState.WARMING if situation.fault:
            return Route("cold", PathReason(situation.fault))
        case WorkerState.STARTING | WorkerState.WARMING | WorkerState.STOPPED | WorkerState.DRAINING:
            late = max(situation.waited_s, situation.ready_in_s) > situation.cold_s
            return Route("cold", PathReason.STARTING) if late else None
        case WorkerState.BUSY if situation.memory_is_free and situation.hot_wait_s > situation.cold_s:
            return Route("cold", PathReason.QUEUE_TOO_LONG)
        case _:
            return None
