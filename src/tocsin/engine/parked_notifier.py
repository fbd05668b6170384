"""The parked notifier: posts mail to workers that can run jobs which this worker had to park.

A bell would not do: only one worker hears a bell, and it may be one without the handler, or this one. The notifier also
logs which handlers are missing, as a warning if no worker has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tocsin.engine.incarnation import Incarnation
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.clock import monotonic
from tocsin.model.errors import StoreError
from tocsin.store.store import Store
from tocsin.store.transitions.fleet import Fleet, WorkerRecord
from tocsin.store.views.parked_handlers import ParkedHandlers, parked_in
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.parked")

# A missing handler of a queue is logged at most this often, and this many are remembered for it.
QUIET_S = 60.0
MOST_NAMED = 1000
# Nothing was parked.
REST_S = 60.0


class ParkedNotifier:
    """One pass: mail for every worker that serves the queue and has a handler that this one lacks."""

    name = "refer"

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        incarnation: Incarnation,
        served: Mapping[str, ServedQueue],
        handlers: list[str],
    ) -> None:
        """`handlers`: the names that this worker has."""
        self.wake = asyncio.Event()
        self._store = store
        self._fleet = fleet
        self._incarnation = incarnation
        self._served = served
        self._handlers = set(handlers)
        # When each was logged last, by queue and handler.
        self._named: dict[tuple[str, str], float] = {}
        self._parked: set[tuple[str, int]] = set()

    def note_parked(self, queue: str, partition: int) -> None:
        self._parked.add((queue, partition))
        self.wake.set()

    async def step(self) -> float:
        parked, self._parked = self._parked, set()
        if parked:
            try:
                await self._notify(parked)
            except StoreError:
                self._parked |= parked
                raise
        return REST_S

    async def _notify(self, parked: set[tuple[str, int]]) -> None:
        workers = await self._fleet.workers()
        for worker in workers:
            places = [place for place in sorted(parked) if place[0] in worker.about.queues]
            knows_more = not self._handlers.issuperset(worker.about.handlers)
            if places and knows_more and worker.id != self._incarnation.name:
                await self._fleet.post(worker.id, {"look": places})
        for queue, partition in sorted(parked):
            for found in await parked_in(self._store, self._served[queue].queue, partition):
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
            log.info("jobs are parked for a worker that has their handler", worker=self._incarnation.name, **facts)
        else:
            log.warning("jobs are parked: no worker has their handler", worker=self._incarnation.name, **facts)
