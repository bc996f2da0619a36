"""`watcher preview`: what would go from a picture, found by the worker's own code in a process of its own.

Rules of this file: it pairs by the same rules and recipes as the service (`core.pairing`), reads no byte of a
picture or mark file, and writes nothing itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from watcher import settings
from watcher.adapters.worker_messages import marking
from watcher.core.notes import ways_to_mark
from watcher.core.pairing import Pairing, Recipes, mark_file_kind, stem_of
from watcher.core.policy import Recipe
from watcher.core.record import path_fields
from watcher.ports import RemediableError
from watcher.wire import Limits, Previewed, PreviewRefused, PreviewRequest, WireError, decode_preview, encode

if TYPE_CHECKING:
    from watcher.wire import MarkFileKind

_EXIT_USAGE: Final = 2
_EXIT_FAILED: Final = 1
_EXIT_INTERNAL: Final = 70
_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp")
_SCHEMA: Final = 1


def preview_report(
    image: Path, *, config: Path | None, mask: Path | None, output: Path | None, recipe: str | None
) -> dict[str, Any]:
    """Have a preview written, and return what is to be told of it.

    Args:
        image: the picture.
        config: whose recipes count; None for the user's own, or the default recipe where there is none.
        mask: a mark file to use instead of what lies beside the picture; its name says of which kind.
        output: where the preview goes; None: `IMG.preview.jpg` in the current folder.
        recipe: the name of the recipe that is to count, instead of the one that would serve the picture.

    Raises:
        RemediableError: there is no such picture, or its marks cannot be used; says why and what to do.
    """
    source = _absolute(image)
    if not source.is_file():
        raise RemediableError(f"there is no picture at {image}", "name a file", exit_code=_EXIT_USAGE)
    recipes, inbox, limits = _configured(config)
    path = _path_in(inbox, source)
    chosen = _recipe(recipes, path, recipe)
    target = _target(output, source, inbox)
    files = _mark_files(source, path, chosen) if mask is None else (_named(mask, chosen),)
    request = PreviewRequest(
        source=str(source),
        mark_files=files,
        marking=marking(chosen),
        limits=limits,
        output=str(target),
    )
    answer = _ask(request)
    if isinstance(answer, PreviewRefused):
        raise RemediableError(f"{image}: {answer.reason}", answer.remedy, exit_code=_EXIT_FAILED)
    return _report(answer, path, chosen)


def _report(answer: Previewed, path: str, recipe: Recipe) -> dict[str, Any]:
    facts = msgspec.to_builtins(answer)
    facts.pop("type")
    remedy = None if answer.marks is not None else ways_to_mark(path, recipe)
    return {
        "schema": _SCHEMA,
        **path_fields("source", path),
        "recipe": recipe.name,
        **facts,
        "remedy": remedy,
    }


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute leaves `..` in


def _configured(config: Path | None) -> tuple[tuple[Recipe, ...], Path | None, Limits]:
    if config is None and not settings.default_config_path().exists():
        return (Recipe(),), None, Limits()
    chosen = settings.load(config)
    return chosen.policy(once=True).recipes, chosen.inbox, chosen.limits()


def _path_in(inbox: Path | None, source: Path) -> str:
    """Return the picture's path as recipes see it: within the inbox, else its name alone."""
    if inbox is not None:
        folder = Path(os.path.realpath(source.parent))
        real = Path(os.path.realpath(inbox))
        if folder.is_relative_to(real):
            return (folder / source.name).relative_to(real).as_posix()
    return source.name


def _recipe(recipes: tuple[Recipe, ...], path: str, name: str | None) -> Recipe:
    known = Recipes(recipes)
    found = known.serving(path) if name is None else known.named(name)
    if found is None:
        what = f"no recipe serves {path}" if name is None else f"there is no recipe {name!r}"
        names = ", ".join(recipe.name for recipe in recipes)
        raise RemediableError(what, f"name one with --recipe: {names}", exit_code=_EXIT_USAGE)
    return found


def _mark_files(source: Path, path: str, recipe: Recipe) -> tuple[tuple[MarkFileKind, str], ...]:
    """Return what lies beside the picture and may mark it, by precedence."""
    folder, _, _ = path.rpartition("/")
    prefix = f"{folder}/" if folder else ""
    pairing = Pairing(Recipes((Recipe(recipe.name, ("**",), recipe.marks),)))
    for name in _listed(source.parent):
        pairing.add(f"{prefix}{name}")
    for name in _listed(source.parent / "masks"):
        pairing.add(f"{prefix}masks/{name}")
    found = ((mark_file_kind(file), file.removeprefix(prefix)) for file in pairing.mark_files_of(path))
    return tuple((kind, str(source.parent / name)) for kind, name in found if kind is not None)


def _listed(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return []


def _named(mask: Path, recipe: Recipe) -> tuple[MarkFileKind, str]:
    if not mask.is_file():
        raise RemediableError(
            f"there is no file at {mask}", "name a mask, a marked copy or a sidecar", exit_code=_EXIT_USAGE
        )
    kind = mark_file_kind(mask.name) or "mask"
    if kind not in recipe.marks:
        remedy = f"name another recipe with --recipe, or add it to `marks` of {recipe.name}"
        raise RemediableError(
            f"the recipe {recipe.name} takes no mark from a {kind}", remedy, exit_code=_EXIT_USAGE
        )
    return kind, str(_absolute(mask))


def _target(output: Path | None, source: Path, inbox: Path | None) -> Path:
    target = _absolute(output or Path(f"{stem_of(source.name)}.preview.jpg"))
    if target.suffix.lower() not in _SUFFIXES:
        suffixes = ", ".join(_SUFFIXES)
        raise RemediableError(
            f"a preview cannot be written as {target.name}",
            f"end the name in one of {suffixes}",
            exit_code=_EXIT_USAGE,
        )
    if target == source:
        raise RemediableError(
            "the preview would replace its picture", "name another file with -o", exit_code=_EXIT_USAGE
        )
    if inbox is not None and Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(inbox)):
        raise RemediableError(
            f"the preview would arrive in the inbox: {target}",
            "name a place outside of it with -o, such as -o ~/preview.jpg",
            exit_code=_EXIT_USAGE,
        )
    return target


def _ask(request: PreviewRequest) -> Previewed | PreviewRefused:
    arguments = [sys.executable, "-P", "-m", "watcher.worker.preview"]
    done = subprocess.run(arguments, input=encode(request), stdout=subprocess.PIPE, check=False)
    try:
        return decode_preview(done.stdout)
    except WireError as error:
        how = (
            f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        )
        raise RemediableError(
            f"the process that looked at the picture ended without an answer ({how})",
            "what it wrote stands above; the picture may be damaged on purpose: the service would refuse it",
            exit_code=_EXIT_INTERNAL,
        ) from error
