"""Where a value came from."""

from __future__ import annotations

from msgspec import Struct


class Origin(Struct, frozen=True):
    """Neither a file nor a variable: the default."""

    file: str = ""
    line: int = 0
    variable: str = ""

    def __str__(self) -> str:
        if self.variable:
            return f"${one_line(self.variable)}"
        if not self.file:
            return "default"
        # Line 0: all of it.
        return one_line(self.file) + (f":{self.line}" if self.line else "")


DEFAULT = Origin()


class Problem(Struct, frozen=True):
    """What is wrong, on one line."""

    origin: Origin
    what: str

    def __str__(self) -> str:
        return f"{self.origin}: {one_line(self.what)}" if self.origin != DEFAULT else one_line(self.what)


def one_line(text: str) -> str:
    """Names of files and keys may hold newlines, escape sequences and halves of characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
