"""How soon the inbox is listed, armed or trusted again.

Rules of this file: plain state, no clock and no thread of its own; times are arguments. What fails or comes
again and again is done ever more rarely, and never not at all.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

_NS_PER_S: Final = 1_000_000_000

WISH_FIRST_S: Final = 0.2
WISH_MAX_S: Final = 5.0
"""Wishes of one kind that follow each other are spaced, each time by twice as much, between these."""

REARM_FIRST_S: Final = 0.2
REARM_MAX_S: Final = 30.0
RETURN_MAX_S: Final = 5.0
"""The same for a root that comes and goes."""
HEALTHY_S: Final = 60.0
"""So long armed, and the backoff of arming starts over."""

STRIKES: Final = 3
STRIKES_S: Final = 600.0
"""A watch that failed so often, each time within so long of the time before, is given up: polling."""
PROBATION_S: Final = 60.0
"""So long after a failure a watch is listened to closely."""

NATIVE_AGAIN_S: Final = 600.0
NATIVE_AGAIN_MAX_S: Final = 6 * 3600.0
"""How long the inbox is polled before notifications are tried again; each time twice as long."""
NATIVE_HEALTHY_S: Final = 3600.0
"""So long with notifications, and that time starts over."""


@dataclass(slots=True)
class Backoff:
    """Delays between attempts to arm. `armed_ns`: since when the watch is armed."""

    delay_s: float = REARM_FIRST_S
    not_before_ns: int = 0
    armed_ns: int = 0

    def lost(self, now_ns: int) -> None:
        """The root went away; one that flaps is not listed each time."""
        self.delay_s = min(self.delay_s, RETURN_MAX_S)
        self.died(now_ns)

    def failed(self, now_ns: int) -> None:
        """Arming did not succeed."""
        self.not_before_ns = now_ns + round(self.delay_s * _NS_PER_S)
        self.delay_s = min(self.delay_s * 2, REARM_MAX_S)

    def died(self, now_ns: int) -> None:
        """The watch ended by itself."""
        if now_ns - self.armed_ns >= HEALTHY_S * _NS_PER_S:
            self.delay_s = REARM_FIRST_S
        self.failed(now_ns)


@dataclass(slots=True)
class _Pace:
    """How soon a wish of one kind may follow the one before."""

    pause_ns: int = 0
    said_ns: int = 0

    def earliest_ns(self, now_ns: int) -> int:
        return self.said_ns + self.pause_ns if self._is_recent(now_ns) else now_ns

    def said(self, now_ns: int, least_pause_ns: int) -> None:
        pause_ns = self.pause_ns * 2 if self._is_recent(now_ns) else 0
        pause_ns = max(round(WISH_FIRST_S * _NS_PER_S), min(pause_ns, round(WISH_MAX_S * _NS_PER_S)))
        self.pause_ns, self.said_ns = max(pause_ns, least_pause_ns), now_ns

    def _is_recent(self, now_ns: int) -> bool:
        # twice the pause: a wish that came at the end of its pause was held back by it
        return now_ns < self.said_ns + 2 * self.pause_ns


@dataclass(slots=True)
class Wishes:
    """`RescanWanted` to come: what for, and when. One of a kind at a time; later ones join it.

    Kinds that come again and again (a queue that overflows, folders in swarms) are spaced more and more: each
    listing finds all that the wishes before it were about.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    due_ns: dict[str, int] = field(default_factory=dict)
    paces: dict[str, _Pace] = field(default_factory=dict)

    def add(self, reason: str, now_ns: int, delay_s: float = 0.0) -> bool:
        """Return True if nobody had this wish yet."""
        with self.lock:
            if reason in self.due_ns:
                return False
            pace = self.paces.setdefault(reason, _Pace())
            self.due_ns[reason] = max(now_ns + round(delay_s * _NS_PER_S), pace.earliest_ns(now_ns))
            return True

    def take_due(self, now_ns: int, least_pause_ns: int) -> list[str]:
        """Return what is due.

        Args:
            now_ns: the time.
            least_pause_ns: until the next of the same kind; longer where a listing is dear.
        """
        with self.lock:
            due = [reason for reason, due_ns in self.due_ns.items() if due_ns <= now_ns]
            for reason in due:
                del self.due_ns[reason]
                self.paces[reason].said(now_ns, least_pause_ns)
            return due

    def next_ns(self) -> int | None:
        """When the next one is due."""
        with self.lock:
            return min(self.due_ns.values(), default=None)


@dataclass(slots=True)
class Trust:
    """Whether notifications are to be relied on, and when they are tried again if not."""

    strikes: int = 0
    struck_ns: int = 0
    again_ns: int | None = None
    """When notifications are tried again; None while they are in use, or were never refused."""
    back_ns: int | None = None
    """Since when they are in use again."""
    delay_s: float = field(default_factory=lambda: NATIVE_AGAIN_S)

    def strike(self, now_ns: int) -> bool:
        """The watch failed; return whether that was once too often."""
        if now_ns - self.struck_ns >= STRIKES_S * _NS_PER_S:
            self.strikes = 0
        self.strikes += 1
        self.struck_ns = now_ns
        return self.strikes >= STRIKES

    def is_on_probation(self, now_ns: int) -> bool:
        """The watch failed a short while ago."""
        return self.strikes > 0 and now_ns - self.struck_ns < PROBATION_S * _NS_PER_S

    def wait(self, now_ns: int) -> None:
        """Poll for a while."""
        if self.back_ns is not None and now_ns - self.back_ns >= NATIVE_HEALTHY_S * _NS_PER_S:
            self.delay_s = NATIVE_AGAIN_S
        self.back_ns = None
        self.again_ns = now_ns + round(self.delay_s * _NS_PER_S)
        self.delay_s = min(self.delay_s * 2, NATIVE_AGAIN_MAX_S)

    def try_again(self, now_ns: int) -> None:
        """Notifications are in use again; failing once more is once too often."""
        self.again_ns, self.back_ns = None, now_ns
        if self.strikes >= STRIKES:
            self.strikes, self.struck_ns = STRIKES - 1, now_ns
