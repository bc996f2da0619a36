"""What the model sees: a few boxes around the holes, at native scale, within a pixel budget.

Words: a *core* is the rectangle whose holes a crop is responsible for; its *box* is the core with a margin of
context. Rules of this module:
- Every hole pixel lies in the core of at least one crop, and is pasted by the first such crop only.
- A box lies inside the picture (it is shifted inward at borders), its sides are multiples of 8 and at least
  64; where the picture itself is smaller, the crop is padded by reflection, and padding is never hole.
- The margin is max(64 px, the hole's thickness): thickness is a component's area over its longer side. It
  shrinks, down to a quarter of that and never below 64 px, before a box may exceed the budget. What the
  picture's edge takes of it on one side is added on the open side: a hole at the border sees as much as any.
- Boxes are merged while that wastes little, and until at most `MAX_CROPS` are left: 300 specks are a few
  crops. Boxes that touch and are too large together stay apart; the second sees the first one's fill.
- Components that are large but thin (a wire across a photo) are cut into cells at native scale.
- What still exceeds the budget is seen scaled down (`scale` < 1): coarse, reported, never refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from watcher.worker.engines.protocol import Crop

if TYPE_CHECKING:
    from numpy.typing import NDArray

MULTIPLE = 8
MIN_SIDE = 64
MIN_MARGIN = 64
MARGIN_SHARE = 1.0
"""Of a hole's thickness. Both were measured with `patchmatch` (docs/QUALITY.md): much less is worse in
texture, more costs time and is no better."""
MAX_CROPS = 16
MIN_BUDGET = 256 * 256
"""Below this a hole and 64 px of context on each side do not fit: smaller budgets are raised to it."""
_MERGE_PX = 128 * 128
"""Two boxes are merged while one crop around both has at most this many pixels more than the two together:
about what a call of the model costs besides its pixels."""
_THIN_SHARE = 0.25
"""A hole thinner than this share of the budget's side is cut into cells and not scaled down."""
_MAX_GRID = 64
_GRIDS_TRIED = 4
_MANY_COMPONENTS = 400
_GATHER_PX = 256
_MIN_KNOWN_SHARE = 0.1


class Rect(NamedTuple):
    """A half-open rectangle: rows top..bottom, columns left..right."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left

    @property
    def area(self) -> int:
        """Pixels."""
        return self.height * self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        """For indexing an array (height, width, ...)."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def union(self, other: Rect) -> Rect:
        """Return the smallest rectangle around both."""
        return Rect(
            min(self.top, other.top),
            min(self.left, other.left),
            max(self.bottom, other.bottom),
            max(self.right, other.right),
        )

    def intersects(self, other: Rect) -> bool:
        """Whether they share a pixel."""
        return (
            self.top < other.bottom
            and other.top < self.bottom
            and self.left < other.right
            and other.left < self.right
        )

    def within(self, other: Rect) -> Rect:
        """Return this rectangle's place in `other`'s own coordinates."""
        return Rect(
            self.top - other.top, self.left - other.left, self.bottom - other.top, self.right - other.left
        )


@dataclass(frozen=True, slots=True)
class CropPlan:
    """One call of the model.

    Attributes:
        core: whose holes it fills, in picture coordinates.
        box: what it sees, in picture coordinates, inside the picture.
        height: of the crop that the model gets, a multiple of 8, at least 64.
        width: likewise.
        scale: 1.0 at native scale; below, the box was scaled down to the budget, in one direction at least.
    """

    core: Rect
    box: Rect
    height: int
    width: int
    scale: float

    @property
    def model_px(self) -> int:
        """Pixels that go to the model, padding included."""
        return self.height * self.width


@dataclass(frozen=True, slots=True)
class _Blob:
    """Components of the mask that are looked at as one: their rectangle and the largest thickness."""

    rect: Rect
    thickness: int

    def union(self, other: _Blob) -> _Blob:
        return _Blob(self.rect.union(other.rect), max(self.thickness, other.thickness))


def plan_crops(hole: NDArray[np.bool_], *, crop_pixels: int) -> list[CropPlan]:
    """Plan the crops for a grown mask.

    Args:
        hole: bool, (height, width).
        crop_pixels: budget of one crop, in pixels.

    Returns:
        At most `MAX_CROPS` plans, top to bottom; none for an empty mask.
    """
    planner = _Planner(hole, max(crop_pixels, MIN_BUDGET))
    return planner.plans()


class _Planner:
    """Holds one picture's mask and budget while its crops are planned."""

    def __init__(self, hole: NDArray[np.bool_], budget: int) -> None:
        self.hole = hole
        self.budget = budget
        self.height, self.width = hole.shape

    def plans(self) -> list[CropPlan]:
        plans = [self._plan(core) for core in self._cores()]
        return sorted(plans, key=lambda plan: (plan.core.top, plan.core.left))

    def _cores(self) -> list[_Blob]:
        blobs = merge_blobs(_gathered(self._components()), self.hole.shape, self.budget)
        if len(blobs) > MAX_CROPS:
            cells = self._cells(_around(blobs), MAX_CROPS)
            if len(cells) > 1:
                return cells
            blobs = merge_blobs(blobs, self.hole.shape, None)
        cores: list[_Blob] = []
        for index, blob in enumerate(blobs):
            cores += self._cells(blob, MAX_CROPS - len(cores) - (len(blobs) - index - 1))
        return cores

    def _components(self) -> list[_Blob]:
        rows = np.flatnonzero(self.hole.any(axis=1))
        if rows.size == 0:
            return []
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        columns = np.flatnonzero(self.hole[top:bottom].any(axis=0))
        left, right = int(columns[0]), int(columns[-1]) + 1
        part = np.ascontiguousarray(self.hole[top:bottom, left:right]).view(np.uint8)
        _, _, stats, _ = cv2.connectedComponentsWithStats(part, connectivity=8)
        blobs = []
        for x, y, width, height, area in stats[1:].tolist():
            rect = Rect(top + y, left + x, top + y + height, left + x + width)
            blobs.append(_Blob(rect, math.ceil(area / max(width, height))))
        return blobs

    def _fits(self, core: Rect, margin: int) -> bool:
        box = self._box(core, margin)
        return _padded(box.height) * _padded(box.width) <= self.budget

    def _box(self, core: Rect, margin: int) -> Rect:
        top, bottom = _span(core.top - margin, core.bottom + margin, self.height)
        left, right = _span(core.left - margin, core.right + margin, self.width)
        return Rect(top, left, bottom, right)

    def _cells(self, blob: _Blob, at_most: int) -> list[_Blob]:
        """Cut what is too large but thin into cells of native scale, if few enough do."""
        thin = blob.thickness <= _THIN_SHARE * math.sqrt(self.budget)
        if at_most < 2 or not thin or self._fits(blob.rect, MIN_MARGIN):  # noqa: PLR2004 - one cell is no cut
            return [blob]
        for rows, columns in self._grids(blob.rect):
            cells = [
                _Blob(tight, min(blob.thickness, max(tight.height, tight.width)))
                for row in range(rows)
                for column in range(columns)
                if (tight := self._tight(_cell(blob.rect, rows, columns, row, column))) is not None
            ]
            if len(cells) <= at_most:
                return cells
        return [blob]

    def _grids(self, rect: Rect) -> list[tuple[int, int]]:
        """Return the few coarsest grids (rows, columns) whose cells fit the budget."""
        found: list[tuple[int, int]] = []
        for rows in range(1, _MAX_GRID + 1):
            height = _padded(min(self.height, -(-rect.height // rows) + 2 * MIN_MARGIN))
            for columns in range(1, _MAX_GRID + 1):
                width = _padded(min(self.width, -(-rect.width // columns) + 2 * MIN_MARGIN))
                if height * width <= self.budget:
                    found.append((rows, columns))
                    break
        return sorted(found, key=lambda grid: grid[0] * grid[1])[:_GRIDS_TRIED]

    def _tight(self, cell: Rect) -> Rect | None:
        part = self.hole[cell.slices]
        rows = np.flatnonzero(part.any(axis=1))
        if rows.size == 0:
            return None
        columns = np.flatnonzero(part.any(axis=0))
        return Rect(
            cell.top + int(rows[0]),
            cell.left + int(columns[0]),
            cell.top + int(rows[-1]) + 1,
            cell.left + int(columns[-1]) + 1,
        )

    def _plan(self, blob: _Blob) -> CropPlan:
        margin = _margin(blob)
        smallest = max(MIN_MARGIN, blob.thickness // 4)
        while margin > smallest and not self._fits(blob.rect, margin):
            margin = max(smallest, margin * 3 // 4)
        box = self._box(blob.rect, margin)
        while self._known_share(box) < _MIN_KNOWN_SHARE and (box.height, box.width) != self.hole.shape:
            margin *= 2
            box = self._box(blob.rect, margin)
        height, width, scale = _model_size(box, self.budget)
        return CropPlan(blob.rect, box, height, width, scale)

    def _known_share(self, box: Rect) -> float:
        return 1.0 - float(self.hole[box.slices].mean())


def _margin(blob: _Blob) -> int:
    return max(MIN_MARGIN, round(MARGIN_SHARE * blob.thickness))


def _padded(side: int) -> int:
    return max(MIN_SIDE, -(-side // MULTIPLE) * MULTIPLE)


def _span(start: int, stop: int, limit: int) -> tuple[int, int]:
    """Shift an interval into 0..limit, its length a multiple of 8 and at least 64 if that fits."""
    start, stop = max(0, start - max(0, stop - limit)), min(limit, stop + max(0, -start))
    wanted = _padded(stop - start)
    if wanted > limit:
        return 0, limit
    start = max(0, min(start - (wanted - (stop - start)) // 2, limit - wanted))
    return start, start + wanted


def _cell(rect: Rect, rows: int, columns: int, row: int, column: int) -> Rect:
    height, width = -(-rect.height // rows), -(-rect.width // columns)
    top, left = rect.top + row * height, rect.left + column * width
    return Rect(
        min(top, rect.bottom),
        min(left, rect.right),
        min(top + height, rect.bottom),
        min(left + width, rect.right),
    )


def _gathered(blobs: list[_Blob]) -> list[_Blob]:
    """Put very many components together by neighbourhood, so that merging stays quick on a mask of noise."""
    grid = _GATHER_PX
    while len(blobs) > _MANY_COMPONENTS:
        cells: dict[tuple[int, int], _Blob] = {}
        for blob in blobs:
            key = (blob.rect.top // grid, blob.rect.left // grid)
            known = cells.get(key)
            cells[key] = blob if known is None else known.union(blob)
        blobs = list(cells.values())
        grid *= 2
    return blobs


def _around(blobs: list[_Blob]) -> _Blob:
    around = blobs[0]
    for blob in blobs[1:]:
        around = around.union(blob)
    return around


def merge_blobs(blobs: list[_Blob], shape: tuple[int, ...], budget: int | None) -> list[_Blob]:
    """Merge the pair whose common box wastes least, again and again.

    Args:
        blobs: what to merge.
        shape: of the picture: (height, width).
        budget: no merged box exceeds it; None for no bound.

    Returns:
        Blobs whose further merging would cost more than `_MERGE_PX`; at most `MAX_CROPS` of them, unless the
        budget forbids every merge that is left.
    """
    if len(blobs) < 2:  # noqa: PLR2004 - a pair
        return blobs
    rects = np.array([blob.rect for blob in blobs], np.int64)
    thickness = np.array([blob.thickness for blob in blobs], np.int64)
    waste = np.stack([_wastes(rects, thickness, i, shape, budget) for i in range(len(blobs))])
    alive = len(blobs)
    while alive > 1:
        one, other = divmod(int(waste.argmin()), len(blobs))
        cost = waste[one, other]
        if math.isinf(cost) or (cost > _MERGE_PX and alive <= MAX_CROPS):
            break
        rects[one, :2] = np.minimum(rects[one, :2], rects[other, :2])
        rects[one, 2:] = np.maximum(rects[one, 2:], rects[other, 2:])
        thickness[one] = max(thickness[one], thickness[other])
        thickness[other] = -1
        waste[other, :] = waste[:, other] = math.inf
        waste[one, :] = waste[:, one] = _wastes(rects, thickness, one, shape, budget)
        alive -= 1
    return [
        _Blob(Rect(*rects[i].tolist()), int(thickness[i])) for i in range(len(blobs)) if thickness[i] >= 0
    ]


def _wastes(
    rects: NDArray[np.int64],
    thickness: NDArray[np.int64],
    one: int,
    shape: tuple[int, ...],
    budget: int | None,
) -> NDArray[np.float64]:
    """Return what merging `one` with each other blob would cost in pixels; infinity where it may not be."""
    merged = np.hstack([np.minimum(rects[:, :2], rects[one, :2]), np.maximum(rects[:, 2:], rects[one, 2:])])
    union: NDArray[np.int64] = _extents(merged, np.maximum(thickness, thickness[one]), shape)
    apart = _extents(rects, thickness, shape)
    wastes: NDArray[np.float64] = (union - apart - apart[one]).astype(np.float64)
    wastes[thickness < 0] = math.inf
    wastes[one] = math.inf
    if budget is not None:
        wastes[union > budget] = math.inf
    return wastes


def _extents(
    rects: NDArray[np.int64], thickness: NDArray[np.int64], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return the pixels of each rectangle's box with its margin."""
    margin = np.maximum((MARGIN_SHARE * thickness).round().astype(np.int64), MIN_MARGIN)[:, np.newaxis]
    limit = np.array(shape[:2], np.int64)
    first, last = rects[:, :2] - margin, rects[:, 2:] + margin
    start = np.maximum(0, first - np.maximum(0, last - limit))
    stop = np.minimum(limit, last + np.maximum(0, -first))
    extents: NDArray[np.int64] = (stop - start).prod(axis=1)
    return extents


def _model_size(box: Rect, budget: int) -> tuple[int, int, float]:
    height, width = _padded(box.height), _padded(box.width)
    if height * width <= budget:
        return height, width, 1.0
    # A box within the budget may be over it once it is padded: it is shrunk by a few pixels then.
    scale = min(1.0, math.sqrt(budget / (box.height * box.width)))
    height = max(MIN_SIDE, int(box.height * scale) // MULTIPLE * MULTIPLE)
    width = max(MIN_SIDE, int(box.width * scale) // MULTIPLE * MULTIPLE)
    if height == MIN_SIDE:
        width = min(width, budget // MIN_SIDE // MULTIPLE * MULTIPLE)
    if width == MIN_SIDE:
        height = min(height, budget // MIN_SIDE // MULTIPLE * MULTIPLE)
    return height, width, min(height / box.height, width / box.width)


def cut(rgb: NDArray[np.uint8], hole: NDArray[np.bool_], plan: CropPlan) -> Crop:
    """Make the model's crop from a box of the picture; it shares no memory with what it is made from.

    Args:
        rgb: (box height, box width, 3); not changed.
        hole: bool, (box height, box width); not changed.
        plan: whose box it is.
    """
    size = (plan.width, plan.height)
    if plan.scale < 1:
        coarse = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
        return Crop(coarse, cut_mask(hole, plan))
    below, right = plan.height - rgb.shape[0], plan.width - rgb.shape[1]
    if not below and not right:
        return Crop(rgb.copy(order="C"), hole.copy(order="C"))
    # Padding counts as known, so it must not mirror what was marked: reflect a copy without it.
    clean = rgb.copy()
    clean[hole] = mean_colour(rgb[~hole])
    pixels = np.pad(clean, ((0, below), (0, right), (0, 0)), mode="symmetric")
    pixels[: rgb.shape[0], : rgb.shape[1]] = rgb
    return Crop(pixels, cut_mask(hole, plan))


def cut_mask(mask: NDArray[np.bool_], plan: CropPlan) -> NDArray[np.bool_]:
    """Bring a mask of a box to the crop's shape: True where any of a pixel is; padding never is."""
    if plan.scale < 1:
        return _touched(_touched(mask, plan.height, 0), plan.width, 1)
    return np.pad(mask, ((0, plan.height - mask.shape[0]), (0, plan.width - mask.shape[1])))


def _touched(hole: NDArray[np.bool_], length: int, axis: int) -> NDArray[np.bool_]:
    """Scale a mask along one axis; any hole in a pixel's area makes it hole.

    So what was marked never mixes into what the model trusts. A box may be as large as the picture: this
    scales no floats.
    """
    full = hole.shape[axis]
    edges = np.arange(length + 1) * full
    starts, stops = edges[:-1] // length, -(-edges[1:] // length)
    if length > full:  # a strip thinner than the least side: the colours between two pixels are of both
        return np.asarray(
            hole.take(np.maximum(starts - 1, 0), axis) | hole.take(np.minimum(stops, full - 1), axis)
        )
    # Pairs of bounds: every second result is a pixel's own, those between are of nothing.
    bounds = np.stack([starts, stops], axis=1).ravel()[:-1]
    touched = np.logical_or.reduceat(hole, bounds, axis=axis)
    return np.asarray(touched[::2] if axis == 0 else touched[:, ::2])


def uncut(filled: NDArray[np.uint8], plan: CropPlan) -> NDArray[np.uint8]:
    """Bring the model's result back to the box: (box height, box width, 3)."""
    if plan.scale < 1:
        size = (plan.box.width, plan.box.height)
        return cv2.resize(filled, size, interpolation=cv2.INTER_CUBIC).astype(np.uint8, copy=False)
    return filled[: plan.box.height, : plan.box.width]


def mean_colour(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the mean of pixels (n, 3), or middle grey for none."""
    if pixels.size == 0:
        return np.full(3, 128, np.uint8)
    mean: NDArray[np.uint8] = pixels.mean(axis=0).round().astype(np.uint8)
    return mean


def waves(plans: list[CropPlan]) -> list[list[CropPlan]]:
    """Group plans, in order, so that no crop sees a core that is filled in its own wave.

    Crops of one wave may go to the model in one call; a later wave sees the fill of an earlier one.
    """
    grouped: list[list[CropPlan]] = []
    for plan in plans:
        clash = not grouped or any(
            plan.box.intersects(other.core) or plan.core.intersects(other.box) for other in grouped[-1]
        )
        if clash:
            grouped.append([plan])
        else:
            grouped[-1].append(plan)
    return grouped
