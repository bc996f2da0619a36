"""The list of kinds, the tests' marks and docs/FAILURES.md say the same."""

from __future__ import annotations

import pytest

from tests.docs import failures
from tests.service.kinds import KINDS, NOT_HERE


@pytest.fixture(scope="module")
def marks() -> list[failures.Mark]:
    return failures.marks_of(failures.test_files())


@pytest.fixture(scope="module")
def held(marks: list[failures.Mark]) -> set[str]:
    return {mark.kind for mark in marks}


MARKED = """
import pytest

@pytest.mark.kind("A1", "A2")
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.kind("B1"))])
def test_one(x): ...

@pytest.mark.kind("C1")
class TestThese:
    def test_two(self): ...

    @pytest.mark.kind("C2")
    def test_three(self): ...

    @pytest.mark.kind("D1")
    def no_test(self): ...

def test_none(): ...
"""


def test_every_kind_has_a_test_or_a_reason_why_not(held: set[str]) -> None:
    assert [kind for kind in KINDS if kind not in held and kind not in NOT_HERE] == []


def test_no_mark_names_a_kind_that_nobody_knows(marks: list[failures.Mark]) -> None:
    assert [mark for mark in marks if mark.kind not in KINDS] == []


def test_what_cannot_be_run_here_is_a_kind_and_has_no_test(held: set[str]) -> None:
    """A kind that has a test after all is taken off that list."""
    assert set(NOT_HERE) - set(KINDS) == set()
    assert set(NOT_HERE) & held == set()


def test_every_kind_is_in_a_group() -> None:
    assert {failures.group_of(kind) for kind in KINDS} == set(failures.GROUPS)


def test_the_page_is_written_from_the_kinds_and_the_marks(marks: list[failures.Mark]) -> None:
    page = failures.PAGE.read_text(encoding="utf-8") if failures.PAGE.exists() else ""
    assert page == failures.written(marks), "run: python -m tests.docs.failures --write"


def test_marks_are_read_wherever_pytest_reads_them() -> None:
    found = failures.marks_in(MARKED, "f.py")
    assert [(mark.kind, mark.test) for mark in found] == [
        ("A1", "test_one"),
        ("A2", "test_one"),
        ("B1", "test_one"),
        ("C1", "TestThese::test_two"),
        ("C1", "TestThese::test_three"),
        ("C2", "TestThese::test_three"),
    ]
    assert failures.marks_in('pytestmark = [pytest.mark.kind("I2")]\ndef test_x(): ...', "f.py") == [
        failures.Mark("I2", "f.py", "test_x")
    ]


def test_a_mark_that_cannot_be_read_is_told_of_with_its_place() -> None:
    with pytest.raises(failures.MarkError, match=r"f\.py, line 1: .*A1"):
        failures.marks_in("@pytest.mark.kind(NAME)\ndef test_x(): ...", "f.py")
