"""The acceptance report: what was measured, scene by scene, as `acceptance.json` holds it.

Rules of this module:
- Measured values and the records that they were taken from; whatever can be worked out of them (medians,
  ratios that are shown, the waterfall) is worked out where it is shown, so that the two cannot disagree.
- *Configured* is what the configuration said, *actual* what the records and the worker's own start say ran.
- No path outside the run's own folders, and no name of the machine or of a person, stands in a report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from watcher.ports import RemediableError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = 1
FILE_NAME: Final = "acceptance.json"

SceneName = Literal["batch", "hot", "cold", "recovery", "model_cache"]
"""In the order in which they are played."""
Record = dict[str, Any]
"""One finished job, as docs/RECORDS.md has it."""
SERVED: Final = frozenset({"done", "unchanged"})
"""Outcomes of pictures that came out."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """An engine or a device: what was asked for, and what ran.

    Attributes:
        configured: as the configuration said.
        actual: as the evidence says; None where nothing ran.
        reason: why they differ, or None.
    """

    configured: str
    actual: str | None
    reason: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The device probe and what else is a fact about the machine; no claim about speed follows from it.

    Attributes:
        packages: version by distribution name, of what the worker computes with.
        devices_available: by canonical name (`cpu`, `cuda:0`, `mps`).
        load_average: of one minute, before the run, or None where the system has none.
    """

    watcher: str
    python: str
    system: str
    processor: str
    cpu_count: int
    memory_bytes: int | None
    load_average: float | None
    packages: dict[str, str]
    devices_available: tuple[str, ...]


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a resident worker, from its own `worker.ready` line.

    Attributes:
        model_loads: as the worker itself counted them.
        segments_ms: `process_start` to `warmup`.
    """

    ts: str
    pid: int
    incarnation: int
    model_loads: int
    segments_ms: dict[str, float]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One served picture.

    Attributes:
        picture: which one; the same name in two reports is the same content.
        record: its record.
        reference_ms: what a fixed piece of work on one core took, in the accepting process, just before: how
            fast the machine was then. None where that was not taken.
    """

    picture: str
    record: Record
    reference_ms: float | None = None


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What was done in one scene, and what came of it.

    Attributes:
        samples: the served pictures, in order.
        starts: workers that became ready in it.
        facts: further measured values; a name ends in its unit (`_ms`, `_s`, `_bytes`) or is a count.
        skipped: why it was not played, or None.
    """

    name: SceneName
    engine: Ran
    device: Ran
    samples: tuple[Sample, ...] = ()
    starts: tuple[WorkerStart, ...] = ()
    facts: dict[str, float | None] = {}
    skipped: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a report states.

    Attributes:
        name: short and stable, in snake_case.
        statement: in plain words, with its numbers.
        holds: None where it could not be told (a scene was skipped).
        measured: the value that decides.
        limit: it is to be at most this; None where there is none.
        segment: of the time chain, that the claim rests on, or None.
    """

    name: str
    statement: str
    holds: bool | None
    measured: float | None = None
    limit: float | None = None
    segment: str | None = None


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """One acceptance run."""

    ts: str
    took_s: float
    pictures: Literal["samples", "own"]
    environment: Environment
    scenes: tuple[Scene, ...]
    claims: tuple[Claim, ...]
    schema: int = SCHEMA

    def scene(self, name: SceneName) -> Scene | None:
        """Return a scene by its name."""
        return next((scene for scene in self.scenes if scene.name == name), None)


class ReportError(RemediableError):
    """A file is no acceptance report."""


def encode(report: Acceptance) -> bytes:
    """Return the bytes of `acceptance.json`."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def read(path: Path) -> Acceptance:
    """Read an `acceptance.json`.

    Raises:
        ReportError: it cannot be read, or is no report that this version understands.
    """
    remedy = "name an acceptance.json that `watcher accept` has written, or its folder"
    file = path / FILE_NAME if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror}", remedy, exit_code=2) from error
    try:
        report = msgspec.json.decode(data, type=Acceptance)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{file} is no acceptance report: {error}", remedy, exit_code=2) from error
    if report.schema != SCHEMA:
        what = f"{file} has schema {report.schema}, and this version understands {SCHEMA}"
        raise ReportError(what, "compare reports of one version of watcher", exit_code=2)
    return report
