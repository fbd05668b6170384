"""Metrics of an execution queue. No worker serves it, so its own calls keep the numbers fresh."""

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

# A call also reads the numbers if they are older than this.
EVERY_S = 1.0


class ExecutionMetrics:
    """Depth, active and totals come from Redis and are those of the whole queue; the wait time is of our own claims."""

    def __init__(self) -> None:
        self._gauges: QueueGauges | None = None
        self._store: Store | None = None
        self._next = -math.inf

    def scheduled(self, store: Store, claim: Claim) -> None:
        if not claim.recoveries:
            band = band_of(claim.record)
            shared().waited(claim.queue, band, (store.clock.server_ms() - claim.due) / 1000)

    async def refresh(self, claims: ManualClaims) -> None:
        now = claims.store.clock.monotonic()
        if now < self._next and self._store is claims.store:
            return
        self._next = now + EVERY_S
        # The call itself reports what is wrong with the queue.
        with contextlib.suppress(StoreError, InvalidConfig):
            if self._gauges is None or self._store is not claims.store:
                self._gauges = self._begin(claims.store, await claims.open())
            await self._gauges.step()

    def _begin(self, store: Store, queue: OpenQueue) -> QueueGauges:
        """Called when the app was opened or reopened: gauges belong to one store."""
        if self._gauges is not None:
            self._gauges.end()
        gauges = QueueGauges(QueueCountReader(store, [queue]), shared(), store.clock, EVERY_S)
        gauges.begin()
        self._store = store
        # An ExecutionQueue has no close(), so end the gauges when it is collected.
        weakref.finalize(self, gauges.end)
        return gauges
