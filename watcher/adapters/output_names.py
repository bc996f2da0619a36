"""Which name a result, a note or an archived source gets. Pure: strings in, strings out.

Rules of this file:
- A name is as long as the file system allows, counted in bytes; it is cut between characters, and what
  tells versions apart and the suffix that tells the format are never cut.
- Names are surrogate-escaped (PEP 383), so a name that is not UTF-8 keeps its bytes.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVED: Final = frozenset({"logs", "failed", "held", ".watcher"})
"""Names at the top of the outbox that are the service's own, in any case: a disk may ignore case."""
NAME_BYTES: Final = 255
_SUFFIX_BYTES: Final = 32
_NOTE_SUFFIX: Final = ".json"


def unreserved(names: tuple[str, ...]) -> tuple[str, ...]:
    """Append `_` to the topmost name if it is reserved."""
    top, *rest = names
    return (f"{top}_" if top.casefold() in RESERVED else top, *rest)


def versions(name: str, limit_bytes: int = NAME_BYTES) -> Iterator[str]:
    """Yield `IMG.jpg`, `IMG (2).jpg`, `IMG (3).jpg` and so on, without end."""
    stem, suffix = _parted(name)
    yield _fitted(stem, suffix, limit_bytes)
    number = 2
    while True:
        yield _fitted(stem, f" ({number}){suffix}", limit_bytes)
        number += 1


def note_name(name: str, limit_bytes: int = NAME_BYTES) -> str:
    """The name of a picture's note: `IMG.jpg.json`; one that is too long is told apart by its hash."""
    whole = name + _NOTE_SUFFIX
    if len(os.fsencode(whole)) <= limit_bytes:
        return whole
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    return _fitted(name, f"~{digest}{_NOTE_SUFFIX}", limit_bytes)


def _parted(name: str) -> tuple[str, str]:
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a name with any bytes, not a path
    return (stem, suffix) if len(os.fsencode(suffix)) <= _SUFFIX_BYTES else (name, "")


def _fitted(stem: str, ending: str, limit_bytes: int) -> str:
    """Cut characters off the stem's end until it fits; at least one stays."""
    room = limit_bytes - len(os.fsencode(ending))
    while len(os.fsencode(stem)) > room and len(stem) > 1:
        stem = stem[:-1]
    return stem + ending
