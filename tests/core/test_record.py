"""The time chain and the record: they add up, they are whole, and they say what ran."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core import record
from watcher.core.events import Instant, Origin, WorkReport
from watcher.core.job import Fingerprint, Identity, Job, JobClock, JobState
from watcher.core.policy import Policy
from watcher.core.timeline import (
    SEGMENTS,
    START_SEGMENTS,
    WORK_SEGMENTS,
    arrival_chain,
    finished_segments,
    work_chain,
)

if TYPE_CHECKING:
    from watcher.core.job import JsonObject

MS = 1_000_000
NOW = Instant(mono_ns=10_000 * MS, wall_s=1_800_000_000.123)
KEYS = {
    *("schema", "ts", "event", "job", "source", "output", "outcome", "reason", "duplicate_of", "attempt"),
    *("recipe", "marks", "batch", "batch_size", "path", "path_reason", "first_hot", "worker", "engine"),
    *("device", "image", "segments_ms", "total_ms"),
}
IMAGE_KEYS = {
    *("format", "width", "height", "hole_px", "crops", "model_px", "sha256_in", "sha256_out"),
    "outside",
    "dropped_metadata",
}
DESIGN_SEGMENTS = {
    *("settle", "pair", "queue", "process_start", "import", "device_probe", "model_read", "model_load"),
    *("warmup", "ipc", "batch_wait", "read", "decode", "mask", "preprocess", "inference", "composite"),
    *("encode", "publish"),
}


def job(source: str = "a/b/IMG.jpg", **facts: object) -> Job:
    made = Job(
        id="3fa9c1d2-1",
        source=source,
        fingerprint=Fingerprint(1, 2, 3, 4),
        identity=Identity("cafe", "beef", "default"),
        state=JobState.RUNNING,
        created_s=0.0,
        attempts=1,
        clock=JobClock(1000 * MS, 1002 * MS, 1003 * MS, 1004 * MS, dispatched_ns=1010 * MS, queued_ns=6 * MS),
    )
    return replace(made, **facts)  # type: ignore[arg-type] # facts are fields of a job


def report(**facts: object) -> WorkReport:
    made = WorkReport(
        received_ns=1100 * MS,
        batch_received_ns=1011 * MS,
        started_ns=1012 * MS,
        finished_ns=1099 * MS,
        segments_ns=dict.fromkeys(WORK_SEGMENTS, 12 * MS),
        image={"format": "JPEG", "width": 4000},
        engine={"configured": "auto", "actual": "lama", "reason": None, "model_sha256": "7b"},
        device={"configured": "auto", "available": ["cpu"], "actual": "cpu", "reason": None, "evidence": {}},
        marks="mask",
        sha256_in="cafe",
        sha256_out="f00d",
        rss_bytes=500,
        model_loads=1,
    )
    return replace(made, **facts)  # type: ignore[arg-type] # facts are fields of a report


def served(path: str = "hot", **facts: object) -> record.Served:
    origin = Origin(path, 2, 4711, "host")  # type: ignore[arg-type] # parametrised literal
    made = record.Served(origin, "ready", True, "b7", 3, None, None)  # noqa: FBT003 - in the order of the class
    return replace(made, **facts)  # type: ignore[arg-type] # facts are fields of it


def finished(made: Job, drafted: JsonObject | None, ended_ns: int = 1110 * MS) -> dict[str, object]:
    return json.loads(json.dumps(record.finish(made, drafted, Policy(), NOW, ended_ns)))  # type: ignore[no-any-return] # JSON


def adds_up(line: dict[str, object]) -> bool:
    segments: dict[str, float] = line["segments_ms"]  # type: ignore[assignment] # JSON
    return abs(sum(segments.values()) - float(str(line["total_ms"]))) < 0.01


# --- the chain ---------------------------------------------------------------------------------------------


def test_the_chain_of_a_hot_job_has_no_gap() -> None:
    chain = work_chain(job().clock or JobClock(0, 0, 0, 0), report(), None, None)
    assert {name: ns // MS for name, ns in chain.items() if ns} == {
        "settle": 2,
        "identify": 1,
        "pair": 1,
        "queue": 6,
        "ipc": 2,
        "batch_wait": 1,
        **dict.fromkeys(WORK_SEGMENTS, 12),
    }


def test_a_cold_job_owns_the_start_of_its_process() -> None:
    start = dict.fromkeys(START_SEGMENTS, 10 * MS)
    cold = report(
        batch_received_ns=1012 * MS, started_ns=1073 * MS, finished_ns=1157 * MS, received_ns=1158 * MS
    )
    chain = work_chain(job().clock or JobClock(0, 0, 0, 0), cold, start, 1070 * MS)
    assert [chain[name] // MS for name in START_SEGMENTS] == [10] * 6
    assert chain["batch_wait"] == 3 * MS, "the batch lay in the pipe while the model was loaded"
    assert chain["ipc"] == 1 * MS
    assert sum(chain.values()) == 1158 * MS - 1000 * MS


def test_a_job_that_no_worker_saw_waited_in_the_queue() -> None:
    chain = arrival_chain(JobClock(0, 5, 9, 12, lost_ns=100), 1000)
    assert (chain["settle"], chain["identify"], chain["lost_attempts"], chain["queue"]) == (5, 4, 100, 891)
    assert sum(chain.values()) == 1000


spans = st.integers(0, 10**12)


@given(st.lists(spans, min_size=len(SEGMENTS), max_size=len(SEGMENTS)), spans)
def test_segments_and_unattributed_are_the_total(parts: list[int], rest_ns: int) -> None:
    total_ns = sum(parts) + rest_ns
    segments, total_ms = finished_segments(dict(zip(SEGMENTS, parts, strict=True)), total_ns)
    assert abs(sum(segments.values()) - total_ms) < 0.01
    assert abs(segments["unattributed"] - rest_ns / 1e6) < 0.05
    assert abs(total_ms - total_ns / 1e6) < 0.001


@given(
    steps=st.lists(spans, min_size=10, max_size=10),
    work=st.lists(spans, min_size=len(WORK_SEGMENTS), max_size=len(WORK_SEGMENTS)),
    start=st.one_of(st.none(), st.lists(spans, min_size=len(START_SEGMENTS), max_size=len(START_SEGMENTS))),
    lost_ns=spans,
)
def test_a_chain_of_true_instants_leaves_nothing_unattributed(
    steps: list[int], work: list[int], start: list[int] | None, lost_ns: int
) -> None:
    """Built like a real life: every instant follows the one before by some span."""
    settle, hashing, pair, queue, first_ipc, batch_wait, last_ipc, publish, *_ = steps
    ready_at = settle + hashing + pair
    dispatched = ready_at + queue + lost_ns
    clock = JobClock(0, settle, settle + hashing, ready_at, dispatched, queued_ns=queue, lost_ns=lost_ns)
    start_ns = dict(zip(START_SEGMENTS, start, strict=True)) if start is not None else None
    worker_ready = dispatched + sum(start) if start is not None else None
    received = (worker_ready or dispatched) + first_ipc
    begun = received + batch_wait
    end = begun + sum(work)
    told = report(
        batch_received_ns=received,
        started_ns=begun,
        finished_ns=end,
        received_ns=end + last_ipc,
        segments_ns=dict(zip(WORK_SEGMENTS, work, strict=True)),
    )
    made = job(clock=clock)
    drafted = record.draft(made, served(start_ns=start_ns, ready_ns=worker_ready), told, Policy())
    line = finished(replace(made, state=JobState.DONE), drafted, ended_ns=end + last_ipc + publish)
    assert adds_up(line)
    segments: dict[str, float] = line["segments_ms"]  # type: ignore[assignment] # JSON
    assert abs(segments["unattributed"]) < 0.05
    assert min(ms for name, ms in segments.items() if name != "unattributed") >= 0


# --- the record --------------------------------------------------------------------------------------------


def test_a_record_has_every_field_of_the_contract() -> None:
    made = job()
    drafted = record.draft(made, served(), report(), Policy())
    line = finished(replace(made, state=JobState.DONE, output="a/b/IMG.jpg"), drafted)
    assert set(line) >= KEYS
    assert (line["schema"], line["event"], line["ts"]) == (1, "job.finished", "2027-01-15T08:00:00.123Z")
    assert (line["outcome"], line["path"], line["path_reason"], line["first_hot"]) == (
        "done",
        "hot",
        "ready",
        True,
    )
    assert set(line["image"]) == IMAGE_KEYS  # type: ignore[call-overload] # JSON
    assert set(line["segments_ms"]) >= DESIGN_SEGMENTS | {"unattributed"}  # type: ignore[call-overload] # JSON
    assert not {"chain_ns", "received_ns"} & set(line)
    assert line["worker"] == {
        "pid": 4711,
        "incarnation": 2,
        "host": "host",
        "rss_bytes": 500,
        "model_loads": 1,
    }
    assert (line["batch"], line["batch_size"], line["attempt"]) == ("b7", 3, 1)
    assert adds_up(line)
    assert line["total_ms"] == 110.0
    assert all(name == name.lower() for name in line)


@pytest.mark.parametrize("state", [JobState.GONE, JobState.SUPERSEDED, JobState.FAILED, JobState.QUARANTINED])
@pytest.mark.parametrize("clock", [None, job().clock])
def test_a_job_that_no_worker_reported_on_has_every_field_too(
    state: JobState, clock: JobClock | None
) -> None:
    policy = Policy(engine="lama", device="cuda:0")
    line = record.finish(job(state=state, clock=clock, reason="why"), None, policy, NOW, 1110 * MS)
    assert set(line) >= KEYS
    assert (line["path"], line["worker"], line["reason"]) == ("none", None, "why")
    assert line["engine"]["configured"] == "lama"  # type: ignore[index,call-overload] # JSON
    assert line["engine"]["actual"] is None  # type: ignore[index,call-overload] # JSON
    assert line["device"]["configured"] == "cuda:0"  # type: ignore[index,call-overload] # JSON
    assert set(line["device"]) == {"configured", "available", "actual", "reason", "evidence"}  # type: ignore[arg-type] # JSON
    assert set(line["image"]) == IMAGE_KEYS  # type: ignore[arg-type] # JSON
    assert adds_up(dict(line))


def test_a_copy_says_whose_copy_it_is_and_that_no_model_ran() -> None:
    first = job()
    first_line = finished(
        replace(first, state=JobState.DONE), record.draft(first, served(), report(), Policy())
    )
    copy = job("c.jpg", id="3fa9c1d2-2", duplicate_of=first.id, attempts=0)
    drafted = record.draft_copy(copy, first_line, Policy(), 1105 * MS)  # type: ignore[arg-type] # JSON
    line = finished(replace(copy, state=JobState.DONE, output="c.jpg"), drafted)
    assert (line["duplicate_of"], line["path"], line["worker"], line["attempt"]) == (
        first.id,
        "none",
        None,
        0,
    )
    assert line["image"] == first_line["image"]
    assert line["marks"] == "mask"
    assert line["engine"]["actual"] is None  # type: ignore[index] # JSON
    assert line["segments_ms"]["publish"] == 5.0  # type: ignore[index] # JSON
    assert adds_up(line)


def test_what_is_known_after_a_crash_adds_up() -> None:
    made = job()
    drafted = json.loads(json.dumps(record.draft(made, served(), report(), Policy())))
    line = finished(replace(made, state=JobState.DONE, clock=None), drafted)
    assert line["rescued"] is True
    assert adds_up(line)
    assert line["segments_ms"]["unattributed"] == 0  # type: ignore[index] # JSON


def test_a_name_that_is_not_utf8_is_escaped_and_has_its_bytes_beside_it() -> None:
    raw = b"a/\xff\xe4.jpg"
    name = raw.decode("utf-8", "surrogateescape")
    made = job(name)
    drafted = record.draft(made, served(), report(), Policy())
    line = finished(replace(made, state=JobState.DONE, output=name), drafted)
    assert line["source"] == line["output"] == "a/\\xff\\xe4.jpg"
    assert base64.b64decode(str(line["source_b64"])) == base64.b64decode(str(line["output_b64"])) == raw
    json.dumps(line).encode("ascii")


@pytest.mark.parametrize("name", ["ä\N{SNOWMAN}.jpg", "a\nb.jpg", 'q"\\.jpg', "a%s{}.jpg"])
def test_a_name_that_is_utf8_stands_as_it_is_in_one_line(name: str) -> None:
    line = record.finish(job(name, state=JobState.GONE), None, Policy(), NOW, 1110 * MS)
    assert line["source"] == name
    assert "source_b64" not in line
    assert "\n" not in json.dumps(line)


@given(st.binary(max_size=40))
def test_any_name_survives(raw: bytes) -> None:
    fields = record.path_fields("source", raw.decode("utf-8", "surrogateescape"))
    told = fields.get("source_b64")
    text = str(fields["source"])
    assert (base64.b64decode(str(told)) if told is not None else text.encode()) == raw
    text.encode()
