"""Writes the log lines of a command to stderr: readable on a terminal, otherwise one JSON object per line.

Stdout is for the result of the command.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.telemetry.logs import OURS, TRACES, indented, on_one_line, safe_json

LEVELS = ("debug", "info", "warning", "error")


def check_level(level: str) -> str:
    if level.lower() not in LEVELS:
        raise InvalidArgument(f"there is no log level {level!r}; {did_you_mean(level.lower(), LEVELS)}")
    return level.lower()


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """Send our own lines to the stream only, so that a program's own log handlers do not repeat them."""
    ours = logging.getLogger(OURS)
    ours.handlers[:] = [_handler(stream)]
    ours.propagate = False
    ours.setLevel(_number(level))


def adopt_standard_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Write the lines of the program and of other libraries in the same way, unless the program set up `logging`."""
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_handler(stream))
    root.setLevel(_number(level))


def _handler(stream: TextIO | None) -> logging.Handler:
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    rendering = [ProcessorFormatter.remove_processors_meta, *_rendering(stream or sys.stderr)]
    handler.setFormatter(ProcessorFormatter(foreign_pre_chain=_FIELDS, processors=rendering))
    return handler


if TYPE_CHECKING:
    _Stream = logging.StreamHandler[TextIO]
else:
    _Stream = logging.StreamHandler


class _Stderr(_Stream):
    """Looks up stderr for each line, because programs and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _event(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Put the fields of our own lines back into the line."""
    record = line["_record"]
    fields = getattr(record, "fields", None)
    return line if fields is None else {**line, "event": record.event, **fields}


def _no_control(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Escape control characters: a job's id or an error's text must not control the terminal or fake log lines."""
    return {name: _shown(name, value) if isinstance(value, str) else value for name, value in line.items()}


def _shown(name: str, value: str) -> str:
    return indented(value) if name in TRACES else on_one_line(value)


def _as_json(line: EventDict, **how: Any) -> str:
    return safe_json(json.dumps(line, ensure_ascii=False, **how))


_FIELDS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    _event,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _rendering(stream: TextIO) -> list[Any]:
    # Not rich's tracebacks: they print the locals of every frame, and with them the users' secrets.
    plain: list[Any] = [structlog.processors.format_exc_info]
    if stream.isatty():
        return [*plain, _no_control, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [*plain, structlog.processors.JSONRenderer(serializer=_as_json)]


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[check_level(level).upper()]
