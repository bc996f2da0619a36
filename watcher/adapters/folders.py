"""Whether two folders are really apart, and whether one can be used. Looks; changes nothing.

Rules of this file: names are not trusted. Links, letter case and bind mounts can give one folder two
names, so folders are compared by device and inode along their parents, and, where Linux tells which
folder a mount shows, by that folder's place on its device.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

FileId: TypeAlias = tuple[int, int]
MOUNTINFO = Path("/proc/self/mountinfo")


def overlap(first: Path, second: Path) -> str | None:
    """Say how two folders overlap.

    Returns:
        `is the same folder as`, `contains`, `is inside` or `shows, through a mount, a part of` (first before
        second), or None if they are apart. Neither has to exist.
    """
    mounts = _mounts()
    forth, back = _contains(first, second, mounts), _contains(second, first, mounts)
    if forth and back:
        return "is the same folder as"
    if forth:
        return "contains"
    if back:
        return "is inside"
    return "shows, through a mount, a part of" if _share_a_part(first, second, mounts) else None


def mount_table() -> str:
    """What is mounted where, as the system tells; empty where it does not. It changes with every mount."""
    try:
        return MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def unusable(path: Path, *, write: bool) -> str | None:
    """Say why a folder cannot be used (`does not exist`, `cannot be read`, ...), or None."""
    try:
        if not path.is_dir():
            return "is not a folder" if os.path.lexists(path) else "does not exist"
    except PermissionError:
        return "cannot be reached"
    if not os.access(path, os.R_OK | os.X_OK):
        return "cannot be read"
    if write and not os.access(path, os.W_OK | os.X_OK):
        return "cannot be written"
    return None


def uncreatable(path: Path) -> str | None:
    """Say why a folder that may be made on the spot can be neither used nor made, or None."""
    if os.path.lexists(path):
        return unusable(path, write=True)
    anchor = _existing(path)
    reason = unusable(anchor, write=True)
    return None if reason is None else f"cannot be made, since {anchor} {reason}"


def _contains(outer: Path, inner: Path, mounts: list[_Mount]) -> bool:
    return _contains_by_identity(outer, inner) or _contains_by_mount(outer, inner, mounts)


@dataclass(frozen=True, slots=True)
class _Place:
    """A path as the deepest folder that exists and the names that do not exist yet below it."""

    anchor: Path
    rest: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> _Place:
        real = Path(os.path.realpath(path))
        anchor = _existing(real)
        rest = real.relative_to(anchor).parts
        return cls(anchor, _folded(rest) if _ignores_case(anchor) else rest)


def _contains_by_identity(outer: Path, inner: Path) -> bool:
    around, within = _Place.of(outer), _Place.of(inner)
    wanted = _identity(around.anchor)
    if not around.rest:
        return any(_identity(parent) == wanted for parent in (within.anchor, *within.anchor.parents))
    return _identity(within.anchor) == wanted and within.rest[: len(around.rest)] == around.rest


def _existing(path: Path) -> Path:
    for candidate in (path, *path.parents):
        if os.path.lexists(candidate):
            return candidate
    return Path("/")


def _identity(path: Path) -> FileId:
    status = os.stat(path)  # noqa: PTH116 - the inode alone is wanted
    return status.st_dev, status.st_ino


def _folded(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", name).casefold() for name in names)


def _ignores_case(folder: Path) -> bool:
    """Whether the folder's own name, with its case swapped, still names it."""
    for candidate in (folder, *folder.parents):
        swapped = candidate.name.swapcase()
        if swapped != candidate.name:
            twin = candidate.with_name(swapped)
            return twin.exists() and twin.samefile(candidate)
    return False


# --- bind mounts -------------------------------------------------------------------------------------------


class _OnDevice(NamedTuple):
    """A folder's place on its device (`major:minor`), whatever its name is here."""

    device: str
    folder: PurePosixPath

    def contains(self, other: _OnDevice) -> bool:
        return self.device == other.device and other.folder.is_relative_to(self.folder)


class _Mount(NamedTuple):
    """A folder of a device, and where it shows. `parent`: the mount that it was mounted in."""

    number: str
    parent: str
    shown: _OnDevice
    point: Path


def _contains_by_mount(outer: Path, inner: Path, mounts: list[_Mount]) -> bool:
    """Whether the outer folder, or a mount below it, shows the inner one."""
    within = _on_device(inner, mounts)
    return within is not None and any(shown.contains(within) for shown in _shown_by(outer, mounts))


def _share_a_part(first: Path, second: Path, mounts: list[_Mount]) -> bool:
    """Whether something below both is the same folder."""
    theirs = _shown_by(second, mounts)
    return any(
        shown.contains(other) or other.contains(shown)
        for shown in _shown_by(first, mounts)
        for other in theirs
    )


def _shown_by(path: Path, mounts: list[_Mount]) -> list[_OnDevice]:
    """Every folder of a device that can be seen below a path: its own, and those of the mounts in it."""
    real = Path(os.path.realpath(path))
    own = _on_device(path, mounts)
    below = [mount.shown for mount in mounts if mount.point != real and mount.point.is_relative_to(real)]
    return below if own is None else [own, *below]


def _on_device(path: Path, mounts: list[_Mount]) -> _OnDevice | None:
    """Where a path lies on its device, or None where the system does not tell."""
    real = Path(os.path.realpath(path))
    around = [mount for mount in mounts if real.is_relative_to(mount.point)]
    if not around:
        return None
    mount = max(around, key=lambda mount: len(mount.point.parts))
    return _OnDevice(mount.shown.device, mount.shown.folder / real.relative_to(mount.point))


def _mounts() -> list[_Mount]:
    """The mounts that can be seen (proc_pid_mountinfo(5))."""
    mounts = [_mount(line.split(" ")) for line in mount_table().split("\n") if line]
    places = {(mount.parent, mount.point) for mount in mounts if mount.parent != mount.number}
    # Had the one at, or above, a mount's place been there first, it would be that mount's parent.
    covered = {mount.number for mount in mounts if (mount.number, mount.point) in places}
    buried = {
        mount.number
        for mount in mounts
        if any((mount.parent, folder) in places for folder in mount.point.parents)
    }
    while below := {mount.number for mount in mounts if mount.parent in buried} - buried:
        buried |= below
    return [mount for mount in mounts if mount.number not in covered | buried]


def _mount(fields: list[str]) -> _Mount:
    number, parent, device, folder, point = fields[:5]
    return _Mount(
        number, parent, _OnDevice(device, PurePosixPath(_unescaped(folder))), Path(_unescaped(point))
    )


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
