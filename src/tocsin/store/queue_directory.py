"""The directory of queues: which exist; opening one; opening it again when its partitions have changed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.model.clock import monotonic
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreError,
    StoreUnavailable,
    WrongKeyType,
)
from tocsin.model.queue import AGENTS_QUEUE, Queue
from tocsin.store.calls import Calls
from tocsin.store.numbers import whole
from tocsin.store.open_queue import OpenQueue
from tocsin.store.queue_entry import QueueEntry, decode_entry, encode_entry
from tocsin.store.scripts.script import script

# How long a program's call waits for a queue that is being repartitioned, and the pause between two tries.
REPARTITION_PATIENCE_S = 10.0
REPARTITION_PAUSE_S = 0.2


class QueueDirectory:
    """The queues of one namespace."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._register: str = calls.keys.fleet()["queues"]

    async def open(self, queue: Queue) -> OpenQueue:
        """Register the queue, or compare it with what Redis holds. Raises InvalidConfig if they differ."""
        known = self._calls.open_queues.get(queue.name)
        if known is None:
            self._refuse_agents_without_hash_tag(queue.name)
            declared = ("open", queue.name, queue.order, queue.partitions)
            known = await self._calls.shared.ask(declared, lambda: self._open_patiently(queue))
        return known

    async def find(self, name: str) -> OpenQueue | None:
        """A registered queue, with the settings it has in Redis; None if nobody registered it."""
        if name not in self._calls.open_queues:
            raw = await self._calls.run_repeatable(lambda c: c.hget(self._register, name))
            if raw is None:
                return None
            await self.open(decode_entry(raw).queue(name))
        return self._calls.open_queues[name]

    def opened(self) -> list[OpenQueue]:
        return list(self._calls.open_queues.values())

    def forget(self, name: str) -> None:
        """After the queue was deleted. The next call that names it looks at the register."""
        self._calls.open_queues.pop(name, None)

    async def names(self) -> list[str]:
        found = await self._calls.run_repeatable(lambda c: c.hkeys(self._register))
        return sorted(name.decode(errors="replace") for name in found)

    async def open_all(self) -> list[OpenQueue]:
        """All registered queues, without those that are being repartitioned, or cannot be read."""
        opened, _ = await self.open_registered()
        return opened

    async def open_registered(self) -> tuple[list[OpenQueue], list[str]]:
        """All registered queues, and the names of those that are not open now: they are being repartitioned, or are on
        a node of a cluster that is away.

        An entry that cannot be read, or a partition that cannot be opened, is passed over: it must not stop work on
        other queues, and the doctor reports it. If the whole register is garbled, the answer is the queues that this
        process has open."""
        try:
            found = await self._calls.run_repeatable(lambda c: c.hgetall(self._register))
        except WrongKeyType:
            return self.opened(), []
        entries = sorted((name.decode(errors="replace"), raw) for name, raw in found.items())
        opened = await asyncio.gather(*(self._open_entry(name, raw) for name, raw in entries))
        later = [name for (name, _), each in zip(entries, opened, strict=True) if isinstance(each, StoreError)]
        return [each for each in opened if isinstance(each, OpenQueue)], later

    async def reopen(self, queue: OpenQueue) -> None:
        """After StoreChanged: read the partitions and their epochs again, and create what was wiped. Raises
        QueueRepartitioning while the queue is being repartitioned."""
        stored = await self._declare(queue.queue, queue.layout)
        if stored.order != queue.queue.order:
            raise InvalidConfig(f"queue {queue.name!r} was given another order: restart this process")
        queue.adopt_partitions(stored, (await self._open_partitions(queue.name, stored)).epochs)

    async def reopen_patiently(self, queue: OpenQueue) -> None:
        """reopen(), after waiting a while for a repartition that is under way."""
        await self._retry_while_repartitioning(self.reopen, queue)

    async def refresh_if_repartitioned(self, queue: OpenQueue) -> bool:
        """Open the queue again if it was repartitioned, and say whether it was. Readers call this when they find
        nothing, because only scripts notice a change."""
        raw = await self._calls.run_repeatable(lambda c: c.hget(self._register, queue.name))
        entry = QueueEntry("due", 0, queue.layout) if raw is None else decode_entry(raw)
        if entry.move == queue.layout and entry.moving is None:
            return False
        await self.reopen_patiently(queue)
        return True

    async def _open_patiently(self, queue: Queue) -> OpenQueue:
        opened = await self._retry_while_repartitioning(self._open, queue)
        # An OpenQueue changes when it is repartitioned, so all who open it at the same time must hold the same one.
        return self._calls.open_queues.setdefault(queue.name, opened)

    async def _retry_while_repartitioning(self, attempt: Callable[[Any], Awaitable[Any]], queue: Any) -> Any:
        give_up = monotonic() + REPARTITION_PATIENCE_S
        while True:
            try:
                return await attempt(queue)
            except QueueRepartitioning:
                if monotonic() > give_up:
                    raise
                await asyncio.sleep(REPARTITION_PAUSE_S)

    async def _open(self, queue: Queue) -> OpenQueue:
        stored = await self._declare(queue)
        # Once an operator has repartitioned a queue, the declared number no longer counts, as with other settings.
        fixed = queue.partitions_given and not stored.move
        if stored.order != queue.order or (stored.partitions != queue.partitions and fixed):
            raise InvalidConfig(
                f"queue {queue.name!r} has order {stored.order!r} and {stored.partitions} partitions in Redis; "
                f"this program declares {queue.order!r} and {queue.partitions}: declare it the same, "
                f"or run `tocsin queues repartition {queue.name} {queue.partitions}`"
            )
        return await self._open_partitions(queue.name, stored)

    async def _open_entry(self, name: str, raw: bytes) -> OpenQueue | StoreError | None:
        """None for a queue that cannot be opened; an error for one that can be opened later."""
        try:
            entry = decode_entry(raw)
            if entry.moving is not None:
                return QueueRepartitioning(name, entry.moving.to)
            queue = await self.find(name)
            if queue is not None and queue.layout != entry.move:
                await self.reopen(queue)
            return queue
        except (QueueRepartitioning, NodeUnavailable) as later:
            return later
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig):
            return None

    def _refuse_agents_without_hash_tag(self, name: str) -> None:
        calls = self._calls
        if name == AGENTS_QUEUE and calls.address.kind == "cluster" and not calls.keys.hash_tag:
            raise InvalidConfig("redis.scheduler.keys.hash-tag must be set for agents on a Redis Cluster, e.g. to 'ps'")

    async def _declare(self, queue: Queue, layout: str = "") -> QueueEntry:
        """The queue's entry in the register, which is made now if there is none."""
        settings = encode_entry(QueueEntry(queue.order, queue.partitions, layout))
        stored = decode_entry(await self._calls.run_fleet_script(script("queue_declare"), queue.name, settings))
        if stored.moving is not None:
            raise QueueRepartitioning(queue.name, stored.moving.to)
        return stored

    async def _open_partitions(self, name: str, entry: QueueEntry) -> OpenQueue:
        opened = OpenQueue(entry.queue(name), self._calls.keys, [], entry.move)
        calls = [([keys["meta"]], [secrets.token_hex(8), entry.order, entry.partitions]) for keys in opened.keys]
        open_script = script("partition_open")
        found = await self._calls.run_repeatable(lambda _: self._calls.call_each(open_script, calls))
        for epoch, order, partitions, _ in found:
            if (order, partitions) != (entry.order.encode(), b"%d" % entry.partitions):
                # A repartition may have begun, or ended, since the register was read.
                if await self._declare(opened.queue) != entry:
                    raise QueueRepartitioning(name, whole(partitions, entry.partitions))
                has = f"has order {order!r} and {partitions!r} partitions, not {entry.order!r} and {entry.partitions}"
                raise InvalidConfig(f"a partition of queue {name!r} {has}: `tocsin doctor` says what to do")
            opened.epochs.append(epoch)
        return opened
