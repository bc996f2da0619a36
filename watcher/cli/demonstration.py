"""`watcher demo`: the real service on real pictures, and what its own records say about it.

Rules of this file:
- Nothing is staged: the service is the one that `watcher run` starts, its recipes are those of the
  configuration that `watcher init` writes, the pictures are dropped as a person would drop them, and the
  table is read from the timing log.
- Each act waits for a fact (a record, a status), with a deadline; one that stays out fails the demo.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from watcher import settings
from watcher.adapters.resources import sample_inbox
from watcher.cli import views
from watcher.core.names import is_wanted
from watcher.core.pairing import Pairing, Recipes
from watcher.ports import RemediableError
from watcher.telemetry.status import StatusFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from watcher.core.policy import Recipe
    from watcher.telemetry.status import Status

    Record: TypeAlias = dict[str, Any]

_FIRST: Final = "coffee.jpg"
_AFTER_THE_KILL: Final = "brick.png"
LEFT_OUT: Final = frozenset({"rocket.jpg", "screenshot.png"})
"""Samples that show no other way to mark than the rest do, and take the engine longest: a demo is short."""
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.05
_EXIT_INTERNAL: Final = 70
RECIPES: Final = """
[[recipes]]
name = "strokes"
match = ["strokes/**"]
marks = ["mask", "colour"]

[[recipes]]
name = "erased"
match = ["erased/**"]
marks = ["mask", "alpha"]

[[recipes]]
name = "stamped"
match = ["stamped/**"]
marks = ["mask", "regions"]
regions = [{ box = ["70%", "90%", "30%", "10%"] }]

[[recipes]]
name = "default"
match = ["**"]
marks = ["mask", "marked_copy", "sidecar"]
"""
"""As `config/watcher.toml` has them, with its example for date stamps."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders of one demo."""

    root: Path

    @property
    def inbox(self) -> Path:
        """Where the pictures are dropped."""
        return self.root / "inbox"

    @property
    def outbox(self) -> Path:
        """Where the results appear."""
        return self.root / "outbox"

    @property
    def state_dir(self) -> Path:
        """What the service remembers."""
        return self.root / "state"

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.root / "watcher.toml"

    @property
    def log(self) -> Path:
        """The service's log."""
        return self.root / "service.log"

    def records(self) -> list[Record]:
        """The whole timing lines so far; a reader may see a line while it is being written."""
        files = sorted((self.outbox / "logs").glob("timings-*.jsonl"))
        texts = (file.read_text(encoding="utf-8").rpartition("\n")[0] for file in files)
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def record_of(self, source: str) -> Record | None:
        """The record of a picture, once it is finished."""
        return next((record for record in self.records() if record["source"] == source), None)

    def status(self) -> Status | None:
        """What the service says of itself."""
        return StatusFile(self.state_dir).read()


def run_demo(*, keep: Path | None, engine: str) -> int:
    """Run the demo and print its table.

    Args:
        keep: the folder to work in; it must be empty or absent. None: a new one among the temporary files.
        engine: `auto`, `lama` or `patchmatch`.

    Returns:
        0 if all came true.

    Raises:
        RemediableError: the folder is in use, or an act did not come true in time.
    """
    stage = Stage(_empty_folder(keep))
    write_config(stage, engine)
    samples = sample_pictures(settings.load(stage.config).policy(once=False).recipes)
    pictures = {name: files for name, files in samples.items() if name not in LEFT_OUT}
    started_ns = time.monotonic_ns()
    with _service(stage) as service:
        _play(stage, pictures, service)
        back_s = _await_recovery(stage, service)
    views.print_demo(stage.records(), _held(stage))
    views.print_lines(
        "",
        f"the resident worker was killed by us and was ready again {back_s:.1f} s after the cold result",
        f"results   {stage.outbox}",
        f"timings   {stage.outbox / 'logs'}",
        f"log       {stage.log}",
        f"took      {(time.monotonic_ns() - started_ns) / 1e9:.0f} s",
    )
    return 0


def _play(stage: Stage, pictures: dict[str, tuple[str, ...]], service: subprocess.Popen[bytes]) -> None:
    """The acts, in order."""

    def until(what: str, fact: Callable[[], bool]) -> None:
        _await(what, fact, stage, service)

    views.print_lines("starting the service, its worker loads and warms the model ...")
    until("a worker that is ready", lambda: _worker_is(stage, "ready"))
    views.print_lines(f"one picture: {_FIRST}")
    _drop(stage, _FIRST, pictures)
    until(f"the result of {_FIRST}", lambda: stage.record_of(_FIRST) is not None)
    burst = [name for name in pictures if name not in {_FIRST, _AFTER_THE_KILL}]
    views.print_lines(f"a burst of {len(burst)} pictures ...")
    for name in burst:
        _drop(stage, name, pictures)
    until("all of the burst", lambda: len(stage.records()) + len(_held(stage)) == len(burst) + 1)
    until("a free worker", lambda: _worker_is(stage, "ready"))
    views.print_lines(f"killing the worker under the service (SIGKILL), then one more: {_AFTER_THE_KILL}")
    _kill_worker(stage)
    _drop(stage, _AFTER_THE_KILL, pictures)
    until(f"the result of {_AFTER_THE_KILL}", lambda: stage.record_of(_AFTER_THE_KILL) is not None)


def _await_recovery(stage: Stage, service: subprocess.Popen[bytes]) -> float:
    begun_ns = time.monotonic_ns()
    _await("a worker that is ready again", lambda: _worker_is(stage, "ready"), stage, service)
    return (time.monotonic_ns() - begun_ns) / 1e9


def _await(what: str, fact: Callable[[], bool], stage: Stage, service: subprocess.Popen[bytes]) -> None:
    deadline_ns = time.monotonic_ns() + round(_DEADLINE_S * 1e9)
    while not fact():
        if service.poll() is not None:
            raise _failed(f"the service ended with code {service.returncode} before there was {what}", stage)
        if time.monotonic_ns() > deadline_ns:
            raise _failed(f"there was not {what} after {_DEADLINE_S:.0f} s", stage)
        time.sleep(_POLL_S)


def _failed(what: str, stage: Stage) -> RemediableError:
    remedy = f"its log says more: {stage.log}; `watcher doctor` looks at what it depends on"
    return RemediableError(f"the demo did not come true: {what}", remedy, exit_code=_EXIT_INTERNAL)


def sample_pictures(recipes: tuple[Recipe, ...]) -> dict[str, tuple[str, ...]]:
    """The sample pictures, by path, with the paths of their mark files."""
    folder = sample_inbox()
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    paths = sorted(path for path in files if is_wanted(path))
    pairing = Pairing(Recipes(recipes))
    for path in paths:
        pairing.add(path)
    return {path: tuple(pairing.mark_files_of(path)) for path in paths if pairing.is_picture(path)}


def _drop(stage: Stage, picture: str, pictures: dict[str, tuple[str, ...]]) -> None:
    """Copy a picture and its mark files into the inbox, as a person would."""
    for name in (*pictures[picture], picture):
        target = stage.inbox / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sample_inbox() / name, target)


def _held(stage: Stage) -> list[str]:
    folder = stage.outbox / "held"
    return sorted(
        note.relative_to(folder).as_posix().removesuffix(".json") for note in folder.rglob("*.json")
    )


def _worker_is(stage: Stage, state: str) -> bool:
    status = stage.status()
    return status is not None and status.state == "watching" and status.worker.state == state


def _kill_worker(stage: Stage) -> None:
    status = stage.status()
    if status is None or status.worker.pid is None:
        raise _failed("there is no worker to kill", stage)
    os.kill(status.worker.pid, signal.SIGKILL)


def write_config(stage: Stage, engine: str) -> None:
    """Make the folders of a demo and its configuration."""
    for folder in (stage.inbox, stage.outbox):
        folder.mkdir(parents=True)
    text = "\n".join(
        (
            f"inbox = {json.dumps(str(stage.inbox))}",
            f"outbox = {json.dumps(str(stage.outbox))}",
            f"state_dir = {json.dumps(str(stage.state_dir))}",
            "[engine]",
            f"name = {json.dumps(engine)}",
            RECIPES,
        )
    )
    stage.config.write_text(text, encoding="utf-8")


def _empty_folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="watcher-demo-"))
    folder = Path(os.path.abspath(keep))  # noqa: PTH100 - Path.absolute leaves `..` in
    if folder.exists() and any(folder.iterdir()):
        raise RemediableError(f"the folder is not empty: {folder}", "name another one", exit_code=2)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _service(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """The service, ended politely at the end."""
    arguments = [sys.executable, "-P", "-m", "watcher", "run", "--config", str(stage.config)]
    with stage.log.open("wb") as log:
        service = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield service
        service.terminate()
        if service.wait(30) != 0:
            raise _failed(f"the service ended with code {service.returncode}", stage)
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()
