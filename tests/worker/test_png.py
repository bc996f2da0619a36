"""PNG through the item server: depth, colour type, interlacing, palette and chunks come back as they were."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.worker import sources
from tests.worker.bench import FILL, Bench, FlatEngine, photo, rectangle, save_mask
from tests.worker.independent import look, png_chunks
from watcher.wire import ItemDone, ItemFailed
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.wire import FailureCode
    from watcher.worker.engines.protocol import Crop

W, H = 61, 47
MARK = rectangle(W, H, (20, 15, 34, 30))
HOLE = grown(MARK, 2)
COLOUR = photo(W, H)
ALPHA = np.tile(np.linspace(0, 255, W).astype(np.uint8), (H, 1))
ALPHA[:9] = 0
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
KINDS = [
    *[(0, depth) for depth in (1, 2, 4, 8, 16)],
    *[(3, depth) for depth in (1, 2, 4, 8)],
    *[(colour_type, depth) for colour_type in (2, 4, 6) for depth in (8, 16)],
]
FILL_GREY = 97


def samples(colour_type: int, depth: int) -> NDArray[Any]:
    """A photo in a PNG's own samples; the low bits of 16 are not those of the high ones."""
    planes = np.dstack([COLOUR, ALPHA])
    wide = planes.astype(np.uint16) << 8 | np.arange(W, dtype=np.uint16)[:, np.newaxis] * 7 % 256
    wide[ALPHA == 0, 3] = 0
    chosen = {0: [0], 2: [0, 1, 2], 3: [0], 4: [0, 3], 6: [0, 1, 2, 3]}[colour_type]
    picked = wide[..., chosen] >> (16 - depth)
    return (picked if depth == 16 else picked.astype(np.uint8)).reshape(
        (H, W, -1) if len(chosen) > 1 else (H, W)
    )


def ramp(depth: int, entries: int | None = None) -> NDArray[np.uint8]:
    """A palette without the engine's colour."""
    numbers = np.arange(entries or 1 << depth)
    return np.stack([numbers * 255 // numbers.max(), 255 - numbers, numbers * 37 % 256], axis=1).astype(
        np.uint8
    )


def show_all(indices: NDArray[Any], entries: int) -> None:
    """Let the first pixels show every entry of a palette, so that none is free."""
    indices.flat[:entries] = np.arange(entries)


def key_bytes(key: NDArray[Any]) -> bytes:
    """The data of a tRNS chunk for one grey level or colour."""
    levels = np.atleast_1d(key).tolist()
    return struct.pack(f">{len(levels)}H", *levels)


def written(bench: Bench, data: bytes) -> Path:
    path = bench.folder / "a.png"
    path.write_bytes(data)
    return path


def mask_file(bench: Bench) -> Path:
    return save_mask(bench.folder / "mask.png", MARK)


def served(bench: Bench, data: bytes, **changes: Any) -> tuple[ItemDone, bytes]:
    changes = {"grow_px": 2, **changes}
    report, staged = bench.done(written(bench, data), mask_file(bench), **changes)
    return report, staged.read_bytes()


def refused(bench: Bench, data: bytes, code: FailureCode) -> ItemFailed:
    report = bench.serve(written(bench, data), mask_file(bench))
    assert isinstance(report, ItemFailed), report
    assert report.code == code, report
    assert report.remedy
    return report


def header(data: bytes) -> bytes:
    return next(body for kind, body in png_chunks(data) if kind == b"IHDR")


def rgb_png(chunks: Sequence[tuple[bytes, bytes]] = (), late: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    return sources.png(COLOUR, 2, 8, chunks=chunks, late=late)


def with_chunk_before(
    data: bytes, before: bytes, kind: bytes, body: bytes, checksum: int | None = None
) -> bytes:
    """Put a chunk into a PNG, with a wrong checksum if one is given."""
    at = data.index(before) - 4
    value = zlib.crc32(kind + body) if checksum is None else checksum
    return data[:at] + struct.pack(">I", len(body)) + kind + body + struct.pack(">I", value) + data[at:]


# --- depth, colour type, interlacing -----------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True], ids=["plain", "interlaced"])
@pytest.mark.parametrize(("colour_type", "depth"), KINDS)
def test_every_kind_comes_back_as_it_was_outside_the_hole(
    bench: Bench, colour_type: int, depth: int, *, interlaced: bool
) -> None:
    palette = ramp(depth) if colour_type == 3 else None
    before = sources.png(
        samples(colour_type, depth), colour_type, depth, interlace=interlaced, palette=palette
    )
    report, after = served(bench, before)
    assert report.image.outside == "identical"
    assert report.image.dropped_metadata == ()
    assert header(after) == header(before)
    old, new = look(before), look(after)
    changed = (old.stored != new.stored).any(axis=2)
    assert not changed[~HOLE].any()
    colours = 3 if colour_type in (2, 3, 6) else 1
    (fill,) = np.unique(new.stored[MARK][:, :colours], axis=0).astype(int)
    rim = HOLE & ~MARK
    there, now = (picture.stored[rim][:, :colours].astype(int) for picture in (old, new))
    assert ((np.minimum(there, fill) <= now) & (now <= np.maximum(there, fill))).all(), (
        "from the one to the other"
    )
    if colour_type in (4, 6):
        assert np.array_equal(old.stored[..., -1], new.stored[..., -1]), "alpha is not filled"


@pytest.mark.parametrize(("colour_type", "depth"), KINDS)
def test_the_hole_has_the_engines_colour_as_well_as_the_kind_can_say_it(
    bench: Bench, colour_type: int, depth: int
) -> None:
    pixels = samples(colour_type, depth)
    pixels[-1, 0], pixels[-1, 1] = 0, (1 << depth) - 1  # so that 16 bits are stretched from end to end
    if colour_type in (4, 6):
        pixels[-1, :2, -1] = (1 << depth) - 1
    palette = ramp(depth) if colour_type == 3 else None
    if palette is not None:
        show_all(pixels, len(palette))
    _, after = served(bench, sources.png(pixels, colour_type, depth, palette=palette))
    new = look(after).stored
    found = (new[MARK][0, : 3 if colour_type in (2, 3, 6) else 1] // (257 if depth == 16 else 1)).astype(int)
    wanted = np.array(FILL if colour_type in (2, 3, 6) else (FILL_GREY,))
    if palette is not None:
        wanted = min(palette.astype(int).tolist(), key=lambda entry: sum((np.array(entry) - FILL) ** 2))
    step = 255 / ((1 << min(depth, 8)) - 1) if colour_type == 0 else 1
    assert abs(found - wanted).max() <= step / 2 + 1


@pytest.mark.parametrize(("colour_type", "depth"), [(2, 8), (6, 8), (4, 8), (0, 8), (2, 16), (0, 16), (3, 8)])
def test_a_drawing_that_somebody_packed_well_does_not_grow(
    bench: Bench, colour_type: int, depth: int
) -> None:
    """Like a page: the same signs come again and again, which filters hide from the packer."""
    random = np.random.default_rng(7)
    signs = random.integers(0, 2, (20, 12, 10, CHANNELS[colour_type])) * (200 << (depth - 8))
    lines = signs[random.integers(0, 20, (15, 18))].transpose(0, 2, 1, 3, 4).reshape(180, 180, -1)
    pixels = lines.astype(np.uint16 if depth == 16 else np.uint8)
    pixels = pixels[..., 0] if CHANNELS[colour_type] == 1 else pixels
    palette = ramp(8) if colour_type == 3 else None
    before = sources.png(pixels, colour_type, depth, palette=palette)
    mask = save_mask(bench.folder / "mask.png", rectangle(180, 180, (20, 20, 24, 24)))
    _, staged = bench.done(written(bench, before), mask, grow_px=0)
    assert staged.stat().st_size <= 1.1 * len(before)
    different = (look(before).stored != look(staged.read_bytes()).stored).any(axis=2)
    different[20:24, 20:24] = False
    assert not different.any()


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (3, 5), (8, 8), (1, 40), (40, 1), (5, 3)])
@pytest.mark.parametrize(("colour_type", "depth"), [(0, 1), (3, 4), (2, 8), (0, 16), (6, 16)])
def test_interlaced_pictures_of_any_size(
    bench: Bench, size: tuple[int, int], colour_type: int, depth: int
) -> None:
    width, height = size
    pixels = samples(colour_type, depth)[:height, :width]
    palette = ramp(depth) if colour_type == 3 else None
    before = sources.png(pixels, colour_type, depth, interlace=True, palette=palette)
    mask = save_mask(bench.folder / "mask.png", rectangle(width, height, (0, 0, 1, 1)))
    _, staged = bench.done(written(bench, before), mask, grow_px=0)
    old, new = look(before).stored, look(staged.read_bytes()).stored
    different = (old != new).any(axis=2)
    different[0, 0] = False
    assert not different.any()


# --- one colour that means transparent ---------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True], ids=["plain", "interlaced"])
@pytest.mark.parametrize(("colour_type", "depth"), [kind for kind in KINDS if kind[0] in (0, 2)])
def test_alpha_of_a_transparent_colour_stays_everywhere(
    bench: Bench, colour_type: int, depth: int, *, interlaced: bool
) -> None:
    pixels = samples(colour_type, depth)
    key = pixels[25, 25].copy()
    pixels[10:40:3, 10:50:4] = key
    if depth == 16:  # as the key in its high bits alone: a decoder of 8 bits would take it for transparent
        pixels[5:45:7, 12:50:3] = key ^ 1
    before = sources.png(pixels, colour_type, depth, interlace=interlaced, key=key_bytes(key))
    _, after = served(bench, before)
    old, new = look(before).stored, look(after).stored
    assert old.shape[2] == new.shape[2] == (2 if colour_type == 0 else 4)
    assert np.array_equal(old[..., -1], new[..., -1])
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert (0 < (new[HOLE][:, -1] == 0).mean() < 1) or depth < 4
    assert dict(png_chunks(after))[b"tRNS"] == dict(png_chunks(before))[b"tRNS"]


@pytest.mark.parametrize(("depth", "level"), [(1, 0), (1, 1), (2, 1), (4, 6), (8, FILL_GREY), (16, 0x6161)])
def test_the_fill_is_never_the_level_that_means_transparent(bench: Bench, depth: int, level: int) -> None:
    bench.engine.colour = (FILL_GREY, FILL_GREY, FILL_GREY)
    pixels = samples(0, depth)
    pixels[pixels == level] ^= 1
    pixels[0, 0], pixels[0, 1] = 0, (1 << depth) - 1
    pixels[2, 2] = level
    before = sources.png(pixels, 0, depth, key=struct.pack(">H", level))
    _, after = served(bench, before)
    new = look(after).stored
    assert (new[HOLE][:, -1] > 0).all()
    assert new[2, 2, -1] == 0


def test_what_lies_under_the_transparent_colour_is_not_shown_to_the_model(bench: Bench) -> None:
    pixels = samples(2, 8)
    pixels[:12] = (255, 0, 255)
    served(bench, sources.png(pixels, 2, 8, key=struct.pack(">HHH", 255, 0, 255)))
    (crop,) = bench.engine.seen
    assert not (crop.pixels == (255, 0, 255)).all(axis=-1).any()


@pytest.mark.parametrize(("colour_type", "depth"), [(0, 1), (0, 2), (0, 8), (0, 16), (2, 8), (2, 16), (3, 4)])
def test_erased_pixels_of_a_picture_without_alpha_channel_come_back_opaque(
    bench: Bench, colour_type: int, depth: int
) -> None:
    pixels = samples(colour_type, depth)
    key = np.zeros_like(pixels[0, 0])
    pixels[pixels == 0] = 1
    pixels[MARK] = key
    raw = b"\x00" if colour_type == 3 else key_bytes(key)
    palette = ramp(depth) if colour_type == 3 else None
    before = sources.png(pixels, colour_type, depth, palette=palette, key=raw)
    report, staged = bench.done(written(bench, before), sources=("mask", "alpha"), grow_px=2)
    assert report.marks == "alpha"
    old, new = look(before).stored, look(staged.read_bytes()).stored
    assert (old[MARK][:, -1] == 0).all()
    assert (new[..., -1] > 0).all()
    assert np.array_equal(old[~HOLE], new[~HOLE])


def test_colours_under_an_alpha_of_0_stay_where_nothing_was_marked(bench: Bench) -> None:
    pixels = np.dstack([COLOUR, ALPHA])
    pixels[ALPHA == 0, :3] = (1, 250, 3)
    before = sources.png(pixels, 6, 8)
    _, after = served(bench, before)
    assert np.array_equal(look(after).stored[~HOLE], pixels[~HOLE])


# --- palettes ----------------------------------------------------------------------------------------------


def palette_of(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(dict(png_chunks(data))[b"PLTE"], np.uint8).reshape(-1, 3)


@pytest.mark.parametrize(("depth", "entries"), [(1, 2), (2, 3), (2, 4), (4, 9), (4, 16), (8, 200), (8, 256)])
def test_a_palette_keeps_its_entries_and_never_outgrows_its_depth(
    bench: Bench, depth: int, entries: int
) -> None:
    palette = ramp(depth, entries)
    pixels = np.minimum(samples(3, depth), entries - 1)
    show_all(pixels, entries)
    before = sources.png(pixels, 3, depth, palette=palette)
    _, after = served(bench, before)
    new = palette_of(after)
    assert len(new) <= 1 << depth
    assert np.array_equal(new[:entries], palette)
    room = entries < 1 << depth
    assert (FILL in [tuple(entry) for entry in new.tolist()]) == room


def test_entries_that_no_pixel_shows_stay_while_there_is_room_behind_them(bench: Bench) -> None:
    palette = ramp(4, 12)
    palette[5] = palette[3]  # twice the same
    pixels = np.minimum(samples(3, 4), 7)
    _, after = served(bench, sources.png(pixels, 3, 4, palette=palette))
    assert np.array_equal(palette_of(after)[:12], palette)
    assert palette_of(after)[12].tolist() == list(FILL)


def test_an_entry_that_no_pixel_shows_is_used_where_there_is_no_room(bench: Bench) -> None:
    palette = ramp(4)
    pixels = np.minimum(samples(3, 4), 10)
    _, after = served(bench, sources.png(pixels, 3, 4, palette=palette))
    new = palette_of(after)
    assert np.array_equal(new[:11], palette[:11])
    assert list(FILL) in new[11:].tolist()


class TwoColours(FlatEngine):
    """Fills the left half of each crop with one colour, and the right half with another."""

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        results = super().fill(crops, progress=progress)
        for result in results:
            result[:, (MARK.nonzero()[1].mean() + 1).astype(int) :] = OTHER_FILL
        return results


OTHER_FILL = (10, 200, 250)


def test_an_entry_that_already_has_a_colour_of_the_fill_is_used_and_not_given_away(bench: Bench) -> None:
    bench.engine = TwoColours()
    palette = ramp(4)
    palette[11] = FILL
    pixels = np.minimum(samples(3, 4), 10)
    _, after = served(bench, sources.png(pixels, 3, 4, palette=palette))
    assert np.array_equal(palette_of(after)[:12], palette[:12])
    assert {tuple(colour) for colour in look(after).stored[HOLE].tolist()} == {FILL, OTHER_FILL}


def test_the_entry_of_the_background_is_not_given_away(bench: Bench) -> None:
    palette = ramp(2)
    pixels = np.minimum(samples(3, 2), 2)
    before = sources.png(pixels, 3, 2, palette=palette)
    before = with_chunk_before(before, b"IDAT", b"bKGD", b"\x03")
    _, after = served(bench, before)
    assert np.array_equal(palette_of(after), palette)
    assert dict(png_chunks(after))[b"bKGD"] == b"\x03"


def test_a_palette_of_greys_gets_a_grey_fill(bench: Bench) -> None:
    palette = np.repeat(np.linspace(0, 250, 14).astype(np.uint8)[:, np.newaxis], 3, axis=1)
    pixels = np.minimum(samples(3, 4), 13)
    _, after = served(bench, sources.png(pixels, 3, 4, palette=palette))
    assert (palette_of(after) == palette_of(after)[:, :1]).all()
    assert look(after).stored[MARK][0].tolist() == [FILL_GREY] * 3


@pytest.mark.parametrize("key", [b"\x00", b"\xff\xff\x00", bytes([255, 80, 0, 255, 255, 255])])
def test_the_alphas_of_entries_stay(bench: Bench, key: bytes) -> None:
    before = sources.png(samples(3, 4), 3, 4, palette=ramp(4), key=key)
    _, after = served(bench, before)
    old, new = look(before).stored, look(after).stored
    assert dict(png_chunks(after))[b"tRNS"] == key
    assert np.array_equal(old[..., 3], new[..., 3])
    assert np.array_equal(old[~HOLE], new[~HOLE])


# --- chunks ------------------------------------------------------------------------------------------------

SUGGESTED = b"a palette\x00\x08" + bytes([10, 20, 30, 255, 0, 9])


def test_all_chunks_stay_in_their_order(bench: Bench) -> None:
    chunks = [
        (b"gAMA", struct.pack(">I", 45455)),
        (b"sBIT", bytes([5, 6, 5])),
        (b"prVt", b"private, safe to copy"),
        (b"sPLT", SUGGESTED),
        (b"tEXt", b"Title\x00one"),
        (b"PLTE", bytes(range(12))),
        (b"bKGD", struct.pack(">HHH", 1, 2, 3)),
        (b"pHYs", struct.pack(">IIB", 2000, 3000, 0)),
        (b"tEXt", b"Title\x00two"),
        (b"eXIf", sources.exif(1)),
    ]
    late = [(b"iTXt", b"Late\x00\x00\x00\x00\x00words"), (b"tIME", bytes(7)), (b"prVu", b"late")]
    before = rgb_png(chunks, late)
    report, after = served(bench, before)
    assert report.image.dropped_metadata == ()
    assert [chunk for chunk in png_chunks(before) if chunk[0] != b"IDAT"] == [
        chunk for chunk in png_chunks(after) if chunk[0] != b"IDAT"
    ]


def test_what_describes_the_old_pixels_is_named(bench: Bench) -> None:
    chunks = [(b"dSIG", b"signed"), (b"caBX", b"jumb"), (b"iDOT", bytes(28)), (b"prVT", b"not safe to copy")]
    before = sources.png(samples(3, 4), 3, 4, palette=ramp(4), chunks=chunks)
    before = with_chunk_before(before, b"IDAT", b"hIST", bytes(range(32)))
    report, after = served(bench, before)
    assert set(report.image.dropped_metadata) == {
        "digital signature",
        "content credentials (C2PA)",
        "palette histogram",
        "prVT",
    }
    assert {kind for kind, _ in png_chunks(after)} == {b"IHDR", b"PLTE", b"IDAT", b"IEND"}


def test_without_metadata_what_decides_the_looks_stays(bench: Bench) -> None:
    looks = [
        (b"gAMA", struct.pack(">I", 45455)),
        (b"cICP", bytes([9, 16, 0, 1])),
        (b"sBIT", bytes([8, 8, 8])),
    ]
    before = rgb_png([*looks, (b"tEXt", b"Title\x00secret"), (b"pHYs", bytes(9)), (b"eXIf", sources.exif(3))])
    report, after = served(bench, before, keep_metadata=False)
    kinds = [kind for kind, _ in png_chunks(after)]
    assert kinds == [b"IHDR", b"gAMA", b"cICP", b"sBIT", b"eXIf", b"IDAT", b"IEND"]
    assert look(after).orientation == 3
    assert b"Canon" not in after
    assert set(report.image.dropped_metadata) == {"tEXt Title", "pHYs", "EXIF"}


THUMBNAILS = b"<xmp:Thumbnails><rdf:Alt>AAAA</rdf:Alt></xmp:Thumbnails>"


def xmp(body: bytes) -> bytes:
    return sources.XMP.replace(b"</rdf:RDF>", body + b"</rdf:RDF>")


def itxt(text: bytes, *, compressed: bool) -> bytes:
    head = b"XML:com.adobe.xmp\x00" + bytes([compressed, 0]) + b"\x00\x00"
    return head + (zlib.compress(text) if compressed else text)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_xmp_is_kept_byte_for_byte(bench: Bench, *, compressed: bool) -> None:
    text = itxt(sources.XMP, compressed=compressed)
    report, after = served(bench, rgb_png([(b"iTXt", text)]))
    assert report.image.dropped_metadata == ()
    assert (b"iTXt", text) in list(png_chunks(after))


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_thumbnail_inside_xmp_is_taken_out(bench: Bench, *, compressed: bool) -> None:
    report, after = served(bench, rgb_png([(b"iTXt", itxt(xmp(THUMBNAILS), compressed=compressed))]))
    assert report.image.dropped_metadata == ("XMP thumbnail",)
    (body,) = [body for kind, body in png_chunks(after) if kind == b"iTXt"]
    text = zlib.decompress(body[22:]) if compressed else body[22:]
    assert text == xmp(b"")


def hexadecimal(name: bytes, block: bytes) -> bytes:
    digits = block.hex().encode()
    lines = b"\n".join(digits[at : at + 72] for at in range(0, len(digits), 72))
    return b"\n" + name + b"\n%8d\n" % len(block) + lines + b"\n"


@pytest.mark.parametrize("packed", [False, True], ids=["tEXt", "zTXt"])
@pytest.mark.parametrize(
    ("name", "block", "kept"),
    [
        (b"exif", b"Exif\x00\x00" + sources.exif(1), True),
        (b"exif", b"Exif\x00\x00" + sources.exif(1) + b"\xff\xd8\xff\xe0 what is no picture", False),
        (b"8bim", sources.PHOTOSHOP, True),
        (b"xmp", sources.XMP, True),
        (b"xmp", b"unreadable", True),
    ],
)
def test_a_block_in_hexadecimal_digits_is_kept_unless_it_cannot_be_trusted(
    bench: Bench, name: bytes, block: bytes, *, packed: bool, kept: bool
) -> None:
    keyword, text = b"Raw profile type " + name, hexadecimal(name, block)
    body = keyword + (b"\x00\x00" + zlib.compress(text) if packed else b"\x00" + text)
    kind = b"zTXt" if packed else b"tEXt"
    report, after = served(bench, rgb_png([(kind, body)]))
    assert ((kind, body) in list(png_chunks(after))) == kept
    assert bool(report.image.dropped_metadata) != kept


@pytest.mark.parametrize("packed", [False, True], ids=["tEXt", "zTXt"])
@pytest.mark.parametrize("name", [b"exif", b"APP1", b"xmp", b"app1 of XMP", b"8bim"])
def test_pictures_of_the_picture_in_hexadecimal_digits_are_taken_out(
    bench: Bench, name: bytes, *, packed: bool
) -> None:
    exif, pixels = camera_exif_with_thumbnail()
    prefix = b"http://ns.adobe.com/xap/1.0/\x00"
    thumbnail = b"8BIM" + struct.pack(">HHI", 1036, 0, 8) + b"old look"
    before, after = {
        b"exif": (b"Exif\x00\x00" + exif, None),
        b"APP1": (b"Exif\x00\x00" + exif, None),
        b"xmp": (xmp(THUMBNAILS), xmp(b"")),
        b"app1 of XMP": (prefix + xmp(THUMBNAILS), prefix + xmp(b"")),
        b"8bim": (sources.PHOTOSHOP + thumbnail, sources.PHOTOSHOP),
    }[name]
    keyword, text = b"Raw profile type " + name.split()[0], hexadecimal(name.split()[0].lower(), before)
    kind = b"zTXt" if packed else b"tEXt"
    body = keyword + (b"\x00\x00" + zlib.compress(text) if packed else b"\x00" + text)
    report, data = served(bench, rgb_png([(kind, body)]))
    (kept,) = [body for found, body in png_chunks(data) if found == kind]
    kept = zlib.decompress(kept[len(keyword) + 2 :]) if packed else kept[len(keyword) + 1 :]
    _, title, size, digits = kept.split(b"\n", 3)
    block = bytes.fromhex(digits.decode())
    assert (title, int(size)) == (name.split()[0].lower(), len(block))
    assert len(report.image.dropped_metadata) == 1
    assert "thumbnail" in report.image.dropped_metadata[0]
    assert block == after or (after is None and b"Canon" in block and pixels not in block)


@pytest.mark.parametrize(
    "body",
    [
        b"XML:com.adobe.xmp\x00\x01\x00\x00\x00not deflated",
        b"XML:com.adobe.xmp\x00\x01\x00\x00\x00" + zlib.compress(bytes(1000))[:-9],
        b"XML:com.adobe.xmp\x00\x07\x00\x00\x00of no known kind",
        b"XML:com.adobe.xmp\x00\x00\x00without its fields",
        b"XML:com.adobe.xmp\x00\x01\x00\x00\x00" + zlib.compress(bytes(17 << 20)),
    ],
    ids=["not deflated", "cut", "unknown method", "no fields", "17 MB"],
)
def test_xmp_that_cannot_be_looked_into_is_dropped_and_named(bench: Bench, body: bytes) -> None:
    report, after = served(bench, rgb_png([(b"iTXt", body)]))
    assert report.image.dropped_metadata == ("iTXt XML:com.adobe.xmp",)
    assert b"iTXt" not in after


def camera_exif_with_thumbnail() -> tuple[bytes, bytes]:
    """EXIF whose second directory is a thumbnail of two strips without compression."""
    block = bytearray(sources.exif(6))
    (count,) = struct.unpack_from("<H", block, 8)
    struct.pack_into("<I", block, 10 + 12 * count, len(block))
    at, pixels = len(block) + 2 + 24 + 4, bytes(range(1, 49))
    block += struct.pack("<HHHIIHHIII", 2, 273, 4, 1, at, 279, 4, 1, len(pixels), 0) + pixels
    return bytes(block), pixels


@pytest.mark.parametrize("prefix", [b"", b"Exif\x00\x00"], ids=["as it should be", "with JPEG's prefix"])
def test_the_thumbnail_in_exif_is_blanked(bench: Bench, prefix: bytes) -> None:
    block, pixels = camera_exif_with_thumbnail()
    bench_mask = rectangle(H, W, (15, 20, 30, 34))  # drawn on what the person saw
    mask = save_mask(bench.folder / "mask.png", bench_mask)
    report, staged = bench.done(written(bench, rgb_png([(b"eXIf", prefix + block)])), mask)
    after = staged.read_bytes()
    (kept,) = [body for kind, body in png_chunks(after) if kind == b"eXIf"]
    assert report.image.dropped_metadata == ("EXIF thumbnail",)
    assert pixels not in after
    assert len(kept) == len(prefix + block)
    assert look(after).tags.get("Image Make") == "Canon" or prefix


@pytest.mark.parametrize("block", [b"", b"garbage", bytes(range(256)) * 300, b"MM\x00*\xff\xff\xff\xff"])
def test_exif_that_is_none_is_passed_on(bench: Bench, block: bytes) -> None:
    report, after = served(bench, rgb_png([(b"eXIf", block)]))
    assert report.image.dropped_metadata == ()
    assert (b"eXIf", block) in list(png_chunks(after))


def profile(space: str) -> bytes:
    if space == "grey":
        return sources.grey_profile()
    if space == "inks":
        return sources.cmyk_profile()
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.mark.kind("PC5")
@pytest.mark.parametrize("space", ["grey", "colours", "inks"])
@pytest.mark.parametrize("colour_type", [0, 2, 3, 4, 6])
def test_a_profile_of_any_class_is_passed_on_as_it_is(bench: Bench, colour_type: int, space: str) -> None:
    chunk = (b"iCCP", b"a name\x00\x00" + zlib.compress(profile(space)))
    palette = ramp(8) if colour_type == 3 else None
    report, after = served(
        bench, sources.png(samples(colour_type, 8), colour_type, 8, palette=palette, chunks=[chunk])
    )
    assert report.image.dropped_metadata == ()
    assert chunk in list(png_chunks(after))


def test_what_lies_behind_the_end_is_dropped_and_named(bench: Bench) -> None:
    secret = b"the rest of an earlier, larger screenshot"
    report, after = served(bench, rgb_png() + secret)
    assert report.image.dropped_metadata == (f"{len(secret)} bytes behind the end of the picture",)
    assert secret not in after
    report, _ = served(bench, rgb_png() + bytes(500))
    assert report.image.dropped_metadata == ()


# --- animations, Apple's own kind, damage ------------------------------------------------------------------

ONE_FRAME = (b"acTL", struct.pack(">II", 1, 0))
FRAME_CONTROL = struct.pack(">IIIIIHHBB", 0, W, H, 0, 0, 1, 10, 0, 0)


def test_an_animation_of_one_frame_is_a_picture(bench: Bench) -> None:
    before = rgb_png([ONE_FRAME, (b"fcTL", FRAME_CONTROL)])
    report, after = served(bench, before)
    assert report.image.dropped_metadata == ()
    assert [kind for kind, _ in png_chunks(after)] == [b"IHDR", b"acTL", b"fcTL", b"IDAT", b"IEND"]


@pytest.mark.parametrize(
    "chunks",
    [
        [(b"acTL", struct.pack(">II", 2, 0))],
        [(b"acTL", b"")],
        [ONE_FRAME, (b"fdAT", b"the frame is another picture")],
    ],
    ids=["two frames", "broken control", "one frame beside the picture"],
)
def test_a_picture_with_other_frames_is_refused(bench: Bench, chunks: list[tuple[bytes, bytes]]) -> None:
    assert "animated" in refused(bench, rgb_png(chunks), "unsupported").reason


def test_apples_own_kind_is_refused_with_a_way_out(bench: Bench) -> None:
    before = rgb_png()
    report = refused(bench, with_chunk_before(before, b"IHDR", b"CgBI", b"\x50\x00\x20\x02"), "unsupported")
    assert "CgBI" in report.reason
    assert "ordinary PNG" in report.remedy


@pytest.mark.parametrize(
    "fields",
    [
        (3, 2, 0, 0, 0),
        (16, 3, 0, 0, 0),
        (4, 6, 0, 0, 0),
        (8, 5, 0, 0, 0),
        (8, 2, 1, 0, 0),
        (8, 2, 0, 1, 0),
        (8, 2, 0, 0, 2),
    ],
)
def test_headers_of_no_kind_are_undecodable(bench: Bench, fields: tuple[int, ...]) -> None:
    body = struct.pack(">II", W, H) + bytes(fields)
    data = rgb_png()
    data = (
        data[:8]
        + struct.pack(">I", 13)
        + b"IHDR"
        + body
        + struct.pack(">I", zlib.crc32(b"IHDR" + body))
        + data[33:]
    )
    refused(bench, data, "undecodable")


def test_a_palette_picture_without_palette_is_undecodable(bench: Bench) -> None:
    refused(bench, sources.png(samples(3, 4), 3, 4), "undecodable")


def test_a_picture_without_data_is_undecodable(bench: Bench) -> None:
    data = rgb_png()
    at = data.index(b"IDAT") - 4
    refused(bench, data[:at] + data[-12:], "undecodable")


@pytest.mark.parametrize("kind", [b"IHDR", b"PLTE", b"tRNS"])
def test_a_wrong_checksum_of_what_the_pixels_need_is_undecodable(bench: Bench, kind: bytes) -> None:
    data = bytearray(sources.png(samples(3, 4), 3, 4, palette=ramp(4), key=b"\x00\x09"))
    at = data.index(kind)
    (length,) = struct.unpack_from(">I", data, at - 4)
    data[at + 4 + length] ^= 1
    assert kind.decode() in refused(bench, bytes(data), "undecodable").reason


def test_a_damaged_text_is_dropped_and_named(bench: Bench) -> None:
    data = with_chunk_before(rgb_png(), b"IDAT", b"tEXt", b"Title\x00words", checksum=1)
    report, after = served(bench, data)
    assert report.image.dropped_metadata == ("tEXt Title (damaged)",)
    assert b"tEXt" not in after


@pytest.mark.parametrize("damage", ["cut", "changed", "too few rows"])
@pytest.mark.parametrize(("colour_type", "depth"), [(0, 1), (2, 8), (0, 16), (2, 16), (6, 16)])
def test_damaged_picture_data_is_undecodable(bench: Bench, colour_type: int, depth: int, damage: str) -> None:
    data = sources.png(samples(colour_type, depth), colour_type, depth)
    stream = b"".join(body for kind, body in png_chunks(data) if kind == b"IDAT")
    broken = {
        "cut": stream[: len(stream) // 2],
        "changed": stream[:9] + bytes(byte ^ 0x55 for byte in stream[9:40]) + stream[40:],
        "too few rows": zlib.compress(zlib.decompress(stream)[:-200]),
    }[damage]
    at = data.index(b"IDAT") - 4
    parts = data[:at] + struct.pack(">I", len(broken)) + b"IDAT" + broken
    refused(bench, parts + struct.pack(">I", zlib.crc32(b"IDAT" + broken)) + data[-12:], "undecodable")


def test_texts_that_expand_beyond_all_measure_are_refused(bench: Bench) -> None:
    text = b"Comment\x00\x00" + zlib.compress(bytes(30 << 20))
    report = refused(bench, rgb_png([(b"zTXt", text)] * 3), "too_large")
    assert "expand" in report.reason
    served(bench, rgb_png([(b"zTXt", text)]))


def test_picture_data_in_many_pieces_between_other_chunks(bench: Bench) -> None:
    data = rgb_png()
    (stream,) = [body for kind, body in png_chunks(data) if kind == b"IDAT"]
    at = data.index(b"IDAT") - 4
    pieces = [stream[start : start + 100] for start in range(0, len(stream), 100)]
    body = b"".join(
        struct.pack(">I", len(piece)) + b"IDAT" + piece + struct.pack(">I", zlib.crc32(b"IDAT" + piece))
        for piece in (*pieces, b"")
    )
    report, after = served(bench, data[:at] + body + data[-12:])
    assert report.image.dropped_metadata == ()
    assert np.array_equal(look(after).stored[~HOLE], COLOUR[~HOLE])


def test_a_mask_may_be_of_any_depth(bench: Bench) -> None:
    """A mask is read by the same code: 255, 65535 and the highest level of 1, 2 and 4 bits are white."""
    for depth in (1, 2, 4, 16):
        white = MARK.astype(np.uint16) * ((1 << depth) - 1)
        (bench.folder / "deep.png").write_bytes(sources.png(white, 0, depth, interlace=True))
        _, staged = bench.done(written(bench, rgb_png()), bench.folder / "deep.png", grow_px=0)
        with Image.open(staged) as after:
            assert np.array_equal((np.asarray(after) == FILL).all(axis=-1), MARK)
