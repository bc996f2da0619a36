"""Where results lie until they are published: a folder that nobody watches or syncs, if there is one.

Rules of this file:
- The folder is `state_dir/staging` if a file can be renamed from there into the outbox (tried, not guessed:
  bind mounts and quotas keep two folders of one device apart), else `outbox/.watcher/staging`.
- Both are looked into, whichever is chosen: the choice may have been another before the last start.
- A sync that failed has given up on bytes that it could not write, and the next one would not try them again:
  such a file is written anew.
- A staged file that cannot be renamed into the outbox after all, since another disk was mounted, is copied
  into the outbox's own staging first.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from watcher.adapters.beneath import OutsideError, open_file, open_folder, split
from watcher.adapters.file_operations import Entry, copy_file, plain_reason, status_of
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from watcher.adapters.file_operations import FileOperations

_HIDDEN: Final = ".watcher"
_STAGING: Final = "staging"
_PROBE: Final = "probe"
_COPY: Final = "anew"
_PRIVATE: Final = 0o700
_log = structlog.get_logger()


class Place(NamedTuple):
    """A folder for staged files: the way down from a root."""

    root: Path
    names: tuple[str, ...]


class Staging:
    """The staged files.

    Args:
        state_dir: made if it is not there.
        outbox: never made.
        files: what touches the disk.

    Raises:
        RemediableError: there can be no staging folder.
    """

    def __init__(self, state_dir: Path, outbox: Path, files: FileOperations) -> None:
        self._files = files
        self._outbox = outbox
        self._own = Place(state_dir, (_STAGING,))
        self._beside = Place(outbox, (_HIDDEN, _STAGING))
        try:
            state_dir.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._make(self._own)
        except OSError as error:
            raise RemediableError(
                f"no staging folder can be made in {state_dir}: {plain_reason(error)}",
                "Set `state_dir` to a folder that this user may write to, on a disk with free space.",
            ) from error
        self._unsynced: set[str] = set()
        """Staged files that a sync has failed on."""
        self._chosen = self._choose()

    @property
    def path(self) -> str:
        """Absolute path of the folder where workers put results."""
        return os.path.abspath(self._chosen.root.joinpath(*self._chosen.names))  # noqa: PTH100 - resolves no link

    def make(self) -> None:
        """Make the folder, if somebody has removed it.

        Raises:
            OSError: it cannot be made.
        """
        self._make(self._chosen)

    def find(self, name: str) -> Place | None:
        """Where a staged file lies, or None.

        Raises:
            OSError: a folder cannot be looked at.
        """
        for place in (self._chosen, self._own, self._beside):
            with suppress(FileNotFoundError, NotADirectoryError), self._opened(place) as folder:
                status = status_of(Entry(folder, _single(name)))
                if status is not None and stat.S_ISREG(status.st_mode):
                    return place
        return None

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Open a staged file for reading.

        Raises:
            FileNotFoundError: there is none.
            OSError: as the system says.
        """
        place = self.find(name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        with self._opened(place) as folder, open_file(self._files, Entry(folder, name)) as descriptor:
            yield descriptor

    def sync(self, name: str, sha256: str) -> None:
        """Make the bytes of a staged file durable.

        Args:
            name: of the file.
            sha256: of its bytes, as it was staged.

        Raises:
            FileNotFoundError: there is none, or an earlier sync failed and has lost some of its bytes.
            OSError: as the system says.
        """
        if name in self._unsynced:
            self._write_anew(name, sha256)
            return
        with self.opened(name) as descriptor:
            try:
                self._files.fsync(descriptor, name)
            except OSError:
                self._unsynced.add(name)
                raise

    def add_copy(self, name: str, source: int, *, mode: int, mtime_ns: int) -> str:
        """Stage a durable copy of an open file; returns its sha256.

        Raises:
            OSError: nothing was staged.
        """
        self.make()
        with self._opened(self._chosen) as folder:
            target = Entry(folder, _single(name))
            return copy_file(self._files, source, target, mode=mode, mtime_ns=mtime_ns)

    def move_out(self, name: str, target: Entry, *, replace: bool) -> None:
        """Move a staged file to its final name, in the outbox.

        Raises:
            FileNotFoundError: there is none.
            FileExistsError: the name is taken.
            OSError: as the system says; the file is still staged.
        """
        place = self.find(name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        with self._opened(place) as folder:
            source = Entry(folder, name)
            try:
                self._rename(source, target, replace=replace)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy_out(source, target, replace=replace)

    def put(self, name: str, content: bytes, target: Entry) -> None:
        """Write a file of the service's own in the outbox in one step, replacing what is there.

        Args:
            name: a staging name that is free.
            content: its bytes.
            target: its name in the outbox.

        Raises:
            OSError: as the system says; the target is as it was.
        """
        try:
            self._put_from(self._chosen, name, content, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._put_from(self._beside, name, content, target)

    def discard(self, name: str) -> None:
        """Remove a staged file, wherever it lies.

        Raises:
            OSError: it is there and cannot be removed.
        """
        self._unsynced.discard(name)
        for place in (self._own, self._beside):
            with suppress(FileNotFoundError, NotADirectoryError), self._opened(place) as folder:
                self._files.unlink(Entry(folder, _single(name)))

    def sweep(self, keep: Collection[str]) -> int:
        """Remove every staged file but these, and the outbox's staging folder if it is not in use.

        Returns:
            How many files were removed.
        """
        removed = 0
        hidden = Place(self._outbox, (_HIDDEN,))
        for place in (self._own, self._beside, hidden):
            with suppress(OSError), self._opened(place) as folder:
                for name in sorted(_names_in(folder) - set(keep) - {_STAGING}):
                    removed += self._swept(Entry(folder, name))
        if self._chosen != self._beside:
            with suppress(OSError), self._opened(hidden) as folder:
                self._files.rmdir(Entry(folder, _STAGING))
            with suppress(OSError), open_folder(self._files, self._outbox) as folder:
                self._files.rmdir(Entry(folder, _HIDDEN))
        return removed

    # --- inside --------------------------------------------------------------------------------------------

    def _choose(self) -> Place:
        try:
            if self._can_rename_into_outbox():
                return self._own
            self._make(self._beside)
        except OSError as error:
            # the outbox is away or full: publication tells of it, and copies where it cannot rename
            _log.debug("staging.undecided", reason=plain_reason(error))
            return self._own
        return self._beside

    def _can_rename_into_outbox(self) -> bool:
        with self._opened(self._own) as here, open_folder(self._files, self._outbox) as there:
            if os.fstat(here).st_dev != os.fstat(there).st_dev:
                return False
            hidden = Place(self._outbox, (_HIDDEN,))
            self._make(hidden)
            try:
                with self._opened(hidden) as folder:
                    return self._probe(Entry(here, _PROBE), Entry(folder, _PROBE))
            finally:
                with suppress(OSError):
                    self._files.rmdir(Entry(there, _HIDDEN))

    def _probe(self, source: Entry, target: Entry) -> bool:
        for entry in (source, target):
            with suppress(FileNotFoundError):
                self._files.unlink(entry)
        os.close(self._files.open(source, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        try:
            self._files.rename_without_replacing(source, target)
        except OSError as error:
            self._files.unlink(source)
            if error.errno != errno.EXDEV:
                raise
            return False
        self._files.unlink(target)
        return True

    def _opened(self, place: Place) -> AbstractContextManager[int]:
        return open_folder(self._files, place.root, place.names)

    def _make(self, place: Place) -> None:
        with open_folder(self._files, place.root, place.names, create=True, mode=_PRIVATE):
            pass

    def _write_anew(self, name: str, sha256: str) -> None:
        """Put a durable copy of a staged file in its place."""
        place = self.find(name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        with self._opened(place) as folder, open_file(self._files, Entry(folder, name)) as descriptor:
            status = os.fstat(descriptor)
            copy = Entry(folder, _COPY)
            digest = copy_file(
                self._files, descriptor, copy, mode=status.st_mode, mtime_ns=status.st_mtime_ns
            )
            if digest != sha256:
                self._files.unlink(copy)
                raise FileNotFoundError(errno.ENOENT, "its bytes were lost", name)
            self._files.replace(copy, Entry(folder, name))
        self._unsynced.discard(name)

    def _rename(self, source: Entry, target: Entry, *, replace: bool) -> None:
        if replace:
            self._files.replace(source, target)
        else:
            self._files.rename_without_replacing(source, target)

    def _copy_out(self, source: Entry, target: Entry, *, replace: bool) -> None:
        self._make(self._beside)
        with open_file(self._files, source) as descriptor, self._opened(self._beside) as folder:
            status = os.fstat(descriptor)
            near = Entry(folder, source.name)
            copy_file(self._files, descriptor, near, mode=status.st_mode, mtime_ns=status.st_mtime_ns)
            try:
                self._rename(near, target, replace=replace)
            except OSError:
                with suppress(OSError):
                    self._files.unlink(near)
                raise
        with suppress(FileNotFoundError):
            self._files.unlink(source)

    def _put_from(self, place: Place, name: str, content: bytes, target: Entry) -> None:
        self._make(place)
        with self._opened(place) as folder:
            source = Entry(folder, name)
            try:
                descriptor = self._files.open(source, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
                try:
                    self._files.write_all(descriptor, content, name)
                    self._files.fsync(descriptor, name)
                finally:
                    os.close(descriptor)
                self._files.replace(source, target)
            except OSError:
                with suppress(OSError):
                    self._files.unlink(source)
                raise

    def _swept(self, entry: Entry) -> bool:
        try:
            self._files.unlink(entry)
        except OSError as error:
            _log.warning("stage.not_removed", file=entry.name, reason=plain_reason(error))
            return False
        return True


def _names_in(folder: int) -> set[str]:
    return set(os.listdir(folder))


def _single(name: str) -> str:
    """Refuse a stage name that is a path."""
    if len(split(name)) != 1:
        raise OutsideError(f"not a name for a staged file: {name!r}")
    return name
