"""Pictures that are made when a test first asks for one: to collect the tests costs nothing.

Rules of this file:
- A table of sources is collected by every process that runs tests, and most of these run none of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Value = TypeVar("Value")


class Made(Mapping[str, Value], Generic[Value]):
    """A table by name whose values are made once each, by what makes them."""

    def __init__(self, makers: Mapping[str, Callable[[], Value]]) -> None:
        self._makers = makers
        self._made: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
