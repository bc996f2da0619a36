"""What others met with pictures and masks (kinds PA and PC), through the worker's front door.

Rules of this file:
- Pictures go in as files and come out as files; nothing of the worker's inside is asked. What is expected is
  worked out here by other means: OpenCV's decoders and dilation, and the bytes as the formats' standards lay
  them out.
- Memory is that of a real worker process, at its peak.
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from tests.worker.bench import FILL, Bench, FlatEngine, photo, rectangle, save_mask
from watcher.wire import Item, ItemDone, ItemFailed, ItemIncomplete, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tests.worker.bench import Conversation
    from watcher.worker.engines.protocol import Crop

    Mask = NDArray[np.bool_]

W, H = 160, 120
MARK = rectangle(W, H, (60, 40, 90, 60))
PHOTO = photo(W, H)
RGB = Image.fromarray(PHOTO)


def put(bench: Bench, data: bytes | Image.Image, name: str = "a.png", **options: Any) -> Path:
    path = bench.folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        data.save(path, **options)
    return path


def put_mask(bench: Bench, mask: Mask = MARK) -> Path:
    return save_mask(bench.folder / "mask.png", mask)


def encoded(image: Image.Image, container: str, **options: Any) -> bytes:
    target = BytesIO()
    image.save(target, container, **options)
    return target.getvalue()


def rgb_of(path: Path) -> NDArray[np.uint8]:
    """What a viewer shows, by OpenCV."""
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None, "OpenCV cannot read it"
    return np.asarray(pixels[..., ::-1], np.uint8)


def as_stored(path: Path) -> NDArray[Any]:
    """All channels in full depth, colours as BGR, by OpenCV."""
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None, "OpenCV cannot read it"
    return np.asarray(pixels)


def changed(before: NDArray[Any], after: NDArray[Any]) -> Mask:
    assert before.shape == after.shape
    differs: Mask = before != after
    return np.asarray(differs.any(axis=-1)) if differs.ndim == 3 else differs


def dilated(mask: Mask, radius_px: int) -> Mask:
    """The mask and every pixel that is not farther from it, by OpenCV's dilation with a drawn disc."""
    y, x = np.mgrid[-radius_px : radius_px + 1, -radius_px : radius_px + 1]
    disc = (x * x + y * y <= radius_px * radius_px).astype(np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), disc) > 0)


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


# --- size --------------------------------------------------------------------------------------------------

WIDTHS = [
    pytest.param([(width, height) for height in range(1, 18)], id=f"{width} px") for width in range(1, 18)
]


@pytest.mark.kind("PA1", "PA3", "PA4", "PB12")
@pytest.mark.parametrize("sizes", [*WIDTHS, [(203, 101), (640, 480), (8, 200), (200, 8), (3, 500), (500, 3)]])
def test_a_picture_of_any_size_comes_back_in_it(bench: Bench, sizes: Sequence[tuple[int, int]]) -> None:
    for width, height in sizes:
        mark = rectangle(width, height, (width // 2, height // 2, width // 2 + 1, height // 2 + 1))
        before = photo(width, height)
        report = bench.serve(put(bench, Image.fromarray(before)), put_mask(bench, mark), grow_px=0)
        if mark.all():
            assert isinstance(report, ItemFailed)
            assert report.code == "mask_covers_all"
            continue
        assert isinstance(report, ItemDone), report
        after = rgb_of(bench.folder / "staging" / "a.png.staged")
        assert after.shape == before.shape, "height, width"
        assert np.array_equal(changed(before, after), mark)
        assert (after[mark] == FILL).all()


# --- modes -------------------------------------------------------------------------------------------------

ALPHA = np.where(np.arange(W) < W // 4, 0, 255).astype(np.uint8)[np.newaxis].repeat(H, axis=0)
RGBA = Image.fromarray(np.dstack([PHOTO, ALPHA]))
DEEP = (PHOTO[..., 0].astype(np.uint16) << 8) + PHOTO[..., 1]
MODES = {
    "RGBA": (RGBA, "PNG"),
    "L": (RGB.convert("L"), "PNG"),
    "LA": (RGBA.convert("LA"), "PNG"),
    "P": (RGB.quantize(64, Image.Quantize.FASTOCTREE), "PNG"),
    "CMYK": (RGB.convert("CMYK"), "TIFF"),
    "I;16": (Image.fromarray(DEEP), "PNG"),
    "1": (RGB.convert("1"), "PNG"),
}
WHITE = Image.fromarray(MARK.astype(np.uint8) * np.uint8(255))
DRAWN = {mode: WHITE.convert(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")} | {
    "I;16": Image.fromarray(MARK.astype(np.uint16) * np.uint16(65535))
}


def channels(path: Path) -> NDArray[Any]:
    """The picture as its own mode has it; a palette's colours."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGBA") if image.mode == "P" else image)


@pytest.mark.kind("PA2")
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_picture_goes_with_every_mode_of_mask(bench: Bench, mode: str) -> None:
    image, container = MODES[mode]
    source = put(bench, encoded(image, container))
    for drawn, mask in DRAWN.items():
        path = bench.folder / f"mask-{drawn.replace(';', '-')}"
        path.write_bytes(encoded(mask, "PNG"))
        _, staged = bench.done(source, path, grow_px=0)
        with Image.open(staged) as after:
            assert (after.mode, after.size, after.format) == (mode, (W, H), container), drawn
        touched = changed(channels(source), channels(staged))
        assert not touched[~MARK].any(), drawn
        assert touched[MARK].mean() > (0.1 if mode == "1" else 0.9), drawn


# --- masks -------------------------------------------------------------------------------------------------


def soft_mask(blur_px: float) -> NDArray[np.uint8]:
    """A disc with an edge that fades over so many pixels."""
    y, x = np.mgrid[0:H, 0:W]
    distance = np.hypot(x - 80.3, y - 55.7) - 21
    return np.asarray((np.clip(0.5 - distance / blur_px, 0, 1) * 255).round(), np.uint8)


def odd_rectangle() -> NDArray[np.uint8]:
    """Edges on no block of a JPEG."""
    return rectangle(W, H, (51, 37, 91, 77)).astype(np.uint8) * np.uint8(255)


def decoded_grey(data: bytes) -> NDArray[np.uint8]:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert pixels is not None
    return np.asarray(pixels, np.uint8)


MASKS = {
    **{
        f"jpeg {quality}": encoded(Image.fromarray(odd_rectangle()), "JPEG", quality=quality)
        for quality in (50, 75, 95)
    },
    **{f"soft edge of {blur} px": encoded(Image.fromarray(soft_mask(blur)), "PNG") for blur in (1.5, 12)},
    "soft edge in a jpeg": encoded(Image.fromarray(soft_mask(6)), "JPEG", quality=80),
}


@pytest.mark.kind("PA6", "PA7", "PA8")
@pytest.mark.parametrize("grow_px", [0, 1, 9, None])
@pytest.mark.parametrize("name", MASKS)
def test_what_changes_is_what_is_half_white_and_the_asked_rim(
    bench: Bench, name: str, grow_px: int | None
) -> None:
    mask = bench.folder / "mask.jpg"
    mask.write_bytes(MASKS[name])
    grey = decoded_grey(MASKS[name])
    assert ((grey > 0) & (grey < 255)).any(), "this mask has nothing but black and white in it"

    _, staged = bench.done(put(bench, RGB), mask, grow_px=grow_px)

    wanted = dilated(grey >= 128, 4 if grow_px is None else grow_px)
    assert np.array_equal(changed(PHOTO, rgb_of(staged)), wanted)


@pytest.mark.kind("PA6")
@pytest.mark.parametrize("quality", [50, 75, 95])
def test_a_jpegs_noise_moves_no_edge(bench: Bench, quality: int) -> None:
    mask = bench.folder / "mask.jpg"
    mask.write_bytes(MASKS[f"jpeg {quality}"])
    _, staged = bench.done(put(bench, RGB), mask, grow_px=0)
    assert np.array_equal(changed(PHOTO, rgb_of(staged)), odd_rectangle() > 0), "1600 px, as they were drawn"


@pytest.mark.kind("PA8")
@pytest.mark.parametrize(("size", "grow_px"), [((400, 300), 4), ((1200, 200), 6), ((40, 2400), 12)])
def test_the_rim_that_goes_too_is_half_a_percent_of_the_long_side(
    bench: Bench, size: tuple[int, int], grow_px: int
) -> None:
    before = photo(*size)
    mark = rectangle(*size, (18, 150, 22, 154))
    _, staged = bench.done(put(bench, Image.fromarray(before)), put_mask(bench, mark))
    assert np.array_equal(changed(before, rgb_of(staged)), dilated(mark, grow_px))


@pytest.mark.kind("PA9", "PA12")
@pytest.mark.parametrize(
    "mask", [np.ones((H, W), np.bool_), ~rectangle(W, H, (60, 40, 90, 60)), ~rectangle(W, H, (0, 0, 3, 3))]
)
def test_a_mask_over_nearly_all_is_refused_and_asked_whether_it_is_inverted(bench: Bench, mask: Mask) -> None:
    report = bench.serve(put(bench, RGB), put_mask(bench, mask))
    assert isinstance(report, ItemFailed)
    assert report.code == "mask_covers_all"
    assert bench.engine.seen == []
    for word in ("white is filled", "black stays", "inverted"):
        assert word in report.remedy


@pytest.mark.kind("PA9")
@pytest.mark.parametrize(("share", "asked"), [(0.5, False), (0.62, True), (0.9, True)])
def test_a_mask_over_most_is_filled_and_asked_whether_it_is_inverted(
    bench: Bench, share: float, *, asked: bool
) -> None:
    mark = rectangle(W, H, (0, 0, round(share * W), H))
    report, staged = bench.done(put(bench, RGB), put_mask(bench, mark), grow_px=0)
    assert np.array_equal(changed(PHOTO, rgb_of(staged)), mark)
    assert (report.reason is not None and "inverted?" in report.reason) == asked


@pytest.mark.kind("PA10")
def test_a_mask_of_the_same_shape_is_scaled_and_another_shape_is_refused(bench: Bench) -> None:
    before = photo(203, 101)
    source = put(bench, Image.fromarray(before))

    report, staged = bench.done(source, put_mask(bench, rectangle(100, 50, (30, 10, 50, 30))), grow_px=0)

    assert report.reason is not None
    assert "100x50" in report.reason
    top, left, bottom, right = (round(edge * 2.02) for edge in (10, 30, 30, 50))
    touched = changed(before, rgb_of(staged))
    assert touched[top + 2 : bottom - 2, left + 2 : right - 2].all()
    touched[top - 2 : bottom + 2, left - 2 : right + 2] = False
    assert not touched.any()

    for size in ((50, 100), (101, 203), (120, 101)):
        refusal = bench.serve(source, put_mask(bench, rectangle(*size, (3, 3, 20, 20))))
        assert isinstance(refusal, ItemFailed)
        assert refusal.code == "mask_mismatch"
        assert f"{size[0]}x{size[1]}" in refusal.reason
        assert "203x101" in refusal.reason


# --- what was handed in ------------------------------------------------------------------------------------


@dataclass
class Scribbler(FlatEngine):
    """Uses the arrays that it is given as its own, as engines do that paint in place."""

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        results = super().fill(crops, progress=progress)
        self.seen[:] = [type(crop)(crop.pixels.copy(), crop.hole.copy()) for crop in self.seen]
        for crop in crops:
            crop.pixels[:] = 7
            crop.hole[:] = True
        return results


@pytest.mark.kind("PA16")
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_an_engine_that_paints_in_what_it_is_given_paints_in_copies(bench: Bench, mode: str) -> None:
    """Three holes: two in one call of the engine, and one beside them that sees them filled."""
    bench.engine = Scribbler()
    bench.limits = Limits(crop_pixels=65_536)
    size = (520, 400)
    mark = np.zeros(size[::-1], np.bool_)
    for left, top in ((20, 20), (30, 210), (430, 320)):
        mark[top : top + 60, left : left + 60] = True
    picture = Image.fromarray(photo(*size)).convert(mode)
    source = put(bench, picture)

    report, staged = bench.done(source, put_mask(bench, mark), grow_px=0)

    assert report.image.crops == len(bench.engine.seen) >= 2
    assert np.array_equal(changed(channels(source), channels(staged)), mark)
    shown = np.asarray(picture.convert("RGB"))
    for crop in bench.engine.seen:
        known = {tuple(colour) for colour in crop.pixels[~crop.hole].tolist()}
        assert (7, 7, 7) not in known or (shown == 7).all(axis=-1).any()


# --- colour profiles ---------------------------------------------------------------------------------------

P3 = ((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841))
ADOBE_RGB = ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446))
D50 = (0.9642, 1.0, 0.8249)


def fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def profile(space: str, primaries: Sequence[tuple[float, float, float]] = ()) -> bytes:
    """A colour profile (ICC.1:2001-04): RGB by primaries, GRAY by a curve, CMYK by nothing but its name."""
    curve = b"curv" + struct.pack(">IIH", 0, 1, round(2.2 * 256)) + bytes(2)
    name = f"{space} for tests".encode()
    tags = {
        b"desc": b"desc" + struct.pack(">II", 0, len(name) + 1) + name + bytes(1 + 8 + 3 + 67),
        b"wtpt": b"XYZ " + bytes(4) + fixed(*D50),
    }
    for letter, primary in zip(b"rgb", primaries, strict=False):
        tags[bytes([letter]) + b"XYZ"] = b"XYZ " + bytes(4) + fixed(*primary)
        tags[bytes([letter]) + b"TRC"] = curve
    if space == "GRAY":
        tags[b"kTRC"] = curve
    table, body = struct.pack(">I", len(tags)), b""
    for tag, content in tags.items():
        table += struct.pack(">4sII", tag, 128 + 4 + 12 * len(tags) + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    kind = b"prtr" if space == "CMYK" else b"mntr"
    header = struct.pack(">4xI4s4s4s", 0x02400000, kind, space.ljust(4).encode(), b"XYZ ")
    header = header.ljust(32, b"\0") + b"acsp" + bytes(28) + fixed(*D50)
    return struct.pack(">I", 128 + len(table) + len(body)) + (header.ljust(124, b"\0") + table + body)


PROFILES = {
    "RGB": {"Display P3": profile("RGB", P3), "Adobe RGB": profile("RGB", ADOBE_RGB)},
    "L": {"grey": profile("GRAY")},
}
KEEPS_PROFILES: dict[str, dict[str, Any]] = {
    "PNG": {},
    "JPEG": {"quality": 92},
    "WEBP": {"lossless": True, "exact": True},
    "TIFF": {},
}


@pytest.mark.kind("PC4")
@pytest.mark.parametrize(
    ("mode", "name", "container"),
    [
        (mode, name, container)
        for mode, names in PROFILES.items()
        for name in names
        for container in KEEPS_PROFILES
        if (mode, container) != ("L", "WEBP")
    ],
)
def test_a_profile_stays_byte_for_byte_and_no_colour_is_converted(
    bench: Bench, mode: str, name: str, container: str
) -> None:
    wanted = PROFILES[mode][name]
    source = put(
        bench, encoded(RGB.convert(mode), container, icc_profile=wanted, **KEEPS_PROFILES[container])
    )
    report, staged = bench.done(source, put_mask(bench))
    with Image.open(staged) as after:
        assert (after.info["icc_profile"], after.mode) == (wanted, mode)
    assert report.image.dropped_metadata == ()
    far = ~dilated(MARK, 24)
    before, after_pixels = as_stored(source), as_stored(staged)
    if container == "JPEG":
        assert psnr(before[far], after_pixels[far]) > 40
    else:
        assert np.array_equal(before[far], after_pixels[far])


HOLDS_PROFILES = {
    "PNG": ("L", "RGB", "P", "RGBA", "LA"),
    "JPEG": ("L", "RGB"),
    "TIFF": ("L", "RGB", "P", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
}


@pytest.mark.kind("PC5")
@pytest.mark.parametrize(
    ("container", "mode"),
    [(container, mode) for container, modes in HOLDS_PROFILES.items() for mode in modes],
)
def test_a_profile_of_another_kind_stays_or_is_named(bench: Bench, container: str, mode: str) -> None:
    profiles = {space: profile(space, P3 if space == "RGB" else ()) for space in ("RGB", "GRAY", "CMYK")}
    image = RGB.quantize(64) if mode == "P" else RGBA.convert(mode)
    for odd in (*profiles.values(), b"no profile at all" * 20, profiles["RGB"][:200]):
        source = put(bench, encoded(image, container, icc_profile=odd))
        report, staged = bench.done(source, put_mask(bench))
        with Image.open(staged) as after:
            assert after.mode == mode
            after.load()
            kept = after.info.get("icc_profile")
        assert kept == odd or any("profile" in name for name in report.image.dropped_metadata)


# --- containers and their size -----------------------------------------------------------------------------

BIG = Image.fromarray(photo(640, 480))
SMALLEST: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
    "jpeg 60": (BIG, "JPEG", {"quality": 60, "optimize": True}),
    "jpeg 95": (BIG, "JPEG", {"quality": 95, "subsampling": 0}),
    "progressive jpeg": (BIG, "JPEG", {"quality": 80, "progressive": True}),
    "grey jpeg": (BIG.convert("L"), "JPEG", {"quality": 75}),
    "png": (BIG, "PNG", {"optimize": True}),
    "png of 16 colours": (BIG.quantize(16, Image.Quantize.FASTOCTREE), "PNG", {"optimize": True, "bits": 4}),
    "png of 2 colours": (BIG.convert("1"), "PNG", {"optimize": True}),
    "webp": (BIG, "WEBP", {"quality": 75}),
    "lossless webp": (BIG, "WEBP", {"lossless": True, "exact": True, "method": 6}),
    "tiff": (BIG, "TIFF", {}),
    "lzw tiff": (BIG, "TIFF", {"compression": "tiff_lzw"}),
    "deflated tiff": (BIG, "TIFF", {"compression": "tiff_adobe_deflate"}),
    "fax tiff": (BIG.convert("1"), "TIFF", {"compression": "group4"}),
    "jpeg tiff": (BIG, "TIFF", {"compression": "jpeg", "quality": 75}),
    "gif": (BIG.quantize(64, Image.Quantize.FASTOCTREE), "GIF", {}),
    "bmp": (BIG, "BMP", {}),
}


@pytest.mark.kind("PC7")
@pytest.mark.parametrize("name", SMALLEST)
def test_a_file_keeps_its_container_and_about_its_size(bench: Bench, name: str) -> None:
    image, container, options = SMALLEST[name]
    source = put(bench, encoded(image, container, **options))
    mark = rectangle(*image.size, (300, 200, 340, 240))
    _, staged = bench.done(source, put_mask(bench, mark))
    with Image.open(source) as before, Image.open(staged) as after:
        assert (after.format, after.mode) == (before.format, before.mode)
        assert after.info.get("compression") == before.info.get("compression")
    assert staged.stat().st_size <= 1.5 * source.stat().st_size


# --- JPEG and WebP -----------------------------------------------------------------------------------------

JPEGS = {
    "4:4:4": {"quality": 90, "subsampling": 0},
    "4:2:2": {"quality": 75, "subsampling": 1},
    "4:2:0": {"quality": 50, "subsampling": 2},
    "progressive": {"quality": 85, "progressive": True, "subsampling": 2},
    "optimised": {"quality": 95, "optimize": True, "subsampling": 2},
    "restart markers": {"quality": 90, "restart_marker_blocks": 3},
}


@pytest.mark.kind("PC8")
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_loses_nothing_where_nothing_was_marked(bench: Bench, name: str, mode: str) -> None:
    """Blocks of the source stay as they are; what upsampling mixes across a block's edge is left out."""
    source = put(bench, encoded(RGB.convert(mode), "JPEG", **JPEGS[name]))
    _, staged = bench.done(source, put_mask(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert isinstance(before, JpegImagePlugin.JpegImageFile)
        assert isinstance(after, JpegImagePlugin.JpegImageFile)
        assert after.quantization == before.quantization
        assert JpegImagePlugin.get_sampling(after) == JpegImagePlugin.get_sampling(before)
        assert after.info.get("progressive") == before.info.get("progressive")
    one, other = as_stored(source), as_stored(staged)
    hole = dilated(MARK, 4)
    rows, columns = np.nonzero(hole)
    outside = np.ones_like(hole)
    outside[
        rows.min() // 16 * 16 - 2 : rows.max() // 16 * 16 + 18,
        columns.min() // 16 * 16 - 2 : columns.max() // 16 * 16 + 18,
    ] = False
    assert outside.mean() > 0.7
    assert np.array_equal(one[outside], other[outside])
    assert psnr(one[~hole], other[~hole]) > 40
    assert abs(rgb_of(staged)[MARK].mean(axis=0) - FILL).max() < 20 or mode == "L"


@pytest.mark.kind("PC8")
def test_a_lossless_webp_stays_lossless_and_a_lossy_one_lossy(bench: Bench) -> None:
    for options, chunk in (({"lossless": True, "exact": True}, b"VP8L"), ({"quality": 80}, b"VP8 ")):
        source = put(bench, encoded(RGB, "WEBP", **options))
        _, staged = bench.done(source, put_mask(bench))
        assert [chunk in path.read_bytes() for path in (source, staged)] == [True, True]
        far = ~dilated(MARK, 24)
        before, after = rgb_of(source), rgb_of(staged)
        assert psnr(before[far], after[far]) > (90 if chunk == b"VP8L" else 35)


# --- 16 bits -----------------------------------------------------------------------------------------------


def deep(channel_count: int) -> NDArray[np.uint16]:
    """A dim picture of 16 bits, so that what clips at 8 bits is white, and what cuts to 8 bits is coarse."""
    random = np.random.default_rng(6)
    y, x = np.mgrid[0:H, 0:W]
    base = np.stack([900 + 40 * x, 3000 + 25 * y, 700 + 9 * x + 11 * y, np.full_like(x, 65535)], axis=-1)
    grain = random.integers(0, 97, base.shape)
    grain[..., 3] = 0
    picture = (base + grain).astype(np.uint16)
    return picture[..., 0] if channel_count == 1 else picture[..., :channel_count]


def big_endian_tiff(grey: NDArray[np.uint16]) -> bytes:
    """Uncompressed grey of 16 bits, most significant byte first (TIFF 6.0)."""
    height, width = grey.shape
    fields = ((256, width), (257, height), (258, 16), (259, 1), (262, 1), (273, 150), (277, 1), (278, height))
    entries = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in fields)
    entries += struct.pack(">HHII", 279, 4, 1, 2 * grey.size)
    ifd = struct.pack(">H", len(fields) + 1) + entries + bytes(4)
    return (b"MM\0*" + struct.pack(">I", 8) + ifd).ljust(150, b"\0") + grey.astype(">u2").tobytes()


DEEP_FILES = {
    "grey png": (".png", 1),
    "colour png": (".png", 3),
    "png with alpha": (".png", 4),
    "grey tiff": (".tiff", 1),
    "colour tiff": (".tiff", 3),
}


@pytest.mark.kind("PC9")
@pytest.mark.parametrize("name", [*DEEP_FILES, "big-endian grey tiff"])
def test_16_bits_go_in_and_come_out(bench: Bench, name: str) -> None:
    if name in DEEP_FILES:
        suffix, count = DEEP_FILES[name]
        array = deep(count)
        done, data = cv2.imencode(suffix, array)
        assert done
        source = put(bench, data.tobytes())
    else:
        array = deep(1)
        source = put(bench, big_endian_tiff(array))
    assert np.array_equal(as_stored(source), array), "OpenCV reads what was written"

    _, staged = bench.done(source, put_mask(bench), grow_px=0)

    after = as_stored(staged)
    assert after.dtype == np.uint16
    assert np.array_equal(after[~MARK], array[~MARK])
    colours = after[MARK].reshape(MARK.sum(), -1)[:, :3]
    assert changed(array, after)[MARK].mean() > 0.9
    known = array[~MARK].reshape((~MARK).sum(), -1)[:, :3]
    assert known.min() <= colours.min() <= colours.max() <= known.max(), "within what the picture has"
    if array.ndim == 3 and array.shape[2] == 4:
        assert (after[..., 3] == 65535).all()


# --- CMYK --------------------------------------------------------------------------------------------------

INKS = RGB.convert("CMYK")


def as_rgb(inks: NDArray[Any]) -> NDArray[np.float64]:
    """The colours that inks (n, 4) of 0..255 make, without any profile: red is what cyan and black leave."""
    left = 255.0 - inks.astype(float)
    return np.asarray(left[:, :3] * left[:, 3:] / 255)


@pytest.mark.kind("PC10")
@pytest.mark.parametrize("container", ["JPEG", "TIFF"])
def test_inks_stay_inks_and_no_colour_is_turned_round(bench: Bench, container: str) -> None:
    options: dict[str, Any] = {"quality": 95, "subsampling": 0} if container == "JPEG" else {}
    source = put(bench, encoded(INKS, container, **options))
    _, staged = bench.done(source, put_mask(bench))
    with Image.open(source) as before, Image.open(staged) as after:
        assert (after.mode, after.format) == ("CMYK", container)
        old, new = np.asarray(before), np.asarray(after)
    far = ~dilated(MARK, 24)
    if container == "JPEG":
        assert psnr(old[far], new[far]) > 40
    else:
        assert np.array_equal(old[far], new[far])
    (crop,) = bench.engine.seen
    seen = crop.pixels[:H, :W].astype(float)
    assert abs(seen[far].mean(axis=0) - PHOTO[far].mean(axis=0)).max() < 40, "what the model saw"
    red, green, blue = as_rgb(new[MARK]).mean(axis=0)
    assert red > green + 60 > blue + 60, "the fill is as warm as it was painted"
    assert abs(np.array([red, green, blue]) - FILL).max() < 60


# --- HEIC --------------------------------------------------------------------------------------------------

HEIC_HEAD = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"heic", 0, b"mif1", b"heic") + bytes(range(256)) * 8


@pytest.mark.kind("PC12")
@pytest.mark.parametrize("name", ["a.heic", "IMG_0001.HEIC", "a.jpg", "a.png"])
def test_a_heic_is_known_by_its_content_and_says_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    report = bench.serve(put(bench, HEIC_HEAD, name), put_mask(bench))
    assert isinstance(report, ItemFailed), report
    assert report.code == "unsupported"
    assert "HEIC" in report.reason
    assert "pip install" in report.remedy
    assert "watcher retry" in report.remedy


def heic(orientation: int, **options: Any) -> bytes:
    """A photo as phones write it: the way up stands in the container, and again in EXIF."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="an extra")
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "Maker"
    target = BytesIO()
    pillow_heif.encode("RGB", (W, H), PHOTO.tobytes(), target, quality=92, exif=exif.tobytes(), **options)
    return target.getvalue()


def heic_as_seen(data: bytes) -> NDArray[np.uint8]:
    pillow_heif = pytest.importorskip("pillow_heif", reason="an extra")
    return np.asarray(pillow_heif.open_heif(data), np.uint8)


@pytest.mark.kind("PC12", "PC1", "PC2")
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_heic_comes_back_as_one_the_same_way_up(bench: Bench, orientation: int) -> None:
    source = put(bench, heic(orientation), "IMG_0001.jpg")
    before = heic_as_seen(source.read_bytes())
    assert before.shape == ((W, H, 3) if orientation >= 5 else (H, W, 3))
    mark = rectangle(before.shape[1], before.shape[0], (20, 30, 60, 50))

    report, staged = bench.done(source, put_mask(bench, mark))

    assert report.image.format == "HEIC"
    after = heic_as_seen(staged.read_bytes())
    assert after.shape == before.shape
    far = ~dilated(mark, 24)
    assert psnr(before[far], after[far]) > 35
    inner = rectangle(before.shape[1], before.shape[0], (24, 34, 56, 46))
    assert abs(after[inner].mean(axis=0) - FILL).max() < 20
    assert b"Maker" in staged.read_bytes()
    assert staged.stat().st_size <= 1.5 * source.stat().st_size


# --- files that are not whole ------------------------------------------------------------------------------


@pytest.mark.kind("PC13")
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("ended", [False, True], ids=["cut", "cut and ended"])
def test_half_a_jpeg_is_no_picture_and_the_next_one_is_served(
    bench: Bench, *, progressive: bool, ended: bool
) -> None:
    data = encoded(BIG, "JPEG", quality=90, progressive=progressive)
    half = data[: len(data) // 2]
    mask = put_mask(bench, rectangle(*BIG.size, (300, 40, 340, 80)))
    report = bench.serve(put(bench, half + b"\xff\xd9" if ended else half), mask)
    assert isinstance(report, ItemIncomplete | ItemFailed if ended else ItemIncomplete), report
    assert not list((bench.folder / "staging").iterdir())
    bench.done(put(bench, data), mask)


# --- bombs -------------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, packed: bytes, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *more, chunk(b"IDAT", packed), chunk(b"IEND", b""))
    )


@cache
def packed_zeros(size_bytes: int) -> bytes:
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    parts = [
        packer.compress(block[: min(len(block), size_bytes - at)]) for at in range(0, size_bytes, len(block))
    ]
    return b"".join([*parts, packer.flush()])


def bomb(side_px: int) -> bytes:
    """A whole and right PNG, black, of two colours: one bit a pixel, and hardly a byte in the file."""
    return png(side_px, side_px, 1, packed_zeros(side_px * (1 + -(-side_px // 8))))


def text_bomb() -> bytes:
    """A small picture with a text of 100 MB."""
    rows = zlib.compress(bytes(W // 8 * H + H))
    return png(W, H, 1, rows, chunk(b"zTXt", b"Comment\0\0" + packed_zeros(100_000_000)))


def profile_bomb() -> bytes:
    rows = zlib.compress(bytes(W // 8 * H + H))
    return png(W, H, 1, rows, chunk(b"iCCP", b"sRGB\0\0" + packed_zeros(100_000_000)))


def tiff_bomb() -> bytes:
    """Deflated black of 400 megapixels in one strip."""
    side, packed = 20_000, packed_zeros(20_000 * 2500)
    fields = [(256, 4, side), (257, 4, side), (258, 3, 1), (259, 3, 8), (262, 3, 1)]
    fields += [(273, 4, 200), (277, 3, 1), (278, 4, side), (279, 4, len(packed))]
    ifd = struct.pack("<H", len(fields)) + b"".join(struct.pack("<HHII", t, k, 1, v) for t, k, v in fields)
    return (b"II*\0" + struct.pack("<I", 8) + ifd + bytes(4)).ljust(200, b"\0") + packed


def gif_bomb() -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0x80, 0, 0) + bytes(6)
    return screen + b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x02\x4c\x01\0;"


def jpeg_bomb() -> bytes:
    """A header of 65,500 x 65,500 over the data of a small picture."""
    data = bytearray(encoded(RGB, "JPEG"))
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, 65_500, 65_500)
    return bytes(data)


BOMBS = {
    "png": lambda: bomb(20_000),
    "png text": text_bomb,
    "png profile": profile_bomb,
    "tiff": tiff_bomb,
    "gif": gif_bomb,
    "jpeg": jpeg_bomb,
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Callable[[], Conversation]]:
    """One real worker for all bombs: each has to leave it sound."""
    from tests.worker.bench import Conversation as Real  # noqa: PLC0415 - a class here, a type above

    running: list[Conversation] = []

    def ready() -> Conversation:
        if not running:
            running.append(Real())
            running[0].ready()
        return running[0]

    yield ready
    for conversation in running:
        conversation.close()


def peak_mb(pid: int) -> float:
    """The most memory that a process has had so far (proc(5): VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(f"process {pid} has no memory")


@pytest.mark.kind("PC14")
@pytest.mark.parametrize(
    ("name", "where"), [*((name, "picture") for name in BOMBS), ("png", "mask"), ("png text", "mask")]
)
def test_a_bomb_is_refused_by_a_worker_whose_memory_stays_flat(
    bench: Bench, worker: Callable[[], Conversation], name: str, where: str
) -> None:
    talk = worker()
    source, mask = put(bench, RGB), put_mask(bench)
    served: Item = bench.item(source, mask)
    (bench.folder / "bomb").write_bytes(BOMBS[name]())
    bomb_item = (
        bench.item(bench.folder / "bomb", mask)
        if where == "picture"
        else bench.item(source, bench.folder / "bomb")
    )
    warm = talk.run(served)
    assert any(isinstance(report, ItemDone) for report in warm)
    before_mb = peak_mb(talk.process.pid)

    reports = talk.run(bomb_item)

    (failed,) = (report for report in reports if isinstance(report, ItemFailed | ItemDone | ItemIncomplete))
    assert peak_mb(talk.process.pid) - before_mb < 60, failed
    assert isinstance(failed, ItemFailed), failed
    assert failed.reason
    assert failed.remedy
    assert any(isinstance(report, ItemDone) for report in talk.run(served)), "the next one is served"


@pytest.mark.kind("PC14")
@pytest.mark.parametrize(
    ("side_px", "max_pixels", "refused"),
    [(3_000, 8_999_999, True), (3_000, 9_000_000, False), (9_600, 200_000_000, False)],
    ids=["one over the limit", "at the limit", "92 megapixels, of which Pillow warns"],
)
def test_the_limit_is_the_configurations_and_not_the_librarys(
    bench: Bench, side_px: int, max_pixels: int, *, refused: bool
) -> None:
    """Pillow by itself warns above 89 megapixels and refuses above 179."""
    bench.limits = Limits(max_pixels=max_pixels)
    report = bench.serve(put(bench, bomb(side_px)), unmarked="hold")
    assert isinstance(report, ItemFailed) == refused, report
    if isinstance(report, ItemFailed):
        assert report.code == "too_large"
        assert str(max_pixels) in report.reason


# --- what else a file says ---------------------------------------------------------------------------------


def chunks_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """A PNG's chunks (PNG, third edition, 5.3)."""
    found, at = [], 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


ANCILLARY = {
    b"cICP": bytes([9, 16, 0, 1]),
    b"mDCV": bytes(24),
    b"cLLI": bytes(8),
    b"gAMA": struct.pack(">I", 45455),
    b"cHRM": struct.pack(">8I", *range(31270, 31278)),
    b"sBIT": bytes([8, 8, 8]),
    b"pHYs": struct.pack(">IIB", 11811, 11811, 1),
    b"tEXt": b"Author\0somebody",
    b"zTXt": b"Comment\0\0" + zlib.compress(b"word " * 200),
    b"iTXt": b"XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta xmlns:x='adobe:ns:meta/'/>",
    b"tIME": struct.pack(">HBBBBB", 2026, 11, 30, 10, 0, 0),
}


@pytest.mark.kind("PC19")
def test_every_chunk_of_a_png_stays_as_it_is_or_is_named(bench: Bench) -> None:
    plain = encoded(RGB, "PNG")
    ihdr_end = 8 + 25
    more = b"".join(chunk(kind, content) for kind, content in ANCILLARY.items())
    source = put(bench, plain[:ihdr_end] + more + plain[ihdr_end:])
    report, staged = bench.done(source, put_mask(bench))
    kept = chunks_of(staged.read_bytes())
    for kind, content in ANCILLARY.items():
        assert (kind, content) in kept or kind.decode() in report.image.dropped_metadata, kind
    assert {kind for kind, _ in kept} <= {*ANCILLARY, b"IHDR", b"IDAT", b"IEND"}
    assert report.image.dropped_metadata == (), "all of these are safe to keep"


def segments_of(data: bytes) -> list[tuple[int, bytes]]:
    """A JPEG's segments up to its picture data (ITU-T T.81, B.1.1)."""
    found, at = [], 2
    while data[at + 1] != 0xDA:
        (size,) = struct.unpack_from(">H", data, at + 2)
        found.append((data[at + 1], data[at + 4 : at + 2 + size]))
        at += 2 + size
    return found


@pytest.mark.kind("PC19", "PC3")
def test_every_segment_of_a_jpeg_stays_as_it_is_or_is_named(bench: Bench) -> None:
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif.get_ifd(0x8769)[0x9003] = "2026:11:30 10:00:00"
    exif.get_ifd(0x8825)[2] = (47.0, 22.0, 30.5)
    photoshop = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x0b\x1c\x02\x78\0\x06a town\0"
    odd = {0xED: photoshop, 0xFE: b"a comment", 0xEB: b"some maker's own segment"}
    plain = encoded(
        RGB, "JPEG", quality=90, exif=exif, dpi=(300, 300), icc_profile=PROFILES["RGB"]["Display P3"]
    )
    more = b"".join(
        struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for marker, content in odd.items()
    )
    source = put(bench, plain[:20] + more + plain[20:])
    wanted = [entry for entry in segments_of(source.read_bytes()) if entry[0] >= 0xE0]
    assert len(wanted) >= 6
    report, staged = bench.done(source, put_mask(bench))
    kept = segments_of(staged.read_bytes())
    assert [marker for marker, content in wanted if (marker, content) not in kept] == []
    assert report.image.dropped_metadata == ()
