"""Unheard ends: blocked jobs that nothing would tell of the end that they wait for.

A dependent may live on another node than what it waits for. A node that loses its last writes (a failover with lag, a
power loss with `appendfsync everysec`) may bring back a dependent that was told, or lose its name among the watchers,
and neither node knows. So the leader walks over the blocked jobs of all queues and looks whether each will be told: an
entry of the outbox asks for it, or it is among the watchers of a job whose end is to come. For the others it asks anew,
as if they had just been put; then the carrier lets them watch again, or tells them how it ended.

Nothing here decides what becomes of a job, so a wrong guess costs a few calls. The cost is bounded: one page at a time,
then a rest that grows with the number of commands it took. Where nothing is blocked, partitions are only asked whether
they have blocked jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreError, StoreUnavailable
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import Outbox
from tocsin.store.views.blocked_jobs import BlockedJobs, UnheardEnd
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.unheard")

# How often the leader asks some partitions whether they have blocked jobs, and how many, in one round trip. So 1200
# partitions are asked once in twelve minutes.
EVERY_S = 10.0
PLACES = 16
# While there are pages to look at. A million jobs that wait for one each take about a quarter of an hour, well within
# the hour for which a success is remembered that somebody waited for (lua/lib/endings.lua).
COMMANDS_PER_S = 5
# When a server may have lost something, until all blocked jobs were looked at; and how often that may be.
HURRIED_PER_S = 50
HURRY_EVERY_S = 60.0
# Blocked jobs of the first page. Later ones have about as many as wait for UPSTREAMS others: that is a millisecond of
# the server. HSCAN brings a few more than it is asked for, and above LARGEST_BATCH another call would be needed.
FIRST_PAGE, SMALLEST_PAGE = 100, 10
UPSTREAMS = 900

Place = tuple[OpenQueue, int]


class StuckDependents:
    """One pass: a page of blocked jobs, or a look at which partitions have some."""

    name = "unheard"

    def __init__(
        self, store: Store, clock: Clock, hear: Callable[[OpenQueue, int], None], *, leading: Callable[[], bool]
    ) -> None:
        """`hear`: there is something to carry from there."""
        self.wake = asyncio.Event()
        # Jobs for which it asked anew.
        self.renewed = 0
        self._store = store
        self._outbox = Outbox(store)
        self._waits = BlockedJobs(store)
        self._clock = clock
        self._hear = hear
        self._leading = leading
        self._queues: dict[str, OpenQueue] = {}
        # Of this round, partitions that are still to be asked, and those that have blocked jobs.
        self._unseen: list[Place] = []
        self._filled: list[Place] = []
        # Where the next page of the last of these begins, and how many jobs it should have.
        self._cursor = 0
        self._count = FIRST_PAGE
        self._hurried = self._begins_anew = False
        self._next_hurry = 0.0

    def hurry(self) -> None:
        """A server may have lost something: look everywhere soon, once a minute at most."""
        if self._leading() and self._clock.monotonic() >= self._next_hurry:
            self._next_hurry = self._clock.monotonic() + HURRY_EVERY_S
            self._hurried = self._begins_anew = True
            self.wake.set()

    async def step(self) -> float:
        if self._begins_anew or not self._leading():
            self._unseen, self._filled, self._cursor, self._begins_anew = [], [], 0, False
        if not self._leading():
            self._hurried = False
            return EVERY_S
        asked = 0
        if not self._filled:
            asked, self._filled = await self._find_places()
        before = self._waits.calls
        if self._filled:
            await self._look_at_page(*self._filled[-1])
            if not self._cursor:
                self._filled.pop()
        return self._rest(asked + self._waits.calls - before)

    def _rest(self, commands: int) -> float:
        """Seconds, after a pass that sent so many."""
        if not (self._filled or self._unseen):
            self._hurried = False
        if self._hurried:
            return commands / HURRIED_PER_S
        return commands / COMMANDS_PER_S if self._filled else EVERY_S

    async def _find_places(self) -> tuple[int, list[Place]]:
        """How many were asked, and which have blocked jobs."""
        if not self._unseen:
            # Of all queues, as they stand now: those that no worker serves have blocked jobs too.
            self._queues = {queue.name: queue for queue in await self._store.queues.open_all()}
            self._unseen = [(queue, p) for queue in self._queues.values() for p in range(queue.partitions)]
        some, self._unseen = self._unseen[:PLACES], self._unseen[PLACES:]
        return len(some), await self._outbox.non_empty(some, "needs")

    async def _look_at_page(self, queue: OpenQueue, partition: int) -> None:
        try:
            self._cursor, waits = await self._waits.page(queue, partition, self._cursor, self._count)
            upstreams = sum(len(wait.upstreams) for wait in waits.values())
            self._count = max(SMALLEST_PAGE, UPSTREAMS * len(waits) // upstreams) if upstreams else FIRST_PAGE
            unheard = await self._waits.unheard(queue, partition, waits, self._queues)
            if unheard and not await self._has_changed(queue, unheard):
                await self._ask_anew(queue, unheard)
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being looked at. Also while a queue is repartitioned.
            log.warning("cannot look at blocked jobs", queue=queue.name, partition=partition, error=str(error))
            self._cursor = 0

    async def _has_changed(self, queue: OpenQueue, unheard: list[UnheardEnd]) -> bool:
        """Whether a queue was repartitioned since this round began: then watchers are elsewhere, and the next round
        looks there. Raises QueueMoving."""
        names = {queue.name, *(each.upstream.queue for each in unheard)} & self._queues.keys()
        return any([await self._store.queues.refresh_if_repartitioned(self._queues[name]) for name in names])

    async def _ask_anew(self, queue: OpenQueue, unheard: list[UnheardEnd]) -> None:
        members = list(dict.fromkeys(each.member for each in unheard))
        renewed = await self._outbox.renew(queue, members)
        for partition in {queue.partition_of_key(member) for member in members}:
            self._hear(queue, partition)
        if renewed:
            self.renewed += renewed
            log.warning(
                "asked anew for what blocked jobs wait for, because nothing would have told them of its end: "
                "a server may have lost its last writes",
                queue=queue.name,
                jobs=renewed,
                example=members[0].decode(errors="replace"),
                after=unheard[0].upstream.id,
            )
