"""What the tests of a worker's ends look at: the log's lines about it, the evidence, and what waits cost.

Rules of this file: bounds of time come from records of the same run: a slow machine has slower bounds.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.service.harness import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.service.harness import Record, Service

MARGIN_S: Final = 1.5
"""For a machine that does something else as well."""
START: Final = ("process_start", "import", "device_probe", "model_read", "model_load", "warmup")
BEFORE_DISPATCH: Final = ("backlog", "settle", "identify", "pair", "queue")
STACK: Final = "most recent call first"


def at_s(entry: Record) -> float:
    """When a line of the log or of the timing log was written, in seconds since the epoch."""
    return datetime.fromisoformat(entry["ts"]).timestamp()


def exits(service: Service, path: str = "hot") -> list[Record]:
    """The ends of workers that nobody wanted, oldest first."""
    return service.log("worker.exited", path=path, level="warning")


def cold_s(record: Record) -> float:
    """What a record's own one-shot took in all."""
    segments = record["segments_ms"]
    lost = ("lost_attempts", *BEFORE_DISPATCH)
    return float(sum(ms for name, ms in segments.items() if name not in lost)) / 1000


def slowest_cold_s(records: Iterable[Record]) -> float:
    """The longest of all one-shots of a run."""
    return max(cold_s(record) for record in records if record["path"] == "cold")


def wait_s(record: Record) -> float:
    """From its first dispatch to its result: all but what lies before, and the queue."""
    segments = record["segments_ms"]
    return float(record["total_ms"] - sum(segments[name] for name in BEFORE_DISPATCH)) / 1000


def losses_of(service: Service, name: str) -> list[dict[str, Any]]:
    """What the journal keeps of the ends of processes that had this picture, with their last output."""
    (job,) = {job.id: job for job in service.jobs() if job.source == name}.values()
    return [dict(loss) for loss in job.losses]


def assert_served_in_time(service: Service) -> None:
    """Nobody waited for longer than twice a one-shot of this run."""
    records = service.results()
    bound_s = 2 * slowest_cold_s(records) + MARGIN_S
    late = {source_of(record): wait_s(record) for record in records if wait_s(record) > bound_s}
    assert not late, f"waited for more than {bound_s:.2f} s: {late}"


def worker_log(service: Service) -> bytes:
    """What the workers wrote to standard error, as it is kept."""
    files = sorted(service.state.glob("worker.log*"), reverse=True)
    return b"".join(file.read_bytes() for file in files)


def zombies_of(pid: int) -> set[int]:
    """Children of a process that have ended and that it has not reaped."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            try:
                state = Path(f"/proc/{child}/stat").read_text("ascii").rpartition(")")[2].split()[0]
            except FileNotFoundError:
                continue
            if state == "Z":
                found.add(int(child))
    return found
