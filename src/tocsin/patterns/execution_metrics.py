"""Metrics of a queue that no worker serves: its own calls keep them fresh, as long as an exporter asks for them."""

from __future__ import annotations

import contextlib
import math
import weakref

from tocsin.model.errors import InvalidConfig, StoreError
from tocsin.model.record import band_of
from tocsin.model.run import Claim
from tocsin.patterns.manual_claims import ManualClaims
from tocsin.store.store import OpenQueue, Store
from tocsin.store.views.queue_counts import QueueCountReader
from tocsin.telemetry.queue_metrics import shared
from tocsin.worker.queue_gauges import QueueGauges

# A call reads the numbers along with what it is for, if they are older than this.
EVERY_S = 1.0


class ExecutionMetrics:
    """Depth, active and totals stand in Redis and are the whole queue's; the wait time is that of our own claims."""

    def __init__(self) -> None:
        self._gauges: QueueGauges | None = None
        self._store: Store | None = None
        self._next = -math.inf

    def scheduled(self, store: Store, claim: Claim) -> None:
        if not claim.recoveries:
            band = band_of(claim.record)
            shared().waited(claim.queue, band, (store.clock.server_ms() - claim.due) / 1000)

    async def refresh(self, taker: ManualClaims) -> None:
        now = taker.store.clock.monotonic()
        if now < self._next and self._store is taker.store:
            return
        self._next = now + EVERY_S
        # What is wrong with the queue is for the call itself to say.
        with contextlib.suppress(StoreError, InvalidConfig):
            if self._gauges is None or self._store is not taker.store:
                self._gauges = self._begin(taker.store, await taker.open())
            await self._gauges.step()

    def _begin(self, store: Store, queue: OpenQueue) -> QueueGauges:
        """The app was opened, or opened again."""
        if self._gauges is not None:
            self._gauges.end()
        gauges = QueueGauges(QueueCountReader(store, [queue]), shared(), store.clock, EVERY_S)
        gauges.begin()
        self._store = store
        # Nobody closes an ExecutionQueue.
        weakref.finalize(self, gauges.end)
        return gauges
