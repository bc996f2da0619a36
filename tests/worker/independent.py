"""What a picture file holds, as told by programs that share nothing with the code under test.

What this module owns: reading results. Pixels and raw metadata come from libvips, EXIF tags from ExifRead,
and how a file is laid out (depth, tables, chunks, tags) from a few walkers that stand here. Rules:
- It imports nothing of `watcher`, and neither Pillow nor OpenCV.
- Nothing is converted: no turning unless asked, no colour management, no cut of 16 bits to 8.
- A file is read to its last byte: libvips is told to fail on what it would otherwise pass over.
- HEIC is the exception: libvips comes without a decoder for it, so pillow-heif reads it where it is there.
"""

from __future__ import annotations

import io
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import exifread
import numpy as np
import pyvips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Pixels = NDArray[Any]

pyvips.cache_set_max(0)  # a result is read from its bytes, never from an earlier reading
logging.getLogger("exifread").setLevel(logging.ERROR)  # it warns of tags that it does not know the name of

_PLACE_FIELDS = frozenset({"filename", "coding", "xoffset", "yoffset"})
"""Fields of libvips that say how it holds a picture, and nothing about the file."""


@dataclass(frozen=True)
class Seen:
    """A picture file as it was found.

    Attributes:
        container: JPEG, PNG, WEBP, TIFF, GIF, BMP or HEIF, by content.
        stored: pixels (height, width, bands) as they lie in the file, at their own depth; 1 to 8 bits as
            uint8. For HEIF, whose decoders turn by themselves, the same as `viewed`.
        viewed: the same as a person sees them.
        facts: everything else that libvips and the walkers know, by name.
        tags: EXIF tags by ExifRead's names, maker notes included.
    """

    container: str
    stored: Pixels
    viewed: Pixels
    facts: dict[str, Any]
    tags: dict[str, Any]

    @property
    def orientation(self) -> int:
        """EXIF orientation, 1 where the file says none."""
        return int(self.facts.get("orientation", 1))

    def alpha(self) -> Pixels | None:
        """Return the viewed alpha plane (height, width), or None."""
        bands = self.viewed.shape[2]
        coloured = 4 if self.facts.get("interpretation") == "cmyk" else 3 if bands > 2 else 1
        return self.viewed[..., coloured] if bands > coloured else None


def look(data: bytes) -> Seen:
    """Read a picture file whole."""
    container = container_of(data)
    if container == "BMP":
        pixels, facts = _bmp(data)
        return Seen(container, pixels, pixels, facts, {})
    facts = _STRUCTURES[container](data)
    if container == "HEIF" and facts["brand"] in (b"heic", b"heix", b"mif1"):
        pixels, more = _heic(data)
        return Seen(container, pixels, pixels, facts | more, tags_of(more.get("exif-data", b"")))
    image = pyvips.Image.new_from_buffer(data, "", access="random", fail_on="warning")
    facts |= {name: image.get(name) for name in image.get_fields() if name not in _PLACE_FIELDS}
    stored = _array(image)
    viewed = stored if facts.get("orientation", 1) == 1 else _array(image.autorot())
    tags = tags_of(data) if container == "TIFF" else tags_of(facts.get("exif-data", b""))
    return Seen(container, stored, viewed, facts, tags)


def _array(image: pyvips.Image) -> Pixels:
    pixels: Pixels = image.numpy().reshape(image.height, image.width, image.bands)
    assert pixels.dtype in (np.uint8, np.uint16), pixels.dtype
    return pixels


def container_of(data: bytes) -> str:
    """Name a container by its first bytes."""
    for start, signature, name in (
        (0, b"\xff\xd8\xff", "JPEG"),
        (0, b"\x89PNG\r\n\x1a\n", "PNG"),
        (8, b"WEBP", "WEBP"),
        (0, b"II*\x00", "TIFF"),
        (0, b"MM\x00*", "TIFF"),
        (0, b"GIF8", "GIF"),
        (0, b"BM", "BMP"),
        (4, b"ftyp", "HEIF"),
    ):
        if data[start:].startswith(signature):
            return name
    raise AssertionError(f"no picture begins with {data[:12]!r}")


def through_profile(pixels: Pixels, profile: bytes) -> NDArray[np.uint8]:
    """Turn CMYK pixels (height, width, 4) into sRGB (height, width, 3) by their profile, with libvips."""
    image = pyvips.Image.new_from_array(np.ascontiguousarray(pixels), interpretation="cmyk").copy()
    image.set_type(pyvips.GValue.blob_type, "icc-profile-data", profile)
    rgb = image.icc_transform("srgb", embedded=True, intent="perceptual")
    return np.asarray(rgb.numpy(), np.uint8)


# --- EXIF --------------------------------------------------------------------------------------------------

_PLACES = ("Offset", "ByteCounts", "Pointer", "GPSInfo")
"""Parts of the names of tags that say where something lies, and not what it is."""


def tags_of(block: bytes) -> dict[str, Any]:
    """Return the tags of a TIFF file or an EXIF block as ExifRead names them, less those that are places."""
    block = block.removeprefix(b"Exif\x00\x00")
    if not block:
        return {}
    found = exifread.process_file(io.BytesIO(block), details=True, extract_thumbnail=False)
    return {
        name: tag.values
        for name, tag in found.items()
        if not any(place in name for place in _PLACES) and hasattr(tag, "values")
    }


# --- JPEG --------------------------------------------------------------------------------------------------


def jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Walk the marker segments up to the first scan: marker byte and payload."""
    position = 2
    while data[position + 1] != 0xDA:
        marker, length = struct.unpack_from(">xBH", data, position)
        yield marker, data[position + 4 : position + 2 + length]
        position += 2 + length


def _jpeg(data: bytes) -> dict[str, Any]:
    tables: dict[int, tuple[int, ...]] = {}
    facts: dict[str, Any] = {"segments": []}
    for marker, payload in jpeg_segments(data):
        if marker == 0xDB:
            tables |= _quantisation(payload)
        elif marker in (0xC0, 0xC1, 0xC2):
            facts["frame"] = marker
            facts["precision"] = payload[0]
            facts["components"] = [tuple(payload[at : at + 3]) for at in range(6, len(payload), 3)]
        elif marker == 0xEE and payload.startswith(b"Adobe"):
            facts["Adobe transform"] = payload[11]
        elif marker == 0xDD:
            (facts["restart interval"],) = struct.unpack(">H", payload)
        elif marker == 0xFE:
            facts["comment"] = payload
        elif 0xE0 <= marker <= 0xEF:
            facts["segments"].append((marker, payload[:12]))
    # Tables by component: their numbers are the encoder's own affair.
    facts["quantisation"] = [tables[component[2]] for component in facts["components"]]
    facts["components"] = [component[:2] for component in facts["components"]]
    return facts


def _quantisation(payload: bytes) -> dict[int, tuple[int, ...]]:
    found, position = {}, 0
    while position < len(payload):
        wide, number = payload[position] >> 4, payload[position] & 15
        form = ">64H" if wide else ">64B"
        found[number] = struct.unpack_from(form, payload, position + 1)
        position += 1 + struct.calcsize(form)
    return found


def sampling(seen: Seen) -> tuple[int, int]:
    """Return the size of a JPEG's minimum coded unit in pixels: width, height."""
    factors = [component[1] for component in seen.facts["components"]]
    if len(factors) == 1:  # T.81, A.2.2: one component is not interleaved, whatever its factors say
        return 8, 8
    return 8 * max(factor >> 4 for factor in factors), 8 * max(factor & 15 for factor in factors)


# --- PNG ---------------------------------------------------------------------------------------------------


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Walk the chunks: type and data."""
    position = 8
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, data[position + 8 : position + 8 + length]
        position += 12 + length


def _png(data: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for kind, body in png_chunks(data):
        if kind == b"IHDR":
            facts["depth"], facts["colour type"] = body[8], body[9]
            facts["interlace"] = body[12]
        elif kind not in (b"IDAT", b"PLTE", b"IEND"):
            facts.setdefault(kind.decode(), []).append(body)
    return facts


# --- WebP --------------------------------------------------------------------------------------------------


def _webp(data: bytes) -> dict[str, Any]:
    kinds, position = [], 12
    while position < len(data):
        kind, length = struct.unpack_from("<4sI", data, position)
        kinds.append(kind)
        position += 8 + length + (length & 1)
    return {"chunks": sorted(kinds), "lossless": b"VP8L" in kinds}


# --- TIFF --------------------------------------------------------------------------------------------------

_TIFF_LAYOUT = {
    256: "width",
    257: "height",
    258: "bits",
    259: "compression",
    262: "photometric",
    266: "fill order",
    277: "samples",
    284: "planar",
    317: "predictor",
    322: "tile width",
    323: "tile height",
    338: "extra samples",
    339: "sample format",
}


def _tiff(data: bytes) -> dict[str, Any]:
    order = "<" if data[:2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, first)
    facts: dict[str, Any] = {"byte order": data[:2], "tags": []}
    for at in range(first + 2, first + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, at)
        facts["tags"].append(tag)
        if tag in _TIFF_LAYOUT and kind in (3, 4):
            form = f"{order}{number}{'H' if kind == 3 else 'I'}"
            place = at + 8 if struct.calcsize(form) <= 4 else struct.unpack_from(f"{order}I", data, at + 8)[0]
            facts[_TIFF_LAYOUT[tag]] = struct.unpack_from(form, data, place)
    (facts["next page"],) = struct.unpack_from(f"{order}I", data, first + 2 + 12 * count)
    return facts


# --- GIF ---------------------------------------------------------------------------------------------------


def _gif(data: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {"screen": struct.unpack_from("<HH", data, 6), "frames": 0, "extensions": []}
    position = 13 + _gif_table_bytes(data[10])
    while data[position] != 0x3B:
        start, is_extension = position, data[position] == 0x21
        if is_extension:
            position += 2
        else:
            facts["frames"] += 1
            facts["place"], flags = struct.unpack_from("<HHHH", data, position + 1), data[position + 9]
            facts["interlace"] = bool(flags & 0x40)
            facts["own table"] = bool(flags & 0x80)
            position += 11 + _gif_table_bytes(flags)
        while data[position]:
            position += 1 + data[position]
        position += 1
        if is_extension:
            facts["extensions"].append(data[start:position])
    return facts


def _gif_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


# --- HEIF --------------------------------------------------------------------------------------------------


def _heif(data: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {"brand": data[8:12]}
    for name in (b"irot", b"imir"):
        # A box of one byte: the search is for its whole head, so that no other bytes look like it.
        at = data.find(struct.pack(">I", 9) + name)
        facts[name.decode()] = data[at + 8] if at >= 0 else None
    return facts


def _heic(data: bytes) -> tuple[Pixels, dict[str, Any]]:
    import pillow_heif  # noqa: PLC0415 - an extra: only who reads HEIC needs it

    opened = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
    pixels = np.asarray(opened)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    information = opened.info
    facts = {
        "exif-data": information.get("exif") or b"",
        "xmp-data": information.get("xmp") or b"",
        "icc-profile-data": information.get("icc_profile") or b"",
        "bits": information.get("bit_depth"),
        "chroma": information.get("chroma"),
        "bands": pixels.shape[2],
    }
    return pixels, facts


# --- BMP ---------------------------------------------------------------------------------------------------


def _bmp(data: bytes) -> tuple[Pixels, dict[str, Any]]:
    """Read an uncompressed BMP of 1 to 32 bits; 32-bit ones have alpha if their header has a mask for it."""
    size, start, header = struct.unpack_from("<I4xII", data, 2)
    width, height, bits, compression, per_metre, used = _bmp_header(data, header)
    assert size == len(data), "the size in the header is the file's"
    assert compression in (0, 3), "uncompressed, or with masks"
    stride = (width * bits + 31) // 32 * 4
    rows = np.frombuffer(data, np.uint8, stride * abs(height), start).reshape(abs(height), stride)
    rows = rows if height < 0 else rows[::-1]
    masks = _bmp_masks(data, bits, header, compression)
    if bits <= 8:
        entry = 3 if header == 12 else 4
        palette = np.frombuffer(data, np.uint8, entry * (used or 1 << bits), 14 + header).reshape(-1, entry)
        indices = np.unpackbits(rows, axis=1).reshape(abs(height), -1, bits)
        numbers = indices @ (1 << np.arange(bits)[::-1])
        pixels = palette[numbers[:, :width], 2::-1]
    elif bits == 24:
        pixels = rows[:, : width * 3].reshape(abs(height), width, 3)[..., ::-1]
    else:
        words = np.ascontiguousarray(rows[:, : width * bits // 8]).view(f"<u{bits // 8}")
        pixels = np.stack([_bmp_channel(words, mask) for mask in masks if mask], axis=-1)
    facts = {
        "bits": bits,
        "bands": pixels.shape[2],
        "masks": masks,
        "header": header,
        "top down": height < 0,
        "width": width,
        "height": abs(height),
        "resolution": per_metre,
    }
    return np.ascontiguousarray(pixels), facts


def _bmp_header(data: bytes, header: int) -> tuple[int, int, int, int, tuple[int, ...], int]:
    """Return width, height, bits, compression, pixels a metre, and the used entries of the palette."""
    if header == 12:
        width, height, planes, bits = struct.unpack_from("<HHHH", data, 18)
        assert planes == 1
        return width, height, bits, 0, (), 0
    width, height, planes, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    across, down, used = struct.unpack_from("<iiI", data, 38)
    assert planes == 1
    return width, height, bits, compression, (across, down), used


def _bmp_masks(data: bytes, bits: int, header: int, compression: int) -> tuple[int, ...]:
    """Return the bits of red, green, blue and alpha; only a header of version 4 or 5 can have alpha's."""
    if bits not in (16, 32):
        return ()
    if compression == 3:
        masks: tuple[int, ...] = struct.unpack_from("<IIII" if header >= 56 else "<III", data, 54)
        return masks
    return (0x7C00, 0x03E0, 0x001F) if bits == 16 else (0xFF0000, 0x00FF00, 0x0000FF)


def _bmp_channel(words: NDArray[Any], mask: int) -> NDArray[np.uint8]:
    shift = (mask & -mask).bit_length() - 1
    top = mask >> shift
    values = (words.astype(np.uint32) & mask) >> shift
    return ((values * 255 + top // 2) // top).astype(np.uint8)


_STRUCTURES = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "TIFF": _tiff, "GIF": _gif, "HEIF": _heif}
