"""`watcher demo`: the real service on real pictures, and what its own records say about it.

Rules of this file:
- Nothing is staged: the service is the one that `watcher run` starts, its recipes are those of the
  configuration that `watcher init` writes, the pictures are dropped as a person would drop them, and the
  table is read from the timing log.
- Each act waits for a fact (a record, a status), with a deadline; one that stays out fails the demo.
"""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Final

from watcher import settings
from watcher.acceptance.stage import Stage, empty_folder, marked_pictures, running
from watcher.adapters.resources import sample_inbox
from watcher.cli import views

if TYPE_CHECKING:
    from pathlib import Path

    from watcher.acceptance.stage import Service

_FIRST: Final = "coffee.jpg"
_AFTER_THE_KILL: Final = "brick.png"
LEFT_OUT: Final = frozenset({"rocket.jpg", "screenshot.png"})
"""Samples that show no other way to mark than the rest do, and take the engine longest: a demo is short."""
_PATIENCE_S: Final = 120.0
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
    stage = Stage(empty_folder(keep, "watcher-demo-"))
    write_config(stage, engine)
    samples = marked_pictures(sample_inbox(), settings.load(stage.config).policy(once=False).recipes)
    pictures = {name: files for name, files in samples.items() if name not in LEFT_OUT}
    started_ns = time.monotonic_ns()
    with running(stage, patience_s=_PATIENCE_S) as service:
        _play(stage, pictures, service)
        back_s = _await_recovery(stage, service)
    views.print_demo(stage.records(), stage.held())
    views.print_lines(
        "",
        f"the resident worker was killed by us and was ready again {back_s:.1f} s after the cold result",
        f"results   {stage.outbox}",
        f"timings   {stage.outbox / 'logs'}",
        f"log       {stage.log}",
        f"took      {(time.monotonic_ns() - started_ns) / 1e9:.0f} s",
    )
    return 0


def _play(stage: Stage, pictures: dict[str, tuple[str, ...]], service: Service) -> None:
    """The acts, in order."""
    until = service.wait_until
    views.print_lines("starting the service, its worker loads and warms the model ...")
    until("a worker that is ready", lambda: stage.worker_is("ready"))
    views.print_lines(f"one picture: {_FIRST}")
    _drop(stage, _FIRST, pictures)
    until(f"the result of {_FIRST}", lambda: stage.record_of(_FIRST) is not None)
    burst = [name for name in pictures if name not in {_FIRST, _AFTER_THE_KILL}]
    views.print_lines(f"a burst of {len(burst)} pictures ...")
    for name in burst:
        _drop(stage, name, pictures)
    until("all of the burst", lambda: len(stage.records()) + len(stage.held()) == len(burst) + 1)
    until("a free worker", lambda: stage.worker_is("ready"))
    views.print_lines(f"killing the worker under the service (SIGKILL), then one more: {_AFTER_THE_KILL}")
    stage.kill_worker()
    _drop(stage, _AFTER_THE_KILL, pictures)
    until(f"the result of {_AFTER_THE_KILL}", lambda: stage.record_of(_AFTER_THE_KILL) is not None)


def _await_recovery(stage: Stage, service: Service) -> float:
    begun_ns = time.monotonic_ns()
    service.wait_until("a worker that is ready again", lambda: stage.worker_is("ready"))
    return (time.monotonic_ns() - begun_ns) / 1e9


def _drop(stage: Stage, picture: str, pictures: dict[str, tuple[str, ...]]) -> None:
    """Copy a picture and its mark files into the inbox, as a person would."""
    for name in (*pictures[picture], picture):
        target = stage.inbox / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sample_inbox() / name, target)


def write_config(stage: Stage, engine: str) -> None:
    """Make the folders of a demo and its configuration."""
    stage.make_folders()
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
