"""Forgetting: outcomes go when their time is over, also where no run ends any more.

A finish drops what is over in its own partition. In a queue that has become quiet nobody would, so the leader looks at
the partitions of all queues in turn, a few at a time. Where there is nothing to forget it writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreError, StoreUnavailable
from tocsin.store.store import Store
from tocsin.store.transitions.expired_outcomes import ExpiredOutcomes, Place
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.forget")

# How often the leader looks, and at how many partitions: two reads for each, in one round trip. So 1200 partitions cost
# it six reads a second, and each is looked at every six minutes.
EVERY_S = 10.0
PLACES = 32
# How long one pass may forget before others get a turn.
BUDGET_S = 1.0


class OutcomeExpiry:
    """One pass: a look at the next few partitions, and what is over there goes."""

    name = "forget"

    def __init__(self, store: Store, clock: Clock, *, leading: Callable[[], bool]) -> None:
        self.wake = asyncio.Event()
        self.forgotten = 0
        self._store = store
        self._outcomes = ExpiredOutcomes(store)
        self._clock = clock
        self._leading = leading
        # Of this round, those that are still to be looked at, and those that have something to forget.
        self._seldom = LogThrottle()
        self._unseen: list[Place] = []
        self._past: list[Place] = []

    async def step(self) -> float:
        if not self._leading():
            self._unseen, self._past = [], []
            return EVERY_S
        if not self._past:
            self._past = await self._look()
        ends = self._clock.monotonic() + BUDGET_S
        while self._past and self._leading() and self._clock.monotonic() < ends:
            if not await self._forget(self._past[-1]):
                self._past.pop()
        return 0.0 if self._past else EVERY_S

    async def _look(self) -> list[Place]:
        if not self._unseen:
            # Of all queues: those that no worker serves any more have outcomes too.
            queues = await self._store.queues.open_all()
            self._unseen = [(queue, p) for queue in queues for p in range(queue.partitions)]
        some, self._unseen = self._unseen[:PLACES], self._unseen[PLACES:]
        return await self._outcomes.past(some, int(self._clock.server_ms())) if some else []

    async def _forget(self, place: Place) -> bool:
        """Whether there may be more."""
        try:
            count = await self._outcomes.forget(*place)
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being looked at.
            if self._seldom(place[0].name, place[1]):
                log.warning("cannot forget outcomes", queue=place[0].name, partition=place[1], error=str(error))
            return False
        self.forgotten += count
        return count > 0
