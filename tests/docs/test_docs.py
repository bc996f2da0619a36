"""The pages say what the code says."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from watcher.core.timeline import SEGMENTS
from watcher.telemetry.events import markdown_table

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)#\s]+)\)")


def _drawing() -> object:
    spec = importlib.util.spec_from_file_location("drawing", Path(__file__).with_name("drawing.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert _drawing().with_drawings(page) == page, "run: python tests/docs/drawing.py --write"  # type: ignore[attr-defined] # loaded by path


def test_the_table_of_events_is_the_codes() -> None:
    page = (ROOT / "docs" / "EVENTS.md").read_text(encoding="utf-8")
    assert markdown_table() in page, "paste watcher.telemetry.events.markdown_table() into docs/EVENTS.md"


def test_every_segment_is_explained() -> None:
    page = (ROOT / "docs" / "RECORDS.md").read_text(encoding="utf-8")
    missing = [name for name in SEGMENTS if f"`{name}`" not in page]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    broken = [link for link in links if not (page.parent / link).exists()]
    assert broken == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs" / "adr").glob("0*.md")}
    assert pages == set(re.findall(r"\((0\d{3}-[a-z-]+\.md)\)", index))


def test_the_code_map_names_every_room() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [path.name for path in (ROOT / "watcher").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"`{room}/`" not in page] == []


def test_every_module_opens_with_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "watcher").rglob("*.py")
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
