"""Kills, stops, hangs and slows the resident worker at random: is each picture served, and within its bound?

The real service gets N pictures of three sizes, in groups at random pauses. Meanwhile its resident worker

- is SIGKILLed,
- is SIGSTOPped, and never continued,
- hangs with the interpreter lock held, at pictures with a certain name,
- is SIGKILLed, and its successor takes some seconds longer to start (stopped in its start, continued later),
- leaks memory with each batch, so that it is recycled by its growth, time after time.

When which of it strikes is drawn by a seed, which is printed. At the end each picture has one result: outbox,
journal and timing log agree, nothing was quarantined, no process and no file is left over (`assert_sound` of
`tests/service/harness.py`). And each picture's wait is held against the promise: from its dispatch on,
queueing apart, twice the cold time of a picture of its size at most. That wait is its total without the
segments before its dispatch, without `queue` (also the one after a loss) and without `batch_wait`. The cold
time is what the slowest of the undisturbed one-shots of that size took in the same run. On a noisy machine
that says little: the column `/ median` has the largest wait as a multiple of their median. A worker that was
struck is not struck again: what the service makes of it is what is measured.

    python benchmarks/chaos.py --pictures 300 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.service.harness import Service, encoded, is_alive, mask, pixels, wait_until  # noqa: E402 - found beside this file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SIZES_PX: Final = {"small": (320, 240), "medium": (640, 480), "large": (1024, 768)}
SHARES: Final = {"small": 0.4, "medium": 0.4, "large": 0.2}
STRIKES: Final = ("kill", "stop", "hang", "slow start")
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "slow start": signal.SIGKILL}
HANGS: Final = "hang.png"
"""Pictures of this file name hang the resident worker."""
FAULTS: Final = f"hot:hang_gil@{HANGS},hot:leak=16"
SETTINGS: Final = ("[worker]", "recycle_growth_mb = 100")
NOT_WAITED: Final = frozenset({"backlog", "settle", "identify", "pair", "queue", "batch_wait"})
BOUND_FACTOR: Final = 2.0
LARGEST_GROUP: Final = 6
STRIKE_WITHIN_S: Final = 0.8
"""After a group arrived: most strikes find the worker at work, some idle."""
SLOW_START_S: Final = (1.0, 4.0)
A_ONE_SHOT_HAS_ITS_BATCH_S: Final = 0.2
REFERENCES: Final = 3
PATIENCE_S: Final = 900.0
"""A breaker that opens again and again stays open for minutes."""


# --- the plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to the resident worker, and how long after the arrival of a group."""

    kind: str
    delay_s: float
    slow_start_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Pictures that arrive together, after a pause."""

    pause_s: float
    names: tuple[str, ...]
    strike: Strike | None


def plan(pictures: int, seed: int, mean_pause_s: float, strike_every: float) -> list[Group]:
    """Draw groups and strikes; each kind of strike comes as often as the others, in any order."""
    random = np.random.default_rng(seed)
    kinds = _in_turn(random)
    groups: list[Group] = []
    number = 0
    while number < pictures:
        count = min(int(random.integers(1, LARGEST_GROUP + 1)), pictures - number)
        sizes = random.choice(list(SHARES), size=count, p=list(SHARES.values()))
        strike = None
        if random.random() < 1 / strike_every:
            delay_s, slow_s = random.uniform(0, STRIKE_WITHIN_S), random.uniform(*SLOW_START_S)
            strike = Strike(next(kinds), float(delay_s), float(slow_s))
        guilty = int(random.integers(count)) if strike is not None and strike.kind == "hang" else None
        names = tuple(
            f"{number + place:03}-{size}/{HANGS if place == guilty else 'picture.png'}"
            for place, size in enumerate(sizes)
        )
        groups.append(Group(float(random.exponential(mean_pause_s)), names, strike))
        number += count
    return groups


def _in_turn(random: np.random.Generator) -> Iterator[str]:
    while True:
        yield from (STRIKES[place] for place in random.permutation(len(STRIKES)))


def size_of(name: str) -> str:
    """The size of a picture, by its path."""
    return name.partition("/")[0].partition("-")[2]


# --- the run -----------------------------------------------------------------------------------------------


@dataclass
class Chaos:
    """The service, and what is done to it.

    Attributes:
        service: that serves.
        groups: that are to arrive.
        references: so many undisturbed cold jobs of each size are wanted at least.
        struck: how often which signal was sent.
    """

    service: Service
    groups: Sequence[Group]
    references: int = REFERENCES
    struck: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))
    _contents: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _slow_next_s: float | None = None
    _struck_pid: int = 0
    _hanging: str | None = None
    _postponed: list[Strike] = field(default_factory=list)

    def run(self) -> None:
        """Let everything arrive and strike, then wait until all is served and the worker is well again."""
        for group in self.groups:
            for name in group.names:
                self._contents[name] = _content(name)
        at_s = time.monotonic()
        for group in self.groups:
            at_s += group.pause_s
            self._pass(at_s - time.monotonic())
            self._arrive(group)
        self._pass_until(lambda: self._count_lines() >= len(self._contents), every_s=0.1)
        self._top_up_references()
        self._pass_until(lambda: self.service.is_healthy, every_s=0.1)

    def _arrive(self, group: Group) -> None:
        for name in group.names:
            self.service.put(name, *self._contents[name])
        strike = group.strike
        if strike is None and self._postponed:
            strike = self._postponed.pop(0)
        if strike is not None:
            hanging = next((name for name in group.names if name.endswith(HANGS)), None)
            self._due.append((time.monotonic() + strike.delay_s, partial(self._strike, strike, hanging)))

    def _strike(self, strike: Strike, hanging: str | None) -> None:
        if hanging is not None:  # its name is enough
            self._hanging = hanging
            return
        pid = self._resident()
        if pid is None or self._is_struck():
            self._postponed.append(strike)
            return
        os.kill(pid, SIGNALS[strike.kind])
        self._struck_pid = pid
        self.struck[strike.kind] += 1
        if strike.kind == "slow start":
            self._slow_next_s = strike.slow_start_s

    def _is_struck(self) -> bool:
        """What was done to the worker before is not over yet."""
        hangs = self._hanging is not None and not (self.service.outbox / self._hanging).exists()
        return hangs or is_alive(self._struck_pid) or self._slow_next_s is not None

    def _resident(self) -> int | None:
        """The process of a resident worker that is ready or busy."""
        worker = self.service.status()["worker"]
        pid: int | None = worker["pid"] if worker["state"] in {"ready", "busy"} else None
        return pid if pid is not None and pid in self.service.children() else None

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._pass_until(lambda: time.monotonic() >= until)

    def _pass_until(self, is_over: Callable[[], bool], *, every_s: float = 0.005) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_over():
            assert time.monotonic() < deadline, f"not over after {PATIENCE_S:.0f} s"
            assert self.service.is_running, "the service has ended"
            self._do_what_is_due()
            time.sleep(every_s)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [action for at_s, action in self._due if at_s <= now]
        self._due = [(at_s, action) for at_s, action in self._due if at_s > now]
        for action in due:
            action()
        if self._slow_next_s is not None:
            self._slow_down(self._slow_next_s)

    def _slow_down(self, seconds: float) -> None:
        """Stop the resident worker in its start if there is one, and continue it later."""
        pid = starting_resident(self.service)
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)
        self._slow_next_s = None
        self._due.append((time.monotonic() + seconds, partial(_continue, pid)))

    def _count_lines(self) -> int:
        logs = (self.service.outbox / "logs").glob("timings-*.jsonl")
        return sum(log.read_bytes().count(b"\n") for log in logs)

    def _top_up_references(self) -> None:
        """See that each size has some cold jobs that nothing disturbed."""
        number = len(self._contents)
        for _ in range(2 * self.references):
            records = self.service.results()
            lacking = [size for size in SIZES_PX if len(colds(records, size)) < self.references]
            if not lacking:
                return
            pid = self._resident()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                wait_until(partial(_is_gone, pid), "the end of what was killed")
            for size in lacking:
                name = f"{number:03}-{size}/picture.png"
                self._contents[name] = _content(name)
                self.service.put(name, *self._contents[name])
                number += 1
            self._pass_until(lambda: self._count_lines() >= len(self._contents), every_s=0.1)


def starting_resident(service: Service) -> int | None:
    """The process of a resident worker that was never ready yet, if one starts now."""
    if service.status()["worker"]["state"] != "starting":
        return None
    for pid in service.children():
        if _age_s(pid) > A_ONE_SHOT_HAS_ITS_BATCH_S and _has_open_commands(service.pid, pid):
            return pid
    return None


def _is_gone(pid: int) -> bool:
    return not is_alive(pid)


def _continue(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGCONT)


def _has_open_commands(service_pid: int, pid: int) -> bool:
    """The service still holds its end of the worker's pipe of commands: a one-shot's is closed at once."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        descriptor = arguments[arguments.index("--commands-fd") + 1]
        pipe = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
        ours = {entry.readlink() for entry in Path(f"/proc/{service_pid}/fd").iterdir()}
    except (FileNotFoundError, ValueError):  # it ends, or is no worker yet
        return False
    return str(pipe).startswith("pipe:") and pipe in ours


def _age_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _content(name: str) -> tuple[bytes, bytes]:
    """Picture and mask; the number in the name makes it one of its own."""
    width, height = SIZES_PX[size_of(name)]
    picture = encoded(pixels(int(name.partition("-")[0]), width, height), compress_level=1)
    side = height // 8
    left, top = width // 2, height // 3
    return picture, mask(width, height, (left, top, left + side, top + side))


# --- what is left over -------------------------------------------------------------------------------------


def assert_nothing_is_left(service: Service) -> None:
    """No zombie while it runs; nothing at all once it has stopped."""
    zombies = [pid for pid in _children(service.pid) if not is_alive(pid)]
    assert not zombies, f"zombies: {zombies}"
    assert service.terminate() == 0
    orphans = [pid for pid in _processes_of(service.root) if is_alive(pid)]
    assert not orphans, f"orphans: {orphans}"


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text("ascii").split()]


def _processes_of(root: Path) -> Iterator[int]:
    """Those whose environment names the scratch folder."""
    home = f"HOME={root}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if home in variables:
                yield int(entry.name)


# --- what is printed ---------------------------------------------------------------------------------------


def wait_ms(record: Mapping[str, Any]) -> float:
    """From the dispatch on, queueing apart."""
    passed: float = record["total_ms"] - sum(record["segments_ms"][name] for name in NOT_WAITED)
    return passed


def colds(records: Sequence[Mapping[str, Any]], size: str) -> list[float]:
    """Waits of the one-shots of a size that nothing disturbed."""
    return [
        wait_ms(record)
        for record in records
        if size_of(record["source"]) == size and record["path"] == "cold" and not record["losses"]
    ]


def kind_of(record: Mapping[str, Any]) -> str:
    """What befell a picture, as its own record tells."""
    losses = record["losses"]
    if not losses:
        path: str = record["path"]
        return path if path == "hot" else f"cold: {record['path_reason']}"
    causes = sorted({_cause_of(loss) for loss in losses})
    place = "" if any(loss["serving"] for loss in losses) else ", in its batch"
    return " + ".join(causes) + place


def _cause_of(loss: Mapping[str, Any]) -> str:
    if loss["process_state"] in {"T", "t"}:
        return "stopped"
    if loss["cause"] == "killed":
        return "hung"
    return "killed" if loss["signal"] == "SIGKILL" else str(loss["cause"])


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Each picture's wait against its bound.

    Attributes:
        bounds_ms: of each size.
        text: the tables.
        over: pictures that waited for longer.
    """

    bounds_ms: Mapping[str, float]
    text: str
    over: tuple[str, ...]


def judge(records: Sequence[Mapping[str, Any]]) -> Verdict:
    """Hold each wait against twice the slowest undisturbed cold job of that size."""
    cold_ms = {size: sorted(colds(records, size)) or [0.0] for size in SIZES_PX}
    bounds_ms = {size: BOUND_FACTOR * times[-1] for size, times in cold_ms.items()}
    lines = [_line("cold jobs that nothing disturbed", ("pictures", "median", "slowest", "bound, ms"))]
    for size, times in cold_ms.items():
        lines.append(_line(size, (len(times), statistics.median(times), times[-1], bounds_ms[size])))
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        rows[kind_of(record)].append(record)
    heads = ("pictures", "median", "p99", "worst", "its bound", "ratio", "/ median", "queued")
    lines += ["", _line("what befell them (waits in ms)", heads)]
    for kind in sorted(rows):
        lines.append(_row(kind, rows[kind], cold_ms))
    over = tuple(record["source"] for record in records if _ratio(record, cold_ms) > 1)
    return Verdict(bounds_ms, "\n".join(lines), over)


def _row(kind: str, records: Sequence[Mapping[str, Any]], cold_ms: Mapping[str, Sequence[float]]) -> str:
    waits = [wait_ms(record) for record in records]
    worst = max(records, key=lambda record: _ratio(record, cold_ms))
    ratio = _ratio(worst, cold_ms)
    medians = (
        wait_ms(record) / (statistics.median(cold_ms[size_of(record["source"])]) or inf) for record in records
    )
    cells = (
        len(records),
        statistics.median(waits),
        percentile(waits, 0.99),
        wait_ms(worst),
        BOUND_FACTOR * cold_ms[size_of(worst["source"])][-1],
        f"{ratio:.2f}",
        f"{max(medians):.2f}",
        max(record["segments_ms"]["queue"] for record in records),
    )
    return f"{_line(kind, cells)}  {'ok' if ratio <= 1 else 'OVER'}"


def _line(head: str, cells: Sequence[float | str]) -> str:
    return f"{head:34}" + "".join(
        f"{cell:>10}" if isinstance(cell, str) else f"{cell:10.0f}" for cell in cells
    )


def _ratio(record: Mapping[str, Any], cold_ms: Mapping[str, Sequence[float]]) -> float:
    """Of a wait to its bound."""
    slowest_ms = cold_ms[size_of(record["source"])][-1]
    return wait_ms(record) / (BOUND_FACTOR * slowest_ms) if slowest_ms else inf


def events(service: Service) -> str:
    """What the service says that it did."""
    counted: dict[str, int] = defaultdict(int)
    for entry in service.log():
        if entry["event"] in {
            "worker.killed",
            "worker.recycling",
            "worker.restarting",
            "worker.breaker_opened",
            "path.changed",
        }:
            counted[entry["event"]] += 1
    return ", ".join(f"{count} x {event}" for event, count in sorted(counted.items()))


def run(service: Service, groups: Sequence[Group], *, references: int = REFERENCES) -> tuple[Verdict, str]:
    """Serve it all on a fresh service; returns the verdict and what happened in words.

    Raises:
        AssertionError: a result is missing, or there twice, or something is left over.
    """
    service.start()
    chaos = Chaos(service, groups, references)
    began = time.monotonic()
    chaos.run()
    seconds = time.monotonic() - began
    records = service.records()
    service.assert_sound()
    unserved = [record["source"] for record in records if record["outcome"] != "done"]
    assert not unserved, f"not done: {unserved}"
    assert service.notes("failed") == set()
    assert_nothing_is_left(service)
    struck = ", ".join(f"{count} x {kind}" for kind, count in chaos.struck.items())
    story = f"{len(records)} pictures, {len(records)} results, each once, in {seconds:.0f} s\n"
    return judge(records), f"{story}struck: {struck}\nthe service: {events(service)}"


def main() -> None:
    """Print what happened, and two tables; exit with 1 if anything is missing or over its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000, help="of all that is random")
    parser.add_argument("--engine", default="patchmatch", help="what the configuration names")
    parser.add_argument("--pause", type=float, default=3.5, help="mean seconds between groups of pictures")
    parser.add_argument("--strike-every", type=float, default=8.0, help="groups to one strike, on average")
    parser.add_argument("--keep", type=Path, help="a folder for the timing log, to look at afterwards")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`: no service is left behind
    print(f"seed {chosen.seed}, load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
    groups = plan(chosen.pictures, chosen.seed, chosen.pause, chosen.strike_every)
    with tempfile.TemporaryDirectory() as folder:
        settings = ("[engine]", f"name = {json.dumps(chosen.engine)}", *SETTINGS)
        service = Service(Path(folder).resolve() / "service", settings, faults=FAULTS)
        try:
            verdict, story = run(service, groups)
        finally:
            service.close()
            if chosen.keep is not None:
                chosen.keep.mkdir(parents=True, exist_ok=True)
                lines = "".join(json.dumps(record) + "\n" for record in service.records())
                (chosen.keep / "records.jsonl").write_text(lines, "utf-8")
                (chosen.keep / "service.log").write_bytes(service.log_file.read_bytes())
    print(f"{story}\n\n{verdict.text}")
    if verdict.over:
        print(f"\nover their bound: {', '.join(verdict.over)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
