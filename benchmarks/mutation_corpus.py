"""Feeds damaged and forged pictures to the real service: does each get one answer, and does anything suffer?

A real `watcher run` with the PatchMatch engine first gets one whole picture of every kind that is served (the
rows of `tests/worker/rows.py`, with all metadata), which must all come back. Then, for some minutes, it gets
what `tests/worker/mutations.py` makes of them: bits flipped, numbers and lengths forged, parts repeated,
removed and exchanged, files cut with and without an end, spliced, overwritten, appended to. All is drawn by a
seed, so that a run can be had again. What is wrong, and makes the exit status 1:

- the service ends, or is another process than before;
- a picture has no outcome in time, or two of them;
- a picture counts as done, and what came of it cannot be read by libvips, which reads its source; or it has
  another size, or other pixels outside the mark though the record says that they are identical;
- a picture killed or hung a worker (the service lives, and its next worker serves the others; yet it is a
  fault in a decoder that somebody can use);
- memory grows: of the service, or of the worker, from the second quarter of the run to the last.

A picture without an end is waited for (a minute), so the end of a run takes that much longer. What was wrong,
and the slowest pictures, are kept in the folder that `--keep` names.

    python benchmarks/mutation_corpus.py --minutes 10 --seed 1 --keep /var/tmp/mutants
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyvips
from PIL import Image

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.service.harness import Service, mask, memory_mb, source_of  # noqa: E402 - found beside this file
from tests.worker.mutations import SUFFIXES, Mutant, hole, mutants, seeds  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

IN_FLIGHT: Final = 48
"""So many pictures are in line at a time, besides those that are waited for because they have no end."""
PATIENCE_S: Final = 60.0
YOUNG_S: Final = 60.0
"""So long the service waits for the end of a picture that has none."""
GROWN: Final = 1.25
GROWN_MB: Final = 30.0
"""Memory that counts as growing: both, as a share and in all."""
WORK: Final = ("read", "decode", "mask", "preprocess", "inference", "composite", "encode")
SETTLED: Final = frozenset({"done", "unchanged", "failed", "quarantined"})
QUARTERS: Final = (0.0, 0.25, 0.5, 0.75)
HEVC: Final = frozenset({b"ftypheic", b"ftypheix", b"ftypmif1"})
SLOWEST: Final = 5
GROW_PX: Final = 5
"""The mark grows by 4 pixels; one more for those that share a block or a sample with it."""


# --- what came of a picture --------------------------------------------------------------------------------


def judge(source: bytes, result: bytes, *, claims_identical: bool) -> str:
    """Hold a result against its source with a reader of its own; returns what is wrong, or nothing.

    Args:
        source: the damaged file.
        result: what came of it.
        claims_identical: the record says that no pixel outside the mark differs.
    """
    before, after = _read(source, "error"), _read(result, "error")
    if isinstance(after, str):
        nobody_reads_either = isinstance(before, str) and not _pillow_reads(source)
        return "" if nobody_reads_either or _pillow_reads(result) else f"the result cannot be read: {after}"
    if isinstance(before, str):
        return ""
    if before.shape[:2] != after.shape[:2]:
        return f"{before.shape[:2]} pixels became {after.shape[:2]}"
    if not claims_identical or before.shape != after.shape or isinstance(_read(source, "warning"), str):
        return ""
    kept = np.ones(before.shape[:2], np.bool_)
    left, top, right, bottom = hole(before.shape[1::-1])
    kept[top - GROW_PX : bottom + GROW_PX, left - GROW_PX : right + GROW_PX] = False
    unlike = np.count_nonzero((before != after).any(axis=-1) & kept)
    return f"{unlike} pixels outside the mark differ in what is said to be identical" if unlike else ""


def _read(data: bytes, fail_on: str) -> NDArray[Any] | str:
    """The pixels (height, width, bands) as they are stored, or why there are none."""
    if data[4:12] in HEVC:  # libvips comes without a decoder for it
        return _read_hevc(data)
    try:
        image = pyvips.Image.new_from_buffer(data, "", access="random", fail_on=fail_on)
        return np.asarray(image.numpy()).reshape(image.height, image.width, image.bands)
    except pyvips.Error as error:
        return " ".join(str(error).split()) or "unreadable"


def _read_hevc(data: bytes) -> NDArray[Any] | str:
    try:
        image = importlib.import_module("pillow_heif").open_heif(io.BytesIO(data), convert_hdr_to_8bit=False)
        return np.atleast_3d(np.asarray(image))
    except Exception as error:  # noqa: BLE001 - whatever it says, it does not read it
        return f"{type(error).__name__}: {error}"


def _pillow_reads(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception:  # noqa: BLE001 - whatever it says, it does not read it
        return False
    return True


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_say_nothing)


def _say_nothing() -> None:
    """Libraries complain of each damaged file; what counts is what they return."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@dataclass
class Judges:
    """Another process that reads results: what kills it kills no more than that."""

    pool: ProcessPoolExecutor = field(default_factory=_pool)

    def ask(self, source: bytes, result: bytes, *, claims_identical: bool) -> Future[str]:
        """Have `judge` answer, some time."""
        return self.pool.submit(judge, source, result, claims_identical=claims_identical)

    def answer(self, asked: Future[str]) -> str:
        """What it says; waits for that."""
        try:
            return asked.result(PATIENCE_S)
        except BrokenProcessPool:
            self.pool = _pool()
            return "the reader of results died of it, or of one beside it"


# --- the run -----------------------------------------------------------------------------------------------


@dataclass
class Dropped:
    """A picture in the inbox.

    Attributes:
        mutant: what it is.
        at_s: when it was dropped.
        waits: the service has found that it has no end.
    """

    mutant: Mutant
    at_s: float
    waits: bool = False


@dataclass
class Findings:
    """What a run has shown.

    Attributes:
        outcomes: how often each container came out how.
        by_mutator: the same by what was done to it.
        wrong: what makes the run a failure, in words.
        slowest: seconds of work, and what took them.
        memory: seconds since the start, MB of the service, MB of the worker or nothing.
        workers: pids of resident workers that were seen.
        losses: pictures that a worker died with.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_mutator: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    memory: list[tuple[float, float, float | None]] = field(default_factory=list)
    workers: set[int] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)


class Corpus:
    """One run over one service.

    Args:
        service: started.
        keep: a folder for what was wrong or slow, or None.
    """

    def __init__(self, service: Service, keep: Path | None) -> None:
        self._service = service
        self._keep = keep
        self._pid = service.pid
        self._judges = Judges()
        self._asked: list[tuple[Future[str], Dropped, str]] = []
        self._open: dict[str, Dropped] = {}
        self._over: dict[str, str] = {}
        self._read_bytes: Counter[str] = Counter()
        self._seen: set[bytes] = set()
        self._number = 0
        self._began_s = time.monotonic()
        self._sampled_s = 0.0
        self.findings = Findings()

    def run(self, source: Iterator[Mutant], until_s: float) -> None:
        """Drop pictures until that instant, and wait for the outcomes of all."""
        while time.monotonic() < until_s and self._is_alive():
            in_line = sum(not dropped.waits for dropped in self._open.values())
            for _ in range(IN_FLIGHT - in_line):
                mutant = next(source, None)
                if mutant is None:
                    until_s = 0.0
                    break
                self._drop(mutant)
            self._look()
        while self._open and self._is_alive():
            self._look()
        self._judged(wait=True)

    def _is_alive(self) -> bool:
        if self._service.is_running and self._service.pid == self._pid:
            return True
        self._tell("the service has ended", None)
        return False

    def _drop(self, mutant: Mutant) -> None:
        digest = hashlib.sha256(mutant.data).digest()
        if digest in self._seen:  # the same bytes are the same job, and have their outcome
            return
        self._seen.add(digest)
        name = f"{self._number // 500:03}/{self._number:06}.{SUFFIXES[mutant.seed.container]}"
        self._number += 1
        self._service.put(name, mutant.data, mask(*mutant.seed.size, hole(mutant.seed.size)), expect=False)
        self._open[name] = Dropped(mutant, time.monotonic())

    def _look(self) -> None:
        time.sleep(0.05)
        for line in self._new_lines(self._service.log_file):
            if line.get("event") == "file.incomplete" and line["source"] in self._open:
                self._open[line["source"]].waits = True
        for log in sorted((self._service.outbox / "logs").glob("timings-*.jsonl")):
            for record in self._new_lines(log):
                self._recorded(record)
        self._judged(wait=False)
        self._sample()
        for name, dropped in list(self._open.items()):
            patience_s = PATIENCE_S + (YOUNG_S if dropped.waits else 0.0)
            if time.monotonic() - dropped.at_s > patience_s:
                self._tell(f"no outcome after {patience_s:.0f} s", self._open.pop(name))

    def _new_lines(self, file: Path) -> Iterator[dict[str, Any]]:
        """What was appended since the last look, as JSON; a line that is none is told."""
        with file.open("rb") as stream:
            stream.seek(self._read_bytes[str(file)])
            whole, _, _ = stream.read().rpartition(b"\n")
        self._read_bytes[str(file)] += len(whole) + bool(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                self._tell(f"a line of {file.name} is no JSON: {line[:200]!r}", None)

    def _recorded(self, record: Mapping[str, Any]) -> None:
        name, outcome = source_of(dict(record)), str(record["outcome"])
        dropped = self._open.pop(name, None)
        if dropped is None:
            self._tell(f"{name} was {self._over.get(name, 'never dropped')}, and is {outcome} besides", None)
            return
        self._over[name] = outcome
        self._count(dropped, outcome, record)
        work_s = sum(record["segments_ms"][phase] for phase in WORK) / 1000
        self._slow(work_s, dropped)
        if record["losses"]:
            causes = ", ".join(f"{loss['cause']} {loss.get('signal') or ''}" for loss in record["losses"])
            self.findings.losses.append(f"{dropped.mutant} ({causes})")
            if any(loss["serving"] for loss in record["losses"]):
                self._tell(f"a worker died with it: {causes}", dropped)
        if outcome == "done":
            result = self._service.output_of(dict(record)).read_bytes()
            identical = record["image"]["outside"] == "identical"
            asked = self._judges.ask(dropped.mutant.data, result, claims_identical=identical)
            self._asked.append((asked, dropped, name))
        elif outcome == "unchanged":
            if self._service.output_of(dict(record)).read_bytes() != dropped.mutant.data:
                self._tell("unchanged, and yet other bytes", dropped)
        elif outcome not in SETTLED:
            self._tell(f"came out as {outcome}", dropped)
        if outcome != "done":
            self._clear(name)

    def _count(self, dropped: Dropped, outcome: str, record: Mapping[str, Any]) -> None:
        told = outcome if outcome != "failed" else "waited for" if dropped.waits else "refused"
        self.findings.outcomes[dropped.mutant.seed.container, told] += 1
        for mutator in dropped.mutant.mutators or ("whole",):
            self.findings.by_mutator[mutator, told] += 1
        if not dropped.mutant.mutators and outcome != "done":
            self._tell(f"a whole picture was {outcome}: {record['reason']}", dropped)
        if outcome == "failed" and not (record["reason"] and record["remedy"]):
            self._tell("refused without a reason or a remedy", dropped)
        if "unexpected error" in str(record["reason"]):
            self._tell(str(record["reason"]), dropped)

    def _judged(self, *, wait: bool) -> None:
        left = []
        for asked, dropped, name in self._asked:
            if not (wait or asked.done()):
                left.append((asked, dropped, name))
                continue
            verdict = self._judges.answer(asked)
            if verdict:
                self._tell(verdict, dropped)
            self._clear(name)
        self._asked = left

    def _clear(self, name: str) -> None:
        """Nobody needs the files any more."""
        for path in (
            self._service.inbox / name,
            self._service.inbox / f"{name}.mask.png",
            self._service.outbox / name,
        ):
            path.unlink(missing_ok=True)

    def _sample(self) -> None:
        if time.monotonic() - self._sampled_s < 1.0:
            return
        self._sampled_s = time.monotonic()
        worker = self._service.status().get("worker", {}).get("pid")
        worker_mb = None
        if worker is not None:
            self.findings.workers.add(worker)
            try:
                worker_mb = memory_mb(worker)
            except (OSError, AssertionError):  # it has just ended
                worker_mb = None
        self.findings.memory.append((self._sampled_s - self._began_s, memory_mb(self._pid), worker_mb))

    def _slow(self, work_s: float, dropped: Dropped) -> None:
        slowest = self.findings.slowest
        slowest.append((work_s, str(dropped.mutant)))
        slowest.sort(reverse=True)
        if len(slowest) > SLOWEST:
            slowest.pop()
        if slowest[0] == (work_s, str(dropped.mutant)):
            self._keep_file("slowest", dropped)

    def _tell(self, what: str, dropped: Dropped | None) -> None:
        place = self._keep_file(f"wrong-{len(self.findings.wrong):03}", dropped)
        self.findings.wrong.append(f"{dropped.mutant}: {what}{place}" if dropped else what)

    def _keep_file(self, stem: str, dropped: Dropped | None) -> str:
        if self._keep is None or dropped is None:
            return ""
        self._keep.mkdir(parents=True, exist_ok=True)
        file = self._keep / f"{stem}.{SUFFIXES[dropped.mutant.seed.container]}"
        file.write_bytes(dropped.mutant.data)
        return f" ({file.name})"


# --- what is printed ---------------------------------------------------------------------------------------


def growth(memory: Sequence[tuple[float, float, float | None]]) -> list[str]:
    """Lines that tell of memory; those that begin with an exclamation mark tell of growth."""
    end_s = memory[-1][0] if memory else 0.0
    lines = []
    for place, name in ((1, "service"), (2, "worker")):
        samples = [(sample[0] / end_s, used) for sample in memory if (used := sample[place]) is not None]
        second = [used for share, used in samples if QUARTERS[1] <= share < QUARTERS[2]]
        last = [used for share, used in samples if share >= QUARTERS[3]]
        if not second or not last:
            continue
        before, after = statistics.median(second), statistics.median(last)
        grows = after > GROWN * before and after > before + GROWN_MB
        peak = max(used for _, used in samples)
        told = (
            f"{before:.1f} MB in the second quarter, {after:.1f} MB in the last, ratio {after / before:.2f}"
        )
        lines += [
            f"{'! ' if grows else ''}{name}: {told}, peak {peak:.1f} MB",
            f"  by tenths: {' '.join(_tenths(samples))}",
        ]
    return lines


def _tenths(samples: Sequence[tuple[float, float]]) -> Iterator[str]:
    for tenth in range(10):
        used = [mb for share, mb in samples if tenth <= 10 * share < tenth + 1]
        yield f"{statistics.median(used):.0f}" if used else "-"


def table(title: str, counted: Counter[tuple[str, str]]) -> str:
    """Rows by name, columns by outcome."""
    rows, columns = (sorted({key[place] for key in counted}) for place in (0, 1))
    lines = [f"{title:18}" + "".join(f"{column:>12}" for column in [*columns, "all"])]
    for row in rows:
        cells = [counted[row, column] for column in columns]
        lines.append(f"{row:18}" + "".join(f"{cell:12}" for cell in [*cells, sum(cells)]))
    return "\n".join(lines)


def report(findings: Findings, seconds: float) -> tuple[str, bool]:
    """All that was found, and whether it is well."""
    pictures = sum(findings.outcomes.values())
    grown = growth(findings.memory)
    slowest = "\n".join(f"  {work_s:6.2f} s  {what}" for work_s, what in findings.slowest)
    wrong = [*findings.wrong, *(line for line in grown if line.startswith("!"))]
    head = (
        f"{pictures} pictures in {seconds:.0f} s, {len(findings.workers)} resident workers, "
        f"{len(findings.losses)} pictures that were with a worker when it died"
    )
    parts = [
        head,
        table("container", findings.outcomes),
        table("mutator", findings.by_mutator),
        f"most work:\n{slowest}",
        "\n".join(grown),
        "\n".join(["wrong:", *(f"  {line}" for line in wrong)]) if wrong else "nothing is wrong",
    ]
    return "\n\n".join(parts), not wrong


def run(service: Service, number: int, minutes: float, keep: Path | None) -> tuple[str, bool]:
    """Run a fresh service through it all; returns what is to be printed, and whether it is well."""
    whole = seeds()
    service.start()
    corpus = Corpus(service, keep)
    began_s = time.monotonic()
    corpus.run((Mutant(seed, (), seed.data) for seed in whole), began_s + PATIENCE_S)
    corpus.run(mutants(whole, number), began_s + minutes * 60)
    if service.is_running and service.terminate() != 0:
        corpus.findings.wrong.append(
            f"the service ended with {service.process and service.process.returncode}"
        )
    return report(corpus.findings, time.monotonic() - began_s)


def main() -> None:
    """Print tables; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000, help="of all that is drawn")
    parser.add_argument(
        "--keep", type=Path, help="a folder for pictures that were wrong or slow, and the log"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`: no service is left behind
    print(f"seed {chosen.seed}, load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder).resolve() / "service", ("[arrivals]", "quiet_s = 0.1"))
        try:
            text, is_well = run(service, chosen.seed, chosen.minutes, chosen.keep)
        finally:
            service.close()
            if chosen.keep is not None:
                chosen.keep.mkdir(parents=True, exist_ok=True)
                (chosen.keep / "service.log").write_bytes(service.log_file.read_bytes())
    print(text)
    if not is_well:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
