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
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal

from watcher.adapters import tree
from watcher.adapters.filesystems import is_network
from watcher.adapters.native_watch import Change, NativeWatch, Notice
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
    from collections.abc import Mapping

    from watcher.adapters.tree import RootIdentity
    from watcher.core.events import Event
    from watcher.core.job import Fingerprint
    from watcher.ports import Clock, Sink

_NS_PER_S: Final = 1_000_000_000

CHECK_S: Final = 1.0
"""How often the root's identity and the watch's threads are checked; a rename of the root sends no event."""

POLL_S: Final = 1.0
POLL_SHARE: Final = 0.1
"""Polling listings take at most this share of the time: a dear one is made rarer."""

HIDDEN_RESCAN_S: Final = 1.0
"""How long after a dot-file's notification a listing is asked for: its real name mostly comes by itself."""

FOLDER_RESCAN_S: Final = 0.05
"""Folders come in swarms (`cp -r`): one request for all that come within this time."""

REARM_FIRST_S: Final = 0.2
REARM_MAX_S: Final = 30.0
HEALTHY_S: Final = 60.0
"""So long armed, and the backoff of arming starts over."""

MAX_WAITING_NOTICES: Final = 100_000
"""More than that are dropped, and a listing finds what they told of."""

CLOSE_S: Final = 1.0

_REFUSED_BELOW: Final = "inotify watch limit reached below the inbox"
_LIMITS_REMEDY: Final = (
    "the inbox is polled instead, which is slower; if a limit was reached, raise fs.inotify.max_user_watches "
    "(watch limit) or fs.inotify.max_user_instances (instance limit) with sysctl, then restart"
)

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


@dataclass(slots=True)
class _Backoff:
    """Delays between attempts to arm."""

    delay_s: float = REARM_FIRST_S
    not_before_ns: int = 0
    armed_ns: int = 0

    def failed(self, now_ns: int) -> None:
        self.not_before_ns = now_ns + round(self.delay_s * _NS_PER_S)
        self.delay_s = min(self.delay_s * 2, REARM_MAX_S)

    def died(self, now_ns: int) -> None:
        if now_ns - self.armed_ns >= HEALTHY_S * _NS_PER_S:
            self.delay_s = REARM_FIRST_S
        self.failed(now_ns)


@dataclass(slots=True)
class _Wishes:
    """`RescanWanted` to come: what for, and when. One of a kind at a time; later ones join it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    due_ns: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, due_ns: int) -> bool:
        """Return True if nobody had this wish yet."""
        with self.lock:
            return self.due_ns.setdefault(reason, due_ns) == due_ns

    def take_due(self, now_ns: int) -> list[str]:
        with self.lock:
            due = [reason for reason, due_ns in self.due_ns.items() if due_ns <= now_ns]
            for reason in due:
                del self.due_ns[reason]
            return due

    def next_ns(self) -> int | None:
        with self.lock:
            return min(self.due_ns.values(), default=None)


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
        self._owed: SimpleQueue[str] = SimpleQueue()
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
        self._backoff = _Backoff()
        self._wishes = _Wishes()
        self._listing_wanted = threading.Event()
        self._refused = threading.Event()
        self._polled: dict[str, Fingerprint] = {}
        self._poll_ns = 0
        self._owed_ns = 0
        self._told_unreadable: frozenset[str] = frozenset()

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
                self._sink(InboxFound(self._mode))

    def _say_lost(self, reason: str) -> None:
        with self._speaking:
            self._found = False
            if not self._told_lost and not self._stopping.is_set():
                self._sink(InboxLost(reason))
            self._told_lost = True

    # --- noticing (watchdog's threads) ---------------------------------------------------------------------

    def _on_notice(self, notice: Notice) -> None:
        now_ns = self._now_ns()
        match notice.change:
            case Change.ROOT_GONE:
                self._check_soon()
            case Change.OVERFLOWED:
                self._wish("overflow", now_ns)
            case Change.REFUSED:
                self._refused.set()
                self._awake.set()
            case Change.FOLDER_CHANGED:
                if not is_ignored(notice.path, self._ignore):
                    self._wish("folder_changed", now_ns + round(FOLDER_RESCAN_S * _NS_PER_S))
            case _:
                self._on_file_notice(notice, now_ns)

    def _on_file_notice(self, notice: Notice, now_ns: int) -> None:
        if is_wanted(notice.path, self._ignore):
            if self._looks.qsize() < MAX_WAITING_NOTICES:
                self._looks.put(_LookWanted(notice.path, _HINTS[notice.change], now_ns))
            else:
                self._wish("too_many_notices", now_ns)
        elif notice.change is not Change.FILE_GONE and is_hidden_sibling(notice.path, self._ignore):
            self._wish("hidden_file", now_ns + round(HIDDEN_RESCAN_S * _NS_PER_S))

    def _wish(self, reason: str, due_ns: int) -> None:
        if self._wishes.add(reason, due_ns):
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
                self._owed.put(wanted.path)

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

    def _ask_owed_again(self) -> None:
        if self._now_ns() < self._owed_ns:
            return
        self._owed_ns = self._now_ns() + round(CHECK_S * _NS_PER_S)
        for _ in range(self._owed.qsize()):
            self.observe(self._owed.get())

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
                self._stopping.wait(REARM_FIRST_S)
            self._awake.wait(self._rest_s())
        self._disarm()

    def _tick(self) -> None:
        self._check()
        if not self._armed:
            return
        self._ask_owed_again()
        self._say_due_wishes()
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
        if self._armed and self._watch is not None and not self._watch.is_alive():
            _log.warning("inbox.watch_failed", reason="its threads ended")
            self._disarm()
            self._backoff.died(self._now_ns())
        if self._armed and self._mode == "native" and self._refused.is_set():
            self._fall_back(_REFUSED_BELOW)
        if not self._armed and self._now_ns() >= self._backoff.not_before_ns:
            self._arm(identity)

    def _lose(self, reason: str) -> None:
        self._say_lost(reason)
        self._identity = None
        self._disarm()
        self._backoff = _Backoff()

    # --- the keeper: arming --------------------------------------------------------------------------------

    def _arm(self, identity: RootIdentity) -> None:
        self._on_network = is_network(Path(self._root))
        if self._on_network and self._observer == "auto":
            self._mode = "polling"
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

    def _arm_native(self) -> bool:
        """Set up notifications, or fall back to polling; return False if the root went away meanwhile."""
        self._refused.clear()
        try:
            self._watch = NativeWatch(
                os.path.realpath(self._root), recursive=self._recursive, notify=self._on_notice
            )
        except OSError as error:
            if error.errno in tree.VANISHED_ERRNOS:
                return False
            self._fall_back(error.strerror or str(error))
        else:
            if self._refused.is_set():
                self._fall_back(_REFUSED_BELOW)
        return True

    def _fall_back(self, reason: str) -> None:
        _log.warning("inbox.polling", reason=reason, remedy=_LIMITS_REMEDY)
        self._stop_watch()
        self._mode = "polling"
        if self._armed:
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
        for reason in self._wishes.take_due(self._now_ns()):
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
        for path, fingerprint in listed.files.items():
            if before.get(path) != fingerprint:
                hint = Hint.MODIFIED if path in before else Hint.CREATED
                self._looks.put(_LookWanted(path, hint, listed.started_ns))
        for path in before.keys() - listed.files.keys():
            self._looks.put(_LookWanted(path, Hint.MODIFIED, listed.started_ns))

    def _take_listing(self) -> InboxListed | None:
        """List now; None if the root went away, or could not be read, meanwhile."""
        if self._identity is None:
            return None
        started_ns = self._now_ns()
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
        if "" in listing.unreadable:
            return None
        self._polled = listing.files if self._mode == "polling" else {}
        pause_ns = max(POLL_S * _NS_PER_S, (finished_ns - started_ns) / POLL_SHARE)
        self._poll_ns = finished_ns + round(pause_ns)
        return InboxListed(listing.files, started_ns, finished_ns, tuple(sorted(listing.unreadable)))

    def _tell_unreadable(self, unreadable: Mapping[str, str]) -> None:
        for folder in sorted(unreadable.keys() - self._told_unreadable):
            _log.warning(
                "inbox.folder_unreadable",
                folder=_printable(folder) or ".",
                reason=unreadable[folder],
                remedy="let the service's user read and search it, or add it to [arrivals] ignore",
            )
        self._told_unreadable = frozenset(unreadable)

    def _now_ns(self) -> int:
        return self._clock.now().mono_ns


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
