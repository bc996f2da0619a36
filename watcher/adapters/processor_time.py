"""Whether a silent process is alive: how long it computed, or was ready to and had no processor.

Rules of this file:
- Read from the kernel's scheduler (`/proc/PID/task/*/schedstat`: nanoseconds on a processor, and in the run
  queue). Where it does not tell, the answer is that nothing was seen, never a guess.
- What a process has others do for it is its own work: the threads that it started since, and its children.
  What a child did that has ended since is not seen.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROOT: Final = Path("/")
_MOST_PROCESSES: Final = 16
"""A worker has one child at a time, if any."""


def busy_ns(pid: int, root: Path = _ROOT) -> dict[str, int]:
    """By thread, of a process and its children: how long it has computed or wanted to.

    Empty where the system does not tell.
    """
    times: dict[str, int] = {}
    pending = [str(pid)]
    for _ in range(_MOST_PROCESSES):
        if not pending:
            break
        for thread in _threads(root / "proc" / pending.pop()):
            with suppress(OSError, ValueError, IndexError):  # this thread has ended meanwhile
                computed, queued = (thread / "schedstat").read_bytes().split()[:2]
                times[thread.name] = int(computed) + int(queued)
            with suppress(OSError):  # a kernel that does not list children
                pending += (thread / "children").read_text("ascii").split()
    return times


def _threads(process: Path) -> Iterator[Path]:
    with suppress(OSError):  # it has died
        yield from (process / "task").iterdir()


def spent_ns(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How long all threads together were busy between two looks: where they are many, more than went by."""
    return sum(max(0, busy - before.get(thread, 0)) for thread, busy in after.items())
