"""How soon a picture that arrives is in a worker's hands, beside watchdog's bare handler in the same run.

A writer puts pictures into the inbox of an idle service, at random pauses: by writing and closing a file, and
by renaming a complete one into the folder. Measured is the time from just before `close()` or `rename()` to
the instant at which the service has given the job to its resident worker: kernel, watchdog, lease, hash,
pairing and the journal's synced commits included. The service is the real one; all that is added to it is a
clock at the place where the batch leaves. All processes read one clock (`CLOCK_MONOTONIC`).

For each arrival the same is done in a second folder of the same disk, where a process of its own has nothing
but a watchdog handler that reads the clock: the floor, which no program on watchdog can be faster than.

The masks lie there before, so that nobody waits for them. The pictures are small: hashing adds about 1 ms for
each MB. Run it on a quiet machine; on a noisy one look at the difference rather than at the p99.

    python benchmarks/arrival_latency.py --count 300
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 60.0
SIDE_PX: Final = 64
WAYS: Final = ("close", "rename")
PARTS: Final = ("complete", "decided", "given")
"""Of the way to the dispatch: until the file is known to be complete (kernel, watchdog, stat, lease), until
the batch is decided (hash, journal, pairing), until it has left (synced commit of the attempt, pipe)."""
TARGETS_MS: Final = {"p50": 10.0, "p99": 50.0}


# --- the two processes that are measured -------------------------------------------------------------------


def run_service(descriptor: int, config: str) -> None:
    """Be the service, and tell when each batch has left for the resident worker."""
    from watcher.adapters.processes import HotExecutor  # noqa: PLC0415 - only this process needs it
    from watcher.cli import main as run  # noqa: PLC0415 - as above

    submit = HotExecutor.submit

    def timed_submit(executor: HotExecutor, incarnation: int, batch: Any) -> None:  # noqa: ANN401 - passed on
        submit(executor, incarnation, batch)
        left_ns = time.monotonic_ns()
        for item in batch.items:
            clock = item.job.clock
            instants = f"{left_ns} {clock.settled_ns} {clock.dispatched_ns}"
            os.write(descriptor, f"{instants} {item.job.source}\n".encode())

    HotExecutor.submit = timed_submit  # type: ignore[method-assign, assignment] # the clock, see above
    run(["run", "--config", config])


def run_bare(descriptor: int, folder: str) -> None:
    """Watch a folder with nothing but watchdog, and tell when the handler was called."""
    from watchdog.events import FileClosedEvent, FileCreatedEvent, FileMovedEvent, FileSystemEventHandler  # noqa: PLC0415 - only this process needs it
    from watchdog.observers import Observer  # noqa: PLC0415 - as above

    def name_of(path: bytes | str) -> str:
        return os.fsdecode(path).rpartition("/")[2]

    class Told(FileSystemEventHandler):
        def on_any_event(self, event: Any) -> None:  # noqa: ANN401 - any of watchdog's
            called_ns = time.monotonic_ns()
            path = event.dest_path or event.src_path
            os.write(descriptor, f"{called_ns} 0 0 {event.event_type} {name_of(path)}\n".encode())

    observer = Observer()
    wanted = [FileClosedEvent, FileCreatedEvent, FileMovedEvent]
    observer.schedule(Told(), folder, event_filter=wanted)
    observer.start()
    os.write(descriptor, b"0 0 0 ready\n")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    observer.stop()
    observer.join()


@dataclass
class Measured:
    """A process that tells instants through a pipe."""

    process: subprocess.Popen[bytes]
    pipe: int
    rest: bytes = b""
    told: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def read(self) -> None:
        """Take what it has told since the last call."""
        try:
            *whole, self.rest = (self.rest + os.read(self.pipe, 1 << 16)).split(b"\n")
        except BlockingIOError:
            return
        for line in whole:
            *instants_ns, text = line.decode().split(" ", 3)
            self.told.setdefault(text, tuple(map(int, instants_ns)))

    def instants_ns(self, text: str) -> tuple[int, ...]:
        """What it told of this for the first time; waits for it."""
        wait(f"word of {text!r}", lambda: self._has_told(text))
        return self.told[text]

    def _has_told(self, text: str) -> bool:
        self.read()
        return text in self.told


@contextmanager
def measured(role: str, argument: Path, log: Path) -> Iterator[Measured]:
    """Start this file in one of its two roles."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, __file__, role, str(theirs), str(argument)],
            stderr=stderr,
            pass_fds=(theirs,),
            env={**os.environ, "PYTHONPATH": str(ROOT), "WATCHER_LOG__FORMAT": "json"},
        )
    os.close(theirs)
    try:
        yield Measured(process, ours)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        os.close(ours)


# --- the writer --------------------------------------------------------------------------------------------


def wait(what: str, fact: Callable[[], Any]) -> None:
    """Poll until the fact is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} within {PATIENCE_S:.0f} s")
        time.sleep(0.005)


def encoded(path: Path, pixels: Any) -> bytes:  # noqa: ANN401 - an array
    """The bytes of a PNG of these pixels."""
    Image.fromarray(pixels).save(path, "PNG")
    return path.read_bytes()


def arrive(folder: Path, name: str, data: bytes, way: str) -> int:
    """Let a file arrive in a folder; returns the instant just before it was complete."""
    if way == "rename":
        aside = folder.parent / "aside" / name
        aside.write_bytes(data)
        begun_ns = time.monotonic_ns()
        aside.replace(folder / name)
        return begun_ns
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, data)
    begun_ns = time.monotonic_ns()
    os.close(descriptor)
    return begun_ns


def sources(outbox: Path) -> set[str]:
    """The pictures that have a whole timing line."""
    texts = (file.read_text("utf-8").rpartition("\n")[0] for file in outbox.glob("logs/*.jsonl"))
    return {json.loads(line)["source"] for text in texts for line in text.splitlines()}


def measure(folder: Path, count: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Let pictures arrive one by one, each way in turn; returns ms by way and by what was measured."""
    places = {name: folder / name for name in ("inbox", "outbox", "bare", "aside", "state")}
    for place in places.values():
        place.mkdir()
    config = folder / "watcher.toml"
    config.write_text(
        "".join(f"{key} = {json.dumps(str(places[key]))}\n" for key in ("inbox", "outbox"))
        + f"state_dir = {json.dumps(str(places['state']))}\n"
        + '[engine]\nname = "patchmatch"\n',
        "utf-8",
    )
    log = folder / "service.log"
    with (
        measured("--as-service", config, log) as service,
        measured("--as-bare", places["bare"], folder / "bare.log") as bare,
    ):
        bare.instants_ns("ready")
        wait("ready worker", lambda: b'"worker.ready"' in log.read_bytes())
        rows = ("watcher", *PARTS, "bare")
        times: dict[str, dict[str, list[float]]] = {way: {row: [] for row in rows} for way in WAYS}
        pauses = random.Random(seed)  # noqa: S311 - pauses
        for number in range(-2, count * len(WAYS)):  # the first of each way warms up
            way = WAYS[number % len(WAYS)]
            measured_ms = _one_arrival(places, number, way, pauses, service, bare)
            if number >= 0:
                for what, ms in measured_ms.items():
                    times[way][what].append(ms)
    return times


def _one_arrival(
    places: dict[str, Path], number: int, way: str, pauses: random.Random, service: Measured, bare: Measured
) -> dict[str, float]:
    name = f"p{number}.png"
    grain = np.random.default_rng(number + 2)
    data = encoded(places["aside"] / name, grain.integers(0, 256, (SIDE_PX, SIDE_PX, 3), dtype=np.uint8))
    hole = np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    hole[28:36, 28:36] = 255
    arrive(places["inbox"], f"{name}.mask.png", encoded(places["aside"] / "mask", hole), "rename")
    time.sleep(pauses.uniform(0.1, 0.3))
    begun_ns = arrive(places["inbox"], name, data, way)
    left_ns, settled_ns, decided_ns = service.instants_ns(name)
    wait(f"record of {name}", lambda: name in sources(places["outbox"]))  # idle again
    time.sleep(pauses.uniform(0.02, 0.1))
    bare_begun_ns = arrive(places["bare"], name, data, way)
    called_ns, *_ = bare.instants_ns(f"{'closed' if way == 'close' else 'created'} {name}")
    spans_ns = {
        "watcher": left_ns - begun_ns,
        "complete": settled_ns - begun_ns,
        "decided": decided_ns - settled_ns,
        "given": left_ns - decided_ns,
        "bare": called_ns - bare_begun_ns,
    }
    return {what: span_ns / 1e6 for what, span_ns in spans_ns.items()}


# --- what is told ------------------------------------------------------------------------------------------


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 (nearest rank) and the largest."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)]
    return {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


def summary(times: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """All figures, in ms."""
    ways = {}
    for way, by_what in times.items():
        figures: dict[str, Any] = {what: quantiles(values) for what, values in by_what.items()}
        watcher, bare = figures["watcher"], figures["bare"]
        figures["beyond_bare"] = {name: watcher[name] - bare[name] for name in ("p50", "p99")}
        figures["ratio_p50"] = watcher["p50"] / bare["p50"]
        figures["targets_met"] = all(watcher[name] < limit for name, limit in TARGETS_MS.items())
        ways[way] = figures
    return {"arrivals": {way: len(times[way]["watcher"]) for way in times}, "ms": ways}


def tell(figures: dict[str, Any]) -> None:
    """Print the table."""
    rows = {
        "watcher": "to the dispatch",
        "complete": "  known to be complete",
        "decided": "  hashed, paired, decided",
        "given": "  attempt committed, batch sent",
        "bare": "bare watchdog, to its handler",
    }
    for way, by_what in figures["ms"].items():
        print(f"{figures['arrivals'][way]} arrivals by {way}{'p50':>{30 - len(way)}}{'p99':>10}{'max':>10}")
        for what, text in rows.items():
            values = by_what[what]
            print(f"  {text:<36}{values['p50']:10.2f}{values['p99']:10.2f}{values['max']:10.2f} ms")
        beyond = by_what["beyond_bare"]
        print(
            f"  {'watcher - bare':<36}{beyond['p50']:10.2f}{beyond['p99']:10.2f}"
            f"{'':10} ms   (p50: {by_what['ratio_p50']:.1f} times the bare handler's)"
        )
        verdict = "met" if by_what["targets_met"] else "MISSED"
        print(f"  targets p50 < {TARGETS_MS['p50']:g} ms, p99 < {TARGETS_MS['p99']:g} ms: {verdict}")


def main() -> None:
    """Parse the arguments, measure, print."""
    if sys.argv[1:2] == ["--as-service"]:
        run_service(int(sys.argv[2]), sys.argv[3])
        return
    if sys.argv[1:2] == ["--as-bare"]:
        run_bare(int(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="arrivals each way (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the random pauses")
    parser.add_argument(
        "--folder", type=Path, help="make the folders in here (default: where temporary files go)"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = summary(measure(Path(folder), arguments.count, arguments.seed))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        tell(figures)


if __name__ == "__main__":
    main()
