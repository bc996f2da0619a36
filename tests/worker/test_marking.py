"""Which source's mark counts, through the door by which every picture comes in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pyvips
from PIL import Image, ImageCms

from tests.worker.bench import photo, rectangle, save_mask
from watcher.regions import region_from
from watcher.wire import ItemDone, ItemFailed, ItemHeld, ItemIncomplete
from watcher.worker.imaging.marker import marker_colours

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

W, H = 320, 240
PHOTO = photo(W, H)
PICTURE = Image.fromarray(PHOTO)
BY_MASK, BY_COPY, BY_SIDECAR, BY_REGION, BY_COLOUR = (
    (20, 20, 60, 50),
    (100, 20, 140, 60),
    (20, 120, 70, 160),
    (200, 150, 250, 190),
    (200, 20, 260, 70),
)
ALL = ("mask", "marked_copy", "sidecar", "colour", "regions")
TURNED = 6


def source(bench: Bench, image: Image.Image = PICTURE, name: str = "a.png", **options: Any) -> Path:
    path = bench.folder / name
    image.save(path, **options)
    return path


def marked_copy(
    bench: Bench, image: Image.Image = PICTURE, box: tuple[int, int, int, int] | None = BY_COPY
) -> Path:
    copy = image.convert("RGB")
    if box is not None:
        copy.paste((255, 230, 0), box)
    path = bench.folder / "a.marked.png"
    copy.save(path)
    return path


def sidecar(bench: Bench, *boxes: tuple[int, int, int, int], **fields: Any) -> Path:
    regions = [{"box": [left, top, right - left, bottom - top]} for left, top, right, bottom in boxes]
    path = bench.folder / "a.png.marks.json"
    path.write_text(json.dumps({"schema": 1, "regions": regions, **fields}))
    return path


def mask_file(bench: Bench, mask: NDArray[np.bool_]) -> Path:
    return save_mask(bench.folder / "a.png.mask.png", mask)


def region(box: tuple[int, int, int, int]) -> Any:
    left, top, right, bottom = box
    return region_from({"box": [left, top, right - left, bottom - top]})


def is_filled(staged: Path, box: tuple[int, int, int, int], before: NDArray[np.uint8] = PHOTO) -> bool:
    """Whether the middle of a box was changed; the rest of the picture may have been elsewhere."""
    left, top, right, bottom = box
    row, column = (top + bottom) // 2, (left + right) // 2
    after = np.asarray(Image.open(staged).convert("RGB"))
    return not np.array_equal(after[row, column], before[row, column])


@pytest.mark.parametrize(
    ("kind", "box"),
    [("mask", BY_MASK), ("marked_copy", BY_COPY), ("sidecar", BY_SIDECAR)],
)
def test_a_mark_file_marks_by_its_kind_and_comes_before_what_is_in_the_picture(
    bench: Bench, kind: str, box: tuple[int, int, int, int]
) -> None:
    files = {
        "mask": mask_file(bench, rectangle(W, H, BY_MASK)),
        "marked_copy": marked_copy(bench),
        "sidecar": sidecar(bench, BY_SIDECAR),
    }
    regions = (region(BY_REGION),)
    report, staged = bench.done(source(bench), files[kind], mark_file_kind=kind, sources=ALL, regions=regions)
    assert report.marks == kind
    assert is_filled(staged, box)
    assert not is_filled(staged, BY_REGION)


def test_strokes_come_before_regions_in_the_order_of_the_recipe(bench: Bench) -> None:
    painted = PICTURE.copy()
    painted.paste((255, 0, 255), BY_COLOUR)
    path, regions = source(bench, painted), (region(BY_REGION),)
    before = np.asarray(painted)
    report, staged = bench.done(path, sources=ALL, regions=regions)
    assert report.marks == "colour"
    assert is_filled(staged, BY_COLOUR, before)
    assert not is_filled(staged, BY_REGION, before)
    report, staged = bench.done(path, sources=("regions", "colour"), regions=regions)
    assert report.marks == "regions"
    assert is_filled(staged, BY_REGION, before)
    assert not is_filled(staged, BY_COLOUR, before)


def test_another_colour_of_strokes(bench: Bench) -> None:
    painted = PICTURE.copy()
    painted.paste((0, 255, 136), BY_COLOUR)
    path = source(bench, painted)
    assert isinstance(bench.serve(path, sources=("colour",)), ItemHeld)
    report, staged = bench.done(path, sources=("colour",), colour="#00FF88")
    assert report.marks == "colour"
    assert is_filled(staged, BY_COLOUR, np.asarray(painted))


@pytest.mark.parametrize(("times", "is_told"), [(1, False), (2, False), (4, True)])
def test_a_marked_copy_that_is_much_smaller_marks_coarsely_and_it_is_told(
    bench: Bench, times: int, *, is_told: bool
) -> None:
    big = Image.fromarray(photo(1600, 1200))
    small = big.resize((1600 // times, 1200 // times), Image.Resampling.LANCZOS)
    small.paste((255, 230, 0), (100 // times, 100 // times, 500 // times, 400 // times))
    copy = bench.folder / "a.marked.png"
    small.save(copy)
    report, staged = bench.done(source(bench, big), copy, mark_file_kind="marked_copy", sources=ALL)
    assert is_filled(staged, (100, 100, 500, 400), np.asarray(big))
    assert (report.reason is not None and "4.0 times smaller" in report.reason) == is_told


def test_a_marked_copy_without_a_difference_leaves_it_to_the_next_source(bench: Bench) -> None:
    copy = marked_copy(bench, box=None)
    report = bench.serve(source(bench), copy, mark_file_kind="marked_copy", sources=ALL)
    assert isinstance(report, ItemHeld)
    assert report.reason == "the marked copy shows no difference from the picture"
    regions = (region(BY_REGION),)
    done, _ = bench.done(source(bench), copy, mark_file_kind="marked_copy", sources=ALL, regions=regions)
    assert done.marks == "regions"
    done, _ = bench.done(source(bench), copy, mark_file_kind="marked_copy", sources=ALL, unmarked="copy")
    assert (done.outcome, done.reason) == ("unchanged", report.reason)


@pytest.mark.kind("PA11")
def test_a_sidecar_without_regions_is_a_statement(bench: Bench) -> None:
    report, staged = bench.done(
        source(bench), sidecar(bench), mark_file_kind="sidecar", sources=ALL, regions=(region(BY_REGION),)
    )
    assert (report.outcome, report.marks) == ("unchanged", "sidecar")
    assert report.reason is not None
    assert "names no region" in report.reason
    assert staged.read_bytes() == (bench.folder / "a.png").read_bytes()
    assert bench.engine.seen == []


def test_a_mark_file_that_the_recipe_does_not_look_for_is_not_even_read(bench: Bench) -> None:
    missing = bench.folder / "gone.marks.json"
    report = bench.serve(source(bench), sources=("mask",), mark_file=str(missing), mark_file_kind="sidecar")
    assert isinstance(report, ItemHeld)
    assert report.reason is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": 1, "regions": [{"box": [0, 0, 10]}]}', "box"),
        ('{"schema": 1, "regions": [{"box": [9000, 0, 10, 10]}]}', "regions[1]"),
        ('{"schema": 1, "size": [100, 100], "regions": [{"box": [0, 0, 10, 10]}]}', "100x100"),
        ("[]", "object"),
        ('{"schema": 2, "regions": []}', "schema"),
    ],
)
def test_a_sidecar_that_cannot_be_used_is_refused_and_names_the_field(
    bench: Bench, text: str, words: str
) -> None:
    path = sidecar(bench)
    path.write_text(text)
    report = bench.serve(source(bench), path, mark_file_kind="sidecar", sources=ALL)
    assert isinstance(report, ItemFailed)
    assert report.code == ("mask_mismatch" if "100x100" in words else "mask_undecodable")
    assert "the sidecar cannot be used" in report.reason
    assert words in report.reason
    assert report.remedy


def test_regions_of_a_recipe_that_cannot_be_drawn_refuse_the_picture_and_say_so(bench: Bench) -> None:
    zigzag = [[(index % 2) * 300, index % 7 * 40] for index in range(9999)]
    regions = tuple(region_from({"polygon": zigzag}) for _ in range(8))
    report = bench.serve(source(bench), sources=("regions",), regions=regions)
    assert isinstance(report, ItemFailed)
    assert report.code == "mask_undecodable"
    assert "the recipe's regions cannot be used" in report.reason


@pytest.mark.parametrize("data", [b"", b'{"schema": 1, "regions": [{"box": [0, 0'])
def test_a_sidecar_that_is_still_being_written_is_waited_for(bench: Bench, data: bytes) -> None:
    path = sidecar(bench)
    path.write_bytes(data)
    report = bench.serve(source(bench), path, mark_file_kind="sidecar", sources=ALL)
    assert isinstance(report, ItemIncomplete)
    assert "sidecar" in report.reason


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"no picture at all", "mask_undecodable", "the marked copy cannot be used"),
        (b"GIF87a" + bytes(40), None, "the marked copy"),
    ],
)
def test_a_marked_copy_that_cannot_be_read(bench: Bench, data: bytes, code: str | None, words: str) -> None:
    path = bench.folder / "a.marked.png"
    path.write_bytes(data)
    report = bench.serve(source(bench), path, mark_file_kind="marked_copy", sources=ALL)
    assert isinstance(report, ItemFailed | ItemIncomplete)
    assert words in report.reason
    if isinstance(report, ItemFailed):
        assert report.code == (code or report.code)


def test_marks_are_drawn_on_what_the_person_saw(bench: Bench) -> None:
    """The picture is stored on its side; each source marks where it is seen."""
    exif = Image.Exif()
    exif[274] = TURNED
    stored = PICTURE.transpose(Image.Transpose.ROTATE_90)
    path = source(bench, stored, "a.jpg", exif=exif, quality=95, subsampling=0)
    before = np.asarray(Image.open(path).convert("RGB"))
    seen = np.rot90(before, -1)
    marked = Image.fromarray(seen)
    files: list[tuple[str, Path | None]] = [
        ("mask", mask_file(bench, rectangle(W, H, BY_COPY))),
        ("marked_copy", marked_copy(bench, marked)),
        ("sidecar", sidecar(bench, BY_COPY)),
        ("regions", None),
    ]
    left, top, right, bottom = BY_COPY
    for kind, file in files:
        how: dict[str, Any] = (
            {"mark_file_kind": kind} if file is not None else {"regions": (region(BY_COPY),)}
        )
        report, staged = bench.done(path, file, sources=ALL, **how)
        assert report.marks == kind
        after = np.rot90(np.asarray(Image.open(staged)).astype(int), -1)
        changed = np.abs(after - seen.astype(int)).max(axis=2) > 30
        rows, columns = np.nonzero(changed)
        assert left - 12 < columns.min() <= columns.max() < right + 12, kind
        assert top - 12 < rows.min() <= rows.max() < bottom + 12, kind
        assert changed[top + 4 : bottom - 4, left + 4 : right - 4].mean() > 0.9, kind


# --- one mask for all pictures of a recipe -----------------------------------------------------------------


def test_a_region_mask_marks_every_picture_of_its_recipe(bench: Bench) -> None:
    mask = save_mask(bench.folder / "stamp.png", rectangle(W, H, BY_MASK))
    regions = (region(BY_REGION),)
    report, staged = bench.done(source(bench), sources=("regions",), region_mask=str(mask), regions=regions)
    assert report.marks == "regions"
    assert is_filled(staged, BY_MASK)
    assert is_filled(staged, BY_REGION), "besides its regions"


def test_a_region_mask_is_scaled_and_inverted_like_any_mask(bench: Bench) -> None:
    mask = save_mask(bench.folder / "stamp.png", ~rectangle(2 * W, 2 * H, (40, 40, 120, 100)))
    report, staged = bench.done(source(bench), sources=("regions",), region_mask=str(mask), invert=True)
    assert is_filled(staged, BY_MASK)
    assert not is_filled(staged, BY_REGION)
    assert report.reason is not None
    assert "scaled" in report.reason


@pytest.mark.parametrize("wrong", ["gone", "cut", "text", "shape"])
def test_a_region_mask_that_cannot_be_used_refuses_the_picture_and_says_so(bench: Bench, wrong: str) -> None:
    mask = save_mask(bench.folder / "stamp.png", rectangle(W, H, BY_MASK))
    match wrong:
        case "gone":
            mask.unlink()
        case "cut":
            mask.write_bytes(mask.read_bytes()[:-30])
        case "text":
            mask.write_bytes(b"not a picture")
        case "shape":
            save_mask(mask, rectangle(W, W, BY_MASK))
    report = bench.serve(source(bench), sources=("regions",), region_mask=str(mask))
    assert isinstance(report, ItemFailed)
    assert report.code in {"mask_undecodable", "mask_mismatch"}
    assert "`region_mask` cannot be used" in report.reason
    assert "watcher retry" in report.remedy


def test_regions_that_lie_outside_are_nothing(bench: Bench) -> None:
    report = bench.serve(source(bench), sources=("regions",), regions=(region((5000, 5000, 5010, 5010)),))
    assert isinstance(report, ItemHeld)


def test_a_picture_is_not_decoded_where_nothing_can_mark_it(bench: Bench) -> None:
    path = source(bench)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)  # pixels that no decoder reads
    path.write_bytes(data)
    assert isinstance(bench.serve(path), ItemHeld)
    assert isinstance(bench.serve(path, sources=("mask", "colour")), ItemFailed)
    assert isinstance(bench.serve(path, sources=("alpha",)), ItemHeld), "no pixel of it can be transparent"
    assert not isinstance(bench.serve(path, sources=("regions",), regions=(region(BY_REGION),)), ItemDone)


def test_strokes_are_found_in_the_pictures_own_colour_space(bench: Bench) -> None:
    """An editor that heeds profiles writes the pen's colour as it is in the picture's."""
    plain = pyvips.Image.black(1, 1, bands=3).copy(interpretation="srgb")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    wide = plain.icc_transform("p3", input_profile="srgb").get("icc-profile-data")
    painted = PICTURE.copy()
    (marker,) = set(marker_colours((255, 0, 255), wide)) - {(255, 0, 255)}
    painted.paste(marker, BY_COLOUR)
    path = source(bench, painted, icc_profile=wide)
    report, staged = bench.done(path, sources=("colour",))
    assert report.marks == "colour"
    assert is_filled(staged, BY_COLOUR, np.asarray(painted))
    assert isinstance(bench.serve(source(bench, painted, icc_profile=profile), sources=("colour",)), ItemHeld)
