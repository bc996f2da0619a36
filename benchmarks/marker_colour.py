"""Measures the marker colour on real pictures: false alarms, missed strokes, what is left of them, and time.

Pictures come from folders, and from published source distributions that pip fetches into a cache (see
`real_pictures.py`); they are decoded as the worker decodes them. A picture with many colours counts as a
photograph, all others as drawn. What is measured, each with a table:

- false alarms: each picture as it is, saved again, and halved; the answer ought to be that nothing is marked;
- hard ones: photographs whose hues are turned until their strongest colour is the marker's, as they are and
  with more saturation, and slopes through the colour;
- strokes of many widths on photographs, saved in many ways: how many are missed or incomplete, and how much
  of the colour is left outside the mark, grown as by default (held against the same photograph, unmarked);
- straight lines along a JPEG's blocks, which it treats all alike;
- strokes on photographs whose own colour is the marker's: is the mark right, or the picture refused?
- other marker colours, on photographs without and with strokes;
- time, for 12 megapixels on one core.

    python benchmarks/marker_colour.py --cache /var/tmp/real-pictures --folder ~/Pictures --page marker.md
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import real_pictures  # noqa: E402 - found beside this file
from tests.worker.strokes import (  # noqa: E402 - found beside this file
    DOUBLED,
    HALVED,
    JPEGS,
    LOSSLESS,
    MAGENTA,
    OPAQUE,
    WEBPS,
    Saving,
    brushed,
    chroma_along,
    freehand,
    painted,
    straight,
)
from watcher.worker.imaging.decode import load_pixels, open_picture  # noqa: E402 - as above
from watcher.worker.imaging.marker import find_strokes  # noqa: E402 - as above
from watcher.worker.imaging.masks import default_grow_px, grown  # noqa: E402 - as above
from watcher.worker.imaging.refusals import IncompleteError, RefusedError  # noqa: E402 - as above
from watcher.worker.imaging.rgb import rgb_of  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]
    Colour = tuple[int, int, int]

MOST_PIXELS: Final = 60_000_000
LEAST_SIDE_PX: Final = 48
PHOTOGRAPH_SIDE_PX: Final = 96
PHOTOGRAPH_COLOURS: Final = 800
"""Of 6 bits a channel, on a grid of 400 x 400: what a photograph has at least, and a drawing seldom."""
STUDY_PX: Final = 1200
"""Long side to which pictures are brought that are turned or painted on as a whole."""
CROP_PX: Final = (400, 500)
PAINTED_ON: Final = 44
TEST_CARDS: Final = ("test-card",)
"""In their names: photographs by their number of colours, made of pure ones."""

AGAIN: Final = tuple(saving for saving in JPEGS if saving.name in {"q90 4:2:0", "q75 4:2:0", "q50 4:2:0"})
HALF: Final = Saving("halved", "PNG", scale=0.5)
Q75: Final = next(saving for saving in JPEGS if saving.name == "q75 4:2:0")
Q90: Final = next(saving for saving in JPEGS if saving.name == "q90 4:2:0")
BRUSHES: Final = ((1, 0), (2, 0), (3, 0), (4, 0), (6, 0), (12, 0), (30, 0), (12, 0.1), (24, 0.2))
"""Width in pixels, and softness: the standard deviation of the edge as a share of the width."""
PAINTED_SAVINGS: Final = (
    LOSSLESS,
    *(saving for saving in JPEGS if saving.quality in {98, 90, 75, 50}),
    *WEBPS,
    HALVED,
    DOUBLED,
)
LINE_SAVINGS: Final = (
    *(saving for saving in JPEGS if saving.quality in {90, 75, 50}),
    *WEBPS[1:],
)
COLOURS: Final[dict[str, Colour]] = {
    "magenta": MAGENTA,
    "magenta as Display P3 has it": (234, 51, 247),
    "pink": (255, 0, 128),
    "violet": (128, 0, 255),
    "spring green": (0, 255, 128),
    "azure": (0, 128, 255),
    "lime": (128, 255, 0),
    "cyan": (0, 255, 255),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "red": (255, 0, 0),
    "orange": (255, 128, 0),
    "yellow": (255, 255, 0),
    "light brown": (180, 140, 100),
    "grey": (128, 128, 128),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}


@dataclass(frozen=True)
class Picture:
    """A decoded picture.

    Attributes:
        name: its package or folder, and file.
        rgb: uint8, (height, width, 3), as stored.
        visible: bool, (height, width), or None.
    """

    name: str
    rgb: Rgb
    visible: Mask | None

    @property
    def is_photograph(self) -> bool:
        """Whether it has as many colours as a photograph."""
        height, width = self.rgb.shape[:2]
        if min(height, width) < PHOTOGRAPH_SIDE_PX or any(word in self.name for word in TEST_CARDS):
            return False
        grid = self.rgb[:: max(1, height // 400), :: max(1, width // 400)].reshape(-1, 3) >> 2
        codes = grid.astype(np.int64) @ np.array([4096, 64, 1])
        return np.unique(codes).size > PHOTOGRAPH_COLOURS


def decoded(files: Iterable[real_pictures.Picture]) -> Iterator[Picture]:
    """Decode what the worker would, once each."""
    seen: set[int] = set()
    for file in files:
        try:
            opened = open_picture(file.data, max_pixels=MOST_PIXELS)
            pixels = load_pixels(opened)
            rgb, alpha = np.ascontiguousarray(rgb_of(opened, pixels)), opened.alpha(pixels)
        except (IncompleteError, RefusedError, MemoryError):
            continue
        key = hash(rgb.tobytes())
        if min(rgb.shape[:2]) >= LEAST_SIDE_PX and key not in seen:
            seen.add(key)
            yield Picture(f"{file.package}: {file.path}", rgb, None if alpha is None else alpha > 0)


def answer(rgb: Rgb, colour: Colour = MAGENTA, visible: Mask | None = None) -> Mask | str:
    """Return the strokes that are found, or `none`, or `refused`."""
    try:
        found = find_strokes(rgb, colour, visible)
    except RefusedError:
        return "refused"
    return "none" if found is None else found


def word(found: Mask | str) -> str:
    """Return an answer as a table has it."""
    return found if isinstance(found, str) else "taken for strokes"


def studied(picture: Picture) -> Rgb:
    """Return a picture at the size at which it is turned and painted on."""
    scale = min(1.0, STUDY_PX / max(picture.rgb.shape))
    resized = cv2.resize(picture.rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return resized.astype(np.uint8, copy=False)


def turned(rgb: Rgb, place: int, saturation: float) -> Rgb:
    """Turn all hues so that the strongest, or one of the next, becomes the marker's (magenta: 300)."""
    hsv = cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV_FULL)
    strength = (hsv[..., 1] / np.float32(255)) ** 4 * (hsv[..., 2] / np.float32(255)) ** 2
    counts = np.bincount(hsv[..., 0].ravel(), strength.ravel(), 256)
    smooth = np.convolve(np.concatenate([counts[-4:], counts, counts[:4]]), np.ones(9), "valid")
    for _ in range(place):
        top = int(smooth.argmax())
        smooth[(top + np.arange(-30, 31)) % 256] = 0
    shift = round(300 * 256 / 360) - int(smooth.argmax())
    hsv[..., 0] = (hsv[..., 0].astype(np.int64) + shift) % 256
    hsv[..., 1] = np.minimum(255, hsv[..., 1] * saturation)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL).astype(np.uint8, copy=False)


# --- the measurements ---------------------------------------------------------------------------------------


def false_alarms(pictures: Sequence[Picture]) -> list[str]:
    """Ask for strokes where there are none."""
    savings = (None, *AGAIN, HALF)
    counts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    named: dict[str, set[str]] = defaultdict(set)
    for picture in pictures:
        kind = "photographs" if picture.is_photograph else "drawn"
        for saving in savings:
            rgb = picture.rgb if saving is None else saving(picture.rgb)
            found = word(answer(rgb, visible=picture.visible if saving is None else None))
            counts[kind][saving.name if saving else "as it is", found] += 1
            if found != "none":
                named[picture.name].add(found)
    lines = ["## Unmarked pictures", "", "| | nothing | taken for strokes | refused |", "|---|---|---|---|"]
    for kind in ("photographs", "drawn"):
        for saving in savings:
            name = saving.name if saving else "as it is"
            row = (counts[kind][name, outcome] for outcome in ("none", "taken for strokes", "refused"))
            lines.append(f"| {kind}, {name} | {' | '.join(map(str, row))} |")
    lines += ["", "Not told as unmarked:", ""]
    return lines + [f"- {name}: {', '.join(sorted(words))}" for name, words in sorted(named.items())]


def hard_ones(photographs: Sequence[Picture]) -> list[str]:
    """Ask for strokes where the picture's own colour is the marker's."""
    lines = ["## Photographs whose own colour is turned to the marker's, and slopes", ""]
    lines += ["| | nothing | taken for strokes | refused |", "|---|---|---|---|"]
    named: set[str] = set()
    for saturation in (1.0, 1.5):
        for saving in (LOSSLESS, Q75):
            counts: Counter[str] = Counter()
            for picture in photographs:
                for place in (0, 1):
                    found = word(answer(saving(turned(studied(picture), place, saturation))))
                    counts[found] += 1
                    if found == "taken for strokes":
                        named.add(f"{picture.name} (saturation x {saturation})")
            lines.append(_counted(f"saturation x {saturation}, {saving.name}", counts))
    for slope in (0.25, 0.5, 1.0, 2.0, 4.0):
        counts = Counter(word(answer(saving(rgb))) for rgb in slopes(slope) for saving in (LOSSLESS, Q75))
        lines.append(_counted(f"slope of {slope} levels a pixel", counts))
    return [*lines, "", "Taken for strokes:", "", *(f"- {name}" for name in sorted(named))]


def _counted(title: str, counts: Counter[str]) -> str:
    row = (counts[outcome] for outcome in ("none", "taken for strokes", "refused"))
    return f"| {title} | {' | '.join(map(str, row))} |"


def slopes(levels_a_pixel: float) -> Iterator[Rgb]:
    """Yield pictures that run through the marker: in one channel, in hue, to white, to black and to grey."""
    distance = (np.arange(500) - 250) * levels_a_pixel
    marker = np.array(MAGENTA, np.float64)
    for end in ((255, 255, 255), (0, 0, 0), (128, 128, 128), (255, 0, 0), (0, 0, 255), (105, 105, 105)):
        way = np.array(end) - marker
        there = np.clip(np.abs(distance) / np.abs(way).max(), 0, 1)
        yield _rows(marker + there[:, None] * way)
    red_to_blue = np.stack(
        [255 - np.maximum(distance, 0), 0 * distance, 255 + np.minimum(distance, 0)], axis=1
    )
    yield _rows(red_to_blue)


def _rows(colours: NDArray[np.float64]) -> Rgb:
    return np.tile(np.clip(colours.round(), 0, 255).astype(np.uint8)[None], (300, 1, 1))


@dataclass
class Tally:
    """What became of strokes of one kind."""

    tried: int = 0
    missed: int = 0
    refused: int = 0
    incomplete: int = 0
    left_most: float = 0.0
    left_mostly: float = 0.0

    def add(self, found: Mask | str, coverage: NDArray[np.float32], excess: NDArray[np.float32]) -> None:
        """Count one: what was found, how much of each pixel is stroke, and what it did to each pixel."""
        self.tried += 1
        if isinstance(found, str):
            self.missed += found == "none"
            self.refused += found == "refused"
            return
        self.incomplete += bool(found[coverage > 0.6].mean() < OPAQUE)  # noqa: PLR2004 - more stroke than not
        outside = excess[~grown(found, default_grow_px(found.shape[1], found.shape[0]))]
        if outside.size:
            self.left_most = max(self.left_most, float(outside.max()))
            self.left_mostly = max(self.left_mostly, float(np.percentile(outside, 99.9)))

    @property
    def text(self) -> str:
        """What was not found; 0 is good."""
        parts = [str(self.missed)]
        parts += [f"{self.refused} refused"] if self.refused else []
        parts += [f"{self.incomplete} in part"] if self.incomplete else []
        return ", ".join(parts)


def crops(photographs: Sequence[Picture], count: int) -> list[Rgb]:
    """Return the middles of some photographs, evenly chosen."""
    height, width = CROP_PX
    large = [p.rgb for p in photographs if p.rgb.shape[0] >= height * 0.75 and p.rgb.shape[1] >= width * 0.75]
    chosen = large[:: max(1, len(large) // count)][:count]
    return [_middle(rgb, height, width) for rgb in chosen]


def _middle(rgb: Rgb, height: int, width: int) -> Rgb:
    top, left = max(0, (rgb.shape[0] - height) // 2), max(0, (rgb.shape[1] - width) // 2)
    return np.ascontiguousarray(rgb[top : top + height, left : left + width])


def strokes(photographs: Sequence[Picture]) -> list[str]:
    """Paint strokes, save, look for them, and look at what is left."""
    tallies: dict[tuple[str, tuple[float, float]], Tally] = defaultdict(Tally)
    chosen = crops(photographs, PAINTED_ON)
    for seed, rgb in enumerate(chosen):
        plain = {saving: saving(rgb) for saving in PAINTED_SAVINGS}
        for brush in BRUSHES:
            coverage = freehand(rgb.shape, brush[0], seed, softness=brush[1])
            marked = painted(rgb, coverage)
            for saving in PAINTED_SAVINGS:
                saved = saving(marked)
                excess = chroma_along(saved, MAGENTA) - chroma_along(plain[saving], MAGENTA)
                tallies[saving.name, brush].add(answer(saved), _fitted(coverage, saved), excess)
    head = [f"{width} px{', soft ' + str(soft) if soft else ''}" for width, soft in BRUSHES]
    lines = [f"## Strokes on {len(chosen)} photographs: missed", "", f"| saved as | {' | '.join(head)} |"]
    lines.append("|---" * (len(head) + 1) + "|")
    for saving in PAINTED_SAVINGS:
        cells = (tallies[saving.name, brush].text for brush in BRUSHES)
        lines.append(f"| {saving.name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Left of the colour outside the grown mark, in levels of chroma (the marker has 137): the most",
    ]
    lines += [
        "that 99.9 % of a picture's pixels have, and the most of any, over strokes of 3 px and wider.",
        "",
    ]
    lines += ["| saved as | 99.9 % | any |", "|---|---|---|"]
    for saving in PAINTED_SAVINGS:
        wide = [tallies[saving.name, brush] for brush in BRUSHES if brush[0] >= 3]  # noqa: PLR2004 - as the heading says
        mostly, most = max(t.left_mostly for t in wide), max(t.left_most for t in wide)
        lines.append(f"| {saving.name} | {mostly:.0f} | {most:.0f} |")
    return lines


def _fitted(coverage: NDArray[np.float32], rgb: Rgb) -> NDArray[np.float32]:
    size = (rgb.shape[1], rgb.shape[0])
    return cv2.resize(coverage, size, interpolation=cv2.INTER_AREA).astype(np.float32, copy=False)


def lines_along_blocks(photographs: Sequence[Picture]) -> list[str]:
    """Draw straight lines at each place within a JPEG's blocks of halved chroma."""
    widths, chosen = (3, 4, 5, 6), crops(photographs, 15)
    title = f"## Straight lines on {len(chosen)} photographs, across and down, at 4 places each: missed"
    lines = [title, "", f"| saved as | {' | '.join(f'{width} px' for width in widths)} |", "|---" * 5 + "|"]
    for saving in LINE_SAVINGS:
        cells = []
        for width in widths:
            found = [
                answer(saving(painted(rgb, straight(rgb.shape, width, place, is_upright=is_upright))))
                for rgb in chosen
                for place in range(4)
                for is_upright in (False, True)
            ]
            cells.append(f"{sum(isinstance(one, str) for one in found)} of {len(found)}")
        lines.append(f"| {saving.name} | {' | '.join(cells)} |")
    return lines


def strokes_among_like_colours(photographs: Sequence[Picture]) -> list[str]:
    """Paint strokes on photographs whose own colour is the marker's."""
    lines = ["## Strokes on photographs whose own colour is turned to the marker's", ""]
    lines += ["| | right | refused | missed | in part | more than 12 px beside the stroke taken |"]
    lines += ["|---|---|---|---|---|---|"]
    for saturation in (1.0, 1.5):
        for saving in (LOSSLESS, Q90, Q75):
            counts: Counter[str] = Counter()
            for seed, picture in enumerate(photographs[::2]):
                rgb = turned(studied(picture), 0, saturation)
                for width in (4, 12):
                    coverage = freehand(rgb.shape, width, seed)
                    counts[_judged(answer(saving(painted(rgb, coverage))), coverage)] += 1
            row = (counts[outcome] for outcome in ("right", "refused", "none", "in part", "too much"))
            lines.append(f"| saturation x {saturation}, {saving.name} | {' | '.join(map(str, row))} |")
    return lines


def _judged(found: Mask | str, coverage: NDArray[np.float32]) -> str:
    if isinstance(found, str):
        return found
    if found[coverage > 0.6].mean() < OPAQUE:  # noqa: PLR2004 - more stroke than not
        return "in part"
    beside = found & ~grown(coverage > 0.1, 12)  # noqa: PLR2004 - any stroke at all
    return "too much" if np.count_nonzero(beside) > 50 else "right"  # noqa: PLR2004 - a speck


def other_colours(photographs: Sequence[Picture]) -> list[str]:
    """Try other markers, on photographs without strokes, and with some."""
    lines = [f"## Other markers, on {len(photographs)} photographs, lossless and q75 4:2:0", ""]
    lines += ["| marker | unmarked: taken for strokes | unmarked: refused | strokes of 4 and 12 px: missed |"]
    lines += ["|---|---|---|---|"]
    rgbs = [studied(picture) for picture in photographs]
    chosen = crops(photographs, PAINTED_ON // 2)
    for name, colour in COLOURS.items():
        alarms = Counter(word(answer(saving(rgb), colour)) for rgb in rgbs for saving in (LOSSLESS, Q75))
        found = [
            answer(saving(painted(rgb, freehand(rgb.shape, width, seed), colour)), colour)
            for seed, rgb in enumerate(chosen)
            for width in (4, 12)
            for saving in (LOSSLESS, Q75)
        ]
        missed = sum(isinstance(one, str) for one in found)
        cells = (alarms["taken for strokes"], alarms["refused"], f"{missed} of {len(found)}")
        lines.append(f"| {name} #{''.join(f'{c:02X}' for c in colour)} | {' | '.join(map(str, cells))} |")
    return lines


def times(photographs: Sequence[Picture]) -> list[str]:
    """Take the time for 12 megapixels on one core."""
    cv2.setNumThreads(1)
    largest = max(photographs, key=lambda picture: picture.rgb.size).rgb
    rgb = cv2.resize(largest, (4000, 3000), interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
    loop = np.zeros(rgb.shape[:2], np.uint8)
    cv2.ellipse(loop, (2000, 1500), (1500, 1000), 20, 0, 360, 255, 40, cv2.LINE_AA)
    cases: dict[str, Callable[[], Rgb]] = {
        "nothing near the colour": lambda: rgb,
        "a stroke around the whole picture": lambda: painted(rgb, brushed(loop)),
        "nothing but the colour": lambda: np.broadcast_to(np.array(MAGENTA, np.uint8), rgb.shape),
    }
    lines = ["## Time, 12 megapixels on one core", "", "| | ms |", "|---|---|"]
    for name, made in cases.items():
        picture = made()
        spent = []
        for _ in range(3):
            begun = time.perf_counter()
            answer(picture)
            spent.append(time.perf_counter() - begun)
        lines.append(f"| {name} | {min(spent) * 1000:.0f} |")
    return lines


# --- the command --------------------------------------------------------------------------------------------


def _files(chosen: argparse.Namespace) -> Iterator[real_pictures.Picture]:
    if chosen.cache is not None:
        chosen.cache.mkdir(parents=True, exist_ok=True)
        for distribution in real_pictures.DISTRIBUTIONS:
            label = f"{distribution.name} {distribution.version}"
            yield from real_pictures.of_archive(label, real_pictures.fetch(distribution, chosen.cache))
    for folder in chosen.folder:
        yield from real_pictures.of_folder(folder.name, folder)


def main() -> None:
    """Gather, measure, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, help="where the pinned source distributions are, or are put")
    parser.add_argument("--folder", type=Path, nargs="+", default=[], metavar="DIR", help="more pictures")
    parser.add_argument("--page", type=Path, help="where the tables go; else they are printed")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # of decoders, about files that are damaged on purpose
    pictures = list(decoded(_files(chosen)))
    photographs = [picture for picture in pictures if picture.is_photograph]
    if not photographs:
        parser.error("no photographs: name --cache or --folder")
    print(f"{len(pictures)} pictures, {len(photographs)} of them photographs", file=sys.stderr)
    parts = [[f"{len(pictures)} different pictures, {len(photographs)} of them photographs."]]
    parts.append(false_alarms(pictures))
    for measure in (
        hard_ones,
        strokes,
        lines_along_blocks,
        strokes_among_like_colours,
        other_colours,
        times,
    ):
        print(measure.__name__, file=sys.stderr)
        parts.append(measure(photographs))
    text = "\n".join(line for part in parts for line in (*part, ""))
    if chosen.page is None:
        print(text)
    else:
        chosen.page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
