"""A filled picture back to bytes in its own container, and bytes to a file in staging.

Rules of this module:
- JPEG is written with the source's own quantisation tables and chroma subsampling (or the recipe's quality),
  progressive stays progressive, RGB-coded stays RGB-coded. Lossless WebP stays lossless, TIFF keeps its
  compression. What was lossless comes back bit-identical outside the mask.
- PNG is deflated at level 4: on photos a third of the time of level 6 for about two per cent more bytes.
- The source's metadata is put into the encoder's output as bytes (see `metadata`); what is lost is named.
- The staged file carries the source's permissions (the owner may always write) and modification time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import GifImagePlugin, Image, ImageFile, JpegImagePlugin, TiffImagePlugin

from watcher.worker.imaging.containers import (
    PNG_SIGNATURE,
    Ifd,
    JpegLayout,
    JpegSegment,
    PngChunk,
    PngLayout,
    WebpLayout,
    jpeg_layout,
    png_layout,
)
from watcher.worker.imaging.metadata import (
    exif_orientation,
    exif_without_pictures,
    jpeg_metadata,
    orientation_only,
    photoshop_without_thumbnails,
    png_metadata,
    tiff_part,
    xmp_without_pictures,
)
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from watcher.worker.imaging.decode import Picture, SourceFile

PNG_LEVEL = 4
WEBP_QUALITY = 92
"""A lossy WebP does not say how it was made; this is high enough not to be seen."""


_WORK: Final = {"JPEG": 1, "BMP": 1, "TIFF": 4, "GIF": 4, "PNG": 16, "WEBP": 16}
_LOSSLESS_WEBP_WORK: Final = 32
"""How much dearer a pixel is than a JPEG's: for 12 MP of noise two x86 cores took 0.14 s (JPEG), 3.3 s (PNG)
and 4.5 s (lossless WebP)."""


def encode_work_px(picture: Picture) -> int:
    """How much encoding this picture has to do, in pixels of a JPEG: what its time is foreseen by."""
    work = _WORK[picture.container]
    if isinstance(picture.layout, WebpLayout) and picture.layout.lossless:
        work = _LOSSLESS_WEBP_WORK
    return picture.width * picture.height * work


@dataclass(frozen=True, slots=True)
class Encoded:
    """The result's bytes and the names of the metadata that did not make it."""

    data: bytes
    dropped_metadata: tuple[str, ...]


def encode(picture: Picture, image: Image.Image, *, quality: int | None, keep_metadata: bool) -> Encoded:
    """Encode a filled picture in its source's container.

    Args:
        picture: the source.
        image: the filled picture, stored orientation, the source's mode.
        quality: 1 to 100 for lossy formats, or None for the source's own.
        keep_metadata: off leaves only the colour profile and the orientation.
    """
    dropped: list[str] = []
    match picture.container:
        case "JPEG":
            data = _jpeg(picture, image, dropped, quality=quality, keep=keep_metadata)
        case "PNG":
            data = _png(picture, image, dropped, keep=keep_metadata)
        case "WEBP":
            data = _webp(picture, image, dropped, quality=quality, keep=keep_metadata)
        case "TIFF":
            data = _tiff(picture, image, dropped, quality=quality, keep=keep_metadata)
        case "BMP":
            data = _bmp(picture, image)
        case "GIF":
            data = _gif(picture, image, dropped, keep=keep_metadata)
    return Encoded(data, tuple(dict.fromkeys(dropped)))


# --- JPEG --------------------------------------------------------------------------------------------------


def _jpeg(
    picture: Picture, image: Image.Image, dropped: list[str], *, quality: int | None, keep: bool
) -> bytes:
    source, layout = picture.image, picture.layout
    assert isinstance(source, JpegImagePlugin.JpegImageFile)  # noqa: S101 - narrows what `container` says
    assert isinstance(layout, JpegLayout)  # noqa: S101 - likewise
    options: dict[str, Any] = {
        "subsampling": max(0, JpegImagePlugin.get_sampling(source)),  # unknown layouts: full chroma, no loss
        "progressive": bool(source.info.get("progressive")),
        "optimize": True,
        "keep_rgb": _is_rgb_coded(source, layout),
        # Pillow would take these from the source's info; they come with the spliced segments.
        "comment": b"",
    }
    if quality is None:
        options["qtables"] = _tables(source, layout)
    else:
        options["quality"] = quality
    encoded = _save(image, "JPEG", options, room=4 * picture.width * picture.height)
    kept = jpeg_metadata(layout, picture.data[layout.end :], dropped, keep=keep)
    return _splice_jpeg(encoded, kept)


def _tables(source: JpegImagePlugin.JpegImageFile, layout: JpegLayout) -> list[list[int]]:
    """Return the source's quantisation tables, one a component, less repetitions of the last."""
    found = source.quantization
    numbers = [number for number in layout.tables if number in found] or sorted(found)
    while len(numbers) > 1 and numbers[-1] == numbers[-2]:
        numbers.pop()  # the encoder uses the last table for all components that are left
    return [found[number] for number in numbers]


def _is_rgb_coded(source: JpegImagePlugin.JpegImageFile, layout: JpegLayout) -> bool:
    """Whether the components are R, G, B and not Y, Cb, Cr (libjpeg decides by the same signs)."""
    if source.mode != "RGB" or any(s.payload.startswith(b"JFIF\x00") for s in layout.segments):
        return False
    adobe = source.info.get("adobe_transform")
    if adobe is not None:
        return bool(adobe == 0)
    return [component[0] for component in source.layer] == [ord(letter) for letter in "RGB"]


def _splice_jpeg(encoded: bytes, kept: list[JpegSegment]) -> bytes:
    """Put the source's segments in the place of the encoder's; its Adobe one stays: it says how to read."""
    own = jpeg_layout(encoded).segments
    position = 2
    for segment in own:
        position += 4 + len(segment.payload)
    adobe = [segment for segment in own if segment.marker == 0xEE]  # noqa: PLR2004 - APP14
    segments = [
        struct.pack(">BBH", 0xFF, segment.marker, len(segment.payload) + 2) + segment.payload
        for segment in [*kept, *adobe]
    ]
    return b"".join([encoded[:2], *segments, encoded[position:]])


# --- PNG ---------------------------------------------------------------------------------------------------


def _png(picture: Picture, image: Image.Image, dropped: list[str], *, keep: bool) -> bytes:
    assert isinstance(picture.layout, PngLayout)  # noqa: S101 - narrows what `container` says
    transparency = image.info.get("transparency")
    options: dict[str, Any] = {"compress_level": PNG_LEVEL}
    if transparency is not None:
        options["transparency"] = transparency
    encoded = _save(image, "PNG", options)
    own = png_layout(encoded)
    before, between, behind = png_metadata(
        picture.layout, dropped, keep=keep, same_depth=own.depth == picture.layout.depth
    )
    parts = [PNG_SIGNATURE]
    placed = False
    position = len(PNG_SIGNATURE)
    for chunk in own.chunks:
        (length,) = struct.unpack_from(">I", encoded, position)
        raw = encoded[position : position + 12 + length]
        position += 12 + length
        if chunk.kind == b"IDAT" and not placed:
            parts += [_chunk_bytes(extra) for extra in between]
            placed = True
        if chunk.kind == b"IEND":
            parts += [_chunk_bytes(extra) for extra in behind]
        parts.append(raw)
        if chunk.kind == b"IHDR":
            parts += [_chunk_bytes(extra) for extra in before]
    return b"".join(parts)


def _chunk_bytes(chunk: PngChunk) -> bytes:
    body = chunk.kind + chunk.data
    return struct.pack(">I", len(chunk.data)) + body + struct.pack(">I", zlib.crc32(body))


# --- WebP --------------------------------------------------------------------------------------------------

_WEBP_KNOWN = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"EXIF", b"XMP "})


def _webp(
    picture: Picture, image: Image.Image, dropped: list[str], *, quality: int | None, keep: bool
) -> bytes:
    assert isinstance(picture.layout, WebpLayout)  # noqa: S101 - narrows what `container` says
    info = picture.image.info
    options: dict[str, Any] = {"method": 4, "exact": True, "icc_profile": info.get("icc_profile") or b""}
    if picture.layout.lossless:
        options["lossless"] = True
    else:
        options["quality"] = WEBP_QUALITY if quality is None else quality
    exif, xmp = info.get("exif") or b"", info.get("xmp") or b""
    if exif:
        options["exif"] = _exif(exif, dropped, keep=keep)
    if xmp and keep:
        options["xmp"] = xmp_without_pictures(xmp, dropped)
    elif xmp:
        dropped.append("XMP")
    dropped += [kind.decode("latin-1").strip() for kind in picture.layout.kinds if kind not in _WEBP_KNOWN]
    return _save(image, "WEBP", options)


def _exif(exif: bytes, dropped: list[str], *, keep: bool) -> bytes:
    if keep:
        return tiff_part(exif_without_pictures(exif, dropped))
    dropped.append("EXIF")
    return orientation_only(exif_orientation(exif))


# --- TIFF --------------------------------------------------------------------------------------------------

_TIFF_ORIENTATION, _TIFF_PREDICTOR, _TIFF_PHOTOMETRIC = 274, 317, 262
_TIFF_ALWAYS = frozenset({_TIFF_ORIENTATION, 34675})  # and the ICC profile
_TIFF_KEPT = frozenset({269, 270, 271, 272, 282, 283, 285, 296, 305, 306, 315, 316, 33432, 33723, 34377, 700})
"""Descriptive tags of the baseline and XMP, IPTC and Photoshop blocks: their values stand alone."""
_TIFF_STRUCTURE = frozenset(
    {254, 255, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 280, 281, 284, 292, 293, 297, 317, 318, 319}
    | {320, 321, 322, 323, 324, 325, 338, 339, 347, 512, 513, 514, 515, 519, 520, 521, 529, 530, 531, 532}
)
"""Tags that say how the pixels are stored: the encoder writes its own."""
_TIFF_DIRECTORIES = {34665: "EXIF", 34853: "GPS", 40965: "interoperability data"}
_TIFF_XMP, _TIFF_PHOTOSHOP = 700, 34377
_TIFF_LOSSY = "jpeg"


def _tiff(
    picture: Picture, image: Image.Image, dropped: list[str], *, quality: int | None, keep: bool
) -> bytes:
    source, layout = picture.image, picture.layout
    assert isinstance(source, TiffImagePlugin.TiffImageFile)  # noqa: S101 - narrows what `container` says
    assert isinstance(layout, Ifd)  # noqa: S101 - likewise
    compression = str(source.info.get("compression") or "raw")
    if compression == "tiff_jpeg":
        compression = _TIFF_LOSSY
    tags = TiffImagePlugin.ImageFileDirectory_v2(prefix=picture.data[:2])
    _copy_tiff_tags(picture, source, layout, tags, dropped, keep=keep)
    if compression in ("tiff_lzw", "tiff_adobe_deflate", "tiff_deflate") and image.mode not in ("1", "P"):
        predictor = layout.integers(picture.data, _TIFF_PREDICTOR)
        if predictor == (2,):
            tags[_TIFF_PREDICTOR] = 2
    options: dict[str, Any] = {"compression": compression, "tiffinfo": tags}
    if compression == _TIFF_LOSSY:
        options["quality"] = 95 if quality is None else quality
    return _save(image, "TIFF", options)


def _copy_tiff_tags(
    picture: Picture,
    source: TiffImagePlugin.TiffImageFile,
    layout: Ifd,
    tags: TiffImagePlugin.ImageFileDirectory_v2,
    dropped: list[str],
    *,
    keep: bool,
) -> None:
    for tag, entry in layout.entries.items():
        if tag in _TIFF_STRUCTURE:
            continue
        if tag == _TIFF_ORIENTATION:
            tags[tag] = picture.orientation
        elif tag in _TIFF_ALWAYS or (keep and tag in _TIFF_KEPT and tag in source.tag_v2):
            tags[tag] = _tiff_value(tag, source.tag_v2[tag], dropped)
            tags.tagtype[tag] = entry.kind
        elif keep and tag in (34665, 34853):  # the EXIF and GPS directories
            tags[tag] = dict(source.getexif().get_ifd(tag))
        else:
            dropped.append(_TIFF_DIRECTORIES.get(tag, f"TIFF tag {tag}"))


def _tiff_value(tag: int, value: Any, dropped: list[str]) -> Any:  # noqa: ANN401 - a tag may hold anything
    if tag == _TIFF_XMP and isinstance(value, bytes):
        return xmp_without_pictures(value, dropped)
    if tag == _TIFF_PHOTOSHOP and isinstance(value, bytes):
        return photoshop_without_thumbnails(value, dropped)
    return value


# --- BMP and GIF -------------------------------------------------------------------------------------------


def _bmp(picture: Picture, image: Image.Image) -> bytes:
    dpi = picture.image.info.get("dpi")
    if image.mode != "RGBA":
        return _save(image, "BMP", {"dpi": dpi} if dpi else {})
    return _bmp_with_alpha(image, dpi)


_BMP_V4_HEADER = 108
_BITFIELDS = 3


def _bmp_with_alpha(image: Image.Image, dpi: tuple[float, float] | None) -> bytes:
    """Write a BITMAPV4HEADER with an alpha mask: Pillow's writer leaves the alpha out."""
    pixels = np.asarray(image)[::-1, :, [2, 1, 0, 3]].tobytes()
    offset = 14 + _BMP_V4_HEADER
    per_metre = [round(value * 39.3701) for value in dpi or (0.0, 0.0)]
    header = struct.pack("<2sIHHI", b"BM", offset + len(pixels), 0, 0, offset)
    header += struct.pack(
        "<IiiHHII", _BMP_V4_HEADER, image.width, image.height, 1, 32, _BITFIELDS, len(pixels)
    )
    header += struct.pack("<iiII", *per_metre, 0, 0)
    header += struct.pack("<IIII4s", 0x00FF0000, 0x0000FF00, 0x000000FF, 0xFF000000, b"BGRs")
    return header.ljust(offset, b"\x00") + pixels


def _gif(picture: Picture, image: Image.Image, dropped: list[str], *, keep: bool) -> bytes:
    source = picture.image
    assert isinstance(source, GifImagePlugin.GifImageFile)  # noqa: S101 - narrows what `container` says
    options: dict[str, Any] = {"optimize": False, "interlace": int(bool(source.info.get("interlace")))}
    if image.info.get("transparency") is not None:
        options["transparency"] = image.info["transparency"]
    comment = source.info.get("comment")
    if comment and keep:
        options["comment"] = comment
    elif comment:
        dropped.append("comment")
    if source.info.get("xmp"):
        dropped.append("XMP")
    return _save(image, "GIF", options)


def _save(image: Image.Image, container: str, options: dict[str, Any], *, room: int = 0) -> bytes:
    target = io.BytesIO()
    with _buffer_room(room):
        image.save(target, container, **options)
    return target.getvalue()


@contextlib.contextmanager
def _buffer_room(size_bytes: int) -> Any:  # noqa: ANN401 - contextlib's own signature
    """Let Pillow's encoder buffer hold an optimised JPEG of noise, which can exceed its guess."""
    before = ImageFile.MAXBLOCK
    ImageFile.MAXBLOCK = max(before, size_bytes)
    try:
        yield
    finally:
        ImageFile.MAXBLOCK = before


# --- staging -----------------------------------------------------------------------------------------------


def stage(path: str, data: bytes, source: SourceFile) -> str:
    """Write a result into staging and close it; syncing and publishing are the service's.

    Args:
        path: of the file to create; what lies there from an earlier attempt is overwritten.
        data: the result.
        source: gives modification time and permissions.

    Returns:
        The sha256 of what was written.

    Raises:
        RefusedError: `no_space` for anything that keeps the file from being written: none is the picture's
            fault. A partial file is removed.
    """
    try:
        _write(path, data, source)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - the path may hold surrogates; os takes it as it is
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RefusedError(
            "no_space",
            f"the result cannot be written to staging: {error.strerror}",
            "free space on the state folder's disk" if full else "check the state folder's disk and rights",
        ) from error
    return hashlib.sha256(data).hexdigest()


def _write(path: str, data: bytes, source: SourceFile) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), source.permissions | 0o600)
        os.utime(file.fileno(), ns=(source.mtime_ns, source.mtime_ns))
