"""The referrer: what this worker parks is for workers that know its handler; it tells those where to look.

A bell would not do: it is heard by one worker, which may be another that does not know the handler, or this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.model.errors import StoreError
from tocsin.store.fleet import Fleet


class Referrer:
    """One pass: mail for every worker that serves the queue and knows a handler that this one does not."""

    name = "refer"

    def __init__(self, fleet: Fleet, worker: Callable[[], str], handlers: list[str]) -> None:
        self.wake = asyncio.Event()
        self._fleet = fleet
        self._worker = worker
        self._handlers = set(handlers)
        self._parked: set[tuple[str, int]] = set()

    def refer(self, queue: str, partition: int) -> None:
        self._parked.add((queue, partition))
        self.wake.set()

    async def step(self) -> float:
        parked, self._parked = self._parked, set()
        if parked:
            try:
                await self._tell(parked)
            except StoreError:
                self._parked |= parked
                raise
        return 60.0

    async def _tell(self, parked: set[tuple[str, int]]) -> None:
        for worker in await self._fleet.workers():
            places = [place for place in sorted(parked) if place[0] in worker.about.queues]
            knows_more = not self._handlers.issuperset(worker.about.handlers)
            if places and knows_more and worker.id != self._worker():
                await self._fleet.post(worker.id, {"look": places})
