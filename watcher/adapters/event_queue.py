"""The queue between the edges and the loop: what is under way goes before what arrives.

Rules of this file:
- Two lanes. Reports of workers and of the outbox, and a wish to stop, are taken first: a flood of arrivals
  does not hold up a picture that is being served. Within a lane the order is kept.
- The lane of arrivals is bounded: who fills it waits. That is the inbox's threads, which then notice no less,
  but later, and the loop, which never waits for room.
- `put` may be called from a signal: it takes no lock that the loop could hold.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from watcher.core.events import Event

MAX_ARRIVALS: Final = 1024
_LOOK_UP_S: Final = 0.2
"""How often one that waits for room looks whether the queue was closed."""


class EventQueue:
    """Any thread puts, one thread gets."""

    def __init__(self, max_arrivals: int = MAX_ARRIVALS) -> None:
        """Be empty.

        Args:
            max_arrivals: so many arrivals may wait.
        """
        self._urgent: SimpleQueue[Event | None] = SimpleQueue()
        """None says that there are arrivals."""
        self._arrivals: deque[Event] = deque()
        self._room = threading.Semaphore(max_arrivals)
        self._announced = False
        self._closed = False

    def put(self, event: Event) -> None:
        """Have an event taken before all arrivals. Never blocks."""
        self._urgent.put(event)

    def put_arrival(self, event: Event) -> None:
        """Have an event of the inbox taken; blocks while too many wait. After `close` it is dropped."""
        while not self._room.acquire(timeout=_LOOK_UP_S):
            if self._closed:
                return
        if self._closed:
            return
        self._arrivals.append(event)
        if not self._announced:
            self._announced = True
            self._urgent.put(None)

    def get(self, timeout_s: float = 0.0) -> Event:
        """Take the next event.

        Args:
            timeout_s: so long it is waited for one.

        Raises:
            queue.Empty: none came.
        """
        event = self._next_urgent()
        if event is None and not self._arrivals and timeout_s > 0:
            event = self._urgent.get(timeout=timeout_s)
            if event is None:
                self._announced = False
                event = self._next_urgent()
        if event is not None:
            return event
        if not self._arrivals:
            raise Empty
        arrival = self._arrivals.popleft()
        self._room.release()
        return arrival

    def empty(self) -> bool:
        """Nothing waits."""
        return not self._arrivals and self._urgent.empty()

    def close(self) -> None:
        """Let go of whoever waits for room. What waits can still be taken."""
        self._closed = True

    def _next_urgent(self) -> Event | None:
        """The next urgent event, if one waits."""
        while True:
            try:
                event = self._urgent.get_nowait()
            except Empty:
                return None
            if event is not None:
                return event
            # Before the arrivals are looked at: one that comes now announces itself again.
            self._announced = False
