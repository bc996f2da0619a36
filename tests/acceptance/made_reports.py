"""Acceptance reports with times that are made up: noise as it was measured, and effects that are planted.

The noise: every time is its usual one, times what the machine did in that run, times the speed that the
process keeps for all of its life, times what happened to that sample. That has a lognormal body and a tail of
interruptions, as records of two busy cores have.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from watcher.acceptance.report import Acceptance, Claim, Environment, Ran, Sample, Scene, WorkerStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from watcher.acceptance.report import SceneName

PICTURES: Final = ("coffee.jpg", "brick.png", "grass.png", "astronaut.jpg")
USUAL_MS: Final = {
    "settle": 0.7, "identify": 0.4, "pair": 1.0, "ipc": 3.0, "batch_wait": 0.5, "read": 1.3, "decode": 8.0,
    "mask": 4.0, "preprocess": 3.6, "inference": 500.0, "composite": 8.5, "encode": 45.0, "publish": 5.0,
}  # fmt: skip
"""A picture's chain on the hot path, patchmatch."""
START_MS: Final = {"process_start": 35.0, "import": 480.0, "device_probe": 0.0, "warmup": 40.0}
SAMPLE_SPREAD: Final = {
    "settle": 0.44,
    "identify": 0.27,
    "pair": 0.54,
    "ipc": 0.5,
    "batch_wait": 0.42,
    "publish": 0.42,
}
"""Standard deviations of one sample's logarithm; of others 0.2."""
RUN_SPREAD: Final = {"settle": 0.13, "identify": 0.1, "pair": 0.13, "publish": 0.13}
"""Of one run's, beside the machine's; of others 0.025."""
WORKER_SPREAD: Final = {"decode": 0.09, "mask": 0.06, "preprocess": 0.15, "inference": 0.04, "encode": 0.06}
"""Of one process's; of others 0.08."""
WORKERS: Final = 8
ENVIRONMENT: Final = Environment(
    watcher="0.1.0",
    python="3.11.9",
    system="Linux 6.1",
    processor="x86_64",
    cpu_count=2,
    memory_bytes=8 << 30,
    load_average=1.5,
    packages={"numpy": "2.4.6", "pillow": "12.3.0"},
    devices_available=("cpu",),
)
EVIDENCE: Final[dict[str, Any]] = {
    "parameters": None,
    "output": "cpu",
    "kernel_time_share": {"cpu": 1.0},
    "fallback_ops": [],
}


def record(
    segments_ms: Mapping[str, float], *, picture: str = "coffee.jpg", path: str = "hot", **more: Any
) -> dict[str, Any]:
    """A record with what the reports look at."""
    total_ms = math.fsum(segments_ms.values())
    return {
        "schema": 1,
        "event": "job.finished",
        "source": picture,
        "outcome": "done",
        "path": path,
        "path_reason": "ready" if path == "hot" else "crashed",
        "worker": {"pid": 100, "incarnation": 1},
        "first_hot": False,
        "engine": {"configured": "auto", "actual": "patchmatch", "reason": None},
        "device": {"configured": "auto", "available": ["cpu"], "actual": "cpu", "evidence": EVIDENCE},
        "image": {"format": "JPEG", "width": 600, "height": 400},
        "segments_ms": {**segments_ms, "unattributed": 0.0},
        "total_ms": total_ms,
        **more,
    }


def samples(  # noqa: PLR0913 - each is a choice of a test
    chance: random.Random,
    count: int,
    *,
    machine: float = 1.0,
    factors: Mapping[str, float] | None = None,
    usual_ms: Mapping[str, float] = USUAL_MS,
    pictures: Sequence[str] = PICTURES,
    path: str = "hot",
    workers: int = WORKERS,
) -> tuple[Sample, ...]:
    """One run's samples.

    Args:
        chance: where the noise comes from.
        count: how many.
        machine: how many times as long all work takes in this run.
        factors: how many times as long a segment takes in this build.
        usual_ms: what its segments take.
        pictures: served in turn.
        path: hot or cold; on the cold path each sample has a process of its own.
        workers: that serve equal shares, one after the other.
    """
    workers = count if path == "cold" else min(count, workers)
    processes = [
        {name: math.exp(chance.gauss(0, WORKER_SPREAD.get(name, 0.08))) for name in usual_ms}
        for _ in range(workers)
    ]
    run = {name: math.exp(chance.gauss(0, RUN_SPREAD.get(name, 0.025))) for name in usual_ms}
    made = []
    for number in range(count):
        picture = pictures[number % len(pictures)]
        size = 1 + pictures.index(picture) / 2
        worker = number * workers // count
        now = machine * math.exp(chance.gauss(0, 0.1))
        interrupted = 1 + (chance.random() < 0.1) * chance.expovariate(2)
        segments = {
            name: ms * size * now * interrupted
            * run[name] * processes[worker][name] * (factors or {}).get(name, 1.0)
            * math.exp(chance.gauss(0, SAMPLE_SPREAD.get(name, 0.2)))
            for name, ms in usual_ms.items()
        }  # fmt: skip
        reference_ms = 8 * machine * math.exp(chance.gauss(0, 0.1))
        made.append(
            Sample(
                picture=picture,
                record=record(segments, picture=picture, path=path, worker={"pid": 100 + worker}),
                reference_ms=reference_ms,
            )
        )
    return tuple(made)


def scene(name: SceneName, served: Sequence[Sample], **more: Any) -> Scene:
    """A scene on the CPU with patchmatch."""
    facts: dict[str, Any] = {
        "engine": Ran(configured="auto", actual="patchmatch"),
        "device": Ran(configured="auto", actual="cpu"),
        **more,
    }
    return Scene(name=name, samples=tuple(served), **facts)


def start(incarnation: int, **segments_ms: float) -> WorkerStart:
    """A worker that became ready."""
    chain = {**START_MS, **{name.rstrip("_"): ms for name, ms in segments_ms.items()}}
    return WorkerStart(
        ts="2026-12-01T10:00:00.000Z",
        pid=1000 + incarnation,
        incarnation=incarnation,
        model_loads=1,
        segments_ms=chain,
    )


def report(*scenes: Scene, claims: Sequence[Claim] = (), **more: Any) -> Acceptance:
    """A report of these scenes."""
    facts: dict[str, Any] = {
        "ts": "2026-12-01T10:00:00.000Z",
        "took_s": 61.25,
        "pictures": "samples",
        "environment": ENVIRONMENT,
        **more,
    }
    return Acceptance(scenes=scenes, claims=tuple(claims), **facts)


def run(
    seed: int,
    *,
    requests: int = 40,
    workers: int = WORKERS,
    cold: int = 6,
    hot_factors: Mapping[str, float] | None = None,
    cold_factors: Mapping[str, float] | None = None,
    machine: float | None = None,
    **more: Any,
) -> Acceptance:
    """A whole run on a machine that is not equally fast every time, with effects that are planted."""
    chance = random.Random(seed)
    speed = math.exp(chance.gauss(0, 0.12)) if machine is None else machine
    cold_ms = {**USUAL_MS, **{name: ms for name, ms in START_MS.items() if ms}}
    return report(
        scene("batch", samples(chance, 8, machine=speed, factors=hot_factors, workers=1)),
        scene("hot", samples(chance, requests, machine=speed, factors=hot_factors, workers=workers)),
        scene(
            "cold",
            samples(
                chance,
                cold,
                machine=speed,
                factors=cold_factors,
                usual_ms=cold_ms,
                pictures=("coffee.jpg",),
                path="cold",
            ),
        ),
        **more,
    )


def changed(what: Acceptance, **environment: Any) -> Acceptance:
    """The same report from another environment."""
    return msgspec.structs.replace(what, environment=msgspec.structs.replace(what.environment, **environment))
