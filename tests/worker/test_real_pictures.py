"""What the table of real pictures (`benchmarks/real_pictures.py`) is made of: picking, comparing, writing."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import real_pictures, second_opinion
from benchmarks.picture_comparison import Comparison, Outside, compare, container_of, look
from benchmarks.real_pictures import (
    Picture,
    Row,
    blob,
    inbox_name,
    mask_of,
    of_archive,
    page,
    without_repetitions,
)
from tests.worker.bench import photo

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEIGHT = 96, 64
MASK = blob(WIDTH, HEIGHT)
IPTC = b"\x1c\x02\x50\x00\x04Anna"


def jpeg(pixels: Any = None, **options: Any) -> bytes:
    target = io.BytesIO()
    picture = Image.fromarray(photo(WIDTH, HEIGHT) if pixels is None else pixels)
    picture.save(target, "JPEG", quality=95, **options)
    return target.getvalue()


def png(pixels: Any, **options: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "PNG", **options)
    return target.getvalue()


def with_segment(data: bytes, marker: int, payload: bytes) -> bytes:
    return b"".join([data[:2], bytes([0xFF, marker]), (len(payload) + 2).to_bytes(2), payload, data[2:]])


def exif(make: str = "Watcher", *, thumbnail: bytes = b"") -> bytes:
    block = Image.Exif()
    block[0x010F] = make
    block[0x0112] = 6
    return b"Exif\x00\x00" + block.tobytes().removeprefix(b"Exif\x00\x00") + thumbnail


def photoshop(*records: bytes) -> bytes:
    resources = b"".join(
        b"8BIM\x04\x04\x00\x00" + len(record).to_bytes(4) + record + b"\x00" * (len(record) % 2)
        for record in records
    )
    return b"Photoshop 3.0\x00" + resources


def comparison_of(source: bytes, result: bytes, *dropped: str) -> Comparison:
    seen = look(source)
    return compare(seen, look(result), mask_of(seen), dropped)


# --- picking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "container"),
    [
        (b"\xff\xd8\xff\xe1 a JPEG whatever its name is", "JPEG"),
        (b"II*\x00\x08\x00\x00\x00", "TIFF"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8L", "WebP"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "HEIC"),
        (b"FUJIFILMCCD-RAW 0201", "Fujifilm RAW"),
        (b"BM" + bytes(12) + b"\x28\x00\x00\x00" + bytes(36), "BMP"),
        (b"BMW is a maker of cars, and this is a text.", None),
        (b"BM" + bytes(12) + b"\x28kg of coal, and this is a text as well.", None),
        (b"\x89PN", None),
        (b"", None),
    ],
)
def test_a_picture_is_known_by_its_first_bytes(head: bytes, container: str | None) -> None:
    assert container_of(head) == container


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_pictures_of_an_archive_are_found_and_each_once(tmp_path: Path, kind: str) -> None:
    files = {
        "a/x.bin": jpeg(),
        "a/notes.txt": b"BM, not a picture",
        "b/y.png": png(photo(8, 8)),
        "c/z.jpg": jpeg(),
    }
    archive = tmp_path / f"package.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as members:
            for name, data in files.items():
                members.writestr(name, data)
    else:
        with tarfile.open(archive, "w:gz") as members:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                members.addfile(entry, io.BytesIO(data))

    found = without_repetitions(of_archive("package 1.0", archive))

    assert [(picture.path, picture.data) for picture in found] == [
        ("a/x.bin", files["a/x.bin"]),
        ("b/y.png", files["b/y.png"]),
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("t/IMG_1.JPG", "IMG_1.JPG"),
        ("t/smiley.jpg.c1gd", "smiley.jpg.c1gd.jpg"),
        ("t/hopper_mask.png", "hopper_msk.png"),
    ],
)
def test_a_name_in_the_inbox_is_one_that_the_service_takes(path: str, name: str) -> None:
    assert inbox_name(Picture("package", path, jpeg())) == name


@pytest.mark.parametrize(("width", "height"), [(1, 1), (8, 8), (3, 500), (640, 480), (1600, 1200)])
def test_a_blob_is_small_and_away_from_the_middle(width: int, height: int) -> None:
    mark = blob(width, height)

    assert mark.shape == (height, width)
    assert mark.any()
    if min(width, height) > 8:
        assert not mark[height // 2, width // 2]
        across = int(mark.any(axis=0).sum())
        assert across == pytest.approx(0.08 * min(width, height), abs=3)


# --- comparing ---------------------------------------------------------------------------------------------


def test_the_same_file_differs_in_nothing() -> None:
    data = with_segment(jpeg(exif=exif()), 0xED, photoshop(IPTC))

    found = comparison_of(data, data)

    assert (found.named, found.unnamed) == ((), ())
    assert found.outside == Outside(0, 0, 0.0, float("inf"), 0)
    assert {"container", "size", "orientation", "form", "EXIF", "IPTC records", "2 EXIF tags"} <= set(
        found.same
    )


def test_pixels_outside_the_hole_are_told_from_those_inside() -> None:
    before = photo(WIDTH, HEIGHT)
    inside = before.copy()
    inside[MASK] ^= 255
    outside = inside.copy()
    outside[-1, -1] ^= 16

    only_the_hole = comparison_of(png(before), png(inside))
    far_away = comparison_of(png(before), png(outside))

    assert only_the_hole.outside is not None
    assert only_the_hole.outside.text == "identical"
    assert only_the_hole.hole_changed_px == int(MASK.sum())
    assert far_away.outside is not None
    assert (far_away.outside.changed_px, far_away.outside.max) == (1, 16)
    assert far_away.outside.farthest_px > 32


@pytest.mark.parametrize(
    ("result", "dropped", "word"),
    [
        (jpeg(), (), "EXIF gone"),
        (jpeg(exif=exif("Watchet")), (), "tags changed: Image Make"),
        (with_segment(jpeg(exif=exif()), 0xE1, b"http://ns.adobe.com/xap/1.0\x00<x/>"), (), ""),
        (jpeg(photo(WIDTH + 1, HEIGHT), exif=exif()), (), "size changed ((96, 64) to (97, 64))"),
        (png(photo(WIDTH, HEIGHT)), (), "container changed (JPEG to PNG)"),
        (jpeg(photo(WIDTH, HEIGHT)[..., 0], exif=exif()), (), "form changed (RGB 8 bit to L 8 bit)"),
        (jpeg(exif=exif(), subsampling=0), (), "jpeg-chroma-subsample changed (4:2:0 to 4:4:4)"),
    ],
)
def test_what_differs_without_a_word_is_told(result: bytes, dropped: tuple[str, ...], word: str) -> None:
    found = comparison_of(jpeg(exif=exif()), result, *dropped)

    assert any(text.startswith(word) for text in found.unnamed) if word else not found.unnamed


def test_tags_that_are_lost_are_named() -> None:
    block = Image.Exif()
    block[0x0112] = 6

    found = comparison_of(jpeg(exif=exif()), jpeg(exif=block))

    assert "tags lost: Image Make" in found.unnamed


def test_what_the_record_names_is_no_difference() -> None:
    source = with_segment(jpeg(), 0xE0, b"JFXX\x00\x10thumbnail")

    assert comparison_of(source, jpeg(), "JFXX thumbnail").unnamed == ()
    assert comparison_of(source, jpeg(), "JFXX thumbnail").named == ("JFXX gone",)
    assert comparison_of(source, jpeg(), "comment").unnamed == ("JFXX gone",)


def test_iptc_records_are_looked_for_in_a_block_that_may_change() -> None:
    source = with_segment(jpeg(), 0xED, photoshop(IPTC))
    without = with_segment(jpeg(), 0xED, photoshop())

    assert comparison_of(source, without, "Photoshop thumbnail").unnamed == ("IPTC records gone",)


def test_an_old_picture_that_is_still_inside_is_found() -> None:
    small = jpeg(photo(32, 24))
    source = jpeg(exif=exif(thumbnail=small))

    assert any("embedded picture" in text for text in comparison_of(source, source).unnamed)
    assert not any("embedded" in text for text in comparison_of(source, jpeg(exif=exif())).unnamed)


@pytest.mark.parametrize("cut", [0.002, 0.2, 0.6, 0.99])
@pytest.mark.parametrize("make", [jpeg, lambda: png(photo(WIDTH, HEIGHT))])
def test_a_damaged_file_is_no_error(make: Any, cut: float) -> None:
    whole = make()

    assert look(whole[: int(len(whole) * cut)]).complaint


def test_a_result_that_cannot_be_read_is_told() -> None:
    found = comparison_of(jpeg(), jpeg()[:40])

    assert "the result's pixels cannot be read" in found.unnamed
    assert found.outside is None


# --- exiftool's opinion ------------------------------------------------------------------------------------

SAID = """\
======== {first}
[ExifTool]      ExifToolVersion                 : 12.57
[System]        FileSize                        : 16445
[IFD0]          Make                            : NIKON
[IFD1]          Compression                     : 6
[IPTC]          Keywords                        : a
[IPTC]          Keywords                        : b
======== {second}
[IFD0]          Make                            : NIKON
[IPTC]          Keywords                        : b
    2 image files read
"""


def test_exiftool_s_words_become_tags_by_file_and_differences_by_name(tmp_path: Path) -> None:
    program = tmp_path / "exiftool"
    first, second = tmp_path / "in.jpg", tmp_path / "out: 2.jpg"
    said = SAID.format(first=first, second=second)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n", "utf-8")
    program.chmod(0o755)

    seen = second_opinion.read(str(program), [first, second])

    assert seen[first]["IPTC:Keywords"] == ["a", "b"]
    assert "System:FileSize" not in seen[first]
    assert second_opinion.differences(seen[first], seen[second], ["EXIF thumbnail"]) == (
        ["IFD1:Compression lost"],
        ["IPTC:Keywords fewer"],
    )


# --- the page ----------------------------------------------------------------------------------------------


def row(path: str, outcome: str = "done", *, unnamed: tuple[str, ...] = (), **more: Any) -> Row:
    comparison = (
        Comparison(("size", "EXIF", "tEXt"), (), unnamed, Outside(3, 2, 0.5, 51.25, 7), 9)
        if outcome == "done"
        else None
    )
    fields: dict[str, Any] = {"maker": "", "complaint": "", "reason": "", **more}
    return Row(
        "package 1.0", path, "JPEG", "RGB 8 bit", 8, 6, outcome=outcome, comparison=comparison, **fields
    )


def test_the_page_lists_who_made_what_and_what_is_odd_and_counts_the_rest() -> None:
    rows = [
        row("t/camera.jpg", maker="Acme | One", dropped=("EXIF thumbnail",)),
        row("t/plain.jpg"),
        row("t/odd.jpg", unnamed=("IPTC records gone",)),
        row("t/cut.jpg", "failed", reason="the JPEG is damaged at byte 17"),
        row("t/cut2.jpg", "failed", reason="the JPEG is damaged at byte 2"),
        row("t/lost.jpg", "no answer"),
    ]

    lines = page(rows, ["package 1.0"], exiftool="12.57").splitlines()

    table = [line for line in lines if line.startswith("| package 1.0: ")]
    assert [line.split(" | ")[0] for line in table] == [
        "| package 1.0: camera.jpg",
        "| package 1.0: lost.jpg",
        "| package 1.0: odd.jpg",
    ]
    assert "Acme \\| One" in table[0]
    assert table[0].endswith("| EXIF, tEXt | EXIF thumbnail |  |")
    assert table[2].endswith("| EXIF, tEXt |  | IPTC records gone |")
    assert "| 2 | the JPEG is damaged at byte N | cut.jpg |" in lines
    assert "- Outcomes: 3 done, 2 failed, 1 no answer." in lines
    assert any("51.2 dB" in line for line in lines)
    assert any(line.startswith("exiftool 12.57 ") for line in lines)


def test_the_pinned_distributions_are_named_once_with_a_digest() -> None:
    names = [distribution.name for distribution in real_pictures.DISTRIBUTIONS]

    assert len(set(names)) == len(names)
    assert all(len(bytes.fromhex(d.sha256)) == 32 for d in real_pictures.DISTRIBUTIONS)


def test_an_archive_with_other_bytes_is_not_taken(tmp_path: Path) -> None:
    chosen = real_pictures.DISTRIBUTIONS[0]
    (tmp_path / f"{chosen.name}-{chosen.version}.tar.gz").write_bytes(np.arange(8).tobytes())

    assert real_pictures._archive(chosen, tmp_path) is None
