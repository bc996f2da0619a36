"""Spellings of names for file systems that refuse the ones that were meant."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.adapters.output_names import other_cases, spellings, versions

REFUSED_BY_FAT = set('"*:<>?|\\') | {chr(code) for code in range(32)}
NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=80),
    st.binary(min_size=1, max_size=255).map(os.fsdecode).filter(lambda name: not {"/", "\0"} & set(name)),
)


@pytest.mark.parametrize(
    ("name", "portable", "plain"),
    [
        ("what?.png", "what%3F.png", "what%3F.png"),
        ("ü?.png", "ü%3F.png", "%C3%BC%3F.png"),
        ("日本.png", "日本.png", "%E6%97%A5%E6%9C%AC.png"),
        ("100%.png", "100%.png", "100%25.png"),
        (os.fsdecode(b"\xff\xe9.png"), "%FF%E9.png", "%FF%E9.png"),
        ("a\tb\n.png", "a%09b%0A.png", "a%09b%0A.png"),
        ("C:\\x.png", "C%3A%5Cx.png", "C%3A%5Cx.png"),
        ("ends.", "ends%2E", "ends%2E"),
        ("ends ", "ends%20", "ends%20"),
        ("nul.png", "%6Eul.png", "%6Eul.png"),
        ("COM1", "%43OM1", "%43OM1"),
        ("nullify.png", "nullify.png", "nullify.png"),
    ],
)
def test_a_name_is_spelled_as_it_is_then_portably_then_plainly(name: str, portable: str, plain: str) -> None:
    assert list(spellings((name,))) == [(each,) for each in dict.fromkeys([name, portable, plain])]


def test_every_folder_on_the_way_is_spelled_in_the_same_manner() -> None:
    assert list(spellings(("a:b", "c", "ü.png"))) == [
        ("a:b", "c", "ü.png"),
        ("a%3Ab", "c", "ü.png"),
        ("a%3Ab", "c", "%C3%BC.png"),
    ]


def test_a_plain_name_is_short_and_keeps_its_suffix() -> None:
    *_, (plain,) = spellings(("ä" * 120 + ".jpeg",))
    assert plain.endswith(".jpeg")
    assert len(plain) == 100


@given(NAMES)
def test_no_spelling_but_the_first_has_what_fat_refuses(name: str) -> None:
    first, *others = spellings((name,))
    assert first == (name,)
    for (other,) in others:
        assert not REFUSED_BY_FAT & set(other)
        assert other.encode("utf-8"), "it is UTF-8, and not empty"
        assert not other.endswith((" ", "."))
        assert other not in {"", ".", ".."}
        assert "/" not in other
    assert len(os.fsencode(others[-1][0] if others else name)) <= max(100, len(os.fsencode(name)))


def test_versions_of_an_escaped_name_are_told_apart() -> None:
    numbered = versions("what%3F.png")
    assert [next(numbered) for _ in range(3)] == ["what%3F.png", "what%3F (2).png", "what%3F (3).png"]


def test_the_other_names_of_a_name() -> None:
    assert "a.png" in set(other_cases("A.png"))
    assert "A.PNG" in set(other_cases("A.png"))
    composed, decomposed = (unicodedata.normalize(form, "é.png") for form in ("NFC", "NFD"))
    assert decomposed in set(other_cases(composed))
    assert composed in set(other_cases(decomposed))
    assert set(other_cases("12")) == set()
