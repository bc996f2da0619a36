"""What every format has in common: an opened picture, its pixels, and how a filled one is handed back to it.

Words: *stored* is how the pixels lie in the file, *viewed* is what a person sees. A picture's *own mode* is
one of `MODES`; ";16" marks 16 bits a sample. Rules of this module:
- A format is one subclass of `Picture` in `formats/`; it owns all that is peculiar to its files, and no other
  module asks which format it has before it.
- `load` gives the stored pixels in the picture's own mode and depth; `encode` takes the same array back, and
  may rely on it being unchanged where the mask is False.
"""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from watcher.wire import Outside
    from watcher.worker.imaging.sniffing import Container

    Mask = NDArray[np.bool_]
    Pixels = NDArray[Any]
    Transparency = int | bytes | tuple[int, ...] | None

_T = TypeVar("_T")

MODES = frozenset(
    {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "LA;16", "RGB;16", "RGBA;16"},
)
"""Own modes that are filled. Arrays are (height, width) or (height, width, channels): bool for "1", uint16
where the name says 16 and uint8 elsewhere; "P" holds numbers of palette entries, "CMYK" ink from 0 to 255."""

DEEP_MODES = frozenset({"I;16", "LA;16", "RGB;16", "RGBA;16"})
ALPHA_MODES = frozenset({"LA", "RGBA", "LA;16", "RGBA;16"})
_CHANNELS = {"1": 1, "L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4} | {
    "I;16": 1,
    "LA;16": 2,
    "RGB;16": 3,
    "RGBA;16": 4,
}


@dataclass(frozen=True, slots=True)
class Palette:
    """The entries of a palette picture.

    Attributes:
        colours: RGB, uint8, (entries, 3).
        alphas: of 256 entries, uint8; 255 is opaque.
    """

    colours: NDArray[np.uint8]
    alphas: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Filled:
    """A filled picture.

    Attributes:
        pixels: as `Picture.load` gave them, changed inside the hole only.
        hole: the grown mask, bool, (height, width), stored orientation.
        palette: of a "P" picture, whose unused entries may have been given to the fill's colours; else None.
    """

    pixels: Pixels
    hole: Mask
    palette: Palette | None = None


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a result is to be written, by its recipe.

    Attributes:
        quality: 1 to 100 for lossy formats, or None for the source's own.
        keep_metadata: off leaves only what decides how the pixels look: colour profile and orientation.
    """

    quality: int | None = None
    keep_metadata: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """A result.

    Attributes:
        data: its bytes.
        outside: what is true of its pixels outside the hole.
        dropped_metadata: the names of what is lost.
        note: what a person should know besides, or None.
    """

    data: bytes
    outside: Outside
    dropped_metadata: tuple[str, ...] = ()
    note: str | None = None


class Picture(ABC):
    """An opened picture: header read, pixels not yet.

    Attributes:
        data: the file's bytes.
        image: Pillow's image, for its header facts and its decoder.
        mode: one of `MODES`.
        width: in pixels, as stored.
        height: in pixels, as stored.
        orientation: EXIF orientation, 1 to 8, that turns stored into viewed.
        transparency: what stands for transparent where the mode has no alpha channel: a palette entry, the
            alphas of the first entries, a grey value, or a colour, in its own depth; None for nothing.
        icc_profile: the embedded colour profile, or nothing.
        spare_entries: of a palette picture, which of 256 entries the fill may have if no pixel shows them.
    """

    container: ClassVar[Container]
    encode_work: ClassVar[int] = 1
    """How much dearer a pixel is to encode than a JPEG's."""

    def __init__(
        self, data: bytes, image: Image.Image, *, mode: str | None = None, orientation: int = 1
    ) -> None:
        self.data = data
        self.image = image
        self.mode = image.mode if mode is None else mode
        self.width, self.height = image.size
        self.orientation = orientation
        self.transparency: Transparency = image.info.get("transparency")
        self.icc_profile: bytes = image.info.get("icc_profile") or b""
        self.spare_entries: Mask = np.ones(256, np.bool_)
        if self.mode not in MODES:
            raise RefusedError(
                "unsupported",
                f"this {self.container} has the pixel type {self.mode}, which is not served",
                "save it as RGB or grey and drop that",
            )

    @classmethod
    @abstractmethod
    def open(cls, data: bytes, *, fresh: bool) -> Picture:
        """Judge the format's structure and read its header; no pixel is decoded.

        Args:
            data: the whole file, of this format by its signature.
            fresh: the file changed so lately that zeros at its end may be bytes to come.

        Raises:
            IncompleteError: the file's end is missing.
            RefusedError: `undecodable` or `unsupported`.
            struct.error: the bytes stop inside the header.
        """

    @classmethod
    def bytes_to_open(cls, data: bytes) -> int:  # noqa: ARG003 - for formats that need the whole canvas at once
        """Return how much memory reading the header takes because of the picture's size."""
        return 0

    def check_whole(self) -> None:  # noqa: B027 - most formats cannot be cut without its being seen
        """Look whether the pixels are all there, where decoding does not tell.

        `encode` looks by itself: this is for pictures that are only looked at.

        Raises:
            IncompleteError: they are not, and somebody may still be writing.
            RefusedError: they are not (undecodable).
        """

    @abstractmethod
    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in the source's container, with what travels with it."""

    @property
    def viewed_size(self) -> tuple[int, int]:
        """Width and height as a person sees them."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side

    @property
    def pixel_bytes(self) -> int:
        """Size of the pixels once they are decoded, judged by the header."""
        deep = 2 if self.mode in DEEP_MODES else 1
        return self.width * self.height * _CHANNELS[self.mode] * deep

    @property
    def encode_work_px(self) -> int:
        """How much encoding this picture has to do, in pixels of a JPEG: what its time is foreseen by."""
        return self.width * self.height * self.encode_work

    @property
    def may_have_alpha(self) -> bool:
        """Whether any pixel can be transparent, judged by the header."""
        return self.mode in ALPHA_MODES or self.transparency is not None

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation.

        Raises:
            IncompleteError: the decoder ran out of bytes in a format whose end cannot be told beforehand.
            RefusedError: the decoder gave up (undecodable).
        """
        self._decode()
        return np.asarray(self.image)

    def _decode(self) -> None:
        """Let Pillow decode."""
        guarded(self.image.load, self._load_failure)

    def _load_failure(self, error: Exception) -> Exception:
        return damaged(self.container, error)

    def alpha(self, pixels: Pixels) -> NDArray[np.uint8] | None:
        """Return the alpha plane (height, width) of decoded pixels, or None where the mode has none.

        It is 0 only where a pixel is fully transparent, also at 16 bits.
        """
        if self.mode in ALPHA_MODES:
            return _eight_bit_alpha(pixels[..., -1])
        if self.transparency is None:
            return None
        if self.mode == "P":
            plane: NDArray[np.uint8] = palette_alpha(self.transparency)[pixels]
            return plane
        return np.where(of_colour(pixels, self.transparency), np.uint8(0), np.uint8(255))


def of_colour(pixels: Pixels, colour: Transparency) -> Mask:
    """Return where pixels have one colour: bool, (height, width)."""
    same: Mask = pixels == np.asarray(colour)
    if same.ndim == 2:  # noqa: PLR2004 - (height, width)
        return same
    whole: Mask = np.all(same, axis=-1)
    return whole


def _eight_bit_alpha(alpha: NDArray[np.generic]) -> NDArray[np.uint8]:
    if alpha.dtype == np.uint8:
        return alpha.astype(np.uint8, copy=False)
    high = (alpha.astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    high[(high == 0) & (alpha != 0)] = 1
    return high


def palette_alpha(key: Transparency) -> NDArray[np.uint8]:
    """Return the alpha of each of 256 palette entries from a palette's `transparency`."""
    alpha = np.full(256, 255, np.uint8)
    if isinstance(key, bytes):
        alpha[: len(key)] = np.frombuffer(key[:256], np.uint8)
    elif isinstance(key, int) and 0 <= key < 256:  # noqa: PLR2004 - a palette has at most 256 entries
        alpha[key] = 0
    return alpha


# --- what formats share ------------------------------------------------------------------------------------


def open_image(
    container: Container,
    opener: Callable[[io.BytesIO], Image.Image],
    data: bytes,
    *,
    remedy: str = "restore it from a good copy",
) -> Image.Image:
    """Let one of Pillow's plugins, and no other, read a header.

    Args:
        container: for the words of a refusal.
        opener: the plugin.
        data: of the file.
        remedy: what a person can do where it gives up.

    Raises:
        RefusedError: it gave up (undecodable): the header is damaged, or of a kind that it does not know.
    """
    return guarded(
        lambda: opener(io.BytesIO(data)),
        lambda error: RefusedError(
            "undecodable",
            f"the {container}'s header is damaged, or of a kind that is not known: {error}",
            remedy,
        ),
    )


def guarded(decoder: Callable[[], _T], failure: Callable[[Exception], Exception]) -> _T:
    """Run a decoder, and say in our words what it says in its own.

    Args:
        decoder: what reads hostile bytes.
        failure: makes the exception that is raised from the decoder's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata; it is kept as bytes and not interpreted
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return decoder()
        except MemoryError:
            raise
        except Exception as error:  # decoders fail on hostile bytes in every way there is
            raise failure(error) from error


def damaged(container: Container, error: Exception | str) -> RefusedError:
    """Say that a picture's data is broken."""
    return RefusedError("undecodable", f"the {container} is damaged: {error}", "restore it from a good copy")


def animated(container: Container) -> RefusedError:
    """Say that a picture has frames."""
    return RefusedError(
        "unsupported",
        f"this {container} is animated, and only one frame would be cleaned",
        "export the frame that you want as a PNG and drop that",
    )


def pillow_image(picture: Picture, filled: Filled) -> Image.Image:
    """Return a filled picture of at most 8 bits a sample as Pillow's image, its transparency set."""
    if picture.mode == "1":
        grey = filled.pixels.astype(np.uint8) * np.uint8(255)
        image = Image.fromarray(grey).convert("1", dither=Image.Dither.NONE)
    elif filled.palette is not None:
        return _palette_image(picture, filled.pixels, filled.palette)
    elif picture.mode == "CMYK":
        image = Image.frombytes("CMYK", (picture.width, picture.height), filled.pixels.tobytes())
    else:
        image = Image.fromarray(filled.pixels)
    if picture.transparency is not None:
        image.info["transparency"] = picture.transparency
    return image


def _palette_image(picture: Picture, indices: Pixels, palette: Palette) -> Image.Image:
    height, width = indices.shape
    image = Image.frombytes("P", (width, height), indices.astype(np.uint8, copy=False).tobytes())
    image.putpalette(palette.colours.tobytes(), "RGB")
    clear = np.flatnonzero(palette.alphas < 255)  # noqa: PLR2004 - not fully opaque
    if isinstance(picture.transparency, bytes) and clear.size:
        image.info["transparency"] = palette.alphas[: int(clear[-1]) + 1].tobytes()
    elif isinstance(picture.transparency, int) and clear.size:
        image.info["transparency"] = picture.transparency
    return image


def save(image: Image.Image, container: Container, options: dict[str, Any]) -> bytes:
    """Encode with Pillow."""
    target = io.BytesIO()
    image.save(target, container, **options)
    return target.getvalue()
