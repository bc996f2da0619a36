"""The stop of the service: how long work may go on, and when nobody is waited for any more.

Rules of this file:
- A drain is asked for once; asking again changes nothing.
- First comes the time for finishing, then one kill, then the time for dying; after that the service leaves
  whatever has not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.core.settle import NS_PER_S

if TYPE_CHECKING:
    from watcher.core.policy import WorkerPolicy


class Drain:
    """The deadlines of a stop."""

    def __init__(self, policy: WorkerPolicy) -> None:
        self._policy = policy
        self._reason: str | None = None
        self._deadline_ns = 0
        self._killed = False
        self._given_up = False

    @property
    def reason(self) -> str | None:
        """Why the service stops, or None while it does not."""
        return self._reason

    @property
    def is_asked_for(self) -> bool:
        """The service stops: nothing new is begun."""
        return self._reason is not None

    @property
    def is_given_up(self) -> bool:
        """Even the time for dying is over."""
        return self._given_up

    def begin(self, reason: str, now_ns: int) -> None:
        """The service is to stop."""
        self._reason = reason
        self._deadline_ns = now_ns + round(self._policy.drain_s * NS_PER_S)

    def due_ns(self) -> int | None:
        """The instant of the next deadline."""
        if self._reason is None or self._given_up:
            return None
        kill_ns = round(self._policy.kill_s * NS_PER_S)
        return self._deadline_ns + (kill_ns if self._killed else 0)

    def fire_timers(self, now_ns: int) -> bool:
        """Let the deadlines pass; True if now is the time to kill what still runs."""
        due_ns = self.due_ns()
        if due_ns is None or now_ns < due_ns:
            return False
        if self._killed:
            self._given_up = True
            return False
        self._killed = True
        return True
