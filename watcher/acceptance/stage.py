"""A stage for the real service: folders of its own, the process, and what can be seen of it from outside.

Rules of this module:
- Nothing is staged but the folders: the service is the one that `watcher run` starts, and what it did is read
  where a user would read it (timing log, status, notes, its own log).
- Each wait is for a fact, with a deadline; a service that ends meanwhile ends the wait.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from watcher.adapters.timing_log import records_in
from watcher.core.names import is_wanted
from watcher.core.pairing import Pairing, Recipes
from watcher.ports import RemediableError
from watcher.settings import CONFIG_VARIABLE, ENV_PREFIX, WEIGHTS_VARIABLE, Settings
from watcher.telemetry.status import StatusFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from watcher.core.policy import Recipe
    from watcher.telemetry.status import Status

    Record: TypeAlias = dict[str, Any]

POLL_S: Final = 0.02
EXIT_INTERNAL: Final = 70
_END_S: Final = 60.0
"""To end politely: a batch that is being worked on is finished first."""


class _Read(NamedTuple):
    """What was read of a folder or a file, and how large its files were then."""

    sizes: tuple[tuple[str, int], ...]
    objects: list[Record]


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders of one run."""

    root: Path
    _read: dict[Path, _Read] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    def make_folders(self) -> None:
        """Make the inbox and the outbox."""
        for folder in (self.inbox, self.outbox):
            folder.mkdir(parents=True)

    def records(self) -> list[Record]:
        """The whole timing lines so far."""
        folder = self.outbox / "logs"
        return self._read_if_grown(folder, folder.glob("*.jsonl"), lambda: list(records_in(folder)))

    def log_lines(self) -> list[Record]:
        """The whole lines of the service's log so far that are JSON."""
        return self._read_if_grown(self.log, (self.log,), lambda: whole_lines(self.log))

    def _read_if_grown(
        self, what: Path, files: Iterable[Path], read: Callable[[], list[Record]]
    ) -> list[Record]:
        """Read again only what has grown: who waits by polling must not slow down what is measured."""
        sizes = tuple(sorted((file.name, file.stat().st_size) for file in files if file.exists()))
        known = self._read.get(what)
        if known is None or known.sizes != sizes:
            known = self._read[what] = _Read(sizes, read())
        return known.objects

    def record_of(self, source: str) -> Record | None:
        """The record of a picture, once it is finished."""
        return next((record for record in self.records() if record["source"] == source), None)

    def held(self) -> list[str]:
        """Pictures that wait for a mark, as the notes say."""
        folder = self.outbox / "held"
        notes = (note.relative_to(folder).as_posix() for note in folder.rglob("*.json"))
        return sorted(note.removesuffix(".json") for note in notes)

    def status(self) -> Status | None:
        """What the service says of itself."""
        return StatusFile(self.state_dir).read()

    def worker_is(self, state: str) -> bool:
        """Whether the service watches, and its resident worker is in that state."""
        status = self.status()
        return status is not None and status.state == "watching" and status.worker.state == state

    def kill_worker(self) -> None:
        """Kill the resident worker, as nothing that it could answer.

        Raises:
            RemediableError: there is none.
        """
        status = self.status()
        if status is None or status.worker.pid is None:
            raise failure("there is no worker to kill", self)
        os.kill(status.worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def empty_folder(wanted: Path | None, prefix: str) -> Path:
    """Return a folder to work in: the one that is wanted, or a new one among the temporary files.

    Raises:
        RemediableError: the wanted one is in use.
    """
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    folder = Path(os.path.abspath(wanted))  # noqa: PTH100 - Path.absolute leaves `..` in
    if folder.exists() and any(folder.iterdir()):
        raise RemediableError(f"the folder is not empty: {folder}", "name another one", exit_code=2)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def whole_lines(file: Path) -> list[Record]:
    """Return the JSON objects of a log; a line that is being written, or is none of ours, is left out."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def marked_pictures(folder: Path, recipes: tuple[Recipe, ...]) -> dict[str, tuple[str, ...]]:
    """The pictures of a folder, by path in it, with the paths of their mark files. Links are not followed."""
    files = (
        os.path.relpath(os.path.join(top, name), folder).replace(os.sep, "/")  # noqa: PTH118 - surrogates
        for top, _, names in os.walk(folder)
        for name in names
    )
    paths = sorted(path for path in files if is_wanted(path) and not (folder / path).is_symlink())
    pairing = Pairing(Recipes(recipes))
    for path in paths:
        pairing.add(path)
    return {path: tuple(pairing.mark_files_of(path)) for path in paths if pairing.is_picture(path)}


@dataclass(frozen=True, slots=True)
class Service:
    """A process of `watcher run`, or `watcher once`, on a stage."""

    stage: Stage
    process: subprocess.Popen[bytes]
    patience_s: float

    def wait_until(self, what: str, fact: Callable[[], bool]) -> None:
        """Wait for a fact.

        Raises:
            RemediableError: the service ended, or the time is up.
        """
        deadline_ns = time.monotonic_ns() + round(self.patience_s * 1e9)
        while not fact():
            code = self.process.poll()
            if code is not None:
                if fact():  # it came with the end
                    return
                raise failure(f"the service ended with code {code} before there was {what}", self.stage)
            if time.monotonic_ns() > deadline_ns:
                raise failure(f"there was not {what} after {self.patience_s:.0f} s", self.stage)
            time.sleep(POLL_S)

    def wait_for_end(self) -> int:
        """Wait until it has ended; return its exit code.

        Raises:
            RemediableError: the time is up.
        """
        try:
            return self.process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            what = f"`watcher once` was not done after {self.patience_s:.0f} s"
            raise failure(what, self.stage) from None


@contextmanager
def running(stage: Stage, command: str = "run", *, patience_s: float) -> Iterator[Service]:
    """Start a command of the program on a stage; end it, politely if all went well.

    Args:
        stage: with its configuration.
        command: `run` or `once`.
        patience_s: how long any wait may be.

    Raises:
        RemediableError: it did not end well.
    """
    arguments = [sys.executable, "-P", "-m", "watcher", command, "--config", str(stage.config)]
    with _ended_by_signals():
        with stage.log.open("ab") as log:
            process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        try:
            yield Service(stage, process, patience_s)
            if command == "run":
                process.terminate()
                if process.wait(_END_S) != 0:
                    raise failure(f"the service ended with code {process.returncode}", stage)
        finally:
            _end(process)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Within the block, a signal that asks us to end unwinds us, so that nothing that we started stays."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs; its workers end with it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Ours, without the variables that would overrule the stage's configuration, which has what they say."""
    overruling = tuple(f"{ENV_PREFIX}{key}".upper() for key in Settings.model_fields)
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {CONFIG_VARIABLE, WEIGHTS_VARIABLE}
        and not _is_or_begins_with(name.upper(), overruling)
    }


def _is_or_begins_with(name: str, keys: tuple[str, ...]) -> bool:
    return any(name == key or name.startswith(f"{key}__") for key in keys)


def failure(what: str, stage: Stage) -> RemediableError:
    """The error of a run that did not come true."""
    remedy = f"its log says more: {stage.log}; `watcher doctor` looks at what it depends on"
    return RemediableError(f"it did not come true: {what}", remedy, exit_code=EXIT_INTERNAL)
