"""What lies in the inbox, as far as the core knows: looked at, settled, hashed, paired.

Rules of this file:
- A listing is the truth; notifications only say where to look. A path that was never listed nor looked at
  does not exist; a path that a listing lacks is gone, unless it was seen after that listing began, or lies in
  a folder that could not be read.
- While the inbox itself is away nothing in it is gone.
- Only so many files are looked at, hashed or in line at one time; the others wait in the backlog, where they
  cost little. What belongs to a file that is followed (its mask, its picture, their rivals) never waits
  there, for a job that is ready could wait for it.
- Everything that may change what a picture needs is told through `take_touched`; what to do about it is the
  business of `matching`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from watcher.core.backlog import Backlog, Sighting
from watcher.core.commands import ForgetFile, HashFile, Log, ObserveFile, RescanInbox, SaveFile
from watcher.core.events import Hint, SavedFile
from watcher.core.facts import KnownFile, PictureFacts
from watcher.core.pairing import Pairing, Recipes
from watcher.core.settle import NS_PER_S, SettleTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from watcher.core.commands import Command, LogLevel
    from watcher.core.events import (
        FileHashed,
        FileObserved,
        FileUnreadable,
        FileVanished,
        InboxFound,
        InboxListed,
        InboxLost,
        Instant,
        RescanWanted,
    )
    from watcher.core.job import Fingerprint, Job
    from watcher.core.policy import ArrivalPolicy

_NEVER_SEEN: Final = -1
_MAX_TROUBLE_FACTOR: Final = 60
"""Looks at a file that cannot be read back off to this many quiet periods; a change of it is seen before."""
_HOPELESS_TRIES: Final = 3
"""After so many failed readings nobody waits for the file any more; it is still looked at."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A file that could not be read."""

    fingerprint: Fingerprint
    reason: str
    tries: int


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A look at a path for the sake of pictures that are resolved after it."""

    asked_ns: int
    pictures: set[str] = field(default_factory=set)


class Intake:
    """Turns looks at files into pictures that are ready to be worked on."""

    def __init__(
        self,
        policy: ArrivalPolicy,
        recipes: Recipes,
        emit: Callable[[Command], None],
        in_line: Callable[[], int],
        window: int,
    ) -> None:
        """Know nothing yet.

        Args:
            policy: when a file is complete, how often the inbox is listed.
            recipes: who serves which picture.
            emit: gives a command away.
            in_line: how many jobs wait to be served or published.
            window: how many files are looked at, hashed or in line at one time.
        """
        self._policy = policy
        self._recipes = recipes
        self._emit = emit
        self._in_line = in_line
        self._window = window
        self._backlog = Backlog()
        self._tracker = SettleTracker(policy)
        self._pairing = Pairing(recipes)
        self._files: dict[str, KnownFile] = {}
        self._saved: dict[str, SavedFile] = {}
        """What the journal remembers of paths that have no known hash at the moment."""
        self._touched: dict[str, None] = {}
        self._awaited: dict[str, _Awaited] = {}
        """Paths that are looked at once more."""
        self._hashing = 0
        self._told_ns = 0
        self._orphans: dict[str, tuple[int, bool]] = {}
        self._troubled: dict[str, _Trouble] = {}
        self._markless: dict[str, tuple[str, str | None]] = {}
        """Pictures with a mark file in which no mark was found: the hashes of the two."""
        self.listed = False
        """The inbox was listed at least once since it was found."""
        self.lost: str | None = None
        self._unreadable: tuple[str, ...] = ()
        self._scan_wanted: str | None = None
        self._scan_running = False
        self._next_scan_ns: int | None = None
        self._last_scan_ns: int | None = None

    # --- what the pipeline asks ---

    def take_touched(self) -> list[str]:
        """Pictures whose needs may have changed since the last call, in the order in which they did."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    def is_present(self, path: str) -> bool:
        """A file is at this path, complete or not, or was listed there."""
        return path in self._pairing.present

    def is_gone(self, path: str) -> bool:
        """Nothing is at this path, and that is certain: the inbox is there, and its folder was listed."""
        known = self.listed and self.lost is None and not _lies_in(path, self._unreadable)
        return known and not self.is_present(path)

    def is_empty(self, path: str) -> bool:
        """The file at this path has 0 bytes: it has not arrived yet, and what was there before is no more."""
        return path in self._tracker and self._tracker.is_empty(path)

    def may_hold(self, path: str, sha256: str) -> bool:
        """The file at this path has these bytes, or is not complete, so that it may come to have them."""
        known = self._files.get(path)
        if known is None:
            return self.is_present(path)
        return known.sha256 is None or known.sha256 == sha256

    def serves(self, path: str) -> bool:
        """A file of this name is to be served: some recipe takes it, and it is nobody's mask."""
        return self._recipes.serving(path) is not None and self._pairing.is_picture(path)

    def facts(self, path: str) -> PictureFacts | None:
        """What is known of a picture, or None while it or its mask is not complete (or it is no picture)."""
        picture = self._files.get(path)
        recipe = self._recipes.serving(path)
        if picture is None or picture.sha256 is None or recipe is None or not self._pairing.is_picture(path):
            return None
        mark_files = list(self._pairing.mark_files_of(path))
        for mask_path in mark_files:
            mask = self._files.get(mask_path)
            if mask is None or mask.sha256 is None:
                return None
            is_last = mask_path == mark_files[-1]
            if is_last or self._markless.get(path) != (picture.sha256, mask.sha256):
                return PictureFacts(path, picture, picture.sha256, mask_path, mask, recipe)
        return PictureFacts(path, picture, picture.sha256, None, None, recipe)

    @property
    def is_settled(self) -> bool:
        """Nothing is on its way: what was listed is complete and hashed."""
        quiet = not self._scan_running and not self._backlog.asked and not self._backlog.waiting
        return self.listed and quiet and self._hashing == 0 and self._tracker.growing == 0

    def look_first(self, paths: Iterable[str], then: str, now: Instant) -> None:
        """Look at these paths once more, and have a picture resolved after the answers.

        The next listing is an answer too: a folder that cannot be read keeps nobody waiting.
        """
        for path in paths:
            if path not in self._awaited:
                self._emit(ObserveFile(path))
                self._awaited[path] = _Awaited(now.mono_ns)
            self._awaited[path].pictures.add(then)

    def is_looked_for(self, then: str) -> bool:
        """Some answer for the sake of this picture is still to come."""
        return any(then in awaited.pictures for awaited in self._awaited.values())

    @property
    def is_asking(self) -> bool:
        """Some answer is still to come."""
        return bool(self._awaited)

    @property
    def is_full(self) -> bool:
        """As much is at hand as there may be: what is left waits until some of it is served."""
        return self._room() <= 0

    @property
    def troubles(self) -> dict[str, str]:
        """Files that are there and cannot be read, with the reason."""
        return {path: trouble.reason for path, trouble in self._troubled.items()}

    @property
    def waiting(self) -> int:
        """How many files are not complete or not hashed yet."""
        return self._backlog.waiting + self._backlog.asked + len(self._tracker) + self._hashing

    @property
    def known(self) -> int:
        """How many complete files there are, masks included."""
        return len(self._files)

    # --- what happens ---

    def restore(self, files: Iterable[SavedFile]) -> None:
        """The journal's memory of hashes; each counts only when a listing shows the same fingerprint."""
        self._saved = {file.path: file for file in files}

    def observed(self, seen: FileObserved, now: Instant) -> None:
        """A file was looked at."""
        if seen.hint is Hint.CHECKED:
            self._looked_at(seen.path)
        known = self._files.get(seen.path)
        if known is not None:
            if known.fingerprint == seen.fingerprint:
                self._backlog.answered(seen.path)
                return
            self._drop_known(seen.path)
        elif seen.path not in self._tracker and (
            self._restore_file(seen.path, seen.fingerprint, now) or self._may_wait(seen, now)
        ):
            return
        self._follow(replace(seen, first_seen_ns=self._first_seen_ns(seen)), now)

    def _may_wait(self, seen: FileObserved, now: Instant) -> bool:
        """A file that nobody asked for is told of while enough is at hand: it waits."""
        if seen.hint is Hint.CHECKED or self._backlog.is_asked(seen.path):
            return False
        relatives = self._appear(seen.path, now, told=False)
        if not self._backlog.waits(seen.path) and (self._room() > 0 or self._are_followed(relatives)):
            return False
        self._backlog.arrived(seen.path, Sighting(seen.fingerprint, seen.observed_ns))
        return True

    def _first_seen_ns(self, seen: FileObserved) -> int:
        """When this fingerprint was first seen; the path does not wait any more."""
        sighting = self._backlog.answered(seen.path)
        if sighting is None or sighting.fingerprint != seen.fingerprint:
            return seen.observed_ns
        return min(sighting.seen_ns, seen.observed_ns)

    def _follow(self, seen: FileObserved, now: Instant) -> None:
        self._appear(seen.path, now, told=False)
        if seen.fingerprint.size_bytes == 0:
            self.touch(seen.path)
        settled = self._tracker.observe(seen, now)
        if settled is not None:
            self._files[seen.path] = KnownFile(
                settled.fingerprint, settled.observed_ns, settled.settled_ns, settled.backlog_ns
            )
            self._hashing += 1
            self._emit(HashFile(seen.path, settled.fingerprint))
            self._log("debug", "file.settled", path=seen.path)

    def hashed(self, event: FileHashed) -> None:
        """A file was read."""
        known = self._files.get(event.path)
        if known is None or known.fingerprint != event.fingerprint or known.sha256 is not None:
            return
        self._hashing -= 1
        self._files[event.path] = replace(
            known,
            sha256=event.sha256,
            hashed_ns=event.finished_ns,
            restored=self._is_saved(event),
        )
        self._troubled.pop(event.path, None)
        self._saved.pop(event.path, None)
        self._emit(SaveFile(SavedFile(event.path, event.fingerprint, event.sha256)))
        self._touch(event.path)

    def _is_saved(self, event: FileHashed) -> bool:
        """The file is the one that the journal remembers: only its names or permissions were changed."""
        saved = self._saved.get(event.path)
        if saved is None or saved.sha256 != event.sha256:
            return False
        return saved.fingerprint.is_same_file_as(event.fingerprint)

    def unreadable(self, event: FileUnreadable, now: Instant) -> None:
        """Reading failed: an existing path is never forgotten, it is looked at again."""
        known = self._files.get(event.path)
        if known is None or known.sha256 is not None:
            return
        self._drop_known(event.path)
        before = self._troubled.get(event.path)
        same = before is not None and before.fingerprint == known.fingerprint
        tries = before.tries + 1 if before is not None and same else 1
        self._troubled[event.path] = _Trouble(known.fingerprint, event.reason, tries)
        self._tracker.look_again(
            event.path,
            known.fingerprint,
            now,
            quiet_periods=min(2 ** min(tries - 1, 30), _MAX_TROUBLE_FACTOR),
            hopeless=tries >= _HOPELESS_TRIES,
        )
        if before is None or before.reason != event.reason:
            self._log("warning", "file.unreadable", path=event.path, reason=event.reason)

    def doubt(self, path: str, now: Instant) -> None:
        """Somebody read other bytes there than were hashed: look at it and hash it again, soon."""
        known = self._files.get(path)
        if known is None:
            return  # it is being looked at already
        self._drop_known(path)
        self._tracker.look_again(path, known.fingerprint, now)
        self._emit(ObserveFile(path))

    def found_markless(self, job: Job) -> None:
        """A worker found no mark in the job's files: the next kind of mark file has its turn.

        That is forgotten with the life of the service, and then found out anew.
        """
        if job.mask is not None:
            self._markless[job.source] = (job.identity.picture_sha256, job.identity.mask_sha256)
            self.touch(job.source)

    def vanished(self, event: FileVanished, now: Instant) -> None:
        """Nothing is at the path any more."""
        self._looked_at(event.path)
        if not self.is_present(event.path):
            return
        self._backlog.answered(event.path)
        if self.lost is not None:
            known = self._files.get(event.path)
            if known is not None and known.sha256 is None:  # its hashing has ended: try again later
                self._drop_known(event.path)
                self._tracker.look_again(event.path, known.fingerprint, now)
        elif event.observed_ns < self._seen_ns(event.path):
            self._emit(ObserveFile(event.path))  # it came back: two reporters overtook each other
        else:
            self._remove(event.path, now)

    def listed_now(self, event: InboxListed, now: Instant) -> None:
        """A rescan: the truth."""
        self._scan_running = False
        if self.lost is not None:
            return
        self._unreadable = event.unreadable
        self._backlog.mute_the_asked()
        new = [item for item in event.files.items() if not self._is_unchanged(*item, now)]
        for path, fingerprint in sorted(new, key=_changed_ns):  # the one that has waited longest first
            self._found(path, Sighting(fingerprint, event.finished_ns), now)
        for path in self._absent_from(event):
            self._remove(path, now)
        for path in [path for path, awaited in self._awaited.items() if awaited.asked_ns < event.started_ns]:
            self._looked_at(path)
        self.listed = True
        cost_ns = event.finished_ns - event.started_ns
        wait_ns = max(round(self._policy.rescan_s * NS_PER_S), round(cost_ns / self._policy.rescan_share))
        self._next_scan_ns = now.mono_ns + wait_ns
        self._log("debug", "inbox.rescanned", files=len(event.files), took_ms=round(cost_ns / 1e6, 1))

    def rescan_wanted(self, event: RescanWanted) -> None:
        """Something happened that only a listing can clear up."""
        self._scan_wanted = event.reason

    def inbox_lost(self, event: InboxLost) -> None:
        """The inbox is away: all that is known stays as it is."""
        if self.lost is None:
            self._log("error", "inbox.lost", reason=event.reason)
        self.lost = event.reason
        self._backlog.forget_questions()  # what is there when it is back is asked about again
        self.listed = False
        self._scan_running = False

    def inbox_found(self, event: InboxFound) -> None:
        """The inbox is there and watched; its adapter lists it next."""
        self._log("info", "inbox.found", mode=event.mode, network=event.network)
        self._tracker.watch_network(network=event.network)
        self.lost = None
        self._scan_running = True

    def fire_timers(self, now: Instant) -> None:
        """Look at what is due."""
        for path in self._tracker.take_due(now):
            self._emit(ObserveFile(path))
        if now.mono_ns - self._told_ns >= NS_PER_S:  # notices may come late; looking for them must stay cheap
            self._told_ns = now.mono_ns
            self._tell_empties(now)
            self._tell_orphans(now)
        if self._scan_due_ns() is not None and self.lost is None:
            self._scan_if_due(now)

    def admit(self) -> None:
        """Look at as many of the files that wait as there is room for."""
        if self.lost is not None or not self.listed:
            return
        while self._backlog.waiting and self._room() > 0:
            self._admit(self._backlog.first())

    def next_due_ns(self) -> int | None:
        """The instant of the next timer."""
        times = [self._tracker.next_due_ns(), self._scan_due_ns()]
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    # --- details ---

    def _is_unchanged(self, path: str, fingerprint: Fingerprint, now: Instant) -> bool:
        """A listing shows nothing new at this path."""
        known = self._files.get(path)
        if known is not None:
            return known.fingerprint == fingerprint
        if self._backlog.waits(path):
            sighting = self._backlog.sighting(path)
            return sighting is not None and sighting.fingerprint == fingerprint
        if path in self._tracker:
            # A look that was planned may have gone unanswered while the inbox was away.
            return self._tracker.fingerprint(path) == fingerprint and self._tracker.is_planned(path)
        return self._restore_file(path, fingerprint, now)

    def _found(self, path: str, sighting: Sighting, now: Instant) -> None:
        """A listing shows something new at this path: it is looked at, now or when there is room."""
        if self._backlog.is_mute(path):
            self._emit(ObserveFile(path))
            return
        relatives = self._appear(path, now, told=False)
        self._backlog.found(path, sighting)
        if path in self._tracker or self._are_followed(relatives):
            self._admit(path)

    def _absent_from(self, event: InboxListed) -> list[str]:
        """The paths at which nothing is any more."""
        missing = (path for path in chain(self._pairing.present, self._saved) if path not in event.files)
        return [
            path
            for path in dict.fromkeys(missing)
            if self._seen_ns(path) < event.started_ns and not _lies_in(path, event.unreadable)
        ]

    def _room(self) -> int:
        """How many more files may be looked at."""
        growing = min(len(self._tracker), self._window // 2)  # these may take for ever
        return self._window - self._backlog.asked - self._hashing - growing - self._in_line()

    def _admit(self, path: str) -> None:
        """Look at a file that waits, and at all that it belongs together with."""
        together = [path]
        while together:
            path = together.pop()
            if self._backlog.ask(path):
                self._emit(ObserveFile(path))
                together.extend(self._relatives(path))

    def _are_followed(self, paths: Iterable[str]) -> bool:
        return any(self._is_followed(path) or self._backlog.is_asked(path) for path in paths)

    def _restore_file(self, path: str, fingerprint: Fingerprint, now: Instant) -> bool:
        saved = self._saved.get(path)
        if saved is None or saved.fingerprint != fingerprint:
            return False
        del self._saved[path]
        path = saved.path  # the job, if there is one, has this very string
        self._appear(path, now, told=True)
        self._backlog.answered(path)
        now_ns = now.mono_ns
        self._files[path] = KnownFile(
            saved.fingerprint, now_ns, now_ns, hashed_ns=now_ns, sha256=saved.sha256, restored=True
        )
        self._touch(path)
        return True

    def _looked_at(self, path: str) -> None:
        awaited = self._awaited.pop(path, None)
        for picture in awaited.pictures if awaited is not None else ():
            if not self.is_looked_for(picture):  # else the last answer has it resolved
                self.touch(picture)

    def _is_followed(self, path: str) -> bool:
        return path in self._files or path in self._tracker

    def _appear(self, path: str, now: Instant, *, told: bool) -> tuple[str, ...]:
        """A file of this name is there; returns its relatives."""
        is_new = path not in self._pairing.present
        if is_new:
            self._pairing.add(path)
        relatives = self._relatives(path)
        if is_new:
            for relative in relatives:
                self._orphans.pop(relative, None)
            if self._is_orphan(path):
                self._orphans[path] = (now.mono_ns, told)
        self._touched.update(dict.fromkeys(relatives))
        return relatives

    def _remove(self, path: str, now: Instant) -> None:
        relatives = self._relatives(path)
        if path in self._files:
            self._drop_known(path)
        self._tracker.forget(path)
        self._looked_at(path)
        self._pairing.remove(path)
        self._orphans.pop(path, None)
        self._troubled.pop(path, None)
        self._markless.pop(path, None)
        self._backlog.answered(path)
        if self._saved.pop(path, None) is not None:
            self._emit(ForgetFile(path))
        for mask in self._pairing.mark_files_touching(path):
            if self._is_orphan(mask):
                self._orphans.setdefault(mask, (now.mono_ns, False))
        for touched in (path, *relatives):
            self._touched[touched] = None

    def _is_orphan(self, path: str) -> bool:
        return not self._pairing.is_picture(path) and not self._pairing.owners(path)

    def _drop_known(self, path: str) -> None:
        known = self._files.pop(path)
        if known.sha256 is None:
            self._hashing -= 1
        else:
            self._saved[path] = SavedFile(path, known.fingerprint, known.sha256)

    def touch(self, path: str) -> None:
        """Have this picture resolved once more."""
        self._touched[path] = None

    def _touch(self, path: str) -> None:
        self.touch(path)
        self._touch_relatives(path)

    def _touch_relatives(self, path: str) -> None:
        for relative in self._relatives(path):
            self._touched[relative] = None

    def _relatives(self, path: str) -> tuple[str, ...]:
        """Whoever this file is a mask of, its masks, and who else may use these."""
        masks = self._pairing.mark_files_touching(path)
        rivals = (owner for mask in masks for owner in self._pairing.owners(mask) if owner != path)
        return tuple(dict.fromkeys((*self._pairing.owners(path), *masks, *rivals)))

    def _seen_ns(self, path: str) -> int:
        known = self._files.get(path)
        if known is not None:
            return known.observed_ns
        if path in self._tracker:
            return self._tracker.observed_ns(path)
        sighting = self._backlog.sighting(path)
        return sighting.seen_ns if sighting is not None else _NEVER_SEEN

    def _tell_empties(self, now: Instant) -> None:
        for path in self._tracker.take_stale_empties(now):
            self._log("warning", "file.empty", path=path, waited_s=self._policy.empty_warn_s)

    def _tell_orphans(self, now: Instant) -> None:
        limit_ns = round(self._policy.orphan_notice_s * NS_PER_S)
        for path, (since_ns, told) in self._orphans.items():
            if not told and now.mono_ns - since_ns >= limit_ns:
                self._orphans[path] = (since_ns, True)
                self._log("warning", "file.orphan_mask", path=path)

    def _scan_due_ns(self) -> int | None:
        if self._scan_running or self.lost is not None:
            return None
        if self._scan_wanted is not None:
            floor_ns = round(self._policy.burst_rescan_s * NS_PER_S)
            return 0 if self._last_scan_ns is None else self._last_scan_ns + floor_ns
        return self._next_scan_ns

    def _scan_if_due(self, now: Instant) -> None:
        due_ns = self._scan_due_ns()
        if due_ns is None or due_ns > now.mono_ns:
            return
        reason = self._scan_wanted or "timer"
        self._scan_wanted = None
        self._scan_running = True
        self._last_scan_ns = now.mono_ns
        self._emit(RescanInbox(reason))

    def _log(self, level: LogLevel, event: str, **fields: str | float) -> None:
        self._emit(Log(level, event, dict(fields)))


def _changed_ns(item: tuple[str, Fingerprint]) -> int:
    return item[1].ctime_ns


def _lies_in(path: str, folders: tuple[str, ...]) -> bool:
    return any(not folder or path.startswith(f"{folder}/") for folder in folders)
