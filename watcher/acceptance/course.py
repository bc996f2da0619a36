"""What is requested in an acceptance run: pictures, and for each request what makes it a job of its own.

Rules of this module:
- The same picture with the same mark and recipe is one job, done once. A request that is to be repeated must
  differ in one of the three; it differs in the recipe's *name*, since that changes nothing that is measured:
  each *round* has a folder and recipes of its own, that are otherwise those that the run was given.
- Pictures are copied; where they come from is only read.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from watcher.acceptance.stage import Stage
    from watcher.settings import Recipe, Settings

HOT_PICTURES: Final = 5
"""So many different ones are requested one after the other, again and again."""
_SECTIONS: Final = ("arrivals", "batching", "engine", "model", "worker", "cold", "output")


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a run.

    Attributes:
        folder: where they lie.
        mark_files: of each picture, by its path in the folder.
    """

    folder: Path
    mark_files: Mapping[str, tuple[str, ...]]

    def make_folders(self, stage: Stage, rounds: Sequence[str]) -> None:
        """Make the folders of all requests: a file in a folder that is new may have to wait for quiet."""
        for round_name in rounds:
            for name in {file for picture, marks in self.mark_files.items() for file in (picture, *marks)}:
                (stage.inbox / round_name / name).parent.mkdir(parents=True, exist_ok=True)

    def drop(self, picture: str, stage: Stage, round_name: str) -> str:
        """Copy a picture and its mark files into the inbox; return its path there.

        The picture comes last: whatever is settled first, its marks are there.
        """
        for name in (*self.mark_files[picture], picture):
            target = stage.inbox / round_name / name
            shutil.copyfile(self.folder / name, target)
        return f"{round_name}/{picture}"


@dataclass(frozen=True, slots=True)
class Course:
    """How often what is requested.

    Attributes:
        batch: pictures that are dropped at once.
        hot: pictures that are requested one after the other, in turns.
        workers: fresh ones on the hot path, one after the other.
        requests: steady ones, after the first of each worker, shared out among them.
        kills: of the worker.
        downs: requests while no service runs.
    """

    batch: tuple[str, ...]
    hot: tuple[str, ...]
    workers: int
    requests: int
    kills: int
    downs: int

    def rounds(self) -> tuple[str, ...]:
        """The folders of all rounds."""
        hot = [each.round_name for worker in hot_requests(self) for each in worker]
        cold = [name for kill in range(self.kills) for name in (f"kill{kill}", f"back{kill}")]
        downs = [f"down{down}" for down in range(self.downs)]
        return tuple(dict.fromkeys(("batch", *hot, *cold, *downs, *MODEL_READS)))


class Request(NamedTuple):
    """One picture in one round."""

    round_name: str
    picture: str


MODEL_READS: Final = ("source-first", "source-again", "cache-first", "cache-again")


def configuration_text(settings: Settings, rounds: Sequence[str], recipes: Sequence[Recipe]) -> str:
    """Return the stage's configuration, whole, so that nothing else decides what ran.

    Args:
        settings: with the stage's folders. Its logging and its recipes are not taken over.
        rounds: the folders that requests go to.
        recipes: each round's.
    """
    values: dict[str, Any] = settings.model_dump(mode="json", exclude_none=True)
    lines = [f"{key} = {_toml(values[key])}" for key in ("inbox", "outbox", "state_dir")]
    lines += ['after = "keep"', f"unmarked = {_toml(values['unmarked'])}", ""]
    for name in _SECTIONS:
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values[name].items()), ""]
    lines += ["[log]", 'level = "info"', 'format = "json"', ""]
    for round_name in rounds:
        for recipe in recipes:
            lines += ["[[recipes]]", *_recipe_lines(recipe, round_name), ""]
    return "\n".join(lines)


def _recipe_lines(recipe: Recipe, round_name: str) -> Iterator[str]:
    values = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    values["name"] = f"{round_name} {recipe.name}"
    values["match"] = [f"{round_name}/{glob}" for glob in recipe.match]
    for key, value in values.items():
        yield f"{key} = {_toml(value)}"


def _toml(value: object) -> str:
    """Write a value as TOML has it: JSON's scalars and lists are TOML's, tables are not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def hot_requests(course: Course) -> Iterator[tuple[Request, ...]]:
    """Yield for each worker what is asked of it: one picture, always the same, then its share of steady ones.

    The pictures take turns over all workers; as many requests as pictures a worker, and each serves the same.
    """
    asked = 0
    for worker in range(course.workers):
        share = range(asked, (worker + 1) * course.requests // course.workers)
        steady = (
            Request(f"hot{index // len(course.hot)}", course.hot[index % len(course.hot)]) for index in share
        )
        yield (Request(f"first{worker}", course.hot[0]), *steady)
        asked = share.stop
