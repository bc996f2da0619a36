"""`outbox/failed/<source>.json` and `outbox/held/<source>.json`: for a person who only sees the folder.

Rules of this file:
- A note appears whole, and the newest one wins. A note that cannot be written is logged, and no more.
- A note whose name the file system refuses is spelled as the results are.
- Folders that a note's removal empties go too; `failed` and `held` themselves stay.
- A kill may come before a note is removed. So at a start those of jobs that are over are swept: what is no
  note of this program, and what is newer than the start, is left alone.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from watcher.adapters.beneath import OutsideError, open_file, open_folder, split
from watcher.adapters.file_operations import Entry, plain_reason
from watcher.adapters.json_text import for_people
from watcher.adapters.output_names import NAME_REFUSED, note_name, spellings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from watcher.adapters.file_operations import FileOperations
    from watcher.adapters.staging import Staging
    from watcher.core.job import JsonObject

_KINDS: Final = ("failed", "held")
_STATES: Final = ("failed", "quarantined", "held")
_STAGE_NAME: Final = "note"
_REMEMBERED: Final = 1_000
"""Folders whose removals are known to be durable; when there are more, they are synced again."""
_MAX_NOTE_BYTES: Final = 1 << 20
_log = structlog.get_logger()


class Notes:
    """The notes of one outbox. Used by one thread.

    Args:
        outbox: never made.
        staging: where a note lies until it is whole.
        files: what touches the disk.
        name_bytes: how long a name may be.
    """

    def __init__(self, outbox: Path, staging: Staging, files: FileOperations, *, name_bytes: int) -> None:
        self._outbox = outbox
        self._staging = staging
        self._files = files
        self._name_bytes = name_bytes
        self._settled: set[tuple[str, ...]] = set()
        """Folders in which every note that is gone is gone for good, as far as this process knows."""

    def write(self, kind: str, source: str, content: JsonObject) -> None:
        """Write, or replace, the note of a source; one that says the same already is left alone."""
        try:
            self._write(kind, split(source), for_people(content))
        except (OSError, OutsideError) as error:
            _log.warning("note.failed", kind=kind, source=source, reason=_reason(error))

    def _write(self, kind: str, names: tuple[str, ...], text: bytes) -> None:
        """Write it under the first spelling of its name that the file system takes."""
        refusal = OSError()
        for *folders, name in spellings(names):
            try:
                with open_folder(self._files, self._outbox, (kind, *folders), create=True) as folder:
                    target = Entry(folder, note_name(name, self._name_bytes))
                    if not self._says(target, text):
                        self._staging.put(_STAGE_NAME, text, target)
            except OSError as error:
                if error.errno not in NAME_REFUSED:
                    raise
                refusal = error
            else:
                return
        raise refusal

    def _says(self, target: Entry, text: bytes) -> bool:
        """Notes are written again at each start: a synced folder must not see that as a change."""
        try:
            with open_file(self._files, target) as descriptor:
                return os.read(descriptor, len(text) + 1) == text
        except OSError:
            return False

    def remove(self, source: str) -> None:
        """Remove the notes of a source, if there are any."""
        try:
            for *folders, name in spellings(split(source)):
                for kind in _KINDS:
                    self._remove((kind, *folders), note_name(name, self._name_bytes))
        except (OSError, OutsideError) as error:
            _log.warning("note.not_removed", source=source, reason=_reason(error))

    def sweep(self, keep: Collection[str], next_number: int) -> Iterator[None]:
        """Remove the notes of jobs that are neither at hand nor refused; one step a note.

        Args:
            keep: the ids of those that are.
            next_number: the first job number that is not given out yet.
        """
        for kind in _KINDS:
            for where, folders, names in os.walk(self._outbox / kind):
                for name in names:
                    with suppress(OSError, OutsideError):  # the next start tries again
                        job = self._job_of(os.path.join(where, name))  # noqa: PTH118 - names may not be UTF-8
                        if job is not None and job not in keep and _number(job) < next_number:
                            self._remove(self._below(where), name)
                    yield
                folders.sort()

    def _below(self, folder: str) -> tuple[str, ...]:
        return Path(folder).relative_to(self._outbox).parts

    def _job_of(self, path: str) -> str | None:
        """The job whose note this file is; None for any other file."""
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - by descriptor
            text = file.read(_MAX_NOTE_BYTES)
        with suppress(ValueError):
            note = json.loads(text)
            if isinstance(note, dict) and note.get("state") in _STATES and isinstance(note.get("job"), str):
                job: str = note["job"]
                return job
        return None

    def _remove(self, folders: tuple[str, ...], name: str) -> None:
        try:
            with open_folder(self._files, self._outbox, folders) as folder:
                self._unlink(folder, folders, name)
        except OSError as error:
            if error.errno in NAME_REFUSED or isinstance(error, FileNotFoundError | NotADirectoryError):
                return  # there is none
            raise
        for depth in range(len(folders) - 1, 0, -1):
            try:
                with open_folder(self._files, self._outbox, folders[:depth]) as above:
                    self._files.rmdir(Entry(above, folders[depth]))
            except OSError:  # other notes are in it
                return

    def _unlink(self, folder: int, folders: tuple[str, ...], name: str) -> None:
        """Remove a note for good: once its picture is done, no start looks for it any more.

        Raises:
            FileNotFoundError: there is none (also after a power cut: who removed it may not have synced).
        """
        try:
            self._files.unlink(Entry(folder, name))
        except FileNotFoundError:
            if folders not in self._settled:
                self._settle(folder, folders)
            raise
        self._settle(folder, folders)

    def _settle(self, folder: int, folders: tuple[str, ...]) -> None:
        self._settled.discard(folders)
        self._files.fsync_folder(folder, folders[-1])
        if len(self._settled) >= _REMEMBERED:
            self._settled.clear()
        self._settled.add(folders)


def _number(job: str) -> float:
    """The number of a job's id; what is none of this program's counts as new."""
    number = job.rpartition("-")[2]
    return int(number) if number.isdecimal() else float("inf")


def _reason(error: OSError | OutsideError) -> str:
    return plain_reason(error) if isinstance(error, OSError) else str(error)
