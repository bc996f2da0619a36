"""The timing log on a real folder: one valid line a job, through crashes, full disks and odd names."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from watcher.adapters.file_operations import FileOperations
from watcher.adapters.timing_log import JsonlTimingLog
from watcher.core.events import Instant

if TYPE_CHECKING:
    from watcher.core.job import JsonObject

NOON = 1796040000.0  # 2026-11-30T12:00:00Z
DAY_S = 86400.0


class StoppedClock:
    def __init__(self, wall_s: float = NOON) -> None:
        self.wall_s = wall_s

    def now(self) -> Instant:
        return Instant(time.monotonic_ns(), self.wall_s)

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the timing log waits for nothing, and not for {seconds} s")


def record(job: str, ts: str = "2026-11-30T10:00:00.123Z", **more: object) -> JsonObject:
    fields: dict[str, object] = {"schema": 1, "ts": ts, "event": "job.finished", "job": job, **more}
    return fields  # type: ignore[return-value]  # the tests put JSON into it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "logs"


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def open_log(
    folder: Path,
    clock: StoppedClock,
    *,
    max_bytes: int = 1 << 20,
    keep_days: int = 30,
    files: FileOperations | None = None,
) -> JsonlTimingLog:
    return JsonlTimingLog(folder, clock, max_bytes=max_bytes, keep_days=keep_days, files=files)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def jobs_in(folder: Path) -> list[str]:
    return [
        json.loads(line)["job"]
        for name in names(folder)
        for line in (folder / name).read_bytes().splitlines()
    ]


def test_lines_go_to_the_file_of_their_utc_day(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock)
    log.append(record("a-1"))
    log.append(record("a-2", ts="2026-11-30T00:30:00+02:00"))
    log.append(record("a-3"))
    assert names(folder) == ["timings-2026-11-29.jsonl", "timings-2026-11-30.jsonl"]
    assert (folder / "timings-2026-11-30.jsonl").read_text("ascii") == (
        '{"schema":1,"ts":"2026-11-30T10:00:00.123Z","event":"job.finished","job":"a-1"}\n'
        '{"schema":1,"ts":"2026-11-30T10:00:00.123Z","event":"job.finished","job":"a-3"}\n'
    )


@pytest.mark.parametrize("ts", [None, "", "yesterday", "../../../etc/x", 5])
def test_a_record_without_a_time_goes_to_today(folder: Path, clock: StoppedClock, ts: object) -> None:
    open_log(folder, clock).append(record("a-1", ts=ts))  # type: ignore[arg-type]  # that is the fault
    assert names(folder) == ["timings-2026-11-30.jsonl"]


@pytest.mark.parametrize(
    "name",
    [
        "a b.png",
        "line\nbreak\r.png",
        "'q' \"d\" \\.png",
        "tab\t\x00.png",
        "Müller 🐈.png",
        "\u2028\u2029\x85.png",
        "\udcff\udcfe.png",
        "\ud83d.png",
    ],
)
def test_whatever_a_name_holds_the_line_is_one_line_of_strict_json(
    folder: Path, clock: StoppedClock, name: str
) -> None:
    log = open_log(folder, clock)
    log.append(record("a-1", source=name, nested={"x": [name]}))
    log.append(record("a-2"))
    raw = (folder / "timings-2026-11-30.jsonl").read_bytes()
    assert raw.isascii()
    first, second = raw.splitlines()
    assert json.loads(second)["job"] == "a-2"
    source = json.loads(first)["source"]
    source.encode("utf-8")  # no lone surrogate, which strict parsers refuse
    if name.isprintable():
        assert source == name
    if name == "\udcff\udcfe.png":
        assert source == "\\xff\\xfe.png"


def test_a_number_that_is_none_becomes_null(folder: Path, clock: StoppedClock) -> None:
    open_log(folder, clock).append(record("a-1", total_ms=float("nan"), rates=[float("inf"), 1.5]))
    (line,) = (folder / "timings-2026-11-30.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["rates"] == [None, 1.5]


def test_a_day_goes_on_in_the_next_file_when_one_is_full(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock, max_bytes=200)
    for number in range(1, 27):
        log.append(record(f"a-{number}"))
    assert len(names(folder)) == 13
    assert {"timings-2026-11-30.jsonl", "timings-2026-11-30.1.jsonl", "timings-2026-11-30.12.jsonl"} < set(
        names(folder)
    )
    assert all((folder / name).stat().st_size <= 200 for name in names(folder))
    last = (folder / "timings-2026-11-30.12.jsonl").read_text()
    assert '"a-26"' in last
    open_log(folder, clock, max_bytes=1000).append(record("a-27"))  # after a restart it goes on there
    assert '"a-27"' in (folder / "timings-2026-11-30.12.jsonl").read_text()
    assert open_log(folder, clock).logged([f"a-{n}" for n in range(40)]) == {f"a-{n}" for n in range(1, 28)}


def test_a_line_larger_than_a_file_may_be_gets_a_file_of_its_own(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock, max_bytes=100)
    log.append(record("a-1", source="x" * 500))
    log.append(record("a-2"))
    assert jobs_in(folder) == ["a-2", "a-1"]
    assert names(folder) == ["timings-2026-11-30.1.jsonl", "timings-2026-11-30.jsonl"]


def test_old_files_go_at_the_start_and_when_a_day_has_passed(folder: Path, clock: StoppedClock) -> None:
    folder.mkdir()
    old = ["timings-2026-11-22.jsonl", "timings-2026-11-22.4.jsonl", "timings-2026-11-23.jsonl"]
    others = ["notes.txt", "timings-2026-11-22.jsonl.bak", "timings-2026-99-99.jsonl"]
    for name in old + others:
        (folder / name).write_bytes(b"")
    log = open_log(folder, clock, keep_days=7)
    log.append(record("a-1"))
    assert names(folder) == sorted(["timings-2026-11-23.jsonl", "timings-2026-11-30.jsonl", *others])
    clock.wall_s += DAY_S
    log.append(record("a-2", ts="2026-12-01T10:00:00Z"))
    assert names(folder) == sorted(["timings-2026-11-30.jsonl", "timings-2026-12-01.jsonl", *others])


@pytest.mark.kind("W42")
def test_the_oldest_go_early_when_all_together_are_as_large_as_64_full_files(
    folder: Path, clock: StoppedClock
) -> None:
    log = open_log(folder, clock, max_bytes=200, keep_days=3650)
    for number in range(1, 301):  # two lines a file
        day = "2026-11-29" if number <= 200 else "2026-11-30"
        log.append(record(f"a-{number:03}", ts=f"{day}T10:00:00Z"))
    left = jobs_in(folder)
    total_bytes = sum((folder / name).stat().st_size for name in names(folder))
    assert 63 * 200 <= total_bytes <= 65 * 200
    assert sorted(left) == [f"a-{number:03}" for number in range(301 - len(left), 301)]
    assert not (folder / "timings-2026-11-29.jsonl").exists()


def test_logged_looks_into_every_kept_file(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock, max_bytes=200)
    for number in range(1, 9):
        log.append(record(f"a-{number}", ts=f"2026-11-2{number}T10:00:00Z"))
    assert log.logged(["a-1", "a-8", "a-88", ""]) == {"a-1", "a-8"}
    assert log.logged([]) == set()


def test_a_job_that_is_only_mentioned_is_not_logged(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock)
    log.append(record("a-1", reason='x "job":"a-2" y', other={"job": "a-3"}))
    assert log.logged(["a-1", "a-2", "a-3"]) == {"a-1"}


@pytest.mark.parametrize("torn", [b'{"schema":1,"job":"a-2"', b'{"schema":1,"job":"a-2"}', b"\0" * 3_000_000])
@pytest.mark.parametrize("first_call", ["append", "logged"])
def test_a_torn_last_line_is_cut_off(folder: Path, clock: StoppedClock, torn: bytes, first_call: str) -> None:
    open_log(folder, clock).append(record("a-1"))
    file = folder / "timings-2026-11-30.jsonl"
    with file.open("ab") as raw:
        raw.write(torn)
    log = open_log(folder, clock, max_bytes=1 << 30)
    with capture_logs() as told:
        if first_call == "logged":
            assert log.logged(["a-1", "a-2"]) == {"a-1"}
        log.append(record("a-2"))
    assert jobs_in(folder) == ["a-1", "a-2"]
    assert [entry["event"] for entry in told] == ["timings.torn_line_removed"]


def test_a_file_that_is_nothing_but_a_torn_line_is_emptied(folder: Path, clock: StoppedClock) -> None:
    folder.mkdir()
    (folder / "timings-2026-11-30.jsonl").write_bytes(b'{"job":"a-1"')
    log = open_log(folder, clock)
    assert log.logged(["a-1"]) == set()
    log.append(record("a-1"))
    assert jobs_in(folder) == ["a-1"]


class FullDisk(FileOperations):
    """Takes half a line, or fails at an operation."""

    def __init__(self, failing: str) -> None:
        self.failing = failing

    def before(self, operation: str, name: str) -> None:
        if operation == self.failing and name.endswith(".jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def write(self, descriptor: int, data: bytes, name: str) -> int:
        return super().write(descriptor, data[: len(data) // 2] if self.failing == "half" else data, name)


@pytest.mark.parametrize("failing", ["open", "write", "half", "fsync"])
def test_a_line_that_did_not_go_to_disk_leaves_nothing(
    folder: Path, clock: StoppedClock, failing: str
) -> None:
    open_log(folder, clock).append(record("a-1"))
    with pytest.raises(OSError, match="No space") as caught:
        open_log(folder, clock, files=FullDisk(failing)).append(record("a-2"))
    assert caught.value.errno == errno.ENOSPC
    assert jobs_in(folder) == ["a-1"]
    log = open_log(folder, clock)
    assert log.logged(["a-1", "a-2"]) == {"a-1"}
    log.append(record("a-2"))
    assert jobs_in(folder) == ["a-1", "a-2"]


def test_an_outbox_that_is_away_is_not_made_again(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock)
    log.append(record("a-1"))
    folder.parent.rename(folder.parent.with_name("away"))
    with pytest.raises(FileNotFoundError):
        log.append(record("a-2"))
    with pytest.raises(FileNotFoundError):
        log.logged(["a-1"])
    assert not folder.parent.exists()


def test_a_log_folder_that_somebody_removed_is_made_again(folder: Path, clock: StoppedClock) -> None:
    log = open_log(folder, clock)
    assert log.logged(["a-1"]) == set()
    assert not folder.exists()
    log.append(record("a-1"))
    (folder / "timings-2026-11-30.jsonl").unlink()
    folder.rmdir()
    log.append(record("a-2"))
    assert jobs_in(folder) == ["a-2"]


@pytest.mark.parametrize("link", ["folder", "file"])
def test_a_link_is_not_followed_out_of_the_outbox(
    folder: Path, clock: StoppedClock, tmp_path: Path, link: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if link == "folder":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        (folder / "timings-2026-11-30.jsonl").symlink_to(elsewhere / "x.jsonl")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        open_log(folder, clock).append(record("a-1"))
    assert names(elsewhere) == []


WRITER = """
import sys, time
from pathlib import Path
from watcher.adapters.timing_log import JsonlTimingLog
from watcher.core.events import Instant

class Now:
    def now(self):
        return Instant(0, 1796040000.0)

log = JsonlTimingLog(Path(sys.argv[1]), Now(), max_bytes=5000, keep_days=9)
number = 0
while True:
    number += 1
    log.append({"ts": "2026-11-30T10:00:00Z", "job": f"k-{number}", "pad": "x" * 700})
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_whole_lines_and_all_that_it_told_of(
    folder: Path, clock: StoppedClock
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, os.fspath(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
    )
    assert child.stdout is not None
    for _ in range(40):
        child.stdout.readline()
    child.kill()
    rest = child.communicate()[0].split()
    told = 40 + len(rest)
    everyone = [f"k-{number}" for number in range(1, told + 2)]
    found = open_log(folder, clock).logged(everyone)
    assert found >= set(everyone[:told])
    assert len(jobs_in(folder)) == len(set(jobs_in(folder)))
