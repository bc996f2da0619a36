"""The whole service with a fault at each of its steps, on a disk that loses what was not synced.

Each test is a sweep: the same day is lived again and again, and each time another step goes wrong. What must
hold is said in `tests.service.machine`: at every instant, also if the power went then, and at rest.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.adapters.simulated_disk import Adversary
from tests.service.machine import Fault, Machine, Plan
from watcher.adapters.journal import SqliteJournal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at open files through /proc")

PLANS: Final = {
    "keep": Plan(),
    "archive": Plan(after="archive", eager=False),
    "delete": Plan(after="delete"),
    "replace": Plan(after="delete", on_conflict="replace", eager=False),
    "archive on another disk": Plan(after="archive", archive_apart=True),
    "state on another disk": Plan(state_apart=True, eager=False),
    "without exclusive rename": Plan(lacks=("exclusive_rename",)),
    "without links": Plan(lacks=("exclusive_rename", "link")),
}
QUIET_PLANS: Final = {
    "archived by hand": Plan(after="archive", archived_by_hand=True),
    # not for the sweeps: a link changes the ctime, by which the next start tells whose file the source is
    "archived by links": Plan(after="archive", lacks=("exclusive_rename",)),
}
EVERY_PLAN = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
TWO_PLANS = pytest.mark.parametrize("plan", [PLANS["archive"], PLANS["keep"]], ids=["archive", "keep"])
LEAST_STEPS: Final = 200
"""A day has more: see that a sweep did not end before it had begun."""
LEAST_SYNCS: Final = 15
SEEDS: Final = 100

NEEDED: Final = {
    "FolderOutbox._move_out:folder": ("keep", None),
    "JsonlTimingLog._append:file": ("keep", None),
    "JsonlTimingLog._jobs_in:file": ("archive", "fsync timings"),
    "JsonlTimingLog._make_name_durable:folder": ("keep", None),
    "JsonlTimingLog.logged:folder": ("archive", "fsync timings"),
    "Notes._settle:folder": ("keep", None),
    "SourceDisposal._copy:folder": ("archive on another disk", None),
    "SourceDisposal._dispose:folder": ("delete", None),
    "SourceDisposal._has_already:file": ("archived by hand", None),
    "SourceDisposal._has_already:folder": ("archive on another disk", "fsync m.png"),
    "Staging._put_from:file": ("keep", None),
    "Staging.sync:file": ("keep", None),
    "FileOperations.rename_without_replacing:folder": ("archived by links", None),
    "_make_durable:folder": ("keep", None),
    "copy_file:file": ("archive on another disk", None),
    "sync_way:folder": ("keep", "fsync IMG.png"),
}
"""Who syncs, and which plan notices if it did not: on a quiet day, or if a kill at such a step is rescued."""
NOT_NEEDED: Final = {"SourceDisposal._move:folder"}
"""On this disk a rename is atomic as a name. On some (FAT, network shares) it may not be."""


def chance(seed: str | int) -> Random:
    """The same choices each time."""
    return Random(seed)


@contextmanager
def machine(plan: Plan) -> Iterator[Machine]:
    """A machine on the fastest disk there is: the one that is simulated loses enough."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    root = Path(tempfile.mkdtemp(prefix="watcher-test-", dir=memory if memory.is_dir() else None))
    made = Machine(root / "machine", plan)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(root)


@functools.cache
def steps_of(plan: Plan) -> tuple[str, ...]:
    """The steps of a day on which nothing goes wrong."""
    with machine(plan) as quiet:
        assert not quiet.live()
        quiet.assert_at_rest()
        steps = tuple(quiet.steps)
    assert len(steps) >= LEAST_STEPS, "the day is shorter than it ever was"
    return steps


def changes_in(steps: Sequence[str]) -> list[int]:
    """The steps before which a death is another than before the one ahead: opening changes nothing."""
    return [at for at, step in enumerate(steps, 1) if not step.startswith("open ")]


def sampled(steps: Sequence[int], one_of: int, seed: str) -> list[int]:
    """Some of the steps, one of each stretch."""
    rng = chance(seed)
    stretches = [steps[at : at + one_of] for at in range(0, len(steps), one_of)]
    return [rng.choice(stretch) for stretch in stretches]


def fear_a_power_cut(computer: Machine, rng: Random, *, at_once: int = 2) -> None:
    """From now on look, at every instant, what the power's going would leave."""
    adversaries = [*Adversary, *[Adversary.MIXED] * 5]

    def look() -> None:
        for adversary in rng.sample(adversaries, at_once):
            computer.assert_survives(adversary, rng)

    computer.watch = look


# --- the four families of faults ---------------------------------------------------------------------------


def fail_at(plan: Plan, at: int, number: int) -> None:
    """An operation fails once, and the service comes to rest with it; the next start mends what it may."""
    with machine(plan) as computer:
        fear_a_power_cut(computer, chance(at))
        computer.live(Fault(at, number))
        computer.live()
        computer.assert_at_rest()


def kill_at(plan: Plan, at: int, *, deaf_to: frozenset[str] = frozenset()) -> None:
    """SIGKILL; what was not synced is still there, and may still be lost during the rescue."""
    with machine(plan) as computer:
        computer.disk.deaf_to = deaf_to
        assert computer.live(Fault(at))
        fear_a_power_cut(computer, chance(at))
        assert not computer.live()
        computer.assert_at_rest()


def cut_at(plan: Plan, at: int, adversary: Adversary) -> None:
    """The power goes."""
    with machine(plan) as computer:
        assert computer.live(Fault(at))
        computer.power_cut(adversary, chance(at))
        computer.assert_nothing_partial_or_missing()
        assert not computer.live()
        computer.assert_at_rest()


def twice(plan: Plan, steps: int, seed: int) -> None:
    """The power goes, or the process is killed, and so again during the rescue, and maybe once more."""
    rng = chance(seed)
    with machine(plan) as computer:
        at = rng.randrange(1, steps + 1)
        for _ in range(rng.choice([2, 2, 3])):
            computer.live(Fault(at))
            if rng.random() < 0.8:
                computer.power_cut(rng.choice(list(Adversary)), rng)
            at = rng.randrange(1, 80)
        assert not computer.live()
        computer.assert_at_rest()


def quiet_day(plan: Plan, *, deaf_to: frozenset[str] = frozenset()) -> set[str]:
    """Nothing goes wrong, and at every instant the power might go. Returns who synced."""
    with machine(plan) as computer:
        computer.disk.deaf_to = deaf_to
        fear_a_power_cut(computer, chance(1), at_once=12)
        assert not computer.live()
        computer.assert_at_rest()
        assert len(computer.steps) >= LEAST_STEPS
        return computer.disk.callers


# --- in `make test`: some of the steps ---------------------------------------------------------------------


@pytest.mark.parametrize("plan", (PLANS | QUIET_PLANS).values(), ids=PLANS | QUIET_PLANS)
def test_at_every_instant_of_a_day_the_power_may_go(plan: Plan) -> None:
    assert quiet_day(plan) <= NEEDED.keys() | NOT_NEEDED, "somebody syncs, and no test knows what for"


@pytest.mark.kind("D3", "D9")
@EVERY_PLAN
def test_an_operation_or_a_commit_fails_at_some_steps(plan: Plan) -> None:
    steps = range(1, len(steps_of(plan)) + 1)
    for at in sampled(steps, 60, f"fail {plan}"):
        fail_at(plan, at, chance(at).choice([errno.ENOSPC, errno.EIO]))


@pytest.mark.kind("D3", "D4", "W46")
def test_any_sync_fails() -> None:
    """It has given up on what it could not write, and the next one says that all is well."""
    plan = PLANS["keep"]
    syncs = [at for at, step in enumerate(steps_of(plan), 1) if step.startswith("fsync ")]
    assert len(syncs) >= LEAST_SYNCS
    for at in syncs:
        fail_at(plan, at, errno.EIO)


@pytest.mark.kind("D3", "D4", "D12", "W46", "W47")
@EVERY_PLAN
def test_the_service_is_killed_at_some_steps(plan: Plan) -> None:
    for at in sampled(changes_in(steps_of(plan)), 28, f"kill {plan}"):
        kill_at(plan, at)


@pytest.mark.kind("D3", "D4", "D12", "W46", "W47")
@EVERY_PLAN
def test_the_power_goes_at_some_steps(plan: Plan) -> None:
    for number, at in enumerate(sampled(changes_in(steps_of(plan)), 24, f"cut {plan}")):
        cut_at(plan, at, list(Adversary)[number % len(Adversary)])


@TWO_PLANS
def test_the_power_goes_again_during_the_rescue(plan: Plan) -> None:
    steps = len(steps_of(plan))
    for seed in range(6):
        twice(plan, steps, seed)


@pytest.mark.kind("W46")
@pytest.mark.parametrize("caller", NEEDED)
def test_a_sync_that_is_left_out_is_noticed(caller: str) -> None:
    name, killed_at = NEEDED[caller]
    plan = (PLANS | QUIET_PLANS)[name]
    if killed_at is None:
        with pytest.raises(AssertionError):
            quiet_day(plan, deaf_to=frozenset({caller}))
        return
    moments = [at for at, step in enumerate(steps_of(plan), 1) if step.startswith(killed_at)]

    def kill_at_each() -> None:
        for at in moments:
            kill_at(plan, at, deaf_to=frozenset({caller}))

    with pytest.raises(AssertionError):
        kill_at_each()


def test_the_way_to_the_journal_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs what it makes, and not the folders above: with them, it would be lost."""
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((status.st_dev, status.st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    journal = tmp_path / "made" / "by" / "nobody" / "journal.sqlite3"

    with SqliteJournal(journal):
        pass

    above = [tmp_path / "made" / "by", tmp_path / "made", tmp_path]
    assert {(path.stat().st_dev, path.stat().st_ino) for path in above} <= set(synced)


# --- in `make soak`: all of them ---------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@EVERY_PLAN
def test_an_operation_or_a_commit_fails_at_any_step(plan: Plan, number: int) -> None:
    for at in range(1, len(steps_of(plan)) + 1):
        fail_at(plan, at, number)


@pytest.mark.soak
@EVERY_PLAN
def test_the_service_is_killed_at_any_step(plan: Plan) -> None:
    for at in changes_in(steps_of(plan)):
        kill_at(plan, at)


@pytest.mark.soak
@pytest.mark.parametrize("adversary", Adversary)
@EVERY_PLAN
def test_the_power_goes_at_any_step(plan: Plan, adversary: Adversary) -> None:
    for at in changes_in(steps_of(plan)):
        cut_at(plan, at, adversary)


@pytest.mark.soak
@EVERY_PLAN
def test_power_cuts_and_kills_come_in_twos_and_threes(plan: Plan) -> None:
    steps = len(steps_of(plan))
    for seed in range(100, 100 + SEEDS):
        twice(plan, steps, seed)
