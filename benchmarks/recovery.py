"""How long pictures wait when the resident worker is killed or stands still, and how good the estimate is.

For each engine, N times on a fresh service that has served some pictures, all on one machine in one run:

- `kill -9` of the resident worker in the middle of a picture: to that picture's result (by the cold path), to
  a worker that is ready again, and to the result of a picture that arrives then (by the hot path);
- SIGSTOP in the middle of a picture: to the kill, that is how long it went unnoticed, and to its result;
- the cold time that the service expected when it chose the cold path, against what that job took;
- the parts of a cold job (process start, import, device probe, model read, model load, warm-up, and a picture
  on the warm resident worker) added up, against the total of a cold job that has the machine to itself
  (`watcher once`).

The engine `lama` gets a stand-in for its weights, of the same size and architecture (`lama_stand_in.py`).

    python benchmarks/recovery.py --engines patchmatch lama --repeats 5
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.service.harness import Service, encoded, is_alive, mask, pixels, wait_until  # noqa: E402 - found beside this file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENGINES: Final = ("patchmatch", "lama")
WIDTH_PX: Final = 1024
HEIGHT_PX: Final = 768
HOLE: Final = (480, 320, 576, 416)
START: Final = ("process_start", "import", "device_probe", "model_read", "model_load", "warmup")
WORK: Final = ("read", "decode", "mask", "preprocess", "inference", "composite", "encode", "publish")
BEFORE: Final = ("backlog", "settle", "identify", "pair", "queue", "batch_wait", "lost_attempts")
"""No part of what a cold job takes."""
WARM_PICTURES: Final = 4
"""Before anything happens to the worker; the first is left out of what a warm one takes."""
PATIENCE_S: Final = 180.0
POLL_S: Final = 0.002

Figures = dict[str, list[float]]


def make(number: int) -> tuple[bytes, bytes]:
    """A picture of its own content, and its mask."""
    picture = encoded(pixels(number, WIDTH_PX, HEIGHT_PX), compress_level=1)
    return picture, mask(WIDTH_PX, HEIGHT_PX, HOLE)


class Scene:
    """One service that has served some pictures, and what is done to its worker.

    Args:
        folder: an empty one.
        settings: of the engine.
        figures: gets one number more for each thing measured, in ms or as a ratio.
    """

    def __init__(self, folder: Path, settings: Sequence[str], figures: Figures) -> None:
        self._service = Service(folder, settings)
        self._figures = figures
        self._dropped = 0
        self._shortest_ms = 0.0

    def run(self) -> None:
        """Measure all of it once."""
        service = self._service
        try:
            service.start(ready=False)
            wait_until(lambda: service.is_healthy, "a ready worker", patience_s=PATIENCE_S)
            self._warm_up()
            self._kill()
            self._stop()
            service.terminate()
        finally:
            service.close()

    def _warm_up(self) -> None:
        (ready,) = self._service.log("worker.ready", path="hot")
        start_ms = _sum(ready["segments_ms"], START)
        records = [self._serve(self._drop()) for _ in range(WARM_PICTURES)]
        warm_ms = [_sum(record["segments_ms"], WORK) for record in records[1:]]
        self._shortest_ms = min(warm_ms)
        self._note("start of the resident worker", start_ms)
        self._note("a picture on the warm worker", statistics.median(warm_ms))
        self._note("_parts", start_ms + statistics.median(warm_ms))

    def _kill(self) -> None:
        pid, name = self._catch_in_the_middle()
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._await_result(name, killed, "kill to its result, cold")
        self._await_hot_again(pid)
        self._note("kill to a ready worker", _since_ms(killed))
        record = self._serve(self._drop())
        self._note("kill to the first hot result", _since_ms(killed))
        assert record["path"] == "hot", record

    def _stop(self) -> None:
        pid, name = self._catch_in_the_middle()
        stopped = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        self._wait(lambda: not is_alive(pid), "the kill of a worker that was stopped")
        noticed_ms = _since_ms(stopped)
        self._note("stop to the kill", noticed_ms)
        cold_ms = self._await_result(name, stopped, "stop to its result, cold")
        self._note("stop to the kill / that cold job", noticed_ms / cold_ms)

    def _catch_in_the_middle(self) -> tuple[int, str]:
        """The worker that is a third through with a picture, and the picture."""
        pid = self._service.worker_pid()
        name = self._drop()
        self._service.wait_state("running")
        time.sleep(self._shortest_ms / 3000)
        return pid, name

    def _await_result(self, name: str, since: float, what: str) -> float:
        """Wait for the result of a picture that lost its worker; returns what its cold job took."""
        self._wait((self._service.outbox / name).exists, "the result")
        elapsed_ms = _since_ms(since)
        record = self._service.wait_record(name)
        assert record["path"] == "cold", record
        assert record["losses"], record
        cold_ms = cold_job_ms(record)
        self._note(what, elapsed_ms)
        self._note(f"{what}, / that cold job", elapsed_ms / cold_ms)
        self._note("cold job beside a worker that starts", cold_ms)
        estimate_ms = record.get("cold_estimate_ms")
        if estimate_ms is not None:
            self._note("its estimate", estimate_ms)
            self._note("its estimate / what it took", estimate_ms / cold_ms)
        return cold_ms

    def _await_hot_again(self, former: int) -> None:
        def is_there() -> bool:
            worker = self._service.status()["worker"]
            return worker["state"] == "ready" and worker["pid"] not in {None, former}

        self._wait(is_there, "a ready worker")

    def _drop(self) -> str:
        name = f"{self._dropped:02}.png"
        self._service.put(name, *make(self._dropped))
        self._dropped += 1
        return name

    def _serve(self, name: str) -> dict[str, Any]:
        return self._service.wait_record(name, patience_s=PATIENCE_S)

    def _note(self, what: str, value: float) -> None:
        self._figures[what].append(value)

    def _wait(self, condition: Any, what: str) -> None:  # noqa: ANN401 - any callable
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline or not self._service.is_running:
                raise TimeoutError(f"waited in vain for {what}")
            time.sleep(POLL_S)


def serve_alone(folder: Path, settings: Sequence[str], figures: Figures) -> None:
    """A cold job that has the machine to itself."""
    service = Service(folder, settings)
    service.put("alone.png", *make(99))
    ended = service.run("once", patience_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    (record,) = service.records()
    figures["cold job alone"].append(cold_job_ms(record))
    figures["cold job alone / its parts"].append(cold_job_ms(record) / figures["_parts"][-1])


def cold_job_ms(record: Mapping[str, Any]) -> float:
    """From the start of its process to its published result."""
    taken: float = record["total_ms"] - _sum(record["segments_ms"], BEFORE)
    return taken


def _sum(segments_ms: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(segments_ms.get(name, 0.0) for name in names)


def _since_ms(instant: float) -> float:
    return (time.monotonic() - instant) * 1000


def engine_settings(engine: str, folder: Path) -> list[str]:
    """The configuration of an engine; makes weights where it needs some."""
    lines = ["[engine]", f"name = {json.dumps(engine)}", 'device = "cpu"']
    if engine != "lama":
        return lines
    weights = folder / "stand-in.pt"
    script = ROOT / "benchmarks" / "lama_stand_in.py"
    subprocess.run(
        [sys.executable, str(script), "--out", str(weights)], check=True, stdout=subprocess.DEVNULL
    )
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return [*lines, "[model]", f"source = {json.dumps(str(weights))}", f'sha256 = "{digest}"']


def measure(engine: str, repeats: int) -> Figures:
    """All figures of an engine."""
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        settings = engine_settings(engine, root)
        for repeat in range(repeats):
            Scene(root / f"{repeat}", settings, figures).run()
            serve_alone(root / f"{repeat}-alone", settings, figures)
    return figures


def main() -> None:
    """Print a table for each engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`: no service is left behind
    for engine in chosen.engines:
        load = f"load of the machine before: {os.getloadavg()[0]:.1f}"
        figures = measure(engine, chosen.repeats)
        print(f"{engine}, {WIDTH_PX} x {HEIGHT_PX} px, {chosen.repeats} times; {load}")
        print(f"  {'':44}{'median':>9}{'least':>9}{'most':>9}")
        for what, values in figures.items():
            if not what.startswith("_"):
                print_row(what, values)


def print_row(what: str, values: Sequence[float]) -> None:
    """One line of the table: ms, or a ratio."""
    unit, places = ("", 2) if " / " in what else (" ms", 0)
    cells = "".join(f"{value:9.{places}f}" for value in (statistics.median(values), min(values), max(values)))
    print(f"  {what:44}{cells}{unit}", flush=True)


if __name__ == "__main__":
    main()
