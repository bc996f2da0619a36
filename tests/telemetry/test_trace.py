"""Records and lives become tracks: slices as long as they say, that follow each other and do not overlap."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.telemetry.perfetto_parser import needs_perfetto, parsed
from watcher.core.lives import WorkerLife
from watcher.core.timeline import ARRIVAL_SEGMENTS, SEGMENTS, START_SEGMENTS, WORK_SEGMENTS
from watcher.telemetry.trace import ORDER, Slice, Track, segments_us, trace_events, traced

EPOCH_US = 1_780_000_000_000_000
BOOT_US = EPOCH_US - 5_000_000_000
"""When the monotonic clock of these tests began."""
HOSTILE = 'x"\\</script>\n\x1b[31m\u202e\u2028é\U0001f600/' + "y" * 300


def a_record(job: str = "abc-1", *, ended_us: int = 2_000_000, run: int = 1, **fields: Any) -> dict[str, Any]:
    """A record whose chain ended so long after the boot."""
    segments = {**dict.fromkeys(SEGMENTS, 0.0), **fields.pop("segments", {"queue": 10.0, "inference": 30.5})}
    segments.setdefault("unattributed", 1.25)
    clock = {
        "run": run,
        "ended_ns": ended_us * 1000,
        "ended_unix_us": BOOT_US + ended_us,
        "served_ms": fields.pop("served_ms", 31.0),
        "ipc_back_ms": fields.pop("ipc_back_ms", 0.0),
    }
    return {
        "job": job,
        "source": f"{job}.png",
        "outcome": "done",
        "ts": "2026-06-01T00:00:00.000Z",
        "batch": "b1",
        "batch_size": 1,
        "worker": {"pid": 77, "incarnation": 1},
        "segments_ms": segments,
        "total_ms": round(sum(segments.values()), 3),
        "clock": clock,
        **fields,
    }


def a_life(
    *,
    run: int = 1,
    incarnation: int = 1,
    started_us: int = 100,
    exited_us: int | None = 9_000_000,
    **fields: Any,
) -> WorkerLife:
    segments = {name: 10.0 * number for number, name in enumerate(START_SEGMENTS, 1)}
    ready_us = fields.pop("ready_us", started_us + 210_000)
    noted_us = exited_us if exited_us is not None else (ready_us or started_us)
    return WorkerLife(
        run=run,
        incarnation=incarnation,
        path="hot",
        pid=77,
        host="here",
        started_ns=started_us * 1000,
        ready_ns=None if ready_us is None else ready_us * 1000,
        exited_ns=None if exited_us is None else exited_us * 1000,
        noted_ns=noted_us * 1000,
        noted_unix_us=BOOT_US + noted_us + fields.pop("wall_us", 0),
        facts=fields.pop("facts", {"segments_ms": segments, "rss_bytes": 5}),
    )


def overlaps(track: Track) -> list[tuple[Slice, Slice]]:
    """Pairs of slices of which neither lies inside the other, nor after it."""
    found = []
    for number, one in enumerate(track.slices):
        for other in track.slices[number + 1 :]:
            apart = one.end_us <= other.start_us or other.end_us <= one.start_us
            inside = one.start_us <= other.start_us and other.end_us <= one.end_us
            inside = inside or (other.start_us <= one.start_us and one.end_us <= other.end_us)
            if not apart and not inside:
                found.append((one, other))
    return found


def lengths(slices: Any) -> dict[str, int]:
    """The length of each segment, its parts together."""
    found: dict[str, int] = {}
    for piece in slices:
        if piece.category == "segment":
            found[piece.name] = found.get(piece.name, 0) + piece.duration_us
    return found


# --- a job -------------------------------------------------------------------------------------------------


def test_a_job_is_its_segments_one_after_the_other_and_ends_when_it_ended() -> None:
    (track,) = traced([a_record(segments={name: float(n) for n, name in enumerate(SEGMENTS, 1)})], []).jobs
    whole, *segments = track.slices
    assert whole.end_us == BOOT_US + 2_000_000
    assert whole.duration_us == 1000 * sum(range(1, len(SEGMENTS) + 1)) + 1250
    assert segments[0].start_us == whole.start_us
    assert segments[-1].end_us == whole.end_us
    assert all(one.end_us == next_.start_us for one, next_ in pairwise(segments))
    assert lengths(segments) == {
        **{name: 1000 * n for n, name in enumerate(SEGMENTS, 1)},
        "unattributed": 1250,
    }
    once = list(dict.fromkeys(piece.name for piece in segments if piece.name != "unattributed"))
    assert once == [name for name in SEGMENTS if name in once]


def test_ipc_there_comes_before_the_work_and_back_after_it() -> None:
    record = a_record(segments={"ipc": 5.0, "read": 1.0, "encode": 2.0, "publish": 3.0}, ipc_back_ms=2.0)
    assert segments_us(record) == [
        ("ipc", 3000),
        ("read", 1000),
        ("encode", 2000),
        ("unattributed", 1250),
        ("ipc", 2000),
        ("publish", 3000),
    ]


def test_what_no_segment_claims_lies_inside_the_work_as_far_as_the_worker_had_the_picture_so_long() -> None:
    segments = {"queue": 4.0, "read": 1.0, "encode": 2.0, "unattributed": 2.0}
    record = a_record(segments=segments, served_ms=3.5)
    assert segments_us(record) == [
        ("queue", 4000),
        ("unattributed", 1500),
        ("read", 1000),
        ("encode", 2000),
        ("unattributed", 500),
    ]


@pytest.mark.parametrize("clock", [None, {}, {"run": "x"}, 5], ids=["none", "empty", "wrong", "number"])
def test_a_record_of_an_older_watcher_is_placed_by_its_ts_and_says_so(clock: Any) -> None:
    record = a_record(ts="2026-06-01T00:00:01.500Z", clock=clock)
    (track,) = traced([record], []).jobs
    assert track.slices[0].end_us == 1_780_272_001_500_000
    assert track.slices[0].facts["placed_by"] == "ts: to some milliseconds"


def test_a_record_that_was_shortened_is_one_slice() -> None:
    record = {"job": "a-1", "source": "a", "outcome": "done", "ts": "2026-06-01T00:00:01Z", "total_ms": 12.5}
    (track,) = traced([record], []).jobs
    (whole,) = track.slices
    assert whole.duration_us == 12_500
    assert whole.facts["segments"] == "not kept any more"


def test_every_segment_has_its_place() -> None:
    assert set(ORDER) == {*SEGMENTS, "unattributed"}
    assert [name for name in dict.fromkeys(ORDER) if name != "unattributed"] == list(SEGMENTS)


# --- workers -----------------------------------------------------------------------------------------------


def test_a_life_is_its_start_by_segments_then_its_time_of_service() -> None:
    (track,) = traced([], [a_life()]).workers
    start, *rest = track.slices
    ready = rest.pop()
    assert [piece.name for piece in rest] == list(START_SEGMENTS)
    assert (start.name, start.duration_us, ready.name) == ("start", 210_000, "ready")
    assert start.end_us == ready.start_us == rest[-1].end_us
    assert ready.end_us == BOOT_US + 9_000_000
    assert track.name == "worker 1 (hot, pid 77, run 1)"


def test_batches_hold_their_jobs_and_lie_in_the_life_that_served_them() -> None:
    one = a_record("a-1", ended_us=1_000_000, segments={"inference": 30.0, "publish": 5.0}, ipc_back_ms=1.0)
    two = a_record("b-2", ended_us=1_040_000, segments={"inference": 30.0, "publish": 5.0}, ipc_back_ms=1.0)
    three = a_record("c-3", ended_us=2_000_000, batch="b2")
    other = a_record("d-4", ended_us=2_000_000, run=2)
    trace = traced([two, three, one, other], [a_life(), a_life(run=2, started_us=50)])
    tracks = {track.name: track for track in trace.workers}
    track = tracks["worker 1 (hot, pid 77, run 1)"]
    batches = [piece for piece in track.slices if piece.category == "batch"]
    assert [(piece.name, piece.facts["jobs"]) for piece in batches] == [
        ("batch b1", ["a-1", "b-2"]),
        ("batch b2", ["c-3"]),
    ]
    items = [piece for piece in track.slices if piece.category == "item"]
    assert [(piece.end_us - BOOT_US, piece.duration_us) for piece in items[:2]] == [
        (1_000_000 - 5000 - 1000, 31_000),
        (1_040_000 - 5000 - 1000, 31_000),
    ]
    assert [overlaps(track) for track in tracks.values()] == [[], []]
    assert [
        p.facts["jobs"] for p in tracks["worker 1 (hot, pid 77, run 2)"].slices if p.category == "batch"
    ] == [["d-4"]]


def test_what_rounding_takes_beyond_the_end_is_cut_off() -> None:
    record = a_record(segments={"inference": 30.0, "encode": 1.001}, served_ms=31.0)
    (track,) = traced([record], []).workers
    assert [piece.duration_us for piece in track.slices if piece.category == "segment"] == [30_000, 1_000]
    assert overlaps(track) == []


def test_a_worker_whose_life_was_not_kept_is_shown_by_what_it_served() -> None:
    (track,) = traced([a_record()], []).workers
    assert track.name == "worker 1 (pid 77, run 1)"
    assert [piece.category for piece in track.slices] == ["batch", "item", "segment"]


@pytest.mark.parametrize(
    ("living", "end_us", "says"),
    [((1, 1), 6_000_000, "it lives"), (None, 2_000_000, "not seen: the service ended first")],
    ids=["lives", "lost"],
)
def test_an_end_that_nobody_saw_is_not_made_up(
    living: tuple[int, int] | None, end_us: int, says: str
) -> None:
    record = a_record(segments={"inference": 30.0}, served_ms=31.0)
    known = [] if living is None else [living]
    trace = traced([record], [a_life(exited_us=None)], living=known, now_us=BOOT_US + 6_000_000)
    ready = next(piece for piece in trace.workers[0].slices if piece.name == "ready")
    assert (ready.end_us - BOOT_US, ready.facts["end"]) == (end_us, says)


def test_a_start_that_never_was_ready_is_shown_as_one() -> None:
    life = a_life(ready_us=None, exited_us=500_000, facts={"exit_code": 1, "story": "exited with code 1"})
    (track,) = traced([], [life]).workers
    (start,) = track.slices
    assert (start.duration_us, start.facts["ready"], start.facts["exit_code"]) == (499_900, False, 1)


def test_a_rescued_job_is_on_no_worker() -> None:
    assert traced([a_record(rescued=True)], []).workers == ()


# --- clocks ------------------------------------------------------------------------------------------------


def _shifted(job: str, ended_us: int, wall_us: int) -> dict[str, Any]:
    """A job after the wall clock went so far ahead of the monotonic one."""
    record = a_record(job, ended_us=ended_us)
    record["clock"]["ended_unix_us"] += wall_us
    return record


@pytest.mark.parametrize(
    ("wall_us", "seen_us"),
    [(3_600_000_000, 3_600_000_000), (15_000, 0), (-3_600_000_000, 0)],
    ids=["slept", "jitter", "set back"],
)
def test_a_clock_that_goes_ahead_is_followed_and_nothing_is_laid_over_what_was(
    wall_us: int, seen_us: int
) -> None:
    trace = traced([_shifted("a-1", 1_000_000, 0), _shifted("b-2", 1_100_000, wall_us)], [])
    assert [job.slices[0].end_us - BOOT_US for job in trace.jobs] == [1_000_000, 1_100_000 + seen_us]
    assert overlaps(trace.workers[0]) == []


# --- anything ----------------------------------------------------------------------------------------------

MS = st.integers(0, 3_000_000).map(lambda us: us / 1000)


@st.composite
def _records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What one worker served, in the order in which it did."""
    at_us = 1_000_000
    records = []
    for number in range(draw(st.integers(1, 6))):
        work = {name: draw(MS) for name in WORK_SEGMENTS}
        spare, publish, back = draw(MS), draw(MS), draw(MS)
        served = round(sum(work.values()) + spare, 3)
        at_us += round(served * 1000) + draw(st.integers(0, 100_000))
        segments = {
            **{name: draw(MS) for name in (*ARRIVAL_SEGMENTS, "batch_wait")},
            **work,
            "ipc": round(back + draw(MS), 3),
            "publish": publish,
            "unattributed": round(spare + draw(MS), 3),
        }
        ended_us = at_us + round((publish + back) * 1000)
        records.append(
            a_record(
                f"j-{number}",
                ended_us=ended_us,
                segments=segments,
                served_ms=served,
                ipc_back_ms=back,
                batch=draw(st.sampled_from(["b1", "b2"])) if number == 0 else f"b{number}",
            )
        )
    return records


@given(_records(), st.permutations(range(6)))
@settings(deadline=None, max_examples=60)
def test_slices_are_as_long_as_the_record_says_and_never_overlap(
    records: list[dict[str, Any]], order: list[int]
) -> None:
    shuffled = [records[place] for place in order if place < len(records)]
    trace = traced(shuffled, [a_life(exited_us=100_000_000)])
    by_job = {record["job"]: record for record in records}
    for track in trace.jobs:
        record = by_job[track.slices[0].facts["job"]]
        told = {name: round(ms * 1000) for name, ms in record["segments_ms"].items() if ms}
        assert lengths(track.slices) == told
        assert track.slices[0].duration_us == sum(told.values())
    assert [overlaps(track) for track in (*trace.jobs, *trace.workers)] == [[]] * (len(records) + 1)


# --- as text -----------------------------------------------------------------------------------------------


def _json(records: list[dict[str, Any]], lives: list[WorkerLife]) -> str:
    return "".join(trace_events(traced(records, lives), {"made_by": HOSTILE}))


def test_the_text_is_json_an_event_a_line_and_all_of_it_is_printable() -> None:
    record = a_record(source=HOSTILE, reason="\udcff", job=HOSTILE, outcome=HOSTILE)
    text = _json([record], [a_life(facts={"story": HOSTILE})])
    events = json.loads(text)["traceEvents"]
    assert len(text.splitlines()) == len(events) + 2
    assert all(line.isprintable() for line in text.split("\n"))
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(isinstance(event["ts"], int) for event in events if event["ph"] == "X")


def test_tracks_are_named_and_told_apart() -> None:
    events = json.loads(_json([a_record("a-1"), a_record("b-2")], [a_life()]))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["a-1.png (a-1)", "b-2.png (b-2)", "worker 1 (hot, pid 77, run 1)"]
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(names)
    assert len({tid for _, tid in names}) == len(names)


@needs_perfetto
def test_perfetto_takes_names_and_facts_of_anybody(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hostile.json"
    record = a_record(source=HOSTILE, reason='"); DROP TABLE slice; --')
    file.write_text(_json([record], [a_life()]), encoding="utf-8")
    with parsed(file, monkeypatch) as trace:
        assert trace.complaints() == []
        slices = trace.slices()
    whole = next(row for row in slices if row["process"] == "jobs" and row["depth"] == 0)
    assert whole["args"]["reason"] == '"); DROP TABLE slice; --'
    assert "é\U0001f600" in whole["name"]
    assert whole["start_us"] + whole["us"] == BOOT_US + 2_000_000
    ended = {(row["process"], row["track"]) for row in slices}
    assert len(ended) == 2
