"""Writing and reading below a root folder, walked without ever following a link.

Rules of this file:
- A relative path has `/` between its names, and no name is empty, `.` or `..`: what is not so is refused
  here, however it got so far.
- The root itself may be reached through a link, since a person configured it; nothing below it may.
- A folder below a root is durable before anything is put into it, whoever made it: a process that was killed
  may have made it and synced nothing, and so does every other program. The root is never made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from watcher.adapters.file_operations import Entry, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from watcher.adapters.file_operations import FileOperations

_REMEMBERED: Final = 10_000
"""Folders that are known to be durable; when there are more, they are asked for again."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not make us wait


class OutsideError(ValueError):
    """A path that would lead out of its folder."""


def split(relative: str) -> tuple[str, ...]:
    """Split a relative path into its names.

    Raises:
        OutsideError: it is absolute or empty, or has a `.` or `..` in it.
    """
    names = tuple(relative.split("/"))
    if any(name in {"", ".", ".."} or "\0" in name for name in names):
        raise OutsideError(f"not a path inside its folder: {relative!r}")
    return names


@contextmanager
def open_folder(
    files: FileOperations,
    root: Path,
    names: Sequence[str] = (),
    *,
    create: bool = False,
    mode: int = 0o777,
) -> Iterator[int]:
    """Open a folder below a root, and close it at the end.

    Args:
        files: what does it.
        root: must exist; is never made.
        names: the way down.
        create: make what is missing on the way.
        mode: of the folders that are made, less the umask.

    Yields:
        The folder's descriptor.

    Raises:
        FileNotFoundError: it, or the root, is not there.
        NotADirectoryError: something on the way is a file or a link.
        OSError: as the system says.
    """
    folder = files.open(Entry(None, os.fspath(root)), _FOLDER)
    try:
        for name in names:
            below = _step(files, Entry(folder, name), create=create, mode=mode)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def sync_way(files: FileOperations, root: Path, names: Sequence[str]) -> None:
    """Make every folder from the root down durable: after a crash nobody knows which of them are.

    Raises:
        OSError: as `open_folder`.
    """
    for depth in range(len(names) + 1):
        with open_folder(files, root, names[:depth]) as folder:
            files.fsync_folder(folder, names[depth - 1] if depth else os.fspath(root))


def _step(files: FileOperations, entry: Entry, *, create: bool, mode: int) -> int:
    if not create:
        return _open_unlinked(files, entry)
    try:
        below = _open_unlinked(files, entry)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            files.mkdir(entry, mode)
        below = _open_unlinked(files, entry)
    try:
        _make_durable(files, entry, below)
    except OSError:
        os.close(below)
        raise
    return below


def _make_durable(files: FileOperations, entry: Entry, below: int) -> None:
    """See that a folder's name is on the disk; the disk is asked once a folder in this process' life."""
    if entry.folder is None:
        return
    status = os.fstat(below)
    folder = (status.st_dev, status.st_ino, os.fstat(entry.folder).st_ino)
    if folder in files.durable_folders:
        return
    files.fsync_folder(entry.folder, entry.name)
    if len(files.durable_folders) >= _REMEMBERED:
        files.durable_folders.clear()
    files.durable_folders.add(folder)


def _open_unlinked(files: FileOperations, entry: Entry) -> int:
    try:
        return files.open(entry, _FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:  # how some systems name a link that O_DIRECTORY does not follow
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), entry.name) from error
        raise


@contextmanager
def open_file(files: FileOperations, entry: Entry) -> Iterator[int]:
    """Open a regular file for reading, and close it at the end.

    Raises:
        FileNotFoundError: there is none (a link, folder or device of that name is none).
        OSError: as the system says.
    """
    try:
        descriptor = files.open(entry, _FILE)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.name) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", entry.name)
        yield descriptor
    finally:
        os.close(descriptor)


def usable_folders(files: FileOperations, root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, a `_` appended to each that a file or a link keeps from being a folder.

    Raises:
        OSError: the root, or a folder on the way, cannot be opened.
    """
    chosen: list[str] = []
    for wanted in names:
        name = wanted
        with contextlib.suppress(FileNotFoundError), open_folder(files, root, chosen) as folder:
            while (status := status_of(Entry(folder, name))) and not stat.S_ISDIR(status.st_mode):
                name += "_"
        chosen.append(name)
    return tuple(chosen)
