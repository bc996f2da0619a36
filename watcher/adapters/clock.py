"""The one place where the service reads a clock."""

from __future__ import annotations

import time

from watcher.core.events import Instant


class SystemClock:
    """Implements `watcher.ports.Clock`.

    The monotonic clock is the system's, shared by all processes of one machine since its boot, so that a
    worker's instants may be compared with the service's.
    """

    def now(self) -> Instant:
        """Monotonic and wall time, read together."""
        return Instant(mono_ns=time.monotonic_ns(), wall_s=time.time())

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)
