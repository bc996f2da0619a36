"""The files that no code checks: configuration, unit, samples, pins, Makefile, and words no file may hold."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from PIL import Image, ImageOps
from pydantic import BaseModel

from watcher import settings
from watcher.core.names import is_wanted
from watcher.core.pairing import Pairing, Recipes, mark_file_kind, mask_names
from watcher.core.policy import Recipe
from watcher.regions import sidecar_from

ORIENTATION = 0x0112


# --- config/watcher.toml --------------------------------------------------------------------------

MENTION = re.compile(r"^(?:# Example: |#)?([a-z0-9_]+) = ", re.MULTILINE)
DEFAULT = re.compile(r"^#(?=[a-z0-9_]+ = )", re.MULTILINE)


@pytest.fixture(scope="module")
def config_text(root: Path) -> str:
    return (root / "config" / "watcher.toml").read_text(encoding="utf-8")


@pytest.fixture
def no_other_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the environment plays into the configuration."""
    for name in os.environ:
        if name.startswith(("WATCHER_", "LAMA_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_other_source")
def test_configuration_is_accepted_and_every_default_it_shows_is_the_real_one(
    config_text: str, tmp_path: Path
) -> None:
    as_shipped, spelled_out = tmp_path / "as_shipped.toml", tmp_path / "spelled_out.toml"
    as_shipped.write_text(config_text, encoding="utf-8")
    uncommented, count = DEFAULT.subn("", config_text)
    assert count > 20
    spelled_out.write_text(uncommented, encoding="utf-8")
    assert settings.load(spelled_out).model_dump() == settings.load(as_shipped).model_dump()


@pytest.mark.usefixtures("no_other_source")
def test_every_example_in_the_configuration_is_accepted(config_text: str, tmp_path: Path) -> None:
    with_examples, count = re.subn(r"^# Example: ", "", config_text, flags=re.MULTILINE)
    assert count > 5
    path = tmp_path / "watcher.toml"
    path.write_text(with_examples.replace("(64 hexadecimal digits)", "0" * 64), encoding="utf-8")
    (tmp_path / "stamps.png").write_bytes(b"any file: the worker looks into it")
    loaded = settings.load(path)
    assert loaded.recipes[0].orphan_masks == "picture"
    assert [recipe.name for recipe in loaded.recipes] == ["strokes", "erased", "stamped", "default"]
    assert loaded.engine.threads == 2


def keys_of(model: type[BaseModel]) -> dict[str, set[str]]:
    """The keys by section ("" for the top); a section is a field that is a model, or a tuple of them."""
    keys: dict[str, set[str]] = {"": set()}
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        section = next(
            (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None
        )
        if section is None:
            keys[""].add(name)
        else:
            keys[name] = set(section.model_fields)
    return keys


def test_configuration_teaches_every_key_under_its_section_and_no_other(config_text: str) -> None:
    parts = re.split(r"^\[+([a-z]+)\]+\n", config_text, flags=re.MULTILINE)
    mentioned: dict[str, set[str]] = {"": set(MENTION.findall(parts[0]))}
    for section, body in zip(parts[1::2], parts[2::2], strict=True):
        mentioned.setdefault(section, set()).update(MENTION.findall(body))
    assert mentioned == keys_of(settings.Settings)


def test_every_key_has_an_explanation_above_it(config_text: str) -> None:
    lines = config_text.splitlines()
    for number, line in enumerate(lines):
        if MENTION.match(line) and "recipes" not in section_at(lines, number):
            assert lines[number - 1].startswith("# "), f"line {number + 1}: {line}"


def section_at(lines: list[str], number: int) -> str:
    """The header of the section that a line stands in."""
    return next((line for line in reversed(lines[:number]) if line.startswith("[")), "")


@pytest.mark.parametrize("key", ["inbox", "outbox", "archive"])
def test_init_can_replace_the_folders(config_text: str, key: str) -> None:
    assert config_text.splitlines().count(f'{key} = "~/Retouch/{key}"') == 1
    assert len(re.findall(rf"^#?\s*{key} = ", config_text, re.MULTILINE)) == 1


def test_recipes_have_only_marks_that_work_and_end_in_a_rule_for_everything(config_text: str) -> None:
    recipes = tomllib.loads(config_text)["recipes"]
    marks = {recipe["name"]: recipe["marks"] for recipe in recipes}
    assert marks == {
        "strokes": ["mask", "colour"],
        "erased": ["mask", "alpha"],
        "default": ["mask", "marked_copy", "sidecar"],  # no other: a picture may have such pixels by nature
    }
    assert recipes[-1]["match"] == ["**"]
    assert tuple(recipes[-1]["marks"]) == settings.Recipe(name="any").marks


# --- sample_inbox/ --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(root: Path) -> Path:
    return root / "sample_inbox"


@pytest.fixture(scope="module")
def inbox(samples: Path) -> Pairing:
    """Who belongs to whom in it, by the rules of the product, for recipes that look for everything."""
    everything = ("mask", "marked_copy", "sidecar", "colour", "alpha", "regions")
    pairing = Pairing(Recipes((Recipe("all", ("**",), everything),)))
    for path in samples.rglob("*"):
        if is_wanted(name := path.relative_to(samples).as_posix()):
            pairing.add(name)
    return pairing


@pytest.fixture(scope="module")
def pictures(samples: Path, inbox: Pairing) -> list[Path]:
    return [samples / name for name in sorted(inbox.present) if inbox.is_picture(name)]


@pytest.fixture(scope="module")
def mark_files(samples: Path, inbox: Pairing, pictures: list[Path]) -> dict[Path, list[Path]]:
    """What lies beside each picture and marks it."""
    return {
        picture: [samples / name for name in inbox.mark_files_of(picture.relative_to(samples).as_posix())]
        for picture in pictures
    }


def of_kind(kind: str, mark_files: dict[Path, list[Path]]) -> dict[Path, Path]:
    return {
        picture: files[0]
        for picture, files in mark_files.items()
        if files and mark_file_kind(files[0].as_posix()) == kind
    }


def test_samples_are_many_small_and_of_all_kinds(samples: Path, pictures: list[Path]) -> None:
    assert len(pictures) >= 8
    assert sum(path.stat().st_size for path in samples.rglob("*") if path.is_file()) < 4_000_000
    kinds = Counter(path.suffix for path in pictures)
    assert set(kinds) == {".jpg", ".png", ".webp"}
    assert kinds[".jpg"] >= 3


def test_no_mark_file_of_the_samples_is_without_a_picture_or_one_too_many(
    inbox: Pairing, mark_files: dict[Path, list[Path]], samples: Path
) -> None:
    used = [file.relative_to(samples).as_posix() for files in mark_files.values() for file in files]
    assert sorted(used) == sorted(name for name in inbox.present if mark_file_kind(name))
    assert all(len(files) <= 1 for files in mark_files.values()), "a picture has one mark file, or none"


def test_each_mask_fits_what_a_viewer_shows_and_marks_a_part_of_it(
    mark_files: dict[Path, list[Path]],
) -> None:
    masks = of_kind("mask", mark_files)
    for picture, mask_path in masks.items():
        with Image.open(picture) as image, Image.open(mask_path) as mask:
            assert mask.size == ImageOps.exif_transpose(image).size, mask_path
            marked = mask.convert("L").point([0] * 128 + [255] * 128).histogram()[255]
        assert 0.0005 < marked / (mask.width * mask.height) < 0.2, mask_path
    assert masks


def test_samples_show_every_way_to_name_a_mask(mark_files: dict[Path, list[Path]], samples: Path) -> None:
    shown = {
        mask_names(picture.relative_to(samples).as_posix()).index(mask.relative_to(samples).as_posix())
        for picture, mask in of_kind("mask", mark_files).items()
    }
    assert shown == {0, 1, 2, 3}


def test_a_marked_copy_is_smaller_than_its_picture_as_phones_save_it(
    mark_files: dict[Path, list[Path]],
) -> None:
    ((picture, copy),) = of_kind("marked_copy", mark_files).items()
    with Image.open(picture) as image, Image.open(copy) as small:
        assert small.size == (image.width // 2, image.height // 2)
        assert small.format == "JPEG"


def test_a_sidecar_has_boxes_and_polygons_for_a_picture_of_its_size(
    mark_files: dict[Path, list[Path]],
) -> None:
    ((picture, file),) = of_kind("sidecar", mark_files).items()
    sidecar = sidecar_from(file.read_bytes())
    with Image.open(picture) as image:
        assert sidecar.size == image.size
    assert {region.box is None for region in sidecar.regions} == {True, False}


def test_what_is_marked_in_itself_lies_where_its_recipe_looks_and_one_is_unmarked(
    mark_files: dict[Path, list[Path]], samples: Path
) -> None:
    bare = [picture for picture, files in mark_files.items() if not files]
    assert [picture.relative_to(samples).as_posix() for picture in bare] == [
        "cat.jpg",
        "erased/camera.png",
        "stamped/espresso.jpg",
        "strokes/grace_hopper.jpg",
    ]


def test_the_erased_pixels_of_a_sample_are_clear_and_the_others_opaque(samples: Path) -> None:
    with Image.open(samples / "erased" / "camera.png") as image:
        alpha = image.getchannel("A").histogram()
    assert alpha[0] > 500
    assert alpha[0] + alpha[255] == sum(alpha)


def test_jpegs_carry_metadata_and_one_is_stored_on_its_side(pictures: list[Path]) -> None:
    orientations = []
    for picture in pictures:
        if picture.suffix == ".jpg":
            with Image.open(picture) as image:
                exif = image.getexif()
            assert exif, picture
            orientations.append(exif[ORIENTATION])
    assert orientations.count(6) == 1


def test_every_sample_has_a_source_and_a_free_licence(samples: Path, pictures: list[Path]) -> None:
    text = (samples / "SOURCES.md").read_text(encoding="utf-8")
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.MULTILINE)}
    assert set(rows) == {picture.relative_to(samples).as_posix() for picture in pictures}
    for row in rows.values():
        licence = [cell.strip() for cell in row.split("|")][4]
        assert licence in {"CC0 1.0", "public domain", "public domain (CC0 1.0)"}, row


# --- constraints.txt ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, Version]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in entries), (
        "exact and public only"
    )
    names = [canonicalize_name(line.partition("==")[0]) for line in entries]
    assert len(set(names)) == len(names)
    return dict(zip(names, (Version(line.partition("==")[2]) for line in entries), strict=True))


def declared(root: Path) -> list[str]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = [line for extra in project["project"]["optional-dependencies"].values() for line in extra]
    groups = [line for group in project["dependency-groups"].values() for line in group]
    return [*project["build-system"]["requires"], *project["project"]["dependencies"], *extras, *groups]


@pytest.mark.kind("PD8")
def test_every_declared_dependency_is_pinned_within_its_range(root: Path, pins: dict[str, Version]) -> None:
    for line in declared(root):
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, line


@pytest.mark.kind("PD10")
def test_pins_hold_no_build_for_one_kind_of_device(pins: dict[str, Version]) -> None:
    assert "torch" in pins
    assert not [name for name in pins if name.startswith(("torchvision", "nvidia", "cuda", "triton"))]


# --- Makefile, .ci/run, CHANGELOG.md --------------------------------------------------------------


def make(folder: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": path, "HOME": str(folder), "LC_ALL": "C"}
    command = ["make", "-C", str(folder), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def makefile_folder(root: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    shutil.copy(root / "Makefile", folder)
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


TOOLS = "/usr/bin:/bin"


def test_make_alone_lists_every_target(makefile_folder: Path) -> None:
    listed = make(makefile_folder, path=TOOLS).stdout
    for target in ("demo", "test", "check", "format", "soak", "bench", "wheel", "clean", "help"):
        assert re.search(rf"make {target} +\S", listed), target


def test_make_passes_over_a_python_that_is_there_and_does_not_work(
    makefile_folder: Path, tmp_path: Path
) -> None:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    script(fakes / "python3.13", 'echo "pyenv: python3.13: command not found" >&2; exit 127')
    script(fakes / "python3.12", "exit 1")
    script(fakes / "python3.11", f'exec "{sys.executable}" "$@"')
    done = make(makefile_folder, "python", path=f"{fakes}:{TOOLS}")
    assert done.returncode == 0, done.stderr
    assert f"Python: {fakes / 'python3.11'}" in done.stdout.splitlines()


def test_make_says_what_to_do_where_there_is_no_python(makefile_folder: Path, tmp_path: Path) -> None:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        script(fakes / name, "exit 1")
    done = make(makefile_folder, "python", path=f"{fakes}:{TOOLS}")
    assert done.returncode != 0
    assert "No usable Python >= 3.11" in done.stderr
    assert "make PYTHON=" in done.stderr
    wrong = make(makefile_folder, "python", f"PYTHON={fakes / 'python3'}", path=TOOLS)
    assert wrong.returncode != 0, "a Python that was named is checked too"


def test_ci_runs_demo_check_and_test_without_a_terminal(root: Path) -> None:
    path = root / ".ci" / "run"
    assert os.access(path, os.X_OK)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert {
        "set -euo pipefail",
        "export CI=true",
        "exec </dev/null",
        "make demo",
        "make check",
        "make test",
    } <= set(text.splitlines())


def test_changelog_knows_this_version(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert version in headings or headings == ["Unreleased"], "a released version has its own heading"


# --- what must not stand anywhere -----------------------------------------------------------------

SKIPPED = {".git", "dist", "build", "demo_run", "__pycache__"}
TEXT = {
    "",
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".service",
    ".json",
    ".jsonl",
    ".yml",
    ".yaml",
    ".sh",
    ".html",
    ".css",
    ".js",
}
# In pieces, so that this file does not hold them.
FORBIDDEN = tuple(
    "".join(pieces)
    for pieces in (
        ("/work", "/main"),
        ("/work", "/shared"),
        ("..", "/shared"),
        ("/tm", "p/w/"),
        ("/ro", "ot/"),
        ("/opt", "/wheels"),
        ("/opt", "/pypi"),
        ("files.", "pythonhosted"),
        ("file", ":///"),
    )
)


def project_files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED and not name.startswith((".venv", ".hypothesis")) and "cache" not in name
        ]
        found += [Path(folder, name) for name in files if Path(name).suffix in TEXT]
    return found


def test_no_file_names_a_place_that_only_one_machine_has(root: Path) -> None:
    files = project_files(root)
    assert root / "pyproject.toml" in files
    found = [
        f"{path.relative_to(root)}: {piece}"
        for path in files
        for piece in FORBIDDEN
        if piece in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []
