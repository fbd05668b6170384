"""The referrer: what this worker parks is for workers that know its handler; it tells those where to look.

A bell would not do: it is heard by one worker, which may be another that does not know the handler, or this one.
It also logs which handlers are missing, as a warning if no worker has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tocsin.model.clock import monotonic
from tocsin.model.errors import StoreError
from tocsin.store.transitions.fleet import Fleet, WorkerRecord
from tocsin.store.views.parked_handlers import ParkedHandlers
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.parked")

# The same handler of the same queue is named no more often than this, and so many are remembered for it.
QUIET_S = 60.0
MOST_NAMED = 1000


class ParkedNotifier:
    """One pass: mail for every worker that serves the queue and knows a handler that this one does not."""

    name = "refer"

    def __init__(
        self,
        fleet: Fleet,
        worker: Callable[[], str],
        handlers: list[str],
        look: Callable[[str, int], Awaitable[list[ParkedHandlers]]],
    ) -> None:
        """`look` finds what is parked in a partition."""
        self.wake = asyncio.Event()
        self._fleet = fleet
        self._worker = worker
        self._handlers = set(handlers)
        self._look = look
        # When each was named last, by queue and handler.
        self._named: dict[tuple[str, str], float] = {}
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
        workers = await self._fleet.workers()
        for worker in workers:
            places = [place for place in sorted(parked) if place[0] in worker.about.queues]
            knows_more = not self._handlers.issuperset(worker.about.handlers)
            if places and knows_more and worker.id != self._worker():
                await self._fleet.post(worker.id, {"look": places})
        for queue, partition in sorted(parked):
            for found in await self._look(queue, partition):
                self._name_missing(queue, found, workers)

    def _name_missing(self, queue: str, parked: ParkedHandlers, workers: list[WorkerRecord]) -> None:
        key, now = (queue, parked.handler), monotonic()
        if parked.handler in self._handlers or now - self._named.get(key, -QUIET_S) < QUIET_S:
            return
        if len(self._named) >= MOST_NAMED:
            self._named.clear()
        self._named[key] = now
        facts = {"handler": parked.handler, "queue": queue, "job": parked.job, "jobs": parked.jobs}
        if any(parked.handler in worker.about.handlers and queue in worker.about.queues for worker in workers):
            log.info("jobs are parked for a worker that has their handler", worker=self._worker(), **facts)
        else:
            log.warning("jobs are parked: no worker has their handler", worker=self._worker(), **facts)
