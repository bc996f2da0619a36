"""More files at once than the kernel's queue holds, and more than are worked on at a time."""

from __future__ import annotations

import os
import signal
import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import memory_mb, sha256, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

A_FOLDER = 1000
MINUTES_S = 60.0


def tiny_picture(number: int) -> bytes:
    """A PNG of 4 x 4 px of one colour, made without a library: there are many of them."""
    rows = b"".join(b"\0" + struct.pack(">I", number)[1:] * 4 for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def flood(service: Service, count: int) -> None:
    """Write so many pictures, each with bytes of its own, as a copying program does."""
    for number in range(count):
        folder = f"{number // A_FOLDER:03d}"
        if number % A_FOLDER == 0:
            (service.inbox / folder).mkdir()
        name, data = f"{folder}/IMG_{number:06d}.png", tiny_picture(number)
        (service.inbox / name).write_bytes(data)
        service.expected.append((name, sha256(data), None))


def wait_all_done(service: Service, count: int, *, patience_s: float) -> None:
    """Wait until so many came out; by the status, since reading all records each time takes too long."""
    wait_until(
        lambda: service.status()["counts"].get("unchanged", 0) >= count,
        f"{count} results; {service.status()}",
        patience_s=patience_s,
    )


@pytest.mark.kind("C1")
@pytest.mark.parametrize(
    "count",
    [pytest.param(500), pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_a_burst_while_the_process_is_stopped_is_worked_off_completely(
    new_service: NewService, count: int
) -> None:
    service = new_service('unmarked = "copy"', "[arrivals]", "quiet_s = 0.2").start()
    os.kill(service.pid, signal.SIGSTOP)
    try:
        flood(service, count)
    finally:
        os.kill(service.pid, signal.SIGCONT)

    wait_all_done(service, count, patience_s=MINUTES_S + count / 20)

    service.assert_sound()
    assert len(service.outputs()) == count + service.canaries
    assert {record["attempt"] for record in service.records()} == {1}


@pytest.mark.kind("C20")
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_waiting_files_cost_little_and_hold_up_neither_each_other_nor_what_arrives(
    new_service: NewService,
) -> None:
    """How soon results flow is measured by benchmarks/backlog.py."""
    count = 100_000
    service = new_service('unmarked = "copy"', "[arrivals]", "quiet_s = 0.2")
    flood(service, count)
    service.expected.clear()  # most of them still wait when the test ends
    service.start(ready=False)

    service.wait_records(1, patience_s=MINUTES_S)
    service.put("fresh.png")
    record = service.wait_record("fresh.png", patience_s=MINUTES_S)

    assert record["segments_ms"]["backlog"] < record["total_ms"]
    assert service.status()["counts"]["arriving"] > 0.9 * count
    results = service.results()
    assert results[0]["segments_ms"]["backlog"] > 0
    wait_all_done(service, len(results) + 2_000, patience_s=4 * MINUTES_S)
    assert memory_mb(service.pid) < 200
    assert service.terminate() == 0
