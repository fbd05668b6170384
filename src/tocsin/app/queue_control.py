"""What a program can do to a whole queue: limits, weights, pause, resume and repartition, live for all workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.model.errors import InvalidArgument
from tocsin.model.queue import check_weights, checked
from tocsin.store.repartition.repartition import Progress, RepartitionResult, repartition
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions import queue_settings
from tocsin.store.transitions.fleet import BellRinger
from tocsin.store.transitions.jobs import Jobs


class QueueControl:
    """After each change it rings for the queue, so that workers see the change at once."""

    def __init__(self, store: Store, jobs: Jobs, ringer: BellRinger) -> None:
        self._store = store
        self._jobs = jobs
        self._ringer = ringer

    async def update(self, name: str, weights: Mapping[str, float | None] | None, settings: dict[str, Any]) -> bool:
        where = await self._store.find_queue(name)
        if where is None:
            return False
        order = where.queue.order
        if weights is not None and order != "fair":
            raise InvalidArgument(f"weights are for queues of order 'fair': queue {name!r} has order {order!r}")
        wanted, shares = checked(where.queue, settings), check_weights({} if weights is None else dict(weights))
        await queue_settings.update(self._store, where, wanted, shares, operator=True)
        ring_all(self._ringer, where)
        return True

    async def pause(self, name: str) -> bool:
        return await self._set_paused(name, True)

    async def resume(self, name: str) -> bool:
        return await self._set_paused(name, False)

    async def _set_paused(self, name: str, pause: bool) -> bool:
        where = await self._store.find_queue(name)
        if where is None or not await self._jobs.pause_queue(where, pause):
            return False
        ring_all(self._ringer, where)
        return True

    async def repartition(self, name: str, partitions: int, progress: Progress) -> RepartitionResult:
        done = await repartition(self._store, name, partitions, progress)
        where = await self._store.find_queue(name)
        if where is not None:
            await self._store.catch_up(where)
            ring_all(self._ringer, where)
        return done


def ring_all(ringer: BellRinger, where: OpenQueue) -> None:
    for partition in range(where.partitions):
        ringer.ring(where, partition)
