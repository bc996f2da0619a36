"""Where a marked copy differs from its picture: what a person has drawn on it, in whatever colours.

Words: *activity* is how much the picture varies around a pixel; *noise* is how far pixels of that activity
are off on the whole, so that what a lossy format does to edges is no mark. Strengths are counted in noise.
Rules of this module:
- The two pictures are made alike first (`registration`); what differs then was drawn.
- Three signs are looked for. A pixel that leaves the range of its neighbours in the picture (strokes,
  letters, anything with an edge of its own); a mean that is off over some pixels (a highlighter); detail that
  is in the picture and not in the copy (a black-out, a blurred or pixelated part).
- A sign counts where enough of it is strong, and then as far as it is weak: noise has no strong core.
- A copy whose rest has nothing to do with the picture, or that differs nearly everywhere, is refused: it is
  another picture, or a filter was laid over it, and what was drawn cannot be told from that.
- The mark is at the picture's own size, and as fine as the comparison was.

Limits: what was drawn in the colour that was there is no difference; a blurred or pixelated part is found
where it had detail; lines of less than 3 px in the copy may be lost in its noise, and so may a small dot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from watcher.worker.imaging.refusals import RefusedError
from watcher.worker.imaging.registration import Registration, register
from watcher.worker.imaging.shapes import is_same_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]
    Plane = NDArray[np.uint8]
    Floats = NDArray[np.float32]

NOISE_FLOOR: Final = 4.0
"""Levels that no picture is without once it was saved as a JPEG."""
NOISE_QUANTILE: Final = 0.7
RANGE_WEAK, RANGE_STRONG, RANGE_CORE_PX = 2.0, 4.5, 12
MEAN_WEAK, MEAN_STRONG, MEAN_CORE_PX = 2.4, 4.2, 60
"""In noise; and how many strong pixels a mark has at least. Set so that no copy of 100 photos in 30 kinds of
saving shows any."""
LOST_WEAK, LOST_STRONG, LOST_CORE_PX = 0.45, 0.25, 100
"""What is left of the contrast, as a share of what is left of it elsewhere."""
LOST_SHARE: Final = 0.5
"""Lost detail counts only if that share of it is in such patches; else it is lost to noise all over."""
KEPT_CONTRAST: Final = 0.85
"""A copy that has lost more contrast than this all over says nothing of where it was lost."""
DETAIL_VARIANCE: Final = 100
"""Variance of luma from which on a place has detail that can be lost."""
RIM_STRENGTH, RIM_PX = 1.6, 9
"""What is that much off beside a mark belongs to it: the antialiased rim, the smear of chroma."""
GAP_PX: Final = 5
LOST_GAP_PX: Final = 25
MOST_SHARE: Final = 0.6
FAR_LEVELS: Final = 16
"""The mean of 5 x 5 px outside the mark is hardly ever that far off in a copy that was only saved again."""
MOST_FAR, LEAST_CORRELATION, MOST_TONE_LEVELS = 0.015, 0.8, 30.0
"""What is agreed outside the mark where something was drawn: the share of pixels that are far off, the median
correlation of luma where there is detail, and how much the tone of all of it was changed."""
MOST_FAR_UNDRAWN, LEAST_CORRELATION_UNDRAWN, MOST_TONE_LEVELS_UNDRAWN = 0.15, 0.5, 60.0
"""Likewise where nothing was: a copy that is only odd holds the picture, and is not refused."""
_ACTIVITIES: Final = np.digitize(np.arange(256), (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)).astype(
    np.uint8
)
_CLASSES: Final = 12
_CLASS_PX: Final = 300
"""A class of activity with fewer samples borrows from its neighbours."""
_STEPS_A_LEVEL: Final = 4
_VARIANCES: Final = (100, 200, 400, 800, 1600, 3200)
_SIDE_PX: Final = 11
_BAND_ROWS: Final = 512
_REMEDY: Final = (
    "scribble on the picture itself, without a filter or a crop, and save that beside it under its name with "
    "`.marked` before the suffix"
)


@dataclass(frozen=True, slots=True)
class _Signs:
    """How strongly each pixel of the comparison differs, in noise.

    Attributes:
        range: how far it leaves the range of its neighbours in the picture.
        mean: how far the mean of 5 x 5 pixels is off.
        lost: 0, 1 or 2: whether the detail around it is missing, weakly or strongly.
        off: how far the pixel itself is off.
        levels: how far the mean of 5 x 5 pixels is off, in levels.
        correlation: of the luma around it in the two pictures; NaN where neither has detail.
    """

    range: Floats
    mean: Floats
    lost: Plane
    off: Floats
    levels: Floats
    correlation: Floats


def find_difference(picture: Rgb, copy: Rgb) -> Mask | None:
    """Return where a copy was drawn on, or None where it was not.

    Args:
        picture: uint8, (height, width, 3), viewed orientation.
        copy: likewise, of the same shape and maybe another size.

    Returns:
        bool, (height, width) of the picture.

    Raises:
        RefusedError: `mask_mismatch`: the copy has another shape, is of another picture, or differs nearly
            everywhere.
    """
    _check_shape(picture, copy)
    if _is_equal(picture, copy):
        return None
    pair = register(picture, copy)
    signs = _signs(pair)
    mark = _with_rims(*_marked(signs), signs)
    _check_rest(mark, signs, pair.tone_levels)
    if not mark.any():
        return None
    return _enlarged(pair.on_picture(mark), picture.shape[1], picture.shape[0])


def _is_equal(one: Rgb, other: Rgb) -> bool:
    """Compare in bands: no plane of truths is as large as the picture."""
    if one.shape != other.shape:
        return False
    tops = range(0, one.shape[0], _BAND_ROWS)
    return all(np.array_equal(one[top : top + _BAND_ROWS], other[top : top + _BAND_ROWS]) for top in tops)


def _enlarged(mark: Mask, width: int, height: int) -> Mask:
    if mark.shape == (height, width):
        return mark
    grey = mark.astype(np.uint8) * np.uint8(255)
    return np.asarray(cv2.resize(grey, (width, height), interpolation=cv2.INTER_LINEAR) >= 128)  # noqa: PLR2004 - half


# --- what is no marked copy --------------------------------------------------------------------------------


def _check_shape(picture: Rgb, copy: Rgb) -> None:
    (height, width), (copy_height, copy_width) = picture.shape[:2], copy.shape[:2]
    if not is_same_shape((width, height), (copy_width, copy_height)):
        raise RefusedError(
            "mask_mismatch",
            f"the marked copy is {copy_width}x{copy_height} and the picture is {width}x{height} as it is "
            "seen: it was cropped, or is of another picture",
            _REMEDY,
        )


def _check_rest(mark: Mask, signs: _Signs, tone_levels: float) -> None:
    share = float(mark.mean())
    if share > MOST_SHARE:
        raise RefusedError(
            "mask_mismatch",
            f"the marked copy differs from the picture in {share:.0%} of it: it is of another picture, or a "
            "filter was laid over it",
            _REMEDY,
        )
    correlation, far = _agreement(~_dilated(mark, RIM_PX), signs)
    is_drawn = bool(mark.any())
    if correlation < LEAST_CORRELATION_UNDRAWN or (is_drawn and correlation < LEAST_CORRELATION):
        raise RefusedError(
            "mask_mismatch",
            "the marked copy shows something else than the picture: it is of another picture, or it was "
            "cropped, turned or mirrored",
            _REMEDY,
        )
    is_toned = tone_levels > (MOST_TONE_LEVELS if is_drawn else MOST_TONE_LEVELS_UNDRAWN)
    if far > (MOST_FAR if is_drawn else MOST_FAR_UNDRAWN) or is_toned:
        raise RefusedError(
            "mask_mismatch",
            "the marked copy differs from the picture not in strokes but as a whole: a filter or an "
            "automatic enhancement was laid over it",
            _REMEDY,
        )


def _agreement(rest: Mask, signs: _Signs) -> tuple[float, float]:
    """Return the median correlation and the share of pixels that are far off, both outside the mark."""
    detailed = signs.correlation[rest & ~np.isnan(signs.correlation)]
    correlation = float(np.median(detailed)) if detailed.size > 50 else 1.0  # noqa: PLR2004 - enough to tell
    levels = signs.levels[rest]
    return correlation, float((levels > FAR_LEVELS).mean()) if levels.size else 0.0


# --- signs -------------------------------------------------------------------------------------------------


def _signs(pair: Registration) -> _Signs:
    before = np.asarray(cv2.cvtColor(pair.picture, cv2.COLOR_RGB2YCrCb), np.uint8)
    after = np.asarray(cv2.cvtColor(pair.copy, cv2.COLOR_RGB2YCrCb), np.uint8)
    shape = before.shape[:2]
    out_of_range, mean, off, levels = (np.zeros(shape, np.float32) for _ in range(4))
    for channel in range(3):
        one = np.ascontiguousarray(before[..., channel])
        other = np.ascontiguousarray(after[..., channel])
        activity = _ACTIVITIES[cv2.dilate(one, _square(7)) - cv2.erode(one, _square(7))]
        difference = other.astype(np.float32) - one
        noise = NOISE_FLOOR + _noise(np.abs(difference), activity)
        np.maximum(off, np.abs(difference) / noise, out=off)
        excess = np.abs(_excess(one, other, 3 if channel == 0 else 5))
        np.maximum(out_of_range, excess / noise, out=out_of_range)
        means = np.abs(np.asarray(cv2.blur(difference, (5, 5)), np.float32))
        np.maximum(levels, means, out=levels)
        np.maximum(mean, means / (NOISE_FLOOR + _noise(means, activity)), out=mean)
    lost, correlation = _lost_detail(before[..., 0].astype(np.float32), after[..., 0].astype(np.float32))
    signs = _Signs(out_of_range, mean, lost, off, levels, correlation)
    _hide_beyond(signs, *pair.shown())
    return signs


def _hide_beyond(signs: _Signs, rows: NDArray[np.bool_], columns: NDArray[np.bool_]) -> None:
    """Take the signs back where a shifted copy shows more than the picture: there is nothing to compare."""
    if rows.all() and columns.all():
        return
    for plane in (signs.range, signs.mean, signs.lost, signs.off, signs.levels):
        plane[~_eroded(rows)] = 0
        plane[:, ~_eroded(columns)] = 0


def _eroded(line: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shrink by what a mean of 5 x 5 reaches across; the ends of the line count as True."""
    hidden = np.convolve(~line, np.ones(5), mode="same") > 0
    return ~hidden


def _square(side_px: int) -> Plane:
    return np.ones((side_px, side_px), np.uint8)


def _excess(one: Plane, other: Plane, side_px: int) -> Floats:
    """Return how far a plane lies above or below the other's range around each pixel, averaged over 3 x 3."""
    above = cv2.subtract(other, cv2.dilate(one, _square(side_px)))
    below = cv2.subtract(cv2.erode(one, _square(side_px)), other)
    return np.asarray(cv2.blur(above.astype(np.float32) - below, (3, 3)), np.float32)


def _noise(off: Floats, activity: Plane) -> Floats:
    """Return for each pixel how far pixels of its activity are off: `NOISE_QUANTILE` of a sample of them."""
    steps = np.minimum(off[::2, ::3] * _STEPS_A_LEVEL, 255).astype(np.intp)
    places = activity[::2, ::3].astype(np.intp) * 256 + steps
    counts = np.bincount(places.ravel(), minlength=_CLASSES * 256).reshape(_CLASSES, 256)
    levels = np.zeros(256, np.float32)
    for number in range(_CLASSES):
        summed = np.cumsum(_with_neighbours(counts, number).sum(axis=0))
        levels[number] = np.searchsorted(summed, NOISE_QUANTILE * summed[-1]) / _STEPS_A_LEVEL
    return np.asarray(cv2.LUT(activity, levels), np.float32)


def _with_neighbours(counts: NDArray[np.intp], number: int) -> NDArray[np.intp]:
    """Return the rows of a class, and of as many beside it as it takes for `_CLASS_PX` samples."""
    first, last = number, number
    while counts[first : last + 1].sum() < _CLASS_PX and (first > 0 or last < _CLASSES - 1):
        first, last = max(0, first - 1), min(_CLASSES - 1, last + 1)
    return counts[first : last + 1]


def _lost_detail(one: Floats, other: Floats) -> tuple[Plane, Floats]:
    """Return where detail is missing (0, 1, 2), and the correlation of the two around each pixel."""
    mean_one, mean_other = _mean(one), _mean(other)
    variance = _mean(one * one) - mean_one * mean_one
    covariance = _mean(one * other) - mean_one * mean_other
    spread = _mean(other * other) - mean_other * mean_other
    detailed = variance > DETAIL_VARIANCE
    correlation = np.full(one.shape, np.nan, np.float32)
    either = detailed | (spread > DETAIL_VARIANCE)
    correlation[either] = covariance[either] / np.sqrt((variance[either] + 9) * (spread[either] + 9))
    lost = np.zeros(one.shape, np.uint8)
    if int(detailed.sum()) > 50:  # noqa: PLR2004 - enough to tell
        kept = covariance / (variance + 16)
        if float(np.median(kept[detailed])) > KEPT_CONTRAST:
            share = kept / _usual(kept, variance)
            lost[detailed & (share < LOST_WEAK)] = 1
            lost[detailed & (share < LOST_STRONG)] = 2
    return lost, correlation


def _mean(plane: Floats) -> Floats:
    return np.asarray(cv2.blur(plane, (_SIDE_PX, _SIDE_PX)), np.float32)


def _usual(kept: Floats, variance: Floats) -> Floats:
    """Return what is left of the contrast on the whole, where there is as much of it."""
    classes = np.zeros(variance.shape, np.uint8)
    for least in _VARIANCES:
        classes += variance >= least
    sampled, sampled_classes = kept[::2, ::3], classes[::2, ::3]
    usual = np.ones(len(_VARIANCES) + 1, np.float32)
    for number in range(len(usual)):
        sample = sampled[sampled_classes == number]
        if sample.size > 20:  # noqa: PLR2004 - enough for a median
            usual[number] = np.clip(np.median(sample), 0.5, 1.0)
    return np.asarray(cv2.LUT(classes, np.resize(usual, 256)), np.float32)


# --- from signs to a mark ----------------------------------------------------------------------------------


def _marked(signs: _Signs) -> tuple[Mask, Mask]:
    """Return the patches with a strong core, and those of them whose detail was lost."""
    weak = (signs.range > RANGE_WEAK) | (signs.mean > MEAN_WEAK) | (signs.lost > 0)
    count, labels = cv2.connectedComponents(weak.astype(np.uint8), connectivity=8)

    def strong_px(where: Mask) -> NDArray[np.intp]:
        return np.bincount(labels[where], minlength=count)

    lost_px = strong_px(signs.lost > 1)
    lost = lost_px >= LOST_CORE_PX
    if lost_px[lost].sum() < LOST_SHARE * np.count_nonzero(signs.lost):
        lost[:] = False
    kept = (
        (strong_px(signs.range > RANGE_STRONG) >= RANGE_CORE_PX)
        | (strong_px(signs.mean > MEAN_STRONG) >= MEAN_CORE_PX)
        | lost
    )
    kept[0] = lost[0] = False  # what is not even weak
    return np.asarray(kept[labels]), np.asarray(lost[labels])


def _with_rims(patches: Mask, lost: Mask, signs: _Signs) -> Mask:
    """Add what belongs to the patches: rims, and the gaps within a stroke or a part whose detail was lost."""
    if not patches.any():
        return patches
    drawn = patches | (_dilated(patches, RIM_PX) & (signs.off > RIM_STRENGTH))
    if lost.any():
        drawn |= _closed(lost, LOST_GAP_PX)
    drawn = _closed(drawn, GAP_PX)
    count, labels = cv2.connectedComponents(drawn.astype(np.uint8), connectivity=8)
    belongs = np.zeros(count, np.bool_)
    belongs[np.unique(labels[patches])] = True
    return np.asarray(belongs[labels] & drawn)


def _disc(side_px: int) -> Plane:
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side_px, side_px)), np.uint8)


def _dilated(mask: Mask, side_px: int) -> Mask:
    return np.asarray(cv2.dilate(mask.astype(np.uint8), _disc(side_px)) > 0)


def _closed(mask: Mask, side_px: int) -> Mask:
    return np.asarray(cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, _disc(side_px)) > 0)
