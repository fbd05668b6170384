"""The log lines of a command: readable on a terminal, one JSON object a line otherwise, to stderr in both cases.

Stdout belongs to the result of the command.
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
    """Our own lines go to the stream, and nowhere else: what a program sets up for itself does not repeat them."""
    ours = logging.getLogger(OURS)
    ours.handlers[:] = [_handler(stream)]
    ours.propagate = False
    ours.setLevel(_number(level))


def adopt_standard_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Lines of the program and of other libraries look the same, unless the program has set up `logging` itself."""
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
    """Stderr as it is when a line is written: programs, and tests, replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _event(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Our own lines have their fields apart."""
    record = line["_record"]
    fields = getattr(record, "fields", None)
    return line if fields is None else {**line, "event": record.event, **fields}


def _no_control(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Whoever chooses a job's id or an error's text neither steers the terminal nor writes lines of their own."""
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
