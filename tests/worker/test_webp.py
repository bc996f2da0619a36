"""WebP through the item server: lossless stays exact, lossy close, and all other chunks what they were."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
import pyvips
from PIL import Image

from tests.worker import sources
from tests.worker.bench import FILL, Bench, photo, rectangle, save_mask
from tests.worker.independent import look
from watcher.wire import ItemDone, ItemFailed
from watcher.worker.imaging.formats.webp.quality import index_of_quality, quality_of_index, quantiser_index
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

W, H = 160, 120
MARK = rectangle(W, H, (60, 40, 90, 60))
HOLE = grown(MARK, 4)
FAR = ~grown(MARK, 24)
RGB = photo(W, H)
ALPHA = np.tile(np.linspace(0, 255, W).astype(np.uint8), (H, 1))
ALPHA[:20] = 0
RGBA = np.dstack([RGB, ALPHA])

Chunks = list[tuple[bytes, bytes]]


def chunks_of(data: bytes) -> Chunks:
    assert data[:4] + data[8:12] == b"RIFFWEBP"
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    found, position = [], 12
    while position < len(data):
        kind, length = struct.unpack_from("<4sI", data, position)
        found.append((kind, data[position + 8 : position + 8 + length]))
        position += 8 + length + length % 2
    return found


def riff(chunks: Sequence[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(
        struct.pack("<4sI", kind, len(data)) + data + bytes(len(data) % 2) for kind, data in chunks
    )
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WEBP") + body


def webp(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    return sources.by_pillow(Image.fromarray(pixels), "WEBP", **{"exact": True, **options})


def extended(pixels: NDArray[np.uint8], flags: int, chunks: Chunks, **options: Any) -> bytes:
    """A WebP with a VP8X chunk; the chunk named `here` gives way to the picture."""
    picture = [chunk for chunk in chunks_of(webp(pixels, **options)) if chunk[0] != b"VP8X"]
    height, width = pixels.shape[:2]
    header = bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    at = chunks.index((b"here", b""))
    return riff([(b"VP8X", header), *chunks[:at], *picture, *chunks[at + 1 :]])


def written(bench: Bench, data: bytes) -> Path:
    path = bench.folder / "a.webp"
    path.write_bytes(data)
    return path


def served(bench: Bench, data: bytes, **changes: Any) -> tuple[ItemDone, bytes]:
    mask = save_mask(bench.folder / "mask.png", MARK)
    report, staged = bench.done(written(bench, data), mask, **changes)
    return report, staged.read_bytes()


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


# --- lossless ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", [RGB, RGBA], ids=["RGB", "RGBA"])
@pytest.mark.parametrize("options", [{}, {"quality": 95}, {"exact": False}], ids=str)
def test_lossless_stays_lossless_and_exact(
    bench: Bench, pixels: NDArray[np.uint8], options: dict[str, Any]
) -> None:
    before = webp(pixels, lossless=True, **options)
    report, after = served(bench, before, quality=30)
    assert report.image.outside == "identical"
    assert [kind for kind, _ in chunks_of(after)] == [kind for kind, _ in chunks_of(before)] == [b"VP8L"]
    old, new = look(before).stored, look(after).stored
    assert np.array_equal(old[~HOLE], new[~HOLE])
    assert np.array_equal(old[..., 3:], new[..., 3:])
    visible = MARK & (new[..., 3] > 0) if new.shape[2] == 4 else MARK
    assert (new[visible][:, :3] == FILL).all()
    assert len(after) <= 1.5 * len(before)


# --- lossy -------------------------------------------------------------------------------------------------

BIG = np.kron(photo(160, 120, seed=3), np.ones((3, 3, 1), np.uint8))
SMOOTH = np.asarray(Image.fromarray(photo(120, 90, seed=4)).resize((480, 360), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("pixels", [BIG, SMOOTH], ids=["edges", "smooth"])
@pytest.mark.parametrize(
    ("quality", "least_db"), [(30, 37), (50, 38), (75, 40), (90, 41), (95, 43), (100, 43)]
)
def test_a_lossy_picture_comes_near_its_source_without_outgrowing_it(
    bench: Bench, pixels: NDArray[np.uint8], quality: int, least_db: float
) -> None:
    before = webp(pixels, quality=quality)
    mark = rectangle(480, 360, (200, 150, 230, 180))
    mask = save_mask(bench.folder / "mask.png", mark)
    report, staged = bench.done(written(bench, before), mask)
    after = staged.read_bytes()
    assert report.image.outside == "reencoded"
    assert [kind for kind, _ in chunks_of(after)] == [b"VP8 "]
    assert len(after) <= 1.5 * len(before)
    far = ~grown(mark, 24)
    assert psnr(look(before).stored[far], look(after).stored[far]) >= least_db
    assert abs(look(after).stored[mark].mean(axis=0) - FILL).max() < 4


def test_the_recipes_quality_wins(bench: Bench) -> None:
    before = webp(RGB, quality=95)
    _, after = served(bench, before, quality=20)
    assert len(after) < len(before) / 2


@pytest.mark.parametrize("quality", [10, 40, 75, 90, 100])
@pytest.mark.parametrize("method", [0, 4])
def test_the_quantiser_tells_the_quality(quality: int, method: int) -> None:
    (frame,) = (
        data for kind, data in chunks_of(webp(BIG, quality=quality, method=method)) if kind == b"VP8 "
    )
    index = quantiser_index(frame)
    assert index is not None
    assert abs(quality_of_index(index) - quality) <= 12


@pytest.mark.parametrize("quality", [10, 40, 75, 90, 99])
def test_a_frame_without_segments_has_one_quantiser(quality: int) -> None:
    """Made for icons, whose parts are all quantised alike: there the index is the quality's own."""
    data = pyvips.Image.new_from_array(BIG).webpsave_buffer(Q=quality, preset="icon", keep="none")
    (frame,) = (body for kind, body in chunks_of(data) if kind == b"VP8 ")
    index = quantiser_index(frame)
    assert index is not None
    assert abs(index - index_of_quality(quality)) <= 1


def test_quality_and_index_are_each_others_inverse() -> None:
    for quality in range(1, 101):
        assert quality_of_index(index_of_quality(quality)) == pytest.approx(quality, abs=0.01)


@pytest.mark.parametrize(
    "frame", [b"", b"\x00" * 9, b"\x01" + bytes(40), bytes(3) + b"\x9d\x01\x2b" + bytes(40)]
)
def test_what_is_no_key_frame_has_no_quantiser(frame: bytes) -> None:
    assert quantiser_index(frame) is None


def test_a_header_that_is_cut_or_random_gives_some_index_or_none() -> None:
    random = np.random.default_rng(1)
    for length in range(40):
        frame = b"\x10\x00\x00\x9d\x01\x2a\x10\x00\x10\x00" + random.bytes(length)
        index = quantiser_index(frame)
        assert index is not None
        assert 0 <= index <= 127


def test_lossy_alpha_is_the_sources_own_bytes(bench: Bench) -> None:
    before = webp(RGBA, quality=80, alpha_quality=30)
    report, after = served(bench, before)
    assert dict(chunks_of(after))[b"ALPH"] == dict(chunks_of(before))[b"ALPH"]
    assert np.array_equal(look(after).stored[..., 3], look(before).stored[..., 3])
    assert report.image.dropped_metadata == ()


def test_erased_pixels_of_a_lossy_picture_come_back_opaque(bench: Bench) -> None:
    pixels = RGBA.copy()
    pixels[..., 3] = np.where(MARK, 0, 200)
    before = webp(pixels, quality=80)
    report, staged = bench.done(written(bench, before), sources=("alpha",))
    assert report.marks == "alpha"
    new = look(staged.read_bytes()).stored
    rim = (
        cv2.dilate(MARK.astype(np.uint8), np.ones((65, 65), np.uint8)) > 0
    )  # as far as an eraser's edge goes
    assert (new[rim, 3] == 255).all()
    assert (new[~rim, 3] == 200).all()


@pytest.mark.parametrize("lossless", [False, True], ids=["lossy", "lossless"])
def test_a_picture_that_becomes_opaque_keeps_its_alpha_channel(bench: Bench, *, lossless: bool) -> None:
    pixels = RGBA.copy()
    pixels[..., 3] = np.where(MARK, 0, 255)
    before = webp(pixels, quality=80, lossless=lossless)
    _, staged = bench.done(written(bench, before), sources=("alpha",))
    with Image.open(staged) as after:
        assert after.mode == "RGBA"
        assert (np.asarray(after)[..., 3] == 255).all()


# --- chunks ------------------------------------------------------------------------------------------------

HERE = (b"here", b"")


@pytest.mark.parametrize("lossless", [False, True], ids=["lossy", "lossless"])
def test_all_other_chunks_stay_where_and_as_they_were(bench: Bench, *, lossless: bool) -> None:
    chunks = [
        (b"ICCP", sources.rgb_profile()),
        HERE,
        (b"EXIF", sources.exif(1)),
        (b"XMP ", sources.XMP),
        (b"oddl", b"an unknown one"),
    ]
    before = extended(RGB, 0x2C, chunks, lossless=lossless)
    report, after = served(bench, before)
    assert report.image.dropped_metadata == ()
    kept = [chunk for chunk in chunks_of(after) if chunk[0] not in (b"VP8 ", b"VP8L")]
    assert kept == [chunk for chunk in chunks_of(before) if chunk[0] not in (b"VP8 ", b"VP8L")]
    assert [kind for kind, _ in chunks_of(after)] == [kind for kind, _ in chunks_of(before)]
    assert look(after).tags == look(before).tags != {}


def test_exif_with_jpegs_prefix_stays_and_turns_the_picture(bench: Bench) -> None:
    block = b"Exif\x00\x00" + sources.exif(6)
    before = extended(RGB, 0x08, [HERE, (b"EXIF", block)], lossless=True)
    mark = rectangle(H, W, (40, 60, 60, 90))
    report, staged = bench.done(written(bench, before), save_mask(bench.folder / "mask.png", mark))
    after = staged.read_bytes()
    assert dict(chunks_of(after))[b"EXIF"] == block
    stored_mark = np.rot90(mark)  # 6: a quarter to the right when it is viewed
    assert (look(after).stored[stored_mark] == FILL).all()
    assert (report.image.width, report.image.height) == (W, H)


def test_pictures_of_the_picture_are_taken_out_and_named(bench: Bench) -> None:
    xmp = sources.XMP.replace(b"</rdf:RDF>", b"<xmp:Thumbnails>AAAA</xmp:Thumbnails></rdf:RDF>")
    thumbnail = sources.by_pillow(Image.fromarray(RGB[::8, ::8]), "JPEG")
    chunks = [HERE, (b"EXIF", sources.exif(1) + thumbnail), (b"XMP ", xmp), (b"C2PA", b"jumb, signed")]
    report, after = served(bench, extended(RGB, 0x0C, chunks))
    assert set(report.image.dropped_metadata) == {
        "EXIF preview",
        "XMP thumbnail",
        "content credentials (C2PA)",
    }
    assert thumbnail[30:200] not in after
    assert b"AAAA" not in after
    assert dict(chunks_of(after))[b"XMP "] == sources.XMP
    assert dict(chunks_of(after))[b"VP8X"][0] == 0x0C


def test_without_metadata_colours_and_orientation_stay(bench: Bench) -> None:
    profile = sources.rgb_profile()
    chunks = [
        (b"ICCP", profile),
        HERE,
        (b"EXIF", sources.exif(3)),
        (b"XMP ", sources.XMP),
        (b"oddl", b"an unknown one"),
    ]
    report, after = served(bench, extended(RGB, 0x2C, chunks, lossless=True), keep_metadata=False)
    assert set(report.image.dropped_metadata) == {"EXIF", "XMP", "oddl"}
    assert [kind for kind, _ in chunks_of(after)] == [b"VP8X", b"ICCP", b"VP8L", b"EXIF"]
    assert dict(chunks_of(after))[b"VP8X"][0] == 0x28
    seen = look(after)
    assert seen.orientation == 3
    assert seen.facts["icc-profile-data"] == profile
    assert b"Canon" not in after


def test_what_lies_behind_the_end_is_dropped_and_named(bench: Bench) -> None:
    report, after = served(bench, webp(RGB) + b"something else")
    assert report.image.dropped_metadata == ("14 bytes behind the end of the picture",)
    assert b"something else" not in after


# --- refused -----------------------------------------------------------------------------------------------


def frame_of(data: bytes) -> bytes:
    picture = [chunk for chunk in chunks_of(data) if chunk[0] != b"VP8X"]
    head = bytes(6) + (W - 1).to_bytes(3, "little") + (H - 1).to_bytes(3, "little") + bytes(4)
    return head + riff(picture)[12:]


@pytest.mark.parametrize("frames", [1, 2])
def test_an_animation_is_refused_also_one_of_one_frame(bench: Bench, frames: int) -> None:
    frame = (b"ANMF", frame_of(webp(RGB)))
    header = bytes([0x02, 0, 0, 0]) + (W - 1).to_bytes(3, "little") + (H - 1).to_bytes(3, "little")
    data = riff([(b"VP8X", header), (b"ANIM", bytes(6)), *[frame] * frames])
    report = bench.serve(written(bench, data), save_mask(bench.folder / "mask.png", MARK))
    assert isinstance(report, ItemFailed)
    assert report.code == "unsupported"
    assert "animated" in report.reason


def test_a_flood_of_chunks_is_undecodable(bench: Bench) -> None:
    data = riff([*chunks_of(webp(RGB)), *[(b"oddl", b"")] * 1001])
    report = bench.serve(written(bench, data), save_mask(bench.folder / "mask.png", MARK))
    assert isinstance(report, ItemFailed)
    assert report.code == "undecodable"


def test_an_unknown_chunk_that_holds_a_picture_goes_and_is_named(bench: Bench) -> None:
    stranger = sources.by_pillow(Image.fromarray(RGB), "JPEG")
    chunks = [(b"here", b""), (b"PREV", stranger), (b"MINE", b"words")]
    before = extended(RGB, 0, chunks, lossless=True)
    report, after = served(bench, before)
    assert (b"MINE", b"words") in chunks_of(after)
    assert stranger[100:200] not in after
    assert report.image.dropped_metadata == ("PREV (it holds a picture)",)
