"""Metrics of queues, under the names of seed 003. What stands in Redis is read there, so that it never drifts.

Depth, active and the two totals are the whole queue's, whoever put and claimed: every worker of it shows the same
numbers, so take the maximum over workers and not the sum. The wait time is of the runs that this process claimed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from tocsin.model.job import PRIORITIES
from tocsin.telemetry.sample import BOUNDARIES, Sample

# Jobs wait in line for longer than a run is late.
WAITS = (*BOUNDARIES, 1800.0, 7200.0, 43_200.0)


class QueueNumbers(Struct, frozen=True):
    """A queue at one look. `depth` is what waits or is ready; the totals count since the queue was made."""

    depth: int = 0
    active: int = 0
    enqueued: int = 0
    scheduled: int = 0


Read = Callable[[], Mapping[str, QueueNumbers]]


class QueueMetrics:
    """The instruments of one meter; a process has one of these: see `shared`."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("tocsin")
        # How often somebody asked: without an exporter nobody does, and nothing needs to be read.
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
        """Show these until the returned function is called. `read` is called on the exporter's thread."""
        key = object()
        self._watched[key] = read

        def forget() -> None:
            self._watched.pop(key, None)

        return forget

    def flush(self, waits: Mapping[str, list[Sample]]) -> None:
        """Tell how long runs waited, by queue and band."""
        for queue, samples in waits.items():
            for priority, sample in zip(PRIORITIES, samples, strict=True):
                for value in sample.drain():
                    self._waits.record(max(0.0, value), {"queue": queue, "priority": priority})

    def waited(self, queue: str, band: int, seconds: float) -> None:
        """One run that was claimed."""
        self._waits.record(max(0.0, seconds), {"queue": queue, "priority": PRIORITIES[min(band, len(PRIORITIES) - 1)]})

    def _observer(self, field: str) -> Callable[[CallbackOptions], list[Observation]]:
        return functools.partial(self._observe, field)

    def _observe(self, field: str, _: CallbackOptions) -> list[Observation]:
        self.asked += 1
        seen: dict[str, int] = {}
        for read in tuple(self._watched.values()):
            for queue, numbers in read().items():
                # Workers of one process look at the same queue at different times; totals must not go back.
                seen[queue] = max(seen.get(queue, 0), getattr(numbers, field))
        return [Observation(value, {"queue": queue}) for queue, value in seen.items()]


@functools.cache
def shared() -> QueueMetrics:
    """The one of this process."""
    return QueueMetrics()
