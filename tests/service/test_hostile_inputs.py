"""Bad files among good ones: told once, with a remedy; never in the way of the others (case C10)."""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import encoded, mask, picture, pixels, wait_until
from tests.worker.made import Made
from tests.worker.test_allow_list import POSTSCRIPT
from tests.worker.test_bombs import many_scans
from tests.worker.test_memory_limit import GIGABYTES, greedy_tiff

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises so many pixels, and ends properly."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(4096)))
        + chunk(b"IEND", b"")
    )


BAD: Made[bytes] = Made(
    {
        "text.png": lambda: b"Dear diary, this is not a picture at all. " * 50,
        "noise.jpg": lambda: bytes(range(256)) * 40,
        "bomb.png": lambda: png_header(50_000, 50_000),
        "ff.webp": lambda: b"\xff" * 5000,
        "greedy.tif": lambda: greedy_tiff(GIGABYTES),
        "scans.jpg": lambda: many_scans(4000, 3000, 5000),
        "script.png": lambda: POSTSCRIPT,
    }
)
NO_END: Made[bytes] = Made(
    {
        "truncated.jpg": lambda: encoded(pixels(301, 400, 300), "JPEG")[:9000],
        "half.png": lambda: picture(302, 400, 300)[:20_000],
    }
)


@pytest.mark.kind("C10", "PC13", "PC14", "PD14", "PD16", "PD18")
def test_bad_files_fail_with_a_note_each_and_good_ones_are_served(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2").start()
    for name, data in BAD.items():
        service.put(name, data, mask(), expect=False)
    service.put("mismatch.png", picture(303), mask(50, 200, box=(5, 5, 9, 9)), expect=False)
    service.put("bad-mask.png", picture(304), b"no mask", expect=False)
    service.put("good.png")
    bad = [*BAD, "mismatch.png", "bad-mask.png"]

    service.wait_record("good.png")
    for name in bad:
        record = service.wait_record(name, outcome={"failed"})
        note = service.wait_note("failed", name)
        assert record["reason"], name
        assert record["reason"] == note["reason"], name
        assert record["remedy"] == note["remedy"], name
        assert record["attempt"] == 1, name
        assert note["state"] == "failed", name
        assert service.log("job.failed", source=name), name
    assert service.status()["worker"]["restarts"] == 0, "a bad file must not end the worker"
    service.assert_sound()

    # none is tried again by time or by a restart
    assert service.terminate() == 0
    service.start()
    service.assert_sound()
    for name in bad:
        assert len(service.records_of(name, outcome=())) == 1, name
        assert service.note("failed", name), name


@pytest.mark.kind("A5")
def test_a_failed_file_that_is_replaced_is_served_and_its_note_goes(service: Service) -> None:
    service.put("mended.png", b"not yet" * 100, mask(), expect=False)
    service.wait_note("failed", "mended.png")

    service.put("mended.png", picture(310))

    assert service.wait_record("mended.png")["outcome"] == "done"
    service.wait_no_note("failed", "mended.png")


def test_retry_of_a_failed_job_tries_once_more_and_says_so_again(service: Service) -> None:
    service.put("stubborn.png", b"never" * 100, mask(), expect=False)
    first = service.wait_record("stubborn.png", outcome={"failed"})

    assert service.run("retry", "stubborn.png").returncode == 0

    second = service.wait_record("stubborn.png", outcome={"failed"}, count=2)
    assert second["retry_of"] == first["job"]
    wait_until(lambda: service.wait_note("failed", "stubborn.png")["job"] == second["job"], "a note of it")


@pytest.mark.kind("A5", "A13", "PC13")
def test_a_young_file_without_an_end_waits_and_is_served_when_it_grows(service: Service) -> None:
    """Case A5: a decode failure of a young file is no failure."""
    for name, data in NO_END.items():
        service.put(name, data, mask(400, 300), expect=False)
        service.wait_log("file.incomplete", source=name)
        assert service.note("failed", name) is None
        assert service.records_of(name, outcome=()) == []

    whole = {"truncated.jpg": encoded(pixels(301, 400, 300), "JPEG"), "half.png": picture(302, 400, 300)}
    for name, data in whole.items():
        with (service.inbox / name).open("ab") as file:
            file.write(data[len(NO_END[name]) :])
        service.expect(name, data, mask(400, 300))

    for name in whole:
        assert service.wait_record(name)["attempt"] == 1


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_never_read(service: Service, kind: str) -> None:

    path = service.inbox / f"{kind}.png"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    service.place(f"{kind}.png.mask.png", mask())

    service.assert_sound()

    assert not [job for job in service.jobs() if job.source == path.name]
