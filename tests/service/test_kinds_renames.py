"""Kinds B and G: renames, temporary names, and times that lie (tests/service/kinds.py)."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import Service, encoded, mask, picture, pixels, seed_of, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    NewService = Callable[..., Service]

PROMPT_S: Final = 1.0
PATIENT_S: Final = 60.0
"""A quiet period that no test waits for: whatever is done with it was taken at once."""
LONG_AGO_S: Final = 1_000_000_000
"""September 2001."""


@pytest.fixture(scope="module")
def _patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(
        tmp_path_factory.mktemp("patient"),
        ("[arrivals]", f"quiet_s = {PATIENT_S}", "rescan_s = 0.2", "[log]", 'level = "debug"'),
    ).start()
    yield service
    assert service.terminate() == 0
    service.close()


@pytest.fixture
def patient(_patient: Service) -> Iterator[Service]:
    """A service that waits long where it has to wait at all; each test uses names of its own."""
    yield _patient
    _patient.assert_sound()


def expect_marked(service: Service, name: str, data: bytes) -> None:
    """A picture is to come under this name; its mask is there."""
    service.place(f"{name}.mask.png", mask())
    service.expect(name, data, mask())


def assert_nothing_was_made_of(service: Service, *names: str) -> None:
    """No job, no record, no note."""
    assert {job.source for job in service.jobs()}.isdisjoint(names)
    assert [record for name in names for record in service.records_of(name, outcome=())] == []
    notes = service.notes("failed") | service.notes("held")
    assert notes.isdisjoint(f"{name}.json" for name in names)


def assert_never_heard_of(service: Service, *names: str) -> None:
    """Nothing was made of these names, and not a line of the log has them, not even for debugging."""
    assert_nothing_was_made_of(service, *names)
    log = service.log_file.read_text("utf-8", "replace")
    assert [name for name in names if name in log] == []


# --- moves into the inbox ----------------------------------------------------------------------------------


@pytest.mark.kind("B1")
def test_a_file_that_is_moved_in_is_served_without_a_wait(patient: Service) -> None:
    settling_ms = []
    for number in range(12):
        patient.put(f"moved-{number}.png")
        record = patient.wait_record(f"moved-{number}.png")
        settling_ms.append(record["segments_ms"]["settle"])

    assert statistics.median(settling_ms) < 50, settling_ms
    assert max(settling_ms) < 1000 * PROMPT_S, settling_ms


def rsync(source: Path, folder: Path) -> str:
    """Do as rsync: write a dot-name beside, give it the times, then the name. Returns the dot-name."""
    handle, temporary = tempfile.mkstemp(prefix=f".{source.name}.", dir=folder)
    with os.fdopen(handle, "wb") as file:
        data = source.read_bytes()
        for start in range(0, len(data), 8192):
            file.write(data[start : start + 8192])
            file.flush()
    shutil.copystat(source, temporary)
    Path(temporary).rename(folder / source.name)
    return Path(temporary).name


@pytest.mark.kind("B2")
def test_what_rsync_renames_is_served_and_its_dot_names_are_not(patient: Service) -> None:
    hidden, names = [], [f"synced-{number}.png" for number in range(20)]
    for name in names:
        source = patient.root / "aside" / name
        source.write_bytes(picture(seed_of(name)))
        os.utime(source, (LONG_AGO_S, LONG_AGO_S))
        expect_marked(patient, name, source.read_bytes())
        hidden.append(rsync(source, patient.inbox))

    for name in names:
        patient.wait_record(name)

    assert_never_heard_of(patient, *hidden)


@pytest.mark.kind("B2")
@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed; its imitation is tested")
def test_what_the_real_rsync_delivers_is_served(patient: Service) -> None:
    source = patient.root / "aside" / "by-rsync.png"
    source.write_bytes(picture(seed_of(source.name)))
    expect_marked(patient, source.name, source.read_bytes())

    subprocess.run(["rsync", "--times", str(source), str(patient.inbox)], check=True)

    patient.wait_record(source.name)


# --- temporary names ---------------------------------------------------------------------------------------

TEMPORARY: Final = [
    pytest.param(".syncthing.{}.tmp", marks=pytest.mark.kind("B3")),
    pytest.param("~syncthing~{}.tmp", marks=pytest.mark.kind("B3")),
    pytest.param("{}.ocTransferId431656977.part", marks=pytest.mark.kind("B4")),
    pytest.param("{}.tacitpart", marks=pytest.mark.kind("B5")),
    pytest.param("{}.a-suffix-that-nobody-knows", marks=pytest.mark.kind("B5")),
    pytest.param(".Screenshot {}", marks=pytest.mark.kind("B6")),
]


@pytest.mark.parametrize("temporary", TEMPORARY)
def test_a_temporary_name_is_nothing_until_it_is_renamed(patient: Service, temporary: str) -> None:
    name = f"from-{seed_of(temporary)}.png"
    data = picture(seed_of(name))
    expect_marked(patient, name, data)
    hidden = patient.inbox / temporary.format(name)
    hidden.write_bytes(data[: len(data) // 2])
    with hidden.open("ab") as file:  # it grows, and is closed in between
        file.write(data[len(data) // 2 :])
    patient.put(f"beside-{name}")
    patient.wait_record(f"beside-{name}")
    assert_nothing_was_made_of(patient, name)

    hidden.rename(patient.inbox / name)

    assert patient.wait_record(name)["image"]["sha256_in"] == sha256(data)
    assert [job.state for job in patient.jobs() if job.source == name] == ["done"]
    assert_never_heard_of(patient, hidden.name)


@pytest.mark.kind("B3", "B4", "B5")
def test_temporary_names_that_stay_are_never_told_of(patient: Service) -> None:
    """One that was left behind lies there at each rescan."""
    stale = [
        ".syncthing.stale.png.tmp",
        "~syncthing~stale.png.tmp",
        "stale.png.ocTransferId7.part",
        "stale.png.tacitpart",
        "~$stale.png",
        "stale.png.download/stale.png",
        "@eaDir/stale.png",
        ".stversions/stale~20260101-120000.png",
    ]
    for name in stale:
        patient.place(name, picture(seed_of(name)))

    listings = len(patient.log("inbox.rescanned"))
    patient.wait_log("inbox.rescanned", count=listings + 5)

    assert_never_heard_of(patient, *stale)


HARD_OF_HEARING: Final = """
import runpy, sys
from watcher.adapters.inbox import WatchedInbox
from watcher.adapters.native_watch import Change

def on_notice(self, notice, real=WatchedInbox._on_notice):
    if notice.change is not Change.FILE_MOVED_IN or not notice.path.startswith("Screenshot"):
        real(self, notice)

WatchedInbox._on_notice = on_notice
sys.argv = sys.argv[3:]
runpy.run_module("watcher", run_name="__main__", alter_sys=True)
"""
"""The service, which is not told of screenshots' names: on macOS the hidden name may be all that is told."""


@pytest.mark.kind("B6")
def test_a_picture_of_which_only_the_hidden_name_was_told_is_found_soon(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2", "rescan_s = 600")
    service.wrapper = (sys.executable, "-c", HARD_OF_HEARING)
    service.start()
    service.put("Screenshot 1.png")
    service.put("told.png")
    service.wait_record("told.png")
    assert service.records_of("Screenshot 1.png", outcome=()) == [], "nobody told of it, nor of a hidden name"

    expect_marked(service, "Screenshot 2.png", picture(1302))
    hidden = service.inbox / ".Screenshot 2.png"
    hidden.write_bytes(picture(1302))
    hidden.rename(service.inbox / "Screenshot 2.png")

    for number in (1, 2):
        service.wait_record(f"Screenshot {number}.png", patience_s=20)
    service.assert_sound()


# --- links -------------------------------------------------------------------------------------------------


@pytest.mark.kind("B7")
def test_a_hard_link_is_complete_when_it_appears(patient: Service) -> None:
    """Nobody ever closes it, so no close is told."""
    data = picture(1303)
    original = patient.root / "aside" / "original.png"
    original.write_bytes(data)
    expect_marked(patient, "linked.png", data)

    (patient.inbox / "linked.png").hardlink_to(original)

    assert patient.wait_record("linked.png")["total_ms"] < 1000 * PROMPT_S


@pytest.mark.kind("B7")
def test_a_hard_link_to_a_file_that_is_being_written_waits_for_its_writer(service: Service) -> None:
    """The close is told of where the file was opened, outside; that it has come is seen all the same."""
    data = picture(1304)
    original = service.root / "aside" / "growing.png"
    expect_marked(service, "linked-early.png", data)
    with original.open("wb", buffering=0) as file:
        file.write(data[:1000])
        (service.inbox / "linked-early.png").hardlink_to(original)
        service.put("beside-the-link.png")
        service.wait_record("beside-the-link.png")
        assert_nothing_was_made_of(service, "linked-early.png")
        file.write(data[1000:])

    service.wait_record("linked-early.png")
    assert [job.state for job in service.jobs() if job.source == "linked-early.png"] == ["done"]


# --- times -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def polling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that nobody tells of anything."""
    service = Service(
        tmp_path_factory.mktemp("polling"),
        ("[arrivals]", 'observer = "polling"', "quiet_s = 0.1", "rescan_s = 600"),
    ).start()
    yield service
    assert service.terminate() == 0
    service.close()


def uncompressed(seed: int) -> bytes:
    """Pictures of which all have the same number of bytes."""
    return encoded(pixels(seed), "PNG", compress_level=0)


def copy_with_times(service: Service, name: str, data: bytes) -> None:
    """Copy a file of long ago into the inbox, and its time with it."""
    source = service.root / "aside" / "of-2001"
    source.write_bytes(data)
    os.utime(source, (LONG_AGO_S, LONG_AGO_S))
    subprocess.run(["cp", "-p", str(source), str(service.inbox / name)], check=True)


def rewrite_unseen(path: Path, data: bytes) -> None:
    """Give a file other bytes, in place, with the size and the modification time that it had."""
    before = path.stat()
    assert before.st_size == len(data)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


@pytest.mark.kind("G1")
def test_a_file_of_long_ago_is_served_at_once(patient: Service) -> None:
    data = uncompressed(1305)
    expect_marked(patient, "old.png", data)

    copy_with_times(patient, "old.png", data)

    assert patient.wait_record("old.png")["segments_ms"]["settle"] < 1000 * PROMPT_S


@pytest.mark.kind("G1")
@pytest.mark.parametrize("observer", ["native", "polling"])
def test_other_bytes_with_the_same_size_and_time_are_another_picture(
    service: Service, polling: Service, observer: str
) -> None:
    watching = service if observer == "native" else polling
    first, second = uncompressed(1306), uncompressed(1307)
    expect_marked(watching, "same-times.png", first)
    copy_with_times(watching, "same-times.png", first)
    watching.wait_record("same-times.png")

    rewrite_unseen(watching.inbox / "same-times.png", second)
    watching.expect("same-times.png", second, mask())

    last = watching.wait_record("same-times.png", count=2)
    assert last["image"]["sha256_in"] == sha256(second)
    assert last["output"] == "same-times (2).png"
    watching.assert_sound()


@pytest.mark.kind("G1")
def test_bytes_that_changed_while_the_service_was_away_are_seen_at_its_start(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1").start()
    first, second = uncompressed(1308), uncompressed(1309)
    expect_marked(service, "same-times.png", first)
    copy_with_times(service, "same-times.png", first)
    service.wait_record("same-times.png")
    assert service.terminate() == 0

    rewrite_unseen(service.inbox / "same-times.png", second)
    service.expect("same-times.png", second, mask())
    service.start()

    assert service.wait_record("same-times.png", count=2)["image"]["sha256_in"] == sha256(second)
    service.assert_sound()
