"""Removes expired outcomes, also from queues in which no runs end any more.

Finishing a run removes expired outcomes from its own partition. In a quiet queue no run finishes, so the leader checks
the partitions of all queues in turn, a few at a time. It writes nothing to partitions without expired outcomes.
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

# How often the leader checks, and how many partitions: two reads for each, in one round trip. With 1200 partitions that
# is six reads a second, and it checks each partition every six minutes.
EVERY_S = 10.0
PARTITIONS = 32
# How long one pass may remove outcomes before other tasks get a turn.
BUDGET_S = 1.0


class OutcomeExpiry:
    """Each pass checks the next few partitions, and removes their expired outcomes."""

    name = "forget"

    def __init__(self, store: Store, clock: Clock, *, leading: Callable[[], bool]) -> None:
        self.wake = asyncio.Event()
        self.forgotten = 0
        self._store = store
        self._outcomes = ExpiredOutcomes(store)
        self._clock = clock
        self._leading = leading
        self._may_log = LogThrottle()
        # The partitions that are still to be checked in this round, and those that have expired outcomes.
        self._unchecked: list[Place] = []
        self._expired: list[Place] = []

    async def step(self) -> float:
        if not self._leading():
            self._unchecked, self._expired = [], []
            return EVERY_S
        if not self._expired:
            self._expired = await self._check_some()
        ends = self._clock.monotonic() + BUDGET_S
        while self._expired and self._leading() and self._clock.monotonic() < ends:
            if not await self._forget(self._expired[-1]):
                self._expired.pop()
        return 0.0 if self._expired else EVERY_S

    async def _check_some(self) -> list[Place]:
        if not self._unchecked:
            # All queues, because those that no worker serves have outcomes too.
            queues = await self._store.queues.open_all()
            self._unchecked = [(queue, p) for queue in queues for p in range(queue.partitions)]
        some, self._unchecked = self._unchecked[:PARTITIONS], self._unchecked[PARTITIONS:]
        return await self._outcomes.past(some, int(self._clock.server_ms())) if some else []

    async def _forget(self, place: Place) -> bool:
        """True if the partition may have more expired outcomes."""
        try:
            count = await self._outcomes.forget(*place)
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition must not stop the check of the others.
            if self._may_log(place[0].name, place[1]):
                log.warning("cannot forget outcomes", queue=place[0].name, partition=place[1], error=str(error))
            return False
        self.forgotten += count
        return count > 0
