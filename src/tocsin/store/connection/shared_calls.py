"""Makes a call once that several callers need at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedCalls:
    """Callers that ask for the same thing while its call is under way share its answer or error. A later caller makes a
    new call. A cancelled caller does not cancel the call for the others."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[asyncio.Future[Any]]] = {}
        self._calls: set[asyncio.Future[Any]] = set()

    def ask(self, what: Hashable, call: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if what in self._waiting:
            self._waiting[what].append(answer)
            return answer
        self._waiting[what] = [answer]
        made = asyncio.ensure_future(call())
        self._calls.add(made)
        made.add_done_callback(lambda done: self._ended(what, done))
        return answer

    def _ended(self, what: Hashable, made: asyncio.Future[Any]) -> None:
        self._calls.discard(made)
        error = None if made.cancelled() else made.exception()
        for answer in self._waiting.pop(what):
            if answer.done():
                continue
            if made.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(made.result())
