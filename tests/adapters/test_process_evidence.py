"""What is told of an end: facts for the record, one line for people."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from watcher.adapters.memory import ProcessLook
from watcher.adapters.process_evidence import Ending

KILL = -signal.SIGKILL


def ending(exit_code: int, **known: Any) -> Ending:
    nothing: dict[str, Any] = {
        "killed_for": None,
        "sent": frozenset(),
        "rss_bytes": 0,
        "look": None,
        "oom_kills": None,
        "output": "",
    }
    return Ending(exit_code, **{**nothing, **known})


OURS: dict[str, Any] = {"killed_for": "no progress", "sent": {signal.SIGUSR1, signal.SIGKILL}}


@pytest.mark.parametrize(
    ("end", "cause", "story"),
    [
        (ending(0), "exited", "exited with code 0"),
        (ending(75, rss_bytes=812_400_000), "exited", "exited with code 75; it last used 812 MB"),
        (ending(-6), "signal", "killed by SIGABRT"),
        (ending(-35), "signal", "killed by signal 35"),
        (ending(KILL), "oom_suspected", "killed by SIGKILL, out of memory suspected"),
        (
            ending(KILL, rss_bytes=812_400_000, oom_kills=1),
            "oom_suspected",
            (
                "killed by SIGKILL, out of memory suspected; it last used 812 MB; "
                "the kernel counted 1 out-of-memory kill meanwhile"
            ),
        ),
        (
            ending(KILL, oom_kills=0),
            "oom_suspected",
            "killed by SIGKILL, out of memory suspected; the kernel counted no out-of-memory kill meanwhile",
        ),
        (ending(1, oom_kills=0), "exited", "exited with code 1"),
        (
            ending(1, oom_kills=2),
            "exited",
            "exited with code 1; the kernel counted 2 out-of-memory kills meanwhile",
        ),
        (ending(KILL, **OURS), "killed", "killed by the service: no progress"),
        (ending(KILL, **OURS, oom_kills=0), "killed", "killed by the service: no progress"),
        (ending(-signal.SIGUSR1, **OURS), "killed", "killed by the service: no progress"),
        (
            ending(KILL, **OURS, look=ProcessLook("T", 5), rss_bytes=2_000_000),
            "killed",
            "killed by the service: no progress; it was stopped by a signal; it last used 2 MB",
        ),
        (ending(KILL, **OURS, look=ProcessLook("S", 5)), "killed", "killed by the service: no progress"),
        (
            ending(KILL, killed_for="no progress"),
            "oom_suspected",
            "killed by SIGKILL, out of memory suspected, as the service was about to kill it: no progress",
        ),
        (ending(5, **OURS), "exited", "exited with code 5, as the service was about to kill it: no progress"),
    ],
)
def test_every_fact_that_is_known_and_no_more(end: Ending, cause: str, story: str) -> None:
    assert end.evidence().cause == cause
    assert end.story() == story


def test_the_record_has_all_of_it() -> None:
    end = ending(KILL, **OURS, rss_bytes=7, look=ProcessLook("D", 7), oom_kills=3, output="a stack")

    evidence = end.evidence()

    assert (evidence.exit_code, evidence.signal, evidence.rss_bytes) == (None, "SIGKILL", 7)
    assert (evidence.process_state, evidence.oom_kills, evidence.output) == ("D", 3, "a stack")
    assert ending(3).evidence().exit_code == 3
    assert ending(3).evidence().signal is None
