"""What the journal forgets, on real SQLite files; time is an argument, so that years take seconds."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watcher.adapters import retention
from watcher.adapters.journal import MIGRATIONS, SqliteJournal
from watcher.adapters.retention import CHUNK_ROWS, HISTORY_DAYS, IDENTITY_DAYS
from watcher.cli.reports import job_facts
from watcher.core.commands import FinishJob, ForgetFile, SaveFile, SaveJob
from watcher.core.events import SavedFile
from watcher.core.job import FINAL_STATES, RESULTS, Fingerprint, Identity, Job, JobState
from watcher.core.lives import WorkerLife
from watcher.core.policy import Policy
from watcher.core.record import draft_copy
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from watcher.core.commands import JournalWrite
    from watcher.core.job import JsonObject

DAY_S: Final = 86_400.0
START_S: Final = 1_796_032_800.0
RECORD: Final[JsonObject] = {
    "schema": 1,
    "ts": "2026-11-30T10:00:00.123Z",
    "event": "job.finished",
    "marks": "mask",
    "path": "hot",
    "path_reason": "ready",
    "worker": {"pid": 7, "incarnation": 1},
    "engine": {"configured": "auto", "actual": "patchmatch", "reason": "no weights"},
    "device": {"configured": "auto", "actual": "cpu", "evidence": {"output": "cpu"}},
    "image": {"format": "JPEG", "width": 400, "sha256_in": "a" * 64, "sha256_out": "b" * 64},
    "segments_ms": {f"segment_{number}": 1.5 for number in range(26)},
    "total_ms": 574.058,
    "after": "archive",
    "remedy": "see to it",
}
SHORT: Final[JsonObject] = {
    "ts": "2026-11-30T10:00:00.123Z",
    "marks": "mask",
    "image": RECORD["image"],
    "path": "hot",
    "path_reason": "ready",
    "total_ms": 574.058,
    "after": "archive",
    "remedy": "see to it",
    "engine": {"actual": "patchmatch"},
    "device": {"actual": "cpu"},
}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def a_file(path: str, content: str | None = None) -> SavedFile:
    return SavedFile(path, Fingerprint(1, 2, 3, 4), sha(content or path))


def a_job(
    number: int, source: str, content: str | None = None, state: JobState = JobState.DONE, **changes: Any
) -> Job:
    job = Job(
        id=f"3fa9c1d2-{number}",
        source=source,
        fingerprint=Fingerprint(1, 2, 3, 4),
        identity=Identity(sha(content or source), None, "default"),
        state=state,
        created_s=0.0,
        output=source if state in RESULTS else None,
        record={**RECORD, "job": f"3fa9c1d2-{number}"},
    )
    return replace(job, **changes)


class Life:
    """A journal, and the days that it sees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.book = SqliteJournal(path)
        self.wall_s = START_S
        self.prune()

    def write(self, *writes: JournalWrite) -> None:
        self.book.commit(writes)
        self.book.mark_logged([write.job.id for write in writes if isinstance(write, FinishJob)])

    def pass_days(self, days: int) -> None:
        for _ in range(days):
            self.wall_s += DAY_S
            self.prune()

    def prune(self) -> None:
        while self.book.prune(self.wall_s):
            pass

    def numbers(self) -> list[int]:
        return [int(job.id.partition("-")[2]) for job in self.book.jobs()]

    def job(self, number: int) -> Job:
        (job,) = self.book.jobs(ids=[f"3fa9c1d2-{number}"])
        return job


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "journal.sqlite3")
    yield life
    life.book.close()


# --- history -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [JobState.SUPERSEDED, JobState.GONE])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_job_that_answers_for_nothing_is_forgotten_after_a_month(
    life: Life, state: JobState, *, is_there: bool
) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg", state=state)))
    if not is_there:
        life.write(ForgetFile("a.jpg"))
    life.pass_days(HISTORY_DAYS - 1)
    assert life.numbers() == [1]
    life.pass_days(1)
    assert life.numbers() == []


@pytest.mark.parametrize("state", [JobState.DONE, JobState.UNCHANGED, JobState.FAILED, JobState.QUARANTINED])
def test_of_an_answer_for_a_picture_of_the_inbox_only_the_record_is_shortened(
    life: Life, state: JobState
) -> None:
    job = a_job(1, "a.jpg", state=state, reason="so it is", sha256_out="c" * 64, attempts=2)
    life.write(SaveFile(a_file("a.jpg")), FinishJob(job))
    life.pass_days(HISTORY_DAYS - 1)
    assert life.job(1) == job
    life.pass_days(1)
    assert life.job(1) == replace(job, record=SHORT)
    life.pass_days(3 * IDENTITY_DAYS)
    assert life.book.prior_jobs(job.identity, "a.jpg") == (replace(job, record=SHORT),)
    assert life.book.unlogged() == ()


def test_what_is_left_of_a_record_is_all_that_anybody_reads(life: Life) -> None:
    done = a_job(1, "a.jpg", output="a (2).jpg")
    life.write(SaveFile(a_file("a.jpg")), FinishJob(done))
    life.pass_days(HISTORY_DAYS)
    old = life.job(1)
    assert old != done
    assert job_facts(old) == job_facts(done)
    twin = a_job(2, "b.jpg", "a.jpg", state=JobState.WAITING, duplicate_of=done.id)
    assert draft_copy(twin, old.record, Policy(), 5) == draft_copy(twin, done.record, Policy(), 5)


def test_a_job_without_a_record_or_with_a_short_one_stays_as_it_is(life: Life) -> None:
    bare, short = a_job(1, "a.jpg", record=None), a_job(2, "b.jpg", record={"ts": "x"})
    life.write(SaveFile(a_file("a.jpg")), FinishJob(bare), SaveFile(a_file("b.jpg")), FinishJob(short))
    life.pass_days(HISTORY_DAYS)
    assert life.job(1) == bare
    assert life.job(2).record == {"ts": "x", "engine": {"actual": None}, "device": {"actual": None}}


def test_a_shortened_record_can_be_saved_again_under_another_path(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")))
    life.pass_days(HISTORY_DAYS)
    life.write(ForgetFile("a.jpg"), SaveFile(a_file("b.jpg", "a.jpg")))
    life.write(SaveJob(replace(life.job(1), source="b.jpg")))
    life.pass_days(HISTORY_DAYS)
    assert (life.job(1).source, life.job(1).record) == ("b.jpg", SHORT)
    assert life.book.unlogged() == ()


def test_more_whole_records_than_are_kept_are_shortened_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HISTORY_ROWS", 3)
    life = Life(tmp_path / "journal.sqlite3")
    for number in range(1, 7):
        state = JobState.SUPERSEDED if number == 2 else JobState.DONE
        life.write(SaveFile(a_file(f"{number}")), FinishJob(a_job(number, f"{number}", state=state)))
    life.prune()
    assert [(n, len(life.job(n).record or {}) > len(SHORT)) for n in life.numbers()] == [
        (1, False),
        (3, False),
        (4, True),
        (5, True),
        (6, True),
    ]


# --- identities --------------------------------------------------------------------------------------------


def test_an_answer_is_forgotten_long_after_its_picture_left_and_not_after_its_end(life: Life) -> None:
    job = a_job(1, "a.jpg")
    life.write(SaveFile(a_file("a.jpg")), FinishJob(job))
    life.pass_days(2 * IDENTITY_DAYS)
    life.write(ForgetFile("a.jpg"))
    life.pass_days(IDENTITY_DAYS - 1)
    assert life.numbers() == [1]
    life.pass_days(1)
    assert life.numbers() == []
    assert life.book.load().next_number == 2


def test_a_picture_that_came_back_leaves_anew(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")), ForgetFile("a.jpg"))
    life.pass_days(IDENTITY_DAYS - 1)
    life.write(SaveFile(a_file("sub/again.jpg", "a.jpg")))
    life.pass_days(IDENTITY_DAYS)
    life.write(ForgetFile("sub/again.jpg"))
    life.pass_days(IDENTITY_DAYS - 1)
    assert life.numbers() == [1]
    life.pass_days(1)
    assert life.numbers() == []


def test_another_file_with_the_same_bytes_keeps_the_answer(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg")), SaveFile(a_file("b.jpg", "a.jpg")), FinishJob(a_job(1, "a.jpg")))
    life.write(ForgetFile("a.jpg"))
    life.pass_days(2 * IDENTITY_DAYS)
    assert life.numbers() == [1]


def test_a_file_with_new_bytes_lets_the_answer_for_the_old_go(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg", "old")), FinishJob(a_job(1, "a.jpg", "old")))
    life.write(SaveFile(a_file("a.jpg", "new")), FinishJob(a_job(2, "a.jpg", "new")))
    life.pass_days(IDENTITY_DAYS)
    assert life.numbers() == [2]


def test_more_identities_than_are_kept_go_in_the_order_in_which_their_pictures_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "IDENTITY_ROWS", 2)
    life = Life(tmp_path / "journal.sqlite3")
    for number in range(1, 7):
        life.write(SaveFile(a_file(f"{number}")), FinishJob(a_job(number, f"{number}")))
    for number in (5, 2, 6, 1):
        life.write(ForgetFile(f"{number}"))
        life.pass_days(1)
    assert life.numbers() == [1, 3, 4, 6]


def test_what_is_not_final_or_not_logged_is_never_forgotten(life: Life) -> None:
    active = [state for state in JobState if state not in FINAL_STATES]
    life.write(*(SaveJob(a_job(n, f"{n}", state=state)) for n, state in enumerate(active, 1)))
    unlogged = [FinishJob(a_job(n, f"{n}", state=state)) for n, state in enumerate(sorted(FINAL_STATES), 11)]
    life.book.commit(unlogged)
    before = life.book.jobs()
    assert len(before) == len(JobState)
    life.pass_days(2 * IDENTITY_DAYS)
    assert life.book.jobs() == before
    life.book.mark_logged([write.job.id for write in unlogged])
    life.pass_days(HISTORY_DAYS)
    assert life.numbers() == list(range(1, len(active) + 1))


def test_a_record_whose_line_is_owed_again_stays_whole(life: Life) -> None:
    job = a_job(1, "a.jpg")
    life.write(SaveFile(a_file("a.jpg")), FinishJob(job))
    life.book.commit([FinishJob(job)])
    life.pass_days(HISTORY_DAYS)
    assert life.book.unlogged() == (job,)


@pytest.mark.parametrize("reference", ["duplicate_of", "retry_of"])
@pytest.mark.parametrize("state", [JobState.DONE, JobState.SUPERSEDED])
def test_what_an_active_job_refers_to_stays_until_that_has_ended(
    life: Life, reference: str, state: JobState
) -> None:
    copy = a_job(2, "b.jpg", state=JobState.WAITING, **{reference: "3fa9c1d2-1"})
    life.write(FinishJob(a_job(1, "a.jpg", state=state)), SaveJob(copy))
    life.pass_days(2 * IDENTITY_DAYS)
    assert life.numbers() == [1, 2]
    life.write(FinishJob(replace(copy, state=JobState.GONE)))
    life.pass_days(2 * IDENTITY_DAYS)
    assert life.numbers() == []


def test_what_cannot_go_does_not_keep_the_rest_from_going(life: Life) -> None:
    kept = range(1, 2 * CHUNK_ROWS + 1)
    life.write(
        *(FinishJob(a_job(n, "a.jpg", state=JobState.GONE)) for n in kept),
        *(SaveJob(a_job(1000 + n, f"{n}", state=JobState.HELD, retry_of=f"3fa9c1d2-{n}")) for n in kept),
        *(FinishJob(a_job(2000 + n, "b.jpg", state=JobState.GONE)) for n in range(10)),
    )
    life.pass_days(HISTORY_DAYS + 2)
    assert max(life.numbers()) < 2000
    assert set(kept) < set(life.numbers())


def test_nobody_is_called_again_at_once_for_what_cannot_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HISTORY_ROWS", 0)
    monkeypatch.setattr(retention, "IDENTITY_ROWS", 0)
    life = Life(tmp_path / "journal.sqlite3")
    for n in range(1, CHUNK_ROWS + 11):
        life.write(
            FinishJob(a_job(n, f"{n}", state=JobState.FAILED)),
            SaveJob(a_job(1000 + n, f"{n}", state=JobState.HELD, retry_of=f"3fa9c1d2-{n}")),
        )
    assert life.book.prune(life.wall_s) is False
    assert len(life.numbers()) == 2 * (CHUNK_ROWS + 10)
    life.book.close()


# --- what a retry replaced ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (JobState.DONE, JobState.DONE, [2]),
        (JobState.FAILED, JobState.DONE, [2]),
        (JobState.QUARANTINED, JobState.FAILED, [2]),
        (JobState.DONE, JobState.FAILED, [1, 2]),
        (JobState.DONE, JobState.SUPERSEDED, [1]),
    ],
)
def test_of_two_answers_for_the_same_work_the_later_is_enough(
    life: Life, before: JobState, after: JobState, left: list[int]
) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg", state=before)))
    life.pass_days(HISTORY_DAYS + 5)  # its record is short by now
    life.write(FinishJob(a_job(2, "a.jpg", state=after, retry_of="3fa9c1d2-1")))
    life.pass_days(HISTORY_DAYS - 1)
    assert life.numbers() == [1, 2]
    life.pass_days(1)
    assert life.numbers() == left


@pytest.mark.parametrize(
    "other",
    [{"source": "b.jpg"}, {"identity": Identity(sha("a.jpg"), "d" * 64, "default")}],
    ids=["another path", "another mask"],
)
def test_a_retry_with_other_files_replaces_nothing(life: Life, other: dict[str, Any]) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")))
    life.write(FinishJob(replace(a_job(2, "a.jpg", retry_of="3fa9c1d2-1"), **other)))
    life.pass_days(HISTORY_DAYS)
    assert life.numbers() == [1, 2]


# --- time --------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_makes_nothing_old(life: Life) -> None:
    life.write(FinishJob(a_job(1, "a.jpg", state=JobState.GONE)))
    for jump_s in (
        100 * 365 * DAY_S,
        -90 * 365 * DAY_S,
        -1.0,
        0.0,
        5.0,
        3600.0,
        365 * DAY_S,
        -20 * 365 * DAY_S,
    ):
        life.wall_s += jump_s
        life.prune()
    assert life.numbers() == [1]
    assert life.book._retention.day == 1 + 2
    life.pass_days(HISTORY_DAYS - 2)
    assert life.numbers() == []


def test_days_are_counted_over_restarts_and_looks_within_a_day_count_nothing(life: Life) -> None:
    life.write(FinishJob(a_job(1, "a.jpg", state=JobState.GONE)))
    for _ in range(HISTORY_DAYS * 24 - 1):
        life.wall_s += 3600
        life.book.prune(life.wall_s)
        if _ % 100 == 0:
            life.book.close()
            life.book = SqliteJournal(life.path)
    assert life.numbers() == [1]
    life.wall_s += 3600
    life.prune()
    assert life.numbers() == []


# --- in small steps ----------------------------------------------------------------------------------------


def test_a_step_changes_few_rows_and_says_whether_there_are_more(life: Life) -> None:
    gone = [FinishJob(a_job(n, f"{n}", state=JobState.GONE)) for n in range(1, 2 * CHUNK_ROWS + 8)]
    life.write(*gone)
    life.wall_s += DAY_S
    for _ in range(HISTORY_DAYS - 1):
        life.book.prune(life.wall_s)
        life.wall_s += DAY_S
    left: list[int] = []
    more: list[bool] = []
    while len(more) < 4:
        more.append(life.book.prune(life.wall_s))
        left.append(len(life.numbers()))
    assert left == [CHUNK_ROWS + 7, 7, 0, 0]
    assert more == [True, True, False, False]


def test_a_look_that_finds_nothing_writes_nothing(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")))
    life.pass_days(HISTORY_DAYS + 1)
    changes = life.book._database.total_changes
    assert not life.book.prune(life.wall_s + 3600)
    assert life.book._database.total_changes == changes


def test_a_step_that_the_disk_refuses_is_undone(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    life.write(*(FinishJob(a_job(n, f"{n}", state=JobState.GONE)) for n in range(1, 11)))
    refused = iter([False, False, True])

    def refuse(self: retention.Retention, seq: int) -> bool:
        if next(refused):
            raise sqlite3.OperationalError("disk I/O error")
        self._database.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        return True

    life.pass_days(HISTORY_DAYS - 1)
    with monkeypatch.context() as patch:
        patch.setattr(retention.Retention, "_forget_history", refuse)
        with pytest.raises(RemediableError):
            life.book.prune(life.wall_s + DAY_S)
    assert len(life.numbers()) == 10
    assert life.book._database.execute("PRAGMA synchronous").fetchone() == (2,)
    life.pass_days(1)
    assert life.numbers() == []


def test_a_record_that_no_watcher_wrote_is_told_of(life: Life) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")))
    life.book._database.execute("UPDATE jobs SET record = 'torn {'")
    life.pass_days(HISTORY_DAYS - 1)
    with pytest.raises(RemediableError, match="damaged"):
        life.pass_days(1)


# --- what is noted is true ---------------------------------------------------------------------------------

PATHS = st.sampled_from(["a", "b", "c"])
CONTENTS = st.sampled_from(["x", "y", "z"])
STEPS = st.one_of(
    st.builds(lambda path, content: SaveFile(a_file(path, content)), PATHS, CONTENTS),
    st.builds(ForgetFile, PATHS),
    st.builds(
        lambda n, path, content, state: FinishJob(a_job(10 * n + "xyz".index(content), path, content, state)),
        st.integers(1, 4),
        PATHS,
        CONTENTS,
        st.sampled_from(sorted(FINAL_STATES)),
    ),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=25))
def test_a_job_is_marked_as_absent_exactly_while_no_file_has_its_bytes(life: Life, steps: list[Any]) -> None:
    life.write(*(ForgetFile(path) for path in "abc"))
    for step in steps:
        life.write(step)
    life.pass_days(1)
    wrong = life.book._database.execute(
        "SELECT id FROM jobs WHERE (absent_day IS NULL) != (picture_sha256 IN (SELECT sha256 FROM files))"
    ).fetchall()
    assert wrong == []


# --- lives of workers --------------------------------------------------------------------------------------


def note_life(life: Life, incarnation: int, run: int = 1) -> None:
    life.book.save_life(WorkerLife(run, incarnation, "hot", 5, "here", 1, 2, 3, 4, 5, {}))


def lives_of(life: Life) -> list[tuple[int, int]]:
    return [(known.run, known.incarnation) for known in life.book.lives()]


def test_a_life_is_forgotten_after_a_month(life: Life) -> None:
    note_life(life, 1)
    life.pass_days(retention.LIVES_DAYS - 1)
    note_life(life, 2)
    assert lives_of(life) == [(1, 1), (1, 2)]
    life.pass_days(1)
    assert lives_of(life) == [(1, 2)]


def test_a_life_that_ends_late_is_kept_from_its_end_on(life: Life) -> None:
    note_life(life, 1)
    life.pass_days(retention.LIVES_DAYS - 1)
    note_life(life, 1)
    life.pass_days(retention.LIVES_DAYS - 1)
    assert lives_of(life) == [(1, 1)]


def test_not_more_than_so_many_lives_are_kept(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LIVES_ROWS", 70)
    for incarnation in range(1, 201):
        note_life(life, incarnation)
    life.prune()
    assert lives_of(life) == [(1, incarnation) for incarnation in range(131, 201)]


# --- an older journal --------------------------------------------------------------------------------------


def test_a_journal_of_the_first_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite3"
    with sqlite3.connect(path, isolation_level=None) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("PRAGMA user_version = 1")
        for number, (source, state, logged) in enumerate(
            [("a", "done", 1), ("b", "done", 1), ("c", "gone", 1), ("d", "gone", 0), ("e", "held", 0)], 1
        ):
            old.execute(
                "INSERT INTO jobs (id, source, inode, size_bytes, mtime_ns, ctime_ns, picture_sha256, recipe,"
                " state, created_s, attempts, solo_faults, suspect, record, logged)"
                " VALUES (?, ?, 1, 2, 3, 4, ?, ?, ?, 0.0, 1, 0, 0, ?, ?)",
                (
                    f"3fa9c1d2-{number}",
                    source.encode(),
                    sha(source),
                    b"default",
                    state,
                    json.dumps(RECORD),
                    logged,
                ),
            )
        old.execute("INSERT INTO files VALUES (?, 1, 2, 3, 4, ?)", (b"a", sha("a")))
    old.close()
    monkeypatch.setattr(retention, "IDENTITY_DAYS", 2 * HISTORY_DAYS)

    life = Life(path)
    assert [job.state for job in life.book.load().jobs] == ["held"]
    assert [job.source for job in life.book.unlogged()] == ["d"]
    life.pass_days(HISTORY_DAYS - 1)
    assert life.numbers() == [1, 2, 4, 5]
    assert life.job(1).record == SHORT
    life.pass_days(HISTORY_DAYS)
    assert life.numbers() == [1, 4, 5]


# --- quick, however large it is ----------------------------------------------------------------------------


def plans(life: Life, call: Callable[[], object]) -> list[str]:
    """How SQLite carries out each statement of a call."""
    statements: list[str] = []
    database = life.book._database
    database.set_trace_callback(statements.append)
    call()
    database.set_trace_callback(None)
    steps = []
    for statement in statements:
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            steps += [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return steps


CALLS: Final[dict[str, Callable[[Life], object]]] = {
    "the newest of all": lambda life: life.book.newest(limit=50),
    "the newest of a state": lambda life: life.book.newest(states=[JobState.HELD], limit=50),
    "the newest that are final": lambda life: life.book.newest(states=FINAL_STATES, limit=5),
    "counts": lambda life: life.book.counts(),
    "given up": lambda life: life.book.given_up(),
    "at a path": lambda life: life.book.at("a.jpg"),
    "by id": lambda life: life.book.jobs(ids=["3fa9c1d2-1", "x"]),
    "prior jobs": lambda life: life.book.prior_jobs(Identity(sha("a.jpg"), None, "default"), "a.jpg"),
    "unlogged": lambda life: life.book.unlogged(),
    "a file comes and goes": lambda life: life.write(SaveFile(a_file("n.jpg")), ForgetFile("n.jpg")),
    "a retry ends": lambda life: life.write(FinishJob(a_job(9, "n.jpg", retry_of="3fa9c1d2-1"))),
    "forgetting": lambda life: life.pass_days(IDENTITY_DAYS),
}


WALKS: Final = {
    "the newest of all": {"SCAN jobs"},  # from the newest number down, up to the limit
    "counts": {"SCAN jobs USING COVERING INDEX jobs_by_state"},
    "unlogged": {"SCAN jobs USING INDEX jobs_unlogged"},  # those alone are in it
    "forgetting": {
        "SCAN jobs USING COVERING INDEX jobs_history",  # from the oldest up, up to the limit
        "SCAN jobs USING COVERING INDEX jobs_absent",
        "SCAN worker_lives",  # from the oldest number up, up to the limit
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_no_statement_goes_through_all_jobs_or_files(life: Life, name: str) -> None:
    life.write(SaveFile(a_file("a.jpg")), FinishJob(a_job(1, "a.jpg")), FinishJob(a_job(2, "b.jpg")))
    life.write(FinishJob(a_job(3, "c.jpg", state=JobState.GONE)))
    steps = set(plans(life, lambda: CALLS[name](life)))
    assert steps
    walks = {step for step in steps if step.startswith("SCAN ") and "subquery" not in step}
    assert walks <= WALKS.get(name, set()) | {"SCAN CONSTANT ROW"}
    if name == "forgetting":
        assert not any("TEMP B-TREE" in step for step in steps)


# --- years -------------------------------------------------------------------------------------------------


class Traffic:
    """So many pictures a day, each there for some days; a tenth is replaced before it is done."""

    def __init__(self, life: Life, a_day: int, stay_days: int) -> None:
        self._life = life
        self._a_day = a_day
        self._stay_days = stay_days
        self.day = 0
        self.sizes: list[tuple[int, int]] = []
        """Rows and pages of the journal at the end of each day."""

    def pass_day(self) -> None:
        self._life.write(*self._arrivals(self.day))
        if self.day >= self._stay_days:
            self._life.write(*(ForgetFile(name) for name in self.names(self.day - self._stay_days)))
        self.day += 1
        self._life.pass_days(1)
        execute = self._life.book._database.execute
        (rows,) = execute("SELECT count(*) FROM jobs").fetchone()
        (pages,) = execute("PRAGMA page_count").fetchone()
        self.sizes.append((rows, pages))

    def names(self, day: int) -> list[str]:
        return [f"{day}/{number}.jpg" for number in range(self._a_day)]

    def _arrivals(self, day: int) -> Iterator[JournalWrite]:
        first = day * self._a_day * 2
        for number, name in enumerate(self.names(day), first):
            if number % 10 == 0:
                yield SaveFile(a_file(name, f"draft of {name}"))
                yield FinishJob(
                    a_job(number + self._a_day, name, f"draft of {name}", state=JobState.SUPERSEDED)
                )
            yield SaveFile(a_file(name))
            job = a_job(number, name, sha256_out=sha(f"{name} cleaned"))
            yield SaveJob(replace(job, state=JobState.RUNNING, record=None))
            yield FinishJob(job)

    def answered(self, day: int) -> set[int]:
        """How many answers the journal has for pictures of that day: exactly once is {1}."""
        identities = [Identity(sha(name), None, "default") for name in self.names(day)]
        return {len(self._life.book.prior_jobs(identity, "")) for identity in identities}


def test_under_steady_traffic_the_journal_stops_growing_and_knows_what_it_has_to_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HISTORY_DAYS", 5)
    monkeypatch.setattr(retention, "IDENTITY_DAYS", 20)
    life = Life(tmp_path / "journal.sqlite3")
    traffic = Traffic(life, a_day=30, stay_days=10)
    for _ in range(100):
        traffic.pass_day()
    assert {rows for rows, _ in traffic.sizes[50:]} == {traffic.sizes[50][0]}
    assert traffic.sizes[-1][1] <= 1.02 * traffic.sizes[50][1]
    assert all(traffic.answered(day) == {1} for day in range(100 - 10 - 20 + 1, 100))
    assert traffic.answered(100 - 10 - 20) == {0}
    life.book.close()


def test_a_flood_is_bounded_by_number_before_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HISTORY_ROWS", 100)
    monkeypatch.setattr(retention, "IDENTITY_ROWS", 300)
    life = Life(tmp_path / "journal.sqlite3")
    traffic = Traffic(life, a_day=200, stay_days=1)
    for _ in range(12):
        traffic.pass_day()
    assert 200 + 300 <= traffic.sizes[-1][0] <= 200 + 300 + 10, "10: what was replaced among the newest 100"
    assert traffic.answered(11) == traffic.answered(10) == {1}
    assert traffic.sizes[-1][1] <= 1.02 * traffic.sizes[5][1]
    life.book.close()


@pytest.mark.soak
def test_after_five_years_of_200_pictures_a_day_the_journal_is_no_larger_than_after_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK_ROWS", 1000)  # the same rows in fewer transactions
    life = Life(tmp_path / "journal.sqlite3")
    traffic = Traffic(life, a_day=200, stay_days=100)
    for _ in range(5 * 365):
        traffic.pass_day()
    settled_rows, settled_pages = traffic.sizes[2 * 365]
    assert settled_rows == pytest.approx(100_000 + 100 * 200, rel=0.02)
    assert settled_pages * 4096 < 200e6
    assert max(rows for rows, _ in traffic.sizes[2 * 365 :]) <= 1.01 * settled_rows
    assert traffic.sizes[-1][1] <= 1.05 * settled_pages
    known_days = 100 + 100_000 // 200 - 5
    assert all(traffic.answered(day) == {1} for day in range(5 * 365 - known_days, 5 * 365))
    life.book.close()
