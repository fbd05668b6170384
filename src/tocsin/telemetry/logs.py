"""Log lines: through the standard `logging`, under `tocsin.*`. A library sets up nothing and prints nothing by itself.

A line is an event and its fields: `log.warning("claim lost", job=id)`. A program that sets up `logging` gets the fields
in the message (`claim lost job='a'`), and apart as the attributes `event` and `fields` of the record.
"""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

OURS = "tocsin"
# What `logging` itself understands; all other keywords are fields.
_STANDARD = frozenset(["exc_info", "stack_info", "stacklevel", "extra"])
# Fields that have lines of their own: a traceback and a stack, under the names that structlog knows them by.
TRACES = ("exception", "stack")
# What a terminal obeys, and may come from anywhere: an id, an error's text, a server's answer. Control characters but
# tab and newline; those that turn text around or end a line (U+2028 to U+202E and the like); and halves of
# characters, which cannot be written at all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

if TYPE_CHECKING:
    # The standard one knows no fields of any type.
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
    """The text with control characters written out, like \\x1b. It may have several lines."""
    return _CONTROL.sub(lambda found: _escape(ord(found[0])), text)


def on_one_line(text: str) -> str:
    """So that what stands in a value cannot pass for the next line of the log."""
    return printable(text).replace("\n", r"\n")


def indented(trace: str) -> str:
    """The lines of a traceback. An error's text may have lines that look like ours, which begin at the margin."""
    return "\n".join(f"  {line}" for line in printable(trace).rstrip("\n").split("\n"))


def safe_json(text: str) -> str:
    """JSON that a terminal can be shown: the same value, with control characters as \\u escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
