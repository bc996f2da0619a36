"""Draws the state machines of docs/ARCHITECTURE.md from their tables (`drawing.py --write`)."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from watcher.core import job, supervision

if TYPE_CHECKING:
    from collections.abc import Mapping

State = TypeVar("State", bound=StrEnum)
Report = TypeVar("Report", bound=StrEnum)
PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"


def diagram(transitions: Mapping[State, Mapping[Report, State]], first: State) -> str:
    """A Mermaid state diagram; causes with the same two ends share an arrow."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    for state, exits in transitions.items():
        causes: dict[str, list[str]] = {}
        for cause, target in exits.items():
            causes.setdefault(target.value, []).append(cause.value)
        lines += [f"    {state.value} --> {target}: {', '.join(names)}" for target, names in causes.items()]
        if not exits:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join([*lines, "```"])


def after_crash() -> str:
    """The table of what a crash leaves."""
    rows = [f"| `{state.value}` | {text} |" for state, text in job.AFTER_CRASH.items()]
    return "\n".join(["| state | after a crash of the service |", "|---|---|", *rows])


def drawn() -> dict[str, str]:
    """What stands between the page's markers."""
    jobs = diagram(job.TRANSITIONS, job.JobState.WAITING)
    return {
        "job": f"{jobs}\n\n{after_crash()}",
        "worker": diagram(supervision.TRANSITIONS, supervision.WorkerState.STOPPED),
    }


def with_drawings(page: str) -> str:
    """The page with its drawings made anew."""
    for name, text in drawn().items():
        before, after = f"<!-- drawn: {name} -->\n", "<!-- end -->"
        pattern = re.compile(f"(?<={before}).*?(?={after})", re.DOTALL)
        page, count = pattern.subn(lambda _found, text=text: f"{text}\n", page)  # type: ignore[misc] # a default argument
        if count != 1:
            raise SystemExit(f"{PAGE}: {count} places for the drawing {name}, not 1")
    return page


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(with_drawings(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
