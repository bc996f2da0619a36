"""What of a one-shot's start belongs to its jobs."""

from __future__ import annotations

import pytest

from watcher.core import events as e
from watcher.core.lanes import Lanes
from watcher.core.policy import Policy
from watcher.core.routing import PathReason

SENT_NS = 1_000
SEGMENTS = {"process_start": 100, "import": 500, "warmup": 50}


@pytest.mark.parametrize(("ready_ns", "process_start_ns"), [(1_650, 100), (1_800, 250), (1_600, 100)])
def test_the_commit_before_a_one_shots_start_belongs_to_that_start(
    ready_ns: int, process_start_ns: int
) -> None:
    """Else nobody claims it; where the process claims more than there was, nothing is taken from it."""
    lanes = Lanes(Policy(), lambda: 0.5)
    flight = lanes.take_off(7, "cold", PathReason.CRASHED, (), SENT_NS)
    origin = e.Origin("cold", 7, 4711, "here")
    ready = e.WorkerReady(origin, ready_ns, SEGMENTS, {}, {}, rss_bytes=1, model_loads=1)
    lanes.flights.is_ready(flight, ready, ready_ns)

    assert lanes.start_segments(flight) == (SEGMENTS | {"process_start": process_start_ns}, ready_ns)


def test_a_resident_workers_start_belongs_to_no_job() -> None:
    lanes = Lanes(Policy(), lambda: 0.5)

    assert lanes.start_segments(lanes.take_off(7, "hot", PathReason.READY, (), SENT_NS)) == (None, None)
