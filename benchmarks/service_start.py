"""Measures how soon a fresh service watches its inbox, and how much memory it needs.

Each run starts `watcher run` on empty folders and reads its own log: from the spawn to `inbox.found` (it
watches), from the spawn to `worker.ready` (the model is warm), and the resident memory of the service itself
after a second. Medians; on a busy machine the minimum says more.

    python benchmarks/service_start.py --runs 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 60.0


def measure(folder: Path) -> dict[str, float]:
    """Start a service once; returns `watching_s`, `warm_s` and `memory_mb`."""
    for name in ("inbox", "outbox"):
        (folder / name).mkdir(exist_ok=True)
    config = folder / "watcher.toml"
    config.write_text(
        f'inbox = "{folder}/inbox"\noutbox = "{folder}/outbox"\nstate_dir = "{folder}/state"\n'
        '[engine]\nname = "patchmatch"\n',
        encoding="utf-8",
    )
    log = folder / "service.log"
    spawned_s = time.time()
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "watcher", "run", "--config", str(config)],
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT), "WATCHER_LOG__FORMAT": "json"},
        )
    try:
        instants = _instants(log, ("inbox.found", "worker.ready"))
        time.sleep(1)
        memory_mb = _memory_mb(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    return {
        "watching_s": instants["inbox.found"] - spawned_s,
        "warm_s": instants["worker.ready"] - spawned_s,
        "memory_mb": memory_mb,
    }


def _instants(log: Path, events: tuple[str, ...]) -> dict[str, float]:
    """When these events were logged first, in seconds since the epoch (to the millisecond)."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        lines = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]
        found = {
            line["event"]: datetime.fromisoformat(line["ts"]).timestamp()
            for line in reversed(lines)
            if line["event"] in events
        }
        if len(found) == len(events):
            return found
        time.sleep(0.01)
    raise TimeoutError(f"not all of {events} within {PATIENCE_S:g} s:\n{log.read_text('utf-8')}")


def _memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(pid)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="How soon a service watches, and what it weighs.")
    parser.add_argument("--runs", type=int, default=5, help="starts to measure (default 5)")
    runs = parser.parse_args().runs
    measured = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(measure(Path(folder)))
    print(f"{'':12}{'min':>10}{'median':>10}{'max':>10}   of {runs} starts")
    for name in measured[0]:
        values = [run[name] for run in measured]
        print(f"{name:12}{min(values):10.3f}{statistics.median(values):10.3f}{max(values):10.3f}")


if __name__ == "__main__":
    main()
