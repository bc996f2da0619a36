"""Pictures through the item server: what changes, what must not, and what the report says."""

from __future__ import annotations

import errno
import os
import stat
import struct
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import cv2
import msgspec
import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, JpegImagePlugin, PngImagePlugin

from tests.worker.bench import FILL, Bench, photo, rectangle, save_mask, sha256
from watcher.wire import ItemDone, ItemFailed, ItemHeld, ItemProgressed, Limits
from watcher.worker.engines.protocol import FillError
from watcher.worker.imaging.formats.jpeg.layout import jpeg_layout
from watcher.worker.imaging.formats.png.layout import png_layout
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

W, H = 160, 120
BOX = (60, 40, 90, 60)
MARK = rectangle(W, H, BOX)
HOLE = grown(MARK, 4)
PHOTO = photo(W, H)


def mask_file(bench: Bench, mask: NDArray[np.bool_] = MARK) -> Path:
    return save_mask(bench.folder / "mask.png", mask)


def save(bench: Bench, image: Image.Image, name: str, **options: Any) -> Path:
    path = bench.folder / name
    image.save(path, **options)
    return path


def rgba() -> Image.Image:
    alpha = np.full((H, W), 255, np.uint8)
    alpha[:20] = 0
    alpha[20:40] = 77
    return Image.fromarray(np.dstack([PHOTO, alpha]))


RGB = Image.fromarray(PHOTO)
PALETTE = RGB.quantize(64)
LOSSLESS = {
    "1.png": RGB.convert("1"),
    "l.png": RGB.convert("L"),
    "la.png": rgba().convert("LA"),
    "p.png": PALETTE,
    "p-full.png": RGB.quantize(256),
    "p-two.png": RGB.quantize(2),
    "rgb.png": RGB,
    "rgba.png": rgba(),
    "16.png": Image.fromarray((PHOTO[..., 0].astype(np.uint16) << 4) + 3),
    "rgb.bmp": RGB,
    "l.bmp": RGB.convert("L"),
    "p.bmp": PALETTE,
    "1.bmp": RGB.convert("1"),
    "p.gif": PALETTE,
    "l.gif": RGB.convert("L"),
    "rgb.tiff": RGB,
    "rgba.tiff": rgba(),
    "l.tiff": RGB.convert("L"),
    "1.tiff": RGB.convert("1"),
    "p.tiff": PALETTE,
    "16.tiff": Image.fromarray((PHOTO[..., 0].astype(np.uint16) << 4) + 3),
}
OPTIONS: dict[str, dict[str, Any]] = {}
for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
    LOSSLESS[f"{compression}.tiff"] = RGB
    OPTIONS[f"{compression}.tiff"] = {"compression": compression}
for name, image in (("rgb.webp", RGB), ("rgba.webp", rgba())):
    LOSSLESS[name] = image
    OPTIONS[name] = {"lossless": True, "exact": True}


@pytest.mark.kind("PA2", "PC6", "PC8", "PC9", "PB1")
@pytest.mark.parametrize("name", LOSSLESS)
def test_outside_the_grown_mask_lossless_formats_are_bit_identical(bench: Bench, name: str) -> None:
    source = save(bench, LOSSLESS[name], name, **OPTIONS.get(name, {}))
    report, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert (after.format, after.mode, after.size) == (before.format, before.mode, before.size)
        assert after.info.get("compression") == before.info.get("compression")
        old, new = (
            np.asarray(image.convert("RGBA") if image.mode == "P" else image) for image in (before, after)
        )
    changed = old != new
    if changed.ndim == 3:
        changed = changed.any(axis=-1)
    assert not changed[~HOLE].any()
    two_colours = name.startswith(("1.", "p-two"))
    assert changed[HOLE].mean() > (0.1 if two_colours else 0.9), "the hole was filled"
    assert len(np.unique(new[MARK].reshape(MARK.sum(), -1), axis=0)) == 1, "with the engine's one colour"
    assert report.outcome == "done"
    assert report.marks == "mask"
    assert report.image.hole_px == int(HOLE.sum())
    assert (report.image.width, report.image.height, report.image.crops) == (W, H, 1)
    assert report.reason is None


def test_the_fill_is_what_the_engine_said(bench: Bench) -> None:
    source = save(bench, RGB, "a.png")
    _, staged = bench.done(source, mask_file(bench))
    filled = np.asarray(Image.open(staged))
    assert (filled[MARK] == FILL).all(), "the rim around it is blended"
    (crop,) = bench.engine.seen
    assert crop.hole.sum() == HOLE.sum()


@pytest.mark.kind("PB2")
def test_the_engine_sees_the_pictures_own_pixels(bench: Bench) -> None:
    bench.done(save(bench, RGB, "a.png"), mask_file(bench))
    (crop,) = bench.engine.seen
    assert np.array_equal(crop.pixels[:H, :W], PHOTO)


@pytest.mark.kind("PA8")
@pytest.mark.parametrize(("grow_px", "expected"), [(0, MARK), (7, grown(MARK, 7)), (None, HOLE)])
def test_what_changes_is_the_mask_grown_as_asked(
    bench: Bench, grow_px: int | None, expected: NDArray[np.bool_]
) -> None:
    _, staged = bench.done(save(bench, RGB, "a.png"), mask_file(bench), grow_px=grow_px)
    changed = (np.asarray(Image.open(staged)) != PHOTO).any(axis=-1)
    assert not changed[~expected].any()
    assert changed[expected].all()


# --- palettes ----------------------------------------------------------------------------------------------


def test_a_palette_with_room_takes_the_fills_own_colours(bench: Bench) -> None:
    _, staged = bench.done(save(bench, PALETTE, "p.png"), mask_file(bench))
    with Image.open(staged) as after:
        assert after.mode == "P"
        assert (np.asarray(after.convert("RGB"))[HOLE] == FILL).all()


def test_indices_outside_stay(bench: Bench) -> None:
    _, staged = bench.done(save(bench, PALETTE, "p.png"), mask_file(bench))
    with Image.open(staged) as after:
        assert np.array_equal(np.asarray(after)[~HOLE], np.asarray(PALETTE)[~HOLE])


@pytest.mark.kind("PC6")
@pytest.mark.parametrize("key", [3, bytes([255, 255, 255, 0, 90])])
def test_a_palettes_transparency_stays(bench: Bench, key: int | bytes) -> None:
    source = save(bench, PALETTE, "p.png", transparency=key)
    _, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        old, new = np.asarray(before.convert("RGBA")), np.asarray(after.convert("RGBA"))
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert np.array_equal(old[..., 3], new[..., 3])


@pytest.mark.kind("PC6")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_fill_never_takes_the_colour_that_means_transparent(bench: Bench, mode: str) -> None:
    bench.engine.colour = (90, 90, 90)
    key: Any = (90, 90, 90) if mode == "RGB" else 90
    source = save(bench, RGB.convert(mode), "key.png", transparency=key)
    _, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert after.info["transparency"] == key
        old, new = np.asarray(before.convert("RGBA")), np.asarray(after.convert("RGBA"))
    assert (new[HOLE, 3] == 255).any()
    assert np.array_equal(old[..., 3], new[..., 3])


# --- alpha -------------------------------------------------------------------------------------------------


def erased(mode: str) -> Image.Image:
    alpha = np.full((H, W), 255, np.uint8)
    alpha[MARK] = 0
    alpha[BOX[1] - 6 : BOX[1] - 4, BOX[0] : BOX[2]] = 130
    image = Image.fromarray(np.dstack([np.where(MARK[..., None], 0, PHOTO).astype(np.uint8), alpha]))
    if mode == "P":
        palette = RGB.quantize(100)
        indices = np.asarray(palette).copy()
        indices[MARK] = 200
        image = Image.frombytes("P", (W, H), indices.tobytes())
        colours = np.zeros((201, 3), np.uint8)
        colours[:100] = np.array(palette.getpalette()).reshape(-1, 3)[:100]
        image.putpalette(colours.tobytes())
        image.info["transparency"] = 200
        return image
    return image.convert(mode)


@pytest.mark.parametrize(
    ("mode", "name"), [("RGBA", "e.png"), ("LA", "e.png"), ("P", "e.png"), ("P", "e.gif"), ("RGBA", "e.webp")]
)
def test_erased_pixels_come_back_opaque_and_other_alpha_stays(bench: Bench, mode: str, name: str) -> None:
    options = {"lossless": True, "exact": True} if name.endswith("webp") else {}
    source = save(bench, erased(mode), name, **options)
    report, staged = bench.done(source, sources=("mask", "alpha"))
    assert report.marks == "alpha"
    with Image.open(source) as before, Image.open(staged) as after:
        old, new = np.asarray(before.convert("RGBA")), np.asarray(after.convert("RGBA"))
    assert (old[MARK, 3] == 0).all()
    assert (new[MARK, 3] == 255).all()
    assert np.array_equal(old[~MARK, 3], new[~MARK, 3])
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert abs(new[MARK].astype(int)[:, 0] - new[MARK].astype(int)[0, 0]).max() == 0


def softly_erased(sigma_px: float) -> NDArray[np.uint8]:
    """Return the photo with a hole that a brush with a soft edge has made: (height, width, 4)."""
    share = cv2.GaussianBlur(MARK.astype(np.float64), (0, 0), sigma_px)
    alpha = 255 - np.round(np.minimum(1, 1.3 * share) * 255).astype(np.uint8)
    return np.dstack([PHOTO, alpha])


@pytest.mark.parametrize("sigma_px", [0.7, 2.5])
def test_the_rim_that_a_soft_eraser_leaves_was_erased_too(bench: Bench, sigma_px: float) -> None:
    pixels = softly_erased(sigma_px)
    alpha = pixels[..., 3]
    report, staged = bench.done(save(bench, Image.fromarray(pixels), "e.png"), sources=("alpha",), grow_px=0)
    with Image.open(staged) as after:
        new = np.asarray(after)
    assert report.image.hole_px == (alpha < 255).sum() > (alpha == 0).sum()
    assert (new[..., 3] == 255).all()
    assert (new[alpha < 255, :3] == FILL).all(), "nothing shines through of what was to go"
    assert np.array_equal(new[alpha == 255, :3], PHOTO[alpha == 255])


def test_what_is_half_transparent_elsewhere_is_the_pictures_own(bench: Bench) -> None:
    pixels = softly_erased(2.5)
    panes = np.zeros((H, W), np.bool_)
    panes[:10, :10] = panes[-10:, -10:] = True
    pixels[panes, 3] = 140
    assert not (panes & MARK).any()
    _, staged = bench.done(save(bench, Image.fromarray(pixels), "e.png"), sources=("alpha",))
    with Image.open(staged) as after:
        assert np.array_equal(np.asarray(after)[panes], pixels[panes])


def test_a_veil_over_all_of_the_picture_is_lifted_only_beside_what_was_erased(bench: Bench) -> None:
    alpha = np.full((H, W), 180, np.uint8)
    alpha[:2, :2] = 0
    source = save(bench, Image.fromarray(np.dstack([PHOTO, alpha])), "e.png")
    _, staged = bench.done(source, sources=("alpha",), grow_px=0)
    with Image.open(staged) as after:
        lifted = np.asarray(after)[..., 3] == 255
    assert lifted[:34, :34].all()
    assert lifted.sum() == 34 * 34


@pytest.mark.kind("PC6")
def test_colour_under_transparency_does_not_leak_into_what_the_model_sees(bench: Bench) -> None:
    array = np.dstack([PHOTO, np.full((H, W), 255, np.uint8)])
    array[:30] = (255, 0, 255, 0)
    bench.done(save(bench, Image.fromarray(array), "a.png"), mask_file(bench))
    (crop,) = bench.engine.seen
    assert not (crop.pixels[:30, :W] == (255, 0, 255)).all(axis=-1).any()


def test_a_mask_wins_over_alpha_where_it_comes_first(bench: Bench) -> None:
    source = save(bench, erased("RGBA"), "a.png")
    report, _ = bench.done(
        source, mask_file(bench, rectangle(W, H, (5, 5, 20, 20))), sources=("mask", "alpha")
    )
    assert report.marks == "mask"
    report, _ = bench.done(source, mask_file(bench), sources=("alpha", "mask"))
    assert report.marks == "alpha"


# --- JPEG --------------------------------------------------------------------------------------------------


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.kind("PC7", "PC8")
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(("quality", "progressive"), [(40, False), (92, True), (100, False)])
def test_jpeg_keeps_its_tables_and_the_outside(
    bench: Bench, subsampling: int, quality: int, *, progressive: bool
) -> None:
    options = {"quality": quality, "subsampling": subsampling, "progressive": progressive}
    source = save(bench, RGB, "a.jpg", **options)
    report, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert isinstance(before, JpegImagePlugin.JpegImageFile)
        assert isinstance(after, JpegImagePlugin.JpegImageFile)
        assert after.quantization == before.quantization
        assert JpegImagePlugin.get_sampling(after) == subsampling
        assert after.info.get("progressive") == before.info.get("progressive")
        far = ~grown(MARK, 24)
        assert np.array_equal(np.asarray(before)[far], np.asarray(after)[far])
        assert abs(np.asarray(after)[MARK].mean(axis=0) - FILL).max() < 20
    assert staged.stat().st_size <= 1.1 * source.stat().st_size
    assert (report.image.format, report.image.outside) == ("JPEG", "blocks")


@pytest.mark.kind("PC8")
def test_jpeg_of_grey_stays_grey(bench: Bench) -> None:
    source = save(bench, RGB.convert("L"), "a.jpg", quality=85)
    _, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert after.mode == "L"
        assert after.quantization == before.quantization  # type: ignore[attr-defined]  # a JPEG has it


def test_an_rgb_coded_jpeg_stays_one(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg", quality=90, keep_rgb=True)
    _, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert after.layer == before.layer  # type: ignore[attr-defined]  # a JPEG has it
        far = ~grown(MARK, 24)
        assert np.array_equal(np.asarray(before)[far], np.asarray(after)[far])


def test_the_recipes_quality_wins(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg", quality=95)
    report, staged = bench.done(source, mask_file(bench), quality=30)
    assert report.image.outside == "reencoded"
    assert staged.stat().st_size < source.stat().st_size / 2


def test_noise_at_the_highest_quality_can_be_encoded(bench: Bench) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (H * 4, W * 4, 3), dtype=np.uint8)
    source = save(bench, Image.fromarray(noise), "a.jpg", quality=100, subsampling=0)
    bench.done(source, mask_file(bench, rectangle(W * 4, H * 4, BOX)))


def test_a_lossy_webp_stays_close(bench: Bench) -> None:
    source = save(bench, RGB, "a.webp", quality=90)
    _, staged = bench.done(source, mask_file(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        far = ~grown(MARK, 24)
        assert psnr(np.asarray(before)[far], np.asarray(after)[far]) > 35


# --- orientation -------------------------------------------------------------------------------------------


@pytest.mark.kind("PC1", "PC2")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_masks_are_drawn_on_what_the_person_saw(bench: Bench, name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"exif": exif}
    if name.endswith("jpg"):
        options |= {"quality": 95, "subsampling": 0}
    if name.endswith("webp"):
        options |= {"lossless": True, "exact": True}
    source = save(bench, RGB, name, **options)
    with Image.open(source) as opened:
        seen = ImageOps.exif_transpose(opened)
        assert seen.size == ((H, W) if orientation >= 5 else (W, H))
    mark = rectangle(*seen.size, (10, 20, 30, 50))
    report, staged = bench.done(source, mask_file(bench, mark))
    with Image.open(staged) as after:
        if not name.endswith("tiff"):
            assert after.size == (W, H)
        assert after.getexif().get(0x0112, 1) == orientation
        viewed = np.asarray(ImageOps.exif_transpose(after)).astype(int)
    assert viewed.shape == np.asarray(seen).shape
    far, inside = ~grown(mark, 24), mark
    assert abs(viewed[far] - np.asarray(seen).astype(int)[far]).max() <= (12 if name.endswith("jpg") else 0)
    assert abs(viewed[inside] - FILL).max() <= (40 if name.endswith("jpg") else 0)
    assert staged.read_bytes().count(b"Exif\x00\x00") <= 1
    assert (report.image.width, report.image.height) == (W, H)


# --- metadata ----------------------------------------------------------------------------------------------

XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><xmp:Rating>5</xmp:Rating>%s</x:xmpmeta>'
XMP_THUMBNAIL = b"<xmp:Thumbnails><rdf:Alt>THUMBNAIL-BYTES</rdf:Alt></xmp:Thumbnails>"


@cache  # its header carries the second of its making
def profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def camera_exif() -> bytes:
    """EXIF with make, date, GPS, a maker note and a thumbnail of the picture."""
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0x9003] = "2026:11:30 10:00:00"
    exif.get_ifd(0x8769)[0x927C] = b"MAKERNOTE-WITH-OFFSETS"
    exif.get_ifd(0x8825)[1] = "N"
    block = bytearray(exif.tobytes().removeprefix(b"Exif\x00\x00"))
    order = "<" if block[:2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", block, 4)
    (count,) = struct.unpack_from(f"{order}H", block, first)
    struct.pack_into(f"{order}I", block, first + 2 + 12 * count, len(block))
    small = thumbnail()
    start = len(block) + 2 + 2 * 12 + 4
    block += struct.pack(f"{order}H", 2)
    block += struct.pack(f"{order}HHII", 0x0201, 4, 1, start) + struct.pack(
        f"{order}HHII", 0x0202, 4, 1, len(small)
    )
    block += struct.pack(f"{order}I", 0) + small
    return b"Exif\x00\x00" + bytes(block)


def thumbnail() -> bytes:
    target = BytesIO()
    RGB.resize((40, 30)).save(target, "JPEG")
    return target.getvalue()


@pytest.mark.kind("PC3", "PC4", "PC19")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_metadata_is_kept_but_for_pictures_of_the_picture(bench: Bench, name: str) -> None:
    options: dict[str, Any] = {"exif": camera_exif(), "icc_profile": profile(), "dpi": (300, 300)}
    if name.endswith("png"):
        information = PngImagePlugin.PngInfo()
        information.add_itxt("XML:com.adobe.xmp", (XMP % XMP_THUMBNAIL).decode())
        options["pnginfo"] = information
    else:
        options["xmp"] = XMP % XMP_THUMBNAIL
    source = save(bench, RGB, name, **options)
    assert thumbnail() in source.read_bytes()
    report, staged = bench.done(source, mask_file(bench, rectangle(H, W, (10, 20, 30, 50))))
    assert set(report.image.dropped_metadata) == {"EXIF thumbnail", "XMP thumbnail"}
    data = staged.read_bytes()
    assert thumbnail() not in data
    assert thumbnail()[20:200] not in data
    assert b"THUMBNAIL-BYTES" not in data
    assert b"MAKERNOTE-WITH-OFFSETS" in data
    with Image.open(source) as before, Image.open(staged) as after:
        assert after.info["icc_profile"] == before.info["icc_profile"]
        assert after.info.get("dpi") == before.info.get("dpi")
        assert dict(after.getexif()) == dict(before.getexif())
        assert after.getexif().get_ifd(0x8769) == before.getexif().get_ifd(0x8769)
        assert after.getexif().get_ifd(0x8825) == before.getexif().get_ifd(0x8825)
        assert b"<xmp:Rating>5" in str(after.info["xmp"]).encode() or b"<xmp:Rating>5" in after.info["xmp"]


@pytest.mark.kind("PC3", "PC4")
def test_without_metadata_colours_and_orientation_stay(bench: Bench) -> None:
    source = save(
        bench, RGB, "a.jpg", exif=camera_exif(), icc_profile=profile(), comment=b"secret", xmp=XMP % b""
    )
    mask = mask_file(bench, rectangle(H, W, (10, 20, 30, 50)))
    report, staged = bench.done(source, mask, keep_metadata=False)
    data = staged.read_bytes()
    assert b"secret" not in data
    assert b"Maker" not in data
    assert b"Rating" not in data
    with Image.open(staged) as after:
        assert after.getexif()[0x0112] == 6
        assert after.info["icc_profile"] == profile()
    assert {"EXIF", "XMP", "comment"} <= set(report.image.dropped_metadata)


@pytest.mark.kind("PC19")
def test_png_chunks_are_carried_as_they_are(bench: Bench) -> None:
    information = PngImagePlugin.PngInfo()
    information.add_text("Title", "a title")
    information.add_text("Long", "x" * 500, zip=True)
    information.add(b"gAMA", struct.pack(">I", 45455))
    information.add(b"cHRM", struct.pack(">8I", *range(8)))
    information.add(b"tIME", bytes(7))
    information.add(b"prVt", b"private, safe to copy")
    information.add(b"prVT", b"private, not safe to copy")
    source = save(bench, RGB, "a.png", pnginfo=information)
    report, staged = bench.done(source, mask_file(bench))
    before, after = png_layout(source.read_bytes()), png_layout(staged.read_bytes())
    kept = {chunk.kind: chunk.data for chunk in after.chunks}
    for chunk in before.chunks:
        if chunk.kind not in (b"IDAT", b"prVT"):
            assert kept[chunk.kind] == chunk.data, chunk.kind
    assert b"prVT" not in kept
    assert report.image.dropped_metadata == ("prVT",)


@pytest.mark.kind("PC5")
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_profile_of_another_class_does_no_harm(bench: Bench, mode: str) -> None:
    source = save(bench, RGB.convert(mode), "a.png", icc_profile=profile())
    bench.done(source, mask_file(bench))


@pytest.mark.kind("PC19")
def test_tiff_tags_are_kept_also_unknown_ones(bench: Bench) -> None:
    source = save(
        bench,
        RGB,
        "a.tiff",
        description="words",
        software="program",
        dpi=(300, 300),
        icc_profile=profile(),
        tiffinfo={65000: "unknown"},
    )
    report, staged = bench.done(source, mask_file(bench))
    with Image.open(staged) as after:
        assert after.tag_v2[270] == "words"  # type: ignore[attr-defined]  # a TIFF has it
        assert after.tag_v2[305] == "program"  # type: ignore[attr-defined]  # a TIFF has it
        assert after.info["dpi"] == (300, 300)
        assert after.info["icc_profile"] == profile()
    assert report.image.dropped_metadata == ()
    assert b"unknown" in staged.read_bytes()


def test_what_phones_append_is_dropped_and_named(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg", xmp=XMP % b'<x GCamera:MicroVideo="1" GCamera:MicroVideoOffset="99"/>')
    clip = b"\x00\x00\x00\x18ftypmp42" + bytes(range(256))
    source.write_bytes(source.read_bytes() + clip)
    report, staged = bench.done(source, mask_file(bench))
    data = staged.read_bytes()
    assert report.image.dropped_metadata == ("motion photo clip",)
    assert b"ftypmp42" not in data
    assert b"MicroVideo" not in data
    assert jpeg_layout(data).end == len(data)


def test_zero_padding_behind_a_jpeg_is_nothing(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg")
    source.write_bytes(source.read_bytes() + bytes(4096))
    report, _ = bench.done(source, mask_file(bench))
    assert report.image.dropped_metadata == ()


def mp_entries(data: bytes) -> list[int]:
    layout = jpeg_layout(data)
    payload = next(s.payload for s in layout.segments if s.payload.startswith(b"MPF\x00"))[4:]
    order = "<" if payload[:2] == b"II" else ">"
    at = payload.index(struct.pack(f"{order}HH", 0xB002, 7))
    size, offset = struct.unpack_from(f"{order}II", payload, at + 4)
    return [offset + start for start in range(0, size, 16)]


def with_mp_type(path: Path, kind: int) -> Path:
    data = bytearray(path.read_bytes())
    start = data.index(b"MPF\x00") + 4
    order = "<" if data[start : start + 2] == b"II" else ">"
    for entry in mp_entries(bytes(data))[1:]:
        struct.pack_into(f"{order}I", data, start + entry, kind)
    path.write_bytes(data)
    return path


@pytest.fixture
def mpo(bench: Bench) -> Path:
    path = bench.folder / "mpo.jpg"
    RGB.save(path, "MPO", save_all=True, append_images=[RGB.resize((40, 30))], quality=90)
    return path


@pytest.mark.parametrize("kind", [0x010001, 0x010002, 0])
def test_a_preview_or_gain_map_is_dropped_and_named(bench: Bench, mpo: Path, kind: int) -> None:
    report, staged = bench.done(with_mp_type(mpo, kind), mask_file(bench))
    assert "multi-picture index" in report.image.dropped_metadata
    assert "further pictures (preview, gain map, or other)" in report.image.dropped_metadata
    with Image.open(staged) as after:
        assert after.format == "JPEG"


@pytest.mark.parametrize("kind", [0x020001, 0x020002, 0x020003])
def test_a_stereo_or_burst_jpeg_is_refused(bench: Bench, mpo: Path, kind: int) -> None:
    report = bench.serve(with_mp_type(mpo, kind), mask_file(bench))
    assert isinstance(report, ItemFailed)
    assert report.code == "unsupported"


def test_mtime_and_mode_are_the_sources(bench: Bench) -> None:
    source = save(bench, RGB, "a.png")
    source.chmod(0o444)
    os.utime(source, ns=(1_000, 1_600_000_000_123_456_789))
    _, staged = bench.done(source, mask_file(bench))
    status = staged.stat()
    assert stat.S_IMODE(status.st_mode) == 0o644
    assert status.st_mtime_ns == 1_600_000_000_123_456_789


# --- large pictures ----------------------------------------------------------------------------------------


def test_12_megapixels_are_not_run_through_the_model(bench: Bench) -> None:
    big = np.tile(photo(400, 300), (10, 10, 1))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "Maker"
    source = save(bench, Image.fromarray(big), "a.jpg", quality=90, exif=exif)
    mask = mask_file(bench, rectangle(3000, 4000, (1000, 1500, 1300, 1700)))
    report, staged = bench.done(source, mask)
    assert report.image.model_px < 12_000_000 / 15
    assert max(crop.pixels[..., 0].size for crop in bench.engine.seen) <= 1_048_576
    with Image.open(source) as before, Image.open(staged) as after:
        assert (after.size, after.format) == (before.size, before.format)
        assert dict(after.getexif()) == dict(before.getexif())
        viewed, seen = (np.asarray(ImageOps.exif_transpose(image)) for image in (after, before))
    assert np.array_equal(viewed[:1400], seen[:1400])
    assert abs(viewed[1500:1700, 1000:1300].reshape(-1, 3).mean(axis=0) - FILL).max() < 4


def test_a_hole_over_the_budget_is_filled_coarsely_and_says_so(bench: Bench) -> None:
    bench.limits = Limits(crop_pixels=65536)
    source = save(bench, Image.fromarray(photo(900, 700)), "a.png")
    mark = rectangle(900, 700, (200, 150, 700, 550))
    report, staged = bench.done(source, mask_file(bench, mark))
    assert report.reason is not None
    assert "coarse" in report.reason
    assert report.image.model_px <= 65536
    after = np.asarray(Image.open(staged))
    hole = grown(mark, 4)
    assert np.array_equal(after[~hole], photo(900, 700)[~hole])
    assert np.abs(after[mark].mean(axis=0) - FILL).max() < 8
    assert after[mark].std(axis=0).min() > 1, "with the grain of what is around it"


# --- outcomes ----------------------------------------------------------------------------------------------


@pytest.mark.kind("PA11")
def test_nothing_marked_is_held(bench: Bench) -> None:
    report = bench.serve(save(bench, RGB, "a.png"), sources=("mask", "alpha", "sidecar", "colour"))
    assert isinstance(report, ItemHeld)
    assert (report.image.format, report.image.width, report.image.height) == ("PNG", W, H)
    assert list((bench.folder / "staging").iterdir()) == []


def test_an_opaque_alpha_channel_marks_nothing(bench: Bench) -> None:
    report = bench.serve(save(bench, RGB.convert("RGBA"), "a.png"), sources=("alpha",))
    assert isinstance(report, ItemHeld)


@pytest.mark.kind("PA11")
def test_nothing_marked_can_be_copied(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg")
    report, staged = bench.done(source, unmarked="copy")
    assert (report.outcome, report.reason, report.marks) == ("unchanged", "nothing marked", None)
    assert staged.read_bytes() == source.read_bytes()
    assert report.sha256_out == report.sha256_in


@pytest.mark.kind("PA11")
def test_an_empty_mask_copies_the_bytes(bench: Bench) -> None:
    source = save(bench, RGB, "a.jpg")
    report, staged = bench.done(source, mask_file(bench, np.zeros((H, W), np.bool_)))
    assert (report.outcome, report.marks) == ("unchanged", "mask")
    assert report.reason is not None
    assert "the mask is empty" in report.reason
    assert "its brightest pixel is 0 of 255" in report.reason
    assert staged.read_bytes() == source.read_bytes()
    assert bench.engine.seen == []


@pytest.mark.kind("PA12")
def test_an_all_white_mask_is_refused(bench: Bench) -> None:
    report = bench.serve(save(bench, RGB, "a.png"), mask_file(bench, np.ones((H, W), np.bool_)))
    assert isinstance(report, ItemFailed)
    assert report.code == "mask_covers_all"
    assert report.image is not None


@pytest.mark.kind("PA9")
def test_a_mask_over_most_of_the_picture_is_asked_about(bench: Bench) -> None:
    source = save(bench, Image.fromarray(PHOTO), "a.png")
    report, _ = bench.done(source, mask_file(bench, ~rectangle(W, H, (0, 0, 60, H))), grow_px=0)
    assert report.reason is not None
    assert "is it inverted?" in report.reason
    assert bench.done(source, mask_file(bench))[0].reason is None


@pytest.mark.kind("PA10")
def test_a_scaled_mask_is_said(bench: Bench) -> None:
    source = save(bench, Image.fromarray(PHOTO), "a.png")
    small = mask_file(bench, MARK[::2, ::2])
    report, _ = bench.done(source, small)
    height, width = MARK[::2, ::2].shape
    assert report.reason == f"the mask was scaled from {width}x{height} to the picture's size"


@pytest.mark.kind("PA10")
def test_a_mask_of_another_picture_is_refused(bench: Bench) -> None:
    report = bench.serve(save(bench, RGB, "a.png"), mask_file(bench, rectangle(50, 100, (1, 1, 9, 9))))
    assert isinstance(report, ItemFailed)
    assert report.code == "mask_mismatch"


@pytest.mark.kind("PA1", "PA3", "PA4")
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (8, 8), (17, 13), (8, 200), (3, 500), (203, 101)])
def test_odd_and_tiny_sizes_come_back_the_same(bench: Bench, size: tuple[int, int]) -> None:
    source = save(bench, Image.fromarray(photo(*size)), "a.png")
    mask = mask_file(bench, rectangle(*size, (0, 0, max(1, size[0] // 3), max(1, size[1] // 3))))
    report = bench.serve(source, mask)
    if size == (1, 1):
        assert isinstance(report, ItemFailed)
        assert report.code == "mask_covers_all"
        return
    assert isinstance(report, ItemDone)
    with Image.open(bench.folder / "staging" / "a.png.staged") as after:
        assert after.size == size


@pytest.mark.parametrize("error", [FillError("NaN"), MemoryError(), RuntimeError("odd"), KeyError("x")])
def test_an_engine_that_fails_fails_the_item_only(bench: Bench, error: Exception) -> None:
    source, mask = save(bench, RGB, "a.png"), mask_file(bench)
    bench.engine.error = error
    report = bench.serve(source, mask)
    assert isinstance(report, ItemFailed)
    assert report.code == "engine"
    assert report.remedy
    bench.engine.error = None
    bench.done(source, mask)


def test_a_full_staging_is_not_the_pictures_fault(bench: Bench) -> None:
    report = bench.serve(save(bench, RGB, "a.png"), mask_file(bench), staging=str(bench.folder / "nowhere"))
    assert isinstance(report, ItemFailed)
    assert report.code == "no_space"


def test_no_space_is_said_and_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("watcher.worker.imaging.files.os.utime", full)
    report = bench.serve(save(bench, RGB, "a.png"), mask_file(bench))
    assert isinstance(report, ItemFailed)
    assert report.code == "no_space"
    assert "space" in report.remedy
    assert list((bench.folder / "staging").iterdir()) == []


def test_changed_and_vanished_files_are_told_apart(bench: Bench) -> None:
    source, mask = save(bench, RGB, "a.png"), mask_file(bench)
    for changes, code in (
        ({"sha256": "0" * 64}, "changed"),
        ({"mark_file_sha256": "0" * 64}, "changed"),
        ({"source": str(bench.folder / "gone.png")}, "vanished"),
        ({"mark_file": str(bench.folder / "gone.png")}, "vanished"),
    ):
        report = bench.serve_item(msgspec.structs.replace(bench.item(source, mask), **changes))
        assert isinstance(report, ItemFailed)
        assert report.code == code, changes


@pytest.mark.kind("PA16")
def test_the_source_is_never_touched(bench: Bench) -> None:
    source, mask = save(bench, RGB, "a.png"), mask_file(bench)
    before = (sha256(source), sha256(mask), source.stat().st_mtime_ns)
    bench.done(source, mask)
    assert (sha256(source), sha256(mask), source.stat().st_mtime_ns) == before


# --- time --------------------------------------------------------------------------------------------------


def test_segments_tile_the_items_time(bench: Bench) -> None:
    source, mask = save(bench, RGB, "a.jpg"), mask_file(bench)
    for report in (
        bench.serve(source, mask),
        bench.serve(source),
        bench.serve(source, mask, sha256="0" * 64),
    ):
        assert isinstance(report, ItemDone | ItemHeld | ItemFailed)
        spent = sum(getattr(report.segments, name) for name in report.segments.__struct_fields__)
        total = report.times.finished_ns - report.times.started_ns
        assert total > 0
        assert spent == total
        assert report.times.batch_received_ns <= report.times.started_ns


def test_progress_names_each_phase_and_crop(bench: Bench) -> None:
    mark = rectangle(900, 700, (50, 50, 60, 60)) | rectangle(900, 700, (800, 600, 810, 610))
    bench.done(save(bench, Image.fromarray(photo(900, 700)), "a.png"), mask_file(bench, mark))
    progress = [report for report in bench.reports if isinstance(report, ItemProgressed)]
    assert {report.phase for report in progress} >= {
        "read",
        "decode",
        "mask",
        "preprocess",
        "inference",
        "composite",
    }
    assert [report.crop for report in progress if report.crop is not None] == [0, 1]


@pytest.mark.kind("PC16")
def test_names_that_are_not_utf8(bench: Bench) -> None:
    name = os.fsdecode(b"\xff-\xe9 \xf0\x9f\x98\x80.png")
    source = bench.folder / name
    RGB.save(source)
    bench.done(source, mask_file(bench))
