"""Origin, where a value came from, and Problem, what is wrong with it."""

from __future__ import annotations

from msgspec import Struct


class Origin(Struct, frozen=True):
    """A line of a file, or a variable. The default value has neither."""

    file: str = ""
    line: int = 0
    variable: str = ""

    def __str__(self) -> str:
        if self.variable:
            return f"${one_line(self.variable)}"
        if not self.file:
            return "default"
        # Line 0 stands for the whole file.
        return one_line(self.file) + (f":{self.line}" if self.line else "")


DEFAULT = Origin()


class Problem(Struct, frozen=True):
    """A message about a value, on one line."""

    origin: Origin
    what: str

    def __str__(self) -> str:
        return f"{self.origin}: {one_line(self.what)}" if self.origin != DEFAULT else one_line(self.what)


def one_line(text: str) -> str:
    """Escape unprintable characters: names of files and keys may contain newlines and terminal escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
