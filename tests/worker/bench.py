"""Photo-like pictures, masks, an engine that can be watched, and a worker process to talk to."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from watcher.wire import (
    BatchDone,
    Configure,
    DeviceFacts,
    EngineChoice,
    EngineFacts,
    Hello,
    Item,
    ItemDone,
    Limits,
    Marking,
    Ready,
    RunBatch,
    Warming,
    decode_from_worker,
    encode,
)
from watcher.worker.engines.protocol import LoadSegments
from watcher.worker.faults import VARIABLE, Faults
from watcher.worker.items import ItemServer
from watcher.worker.plausibility import nonsense_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from watcher.wire import FromWorker, ToWorker
    from watcher.worker.engines.protocol import Crop
    from watcher.worker.filling import Judge

ROOT = Path(__file__).parents[2]
FILL = (200, 60, 20)
OVERHEAD_PX = 7
"""What the engine below takes a crop for besides its pixels."""


def photo(width: int, height: int, seed: int = 1) -> NDArray[np.uint8]:
    """A photo-like RGB picture: slow gradients, edges, grain."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 160 / max(width, 1), y * 140 / max(height, 1), (x + y) % 97], axis=-1)
    base[height // 3 :, width // 2 :] += 40
    return np.clip(base + random.normal(20, 6, base.shape), 0, 255).astype(np.uint8)


def rectangle(width: int, height: int, box: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """A mask with one white rectangle (left, top, right, bottom)."""
    mask = np.zeros((height, width), np.bool_)
    left, top, right, bottom = box
    mask[top:bottom, left:right] = True
    return mask


def save_mask(path: Path, mask: NDArray[np.bool_]) -> Path:
    Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(path)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class FlatEngine:
    """Returns one colour everywhere, also outside the hole, and remembers what it was given."""

    colour: tuple[int, int, int] = FILL
    seen: list[Crop] = field(default_factory=list)
    error: Exception | None = None
    name: str = "flat"
    model_loads: int = 1

    def load(self) -> LoadSegments:
        return LoadSegments()

    def warm_up(self) -> None:
        pass

    def work_px(self, crop: Crop) -> int:
        return crop.hole.size + OVERHEAD_PX

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        if self.error is not None:
            raise self.error
        results = []
        for index, crop in enumerate(crops):
            self.seen.append(crop)
            result = np.empty_like(crop.pixels)
            result[:] = self.colour
            results.append(result)
            if progress is not None:
                progress(index)
        return results

    def give_way(self, reason: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def facts(self) -> EngineFacts:
        return EngineFacts(configured="flat", actual="flat")

    def device(self) -> DeviceFacts:
        return DeviceFacts(configured="cpu", available=("cpu",), actual="cpu")


def _believed(_filled: NDArray[np.uint8], _crop: Crop) -> None:
    """No fill is nonsense."""


@dataclass
class Bench:
    """An item server in this process, with the engine above."""

    folder: Path
    engine: FlatEngine = field(default_factory=FlatEngine)
    limits: Limits = field(default_factory=Limits)
    reports: list[FromWorker] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    judge: Judge | None = None
    """None: the worker's own for an engine of the worker, nobody for the one above, which is there to give
    one colour: what the worker's own refuses."""

    def item(self, source: Path, mask: Path | None = None, **changes: Any) -> Item:
        """An item; changes are fields of it, or of its marking."""
        staging = self.folder / "staging"
        staging.mkdir(exist_ok=True)
        how = {name: changes.pop(name) for name in Marking.__struct_fields__ if name in changes}
        fields: dict[str, Any] = {
            "job": source.name,
            "source": str(source),
            "sha256": sha256(source),
            "mark_file": None if mask is None else str(mask),
            "mark_file_kind": None if mask is None else "mask",
            "mark_file_sha256": None if mask is None else sha256(mask),
            "staging": str(staging),
            "stage_name": f"{source.name}.staged",
            "recipe": "default",
            "marking": Marking(**how),
            **changes,
        }
        return Item(**fields)

    def serve(self, source: Path, mask: Path | None = None, **changes: Any) -> FromWorker:
        return self.serve_item(self.item(source, mask, **changes))

    def serve_item(self, item: Item) -> FromWorker:
        self.reports.clear()
        engine: object = self.engine
        judge = self.judge or (_believed if isinstance(engine, FlatEngine) else nonsense_in)
        server = ItemServer(self.engine, self.limits, self.reports.append, self.faults, judge)
        server.serve("b1", item, time.monotonic_ns())
        return self.reports[-1]

    def done(self, source: Path, mask: Path | None = None, **changes: Any) -> tuple[ItemDone, Path]:
        report = self.serve(source, mask, **changes)
        assert isinstance(report, ItemDone), report
        staged = self.folder / "staging" / f"{source.name}.staged"
        assert report.sha256_out == sha256(staged)
        assert report.size_bytes == staged.stat().st_size
        return report, staged


class Conversation:
    """A real worker process, and what it said."""

    def __init__(self, faults: str = "", environment: dict[str, str] | None = None) -> None:
        commands_read, self.commands = os.pipe()
        self.reports, reports_write = os.pipe()
        self.spawned_ns = time.monotonic_ns()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "watcher.worker",
                "--commands-fd",
                str(commands_read),
                "--reports-fd",
                str(reports_write),
            ],
            pass_fds=(commands_read, reports_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: faults, **(environment or {})},
            start_new_session=True,
        )
        os.close(commands_read)
        os.close(reports_write)
        self._buffer = b""

    def send(self, message: ToWorker) -> None:
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        os.write(self.commands, line)

    def hang_up(self) -> None:
        if self.commands >= 0:
            os.close(self.commands)
            self.commands = -1

    def configure(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "incarnation": 1,
            "parent_pid": os.getpid(),
            "spawned_ns": self.spawned_ns,
            "engine": EngineChoice(name="patchmatch", device="cpu"),
            **changes,
        }
        self.send(Configure(**fields))

    def line(self, timeout_s: float = 20.0) -> bytes:
        """The next line, or nothing at the end of the pipe."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.reports], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the worker said nothing for {timeout_s} s; {self.last_words()}"
            data = os.read(self.reports, 65536)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def next(self) -> FromWorker:
        line = self.line()
        assert line, f"the worker hung up; {self.last_words()}"
        return decode_from_worker(line)

    def until(self, kind: type) -> list[FromWorker]:
        """Everything up to the first report of a kind, that one included."""
        said: list[FromWorker] = []
        while not said or not isinstance(said[-1], kind):
            said.append(self.next())
        return said

    def ready(self, **changes: Any) -> Ready:
        assert isinstance(self.next(), Hello)
        self.configure(**changes)
        return self.warmed_up()

    def warmed_up(self) -> Ready:
        assert self.next() == Warming()
        report = self.next()
        assert isinstance(report, Ready), report
        return report

    def run(self, *items: Item, batch: str = "b1") -> list[FromWorker]:
        self.send(RunBatch(batch=batch, sent_ns=time.monotonic_ns(), items=items))
        return self.until(BatchDone)

    def is_silent(self, for_s: float) -> bool:
        """Nothing was said meanwhile, and the pipe is open."""
        return not self._buffer and not select.select([self.reports], [], [], for_s)[0]

    def stderr_until(self, *wanted: bytes, ask: signal.Signals | None = None) -> bytes:
        """Read its standard error until all that is wanted was seen; `ask` is sent to it meanwhile."""
        assert self.process.stderr is not None
        seen, deadline = b"", time.monotonic() + 10
        while not all(text in seen for text in wanted):
            assert time.monotonic() < deadline, seen.decode(errors="replace")
            if ask is not None:
                self.process.send_signal(ask)
            if select.select([self.process.stderr], [], [], 0.05)[0]:
                seen += os.read(self.process.stderr.fileno(), 1 << 16)
        return seen

    def wait(self, timeout_s: float = 10.0) -> int:
        return self.process.wait(timeout_s)

    def last_words(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        _, stderr = self.process.communicate(timeout=10)
        return f"exit {self.process.returncode}: {stderr.decode(errors='replace')}"

    def close(self) -> None:
        self.hang_up()
        os.close(self.reports)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)
