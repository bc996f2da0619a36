"""The log of all workers, and the end of what one of them wrote."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from watcher.adapters.bounded_log import BoundedLog, OutputTail, readable

if TYPE_CHECKING:
    from pathlib import Path


def test_the_log_keeps_the_newest_and_forgets_the_oldest(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "made" / "worker.log", max_bytes=100, backups=2)
    for number in range(20):
        log.write(b"%02d" % number * 20)

    kept = {path.name: path.read_bytes()[:2] for path in (tmp_path / "made").iterdir()}

    assert kept == {"worker.log": b"18", "worker.log.1": b"16", "worker.log.2": b"14"}


def test_a_log_that_the_disk_refuses_is_lost_and_nothing_else(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "worker.log")
    (tmp_path / "worker.log").mkdir()

    log.write(b"lost")

    (tmp_path / "worker.log").rmdir()
    log.write(b"kept")
    assert (tmp_path / "worker.log").read_bytes() == b"kept"


# --- the end of it -----------------------------------------------------------------------------------------


def test_the_tail_is_the_last_whole_lines() -> None:
    tail = OutputTail()
    for number in range(3000):
        tail.append(b"line %04d\n" % number)

    lines = tail.text().splitlines()

    assert lines[-1] == "line 2999"
    assert lines == [f"line {number:04}" for number in range(3000 - len(lines), 3000)]
    assert 7900 < len(tail.text()) <= 8192


def test_a_line_without_end_is_cut_within_no_character() -> None:
    tail = OutputTail()
    tail.append(b"x" + "é".encode() * 30_000)

    assert set(tail.text()) == {"é"}
    assert 8190 <= len(tail.text().encode()) <= 8192


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain \xc3\xa9 \t text\n", "plain é \t text\n"),
        (b"\x1b[1;31mred\x1b[0m\x1b[2J", "red"),
        (b"\x1b]0;a title\x07text\x1b]8;;link\x1b\\", "text"),
        (b"10%\r20%\r\ndone", "10%\n20%\ndone"),
        (b"bell\x07 null\x00 escape\x1b", "bell\\x07 null\\x00 escape\\x1b"),
        (b"\xff\xfe no text", "\\xff\\xfe no text"),
        ("turned \u202egnp.exe".encode(), "turned \\u202egnp.exe"),
        (b"c1 \xc2\x9b2J", "c1 \\x9b2J"),
    ],
)
def test_what_people_see_moves_no_cursor(written: bytes, shown: str) -> None:
    assert readable(written) == shown


def test_words_are_waited_for_until_silence_follows_them() -> None:
    tail = OutputTail()
    tail.append(b"the words of before")
    since = tail.position

    def write() -> None:
        for piece in (b"noise ", b"the wo", b"rds", b" and", b" more"):
            tail.append(piece)
            time.sleep(0.02)

    threading.Thread(target=write).start()

    assert tail.await_words(b"the words", since, silence_s=0.2, timeout_s=30)
    assert tail.text().endswith("the words and more")


def test_nobody_waits_for_words_of_the_dead_or_for_ever() -> None:
    tail = OutputTail()
    began = time.monotonic()
    assert not tail.await_words(b"never", 0, silence_s=0.0, timeout_s=0.05)
    threading.Timer(0.05, tail.end).start()
    assert not tail.await_words(b"never", 0, silence_s=0.0, timeout_s=600)
    assert time.monotonic() - began < 30
