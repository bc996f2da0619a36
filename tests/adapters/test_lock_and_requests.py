"""One owner of a state folder, and what others ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from watcher.adapters import lock, requests
from watcher.adapters.lock import AlreadyRunningError, FolderLock, StateLock, owner_of
from watcher.adapters.requests import RequestFolder, count_requests, read_requests, write_retry
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = (
    "import sys, time, pathlib; from watcher.adapters.lock import StateLock\n"
    "lock = StateLock(pathlib.Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
)
LOOK = (
    "import sys, pathlib; from watcher.adapters.lock import owner_of\n"
    "print('go', flush=True)\n"
    "while True: owner_of(pathlib.Path(sys.argv[1]))"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(AlreadyRunningError, match=str(holder.pid)) as caught:
        StateLock(tmp_path).acquire()
    assert caught.value.exit_code == 75
    assert caught.value.owner == owner_of(tmp_path)
    assert caught.value.owner.pid == holder.pid


def test_the_lock_dies_with_its_process(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert owner_of(tmp_path) is None
    with StateLock(tmp_path):
        owner = owner_of(tmp_path)
        assert owner is not None
        assert owner.pid == os.getpid()
    assert owner_of(tmp_path) is None


def test_a_worker_that_outlives_the_service_does_not_keep_the_lock(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        assert owner_of(tmp_path) is None
        StateLock(tmp_path).acquire()
    finally:
        child.kill()
        child.wait()


def test_looking_makes_nothing_and_does_not_get_in_the_way(tmp_path: Path) -> None:
    assert owner_of(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()
    looking = subprocess.Popen([sys.executable, "-c", LOOK, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert looking.stdout is not None
        assert looking.stdout.readline() == "go\n"
        for _ in range(20):
            with StateLock(tmp_path):
                pass
    finally:
        looking.kill()
        looking.wait()
        if looking.stdout is not None:
            looking.stdout.close()


def test_a_state_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    with StateLock(tmp_path / "a" / "state"):
        assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_cannot_be_made_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(RemediableError) as caught:
        StateLock(tmp_path / "file" / "state").acquire()
    assert caught.value.exit_code == 78
    assert "state_dir" in caught.value.remedy


# --- a folder's name in the kernel -------------------------------------------------------------------------

HOLD_FOLDER = (
    "import sys, time, pathlib; from watcher.adapters.lock import FolderLock\n"
    "with FolderLock('inbox', pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def folder_holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    if sys.platform != "linux":
        pytest.skip("this system has no abstract socket addresses")
    command = [sys.executable, "-c", HOLD_FOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_that_is_worked_on_is_known_by_any_name_and_nothing_is_written(
    tmp_path: Path, folder_holder: subprocess.Popen[str]
) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    try:
        for path in (tmp_path, link, tmp_path / ".." / tmp_path.name):
            with pytest.raises(AlreadyRunningError, match=f"process {folder_holder.pid} works on") as caught:
                FolderLock("inbox", path).acquire()
            assert caught.value.exit_code == 75
            assert "state_dir" in caught.value.remedy
    finally:
        link.unlink()
    assert list(tmp_path.iterdir()) == []
    with FolderLock("outbox", tmp_path):
        pass  # one service's outbox may be another's inbox


def test_a_folders_lock_dies_with_its_process_and_is_not_inherited(
    tmp_path: Path, folder_holder: subprocess.Popen[str]
) -> None:
    os.kill(folder_holder.pid, signal.SIGKILL)
    folder_holder.wait()
    with FolderLock("inbox", tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        with FolderLock("inbox", tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_after_many_refusals_the_owner_is_still_known_to_be_there(
    tmp_path: Path, folder_holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)
    for _ in range(40):
        with pytest.raises(AlreadyRunningError) as caught:
            FolderLock("inbox", tmp_path).acquire()
        assert caught.value.owner.pid in {folder_holder.pid, None}


@pytest.mark.parametrize("why", ["no such folder", "no such names"])
def test_where_a_folder_cannot_be_locked_it_is_not(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: bytes) -> None:
        raise PermissionError(name)

    if why == "no such names":
        monkeypatch.setattr(lock, "_bound", refuse)
    with FolderLock("inbox", tmp_path / "absent" if why == "no such folder" else tmp_path):
        pass


# --- requests ----------------------------------------------------------------------------------------------


def test_requests_come_back_in_order_and_go_when_taken_up(tmp_path: Path) -> None:
    assert read_requests(tmp_path) == []
    write_retry(tmp_path, ["a-1", "b\udcff-2"])
    deadline = time.monotonic() + 5  # two files in one tick of the clock have no order
    first = read_requests(tmp_path)[0].path.name
    while time.monotonic() < deadline:
        second = write_retry(tmp_path, None)
        if second.name[:20] > first[:20]:
            break
        second.unlink()
    waiting = RequestFolder(tmp_path).waiting()
    assert [request.ids for request in waiting] == [("a-1", "b\udcff-2"), None]
    assert count_requests(tmp_path) == 2
    for request in waiting:
        request.remove()
        request.remove()
    assert list((tmp_path / "requests").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 2, "request": "retry", "jobs": null}',
        b'{"schema": 1, "request": "dance"}',
        b'{"schema": 1, "request": "retry", "jobs": [1]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=["empty", "torn", "list", "newer", "other", "not-ids", "deep", "not-utf8"],
)
def test_what_is_no_request_is_set_aside_and_stops_nothing(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / "0.json").write_bytes(content)
    write_retry(tmp_path, ["a-1"])
    assert [request.ids for request in read_requests(tmp_path)] == [("a-1",)]
    assert (folder / "0.rejected").read_bytes() == content
    assert len(read_requests(tmp_path)) == 1


def test_of_what_was_set_aside_the_newest_few_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    (folder / "00.rejected").mkdir(parents=True)
    for number in range(1, 61):
        (folder / f"{number:02}.json").write_bytes(b"no request")
    assert read_requests(tmp_path) == []
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["00.rejected", *(f"{number:02}.rejected" for number in range(41, 61))]


def test_requests_that_nobody_takes_up_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_WAITING", 3)
    for _ in range(3):
        taken = write_retry(tmp_path, ["a-1"])
    with pytest.raises(RemediableError, match="3 requests wait already") as caught:
        write_retry(tmp_path, ["a-1"])
    assert caught.value.exit_code == 75
    assert "watcher run" in caught.value.remedy
    taken.unlink()
    write_retry(tmp_path, ["a-1"])


def test_a_folder_in_the_way_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "requests" / "0.json").mkdir(parents=True)
    write_retry(tmp_path, ["a-1"])
    assert [request.ids for request in read_requests(tmp_path)] == [("a-1",)]


def test_a_request_is_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = write_retry(tmp_path, ["a-1"])
    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_bytes()) == {"schema": 1, "request": "retry", "jobs": ["a-1"]}
