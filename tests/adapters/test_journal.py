"""The journal on real SQLite files: what is committed is there again, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watcher.adapters import filesystems, journal
from watcher.adapters.journal import MIGRATIONS, SqliteJournal, open_readonly
from watcher.core.commands import FinishJob, ForgetFile, SaveFile, SaveJob
from watcher.core.events import SavedFile
from watcher.core.job import Fingerprint, Identity, Job, JobClock, JobState
from watcher.core.lives import WorkerLife
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Iterator

SHA = "a" * 64
OTHER_SHA = "b" * 64


def make_job(number: int = 1, **changes: object) -> Job:
    job = Job(
        id=f"3fa9c1d2-{number}",
        source=f"a/b/IMG_{number}.jpg",
        fingerprint=Fingerprint(number, 2, 3, 4),
        identity=Identity(SHA, None, "default"),
        state=JobState.READY,
        created_s=1796032800.125,
    )
    return replace(job, **changes)  # type: ignore[arg-type]  # the tests name real fields


def full_job() -> Job:
    """A job with something in every field that the journal keeps."""
    return make_job(
        7,
        source="ordner/\udcff\n 'q' %s.png",
        fingerprint=Fingerprint((1 << 64) - 1, 1 << 40, 13_000_000_000 * 10**9, -1),
        identity=Identity(SHA, OTHER_SHA, "Bildschirmfotos/ä"),
        state=JobState.PUBLISHING,
        mask="ordner/\udcff.mask.png",
        mask_fingerprint=Fingerprint(5, 6, 7, 8),
        attempts=2,
        solo_faults=1,
        suspect=True,
        duplicate_of="3fa9c1d2-1",
        retry_of="3fa9c1d2-2",
        stage_name="s7.png",
        output="ordner/\udcff (2).png",
        sha256_out=OTHER_SHA,
        reason="cannot read \udcff",
        record={"schema": 1, "segments_ms": {"queue": 1.5}, "list": [1, None, "\udcff"], "ok": True},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite3"


@pytest.fixture
def book(path: Path) -> Iterator[SqliteJournal]:
    with SqliteJournal(path) as opened:
        yield opened


def test_a_new_journal_is_empty_and_numbers_begin_at_one(book: SqliteJournal) -> None:
    opened = book.load()
    assert (opened.jobs, opened.files, opened.next_number) == ((), (), 1)


def test_every_field_of_a_job_comes_back_but_its_clock(path: Path) -> None:
    job = replace(full_job(), clock=JobClock(1, 2, 3, 4))
    with SqliteJournal(path) as book:
        book.commit([SaveJob(job)])
    with SqliteJournal(path) as book:
        (again,) = book.load().jobs
    assert again == job
    assert again.clock is None
    assert again.record == job.record


def test_saving_again_updates_the_same_job(book: SqliteJournal) -> None:
    book.commit([SaveJob(make_job()), SaveJob(make_job(2))])
    book.commit([SaveJob(make_job(state=JobState.RUNNING, attempts=1, stage_name="x"))])
    first, second = book.load().jobs
    assert (first.id, first.state, first.attempts, first.stage_name) == ("3fa9c1d2-1", "running", 1, "x")
    assert second == make_job(2)


def test_files_are_remembered_replaced_and_forgotten(book: SqliteJournal) -> None:
    kept = SavedFile("b/\udcfe.png", Fingerprint((1 << 64) - 1, 2, 3, 4), SHA)
    gone = SavedFile("a.png", Fingerprint(1, 2, 3, 4), SHA)
    book.commit([SaveFile(gone), SaveFile(replace(kept, sha256=OTHER_SHA))])
    book.commit([SaveFile(kept), ForgetFile("a.png"), ForgetFile("never there.png")])
    assert book.load().files == (kept,)


def test_load_gives_the_jobs_that_are_not_final(book: SqliteJournal) -> None:
    book.commit([SaveJob(make_job(n, state=state)) for n, state in enumerate(JobState, start=1)])
    assert [job.state for job in book.load().jobs] == ["waiting", "ready", "running", "publishing", "held"]


def test_only_a_job_that_is_being_published_is_loaded_with_its_record(book: SqliteJournal) -> None:
    record = {"chain_ns": {"queue": 1}}
    states = (JobState.RUNNING, JobState.HELD, JobState.PUBLISHING)
    book.commit([SaveJob(make_job(n, state=state, record=record)) for n, state in enumerate(states, start=1)])
    assert [job.record for job in book.load().jobs] == [None, None, record]
    assert [job.record for job in book.jobs()] == [record] * 3


def test_what_a_job_has_in_common_with_its_file_is_in_memory_once(book: SqliteJournal) -> None:
    same, changed = make_job(1, source="a.jpg"), make_job(2, source="b.jpg")
    book.commit([SaveJob(same), SaveJob(changed), SaveJob(make_job(3, source="c.jpg"))])
    book.commit([SaveFile(SavedFile("a.jpg", same.fingerprint, SHA))])
    book.commit([SaveFile(SavedFile("b.jpg", changed.fingerprint, OTHER_SHA))])
    opened = book.load()
    (first, second, third), (file, other) = opened.jobs, opened.files
    assert (first, second, third) == (same, changed, make_job(3, source="c.jpg"))
    assert first.source is file.path
    assert first.fingerprint is file.fingerprint
    assert first.identity.picture_sha256 is file.sha256
    assert second.fingerprint is not other.fingerprint
    assert first.identity.recipe is second.identity.recipe is third.identity.recipe


@pytest.mark.parametrize("state", ["done", "unchanged", "failed", "quarantined", "superseded", "gone"])
def test_a_finished_job_waits_for_its_timing_line(book: SqliteJournal, state: str) -> None:
    job = make_job(state=JobState(state), record={"job": "3fa9c1d2-1"})
    book.commit([SaveJob(make_job())])
    assert book.unlogged() == ()
    book.commit([FinishJob(job)])
    assert book.unlogged() == (job,)
    book.mark_logged([job.id])
    assert book.unlogged() == ()
    assert book.load().jobs == ()
    book.commit([FinishJob(job)])
    assert book.unlogged() == (job,)


@pytest.mark.kind("W47")
def test_what_follows_mark_logged_is_synced_again(book: SqliteJournal) -> None:
    book.mark_logged(["3fa9c1d2-1"])
    assert book._database.execute("PRAGMA synchronous").fetchone() == (2,)
    assert book._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_prior_jobs_are_the_final_ones_of_picture_and_recipe_oldest_first(book: SqliteJournal) -> None:
    with_mask = Identity(SHA, OTHER_SHA, "default")
    done = [make_job(n, state=JobState.DONE) for n in (3, 1, 2)]
    book.commit(
        [
            *(FinishJob(job) for job in done),
            SaveJob(make_job(4)),
            FinishJob(make_job(5, state=JobState.DONE, identity=with_mask)),
            FinishJob(make_job(6, state=JobState.DONE, identity=Identity(SHA, None, "other"))),
        ]
    )
    expected = [f"3fa9c1d2-{number}" for number in (3, 1, 2, 5)]
    assert [job.id for job in book.prior_jobs(done[0].identity, "x")] == expected
    assert [job.id for job in book.prior_jobs(with_mask, "x")] == expected
    assert book.prior_jobs(Identity(OTHER_SHA, None, "default"), "x") == ()


def test_a_result_that_was_replaced_answers_for_nothing(book: SqliteJournal) -> None:
    other = Identity(OTHER_SHA, None, "default")
    first = make_job(1, state=JobState.DONE, output="a.png")
    book.commit(
        [FinishJob(first), FinishJob(make_job(2, state=JobState.DONE, output="b.png", identity=other))]
    )
    assert book.prior_jobs(first.identity, first.source) == (first,)
    later = make_job(3, state=JobState.SUPERSEDED, output="a.png", identity=other)
    book.commit([FinishJob(later)])
    assert book.prior_jobs(first.identity, first.source) == (first,), "that one was never published"
    book.commit([FinishJob(make_job(4, state=JobState.DONE, output="a.png", identity=other))])
    assert book.prior_jobs(first.identity, first.source) == ()
    assert book.prior_jobs(first.identity, "elsewhere.png") == ()


def test_only_the_newest_answers_for_other_paths_are_read(book: SqliteJournal) -> None:
    copies = [make_job(n, state=JobState.DONE, source=f"{n}.png", output=f"{n}.png") for n in range(1, 101)]
    book.commit([FinishJob(job) for job in copies])
    found = [job.source for job in book.prior_jobs(copies[0].identity, "1.png")]
    assert found == ["1.png", *(f"{n}.png" for n in range(37, 101))]


def test_prior_jobs_are_found_by_an_index(book: SqliteJournal) -> None:
    plan = book._database.execute(
        "EXPLAIN QUERY PLAN SELECT 1 FROM jobs WHERE picture_sha256 = ? AND recipe = ?",
        (SHA, b"default"),
    ).fetchall()
    assert "jobs_by_picture" in plan[0][-1]


def test_jobs_by_state_and_id(book: SqliteJournal) -> None:
    jobs = [make_job(n, state=JobState.HELD if n % 2 else JobState.READY) for n in range(1, 1202)]
    book.commit([SaveJob(job) for job in jobs])
    assert book.jobs() == tuple(jobs)
    assert len(book.jobs(states=[JobState.HELD])) == 601
    assert book.jobs(ids=["3fa9c1d2-9", "3fa9c1d2-4", "unknown-1"]) == (jobs[3], jobs[8])
    many = [job.id for job in reversed(jobs)]
    assert book.jobs(states=[JobState.READY], ids=many) == tuple(jobs[1::2])


def test_given_up_are_the_failures_that_nothing_followed(book: SqliteJournal) -> None:
    failed = make_job(1, source="a.jpg", state=JobState.FAILED)
    retried = make_job(2, source="b.jpg", state=JobState.QUARANTINED)
    book.commit(
        [FinishJob(failed), FinishJob(retried), FinishJob(make_job(3, source="c.jpg", state=JobState.DONE))]
    )
    book.commit([SaveFile(SavedFile(name, Fingerprint(1, 2, 3, 4), SHA)) for name in ("a.jpg", "b.jpg")])
    assert book.given_up() == (failed, retried)
    book.commit([FinishJob(make_job(4, source="b.jpg", state=JobState.DONE))])
    assert book.given_up() == (failed,)


@pytest.mark.parametrize(
    "change", [ForgetFile("a.jpg"), SaveFile(SavedFile("a.jpg", Fingerprint(1, 2, 3, 4), OTHER_SHA))]
)
def test_a_failure_of_a_picture_that_left_or_was_changed_is_not_given_up(
    book: SqliteJournal, change: ForgetFile | SaveFile
) -> None:
    failed = make_job(1, source="a.jpg", state=JobState.FAILED)
    book.commit([FinishJob(failed), SaveFile(SavedFile("a.jpg", Fingerprint(1, 2, 3, 4), SHA))])
    assert book.given_up() == (failed,)
    book.commit([change])
    assert book.given_up() == ()


def test_newest_counts_and_jobs_at_a_path(book: SqliteJournal) -> None:
    jobs = [
        make_job(n, source=f"{n % 2}.jpg", state=s)
        for n, s in enumerate(("done", "held", "done", "failed"), 1)
    ]
    jobs = [replace(job, state=JobState(job.state)) for job in jobs]
    book.commit([SaveJob(job) for job in jobs])
    assert book.newest(limit=2) == (jobs[2], jobs[3])
    assert book.newest(states=[JobState.DONE, JobState.HELD], limit=2) == (jobs[1], jobs[2])
    assert book.at("1.jpg") == (jobs[0], jobs[2])
    assert book.counts() == {JobState.DONE: 2, JobState.HELD: 1, JobState.FAILED: 1}


def test_a_number_is_not_given_twice_even_when_its_job_is_gone(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(make_job(41)), SaveJob(make_job(7))])
        assert book.load().next_number == 42
        book._database.execute("DELETE FROM jobs")
    with SqliteJournal(path) as book:
        assert book.load().next_number == 42
        book.commit([SaveJob(make_job(3))])
        assert book.load().next_number == 42


def test_a_group_of_writes_is_made_whole_or_not_at_all(book: SqliteJournal) -> None:
    broken = replace(make_job(2), created_s=object())  # type: ignore[arg-type]  # what no row can hold
    with pytest.raises(sqlite3.ProgrammingError):
        book.commit([SaveJob(make_job(1)), SaveJob(broken)])
    assert book.load().jobs == ()
    book.commit([SaveJob(make_job(1))])  # and the journal is usable after that
    assert len(book.load().jobs) == 1


def test_a_full_disk_is_told_of_and_loses_nothing(book: SqliteJournal) -> None:
    book.commit([SaveJob(make_job(1))])
    pages = book._database.execute("PRAGMA page_count").fetchone()[0]
    book._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RemediableError, match="does not take the journal") as caught:
        book.commit([SaveJob(make_job(n, reason="x" * 5000)) for n in range(2, 9)])
    assert caught.value.exit_code == 75
    assert [job.id for job in book.load().jobs] == ["3fa9c1d2-1"]
    book._database.execute("PRAGMA max_page_count = 1000000")
    book.commit([SaveJob(make_job(2))])
    assert len(book.load().jobs) == 2


def test_a_locked_journal_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_BUSY_MS", 50)
    with SqliteJournal(path) as book:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RemediableError, match="in use by another program") as caught:
            book.commit([SaveJob(make_job())])
        other.execute("ROLLBACK")
        other.close()
        assert caught.value.exit_code == 75
        book.commit([SaveJob(make_job())])


# --- kills -------------------------------------------------------------------------------------------------

COMMITTER = """
import sys
from pathlib import Path
from watcher.adapters.journal import SqliteJournal
from watcher.core.commands import SaveJob
from watcher.core.job import Fingerprint, Identity, Job, JobState

book = SqliteJournal(Path(sys.argv[1]))
while True:
    number = book.load().next_number
    pair = [
        Job(f"k-{n}", "a.png", Fingerprint(1, 2, 3, 4), Identity("a", None, "default"), JobState.READY, 0.0)
        for n in (number, number + 1)
    ]
    book.commit([SaveJob(job) for job in pair])
    print(number + 1, flush=True)
"""


def test_a_kill_between_or_in_commits_loses_nothing_that_was_told(path: Path) -> None:
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, os.fspath(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
        )
        assert child.stdout is not None
        for _ in range(20 + round_number):
            told = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        told = max([told, *(int(line) for line in rest)])
        with SqliteJournal(path) as book:
            numbers = [int(job.id[2:]) for job in book.load().jobs]
        assert numbers == list(range(1, len(numbers) + 1)), "a gap: a commit was lost"
        assert len(numbers) >= told
        assert len(numbers) % 2 == 0, "half of a group"


# --- the lives of workers ----------------------------------------------------------------------------------


def a_life(run: int = 1, incarnation: int = 1, **changes: object) -> WorkerLife:
    facts = {"segments_ms": {"import": 1.5}, "story": "ended \udcff", "reason": None}
    life = WorkerLife(run, incarnation, "hot", 4711, "here", 10, 20, None, 30, 1_796_032_800_000_000, facts)
    return replace(life, **changes)  # type: ignore[arg-type]  # the tests name real fields


def test_a_life_is_kept_as_it_was_noted_last(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.save_life(a_life())
        book.save_life(a_life(incarnation=2))
        book.save_life(a_life(exited_ns=40))
    with open_readonly(path) as book:
        assert book.lives() == (a_life(exited_ns=40), a_life(incarnation=2))


def test_each_start_of_the_service_has_a_number_of_its_own(path: Path) -> None:
    for run in (1, 2, 3):
        with SqliteJournal(path) as book:
            assert book.load().run == book.run == run
            book.save_life(a_life(run))
        with open_readonly(path) as book:
            assert book.run == run
    with open_readonly(path) as book:
        assert [life.run for life in book.lives()] == [1, 2, 3]


def test_a_life_that_no_watcher_wrote_is_told_as_damage(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.save_life(a_life())
        book._database.execute("UPDATE worker_lives SET life = '{}'")
        with pytest.raises(RemediableError, match="damaged"):
            book.lives()


# --- what a person can mend --------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(path: Path) -> None:
    SqliteJournal(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    for opener in (SqliteJournal, open_readonly):
        with pytest.raises(RemediableError, match="newer watcher") as caught:
            opener(path)
        assert caught.value.exit_code == 78
        assert "Upgrade" in caught.value.remedy


def test_an_older_schema_is_brought_up_to_date_and_only_looked_at_after_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(full_job())])
    monkeypatch.setattr(journal, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN extra",)))
    with pytest.raises(RemediableError, match="older watcher") as caught:
        open_readonly(path)
    assert caught.value.exit_code == 75
    with SqliteJournal(path) as book:
        assert book.load().jobs == (full_job(),)
    with open_readonly(path) as book:
        assert book._schema() == len(MIGRATIONS) + 1


def test_a_migration_that_fails_leaves_the_old_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteJournal(path).close()
    monkeypatch.setattr(
        journal, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN extra", "no such statement"))
    )
    with pytest.raises(RemediableError):
        SqliteJournal(path)
    monkeypatch.undo()
    with SqliteJournal(path) as book:
        columns = [row[1] for row in book._database.execute("PRAGMA table_info(jobs)")]
    assert "extra" not in columns


@pytest.mark.parametrize("damage", ["not a database", "zeroed pages", "cut in half", "scribbled"])
def test_a_damaged_journal_is_told_of_with_what_to_do(path: Path, damage: str) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(make_job(n, reason="r" * 900)) for n in range(1, 200)])
    whole = path.read_bytes()
    path.write_bytes(
        {
            "not a database": b"hello" * 5000,
            "zeroed pages": whole[:4096] + bytes(8192) + whole[12288:],
            "cut in half": whole[: len(whole) // 2],
            "scribbled": whole[:8192] + b"\xa5" * 20000 + whole[28192:],
        }[damage]
    )
    with pytest.raises(RemediableError, match="damaged") as caught:
        SqliteJournal(path)
    assert str(path) in str(caught.value)
    assert all(word in caught.value.remedy for word in ("Move", "Known", "Lost"))


def test_damage_that_shows_only_later_is_told_of_too(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(make_job(n, reason="r" * 900)) for n in range(1, 200)])
        book._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as raw:
            raw.seek(8192)
            raw.write(b"\xa5" * 100_000)
        book._database.execute("PRAGMA shrink_memory")
        with open_readonly(path) as reader, pytest.raises(RemediableError, match="damaged"):
            reader.jobs()


def test_a_row_that_no_watcher_wrote_is_damage(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(make_job())])
        book._database.execute("UPDATE jobs SET state = 'dancing'")
        with pytest.raises(RemediableError, match="damaged"):
            book.load()


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = path.parents[1] / "mountinfo"
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {path.parents[1]} rw - nfs4 nas:/ rw\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(filesystems, "MOUNTINFO", mounts)
    with pytest.raises(RemediableError, match=r"network file system \(nfs4\)") as caught:
        SqliteJournal(path)
    assert "state_dir" in caught.value.remedy
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RemediableError, match="cannot make the folder"):
        SqliteJournal(tmp_path / "file" / "journal.sqlite3")


def test_a_folder_where_the_journal_should_be_is_told_of(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(RemediableError, match="cannot be used"):
        SqliteJournal(path)


# --- looking on --------------------------------------------------------------------------------------------


def test_a_reader_sees_what_the_running_service_committed(book: SqliteJournal, path: Path) -> None:
    book.commit([SaveJob(make_job(1))])
    with open_readonly(path) as reader:
        assert len(reader.jobs()) == 1
        book.commit([SaveJob(make_job(2))])
        assert len(reader.jobs()) == 2
        with pytest.raises(RemediableError, match="readonly"):
            reader.commit([SaveJob(make_job(3))])
    assert len(book.jobs()) == 2


def test_a_reader_that_stays_lets_the_write_ahead_log_grow_only_until_it_goes(
    book: SqliteJournal, path: Path
) -> None:
    log = path.with_name(f"{path.name}-wal")

    def write(rounds: int) -> int:
        for number in range(rounds):
            book.commit([SaveJob(make_job(n, reason=f"{number}" * 4000)) for n in range(1, 51)])
        return log.stat().st_size

    quiet_bytes = write(30)
    assert quiet_bytes < 4 << 20
    with open_readonly(path) as reader:
        reader._database.execute("BEGIN")
        reader.counts()
        assert write(60) > 8 << 20
        reader._database.execute("COMMIT")
    assert write(2) <= 8 << 20
    assert len(book.jobs()) == 50


def test_a_reader_works_after_the_service_ended_and_when_it_was_killed(path: Path) -> None:
    with SqliteJournal(path) as book:
        book.commit([SaveJob(full_job())])
    with open_readonly(path) as reader:
        assert reader.jobs() == (full_job(),)
    child = subprocess.Popen(
        [sys.executable, "-c", COMMITTER, os.fspath(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.communicate()
    with open_readonly(path) as reader:
        assert len(reader.jobs()) >= 3


def test_a_reader_before_there_is_a_journal_is_told_how_one_comes(path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RemediableError, match="no journal yet") as caught:
            open_readonly(path)
        assert caught.value.exit_code == 75
        assert not path.exists()
        path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")  # the service is about to make it
    with pytest.raises(RemediableError, match="no journal yet"):
        open_readonly(path)


def test_a_reader_of_a_path_with_odd_characters(tmp_path: Path) -> None:
    odd = tmp_path / "a b?c#d%20" / "\udcff.sqlite3"
    with SqliteJournal(odd) as book:
        book.commit([SaveJob(make_job())])
        with open_readonly(odd) as reader:
            assert reader.jobs() == (make_job(),)


# --- anything comes back -----------------------------------------------------------------------------------

NAMES = st.binary(min_size=1, max_size=40).filter(lambda raw: b"\0" not in raw).map(os.fsdecode)
TEXTS = st.one_of(NAMES, st.text(st.characters(exclude_categories=()), max_size=20))
NUMBERS = st.integers(-(1 << 70), 1 << 70)
PRINTS = st.builds(Fingerprint, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=NAMES, reason=st.none() | TEXTS, recipe=TEXTS, fingerprint=PRINTS, mask=st.none() | PRINTS)
def test_any_name_and_any_number_comes_back(
    book: SqliteJournal,
    source: str,
    reason: str | None,
    recipe: str,
    fingerprint: Fingerprint,
    mask: Fingerprint | None,
) -> None:
    job = make_job(
        source=source,
        reason=reason,
        identity=Identity(SHA, None, recipe),
        fingerprint=fingerprint,
        mask_fingerprint=mask,
        state=JobState.DONE,
    )
    file = SavedFile(source, fingerprint, SHA)
    book.commit([FinishJob(job), SaveFile(file)])
    assert book.prior_jobs(job.identity, source) == (job,)
    assert file in book.load().files
    book.commit([ForgetFile(source)])
    assert book.load().files == ()
