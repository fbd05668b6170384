"""Queue gauges: reads the numbers of queues for their metrics, as long as somebody asks for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreUnavailable
from tocsin.store.views.queue_counts import QueueCountReader
from tocsin.telemetry.queue_metrics import QueueMetrics

# Exporters ask once a minute or more often. After this long without a question nothing is read.
ASKED_WITHIN_S = 150.0


class QueueGauges:
    """One pass: the numbers as they are now."""

    name = "gauges"

    def __init__(self, counts: QueueCountReader, metrics: QueueMetrics, clock: Clock, every_s: float) -> None:
        self.wake = asyncio.Event()
        self._counts = counts
        self._metrics = metrics
        self._clock = clock
        self._every_s = every_s
        self._asked = metrics.asked
        # Read once at the beginning, so that the first question finds something.
        self._until = clock.monotonic()
        self._forget: Callable[[], None] | None = None

    def begin(self) -> None:
        self._forget = self._metrics.watch(self._counts.by_queue)

    def end(self) -> None:
        if self._forget is not None:
            self._forget()
        self._forget = None

    async def step(self) -> float:
        now = self._clock.monotonic()
        if self._metrics.asked != self._asked:
            self._asked, self._until = self._metrics.asked, now + ASKED_WITHIN_S
        if now <= self._until:
            # Health reports outages; here the last numbers stay.
            with contextlib.suppress(StoreUnavailable):
                await self._counts.look()
        return self._every_s
