"""The operating system's notifications of one folder tree, by watchdog.

Rules of this file:
- All knowledge of watchdog's inside is here. What it leaves out is added: overflow, a watch that the kernel
  refuses below the root, a reader thread that dies, a file moved out that would hold up all that follows,
  folders that are renamed or moved out faster than its books can follow.
- Ignored folders get no watch and are not entered.
- Bounded: where what was read waits, no more is read; the kernel's own queue overflows then, and says so. A
  folder that comes is told of by itself: whoever is told lists it.
- A notice goes to a callback that only enqueues: an exception in a handler would end watchdog's thread.
- Never subscribed to: OPEN, CLOSE_NOWRITE, ACCESS and ATTRIB. Our own reading must not notify ourselves.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.api import BaseObserver, EventDispatcher

from watcher.telemetry.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watchdog.observers.api import EventQueue, ObservedWatch
    from watchdog.observers.inotify_c import CallbackId, WatchCallback, WatchDescriptor
    from watchdog.observers.inotify_move_event_grouper import GroupedInotifyEvent

LIMIT_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The kernel has no more watches (ENOSPC) or instances (EMFILE) for us."""

_KEPT_SOURCES: Final = 16

MAX_BACKLOG: Final = 10_000
"""So many events wait between watchdog's threads at most, and those of one reading (2048) besides."""
_BACKLOG_CHECK_S: Final = 0.01

_MAX_SIMULATED: Final = 1_000
"""A folder that comes with more in it than that is left to the listing."""

_log = logger()


class Change(Enum):
    """What a notice says happened at its path. A hint."""

    FILE_CREATED = auto()
    FILE_MODIFIED = auto()
    FILE_CLOSED = auto()
    FILE_MOVED_IN = auto()
    FILE_GONE = auto()
    FOLDER_CHANGED = auto()
    """A folder came or went: files in it may never be told of."""
    ROOT_GONE = auto()
    OVERFLOWED = auto()
    REFUSED = auto()
    """The kernel has no watch left for a folder below the root: that part of the tree is blind."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification. `path` is relative to the root, surrogate-escaped; empty if it is about the tree."""

    change: Change
    path: str = ""


class NativeWatch:
    """Notifications of one tree, from construction to `stop`."""

    def __init__(
        self,
        root: str,
        *,
        recursive: bool,
        is_ignored: Callable[[str], bool],
        notify: Callable[[Notice], None],
    ) -> None:
        """Arm the watch; blocks for a walk over the tree.

        Args:
            root: absolute, with links resolved.
            recursive: also the folders below.
            is_ignored: tells of a folder's path, relative to the root, whether to leave it alone.
            notify: called from watchdog's threads; only enqueues, never raises.

        Raises:
            OSError: the kernel refuses, see `LIMIT_ERRNOS`; or the root is away.
        """
        _silence_watchdog()
        self._observer = _new_observer(root, is_ignored, notify)
        try:
            self._observer.schedule(
                _Translator(root, notify), root, recursive=recursive, event_filter=_subscribed_events()
            )
            self._observer.start()
        except BaseException:
            self._observer.stop()
            raise

    def is_alive(self) -> bool:
        """Tell whether all of its threads run. A watch with a dead one is blind."""
        return self._observer.is_alive() and all(
            emitter.is_alive() for emitter in self._observer.emitters.copy()
        )

    def stop(self) -> None:
        """End its threads and wait for them."""
        try:
            self._observer.stop()
        except Exception:  # noqa: BLE001 - books that are out of order must not keep the threads running
            _log.exception("inbox.defect")
            self._observer.event_queue.put(EventDispatcher.stop_event)
        self._observer.join()


class _RelativePaths:
    """Paths below one root, as watchdog gives them -> relative to it."""

    def __init__(self, root: str) -> None:
        self._prefix = root.rstrip("/") + "/"

    def of(self, path: bytes | str) -> str:
        """Return the relative path; empty for the root, and for what is not below it."""
        text = os.fsdecode(path)
        return text.removeprefix(self._prefix) if text.startswith(self._prefix) else ""


class _Translator(FileSystemEventHandler):
    """watchdog's events -> notices."""

    def __init__(self, root: str, notify: Callable[[Notice], None]) -> None:
        self._root = root
        self._relative = _RelativePaths(root).of
        self._notify = notify

    def dispatch(self, event: FileSystemEvent) -> None:
        """Translate one event. Called by watchdog; an exception would end its thread."""
        try:
            self._translate(event)
        except Exception:  # noqa: BLE001 - whatever it is, watchdog's thread must live
            _log.exception("inbox.defect")
            self._notify(Notice(Change.OVERFLOWED))

    def _translate(self, event: FileSystemEvent) -> None:
        source = self._relative(event.src_path)
        target = self._relative(event.dest_path)
        match event:
            case DirDeletedEvent() if os.fsdecode(event.src_path) == self._root:
                self._notify(Notice(Change.ROOT_GONE))
            case DirDeletedEvent():
                pass  # its files are told of one by one
            case DirCreatedEvent() | DirMovedEvent():
                # its new name may be an ignored one
                self._tell(Change.FOLDER_CHANGED, source)
                self._tell(Change.FOLDER_CHANGED, target)
            case FileMovedEvent():
                # one half is empty where the file came from outside, or left
                self._tell(Change.FILE_GONE, source)
                self._tell(Change.FILE_MOVED_IN, target)
            case FileCreatedEvent():
                self._tell(Change.FILE_CREATED, source)
            case FileClosedEvent():
                self._tell(Change.FILE_CLOSED, source)
            case FileModifiedEvent():
                self._tell(Change.FILE_MODIFIED, source)
            case FileDeletedEvent():
                self._tell(Change.FILE_GONE, source)

    def _tell(self, change: Change, path: str) -> None:
        if path:
            self._notify(Notice(change, path))


def _subscribed_events() -> list[type[FileSystemEvent]]:
    events: list[type[FileSystemEvent]] = [
        FileCreatedEvent,
        FileClosedEvent,
        FileMovedEvent,
        FileDeletedEvent,
        DirCreatedEvent,
        DirMovedEvent,
        DirDeletedEvent,
    ]
    if sys.platform != "linux":
        # Nobody else tells of closing. With inotify a write is always followed by its close, and a slow
        # writer's thousands of MODIFY would only help to overflow the kernel's queue.
        events.append(FileModifiedEvent)
    return events


def _silence_watchdog() -> None:
    # What it logs we notice ourselves and say once. Its DEBUG tells of every notification, and would feed
    # itself if the log lay in a watched folder.
    logging.getLogger("watchdog").setLevel(logging.CRITICAL + 1)
    # A folder that was moved out and comes back under another name is watched anew, over the watch that it
    # still had: intended, and worth no line on stderr.
    warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)


if sys.platform == "linux":
    from watchdog.observers.inotify import InotifyFullEmitter, InotifyWatchGroup
    from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD, Mask
    from watchdog.observers.inotify_move_event_grouper import InotifyMoveEventGrouper, PathedInotifyEvent

    class _ReportingInotify(InotifyFD):
        """An inotify descriptor that says what it lost and what it was refused."""

        def __init__(self, notify: Callable[[Notice], None], backlog: Callable[[], int]) -> None:
            super().__init__()
            self._notify = notify
            self._backlog = backlog

        def read_events(self, **options: int) -> list[InotifyEvent]:
            while self._backlog() > MAX_BACKLOG and self.should_keep_running():
                self.stopped_event.wait(_BACKLOG_CHECK_S)
            return super().read_events(**options)

        def handle_event(self, event: InotifyEvent) -> None:
            super().handle_event(event)
            if event.is_queue_overflow:
                self._notify(Notice(Change.OVERFLOWED))

        def add_callback(
            self, path: bytes, mask: Mask, callback: WatchCallback, id_: CallbackId
        ) -> WatchDescriptor:
            try:
                return super().add_callback(path, mask, callback, id_)
            except OSError as error:
                # watchdog goes on without the folder, and says nothing
                if error.errno in LIMIT_ERRNOS:
                    self._notify(Notice(Change.REFUSED, os.fsdecode(path)))
                raise

        def run(self) -> None:
            try:
                super().run()
            except Exception:  # noqa: BLE001 - whatever it is, the watch is rebuilt
                # The thread ends, `is_alive` says so, and the watch is armed anew.
                _log.exception("inbox.defect")

    class _WatchGroup(InotifyWatchGroup):
        """The watches of one tree, with books that survive folders on the move."""

        def __init__(
            self,
            inotify: InotifyFD,
            path: bytes,
            *,
            event_mask: Mask,
            is_recursive: bool,
            is_left_alone: Callable[[bytes], bool],
        ) -> None:
            self._sources: dict[int, bytes] = {}
            self._is_left_alone = is_left_alone
            super().__init__(inotify, path, event_mask, is_recursive)

        def on_event(self, event: InotifyEvent) -> None:
            if event.is_moved_from and event.is_directory:
                with self._lock:
                    source = self._build_event_source_path(event)
                if source is not None:
                    # both halves of a rename are neighbours, so a few are enough
                    self._sources = dict([*self._sources.items(), (event.cookie, source)][-_KEPT_SOURCES:])
            super().on_event(event)

        @property
        def waiting(self) -> int:
            """How many events nobody has taken from it yet."""
            return len(self._move_event_grouper._queue._queue)  # noqa: SLF001 - watchdog does not count them

        def _source_for_move(self, cookie: int) -> bytes | None:
            # watchdog looks in its queue, where the first half is gone already if its other thread was quick;
            # the watches would keep their old paths, and the books be wrong from there on.
            return self._sources.pop(cookie, None) or super()._source_for_move(cookie)

        def _add_all_callbacks(self, path: bytes) -> None:
            # watchdog would enter, and watch, the ignored folders too
            if self._is_left_alone(path):
                return
            self._add_callback(path)
            if self.is_recursive and os.path.isdir(path):  # noqa: PTH112 - watchdog's paths are bytes
                for where, folders, _ in self._walk(path):
                    for folder in folders:
                        self._add_callback(os.path.join(where, folder))  # noqa: PTH118 - bytes

        def _recursive_simulate(self, src_path: bytes) -> list[InotifyEvent]:
            # What was in a folder before it had its watch. watchdog would tell of all that is in it, however
            # much, and walk through the ignored ones.
            events: list[InotifyEvent] = []
            for where, folders, files in self._walk(src_path):
                wd = self._active_callbacks_by_path.get(where)
                if wd is None:
                    continue
                as_folder = Mask(InotifyConstants.IN_CREATE | InotifyConstants.IN_ISDIR)
                events += [InotifyEvent(wd, as_folder, 0, name) for name in folders]
                events += [InotifyEvent(wd, InotifyConstants.IN_CREATE, 0, name) for name in files]
                if len(events) > _MAX_SIMULATED:
                    break
            return events[:_MAX_SIMULATED]

        def _walk(self, path: bytes) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
            """Walk over the folders that are not ignored; links are not followed."""
            if self._is_left_alone(path):
                return
            for where, folders, files in os.walk(path):
                paths = [(name, os.path.join(where, name)) for name in folders]  # noqa: PTH118 - bytes
                folders[:] = [
                    name
                    for name, folder in paths
                    if not os.path.islink(folder) and not self._is_left_alone(folder)  # noqa: PTH114 - bytes
                ]
                yield where, folders, files

        def _remove_watch_internally(self, wd: WatchDescriptor) -> None:
            # After a folder was moved out, and another got its name, two watches have one path. watchdog ends
            # with a KeyError when both have gone.
            path = self._active_callbacks_by_watch.pop(wd, None)
            if path is not None and self._active_callbacks_by_path.get(path) == wd:
                del self._active_callbacks_by_path[path]

    class _Emitter(InotifyFullEmitter):
        """Reads one group of watches."""

        def __init__(
            self,
            event_queue: EventQueue,
            watch: ObservedWatch,
            *,
            timeout: float,
            event_filter: list[type[FileSystemEvent]] | None,
            inotify_fd: InotifyFD,
            is_left_alone: Callable[[bytes], bool],
        ) -> None:
            super().__init__(
                event_queue, watch, timeout=timeout, event_filter=event_filter, inotify_fd=inotify_fd
            )
            self._is_left_alone = is_left_alone

        def on_thread_start(self) -> None:
            self._inotify = _WatchGroup(
                self._inotify_fd,
                os.fsencode(self.watch.path),
                event_mask=self.get_event_mask_from_filter(),
                is_recursive=self.watch.is_recursive,
                is_left_alone=self._is_left_alone,
            )

        @property
        def waiting(self) -> int:
            """How many events it has not read yet."""
            group = self._inotify
            return group.waiting if isinstance(group, _WatchGroup) else 0

        def build_and_queue_event(self, event: GroupedInotifyEvent, *, full_events: bool = True) -> None:
            # watchdog would tell of each file in a folder that was moved; a listing follows anyway.
            source, target = event if not isinstance(event, PathedInotifyEvent) else (None, event)
            if target.ev.is_moved_to and target.ev.is_directory:
                came_from = os.fsdecode(source.path) if source is not None else ""
                self.queue_event(DirMovedEvent(came_from, os.fsdecode(target.path)))
            else:
                super().build_and_queue_event(event, full_events=full_events)

        def on_thread_stop(self) -> None:
            group = self._inotify
            try:
                super().on_thread_stop()
            finally:
                if group is not None:
                    group._move_event_grouper.close()  # noqa: SLF001 - what its thread waits for

    class _InotifyObserver(BaseObserver):
        """watchdog's `InotifyObserver(generate_full_events=True)`, built of the parts above.

        Full events: a file that is moved in is told of as moved, not as created: it counts as complete.
        """

        def __init__(self, notify: Callable[[Notice], None], is_left_alone: Callable[[bytes], bool]) -> None:
            # A file moved out of the tree would hold up every later event for half a second, in case its
            # other half still comes. Whether the halves pair makes no difference to what we tell.
            InotifyMoveEventGrouper.delay = 0.0
            self._inotify = _ReportingInotify(notify, self._backlog)
            super().__init__(_Emitter, inotify_fd=self._inotify, is_left_alone=is_left_alone)
            self._inotify.start()

        def _backlog(self) -> int:
            """How many events were read and not told of yet."""
            unread = sum(emitter.waiting for emitter in self.emitters.copy() if isinstance(emitter, _Emitter))
            return self.event_queue.qsize() + unread

        def is_alive(self) -> bool:
            return super().is_alive() and self._inotify.is_alive()

        def on_thread_stop(self) -> None:
            try:
                super().on_thread_stop()
            finally:
                self._inotify.stop()
                self._inotify.join()

    def _new_observer(
        root: str, is_ignored: Callable[[str], bool], notify: Callable[[Notice], None]
    ) -> BaseObserver:
        relative = _RelativePaths(root).of

        def is_left_alone(folder: bytes) -> bool:
            path = relative(folder)
            return bool(path) and is_ignored(path)

        return _InotifyObserver(notify, is_left_alone)

else:
    from watchdog.observers import Observer

    def _new_observer(
        root: str,  # noqa: ARG001 - as below
        is_ignored: Callable[[str], bool],  # noqa: ARG001 - only inotify has a watch for each folder
        notify: Callable[[Notice], None],  # noqa: ARG001 - only inotify reports
    ) -> BaseObserver:
        return Observer()
