"""How much memory is left, what a process takes of it, and how many the kernel killed for want of it.

Rules of this file:
- Everything is read from the kernel's files (`/proc`, the control groups): no library, and a fraction of a
  millisecond a look. Where these files do not exist (macOS), the answer is None, never a guess.
- A limit of a control group counts like the machine's own: whoever goes over it is killed or slowed down,
  however much is free elsewhere. So the groups that hold ours count too.
- A worker lives in the service's own group: processes are not moved after their start.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path("/")
_READ_BYTES: Final = 65536
"""More than any of these files holds."""
_NO_LIMIT_BYTES: Final = 1 << 60
"""Version 1 writes "no limit" as a number like this or higher."""
_AVAILABLE_KB: Final = re.compile(rb"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_OOM_KILLS: Final = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_STATE: Final = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_RESIDENT_KB: Final = re.compile(rb"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


class SystemMemory:
    """Implements `watcher.ports.MemoryGauge`."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._meminfo = root / "proc/meminfo"
        self._groups: tuple[_Group, ...] = ()
        with suppress(OSError, ValueError):  # what cannot be read is not known, and no reason not to start
            self._groups = tuple(_own_groups(root))

    def available_bytes(self) -> int | None:
        """What another process could take without swapping; None where the system does not say."""
        available_kb = _number(_AVAILABLE_KB, self._meminfo)
        known = [available_kb * 1024] if available_kb is not None else []
        known += [room for group in self._groups if (room := group.room_bytes()) is not None]
        return max(0, min(known)) if known else None


class OomKills:
    """The kernel's count of processes that it killed for want of memory: in our control group, or in all.

    A number alone says nothing; the difference of two says what happened between them.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        # chosen once: the difference of two counters would be nonsense
        own = None
        with suppress(OSError, ValueError):  # as above
            own = next(_own_groups(root), None)
        places = (*((own.kills_file,) if own is not None else ()), root / "proc/vmstat")
        self._place = next((place for place in places if _number(_OOM_KILLS, place) is not None), None)

    def count(self) -> int | None:
        """The number now; None where the kernel does not count."""
        return _number(_OOM_KILLS, self._place) if self._place is not None else None


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What the kernel tells of a living process.

    Attributes:
        state: its letter: R runs, S sleeps, D waits for a disk, T is stopped, t is traced.
        rss_bytes: the memory that it has resident.
    """

    state: str
    rss_bytes: int


def look_at(pid: int, root: Path = _ROOT) -> ProcessLook | None:
    """Look at a process; None if it has none of these (it is dead, or the system does not tell)."""
    text = _read(root / "proc" / str(pid) / "status")
    state, resident = (pattern.search(text) for pattern in (_STATE, _RESIDENT_KB))
    if state is None or resident is None:
        return None
    return ProcessLook(state[1].decode("ascii"), int(resident[1]) * 1024)


# --- control groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """One control group with the names that its version gives to its files."""

    folder: Path
    limits: tuple[str, ...]
    usage: str
    freed_at_need: re.Pattern[bytes]
    """The part of the usage, in `memory.stat`, that the kernel takes back before it kills."""
    kills: str

    @property
    def kills_file(self) -> Path:
        return self.folder / self.kills

    def room_bytes(self) -> int | None:
        """What is left up to its limit; None if it has none."""
        limits = [limit for name in self.limits if (limit := self._bytes(name)) is not None]
        if not limits:
            return None  # the common case: nothing else is read
        used = self._bytes(self.usage)
        if used is None:
            return None
        return min(limits) - used + (_number(self.freed_at_need, self.folder / "memory.stat") or 0)

    def _bytes(self, name: str) -> int | None:
        text = _read(self.folder / name).strip()
        if not text.isdigit():  # "max", or no such file
            return None
        value = int(text)
        return value if value < _NO_LIMIT_BYTES else None


def _version_1(folder: Path) -> _Group:
    cache = re.compile(rb"^total_inactive_file (\d+)$", re.MULTILINE)
    return _Group(
        folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", cache, kills="memory.oom_control"
    )


def _version_2(folder: Path) -> _Group:
    cache = re.compile(rb"^inactive_file (\d+)$", re.MULTILINE)
    return _Group(folder, ("memory.max", "memory.high"), "memory.current", cache, kills="memory.events")


def _own_groups(root: Path) -> Iterator[_Group]:
    """Our own group and all that hold it, the innermost first; nothing where there are none."""
    paths = dict(_paths_of_own_groups(root))
    is_older = "memory" in paths  # on a machine with both versions, memory is with one of them
    path = paths.get("memory" if is_older else "")
    mount = _mount_of_groups(root, is_older=is_older)
    if path is None or mount is None:
        return
    folder = mount.folder_of(path)
    while not folder.is_dir() and folder != mount.point:  # a container that sees the names of its host
        folder = folder.parent
    while True:
        yield _version_1(folder) if is_older else _version_2(folder)
        if folder == mount.point:
            return
        folder = folder.parent


def _paths_of_own_groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Controller and path, as `/proc/self/cgroup` has them; the controller of version 2 is empty."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = os.fsdecode(line).split(":", 2)
        for controller in controllers.split(","):
            yield controller, PurePosixPath(path)


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a part of the tree of control groups is to be seen."""

    point: Path
    top: PurePosixPath
    """The group that is seen at the mount point: not `/` in some containers."""

    def folder_of(self, group: PurePosixPath) -> Path:
        if ".." in group.parts or not group.is_relative_to(self.top):
            return self.point
        return self.point / group.relative_to(self.top)


def _mount_of_groups(root: Path, *, is_older: bool) -> _Mount | None:
    """Find the mount point among the lines of `/proc/self/mountinfo`."""
    for line in _read(root / "proc/self/mountinfo", 1 << 20).splitlines():
        mounted, _, filesystem = os.fsdecode(line).partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        is_wanted = kind == "cgroup" and "memory" in options.split(",") if is_older else kind == "cgroup2"
        if is_wanted:
            _, _, _, top, point, *_ = (_unescaped(field) for field in mounted.split(" "))
            return _Mount(root / point.lstrip("/"), PurePosixPath(top))
    return None


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


# --- files of the kernel -----------------------------------------------------------------------------------


def _number(pattern: re.Pattern[bytes], path: Path) -> int | None:
    found = pattern.search(_read(path))
    return int(found[1]) if found is not None else None


def _read(path: Path, most_bytes: int = _READ_BYTES) -> bytes:
    """The file's text; empty if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            text = b""
            while len(text) < most_bytes and (more := file.read(most_bytes - len(text))):
                text += more  # a read of the kernel's longer files ends after a page
            return text
    except OSError:
        return b""
