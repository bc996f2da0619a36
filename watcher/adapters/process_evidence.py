"""How a process ended: the facts, and one line of them for people.

Rules of this file:
- Only what was seen is told. "Out of memory" is a suspicion: the kernel's killer leaves nothing but a SIGKILL
  that nobody of us sent, so what is known of the memory stands beside it.
- A process that ended in its own way while we were about to kill it was not killed by us.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from watcher.core.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection

    from watcher.adapters.memory import ProcessLook
    from watcher.core.events import ExitCause

_MB: Final = 1_000_000
_NOTABLE_STATES: Final = {
    "T": "it was stopped by a signal",
    "t": "it was stopped by a debugger",
    "D": "it hung in the kernel, as with a disk that does not answer",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of an end when the process was reaped.

    Attributes:
        exit_code: as subprocess tells it: negative for a signal.
        killed_for: why we wanted to kill it, if we did.
        sent: the signals of ours that may have ended it.
        rss_bytes: the last memory that was seen, or 0.
        look: what the kernel told of it right before a kill of ours.
        oom_kills: the kernel's kills for want of memory from its start to its end.
        output: the end of what it wrote.
    """

    exit_code: int
    killed_for: str | None
    sent: Collection[int]
    rss_bytes: int
    look: ProcessLook | None
    oom_kills: int | None
    output: str

    def evidence(self) -> Evidence:
        """The facts for the record."""
        by_signal = self.exit_code < 0
        return Evidence(
            cause=self._cause(),
            exit_code=None if by_signal else self.exit_code,
            signal=_signal_name(-self.exit_code) if by_signal else None,
            rss_bytes=self.rss_bytes,
            oom_kills=self.oom_kills,
            process_state=self.look.state if self.look is not None else None,
            output=self.output,
        )

    def story(self) -> str:
        """One line for people: every fact that is known, no more."""
        facts = [self._headline()]
        if self.look is not None and self.look.state in _NOTABLE_STATES:
            facts.append(_NOTABLE_STATES[self.look.state])
        if self.rss_bytes:
            facts.append(f"it last used {self.rss_bytes // _MB} MB")
        if self.oom_kills or (self._cause() == "oom_suspected" and self.oom_kills is not None):
            facts.append(f"the kernel counted {_kills(self.oom_kills)} meanwhile")
        return "; ".join(facts)

    def _cause(self) -> ExitCause:
        if self.exit_code >= 0:
            return "exited"
        if -self.exit_code in self.sent:
            return "killed"
        return "oom_suspected" if self.exit_code == -signal.SIGKILL else "signal"

    def _headline(self) -> str:
        match self._cause():
            case "killed":
                return f"killed by the service: {self.killed_for}"
            case "exited":
                return f"exited with code {self.exit_code}{self._as_we_were_about_to()}"
            case cause:
                suspicion = ", out of memory suspected" if cause == "oom_suspected" else ""
                return f"killed by {_signal_name(-self.exit_code)}{suspicion}{self._as_we_were_about_to()}"

    def _as_we_were_about_to(self) -> str:
        return f", as the service was about to kill it: {self.killed_for}" if self.killed_for else ""


def _kills(count: int) -> str:
    match count:
        case 0:
            return "no out-of-memory kill"
        case 1:
            return "1 out-of-memory kill"
        case _:
            return f"{count} out-of-memory kills"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
