"""The table of a job's states, pair by pair."""

from __future__ import annotations

import itertools

import pytest

from watcher.core.job import (
    AFTER_CRASH,
    FINAL_STATES,
    TRANSITIONS,
    Cause,
    Fingerprint,
    Identity,
    IllegalTransitionError,
    Job,
    JobState,
)

S, C = JobState, Cause
EXPECTED = {
    (S.WAITING, C.ARRIVED): S.READY,
    (S.WAITING, C.COPIED): S.PUBLISHING,
    (S.WAITING, C.REFUSED): S.FAILED,
    (S.WAITING, C.POISONED): S.QUARANTINED,
    (S.WAITING, C.BYTES_CHANGED): S.SUPERSEDED,
    (S.WAITING, C.SOURCE_VANISHED): S.GONE,
    (S.READY, C.DISPATCHED): S.RUNNING,
    (S.READY, C.BYTES_CHANGED): S.SUPERSEDED,
    (S.READY, C.SOURCE_VANISHED): S.GONE,
    (S.RUNNING, C.STAGED): S.PUBLISHING,
    (S.RUNNING, C.FOUND_UNMARKED): S.HELD,
    (S.RUNNING, C.FOUND_INCOMPLETE): S.WAITING,
    (S.RUNNING, C.REFUSED): S.FAILED,
    (S.RUNNING, C.POISONED): S.QUARANTINED,
    (S.RUNNING, C.RELEASED): S.READY,
    (S.RUNNING, C.BYTES_CHANGED): S.SUPERSEDED,
    (S.RUNNING, C.SOURCE_VANISHED): S.GONE,
    (S.PUBLISHING, C.PUBLISHED): S.DONE,
    (S.PUBLISHING, C.PUBLISHED_UNCHANGED): S.UNCHANGED,
    (S.PUBLISHING, C.STAGE_LOST): S.READY,
    (S.PUBLISHING, C.BYTES_CHANGED): S.SUPERSEDED,
    (S.HELD, C.MASK_ARRIVED): S.READY,
    (S.HELD, C.BYTES_CHANGED): S.SUPERSEDED,
    (S.HELD, C.SOURCE_VANISHED): S.GONE,
}


def job(state: JobState) -> Job:
    return Job("x-1", "a.jpg", Fingerprint(1, 2, 3, 4), Identity("aa", None, "default"), state, 0.0)


@pytest.mark.parametrize(("state", "cause"), list(itertools.product(JobState, Cause)))
def test_every_pair_of_state_and_cause(state: JobState, cause: Cause) -> None:
    expected = EXPECTED.get((state, cause))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match="x-1"):
            job(state).moved(cause)
    else:
        assert job(state).moved(cause).state is expected


def test_a_move_changes_nothing_else() -> None:
    before = job(S.READY)
    assert before.moved(C.DISPATCHED).moved(C.RELEASED) == before


def test_final_states_have_no_exits_and_only_they() -> None:
    assert {state for state, exits in TRANSITIONS.items() if not exits} == FINAL_STATES
    assert set(TRANSITIONS) == set(JobState) == set(AFTER_CRASH)
    assert all(job(state).is_final is (state in FINAL_STATES) for state in JobState)


def test_every_state_can_be_reached_and_left_for_a_final_one() -> None:
    reached = {S.WAITING}
    for _ in JobState:
        reached |= {target for state in reached for target in TRANSITIONS[state].values()}
    assert reached == set(JobState)
    ends = set(FINAL_STATES)
    for _ in JobState:
        ends |= {state for state, exits in TRANSITIONS.items() if ends & set(exits.values())}
    assert ends == set(JobState)


def test_nothing_that_may_have_a_name_in_the_outbox_is_called_gone() -> None:
    assert S.GONE not in TRANSITIONS[S.PUBLISHING].values()
