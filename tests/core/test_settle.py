"""When a file counts as complete: one conversation for each way in which writers behave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.events import FileObserved, Hint, Instant, Writer
from watcher.core.job import Fingerprint
from watcher.core.policy import ArrivalPolicy
from watcher.core.settle import Settled, SettleTracker

NS = 1_000_000_000
WALL_S = 1_800_000_000.0


class Files:
    """One file on a fake disk, looked at by a tracker; the clock stands unless `wait` is called."""

    def __init__(self, quiet_s: float = 1.0) -> None:
        self.tracker = SettleTracker(ArrivalPolicy(quiet_s=quiet_s))
        self.now_ns = 1000 * NS
        self.fingerprint = self._stat(0)

    @property
    def now(self) -> Instant:
        return Instant(self.now_ns, WALL_S + self.now_ns / NS)

    def _stat(self, size_bytes: int, age_s: float = 0.0) -> Fingerprint:
        wall_ns = round((self.now.wall_s - age_s) * NS)
        return Fingerprint(7, size_bytes, wall_ns, wall_ns)

    def write(self, size_bytes: int, age_s: float = 0.0) -> None:
        self.fingerprint = self._stat(size_bytes, age_s)

    def look(self, hint: Hint, writer: Writer = Writer.NONE, links: int = 1) -> Settled | None:
        return self.tracker.observe(
            FileObserved("a.png", self.fingerprint, hint, writer, links, self.now_ns), self.now
        )

    def wait(self, seconds: float) -> list[str]:
        self.now_ns += round(seconds * NS)
        return self.tracker.take_due(self.now)


@pytest.mark.parametrize("hint", [Hint.CLOSED, Hint.MOVED_IN])
def test_a_closed_or_moved_in_file_is_complete_at_once(hint: Hint) -> None:
    files = Files()
    files.write(100)
    settled = files.look(hint)
    assert settled == Settled("a.png", files.fingerprint, files.now_ns, files.now_ns)
    assert len(files.tracker) == 0


@pytest.mark.parametrize("hint", [Hint.CREATED, Hint.MODIFIED, Hint.CHECKED, Hint.LISTED])
def test_any_other_young_file_is_looked_at_again_after_the_quiet_period(hint: Hint) -> None:
    files = Files()
    files.write(100)
    assert files.look(hint) is None
    assert files.wait(0.9) == []
    assert files.wait(0.2) == ["a.png"]
    assert files.look(Hint.CHECKED) is not None


def test_a_hard_link_is_complete_when_it_is_created() -> None:
    files = Files()
    files.write(100)
    assert files.look(Hint.CREATED, links=2) is not None


def test_an_old_file_without_a_writer_is_complete_at_once() -> None:
    files = Files()
    files.write(100, age_s=5)
    assert files.look(Hint.CHECKED) is not None


def test_an_old_file_whose_writers_cannot_be_seen_is_waited_for() -> None:
    files = Files()
    files.write(100, age_s=5)
    assert files.look(Hint.CHECKED, Writer.UNKNOWN) is None
    files.wait(1.1)
    assert files.look(Hint.CHECKED, Writer.UNKNOWN) is not None


def test_a_file_from_the_future_is_waited_for_like_a_young_one() -> None:
    files = Files()
    files.write(100, age_s=-1000)
    assert files.look(Hint.CHECKED) is None
    assert files.wait(1.1) == ["a.png"]
    assert files.look(Hint.CHECKED) is not None


@pytest.mark.parametrize("hint", list(Hint))
def test_a_file_that_somebody_has_open_is_never_complete(hint: Hint) -> None:
    files = Files()
    files.write(100, age_s=5)
    for _ in range(100):
        assert files.look(hint, Writer.PRESENT, links=2) is None
        files.wait(3600)


def test_looks_at_an_open_file_become_rarer_and_do_not_end() -> None:
    files = Files()
    files.write(100)
    gaps = []
    last_ns = files.now_ns
    for _ in range(40):
        files.look(Hint.CHECKED, Writer.PRESENT)
        while not files.wait(0.1):
            pass
        gaps.append(round((files.now_ns - last_ns) / NS))
        last_ns = files.now_ns
    assert gaps[:3] == [1, 2, 3]
    assert set(gaps[12:]) == {10}


def test_growth_makes_looks_at_an_open_file_frequent_again() -> None:
    files = Files()
    for size in range(1, 20):
        files.write(size)
        files.look(Hint.CHECKED, Writer.PRESENT)
        assert files.wait(1.05) == ["a.png"]


def test_the_quiet_period_starts_over_with_each_change() -> None:
    files = Files()
    for size in range(1, 11):
        files.write(size)
        assert files.look(Hint.MODIFIED, Writer.UNKNOWN) is None
        files.wait(0.5)
    files.wait(0.6)
    settled = files.look(Hint.CHECKED, Writer.UNKNOWN)
    assert settled is not None
    assert settled.observed_ns == files.now_ns - round(1.1 * NS), "the chain starts with the last change"


def test_a_flood_of_notifications_plans_one_look() -> None:
    files = Files()
    for size in range(1, 1000):
        files.write(size)
        files.look(Hint.MODIFIED, Writer.UNKNOWN)
    assert files.wait(2) == ["a.png"]


def test_a_file_that_closes_again_and_again_is_waited_for() -> None:
    """`open, append, close` over and over: each close alone looks like the end."""
    files = Files()
    complete = 0
    for size in range(1, 21):
        files.write(size)
        complete += files.look(Hint.CLOSED) is not None
        files.wait(0.5)
    assert complete == 1, "only the first close was believed"
    files.wait(2.0)
    assert files.look(Hint.CHECKED) is not None


def test_a_slow_repeated_closer_is_given_three_of_its_own_pauses() -> None:
    files = Files(quiet_s=0.2)
    for size in range(1, 6):
        files.write(size)
        files.look(Hint.CLOSED)
        files.wait(0.5)
    files.wait(0.6)
    assert files.look(Hint.CHECKED) is None
    files.wait(0.5)
    assert files.look(Hint.CHECKED) is not None


def test_a_picture_that_is_saved_again_a_while_later_is_complete_at_once() -> None:
    files = Files()
    files.write(100)
    assert files.look(Hint.CLOSED) is not None
    files.wait(30)
    files.write(200)
    assert files.look(Hint.CLOSED) is not None


def test_nobody_is_waited_for_longer_than_ten_quiet_periods() -> None:
    files = Files()
    files.write(100)
    files.look(Hint.CLOSED)
    files.wait(9)
    files.write(200)
    assert files.look(Hint.CLOSED) is None
    files.wait(10.1)
    assert files.look(Hint.CHECKED) is not None


def test_repeated_closers_are_forgotten() -> None:
    files = Files()
    for number in range(1000):
        seen = FileObserved(
            f"{number}.png", Fingerprint(number, 5, 0, 0), Hint.CLOSED, Writer.NONE, 1, files.now_ns
        )
        assert files.tracker.observe(seen, files.now) is not None
        files.wait(1)
    assert len(files.tracker._past) < 20


def test_an_empty_file_has_not_arrived_and_is_told_of_once() -> None:
    files = Files()
    assert files.look(Hint.CLOSED) is None
    assert files.tracker.growing == 0
    assert files.wait(599) == []
    assert files.tracker.take_stale_empties(files.now) == []
    files.wait(2)
    assert files.tracker.take_stale_empties(files.now) == ["a.png"]
    assert files.tracker.take_stale_empties(files.now) == []
    files.write(100)
    assert files.look(Hint.CLOSED) is not None


def test_an_empty_file_that_is_filled_grows() -> None:
    files = Files()
    files.look(Hint.CREATED)
    files.write(100)
    files.look(Hint.MODIFIED, Writer.PRESENT)
    assert files.tracker.growing == 1


def test_a_forgotten_path_is_not_looked_at() -> None:
    files = Files()
    files.write(100)
    files.look(Hint.CREATED)
    files.tracker.forget("a.png")
    assert files.wait(5) == []
    assert "a.png" not in files.tracker


def test_a_failed_reading_is_followed_by_another_look_and_hopeless_files_are_not_waited_for() -> None:
    files = Files()
    files.write(100, age_s=5)
    files.tracker.look_again("a.png", files.fingerprint, files.now, quiet_periods=4, hopeless=True)
    assert files.tracker.growing == 0
    assert files.wait(3.9) == []
    assert files.wait(0.2) == ["a.png"]
    files.write(101)
    files.look(Hint.MODIFIED, Writer.PRESENT)
    assert files.tracker.growing == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "touch", "look"]),
            st.sampled_from(list(Hint)),
            st.sampled_from(list(Writer)),
            st.floats(0.0, 3.0),
        ),
        max_size=30,
    )
)
def test_a_file_that_is_left_alone_is_complete_in_the_end(
    story: list[tuple[str, Hint, Writer, float]],
) -> None:
    """Whatever happened before: once the writer has gone, planned looks alone lead to the end."""
    files = Files()
    files.write(1)
    complete: Settled | None = files.look(Hint.CREATED, Writer.PRESENT)
    for action, hint, writer, pause_s in story:
        if action != "look":
            files.write(files.fingerprint.size_bytes + (action == "write"))
        complete = files.look(hint, writer)
        if writer is Writer.PRESENT:
            assert complete is None
        files.wait(pause_s)
    for _ in range(200):
        if complete is not None and complete.fingerprint == files.fingerprint:
            break
        complete = files.look(Hint.CHECKED) if files.wait(0.2) or complete is not None else complete
        if complete is None and "a.png" in files.tracker and not files.tracker.is_planned("a.png"):
            complete = files.look(Hint.CHECKED)  # the inbox answers a look that is under way
    assert complete is not None
    assert complete.fingerprint == files.fingerprint
    assert complete.observed_ns <= complete.settled_ns


def test_the_time_before_the_first_look_is_told_apart_while_nothing_changed() -> None:
    files = Files()
    files.write(100, age_s=50)
    seen = FileObserved("a.png", files.fingerprint, Hint.CHECKED, Writer.NONE, 1, files.now_ns)
    settled = files.tracker.observe(replace(seen, first_seen_ns=files.now_ns - 5 * NS), files.now)
    assert settled is not None
    assert (settled.observed_ns, settled.backlog_ns) == (files.now_ns - 5 * NS, 5 * NS)


def test_a_change_after_the_first_look_begins_the_chain_anew() -> None:
    files = Files()
    files.write(100)
    seen = FileObserved("a.png", files.fingerprint, Hint.CHECKED, Writer.PRESENT, 1, files.now_ns)
    assert files.tracker.observe(replace(seen, first_seen_ns=files.now_ns - 5 * NS), files.now) is None
    files.wait(1)
    files.write(200)
    settled = files.look(Hint.CLOSED)
    assert settled is not None
    assert (settled.observed_ns, settled.backlog_ns) == (files.now_ns, 0)


def test_a_file_on_a_network_is_waited_for_longer() -> None:
    for network, complete in ((False, True), (True, False)):
        files = Files()
        files.tracker.watch_network(network=network)
        files.write(100)
        assert files.look(Hint.CLOSED, Writer.UNKNOWN) is None
        files.wait(2)
        assert (files.look(Hint.CHECKED, Writer.UNKNOWN) is not None) is complete
    files.wait(1)
    assert files.look(Hint.CHECKED, Writer.UNKNOWN) is not None
