"""Finds the configuration, reads it, and checks that its folders can be used.

Rules of this file:
- `load` is the only door. It finds every problem before it raises. An unknown key is an error: a misspelt
  one must not become a default.
- A relative path in the file is relative to the file's folder, one in the environment or a flag to the
  current folder. `~` and `$NAME` are expanded; `$$` is a dollar sign.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import platformdirs
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from watcher.adapters import folders
from watcher.settings.models import APP, ENV_PREFIX, Settings, is_url
from watcher.settings.problems import (
    COMMAND_LINE,
    WEIGHTS_VARIABLE,
    ConfigurationError,
    Problem,
    Sources,
    Values,
    cross_checks,
    problem_of,
    shown,
    unknown_key,
)

CONFIG_VARIABLE: Final = "WATCHER_CONFIG"
PATH_KEYS: Final = (
    ("inbox",),
    ("outbox",),
    ("archive",),
    ("state_dir",),
    ("model", "source"),
    ("model", "cache_dir"),
    ("log", "file"),
)
_WITHIN: Final = frozenset({"is inside", "is the same folder as"})


def default_config_path() -> Path:
    """Where the configuration lies when no `--config` says so: `$WATCHER_CONFIG`, else the user's own."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return _plain_path(Path(named))
    return platformdirs.user_config_path(APP, appauthor=False) / "watcher.toml"


def load(config: Path | None = None, **flags: object) -> Settings:
    """Read the file, the environment and the flags.

    Args:
        config: the file; None for the default one, which may be absent.
        flags: values of the command line by key, sections as mappings (`engine={"name": "lama"}`); None
            means not given.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    file = _plain_path(config) if config else default_config_path()
    named = config is not None or bool(os.environ.get(CONFIG_VARIABLE))
    problems: list[Problem] = []
    sources = Sources(
        origin=str(file) if file.exists() else f"{file}, which does not exist",
        from_file=_absolute(_read_file(file, required=named), file.parent, str(file), problems),
        from_env=_absolute(_environment(problems), Path.cwd(), "the environment", problems),
        from_flags=_absolute(_given(flags), Path.cwd(), COMMAND_LINE, problems),
    )
    merged = _merge(_merge(sources.from_file, sources.from_env), sources.from_flags)
    _feed_weights_variable(merged, sources)
    problems += cross_checks(merged, sources)
    problems += _unreadable_masks(merged, sources)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        problems += [problem_of(detail, sources) for detail in error.errors(include_url=False)]
    if problems:
        raise ConfigurationError(tuple(problems))
    settings._config_file = file if sources.from_file else None  # noqa: SLF001 - a private attribute of our own model
    return settings


def check_folders(settings: Settings) -> None:
    """Refuse folders that overlap, are missing or cannot be used. Creates nothing.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    where = str(settings.config_file) if settings.config_file else "the configuration"
    named = {
        "inbox": settings.inbox,
        "outbox": settings.outbox,
        "archive": settings.archive,
        "state_dir": settings.state_dir,
    }
    present = [(name, path) for name, path in named.items() if path is not None]
    problems = [
        Problem(
            f"{name} and {other} overlap: {path} {relation} {other_path}",
            where,
            f"give {name} and {other} separate folders, neither inside the other",
        )
        for index, (name, path) in enumerate(present)
        for other, other_path in present[index + 1 :]
        if (relation := folders.overlap(path, other_path)) is not None
    ]
    problems += [
        Problem(
            f"{name} lies in the inbox: {path} is inside {settings.inbox}",
            where,
            f"set {name} to a place outside the inbox: it must not arrive there as if it were a picture",
        )
        for name, path in _apart_from_the_inbox(settings)
        if path is not None and folders.overlap(path, settings.inbox) in _WITHIN
    ]
    problems += [
        Problem(f"{name} {unusable}: {path}", where, _folder_remedy(name, unusable))
        for name, path in present
        if (unusable := _unusable(name, path, settings)) is not None
    ]
    if problems:
        raise ConfigurationError(tuple(problems))


def _apart_from_the_inbox(settings: Settings) -> list[tuple[str, Path | None]]:
    return [
        ("log.file", settings.log.file),
        ("model.cache_dir", settings.model.cache_dir),
        *(
            (f"recipes[{number}].region_mask", recipe.region_mask)
            for number, recipe in enumerate(settings.recipes, 1)
        ),
    ]


def _unusable(name: str, path: Path, settings: Settings) -> str | None:
    if name == "state_dir":
        return folders.uncreatable(path)
    if name == "archive" and settings.after != "archive":
        return None
    return folders.unusable(path, write=name != "inbox" or settings.after != "keep")


def _folder_remedy(name: str, unusable: str) -> str:
    if "does not exist" in unusable:
        return f"run `watcher init`, which makes the folders, or mount what holds {name}"
    return f"give this user the permission, or set {name} to another folder"


def _read_file(file: Path, *, required: bool) -> Values:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        problem = Problem(
            "there is no configuration file", str(file), "run `watcher init`, or name another file"
        )
    except OSError as error:
        problem = Problem(
            f"the configuration cannot be read: {error.strerror}", str(file), "mend its permissions"
        )
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = Problem("the configuration is not UTF-8", f"{file}, line {line}", "save it as UTF-8")
    except tomllib.TOMLDecodeError as error:
        what, line = _toml_complaint(error, file)
        problem = Problem(
            f"the configuration is not TOML: {what}",
            f"{file}, line {line}",
            'mend that line; texts and paths stand in quotes, as in inbox = "~/Retouch/inbox"',
        )
    raise ConfigurationError((problem,))


def _toml_complaint(error: tomllib.TOMLDecodeError, file: Path) -> tuple[str, int]:
    found = re.search(r"(.*) \(at line (\d+), column \d+\)$", str(error), re.DOTALL)
    if found:
        return found[1], int(found[2])
    return str(error), len(file.read_text(encoding="utf-8").splitlines())


def _environment(problems: list[Problem]) -> Values:
    """The `WATCHER_` variables. A stranger's (`WATCHER_PORT`) is left alone unless it looks like ours."""
    known = set(Settings.model_fields)
    for variable in sorted(os.environ):
        key = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        top = key.split("__")[0]
        near = difflib.get_close_matches(top, known, n=1, cutoff=0.8)
        if top not in known and ("__" in key or near):
            problems.append(unknown_key((*key.split("__"),), f"environment variable {variable}"))
    values: Values = EnvSettingsSource(Settings)()
    if isinstance(values.get("recipes"), str):
        values["recipes"] = _inline_recipes(values["recipes"], problems)
    return values


def _inline_recipes(text: str, problems: list[Problem]) -> object:
    try:
        return tomllib.loads(f"recipes = {text}")["recipes"]
    except tomllib.TOMLDecodeError as error:
        problems.append(
            Problem(
                f"recipes cannot be read: {error}",
                f"environment variable {ENV_PREFIX}RECIPES",
                'write them as [{name = "dates", match = "scans/**"}]',
            )
        )
        return []


def _plain_path(path: Path) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - pathlib's raise where they know no home


def _given(flags: Mapping[str, object]) -> Values:
    nested = {key: _given(value) if isinstance(value, Mapping) else value for key, value in flags.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def _merge(lower: Values, upper: Values) -> Values:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _absolute(values: Values, base: Path, where: str, problems: list[Problem]) -> Values:
    """A copy in which every path is absolute."""
    made = {key: _copied(value) for key, value in values.items()}
    for name, holder, key in _paths_of(made):
        text = holder.get(key)
        if not isinstance(text, str | Path) or (name == "model.source" and is_url(str(text))):
            continue
        try:
            holder[key] = str(_expanded(str(text), base))
        except ValueError as error:
            problems.append(
                Problem(
                    f"{name} cannot be {shown(str(text))}: {error}",
                    where,
                    "write the path out, or set the variable; `$$` stands for a dollar sign",
                )
            )
    return made


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(part) for part in value]
    return dict(value) if isinstance(value, dict) else value


def _paths_of(values: Values) -> Iterator[tuple[str, Values, str]]:
    """Where paths may stand: their full names, what holds them, and their keys there."""
    for *parents, key in PATH_KEYS:
        holder = values.get(parents[0]) if parents else values
        if isinstance(holder, dict):
            yield ".".join((*parents, key)), holder, key
    recipes = values.get("recipes")
    for number, recipe in enumerate(recipes if isinstance(recipes, list) else (), 1):
        if isinstance(recipe, dict):
            yield f"recipes[{number}].region_mask", recipe, "region_mask"


def _unreadable_masks(merged: Values, sources: Sources) -> list[Problem]:
    """The masks of recipes that are not there, or not for this user to read."""
    paths = [
        (name, holder[key])
        for name, holder, key in _paths_of(merged)
        if key == "region_mask" and key in holder
    ]
    return [
        Problem(
            f"{name} cannot be read: {path}: {reason}",
            sources.where(("recipes",)),
            "name a mask image that is there and that this user may read; a relative path starts from the "
            "folder of the configuration file",
        )
        for name, path in paths
        if isinstance(path, str)
        and Path(path).is_absolute()
        and (reason := _unreadable(Path(path))) is not None
    ]


def _unreadable(path: Path) -> str | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is not a file"
        path.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _expanded(text: str, base: Path) -> Path:
    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set")
        return os.environ[name]

    if not text.strip() or "\0" in text:
        raise ValueError("it is not a path")
    filled = re.sub(r"\$(?:\$|(\w+)|\{(\w+)\})", value_of, text)
    path = os.path.expanduser(filled)  # noqa: PTH111 - Path.expanduser raises where it knows no home, with less to say
    if path.startswith("~"):
        raise ValueError("that home folder is not known")
    return Path(os.path.normpath(base / path))


def _feed_weights_variable(merged: Values, sources: Sources) -> None:
    weights = os.environ.get(WEIGHTS_VARIABLE)
    model = merged.get("model", {})
    if weights and isinstance(model, dict) and "source" not in model:
        source = weights if is_url(weights) else str(_plain_path(Path(weights)))
        merged["model"] = {**model, "source": source}
        sources.from_env["model"] = {**sources.from_env.get("model", {}), "source": source}
