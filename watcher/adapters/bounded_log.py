"""What worker processes write to standard output and error: one log for all, and the end of each by itself.

Rules of this file:
- Both have a limit, whatever a worker writes.
- The log holds the bytes as they came. What is shown to people or written elsewhere went through `readable`:
  a worker's library cannot move a cursor, colour a terminal or turn the direction of a line.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from pathlib import Path

_LOG: Final = structlog.get_logger("watcher.processes")
_LOG_BYTES: Final = 1_000_000
_LOG_BACKUPS: Final = 2
_KEPT_BYTES: Final = 16 * 1024
_SHOWN_BYTES: Final = 8 * 1024
_TERMINAL_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class BoundedLog:
    """An append-only file that is renamed to `.1`, `.2` when it is full. One writer process, many threads."""

    def __init__(self, path: Path, max_bytes: int = _LOG_BYTES, backups: int = _LOG_BACKUPS) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Append; a disk that takes no more loses the text, never the service."""
        with self._lock:
            try:
                self._rotate_if_full(len(data))
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                _LOG.debug("worker_log.lost", reason=str(error))

    def _rotate_if_full(self, more_bytes: int) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size + more_bytes <= self._max_bytes:
            return
        for number in range(self._backups, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)


class OutputTail:
    """The end of what one process wrote. One thread appends, others look."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept = b""
        self._count_bytes = 0
        self._last_s = 0.0
        self._has_ended = False

    def append(self, data: bytes) -> None:
        """Take what was read."""
        with self._changed:
            self._kept = (self._kept + data)[-_KEPT_BYTES:]
            self._count_bytes += len(data)
            self._last_s = time.monotonic()
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more comes: nobody needs to wait."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def position(self) -> int:
        """How many bytes have come so far."""
        with self._changed:
            return self._count_bytes

    def await_words(self, words: bytes, since: int, *, silence_s: float, timeout_s: float) -> bool:
        """Wait until these words came after that position, and then nothing for a while; False: they did not.

        Args:
            words: what must be among the output.
            since: a `position`.
            silence_s: so long nothing more may come after them.
            timeout_s: the longest wait.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not self._has_ended and (now_s := time.monotonic()) < deadline_s:
                new = self._count_bytes - since
                have_come = new > 0 and words in self._kept[-new:]
                silent_for_s = now_s - self._last_s
                if have_come and silent_for_s >= silence_s:
                    return True
                pause_s = silence_s - silent_for_s if have_come else deadline_s - now_s
                self._changed.wait(min(pause_s, deadline_s - now_s))
        return False

    def text(self) -> str:
        """The last lines, for people."""
        with self._changed:
            kept = self._kept
        shown = readable(kept).encode("utf-8")
        if len(shown) <= _SHOWN_BYTES:
            return shown.decode("utf-8")
        tail = shown[-_SHOWN_BYTES:].decode("utf-8", "ignore")
        _, line_end, whole_lines = tail.partition("\n")
        return whole_lines if line_end else tail


def readable(data: bytes) -> str:
    r"""Text without what a terminal would act on; a byte that is no text is written as `\xff`."""
    text = _TERMINAL_SEQUENCE.sub("", data.decode("utf-8", "backslashreplace"))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
