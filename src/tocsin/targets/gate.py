"""One host as this worker sees it: who is inside, who waits in line, and its breaker.

A host gets as many permits as there are left, and no more: alone half of them, two hosts a third each, and so on. So
hosts that hang, however many they are, never hold all. Who finds no room waits in line if it is likely to be let in
before long, and is sent away otherwise: a run goes back and comes again, without an attempt. Those who were sent away
come back one after the other, so that a hundred thousand runs for a host that is dead cost little.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable

from tocsin.engine.catalog import NotYet
from tocsin.model.durations import Millis
from tocsin.resilience.breaker import Breaker, State

# How long a run waits in line at most, and after how long without anybody leaving a host stands still.
LINE_S = 0.25
# How long runs are sent away while a host stands still: as long as it does, within these.
SHORTEST_AWAY_S = 1.0
LONGEST_AWAY_S = 10.0
# So many of them come back in a second, of each host; more if it lets more in. Each costs some 100 us of a worker.
RETURNS = 1000.0


class Room:
    """The permits of a worker, as far as they are inside of hosts."""

    def __init__(self, permits: float, most: int) -> None:
        """`most`: for one host."""
        self.permits = permits
        self.most = most
        self.inside = 0
        # In all lines together: each holds a permit too.
        self.waiting = 0


class Gate:
    """For one event loop; it has no lock."""

    def __init__(self, host: str, room: Room, breaker: Breaker, monotonic: Callable[[], float]) -> None:
        self.host = host
        self.breaker = breaker
        self.inside = 0
        # When the fleet may send a probe, on the server's clock; 0: nobody has said.
        self.until: Millis = 0
        # Whether this worker has one under way, or asks for it.
        self.probing = False
        self._room = room
        self._monotonic = monotonic
        self._line: deque[asyncio.Future[bool]] = deque()
        # The last time that somebody left, or that the first came.
        self._moved = 0.0
        # How many left in this quarter of a second, since when, and in the one before; None: it was at rest then.
        self._left, self._quarter = 0, 0.0
        self._left_before: int | None = None
        # When the last of those who were sent away comes back.
        self._last_return = 0.0

    def is_well(self) -> bool:
        return self.breaker.state is State.CLOSED

    @property
    def at_rest(self) -> bool:
        """Nothing would be lost with it."""
        return not (self.inside or self._line or self.breaker.status().failures) and self.is_well()

    async def slot(self) -> bool:
        """Get in, if need be after a while in line. False: the breaker opened meanwhile. Raises NotYet."""
        self.check_line()
        if not self._line and self._has_room():
            self.take()
            return True
        return await self._wait()

    def check_line(self) -> None:
        """Raise NotYet if there is neither room nor a place in line."""
        self._let_in()
        if not self._line and self._has_room():
            return
        now = self._monotonic()
        if len(self._line) >= self._may_wait(now):
            raise self.away(f"{self.host} takes no more at the moment", self._rest(now))

    def take(self) -> None:
        if not self.inside:
            self._moved = self._quarter = self._monotonic()
            self._left, self._left_before = 0, None
        self.inside += 1
        self._room.inside += 1

    def leave(self, moves: bool = True) -> None:
        """`moves`: not if the host has failed: one that lets all time out at once is no quicker for that."""
        self.inside -= 1
        self._room.inside -= 1
        if moves:
            self._move(self._monotonic())
        self._let_in()

    def _move(self, now: float) -> None:
        self._count(now)
        self._left += 1
        if now - self._moved >= LINE_S:
            # It moves again: who is sent away from now on need not come after those of before.
            self._last_return = 0.0
        self._moved = now

    def shut(self) -> None:
        """The breaker opened: nobody need wait in line."""
        while self._line:
            _answer(self._line.popleft(), False)

    def opened(self) -> None:
        self.until = 0
        self._last_return = 0.0

    def away(self, why: str, seconds: float) -> NotYet:
        """Come back after so long, or later if others have been sent away before."""
        now = self._monotonic()
        first = now + seconds + random.random() * LINE_S
        returns = max(RETURNS, 2 * (self._left_before or 0) / LINE_S)
        self._last_return = max(first, self._last_return + 1 / returns)
        return NotYet(why, self._last_return - now)

    def _has_room(self) -> bool:
        room = self._room
        # One always: its permit is held already.
        return not self.inside or (self.inside < room.most and self.inside < room.permits - room.inside)

    def _may_wait(self, now: float) -> int:
        """As many as left in a quarter of a second will be let in in the next. While nothing is known the host may
        hang: then half of the permits that nobody holds, so that others have the rest."""
        self._count(now)
        if self._left_before is None and not self._left:
            free = self._room.permits - self._room.inside - (self._room.waiting - len(self._line))
            return self.inside if free == math.inf else min(self.inside, math.ceil(free / 2))
        return max(self._left_before or 0, self._left)

    def _count(self, now: float) -> None:
        passed = now - self._quarter
        if passed >= LINE_S:
            self._left_before = self._left if passed < 2 * LINE_S else 0
            self._left, self._quarter = 0, now

    def _rest(self, now: float) -> float:
        stood = now - self._moved
        return LINE_S if stood < LINE_S else min(max(stood, SHORTEST_AWAY_S), LONGEST_AWAY_S)

    async def _wait(self) -> bool:
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._room.waiting += 1
        try:
            async with asyncio.timeout(LINE_S):
                return await place
        except TimeoutError:
            if _answered(place):
                return place.result()
            self._give_up(place)
            raise self.away(f"{self.host} takes no more at the moment", self._rest(self._monotonic())) from None
        except BaseException:
            # The run was stopped, perhaps in the moment in which it was let in.
            if not _answered(place):
                self._give_up(place)
            elif place.result():
                self.leave()
            raise
        finally:
            self._room.waiting -= 1

    def _give_up(self, place: asyncio.Future[bool]) -> None:
        # It may have been called just now.
        with contextlib.suppress(ValueError):
            self._line.remove(place)

    def _let_in(self) -> None:
        while self._line and self._has_room():
            if _answer(self._line.popleft(), True):
                self.take()


def _answer(place: asyncio.Future[bool], let_in: bool) -> bool:
    """Whether somebody still waits there."""
    if place.done():
        return False
    place.set_result(let_in)
    return True


def _answered(place: asyncio.Future[bool]) -> bool:
    return place.done() and not place.cancelled()
