"""Sessions: the names under which a process calls, so that a call whose reply was lost can be repeated.

A session has at most one call in flight per partition, and a growing seq. The server answers the same seq again as it
did the first time, and refuses a lower one. Each part of a worker has a session; concurrent calls of a program borrow
one each.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tocsin.model import msgpack
from tocsin.store.calls import Calls
from tocsin.store.open_queue import LARGEST_BATCH, OpenQueue
from tocsin.store.scripts.script import script


class SessionPool:
    """The sessions of a program: as many as it ever had calls in flight at once."""

    def __init__(self) -> None:
        self.client = secrets.token_hex(5)
        self._free: list[str] = []
        self._made = 0
        self._seq = itertools.count(1)

    @contextmanager
    def borrow(self) -> Iterator[tuple[str, int]]:
        """A session that no other call uses meanwhile, and its next seq."""
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


async def end_sessions(calls: Calls, queue: OpenQueue, names: list[str]) -> None:
    """Let the server forget these sessions."""
    packed = [msgpack.encode(names[at : at + LARGEST_BATCH]) for at in range(0, len(names), LARGEST_BATCH)]
    each = [([keys["sessions"]], [some]) for keys in queue.keys for some in packed]
    await calls.run_once(lambda _: calls.call_each(script("session_end"), each))


async def prune_sessions(calls: Calls, queue: OpenQueue, partition: int) -> int:
    """Forget the sessions of programs that died, page by page. Returns how many."""
    prune, forgotten = script("session_prune"), 0
    cursor: bytes = b"0"
    key, now = queue.keys[partition]["sessions"], calls.clock.override()
    while True:
        args = ["" if now is None else now, cursor]
        cursor, some = await calls.run_once(lambda c, a=args: prune(c, [key], a))  # type: ignore[misc]
        forgotten += int(some)
        if cursor == b"0":
            return forgotten
