"""The memory of pictures that need nothing, so that a repeated look at one is no news.

Rules of this file:
- It lives as long as the process; the journal is asked about what is not in it.
- A picture that was served with a mask needs nothing more when only its mask goes. The same bytes that are
  dropped again without a mask are another picture: it may be marked in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watcher.core.facts import PictureFacts
    from watcher.core.job import Fingerprint, Identity, Job


@dataclass(frozen=True, slots=True)
class _Served:
    """What was found when a picture was last seen to need nothing."""

    identity: Identity
    fingerprint: Fingerprint
    hashed_ns: tuple[int, int]
    has_result: bool


class ServedPictures:
    """What is known to need nothing, by path."""

    def __init__(self) -> None:
        self._served: dict[str, _Served] = {}

    def note(self, job: Job, facts: PictureFacts | None) -> None:
        """This final job answers for the picture; without facts the files are not complete at the moment."""
        hashed_ns = facts.hashed_ns if facts is not None else (0, 0)
        path, identity, fingerprint = job.source, job.identity, job.fingerprint
        if facts is not None:  # the same objects where they are equal: there are many of them
            path = facts.path
            identity = facts.identity if facts.identity == identity else identity
            fingerprint = (
                facts.picture.fingerprint if facts.picture.fingerprint == fingerprint else fingerprint
            )
        self._served[path] = _Served(identity, fingerprint, hashed_ns, job.has_result)

    def covers(self, facts: PictureFacts, identity: Identity) -> bool:
        """This very arrival was answered; or it was served with a mask, and only its mask has gone since."""
        last = self._served.get(facts.path)
        if last is None:
            return False
        if last.identity == identity:
            return last.hashed_ns == facts.hashed_ns
        is_same_file = last.fingerprint.is_same_file_as(facts.picture.fingerprint)
        only_unmasked = is_same_file and identity.lacks_only_mask_of(last.identity)
        return last.has_result and only_unmasked

    def forget(self, path: str) -> None:
        """Nothing is at this path any more."""
        self._served.pop(path, None)
