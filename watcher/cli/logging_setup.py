"""Sets the service's log up as the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.ports import RemediableError
from watcher.telemetry import log

if TYPE_CHECKING:
    from watcher.settings import Settings


def configure_log(settings: Settings, *, quiet: bool = False) -> None:
    """Send log lines where they belong.

    Args:
        settings: their `log` section.
        quiet: leave out what a progress bar shows anyway.

    Raises:
        RemediableError: the log file cannot be opened.
    """
    level = "warning" if quiet and settings.log.level == "info" else settings.log.level
    try:
        log.configure(level=level, style=settings.log.format, file=settings.log.file)
    except OSError as error:
        raise RemediableError(
            f"the log file cannot be opened: {settings.log.file}: {error.strerror}",
            "set log.file to a file that this user may write, or take it out: stderr always gets the log",
        ) from error
