"""From an arrival to a published result, through the running service (issue 2, items 2, 3, 6 and 7)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.service.harness import assert_adds_up, encoded, mask, picture, pixels, sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

ORIENTATION = 0x0112
ROTATED = 6
"""Orientation: the viewer turns the stored picture a quarter clockwise."""


def test_a_12_megapixel_photo_keeps_its_size_format_metadata_and_all_pixels_outside_the_hole(
    service: Service,
) -> None:
    width, height = 4000, 3000
    y, x = np.mgrid[0:height, 0:width]
    grain = np.random.default_rng(7).integers(0, 12, (height, width), dtype=np.uint8)
    stored = np.stack([x // 20 + grain, y // 15 + grain, (x + y) // 40 + grain], axis=-1).astype(np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    exif[0x010F] = "A camera maker"
    data = encoded(stored, "JPEG", quality=92, exif=exif, dpi=(300, 300))
    # drawn on what a person sees: the hole of 300 x 200 in the turned picture is 200 x 300 in the stored one
    drawn = mask(height, width, box=(1400, 2000, 1700, 2200))
    service.put("holiday/photo.jpg", data, drawn)

    record = service.wait_record("holiday/photo.jpg")

    with Image.open(io.BytesIO(data)) as source, Image.open(service.output_of(record)) as result:
        assert (result.format, result.size) == ("JPEG", (width, height))
        assert result.info["dpi"] == source.info["dpi"]
        assert dict(result.getexif()) == dict(source.getexif())
        assert result.quantization == source.quantization  # type: ignore[attr-defined]  # of JPEG files only
        before, after = np.asarray(source, np.int16), np.asarray(result, np.int16)
    top, bottom, left, right = 1300, 1600, 2000, 2200
    grown = max(4, width // 200)
    outside = np.ones((height, width), bool)
    outside[top - grown : bottom + grown, left - grown : right + grown] = False
    difference = np.abs(before - after).max(axis=-1)
    assert difference[~outside].max() > 8, "nothing was filled"
    # what is left is rounding of one more encoding with the source's own tables
    assert np.percentile(difference[outside], 99.9) <= 3
    assert difference[outside].mean() < 0.5
    image = record["image"]
    assert (image["format"], image["width"], image["height"]) == ("JPEG", width, height)
    assert 200 * 300 <= image["hole_px"] <= 240 * 340 + 1
    assert image["model_px"] < 0.05 * width * height
    assert image["dropped_metadata"] == []


@pytest.mark.parametrize("first", ["mask", "picture"])
def test_mask_and_picture_may_come_in_any_order(service: Service, first: str) -> None:
    name = f"order/{first}-first.png"
    service.put(name, first=first)

    record = service.wait_record(name)

    assert (record["marks"], record["outcome"], record["output"]) == ("mask", "done", name)


def test_the_second_file_may_come_while_the_first_is_looked_at(service: Service) -> None:
    for number in range(8):
        name = f"race/{number}.png"
        first, second = (name, f"{name}.mask.png") if number % 2 else (f"{name}.mask.png", name)
        content = {name: picture(1000 + number), f"{name}.mask.png": mask()}
        service.place(first, content[first])
        service.place(second, content[second])
        service.expect(name, content[name], content[f"{name}.mask.png"])
    for number in range(8):
        service.wait_record(f"race/{number}.png")


def test_an_unmarked_picture_is_held_with_a_note_that_tells_how_to_mark_it_until_its_mask_comes(
    service: Service,
) -> None:
    name = "later/unmarked.png"
    data = picture(42)
    service.place(name, data)

    note = service.wait_note("held", name)

    assert note["state"] == "held"
    assert "unmarked.png.mask.png" in note["how_to_mark"]
    assert "white" in note["how_to_mark"]
    assert service.records_of(name, outcome=()) == []
    assert name not in service.outputs()

    service.place(f"{name}.mask.png", mask())
    service.expect(name, data, mask())
    record = service.wait_record(name)
    service.wait_no_note("held", name)

    assert record["attempt"] == 1
    # an hour of waiting for a mask is nobody's slowness: the chain starts with the last file that was needed
    assert record["segments_ms"]["settle"] < 1000
    with Image.open(service.output_of(record)) as result:
        assert result.size == (96, 64)


def test_an_empty_mask_says_that_nothing_is_to_go(service: Service) -> None:
    name = "nothing.png"
    data = picture(43)
    service.put(name, data, mask(box=(0, 0, 0, 0)))

    record = service.wait_record(name)

    assert (record["outcome"], record["reason"]) == ("unchanged", "mask is empty")
    assert service.output_of(record).read_bytes() == data


def test_pixels_outside_the_mask_are_identical_in_a_lossless_picture(service: Service) -> None:
    before = pixels(44)
    service.put("lossless.png", encoded(before))

    with Image.open(service.output_of(service.wait_record("lossless.png"))) as result:
        after = np.asarray(result)

    inside = np.zeros(before.shape[:2], bool)
    inside[24 - 4 : 32 + 4, 40 - 4 : 48 + 4] = True
    assert np.array_equal(before[~inside], after[~inside])
    assert not np.array_equal(before[inside], after[inside])


def test_masks_in_a_masks_folder_and_by_stem_are_found(service: Service) -> None:
    for name, its_mask in (("stems/a.jpg", "stems/a_mask.png"), ("stems/b.jpg", "stems/masks/b.png")):
        data = encoded(pixels(len(its_mask)), "JPEG")
        service.place(its_mask, mask())
        service.place(name, data)
        service.expect(name, data, mask())

    for name in ("stems/a.jpg", "stems/b.jpg"):
        assert service.wait_record(name)["marks"] == "mask"


def test_a_record_says_what_ran_and_with_which_evidence(service: Service) -> None:
    service.put("record.png")

    record = service.wait_record("record.png")

    assert (record["schema"], record["event"], record["recipe"]) == (1, "job.finished", "default")
    assert (record["path"], record["path_reason"]) == ("hot", "ready")
    assert record["worker"]["pid"] == service.worker_pid()
    assert record["engine"]["configured"] == record["engine"]["actual"] == "patchmatch"
    assert record["device"]["configured"] == "auto"
    assert record["device"]["actual"] == record["device"]["evidence"]["output"] == "cpu"
    assert set(record["device"]["evidence"]) == {"parameters", "output", "kernel_time_share", "fallback_ops"}
    assert record["image"]["sha256_out"] == sha256(service.output_of(record))


def test_the_chain_adds_up_whatever_became_of_a_job(new_service: Callable[..., Service]) -> None:
    """Item 7 for cold, hot, held and then done, failed, duplicate, superseded, retried; never mind the machine."""
    service = new_service("[arrivals]", "quiet_s = 0.3", faults="hot:slow_start=1.5")
    service.start(ready=False)
    service.wait_log("inbox.found")
    service.put("hot.png")
    service.place("failed.png", b"no picture at all" * 100)
    service.place("failed.png.mask.png", mask())
    held = picture(3)
    service.place("held.png", held)
    service.wait_note("held", "held.png")
    service.place("held.png.mask.png", mask())
    service.expect("held.png", held, mask())
    service.wait_record("held.png")
    service.put("twin.png", picture(5))
    service.put("twin-2.png", picture(5))
    service.wait_record("twin-2.png")
    service.kill9()
    service.faults = ""
    service.start()
    os_worker = service.worker_pid()
    assert os_worker

    service.assert_sound()

    outcomes = {record["outcome"] for record in service.records()}
    assert outcomes >= {"done", "failed"}
    for record in service.records():
        assert_adds_up(record)
