"""`outbox/failed/<source>.json` and `outbox/held/<source>.json`: for a person who only sees the folder.

Rules of this file:
- A note appears whole, and the newest one wins. A note that cannot be written is logged, and no more.
- Folders that a note's removal empties go too; `failed` and `held` themselves stay.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from watcher.adapters.beneath import OutsideError, open_file, open_folder, split
from watcher.adapters.file_operations import Entry, plain_reason
from watcher.adapters.json_text import for_people
from watcher.adapters.output_names import note_name

if TYPE_CHECKING:
    from pathlib import Path

    from watcher.adapters.file_operations import FileOperations
    from watcher.adapters.staging import Staging
    from watcher.core.job import JsonObject

_KINDS: Final = ("failed", "held")
_STAGE_NAME: Final = "note"
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

    def write(self, kind: str, source: str, content: JsonObject) -> None:
        """Write, or replace, the note of a source; one that says the same already is left alone."""
        try:
            *folders, name = split(source)
            with open_folder(self._files, self._outbox, (kind, *folders), create=True) as folder:
                target = Entry(folder, note_name(name, self._name_bytes))
                text = for_people(content)
                if not self._says(target, text):
                    self._staging.put(_STAGE_NAME, text, target)
        except (OSError, OutsideError) as error:
            _log.warning("note.failed", kind=kind, source=source, reason=_reason(error))

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
            *folders, name = split(source)
            for kind in _KINDS:
                with suppress(FileNotFoundError, NotADirectoryError):
                    self._remove((kind, *folders), note_name(name, self._name_bytes))
        except (OSError, OutsideError) as error:
            _log.warning("note.not_removed", source=source, reason=_reason(error))

    def _remove(self, folders: tuple[str, ...], name: str) -> None:
        with open_folder(self._files, self._outbox, folders) as folder:
            self._files.unlink(Entry(folder, name))
        for depth in range(len(folders) - 1, 0, -1):
            try:
                with open_folder(self._files, self._outbox, folders[:depth]) as above:
                    self._files.rmdir(Entry(above, folders[depth]))
            except OSError:  # other notes are in it
                return


def _reason(error: OSError | OutsideError) -> str:
    return plain_reason(error) if isinstance(error, OSError) else str(error)
