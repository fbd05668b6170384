"""One host as this worker sees it: who is inside, who waits in line, and its breaker.

A host gets as many permits as there are left, and no more: alone half of them, two hosts a third each, and so on. All
hosts and programs together leave a quarter of the permits to a worker's own handlers (`limit_of`), so what hangs
outside, however many hosts it is, never stops those. Who finds no room waits in line if it is likely to be let in
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

from tocsin.engine.handlers import TryLater
from tocsin.model.durations import Millis
from tocsin.resilience.breaker import Breaker, BreakerState

# How long a run waits in line at most, and after how long without anybody leaving a host stands still.
LINE_S = 0.25
# How long runs are sent away while a host stands still: as long as it does, within these.
SHORTEST_AWAY_S = 1.0
LONGEST_AWAY_S = 10.0
# So many of them come back in a second, of each host; more if it lets more in. Each costs some 100 us of a worker.
RETURNS = 1000.0


class Returns:
    """When those who are sent away come back: one after the other."""

    def __init__(self) -> None:
        self._last = 0.0

    def after(self, seconds: float, now: float, rate: float = RETURNS) -> float:
        """Seconds from now: as many as said, or more if others have been sent away before."""
        self._last = max(now + seconds + random.random() * LINE_S, self._last + 1 / rate)
        return self._last - now

    def begin_anew(self) -> None:
        self._last = 0.0


class HostPermits:
    """The permits of a worker, as far as they are held by what goes outside."""

    def __init__(self, permits: float, most: int, limit: float, monotonic: Callable[[], float]) -> None:
        """`most`: for one host; `limit`: for all of them and for programs together."""
        self.permits = permits
        self.most = most
        self.limit = limit
        self.inside = 0
        # In all lines together: each holds a permit too.
        self.waiting = 0
        # Runs that found it full, since the beginning.
        self.turned_away = 0
        self._monotonic = monotonic
        # The last time that somebody came or left, and whether it has turned anybody away since.
        self._moved = 0.0
        self._is_missed = False
        self._returns = Returns()

    @property
    def is_full(self) -> bool:
        return self.inside >= self.limit

    def take(self) -> None:
        self.inside += 1
        self._moved = self._monotonic()

    def leave(self) -> None:
        self.inside -= 1
        now = self._monotonic()
        if now - self._moved >= LINE_S:
            self._returns.begin_anew()
        self._moved = now
        self._is_missed = False

    def stands_still_for(self) -> float:
        """Seconds for which nobody could come in because nobody left; 0 if nobody wanted to."""
        return self._monotonic() - self._moved if self.is_full and self._is_missed else 0.0

    def check(self) -> None:
        """Raise NotYet if it is full."""
        if not self.is_full:
            return
        self.turned_away += 1
        self._is_missed = True
        now = self._monotonic()
        wait = min(max(now - self._moved, LINE_S), LONGEST_AWAY_S)
        raise TryLater(
            f"requests, messages and programs hold all {self.limit:.0f} permits that this worker has for them",
            self._returns.after(wait, now),
        )


def limit_of(permits: float, shared: bool) -> float:
    """How many permits what goes outside may hold: all of them if the worker has nothing else to do, else three
    quarters, so that its own handlers always have some."""
    if not shared or permits == math.inf:
        return permits
    return max(1.0, permits - math.ceil(permits / 4))


class HostGate:
    """For one event loop; it has no lock."""

    def __init__(self, host: str, room: HostPermits, breaker: Breaker, monotonic: Callable[[], float]) -> None:
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
        self._returns = Returns()

    def is_well(self) -> bool:
        return self.breaker.state is BreakerState.CLOSED

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
        self._room.check()
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
        self._room.take()

    def leave(self, moves: bool = True) -> None:
        """`moves`: not if the host has failed: one that lets all time out at once is no quicker for that."""
        self.inside -= 1
        self._room.leave()
        if moves:
            self._move(self._monotonic())
        self._let_in()

    def _move(self, now: float) -> None:
        self._count(now)
        self._left += 1
        if now - self._moved >= LINE_S:
            # It moves again: who is sent away from now on need not come after those of before.
            self._returns.begin_anew()
        self._moved = now

    def shut(self) -> None:
        """The breaker opened: nobody need wait in line."""
        while self._line:
            _answer(self._line.popleft(), False)

    def opened(self) -> None:
        self.until = 0
        self._returns.begin_anew()

    def away(self, why: str, seconds: float) -> TryLater:
        """Come back after so long, or later if others have been sent away before."""
        rate = max(RETURNS, 2 * (self._left_before or 0) / LINE_S)
        return TryLater(why, self._returns.after(seconds, self._monotonic(), rate))

    def _has_room(self) -> bool:
        room = self._room
        if room.is_full:
            return False
        return not self.inside or (self.inside < room.most and self.inside < room.permits - room.inside)

    def _may_wait(self, now: float) -> int:
        """As many as left in a quarter of a second will be let in in the next. While nothing is known the host may
        hang: then half of the permits that nobody holds, so that others have the rest."""
        self._count(now)
        free = self._room.limit - self._room.inside - (self._room.waiting - len(self._line))
        if self._left_before is None and not self._left:
            return self.inside if free == math.inf else min(self.inside, math.ceil(free / 2))
        may = max(self._left_before or 0, self._left)
        return may if may <= free else int(free)

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
