r"""JSON that any parser takes, of values that may hold any file name and any number.

Rules of this file: a byte of a name that is not UTF-8 is written as the text `\xff` (as
`watcher.core.record` does with the paths that it knows), since strict parsers refuse a lone surrogate; NaN
and infinity become null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watcher.core.record import printable

if TYPE_CHECKING:
    from watcher.core.job import JsonObject


def one_line(value: JsonObject) -> bytes:
    """The object as one line of ASCII that ends in a newline."""
    text = json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def for_people(value: JsonObject) -> bytes:
    """The object as indented UTF-8 text."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


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
