"""How much memory a decoder may take: what a picture of its size can need, and no more.

A few hundred bytes can make a decoder ask for gigabytes: a tile, a dictionary, a window that is far larger
than the picture. Pixels and bytes are limited before; this bounds what nobody foresaw, so that such a file is
refused and the process lives. Rules of this module:
- The limit is the kernel's (`RLIMIT_DATA`: private memory that can be written), and so holds for every
  library. It counts from what the process has, and ends with the block. It is the process's: other threads
  have it too, so the room must hold their stacks.
- The limit that somebody else has set is never raised, and a hard limit is never touched.
- What the machine refuses is `MemoryError`, and nobody's fault. The file's fault is only what the machine
  would have given.
- Where the kernel does not count so (macOS, Linux before 4.7, no `/proc`), nothing is limited.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOM_BYTES = 256 << 20
"""Beyond what a picture needs: what libraries take once (tables, buffers)."""
THREADS = 2 * (os.cpu_count() or 1)
"""So many a decoder may start (AV1, HEVC); their stacks count, whether they are used or not."""
_USUAL_STACK_BYTES: Final = 8 << 20
_FILE_COPIES: Final = 8
"""How often a file's bytes may lie in memory besides; metadata takes the most (measured: up to 6 times)."""
_PIXEL_BYTES: Final = 16
_PIXEL_COPIES: Final = 6
"""Of each pixel whatever its mode, and how often its own bytes may lie in memory. Measured as the least limit
under which Pillow 13 decodes, in bytes a pixel: WebP 16, progressive CMYK JPEG 12 (4 bytes), progressive RGB
JPEG 10, RGB PNG and TIFF 4, grey 1. Deep colour goes through OpenCV and is copied a few times (8 bytes)."""
_STATUS: Final = Path("/proc/self/status")
_DATA_KB: Final = re.compile(rb"^VmData:\s+(\d+) kB$", re.MULTILINE)
_SHORT: Final = re.compile(r"\b(?:out of|insufficient|not enough) memory\b|\berror -9\b", re.IGNORECASE)
"""How decoders say it that raise something else: Pillow's codecs (-9), libjpeg, libheif."""


def room_to_open(file_bytes: int) -> int:
    """Return how many bytes of memory reading a header and metadata may take."""
    return ROOM_BYTES + THREADS * _stack_bytes() + _FILE_COPIES * file_bytes


def _stack_bytes() -> int:
    """Return how much a thread takes at its start (pthread_create(3): what the limit for stacks is)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _USUAL_STACK_BYTES if soft == resource.RLIM_INFINITY else soft


def room_to_decode(pixels: int, pixel_bytes: int, file_bytes: int) -> int:
    """Return how many bytes of memory decoding may take.

    Args:
        pixels: of the picture.
        pixel_bytes: of all of them, in the picture's own mode.
        file_bytes: of the file.
    """
    return room_to_open(file_bytes) + _PIXEL_BYTES * pixels + _PIXEL_COPIES * pixel_bytes


@contextmanager
def memory_limit(room_bytes: int) -> Iterator[None]:
    """Let this process take no more than so much more memory while the block runs.

    Args:
        room_bytes: beyond what it has now.

    Raises:
        RefusedError: the block wanted more (`too_large`).
        MemoryError: the machine has no more.
    """
    restore = _lower(room_bytes)
    if restore is None:
        yield
        return
    try:
        yield
    except Exception as error:
        restore()
        if not _is_shortage(error):
            raise
        if not _machine_has(room_bytes):
            raise MemoryError(str(error)) from error
        raise RefusedError(
            "too_large",
            f"reading it takes more than {room_bytes >> 20} MiB of memory: no picture of its size does",
            "open it in a picture editor, save it anew and drop that",
        ) from error
    finally:
        restore()


def _lower(room_bytes: int) -> Callable[[], None] | None:
    """Lower the soft limit and return what sets it back; None where that cannot be done."""
    used_bytes = _used_bytes()
    if used_bytes is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    others = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (min([used_bytes + room_bytes, *others]), hard))
    except OSError:  # a sandbox that forbids it
        return None
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _used_bytes() -> int | None:
    """What the kernel holds against the limit; None where it does not count."""
    if sys.platform != "linux":
        return None
    try:
        found = _DATA_KB.search(_STATUS.read_bytes())
    except OSError:
        return None
    return int(found[1]) << 10 if found is not None else None


def _is_shortage(error: BaseException | None) -> bool:
    """Whether memory was short, as an error says or the one that it was made from."""
    while error is not None:
        if isinstance(error, MemoryError) or _SHORT.search(str(error)):
            return True
        error = error.__cause__
    return False


def _machine_has(room_bytes: int) -> bool:
    """Whether the system would give so much more, by any limit but ours. Nothing of it is touched."""
    try:
        mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True
