"""The gate of one host in this worker: permits for deliveries under way, a short queue of waiting runs, and a breaker.

A host may hold as many permits as stay free: one host alone half of all, two hosts a third each, and so on. All hosts
and programs together leave a quarter of the permits to the worker's own handlers (`limit_of`), so hosts that hang never
stop those handlers, however many hosts hang. A run that finds no free permit waits if it is likely to get one soon.
Otherwise it goes back to its queue and comes again later, without an attempt. Runs sent back return one after the
other, so a hundred thousand runs for a dead host cost little.
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

# The longest that a run waits for a permit. A host that has finished no delivery for so long has stalled.
LONGEST_WAIT_S = 0.25
# Runs for a stalled host go back for as long as it has been stalled, within these bounds.
SHORTEST_AWAY_S = 1.0
LONGEST_AWAY_S = 10.0
# At most so many runs per second and host come back, more if the host takes more. Each costs a worker about 100 us.
RETURNS_PER_S = 1000.0


class ReturnTimes:
    """Spreads the returns of runs that were sent back, so that they come one after the other."""

    def __init__(self) -> None:
        self._last = 0.0

    def next_delay(self, seconds: float, now: float, rate: float = RETURNS_PER_S) -> float:
        """Seconds from now: `seconds`, or longer if other runs return before this one."""
        self._last = max(now + seconds + random.random() * LONGEST_WAIT_S, self._last + 1 / rate)
        return self._last - now

    def reset(self) -> None:
        self._last = 0.0


class HostPermits:
    """The permits of a worker that deliveries to hosts and programs may hold."""

    def __init__(self, total: float, most_per_host: int, limit: float, monotonic: Callable[[], float]) -> None:
        """`limit` is for all hosts and programs together."""
        self.total = total
        self.most_per_host = most_per_host
        self.limit = limit
        self.held = 0
        # Runs that wait at any gate: each holds a permit of the worker too.
        self.waiting = 0
        # Runs that found all permits held, since the worker began.
        self.turned_away = 0
        self._monotonic = monotonic
        # When a permit was last taken or released, and whether a run was turned away since.
        self._changed_at = 0.0
        self._is_missed = False
        self._returns = ReturnTimes()

    @property
    def is_full(self) -> bool:
        return self.held >= self.limit

    def take(self) -> None:
        self.held += 1
        self._changed_at = self._monotonic()

    def release(self) -> None:
        self.held -= 1
        now = self._monotonic()
        if now - self._changed_at >= LONGEST_WAIT_S:
            self._returns.reset()
        self._changed_at = now
        self._is_missed = False

    def stalled_for_s(self) -> float:
        """For how many seconds all permits have been held while runs needed one; 0 if no run needed one."""
        return self._monotonic() - self._changed_at if self.is_full and self._is_missed else 0.0

    def check(self) -> None:
        """Raise TryLater if all permits are held."""
        if not self.is_full:
            return
        self.turned_away += 1
        self._is_missed = True
        now = self._monotonic()
        wait = min(max(now - self._changed_at, LONGEST_WAIT_S), LONGEST_AWAY_S)
        raise TryLater(
            f"requests, messages and programs hold all {self.limit:.0f} permits that this worker has for them",
            self._returns.next_delay(wait, now),
        )


def limit_of(permits: float, shared: bool) -> float:
    """How many permits hosts and programs may hold: all of them if the worker has no handlers of its own (`shared` is
    False), else three quarters, so that its own handlers always have some."""
    if not shared or permits == math.inf:
        return permits
    return max(1.0, permits - math.ceil(permits / 4))


class HostGate:
    """Belongs to one event loop, so it needs no lock."""

    def __init__(self, host: str, permits: HostPermits, breaker: Breaker, monotonic: Callable[[], float]) -> None:
        self.host = host
        self.breaker = breaker
        # Deliveries to this host that are under way.
        self.held = 0
        # When the fleet may send a probe, on the server's clock; 0 if the fleet has said nothing.
        self.until: Millis = 0
        # Whether this worker has a probe under way, or asks the fleet for permission to send one.
        self.probing = False
        self._permits = permits
        self._monotonic = monotonic
        self._waiters: deque[asyncio.Future[bool]] = deque()
        # When a delivery last ended, or when the first one began.
        self._progress_at = 0.0
        # Deliveries that ended in the current quarter of a second, when it began, and how many ended in the quarter
        # before; None if the host was idle then.
        self._ended, self._quarter_began = 0, 0.0
        self._ended_before: int | None = None
        self._returns = ReturnTimes()

    def is_healthy(self) -> bool:
        return self.breaker.state is BreakerState.CLOSED

    @property
    def is_idle(self) -> bool:
        """True if forgetting this gate would lose nothing."""
        return not (self.held or self._waiters or self.breaker.status().failures) and self.is_healthy()

    async def acquire(self) -> bool:
        """Take a permit, after a wait if need be. False: the breaker opened meanwhile. Raises TryLater."""
        self.check_free()
        if not self._waiters and self._has_free_permit():
            self.take()
            return True
        return await self._wait()

    def check_free(self) -> None:
        """Raise TryLater if no permit is free and too many runs wait already."""
        self._permits.check()
        self._admit_waiters()
        if not self._waiters and self._has_free_permit():
            return
        now = self._monotonic()
        if len(self._waiters) >= self._most_waiters(now):
            raise self.try_later(f"{self.host} takes no more at the moment", self._stalled_delay(now))

    def take(self) -> None:
        if not self.held:
            self._progress_at = self._quarter_began = self._monotonic()
            self._ended, self._ended_before = 0, None
        self.held += 1
        self._permits.take()

    def release(self, progress: bool = True) -> None:
        """`progress`: False if the host failed. A host that lets all deliveries time out at once is no faster."""
        self.held -= 1
        self._permits.release()
        if progress:
            self._note_progress(self._monotonic())
        self._admit_waiters()

    def _note_progress(self, now: float) -> None:
        self._roll_quarter(now)
        self._ended += 1
        if now - self._progress_at >= LONGEST_WAIT_S:
            # The host works again: runs sent back from now on need not queue behind those sent back before.
            self._returns.reset()
        self._progress_at = now

    def dismiss_waiters(self) -> None:
        """The breaker opened, so waiting is pointless."""
        while self._waiters:
            _wake(self._waiters.popleft(), False)

    def reset(self) -> None:
        """The host answers again."""
        self.until = 0
        self._returns.reset()

    def try_later(self, why: str, seconds: float) -> TryLater:
        """Sends a run back for `seconds`, or longer if other runs return before it."""
        rate = max(RETURNS_PER_S, 2 * (self._ended_before or 0) / LONGEST_WAIT_S)
        return TryLater(why, self._returns.next_delay(seconds, self._monotonic(), rate))

    def _has_free_permit(self) -> bool:
        permits = self._permits
        if permits.is_full:
            return False
        return not self.held or (self.held < permits.most_per_host and self.held < permits.total - permits.held)

    def _most_waiters(self, now: float) -> int:
        """As many deliveries as ended in the last quarter of a second will likely end in the next. While none has ended
        the host may hang: then half of the free permits, so that others have the rest."""
        self._roll_quarter(now)
        free = self._permits.limit - self._permits.held - (self._permits.waiting - len(self._waiters))
        if self._ended_before is None and not self._ended:
            return self.held if free == math.inf else min(self.held, math.ceil(free / 2))
        most = max(self._ended_before or 0, self._ended)
        return most if most <= free else int(free)

    def _roll_quarter(self, now: float) -> None:
        passed = now - self._quarter_began
        if passed >= LONGEST_WAIT_S:
            self._ended_before = self._ended if passed < 2 * LONGEST_WAIT_S else 0
            self._ended, self._quarter_began = 0, now

    def _stalled_delay(self, now: float) -> float:
        stalled = now - self._progress_at
        return LONGEST_WAIT_S if stalled < LONGEST_WAIT_S else min(max(stalled, SHORTEST_AWAY_S), LONGEST_AWAY_S)

    async def _wait(self) -> bool:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._permits.waiting += 1
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                return await waiter
        except TimeoutError:
            if _has_answer(waiter):
                return waiter.result()
            self._remove(waiter)
            why = f"{self.host} takes no more at the moment"
            raise self.try_later(why, self._stalled_delay(self._monotonic())) from None
        except BaseException:
            # The run was stopped, perhaps just as it got its permit.
            if not _has_answer(waiter):
                self._remove(waiter)
            elif waiter.result():
                self.release()
            raise
        finally:
            self._permits.waiting -= 1

    def _remove(self, waiter: asyncio.Future[bool]) -> None:
        # It may have left the queue just now.
        with contextlib.suppress(ValueError):
            self._waiters.remove(waiter)

    def _admit_waiters(self) -> None:
        while self._waiters and self._has_free_permit():
            if _wake(self._waiters.popleft(), True):
                self.take()


def _wake(waiter: asyncio.Future[bool], has_permit: bool) -> bool:
    """False if the run does not wait any more."""
    if waiter.done():
        return False
    waiter.set_result(has_permit)
    return True


def _has_answer(waiter: asyncio.Future[bool]) -> bool:
    return waiter.done() and not waiter.cancelled()
