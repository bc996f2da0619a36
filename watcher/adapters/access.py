"""Whether the system really lets us into a folder: tried, not asked.

Rules of this file:
- Permission bits are not the whole of it: macOS denies Desktop, Documents and other disks to programs that a
  person has not allowed, security modules and immutable flags deny on Linux. So what the service will do is
  done once: list, open a file, make a file and remove it.
- A refusal is told only where the system says that something is not permitted. A disk that is full or away
  is no refusal: that ends by itself, and the service waits for it.
- One file without permission is that file's trouble, not the folder's. What is in the cloud only is not
  opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from watcher.adapters.tree import is_placeholder
from watcher.core.names import is_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROBE: Final = ".watcher-check"
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_ENTRIES: Final = 1000
"""A picture that is not among the first so many names of the inbox is not looked for."""
_MAX_TRIES: Final = 3
"""Files that are opened while each is refused: one alone may be odd."""


def refused_reading(folder: Path, ignore: tuple[str, ...] = ()) -> str | None:
    """Say what the system does not permit of listing a folder and reading a picture in it, or None.

    Args:
        folder: the inbox.
        ignore: the user's globs, see `watcher.core.names.is_ignored`.
    """
    try:
        names = list(islice(_readable_pictures(folder, ignore), _MAX_TRIES))
    except OSError as error:
        return _told("cannot be listed", error)
    refusals = []
    for name in names:
        try:
            os.close(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
        except OSError as error:
            # EACCES is what one file's own access list may say: its reading tells of that
            if error.errno == errno.EPERM:
                refusals.append(_told(f"has files that cannot be opened, such as {name!r}", error))
                continue
        return None
    return next(iter(refusals), None)


def refused_writing(folder: Path) -> str | None:
    """Say what the system does not permit of making a file in a folder and removing it, or None."""
    probe = folder / PROBE
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        return _told("takes no files", error)
    try:
        with suppress(FileNotFoundError):  # another start has the same thought
            probe.unlink()
    except OSError as error:
        return _told(f"does not let a file go ({probe.name} is left there)", error)
    return None


def _readable_pictures(folder: Path, ignore: tuple[str, ...]) -> Iterator[str]:
    """Names of pictures that their permission bits would let us read; a placeholder is not one."""
    with os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_ENTRIES):
            if not is_wanted(entry.name, ignore):
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and not is_placeholder(status) and os.access(entry, os.R_OK):
                    yield entry.name


def _told(what: str, error: OSError) -> str | None:
    return f"{what}: {error.strerror or error}" if error.errno in _REFUSED else None
