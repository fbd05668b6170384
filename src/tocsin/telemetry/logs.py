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
_TRACES = ("exception", "stack")
# All but tab and newline. A terminal obeys them, and they may come from anywhere: an error's text, a server's answer.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

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
        text = " ".join([msg, *(f"{name}={value!r}" for name, value in fields.items() if name not in _TRACES)])
        text = "\n".join([text, *(printable(fields[name]) for name in _TRACES if name in fields)])
        return text, given | {"extra": {"event": msg, "fields": fields}}


def get_logger(name: str) -> Log:
    return Log(logging.getLogger(name))


def printable(text: str) -> str:
    """The text with control characters written out, like \\x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
