"""Looking at files of the inbox: by descriptor, without following links, without disturbing a writer.

Rules of this file:
- Every look begins at the opened root folder, whose identity is checked, and walks down name by name with
  `O_NOFOLLOW`. So nothing outside the inbox is ever read, no loop of links exists, and a root that is
  unmounted or replaced in the middle is never mistaken for files that vanished.
- No descriptor outlives a look: a file system that we keep open could not be unmounted.
- Cloud placeholders are never opened: opening one downloads it, and blocks meanwhile.
- Functions, no state: threads and events belong to `watcher.adapters.inbox`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from watcher.core.events import Writer
from watcher.core.job import Fingerprint
from watcher.core.names import is_ignored, is_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VANISHED_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""The path leads to nothing that we follow."""

_IN_USE_ERRNOS: Final = frozenset({errno.EAGAIN, errno.EBUSY, errno.ETXTBSY})
"""Opening was refused because somebody else has the file: SMB shares, leases, mandatory locks."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_SF_DATALESS: Final = 0x4000_0000
"""macOS: `st_flags` of a file whose bytes are in the cloud (sys/stat.h)."""

CHUNK_BYTES: Final = 1 << 20
MAX_LINKS: Final = 1000
"""So many links of one listing are told of."""
_ENTRIES_BETWEEN_CHECKS: Final = 256


class RootAwayError(Exception):
    """The inbox is not there, cannot be opened, or is another folder than the one that is watched."""


class ChangedError(Exception):
    """The file is not, or no longer, the one that was to be hashed."""


class PlaceholderError(Exception):
    """The file is a cloud placeholder: reading it would download it."""


class StoppedError(Exception):
    """The work was given up because the service stops."""


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """Which folder the inbox is. `mounted`: it is the top of a file system of its own."""

    device: int
    inode: int
    mounted: bool

    def is_same_folder(self, other: RootIdentity) -> bool:
        """Compare the folder itself."""
        return (self.device, self.inode) == (other.device, other.inode)


@dataclass(frozen=True, slots=True)
class Look:
    """A regular file, as it was at one instant."""

    fingerprint: Fingerprint
    writer: Writer
    links: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Every wanted file below the root, and the folders (`""` is the root) of which nothing is known."""

    files: dict[str, Fingerprint]
    unreadable: dict[str, str]
    """Folder to reason."""
    links: list[str] = field(default_factory=list)
    """The first so many links that were met and not followed."""


def identify_root(root: str) -> RootIdentity:
    """Say which folder is at `root` now (a link to it is followed).

    Raises:
        RootAwayError: none that can be opened.
    """
    try:
        with _open(root, _FOLDER_FLAGS) as fd:
            here = os.fstat(fd)
            above = os.stat("..", dir_fd=fd)
    except OSError as error:
        raise RootAwayError(error.strerror or str(error)) from error
    return RootIdentity(here.st_dev, here.st_ino, mounted=here.st_dev != above.st_dev)


@contextmanager
def open_root(root: str, identity: RootIdentity) -> Iterator[int]:
    """Open the root for one look.

    Raises:
        RootAwayError: it is not the folder that `identity` names.
    """
    try:
        fd = os.open(root, _FOLDER_FLAGS)
    except OSError as error:
        raise RootAwayError(error.strerror or str(error)) from error
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (identity.device, identity.inode):
            raise RootAwayError("another folder stands in its place")
        yield fd
    finally:
        os.close(fd)


def look_at(root_fd: int, path: str) -> Look | None:
    """Take the fingerprint of a file and ask whether somebody writes to it, both at the same instant.

    Args:
        root_fd: the opened root.
        path: relative to the root.

    Returns:
        None where there is no regular file at the path (links are not followed).

    Raises:
        OSError: it cannot be told: a folder on the way cannot be searched, or the disk fails.
        ValueError: the path could leave the root.
    """
    try:
        with _open_parent(root_fd, path) as (parent_fd, name):
            return _look_in(parent_fd, name)
    except OSError as error:
        if error.errno in VANISHED_ERRNOS:
            return None
        raise


def list_files(
    root_fd: int, *, recursive: bool, ignore: tuple[str, ...], stopped: Callable[[], bool]
) -> Listing:
    """List every wanted regular file. Ignored folders are not entered, links are not followed.

    Raises:
        StoppedError: `stopped` said so.
    """
    listing = Listing({}, {})
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            for entry_path, entry in _entries(root_fd, folder, stopped):
                if entry.is_dir(follow_symlinks=False):
                    if recursive and not is_ignored(entry_path, ignore):
                        pending.append(entry_path)
                elif entry.is_symlink():
                    if len(listing.links) < MAX_LINKS and not is_ignored(entry_path, ignore):
                        listing.links.append(entry_path)
                elif is_wanted(entry_path, ignore):
                    _add_file(listing, entry_path, entry)
        except OSError as error:
            # A folder that went away while we listed has no files. Of any other we do not know.
            if not folder or error.errno not in VANISHED_ERRNOS:
                listing.unreadable[folder] = error.strerror or str(error)
    return listing


def hash_file(root_fd: int, path: str, expected: Fingerprint, stopped: Callable[[], bool]) -> str | None:
    """Return the sha256 (lower-case hex) of the file that has this fingerprint before and after the reading.

    Returns:
        None where there is no regular file at the path.

    Raises:
        ChangedError: it has another fingerprint.
        PlaceholderError: its bytes are in the cloud.
        StoppedError: `stopped` said so.
        OSError: it cannot be read.
    """
    try:
        with _open_parent(root_fd, path) as (parent_fd, name):
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return None
            if is_placeholder(status):
                raise PlaceholderError("its bytes are in the cloud only")
            with _open(name, _FILE_FLAGS, parent_fd) as fd:
                return _hash_opened(fd, expected, stopped)
    except OSError as error:
        if error.errno in VANISHED_ERRNOS:
            return None
        raise


def is_placeholder(status: os.stat_result) -> bool:
    """Tell whether the file's bytes are in the cloud only.

    Only macOS says so in a stat. `st_blocks == 0` with a size, which is often taken for it, is also true of
    sparse files, of small files that live in their inode, of files that ZFS has not written out yet, and of
    every file of some FUSE file systems; and the Linux clients name their placeholders `x.png.nextcloud`.
    """
    return bool(getattr(status, "st_flags", 0) & _SF_DATALESS)


def fingerprint_of(status: os.stat_result) -> Fingerprint:
    """Pick what the core compares out of a stat."""
    return Fingerprint(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def writer_of(fd: int, reading: Callable[[], None] = lambda: None) -> Writer:
    """Ask the kernel, by a read lease, whether anybody has the file open for writing.

    Finds every local writer, also one that holds a writable mapping after closing its descriptor. Does not
    find the writers of other machines on a network file system.

    Args:
        fd: the file, opened read-only.
        reading: called while the lease is held: with `Writer.NONE` nobody writes during it.
    """
    leased = _take_lease(fd)
    try:
        reading()
    finally:
        if leased is Writer.NONE:
            _release_lease(fd)
    return leased


def _look_in(parent_fd: int, name: str) -> Look | None:
    status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        return None
    if is_placeholder(status):
        return Look(fingerprint_of(status), Writer.UNKNOWN, status.st_nlink)
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in VANISHED_ERRNOS:
            raise
        writer = Writer.PRESENT if error.errno in _IN_USE_ERRNOS else Writer.UNKNOWN
        return Look(fingerprint_of(status), writer, status.st_nlink)
    try:
        return _look_at_opened(fd)
    finally:
        os.close(fd)


def _look_at_opened(fd: int) -> Look | None:
    seen: list[os.stat_result] = []
    # The fingerprint is taken under the lease: otherwise a writer that ends between the two would leave an
    # old fingerprint with the word that nobody writes.
    writer = writer_of(fd, lambda: seen.append(os.fstat(fd)))
    status = seen[0]
    if not stat.S_ISREG(status.st_mode):
        return None
    return Look(fingerprint_of(status), writer, status.st_nlink)


def _take_lease(fd: int) -> Writer:
    taken = Writer.UNKNOWN
    if sys.platform == "linux":
        try:
            # A writer that opens the file while we hold the lease waits for microseconds, and we are sent a
            # signal. By default that is SIGIO, which kills; SIGURG is ignored unless somebody asks for it. So
            # nothing process-wide is changed that workers would inherit, and any thread may do it.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            taken = Writer.NONE
        except OSError as error:
            # else EACCES: not our file and no CAP_LEASE; or EINVAL: the file system has no leases
            if error.errno == errno.EAGAIN:
                taken = Writer.PRESENT
    return taken


def _release_lease(fd: int) -> None:
    if sys.platform == "linux":
        # Closing releases it too, but not while a process that is being forked shares the descriptor.
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _hash_opened(fd: int, expected: Fingerprint, stopped: Callable[[], bool]) -> str:
    if fingerprint_of(os.fstat(fd)) != expected:
        raise ChangedError("it changed before it was read")
    digest = hashlib.sha256()
    left_bytes = expected.size_bytes
    while chunk := os.read(fd, CHUNK_BYTES):
        if stopped():
            raise StoppedError
        left_bytes -= len(chunk)
        if left_bytes < 0:
            break
        digest.update(chunk)
    if left_bytes or fingerprint_of(os.fstat(fd)) != expected:
        raise ChangedError("it changed while it was read")
    return digest.hexdigest()


def _entries(
    root_fd: int, folder: str, stopped: Callable[[], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    prefix = f"{folder}/" if folder else ""
    with _open_folder(root_fd, folder) as fd, os.scandir(fd) as entries:
        for number, entry in enumerate(entries):
            if number % _ENTRIES_BETWEEN_CHECKS == 0 and stopped():
                raise StoppedError
            yield prefix + entry.name, entry


def _add_file(listing: Listing, path: str, entry: os.DirEntry[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        if error.errno in VANISHED_ERRNOS:
            return
        raise
    if stat.S_ISREG(status.st_mode):
        listing.files[path] = fingerprint_of(status)


@contextmanager
def _open(path: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _open_parent(root_fd: int, path: str) -> Iterator[tuple[int, str]]:
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"{path!r} names no file below the inbox")
    folder, _, name = path.rpartition("/")
    with _open_folder(root_fd, folder) as fd:
        yield fd, name


@contextmanager
def _open_folder(root_fd: int, folder: str) -> Iterator[int]:
    """Open a folder below the root, name by name, so that no link on the way is followed."""
    fd = os.open(".", _FOLDER_FLAGS, dir_fd=root_fd)
    try:
        for name in folder.split("/") if folder else ():
            below = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)
