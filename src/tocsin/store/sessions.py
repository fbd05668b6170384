"""Sessions: the names under which a process calls, so that a call whose reply was lost can be repeated.

A session has at most one call in flight per partition, with a growing seq. The same seq again gets the same answer,
a lower one is refused. A worker's parts each have one session; a program's concurrent calls take lanes in turn.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager


class SessionPool:
    """Sessions of a program: as many as it ever had calls in flight at once."""

    def __init__(self) -> None:
        self.client = secrets.token_hex(5)
        self._free: list[str] = []
        self._made = 0
        self._seq = itertools.count(1)

    @contextmanager
    def lane(self) -> Iterator[tuple[str, int]]:
        """A session that nobody else uses meanwhile, and its next seq."""
        name = self._free.pop() if self._free else self._new()
        try:
            yield name, next(self._seq)
        finally:
            self._free.append(name)

    def names(self) -> list[str]:
        return [f"{self.client}:{n}" for n in range(1, self._made + 1)]

    def _new(self) -> str:
        self._made += 1
        return f"{self.client}:{self._made}"
