"""A bound on calls under way, and the line of those that wait for one to end."""

from __future__ import annotations

import asyncio
from collections import deque

from redis.exceptions import MaxConnectionsError


class CallLimit:
    """At most so many at once. The others wait in line and are served in the order in which they came.

    Nobody gives up for being far back: a line that moves is waited in for as long as it takes. Only if nobody was
    served for `max_wait_s` do those that waited as long, or up to twice as long, get MaxConnectionsError.
    """

    def __init__(self, most: int, max_wait_s: float) -> None:
        self._free = most
        self._max_wait_s = max_wait_s
        # A turn that ends goes to the first of them, so that a newcomer cannot take it.
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._looks = 0
        # Since the last look.
        self._served = False
        self._next_look: asyncio.TimerHandle | None = None

    def take_free(self) -> bool:
        """A turn at once, if there is one."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def take(self) -> None:
        if self.take_free():
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append((self._looks, turn))
        if self._next_look is None:
            self._next_look = loop.call_later(self._max_wait_s, self._look)
        try:
            await turn
        except asyncio.CancelledError:
            # Its turn may have come in the same moment: pass it on.
            if not turn.cancelled():
                self.end(served=False)
            raise

    def end(self, *, served: bool) -> None:
        """Give a turn back. `served`: the server answered."""
        self._served |= served
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _look(self) -> None:
        """Every `max_wait_s`: one timer for the whole line, because a burst would be busy with one for each.

        Those that came before the last look have waited long enough. Those that came later are left for the next one,
        which is also for an event loop that stood still: answers may be there that it has not read yet."""
        while not self._served and self._line and self._line[0][0] < self._looks:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_exception(MaxConnectionsError("No connection available."))
        self._looks += 1
        self._served = False
        again = asyncio.get_running_loop().call_later
        self._next_look = again(self._max_wait_s, self._look) if self._line else None
