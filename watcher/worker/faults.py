"""Faults that tests plant in a real worker, by the environment variable `WATCHER_TEST_FAULTS`.

Nothing but tests sets it. Entries are separated by commas; an entry may start with `hot:` or `cold:` to be
meant for the resident worker or for one-shots only. NAME is the file name of the item's source, or `*`.

| entry               | effect                                                                            |
|---------------------|-----------------------------------------------------------------------------------|
| `crash@NAME`        | exit at once with code 139 when the item starts                                   |
| `segv@NAME`         | a real SIGSEGV when the item starts                                               |
| `hang_sleep@NAME`   | sleep for ever when the item starts                                               |
| `hang_gil@NAME`     | the same inside C code that never gives the interpreter lock back                 |
| `slow_item=SECONDS` | every item sleeps first (counted in `read`)                                       |
| `slow_start=SECONDS`| sleep before the model loads                                                      |
| `fail_start=CODE`   | 78: the engine says that it cannot run here; other codes: exit without last words |
| `garbage`           | one line that is no message, when the first batch starts                          |
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from watcher.wire import EXIT_CONFIGURATION
from watcher.worker.engines.protocol import EngineUnavailableError

VARIABLE = "WATCHER_TEST_FAULTS"
_CRASHED = 139  # what a shell reports for a SIGSEGV
_AT_ITEM = frozenset({"crash", "segv", "hang_sleep", "hang_gil"})
_FOR_EVER_S = 3600
_WITH_VALUE = frozenset({"slow_item", "slow_start", "fail_start"})
_PLAIN = frozenset({"garbage"})
GARBAGE = b"this is not a message\n"


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults that are meant for this process.

    Attributes:
        at_item: pairs of kind and file name.
        values: kind to value.
        plain: kinds without argument.
    """

    at_item: frozenset[tuple[str, str]] = frozenset()
    values: tuple[tuple[str, float], ...] = ()
    plain: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, *, one_shot: bool) -> Faults:
        """Read the variable's value.

        Raises:
            ValueError: an entry that means nothing; a test that plants nothing would pass for nothing.
        """
        at_item: set[tuple[str, str]] = set()
        values: list[tuple[str, float]] = []
        plain: set[str] = set()
        for entry in filter(None, (part.strip() for part in text.split(","))):
            scope, _, rest = entry.rpartition(":")
            if scope not in ("", "hot", "cold"):
                raise ValueError(f"unknown scope in {VARIABLE}: {entry}")
            if scope and (scope == "cold") != one_shot:
                continue
            kind, at, name = rest.partition("@")
            key, equals, value = rest.partition("=")
            if at and kind in _AT_ITEM:
                at_item.add((kind, name))
            elif equals and key in _WITH_VALUE:
                values.append((key, float(value)))
            elif rest in _PLAIN:
                plain.add(rest)
            else:
                raise ValueError(f"unknown fault in {VARIABLE}: {entry}")
        return cls(frozenset(at_item), tuple(values), frozenset(plain))

    def at_start(self) -> None:
        """Act before the model loads.

        Raises:
            EngineUnavailableError: for `fail_start=78`.
        """
        values = dict(self.values)
        time.sleep(values.get("slow_start", 0.0))
        code = int(values.get("fail_start", 0))
        if code == EXIT_CONFIGURATION:
            raise EngineUnavailableError("a planted fault", f"unset {VARIABLE}")
        if code:
            os._exit(code)

    def at_item_start(self, source: str) -> None:
        """Act when an item starts."""
        time.sleep(dict(self.values).get("slow_item", 0.0))
        name = os.path.basename(source)  # noqa: PTH119 - the path may hold surrogates; os takes it as it is
        for kind, wanted in self.at_item:
            if wanted in (name, "*"):
                _strike(kind)


def _strike(kind: str) -> None:
    match kind:
        case "crash":
            os._exit(_CRASHED)
        case "segv":
            import ctypes

            ctypes.string_at(0)
        case "hang_sleep":
            while True:
                time.sleep(_FOR_EVER_S)
        case "hang_gil":
            import ctypes

            while True:
                ctypes.PyDLL(None).sleep(_FOR_EVER_S)
