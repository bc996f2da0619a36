"""Zeros at the end of a picture's data: bytes that are still to come, or black.

Formats without an end marker cannot tell the two apart. Rule of this module: it is asked only about files
that changed so lately that somebody may still be writing them.
"""

from __future__ import annotations

from watcher.worker.imaging.refusals import IncompleteError

_DARK_TAIL_SHARE = 4
_DARK_TAIL_MIN_BYTES = 4096
"""In formats without an end marker and without compression zeros are missing bytes, or black. A black quarter
at the end of a picture is rare enough to wait for; less than a page is not what a writer reserves."""


def dark_tail_bytes(total_bytes: int) -> int:
    """How many zeros at the end of so many bytes of pixels are suspicious; 0 for none."""
    tail = total_bytes // _DARK_TAIL_SHARE
    return tail if tail >= _DARK_TAIL_MIN_BYTES else 0


def refuse_zero_tail(name: str, data: bytes, parts: list[tuple[int, int]], tail_bytes: int) -> None:
    """Raise if the last bytes of these parts (offset, size), in the order of the file, are zeros."""
    left = tail_bytes
    for offset, size in sorted(parts, reverse=True):
        taken = min(size, left)
        if data[offset + size - taken : offset + size].strip(b"\x00"):
            return
        left -= taken
    if tail_bytes and left == 0:
        raise IncompleteError(f"the {name}'s picture data ends in zeros, and was written just now")
