"""Calls that several callers need at the same time are made once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedCalls:
    """One call for all that wait for the same thing: they share its answer, or its failure. The next caller after that
    makes a new one."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    async def ask(self, what: Hashable, call: Callable[[], Awaitable[Any]]) -> Any:
        asked = self._under_way.get(what)
        if asked is None:
            asked = asyncio.ensure_future(call())
            self._under_way[what] = asked
            asked.add_done_callback(lambda done: self._ended(what, done))
        # A caller that is cancelled must not take the answer from the others.
        return await asyncio.shield(asked)

    def _ended(self, what: Hashable, asked: asyncio.Future[Any]) -> None:
        del self._under_way[what]
        # Read the error even where every caller gave up: asyncio complains about errors that nobody read.
        if not asked.cancelled():
            asked.exception()
