"""`watcher preview`: real pictures, a real process that looks at them, and what is written and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import photo, rectangle, save_mask
from watcher.cli.previewing import preview_report
from watcher.ports import RemediableError
from watcher.worker.imaging.overlay import TINT

if TYPE_CHECKING:
    from numpy.typing import NDArray

W, H = 400, 300
BOX = (200, 100, 240, 130)
PHOTO = photo(W, H)
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without a configuration, in a folder with a picture."""
    for name in [*os.environ]:
        if name.startswith(("WATCHER_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    Image.fromarray(PHOTO).save(work / "IMG.png")
    return work


def look(image: str = "IMG.png", **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"config": None, "mask": None, "output": None, "recipe": None} | options
    return preview_report(Path(image), **given)


def refusal(image: str = "IMG.png", **options: Any) -> RemediableError:
    with pytest.raises(RemediableError) as error:
        look(image, **options)
    assert error.value.remedy
    return error.value


def configured(folder: Path, recipes: str) -> Path:
    for name in ("in", "out"):
        (folder / name).mkdir(exist_ok=True)
    file = folder / "watcher.toml"
    places = {name: json.dumps(str(folder / name)) for name in ("in", "out", "state")}
    file.write_text(
        f"inbox = {places['in']}\noutbox = {places['out']}\nstate_dir = {places['state']}\n{recipes}"
    )
    return file


def pixels(path: str | Path) -> NDArray[np.int64]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


def test_a_mask_beside_the_picture_is_laid_over_it_and_counted(folder: Path) -> None:
    save_mask(folder / "IMG.png.mask.png", rectangle(W, H, BOX))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = look(output=Path("seen.png"))
    assert (report["marks"], report["recipe"]) == ("mask", "default")
    assert report["mark_file"] == str(folder / "IMG.png.mask.png")
    assert (report["format"], report["width"], report["height"]) == ("PNG", W, H)
    assert (report["mark_px"], report["grow_px"]) == (40 * 30, 4)
    assert report["hole_px"] > report["mark_px"]
    (crop,) = report["crops"]
    assert crop["scale"] == 1
    assert crop["left"] <= BOX[0] - 64
    assert crop["left"] + crop["width"] >= BOX[2] + 64
    assert report["output"] == str(folder / "seen.png")
    assert {name: (folder / name).read_bytes() for name in before} == before, "only the preview is written"
    assert {path.name for path in folder.iterdir()} == {*before, "seen.png"}


def test_what_goes_is_tinted_and_the_rest_is_the_picture(folder: Path) -> None:
    save_mask(folder / "IMG.png.mask.png", rectangle(W, H, BOX))
    report = look(output=Path("seen.png"))
    seen = pixels("seen.png")
    towards_tint = np.abs(seen - TINT).sum(axis=2) < np.abs(PHOTO.astype(int) - TINT).sum(axis=2)
    left, top, right, bottom = BOX
    assert towards_tint[top:bottom, left:right].all()
    crop = report["crops"][0]
    frame = np.zeros((H, W), np.bool_)
    frame[crop["top"] : crop["top"] + crop["height"], crop["left"] : crop["left"] + crop["width"]] = True
    inner = np.zeros_like(frame)
    inner[
        crop["top"] + 1 : crop["top"] + crop["height"] - 1,
        crop["left"] + 1 : crop["left"] + crop["width"] - 1,
    ] = True
    hole = rectangle(W, H, (left - 4, top - 4, right + 4, bottom + 4))
    untouched = ~hole & ~(frame & ~inner)
    assert np.array_equal(seen[untouched], PHOTO[untouched])
    dashes = seen[frame & ~inner]
    assert {tuple(colour) for colour in dashes.tolist()} == {(0, 0, 0), (255, 255, 255)}


def test_nothing_marked_writes_nothing_and_says_how_to_mark(folder: Path) -> None:
    report = look()
    assert report["marks"] is None
    assert report["output"] is None
    assert "IMG.png.mask.png" in report["remedy"]
    assert "IMG.marked.png" in report["remedy"]
    assert [path.name for path in folder.iterdir()] == ["IMG.png"]


def test_the_default_place_is_a_jpeg_in_the_current_folder(folder: Path) -> None:
    save_mask(folder / "IMG_mask.png", rectangle(W, H, BOX))
    assert look()["output"] == str(folder / "IMG.preview.jpg")
    with Image.open(folder / "IMG.preview.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (W, H))
    assert look()["output"] == str(folder / "IMG.preview.jpg"), "an older preview is replaced"


@pytest.mark.parametrize("name", ["masks/IMG.png", "IMG.marked.png", "IMG.png.marks.json"])
def test_each_kind_of_mark_file_is_found_beside_the_picture(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if name.endswith(".json"):
        path.write_text('{"schema": 1, "regions": [{"box": [200, 100, 40, 30]}]}')
    elif "marked" in name:
        copy = Image.fromarray(PHOTO)
        copy.paste((255, 255, 0), BOX)
        copy.save(path)
    else:
        save_mask(path, rectangle(W, H, BOX))
    report = look()
    assert report["mark_file"] == str(path)
    assert 0.9 * 1200 < report["mark_px"] < 1.6 * 1200
    assert look(mask=path)["marks"] == report["marks"], "and when it is named"


def test_a_marked_copy_without_a_difference_gives_way_as_in_the_service(folder: Path) -> None:
    (folder / "IMG.marked.png").write_bytes((folder / "IMG.png").read_bytes())
    report = look()
    assert report["marks"] is None
    assert list(report["notes"]) == ["the marked copy shows no difference from the picture"]
    (folder / "IMG.png.marks.json").write_text('{"schema": 1, "regions": [{"box": [200, 100, 40, 30]}]}')
    assert look()["marks"] == "sidecar"


def test_the_recipe_is_the_one_of_the_place_in_the_inbox_or_the_one_that_is_named(folder: Path) -> None:
    config = configured(
        folder,
        '[[recipes]]\nname = "strokes"\nmatch = ["strokes/**"]\nmarks = ["colour"]\n'
        '[[recipes]]\nname = "stamped"\nmatch = ["stamped/**"]\nmarks = ["regions"]\n'
        'regions = [{ box = [0, 0, "10%", "10%"], corner = "bottom-right" }]\n',
    )
    painted = Image.fromarray(PHOTO)
    painted.paste((255, 0, 255), BOX)
    place = folder / "in" / "strokes"
    place.mkdir()
    painted.save(place / "a.png")
    report = look(str(place / "a.png"), config=config)
    assert (report["source"], report["recipe"], report["marks"]) == ("strokes/a.png", "strokes", "colour")
    painted.save(folder / "a.png")
    assert look("a.png", config=config)["marks"] is None
    assert look("a.png", config=config, recipe="strokes")["marks"] == "colour"
    stamped = look("a.png", config=config, recipe="stamped")
    assert (stamped["marks"], stamped["mark_px"]) == ("regions", 40 * 30)
    error = refusal("a.png", config=config, recipe="stroke")
    assert "strokes" in error.remedy


@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_everything_is_told_and_drawn_as_it_is_seen(folder: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    turned = {1: None, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}[orientation]
    stored = Image.fromarray(PHOTO) if turned is None else Image.fromarray(PHOTO).transpose(turned)
    stored.save(folder / "b.jpg", exif=exif, quality=95)
    save_mask(folder / "b.jpg.mask.png", rectangle(W, H, BOX))
    report = look("b.jpg", output=Path("b.png"))
    assert (report["width"], report["height"]) == (W, H)
    crop = report["crops"][0]
    assert crop["left"] < BOX[0]
    assert crop["left"] + crop["width"] > BOX[2]
    assert crop["top"] < BOX[1]
    assert crop["top"] + crop["height"] > BOX[3]
    seen = pixels("b.png")
    assert seen.shape == (H, W, 3)
    left, top, right, bottom = BOX
    tinted = np.abs(seen - PHOTO).max(axis=2) > 60
    assert tinted[top:bottom, left:right].mean() > 0.8


def test_erased_pixels_are_shown_as_a_chequerboard(folder: Path) -> None:
    config = configured(folder, '[[recipes]]\nname = "erased"\nmarks = ["alpha"]\n')
    alpha = np.full((H, W), 255, np.uint8)
    alpha[rectangle(W, H, BOX)] = 0
    Image.fromarray(np.dstack([PHOTO, alpha])).save(folder / "c.png")
    report = look("c.png", config=config, output=Path("seen.png"))
    assert report["marks"] == "alpha"
    left, top, right, bottom = BOX
    inside = pixels("seen.png")[top + 4 : bottom - 4, left + 4 : right - 4]
    assert len(np.unique(inside.reshape(-1, 3), axis=0)) == 2


def test_a_picture_that_cannot_be_served_is_refused_in_the_service_s_words(folder: Path) -> None:
    (folder / "bad.jpg").write_bytes(b"no picture at all" * 10)
    error = refusal("bad.jpg")
    assert error.exit_code == 1
    assert "bad.jpg" in str(error)
    save_mask(folder / "IMG.png.mask.png", rectangle(W, W, BOX))
    assert f"{W}x{W}" in str(refusal())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": Path("IMG.png")}, "would replace its picture"),
        ({"output": Path("a.tiff")}, "cannot be written as"),
        ({"output": Path("missing/a.png")}, "cannot be written"),
        ({"mask": Path("gone.png")}, "no file at"),
    ],
)
def test_what_cannot_be_done_is_said(folder: Path, options: dict[str, Any], words: str) -> None:
    save_mask(folder / "IMG.png.mask.png", rectangle(W, H, BOX))
    assert words in str(refusal(**options))


def test_a_preview_never_arrives_in_the_inbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(folder, "")
    Image.fromarray(PHOTO).save(folder / "in" / "IMG.png")
    save_mask(folder / "in" / "IMG.png.mask.png", rectangle(W, H, BOX))
    monkeypatch.chdir(folder / "in")
    assert "would arrive in the inbox" in str(refusal(config=config))
    assert sorted(path.name for path in (folder / "in").iterdir()) == ["IMG.png", "IMG.png.mask.png"]
    assert look(config=config, output=folder / "seen.webp")["output"] == str(folder / "seen.webp")


def test_a_picture_that_takes_its_process_down_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that parses a picture runs in the command itself."""
    shadow = folder / "shadow" / "PIL"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'shadow'}{os.pathsep}{ROOT}")
    error = refusal()
    assert "signal 11" in str(error)
    assert error.exit_code == 70


def test_the_command_prints_a_table_or_json(folder: Path) -> None:
    save_mask(folder / "IMG.png.mask.png", rectangle(W, H, BOX))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "watcher", "preview", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )

    shown = run("IMG.png")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in ("marked by", "mask: ", "grown by 4 px", "model sees", "IMG.preview.jpg"):
        assert words in shown.stdout
    told = run("IMG.png", "--json", "-o", "seen.png")
    assert json.loads(told.stdout)["mark_px"] == 1200
    missing = run("gone.png")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: there is no picture at gone.png\n")
