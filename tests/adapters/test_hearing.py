"""When silence of the watch is a fault, and when it has another reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from watcher.adapters.hearing import CHECKS, MAX_DOUBTS, MAX_NOTICES, SILENT_CHECKS, Hearing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NS = 1_000_000_000


class Ear:
    """A hearing, and a clock for its checks."""

    def __init__(self) -> None:
        self.hearing = Hearing()
        self.now_ns = 7 * NS

    def list(self, *files: str, unreadable: Iterable[str] = ()) -> None:
        self.hearing.begin_listing()
        self.hearing.compare(files, tuple(unreadable))

    def check(self, after_s: float = 1.0) -> str | None:
        self.now_ns += round(after_s * NS)
        return self.hearing.certain(self.now_ns)

    def told(self, path: str) -> None:
        self.hearing.stir()
        self.hearing.hear(path)

    def checks_until_certain(self, most: int = 2 * CHECKS) -> int | None:
        return next((n for n in range(1, most + 1) if self.check() is not None), None)


@pytest.fixture
def ear() -> Ear:
    return Ear()


def test_a_new_file_of_which_nobody_told_is_certain_after_some_silent_checks(ear: Ear) -> None:
    ear.list("old.png")
    ear.list("old.png", "new.png")
    assert [ear.check() for _ in range(SILENT_CHECKS)] == [None] * (SILENT_CHECKS - 1) + ["new.png"]


def test_the_first_listing_after_arming_is_no_news(ear: Ear) -> None:
    ear.list("a.png")
    assert ear.checks_until_certain() is None
    ear.hearing.start_over()
    ear.list("a.png", "b.png")
    assert ear.checks_until_certain() is None


def test_an_inbox_that_was_empty_is_a_listing_too(ear: Ear) -> None:
    ear.list()
    ear.list("first.png")
    assert ear.checks_until_certain() == SILENT_CHECKS


@pytest.mark.parametrize(
    "explain",
    [
        lambda ear: ear.told("a/b/new.png"),
        lambda ear: ear.hearing.hear_folder("a/b"),
        lambda ear: ear.hearing.hear_folder("a"),
        lambda ear: ear.hearing.hear_folder(""),
        lambda ear: ear.hearing.lose(),
    ],
    ids=["its own notice", "its folder's", "a folder's above", "the root's", "notices were lost"],
)
@pytest.mark.parametrize("when", ["before the listing", "during the last but one", "after it"])
def test_what_has_a_reason_is_no_doubt(ear: Ear, explain: Callable[[Ear], None], when: str) -> None:
    ear.hearing.begin_listing()
    if when == "during the last but one":
        explain(ear)
    ear.hearing.compare(["old.png"], ())
    if when == "before the listing":
        explain(ear)
    ear.list("old.png", "a/b/new.png")
    if when == "after it":
        assert ear.check() is None
        explain(ear)
    assert ear.checks_until_certain() is None


@pytest.mark.parametrize("folder", ["a", "a/bb", "b", "a/b/new.png"])
def test_another_folder_is_no_reason(ear: Ear, folder: str) -> None:
    ear.list("old.png")
    if folder != "a":
        ear.hearing.hear_folder(folder)
    ear.told(f"{folder}/other.png")
    ear.list("old.png", "a/b/new.png")
    ear.check()  # hears of the other
    assert ear.checks_until_certain() == SILENT_CHECKS


def test_a_reason_of_long_ago_is_none(ear: Ear) -> None:
    ear.told("new.png")
    ear.list("new.png")
    ear.check()
    ear.list()
    ear.list()
    ear.list("new.png")
    assert ear.checks_until_certain() == SILENT_CHECKS


def test_a_folder_that_could_not_be_read_explains_what_is_in_it(ear: Ear) -> None:
    ear.list("a.png", unreadable=["locked"])
    ear.list("a.png", "locked/new.png")
    ear.list("a.png", "locked/new.png", "locked/newer.png")
    assert ear.checks_until_certain() == SILENT_CHECKS  # of the newer one alone: it was readable by then
    assert ear.check() == "locked/newer.png"


def test_a_listing_that_was_not_finished_forgets_nothing(ear: Ear) -> None:
    ear.list("old.png")
    ear.told("new.png")
    for _ in range(3):
        ear.hearing.begin_listing()  # and the folder could not be read
    ear.list("old.png", "new.png")
    assert ear.checks_until_certain() is None


def test_a_change_or_a_loss_of_what_was_listed_is_no_news(ear: Ear) -> None:
    ear.list("a.png", "b.png")
    ear.list("b.png")
    ear.list("b.png")
    assert ear.checks_until_certain() is None


def test_other_notices_put_the_verdict_off_but_not_for_ever(ear: Ear) -> None:
    ear.list()
    ear.list("new.png")
    for number in range(CHECKS - 1):
        ear.hearing.stir()
        assert ear.check() is None, number
    ear.hearing.stir()
    assert ear.check() == "new.png"


def test_checks_in_a_row_are_one(ear: Ear) -> None:
    ear.list()
    ear.list("new.png")
    assert all(ear.check(0.001) is None for _ in range(100))
    # a process that was stopped for an hour has looked once more, not a thousand times
    assert ear.check(3600.0) is None
    assert ear.check(1.0) == "new.png"


def test_a_notice_between_two_checks_is_not_missed_by_one_that_came_too_soon(ear: Ear) -> None:
    ear.list()
    ear.list("new.png")
    for _ in range(4):
        ear.check(1.0)
        ear.hearing.stir()
        assert ear.check(0.01) is None
    assert ear.check(1.0) is None


def test_memory_is_bounded(ear: Ear) -> None:
    ear.list()
    for number in range(MAX_NOTICES + 10):
        ear.told(f"{number}.png")
        ear.hearing.hear_folder(f"{number}")
    assert len(ear.hearing._since.files) == len(ear.hearing._since.folders) == MAX_NOTICES
    ear.list("untold.png")
    assert ear.checks_until_certain() is None, "what was told of is not known completely"

    ear.hearing.start_over()
    ear.list()
    ear.list(*(f"{number}.png" for number in range(10 * MAX_DOUBTS)))
    assert len(ear.hearing._doubts.paths) == MAX_DOUBTS
    ear.list(*(f"{number}.png" for number in range(20 * MAX_DOUBTS)))
    assert len(ear.hearing._doubts.paths) == MAX_DOUBTS
