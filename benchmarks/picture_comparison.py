"""Compares a picture with its result by readers that share nothing with the worker (a part of others).

What this module owns: what two files have in common, in words that stand in a table. libvips reads pixels,
ExifRead reads EXIF tags and maker notes, short walkers list the parts of JPEG, PNG and WebP files. Rules:

- It imports nothing of `watcher`. OpenCV reads BMP and pillow-heif reads HEIC: libvips comes without them.
- Real files may be damaged: what cannot be read is None with the reader's own words, never an exception.
- A difference is *named* where the record says what was dropped; all others are the point of the comparison.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import struct
from dataclasses import dataclass, field, replace
from math import ceil, inf, log10
from typing import TYPE_CHECKING, Any, Final

import cv2
import exifread
import numpy as np
import pyvips

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Pixels = NDArray[Any]

_VIPS_FAILURES: Final = (pyvips.Error, UnicodeDecodeError)
"""pyvips takes libvips' words for UTF-8; damaged files make it say others."""
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # as above
pyvips.cache_set_max(0)  # a result is read from its bytes, never from an earlier reading
logging.getLogger("exifread").setLevel(logging.CRITICAL)  # it warns of much that real cameras write
logging.getLogger("pyvips").setLevel(logging.CRITICAL)

SIGNATURES: Final = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF8", "GIF"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"II+\x00", "BigTIFF"),
    (0, b"MM\x00+", "BigTIFF"),
    (0, b"IIRO", "Olympus RAW"),
    (0, b"IIU\x00", "Panasonic RAW"),
    (0, b"FUJIFILMCCD-RAW", "Fujifilm RAW"),
    (4, b"ftyphe", "HEIC"),
    (4, b"ftypmif", "HEIC"),
    (4, b"ftypmsf", "HEIC"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftypcrx", "Canon RAW"),
    (0, b"8BPS\x00\x01", "Photoshop"),
    (0, b"\x00\x00\x00\x0cjP  \r\n", "JPEG 2000"),
    (0, b"\x00\x00\x00\x0cJXL \r\n", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
)
_BMP_HEADER_BYTES: Final = frozenset({12, 16, 40, 52, 56, 64, 108, 124})


def container_of(data: bytes) -> str | None:
    """Name a picture's container by its first bytes; None for what is no picture."""
    for start, signature, name in SIGNATURES:
        if data[start : start + len(signature)] == signature:
            return name
    if data[:2] == b"BM" and len(data) > 18 and data[14] in _BMP_HEADER_BYTES and not any(data[15:18]):  # noqa: PLR2004 - BITMAPFILEHEADER and the size after it; two letters alone say little
        return "BMP"
    return None


# --- reading one file --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A picture file as it was found.

    Attributes:
        container: by content.
        stored_size: width and height in the file, pixels; None where no reader could tell.
        orientation: EXIF orientation, 1 where the file says none.
        pixels: (height, width, bands) as a person sees them, at the file's own depth; None where unreadable.
        complaint: what the reader said of a damaged file.
        parts: metadata as it stands in the file, by name; a name may come several times.
        facts: depth, palette, sampling, resolution, text and so on, by the reader's names.
        tags: EXIF (and TIFF) tags by ExifRead's names, without those that are places in the file.
        tag_numbers: of these tags.
        maker_note: its bytes.
        previews: digests of the pixels of the pictures that lie inside this one.
    """

    container: str
    stored_size: tuple[int, int] | None
    orientation: int
    pixels: Pixels | None
    complaint: str
    parts: dict[str, list[bytes]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    tag_numbers: dict[str, int] = field(default_factory=dict)
    maker_note: bytes = b""
    previews: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """Pixel type in short words."""
        if self.pixels is None:
            return "?"
        bits = self.facts.get("bits-per-sample") or str(self.pixels.dtype.itemsize * 8)
        coloured, bands = self.facts.get("interpretation", ""), self.pixels.shape[2]
        letters = "CMYK" if coloured == "cmyk" else "L" if bands < 3 else "RGB"  # noqa: PLR2004 - bands of a colour
        alpha = "A" if bands in (2, 4 + (letters == "CMYK")) else ""
        return f"{letters}{alpha} {bits} bit{', palette' if self.facts.get('palette') == '1' else ''}"

    @property
    def maker(self) -> str:
        """What made the file, as its tags say."""
        words = [self.tags.get(f"Image {name}", "").strip(" \x00") for name in ("Make", "Model", "Software")]
        make, model, software = (" ".join(word.split()) for word in words)
        camera = model if model.lower().startswith(make.lower().split(" ")[0]) else f"{make} {model}".strip()
        software = software or self.facts.get("Software", "")
        return " / ".join(word for word in (camera, software) if word)


def look(data: bytes) -> Seen:
    """Read a picture file as far as it can be read."""
    container = container_of(data) or "?"
    pixels, facts, blocks, complaint = _READERS.get(container, _through_vips)(data)
    parts = (
        _WALKERS[container](data)
        if container in _WALKERS
        else {name: [body] for name, body in blocks.items()}
    )
    exif = data if container == "TIFF" else next(iter(parts.get("EXIF") or [blocks.get("EXIF", b"")]))
    tags, tag_numbers, maker_note = _tags(exif.removeprefix(b"Exif\x00\x00"))
    size = (int(facts["width"]), int(facts["height"])) if "width" in facts else None
    for name in ("width", "height"):
        facts.pop(name, None)
    orientation = int(facts.pop("orientation", "1"))
    previews = _previews(_places_of_previews(container, data, parts))
    return Seen(
        container, size, orientation, pixels, complaint, parts, facts, tags, tag_numbers, maker_note, previews
    )


_Read = tuple["Pixels | None", dict[str, str], dict[str, bytes], str]

_NOT_OF_THE_FILE: Final = re.compile(
    r"filename|coding|[xy]offset|format|vips-.*|exif-ifd.*|bands|heif-primary|gif-palette"
)
"""Fields of libvips that say how it holds a picture, or that are compared by other means."""
_BLOCKS: Final = {
    "exif-data": "EXIF",
    "xmp-data": "XMP",
    "iptc-data": "Photoshop/IPTC",
    "photoshop-data": "Photoshop",
    "icc-profile-data": "ICC",
}
_NUMBERED: Final = re.compile(r"png-comment-\d+-")


def _through_vips(data: bytes) -> _Read:
    try:
        image = pyvips.Image.new_from_buffer(data, "", access="random", fail_on="none")
    except _VIPS_FAILURES as error:
        return None, {}, {}, _one_line(error)
    facts: dict[str, str] = {}
    blocks: dict[str, bytes] = {}
    for name in _fields(image):
        value = _field(image, name)
        if name in _BLOCKS:
            blocks[_BLOCKS[name]] = value
        elif not _NOT_OF_THE_FILE.fullmatch(name) and not isinstance(value, bytes):
            facts[_NUMBERED.sub("", name)] = str(value)
    try:
        viewed = image.autorot()
        pixels = viewed.numpy().reshape(viewed.height, viewed.width, viewed.bands)
    except _VIPS_FAILURES as error:
        return None, facts, blocks, _one_line(error)
    return pixels, facts, blocks, _strict_complaint(data)


def _fields(image: pyvips.Image) -> list[str]:
    try:
        return list(image.get_fields())
    except UnicodeDecodeError:  # a text chunk whose keyword is Latin-1 takes all names with it
        known = ("width", "height", "interpretation", "bits-per-sample", "palette", "orientation")
        return [name for name in known if image.get_typeof(name)]


def _field(image: pyvips.Image, name: str) -> Any:  # noqa: ANN401 - a field may be anything
    try:
        return image.get(name)
    except UnicodeDecodeError as error:
        return error.object.decode("latin-1")


def _strict_complaint(data: bytes) -> str:
    try:
        pyvips.Image.new_from_buffer(data, "", access="sequential", fail_on="warning").avg()
    except _VIPS_FAILURES as error:
        return _one_line(error)
    return ""


def _one_line(error: Exception) -> str:
    detail = getattr(error, "detail", "") or str(error)
    return " ".join(str(detail).split())[:160]


def _through_opencv(data: bytes) -> _Read:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        return None, {}, {}, _one_line(error)
    if pixels is None:
        return None, {}, {}, "OpenCV cannot read it"
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    height, width, bands = pixels.shape
    facts = {"width": str(width), "height": str(height), "interpretation": "srgb" if bands > 2 else "b-w"}  # noqa: PLR2004 - bands of a colour
    if data[14] >= 40:  # noqa: PLR2004 - BITMAPINFOHEADER and its successors
        bits, _, _, *per_metre = struct.unpack_from("<HIIii", data, 28)
        facts |= {"bits a pixel": str(bits), "resolution": str(per_metre)}
    return pixels, facts, {}, ""


def _through_libheif(data: bytes) -> _Read:
    pixels, facts, blocks, complaint = _through_vips(data)
    if pixels is not None:
        return pixels, facts, blocks, complaint
    try:
        import pillow_heif  # noqa: PLC0415 - an extra: without it HEIC is not compared

        opened = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
        found = np.asarray(opened)
    except Exception as error:  # noqa: BLE001 - it is missing, or fails on damaged bytes in ways of its own
        return None, facts, blocks, _one_line(error)
    return found.reshape(*found.shape[:2], -1), facts, blocks, ""


_READERS: Final = {"BMP": _through_opencv, "HEIC": _through_libheif, "AVIF": _through_libheif}

# --- parts -------------------------------------------------------------------------------------------------

_JPEG_PARTS: Final = (
    (0xE0, b"JFIF\x00", "JFIF"),
    (0xE0, b"JFXX\x00", "JFXX"),
    (0xE1, b"Exif\x00", "EXIF"),
    (0xE1, b"http://ns.adobe.com/xap/1.0/\x00", "XMP"),
    (0xE1, b"http://ns.adobe.com/xmp/extension/\x00", "extended XMP"),
    (0xE2, b"ICC_PROFILE\x00", "ICC"),
    (0xE2, b"MPF\x00", "multi-picture index"),
    (0xE2, b"FPXR", "FlashPix"),
    (0xED, b"Photoshop 3.0\x00", "Photoshop/IPTC"),
    (0xEE, b"Adobe", "Adobe"),
    (0xFE, b"", "comment"),
)
_SOS, _EOI = 0xDA, 0xD9


def _jpeg_parts(data: bytes) -> dict[str, list[bytes]]:
    parts: dict[str, list[bytes]] = {}
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:  # noqa: PLR2004 - starts every marker
        marker = data[position + 1]
        if marker in (_SOS, _EOI):
            break
        if marker == 0xFF:  # noqa: PLR2004 - a fill byte
            position += 1
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        body = data[position + 4 : position + 2 + length]
        if 0xE0 <= marker <= 0xEF or marker == 0xFE:  # noqa: PLR2004 - APP0 to APP15, COM
            parts.setdefault(_jpeg_name(marker, body), []).append(body)
        position += 2 + length
    return parts


def _jpeg_name(marker: int, body: bytes) -> str:
    for number, start, name in _JPEG_PARTS:
        if marker == number and body.startswith(start):
            return name
    return f"APP{marker - 0xE0}"


_PNG_PICTURE: Final = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_RENAMED: Final = {"eXIf": "EXIF", "iCCP": "ICC", "EXIF": "EXIF", "XMP ": "XMP", "ICCP": "ICC"}


def _png_parts(data: bytes) -> dict[str, list[bytes]]:
    parts: dict[str, list[bytes]] = {}
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        if kind == b"iTXt" and body.startswith(b"XML:com.adobe.xmp\x00"):
            parts.setdefault("XMP", []).append(body)
        elif kind not in _PNG_PICTURE:
            name = kind.decode("latin-1")
            parts.setdefault(_RENAMED.get(name, name), []).append(body)
        position += 12 + length
    return parts


_WEBP_PICTURE: Final = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH"})


def _webp_parts(data: bytes) -> dict[str, list[bytes]]:
    parts: dict[str, list[bytes]] = {}
    position = 12
    while position + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, position)
        if kind not in _WEBP_PICTURE:
            name = kind.decode("latin-1")
            parts.setdefault(_RENAMED.get(name, name), []).append(data[position + 8 : position + 8 + length])
        position += 8 + length + (length & 1)
    return parts


_WALKERS: Final = {"JPEG": _jpeg_parts, "PNG": _png_parts, "WebP": _webp_parts}

# --- tags and pictures inside ------------------------------------------------------------------------------

_PLACES: Final = (
    "Tag 0x0000",
    "Offset",
    "ByteCounts",
    "Pointer",
    "JPEGInterchange",
    "SubIFDs",
    "RowsPerStrip",
)
"""Parts of the names of tags that are places and not properties; no tag has the number 0 but GPS's."""


def _tags(block: bytes) -> tuple[dict[str, str], dict[str, int], bytes]:
    if block[:4] not in (b"II*\x00", b"MM\x00*"):
        return {}, {}, b""
    try:
        found = exifread.process_file(io.BytesIO(block), details=True, extract_thumbnail=False)
    except Exception:  # noqa: BLE001 - it fails on damaged blocks in many ways
        return {}, {}, b""
    note = found.get("EXIF MakerNote")
    maker_note = bytes(note.values) if note is not None and isinstance(note.values, list) else b""
    named = {
        name: tag
        for name, tag in found.items()
        if not any(place in name for place in _PLACES) and hasattr(tag, "values")
    }
    return (
        {name: str(tag) for name, tag in named.items()},
        {name: tag.tag for name, tag in named.items()},
        maker_note,
    )


_PREVIEW_SIDE_PX: Final = 16
_JPEG_START: Final = re.compile(rb"\xff\xd8\xff[\xc0-\xfe]")


def _previews(places: Iterable[bytes]) -> tuple[str, ...]:
    """Digest the pixels of each JPEG that begins in one of these places."""
    found = []
    for place in places:
        for match in _JPEG_START.finditer(place):
            try:
                image = pyvips.Image.new_from_buffer(
                    place[match.start() :], "", access="random", fail_on="none"
                )
                is_jpeg = image.get("vips-loader").startswith("jpegload")
                if is_jpeg and min(image.width, image.height) >= _PREVIEW_SIDE_PX:
                    found.append(hashlib.sha256(image.write_to_memory()).hexdigest())
            except _VIPS_FAILURES:
                continue
    return tuple(found)


def _places_of_previews(container: str, data: bytes, parts: dict[str, list[bytes]]) -> Iterator[bytes]:
    """Yield where pictures inside a picture may lie."""
    if container in ("GIF", "BMP"):
        return
    if container not in _WALKERS:
        yield data[2:]
        return
    for bodies in parts.values():
        yield from bodies
    if container == "JPEG":
        # Behind the metadata: coded data holds no start of image, so this finds what follows the picture.
        yield data[sum(4 + len(body) for bodies in parts.values() for body in bodies) + 2 :]


# --- comparing two -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outside:
    """How the pixels outside the hole compare.

    Attributes:
        changed_px: how many differ in any band.
        max: largest difference of a band, in its own units.
        mean: over all bands.
        psnr_db: infinite where nothing differs.
        farthest_px: distance (chessboard) of the farthest changed pixel from the hole.
    """

    changed_px: int
    max: int
    mean: float
    psnr_db: float
    farthest_px: int

    @property
    def text(self) -> str:
        """In short words."""
        if not self.changed_px:
            return "identical"
        return (
            f"{self.changed_px} px differ, by {self.max} at most, {self.mean:.2g} on average,"
            f" PSNR {self.psnr_db:.1f} dB, up to {self.farthest_px} px from the hole"
        )


@dataclass(frozen=True)
class Comparison:
    """What a result has in common with its source.

    Attributes:
        same: what is identical, in words.
        named: what differs or is gone, and the record says so.
        unnamed: what differs or is gone without a word: each is a defect, or a reason to look.
        outside: the pixels outside the hole; None where a file cannot be read.
        hole_changed_px: changed pixels in the hole.
    """

    same: tuple[str, ...]
    named: tuple[str, ...]
    unnamed: tuple[str, ...]
    outside: Outside | None
    hole_changed_px: int

    def plus(
        self, *, same: Iterable[str] = (), named: Iterable[str] = (), unnamed: Iterable[str] = ()
    ) -> Comparison:
        """Return this with more of each."""
        return replace(
            self,
            same=(*self.same, *same),
            named=(*self.named, *named),
            unnamed=(*self.unnamed, *unnamed),
        )


def compare(source: Seen, result: Seen, mask: NDArray[np.bool_], dropped: Sequence[str]) -> Comparison:
    """Hold a result against its source.

    Args:
        source: what went in.
        result: what came out.
        mask: (height, width) as a person sees it; True was marked.
        dropped: the record's `dropped_metadata`.
    """
    verdict = _Verdict(tuple(dropped))
    verdict.judge("container", source.container, result.container)
    verdict.judge("orientation", source.orientation, result.orientation)
    if source.stored_size is not None:
        verdict.judge("size", source.stored_size, result.stored_size)
    if source.pixels is not None:
        verdict.judge("form", source.form, result.form)
    _compare_parts(source, result, verdict)
    _compare_facts(source, result, verdict)
    _compare_tags(source, result, verdict)
    if source.previews and set(source.previews) & set(result.previews):
        verdict.unnamed.append("an embedded picture of the old state is still in it")
    outside, hole_changed_px = _compare_pixels(source.pixels, result.pixels, mask, verdict)
    return Comparison(
        tuple(verdict.same), tuple(verdict.named), tuple(verdict.unnamed), outside, hole_changed_px
    )


@dataclass
class _Verdict:
    dropped: tuple[str, ...]
    same: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def judge(self, name: str, before: object, after: object, reasons: Collection[str] = ()) -> None:
        """File one comparison; `reasons` are the words of the record that would explain a difference."""
        if before == after:
            self.same.append(name)
            return
        explained = any(reason in said for said in self.dropped for reason in reasons)
        text = f"{name} gone" if after in (None, "", b"", []) else f"{name} changed"
        if not isinstance(before, bytes | list) and after not in (None, ""):
            text += f" ({_short(before)} to {_short(after)})"
        (self.named if explained else self.unnamed).append(text)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - what fits into a cell


_COMPANIONS: Final = (
    "companion",
    "motion photo",
    "multi-picture",
    "gain map",
    "depth map",
    "alternative picture",
)
_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "EXIF": ("EXIF",),
    "XMP": ("XMP", *_COMPANIONS),
    "Photoshop/IPTC": ("Photoshop",),
    "Photoshop": ("Photoshop",),
    "JFIF": ("JFIF", *_COMPANIONS),  # Apple marks a file with several pictures there
    "JFXX": ("JFXX",),
    "FlashPix": ("FlashPix",),
    "zTXt": ("EXIF thumbnail",),  # in the text that ImageMagick and GIMP keep EXIF in
    "tEXt": ("EXIF thumbnail",),
    "multi-picture index": ("multi-picture", "companion"),
    "APP11": ("APP11", "content credentials"),
    "ICC": ("iCCP", "ICC"),
    "acTL": ("animation data",),
    "fcTL": ("animation data",),
    "fdAT": ("animation data",),
}
_STRUCTURE: Final = frozenset({"Adobe"})
"""Parts that say how the pixels are coded: an encoder may write its own."""


def _compare_parts(source: Seen, result: Seen, verdict: _Verdict) -> None:
    for name, bodies in source.parts.items():
        if name not in _STRUCTURE:
            after = result.parts.get(name, [])
            verdict.judge(name, _joined(name, bodies), _joined(name, after), (*_REASONS.get(name, ()), name))
    for name in ("EXIF", "XMP", "ICC", "Photoshop/IPTC", "comment"):
        # A damaged source is read to its damage only, and may have had it.
        if name in result.parts and name not in source.parts and not source.complaint:
            verdict.unnamed.append(f"{name} added")
    records = _iptc(source)
    if records:
        verdict.judge("IPTC records", records, _iptc(result))
    if source.maker_note:
        verdict.judge("maker note", source.maker_note, result.maker_note, ("EXIF preview",))


def _joined(name: str, bodies: list[bytes]) -> bytes | list[bytes]:
    # An ICC profile or a Photoshop block may be cut into other pieces; texts may not.
    return b"".join(bodies) if name in ("ICC", "Photoshop/IPTC", "EXIF") else sorted(bodies)


_IPTC_RECORDS: Final = b"8BIM\x04\x04"


def _iptc(seen: Seen) -> bytes:
    """The IPTC records inside Photoshop's resources."""
    resources = b"".join(seen.parts.get("Photoshop/IPTC", []))
    at = resources.find(_IPTC_RECORDS)
    if at < 0:
        return b""
    size_at = at + 6 + (resources[at + 6] + 2) // 2 * 2
    if size_at + 4 > len(resources):
        return b""
    (size,) = struct.unpack_from(">I", resources, size_at)
    return resources[size_at + 4 : size_at + 4 + size]


_FACT_REASONS: Final = {
    "interlaced": ("interlacing",),
    "background": ("bKGD",),
    "n-pages": (*_COMPANIONS, "TIFF thumbnail"),
    "n-subifds": ("TIFF thumbnail",),
    "Raw profile type exif": ("EXIF thumbnail", "Raw profile"),
}
_GAIN_MAP: Final = "gainmap-"


def _compare_facts(source: Seen, result: Seen, verdict: _Verdict) -> None:
    for name, value in source.facts.items():
        if name not in ("bits-per-sample", "palette"):  # they stand in the form
            reasons = _COMPANIONS if name.startswith(_GAIN_MAP) else _FACT_REASONS.get(name, (name,))
            verdict.judge(name, value, result.facts.get(name), reasons)


_THUMBNAIL: Final = ("Thumbnail ", "IFD ", "EXIF SubIFD")
"""Directories behind the first, as ExifRead names them."""
_THUMBNAILS_GO: Final = ("EXIF thumbnail", "TIFF thumbnail")


def _compare_tags(source: Seen, result: Seen, verdict: _Verdict) -> None:
    """Name the tags that are lost, changed or new, thumbnails as one."""
    if any(name.startswith(_THUMBNAIL) for name in source.tags):
        if any(name.startswith(_THUMBNAIL) for name in result.tags):
            verdict.judge("EXIF thumbnail's tags", source.previews, result.previews)
        else:
            verdict.judge("thumbnail", "there", None, _THUMBNAILS_GO)
    before, after = _plain_tags(source), _plain_tags(result)
    lost = [name for name in before if name not in after]
    changed = [name for name in before if name in after and before[name] != after[name]]
    new = [name for name in after if name not in before]
    if before and not lost and not changed and not new:
        verdict.same.append(f"{len(before)} EXIF tags")
    said = {name for name in lost if _is_said(name, source, verdict)}
    if said:
        verdict.named.append(_names_of("lost", sorted(said)))
    for what, names in (
        ("lost", [name for name in lost if name not in said]),
        ("changed", changed),
        ("new", new),
    ):
        if names:
            verdict.unnamed.append(_names_of(what, names))


def _is_said(name: str, source: Seen, verdict: _Verdict) -> bool:
    group = name.partition(" ")[0]
    number = source.tag_numbers[name]
    words = {f"TIFF tag {number}", group, _GROUPS.get(group, group), _WORDS_OF_TAGS.get(number, group)}
    return any(word in said.split(", ") for said in verdict.dropped for word in words)


_GROUPS: Final = {"Interoperability": "interoperability data"}
_WORDS_OF_TAGS: Final = {0x935C: "Photoshop layers"}


def _names_of(what: str, names: Sequence[str]) -> str:
    many = f" and {len(names) - 6} more" if len(names) > 6 else ""  # noqa: PLR2004 - what fits into a cell
    return f"tags {what}: {', '.join(names[:6])}{many}"


def _plain_tags(seen: Seen) -> dict[str, str]:
    # Of a maker note the bytes are compared: what ExifRead reads there may lie in a thumbnail that is gone.
    return {
        name: value for name, value in seen.tags.items() if not name.startswith((*_THUMBNAIL, "MakerNote "))
    }


def hole_of(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return what may be filled at most: the mask grown by the documented max(4 px, 0.5 %), as a square."""
    radius = max(4, ceil(0.005 * max(mask.shape)))
    kernel = np.ones((2 * radius + 1, 2 * radius + 1), np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), kernel), np.bool_)


def _compare_pixels(
    before: Pixels | None, after: Pixels | None, mask: NDArray[np.bool_], verdict: _Verdict
) -> tuple[Outside | None, int]:
    if before is None or after is None:
        if before is not None:
            verdict.unnamed.append("the result's pixels cannot be read")
        return None, 0
    if before.shape != after.shape or before.dtype != after.dtype:
        verdict.unnamed.append(
            f"pixels changed from {before.shape} {before.dtype} to {after.shape} {after.dtype}"
        )
        return None, 0
    differs = (before != after).any(axis=-1)
    hole = hole_of(mask)
    hole_changed_px = int(np.count_nonzero(differs & hole))
    differs &= ~hole
    outside = _outside(before, after, differs, hole)
    if not outside.changed_px:
        verdict.same.append("pixels outside the hole")
    return outside, hole_changed_px


def _outside(before: Pixels, after: Pixels, differs: NDArray[np.bool_], hole: NDArray[np.bool_]) -> Outside:
    changed_px = int(np.count_nonzero(differs))
    if not changed_px:
        return Outside(0, 0, 0.0, inf, 0)
    error = np.abs(before.astype(np.float64) - after.astype(np.float64))
    error[hole] = 0
    count = np.count_nonzero(~hole) * error.shape[-1]
    top = (
        float(np.iinfo(before.dtype).max)
        if np.issubdtype(before.dtype, np.integer)
        else float(before.max()) or 1.0
    )
    mean_square = float(np.square(error).sum()) / count
    distance = cv2.distanceTransform((~hole).astype(np.uint8), cv2.DIST_C, 3)
    return Outside(
        changed_px,
        int(error.max()),
        float(error.sum()) / count,
        10 * log10(top * top / mean_square) if mean_square else inf,
        int(distance[differs].max()),
    )
