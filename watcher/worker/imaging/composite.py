"""The picture while it is being filled: RGB boxes out for the model, filled pixels in, own mode kept.

Rules of this module:
- A canvas works on a copy; only pixels inside the grown mask are ever written.
- The picture's mode and depth stay: grey gets grey, a palette picture keeps its palette's used entries,
  16-bit samples keep their 16 bits outside the hole, inks get inks.
- Alpha is not filled. It changes only where `reopen` says so: pixels that a person erased come back opaque.
  Where one colour means transparent, its pixels stay as they are and the fill keeps off it.
- What lies under full transparency is no colour: the model sees the mean of the visible pixels there, and the
  fill is not blended with it. Nor are palettes and black and white, which have nothing in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from PIL import Image

from watcher.worker.imaging.blending import ALL_FILL, blended
from watcher.worker.imaging.crops import mean_colour
from watcher.worker.imaging.inks import InkConversion
from watcher.worker.imaging.picture import ALPHA_MODES, DEEP_MODES, Filled, Palette, of_colour, palette_alpha
from watcher.worker.imaging.refusals import RefusedError

_Sample = TypeVar("_Sample", np.uint8, np.uint16)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.crops import Rect
    from watcher.worker.imaging.picture import Picture, Pixels

    Mask = NDArray[np.bool_]
    Rgb = NDArray[np.uint8]
    Share = NDArray[np.uint8]


class Canvas(Protocol):
    """A picture of one mode while it is filled."""

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        """Return a fresh RGB copy of a box: uint8, (height, width, 3). `hole` is the box's own."""
        ...

    def clear(self, box: Rect) -> Mask | None:
        """Return which of a box's pixels are fully transparent and have no colour; None if none can be."""
        ...

    def paste(self, box: Rect, where: Mask, rgb: Rgb, share: Share | None = None) -> None:
        """Write filled pixels of a box where `where` (the box's own, inside the grown mask) is True.

        Args:
            box: inside the picture.
            where: bool, (height, width).
            rgb: uint8, (height, width, 3).
            share: uint8, (height, width): how much of 255 is fill and not what is there; None: all.
        """
        ...

    def finish(self) -> Filled:
        """Return the filled picture in its own mode."""
        ...


def canvas_for(picture: Picture, pixels: Pixels, hole: Mask, reopen: Mask | None) -> Canvas:
    """Return the canvas for a decoded picture.

    Args:
        picture: opened and loaded.
        pixels: as `Picture.load` returned them; not changed.
        hole: the grown mask, bool, (height, width).
        reopen: erased pixels that come back opaque, or None.
    """
    if picture.mode == "P":
        return _PaletteCanvas(picture, pixels.astype(np.uint8, copy=False), hole, reopen)
    if picture.mode in DEEP_MODES:
        return _DeepCanvas(picture, pixels.astype(np.uint16, copy=False), hole, reopen)
    if picture.mode == "CMYK":
        return _InkCanvas(picture, pixels.astype(np.uint8, copy=False), hole)
    return _PlainCanvas(picture, pixels, hole, reopen)


class _PlainCanvas:
    """Modes 1, L, LA, RGB and RGBA."""

    def __init__(self, picture: Picture, pixels: Pixels, hole: Mask, reopen: Mask | None) -> None:
        self._mode = picture.mode
        self._key = picture.transparency
        self._clear = _keyed(picture, pixels)
        self._pixels = pixels.astype(np.uint8)
        if self._mode == "1":
            self._pixels *= np.uint8(255)
        self._hole = hole
        self._reopen = reopen

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        rgb = _as_rgb(self._pixels[box.slices])
        clear = self.clear(box)
        if clear is not None:
            rgb[clear] = mean_colour(rgb[~clear & ~hole])
        return rgb

    def clear(self, box: Rect) -> Mask | None:
        if self._mode in ALPHA_MODES:
            return np.asarray(self._pixels[box.slices][..., -1] == 0)
        return _of_box(self._clear, box)

    def paste(self, box: Rect, where: Mask, rgb: Rgb, share: Share | None = None) -> None:
        part = self._pixels[box.slices]
        where = _filled(where, self._clear, self._reopen, box)
        planes = part.reshape(*part.shape[:2], -1)
        colours = 3 if self._mode in ("RGB", "RGBA") else 1
        colour = rgb[where] if colours > 1 else _grey(rgb[where])[:, np.newaxis]
        if share is not None and self._mode != "1":
            colour = _mixed(planes[where, :colours], colour, _share_of(share, where, self.clear(box)))
        planes[where, :colours] = self._off_key(colour)
        if self._reopen is not None and self._mode in ALPHA_MODES:
            part[where & self._reopen[box.slices], -1] = 255

    def _off_key(self, colour: Rgb) -> Rgb:
        """Bring colours (n, 1 or 3) to what the mode has, off the transparent key."""
        if self._mode == "1":
            colour = np.where(colour >= 128, np.uint8(255), np.uint8(0))  # noqa: PLR2004 - half of white
            if self._key is not None:
                colour[:] = 0 if self._key else 255
        elif self._key is not None:
            same = (colour == np.asarray(self._key)).all(axis=1)
            colour[same, -1] ^= 1
        return colour

    def finish(self) -> Filled:
        pixels: Pixels = self._pixels
        if self._mode == "1":
            pixels = pixels >= 128  # noqa: PLR2004 - half of white
        return Filled(pixels, self._hole)


class _DeepCanvas:
    """16 bits a sample: the model sees each box stretched from its darkest to its brightest known sample."""

    def __init__(self, picture: Picture, pixels: NDArray[np.uint16], hole: Mask, reopen: Mask | None) -> None:
        self._key = picture.transparency
        self._has_alpha = picture.mode in ALPHA_MODES
        self._pixels = pixels.copy()
        self._planes = self._pixels.reshape(*pixels.shape[:2], -1)
        self._colours = self._planes.shape[2] - (1 if self._has_alpha else 0)
        self._hole = hole
        self._reopen = reopen
        self._clear = _keyed(picture, pixels)
        self._ranges: dict[Rect, tuple[int, int]] = {}

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        part = self._planes[box.slices]
        colour = part[..., : self._colours]
        clear = self.clear(box)
        if clear is None:
            clear = np.zeros(hole.shape, np.bool_)
        known = colour[~hole & ~clear]
        low, high = _stretch(known if known.size else colour)
        self._ranges[box] = (low, high)
        clipped = np.clip(colour, low, high).astype(np.uint32) - low
        rgb = _as_rgb(((clipped * 255 + (high - low) // 2) // (high - low)).astype(np.uint8))
        rgb[clear] = mean_colour(rgb[~clear & ~hole])
        return rgb

    def clear(self, box: Rect) -> Mask | None:
        if self._has_alpha:
            return np.asarray(self._planes[box.slices][..., -1] == 0)
        return _of_box(self._clear, box)

    def paste(self, box: Rect, where: Mask, rgb: Rgb, share: Share | None = None) -> None:
        low, high = self._ranges[box]
        where = _filled(where, self._clear, self._reopen, box)
        colour = (_grey(rgb[where])[:, np.newaxis] if self._colours == 1 else rgb[where]).astype(np.uint32)
        values = (low + (colour * (high - low) + 127) // 255).astype(np.uint16)
        part = self._planes[box.slices]
        if share is not None:
            values = _mixed(part[where, : self._colours], values, _share_of(share, where, self.clear(box)))
        if self._key is not None and not self._has_alpha:
            values[(values == np.asarray(self._key)).all(axis=1), -1] ^= 1
        part[where, : self._colours] = values
        if self._reopen is not None and self._has_alpha:
            part[where & self._reopen[box.slices], -1] = 65_535

    def finish(self) -> Filled:
        return Filled(self._pixels, self._hole)


def _keyed(picture: Picture, pixels: Pixels) -> Mask | None:
    """Return the pixels of the colour that means transparent; None where no colour does."""
    if picture.mode in ALPHA_MODES or picture.transparency is None:
        return None
    return of_colour(pixels, picture.transparency)


def _of_box(mask: Mask | None, box: Rect) -> Mask | None:
    return None if mask is None else mask[box.slices]


def _filled(where: Mask, clear: Mask | None, reopen: Mask | None, box: Rect) -> Mask:
    """Leave out of a box's fill what is of the transparent colour, unless it comes back opaque."""
    if clear is None:
        return where
    stays = clear[box.slices]
    if reopen is not None:
        stays = stays & ~reopen[box.slices]
    return where & ~stays


def _share_of(share: Share, where: Mask, clear: Mask | None) -> Share:
    """Return the fill's share of the chosen pixels (n,); what has no colour is not mixed with one."""
    chosen: Share = share[where]
    if clear is not None:
        chosen[clear[where]] = ALL_FILL
    return chosen


def _mixed(before: NDArray[_Sample], fill: NDArray[_Sample], share: Share) -> NDArray[_Sample]:
    """Mix samples (n, channels) where not all is to be fill, which is in few places."""
    result = fill.copy()
    some = share < ALL_FILL
    result[some] = blended(before[some], fill[some], share[some])
    return result


def _stretch(samples: NDArray[np.uint16]) -> tuple[int, int]:
    """Return the least and the greatest of some samples, the second beyond the first."""
    low = int(samples.min())
    return low, max(int(samples.max()), low + 1)


class _InkCanvas:
    """CMYK: the model sees the colours that the inks print, and its colours are printed with inks."""

    def __init__(self, picture: Picture, inks: NDArray[np.uint8], hole: Mask) -> None:
        self._conversion = InkConversion(picture.icc_profile)
        self._inks = inks.copy()
        self._hole = hole

    def rgb(self, box: Rect, hole: Mask) -> Rgb:  # noqa: ARG002 - there is no alpha to hide under
        return self._conversion.to_rgb(self._inks[box.slices])

    def clear(self, box: Rect) -> Mask | None:  # noqa: ARG002 - likewise
        return None

    def paste(self, box: Rect, where: Mask, rgb: Rgb, share: Share | None = None) -> None:
        part = self._inks[box.slices]
        inks = self._conversion.from_rgb(rgb[where][np.newaxis])[0]
        part[where] = inks if share is None else _mixed(part[where], inks, share[where])

    def finish(self) -> Filled:
        return Filled(self._inks, self._hole)


def _as_rgb(part: NDArray[np.uint8]) -> Rgb:
    """Return a fresh RGB copy of pixels in mode L, LA, RGB or RGBA."""
    colour = part if part.ndim == 2 else part[..., : 3 if part.shape[2] >= 3 else 1]  # noqa: PLR2004 - (h, w)
    shape = part.shape[:2]
    return np.array(np.broadcast_to(colour.reshape(*shape, -1), (*shape, 3)))


class _PaletteCanvas:
    """Palette pictures: filled in RGB, then brought back to indices.

    What the palette has stays: the fill's own colours get entries behind it where the format has room for
    more, then those that no pixel shows. What does not fit takes the nearest entry of the same opacity. Where
    all entries are grey the fill is grey.
    """

    def __init__(self, picture: Picture, indices: NDArray[np.uint8], hole: Mask, reopen: Mask | None) -> None:
        self._indices = indices.copy()
        self._hole = hole
        self._reopen = reopen
        palette = picture.image.getpalette("RGB") or []
        self._entries = min(256, len(palette) // 3)
        self._colours = np.zeros((256, 3), np.uint8)
        self._colours[: self._entries] = np.array(palette[: 3 * self._entries], np.uint8).reshape(-1, 3)
        self._alphas = palette_alpha(picture.transparency)
        self._spare = picture.spare_entries
        self._is_grey = bool((self._colours == self._colours[:, :1]).all())
        self._rgb = self._colours[indices]

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        rgb = self._rgb[box.slices].copy()
        clear = self.clear(box)
        rgb[clear] = mean_colour(rgb[~clear & ~hole])
        return rgb

    def clear(self, box: Rect) -> Mask:
        return np.asarray(self._alphas[self._indices[box.slices]] == 0)

    def paste(self, box: Rect, where: Mask, rgb: Rgb, share: Share | None = None) -> None:  # noqa: ARG002 - see above
        colour = rgb[where]
        self._rgb[box.slices][where] = _grey(colour)[:, np.newaxis] if self._is_grey else colour

    def finish(self) -> Filled:
        wanted = self._wanted_alpha()
        opaque = self._hole & (wanted == 255)  # noqa: PLR2004 - fully opaque
        if opaque.any():
            self._assign(opaque)
        for alpha in np.unique(wanted[self._hole & ~opaque & (wanted > 0)]):
            self._nearest_of(self._hole & (wanted == alpha), np.flatnonzero(self._alphas == alpha))
        palette = Palette(self._colours[: max(self._entries, 1)], self._alphas)
        return Filled(self._indices, self._hole, palette)

    def _wanted_alpha(self) -> NDArray[np.uint8]:
        wanted: NDArray[np.uint8] = self._alphas[self._indices]
        if self._reopen is not None:
            wanted[self._reopen] = 255
        return wanted

    def _assign(self, opaque: Mask) -> None:
        """Find entries for the fill where it is to be opaque."""
        fill = _unique_colours(self._rgb[opaque])
        there = np.flatnonzero(self._alphas[: self._entries] == 255)  # noqa: PLR2004 - fully opaque
        new = fill[~_contained(fill, self._colours[there])]
        free = self._free(opaque, fill)
        if len(new) > len(free) > 0:
            new = _reduced(new, len(free))
        slots = free[: min(len(new), len(free))]
        self._colours[slots] = new[: len(slots)]
        self._alphas[slots] = 255
        self._entries = max(self._entries, int(slots.max(initial=-1)) + 1)
        candidates = np.union1d(there, slots)
        if candidates.size == 0:
            raise RefusedError(
                "unsupported",
                "this picture's palette is full and has no opaque colour to fill with",
                "save it as RGBA and drop that",
            )
        self._nearest_of(opaque, candidates)

    def _free(self, opaque: Mask, fill: Rgb) -> NDArray[np.intp]:
        """List the entries that may be given away, first those that the palette does not have yet."""
        kept = ~self._spare
        kept[np.unique(self._indices[~opaque])] = True
        kept |= _contained(self._colours, fill) & (self._alphas == 255)  # noqa: PLR2004 - fully opaque
        free = np.flatnonzero(~kept)
        return np.concatenate([free[free >= self._entries], free[free < self._entries]])

    def _nearest_of(self, where: Mask, candidates: NDArray[np.intp]) -> None:
        self._indices[where] = candidates[_nearest(self._rgb[where], self._colours[candidates])]


def _grey(rgb: Rgb) -> NDArray[np.uint8]:
    """Return the luminance (ITU-R BT.601) of pixels (n, 3); grey in is the same grey out."""
    weights = np.array([299, 587, 114], np.uint32)
    return ((rgb.astype(np.uint32) @ weights + 500) // 1000).astype(np.uint8)


_EXACT_COLOURS = 65_536


def _packed(rgb: Rgb) -> NDArray[np.uint32]:
    wide = rgb.astype(np.uint32)
    packed: NDArray[np.uint32] = (wide[:, 0] << np.uint32(16)) | (wide[:, 1] << np.uint32(8)) | wide[:, 2]
    return packed


def _unpacked(packed: NDArray[np.uint32]) -> Rgb:
    return np.stack([packed >> 16, packed >> 8, packed], axis=1).astype(np.uint8)


def _unique_colours(rgb: Rgb) -> Rgb:
    return _unpacked(np.unique(_packed(rgb)))


def _contained(colours: Rgb, among: Rgb) -> Mask:
    return np.isin(_packed(colours), _packed(among))


def _reduced(colours: Rgb, count: int) -> Rgb:
    """Choose `count` colours that stand for many (median cut)."""
    strip = Image.fromarray(colours[np.newaxis])
    quantised = strip.quantize(count, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette = np.array(quantised.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
    return _unique_colours(palette)[:count]


def _nearest(rgb: Rgb, among: Rgb) -> NDArray[np.intp]:
    """Return for each pixel (n, 3) the place of the nearest colour; distances in RGB, squared."""
    packed = _packed(rgb)
    if len(np.unique(packed)) > _EXACT_COLOURS:  # six bits a channel bound the work on huge holes
        packed &= np.uint32(0xFCFCFC)
    unique, inverse = np.unique(packed, return_inverse=True)
    table = among.astype(np.int32)
    best = np.empty(len(unique), np.intp)
    for start in range(0, len(unique), 4096):
        part = _unpacked(unique[start : start + 4096]).astype(np.int32)
        distance = ((part[:, np.newaxis] - table[np.newaxis]) ** 2).sum(axis=2)
        best[start : start + 4096] = distance.argmin(axis=1)
    return best[inverse]
