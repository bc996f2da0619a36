"""Reports on the terminal: tables and colours for people, JSON for programs.

Rules of this file: the only one that imports the terminal library. Text from outside (names of files) goes
through `printable` and is never read as markup.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from watcher.adapters.json_text import for_people
from watcher.core.job import JobState
from watcher.core.timeline import START_SEGMENTS
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from watcher.acceptance.comparison import Comparison, Difference, Part
    from watcher.acceptance.report import Acceptance
    from watcher.cli.reports import Report

_PIPE_WIDTH: Final = 1000
_MANY_TIMES: Final = 10.0
_DEMO_SEGMENTS: Final = ("queue", "start", "batch_wait", "decode", "inference", "encode", "publish")
_STYLES: Final[Mapping[str, str]] = {
    "done": "green",
    "unchanged": "green",
    "ok": "green",
    "held": "yellow",
    "warning": "yellow",
    "failed": "red",
    "quarantined": "red",
    "problem": "red",
    "faster": "green",
    "slower": "red",
    "cannot tell": "yellow",
}


def print_json(report: Report) -> None:
    """One JSON document on stdout."""
    print(for_people(report).decode(), end="")  # noqa: T201 - the terminal is the place for it


def print_status(report: Report) -> None:
    """Whether it runs, with what, and the jobs."""
    console = _console()
    facts = _grid()
    running = f"running (pid {report['pid']}), {report['state']}" if report["running"] else "not running"
    facts.add_row("service", _text(running, "green" if report["running"] else "yellow"))
    for trouble in _troubles(report):
        facts.add_row("", _text(trouble, "red"))
    if worker := report["worker"]:
        pid = f", pid {worker['pid']}" if worker["pid"] else ""
        facts.add_row("worker", _text(f"{worker['state']}{pid}, restarts {worker['restarts']}"))
        if worker["trouble"]:
            facts.add_row("", _text(worker["trouble"], "red"))
    if report["path"]:
        reason = f" ({report['path_reason']})" if report["path_reason"] else ""
        facts.add_row("path", _text(f"{report['path']}{reason}"))
    if report["blocked"]:
        facts.add_row("outbox", _text(f"takes no results: {report['blocked']}; they wait", "red"))
    facts.add_row("engine", _columns(report["engine"]))
    facts.add_row("device", _columns(report["device"]))
    counts = ", ".join(f"{count} {state}" for state, count in report["jobs"].items())
    facts.add_row("jobs", _text(counts or "none yet"))
    if report["requests_waiting"]:
        facts.add_row("requests", _text(f"{report['requests_waiting']} wait for the service"))
    for name in ("inbox", "outbox", "state_dir", "config"):
        facts.add_row(name, _text(report[name] or "none"))
    console.print(facts)
    if report["last"]:
        console.print(_job_table(report["last"]))
    if not report["running"] and not report["problems"]:
        console.print("Start it with `watcher run`.", markup=False, highlight=False)


def _troubles(report: Report) -> Iterator[str]:
    """Why the service does nothing, as far as that can be told from outside."""
    if report["silent_s"]:
        yield (
            f"silent for {report['silent_s']:.0f} s: what stands here may be out of date. If the disk of "
            f"{report['state_dir']} is full, free some space: it goes on by itself. The log says more"
        )
    for problem in report["problems"]:
        yield f"cannot start: {problem['what']}; to do: {problem['remedy']}"


def print_jobs(report: Report) -> None:
    """A table of jobs."""
    console = _console()
    if not report["jobs"]:
        console.print("no jobs", highlight=False)
        return
    console.print(_job_table(report["jobs"]))
    if report["found"] > len(report["jobs"]):
        console.print(
            f"the newest {len(report['jobs'])} of {report['found']}; --limit shows more", highlight=False
        )


def print_once(report: Report) -> None:
    """What was done, picture by picture, and the sum."""
    console = _console()
    if report["jobs"]:
        console.print(_job_table(report["jobs"]))
        states = (state.value for state in JobState)
        console.print(_text(", ".join(f"{report[state]} {state}" for state in states if report.get(state))))
    elif not report["trouble"]:
        console.print("nothing new", highlight=False)
    if report["failed_before"]:
        failed = (
            f"failed before, and not tried again: {report['failed_before']} (`watcher jobs --state failed`)"
        )
        console.print(_text(failed, "yellow"))
    for path, reason in report["unreadable"].items():
        console.print(_text(f"cannot be read: {path}: {reason}", "red"))


def print_retry(report: Report) -> None:
    """What was asked for, and who will do it."""
    console = _console()
    if not report["requested"]:
        console.print("nothing to retry: no job failed, none is quarantined", highlight=False)
        return
    for job in report["requested"]:
        console.print(_text(f"{job['id']}  {job['source']}  (was {job['state']})"))
    taker = (
        f"the running service (pid {report['pid']}) takes them up"
        if report["running"]
        else "no service is running: they are taken up by the next `watcher run` or `watcher once`"
    )
    console.print(_text(taker))


def print_doctor(report: Report) -> None:
    """Facts by topic, and what to do about those that are wrong."""
    console = _console()
    table = Table("topic", "fact", "level", Column("value", overflow="fold"), box=None, show_header=False)
    topic = None
    for fact in report["facts"]:
        table.add_row(
            _text("" if fact["topic"] == topic else fact["topic"], "bold"),
            _text(fact["name"]),
            _text(fact["level"], _STYLES[fact["level"]]),
            _text(fact["value"] + (f" -> {fact['remedy']}" if fact["remedy"] else "")),
        )
        topic = fact["topic"]
    console.print(table)
    wrong = report["problems"]
    console.print(_text(f"problems: {wrong}" if wrong else "no problems", "red" if wrong else "green"))


def print_preview(report: Report) -> None:
    """What is marked in a picture, and what the model would see of it."""
    console = _console()
    facts = _grid()
    facts.add_row(
        "picture", _text(f"{report['source']} ({report['format']}, {report['width']}x{report['height']})")
    )
    facts.add_row("recipe", _text(report["recipe"]))
    if report["marks"] is None:
        facts.add_row("marked by", _text("nothing", "yellow"))
    else:
        beside = f": {report['mark_file']}" if report["mark_file"] else ""
        facts.add_row("marked by", _text(f"{report['marks']}{beside}"))
    if report["hole_px"]:
        share = report["hole_px"] / (report["width"] * report["height"])
        grown = f"{report['mark_px']} px grown by {report['grow_px']} px"
        facts.add_row("would go", _text(f"{report['hole_px']} px, {share:.1%} of the picture: {grown}"))
    for crop in report["crops"]:
        scale = "" if crop["scale"] == 1 else f", seen at {crop['scale']:.0%} of its size"
        place = f"{crop['width']}x{crop['height']} at {crop['left']},{crop['top']}{scale}"
        facts.add_row("model sees", _text(place))
    for note in report["notes"]:
        facts.add_row("note", _text(note, "yellow"))
    if report["remedy"]:
        facts.add_row("to mark it", _text(report["remedy"]))
    if report["output"]:
        facts.add_row("written", _text(report["output"]))
    console.print(facts)


def print_acceptance(report: Acceptance, files: Sequence[Path]) -> None:
    """What was claimed, whether it holds, and where the whole report is."""
    console = _console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "holds", "measured"):
        table.add_column(heading, overflow="fold")
    for claim in report.claims:
        word = {True: "yes", False: "no", None: "not told"}[claim.holds]
        style = {True: "green", False: "red", None: "yellow"}[claim.holds]
        table.add_row(claim.name, _text(word, style), _text(claim.statement))
    console.print(table)
    for file in files:
        console.print(_text(f"written  {file}"))


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr that changes; yields what to call with its text."""
    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(_text(text))


def print_comparison(comparison: Comparison) -> None:
    """What differs, what came of it, and the numbers behind that."""
    console = _console()
    console.print(_text(f"A: {comparison.a}, B: {comparison.b}; changes are B against A"))
    for change in comparison.changed:
        console.print(_text(f"not the same in both: {change}", "yellow"))
    for statement in comparison.statements:
        console.print(_text(statement, "bold"))
    for part in comparison.parts:
        console.print()
        console.print(_text(f"{part.name}: {part.samples_a} samples in A, {part.samples_b} in B", "bold"))
        if part.left_out:
            console.print(_text(f"only in one of them, left out: {', '.join(part.left_out)}", "yellow"))
        console.print(_difference_table(part))
    console.print()
    console.print(
        _text("change: without the machine's part; seen from: a smaller one would not have been noticed")
    )


def _difference_table(part: Part) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("segment")
    for heading in ("A ms", "B ms", "as measured", "change", "interval", "seen from"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    rows = part.differences if part.total is None else (*part.differences, part.total)
    for each in rows:
        table.add_row(
            _text(each.segment),
            _text(f"{each.a_ms:.2f}"),
            _text(f"{each.b_ms:.2f}"),
            _text(_change(each.change_as_measured)),
            _text(_change(each.change)),
            _text(_interval(each)),
            _text(_change(each.seen_from)),
            _text(each.verdict or "", _STYLES.get(each.verdict or "", "")),
        )
    return table


def _interval(difference: Difference) -> str:
    return f"{_change(difference.low)} .. {_change(difference.high)}"


def _change(part: float) -> str:
    """A part as percent; beyond ten times as long the number would only say how little is known."""
    return f"{part:+.0%}" if part < _MANY_TIMES else "any"


def print_lines(*lines: str) -> None:
    """Plain lines on stdout, at once."""
    console = _console()
    for line in lines:
        console.print(_text(line))


def print_demo(records: Sequence[Report], held: Sequence[str]) -> None:
    """Each picture's way through the service, as its timing line tells it.

    Args:
        records: timing lines.
        held: pictures that wait for a mask.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("picture", "marked by", "path", "why", "engine", "device"):
        table.add_column(heading, overflow="fold")
    for heading in (*_DEMO_SEGMENTS, "total ms"):
        table.add_column(heading, justify="right")
    for record in records:
        segments = record["segments_ms"]
        start_ms = sum(segments[name] for name in START_SEGMENTS)
        shown = {**segments, "start": start_ms}
        table.add_row(
            _text(record["source"]),
            _text(record["marks"] or ""),
            _text(record["path"], "cyan" if record["path"] == "cold" else ""),
            _text(record["path_reason"] or ""),
            _text(_both(record["engine"])),
            _text(_both(record["device"])),
            *(_text(f"{shown[name]:.0f}") for name in _DEMO_SEGMENTS),
            _text(f"{record['total_ms']:.0f}"),
        )
    for source in held:
        table.add_row(_text(source), _text("nothing"), _text("held", "yellow"), _text("waits for a mark"))
    console = _console()
    console.print()
    console.print(table)
    console.print(_text("engine and device: configured / actual; start = a cold process from exec to warm"))
    console.print(_text("segments in ms; the rest of a total is read, mask, preprocess, composite and IPC"))


def _both(facts: Mapping[str, Any]) -> str:
    return f"{facts['configured']} / {facts['actual']}"


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int], None]]:
    """A bar on stderr; yields what to call with a picture's name and the number that still wait."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("looking", total=None)
        done = 0

        def advance(name: str, waiting: int) -> None:
            nonlocal done
            done += 1
            shown = Text(printable(name)).markup
            progress.update(task, completed=done, total=done + waiting, description=shown)

        yield advance


def _console() -> Console:
    """Stdout; as wide as it needs to be where no terminal sets the width."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _job_table(jobs: list[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("job", "state", "picture", "result", "path", "engine", "device", "ms"):
        table.add_column(heading, justify="right" if heading == "ms" else "left", overflow="fold")
    for job in jobs:
        table.add_row(
            _text(job["id"]),
            _text(job["state"], _STYLES.get(job["state"], "")),
            _text(job["source"]),
            _text(job["output"] or job["reason"] or ""),
            _text(job["path"] or ""),
            _text(job["engine"] or ""),
            _text(job["device"] or ""),
            _text("" if job["total_ms"] is None else f"{job['total_ms']:.0f}"),
        )
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    return grid


def _columns(facts: Mapping[str, Any]) -> Text:
    actual = facts["actual"] or "not known while no worker runs"
    reason = f" ({facts['reason']})" if facts["reason"] else ""
    return _text(f"configured {facts['configured']}, actual {actual}{reason}")


def _text(value: str, style: str = "") -> Text:
    return Text(printable(value), style=style)
