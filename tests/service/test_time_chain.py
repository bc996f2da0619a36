"""The time chain is true: it adds up, a clock of its own agrees with it, and a delay shows where it was.

Rules of this file:
- Delays strike the functions that do the work (`delays`), or are made from outside: files that come slowly,
  processes that stand still. None is planted where times are taken.
- A delay is told from the noise of a busy machine by repetition: what does not come of it is not there every
  time. The delayed segment itself has no excuse, and must show all of it each time.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.delays import FIRST_LINE, IMPORT, Planter
from tests.service.harness import ROOT, Service, assert_adds_up, mask, picture, wait_until
from watcher.core.timeline import SEGMENTS, START_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.service.harness import Record

DELAY_S: Final = 0.3
DELAY_MS: Final = DELAY_S * 1e3
NOISE_MS: Final = 150.0
"""What another segment may have more than without the delay, and its own more or less: half of it."""
TRIES: Final = 5
"""So often is a delay planted before a segment that grew with it each time is taken to grow by it."""
QUICK: Final = ("[arrivals]", "quiet_s = 0.1")


class DelayedService(Service):
    """A service into whose code delays can be planted while it runs."""

    planter: Planter

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planter = Planter(str(self.root / "delays"))

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([self.planter.library, str(ROOT)])
        return {**super().environment(), **self.planter.environment, "PYTHONPATH": path}


@dataclass
class Bench:
    """A service at rest, and what a picture takes there that nothing delays."""

    service: DelayedService
    numbers: Iterator[int] = field(default_factory=count)
    _undisturbed: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def new_name(self) -> str:
        return f"{next(self.numbers)}.png"

    def serve(self, name: str) -> Record:
        """Serve a new picture of this name, and return its record."""
        self.service.put(name)
        record = self.service.wait_record(name)
        self.check(record)
        return record

    def check(self, record: Record) -> None:
        assert_adds_up(record)
        assert set(record["segments_ms"]) == {*SEGMENTS, "unattributed"}
        assert self.service.planter.waiting == [], "a planted delay did not strike"

    def assert_delayed(
        self,
        segment: str,
        serve: Callable[[bool], Record],
        *,
        besides: frozenset[str] = frozenset(),
        is_exact: bool = True,
    ) -> None:
        """Hold delayed jobs against undisturbed ones, until each other segment was once as short as these.

        Args:
            segment: the one that is to have the delay, all of it and each time.
            serve: serves a picture, with the delay or without, and returns its record.
            besides: segments that say nothing here.
            is_exact: False where the test and not the program waits: on a busy machine the service sees the
                begin of that too late, and what nobody has seen is in no record.
        """
        plain = self._undisturbed.setdefault(serve.__qualname__, [])
        delayed: list[dict[str, float]] = []
        for attempt in range(TRIES):
            if len(plain) <= attempt:
                plain.append(serve(False)["segments_ms"])  # noqa: FBT003 - the only argument
            record = serve(True)  # noqa: FBT003 - likewise
            delayed.append(record["segments_ms"])
            if is_exact:
                assert DELAY_MS <= delayed[-1][segment] <= record["total_ms"], record
            grown = {
                name
                for name in delayed[-1]
                if min(told[name] for told in delayed) - max(told[name] for told in plain) >= NOISE_MS
            }
            own_ms = [told[segment] - before[segment] for told in delayed for before in plain]
            if grown <= {segment, *besides} and any(abs(ms - DELAY_MS) < NOISE_MS for ms in own_ms):
                return
        pytest.fail(f"{DELAY_MS:g} ms in {segment} show as {grown}: {delayed}, and without it {plain}")


@pytest.fixture(scope="module")
def _hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    service = DelayedService(tmp_path_factory.mktemp("hot"), QUICK)
    service.start()
    bench = Bench(service)
    bench.serve(bench.new_name())  # the first picture finds caches cold
    yield bench
    assert service.terminate() == 0
    service.close()


@pytest.fixture
def hot(_hot: Bench) -> Bench:
    """A resident worker serves."""
    _hot.service.wait_ready()
    return _hot


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """No resident worker can start: each picture has a process of its own."""
    service = DelayedService(tmp_path_factory.mktemp("cold"), QUICK, faults="hot:fail_start=78")
    service.start(ready=False)
    service.wait_log("worker.disabled")
    yield Bench(service)
    assert service.terminate() == 0
    service.close()


# --- a delay in the program --------------------------------------------------------------------------------

HOT_POINTS: Final = {
    "identify": ["watcher.adapters.tree:hash_file(NAME)"],
    "pair": ["watcher.adapters.journal:SqliteJournal.prior_jobs(NAME)"],
    "ipc": [
        "watcher.worker.channel:ReportWriter.send(ItemDone)",
        "watcher.adapters.journal:SqliteJournal.commit(running)",
    ],
    "read": ["watcher.worker.imaging.files:read_file"],
    "decode": ["watcher.worker.imaging.picture:Picture.load"],
    "mask": ["watcher.worker.marking:find_mark"],
    "preprocess": ["watcher.worker.imaging.crops:plan_crops", "watcher.worker.imaging.crops:cut"],
    "inference": ["watcher.worker.engines.patchmatch:PatchmatchEngine.fill"],
    "composite": [
        "watcher.worker.imaging.composite:_PlainCanvas.paste",
        "watcher.worker.imaging.blending:levelled",
    ],
    "encode": ["watcher.worker.imaging.picture:save", "watcher.worker.imaging.files:stage"],
    "publish": [
        "watcher.adapters.file_operations:FileOperations.fsync",
        "watcher.adapters.file_operations:FileOperations.rename_without_replacing",
    ],
}
COLD_POINTS: Final = {
    "process_start": [FIRST_LINE, "watcher.adapters.journal:SqliteJournal.commit(running)"],
    "import": [f"{IMPORT}cv2", f"{IMPORT}watcher.worker.engines.registry"],
    "warmup": [
        "watcher.worker.golden:run_golden_test",
        "watcher.worker.engines.patchmatch:PatchmatchEngine.warm_up",
    ],
    "unattributed": ["watcher.worker.engines.registry:build_engine"],
}
LAMA_POINTS: Final = {
    "device_probe": "watcher.worker.devices:TorchAccelerators.available",
    "model_read": "watcher.worker.models.store:locate_verified",
    "model_load": "torch.jit:load",
}
ELSEWHERE: Final = frozenset({"backlog", "settle", "queue", "batch_wait", "lost_attempts"})
"""Segments that lie between the programs' functions: tests of their own, below."""


def plant(service: DelayedService, points: Sequence[str], name: str = "") -> None:
    """Plant one delay, in equal parts: the first and the last work of a segment are to be its own."""
    for point in points:
        function, _, argument = point.partition("(")
        wanted = argument.rstrip(")").replace("NAME", name)
        service.planter.plant(function, DELAY_S / len(points), argument=wanted)


def test_every_segment_has_a_test_of_its_own() -> None:
    assert {*HOT_POINTS, *COLD_POINTS, *LAMA_POINTS, *ELSEWHERE} == {*SEGMENTS, "unattributed"}


@pytest.mark.parametrize("segment", HOT_POINTS)
def test_a_delay_on_the_hot_path_shows_where_it_was_and_nowhere_else(hot: Bench, segment: str) -> None:
    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        name = hot.new_name()
        if is_delayed:
            plant(hot.service, HOT_POINTS[segment], name)
        record = hot.serve(name)
        assert record["path"] == "hot"
        assert all(record["segments_ms"][name] == 0 for name in START_SEGMENTS)
        return record

    hot.assert_delayed(segment, serve)


@pytest.mark.parametrize("segment", COLD_POINTS)
def test_a_delay_in_a_process_of_its_own_shows_where_it_was_and_nowhere_else(
    cold: Bench, segment: str
) -> None:
    """What no segment claims is `unattributed`, and never counted as another's."""

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        if is_delayed:
            plant(cold.service, COLD_POINTS[segment])
        name = cold.new_name()
        cold.service.put(name)
        record = cold.service.wait_record(name)
        assert (record["path"], record["path_reason"]) == ("cold", "disabled")
        assert all(record["segments_ms"][each] > 0 for each in ("process_start", "import", "warmup"))
        assert set(record["segments_ms"]) == {*SEGMENTS, "unattributed"}
        assert sum(record["segments_ms"].values()) == pytest.approx(record["total_ms"], abs=1.0)
        assert cold.service.planter.waiting == []
        return record

    cold.assert_delayed(segment, serve)


# --- a delay beside it -------------------------------------------------------------------------------------


def test_a_writer_that_keeps_its_file_open_shows_in_settle(hot: Bench) -> None:
    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        name = hot.new_name()
        data = picture(int(name.removesuffix(".png")) + 7000)
        hot.service.place(f"{name}.mask.png", mask())
        with (hot.service.inbox / name).open("wb") as file:
            file.write(data)
            file.flush()
            time.sleep(DELAY_S if is_delayed else 0)
        record = hot.service.wait_record(name)
        hot.check(record)
        return record

    hot.assert_delayed("settle", serve, is_exact=False)


def test_a_line_before_the_first_look_shows_in_backlog(hot: Bench) -> None:
    """A folder is moved in; the first of its files is slow to be looked at, and the others wait for that."""

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        name = hot.new_name()
        folder = hot.service.root / f"folder {name}"
        folder.mkdir()
        for number in range(12):
            (folder / f"{number}.mask.png").write_bytes(mask())
        (folder / name).write_bytes(picture(int(name.removesuffix(".png")) + 8000))
        (folder / f"{name}.mask.png").write_bytes(mask())
        with os.scandir(folder) as entries:
            order = [entry.name for entry in entries]
        if not order[0].endswith(".mask.png") or order[0].startswith(name):
            return serve(is_delayed)
        if is_delayed:
            hot.service.planter.plant(
                "watcher.adapters.tree:look_at", DELAY_S, argument=f"{folder.name}/{order[0]}"
            )
        folder.rename(hot.service.inbox / folder.name)
        record = hot.service.wait_record(f"{folder.name}/{name}")
        hot.check(record)
        return record

    hot.assert_delayed("backlog", serve)


def test_a_busy_worker_shows_in_queue(hot: Bench) -> None:
    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        first, second = hot.new_name(), hot.new_name()
        with busy(hot, first, DELAY_S + 0.1 if is_delayed else 0):
            hot.service.put(second)
        record = hot.service.wait_record(second)
        hot.check(record)
        return record

    hot.assert_delayed("queue", serve, is_exact=False)


def test_a_sibling_shows_in_batch_wait(hot: Bench) -> None:
    """The resident worker is busy, so that two pictures wait and go together, one after the other."""

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        first, second, third = hot.new_name(), hot.new_name(), hot.new_name()
        with busy(hot, first, DELAY_S):
            hot.service.put(second)
            hot.service.put(third)
            if is_delayed:
                plant(hot.service, HOT_POINTS["inference"])
        sibling, record = (hot.service.wait_record(name) for name in (second, third))
        assert sibling["batch"] == record["batch"]
        hot.check(record)
        return record

    hot.assert_delayed("batch_wait", serve, besides=frozenset({"queue"}))


@contextmanager
def busy(bench: Bench, name: str, seconds: float) -> Iterator[None]:
    """The resident worker is busy with this picture when the block begins, for so long."""
    point = "watcher.worker.engines.patchmatch:PatchmatchEngine.fill"
    bench.service.planter.plant(point, seconds)
    bench.service.put(name)
    wait_until(lambda: not bench.service.planter.waiting, "the worker to be busy")
    yield
    bench.service.wait_record(name)


@pytest.mark.parametrize("who", ["worker", "service"])
def test_a_process_that_stands_still_shows_in_ipc(hot: Bench, who: str) -> None:
    """The worker before it reads its batch, or the service before it reads the report."""

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        name = hot.new_name()
        if is_delayed and who == "worker":
            pid = hot.service.worker_pid()
            os.kill(pid, signal.SIGSTOP)
            hot.service.put(name)
            hot.service.wait_state("running")
            time.sleep(DELAY_S)
            os.kill(pid, signal.SIGCONT)
        elif is_delayed:
            hot.service.planter.plant("watcher.worker.imaging.files:stage", 0.1)
            hot.service.put(name)
            wait_until(lambda: not hot.service.planter.waiting, "the worker to stage its result")
            os.kill(hot.service.pid, signal.SIGSTOP)
            time.sleep(DELAY_S + 0.15)
            os.kill(hot.service.pid, signal.SIGCONT)
        else:
            hot.service.put(name)
        record = hot.service.wait_record(name)
        hot.check(record)
        return record

    hot.assert_delayed("ipc", serve, is_exact=False)


def test_a_process_that_dies_of_it_shows_in_lost_attempts(hot: Bench) -> None:
    """The job goes on in a process of its own."""

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        hot.service.wait_ready()
        name = hot.new_name()
        point = "watcher.worker.engines.patchmatch:PatchmatchEngine.fill"
        hot.service.planter.plant(point, DELAY_S if is_delayed else 0, then="die")
        hot.service.put(name)
        record = hot.service.wait_record(name)
        hot.check(record)
        assert (record["path"], len(record["losses"])) == ("cold", 1)
        return record

    hot.assert_delayed("lost_attempts", serve)


# --- the start of a model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DelayedService]:
    """A service with a model, and none of its processes started yet."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("engine lama is not installed here")
    weights = tmp_path_factory.mktemp("weights") / "stand-in.pt"
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "lama_stand_in.py"), "--tiny", "--out", str(weights)],
        check=True,
        capture_output=True,
    )
    settings = (
        *QUICK,
        *("[engine]", 'name = "lama"', 'device = "cpu"'),
        *("[model]", f'source = "{weights}"', f'sha256 = "{sha256(weights.read_bytes()).hexdigest()}"'),
    )
    service = DelayedService(tmp_path_factory.mktemp("lama"), settings)
    yield service
    service.close()


@pytest.mark.soak
def test_delays_in_the_start_of_a_resident_worker_show_where_they_were_in_its_own_record(
    lama: DelayedService,
) -> None:
    """All three at once, each of its own length, since a start with a model takes long."""
    lengths_s = dict(zip(LAMA_POINTS, (DELAY_S, 2 * DELAY_S, 3 * DELAY_S), strict=True))
    for segment, seconds in lengths_s.items():
        lama.planter.plant(LAMA_POINTS[segment], seconds)
    lama.start()
    (ready,) = lama.log("worker.ready")
    told = ready["segments_ms"]
    assert set(told) == {*START_SEGMENTS, "unattributed"}
    assert lama.planter.waiting == []
    for segment, seconds in lengths_s.items():
        assert seconds * 1e3 <= told[segment] < seconds * 1e3 + 2 * NOISE_MS, told
    assert 0 <= told["unattributed"] < NOISE_MS, told
    lama.put("hot.png")
    record = lama.wait_record("hot.png")
    assert_adds_up(record)
    assert (record["path"], {record["segments_ms"][name] for name in START_SEGMENTS}) == ("hot", {0})
    assert lama.terminate() == 0


@pytest.mark.soak
@pytest.mark.parametrize(("segment", "point"), LAMA_POINTS.items())
def test_a_delay_in_the_start_of_a_model_shows_where_it_was_and_nowhere_else(
    lama: DelayedService, segment: str, point: str
) -> None:
    bench = Bench(lama)
    lama.faults = "hot:fail_start=78"
    lama.start(ready=False)
    lama.wait_log("worker.disabled")

    def serve(is_delayed: bool) -> Record:  # noqa: FBT001 - the only argument
        if is_delayed:
            lama.planter.plant(point, DELAY_S)
        name = f"{segment}-{bench.new_name()}"
        lama.put(name)
        record = lama.wait_record(name)
        bench.check(record)
        assert record["path"] == "cold"
        assert all(record["segments_ms"][name] > 0 for name in START_SEGMENTS), record
        return record

    serve(False)  # noqa: FBT003 - the first one reads the libraries from the disk
    bench.assert_delayed(segment, serve)
    assert lama.terminate() == 0


# --- the total ---------------------------------------------------------------------------------------------

WATCHING_MS: Final = 15.0
"""What a notification, a look each 0.2 ms and two threads on a busy machine may cost at both ends: 0.3 ms to
3 ms were measured, and 8 ms beside other tests."""


@dataclass(frozen=True)
class Seen:
    """What a clock of the test's own says of a job, in ns of the monotonic clock.

    Attributes:
        offered_ns: the last moment at which its last file was not yet complete under its name.
        complete_ns: the first at which it was.
        absent_ns: the last at which there was no output.
        there_ns: the first at which there was.
        told_ns: its record was there.
        record: that.
    """

    offered_ns: int
    complete_ns: int
    absent_ns: int
    there_ns: int
    told_ns: int
    record: Record

    @property
    def error_ms(self) -> float:
        """By how much the record's total is not what was seen."""
        return float(self.record["total_ms"]) - (self.there_ns - self.complete_ns) / 1e6


def seen(service: Service, name: str, offer: Callable[[], tuple[int, int]]) -> Seen:
    """Watch the outbox for this name from another thread while the inbox gets the last file of it."""
    output = service.outbox / name
    times = [time.monotonic_ns(), 0]

    def watch() -> None:
        while not output.exists():
            times[0] = time.monotonic_ns()
            time.sleep(0.0002)
        times[1] = time.monotonic_ns()

    watcher = threading.Thread(target=watch)
    # The last look that found nothing is to have begun before the file came: `times[0]` is from after a look.
    watcher.start()
    offered_ns, complete_ns = offer()
    watcher.join(40)
    record = service.wait_record(name)
    return Seen(offered_ns, complete_ns, times[0], times[1], time.monotonic_ns(), record)


def by_rename(service: Service, name: str, data: bytes) -> tuple[int, int]:
    """Give the file its name with all its bytes."""
    offered_ns = time.monotonic_ns()
    service.place(name, data)
    return offered_ns, time.monotonic_ns()


def by_writing(service: Service, name: str, data: bytes) -> tuple[int, int]:
    """Write it under its name, slowly: the chain begins when the last bytes are seen, and not before."""
    with (service.inbox / name).open("wb", buffering=0) as file:
        file.write(data[:-10])
        time.sleep(0.2)
        offered_ns = time.monotonic_ns()
        file.write(data[-10:])
        complete_ns = time.monotonic_ns()
    return offered_ns, complete_ns


@pytest.mark.parametrize(
    ("last", "how"), [("picture", by_rename), ("mask", by_rename), ("picture", by_writing)]
)
def test_the_total_is_what_a_clock_beside_it_says(
    hot: Bench, last: str, how: Callable[[Service, str, bytes], tuple[int, int]]
) -> None:
    """From the last file that was needed to the result: bounds that always hold, and a typical difference."""
    errors_ms = []
    for _ in range(5):
        name = hot.new_name()
        files = [(f"{name}.mask.png", mask()), (name, picture(int(name.removesuffix(".png")) + 9000))]
        first, second = files if last == "picture" else reversed(files)
        hot.service.place(*first)
        if last == "mask":
            hot.service.wait_note("held", name)
        told = seen(hot.service, name, lambda second=second: how(hot.service, *second))  # type: ignore[misc] # its default
        begun_ns = told.record["clock"]["ended_ns"] - round(told.record["total_ms"] * 1e6)
        assert begun_ns >= told.offered_ns - 1000, "it began before there was anything to see"
        assert told.absent_ns <= told.record["clock"]["ended_ns"] <= told.told_ns
        hot.check(told.record)
        errors_ms.append(told.error_ms)
    assert abs(sorted(errors_ms)[2]) < WATCHING_MS, errors_ms


# --- all kinds of jobs -------------------------------------------------------------------------------------


_FEW: Final = 3


@dataclass
class Crowd:
    """Jobs of all kinds, one kind after the other, and when the last file of each came.

    Attributes:
        service: serves them.
        each: how many of a kind that costs little.
    """

    service: DelayedService
    each: int
    began_ns: dict[str, int] = field(default_factory=dict)

    def names(self, kind: str, number: int | None = None) -> list[str]:
        return [f"{kind}-{index}.png" for index in range(self.each if number is None else number)]

    def began_of(self, record: Record) -> int:
        """The earliest instant at which a record's chain may begin."""
        retried = self.began_ns.get(f"retry of {record['retry_of']}")
        return self.began_ns[record["source"]] if retried is None else retried

    def put(self, name: str, data: bytes | None = None, marked: bytes | None = None) -> None:
        self.began_ns.setdefault(name, time.monotonic_ns())
        self.service.put(name, data, marked)

    def all_kinds(self) -> None:
        self.plain()
        self.held()
        self.refused()
        self.changed_and_gone()
        self.quarantined()
        self.killed()
        self.once()

    def plain(self) -> None:
        """Hot ones, copies, and such that are not changed."""
        for name in self.names("hot", 3 * self.each):
            self.put(name)
        for name in self.names("copy"):
            self.put(name, picture(5000))
        for name in self.names("unchanged"):
            self.put(name, None, mask(box=(0, 0, 0, 0)))
        self.wait("hot", 3 * self.each)
        self.wait("copy")
        self.wait("unchanged", outcome="unchanged")

    def held(self) -> None:
        for name in self.names("held"):
            self.service.place(name, picture(6000 + int(name.removesuffix(".png").rpartition("-")[2])))
        self.service.wait_state("held", count=self.each)
        for name in self.names("held"):
            self.began_ns[name] = time.monotonic_ns()
            self.service.place(f"{name}.mask.png", mask())
        self.wait("held")

    def refused(self) -> None:
        """Failed ones, and the same again since a person said so."""
        for name in self.names("failed"):
            self.put(name, f"no picture {name}".encode() * 50, mask())
        self.wait("failed", outcome="failed")
        (first, *_) = self.service.records_of("failed-0.png", outcome={"failed"})
        self.began_ns[f"retry of {first['job']}"] = time.monotonic_ns()
        assert self.service.run("retry", first["job"]).returncode == 0
        self.service.wait_record("failed-0.png", count=2, outcome={"failed"})

    def changed_and_gone(self) -> None:
        """Their bytes change, or they go, while they wait, and one while a worker that stands still has it.

        There are few of them: a worker that stands still for long is killed.
        """
        changed, gone = self.names("superseded", _FEW), self.names("gone", _FEW)
        pid = self.service.worker_pid()
        os.kill(pid, signal.SIGSTOP)
        self.put(changed[0])
        self.service.wait_state("running")
        for name in [*changed[1:], *gone]:
            self.put(name)
        self.service.wait_state("ready", count=2 * _FEW - 1)
        for number, name in enumerate(changed):
            self.put(name, picture(4000 + number))
        for name in gone:
            (self.service.inbox / name).unlink()
        self.wait("superseded", _FEW, outcome="superseded", first=1)
        self.wait("gone", _FEW, outcome="gone")
        os.kill(pid, signal.SIGCONT)
        self.wait("superseded", _FEW)
        self.wait("superseded", _FEW, outcome="superseded")

    def quarantined(self) -> None:
        """One that ends its process twice, and one that ends it once and is served on the cold path."""
        self.put("poison.png")
        self.service.wait_record("poison.png", outcome={"quarantined"})
        self.service.wait_ready()
        self.service.planter.plant("watcher.worker.engines.patchmatch:PatchmatchEngine.fill", 0.0, then="die")
        self.put("cold.png")
        self.service.wait_record("cold.png")

    def killed(self) -> None:
        """The service is killed while some wait, and while it publishes one."""
        self.service.wait_ready()
        fsync = "watcher.adapters.file_operations:FileOperations.fsync"
        self.service.planter.plant(fsync, 60.0, argument="rescued.png")
        self.put("rescued.png")
        wait_until(lambda: not self.service.planter.waiting, "the result to be published")
        os.kill(self.service.worker_pid(), signal.SIGSTOP)
        for name in self.names("resumed"):
            self.put(name)
        wait_until(
            lambda: {job.source for job in self.service.jobs()} >= set(self.names("resumed")), "all jobs"
        )
        self.service.kill9()
        for name in [*self.names("resumed"), "rescued.png"]:
            self.began_ns[name] = time.monotonic_ns()  # what lies before belongs to nobody
        self.service.start()
        self.wait("resumed")
        self.service.wait_record("rescued.png")

    def once(self) -> None:
        """In one process for all of them, without a service."""
        assert self.service.terminate() == 0
        for name in self.names("once"):
            self.put(name)
        assert self.service.run("once").returncode in {0, 1}
        self.wait("once")

    def wait(self, kind: str, number: int | None = None, *, outcome: str = "done", first: int = 0) -> None:
        for name in self.names(kind, number)[first:]:
            self.service.wait_record(name, outcome={outcome})


def check_chain(record: Record) -> None:
    """What must hold of every record, whatever became of its job."""
    segments = record["segments_ms"]
    assert list(segments) == [*SEGMENTS, "unattributed"]
    assert_adds_up(record)
    owned = {name for name in START_SEGMENTS if segments[name] > 0}
    if record["path"] == "cold":
        assert owned >= {"process_start", "import", "warmup"}, record
    else:
        assert owned == set(), record
    if record["worker"] is None:
        assert all(segments[name] == 0 for name in ("ipc", "read", "decode", "inference", "encode")), record
    else:
        assert segments["read"] > 0, record


@pytest.mark.parametrize(("each", "jobs"), [(3, 40), pytest.param(21, 200, marks=pytest.mark.soak)])
def test_the_segments_of_jobs_of_all_kinds_add_up_to_their_totals(
    tmp_path: Path, each: int, jobs: int
) -> None:
    service = DelayedService(tmp_path / "crowd", QUICK, faults="crash@poison.png")
    crowd = Crowd(service, each)
    try:
        service.start()
        crowd.all_kinds()
        records = service.records()
        done_ns = time.monotonic_ns()
    finally:
        service.close()

    assert len(records) >= jobs
    for record in records:
        check_chain(record)
        begun_ns = record["clock"]["ended_ns"] - record["total_ms"] * 1e6
        assert record["clock"]["ended_ns"] <= done_ns
        if not record.get("rescued"):  # its instants are gone: its total is what is known of it
            assert begun_ns >= crowd.began_of(record) - 1000, record
    assert {record["outcome"] for record in records} == {
        *("done", "unchanged", "failed", "superseded", "gone", "quarantined")
    }
    assert {record["path"] for record in records} == {"hot", "cold", "none"}
    assert {record["path_reason"] for record in records} >= {"ready", "suspect", "once"}
    for field_name in ("duplicate_of", "retry_of", "resumed", "rescued", "losses"):
        assert any(record.get(field_name) for record in records), field_name
    for ready in service.log("worker.ready"):
        told = ready["segments_ms"]
        assert set(told) == {*START_SEGMENTS, "unattributed"}
        assert all(told[name] > 0 for name in ("process_start", "import", "warmup"))
        assert 0 <= told["unattributed"] < 0.05 * sum(told.values()) + 2.0
