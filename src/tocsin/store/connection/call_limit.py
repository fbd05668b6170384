"""Limits the calls under way. Further calls wait in line."""

from __future__ import annotations

import asyncio
from collections import deque

from redis.exceptions import MaxConnectionsError


class CallLimit:
    """At most `most` permits at once. Further callers wait in line and are served in order.

    A caller waits for as long as the line moves. Only if no caller was served for `max_wait_s`, those that have waited
    for this time, or up to twice as long, get MaxConnectionsError.
    """

    def __init__(self, most: int, max_wait_s: float) -> None:
        self._free = most
        self._max_wait_s = max_wait_s
        # A released permit goes to the first in line, so that a new caller cannot take it.
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._checks = 0
        # Whether a caller was served since the last check.
        self._served = False
        self._next_check: asyncio.TimerHandle | None = None

    def take_free(self) -> bool:
        """Take a permit if one is free."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        if self.take_free():
            return
        loop = asyncio.get_running_loop()
        permit: asyncio.Future[None] = loop.create_future()
        self._line.append((self._checks, permit))
        if self._next_check is None:
            self._next_check = loop.call_later(self._max_wait_s, self._check)
        try:
            await permit
        except asyncio.CancelledError:
            # It may have got a permit at the same moment: pass it on.
            if not permit.cancelled():
                self.end(served=False)
            raise

    def end(self, *, served: bool) -> None:
        """Release a permit. `served`: the server answered."""
        self._served |= served
        while self._line:
            _, permit = self._line.popleft()
            if not permit.done():
                permit.set_result(None)
                return
        self._free += 1

    def _check(self) -> None:
        """Check the line every `max_wait_s`. One timer serves all callers, because a burst would spend its time on a
        timer for each.

        Callers that came before the last check have waited long enough. Later ones wait for the next check, which also
        helps an event loop that stood still: answers may have arrived that it has not read yet."""
        while not self._served and self._line and self._line[0][0] < self._checks:
            _, permit = self._line.popleft()
            if not permit.done():
                permit.set_exception(MaxConnectionsError("No connection available."))
        self._checks += 1
        self._served = False
        again = asyncio.get_running_loop().call_later
        self._next_check = again(self._max_wait_s, self._check) if self._line else None
