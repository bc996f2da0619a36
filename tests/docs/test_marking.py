"""docs/MARKING.md: its recipes, sidecars, names and notes are what the program takes and says."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from PIL import Image

from watcher import settings
from watcher.adapters.resources import default_config_text, sample_inbox
from watcher.cli import previewing, views
from watcher.core.notes import ways_to_mark
from watcher.core.pairing import Pairing, Recipes, mark_file_kind, meant_name
from watcher.core.policy import Recipe
from watcher.regions import RegionError, sidecar_from
from watcher.wire import MarkSource
from watcher.worker.imaging.masks import COVERED_LIMIT, default_grow_px
from watcher.worker.imaging.region_masks import mask_of_regions

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "MARKING.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURES = sorted((ROOT / "docs" / "marking").glob("*.jpg"))
EVERYTHING: tuple[str, ...] = get_args(MarkSource)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def load(folder: Path, recipes: str) -> settings.Settings:
    Image.new("1", (40, 30)).save(folder / "watermark.png")
    config = folder / "watcher.toml"
    places = [f"{name} = {json.dumps(str(folder / name))}" for name in ("inbox", "outbox", "state_dir")]
    config.write_text("\n".join([*places, recipes]), encoding="utf-8")
    return settings.load(config)


# --- recipes and sidecars -------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(blocks("toml"))))
def test_every_recipe_is_accepted_and_matches_what_is_its_folder(number: int, tmp_path: Path) -> None:
    text = blocks("toml")[number]
    recipes = Recipes(load(tmp_path, text).policy(once=True).recipes)
    for recipe in tomllib.loads(text)["recipes"]:
        (glob,) = recipe["match"]
        serving = recipes.serving(glob.replace("**", "a/IMG.jpg"))
        assert serving is not None
        assert serving.name == recipe["name"]


def test_all_recipes_can_stand_in_one_configuration(tmp_path: Path) -> None:
    names = [recipe.name for recipe in load(tmp_path, "\n".join(blocks("toml"))).recipes]
    assert {"strokes", "erased", "stamped"} < set(names)


def test_the_recipes_said_to_be_written_by_init_are(tmp_path: Path) -> None:
    written = {recipe["name"]: recipe for recipe in tomllib.loads(default_config_text())["recipes"]}
    shown = {recipe["name"]: recipe for recipe in tomllib.loads(blocks("toml")[0])["recipes"]}
    assert {name: shown[name] for name in ("strokes", "erased")} == {
        name: written[name] for name in ("strokes", "erased")
    }
    assert written["default"]["marks"] == ["mask", "marked_copy", "sidecar"]
    assert load(tmp_path, "").policy(once=True).recipes[-1].marks == ("mask", "marked_copy", "sidecar")


@pytest.mark.parametrize("number", range(len(blocks("json"))))
def test_every_sidecar_is_valid_and_marks_something(number: int) -> None:
    sidecar = sidecar_from(blocks("json")[number].encode())
    assert sidecar.size is not None
    for region in sidecar.regions:
        assert mask_of_regions([region], sidecar.size, drawn_on=sidecar.size).any()


def test_the_error_that_is_quoted_is_the_one_that_is_raised() -> None:
    with pytest.raises(RegionError) as caught:
        sidecar_from(b'{"schema": 1, "regions": [{"box": [1, 2, 3, 4]}, {"box": [1, 2, 3, 0]}]}')
    assert caught.value.reason.partition(": it must")[0] in PAGE


# --- names ----------------------------------------------------------------------------------------

NAMES = re.findall(
    r"^\| `([^`]+)` \| `([^`]+)` \| (mask|marked copy|sidecar) \| (counts|does not) \|$", PAGE, re.MULTILINE
)


def mark_files_of(picture: str, *present: str) -> list[str]:
    pairing = Pairing(Recipes((Recipe("all", ("**",), EVERYTHING),)))
    for path in (picture, *present):
        pairing.add(path)
    return list(pairing.mark_files_of(picture))


@pytest.mark.parametrize(("picture", "file", "kind", "beside_another"), NAMES, ids=lambda text: text)
def test_every_name_pairs_as_the_table_says(picture: str, file: str, kind: str, beside_another: str) -> None:
    assert mark_file_kind(file) == kind.replace(" ", "_")
    assert mark_files_of(picture, file) == [file]
    assert mark_files_of(picture, file, "IMG.png") == ([file] if beside_another == "counts" else [])


def test_the_table_has_every_kind_of_name() -> None:
    assert {kind for _, _, kind, _ in NAMES} == {"mask", "marked copy", "sidecar"}
    assert len(NAMES) == PAGE.count(" | counts |") + PAGE.count(" | does not |")


def in_the_text(page: str) -> Iterator[str]:
    """Names of mark files for IMG.jpg that a page shows in code."""
    for name in re.findall(r"`((?:masks/)?IMG[^`\s/]*)`", page):
        if name not in {"IMG.jpg", "IMG.png", "IMG.HEIC"} and "preview" not in name and "(2)" not in name:
            yield name


@pytest.mark.parametrize(("page", "least"), [(PAGE, 12), (README, 5)], ids=["MARKING", "README"])
def test_every_name_in_the_text_is_that_of_a_mark_file(page: str, least: int) -> None:
    names = [name for name in in_the_text(page) if not re.match(r"IMG_0042", name)]
    assert len(names) >= least
    wrong = [name for name in names if mark_file_kind(name) is None]
    assert [name for name in wrong if meant_name(name) is None] == [], "wrong ones are shown as such"


# --- what the program says ------------------------------------------------------------------------


def test_the_note_of_a_held_picture_is_quoted_as_it_is() -> None:
    quoted = " ".join(line.removeprefix("> ") for line in re.findall(r"^> .*$", PAGE, re.MULTILINE))
    assert ways_to_mark("IMG.jpg", Recipe()).startswith(quoted)


def test_the_numbers_of_growing_are_those_of_the_code() -> None:
    assert f"({default_grow_px(4000, 3000)} for 4000 x 3000)" in PAGE
    assert f"more than {COVERED_LIMIT:.0%}".replace("%", " %") in PAGE


def test_the_preview_is_what_the_program_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = load(tmp_path, "")
    chosen.inbox.mkdir()
    for name in ("launch_pad.jpg", "launch_pad.jpg.marks.json"):
        shutil.copyfile(sample_inbox() / name, chosen.inbox / name)
    picture, drawn = chosen.inbox / "launch_pad.jpg", tmp_path / "launch_pad.preview.jpg"
    report = previewing.preview_report(
        picture, config=chosen.config_file, mask=None, output=drawn, recipe=None
    )
    views.print_preview(report)
    shown = capsys.readouterr().out.replace(str(chosen.inbox), "/home/ann/Retouch/inbox")
    shown = shown.replace(str(tmp_path) + os.sep, "/home/ann/")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines == blocks("text")[0].splitlines(), "paste the new output into docs/MARKING.md"


# --- pictures -------------------------------------------------------------------------------------


def test_every_way_has_its_picture_and_they_are_small() -> None:
    shown = re.findall(r"^!\[[^\]]{40,}\]\(marking/([^)]+)\)$", PAGE, re.MULTILINE)
    assert sorted(shown) == [path.name for path in PICTURES]
    assert len(shown) == len(EVERYTHING)
    assert sum(path.stat().st_size for path in PICTURES) < 900_000
    for path in PICTURES:
        with Image.open(path) as picture:
            picture.load()


def test_the_readme_shows_every_way(tmp_path: Path) -> None:
    ways = README.partition("### Ways to mark")[2].partition("\n#")[0]
    for name in (
        "IMG.jpg.mask.png",
        "IMG.marked.jpg",
        "IMG.jpg.marks.json",
        "strokes/",
        "erased/",
        "regions",
    ):
        assert f"`{name}`" in ways, name
    assert "(docs/MARKING.md)" in ways
    assert load(tmp_path, "").policy(once=True).recipes[0].colour in ways
