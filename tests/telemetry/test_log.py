"""Log lines: their shape, where they go, and what cannot happen to a terminal or to the service."""

from __future__ import annotations

import errno
import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from watcher.telemetry import log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    buffer = io.StringIO()
    yield buffer
    log._replace_handlers([], logging.WARNING)
    logging.captureWarnings(capture=False)


def lines(buffer: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in buffer.getvalue().splitlines()]


def test_a_line_is_json_with_utc_level_and_event_first(stream: io.StringIO) -> None:
    log.configure(style="json", stream=stream)
    log.write("info", "inbox.found", {"mode": "native", "files": 3})
    (line,) = lines(stream)
    assert list(line) == ["ts", "level", "event", "mode", "files"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    assert (line["level"], line["event"], line["mode"]) == ("info", "inbox.found", "native")


def test_auto_is_json_where_there_is_no_terminal_and_text_where_there_is(stream: io.StringIO) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    log.configure(stream=stream)
    log.write("info", "a.b", {})
    assert lines(stream)
    terminal = Terminal()
    log.configure(stream=terminal)
    log.write("info", "a.b", {"key": "value"})
    assert "a.b" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_only_lines_of_the_level_and_above(stream: io.StringIO) -> None:
    log.configure(level="warning", style="json", stream=stream)
    log.write("info", "a.quiet", {})
    log.write("error", "a.loud", {})
    assert [line["event"] for line in lines(stream)] == ["a.loud"]


def test_libraries_are_heard_from_warning_on_even_while_we_debug(stream: io.StringIO) -> None:
    log.configure(level="debug", style="json", stream=stream)
    logging.getLogger("some.library").info("quiet")
    logging.getLogger("some.library").warning("loud %d", 3)
    log.logger().debug("a.ours")
    heard = lines(stream)
    assert [line["event"] for line in heard] == ["loud 3", "a.ours"]
    assert heard[0]["logger"] == "some.library"


def test_modules_of_the_service_may_ask_structlog_themselves(stream: io.StringIO) -> None:
    import structlog  # noqa: PLC0415 - as an adapter does it, after the set-up

    log.configure(level="info", style="json", stream=stream)
    structlog.get_logger("watcher.adapters.anything").info("a.b", key=1)
    assert lines(stream)[0]["key"] == 1


def test_fields_named_like_the_lines_own_survive(stream: io.StringIO) -> None:
    log.configure(style="json", stream=stream)
    log.write("info", "a.b", {"event": 1, "level": 2, "ts": 3})
    (line,) = lines(stream)
    assert (line["event"], line["event_"], line["level_"], line["ts_"]) == ("a.b", 1, 2, 3)


def test_names_that_are_not_utf8_are_json_that_strict_parsers_take(stream: io.StringIO) -> None:
    log.configure(style="json", stream=stream)
    log.write("info", "a.b", {"source": "caf\udce9.jpg", "emoji": "\U0001f480", "more": ["x\udcff"]})
    text = stream.getvalue()
    assert "\\udce9" not in text
    (line,) = lines(stream)
    assert line["source"] == "caf\\xe9.jpg"
    assert line["emoji"] == "\U0001f480"
    assert line["more"] == ["x\\xff"]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m", "\u202egpj", "\x07", "a\nb", "a\rb"])
def test_a_file_name_cannot_write_to_the_terminal(stream: io.StringIO, hostile: str) -> None:
    log.configure(style="console", stream=stream)
    log.write("info", "a.b", {"source": f"x{hostile}y"})
    logging.getLogger("some.library").warning("z%sz", hostile)
    ours, theirs, end = stream.getvalue().split("\n")
    assert end == ""
    assert ours.isprintable()
    assert theirs.isprintable()


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m", "\u202egpj", "\u2028", "\x85", "\r"])
def test_what_an_exception_quotes_cannot_write_to_the_terminal_or_look_like_a_line(
    stream: io.StringIO, hostile: str
) -> None:
    log.configure(style="console", stream=stream)
    forged = "2026-11-30T20:00:00.000Z [info     ] job.finished"

    def fail() -> None:
        raise ValueError(f"x{hostile}\n{forged}{hostile}")

    try:
        fail()
    except ValueError:
        log.logger().exception("a.b", names=[f"x{hostile}y"], facts={"key": f"a\n{forged}"})
    first, *others = stream.getvalue().split("\n")
    assert " a.b " in first
    assert all(line.startswith("  | ") for line in others if line)
    assert all(line.isprintable() for line in [first, *others])
    assert any(forged in line for line in others)


def test_a_surrogate_that_no_name_makes_is_told_and_not_lost(stream: io.StringIO) -> None:
    log.configure(style="json", stream=stream)
    log.write("info", "a.b", {"reason": "x\ud800y"})
    (line,) = lines(stream)
    assert line["reason"] == "x\\ud800y"


def test_nested_facts_are_short_on_the_console_and_whole_in_json(stream: io.StringIO) -> None:
    facts = {
        "engine": {"configured": "auto", "actual": "lama", "reason": "x"},
        "segments_ms": {"import": 1.25, "warmup": 2.25},
    }
    log.configure(style="console", stream=stream)
    log.write("info", "worker.ready", facts)
    assert "engine='auto -> lama'" in stream.getvalue()
    assert "segments_ms=3.5" in stream.getvalue()
    log.configure(style="json", stream=stream)
    log.write("info", "worker.ready", facts)
    assert json.loads(stream.getvalue().splitlines()[-1])["engine"] == facts["engine"]


def test_an_exception_is_text_in_the_line(stream: io.StringIO) -> None:
    log.configure(style="json", stream=stream)
    try:
        int("boom")
    except ValueError:
        log.logger().exception("a.b")
    (line,) = lines(stream)
    assert line["exception"].startswith("Traceback")
    assert "'boom'" in line["exception"]


def test_the_file_gets_json_and_rotates(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FILE_MAX_BYTES", 2000)
    file = tmp_path / "logs" / "watcher.log"
    log.configure(style="console", file=file, stream=stream)
    for number in range(200):
        log.write("info", "a.b", {"number": number})
    kept = sorted(file.parent.iterdir())
    assert [path.name for path in kept] == ["watcher.log", "watcher.log.1", "watcher.log.2", "watcher.log.3"]
    assert all(path.stat().st_size <= 2000 for path in kept)
    last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    assert last["number"] == 199


def test_a_file_that_cannot_be_written_is_told_of_once(tmp_path: Path, stream: io.StringIO) -> None:
    class FullDisk(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    log.configure(style="json", file=tmp_path / "watcher.log", stream=stream)
    handler = next(h for h in logging.getLogger().handlers if isinstance(h, log._LogFile))
    before = handler.setStream(FullDisk())  # type: ignore[arg-type]  # a text stream all the same
    assert before is not None
    before.close()
    for number in range(3):
        log.write("info", "a.b", {"number": number})
    events = [line["event"] for line in lines(stream)]
    assert events.count("a.b") == 3
    assert events.count("log.file_failed") == 1


def test_a_stream_that_is_gone_does_not_stop_the_service(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = io.StringIO()
    log.configure(style="json", stream=gone)
    gone.close()
    log.write("error", "a.b", {})
    assert capsys.readouterr().err == ""
    log.configure(style="json", stream=stream)


def test_configuring_again_replaces_and_does_not_add(stream: io.StringIO) -> None:
    for _ in range(3):
        log.configure(style="json", stream=stream)
    log.write("info", "a.b", {})
    assert len(lines(stream)) == 1
