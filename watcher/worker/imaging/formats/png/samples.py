"""Samples of a PNG to and from its picture data, in every depth, without losing a bit.

A PNG filters and deflates bytes, and what the bytes mean is said elsewhere. So a decoder that knows few kinds
of PNG is shown one that it knows, of the same bytes: grey of less than 8 bits as numbers of palette entries,
and 16-bit grey, with or without alpha, as 8-bit samples, twice as many. The same way back for encoding. Rules
of this module:
- Samples are as the file has them: (height, width) or (height, width, channels), 0 to 2**depth - 1, uint16
  where the depth is 16, uint8 elsewhere. No gamma, profile or transparent colour is ever applied.
- Decoders see header, palette and picture data, and nothing else that somebody may have put into the file.
- It is deflated at level 4: on photos a third of the time of level 6 for about two per cent more bytes.
  Drawings and pages that somebody has packed better are packed again at level 6, first without filters: level
  9 takes minutes for pages of 12 megapixels.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image

from watcher.worker.imaging.formats.png.layout import (
    GREY,
    GREY_ALPHA,
    PALETTE,
    PNG_SIGNATURE,
    RGB_ALPHA,
    PngChunk,
    chunk_bytes,
    picture_bytes,
    png_layout,
    zlib_stream,
)
from watcher.worker.imaging.picture import save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.png.layout import PngLayout

    Samples = NDArray[Any]

_LEVEL, _FASTEST_LEVEL, _BETTER_LEVEL = 4, 1, 6
_WORSE = 1.2
"""So much larger than the source's picture data is worth another try."""
_SHOWN_AS = {(16, GREY): (8, GREY_ALPHA), (16, GREY_ALPHA): (8, RGB_ALPHA)} | {
    (depth, GREY): (depth, PALETTE) for depth in (1, 2, 4)
}
"""Depth and colour type of a picture to those of one of the same bytes that Pillow decodes as it is."""
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Adam7: first column, first row, step of columns, step of rows (PNG, third edition, 8.1)."""


def is_deep_colour(layout: PngLayout) -> bool:
    """Whether the samples are RGB at 16 bits, which Pillow cuts to 8: OpenCV's part."""
    return layout.depth == 16 and layout.colour_type not in (GREY, GREY_ALPHA)  # noqa: PLR2004 - deepest


def shown_png(data: bytes, layout: PngLayout) -> bytes:
    """Return a PNG of the same picture data for a decoder: header, palette and picture data alone."""
    depth, colour_type = _SHOWN_AS.get((layout.depth, layout.colour_type), (layout.depth, layout.colour_type))
    header = struct.pack(
        ">IIBBBBB", layout.width, layout.height, depth, colour_type, 0, 0, int(layout.interlaced)
    )
    palette = layout.first(b"PLTE") if layout.colour_type == PALETTE else None
    if colour_type == PALETTE and palette is None:
        palette = bytes(3 << depth)
    parts = [PNG_SIGNATURE, chunk_bytes(PngChunk(b"IHDR", header))]
    if palette is not None:
        parts.append(chunk_bytes(PngChunk(b"PLTE", palette)))
    parts += [picture_bytes(data, layout), chunk_bytes(PngChunk(b"IEND", b""))]
    return b"".join(parts)


def decoded_deep_colour(shown: bytes) -> NDArray[np.uint16] | None:
    """Decode 16-bit RGB or RGBA; None where it is damaged."""
    decoded = cv2.imdecode(np.frombuffer(shown, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None or decoded.dtype != np.uint16:
        return None
    return _red_first(decoded)


def _red_first(samples: NDArray[Any]) -> NDArray[np.uint16]:
    """Swap red and blue: OpenCV has blue first."""
    swapped: NDArray[np.uint16] = samples[..., [2, 1, 0, 3][: samples.shape[2]]]
    return np.ascontiguousarray(swapped)


def samples_of_shown(decoded: NDArray[Any], layout: PngLayout) -> Samples:
    """Return the samples from what Pillow decoded of a shown PNG."""
    if layout.depth < 16:  # noqa: PLR2004 - deepest
        return decoded.astype(np.uint8, copy=False)
    pairs = np.ascontiguousarray(decoded).view(">u2").astype(np.uint16)
    return pairs[..., 0] if layout.colour_type == GREY else pairs


# --- and back ----------------------------------------------------------------------------------------------


def picture_chunks(samples: Samples, layout: PngLayout) -> bytes:
    """Return the IDAT chunks of a picture of samples, for the header of `layout`."""
    if layout.interlaced:
        packer = zlib.compressobj(_LEVEL)
        parts = [packer.compress(rows) for rows in _interlaced_rows(samples, layout)]
        return _picture_chunk(b"".join([*parts, packer.flush()]))
    most_bytes = _WORSE * sum(stop - start for start, stop in layout.picture_data)
    best = _encoded(samples, layout, _LEVEL)
    has_filters = layout.depth >= 8 and layout.colour_type != PALETTE  # noqa: PLR2004 - PNG, third edition, 12.7
    if len(best) > most_bytes and has_filters:
        plain = _picture_chunk(zlib.compress(_plain_rows(samples), _BETTER_LEVEL))
        best = min(best, plain, key=len)
    if len(best) > most_bytes:
        best = min(best, _encoded(samples, layout, _BETTER_LEVEL), key=len)
    return best


def _encoded(samples: Samples, layout: PngLayout, level: int) -> bytes:
    encoded = _png(samples, layout, level)
    return picture_bytes(encoded, png_layout(encoded))


def _picture_chunk(stream: bytes) -> bytes:
    return chunk_bytes(PngChunk(b"IDAT", stream))


def _plain_rows(samples: Samples) -> bytes:
    """Return the rows of whole bytes without filters, each with the mark that says so."""
    octets = np.ascontiguousarray(_octets(samples)).reshape(len(samples), -1)
    return np.pad(octets, ((0, 0), (1, 0))).tobytes()


def _octets(samples: Samples) -> NDArray[np.uint8]:
    """Return samples (height, width) or (height, width, channels) as bytes, the high ones first."""
    if samples.dtype == np.uint8:
        return samples
    return samples.astype(">u2").reshape(*samples.shape[:2], -1).view(np.uint8)


def _interlaced_rows(samples: Samples, layout: PngLayout) -> list[bytes]:
    """Return the filtered rows of each pass: each is a picture by itself (PNG, third edition, 8.1)."""
    rows: list[bytes] = []
    for left, top, along, down in _PASSES:
        part = np.ascontiguousarray(samples[top::down, left::along])
        if part.size:
            encoded = _png(part, layout, _FASTEST_LEVEL)
            rows.append(zlib.decompress(zlib_stream(encoded, png_layout(encoded))))
    return rows


def _png(samples: Samples, layout: PngLayout, level: int) -> bytes:
    """Encode samples as a whole PNG of the same bytes, in an encoder's words."""
    if is_deep_colour(layout):
        options = [
            cv2.IMWRITE_PNG_COMPRESSION,
            level,
            cv2.IMWRITE_PNG_STRATEGY,
            cv2.IMWRITE_PNG_STRATEGY_DEFAULT,
            cv2.IMWRITE_PNG_FILTER,
            cv2.IMWRITE_PNG_ALL_FILTERS,
        ]
        return cv2.imencode(".png", _red_first(samples), options)[1].tobytes()
    height, width = samples.shape[:2]
    if layout.depth == 16:  # noqa: PLR2004 - deepest
        return save(Image.fromarray(_octets(samples)), "PNG", {"compress_level": level})
    if layout.depth == 8 and layout.colour_type != PALETTE:  # noqa: PLR2004 - Pillow's own depth
        return save(Image.fromarray(samples), "PNG", {"compress_level": level})
    image = Image.frombytes("P", (width, height), samples.astype(np.uint8, copy=False).tobytes())
    image.putpalette(bytes(3 << layout.depth))
    return save(image, "PNG", {"compress_level": level, "bits": layout.depth})
