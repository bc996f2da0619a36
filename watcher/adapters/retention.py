"""What the journal may forget, and when: records after a month, identities long after their pictures left.

Rules of this file:
- A job that answers for a picture is forgotten only after no file of the inbox had these bytes for
  `IDENTITY_DAYS`, or when there are more of such than `IDENTITY_ROWS`. Never forgotten is a job that is not
  final, whose timing line is not written, or that an active job refers to.
- Days are counted, not read off a clock: one for each look that the clock calls a day or more after the
  last. A clock that jumps by years makes nothing a year old, and a month in a drawer is one day.
- A call changes at most `CHUNK_ROWS` rows of each kind, so that nothing waits for it.
- Pages that become free are used again, so the file stays as large as it once had to be; nothing compacts it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from watcher.core.job import ANSWERS, REFUSALS, RESULTS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

HISTORY_DAYS: Final = 30
HISTORY_ROWS: Final = 20_000
"""Ended jobs with their whole record, which `watcher jobs` shows: 2.2 to 2.6 kB each, so 52 MB at most."""
IDENTITY_DAYS: Final = 730
IDENTITY_ROWS: Final = 100_000
"""Pictures that left, and are known when they come again: 500 days of 200 a day. A row is 0.5 kB (0.65 with a
mask) and what is left of its record 0.45 kB, so 110 MB at most."""
LIVES_DAYS: Final = 30
LIVES_ROWS: Final = 5_000
"""Lives of workers, which `watcher trace` shows: 0.7 to 0.9 kB each, so 4.5 MB at most."""
CHUNK_ROWS: Final = 50
"""Some 6 ms of work in a journal of 1,000,000 rows; once a second these are 180,000 rows an hour."""
_MOST_EXCESS: Final = 10_000
"""Counted on beyond the limit, so that a count takes 7 ms at most; after these there is another."""

_DAY_S: Final = 86_400
_KEPT_FIELDS: Final = ("ts", "marks", "image", "path", "path_reason", "total_ms", "after", "remedy")
"""What is read of an old job's record: by a copy of its result, the disposal of its source, its note, and by
lists of jobs, which also want to know what ran: `actual` of `engine` and `device`."""


def _quoted(states: Collection[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


# This, `_HISTORY` and `_ABSENT` are in the words of the journal's indexes, or these are not used.
_ACTIVE: Final = "'waiting', 'ready', 'running', 'publishing', 'held'"
_IS_REFERRED_TO: Final = f"""(
    EXISTS (SELECT 1 FROM jobs AS copy WHERE copy.duplicate_of = jobs.id AND copy.state IN ({_ACTIVE}))
    OR EXISTS (SELECT 1 FROM jobs AS again WHERE again.retry_of = jobs.id AND again.state IN ({_ACTIVE}))
)"""  # noqa: S608 - literals of this file
_IS_REPLACED: Final = f"""EXISTS (
    SELECT 1 FROM jobs AS again WHERE again.retry_of = jobs.id AND again.source = jobs.source
    AND again.picture_sha256 = jobs.picture_sha256 AND again.recipe = jobs.recipe
    AND again.mask_sha256 IS jobs.mask_sha256 AND (
        again.state IN ({_quoted(RESULTS)})
        OR (again.state IN ({_quoted(REFUSALS)}) AND jobs.state IN ({_quoted(REFUSALS)}))
    )
)"""  # noqa: S608 - as above
_IS_PRESENT: Final = "EXISTS (SELECT 1 FROM files WHERE files.sha256 = jobs.picture_sha256)"

_HISTORY: Final = "jobs INDEXED BY jobs_history WHERE logged_day IS NOT NULL"
_ABSENT: Final = (
    "jobs INDEXED BY jobs_absent "
    f"WHERE absent_day IS NOT NULL AND logged = 1 AND state IN ({_quoted(ANSWERS)})"
)
"""What may be forgotten some day: whole records, and identities. Each index has these rows alone, by day."""


class _Waiting:
    """The rows that wait to be forgotten, oldest first.

    Args:
        database: the journal.
        rows: which, and their index.
        column: the day since when a row waits.
        keep_days: how long it waits.
        keep_rows: how many may.
    """

    def __init__(
        self, database: sqlite3.Connection, rows: str, column: str, keep_days: int, keep_rows: int
    ) -> None:
        self._execute = database.execute
        self._keep_days = keep_days
        self._keep_rows = keep_rows
        self._counting = f"SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT ?)"  # noqa: S608 - as above
        self._oldest = f"SELECT seq, {column} FROM {rows} ORDER BY {column}, seq LIMIT ?"  # noqa: S608 - as above
        self._excess = 0

    def count(self) -> None:
        """See how many are too many."""
        most = self._keep_rows + _MOST_EXCESS
        (rows,) = self._execute(self._counting, (most,)).fetchone()
        self._excess = max(0, rows - self._keep_rows)

    def take(self, day: int) -> list[int]:
        """The oldest that are too old or too many."""
        oldest = self._execute(self._oldest, (CHUNK_ROWS,)).fetchall()
        due_day = day - self._keep_days
        due = [seq for place, (seq, since) in enumerate(oldest) if place < self._excess or since <= due_day]
        self._excess = max(0, self._excess - len(due))
        return due


class Retention:
    """Forgets by and by. Its caller makes the transactions.

    A row of `jobs` has two days for it. `logged_day`: when the timing line was written, until the record is
    shortened. `absent_day`: since when the inbox holds no file with the picture's bytes.

    Args:
        database: a journal of the newest schema.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._history = _Waiting(database, _HISTORY, "logged_day", HISTORY_DAYS, HISTORY_ROWS)
        self._identities = _Waiting(database, _ABSENT, "absent_day", IDENTITY_DAYS, IDENTITY_ROWS)
        self._has_more = False
        self.day = self._meta("day")
        """What a row is marked with today."""

    def count_day(self, wall_s: float) -> None:
        """A day is over when the clock is a day on."""
        began_s = self._meta("day_began_s")
        if began_s <= wall_s < began_s + _DAY_S:
            return
        if wall_s > began_s:
            self.day += 1
        self._database.executemany(
            "UPDATE meta SET value = ? WHERE key = ?", [(self.day, "day"), (int(wall_s), "day_began_s")]
        )

    def forget(self) -> bool:
        """Forget the oldest of what is due; returns whether there may be more."""
        if not self._has_more:
            self._history.count()
            self._identities.count()
        history, identities = self._history.take(self.day), self._identities.take(self.day)
        forgotten = sum(self._forget_history(seq) for seq in history)
        forgotten += sum(self._forget_identity(seq) for seq in identities)
        lives = self._forget_lives()
        forgotten += lives
        self._has_more = forgotten > 0 and max(len(history), len(identities), lives) == CHUNK_ROWS
        return self._has_more

    def _forget_history(self, seq: int) -> bool:
        """Forget the job, or, if it answers for a picture, most of its record."""
        state, record, is_referred_to, is_replaced = self._database.execute(
            f"SELECT state, record, {_IS_REFERRED_TO}, {_IS_REPLACED} FROM jobs WHERE seq = ?",  # noqa: S608 - as above
            (seq,),
        ).fetchone()
        if is_referred_to:
            self._database.execute("UPDATE jobs SET logged_day = ? WHERE seq = ?", (self.day, seq))
        elif state not in ANSWERS or is_replaced:
            self._database.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        else:
            self._database.execute(
                "UPDATE jobs SET record = ?, logged_day = NULL WHERE seq = ?", (_shortened(record), seq)
            )
        return not is_referred_to

    def _forget_identity(self, seq: int) -> bool:
        """Forget the job, unless something still needs it: then it is looked at again much later."""
        found = self._database.execute(
            f"DELETE FROM jobs WHERE seq = ? AND NOT {_IS_PRESENT} AND NOT {_IS_REFERRED_TO}",  # noqa: S608 - as above
            (seq,),
        )
        if not found.rowcount:
            self._database.execute("UPDATE jobs SET absent_day = ? WHERE seq = ?", (self.day, seq))
        return bool(found.rowcount)

    def _forget_lives(self) -> int:
        """Forget the oldest lives of workers that are too old or too many; returns how many."""
        found = self._database.execute(
            "DELETE FROM worker_lives WHERE seq IN (SELECT seq FROM worker_lives ORDER BY seq LIMIT ?) "
            "AND (noted_day <= ? OR seq <= (SELECT max(seq) FROM worker_lives) - ?)",
            (CHUNK_ROWS, self.day - LIVES_DAYS, LIVES_ROWS),
        )
        return found.rowcount

    def _meta(self, key: str) -> int:
        (value,) = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return int(value)


def _shortened(text: str | None) -> str | None:
    """What of a record is still read when it is old."""
    if text is None:
        return None
    record = json.loads(text)
    short = {name: record[name] for name in _KEPT_FIELDS if name in record}
    short |= {name: {"actual": (record.get(name) or {}).get("actual")} for name in ("engine", "device")}
    return json.dumps(short, separators=(",", ":"))
