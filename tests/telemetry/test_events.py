"""The table of events is what the code writes: every name, each of its levels, all of its fields."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.telemetry.event_uses import SOURCES, uses
from watcher.core.summary import Summary
from watcher.telemetry.events import EVENTS, markdown_table

if TYPE_CHECKING:
    from tests.telemetry.event_uses import Use


@pytest.fixture(scope="module")
def used() -> dict[str, list[Use]]:
    found: dict[str, list[Use]] = {}
    for use in uses():
        found.setdefault(use.event, []).append(use)
    return found


def test_every_text_that_is_an_events_name_was_found_as_a_use(used: dict[str, list[Use]]) -> None:
    """A way to write a line that the search does not know would be seen by the name alone."""
    places = [file for file in SOURCES.rglob("*.py") if file.name != "events.py"]
    nodes = (node for file in places for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert sorted((set(EVENTS) & texts) - set(used)) == []


def test_the_table_has_the_names_that_are_used_and_no_others(used: dict[str, list[Use]]) -> None:
    assert sorted(used) == sorted(EVENTS)


@pytest.mark.parametrize("name", EVENTS)
def test_levels_and_fields_are_those_of_the_code(name: str, used: dict[str, list[Use]]) -> None:
    spec = EVENTS[name]
    places = [use.place for use in used[name]]
    assert {spec.level, *spec.also} == {level for use in used[name] for level in use.levels}, places
    assert set(spec.fields) == {field for use in used[name] for field in use.fields}, places
    assert len({spec.level, *spec.also}) == 1 + len(spec.also)
    assert len(set(spec.fields)) == len(spec.fields)


def test_the_fields_of_a_summary_are_what_it_takes() -> None:
    summary = Summary(1.0)
    summary.held(0)
    assert tuple(summary.take(1) or ()) == EVENTS["service.summed_up"].fields


def test_the_documentation_shows_each_name_once() -> None:
    rows = markdown_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(EVENTS)
    assert all(row.count("|") == 5 for row in rows)
