"""The operating system's notifications of one folder tree, by watchdog.

Rules of this file:
- All knowledge of watchdog's inside is here. What it leaves out is added: overflow, a watch that the kernel
  refuses below the root, a reader thread that dies, a file moved out that would hold up all that follows,
  folders that are renamed or moved out faster than its books can follow.
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
    from collections.abc import Callable

    from watchdog.observers.inotify_c import CallbackId, InotifyEvent, Mask, WatchCallback, WatchDescriptor

LIMIT_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The kernel has no more watches (ENOSPC) or instances (EMFILE) for us."""

_KEPT_SOURCES: Final = 16

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

    def __init__(self, root: str, *, recursive: bool, notify: Callable[[Notice], None]) -> None:
        """Arm the watch; blocks for a walk over the tree.

        Args:
            root: absolute, with links resolved.
            recursive: also the folders below.
            notify: called from watchdog's threads; only enqueues, never raises.

        Raises:
            OSError: the kernel refuses, see `LIMIT_ERRNOS`; or the root is away.
        """
        _silence_watchdog()
        self._observer = _new_observer(notify)
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


class _Translator(FileSystemEventHandler):
    """watchdog's events -> notices."""

    def __init__(self, root: str, notify: Callable[[Notice], None]) -> None:
        self._root = root
        self._prefix = root.rstrip("/") + "/"
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
                self._notify(Notice(Change.FOLDER_CHANGED, target or source))
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

    def _relative(self, path: bytes | str) -> str:
        text = os.fsdecode(path)
        return text.removeprefix(self._prefix) if text.startswith(self._prefix) else ""


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
    from watchdog.observers.inotify_c import InotifyFD
    from watchdog.observers.inotify_move_event_grouper import InotifyMoveEventGrouper

    class _ReportingInotify(InotifyFD):
        """An inotify descriptor that says what it lost and what it was refused."""

        def __init__(self, notify: Callable[[Notice], None]) -> None:
            super().__init__()
            self._notify = notify

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

        def __post_init__(self) -> None:
            self._sources: dict[int, bytes] = {}
            super().__post_init__()

        def on_event(self, event: InotifyEvent) -> None:
            if event.is_moved_from and event.is_directory:
                with self._lock:
                    source = self._build_event_source_path(event)
                if source is not None:
                    # both halves of a rename are neighbours, so a few are enough
                    self._sources = dict([*self._sources.items(), (event.cookie, source)][-_KEPT_SOURCES:])
            super().on_event(event)

        def _source_for_move(self, cookie: int) -> bytes | None:
            # watchdog looks in its queue, where the first half is gone already if its other thread was quick;
            # the watches would keep their old paths, and the books be wrong from there on.
            return self._sources.pop(cookie, None) or super()._source_for_move(cookie)

        def _remove_watch_internally(self, wd: WatchDescriptor) -> None:
            # After a folder was moved out, and another got its name, two watches have one path. watchdog ends
            # with a KeyError when both have gone.
            path = self._active_callbacks_by_watch.pop(wd, None)
            if path is not None and self._active_callbacks_by_path.get(path) == wd:
                del self._active_callbacks_by_path[path]

    class _Emitter(InotifyFullEmitter):
        """Reads one group of watches."""

        def on_thread_start(self) -> None:
            self._inotify = _WatchGroup(
                self._inotify_fd,
                os.fsencode(self.watch.path),
                event_mask=self.get_event_mask_from_filter(),
                is_recursive=self.watch.is_recursive,
            )

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

        def __init__(self, notify: Callable[[Notice], None]) -> None:
            # A file moved out of the tree would hold up every later event for half a second, in case its
            # other half still comes. Whether the halves pair makes no difference to what we tell.
            InotifyMoveEventGrouper.delay = 0.0
            self._inotify = _ReportingInotify(notify)
            self._inotify.start()
            super().__init__(_Emitter, inotify_fd=self._inotify)

        def is_alive(self) -> bool:
            return super().is_alive() and self._inotify.is_alive()

        def on_thread_stop(self) -> None:
            try:
                super().on_thread_stop()
            finally:
                self._inotify.stop()
                self._inotify.join()

    def _new_observer(notify: Callable[[Notice], None]) -> BaseObserver:
        return _InotifyObserver(notify)

else:
    from watchdog.observers import Observer

    def _new_observer(notify: Callable[[Notice], None]) -> BaseObserver:  # noqa: ARG001 - only inotify reports
        return Observer()
