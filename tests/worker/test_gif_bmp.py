"""GIF stills and BMPs through the item server: everything but the filled pixels is the source's own bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pyvips
from PIL import Image

from tests.worker import sources
from tests.worker.bench import FILL, Bench, photo, rectangle, save_mask
from tests.worker.independent import look
from watcher.wire import ItemDone, ItemFailed, ItemIncomplete
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.wire import FailureCode

W, H = 61, 47
MARK = rectangle(W, H, (20, 15, 34, 30))
HOLE = grown(MARK, 2)
COLOUR = photo(W, H)
GREY_OF_FILL = 97


def written(bench: Bench, data: bytes, name: str) -> Path:
    path = bench.folder / name
    path.write_bytes(data)
    return path


def served(bench: Bench, data: bytes, name: str, **changes: Any) -> tuple[ItemDone, bytes]:
    mask = save_mask(bench.folder / "mask.png", MARK)
    report, staged = bench.done(written(bench, data, name), mask, grow_px=2, **changes)
    assert report.image.outside == "identical"
    return report, staged.read_bytes()


def refused(bench: Bench, data: bytes, code: FailureCode) -> ItemFailed:
    mask = save_mask(bench.folder / "mask.png", MARK)
    report = bench.serve(written(bench, data, "a"), mask)
    assert isinstance(report, ItemFailed), report
    assert report.code == code, report
    assert report.remedy
    return report


def palette(entries: int) -> NDArray[np.uint8]:
    """Colours without the engine's."""
    numbers = np.arange(entries)
    return np.stack([numbers * 255 // entries, 255 - numbers, numbers * 37 % 256], axis=1).astype(np.uint8)


def indices(entries: int, shown: int | None = None) -> NDArray[np.uint8]:
    """A photo in numbers of entries, of which all that are `shown` are."""
    numbers = COLOUR[..., 0].astype(int) * (shown or entries) // 256
    numbers.flat[: shown or entries] = np.arange(shown or entries)
    return numbers.astype(np.uint8)


# --- GIF ---------------------------------------------------------------------------------------------------

COMMENT = b"\x21\xfe\x08a remark\x00"
LOOP = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
PROFILE = b"\x21\xff\x0bICCRGBG1012\x09a profile\x00"
OTHER = b"\x21\xff\x0bPROGRAM 1.2\x04data\x00"
PLAIN_TEXT = b"\x21\x01\x0c" + bytes(12) + b"\x05words\x00"
CREDENTIALS = b"\x21\xff\x0bC2PA_GIF\x01\x00\x00\x04jumb\x00"
XMP_END = b"\x01" + bytes(range(255, -1, -1)) + b"\x00"
THUMBNAILS = b"<xmp:Thumbnails>AAAA</xmp:Thumbnails>"


def raw_xmp(text: bytes) -> bytes:
    return b"\x21\xff\x0bXMP DataXMP" + text + XMP_END


def blocked_xmp(text: bytes) -> bytes:
    """As some programs write it: in sub-blocks, as any other application's data."""
    parts = [text[at : at + 255] for at in range(0, len(text), 255)]
    return b"\x21\xff\x0bXMP DataXMP" + b"".join(bytes([len(part)]) + part for part in parts) + b"\x00"


def table(colours: NDArray[np.uint8]) -> tuple[int, bytes]:
    """The size in the flags, and the bytes of a colour table."""
    size = max(0, (len(colours) - 1).bit_length() - 1)
    return size, colours.tobytes().ljust(3 << (size + 1), b"\x00")


def lzw(numbers: NDArray[np.uint8]) -> bytes:
    """Least code size and sub-blocks: each pixel a code of nine bits, cleared before ten are needed."""
    codes: list[int] = []
    for at in range(0, numbers.size, 250):
        codes += [256, *numbers.flat[at : at + 250].tolist()]
    bits = "".join(f"{code:09b}"[::-1] for code in [*codes, 257])
    raw = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    blocks = b"".join(
        bytes([len(part)]) + part for part in (raw[at : at + 255] for at in range(0, len(raw), 255))
    )
    return b"\x08" + blocks + b"\x00"


def gif(  # noqa: PLR0913 - the fields of a GIF
    numbers: NDArray[np.uint8],
    colours: NDArray[np.uint8],
    *,
    local: NDArray[np.uint8] | None = None,
    place: tuple[int, int] = (0, 0),
    screen: tuple[int, int] = (W, H),
    background: int = 0,
    transparent: int | None = None,
    interlaced: bool = False,
    before: Sequence[bytes] = (),
    behind: Sequence[bytes] = (),
    version: bytes = b"GIF89a",
) -> bytes:
    height, width = numbers.shape
    size, global_table = table(colours)
    header = version + struct.pack("<HHBBB", *screen, 0x80 | 0x70 | size, background, 49) + global_table
    control = b""
    if transparent is not None:
        control = b"\x21\xf9\x04" + struct.pack("<BHB", 1 | 2 << 2, 7, transparent) + b"\x00"
    flags, local_table = 0x40 if interlaced else 0, b""
    if local is not None:
        local_size, local_table = table(local)
        flags |= 0x80 | local_size
    if interlaced:
        numbers = np.concatenate([numbers[0::8], numbers[4::8], numbers[2::4], numbers[1::2]])
    image = b"," + struct.pack("<HHHHB", *place, width, height, flags) + local_table + lzw(numbers)
    return header + b"".join(before) + control + image + b"".join(behind) + b";"


def parts_of(data: bytes) -> dict[str, bytes]:
    """A still's bytes by what they are; the picture data alone has no place in it."""
    position = 13 + (3 << ((data[10] & 7) + 1))
    parts = {"header": data[:13], "table": data[13:position], "extensions": b""}
    while data[position] != 0x3B:
        start = position
        if data[position] == 0x21:
            position += 2
        else:
            flags = data[position + 9]
            local = 3 << ((flags & 7) + 1) if flags & 0x80 else 0
            parts["descriptor"] = data[start : start + 10]
            parts["local table"] = data[start + 10 : start + 10 + local]
            position += 11 + local
        while data[position]:
            position += 1 + data[position]
        position += 1
        if data[start] == 0x21:
            parts["extensions"] += data[start:position]
    assert position == len(data) - 1
    return parts


@pytest.mark.parametrize("interlaced", [False, True], ids=["plain", "interlaced"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"version": b"GIF87a"},
        {"local": palette(256)[::-1]},
        {"transparent": 9, "background": 5},
        {"before": [COMMENT, LOOP, PROFILE, OTHER, PLAIN_TEXT], "behind": [raw_xmp(sources.XMP)]},
    ],
    ids=["simple", "87a", "local table", "transparent", "extensions"],
)
def test_all_of_a_gif_but_the_filled_pixels_stays(
    bench: Bench, change: dict[str, Any], *, interlaced: bool
) -> None:
    before = gif(indices(256), palette(256), interlaced=interlaced, **change)
    report, after = served(bench, before, "a.gif")
    assert report.image.dropped_metadata == ()
    assert parts_of(after) == parts_of(before)
    old, new = look(before).stored, look(after).stored
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert np.array_equal(old[..., 3:], new[..., 3:])
    assert len(np.unique(new[HOLE & (new[..., -1] > 0)], axis=0)) == 1
    assert (old != new)[HOLE].any(axis=-1).mean() > 0.9


@pytest.mark.parametrize("interlaced", [False, True], ids=["plain", "interlaced"])
@pytest.mark.parametrize("size", [(1, 2), (5, 3), (3, 9), (16, 17)])
def test_gifs_of_any_size(bench: Bench, size: tuple[int, int], *, interlaced: bool) -> None:
    width, height = size
    numbers = indices(256)[:height, :width]
    before = gif(numbers, palette(256), screen=size, interlaced=interlaced)
    mask = save_mask(bench.folder / "mask.png", rectangle(width, height, (0, 0, 1, 1)))
    _, staged = bench.done(written(bench, before, "a.gif"), mask, grow_px=0)
    different = (look(before).stored != look(staged.read_bytes()).stored).any(axis=2)
    different[0, 0] = False
    assert not different.any()


@pytest.mark.parametrize("local", [False, True], ids=["global", "local"])
@pytest.mark.parametrize(("entries", "grown_to"), [(2, 4), (16, 32), (100, 128), (128, 256), (256, 256)])
def test_the_frames_colour_table_keeps_its_entries_and_takes_the_fills_own(
    bench: Bench, entries: int, grown_to: int, *, local: bool
) -> None:
    own = palette(entries)
    other = palette(8)[::-1]
    before = gif(indices(entries), other if local else own, local=own if local else None)
    _, after = served(bench, before, "a.gif")
    name, unused = ("local table", "table") if local else ("table", "local table")
    assert len(parts_of(after)[name]) == 3 * grown_to
    assert parts_of(after)[name].startswith(own.tobytes())
    assert parts_of(after)[unused] == parts_of(before)[unused]
    new = look(after).stored
    assert np.array_equal(look(before).stored[~HOLE], new[~HOLE])
    assert (new[HOLE][:, :3] == FILL).all() == (entries < 256)


def test_entries_that_mean_something_are_not_given_away(bench: Bench) -> None:
    """The background and the transparent entry are shown by no pixel, and stay."""
    before = gif(indices(256, shown=254), palette(256), background=254, transparent=255)
    _, after = served(bench, before, "a.gif")
    assert parts_of(after)["table"] == parts_of(before)["table"]


def test_a_gif_of_greys_stays_grey(bench: Bench) -> None:
    greys = np.repeat(np.arange(0, 128, 2, dtype=np.uint8)[:, np.newaxis], 3, axis=1)
    _, after = served(bench, gif(indices(64), greys), "a.gif")
    assert (look(after).stored[HOLE][:, :3] == GREY_OF_FILL).all()


@pytest.mark.parametrize("transparent", [None, 9])
@pytest.mark.parametrize("interlaced", [False, True], ids=["plain", "interlaced"])
def test_a_frame_smaller_than_the_screen_stays_where_it_is(
    bench: Bench, transparent: int | None, *, interlaced: bool
) -> None:
    numbers = indices(256)[: H - 20, : W - 22]
    before = gif(numbers, palette(256), place=(15, 12), transparent=transparent, interlaced=interlaced)
    report, after = served(bench, before, "a.gif")
    assert (report.image.width, report.image.height) == (W, H)
    for part in ("header", "descriptor", "extensions"):
        assert parts_of(after)[part] == parts_of(before)[part]
    old, new = look(before).stored, look(after).stored
    assert old.shape == new.shape == (H, W, 3 if transparent is None else 4)
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert np.array_equal(old[..., 3:], new[..., 3:])
    assert (old != new)[HOLE].any()


def test_a_hole_beside_the_frame_changes_nothing(bench: Bench) -> None:
    numbers = indices(256)[:10, :12]
    before = gif(numbers, palette(256), place=(0, 0))
    report, after = served(bench, before, "a.gif")
    assert np.array_equal(look(before).stored, look(after).stored)
    assert report.reason is not None
    assert report.reason.endswith("lie beside the GIF's picture, where there is nothing to fill")


def test_a_frame_larger_than_the_screen_makes_it_larger(bench: Bench) -> None:
    before = gif(indices(256), palette(256), screen=(10, 0))
    report, after = served(bench, before, "a.gif")
    assert (report.image.width, report.image.height) == (W, H)
    assert parts_of(after) == parts_of(before)
    with Image.open(bench.folder / "a.gif") as old, Image.open(bench.folder / "staging/a.gif.staged") as new:
        assert np.array_equal(np.asarray(old)[~HOLE], np.asarray(new)[~HOLE])


def test_erased_pixels_of_a_gif_come_back_opaque(bench: Bench) -> None:
    numbers = indices(200)
    numbers[numbers == 7] = 8
    numbers[MARK] = 7
    before = gif(numbers, palette(200), transparent=7)
    report, staged = bench.done(written(bench, before, "a.gif"), sources=("alpha",), grow_px=2)
    assert report.marks == "alpha"
    old, new = look(before).stored, look(staged.read_bytes()).stored
    assert (old[MARK, 3] == 0).all()
    assert (new[..., -1] == 255).all()
    assert np.array_equal(old[~HOLE][:, :3], new[~HOLE][:, :3])


@pytest.mark.parametrize("form", [raw_xmp, blocked_xmp], ids=["raw", "in blocks"])
def test_a_thumbnail_inside_a_gifs_xmp_is_taken_out(bench: Bench, form: Any) -> None:
    text = sources.XMP.replace(b"</rdf:RDF>", THUMBNAILS + b"</rdf:RDF>")
    report, after = served(bench, gif(indices(16), palette(16), before=[form(text)]), "a.gif")
    assert report.image.dropped_metadata == ("XMP thumbnail",)
    assert parts_of(after)["extensions"] == form(sources.XMP)


def test_without_metadata_a_gif_keeps_what_decides_its_looks(bench: Bench) -> None:
    odd = b"\x21\x77\x03odd\x00"
    before = gif(
        indices(16),
        palette(16),
        before=[COMMENT, LOOP, PROFILE, OTHER, PLAIN_TEXT, odd, raw_xmp(sources.XMP), CREDENTIALS],
    )
    report, after = served(bench, before, "a.gif", keep_metadata=False)
    assert parts_of(after)["extensions"] == LOOP + PROFILE + PLAIN_TEXT
    assert set(report.image.dropped_metadata) == {
        "comment",
        "XMP",
        "application extension PROGRAM 1.2",
        "extension 0x77",
        "content credentials (C2PA)",
    }


def test_content_credentials_and_what_lies_behind_a_gif_are_named(bench: Bench) -> None:
    before = gif(indices(16), palette(16), behind=[CREDENTIALS]) + b"more"
    report, after = served(bench, before, "a.gif")
    assert set(report.image.dropped_metadata) == {
        "content credentials (C2PA)",
        "4 bytes behind the end of the picture",
    }
    assert b"jumb" not in after
    assert after.endswith(b";")


def test_a_gif_without_a_colour_table_is_grey(bench: Bench) -> None:
    with_table = gif(indices(256), palette(256))
    before = with_table[:10] + b"\x70" + with_table[11:13] + with_table[13 + 768 :]
    _, after = served(bench, before, "a.gif")
    assert after[:13] == before[:13]
    with Image.open(bench.folder / "a.gif") as old, Image.open(bench.folder / "staging/a.gif.staged") as new:
        assert np.array_equal(np.asarray(old)[~HOLE], np.asarray(new)[~HOLE])
        assert (np.asarray(new)[HOLE] == GREY_OF_FILL).all()


def test_a_gif_without_a_picture_is_undecodable(bench: Bench) -> None:
    refused(
        bench, b"GIF89a" + struct.pack("<HHBBB", W, H, 0x80, 0, 0) + bytes(6) + COMMENT + b";", "undecodable"
    )


def test_a_gif_cut_into_crumbs_is_refused(bench: Bench) -> None:
    crumbs = b"\x21\xfe" + b"\x01a" * 200_000 + b"\x00"
    refused(bench, gif(indices(16), palette(16), before=[crumbs]), "too_large")


# --- BMP ---------------------------------------------------------------------------------------------------

RGB_MASKS = (0x00FF0000, 0x0000FF00, 0x000000FF)
PER_METRE = 11811


def words(masks: Sequence[int]) -> NDArray[np.uint32]:
    """A photo as the bits of pixels; bits of no channel are set, so that one sees whether they stay."""
    bits = 16 if max(masks) < 1 << 16 else 32
    result = np.full((H, W), (1 << bits) - 1 & ~sum(masks), np.uint32)
    planes = [*np.moveaxis(COLOUR, 2, 0), np.tile(np.linspace(0, 255, W), (H, 1)).astype(np.uint8)]
    for plane, mask in zip(planes, masks, strict=False):
        low = mask & -mask
        if mask:
            result |= (plane.astype(np.uint32) * (mask // low) // 255 * low).astype(np.uint32)
    return result


def bmp(  # noqa: PLR0913 - the fields of a BMP
    rows: NDArray[np.uint8] | bytes,
    bits: int,
    *,
    compression: int = 0,
    header_bytes: int = 40,
    behind_header: bytes = b"",
    colours: NDArray[np.uint8] | None = None,
    used: int = 0,
    top_down: bool = False,
    gap: bytes = b"",
    profile: bytes = b"",
) -> bytes:
    """Write a BMP whose padding and reserved bytes are not zeros, so that one sees whether they stay."""
    data = rows if isinstance(rows, bytes) else (rows if top_down else rows[::-1]).tobytes()
    small = header_bytes == 12
    entries = b""
    if colours is not None:
        reversed_ = colours[:, ::-1]
        entries = (reversed_ if small else np.pad(reversed_, ((0, 0), (0, 1)), constant_values=77)).tobytes()
    offset = 14 + header_bytes + len(behind_header) + len(entries) + len(gap)
    if small:
        header = struct.pack("<IHHHH", 12, W, H, 1, bits)
    else:
        rows_down = -H if top_down else H
        header = struct.pack("<IiiHHI", header_bytes, W, rows_down, 1, bits, compression)
        header += struct.pack("<IiiII", len(data), PER_METRE, PER_METRE, used, 0)
        header = header[:header_bytes] + (behind_header if header_bytes > 40 else b"")
        header = header.ljust(header_bytes, b"\x00")
    if header_bytes > 40:
        behind_header, offset = b"", offset - len(behind_header)
    if profile:
        header = header[:112] + struct.pack("<II", offset - 14 + len(data), len(profile)) + header[120:]
    size = offset + len(data) + len(profile)
    file_header = struct.pack("<2sIHHI", b"BM", size, 11, 22, offset)
    return file_header + header + behind_header + entries + gap + data + profile


def padded(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)), constant_values=0xA5)


def packed(pixels: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    return padded(sources.packed_rows(pixels, bits, "<"))


def mask_fields(masks: Sequence[int]) -> bytes:
    return b"".join(struct.pack("<I", mask) for mask in masks)


M565, M555A, M4444 = (0xF800, 0x07E0, 0x1F), (0x7C00, 0x3E0, 0x1F, 0x8000), (0xF00, 0xF0, 0xF, 0xF000)
M10 = (0x3FF00000, 0x000FFC00, 0x000003FF, 0xC0000000)
M7_11 = (0xFE000000, 0x01FC0000, 0x0003F800, 0x000007FF)
M8888, MRGBX = (*RGB_MASKS, 0xFF000000), (0xFF000000, 0x00FF0000, 0x0000FF00)
M565_ODD = (0x1F, 0x7E0, 0xF800)

BMPS = {
    **{
        f"{bits} bits": bmp(packed(indices(1 << bits), bits), bits, colours=palette(1 << bits))
        for bits in (1, 2, 4, 8)
    },
    "OS/2, 4 bits": bmp(packed(indices(16), 4), 4, header_bytes=12, colours=palette(16)),
    "OS/2, 8 bits": bmp(packed(indices(256), 8), 8, header_bytes=12, colours=palette(256)),
    "OS/2, 24 bits": bmp(packed(COLOUR[..., ::-1], 8), 24, header_bytes=12),
    "OS/2 of version 2": bmp(packed(indices(256), 8), 8, header_bytes=64, colours=palette(256)),
    "OS/2 of version 2, short": bmp(packed(indices(256), 8), 8, header_bytes=16, colours=palette(256)),
    "8 bits, top down": bmp(packed(indices(256), 8), 8, colours=palette(256), top_down=True),
    "24 bits": bmp(packed(COLOUR[..., ::-1], 8), 24),
    "24 bits, top down, gap": bmp(packed(COLOUR[..., ::-1], 8), 24, top_down=True, gap=b"nobody knows"),
    "24 bits, version 5, profile": bmp(
        packed(COLOUR[..., ::-1], 8), 24, header_bytes=124, profile=sources.rgb_profile()
    ),
    "16 bits, 555": bmp(packed(words(M555A[:3]), 16), 16),
    "16 bits, 565": bmp(packed(words(M565), 16), 16, compression=3, behind_header=mask_fields(M565)),
    "16 bits, 565, blue first": bmp(
        packed(words(M565_ODD), 16), 16, compression=3, behind_header=mask_fields(M565_ODD), top_down=True
    ),
    "16 bits, 1555": bmp(
        packed(words(M555A), 16), 16, compression=3, header_bytes=56, behind_header=mask_fields(M555A)
    ),
    "16 bits, 4444": bmp(packed(words(M4444), 16), 16, compression=6, behind_header=mask_fields(M4444)),
    "32 bits": bmp(packed(words(RGB_MASKS), 32), 32),
    "32 bits, red last": bmp(packed(words(MRGBX), 32), 32, compression=3, behind_header=mask_fields(MRGBX)),
    "32 bits, masks in the header": bmp(
        packed(words(RGB_MASKS), 32), 32, compression=3, header_bytes=52, behind_header=mask_fields(RGB_MASKS)
    ),
    "32 bits, alpha": bmp(
        packed(words(M8888), 32), 32, compression=3, header_bytes=108, behind_header=mask_fields(M8888)
    ),
    "32 bits, version 5, alpha": bmp(
        packed(words(M8888), 32), 32, compression=3, header_bytes=124, behind_header=mask_fields(M8888)
    ),
    "32 bits, 11 of alpha": bmp(
        packed(words(M7_11), 32), 32, compression=3, header_bytes=56, behind_header=mask_fields(M7_11)
    ),
    "32 bits, 10 a channel": bmp(
        packed(words(M10), 32), 32, compression=3, header_bytes=56, behind_header=mask_fields(M10)
    ),
}


def bits_of(data: bytes | bytearray) -> tuple[int, int, int, bool]:
    """Offset of the pixels, bytes of a row, bits of a pixel, and whether the first row is the first one."""
    (offset, header_bytes) = struct.unpack_from("<II", data, 10)
    bits = struct.unpack_from("<H", data, 24 if header_bytes == 12 else 28)[0]
    top_down = header_bytes != 12 and struct.unpack_from("<i", data, 22)[0] < 0
    return offset, (W * bits + 31) // 32 * 4, bits, top_down


def may_change(data: bytes) -> NDArray[np.bool_]:
    """Which bits of a BMP lie in the hole (all bits of the file)."""
    offset, row_bytes, bits, top_down = bits_of(data)
    allowed = np.zeros(len(data) * 8, np.bool_)
    rows = allowed[offset * 8 : (offset + row_bytes * H) * 8].reshape(H, row_bytes * 8)
    hole = HOLE if top_down else HOLE[::-1]
    rows[:, : W * bits] = np.repeat(hole, bits, axis=1)
    return allowed


@pytest.mark.parametrize("name", BMPS)
def test_no_bit_outside_the_hole_changes(bench: Bench, name: str) -> None:
    before = BMPS[name]
    report, after = served(bench, before, "a.bmp")
    assert report.image.dropped_metadata == ()
    assert len(after) == len(before)
    changed = np.unpackbits(np.frombuffer(before, np.uint8) ^ np.frombuffer(after, np.uint8))
    assert not changed[~may_change(before)].any()
    assert changed[may_change(before)].any()


TRUE_COLOUR = [name for name in BMPS if name.split(",")[0] in ("24 bits", "16 bits", "32 bits")]


@pytest.mark.parametrize("name", TRUE_COLOUR)
def test_the_hole_has_the_engines_colour_in_every_channel_layout(bench: Bench, name: str) -> None:
    before = BMPS[name]
    masks = {
        "16 bits, 555": M555A[:3],
        "16 bits, 565": M565,
        "16 bits, 565, blue first": M565_ODD,
        "16 bits, 1555": M555A,
        "16 bits, 4444": M4444,
        "32 bits, red last": MRGBX,
        "32 bits, 11 of alpha": M7_11,
        "32 bits, 10 a channel": M10,
    }.get(name, M8888 if "alpha" in name else RGB_MASKS)
    _, after = served(bench, before, "a.bmp")
    offset, row_bytes, bits, top_down = bits_of(after)
    rows = np.frombuffer(after, np.uint8, row_bytes * H, offset).reshape(H, row_bytes)
    rows = rows if top_down else rows[::-1]
    octets = rows[:, : W * bits // 8].reshape(H, W, -1).astype(np.uint64)
    found = sum(octets[..., place] << np.uint64(8 * place) for place in range(bits // 8))
    old = words(masks) if bits != 24 else np.zeros((H, W))
    for mask, wanted in zip(masks, FILL, strict=False):
        low = mask & -mask
        values = ((np.asarray(found).astype(np.int64) & mask) // low)[MARK]
        assert len(np.unique(values)) == 1, mask
        assert abs(values[0] - wanted * (mask // low) / 255) <= 0.5
    rest = ~sum(masks[:3]) & ((1 << bits) - 1)
    if bits != 24:
        assert np.array_equal(np.asarray(found).astype(np.int64) & rest, old.astype(np.int64) & rest)


@pytest.mark.parametrize(
    "name", ["24 bits", "24 bits, top down, gap", "8 bits", "OS/2, 24 bits", "32 bits, alpha"]
)
def test_other_programs_see_what_we_wrote(bench: Bench, name: str) -> None:
    _, staged = bench.done(
        written(bench, BMPS[name], "a.bmp"), save_mask(bench.folder / "mask.png", MARK), grow_px=2
    )
    with Image.open(bench.folder / "a.bmp") as old, Image.open(staged) as new:
        assert new.mode == old.mode
        before, after = np.asarray(old.convert("RGBA")), np.asarray(new.convert("RGBA"))
    assert np.array_equal(before[~HOLE], after[~HOLE])
    assert (before != after)[HOLE].any()


@pytest.mark.parametrize("name", [name for name in BMPS if name not in TRUE_COLOUR and "24" not in name])
def test_a_full_palette_gives_the_hole_its_nearest_colour(bench: Bench, name: str) -> None:
    _, after = served(bench, BMPS[name], "a.bmp")
    offset, row_bytes, bits, top_down = bits_of(after)
    rows = np.frombuffer(after, np.uint8, row_bytes * H, offset).reshape(H, row_bytes)
    digits = np.unpackbits(rows if top_down else rows[::-1], axis=1)[:, : W * bits].reshape(H, W, bits)
    numbers = digits.astype(int) @ (1 << np.arange(bits)[::-1])
    distances = ((palette(1 << bits).astype(int) - FILL) ** 2).sum(axis=1)
    assert (numbers[HOLE] == distances.argmin()).all()


@pytest.mark.parametrize("name", ["16 bits, 1555", "16 bits, 4444", "32 bits, version 5, alpha"])
def test_erased_pixels_of_a_bmp_come_back_opaque(bench: Bench, name: str) -> None:
    masks = {"16 bits, 1555": M555A, "16 bits, 4444": M4444}.get(name, M8888)
    before = bytearray(BMPS[name])
    offset, row_bytes, bits, _ = bits_of(before)
    pixels = np.frombuffer(before, np.uint8, row_bytes * H, offset).reshape(H, row_bytes)[:, : W * bits // 8]
    stored = np.ascontiguousarray(pixels).view(f"<u{bits // 8}") | masks[3]
    stored[MARK[::-1]] &= ~np.uint32(masks[3]) & ((1 << bits) - 1)
    before[offset : offset + row_bytes * H] = packed(stored, bits).tobytes()
    report, staged = bench.done(written(bench, bytes(before), "a.bmp"), sources=("alpha",), grow_px=0)
    assert report.marks == "alpha"
    after = np.frombuffer(staged.read_bytes(), np.uint8, row_bytes * H, offset).reshape(H, row_bytes)
    found = np.ascontiguousarray(after[:, : W * bits // 8]).view(f"<u{bits // 8}")
    assert (found & masks[3] == masks[3]).all()
    assert np.array_equal(found[~MARK[::-1]], stored[~MARK[::-1]])


@pytest.mark.parametrize("header_bytes", [40, 124])
@pytest.mark.parametrize(("bits", "used"), [(8, 100), (4, 9), (2, 2)])
def test_a_palette_that_is_shorter_than_its_depth_takes_the_fills_colour(
    bench: Bench, bits: int, used: int, header_bytes: int
) -> None:
    profile = b"a profile of some kind" if header_bytes == 124 else b""
    rows = packed(indices(used), bits)
    before = bmp(rows, bits, colours=palette(used), used=used, header_bytes=header_bytes, profile=profile)
    _, after = served(bench, before, "a.bmp")
    table_at = 14 + header_bytes
    assert len(after) == len(before) + 4
    assert struct.unpack_from("<I", after, 2)[0] == len(after)
    assert struct.unpack_from("<I", after, 46)[0] == used + 1
    assert after[table_at : table_at + 4 * used] == before[table_at : table_at + 4 * used]
    assert after[table_at + 4 * used : table_at + 4 * used + 3] == bytes(FILL[::-1])
    if profile:
        start, size = struct.unpack_from("<II", after, 14 + 112)
        assert after[14 + start : 14 + start + size] == profile
    colours = look(after).stored
    assert (colours[HOLE] == FILL).all()
    assert np.array_equal(colours[~HOLE], palette(used)[indices(used)][~HOLE])


def test_a_full_palette_gives_away_an_entry_that_no_pixel_shows(bench: Bench) -> None:
    before = bmp(packed(indices(256, shown=200), 8), 8, colours=palette(256))
    _, after = served(bench, before, "a.bmp")
    assert len(after) == len(before)
    assert after[54 : 54 + 800] == before[54 : 54 + 800]
    assert (bytes(FILL[::-1]) + b"M") in after[54 + 800 : 54 + 1024], "and its reserved byte stays"


# --- BMP: run lengths --------------------------------------------------------------------------------------


def runs_of_8(numbers: NDArray[np.uint8]) -> bytes:
    """Run lengths of all kinds: runs, literals of odd and even length, a jump, rows that end early."""
    coded = b""
    for y, row in enumerate(numbers[::-1].tolist()):
        if y == 3:
            coded += b"\x00\x02\x05\x01"  # five to the right and one row on: what is passed over is 0
            row = row[5:]  # noqa: PLW2901 - the rest of it
        elif y == 4:
            continue
        for at in range(0, len(row), 7):
            part = row[at : at + 7]
            if len(set(part)) == 1:
                coded += bytes([len(part), part[0]])
            elif len(part) > 2:
                coded += bytes([0, len(part), *part]) + b"\x00" * (len(part) % 2)
            else:
                coded += b"".join(bytes([1, number]) for number in part)
        coded += b"\x00\x00"
    return coded + b"\x00\x01"


def runs_of_4(numbers: NDArray[np.uint8]) -> bytes:
    coded = b""
    for row in numbers[::-1].tolist():
        for at in range(0, len(row), 6):
            part = row[at : at + 6]
            if len(part) == 6:
                digits = [part[place] << 4 | part[place + 1] for place in (0, 2, 4)]
                coded += bytes([0, 6, *digits, 0])
            else:
                coded += b"".join(bytes([1, number << 4]) for number in part)
        coded += b"\x00\x00"
    return coded + b"\x00\x01"


def with_runs(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    numbers = numbers.copy()
    numbers[2] = numbers[2, 0]
    numbers[:, 40:] = numbers[:, 40:41]
    return numbers


def passed_over(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What `runs_of_8` leaves of the rows around its jump."""
    expected = numbers[::-1].copy()
    expected[4, 5:] = expected[3, 5:]
    expected[4, :5] = 0
    expected[3] = 0
    return expected[::-1]


@pytest.mark.parametrize("behind", [b"", b"a profile of some kind"], ids=["alone", "with a profile"])
@pytest.mark.parametrize("bits", [4, 8])
def test_run_lengths_come_back_as_plain_rows_of_the_same_depth(
    bench: Bench, bits: int, behind: bytes
) -> None:
    numbers = with_runs(indices(1 << bits))
    coded = runs_of_8(numbers) if bits == 8 else runs_of_4(numbers)
    header_bytes = 124 if behind else 40
    before = bmp(
        coded,
        bits,
        compression=1 if bits == 8 else 2,
        colours=palette(1 << bits),
        header_bytes=header_bytes,
        profile=behind,
    )
    report, after = served(bench, before, "a.bmp")
    assert report.image.dropped_metadata == ("run-length compression",)
    assert struct.unpack_from("<HI", after, 28) == (bits, 0)
    assert struct.unpack_from("<I", after, 2)[0] == len(after)
    assert struct.unpack_from("<ii", after, 38) == (PER_METRE, PER_METRE)
    if behind:
        start, size = struct.unpack_from("<II", after, 14 + 112)
        assert after[14 + start : 14 + start + size] == behind
    with Image.open(bench.folder / "staging/a.bmp.staged") as new:
        found = np.asarray(new.convert("RGB"))
    expected = palette(1 << bits)[passed_over(numbers) if bits == 8 else numbers]
    assert np.array_equal(found[~HOLE], expected[~HOLE])
    assert len(np.unique(found[HOLE], axis=0)) == 1


@pytest.mark.parametrize("left", [0, 1, 4, 5, 9, 1000, 1003])
def test_run_lengths_that_stop_early_are_undecodable(bench: Bench, left: int) -> None:
    coded = runs_of_8(indices(256))
    before = bmp(coded[:left], 8, compression=1, colours=palette(256))
    refused(bench, before, "undecodable")


@pytest.mark.parametrize(
    "coded", [b"\xff\x01" * 40, b"\x00\x02\xff\xff\x09\x01", b"\x00\xff" + bytes(256), b"\x00\x01"]
)
def test_run_lengths_that_leave_the_picture_do_no_harm(bench: Bench, coded: bytes) -> None:
    before = bmp(coded + b"\x00\x01", 8, compression=1, colours=palette(256))
    served(bench, before, "a.bmp")


# --- BMP: refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [4, 5, 9])
def test_rare_kinds_of_bmp_are_refused_with_a_way_out(bench: Bench, compression: int) -> None:
    report = refused(bench, bmp(packed(COLOUR, 8), 24, compression=compression), "unsupported")
    assert "ordinary BMP" in report.remedy


def test_masks_that_are_scattered_are_refused(bench: Bench) -> None:
    scattered = (0x00FF00F0, 0x0000FF00, 0x0000000F)
    data = bmp(packed(words(RGB_MASKS), 32), 32, compression=3, behind_header=mask_fields(scattered))
    refused(bench, data, "unsupported")


@pytest.mark.parametrize(
    ("field", "form", "value"),
    [(18, "<i", 0), (18, "<i", -5), (22, "<i", 0), (28, "<H", 7), (10, "<I", 20), (14, "<I", 3)],
    ids=["width 0", "width below 0", "height 0", "7 bits", "pixels in the header", "header of 3 bytes"],
)
def test_headers_that_make_no_sense_are_undecodable(bench: Bench, field: int, form: str, value: int) -> None:
    data = bytearray(BMPS["24 bits"])
    struct.pack_into(form, data, field, value)
    refused(bench, bytes(data), "undecodable")


@pytest.mark.parametrize("name", ["24 bits", "8 bits", "OS/2, 4 bits", "32 bits, version 5, alpha"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_bmp_that_is_cut_is_waited_for(bench: Bench, name: str, share: float) -> None:
    data = BMPS[name]
    mask = save_mask(bench.folder / "mask.png", MARK)
    report = bench.serve(written(bench, data[: int(len(data) * share)], "a.bmp"), mask)
    assert isinstance(report, ItemIncomplete), report


def test_a_bmp_may_be_a_mask(bench: Bench) -> None:
    """Of any depth, and of run lengths; so may a GIF whose frame is smaller than the screen."""
    colours = np.array([[0, 0, 0], [255, 255, 255]], np.uint8)
    plain = pyvips.Image.new_from_array(COLOUR).write_to_buffer(".png")
    masks = {
        "1.bmp": bmp(packed(MARK.astype(np.uint8), 1), 1, colours=colours),
        "4.bmp": bmp(runs_of_4(MARK.astype(np.uint8)), 4, compression=2, colours=colours, used=2),
        "5.gif": gif(np.ones((15, 14), np.uint8), colours, place=(20, 15)),
    }
    for name, data in masks.items():
        _, staged = bench.done(written(bench, plain, "a.png"), written(bench, data, name), grow_px=0)
        assert np.array_equal((look(staged.read_bytes()).stored == FILL).all(axis=-1), MARK), name


# --- what does not belong to a BMP -------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["behind", "between", "behind the profile"])
def test_a_picture_that_somebody_left_in_a_bmp_goes_and_is_named(bench: Bench, where: str) -> None:
    """It may be the picture itself, from before."""
    stranger = sources.by_pillow(Image.fromarray(COLOUR), "JPEG")
    rows = packed(COLOUR[..., ::-1], 8)
    before = bmp(rows, 24, gap=stranger if where == "between" else b"")
    if where == "behind the profile":
        before = bmp(rows, 24, header_bytes=124, profile=b"profile!" * 40)
    alone = look(before).stored
    if where != "between":
        before += stranger
    report, after = served(bench, before, "a.bmp")
    assert stranger[100:200] in before
    assert stranger[100:200] not in after
    (name,) = report.image.dropped_metadata
    assert "bytes behind the end" in name or "bytes between the parts" in name
    assert np.array_equal(alone[~HOLE], look(after).stored[~HOLE])
    assert (b"profile!" * 40 in after) == (where == "behind the profile")
