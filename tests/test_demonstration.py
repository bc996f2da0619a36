"""`watcher demo` before it begins: its recipes, and which samples it drops with which mark files."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
from PIL import Image

from watcher import settings
from watcher.acceptance.stage import Stage, marked_pictures
from watcher.adapters.resources import default_config_text, sample_inbox
from watcher.adapters.worker_messages import marking
from watcher.cli import demonstration
from watcher.core.pairing import Recipes, mark_file_kind
from watcher.wire import Limits, MarkSource
from watcher.worker.imaging.decode import load_pixels, open_picture
from watcher.worker.marking import MarkFile, find_mark

if TYPE_CHECKING:
    from watcher.core.policy import Recipe
    from watcher.worker.marking import Marked

MARKED_BY: dict[str, MarkSource | None] = {
    "astronaut.jpg": "mask",
    "brick.png": "mask",
    "cat.jpg": None,
    "coffee.jpg": "mask",
    "erased/camera.png": "alpha",
    "grass.png": "mask",
    "gravel.webp": "mask",
    "launch_pad.jpg": "sidecar",
    "raccoon.jpg": "marked_copy",
    "rocket.jpg": "mask",
    "screenshot.png": "mask",
    "space/hubble_deep_field.jpg": "mask",
    "stamped/espresso.jpg": "regions",
    "strokes/grace_hopper.jpg": "colour",
}
"""What the table of a demo says, or would say, of each sample."""
MARKER = (255, 0, 255)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, ...]:
    """As the demo's own configuration has them."""
    stage = Stage(tmp_path_factory.mktemp("demo"))
    demonstration.write_config(stage, "patchmatch")
    return settings.load(stage.config).policy(once=False).recipes


def mark_of(name: str, recipes: tuple[Recipe, ...]) -> Marked | None:
    """What the worker finds in a sample, with the mark file that the demo drops beside it."""
    recipe = Recipes(recipes).serving(name)
    assert recipe is not None
    picture = open_picture((sample_inbox() / name).read_bytes(), max_pixels=2_000_000)
    beside = marked_pictures(sample_inbox(), recipes)[name]
    kinds = [mark_file_kind(file) for file in beside]
    file = None
    if beside and kinds[0] is not None:
        file = MarkFile(kinds[0], (sample_inbox() / beside[0]).read_bytes())
    return find_mark(picture, load_pixels(picture), marking(recipe), file, Limits())


def test_the_recipes_are_those_that_init_writes_with_its_example_for_stamps() -> None:
    text = re.sub(
        r"^# Example: (?=\[\[recipes|name|match|marks|regions)", "", default_config_text(), flags=re.MULTILINE
    )
    written = {recipe["name"]: recipe for recipe in tomllib.loads(text)["recipes"]}
    shown = {recipe["name"]: recipe for recipe in tomllib.loads(demonstration.RECIPES)["recipes"]}
    assert list(shown) == list(written)
    of_stamps = written["stamped"]["regions"]
    written["stamped"]["regions"] = of_stamps[:1]  # the second is a logo, which no sample has
    assert shown == written


def test_the_demo_shows_every_way_to_mark_and_none() -> None:
    assert set(MARKED_BY) > demonstration.LEFT_OUT
    shown = {way for name, way in MARKED_BY.items() if name not in demonstration.LEFT_OUT}
    assert shown == {*get_args(MarkSource), None}


def test_mark_files_are_no_samples_and_everything_else_is(recipes: tuple[Recipe, ...]) -> None:
    assert list(marked_pictures(sample_inbox(), recipes)) == sorted(MARKED_BY)


@pytest.mark.parametrize("name", sorted(MARKED_BY))
def test_each_sample_is_marked_in_its_own_way(name: str, recipes: tuple[Recipe, ...]) -> None:
    marked = mark_of(name, recipes)
    assert (None if marked is None else marked.source) == MARKED_BY[name]
    assert marked is None or 0.0005 < np.count_nonzero(marked.mask) / marked.mask.size < 0.4


def test_the_strokes_of_a_sample_are_found_with_all_of_their_colour(recipes: tuple[Recipe, ...]) -> None:
    marked = mark_of("strokes/grace_hopper.jpg", recipes)
    assert marked is not None
    with Image.open(sample_inbox() / "strokes" / "grace_hopper.jpg") as picture:
        off = np.abs(np.asarray(picture).astype(int) - MARKER).max(axis=-1)
    assert marked.mask[off < 60].all()
    assert marked.mask.sum() < 2 * np.count_nonzero(off < 60)


def test_the_stamp_of_a_sample_lies_in_its_recipes_region(recipes: tuple[Recipe, ...]) -> None:
    marked = mark_of("stamped/espresso.jpg", recipes)
    assert marked is not None
    with (
        Image.open(sample_inbox() / "stamped" / "espresso.jpg") as stamped,
        Image.open(sample_inbox() / "coffee.jpg") as stored,
    ):
        plain = np.asarray(stored.transpose(Image.Transpose.ROTATE_270)).astype(int)
        drawn = np.abs(np.asarray(stamped).astype(int) - plain).max(axis=-1) > 60
    assert np.count_nonzero(drawn) > 200
    assert marked.mask[drawn].all()
