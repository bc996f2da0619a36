"""What a service forgets by itself, and what it goes on to know."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from tests.service.harness import picture, wait_until
from watcher.adapters.retention import HISTORY_DAYS, IDENTITY_DAYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]


def grow_old(service: Service) -> None:
    """Let the days pass that a journal keeps things for; timing lines are kept for fewer."""
    journal = sqlite3.connect(service.state / "journal.sqlite3", isolation_level=None)
    journal.execute("UPDATE jobs SET logged_day = logged_day - ?", (HISTORY_DAYS,))
    journal.execute("UPDATE jobs SET absent_day = absent_day - ?", (IDENTITY_DAYS,))
    journal.close()
    for log in (service.outbox / "logs").iterdir():
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(line for line in lines if json.loads(line)["source"] == "stays.png"))
    (service.outbox / "leaves.png").unlink()
    service.expected = [expected for expected in service.expected if expected[0] == "stays.png"]


def test_what_left_long_ago_is_forgotten_and_what_is_there_is_never_served_again(
    new_service: NewService,
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.2").start()
    stays, leaves = picture(901), picture(902)
    service.put("stays.png", stays)
    service.put("leaves.png", leaves)
    service.put("held.png", picture(903), b"", expect=False)
    service.wait_records(2)
    service.wait_state("held")
    for name in ("leaves.png", "leaves.png.mask.png", "held.png"):
        (service.inbox / name).unlink()
    service.wait_state("gone")
    assert service.terminate() == 0
    grow_old(service)

    service.start()
    wait_until(lambda: len(service.jobs()) == 1, "the journal to forget")

    (kept,) = service.jobs()
    assert kept.source == "stays.png"
    assert kept.record is not None
    assert "segments_ms" not in kept.record
    shown = service.run("jobs", "--json")
    assert '"engine": "patchmatch"' in shown.stdout
    service.put("copy.png", stays)
    record = service.wait_record("copy.png")
    assert record["duplicate_of"] == kept.id
    assert record["image"]["sha256_in"] == kept.identity.picture_sha256
    service.put("back.png", leaves)  # nobody remembers it: that is what forgetting costs
    assert service.wait_record("back.png")["path"] == "hot"
    service.assert_sound()
