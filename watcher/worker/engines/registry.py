"""The one place that knows which engines there are.

A new engine is a module with the Protocol, a line in `_ENGINES`, and a parameter of the conformance suite.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from watcher.worker.engines.auto import AutoEngine
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.patchmatch import PatchmatchEngine
from watcher.worker.engines.protocol import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from watcher.wire import EngineChoice
    from watcher.worker.engines.protocol import Engine

_ENGINES: Mapping[str, Callable[[EngineChoice], Engine]] = {
    "auto": AutoEngine,
    "lama": LamaEngine,
    "patchmatch": PatchmatchEngine,
}
ENGINE_NAMES = tuple(_ENGINES)


def build_engine(choice: EngineChoice) -> Engine:
    """Return the engine that the configuration names, not loaded yet; imports nothing heavy.

    Raises:
        EngineUnavailableError: there is no engine of that name.
    """
    build = _ENGINES.get(choice.name)
    if build is None:
        near = difflib.get_close_matches(choice.name, ENGINE_NAMES, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise EngineUnavailableError(
            f"there is no engine named {choice.name!r}",
            f"{hint}Set `name` under `[engine]` to one of: {', '.join(ENGINE_NAMES)}.",
        )
    return build(choice)
