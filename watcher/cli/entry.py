"""The entry point: runs a command and turns whatever went wrong into lines and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import platformdirs

from watcher import __version__
from watcher.cli.commands import app
from watcher.ports import RemediableError
from watcher.settings import ConfigurationError
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXIT_INTERNAL: Final = 70
EXIT_INTERRUPTED: Final = 130
CRASH_FILE: Final = "crash.txt"
"""Holds the last internal error alone, so it cannot grow."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code.

    Args:
        arguments: those of the command line where None.
    """
    _take_any_name()
    try:
        app(list(sys.argv[1:] if arguments is None else arguments), prog_name="watcher")
    except SystemExit as end:
        _end(end.code)
    except RemediableError as error:
        for number, lines in enumerate(_in_three_lines(error)):
            if number:
                print(file=sys.stderr)  # noqa: T201 - the terminal is the place for it
            _tell(*lines)
        _end(error.exit_code)
    except KeyboardInterrupt:
        _end(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _end(0)
    except Exception as error:  # noqa: BLE001 - the last line of defence: people get a line, the file gets the rest
        where = _write_details()
        reason = printable(f"{type(error).__name__}: {error}")
        _tell(f"watcher itself failed: {reason}", f"details in {where}", "report it, with that file")
        _end(EXIT_INTERNAL)
    _end(0)


def _in_three_lines(error: RemediableError) -> Iterator[tuple[str, str | None, str]]:
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            yield problem.what, problem.where, problem.remedy
    else:
        yield str(error), getattr(error, "where", None), error.remedy


def _tell(what: str, where: str | None, remedy: str) -> None:
    lines = [
        f"error: {printable(what)}",
        f"where: {printable(where)}" if where else "",
        f"to do: {printable(remedy)}",
    ]
    with contextlib.suppress(OSError):
        print("\n".join(line for line in lines if line), file=sys.stderr)  # noqa: T201 - the terminal is the place for it


def _write_details() -> str:
    text = f"watcher {__version__}, Python {sys.version}\n{sys.argv}\n{traceback.format_exc()}"
    for folder in (platformdirs.user_state_path("watcher", appauthor=False), Path(tempfile.gettempdir())):
        file = folder / CRASH_FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return str(file)
    return "no file, since none could be written"


def _take_any_name() -> None:
    """A file name that the terminal cannot show must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end(code: str | int | None) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
