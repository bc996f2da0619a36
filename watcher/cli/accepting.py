"""`watcher accept`: the acceptance run, its progress on the terminal, and where its report lies."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from watcher import settings
from watcher.acceptance import running
from watcher.acceptance.report import SERVED
from watcher.cli import views
from watcher.cli.demonstration import RECIPES
from watcher.settings import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watcher.acceptance.report import Acceptance
    from watcher.acceptance.running import Options
    from watcher.settings import Settings


def accept(chosen: Settings, options: Options, folder: Path | None, *, as_json: bool) -> bool:
    """Run, write the report, print its claims; tell whether a picture failed.

    Args:
        chosen: the configuration that is measured.
        options: of the run.
        folder: where the report goes; None for one that is named after the time.
        as_json: print the report itself.
    """
    recipes = _sample_recipes() if options.pictures is None else chosen.recipes or (Recipe(name="default"),)
    with _progress() as tell:
        report = running.accept(chosen, recipes, options, tell)
    files = running.write(report, folder or Path(f"acceptance-{report.ts.replace(':', '')}"))
    if as_json:
        views.print_json(msgspec.to_builtins(report))
    else:
        views.print_acceptance(report, files)
    return any(_failed(report))


def measured(config: Path | None, engine: str | None, device: str | None) -> Settings:
    """Return the configuration that is to be measured; there need be none, since its folders are not used.

    Raises:
        ConfigurationError: something in it is wrong.
    """
    nowhere = Path(tempfile.gettempdir(), "watcher-accept")
    folders = {key: nowhere / key for key in ("inbox", "outbox", "state_dir")}
    return settings.load(config, **folders, after="keep", engine={"name": engine, "device": device})


def _failed(report: Acceptance) -> Iterator[bool]:
    return (sample.record["outcome"] not in SERVED for scene in report.scenes for sample in scene.samples)


def _sample_recipes() -> tuple[Recipe, ...]:
    """The recipes of the sample pictures, whatever the user's own are."""
    return tuple(Recipe(**table) for table in tomllib.loads(RECIPES)["recipes"])


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Say on stderr what happens: one line that changes on a terminal, a line each elsewhere."""
    if sys.stderr.isatty():
        with views.status_line() as tell:
            yield tell
        return
    yield lambda text: print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is a command's output
