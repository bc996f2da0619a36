"""Regions to masks: which pixels lie in the boxes and polygons of a sidecar or a recipe.

Rules of this module:
- A pixel is marked if its centre lies inside; one on the left or upper edge does, one on the right or lower
  edge does not. So a box of whole pixels marks exactly its pixels, and regions side by side share none.
- Nothing vanishes for being thin: where the line through the centres of a row or column of pixels passes
  through a region and none of those centres lies in it, the pixel at the middle of the passage is marked.
- A polygon that crosses itself is filled even-odd; regions over one another add up.
- Coordinates are of the viewed picture, and so is the result.
- The work is bounded: regions are filled together, so that an area costs once however often it is covered,
  and there is a limit to how many rows and columns outlines may cross. Nothing of the picture's size is made
  but the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from watcher.regions import RegionError, place_of
from watcher.worker.imaging.shapes import is_same_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from watcher.regions import Corner, Distance, Extent, Region

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

MAX_CROSSINGS: Final = 8_000_000
"""Rows and columns of pixels that the outlines of all polygons may cross together: those of some 140 polygons
around the largest picture, 14,000 pixels square. Measured: so many take some 4 s."""
_CROSSINGS_AT_ONCE: Final = 1 << 18
"""Measured: each takes some 140 bytes while it is worked on, so all of them 36 MB."""
_TILE_PX: Final = 1 << 20
_TILE_COLUMNS: Final = 1 << 16
_FROM_THE_END: Final = (("top-right", "bottom-right"), ("bottom-left", "bottom-right"))
"""Corners from which distances are counted against the x axis, and against the y axis."""


def mask_of_regions(
    regions: Sequence[Region],
    viewed_size: tuple[int, int],
    *,
    drawn_on: tuple[int, int] | None = None,
    outside: Literal["refuse", "nothing"] = "refuse",
) -> Mask:
    """Draw regions.

    Args:
        regions: boxes and polygons.
        viewed_size: width and height of the picture as a person sees it.
        drawn_on: width and height of the picture that pixels are counted on; None for this one.
        outside: what becomes of a region that lies wholly outside the picture: it is refused, as in a sidecar
            that was made for this picture, or nothing, as in a recipe for pictures of any size.

    Returns:
        bool, (height, width), viewed orientation; all False where no region lies in the picture.

    Raises:
        RegionError: `drawn_on` has another shape than the picture, a region lies outside and is refused, or
            the outlines cross more than `MAX_CROSSINGS`.
    """
    if drawn_on is not None:
        _check_shape(drawn_on, viewed_size)
    width, height = viewed_size
    frame = _Frame(viewed_size, drawn_on or viewed_size)
    boxes, outlines = _boxes(regions, frame), _outlines(regions, frame)
    rows, columns = _Scan(outlines, width, height), _Scan(outlines.transposed(), height, width)
    _check_crossings(rows.crossings + columns.crossings)

    mask = np.zeros((height, width), np.bool_)
    seen = np.zeros(len(regions), np.bool_)
    for top, bottom in _bands(width, height):
        for runs in (boxes.between(top, bottom), *rows.passages(top, bottom)):
            _fill(mask, runs)
            seen[runs.owner] = True
    for runs in columns.passages(0, width):
        thin = runs.where(runs.thin)
        mask[thin.left, thin.top] = True  # transposed: its rows are the columns of the picture
        seen[thin.owner] = True
    _mark_specks(mask, seen, outlines)
    if outside == "refuse":
        _check_seen(seen, regions, viewed_size)
    return mask


# --- from regions to coordinates ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Frame:
    """The picture, and the one that pixels are counted on: widths and heights."""

    viewed: tuple[int, int]
    drawn_on: tuple[int, int]

    def span(
        self, corner: Corner, axis: Literal[0, 1], distance: Distance, extent: Extent
    ) -> tuple[float, float]:
        """Return where an extent begins and ends, in pixels from the left (axis 0) or from above (1)."""
        near = self._px(distance, axis)
        far = near + self._px(extent, axis)
        if corner in _FROM_THE_END[axis]:
            return self.viewed[axis] - far, self.viewed[axis] - near
        return near, far

    def point(self, corner: Corner, x: Distance, y: Distance) -> tuple[float, float]:
        """Return a point, in pixels from the top left corner."""
        right, down = self._px(x, 0), self._px(y, 1)
        return (
            self.viewed[0] - right if corner in _FROM_THE_END[0] else right,
            self.viewed[1] - down if corner in _FROM_THE_END[1] else down,
        )

    def _px(self, length: Distance | Extent, axis: Literal[0, 1]) -> float:
        if isinstance(length, str):
            return float(length.rstrip(" %")) * self.viewed[axis] / 100
        return length * self.viewed[axis] / self.drawn_on[axis]


def _boxes(regions: Sequence[Region], frame: _Frame) -> _Runs:
    owners: list[int] = []
    spans: list[tuple[float, float, float, float]] = []
    for owner, region in enumerate(regions):
        if region.box is not None:
            x, y, width, height = region.box
            owners.append(owner)
            spans.append((*frame.span(region.corner, 0, x, width), *frame.span(region.corner, 1, y, height)))
    edges = np.array(spans, np.float64).reshape(-1, 4).T
    left, right, thin_across = _pixels_between(edges[0], edges[1], frame.viewed[0])
    top, bottom, thin_down = _pixels_between(edges[2], edges[3], frame.viewed[1])
    runs = _Runs(np.array(owners, np.int64), top, bottom, left, right, thin_across | thin_down)
    return runs.where((right > left) & (bottom > top))


def _outlines(regions: Sequence[Region], frame: _Frame) -> _Outlines:
    owners: list[int] = []
    ends: list[Numbers] = []
    for owner, region in enumerate(regions):
        if region.polygon is None:
            continue
        points = np.array([frame.point(region.corner, x, y) for x, y in region.polygon])
        owners += [owner] * len(points)
        ends.append(np.stack([points, np.roll(points, -1, axis=0)], axis=1))
    lines = np.concatenate(ends) if ends else np.empty((0, 2, 2))
    return _Outlines(np.array(owners, np.int64), lines[..., 0], lines[..., 1])


# --- from coordinates to pixels -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Runs:
    """Rectangles of whole pixels: rows top <= y < bottom, columns left <= x < right. Arrays of one length."""

    owner: Indices
    """The region that each belongs to."""
    top: Indices
    bottom: Indices
    left: Indices
    right: Indices
    thin: Mask
    """Which have one pixel for being thin."""

    def where(self, chosen: Mask) -> _Runs:
        """Return those that are chosen."""
        return _Runs(
            self.owner[chosen],
            self.top[chosen],
            self.bottom[chosen],
            self.left[chosen],
            self.right[chosen],
            self.thin[chosen],
        )

    def between(self, first: int, last: int) -> _Runs:
        """Return what lies in the rows first <= y < last."""
        top, bottom = self.top.clip(first, last), self.bottom.clip(first, last)
        return _Runs(self.owner, top, bottom, self.left, self.right, self.thin).where(bottom > top)


@dataclass(frozen=True, slots=True)
class _Outlines:
    """The straight lines of all polygons: the region of each, and x and y of its two ends."""

    owner: Indices
    x: Numbers
    y: Numbers

    def transposed(self) -> _Outlines:
        """Return them with columns for rows."""
        return _Outlines(self.owner, self.y, self.x)


class _Scan:
    """Outlines, crossed by the lines through the centres of the rows of a picture."""

    def __init__(self, outlines: _Outlines, width: int, height: int) -> None:
        down = (outlines.y[:, 0] > outlines.y[:, 1])[:, np.newaxis]
        # Always from above: where two polygons share a line, both are then crossed at the very same place.
        self._x = np.where(down, outlines.x[:, ::-1], outlines.x)
        self._y = np.where(down, outlines.y[:, ::-1], outlines.y)
        self._owner = outlines.owner
        self._width = width
        rows = np.ceil(self._y - 0.5).clip(0, height).astype(np.int64)
        self._first, self._last = rows[:, 0], rows[:, 1]

    @property
    def crossings(self) -> int:
        """How often rows and outlines cross."""
        return int((self._last - self._first).sum())

    def passages(self, top: int, bottom: int) -> Iterator[_Runs]:
        """Yield what lies inside the polygons in the rows top <= y < bottom, as runs of one row."""
        first, last = self._first.clip(top, bottom), self._last.clip(top, bottom)
        lines = np.flatnonzero(last > first)
        counts = (last - first)[lines]
        total = int(counts.sum())
        if total > _CROSSINGS_AT_ONCE and bottom - top > 1:
            middle = (top + bottom) // 2
            yield from self.passages(top, middle)
            yield from self.passages(middle, bottom)
        elif total:
            nth_of_line = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            yield self._inside(np.repeat(lines, counts), np.repeat(first[lines], counts) + nth_of_line)

    def _inside(self, line: Indices, row: Indices) -> _Runs:
        """Return the runs between crossings, of which every polygon has an even number in a row."""
        (x0, x1), (y0, y1) = self._x[line].T, self._y[line].T
        x = x0 + (row + 0.5 - y0) * (x1 - x0) / (y1 - y0)
        owner = self._owner[line]
        order = np.lexsort((x, row, owner))
        x, row, owner = x[order], row[order][::2], owner[order][::2]
        left, right, thin = _pixels_between(x[::2], x[1::2], self._width)
        return _Runs(owner, row, row + 1, left, right, thin).where(right > left)


def _pixels_between(low: Numbers, high: Numbers, size: int) -> tuple[Indices, Indices, Mask]:
    """Return which pixels of a row have their centre at low <= x < high; the one at the middle if none has.

    Args:
        low: where each span begins.
        high: where it ends.
        size: of the row.

    Returns:
        First pixel, the one behind the last (the same where nothing lies in the row), and which spans are
        so thin that no centre lies in them.
    """
    within = (low < size) & ((high > 0) | ((low == high) & (low >= 0)))
    low, high = low.clip(0, size), high.clip(0, size)
    first, last = np.ceil(low - 0.5), np.ceil(high - 0.5)
    thin = within & (last <= first)
    middle = np.minimum(np.floor((low + high) / 2), size - 1)
    first, last = np.where(thin, middle, first), np.where(thin, middle + 1, last)
    return first.astype(np.int64), np.where(within, last, first).astype(np.int64), thin


# --- drawing ------------------------------------------------------------------------------------------------


def _bands(width: int, height: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _TILE_PX // min(width, _TILE_COLUMNS))
    return ((top, min(height, top + rows)) for top in range(0, height, rows))


def _fill(mask: Mask, runs: _Runs) -> None:
    """Mark runs, each pixel once, however many of them it is in."""
    if not runs.owner.size:
        return
    top, bottom = int(runs.top.min()), int(runs.bottom.max())
    first, last = int(runs.left.min()), int(runs.right.max())
    for left in range(first, last, _TILE_COLUMNS):
        right = min(last, left + _TILE_COLUMNS)
        # How many runs begin less how many end in each pixel; summed up, in how many runs a pixel is.
        depth = np.zeros((bottom - top + 1, right - left + 1), np.int32)
        begin, end = runs.left.clip(left, right) - left, runs.right.clip(left, right) - left
        for row, step in ((runs.top - top, 1), (runs.bottom - top, -1)):
            np.add.at(depth, (row, begin), step)
            np.add.at(depth, (row, end), -step)
        depth.cumsum(axis=0, out=depth).cumsum(axis=1, out=depth)
        mask[top:bottom, left:right] |= depth[:-1, :-1] > 0


def _mark_specks(mask: Mask, seen: Mask, outlines: _Outlines) -> None:
    """Mark the pixel of each polygon that is so small that it lies between the centres of pixels."""
    if not outlines.owner.size:
        return
    height, width = mask.shape
    begin = np.flatnonzero(np.diff(outlines.owner, prepend=-1))
    owner = outlines.owner[begin]
    x, y = outlines.x[:, 0], outlines.y[:, 0]
    left, _, thin_across = _pixels_between(
        np.minimum.reduceat(x, begin), np.maximum.reduceat(x, begin), width
    )
    top, _, thin_down = _pixels_between(np.minimum.reduceat(y, begin), np.maximum.reduceat(y, begin), height)
    specks = thin_across & thin_down
    mask[top[specks], left[specks]] = True
    seen[owner[specks]] = True


# --- refusals -----------------------------------------------------------------------------------------------


def _check_shape(drawn_on: tuple[int, int], viewed_size: tuple[int, int]) -> None:
    """Refuse what was drawn on a picture of another shape than this one, but for the rounding of its size."""
    if is_same_shape(drawn_on, viewed_size):
        return
    (drawn_width, drawn_height), (width, height) = drawn_on, viewed_size
    if drawn_on == viewed_size[::-1]:
        remedy = (
            "the picture is stored on its side: count from the top left corner of what a viewer shows, and "
            "write its width and height"
        )
    else:
        remedy = "draw the regions on the picture itself, and write its width and height"
    raise RegionError(
        "size",
        f"the regions are for a picture of {drawn_width}x{drawn_height}, and this one is {width}x{height} as "
        "it is seen",
        remedy,
    )


def _check_crossings(crossings: int) -> None:
    if crossings > MAX_CROSSINGS:
        raise RegionError(
            "regions",
            f"the outlines of the polygons are too long: they cross {crossings:,} rows and columns of pixels",
            f"draw fewer or simpler ones (at most {MAX_CROSSINGS:,}), or draw the marks into a mask file",
        )


def _check_seen(seen: Mask, regions: Sequence[Region], viewed_size: tuple[int, int]) -> None:
    for index, region in enumerate(regions):
        if not seen[index]:
            width, height = viewed_size
            raise RegionError(
                place_of(index, region.name),
                f"it lies outside the picture, which is {width}x{height} as it is seen",
                "count its pixels on the picture itself, or take the region out",
            )
