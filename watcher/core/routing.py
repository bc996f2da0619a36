"""Hot path or cold path, and why.

Rules of this file:
- The hot path serves whenever it can serve sooner: a job never goes cold because a healthy worker is busy.
- After a fault (crash, stall, open breaker) the cold path serves until a worker has said that it is ready.
- A worker that starts without a fault behind it is waited for, but no longer than a cold job would take.
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
        cold_estimate_s: what a cold job took, or is taken to take.
        suspect: the job was being served when a process died.
        once: there is no resident worker by design.
    """

    worker: WorkerState
    fault: Literal["crashed", "stalled"] | None
    waited_s: float
    cold_estimate_s: float
    suspect: bool
    once: bool


def route(situation: Situation, policy: ColdPolicy) -> Route:
    """Choose the path of one job."""
    if situation.once:
        return Route("cold", PathReason.SUSPECT if situation.suspect else PathReason.ONCE)
    if not policy.enabled:
        return _hot_if_ready(situation)
    if situation.suspect:
        return Route("cold", PathReason.SUSPECT)
    return _cold_rule(situation) or _hot_if_ready(situation)


def _hot_if_ready(situation: Situation) -> Route:
    return Route("hot", PathReason.READY) if situation.worker is WorkerState.READY else _WAIT


def _cold_rule(situation: Situation) -> Route | None:
    match situation.worker:
        case WorkerState.OPEN | WorkerState.HALF_OPEN:
            return Route("cold", PathReason.BREAKER_OPEN)
        case WorkerState.DISABLED:
            return Route("cold", PathReason.DISABLED)
        case WorkerState.BACKOFF | WorkerState.KILLING | WorkerState.STARTING if situation.fault:
            return Route("cold", PathReason(situation.fault))
        case WorkerState.STARTING | WorkerState.STOPPED | WorkerState.DRAINING:
            late = situation.waited_s > situation.cold_estimate_s
            return Route("cold", PathReason.STARTING) if late else None
        case _:
            return None
