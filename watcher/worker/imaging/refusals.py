"""How imaging says no: two exceptions, both with words for a person.

Rule: a picture that will be fine later (`IncompleteError`) is never told apart by guessing from one that
never will (`RefusedError`): only a missing end says incomplete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watcher.wire import FailureCode


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
