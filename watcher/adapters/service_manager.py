"""Tells the program that started the service how it is: systemd's notification protocol, without a library.

Rules of this file:
- It is called by the loop alone, so a sign of life says that the loop decides, and nothing else. How long a
  worker takes is of no matter.
- A call never blocks and never raises. What could not be delivered is kept, one word of each kind, and goes
  with the next try.
- Whoever reads at the other end is not flooded: a datagram a second at most, but for what changes the state
  of the unit, and for signs of life that are wanted more often.
- The variables of the environment are taken out of it: a worker must not speak in the service's name.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final, cast

from watcher.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

    from watcher.core.job import JsonObject
    from watcher.ports import ServiceManager

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_NS_PER_S: Final = 1_000_000_000
_PAUSE_NS: Final = _NS_PER_S
_EXTENDING_NS: Final = 10 * _NS_PER_S
_EXTENSION: Final = "EXTEND_TIMEOUT_USEC=60000000"
"""While it starts or stops, it is given a minute more than now, and asks again each ten seconds."""
_OPEN_STATES: Final = ("arriving", "waiting", "ready", "running", "publishing")
_LONGEST_STATUS: Final = 300


def from_environment(environment: MutableMapping[str, str]) -> ServiceManager:
    """Who started this process, by the variables that it set; they are removed."""
    address, watchdog_us, watchdog_pid = (environment.pop(name, "") for name in VARIABLES)
    if not address.startswith(("/", "@")):  # none, or a kind of socket that is for virtual machines
        return NoServiceManager()
    is_meant = watchdog_pid in {"", str(os.getpid())}
    watchdog_ns = int(watchdog_us) * 1000 if watchdog_us.isdecimal() and is_meant else 0
    return Systemd(address, watchdog_ns=watchdog_ns)


class NoServiceManager:
    """Implements `watcher.ports.ServiceManager` where nobody listens."""

    def ready(self) -> None:
        """See the port."""

    def stopping(self) -> None:
        """See the port."""

    def show(self, snapshot: JsonObject) -> None:
        """See the port."""

    def live(self, now_ns: int) -> None:
        """See the port."""

    def next_due_ns(self) -> int | None:
        """See the port."""
        return None


class Systemd:
    """Implements `watcher.ports.ServiceManager`.

    While the unit starts or stops, a sign of life also asks for more time: a long listing or a long last
    batch is not cut off, and a loop that hangs still is.
    """

    def __init__(self, address: str, *, watchdog_ns: int = 0) -> None:
        """Say nothing yet.

        Args:
            address: path of its socket; `@` begins an abstract one.
            watchdog_ns: a service that is silent for so long is ended; 0: none is.
        """
        self._address = os.fsencode(f"\0{address[1:]}" if address.startswith("@") else address)
        self._watchdog_ns = watchdog_ns
        self._is_ready = False
        self._is_stopping = False
        self._status = ""
        self._owed: dict[str, str] = {}
        """What it was not told yet, in order."""
        self._sign_due_ns: int | None = 0
        self._not_before_ns = 0
        self._is_unreachable = False

    def ready(self) -> None:
        """See the port."""
        if not self._is_ready and not self._is_stopping:
            self._is_ready = True
            self._owe_at_once("READY")

    def stopping(self) -> None:
        """See the port."""
        if not self._is_stopping:
            self._is_stopping = True
            self._owe_at_once("STOPPING")

    def show(self, snapshot: JsonObject) -> None:
        """See the port."""
        status = _in_words(cast("Mapping[str, Any]", snapshot))
        if status != self._status:
            self._status = self._owed["STATUS"] = status

    def live(self, now_ns: int) -> None:
        """See the port."""
        is_sign_due = self._sign_due_ns is not None and now_ns >= self._sign_due_ns
        if now_ns < self._not_before_ns or not (self._owed or is_sign_due):
            return
        period_ns = self._sign_period_ns()
        if self._is_told("\n".join(self._lines())):
            self._owed.clear()
            self._sign_due_ns = now_ns + period_ns if period_ns is not None else None
        self._not_before_ns = now_ns + min(_PAUSE_NS, _PAUSE_NS if period_ns is None else period_ns // 4)

    def next_due_ns(self) -> int | None:
        """See the port."""
        return None if self._sign_due_ns is None else max(self._sign_due_ns, self._not_before_ns)

    def _owe_at_once(self, name: str) -> None:
        self._owed[name] = "1"
        self._not_before_ns = 0

    def _sign_period_ns(self) -> int | None:
        periods_ns = [self._watchdog_ns // 2] if self._watchdog_ns else []
        if not self._is_at_work:
            periods_ns.append(_EXTENDING_NS)
        return min(periods_ns, default=None)

    @property
    def _is_at_work(self) -> bool:
        return self._is_ready and not self._is_stopping

    def _lines(self) -> Iterator[str]:
        for name, value in self._owed.items():
            yield f"{name}={value}"
        if self._watchdog_ns:
            yield "WATCHDOG=1"
        if not self._is_at_work:
            yield _EXTENSION

    def _is_told(self, message: str) -> bool:
        """Send it; return whether it was taken."""
        try:
            # A socket each time: there is none to keep in order, and the other end may have been made anew.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._is_unreachable:
                log.write("warning", "manager.unreachable", {"reason": str(error)})
            self._is_unreachable = True
            return False
        self._is_unreachable = False
        return True


def _in_words(snapshot: Mapping[str, Any]) -> str:
    """A line for people: `watching; worker ready; 3 waiting`."""
    return log.printable("; ".join(_parts(snapshot)))[:_LONGEST_STATUS]


def _parts(snapshot: Mapping[str, Any]) -> Iterator[str]:
    counts = snapshot["jobs"]
    if snapshot["draining"] is not None:
        yield f"stopping ({snapshot['draining']})"
    elif snapshot["inbox"] == "lost":
        yield f"the inbox is away ({snapshot['inbox_reason']})"
    else:
        yield "watching" if snapshot["inbox"] == "watched" else "listing the inbox"
    yield f"worker {snapshot['worker']['state'].replace('_', '-')}"
    if waiting := sum(counts.get(state, 0) for state in _OPEN_STATES):
        yield f"{waiting} waiting"
    if held := counts.get("held", 0):
        yield f"{held} held"
    if snapshot["blocked"] is not None:
        yield f"the outbox takes no results ({snapshot['blocked']})"
