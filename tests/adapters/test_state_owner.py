"""A state folder belongs to one inbox and one outbox."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from watcher.adapters.state_owner import FILE_NAME, claim
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    for name in ("state", "in", "out", "other"):
        (tmp_path / name).mkdir()
    return tmp_path / "state"


def test_the_first_claim_is_written_down_and_the_same_is_taken_again(state_dir: Path, tmp_path: Path) -> None:
    for _ in range(2):
        claim(state_dir, inbox=tmp_path / "in", outbox=tmp_path / "out")
    assert json.loads((state_dir / FILE_NAME).read_text())["inbox"] == str(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    claim(state_dir, inbox=tmp_path / "link", outbox=tmp_path / "out")


@pytest.mark.parametrize("changed", ["inbox", "outbox"])
def test_other_folders_are_refused_with_what_to_do(state_dir: Path, tmp_path: Path, changed: str) -> None:
    folders = {"inbox": tmp_path / "in", "outbox": tmp_path / "out"}
    claim(state_dir, **folders)
    with pytest.raises(RemediableError, match=f"belongs to another {changed}") as refused:
        claim(state_dir, **{**folders, changed: tmp_path / "other"})
    assert refused.value.exit_code == 78
    assert "--state-dir" in refused.value.remedy
    (state_dir / FILE_NAME).unlink()
    claim(state_dir, **{**folders, changed: tmp_path / "other"})


def test_a_file_that_says_nothing_is_written_anew(state_dir: Path, tmp_path: Path) -> None:
    (state_dir / FILE_NAME).write_text("{")
    claim(state_dir, inbox=tmp_path / "in", outbox=tmp_path / "out")
    assert "outbox" in json.loads((state_dir / FILE_NAME).read_text())
