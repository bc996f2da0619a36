"""An acceptance run from its options to its three files.

Rules of this module: the run has folders of its own, which go when it is done; the user's are only read.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from watcher import __version__
from watcher.acceptance import html, markdown
from watcher.acceptance.claims import claims_of
from watcher.acceptance.course import HOT_PICTURES, Course, Pictures
from watcher.acceptance.report import FILE_NAME, Acceptance, Environment, encode
from watcher.acceptance.scenes import Play
from watcher.acceptance.stage import Stage, empty_folder, marked_pictures
from watcher.adapters import environment
from watcher.adapters.resources import sample_inbox
from watcher.core.pairing import Recipes
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from watcher.acceptance.report import Record
    from watcher.acceptance.scenes import Tell
    from watcher.settings import Recipe, Settings

PATIENCE_S: Final = 300.0
"""For one fact: the full model on a slow machine takes tens of seconds for one picture."""
_EXIT_USAGE: Final = 2
_IN_THE_PICTURE: Final = frozenset({"colour", "alpha", "regions"})
_PACKAGES: Final = (
    "torch",
    "simple-lama-inpainting",
    "pypatchmatch",
    "opencv-python-headless",
    "numpy",
    "pillow",
)


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        pictures: the user's own folder; None for the samples.
        batch: pictures at once.
        workers: fresh ones on the hot path.
        requests: steady ones on the hot path, all workers together.
        kills: of the worker.
        downs: cold jobs without a service.
        keep: the folder to work in, and to leave; None for one that goes.
    """

    pictures: Path | None
    batch: int
    workers: int
    requests: int
    kills: int
    downs: int
    keep: Path | None


def accept(settings: Settings, recipes: tuple[Recipe, ...], options: Options, tell: Tell) -> Acceptance:
    """Measure a build.

    Args:
        settings: whose engine, device, model and limits are measured. Its folders and recipes are not used.
        recipes: that serve the pictures.
        options: of the run.
        tell: is called with what happens now.

    Raises:
        RemediableError: there is nothing to measure, or the service did not do what it must for that.
    """
    begun = time.time()
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    pictures = _pictures(options.pictures, settings, recipes)
    course = _course(pictures, options)
    with _stage(options.keep) as stage:
        stage.make_folders()
        staged = settings.model_copy(
            update={"inbox": stage.inbox, "outbox": stage.outbox, "state_dir": stage.state_dir}
        )
        play = Play(stage, staged, recipes, pictures, course, tell, PATIENCE_S)
        scenes = play.play()
        first_ready = play.ready_lines()[0]
    return Acceptance(
        ts=datetime.fromtimestamp(begun, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        took_s=round(time.time() - begun, 1),
        pictures="samples" if options.pictures is None else "own",
        environment=_environment(first_ready, load_average),
        scenes=scenes,
        claims=claims_of(scenes),
    )


def write(report: Acceptance, folder: Path) -> tuple[Path, ...]:
    """Write a report in its three forms; return their paths.

    Raises:
        RemediableError: the folder cannot be written.
    """
    contents = {
        FILE_NAME: encode(report),
        "acceptance.md": markdown.render(report).encode(),
        "acceptance.html": html.render(report).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        what = f"the report cannot be written to {folder}: {error.strerror}"
        raise RemediableError(what, "name another folder with -o", exit_code=_EXIT_USAGE) from error
    return tuple(folder / name for name in contents)


def _pictures(folder: Path | None, settings: Settings, recipes: tuple[Recipe, ...]) -> Pictures:
    where = sample_inbox() if folder is None else folder
    policy = settings.model_copy(update={"recipes": recipes}).policy(once=False)
    found = marked_pictures(where, policy.recipes)
    marked = dict(sorted(_maybe_marked(found, Recipes(policy.recipes)), key=lambda each: not each[1]))
    if not marked:
        raise RemediableError(
            f"there is no marked picture in {where}",
            "put a mask beside each, as for the inbox, or leave --pictures out: the samples are marked",
            exit_code=_EXIT_USAGE,
        )
    return Pictures(where, marked)


def _maybe_marked(
    found: Mapping[str, tuple[str, ...]], recipes: Recipes
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Leave out what is sure to be held: no file marks it, and its recipe does not look into the picture."""
    for name, files in found.items():
        recipe = recipes.serving(name)
        if files or (recipe is not None and _IN_THE_PICTURE & set(recipe.marks)):
            yield name, files


def _course(pictures: Pictures, options: Options) -> Course:
    names = tuple(pictures.mark_files)
    return Course(
        batch=names[: options.batch],
        hot=names[:HOT_PICTURES],
        workers=options.workers,
        requests=options.requests,
        kills=options.kills,
        downs=options.downs,
    )


@contextmanager
def _stage(keep: Path | None) -> Iterator[Stage]:
    """Folders of a run; after an error they stay, since the log in them is what is left to look at."""
    folder = empty_folder(keep, "watcher-accept-")
    yield Stage(folder)
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(ready: Record, load_average: float | None) -> Environment:
    versions = environment.package_versions(_PACKAGES)
    return Environment(
        watcher=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        processor=platform.machine(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        load_average=None if load_average is None else round(load_average, 2),
        packages={name: version for name, version in versions.items() if version is not None},
        devices_available=tuple(ready.get("device", {}).get("available", ())),
    )


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
