"""A TIFF is edited in place: what changes is the hole, and nothing else of the file's bytes.

Rules of this file:
- Files go through the worker's front door. Pixels are read by libvips and tags by ExifRead, neither of which
  the worker has; where bytes lie is worked out here.
- A file is made by `sources`, or put together here byte by byte where programs write what that does not.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import pyvips
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker import independent, sources
from tests.worker.bench import FILL, Bench, photo, rectangle, save_mask
from tests.worker.sources import DEFLATE, GROUP4, LZW, NONE, PACKBITS, Entry, TiffLayout
from watcher.wire import ItemDone, ItemFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.wire import FromWorker

    Array = NDArray[Any]
    Mask = NDArray[np.bool_]

W, H = 83, 59
PHOTO = photo(W, H)
MARK = rectangle(W, H, (30, 17, 52, 29))
MARK[20:27, 30:40] = False
WHERE = (273, 279, 324, 325)
"""Tags that say where strips and tiles are."""


# --- a TIFF's bytes, worked out independently --------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A directory entry: type, count, and where its value lies."""

    kind: int
    count: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where a TIFF's parts lie: byte order, directory by tag, the directory's own place, strips and tiles."""

    order: sources.Order
    fields: dict[int, Field]
    start: int
    stop: int
    following: int
    pieces: tuple[tuple[int, int], ...]


_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}


def laid_out(data: bytes) -> Layout:
    order: sources.Order = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, start)
    fields: dict[int, Field] = {}
    for place in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, place)
        size = _UNITS[kind] * number
        at = place + 8 if size <= 4 else struct.unpack_from(f"{order}I", data, place + 8)[0]
        fields[tag] = Field(kind, number, at, at + size)
    assert list(fields) == sorted(fields), "readers look for tags in order"
    assert len(fields) == count, "each once"
    stop = start + 2 + 12 * count + 4
    (following,) = struct.unpack_from(f"{order}I", data, stop - 4)
    where, sizes = (
        numbers(data, order, fields[a if a in fields else b]) for a, b in ((273, 324), (279, 325))
    )
    pieces = tuple((a, a + b) for a, b in zip(where, sizes, strict=True))
    return Layout(order, fields, start, stop, following, pieces)


def numbers(data: bytes, order: str, field: Field) -> tuple[int, ...]:
    return struct.unpack_from(f"{order}{field.count}{'HI'[field.kind == 4]}", data, field.start)


def value(data: bytes, tag: int) -> bytes:
    field = laid_out(data).fields[tag]
    return data[field.start : field.stop]


def vips(data: bytes) -> Array:
    """Pixels as libvips has them: stored, all bands, own depth."""
    old = laid_out(data)
    if 284 in old.fields and numbers(data, old.order, old.fields[284]) == (2,):
        return np.dstack([vips(plane) for plane in planes(data, old)])  # libvips mixes some of them up
    image = pyvips.Image.new_from_buffer(data, "", access="sequential", fail_on="warning")
    return np.asarray(image.numpy()).reshape(image.height, image.width, image.bands)


def planes(data: bytes, old: Layout) -> list[bytes]:
    """Each plane as a grey file of its own, its pieces as they are stored."""
    (samples,) = numbers(data, old.order, old.fields[277])
    count = len(old.pieces) // samples
    files: list[bytes] = []
    for first in range(0, len(old.pieces), count):
        pieces = [data[start:stop] for start, stop in old.pieces[first : first + count]]
        structure = {256, 257, 259, 278, 317, 322, 323} & old.fields.keys()
        kept = {tag: numbers(data, old.order, old.fields[tag]) for tag in structure}
        kept |= {258: numbers(data, old.order, old.fields[258])[:1], 262: (1,), 277: (1,)}
        where, sizes = (324, 325) if 324 in old.fields else (273, 279)
        kept |= {where: (0,) * count, sizes: tuple(len(piece) for piece in pieces)}
        behind = 8 + len(sources.directory([Entry(tag, 4, each) for tag, each in kept.items()], 8, old.order))
        kept[where] = tuple(behind + sum(kept[sizes][:number]) for number in range(count))
        head = sources.directory([Entry(tag, 4, each) for tag, each in kept.items()], 8, old.order)
        files.append(data[:4] + struct.pack(f"{old.order}I", 8) + head + b"".join(pieces))
    return files


def put(bench: Bench, data: bytes, name: str = "a.tif") -> Path:
    path = bench.folder / name
    path.write_bytes(data)
    return path


def mask_of(bench: Bench, mark: Mask = MARK) -> Path:
    return save_mask(bench.folder / "mask.png", mark)


def cleaned(bench: Bench, data: bytes, mark: Mask = MARK, **changes: Any) -> tuple[ItemDone, bytes]:
    report, staged = bench.done(put(bench, data), mask_of(bench, mark), **{"grow_px": 0, **changes})
    return report, staged.read_bytes()


def touched(layout: TiffLayout, mark: Mask, samples: int) -> list[int]:
    """Which pieces hold a pixel of the mark, and so may change."""
    height, width = mark.shape
    high, wide = (layout.tile, layout.tile) if layout.tile else (16, width)
    down, across = -(-height // high), -(-width // wide)
    found = [
        row * across + column
        for row in range(down)
        for column in range(across)
        if mark[row * high : (row + 1) * high, column * wide : (column + 1) * wide].any()
    ]
    planes = samples if layout.planar else 1
    return [plane * down * across + index for plane in range(planes) for index in found]


def assert_only_these_bytes_differ(before: bytes, after: bytes, pieces: Sequence[int]) -> None:
    """All bytes are the same but for these pieces and the lists of where pieces are."""
    old = laid_out(before)
    free = np.zeros(len(before), np.bool_)
    for index in pieces:
        free[slice(*old.pieces[index])] = True
    for tag in WHERE:
        if tag in old.fields:
            free[old.fields[tag].start : old.fields[tag].stop] = True
    after = after.ljust(len(before), b"\x00")  # what was free at the end may be cut off
    one, other = np.frombuffer(before, np.uint8), np.frombuffer(after[: len(before)], np.uint8)
    assert not (one != other)[~free].any(), f"byte {np.flatnonzero((one != other) & ~free)[:5]} changed"
    new = laid_out(after)
    for index, place in enumerate(old.pieces):
        if index not in pieces:
            assert new.pieces[index] == place


# --- what changes is the hole ------------------------------------------------------------------------------

LAYOUTS = [
    TiffLayout(2, depth, order, compression, predictor, planar, tile)
    for compression in (NONE, LZW, DEFLATE, PACKBITS)
    for depth in (8, 16)
    for order in ("<", ">")
    for predictor in ((False, True) if compression in (LZW, DEFLATE) else (False,))
    for planar in (False, True)
    for tile in (0, 16)
]


def rgb(depth: int) -> Array:
    noise = np.random.default_rng(3).integers(0, 256, PHOTO.shape).astype(np.uint16)
    return PHOTO if depth == 8 else (PHOTO.astype(np.uint16) << 8) | noise


@pytest.mark.parametrize("compression", [NONE, LZW, DEFLATE, PACKBITS])
def test_outside_the_hole_no_sample_and_no_byte_changes(bench: Bench, compression: int) -> None:
    for layout in LAYOUTS:
        if layout.compression != compression:
            continue
        pixels = rgb(layout.depth)
        data = sources.tiff(pixels, layout, sources.CAMERA)
        assert np.array_equal(vips(data), pixels), layout
        report, result = cleaned(bench, data)
        assert (report.image.outside, report.image.dropped_metadata) == ("identical", ())
        after = vips(result)
        assert np.array_equal(after[~MARK], pixels[~MARK]), layout
        if layout.depth == 8:
            assert (after[MARK] == FILL).all(), layout
        else:
            assert (after[MARK] != pixels[MARK]).any(axis=1).mean() > 0.9, layout
        pieces = touched(layout, MARK, 3)
        assert_only_these_bytes_differ(data, result, pieces)
        if compression != NONE:
            for index in pieces:
                assert data[slice(*laid_out(data).pieces[index])] not in result, "what was removed is gone"


def test_of_what_was_removed_no_row_is_left_in_an_uncompressed_file(bench: Bench) -> None:
    data = sources.tiff(PHOTO, TiffLayout(2))
    _, result = cleaned(bench, data)
    for row in range(21, 27):
        assert PHOTO[row, 41:51].tobytes() in data
        assert PHOTO[row, 41:51].tobytes() not in result


@pytest.mark.parametrize("tile", [0, 16, 32])
def test_what_writers_put_beyond_the_edge_goes_with_the_hole(bench: Bench, tile: int) -> None:
    """Tiles reach over the edge, and writers repeat the last column and row there."""
    mark = rectangle(W, H, (W - 9, H - 9, W, H))
    secret = PHOTO.copy()
    secret[mark] = (1, 254, 77)
    data = sources.tiff(secret, TiffLayout(2, tile=tile))
    _, result = cleaned(bench, data, mark)
    assert bytes((1, 254, 77)) in data
    assert bytes((1, 254, 77)) not in result


def test_a_hole_in_the_last_rows_of_one_large_strip(bench: Bench) -> None:
    """Pieces are worked on in bands; those without a pixel of the hole go through as they are."""
    large = np.tile(photo(50, 100), (300, 1, 1))
    data = one_strip(large.shape, zlib.compress(large.tobytes(), 1), DEFLATE)
    mark = rectangle(50, 30_000, (20, 29_900, 40, 29_950))
    _, result = cleaned(bench, data, mark)
    after = vips(result)
    assert np.array_equal(after[~mark], large[~mark])
    assert (after[mark] == FILL).all()


def one_strip(shape: tuple[int, ...], stream: bytes, compression: int, *more: Entry) -> bytes:
    """An 8-bit TIFF of one strip that lies between the header and the directory."""
    height, width, samples = (*shape, 1)[:3]
    entries = (
        Entry(256, 4, (width,)),
        Entry(257, 4, (height,)),
        Entry(258, 3, (8,) * samples),
        Entry(259, 3, (compression,)),
        Entry(262, 3, (2 if samples >= 3 else 1,)),
        Entry(273, 4, (8,)),
        Entry(277, 3, (samples,)),
        Entry(278, 4, (height,)),
        Entry(279, 4, (len(stream),)),
        *more,
    )
    stream += bytes(len(stream) % 2)
    at = 8 + len(stream)
    return b"II*\x00" + struct.pack("<I", at) + stream + sources.directory(entries, at, "<")


# --- modes that only this way keeps ------------------------------------------------------------------------


def packed_grey(bits: int) -> tuple[bytes, Array]:
    """Grey of any depth, and its numbers."""
    values = (np.arange(W * H, dtype=np.uint32).reshape(H, W) * 2654435761 >> 8).astype(np.uint16)
    values &= (1 << bits) - 1
    stream = (values[..., np.newaxis] >> np.arange(bits)[::-1]) & 1
    rows = np.packbits(stream.reshape(H, -1).astype(np.uint8), axis=1).tobytes()
    data = one_strip((H, W), rows, NONE)
    return data.replace(struct.pack("<HHII", 258, 3, 1, 8), struct.pack("<HHII", 258, 3, 1, bits)), values


def unpacked_grey(data: bytes, bits: int) -> Array:
    (piece,) = laid_out(data).pieces
    rows = np.frombuffer(data[slice(*piece)], np.uint8).reshape(H, -1)
    stream = np.unpackbits(rows, axis=1, count=W * bits).reshape(H, W, bits)
    weights = 1 << np.arange(bits)[::-1]
    return np.asarray(stream.astype(np.int64) @ weights)


@pytest.mark.parametrize("bits", [2, 4, 6, 10, 12, 14])
def test_odd_depths_stay(bench: Bench, bits: int) -> None:
    data, values = packed_grey(bits)
    _, result = cleaned(bench, data)
    after = unpacked_grey(result, bits)
    assert np.array_equal(after[~MARK], values[~MARK])
    assert len(np.unique(after[MARK])) == 1
    assert abs(int(after[MARK][0]) / ((1 << bits) - 1) - 97 / 255) < 0.5 / ((1 << min(bits, 8)) - 1) + 0.005


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("photometric", [0, 1])
def test_grey_is_filled_as_grey_whichever_end_is_white(bench: Bench, photometric: int, depth: int) -> None:
    grey = rgb(depth)[..., 0].copy()
    grey[0, :2] = 0, (1 << depth) - 1
    _, result = cleaned(bench, sources.tiff(grey, TiffLayout(photometric, depth)))
    after = vips(result)[..., 0]  # libvips counts from black
    if photometric == 0:
        grey = (1 << depth) - 1 - grey
    assert np.array_equal(after[~MARK], grey[~MARK])
    assert (after[MARK] >> (depth - 8) == 97).all(), "the luminance of the engine's colour"


def test_channels_that_are_no_colour_stay_also_inside_the_hole(bench: Bench) -> None:
    more = np.dstack([PHOTO, PHOTO[::-1, :, 0], PHOTO[:, ::-1, 1]])
    for layout in (TiffLayout(2, extra=(0, 0)), TiffLayout(2, extra=(0, 0), planar=True, compression=LZW)):
        _, result = cleaned(bench, sources.tiff(more, layout))
        after = vips(result)
        assert np.array_equal(after[~MARK], more[~MARK])
        assert (after[MARK][:, :3] == FILL).all()
        assert np.array_equal(after[MARK][:, 3:], more[MARK][:, 3:])


@pytest.mark.parametrize(("depth", "planar"), [(8, False), (8, True), (16, False), (16, True)])
def test_inks_stay_inks_at_any_depth(bench: Bench, depth: int, *, planar: bool) -> None:
    inks = np.dstack([255 - PHOTO, PHOTO[..., 0] // 4])
    pixels = inks if depth == 8 else inks.astype(np.uint16) * 256 + 77
    data = sources.tiff(pixels, TiffLayout(5, depth, planar=planar))
    _, result = cleaned(bench, data)
    after = vips(result)
    assert np.array_equal(after[~MARK], pixels[~MARK])
    colours = after[MARK].astype(float) / np.iinfo(after.dtype).max
    printed = (1 - colours[:, :3]) * (1 - colours[:, 3:]) * 255
    assert abs(printed.mean(axis=0) - FILL).max() < 3


@pytest.mark.parametrize("depth", [8, 16])
def test_premultiplied_colours_are_filled_premultiplied(bench: Bench, depth: int) -> None:
    most = (1 << depth) - 1
    alpha = np.broadcast_to(np.linspace(0, most, W).astype(np.uint32), (H, W))
    colours = (rgb(depth).astype(np.uint64) * alpha[..., np.newaxis] // most).astype(f"u{depth // 8}")
    pixels = np.dstack([colours, alpha.astype(colours.dtype)])
    _, result = cleaned(bench, sources.tiff(pixels, TiffLayout(2, depth, extra=(1,))))
    stored = b"".join(result[start:stop] for start, stop in laid_out(result).pieces)
    after = np.frombuffer(stored, colours.dtype).reshape(pixels.shape)  # libvips would divide by alpha
    assert np.array_equal(after[~MARK], pixels[~MARK])
    assert np.array_equal(after[..., 3], pixels[..., 3])
    assert (after[..., :3] <= after[..., 3:]).all(), "premultiplied colours are no larger than alpha"
    if depth == 8:
        wanted = np.array(FILL) * pixels[MARK][:, 3:] / most
        assert abs(after[MARK][:, :3] - wanted).max() <= 0.5


@pytest.mark.parametrize("extra", [1, 2])
@pytest.mark.parametrize("depth", [8, 16])
def test_what_was_erased_comes_back_opaque(bench: Bench, depth: int, extra: int) -> None:
    most = (1 << depth) - 1
    pixels = np.dstack([rgb(depth), np.full((H, W), most, f"u{depth // 8}")])
    pixels[MARK] = 0
    data = sources.tiff(pixels, TiffLayout(2, depth, compression=DEFLATE, extra=(extra,)))
    report, staged = bench.done(put(bench, data), None, sources=("alpha",), grow_px=0)
    after = vips(staged.read_bytes())
    assert report.marks == "alpha"
    assert np.array_equal(after[~MARK], pixels[~MARK])
    assert (after[MARK][:, 3] == most).all()
    assert after[MARK][:, :3].any(axis=1).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_colour_map_gets_the_fills_colour_and_keeps_all_others(bench: Bench, bits: int) -> None:
    random = np.random.default_rng(2)
    palette = random.integers(0, 256, (1 << bits, 3))
    indices = random.integers(0, (1 << bits) - 3, (H, W)).astype(np.uint8)
    data = sources.tiff(indices, TiffLayout(3, bits, compression=LZW), palette=palette)
    _, result = cleaned(bench, data)
    before, after = (
        np.array(numbers(one, "<", laid_out(one).fields[320])).reshape(3, -1) for one in (data, result)
    )
    new = np.flatnonzero((before != after).any(axis=0))
    assert len(new) == 1
    assert new[0] >= (1 << bits) - 3, "an entry that no pixel uses"
    assert tuple(after[:, new[0]] // 257) == FILL
    assert np.array_equal(vips(result)[~MARK], vips(data)[~MARK])
    assert (vips(result)[MARK] == FILL).all()


def fax(compression: str, options: int = 0) -> bytes:
    target = io.BytesIO()
    image = Image.fromarray(PHOTO[..., 0] > 90)
    image.save(target, "TIFF", compression=compression, tiffinfo={292: options} if options else {})
    return target.getvalue()


def mirrored(data: bytes) -> bytes:
    """The same file with the bits of its picture data in the other order (FillOrder 2)."""
    turned = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
    old = laid_out(data)
    body = bytearray(data)
    for start, stop in old.pieces:
        body[start:stop] = data[start:stop].translate(turned)
    entries = [body[place : place + 12] for place in range(old.start + 2, old.stop - 4, 12)]
    entries.append(bytearray(struct.pack("<HHII", 266, 3, 1, 2)))
    entries.sort(key=lambda entry: struct.unpack_from("<H", entry)[0])
    struct.pack_into("<I", body, 4, len(body))
    return bytes(body) + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)


FAXES = {
    "group 4": fax("group4"),
    "group 3": fax("group3"),
    "group 3, two dimensions": fax("group3", 5),
    "run lengths": fax("tiff_ccitt"),
    "group 4, mirrored": mirrored(fax("group4")),
}


@pytest.mark.parametrize("name", FAXES)
def test_a_fax_stays_one(bench: Bench, name: str) -> None:
    data = FAXES[name]
    before = vips(data)
    _, result = cleaned(bench, data)
    after = vips(result)
    assert np.array_equal(after[~MARK], before[~MARK])
    assert not after[MARK].any(), "the fill is darker than half"
    assert value(result, 259) == value(data, 259)


@pytest.mark.parametrize("compression", ["zstd", "lzma"])
@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_rarer_compressions_stay(bench: Bench, compression: str, mode: str) -> None:
    pixels = {"L": PHOTO[..., 0], "RGB": PHOTO, "I;16": rgb(16)[..., 0]}[mode]
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "TIFF", compression=compression)
    _, result = cleaned(bench, target.getvalue())
    with Image.open(io.BytesIO(result)) as after:  # libvips comes without these two
        assert after.info["compression"] == compression
        changed = np.asarray(after) != pixels
    changed = changed.any(axis=-1) if changed.ndim == 3 else changed
    assert not changed[~MARK].any()
    assert changed[MARK].mean() > 0.9


# --- the rest of the file ----------------------------------------------------------------------------------


def test_unknown_tags_and_what_they_point_at_stay_where_they_are(bench: Bench) -> None:
    """A private tag may hold offsets into the file, and a maker note does."""
    plain = sources.tiff(PHOTO, TiffLayout(2, compression=LZW), (*sources.CAMERA, Entry(65000, 4, (0,))))
    blob = b"an unknown program's own block"
    data = bytearray(plain + bytes(len(plain) % 2) + blob)
    struct.pack_into("<I", data, laid_out(plain).fields[65000].start, len(data) - len(blob))
    _, result = cleaned(bench, bytes(data))
    (place,) = struct.unpack("<I", value(result, 65000))
    assert result[place : place + len(blob)] == blob
    before, after = independent.tags_of(bytes(data)), independent.tags_of(result)
    assert {name: after[name] for name in before} == before
    assert any(name.startswith("MakerNote") for name in before), "there is a maker note to keep"


THUMBNAIL = io.BytesIO()
Image.fromarray(PHOTO[::2, ::2]).save(THUMBNAIL, "JPEG")
JPEG = THUMBNAIL.getvalue()
SCAN = JPEG[len(JPEG) // 2 : len(JPEG) // 2 + 40]
"""Picture data out of the thumbnail's middle."""


def resource(number: int, content: bytes) -> bytes:
    return b"8BIM" + struct.pack(">HHI", number, 0, len(content)) + content + bytes(len(content) % 2)


XMP_WITH_THUMBNAIL = sources.XMP.replace(
    b"</rdf:RDF>", b"<xmp:Thumbnails><rdf:Alt>VGhpcyBpcyBpdA==</rdf:Alt></xmp:Thumbnails></rdf:RDF>"
)
PICTURES: dict[str, tuple[Entry, bytes, str]] = {
    "Photoshop thumbnail": (
        Entry(34377, 1, sources.PHOTOSHOP + resource(1036, bytes(28) + JPEG) + resource(1005, bytes(16))),
        SCAN,
        "Photoshop thumbnail",
    ),
    "EXIF in Photoshop": (Entry(34377, 1, resource(1058, b"II*\x00" + JPEG)), SCAN, "Photoshop preview"),
    "XMP": (Entry(700, 1, XMP_WITH_THUMBNAIL), b"VGhpcyBpcyBpdA", "XMP thumbnail"),
    "layers": (Entry(37724, 7, b"Adobe Photoshop Document Data Block\x00" + SCAN), SCAN, "Photoshop layers"),
    "C2PA": (Entry(52545, 7, b"jumb" + SCAN), SCAN, "content credentials (C2PA)"),
    "private tag": (Entry(65001, 7, b"preview:" + JPEG), SCAN, "embedded preview"),
    "maker note": (Entry(34665, 4, (Entry(37500, 7, b"Maker\x00" + JPEG),)), SCAN, "embedded preview"),
}


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("order", ["<", ">"])
def test_embedded_pictures_of_the_picture_go_and_are_named(
    bench: Bench, name: str, order: sources.Order
) -> None:
    entry, secret, said = PICTURES[name]
    tags = (
        Entry(270, 2, b"words\x00"),
        Entry(33723, 7, sources.IPTC),
        Entry(65535, 2, b"the last\x00"),
        entry,
    )
    data = sources.tiff(PHOTO, TiffLayout(2, order=order), tags)
    report, result = cleaned(bench, data)
    assert secret in data
    assert secret not in result
    assert report.image.dropped_metadata == (said,)
    assert len(result) == len(data), "nothing was moved"
    for tag in (270, 33723, 65535):
        assert value(result, tag) == value(data, tag)
    assert np.array_equal(vips(result)[~MARK], PHOTO[~MARK])
    if name == "Photoshop thumbnail":
        assert value(result, 34377) == sources.PHOTOSHOP + resource(1005, bytes(16))
    if name == "XMP":
        assert value(result, 700) == sources.XMP


def with_second_page(data: bytes, page: Sequence[Entry], content: bytes, offset_tag: int) -> bytes:
    """Append a directory, and `content`, which its tag points at."""
    old = laid_out(data)
    body = bytearray(data + bytes(len(data) % 2))
    struct.pack_into("<I", body, old.stop - 4, len(body) + len(content) + len(content) % 2)
    at = len(body)
    body += content + bytes(len(content) % 2)
    return bytes(body + sources.directory([*page, Entry(offset_tag, 4, (at,))], len(body), "<"))


SMALL = PHOTO[::4, ::4].copy()
PAGE = (
    Entry(256, 4, (SMALL.shape[1],)),
    Entry(257, 4, (SMALL.shape[0],)),
    Entry(258, 3, (8, 8, 8)),
    Entry(262, 3, (2,)),
    Entry(270, 2, b"a smaller copy\x00"),
    Entry(277, 3, (3,)),
    Entry(279, 4, (SMALL.nbytes,)),
)
COPIES = {
    "reduced": ((Entry(254, 4, (1,)), *PAGE), SMALL.tobytes(), 273),
    "reduced, old tag": ((Entry(255, 3, (2,)), *PAGE), SMALL.tobytes(), 273),
    "EXIF thumbnail": ((Entry(259, 3, (6,)), Entry(514, 4, (len(JPEG),))), JPEG, 513),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("keep", [True, False])
def test_smaller_copies_behind_the_picture_are_dropped(bench: Bench, name: str, *, keep: bool) -> None:
    plain = sources.tiff(PHOTO, TiffLayout(2, compression=LZW), sources.CAMERA)
    data = with_second_page(plain, *COPIES[name])
    report, result = cleaned(bench, data, keep_metadata=keep)
    secret = COPIES[name][1][100:140]
    assert secret in data
    assert secret not in result
    assert b"a smaller copy" not in result
    assert laid_out(result).following == 0
    assert "TIFF thumbnail" in report.image.dropped_metadata
    assert np.array_equal(vips(result)[~MARK], PHOTO[~MARK])
    if keep:
        assert independent.tags_of(result).items() >= {("Image Model", "Canon that never was")}


@pytest.mark.parametrize("options", [{}, {"tile": True, "tile_width": 16, "tile_height": 16}])
@pytest.mark.parametrize("subifd", [True, False])
def test_a_pyramid_comes_back_as_its_largest_picture(
    bench: Bench, options: dict[str, Any], *, subifd: bool
) -> None:
    image = pyvips.Image.new_from_array(np.tile(PHOTO, (3, 3, 1))).copy(interpretation="srgb")
    data = bytes(image.tiffsave_buffer(compression="deflate", pyramid=True, subifd=subifd, **options))
    mark = np.tile(MARK, (3, 3))
    report, result = cleaned(bench, data, mark)
    after = vips(result)
    assert np.array_equal(after[~mark], vips(data)[~mark])
    assert (after[mark] == FILL).all()
    assert report.image.dropped_metadata == ("TIFF thumbnail",)
    assert pyvips.Image.new_from_buffer(result, "").get("n-pages") == 1
    assert 330 not in laid_out(result).fields
    assert len(laid_out(data).pieces) == len(laid_out(result).pieces)


def test_a_second_page_inside_is_not_dropped(bench: Bench) -> None:
    """A directory inside that says nothing of being smaller may be a camera's RAW data."""
    plain = sources.tiff(PHOTO, TiffLayout(2), (Entry(330, 4, PAGE),))
    report = bench.serve(put(bench, plain), mask_of(bench))
    assert isinstance(report, ItemFailed)
    assert report.code == "unsupported"


def test_a_second_page_is_not_dropped(bench: Bench) -> None:
    data = with_second_page(sources.tiff(PHOTO, TiffLayout(2)), PAGE, SMALL.tobytes(), 273)
    report = bench.serve(put(bench, data), mask_of(bench))
    assert isinstance(report, ItemFailed)
    assert report.code == "unsupported"
    assert "pages" in report.reason


@pytest.mark.parametrize("layout", [TiffLayout(2), TiffLayout(2, 16, ">", LZW, predictor=True, tile=16)])
def test_without_metadata_nothing_of_it_is_left(bench: Bench, layout: TiffLayout) -> None:
    tags = (
        *sources.CAMERA,
        Entry(274, 3, (6,)),
        Entry(700, 1, sources.XMP),
        Entry(65000, 2, b"a secret\x00"),
    )
    profile = sources.rgb_profile()
    pixels = rgb(layout.depth)
    data = sources.tiff(pixels, layout, (*tags, Entry(34675, 7, profile)))
    data += b"more of somebody's"
    mark = np.ascontiguousarray(np.rot90(MARK, -1))  # drawn on the picture as it is seen
    report, result = cleaned(bench, data, mark, keep_metadata=False)
    place = struct.pack(f"{layout.order}II", 1234, 100)
    for secret in (place, b"Canon", b"camera that never was", b"xmpmeta", b"a secret", b"somebody's"):
        assert secret in data
        assert secret not in result
    assert {"EXIF", "GPS", "TIFF tag 700", "TIFF tag 65000"} <= set(report.image.dropped_metadata)
    assert value(result, 34675) == profile
    assert numbers(result, layout.order, laid_out(result).fields[274]) == (6,)
    assert np.array_equal(vips(result)[~MARK], pixels[~MARK])


# --- pieces that do not fit --------------------------------------------------------------------------------

FLAT = np.full((H, W, 3), 250, np.uint8)


def test_a_piece_that_grew_goes_to_the_end_and_its_place_is_zeroed(bench: Bench) -> None:
    """Flat colour compresses to next to nothing, and a hole in it does not."""
    data = sources.tiff(FLAT, TiffLayout(2, compression=DEFLATE), sources.CAMERA) + b"?"
    _, result = cleaned(bench, data)
    old, new = laid_out(data), laid_out(result)
    start, stop = new.pieces[1]
    assert start >= len(data)
    assert start % 2 == 0
    assert stop == len(result)
    assert not any(result[slice(*old.pieces[1])])
    assert_only_these_bytes_differ(data, result, [1])
    assert np.array_equal(vips(result)[~MARK], FLAT[~MARK])
    assert (vips(result)[MARK] == FILL).all()


def test_room_that_one_piece_left_is_used_by_another(bench: Bench) -> None:
    """Strips whose filling takes less give what is left to their neighbours."""
    noisy = np.random.default_rng(1).integers(0, 256, FLAT.shape).astype(np.uint8)
    noisy[16:32] = 250
    data = sources.tiff(noisy, TiffLayout(2, compression=DEFLATE), sources.CAMERA)
    mark = rectangle(W, H, (20, 10, 60, 40))
    _, result = cleaned(bench, data, mark)
    assert len(result) == len(data)
    assert np.array_equal(vips(result)[~mark], noisy[~mark])
    assert (vips(result)[mark] == FILL).all()


def test_an_offset_that_is_too_far_for_its_type_gets_a_wider_one(bench: Bench) -> None:
    stream = zlib.compress(FLAT.tobytes())
    data = bytearray(one_strip(FLAT.shape, stream, DEFLATE))
    old = laid_out(bytes(data))
    for tag in (273, 279):
        struct.pack_into("<H", data, old.fields[tag].start - 6, 3)  # LONG becomes SHORT
    data += b"?" * 70_000
    _, result = cleaned(bench, bytes(data))
    new = laid_out(result)
    assert new.fields[273].kind == 4
    assert new.pieces[0][0] >= 70_000
    assert result[old.stop : len(data)] == data[old.stop :]
    assert (vips(result)[MARK] == FILL).all()


def test_a_file_does_not_double_because_its_one_strip_grew(bench: Bench) -> None:
    half = PHOTO.copy()
    half[:, W // 3 :] = 250
    stream = zlib.compress(half.tobytes(), 9)
    data = one_strip(
        half.shape, stream, DEFLATE, Entry(270, 2, b"words\x00"), Entry(305, 2, b"a program\x00")
    )
    _, result = cleaned(bench, data)
    assert laid_out(result).pieces[0][1] - laid_out(result).pieces[0][0] > len(stream)
    assert len(result) < 1.25 * len(data)
    assert (value(result, 270), value(result, 305)) == (b"words\x00", b"a program\x00")
    assert np.array_equal(vips(result)[~MARK], half[~MARK])


@pytest.mark.parametrize("shared", [True, False])
def test_strips_that_share_their_bytes_do_not_share_the_hole(bench: Bench, *, shared: bool) -> None:
    flat = np.full((48, W, 3), 250, np.uint8)
    data = bytearray(sources.tiff(flat, TiffLayout(2, compression=LZW)))
    old = laid_out(bytes(data))
    if shared:
        struct.pack_into("<III", data, old.fields[273].start, *[old.pieces[0][0]] * 3)
    mark = rectangle(W, 48, (30, 17, 52, 29))
    _, result = cleaned(bench, bytes(data), mark)
    after = vips(result)
    assert (after[~mark] == 250).all()
    assert (after[mark] == FILL).all()


# --- JPEG inside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [60, 90])
def test_a_jpeg_inside_keeps_its_quality_and_the_rest_of_the_file(bench: Bench, quality: int) -> None:
    large = Image.fromarray(photo(320, 240))
    target = io.BytesIO()
    large.convert("YCbCr").save(
        target, "TIFF", compression="jpeg", quality=quality, tiffinfo={270: "words", 65000: "unknown"}
    )
    data = target.getvalue()
    mark = rectangle(320, 240, (100, 100, 130, 120))
    report, result = cleaned(bench, data, mark)
    assert report.image.outside == "reencoded"
    assert report.image.dropped_metadata == ()
    for tag in (258, 259, 262, 270, 277, 65000):
        assert value(result, tag) == value(data, tag)
    before, after = vips(data).astype(int), vips(result).astype(int)
    error = np.mean((before - after)[~mark] ** 2)
    assert 10 * np.log10(255**2 / error) > 36
    assert len(result) < 1.25 * len(data)
    assert abs(after[105:115, 105:125].mean(axis=(0, 1)) - FILL).max() < 12
    for start, stop in laid_out(data).pieces:
        assert data[start:stop] not in result


def test_jpeg_tiles_become_strips_and_the_rest_stays(bench: Bench) -> None:
    """Pillow writes no tiles, so the directory has other tags."""
    image = pyvips.Image.new_from_array(np.tile(PHOTO, (3, 3, 1))).copy(interpretation="srgb")
    data = bytes(image.tiffsave_buffer(compression="jpeg", Q=85, tile=True, tile_width=64, tile_height=64))
    mark = np.tile(MARK, (3, 3))
    report, result = cleaned(bench, data, mark)
    before, after = vips(data).astype(int), vips(result).astype(int)
    assert abs(before - after)[~mark].mean() < 2.5
    assert report.image.outside == "reencoded"
    assert {273, 278, 279} <= laid_out(result).fields.keys()
    assert not {322, 323, 324, 325} & laid_out(result).fields.keys()
    assert "tiles" in report.image.dropped_metadata
    assert {282, 283} <= laid_out(result).fields.keys()


def test_of_larger_jpeg_pieces_nothing_is_left(bench: Bench) -> None:
    target = io.BytesIO()
    Image.fromarray(photo(320, 240)).convert("YCbCr").save(target, "TIFF", compression="jpeg", quality=95)
    data = target.getvalue()
    _, result = cleaned(bench, data, rectangle(320, 240, (100, 100, 130, 120)), quality=20)
    for start, stop in laid_out(data).pieces:
        for place in range(start, stop - 24, 997):
            assert data[place : place + 24] not in result


# --- hostile headers ---------------------------------------------------------------------------------------


TILES = TiffLayout(2, compression=PACKBITS, tile=16)


def patched(tag: int, *values: int, layout: TiffLayout | None = None, at: int = 0) -> bytes:
    """A good file in which some numbers of a tag are others."""
    data = bytearray(sources.tiff(PHOTO, layout or TiffLayout(2, compression=LZW)))
    field = laid_out(bytes(data)).fields[tag]
    unit = "HI"[field.kind == 4]
    struct.pack_into(f"<{len(values)}{unit}", data, field.start + at * struct.calcsize(unit), *values)
    return bytes(data)


def counted(tag: int, count: int, source: bytes = b"") -> bytes:
    """A good file (or another) in which a tag has another number of values."""
    data = bytearray(source or sources.tiff(PHOTO, TiffLayout(2, compression=LZW)))
    old = laid_out(bytes(data))
    struct.pack_into("<I", data, old.start + 2 + 12 * list(old.fields).index(tag) + 4, count)
    return bytes(data)


def repeated(tag: int) -> bytes:
    """The directory has a tag twice."""
    data = sources.tiff(PHOTO, TiffLayout(2), (Entry(tag + 1, 4, (8,)),))
    return data.replace(struct.pack("<HHI", tag + 1, 4, 1), struct.pack("<HHI", tag, 4, 1))


def zeros(megabytes: int) -> bytes:
    """A few bytes that inflate to so much."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    four = packer.compress(bytes(1 << 22)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + four * (megabytes // 4)


def tile_bomb() -> bytes:
    """A picture of 60 x 60 pixels in the corner of a tile of 20,000 x 20,000."""
    tile = (Entry(322, 4, (20_000,)), Entry(323, 4, (20_000,)))
    data = bytearray(one_strip((60, 60), zeros(404), DEFLATE, *tile))
    for tag, tile_tag in ((273, 324), (279, 325)):
        place = data.index(struct.pack("<HHI", tag, 4, 1))
        struct.pack_into("<H", data, place, tile_tag)
    return bytes(data)


def many_strips() -> bytes:
    """Five million strips that all are the whole file."""
    count = 5_000_000
    lists = struct.pack("<I", 8) * count
    entries = (
        Entry(256, 4, (60,)),
        Entry(257, 4, (count,)),
        Entry(259, 3, (5,)),
        Entry(262, 3, (1,)),
        Entry(273, 4, (8,)),
        Entry(278, 4, (1,)),
        Entry(279, 4, (8,)),
    )
    data = bytearray(b"II*\x00" + struct.pack("<I", 8) + sources.directory(entries, 8, "<"))
    old = laid_out(bytes(data))
    for tag in (273, 279):
        record = old.fields[tag].start - 8
        struct.pack_into("<II", data, record + 4, count, len(data))
    return bytes(data) + lists


def overlapping_lists() -> bytes:
    """Offsets and sizes are the same numbers in the file."""
    data = bytearray(sources.tiff(PHOTO, TiffLayout(2, compression=LZW)))
    fields = laid_out(bytes(data)).fields
    old = laid_out(bytes(data))
    place = old.start + 2 + 12 * list(fields).index(279) + 8
    struct.pack_into("<I", data, place, fields[273].start)
    return bytes(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a strip over the header": lambda: patched(273, 0),
    "a strip over the directory": lambda: patched(273, 8),
    "a strip over another": lambda: patched(273, laid_out(patched(278, 16)).pieces[0][0] + 1, at=1),
    "an uncompressed strip over another": lambda: patched(
        273, laid_out(sources.tiff(PHOTO, TiffLayout(2))).pieces[0][0] + 1, layout=TiffLayout(2), at=1
    ),
    "a tile over another": lambda: patched(
        324, laid_out(sources.tiff(PHOTO, TILES)).pieces[0][0] + 1, layout=TILES, at=1
    ),
    "a size larger than the file": lambda: patched(279, 1 << 31),
    "no bytes": lambda: patched(279, 0, 0, 0, 0),
    "no rows in a strip": lambda: patched(278, 0),
    "fewer strips than rows need": lambda: patched(278, 1),
    "rows without end": lambda: patched(278, 0xFFFFFFFF),
    "tiles of no size": lambda: patched(322, 0, layout=TiffLayout(2, tile=16)),
    "tiles of 65,520": lambda: patched(322, 65520, layout=TiffLayout(2, tile=16)),
    "no width": lambda: patched(256, 0),
    "no width, and fewer sizes than offsets": lambda: counted(279, 2, patched(256, 0)),
    "a width without end": lambda: patched(256, 0xFFFFFFFF),
    "a picture without end": lambda: patched(257, 0xFFFFFFFF, layout=TiffLayout(2)),
    "65,535 samples": lambda: patched(277, 65535),
    "no samples": lambda: patched(277, 0),
    "200 bits": lambda: patched(258, 200, 200, 200),
    "a palette of no colours": lambda: patched(262, 3),
    "a list without end": lambda: counted(273, 0x3FFFFFFF),
    "bits without end": lambda: counted(258, 0x7FFFFFFF),
    "a broken stream": lambda: patched(273, 8 + 16, 8 + 17, 8 + 18, 8 + 19),
    "a tag twice": lambda: repeated(273),
    "lists that are one": overlapping_lists,
    "five million strips": many_strips,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_soon_and_in_words(bench: Bench, name: str) -> None:
    data = HOSTILE[name]()
    before = psutil.Process().memory_info().rss
    began = time.monotonic()
    report = bench.serve(put(bench, data), mask_of(bench), grow_px=0)
    assert time.monotonic() - began < 5
    assert psutil.Process().memory_info().rss - before < 300e6 + 10 * len(data)
    assert sane(bench, report, data), report


def sane(bench: Bench, report: FromWorker, data: bytes) -> bool:
    """Refused as the file's fault, or waited for; or done, and as good as before outside the hole."""
    if isinstance(report, ItemFailed):
        return report.code in ("undecodable", "unsupported", "too_large", "mask_mismatch")
    if isinstance(report, ItemDone):
        result = (bench.folder / "staging" / "a.tif.staged").read_bytes()
        return np.array_equal(vips(result)[~MARK], vips(data)[~MARK])
    return "beyond the end" in getattr(report, "reason", "")


def test_a_tile_much_larger_than_the_picture_is_not_unpacked(bench: Bench) -> None:
    report = bench.serve(put(bench, tile_bomb()), mask_of(bench, rectangle(60, 60, (20, 20, 30, 30))))
    assert isinstance(report, ItemFailed)
    assert report.code == "undecodable"
    assert "tiles" in report.reason


def test_values_that_lie_over_one_another_are_refused(bench: Bench) -> None:
    """Taking the thumbnail out of one would change the other."""
    tags = (Entry(270, 2, bytes(len(XMP_WITH_THUMBNAIL))), Entry(700, 1, XMP_WITH_THUMBNAIL))
    data = bytearray(sources.tiff(PHOTO, TiffLayout(2), tags))
    old = laid_out(bytes(data))
    record = old.start + 2 + 12 * list(old.fields).index(270)
    struct.pack_into("<I", data, record + 8, old.fields[700].start)
    report = bench.serve(put(bench, bytes(data)), mask_of(bench))
    assert isinstance(report, ItemFailed)
    assert report.code == "undecodable"


def test_a_bomb_is_not_unpacked_further_than_its_rows_go(bench: Bench) -> None:
    data = one_strip((60, 60), zeros(200), DEFLATE)
    before = psutil.Process().memory_info().rss
    _, result = cleaned(bench, data, rectangle(60, 60, (20, 20, 30, 30)))
    assert psutil.Process().memory_info().rss - before < 100e6
    assert vips(result)[25, 25, 0] == round(0.299 * FILL[0] + 0.587 * FILL[1] + 0.114 * FILL[2])


# --- sizes -------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[TiffLayout, int, tuple[int, int], tuple[int, int, int, int]]:
    """A layout, samples a pixel, width and height, and the hole's box."""
    width, height = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    compression = draw(st.sampled_from([NONE, LZW, DEFLATE, PACKBITS, GROUP4]))
    samples = 1 if compression == GROUP4 else draw(st.integers(1, 4))
    layout = TiffLayout(
        2 if samples >= 3 else draw(st.sampled_from([0, 1])),
        1 if compression == GROUP4 else draw(st.sampled_from([8, 16])),
        draw(st.sampled_from(["<", ">"])),
        compression,
        compression in (LZW, DEFLATE) and draw(st.booleans()),
        samples > 1 and draw(st.booleans()),
        0 if compression == GROUP4 else draw(st.sampled_from([0, 16, 32])),
        (2,) if samples in (2, 4) else (),
    )
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    right, bottom = draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))
    return layout, samples, (width, height), (left, top, right, bottom)


def some_pixels(layout: TiffLayout, samples: int, size: tuple[int, int]) -> Array:
    pixels = np.dstack([photo(*size), photo(*size, seed=2)[..., 0]])[..., :samples]
    if layout.depth == 1:
        return (pixels > 90).astype(np.uint8)
    return pixels if layout.depth == 8 else pixels.astype(np.uint16) * 256 + pixels[::-1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_any_size_any_place(
    tmp_path: Path, case: tuple[TiffLayout, int, tuple[int, int], tuple[int, int, int, int]]
) -> None:
    layout, samples, size, box = case
    bench = Bench(tmp_path)
    mark = rectangle(*size, box)
    data = sources.tiff(some_pixels(layout, samples, size), layout, sources.CAMERA)
    report = bench.serve(put(bench, data), mask_of(bench, mark), grow_px=0)
    if mark.mean() > 0.95:
        assert isinstance(report, ItemFailed)
        assert report.code == "mask_covers_all"
        return
    assert isinstance(report, ItemDone), report
    result = (bench.folder / "staging" / "a.tif.staged").read_bytes()
    before, after = vips(data), vips(result)
    assert np.array_equal(after[~mark], before[~mark])
    assert_only_these_bytes_differ(data, result, touched(layout, mark, samples))
    if samples in (2, 4):
        assert np.array_equal(after[..., -1], before[..., -1]), "alpha is not filled"
    if layout.depth == 8 and samples >= 3:
        assert (after[mark][:, :3] == FILL).all()
