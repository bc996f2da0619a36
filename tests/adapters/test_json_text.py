"""JSON for programs and for people: any text survives, and none of it moves a cursor."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.adapters.json_text import for_people, one_line

HARMFUL = (
    "\x1b[2J",
    "\x9b31m",
    "\x7f",
    "\u202egpj",
    "\u2066",
    "\u2028",
    "\x85",
    "\r",
    "\n",
    "\U000e0041",
    "\u200b",
)


LEGIBLE = (
    "Shot 2026-11-30 at 9.41\u202fAM",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\U0001f468\u200d\U0001f469",
    "a\xa0b",
)


def is_harmless(written: bytes) -> bool:
    """No character moves a cursor, turns a line or is not to be seen; spaces and joiners are letters' own."""
    return all(
        unicodedata.category(char) not in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
        or char in "\n\u200c\u200d"
        for char in written.decode()
    )


@pytest.mark.parametrize("text", LEGIBLE)
def test_what_is_only_unusual_stays_legible(text: str) -> None:
    assert text in for_people({"name": text}).decode()


@pytest.mark.parametrize("text", HARMFUL)
def test_text_for_people_is_harmless_and_the_same_to_a_program(text: str) -> None:
    written = for_people({"name": f"a{text}b", "é図😀": [text]})
    assert is_harmless(written)
    assert json.loads(written) == {"name": f"a{text}b", "é図😀": [text]}
    assert "é図😀" in written.decode(), "letters stay as people know them"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_in_both(text: str) -> None:
    assert json.loads(for_people({text: [text]})) == json.loads(one_line({text: [text]})) == {text: [text]}
    assert one_line({text: text}).count(b"\n") == 1
    assert is_harmless(for_people({text: text}))


@pytest.mark.parametrize("text", ["caf\udce9", "\ud800"])
def test_a_lone_surrogate_becomes_an_escape(text: str) -> None:
    assert "\\" in json.loads(for_people({"name": text}))["name"]
