"""The page about formats says what the code does."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import Bench, photo, rectangle, save_mask
from tests.worker.made import Made
from watcher.wire import ItemFailed, Outside
from watcher.worker.imaging.formats.heif.heic import INSTALL
from watcher.worker.imaging.sniffing import RECOGNISED, Container

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "FORMATS.md").read_text(encoding="utf-8")
PHOTO = photo(160, 120)


def table(heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, less its head; an empty first cell is the one above."""
    lines = PAGE.partition(f"\n## {heading}")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows: list[list[str]] = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        cells[0] = cells[0] or rows[-1][0]
        rows.append(cells)
    return rows


PIXELS = table("What goes in")
LEFT_OUT = table("What is kept beside")
REFUSED = table("Refused")


def test_every_format_that_is_served_has_its_rows() -> None:
    containers = set(get_args(Container))
    assert {row[0] for row in PIXELS} == containers
    for rows in (LEFT_OUT, REFUSED):
        named = {name for row in rows for name in row[0].split(", ")}
        assert named - {"all"} <= containers


def test_every_word_of_the_record_is_explained() -> None:
    assert {word for row in PIXELS for word in re.findall(r"`(\w+)`", row[4])} == set(get_args(Outside))


def test_every_kind_that_is_known_and_not_served_has_its_row() -> None:
    told = PAGE.partition("\nKnown by their content")[2]
    rows = [line.split("|")[1:3] for line in told.splitlines() if line.startswith(("| a ", "| an "))]
    found = {
        name.strip(): remedy.strip() for names, remedy in rows for name in re.split(r",(?![^(]*\))", names)
    }

    assert found.keys() == {kind.name for kind in RECOGNISED}
    for kind in RECOGNISED:
        remedy = found[kind.name].removeprefix("it is no picture: ")
        first = re.match(r"\w+ (it|the \w+)", kind.remedy)
        assert first is not None
        assert remedy.startswith(first[0]), (kind.name, remedy, kind.remedy)
        assert ("no picture" in found[kind.name]) is not kind.is_picture


def test_the_command_for_heic_is_the_one_that_the_note_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert INSTALL in PAGE
    assert INSTALL in readme


def by_pillow(image: Image.Image, container: str, **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, container, **options)
    return target.getvalue()


def heic(pixels: np.ndarray, **options: object) -> bytes:
    import pillow_heif  # noqa: PLC0415 - an extra

    target = io.BytesIO()
    mode = "L" if pixels.ndim == 2 else "RGB"
    size = (pixels.shape[1], pixels.shape[0])
    pillow_heif.encode(mode, size, pixels.tobytes(), target, **options)
    return target.getvalue()


COLOUR, GREY = Image.fromarray(PHOTO), Image.fromarray(PHOTO[..., 0])
MADE: Made[list[bytes]] = Made(
    {
        "JPEG": lambda: [
            by_pillow(COLOUR, "JPEG"),
            by_pillow(COLOUR.convert("CMYK"), "JPEG", progressive=True),
        ],
        "PNG": lambda: [
            by_pillow(COLOUR, "PNG"),
            by_pillow(GREY.quantize(8), "PNG", bits=4),
            cv2.imencode(".png", PHOTO.astype(np.uint16) * 257)[1].tobytes(),
        ],
        "WEBP": lambda: [by_pillow(COLOUR, "WEBP", lossless=True), by_pillow(COLOUR, "WEBP", quality=80)],
        "TIFF": lambda: [
            by_pillow(COLOUR, "TIFF", compression="tiff_lzw"),
            by_pillow(COLOUR.convert("CMYK"), "TIFF"),
            by_pillow(COLOUR, "TIFF", compression="jpeg"),
        ],
        "GIF": lambda: [by_pillow(COLOUR.quantize(64), "GIF")],
        "BMP": lambda: [by_pillow(COLOUR, "BMP"), by_pillow(COLOUR.quantize(16), "BMP")],
        "HEIC": lambda: [heic(PHOTO, quality=60), heic(PHOTO[..., 0].copy(), quality=-1)],
        "AVIF": lambda: [by_pillow(COLOUR, "AVIF"), by_pillow(GREY, "AVIF", quality=100)],
    }
)


@pytest.mark.parametrize("container", MADE)
def test_what_the_table_says_of_the_pixels_outside_is_what_the_record_says(
    tmp_path: Path, container: str
) -> None:
    bench = Bench(tmp_path)
    mask = save_mask(tmp_path / "mask.png", rectangle(160, 120, (40, 30, 80, 60)))
    said = []
    for data in MADE[container]:
        (tmp_path / "a.jpg").write_bytes(data)
        report, _ = bench.done(tmp_path / "a.jpg", mask)
        assert report.image.format == container
        said.append(report.image.outside)
    written = [word for row in PIXELS if row[0] == container for word in re.findall(r"`(\w+)`", row[4])]

    assert set(said) <= set(written)
    if container != "JPEG":  # whose other way is for files that need it
        assert set(said) == set(written)


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (by_pillow(COLOUR, "AVIF", save_all=True, append_images=[GREY.convert("RGB")]), "animations"),
        (by_pillow(COLOUR, "TIFF", save_all=True, append_images=[COLOUR]), "several pages"),
        (by_pillow(Image.fromarray(PHOTO[..., 0].astype(np.float32)), "TIFF"), "floating numbers"),
    ],
)
def test_what_the_table_refuses_is_refused(tmp_path: Path, data: bytes, row: str) -> None:
    assert any(row in cells[1] for cells in REFUSED)
    (tmp_path / "a.jpg").write_bytes(data)
    report = Bench(tmp_path).serve(tmp_path / "a.jpg")

    assert isinstance(report, ItemFailed), report
    assert report.code == "unsupported"
