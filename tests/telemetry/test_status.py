"""The status file: whole or not at all, and never a reason to fail."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from watcher.telemetry.status import FILE_NAME, Columns, LastJob, Status, StatusFile, WorkerStatus

if TYPE_CHECKING:
    from pathlib import Path


def a_status(pid: int = 1, padding: int = 0) -> Status:
    return Status(
        pid=pid,
        version="0.1.0",
        state="watching",
        started="2026-11-30T10:00:00.000Z",
        written="2026-11-30T10:00:01.000Z",
        worker=WorkerStatus(
            state="ready",
            pid=7,
            incarnation=2,
            engine=Columns(configured="auto", actual="patchmatch", reason="no weights" + "." * padding),
            device=Columns(configured="auto", actual="cpu"),
        ),
        path="hot",
        path_reason="ready",
        counts={"ready": 2},
        last_job=LastJob(job="j", source="a.png", outcome="done", ts="2026-11-30T10:00:00.500Z"),
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = StatusFile(tmp_path)
    assert file.read() is None
    file.write(a_status())
    assert file.read() == a_status()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    file.remove()
    file.remove()
    assert file.read() is None


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """A long and a short file in turn: a reader sees one or the other, whole."""
    file = StatusFile(tmp_path)
    file.write(a_status())
    done = threading.Event()

    def write() -> None:
        for number in range(300):
            file.write(a_status(pid=number, padding=50_000 * (number % 2)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not done.is_set():
        assert file.read() is not None
        seen += 1
    writer.join()
    assert seen


def test_what_is_no_status_is_none(tmp_path: Path) -> None:
    file = StatusFile(tmp_path)
    for text in ("", "{", "[]", '{"schema": 1}'):
        (tmp_path / FILE_NAME).write_text(text, encoding="ascii")
        assert file.read() is None
    file.write(a_status())
    newer = json.loads((tmp_path / FILE_NAME).read_bytes()) | {"schema": 2}
    (tmp_path / FILE_NAME).write_text(json.dumps(newer), encoding="ascii")
    assert file.read() is None


def test_fields_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    file = StatusFile(tmp_path)
    file.write(a_status())
    more = json.loads((tmp_path / FILE_NAME).read_bytes()) | {"unheard_of": 1}
    (tmp_path / FILE_NAME).write_text(json.dumps(more), encoding="ascii")
    assert file.read() == a_status()
