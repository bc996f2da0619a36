"""Whether a file in the inbox still is what a job was made from.

Rules of this file: an equal fingerprint is proof enough, since a writer cannot keep the ctime; any other
is settled by reading, so that a `touch` or a restored backup is no change. What is only in the cloud
is not read: that would download it; there the modification time decides.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from watcher.adapters.beneath import open_file
from watcher.adapters.file_operations import Entry, sha256_of, status_of
from watcher.adapters.tree import fingerprint_of, is_placeholder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watcher.adapters.file_operations import FileOperations
    from watcher.core.job import Fingerprint, Job


class Bytes(StrEnum):
    """What became of the bytes of a job's file."""

    SAME = "same"
    CHANGED = "changed"
    VANISHED = "vanished"
    """Nothing is there any more, or nothing that we follow (a folder, a link, a device)."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """One of the files that a job was made from."""

    kind: str
    """`picture` or `mask`."""
    path: str
    fingerprint: Fingerprint | None
    sha256: str


def files_of(job: Job) -> Iterator[JobFile]:
    """The picture and, if there is one, the mask."""
    yield JobFile("picture", job.source, job.fingerprint, job.identity.picture_sha256)
    if job.mask is not None and job.identity.mask_sha256 is not None:
        yield JobFile("mask", job.mask, job.mask_fingerprint, job.identity.mask_sha256)


def look(files: FileOperations, entry: Entry, expected: JobFile) -> tuple[Bytes, os.stat_result | None]:
    """Compare a file with what the job knows of it.

    Args:
        files: what opens it, if it must be read.
        entry: where it lies.
        expected: what it was.

    Returns:
        What became of it, and its status when that was found out (None if it vanished).

    Raises:
        OSError: it is there and cannot be read.
    """
    status = status_of(entry)
    if status is None or not stat.S_ISREG(status.st_mode):
        return Bytes.VANISHED, None
    if fingerprint_of(status) == expected.fingerprint:
        return Bytes.SAME, status
    if expected.fingerprint is not None and status.st_size != expected.fingerprint.size_bytes:
        return Bytes.CHANGED, status
    if is_placeholder(status):
        same = expected.fingerprint is not None and status.st_mtime_ns == expected.fingerprint.mtime_ns
        return (Bytes.SAME if same else Bytes.CHANGED), status
    with contextlib.suppress(FileNotFoundError), open_file(files, entry) as descriptor:
        same = sha256_of(descriptor) == expected.sha256
        return (Bytes.SAME if same else Bytes.CHANGED), os.fstat(descriptor)
    return Bytes.VANISHED, None
