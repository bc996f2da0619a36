"""Names and metadata that mean something to a log, a terminal, a page, a shell or a path mean nothing here.

One service gets pictures whose names and contents hold all of it: some are served, some refused, one is held.
Then every place where that can be read is looked at, byte by byte.
"""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import (
    Service,
    encoded,
    mask,
    picture,
    pixels,
    relative_files,
    source_of,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE: Final = {
    "line": "a\nb",
    "forged record": 'a\n{"event":"job.finished","outcome":"done"}',
    "forged log line": "a\n2026-11-30T20:00:00.000Z [info     ] job.finished",
    "carriage return": "a\rb",
    "clear screen": "a\x1b[2Jb",
    "title": "a\x1b]0;owned\x07b",
    "one-byte sequence": "a\x9b31mb",
    "bidi": "a\u202egpj.b",
    "line separator": "a\u2028b\x85c",
    "not UTF-8": "a\udcff\udc9bb",
    "page": "<script>alert(1)<\\script><img src=x onerror=alert(1)>",
    "markup": "[bold red]a[_bold red][link=x]",
    "format": "%s%n{0.__class__}{source!r}",
    "shell": "$(touch owned)`touch owned`;touch owned;'\"",
    "option": "--config",
    "path": "a..\\..\\owned",
    "dots": "a... ..",
}
"""For names, so without slashes."""
TEXTS: Final = [*HOSTILE.values(), "../../owned\x00", "x" * 100_000]
HELD: Final = "held \x1b[2J\n.png"
ESCAPE_OF_COLOUR: Final = re.compile(rb"\x1b\[[0-9;]*m")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_texts(seed: int) -> bytes:
    """A whole PNG whose keywords and texts are all hostile."""
    data = picture(seed)
    texts = [text.encode("latin-1", "replace") for text in TEXTS]
    chunks = [chunk(b"tEXt", text.replace(b"\x00", b"") + b"\x00" + text) for text in texts]
    return data[:33] + b"".join(chunks) + data[33:]


def with_comment(seed: int) -> bytes:
    """A whole JPEG with hostile comments and segments."""
    data = encoded(pixels(seed), "JPEG", quality=90)
    segments = [text.encode("utf-8", "surrogateescape")[:60_000] for text in TEXTS]
    return (
        data[:2]
        + b"".join(
            struct.pack(">BBH", 0xFF, marker, len(text) + 2) + text
            for text in segments
            for marker in (0xFE, 0xE9)
        )
        + data[2:]
    )


def broken(number: int, text: str) -> bytes:
    """A file that is refused, in words that a decoder may take from it."""
    raw = text.encode("utf-8", "surrogateescape")
    match number % 4:
        case 0:
            return raw * 20
        case 1:
            return b"\x89PNG\r\n\x1a\n" + chunk(raw[:4].ljust(4, b"\x1b"), raw) + chunk(b"IEND", b"")
        case 2:
            return b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + raw * 20
        case _:
            data = bytearray(picture(number))
            data[33:60] = (raw * 30)[:27]
            return bytes(data)


@dataclass
class Scene:
    """The service, and what it was given.

    Attributes:
        service: it runs.
        served: names of pictures that are done.
        others: names of pictures that are not pictures, or damaged.
    """

    service: Service
    served: list[str]
    others: list[str]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("injection")
    service = Service(root, ("[arrivals]", "quiet_s = 0.1", "[output]", "keep_metadata = false"))
    try:
        service.start()
        served, others = [], []
        for number, text in enumerate(HOSTILE.values()):
            name = f"{text}.png"
            service.put(name, with_texts(number) if number % 2 else with_comment(number))
            served.append(name)
            name = f"bad {text}.png"
            service.put(name, broken(number, text), mask(), expect=False)
            others.append(name)
        service.put(HELD, picture(99), b"", expect=False)
        wait_until(lambda: len(service.records()) >= len(served) + len(others), "an outcome of each")
        service.wait_note("held", HELD)
        yield Scene(service, served, others)
    finally:
        service.close()


def test_each_picture_has_its_outcome_and_its_own_name(scene: Scene) -> None:
    records = scene.service.records()
    assert sorted(source_of(record) for record in records) == sorted([*scene.served, *scene.others])
    for name in scene.served:
        assert scene.service.wait_record(name)["outcome"] == "done", name
    assert scene.service.outputs() == set(scene.served)
    assert scene.service.status()["worker"]["restarts"] == 0
    assert not list(scene.service.root.rglob("owned*"))
    assert not list(scene.service.root.parent.glob("owned*"))


def test_the_timing_log_has_one_line_of_plain_ascii_a_record(scene: Scene) -> None:
    (log,) = (scene.service.outbox / "logs").glob("timings-*.jsonl")
    lines = log.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(scene.served) + len(scene.others)
    for line in lines:
        assert line.decode("ascii").isprintable()
        assert json.loads(line)["event"] == "job.finished"


def test_what_was_dropped_is_named_in_short_and_harmless_words(scene: Scene) -> None:
    records = [scene.service.wait_record(name) for name in scene.served]
    named = [name for record in records for name in record["image"]["dropped_metadata"]]
    assert any(name.startswith("tEXt") for name in named)
    assert all(name.isprintable() and len(name) <= 120 for name in named), named
    assert all(len(record["image"]["dropped_metadata"]) <= 60 for record in records)
    reasons = [record["reason"] for record in scene.service.records() if record["reason"]]
    assert reasons
    assert all(reason.isprintable() and len(reason) <= 600 for reason in reasons), reasons


def test_the_service_log_is_json_of_plain_ascii_line_by_line(scene: Scene) -> None:
    lines = scene.service.log_file.read_bytes().split(b"\n")
    assert lines.pop() == b""
    for line in lines:
        assert line.decode("ascii").isprintable()
        assert "event" in json.loads(line)
    finished = [json.loads(line) for line in lines if b'"job.finished"' in line]
    assert len([entry for entry in finished if entry["event"] == "job.finished"]) <= len(
        scene.served + scene.others
    )


def test_notes_are_whole_harmless_and_in_their_folders(scene: Scene) -> None:
    notes = [
        scene.service.outbox / kind / path
        for kind in ("failed", "held")
        for path in scene.service.notes(kind)
    ]
    assert len(notes) >= 2
    for note in notes:
        text = note.read_text("utf-8")
        assert all(line.isprintable() for line in text.split("\n")), note
        assert json.loads(text)["reason"]
    top = {path.name for path in scene.service.outbox.iterdir()}
    assert top == {"logs", "failed", "held"} | {os.fsdecode(name) for name in scene.served}
    assert relative_files(scene.service.state / "staging") == set()


COMMANDS: Final = (
    ["jobs"],
    ["jobs", "--json"],
    ["status"],
    ["status", "--json"],
    ["doctor"],
    ["doctor", "--json"],
)


def is_harmless(shown: bytes) -> bool:
    """Only text and ends of lines, as UTF-8."""
    return all(line.isprintable() for line in shown.decode("utf-8").replace("\r\n", "\n").split("\n"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_show_nothing_that_a_terminal_would_obey(scene: Scene, command: list[str]) -> None:
    done = scene.service.run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert is_harmless(done.stdout.encode() + done.stderr.encode())
    if command[-1] == "--json":
        json.loads(done.stdout)


@pytest.mark.parametrize("command", [["jobs"], ["status"], ["jobs", "--json"]], ids=" ".join)
def test_on_a_terminal_there_are_colours_and_nothing_else(scene: Scene, command: list[str]) -> None:
    code, shown = on_a_terminal(scene.service.command(*command), scene.service.environment())
    assert code == 0, shown
    assert is_harmless(ESCAPE_OF_COLOUR.sub(b"", shown)), shown


def on_a_terminal(command: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Run a command on a terminal of its own; returns its exit status and all that it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "200"},
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
        return process.wait(60), shown


@pytest.mark.parametrize("name", ["a\n2026-11-30T20:00:00.000Z [info     ] job.finished \x1b[2J\u202e.png"])
def test_the_log_for_people_has_one_harmless_line_an_event(tmp_path: Path, name: str) -> None:
    service = Service(tmp_path)
    service.put(name, b"no picture" * 100, mask(), expect=False)
    environment = {**service.environment(), "WATCHER_LOG__FORMAT": "console", "WATCHER_LOG__LEVEL": "debug"}
    done = subprocess.run(
        service.command("once"), capture_output=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 1, done.stderr
    lines = done.stderr.decode("utf-8").split("\n")
    assert all(line.isprintable() for line in lines)
    finished = [line for line in lines if re.match(r"\S+Z \[\w+ *\] job\.finished", line)]
    assert len(finished) <= 1, finished
    assert is_harmless(done.stdout)
