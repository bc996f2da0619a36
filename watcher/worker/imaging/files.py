"""A picture's file: read once as bytes, and the result written into staging.

Rules of this module:
- A file is read whole and once; its sha256 must be the one that was dispatched.
- The staged file carries the source's permissions (the owner may always write) and modification time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass

from watcher.worker.imaging.refusals import RefusedError

FRESH_S = 30.0
"""So long after its last change a file counts as one that may still be written. The service waits longer than
that for a file without an end, and then asks once more."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was read.

    Attributes:
        data: all its bytes.
        sha256: of `data`, hexadecimal.
        mtime_ns: last modification, to be given to the result.
        permissions: the nine permission bits.
        fresh: it changed so lately that its writer may not be done.
    """

    data: bytes
    sha256: str
    mtime_ns: int
    permissions: int
    fresh: bool


def read_file(path: str, sha256: str | None, *, max_bytes: int, what: str = "picture") -> SourceFile:
    """Read a file whole, once, and hold it against what was dispatched.

    Args:
        path: of the file.
        sha256: the settled bytes' digest, or None to take what is there.
        max_bytes: larger files are refused unread.
        what: the word for it in reasons.

    Raises:
        RefusedError: `vanished`, `changed`, `too_large`, or `undecodable` where it may not be read.
    """
    try:
        # Non-blocking: a pipe put under the picture's name must not stop the worker.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(error, what) from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("undecodable", f"the {what} is not a regular file", "drop the file itself")
        if status.st_size > max_bytes:
            raise RefusedError(
                "too_large",
                f"the {what} has {status.st_size} bytes, and {max_bytes} are allowed",
                "make the file smaller, or raise the limit",
            )
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise _unreadable(error, what) from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise RefusedError(
            "changed",
            f"the {what}'s bytes are not the ones that were settled",
            "nothing to do: the new bytes are a new job",
        )
    permissions = stat.S_IMODE(status.st_mode) & 0o777
    return SourceFile(data, digest, status.st_mtime_ns, permissions, _is_fresh(status))


def _is_fresh(status: os.stat_result) -> bool:
    # A change in the future is a clock that is not ours, and tells nothing.
    return 0 <= time.time() - status.st_ctime < FRESH_S


def _unreadable(error: OSError, what: str) -> RefusedError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return RefusedError("vanished", f"the {what} is gone", "drop it again if it is still wanted")
    return RefusedError(
        "undecodable",
        f"the {what} cannot be read: {error.strerror}",
        "give the service's user the right to read it, then run: watcher retry",
    )


def stage(path: str, data: bytes, source: SourceFile) -> str:
    """Write a result into staging and close it; syncing and publishing are the service's.

    Args:
        path: of the file to create; what lies there from an earlier attempt is overwritten.
        data: the result.
        source: gives modification time and permissions.

    Returns:
        The sha256 of what was written.

    Raises:
        RefusedError: `no_space` for anything that keeps the file from being written: none is the picture's
            fault. A partial file is removed.
    """
    try:
        _write(path, data, source)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - the path may hold surrogates; os takes it as it is
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RefusedError(
            "no_space",
            f"the result cannot be written to staging: {error.strerror}",
            "free space on the state folder's disk" if full else "check the state folder's disk and rights",
        ) from error
    return hashlib.sha256(data).hexdigest()


def _write(path: str, data: bytes, source: SourceFile) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), source.permissions | 0o600)
        os.utime(file.fileno(), ns=(source.mtime_ns, source.mtime_ns))
