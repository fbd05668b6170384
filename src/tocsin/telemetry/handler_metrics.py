"""Metrics of runs by handler. Only handlers of this worker get a label, so the label is bounded.

The parts of a worker add to a `HandlerTally`, a plain object that is flushed once per cycle: one call to OpenTelemetry
per run would cost as much as a short handler.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from opentelemetry.metrics import Meter

from tocsin.telemetry.sample import BOUNDARIES, LARGEST_SAMPLE, Sample

# Durations recorded per cycle, shared between the handlers that ran. The SDK takes about 10 us for each.
MOST_RECORDED = 1000


class HandlerCount(Struct, frozen=True):
    """A counter. `field` is its attribute in `HandlerTally`."""

    name: str
    field: str
    about: str


HANDLER_COUNTS = (
    HandlerCount("tocsin.run.succeeded", "succeeded", "Runs that succeeded"),
    HandlerCount("tocsin.run.failed", "failed", "Attempts that failed or timed out"),
    HandlerCount("tocsin.run.retried", "retried", "Attempts that failed and are followed by another"),
    HandlerCount("tocsin.run.dead", "dead", "Jobs that died: out of retries, or recovered too often"),
)
DURATION = "tocsin.run.duration"


class HandlerTally:
    """Counts the outcomes of one handler's runs since the last flush."""

    __slots__ = ("dead", "duration", "failed", "retried", "succeeded")

    def __init__(self) -> None:
        # Seconds inside the handler. Drained and never replaced, so callers may keep its `add`.
        self.duration = Sample()
        self.clear()

    def clear(self) -> None:
        self.succeeded = self.failed = self.retried = self.dead = 0


class HandlerMetrics:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._counters = [(count.field, meter.create_counter(count.name, "", count.about)) for count in HANDLER_COUNTS]
        self._duration = meter.create_histogram(
            DURATION, "", "Seconds inside the handler", explicit_bucket_boundaries_advisory=BOUNDARIES
        )
        self._seen: set[str] = set()

    def flush(self, handlers: Mapping[str, HandlerTally]) -> None:
        """Record the counts and start at zero. Records zeros once per handler, so that each series exists early."""
        ran = {name: values for name, tally in handlers.items() if (values := tally.duration.drain())}
        most = max(1, min(LARGEST_SAMPLE, MOST_RECORDED // max(len(ran), 1)))
        for name, values in ran.items():
            for value in values[:: -(-len(values) // most)]:
                self._duration.record(max(0.0, value), {"handler": name})
        for name, tally in handlers.items():
            for field, counter in self._counters:
                counted = getattr(tally, field)
                if counted or name not in self._seen:
                    counter.add(counted, {"handler": name})
            self._seen.add(name)
            tally.clear()
