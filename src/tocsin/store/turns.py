"""A bound on calls under way, and the line of those that wait for one to end."""

from __future__ import annotations

import asyncio
from collections import deque

from redis.exceptions import MaxConnectionsError


class Turns:
    """At most so many at once. The others wait in line and are served in the order in which they came.

    Nobody gives up for being far back: a line that moves is waited in for as long as it takes. Only if nobody was
    served for `max_wait_s` does a wait end with MaxConnectionsError.
    """

    def __init__(self, most: int, max_wait_s: float) -> None:
        self._free = most
        self._max_wait_s = max_wait_s
        # Each gets its turn from one that ends, so that a newcomer cannot take it.
        self._line: deque[asyncio.Future[None]] = deque()
        self._served = 0

    def take_free(self) -> bool:
        """A turn at once, if there is one."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        if not self.take_free():
            await self._wait()

    def end(self, *, served: bool) -> None:
        """Give a turn back. `served`: the server answered."""
        if served:
            self._served += 1
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            while not turn.done():
                before = self._served
                await asyncio.wait([turn], timeout=self._max_wait_s)
                if not turn.done() and self._served == before:
                    raise MaxConnectionsError("No connection available.")
        except BaseException:
            # Cancelled in the moment in which its turn came: pass it on.
            if not turn.cancel():
                self.end(served=False)
            raise
