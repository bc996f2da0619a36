"""Whether a fill may be written: what a broken model gives is told from what a flat place looks like.

Rules of this module:
- A fill of one colour is right where the picture is flat: a clear sky, white paper, a window's background.
  There the colour lies around the hole, flat as well. Where it does not, the fill is nonsense: black, white,
  or whatever else numbers that overflowed were made into.
- What is not a number never comes here: engines look before they round to bytes.

Measured: of 1824 fills by patchmatch, Navier-Stokes and Telea in 304 photographs, screenshots and drawings
195 were of one colour, and none was taken for nonsense. A hole made black was found out in 79 of 100, made
magenta in 99; the others had such a place around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop

    Mask = NDArray[np.bool_]
    Rgb = NDArray[np.uint8]

LEAST_PX: Final = 64
"""Of smaller holes one colour says nothing."""
ONE_COLOUR_SHARE: Final = 0.98
NEAR_PX: Final = 32
"""So far around the hole its colour is looked for."""
ALIKE_LEVELS: Final = 6
"""What counts as that colour. With 0, 3, 6 and 12 no good fill was refused, and black found out in 85, 82, 79
and 74 of 100: 6 leaves room for the grain of a night sky."""
FLAT_SIDE_PX: Final = 5
"""A square of this side, all of that colour, is a flat place; a texture that passes through it has none."""
_PROBES: Final = 33


def nonsense_in(filled: Rgb, crop: Crop) -> str | None:
    """Say why a fill is not to be written, or nothing.

    Args:
        filled: uint8, (height, width, 3).
        crop: what was filled.
    """
    inside = filled[crop.hole]
    colour = _one_colour(inside)
    if colour is None or _lies_around(colour, crop):
        return None
    named = {(0, 0, 0): "black", (255, 255, 255): "white"}.get(colour, f"one colour, {colour},")
    return f"the hole came back {named} all over, and nothing around it looks like that"


def _one_colour(inside: Rgb) -> tuple[int, int, int] | None:
    """Return the colour that nearly all of the pixels (n, 3) have, if they do."""
    if len(inside) < LEAST_PX:
        return None
    probes = inside[np.linspace(0, len(inside) - 1, _PROBES).astype(np.intp)]
    colours, counts = np.unique(probes, axis=0, return_counts=True)
    colour = colours[counts.argmax()]
    if counts.max() * 2 < _PROBES:
        return None
    share = np.count_nonzero((inside == colour).all(axis=1)) / len(inside)
    red, green, blue = colour.tolist()
    return (red, green, blue) if share >= ONE_COLOUR_SHARE else None


def _lies_around(colour: tuple[int, int, int], crop: Crop) -> bool:
    """Whether there is a flat place of about this colour near the hole, or nothing to compare with."""
    side = 2 * NEAR_PX + 1
    near = cv2.dilate(crop.hole.astype(np.uint8), np.ones((side, side), np.uint8))
    known = near * (~crop.hole).astype(np.uint8)
    least, most = (np.clip(np.array(colour) + change, 0, 255) for change in (-ALIKE_LEVELS, ALIKE_LEVELS))
    alike = cv2.inRange(crop.pixels, least.astype(np.float64), most.astype(np.float64))
    if not _has_square(known):
        return not known.any() or bool((alike[known > 0] > 0).any())
    return _has_square(cv2.bitwise_and(known, alike))


def _has_square(chosen: NDArray[np.uint8] | cv2.typing.MatLike) -> bool:
    square = np.ones((FLAT_SIDE_PX, FLAT_SIDE_PX), np.uint8)
    return bool(cv2.erode(chosen, square, borderType=cv2.BORDER_CONSTANT, borderValue=(0,)).any())
