"""From an arrival to a published result, through the running service (issue 2, items 2, 3, 6 and 7)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import get_sampling

from tests.service.harness import assert_adds_up, encoded, mask, picture, pixels, sha256, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

ORIENTATION = 0x0112
ROTATED = 6
"""Orientation: the viewer turns the stored picture a quarter clockwise."""


def test_a_12_megapixel_photo_keeps_its_size_format_metadata_and_all_pixels_outside_the_hole(
    service: Service,
) -> None:
    width, height = 4000, 3000
    tile = np.kron(pixels(7, 100, 75), np.ones((4, 4, 1), np.uint8))
    stored = np.tile(tile, (height // 300, width // 400, 1))
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
        assert get_sampling(result) == get_sampling(source)
        before, after = np.asarray(source, np.int16), np.asarray(result, np.int16)
    top, bottom, left, right = 1300, 1600, 2000, 2200
    grown = max(4, width // 200)
    # the blocks that the hole touches, 16 pixels wide where chroma is halved, and what is smoothed beside
    top, left = (top - grown) // 16 * 16 - 1, (left - grown) // 16 * 16 - 1
    bottom, right = -(-(bottom + grown) // 16) * 16 + 1, -(-(right + grown) // 16) * 16 + 1
    outside = np.ones((height, width), bool)
    outside[top:bottom, left:right] = False
    difference = np.abs(before - after).max(axis=-1)
    assert difference[~outside].max() > 8, "nothing was filled"
    assert not difference[outside].any()
    image = record["image"]
    assert (image["format"], image["width"], image["height"]) == ("JPEG", width, height)
    assert 200 * 300 <= image["hole_px"] <= 240 * 340 + 1
    assert image["model_px"] < 0.05 * width * height
    assert image["outside"] == "blocks"
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

    assert record["outcome"] == "unchanged"
    assert record["reason"].startswith("the mask is empty")
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


def test_the_chain_adds_up_whatever_became_of_a_job(new_service: NewService) -> None:
    """Item 7 on the cold path; hot, retried and lost ones are looked at wherever a test ends soundly."""
    service = new_service(
        "[arrivals]", "quiet_s = 0.2", faults="hot:fail_start=78,crash@poison.png,slow_item=0.2"
    ).start(ready=False)
    service.wait_log("worker.disabled")
    twin, held = picture(5), picture(6)
    service.put("twin.png", twin)
    service.put("twin-2.png", twin)
    service.place("held.png", held)
    service.put("failed.png", b"no picture at all" * 100, expect=False)
    service.put("poison.png", expect=False)
    service.wait_note("held", "held.png")
    service.place("held.png.mask.png", mask())
    service.expect("held.png", held, mask())
    service.put("superseded.png", picture(7), expect=False)
    wait_until(
        lambda: any(job.source == "superseded.png" for job in service.wait_state("running")), "its turn"
    )
    service.put("superseded.png", picture(8))

    for name, outcome in (
        ("twin.png", "done"),
        ("twin-2.png", "done"),
        ("held.png", "done"),
        ("superseded.png", "superseded"),
        ("superseded.png", "done"),
        ("failed.png", "failed"),
        ("poison.png", "quarantined"),
    ):
        record = service.wait_record(name, outcome={outcome})
        assert_adds_up(record)
        assert record["total_ms"] > 0
    poison = service.wait_record("poison.png", outcome={"quarantined"})
    assert poison["segments_ms"]["lost_attempts"] > 0.5 * poison["total_ms"]
    copied = next(record for record in service.results() if record["duplicate_of"])
    assert copied["segments_ms"]["queue"] + copied["segments_ms"]["publish"] > 0.5 * copied["total_ms"]
    cold = service.wait_record("held.png")["segments_ms"]
    assert min(cold["process_start"], cold["import"], cold["warmup"], cold["read"]) > 0
    assert cold["read"] >= 200, "the planted fault sleeps there"
