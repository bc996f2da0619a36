"""`watcher trace` of a real service, opened by Perfetto's own parser, against what the timing log says."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.service.harness import Service, is_alive, wait_until
from tests.telemetry.perfetto_parser import needs_perfetto, parsed
from watcher.core.timeline import SEGMENTS, START_SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess

    from tests.service.harness import Record

BURST: Final = ("burst/1.png", "burst/2.png", "burst/3.png", "burst/4.png")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has served hot and cold, one and several at a time, and has refused; it runs."""
    service = Service(tmp_path_factory.mktemp("traced"), ("[arrivals]", "quiet_s = 0.2")).start()
    try:
        service.put("one.png")
        service.wait_record("one.png")
        service.put(
            "<b>\u00e9\u202e\n.png", b"no picture at all, but long enough to be looked at", expect=False
        )
        service.wait_record("<b>\u00e9\u202e\n.png", outcome=("failed",))
        for name in BURST:
            service.put(name)
        service.wait_records(1 + len(BURST))
        pid = service.worker_pid()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the worker's end")
        service.put("cold.png")
        assert service.wait_record("cold.png")["path"] == "cold"
        service.worker_pid()
        service.put("kept.png", marked=b"", expect=False)
        service.wait_note("held", "kept.png")
        yield service
    finally:
        service.close()


def traced(service: Service, file: Path, *arguments: str) -> Path:
    ended = service.run("trace", *arguments, "-o", str(file))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{file}: ")
    return file


def us(record: Record) -> dict[str, int]:
    return {name: round(ms * 1000) for name, ms in record["segments_ms"].items() if ms}


@needs_perfetto
def test_the_trace_says_what_the_records_say(
    lived: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parsed(traced(lived, tmp_path / "all.json"), monkeypatch) as trace:
        assert trace.complaints() == []
        slices = trace.slices()
    by_id = {row["id"]: row for row in slices}
    records = {record["job"]: record for record in lived.records()}
    jobs = [row for row in slices if row["process"] == "jobs" and row["depth"] == 0]
    assert {row["args"]["job"] for row in jobs} == set(records)
    for job in jobs:
        record = records[job["args"]["job"]]
        parts = [row for row in slices if row["parent"] == job["id"]]
        assert lengths(parts) == us(record)
        assert job["us"] == sum(us(record).values()) == pytest.approx(record["total_ms"] * 1000, abs=20)
        assert [row["name"] for row in parts if row["name"] not in {"ipc", "unattributed"}] == [
            name for name in SEGMENTS if name in us(record) and name != "ipc"
        ]
        assert abs(job["start_us"] + job["us"] - record["clock"]["ended_unix_us"]) < 20_000
        for fact in ("outcome", "path", "path_reason", "reason"):
            assert fact in job["args"] or record[fact] is None
        assert job["args"]["outcome"] == record["outcome"]
        assert job["args"]["device.configured"] == record["device"]["configured"]
        if record["outcome"] == "done":
            assert job["args"]["engine.actual"] == record["engine"]["actual"]
            assert job["args"]["device.actual"] == record["device"]["actual"]
            assert job["args"]["image.width"] == str(record["image"]["width"])
    assert_nothing_overlaps(slices)
    # what a worker served lies in the batch, and in the life, of the worker that its record names
    for item in (row for row in slices if row["category"] == "item"):
        record = records[item["args"]["job"]]
        batch, life = by_id[item["parent"]], by_id[by_id[item["parent"]]["parent"]]
        assert batch["name"] == f"batch {record['batch']}"
        assert (life["name"], life["args"]["pid"]) == ("ready", str(record["worker"]["pid"]))
        assert f"worker {record['worker']['incarnation']} ({record['path']}, " in item["track"]
        assert item["us"] == round(record["clock"]["served_ms"] * 1000)
    assert sum(row["category"] == "item" for row in slices) == sum(
        record["worker"] is not None for record in records.values()
    )


@needs_perfetto
def test_the_trace_shows_each_worker_from_its_start_to_its_end(
    lived: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parsed(traced(lived, tmp_path / "all.json"), monkeypatch) as trace:
        slices = trace.slices()
    started = [row for row in slices if row["process"] == "workers" and row["name"] == "start"]
    assert [row["args"]["path"] for row in started] == ["hot", "cold", "hot"]
    told = {line["incarnation"]: line for line in lived.log("worker.ready", path="hot")}
    for start in started:
        parts = [row for row in slices if row["parent"] == start["id"]]
        names = (*START_SEGMENTS, "unattributed")
        assert [row["name"] for row in parts] == [name for name in names if name in lengths(parts)]
        assert start["us"] == pytest.approx(sum(lengths(parts).values()), abs=10)
        incarnation = int(start["track"].split()[1])
        if start["args"]["path"] == "hot":
            line = told[incarnation]["segments_ms"]
            for name in START_SEGMENTS[1:]:
                assert lengths(parts).get(name, 0) == pytest.approx(line[name] * 1000, abs=1)
    ends = [row["args"] for row in slices if row["name"] == "ready" and row["process"] == "workers"]
    assert [end.get("end") for end in ends] == [None, None, "it lives"]
    assert "SIGKILL" in ends[0]["story"]
    # a one-shot's start is its job's own: the same slices on both tracks
    cold = next(row for row in slices if row["process"] == "jobs" and row["name"] == "cold.png")
    own = lengths([row for row in slices if row["parent"] == cold["id"]])
    shared = lengths([row for row in slices if row["parent"] == started[1]["id"]])
    shared.pop("unattributed", None)  # the job\'s own is of all that it waited for
    assert {name: own[name] for name in shared} == {
        name: pytest.approx(us_, abs=2) for name, us_ in shared.items()
    }


def lengths(rows: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if row["category"] == "segment":
            found[row["name"]] = found.get(row["name"], 0) + round(row["us"])
    return found


def assert_nothing_overlaps(slices: list[dict[str, Any]]) -> None:
    """On each depth of each track every slice begins after the one before it has ended."""
    rows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in slices:
        rows.setdefault((row["process"], row["track"], row["depth"]), []).append(row)
    assert {process for process, _, _ in rows} == {"jobs", "workers"}
    for neighbours in rows.values():
        for one, other in pairwise(neighbours):
            assert one["ts"] + one["dur"] <= other["ts"]
    by_id = {row["id"]: row for row in slices}
    for row in slices:
        outer = by_id.get(row["parent"])
        if outer is not None:
            assert outer["ts"] <= row["ts"]
            assert row["ts"] + row["dur"] <= outer["ts"] + outer["dur"]


def sources(service: Service, *arguments: str) -> list[str]:
    """The pictures of a trace on the standard output."""
    return sources_in(service.run("trace", *arguments))


def sources_in(ended: CompletedProcess[str]) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    events = json.loads(ended.stdout)["traceEvents"]
    return [event["name"] for event in events if event.get("cat") in {"done", "failed"}]


def test_one_job_a_batch_or_a_span_may_be_asked_for(lived: Service, tmp_path: Path) -> None:
    one = lived.wait_record("one.png")
    for name in (one["job"], str(lived.inbox / "one.png")):
        assert sources(lived, name) == ["one.png"]
    burst = lived.wait_record(BURST[-1])
    mates = [r["source"] for r in lived.records() if r["batch"] == burst["batch"]]
    for name in (burst["batch"], f"{burst['clock']['run']}/{burst['batch']}"):
        assert sorted(sources(lived, "--batch", name)) == sorted(mates)
    assert len(sources(lived, "--since", "10m")) == len(lived.records())
    assert sources(lived, "--until", one["ts"]) == ["one.png"]
    limited = lived.run("trace", "--limit", "2")
    assert len(sources_in(limited)) == 2
    assert f"{len(lived.records()) - 2} older jobs are left out" in limited.stderr
    file = traced(lived, tmp_path / "named.json", one["job"])
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("arguments", "code", "says", "remedy"),
    [
        (["nothing-17"], 2, "there is no job nothing-17", "watcher jobs"),
        (["kept.png"], 75, "is held: it has no time chain", "watcher jobs"),
        (["--batch", "b999"], 2, "there is no batch b999", "--batch"),
        (["--batch", "99/b1"], 2, "there is no batch 99/b1", "run 12"),
        (["--since", "2001-01-01", "--until", "2001-01-02"], 2, "no job ended and no worker lived", "longer"),
        (["--since", "yesterday"], 2, "--since yesterday is no time", "how long ago"),
        (["one.png", "--since", "2h"], 2, "at once", "one of them"),
        (["one.png", "-o", "/nowhere/at/all.json"], 2, "cannot be written", "-o"),
    ],
    ids=["job", "held", "batch", "run", "span", "time", "two", "file"],
)
def test_what_cannot_be_shown_is_said_with_a_remedy(
    lived: Service, arguments: list[str], code: int, says: str, remedy: str
) -> None:
    ended = lived.run("trace", *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert says in ended.stderr
    assert remedy in ended.stderr.split("to do:")[1]


def test_a_record_that_the_journal_shortened_is_taken_from_the_timing_log(lived: Service) -> None:
    import sqlite3  # noqa: PLC0415 - only this test ages the journal by hand

    one = lived.wait_record("one.png")
    with sqlite3.connect(lived.state / "journal.sqlite3") as database:
        row = (
            "UPDATE jobs SET record = json_remove(record, '$.segments_ms', '$.clock', '$.batch') WHERE id = ?"
        )
        database.execute(row, (one["job"],))
    database.close()
    for arguments in ((one["job"],), ("--since", "1h")):
        ended = lived.run("trace", *arguments)
        assert ended.returncode == 0, ended.stderr
        events = json.loads(ended.stdout)["traceEvents"]
        job = next(event for event in events if event.get("cat") == "done" and event["name"] == "one.png")
        parts = [e for e in events if e["tid"] == job["tid"] and e.get("cat") == "segment"]
        assert sum(event["dur"] for event in parts) == sum(us(one).values())
