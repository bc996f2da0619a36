"""How files come and go: slow writers, folders, names, an inbox that is away or may not be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import mask, picture, relative_files, sha256, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.harness import Service

    NewService = Callable[..., Service]

WRITER = """
import sys
target, source = sys.argv[1:]
data = open(source, "rb").read()
with open(target, "wb") as file:
    for start in range(0, len(data), 4096):
        file.write(data[start:start + 4096])
        file.flush()
        if start >= len(data) // 2:
            sys.stdin.readline()
"""
"""Writes a half, and then 4 KiB for each line that it is told, with the file open all the time."""

CLOSING_WRITER = """
import sys, time
target, source = sys.argv[1:]
data = open(source, "rb").read()
for start in range(0, len(data), len(data) // 10):
    with open(target, "ab") as file:
        file.write(data[start:start + len(data) // 10])
    time.sleep(0.15)
"""
"""Opens, appends and closes ten times over 1.5 s, as clients of network shares do."""


def writer(program: str, service: Service, name: str, data: bytes) -> subprocess.Popen[bytes]:
    """Write a file from a process of its own."""
    source = service.root / "aside" / f"slow-{name}"
    source.write_bytes(data)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(service.inbox / name), str(source)], stdin=subprocess.PIPE
    )


@pytest.mark.parametrize("began", ["before the service", "while it runs"])
def test_a_file_is_waited_for_as_long_as_its_writer_has_it_open(new_service: NewService, began: str) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    data = picture(201, 200, 150)
    service.place("slow.png.mask.png", mask(200, 150))
    service.expect("slow.png", data, mask(200, 150))
    if began == "while it runs":
        service.start()

    with writer(WRITER, service, "slow.png", data) as process:
        wait_until((service.inbox / "slow.png").exists, "the first bytes")
        if began == "before the service":
            service.start()
        assert process.stdin is not None
        for number in range(4):  # much longer than the quiet period, and other files are not held up
            service.put(f"meanwhile-{number}.png")
            service.wait_record(f"meanwhile-{number}.png")
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert not [job for job in service.jobs() if job.source == "slow.png"]

    record = service.wait_record("slow.png")
    assert record["image"]["sha256_in"] == sha256(data)
    assert record["attempt"] == 1
    service.assert_sound()
    assert len(service.records_of("slow.png", outcome=())) == 1


def test_a_writer_that_closes_after_each_chunk_makes_one_result_and_no_failure(
    new_service: NewService,
) -> None:
    """Case A11: each close looks like the end; what is served before the end is never published."""
    service = new_service("[arrivals]", "quiet_s = 0.5").start()
    data = picture(202, 200, 150)
    service.place("chunks.png.mask.png", mask(200, 150))
    service.expect("chunks.png", data, mask(200, 150))

    with writer(CLOSING_WRITER, service, "chunks.png", data):
        record = service.wait_record("chunks.png")

    assert record["image"]["sha256_in"] == sha256(data)
    assert record["attempt"] == 1
    service.assert_sound()
    assert {job.state for job in service.jobs() if job.source == "chunks.png"} <= {"done", "superseded"}
    assert service.notes("failed") == set()


def test_an_empty_file_has_not_arrived_until_it_is_filled(service: Service) -> None:
    """Cases A3 and A4: a scanner touches the name first."""
    path = service.inbox / "scan.png"
    path.touch()
    service.place("scan.png.mask.png", mask())
    service.put("other.png")
    service.wait_record("other.png")

    path.write_bytes(picture(203))
    service.expect("scan.png", picture(203), mask())

    assert service.wait_record("scan.png")["attempt"] == 1
    assert service.notes("failed") & {"scan.png.json"} == set()


ODD_NAMES = (
    "with space.png",
    "a(1).png",
    "'q'\".png",
    "$(id).png",
    "-rf.png",
    "line\nbreak.png",
    "a%s{}.png",
    "über/日本/ñ.png",
    os.fsdecode(b"latin-\xe9.png"),
    "deep/er/and/deep/er/a.png",
    "failed/a.png",
)


def test_any_name_in_any_folder(service: Service) -> None:
    for name in ODD_NAMES:
        service.put(name)

    records = {name: service.wait_record(name) for name in ODD_NAMES}

    for name, record in records.items():
        assert service.output_of(record) == service.outbox / name.replace("failed/", "failed_/")
        assert service.log("job.finished", job=record["job"]), name
    listed = service.run("jobs", "--json", "--limit", "1000")
    assert {job["id"] for job in json.loads(listed.stdout)["jobs"]} >= {r["job"] for r in records.values()}
    assert service.run("jobs", "--limit", "1000").returncode == 0


def test_folders_that_are_moved_or_copied_in_are_served_and_so_is_what_comes_later(service: Service) -> None:
    pack = service.root / "pack"
    for number in range(3):
        data = picture(210 + number)
        for folder in (pack, service.root / "twin"):
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.png").write_bytes(data)
            (folder / f"{number}.png.mask.png").write_bytes(mask())
        service.expect(f"pack/{number}.png", data, mask())
    pack.rename(service.inbox / "pack")
    service.put("pack/late.png")

    for number in range(3):
        service.wait_record(f"pack/{number}.png")
    service.wait_record("pack/late.png")


def test_litter_of_sync_clients_is_never_a_job(service: Service) -> None:
    litter = [
        ".syncthing.a.png.tmp",
        "~syncthing~a.png.tmp",
        "a.png.part",
        "b.png.ocTransferId1.part",
        "@eaDir/c.png",
    ]
    for name in litter:
        service.place(name, picture(220))
    service.put("arrived.png", picture(221))
    service.wait_record("arrived.png")

    sources = {job.source for job in service.jobs()}
    assert sources.isdisjoint(litter)


def test_a_temporary_name_that_becomes_a_picture_is_one_job(service: Service) -> None:
    service.place("sync/.syncthing.photo.png.tmp", picture(222))
    service.place("sync/photo.png.mask.png", mask())
    service.expect("sync/photo.png", picture(222), mask())

    (service.inbox / "sync/.syncthing.photo.png.tmp").rename(service.inbox / "sync/photo.png")

    service.wait_record("sync/photo.png")


def test_links_out_of_the_inbox_are_not_followed(service: Service) -> None:
    secret = service.root / "secret"
    secret.mkdir()
    (secret / "outside.png").write_bytes(picture(230))
    (secret / "outside.png.mask.png").write_bytes(mask())
    (service.inbox / "out").symlink_to(secret)
    (service.inbox / "loop").symlink_to(service.inbox)
    (service.inbox / "link.png").symlink_to(secret / "outside.png")
    service.place("link.png.mask.png", mask())
    service.put("real.png", picture(231))
    service.wait_record("real.png")

    service.assert_sound()
    assert not {job.source for job in service.jobs()} & {"out/outside.png", "link.png"}


def test_an_inbox_renamed_away_and_back_loses_nothing_and_repeats_nothing(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1").start()
    service.put("before.png")
    service.place("held.png", picture(240))
    service.wait_record("before.png")
    service.wait_note("held", "held.png")
    away = service.root / "away"
    service.inbox.rename(away)
    service.wait_log("inbox.lost")
    wait_until(lambda: service.status()["state"] == "inbox_lost", "a status that says so")
    assert service.note("held", "held.png"), "what is away is not gone"
    data = picture(241)
    (away / "meanwhile.png.mask.png").write_bytes(mask())
    (away / "meanwhile.png").write_bytes(data)
    service.expect("meanwhile.png", data, mask())

    away.rename(service.inbox)

    service.wait_log("inbox.found", count=2)
    service.wait_record("meanwhile.png")
    service.assert_sound()
    assert service.note("held", "held.png")


def test_an_inbox_that_is_deleted_and_made_again_is_watched_again(new_service: NewService) -> None:
    service = new_service().start()
    service.inbox.rmdir()
    service.wait_log("inbox.lost")

    service.inbox.mkdir()

    service.wait_log("inbox.found", count=2)
    service.assert_sound()


def test_serving_a_picture_writes_nothing_into_the_inbox(service: Service) -> None:
    def stats() -> dict[str, tuple[int, int, int]]:
        paths = [folder, *sorted(folder.iterdir())]
        return {str(path): (s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path in paths for s in (path.stat(),)}

    folder = service.inbox / "untouched"
    service.put("untouched/a.png")
    before = stats()

    service.wait_record("untouched/a.png")

    assert stats() == before


def read_only(folder: Path) -> list[str]:
    """A program that runs the rest of its arguments where nobody can write this folder, not even root."""
    if subprocess.run(["unshare", "--mount", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("this system lets nobody make a mount of their own")
    script = (
        f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}' && exec \"$0\" \"$@\""
    )
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", script]


@pytest.mark.parametrize(("after", "where"), [("keep", "."), ("delete", "theirs")])
def test_what_may_only_be_read_is_served_once_and_never_written(
    new_service: NewService, after: str, where: str
) -> None:
    """Cases H2 and D5."""
    service = new_service(f'after = "{after}"', "[arrivals]", "quiet_s = 0.2")
    service.put("theirs/1.png")
    service.wrapper = read_only(service.inbox / where)
    service.start()
    service.wait_record("theirs/1.png")
    if after == "delete":
        (told,) = service.wait_log("after.failed")
        assert told["remedy"]
    assert service.terminate() == 0

    service.start()

    wait_until(lambda: service.status()["counts"].get("arriving") == 0, "the first look at the inbox")
    service.put("theirs/2.png")
    service.wait_record("theirs/2.png")
    assert service.outputs() == {"theirs/1.png", "theirs/2.png"}
    assert len(service.records_of("theirs/1.png", outcome=())) == 1
    assert len(service.log("after.failed", source="theirs/1.png")) == (1 if after == "delete" else 0)


@pytest.mark.parametrize("after", ["archive", "delete"])
def test_sources_go_once_their_results_are_safe(new_service: NewService, after: str) -> None:
    service = new_service(f'after = "{after}"', 'archive = "{root}/archive"')
    (service.root / "archive").mkdir()
    service.start()
    data = picture(250)
    service.put("a/b/gone.png", data)

    service.wait_record("a/b/gone.png")

    wait_until(lambda: not list(service.inbox.rglob("*.png")), "the source to go")
    archived = relative_files(service.root / "archive")
    assert archived == ({"a/b/gone.png", "a/b/gone.png.mask.png"} if after == "archive" else set())
    service.assert_sound()
    # the same content once more: it was served, and it stays where it was put
    service.place("a/b/gone.png.mask.png", mask())
    service.place("a/b/gone.png", data)
    service.wait_log("job.already_done", source="a/b/gone.png")
    assert len(service.records_of("a/b/gone.png")) == 1
