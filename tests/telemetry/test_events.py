"""The table of event names holds every name that the code uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import watcher
from watcher.telemetry.events import EVENTS, markdown_table

SOURCES = Path(watcher.__file__).parent
LEVELS = {"debug", "info", "warning", "error"}
NAME = re.compile(r"[a-z]+\.[a-z_]+")

MADE_UP = {"job.failed", "job.quarantined"}
"""The ledger makes these of the state; other ends are `job.finished`."""


def used_names() -> dict[str, set[str | None]]:
    """Names in calls such as `Log("info", "a.b", ...)`, `ledger.log(level, "a.b")`, `log.warning("a.b")`."""
    found: dict[str, set[str | None]] = {}
    for file in SOURCES.rglob("*.py"):
        if (SOURCES / "worker") in file.parents:
            continue  # the worker reports to the service, it has no log of its own
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (use := _use(node)) is not None:
                found.setdefault(use[0], set()).add(use[1])
    return found


def _use(call: ast.Call) -> tuple[str, str | None] | None:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [part.value if isinstance(part, ast.Constant) else None for part in call.args[:2]]
    if method in LEVELS and texts and isinstance(texts[0], str) and NAME.fullmatch(texts[0]):
        return texts[0], method
    if method in {"Log", "_log", "log", "write"} and len(texts) == 2 and isinstance(texts[1], str):
        level = texts[0] if isinstance(texts[0], str) else None
        return (texts[1], level) if NAME.fullmatch(texts[1]) else None
    return None


def test_the_search_finds_the_names() -> None:
    assert {"log.file_failed", "request.rejected", "job.held", "publish.blocked"} <= set(used_names())


def test_every_name_that_is_used_stands_in_the_table() -> None:
    assert sorted(set(used_names()) - set(EVENTS)) == []
    assert set(EVENTS) >= MADE_UP


def test_every_name_in_the_table_is_used() -> None:
    sources = [file for file in SOURCES.rglob("*.py") if file.name != "events.py"]
    nodes = (node for file in sources for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert sorted(set(EVENTS) - texts - MADE_UP) == []


def test_the_level_in_the_table_is_one_that_is_used() -> None:
    wrong = {
        name: levels
        for name, levels in used_names().items()
        if name in EVENTS and None not in levels and EVENTS[name].level not in levels
    }
    assert wrong == {}


def test_the_documentation_shows_each_name_once() -> None:
    rows = markdown_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(EVENTS)
    assert all(row.count("|") == 4 for row in rows)
