"""Which folders a table of mounts shows in each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from watcher.adapters import folders

if TYPE_CHECKING:
    from pathlib import Path

ROOT_MOUNT = "20 1 8:1 / / rw - ext4 /dev/sda1 rw"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("in/sub", "out/sub", "third/sub"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def relation(place: Path, monkeypatch: pytest.MonkeyPatch, *mounts: str) -> str | None:
    """How inbox and outbox overlap with these mounts: `ID PARENT DEVICE FOLDER POINT`, `~` for the place."""
    table = place / "mountinfo"
    lines = [f"{mount.replace('~', str(place))} rw - ext4 /dev/sda1 rw" for mount in mounts]
    table.write_text("\n".join([ROOT_MOUNT, *lines, ""]), encoding="utf-8")
    monkeypatch.setattr(folders, "MOUNTINFO", table)
    there, back = folders.overlap(place / "in", place / "out"), folders.overlap(place / "out", place / "in")
    assert back == {"contains": "is inside", "is inside": "contains"}.get(there or "", there)
    return there


@pytest.mark.parametrize(
    ("mounts", "told"),
    [
        ((), None),
        (("21 20 8:1 ~/out ~/in",), "is the same folder as"),
        (("21 20 8:1 ~/out/sub ~/in",), "is inside"),
        (("21 20 8:1 ~/out ~/in/sub",), "contains"),
        (("21 20 8:1 ~ ~/in/sub",), "contains"),
        (("21 20 8:1 ~/out/sub ~/in/sub",), "shows, through a mount, a part of"),
        (
            ("21 20 8:1 ~/third ~/in/sub", "22 20 8:1 ~/third/sub ~/out/sub"),
            "shows, through a mount, a part of",
        ),
        (("21 20 8:1 ~/third ~/in/sub",), None),
        (("21 20 8:2 ~/out ~/in/sub",), None),
        (("21 20 8:2 / ~/out", "22 20 8:2 /deep ~/in/sub"), "shows, through a mount, a part of"),
        (("21 20 8:2 /x ~/out", "22 20 8:2 /x/y ~/in"), "is inside"),
    ],
)
def test_what_a_mount_shows(
    place: Path, monkeypatch: pytest.MonkeyPatch, mounts: tuple[str, ...], told: str | None
) -> None:
    assert relation(place, monkeypatch, *mounts) == told


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param(("21 20 8:1 ~/out ~/in/sub", "22 21 8:9 / ~/in/sub"), id="covered"),
        pytest.param(("22 21 8:9 / ~/in/sub", "21 20 8:1 ~/out ~/in/sub"), id="covered, in another order"),
        pytest.param(("21 20 8:1 ~/out ~/in/sub", "22 20 8:9 / ~/in"), id="below a later mount"),
        pytest.param(
            ("21 20 8:8 / ~/in/sub", "22 21 8:1 ~/out ~/in/sub/deep", "23 20 8:9 / ~/in"), id="in one that is"
        ),
    ],
)
def test_what_a_mount_hides_is_not_shown(
    place: Path, monkeypatch: pytest.MonkeyPatch, mounts: tuple[str, ...]
) -> None:
    assert relation(place, monkeypatch, *mounts) is None


def test_the_mount_that_covers_another_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert relation(place, monkeypatch, "21 20 8:9 / ~/in/sub", "22 21 8:1 ~/out ~/in/sub") == "contains"


def test_a_root_that_is_its_own_parent_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place / "mountinfo"
    table.write_text(f"1 1 8:1 / / rw - rootfs rootfs rw\n2 1 8:1 {place}/out {place}/in/sub rw - x x rw\n")
    monkeypatch.setattr(folders, "MOUNTINFO", table)
    assert folders.overlap(place / "in", place / "out") == "contains"


def test_names_in_the_table_may_hold_anything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = place / "a b\x85\u2028c"
    (odd / "sub").mkdir(parents=True)
    table = place / "mountinfo"
    point = str(odd / "sub").replace(" ", "\\040")
    table.write_text(f"{ROOT_MOUNT}\n21 20 8:1 {place}/out {point} rw - x x rw\n", encoding="utf-8")
    monkeypatch.setattr(folders, "MOUNTINFO", table)
    assert folders.overlap(odd, place / "out") == "contains"


def test_where_the_system_tells_nothing_of_mounts_names_and_inodes_count(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOUNTINFO", place / "absent")
    assert folders.mount_table() == ""
    assert folders.overlap(place / "in", place / "out") is None
    assert folders.overlap(place / "in", place / "in" / "sub") == "contains"
