"""The bench and the conversation, one for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.worker.bench import Bench, Conversation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def talk() -> Iterator[Callable[..., Conversation]]:
    open_ones: list[Conversation] = []

    def start(faults: str = "", environment: dict[str, str] | None = None) -> Conversation:
        conversation = Conversation(faults, environment)
        open_ones.append(conversation)
        return conversation

    yield start
    for conversation in open_ones:
        conversation.close()
