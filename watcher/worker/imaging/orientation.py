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


def to_stored(viewed: NDArray[_T], orientation: int) -> NDArray[_T]:
    """Turn an array from viewed to stored orientation; the inverse of `to_viewed`."""
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    return to_viewed(viewed, inverse)
