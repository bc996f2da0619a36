"""Shapes of what people want gone, and how each of them is told by a mask, a brush, boxes or an outline.

What this module owns: one drawing a shape, scaled to the picture, the same for the same arguments; and its
exact translations. Rules of this module:
- Nothing of `watcher` is imported: what the product makes of a shape is held against what stands here.
- A drawing is coverage, 0..255 a pixel, as an antialiasing brush leaves it; its mark is what is half covered.
- Sizes are width and height; arrays are (height, width), as a person sees the picture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Coverage = NDArray[np.uint8]
    Size = tuple[int, int]
    Box = tuple[int, int, int, int]
    Points = list[tuple[int, int]]

_FINE: Final = 4
"""Shapes are drawn at this many times their size and averaged: what antialiasing is."""
_SPECKS_ACROSS, _SPECKS_DOWN = 20, 15
SPECKS: Final = _SPECKS_ACROSS * _SPECKS_DOWN
GAP_PX: Final = 14
"""Between two near holes: they are near, and the default growth of 4 px leaves something between them."""


# --- drawings ----------------------------------------------------------------------------------------------


class _Sheet:
    """A fine canvas on which a shape is drawn in white, in the picture's own coordinates."""

    def __init__(self, size: Size, pen_px: float) -> None:
        self.width, self.height = size
        self.pen_px = pen_px
        self.short_px = min(size)
        self._image = Image.new("L", (self.width * _FINE, self.height * _FINE))
        self._draw = ImageDraw.Draw(self._image)

    def outline(self, points: list[tuple[float, float]]) -> None:
        self._draw.polygon([(x * _FINE, y * _FINE) for x, y in points], fill=255)

    def ellipse(self, x: float, y: float, across: float, down: float) -> None:
        """Around a middle, with its two radii."""
        box = ((x - across) * _FINE, (y - down) * _FINE, (x + across) * _FINE - 1, (y + down) * _FINE - 1)
        self._draw.ellipse(box, fill=255)

    def box(self, left: float, top: float, right: float, bottom: float) -> None:
        self._draw.rectangle((left * _FINE, top * _FINE, right * _FINE - 1, bottom * _FINE - 1), fill=255)

    def line(self, points: list[tuple[float, float]]) -> None:
        path = [(x * _FINE, y * _FINE) for x, y in points]
        self._draw.line(path, fill=255, width=round(self.pen_px * _FINE), joint="curve")

    def text(self, x: float, y: float, words: str, height_px: float) -> None:
        face = ImageFont.load_default(height_px * _FINE)
        # A letter's own lines are about a tenth of its height: a broader pen makes it bold.
        bold = max(0, round((self.pen_px - height_px / 10) * _FINE / 2))
        self._draw.text((x * _FINE, y * _FINE), words, 255, face, anchor="mm", stroke_width=bold)

    def coverage(self) -> Coverage:
        size = (self.width, self.height)
        return np.asarray(self._image.resize(size, Image.Resampling.BOX))


def _blob(sheet: _Sheet) -> None:
    turns = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    radius = sheet.short_px * 0.11 * (1 + 0.22 * np.sin(3 * turns + 1) + 0.1 * np.sin(5 * turns))
    x, y = sheet.width * 0.42 + radius * np.cos(turns) * 1.25, sheet.height * 0.55 + radius * np.sin(turns)
    sheet.outline(list(zip(x.tolist(), y.tolist(), strict=True)))


def _text(sheet: _Sheet) -> None:
    height_px = max(sheet.short_px * 0.11, 9 * sheet.pen_px)
    sheet.text(sheet.width * 0.52, sheet.height * 0.3, "Sold 24%", height_px)


def _hairline(sheet: _Sheet) -> None:
    """Across most of the picture, with a bend, as a wire hangs."""
    along = np.linspace(0, 1, 60)
    x = sheet.width * (0.12 + 0.76 * along)
    y = sheet.height * (0.3 + 0.25 * along + 0.12 * np.sin(np.pi * along))
    sheet.line(list(zip(x.tolist(), y.tolist(), strict=True)))


def _bar(sheet: _Sheet) -> None:
    """From edge to edge, as subtitles and status bars are."""
    top = sheet.height * 0.68
    sheet.box(0, round(top), sheet.width, round(top + max(3.0 * sheet.pen_px, 0.05 * sheet.height)))


def _border(sheet: _Sheet) -> None:
    sheet.ellipse(0, sheet.height * 0.45, sheet.short_px * 0.11, sheet.short_px * 0.15)


def _corner(sheet: _Sheet) -> None:
    sheet.ellipse(sheet.width, sheet.height, sheet.short_px * 0.17, sheet.short_px * 0.13)


def _specks(sheet: _Sheet) -> None:
    """Dust: all over the picture, one in each cell of a grid, somewhere in it."""
    random = np.random.default_rng(SPECKS)
    radius = 1.5 * sheet.pen_px
    wide, high = sheet.width / _SPECKS_ACROSS, sheet.height / _SPECKS_DOWN
    slack_x, slack_y = max(0.0, wide - 2 * radius - 9), max(0.0, high - 2 * radius - 9)
    for row in range(_SPECKS_DOWN):
        for column in range(_SPECKS_ACROSS):
            x = (column + 0.5) * wide + random.uniform(-0.5, 0.5) * slack_x
            y = (row + 0.5) * high + random.uniform(-0.5, 0.5) * slack_y
            sheet.ellipse(x, y, radius, radius)


def _near(sheet: _Sheet) -> None:
    """Two of them, with a few pixels between."""
    side, middle_x, middle_y = sheet.short_px * 0.13, sheet.width * 0.6, sheet.height * 0.52
    sheet.box(
        round(middle_x - side), round(middle_y - side * 0.6), round(middle_x), round(middle_y + side * 0.6)
    )
    sheet.ellipse(round(middle_x) + GAP_PX + side * 0.5, middle_y, side * 0.5, side * 0.55)


_DRAWINGS: Final[dict[str, Callable[[_Sheet], None]]] = {
    "blob": _blob,
    "text": _text,
    "hairline": _hairline,
    "bar": _bar,
    "border": _border,
    "corner": _corner,
    "specks": _specks,
    "near": _near,
}
SHAPES: Final = tuple(_DRAWINGS)


def coverage_of(shape: str, size: Size, *, pen_px: float = 1) -> Coverage:
    """Draw a shape.

    Args:
        shape: one of `SHAPES`.
        size: of the picture that it is drawn on.
        pen_px: width of a line that has none of its own, and the least of any.

    Returns:
        How much of each pixel it covers: 0..255.
    """
    sheet = _Sheet(size, pen_px)
    _DRAWINGS[shape](sheet)
    return sheet.coverage()


def mark_of(coverage: Coverage) -> Mask:
    """Return what is covered by half."""
    mark: Mask = coverage >= 128
    return mark


# --- sets of pixels ----------------------------------------------------------------------------------------


def grown(mask: Mask, radius_px: int) -> Mask:
    """Return all pixels whose middle is within a radius of a marked one's middle."""
    if radius_px <= 0:
        return mask.copy()
    reach = np.arange(-radius_px, radius_px + 1)
    disc = (reach[:, np.newaxis] ** 2 + reach**2 <= radius_px**2).astype(np.uint8)
    return cv2.dilate(mask.view(np.uint8), disc).astype(np.bool_)


def closed(mask: Mask, radius_px: int) -> Mask:
    """Return a mask without gaps of up to twice a radius."""
    padded = np.pad(mask, radius_px)
    filled = ~grown(~grown(padded, radius_px), radius_px)
    return filled[radius_px:-radius_px, radius_px:-radius_px]


def parts_of(mask: Mask) -> int:
    """Count the parts that do not touch."""
    count, _ = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)
    return int(count) - 1


def default_growth_px(size: Size) -> int:
    """As the contract has it: the greater of 4 px and 0.5 % of the long side."""
    return max(4, round(0.005 * max(size)))


# --- shapes as sidecars and recipes tell them --------------------------------------------------------------


def _runs(mark: Mask) -> Iterator[tuple[int, int, int]]:
    """Yield row, first column and end of each run of marked pixels, from above."""
    edges = np.diff(np.pad(mark.view(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, stops = np.argwhere(edges == 1), np.argwhere(edges == -1)
    for (row, left), (_, right) in zip(starts.tolist(), stops.tolist(), strict=True):
        yield row, left, right


def boxes_of(mark: Mask) -> list[Box]:
    """Return boxes (left, top, right, bottom) that cover a mark exactly."""
    open_ones: dict[tuple[int, int], tuple[int, int]] = {}
    boxes = []
    for row, left, right in _runs(mark):
        top, bottom = open_ones.get((left, right), (row, row))
        if bottom != row:
            boxes.append((left, top, right, bottom))
            top = row
        open_ones[left, right] = (top, row + 1)
    return boxes + [(left, top, right, bottom) for (left, right), (top, bottom) in open_ones.items()]


def outlines_of(mark: Mask) -> list[Points]:
    """Return polygons along pixels' edges that cover a mark exactly; none has a hole or crosses itself."""
    chains: list[list[tuple[int, int, int]]] = []
    above: list[list[tuple[int, int, int]]] = []
    here: list[list[tuple[int, int, int]]] = []
    at = -1
    for row, left, right in _runs(mark):
        if row != at:
            above, here, at = (here if row == at + 1 else []), [], row
        below = next((chain for chain in above if chain[-1][1] < right and left < chain[-1][2]), None)
        if below is None:
            below = []
            chains.append(below)
        else:
            above.remove(below)
        below.append((row, left, right))
        here.append(below)
    return [_around(chain) for chain in chains]


def _around(chain: list[tuple[int, int, int]]) -> Points:
    down = [point for row, _, right in chain for point in ((right, row), (right, row + 1))]
    up = [point for row, left, _ in reversed(chain) for point in ((left, row + 1), (left, row))]
    return down + up


def percent(part: int, whole: int) -> str:
    """Write a share so that it leads back to the same pixel."""
    return f"{100 * part / whole:.9f}".rstrip("0").rstrip(".") + "%"


# --- colours -----------------------------------------------------------------------------------------------


def _chroma(rgb: NDArray[Any]) -> NDArray[np.float64]:
    """Return Cr and Cb (ITU-R BT.601, full range) of pixels (..., 3), around 0."""
    red, green, blue = (rgb[..., band].astype(np.float64) for band in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return np.stack([(red - luma) / 1.402, (blue - luma) / 1.772], axis=-1)


def tint(rgb: NDArray[Any], colour: tuple[int, int, int]) -> NDArray[np.float64]:
    """Return how much of a colour's hue pixels (..., 3) have: levels of chroma, 0 for grey."""
    marker = _chroma(np.array(colour))
    hue: NDArray[np.float64] = marker / math.hypot(*marker)
    share: NDArray[np.float64] = _chroma(rgb) @ hue
    return share


def is_like(rgb: NDArray[Any], colour: tuple[int, int, int]) -> Mask:
    """Tell pixels (..., 3) whose chroma is nearer to a colour's than half of the way to grey."""
    marker = _chroma(np.array(colour))
    off = np.linalg.norm(_chroma(rgb) - marker, axis=-1)
    like: Mask = off < 0.5 * math.hypot(*marker)
    return like


def averaged(values: NDArray[Any], where: Mask) -> NDArray[np.float32]:
    """Return the mean of values over 5 x 5 pixels, of those that are chosen; 0 where less than half are."""
    share = cv2.blur(where.astype(np.float32), (5, 5))
    total = cv2.blur(np.where(where, values, 0).astype(np.float32), (5, 5))
    return np.where(share > 0.5, total / np.maximum(share, 0.5), 0).astype(np.float32)
