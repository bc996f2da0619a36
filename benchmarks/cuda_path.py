"""Runs the real service on an accelerator and checks what it says of it. For anybody with a GPU, 5 minutes.

It builds the stand-in of LaMa's weights (no download, random weights: what it paints is noise), starts the
service on the device, serves pictures hot and, with its worker killed, cold; then serves two of them on the
CPU. It checks that every record, the status and the log agree on the device, that the evidence does
(parameters, output, share of the time of operators, fallbacks), that the model was loaded once, and that both
devices painted the same, within rounding.

    python benchmarks/cuda_path.py                    # the first CUDA device
    python benchmarks/cuda_path.py --device cuda:1    # that one; or mps
    python benchmarks/cuda_path.py --device cpu --tiny --pictures 3   # a rehearsal, where there is no GPU

Exit codes: 0 all is as it should be, 1 something is not, 2 there is no such device here.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).parents[1]
DEADLINE_S: Final = 280.0
SIDE_PX: Final = 512
HOLE: Final = slice(200, 280)
CLOSE_LEVELS: Final = 4
CLOSE_SHARE: Final = 0.99
"""So many of the filled values may differ by so much at most. Chosen, not measured: no accelerator was at
hand. TF32 has 10 bits of mantissa, and errors add up over 18 blocks; a wrong transform gives noise."""
LEAST_SHARE: Final = 0.9
"""The share of operator time that must be on the device."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be true, and what was seen."""

    what: str
    holds: bool
    seen: str


@dataclass(slots=True)
class Run:
    """A service in a folder of its own, and what it left."""

    folder: Path
    device: str
    deadline_s: float

    @property
    def records(self) -> list[dict[str, Any]]:
        """The whole timing lines so far."""
        texts = (
            file.read_text("utf-8").rpartition("\n")[0] for file in self.folder.glob("outbox/logs/*.jsonl")
        )
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of the service's log with this event."""
        text = (self.folder / "log").read_text("utf-8").rpartition("\n")[0]
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def status(self) -> dict[str, Any]:
        """What `watcher status` says."""
        command = [
            sys.executable,
            "-m",
            "watcher",
            "status",
            "--json",
            "--config",
            str(self.folder / "w.toml"),
        ]
        told: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment()))
        return told

    def wait(self, what: str, fact: Callable[[], Any]) -> None:
        """Poll until the fact is true."""
        while not fact():
            if time.monotonic() > self.deadline_s:
                raise SystemExit(f"{self.device}: no {what} in time; see {self.folder / 'log'}")
            time.sleep(0.02)

    def serve(self, name: str, seed: int) -> None:
        """Drop a picture and wait until it has come out."""
        make_picture(self.folder / "inbox" / name, seed)
        self.wait(f"result of {name}", lambda: any(record["source"] == name for record in self.records))

    def result(self, name: str) -> np.ndarray[Any, np.dtype[np.int16]]:
        """The filled part of a result: (height, width, 3)."""
        with Image.open(self.folder / "outbox" / name) as picture:
            return np.asarray(picture.convert("RGB")).astype(np.int16)[HOLE, HOLE]

    def kill_worker(self) -> None:
        """End the resident worker as a crash would; its successor comes later."""
        pid = self.status()["worker"]["pid"]
        ended = len(self.log("worker.exited"))
        os.kill(pid, signal.SIGKILL)
        self.wait("end of the worker", lambda: len(self.log("worker.exited")) > ended)


def environment() -> dict[str, str]:
    """What the service is started with: nothing of the user's own configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WATCHER_", "LAMA_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "WATCHER_LOG__FORMAT": "json"}


def make_picture(path: Path, seed: int) -> None:
    """A textured picture and the mask of a square in it, both whole at once."""
    random = np.random.default_rng(seed)
    coarse = random.integers(40, 216, (SIDE_PX // 8, SIDE_PX // 8, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
    mask = np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    mask[HOLE, HOLE] = 255
    for image, name in ((Image.fromarray(mask), f"{path.name}.mask.png"), (picture, path.name)):
        aside = path.parent.parent / "aside.png"
        image.save(aside)
        aside.replace(path.with_name(name))


@contextmanager
def service(folder: Path, device: str, weights: Path, deadline_s: float) -> Iterator[Run]:
    """A service with a warm worker on this device; ended politely."""
    run = Run(folder, device, deadline_s)
    for name in ("inbox", "outbox"):
        (folder / name).mkdir(parents=True)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "w.toml").write_text(
        f"inbox = {json.dumps(str(folder / 'inbox'))}\noutbox = {json.dumps(str(folder / 'outbox'))}\n"
        f"state_dir = {json.dumps(str(folder / 'state'))}\n"
        f'[engine]\nname = "lama"\ndevice = {json.dumps(device)}\n'
        f'[model]\nsource = {json.dumps(str(weights))}\nsha256 = "{digest}"\n',
        "utf-8",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "watcher", "run", "--config", str(folder / "w.toml")],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=environment(),
        )
    try:
        run.wait("ready worker", lambda: run.log("worker.ready") or process.poll() is not None)
        if process.poll() is not None:
            raise SystemExit(f"the service ended with code {process.returncode}; see {folder / 'log'}")
        yield run
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def on_device(run: Run, pictures: int) -> list[Check]:
    """Serve hot, then cold, and look at what is said of the device."""
    for number in range(pictures):
        run.serve(f"p{number}.png", number)
    status = run.status()["device"]
    run.kill_worker()
    run.serve("cold.png", 1000)
    records = run.records
    ready = run.log("worker.ready")[0]
    evidence = [record["device"]["evidence"] for record in records]
    actual = {record["device"]["actual"] for record in records}
    shares = [(told["kernel_time_share"] or {}).get(run.device) for told in evidence]
    fallbacks = sorted({op for told in evidence for op in told["fallback_ops"] or ()})
    paths = [record["path"] for record in records]
    return [
        Check(
            "the worker is ready on it", ready["device"]["actual"] == run.device, ready["device"]["actual"]
        ),
        Check("every record says that it ran on it", actual == {run.device}, ", ".join(map(str, actual))),
        _everywhere("parameters lie on it", evidence, "parameters", run.device),
        _everywhere("the output was seen on it", evidence, "output", run.device),
        Check(
            f"at least {LEAST_SHARE:.0%} of the time of operators is its",
            all(share is not None and share >= LEAST_SHARE for share in shares),
            str(sorted({str(share) for share in shares})),
        ),
        Check("no operator fell back", not fallbacks, ", ".join(fallbacks) or "none"),
        Check("the status says so", status["actual"] == run.device, json.dumps(status)),
        Check("nothing was replaced", not run.log("device.replaced"), str(len(run.log("device.replaced")))),
        Check("the model was loaded once", ready["model_loads"] == 1, str(ready["model_loads"])),
        Check("the cold path served with it, too", paths[-1] == "cold", ", ".join(paths)),
    ]


def _everywhere(what: str, evidence: list[dict[str, Any]], fact: str, device: str) -> Check:
    seen = {told[fact] for told in evidence}
    return Check(what, seen == {device}, ", ".join(map(str, sorted(seen, key=str))))


def agreement(one: Run, other: Run, names: list[str]) -> Check:
    """Whether two devices painted the same."""
    differences = np.concatenate([np.abs(one.result(name) - other.result(name)).ravel() for name in names])
    share = float((differences <= CLOSE_LEVELS).mean())
    return Check(
        f"{CLOSE_SHARE:.0%} of the filled values are within {CLOSE_LEVELS} levels of the CPU's",
        share >= CLOSE_SHARE,
        f"{share:.2%}; mean difference {differences.mean():.2f}, largest {differences.max()}",
    )


def canonical(device: str) -> str:
    """The name that records use."""
    return "cuda:0" if device == "cuda" else device


def missing(device: str) -> str | None:
    """Why this device cannot be used, or None."""
    try:
        import torch  # noqa: PLC0415 - its absence is an answer

        from watcher.worker import devices  # noqa: PLC0415 - as above
    except ImportError as error:
        return f"the engine cannot be imported: {error}"
    machine = devices.TorchAccelerators()
    placed = devices.place(device, machine)
    if placed.device == device:
        return None
    return f"{placed.reason}. Seen: {', '.join(placed.available)}; torch {torch.__version__}"


def print_table(checks: list[Check], records: list[dict[str, Any]], cpu: list[dict[str, Any]]) -> None:
    """What was checked, and what was measured."""
    width = max(len(check.what) for check in checks)
    for check in checks:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.what:{width}}  {check.seen}")
    hot = [record["segments_ms"]["inference"] for record in records if record["path"] == "hot"]
    print()
    print(f"inference, ms   first {hot[0]:9.1f}   steady {statistics.median(hot[1:] or hot):9.1f}")
    print(f"      the CPU         {cpu[0]['segments_ms']['inference']:9.1f}")
    cold = next((record for record in records if record["path"] == "cold"), None)
    if cold is not None:
        start = {name: cold["segments_ms"][name] for name in ("process_start", "import", "device_probe")}
        start |= {name: cold["segments_ms"][name] for name in ("model_read", "model_load", "warmup")}
        print("cold start, ms  " + "  ".join(f"{name} {value:.0f}" for name, value in start.items()))


def main() -> int:
    """Do it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, mps; cpu for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="a small network: quicker, and says less")
    parser.add_argument("--pictures", type=int, default=8)
    arguments = parser.parse_args()
    device = canonical(arguments.device)
    sys.path.insert(0, str(ROOT))
    why_not = missing(device)
    if why_not is not None:
        print(f"nothing was measured: {why_not}")
        return 2
    deadline_s = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="watcher-device-", ignore_cleanup_errors=True) as scratch:
        weights = Path(scratch) / "stand-in.pt"
        command = [sys.executable, str(ROOT / "benchmarks" / "lama_stand_in.py"), "--out", str(weights)]
        subprocess.run(
            [*command, *(["--tiny"] if arguments.tiny else [])], check=True, stdout=subprocess.DEVNULL
        )
        with service(Path(scratch) / "device", device, weights, deadline_s) as run:
            checks = on_device(run, arguments.pictures)
        names = [f"p{number}.png" for number in range(min(2, arguments.pictures))]
        with service(Path(scratch) / "cpu", "cpu", weights, deadline_s) as cpu:
            for number, name in enumerate(names):
                cpu.serve(name, number)
        checks.append(agreement(run, cpu, names))
        print(f"device {device}, {arguments.pictures} pictures of {SIDE_PX} x {SIDE_PX}")
        print_table(checks, run.records, cpu.records)
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
