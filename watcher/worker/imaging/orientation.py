"""How a picture lies: stored pixels to what a person sees, and back (EXIF 2.32, tag 274)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)

_TURNS: dict[int, Callable[[Any], Any]] = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


def to_viewed(stored: NDArray[_T], orientation: int) -> NDArray[_T]:
    """Turn an array (height, width, ...) from stored to viewed orientation (EXIF 2.32, tag 274); a view."""
    turn = _TURNS.get(orientation)
    turned: NDArray[_T] = stored if turn is None else turn(stored)
    return turned


def viewed_box(
    box: tuple[int, int, int, int], orientation: int, stored_size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return where a box of the stored picture is seen.

    Args:
        box: left, top, right and bottom, the last two exclusive.
        orientation: 1 to 8.
        stored_size: width and height as stored.
    """
    left, top, right, bottom = box
    width, height = stored_size
    if orientation in {2, 3, 7, 8}:  # mirrored along the rows
        left, right = width - right, width - left
    if orientation in {3, 4, 6, 7}:  # and along the columns
        top, bottom = height - bottom, height - top
    return (top, left, bottom, right) if orientation in {5, 6, 7, 8} else (left, top, right, bottom)


def to_stored(viewed: NDArray[_T], orientation: int) -> NDArray[_T]:
    """Turn an array from viewed to stored orientation; the inverse of `to_viewed`."""
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    return to_viewed(viewed, inverse)
