"""Two pictures of the same thing made comparable: one size, one tone, one place, one sharpness.

What this module owns: everything that an editor, a phone or a messenger does to the whole of a picture when
it saves a copy. All of it is estimated from the two pictures and put into the first, so that what still
differs was drawn.

Rules of this module:
- Every estimate is robust: what was drawn on the copy is an outlier, and weighs little (Geman and McClure's
  weights, as in Black and Anandan, "The robust estimation of multiple motions", 1996).
- The first picture is made to look like the second, never the other way round.
- Work is done at the comparison size (`MOST_PX`): no plane of floats is as large as the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Motion = NDArray[np.float64]

MOST_PX: Final = 1_600_000
"""Pixels of the comparison: a stroke of 3 px on a phone's screen is still more than one wide."""
_TONE_SIDE_PX: Final = 96
_TONE_ROUNDS: Final = 7
_TONE_SPREAD: Final = 1.5 / 255
_RIDGE: Final = np.diag(np.array([0.0002] + [0.004] * 9 + [0.001] * 3, np.float32))
"""Keeps the tone curve near identity where the picture says nothing of it. Of twelve, those weights left the
rarest thousandth of colours nearest: 3 to 8 levels off after a change of gain, gamma, contrast or profile."""
_OFF_LEVELS: Final = 12
_PROFILE_GAIN: Final = 0.6
"""A conversion of profiles is believed where it leaves that much less of the picture off."""
_ALIGN_SIDES_PX: Final = (128, 512)
_ALIGN_ROUNDS: Final = 4
_LEAST_EDGES: Final = 60
_MOST_SHIFT_PX: Final = 4
"""More than resampling shifts by is no registration but another picture."""
_LEAST_SHIFT_PX: Final = 0.08
_EDGE_PX: Final = 0.75
"""So far beyond the picture's edge the copy still shows what is at the edge."""
_SHARPNESS: Final = (0.4, 2.5)
_KERNELS: Final = (cv2.INTER_AREA, cv2.INTER_LINEAR, cv2.INTER_NEAREST_EXACT, cv2.INTER_NEAREST)
_KERNEL_GAIN: Final = 0.85
_BAND_ROWS: Final = 128

_SRGB: Final = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""RGB to XYZ (IEC 61966-2-1); below those of Display P3 (SMPTE EG 432-1) and Adobe RGB (1998)."""
_DISPLAY_P3: Final = np.array([[0.4866, 0.2657, 0.1982], [0.2290, 0.6917, 0.0793], [0.0, 0.0451, 1.0439]])
_ADOBE_RGB: Final = np.array([[0.5767, 0.1856, 0.1882], [0.2974, 0.6273, 0.0753], [0.0270, 0.0707, 0.9911]])
_CONVERSIONS: Final = tuple(
    (np.linalg.inv(target) @ source).astype(np.float32)
    for wide in (_DISPLAY_P3, _ADOBE_RGB)
    for source, target in ((wide, _SRGB), (_SRGB, wide))
)
_STEPS: Final = 4096


def _linear_table() -> Floats:
    values = np.arange(256) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4).astype(np.float32)  # noqa: PLR2004 - IEC 61966-2-1


def _gamma_table() -> Rgb:
    values = np.arange(_STEPS + 1) / _STEPS
    curve = np.where(values <= 0.0031308, values * 12.92, 1.055 * values ** (1 / 2.4) - 0.055)  # noqa: PLR2004 - as above
    return np.clip(255 * curve + 0.5, 0, 255).astype(np.uint8)


_LINEAR: Final = _linear_table()
_GAMMA: Final = _gamma_table()


@dataclass(frozen=True, slots=True)
class Registration:
    """Two pictures of one size, the first as the editor that saved the second would have saved it.

    Attributes:
        picture: uint8, (height, width, 3).
        copy: likewise.
        tone_levels: how far the change of tone moved a pixel's colour: the median, in levels.
        motion: of the copy against the picture: x shift, x stretch, y shift, y stretch, as shares of the
            sides; stretches count from the middle to the edge.
    """

    picture: Rgb
    copy: Rgb
    tone_levels: float
    motion: Motion

    def shown(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the rows and the columns of the copy that lie within the picture."""
        height, width = self.copy.shape[:2]
        matrix = _matrix_of(self.motion, width, height)
        rows = np.arange(height) * matrix[1, 1] + matrix[1, 2]
        columns = np.arange(width) * matrix[0, 0] + matrix[0, 2]
        return _is_within(rows, height), _is_within(columns, width)

    def on_picture(self, mark: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Move a mark on the copy, bool, (height, width), to where it lies on the picture."""
        height, width = mark.shape
        sides = (width, width, height, height)
        if np.abs(self.motion * sides).max() < 0.25:  # noqa: PLR2004 - of a pixel: it would not move
            return mark
        matrix = _matrix_of(self.motion, width, height)
        moved = cv2.warpAffine(mark.astype(np.uint8), matrix, (width, height), flags=cv2.INTER_NEAREST)
        return np.asarray(moved > 0)


def register(picture: Rgb, copy: Rgb) -> Registration:
    """Make a picture and a copy of it comparable.

    Args:
        picture: uint8, (height, width, 3); not changed.
        copy: likewise; the same shape, maybe another size; not changed.
    """
    size = _comparison_size(picture, copy)
    small, other = _resampled_alike(picture, copy, size), _reduced(copy, size)
    toned, tone_levels = _toned_alike(small, other)
    motion = _motion_between(toned, other)
    placed = _placed(toned, motion)
    return Registration(_sharpened_alike(placed, other), other, tone_levels, motion)


def _is_within(places: NDArray[np.floating[Any]], side_px: int) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = (places >= -_EDGE_PX) & (places <= side_px - 1 + _EDGE_PX)
    return within


# --- size --------------------------------------------------------------------------------------------------


def _comparison_size(picture: Rgb, copy: Rgb) -> tuple[int, int]:
    height, width = picture.shape[:2]
    scale = min(1.0, copy.shape[1] / width, copy.shape[0] / height, (MOST_PX / (width * height)) ** 0.5)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _reduced(rgb: Rgb, size: tuple[int, int]) -> Rgb:
    if (rgb.shape[1], rgb.shape[0]) == size:
        return np.ascontiguousarray(rgb)
    return np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), np.uint8)


def _within(rgb: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    scale = min(1.0, side_px / max(rgb.shape[:2]))
    return _reduced(rgb, (max(1, round(rgb.shape[1] * scale)), max(1, round(rgb.shape[0] * scale))))


def _resampled_alike(picture: Rgb, copy: Rgb, size: tuple[int, int]) -> Rgb:
    """Reduce the picture in the way that the copy was, where the copy is small enough to show it."""
    height, width = copy.shape[:2]
    same = picture.shape[:2] == copy.shape[:2]
    if same or width > picture.shape[1] or width > 1.5 * size[0]:
        return _reduced(picture, size)
    wanted = _detail(copy)
    strength = np.abs(wanted)
    shown = strength >= max(3.0, float(np.quantile(strength[::3, ::3], 0.7)))
    best: tuple[float, Rgb] | None = None
    for kernel in _KERNELS:
        tried = np.asarray(cv2.resize(picture, (width, height), interpolation=kernel), np.uint8)
        off = float(np.median(np.abs(_detail(tried) - wanted)[shown])) if shown.any() else 0.0
        if best is None or off < _KERNEL_GAIN * best[0]:
            best = (off, tried)
    assert best is not None  # noqa: S101 - there are kernels
    return _reduced(best[1], size)


def _grey(rgb: Rgb) -> Floats:
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.float32)


def _detail(rgb: Rgb) -> Floats:
    grey = _grey(rgb)
    return grey - np.asarray(cv2.blur(grey, (5, 5)), np.float32)


# --- tone --------------------------------------------------------------------------------------------------


def _toned_alike(picture: Rgb, copy: Rgb) -> tuple[Rgb, float]:
    """Give the picture the copy's tone: a smooth curve of the colour, after a change of profile if any.

    Returns:
        The toned picture, and how far that moved a pixel's colour: the median, in levels.
    """
    small = _within(picture, _TONE_SIDE_PX)
    wanted = _reduced(copy, (small.shape[1], small.shape[0]))
    curve, off = _fitted_curve(small, wanted)
    conversion: Floats | None = None
    share, cost = _share_off(off), _capped(off)
    if share * small.shape[0] * small.shape[1] >= 4:  # noqa: PLR2004 - a few pixels are drawn, or noise
        for tried in _CONVERSIONS:
            other, other_off = _fitted_curve(_converted(small, tried), wanted)
            if _capped(other_off) < cost - 0.01 and _share_off(other_off) < _PROFILE_GAIN * share:
                conversion, curve, cost = tried, other, _capped(other_off)
    moved = np.abs(_with_curve(small, conversion, curve).astype(np.int16) - small).max(axis=-1)
    if not moved.any():
        return picture, 0.0
    return _with_curve(picture, conversion, curve), float(np.median(moved))


def _share_off(off: Floats) -> float:
    return float((off > _OFF_LEVELS).mean())


def _capped(off: Floats) -> float:
    return float(np.minimum(off, 2 * _OFF_LEVELS).mean())


def _features(rgb: Floats) -> Floats:
    """What a tone curve is made of: a constant, the colour, its products and its square roots."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    products = (red * red, green * green, blue * blue, red * green, green * blue, red * blue)
    roots = np.sqrt(rgb)
    parts = (np.ones_like(red), red, green, blue, *products, roots[..., 0], roots[..., 1], roots[..., 2])
    return np.stack(parts, axis=-1)


def _fitted_curve(picture: Rgb, wanted: Rgb) -> tuple[Floats, Floats]:
    """Fit the curve by weighted least squares, weights anew in each round; tell how far pixels are off."""
    before, after = _as_shares(picture.reshape(-1, 3)), _as_shares(wanted.reshape(-1, 3))
    features, change = _features(before), after - before
    curve = np.zeros((features.shape[1], 3), np.float32)
    curve[0] = np.median(change, axis=0)
    for _ in range(_TONE_ROUNDS):
        off = np.abs(change - features @ curve).max(axis=1)
        weights = _weights(off, max(_TONE_SPREAD, 1.5 * float(np.median(off))))
        weighted = features * weights[:, np.newaxis]
        normal = weighted.T @ features + _RIDGE * weights.sum()
        curve = np.linalg.solve(normal, weighted.T @ change).astype(np.float32)
    off = np.abs(np.clip(before + features @ curve, 0, 1) - after).max(axis=1)
    return curve, off * np.float32(255)


def _as_shares(rgb: Rgb) -> Floats:
    return rgb.astype(np.float32) / np.float32(255)


def _weights(off: Floats, spread: float) -> Floats:
    return np.asarray(1 / (1 + (off / spread) ** 2) ** 2, np.float32)


def _converted(rgb: Rgb, conversion: Floats | None) -> Rgb:
    if conversion is None:
        return rgb
    linear = np.asarray(cv2.transform(_LINEAR[rgb], conversion), np.float32)
    return np.asarray(_GAMMA[np.clip(linear * _STEPS + 0.5, 0, _STEPS).astype(np.uint16)])


def _with_curve(rgb: Rgb, conversion: Floats | None, curve: Floats) -> Rgb:
    toned = np.empty_like(rgb)
    for top in range(0, len(rgb), _BAND_ROWS):
        band = _as_shares(_converted(rgb[top : top + _BAND_ROWS], conversion))
        values = (band + _features(band) @ curve) * 255
        toned[top : top + _BAND_ROWS] = np.clip(values + 0.5, 0, 255).astype(np.uint8)
    return toned


# --- place -------------------------------------------------------------------------------------------------


def _motion_between(picture: Rgb, copy: Rgb) -> Motion:
    """Estimate by what fractions of a pixel the copy is shifted and stretched, coarse to fine."""
    motion = np.zeros(4)
    for side_px in _ALIGN_SIDES_PX:
        motion = _refined(motion, _within(picture, side_px), _within(copy, side_px))
    return motion


def _placed(picture: Rgb, motion: Motion) -> Rgb:
    height, width = picture.shape[:2]
    if np.abs(motion * (width, width, height, height)).max() <= _LEAST_SHIFT_PX:
        return picture
    return np.asarray(_moved(picture, motion), np.uint8)


def _moved(plane: Rgb | Floats, motion: Motion) -> NDArray[Any]:
    height, width = plane.shape[:2]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    matrix = _matrix_of(motion, width, height)
    return cv2.warpAffine(plane, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _matrix_of(motion: Motion, width: int, height: int) -> Floats:
    """Return the affine matrix (2, 3) from pixels of the copy to pixels of the picture."""
    x, stretch_x, y, stretch_y = motion
    return np.array(
        [
            [1 + 2 * stretch_x * width / max(1, width - 1), 0, (x - stretch_x) * width],
            [0, 1 + 2 * stretch_y * height / max(1, height - 1), (y - stretch_y) * height],
        ],
        np.float32,
    )


def _refined(motion: Motion, picture: Rgb, copy: Rgb) -> Motion:
    """Better a motion by Lucas and Kanade's method on edges (1981), or leave it where that does not help."""
    if min(picture.shape[:2]) < 24:  # noqa: PLR2004 - too small to tell a shift
        return motion
    one, other = _banded(picture), _banded(copy)
    height, width = one.shape
    across = np.linspace(-1, 1, width, dtype=np.float32)[np.newaxis] + np.zeros_like(one)
    down = np.linspace(-1, 1, height, dtype=np.float32)[:, np.newaxis] + np.zeros_like(one)
    moved = np.asarray(_moved(one, motion), np.float32)
    off, slope_x, slope_y = other - moved, _slope(moved, 1, 0), _slope(moved, 0, 1)
    steep = np.hypot(slope_x, slope_y)
    edge = steep >= max(2.0, float(np.quantile(steep, 0.8)))
    if int(edge.sum()) < _LEAST_EDGES:
        return motion
    spread = max(2.0, 1.5 * float(np.median(np.abs(off[edge]))))
    first_cost = float(np.minimum(np.abs(off[edge]), 3 * spread).mean())
    tried = motion.copy()
    for _ in range(_ALIGN_ROUNDS):
        parts = (slope_x * width, slope_x * across * width, slope_y * height, slope_y * down * height)
        jacobian = np.stack(parts, axis=-1)[edge].astype(np.float64)
        weighted = jacobian * _weights(off, spread)[edge][:, np.newaxis]
        normal = weighted.T @ jacobian
        normal += np.diag(np.diag(normal)) * np.array([0.0, 0.02, 0.0, 0.02]) + np.eye(4) * 1e-3
        step = np.linalg.solve(normal, weighted.T @ off[edge])
        tried = tried + step
        moved = np.asarray(_moved(one, tried), np.float32)
        off, slope_x, slope_y = other - moved, _slope(moved, 1, 0), _slope(moved, 0, 1)
        if max(abs(step[0]) * width, abs(step[2]) * height) < 0.02:  # noqa: PLR2004 - of a pixel: there
            break
    cost = float(np.minimum(np.abs(off[edge]), 3 * spread).mean())
    reach = (abs(tried[0]) + abs(tried[1])) * width, (abs(tried[2]) + abs(tried[3])) * height
    return tried if cost < 0.9 * first_cost - 0.05 and max(reach) < _MOST_SHIFT_PX else motion


def _banded(rgb: Rgb) -> Floats:
    """Return the grey picture without its finest and its coarsest detail."""
    fine = np.asarray(cv2.GaussianBlur(_grey(rgb), (0, 0), 1.2), np.float32)
    return fine - np.asarray(cv2.blur(fine, (9, 9)), np.float32)


def _slope(grey: Floats, x: int, y: int) -> Floats:
    return np.asarray(cv2.Scharr(grey, cv2.CV_32F, x, y), np.float32) / np.float32(32)


# --- sharpness ---------------------------------------------------------------------------------------------


def _sharpened_alike(picture: Rgb, copy: Rgb) -> Rgb:
    """Sharpen or soften the picture as much as the copy was."""
    fine, other = _fine(picture), _fine(copy)
    strength = np.abs(fine)
    shown = strength > max(3.0, float(np.quantile(strength[::3, ::3], 0.8)))
    if int(shown.sum()) < 50:  # noqa: PLR2004 - nothing to tell it by
        return picture
    low, high = _SHARPNESS
    gain = min(max(float(np.median(other[shown] / fine[shown])), low), high)
    if abs(gain - 1) < 0.06:  # noqa: PLR2004 - what JPEG does anyway
        return picture
    soft = cv2.GaussianBlur(picture, (0, 0), 1.0)
    return np.asarray(cv2.addWeighted(picture, gain, soft, 1 - gain, 0), np.uint8)


def _fine(rgb: Rgb) -> Floats:
    grey = _grey(rgb)
    return grey - np.asarray(cv2.GaussianBlur(grey, (0, 0), 1.0), np.float32)
