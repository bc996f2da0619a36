"""How imaging says no: two exceptions, both with words for a person.

Rules of this module:
- A picture that will be fine later (`IncompleteError`) is never told apart by guessing from one that never
  will (`RefusedError`): only a missing end says incomplete.
- Words may quote a file, or a decoder that does: they leave the worker through `quoted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watcher.wire import FailureCode


MOST_WORDS = 400
"""Characters of a reason: as much as somebody reads."""
MOST_NAMES, MOST_NAME = 50, 100
"""Names of lost metadata, and characters of one: keywords are of any number and length."""


def quoted(text: str, most: int = MOST_WORDS) -> str:
    """Return text from outside as one line that is fit to be shown: printable, and not too long."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def quoted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names from outside, fit to be shown, and how many more there are."""
    shown = tuple(quoted(name, MOST_NAME) for name in names[:MOST_NAMES])
    more = len(names) - len(shown)
    return (*shown, f"and {more} more") if more else shown


class RefusedError(Exception):
    """The picture or its mask cannot be served, and trying again would not change that.

    Attributes:
        code: the failure as the service knows it.
        reason: what is wrong, in plain words.
        remedy: what a person can do about it.
    """

    def __init__(self, code: FailureCode, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.code: FailureCode = code
        self.reason = reason
        self.remedy = remedy


class IncompleteError(Exception):
    """The file has no end yet: somebody may still be writing it.

    Attributes:
        reason: which end is missing.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
