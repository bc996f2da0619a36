"""The self-check of a start: does the system let this process use the folders that are configured?

Rules of this file: it comes after `check_folders`, which finds what a look can find. It leaves the folders as
they are, but for a hidden file that comes and goes in those that are written to.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from watcher.adapters.access import refused_reading, refused_writing
from watcher.settings.problems import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watcher.settings.models import Settings

_MAC_REMEDY: Final = (
    "allow it in System Settings > Privacy & Security > Files and Folders (or Full Disk Access) for the "
    "program that starts watcher, or set {name} to a folder outside of Desktop, Documents, Downloads and "
    "other disks"
)
_LINUX_REMEDY: Final = (
    "see the folder's owner, mount options, access lists and flags (`lsattr -d`), and the security modules "
    "(SELinux, AppArmor, the unit's ReadWritePaths=), or set {name} to another folder"
)


def check_access(settings: Settings) -> None:
    """Try what the service will do in its folders.

    Raises:
        ConfigurationError: with everything that the system does not permit.
    """
    where = str(settings.config_file) if settings.config_file else "the configuration"
    remedy = _MAC_REMEDY if sys.platform == "darwin" else _LINUX_REMEDY
    problems = tuple(
        Problem(f"the system denies access to the {name}: {refusal}", where, remedy.format(name=name))
        for name, refusal in _refusals(settings)
    )
    if problems:
        raise ConfigurationError(problems)


def _refusals(settings: Settings) -> Iterator[tuple[str, str]]:
    reading = refused_reading(settings.inbox, settings.arrivals.ignore)
    if reading is not None:
        yield "inbox", f"{settings.inbox} {reading}"
    written = {"outbox": settings.outbox}
    if settings.after == "archive" and settings.archive is not None:
        written["archive"] = settings.archive
    for name, folder in written.items():
        writing = refused_writing(folder)
        if writing is not None:
            yield name, f"{folder} {writing}"
