"""Where the service's log lines go: JSON for programs, aligned text for people, to stderr and a file.

Rules of this file:
- `configure` is called once, by the composition root; everything else asks `logger` for lines or calls
  `write`. Event names stand in `watcher.telemetry.events`.
- A log that cannot be written never stops the service: the first failure of a file is told on stderr, the
  others are dropped.
- Text that came from outside (file names, and messages that quote them) is made harmless before it reaches a
  terminal, and cannot look like a line of its own.
- Lines of libraries appear from WARNING on, whatever our own level is.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

import structlog

from watcher.core.record import utc_text

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from pathlib import Path

    from structlog.typing import ExcInfo, FilteringBoundLogger

    EventDict: TypeAlias = MutableMapping[str, Any]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "json", "console"]

NAME: Final = "watcher"
FILE_MAX_BYTES: Final = 10_000_000
FILE_BACKUPS: Final = 3
_NUMBERS: Final = logging.getLevelNamesMapping()


def configure(
    *, level: Level = "info", style: Format = "auto", file: Path | None = None, stream: TextIO | None = None
) -> None:
    """Send log lines to a stream and, if given, a file. May be called again: the last call counts.

    Args:
        level: the least level of our own lines that is written.
        style: `auto` is `console` on a terminal, else `json`. A file always gets JSON.
        file: appended to; rotated at `FILE_MAX_BYTES`, `FILE_BACKUPS` old ones are kept.
        stream: stderr where None.

    Raises:
        OSError: the file cannot be opened.
    """
    target = sys.stderr if stream is None else stream
    console = style == "console" or (style == "auto" and target.isatty())
    handlers: list[logging.Handler] = [_QuietStream(target)]
    handlers[0].setFormatter(
        _formatter(_console_renderer(color=target.isatty()) if console else _json_renderer())
    )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_LogFile(file))
        handlers[-1].setFormatter(_formatter(_json_renderer()))
    _replace_handlers(handlers, _NUMBERS[level.upper()])
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def logger() -> FilteringBoundLogger:
    """The service's logger: `logger().info("inbox.found", mode="native")`."""
    return cast("FilteringBoundLogger", structlog.get_logger(NAME))


def write(level: Level, event: str, fields: Mapping[str, object]) -> None:
    """Write one line whose fields come as a mapping, as the core's `Log` commands have them.

    A field that is named like one of the line's own (`event`, `level`, `ts`) gets an underscore appended.
    """
    safe = {f"{key}_" if key in {"event", "level", "ts"} else key: value for key, value in fields.items()}
    getattr(logger(), level)(event, **safe)


def printable(text: str) -> str:
    """Text from outside, fit for a terminal: control characters and lone surrogates become escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _shared_processors() -> list[Any]:
    return [structlog.stdlib.add_log_level]


def _formatter(renderer: list[Any]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared_processors(), structlog.stdlib.add_logger_name],
        processors=[_stamp, structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )


def _json_renderer() -> list[Any]:
    return [structlog.processors.format_exc_info, _ordered, structlog.processors.JSONRenderer()]


def _utf8(value: object) -> object:
    """The value with bytes that are not UTF-8 as escapes, since strict parsers refuse lone surrogates."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:  # a surrogate that no file name makes
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_utf8(item) for item in value]
    return value


def _console_renderer(*, color: bool) -> list[Any]:
    return [
        _short,
        _harmless,
        structlog.dev.ConsoleRenderer(
            colors=color,
            timestamp_key="ts",
            exception_formatter=_traceback,
        ),
    ]


def _traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback whose lines begin as no line of the log does: its message may quote anything."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write("".join(f"\n  | {printable(line)}" for line in text.getvalue().strip().splitlines()))


def _short(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    """Nested facts as a person reads them: `auto -> patchmatch`, and the sum of the segments."""
    for key, value in event_dict.items():
        if not isinstance(value, dict):
            continue
        if "configured" in value:
            event_dict[key] = f"{value['configured']} -> {value.get('actual')}"
        elif key == "segments_ms":
            event_dict[key] = round(sum(value.values()), 1)
    return event_dict


def _stamp(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    record: logging.LogRecord = event_dict["_record"]
    event_dict["ts"] = utc_text(record.created)
    return event_dict


def _ordered(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    first = {key: event_dict.pop(key) for key in ("ts", "level", "event") if key in event_dict}
    return {key: _utf8(value) for key, value in {**first, **event_dict}.items()}


def _harmless(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    for key, value in event_dict.items():
        if isinstance(value, str):
            event_dict[key] = printable(value)
    return event_dict


def _replace_handlers(handlers: list[logging.Handler], level: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _QuietStream | _LogFile):
            root.removeHandler(handler)
            with contextlib.suppress(OSError, ValueError):  # what it held back cannot be written either
                handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(NAME).setLevel(level)
    logging.captureWarnings(capture=True)


class _QuietStream(logging.StreamHandler[TextIO]):
    """A stream that may be gone (closed terminal, full disk): then its lines are dropped."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Drop the line."""


class _LogFile(RotatingFileHandler):
    """A file that tells once, on the other handlers, that it cannot be written."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            file,
            maxBytes=FILE_MAX_BYTES,
            backupCount=FILE_BACKUPS,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Drop the line; the first time, say so."""
        del record
        if not self._told:
            self._told = True
            logger().warning("log.file_failed", file=self.baseFilename, reason=str(sys.exc_info()[1]))
