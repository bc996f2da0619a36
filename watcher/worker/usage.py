"""What this process uses of the machine, as the system counts it."""

from __future__ import annotations

import psutil


def rss_bytes() -> int:
    """Return this process's resident memory."""
    return int(psutil.Process().memory_info().rss)


def open_files() -> int | None:
    """Return how many descriptors this process holds, pipes and sockets too; None where nobody counts."""
    try:
        return int(psutil.Process().num_fds())
    except (AttributeError, psutil.Error):
        return None
