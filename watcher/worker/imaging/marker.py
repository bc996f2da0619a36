"""Strokes of a marker colour: where a person painted over what is to go, in one pure colour.

What this module owns: the rule that tells a painted stroke from a colour of the picture. Pixels are compared
in luma and chroma (ITU-R BT.601, as in JPEG), since lossy formats keep the one and blur the other. Words: the
*marker* is the colour that was agreed on; a pixel is *near*, *pure* or *exact* by how far it is from it; a
*patch* is a group of near pixels; its *fade* is the mean chroma along the marker's hue, by distance from it.

Rules of this module:
- A stroke is flat: its luma and hue scatter by no more than what a lossy format does to one colour, and
  their mean is the marker's.
- A stroke is solid: enough of it is pure. How much depends on its width, since halved chroma takes the
  colour from a hairline.
- A stroke ends: what lies around it has another colour. Its halo (antialiased rim, a soft brush's edge, the
  chroma that a JPEG spreads) is as wide as its fade says, measured on the picture itself, and goes with it.
- One patch must be large enough to be drawn on purpose, or nearly all that is near must be strokes: then
  the colour is foreign to the picture, and specks of it count, too.
- Solid pure colour that is no stroke makes it uncertain what is one: the picture is refused, not guessed
  at.
- Full-frame planes are of one byte a pixel; all else is done in bands, on pixels that are near, or on
  cells.

Limits, as measured by `benchmarks/marker_colour.py`:
- Strokes are found from 3.5 px width on in a JPEG of quality 75 with halved chroma and in anything better
  (of 3.0 px, two in three), nearly always from 4 px on at quality 50, from 2 px on where chroma is not halved
  and from 1 px on where nothing is lost. Width is that in the saved picture: a stroke of 7 px in a photo that
  is then halved has 3.5.
- A flat panel, letter or bar of exactly the marker's colour (a screenshot, a chart, a test card, a photo
  whose saturation was driven until its colours clip) is a stroke by this rule, and goes. Take another
  colour for such pictures, or a mask file.
- What touches a stroke and is of a colour like it goes with it, up to some 12 px from a wide one.
- A half-transparent marker (a highlighter), and a brush so soft that little of it is opaque, have no colour
  of their own: they are not found, or refused where their middle is pure.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageCms

from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Sums = NDArray[np.float64]
    Indices = NDArray[np.intp]

Colour = tuple[int, int, int]
"""Red, green and blue, 0..255."""

LEAST_CHROMA: Final = 60.0
"""Of a colour that can be a marker, in levels. Below it (black, white, greys, browns) photographs are full
of flat areas of the colour: of 330 of them 138 have black and 226 white that would count as strokes or make
them uncertain, and 15 a light brown of 35; of the saturated colours none has any but where somebody drew
it."""


class _Tolerance(NamedTuple):
    """How far a pixel may be from the marker, in levels of luma and chroma (of 255).

    Attributes:
        faded: share of the marker's chroma that may be missing.
        chroma: levels that chroma may differ across the marker's hue, and be stronger.
        luma: levels that luma may differ.
    """

    faded: float
    chroma: float
    luma: float

    def faded_levels(self, chroma: float) -> float:
        """Levels that may be missing from a marker of so much chroma."""
        return max(self.faded * chroma, self.chroma)


_NEAR, _PURE, _EXACT = 1, 2, 3
_TOLERANCES: Final = {
    _NEAR: _Tolerance(0.40, 24, 28),
    _PURE: _Tolerance(0.15, 16, 16),
    _EXACT: _Tolerance(0.06, 8, 8),
}
"""Near: nine tenths of the inside of a stroke of 3 px, at quality 75 with halved chroma (which leaves 0.65
to 0.93 of the marker's). Pure: the inside of any that is wider. Exact: its middle."""


class _Limits(NamedTuple):
    """What a patch of a stroke keeps to; levels of 255 and shares.

    Attributes:
        mean_across: of pure pixels, from the marker's hue.
        mean_luma: of pure pixels, from its luma.
        scatter_across: standard deviation of pure pixels.
        scatter_luma: likewise.
        pure: least share of pure pixels among the near ones.
        main_pure: least number of pure pixels in a patch that may stand alone.
    """

    mean_across: float
    mean_luma: float
    scatter_across: float
    scatter_luma: float
    pure: float
    main_pure: int


_THIN: Final = _Limits(10.5, 5.5, 7.2, 8.0, 0.10, 30)
_WIDE: Final = _Limits(5.5, 7.0, 6.8, 5.8, 0.42, 24)
"""Measured on strokes of 3 to 60 px, hard and soft, freehand and straight, on 40 photographs, in JPEG
(qualities 50 to 98, three samplings) and WebP, halved and doubled: the worst of some 8000, and a little
more."""
_NEAR_MEAN_ACROSS: Final = 14.0
_NEAR_MEAN_LUMA: Final = 11.0
_NEAR_SCATTER_ACROSS: Final = 10.0
_NEAR_SCATTER_LUMA: Final = 11.8
_DEPTH_PX: Final = 2
"""So far inside a patch a pixel is deep: beyond the reach of antialiasing."""
_WIDE_DEEP_PX, _WIDE_DEEP_SHARE = 24, 0.22
"""A patch with so many deep pixels, and such a share of them, is wide: a line of 6 px and more, and not a
thinner one that crosses itself."""
_DEEP_PURE, _DEEP_EXACT = 0.65, 0.35
"""Least shares among deep pixels, the second of wide patches: a stroke has a plateau where nature has a
slope."""
_EVEN_MEAN_ACROSS, _EVEN_MEAN_LUMA, _EVEN_SCATTER = 6.0, 2.5, 6.0
_EVEN_MAIN_PX: Final = 150
"""A thin patch need not be solid if it is as even as this and so large: a straight line along a JPEG's
blocks is faded alike all along."""
_LEAST_PURE_PX: Final = 4
"""In a patch that is judged by them."""
_FOREIGN_SHARE, _FOREIGN_PURE_PX = 0.75, 60
"""The colour is foreign to a picture if strokes have such a share of what is near it, and so many pure
pixels. Of 30 dabs of 3 to 8 px in a JPEG of quality 75 strokes have 0.85 at least."""
_SPECK_PX: Final = 100
"""A patch of a foreign colour is a stroke up to this size, whatever its few pixels scatter by."""

_REACH_PX: Final = 32
"""So far around a patch its fade is looked at."""
_FADED_LEVELS: Final = 1.5
"""A fade that falls by less than this from one pixel to the next has ended. In JPEGs of quality 50 and
better it does within 4 px of a hard stroke; what is left beyond is ringing, with a mean of zero."""
_LEAST_HALO_PX: Final = 4
"""Half a block of a JPEG: with the least that a mark grows (4 px), nothing is left that shares a block of
full chroma with a stroke, nor any of its ringing."""
_LIKE_SHARE: Final = 0.5
"""A stroke ends where its surroundings have less than this share of the marker's chroma."""
_SURE_FADE_PX: Final = 1600
"""So many pixels within `_CLOSE_PX` make a patch's own fade certain; a smaller one takes the others' too."""
_CLOSE_PX: Final = 4

_STRAY_PX: Final = 32
"""So many solid pure pixels outside all strokes make a picture ambiguous."""
_SHARP_SHARE: Final = 0.25
"""A core is sharp if less than this share of the pixels 3 to 4 px outside it is pure still."""

_BAND_PX: Final = 1 << 20
_CELL_PX: Final = 4
_MOST_CELLS: Final = 1 << 22
_CLOSE_CELLS: Final = 2
"""Near pixels of a wide stroke are no further from pure ones than this (8 px, or more in huge pictures): in
a JPEG 3 px, along a brush of 60 px with a soft edge 8 px."""


def find_strokes(rgb: Bytes, colour: Colour, visible: Mask | None) -> Mask | None:
    """Return the strokes of a marker colour, with their halo.

    Good colours are as saturated as a screen can show, rare in what is photographed, and bright in both of
    JPEG's chroma planes: magenta (255, 0, 255), then (255, 0, 128), (128, 0, 255), (0, 255, 128) and
    (0, 128, 255). Pure red, green, blue, cyan, yellow and orange work, too, but are what signs, screens and
    charts are drawn in. Black, white, greys and dull colours do not: what is found of them is refused.

    Args:
        rgb: uint8, (height, width, 3); not changed.
        colour: the marker, in the picture's own colour space (see `marker_colours`).
        visible: bool, (height, width), False where a pixel is fully transparent and so never a stroke; None
            where all are visible.

    Returns:
        bool, (height, width), True on strokes and their halo, not yet grown; None where there is no stroke.

    Raises:
        RefusedError: `marks_ambiguous`: the picture has the marker's colour by nature, too, or the marker is
            too dull to tell.
    """
    marker = _Marker.of(colour)
    levels = _levels_of(rgb, marker, visible)
    if levels is None:
        return None
    patches = _Patches.of(levels)
    census = _Census.of(rgb, levels, marker, patches)
    patches.trim(levels, census.is_wide)
    strokes = _strokes_among(census, _Surroundings(rgb, levels, marker, patches, visible))
    if strokes is None:
        _refuse_sharp_cores(levels, marker)
        return None
    mask = _with_halo(levels, patches, strokes)
    _refuse_strays(levels, mask, marker)
    if marker.chroma < LEAST_CHROMA:
        raise _ambiguous(f"the marker colour {marker.name} is too dull to tell strokes from the picture")
    if visible is not None:
        mask &= visible
    return mask


def marker_colours(colour: Colour, icc_profile: bytes) -> tuple[Colour, ...]:
    """Return what a marker may be in a picture's own colour space.

    An editor that heeds colour profiles converts the pen's sRGB to the picture's space: #FF00FF becomes
    (234, 51, 247) in Display P3, which phones take their photos in. One that does not writes it as it is.

    Args:
        colour: the marker, sRGB.
        icc_profile: the picture's, or nothing.

    Returns:
        The marker as it is, and where it differs and the profile can be used, as it is in that space.
    """
    converted = _converted(colour, icc_profile)
    return (colour,) if converted is None or converted == colour else (colour, converted)


def _converted(colour: Colour, icc_profile: bytes) -> Colour | None:
    if not icc_profile:
        return None
    try:
        space = ImageCms.ImageCmsProfile(io.BytesIO(icc_profile))
        if space.profile.xcolor_space.strip() != "RGB":
            return None
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        transform = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), space, "RGB", "RGB", intent)
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    pixel = ImageCms.applyTransform(Image.new("RGB", (1, 1), colour), transform)
    red, green, blue = np.asarray(pixel)[0, 0].tolist()
    return red, green, blue


# --- the marker's place among colours -----------------------------------------------------------------------


class _Distances(NamedTuple):
    """How far pixels are from the marker, in levels: float32, one a pixel.

    Attributes:
        faded: chroma that is missing along the marker's hue; below 0 where there is more.
        across: chroma across that hue.
        luma: luma above the marker's.
    """

    faded: Floats
    across: Floats
    luma: Floats


@dataclass(frozen=True, slots=True)
class _Marker:
    """A colour in luma and chroma.

    Attributes:
        name: `#RRGGBB`.
        luma: 0..255.
        chroma: distance from grey, in levels.
        hue: unit vector (Cr, Cb); of a grey, any.
    """

    name: str
    luma: float
    chroma: float
    hue: tuple[float, float]

    @classmethod
    def of(cls, colour: Colour) -> _Marker:
        luma, red, blue = (float(value) for value in _ycc_of(np.array([colour], np.uint8))[0])
        chroma = math.hypot(red - 128, blue - 128)
        hue = ((red - 128) / chroma, (blue - 128) / chroma) if chroma else (1.0, 0.0)
        return cls("#{:02X}{:02X}{:02X}".format(*colour), luma, chroma, hue)

    def distances(self, ycc: Bytes) -> _Distances:
        """Measure pixels (n, 3)."""
        red = ycc[:, 1].astype(np.float32) - np.float32(128)
        blue = ycc[:, 2].astype(np.float32) - np.float32(128)
        unit_red, unit_blue = np.float32(self.hue[0]), np.float32(self.hue[1])
        along, across = unit_red * red + unit_blue * blue, unit_red * blue - unit_blue * red
        luma = ycc[:, 0].astype(np.float32) - np.float32(self.luma)
        return _Distances(np.float32(self.chroma) - along, across, luma)

    def levels_of(self, ycc: Bytes) -> Bytes:
        """Return 0, `_NEAR`, `_PURE` or `_EXACT` for pixels (n, 3)."""
        faded, across, luma = self.distances(ycc)
        result = np.zeros(len(ycc), np.uint8)
        for level, tolerance in _TOLERANCES.items():
            inside = (faded >= -tolerance.chroma) & (faded <= tolerance.faded_levels(self.chroma))
            inside &= (np.abs(across) <= tolerance.chroma) & (np.abs(luma) <= tolerance.luma)
            result[inside] = level
        return result

    def box(self) -> tuple[Sums, Sums]:
        """Return the lowest and highest luma, Cr and Cb of near pixels: a box around what is near."""
        tolerance = _TOLERANCES[_NEAR]
        along = self.chroma - np.array([tolerance.faded_levels(self.chroma), -tolerance.chroma])
        corners = np.array(
            [
                (a * self.hue[0] - b * self.hue[1], a * self.hue[1] + b * self.hue[0])
                for a in along
                for b in (-tolerance.chroma, tolerance.chroma)
            ]
        )
        low = np.array([self.luma - tolerance.luma, *(corners.min(axis=0) + 128)])
        high = np.array([self.luma + tolerance.luma, *(corners.max(axis=0) + 128)])
        return np.clip(np.floor(low), 0, 255), np.clip(np.ceil(high), 0, 255)


def _ycc_of(rgb: Bytes) -> Bytes:
    """Convert pixels (n, 3) or (height, width, 3) to luma, Cr and Cb of full range."""
    plane = np.ascontiguousarray(rgb).reshape(rgb.shape[0], -1, 3)
    return cv2.cvtColor(plane, cv2.COLOR_RGB2YCrCb).astype(np.uint8, copy=False).reshape(rgb.shape)


def _bands(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each band of a picture."""
    rows = max(1, _BAND_PX // shape[1])
    for top in range(0, shape[0], rows):
        yield top, min(shape[0], top + rows)


def _levels_of(rgb: Bytes, marker: _Marker, visible: Mask | None) -> Bytes | None:
    """Return how near each pixel is to the marker, (height, width); None where none is."""
    levels = np.zeros(rgb.shape[:2], np.uint8)
    low, high = marker.box()
    is_any = False
    for top, bottom in _bands(rgb.shape):
        ycc = _ycc_of(rgb[top:bottom])
        inside = cv2.inRange(ycc, low, high)
        if visible is not None:
            inside[~visible[top:bottom]] = 0
        if cv2.countNonZero(inside):
            where = np.flatnonzero(inside)
            found = marker.levels_of(ycc.reshape(-1, 3)[where])
            levels[top:bottom].reshape(-1)[where] = found
            is_any = is_any or bool(found.any())
    return levels if is_any else None


# --- patches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Patches:
    """Which near pixels belong together: those whose cells touch.

    Attributes:
        count: of patches, and one for what is in none (the first).
        cell_px: side of a cell.
        labels: patch of each cell, int32, (cells down, cells across).
    """

    count: int
    cell_px: int
    labels: NDArray[np.int32]

    @classmethod
    def of(cls, levels: Bytes) -> _Patches:
        height, width = levels.shape
        cell_px = max(_CELL_PX, math.ceil(math.sqrt(height * width / _MOST_CELLS)))
        cells = np.zeros((-(-height // cell_px), -(-width // cell_px)), np.uint8)
        for top, bottom in _bands(levels.shape):
            rows, columns = np.nonzero(levels[top:bottom])
            cells[(rows + top) // cell_px, columns // cell_px] = 1
        count, labels = cv2.connectedComponents(cells, connectivity=8, ltype=cv2.CV_32S)
        return cls(count, cell_px, labels.astype(np.int32, copy=False))

    def trim(self, levels: Bytes, chosen: Mask) -> None:
        """Take the near pixels of some patches that are not close to pure ones out of `levels`.

        A wide stroke is pure all along, so that these are its neighbours, of a colour like it by nature.
        """
        pure = np.zeros(self.labels.shape, np.uint8)
        for top, bottom in _bands(levels.shape):
            rows, columns = np.nonzero(levels[top:bottom] >= _PURE)
            pure[(rows + top) // self.cell_px, columns // self.cell_px] = 1
        close = cv2.dilate(pure, np.ones((2 * _CLOSE_CELLS + 1, 2 * _CLOSE_CELLS + 1), np.uint8)) > 0
        for top, bottom in _bands(levels.shape):
            rows, columns = np.nonzero(levels[top:bottom] == _NEAR)
            is_close = close[(rows + top) // self.cell_px, columns // self.cell_px]
            apart = chosen[self.at(rows + top, columns)] & ~is_close
            levels[rows[apart] + top, columns[apart]] = 0

    def at(self, rows: Indices, columns: Indices) -> NDArray[np.int32]:
        """Return the patches of pixels."""
        return self.labels[rows // self.cell_px, columns // self.cell_px]


class _Moments:
    """Count, mean and scatter of pixels' distances from the marker, by patch."""

    def __init__(self, count: int) -> None:
        self.count: Sums = np.zeros(count)
        self._sums: Sums = np.zeros((4, count))

    def add(self, patch: NDArray[np.int32], across: Floats, luma: Floats) -> None:
        patches = len(self.count)
        self.count += np.bincount(patch, minlength=patches)
        for row, values in enumerate((across, across * across, luma, luma * luma)):
            self._sums[row] += np.bincount(patch, values, patches)

    def _mean(self, row: int) -> Sums:
        mean: Sums = self._sums[row] / np.maximum(self.count, 1)
        return mean

    def _scatter(self, row: int) -> Sums:
        scatter: Sums = np.sqrt(np.maximum(self._mean(row + 1) - self._mean(row) ** 2, 0))
        return scatter

    def are_within(self, across: Sums | float, luma: Sums | float) -> Mask:
        """Whether means are so close to the marker."""
        within: Mask = (np.abs(self._mean(0)) <= across) & (np.abs(self._mean(2)) <= luma)
        return within

    def scatter_within(self, across: Sums | float, luma: Sums | float) -> Mask:
        """Whether standard deviations are so small."""
        within: Mask = (self._scatter(0) <= across) & (self._scatter(2) <= luma)
        return within


@dataclass(frozen=True, slots=True)
class _Census:
    """What patches are made of; arrays are by patch.

    Attributes:
        near: of all their pixels.
        pure: of the pure ones.
        deep: pixels that are deep inside, all of them, the pure ones and the exact ones: (3, patches).
    """

    near: _Moments
    pure: _Moments
    deep: Sums

    @classmethod
    def of(cls, rgb: Bytes, levels: Bytes, marker: _Marker, patches: _Patches) -> _Census:
        census = cls(_Moments(patches.count), _Moments(patches.count), np.zeros((3, patches.count)))
        for top, bottom in _bands(levels.shape):
            where = np.flatnonzero(levels[top:bottom])
            if where.size:
                census._count(rgb[top:bottom], levels, top, where, marker, patches)
        return census

    def _count(
        self, rgb: Bytes, levels: Bytes, top: int, where: Indices, marker: _Marker, patches: _Patches
    ) -> None:
        rows, columns = np.divmod(where, levels.shape[1])
        patch = patches.at(rows + top, columns)
        level = levels[top:].reshape(-1)[where]
        _, across, luma = marker.distances(_ycc_of(rgb[rows, columns]))
        self.near.add(patch, across, luma)
        pure = level >= _PURE
        self.pure.add(patch[pure], across[pure], luma[pure])
        deep = _eroded(levels, top, top + len(rgb), _NEAR, _DEPTH_PX).reshape(-1)[where] > 0
        for row, least in enumerate((_NEAR, _PURE, _EXACT)):
            self.deep[row] += np.bincount(patch[deep & (level >= least)], minlength=patches.count)

    @property
    def is_wide(self) -> Mask:
        """Whether a patch has an inside."""
        wide: Mask = self.deep[0] >= np.maximum(_WIDE_DEEP_PX, _WIDE_DEEP_SHARE * self.near.count)
        return wide

    def are_flat_and_solid(self) -> Mask:
        """Whether patches keep to the limits of a stroke."""
        limits = [np.where(self.is_wide, wide, thin) for thin, wide in zip(_THIN, _WIDE, strict=True)]
        flat = self.near.are_within(_NEAR_MEAN_ACROSS, _NEAR_MEAN_LUMA)
        flat &= self.near.scatter_within(_NEAR_SCATTER_ACROSS, _NEAR_SCATTER_LUMA)
        flat &= self.pure.are_within(limits[0], limits[1]) & self.pure.scatter_within(limits[2], limits[3])
        solid = (self.pure.count >= _LEAST_PURE_PX) & (self.pure.count >= limits[4] * self.near.count)
        solid |= self._are_even()
        plateau = (self.deep[1] >= _DEEP_PURE * self.deep[0]) | (self.deep[0] < _WIDE_DEEP_PX)
        plateau &= (self.deep[2] >= _DEEP_EXACT * self.deep[0]) | ~self.is_wide
        both: Mask = flat & solid & plateau
        return both

    def _are_even(self) -> Mask:
        """Whether patches are lines of a colour that is faded, and the same all along."""
        even = self.near.are_within(_EVEN_MEAN_ACROSS, _EVEN_MEAN_LUMA) & ~self.is_wide
        even &= self.near.scatter_within(_EVEN_SCATTER, _EVEN_SCATTER)
        large: Mask = even & (self.near.count >= _EVEN_MAIN_PX)
        return large

    def are_main(self) -> Mask:
        """Whether patches are large enough to stand alone."""
        main: Mask = self.pure.count >= np.where(self.is_wide, _WIDE.main_pure, _THIN.main_pure)
        return main | self._are_even()

    def is_foreign(self, are_good: Mask) -> bool:
        """Whether what is near is nearly all in patches of strokes, and enough of them."""
        is_enough = self.pure.count[are_good].sum() >= _FOREIGN_PURE_PX
        return bool(is_enough and self.near.count[are_good].sum() >= _FOREIGN_SHARE * self.near.count.sum())

    def are_specks(self) -> Mask:
        """Whether patches are so small that chance decides how flat and solid they are."""
        specks: Mask = (self.near.count <= _SPECK_PX) & (self.pure.count > 0)
        return specks


def _eroded(levels: Bytes, top: int, bottom: int, least: int, depth_px: int) -> Bytes:
    """Return 1 where all pixels within a square of `depth_px` around one have a level, for a band of rows."""
    upper, lower = max(0, top - depth_px), min(len(levels), bottom + depth_px)
    square = np.ones((2 * depth_px + 1, 2 * depth_px + 1), np.uint8)
    eroded = cv2.erode((levels[upper:lower] >= least).astype(np.uint8), square)
    return eroded[top - upper : bottom - upper].astype(np.uint8, copy=False)


# --- what lies around patches -------------------------------------------------------------------------------


class _Ring(NamedTuple):
    """A part of the picture around patches.

    Attributes:
        rows: its place.
        columns: likewise.
        distance: of each pixel from the nearest patch, float32; 0 on it.
        owner: that patch, as it was numbered.
    """

    rows: slice
    columns: slice
    distance: Floats
    owner: Indices


def _rings(levels: Bytes, patches: _Patches, number: Indices, reach_px: int) -> Iterator[_Ring]:
    """Yield, band by band, what lies within reach of some patches.

    Args:
        levels: of all pixels.
        patches: all.
        number: of each patch that is looked at, 0 and up; -1 for the others.
        reach_px: so far around them.
    """
    height, width = levels.shape
    for top, bottom in _bands(levels.shape):
        upper, lower = max(0, top - reach_px), min(height, bottom + reach_px)
        rows, columns = np.nonzero(levels[upper:lower])
        owner = number[patches.at(rows + upper, columns)]
        rows, columns, owner = rows[owner >= 0], columns[owner >= 0], owner[owner >= 0]
        if not rows.size:
            continue
        left, right = max(0, columns.min() - reach_px), min(width, columns.max() + reach_px + 1)
        free = np.ones((lower - upper, right - left), np.uint8)
        free[rows, columns - left] = 0
        distance, nearest = cv2.distanceTransformWithLabels(
            free, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
        )
        owners = np.zeros(int(nearest.max()) + 1, np.intp)
        owners[nearest[rows, columns - left]] = owner
        inner = slice(top - upper, bottom - upper)
        yield _Ring(
            slice(top, bottom),
            slice(left, right),
            distance[inner].astype(np.float32, copy=False),
            owners[nearest[inner]],
        )


@dataclass(frozen=True, slots=True)
class _Fades:
    """Chroma around patches.

    Attributes:
        sums: of chroma along the marker's hue, by patch and distance: (patches, `_REACH_PX` + 1), the first
            column without use.
        counts: of pixels, likewise.
    """

    sums: Sums
    counts: Sums

    def widths_px(self) -> Indices:
        """Return how wide each patch's halo is."""
        fade = self._means()[:, 1:]
        falls = (fade[:, :-2] - fade[:, 1:-1] >= _FADED_LEVELS) | (
            fade[:, :-2] - fade[:, 2:] >= 2 * _FADED_LEVELS
        )
        # Where nothing is known (the picture's edge), nothing falls.
        falls = np.pad(falls, ((0, 0), (0, 1)))
        ends: Indices = np.argmin(falls, axis=1).astype(np.intp)
        return np.maximum(ends + 1, _LEAST_HALO_PX, dtype=np.intp)

    def levels_at(self, distance_px: Indices) -> Sums:
        """Return the chroma at each patch's own distance; 0 where nothing is known."""
        found: Sums = np.nan_to_num(self._means()[np.arange(len(self.sums)), distance_px])
        return found

    def are_sure(self) -> Mask:
        """Whether enough pixels were measured for a patch's own fade."""
        sure: Mask = self.counts[:, 1 : _CLOSE_PX + 1].sum(axis=1) >= _SURE_FADE_PX
        return sure

    def pooled(self, chosen: Mask) -> _Fades:
        """Return the fade of several patches as if they were one."""
        return _Fades(self.sums[chosen].sum(axis=0)[None], self.counts[chosen].sum(axis=0)[None])

    def _means(self) -> Sums:
        known = self.counts > 0
        return np.where(known, self.sums / np.where(known, self.counts, 1), np.nan)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """A picture, as far as patches' surroundings are asked for."""

    rgb: Bytes
    levels: Bytes
    marker: _Marker
    patches: _Patches
    visible: Mask | None

    def fades(self, chosen: Indices) -> _Fades:
        """Measure the fades of some patches, in their order."""
        number = np.full(self.patches.count, -1, np.intp)
        number[chosen] = np.arange(len(chosen))
        steps = _REACH_PX + 1
        sums, counts = np.zeros(len(chosen) * steps), np.zeros(len(chosen) * steps)
        for ring in _rings(self.levels, self.patches, number, _REACH_PX):
            around = (ring.distance > 0) & (ring.distance <= _REACH_PX)
            if self.visible is not None:
                around &= self.visible[ring.rows, ring.columns]
            if around.any():
                ycc = _ycc_of(self.rgb[ring.rows, ring.columns][around])
                key = ring.owner[around] * steps + np.ceil(ring.distance[around]).astype(np.intp)
                chroma = np.float32(self.marker.chroma) - self.marker.distances(ycc).faded
                sums += np.bincount(key, chroma, len(sums))
                counts += np.bincount(key, minlength=len(counts))
        return _Fades(sums.reshape(-1, steps), counts.reshape(-1, steps))


# --- decisions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Strokes:
    """Patches that are strokes.

    Attributes:
        patches: their labels.
        halo_px: how wide each one's halo is.
    """

    patches: Indices
    halo_px: Indices


def _strokes_among(census: _Census, surroundings: _Surroundings) -> _Strokes | None:
    """Decide which patches are strokes; None where none could stand alone."""
    are_good = census.are_flat_and_solid()
    is_foreign = census.is_foreign(are_good)
    candidates = np.flatnonzero(are_good | census.are_specks() if is_foreign else are_good)
    is_main = census.are_main()[candidates] | is_foreign
    if not is_main.any():
        return None
    fades = surroundings.fades(candidates)
    own_px = fades.widths_px()
    ends = fades.levels_at(own_px) <= _LIKE_SHARE * max(surroundings.marker.chroma, LEAST_CHROMA)
    if not (ends & is_main).any():
        return None
    common_px = fades.pooled(ends & is_main).widths_px()[0]
    halo_px = np.where(fades.are_sure(), own_px, np.maximum(own_px, common_px))
    return _Strokes(candidates[ends], halo_px[ends])


def _with_halo(levels: Bytes, patches: _Patches, strokes: _Strokes) -> Mask:
    """Return strokes and what lies within their halos."""
    number = np.full(patches.count, -1, np.intp)
    number[strokes.patches] = np.arange(len(strokes.patches))
    mask = np.zeros(levels.shape, np.bool_)
    for ring in _rings(levels, patches, number, int(strokes.halo_px.max())):
        mask[ring.rows, ring.columns] = ring.distance <= strokes.halo_px[ring.owner]
    return mask


def _refuse_strays(levels: Bytes, mask: Mask, marker: _Marker) -> None:
    """Refuse a picture with solid pure colour outside its strokes."""
    stray_px = 0
    for top, bottom in _bands(levels.shape):
        solid = _eroded(levels, top, bottom, _PURE, 1) > 0
        stray_px += int(np.count_nonzero(solid & ~mask[top:bottom]))
    if stray_px >= _STRAY_PX:
        raise _ambiguous(
            f"strokes of {marker.name} were found ({int(mask.sum())} px with their halo), but at least"
            f" {stray_px} px elsewhere have that colour, too, without being strokes"
        )


def _refuse_sharp_cores(levels: Bytes, marker: _Marker) -> None:
    """Refuse a picture in which strokes cannot be told: sharp cores of the marker within like colours."""
    core_px = around_px = pure_px = 0
    for top, bottom in _bands(levels.shape):
        upper, lower = max(0, top - 6), min(len(levels), bottom + 6)
        core = _eroded(levels, upper, lower, _EXACT, 1)
        around = cv2.dilate(core, np.ones((11, 11), np.uint8)) > cv2.dilate(core, np.ones((7, 7), np.uint8))
        inner = slice(top - upper, bottom - upper)
        core_px += int(np.count_nonzero(core[inner]))
        around_px += int(np.count_nonzero(around[inner]))
        pure_px += int(np.count_nonzero(around[inner] & (levels[top:bottom] >= _PURE)))
    if core_px >= _STRAY_PX and pure_px <= _SHARP_SHARE * around_px:
        raise _ambiguous(
            f"{core_px} px have the marker's colour {marker.name}, but lie within colours so like it that no"
            " stroke can be told from the picture"
        )


def _ambiguous(reason: str) -> RefusedError:
    return RefusedError(
        "marks_ambiguous",
        reason,
        "set a colour that the picture does not have as the recipe's marker and paint in that, or use a mask"
        " file",
    )
