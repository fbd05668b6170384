"""The explanation of a job: what it is doing, why it is not running, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.human_time import distance, local

# Only the beginning of an error is shown; `tocsin jobs show` has all of it.
LONGEST_ERROR = 300


class Reason(Struct, frozen=True):
    """One thing that is true of a job. `do` is what to do about it, if anything."""

    kind: str
    says: str
    facts: dict[str, Any] = {}
    do: tuple[str, ...] = ()


class Explanation(Struct, frozen=True):
    """The first reason says what the job is doing, the others say why."""

    id: str
    queue: str | None
    reasons: list[Reason]
    known: bool = True

    @property
    def kinds(self) -> list[str]:
        return [reason.kind for reason in self.reasons]

    def lines(self) -> Iterator[str]:
        doing, *others = self.reasons
        where = "" if self.queue is None else f" in queue {self.queue}"
        yield f"{self.id!r}{where}: {doing.says}"
        for reason in others:
            yield f"why: {reason.says}"
        # Two reasons may suggest the same.
        for do in dict.fromkeys(do for reason in self.reasons for do in reason.do):
            yield f"do:  {do}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def at(ms: Millis, now: Millis) -> str:
    return f"{local(ms)} ({distance(ms, now)})"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


def typed(word: str) -> str:
    """Quote a word for a shell. Ids may contain any character; those of extra runs contain \\x1f."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _escape(c) for c in escaped) + "'"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "replace"))
