"""Pictures that an earlier life of the service knew: what is still to be asked or said about them, in time.

Rules of this file:
- A start before a hundred thousand served pictures asks the journal, and one before as many held ones sees to
  their notes, a few at a time: what arrives meanwhile is not held up, and no queue fills.
- What is news goes past this line; a picture that is news by the time its turn comes has been seen to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watcher.core.settle import NS_PER_S

if TYPE_CHECKING:
    from watcher.core.events import Instant

AT_A_TIME: Final = 32
PAUSE_NS: Final = NS_PER_S // 100
"""32 every 10 ms: 3,200 a second, at some 100 us each a third of the loop's time while it lasts."""


class Restored:
    """The line of paths that can wait."""

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._next_ns = 0

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str) -> None:
        """See to this picture when there is time."""
        self._paths[path] = None

    def due_ns(self) -> int | None:
        """When the next few have their turn."""
        return self._next_ns if self._paths else None

    def take_due(self, now: Instant) -> list[str]:
        """The few whose turn it is."""
        if not self._paths or now.mono_ns < self._next_ns:
            return []
        self._next_ns = now.mono_ns + PAUSE_NS
        taken = [path for path, _ in zip(self._paths, range(AT_A_TIME), strict=False)]
        for path in taken:
            del self._paths[path]
        return taken
