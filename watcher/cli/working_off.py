"""`watcher once` as people see it: a bar while it works, a line for each picture, a sum at the end."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from watcher.app import run_once
from watcher.cli import reports, views
from watcher.cli.logging_setup import configure_log
from watcher.core.job import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from watcher.core.job import Job
    from watcher.settings import Settings

    OnProgress: TypeAlias = Callable[[Job, int], None]

_FAILED = frozenset({JobState.FAILED, JobState.QUARANTINED})


def work_off(settings: Settings, *, as_json: bool) -> bool:
    """Run until nothing more can be done.

    Returns:
        Whether pictures of the inbox have failed, now or before, or could not be read.

    Raises:
        RemediableError: the service runs already, the configuration cannot work, or no worker can be started.
    """
    with _progress(settings) as on_progress:
        summary = run_once(settings, on_progress=on_progress)
    report = reports.once_report(summary)
    if as_json:
        views.print_json(report)
    else:
        views.print_once(report)
    if summary.trouble is not None:
        raise summary.trouble
    failed_now = any(job.state in _FAILED for job in summary.finished)
    return failed_now or bool(summary.failed_before or summary.unreadable)


@contextmanager
def _progress(settings: Settings) -> Iterator[OnProgress]:
    """On a terminal a bar, with log lines above it; else the log alone. Yields what a job's end calls."""
    if not sys.stderr.isatty():
        configure_log(settings)
        yield lambda _job, _waiting: None
        return
    with views.progress_bar() as advance:
        configure_log(settings, quiet=True)  # after the bar began: it takes stderr over
        yield lambda job, waiting: advance(job.source, waiting)
