"""HEIC and AVIF: what comes back, what is kept of the file around the picture, and what is refused.

AVIF results are read by libvips. No other decoder of HEVC comes as a package, so HEIC pixels are read by
pillow-heif, and the boxes around them by the walkers of `independent.py`.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pillow_heif
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker.bench import FILL, ROOT, Bench, photo, rectangle, save_mask
from tests.worker.independent import look
from tests.worker.made import Made
from tests.worker.sources import XMP, by_pillow, rgb_profile
from tests.worker.sources import exif as exif_block
from watcher.wire import ItemDone, ItemFailed, ItemHeld, ItemIncomplete, Limits
from watcher.worker.imaging.formats.heif.isobmff import (
    Group,
    Item,
    Property,
    Reference,
    read_items,
    write_items,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.wire import FromWorker
    from watcher.worker.imaging.formats.heif.isobmff import ItemFile

W, H = 168, 120
PHOTO = photo(W, H)
BOX = (40, 30, 88, 70)
MARK = rectangle(W, H, BOX)
NEAR = cv2.dilate(MARK.astype(np.uint8), np.ones((33, 33), np.uint8)).astype(np.bool_)
"""Where a codec's blocks and halved chroma carry the fill to."""
GREY = PHOTO[..., 1].copy()
ALPHA = np.tile(np.linspace(0, 255, W).astype(np.uint8), (H, 1))


# --- sources -----------------------------------------------------------------------------------------------


def heic(pixels: NDArray[Any] = PHOTO, *, depth: int = 8, alpha: bool = False, **options: Any) -> bytes:
    """A HEIC of uint8 pixels; deeper ones are spread over all their bits."""
    pixels = np.dstack([pixels, ALPHA]) if alpha else pixels
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[1 if pixels.ndim == 2 else pixels.shape[2]]
    if depth > 8:
        pixels, mode = pixels.astype(np.uint16) * 257, f"{mode};16"
    target = io.BytesIO()
    size = (pixels.shape[1], pixels.shape[0])
    arguments = {"quality": 90, "subsampling": "4:4:4", "enc_params": {"preset": "veryfast"}, **options}
    if mode.startswith("L"):
        del arguments["subsampling"]
    pillow_heif.encode(mode, size, pixels.tobytes(), target, bit_depth=depth, **arguments)
    return target.getvalue()


def avif(pixels: NDArray[Any] = PHOTO, *, alpha: bool = False, **options: Any) -> bytes:
    image = Image.fromarray(np.dstack([pixels, ALPHA]) if alpha else pixels)
    arguments = {
        "quality": 90,
        "speed": 9,
        "subsampling": "4:0:0" if pixels.ndim == 2 else "4:4:4",
        **options,
    }
    return by_pillow(image, "AVIF", **arguments)


def deep_avif(depth: int, *, quality: int = 90, pixels: NDArray[Any] = PHOTO) -> bytes:
    deep = pixels.astype(np.uint16) << (depth - 8)
    if deep.ndim == 3:
        deep = deep[..., [2, 1, 0, 3][: deep.shape[2]]]
    options = [cv2.IMWRITE_AVIF_QUALITY, quality, cv2.IMWRITE_AVIF_DEPTH, depth]
    return cv2.imencode(".avif", np.ascontiguousarray(deep), options)[1].tobytes()


SOURCES: Made[bytes] = Made(
    {
        "heic 4:4:4": heic,
        "heic 4:2:0": lambda: heic(subsampling="4:2:0"),
        "heic 4:2:2": lambda: heic(subsampling="4:2:2"),
        "heic grey": lambda: heic(GREY),
        "heic alpha": lambda: heic(alpha=True),
        "heic grey alpha": lambda: heic(GREY, alpha=True),
        "heic 10 bits": lambda: heic(depth=10),
        "heic 12 bits": lambda: heic(depth=12),
        "heic 10 bits alpha": lambda: heic(depth=10, alpha=True),
        "heic 10 bits grey": lambda: heic(GREY, depth=10),
        "heic 10 bits grey alpha": lambda: heic(GREY, depth=10, alpha=True),
        "heic limited range": lambda: heic(
            full_range_flag=0, matrix_coefficients=1, color_primaries=1, transfer_characteristics=13
        ),
        "heic of 2020 colours": lambda: heic(
            depth=10, full_range_flag=0, matrix_coefficients=9, color_primaries=9, transfer_characteristics=16
        ),
        "heic in tiles": lambda: heic(tile_size=64),
        "heic in tiles 4:2:0": lambda: heic(tile_size=96, subsampling="4:2:0"),
        "heic in tiles of odd size": lambda: heic(PHOTO[:111, :131], tile_size=64, subsampling="4:2:0"),
        "heic of odd size": lambda: heic(PHOTO[:111, :131]),
        "avif 4:4:4": avif,
        "avif 4:2:0": lambda: avif(subsampling="4:2:0"),
        "avif 4:2:2": lambda: avif(subsampling="4:2:2"),
        "avif grey": lambda: avif(GREY),
        "avif alpha": lambda: avif(alpha=True),
        "avif limited range": lambda: avif(range="limited"),
        "avif 10 bits": lambda: deep_avif(10),
        "avif 12 bits": lambda: deep_avif(12),
        "avif 10 bits alpha": lambda: deep_avif(10, pixels=np.dstack([PHOTO, ALPHA])),
        "avif 10 bits grey": lambda: deep_avif(10, pixels=GREY),
        "avif of odd size": lambda: avif(PHOTO[:111, :131], subsampling="4:2:0"),
    }
)


def put(bench: Bench, data: bytes, name: str = "a.jpg") -> Path:
    source = bench.folder / name
    source.write_bytes(data)
    return source


def served(
    bench: Bench, data: bytes, mark: NDArray[np.bool_] = MARK, **changes: Any
) -> tuple[ItemDone, bytes]:
    mask = save_mask(bench.folder / "mask.png", mark)
    report, staged = bench.done(put(bench, data), mask, **{"grow_px": 0, **changes})
    return report, staged.read_bytes()


def refused(bench: Bench, data: bytes) -> ItemFailed:
    report = bench.serve(put(bench, data), save_mask(bench.folder / "mask.png", MARK))
    assert isinstance(report, ItemFailed), report
    assert report.remedy
    return report


def psnr(before: NDArray[Any], after: NDArray[Any]) -> float:
    top = float(np.iinfo(before.dtype).max)
    error = np.mean((before.astype(float) - after.astype(float)) ** 2)
    return 99.0 if error == 0 else float(10 * np.log10(top**2 / error))


# --- pixels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_it_comes_back_as_it_was_but_for_the_mark(bench: Bench, name: str) -> None:
    before = look(SOURCES[name])
    height, width = before.viewed.shape[:2]
    report, data = served(bench, SOURCES[name], MARK[:height, :width])
    after = look(data)

    assert report.image.format == name[:4].upper()
    assert after.viewed.shape == before.viewed.shape
    assert after.viewed.dtype == before.viewed.dtype
    far, inner = ~NEAR[:height, :width], rectangle(width, height, (48, 38, 80, 62))
    assert psnr(before.viewed[far], after.viewed[far]) > (38 if name.startswith("avif") else 40)
    for edge in (np.s_[-1], np.s_[:, -1]):
        assert psnr(before.viewed[edge], after.viewed[edge]) > 36
    top = np.iinfo(before.viewed.dtype).max
    colours = 1 if before.viewed.shape[2] < 3 or "grey" in name else 3
    fill = np.array([0.299 * FILL[0] + 0.587 * FILL[1] + 0.114 * FILL[2]] if colours == 1 else FILL)
    found = after.viewed[inner][:, :colours].astype(float).mean(axis=0) / top * 255
    assert abs(found - fill).max() < (8 if top == 255 else 30), (
        "deep ones are filled in the range that they use"
    )
    if before.viewed.shape[2] in (2, 4):
        assert np.array_equal(before.viewed[..., -1], after.viewed[..., -1])
    assert report.image.outside == "reencoded"
    assert len(data) <= 1.5 * len(SOURCES[name])


def codings(data: bytes) -> set[bytes]:
    """Chroma, depth and range, as the coded pictures' own boxes say."""
    file = read_items(data, "HEIC")
    found = set()
    for item in file.items.values():
        found |= {b"hvcC" + entry.body[16:19] for entry in item.all_of(b"hvcC")}
        found |= {b"av1C" + entry.body[2:3] for entry in item.all_of(b"av1C")}
        found |= {entry.body for entry in item.all_of(b"colr") if entry.body.startswith(b"nclx")}
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_depth_chroma_sampling_and_colour_space_stay(bench: Bench, name: str) -> None:
    height, width = look(SOURCES[name]).viewed.shape[:2]
    _, data = served(bench, SOURCES[name], MARK[:height, :width])

    assert codings(data) == codings(SOURCES[name]), "also alpha's, which was not touched"


def recoloured(data: bytes, matrix: int, *, full: bool) -> bytes:
    """The same samples, said to be coded by another matrix (ISO/IEC 23091-2) and range."""
    at = data.index(b"colrnclx") + 8
    colour = struct.pack(">HHHB", 1, 13, matrix, 0x80 if full else 0)
    return data[:at] + colour + data[at + 7 :]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("matrix", [1, 2, 9])
@pytest.mark.parametrize("name", ["heic 4:4:4", "avif 4:4:4", "avif 10 bits"])
def test_colours_stay_however_they_were_coded(bench: Bench, name: str, matrix: int, full: bool) -> None:  # noqa: FBT001 - a parameter of the test
    if matrix == 2 and "avif" in name:
        matrix = 5  # what an unspecified matrix is, libvips and Pillow do not agree on
    data = recoloured(SOURCES[name], matrix, full=full)
    before = look(data).viewed
    _, result = served(bench, data)

    after = look(result).viewed
    assert psnr(before[~NEAR], after[~NEAR]) > 37
    assert (
        abs(before[~NEAR].mean(axis=0) - after[~NEAR].mean(axis=0)).max() < np.iinfo(before.dtype).max / 100
    )


@pytest.mark.parametrize("name", ["heic in tiles", "heic in tiles 4:2:0"])
def test_tiles_stay_tiles_of_one_configuration(bench: Bench, name: str) -> None:
    before = pillow_heif.open_heif(SOURCES[name])
    _, data = served(bench, SOURCES[name])

    assert before.info["tiling"] == pillow_heif.open_heif(data).info["tiling"]
    file = read_items(data, "HEIC")
    tiles = file.targets(file.primary, b"dimg")
    assert len({file.items[number].all_of(b"hvcC")[0].raw for number in tiles}) == 1


@pytest.mark.parametrize("quality", [40, 65, 90, -1])
@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_a_result_is_as_fine_and_as_large_as_its_source(bench: Bench, kind: str, quality: int) -> None:
    large = photo(400, 300)
    if kind == "heic":
        data = heic(large, quality=quality, subsampling="4:2:0")
    else:
        data = avif(large, quality=100 if quality < 0 else quality, subsampling="4:2:0")
    report, result = served(bench, data, rectangle(400, 300, (200, 150, 240, 190)))

    before, after = look(data).viewed, look(result).viewed
    far = ~rectangle(400, 300, (180, 130, 260, 210))
    assert 0.6 <= len(result) / len(data) <= 1.25
    from_scene = psnr(large[far], before[far])
    assert psnr(large[far], after[far]) > min(from_scene - 3, 40)
    # Halved chroma is averaged and interpolated anew, by libavif more than by libheif; grain shows it most.
    near = 32 if 0 <= quality < 80 else 38 if kind == "avif" else 44
    assert psnr(before[far], after[far]) > near
    assert report.image.outside == "reencoded"


@pytest.mark.parametrize("name", ["heic 4:2:0", "avif 4:2:0"])
def test_a_quality_of_the_recipe_is_taken(bench: Bench, name: str) -> None:
    sizes = [len(served(bench, SOURCES[name], quality=quality)[1]) for quality in (20, 60, 98)]

    assert sizes[0] < 0.7 * sizes[1] < 0.5 * sizes[2]


def untransformed_avif() -> bytes:
    """OpenCV keeps the colours as they are at full quality, instead of making luma and chroma of them."""
    return cv2.imencode(".avif", PHOTO[..., ::-1], [cv2.IMWRITE_AVIF_QUALITY, 100])[1].tobytes()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: heic(GREY, quality=-1), id="grey HEIC"),
        pytest.param(lambda: heic(GREY, depth=10, quality=-1), id="grey HEIC of 10 bits"),
        pytest.param(lambda: avif(GREY, quality=100), id="grey AVIF"),
        pytest.param(untransformed_avif, id="AVIF whose colours are coded as they are"),
        pytest.param(lambda: deep_avif(10, quality=100), id="deep AVIF whose colours are coded as they are"),
    ],
)
def test_lossless_stays_lossless(bench: Bench, make: Callable[[], bytes]) -> None:
    data = make()
    report, result = served(bench, data)

    before, after = look(data).viewed, look(result).viewed
    assert np.array_equal(before[~MARK], after[~MARK])
    assert not np.array_equal(before[MARK], after[MARK])
    assert report.image.outside == "identical"


SEEN_THROUGH = np.where(MARK, 0, ALPHA // 2 + 100).astype(np.uint8)


def erased(kind: str) -> bytes:
    """A picture whose mark is transparent, coded without loss so that alpha is what it was."""
    pixels = np.dstack([GREY, SEEN_THROUGH] if "grey" in kind else [PHOTO, SEEN_THROUGH])
    if kind == "avif":
        return avif(pixels, quality=100)
    if kind == "avif, 10 bits":
        return deep_avif(10, quality=100, pixels=pixels)
    deep = heic(pixels, depth=10 if "10 bits" in kind else 8, quality=-1)
    if "alpha of 8" not in kind:
        return deep
    file, shallow = read_items(deep, "HEIC"), read_items(heic(pixels, quality=-1), "HEIC")
    (alpha,), (other,) = (one.sources(one.primary, b"auxl") for one in (file, shallow))
    file.items[alpha].data = shallow.items[other].data
    file.items[alpha].properties = shallow.items[other].properties
    return write_items(file)


@pytest.mark.parametrize(
    "kind",
    [
        "heic",
        "heic, grey",
        "heic, 10 bits",
        "heic, 10 bits grey",
        "heic, 10 bits, alpha of 8",
        "avif",
        "avif, 10 bits",
    ],
)
def test_erased_pixels_come_back_opaque_and_alpha_that_is_far_stays(bench: Bench, kind: str) -> None:
    data = erased(kind)
    before = look(data).viewed[..., -1].astype(int)
    assert np.array_equal(before == 0, MARK)

    report, staged = bench.done(put(bench, data), sources=("alpha",), grow_px=0)

    after = look(staged.read_bytes()).viewed
    assert report.marks == "alpha"
    rim = (
        cv2.dilate(MARK.astype(np.uint8), np.ones((65, 65), np.uint8)) > 0
    )  # as far as an eraser's edge goes
    assert np.array_equal(after[..., -1][~rim], before[~rim])
    opaque = np.iinfo(after.dtype).max
    assert after[..., -1][rim].min() > opaque * 0.998, "the highest of 10 bits"
    filled = after[50, 60, :3].astype(int) * 255 / opaque
    expected = (97, 97, 97) if "grey" in kind else FILL
    assert abs(filled - expected).max() < (10 if opaque == 255 else 30)


# --- the way up --------------------------------------------------------------------------------------------


def with_orientation(kind: str, orientation: int) -> bytes:
    """As phones write them: the turn stands in the container, and in EXIF too."""
    if kind == "heic":
        return heic(exif=exif_block(orientation))
    if kind == "heic in tiles":
        return heic(exif=exif_block(orientation), tile_size=64)
    return avif(exif=exif_block(orientation))


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [
        *((kind, orientation) for kind in ("heic", "avif") for orientation in range(1, 9)),
        ("heic in tiles", 5),
        ("heic in tiles", 6),
    ],
)
def test_it_is_seen_the_same_way_up(bench: Bench, kind: str, orientation: int) -> None:
    data = with_orientation(kind, orientation)
    before = look(data)
    height, width = before.viewed.shape[:2]
    assert (width, height) == ((H, W) if orientation >= 5 else (W, H))
    mark = rectangle(width, height, (8, 16, 40, 40))

    _, result = served(bench, data, mark)

    after = look(result)
    assert after.viewed.shape == before.viewed.shape
    near = cv2.dilate(mark.astype(np.uint8), np.ones((33, 33), np.uint8)).astype(np.bool_)
    assert psnr(before.viewed[~near], after.viewed[~near]) > 40
    assert abs(after.viewed[20:36, 12:36, :3].reshape(-1, 3).mean(axis=0) - FILL).max() < 8
    assert [after.facts[turn] for turn in ("irot", "imir")] == [
        before.facts[turn] for turn in ("irot", "imir")
    ]
    assert after.tags == before.tags


def test_a_picture_smaller_than_the_coder_likes_is_padded_before_it_is_turned(bench: Bench) -> None:
    """The coder adds a crop of its own, which must stand before the source's turn."""
    data = heic(PHOTO[:24, :40], exif=exif_block(6), subsampling="4:2:0")
    before = look(data).viewed
    assert before.shape[:2] == (40, 24)
    _, result = served(bench, data, rectangle(24, 40, (0, 0, 4, 4)))

    after = look(result).viewed
    assert b"clap" in result
    assert after.shape == before.shape
    assert psnr(before[24:], after[24:]) > 36


def test_an_orientation_in_exif_alone_turns_nothing_and_stays(bench: Bench) -> None:
    """The format gives it no meaning, and viewers follow the format; Xiaomi writes such files."""
    data = bytearray(heic(exif=exif_block(1)))
    (order,) = [order for order in "<>" if struct.pack(f"{order}HHIH", 0x0112, 3, 1, 1) in data]
    at = data.index(struct.pack(f"{order}HHI", 0x0112, 3, 1)) + 8
    data[at : at + 2] = struct.pack(f"{order}H", 6)
    before = look(bytes(data))
    assert before.viewed.shape[:2] == (H, W)

    _, result = served(bench, bytes(data))

    after = look(result)
    assert after.viewed.shape[:2] == (H, W)
    assert after.facts["irot"] is after.facts["imir"] is None
    assert after.tags["Image Orientation"] == before.tags["Image Orientation"] == [6]


def test_what_is_cut_off_before_it_is_turned_stays_off(bench: Bench) -> None:
    """A crop and a turn, in this order, as programs write them whose coder needs even sizes."""
    file = read_items(heic(exif=exif_block(6)), "HEIC")
    picture = file.items[file.primary]
    # Width, height, and where the middle lies from the whole's, as fractions (ISO/IEC 14496-12, 12.1.4):
    # 20 columns less on the right, and 10 rows less above and below together.
    crop = struct.pack(">I4s8i", 40, b"clap", W - 20, 1, H - 10, 1, -10, 1, 0, 1)
    turns = [entry for entry in picture.properties if entry.kind == b"irot"]
    assert len(turns) == 1
    others = [entry for entry in picture.properties if entry.kind != b"irot"]
    picture.properties = [*others, Property(crop, essential=True), *turns]
    data = write_items(file)
    before = look(data)
    assert before.viewed.shape[:2] == (W - 20, H - 10)
    mark = rectangle(H - 10, W - 20, (8, 16, 40, 40))

    _, result = served(bench, data, mark)

    after = look(result)
    assert after.viewed.shape == before.viewed.shape
    near = cv2.dilate(mark.astype(np.uint8), np.ones((33, 33), np.uint8)).astype(np.bool_)
    assert psnr(before.viewed[~near], after.viewed[~near]) > 40
    assert abs(after.viewed[20:36, 12:36].reshape(-1, 3).mean(axis=0) - FILL).max() < 8


# --- what travels with it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_metadata_and_profiles_are_kept(bench: Bench, kind: str) -> None:
    block = exif_block(None)
    if kind == "heic":
        data = heic(exif=block, xmp=XMP, icc_profile=rgb_profile())
    else:
        data = avif(exif=block, xmp=XMP, icc_profile=rgb_profile())
    before = look(data)
    report, result = served(bench, data)

    after = look(result)
    for name in ("xmp-data", "icc-profile-data"):
        assert after.facts[name] == before.facts[name]
    assert after.facts["icc-profile-data"] == rgb_profile()
    assert after.tags == before.tags
    assert {"Image Make", "GPS GPSLatitude"} <= after.tags.keys()
    assert report.image.dropped_metadata == ()


@pytest.mark.parametrize("make", [heic, avif], ids=["heic", "avif"])
def test_without_metadata_the_colours_and_the_turn_stay(bench: Bench, make: Any) -> None:
    data = make(exif=exif_block(6), xmp=XMP, icc_profile=rgb_profile())
    before = look(data)
    mark = rectangle(H, W, (20, 20, 40, 40))
    report, result = served(bench, data, mark, keep_metadata=False)

    after = look(result)
    assert after.facts["icc-profile-data"] == rgb_profile()
    assert after.facts["irot"] == before.facts["irot"] is not None
    assert not after.tags
    assert b"xpacket" not in result
    assert set(report.image.dropped_metadata) == {"EXIF", "XMP"}


def thumbnail_of_exif() -> bytes:
    """An EXIF block with a thumbnail."""
    image = Image.fromarray(PHOTO)
    small = io.BytesIO()
    image.resize((32, 24)).save(small, "JPEG")
    jpeg = small.getvalue()
    first = struct.pack("<HHHIII", 1, 0x010F, 2, 4, 0x00414141, 26)
    second = struct.pack("<HHHIIHHIII", 2, 513, 4, 1, 56, 514, 4, 1, len(jpeg), 0)
    return b"II*\x00" + struct.pack("<I", 8) + first + second + jpeg


def test_a_thumbnail_in_exif_no_longer_shows_the_mark(bench: Bench) -> None:
    data = heic(exif=thumbnail_of_exif())
    assert b"\xff\xd8\xff" in data
    report, result = served(bench, data)

    assert b"\xff\xd8\xff" not in result
    assert b"AAA" in result
    assert "EXIF thumbnail" in report.image.dropped_metadata


def test_thumbnails_are_left_out_and_named(bench: Bench) -> None:
    data = heic(photo(240, 180), thumbnails=[64, 128])
    assert pillow_heif.open_heif(data).info["thumbnails"] == [64, 128]
    report, result = served(bench, data, rectangle(240, 180, (40, 40, 80, 80)))

    assert pillow_heif.open_heif(result).info["thumbnails"] == []
    assert len(read_items(result, "HEIC").items) == 1
    assert report.image.dropped_metadata == ("thumbnail",)


def pair(**options: Any) -> ItemFile:
    """Two pictures in one file."""
    file = pillow_heif.from_bytes("RGB", (W, H), PHOTO.tobytes())
    file.add_frombytes("L", (W, H), GREY.tobytes())
    target = io.BytesIO()
    file.save(target, quality=60, enc_params={"preset": "veryfast"}, **options)
    return read_items(target.getvalue(), "HEIC")


def companion(kind: str, name: bytes = b"") -> bytes:
    """A file whose second picture serves the first."""
    file = pair()
    first, second = file.items
    file.references.append(Reference(kind.encode(), second, (first,)))
    if name:
        body = bytes(4) + name + b"\x00"
        box = struct.pack(">I4s", 8 + len(body), b"auxC") + body
        file.items[second].properties.append(Property(box, essential=True))
    return write_items(file)


@pytest.mark.parametrize(
    ("auxiliary", "name"),
    [
        (b"urn:com:apple:photo:2020:aux:hdrgainmap", "gain map"),
        (b"urn:mpeg:hevc:2015:auxid:2", "depth map"),
        (b"urn:com:apple:photo:2018:aux:portraiteffectsmatte", "matte"),
        (b"urn:com:example:aux:something", "auxiliary picture"),
    ],
)
def test_depth_gain_and_matte_would_show_the_removed_and_are_left_out(
    bench: Bench, auxiliary: bytes, name: str
) -> None:
    data = companion("auxl", auxiliary)
    seen = pillow_heif.open_heif(data).info
    assert len(seen["depth_images"]) + len(seen["aux"]) > 0, "the independent reader takes it for one"
    report, result = served(bench, data)

    after = pillow_heif.open_heif(result).info
    assert not after["depth_images"]
    assert not after["aux"]
    assert len(read_items(result, "HEIC").items) == 1
    assert report.image.dropped_metadata == (name,)


def with_gain_map() -> bytes:
    """As the newest phones write it: a picture derived from the picture and a map, to be shown first."""
    file = pair()
    first, second = file.items
    entry = struct.pack(">I4sIHH4s", 21, b"infe", 2 << 24, 3, 0, b"tmap") + b"\x00"
    derived = Item(3, b"tmap", entry, data=b"\x00" * 40 + b"\x01")
    derived.properties = list(file.items[first].all_of(b"ispe"))
    file.items[3] = derived
    file.references.append(Reference(b"dimg", 3, (first, second)))
    box = struct.pack(">I4sIIIII", 28, b"altr", 0, 9, 2, 3, first)
    file.groups.append(Group(b"altr", (3, first), box))
    file.file_type = struct.pack(">I", len(file.file_type) + 4) + file.file_type[4:] + b"tmap"
    return write_items(file)


def test_a_gain_map_and_what_is_derived_by_it_go_and_no_brand_promises_it(bench: Bench) -> None:
    data = with_gain_map()
    assert b"tmap" in data[:40]
    report, result = served(bench, data)

    assert b"tmap" not in result
    assert b"altr" not in result
    assert len(read_items(result, "HEIC").items) == 1
    assert report.image.dropped_metadata == ("gain map",)
    assert pillow_heif.open_heif(result).size == (W, H)


def test_a_motion_clip_behind_the_picture_is_left_out_and_xmp_says_so(bench: Bench) -> None:
    xmp = XMP.replace(b"xmp:Rating", b'GCamera:MotionPhoto="1" xmp:Rating').replace(
        b"xmlns:xmp", b'xmlns:GCamera="http://ns.google.com/photos/1.0/camera/" xmlns:xmp'
    )
    clip = struct.pack(">I4s", 8 + 4000, b"mpvd") + bytes(range(250)) * 16
    report, result = served(bench, heic(xmp=xmp) + clip)

    assert b"mpvd" not in result
    assert b'MotionPhoto="1"' not in result
    assert b"Rating" in result
    assert report.image.dropped_metadata == ("motion photo clip",)


def test_what_is_unknown_beside_the_picture_is_not_passed_on(bench: Bench) -> None:
    """It may be a preview. A name out of the file can't do harm where it is shown."""
    box = struct.pack(">I4s", 24, b"\x1b[2J") + b"a preview of it "
    metadata = [{"type": "zzzz", "content_type": "", "data": b"a preview of it"}]
    report, result = served(bench, heic(metadata=metadata) + box)

    assert b"preview" not in result
    assert report.image.dropped_metadata == ("box '?[2J'", "item 'zzzz'")


# --- refused -----------------------------------------------------------------------------------------------


def burst() -> bytes:
    return write_items(pair())


def stereo() -> bytes:
    file = pair()
    box = struct.pack(">I4sIIIII", 28, b"ster", 0, 9, 2, *file.items)
    file.groups.append(Group(b"ster", tuple(file.items), box))
    file.groups.append(Group(b"altr", tuple(file.items), box.replace(b"ster", b"altr")))
    return write_items(file)


def premultiplied() -> bytes:
    file = read_items(heic(alpha=True), "HEIC")
    first, second = file.items
    file.references.append(Reference(b"prem", first, (second,)))
    return write_items(file)


def of_kind(kind: bytes) -> bytes:
    """A picture whose item says to be of another kind."""
    file = read_items(heic(), "HEIC")
    item = file.items[file.primary]
    item.entry = item.entry.replace(b"hvc1", kind)
    return write_items(file)


def with_property(kind: bytes) -> bytes:
    file = read_items(heic(), "HEIC")
    box = struct.pack(">I4sI", 12, kind, 0)
    file.items[file.primary].properties.append(Property(box, essential=True))
    return write_items(file)


def sequence() -> bytes:
    """A film of pictures, by its brand."""
    data = bytearray(heic())
    data[8:12] = b"hevc"
    return bytes(data)


def full_chroma() -> bytes:
    """An AVIF of 10 bits that says to have full chroma."""
    data = bytearray(deep_avif(10))
    data[data.index(b"av1C") + 6] &= 0xF3
    return bytes(data)


def under_a_general_brand(name: str) -> bytes:
    """The same, by a brand that HEIC and AVIF share; the codec's stands among the compatible ones."""
    data = SOURCES[name]
    codec = b"heic" if name.startswith("heic") else b"avif"
    file = read_items(data, "HEIC")
    file.file_type = struct.pack(">I4s4sI4s4s4s", 28, b"ftyp", b"mif1", 0, b"miaf", b"mif1", codec)
    return write_items(file)


@pytest.mark.parametrize("name", ["heic 4:2:0", "avif 4:2:0"])
def test_a_general_brand_leaves_it_to_the_compatible_ones(bench: Bench, name: str) -> None:
    report, result = served(bench, under_a_general_brand(name))

    assert report.image.format == name[:4].upper()
    assert result[8:12] == b"mif1"


def animation() -> bytes:
    frames = [Image.fromarray(photo(64, 64, seed)) for seed in (1, 2)]
    return by_pillow(frames[0], "AVIF", save_all=True, append_images=frames[1:], speed=10)


UNSUPPORTED: dict[str, tuple[Callable[[], bytes], str]] = {
    "burst": (burst, "2 pictures"),
    "stereo pair": (stereo, "2 pictures"),
    "sequence": (sequence, "animated"),
    "film in the file": (lambda: heic() + struct.pack(">I4s", 8, b"moov"), "animated"),
    "animated AVIF": (animation, "animated"),
    "composed": (lambda: of_kind(b"iovl"), "made in another way"),
    "JPEG inside": (lambda: of_kind(b"jpeg"), "made in another way"),
    "premultiplied": (premultiplied, "multiplies its colours"),
    "layers": (lambda: with_property(b"lhvC"), "layers"),
    "unknown property": (lambda: with_property(b"abcd"), "not known (type 'abcd')"),
    "10 bits, 4:4:4": (full_chroma, "10 bits"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_only_a_part_would_be_left_of_is_refused(bench: Bench, name: str) -> None:
    make, reason = UNSUPPORTED[name]
    report = refused(bench, make())

    assert report.code == "unsupported"
    assert reason in report.reason
    assert "drop" in report.remedy


def smaller(data: bytes) -> bytes:
    """The same, but it says to be of 8 x 8 pixels."""
    size = struct.pack(">II", W, H)
    assert size in data
    return data.replace(size, struct.pack(">II", 8, 8))


def lost_tile() -> bytes:
    file = read_items(SOURCES["heic in tiles"], "HEIC")
    file.references = [
        Reference(one.kind, one.source, one.targets[:-1] if one.kind == b"dimg" else one.targets)
        for one in file.references
    ]
    return write_items(file)


def uneven_tiles() -> bytes:
    file = read_items(SOURCES["heic in tiles"], "HEIC")
    last = file.items[file.targets(file.primary, b"dimg")[-1]]
    last.properties = [
        Property(entry.raw.replace(struct.pack(">II", 64, 64), struct.pack(">II", 64, 96)), entry.essential)
        for entry in last.properties
    ]
    return write_items(file)


def repeated(data: bytes) -> bytes:
    """An item that is a thousand times the file's first bytes."""
    whole = write_items(read_items(data, "HEIC"))
    meta, start = whole.index(b"meta") - 4, whole.index(b"iloc") - 4
    number, method, elsewhere, _, offset, size = struct.unpack_from(">HHHHII", whole, start + 16)
    pieces = struct.pack(">II", 0, 1000) * 1000
    box = (
        struct.pack(">IBBHHHHHII", 1 << 24, 0x44, 0, 1, number, method, elsewhere, 1001, offset, size)
        + pieces
    )
    old = int.from_bytes(whole[start : start + 4], "big")
    longer = int.from_bytes(whole[meta : meta + 4], "big") + 8 + len(box) - old
    before = whole[:meta] + struct.pack(">I", longer) + whole[meta + 4 : start]
    return before + struct.pack(">I4s", 8 + len(box), b"iloc") + box + whole[start + old :]


DAMAGED: Made[bytes] = Made(
    {
        "HEIC coded larger than it says": lambda: smaller(
            heic(photo(W * 4, H * 4)).replace(struct.pack(">II", W * 4, H * 4), struct.pack(">II", W, H))
        ),
        "a tile less": lost_tile,
        "a tile of another size": uneven_tiles,
        "items that hold more than the file": lambda: repeated(heic()),
        "no configuration": lambda: heic().replace(b"hvcC", b"free"),
        "no size": lambda: heic().replace(b"ispe", b"free"),
        "no such picture": lambda: heic().replace(b"pitm\x00\x00\x00\x00\x00", b"pitm\x00\x00\x00\x00\x07"),
        "AVIF without a configuration": lambda: avif().replace(b"av1C", b"free"),
    }
)


@pytest.mark.parametrize("name", DAMAGED)
def test_what_contradicts_itself_is_refused_before_it_is_decoded(bench: Bench, name: str) -> None:
    report = refused(bench, DAMAGED[name])

    assert report.code in ("undecodable", "unsupported")
    assert report.image is None, "not even its size was believed"


@pytest.mark.parametrize("name", ["heic 4:2:0", "heic in tiles", "avif 4:2:0", "avif alpha"])
def test_more_pixels_than_are_allowed_are_refused_by_the_header(bench: Bench, name: str) -> None:
    bench.limits = Limits(max_pixels=W * H - 1)

    assert refused(bench, SOURCES[name]).code == "too_large"


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["heic 4:2:0", "heic in tiles", "avif 4:2:0", "avif alpha"])
def test_a_file_without_its_end_is_incomplete(bench: Bench, name: str, share: float) -> None:
    data = SOURCES[name]
    source = put(bench, data[: max(1, int(len(data) * share))])
    report = bench.serve(source, save_mask(bench.folder / "mask.png", MARK))

    assert isinstance(report, ItemIncomplete), report


@pytest.mark.parametrize("name", ["heic 4:2:0", "heic in tiles", "avif alpha"])
def test_a_last_box_without_a_length_is_measured_by_its_items(bench: Bench, name: str) -> None:
    data = bytearray(write_items(read_items(SOURCES[name], "HEIC")))
    at = data.index(b"mdat") - 4
    data[at : at + 4] = bytes(4)  # up to the end of the file
    report = bench.serve(put(bench, bytes(data[:-5])), save_mask(bench.folder / "mask.png", MARK))

    assert isinstance(report, ItemIncomplete), report
    assert served(bench, bytes(data))[0].outcome == "done"


@pytest.mark.parametrize("name", ["heic 4:2:0", "heic in tiles", "avif 4:2:0"])
def test_a_file_that_a_sync_client_only_reserved_is_incomplete(bench: Bench, name: str) -> None:
    data = SOURCES[name]
    for share in (0.3, 0.6):
        part = data[: int(len(data) * share)]
        report = bench.serve(put(bench, part.ljust(len(data), b"\x00")))
        assert isinstance(report, ItemIncomplete), report


# --- the package -------------------------------------------------------------------------------------------


def run_without_package(code: str) -> str:
    """Run a program in which pillow-heif cannot be imported."""
    program = "import sys\nsys.modules['pillow_heif'] = None\nsys.modules['_pillow_heif'] = None\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout


def test_without_the_package_it_says_what_to_install_and_serves_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(SOURCES["heic 4:2:0"])
    (tmp_path / "b.avif").write_bytes(SOURCES["avif 4:2:0"])
    save_mask(tmp_path / "mask.png", MARK)
    said = run_without_package(
        f"""
        from pathlib import Path
        from tests.worker.bench import Bench
        bench = Bench(Path({str(tmp_path)!r}))
        for name in ("a.heic", "b.avif"):
            report = bench.serve(bench.folder / name, bench.folder / "mask.png")
            print(type(report).__name__, getattr(report, "code", ""), getattr(report, "reason", ""),
                  getattr(report, "remedy", ""))
        """
    ).splitlines()

    assert said[0].startswith("ItemFailed unsupported this is a HEIC picture")
    assert "pip install pillow-heif" in said[0]
    assert "watcher retry --all" in said[0]
    assert said[1].startswith("ItemDone")


def test_a_package_that_can_only_read_is_told_of_before_any_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distributions build it without the coder."""
    monkeypatch.setattr(pillow_heif, "libheif_info", lambda: {"HEIF": "", "AVIF": ""})
    report = refused(bench, SOURCES["heic 4:2:0"])

    assert report.code == "unsupported"
    assert "read them only" in report.reason
    assert "pip install" in report.remedy


def test_pillow_is_not_told_of_the_package(tmp_path: Path) -> None:
    """What else opens a picture here, opens what is on the list, and not what a package brought with it."""
    (tmp_path / "a.heic").write_bytes(SOURCES["heic 4:2:0"])
    save_mask(tmp_path / "mask.png", MARK)
    program = f"""
        from pathlib import Path
        from PIL import Image
        from tests.worker.bench import Bench
        bench = Bench(Path({str(tmp_path)!r}))
        bench.done(bench.folder / "a.heic", bench.folder / "mask.png")
        Image.init()
        print("HEIF" in Image.OPEN, "HEIF" in Image.SAVE)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.stdout.split() == ["False", "False"]


# --- anything at all ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["heic 4:2:0", "heic in tiles", "heic alpha", "avif 4:2:0", "avif alpha"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_files_get_exactly_one_answer(
    bench: Bench, name: str, damage: list[tuple[float, int]]
) -> None:
    data = bytearray(SOURCES[name])
    head = data.index(b"mdat")
    for where, value in damage:
        # Most of the damage goes into the boxes: the coded pictures are the decoders' own affair.
        data[int(where * min(len(data), head * 4 // 3))] = value
    bench.limits = Limits(max_pixels=1_000_000)
    report = bench.serve(put(bench, bytes(data)), save_mask(bench.folder / "mask.png", MARK))

    assert isinstance(report, ItemDone | ItemHeld | ItemFailed | ItemIncomplete)
    if isinstance(report, ItemFailed):
        assert report.code != "engine", report
    finals: list[FromWorker] = [
        one for one in bench.reports if isinstance(one, ItemDone | ItemHeld | ItemFailed | ItemIncomplete)
    ]
    assert len(finals) == 1


def test_a_colour_coding_that_cannot_be_written_is_named(bench: Bench) -> None:
    """Matrix 0 is R, G, B as they are, which x265 is not asked for."""
    source = bench.folder / "a.heic"
    image = pillow_heif.from_pillow(Image.fromarray(photo(160, 128)))
    image.save(source, quality=80, matrix_coefficients=0, chroma=444)
    mask = save_mask(bench.folder / "mask.png", rectangle(160, 128, (40, 40, 60, 60)))
    report, _ = bench.done(source, mask)
    assert [name for name in report.image.dropped_metadata if name.startswith("colour coding")]
