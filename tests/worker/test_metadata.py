from __future__ import annotations

import io
import struct
import time

import numpy as np
import pytest
from PIL import Image

from watcher.worker.imaging.metadata import (
    EXIF_PREFIX,
    exif_without_pictures,
    photoshop_without_thumbnails,
)


def thumbnail() -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(3).integers(0, 255, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(data, "JPEG")
    return data.getvalue()


def exif(thumbnail_at: int, inside: bytes, behind: bytes = b"") -> bytes:
    """A block with one tag, a pointer to a second directory, and bytes behind both."""
    first = struct.pack("<HHHIHHI", 1, 274, 3, 1, 6, 0, thumbnail_at)
    return EXIF_PREFIX + b"II*\x00" + struct.pack("<I", 8) + first + inside + behind


def resource(kind: bytes, number: int, body: bytes) -> bytes:
    return kind + struct.pack(">HBBI", number, 0, 0, len(body)) + body + b"\x00" * (len(body) & 1)


def test_a_damaged_preview_is_blanked_too() -> None:
    """Viewers show what is left of it, as they do with an undamaged one."""
    picture = bytearray(thumbnail())
    scan = picture.index(b"\xff\xda")
    picture[scan + 40 : scan + 42] = b"\xff\x61"  # no marker that may stand there
    dropped: list[str] = []
    block = exif(0, bytes(picture), b"maker note")
    cleaned = exif_without_pictures(block, dropped)
    assert dropped == ["EXIF preview"]
    assert len(cleaned) == len(block)
    assert bytes(picture[scan : scan + 200]) not in cleaned
    assert cleaned.endswith(b"maker note")


def test_a_preview_without_an_end_is_blanked_to_the_end() -> None:
    dropped: list[str] = []
    cleaned = exif_without_pictures(exif(0, thumbnail()[:-2]), dropped)
    assert dropped == ["EXIF preview"]
    assert cleaned.endswith(bytes(500))


def test_a_pointer_to_a_thumbnail_that_cannot_be_read_is_taken_out_and_named() -> None:
    dropped: list[str] = []
    block = exif(9999, b"the rest")
    cleaned = exif_without_pictures(block, dropped)
    assert dropped == ["EXIF thumbnail"]
    assert cleaned == exif(0, b"the rest")


def test_three_bytes_that_look_like_a_start_are_no_picture() -> None:
    dropped: list[str] = []
    block = exif(0, b"\xff\xd8\xff and so on")
    assert exif_without_pictures(block, dropped) == block
    assert dropped == []


def test_a_block_of_nothing_but_starts_is_read_in_bounded_time() -> None:
    dropped: list[str] = []
    started_s = time.process_time()
    cleaned = exif_without_pictures(exif(0, b"\xff\xd8\xff" * 1_000_000), dropped)
    assert time.process_time() - started_s < 5, "it took time with the square of the size"
    assert dropped == ["EXIF"]
    assert b"\xff\xd8\xff" * 100 not in cleaned


@pytest.mark.parametrize("kind", [b"8BIM", b"MeSa", b"PHUT", b"AgHg", b"DCSR"])
def test_resources_of_all_programs_are_walked(kind: bytes) -> None:
    dropped: list[str] = []
    captions = resource(b"8BIM", 1028, b"\x1c\x02\x78\x00\x05hello")
    block = resource(kind, 3000, b"odd") + resource(b"8BIM", 1036, thumbnail()) + captions
    assert photoshop_without_thumbnails(block, dropped) == resource(kind, 3000, b"odd") + captions
    assert dropped == ["Photoshop thumbnail"]


def test_what_is_behind_the_last_resource_that_can_be_read_is_kept() -> None:
    dropped: list[str] = []
    block = resource(b"8BIM", 1028, b"caption!") + b"????" + resource(b"8BIM", 1060, b"<x/>")
    assert photoshop_without_thumbnails(block, dropped) == block
    assert dropped == []


def test_but_not_a_picture() -> None:
    dropped: list[str] = []
    first = resource(b"8BIM", 1028, b"caption!")
    assert photoshop_without_thumbnails(first + b"????" + thumbnail(), dropped) == first
    assert dropped == ["Photoshop data behind its last readable resource"]
