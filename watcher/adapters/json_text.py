r"""JSON that any parser takes, of values that may hold any file name and any number.

Rules of this file:
- A byte of a name that is not UTF-8 is written as the text `\xff` (as `watcher.core.record` does with the
  paths that it knows), since strict parsers refuse a lone surrogate; NaN and infinity become null.
- What is for people is read on terminals: a character that could move a cursor or turn a line is written as
  JSON's escape, and is the same character to a program.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from watcher.core.record import printable

if TYPE_CHECKING:
    from watcher.core.job import JsonObject

_JOINERS: Final = "\u200c\u200d"


def one_line(value: JsonObject) -> bytes:
    """The object as one line of ASCII that ends in a newline."""
    text = json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def for_people(value: JsonObject) -> bytes:
    """The object as indented UTF-8 text that is harmless on a terminal."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return "\n".join(_harmless(line) for line in text.split("\n")).encode() + b"\n"


def _harmless(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if _is_harmless(char) else json.dumps(char)[1:-1] for char in line)


def _is_harmless(char: str) -> bool:
    # Names of screenshots have spaces that do not break, and some scripts and emoji have joiners.
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON value of any shape
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return value


def _text(value: str) -> str:
    try:
        return printable(value)
    except UnicodeEncodeError:  # a surrogate that no file name makes
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
