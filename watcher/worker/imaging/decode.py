"""Bytes of a picture to its stored pixels, with everything that is needed to write it back the same.

Rules of this module:
- A file is read once; its sha256 must be the one that was dispatched.
- The header is judged (format, frames, size, depth) before a pixel is decoded, and the end of the file is
  found before a decoder may complain about its lack.
- Pixels come in the picture's own mode and depth, in stored orientation. Pillow turns TIFF files by itself:
  that is undone here.
- Zeros where a picture without an end marker ends are bytes to come while the file is fresh, and black later.
- What Pillow would silently flatten (16-bit colour) or drop (further pages and frames) is refused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from watcher.worker.imaging.containers import (
    Container,
    Ifd,
    JpegLayout,
    PngLayout,
    WebpLayout,
    check_bmp_end,
    check_tiff,
    gif_frames,
    jpeg_layout,
    png_layout,
    refuse_zero_tail_of_bmp,
    refuse_zero_tail_of_tiff,
    sniff,
    webp_layout,
)
from watcher.worker.imaging.metadata import exif_orientation, is_companion, multi_picture_kinds
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Layout = JpegLayout | PngLayout | WebpLayout | Ifd | None
_T = TypeVar("_T", bound=np.generic)

MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
"""Pillow modes that are filled; 16-bit variants are brought to `I;16`."""

FRESH_S = 30.0
"""So long after its last change a file counts as one that may still be written. The service waits longer than
that for a file without an end, and then asks once more."""

_OPENERS: dict[Container, Callable[[io.BytesIO], Image.Image]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,  # and not Image.open, which hands multi-picture files to MPO
    "PNG": PngImagePlugin.PngImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was read.

    Attributes:
        data: all its bytes.
        sha256: of `data`, hexadecimal.
        mtime_ns: last modification, to be given to the result.
        permissions: the nine permission bits.
        fresh: it changed so lately that its writer may not be done.
    """

    data: bytes
    sha256: str
    mtime_ns: int
    permissions: int
    fresh: bool


def read_file(path: str, sha256: str | None, *, max_bytes: int, what: str = "picture") -> SourceFile:
    """Read a file whole, once, and hold it against what was dispatched.

    Args:
        path: of the file.
        sha256: the settled bytes' digest, or None to take what is there.
        max_bytes: larger files are refused unread.
        what: the word for it in reasons.

    Raises:
        RefusedError: `vanished`, `changed`, `too_large`, or `undecodable` where it may not be read.
    """
    try:
        # Non-blocking: a pipe put under the picture's name must not stop the worker.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(error, what) from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("undecodable", f"the {what} is not a regular file", "drop the file itself")
        if status.st_size > max_bytes:
            raise RefusedError(
                "too_large",
                f"the {what} has {status.st_size} bytes, and {max_bytes} are allowed",
                "make the file smaller, or raise the limit",
            )
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise _unreadable(error, what) from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise RefusedError(
            "changed",
            f"the {what}'s bytes are not the ones that were settled",
            "nothing to do: the new bytes are a new job",
        )
    permissions = stat.S_IMODE(status.st_mode) & 0o777
    return SourceFile(data, digest, status.st_mtime_ns, permissions, _is_fresh(status))


def _is_fresh(status: os.stat_result) -> bool:
    # A change in the future is a clock that is not ours, and tells nothing.
    return 0 <= time.time() - status.st_ctime < FRESH_S


def _unreadable(error: OSError, what: str) -> RefusedError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return RefusedError("vanished", f"the {what} is gone", "drop it again if it is still wanted")
    return RefusedError(
        "undecodable",
        f"the {what} cannot be read: {error.strerror}",
        "give the service's user the right to read it, then run: watcher retry",
    )


@dataclass(slots=True)
class Picture:
    """An opened picture: header read, pixels not yet.

    Attributes:
        container: format by content.
        data: the file's bytes.
        image: Pillow's image, for its header facts (palette, profile, tables).
        mode: one of `MODES`.
        width: in pixels, as stored.
        height: in pixels, as stored.
        orientation: EXIF orientation, 1 to 8.
        layout: the container's own parts.
    """

    container: Container
    data: bytes
    image: Image.Image
    mode: str
    width: int
    height: int
    orientation: int
    layout: Layout

    @property
    def viewed_size(self) -> tuple[int, int]:
        """Width and height as a person sees them."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side

    @property
    def pixel_bytes(self) -> int:
        """Size of the pixels once they are decoded, judged by the header."""
        deep = self.mode == "I;16"
        return self.width * self.height * (2 if deep else len(self.image.getbands()))

    @property
    def may_have_alpha(self) -> bool:
        """Whether any pixel can be transparent, judged by the header."""
        return self.mode in ("RGBA", "LA") or "transparency" in self.image.info

    def load(self) -> NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.bool_]:
        """Decode the pixels: (height, width) or (height, width, channels), own mode, stored orientation.

        Raises:
            IncompleteError: the decoder ran out of bytes in a format whose end cannot be told beforehand.
            RefusedError: the decoder gave up (undecodable).
        """
        with warnings.catch_warnings():
            _arm_warnings()
            try:
                self.image.load()
            except MemoryError:
                raise
            except Exception as error:  # decoders fail on hostile bytes in every way there is
                raise self._load_failure(error) from error
        pixels = np.asarray(self.image)
        if self.mode == "I;16":
            pixels = pixels.astype(np.uint16, copy=False)
        if self.container == "TIFF":
            pixels = to_stored(pixels, self.orientation)
        return pixels

    def _load_failure(self, error: Exception) -> Exception:
        if "truncated" in str(error) and self.container in ("TIFF", "BMP", "WEBP"):
            return IncompleteError(f"the {self.container} stops before its picture data does")
        return RefusedError(
            "undecodable", f"the {self.container} is damaged: {error}", "restore it from a good copy"
        )

    def alpha(self, pixels: NDArray[np.generic]) -> NDArray[np.uint8] | None:
        """Return the alpha plane (height, width) of decoded pixels, or None where the mode has none."""
        if self.mode in ("RGBA", "LA"):
            return pixels[..., -1].astype(np.uint8, copy=False)
        key = self.image.info.get("transparency")
        if key is None:
            return None
        if self.mode == "P":
            plane: NDArray[np.uint8] = palette_alpha(key)[pixels]
            return plane
        same = pixels == np.asarray(key)
        if self.mode == "RGB":
            same = same.all(axis=-1)
        return np.where(same, np.uint8(0), np.uint8(255))


def palette_alpha(key: int | bytes | None) -> NDArray[np.uint8]:
    """Return the alpha of each of 256 palette entries from Pillow's `transparency`."""
    alpha = np.full(256, 255, np.uint8)
    if isinstance(key, bytes):
        alpha[: len(key)] = np.frombuffer(key[:256], np.uint8)
    elif isinstance(key, int) and 0 <= key < 256:  # noqa: PLR2004 - a palette has at most 256 entries
        alpha[key] = 0
    return alpha


def open_picture(data: bytes, *, max_pixels: int, fresh: bool = False) -> Picture:
    """Judge a picture by its bytes and read its header.

    Args:
        data: the whole file.
        max_pixels: more than this is refused before a pixel is decoded.
        fresh: the file changed so lately that zeros at its end may be bytes to come.

    Raises:
        IncompleteError: the file's end is missing.
        RefusedError: `undecodable`, `unsupported` or `too_large`.
    """
    container = sniff(data)
    layout, end = _layout(container, data)
    if fresh:
        _refuse_zero_tail(container, data, layout)
    with warnings.catch_warnings():
        _arm_warnings()
        try:
            image = _OPENERS[container](io.BytesIO(data[:end] if end < len(data) else data))
        except MemoryError:
            raise
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise _too_large(str(error), max_pixels) from error
        except Exception as error:  # decoders fail on hostile bytes in every way there is
            raise RefusedError(
                "undecodable", f"the {container}'s header is damaged: {error}", "restore it from a good copy"
            ) from error
    width, height = image.size
    if width < 1 or height < 1:
        raise RefusedError("undecodable", f"the {container} has no pixels", "restore it from a good copy")
    if width * height > max_pixels:
        raise _too_large(f"{width}x{height} pixels", max_pixels)
    _refuse_depth(container, image, layout)
    orientation = _orientation(container, image, layout, data)
    if container == "TIFF" and orientation >= 5:  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side
        width, height = height, width
    mode = "I;16" if image.mode.startswith("I;16") else image.mode
    return Picture(container, data, image, mode, width, height, orientation, layout)


def _arm_warnings() -> None:
    warnings.simplefilter("ignore")  # about odd metadata; it is kept as bytes and not interpreted
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _too_large(what: str, max_pixels: int) -> RefusedError:
    return RefusedError(
        "too_large",
        f"the picture is too large: {what}, and {max_pixels} pixels are allowed",
        "make it smaller, in any picture editor, and put it there again",
    )


def _layout(container: Container, data: bytes) -> tuple[Layout, int]:
    try:
        match container:
            case "JPEG":
                jpeg = jpeg_layout(data)
                _refuse_jpeg(jpeg)
                return jpeg, jpeg.end
            case "PNG":
                png = png_layout(data)
                _refuse_animated_png(png)
                return png, png.end
            case "WEBP":
                webp = webp_layout(data)
                if webp.animated:
                    raise _animated("WebP")
                return webp, webp.end
            case "TIFF":
                return check_tiff(data), len(data)
            case "GIF":
                if gif_frames(data) > 1:
                    raise _animated("GIF")
            case "BMP":
                check_bmp_end(data)
    except struct.error as error:
        raise IncompleteError(f"the {container} stops inside its header") from error
    return None, len(data)


def _refuse_zero_tail(container: Container, data: bytes, layout: Layout) -> None:
    if isinstance(layout, Ifd):
        refuse_zero_tail_of_tiff(data, layout)
    elif container == "BMP":
        refuse_zero_tail_of_bmp(data)


def _animated(name: str) -> RefusedError:
    return RefusedError(
        "unsupported",
        f"this {name} is animated, and only one frame would be cleaned",
        "export the frame that you want as a PNG and drop that",
    )


def _refuse_jpeg(layout: JpegLayout) -> None:
    if layout.precision != 8 or layout.frame in (3, 7, 11, 15):  # noqa: PLR2004 - T.81: 8 bits; lossless frames
        raise RefusedError(
            "unsupported",
            f"this JPEG has {layout.precision} bits a sample or is lossless, which is not served",
            "save it as an ordinary 8-bit JPEG, or as PNG or TIFF",
        )
    others = [kind for kind in multi_picture_kinds(layout) if not is_companion(kind)]
    if others:
        raise RefusedError(
            "unsupported",
            f"this JPEG holds {len(others) + 1} pictures (stereo, panorama, burst), and only one would stay",
            "split it into single pictures and drop those",
        )


def _refuse_animated_png(layout: PngLayout) -> None:
    for chunk in layout.chunks:
        if chunk.kind == b"acTL" and struct.unpack_from(">I", chunk.data)[0] > 1:
            raise _animated("PNG")


_BITS_PER_SAMPLE, _PLANAR = 258, 284


def _refuse_depth(container: Container, image: Image.Image, layout: Layout) -> None:
    bits: tuple[int, ...] = ()
    if isinstance(layout, PngLayout):
        bits = (layout.depth,) * (1 if layout.colour_type == 0 else 3)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))
    if len(bits) > 1 and max(bits) > 8:  # noqa: PLR2004 - Pillow cuts deeper colour to 8 bits without a word
        raise RefusedError(
            "unsupported",
            f"this {container} has {max(bits)} bits a colour channel, and 8 of them would be lost",
            "save it with 8 bits a channel and drop that",
        )
    if image.mode == "CMYK":
        raise RefusedError(
            "unsupported",
            "this picture is in CMYK (printing inks), which cannot be filled without shifting its colours",
            "convert it to RGB with its colour profile and drop that",
        )
    if not (image.mode in MODES or image.mode.startswith("I;16")):
        raise RefusedError(
            "unsupported",
            f"this {container} has the pixel type {image.mode}, which is not served",
            "save it as RGB or grey with 8 bits a channel and drop that",
        )


def _orientation(container: Container, image: Image.Image, layout: Layout, data: bytes) -> int:
    if isinstance(layout, Ifd):
        values = layout.integers(data, 274)
        return values[0] if values and 1 <= values[0] <= 8 else 1  # noqa: PLR2004 - EXIF 2.32, 4.6.4
    if container in ("JPEG", "WEBP"):
        return exif_orientation(image.info.get("exif") or b"")
    if isinstance(layout, PngLayout):
        for chunk in layout.chunks:
            if chunk.kind == b"eXIf":
                return exif_orientation(chunk.data)
    return 1


# --- orientation -------------------------------------------------------------------------------------------


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
