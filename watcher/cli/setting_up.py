"""`watcher init`: the folders and the configuration.

Rules of this file: a configuration that somebody wrote is never lost; nothing is written before everything
that can be checked was.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

from watcher import settings
from watcher.adapters.resources import default_config_text
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEFAULT_FOLDER: Final = "~/Retouch"
_NAMES: Final = ("inbox", "outbox", "archive")


def init(directory: Path | None, config: Path, *, force: bool) -> list[str]:
    """Make what is missing.

    Args:
        directory: gets the inbox and outbox; None for the default.
        config: the configuration file to write.
        force: replace one that exists.

    Returns:
        Lines that tell what was done and what to do next.

    Raises:
        RemediableError: a configuration exists and another folder was named, or the disk refuses.
    """
    config = config.expanduser().absolute()
    if config.exists() and not force:
        if directory is not None:
            raise RemediableError(
                f"there is a configuration already: {config}",
                "edit it; or name another file with --config; or replace it with --force",
            )
        return _complete(config, f"kept     {config}")
    text = (
        default_config_text() if directory is None else _placed(default_config_text(), _absolute(directory))
    )
    kept = _write(config, text)
    return _complete(config, f"wrote    {config}" + (f" (the old one is now {kept})" if kept else ""))


def _complete(config: Path, first: str) -> list[str]:
    """Make the folders that the configuration names, and check that they can be used."""
    chosen = settings.load(config)
    folders = {"inbox": chosen.inbox, "outbox": chosen.outbox}
    if chosen.after == "archive" and chosen.archive is not None:
        folders["archive"] = chosen.archive
    lines = [first, *_make(folders)]
    settings.check_folders(chosen)
    option = "" if config == settings.default_config_path() else f" --config {config}"
    return [
        *lines,
        "",
        "Next:",
        f"  watcher run{option}",
        f"  then put a picture into {chosen.inbox}, and beside it what says what is to go:",
        "    IMG.jpg.mask.png   a mask, white where something is to go",
        "    IMG.marked.jpg     the picture again, with what is to go scribbled over, as any phone can",
        f"  the clean one appears in {chosen.outbox} (the configuration explains four more ways to mark)",
        f"  watcher preview{option} IMG.jpg   shows what would go, without removing anything",
        f"  watcher doctor{option}   looks at what the service depends on",
        "  watcher demo     shows it at work",
    ]


def _make(folders: Mapping[str, Path]) -> list[str]:
    lines = []
    for name, folder in folders.items():
        known = folder.is_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RemediableError(
                f"{name} cannot be made: {folder}: {error.strerror}",
                f"move what is in the way, or set {name} to another folder",
            ) from error
        lines.append(f"{'found' if known else 'made':8} {folder}")
    return lines


def _placed(text: str, directory: Path) -> str:
    """The default text with the folders of another place."""
    for name in _NAMES:
        line = f'{name} = "{_DEFAULT_FOLDER}/{name}"'
        text = text.replace(line, f"{name} = {_quoted(directory / name)}", 1)
    return text


def _quoted(path: Path) -> str:
    """A path as a TOML text that the configuration reads back as the same path."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RemediableError(
            f"the folder's name is not UTF-8, so no configuration can hold it: {os.fsencode(path)!r}",
            "choose another folder, or rename it",
        ) from error
    return json.dumps(str(path).replace("$", "$$"), ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(config: Path, text: str) -> Path | None:
    """Write the configuration; returns where the old one went, if there was one."""
    backup = config.with_name(f"{config.name}.bak")
    staged = config.with_name(f".{config.name}.new")
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(text, encoding="utf-8")
        existed = config.exists()
        if existed:
            config.replace(backup)
        staged.replace(config)
    except OSError as error:
        raise RemediableError(
            f"the configuration cannot be written: {config}: {error.strerror}",
            "name a file in a folder that this user may write: --config FILE",
        ) from error
    return backup if existed else None


def _absolute(directory: Path) -> Path:
    return directory.expanduser().absolute()
