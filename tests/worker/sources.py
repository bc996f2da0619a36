"""Picture files to try the worker with, in every format, mode and layout that people's programs write.

What this module owns: turning arrays into files that Pillow cannot write by itself, and the metadata that
goes into them. Rules of this module:
- It imports nothing of `watcher`: what it writes must not depend on what is tested.
- A writer takes the pixels as they are to lie in the file; nothing is converted on the way.
- All bytes are the same on every run: no dates, no random numbers without a seed.
- No file ends in zeros, which the worker takes for bytes that are still to come.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyvips
from PIL import Image, TiffImagePlugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

Order = Literal["<", ">"]

# --- metadata ----------------------------------------------------------------------------------------------

XMP = (
    b'<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
    b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
    b'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
)
IPTC = b"".join(
    struct.pack(">BBBH", 0x1C, 2, number, len(text)) + text
    for number, text in ((5, b"A title"), (25, b"a keyword"), (120, b"A caption"))
)
PHOTOSHOP = b"8BIM" + struct.pack(">HHI", 0x0404, 0, len(IPTC)) + IPTC + b"\x00" * (len(IPTC) % 2)
COMMENT = b"a remark"
PER_METRE = 11811
"""300 dots an inch."""


@dataclass(frozen=True)
class Entry:
    """One entry of a TIFF directory: number, type, and values, bytes or a directory of its own.

    A directory of type 7 (undefined) is a maker note: it lies where a value lies, and its offsets count from
    the start of the file, so that whoever moves it breaks it.
    """

    tag: int
    kind: int
    value: bytes | tuple[int, ...] | tuple[tuple[int, int], ...] | tuple[Entry, ...]


def directory(entries: Sequence[Entry], at: int, order: Order) -> bytes:
    """Lay out a directory that begins at offset `at`, with all that it points to behind it."""
    head, tail = b"", b""
    behind = at + 2 + 12 * len(entries) + 4
    for entry in sorted(entries, key=lambda entry: entry.tag):
        place = behind + len(tail)
        count, raw = _raw(entry, place, order)
        if entry.kind == 4 and _is_directory(entry.value):
            field = struct.pack(f"{order}I", place)
        elif len(raw) <= 4:
            field, raw = raw.ljust(4, b"\x00"), b""
        else:
            field = struct.pack(f"{order}I", place)
        head += struct.pack(f"{order}HHI", entry.tag, entry.kind, count) + field
        tail += raw + b"\x00" * (len(raw) % 2)
    return struct.pack(f"{order}H", len(entries)) + head + bytes(4) + tail


def _is_directory(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Entry)


def _raw(entry: Entry, place: int, order: Order) -> tuple[int, bytes]:
    """Return an entry's count and the bytes of its value."""
    value: Any = entry.value
    if isinstance(value, bytes):
        return len(value), value
    if _is_directory(value):
        raw = directory(value, place, order)
        return (1 if entry.kind == 4 else len(raw)), raw
    if entry.kind == 5:
        return len(value), b"".join(struct.pack(f"{order}II", *pair) for pair in value)
    return len(value), struct.pack(f"{order}{len(value)}{'H' if entry.kind == 3 else 'I'}", *value)


MAKER_NOTE = (
    Entry(0x0006, 2, b"A camera that never was\x00"),
    Entry(0x0007, 2, b"Firmware Version 1.2.3\x00"),
    Entry(0x0009, 2, b"Somebody with a long name\x00"),
)
CAMERA = (
    Entry(0x010F, 2, b"Canon\x00"),
    Entry(0x0110, 2, b"Canon that never was\x00"),
    Entry(0x011A, 5, ((300, 1),)),
    Entry(0x011B, 5, ((300, 1),)),
    Entry(0x0128, 3, (2,)),
    Entry(0x0132, 2, b"2026:11:30 10:00:00\x00"),
    Entry(
        0x8769,
        4,
        (
            Entry(0x829A, 5, ((1, 250),)),
            Entry(0x8827, 3, (400,)),
            Entry(0x9000, 7, b"0232"),
            Entry(0x9003, 2, b"2026:11:30 10:00:00\x00"),
            Entry(0x927C, 7, MAKER_NOTE),
            Entry(0x9286, 7, b"ASCII\x00\x00\x00a user's comment"),
        ),
    ),
    Entry(
        0x8825,
        4,
        (
            Entry(0x0000, 1, bytes([2, 3, 0, 0])),
            Entry(0x0001, 2, b"N\x00"),
            Entry(0x0002, 5, ((48, 1), (8, 1), (1234, 100))),
            Entry(0x0003, 2, b"E\x00"),
            Entry(0x0004, 5, ((11, 1), (34, 1), (5678, 100))),
        ),
    ),
)


def exif(orientation: int | None) -> bytes:
    """Return an EXIF block as a camera writes it, without prefix: tags, GPS and a maker note.

    Its byte order goes by the orientation, so that a row of the matrix has both.
    """
    order: Order = "<" if orientation is not None and orientation % 2 == 0 else ">"
    entries = CAMERA if orientation is None else (*CAMERA, Entry(0x0112, 3, (orientation,)))
    return _tiff_head(order) + directory(entries, 8, order)


def _tiff_head(order: Order) -> bytes:
    return (b"II*\x00" if order == "<" else b"MM\x00*") + struct.pack(f"{order}I", 8)


# --- colour profiles ---------------------------------------------------------------------------------------

_D50 = np.array([0.9642, 1.0, 0.8249])
_SRGB_TO_D50 = np.array(
    [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
)
"""Linear sRGB to XYZ under D50, as the ICC publishes it for its sRGB profiles."""


@cache
def rgb_profile() -> bytes:
    """Return Display P3: small, real, and not what a program assumes when there is no profile."""
    return bytes(pyvips.Operation.call("profile_load", "p3"))


@cache
def grey_profile() -> bytes:
    """Return a grey profile of gamma 1.8."""
    curve = b"curv" + struct.pack(">4xIH2x", 1, int(1.8 * 256))
    return _profile(b"mntr", b"GRAY", b"XYZ ", {b"kTRC": curve})


@cache
def cmyk_profile() -> bytes:
    """Return a printer's profile with tables both ways, for inks that print darker than their complements.

    So no conversion without it gives the same.
    """
    nodes = 7
    inks = np.stack(np.meshgrid(*[np.linspace(0, 1, nodes)] * 4, indexing="ij"), axis=-1)
    gain = 1.5
    to_lab = _lab_of(((1 - inks[..., :3]) * (1 - inks[..., 3:])) ** gain)
    fine = np.linspace(0, 1, 2 * nodes - 1)
    lab = np.stack(np.meshgrid(fine * 100, fine * 255 - 128, fine * 255 - 128, indexing="ij"), axis=-1)
    rgb = _rgb_of(lab) ** (1 / gain)
    black = (1 - rgb.max(axis=-1, keepdims=True)) / 2
    to_inks = np.concatenate([1 - rgb / np.maximum(1 - black, 1e-6), black], axis=-1)
    encoded = to_lab * [255 / 100, 1, 1] + [0, 128, 128]
    tables = {b"A2B0": _table(encoded, 4), b"B2A0": _table(to_inks * 255, 3)}
    return _profile(b"prtr", b"CMYK", b"Lab ", tables)


def _profile(kind: bytes, space: bytes, pcs: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Put an ICC profile of version 2 together (ICC.1:2001-04, 6.1 to 6.3)."""
    name = b"made for a test\x00"
    tags = {
        b"desc": b"desc" + struct.pack(">4xI", len(name)) + name + bytes(78),
        b"cprt": b"text" + bytes(4) + b"public domain\x00",
        b"wtpt": b"XYZ " + bytes(4) + _fixed(_D50),
        **tags,
    }
    table, body = struct.pack(">I", len(tags)), b""
    for signature, data in tags.items():
        place = 128 + 4 + 12 * len(tags) + len(body)
        table += struct.pack(">4sII", signature, place, len(data))
        body += data + bytes(-len(data) % 4)
    date = struct.pack(">6H", 2026, 11, 30, 0, 0, 0)
    head = struct.pack(">4xI4s4s4s", 0x02400000, kind, space, pcs) + date + b"acsp"
    head = (head.ljust(64, b"\x00") + _fixed(_D50)).ljust(124, b"\x00")
    size: bytes = struct.pack(">I", 128 + len(table) + len(body))
    return size + head + table + body


def _fixed(values: NDArray[np.float64]) -> bytes:
    return b"".join(struct.pack(">i", round(float(value) * 65536)) for value in values)


def _table(grid: NDArray[np.float64], inputs: int) -> bytes:
    """Encode a lookup table of 8 bits (lut8Type, ICC.1:2001-04, 6.5.8); `grid` has one axis an input."""
    outputs: int = grid.shape[-1]
    straight = bytes(range(256))
    head = b"mft1" + struct.pack(">4xBBBx", inputs, outputs, grid.shape[0]) + _fixed(np.eye(3).ravel())
    values = np.clip(np.rint(grid), 0, 255).astype(np.uint8).tobytes()
    return head + straight * inputs + values + straight * outputs


def _lab_of(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.moveaxis(_cube_root(linear @ _SRGB_TO_D50.T / _D50), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def _cube_root(value: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(value > 216 / 24389, np.cbrt(value), (24389 / 27 * value + 16) / 116)


def _rgb_of(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    y = (lab[..., 0] + 16) / 116
    roots = np.stack([y + lab[..., 1] / 500, y, y - lab[..., 2] / 200], axis=-1)
    xyz = np.where(roots**3 > 216 / 24389, roots**3, (116 * roots - 16) * 27 / 24389) * _D50
    linear = np.clip(xyz @ np.linalg.inv(_SRGB_TO_D50).T, 0, 1)
    rgb: NDArray[np.float64] = np.where(
        linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055
    )
    return rgb


# --- PNG ---------------------------------------------------------------------------------------------------

_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Adam7: first column, first row, step of columns, step of rows (PNG, 8.2)."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png(  # noqa: PLR0913 - the fields of the header, and what stands around the pixels
    pixels: Array,
    colour_type: int,
    depth: int,
    *,
    interlace: bool = False,
    palette: Array | None = None,
    key: bytes | None = None,
    chunks: Sequence[tuple[bytes, bytes]] = (),
    late: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Write a PNG.

    Args:
        pixels: (height, width) or (height, width, channels); below 8 bits the values are 0 to 2**depth - 1.
        colour_type: 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGBA.
        depth: bits a sample.
        interlace: Adam7.
        palette: (entries, 3).
        key: data of the tRNS chunk.
        chunks: what stands before the palette, type and data.
        late: what stands behind the pixels.
    """
    height, width = pixels.shape[:2]
    assert pixels.size == height * width * _CHANNELS[colour_type]
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, int(interlace))
    passes = _PASSES if interlace else ((0, 0, 1, 1),)
    rows = b"".join(_png_rows(pixels[top::down, left::along], depth) for left, top, along, down in passes)
    parts = [(b"IHDR", header), *chunks]
    if palette is not None:
        parts.append((b"PLTE", palette.astype(np.uint8).tobytes()))
    if key is not None:
        parts.append((b"tRNS", key))
    parts += [(b"IDAT", zlib.compress(rows)), *late, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def _png_rows(pixels: Array, depth: int) -> bytes:
    if 0 in pixels.shape:
        return b""
    packed = packed_rows(pixels, depth, ">")
    return np.pad(packed, ((0, 0), (1, 0))).tobytes()  # filter type 0 begins each row


def packed_rows(pixels: Array, depth: int, order: Order) -> NDArray[np.uint8]:
    """Return the bytes of each row, (height, bytes): 1, 2 and 4 bits packed, 16 bits in byte order."""
    height = pixels.shape[0]
    rows = pixels.reshape(height, -1)
    if depth < 8:
        bits = (rows[..., np.newaxis] >> np.arange(depth)[::-1]) & 1
        return np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    return np.ascontiguousarray(rows.astype(f"{order}u{depth // 8}")).view(np.uint8).reshape(height, -1)


# --- TIFF --------------------------------------------------------------------------------------------------

NONE, GROUP4, LZW, JPEG, DEFLATE, PACKBITS = 1, 4, 5, 7, 8, 32773


@dataclass(frozen=True)
class TiffLayout:
    """How a TIFF stores its pixels.

    Attributes:
        photometric: 0 white is zero, 1 black is zero, 2 RGB, 3 palette, 5 CMYK, 6 Y, Cb, Cr (of RGB pixels).
        depth: bits a sample.
        order: of bytes.
        compression: NONE, GROUP4 (1 bit), LZW, JPEG (RGB pixels, photometric 6), DEFLATE or PACKBITS.
        predictor: rows are stored as differences.
        planar: each channel in planes of its own.
        tile: side of square tiles, or 0 for strips.
        extra: kinds of the channels beyond colour: 0 unspecified, 1 associated alpha, 2 unassociated.
        directory_last: the pixels come first, as scanning programs write them.
    """

    photometric: int
    depth: int = 8
    order: Order = "<"
    compression: int = NONE
    predictor: bool = False
    planar: bool = False
    tile: int = 0
    extra: tuple[int, ...] = ()
    directory_last: bool = False


_ROWS_PER_STRIP = 16


def tiff(
    pixels: Array, layout: TiffLayout, tags: Sequence[Entry] = (), palette: Array | None = None
) -> bytes:
    """Write a TIFF: directory, its values, then the pixels.

    Args:
        pixels: (height, width) or (height, width, channels).
        layout: how they are stored.
        tags: further entries.
        palette: (2**depth, 3), 8 bits.
    """
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    height, width, samples = pixels.shape
    planes = np.split(pixels, samples, axis=2) if layout.planar else [pixels]
    pieces = [_tiff_piece(part, layout) for plane in planes for part in _tiff_parts(plane, layout.tile)]
    offset_tag, count_tag = (324, 325) if layout.tile else (273, 279)
    entries = [
        *tags,
        Entry(256, 4, (width,)),
        Entry(257, 4, (height,)),
        Entry(258, 3, (layout.depth,) * samples),
        Entry(259, 3, (layout.compression,)),
        Entry(262, 3, (layout.photometric,)),
        Entry(277, 3, (samples,)),
        Entry(284, 3, (2 if layout.planar else 1,)),
        Entry(count_tag, 4, tuple(len(piece) for piece in pieces)),
    ]
    if layout.tile:
        entries += [Entry(322, 4, (layout.tile,)), Entry(323, 4, (layout.tile,))]
    else:
        entries.append(Entry(278, 4, (_ROWS_PER_STRIP,)))
    if layout.photometric == 6:
        entries.append(Entry(530, 3, (1, 1)))
    if layout.predictor:
        entries.append(Entry(317, 3, (2,)))
    if layout.extra:
        entries.append(Entry(338, 3, layout.extra))
    if palette is not None:
        entries.append(Entry(320, 3, tuple(int(value) * 257 for value in palette.T.ravel())))
    return _tiff_file(entries, offset_tag, pieces, layout)


def _tiff_file(entries: list[Entry], offset_tag: int, pieces: list[bytes], layout: TiffLayout) -> bytes:
    order = layout.order
    body = b"".join(piece + b"\x00" * (len(piece) % 2) for piece in pieces)
    ends = np.cumsum([len(piece) + len(piece) % 2 for piece in pieces]).tolist()
    within = [0, *ends[:-1]]

    def all_of(directory_at: int, body_at: int) -> bytes:
        offsets = tuple(body_at + offset for offset in within)
        return directory([*entries, Entry(offset_tag, 4, offsets)], directory_at, order)

    if layout.directory_last:
        at = 8 + len(body)
        head = _tiff_head(order)[:4] + struct.pack(f"{order}I", at)
        return head + body + all_of(at, 8)
    return _tiff_head(order) + all_of(8, 8 + len(all_of(8, 0))) + body


def _tiff_parts(plane: Array, tile: int) -> Iterator[Array]:
    height, width = plane.shape[:2]
    if not tile:
        for top in range(0, height, _ROWS_PER_STRIP):
            yield plane[top : top + _ROWS_PER_STRIP]
        return
    padded = np.pad(plane, ((0, -height % tile), (0, -width % tile), (0, 0)), mode="edge")
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            yield padded[top : top + tile, left : left + tile]


def _tiff_piece(part: Array, layout: TiffLayout) -> bytes:
    if layout.predictor:
        part = part.copy()
        part[:, 1:] -= part[:, :-1].copy()
    if layout.compression in (JPEG, GROUP4):
        return _tiff_piece_by_pillow(part, layout.compression)
    rows = packed_rows(part, layout.depth, layout.order)
    if layout.compression == PACKBITS:
        return b"".join(_packbits(row.tobytes()) for row in rows)
    if layout.compression == LZW:
        return _lzw(rows.tobytes())
    return zlib.compress(rows.tobytes()) if layout.compression == DEFLATE else rows.tobytes()


def _tiff_piece_by_pillow(part: Array, compression: int) -> bytes:
    if compression == JPEG:
        return by_pillow(Image.fromarray(part), "JPEG", quality=90, subsampling=0)
    whole = by_pillow(Image.fromarray(part[..., 0] > 0), "TIFF", compression="group4")
    with Image.open(io.BytesIO(whole)) as opened:
        assert isinstance(opened, TiffImagePlugin.TiffImageFile)
        assert opened.tag_v2[262] == 1, "black is zero"
        (start,), (length,) = opened.tag_v2[273], opened.tag_v2[279]
    return whole[start : start + length]


def _packbits(row: bytes) -> bytes:
    """Encode a row as literal runs: true PackBits, of the longest kind."""
    return b"".join(
        bytes([len(row[at : at + 128]) - 1]) + row[at : at + 128] for at in range(0, len(row), 128)
    )


def _lzw(values: bytes) -> bytes:
    """Encode bytes as LZW, as TIFF 6.0 has it (section 13): codes grow with entries 511, 1023 and 2047."""
    clear, end, last = 256, 257, 4094
    codes: list[tuple[int, int]] = [(clear, 9)]
    table = {bytes([value]): value for value in range(256)}
    known, width, following = b"", 9, 258
    for value in values:
        longer = known + bytes([value])
        if longer in table:
            known = longer
            continue
        codes.append((table[known], width))
        table[longer] = following
        following += 1
        known = bytes([value])
        if following > last:
            codes.append((clear, width))
            table = {bytes([value]): value for value in range(256)}
            following, width = 258, 9
        elif following == 1 << width:
            width += 1
    codes.append((table[known], width))
    following += 1
    codes.append((end, width + 1 if following == 1 << width else width))
    bits = "".join(f"{code:0{size}b}" for code, size in codes)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


# --- JPEG --------------------------------------------------------------------------------------------------


def with_segments(jpeg: bytes, segments: Sequence[tuple[int, bytes]]) -> bytes:
    """Put segments into a JPEG, behind its JFIF header where it has one."""
    position = 2
    if jpeg[2:4] == b"\xff\xe0":
        position += 2 + struct.unpack_from(">H", jpeg, 4)[0]
    inside = b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments)
    return jpeg[:position] + inside + jpeg[position:]


def camera_segments(orientation: int, profile: bytes) -> list[tuple[int, bytes]]:
    """Return EXIF, XMP, IPTC, colour profile (in pieces) and a remark."""
    size = 9_000
    pieces = [profile[at : at + size] for at in range(0, len(profile), size)]
    icc = [
        (0xE2, b"ICC_PROFILE\x00" + bytes([number, len(pieces)]) + piece)
        for number, piece in enumerate(pieces, start=1)
    ]
    return [
        (0xE1, b"Exif\x00\x00" + exif(orientation)),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\x00" + XMP),
        *icc,
        (0xED, b"Photoshop 3.0\x00" + PHOTOSHOP),
        (0xFE, COMMENT),
    ]


_ZIGZAG = sorted(range(64), key=lambda n: (n // 8 + n % 8, n // 8 if (n // 8 + n % 8) % 2 else n % 8))
_DCT = np.array(
    [[np.cos((2 * x + 1) * u * np.pi / 16) * (0.5 if u else 0.125**0.5) for x in range(8)] for u in range(8)]
)
_AC_SYMBOLS = bytes([0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11))])


def baseline_jpeg(
    planes: Sequence[Array],
    factors: Sequence[tuple[int, int]],
    *,
    restart: int = 0,
    segments: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """Write a baseline JPEG with any sampling factors (ITU-R T.81), which encoders offer few of.

    Args:
        planes: one (height, width) a component, all of the picture's size; shrunk here as the factors say.
        factors: sampling factors of each, across and down.
        restart: minimum coded units between restart markers, or 0 for none.
        segments: what stands behind the start of the image.
    """
    height, width = planes[0].shape
    coded = factors if len(planes) > 1 else [(1, 1)]  # one component is not interleaved (A.2.2)
    most = max(across for across, _ in coded), max(down for _, down in coded)
    units = -(-width // (8 * most[0])), -(-height // (8 * most[1]))
    table = np.array([[3 + 2 * (u + v) for u in range(8)] for v in range(8)])
    blocks = [_blocks(plane, pair, most, units, table) for plane, pair in zip(planes, coded, strict=True)]
    numbered = list(enumerate(factors, start=1))
    frame = struct.pack(">BHHB", 8, height, width, len(planes))
    frame += b"".join(bytes([number, across << 4 | down, 0]) for number, (across, down) in numbered)
    scan = bytes([len(planes)]) + b"".join(bytes([number, 0]) for number, _ in numbered) + bytes([0, 63, 0])
    parts = [
        *segments,
        (0xDB, b"\x00" + bytes(int(table.ravel()[place]) for place in _ZIGZAG)),
        (0xC0, frame),
        (0xC4, b"\x00" + bytes([0, 0, 0, 12, *bytes(12)]) + bytes(range(12))),
        (0xC4, b"\x10" + bytes([*bytes(7), len(_AC_SYMBOLS), *bytes(8)]) + _AC_SYMBOLS),
    ]
    if restart:
        parts.append((0xDD, struct.pack(">H", restart)))
    parts.append((0xDA, scan))
    head = b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in parts)
    return b"\xff\xd8" + head + _scan(blocks, coded, units, restart) + b"\xff\xd9"


def _blocks(
    plane: Array, pair: tuple[int, int], most: tuple[int, int], units: tuple[int, int], table: NDArray[Any]
) -> NDArray[np.int64]:
    """Return a component's quantised coefficients: (rows, columns, 64) of blocks, in zigzag order."""
    shrink_x, shrink_y = most[0] // pair[0], most[1] // pair[1]
    wide, high = units[0] * most[0] * 8, units[1] * most[1] * 8
    full = np.pad(plane, ((0, high - plane.shape[0]), (0, wide - plane.shape[1])), mode="edge").astype(float)
    small = full.reshape(high // shrink_y, shrink_y, wide // shrink_x, shrink_x).mean(axis=(1, 3)) - 128
    rows, columns = small.shape[0] // 8, small.shape[1] // 8
    squares = small.reshape(rows, 8, columns, 8).swapaxes(1, 2)
    coefficients = np.rint(_DCT @ squares @ _DCT.T / table).astype(np.int64)
    blocks: NDArray[np.int64] = coefficients.reshape(rows, columns, 64)[..., _ZIGZAG]
    return blocks


def _scan(
    blocks: list[NDArray[np.int64]], factors: Sequence[tuple[int, int]], units: tuple[int, int], restart: int
) -> bytes:
    data, bits = b"", ""
    last = [0] * len(blocks)
    for unit in range(units[0] * units[1]):
        if restart and unit and unit % restart == 0:
            data += _stuffed(bits) + bytes([0xFF, 0xD0 + (unit // restart - 1) % 8])
            bits, last = "", [0] * len(blocks)
        row, column = divmod(unit, units[0])
        for number, (across, down) in enumerate(factors):
            for y in range(row * down, (row + 1) * down):
                for x in range(column * across, (column + 1) * across):
                    block = blocks[number][y, x]
                    bits += _block_bits(block, last[number])
                    last[number] = int(block[0])
    return data + _stuffed(bits)


def _block_bits(block: NDArray[np.int64], before: int) -> str:
    """Code one block with flat tables: 4 bits for each size of DC, 8 bits for each run and size of AC."""
    size, value = _magnitude(int(block[0]) - before)
    bits = f"{size:04b}{value}"
    run = 0
    for coefficient in np.trim_zeros(block[1:], "b"):
        if not coefficient:
            run += 1
            continue
        while run > 15:
            bits += f"{_AC_SYMBOLS.index(0xF0):08b}"
            run -= 16
        size, value = _magnitude(int(coefficient))
        bits += f"{_AC_SYMBOLS.index(run << 4 | size):08b}{value}"
        run = 0
    return bits if block[63] else bits + f"{_AC_SYMBOLS.index(0x00):08b}"


def _magnitude(value: int) -> tuple[int, str]:
    size = abs(value).bit_length()
    return size, f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


def _stuffed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits or "1" * 8, 2).to_bytes(max(1, len(bits) // 8), "big").replace(b"\xff", b"\xff\x00")


# --- BMP ---------------------------------------------------------------------------------------------------


def bmp(
    pixels: Array,
    bits: int,
    *,
    palette: Array | None = None,
    masks: Sequence[int] = (),
    top_down: bool = False,
    first_header: bool = False,
) -> bytes:
    """Write a BMP.

    Args:
        pixels: (height, width) of indices or of ready 16-bit words, (height, width, 3) of RGB, or
            (height, width, 4) of RGBA.
        bits: a pixel: 1, 4, 8, 16, 24 or 32.
        palette: (entries, 3).
        masks: of red, green, blue (and alpha, which makes the header one of version 4).
        top_down: the first row comes first.
        first_header: the short one of OS/2 and Windows 2, which knows neither resolution nor masks.
    """
    height, width = pixels.shape[:2]
    ordered: Array = pixels
    if pixels.ndim == 3:
        ordered = pixels[..., [2, 1, 0, *range(3, pixels.shape[2])]]
    rows = packed_rows(ordered, bits if bits <= 16 else 8, "<")
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    data = (rows if top_down else rows[::-1]).tobytes()
    if first_header:
        table = (
            b"" if palette is None else palette[:, ::-1].astype(np.uint8).tobytes().ljust(3 << bits, b"\x00")
        )
        offset = 14 + 12 + len(table)
        header = struct.pack("<2sIHHI", b"BM", offset + len(data), 0, 0, offset)
        return header + struct.pack("<IHHHH", 12, width, height, 1, bits) + table + data
    table = b"" if palette is None else np.pad(palette[:, ::-1], ((0, 0), (0, 1))).astype(np.uint8).tobytes()
    fields = b"".join(struct.pack("<I", mask) for mask in masks)
    header_size = 40
    if len(masks) == 4:
        header_size, fields = 108, (fields + b"BGRs").ljust(68, b"\x00")
    offset = 14 + 40 + len(fields) + len(table)
    header = struct.pack("<2sIHHI", b"BM", offset + len(data), 0, 0, offset)
    header += struct.pack(
        "<IiiHHIIiiII",
        header_size,
        width,
        -height if top_down else height,
        1,
        bits,
        3 if masks else 0,
        len(data),
        PER_METRE,
        PER_METRE,
        0 if palette is None else len(palette),
        0,
    )
    return header + fields + table + data


# --- GIF ---------------------------------------------------------------------------------------------------

_MAGIC_TRAILER = b"\x01" + bytes(range(255, -1, -1)) + b"\x00"
"""Leads a reader of sub-blocks out of a packet that lies in none, wherever it enters (XMP, part 3, 1.1.2)."""


def gif_with_xmp(gif: bytes) -> bytes:
    """Put XMP into a GIF, before its first block."""
    flags = gif[10]
    position = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    return gif[:position] + b"\x21\xff\x0bXMP DataXMP" + XMP + _MAGIC_TRAILER + gif[position:]


def gif_with_own_table(gif: bytes) -> bytes:
    """Move a GIF's colour table from the whole to its only frame, behind which there is none."""
    flags = gif[10]
    size = 3 << ((flags & 7) + 1)
    table, rest = gif[13 : 13 + size], gif[13 + size :]
    frame = rest.index(b"\x2c" + bytes(4) + gif[6:10])
    own = bytes([rest[frame + 9] | 0x80 | (flags & 7)])
    rest = rest[: frame + 9] + own + table + rest[frame + 10 :]
    return gif[:10] + bytes([flags & 0x78]) + gif[11:13] + rest


def gif_on_screen(gif: bytes, screen: tuple[int, int], left: int, top: int) -> bytes:
    """Let a GIF's frame lie on a larger screen."""
    table = 3 << ((gif[10] & 7) + 1)
    frame = gif.index(b"\x2c" + bytes(4) + gif[6:10], 13 + table)
    place = struct.pack("<HH", left, top)
    return gif[:6] + struct.pack("<HH", *screen) + gif[10 : frame + 1] + place + gif[frame + 5 :]


# --- by Pillow ---------------------------------------------------------------------------------------------


def by_pillow(image: Image.Image, container: str, **options: Any) -> bytes:
    """Write what Pillow can write by itself."""
    target = io.BytesIO()
    image.save(target, container, **options)
    return target.getvalue()
