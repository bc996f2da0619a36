"""What would go, laid over the picture: for people, before anything is filled.

Rules of this module:
- The mark is tinted strongly, the ring that it is grown by weakly, and both are outlined together; each crop
  that the model would see is a dashed frame. Lines are as thick as the picture is large.
- Where the picture is fully transparent, a chequerboard shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

TINT = (0, 200, 255)
"""Cyan: rare in pictures, and told from red and green by everybody."""
_MARK_SHARE, _RING_SHARE = 0.65, 0.3
_CHEQUER = (230, 180)
_CHEQUER_PX = 8
_LINE_SHARE = 1 / 800
_BAND_ROWS = 512
_DASHES_PER_LINE = 6


def overlay(
    rgb: Rgb, mark: Mask, hole: Mask, crops: Sequence[tuple[int, int, int, int]], clear: Mask | None = None
) -> Rgb:
    """Return a picture with what would go laid over it.

    Args:
        rgb: uint8, (height, width, 3), viewed orientation; not changed.
        mark: bool, (height, width): what was marked.
        hole: the grown mark.
        crops: left, top, right, bottom of each box that the model would see, the last two exclusive.
        clear: fully transparent pixels, or None.
    """
    drawn = rgb.copy(order="C")
    if clear is not None:
        _chequer(drawn, clear)
    line_px = max(1, round(max(hole.shape) * _LINE_SHARE))
    _tint(drawn, mark, hole)
    outline = _outline(hole, line_px)
    drawn[outline] = TINT
    for box in crops:
        _frame(drawn, box, line_px)
    return drawn


def _chequer(drawn: Rgb, clear: Mask) -> None:
    rows, columns = np.nonzero(clear)
    square = (rows // _CHEQUER_PX + columns // _CHEQUER_PX) % 2
    drawn[rows, columns] = np.array(_CHEQUER, np.uint8)[square][:, np.newaxis]


def _tint(drawn: Rgb, mark: Mask, hole: Mask) -> None:
    for top in range(0, len(drawn), _BAND_ROWS):
        rows = slice(top, top + _BAND_ROWS)
        for where, share in ((mark[rows], _MARK_SHARE), (hole[rows] & ~mark[rows], _RING_SHARE)):
            blended = drawn[rows][where] * (1 - share) + np.array(TINT) * share
            drawn[rows][where] = blended.astype(np.uint8)


def _outline(hole: Mask, line_px: int) -> Mask:
    """Return the hole's pixels that lie within a line's width of its border."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * line_px + 1, 2 * line_px + 1))
    inner = cv2.erode(hole.astype(np.uint8), kernel, borderType=cv2.BORDER_CONSTANT, borderValue=(1,))
    outline: Mask = hole & (inner == 0)
    return outline


def _frame(drawn: Rgb, box: tuple[int, int, int, int], line_px: int) -> None:
    """Draw a box's border in black and white dashes, inside of it: seen on every ground."""
    left, top, right, bottom = box
    part = drawn[top:bottom, left:right]
    dash_px = _DASHES_PER_LINE * line_px
    across = _dashes(right - left, dash_px)
    down = _dashes(bottom - top, dash_px)[:, np.newaxis]
    part[:line_px], part[-line_px:] = across, across
    part[:, :line_px], part[:, -line_px:] = down, down


def _dashes(length_px: int, dash_px: int) -> NDArray[np.uint8]:
    is_white = np.arange(length_px) // dash_px % 2 == 0
    return np.where(is_white, np.uint8(255), np.uint8(0))[:, np.newaxis]
