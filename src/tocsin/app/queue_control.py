"""What a program can do to a whole queue, live for all workers: limits, weights, pause, repartition, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.queue import check_weights, settings_as_text
from tocsin.store.repartition import delete_queue
from tocsin.store.repartition.repartition import Progress, RepartitionResult, repartition
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions import queue_settings
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.upkeep import silent_workers


class QueueControl:
    """After each change it rings for the queue, so that workers see the change at once."""

    def __init__(self, store: Store, jobs: Jobs, ringer: BellRinger, fleet: Fleet) -> None:
        self._store = store
        self._jobs = jobs
        self._ringer = ringer
        self._fleet = fleet

    async def update(self, name: str, weights: Mapping[str, float | None] | None, settings: dict[str, Any]) -> bool:
        where = await self._store.find_queue(name)
        if where is None:
            return False
        order = where.queue.order
        if weights is not None and order != "fair":
            raise InvalidArgument(f"weights are for queues of order 'fair': queue {name!r} has order {order!r}")
        wanted, shares = (
            settings_as_text(where.queue, settings),
            check_weights({} if weights is None else dict(weights)),
        )
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
            await self._store.queues.refresh_if_repartitioned(where)
            ring_all(self._ringer, where)
        return done

    async def delete(self, name: str, *, force: bool) -> None:
        await check_exists(self._store, name)
        serving = await self._workers_of(name)
        if serving and not force:
            raise InvalidArgument(
                f"queue {name!r} is served by {', '.join(serving)}, and would be created anew at once: "
                "stop these workers, or start them without this queue"
            )
        await delete_queue.delete(self._store, name)

    async def _workers_of(self, name: str) -> list[str]:
        """The live workers that serve the queue."""
        workers, silent = await silent_workers.find_silent(self._fleet, silent_workers.PATIENCE_S)
        return [worker.id for worker in workers if name in worker.about.queues and worker.id not in silent]


async def check_exists(store: Store, name: str) -> None:
    """Raise InvalidArgument for a queue that is not registered."""
    known = await store.queues.names()
    if name not in known:
        raise InvalidArgument(f"there is no queue {name!r}" + (f"; {did_you_mean(name, known)}" if known else ""))


def ring_all(ringer: BellRinger, where: OpenQueue) -> None:
    for partition in range(where.partitions):
        ringer.ring(where, partition)
