"""Services in scratch folders: one that the tests of a file share, fresh ones for tests that kill theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.harness import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def new_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Make a service in a folder of its own; it is not started yet, and killed at the end."""
    made: list[Service] = []

    def make(*settings: str, **options: Any) -> Service:
        service = Service(tmp_path / f"service-{len(made)}", settings, **options)
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("shared"), ("[arrivals]", "quiet_s = 0.3")).start()
    yield service
    assert service.terminate() == 0
    service.close()


@pytest.fixture
def service(_running: Service) -> Iterator[Service]:
    """The service that the tests of a file share: each uses names of its own, and leaves it sound."""
    yield _running
    _running.assert_sound()
