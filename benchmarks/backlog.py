"""Measures a service before a full inbox: how soon results flow, how soon an arrival, and what it weighs.

Three inboxes of N tiny pictures, each before a service that starts: `new` ones, none of them served yet;
`held` ones, that wait for their masks since an earlier life; `done` ones, served in an earlier life and kept.
What an earlier life left is written into the journal as the service would have. The new pictures ask for no
model (`unmarked = "copy"`), so that the service itself is what is measured.

    python benchmarks/backlog.py --files 100000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from watcher.adapters.journal import SqliteJournal  # noqa: E402 - found beside this file
from watcher.core.commands import FinishJob, SaveFile, SaveJob  # noqa: E402 - as above
from watcher.core.events import SavedFile  # noqa: E402 - as above
from watcher.core.job import Fingerprint, Identity, Job, JobState  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 300.0
A_FOLDER: Final = 1000
INBOXES: Final = ("new", "held", "done")


def tiny_picture(number: int) -> bytes:
    """A PNG of 4 x 4 px of one colour; each number gives another."""
    return png([number] * 16)


def png(colours: list[int]) -> bytes:
    """A PNG of 4 x 4 px, 0xRRGGBB each, row by row."""
    packed = [struct.pack(">I", colour)[1:] for colour in colours]
    rows = b"".join(b"\0" + b"".join(packed[start : start + 4]) for start in range(0, 16, 4))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def fill(inbox: Path, count: int) -> dict[str, bytes]:
    """Write the pictures; returns them by their path in the inbox."""
    pictures = {}
    for number in range(count):
        folder = f"{number // A_FOLDER:03d}"
        if number % A_FOLDER == 0:
            (inbox / folder).mkdir(parents=True)
        path = f"{folder}/IMG_{number:06d}.png"
        pictures[path] = tiny_picture(number)
        (inbox / path).write_bytes(pictures[path])
    return pictures


def remember(state: Path, inbox: Path, pictures: dict[str, bytes], kind: str) -> None:
    """Write into the journal what an earlier life knew of the pictures."""
    with SqliteJournal(state / "journal.sqlite3") as journal:
        writes: list[Any] = []
        for number, (path, data) in enumerate(pictures.items(), 1):
            stat = (inbox / path).stat()
            fingerprint = Fingerprint(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            digest = hashlib.sha256(data).hexdigest()
            job = Job(
                id=f"{digest[:8]}-{number}",
                source=path,
                fingerprint=fingerprint,
                identity=Identity(digest, None, "default"),
                state=JobState.HELD if kind == "held" else JobState.DONE,
                created_s=time.time(),
                attempts=1,
                output=None if kind == "held" else path,
                sha256_out=None if kind == "held" else digest,
                reason="nothing is marked in it" if kind == "held" else None,
            )
            writes += [SaveFile(SavedFile(path, fingerprint, digest))]
            writes += [SaveJob(job) if kind == "held" else FinishJob(job)]
        journal.commit(writes)
        journal.mark_logged([write.job.id for write in writes if isinstance(write, FinishJob)])


class Service:
    """The service on the folders below one."""

    def __init__(self, folder: Path, kind: str) -> None:
        """Write the configuration; start nothing."""
        self.folder = folder
        for name in ("inbox", "outbox"):
            (folder / name).mkdir()
        unmarked = "copy" if kind == "new" else "hold"
        (folder / "watcher.toml").write_text(
            f'inbox = "{folder}/inbox"\noutbox = "{folder}/outbox"\nstate_dir = "{folder}/state"\n'
            f'unmarked = "{unmarked}"\n[engine]\nname = "patchmatch"\n',
            encoding="utf-8",
        )

    def start(self) -> None:
        """Start it."""
        with (self.folder / "service.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "watcher", "run", "--config", str(self.folder / "watcher.toml")],
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "WATCHER_LOG__FORMAT": "json"},
            )

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def wait(self, what: str, is_there: Callable[[], bool]) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: it never did.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not is_there():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError(f"waited in vain for {what}")
            time.sleep(0.02)

    @property
    def status(self) -> dict[str, Any]:
        """`status.json`, empty before it is there."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "state" / "status.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found if found.get("pid") == self._process.pid else {}

    def is_result_of(self, name: str) -> bool:
        """A picture with this name came out."""
        return any((self.folder / "outbox").rglob(name))

    @property
    def has_results(self) -> bool:
        """Something came out."""
        return any((self.folder / "outbox").rglob("IMG_*.png"))

    @property
    def peak_mb(self) -> float:
        """The most memory that the service itself has had, in MB."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise ProcessLookupError(self._process.pid)


def drop(service: Service, name: str) -> None:
    """Put a new picture there, with a mask of one pixel, each whole at once."""
    aside = service.folder / "aside"
    for path, data in ((f"{name}.mask.png", png([0xFFFFFF] + [0] * 15)), (name, tiny_picture(0xABCDEF))):
        aside.write_bytes(data)
        aside.replace(service.folder / "inbox" / path)


def measure(folder: Path, kind: str, count: int) -> dict[str, float]:
    """Start a service before such an inbox; returns seconds and MB."""
    service = Service(folder, kind)
    pictures = fill(folder / "inbox", count)
    if kind != "new":
        remember(folder / "state", folder / "inbox", pictures, kind)
    time.sleep(2)  # older than the quiet period, as what lies in an inbox is
    started = time.monotonic()
    service.start()
    try:
        service.wait("the first listing", lambda: service.status.get("state") == "watching")
        found = {"start to watching, s": time.monotonic() - started}
        if kind == "new":
            service.wait("the first result", lambda: service.has_results)
            found["start to first result, s"] = time.monotonic() - started
        service.wait("a worker", lambda: service.status["worker"]["state"] in {"ready", "busy"})
        dropped = time.monotonic()
        drop(service, "fresh.png")
        service.wait("the new arrival", lambda: service.is_result_of("fresh.png"))
        found["new arrival to result, s"] = time.monotonic() - dropped
        waiting = service.status["counts"]
        found["still waiting then"] = float(waiting.get("arriving", 0) + waiting.get("held", 0))
        found["peak memory, MB"] = service.peak_mb
    finally:
        service.stop()
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="A service before a full inbox.")
    parser.add_argument("--files", type=int, default=100_000, help="pictures in the inbox (default 100000)")
    parser.add_argument("--inboxes", nargs="+", choices=INBOXES, default=INBOXES, help="which to measure")
    chosen = parser.parse_args()
    for kind in chosen.inboxes:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), kind, chosen.files)
        print(f"{chosen.files} {kind}")
        for name, value in found.items():
            print(f"  {name:28}{value:12.2f}", flush=True)


if __name__ == "__main__":
    main()
