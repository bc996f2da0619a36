"""Entry of `python -m watcher.worker`: takes the time of its first line, then runs the loop."""

import time

_STARTED_NS = time.monotonic_ns()

import sys  # noqa: E402 - the instant above is the end of the process-start segment

from watcher.worker.loop import main  # noqa: E402 - likewise

if __name__ == "__main__":
    main(sys.argv[1:], _STARTED_NS)
