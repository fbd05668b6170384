"""Finds blocked jobs that nothing would unblock, and registers them again with the jobs that they wait for.

A dependent may be on another node than its upstream job, which it waits for. A node that loses its last writes (a
failover with lag, a power loss with `appendfsync everysec`) may restore a dependent that was already unblocked, or lose
its name among the watchers of the upstream job; the other node does not notice. So the leader walks over the blocked
jobs of all queues. A blocked job is safe if an entry of the outbox asks for the end of its upstream job, or if it is
among the watchers of an upstream job that has not ended. For all others the leader writes the outbox entry again, as if
the job had just been put. Then the carrier makes them watch again, or unblocks them if the upstream job has ended.

Nothing here decides the fate of a job, so a wrong guess costs a few calls. The cost is bounded: one page at a time,
then a rest that grows with the number of commands it took. Partitions without blocked jobs cost one read.
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

# How often the leader asks partitions whether they have blocked jobs, and how many partitions in one round trip. With
# 1200 partitions it asks each once in twelve minutes.
EVERY_S = 10.0
PARTITIONS = 16
# The pace while pages are left to check. A million jobs that wait for one job each take about a quarter of an hour.
# That is well within the hour for which a success is kept if some job waited for it (lua/lib/outbox_entry.lua).
COMMANDS_PER_S = 5
# The pace after a server may have lost writes, until all blocked jobs were checked; and how often that may begin.
HURRIED_PER_S = 50
HURRY_EVERY_S = 60.0
# How many blocked jobs the first page has. Later pages have about as many as wait for UPSTREAMS jobs together, which is
# a millisecond of the server. HSCAN may return a few more, and more than LARGEST_BATCH would need another call.
FIRST_PAGE, SMALLEST_PAGE = 100, 10
UPSTREAMS = 900

QueuePartition = tuple[OpenQueue, int]


class StuckDependents:
    """Each pass checks one page of blocked jobs, or finds partitions that have blocked jobs."""

    name = "unheard"

    def __init__(
        self, store: Store, clock: Clock, note_filled: Callable[[OpenQueue, int], None], *, leading: Callable[[], bool]
    ) -> None:
        """`note_filled` is called for each outbox that gets entries."""
        self.wake = asyncio.Event()
        # How many jobs got their outbox entries again so far.
        self.renewed = 0
        self._store = store
        self._outbox = Outbox(store)
        self._waits = BlockedJobs(store)
        self._clock = clock
        self._note_filled = note_filled
        self._leading = leading
        self._queues: dict[str, OpenQueue] = {}
        # The partitions that are still to be asked in this round, and those that have blocked jobs.
        self._unchecked: list[QueuePartition] = []
        self._with_blocked: list[QueuePartition] = []
        # Where the next page of the last partition begins, and how many jobs it should have.
        self._cursor = 0
        self._count = FIRST_PAGE
        self._hurried = self._starts_over = False
        self._next_hurry = 0.0

    def hurry(self) -> None:
        """Check all blocked jobs soon, because a server may have lost writes. Starts at most once a minute."""
        if self._leading() and self._clock.monotonic() >= self._next_hurry:
            self._next_hurry = self._clock.monotonic() + HURRY_EVERY_S
            self._hurried = self._starts_over = True
            self.wake.set()

    async def step(self) -> float:
        if self._starts_over or not self._leading():
            self._unchecked, self._with_blocked, self._cursor, self._starts_over = [], [], 0, False
        if not self._leading():
            self._hurried = False
            return EVERY_S
        asked = 0
        if not self._with_blocked:
            asked, self._with_blocked = await self._find_blocked()
        before = self._waits.calls
        if self._with_blocked:
            await self._check_page(*self._with_blocked[-1])
            if not self._cursor:
                self._with_blocked.pop()
        return self._rest(asked + self._waits.calls - before)

    def _rest(self, commands: int) -> float:
        """The seconds to rest after a pass that sent so many commands."""
        if not (self._with_blocked or self._unchecked):
            self._hurried = False
        if self._hurried:
            return commands / HURRIED_PER_S
        return commands / COMMANDS_PER_S if self._with_blocked else EVERY_S

    async def _find_blocked(self) -> tuple[int, list[QueuePartition]]:
        """Return how many partitions were asked, and which have blocked jobs."""
        if not self._unchecked:
            # All queues as they are now, because those that no worker serves have blocked jobs too.
            self._queues = {queue.name: queue for queue in await self._store.queues.open_all()}
            self._unchecked = [(queue, p) for queue in self._queues.values() for p in range(queue.partitions)]
        some, self._unchecked = self._unchecked[:PARTITIONS], self._unchecked[PARTITIONS:]
        return len(some), await self._outbox.non_empty(some, "needs")

    async def _check_page(self, queue: OpenQueue, partition: int) -> None:
        try:
            self._cursor, waits = await self._waits.page(queue, partition, self._cursor, self._count)
            upstreams = sum(len(wait.upstreams) for wait in waits.values())
            self._count = max(SMALLEST_PAGE, UPSTREAMS * len(waits) // upstreams) if upstreams else FIRST_PAGE
            stuck = await self._waits.unheard(queue, partition, waits, self._queues)
            if stuck and not await self._is_outdated(queue, stuck):
                await self._renew(queue, stuck)
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition, or one that is being repartitioned, must not stop the check of the others.
            log.warning("cannot check blocked jobs", queue=queue.name, partition=partition, error=str(error))
            self._cursor = 0

    async def _is_outdated(self, queue: OpenQueue, stuck: list[UnheardEnd]) -> bool:
        """True if one of these queues was repartitioned since this round began. Then watchers are in other partitions,
        and the next round looks there. Raises QueueRepartitioning."""
        names = {queue.name, *(each.upstream.queue for each in stuck)} & self._queues.keys()
        return any([await self._store.queues.refresh_if_repartitioned(self._queues[name]) for name in names])

    async def _renew(self, queue: OpenQueue, stuck: list[UnheardEnd]) -> None:
        members = list(dict.fromkeys(each.member for each in stuck))
        renewed = await self._outbox.renew(queue, members)
        for partition in {queue.partition_of_key(member) for member in members}:
            self._note_filled(queue, partition)
        if renewed:
            self.renewed += renewed
            log.warning(
                "asked anew for what blocked jobs wait for, because nothing would have told them of its end: "
                "a server may have lost its last writes",
                queue=queue.name,
                jobs=renewed,
                example=members[0].decode(errors="replace"),
                after=stuck[0].upstream.id,
            )
