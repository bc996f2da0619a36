"""`outbox/logs/timings-*.jsonl`: one line a finished job, for people and scripts.

Rules of this file:
- The day in a file's name is the UTC date of the records in it. The first file of a day is
  `timings-2026-11-30.jsonl`; when a line would make it too large, the day goes on in
  `timings-2026-11-30.1.jsonl`, then `.2`. A file is never renamed, so what follows or syncs the folder
  sees files that only grow.
- A line is one write and is synced before `append` returns. A crash may leave the last line torn, a power
  cut with zeros in it: it is cut off before anything is appended or looked up, since its job will be logged
  again.
- A line that is found is made durable before its job counts as logged: the process that wrote it may have
  been killed before it could sync.
- The outbox itself is never made here: if it is away, appending fails, and rescue appends later.
- One process writes.
"""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from watcher.adapters.beneath import open_folder
from watcher.adapters.file_operations import CHUNK_BYTES, Entry, FileOperations
from watcher.adapters.json_text import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from watcher.core.job import JsonObject
    from watcher.ports import Clock

_NAME: Final = re.compile(r"timings-(?P<day>\d{4}-\d{2}-\d{2})(?:\.(?P<number>\d+))?\.jsonl")
_FULL_FILES: Final = 64
"""So much there is at most, whatever its age, so that a flood of pictures fills no disk: 1 GiB in files of
16 MiB, which is 700,000 lines."""
_JOB: Final = re.compile(rb'"job"\s*:\s*"([^"\\]*)"')
_log = structlog.get_logger()


class JsonlTimingLog:
    """Implements `watcher.ports.TimingLog` on a folder.

    Args:
        folder: `outbox/logs`; made when it is first needed, its parent is not.
        clock: for the age of files, and for the date of a record without one.
        max_bytes: a file that a line would take beyond this is left, and the next one begun.
        keep_days: files of days longer ago than this are removed; the oldest earlier, where all together are
            larger than 64 that are full.
        files: what touches the disk.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        max_bytes: int,
        keep_days: int,
        files: FileOperations | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep = timedelta(days=keep_days)
        self._files = files or FileOperations()
        self._pruned_on: date | None = None
        self._durable: set[str] = set()
        """Files whose names this process has made durable."""

    def append(self, record: JsonObject) -> None:
        """Append one line, durably.

        Raises:
            OSError: the disk will not take it, or the outbox is away; nothing of the line is left.
        """
        line = one_line(record)
        with self._opened(create=True) as folder:
            self._prune(folder)
            name = self._name_for(folder, self._day_of(record), len(line))
            self._append(Entry(folder, name), line)

    def logged(self, ids: Collection[str]) -> set[str]:
        """Which of these jobs have a line already; a torn last line is removed first.

        Raises:
            OSError: the log cannot be read, or the outbox is away.
        """
        wanted = {job.encode() for job in ids}
        found: set[bytes] = set()
        try:
            with self._opened(create=False) as folder:
                for name in sorted(_days_of(folder)):
                    found |= self._jobs_in(Entry(folder, name), wanted - found)
                    if found == wanted:
                        break
                if found:
                    self._files.fsync_folder(folder, self._folder.name)
        except FileNotFoundError:
            if not self._folder.parent.is_dir():
                raise
        return {job.decode() for job in found}

    @contextmanager
    def _opened(self, *, create: bool) -> Iterator[int]:
        with open_folder(self._files, self._folder.parent, (self._folder.name,), create=create) as folder:
            yield folder

    def _day_of(self, record: JsonObject) -> date:
        try:
            moment = datetime.fromisoformat(str(record.get("ts")))
        except ValueError:
            return self._today()
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).date()

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now().wall_s, tz=UTC).date()

    def _name_for(self, folder: int, day: date, line_bytes: int) -> str:
        number = max((number for other, number in _days_of(folder).values() if other == day), default=0)
        name = _name(day, number)
        try:
            size_bytes = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return name
        return _name(day, number + 1) if size_bytes and size_bytes + line_bytes > self._max_bytes else name

    def _append(self, entry: Entry, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = self._files.open(entry, flags)
        try:
            end = self._cut_torn_line(descriptor, entry.name)
            try:
                self._write(descriptor, line, entry.name)
                self._files.fsync(descriptor, entry.name)
                self._make_name_durable(entry, is_new=end == 0)
            except OSError:
                self._files.truncate(descriptor, end, entry.name)  # or it would be logged twice
                raise
        finally:
            os.close(descriptor)

    def _make_name_durable(self, entry: Entry, *, is_new: bool) -> None:
        """Sync the folder, unless this process has done it since the file was made."""
        if entry.folder is not None and (is_new or entry.name not in self._durable):
            self._files.fsync_folder(entry.folder, entry.name)
            self._durable.add(entry.name)
        if is_new:
            self._pruned_on = None

    def _write(self, descriptor: int, line: bytes, name: str) -> None:
        if self._files.write(descriptor, line, name) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _cut_torn_line(self, descriptor: int, name: str) -> int:
        """Cut off what follows the last whole line; returns the length that is left."""
        size_bytes = os.fstat(descriptor).st_size
        end = _end_of_last_line(descriptor, size_bytes)
        if end and not _is_whole(descriptor, start := _end_of_last_line(descriptor, end - 1), end):
            end = start
        if end < size_bytes:
            self._files.truncate(descriptor, end, name)
            _log.warning("timings.torn_line_removed", file=name, removed_bytes=size_bytes - end)
        return end

    def _jobs_in(self, entry: Entry, wanted: set[bytes]) -> set[bytes]:
        descriptor = self._files.open(entry, os.O_RDWR | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "r+b") as lines:
            self._cut_torn_line(descriptor, entry.name)
            found = {
                job for line in lines for job in _JOB.findall(line) if job in wanted and _is_job_of(line, job)
            }
            if found:
                self._files.fsync(descriptor, entry.name)
            return found

    def _prune(self, folder: int) -> None:
        today = self._today()
        if self._pruned_on == today:
            return
        days = _days_of(folder)
        left_bytes = _FULL_FILES * self._max_bytes
        for name in sorted(days, key=days.__getitem__, reverse=True):
            left_bytes -= os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            if left_bytes < 0 or days[name][0] < today - self._keep:
                self._files.unlink(Entry(folder, name))
                self._durable.discard(name)
                _log.info("timings.pruned", file=name)
        self._pruned_on = today


def records_in(
    folder: Path, *, job: str | None = None, days: tuple[str | None, str | None] = (None, None)
) -> Iterator[dict[str, Any]]:
    """The records of a timing log, oldest file first, for whoever only reads; while it is being written, too.

    Args:
        folder: `outbox/logs`.
        job: only this one's, if given.
        days: the first and the last, as UTC dates, if given; jobs that ended on them count.

    Lines that are no records are passed over. An unreadable log has none.
    """
    try:
        files = sorted(
            (match["day"], int(match["number"] or 0), path)
            for path in folder.iterdir()
            if (match := _NAME.fullmatch(path.name)) and path.is_file() and not path.is_symlink()
        )
    except OSError:
        return
    first, last = days
    for day, _number, path in files:
        if (first is None or day >= first) and (last is None or day <= last):
            yield from _records_of(path, job)


def _records_of(path: Path, job: str | None) -> Iterator[dict[str, Any]]:
    wanted = None if job is None else job.encode()
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or (wanted is not None and wanted not in line):
                    continue
                with suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict) and (job is None or record.get("job") == job):
                        yield record
    except OSError:
        return


def _name(day: date, number: int) -> str:
    return f"timings-{day.isoformat()}{f'.{number}' if number else ''}.jsonl"


def _days_of(folder: int) -> dict[str, tuple[date, int]]:
    """The log's files in a folder, with their day and number."""
    found = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match:
            try:
                found[name] = (date.fromisoformat(match["day"]), int(match["number"] or 0))
            except ValueError:
                continue
    return found


def _end_of_last_line(descriptor: int, size_bytes: int) -> int:
    end = size_bytes
    while end > 0:
        start = max(0, end - CHUNK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _is_whole(descriptor: int, start: int, end: int) -> bool:
    """Whether this line is JSON: sectors of it that were not written before a power cut are zeros."""
    try:
        json.loads(os.pread(descriptor, end - start, start).decode())
    except ValueError:
        return False
    return True


def _is_job_of(line: bytes, job: bytes) -> bool:
    """Whether this is the record of that job, and not one that mentions it."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("job") == job.decode()
