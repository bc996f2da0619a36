"""The table of pictures: every format, mode and layout that is tried, how each is made and what is expected.

What this module owns: `ROWS`. Rules of this module:
- A row makes its file from a scene of any size, for any orientation that its container can say.
- Its metadata is all that the container can carry: camera tags, GPS, a maker note whose offsets break when it
  is moved, XMP, IPTC, a colour profile of its class, resolution and texts.
- What may differ in a result stands in the row, and nothing else may.
"""

from __future__ import annotations

import importlib.util
import io
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from tests.worker import sources
from tests.worker.bench import photo
from tests.worker.sources import COMMENT, DEFLATE, GROUP4, IPTC, JPEG, LZW, PACKBITS, XMP, Entry, TiffLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

Fidelity = Literal["exact", "blocks", "close"]
"""Outside the hole: every sample, every sample but in blocks that the hole touches, or close to the eye."""
Fill = Literal["rgb", "grey", "one bit", "palette", "full palette", "inks", "near"]
PALETTES = ("palette", "full palette")
"""With room for the engine's colour, and without: there the nearest has to do."""

EVERY_WAY = tuple(range(1, 9))
UPRIGHT = (1,)


@dataclass(frozen=True)
class Scene:
    """A photo-like picture of one size, in every mode. Arrays are (height, width) or (..., channels)."""

    width: int
    height: int

    @cached_property
    def rgb(self) -> Array:
        return photo(self.width, self.height)

    @cached_property
    def grey(self) -> Array:
        return self.rgb[..., 0].copy()

    @cached_property
    def alpha(self) -> Array:
        """Clear, half and opaque parts, and a slope; the last rows are opaque."""
        slope = np.linspace(0, 255, self.width).astype(np.uint8)
        alpha = np.tile(slope, (self.height, 1))
        alpha[: self.height // 4, : self.width // 3] = 0
        alpha[self.height // 2 :] = 255
        return alpha

    @cached_property
    def deep(self) -> Array:
        """RGB of 16 bits whose low bits are not those of the high ones.

        Every part of it has black and white, so that stretching a part to 8 bits changes no proportion.
        """
        noise = np.random.default_rng(5).integers(0, 256, self.rgb.shape)
        deep = (self.rgb.astype(np.uint16) << 8) | noise.astype(np.uint16)
        deep[::7, ::5], deep[3::7, 2::5] = 0, 65535
        return deep

    @cached_property
    def deep_alpha(self) -> Array:
        low = (np.arange(self.width, dtype=np.uint16) * 37) & 0xFF
        return np.where(self.alpha == 0, 0, (self.alpha.astype(np.uint16) << 8) | low).astype(np.uint16)

    @cached_property
    def inks(self) -> Array:
        """CMYK as a separation program makes it: some black is taken out of the colours."""
        colour = 255 - self.rgb.astype(np.int64)
        black = colour.min(axis=-1, keepdims=True) // 2
        return np.concatenate([colour - black, black], axis=-1).astype(np.uint8)

    def levels(self, bits: int) -> Array:
        """Return grey of 1, 2 or 4 bits."""
        return self.grey >> (8 - bits)

    def palette(self, entries: int) -> tuple[Array, Array]:
        """Return indices (height, width) and colours (entries, 3)."""
        return _palette(self, entries)


@cache
def _palette(scene: Scene, entries: int) -> tuple[Array, Array]:
    image = Image.fromarray(scene.rgb).quantize(entries)
    colours = np.zeros((entries, 3), np.uint8)
    found = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)[:entries]
    colours[: len(found)] = found
    return np.asarray(image).copy(), colours


@cache
def scene(width: int, height: int) -> Scene:
    return Scene(width, height)


@dataclass(frozen=True)
class Row:
    """One kind of picture file.

    Attributes:
        name: as tests print it.
        encode: scene and orientation to the file's bytes.
        container: as `independent.look` names it.
        outside: how the pixels outside the hole come back.
        fill: how the engine's colour looks in this mode.
        orientations: those that the container can say.
        dropped: what the report must name as not kept.
        may_differ: facts of `independent.Seen` that a result may change.
        psnr_db: least likeness outside the hole, where `outside` is close.
        alpha_steps: how far alpha may go, where `outside` is close.
        fill_steps: how far the hole's colour may be from the engine's.
        in_turn: one place of the hole is tried an orientation, in turn, since the row is slow or much like
            another; the long tests try every place in each.
    """

    name: str
    encode: Callable[[Scene, int], bytes]
    container: str
    outside: Fidelity = "exact"
    fill: Fill = "rgb"
    orientations: tuple[int, ...] = EVERY_WAY
    dropped: tuple[str, ...] = ()
    may_differ: frozenset[str] = frozenset()
    psnr_db: float = 35.0
    alpha_steps: int = 0
    fill_steps: float = 2.0
    in_turn: bool = False


# --- PNG ---------------------------------------------------------------------------------------------------


def _text(kind: bytes, keyword: bytes, text: bytes) -> tuple[bytes, bytes]:
    between = {b"tEXt": b"\x00", b"zTXt": b"\x00\x00", b"iTXt": b"\x00\x00\x00\x00\x00"}[kind]
    return kind, keyword + between + (zlib.compress(text) if kind == b"zTXt" else text)


def _png_chunks(orientation: int, *, grey: bool) -> list[tuple[bytes, bytes]]:
    profile = sources.grey_profile() if grey else sources.rgb_profile()
    return [
        (b"iCCP", b"a profile\x00\x00" + zlib.compress(profile)),
        (b"gAMA", struct.pack(">I", 45455)),
        (b"pHYs", struct.pack(">IIB", sources.PER_METRE, sources.PER_METRE, 1)),
        (b"eXIf", sources.exif(orientation)),
        _text(b"tEXt", b"Title", b"A title"),
        _text(b"zTXt", b"Comment", b"A long comment. " * 20),
        _text(b"iTXt", b"XML:com.adobe.xmp", XMP),
    ]


LATE_CHUNKS = [
    (b"tIME", struct.pack(">HBBBBB", 2026, 11, 30, 10, 0, 0)),
    _text(b"tEXt", b"Author", b"Nobody"),
]


@dataclass(frozen=True)
class PngKind:
    """A PNG's header, and how its samples come from a scene."""

    colour_type: int
    depth: int
    samples: Callable[[Scene], Array]
    key: bytes | None = None
    entries: int = 0
    interlace: bool = False

    def __call__(self, scene: Scene, orientation: int) -> bytes:
        palette = None
        if self.entries:
            samples, palette = scene.palette(self.entries)
        else:
            samples = self.samples(scene)
        return sources.png(
            samples,
            self.colour_type,
            self.depth,
            interlace=self.interlace,
            palette=palette,
            key=self.key,
            chunks=_png_chunks(orientation, grey=self.colour_type in (0, 4)),
            late=LATE_CHUNKS,
        )


def _nothing(scene: Scene) -> Array:
    raise AssertionError(scene)


KEY = 9, 8, 7
"""What means transparent in a picture without alpha channel: a colour, or its first sample as grey."""


def _dotted(samples: Array) -> Array:
    """Return samples with dots of the key."""
    dotted = samples.copy()
    dotted[::9, ::4] = KEY if samples.ndim == 3 else KEY[0]
    return dotted


_GREY_KEY, _RGB_KEY = struct.pack(">H", KEY[0]), struct.pack(">HHH", *KEY)
_PNG_MODES: dict[str, tuple[PngKind, Fill]] = {
    "grey1": (PngKind(0, 1, lambda scene: scene.levels(1)), "one bit"),
    "grey2": (PngKind(0, 2, lambda scene: scene.levels(2)), "grey"),
    "grey4": (PngKind(0, 4, lambda scene: scene.levels(4)), "grey"),
    "grey8": (PngKind(0, 8, lambda scene: scene.grey), "grey"),
    "grey8-key": (PngKind(0, 8, lambda scene: _dotted(scene.grey), key=_GREY_KEY), "grey"),
    "grey16": (PngKind(0, 16, lambda scene: scene.deep[..., 0]), "grey"),
    "grey16-key": (PngKind(0, 16, lambda scene: _dotted(scene.deep[..., 0]), key=_GREY_KEY), "grey"),
    "greyalpha8": (PngKind(4, 8, lambda scene: np.dstack([scene.grey, scene.alpha])), "grey"),
    "greyalpha16": (PngKind(4, 16, lambda scene: np.dstack([scene.deep[..., 0], scene.deep_alpha])), "grey"),
    "rgb8": (PngKind(2, 8, lambda scene: scene.rgb), "rgb"),
    "rgb8-key": (PngKind(2, 8, lambda scene: _dotted(scene.rgb), key=_RGB_KEY), "rgb"),
    "rgb16": (PngKind(2, 16, lambda scene: scene.deep), "rgb"),
    "rgb16-key": (PngKind(2, 16, lambda scene: _dotted(scene.deep), key=_RGB_KEY), "rgb"),
    "rgba8": (PngKind(6, 8, lambda scene: np.dstack([scene.rgb, scene.alpha])), "rgb"),
    "rgba16": (PngKind(6, 16, lambda scene: np.dstack([scene.deep, scene.deep_alpha])), "rgb"),
    "palette1": (PngKind(3, 1, _nothing, entries=2), "full palette"),
    "palette2": (PngKind(3, 2, _nothing, entries=4), "full palette"),
    "palette4": (PngKind(3, 4, _nothing, entries=13), "palette"),
    "palette4-alpha": (PngKind(3, 4, _nothing, entries=16, key=bytes([0, 90, 180])), "full palette"),
    "palette8": (PngKind(3, 8, _nothing, entries=200), "palette"),
    "palette8-full": (PngKind(3, 8, _nothing, entries=256), "full palette"),
    "palette8-alpha": (PngKind(3, 8, _nothing, entries=150, key=bytes([0, 90, 180, 255, 20])), "palette"),
}
_INTERLACED = ("grey1", "palette4", "grey16", "rgb8", "rgba8", "rgba16")


def _png_rows() -> list[Row]:
    rows = [Row(f"png-{name}", kind, "PNG", fill=fill) for name, (kind, fill) in _PNG_MODES.items()]
    for name in _INTERLACED:
        kind, fill = _PNG_MODES[name]
        rows.append(Row(f"png-{name}-interlaced", replace(kind, interlace=True), "PNG", fill=fill))
    return rows


# --- TIFF --------------------------------------------------------------------------------------------------


def _tiff_tags(orientation: int, profile: bytes) -> list[Entry]:
    return [
        *sources.CAMERA,
        Entry(270, 2, b"A description\x00"),
        Entry(274, 3, (orientation,)),
        Entry(305, 2, b"A program\x00"),
        Entry(700, 1, XMP),
        Entry(33723, 7, IPTC),
        Entry(34377, 1, sources.PHOTOSHOP),
        Entry(34675, 7, profile),
        Entry(65000, 2, b"A maker's own\x00"),
    ]


@dataclass(frozen=True)
class TiffKind:
    """A TIFF's layout, and how its samples come from a scene."""

    layout: TiffLayout
    samples: Callable[[Scene], Array]
    entries: int = 0

    def __call__(self, scene: Scene, orientation: int) -> bytes:
        palette = None
        if self.entries:
            samples, palette = scene.palette(self.entries)
        else:
            samples = self.samples(scene)
        profile = {0: sources.grey_profile, 1: sources.grey_profile, 5: sources.cmyk_profile}.get(
            self.layout.photometric, sources.rgb_profile
        )
        return sources.tiff(samples, self.layout, _tiff_tags(orientation, profile()), palette)


def _premultiplied(scene: Scene) -> Array:
    alpha = scene.alpha[..., np.newaxis].astype(np.uint32)
    return np.dstack([(scene.rgb * alpha + 127) // 255, alpha]).astype(np.uint8)


_GREY, _RGB, _DEEP = (lambda scene: scene.grey), (lambda scene: scene.rgb), (lambda scene: scene.deep)
_RGBA = lambda scene: np.dstack([scene.rgb, scene.alpha])  # noqa: E731 - a column of the table, as those above
_DEEP_RGBA = lambda scene: np.dstack([scene.deep, scene.deep_alpha])  # noqa: E731 - likewise

_TIFF_KINDS: dict[str, tuple[TiffKind, Fill]] = {
    "grey1": (TiffKind(TiffLayout(1, 1), lambda scene: scene.levels(1)), "one bit"),
    "grey1-white-is-zero": (TiffKind(TiffLayout(0, 1), lambda scene: scene.levels(1)), "one bit"),
    "grey1-group4": (
        TiffKind(TiffLayout(1, 1, compression=GROUP4), lambda scene: scene.levels(1)),
        "one bit",
    ),
    "grey4": (TiffKind(TiffLayout(1, 4), lambda scene: scene.levels(4)), "grey"),
    "grey2": (TiffKind(TiffLayout(1, 2), lambda scene: scene.levels(2)), "grey"),
    "grey8": (TiffKind(TiffLayout(1), _GREY), "grey"),
    "grey8-white-is-zero": (TiffKind(TiffLayout(0), _GREY), "grey"),
    "grey16": (TiffKind(TiffLayout(1, 16), lambda scene: scene.deep[..., 0]), "grey"),
    "grey16-big-endian": (TiffKind(TiffLayout(1, 16, order=">"), lambda scene: scene.deep[..., 0]), "grey"),
    "greyalpha8": (
        TiffKind(TiffLayout(1, extra=(2,)), lambda scene: np.dstack([scene.grey, scene.alpha])),
        "grey",
    ),
    "greyalpha16": (
        TiffKind(
            TiffLayout(1, 16, extra=(2,)), lambda scene: np.dstack([scene.deep[..., 0], scene.deep_alpha])
        ),
        "grey",
    ),
    "palette4": (TiffKind(TiffLayout(3, 4), _nothing, entries=16), "full palette"),
    "palette8": (TiffKind(TiffLayout(3), _nothing, entries=256), "full palette"),
    "palette8-lzw": (TiffKind(TiffLayout(3, compression=LZW), _nothing, entries=256), "full palette"),
    "rgb8": (TiffKind(TiffLayout(2), _RGB), "rgb"),
    "rgb8-directory-last": (TiffKind(TiffLayout(2, directory_last=True, compression=LZW), _RGB), "rgb"),
    "rgb8-extra-channel": (TiffKind(TiffLayout(2, extra=(0,)), _RGBA), "rgb"),
    "rgb8-big-endian": (TiffKind(TiffLayout(2, order=">"), _RGB), "rgb"),
    "rgb8-packbits": (TiffKind(TiffLayout(2, compression=PACKBITS), _RGB), "rgb"),
    "rgb8-jpeg": (TiffKind(TiffLayout(6, compression=JPEG), _RGB), "near"),
    "rgb8-lzw": (TiffKind(TiffLayout(2, compression=LZW), _RGB), "rgb"),
    "rgb8-lzw-predictor": (TiffKind(TiffLayout(2, compression=LZW, predictor=True), _RGB), "rgb"),
    "rgb8-deflate-predictor": (TiffKind(TiffLayout(2, compression=DEFLATE, predictor=True), _RGB), "rgb"),
    "rgb8-tiled": (TiffKind(TiffLayout(2, tile=32), _RGB), "rgb"),
    "rgb8-tiled-deflate": (TiffKind(TiffLayout(2, compression=DEFLATE, tile=16), _RGB), "rgb"),
    "rgb8-planar": (TiffKind(TiffLayout(2, planar=True), _RGB), "rgb"),
    "rgb8-planar-lzw": (TiffKind(TiffLayout(2, planar=True, compression=LZW), _RGB), "rgb"),
    "rgba8": (TiffKind(TiffLayout(2, extra=(2,)), _RGBA), "rgb"),
    "rgba8-associated": (TiffKind(TiffLayout(2, extra=(1,)), _premultiplied), "near"),
    "rgba8-deflate": (TiffKind(TiffLayout(2, extra=(2,), compression=DEFLATE), _RGBA), "rgb"),
    "rgb16": (TiffKind(TiffLayout(2, 16), _DEEP), "rgb"),
    "rgb16-big-endian": (TiffKind(TiffLayout(2, 16, order=">"), _DEEP), "rgb"),
    "rgb16-lzw": (TiffKind(TiffLayout(2, 16, compression=LZW), _DEEP), "rgb"),
    "rgb16-lzw-predictor": (
        TiffKind(TiffLayout(2, 16, compression=LZW, predictor=True), _DEEP),
        "rgb",
    ),
    "rgb16-deflate-predictor-big-endian": (
        TiffKind(TiffLayout(2, 16, order=">", compression=DEFLATE, predictor=True), _DEEP),
        "rgb",
    ),
    "rgb16-tiled": (TiffKind(TiffLayout(2, 16, tile=32), _DEEP), "rgb"),
    "rgb16-planar": (TiffKind(TiffLayout(2, 16, planar=True), _DEEP), "rgb"),
    "rgba16": (TiffKind(TiffLayout(2, 16, extra=(2,)), _DEEP_RGBA), "rgb"),
    "cmyk8": (TiffKind(TiffLayout(5), lambda scene: scene.inks), "inks"),
    "cmyk16": (TiffKind(TiffLayout(5, 16), lambda scene: scene.inks.astype(np.uint16) * 257 + 5), "inks"),
    "cmyk8-spot-colour": (
        TiffKind(TiffLayout(5, extra=(0,)), lambda scene: np.dstack([scene.inks, scene.grey])),
        "inks",
    ),
    "cmyk8-lzw": (TiffKind(TiffLayout(5, compression=LZW), lambda scene: scene.inks), "inks"),
    "cmyk8-planar": (TiffKind(TiffLayout(5, planar=True), lambda scene: scene.inks), "inks"),
}


_RECODED = frozenset(
    {"tags", "samples", "Image RowsPerStrip", "Image SamplesPerPixel", "Image JPEGTables"}
    | {"Image ReferenceBlackWhite"}
)
"""What another encoder writes otherwise: these two are encoded anew, as one strip."""


def _tiff_rows() -> list[Row]:
    rows = [Row(f"tiff-{name}", kind, "TIFF", fill=fill) for name, (kind, fill) in _TIFF_KINDS.items()]
    lossy = [row.name for row in rows if "jpeg" in row.name]
    rows = [replace(row, fill_steps=4) if row.fill in ("near", "inks") else row for row in rows]
    rows = [replace(row, outside="close") if row.name in lossy else row for row in rows]
    return [
        replace(row, may_differ=_RECODED) if row.name.endswith(("jpeg", "group4")) else row for row in rows
    ]


# --- JPEG --------------------------------------------------------------------------------------------------


def _jpeg(scene: Scene, orientation: int, **options: Any) -> bytes:
    grey = options.pop("grey", False)
    image = Image.fromarray(scene.grey if grey else scene.rgb)
    if not options.get("keep_rgb"):  # a resolution stands in the JFIF header, and that says Y, Cb, Cr
        options["dpi"] = (300, 300)
    data = sources.by_pillow(image, "JPEG", **{"quality": 90, **options})
    profile = sources.grey_profile() if grey else sources.rgb_profile()
    return sources.with_segments(data, sources.camera_segments(orientation, profile))


def _sampled_jpeg(
    scene: Scene, orientation: int, factors: tuple[tuple[int, int], ...], *, restart: int = 0
) -> bytes:
    """Return a JPEG with sampling factors, and perhaps restart markers, that Pillow does not write."""
    planes = [scene.grey] if len(factors) == 1 else _luma_and_chroma(scene.rgb)
    profile = sources.grey_profile() if len(factors) == 1 else sources.rgb_profile()
    segments = sources.camera_segments(orientation, profile)
    return sources.baseline_jpeg(planes, factors, restart=restart, segments=segments)


def _luma_and_chroma(rgb: Array) -> list[Array]:
    return list(np.moveaxis(np.asarray(Image.fromarray(rgb).convert("YCbCr")), -1, 0))


def _inks_jpeg(scene: Scene, orientation: int, *, transform: int, **options: Any) -> bytes:
    """Return a JPEG of inks as Adobe's programs write it: inverted, as CMYK (0) or as YCCK (2)."""
    stored = 255 - scene.inks
    if transform == 2:  # its Y, Cb and Cr are those of an RGB that is inverted once more
        stored = np.dstack([*_luma_and_chroma(scene.inks[..., :3]), stored[..., 3]])
    image = Image.frombytes("CMYK", (scene.width, scene.height), (255 - stored).tobytes())  # Pillow inverts
    data = sources.by_pillow(image, "JPEG", quality=90, **options)
    at = data.index(b"\xff\xee\x00\x0eAdobe") + 15
    assert data[at] == 0
    data = data[:at] + bytes([transform]) + data[at + 1 :]
    return sources.with_segments(data, sources.camera_segments(orientation, sources.cmyk_profile()))


def _two_picture_jpeg(scene: Scene, orientation: int) -> bytes:
    """Return what cameras and phones write: a picture, and a small one of it behind."""
    image = Image.fromarray(scene.rgb)
    small = image.resize((max(1, scene.width // 4), max(1, scene.height // 4)))
    data = sources.by_pillow(image, "MPO", save_all=True, append_images=[small], quality=90)
    # Its index counts from its own place, so what is put in before it does not move the second picture.
    return sources.with_segments(data, sources.camera_segments(orientation, sources.rgb_profile()))


_JPEG_KINDS: dict[str, tuple[Callable[[Scene, int], bytes], Fill]] = {
    "444": (partial(_jpeg, subsampling=0), "near"),
    "422": (partial(_jpeg, subsampling=1), "near"),
    "420": (partial(_jpeg, subsampling=2), "near"),
    "420-low-quality": (partial(_jpeg, subsampling=2, quality=30), "near"),
    "420-progressive": (partial(_jpeg, subsampling=2, progressive=True), "near"),
    "444-progressive": (partial(_jpeg, subsampling=0, progressive=True), "near"),
    "rgb-coded": (partial(_jpeg, subsampling=0, keep_rgb=True), "near"),
    "grey": (partial(_jpeg, grey=True), "near"),
    "grey-progressive": (partial(_jpeg, grey=True, progressive=True), "near"),
    "grey-2x2": (partial(_sampled_jpeg, factors=((2, 2),)), "near"),
    "440": (partial(_sampled_jpeg, factors=((1, 2), (1, 1), (1, 1))), "near"),
    "411": (partial(_sampled_jpeg, factors=((4, 1), (1, 1), (1, 1))), "near"),
    "420-restarts": (partial(_sampled_jpeg, factors=((2, 2), (1, 1), (1, 1)), restart=3), "near"),
    "uneven-chroma": (partial(_sampled_jpeg, factors=((2, 2), (2, 1), (1, 1))), "near"),
    "cmyk": (partial(_inks_jpeg, transform=0), "inks"),
    "cmyk-progressive": (partial(_inks_jpeg, transform=0, progressive=True), "inks"),
    "ycck": (partial(_inks_jpeg, transform=2), "inks"),
}


def _jpeg_rows() -> list[Row]:
    rows = [
        Row(f"jpeg-{name}", kind, "JPEG", "blocks", fill, fill_steps=16 if "low" in name else 4)
        for name, (kind, fill) in _JPEG_KINDS.items()
    ]
    rows.append(
        Row(
            "jpeg-mpo",
            _two_picture_jpeg,
            "JPEG",
            "blocks",
            "near",
            dropped=("multi-picture index", "further pictures (preview, gain map, or other)"),
            may_differ=frozenset({"segments"}),
            fill_steps=4,
        )
    )
    return rows


# --- WebP, AVIF, HEIC --------------------------------------------------------------------------------------


def _image(scene: Scene, *, alpha: bool) -> Image.Image:
    return Image.fromarray(np.dstack([scene.rgb, scene.alpha]) if alpha else scene.rgb)


def _webp(scene: Scene, orientation: int, *, alpha: bool, **options: Any) -> bytes:
    return sources.by_pillow(
        _image(scene, alpha=alpha),
        "WEBP",
        exif=sources.exif(orientation),
        xmp=XMP,
        icc_profile=sources.rgb_profile(),
        **options,
    )


def _avif(scene: Scene, orientation: int, *, alpha: bool, subsampling: str = "4:2:0") -> bytes:
    data = sources.by_pillow(
        _image(scene, alpha=alpha),
        "AVIF",
        quality=90,
        speed=10,
        subsampling=subsampling,
        exif=sources.exif(orientation),
        xmp=XMP,
        icc_profile=sources.rgb_profile(),
    )
    # Pillow says the orientation by boxes and takes it out of the EXIF block, which moves the maker note away
    # from its offsets: the block is put in again as a camera would have written it.
    moved = Image.Exif()
    moved.load(sources.exif(orientation))
    del moved[0x0112]
    block = moved.tobytes().removeprefix(b"Exif\x00\x00")
    assert data.count(block) == 1
    return data.replace(block, sources.exif(None).ljust(len(block), b"\x00"))


def _heic(scene: Scene, orientation: int, *, alpha: bool) -> bytes:
    import pillow_heif  # noqa: PLC0415 - an extra: only its own rows need it

    pillow_heif.register_heif_opener()
    return sources.by_pillow(
        _image(scene, alpha=alpha),
        "HEIF",
        quality=90,
        exif=sources.exif(orientation),
        xmp=XMP,
        icc_profile=sources.rgb_profile(),
    )


def _deep_heic(scene: Scene, _: int) -> bytes:
    """Return a HEIC of 10 bits a channel; what pillow-heif writes in this way has no turns."""
    import pillow_heif  # noqa: PLC0415 - an extra: only its own rows need it

    size = (scene.width, scene.height)
    image = pillow_heif.from_bytes("RGB;16", size, scene.deep.tobytes())
    target = io.BytesIO()
    image.info.update(exif=sources.exif(None), xmp=XMP, icc_profile=sources.rgb_profile())
    image.save(target, quality=90)
    return target.getvalue()


def _modern_rows() -> list[Row]:
    rows = [
        Row("webp-lossless-rgb", partial(_webp, alpha=False, lossless=True), "WEBP"),
        Row("webp-lossless-rgba", partial(_webp, alpha=True, lossless=True, exact=True), "WEBP"),
    ]
    kinds: dict[str, tuple[Callable[[Scene, int], bytes], str]] = {
        "webp-rgb": (partial(_webp, alpha=False, quality=90), "WEBP"),
        "webp-rgba": (partial(_webp, alpha=True, quality=90), "WEBP"),
        "avif-420": (partial(_avif, alpha=False), "HEIF"),
        "avif-444": (partial(_avif, alpha=False, subsampling="4:4:4"), "HEIF"),
        "avif-rgba": (partial(_avif, alpha=True), "HEIF"),
    }
    if importlib.util.find_spec("pillow_heif") is not None:
        kinds |= {
            "heic-rgb": (partial(_heic, alpha=False), "HEIF"),
            "heic-rgba": (partial(_heic, alpha=True), "HEIF"),
            "heic-10-bit": (_deep_heic, "HEIF"),
        }
    rows += [
        Row(name, encode, container, "close", "near", fill_steps=16 if "avif" in name else 6)
        for name, (encode, container) in kinds.items()
    ]
    return [replace(row, orientations=UPRIGHT) if "10-bit" in row.name else row for row in rows]


# --- BMP and GIF, which cannot say an orientation ----------------------------------------------------------


def _bmp(scene: Scene, _: int, bits: int, **options: Any) -> bytes:
    if bits <= 8:
        samples, palette = scene.palette(min(1 << bits, 200))
        return sources.bmp(samples, bits, palette=palette, **options)
    if bits == 16:
        red, green, blue = np.moveaxis(scene.rgb.astype(np.uint16) >> 3, -1, 0)
        samples = red << 11 | green << 6 | blue if options.get("masks") else red << 10 | green << 5 | blue
    else:
        samples = np.dstack([scene.rgb, scene.alpha]) if bits == 32 else scene.rgb
    return sources.bmp(samples, bits, **options)


_ALPHA_MASKS = (0x00FF0000, 0x0000FF00, 0x000000FF, 0xFF000000)


def _gif(scene: Scene, _: int, entries: int, *, own_table: bool = False, **options: Any) -> bytes:
    image = Image.fromarray(scene.rgb).quantize(entries)
    gif = sources.gif_with_xmp(sources.by_pillow(image, "GIF", comment=COMMENT, **options))
    return sources.gif_with_own_table(gif) if own_table else gif


def _small_gif(scene: Scene, _: int) -> bytes:
    """Return a GIF whose frame leaves the left side of its screen free."""
    left = min(7, scene.width - 1)
    image = Image.fromarray(scene.rgb[:, left:]).quantize(200)
    gif = sources.by_pillow(image, "GIF", comment=COMMENT)
    return sources.gif_on_screen(gif, (scene.width, scene.height), left, 0)


def _plain_rows() -> list[Row]:
    rows = [
        Row("bmp-palette1", partial(_bmp, bits=1), "BMP", fill="full palette"),
        Row("bmp-palette4", partial(_bmp, bits=4), "BMP", fill="full palette"),
        Row("bmp-palette8", partial(_bmp, bits=8), "BMP", fill="palette"),
        Row("bmp-palette8-first-header", partial(_bmp, bits=8, first_header=True), "BMP", fill="palette"),
        Row("bmp-rgb-first-header", partial(_bmp, bits=24, first_header=True), "BMP"),
        Row("bmp-16-555", partial(_bmp, bits=16), "BMP", fill_steps=4),
        Row("bmp-16-565", partial(_bmp, bits=16, masks=(0xF800, 0x07E0, 0x001F)), "BMP", fill_steps=4),
        Row("bmp-rgb", partial(_bmp, bits=24), "BMP"),
        Row("bmp-rgb-top-down", partial(_bmp, bits=24, top_down=True), "BMP"),
        Row("bmp-rgba", partial(_bmp, bits=32, masks=_ALPHA_MASKS), "BMP"),
        Row("gif-16", partial(_gif, entries=16), "GIF", fill="palette"),
        Row("gif-200", partial(_gif, entries=200), "GIF", fill="palette"),
        Row("gif-own-table", partial(_gif, entries=200, own_table=True), "GIF", fill="palette"),
        Row("gif-small-frame", _small_gif, "GIF", fill="palette"),
        Row("gif-transparent", partial(_gif, entries=200, transparency=7), "GIF", fill="palette"),
        Row("gif-not-interlaced", partial(_gif, entries=256, interlace=0), "GIF", fill="full palette"),
    ]
    rows = [replace(row, orientations=UPRIGHT) for row in rows]
    # A GIF's colour table grows to have the fill's own colours.
    grown = frozenset({"bits-per-sample"})
    return [replace(row, may_differ=grown) if row.container == "GIF" else row for row in rows]


_TRIED_WHOLLY = frozenset(
    {"png-grey1", "png-grey4", "png-grey16", "png-palette4", "png-palette8-alpha", "png-rgb8", "png-rgba8"}
    | {"png-rgba16", "png-rgba8-interlaced", "tiff-grey1", "tiff-grey16", "tiff-palette8", "tiff-rgb8"}
    | {"tiff-rgb8-lzw-predictor", "tiff-rgb8-tiled", "tiff-rgb8-planar", "tiff-rgba8", "jpeg-420"}
    | {"tiff-rgb16-big-endian", "webp-rgb", "webp-lossless-rgba"}
)


def _table() -> dict[str, Row]:
    rows = [*_png_rows(), *_tiff_rows(), *_jpeg_rows(), *_modern_rows(), *_plain_rows()]
    return {
        row.name: replace(row, in_turn=row.orientations != UPRIGHT and row.name not in _TRIED_WHOLLY)
        for row in rows
    }


ROWS: dict[str, Row] = _table()
