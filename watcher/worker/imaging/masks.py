"""Which pixels are to be filled: mask files, erased alpha, and how far they grow.

Rules of this module:
- A mask is white (>= 128) where the picture is to be filled, whatever its mode (or black, where the recipe
  says that its masks are inverted); a mask that says nothing in its colours is read from its alpha.
- A mask is drawn on what the person saw: it is turned into stored orientation before anything else.
- What was erased is what is fully transparent, with the half transparent rim that a brush leaves around it.
- It fits the picture exactly, or has its shape (`shapes`) and is scaled; anything else is refused.
- Growing is by a true disc (Euclidean distance <= radius), so that it is the same in every direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

from watcher.worker.imaging.decode import load_mark_file
from watcher.worker.imaging.orientation import to_stored, to_viewed
from watcher.worker.imaging.refusals import RefusedError
from watcher.worker.imaging.rgb import rgb_of
from watcher.worker.imaging.shapes import is_same_shape

if TYPE_CHECKING:
    from cv2.typing import MatLike
    from numpy.typing import NDArray

    from watcher.worker.imaging.picture import Picture, Pixels

    Mask = NDArray[np.bool_]

THRESHOLD = 128
GROW_MIN_PX = 4
GROW_SHARE = 0.005
COVERED_LIMIT = 0.95
"""A grown mask over more than this share of the picture leaves nothing worth filling from."""
MOSTLY_WHITE = 0.6
"""People who mark by hand cover less; a mask with black and white the wrong way round covers more."""
_MAX_SCALE = 16
"""A mask more than this many times smaller or larger than its picture was not made for it."""
_BAND_ROWS = 512
_ERASER_RIM_PX = 32
"""As far from what is fully transparent an eraser's soft edge is followed. Chosen and not measured, and too
short for wide brushes: of an edge with a standard deviation of 10 px some lies beyond, and stays."""


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A decoded mask file.

    Attributes:
        mask: bool, (height, width) of the picture as stored; True is hole. May be all False.
        note: what a person should know of it, or None.
    """

    mask: Mask
    note: str | None = None


def read_mask(data: bytes, picture: Picture, *, max_pixels: int, invert: bool = False) -> MaskFile:
    """Decode a mask file for a picture.

    Args:
        data: the mask file's bytes.
        picture: the opened picture.
        max_pixels: limit for the mask itself.
        invert: the mask is black where something is to go.

    Raises:
        IncompleteError: the mask file has no end yet.
        RefusedError: `mask_undecodable`, `mask_mismatch` or `too_large`.
    """
    remedy = "save the mask as a black and white PNG of the picture's size"
    opened, pixels = load_mark_file(data, max_pixels=max_pixels, word="mask", remedy=remedy)
    viewed = to_viewed(marked_in(opened, pixels, invert=invert), opened.orientation)
    fitted = fit_mask(viewed, picture.viewed_size)
    note = None
    if not viewed.any():
        note = _note_of_emptiness(opened, pixels, invert=invert)
    elif fitted.shape != viewed.shape:
        note = f"the mask was scaled from {viewed.shape[1]}x{viewed.shape[0]} to the picture's size"
    return MaskFile(np.ascontiguousarray(to_stored(fitted, picture.orientation)), note)


def _note_of_emptiness(mask: Picture, pixels: Pixels, *, invert: bool) -> str:
    luminance = _luminance(mask, pixels)
    if invert:
        return f"its darkest pixel is {luminance.min()} of 255, and below {THRESHOLD} counts as marked"
    return f"its brightest pixel is {luminance.max()} of 255, and from {THRESHOLD} on counts as marked"


def marked_in(mask: Picture, pixels: Pixels, *, invert: bool = False) -> Mask:
    """Return where a decoded mask picture is marked, in its own stored orientation.

    Colours count as luminance (ITU-R BT.601). Where the mask has transparent parts, a pixel is marked if it
    is white and visible; if no pixel is, the strokes were drawn in another colour on nothing, and every
    visible pixel is marked. Inverted, black stands for white, and nothing for something.
    """
    alpha = mask.alpha(pixels)
    white = (_luminance(mask, pixels) >= THRESHOLD) ^ invert
    if alpha is None or alpha.min() == 255:  # noqa: PLR2004 - opaque everywhere
        return white
    visible = alpha >= THRESHOLD
    drawn = white & visible
    return drawn if drawn.any() else visible ^ invert


def _luminance(mask: Picture, pixels: Pixels) -> NDArray[np.uint8]:
    rgb = rgb_of(mask, pixels)
    if rgb.strides[-1] == 0:  # one plane, shown three times
        return rgb[..., 0]
    grey: NDArray[np.uint8] = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2GRAY).astype(
        np.uint8, copy=False
    )
    return grey


def fit_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    """Bring a mask to the picture's size if it was made for this picture.

    Args:
        mask: bool, (height, width).
        size: wanted width and height.

    Raises:
        RefusedError: `mask_mismatch`, with both sizes.
    """
    width, height = size
    mask_height, mask_width = mask.shape
    if (mask_width, mask_height) == (width, height):
        return mask
    scale = max(width / mask_width, mask_width / width)
    if not is_same_shape((mask_width, mask_height), size) or scale > _MAX_SCALE:
        raise RefusedError(
            "mask_mismatch",
            f"the mask is {mask_width}x{mask_height} and the picture is {width}x{height} as it is seen",
            "draw the mask on the picture itself, at its size and the way up that you see it",
        )
    grey = mask.astype(np.uint8) * np.uint8(255)
    if mask_width < width:
        return cv2.resize(grey, size, interpolation=cv2.INTER_LINEAR) >= THRESHOLD
    # Shrinking: a pixel that is marked in any part is marked, or thin strokes would be lost.
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA) > 0


def default_grow_px(width: int, height: int) -> int:
    """Return how far a mask grows when nobody says: max(4 px, 0.5 % of the long side)."""
    return max(GROW_MIN_PX, round(GROW_SHARE * max(width, height)))


def grown(mask: Mask, radius_px: int) -> Mask:
    """Dilate a mask by a disc.

    Works in bands of rows that hold something, so that a few specks on a large picture cost little and no
    full-frame float plane is ever made.

    Args:
        mask: bool, (height, width).
        radius_px: 0 returns a copy.
    """
    result = mask.copy()
    if radius_px <= 0:
        return result
    height, width = mask.shape
    for top in range(0, height, _BAND_ROWS):
        bottom = min(height, top + _BAND_ROWS)
        upper, lower = max(0, top - radius_px), min(height, bottom + radius_px)
        columns = np.flatnonzero(mask[upper:lower].any(axis=0))
        if columns.size == 0:
            continue
        left, right = max(0, columns[0] - radius_px), min(width, columns[-1] + 1 + radius_px)
        known = (~mask[upper:lower, left:right]).astype(np.uint8)
        distance = cv2.distanceTransform(known, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        result[top:bottom, left:right] |= distance[top - upper : bottom - upper] <= radius_px + 1e-3
    return result


def grow(mask: Mask, grow_px: int | None) -> Mask:
    """Return a mask grown as the recipe says: `grow_and_tell`, without the radius."""
    return grow_and_tell(mask, grow_px)[0]


def grow_and_tell(mask: Mask, grow_px: int | None) -> tuple[Mask, int]:
    """Grow a mask as the recipe says, and refuse one that leaves nothing to fill from.

    Args:
        mask: bool, (height, width), not empty.
        grow_px: None for the default, which gives way on pictures that are too small for it.

    Returns:
        The grown mask, and by how many pixels it was grown.

    Raises:
        RefusedError: `mask_covers_all`, above `COVERED_LIMIT`.
    """
    height, width = mask.shape
    radius = default_grow_px(width, height) if grow_px is None else grow_px
    result = grown(mask, radius)
    while grow_px is None and radius > 0 and result.mean() > COVERED_LIMIT:
        radius //= 2
        result = grown(mask, radius)
    covered = float(result.mean())
    if covered > COVERED_LIMIT:
        raise RefusedError(
            "mask_covers_all",
            f"the mark covers {covered:.0%} of the picture and leaves nothing to fill from",
            "mark only what is to go; in a mask white is filled and black stays (is it inverted? "
            "`invert = true` in the recipe says so)",
        )
    return result, radius


def note_of_inversion(mask: Mask) -> str | None:
    """Ask whether a mask over most of the picture is the wrong way round; None for an ordinary one."""
    covered = float(mask.mean())
    if covered <= MOSTLY_WHITE:
        return None
    return (
        f"the mask covers {covered:.0%} of the picture: white is what goes (is it inverted? `invert = true` "
        "in the recipe says so)"
    )


def erased(picture: Picture, pixels: Pixels) -> Mask | None:
    """Return what was erased from a decoded picture, or None where no pixel is fully transparent.

    An eraser's edge is antialiased, or soft. What it left half transparent still shows the object, and would
    stay as its outline around the fill: it was erased too. Half transparent pixels that no path of such
    pixels leads to, within `_ERASER_RIM_PX`, are the picture's own.
    """
    alpha = picture.alpha(pixels)
    if alpha is None:
        return None
    clear = alpha == 0
    if not clear.any():
        return None
    return _spread(clear, alpha < np.iinfo(alpha.dtype).max, _ERASER_RIM_PX)


def _spread(seeds: Mask, within: Mask, steps: int) -> Mask:
    """Return the pixels that lead to a seed by so many neighbours of which each is `within`."""
    reached: MatLike = seeds.view(np.uint8)
    allowed = within.view(np.uint8)
    neighbours = np.ones((3, 3), np.uint8)
    for _ in range(steps):
        wider = cv2.bitwise_and(cv2.dilate(reached, neighbours), allowed)
        if np.array_equal(wider, reached):
            break
        reached = wider
    return np.asarray(reached, np.uint8).view(np.bool_)
