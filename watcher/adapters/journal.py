"""The durable memory of the service: one SQLite file in `state_dir`.

Rules of this file:
- What `commit` has returned from is on the disk, all of it, or it has raised and none of it is.
- A job's number is never given twice, also when its row is long gone.
- Only the service writes. Others open the file with `open_readonly`, while it runs or after it.
- Names are kept as bytes, since a name need not be UTF-8. Integers that SQLite cannot hold (inodes
  of 64 bits, times after 2262) are kept as text: a fingerprint that came back rounded
  would look like a change.
- Nothing that SQLite raises leaves this file, unless it is a bug of ours: a person gets a remedy.
- What may be forgotten, and when, is the business of `retention`; here is noted what it goes by.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from watcher.adapters.filesystems import file_system_type, is_network
from watcher.adapters.retention import Retention
from watcher.core.commands import FinishJob, ForgetFile, SaveFile, SaveJob
from watcher.core.events import JournalOpened, SavedFile
from watcher.core.job import ANSWERS, FINAL_STATES, Fingerprint, Identity, Job, JobState
from watcher.core.lives import WorkerLife
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from watcher.core.commands import JournalWrite

_Row: TypeAlias = "tuple[Any, ...]"
_NO_FILES: Final[Mapping[str, SavedFile]] = MappingProxyType({})

_TRY_AGAIN: Final = 75
_BUSY_MS: Final = 5000
_CHECKPOINT_PAGES: Final = 250
"""So many are carried from the write-ahead log (1 MiB then) into the file at a time: the commit that does it
takes some 10 ms more, and not the 40 of SQLite's own 1000."""
_WAL_LIMIT_BYTES: Final = 8 << 20
"""The log grows while somebody reads for long, and is cut to this after that."""
_CHECKED_BYTES: Final = 64 << 20
"""A larger file is not read through at start: it would keep the service from watching."""
_IDS_A_QUERY: Final = 500  # SQLite before 3.32 takes 999 parameters

_MAX_ANSWERS: Final = 64
"""So many answers for a content are read. A rename among more copies than that is taken for a copy."""
_MAX_UNLOGGED: Final = 1000
"""So many jobs without a timing line are read at a time."""

_ANSWERS_SQL: Final = ", ".join(f"'{state}'" for state in sorted(ANSWERS))
_FINAL_SQL: Final = ", ".join(f"'{state}'" for state in sorted(FINAL_STATES))

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta (key, value) VALUES ('next_number', 1)",
        # columns without a type keep what they get: see the rule on integers
        """CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            source BLOB NOT NULL,
            inode NOT NULL, size_bytes NOT NULL, mtime_ns NOT NULL, ctime_ns NOT NULL,
            picture_sha256 TEXT NOT NULL, mask_sha256 TEXT, recipe BLOB NOT NULL,
            state TEXT NOT NULL,
            created_s REAL NOT NULL,
            mask BLOB,
            mask_inode, mask_size_bytes, mask_mtime_ns, mask_ctime_ns,
            attempts INTEGER NOT NULL, solo_faults INTEGER NOT NULL, suspect INTEGER NOT NULL,
            duplicate_of TEXT, retry_of TEXT,
            stage_name BLOB, output BLOB, sha256_out TEXT, reason BLOB,
            record TEXT,
            logged INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX jobs_by_picture ON jobs (picture_sha256, recipe)",
        "CREATE INDEX jobs_by_state ON jobs (state)",
        "CREATE INDEX jobs_by_source ON jobs (source)",
        "CREATE INDEX jobs_unlogged ON jobs (seq) WHERE logged = 0",
        """CREATE TABLE files (
            path BLOB PRIMARY KEY,
            inode NOT NULL, size_bytes NOT NULL, mtime_ns NOT NULL, ctime_ns NOT NULL,
            sha256 TEXT NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        # what retention goes by; see there
        "INSERT INTO meta (key, value) VALUES ('day', 0), ('day_began_s', 0)",
        "ALTER TABLE jobs ADD COLUMN logged_day INTEGER",
        "ALTER TABLE jobs ADD COLUMN absent_day INTEGER",
        "CREATE INDEX files_by_sha256 ON files (sha256)",
        "UPDATE jobs SET logged_day = 0 WHERE logged = 1",
        "UPDATE jobs SET absent_day = 0 WHERE picture_sha256 NOT IN (SELECT sha256 FROM files)",
        "CREATE INDEX jobs_history ON jobs (logged_day) WHERE logged_day IS NOT NULL",
        """CREATE INDEX jobs_absent ON jobs (absent_day) WHERE absent_day IS NOT NULL AND logged = 1
            AND state IN ('done', 'failed', 'quarantined', 'unchanged')""",
        "CREATE INDEX jobs_by_retried ON jobs (retry_of) WHERE retry_of IS NOT NULL",
        """CREATE INDEX jobs_by_copied ON jobs (duplicate_of)
            WHERE duplicate_of IS NOT NULL
            AND state IN ('waiting', 'ready', 'running', 'publishing', 'held')""",
    ),
    (
        """CREATE INDEX jobs_by_output ON jobs (output)
            WHERE output IS NOT NULL AND state IN ('done', 'unchanged')""",
    ),
    (
        "ALTER TABLE jobs ADD COLUMN losses TEXT",
        """CREATE INDEX jobs_suspect ON jobs (picture_sha256, recipe)
            WHERE suspect = 1 AND state IN ('gone', 'superseded')""",
    ),
    (
        "INSERT INTO meta (key, value) VALUES ('run', 0)",
        """CREATE TABLE worker_lives (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            run INTEGER NOT NULL, incarnation INTEGER NOT NULL,
            noted_day INTEGER NOT NULL,
            life TEXT NOT NULL,
            UNIQUE (run, incarnation)
        )""",
    ),
)
"""Entry N brings a file from schema N to N + 1. Entries are only ever appended."""

_COLUMNS: Final = (
    *("id", "source", "inode", "size_bytes", "mtime_ns", "ctime_ns"),
    *("picture_sha256", "mask_sha256", "recipe", "state", "created_s"),
    *("mask", "mask_inode", "mask_size_bytes", "mask_mtime_ns", "mask_ctime_ns"),
    *("attempts", "solo_faults", "suspect", "losses", "duplicate_of", "retry_of"),
    *("stage_name", "output", "sha256_out", "reason", "record"),
)
_STANDS: Final = (
    "NOT EXISTS (SELECT 1 FROM jobs AS later INDEXED BY jobs_by_output "
    "WHERE later.output = jobs.output AND later.seq > jobs.seq AND later.state IN ('done', 'unchanged'))"
)
"""No later result has the job's name in the outbox: with `on_conflict = "replace"` an answer may be gone."""
_FINAL_AT_PATH: Final = (
    "SELECT seq FROM jobs WHERE source = ? AND picture_sha256 = ? AND recipe = ? "  # noqa: S608 - as below
    f"AND state IN ({_FINAL_SQL}) AND {_STANDS}"
)
_NEWEST_ANSWERS: Final = (
    "SELECT seq FROM jobs INDEXED BY jobs_by_picture WHERE picture_sha256 = ? AND recipe = ? "  # noqa: S608 - as below
    f"AND state IN ({_ANSWERS_SQL}) AND {_STANDS} ORDER BY seq DESC LIMIT {_MAX_ANSWERS}"
)
_NEWEST_SUSPECT: Final = (
    "SELECT seq FROM jobs INDEXED BY jobs_suspect WHERE picture_sha256 = ? AND recipe = ? "
    "AND mask_sha256 IS ? AND suspect = 1 AND state IN ('gone', 'superseded') ORDER BY seq DESC LIMIT 1"
)
"""What a content was blamed for goes with it to another path."""
_SELECT_JOBS: Final = f"SELECT seq, {', '.join(_COLUMNS)} FROM jobs"  # noqa: S608 - literals of this file
_SELECT_ACTIVE: Final = (
    # what a worker reported before a crash counts only for a result that is being published
    f"SELECT {', '.join(_COLUMNS[:-1])}, CASE state WHEN 'publishing' THEN record END "  # noqa: S608 - as above
    f"FROM jobs WHERE state NOT IN ({_FINAL_SQL}) ORDER BY seq"
)
_SAVE_JOB: Final = (
    f"INSERT INTO jobs ({', '.join(_COLUMNS)}, absent_day) VALUES ({', '.join('?' * len(_COLUMNS))}, "  # noqa: S608 - as above
    "CASE WHEN EXISTS (SELECT 1 FROM files WHERE sha256 = ?) THEN NULL ELSE ? END) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)
_SAVE_FILE: Final = (
    "INSERT OR REPLACE INTO files (path, inode, size_bytes, mtime_ns, ctime_ns, sha256) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_SAVE_LIFE: Final = (
    "INSERT INTO worker_lives (run, incarnation, noted_day, life) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run, incarnation) DO UPDATE SET noted_day = excluded.noted_day, life = excluded.life"
)


class SqliteJournal:
    """Implements `watcher.ports.Journal` on one file.

    Use it on the thread that made it. It does not keep a second service out: the service's own lock does.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        """Open the journal; make it, or bring it up to date, where that is needed.

        Args:
            path: the file; its folder is made.
            readonly: only look at it (see `open_readonly`).

        Raises:
            RemediableError: it lies on a network file system, is damaged, is of a newer watcher, or the disk
                refuses.
        """
        self._path = path
        if not readonly:
            _refuse_network(path)
            _make_folder(path)
        with _explained(path):
            self._database = _connect(path, readonly=readonly)
            try:
                if readonly:
                    self._refuse_other_schema()
                else:
                    self._prepare()
                self._retention = Retention(self._database)
            except BaseException:
                self._database.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load(self) -> JournalOpened:
        """What the core needs at start."""
        with _explained(self._path), self._transaction("BEGIN"), _without_collections():
            files = tuple(
                SavedFile(_text(path), _fingerprint(prints), sha256)
                for path, *prints, sha256 in self._database.execute(
                    "SELECT path, inode, size_bytes, mtime_ns, ctime_ns, sha256 FROM files ORDER BY path"
                )
            )
            return JournalOpened(
                jobs=self._active_jobs({file.path: file for file in files}),
                files=files,
                next_number=self._meta("next_number"),
                run=self._meta("run"),
            )

    def commit(self, writes: Sequence[JournalWrite]) -> None:
        """Make the writes durable, all or none.

        Raises:
            RemediableError: none was made; `exit_code` 75 where a later try may work (disk full, busy).
        """
        if not writes:
            return
        with _explained(self._path), self._transaction("BEGIN IMMEDIATE"):
            for write in writes:
                self._write(write)

    def prior_jobs(self, identity: Identity, path: str) -> tuple[Job, ...]:
        """Jobs of the identity's picture and recipe, whatever their mask, oldest first.

        All final ones of the picture at this path, the newest answers for others, and the newest that ended a
        process and was never answered for: where one content lies at thousands of paths, reading them all
        for each would take hours. Not those whose result was replaced by a later one: they answer for
        nothing any more.
        """
        with _explained(self._path):
            return self._select(
                f"WHERE seq IN ({_FINAL_AT_PATH}) OR seq IN ({_NEWEST_ANSWERS}) "
                f"OR seq IN ({_NEWEST_SUSPECT})",
                (
                    _blob(path),
                    *(identity.picture_sha256, _blob(identity.recipe)) * 3,
                    identity.mask_sha256,
                ),
            )

    def jobs(self, *, states: Collection[JobState] = (), ids: Collection[str] = ()) -> tuple[Job, ...]:
        """Jobs in any of these states and with any of these ids (empty: all), oldest first."""
        clause, values = _among("state", [str(state) for state in states])
        wanted = list(dict.fromkeys(ids))
        with _explained(self._path):
            if not wanted:
                return self._select(f"WHERE {clause}", values)
            with self._transaction("BEGIN"):
                found: dict[int, Job] = {}
                for start in range(0, len(wanted), _IDS_A_QUERY):
                    more, keys = _among("id", wanted[start : start + _IDS_A_QUERY])
                    found.update(self._numbered(f"WHERE {clause} AND {more}", (*values, *keys)))
        return tuple(found[seq] for seq in sorted(found))

    def given_up(self) -> tuple[Job, ...]:
        """Failed and quarantined jobs that are the last word on a picture of the inbox, oldest first."""
        with _explained(self._path):
            return self._select(
                "WHERE state IN (?, ?) AND NOT EXISTS "
                "(SELECT 1 FROM jobs AS later WHERE later.source = jobs.source AND later.seq > jobs.seq) "
                "AND EXISTS (SELECT 1 FROM files WHERE path = source AND sha256 = picture_sha256)",
                (JobState.FAILED.value, JobState.QUARANTINED.value),
            )

    def newest(self, *, states: Collection[JobState] = (), limit: int) -> tuple[Job, ...]:
        """The newest jobs in any of these states (empty: all), oldest first."""
        wanted = [str(state) for state in states]
        with _explained(self._path):
            return self._select(f"WHERE seq IN ({_newest_sql(len(wanted), limit)})", wanted)

    def at(self, source: str) -> tuple[Job, ...]:
        """The jobs of the picture at this path, oldest first."""
        with _explained(self._path):
            return self._select("WHERE source = ?", (_blob(source),))

    def hash_at(self, path: str) -> str | None:
        """The sha256 of the bytes that lie at this path of the inbox, as far as the service has seen."""
        with _explained(self._path):
            row = self._database.execute("SELECT sha256 FROM files WHERE path = ?", (_blob(path),)).fetchone()
        return None if row is None else str(row[0])

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; states without jobs are left out."""
        with _explained(self._path):
            rows = self._database.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
        return {JobState(state): count for state, count in rows}

    def unlogged(self) -> tuple[Job, ...]:
        """Final jobs whose timing line is not known to be written, the oldest, not more than a thousand."""
        with _explained(self._path):
            oldest = f"SELECT seq FROM jobs WHERE logged = 0 AND state IN ({_FINAL_SQL})"  # noqa: S608 - literals
            return self._select(f"WHERE seq IN ({oldest} ORDER BY seq LIMIT {_MAX_UNLOGGED})")

    def mark_logged(self, ids: Iterable[str]) -> None:
        """Their timing lines are on disk. Not synced: a crash may lose it, and rescue looks at the log."""
        with _explained(self._path), self._unsynced():
            self._database.executemany(
                "UPDATE jobs SET logged = 1, logged_day = ? WHERE id = ? AND logged = 0",
                [(self._retention.day, job) for job in ids],
            )

    def save_life(self, life: WorkerLife) -> None:
        """Note a process's life. Not synced: a crash may lose it."""
        text = json.dumps(asdict(life), separators=(",", ":"))
        with _explained(self._path), self._unsynced():
            self._database.execute(_SAVE_LIFE, (life.run, life.incarnation, self._retention.day, text))

    def lives(self) -> tuple[WorkerLife, ...]:
        """The lives of workers, as far as they are kept, oldest first."""
        with _explained(self._path), self._intact_rows():
            rows = self._database.execute("SELECT life FROM worker_lives ORDER BY seq")
            return tuple(WorkerLife(**json.loads(text)) for (text,) in rows)

    @property
    def run(self) -> int:
        """Which start of the service was the last, counted from 1."""
        with _explained(self._path):
            return self._meta("run")

    def prune(self, wall_s: float) -> bool:
        """Forget a few rows of what nobody needs any more (see `retention`); some milliseconds.

        Returns:
            Whether there may be more to forget. If not, an hour from now is soon enough.
        """
        with self._intact_rows(), _explained(self._path), self._unsynced():
            self._retention.count_day(wall_s)
            return self._retention.forget()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    # --- opening -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        execute = self._database.execute
        if self._schema() > len(MIGRATIONS):
            raise _newer(self._path, self._schema())
        self._check()
        (mode,) = execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise RemediableError(
                f"the file system of {self._path} cannot hold the journal: it has no write-ahead log",
                "Set `state_dir` to a folder on a local disk.",
            )
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA fullfsync = ON")  # macOS: through the drive's own cache
        execute("PRAGMA checkpoint_fullfsync = ON")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        self._migrate()
        execute("UPDATE meta SET value = value + 1 WHERE key = 'run'")

    def _check(self) -> None:
        if self._path.stat().st_size > _CHECKED_BYTES:
            return
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(self._path, verdict)

    def _migrate(self) -> None:
        if self._schema() == len(MIGRATIONS):
            return
        with self._transaction("BEGIN IMMEDIATE"):
            for statements in MIGRATIONS[self._schema() :]:
                for statement in statements:
                    self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _refuse_other_schema(self) -> None:
        schema = self._schema()
        if schema > len(MIGRATIONS):
            raise _newer(self._path, schema)
        if schema == 0:
            raise _absent(self._path)
        if schema < len(MIGRATIONS):
            raise RemediableError(
                f"the journal {self._path} was written by an older watcher (schema {schema})",
                "Start the service once (`watcher run`): it brings the journal up to date.",
                exit_code=_TRY_AGAIN,
            )

    def _schema(self) -> int:
        return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    # --- reading and writing -------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._database.execute(begin)
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            # some errors (disk full) roll back by themselves
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        """A transaction that a power cut may undo: what it does is done again then."""
        self._database.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction("BEGIN IMMEDIATE"):
                yield
        finally:
            self._database.execute("PRAGMA synchronous = FULL")

    def _write(self, write: JournalWrite) -> None:
        match write:
            case SaveJob(job):
                self._save(job)
            case FinishJob(job):
                self._save(job)
                self._finish(job)
            case SaveFile(file):
                self._save_file(file)
            case ForgetFile(path):
                self._forget_file(_blob(path))

    def _finish(self, job: Job) -> None:
        execute = self._database.execute
        execute("UPDATE jobs SET logged = 0, logged_day = NULL WHERE id = ?", (job.id,))
        if job.retry_of is not None:  # it may be replaced by this one: it is looked at once more
            today = self._retention.day
            execute("UPDATE jobs SET logged_day = ? WHERE id = ? AND logged = 1", (today, job.retry_of))

    def _save_file(self, file: SavedFile) -> None:
        path = _blob(file.path)
        before = self._sha256_at(path)
        is_new = before != file.sha256 and not self._has_bytes(file.sha256)
        self._database.execute(_SAVE_FILE, (path, *_fingerprint_row(file.fingerprint), file.sha256))
        if is_new:
            self._mark_absent(file.sha256, None)
        if before is not None and not self._has_bytes(before):
            self._mark_absent(before, self._retention.day)

    def _forget_file(self, path: bytes) -> None:
        before = self._sha256_at(path)
        self._database.execute("DELETE FROM files WHERE path = ?", (path,))
        if before is not None and not self._has_bytes(before):
            self._mark_absent(before, self._retention.day)

    def _sha256_at(self, path: bytes) -> str | None:
        row = self._database.execute("SELECT sha256 FROM files WHERE path = ?", (path,)).fetchone()
        return None if row is None else row[0]

    def _has_bytes(self, sha256: str) -> bool:
        """Some file of the inbox has these bytes."""
        found = self._database.execute("SELECT 1 FROM files WHERE sha256 = ?", (sha256,)).fetchone()
        return found is not None

    def _mark_absent(self, picture_sha256: str, day: int | None) -> None:
        """The last file with these bytes left the inbox today, or (None) the first has come."""
        values = (day, picture_sha256)
        self._database.execute("UPDATE jobs SET absent_day = ? WHERE picture_sha256 = ?", values)

    def _save(self, job: Job) -> None:
        row = (*_job_row(job), job.identity.picture_sha256, self._retention.day)
        self._database.execute(_SAVE_JOB, row)
        number = job.id.rpartition("-")[2]
        if number.isdecimal():
            self._database.execute(
                "UPDATE meta SET value = max(value, ?) WHERE key = 'next_number'", (int(number) + 1,)
            )

    def _meta(self, key: str) -> int:
        return int(self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])

    def _active_jobs(self, files: Mapping[str, SavedFile]) -> tuple[Job, ...]:
        """Every job that is not final; what it has in common with its file is in memory once."""
        rows = self._database.execute(_SELECT_ACTIVE)
        with self._intact_rows():
            return tuple(_job(row, files) for row in rows)

    def _select(self, where: str, values: Sequence[str | bytes | None] = ()) -> tuple[Job, ...]:
        return tuple(self._numbered(where, values).values())

    def _numbered(self, where: str, values: Sequence[str | bytes | None]) -> Mapping[int, Job]:
        rows = self._database.execute(f"{_SELECT_JOBS} {where} ORDER BY seq", values)
        with self._intact_rows():
            return {row[0]: _job(row[1:]) for row in rows}

    @contextmanager
    def _intact_rows(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, AttributeError) as error:  # no watcher wrote this
            raise _damaged(self._path, str(error)) from error


def open_readonly(path: Path) -> SqliteJournal:
    """Open the journal for `status`, `jobs` and the like: while the service runs, or when it does not.

    The caller closes it (it is a context manager). Writing through it raises RemediableError.

    Raises:
        RemediableError: there is no journal yet, or it is damaged, or another watcher's.
    """
    if not path.exists():
        raise _absent(path)
    return SqliteJournal(path, readonly=True)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Nothing is garbage among what is loaded: looking for it again and again took a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- rows --------------------------------------------------------------------------------------------------


def _blob(text: str) -> bytes:
    """Any text as bytes: a name's own bytes, and what no name has in a form that comes back."""
    if not text.startswith("\0"):
        with suppress(UnicodeEncodeError):
            return text.encode("utf-8", "surrogateescape")
    return b"\0" + text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    if blob[:1] == b"\0":
        return blob[1:].decode("utf-8", "surrogatepass")
    return blob.decode("utf-8", "surrogateescape")


def _optional_blob(text: str | None) -> bytes | None:
    return None if text is None else _blob(text)


def _optional_text(blob: bytes | None) -> str | None:
    return None if blob is None else _text(blob)


def _integer(value: int) -> int | str:
    return value if -(1 << 63) <= value < 1 << 63 else str(value)


def _fingerprint_row(fingerprint: Fingerprint | None) -> _Row:
    if fingerprint is None:
        return (None, None, None, None)
    return (
        _integer(fingerprint.inode),
        _integer(fingerprint.size_bytes),
        _integer(fingerprint.mtime_ns),
        _integer(fingerprint.ctime_ns),
    )


def _fingerprint(row: Sequence[int | str]) -> Fingerprint:
    inode, size_bytes, mtime_ns, ctime_ns = row
    return Fingerprint(int(inode), int(size_bytes), int(mtime_ns), int(ctime_ns))


def _job_row(job: Job) -> _Row:
    record = None if job.record is None else json.dumps(job.record, separators=(",", ":"), default=dict)
    return (
        job.id,
        _blob(job.source),
        *_fingerprint_row(job.fingerprint),
        job.identity.picture_sha256,
        job.identity.mask_sha256,
        _blob(job.identity.recipe),
        str(job.state),
        job.created_s,
        _optional_blob(job.mask),
        *_fingerprint_row(job.mask_fingerprint),
        job.attempts,
        job.solo_faults,
        job.suspect,
        json.dumps(job.losses, separators=(",", ":")) if job.losses else None,
        job.duplicate_of,
        job.retry_of,
        _optional_blob(job.stage_name),
        _optional_blob(job.output),
        job.sha256_out,
        _optional_blob(job.reason),
        record,
    )


def _job(row: _Row, files: Mapping[str, SavedFile] = _NO_FILES) -> Job:
    """A row as a job; what it has in common with its file in `files` is the same object."""
    job_id, path, *prints, picture_sha256, mask_sha256, recipe, state, created_s = row[:11]
    source, fingerprint = _text(path), _fingerprint(prints)
    file = files.get(source)
    if file is not None and file.fingerprint == fingerprint and file.sha256 == picture_sha256:
        source, fingerprint, picture_sha256 = file.path, file.fingerprint, file.sha256
    mask, *mask_prints = row[11:16]
    attempts, solo_faults, suspect, losses, duplicate_of, retry_of = row[16:22]
    stage_name, output, sha256_out, reason, record = row[22:]
    return Job(
        id=job_id,
        source=source,
        fingerprint=fingerprint,
        identity=Identity(picture_sha256, mask_sha256, _shared_text(recipe)),
        state=JobState(state),
        created_s=created_s,
        mask=_optional_text(mask),
        mask_fingerprint=None if mask_prints[0] is None else _fingerprint(mask_prints),
        attempts=attempts,
        solo_faults=solo_faults,
        suspect=bool(suspect),
        losses=() if losses is None else tuple(json.loads(losses)),
        duplicate_of=duplicate_of,
        retry_of=retry_of,
        stage_name=_optional_text(stage_name),
        output=_optional_text(output),
        sha256_out=sha256_out,
        reason=None if reason is None else _shared_text(reason),
        record=None if record is None else json.loads(record),
    )


@functools.lru_cache(maxsize=64)
def _shared_text(blob: bytes) -> str:
    """A text that many rows have: one object."""
    return _text(blob)


def _newest_sql(states: int, limit: int) -> str:
    """The numbers of the newest jobs in any of so many states (0: all), each read off the end of an index."""
    newest = f"ORDER BY seq DESC LIMIT {limit:d}"
    if not states:
        return f"SELECT seq FROM jobs {newest}"  # noqa: S608 - a number
    of_one_state = f"SELECT seq FROM (SELECT seq FROM jobs WHERE state = ? {newest})"  # noqa: S608 - as above
    return f"SELECT seq FROM ({' UNION ALL '.join([of_one_state] * states)}) {newest}"  # noqa: S608 - as above


def _among(column: str, values: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not values:
        return "1", ()
    return f"{column} IN ({', '.join('?' * len(values))})", tuple(values)


# --- opening, and what can be wrong ------------------------------------------------------------------------


def _connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    name = f"{path.absolute().as_uri()}?mode=ro" if readonly else str(path)
    # isolation_level None: the module opens no transaction of its own, in every Python from 3.11 on
    database = sqlite3.connect(name, timeout=_BUSY_MS / 1000, isolation_level=None, uri=readonly)
    try:
        database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_durable(path.parent)
    except OSError as error:
        raise RemediableError(
            f"cannot make the folder of the journal {path}: {error.strerror}",
            "Set `state_dir` to a folder that this user may write to.",
        ) from error


def _make_durable(folder: Path) -> None:
    """See that the way to a folder is on the disk: whoever made it, now or a moment ago, may not have synced.

    What SQLite promises holds for files in a folder that is there; results that are published would be done
    once more if their journal went with its folder. Folders that this user may not read are left alone.
    """
    for above in folder.absolute().parents:
        with suppress(OSError):
            descriptor = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if above.is_mount():
            return


def _refuse_network(path: Path) -> None:
    if is_network(path.parent):
        raise RemediableError(
            f"the journal {path} would lie on a network file system ({file_system_type(path.parent)}), "
            "where its locks and its write order cannot be trusted",
            "Set `state_dir` to a folder on a local disk. Inbox and outbox may stay where they are.",
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite raises into what a person can mend; bugs of ours pass."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise
    except sqlite3.Error as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: sqlite3.Error) -> RemediableError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of an extended code is detail
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return _damaged(path, str(error))
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return RemediableError(
            f"the disk does not take the journal {path}: {error}",
            f"Free some space on the disk of {path.parent}, or see to the disk. Nothing is lost.",
            exit_code=_TRY_AGAIN,
        )
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}:
        return RemediableError(
            f"the journal {path} is in use by another program: {error}",
            "Is a second watcher running, or a backup or database tool? End it, then try again.",
            exit_code=_TRY_AGAIN,
        )
    return RemediableError(
        f"the journal {path} cannot be used: {error}",
        f"See that this user may read and write {path.parent} and what is in it.",
    )


def _damaged(path: Path, detail: str) -> RemediableError:
    return RemediableError(
        f"the journal {path} is damaged: {detail}",
        f"Move {path} (and {path.name}-wal, {path.name}-shm beside it) away and start again. Your pictures "
        "and results are not in it and stay as they are. Known again from the folders: which pictures are "
        "there. Lost: which of them are done. So move the sources of finished pictures out of the inbox "
        "first; each that stays is done once more and comes out under a new name such as `IMG (2).jpg`.",
    )


def _newer(path: Path, schema: int) -> RemediableError:
    return RemediableError(
        f"the journal {path} is of a newer watcher (schema {schema}; this one knows {len(MIGRATIONS)})",
        "Upgrade this watcher, or set `state_dir` to another folder.",
    )


def _absent(path: Path) -> RemediableError:
    return RemediableError(
        f"there is no journal yet: {path}",
        "It is made by the first `watcher run` or `watcher once`. If there was one, look at `state_dir`.",
        exit_code=_TRY_AGAIN,
    )
