"""Whether a silent process is alive: how long it computed, or was ready to and had no processor.

Rules of this file:
- Read from the kernel's scheduler (`/proc/PID/task/*/schedstat`: nanoseconds on a processor, and in the run
  queue). Where it does not tell, the answer is that nothing was seen, never a guess.
- A process is as busy as the busiest of its threads: the others may have had nothing to do.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT: Final = Path("/")


def busy_ns(pid: int, root: Path = _ROOT) -> dict[str, int]:
    """By thread: how long it has computed or wanted to. Empty where the system does not tell."""
    times: dict[str, int] = {}
    with suppress(OSError):  # it has died
        for thread in (root / "proc" / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):  # this thread has ended meanwhile
                computed, queued = (thread / "schedstat").read_bytes().split()[:2]
                times[thread.name] = int(computed) + int(queued)
    return times


def busiest_ns(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How long the busiest thread was busy between two looks."""
    return max((after[thread] - busy for thread, busy in before.items() if thread in after), default=0)
