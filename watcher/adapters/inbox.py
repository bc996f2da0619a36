"""The inbox: who watches it, who looks at its files, and what is said while it is away.

Rules of this file:
- A notification is a hint to look at a path. What is reported comes from a stat and a lease, never from it.
- Three threads, none of which changes any state of the service: the *keeper* (root, watch, listings), the
  *inspector* (single files) and the *hasher*. A file system that hangs holds up these, never the caller.
- While the inbox is away nothing is said about its files: they are neither gone nor changed. Only `hash_file`
  is answered. After every `InboxFound` a listing follows, unasked.
- Where it cannot be told whether a file is there (the inbox away, a folder that may not be searched, a disk
  that fails) the core's question stays owed, and is asked again until there is an answer.
- Polling is this module's own, a listing compared with the one before: watchdog's follows links and ends at
  the first error.
- A watch is not believed to hear because its threads run: see `watcher.adapters.hearing`. One that dies or is
  deaf is armed anew; again and again, and the inbox is polled. From polling there is a way back.
- Bounded: notices that wait (`MAX_WAITING_NOTICES`), looks that a poll asks for (`MAX_POLLED_LOOKS`), wishes
  (one of a kind), questions that are owed (one a path that the core asked for and waits for).
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal

from watcher.adapters import tree
from watcher.adapters.filesystems import is_network
from watcher.adapters.hearing import Hearing
from watcher.adapters.native_watch import Change, NativeWatch, Notice
from watcher.adapters.pacing import Backoff, Trust, Wishes
from watcher.core.events import (
    FileHashed,
    FileObserved,
    FileUnreadable,
    FileVanished,
    Hint,
    InboxFound,
    InboxListed,
    InboxLost,
    RescanWanted,
    Writer,
)
from watcher.core.names import is_hidden_sibling, is_ignored, is_wanted
from watcher.telemetry.log import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from watcher.adapters.tree import RootIdentity
    from watcher.core.events import Event
    from watcher.core.job import Fingerprint
    from watcher.ports import Clock, Sink

_NS_PER_S: Final = 1_000_000_000

CHECK_S: Final = 1.0
"""How often the root's identity and the watch's threads are checked; a rename of the root sends no event."""

RETRY_S: Final = 0.2
"""A pause after a mistake of ours."""

POLL_S: Final = 1.0
POLL_SHARE: Final = 0.1
"""Polling listings take at most this share of the time: a dear one is made rarer."""

HIDDEN_RESCAN_S: Final = 1.0
"""How long after a dot-file's notification a listing is asked for: its real name mostly comes by itself."""

FOLDER_RESCAN_S: Final = 0.05
"""Folders come in swarms (`cp -r`): one request for all that come within this time."""

PROBATION_RESCAN_S: Final = 5.0
"""How often the inbox is listed while the watch is on probation."""

MAX_WAITING_NOTICES: Final = 20_000
"""More than that are dropped, and a listing finds what they told of."""

MAX_POLLED_LOOKS: Final = 1_000
"""More than that are not asked for by polls: the core gets the listing instead, and asks as it can."""

MAX_UNREADABLE_LINES: Final = 10
"""So many folders of one listing get a line of their own; one more line tells of the rest."""

CLOSE_S: Final = 1.0

_REFUSED_BELOW: Final = "inotify watch limit reached below the inbox"
_LIMITS_REMEDY: Final = (
    "the inbox is polled instead, which is slower; if a limit was reached, raise fs.inotify.max_user_watches "
    "(watch limit) or fs.inotify.max_user_instances (instance limit) with sysctl; the service finds out by "
    "itself within some minutes, a restart is quicker"
)
_DEAF_REMEDY: Final = (
    "the inbox is polled instead, which is slower and works everywhere; nothing is to be done. To have it so "
    'from the start, write observer = "polling" under [arrivals]'
)
_LINKS_REMEDY: Final = "links are not followed: put the files themselves there, or mount the folder there"
_UNREADABLE_REMEDY: Final = "let the service's user read and search it, or add it to [arrivals] ignore"

_HINTS: Final[Mapping[Change, Hint]] = {
    Change.FILE_CREATED: Hint.CREATED,
    Change.FILE_MODIFIED: Hint.MODIFIED,
    Change.FILE_CLOSED: Hint.CLOSED,
    Change.FILE_MOVED_IN: Hint.MOVED_IN,
    # told to be gone and yet there: it was replaced meanwhile
    Change.FILE_GONE: Hint.MODIFIED,
}

_log = logger()


@dataclass(frozen=True, slots=True)
class _LookWanted:
    """One path to look at. `noticed_ns`: when it was told of; None if the core asked."""

    path: str
    hint: Hint
    noticed_ns: int | None


@dataclass(frozen=True, slots=True)
class _HashWanted:
    path: str
    fingerprint: Fingerprint


class WatchedInbox:
    """Implements `watcher.ports.Inbox` on a real folder.

    Paths that are not wanted (`watcher.core.names.is_wanted`) are never reported. Methods return at once.
    """

    def __init__(
        self,
        root: Path,
        *,
        observer: Literal["auto", "native", "polling"],
        recursive: bool,
        ignore: tuple[str, ...],
        sink: Sink,
        clock: Clock,
    ) -> None:
        """Remember, touch nothing.

        Args:
            root: the folder; a link to it is followed, links in it are not.
            observer: `native` is the system's notifications, with polling where it refuses them; `auto` polls
                network file systems too, since nobody notifies us of what other machines do.
            recursive: also the folders below.
            ignore: the user's globs, see `watcher.core.names.is_ignored`.
            sink: where events go, from several threads.
            clock: for the instants of events.

        Raises:
            ValueError: a glob of `ignore` is malformed; the message says what to write instead.
        """
        is_ignored("", ignore)
        self._root = os.fspath(root)
        self._observer = observer
        self._recursive = recursive
        self._ignore = ignore
        self._sink = sink
        self._clock = clock

        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._looks: SimpleQueue[_LookWanted | None] = SimpleQueue()
        self._hashes: SimpleQueue[_HashWanted | None] = SimpleQueue()
        self._owing = threading.Lock()
        self._owed: dict[str, None] = {}
        self._threads = [
            threading.Thread(target=target, name=f"inbox-{name}", daemon=True)
            for name, target in (
                ("keeper", self._keep),
                ("inspector", self._inspect),
                ("hasher", self._hash),
            )
        ]
        self._started = False

        # Written by the keeper only; read by the others.
        self._on_network = False
        self._identity: RootIdentity | None = None
        """The folder that is watched; None while the inbox is away."""
        # Whether `InboxFound` is the last word about the root. Guards what may be said of files.
        self._speaking = threading.Lock()
        self._found = False
        self._told_lost = False

        # The keeper's own.
        self._watch: NativeWatch | None = None
        self._mode: Literal["native", "polling"] = "polling" if observer == "polling" else "native"
        self._armed = False
        self._last_identity: RootIdentity | None = None
        self._backoff = Backoff()
        self._wishes = Wishes()
        self._trust = Trust()
        self._hearing = Hearing()
        self._listing_cost_ns = 0
        self._listing_wanted = threading.Event()
        self._refused = threading.Event()
        self._polled: dict[str, Fingerprint] = {}
        self._poll_ns = 0
        self._owed_ns = 0
        self._told_unreadable: frozenset[str] = frozenset()
        self._told_links: frozenset[str] = frozenset()

    # --- the port ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `watcher.ports.Inbox.start`."""
        self._started = True
        self._listing_wanted.set()
        for thread in self._threads:
            thread.start()

    def observe(self, path: str) -> None:
        """See `watcher.ports.Inbox.observe`. Answered when it can be told: not while the inbox is away."""
        self._looks.put(_LookWanted(path, Hint.CHECKED, None))

    def rescan(self, reason: str) -> None:  # noqa: ARG002 - the port's; who logs it is the core
        """See `watcher.ports.Inbox.rescan`. While the inbox is away, its return is the answer."""
        self._listing_wanted.set()
        self._awake.set()

    def hash_file(self, path: str, fingerprint: Fingerprint) -> None:
        """See `watcher.ports.Inbox.hash_file`. Always answered."""
        self._hashes.put(_HashWanted(path, fingerprint))

    def close(self) -> None:
        """Stop all threads; at most a second. No event comes after it."""
        with self._speaking:
            self._stopping.set()
        self._awake.set()
        self._looks.put(None)
        self._hashes.put(None)
        if not self._started:
            return
        deadline_ns = self._now_ns() + round(CLOSE_S * _NS_PER_S)
        for thread in self._threads:
            # One that hangs in the file system is a daemon: it does not keep the process.
            thread.join(max(0.0, (deadline_ns - self._now_ns()) / _NS_PER_S))

    # --- saying --------------------------------------------------------------------------------------------

    def _say(self, event: Event) -> None:
        with self._speaking:
            if not self._stopping.is_set():
                self._sink(event)

    def _say_of_files(self, event: Event) -> bool:
        """Say something that counts only while the inbox is there; return whether it was said."""
        with self._speaking:
            speaking = self._found and not self._stopping.is_set()
            if speaking:
                self._sink(event)
            return speaking

    def _say_found(self) -> None:
        with self._speaking:
            self._found, self._told_lost = True, False
            if not self._stopping.is_set():
                self._sink(InboxFound(self._mode, network=self._on_network))

    def _say_lost(self, reason: str) -> None:
        with self._speaking:
            self._found = False
            if not self._told_lost and not self._stopping.is_set():
                self._sink(InboxLost(reason))
            self._told_lost = True

    # --- noticing (watchdog's threads) ---------------------------------------------------------------------

    def _on_notice(self, notice: Notice) -> None:
        now_ns = self._now_ns()
        self._hearing.stir()
        match notice.change:
            case Change.ROOT_GONE:
                self._check_soon()
            case Change.OVERFLOWED:
                self._hearing.lose()
                self._wish("overflow", now_ns)
            case Change.REFUSED:
                self._refused.set()
                self._awake.set()
            case Change.FOLDER_CHANGED:
                if not is_ignored(notice.path, self._ignore):
                    self._hearing.hear_folder(notice.path)
                    self._wish("folder_changed", now_ns, FOLDER_RESCAN_S)
            case _:
                self._on_file_notice(notice, now_ns)

    def _on_file_notice(self, notice: Notice, now_ns: int) -> None:
        if is_wanted(notice.path, self._ignore):
            self._hearing.hear(notice.path)
            if self._looks.qsize() < MAX_WAITING_NOTICES:
                self._looks.put(_LookWanted(notice.path, _HINTS[notice.change], now_ns))
            else:
                self._wish("too_many_notices", now_ns)
        elif notice.change is not Change.FILE_GONE and is_hidden_sibling(notice.path, self._ignore):
            self._wish("hidden_file", now_ns, HIDDEN_RESCAN_S)

    def _wish(self, reason: str, now_ns: int, delay_s: float = 0.0) -> None:
        if self._wishes.add(reason, now_ns, delay_s):
            self._awake.set()

    # --- the inspector -------------------------------------------------------------------------------------

    def _inspect(self) -> None:
        while (wanted := self._looks.get()) is not None and not self._stopping.is_set():
            try:
                said = self._look(wanted)
            except tree.RootAwayError:
                said = False
                self._check_soon()
            except OSError:
                said = False  # a listing tells of the folder, the hasher of the file
            except Exception:  # noqa: BLE001 - one odd file must not blind us for all others
                said = True
                _log.exception("inbox.defect", path=_printable(wanted.path))
            if not said and wanted.noticed_ns is None:
                self._owe(wanted.path)

    def _look(self, wanted: _LookWanted) -> bool:
        """Look at a path and say what is there; return whether it could be said.

        Raises:
            RootAwayError: the inbox is away.
            OSError: it cannot be told.
        """
        observed_ns = self._now_ns() if wanted.noticed_ns is None else wanted.noticed_ns
        identity = self._identity
        if identity is None:
            return False
        with tree.open_root(self._root, identity) as root_fd:
            look = tree.look_at(root_fd, wanted.path)
        if look is None:
            return self._say_of_files(FileVanished(wanted.path, observed_ns))
        # A lease knows nothing of the writers of other machines.
        blind = self._on_network and look.writer is Writer.NONE
        writer = Writer.UNKNOWN if blind else look.writer
        return self._say_of_files(
            FileObserved(wanted.path, look.fingerprint, wanted.hint, writer, look.links, observed_ns)
        )

    def _owe(self, path: str) -> None:
        with self._owing:
            self._owed[path] = None

    def _ask_owed_again(self) -> None:
        if self._now_ns() < self._owed_ns:
            return
        self._owed_ns = self._now_ns() + round(CHECK_S * _NS_PER_S)
        with self._owing:
            owed, self._owed = self._owed, {}
        for path in owed:
            self.observe(path)

    # --- the hasher ----------------------------------------------------------------------------------------

    def _hash(self) -> None:
        while (wanted := self._hashes.get()) is not None and not self._stopping.is_set():
            try:
                self._say(self._hashed(wanted))
            except tree.StoppedError:
                return
            except Exception as error:  # noqa: BLE001 - the asker waits for an answer
                _log.exception("inbox.defect", path=_printable(wanted.path))
                self._say(FileUnreadable(wanted.path, f"cannot be read: {error}", permanent=False))

    def _hashed(self, wanted: _HashWanted) -> Event:
        identity = self._identity
        if identity is None:
            return FileUnreadable(wanted.path, "the inbox is away", permanent=False)
        try:
            with tree.open_root(self._root, identity) as root_fd:
                digest = tree.hash_file(root_fd, wanted.path, wanted.fingerprint, self._stopping.is_set)
        except tree.RootAwayError:
            self._check_soon()
            return FileUnreadable(wanted.path, "the inbox is away", permanent=False)
        except (tree.ChangedError, tree.PlaceholderError) as error:
            return FileUnreadable(wanted.path, str(error), permanent=False)
        except OSError as error:
            return FileUnreadable(wanted.path, f"cannot be read: {error.strerror}", permanent=False)
        if digest is None:
            return FileVanished(wanted.path, self._now_ns())
        return FileHashed(wanted.path, wanted.fingerprint, digest, self._now_ns())

    # --- the keeper ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            try:
                self._tick()
            except tree.StoppedError:
                break
            except Exception:  # noqa: BLE001 - the keeper is what mends everything else
                _log.exception("inbox.defect")
                self._stopping.wait(RETRY_S)
            self._awake.wait(self._rest_s())
        self._disarm()

    def _tick(self) -> None:
        self._check()
        if not self._armed:
            return
        self._ask_owed_again()
        self._say_due_wishes()
        if self._trust.again_ns is not None and self._now_ns() >= self._trust.again_ns:
            self._try_native()
        if self._listing_wanted.is_set():
            self._list()
        elif self._mode == "polling" and self._now_ns() >= self._poll_ns:
            self._poll()

    def _rest_s(self) -> float:
        """How long nothing is to be done."""
        now_ns = self._now_ns()
        due = [now_ns + round(CHECK_S * _NS_PER_S)]
        if not self._armed and self._backoff.not_before_ns > now_ns:
            due.append(self._backoff.not_before_ns)
        if self._armed and self._mode == "polling":
            due.append(self._poll_ns)
        wish_ns = self._wishes.next_ns()
        if self._armed and wish_ns is not None:
            due.append(wish_ns)
        return max(0.0, (min(due) - now_ns) / _NS_PER_S)

    def _check_soon(self) -> None:
        self._awake.set()

    def _check(self) -> None:
        """Compare the root with the one that is watched; arm, disarm and mend accordingly."""
        try:
            identity = tree.identify_root(self._root)
        except tree.RootAwayError as error:
            self._lose(str(error))
            return
        watched = self._last_identity
        if watched is not None and not watched.is_same_folder(identity):
            if watched.mounted and not identity.mounted:
                # What is there now is the empty folder that the file system was mounted on.
                self._lose("nothing is mounted there any more")
                return
            self._lose("another folder stands in its place")
        if self._armed and self._mode == "native":
            self._check_watch()
        if not self._armed and self._now_ns() >= self._backoff.not_before_ns:
            self._arm(identity)

    def _check_watch(self) -> None:
        if self._refused.is_set():
            self._fall_back(_REFUSED_BELOW, _LIMITS_REMEDY)
        elif self._watch is not None and not self._watch.is_alive():
            self._distrust("its threads ended")
        else:
            self._check_hearing()

    def _check_hearing(self) -> None:
        now_ns = self._now_ns()
        path = self._hearing.certain(now_ns)
        if path is not None:
            self._distrust("a file came and no notification told of it", path=_printable(path))
        elif self._trust.is_on_probation(now_ns):
            self._wish("watch_on_probation", now_ns, PROBATION_RESCAN_S)

    def _distrust(self, reason: str, **facts: str) -> None:
        """The watch failed: arm anew, or poll where that happens again and again."""
        now_ns = self._now_ns()
        if self._trust.strike(now_ns):
            self._fall_back(f"notifications fail again and again: {reason}", _DEAF_REMEDY, **facts)
            return
        _log.warning("inbox.watch_failed", reason=reason, **facts)
        self._disarm()
        self._backoff.died(now_ns)

    def _lose(self, reason: str) -> None:
        if self._armed:
            self._backoff.lost(self._now_ns())
        elif not self._told_lost:
            self._backoff = Backoff()
        self._say_lost(reason)
        self._identity = None
        self._disarm()

    # --- the keeper: arming --------------------------------------------------------------------------------

    def _arm(self, identity: RootIdentity) -> None:
        self._on_network = is_network(Path(self._root))
        if self._last_identity is not None and self._last_identity.device != identity.device:
            self._trust = Trust()  # another file system has another chance
        self._mode = self._chosen_mode()
        # Set first: what is noticed while the watch is being armed can be looked at already.
        self._identity = self._last_identity = identity
        if self._mode == "native" and not self._arm_native():
            self._identity = None
            self._backoff.failed(self._now_ns())
            return
        self._armed = True
        self._backoff.armed_ns = self._now_ns()
        self._listing_wanted.set()
        self._say_found()

    def _chosen_mode(self) -> Literal["native", "polling"]:
        by_choice = self._observer == "polling" or (self._observer == "auto" and self._on_network)
        return "polling" if by_choice or self._trust.again_ns is not None else "native"

    def _arm_native(self) -> bool:
        """Set up notifications, or fall back to polling; return False if the root went away meanwhile."""
        try:
            refused = self._set_up_watch()
        except OSError:
            return False
        if refused is not None:
            self._fall_back(refused, _LIMITS_REMEDY)
        return True

    def _set_up_watch(self) -> str | None:
        """Set up notifications; return why the system refuses them, if it does.

        Raises:
            OSError: the root went away.
        """
        self._refused.clear()
        self._hearing.start_over()
        try:
            self._watch = NativeWatch(
                os.path.realpath(self._root),
                recursive=self._recursive,
                is_ignored=lambda path: is_ignored(path, self._ignore),
                notify=self._on_notice,
            )
        except OSError as error:
            if error.errno in tree.VANISHED_ERRNOS:
                raise
            return error.strerror or str(error)
        return _REFUSED_BELOW if self._refused.is_set() else None

    def _fall_back(self, reason: str, remedy: str, **facts: str) -> None:
        _log.warning("inbox.polling", reason=reason, remedy=remedy, **facts)
        self._stop_watch()
        self._mode = "polling"
        self._trust.wait(self._now_ns())
        if self._armed:
            self._listing_wanted.set()
            self._say_found()

    def _try_native(self) -> None:
        """See whether notifications work by now: a limit was raised, other programs have ended."""
        now_ns = self._now_ns()
        try:
            refused = self._set_up_watch() is not None
        except OSError:
            refused = True
        if refused:
            self._stop_watch()
            self._trust.wait(now_ns)
            return
        self._trust.try_again(now_ns)
        self._mode = "native"
        self._backoff.armed_ns = now_ns
        self._listing_wanted.set()
        self._say_found()

    def _disarm(self) -> None:
        self._armed = False
        self._stop_watch()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            with suppress(OSError):
                self._watch.stop()
            self._watch = None

    # --- the keeper: listing -------------------------------------------------------------------------------

    def _say_due_wishes(self) -> None:
        for reason in self._wishes.take_due(self._now_ns(), round(self._listing_cost_ns / POLL_SHARE)):
            self._say_of_files(RescanWanted(reason))

    def _list(self) -> None:
        self._listing_wanted.clear()
        listed = self._take_listing()
        if listed is None:
            self._listing_wanted.set()
        else:
            self._say_of_files(listed)

    def _poll(self) -> None:
        before = self._polled
        listed = self._take_listing()
        if listed is None:
            return
        # What is gone comes first: what was renamed must not look like a second copy.
        gone = before.keys() - listed.files.keys()
        looks = [_LookWanted(path, Hint.MODIFIED, listed.started_ns) for path in gone]
        looks += [
            _LookWanted(path, Hint.MODIFIED if path in before else Hint.CREATED, listed.started_ns)
            for path, fingerprint in listed.files.items()
            if before.get(path) != fingerprint
        ]
        if len(looks) + self._looks.qsize() > MAX_POLLED_LOOKS:
            self._say_of_files(listed)
            return
        for look in looks:
            self._looks.put(look)

    def _take_listing(self) -> InboxListed | None:
        """List now; None if the root went away, or could not be read, meanwhile."""
        if self._identity is None:
            return None
        started_ns = self._now_ns()
        if self._mode == "native":
            self._hearing.begin_listing()
        try:
            with tree.open_root(self._root, self._identity) as root_fd:
                listing = tree.list_files(
                    root_fd,
                    recursive=self._recursive,
                    ignore=self._ignore,
                    stopped=self._stopping.is_set,
                )
        except tree.RootAwayError:
            self._check_soon()
            return None
        finished_ns = self._now_ns()
        self._tell_unreadable(listing.unreadable)
        self._tell_links(listing.links)
        if "" in listing.unreadable:
            return None
        if self._mode == "native":
            self._hearing.compare(listing.files, listing.unreadable)
        self._polled = listing.files if self._mode == "polling" else {}
        self._listing_cost_ns = finished_ns - started_ns
        pause_ns = max(POLL_S * _NS_PER_S, self._listing_cost_ns / POLL_SHARE)
        self._poll_ns = finished_ns + round(pause_ns)
        return InboxListed(listing.files, started_ns, finished_ns, tuple(sorted(listing.unreadable)))

    def _tell_unreadable(self, unreadable: Mapping[str, str]) -> None:
        new = sorted(unreadable.keys() - self._told_unreadable)
        for folder in new[:MAX_UNREADABLE_LINES]:
            _log.warning(
                "inbox.folder_unreadable",
                folder=_printable(folder) or ".",
                reason=unreadable[folder],
                remedy=_UNREADABLE_REMEDY,
            )
        if len(new) > MAX_UNREADABLE_LINES:
            more = len(new) - MAX_UNREADABLE_LINES
            _log.warning("inbox.folder_unreadable", more_folders=more, remedy=_UNREADABLE_REMEDY)
        self._told_unreadable = frozenset(unreadable)

    def _tell_links(self, links: Sequence[str]) -> None:
        """Somebody may wait for what a link leads to: one line for all that are new, not one a look."""
        new = sorted(set(links) - self._told_links)
        if new:
            _log.info("inbox.links_ignored", count=len(new), first=_printable(new[0]), remedy=_LINKS_REMEDY)
        self._told_links = frozenset(links)

    def _now_ns(self) -> int:
        return self._clock.now().mono_ns


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
