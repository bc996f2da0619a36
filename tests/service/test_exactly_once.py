"""One job for one content: duplicates, renames, overwrites, repeats, retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.harness import mask, picture, sha256, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]


def test_the_same_content_under_two_names_runs_the_model_once_and_is_copied(service: Service) -> None:
    data = picture(101)
    service.put("twins/one.png", data)
    first = service.wait_record("twins/one.png")

    service.put("twins/two.png", data)
    second = service.wait_record("twins/two.png")

    assert second["duplicate_of"] == first["job"]
    assert second["output"] == "twins/two.png"
    assert (second["path"], second["batch"], second["worker"]) == ("none", None, None)
    assert second["segments_ms"]["inference"] == 0
    assert service.output_of(first).read_bytes() == service.output_of(second).read_bytes()


def test_twins_that_arrive_together_are_one_run_as_well(new_service: NewService) -> None:
    service = new_service(faults="slow_item=0.2").start()
    data = picture(102)
    for name in ("one.png", "two.png", "three.png"):
        service.put(name, data)

    records = service.wait_records(3)

    assert sorted(record["path"] for record in records) == ["hot", "none", "none"]
    primary = next(record for record in records if record["path"] == "hot")
    assert {record["duplicate_of"] for record in records if record is not primary} == {primary["job"]}
    service.assert_sound()


@pytest.mark.kind("D6")
def test_the_same_content_dropped_again_is_nothing_to_do_and_said_once(service: Service) -> None:
    data = picture(103)
    service.put("again.png", data)
    done = service.wait_record("again.png")

    service.place("again.png", data)

    (notice,) = service.wait_log("job.already_done", source="again.png")
    assert notice["output"] == "again.png"
    assert f"watcher retry {done['job']}" in notice["remedy"]
    service.assert_sound()
    assert len(service.log("job.already_done", source="again.png")) == 1
    assert len(service.records_of("again.png", outcome=())) == 1


@pytest.mark.kind("E4")
def test_a_done_picture_under_a_new_name_is_a_rename(service: Service) -> None:
    service.put("before.png", picture(104))
    service.wait_record("before.png")

    (service.inbox / "before.png.mask.png").rename(service.inbox / "after.png.mask.png")
    (service.inbox / "before.png").rename(service.inbox / "after.png")

    service.wait_log("job.renamed", now="after.png")
    service.assert_sound()
    assert service.records_of("after.png", outcome=()) == []
    assert "after.png" not in service.outputs()


@pytest.mark.kind("A16")
def test_other_content_under_the_name_of_a_done_one_is_a_job_and_a_version(service: Service) -> None:
    service.put("photos/IMG.png", picture(105))
    first = service.wait_record("photos/IMG.png")
    kept = service.output_of(first).read_bytes()

    service.put("photos/IMG.png", picture(106))
    second = service.wait_record("photos/IMG.png", count=2)

    assert second["output"] == "photos/IMG (2).png"
    assert service.output_of(first).read_bytes() == kept


def test_another_mask_for_a_done_picture_is_a_job_and_a_version(service: Service) -> None:
    data = picture(107)
    service.put("masked.png", data)
    service.wait_record("masked.png")

    other = mask(box=(10, 10, 20, 20))
    service.place("masked.png.mask.png", other)
    service.expect("masked.png", data, other)

    assert service.wait_record("masked.png", count=2)["output"] == "masked (2).png"


@pytest.mark.kind("A16")
def test_a_picture_overwritten_while_it_is_served_is_superseded_and_its_last_bytes_are_served(
    new_service: NewService,
) -> None:
    service = new_service(faults="slow_item=0.4").start()
    service.put("moving.png", picture(108), expect=False)
    service.wait_state("running")
    service.put("moving.png", picture(109))

    record = service.wait_record("moving.png")

    assert record["image"]["sha256_in"] == sha256(picture(109))
    assert record["output"] == "moving.png"
    (superseded,) = service.records_of("moving.png", outcome={"superseded"})
    assert superseded["reason"]
    assert superseded["output"] is None
    service.assert_sound()


@pytest.mark.kind("F8")
def test_a_picture_deleted_before_it_is_read_is_gone_without_a_fuss(new_service: NewService) -> None:
    service = new_service("[batching]", "max_batch = 1", faults="slow_item=0.3").start()
    service.put("first.png")
    service.put("deleted.png", expect=False)
    service.wait_state("ready")
    (service.inbox / "deleted.png").unlink()

    record = service.wait_record("deleted.png", outcome={"gone"})

    assert record["reason"]
    assert service.notes("failed") == set()
    service.assert_sound()


@pytest.mark.kind("F4", "PA14")
def test_names_that_differ_only_in_their_suffix_do_not_overwrite_each_other(service: Service) -> None:
    for name in ("same/a.png", "same/a.PNG", "other/a.png"):
        service.put(name)
    for name in ("same/a.png", "same/a.PNG", "other/a.png"):
        assert service.wait_record(name)["output"] == name


@pytest.mark.kind("E2")
def test_a_result_moved_into_the_inbox_is_a_picture_without_a_mask(service: Service) -> None:
    service.put("loop.png")
    result = service.output_of(service.wait_record("loop.png")).read_bytes()

    service.place("loop-result.png", result)

    service.wait_note("held", "loop-result.png")
    assert service.records_of("loop-result.png", outcome=()) == []


def test_retry_of_a_done_job_makes_a_version(service: Service) -> None:
    data = picture(110)
    service.put("retried.png", data)
    done = service.wait_record("retried.png")

    asked = service.run("retry", done["job"], "--json")

    assert asked.returncode == 0, asked.stderr
    assert done["job"] in asked.stdout
    service.expect("retried.png", data, mask())
    record = service.wait_record("retried.png", count=2)
    assert record["retry_of"] == done["job"]
    assert record["output"] == "retried (2).png"


def test_a_retry_asked_of_a_stopped_service_is_done_at_its_next_start(new_service: NewService) -> None:
    service = new_service().start()
    data = picture(111)
    service.put("retried.png", data)
    done = service.wait_record("retried.png")
    assert service.terminate() == 0

    assert service.run("retry", "retried.png").returncode == 0

    service.expect("retried.png", data, mask())
    service.start()
    assert service.wait_record("retried.png", count=2)["retry_of"] == done["job"]
    assert list((service.state / "requests").iterdir()) == []
    service.assert_sound()


@pytest.mark.kind("D11")
def test_a_copied_inbox_is_not_served_again(new_service: NewService) -> None:
    """Case D11: other inodes and devices after a move to another disk; the bytes decide."""
    service = new_service("[arrivals]", "quiet_s = 0.1").start()
    for number in range(4):
        service.put(f"{number}.png")
    service.wait_records(4)
    assert service.terminate() == 0
    moved = service.inbox.rename(service.root / "old-disk")
    service.inbox.mkdir()
    for path in moved.iterdir():
        (service.inbox / path.name).write_bytes(path.read_bytes())

    service.start()

    service.assert_sound()
    assert len(service.results()) == 4 + service.canaries


@pytest.mark.kind("D15")
def test_done_sources_are_neither_served_nor_told_again_at_a_restart(new_service: NewService) -> None:
    """Case D15: the second copy is told of once, and not at every start."""
    service = new_service().start()
    service.put("one.png", picture(5))
    service.put("two.png", picture(5))
    service.wait_records(2)
    for restart in range(2, 5):
        service.kill9()
        service.start(ready=False)
        service.wait_log("inbox.found", count=restart)
        wait_until(
            lambda: service.status().get("counts", {}).get("arriving") == 0, "the first look at the inbox"
        )

    assert len(service.log("job.duplicate")) == 1
    assert service.log("job.already_done") == service.log("job.renamed") == []
    service.assert_sound()


@pytest.mark.kind("A16")
def test_content_whose_result_was_replaced_is_served_again(new_service: NewService) -> None:
    """A, then B, then A again under one name: what stands in the outbox is A's; and so under another name."""
    service = new_service("[output]", 'on_conflict = "replace"', "[arrivals]", "quiet_s = 0.1").start()
    first, second = picture(901), picture(902)
    for count, data in enumerate((first, second, first), 1):
        service.put("a.png", data, expect=False)
        record = service.wait_record("a.png", count=count)
        assert record["image"]["sha256_in"] == sha256(data)
        assert sha256(service.outbox / "a.png") == record["image"]["sha256_out"]
    service.put("a.png", second, expect=False)
    service.wait_record("a.png", count=4)

    service.put("c.png", first, expect=False)

    assert service.wait_record("c.png")["output"] == "c.png"
    assert service.outputs() == {"a.png", "c.png"}


def test_hundreds_of_names_for_one_picture_do_not_hold_up_others(service: Service) -> None:
    data = picture(903)
    names = [f"many/{number}.png" for number in range(200)]
    for name in names:
        service.put(name, data)
    service.put("many-meanwhile.png")

    service.wait_record("many-meanwhile.png")

    records = service._wait(
        lambda: len(found := [r for r in service.results() if r["source"] in names]) == len(names) and found,
        "a result for each name",
    )
    assert sum(record["path"] != "none" for record in records) == 1
