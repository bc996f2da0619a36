"""A folder as it is on other people's disks: names that ignore case, names that are refused, denied access.

    python -m tests.service.odd_disk FOLDER RULES PROGRAM [ARGUMENTS...]

Mounts a file system of its own over a folder, in which the files are those of the folder itself, and becomes
the program. Only that program sees the mount (see `on_odd_disk`): others see the plain folder beneath.
It is the kernel's FUSE, spoken to directly, since CI machines have neither FAT nor case folding.

Rules of this file:
- The rules are read anew at each request, so a test may change them while the service runs.
- Nothing is cached, and requests are answered one by one: right, not fast.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import struct
import subprocess
import sys
import unicodedata
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FAT_REFUSES: Final = '"*:<>?|\\' + "".join(map(chr, range(32)))
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rules:
    """How the disk is odd.

    Attributes:
        folds: names that differ in case, or in how accents are stored, are one name.
        refuses: characters that no name may have.
        refuses_bytes: names that are not UTF-8 are refused too.
        is_strict: a refused name cannot even be looked for (exFAT); else there is merely no such file (FAT).
        name_bytes: longer names are refused.
        has_links: files may have second names, and be renamed unless the new name is taken; not so on FAT.
        has_blocks: the system tells how many blocks a file takes; else it says none.
        denied: of `list`, `open`, `create` and `unlink` those that the system does not permit, whatever the
            permission bits say, as macOS does in folders that it protects.
    """

    folds: bool = False
    refuses: str = ""
    refuses_bytes: bool = False
    is_strict: bool = False
    name_bytes: int = 255
    has_links: bool = True
    has_blocks: bool = True
    denied: tuple[str, ...] = field(default=())

    def write(self, file: Path) -> None:
        """Let these be the rules from now on."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(file)


FAT: Final = Rules(folds=True, refuses=FAT_REFUSES, refuses_bytes=True, has_links=False)
EXFAT: Final = Rules(folds=True, refuses=FAT_REFUSES, refuses_bytes=True, has_links=False, is_strict=True)
MAC: Final = Rules(folds=True, refuses_bytes=True)


def on_odd_disk(folder: Path, rules: Rules) -> tuple[list[str], Path]:
    """Return a program that runs its arguments with the folder on such a disk, and the file of its rules.

    The test is skipped where the kernel does not let us.
    """
    import pytest  # noqa: PLC0415 - the mounting program does without it

    file = folder.with_name(f"{folder.name}.rules")
    rules.write(file)
    wrapper = [
        *("unshare", "--mount", "--map-root-user"),
        *(
            "env",
            f"PYTHONPATH={ROOT}",
            sys.executable,
            "-m",
            "tests.service.odd_disk",
            str(folder),
            str(file),
        ),
    ]
    refusal = _refusal(*wrapper)
    if refusal is not None:
        pytest.skip(f"this system lets nobody mount a file system of their own: {refusal}")
    return wrapper, file


_tried: dict[str, str | None] = {}
"""Whether the kernel lets us, found out once."""


def _refusal(*wrapper: str) -> str | None:
    if "refusal" not in _tried:
        tried = subprocess.run([*wrapper, "true"], check=False, capture_output=True, text=True)
        _tried["refusal"] = tried.stderr[-200:] if tried.returncode else None
    return _tried["refusal"]


# --- the kernel's protocol (linux/fuse.h) ------------------------------------------------------------------

_IN: Final = struct.Struct("=IIQQIIII")
_OUT: Final = struct.Struct("=IiQ")
_INIT: Final = struct.Struct("=IIIIHHIIHHII6I")
_ATTR: Final = struct.Struct("=6Q10I")
_ENTRY: Final = struct.Struct("=4QII")
_SETATTR: Final = struct.Struct("=IIQQQQQQIIIIIIII")
_IO: Final = struct.Struct("=QQIIQII")
_STATFS: Final = struct.Struct("=5Q4I6I")
_DIRENT: Final = struct.Struct("=QQII")
_MAX_WRITE: Final = 1 << 17
_GETATTR_FH: Final = 1
_SET_MODE, _SET_SIZE, _SET_ATIME, _SET_MTIME, _SET_FH = 1, 8, 16, 32, 64
_NO_REPLACE: Final = 1
_ROOT: Final = 1
_TOP: Final = b"."


class _Disk:
    """Answers the kernel out of the folder beneath."""

    def __init__(self, base: int, rules: Path) -> None:
        self._base = base
        self._rules_file = rules
        self._rules = Rules()
        self._paths: dict[int, bytes] = {_ROOT: _TOP}
        self._nodes: dict[bytes, int] = {_TOP: _ROOT}
        self._next = _ROOT + 1
        self._listed: dict[int, list[os.DirEntry[bytes]]] = {}
        self._calls: Mapping[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: self._getattr,
            4: self._setattr,
            9: self._mkdir,
            10: self._unlink,
            11: self._rmdir,
            12: self._rename,
            13: self._link,
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._fsync,
            25: lambda _node, _body: b"",
            26: self._init,
            27: self._opendir,
            28: self._readdir,
            29: lambda _node, _body: b"",
            30: lambda _node, _body: b"",
            35: self._create,
            45: self._rename2,
        }

    def answer(self, request: bytes) -> bytes | None:
        """Carry out one request; None where no answer is due (FORGET, INTERRUPT, BATCH_FORGET)."""
        _, opcode, unique, node = _IN.unpack_from(request)[:4]
        if opcode in {2, 36, 42}:
            return None
        with suppress(OSError, ValueError):
            self._rules = Rules(**json.loads(self._rules_file.read_bytes()))
        call = self._calls.get(opcode)
        try:
            if call is None:
                raise OSError(errno.ENOSYS, "not known to this disk")  # noqa: TRY301 - one way for all refusals
            body = call(node, request[_IN.size :])
        except OSError as error:
            return _OUT.pack(_OUT.size, -(error.errno or errno.EIO), unique)
        return _OUT.pack(_OUT.size + len(body), 0, unique) + body

    # --- names ---

    def _path(self, node: int) -> bytes:
        try:
            return self._paths[node]
        except KeyError:
            raise OSError(errno.ESTALE, "no such node") from None

    def _below(self, node: int, name: bytes, *, new: bool) -> bytes:
        """The path of a name in a folder, as it is spelled on the disk if it is there."""
        folder, text = self._path(node), os.fsdecode(name)
        self._check(text, new=new)
        if self._rules.folds and not self._exists(_joined(folder, name)):
            wanted = _folded(text)
            for listed in self._names(folder):
                if _folded(os.fsdecode(listed)) == wanted:
                    return _joined(folder, listed)
        return _joined(folder, name)

    def _check(self, name: str, *, new: bool) -> None:
        rules = self._rules
        if len(os.fsencode(name)) > rules.name_bytes:
            raise OSError(errno.ENAMETOOLONG, "too long for this disk")
        if new or rules.is_strict:
            if set(rules.refuses) & set(name):
                raise OSError(errno.EINVAL, "refused by this disk")
            if rules.refuses_bytes and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise OSError(errno.EILSEQ, "refused by this disk")

    def _permit(self, what: str) -> None:
        if what in self._rules.denied:
            raise OSError(errno.EPERM, "denied by the system")

    def _exists(self, path: bytes) -> bool:
        try:
            os.stat(path, dir_fd=self._base, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _names(self, folder: bytes) -> list[bytes]:
        return [entry.name for entry in self._entries(folder)]

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._base)
        try:
            with os.scandir(f"/proc/self/fd/{opened}".encode()) as entries:
                return list(entries)
        finally:
            os.close(opened)

    def _node(self, path: bytes) -> int:
        if path not in self._nodes:
            self._nodes[path], self._paths[self._next] = self._next, path
            self._next += 1
        return self._nodes[path]

    def _forget(self, path: bytes) -> None:
        self._nodes.pop(path, None)

    def _entry(self, path: bytes) -> bytes:
        status = os.stat(path, dir_fd=self._base, follow_symlinks=False)
        return _ENTRY.pack(self._node(path), 0, 0, 0, 0, 0) + self._attributes(status)

    def _attributes(self, status: os.stat_result) -> bytes:
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        blocks = status.st_blocks if self._rules.has_blocks else 0
        return _ATTR.pack(
            *(status.st_ino, status.st_size, blocks, *(ns // 10**9 for ns in times)),
            *(ns % 10**9 for ns in times),
            *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0),
        )

    # --- requests ---

    def _init(self, _node: int, body: bytes) -> bytes:
        major, minor, readahead, _flags = struct.unpack_from("=IIII", body)
        return _INIT.pack(major, min(minor, 31), readahead, 0, 8, 6, _MAX_WRITE, 1, 0, 0, 0, 0, *[0] * 6)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._below(node, body.rstrip(b"\0"), new=False))

    def _getattr(self, node: int, body: bytes) -> bytes:
        flags, _, handle = struct.unpack_from("=IIQ", body)
        return self._attributes_of(node, handle if flags & _GETATTR_FH else None)

    def _attributes_of(self, node: int, handle: int | None) -> bytes:
        status = (
            os.stat(self._path(node), dir_fd=self._base, follow_symlinks=False)
            if handle is None
            else os.fstat(handle)
        )
        return struct.pack("=QII", 0, 0, 0) + self._attributes(status)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, *_ = _SETATTR.unpack_from(
            body
        )
        path = self._path(node)
        descriptor = os.dup(handle) if valid & _SET_FH else os.open(path, os.O_RDWR, dir_fd=self._base)
        try:
            if valid & _SET_MODE and self._rules.has_links:  # FAT says yes, and does nothing
                os.fchmod(descriptor, stat.S_IMODE(mode))
            if valid & _SET_SIZE:
                os.ftruncate(descriptor, size)
            if valid & (_SET_ATIME | _SET_MTIME):
                os.utime(descriptor, ns=(atime * 10**9 + atime_ns, mtime * 10**9 + mtime_ns))
            return struct.pack("=QII", 0, 0, 0) + self._attributes(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("=I", body)
        self._permit("create")
        path = self._below(node, body[8:].rstrip(b"\0"), new=True)
        os.mkdir(path, mode, dir_fd=self._base)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        self._permit("unlink")
        path = self._below(node, body.rstrip(b"\0"), new=False)
        os.unlink(path, dir_fd=self._base)
        self._forget(path)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        path = self._below(node, body.rstrip(b"\0"), new=False)
        os.rmdir(path, dir_fd=self._base)
        self._forget(path)
        return b""

    def _rename(self, node: int, body: bytes) -> bytes:
        return self._renamed(node, struct.unpack_from("=Q", body)[0], body[8:], 0)

    def _rename2(self, node: int, body: bytes) -> bytes:
        target, flags, _ = struct.unpack_from("=QII", body)
        return self._renamed(node, target, body[16:], flags)

    def _renamed(self, node: int, target_node: int, names: bytes, flags: int) -> bytes:
        self._permit("create")
        old, new = names.split(b"\0")[:2]
        source = self._below(node, old, new=False)
        target = self._below(target_node, new, new=True)
        if flags and not self._rules.has_links:
            raise OSError(errno.EINVAL, "this disk cannot do that")
        if flags & _NO_REPLACE and self._exists(target):
            raise OSError(errno.EEXIST, "taken")
        os.rename(source, target, src_dir_fd=self._base, dst_dir_fd=self._base)
        self._forget(target)
        moved = self._nodes.pop(source, None)
        if moved is not None:
            self._nodes[target], self._paths[moved] = moved, target
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        if not self._rules.has_links:
            raise OSError(errno.EPERM, "this disk has no links")
        (source,) = struct.unpack_from("=Q", body)
        path = self._below(node, body[8:].rstrip(b"\0"), new=True)
        os.link(self._path(source), path, src_dir_fd=self._base, dst_dir_fd=self._base)
        return self._entry(path)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        self._permit("open")
        return struct.pack("=QII", os.open(self._path(node), _openable(flags), dir_fd=self._base), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("=II", body)
        self._permit("create")
        path = self._below(node, body[16:].rstrip(b"\0"), new=True)
        handle = os.open(path, _openable(flags) | os.O_CREAT, mode, dir_fd=self._base)
        return self._entry(path) + struct.pack("=QII", handle, 0, 0)

    def _read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size, *_ = _IO.unpack_from(body)
        return os.pread(handle, size, offset)

    def _write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size, *_ = _IO.unpack_from(body)
        return struct.pack("=II", os.pwrite(handle, body[_IO.size : _IO.size + size], offset), 0)

    def _release(self, _node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("=Q", body)[0])
        return b""

    def _fsync(self, _node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("=Q", body)[0])
        return b""

    def _statfs(self, _node: int, _body: bytes) -> bytes:
        free = 1 << 20
        return _STATFS.pack(free, free, free, free, free, 4096, self._rules.name_bytes, 4096, 0, *[0] * 6)

    def _opendir(self, node: int, _body: bytes) -> bytes:
        self._permit("list")
        self._path(node)
        return struct.pack("=QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = _IO.unpack_from(body)
        if offset == 0:
            self._listed[node] = self._entries(self._path(node))
        answer = b""
        for number, entry in enumerate(self._listed.get(node, [])[offset:], offset + 1):
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12 if _is_there(entry) else 0
            piece = _DIRENT.pack(entry.inode(), number, len(entry.name), kind) + entry.name
            piece += b"\0" * (-len(piece) % 8)
            if len(answer) + len(piece) > size:
                break
            answer += piece
        return answer


def _is_there(entry: os.DirEntry[bytes]) -> bool:
    try:
        entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return True


def _joined(folder: bytes, name: bytes) -> bytes:
    return name if folder == _TOP else folder + b"/" + name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _openable(flags: int) -> int:
    return flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND)


# --- becoming the program ----------------------------------------------------------------------------------


def _mount(folder: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={_MAX_WRITE}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"odd-disk", os.fsencode(folder), b"fuse", 0, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)
    return device


def _serve(device: int, disk: _Disk, program: int) -> None:
    """Answer until the program has ended, or the mount."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    poll.register(program, select.POLLIN)
    while not any(descriptor == program for descriptor, _ in poll.poll()):
        try:
            answer = disk.answer(os.read(device, _MAX_WRITE + 4096))
            if answer is not None:
                os.write(device, answer)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:  # the asker was interrupted
                return


def main(folder: str, rules: str, *program: str) -> None:
    """Mount, leave a process that serves the mount, and become the program."""
    base = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    watched = os.pidfd_open(os.getpid())
    device = _mount(folder)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.umask(0)
            os.chdir("/")
            _serve(device, _Disk(base, Path(rules)), watched)
        os._exit(0)
    os.wait()
    os.execvp(program[0], program)  # noqa: S606 - the test's own program


if __name__ == "__main__":
    main(*sys.argv[1:])
