"""A TIFF's rows of bytes to samples, samples to pixels of the picture's own mode, and both back.

Rules of this module:
- Both directions of each step stand beside each other, and the second undoes the first exactly.
- It works on bands of rows; it never holds a whole picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watcher.worker.imaging.picture import DEEP_MODES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.tiff.layout import TiffLayout

    Samples = NDArray[Any]
    """(rows, columns, samples): uint8 up to 8 bits, else uint16, in this machine's byte order."""

_BYTE, _WORD = 8, 16


# --- bytes and samples -------------------------------------------------------------------------------------


def unpacked(raw: NDArray[np.uint8], layout: TiffLayout) -> Samples:
    """Return the samples of rows as they lie in a piece, (rows, bytes); maybe a view of them."""
    rows = len(raw)
    shape = (rows, layout.piece_width, layout.piece_samples)
    if layout.bits == _BYTE:
        samples: Samples = raw.reshape(shape)
    elif layout.bits == _WORD:
        samples = np.ascontiguousarray(raw).view(f"{layout.order}u2").astype(np.uint16).reshape(shape)
    else:
        samples = _from_bits(raw, shape, layout.bits)
    if layout.predictor:
        samples = np.add.accumulate(samples, axis=1, dtype=samples.dtype)
    return samples


def packed(samples: Samples, layout: TiffLayout) -> NDArray[np.uint8]:
    """Return samples as rows of bytes, (rows, bytes); the inverse of `unpacked`."""
    rows = len(samples)
    if layout.predictor:
        samples = np.diff(samples, axis=1, prepend=samples.dtype.type(0))
    if layout.bits == _BYTE:
        return samples.reshape(rows, -1)
    if layout.bits == _WORD:
        return samples.astype(f"{layout.order}u2").view(np.uint8).reshape(rows, -1)
    return _to_bits(samples.reshape(rows, -1), layout.bits)


def _from_bits(raw: NDArray[np.uint8], shape: tuple[int, int, int], bits: int) -> Samples:
    _, columns, samples = shape
    stream = np.unpackbits(raw, axis=1, count=columns * samples * bits).reshape(*shape, bits)
    values = np.zeros(shape, np.uint8 if bits < _BYTE else np.uint16)
    for place in range(bits):  # the most significant comes first, whatever the byte order
        values = (values << 1) | stream[..., place]
    return values


def _to_bits(values: Samples, bits: int) -> NDArray[np.uint8]:
    stream = np.empty((*values.shape, bits), np.uint8)
    for place in range(bits):
        stream[..., place] = (values >> (bits - 1 - place)) & 1
    return np.packbits(stream.reshape(len(values), -1), axis=1)


# --- samples and pixels ------------------------------------------------------------------------------------


def pixel_type(layout: TiffLayout) -> type[np.bool_ | np.uint8 | np.uint16]:
    """Return the type of the mode's pixels."""
    if layout.mode == "1":
        return np.bool_
    return np.uint16 if layout.mode in DEEP_MODES else np.uint8


def to_pixels(samples: Samples, layout: TiffLayout, first: int) -> NDArray[Any]:
    """Return samples, (..., channels), as the mode counts them; `first` is the first one's channel."""
    most = _most(layout)
    values = _rescaled(samples, _most_stored(layout), most)
    if layout.inverted and first == 0:
        values = values.copy()
        values[..., 0] = most - values[..., 0]
    return values.astype(pixel_type(layout), copy=False)


def from_pixels(pixels: NDArray[Any], layout: TiffLayout) -> Samples:
    """Return pixels, (..., channels of the mode), as the file counts them; the inverse of `to_pixels`."""
    most = _most(layout)
    values = pixels.astype(np.uint8) if layout.mode == "1" else pixels
    if layout.premultiplied:
        values = _multiplied_by_alpha(values)
    if layout.inverted:
        values = values.copy()
        values[..., 0] = most - values[..., 0]
    return _rescaled(values, most, _most_stored(layout))


def _most_stored(layout: TiffLayout) -> int:
    return _most(layout) if layout.mode == "P" else (1 << layout.bits) - 1


def _most(layout: TiffLayout) -> int:
    return 1 if layout.mode == "1" else (65_535 if layout.mode in DEEP_MODES else 255)


def _rescaled(values: NDArray[Any], source: int, target: int) -> NDArray[Any]:
    if source == target:
        return values
    wide = (values.astype(np.uint32) * target + source // 2) // source
    return wide.astype(np.uint8 if target <= 255 else np.uint16)  # noqa: PLR2004 - one byte


def divide_by_alpha(pixels: NDArray[Any]) -> None:
    """Turn premultiplied colours into plain ones, in place; the last channel is alpha."""
    most = int(np.iinfo(pixels.dtype).max)
    alpha = pixels[..., -1:].astype(np.uint32)
    plain = (pixels[..., :-1].astype(np.uint32) * most + alpha // 2) // np.maximum(alpha, 1)
    pixels[..., :-1] = np.where(alpha == 0, 0, np.minimum(plain, most))


def _multiplied_by_alpha(pixels: NDArray[Any]) -> NDArray[Any]:
    most = int(np.iinfo(pixels.dtype).max)
    result = pixels.copy()
    alpha = pixels[..., -1:].astype(np.uint32)
    result[..., :-1] = (pixels[..., :-1].astype(np.uint32) * alpha + most // 2) // most
    return result
