"""Which name a result, a note or an archived source gets. Pure: strings in, strings out.

Rules of this file:
- A name is as long as the file system allows, counted in bytes; it is cut between characters, and what
  tells versions apart and the suffix that tells the format are never cut.
- Names are surrogate-escaped (PEP 383), so a name that is not UTF-8 keeps its bytes.
- A name that the outbox's file system refuses is spelled with `%3F` for `?` and the like (`spellings`); one
  that it takes is never touched, whatever another system would say of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import unicodedata
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESERVED: Final = frozenset({"logs", "failed", "held", ".watcher"})
"""Names at the top of the outbox that are the service's own, in any case: a disk may ignore case."""
NAME_BYTES: Final = 255
_SUFFIX_BYTES: Final = 32
_NOTE_SUFFIX: Final = ".json"

NAME_REFUSED: Final = frozenset({errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG})
"""How file systems say that they have no such name: FAT and NTFS of `?`, APFS of bytes that are no UTF-8."""

_REFUSED_BY_SOME: Final = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|\ud800-\udfff]|[ .]\Z')
"""What FAT, NTFS and file servers refuse, at the end of a name also what they silently take away."""
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|\Z)", re.IGNORECASE)
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9 ()._-]|[ .]\Z")
_FORMS: Final[tuple[Literal["NFC", "NFD"], ...]] = ("NFC", "NFD")
_PLAIN_BYTES: Final = 100
"""Names are shorter on some (143 bytes on eCryptfs), and these have grown by their escapes."""


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


def spellings(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield a path as it is, and then as file systems that refuse such names may have it; no spelling twice.

    Only the names that need it are changed. Two paths may come to be spelled alike: whoever takes a name must
    look whether it is taken.
    """
    ways: tuple[Callable[[str], str], ...] = (str, _portable, _plain)
    yield from dict.fromkeys(tuple(map(way, names)) for way in ways)


def other_cases(name: str) -> Iterator[str]:
    """Yield names that are the same name to a file system that ignores case, or how accents are stored."""
    ways: tuple[Callable[[str], str], ...] = (
        str.swapcase,
        str.lower,
        str.upper,
        *(partial(unicodedata.normalize, form) for form in _FORMS),
    )
    yield from (other for other in dict.fromkeys(way(name) for way in ways) if other != name)


def _portable(name: str) -> str:
    """The name without what common file systems refuse."""
    return _without_device(_REFUSED_BY_SOME.sub(_escaped, name))


def _plain(name: str) -> str:
    """The name in letters that every file system has."""
    stem, suffix = _parted(_without_device(_NOT_PLAIN.sub(_escaped, name)))
    return _fitted(stem, suffix, _PLAIN_BYTES)


def _without_device(name: str) -> str:
    return _escape(name[0]) + name[1:] if _DEVICE.match(name) else name


def _escaped(found: re.Match[str]) -> str:
    return _escape(found.group())


def _escape(characters: str) -> str:
    return "".join(f"%{byte:02X}" for byte in os.fsencode(characters))


def _parted(name: str) -> tuple[str, str]:
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a name with any bytes, not a path
    return (stem, suffix) if len(os.fsencode(suffix)) <= _SUFFIX_BYTES else (name, "")


def _fitted(stem: str, ending: str, limit_bytes: int) -> str:
    """Cut characters off the stem's end until it fits; at least one stays."""
    room = limit_bytes - len(os.fsencode(ending))
    while len(os.fsencode(stem)) > room and len(stem) > 1:
        stem = stem[:-1]
    return stem + ending
