"""What `watcher doctor` says of the packages that are extras."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from watcher.adapters import environment
from watcher.cli.examination import examine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("1.8.1", "1.8.1"),
        (None, "absent: HEIC pictures are refused until you run: pip install pillow-heif"),
    ],
)
def test_doctor_tells_whether_heic_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, told: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    real = environment.package_versions

    def versions(names: Iterable[str]) -> dict[str, str | None]:
        return {name: version if name == "pillow-heif" else found for name, found in real(names).items()}

    monkeypatch.setattr(environment, "package_versions", versions)
    facts = examine(tmp_path / "none.toml", None, probe=False)["facts"]

    (fact,) = [fact for fact in facts if fact["name"] == "pillow-heif"]
    assert fact["topic"] == "packages"
    assert fact["value"] == told
    assert fact["level"] == "ok", "an extra that is absent is no problem"
