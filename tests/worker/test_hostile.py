"""Files that are not finished, not pictures, or not harmless."""

from __future__ import annotations

import os
import struct
import time
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker.bench import Bench, photo, rectangle, save_mask
from watcher.wire import ItemDone, ItemFailed, ItemHeld, ItemIncomplete, Limits
from watcher.worker.imaging.decode import open_picture
from watcher.worker.imaging.files import FRESH_S
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from watcher.wire import FromWorker

RGB = Image.fromarray(photo(120, 90))


def encoded(kind: str, **options: Any) -> bytes:
    target = BytesIO()
    RGB.save(target, kind, **options)
    return target.getvalue()


def encoded_black(kind: str) -> bytes:
    """A whole picture of which not one pixel is lit, and that is smaller than a page a quarter."""
    target = BytesIO()
    Image.new("RGB", (60, 60)).save(target, kind)
    return target.getvalue()


CONTAINERS = {
    "JPEG": encoded("JPEG"),
    "progressive JPEG": encoded("JPEG", progressive=True),
    "PNG": encoded("PNG"),
    "WEBP": encoded("WEBP"),
    "lossless WEBP": encoded("WEBP", lossless=True),
    "TIFF": encoded("TIFF"),
    "LZW TIFF": encoded("TIFF", compression="tiff_lzw"),
    "BMP": encoded("BMP"),
    "GIF": encoded("GIF"),
}


def serve(bench: Bench, data: bytes, name: str = "a.png") -> FromWorker:
    source = bench.folder / name
    source.write_bytes(data)
    return bench.serve(source, save_mask(bench.folder / "mask.png", rectangle(120, 90, (40, 30, 60, 50))))


def failed(report: FromWorker, code: str) -> ItemFailed:
    assert isinstance(report, ItemFailed), report
    assert report.code == code, report
    assert report.reason
    assert report.remedy
    return report


@pytest.mark.kind("PC13")
@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.999])
def test_a_file_without_its_end_is_incomplete(bench: Bench, name: str, share: float) -> None:
    data = CONTAINERS[name]
    report = serve(bench, data[: min(len(data) - 1, int(len(data) * share))])
    assert isinstance(report, ItemIncomplete), report


ZEROS_TELL = [name for name in CONTAINERS if name not in ("BMP", "TIFF")]


@pytest.mark.parametrize(
    ("name", "share"),
    [(name, share) for name in ZEROS_TELL for share in (0.5, 0.9) if (name, share) != ("WEBP", 0.9)],
)
def test_a_file_that_goes_on_as_zeros_is_incomplete(bench: Bench, name: str, share: float) -> None:
    data = CONTAINERS[name]
    kept = int(len(data) * share)
    report = serve(bench, data[:kept] + bytes(len(data) - kept))
    assert isinstance(report, ItemIncomplete), report


WIDE, HIGH = 240, 180


def dark_end(kind: str, share: float = 0.5, mode: str = "RGB") -> bytes:
    """A whole picture whose data, as it lies in the file, is zeros from this share on."""
    array = photo(WIDE, HIGH)
    if mode in ("L", "P"):
        array = array[..., 0]
    if mode == "RGBA":
        array = np.dstack([array, np.full((HIGH, WIDE), 255, np.uint8)])
    kept = int(HIGH * share)
    array[slice(kept, None) if kind == "TIFF" else slice(None, HIGH - kept)] = (
        0  # a BMP begins with its last row
    )
    image = Image.fromarray(array)
    if mode == "P":
        image.putpalette([255 - value // 3 for value in range(768)])
    target = BytesIO()
    image.save(target, kind)
    return target.getvalue()


def white_is_zero() -> bytes:
    """A scan whose paper is white, which this kind of TIFF writes as zeros."""
    photometric, *values = (struct.pack("<HHII", 262, 3, 1, value) for value in (1, 0))
    data = dark_end("TIFF", 0.3, "L")
    assert data.count(photometric) == 1
    return data.replace(photometric, values[0])


def aged(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on the clock is so much ahead of what files say."""
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + seconds)


@pytest.mark.parametrize("name", ["BMP", "TIFF"])
def test_a_fresh_file_without_marks_or_compression_that_goes_on_as_zeros_is_incomplete(
    bench: Bench, name: str
) -> None:
    data = CONTAINERS[name]
    report = serve(bench, data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert isinstance(report, ItemIncomplete), report
    assert "zeros" in report.reason


def compressed_tiff(*, cut: bool) -> bytes:
    """One deflated strip behind its directory: the file says all about itself before its data."""
    packed = zlib.compress(photo(WIDE, HIGH).tobytes())
    kept = packed[: len(packed) // 2]
    entries = [
        (256, 3, 1, WIDE),
        (257, 3, 1, HIGH),
        (258, 3, 3, 134),
        (259, 3, 1, 8),
        (262, 3, 1, 2),
        (273, 4, 1, 140),
        (277, 3, 1, 3),
        (278, 4, 1, HIGH),
        (279, 4, 1, len(packed)),
        (284, 3, 1, 1),
    ]
    ifd = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\x00" + struct.pack("<IH", 8, len(entries)) + ifd + struct.pack("<I", 0)
    data = kept + bytes(len(packed) - len(kept)) if cut else packed
    return head.ljust(134, b"\x00") + struct.pack("<HHH", 8, 8, 8) + data


@pytest.mark.parametrize("cut", [True, False])
def test_a_fresh_compressed_tiff_that_goes_on_as_zeros_is_incomplete(bench: Bench, *, cut: bool) -> None:
    source = bench.folder / "a.png"
    source.write_bytes(compressed_tiff(cut=cut))
    report = bench.serve(
        source, save_mask(bench.folder / "mask.png", rectangle(WIDE, HIGH, (40, 30, 60, 50)))
    )
    assert isinstance(report, ItemIncomplete if cut else ItemDone), report


@pytest.mark.parametrize("name", ["BMP", "TIFF"])
@pytest.mark.parametrize("age_s", [FRESH_S + 1, -3600])
def test_zeros_at_the_end_of_a_file_that_is_not_fresh_are_black(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, age_s: float
) -> None:
    """Also where the file seems to be of the future: whose clock is wrong cannot be told."""
    aged(monkeypatch, age_s)
    assert isinstance(serve(bench, dark_end(name)), ItemDone)


ZEROS_ARE_COLOURS = {
    "a sixth at the end of a TIFF": dark_end("TIFF", 5 / 6),
    "a sixth at the end of a BMP": dark_end("BMP", 5 / 6),
    "palette of a BMP": dark_end("BMP", 0.3, "P"),
    "palette of a TIFF": dark_end("TIFF", 0.3, "P"),
    "white": white_is_zero(),
    "transparent": dark_end("TIFF", 0.3, "RGBA"),
    "smaller than a page": encoded_black("BMP"),
}


@pytest.mark.parametrize("name", ZEROS_ARE_COLOURS)
def test_a_fresh_picture_whose_zeros_are_colours_is_complete(bench: Bench, name: str) -> None:
    data = ZEROS_ARE_COLOURS[name]
    with Image.open(BytesIO(data)) as image:
        hole = save_mask(bench.folder / "mask.png", rectangle(*image.size, (2, 2, 9, 9)))
    source = bench.folder / "a.png"
    source.write_bytes(data)
    assert isinstance(bench.serve(source, hole), ItemDone)


@pytest.mark.parametrize("data", [b"", bytes(5000), b"\x89PN", b"\xff\xd8", b"RIFF\x00\x00", b"GIF8"])
def test_barely_begun_files_are_incomplete(bench: Bench, data: bytes) -> None:
    assert isinstance(serve(bench, data), ItemIncomplete)


@pytest.mark.parametrize(
    "data", [b"a text that somebody renamed", b"\xff" * 5000, b"<html></html>", b"BMnot a bitmap"]
)
def test_what_is_no_picture_is_undecodable(bench: Bench, data: bytes) -> None:
    report = serve(bench, data)
    if data.startswith((b"BM", b"\xff")) and isinstance(report, ItemIncomplete):
        return
    failed(report, "undecodable")


def test_a_wrong_suffix_does_no_harm(bench: Bench) -> None:
    report = serve(bench, CONTAINERS["JPEG"], "a.png")
    assert isinstance(report, ItemDone)
    assert report.image.format == "JPEG"


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


def test_a_png_with_damaged_data_is_undecodable(bench: Bench) -> None:
    failed(serve(bench, flipped(CONTAINERS["PNG"], 300)), "undecodable")


# --- recognised, and not served ----------------------------------------------------------------------------


def animation(kind: str) -> bytes:
    target = BytesIO()
    frames = [Image.fromarray(photo(40, 30, seed)) for seed in (1, 2)]
    frames[0].save(target, kind, save_all=True, append_images=frames[1:])
    return target.getvalue()


UNSUPPORTED = {
    "animated GIF": animation("GIF"),
    "animated PNG": animation("PNG"),
    "animated WebP": animation("WEBP"),
    "TIFF of two pages": animation("TIFF"),
    "CR3": b"\x00\x00\x00\x18ftypcrx " + bytes(40),
    "CR2": b"II*\x00\x10\x00\x00\x00CR\x02\x00" + bytes(40),
    "RAF": b"FUJIFILMCCD-RAW " + bytes(40),
    "PSD": b"8BPS" + bytes(40),
    "JPEG XL": b"\xff\x0a" + bytes(range(40)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_recognised_but_not_served_says_why(bench: Bench, name: str) -> None:
    report = failed(serve(bench, UNSUPPORTED[name]), "unsupported")
    assert "drop" in report.remedy or "save" in report.remedy


# --- bombs and limits --------------------------------------------------------------------------------------


@pytest.mark.kind("PC14")
def test_a_bomb_is_refused_by_its_header(bench: Bench) -> None:
    data = bytearray(CONTAINERS["PNG"])
    struct.pack_into(">II", data, 16, 50_000, 50_000)
    struct.pack_into(">I", data, 29, zlib.crc32(bytes(data[12:29])))
    before = psutil.Process().memory_info().rss
    failed(serve(bench, bytes(data)), "too_large")
    assert psutil.Process().memory_info().rss - before < 50_000_000


@pytest.mark.kind("PC14")
def test_the_pixel_and_byte_limits_are_the_configurations(bench: Bench) -> None:
    bench.limits = Limits(max_pixels=10_000)
    failed(serve(bench, CONTAINERS["PNG"]), "too_large")
    bench.limits = Limits(max_file_bytes=100)
    failed(serve(bench, CONTAINERS["PNG"]), "too_large")


def test_a_pipe_under_a_pictures_name_does_not_stop_the_worker(bench: Bench) -> None:
    source = bench.folder / "a.png"
    source.write_bytes(b"x")
    item = bench.item(source)
    source.unlink()
    os.mkfifo(source)
    failed(bench.serve_item(item), "undecodable")


# --- anything at all ---------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(CONTAINERS)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_files_get_exactly_one_answer(
    bench: Bench, name: str, damage: list[tuple[float, int]]
) -> None:
    data = bytearray(CONTAINERS[name])
    for where, value in damage:
        data[int(where * len(data))] = value
    bench.limits = Limits(max_pixels=1_000_000)
    report = serve(bench, bytes(data))
    assert isinstance(report, ItemDone | ItemHeld | ItemFailed | ItemIncomplete)
    if isinstance(report, ItemFailed):
        assert report.code != "engine", report
    finals = [r for r in bench.reports if isinstance(r, ItemDone | ItemHeld | ItemFailed | ItemIncomplete)]
    assert len(finals) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*", b"GIF89a", b"BM"])
)
def test_random_bytes_are_refused_in_words(tail: bytes, head: bytes) -> None:
    with pytest.raises((RefusedError, IncompleteError)):
        open_picture(head + tail, max_pixels=10**6).load()


def test_a_flat_webp_that_ends_in_zeros_is_complete(bench: Bench) -> None:
    target = BytesIO()
    Image.new("RGB", (3000, 3000)).save(target, "WEBP")
    assert target.getvalue().endswith(bytes(700))
    source = bench.folder / "flat.webp"
    source.write_bytes(target.getvalue())
    assert isinstance(bench.serve(source), ItemHeld)


@pytest.mark.kind("PC13", "PD18")
def test_the_one_after_a_bad_one_is_served(bench: Bench) -> None:
    failed(serve(bench, b"rubbish, and a lot of it"), "undecodable")
    assert isinstance(serve(bench, CONTAINERS["PNG"]), ItemDone)
