"""What becomes of a source once its result is published: kept, archived or deleted.

Rules of this file:
- A file is touched only if its bytes still are the job's: what came in its place meanwhile is a new picture.
- Nothing in the archive is overwritten, and the archive itself is never made: it may be a disk that is away.
  What it has already is not put there twice: an earlier process may have ended before it removed the source.
- A source is deleted only while its result stands in the outbox: one of the two exists at every instant.
- The mask goes before its picture. A picture that is still there brings the next start back to both of them;
  a mask left alone would lie in wait for another picture of that name.
- While the inbox is away its files have not gone: they are seen to with the next job after its return.
- A failure is logged once a job, with what to do, and changes nothing else: the job stays done.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import structlog

from watcher.adapters.beneath import OutsideError, open_file, open_folder, split, usable_folders
from watcher.adapters.file_operations import Entry, copy_file, plain_reason, sha256_of, status_of
from watcher.adapters.output_names import versions
from watcher.adapters.source_bytes import Bytes, files_of, look

if TYPE_CHECKING:
    from pathlib import Path

    from watcher.adapters.file_operations import FileOperations
    from watcher.adapters.source_bytes import JobFile
    from watcher.core.job import Job

_HIDDEN: Final = ".watcher"
_TEMPORARY: Final = "arriving"
_MAX_LEFT: Final = 10_000
"""So many jobs may wait for an inbox that is away; the rest are left to the next start, and told of."""
_MAX_TOLD: Final = 10_000
_log = structlog.get_logger()


class _InboxAwayError(OSError):
    """Of the sources nothing is known."""


class SourceDisposal:
    """Carries out `after`. Used by one thread.

    Args:
        inbox: where sources are.
        outbox: where results are.
        after: `keep`, `archive` or `delete`.
        archive: where `archive` moves them.
        files: what touches the disk.
        name_bytes: how long a name may be.
    """

    def __init__(
        self,
        inbox: Path,
        outbox: Path,
        after: Literal["keep", "archive", "delete"],
        archive: Path | None,
        files: FileOperations,
        *,
        name_bytes: int,
    ) -> None:
        if after == "archive" and archive is None:
            raise ValueError("after = archive needs an archive")
        self._inbox = inbox
        self._outbox = outbox
        self._after = after
        self._archive = archive
        self._files = files
        self._name_bytes = name_bytes
        self._told: set[str] = set()
        """Jobs whose failure was told; after very many it is forgotten, and they may be told once more."""
        self._was_mounted = os.path.ismount(os.path.realpath(inbox))
        self._left: dict[str, Job] = {}
        """Jobs whose sources could not be reached, since the inbox was away."""

    def apply(self, job: Job, *, again: bool = False) -> None:
        """Archive or delete the job's picture and its mask; `again`: a failure was told of before."""
        if self._after == "keep":
            return
        self._see_to(job, again=again)
        if self._left and not self._is_away():
            left, self._left = self._left, {}
            for earlier in left.values():
                self._see_to(earlier, again=True)

    def _see_to(self, job: Job, *, again: bool) -> None:
        if self._after == "delete" and not self._has_result(job):
            reason = "its result is not to be seen in the outbox"
            _log.info("after.skipped", job=job.id, source=job.source, reason=reason)
            return
        for file in reversed(tuple(files_of(job))):
            try:
                self._dispose(job, file)
            except _InboxAwayError as error:
                if len(self._left) < _MAX_LEFT:
                    self._left[job.id] = job
                else:
                    self._tell(job, file, error, again=again)
                return
            except (OSError, OutsideError) as error:
                self._tell(job, file, error, again=again)
                return

    def sweep(self) -> None:
        """Remove what an interrupted copy into the archive has left; at start only."""
        if self._archive is None:
            return
        with suppress(OSError), open_folder(self._files, self._archive, (_HIDDEN,)) as folder:
            self._files.unlink(Entry(folder, _TEMPORARY))
        with suppress(OSError), open_folder(self._files, self._archive) as folder:
            self._files.rmdir(Entry(folder, _HIDDEN))

    def _has_result(self, job: Job) -> bool:
        if job.output is None:
            return False
        *folders, name = split(job.output)
        try:
            with (
                open_folder(self._files, self._outbox, folders) as folder,
                open_file(self._files, Entry(folder, name)) as descriptor,
            ):
                return sha256_of(descriptor) == job.sha256_out
        except (OSError, OutsideError):
            return False

    def _dispose(self, job: Job, file: JobFile) -> None:
        *folders, name = split(file.path)
        try:
            with open_folder(self._files, self._inbox, folders) as folder:
                source = Entry(folder, name)
                bytes_now, seen = look(self._files, source, file)
                if bytes_now is Bytes.CHANGED:
                    _log.info(
                        "after.skipped",
                        job=job.id,
                        source=job.source,
                        file=file.path,
                        reason="it was changed",
                    )
                if bytes_now is Bytes.SAME and seen is not None:
                    self._take(file, source, seen)
                if (
                    bytes_now is not Bytes.CHANGED
                ):  # it may have gone by a process that was killed before its sync
                    self._files.fsync_folder(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            if status_of(Entry(None, os.fspath(self._inbox.joinpath(*folders, name)))) is not None:
                raise  # the source is there: it is the archive that is not
            if self._is_away():
                raise _InboxAwayError(errno.ENOENT, "the inbox is away", os.fspath(self._inbox)) from None

    def _is_away(self) -> bool:
        """Whether the inbox is not there, or is the bare folder that it was mounted on."""
        here = self._inbox.is_dir()
        if here and os.path.ismount(os.path.realpath(self._inbox)):
            self._was_mounted = True
            return False
        return self._was_mounted or not here

    def _take(self, file: JobFile, source: Entry, seen: os.stat_result) -> None:
        if self._archive is not None and self._after == "archive":
            self._move(self._archive, file, source, seen)
        elif _is_still(source, seen):
            self._files.unlink(source)

    def _move(self, archive: Path, file: JobFile, source: Entry, seen: os.stat_result) -> None:
        *wanted, name = split(file.path)
        folders = usable_folders(self._files, archive, wanted)
        with open_folder(self._files, archive, folders, create=True) as folder:
            if self._has_already(folder, name, file, seen):
                if _is_still(source, seen):
                    self._files.unlink(source)
                return
            try:
                target = self._place(source, folder, name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(archive, source, folder, name)
            else:
                if not _is_same_file_as(target, seen):
                    # somebody put another file there between our look and the move
                    self._files.rename_without_replacing(target, source)
            self._files.fsync_folder(folder, name)

    def _has_already(self, folder: int, name: str, file: JobFile, seen: os.stat_result) -> bool:
        """Whether these bytes lie there under this name, or a version of it; then they are durable."""
        for candidate in versions(name, self._name_bytes):
            entry = Entry(folder, candidate)
            status = status_of(entry)
            if status is None:
                return False
            if status.st_size != seen.st_size:
                continue
            with suppress(FileNotFoundError), open_file(self._files, entry) as descriptor:
                if sha256_of(descriptor) == file.sha256:
                    self._files.fsync(descriptor, candidate)
                    self._files.fsync_folder(folder, candidate)
                    return True
        raise AssertionError("versions() ended")

    def _copy(self, archive: Path, source: Entry, folder: int, name: str) -> None:
        with (
            open_file(self._files, source) as descriptor,
            open_folder(self._files, archive, (_HIDDEN,), create=True, mode=0o700) as hidden,
        ):
            seen = os.fstat(descriptor)
            temporary = Entry(hidden, _TEMPORARY)
            copy_file(self._files, descriptor, temporary, mode=seen.st_mode, mtime_ns=seen.st_mtime_ns)
            self._place(temporary, folder, name)
            self._files.fsync_folder(folder, name)
        with suppress(OSError), open_folder(self._files, archive) as top:
            self._files.rmdir(Entry(top, _HIDDEN))
        if _is_still(source, seen):
            self._files.unlink(source)

    def _place(self, source: Entry, folder: int, name: str) -> Entry:
        for candidate in versions(name, self._name_bytes):
            with suppress(FileExistsError):
                target = Entry(folder, candidate)
                self._files.rename_without_replacing(source, target)
                return target
        raise AssertionError("versions() ended")

    def _tell(self, job: Job, file: JobFile, error: OSError | OutsideError, *, again: bool) -> None:
        if job.id in self._told:
            return
        if len(self._told) >= _MAX_TOLD:
            self._told.clear()
        self._told.add(job.id)
        place = self._archive if self._after == "archive" else self._inbox
        (_log.debug if again else _log.warning)(
            "after.failed",
            job=job.id,
            source=job.source,
            file=file.path,
            after=self._after,
            reason=plain_reason(error) if isinstance(error, OSError) else str(error),
            remedy=f"The result is published; the next start tries this again. See that {place} is there "
            f"and may be written, or {self._after} the source by hand.",
        )


def _is_still(entry: Entry, seen: os.stat_result) -> bool:
    status = status_of(entry)
    return (
        status is not None
        and os.path.samestat(status, seen)
        and (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        == (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    )


def _is_same_file_as(entry: Entry, seen: os.stat_result) -> bool:
    """Whether it is the file that was seen, and unwritten since (a rename changes the ctime)."""
    status = status_of(entry)
    return (
        status is not None
        and os.path.samestat(status, seen)
        and (status.st_size, status.st_mtime_ns) == (seen.st_size, seen.st_mtime_ns)
    )
