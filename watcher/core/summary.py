"""One line in a while about what was done: for the log of a service that nobody looks at.

Rules of this file:
- Silent where nothing happened. The time that a line is about begins with the first thing that happens after
  the line before it, so that a quiet service wakes up for nothing.
- What is counted is bounded: of the times, the newest `MAX_TIMES`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from watcher.core.job import FINAL_STATES, JobState
from watcher.core.settle import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from watcher.core.job import Job, JsonValue

MAX_TIMES: Final = 4096
"""The percentiles are of so many pictures at most, the newest: 130 kB."""
_OUTCOMES: Final = tuple(state for state in JobState if state in FINAL_STATES)


@dataclass(slots=True)
class Summary:
    """Counts until a line is due.

    Args:
        interval_s: how long it counts before it tells; None: it never tells.
    """

    interval_s: float | None
    _since_ns: int | None = None
    _outcomes: Counter[JobState] = field(default_factory=Counter)
    _paths: Counter[str] = field(default_factory=Counter)
    _held: int = 0
    _times_ms: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))
    _restarts: int = 0
    """Of the service's life, as far as they are counted."""
    _restarts_told: int = 0

    def ended(self, job: Job, now_ns: int) -> None:
        """A job has ended, with its record."""
        self._begin(now_ns)
        self._outcomes[job.state] += 1
        path = job.record.get("path") if job.record is not None else None
        total_ms = job.record.get("total_ms") if job.record is not None else None
        if path in {"hot", "cold"}:
            self._paths[str(path)] += 1
            if job.has_result and isinstance(total_ms, int | float):
                self._times_ms.append(float(total_ms))

    def held(self, now_ns: int) -> None:
        """A job waits for a mark from now on."""
        self._begin(now_ns)
        self._held += 1

    def restarted(self, restarts: int, now_ns: int) -> None:
        """So many workers ended unwanted in the life of the service, until now."""
        if restarts > self._restarts:
            self._begin(now_ns)
            self._restarts = restarts

    def due_ns(self) -> int | None:
        """When the next line is due, if there will be one."""
        if self._since_ns is None or self.interval_s is None:
            return None
        return self._since_ns + round(self.interval_s * NS_PER_S)

    def take(self, now_ns: int) -> dict[str, JsonValue] | None:
        """The fields of a line about all that was counted, and begin anew; None where nothing was."""
        if self._since_ns is None or self.interval_s is None:
            return None
        times_ms = sorted(self._times_ms)
        fields: dict[str, JsonValue] = {
            "over_s": round((now_ns - self._since_ns) / NS_PER_S, 1),
            **{state.value: self._outcomes[state] for state in _OUTCOMES},
            "held": self._held,
            "hot": self._paths["hot"],
            "cold": self._paths["cold"],
            "p50_ms": percentile(times_ms, 50) if times_ms else None,
            "p95_ms": percentile(times_ms, 95) if times_ms else None,
            "restarts": self._restarts - self._restarts_told,
        }
        self._outcomes.clear()
        self._paths.clear()
        self._times_ms.clear()
        self._held = 0
        self._restarts_told = self._restarts
        self._since_ns = None
        return fields

    def _begin(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The least of some values in order that so many percent of them do not exceed (nearest rank)."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
