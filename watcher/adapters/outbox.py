"""Results, their names, and their publication: where exactly-once meets the disk.

Rules of this file:
- `seal` looks and chooses, `publish` changes. Between them the caller makes the choice durable, so that a
  crash at any instant leaves a journal that says where the result is or was about to be.
- A name in the outbox appears with all its bytes, synced, or not at all; a taken name is never overwritten
  unless the configuration says `replace`.
- `publish` may be begun again after any failure or crash and ends with one output: a staged file that has
  gone, and an output with the job's bytes, are the same publication.
- A name that the outbox's file system refuses is spelled otherwise: a refusal is no reason to wait, since it
  will never end.
- The outbox itself is never made: a folder that vanished is a disk that is away, and what would be
  written into its mount point would be lost to its owner.
- Slow calls run on one thread, in order, and answer with one event each, whatever happens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import stat
import threading
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import structlog

from watcher.adapters.beneath import OutsideError, open_file, open_folder, split, sync_way, usable_folders
from watcher.adapters.file_operations import Entry, FileOperations, plain_reason, sha256_of, status_of
from watcher.adapters.folders import mount_table, overlap
from watcher.adapters.notes import Notes
from watcher.adapters.output_names import (
    NAME_BYTES,
    NAME_REFUSED,
    other_cases,
    spellings,
    unreserved,
    versions,
)
from watcher.adapters.source_bytes import Bytes, files_of, look
from watcher.adapters.source_disposal import SourceDisposal
from watcher.adapters.staging import Staging
from watcher.core.events import (
    NameTaken,
    PublishBlocked,
    ResultPublished,
    ResultSealed,
    SourceChanged,
    StageLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from watcher.core.commands import PublishResult, SealResult, WriteNote
    from watcher.core.job import Job
    from watcher.ports import Clock, Sink

    Answer: TypeAlias = (
        ResultSealed | SourceChanged | StageLost | NameTaken | ResultPublished | PublishBlocked
    )

_CLOSE_WAIT_S: Final = 25.0
_NOTES_AT_A_TIME: Final = 50
_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_log = structlog.get_logger()


class FolderOutbox:
    """Implements `watcher.ports.Outbox` on folders.

    Args:
        inbox: where sources are looked at before publication.
        outbox: where results appear.
        state_dir: made if it is not there; staging goes into it where it can.
        archive: for `after = "archive"`.
        after: what becomes of sources.
        on_conflict: a taken name: `version` (`IMG (2).jpg`) or `replace`.
        sink: gets the answers, from the outbox's thread.
        clock: for the instant of publication.
        files: what touches the disk.
    """

    def __init__(  # noqa: PLR0913 - one folder, rule or port each; the composition root names them all
        self,
        *,
        inbox: Path,
        outbox: Path,
        state_dir: Path,
        archive: Path | None,
        after: Literal["keep", "archive", "delete"],
        on_conflict: Literal["version", "replace"],
        sink: Sink,
        clock: Clock,
        files: FileOperations | None = None,
    ) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._replace = on_conflict == "replace"
        self._sink = sink
        self._clock = clock
        self._files = files or FileOperations()
        self._staging = Staging(state_dir, outbox, self._files)
        self._notes = Notes(outbox, self._staging, self._files, name_bytes=_name_bytes(outbox))
        self._disposal = SourceDisposal(
            inbox, outbox, after, archive, self._files, name_bytes=_name_bytes(archive or inbox)
        )
        self._mounted = _is_mount_point(outbox)
        self._mounts_seen: str | None = None
        self._sealed: dict[str, str] = {}
        """Stage name to output, sealed and not yet published by this process."""
        self._begun: set[str] = set()
        """Stage names whose publication was begun by this process and has not ended well."""
        self._refused: dict[str, dict[str, OSError]] = {}
        """Stage name to the outputs whose names the outbox's file system would not take."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)
        self._thread.start()

    @property
    def staging(self) -> str:
        """Absolute path of the folder where workers put results."""
        return self._staging.path

    def seal(self, command: SealResult) -> None:
        """See `SealResult`. Answers `ResultSealed`, `SourceChanged`, `StageLost` or `PublishBlocked`."""
        self._calls.put(partial(self._answer, command.job.id, partial(self._seal, command)))

    def publish(self, command: PublishResult) -> None:
        """See `PublishResult`. Answers `ResultPublished`, `NameTaken`, `StageLost` or `PublishBlocked`."""
        self._calls.put(partial(self._answer, command.job.id, partial(self._publish, command)))

    def discard(self, stage_name: str) -> None:
        """Remove a staged file, if it is there."""
        self._calls.put(partial(self._discard, stage_name))

    def sweep(self, keep: Collection[str]) -> int:
        """Remove every staged file but these; at start only. Returns how many."""
        self._disposal.sweep()
        return self._staging.sweep(keep)

    def write_note(self, command: WriteNote) -> None:
        """See `WriteNote`. A failure is logged, never raised."""
        self._calls.put(partial(self._notes.write, command.kind, command.source, command.content))

    def remove_note(self, source: str) -> None:
        """Remove the notes of this source."""
        self._calls.put(partial(self._notes.remove, source))

    def sweep_notes(self, keep: Collection[str], next_number: int) -> None:
        """See `Notes.sweep`. Done a few at a time, so that no result waits for long."""
        self._calls.put(partial(self._sweep_some, self._notes.sweep(keep, next_number)))

    def apply_after(self, job: Job, *, again: bool = False) -> None:
        """Archive or delete the source. A failure is logged once (`again`: it was before), never raised."""
        self._calls.put(partial(self._disposal.apply, job, again=again))

    def close(self) -> None:
        """Finish what was asked for, then stop the thread; waits 25 s at most (a disk may hang)."""
        self._closing = True
        self._calls.put(None)
        self._thread.join(_CLOSE_WAIT_S)

    # --- the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:  # noqa: BLE001 - a bug in one call must not end the thread for all
                _log.exception("outbox.call_failed")

    def _answer(self, job: str, call: Callable[[], Answer]) -> None:
        try:
            answer = call()
        except OSError as error:
            answer = PublishBlocked(job, plain_reason(error))
        except OutsideError as error:
            answer = PublishBlocked(job, str(error))
        except Exception as error:  # noqa: BLE001 - a job without an answer would wait for ever
            _log.exception("outbox.call_failed", job=job)
            answer = PublishBlocked(job, f"internal error, see the service log: {error}")
        self._sink(answer)

    def _sweep_some(self, notes: Iterator[None]) -> None:
        if not self._closing and sum(1 for _ in islice(notes, _NOTES_AT_A_TIME)) == _NOTES_AT_A_TIME:
            self._calls.put(partial(self._sweep_some, notes))

    def _discard(self, stage_name: str) -> None:
        self._forget(stage_name)
        self._refused.pop(stage_name, None)
        try:
            self._staging.discard(stage_name)
        except (OSError, OutsideError) as error:
            _log.warning("stage.not_removed", file=stage_name, reason=str(error))

    def _forget(self, stage_name: str) -> None:
        self._sealed.pop(stage_name, None)
        self._begun.discard(stage_name)

    # --- seal ----------------------------------------------------------------------------------------------

    def _seal(self, command: SealResult) -> Answer:
        job, stage_name = command.job, command.stage_name
        self._forget(stage_name)
        self._require_outbox()
        changed = self._what_changed(job)
        if changed is not None:
            return SourceChanged(job.id, changed)
        if command.copy_from is not None and not self._stage_copy(command, command.copy_from):
            self._staging.discard(stage_name)
            return StageLost(job.id, f"{command.copy_from} in the outbox is not what it was")
        try:
            self._staging.sync(stage_name, command.sha256_out)
        except FileNotFoundError:
            self._staging.make()
            return StageLost(job.id, "the staged file has gone")
        output = self._free_output(job, stage_name)
        self._sealed[stage_name] = output
        return ResultSealed(job.id, output, command.sha256_out)

    def _what_changed(self, job: Job) -> str | None:
        for file in files_of(job):
            try:
                *folders, name = split(file.path)
                with open_folder(self._files, self._inbox, folders) as folder:
                    bytes_now, _ = look(self._files, Entry(folder, name), file)
            except (FileNotFoundError, NotADirectoryError):
                continue  # vanished after it was read: what was read was final
            except OutsideError as error:
                return str(error)
            if bytes_now is Bytes.CHANGED:
                return f"the {file.kind} {file.path} was changed after it was read"
        return None

    def _stage_copy(self, command: SealResult, copy_from: str) -> bool:
        """Stage a copy of another job's output; False if it is not there, or not with these bytes."""
        try:
            *folders, name = split(copy_from)
            with (
                open_folder(self._files, self._outbox, folders) as folder,
                open_file(self._files, Entry(folder, name)) as output,
            ):
                digest = self._staging.add_copy(
                    command.stage_name,
                    output,
                    mode=os.fstat(output).st_mode,
                    mtime_ns=command.job.fingerprint.mtime_ns,
                )
        except (FileNotFoundError, NotADirectoryError, OutsideError):
            return False
        return digest == command.sha256_out

    def _free_output(self, job: Job, stage_name: str) -> str:
        """Choose a name that is free, and that the file system has not refused.

        Raises:
            OSError: it cannot be looked for, or every spelling of the name was refused.
        """
        wanted = unreserved(split(job.source))
        refused = self._refused.get(stage_name, {})
        refusal = OSError()
        for names in spellings(wanted):
            try:
                output = self._free_among(job, names)
                if output not in refused:
                    if names != wanted:
                        reason = plain_reason(refusal)
                        _log.warning("outbox.name_escaped", source=job.source, output=output, reason=reason)
                    return output
                refusal = refused[output]
            except OSError as error:
                if error.errno not in NAME_REFUSED:
                    raise
                refusal = error
        raise refusal

    def _free_among(self, job: Job, names: tuple[str, ...]) -> str:
        """Return the path, or its first version that is free."""
        *wanted, name = names
        folders = usable_folders(self._files, self._outbox, wanted)
        if list(folders) != wanted:
            _log.warning("outbox.folder_renamed", source=job.source, folder="/".join(folders))
        outputs = ((candidate, "/".join((*folders, candidate))) for candidate in self._versions(name))
        try:
            with open_folder(self._files, self._outbox, folders) as folder:
                return next(
                    output
                    for candidate, output in outputs
                    if not self._is_sealed(output) and not self._is_taken(Entry(folder, candidate))
                )
        except FileNotFoundError:  # the folder will be made: nothing in it is taken on the disk
            self._require_outbox()
            return next(output for _, output in outputs if not self._is_sealed(output))

    def _versions(self, name: str) -> Iterator[str]:
        return versions(name, _name_bytes(self._outbox))

    def _is_sealed(self, output: str) -> bool:
        return not self._replace and output in self._sealed.values()

    def _is_taken(self, entry: Entry) -> bool:
        status = status_of(entry)
        if status is None or not self._replace:
            return status is not None
        return stat.S_ISDIR(status.st_mode) or _is_spelled_otherwise(entry, status)

    # --- publish -------------------------------------------------------------------------------------------

    def _publish(self, command: PublishResult) -> Answer:
        job = command.job
        if job.output is None or job.sha256_out is None or job.stage_name is None:
            raise ValueError(f"job {job.id} was not sealed")
        names, stage_name = split(job.output), job.stage_name
        self._require_outbox()
        staged = self._staging.find(stage_name) is not None
        doubtful = command.rescue or stage_name in self._begun
        if doubtful and self._stands(names, job.sha256_out):
            return self._rescued(job, names, stage_name)
        if not staged or (doubtful and not self._is_staged(stage_name, job.sha256_out)):
            self._discard(stage_name)
            self._staging.make()
            return StageLost(job.id, "neither the outbox nor staging has the result")
        self._begun.add(stage_name)
        try:
            self._move_out(names, stage_name, vacate=doubtful and job.sha256_out != _EMPTY_SHA256)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            self._forget(stage_name)
            return NameTaken(job.id)
        except OSError as error:
            if error.errno not in NAME_REFUSED:
                raise
            self._forget(stage_name)
            self._refused.setdefault(stage_name, {})[job.output] = error
            return NameTaken(job.id)
        self._forget(stage_name)
        self._refused.pop(stage_name, None)
        return self._published(job, job.output)

    def _stands(self, names: tuple[str, ...], sha256: str) -> bool:
        """Whether the output is there with these bytes."""
        *folders, name = names
        try:
            with (
                open_folder(self._files, self._outbox, folders) as folder,
                open_file(self._files, Entry(folder, name)) as output,
            ):
                return sha256_of(output) == sha256
        except OSError as error:
            if error.errno in NAME_REFUSED or isinstance(error, FileNotFoundError | NotADirectoryError):
                return False
            raise

    def _is_staged(self, stage_name: str, sha256: str) -> bool:
        try:
            with self._staging.opened(stage_name) as staged:
                return sha256_of(staged) == sha256
        except FileNotFoundError:
            return False

    def _rescued(self, job: Job, names: tuple[str, ...], stage_name: str) -> Answer:
        sync_way(self._files, self._outbox, names[:-1])
        self._staging.discard(stage_name)
        self._forget(stage_name)
        return self._published(job, "/".join(names), rescued=True)

    def _published(self, job: Job, output: str, *, rescued: bool = False) -> Answer:
        """Answer, with the picture's notes gone: once the job is done no start looks for them any more."""
        published_ns = self._clock.now().mono_ns
        self._notes.remove(job.source)
        return ResultPublished(job.id, output, published_ns, rescued=rescued)

    def _move_out(self, names: tuple[str, ...], stage_name: str, *, vacate: bool) -> None:
        """Give the staged file its name, durably.

        Args:
            names: the output.
            stage_name: the staged file.
            vacate: an earlier try may have reserved the name: an empty file there is ours, and goes.
        """
        *folders, name = names
        with open_folder(self._files, self._outbox, folders, create=True) as folder:
            target = Entry(folder, name)
            status = status_of(target) if vacate else None
            if status is not None and stat.S_ISREG(status.st_mode) and status.st_size == 0:
                self._files.unlink(target)
            if self._replace and self._is_taken(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            self._staging.move_out(stage_name, target, replace=self._replace)
            self._files.fsync_folder(folder, name)

    def _require_outbox(self) -> None:
        """Raise FileNotFoundError if the outbox is away, OutsideError if it shows in the inbox."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.stat(self._outbox).st_mode):  # noqa: PTH116 - a missing permission must be told
                mounted = _is_mount_point(self._outbox)
                if mounted or not self._mounted:
                    self._mounted = mounted
                    self._require_apart()
                    return
        raise FileNotFoundError(errno.ENOENT, "the outbox is away", os.fspath(self._outbox))

    def _require_apart(self) -> None:
        """Raise OutsideError if somebody has mounted one folder in the other: results would arrive anew."""
        mounts = mount_table()
        if mounts == self._mounts_seen:
            return
        relation = overlap(self._inbox, self._outbox)
        if relation is not None:
            raise OutsideError(f"the inbox by now {relation} the outbox: undo that mount")
        self._mounts_seen = mounts


def _is_spelled_otherwise(entry: Entry, status: os.stat_result) -> bool:
    """Whether the file has another name, which only to its file system is the same (`A.png` for `a.png`)."""
    twins = (status_of(entry._replace(name=other)) for other in other_cases(entry.name))
    if not any(twin is not None and os.path.samestat(twin, status) for twin in twins):
        return False
    with os.scandir(entry.folder) as entries:
        return all(listed.name != entry.name for listed in entries)


def _is_mount_point(folder: Path) -> bool:
    return os.path.ismount(os.path.realpath(folder))


def _name_bytes(folder: Path) -> int:
    """How long a name may be there."""
    try:
        return min(NAME_BYTES, os.pathconf(folder, "PC_NAME_MAX"))
    except (OSError, ValueError):
        return NAME_BYTES
