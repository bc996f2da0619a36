"""What others met with pictures, masks and the model file, through the real service (kinds PA, PC and PD)."""

from __future__ import annotations

import io
import os
import struct
import unicodedata
import zlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.service.harness import encoded, mask, memory_mb, picture, pixels, seed_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

NAME_BYTES = 255
EMPTY_MASK = encoded(np.zeros((64, 96), np.uint8))


# --- names -------------------------------------------------------------------------------------------------

TAIL = ".jpg.mask.png"
NAMES = {
    "Chinese": "图.jpg",
    "Japanese": "テスト.jpg",
    "Arabic": "صورة.jpg",
    "composed": unicodedata.normalize("NFC", "é.jpg"),
    "decomposed": unicodedata.normalize("NFD", "é.jpg"),
    "emoji": "🐈‍⬛👩🏽‍🚀.jpg",
    "space": " a  picture .jpg",
    "leading hyphen": "-o.jpg",
    "an option": "--help.jpg",
    "250 bytes": "图" * 80 + "x" * (250 - 3 * 80 - len(".jpg")) + ".jpg",
    "255 bytes": "x" * (NAME_BYTES - len(".jpg")) + ".jpg",
}


@pytest.mark.kind("PC16")
def test_names_in_any_letters_are_read_marked_and_written(service: Service) -> None:
    for what, name in NAMES.items():
        data = encoded(pixels(seed_of(what)), "JPEG", quality=92)
        marked_by = f"{name}.mask.png" if len(os.fsencode(name)) + len(".mask.png") <= NAME_BYTES else ""
        if not marked_by:
            marked_by = f"masks/{name.removesuffix('.jpg')}.png"
        service.place(f"letters/{marked_by}", mask())
        service.place(f"letters/{name}", data)
        service.expect(f"letters/{name}", data, mask())
    for what, name in NAMES.items():
        record = service.wait_record(f"letters/{name}")
        assert record["output"] == f"letters/{name}", what
        with Image.open(service.outbox / "letters" / name) as after:
            assert (after.format, after.size) == ("JPEG", (96, 64)), what
    assert {os.fsencode(path.name) for path in (service.outbox / "letters").iterdir()} == {
        os.fsencode(name) for name in NAMES.values()
    }, "é in one letter and é in two are two names, byte for byte"


@pytest.mark.kind("PA14")
def test_pictures_that_differ_in_their_suffix_only_have_a_result_each(service: Service) -> None:
    containers = {
        "jpg": "JPEG",
        "JPG": "JPEG",
        "jpeg": "JPEG",
        "png": "PNG",
        "webp": "WEBP",
        "tif": "TIFF",
        "bmp": "BMP",
    }
    for suffix, container in containers.items():
        service.put(f"stem/a.{suffix}", encoded(pixels(seed_of(f"stem/{suffix}")), container))
    for suffix, container in containers.items():
        record = service.wait_record(f"stem/a.{suffix}")
        assert record["output"] == f"stem/a.{suffix}"
        with Image.open(service.output_of(record)) as after:
            assert after.format == container

    service.put("twins/b.jpg", encoded(pixels(2), "JPEG"), b"", expect=False)
    service.put("twins/b.png", picture(3), b"", expect=False)
    service.place("twins/b_mask.png", mask())
    for name in ("b.jpg", "b.png"):
        note = service.wait_note("held", f"twins/{name}")
        assert f"twins/{name}.mask.png" in note["how_to_mark"], "which name is certain"
        assert "no other picture of the folder has the same name" in note["how_to_mark"]
        assert service.records_of(f"twins/{name}", outcome=()) == []


# --- one end each ------------------------------------------------------------------------------------------


def animation() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(pixels(seed)) for seed in (1, 2)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def pages() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(pixels(seed)) for seed in (3, 4)]
    frames[0].save(buffer, "TIFF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def photos(first_seed: int) -> dict[str, bytes]:
    """A picture of its own for each container and suffix that is taken."""
    containers = {
        **dict.fromkeys(("jpg", "JPEG", "jpe", "jfif"), "JPEG"),
        **dict.fromkeys(("png", "PNG"), "PNG"),
        **dict.fromkeys(("tif", "tiff"), "TIFF"),
        **dict.fromkeys(("bmp", "dib"), "BMP"),
        "webp": "WEBP",
        "gif": "GIF",
    }
    found = {}
    for number, (suffix, container) in enumerate(containers.items()):
        image = Image.fromarray(pixels(first_seed + number))
        buffer = io.BytesIO()
        (image.quantize(64) if container == "GIF" else image).save(buffer, container)
        found[f"p{number}.{suffix}"] = buffer.getvalue()
    return found


REFUSED = {
    "text.png": b"a text that somebody renamed" * 40,
    "moving.gif": animation(),
    "two.tiff": pages(),
    "raw.nef": b"MM\0*\0\0\0\x08" + struct.pack(">HHHIII", 1, 254, 4, 1, 1, 0) + bytes(4000),
    "sketch.jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(range(256)) * 8,
    "raw.cr3": struct.pack(">I4s4s", 24, b"ftyp", b"crx ") + bytes(12) + bytes(range(256)) * 8,
}


@pytest.mark.kind("PA15", "PA11", "PD18")
def test_every_file_that_is_put_in_ends_in_one_state_that_is_told(new_service: NewService) -> None:
    """Done, unchanged, failed with a reason, or held with a reason; nothing is passed over without a word."""
    service = new_service("[arrivals]", "quiet_s = 0.1")
    ends: dict[str, str] = {}
    for name, data in REFUSED.items():
        service.put(f"0/{name}", data, mask(), expect=False)
        ends[f"0/{name}"] = "failed"
    for name, data in photos(2000).items():
        service.put(f"1/{name}", data)
        ends[f"1/{name}"] = "done"
    for name, data in photos(2100).items():
        service.place(f"2/{name}", data)
        ends[f"2/{name}"] = "held"
    service.put("3/nothing-to-go.png", picture(31), EMPTY_MASK)
    ends["3/nothing-to-go.png"] = "unchanged"
    service.put("3/all-to-go.png", picture(32), encoded(np.full((64, 96), 255, np.uint8)), expect=False)
    service.put("3/other-mask.png", picture(33), mask(64, 96, (5, 5, 9, 9)), expect=False)
    ends |= {"3/all-to-go.png": "failed", "3/other-mask.png": "failed"}
    for name in ("notes.txt", "film.mov", "4/drawing.psd"):
        service.place(name, b"nobody asked for this to be looked at")
    service.start()

    for name in ends:
        wait_until(partial(has_ended, service, name), f"an end of {name}")
    service.assert_sound()

    assert {name: states for name, states in ended(service).items() if name in ends} == {
        name: [end] for name, end in ends.items()
    }
    for name, end in ends.items():
        if end in {"failed", "held"}:
            note = service.wait_note(end, name)
            assert note["reason"], name
            assert note.get("remedy") or note["how_to_mark"], name
            assert not (service.outbox / name).exists()
    counts = service.status()["counts"]
    assert {end: counts.get(end) for end in ("failed", "held", "unchanged")} == {
        end: sum(one == end for one in ends.values()) for end in ("failed", "held", "unchanged")
    }, "status counts them all"
    assert {job.source for job in service.jobs()} - {f"canary-{service.canaries}.png"} == ends.keys(), (
        "what is no picture by its name is left alone, as the README says"
    )


def has_ended(service: Service, name: str) -> bool:
    return name in ended(service)


def ended(service: Service) -> dict[str, list[str]]:
    """Where each picture stands for good, by the records and the notes that a person can see."""
    found: dict[str, list[str]] = {}
    for record in service.records():
        found.setdefault(record["source"], []).append(record["outcome"])
    for note in service.notes("held"):
        found.setdefault(note.removesuffix(".json"), []).append("held")
    return found


# --- bombs -------------------------------------------------------------------------------------------------


def bomb(side_px: int) -> bytes:
    """A whole black PNG of one bit a pixel: 400 megapixels in 50 kB."""
    packer, rows = zlib.compressobj(9), bytes(1 + -(-side_px // 8)) * 1000
    packed = b"".join(packer.compress(rows) for _ in range(side_px // 1000)) + packer.flush()
    header = struct.pack(">IIBBBBB", side_px, side_px, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    )


@pytest.mark.kind("PC14")
def test_a_bomb_costs_neither_process_memory_and_is_told_with_the_limit(service: Service) -> None:
    service.put("before.png")
    service.wait_record("before.png")
    worker = service.worker_pid()
    before_mb = memory_mb(service.pid), memory_mb(worker)

    service.put("bomb.png", bomb(20_000), mask(), expect=False)
    service.put("bombed.png", picture(41), bomb(21_000), expect=False)
    for name in ("bomb.png", "bombed.png"):
        note = service.wait_note("failed", name)
        assert "200000000" in note["reason"].replace(",", ""), note
        assert "0x2" in note["reason"], "how large it is"

    service.put("after.png")
    service.wait_record("after.png")
    assert service.worker_pid() == worker, "nothing was killed"
    assert memory_mb(service.pid) - before_mb[0] < 10
    assert memory_mb(worker) - before_mb[1] < 60
