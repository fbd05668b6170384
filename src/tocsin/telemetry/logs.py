"""Loggers for our own lines: the standard `logging`, under `tocsin.*`. As a library Tocsin sets up no output.

A line is an event and its fields: `log.warning("claim lost", job=id)`. A program that sets up `logging` gets the fields
in the message (`claim lost job='a'`), and separately as the attributes `event` and `fields` of the record.
"""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

OURS = "tocsin"
# Keywords that `logging` itself understands. All others are fields.
_STANDARD = frozenset(["exc_info", "stack_info", "stacklevel", "extra"])
# Fields with several lines: a traceback and a stack, with structlog's names.
TRACES = ("exception", "stack")
# Characters that control a terminal and may be in any id, error text or answer of a server: control characters except
# tab and newline; characters that reverse text or end a line (U+2028 to U+202E and the like); and lone surrogates,
# which cannot be written at all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

if TYPE_CHECKING:
    # The types of the standard adapter do not allow fields.
    class _Adapter:
        def __init__(self, logger: logging.Logger) -> None: ...
        def debug(self, msg: str, **fields: Any) -> None: ...
        def info(self, msg: str, **fields: Any) -> None: ...
        def warning(self, msg: str, **fields: Any) -> None: ...
        def error(self, msg: str, **fields: Any) -> None: ...
        def exception(self, msg: str, **fields: Any) -> None: ...
else:
    _Adapter = logging.LoggerAdapter


class Log(_Adapter):
    """A standard logger that takes fields as keywords."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = {name: value for name, value in kwargs.items() if name not in _STANDARD}
        given = {name: value for name, value in kwargs.items() if name in _STANDARD}
        text = " ".join([msg, *(f"{name}={value!r}" for name, value in fields.items() if name not in TRACES)])
        text = "\n".join([text, *(indented(fields[name]) for name in TRACES if name in fields)])
        return text, given | {"extra": {"event": msg, "fields": fields}}


def get_logger(name: str) -> Log:
    return Log(logging.getLogger(name))


def printable(text: str) -> str:
    """The text with control characters escaped, like \\x1b. It may have several lines."""
    return _CONTROL.sub(lambda found: _escape(ord(found[0])), text)


def on_one_line(text: str) -> str:
    """The text on one line, so that a value cannot fake the next line of the log."""
    return printable(text).replace("\n", r"\n")


def indented(trace: str) -> str:
    """The lines of a traceback, indented: an error's text may have lines that look like ours."""
    return "\n".join(f"  {line}" for line in printable(trace).rstrip("\n").split("\n"))


def safe_json(text: str) -> str:
    """JSON that is safe to show on a terminal: the same value, with control characters as \\u escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
