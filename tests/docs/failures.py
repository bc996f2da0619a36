"""Writes docs/FAILURES.md from the list of kinds and the marks of the tests.

    python -m tests.docs.failures --write

Rules of this file:
- Marks are read from the tests' syntax trees, so nothing is imported and no test has to be collected.
- A mark whose kind is no literal text cannot be read, and is an error: a page that misses it would lie.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from tests.service.kinds import KINDS, NOT_HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
PAGE: Final = ROOT / "docs" / "FAILURES.md"

GROUPS: Final[Mapping[str, str]] = {
    "A": "Files that are not complete yet",
    "B": "Renames and temporary names",
    "C": "Events that are missing, watches that are dead",
    "D": "Exactly once, through crashes and restarts",
    "E": "Loops",
    "F": "Names and trees",
    "G": "Times",
    "H": "Permissions, mounts, services",
    "I": "Long runs",
    "W": "The resident worker",
    "PA": "Pictures: size, channels, masks",
    "PB": "Pictures: quality, seams, speed, memory of the fill",
    "PC": "Pictures: files, formats, metadata",
    "PD": "The model file, its packages, the service around them",
}

OPENING: Final = """\
# Failures that others met

Programs that watch a folder, services that keep a model in a process, and tools that fill parts of pictures
have failed in many ways. Each row is one kind of failure that people reported of some such program, and the
tests that hold this one against it. Those in `tests/service` run the real service on real files, those in
`tests/worker` the worker on real pictures. A test names its kinds with `@pytest.mark.kind("A1")`.

This page is written by `python -m tests.docs.failures --write` from `tests/service/kinds.py` and those marks.
"""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mark(NamedTuple):
    """One kind that one test holds."""

    kind: str
    file: str
    """Relative to the repository."""
    test: str


class MarkError(ValueError):
    """A mark that cannot be read."""


def marks_of(files: Iterable[Path]) -> list[Mark]:
    """Every mark in these files, in their order.

    Raises:
        MarkError: a kind is no literal text.
    """
    return [mark for file in files for mark in marks_in(file.read_text("utf-8"), _shown(file))]


def marks_in(source: str, file: str) -> list[Mark]:
    """Every mark in the text of one file of tests.

    Raises:
        MarkError: a kind is no literal text.
    """
    module = ast.parse(source)
    common = _kinds_in(_module_marks(module), file)
    found = []
    for names, decorators in _tests(module.body, (), ()):
        kinds = [*common, *_kinds_in(decorators, file)]
        found += [Mark(kind, file, "::".join(names)) for kind in dict.fromkeys(kinds)]
    return found


def written(marks: Iterable[Mark]) -> str:
    """The page."""
    held: dict[str, list[Mark]] = {}
    for mark in marks:
        held.setdefault(mark.kind, []).append(mark)
    parts = [OPENING]
    for letters, title in GROUPS.items():
        rows = [_row(kind, held.get(kind, [])) for kind in KINDS if group_of(kind) == letters]
        parts.append(f"\n## {title}\n\n| kind | what others met | held by |\n|---|---|---|\n" + "".join(rows))
    return "".join(parts)


def group_of(kind: str) -> str:
    """The letters that a kind begins with."""
    return kind.rstrip("0123456789")


def test_files() -> list[Path]:
    """Every file of tests."""
    return sorted(TESTS.rglob("test_*.py"))


def _tests(
    body: Iterable[ast.stmt], names: tuple[str, ...], outer: tuple[ast.expr, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[ast.expr, ...]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, (*names, node.name), (*outer, *node.decorator_list))
        elif isinstance(node, _Function) and node.name.startswith("test"):
            yield (*names, node.name), (*outer, *node.decorator_list)


def _module_marks(module: ast.Module) -> list[ast.expr]:
    return [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
    ]


def _kinds_in(expressions: Iterable[ast.expr], file: str) -> list[str]:
    """The kinds that are named anywhere in decorators, also in the marks of a parameter."""
    calls = [node for expression in expressions for node in ast.walk(expression) if _is_mark(node)]
    return [_literal(argument, file) for call in calls for argument in call.args]


def _is_mark(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "kind"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def _literal(argument: ast.expr, file: str) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise MarkError(f'{file}, line {argument.lineno}: write the kind as a text, as in kind("A1")')


def _row(kind: str, marks: list[Mark]) -> str:
    holders = [f"[{mark.test}](../{mark.file})" for mark in marks]
    if kind in NOT_HERE:
        holders.insert(0, f"not run here: {NOT_HERE[kind]}")
    return f"| {kind} | {KINDS[kind]} | {'<br>'.join(holders)} |\n"


def _shown(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(written(marks_of(test_files())), encoding="utf-8")
