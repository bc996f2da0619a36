"""A disk that loses what nobody synced: real folders, and beside them what a power cut would leave of them.

The model, which is POSIX' promise and no more:
- The bytes of a file are durable when that file was synced; a name (made, renamed, linked, removed) when its
  folder was. A file's sync says nothing about its name, a folder's sync nothing about the folder's own name.
- Of what was not synced a power cut leaves any part. Each name has gone back to any of its states since the
  last sync, independently of all others. Of each file, every sector that was written since is old, new or
  zero, and its length is any that it had, or a sector's end in between.
- A rename is atomic as a name: the old name never goes before the new one has come. Both may be there.
- A sync that fails gives up what it could not write: the pages count as clean, and only what is written again
  is written by the next sync. (Linux does so with the bytes of files. Names go through a file system's own
  journal, and the next sync of their folder takes them along.)

That is more than any one file system does. ext4 (data=ordered) and XFS keep names in the order in which they
came, and a sync takes all earlier names along; zeros at the end of a file are XFS' and ext4's (writeback),
mixed sectors are any file system's whose writes are not ordered, two names after a rename are those of file
systems without a journal.

What it takes for granted: a sync that returns well has told the truth, also of the drive's own cache; a
sector is written whole or not at all; what was synced stays as it was.

Rules of this file:
- What is there when the disk is mounted is durable. What is written past this file later is unknown to it,
  and a power cut leaves it alone: `write_like_a_stranger` is for what other programs write without a sync.
- A death is a `Died`, raised ahead of an operation and by every later one: no code of the dead process may
  touch the disk. `power_cut` then changes the real folders; without it the death was a SIGKILL.
- One thread. Linux only: it looks at open files through /proc.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from watcher.adapters.file_operations import Entry, FileOperations, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random
    from types import FrameType
    from typing import TypeAlias

    _Names: TypeAlias = "Mapping[_Folder, Mapping[str, _Node | None]]"

SECTOR_BYTES: Final = 512
_WRITING: Final = os.O_WRONLY | os.O_RDWR


class Died(BaseException):
    """Stands for the end of the process: nothing of its own code runs after it, and no operation works."""


class Adversary(StrEnum):
    """What a power cut makes of what was not synced."""

    NOTHING = "nothing"
    """None of it was written."""
    EVERYTHING = "everything"
    """All of it was."""
    EMPTY = "empty"
    """All names, none of the bytes."""
    ZEROED = "zeroed"
    """All names and lengths, zeros for bytes."""
    TORN = "torn"
    """All names; of the bytes those up to some sector."""
    DOUBLED = "doubled"
    """All names that came, none that went; all bytes."""
    GONE = "gone"
    """All names that went, and of those that came only what a rename takes along; all bytes."""
    MIXED = "mixed"
    """Any of it."""


@dataclass(eq=False, slots=True)
class _Node:
    """A file or folder, whatever its names; `keep` holds it open, so that its number is not given again."""

    keep: int
    device: int
    """Which of the simulated devices it is on."""
    seen: tuple[int, int]
    """Its number and ctime when the model met it."""


@dataclass(eq=False, slots=True)
class _Folder(_Node):
    names: dict[str, _Node] = field(default_factory=dict)
    """The durable ones."""


@dataclass(eq=False, slots=True)
class _File(_Node):
    durable: bytes = b""
    since: list[bytes] = field(default_factory=list)
    """What it was after each write since it was last synced."""
    given_up: set[int] = field(default_factory=set)
    """Sectors that a failed sync did not write, and that count as written."""

    def live(self) -> bytes:
        descriptor = os.open(f"/proc/self/fd/{self.keep}", os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def changed(self, start: int, end: int) -> None:
        """Bytes were written, or cut off, from `start` to `end`."""
        self.since.append(self.live())
        self.given_up -= set(_sectors(start, end))

    def synced(self) -> None:
        self.durable = self._without_given_up(self.live())
        self.since = []

    def sync_failed(self) -> None:
        live = self.live()
        self.given_up |= {
            at
            for at in _sectors(0, max(len(live), len(self.durable)))
            if _sector(live, at) != _sector(self.durable, at)
        }
        self.since = []

    def after_cut(self, adversary: Adversary, rng: Random) -> bytes:
        """What is left of it."""
        if not self.since:
            return self.durable
        latest = self.since[-1]
        match adversary:
            case Adversary.NOTHING | Adversary.EMPTY:
                left = self.durable
            case Adversary.EVERYTHING | Adversary.DOUBLED | Adversary.GONE:
                left = latest
            case Adversary.ZEROED:
                left = _assembled(len(latest), lambda _: self.durable)
            case Adversary.TORN:
                cut = rng.randrange(len(latest) // SECTOR_BYTES + 1)
                size = rng.choice([len(latest), max(len(self.durable), min(cut * SECTOR_BYTES, len(latest)))])
                left = _assembled(size, lambda at: latest if at < cut else self.durable)
            case Adversary.MIXED:
                states = [self.durable, *self.since]
                left = _assembled(rng.choice(self._sizes(states)), lambda _: rng.choice(states))
        return self._without_given_up(left)

    @staticmethod
    def _sizes(states: list[bytes]) -> list[int]:
        sizes = sorted({len(state) for state in states})
        return [*sizes, *range((sizes[0] // SECTOR_BYTES + 1) * SECTOR_BYTES, sizes[-1], SECTOR_BYTES)]

    def _without_given_up(self, content: bytes) -> bytes:
        return _assembled(len(content), lambda at: self.durable if at in self.given_up else content)


@dataclass(eq=False, slots=True)
class _Change:
    """A name came (`node`) or went (None) and its folder was not synced since."""

    folder: _Folder
    name: str
    node: _Node | None
    needs: _Change | None = None
    """The new name of what was renamed: the old one goes only after it has come."""

    @property
    def key(self) -> tuple[_Folder, str]:
        return self.folder, self.name


class _Left(NamedTuple):
    """What a power cut leaves under a path: a folder (`content` None) or a file."""

    node: _Node
    content: bytes | None


class SimulatedDisk(FileOperations):
    """File operations on real folders, with what they would be after a power cut.

    Args:
        devices: the roots, each list on a device of its own; they exist, and are durable.
        strange: names of files that are written past this disk.
        lacks: `exclusive_rename` and `link` where the file system has none.

    Attributes:
        on_step: called ahead of each operation; a test raises from it.
        on_done: called after each operation that changed something.
        deaf_to: syncs by these callers do nothing (see `callers`).
        callers: who synced, as `Class.function:file` or `...:folder`.
    """

    def __init__(
        self, *devices: Iterable[Path], strange: Iterable[str] = (), lacks: Iterable[str] = ()
    ) -> None:
        self._strange = frozenset(strange)
        self._lacks = frozenset(lacks)
        self.on_step: Callable[[str, str], None] = lambda _operation, _name: None
        self.on_done: Callable[[], None] = lambda: None
        self.deaf_to: frozenset[str] = frozenset()
        self.callers: set[str] = set()
        self._roots = {os.fspath(root): number for number, roots in enumerate(devices) for root in roots}
        self._kept: list[int] = []
        self._identities: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._mount()

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept.clear()

    # --- operations ----------------------------------------------------------------------------------------

    def before(self, operation: str, name: str) -> None:
        """A step of the process: it may fail or die here."""
        self.on_step(operation, name)
        if operation in self._lacks:
            number = errno.EINVAL if operation == "exclusive_rename" else errno.EPERM
            raise OSError(number, os.strerror(number), name)

    def open(self, entry: Entry, flags: int, mode: int = 0o666) -> int:
        """Opening alone changes nothing, and is told apart: `create` is a change."""
        self.before("create" if flags & os.O_CREAT else "open", entry.name)
        was_there = status_of(entry) is not None
        descriptor = os.open(entry.name, flags, mode, dir_fd=entry.folder)
        if entry.folder is None or not (flags & (os.O_DIRECTORY | _WRITING)):
            return descriptor
        folder = self._folder_of(entry.folder)
        if was_there:
            node = self._known(folder, entry)
            if flags & os.O_TRUNC and isinstance(node, _File):
                node.changed(0, len(node.durable))
                self.on_done()
        else:
            self._change(folder, entry.name, self._new_node(entry, folder.device))
            self.on_done()
        return descriptor

    def write(self, descriptor: int, data: bytes, name: str) -> int:
        """Write, and remember what the file was after it."""
        taken = super().write(descriptor, data, name)
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        self._file_of(descriptor).changed(end - taken, end)
        self.on_done()
        return taken

    def truncate(self, descriptor: int, size_bytes: int, name: str) -> None:
        """Cut, and remember what the file was after it."""
        file = self._file_of(descriptor)
        before_bytes = os.fstat(descriptor).st_size
        super().truncate(descriptor, size_bytes, name)
        file.changed(size_bytes, max(size_bytes, before_bytes))
        self.on_done()

    def fsync(self, descriptor: int, name: str) -> None:
        """Make it durable in the model; the real disk is left in peace."""
        node = self._nodes.get(_number(os.fstat(descriptor)))
        try:
            self.before("fsync", name)
        except OSError:
            if isinstance(node, _File):
                node.sync_failed()
            raise
        caller = _caller(sys._getframe(1))
        caller += ":folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else ":file"
        self.callers.add(caller)
        if caller in self.deaf_to:
            return
        if isinstance(node, _File):
            node.synced()
        if isinstance(node, _Folder):
            for change in [change for change in self._changes if change.folder is node]:
                self._make_durable(change)

    def mkdir(self, entry: Entry, mode: int = 0o777) -> None:
        """Make a folder, whose name is not durable."""
        super().mkdir(entry, mode)
        folder = self._folder_at(entry)
        self._change(folder, entry.name, self._new_node(entry, folder.device))
        self.on_done()

    def rmdir(self, entry: Entry) -> None:
        """Remove a folder."""
        folder = self._folder_at(entry)
        self._know(entry)
        super().rmdir(entry)
        self._change(folder, entry.name, None)
        self.on_done()

    def unlink(self, entry: Entry) -> None:
        """Remove a name."""
        folder = self._folder_at(entry)
        self._know(entry)
        super().unlink(entry)
        self._change(folder, entry.name, None)
        self.on_done()

    def replace(self, source: Entry, target: Entry) -> None:
        """Rename, over another file or none."""
        self._know(target)
        moved = self._moving(source, target)
        super().replace(source, target)
        self._moved(source, target, moved)

    def exclusive_rename(self, source: Entry, target: Entry) -> None:
        """Rename to a free name."""
        moved = self._moving(source, target)
        super().exclusive_rename(source, target)
        self._moved(source, target, moved)

    def link(self, source: Entry, target: Entry) -> None:
        """Give a second name."""
        node = self._moving(source, target)
        super().link(source, target)
        self._change(self._folder_at(target), target.name, node)
        self.on_done()

    def _moving(self, source: Entry, target: Entry) -> _Node | None:
        if self._folder_at(source).device != self._folder_at(target).device:
            self.before("rename", target.name)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source.name, None, target.name)
        return self._know(source)

    def _moved(self, source: Entry, target: Entry, node: _Node | None) -> None:
        came = self._change(self._folder_at(target), target.name, node)
        self._change(self._folder_at(source), source.name, None, needs=came)
        self.on_done()

    # --- what others do ------------------------------------------------------------------------------------

    def write_like_a_stranger(self, path: Path, content: bytes, *, mtime_ns: int | None = None) -> None:
        """Write a file as a program does that syncs nothing; each of its operations is a step."""
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            entry = Entry(parent, path.name)
            descriptor = self.open(entry, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                half = len(content) // 2
                for piece in (content[:half], content[half:]):
                    self.write_all(descriptor, piece, path.name)
                if mtime_ns is not None:
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(descriptor)
        finally:
            os.close(parent)

    def identity(self, status: os.stat_result) -> tuple[int, int]:
        """The number and ctime of a file; of one that a power cut brought back, those that it had before."""
        now = status.st_ino, status.st_ctime_ns
        return self._identities.get((status.st_dev, *now), now)

    # --- the power cut -------------------------------------------------------------------------------------

    def files_after_cut(self, adversary: Adversary, rng: Random) -> dict[str, bytes]:
        """Every file that a power cut would leave now, by its path; nothing is changed."""
        image = self._image(adversary, rng)
        return {path: left.content for path, left in image.items() if left.content is not None}

    def power_cut(self, adversary: Adversary, rng: Random) -> None:
        """Cut the power, and mount the disk again: the real folders are what is left."""
        image = self._image(adversary, rng)
        placed: dict[_Node, str] = {}
        for path, left in image.items():
            if isinstance(left.node, _File) and _stands(path, left.node) and left.node.live() == left.content:
                placed[left.node] = path
        for root, node in self._root_nodes.items():
            self._rebuild(root, node, image, placed)
        self._mount()

    def _mount(self) -> None:
        """What is there is durable."""
        self.close()
        self._nodes: dict[tuple[int, int], _Node] = {}
        self._changes: list[_Change] = []
        self._root_nodes: dict[str, _Folder] = {}
        for root, device in self._roots.items():
            node = self._new_node(Entry(None, root), device)
            assert isinstance(node, _Folder)
            self._root_nodes[root] = node
            self._take_in(root, node)

    def _take_in(self, path: str, folder: _Folder) -> None:
        """Know what is in a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in {entry.name for entry in Path(path).iterdir()} - self._strange:
                node = folder.names[name] = self._known(folder, Entry(descriptor, name))
                if isinstance(node, _Folder):
                    self._take_in(f"{path}/{name}", node)
        finally:
            os.close(descriptor)

    def _image(self, adversary: Adversary, rng: Random) -> dict[str, _Left]:
        names = self._names_after_cut(adversary, rng)
        contents: dict[_Node, bytes] = {}
        image: dict[str, _Left] = {}

        def add(path: str, node: _Node) -> None:
            if isinstance(node, _File):
                if node not in contents:
                    contents[node] = node.after_cut(adversary, rng)
                image[path] = _Left(node, contents[node])
                return
            assert isinstance(node, _Folder)
            image[path] = _Left(node, None)
            below = {**node.names, **names[node]} if node in names else node.names
            for name, child in below.items():
                if child is not None:
                    add(f"{path}/{name}", child)

        for root, node in self._root_nodes.items():
            add(root, node)
        return image

    def _names_after_cut(self, adversary: Adversary, rng: Random) -> _Names:
        """What each name that changed is then."""
        queues: dict[tuple[_Folder, str], list[_Change]] = {}
        for change in self._changes:
            queues.setdefault(change.key, []).append(change)
        written = {key: self._how_far(queue, adversary, rng) for key, queue in queues.items()}
        grows = True
        while grows:
            grows = False
            for key, queue in queues.items():
                for needed in [c.needs for c in queue[: written[key]] if c.needs in self._changes]:
                    assert needed is not None
                    count = queues[needed.key].index(needed) + 1
                    if written[needed.key] < count:
                        written[needed.key], grows = count, True
        left: dict[_Folder, dict[str, _Node | None]] = {}
        for (folder, name), queue in queues.items():
            if count := written[folder, name]:
                left.setdefault(folder, {})[name] = queue[count - 1].node
        return left

    @staticmethod
    def _how_far(queue: list[_Change], adversary: Adversary, rng: Random) -> int:
        match adversary:
            case Adversary.NOTHING:
                return 0
            case Adversary.DOUBLED:
                return max((at + 1 for at, change in enumerate(queue) if change.node is not None), default=0)
            case Adversary.GONE:
                return max((at + 1 for at, change in enumerate(queue) if change.node is None), default=0)
            case Adversary.MIXED:
                return rng.randrange(len(queue) + 1)
            case _:
                return len(queue)

    def _rebuild(
        self, path: str, node: _Folder, image: Mapping[str, _Left], placed: dict[_Node, str]
    ) -> None:
        """Make a folder that is there as the image has it; `placed` are the files that are right already."""
        known = {*node.names, *(change.name for change in self._changes if change.folder is node)}
        for name in sorted(known):
            other = f"{path}/{name}"
            left = image.get(other)
            if left is None:
                _remove(other)
            elif isinstance(left.node, _Folder):
                self._restore_folder(other, left.node, image, placed)
            elif isinstance(left.node, _File):
                self._restore_file(other, left.node, left.content or b"", placed)

    def _restore_folder(
        self, path: str, node: _Folder, image: Mapping[str, _Left], placed: dict[_Node, str]
    ) -> None:
        if not _stands(path, node):
            _remove(path)
            Path(path).mkdir(stat.S_IMODE(os.fstat(node.keep).st_mode))
        self._rebuild(path, node, image, placed)

    def _restore_file(self, path: str, node: _File, content: bytes, placed: dict[_Node, str]) -> None:
        if node in placed and _stands(path, node):
            return
        _remove(path)
        if node in placed:
            Path(path).hardlink_to(placed[node])
        else:
            self._write_again(path, node, content)
            placed[node] = path
        status = Path(path).lstat()
        self._identities[status.st_dev, status.st_ino, status.st_ctime_ns] = node.seen

    @staticmethod
    def _write_again(path: str, node: _File, content: bytes) -> None:
        kept = os.fstat(node.keep)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(kept.st_mode))
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.utime(path, ns=(kept.st_mtime_ns, kept.st_mtime_ns))

    # --- the model -----------------------------------------------------------------------------------------

    def _change(
        self, folder: _Folder, name: str, node: _Node | None, *, needs: _Change | None = None
    ) -> _Change:
        change = _Change(folder, name, node, needs)
        self._changes.append(change)
        return change

    def _make_durable(self, change: _Change) -> None:
        """This change of a name, all earlier ones of it, and what they need."""
        if change not in self._changes:
            return
        until = self._changes.index(change)
        for earlier in [c for c in self._changes[: until + 1] if c.key == change.key]:
            if earlier.needs is not None:
                self._make_durable(earlier.needs)
            self._changes.remove(earlier)
            if earlier.node is None:
                earlier.folder.names.pop(earlier.name, None)
            else:
                earlier.folder.names[earlier.name] = earlier.node

    def _new_node(self, entry: Entry, device: int) -> _Node:
        """Take in what stands under a name, and hold on to it."""
        keep = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=entry.folder)
        self._kept.append(keep)
        status = os.fstat(keep)
        kind = _Folder if stat.S_ISDIR(status.st_mode) else _File
        node: _Node = kind(keep, device, self.identity(status))
        self._nodes[_number(status)] = node
        return node

    def _known(self, folder: _Folder, entry: Entry) -> _Node:
        """The node under a name that is there; one that is seen for the first time was durable before."""
        status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        node = self._nodes.get(_number(status))
        if node is None:
            node = self._new_node(entry, folder.device)
            if isinstance(node, _File):
                node.durable = node.live()
            folder.names[entry.name] = node
        return node

    def _know(self, entry: Entry) -> _Node | None:
        if status_of(entry) is None:
            return None
        return self._known(self._folder_at(entry), entry)

    def _folder_at(self, entry: Entry) -> _Folder:
        assert entry.folder is not None, "names are given in an open folder"
        return self._folder_of(entry.folder)

    def _folder_of(self, descriptor: int) -> _Folder:
        node = self._nodes[_number(os.fstat(descriptor))]
        assert isinstance(node, _Folder)
        return node

    def _file_of(self, descriptor: int) -> _File:
        node = self._nodes[_number(os.fstat(descriptor))]
        assert isinstance(node, _File)
        return node


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _sectors(start: int, end: int) -> range:
    return range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))


def _sector(content: bytes, at: int) -> bytes:
    """One sector, zeros where the content ends."""
    return content[at * SECTOR_BYTES : (at + 1) * SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")


def _assembled(size_bytes: int, state_of: Callable[[int], bytes]) -> bytes:
    """Put together a file of this size, each sector out of the state that is named for it."""
    return b"".join(_sector(state_of(at), at) for at in _sectors(0, size_bytes))[:size_bytes]


def _caller(frame: FrameType | None) -> str:
    while frame is not None and frame.f_code is FileOperations.fsync_folder.__code__:
        frame = frame.f_back
    return frame.f_code.co_qualname if frame is not None else ""


def _stands(path: str, node: _Node) -> bool:
    """Whether this file or folder has this name now."""
    try:
        return _number(os.lstat(path)) == _number(os.fstat(node.keep))
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    if Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)
