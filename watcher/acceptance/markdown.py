"""The report as Markdown.

Rules of this module:
- Whatever stands in a report is text: nothing in it becomes a tag, a link, a cell or a heading.
- Charts are left out: the tables beside them have their numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from watcher.acceptance.document import Table, compose
from watcher.acceptance.waterfall import Chart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from watcher.acceptance.document import Block
    from watcher.acceptance.report import Acceptance

_ENTITY: Final = re.compile(
    r"[&<>|@]|(?<=\bhttp)[:]|(?<=\bhttps)[:]|(?<=\bftp)[:]|(?<=\bwww)[.]", re.IGNORECASE
)
"""What GitHub reads as markup, or makes a link of, even behind a backslash."""
_BACKSLASH: Final = re.compile(r"[\\`*~\[\]#$]|\b_|_\b|(?<!\w)_")
"""An underscore within a word is one: names of segments stay readable."""


def render(report: Acceptance) -> str:
    """Return the report as GitHub's Markdown.

    Args:
        report: as `watcher accept` measured it.
    """
    document = compose(report)
    parts = [f"# {escape(document.title)}", *_blocks(document.blocks)]
    for section in document.sections:
        parts += [f"## {escape(section.title)}", *_blocks(section.blocks)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text that is read as it stands: no markup, no entity, and no address becomes a link."""
    escaped = _BACKSLASH.sub(lambda found: "\\" + found[0], text)
    return _ENTITY.sub(lambda found: f"&#{ord(found[0])};", escaped)


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield f"**{escape(block.caption)}**"
            yield "\n".join(_rows(block))
        elif not isinstance(block, Chart):
            yield escape(block)


def _rows(table: Table) -> Iterator[str]:
    yield _row(table.headings)
    yield (
        "|"
        + "|".join("---:" if index in table.numbers else "---" for index in range(len(table.headings)))
        + "|"
    )
    for row in table.rows:
        yield _row(row)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
