"""When two pictures have the same shape: the one rule for masks, marked copies and sidecars."""

from __future__ import annotations

from typing import Final

MAX_SKEW: Final = 0.05
"""The size of the smaller picture was rounded to whole pixels; that may not be a larger share of its side."""


def is_same_shape(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether one size is the other, scaled: to one pixel of the smaller, which is what scaling rounds to.

    Args:
        one: width and height.
        other: likewise.
    """
    small, large = sorted((one, other))
    wanted = (large[0] * small[1] / large[1], large[1] * small[0] / large[0])
    return any(abs(side - want) <= min(1, MAX_SKEW * side) for side, want in zip(small, wanted, strict=True))
