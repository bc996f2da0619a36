"""The picture while it is being filled: RGB boxes out for the model, filled pixels in, own mode kept.

Rules of this module:
- A canvas works on a copy; only pixels inside the grown mask are ever written.
- The picture's mode and depth stay: grey gets grey, a palette picture keeps its palette's used entries,
  16-bit grey keeps its 16 bits outside the hole.
- Alpha is not filled. It changes only where `reopen` says so: pixels that a person erased come back opaque.
- What lies under full transparency is no colour: the model sees the mean of the visible pixels there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from watcher.worker.imaging.crops import mean_colour
from watcher.worker.imaging.decode import palette_alpha
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.crops import Rect
    from watcher.worker.imaging.decode import Picture

    Mask = NDArray[np.bool_]
    Rgb = NDArray[np.uint8]


class Canvas(Protocol):
    """A picture of one mode while it is filled."""

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        """Return a fresh RGB copy of a box: uint8, (height, width, 3). `hole` is the box's own."""
        ...

    def paste(self, box: Rect, where: Mask, rgb: Rgb) -> None:
        """Write filled pixels of a box where `where` (the box's own, inside the grown mask) is True."""
        ...

    def finish(self) -> Image.Image:
        """Return the filled picture in its own mode; palette and `transparency` are set where it has them."""
        ...


def canvas_for(picture: Picture, pixels: NDArray[np.generic], hole: Mask, reopen: Mask | None) -> Canvas:
    """Return the canvas for a decoded picture.

    Args:
        picture: opened and loaded.
        pixels: as `Picture.load` returned them; not changed.
        hole: the grown mask, bool, (height, width).
        reopen: erased pixels that come back opaque, or None.
    """
    if picture.mode == "P":
        return _PaletteCanvas(picture, pixels.astype(np.uint8, copy=False), hole, reopen)
    if picture.mode == "I;16":
        return _DeepCanvas(picture, pixels.astype(np.uint16, copy=False))
    return _PlainCanvas(picture, pixels, reopen)


class _PlainCanvas:
    """Modes 1, L, LA, RGB and RGBA."""

    def __init__(self, picture: Picture, pixels: NDArray[np.generic], reopen: Mask | None) -> None:
        self._mode = picture.mode
        self._key = picture.image.info.get("transparency")
        self._pixels = pixels.astype(np.uint8)
        if self._mode == "1":
            self._pixels *= np.uint8(255)
        self._reopen = reopen

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        part = self._pixels[box.slices]
        colour = part if part.ndim == 2 else part[..., : 3 if part.shape[2] >= 3 else 1]  # noqa: PLR2004 - (h, w)
        rgb = np.array(np.broadcast_to(colour.reshape(*part.shape[:2], -1), (*part.shape[:2], 3)))
        if self._mode in ("LA", "RGBA"):
            clear = part[..., -1] == 0
            rgb[clear] = mean_colour(rgb[~clear & ~hole])
        return rgb

    def paste(self, box: Rect, where: Mask, rgb: Rgb) -> None:
        part = self._pixels[box.slices]
        colour = self._native(rgb[where])
        if part.ndim == 2:  # noqa: PLR2004 - (height, width)
            part[where] = colour[:, 0]
        else:
            part[where, : colour.shape[1]] = colour
        if self._reopen is not None and self._mode in ("LA", "RGBA"):
            part[where & self._reopen[box.slices], -1] = 255

    def _native(self, rgb: Rgb) -> Rgb:
        """Turn filled pixels (n, 3) into the mode's colour channels (n, 1 or 3), off the transparent key."""
        colour = rgb.copy() if self._mode in ("RGB", "RGBA") else _grey(rgb)[:, np.newaxis]
        if self._mode == "1":
            colour = np.where(colour >= 128, np.uint8(255), np.uint8(0))  # noqa: PLR2004 - half of white
        elif self._key is not None:
            same = (colour == np.asarray(self._key)).all(axis=1)
            colour[same, -1] ^= 1
        return colour

    def finish(self) -> Image.Image:
        if self._mode == "1":
            return Image.fromarray(self._pixels).convert("1", dither=Image.Dither.NONE)
        image = Image.fromarray(self._pixels)
        if self._key is not None:
            image.info["transparency"] = self._key
        return image


class _DeepCanvas:
    """16-bit grey: the model sees each box stretched from its darkest to its brightest known value."""

    def __init__(self, picture: Picture, pixels: NDArray[np.uint16]) -> None:
        self._key = picture.image.info.get("transparency")
        self._pixels = pixels.copy()
        self._ranges: dict[Rect, tuple[int, int]] = {}

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        part = self._pixels[box.slices]
        known = part[~hole] if not hole.all() else part
        low, high = int(known.min()), max(int(known.max()), int(known.min()) + 1)
        self._ranges[box] = (low, high)
        clipped = np.clip(part, low, high).astype(np.uint32) - low
        grey = ((clipped * 255 + (high - low) // 2) // (high - low)).astype(np.uint8)
        return np.repeat(grey[..., np.newaxis], 3, axis=2)

    def paste(self, box: Rect, where: Mask, rgb: Rgb) -> None:
        low, high = self._ranges[box]
        grey = _grey(rgb[where]).astype(np.uint32)
        values = (low + (grey * (high - low) + 127) // 255).astype(np.uint16)
        if self._key is not None:
            values[values == self._key] ^= 1
        self._pixels[box.slices][where] = values

    def finish(self) -> Image.Image:
        image = Image.fromarray(self._pixels)
        if self._key is not None:
            image.info["transparency"] = self._key
        return image


class _PaletteCanvas:
    """Palette pictures: filled in RGB, then brought back to indices.

    Entries that are in use outside the hole keep their place and colour, so the indices outside stay
    bit-identical. Entries that are not in use are given to the fill's own colours; what does not fit takes
    the nearest entry of the same opacity.
    """

    def __init__(self, picture: Picture, indices: NDArray[np.uint8], hole: Mask, reopen: Mask | None) -> None:
        self._indices = indices.copy()
        self._hole = hole
        self._reopen = reopen
        self._key = picture.image.info.get("transparency")
        palette = picture.image.getpalette("RGB") or []
        self._entries = min(256, len(palette) // 3)
        self._colours = np.zeros((256, 3), np.uint8)
        self._colours[: self._entries] = np.array(palette[: 3 * self._entries], np.uint8).reshape(-1, 3)
        self._alphas = palette_alpha(self._key)
        self._rgb = self._colours[indices]

    def rgb(self, box: Rect, hole: Mask) -> Rgb:
        rgb = self._rgb[box.slices].copy()
        clear = self._alphas[self._indices[box.slices]] == 0
        rgb[clear] = mean_colour(rgb[~clear & ~hole])
        return rgb

    def paste(self, box: Rect, where: Mask, rgb: Rgb) -> None:
        self._rgb[box.slices][where] = rgb[where]

    def finish(self) -> Image.Image:
        wanted = self._wanted_alpha()
        opaque = self._hole & (wanted == 255)  # noqa: PLR2004 - fully opaque
        if opaque.any():
            self._assign(opaque)
        for alpha in np.unique(wanted[self._hole & ~opaque & (wanted > 0)]):
            self._nearest_of(self._hole & (wanted == alpha), np.flatnonzero(self._alphas == alpha))
        return self._image()

    def _wanted_alpha(self) -> NDArray[np.uint8]:
        wanted: NDArray[np.uint8] = self._alphas[self._indices]
        if self._reopen is not None:
            wanted[self._reopen] = 255
        return wanted

    def _assign(self, opaque: Mask) -> None:
        used = np.zeros(256, np.bool_)
        used[np.unique(self._indices[~opaque])] = True
        fill = _unique_colours(self._rgb[opaque])
        present = (used & (self._alphas == 255)).nonzero()[0]  # noqa: PLR2004 - fully opaque
        new = fill[~_contained(fill, self._colours[present])]
        free = np.flatnonzero(~used)
        if len(new) > len(free) > 0:
            new = _reduced(new, len(free))
        slots = free[: min(len(new), len(free))]
        self._colours[slots] = new[: len(slots)]
        self._alphas[slots] = 255
        self._entries = max(self._entries, int(slots.max(initial=-1)) + 1)
        candidates = np.concatenate([present, slots])
        if candidates.size == 0:
            raise RefusedError(
                "unsupported",
                "this picture's palette is full and has no opaque colour to fill with",
                "save it as RGBA and drop that",
            )
        self._nearest_of(opaque, candidates)

    def _nearest_of(self, where: Mask, candidates: NDArray[np.intp]) -> None:
        self._indices[where] = candidates[_nearest(self._rgb[where], self._colours[candidates])]

    def _image(self) -> Image.Image:
        height, width = self._indices.shape
        image = Image.frombytes("P", (width, height), self._indices.tobytes())
        image.putpalette(self._colours[: max(self._entries, 1)].tobytes(), "RGB")
        clear = np.flatnonzero(self._alphas < 255)  # noqa: PLR2004 - not fully opaque
        if isinstance(self._key, bytes) and clear.size:
            image.info["transparency"] = self._alphas[: int(clear[-1]) + 1].tobytes()
        elif isinstance(self._key, int) and clear.size:
            image.info["transparency"] = self._key
        return image


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
