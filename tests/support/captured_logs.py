"""What Tocsin logs, in the hands of a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = {"event": record.getMessage(), "log_level": record.levelname.lower(), "logger": record.name}
        line |= {"event": record.__dict__.get("event", line["event"]), **record.__dict__.get("fields", {})}
        self.lines.append({**line, "exc_info": record.exc_info[1]} if record.exc_info else line)


@contextmanager
def capture_logs(name: str = "tocsin") -> Iterator[list[dict[str, Any]]]:
    """Each line as its event, level, logger and fields, at all levels."""
    logger, lines = logging.getLogger(name), _Lines()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines.lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
