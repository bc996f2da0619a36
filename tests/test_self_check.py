"""The self-check of a start, and what `watcher doctor` makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from watcher import settings
from watcher.cli.examination import examine
from watcher.settings import access

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("in", "out", "archive"):
        (tmp_path / name).mkdir()
    file = tmp_path / "watcher.toml"
    file.write_text(
        'inbox = "in"\noutbox = "out"\narchive = "archive"\nstate_dir = "state"\n', encoding="utf-8"
    )
    return file


def refusing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(access, "refused_reading", lambda path, _ignore: "r" if path.name in names else None)
    monkeypatch.setattr(access, "refused_writing", lambda path: "w" if path.name in names else None)


def test_folders_in_order_pass_and_stay_empty(config: Path) -> None:
    settings.check_access(settings.load(config))
    assert not list((config.parent / "out").iterdir())


@pytest.mark.parametrize(("platform", "remedy"), [("linux", "SELinux"), ("darwin", "Full Disk Access")])
def test_every_refusal_is_told_with_the_folder_and_the_systems_remedy(
    config: Path, monkeypatch: pytest.MonkeyPatch, platform: str, remedy: str
) -> None:
    refusing(monkeypatch, "in", "out", "archive")
    monkeypatch.setattr("sys.platform", platform)

    with pytest.raises(settings.ConfigurationError) as refused:
        settings.check_access(settings.load(config))

    assert refused.value.exit_code == 78
    inbox, outbox = refused.value.problems
    assert inbox.what == f"the system denies access to the inbox: {config.parent / 'in'} r"
    assert outbox.what == f"the system denies access to the outbox: {config.parent / 'out'} w"
    assert remedy in inbox.remedy
    assert "set inbox to" in inbox.remedy
    assert "set outbox to" in outbox.remedy


def test_the_archive_counts_where_sources_go_there(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "archive")
    settings.check_access(settings.load(config))
    with pytest.raises(settings.ConfigurationError, match="access to the archive"):
        settings.check_access(settings.load(config, after="archive"))


def test_doctor_finds_what_a_start_would_end_with(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine(config, None, probe=False)["problems"] == 0
    refusing(monkeypatch, "out")

    report = examine(config, None, probe=False)

    (fact,) = [fact for fact in report["facts"] if fact["level"] == "problem"]
    assert fact["topic"] == "folders"
    assert "denies access to the outbox" in fact["value"]
    assert fact["remedy"]
