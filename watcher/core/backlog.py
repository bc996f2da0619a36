"""Files that were seen and are still to be looked at: those that wait, and those that were asked about.

Rules of this file:
- What is told of as it arrives goes before what a listing found: a picture that is dropped today does not
  wait for the hundred thousand that lay there. Within each, first seen is first out.
- A path keeps when its fingerprint was first seen until it is answered for: the time chain of its job begins
  there.
- A question that outlived a listing was asked of a file system that hangs: it is asked again, and nobody
  waits for the answer any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watcher.core.job import Fingerprint


@dataclass(frozen=True, slots=True)
class Sighting:
    """A file as it was seen at one instant."""

    fingerprint: Fingerprint
    seen_ns: int


class Backlog:
    """The line before the inspector. A path is in one of its parts at most."""

    def __init__(self) -> None:
        self._arrived: dict[str, Sighting] = {}
        self._found: dict[str, Sighting] = {}
        self._asked: dict[str, Sighting] = {}
        self._mute: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many files wait to be looked at."""
        return len(self._arrived) + len(self._found)

    @property
    def asked(self) -> int:
        """How many files are being looked at."""
        return len(self._asked)

    def waits(self, path: str) -> bool:
        """The file waits to be looked at."""
        return path in self._arrived or path in self._found

    def is_asked(self, path: str) -> bool:
        """The file is being looked at."""
        return path in self._asked

    def is_mute(self, path: str) -> bool:
        """The last question about the file was not answered."""
        return path in self._mute

    def sighting(self, path: str) -> Sighting | None:
        """What was seen at this path, until it is answered for."""
        return self._arrived.get(path) or self._found.get(path) or self._asked.get(path)

    def arrived(self, path: str, sighting: Sighting) -> None:
        """A file was told of. One that waits already keeps its place, and its sighting if nothing changed."""
        self._put(self._found if path in self._found else self._arrived, path, sighting)

    def found(self, path: str, sighting: Sighting) -> None:
        """A listing shows a file; else as `arrived`."""
        self._put(self._arrived if path in self._arrived else self._found, path, sighting)

    def first(self) -> str:
        """The path whose turn it is.

        Raises:
            StopIteration: nobody waits.
        """
        return next(chain(self._arrived, self._found))

    def ask(self, path: str) -> bool:
        """The file is looked at from now on; False if it does not wait."""
        sighting = self._arrived.pop(path, None) or self._found.pop(path, None)
        if sighting is not None:
            self._asked[path] = sighting
        return sighting is not None

    def answered(self, path: str) -> Sighting | None:
        """Nothing is open about this path any more; returns what was seen there before."""
        self._mute.discard(path)
        return self._arrived.pop(path, None) or self._found.pop(path, None) or self._asked.pop(path, None)

    def mute_the_asked(self) -> None:
        """A listing is there before the answers."""
        self._mute.update(self._asked)
        self._asked.clear()

    def forget_questions(self) -> None:
        """The inbox is away: no answer comes any more."""
        self._asked.clear()
        self._mute.clear()

    @staticmethod
    def _put(line: dict[str, Sighting], path: str, sighting: Sighting) -> None:
        before = line.get(path)
        if before is None or before.fingerprint != sighting.fingerprint:
            line[path] = sighting
