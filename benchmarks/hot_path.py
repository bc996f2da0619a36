"""Where the time of a picture goes on the hot path: segments, first against steady, overhead."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SHOWN = (
    "settle",
    "identify",
    "pair",
    "queue",
    "ipc",
    "decode",
    "inference",
    "encode",
    "publish",
    "unattributed",
)
WORK = ("decode", "inference", "encode")
DEADLINE_S = 180.0


def make_picture(path: Path, seed: int, side_px: int) -> None:
    """A textured picture of its own content, and a mask with a square hole of a tenth of its side."""
    random = np.random.default_rng(seed)
    coarse = random.integers(40, 216, (side_px // 8 + 1, side_px // 8 + 1, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((side_px, side_px), Image.Resampling.BICUBIC)
    mask = np.zeros((side_px, side_px), np.uint8)
    hole = slice(side_px // 2, side_px // 2 + max(8, side_px // 10))
    mask[hole, hole] = 255
    Image.fromarray(mask).save(path.with_name(path.name + ".mask.png"))
    picture.save(path)


def records(outbox: Path) -> list[dict[str, Any]]:
    """The whole timing lines so far; a reader may see a line while it is being written."""
    texts = (file.read_text("utf-8").rpartition("\n")[0] for file in outbox.glob("logs/*.jsonl"))
    return [json.loads(line) for text in texts for line in text.splitlines()]


def wait(what: str, fact: Any) -> None:  # noqa: ANN401 - any callable
    """Poll until the fact is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} after {DEADLINE_S:.0f} s")
        time.sleep(0.02)


def measure(folder: Path, count: int, side_px: int, engine: str) -> list[dict[str, Any]]:
    """Serve `count` pictures one after the other on a fresh service; return their records in order."""
    inbox, outbox, state = folder / "inbox", folder / "outbox", folder / "state"
    inbox.mkdir()
    outbox.mkdir()
    config = folder / "watcher.toml"
    places = {"inbox": inbox, "outbox": outbox, "state_dir": state}
    text = "".join(f"{key} = {json.dumps(str(path))}\n" for key, path in places.items())
    config.write_text(f"{text}[engine]\nname = {json.dumps(engine)}\n", "utf-8")
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "watcher", "run", "--config", str(config)], stderr=log
        )
    try:
        wait("ready worker", lambda: b'"worker.ready"' in (folder / "log").read_bytes())
        for number in range(count):
            staged = folder / "staged"
            staged.mkdir(exist_ok=True)
            make_picture(staged / f"p{number}.png", number, side_px)
            for name in (f"p{number}.png.mask.png", f"p{number}.png"):
                (staged / name).replace(inbox / name)
            wait(f"record {number}", lambda number=number: len(records(outbox)) > number)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)
    return records(outbox)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=21, help="pictures, the first one apart")
    parser.add_argument("--side", type=int, default=512, help="pixels of a side")
    parser.add_argument("--engine", default="patchmatch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        served = measure(Path(folder), arguments.count, arguments.side, arguments.engine)
    first, steady = served[0], served[1:]
    totals = [record["total_ms"] for record in steady]
    print(f"{len(steady)} steady pictures of {arguments.side} px, engine {first['engine']['actual']}")
    print(f"total: p50 {statistics.median(totals):.1f} ms, max {max(totals):.1f} ms")
    work = statistics.median(record["segments_ms"]["inference"] for record in steady)
    print(f"first / steady inference: {first['segments_ms']['inference'] / work:.2f}")
    arrival = [sum(record["segments_ms"][name] for name in SHOWN[:4]) for record in steady]
    arrival.sort()
    p99 = arrival[min(len(arrival) - 1, round(0.99 * len(arrival)))]
    print(f"notification to dispatch: p50 {statistics.median(arrival):.2f} ms, p99 {p99:.2f} ms")
    over = [record["total_ms"] - sum(record["segments_ms"][name] for name in WORK) for record in steady]
    share = statistics.median(over) / statistics.median(totals)
    print(f"overhead beyond decode + model + encode: p50 {statistics.median(over):.1f} ms = {share:.1%}")
    for name in SHOWN:
        print(f"  {name:<14}{statistics.median(record['segments_ms'][name] for record in steady):9.2f} ms")


if __name__ == "__main__":
    main()
