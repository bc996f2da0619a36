"""What lies in the inbox: listings against notifications, memory, notices; without the jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from watcher.core import events as e
from watcher.core.commands import Command, ForgetFile, HashFile, Log, ObserveFile, RescanInbox, SaveFile
from watcher.core.intake import Intake
from watcher.core.job import Fingerprint
from watcher.core.pairing import Recipes
from watcher.core.policy import ArrivalPolicy, Recipe

_Command = TypeVar("_Command")
NS = 1_000_000_000
SHA = "ab" * 32


class Desk:
    """An intake whose clock stands and whose commands are kept."""

    def __init__(self, window: int = 1000, **policy: Any) -> None:
        self.said: list[Command] = []
        self.now_ns = 1000 * NS
        recipes = Recipes((Recipe("alpha", ("alpha/**",), ("alpha",)), Recipe()))
        self.in_line = 0
        self.intake = Intake(
            ArrivalPolicy(**policy), recipes, self.said.append, in_line=lambda: self.in_line, window=window
        )

    @property
    def now(self) -> e.Instant:
        return e.Instant(self.now_ns, 1_800_000_000.0 + self.now_ns / NS)

    def fingerprint(self, size_bytes: int = 10) -> Fingerprint:
        wall_ns = round(self.now.wall_s * NS)
        return Fingerprint(1, size_bytes, wall_ns, wall_ns)

    def see(self, path: str, size_bytes: int = 10, hint: e.Hint = e.Hint.MOVED_IN) -> Fingerprint:
        self.now_ns += 1
        fingerprint = self.fingerprint(size_bytes)
        seen = e.FileObserved(path, fingerprint, hint, e.Writer.NONE, 1, self.now_ns)
        self.intake.observed(seen, self.now)
        return fingerprint

    def have(self, path: str, size_bytes: int = 10) -> Fingerprint:
        """The file arrives and is hashed."""
        fingerprint = self.see(path, size_bytes)
        self.now_ns += 1
        self.intake.hashed(e.FileHashed(path, fingerprint, SHA, self.now_ns))
        return fingerprint

    def show(self, files: dict[str, Fingerprint], unreadable: tuple[str, ...] = ()) -> None:
        self.now_ns += 10
        self.intake.listed_now(e.InboxListed(files, self.now_ns - 5, self.now_ns, unreadable), self.now)
        self.intake.admit()

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)
        self.intake.fire_timers(self.now)

    def take(self, kind: type[_Command]) -> list[_Command]:
        taken: list[_Command] = [command for command in self.said if isinstance(command, kind)]
        self.said[:] = [command for command in self.said if not isinstance(command, kind)]
        return taken


def test_a_settled_file_is_hashed_once_and_remembered() -> None:
    desk = Desk()
    fingerprint = desk.have("a.jpg")
    assert desk.take(HashFile) == [HashFile("a.jpg", fingerprint)]
    assert desk.take(SaveFile) == [SaveFile(e.SavedFile("a.jpg", fingerprint, SHA))]
    assert desk.intake.take_touched() == ["a.jpg"]
    assert desk.intake.take_touched() == []
    desk.intake.observed(
        e.FileObserved("a.jpg", fingerprint, e.Hint.MODIFIED, e.Writer.NONE, 1, desk.now_ns), desk.now
    )
    desk.show({"a.jpg": fingerprint})
    assert not desk.take(HashFile)
    assert not desk.take(ObserveFile)


def test_a_hash_of_other_bytes_is_no_hash() -> None:
    desk = Desk()
    old = desk.see("a.jpg")
    desk.see("a.jpg", 11)
    desk.intake.hashed(e.FileHashed("a.jpg", old, SHA, desk.now_ns))
    assert desk.intake.facts("a.jpg") is None


def test_facts_need_picture_and_mask() -> None:
    desk = Desk()
    desk.have("a.jpg")
    assert desk.intake.facts("a.jpg") is not None
    desk.see("a.jpg.mask.png")
    assert desk.intake.facts("a.jpg") is None
    desk.have("a.jpg.mask.png", 11)
    facts = desk.intake.facts("a.jpg")
    assert facts is not None
    assert facts.mask_path == "a.jpg.mask.png"
    assert facts.last is facts.mask
    assert desk.intake.facts("a.jpg.mask.png") is None


def test_a_recipe_without_the_source_mask_has_none() -> None:
    desk = Desk()
    desk.have("alpha/a.jpg")
    desk.have("alpha/a.jpg.mask.png")
    facts = desk.intake.facts("alpha/a.jpg")
    assert facts is not None
    assert facts.mask is None


def test_a_listing_asks_about_what_is_new_or_changed_and_drops_what_it_lacks() -> None:
    desk = Desk()
    same, other = desk.have("same.jpg"), desk.have("other.jpg")
    desk.have("gone.jpg")
    desk.take(ObserveFile)
    desk.intake.take_touched()
    desk.show({"same.jpg": same, "other.jpg": replace(other, ctime_ns=1), "new.jpg": same})
    assert desk.take(ObserveFile) == [ObserveFile("other.jpg"), ObserveFile("new.jpg")]
    assert desk.take(ForgetFile) == [ForgetFile("gone.jpg")]
    assert desk.intake.take_touched() == ["gone.jpg"]
    assert not desk.intake.is_settled
    assert desk.intake.is_present("new.jpg")
    assert desk.intake.is_gone("gone.jpg")


def test_what_was_seen_after_a_listing_began_is_not_gone() -> None:
    desk = Desk()
    desk.intake.inbox_found(e.InboxFound("native"))
    started_ns = desk.now_ns
    desk.have("late.jpg")
    desk.intake.listed_now(e.InboxListed({}, started_ns, desk.now_ns), desk.now)
    assert desk.intake.is_present("late.jpg")


def test_what_lies_in_an_unreadable_folder_is_neither_gone_nor_forgotten() -> None:
    desk = Desk()
    desk.have("a/b/c.jpg")
    desk.have("ab/c.jpg")
    desk.show({}, unreadable=("a",))
    assert desk.intake.is_present("a/b/c.jpg")
    assert not desk.intake.is_gone("a/never-seen.jpg")
    assert desk.intake.is_gone("ab/c.jpg")
    assert desk.take(ForgetFile) == [ForgetFile("ab/c.jpg")]


def test_memory_counts_only_with_the_same_fingerprint() -> None:
    desk = Desk()
    known, changed, absent = desk.fingerprint(1), desk.fingerprint(2), desk.fingerprint(3)
    desk.intake.restore(
        [
            e.SavedFile(path, fingerprint, SHA)
            for path, fingerprint in (("known.jpg", known), ("changed.jpg", changed), ("absent.jpg", absent))
        ]
    )
    desk.show({"known.jpg": known, "changed.jpg": replace(changed, inode=99)})
    facts = desk.intake.facts("known.jpg")
    assert facts is not None
    assert facts.picture.restored
    assert desk.intake.facts("changed.jpg") is None
    assert desk.take(ObserveFile) == [ObserveFile("changed.jpg")]
    assert desk.take(ForgetFile) == [ForgetFile("absent.jpg")]
    assert sorted(desk.intake.take_touched()) == ["absent.jpg", "known.jpg"]


def test_a_look_that_goes_unanswered_is_repeated_and_not_waited_for() -> None:
    desk = Desk()
    fingerprint = desk.fingerprint()
    desk.show({"mute.jpg": fingerprint})
    settled = [desk.intake.is_settled]
    desk.take(ObserveFile)
    desk.show({"mute.jpg": fingerprint})
    assert desk.take(ObserveFile) == [ObserveFile("mute.jpg")]
    assert [*settled, desk.intake.is_settled] == [False, True]
    assert desk.intake.is_present("mute.jpg")
    desk.show({})
    assert desk.intake.is_gone("mute.jpg")


def test_a_planned_look_that_was_lost_is_asked_for_by_the_next_listing() -> None:
    desk = Desk()
    fingerprint = desk.see("a.jpg", hint=e.Hint.MODIFIED)
    desk.wait(2)
    assert desk.take(ObserveFile) == [ObserveFile("a.jpg")]
    desk.show({"a.jpg": fingerprint})
    assert desk.take(ObserveFile) == [ObserveFile("a.jpg")]


@pytest.mark.parametrize("found", [False, True])
def test_while_the_inbox_is_away_nothing_vanishes(found: bool) -> None:  # noqa: FBT001 - parametrised
    desk = Desk()
    fingerprint = desk.have("a.jpg")
    desk.intake.inbox_lost(e.InboxLost("unmounted"))
    desk.intake.inbox_lost(e.InboxLost("unmounted"))
    desk.intake.vanished(e.FileVanished("a.jpg", desk.now_ns + 1), desk.now)
    desk.show({})
    assert desk.intake.is_present("a.jpg")
    assert not desk.intake.is_gone("b.jpg")
    assert len([log for log in desk.take(Log) if log.event == "inbox.lost"]) == 1
    assert desk.take(RescanInbox) == []
    if found:
        desk.intake.inbox_found(e.InboxFound("native"))
        desk.show({"a.jpg": fingerprint})
        assert desk.intake.facts("a.jpg") is not None


def test_listings_keep_their_distance_from_each_other() -> None:
    desk = Desk(rescan_s=30, burst_rescan_s=0.2)
    desk.show({})
    desk.wait(29)
    assert desk.take(RescanInbox) == []
    desk.wait(2)
    assert desk.take(RescanInbox) == [RescanInbox("timer")]
    desk.wait(100)
    assert desk.take(RescanInbox) == [], "one is under way"
    desk.show({})
    for _ in range(100):
        desk.intake.rescan_wanted(e.RescanWanted("overflow"))
        desk.wait(0.001)
        desk.show({})
    assert len(desk.take(RescanInbox)) <= 2


def test_a_vanished_file_that_was_seen_since_is_looked_at_again() -> None:
    desk = Desk()
    long_ago_ns = desk.now_ns
    desk.have("a.jpg")
    desk.take(ObserveFile)
    desk.intake.vanished(e.FileVanished("a.jpg", long_ago_ns), desk.now)
    assert desk.intake.is_present("a.jpg")
    assert desk.take(ObserveFile) == [ObserveFile("a.jpg")]


def test_doubt_forgets_the_hash_and_looks_at_once() -> None:
    desk = Desk()
    fingerprint = desk.have("a.jpg")
    desk.take(HashFile)
    desk.intake.doubt("a.jpg", desk.now)
    desk.intake.doubt("a.jpg", desk.now)
    assert desk.intake.facts("a.jpg") is None
    assert desk.take(ObserveFile) == [ObserveFile("a.jpg")]
    desk.wait(5)
    seen = e.FileObserved("a.jpg", fingerprint, e.Hint.CHECKED, e.Writer.NONE, 1, desk.now_ns)
    desk.intake.observed(seen, desk.now)
    assert desk.take(HashFile) == [HashFile("a.jpg", fingerprint)]


def test_who_may_be_concerned_is_touched() -> None:
    desk = Desk()
    desk.have("IMG.jpg")
    desk.have("IMG_mask.png")
    desk.intake.take_touched()
    desk.see("IMG.png")
    assert "IMG.jpg" in desk.intake.take_touched(), "the mask is not its any more"
    desk.intake.vanished(e.FileVanished("IMG.png", desk.now_ns), desk.now)
    assert "IMG.jpg" in desk.intake.take_touched(), "and now it is again"


def test_nothing_is_kept_of_files_that_are_gone() -> None:
    desk = Desk()
    for number in range(50):
        desk.have(f"{number}.jpg")
        desk.see(f"{number}_mask.png", hint=e.Hint.MODIFIED)
        desk.intake.unreadable(e.FileUnreadable(f"{number}_mask.png", "no", permanent=False), desk.now)
    desk.wait(100)
    desk.show({})
    intake = desk.intake
    intake.take_touched()
    kept = (intake._files, intake._saved, intake._orphans, intake._troubled, intake._markless)
    assert [len(memory) for memory in kept] == [0] * 5
    assert [len(part) for part in vars(intake._backlog).values()] == [0] * 4
    assert len(intake._tracker) == 0
    assert intake.known == intake.waiting == 0
    assert intake._pairing._present == set()
    assert intake._pairing._by_stem._paths == intake._pairing._copies._paths == {}


# --- the backlog -------------------------------------------------------------------------------------------


def serve_looks(desk: Desk, files: dict[str, Fingerprint]) -> list[str]:
    """Answer what was asked, and hash it; returns the paths."""
    asked = [command.path for command in desk.take(ObserveFile)]
    for path in asked:
        desk.now_ns += 1
        seen = e.FileObserved(path, files[path], e.Hint.CHECKED, e.Writer.NONE, 1, desk.now_ns)
        desk.intake.observed(seen, desk.now)
        desk.intake.hashed(e.FileHashed(path, files[path], SHA, desk.now_ns))
    return asked


def many(desk: Desk, count: int) -> dict[str, Fingerprint]:
    """Files that have lain there for a while, the first the longest."""
    at_ns = round(desk.now.wall_s * NS) - 1000 * NS
    return {f"{number}.jpg": Fingerprint(number, 10, at_ns, at_ns + number) for number in range(count)}


def test_only_so_many_files_are_looked_at_at_a_time_the_oldest_first() -> None:
    desk = Desk(window=4)
    files = many(desk, 10)
    desk.show(dict(reversed(files.items())))
    looked_at = [[command.path for command in desk.take(ObserveFile)]]
    assert looked_at == [["0.jpg", "1.jpg", "2.jpg", "3.jpg"]]
    desk.intake.admit()
    assert desk.take(ObserveFile) == []
    assert desk.intake.waiting == 10
    assert not desk.intake.is_settled

    desk.intake.vanished(e.FileVanished("2.jpg", desk.now_ns), desk.now)
    desk.intake.admit()

    assert desk.take(ObserveFile) == [ObserveFile("4.jpg")]


def test_jobs_in_line_leave_less_room_and_none_at_all_when_they_fill_it() -> None:
    desk = Desk(window=4)
    desk.in_line = 3
    files = many(desk, 10)
    desk.show(files)
    assert serve_looks(desk, files) == ["0.jpg"]
    desk.in_line = 4
    desk.intake.admit()
    assert desk.intake.is_full
    assert desk.take(ObserveFile) == []
    desk.in_line = 2
    desk.intake.admit()
    assert serve_looks(desk, files) == ["1.jpg", "2.jpg"]


def test_everything_is_looked_at_in_the_end_and_the_chain_begins_with_the_listing() -> None:
    desk = Desk(window=3)
    files = many(desk, 20)
    desk.show(files)
    listed_ns = desk.now_ns
    order = []
    while looked_at := serve_looks(desk, files):
        order += looked_at
        desk.wait(1)
        desk.intake.admit()
    assert order == list(files)
    assert desk.intake.is_settled
    last = desk.intake.facts("19.jpg")
    assert last is not None
    assert last.picture.observed_ns == listed_ns
    assert last.picture.backlog_ns > 5 * NS
    assert last.clock(desk.now_ns).backlog_ns == last.picture.backlog_ns
    assert last.picture.settled_ns - last.picture.observed_ns - last.picture.backlog_ns < NS


def test_what_changed_while_it_waited_was_not_seen_before() -> None:
    desk = Desk(window=1)
    files = many(desk, 2)
    desk.show(files)
    serve_looks(desk, files)
    desk.wait(100)
    changed = {**files, "1.jpg": replace(files["1.jpg"], size_bytes=99)}
    desk.intake.admit()
    serve_looks(desk, changed)
    facts = desk.intake.facts("1.jpg")
    assert facts is not None
    assert facts.picture.backlog_ns == 0
    assert facts.picture.observed_ns > 100 * NS


def test_an_arrival_goes_before_what_a_listing_found_and_waits_while_there_is_no_room() -> None:
    desk = Desk(window=2)
    desk.in_line = 2
    files = many(desk, 5)
    desk.show(files)
    new = desk.see("new.jpg")
    assert desk.take(HashFile) == []
    assert desk.intake.is_present("new.jpg")
    desk.wait(2)
    desk.in_line = 1
    desk.intake.admit()
    assert serve_looks(desk, {**files, "new.jpg": new}) == ["new.jpg"]
    desk.intake.admit()
    assert serve_looks(desk, files) == ["0.jpg"]


def test_an_arrival_that_finds_room_is_taken_at_once() -> None:
    desk = Desk(window=2)
    fingerprint = desk.see("new.jpg")
    assert desk.take(HashFile) == [HashFile("new.jpg", fingerprint)]


@pytest.mark.parametrize("told", ["by an event", "by a listing"])
def test_a_mask_never_waits_while_its_picture_is_in_line(told: str) -> None:
    """All that is in line could wait for it, and it for them."""
    desk = Desk(window=2)
    picture = desk.have("IMG.jpg")
    desk.in_line = 2
    if told == "by an event":
        mask = desk.see("IMG.jpg.mask.png")
        assert desk.take(HashFile)[-1] == HashFile("IMG.jpg.mask.png", mask)
    else:
        desk.show({"IMG.jpg": picture, "IMG.jpg.mask.png": many(desk, 1)["0.jpg"]})
        assert desk.take(ObserveFile) == [ObserveFile("IMG.jpg.mask.png")]


def test_a_picture_and_its_mask_are_looked_at_together() -> None:
    desk = Desk(window=2)
    desk.in_line = 1
    old, *_, new = many(desk, 3).values()
    desk.show(
        {"z.jpg": new, "a.jpg": old, "a_mask.png": new, "b.jpg": replace(old, ctime_ns=old.ctime_ns + 1)}
    )
    assert {command.path for command in desk.take(ObserveFile)} == {"a.jpg", "a_mask.png"}


def test_a_picture_is_not_taken_for_unmarked_while_its_mask_waits() -> None:
    desk = Desk(window=1)
    files = {**many(desk, 1), "0.jpg.mask.png": many(desk, 2)["1.jpg"]}
    desk.show(files)
    for path in ("0.jpg",):
        seen = e.FileObserved(path, files[path], e.Hint.CHECKED, e.Writer.NONE, 1, desk.now_ns)
        desk.intake.observed(seen, desk.now)
        desk.intake.hashed(e.FileHashed(path, files[path], SHA, desk.now_ns))
    assert desk.intake.facts("0.jpg") is None


def test_a_listing_drops_what_vanished_while_it_waited_and_asks_for_nothing_twice() -> None:
    desk = Desk(window=1)
    files = many(desk, 5)
    desk.show(files)
    desk.take(ObserveFile)
    left = {path: files[path] for path in ("0.jpg", "1.jpg", "4.jpg")}
    desk.show(left)
    assert desk.intake.is_gone("2.jpg")
    assert [command.path for command in desk.take(ObserveFile)] == ["0.jpg", "1.jpg"], "0 is mute, so 1 goes"
    assert desk.intake.waiting == 2


def test_what_was_asked_when_the_inbox_went_is_asked_again_when_it_is_back() -> None:
    desk = Desk(window=1)
    files = many(desk, 3)
    desk.show(files)
    assert desk.take(ObserveFile) == [ObserveFile("0.jpg")]
    desk.intake.inbox_lost(e.InboxLost("unmounted"))
    desk.intake.admit()
    assert desk.take(ObserveFile) == [], "nobody would answer"
    desk.intake.inbox_found(e.InboxFound("native"))
    desk.intake.admit()
    assert desk.take(ObserveFile) == [], "it is not known yet what is there"
    del files["1.jpg"]
    desk.show(files)
    order = []
    while looked_at := serve_looks(desk, files):
        order += looked_at
        desk.intake.admit()
    assert sorted(order) == ["0.jpg", "2.jpg"]
    assert desk.intake.is_gone("1.jpg")


def test_files_that_grow_for_ever_do_not_take_all_the_room() -> None:
    desk = Desk(window=4)
    for number in range(20):
        desk.see(f"slow-{number}.jpg", hint=e.Hint.MODIFIED)
        desk.intake.admit()
        for path in [command.path for command in desk.take(ObserveFile)]:
            seen = e.FileObserved(path, desk.fingerprint(), e.Hint.CHECKED, e.Writer.PRESENT, 1, desk.now_ns)
            desk.intake.observed(seen, desk.now)
    assert not desk.intake.is_full
    assert desk.intake._backlog.waiting == 0


def test_files_that_are_being_hashed_take_room() -> None:
    desk = Desk(window=2)
    files = many(desk, 5)
    desk.show(files)
    for path in [command.path for command in desk.take(ObserveFile)]:
        seen = e.FileObserved(path, files[path], e.Hint.CHECKED, e.Writer.NONE, 1, desk.now_ns)
        desk.intake.observed(seen, desk.now)
    desk.intake.admit()
    assert desk.take(ObserveFile) == []
    desk.intake.hashed(e.FileHashed("0.jpg", files["0.jpg"], SHA, desk.now_ns))
    desk.intake.admit()
    assert desk.take(ObserveFile) == [ObserveFile("2.jpg")]


def test_another_sight_of_what_waits_does_not_shorten_its_chain() -> None:
    desk = Desk(window=1)
    files = many(desk, 2)
    desk.show(files)
    listed_ns = desk.now_ns
    desk.wait(100)
    for hint in (e.Hint.CREATED, e.Hint.MODIFIED):
        seen = e.FileObserved("1.jpg", files["1.jpg"], hint, e.Writer.NONE, 1, desk.now_ns)
        desk.intake.observed(seen, desk.now)
    desk.wait(100)
    desk.show(files)
    serve_looks(desk, files)
    desk.intake.admit()
    serve_looks(desk, files)
    facts = desk.intake.facts("1.jpg")
    assert facts is not None
    assert facts.picture.observed_ns == listed_ns
