"""What can be wrong with a configuration, in words: what, where, and what to do.

Rules of this file: every problem names the full dotted key and where its value came from; an unknown key
names the nearest right one.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from pydantic import BaseModel

from watcher.ports import RemediableError
from watcher.regions import RegionError
from watcher.settings.models import DEFAULT_RECIPE, ENV_PREFIX, EVERYTHING, Recipe, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMAND_LINE: Final = "the command line"
WEIGHTS_VARIABLE: Final = "LAMA_MODEL"
KEYS_LATER: Final = frozenset({"http", "recipes.engine"})
"""Keys of the design that this version does not have yet: told apart from spelling mistakes."""

_MARK_OF_KEY: Final = {"colour": "colour", "regions": "regions", "region_mask": "regions"}

Values: TypeAlias = dict[str, Any]
Location: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the configuration."""

    what: str
    where: str
    remedy: str


class ConfigurationError(RemediableError):
    """The configuration cannot be used (exit code 78).

    Attributes:
        problems: all of them, in the order of the configuration.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(
            "\n".join(f"{problem.what} ({problem.where})" for problem in problems),
            "\n".join(dict.fromkeys(problem.remedy for problem in problems)),
            exit_code=78,
        )
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Sources:
    """What each source said, to tell where a value came from."""

    origin: str
    """The file, as people are told of it."""
    from_file: Values
    from_env: Values
    from_flags: Values

    def where(self, location: Location) -> str:
        """Where the value at this place of the configuration was set."""
        if _holds(self.from_flags, location):
            return COMMAND_LINE
        if _holds(self.from_env, location):
            return f"environment variable {_variable(self.from_env, location)}"
        return self.origin


def cross_checks(merged: Values, sources: Sources) -> list[Problem]:
    """What no single value can tell. On raw values, so that it is told together with everything else."""
    problems = []
    if merged.get("after") == "archive" and "archive" not in merged:
        problems.append(
            Problem(
                'after is "archive", but archive is not set',
                sources.where(("after",)),
                'set archive to a folder, or after to "keep"',
            )
        )
    recipes = merged.get("recipes")
    if not isinstance(recipes, list | tuple):
        return problems
    where = sources.where(("recipes",))
    names = [recipe.get("name") for recipe in recipes if isinstance(recipe, dict)]
    problems += [
        Problem(f"two recipes are named {shown(name)}", where, "give each recipe a name of its own")
        for name in dict.fromkeys(name for name in names if isinstance(name, str))
        if names.count(name) > 1
    ]
    problems += [
        Problem(
            f'the recipe named "{DEFAULT_RECIPE}" does not match everything',
            where,
            f'give it another name, or match = "**": "{DEFAULT_RECIPE}" takes what no other recipe takes',
        )
        for recipe in recipes
        if isinstance(recipe, dict)
        and recipe.get("name") == DEFAULT_RECIPE
        and not EVERYTHING.intersection(_texts(recipe.get("match", "**")))
        and not any(
            EVERYTHING.intersection(_texts(other.get("match", "**")))
            for other in recipes
            if isinstance(other, dict)
        )
    ]
    for index, recipe in enumerate(recipes):
        if isinstance(recipe, dict):
            problems += _mark_problems(f"recipes[{index + 1}]", recipe, where)
    return problems


def _mark_problems(name: str, recipe: Values, where: str) -> Iterator[Problem]:
    """What of a recipe would never do anything: a key without its mark, or the other way round."""
    marks = _marks_of(recipe)
    if "regions" in marks and not (recipe.get("regions") or recipe.get("region_mask")):
        yield Problem(
            f'{name}.marks has "regions", but {name} says neither regions nor region_mask',
            where,
            'add regions = [{ box = ["78%", "90%", "22%", "10%"] }] or region_mask = "mask.png", or take '
            '"regions" out of marks',
        )
    for key, mark in _MARK_OF_KEY.items():
        if key in recipe and mark not in marks:
            yield Problem(
                f'{name}.{key} does nothing: {name}.marks has no "{mark}"',
                where,
                f'add "{mark}" to marks, or take {key} out',
            )
    if recipe.get("invert") is True and "mask" not in marks and "region_mask" not in recipe:
        yield Problem(
            f"{name}.invert does nothing: {name} has no masks that could be inverted",
            where,
            'add "mask" to marks, or take invert out',
        )


def _marks_of(recipe: Values) -> tuple[str, ...]:
    marks = recipe.get("marks", Recipe.model_fields["marks"].default)
    return tuple(mark.strip() for text in _texts(marks) for mark in text.split(","))


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(part for part in value if isinstance(part, str)) if isinstance(value, list | tuple) else ()


def problem_of(detail: Mapping[str, Any], sources: Sources) -> Problem:
    """Put one of pydantic's error details into words."""
    location: Location = detail["loc"]
    kind: str = detail["type"]
    key = _dotted(location)
    where = sources.where(location)
    if kind == "extra_forbidden":
        return unknown_key(location, where)
    if kind == "missing":
        hint = "" if sources.from_file else ", or run `watcher init`, which writes a configuration"
        return Problem(f"{key} is not set", where, f"set {key}{hint}")
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, RegionError):
        recipe = _dotted(location[:-1])
        return Problem(
            f"{recipe}.{error.reason}", where, error.remedy.replace('": ', '" = ')
        )  # as TOML writes it
    allowed = _allowed(detail)
    return Problem(f"{key} cannot be {shown(detail['input'])}", where, f"set it to {allowed}")


def unknown_key(location: Location, where: str) -> Problem:
    """Name the key that was meant, if one is near."""
    key = _dotted(location)
    if ".".join(part for part in location if isinstance(part, str)) in KEYS_LATER:
        return Problem(f"{key} comes in a later version of watcher", where, "take it out for now")
    near = _nearest(location)
    return Problem(
        f"unknown key {key}", where, near or "take it out; `watcher init` writes all keys there are"
    )


def _nearest(location: Location) -> str | None:
    """The key that was meant: of the same section first, else of any section."""
    *parents, last = location
    siblings = _keys_below(tuple(parents))
    wrong = str(last).lower()
    found = difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.6)
    if found:
        return f"did you mean {_dotted((*parents, found[0]))}?"
    elsewhere = [key for key in _all_keys() if key.rsplit(".", 1)[-1] == wrong]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    if siblings:
        return f"the keys there are {', '.join(sorted(siblings))}"
    return None


def _keys_below(parents: Location) -> list[str]:
    model = _model_at(parents)
    return [] if model is None else list(model.model_fields)


def _model_at(parents: Location) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    for part in parents:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        candidates = () if field is None else (field.annotation, *get_args(field.annotation))
        below = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not below:
            return None
        model = below[0]
    return model


def _all_keys() -> list[str]:
    return [
        f"{section}.{key}" for section in Settings.model_fields for key in _keys_below((section,))
    ] + list(Settings.model_fields)


_ALLOWED: Final[Mapping[str, str]] = {
    "literal_error": "{expected}",
    "value_error": "{error}",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:g}",
    "finite_number": "a finite number",
}
"""What is allowed, by pydantic's kind of error; filled from the error's context."""

_ALLOWED_BY_PREFIX: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a text in quotes",
    "path": "a path in quotes",
    "tuple": "a list",
    "model": "a section with keys of its own",
    "dict": "a section with keys of its own",
}


def _allowed(detail: Mapping[str, Any]) -> str:
    kind: str = detail["type"]
    if kind in _ALLOWED:
        return _ALLOWED[kind].format(**detail.get("ctx", {})).replace("'", '"')
    if detail["loc"] == ("recipes",):
        return "a list of recipes, each begun by [[recipes]]"
    words = (text for prefix, text in _ALLOWED_BY_PREFIX.items() if kind.startswith(prefix))
    return next(words, str(detail["msg"]))


def _dotted(location: Location) -> str:
    dotted = ""
    for part in location:
        if isinstance(part, int):
            dotted += f"[{part + 1}]"
        else:
            dotted += f".{part}" if dotted else str(part)
    return dotted


def shown(value: object) -> str:
    """Write a value as a TOML file would."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(part) for part in value)}]"
    return repr(value)


def _holds(values: Any, location: Location) -> bool:  # noqa: ANN401 - raw TOML
    for part in location:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return isinstance(values, str)  # a list that was given as one text
    return bool(location)


def _variable(values: Values, location: Location) -> str:
    """The variable that set this value; a list or a section may have been set as one text."""
    parts: list[str] = []
    below: object = values
    for part in location:
        if not isinstance(below, dict) or not isinstance(part, str):
            break
        parts.append(part)
        below = below.get(part)
    name = ENV_PREFIX + "__".join(parts).upper()
    if parts == ["model", "source"] and name not in os.environ:
        return WEIGHTS_VARIABLE
    return name
