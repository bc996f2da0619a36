"""How files come and go: folders, names, links, an inbox that is away or may not be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import mask, picture, relative_files, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.harness import Service

    NewService = Callable[..., Service]

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


@pytest.mark.kind("F5")
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


@pytest.mark.kind("C12", "C13")
def test_folders_that_are_moved_or_copied_in_are_served_and_so_is_what_comes_later(service: Service) -> None:
    for number in range(3):
        for folder, seed in (("pack", 210), ("twin", 215)):
            data = picture(seed + number)
            outside = service.root / folder
            outside.mkdir(exist_ok=True)
            (outside / f"{number}.png").write_bytes(data)
            (outside / f"{number}.png.mask.png").write_bytes(mask())
            service.expect(f"{folder}/{number}.png", data, mask())
    (service.root / "pack").rename(service.inbox / "pack")
    service.put("pack/late.png")
    shutil.copytree(service.root / "twin", service.inbox / "twin")

    for number in range(3):
        service.wait_record(f"pack/{number}.png")
        service.wait_record(f"twin/{number}.png")
    service.wait_record("pack/late.png")


@pytest.mark.kind("F7")
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


@pytest.mark.kind("C6", "H4")
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


@pytest.mark.kind("C9")
def test_an_inbox_that_is_deleted_and_made_again_is_watched_again(new_service: NewService) -> None:
    service = new_service().start()
    service.inbox.rmdir()
    service.wait_log("inbox.lost")

    service.inbox.mkdir()

    service.wait_log("inbox.found", count=2)
    service.assert_sound()


@pytest.mark.kind("H2")
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


@pytest.mark.kind("D5", "H1", "H2")
@pytest.mark.parametrize(("after", "where"), [("keep", "."), ("delete", "theirs")])
def test_what_may_only_be_read_is_served_once_and_never_written(
    new_service: NewService, after: str, where: str
) -> None:
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


@pytest.mark.kind("H4")
def test_an_inbox_that_goes_while_its_pictures_are_served_ends_none_of_their_jobs(
    new_service: NewService,
) -> None:
    """Workers find no files long before it is noticed that the inbox itself is away."""
    service = new_service("[arrivals]", "quiet_s = 0.1", faults="slow_item=0.05").start()
    for number in range(20):
        service.put(f"{number}.png")
    service.wait_records(1)
    away = service.root / "away"
    service.inbox.rename(away)
    service.wait_log("inbox.lost")

    away.rename(service.inbox)

    service.wait_records(20)
    service.assert_sound()
    assert {record["outcome"] for record in service.records()} == {"done"}
