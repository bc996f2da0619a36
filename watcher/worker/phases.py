"""One clock for one item: every nanosecond from its start to its report belongs to exactly one phase.

Rule: phases are entered, never nested or stopped, so the segments tile the item's time by construction.
"""

from __future__ import annotations

import time

from watcher.wire import ItemTimes, Phase, WorkSegments


class PhaseClock:
    """A lap timer over the phases of an item; it starts in `read`.

    Attributes:
        started_ns: monotonic instant of the start.
        phase: the phase that time is counted for now.
    """

    def __init__(self) -> None:
        self.started_ns = time.monotonic_ns()
        self.phase: Phase = "read"
        self._lap_ns = self.started_ns
        self._spent: dict[Phase, int] = {}

    @property
    def lap_ns(self) -> int:
        """How long the present phase, or its present crop, has gone on."""
        return time.monotonic_ns() - self._lap_ns

    def enter(self, phase: Phase) -> int:
        """Count the time since the last call for the phase that ends; go on in `phase`. Returns that time."""
        now = time.monotonic_ns()
        lap_ns = now - self._lap_ns
        self._spent[self.phase] = self._spent.get(self.phase, 0) + lap_ns
        self._lap_ns = now
        self.phase = phase
        return lap_ns

    def finish(self, batch_received_ns: int) -> tuple[WorkSegments, ItemTimes]:
        """Close the last phase and return the item's segments and instants."""
        self.enter(self.phase)
        segments = WorkSegments(**{f"{phase}_ns": spent for phase, spent in self._spent.items()})
        return segments, ItemTimes(
            batch_received_ns=batch_received_ns, started_ns=self.started_ns, finished_ns=self._lap_ns
        )
