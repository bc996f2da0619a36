"""One picture that kills or hangs whoever serves it: it is named, with evidence, and nobody else pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import (
    STACK,
    assert_served_in_time,
    at_s,
    exits,
    losses_of,
)
from tests.service.harness import picture, seed_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Record, Service

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
GOOD: Final = 63
MAX_BATCH: Final = 16
SOLO_FAULTS: Final = 2
RECOVERY_S: Final = 15.0
"""From the start after a kill to the second verdict: two starts of processes."""
FAULTS: Final = {"segv": ("signal", "SIGSEGV"), "crash": ("exited", None), "hang_lock": ("killed", "SIGKILL")}
"""How the process that serves it ends."""


def put_together(service: Service, poison: str) -> list[str]:
    """64 pictures in one folder, the poison amid them."""
    good = [f"crowd/{number:02}.png" for number in range(GOOD)]
    for number, name in enumerate(good):
        service.put(name)
        if number == GOOD // 2:
            service.put(f"crowd/{poison}", expect=False)
    return good


def assert_named(service: Service, record: Record, name: str) -> None:
    """It is quarantined after two ends of a process that had nothing else, and its note has the evidence."""
    note = service.wait_note("failed", name)
    assert note["state"] == record["outcome"] == "quarantined"
    assert f"watcher retry {record['job']}" in note["remedy"]
    alone = [loss for loss in note["evidence"] if loss["alone"]]
    assert len(alone) == SOLO_FAULTS
    assert all(loss["serving"] and loss["rss_bytes"] > 10_000_000 for loss in alone)
    assert alone[-1]["reason"] in note["reason"]
    assert all(STACK in loss["output"] or loss["cause"] == "exited" for loss in alone)
    assert [loss["reason"] for loss in record["losses"]] == [loss["reason"] for loss in note["evidence"]]


@pytest.mark.kind("W18", "W20", "W21", "W52")
@pytest.mark.parametrize(
    "kind", ["segv", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("crash", "hang_lock"))]
)
def test_one_poison_picture_amid_63_good_ones(new_service: NewService, kind: str) -> None:
    service = new_service(*QUICK, "[batching]", f"max_batch = {MAX_BATCH}", faults=f"{kind}@poison.png")
    good = put_together(service, "poison.png")
    service.start()

    record = service.wait_record("crowd/poison.png", outcome={"quarantined"}, patience_s=90.0)
    records = service.wait_records(GOOD)

    assert_named(service, record, "crowd/poison.png")
    assert {(loss["cause"], loss["signal"]) for loss in record["losses"]} == {FAULTS[kind]}
    hot = exits(service)
    assert len(hot) <= 1, "the resident worker meets it once"
    assert len(exits(service, "cold")) <= SOLO_FAULTS
    assert sorted(r["source"] for r in records if r["source"] in good) == good
    blamed = [r["source"] for r in records if any(loss["serving"] for loss in r["losses"])]
    assert blamed == [], "innocent, though they were in its company"
    assert all(r["path_reason"] != "suspect" and r["attempt"] <= 2 for r in records)
    assert all(not job.suspect and job.solo_faults == 0 for job in service.jobs() if job.state == "done")
    assert {r["batch_size"] for r in records} <= set(range(1, MAX_BATCH + 1))
    assert max(r["batch_size"] for r in records) > 1, "there was to be a crowd"
    if any(r["path"] == "cold" for r in records):
        assert_served_in_time(service)
    service.assert_sound()


@pytest.mark.kind("W19", "W23")
def test_a_fault_is_remembered_when_the_service_is_killed_and_the_file_renamed(
    new_service: NewService,
) -> None:
    """Killed between the first fault and the second: the count is of the bytes, and lies in the journal."""
    service = new_service(
        *QUICK, faults="crash@one-name.png,crash@other-name.png,crash@third-name.png"
    ).start()
    service.put("one-name.png", expect=False)
    service.wait_log("worker.exited", path="hot", level="warning")
    wait_until(lambda: [job.solo_faults for job in service.jobs()] == [1], "the first fault in the journal")
    service.kill9()
    assert len(service.log("worker.exited", level="warning")) == 1, "the kill came too late to mean anything"
    for suffix in ("", ".mask.png"):
        (service.inbox / f"one-name.png{suffix}").rename(service.inbox / f"other-name.png{suffix}")

    service.start()

    record = service.wait_record("other-name.png", outcome={"quarantined"})
    assert len(service.log("worker.exited", level="warning")) == SOLO_FAULTS
    assert_named(service, record, "other-name.png")
    assert at_s(record) - at_s(service.log("service.started")[-1]) < RECOVERY_S, "it waits for no time-out"
    assert [r["outcome"] for r in service.records_of("one-name.png", outcome=())] == ["gone"]

    service.put("third-name.png", picture(seed_of("one-name.png")), expect=False)

    again = service.wait_record("third-name.png", outcome={"quarantined"})
    assert again["path"] == "none"
    assert record["job"] in service.wait_note("failed", "third-name.png")["remedy"], "whose bytes these are"
    service.assert_sound()
    assert len(service.log("worker.exited", level="warning")) == SOLO_FAULTS, "it is not tried again"


@pytest.mark.kind("W9", "W18")
@pytest.mark.parametrize("to_its_end", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_picture_that_freezes_everybody_holds_up_nobody(
    new_service: NewService, *, to_its_end: bool
) -> None:
    """The second opinion of it is not hurried: half a minute, in which others are served as ever."""
    service = new_service(*QUICK, faults="hang_gil@frozen.png").start()
    service.put("first.png")
    service.wait_record("first.png")
    service.put("frozen.png", expect=False)
    service.wait_log("worker.killed")
    for number in range(4):
        service.put(f"meanwhile-{number}.png")

    records = [service.wait_record(f"meanwhile-{number}.png") for number in range(4)]

    assert service.records_of("frozen.png", outcome=()) == [], "nobody waits for its end"
    assert all(record["attempt"] == 1 and record["losses"] == [] for record in records)
    assert_served_in_time(service)
    (loss,) = losses_of(service, "frozen.png")
    assert "_hang_with_the_interpreter_lock" in loss["output"]
    if not to_its_end:
        return
    record = service.wait_record("frozen.png", outcome={"quarantined"}, patience_s=90.0)
    assert_named(service, record, "frozen.png")
    assert all(
        "_hang_with_the_interpreter_lock" in loss["output"] for loss in losses_of(service, "frozen.png")
    )
    assert [loss["path"] for loss in record["losses"]] == ["hot", "cold"]
    service.assert_sound()
