"""What a program may do to a whole queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.app.connection import AppConnection
from tocsin.model.errors import InvalidArgument
from tocsin.model.queue import check_weights, checked
from tocsin.store.repartition.repartition import Progress, RepartitionResult, repartition
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.queue_settings import update


class QueueControl(AppConnection):
    """Limits, weights, pause and resume; live, for all workers."""

    async def queue_update(
        self, name: str, *, weights: Mapping[str, float | None] | None = None, **settings: Any
    ) -> bool:
        """Change a queue's limits, None for no limit, and the weights of tenants. False if there is none."""
        where = await self.store.find_queue(name)
        if where is None:
            return False
        order = where.queue.order
        if weights is not None and order != "fair":
            raise InvalidArgument(f"weights are for queues of order 'fair': queue {name!r} has order {order!r}")
        wanted, shares = checked(where.queue, settings), check_weights({} if weights is None else dict(weights))
        await update(self.store, where, wanted, shares, operator=True)
        self._ring_all(where)
        return True

    async def pause_queue(self, name: str) -> bool:
        """Nobody claims from it any more; what runs goes on. False if it was paused, or there is none."""
        return await self._pause_queue(name, True)

    async def resume_queue(self, name: str) -> bool:
        return await self._pause_queue(name, False)

    async def repartition_queue(
        self, name: str, partitions: int, progress: Progress = lambda done, total: None
    ) -> RepartitionResult:
        """Give a live queue another number of partitions. Should it be stopped half-way, call it again."""
        done = await repartition(self.store, name, partitions, progress)
        where = await self.store.find_queue(name)
        if where is not None:
            await self.store.queues.refresh_if_repartitioned(where)
            self._ring_all(where)
        return done

    async def _pause_queue(self, name: str, pause: bool) -> bool:
        where = await self.store.find_queue(name)
        if where is None or not await self._jobs.pause_queue(where, pause):
            return False
        self._ring_all(where)
        return True

    def _ring_all(self, where: OpenQueue) -> None:
        for partition in range(where.partitions):
            self._ringer.ring(where, partition)
