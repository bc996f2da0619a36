"""Tried, not asked: what the system does not permit is told, and nothing else is."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from watcher.adapters import access
from watcher.adapters.access import PROBE, refused_reading, refused_writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a call of `os` fail for paths that contain a text."""

    def plant(call: str, number: int, text: str) -> None:
        real = getattr(os, call)

        def denying(path: Any, *arguments: Any, **options: Any) -> Any:
            if text in os.fspath(path):
                raise OSError(number, os.strerror(number), path)
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, call, denying)

    return plant


def test_folders_in_order_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    assert refused_reading(tmp_path) is None
    assert refused_writing(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_folder_that_may_not_be_listed(tmp_path: Path, deny: Callable[..., None], number: int) -> None:
    deny("scandir", number, str(tmp_path))
    assert refused_reading(tmp_path) == f"cannot be listed: {os.strerror(number)}"


def test_pictures_that_may_not_be_opened_though_their_bits_allow_it(
    tmp_path: Path, deny: Callable[..., None]
) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "note.txt").write_bytes(b"x")
    deny("open", errno.EPERM, "note.txt")
    assert refused_reading(tmp_path) is None, "only pictures are tried"
    deny("open", errno.EPERM, "a.png")
    assert refused_reading(tmp_path, ("a.*",)) is None, "what is ignored is not tried"
    told = refused_reading(tmp_path)
    assert told == f"has files that cannot be opened, such as 'a.png': {os.strerror(errno.EPERM)}"


def test_one_picture_without_permission_is_its_own_trouble(tmp_path: Path, deny: Callable[..., None]) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    deny("open", errno.EPERM, "a.png")
    assert refused_reading(tmp_path) is None
    deny("open", errno.EACCES, ".png")
    assert refused_reading(tmp_path) is None


def test_what_is_in_the_cloud_or_no_file_is_not_opened(
    tmp_path: Path, deny: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    deny("open", errno.EPERM, ".png")
    assert refused_reading(tmp_path) is None
    (tmp_path / "cloud.png").write_bytes(b"x")
    monkeypatch.setattr(access, "is_placeholder", lambda _status: True)
    assert refused_reading(tmp_path) is None


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_a_folder_that_takes_no_files(tmp_path: Path, deny: Callable[..., None], number: int) -> None:
    deny("open", number, PROBE)
    assert refused_writing(tmp_path) == f"takes no files: {os.strerror(number)}"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_a_disk_that_is_full_or_ill_is_no_refusal(
    tmp_path: Path, deny: Callable[..., None], number: int
) -> None:
    deny("open", number, PROBE)
    assert refused_writing(tmp_path) is None


def test_a_folder_that_keeps_what_it_has_is_told_of_with_what_is_left(
    tmp_path: Path, deny: Callable[..., None]
) -> None:
    deny("unlink", errno.EPERM, PROBE)
    told = refused_writing(tmp_path)
    assert told is not None
    assert PROBE in told


def test_what_a_killed_start_left_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / PROBE).write_bytes(b"")
    assert refused_writing(tmp_path) is None
    assert not (tmp_path / PROBE).exists()


def test_a_link_in_the_probes_place_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / PROBE).symlink_to("precious")
    refused_writing(tmp_path)
    assert (tmp_path / "precious").read_bytes() == b"precious"
