"""Every format, mode and layout, every orientation, every place of a hole: what came back, by another reader.

One test a row of `rows.ROWS`; inside it, each orientation and place goes through the worker's front door, and
everything that differs is told at once: orientation, place, and what.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.worker import independent, sources
from tests.worker.bench import save_mask
from tests.worker.comparison import as_stored, as_viewed, differences, touched
from tests.worker.rows import ROWS, PngKind, Row, TiffKind, scene
from watcher.wire import ItemDone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

    Mask = NDArray[np.bool_]
    Drawn = dict[tuple[int, str], tuple[Path, Mask]]

W, H = 83, 59
"""Multiples of neither 8 nor 16, whichever way up."""


def holes(width: int, height: int) -> dict[str, Mask]:
    """Return an L in the middle, one at the upper border, and one in the lower right corner."""
    centre, border, corner = (np.zeros((height, width), np.bool_) for _ in range(3))
    top, left = height // 2 - 9, width // 2 - 10
    centre[top : top + 17, left : left + 12] = True
    centre[top + 7 : top + 17, left : left + 21] = True
    border[:13, width // 3 : width // 3 + 19] = True
    corner[-15:, -17:] = True
    corner[-9:, -23:] = True
    return {"centre": centre, "border": border, "corner": corner}


# --- the matrix --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """Mask files by the width of the picture as it is seen, and by place."""
    folder = tmp_path_factory.mktemp("masks")
    return {
        (width, place): (save_mask(folder / f"{place}-{width}.png", hole), hole)
        for width, height in ((W, H), (H, W))
        for place, hole in holes(width, height).items()
    }


PLACES = ("centre", "border", "corner")


def ways(row: Row, *, wholly: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Return each orientation with the places to try in it."""
    start = zlib.crc32(row.name.encode())
    for orientation in row.orientations:
        yield orientation, PLACES if wholly else (PLACES[(start + orientation) % 3],)


def tried(row: Row, bench: Bench, drawn: Drawn, *, wholly: bool) -> Iterator[str]:
    """Send a row's picture through the worker in each orientation with holes, and tell what differs."""
    for orientation, places in ways(row, wholly=wholly):
        source = bench.folder / f"{orientation}-{row.name}"
        source.write_bytes(row.encode(scene(W, H), orientation))
        before = independent.look(source.read_bytes())
        width = before.viewed.shape[1]
        assert width == (H if orientation >= 5 else W)
        for place in places:
            mask, hole = drawn[width, place]
            report = bench.serve(source, mask, grow_px=0)
            if not isinstance(report, ItemDone):
                yield f"orientation {orientation}, {place}: refused: {report}"
                continue
            after = independent.look((bench.folder / "staging" / f"{source.name}.staged").read_bytes())
            for difference in differences(row, report.image, before, after, hole):
                yield f"orientation {orientation}, {place}: {difference}"


def check(row: Row, told: list[str]) -> None:
    if told:
        pytest.fail("\n".join([f"{row.name}: {len(told)} differences", *told[:40]]), pytrace=False)


@pytest.mark.parametrize("name", ROWS)
def test_a_picture_comes_back_as_it_went_in_but_for_the_hole(bench: Bench, drawn: Drawn, name: str) -> None:
    row = ROWS[name]
    check(row, list(tried(row, bench, drawn, wholly=not row.in_turn)))


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.in_turn])
def test_so_do_the_rows_that_are_tried_in_turn(bench: Bench, drawn: Drawn, name: str) -> None:
    row = ROWS[name]
    check(row, list(tried(row, bench, drawn, wholly=True)))


# --- the instruments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, row in ROWS.items()
        if isinstance(row.encode, PngKind | TiffKind) and not row.encode.entries and row.fill != "near"
    ],
)
def test_the_reader_sees_the_very_samples_that_were_written(name: str) -> None:
    kind = ROWS[name].encode
    assert isinstance(kind, PngKind | TiffKind)
    wanted = kind.samples(scene(W, H)).reshape(H, W, -1)
    depth = kind.depth if isinstance(kind, PngKind) else kind.layout.depth
    if depth < 8:
        wanted = wanted * np.uint8(255 // ((1 << depth) - 1))
    if isinstance(kind, TiffKind) and kind.layout.photometric == 0:
        wanted = ~wanted
    seen = independent.look(kind(scene(W, H), 1))
    assert seen.stored.dtype == wanted.dtype
    assert np.array_equal(seen.stored[..., : wanted.shape[2]], wanted)
    assert seen.facts.get("bits-per-sample", depth) == depth


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.container not in ("BMP", "GIF")])
def test_the_reader_sees_the_metadata_that_was_written(name: str) -> None:
    seen = independent.look(ROWS[name].encode(scene(W, H), 1))
    assert seen.tags["MakerNote OwnerName"] == "Somebody with a long name"
    assert seen.tags["GPS GPSLatitude"][:2] == [48, 8]
    assert seen.tags["Image Make"] == "Canon"
    assert seen.facts["xmp-data"] == sources.XMP
    assert seen.facts["icc-profile-data"][36:40] == b"acsp"
    if seen.container in ("JPEG", "TIFF"):
        assert sources.IPTC in seen.facts["iptc-data"]
    if seen.container in ("JPEG", "TIFF", "PNG") and name != "jpeg-rgb-coded":
        assert seen.facts["xres"] == pytest.approx(300 / 25.4, rel=1e-3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_by_the_same_rule_here_and_in_the_reader(orientation: int) -> None:
    seen = independent.look(ROWS["png-rgb8"].encode(scene(W, H), orientation))
    assert np.array_equal(seen.viewed, as_viewed(seen.stored, orientation))
    assert np.array_equal(as_stored(seen.viewed, orientation), seen.stored)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.outside == "blocks"])
def test_the_holes_leave_most_of_a_jpeg_to_be_compared(name: str) -> None:
    for orientation in (1, 6):
        seen = independent.look(ROWS[name].encode(scene(W, H), orientation))
        for hole in holes(*seen.viewed.shape[1::-1]).values():
            assert 0.05 < touched(hole, seen).mean() < 0.7


def test_the_reader_notices_a_maker_note_that_was_moved() -> None:
    block = sources.exif(1)
    assert independent.tags_of(block)["MakerNote OwnerName"] == "Somebody with a long name"
    at = block.index(b"\x00\x03\x00\x06\x00\x02")
    moved = block[:at] + bytes(4) + block[at:]
    assert independent.tags_of(moved) != independent.tags_of(block)
