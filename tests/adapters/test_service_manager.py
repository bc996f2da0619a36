"""What is told to systemd, and when: against a socket of the test, on a clock of the test."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from structlog.testing import capture_logs

from watcher.adapters.service_manager import NoServiceManager, Systemd, from_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S: Final = 1_000_000_000
MORE_TIME: Final = "EXTEND_TIMEOUT_USEC=60000000"
SNAPSHOT: Final[dict[str, Any]] = {
    "inbox": "watched",
    "inbox_reason": None,
    "draining": None,
    "worker": {"state": "ready"},
    "blocked": None,
    "jobs": {"arriving": 1, "ready": 2, "held": 0},
}


class Receiver:
    """The other end of the socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(0)

    def heard(self) -> list[list[str]]:
        """The lines of each datagram that has come since the last look."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(str(tmp_path / "notify"))
    yield receiver
    receiver.socket.close()


@pytest.fixture
def address(receiver: Receiver) -> str:
    return str(receiver.socket.getsockname())


def at_work(address: str, receiver: Receiver, *, watchdog_ns: int = 0) -> Systemd:
    """One that has said at 100 s that it is ready."""
    manager = Systemd(address, watchdog_ns=watchdog_ns)
    manager.ready()
    manager.live(100 * S)
    assert receiver.heard()[0][0] == "READY=1"
    return manager


# --- who started us ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_socket_of_its_kind_nothing_is_told(address: str) -> None:
    manager = from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})

    assert isinstance(manager, NoServiceManager)
    manager.ready()
    manager.live(0)
    assert manager.next_due_ns() is None


def test_the_variables_are_taken_out_of_the_environment(address: str) -> None:
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1", "HOME": "/home"}

    from_environment(environment)

    assert environment == {"HOME": "/home"}


@pytest.mark.parametrize(
    ("microseconds", "pid", "beats"),
    [
        ("4000000", None, True),
        ("4000000", str(os.getpid()), True),
        ("4000000", "1", False),
        ("0", None, False),
        ("many", None, False),
        (None, None, False),
    ],
    ids=["ours", "ours by number", "another's", "never", "no number", "not asked for"],
)
def test_signs_of_life_are_given_to_one_who_wants_them_of_us(
    address: str, receiver: Receiver, microseconds: str | None, pid: str | None, *, beats: bool
) -> None:
    given = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    manager = from_environment({name: value for name, value in given.items() if value is not None})
    manager.ready()

    manager.live(0)

    assert receiver.heard() == [["READY=1", "WATCHDOG=1"] if beats else ["READY=1"]]
    assert manager.next_due_ns() == (2 * S if beats else None)


def test_an_abstract_socket_is_spoken_to() -> None:
    receiver = Receiver(f"\0watcher-test-{os.getpid()}")
    try:
        manager = from_environment({"NOTIFY_SOCKET": f"@watcher-test-{os.getpid()}"})
        manager.ready()
        manager.live(0)
        assert receiver.heard() == [["READY=1"]]
    finally:
        receiver.socket.close()


# --- what is told ------------------------------------------------------------------------------------------


def test_while_it_starts_more_time_is_asked_for(address: str, receiver: Receiver) -> None:
    manager = Systemd(address)

    for second in range(31):
        manager.live(second * S)

    assert receiver.heard() == [[MORE_TIME]] * 4


def test_it_is_ready_once_and_then_asks_for_nothing(address: str, receiver: Receiver) -> None:
    manager = at_work(address, receiver)

    for second in range(101, 200):
        manager.ready()
        manager.live(second * S)

    assert receiver.heard() == []
    assert manager.next_due_ns() is None


def test_its_end_is_told_at_once_and_once_and_is_given_time(address: str, receiver: Receiver) -> None:
    manager = at_work(address, receiver)

    for tenth in range(1, 100):
        manager.stopping()
        manager.ready()
        manager.live(100 * S + tenth * S // 10)
    manager.live(110 * S + S // 10)

    assert receiver.heard() == [["STOPPING=1", MORE_TIME], [MORE_TIME]]


@pytest.mark.kind("W56")
@pytest.mark.parametrize("watchdog_ns", [S // 100, S // 5, S, 120 * S])
def test_a_sign_of_life_comes_at_half_of_the_time_that_is_allowed(
    address: str, receiver: Receiver, watchdog_ns: int
) -> None:
    manager = at_work(address, receiver, watchdog_ns=watchdog_ns)
    now_ns, turns = 100 * S, 50

    for _ in range(turns):
        due_ns = manager.next_due_ns()
        assert due_ns is not None
        assert due_ns - now_ns <= watchdog_ns // 2
        manager.live(due_ns - 1)
        now_ns = due_ns
        manager.live(now_ns)
        assert receiver.heard() == [["WATCHDOG=1"]]

    assert now_ns - 100 * S == turns * watchdog_ns // 2


def test_a_line_for_people_goes_when_it_changes_and_not_more_than_once_a_second(
    address: str, receiver: Receiver
) -> None:
    manager = at_work(address, receiver)

    for tenth in range(25):
        manager.show({**SNAPSHOT, "jobs": {"ready": tenth // 2}})
        manager.live(100 * S + tenth * S // 10)

    said = [line for lines in receiver.heard() for line in lines]
    assert said == ["STATUS=watching; worker ready; 5 waiting", "STATUS=watching; worker ready; 10 waiting"]
    manager.live(103 * S)
    assert receiver.heard() == [["STATUS=watching; worker ready; 12 waiting"]]
    manager.show({**SNAPSHOT, "jobs": {"ready": 12}})
    manager.live(110 * S)
    assert receiver.heard() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "watching; worker ready; 3 waiting"),
        (
            {"inbox": "listing", "worker": {"state": "half_open"}},
            "listing the inbox; worker half-open; 3 waiting",
        ),
        (
            {"inbox": "lost", "inbox_reason": "not\nmounted", "jobs": {"held": 2}},
            r"the inbox is away (not\nmounted); worker ready; 2 held",
        ),
        ({"draining": "SIGTERM", "jobs": {}}, "stopping (SIGTERM); worker ready"),
        (
            {"blocked": "full", "jobs": {}},
            "watching; worker ready; the outbox takes no results (full)",
        ),
    ],
)
def test_what_people_read(address: str, receiver: Receiver, change: dict[str, Any], words: str) -> None:
    manager = at_work(address, receiver)

    manager.show({**SNAPSHOT, **change})
    manager.live(110 * S)

    assert receiver.heard() == [[f"STATUS={words}"]]


# --- an end that does not listen ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nobody", "full", "too_long", "no_descriptors"])
def test_what_could_not_be_told_is_told_later_and_harms_nobody(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    address = str(tmp_path / "notify")
    if kind == "full":
        _fill(address)
    elif kind == "no_descriptors":
        monkeypatch.setattr(socket, "socket", _refuse)
    else:
        address = str(tmp_path / ("absent" if kind == "nobody" else "x" * 200))
    manager = Systemd(address, watchdog_ns=8 * S)

    begun_s = time.monotonic()
    with capture_logs() as lines:
        manager.ready()
        manager.show(SNAPSHOT)
        for tenth in range(31):
            manager.live(tenth * S // 10)
    assert time.monotonic() - begun_s < 1, "it waited"

    assert [line["event"] for line in lines] == ["manager.unreachable"], "told once"
    assert manager.next_due_ns() == 4 * S, "it does not spin"
    monkeypatch.undo()
    receiver.heard()
    manager._address = os.fsencode(tmp_path / "notify")
    manager.live(4 * S)
    assert receiver.heard() == [["READY=1", "STATUS=watching; worker ready; 3 waiting", "WATCHDOG=1"]]


def _fill(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                sender.sendto(b"STATUS=a flood", address)


def _refuse(*_: object) -> socket.socket:
    raise OSError(24, "Too many open files")
