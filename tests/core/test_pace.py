"""What phases took, what is made of it where nothing was measured, and how much of it is kept."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.pace import ITEM, PICKUP, TURN, ColdTime, Pace, kind_of_work, prior_s

MEGA = 1_000_000
PHASES = ("read", "decode", "mask", "preprocess", "inference", "composite", "encode", PICKUP, TURN)
ENOUGH = 20
LEAST_S = 3.0
GUESS_S = 10.0


def paced(phase: str, units: int, *seconds: float) -> Pace:
    pace = Pace()
    for taken_s in seconds:
        pace.note(phase, units, taken_s)
    return pace


def test_nothing_is_known_before_it_was_measured() -> None:
    pace = Pace()
    assert pace.usual_s("decode", MEGA) is None
    assert pace.slow_s("decode", MEGA) is None
    assert paced("encode", MEGA, 1.0).usual_s("decode", MEGA) is None, "one phase knows nothing of another"


@pytest.mark.parametrize("phase", PHASES)
def test_a_prior_stands_in_until_there_are_enough_samples(phase: str) -> None:
    pace = Pace()
    prior = max(LEAST_S, prior_s(phase, 30 * MEGA))
    for _ in range(ENOUGH):
        assert pace.patience_s(phase, 30 * MEGA) == prior
        pace.note(phase, 30 * MEGA, 0.001)
    assert pace.patience_s(phase, 30 * MEGA) == LEAST_S


def test_what_is_slower_than_the_prior_is_believed_at_once() -> None:
    pace = paced("decode", MEGA, 100.0)
    assert pace.patience_s("decode", MEGA) == 300.0


def test_patience_is_three_times_what_one_of_a_hundred_takes() -> None:
    pace = paced("encode", MEGA, *[2.0] * 99, 50.0)
    assert pace.slow_s("encode", MEGA) == 2.0, "the one that was slower is the one of a hundred"
    assert pace.patience_s("encode", MEGA) == 6.0
    pace.note("encode", MEGA, 50.0)
    assert pace.slow_s("encode", MEGA) == 50.0
    assert pace.usual_s("encode", MEGA) == 2.0


def test_a_larger_size_borrows_in_proportion_and_a_smaller_one_as_it_is() -> None:
    pace = paced("inference", MEGA, 2.0)
    assert pace.usual_s("inference", 8 * MEGA) == 16.0
    assert pace.usual_s("inference", MEGA // 8) == 2.0


def test_the_nearest_smaller_size_is_borrowed_from() -> None:
    pace = paced("inference", 1000, 5.0)
    pace.note("inference", 100 * MEGA, 900.0)
    pace.note("inference", MEGA, 1.0)
    assert pace.usual_s("inference", 2 * MEGA) == 2.0


def test_a_borrowed_patience_does_not_do_without_the_prior() -> None:
    pace = paced("inference", MEGA, *[0.001] * 100)
    assert pace.patience_s("inference", 4 * MEGA) == prior_s("inference", 4 * MEGA)


def test_what_has_no_size_can_be_known_too() -> None:
    pace = paced(TURN, 0, *[2.0] * ENOUGH)
    assert pace.patience_s(TURN, 0) == 6.0
    assert pace.usual_s(TURN, MEGA) == 2.0


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.0, 1000.0)), min_size=1, max_size=60),
    st.integers(0, 10**9),
)
def test_an_estimate_is_never_less_than_the_quickest_and_slow_never_less_than_usual(
    samples: list[tuple[int, float]], units: int
) -> None:
    pace = Pace()
    for size, seconds in samples:
        pace.note("decode", size, seconds)
    usual_s, slow_s = pace.usual_s("decode", units), pace.slow_s("decode", units)
    assert usual_s is not None
    assert slow_s is not None
    assert min(seconds for _, seconds in samples) <= usual_s <= slow_s
    assert LEAST_S <= pace.patience_s("decode", units) < inf
    assert pace.patience_s("decode", units) >= 3 * slow_s


def test_memory_is_bounded_however_long_it_lives() -> None:
    pace = Pace()
    for number in range(20_000):
        pace.note("decode", number * 50_000, 1.0)
    sizes = pace._samples["decode"]
    assert len(sizes) <= 31
    assert max(len(samples) for samples in sizes.values()) <= 128


def test_old_times_are_forgotten() -> None:
    pace = paced("decode", MEGA, *[9.0] * 128, *[1.0] * 128)
    assert pace.slow_s("decode", MEGA) == 1.0


# --- the cold time -----------------------------------------------------------------------------------------


def cold(pace: Pace | None = None) -> ColdTime:
    return ColdTime(pace or Pace(), GUESS_S)


def test_before_anything_was_measured_the_cold_time_is_a_guess() -> None:
    assert cold().usual_s(MEGA) == GUESS_S
    assert cold().start_s is None
    assert cold().slow_s(MEGA, "decode", MEGA) == GUESS_S


def test_the_first_picture_of_a_format_is_given_what_a_first_picture_is() -> None:
    """A HEIC takes a hundred times as long to encode as a JPEG: what JPEGs took says nothing of it."""
    jpeg, heic = kind_of_work("encode", "JPEG"), kind_of_work("encode", "HEIC")
    pace = paced(jpeg, MEGA, *[0.02] * ENOUGH)
    pace.note(ITEM, MEGA, 0.2)
    cold_time = ColdTime(pace, GUESS_S)
    cold_time.note_start(1.0, cold=True)
    assert cold_time.slow_s(MEGA, jpeg, MEGA) == pytest.approx(1.2)
    assert pace.slow_s(heic, 800 * MEGA) is None
    assert cold_time.slow_s(MEGA, heic, 800 * MEGA) > 1.0 + 0.3 * 0.15 * 800
    pace.note(heic, 800 * MEGA, 13.0)
    assert cold_time.slow_s(MEGA, heic, 800 * MEGA) == 14.0
    assert cold_time.slow_s(MEGA, jpeg, MEGA) == pytest.approx(1.2)


@pytest.mark.parametrize("phase", PHASES)
def test_only_decoding_and_encoding_are_known_by_format(phase: str) -> None:
    kind = kind_of_work(phase, "PNG")
    assert (kind == phase) is (phase not in ("decode", "encode"))
    assert kind_of_work(phase, "") == phase
    assert prior_s(kind, MEGA) == prior_s(phase, MEGA)


def test_a_start_and_the_work_add_up() -> None:
    time = cold(paced(ITEM, MEGA, 4.0))
    time.note_start(2.0, cold=True)
    assert time.usual_s(MEGA) == 6.0
    assert time.usual_s(4 * MEGA) == 18.0


def test_until_a_picture_was_served_the_guess_stands_for_the_work_alone() -> None:
    time = cold()
    time.note_start(2.0, cold=False)
    assert time.usual_s(MEGA) == 2.0 + GUESS_S


def test_one_shots_know_best_what_their_start_takes() -> None:
    time = cold()
    time.note_start(30.0, cold=False)
    assert time.start_s == 30.0
    time.note_start(3.0, cold=True)
    assert time.start_s == 3.0


def test_one_slow_start_changes_nothing() -> None:
    time = cold()
    for seconds in (2.0, 2.0, 100.0, 2.0, 2.0):
        time.note_start(seconds, cold=True)
    assert time.start_s == 2.0


def test_only_the_last_starts_count() -> None:
    time = cold()
    for seconds in [50.0] * 9 + [2.0] * 5:
        time.note_start(seconds, cold=True)
    assert time.start_s == 2.0


def test_a_slow_phase_makes_a_slow_cold_time() -> None:
    pace = paced(ITEM, MEGA, 4.0)
    pace.note("inference", 8 * MEGA, 40.0)
    time = cold(pace)
    time.note_start(2.0, cold=True)
    assert time.slow_s(MEGA, "decode", MEGA) == 6.0
    assert time.slow_s(MEGA, "inference", 8 * MEGA) == 42.0
    assert time.slow_s(MEGA, "inference", 8 * MEGA, crowd=3) == 122.0, "the start was measured in a crowd"
