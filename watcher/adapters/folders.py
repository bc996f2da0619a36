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
from typing import TypeAlias

FileId: TypeAlias = tuple[int, int]
MOUNTINFO = Path("/proc/self/mountinfo")


def overlap(first: Path, second: Path) -> str | None:
    """Say how two folders overlap.

    Returns:
        `is the same folder as`, `contains` or `is inside` (first before second), or None if they are apart.
        Neither has to exist.
    """
    forth, back = _contains(first, second), _contains(second, first)
    if forth and back:
        return "is the same folder as"
    if forth:
        return "contains"
    return "is inside" if back else None


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


def _contains(outer: Path, inner: Path) -> bool:
    return _contains_by_identity(outer, inner) or _contains_by_mount(outer, inner)


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


def _contains_by_mount(outer: Path, inner: Path) -> bool:
    """Two mounts of one device show folders of it: compare where these lie on the device."""
    around, within = _on_device(outer), _on_device(inner)
    if around is None or within is None or around[0] != within[0]:
        return False
    return within[1].is_relative_to(around[1])


def _on_device(path: Path) -> tuple[str, PurePosixPath] | None:
    """The device (`major:minor`) and the place on it, or None where the system does not tell."""
    try:
        lines = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = Path(os.path.realpath(path))
    best: tuple[int, str, PurePosixPath] | None = None
    for line in lines:
        fields = line.split(" ")
        root, point = _unescaped(fields[3]), Path(_unescaped(fields[4]))
        # of two mounts on one point the later hides the earlier
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), fields[2], PurePosixPath(root) / real.relative_to(point))
    return None if best is None else best[1:]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
