"""JPEG through the worker's front door: which blocks stay, files that are cut, inks, and what lies between.

Rules of this file: results are read by `independent`, which is libvips; what a picture's blocks are is worked
out from the bytes as the standard (ITU-T T.81) lays them out.
"""

from __future__ import annotations

import os
import struct
import sys
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pyvips
from PIL import Image

from tests.worker import sources
from tests.worker.bench import Bench, photo, rectangle, save_mask
from tests.worker.comparison import psnr, touched
from tests.worker.independent import jpeg_segments, look, through_profile
from watcher.wire import ItemDone, ItemFailed, ItemIncomplete

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

W, H = 145, 107
"""One pixel more than a whole number of blocks across, three more down."""
PHOTO = photo(W, H)
CORNERS = rectangle(W, H, (3, 3, 9, 12)) | rectangle(W, H, (W - 4, H - 3, W, H))
LONG_AGO = 1_000_000_000


def jpeg(image: Image.Image | NDArray[np.uint8] = PHOTO, **options: Any) -> bytes:
    target = BytesIO()
    opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
    opened.save(target, "JPEG", **{"quality": 90, **options})
    return target.getvalue()


def put(bench: Bench, data: bytes, mask: Mask = CORNERS) -> tuple[Path, Path]:
    path = bench.folder / "a.jpg"
    path.write_bytes(data)
    return path, save_mask(bench.folder / "mask.png", mask)


def served(bench: Bench, data: bytes, mask: Mask = CORNERS, **changes: Any) -> tuple[str | None, bytes]:
    """Serve a JPEG without growing the mask: what the report says of the outside, and the result."""
    report, staged = bench.done(*put(bench, data, mask), grow_px=0, **changes)
    return report.image.outside, staged.read_bytes()


def restart_interval(data: bytes) -> list[bytes]:
    return [payload for marker, payload in jpeg_segments(data) if marker == 0xDD]


# --- blocks ------------------------------------------------------------------------------------------------


def steps(factor: int, offset: int) -> list[int]:
    """Return a quantisation table that gets coarser with the frequency."""
    return [int(offset + factor * (n // 8 + n % 8)) for n in range(64)]


def part_of_a_scan(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return a baseline JPEG's Huffman tables, and its coded data."""
    tables = [(marker, payload) for marker, payload in jpeg_segments(data) if marker == 0xC4]
    start = data.index(b"\xff\xda") + 10
    return tables, data[start : data.rindex(b"\xff\xd9")]


def not_interleaved() -> bytes:
    """Return a JPEG of three components, each in a scan of its own (T.81, A.2.3), made of three grey ones."""
    planes = np.moveaxis(np.asarray(Image.fromarray(PHOTO).convert("YCbCr")), -1, 0)
    parts = [part_of_a_scan(jpeg(np.ascontiguousarray(plane))) for plane in planes]
    quantisation = next(payload for marker, payload in jpeg_segments(jpeg(PHOTO[..., 0])) if marker == 0xDB)
    frame = struct.pack(">BHHB", 8, H, W, 3) + b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    data = b"\xff\xd8" + segment(0xDB, quantisation) + segment(0xC0, frame)
    for number, (tables, coded) in enumerate(parts, start=1):
        data += b"".join(segment(*table) for table in tables)
        data += segment(0xDA, bytes([1, number, 0, 0, 63, 0])) + coded
    return data + b"\xff\xd9"


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


STRUCTURES: dict[str, Callable[[], bytes]] = {
    "one table for all": lambda: jpeg(qtables=[steps(2, 3)], subsampling=0),
    "three tables": lambda: jpeg(qtables=[steps(1, 2), steps(2, 3), steps(3, 5)], subsampling=2),
    "tables of 16 bits": lambda: jpeg(qtables=[steps(40, 3), steps(60, 5)], subsampling=2),
    "the finest tables": lambda: jpeg(quality=100, subsampling=0),
    "each component in its own scan": not_interleaved,
    "restart markers": lambda: jpeg(restart_marker_blocks=3, subsampling=2),
    "restart markers, progressive": lambda: jpeg(restart_marker_rows=1, progressive=True),
    "restart markers, grey": lambda: jpeg(PHOTO[..., 1], restart_marker_blocks=5),
    "one pixel wide": lambda: jpeg(photo(1, H)),
    "one pixel high": lambda: jpeg(photo(W, 1)),
    "smaller than a block": lambda: jpeg(photo(5, 7), subsampling=2, progressive=True),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_blocks_that_the_hole_does_not_touch_stay_and_so_does_the_structure(bench: Bench, name: str) -> None:
    data = STRUCTURES[name]()
    before = look(data)
    height, width = before.stored.shape[:2]
    hole = CORNERS[:height, :width]
    if min(height, width) < 20:
        hole = rectangle(width, height, (width // 2, height // 2, width // 2 + 1, height // 2 + 1))

    outside, result = served(bench, data, hole)

    after = look(result)
    assert outside == "blocks"
    kept = ~touched(hole, before)
    assert kept.any() or name == "smaller than a block"
    assert np.array_equal(before.stored[kept], after.stored[kept])
    assert (before.stored[hole] != after.stored[hole]).any(), "something was filled"
    for fact in ("frame", "precision", "components", "quantisation"):
        assert before.facts[fact] == after.facts[fact], fact
    assert restart_interval(result) == restart_interval(data)
    assert len(result) < 1.1 * len(data) + 400


@pytest.mark.parametrize(
    ("subsampling", "changed"), [(0, (16, 24, 16, 24)), (1, (16, 24, 15, 33)), (2, (15, 33, 15, 33))]
)
def test_one_pixel_changes_its_blocks_and_what_decoders_smooth_beside_them(
    bench: Bench, subsampling: int, changed: tuple[int, int, int, int]
) -> None:
    data = jpeg(subsampling=subsampling, quality=97)
    _, result = served(bench, data, rectangle(W, H, (20, 20, 21, 21)))
    differs = (look(data).stored != look(result).stored).any(axis=-1)
    top, bottom, left, right = changed
    assert differs[top:bottom, left:right].any()
    differs[top:bottom, left:right] = False
    assert not differs.any()


@pytest.mark.parametrize("subsampling", [0, 2])
def test_between_the_parts_of_a_hole_blocks_stay_too(bench: Bench, subsampling: int) -> None:
    """A wire from corner to corner: one rectangle holds it all, and most blocks in there are not touched."""
    size = 320
    data = jpeg(photo(size, size), quality=98, subsampling=subsampling)
    hole = np.eye(size, dtype=np.bool_)
    _, result = served(bench, data, hole)
    before, after = look(data), look(result)
    kept = ~touched(hole, before)
    assert kept.mean() > 0.8
    assert np.array_equal(before.stored[kept], after.stored[kept])


def test_holes_in_two_corners_do_not_make_the_middle_new(bench: Bench) -> None:
    data = jpeg(np.tile(PHOTO, (6, 6, 1)), subsampling=2)
    hole = np.zeros((6 * H, 6 * W), np.bool_)
    hole[:20, :20] = hole[-20:, -20:] = True
    outside, result = served(bench, data, hole)
    before, after = look(data), look(result)
    kept = ~touched(hole, before)
    assert outside == "blocks"
    assert kept.mean() > 0.98
    assert np.array_equal(before.stored[kept], after.stored[kept])
    assert len(result) <= len(data)


def test_a_second_fill_takes_nothing_from_the_first(bench: Bench) -> None:
    """What was kept once is kept again: no generation is lost, however often a picture is served."""
    data = jpeg(subsampling=2)
    hole = rectangle(W, H, (70, 50, 90, 60))
    for _ in range(3):
        _, result = served(bench, data, hole)
        kept = ~touched(hole, look(data))
        assert np.array_equal(look(data).stored[kept], look(result).stored[kept])
        data = result


# --- where blocks cannot be kept ---------------------------------------------------------------------------

BLOCKS = "watcher.worker.imaging.formats.jpeg.blocks"


def test_a_quality_that_was_asked_for_makes_all_blocks_new(bench: Bench) -> None:
    outside, result = served(bench, jpeg(quality=95), quality=40)
    assert outside == "reencoded"
    assert look(result).facts["quantisation"] == look(jpeg(quality=40)).facts["quantisation"]


@pytest.mark.parametrize(
    ("library", "program", "says"),
    [
        (None, None, "no libjpeg"),
        ("no-such-library.so", None, "no-such-library.so"),
        (None, "import sys; sys.exit('refused')", "refused"),
        (None, "import os; os.kill(os.getpid(), 9)", "-9"),
        (None, "import time; time.sleep(60)", "timed out"),
    ],
    ids=["Pillow brings none", "it cannot be loaded", "it refuses", "it is killed", "it hangs"],
)
def test_without_libjpeg_the_picture_is_encoded_anew_and_says_so(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    library: str | None,
    program: str | None,
    says: str,
) -> None:
    if program is None:
        monkeypatch.setattr(f"{BLOCKS}.libjpeg", lambda: library)
    else:
        path = bench.folder / "program.py"
        path.write_text(program)
        monkeypatch.setattr(f"{BLOCKS}._PROGRAM", path)
        monkeypatch.setattr(f"{BLOCKS}._LIMIT_S", 1.0)
    data = jpeg(subsampling=2)
    outside, result = served(bench, data)
    before, after = look(data), look(result)
    assert outside == "reencoded"
    far = ~touched(CORNERS, before)
    assert psnr(before.stored[far], after.stored[far]) > 38
    assert before.facts["quantisation"] == after.facts["quantisation"]
    (report,) = [report for report in bench.reports if isinstance(report, ItemDone)]
    assert report.reason is not None
    assert says in report.reason
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is told by /proc")
def test_the_library_is_pillows_own_and_this_process_gets_no_second_one(bench: Bench) -> None:
    served(bench, jpeg())
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - no file, but a table of the kernel's
        mapped = {line.split()[-1] for line in maps if "libjpeg" in line}
    from watcher.worker.imaging.formats.jpeg.blocks import libjpeg  # noqa: PLC0415 - what only this test asks

    assert mapped == {libjpeg()}


# --- data that stops early ---------------------------------------------------------------------------------


@cache
def large(kind: str) -> bytes:
    pixels = photo(400, 304)
    return {
        "baseline": lambda: jpeg(pixels, subsampling=2),
        "progressive": lambda: jpeg(pixels, subsampling=2, progressive=True),
        "restart markers": lambda: jpeg(pixels, subsampling=2, restart_marker_blocks=20),
        "grey": lambda: jpeg(pixels[..., 0]),
        "inks": lambda: jpeg(Image.fromarray(pixels).convert("CMYK")),
    }[kind]()


def cut(data: bytes, share: float) -> bytes:
    """Cut a JPEG inside its last coded data, and give it an end marker."""
    start = data.index(b"\xff\xda")
    kept = data[: start + 14 + int((len(data) - start - 16) * share)]
    return kept.rstrip(b"\xff") + b"\xff\xd9"


CUT_MASK = rectangle(400, 304, (300, 10, 340, 40))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("kind", ["baseline", "progressive", "restart markers", "grey", "inks"])
def test_a_jpeg_that_was_cut_and_ended_is_not_done(bench: Bench, kind: str, share: float) -> None:
    path, mask = put(bench, cut(large(kind), share), CUT_MASK)
    for quality in (None, 80) if share == 0.5 else (None,):
        report = bench.serve(path, mask, quality=quality)
        assert isinstance(report, ItemIncomplete), "it may still be written"
        assert "stops" in report.reason
        assert list((bench.folder / "staging").iterdir()) == []


def between_passes(data: bytes, passes: int) -> bytes:
    """Cut a JPEG right before a later one of its passes, and give it an end marker."""
    at = -1
    for _ in range(passes + 1):
        at = data.index(b"\xff\xda", at + 1)
    # the tables of a pass stand before it
    tables = data.rfind(b"\xff\xc4", 0, at)
    return data[: tables if data.find(b"\xff\xda", tables) == at else at] + b"\xff\xd9"


@pytest.mark.parametrize("passes", [1, 2, 4, 7, 9])
def test_a_jpeg_that_was_cut_between_two_passes_is_not_done(bench: Bench, passes: int) -> None:
    """Nothing is damaged, and decoders smooth what was never refined: the result would not be as near."""
    path, mask = put(bench, between_passes(large("progressive"), passes), CUT_MASK)
    report = bench.serve(path, mask)
    assert isinstance(report, ItemIncomplete)
    assert "stops" in report.reason


def test_a_jpeg_whose_later_colours_lack_is_not_done(bench: Bench) -> None:
    """Some encoders draw one colour after the other; a file cut between them is whole to its markers."""
    data = jpeg(PHOTO, subsampling=0)
    start = data.index(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01" + data[start + 5 : start + 7] + b"\x00\x3f\x00"
    path, mask = put(bench, data[:start] + scan + data[start + 14 :], CORNERS)
    report = bench.serve(path, mask)
    assert isinstance(report, ItemIncomplete)
    assert "colours" in report.reason


def test_a_mask_that_was_cut_and_ended_marks_nothing(bench: Bench) -> None:
    """What lacks decodes as grey, just light enough to be a mark."""
    black = np.zeros((304, 400), np.uint8)
    black[200:220, 300:330] = 255
    mask = bench.folder / "cut.png"
    mask.write_bytes(cut(jpeg(black), 0.3))
    path, _ = put(bench, large("baseline"), CUT_MASK)
    whole = bench.folder / "whole.png"
    whole.write_bytes(jpeg(black))
    report = bench.serve(path, mask)
    assert isinstance(report, ItemFailed)
    assert report.code == "mask_undecodable"
    assert "stops before the picture does" in report.reason
    assert isinstance(bench.serve(path, whole), ItemDone)


def test_an_old_file_that_was_cut_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mask = put(bench, cut(large("baseline"), 0.6), CUT_MASK)
    monkeypatch.setattr("watcher.worker.imaging.files.FRESH_S", 0.0)
    report = bench.serve(path, mask)
    assert isinstance(report, ItemFailed)
    assert (report.code, report.reason) == (
        "undecodable",
        "the JPEG is damaged: its picture data stops before the picture does",
    )
    assert report.remedy


def without_last_byte(data: bytes) -> bytes:
    return data[:-3] + b"\xff\xd9"


def with_junk(data: bytes) -> bytes:
    at = data.index(b"\xff\xdb")
    return data[:at] + b"hello" + data[at:]


def with_fill_bytes(data: bytes) -> bytes:
    at = data.index(b"\xff\xda")
    return data[:at] + b"\xff\xff\xff" + data[at:]


def with_more_coded_data(data: bytes) -> bytes:
    return data[:-2] + b"\x12\x34\x56" + data[-2:]


def with_wrong_restart_marker(data: bytes) -> bytes:
    at = data.index(b"\xff\xd3")
    return data[: at + 1] + b"\xd4" + data[at + 2 :]


ODDITIES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "the last bits lack": ("baseline", without_last_byte),
    "bytes between segments": ("baseline", with_junk),
    "fill bytes": ("progressive", with_fill_bytes),
    "bytes behind the coded data": ("baseline", with_more_coded_data),
    "a restart marker out of turn": ("restart markers", with_wrong_restart_marker),
    "zeros behind the end": ("baseline", lambda data: data + bytes(3000)),
    "nothing odd": ("restart markers", bytes),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_what_viewers_pass_over_is_served(bench: Bench, name: str) -> None:
    kind, change = ODDITIES[name]
    outside, _ = served(bench, change(large(kind)), CUT_MASK)
    assert outside == "blocks"


# --- inks --------------------------------------------------------------------------------------------------

WHOLE = (144, 104)
"""A picture that the model sees whole: sides are multiples of 8."""
PRINTABLE = (150, 110, 90)
"""A colour that presses can print."""


@cache
def print_profile() -> bytes:
    """A real press's profile, which libvips brings."""
    return bytes(pyvips.Operation.call("profile_load", "cmyk"))


def inks_jpeg(*, adobe: bool, profile: bytes = b"", **options: Any) -> bytes:
    """Return a JPEG of inks, stored from 255 (none) down, with Adobe's segment or without."""
    image = Image.fromarray(photo(*WHOLE)).convert("CMYK")
    data = jpeg(image, quality=95, subsampling=0, icc_profile=profile, **options)
    if adobe:
        return data
    at = data.index(b"\xff\xee\x00\x0eAdobe")
    return data[:at] + data[at + 16 :]


@pytest.mark.parametrize("profile", [b"", b"press"], ids=["no profile", "profile"])
@pytest.mark.parametrize("adobe", [True, False], ids=["Adobe's segment", "without"])
def test_inks_stay_and_the_fill_is_the_engines_colour_in_them(
    bench: Bench, *, adobe: bool, profile: bytes
) -> None:
    profile = profile and print_profile()
    data = inks_jpeg(adobe=adobe, profile=profile)
    hole = rectangle(*WHOLE, (40, 30, 80, 70))
    bench.engine.colour = PRINTABLE
    outside, result = served(bench, data, hole)
    before, after = look(data), look(result)
    assert outside == "blocks"
    assert before.facts["interpretation"] == after.facts["interpretation"] == "cmyk"
    assert before.facts.get("Adobe transform") == after.facts.get("Adobe transform")
    kept = ~touched(hole, before)
    assert np.array_equal(before.stored[kept], after.stored[kept])

    def as_seen(inks: NDArray[Any]) -> NDArray[np.float64]:
        if profile:
            return np.asarray(through_profile(inks[np.newaxis], profile)[0], np.float64)
        left = 255.0 - inks  # no profile: what paper less ink leaves
        return np.asarray(left[:, :3] * left[:, 3:] / 255)

    near = 8  # libvips leaves the black as it is
    assert abs(as_seen(after.stored[hole]).mean(axis=0) - PRINTABLE).max() < near
    (crop,) = bench.engine.seen
    seen = crop.pixels[~hole].mean(axis=0)
    assert abs(seen - as_seen(before.stored[~hole]).mean(axis=0)).max() < near, "what the model saw"


@pytest.mark.parametrize("adobe", [True, False], ids=["Adobe's segment", "without"])
def test_inks_that_are_encoded_anew_keep_their_colours(bench: Bench, *, adobe: bool) -> None:
    data = inks_jpeg(adobe=adobe)
    hole = rectangle(*WHOLE, (3, 3, 9, 12))
    outside, result = served(bench, data, hole, quality=95)
    before, after = look(data), look(result)
    assert outside == "reencoded"
    far = ~touched(hole, before)
    assert psnr(before.stored[far], after.stored[far]) > 38


@pytest.mark.parametrize("profile", [b"rubbish", sources.rgb_profile()], ids=["rubbish", "of a screen"])
def test_inks_with_a_profile_that_is_none_of_inks_are_served(bench: Bench, profile: bytes) -> None:
    data = inks_jpeg(adobe=True, profile=profile)
    outside, result = served(bench, data, rectangle(*WHOLE, (3, 3, 9, 12)))
    assert outside == "blocks"
    assert profile in result


# --- what lies between -------------------------------------------------------------------------------------

XMP = b"http://ns.adobe.com/xap/1.0/\x00" + sources.XMP
EXIF = b"Exif\x00\x00" + sources.exif(1)
NOISE = np.random.default_rng(5).integers(1, 256, 60_000, dtype=np.uint8).tobytes().replace(b"\xff", b"\x01")
ADOBE = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 1)


def icc(number: int, of: int, piece: bytes) -> tuple[int, bytes]:
    return 0xE2, b"ICC_PROFILE\x00" + bytes([number, of]) + piece


SEGMENTS: dict[str, list[tuple[int, bytes]]] = {
    "EXIF of 70 kB in two segments": [(0xE1, EXIF + NOISE), (0xE1, b"Exif\x00\x00" + NOISE[:10_000])],
    "EXIF that is rubbish": [(0xE1, b"Exif\x00\x00" + NOISE[:500])],
    "EXIF that is empty": [(0xE1, b"Exif\x00\x00")],
    "EXIF twice": [(0xE1, EXIF), (0xE1, b"Exif\x00\x00" + sources.exif(None))],
    "EXIF behind XMP": [(0xE1, XMP), (0xE1, EXIF)],
    "a profile in pieces out of order": [
        icc(2, 2, sources.rgb_profile()[200:]),
        (0xE1, XMP),
        icc(1, 2, sources.rgb_profile()[:200]),
    ],
    "IPTC": [(0xED, b"Photoshop 3.0\x00" + sources.PHOTOSHOP)],
    "Adobe's": [(0xEE, ADOBE)],
    "Adobe's, too short": [(0xEE, ADOBE[:-1])],
    "remarks": [(0xFE, b"one"), (0xFE, b""), (0xFE, b"two \xff\xfe three")],
    "settings of unknown programs": [(0xE4, b"\x01" * 300), (0xEC, b"Ducky\x00\x01\x00\x04\x00\x00\x00\x3c")],
    "all of them": [(0xE1, EXIF), (0xE1, XMP), icc(1, 1, sources.rgb_profile()), (0xEE, ADOBE), (0xFE, b"x")],
}


@pytest.mark.parametrize("jfif", [True, False], ids=["JFIF", "no JFIF"])
@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_come_back_byte_by_byte_in_their_order(bench: Bench, name: str, *, jfif: bool) -> None:
    plain = jpeg(dpi=(72, 72))
    assert plain[2:4] == b"\xff\xe0"
    data = sources.with_segments(plain if jfif else plain[:2] + plain[20:], SEGMENTS[name])
    report, staged = bench.done(*put(bench, data), grow_px=0)
    result = staged.read_bytes()
    kept = [part for part in jpeg_segments(result) if part[0] >= 0xE0]
    assert kept == [part for part in jpeg_segments(data) if part[0] >= 0xE0]
    assert report.image.dropped_metadata == ()
    assert report.image.outside == "blocks"


def test_without_metadata_what_tells_the_colours_stays(bench: Bench) -> None:
    data = jpeg(Image.fromarray(PHOTO).convert("CMYK"), subsampling=0)
    at = data.index(b"Adobe") + 11
    data = data[:at] + b"\x02" + data[at + 1 :]  # the inks are coded as Y, Cb, Cr, K: only this byte tells
    data = sources.with_segments(data, SEGMENTS["all of them"][:2])
    outside, result = served(bench, data, keep_metadata=False)
    before, after = look(data), look(result)
    kept = ~touched(CORNERS, before)
    assert outside == "blocks"
    assert np.array_equal(before.stored[kept], after.stored[kept])
    assert b"Rating" not in result


def test_a_file_of_long_ago_keeps_its_time(bench: Bench) -> None:
    path, mask = put(bench, jpeg())
    os.utime(path, (LONG_AGO, LONG_AGO))
    _, staged = bench.done(path, mask)
    assert staged.stat().st_mtime == LONG_AGO
