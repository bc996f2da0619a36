"""How a worker ends with its parent, and never outlives it.

Rules of this module:
- On Linux the kernel kills the worker when its parent dies (PR_SET_PDEATHSIG): that works even while a
  library holds the interpreter lock. Note that the signal follows the *thread* that started the worker.
- Where that does not exist, and for the moment before it was set, the parent's process id is compared with
  the one that the parent itself has sent; comparing with 1 would be wrong in a container.
- An orphan leaves by `os._exit`: no destructors while other threads run, no core dump, no partial output.
- Where the machine's memory runs out, the kernel is to take the worker: it can be started again, and the
  service writes down what became of the picture.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from watcher.wire import EXIT_PARENT_GONE

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.2
_OOM_SCORE_ADJ = 500
"""Of -1000 (never) to 1000 (first): before everything that does not ask for it, whatever its size."""


def prepare_process() -> None:
    """Tie the process to its parent, and set what it does on signals.

    SIGINT and SIGTERM are ignored: they reach whole process groups, and it is the service that drains its
    workers, through the pipe. SIGUSR1 writes the stacks of all threads to stderr, so that a stalled worker
    leaves evidence before it is killed.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        refusal = offer_to_oom_killer()
        if refusal is not None:
            sys.stderr.write(f"{refusal}\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable(file=sys.stderr, all_threads=True)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=False)


def offer_to_oom_killer(file: Path = Path("/proc/self/oom_score_adj")) -> str | None:
    """Make the kernel take this process before the service when memory runs out; never the other way round.

    Returns:
        Why that could not be done, or None.
    """
    try:
        if int(file.read_text("ascii")) < _OOM_SCORE_ADJ:
            file.write_text(str(_OOM_SCORE_ADJ), "ascii")
    except (OSError, ValueError) as error:
        return f"when memory runs out, the kernel may take the service before this worker: {error}"
    return None


def leave_if_orphaned(parent_pid: int) -> None:
    """End the process if its parent is not the one that configured it."""
    if os.getppid() != parent_pid:
        leave(EXIT_PARENT_GONE)


def watch_parent(parent_pid: int) -> None:
    """Look after the parent from a thread of its own, once the command pipe cannot tell of its death."""

    def watch() -> None:
        while True:
            leave_if_orphaned(parent_pid)
            time.sleep(_POLL_S)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def leave(exit_code: int, why: str = "") -> NoReturn:
    """End at once; standard error gets the reason, if there is one, and is flushed. Nothing else happens."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, as when the parent died
        sys.stderr.write(f"{why}\n" if why else "")
        sys.stderr.flush()
    os._exit(exit_code)
