"""The loop against fake edges and a scripted core: what is durable before what, and what a full disk does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from structlog.testing import capture_logs

from watcher import runtime
from watcher.adapters.clock import SystemClock
from watcher.adapters.event_queue import EventQueue
from watcher.adapters.service_manager import NoServiceManager
from watcher.core import commands as c
from watcher.core import events as e
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.core.lives import WorkerLife
from watcher.ports import RemediableError
from watcher.runtime import Edges, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from watcher.core.pipeline import Pipeline

PRINT: Final = Fingerprint(1, 2, 3, 4)
IDENTITY: Final = Identity("ab" * 32, None, "default")
BATCH: Final = c.Batch("b1", ())
START: Final = e.JournalOpened((), (), 1)


def a_job(number: int = 1, state: JobState = JobState.READY, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": f"job-{number}",
        "source": f"{number}.png",
        "fingerprint": PRINT,
        "identity": IDENTITY,
        "state": state,
        "created_s": 0.0,
        **changes,
    }
    return Job(**fields)


def a_done_job(number: int = 1) -> Job:
    return a_job(number, JobState.DONE, record={"job": f"job-{number}", "outcome": "done"})


def full_disk() -> RemediableError:
    return RemediableError("the disk is full", "free some space", exit_code=75)


@dataclass
class Script:
    """Stands in for the core: answers each event as a test says, and remembers what it was told."""

    answer: Callable[[e.Event], Sequence[c.Command]] = lambda _: ()
    told: list[e.Event] = field(default_factory=list)
    is_drained: bool = False
    is_idle: bool = False
    is_watching: bool = True
    open_jobs: int = 0
    held: tuple[Job, ...] = ()
    wakeup_ns: int | None = None

    def handle(self, event: e.Event, _now: e.Instant) -> list[c.Command]:
        self.told.append(event)
        return list(self.answer(event))

    def next_wakeup_ns(self) -> int | None:
        return self.wakeup_ns

    def snapshot(self) -> dict[str, Any]:
        return {}


@dataclass
class World:
    """All edges at once: every call is a line of `calls`, in the order of time."""

    calls: list[str] = field(default_factory=list)
    commit_failures: list[Exception] = field(default_factory=list)
    line_failures: list[OSError] = field(default_factory=list)
    lookup_failures: list[OSError] = field(default_factory=list)
    line_lands_though_it_fails: bool = False
    final: dict[str, Job] = field(default_factory=dict)
    """Final jobs in the journal."""
    marked: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    requested: list[Any] = field(default_factory=list)
    opened: e.JournalOpened = START
    prior: tuple[Job, ...] = ()
    slept: int = 0
    pruned: int = 0
    prunings_due: int = 0
    prune_failures: list[Exception] = field(default_factory=list)
    lives: list[WorkerLife] = field(default_factory=list)
    life_failures: list[Exception] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)

    # journal

    def load(self) -> e.JournalOpened:
        return self.opened

    def commit(self, writes: Sequence[c.JournalWrite]) -> None:
        if self.commit_failures:
            raise self.commit_failures.pop(0)
        self.calls.append("commit " + " ".join(self._name(write) for write in writes))
        self.final |= {write.job.id: write.job for write in writes if isinstance(write, c.FinishJob)}

    @staticmethod
    def _name(write: c.JournalWrite) -> str:
        return write.job.id if isinstance(write, c.SaveJob | c.FinishJob) else type(write).__name__

    def prior_jobs(self, identity: Identity, _path: str) -> tuple[Job, ...]:
        assert identity == IDENTITY
        return self.prior

    def jobs(self, *, states: Collection[JobState] = (), ids: Collection[str] = ()) -> tuple[Job, ...]:
        return tuple(job for job in self.final.values() if job.id in ids or (not ids and job.state in states))

    def given_up(self) -> tuple[Job, ...]:
        return self.jobs(states=(JobState.FAILED, JobState.QUARANTINED))

    def unlogged(self) -> tuple[Job, ...]:
        return tuple(job for job in self.final.values() if job.id not in self.marked)

    def mark_logged(self, ids: Iterable[str]) -> None:
        self.marked |= set(ids)

    def save_life(self, life: WorkerLife) -> None:
        if self.life_failures:
            raise self.life_failures.pop(0)
        self.lives.append(life)

    def prune(self, _wall_s: float) -> bool:
        self.pruned += 1
        if self.prune_failures:
            raise self.prune_failures.pop(0)
        return self.pruned < self.prunings_due

    # timing log

    def append(self, record: dict[str, str]) -> None:
        if self.line_failures:
            if self.line_lands_though_it_fails:
                self.lines.append(record["job"])
            raise self.line_failures.pop(0)
        self.calls.append(f"line {record['job']}")
        self.lines.append(record["job"])

    def logged(self, ids: Collection[str]) -> set[str]:
        if self.lookup_failures:
            raise self.lookup_failures.pop(0)
        return set(self.lines) & set(ids)

    # what is begun, and the rest

    def sweep(self, keep: Collection[str]) -> int:
        self.calls.append(f"sweep all but {sorted(keep)}")
        return 0

    def waiting(self) -> list[Any]:
        taken = [request for request in self.requested if not request.removed]
        if taken:
            self.calls.append("requests")
        return taken

    def write(self, _snapshot: object, *, running: bool) -> None:
        self.written.append(running)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: self.calls.append(
            " ".join(
                [name, *(self._short(a) for a in arguments), *(key for key, on in options.items() if on)]
            )
        )

    @staticmethod
    def _short(argument: Any) -> str:
        job = getattr(argument, "job", argument)
        return str(getattr(job, "id", job))


class Clock(SystemClock):
    """Real time; sleeping is counted and takes none."""

    def __init__(self, world: World) -> None:
        self._world = world

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self._world.slept += 1


class Closable:
    """One edge of the world, that says who was closed."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def close(self) -> None:
        self._world.calls.append(f"close {self._name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


@dataclass
class Request:
    ids: tuple[str, ...] | None
    removed: bool = False

    def remove(self) -> None:
        self.removed = True


class Gauge:
    """Implements `watcher.ports.MemoryGauge`: nobody knows."""

    def available_bytes(self) -> int | None:
        return None


@dataclass
class Stage:
    """A runtime with everything around it."""

    script: Script = field(default_factory=Script)
    world: World = field(default_factory=World)
    events: EventQueue = field(default_factory=EventQueue)
    finished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        world: Any = self.world
        edges = Edges(
            clock=Clock(self.world),
            inbox=cast("Any", Closable(self.world, "inbox")),
            journal=world,
            timings=world,
            outbox=cast("Any", Closable(self.world, "outbox")),
            hot=cast("Any", Closable(self.world, "hot")),
            cold=cast("Any", Closable(self.world, "cold")),
            requests=world,
            status=world,
            memory=Gauge(),
            manager=NoServiceManager(),
        )
        pipeline = cast("Pipeline", self.script)
        self.runtime = Runtime(pipeline, edges, self.events, lambda job: self.finished.append(job.id))

    def happen(self, *events: e.Event, until: Callable[[], bool] | None = None) -> None:
        """Let these events happen, and run until they were handled (and `until` holds)."""
        last = events[-1]
        answer = self.script.answer

        def answer_and_look(event: e.Event) -> Sequence[c.Command]:
            commands = answer(event)
            self.script.is_drained = (until is None and event is last) or (until is not None and until())
            return commands

        self.script.answer = answer_and_look
        for event in events:
            self.events.put(event)
        self.runtime.run()
        self.script.answer = answer
        self.script.is_drained = False

    def commanded(self, *commands: c.Command) -> None:
        """One event that is answered by these commands."""
        event = e.RescanWanted("a test")
        self.script.answer = lambda told: commands if told is event else ()
        self.happen(event)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose housekeeping comes twenty times as often as in earnest."""
    monkeypatch.setattr(runtime, "_HOUSEKEEPING_NS", 50_000_000)
    monkeypatch.setattr(runtime, "_STATUS_NS", 12_500_000)
    return Stage()


@pytest.fixture
def world(stage: Stage) -> World:
    return stage.world


# --- durable before begun ----------------------------------------------------------------------------------


def test_writes_are_durable_before_the_command_that_follows_them_is_begun(stage: Stage, world: World) -> None:
    stage.commanded(
        c.SaveJob(a_job(1)),
        c.SaveJob(a_job(2)),
        c.RunBatch(7, BATCH),
        c.SaveJob(a_job(3)),
        c.PublishResult(a_job(3)),
    )

    assert world.calls == [
        "commit job-1 job-2",
        "submit 7 b1",
        "commit job-3",
        "publish job-3",
    ]


def test_writes_without_a_command_behind_them_are_durable_before_the_next_event(
    stage: Stage, world: World
) -> None:
    first, second = e.RescanWanted("first"), e.RescanWanted("second")
    stage.script.answer = lambda event: (
        (c.SaveJob(a_job(1)),) if event is first else (c.ObserveFile("a.png"),) if event is second else ()
    )

    stage.happen(first, second)

    assert world.calls == ["commit job-1", "observe a.png"]


def test_a_log_line_does_not_tear_a_transaction_apart(stage: Stage, world: World) -> None:
    stage.commanded(c.SaveJob(a_job(1)), c.Log("info", "job.held", {}), c.SaveJob(a_job(2)))

    assert world.calls == ["commit job-1 job-2"]


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (c.StartWorker(3), "start 3"),
        (c.RunCold(4, BATCH), "submit 4 b1"),
        (c.DrainWorker(3), "drain 3"),
        (c.SealResult(a_job(), "s", "x"), "seal job-1"),
        (c.PublishResult(a_job()), "publish job-1"),
        (c.DiscardStage("s"), "discard s"),
        (c.WriteNote("held", "a.png", {}), None),
        (c.RemoveNote("a.png"), "remove_note a.png"),
        (c.ApplyAfter(a_job()), "apply_after job-1"),
        (c.ApplyAfter(a_job(), again=True), "apply_after job-1 again"),
    ],
    ids=lambda value: type(value).__name__ if value is not None else "",
)
def test_each_command_is_begun_after_what_was_saved(
    stage: Stage, world: World, command: c.Command, call: str | None
) -> None:
    stage.commanded(c.SaveJob(a_job(9)), command)

    assert world.calls[0] == "commit job-9"
    (begun,) = world.calls[1:]
    assert call is None or begun == call


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (c.ObserveFile("a.png"), "observe a.png"),
        (c.HashFile("a.png", a_job().fingerprint), "hash_file a.png"),
        (c.RescanInbox("timer"), "rescan timer"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_only_looks_does_not_wait_for_what_was_saved(
    stage: Stage, world: World, command: c.Command, call: str
) -> None:
    stage.commanded(c.SaveJob(a_job(9)), command)

    assert world.calls[0].startswith(call)
    assert world.calls[1:] == ["commit job-9"]


def test_an_event_and_the_answers_to_its_questions_share_a_commit(stage: Stage, world: World) -> None:
    asking = e.RescanWanted("asking")

    def answer(event: e.Event) -> Sequence[c.Command]:
        if event is asking:
            return c.SaveJob(a_job(1)), c.FindPriorJobs("a.png", IDENTITY)
        return (c.SaveJob(a_job(2)), c.SealResult(a_job(2), "s", "x")) if _is_answer(event) else ()

    stage.script.answer = answer
    stage.happen(asking, until=lambda: _is_answer(stage.script.told[-1]))

    assert world.calls == ["commit job-1 job-2", "seal job-2"]


def test_a_question_is_asked_after_the_end_of_a_job_that_it_is_about_is_durable(
    stage: Stage, world: World
) -> None:
    stage.commanded(c.FinishJob(a_done_job(1)), c.FindPriorJobs("a.png", IDENTITY), c.SaveJob(a_job(2)))

    assert world.calls == ["commit job-1", "line job-1", "commit job-2"]


def test_what_was_saved_before_the_end_is_durable_at_the_end(stage: Stage, world: World) -> None:
    """The loop ends between a question and its answer."""
    asking = e.RescanWanted("asking")
    stage.script.answer = lambda event: (
        (c.SaveJob(a_job(1)), c.FindPriorJobs("a.png", IDENTITY)) if event is asking else ()
    )

    stage.happen(asking)

    assert world.calls == ["commit job-1"]


def _is_answer(event: e.Event) -> bool:
    return isinstance(event, e.PriorJobsFound)


def test_a_kill_goes_to_whoever_has_that_incarnation(stage: Stage, world: World) -> None:
    stage.commanded(c.KillWorker(5, "stalled"))

    assert world.calls == ["kill 5 stalled"] * 2


def test_the_journal_answers_before_any_other_event(stage: Stage, world: World) -> None:
    asking, waiting = e.RescanWanted("asking"), e.RescanWanted("waiting")
    world.prior = (a_done_job(),)
    stage.script.answer = lambda event: (c.FindPriorJobs("a.png", IDENTITY),) if event is asking else ()

    stage.happen(asking, waiting)

    answer = e.PriorJobsFound("a.png", IDENTITY, world.prior)
    assert [event for event in stage.script.told if not isinstance(event, e.TimerFired)] == [
        asking,
        answer,
        waiting,
    ]


def test_the_end_of_a_job_is_durable_then_logged_then_told(stage: Stage, world: World) -> None:
    stage.commanded(c.FinishJob(a_done_job(1)), c.FinishJob(a_done_job(2)), c.RemoveNote("1.png"))

    assert world.calls == ["commit job-1 job-2", "line job-1", "line job-2", "remove_note 1.png"]
    assert stage.finished == ["job-1", "job-2"]


# --- start and end -----------------------------------------------------------------------------------------


def test_a_start_sweeps_the_notes_of_all_but_open_and_refused_jobs(stage: Stage, world: World) -> None:
    world.opened = e.JournalOpened((a_job(1, JobState.HELD), a_job(2)), (), 9)
    world.final = {"job-3": a_job(3, JobState.FAILED), "job-4": a_done_job(4)}
    swept: list[tuple[set[str], int]] = []
    world.sweep_notes = lambda keep, number: swept.append((keep, number))  # type: ignore[attr-defined]  # a fake

    stage.runtime.start()

    assert swept == [({"job-1", "job-2", "job-3"}, 9)]


def test_a_start_sweeps_what_no_publication_needs_and_watches_last(stage: Stage, world: World) -> None:
    publishing = a_job(1, JobState.PUBLISHING, stage_name="job-1.1")
    running = a_job(2, JobState.RUNNING, stage_name="job-2.1")
    world.opened = e.JournalOpened((publishing, running), (), 3)
    stage.script.answer = lambda _: (c.StartWorker(1),)

    stage.runtime.start()

    assert world.calls[0] == "sweep all but ['job-1.1']"
    assert world.calls[2:] == ["start 1", "start"]
    assert stage.script.told == [world.opened]


def test_a_close_commits_what_the_outbox_still_published_and_begins_nothing(
    stage: Stage, world: World
) -> None:
    stage.script.answer = lambda event: (
        (c.FinishJob(a_done_job()), c.RunCold(9, BATCH), c.StartWorker(10))
        if isinstance(event, e.ResultPublished)
        else ()
    )
    stage.events.put(e.RescanWanted("too late"))
    stage.events.put(e.ResultPublished("job-1", "1.png", 5))

    stage.runtime.close()

    assert world.calls == [
        "close inbox",
        "close hot",
        "close cold",
        "close outbox",
        "commit job-1",
        "line job-1",
    ]
    assert world.marked == {"job-1"}
    assert world.written[-1] is False


def test_a_second_request_to_end_is_obeyed_without_waiting_for_the_core(stage: Stage) -> None:
    stage.runtime.drain("SIGTERM")
    stage.runtime.drain("SIGTERM")

    stage.runtime.run()  # returns although the core never says that it is drained

    assert stage.script.told == []


def test_until_idle_ends_when_the_core_is_idle_and_nothing_waits(stage: Stage) -> None:
    first, second = e.RescanWanted("first"), e.RescanWanted("second")
    stage.script.is_idle = True
    stage.events.put(first)
    stage.events.put(second)

    stage.runtime.run(until_idle=True)

    assert stage.script.told == [first, second]


def test_a_timer_of_the_core_is_kept(stage: Stage) -> None:
    stage.script.wakeup_ns = SystemClock().now().mono_ns + 30_000_000
    stage.events.put(e.RescanWanted("something before"))

    stage.happen(
        e.RescanWanted("something"),
        until=lambda: SystemClock().now().mono_ns >= cast("int", stage.script.wakeup_ns),
    )

    assert isinstance(stage.script.told[-1], e.TimerFired)


# --- without disk ------------------------------------------------------------------------------------------


def test_a_full_journal_is_waited_for_told_once_and_nothing_is_begun_before(
    stage: Stage, world: World
) -> None:
    world.commit_failures = [full_disk() for _ in range(50)]

    with capture_logs() as lines:
        stage.commanded(c.SaveJob(a_job(1)), c.RunBatch(7, BATCH))

    assert world.slept == 50
    assert world.calls == ["commit job-1", "submit 7 b1"]
    assert [line["event"] for line in lines] == ["journal.blocked", "journal.resumed"]
    assert lines[0]["remedy"] == "free some space"


def test_a_broken_journal_ends_the_service(stage: Stage, world: World) -> None:
    world.commit_failures = [RemediableError("damaged", "move it away")]

    with pytest.raises(RemediableError, match="damaged"):
        stage.commanded(c.SaveJob(a_job(1)), c.RunBatch(7, BATCH))

    assert world.calls == []


def test_a_full_journal_does_not_keep_one_who_is_in_a_hurry(stage: Stage, world: World) -> None:
    world.commit_failures = [full_disk() for _ in range(1000)]
    begun = threading.Event()

    class Impatient(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if world.slept == 3:
                stage.runtime.drain("SIGTERM")
                stage.runtime.drain("SIGTERM")
                begun.set()

    edges = stage.runtime._edges
    object.__setattr__(edges, "clock", Impatient(world))

    with pytest.raises(RemediableError, match="full"):
        stage.commanded(c.SaveJob(a_job(1)))

    assert begun.is_set()
    assert world.slept == 3


def test_lines_that_the_log_would_not_take_are_written_once_when_it_does(stage: Stage, world: World) -> None:
    world.line_failures = [OSError(28, "No space left on device") for _ in range(2)]
    world.lookup_failures = [OSError(5, "Input/output error")]

    stage.commanded(c.FinishJob(a_done_job(1)))
    assert world.lines == []
    stage.commanded(c.FinishJob(a_done_job(2)))
    assert world.lines == [], "one line must not overtake another"
    stage.happen(e.RescanWanted("time passes"), until=lambda: len(world.lines) >= 2)

    assert world.lines == ["job-1", "job-2"]
    assert world.marked == {"job-1", "job-2"}
    stage.commanded(c.FinishJob(a_done_job(3)))
    assert world.lines == ["job-1", "job-2", "job-3"]


def test_a_line_that_landed_although_its_write_failed_is_not_written_again(
    stage: Stage, world: World
) -> None:
    world.line_failures = [OSError(5, "Input/output error")]
    world.line_lands_though_it_fails = True

    stage.commanded(c.FinishJob(a_done_job(1)))
    stage.happen(e.RescanWanted("time passes"), until=lambda: "job-1" in world.marked)

    assert world.lines == ["job-1"]


def test_lines_that_a_crash_prevented_are_written_at_the_start_and_no_other(
    stage: Stage, world: World
) -> None:
    world.final = {job.id: job for job in (a_done_job(1), a_done_job(2), a_done_job(3))}
    world.lines = ["job-1"]
    world.marked = {"job-3"}

    stage.runtime.start()

    assert world.lines == ["job-1", "job-2"]
    assert world.marked == {"job-1", "job-2", "job-3"}


def test_a_log_that_cannot_be_read_at_the_start_is_made_up_for_later(stage: Stage, world: World) -> None:
    world.final = {"job-1": a_done_job(1)}
    world.lookup_failures = [OSError(2, "No such file or directory") for _ in range(2)]

    stage.runtime.start()
    assert world.lines == []
    stage.happen(e.RescanWanted("time passes"), until=lambda: bool(world.lines))

    assert world.lines == ["job-1"]


def test_marks_are_made_in_groups_and_never_forgotten(stage: Stage, world: World) -> None:
    for number in range(70):
        stage.commanded(c.FinishJob(a_done_job(number)))

    stage.runtime.close()

    assert world.marked == {f"job-{number}" for number in range(70)}


# --- people ------------------------------------------------------------------------------------------------


def test_a_request_waits_until_the_inbox_was_listed(stage: Stage, world: World) -> None:
    """Before that no picture is known to be there, and the request would be refused."""
    world.final = {"job-1": a_done_job(1)}
    world.marked = {"job-1"}
    request = Request(("job-1", "no-such"))
    world.requested = [request]
    stage.script.is_watching = False
    stage.happen(e.RescanWanted("not listed yet"))
    assert "requests" not in world.calls

    stage.script.is_watching = True
    stage.happen(e.InboxListed({}, 1, 2), until=lambda: e.RetryRequested in map(type, stage.script.told))

    assert request.removed
    (told,) = (event for event in stage.script.told if isinstance(event, e.RetryRequested))
    assert told == e.RetryRequested((world.final["job-1"],), ("no-such",))


def test_a_request_never_overtakes_an_answer_of_the_journal(stage: Stage, world: World) -> None:
    listed = e.InboxListed({}, 1, 2)
    world.requested = [Request(None)]
    stage.script.answer = lambda event: (c.FindPriorJobs("a.png", IDENTITY),) if event is listed else ()

    stage.happen(listed, until=lambda: e.RetryRequested in map(type, stage.script.told))

    kinds = [type(event) for event in stage.script.told if not isinstance(event, e.TimerFired)]
    assert kinds == [e.InboxListed, e.PriorJobsFound, e.RetryRequested]


def test_more_lines_than_are_read_at_a_time_are_rescued_in_turns(stage: Stage, world: World) -> None:
    world.final = {job.id: job for job in map(a_done_job, range(1, 6))}
    unlogged = world.unlogged
    world.unlogged = lambda: unlogged()[:2]  # type: ignore[method-assign]  # the fake reads a few at a time

    stage.runtime.start()

    assert world.lines == [f"job-{number}" for number in range(1, 6)]
    assert world.marked == set(world.lines)


def test_a_start_goes_on_where_what_was_written_cannot_be_noted(stage: Stage, world: World) -> None:
    world.final = {"job-1": a_done_job(1)}

    def refuse(ids: Iterable[str]) -> None:  # noqa: ARG001 - the port's
        raise RemediableError("the disk is full", "make room", exit_code=75)

    world.mark_logged = refuse  # type: ignore[method-assign]  # the fake refuses

    stage.runtime.start()

    assert world.lines == ["job-1"]


def test_a_request_is_removed_after_the_journal_has_taken_it_up(stage: Stage, world: World) -> None:
    request = Request(None)
    world.requested = [request]
    saved_before: list[bool] = []

    def answer(event: e.Event) -> Sequence[c.Command]:
        if isinstance(event, e.RetryRequested):
            return c.SaveJob(a_job(5)), c.FindPriorJobs("a.png", IDENTITY)
        return ()

    commit = world.commit

    def commit_and_look(writes: Sequence[c.JournalWrite]) -> None:
        saved_before.append(not request.removed)
        commit(writes)

    world.commit = commit_and_look  # type: ignore[method-assign]  # the fake is watched
    stage.script.answer = answer

    stage.happen(e.InboxListed({}, 1, 2), until=lambda: request.removed)

    assert saved_before == [True]


def test_the_status_is_written_soon_after_a_change_and_not_at_every_event(stage: Stage, world: World) -> None:
    stage.happen(e.RescanWanted("settle down"), until=lambda: len(world.written) >= 1)
    world.written.clear()
    for number in range(500):
        stage.events.put(e.RescanWanted(str(number)))

    stage.commanded(c.SaveJob(a_job(1)))
    stage.happen(e.RescanWanted("once more"), until=lambda: bool(world.written))

    assert len(world.written) <= 2
    assert all(world.written)


# --- forgetting --------------------------------------------------------------------------------------------


def test_the_journal_forgets_at_each_housekeeping_while_it_has_more_and_then_rests(
    stage: Stage, world: World
) -> None:
    world.prunings_due = 3
    stage.happen(e.RescanWanted("a test"), until=lambda: len(world.written) >= 6)
    assert world.pruned == 3


def test_the_journal_forgets_nothing_before_it_is_known_what_is_in_the_inbox(
    stage: Stage, world: World
) -> None:
    stage.script.is_watching = False
    stage.happen(e.RescanWanted("a test"), until=lambda: len(world.written) >= 3)
    assert world.pruned == 0


def test_the_journal_forgets_nothing_between_a_question_and_what_follows_its_answer(
    stage: Stage, world: World
) -> None:
    seen: list[int] = []
    ask, answer = e.RescanWanted("ask"), (c.SaveJob(a_job(1)),)

    def respond(event: e.Event) -> Sequence[c.Command]:
        if event is ask:
            return (c.FindPriorJobs("1.png", IDENTITY),)
        seen.append(world.pruned)
        return answer if isinstance(event, e.PriorJobsFound) else ()

    stage.script.answer = respond
    stage.happen(ask, until=lambda: world.pruned > 0)
    assert seen[0] == 0
    assert world.pruned == 1


def test_a_journal_that_cannot_forget_is_asked_again_later(stage: Stage, world: World) -> None:
    world.prune_failures = [full_disk()]
    with capture_logs() as lines:
        stage.happen(e.RescanWanted("a test"), until=lambda: len(world.written) >= 3)
    assert world.pruned == 1
    assert [line["event"] for line in lines] == ["journal.prune_failed"]


# --- lives -------------------------------------------------------------------------------------------------

LIFE: Final = WorkerLife(1, 1, "hot", 5, "here", 10, None, None, 20, 30, {})


def test_a_life_is_noted_at_once_and_costs_no_commit(stage: Stage, world: World) -> None:
    stage.script.answer = lambda event: (c.SaveWorkerLife(LIFE),) if isinstance(event, e.RescanWanted) else ()
    stage.happen(e.RescanWanted("a test"), until=lambda: len(world.lives) >= 1)
    assert world.lives == [LIFE]
    assert not any(call.startswith("commit") for call in world.calls)


def test_a_life_that_cannot_be_noted_stops_nothing(stage: Stage, world: World) -> None:
    world.life_failures = [full_disk()]
    stage.script.answer = lambda event: (
        (c.SaveWorkerLife(LIFE), c.RescanInbox("after")) if isinstance(event, e.RescanWanted) else ()
    )
    with capture_logs() as lines:
        stage.happen(e.RescanWanted("a test"), until=lambda: len(world.written) >= 2)
    assert world.lives == []
    assert [line["event"] for line in lines] == ["journal.life_not_saved"]
    assert any("after" in call for call in world.calls)


# --- the service manager -----------------------------------------------------------------------------------


class Watched:
    """Implements `watcher.ports.ServiceManager`: wants a sign of life after each period."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.told: list[str] = []
        self.lives: list[int] = []

    def ready(self) -> None:
        self.told.append("ready")

    def stopping(self) -> None:
        self.told.append("stopping")

    def show(self, snapshot: object) -> None:
        assert snapshot == {}

    def live(self, now_ns: int) -> None:
        self.lives.append(now_ns)

    def next_due_ns(self) -> int:
        return (self.lives[-1] if self.lives else 0) + self.period_ns


def watched(stage: Stage, *, period_ns: int = 5_000_000) -> Watched:
    manager = Watched(period_ns)
    object.__setattr__(stage.runtime._edges, "manager", manager)
    return manager


@pytest.mark.kind("W56")
def test_the_loop_gives_signs_of_life_as_often_as_they_are_wanted(stage: Stage) -> None:
    manager = watched(stage)
    begun_ns = SystemClock().now().mono_ns

    stage.happen(e.RescanWanted("time passes"), until=lambda: len(manager.lives) >= 40)

    took_ns = SystemClock().now().mono_ns - begun_ns
    assert took_ns < 40 * runtime._HOUSEKEEPING_NS / 2, "it was woken by its housekeeping alone"


@pytest.mark.kind("W56")
def test_a_loop_that_waits_for_a_full_disk_gives_signs_of_life(stage: Stage, world: World) -> None:
    manager = watched(stage, period_ns=200_000_000)
    pauses_s: list[float] = []

    class Noting(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            pauses_s.append(seconds)

    object.__setattr__(stage.runtime._edges, "clock", Noting(world))
    world.commit_failures = [full_disk() for _ in range(50)]

    stage.commanded(c.SaveJob(a_job(1)))

    assert len(manager.lives) > 50
    assert len(pauses_s) == 50
    assert max(pauses_s) <= 0.2, "no longer than what is allowed between two signs"


@pytest.mark.kind("W59")
def test_it_is_ready_once_it_watches_or_knows_that_it_cannot(stage: Stage) -> None:
    manager = watched(stage)
    stage.script.is_watching = False

    stage.happen(START, e.RescanWanted("a test"))
    assert manager.told == []
    stage.happen(e.InboxLost("not mounted"))
    assert manager.told == ["ready"]
    stage.happen(e.RescanWanted("a test"))
    assert manager.told == ["ready"]
    stage.script.is_watching = True
    stage.happen(e.RescanWanted("a test"))
    assert manager.told == ["ready"] * 2


def test_its_end_is_told_when_it_is_asked_for_and_at_the_latest_before_the_edges_end(
    stage: Stage, world: World
) -> None:
    manager = watched(stage)
    stage.script.is_watching = False

    stage.happen(e.DrainRequested("SIGTERM"))
    assert manager.told == ["stopping"]
    world.calls.clear()
    stage.runtime.close()

    assert manager.told == ["stopping"] * 2
    assert world.calls[0] == "close inbox"
