"""Two queues and the processes that use them, some of which die on the way."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.records import record
from tests.support.servers import Server
from tocsin.app.dependencies import DependentWriter, UpstreamRefs
from tocsin.app.lookup import Lookup
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.dependencies import Outbox, Upstream
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.settle import bury_or_park_item, finish_item
from tocsin.testing import ManualClock
from tocsin.upkeep.outbox_carrier import OutboxCarrier

KEPT = 600


class Overtaken(Store):
    """Before one of its changes another process does something."""

    left = 10**9
    meanwhile: Callable[[], Awaitable[None]]

    async def change(self, *args: Any) -> list[Any]:
        if self.left == 0:
            await self.meanwhile()
        self.left -= 1
        return await super().change(*args)


class Repeating(Store):
    """Each change is made twice, as if another process did the same at the same time."""

    async def change(self, *args: Any) -> list[Any]:
        first = await super().change(*args)
        await super().change(*args)
        return first


class TwoQueues:
    """Two queues, of which one has partitions; what a program does, and what workers do."""

    def __init__(self, store: Store, queues: dict[str, OpenQueue]) -> None:
        self.store = store
        self.queues = queues
        self.jobs = Jobs(store)
        self.rung: list[tuple[str, int]] = []
        self.carrier = OutboxCarrier(
            store, store.clock, lambda queue, partition: self.rung.append((queue.name, partition))
        )
        self.runs = Runs(store, f"worker-{secrets.token_hex(3)}.1")

    async def put(
        self, queue: str, member: str, *, after: tuple[tuple[str, str], ...] = (), anyway: bool = False
    ) -> None:
        """Those that wait for others are remembered, so that a test sees their end. The others are not."""
        put = PutItem(member, record(keep=KEPT if after else 0), 0, True)
        where = self.queues[queue]
        if not after:
            await self.jobs.put(where, put)
            return
        dependents = DependentWriter(self.store, Lookup(self.store, self.jobs), self.jobs, lambda: self.carrier)
        await dependents.put(where, put, UpstreamRefs([Upstream(*each) for each in after], anyway))

    async def put_many(self, queue: str, members: list[str], *, after: tuple[str, str]) -> None:
        """As `put`, all of which wait for the same."""
        dependents = DependentWriter(self.store, Lookup(self.store, self.jobs), self.jobs, lambda: self.carrier)
        send, most = await dependents.bulk(self.queues[queue], UpstreamRefs([Upstream(*after)], False))
        puts = [PutItem(member, record(), 0, True) for member in members]
        for first in range(0, len(puts), most):
            await send(puts[first : first + most])
        await self.carry_everything()

    async def end(self, queue: str, member: str, outcome: int = SUCCEEDED, *, bury: bool = False) -> None:
        """Claim it, which must be due, and end it; nobody carries yet."""
        where = self.queues[queue]
        partition = where.partition_of(member)
        [answer] = await self.runs.claim([ClaimRequest(where, partition, 1, [member])], 1e15)
        [claim] = answer.claims  # type: ignore[union-attr]
        item = bury_or_park_item(claim, b"\x91\xa3bad") if bury else finish_item(claim, 0, outcome)
        await self.store.call(self.runs.settle("bury" if bury else "finish", where, partition, [item]))

    async def stage(self, queue: str, member: str) -> str | None:
        """Where it stands, or how it ended."""
        job = await self.jobs.get(self.queues[queue], member)
        outcome = await self.jobs.outcome(self.queues[queue], member)
        assert (job is None) or (outcome is None)
        return job.stage.value if job else outcome.name if outcome else None

    async def carry_everything(self) -> None:
        """As a worker does that was told of nothing."""
        places = [(queue, p) for queue in self.queues.values() for p in range(queue.partitions)]
        while filled := await Outbox(self.store).non_empty(places):
            for place in filled:
                self.carrier.note_filled(*place)
            await self.carrier.carry_some()

    async def left(self) -> dict[str, int]:
        keys = [keys for queue in self.queues.values() for keys in queue.keys]
        bases = ("blocked", "needs", "watchers", "outbox")
        return {base: sum([await self.store.client.exists(each[base]) for each in keys]) for base in bases}


async def dump(store: Store) -> dict[bytes, bytes]:
    """All that the namespace has on the server."""
    return {key: await store.client.dump(key) async for key in store.client.scan_iter(match=f"{store.keys.prefix}*")}


MakeTwoQueues = Callable[..., Awaitable[TwoQueues]]


@pytest.fixture
async def make_yard(valkey: Server, clock: ManualClock) -> AsyncIterator[MakeTwoQueues]:
    """Processes of one namespace."""
    prefix, opened = f"t{secrets.token_hex(4)}:", []

    async def make(kind: type[Store] = Store) -> TwoQueues:
        store = kind(valkey.url, prefix=prefix, clock=clock)
        await store.open()
        opened.append(store)
        queues = [await store.open_queue(Queue(name, partitions=n)) for name, n in (("one", 1), ("four", 4))]
        return TwoQueues(store, {queue.name: queue for queue in queues})

    yield make
    for store in opened:
        await store.close()
