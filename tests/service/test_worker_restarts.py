"""Workers that cannot start, or fail their self-test: few tries, a state that says so, everything served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.service.deaths import assert_served_in_time, at_s, exits
from tests.service.harness import wait_until
from watcher.wire import EXIT_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.harness import Service

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
MOST_STARTS: Final = 5
WINDOW_S: Final = 120.0
FIRST_PROBE_S: Final = 60.0


@pytest.mark.kind("W13", "W16")
@pytest.mark.parametrize(
    ("fault", "exit_code", "words"),
    [
        ("fail_start=3", 3, None),
        pytest.param("fail_selftest", EXIT_INTERNAL, "self-test failed", marks=pytest.mark.soak),
    ],
)
def test_a_worker_that_never_gets_ready_is_tried_five_times(
    new_service: NewService, fault: str, exit_code: int, words: str | None
) -> None:
    service = new_service(*QUICK, faults=f"hot:{fault}").start(ready=False)
    service.put("meanwhile.png")

    (opened,) = service.wait_log("worker.breaker_opened")

    assert (opened["crashes"], opened["next_try_in_s"]) == (MOST_STARTS, FIRST_PROBE_S)
    ends = exits(service)
    assert len(service.log("worker.starting")) == len(ends) == MOST_STARTS
    assert {end["exit_code"] for end in ends} == {exit_code}
    assert at_s(ends[-1]) - at_s(ends[0]) < WINDOW_S
    pauses = [entry["in_s"] for entry in service.log("worker.restarting")]
    assert all(pause <= 0.5 * 2**number for number, pause in enumerate(pauses)), "ever longer, drawn by lot"
    assert service.wait_record("meanwhile.png")["path"] == "cold"
    service.put("after.png")
    record = service.wait_record("after.png")
    assert (record["path"], record["path_reason"], record["attempt"]) == ("cold", "breaker_open", 1)
    assert_served_in_time(service)
    worker = wait_until(
        lambda: (now := service.status()["worker"])["state"] == "breaker_open" and now,
        "a status that says so",
    )
    assert worker["restarts"] == MOST_STARTS
    assert words is None or words in worker["trouble"]
    assert len(service.log("worker.starting")) == MOST_STARTS, "no other was tried meanwhile"


@pytest.mark.soak
@pytest.mark.kind("W13", "W16")
@pytest.mark.timeout(400)
def test_an_open_breaker_tries_ever_more_rarely_and_closes_when_it_can(new_service: NewService) -> None:
    """The first try after a minute fails, the next one is two minutes later; a picture never decides."""
    service = new_service(*QUICK, faults="hot:fail_selftest").start(ready=False)
    service.wait_log("worker.breaker_opened")

    first, second = service._wait(
        lambda: len(found := service.log("worker.breaker_opened")) == 2 and found, "a try", patience_s=120
    )

    assert (first["next_try_in_s"], second["next_try_in_s"]) == (FIRST_PROBE_S, 2 * FIRST_PROBE_S)
    tried_s = at_s(service.log("worker.starting")[MOST_STARTS]) - at_s(first)
    assert FIRST_PROBE_S <= tried_s < FIRST_PROBE_S + 2.0
    assert len(service.log("worker.starting")) == MOST_STARTS + 1
    service.put("meanwhile.png")
    assert service.wait_record("meanwhile.png")["path_reason"] == "breaker_open"


@pytest.mark.kind("W13")
def test_a_permanent_error_is_tried_once(new_service: NewService) -> None:
    service = new_service(*QUICK, faults="hot:fail_start=78").start(ready=False)
    service.wait_log("worker.disabled")
    for number in range(3):
        service.put(f"{number}.png")
        assert service.wait_record(f"{number}.png")["path_reason"] == "disabled"

    (only,) = exits(service)

    assert only["exit_code"] == 78
    assert only["reason"] == "a planted fault"
    assert only["remedy"]
    assert len(service.log("worker.starting")) == 1
    worker = service.status()["worker"]
    assert worker["state"] == "disabled"
    assert "a planted fault" in worker["trouble"], "and it says what can be done"
    assert_served_in_time(service)
