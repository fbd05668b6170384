"""Metrics of queues, with the names of the FairQueue scheduler. The numbers come from Redis, so they never drift.

Depth, active and the two totals count the whole queue: every worker of a queue shows the same numbers, so take their
maximum over workers and not their sum. The wait time counts only runs that this process claimed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from tocsin.model.job import PRIORITIES
from tocsin.telemetry.sample import BOUNDARIES, Sample

# Jobs in a queue wait longer than runs are late, so these boundaries go further.
WAITS = (*BOUNDARIES, 1800.0, 7200.0, 43_200.0)


class QueueNumbers(Struct, frozen=True):
    """The numbers of a queue. `depth`: waiting and ready jobs; `enqueued`, `scheduled`: totals since its creation."""

    depth: int = 0
    active: int = 0
    enqueued: int = 0
    scheduled: int = 0


Read = Callable[[], Mapping[str, QueueNumbers]]


class QueueMetrics:
    """The instruments of one meter. A process has one of these, see `shared`."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("tocsin")
        # How often an exporter asked. Without one the numbers need not be read from Redis.
        self.asked = 0
        self._watched: dict[object, Read] = {}
        gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
        gauge("queue.depth", [self._observer("depth")], "", "Jobs that wait or are ready")
        gauge("queue.active", [self._observer("active")], "", "Runs that are worked on")
        counter("queue.enqueue.total", [self._observer("enqueued")], "", "Jobs put into the queue")
        counter("queue.schedule.total", [self._observer("scheduled")], "", "Runs claimed from the queue")
        self._waits = meter.create_histogram(
            "queue.wait_time", "", "Seconds between due and claimed", explicit_bucket_boundaries_advisory=WAITS
        )

    def watch(self, read: Read) -> Callable[[], None]:
        """Export these numbers until the returned function is called. `read` is called on the exporter's thread."""
        key = object()
        self._watched[key] = read

        def forget() -> None:
            self._watched.pop(key, None)

        return forget

    def flush(self, waits: Mapping[str, list[Sample]]) -> None:
        """Record how long runs waited, by queue and band."""
        for queue, samples in waits.items():
            for priority, sample in zip(PRIORITIES, samples, strict=True):
                for value in sample.drain():
                    self._waits.record(max(0.0, value), {"queue": queue, "priority": priority})

    def waited(self, queue: str, band: int, seconds: float) -> None:
        """Record the wait of one claimed run."""
        self._waits.record(max(0.0, seconds), {"queue": queue, "priority": PRIORITIES[min(band, len(PRIORITIES) - 1)]})

    def _observer(self, field: str) -> Callable[[CallbackOptions], list[Observation]]:
        return functools.partial(self._observe, field)

    def _observe(self, field: str, _: CallbackOptions) -> list[Observation]:
        self.asked += 1
        seen: dict[str, int] = {}
        for read in tuple(self._watched.values()):
            for queue, numbers in read().items():
                # Workers of one process read a queue at different times, and totals must not decrease.
                seen[queue] = max(seen.get(queue, 0), getattr(numbers, field))
        return [Observation(value, {"queue": queue}) for queue, value in seen.items()]


@functools.cache
def shared() -> QueueMetrics:
    """The QueueMetrics of this process."""
    return QueueMetrics()
