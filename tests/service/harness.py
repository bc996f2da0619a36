"""The whole service in a scratch folder: a real process, real files, a real journal, and how it must end.

Rules of this file:
- Nothing sleeps for a fixed time: `wait_until` polls with a deadline, and a deadline that passes tells what
  the service last said.
- `Service.put` knows which results it asked for, so `assert_sound` can hold the outbox, the timing log and
  the journal against them after any sequence of kills.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from PIL import Image

from watcher.adapters.journal import open_readonly
from watcher.core.job import FINAL_STATES
from watcher.telemetry.events import EVENTS
from watcher.worker.faults import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from watcher.core.job import Job, JobState

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 40.0
"""For what takes a second on an idle machine; the machines of tests are not idle."""
RESULTS: Final = frozenset({"done", "unchanged"})
RESERVED: Final = ("logs", "failed", "held")

Record: TypeAlias = dict[str, Any]


def wait_until(condition: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Poll until the condition gives something true, and return that."""
    deadline = time.monotonic() + patience_s
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(0.01)
    return answer


# --- pictures ----------------------------------------------------------------------------------------------


def pixels(seed: int, width: int = 96, height: int = 64) -> NDArray[np.uint8]:
    """A small picture with gradients and grain; each seed gives other pixels."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 2, y * 3, (x + y) % 97], axis=-1) + random.normal(40, 8, (height, width, 3))
    return np.clip(base, 0, 255).astype(np.uint8)


def encoded(array: NDArray[np.uint8], container: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, container, **options)
    return buffer.getvalue()


def picture(seed: int, width: int = 96, height: int = 64) -> bytes:
    """The bytes of a PNG."""
    return encoded(pixels(seed, width, height))


def mask(width: int = 96, height: int = 64, box: tuple[int, int, int, int] = (40, 24, 48, 32)) -> bytes:
    """The bytes of a mask with one white rectangle (left, top, right, bottom)."""
    array = np.zeros((height, width), np.uint8)
    left, top, right, bottom = box
    array[top:bottom, left:right] = 255
    return encoded(array)


def sha256(data: bytes | Path) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.read_bytes()).hexdigest()


def source_of(record: Record, key: str = "source") -> str:
    """The path in a record, whatever bytes it has."""
    raw = record.get(f"{key}_b64")
    return os.fsdecode(base64.b64decode(raw)) if raw else record[key]


def _is_documented(line: Record) -> bool:
    spec = EVENTS.get(line["event"])
    if spec is None or line["level"] not in {spec.level, *spec.also}:
        return False
    return set(line) <= {"ts", "level", "event", "exception", *spec.fields}


# --- the service -------------------------------------------------------------------------------------------


@dataclass
class Service:
    """One scratch inbox, outbox and state folder, and the service that works on them.

    Attributes:
        root: gets all folders.
        settings: lines of the configuration, beyond the folders.
        faults: for the workers, see `watcher.worker.faults`; counts from the next `start` on.
        wrapper: a program that becomes the service, with its arguments, put before the service's own.
    """

    root: Path
    settings: Sequence[str] = ()
    faults: str = ""
    wrapper: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    expected: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(source, sha256 of the picture, sha256 of the mask) of each result that is to come."""
    canaries: int = 0

    def __post_init__(self) -> None:
        for folder in (self.inbox, self.outbox, self.root / "aside"):
            folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            "\n".join(
                [
                    f'inbox = "{self.inbox}"',
                    f'outbox = "{self.outbox}"',
                    f'state_dir = "{self.state}"',
                    *(line.replace("{root}", str(self.root)) for line in self.settings),
                    *(() if any("[engine]" in line for line in self.settings) else ENGINE),
                ]
            ),
            encoding="utf-8",
        )

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def config(self) -> Path:
        return self.root / "watcher.toml"

    @property
    def log_file(self) -> Path:
        return self.root / "service.log"

    # --- its life ---

    def start(self, *, ready: bool = True) -> Service:
        """Start `watcher run`; with `ready`, wait until it watches and its worker is warm."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, *self.command("run")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.root,
            )
        if ready:
            self.wait_ready()
        return self

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "watcher", name, "--config", str(self.config), *arguments]

    def environment(self) -> dict[str, str]:
        """The tests' own, without anything that would configure the service or its workers."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("WATCHER_", "XDG_")) and key != "LAMA_MODEL"
        }
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.root),
            "WATCHER_MODEL__CACHE_DIR": str(self.root / "models"),
            "WATCHER_LOG__FORMAT": "json",
            VARIABLE: self.faults,
        }

    def run(self, name: str, *arguments: str, patience_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run another command to its end."""
        return subprocess.run(
            self.command(name, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
            env=self.environment(),
            cwd=self.root,
        )

    @property
    def pid(self) -> int:
        assert self.process is not None, "the service was not started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_ready(self) -> None:
        """Wait until it watches, with a warm worker that serves nothing."""
        self._wait(lambda: self.is_healthy, "a service that watches and a worker that is ready")

    @property
    def is_healthy(self) -> bool:
        status = self.status()
        return status.get("state") == "watching" and status["worker"]["state"] in {"ready", "busy"}

    def status(self) -> Record:
        """`status.json` of the process that runs now; empty before it has written one."""
        try:
            status: Record = json.loads((self.state / "status.json").read_bytes())
        except (FileNotFoundError, PermissionError):
            return {}
        return status if self.process is not None and status["pid"] == self.process.pid else {}

    def worker_pid(self) -> int:
        """The pid of the worker that is ready now."""
        pid = self._wait(lambda: self.is_healthy and self.status()["worker"]["pid"], "a ready worker")
        assert isinstance(pid, int)
        return pid

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def terminate(self, *, patience_s: float = PATIENCE_S) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(patience_s)

    def close(self) -> None:
        """End it by all means."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    # --- what goes in ---

    def put(
        self,
        name: str,
        data: bytes | None = None,
        marked: bytes | None = None,
        *,
        expect: bool = True,
        first: str = "mask",
    ) -> str:
        """Put a picture and its mask there, each whole at once; returns the sha256 of the picture.

        Args:
            name: in the inbox.
            data: a picture of its own for each name where None.
            marked: its mask; a small one where None, none where empty.
            expect: one result is to come of it.
            first: `mask` or `picture`.
        """
        data = picture(seed_of(name)) if data is None else data
        marked = mask() if marked is None else marked
        files = [(f"{name}.mask.png", marked)] if marked else []
        files.insert(len(files) if first == "mask" else 0, (name, data))
        for path, content in files:
            self.place(path, content)
        if expect:
            self.expect(name, data, marked)
        return sha256(data)

    def expect(self, name: str, data: bytes, marked: bytes | None = None) -> None:
        """One more result is to come of these bytes at this path."""
        self.expected.append((name, sha256(data), sha256(marked) if marked else None))

    def place(self, path: str, content: bytes) -> Path:
        """Give a file its name in the inbox with all its bytes, as sync clients do."""
        aside = self.root / "aside" / "file"
        aside.write_bytes(content)
        target = self.inbox / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return aside.replace(target)

    # --- what comes out ---

    def records(self) -> list[Record]:
        """The lines of the timing log, oldest first; a torn last line is not one."""
        found = []
        for file in sorted((self.outbox / "logs").glob("timings-*.jsonl")):
            lines = file.read_bytes().split(b"\n")
            found += [json.loads(line) for line in lines[:-1]]
        return found

    def records_of(self, name: str, *, outcome: Collection[str] = RESULTS) -> list[Record]:
        return [
            record
            for record in self.records()
            if source_of(record) == name and (not outcome or record["outcome"] in outcome)
        ]

    def wait_records(self, count: int, *, patience_s: float = PATIENCE_S) -> list[Record]:
        """Wait until the timing log has this many results."""
        self._wait(lambda: len(self.results()) >= count, f"{count} results", patience_s=patience_s)
        return self.results()

    def wait_record(
        self, name: str, *, count: int = 1, outcome: Collection[str] = RESULTS, patience_s: float = PATIENCE_S
    ) -> Record:
        """Wait until the timing log has this many such lines of a picture; returns the last."""
        found = self._wait(
            lambda: len(lines := self.records_of(name, outcome=outcome)) >= count and lines,
            f"{count} x {sorted(outcome)} of {name!r}",
            patience_s=patience_s,
        )
        last: Record = found[-1]
        return last

    def results(self) -> list[Record]:
        return [record for record in self.records() if record["outcome"] in RESULTS]

    def output_of(self, record: Record) -> Path:
        return self.outbox / source_of(record, "output")

    def outputs(self) -> set[str]:
        """Every file of the outbox outside the reserved folders, whatever it is."""
        return {
            path
            for path in relative_files(self.outbox)
            if path.split("/", 1)[0] not in RESERVED or path.startswith(".")
        }

    def note(self, kind: str, name: str) -> Record | None:
        try:
            note: Record = json.loads((self.outbox / kind / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        return note

    def wait_note(self, kind: str, name: str) -> Record:
        note: Record = self._wait(lambda: self.note(kind, name), f"a note {kind}/{name}.json")
        return note

    def wait_no_note(self, kind: str, name: str) -> None:
        self._wait(lambda: self.note(kind, name) is None, f"{kind}/{name}.json to go")

    def jobs(self, *, states: Collection[JobState] = ()) -> tuple[Job, ...]:
        with open_readonly(self.state / "journal.sqlite3") as journal:
            return journal.jobs(states=states)

    def log(self, event: str = "", **fields: Any) -> list[Record]:
        """Lines of the service's own log with this event and these fields."""
        found = []
        for line in self.log_file.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError):
                entry = json.loads(line)
                if event in {"", entry["event"]} and all(entry.get(k) == v for k, v in fields.items()):
                    found.append(entry)
        return found

    def undocumented_lines(self) -> list[Record]:
        """Lines of the log whose name, level or fields are not those of the table of events."""
        return [line for line in self.log() if not _is_documented(line)]

    def wait_log(self, event: str, *, count: int = 1, **fields: Any) -> list[Record]:
        found: list[Record] = self._wait(
            lambda: len(lines := self.log(event, **fields)) >= count and lines, f"{count} x {event} {fields}"
        )
        return found

    def wait_state(self, state: JobState | str, *, count: int = 1) -> tuple[Job, ...]:
        """Wait until the journal has this many jobs in a state."""
        found: tuple[Job, ...] = self._wait(
            lambda: len(jobs := tuple(job for job in self.jobs() if job.state == state)) >= count and jobs,
            f"{count} x {state}",
        )
        return found

    def children(self) -> set[int]:
        """The processes that the service has started and that run now."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii")
        return {int(pid) for pid in found.split() if is_alive(int(pid))}

    def _wait(self, condition: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
        def alive_and() -> Any:
            if self.process is not None and self.process.poll() not in {None, -signal.SIGKILL}:
                answer = condition()
                assert answer, f"the service ended with {self.process.returncode} while {what} was awaited"
                return answer
            return condition()

        try:
            return wait_until(alive_and, what, patience_s=patience_s)
        except AssertionError as error:
            error.add_note(self._last_words())
            raise

    def _last_words(self) -> str:
        log = self.log_file.read_text("utf-8", "replace").splitlines()[-25:]
        return "\n".join([f"status: {self.status()}", f"outbox: {sorted(self.outputs())}", *log])

    # --- how every test ends ---

    def assert_sound(self) -> None:
        """The four assertions of every arrival case: once each, final bytes, no litter, in good health."""
        self._canary()
        self._wait(self._is_at_rest, "the service to come to rest")
        records = self.records()
        assert self.undocumented_lines() == [], "docs/EVENTS.md says nothing of these"
        self._assert_once_each(records)
        self._assert_no_litter(records)
        for record in records:
            assert_adds_up(record)

    def _canary(self) -> None:
        """It is running and healthy: it says so, and it serves a picture."""
        assert self.is_running
        self._wait(lambda: self.is_healthy, "a healthy service")
        self.canaries += 1
        name = f"canary-{self.canaries}.png"
        self.put(name)
        self.wait_record(name)

    def _is_at_rest(self) -> bool:
        if any(self.status()["counts"].get(state) for state in ("ready", "running", "publishing")):
            return False
        return {record["job"] for record in self.records()} == {
            job.id for job in self.jobs(states=FINAL_STATES)
        }

    def _assert_once_each(self, records: Sequence[Record]) -> None:
        assert len({record["job"] for record in records}) == len(records), "a job has two lines"
        results = [record for record in records if record["outcome"] in RESULTS]
        wanted = sorted((name, digest) for name, digest, _ in self.expected)
        assert sorted((source_of(r), r["image"]["sha256_in"]) for r in results) == wanted
        jobs = {job.id: job for job in self.jobs()}
        for record in results:
            job = jobs[record["job"]]
            assert job.state == record["outcome"]
            identity = job.identity
            assert (source_of(record), identity.picture_sha256, identity.mask_sha256) in self.expected
            assert sha256(self.output_of(record)) == record["image"]["sha256_out"]

    def _assert_no_litter(self, records: Iterable[Record]) -> None:
        outputs = [source_of(record, "output") for record in records if record["outcome"] in RESULTS]
        assert len(set(outputs)) == len(outputs), "two jobs have one output"
        assert self.outputs() == set(outputs)
        logs = [path.name for path in (self.outbox / "logs").iterdir()]
        assert all(name.startswith("timings-") and name.endswith(".jsonl") for name in logs), logs
        assert all(path.endswith(".json") for kind in ("failed", "held") for path in self.notes(kind))
        assert relative_files(self.state / "staging") == set()

    def notes(self, kind: str) -> set[str]:
        return relative_files(self.outbox / kind)


ENGINE: Final = ("[engine]", 'name = "patchmatch"')


def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:4])


def relative_files(folder: Path) -> set[str]:
    """Whatever is below a folder and is no folder itself."""
    return {
        os.path.relpath(os.path.join(where, name), folder)  # noqa: PTH118 - names may not be UTF-8
        for where, _, names in os.walk(folder)
        for name in names
    }


def assert_adds_up(record: Mapping[str, Any]) -> None:
    """Segments + unattributed = total to 1 ms, and little of it is unattributed, or claimed twice."""
    segments, total_ms = record["segments_ms"], record["total_ms"]
    assert abs(sum(segments.values()) - total_ms) <= 1.0, record
    assert abs(segments["unattributed"]) < 0.05 * total_ms + 2.0, record
    assert all(value >= 0 for name, value in segments.items() if name != "unattributed"), record


# --- other processes ---------------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def memory_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(f"process {pid} has no memory")


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
