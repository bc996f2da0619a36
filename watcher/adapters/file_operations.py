"""Every way in which the service changes the disk or makes a change durable.

Rules of this file:
- One method is one system call, but for those that say that they are made of others. `before` is called
  ahead of each: a test that plants a fault, or a death, at the Nth operation overrides that one method.
- Names are given as an `Entry`, a name in an open folder, so that no link that somebody plants on the way
  leads an operation out of the folder that was meant.
- `rename_without_replacing` never overwrites a name and never shows a partial file, on any file system.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import stat
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES: Final = 1 << 20

_RENAME_NOREPLACE: Final = 1  # linux/fs.h
_RENAME_EXCL: Final = 4  # sys/stdio.h of macOS
_NO_EXCLUSIVE_RENAME: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
)
_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF})


class Entry(NamedTuple):
    """A name in an open folder (its descriptor), or, with None, a path of its own."""

    folder: int | None
    name: str


class FileOperations:
    """The real file system. All methods raise OSError."""

    @functools.cached_property
    def durable_folders(self) -> set[tuple[int, int, int]]:
        """Folders whose names this process has made durable (see `beneath`): device, number, its parent's."""
        return set()

    def before(self, operation: str, name: str) -> None:
        """Called ahead of each system call with its name and its file's. Does nothing."""

    def open(self, entry: Entry, flags: int, mode: int = 0o666) -> int:
        """Open a file or folder; the descriptor is not inherited. The caller closes it."""
        self.before("open", entry.name)
        return os.open(entry.name, flags, mode, dir_fd=entry.folder)

    def write(self, descriptor: int, data: bytes, name: str) -> int:
        """Write once; returns how many bytes were taken."""
        self.before("write", name)
        return os.write(descriptor, data)

    def write_all(self, descriptor: int, data: bytes, name: str) -> None:
        """Write until everything is taken (one operation a piece)."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(descriptor, bytes(rest), name) :]

    def truncate(self, descriptor: int, size_bytes: int, name: str) -> None:
        """Cut an open file to a length."""
        self.before("truncate", name)
        os.ftruncate(descriptor, size_bytes)

    def set_attributes(self, descriptor: int, *, mode: int, mtime_ns: int, name: str) -> None:
        """Give an open file its permission bits and modification time."""
        self.before("set_attributes", name)
        os.fchmod(descriptor, stat.S_IMODE(mode))
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))

    def fsync(self, descriptor: int, name: str) -> None:
        """Make an open file durable, through the drive's own cache where the system can ask for that."""
        self.before("fsync", name)
        full_sync = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
        if full_sync is not None:
            with contextlib.suppress(OSError):  # network and FAT volumes do not know it
                fcntl.fcntl(descriptor, full_sync)
                return
        os.fsync(descriptor)

    def fsync_folder(self, descriptor: int, name: str) -> None:
        """Make the names in an open folder durable, where the file system can."""
        try:
            self.fsync(descriptor, name)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def mkdir(self, entry: Entry, mode: int = 0o777) -> None:
        """Make a folder."""
        self.before("mkdir", entry.name)
        os.mkdir(entry.name, mode, dir_fd=entry.folder)

    def rmdir(self, entry: Entry) -> None:
        """Remove an empty folder."""
        self.before("rmdir", entry.name)
        os.rmdir(entry.name, dir_fd=entry.folder)

    def unlink(self, entry: Entry) -> None:
        """Remove a name."""
        self.before("unlink", entry.name)
        os.unlink(entry.name, dir_fd=entry.folder)

    def replace(self, source: Entry, target: Entry) -> None:
        """Rename over whatever file has the name."""
        self.before("replace", target.name)
        os.replace(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)

    def link(self, source: Entry, target: Entry) -> None:
        """Give a file a second name (a link itself is not followed)."""
        self.before("link", target.name)
        os.link(
            source.name,
            target.name,
            src_dir_fd=source.folder,
            dst_dir_fd=target.folder,
            follow_symlinks=False,
        )

    def exclusive_rename(self, source: Entry, target: Entry) -> None:
        """Rename in one step, unless the name is taken.

        Raises:
            FileExistsError: it is taken.
            OSError: ENOSYS, EINVAL or ENOTSUP where the kernel or the file system cannot do this.
        """
        self.before("exclusive_rename", target.name)
        call = _exclusive_rename_call()
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), target.name)
        number = call(source, target)
        if number != 0:
            raise OSError(number, os.strerror(number), source.name, None, target.name)

    def rename_without_replacing(self, source: Entry, target: Entry) -> None:
        """Move a file to a name that must be free; made of up to five operations.

        One renaming call where the kernel has it: other programs that watch the folder see a file moved in,
        which is complete, and no moment exists in which two names show. Else a second link and the
        removal of the first. Else (FAT, some network shares) the name is reserved with an empty file and
        replaced at once: the only case in which a name shows before its bytes, and those are none.

        Raises:
            FileExistsError: the name is taken.
            OSError: the file system refuses. The source is where it was; it may have its new name as well, if
                only what follows the link failed.
        """
        if self._moved_in_one_step(source, target):
            return
        if self._linked(source, target):
            if (
                target.folder is not None
            ):  # a power cut must not find the old name gone and the new one not there
                self.fsync_folder(target.folder, target.name)
            self.unlink(source)
            return
        self._reserve(target)
        try:
            self.replace(source, target)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(target)
            raise

    def _moved_in_one_step(self, source: Entry, target: Entry) -> bool:
        try:
            self.exclusive_rename(source, target)
        except OSError as error:
            if error.errno not in _NO_EXCLUSIVE_RENAME:
                raise
            return False
        return True

    def _linked(self, source: Entry, target: Entry) -> bool:
        try:
            self.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        return True

    def _reserve(self, target: Entry) -> None:
        os.close(self.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def status_of(entry: Entry) -> os.stat_result | None:
    """What stands under a name (a link is not followed), or None if nothing does.

    Raises:
        OSError: the folder cannot be looked at.
    """
    try:
        return os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def sha256_of(descriptor: int) -> str:
    """Hash an open file from where it stands to its end.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    while chunk := os.read(descriptor, CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def copy_file(files: FileOperations, source: int, target: Entry, *, mode: int, mtime_ns: int) -> str:
    """Copy an open file to a new name, durably; the folder is not synced.

    Args:
        files: what does it.
        source: descriptor, at the start of the file.
        target: replaced if it exists.
        mode: permission bits of the copy.
        mtime_ns: modification time of the copy.

    Returns:
        The sha256 of the bytes.

    Raises:
        OSError: no copy was made, and nothing is left of it.
    """
    with contextlib.suppress(FileNotFoundError):
        files.unlink(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = files.open(target, flags, 0o600)
    try:
        digest = hashlib.sha256()
        while chunk := os.read(source, CHUNK_BYTES):
            digest.update(chunk)
            files.write_all(descriptor, chunk, target.name)
        files.set_attributes(descriptor, mode=mode, mtime_ns=mtime_ns, name=target.name)
        files.fsync(descriptor, target.name)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(target)
        raise
    finally:
        os.close(descriptor)
    return digest.hexdigest()


_REASONS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
    errno.EIO: "the disk reports an input/output error",
    errno.ENOENT: "the folder is away",
    errno.ENOTDIR: "something that is not a folder stands in the way",
    errno.ELOOP: "a link stands in the way",
    errno.ESTALE: "the network file system has lost the file",
    errno.ENOTCONN: "the network file system is not connected",
    errno.EHOSTDOWN: "the file server is down",
    errno.ETIMEDOUT: "the file server does not answer",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.EMFILE: "the service has too many files open",
    errno.ENFILE: "the system has too many files open",
}


def plain_reason(error: OSError) -> str:
    """Say in plain words what kept a file operation from working."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str)]
    return f"{reason} ({' -> '.join(names)})" if names else reason


@functools.cache
def _exclusive_rename_call() -> Callable[[Entry, Entry], int] | None:
    """The kernel's rename that refuses a taken name; the call returns an errno, 0 for success."""
    name, flag, here = (
        ("renameatx_np", _RENAME_EXCL, -2)
        if sys.platform == "darwin"
        else ("renameat2", _RENAME_NOREPLACE, -100)
    )
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int

    def call(source: Entry, target: Entry) -> int:
        arguments = [
            part
            for entry in (source, target)
            for part in (here if entry.folder is None else entry.folder, os.fsencode(entry.name))
        ]
        return 0 if function(*arguments, flag) == 0 else ctypes.get_errno()

    return call
