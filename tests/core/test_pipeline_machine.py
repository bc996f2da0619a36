"""Anything may happen in any order; in the end every marked picture was cleaned exactly once.

A random world drops, changes, renames and removes files, loses and repeats notifications, kills workers and
the service (at any command), fills disks, unmounts the inbox. What must never happen at all is checked by the
fake world as it goes; here it is brought to rest, and then everything is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.core.conversation import DiskFile, ServiceCrashed, World, cleaned, sha256
from watcher.core import events as e
from watcher.core.job import JobState
from watcher.core.policy import BatchPolicy, ColdPolicy, Policy, Recipe, WorkerPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.core.job import Job

PICTURES = ("a.jpg", "b.jpg", "sub/c.jpg", "alpha/d.png")
CONTENTS = (b"picture one", b"picture two", b"an alpha picture", b"bad picture", b"half a picture", b"poison")
MASKS = (b"mask one", b"mask two", b"an empty mask")
RECIPES = (Recipe("alpha", ("alpha/**",), ("mask", "alpha")), Recipe())
BASE = Policy(
    recipes=RECIPES,
    batching=BatchPolicy(max_batch=3),
    worker=WorkerPolicy(recycle_items=5, breaker_crashes=3),
    cold=ColdPolicy(max_parallel=2),
)
POLICIES = (
    BASE,
    replace(BASE, cold=ColdPolicy(enabled=False)),
    replace(BASE, once=True),
    replace(BASE, worker=WorkerPolicy(lazy=True), batching=BatchPolicy(linger_s=0.5)),
    replace(BASE, after="delete"),
)
RESULTS = {JobState.DONE, JobState.UNCHANGED}
REFUSED = {JobState.FAILED, JobState.QUARANTINED}

paths = st.sampled_from(PICTURES)
contents = st.sampled_from(CONTENTS)
masks = st.sampled_from(MASKS)
numbers = st.integers(0, 30)


class WorldMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(POLICIES[0])
        self.overheard: list[e.Event] = []
        self.worker_crashes = 0
        self.broken = False

    def do(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Do it; if the service dies of it, it is started again."""
        while True:
            try:
                action(*arguments)
            except ServiceCrashed:
                self.world.kill_service()
                self.world.tick()
                action, arguments = self.world.start, ()
            except BaseException:
                self.broken = True
                raise
            else:
                return

    @initialize(policy=st.sampled_from(POLICIES))
    def configure(self, policy: Policy) -> None:
        self.world = World(policy)
        self.world.disposes = True

    # --- files ---

    @rule(path=paths, data=contents)
    def drop(self, path: str, data: bytes) -> None:
        self.do(self.world.drop, path, data)

    @rule(path=paths, data=masks)
    def drop_mask(self, path: str, data: bytes) -> None:
        self.do(self.world.drop_mask, path, data)

    @rule(path=paths, data=contents, mask=masks)
    def drop_both(self, path: str, data: bytes, mask: bytes) -> None:
        self.do(self.world.drop_mask, path, mask)
        self.do(self.world.drop, path, data)

    @rule(path=paths, data=contents)
    def drop_unseen(self, path: str, data: bytes) -> None:
        self.world.put(path, data)

    @rule(path=paths, data=contents, visible=st.booleans())
    def write_slowly(self, path: str, data: bytes, *, visible: bool) -> None:
        writer = e.Writer.PRESENT if visible else e.Writer.UNKNOWN
        self.do(lambda: self.world.grow(path, data[:4], writer=writer))
        self.do(lambda: self.world.grow(path, data, writer=writer))

    @rule(path=paths)
    def close(self, path: str) -> None:
        if path in self.world.disk:
            self.do(self.world.close, path)

    @rule(path=paths)
    def empty(self, path: str) -> None:
        self.do(self.world.drop, path, b"")

    @rule(path=paths, of_mask=st.booleans())
    def touch(self, path: str, *, of_mask: bool) -> None:
        path += ".mask.png" * of_mask
        if path in self.world.disk:
            self.do(self.world.touch, path)

    @rule(path=paths, of_mask=st.booleans(), seen=st.booleans())
    def remove(self, path: str, *, of_mask: bool, seen: bool) -> None:
        path += ".mask.png" * of_mask
        if path in self.world.disk and seen:
            self.do(self.world.remove, path)
        else:
            self.world.disk.pop(path, None)

    @rule(old=paths, new=paths, with_mask=st.booleans())
    def rename(self, old: str, new: str, *, with_mask: bool) -> None:
        for suffix in ("", ".mask.png")[: 1 + with_mask]:
            if old != new and old + suffix in self.world.disk:
                self.do(self.world.rename, old + suffix, new + suffix)

    @rule(path=paths)
    def tell_again(self, path: str) -> None:
        self.do(self.world.notify, path, e.Hint.MODIFIED)

    @rule(path=paths)
    def overhear(self, path: str) -> None:
        """What is seen now is told much later."""
        self.overheard.append(self.world.observation(path, e.Hint.CLOSED))

    @precondition(lambda self: self.overheard and not self.world.lost)
    @rule()
    def tell_late(self) -> None:
        self.do(self.world.send, self.overheard.pop(0))

    @rule()
    def rescan(self) -> None:
        self.do(self.world.rescan)

    @rule()
    def unmount(self) -> None:
        if not self.world.lost:
            self.do(self.world.lose)

    @precondition(lambda self: self.world.lost)
    @rule()
    def mount(self) -> None:
        self.do(self.world.find)

    # --- processes ---

    @rule(which=numbers)
    def step(self, which: int) -> None:
        alive = [process for process in self.world.processes if process.alive]
        if alive:
            self.do(alive[which % len(alive)].step)

    @rule()
    def work(self) -> None:
        self.do(self.world.work)

    @rule(which=numbers)
    def crash_worker(self, which: int) -> None:
        alive = [process for process in self.world.processes if process.alive]
        if alive:
            self.worker_crashes += 1
            self.do(alive[which % len(alive)].crash)

    @rule(seconds=st.sampled_from([0.01, 1.0, 7.0, 65.0, 400.0]))
    def advance(self, seconds: float) -> None:
        self.do(self.world.advance, seconds)

    # --- the service ---

    @rule(commands=numbers)
    def crash_service_soon(self, commands: int) -> None:
        self.world.crash_in = commands

    @rule(operations=st.integers(0, 3))
    def crash_service(self, operations: int) -> None:
        self.do(lambda: self.world.restart(operations_done=operations))

    @rule()
    def drain_and_start_again(self) -> None:
        self.do(self._drain)

    def _drain(self) -> None:
        self.world.send(e.DrainRequested("SIGTERM"))
        for _ in range(50):
            if self.world.is_drained():
                break
            if not any(process.step() for process in tuple(self.world.processes)):
                self.world.finish_operations()
                self.world.advance(1.0)
        assert self.world.is_drained()
        self.world.restart()

    @rule(which=numbers)
    def retry(self, which: int) -> None:
        ended = [job for job in self.world.journal.jobs.values() if job.is_final]
        if ended:
            self.do(self.world.send, e.RetryRequested((ended[which % len(ended)],)))

    # --- the outbox ---

    @rule(reason=st.sampled_from([None, "no space left on device"]))
    def fill_outbox(self, reason: str | None) -> None:
        self.world.outbox_refuses = reason

    @rule(full=st.booleans())
    def fill_staging(self, *, full: bool) -> None:
        self.world.staging_full = full

    @rule(patient=st.booleans())
    def dawdle(self, *, patient: bool) -> None:
        self.world.patient = patient

    @precondition(lambda self: self.world.operations)
    @rule(count=st.integers(1, 3))
    def finish_operations(self, count: int) -> None:
        self.do(lambda: self.world.finish_operations(min(count, len(self.world.operations))))

    @precondition(lambda self: self.world.operations)
    @rule(name=paths)
    def take_name(self, name: str) -> None:
        """Somebody puts a file of their own into the outbox."""
        self.world.outbox.setdefault(name, b"somebody's")

    # --- the end ---

    def teardown(self) -> None:
        world = self.world
        if self.broken:
            return  # the rule that failed says why
        world.crash_in = None
        world.patient, world.outbox_refuses, world.staging_full = False, None, False
        for file in world.disk.values():
            file.writer = e.Writer.NONE
        if world.lost:
            world.find()
        world.finish_operations()
        world.settle()
        world.rescan()
        world.settle()
        self.check_at_rest()
        world.restart()
        world.settle()
        self.check_at_rest()

    def check_at_rest(self) -> None:
        world = self.world
        assert world.is_idle()
        assert world.staging == {}
        self.check_records()
        active = {job.source: job for job in world.journal.jobs.values() if not job.is_final}
        for path, file in world.disk.items():
            if path in PICTURES and file.data:
                self.check_picture(path, file, active.pop(path, None))
        assert active == {}

    def check_records(self) -> None:
        world = self.world
        ended = [job for job in world.journal.jobs.values() if job.is_final]
        assert Counter(line["job"] for line in world.journal.lines) == Counter(job.id for job in ended)
        results = [job for job in ended if job.state in RESULTS]
        assert len({job.output for job in results}) == len(results)
        for job in results:
            assert sha256(world.outbox[str(job.output)]) == job.sha256_out
        served = Counter(job.identity for job in results if job.retry_of is None and job.duplicate_of is None)
        assert set(served.values()) <= {1}, "a model ran twice for one result"
        here = Counter((job.source, job.identity) for job in results if job.retry_of is None)
        assert set(here.values()) <= {1}, "a path has two results of the same content"
        somebodys = sum(data == b"somebody's" for data in world.outbox.values())
        assert len(world.outbox) == len(results) + somebodys
        if self.worker_crashes < 2:
            poison = sha256(b"poison")
            quarantined = [job for job in ended if job.state is JobState.QUARANTINED]
            assert all(job.identity.picture_sha256 == poison for job in quarantined)

    def check_picture(self, path: str, file: DiskFile, active: Job | None) -> None:
        world = self.world
        mask = world.disk.get(f"{path}.mask.png")
        if mask is not None and not mask.data:
            return  # its mask has not arrived
        jobs = [
            job
            for job in world.journal.jobs.values()
            if job.source == path and job.identity.picture_sha256 == sha256(file.data)
        ]
        of_mask = [job for job in jobs if job.identity.mask_sha256 == (sha256(mask.data) if mask else None)]
        self.check_notes(path, of_mask, active)
        marked = mask is not None or (b"alpha" in file.data and path.startswith("alpha/"))
        if b"poison" in file.data or b"bad" in file.data or b"half" in file.data:
            assert active is None
            assert any(job.state in REFUSED for job in of_mask), of_mask
        elif marked:
            assert active is None, active
            results = [job for job in of_mask if job.state in RESULTS]
            assert results or (self.worker_crashes > 1 and of_mask[-1].state in REFUSED), of_mask
            for job in results:
                expected = file.data if job.state is JobState.UNCHANGED else None
                made = world.outbox[str(job.output)]
                assert made == (expected or cleaned(file.data, mask.data if mask else b""))
        elif active is not None:
            assert active.state is JobState.HELD
        else:
            needed_nothing = any(job.state in RESULTS for job in jobs)
            assert needed_nothing or any(job.state in REFUSED for job in of_mask), jobs

    def check_notes(self, path: str, jobs: list[Job], active: Job | None) -> None:
        """The notes of a picture say what became of the bytes that are there now."""
        notes = {kind for kind, source in self.world.notes if source == path}
        if active is not None:
            assert notes == {"held"}
        elif jobs and jobs[-1].state in REFUSED:
            assert notes == {"failed"}
        elif jobs and jobs[-1].state in RESULTS:
            assert notes == set()


QUICK = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_whatever_happens_every_marked_picture_is_cleaned_once() -> None:
    run_state_machine_as_test(WorldMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_happens_for_a_long_time() -> None:
    run_state_machine_as_test(
        WorldMachine, settings=settings(QUICK, max_examples=1500, stateful_step_count=60)
    )
