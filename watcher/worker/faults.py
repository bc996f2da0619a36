"""Faults that tests plant in a real worker, by the environment variable `WATCHER_TEST_FAULTS`.

Nothing but tests sets it. Entries are separated by commas; an entry may start with `hot:` or `cold:` to be
meant for the resident worker or for one-shots only. NAME is the file name of the item's source, or `*`.

| entry               | effect                                                                            |
|---------------------|-----------------------------------------------------------------------------------|
| `crash@NAME`        | exit at once with code 139 when the item starts                                   |
| `segv@NAME`         | a real SIGSEGV when the item starts                                               |
| `hang_sleep@NAME`   | sleep for ever when the item starts                                               |
| `hang_gil@NAME`     | a deadlock in C code that never gives the interpreter lock back                   |
| `hang_lock@NAME`    | a deadlock on a Python lock, while another thread goes on writing beats to stderr |
| `stop_self@NAME`    | SIGSTOP to itself when the item starts; goes on after a SIGCONT                   |
| `sticky_cuda@NAME`  | the engine says that the device is lost when it is to fill the item               |
| `late_write@NAME`   | SIGKILL to itself when the item starts, but a forked child in a session of its    |
|                     | own, which holds the pipes, writes the stage file and `ItemDone` 1.5 s later      |
| `crash_once@NAME`   | `crash` in the first process only that gets there: it leaves a marker file in the |
| `hang_once@NAME`    | folder that `WATCHER_TEST_FAULTS_ONCE_DIR` names; likewise `hang_sleep`           |
| `oom=N`, `oom@N`    | the engine runs out of device memory at every call with more than N crops; 0: at  |
|                     | every call. In a process that is configured for `cpu` it is the CPU's memory      |
| `slow_item=SECONDS` | every item sleeps first (counted in `read`, before that is announced)             |
| `slow_phase=P:SECONDS` | sleep each time that phase P begins, or goes on with another crop              |
| `stretch=P:FACTOR`  | phase P takes FACTOR (>= 1) times as long as it took: it sleeps at its end, and   |
|                     | at the end of each crop                                                           |
| `slow_start=SECONDS`| sleep before the model loads                                                      |
| `fail_start=CODE`   | 78: the engine says that it cannot run here; other codes: exit without last words |
| `hang_start`        | sleep for ever before the model loads                                             |
| `fail_selftest`     | the engine paints black until the first item starts, so the golden self-test fails|
| `spawn_grandchild`  | start a process that sleeps, in the worker's own session, before the model loads  |
| `garbage`           | one line that is no message, when the first batch starts                          |
| `stderr_flood`      | 8 MiB of text to stderr, when the first batch starts                              |
| `leak=MIB`          | so many MiB more are held, and were written to, at the end of each batch          |
| `fdleak=N`          | so many descriptors more are held at the end of each batch                        |
| `hang_idle`         | answer nothing any more once the first batch is done and reported                 |
| `exit_recycle`      | exit with code 75 once a batch is done and reported                               |
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from watcher.wire import (
    EXIT_CONFIGURATION,
    DeviceFacts,
    EngineFacts,
    ImageFacts,
    ItemDone,
    ItemTimes,
    Phase,
    WorkSegments,
)
from watcher.worker.engines.protocol import (
    DeviceLostError,
    DeviceMemoryError,
    EngineUnavailableError,
    FillError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from watcher.wire import FromWorker, Item
    from watcher.worker.engines.protocol import Crop, Engine, LoadSegments
    from watcher.worker.phases import PhaseClock

VARIABLE = "WATCHER_TEST_FAULTS"
ONCE_VARIABLE = "WATCHER_TEST_FAULTS_ONCE_DIR"
GARBAGE = b"this is not a message\n"
DEADLOCK = b"a worker deadlocks with the interpreter lock held\n"
BEAT = b"a thread of a deadlocked worker beats\n"
_CRASHED = 139  # what a shell reports for a SIGSEGV
_FOR_EVER_S = 3600
_BEAT_S = 0.1
_LATE_S = 1.5
_FLOOD_BYTES = 8 << 20
_FLOOD = b"a library has very much to say\n" * 1000
_ONCE = {"crash_once": "crash", "hang_once": "hang_sleep"}
_AT_ITEM = frozenset(
    {"crash", "segv", "hang_sleep", "hang_gil", "hang_lock", "stop_self", "sticky_cuda", "late_write", *_ONCE}
)
_WITH_VALUE = frozenset({"slow_item", "slow_start", "fail_start", "oom", "leak", "fdleak"})
_PLAIN = frozenset(
    {
        "garbage",
        "stderr_flood",
        "fail_selftest",
        "spawn_grandchild",
        "hang_start",
        "hang_idle",
        "exit_recycle",
    }
)
_IN_ENGINE = frozenset({"oom", "sticky_cuda", "fail_selftest"})


@dataclass(frozen=True, slots=True)
class Plan:
    """The entries that are meant for this process.

    Attributes:
        at_item: pairs of kind and file name.
        values: kind to value.
        slow_phases: phase to seconds.
        stretches: phase to factor.
        plain: kinds without argument.
        once_dir: where markers lie of what strikes once; None where nothing does.
    """

    at_item: frozenset[tuple[str, str]] = frozenset()
    values: tuple[tuple[str, float], ...] = ()
    slow_phases: tuple[tuple[Phase, float], ...] = ()
    stretches: tuple[tuple[Phase, float], ...] = ()
    plain: frozenset[str] = frozenset()
    once_dir: str | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """What is planted at all."""
        return self.plain | {kind for kind, _ in self.at_item} | {kind for kind, _ in self.values}


def read_plan(text: str, *, one_shot: bool, once_dir: str | None = None) -> Plan:
    """Read the variable's value.

    Raises:
        ValueError: an entry that means nothing; a test that plants nothing would pass for nothing.
    """
    at_item: set[tuple[str, str]] = set()
    values: list[tuple[str, float]] = []
    slow_phases: list[tuple[Phase, float]] = []
    stretches: list[tuple[Phase, float]] = []
    plain: set[str] = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        rest = _in_scope(entry, one_shot=one_shot)
        if rest is None:
            continue
        kind, at, name = rest.partition("@")
        key, equals, value = rest.partition("=")
        if kind in _AT_ITEM and at:
            at_item.add((kind, name))
        elif key in _WITH_VALUE and equals:
            values.append((key, float(value)))
        elif kind == "oom" and at:
            values.append((kind, float(name)))
        elif key == "slow_phase" and equals:
            slow_phases.append(_of_phase(value, entry))
        elif key == "stretch" and equals:
            stretches.append(_stretch(value, entry))
        elif rest in _PLAIN:
            plain.add(rest)
        else:
            raise ValueError(f"unknown fault in {VARIABLE}: {entry}")
    if once_dir is None and any(kind in _ONCE for kind, _ in at_item):
        raise ValueError(f"a fault that strikes once needs {ONCE_VARIABLE}")
    return Plan(
        frozenset(at_item), tuple(values), tuple(slow_phases), tuple(stretches), frozenset(plain), once_dir
    )


def _in_scope(entry: str, *, one_shot: bool) -> str | None:
    """Return the entry without its scope, or None if it is meant for others."""
    head, colon, rest = entry.partition(":")
    if not colon or "@" in head or "=" in head:
        return entry
    if head not in ("hot", "cold"):
        raise ValueError(f"unknown scope in {VARIABLE}: {entry}")
    return rest if (head == "cold") == one_shot else None


def _of_phase(value: str, entry: str) -> tuple[Phase, float]:
    wanted, _, number = value.partition(":")
    phases: tuple[Phase, ...] = get_args(Phase)
    for phase in phases:
        if phase == wanted and number:
            return phase, float(number)
    raise ValueError(f"unknown phase in {VARIABLE}: {entry}")


def _stretch(value: str, entry: str) -> tuple[Phase, float]:
    phase, factor = _of_phase(value, entry)
    if not 1 <= factor < float("inf"):
        raise ValueError(f"nothing gets faster by a fault of {VARIABLE}: {entry}")
    return phase, factor


class Faults:
    """Strikes where the plan says. Without a plan it does nothing."""

    def __init__(
        self, plan: Plan | None = None, send: Callable[[FromWorker], None] = lambda _message: None
    ) -> None:
        """Take the plan.

        Args:
            plan: what is to go wrong.
            send: the way to the service, for a report that comes too late.
        """
        self._plan = plan or Plan()
        self._send = send
        self._values = dict(self._plan.values)
        self._started_batch = False
        self._held: list[object] = []
        self.item_name: str | None = None
        """File name of the item that was started last."""

    # --- start ---------------------------------------------------------------------------------------------

    def at_start(self) -> None:
        """Act before the model loads.

        Raises:
            EngineUnavailableError: for `fail_start=78`.
        """
        if "spawn_grandchild" in self._plan.plain:
            sleep = f"import time; time.sleep({_FOR_EVER_S})"
            self._held.append(subprocess.Popen([sys.executable, "-S", "-c", sleep]))
        time.sleep(self._values.get("slow_start", 0.0))
        if "hang_start" in self._plan.plain:
            _hang()
        code = int(self._values.get("fail_start", 0))
        if code == EXIT_CONFIGURATION:
            raise EngineUnavailableError("a planted fault", f"unset {VARIABLE}")
        if code:
            os._exit(code)

    def in_engine(self, engine: Engine, device: str) -> Engine:
        """Return the engine, or a faulty one around it. `device` is the configured one."""
        return _FaultyEngine(engine, self, device) if self._plan.kinds & _IN_ENGINE else engine

    # --- batches -------------------------------------------------------------------------------------------

    def at_batch_start(self) -> bytes:
        """Act when a batch was read; return what is to be written to the service before anything else."""
        first, self._started_batch = not self._started_batch, True
        if not first:
            return b""
        if "stderr_flood" in self._plan.plain:
            for _ in range(_FLOOD_BYTES // len(_FLOOD) + 1):
                _write(sys.stderr.fileno(), _FLOOD)
        return GARBAGE if "garbage" in self._plan.plain else b""

    def before_batch_done(self) -> None:
        """Act when all items were served, before it is told."""
        leaked_mib = int(self._values.get("leak", 0))
        if leaked_mib:
            self._held.append(bytearray(b"\x01") * (leaked_mib << 20))  # not zeros: those cost no memory
        self._held += [os.open(os.devnull, os.O_RDONLY) for _ in range(int(self._values.get("fdleak", 0)))]

    def after_batch_done(self) -> bool:
        """Act when the batch is done and told; True if the process is to be recycled."""
        if "hang_idle" in self._plan.plain:
            _hang()
        return "exit_recycle" in self._plan.plain

    # --- items ---------------------------------------------------------------------------------------------

    def at_item_start(self, batch: str, item: Item) -> None:
        """Act when an item starts."""
        time.sleep(self._values.get("slow_item", 0.0))
        self.item_name = os.path.basename(item.source)  # noqa: PTH119 - the path may hold surrogates
        for kind, wanted in sorted(self._plan.at_item):
            if wanted in (self.item_name, "*") and self._is_due(kind, wanted):
                _strike(_ONCE.get(kind, kind), lambda: self._die_and_write_late(batch, item))

    def in_phase(self, phase: Phase) -> None:
        """Act when a phase was announced, or its next crop."""
        for slow, seconds in self._plan.slow_phases:
            if slow == phase:
                time.sleep(seconds)

    def before_lap_ends(self, clock: PhaseClock) -> None:
        """Act when a phase is to end, or its next crop: draw it out by what is planted."""
        for stretched, factor in self._plan.stretches:
            if stretched == clock.phase:
                time.sleep(clock.lap_ns * (factor - 1) / 1e9)

    def at_fill(self, crops: int, device: str) -> None:
        """Act in the engine, before it fills so many crops of an item.

        Raises:
            DeviceLostError: for `sticky_cuda`.
            FillError: for `oom`.
        """
        if self.item_name is None:
            return
        for kind, wanted in self._plan.at_item:
            if kind == "sticky_cuda" and wanted in (self.item_name, "*"):
                raise DeviceLostError("the device failed: CUDA error: a planted fault")
        if crops > self._values.get("oom", float("inf")):
            lack = "CUDA out of memory: a planted fault"
            raise FillError(lack) if device == "cpu" else DeviceMemoryError(lack)

    @property
    def paints_black(self) -> bool:
        """The golden self-test is to fail."""
        return "fail_selftest" in self._plan.plain and self.item_name is None

    def _is_due(self, kind: str, wanted: str) -> bool:
        """Tell whether it strikes now; of what strikes once, by being the one who makes the marker file."""
        if kind not in _ONCE or self._plan.once_dir is None:
            return True
        marker = Path(self._plan.once_dir) / f"{kind}@{wanted.encode(errors='surrogateescape').hex()}"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _die_and_write_late(self, batch: str, item: Item) -> None:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # threads run: the child calls the system only
            child = os.fork()
        if child:
            while os.getsid(child) == os.getsid(parent):  # else the kill of our group may take it along
                time.sleep(0.001)
            os.kill(parent, signal.SIGKILL)
        os.setsid()
        while os.getppid() == parent:
            time.sleep(0.01)
        time.sleep(_LATE_S)
        Path(item.staging, item.stage_name).write_bytes(b"too late")
        self._send(_late_report(batch, item))
        os._exit(0)


class _FaultyEngine:
    """An engine that fails as planted, and otherwise is the one that it stands before."""

    def __init__(self, engine: Engine, faults: Faults, device: str) -> None:
        self._engine = engine
        self._faults = faults
        self._device = device

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def model_loads(self) -> int:
        return self._engine.model_loads

    def load(self) -> LoadSegments:
        return self._engine.load()

    def warm_up(self) -> None:
        self._engine.warm_up()

    def give_way(self, reason: str) -> bool:
        return self._engine.give_way(reason)

    def work_px(self, crop: Crop) -> int:
        return self._engine.work_px(crop)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        self._faults.at_fill(len(crops), self._device)
        results = self._engine.fill(crops, progress=progress)
        return [result * 0 for result in results] if self._faults.paints_black else results

    def facts(self) -> EngineFacts:
        return self._engine.facts()

    def device(self) -> DeviceFacts:
        return self._engine.device()


def _strike(kind: str, die_and_write_late: Callable[[], None]) -> None:
    match kind:
        case "crash":
            os._exit(_CRASHED)
        case "segv":
            import ctypes

            ctypes.string_at(0)
        case "hang_sleep":
            _hang()
        case "hang_gil":
            _hang_with_the_interpreter_lock()
        case "hang_lock":
            threading.Thread(target=_beat, name="beat", daemon=True).start()
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "stop_self":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "late_write":
            die_and_write_late()


def _hang() -> NoReturn:
    while True:
        time.sleep(_FOR_EVER_S)


def _hang_with_the_interpreter_lock() -> NoReturn:
    """Wait for a mutex that this thread itself holds: unlike a sleep, no signal ends that for an instant."""
    import ctypes

    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(256)  # zeros are an unlocked mutex on Linux; elsewhere the calls fail
    library.pthread_mutex_lock(mutex)
    _write(sys.stderr.fileno(), DEADLOCK)
    library.pthread_mutex_lock(mutex)
    while True:
        library.sleep(_FOR_EVER_S)


def _beat() -> NoReturn:
    while True:
        _write(sys.stderr.fileno(), BEAT)
        time.sleep(_BEAT_S)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _late_report(batch: str, item: Item) -> ItemDone:
    return ItemDone(
        batch=batch,
        job=item.job,
        outcome="done",
        marks="mask",
        sha256_in=item.sha256,
        sha256_out="0" * 64,
        size_bytes=8,
        image=ImageFacts(format="PNG", width=1, height=1),
        engine=EngineFacts(configured="late", actual="late"),
        device=DeviceFacts(configured="cpu", available=("cpu",), actual="cpu"),
        segments=WorkSegments(),
        times=ItemTimes(batch_received_ns=1, started_ns=2, finished_ns=3),
        rss_bytes=1,
    )
