"""The service's own process stays light: no pixels, little memory, soon at work, idle when idle (item 9)."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import cpu_s, memory_mb, picture, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

HEAVY = ("torch", "numpy", "PIL", "cv2", "patchmatch", "simple_lama_inpainting", "psutil")
MAX_MEMORY_MB = 60
MAX_START_S = 1.0
MARGIN = 2.0
"""For a machine that does something else as well; benchmarks/service_start.py measures without it."""


@pytest.mark.kind("W36")
def test_neither_the_service_nor_its_commands_import_what_reads_pixels() -> None:
    program = (
        "import sys, watcher.cli.entry, watcher.cli.commands, watcher.cli.working_off, watcher.cli.reports, "
        "watcher.cli.views, watcher.cli.examination, watcher.cli.setting_up, watcher.app\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.kind("W36")
def test_the_running_service_maps_no_library_that_reads_pixels_and_stays_small(service: Service) -> None:
    for number in range(20):
        service.put(f"weight/{number}.png", picture(500 + number))
    for number in range(20):
        service.wait_record(f"weight/{number}.png")

    maps = Path(f"/proc/{service.pid}/maps").read_text("utf-8", "replace")

    assert "/site-packages/pydantic_core/" in maps, "this look at the maps sees nothing"
    assert not re.findall(rf"\S*/(?:{'|'.join(HEAVY)})(?:\.libs)?/\S*", maps)
    assert statistics.median(memory_mb(service.pid) for _ in range(5)) < MAX_MEMORY_MB


def test_it_watches_within_a_second_of_its_start(new_service: NewService) -> None:
    """The best of some starts, less what it waited for a processor: other tests share the machine."""
    seconds: list[float] = []
    while min(seconds, default=MAX_START_S) >= MAX_START_S and len(seconds) < 3:
        service = new_service()
        spawned_s = time.time()
        service.start(ready=False)
        (found,) = service.wait_log("inbox.found")
        assert cpu_s(service.pid) < MAX_START_S
        went_by_s = datetime.fromisoformat(found["ts"]).timestamp() - spawned_s
        seconds.append(went_by_s - queued_s(service.pid))
        service.close()
    assert min(seconds) < MARGIN * MAX_START_S, seconds


def queued_s(pid: int) -> float:
    """How long the main thread of a process was ready and had no processor (proc(5): schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9


def test_an_idle_service_uses_no_processor_time(new_service: NewService) -> None:
    """A timer that is due for ever would show here: with a held picture, an empty file, a worker at rest."""
    service = new_service("[arrivals]", "quiet_s = 0.1").start()
    service.place("held.png", picture(520))
    service.place("empty.png", b"")
    service.put("done.png")
    service.wait_note("held", "held.png")
    service.wait_record("done.png")

    def is_newer(written: str) -> bool:
        return bool(service.status()["written"] > written)

    def writes_seen(count: int) -> None:
        for _ in range(count):
            wait_until(partial(is_newer, service.status()["written"]), "its housekeeping")

    writes_seen(1)
    before = cpu_s(service.pid)
    writes_seen(3)

    assert cpu_s(service.pid) - before < 0.3, "over two to three seconds"


def test_the_log_of_an_idle_service_does_not_grow(service: Service) -> None:
    service.put("quiet.png")
    service.wait_record("quiet.png")
    wait_until(lambda: service.status()["last_job"]["source"] == "quiet.png", "its status")
    size = service.log_file.stat().st_size
    written = service.status()["written"]

    wait_until(lambda: service.status()["written"] > written, "its housekeeping")

    assert service.log_file.stat().st_size == size
