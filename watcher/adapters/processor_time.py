"""How long a process was ready to run and had no processor.

Rules of this file:
- Read from the kernel's scheduler (`/proc/PID/task/*/schedstat`, the second number: nanoseconds of waiting in
  the run queue). Where it does not tell, the answer is that nothing was seen, never a guess.
- A process waits as long as that of its threads which waited longest: the others may have had nothing to do.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT: Final = Path("/")


def queued_ns(pid: int, root: Path = _ROOT) -> dict[str, int]:
    """By thread: how long it has waited for a processor in all. Empty where the system does not tell."""
    waits: dict[str, int] = {}
    with suppress(OSError):  # it has died
        for thread in (root / "proc" / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):  # this thread has ended meanwhile
                waits[thread.name] = int((thread / "schedstat").read_bytes().split()[1])
    return waits


def denied_ns(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How long the thread that waited longest between two looks was denied a processor."""
    return max((after[thread] - waited for thread, waited in before.items() if thread in after), default=0)
