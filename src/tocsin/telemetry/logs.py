"""Log lines: readable on a terminal, one JSON object a line otherwise, to stderr in both cases.

Stdout belongs to what a command was asked for.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from tocsin.model.errors import InvalidArgument, nearest

LEVELS = ("debug", "info", "warning", "error")


def check_level(level: str) -> str:
    if level.lower() not in LEVELS:
        raise InvalidArgument(f"there is no log level {level!r}; {nearest(level.lower(), LEVELS)}")
    return level.lower()


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """For our own log lines. Those of modules that are loaded already follow too."""
    out = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[_name, *_FIELDS, *_rendering(out)],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        # Stderr as it is when a line is written: programs, and tests, replace it.
        logger_factory=lambda *names: _Named(sys.stderr if stream is None else stream, *names),
        cache_logger_on_first_use=False,
    )


def adopt_standard_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Lines of the standard `logging` come out alike, unless the program has set it up itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    fields: list[Processor] = [structlog.stdlib.add_logger_name, *_FIELDS]
    rendering = [ProcessorFormatter.remove_processors_meta, *_rendering(out)]
    handler.setFormatter(ProcessorFormatter(foreign_pre_chain=fields, processors=rendering))
    root.addHandler(handler)
    root.setLevel(_number(level))


class _Named(structlog.WriteLogger):
    """Knows which part it speaks for."""

    def __init__(self, stream: TextIO, name: str = "tocsin") -> None:
        super().__init__(stream)
        self.name = name


def _name(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event.setdefault("logger", logger.name)
    return event


_FIELDS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _rendering(stream: TextIO) -> list[Any]:
    if stream.isatty():
        # Not rich's tracebacks: they print the locals of every frame, and with them the users' secrets.
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[check_level(level).upper()]
