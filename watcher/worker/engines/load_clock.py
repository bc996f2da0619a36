"""Measures the parts of `Engine.load`, also those of a load that failed halfway."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from watcher.worker.engines.protocol import LoadSegments

if TYPE_CHECKING:
    from collections.abc import Iterator

LoadPart = Literal["import_ns", "device_probe_ns", "model_read_ns", "model_load_ns"]


class LoadClock:
    """Adds up monotonic time by part."""

    def __init__(self) -> None:
        self._spent_ns: dict[LoadPart, int] = {}

    @contextmanager
    def measure(self, part: LoadPart) -> Iterator[None]:
        """Count the time inside the block to `part`, whether it ends well or not."""
        started_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self._spent_ns[part] = self._spent_ns.get(part, 0) + time.monotonic_ns() - started_ns

    def segments(self) -> LoadSegments:
        """Return what was spent so far."""
        return LoadSegments(**self._spent_ns)


def added(first: LoadSegments, second: LoadSegments) -> LoadSegments:
    """Return the sum of two loads that followed each other, part by part."""
    return LoadSegments(
        import_ns=first.import_ns + second.import_ns,
        device_probe_ns=first.device_probe_ns + second.device_probe_ns,
        model_read_ns=first.model_read_ns + second.model_read_ns,
        model_load_ns=first.model_load_ns + second.model_load_ns,
    )
