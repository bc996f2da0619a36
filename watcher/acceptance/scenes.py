"""The scenes of an acceptance run, played against real processes, in the order of the contract.

Rules of this module:
- A scene does what a person could do (drop pictures, kill a process, stop the service) and reads what the
  program says of it. What it finds is written down; nothing is judged here (see `claims`).
- One request at a time, but in the batch: each waits for the record of the one before.
- A worker's start is taken from its own `worker.ready` line, a model load from the worker's own count.
"""

from __future__ import annotations

import shutil
import sys
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from watcher.acceptance.course import MODEL_READS, configuration_text, hot_requests
from watcher.acceptance.report import Ran, Sample, Scene, WorkerStart
from watcher.acceptance.stage import failure, running
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from watcher.acceptance.course import Course, Pictures, Request
    from watcher.acceptance.report import Record, SceneName
    from watcher.acceptance.stage import Service, Stage
    from watcher.settings import Recipe, Settings

    Tell = Callable[[str], None]

_REFERENCE_BYTES: Final = bytes(index * index * 31 % 251 for index in range(1 << 18))
_REFERENCE_TIMES: Final = 24
"""Together some 20 ms of one core: shorter work misses what else the machine is doing."""
_ONCE_CODES: Final = frozenset({0, 1})
"""All done, or some failed: either way there is a record."""


def reference_ms() -> float:
    """Do a fixed piece of work and return how long it took."""
    begun_ns = time.perf_counter_ns()
    for _ in range(_REFERENCE_TIMES):
        zlib.compress(_REFERENCE_BYTES, 6)
    return (time.perf_counter_ns() - begun_ns) / 1e6


@dataclass(slots=True)
class Play:
    """One acceptance run under way.

    Attributes:
        settings: with the stage's folders; the configuration that is measured.
        recipes: of each round.
        tell: says what happens now.
        patience_s: how long any wait may be.
    """

    stage: Stage
    settings: Settings
    recipes: Sequence[Recipe]
    pictures: Pictures
    course: Course
    tell: Tell
    patience_s: float

    def play(self) -> tuple[Scene, ...]:
        """Play all scenes.

        Raises:
            RemediableError: the service did not do what it must for there to be anything to measure.
        """
        self.pictures.make_folders(self.stage, self.course.rounds())
        self._configure(without_cold_path(self.settings))
        with self._service("batch") as service:
            batch = self._batch(service)
        self._configure(self.settings)
        hot, cold, recovery = self._hot_and_kills()
        down = self._downs()
        cold = replace(cold, samples=(*cold.samples, *down))
        return batch, hot, cold, recovery, self._model_cache(batch)

    # --- scenes --------------------------------------------------------------------------------------------

    def _batch(self, service: Service) -> Scene:
        self.tell(f"batch: {len(self.course.batch)} pictures at once")
        starts_before = len(self._starts())
        reference = reference_ms()
        begun_ns = time.monotonic_ns()
        paths = {self._drop(name, "batch"): name for name in self.course.batch}
        service.wait_until("all of the batch", lambda: not self._missing(paths))
        wall_s = (time.monotonic_ns() - begun_ns) / 1e9
        samples = tuple(
            sample_of(paths[record["source"]], record, reference)
            for record in self.stage.records()
            if record["source"] in paths
        )
        facts = {
            "pictures": float(len(paths)),
            "held": float(len(paths) - len(samples)),
            "wall_s": round(wall_s, 3),
            "amortised_ms": round(wall_s * 1e3 / len(paths), 1),
            "model_loads": loads_counted(samples),
            "further_starts": float(len(self._starts()) - starts_before),
        }
        return self._scene("batch", samples, self._starts()[starts_before - 1 :], facts)

    def _hot_and_kills(self) -> tuple[Scene, Scene, Scene]:
        """Ask workers of fresh services, since a process keeps a speed of its own; kill the last one."""
        starts_before = len(self._starts())
        samples: list[Sample] = []
        *all_but_last, last = hot_requests(self.course)
        for requests in all_but_last:
            with self._service("hot path") as service:
                self._ask(service, requests, samples)
        with self._service("hot path") as service:
            self._ask(service, last, samples)
            starts = self._starts()[starts_before:]
            cold, recovery = self._kills(service)
        return self._scene("hot", tuple(samples), starts, {}), cold, recovery

    def _ask(self, service: Service, requests: Sequence[Request], samples: list[Sample]) -> None:
        """Ask for one picture after the other and add what came."""
        whole = self.course.workers + self.course.requests
        for request in requests:
            self.tell(f"hot path: request {len(samples) + 1} of {whole}")
            samples.append(self._request(service, request.picture, request.round_name))

    def _kills(self, service: Service) -> tuple[Scene, Scene]:
        """Kill the worker, ask at once, and ask again when a worker is back."""
        picture = self.course.hot[0]
        cold, hot, back_s = [], [], []
        starts_before = len(self._starts())
        for kill in range(self.course.kills):
            self.tell(f"the worker is killed: {kill + 1} of {self.course.kills}")
            starts = len(self._starts())
            service.wait_until("a free worker", lambda: self.stage.worker_is("ready"))
            self.stage.kill_worker()
            killed_s = time.time()
            cold.append(self._request(service, picture, f"kill{kill}", is_urgent=True))
            service.wait_until("a worker after the kill", self._has_more_starts_than(starts))
            # By its own line: the picture after the kill may have taken longer than the worker's start.
            back_s.append(datetime.fromisoformat(self._starts()[starts].ts).timestamp() - killed_s)
            hot.append(self._request(service, picture, f"back{kill}"))
        facts: dict[str, float | None] = {"kills": float(self.course.kills)}
        facts |= {f"recovery_{number}_s": round(seconds, 3) for number, seconds in enumerate(back_s, start=1)}
        starts_after = self._starts()[starts_before:]
        return (
            self._scene("cold", tuple(cold), (), {"kills": float(self.course.kills)}),
            self._scene("recovery", tuple(hot), starts_after, facts),
        )

    def _downs(self) -> tuple[Sample, ...]:
        """No service at all: `watcher once` for one picture."""
        samples = []
        for down in range(self.course.downs):
            self.tell(f"the service is down: {down + 1} of {self.course.downs}")
            samples.append(self._once(self.course.hot[0], f"down{down}"))
        return tuple(samples)

    def _model_cache(self, batch: Scene) -> Scene:
        """Read the weights from their source and from the cache folder, each for the first time and again."""
        sha256 = next((record["engine"].get("model_sha256") for record in records_of(batch)), None)
        source = self.settings.model.source_path
        if sha256 is None or source is None:
            why = "the engine has no weights" if sha256 is None else "the weights are in the cache already"
            return replace(self._scene("model_cache", (), (), {}), skipped=why)
        cache = self.stage.root / "model-cache"
        cache.mkdir()
        # Before all: a file that was written within the last seconds is not remembered as verified.
        shutil.copyfile(source, cache / f"lama-{sha256[:16]}.pt")
        from_source = self._with_model(str(source), cache)
        from_cache = self._with_model(None, cache)
        samples = []
        for round_name in MODEL_READS:
            self.tell(f"model cache: {round_name.replace('-', ', ')}")
            self._configure(from_source if round_name.startswith("source") else from_cache)
            samples.append(self._once(self.course.hot[0], round_name))
        facts: dict[str, float | None] = {"weights_bytes": float(source.stat().st_size)}
        for round_name, sample in zip(MODEL_READS, samples, strict=True):
            name = round_name.replace("-", "_")
            facts[f"{name}_read_ms"] = sample.record["segments_ms"]["model_read"]
            facts[f"{name}_load_ms"] = sample.record["segments_ms"]["model_load"]
        return self._scene("model_cache", tuple(samples), (), facts)

    # --- steps ---------------------------------------------------------------------------------------------

    def _configure(self, settings: Settings) -> None:
        text = configuration_text(settings, self.course.rounds(), self.recipes)
        self.stage.config.write_text(text, encoding="utf-8")

    @contextmanager
    def _service(self, what: str) -> Iterator[Service]:
        """A service with a worker that is ready."""
        self.tell(f"{what}: the service starts, its worker loads and warms the model")
        before = len(self.ready_lines())
        with running(self.stage, patience_s=self.patience_s) as service:
            service.wait_until("a worker that is ready", lambda: self._is_ready(before))
            yield service

    def _is_ready(self, before: int) -> bool:
        """Whether more than so many workers were ready so far.

        Raises:
            RemediableError: none ever will be.
        """
        status = self.stage.status()
        if status is not None and status.worker.state == "disabled":
            raise failure(f"no worker can start: {status.worker.trouble}", self.stage)
        return len(self.ready_lines()) > before

    def _drop(self, picture: str, round_name: str) -> str:
        return self.pictures.drop(picture, self.stage, round_name)

    def _missing(self, paths: dict[str, str]) -> set[str]:
        """Those of the pictures that are neither finished nor held."""
        finished = {record["source"] for record in self.stage.records()}
        return paths.keys() - finished - set(self.stage.held())

    def _request(self, service: Service, picture: str, round_name: str, *, is_urgent: bool = False) -> Sample:
        """Drop one picture and wait for its record; see before how fast the machine is, if there is time."""
        reference = None if is_urgent else reference_ms()
        path = self._drop(picture, round_name)
        service.wait_until(f"a record of {path}", lambda: not self._missing({path: picture}))
        return sample_of(picture, self._record_of(path), reference)

    def _record_of(self, path: str) -> Record:
        record = self.stage.record_of(path)
        if record is None:
            what = f"nothing is marked in {path.partition('/')[2]}, which was to be served again and again"
            raise RemediableError(what, "mark it, or take it out of the folder", exit_code=2)
        return record

    def _once(self, picture: str, round_name: str) -> Sample:
        path = self._drop(picture, round_name)
        reference = reference_ms()
        with running(self.stage, "once", patience_s=self.patience_s) as service:
            code = service.wait_for_end()
        if code not in _ONCE_CODES:
            raise failure(f"`watcher once` ended with code {code}", self.stage)
        return sample_of(picture, self._record_of(path), reference)

    def ready_lines(self) -> list[Record]:
        """What the resident workers said when they were ready, in order."""
        lines = self.stage.log_lines()
        return [line for line in lines if line.get("event") == "worker.ready" and line.get("path") == "hot"]

    def _starts(self) -> list[WorkerStart]:
        return [
            WorkerStart(
                ts=line["ts"],
                pid=line["pid"],
                incarnation=line["incarnation"],
                model_loads=line["model_loads"],
                segments_ms=line["segments_ms"],
            )
            for line in self.ready_lines()
        ]

    def _has_more_starts_than(self, count: int) -> Callable[[], bool]:
        return lambda: len(self._starts()) > count

    def _with_model(self, source: str | None, cache_dir: Path) -> Settings:
        model = self.settings.model.model_copy(update={"source": source, "cache_dir": cache_dir})
        return self.settings.model_copy(update={"model": model})

    def _scene(
        self,
        name: SceneName,
        samples: tuple[Sample, ...],
        starts: Sequence[WorkerStart],
        facts: dict[str, float | None],
    ) -> Scene:
        records = [sample.record for sample in samples]
        return Scene(
            name=name,
            engine=ran("engine", self.settings.engine.name, records),
            device=ran("device", self.settings.engine.device, records),
            samples=samples,
            starts=tuple(starts),
            facts=facts,
        )


def sample_of(picture: str, record: Record, reference: float | None) -> Sample:
    """One served picture, without what is private to the machine: its name, and where the program lies."""
    worker = record.get("worker")
    told = {key: value for key, value in (worker or {}).items() if key != "host"}
    public = {**record, "worker": None if worker is None else told}
    return Sample(picture=picture, record=without_paths(public), reference_ms=reference)


def without_paths(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with the place of the Python environment named as such in all its texts (reasons name it)."""
    if isinstance(value, str):
        return value.replace(sys.prefix, "ENVIRONMENT")
    if isinstance(value, dict):
        return {key: without_paths(each) for key, each in value.items()}
    return [without_paths(each) for each in value] if isinstance(value, list) else value


def records_of(scene: Scene) -> list[Record]:
    """The records of a scene, in order."""
    return [sample.record for sample in scene.samples]


def without_cold_path(settings: Settings) -> Settings:
    """What a batch is measured with: how far one loaded model goes, without a second one for a long queue."""
    return settings.model_copy(update={"cold": settings.cold.model_copy(update={"enabled": False})})


def loads_counted(samples: Sequence[Sample]) -> float | None:
    """How often the processes that served these had loaded a model, by their own counts; None if untold."""
    counts: dict[int, int] = {}
    for sample in samples:
        worker = sample.record.get("worker")
        if worker is not None and worker.get("model_loads") is not None:
            counts[worker["pid"]] = max(counts.get(worker["pid"], 0), worker["model_loads"])
    return float(sum(counts.values())) if counts else None


def ran(what: str, configured: str, records: Sequence[Record]) -> Ran:
    """What ran, as the records say: all of it, should they differ."""
    actual = sorted({record[what]["actual"] for record in records if record[what]["actual"] is not None})
    reasons = sorted({record[what]["reason"] for record in records if record[what]["reason"] is not None})
    return Ran(configured=configured, actual=", ".join(actual) or None, reason="; ".join(reasons) or None)
