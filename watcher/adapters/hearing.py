"""Does the watch hear? What notifications told of, held against what a listing shows.

Some file systems take a watch and never tell of anything: folders that a container shares with its host,
much of FUSE, overlays that are written to from below. So the inbox's own traffic is the canary, and nothing
is ever written into the inbox to find out.

Rules of this file:
- A path that the listing before did not have, and of which nobody told, is a doubt. No time of a file system
  is looked at: its clock is not ours, and a file may carry any date.
- A doubt counts only after several checks in which nothing at all was told: what is told late was heard.
- Whatever could have another reason counts as heard: a path below a folder that came, went or could not be
  read; any path while notifications were lost.
- Bounded: eight bytes for each listed file, and so many paths that were told of since the listing before.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_NS_PER_S: Final = 1_000_000_000

CHECK_S: Final = 0.9
"""Checks that come sooner after one another count once. A process that was stopped meanwhile has made one."""
SILENT_CHECKS: Final = 3
"""So many checks in a row without any notification, and a doubt is certain."""
CHECKS: Final = 30
"""So many checks, and it is certain although there were notifications, of other paths."""

MAX_NOTICES: Final = 10_000
"""More paths than that between two listings are not remembered; then nothing can be said of the time."""
MAX_DOUBTS: Final = 16
"""One is enough; several outlast the files that leave at once."""


@dataclass(slots=True)
class _Notices:
    """What was told of in some time."""

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    complete: bool = True

    def add(self, path: str, kind: set[str]) -> None:
        if len(kind) < MAX_NOTICES:
            kind.add(path)
        else:
            self.complete = False

    def joined(self, later: _Notices) -> _Notices:
        return _Notices(
            self.files | later.files, self.folders | later.folders, self.complete and later.complete
        )

    def may_tell_of(self, path: str) -> bool:
        return not self.complete or path in self.files or not self.folders.isdisjoint(_folders_of(path))


@dataclass(slots=True)
class _Doubts:
    """Paths that are there and of which nobody told, and how often that was checked."""

    paths: dict[str, None] = field(default_factory=dict)
    checked_ns: int | None = None
    checks: int = 0
    silent_checks: int = 0

    def check(self, now_ns: int, *, silent: bool) -> None:
        self.checked_ns = now_ns
        self.checks += 1
        self.silent_checks = self.silent_checks + 1 if silent else 0

    def is_due(self, now_ns: int) -> bool:
        return self.checked_ns is None or now_ns - self.checked_ns >= CHECK_S * _NS_PER_S

    @property
    def are_certain(self) -> bool:
        return self.silent_checks >= SILENT_CHECKS or self.checks >= CHECKS


class Hearing:
    """Compares notifications with listings.

    Notices may come from any thread; whoever lists the inbox does all else from one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.start_over()

    def start_over(self) -> None:
        """The watch was armed: what was before says nothing about it."""
        with self._lock:
            # told of between the beginnings of the last two listings, and since the last
            self._before, self._since = _Notices(), _Notices()
            self._is_listing = False
            self._listed: array[int] | None = None
            self._unreadable: frozenset[str] = frozenset()
            self._doubts = _Doubts()
            self._told = False

    def stir(self) -> None:
        """There was a notification, of whatever kind: others may be on their way."""
        with self._lock:
            self._told = True

    def hear(self, path: str) -> None:
        """A notification told of this file."""
        with self._lock:
            self._since.add(path, self._since.files)

    def hear_folder(self, path: str) -> None:
        """A notification told that this folder came or went."""
        with self._lock:
            self._since.add(path, self._since.folders)

    def lose(self) -> None:
        """Notifications were lost: silence means nothing for a while."""
        with self._lock:
            self._since.complete = False

    def begin_listing(self) -> None:
        """What is told from now on may be younger than the listing."""
        with self._lock:
            self._drop_heard_doubts()
            # a listing that was begun and not finished compared nothing
            self._before = self._before.joined(self._since) if self._is_listing else self._since
            self._since = _Notices()
            self._is_listing = True

    def compare(self, files: Collection[str], unreadable: Collection[str]) -> None:
        """Compare a finished listing with the one before, and with what was told.

        Args:
            files: the listed paths.
            unreadable: folders of which nothing is known.
        """
        listed = array("q", map(hash, files))
        before = self._listed  # this thread's own, like the new one
        new = [] if before is None or listed == before else _not_among(set(before), files)
        with self._lock:
            unheard = (path for path in new if not self._is_explained(path))
            for path in islice(unheard, max(0, MAX_DOUBTS - len(self._doubts.paths))):
                self._doubts.paths.setdefault(path)
            self._listed = listed
            self._unreadable = frozenset(unreadable)
            self._is_listing = False

    def certain(self, now_ns: int) -> str | None:
        """Check again; return a path of which nobody told and that is there for certain, if there is one."""
        with self._lock:
            self._drop_heard_doubts()
            doubts = self._doubts
            if not doubts.paths:
                self._doubts = _Doubts()
            elif doubts.is_due(now_ns):
                doubts.check(now_ns, silent=not self._told)
                if doubts.are_certain:
                    return next(iter(doubts.paths))
            else:
                return None
            self._told = False
            return None

    def _is_explained(self, path: str) -> bool:
        if self._before.may_tell_of(path) or self._since.may_tell_of(path):
            return True
        return not self._unreadable.isdisjoint(_folders_of(path))

    def _drop_heard_doubts(self) -> None:
        if self._doubts.paths:
            kept = {path: None for path in self._doubts.paths if not self._is_explained(path)}
            self._doubts.paths = kept


def _not_among(known: set[int], files: Collection[str]) -> list[str]:
    return [path for path in files if hash(path) not in known]


def _folders_of(path: str) -> Iterator[str]:
    """The root (`""`) and each folder on the way to a path."""
    yield ""
    for at, character in enumerate(path):
        if character == "/":
            yield path[:at]
