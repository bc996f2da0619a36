"""Arrivals -> settled files: when is a file complete?

Rules of this file:
- Notifications are hints. A decision is made on what was seen of the file itself: its fingerprint, whether a
  writer has it open, how many links it has.
- A closed or moved-in file that no writer has open is complete at once; a file that closes repeatedly, or
  whose writers cannot be seen, is complete when its fingerprint has stayed the same for the quiet period.
- Nothing is ever given up: a path that is not complete is looked at again, however long it takes.
- 0 bytes are "not arrived yet".
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from watcher.core.events import Hint, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watcher.core.events import FileObserved, Instant
    from watcher.core.job import Fingerprint
    from watcher.core.policy import ArrivalPolicy

NS_PER_S: Final = 1_000_000_000
_REPEATED_CLOSES: Final = 2
_GAP_FACTOR: Final = 3
"""A writer that closes and opens again is taken to be done after three of its longest pauses."""
_MAX_CHECK_FACTOR: Final = 10
"""Looks at a file that stays open back off to this many quiet periods."""
_MEMORY_FACTOR: Final = 10
"""A settled path is remembered as one that closes repeatedly for so many quiet periods, and is waited for so
long at most. A picture that is saved again much later is a second picture, no slow writer."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A file is complete."""

    path: str
    fingerprint: Fingerprint
    observed_ns: int
    """When this final fingerprint was first seen: the start of the time chain."""
    settled_ns: int
    backlog_ns: int = 0
    """How much of the time between the two nobody looked at it, since enough else was at hand."""


@dataclass(slots=True)
class _Pending:
    fingerprint: Fingerprint
    observed_ns: int
    changed_ns: int
    backlog_ns: int = 0
    closes: int = 0
    longest_gap_ns: int = 0
    open_checks: int = 0
    check_at_ns: int | None = None
    empty_since_ns: int | None = None
    empty_told: bool = False
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class _Past:
    closes: int
    changed_ns: int
    longest_gap_ns: int


class SettleTracker:
    """Follows every file that is not complete yet."""

    def __init__(self, policy: ArrivalPolicy) -> None:
        self._policy = policy
        self.watch_network(network=False)
        self._pending: dict[str, _Pending] = {}
        self._past: dict[str, _Past] = {}
        self._checks: list[tuple[int, str]] = []

    def watch_network(self, *, network: bool) -> None:
        """Say whether the inbox is on a network file system: writers there pause longer, and are not seen."""
        factor = self._policy.network_quiet_factor if network else 1.0
        self._quiet_ns = round(self._policy.quiet_s * factor * NS_PER_S)
        self._memory_ns = _MEMORY_FACTOR * self._quiet_ns

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, path: str) -> bool:
        return path in self._pending

    @property
    def growing(self) -> int:
        """How many files are on their way; an empty or unreadable one is not, until it changes."""
        return sum(1 for p in self._pending.values() if p.empty_since_ns is None and not p.hopeless)

    def __iter__(self) -> Iterator[str]:
        """The paths that are followed."""
        return iter(self._pending)

    def fingerprint(self, path: str) -> Fingerprint | None:
        """The last seen fingerprint of a followed path."""
        pending = self._pending.get(path)
        return pending.fingerprint if pending else None

    def is_empty(self, path: str) -> bool:
        """A followed path has 0 bytes."""
        return self._pending[path].empty_since_ns is not None

    def is_planned(self, path: str) -> bool:
        """A followed path will be looked at again without anybody's asking, or needs bytes first."""
        pending = self._pending[path]
        return pending.check_at_ns is not None or pending.empty_since_ns is not None

    def observed_ns(self, path: str) -> int:
        """When the last seen fingerprint of a followed path was first seen."""
        return self._pending[path].observed_ns

    def observe(self, seen: FileObserved, now: Instant) -> Settled | None:
        """Take one look at a file into account; return it if it is complete."""
        pending = self._note(seen)
        if seen.fingerprint.size_bytes == 0:
            pending.check_at_ns = None
            if pending.empty_since_ns is None:
                pending.empty_since_ns = seen.observed_ns
            return None
        pending.empty_since_ns = None
        if self._is_complete(pending, seen, now):
            self._remember(seen.path, pending)
            del self._pending[seen.path]
            return Settled(seen.path, seen.fingerprint, pending.observed_ns, now.mono_ns, pending.backlog_ns)
        self._schedule(seen.path, pending, seen.writer, now)
        return None

    def look_again(
        self,
        path: str,
        fingerprint: Fingerprint,
        now: Instant,
        *,
        quiet_periods: int = 1,
        hopeless: bool = False,
    ) -> None:
        """Follow a path whose reading failed: it is looked at again after some quiet periods."""
        pending = _Pending(fingerprint, now.mono_ns, now.mono_ns, hopeless=hopeless)
        self._pending[path] = pending
        self._check_at(path, pending, now.mono_ns + quiet_periods * self._quiet_ns)

    def forget(self, path: str) -> None:
        """The path is gone."""
        self._pending.pop(path, None)
        self._past.pop(path, None)

    def take_due(self, now: Instant) -> list[str]:
        """Return the paths that are to be looked at now; each is returned once."""
        due: list[str] = []
        while self._checks and self._checks[0][0] <= now.mono_ns:
            check_at_ns, path = heapq.heappop(self._checks)
            pending = self._pending.get(path)
            if pending is not None and pending.check_at_ns == check_at_ns:
                pending.check_at_ns = None
                due.append(path)
        return due

    def take_stale_empties(self, now: Instant) -> list[str]:
        """Return the paths that have had 0 bytes for too long and were not told of yet."""
        stale = []
        for path, pending in self._pending.items():
            if pending.empty_since_ns is None or pending.empty_told:
                continue
            if now.mono_ns - pending.empty_since_ns >= self._policy.empty_warn_s * NS_PER_S:
                pending.empty_told = True
                stale.append(path)
        return stale

    def next_due_ns(self) -> int | None:
        """The instant of the next look, if any is planned."""
        return self._checks[0][0] if self._checks else None

    def _note(self, seen: FileObserved) -> _Pending:
        pending = self._pending.get(seen.path)
        if pending is None:
            past = self._past.get(seen.path)
            if past is not None and seen.observed_ns - past.changed_ns > self._memory_ns:
                past = None
            first_seen_ns = seen.observed_ns if seen.first_seen_ns is None else seen.first_seen_ns
            backlog_ns = seen.observed_ns - first_seen_ns
            pending = _Pending(seen.fingerprint, first_seen_ns, first_seen_ns, backlog_ns)
            if past is not None:
                pending.closes = past.closes
                pending.longest_gap_ns = max(past.longest_gap_ns, seen.observed_ns - past.changed_ns)
            self._pending[seen.path] = pending
        elif pending.fingerprint != seen.fingerprint:
            if pending.empty_since_ns is None:
                gap_ns = seen.observed_ns - pending.changed_ns
                pending.longest_gap_ns = max(pending.longest_gap_ns, gap_ns)
            pending.fingerprint = seen.fingerprint
            pending.observed_ns = pending.changed_ns = seen.observed_ns
            pending.backlog_ns = 0
            pending.open_checks = 0
            pending.hopeless = False
        if seen.hint is Hint.CLOSED and seen.fingerprint.size_bytes:
            pending.closes += 1
        return pending

    def _is_complete(self, pending: _Pending, seen: FileObserved, now: Instant) -> bool:
        if seen.writer is Writer.PRESENT:
            return False
        repeated = pending.closes >= _REPEATED_CLOSES
        if seen.writer is Writer.NONE and not repeated:
            if seen.hint in {Hint.CLOSED, Hint.MOVED_IN}:
                return True
            if seen.hint is Hint.CREATED and seen.links > 1:
                return True  # a hard link is never closed by anyone
            age_s = now.wall_s - seen.fingerprint.ctime_ns / NS_PER_S
            if age_s * NS_PER_S >= self._quiet_ns:
                return True  # unchanged for longer than we would wait; a clock in the future fails this
        return now.mono_ns - pending.changed_ns >= self._quiet_period_ns(pending)

    def _quiet_period_ns(self, pending: _Pending) -> int:
        if pending.closes >= _REPEATED_CLOSES:
            return min(max(self._quiet_ns, _GAP_FACTOR * pending.longest_gap_ns), self._memory_ns)
        return self._quiet_ns

    def _schedule(self, path: str, pending: _Pending, writer: Writer, now: Instant) -> None:
        if writer is Writer.PRESENT:
            pending.open_checks += 1
            wait_ns = self._quiet_ns * min(pending.open_checks, _MAX_CHECK_FACTOR)
            self._check_at(path, pending, now.mono_ns + wait_ns)
            return
        self._check_at(path, pending, pending.changed_ns + self._quiet_period_ns(pending))

    def _check_at(self, path: str, pending: _Pending, at_ns: int) -> None:
        if pending.check_at_ns is not None and pending.check_at_ns <= at_ns:
            return  # a look is planned already; it will plan the next
        pending.check_at_ns = at_ns
        heapq.heappush(self._checks, (at_ns, path))

    def _remember(self, path: str, pending: _Pending) -> None:
        if pending.closes == 0:
            return
        self._past.pop(path, None)  # to the end: the oldest stand first
        self._past[path] = _Past(pending.closes, pending.changed_ns, pending.longest_gap_ns)
        while self._past:
            oldest = next(iter(self._past))
            if pending.changed_ns - self._past[oldest].changed_ns <= self._memory_ns:
                break
            del self._past[oldest]
