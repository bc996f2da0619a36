"""Whose state a state folder holds: it belongs to one inbox and one outbox.

Rules of this file: the first service writes the two paths down; another pair is refused, since the journal
would take the pictures of the one for those of the other.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

from watcher.ports import RemediableError

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "folders.json"
_SCHEMA: Final = 1


def claim(state_dir: Path, *, inbox: Path, outbox: Path) -> None:
    """Write down, or check, which folders this state belongs to. The caller holds the folder's lock.

    Raises:
        RemediableError: it belongs to other folders (exit code 78), or cannot be written.
    """
    check_owner(state_dir, inbox=inbox, outbox=outbox)
    file = state_dir / FILE_NAME
    if _read(file) is None:
        _write(file, _named(inbox, outbox))


def check_owner(state_dir: Path, *, inbox: Path, outbox: Path) -> None:
    """See that this state belongs to these folders, or to none yet.

    Raises:
        RemediableError: it belongs to other folders (exit code 78).
    """
    file = state_dir / FILE_NAME
    theirs = _read(file)
    for name, path in _named(inbox, outbox).items():
        if theirs is not None and theirs[name] != path:
            raise RemediableError(
                f"state_dir belongs to another {name}: {state_dir} to {theirs[name]}, not to {path}",
                "give this one its own state folder: --state-dir DIR, or state_dir in the configuration. "
                f"If the {name} was moved: remove {file} and start again; what was done stays known",
            )


def _named(inbox: Path, outbox: Path) -> dict[str, str]:
    return {"inbox": os.path.realpath(inbox), "outbox": os.path.realpath(outbox)}


def _read(file: Path) -> dict[str, str] | None:
    """The recorded paths; None where there are none that this version can read."""
    try:
        content = json.loads(file.read_bytes())
        return {"inbox": str(content["inbox"]), "outbox": str(content["outbox"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, folders: dict[str, str]) -> None:
    staged = file.with_name(f".{file.name}.new")
    try:
        staged.write_text(json.dumps({"schema": _SCHEMA, **folders}, indent=1) + "\n", encoding="ascii")
        staged.replace(file)
    except OSError as error:
        raise RemediableError(
            f"state_dir cannot be written: {file}: {error.strerror or error}",
            "give this user the permission, free some space, or set state_dir to another local folder",
        ) from error
