"""What is known of times before and after the first picture: the limit of a silence."""

from __future__ import annotations

from watcher.core.pace import ITEM, ColdTime, Pace

GUESS_S = 10.0
GOLDEN_PX = 13_000


def started(golden_s: float) -> tuple[Pace, ColdTime]:
    """A service whose resident worker started in a second, and filled the golden picture in so long."""
    pace = Pace()
    cold_time = ColdTime(pace, GUESS_S)
    cold_time.note_start(1.0, cold=False)
    pace.note("inference", GOLDEN_PX, golden_s)
    return pace, cold_time


def test_before_the_first_picture_the_golden_one_tells_how_fast_the_model_is() -> None:
    _, cold_time = started(golden_s=0.014)

    limit_s = cold_time.slow_s(100_000, "inference", 10 * GOLDEN_PX)

    assert 1.0 + 5 * 0.14 <= limit_s < 2.0, "a guess for the slowest model would wait ten times a cold time"


def test_a_slow_golden_picture_never_makes_the_guess_larger_than_it_is() -> None:
    _, cold_time = started(golden_s=0.5)

    assert cold_time.slow_s(100_000, "inference", 10 * GOLDEN_PX) == 1.0 + GUESS_S
    assert cold_time.slow_s(100_000, "inference", 100 * GOLDEN_PX) == 1.0 + 50.0, "what the work itself takes"


def test_a_phase_that_nobody_measured_goes_by_the_guess() -> None:
    _, cold_time = started(golden_s=0.014)

    assert cold_time.slow_s(100_000, "decode", 100_000) == 1.0 + GUESS_S


def test_pictures_that_were_served_count_for_more_than_the_golden_one() -> None:
    pace, cold_time = started(golden_s=0.014)
    pace.note(ITEM, 100_000, 0.4)

    assert cold_time.slow_s(100_000, "inference", 10 * GOLDEN_PX) == 1.4


def test_a_crowd_slows_the_work_and_one_slow_start_is_not_what_starts_take() -> None:
    pace, cold_time = started(golden_s=0.014)
    pace.note(ITEM, 100_000, 0.5)
    for seconds in (1.0, 4.0, 1.2):
        cold_time.note_start(seconds, cold=True)

    assert cold_time.slow_s(100_000, "decode", 100_000, crowd=2) == 1.2 + 2 * 0.5
