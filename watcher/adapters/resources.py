"""The files that come with the program: sample pictures, default configuration, service unit.

In an installed wheel they lie in `watcher/_data/`; in a source tree, and so in an editable install, in their
own folders beside the package. Callers never build such a path themselves, and never write to one.
"""

from __future__ import annotations

from pathlib import Path

from watcher.ports import RemediableError

_PACKAGE = Path(__file__).resolve().parent.parent
_ROOTS = (_PACKAGE / "_data", _PACKAGE.parent)
_EXIT_INTERNAL = 70


def sample_inbox() -> Path:
    """The folder with the sample pictures and their masks; to be copied, not worked in.

    Raises:
        RemediableError: the installation lacks it.
    """
    return _find("sample_inbox")


def default_config_text() -> str:
    """The commented default configuration (TOML) that `watcher init` writes.

    Its lines `inbox = "~/Retouch/inbox"`, `outbox = "~/Retouch/outbox"` and `archive = "~/Retouch/archive"`
    stand in it exactly once each, for `init DIR` to replace.

    Raises:
        RemediableError: the installation lacks it.
    """
    return _find("config", "watcher.toml").read_text(encoding="utf-8")


def unit_template_text() -> str:
    """The systemd user unit; its one `ExecStart=` line is a placeholder for the real program's path.

    Raises:
        RemediableError: the installation lacks it.
    """
    return _find("service", "watcher.service").read_text(encoding="utf-8")


def _find(*parts: str) -> Path:
    for root in _ROOTS:
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise RemediableError(
        f"{'/'.join(parts)} is missing from this installation of watcher: {_PACKAGE}",
        "Install watcher again: pip install --force-reinstall --no-deps watcher",
        exit_code=_EXIT_INTERNAL,
    )
