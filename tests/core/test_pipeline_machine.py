"""Anything may happen in any order; in the end every marked picture was cleaned exactly once.

A random world writes, closes, moves, links, truncates and takes away files under every name that a mask may
have; loses, repeats, reorders, relabels and delays what it tells; lists while all that goes on; kills, stalls
and misquotes workers; kills the service between any two commands; sets the clock; fills disks; unmounts the
inbox. What must never happen at all is checked by the fake world as it goes (see `conversation`); here it is
brought to rest, now and then and at the end, and everything is counted. In the end the inbox is emptied, and
nothing may be remembered.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

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

from tests.core.conversation import (
    NS,
    WORK_SEGMENTS,
    DiskFile,
    Process,
    ServiceCrashed,
    World,
    cleaned,
    sha256,
)
from watcher.core import events as e
from watcher.core.job import Fingerprint, Job, JobState
from watcher.core.policy import ArrivalPolicy, BatchPolicy, ColdPolicy, Policy, Recipe, WorkerPolicy
from watcher.core.supervision import EXIT_CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PICTURES: Final = ("a.jpg", "a.png", "sub/c.jpg", "alpha/d.png")
"""Two of them share a stem, so that their masks may be either's, or nobody's."""
CONTENTS: Final = (
    b"picture one",
    b"picture two",
    b"an alpha picture",
    b"bad picture",
    b"half a picture",
    b"poison",
    b"an engine's trouble",
    b"a huge picture",
    b"a standstill",
)
HOPELESS: Final = (b"bad", b"half", b"poison", b"engine", b"standstill")
MASKS: Final = (b"mask one", b"mask two", b"an empty mask")
RECIPES: Final = (
    Recipe("alpha", ("alpha/**",), ("mask", "alpha")),
    Recipe(marks=("mask", "marked_copy", "sidecar")),
)
BASE: Final = Policy(
    recipes=RECIPES,
    batching=BatchPolicy(max_batch=3),
    worker=WorkerPolicy(recycle_items=5, breaker_crashes=3),
    cold=ColdPolicy(max_parallel=2),
)
POLICIES: Final = (
    BASE,
    replace(BASE, cold=ColdPolicy(enabled=False)),
    replace(BASE, once=True),
    replace(BASE, worker=WorkerPolicy(lazy=True), batching=BatchPolicy(linger_s=0.5)),
    replace(BASE, after="delete"),
    replace(BASE, after="archive"),
    replace(BASE, arrivals=ArrivalPolicy(window=1)),
    replace(BASE, arrivals=ArrivalPolicy(window=3)),
    replace(BASE, once=True, arrivals=ArrivalPolicy(window_once=2)),
)
RESULTS: Final = {JobState.DONE, JobState.UNCHANGED}
REFUSED: Final = {JobState.FAILED, JobState.QUARANTINED}
HOUR_S: Final = 3600.0
ANSWERS_OF_HASHING: Final = e.FileHashed | e.FileUnreadable | e.FileVanished
"""These are told even while the inbox is away."""


def mask_names(picture: str) -> tuple[str, ...]:
    """Where a picture's mask, marked copy or sidecar may lie, by precedence."""
    folder, slash, name = picture.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    names = (
        *(f"{name}.mask.png", f"{stem}.mask.png", f"{stem}_mask.png", f"masks/{stem}.png"),
        *(f"{stem}.marked.{suffix}", f"{name}.marks.json"),
    )
    return tuple(f"{folder}{slash}{mask}" for mask in names)


def mask_of(picture: str, disk: dict[str, DiskFile]) -> str | None:
    """The mask (or what stands for one) of a picture, as section 4 of the design has it."""
    sure, *by_stem, copy, sidecar = (name if name in disk else None for name in mask_names(picture))
    stem = picture.rpartition(".")[0]
    rivals = [other for other in PICTURES if other in disk and other.rpartition(".")[0] == stem]
    mask = sure or (next(filter(None, by_stem), None) if len(rivals) <= 1 else None)
    if mask is not None or picture.startswith("alpha/"):
        return mask
    others = [f"{stem}.marked.{suffix}" for suffix in ("jpg", "png") if f"{stem}.marked.{suffix}" in disk]
    return copy or (next(iter(others), None) if len(rivals) <= 1 else None) or sidecar


FILES: Final = tuple(dict.fromkeys(name for path in PICTURES for name in (path, *mask_names(path))))

pictures = st.sampled_from(PICTURES)
files = st.sampled_from(FILES) | pictures
contents = st.sampled_from(CONTENTS)
masks = st.sampled_from(MASKS)
numbers = st.integers(0, 30)
fates = st.sampled_from(
    [*("told",) * 3, "lost", "twice", "late", "noticed, looked at later", *(hint.value for hint in e.Hint)]
)
"""What becomes of a notification; a hint's name: it comes as one of those, whatever happened."""
writers = st.sampled_from([e.Writer.PRESENT, e.Writer.PRESENT, e.Writer.UNKNOWN, e.Writer.NONE])

parts = st.sampled_from([0.0, 0.4, 1.0])


class WorldMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(POLICIES[0])
        self.broken = False
        self.overheard: list[e.Event] = []
        """Seen, and not told yet."""
        self.noticed: list[tuple[str, e.Hint, int]] = []
        """Noticed, and not looked at yet."""
        self.blind: set[Fingerprint] = set()
        """Of files that got other bytes while their fingerprint stayed: nobody may know of it."""
        self.operations_done = 0
        self.notes_lost = False
        """A kill came before the outbox had written or removed all the notes that it was asked to."""
        self.forgetful = False
        """Some process was beyond killing: it may have staged something that nobody waits for any more."""

    def do(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Do it; if the service dies of it, it is started again."""
        while True:
            try:
                action(*arguments)
            except ServiceCrashed:
                self.kill_service(self.operations_done)
                action, arguments = self.world.start, ()
            except BaseException:
                self.broken = True
                raise
            else:
                return

    def kill_service(self, operations: int) -> None:
        self.notes_lost |= len(self.world.operations) > operations
        self.world.kill_service(operations_done=operations)
        self.overheard.clear()
        self.noticed.clear()
        self.world.tick()

    @initialize(policy=st.sampled_from(POLICIES))
    def configure(self, policy: Policy) -> None:
        self.world = World(policy)
        self.world.disposes = True

    # --- what is told ---

    def tell(self, path: str, hint: e.Hint, fate: str) -> None:
        """Something happened at this path; what becomes of the notification is its fate."""
        world = self.world
        if fate in set(e.Hint):
            hint = e.Hint(fate)
        if world.lost or fate == "lost":
            return
        if fate == "late":
            self.overheard.append(world.observation(path, hint))
        elif fate == "noticed, looked at later":
            self.noticed.append((path, hint, world.now_ns))
        else:
            for _ in range(1 + (fate == "twice")):
                self.do(lambda: world.send(world.observation(path, hint)))

    @precondition(lambda self: self.overheard)
    @rule(which=numbers)
    def tell_late(self, which: int) -> None:
        event = self.overheard.pop(which % len(self.overheard))
        if not self.world.lost or isinstance(event, ANSWERS_OF_HASHING):
            self.do(self.world.send, event)

    @precondition(lambda self: self.world.lost)
    @rule(path=files)
    def miss_file_meanwhile(self, path: str) -> None:
        """He who hashes finds no file where there is no inbox."""
        self.do(self.world.send, e.FileVanished(path, self.world.now_ns))

    @precondition(lambda self: self.noticed and not self.world.lost)
    @rule(which=numbers)
    def look_late(self, which: int) -> None:
        path, hint, noticed_ns = self.noticed.pop(which % len(self.noticed))
        seen = self.world.observation(path, hint)
        assert isinstance(seen, e.FileObserved | e.FileVanished)
        self.do(self.world.send, replace(seen, observed_ns=noticed_ns))

    @rule(path=files, hint=st.sampled_from(e.Hint), fate=fates)
    def tell_of_nothing(self, path: str, hint: e.Hint, fate: str) -> None:
        if path in self.world.evidence.ever:
            self.tell(path, hint, fate)

    @rule()
    def rescan(self) -> None:
        self.do(self.world.rescan)

    @rule(slow=st.booleans(), old=st.sets(st.sampled_from(FILES)))
    def look_slowly(self, *, slow: bool, old: set[str]) -> None:
        """Looks, hashes and listings take their time; a listing shows some paths as they were before."""
        self.world.slow_looks = slow
        self.world.is_seen_before = old.__contains__
        if not slow:
            self.do(self.world.finish_looks)

    @precondition(lambda self: not self.world.lost)
    @rule(path=files, data=contents | masks, fate=fates, gone=st.booleans(), old=st.booleans())
    def list_meanwhile(self, path: str, data: bytes, fate: str, *, gone: bool, old: bool) -> None:
        """A file comes, changes or goes while a listing is made, which shows it as it is or as it was."""
        world = self.world
        finish_listing = world.begin_listing()
        world.tick()
        if gone:
            world.unlink(path)
        else:
            world.replace(path, data)
        self.tell(path, e.Hint.MODIFIED if gone else e.Hint.MOVED_IN, fate)
        world.is_seen_before = lambda seen: old and seen == path
        listed = finish_listing()
        if listed is not None:
            self.do(world.send, listed)

    @precondition(lambda self: self.world.waiting_looks)
    @rule(which=numbers, told=st.sampled_from([True, True, False]))
    def finish_look(self, which: int, *, told: bool) -> None:
        """One of the questions is answered, in any order; what was found may be told much later."""
        answer = self.world.next_look(which % self.world.waiting_looks)
        if answer is not None and told:
            self.do(self.world.send, answer)
        elif answer is not None:
            self.overheard.append(answer)

    @rule(answers=st.booleans())
    def answer_looks(self, *, answers: bool) -> None:
        self.world.answers_looks = answers

    # --- pictures and masks, complete at once ---

    @rule(path=pictures, data=contents, fate=fates)
    def move_in(self, path: str, data: bytes, fate: str) -> None:
        self.world.replace(path, data)
        self.tell(path, e.Hint.MOVED_IN, fate)

    @rule(path=pictures, name=st.integers(0, 5), data=masks, fate=fates)
    def move_mask_in(self, path: str, name: int, data: bytes, fate: str) -> None:
        mask = mask_names(path)[name]
        self.world.replace(mask, data)
        self.tell(mask, e.Hint.MOVED_IN, fate)

    @rule(path=pictures, data=contents, mask=masks, picture_first=st.booleans())
    def move_both_in(self, path: str, data: bytes, mask: bytes, *, picture_first: bool) -> None:
        both = [(path, data), (f"{path}.mask.png", mask)]
        for name, content in both if picture_first else reversed(both):
            self.world.replace(name, content)
            self.tell(name, e.Hint.MOVED_IN, "told")

    @precondition(lambda self: self.world.disk)
    @rule(which=numbers, new=files, fate=fates, fate_of_old=fates, stamped=st.booleans())
    def rename(self, which: int, new: str, fate: str, fate_of_old: str, *, stamped: bool) -> None:
        world = self.world
        old = sorted(world.disk)[which % len(world.disk)]
        if old == new:
            return
        world.move(old, new)
        if stamped:
            world.restamp(world.disk[new])
        self.tell(old, e.Hint.MODIFIED, fate_of_old)
        self.tell(new, e.Hint.MOVED_IN, fate)

    @rule(old=pictures, new=pictures, data=contents, steps=st.integers(0, 4), fate=fates)
    def rename_while_served(self, old: str, new: str, data: bytes, steps: int, fate: str) -> None:
        self.move_both_in(old, data, MASKS[0], picture_first=False)
        for _ in range(steps):
            for process in self.alive[:1]:
                self.do(process.step)
        self.rename_with_mask(old, new, fate)

    @rule(path=pictures, first=contents, second=contents)
    def change_while_hashed(self, path: str, first: bytes, second: bytes) -> None:
        """What was found out about a file is told when the file is another already."""
        world = self.world
        world.slow_looks = True
        self.move_in(path, first, "told")
        answers = [world.next_look() for _ in range(world.waiting_looks)]
        self.move_in(path, second, "told")
        for answer in answers:
            if isinstance(answer, ANSWERS_OF_HASHING) or (answer is not None and not world.lost):
                self.do(world.send, answer)
        world.slow_looks = False
        self.do(world.finish_looks)

    @rule(old=pictures, new=pictures, fate=fates)
    def rename_with_mask(self, old: str, new: str, fate: str) -> None:
        for suffix in ("", ".mask.png"):
            if old != new and old + suffix in self.world.disk:
                self.world.move(old + suffix, new + suffix)
                self.tell(old + suffix, e.Hint.MODIFIED, fate)
                self.tell(new + suffix, e.Hint.MOVED_IN, fate)

    @precondition(lambda self: self.world.disk)
    @rule(which=numbers, new=files, fate=fates)
    def link(self, which: int, new: str, fate: str) -> None:
        old = sorted(self.world.disk)[which % len(self.world.disk)]
        if old != new:
            self.world.link(old, new)
            self.tell(new, e.Hint.CREATED, fate)

    @precondition(lambda self: self.world.disk)
    @rule(which=numbers, fate=fates)
    def remove(self, which: int, fate: str) -> None:
        path = sorted(self.world.disk)[which % len(self.world.disk)]
        self.world.unlink(path)
        self.world.tick()
        self.tell(path, e.Hint.MODIFIED, fate)

    # --- files that are written ---

    def write(self, path: str, data: bytes, writer: e.Writer, fate: str) -> None:
        hint = e.Hint.MODIFIED if path in self.world.disk else e.Hint.CREATED
        self.world.put(path, data, writer=writer)
        self.tell(path, hint, fate)

    @rule(path=files, data=contents | masks, writer=writers, fate=fates, part=parts)
    def begin_to_write(self, path: str, data: bytes, writer: e.Writer, fate: str, part: float) -> None:
        """A writer has come so far; `part` 0: it has made the file, or emptied it."""
        self.write(path, data[: round(part * len(data))], writer, fate)

    @rule(path=files, data=contents | masks, writer=writers, fate=fates)
    def preallocate(self, path: str, data: bytes, writer: e.Writer, fate: str) -> None:
        self.write(path, bytes(len(data)), writer, fate)

    @rule(path=files, data=contents | masks, fate=fates)
    def finish_writing(self, path: str, data: bytes, fate: str) -> None:
        """The last bytes, and the close."""
        if path in self.world.disk:
            self.world.put(path, data, writer=e.Writer.NONE)
            self.tell(path, e.Hint.CLOSED, fate)

    @precondition(lambda self: self.world.disk)
    @rule(which=numbers, fate=fates)
    def close(self, which: int, fate: str) -> None:
        path = sorted(self.world.disk)[which % len(self.world.disk)]
        self.world.disk[path].writer = e.Writer.NONE
        self.tell(path, e.Hint.CLOSED, fate)

    @rule(path=pictures, data=contents, pause_s=st.sampled_from([0.05, 0.4, 1.5]), fate=fates)
    def append_with_closes(self, path: str, data: bytes, pause_s: float, fate: str) -> None:
        """Open, append, close, and again: nobody has it open in between."""
        for part in (4, 9, len(data)):
            self.write(path, data[:part], e.Writer.NONE, "lost")
            self.tell(path, e.Hint.CLOSED, fate)
            self.do(self.world.advance, pause_s)

    @precondition(lambda self: self.world.disk)
    @rule(which=numbers, how=st.sampled_from(["touch", "chmod", "rewrite"]), data=contents, fate=fates)
    def touch(self, which: int, how: str, data: bytes, fate: str) -> None:
        """Other times or rights and the same bytes; or other bytes of the same size and the old mtime."""
        world = self.world
        path = sorted(world.disk)[which % len(world.disk)]
        file = world.disk[path]
        if how == "chmod":
            world.restamp(file)
        elif how == "touch":
            world.put(path, file.data, writer=file.writer)
        else:
            mtime_ns = file.fingerprint.mtime_ns
            world.put(path, data[: len(file.data)].ljust(len(file.data), b"."), writer=file.writer)
            world.restamp(world.disk[path], mtime_ns=mtime_ns)
        self.tell(path, e.Hint.MODIFIED if how != "chmod" else e.Hint.CREATED, fate)

    # --- what cannot be read ---

    @rule(path=pictures, data=contents, fate=fates)
    def rewrite_within_a_tick(self, path: str, data: bytes, fate: str) -> None:
        """Other bytes before a worker reads them, and nothing but the bytes tells."""
        file, world = self.world.disk.get(path), self.world
        waits = {item.job.source for process in self.alive for item in process.unreported}
        ready = {job.source for job in world.journal.jobs.values() if job.state is JobState.READY}
        if file is None or path not in waits | ready:
            return
        file.data = data[: len(file.data)].ljust(len(file.data), b"!")
        world.had(file)
        self.blind.add(file.fingerprint)
        self.tell(path, e.Hint.MODIFIED, fate)

    @precondition(lambda self: self.world.disk)
    @rule(
        which=numbers, reason=st.sampled_from([None, "permission denied", "input/output error"]), fate=fates
    )
    def deny(self, which: int, reason: str | None, fate: str) -> None:
        path = sorted(self.world.disk)[which % len(self.world.disk)]
        self.world.disk[path].unreadable = reason
        self.world.restamp(self.world.disk[path])
        self.tell(path, e.Hint.CREATED, fate)

    @rule(folders=st.sampled_from([(), (), ("sub",), ("alpha",), ("masks", "sub")]))
    def deny_folders(self, folders: tuple[str, ...]) -> None:
        self.world.unreadable_folders = folders

    @rule()
    def unmount(self) -> None:
        if not self.world.lost:
            self.do(self.world.lose)

    @precondition(lambda self: self.world.lost)
    @rule()
    def mount(self) -> None:
        self.do(self.world.find)

    # --- time ---

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 7.0, 65.0, 400.0]))
    def advance(self, seconds: float) -> None:
        self.do(self.world.advance, seconds)

    @rule(hours=st.sampled_from([-30 * 24.0, -24.0, -1.0, -0.003, 0.003, 1.0, 24.0]))
    def set_wall_clock(self, hours: float) -> None:
        self.world.wall_shift_s += hours * HOUR_S

    @rule(seconds=st.sampled_from([5.0, 600.0, 9 * HOUR_S]))
    def sleep(self, seconds: float) -> None:
        """The machine is suspended: nobody was awake when the timers were due."""
        self.world.now_ns += round(seconds * NS)
        self.do(self.world.send, e.TimerFired())

    # --- processes ---

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.world.processes if process.alive]

    @precondition(lambda self: self.alive)
    @rule(which=numbers)
    def step(self, which: int) -> None:
        self.do(self.alive[which % len(self.alive)].step)

    @rule()
    def work(self) -> None:
        self.do(self.world.work)

    @precondition(lambda self: self.alive)
    @rule(which=numbers)
    def crash_worker(self, which: int) -> None:
        self.do(self.alive[which % len(self.alive)].crash)

    @precondition(lambda self: self.alive)
    @rule(which=numbers, code=st.sampled_from([0, 1, 70, 75, 75, 76, 78, -11]))
    def exit_worker(self, which: int, code: int) -> None:
        """It ends on its own account, whatever it has in hand."""
        policy = self.world.policy
        if code == EXIT_CONFIGURATION and (policy.once or not policy.cold.enabled):
            return  # nobody would be left to serve
        self.do(lambda: self.alive[which % len(self.alive)].exit(code))

    @precondition(lambda self: self.alive)
    @rule(which=numbers, unkillable=st.booleans())
    def stall_worker(self, which: int, *, unkillable: bool) -> None:
        process = self.alive[which % len(self.alive)]
        process.stuck = True
        process.unkillable = unkillable
        self.forgetful |= process.unkillable

    @property
    def at_work(self) -> list[Process]:
        """Those that have something to do and can do it."""
        return [
            process
            for process in self.alive
            if process.is_ready and process.batch and process.unreported and not process.stuck
        ]

    @precondition(lambda self: self.at_work)
    @rule(
        which=numbers,
        phase=st.sampled_from(list(WORK_SEGMENTS)),
        units=st.sampled_from([0, 1, 1_000_000, 200_000_000]),
        then=st.sampled_from(["goes on", "stands still", "dies"]),
    )
    def come_to_a_phase(self, which: int, phase: str, units: int, then: str) -> None:
        """It tells of its phases; what becomes of it in the last one is another matter."""
        process = self.at_work[which % len(self.at_work)]
        self.do(lambda: process.come_to(phase, units=units))
        if then == "stands still":
            process.stuck = True
        elif then == "dies" and process.alive:
            self.do(process.crash)

    @precondition(lambda self: self.at_work)
    @rule(which=numbers, steps=st.integers(0, 2))
    def give_back(self, which: int, steps: int) -> None:
        """It has enough of its batch, and has done something of it."""
        process = self.at_work[which % len(self.at_work)]
        for _ in range(1 + steps):
            if process in self.at_work:
                self.do(process.step)
        if process in self.at_work:
            self.do(lambda: process.batch_done(give_back=True))

    @precondition(lambda self: self.alive)
    @rule(which=numbers, deaf=st.booleans())
    def be_deaf(self, which: int, *, deaf: bool) -> None:
        """Its thread hangs while it has nothing to do."""
        self.alive[which % len(self.alive)].deaf = deaf

    @precondition(lambda self: self.alive)
    @rule(which=numbers, number=st.integers(0, 3))
    def pong(self, which: int, number: int) -> None:
        """It answers a ping of long ago, or of never."""
        process = self.alive[which % len(self.alive)]
        self.do(self.world.send, e.WorkerPonged(process.origin, number))

    @rule(available_bytes=st.sampled_from([0, 300_000_000, 10_000_000_000]))
    def observe_memory(self, available_bytes: int) -> None:
        self.do(self.world.send, e.MemoryObserved(available_bytes))

    @precondition(lambda self: self.at_work)
    @rule(rss_bytes=st.sampled_from([1_000_000_000, 9_000_000_000]), open_files=st.sampled_from([None, 999]))
    def end_batch_used_up(self, rss_bytes: int, open_files: int | None) -> None:
        """It has leaked while it served its batch."""
        process = self.at_work[0]
        while process in self.at_work:
            self.do(process.step)
        if process.alive and process.batch and not process.stuck:
            self.do(lambda: process.batch_done(rss_bytes=rss_bytes, open_files=open_files))

    @precondition(lambda self: any(process.stuck for process in self.alive))
    @rule(die=st.booleans())
    def end_stall(self, *, die: bool) -> None:
        """It goes on as if nothing had been, or dies at last: as does one that a signal has waited for."""
        process = next(process for process in self.alive if process.stuck)
        die = die or process.unkillable
        process.stuck = process.unkillable = False
        if die:
            self.do(process.crash)

    @precondition(lambda self: any(process.batch and process.read for process in self.alive))
    @rule()
    def forget_items(self) -> None:
        """A worker says that its batch is done, and has not reported on all of it."""
        self.do(next(process for process in self.alive if process.batch and process.read).batch_done)

    @precondition(lambda self: any(process.batch and process.unreported for process in self.alive))
    @rule()
    def fail_engine(self) -> None:
        process = next(process for process in self.alive if process.batch and process.unreported)

        def fail() -> None:
            process.failed(process.begin(), "engine")

        if process.is_ready and not process.stuck:
            self.do(fail)

    @precondition(lambda self: self.world.evidence.reports)
    @rule(which=numbers, change=st.sampled_from(["", "", "job", "batch", "incarnation"]))
    def say_again(self, which: int, change: str) -> None:
        """A report comes once more, maybe when its process is long dead; or it is of nobody's work."""
        report: Any = self.world.evidence.reports[which % len(self.world.evidence.reports)]
        if isinstance(report, e.WorkerReady | e.WorkerExited):
            return
        if change == "incarnation":
            report = replace(report, origin=replace(report.origin, incarnation=999))
        elif change and hasattr(report, change):
            report = replace(report, **{change: "nobody's-1"})
        self.do(self.world.send, report)

    @rule(steps=st.integers(1, 6), age=st.integers(1, 6))
    def repeat_reports(self, steps: int, age: int) -> None:
        """While the outbox is slow a worker says some things twice."""
        self.world.patient = True
        for _ in range(steps):
            for process in self.alive[:1]:
                self.do(process.step)
            for report in tuple(self.world.evidence.reports)[-age:][:1]:
                if not isinstance(report, e.WorkerReady | e.WorkerExited):
                    self.do(self.world.send, report)
        self.world.patient = False
        self.do(self.world.finish_operations)

    # --- the service ---

    @rule(commands=numbers, operations=st.integers(0, 3))
    def crash_service_soon(self, commands: int, operations: int) -> None:
        self.world.crash_in = commands
        self.operations_done = operations

    @rule(operations=st.integers(0, 3), commands=st.lists(st.integers(0, 12), max_size=3))
    def crash_service(self, operations: int, commands: list[int]) -> None:
        """It is killed, and killed again while it starts, maybe several times."""
        self.kill_service(operations)
        for count in commands:
            self.world.crash_in = count
            try:
                self.world.start()
            except ServiceCrashed:
                self.kill_service(operations)
            except BaseException:
                self.broken = True
                raise
            else:
                self.world.crash_in = None
                return
        self.do(self.world.start)

    @rule(operations=st.integers(0, 3), hints=st.lists(st.sampled_from(e.Hint), max_size=6))
    def start_unlisted(self, operations: int, hints: list[e.Hint]) -> None:
        """After a kill it is told of files before the first listing is there."""
        world = self.world
        self.kill_service(operations)
        world.slow_looks = True
        self.do(world.start)
        for hint, path in zip(hints, sorted(world.disk, reverse=True), strict=False):
            self.tell(path, hint, "told")

    @precondition(lambda self: not self.world.draining)
    @rule()
    def ask_to_stop(self) -> None:
        self.do(self.world.send, e.DrainRequested("SIGTERM"))

    @precondition(lambda self: self.world.draining)
    @rule()
    def stop(self) -> None:
        self.do(self.finish_drain)

    def finish_drain(self) -> None:
        world = self.world
        for _ in range(60):
            if world.pipeline.is_drained:
                break
            if not any(process.step() for process in tuple(world.processes)):
                world.finish_looks()
                world.finish_operations()
                if not self.alive and not world.pipeline.is_drained:
                    assert world.pipeline.next_wakeup_ns() is not None, "it stops, and waits for nobody"
                    world.advance(5.0)  # a publication that was blocked is tried again
                world.advance(1.0)
        assert world.pipeline.is_drained
        self.kill_service(len(world.operations))
        world.start()

    @rule(which=numbers)
    def retry(self, which: int) -> None:
        ended = [job for job in self.world.journal.jobs.values() if job.is_final]
        if ended:
            self.do(self.world.send, e.RetryRequested((ended[which % len(ended)],), ("nobody's-1",)))

    # --- the outbox ---

    @rule(reason=st.sampled_from([None, None, "no space left on device"]))
    def fill_outbox(self, reason: str | None) -> None:
        self.world.outbox_refuses = reason

    @rule(full=st.booleans())
    def fill_staging(self, *, full: bool) -> None:
        self.world.staging_full = full

    @precondition(lambda self: self.world.staging)
    @rule(which=numbers)
    def lose_staged(self, which: int) -> None:
        """Somebody tidies up."""
        self.world.staging.pop(sorted(self.world.staging)[which % len(self.world.staging)])

    @rule(patient=st.booleans())
    def dawdle(self, *, patient: bool) -> None:
        self.world.patient = patient

    @precondition(lambda self: self.world.operations)
    @rule(count=st.integers(1, 3))
    def finish_operations(self, count: int) -> None:
        self.do(lambda: self.world.finish_operations(min(count, len(self.world.operations))))

    @rule(count=st.integers(0, 4), path=pictures, data=contents, change=st.booleans(), kill=st.booleans())
    def publish_slowly(self, count: int, path: str, data: bytes, *, change: bool, kill: bool) -> None:
        """The outbox has done some of what it was asked when a picture changes, or the service is killed."""
        world = self.world
        world.patient = True
        self.do(world.work)
        self.do(lambda: world.finish_operations(min(count, len(world.operations))))
        if change and path in world.disk:
            world.put(path, data)
        if kill:
            self.kill_service(count % 3)
            self.do(world.start)
        world.patient = False
        self.do(world.finish_operations)

    @rule(seconds=st.sampled_from([0.01, 7.0, 65.0]), stop=st.booleans())
    def block_outbox(self, seconds: float, *, stop: bool) -> None:
        """It takes nothing for a while, and maybe the service stops meanwhile."""
        world = self.world
        world.outbox_refuses = "read-only file system"
        self.do(world.work)
        self.do(world.advance, seconds)
        if stop:
            if not world.draining:
                self.do(world.send, e.DrainRequested("SIGTERM"))
            self.do(self.stop_if_asked)
        world.outbox_refuses = None

    def stop_if_asked(self) -> None:
        if self.world.draining:
            self.finish_drain()

    @rule(name=pictures)
    def take_name(self, name: str) -> None:
        """Somebody puts a file of their own into the outbox."""
        if name not in self.world.outbox:
            self.world.outbox[name] = b"somebody's"

    @precondition(lambda self: self.world.outbox)
    @rule(which=numbers, changed=st.booleans())
    def use_output(self, which: int, *, changed: bool) -> None:
        """Somebody takes a result away, or edits it."""
        world = self.world
        name = sorted(world.outbox)[which % len(world.outbox)]
        if world.outbox[name] != b"somebody's":
            world.evidence.edited.add(name)
            del world.outbox[name]
            if changed:
                world.outbox[name] = b"somebody's"

    # --- rest ---

    @rule()
    def rest(self) -> None:
        """All goes well for a while: whatever is there is worked off."""
        self.come_to_rest()

    def come_to_rest(self) -> None:
        self.do(self._come_to_rest)
        try:
            self.check_at_rest()
        except BaseException:
            self.broken = True
            raise

    def _come_to_rest(self) -> None:
        world = self.world
        world.crash_in = None
        world.answers_looks = True
        world.patient, world.outbox_refuses, world.staging_full = False, None, False
        world.unreadable_folders = ()
        world.is_seen_before = lambda _path: False
        world.slow_looks = False
        for file in world.disk.values():
            file.writer, file.unreadable = e.Writer.NONE, None
        for process in self.alive:
            if process.stuck or process.unkillable:
                process.stuck = process.unkillable = False
                process.crash()
        if world.draining:
            self.finish_drain()
        if world.lost:
            world.find()
        while self.overheard:
            world.send(self.overheard.pop(0))
        world.finish_looks()
        world.finish_operations()
        world.settle()
        world.rescan()
        world.settle()

    def teardown(self) -> None:
        if self.broken:
            return  # the rule that failed says why
        world = self.world
        self.come_to_rest()
        world.restart()
        world.settle()
        assert world.staging == {}
        self.check_at_rest()
        for path in tuple(world.disk):
            world.unlink(path)
        world.rescan()
        world.settle()
        assert set(remembered(world.pipeline)) == set()
        assert world.journal.files == {}

    # --- what must be true then ---

    def check_at_rest(self) -> None:
        world = self.world
        assert world.is_idle()
        assert world.staging == {} or self.forgetful
        self.check_records()
        active = {job.source: job for job in world.journal.jobs.values() if not job.is_final}
        self.check_memory(active)
        for path, file in world.disk.items():
            job = active.pop(path, None)
            if path in PICTURES and file.data and file.fingerprint not in self.blind:
                self.check_picture(path, file, job)
        assert active == {}

    def check_memory(self, active: dict[str, Job]) -> None:
        """Only what is there is remembered, and only so much of it."""
        world = self.world
        known = {*world.disk, *active, *(job.id for job in active.values())}
        empty = {path for path in PICTURES if path in world.disk and not self.is_complete(path)}
        # people may want them again as soon as they are complete
        known |= {job.id for job in world.journal.jobs.values() if job.source in empty}
        words = Counter(remembered(world.pipeline))
        assert set(words) <= known, set(words) - known
        assert all(count <= 12 for count in words.values()), words
        assert set(world.journal.files) <= set(world.disk)

    def is_complete(self, picture: str) -> bool:
        """It has bytes, and so has its mask, if there is one."""
        disk = self.world.disk
        mask = mask_of(picture, disk)
        return bool(disk[picture].data) and (mask is None or bool(disk[mask].data))

    def check_records(self) -> None:
        world = self.world
        ended = [job for job in world.journal.jobs.values() if job.is_final]
        assert Counter(line["job"] for line in world.journal.lines) == Counter(job.id for job in ended)
        results = [job for job in ended if job.state in RESULTS]
        for job in results:
            if job.output not in world.evidence.edited:
                assert sha256(world.outbox[str(job.output)]) == job.sha256_out
        names = Counter(job.output for job in results if job.output not in world.evidence.edited)
        assert set(names.values()) <= {1}, "two jobs have one output"
        if not world.evidence.edited:  # a copy of a result that was taken away must be made anew
            # by path: a copy does not wait for one that cannot go on, and then each is served for itself
            served = Counter(
                (job.source, job.identity) for job in results if not (job.retry_of or job.duplicate_of)
            )
            assert set(served.values()) <= {1}, "a model ran twice for one result"
        here = Counter((job.source, job.identity) for job in results if job.retry_of is None)
        assert set(here.values()) <= {1}, "a path has two results of the same content"
        outputs = {name for name, data in world.outbox.items() if data != b"somebody's"}
        assert outputs - world.evidence.edited == {job.output for job in results} - world.evidence.edited

    def check_picture(self, path: str, file: DiskFile, active: Job | None) -> None:
        world = self.world
        name = mask_of(path, world.disk)
        mask = world.disk[name] if name is not None else None
        if mask is not None and (not mask.data or mask.fingerprint in self.blind):
            return  # its mask has not arrived, or has other bytes than anybody can know
        jobs = [
            job
            for job in world.journal.jobs.values()
            if job.source == path and job.identity.picture_sha256 == sha256(file.data)
        ]
        of_mask = [job for job in jobs if job.identity.mask_sha256 == (sha256(mask.data) if mask else None)]
        self.check_notes(path, of_mask, active)
        marked = mask is not None or (b"alpha" in file.data and path.startswith("alpha/"))
        if any(word in file.data for word in HOPELESS):
            assert active is None
            assert any(job.state in REFUSED for job in of_mask), of_mask
        elif marked:
            assert active is None, active
            results = [job for job in of_mask if job.state in RESULTS]
            # that its mask has gone since it was served changes nothing
            unmasked_since = mask is None and any(job.state in RESULTS for job in jobs)
            assert results or unmasked_since or self.was_given_up(of_mask), of_mask
            for job in results:
                expected = file.data if job.state is JobState.UNCHANGED else None
                made = expected or cleaned(file.data, mask.data if mask else b"")
                assert job.sha256_out == sha256(made)
        elif active is not None:
            assert active.state is JobState.HELD
        else:
            needed_nothing = any(job.state in RESULTS for job in jobs)
            assert needed_nothing or any(job.state in REFUSED for job in of_mask), jobs

    def was_given_up(self, jobs: list[Job]) -> bool:
        """These bytes were refused for what processes did, and not for what they are."""
        if not any(job.state in REFUSED for job in jobs):
            return False
        same = [job for job in self.world.journal.jobs.values() if job.identity == jobs[-1].identity]
        return any(
            self.world.evidence.spent[job.id] >= self.world.policy.retry.engine_attempts for job in same
        )

    def check_notes(self, path: str, jobs: list[Job], active: Job | None) -> None:
        """The notes of a picture say what became of the bytes that are there now."""
        notes = {kind for kind, source in self.world.notes if source == path}
        if self.notes_lost:
            return
        if active is not None:
            assert notes == {"held"}
        elif jobs and jobs[-1].state in REFUSED:
            assert notes == {"failed"}
        elif jobs and jobs[-1].state in RESULTS:
            assert notes == set()


# --- memory ------------------------------------------------------------------------------------------------

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9]+")
_LEAVES: Final = (str, bytes, int, float, type(None), Enum, Policy, Recipe, FunctionType, ModuleType, type)
_LAST_ONE: Final = "_last_finished"
"""One record, however many there were: it is shown by `watcher status`."""


def remembered(root: object) -> Iterator[str]:
    """Every path and job id that an object of the core holds, as often as it does; of a job, its own two."""
    seen = {id(root)}
    left: list[object] = [root]
    while left:
        for part in _parts(left.pop()):
            if isinstance(part, str) and (part in FILES or _JOB_ID.fullmatch(part)):
                yield part
            if not isinstance(part, _LEAVES) and id(part) not in seen:
                seen.add(id(part))
                left.append(part)


def _parts(thing: object) -> Iterator[object]:
    if isinstance(thing, Job):
        yield from (thing.id, thing.source)
    elif isinstance(thing, dict):
        yield from thing
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from thing
    elif isinstance(thing, MethodType):
        yield thing.__self__
    elif is_dataclass(thing):
        yield from (getattr(thing, field.name) for field in fields(thing))
    else:
        yield from (value for name, value in getattr(thing, "__dict__", {}).items() if name != _LAST_ONE)


QUICK = settings(
    max_examples=100,
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
        WorldMachine, settings=settings(QUICK, max_examples=6000, stateful_step_count=60)
    )
