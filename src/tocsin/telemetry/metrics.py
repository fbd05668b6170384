"""Declares the metrics of a worker. Its parts add to a plain `Counters`, which OpenTelemetry gets once per cycle.

A call to OpenTelemetry costs 5 to 10 us, so no run makes one. Without its SDK every call is a no-op. `/metrics` shows
the names in lower case with underscores, and counters with `_total` appended. No metric has a unit, because a unit
would become part of the name.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, get_meter

from tocsin.model.job import PRIORITIES
from tocsin.telemetry.handler_metrics import HandlerMetrics, HandlerTally
from tocsin.telemetry.sample import BOUNDARIES, Sample

# "host" counts the breakers of all hosts that runs are delivered to.
BREAKERS = ("acquisition", "redis", "host")
SUCCESS = (True, False)
# The calls in which the server may refuse a worker's compare-and-set, by token or by counter.
LOCATIONS = ("finish", "plan", "retry", "release", "bury", "park", "advance", "extend", "beat")
# Runs of dead workers, runs too long past their deadline, entries that no transition leaves behind, and agents that no
# worker declares.
ORPHANS = ("dead_worker", "overdue", "stray", "unregistered")
OTHER = "other"


class Count(Struct, frozen=True):
    """A counter. `field` is its attribute in `Counters`; `values` are the allowed values of its label."""

    name: str
    field: str
    about: str
    label: str = ""
    values: tuple[str | bool, ...] = ()


class Level(Struct, frozen=True):
    """A gauge. `field` is its attribute in `Levels`."""

    name: str
    field: str
    about: str
    # Combines the values of several workers of one process.
    together: Callable[[Iterable[float]], float]


class Distribution(Struct, frozen=True):
    """A histogram. `field` is its attribute in `Counters`."""

    name: str
    field: str
    about: str


def _farthest(skews: Iterable[float]) -> float:
    return max(skews, key=abs)


COUNTS = (
    Count("tocsin.acquire.acquired", "acquired", "Runs claimed"),
    Count("tocsin.acquire.submissionFailures", "submission_failures", "Claimed runs that no runner could be given"),
    Count("tocsin.scripts.errors", "script_errors", "Lua scripts that failed"),
    Count("tocsin.scripts.reloads", "script_reloads", "Lua scripts loaded again because the server had lost them"),
    Count("tocsin.scripts.evalFallbacks", "eval_fallbacks", "Calls sent with their whole script after a reload failed"),
    Count("tocsin.circuitBreaker.trip", "trips", "Times a breaker opened", "breaker", BREAKERS),
    Count("tocsin.circuitBreaker.blocked", "blocked", "Calls that an open breaker held back", "breaker", BREAKERS),
    Count("tocsin.circuitBreaker.recovery", "recoveries", "Times a breaker closed again", "breaker", BREAKERS),
    Count("tocsin.schedule.retryExhausted", "retry_exhausted", "Outcomes that could not be written after all tries"),
    Count("tocsin.schedule.recovery", "recovery", "Tries to write such an outcome later", "success", SUCCESS),
    Count("tocsin.cas.contention", "contention", "Compare-and-sets that were refused", "location", LOCATIONS),
    Count("tocsin.claims.lost", "claims_lost", "Claims that another worker took over"),
    Count("tocsin.cleanup.zombies", "zombies", "Runs that went on too long after their deadline"),
    Count("tocsin.cleanup.orphans", "orphans", "Runs brought back, and entries mended", "kind", ORPHANS),
    Count("tocsin.loop.blocked", "loop_blocked", "Times that the event loop was blocked for a second or longer"),
    Count("tocsin.loop.blockedSeconds", "loop_blocked_s", "Seconds for which it was"),
    Count("tocsin.taskScheduler.redis_error_count", "redis_error_count", "Calls that the server did not serve"),
    Count("tocsin.taskScheduler.lock_timeout_count", "lock_timeout_count", "Claims not answered or not ended in time"),
    Count(
        "tocsin.taskScheduler.deserialization_error_count", "deserialization_error_count", "Schedules nobody can read"
    ),
    Count("tocsin.taskScheduler.push_error_count", "push_error_count", "Tasks that could not be pushed"),
    Count("tocsin.taskScheduler.cron_error_count", "cron_error_count", "Schedules whose cron expression is wrong"),
    Count("tocsin.taskScheduler.critical_error_count", "critical_error_count", "Errors that ended a scheduler"),
)
LEVELS = (
    Level("tocsin.scheduler.oldestOverdueSeconds", "oldest_overdue_s", "How long the oldest ready job waits", max),
    Level("tocsin.scheduler.degraded", "degraded", "0 healthy, 1 degraded", max),
    Level("tocsin.scheduler.readyCount", "ready", "Jobs that are due; estimated beyond 1000", sum),
    Level("tocsin.scheduler.capacityPerCycle", "capacity_per_cycle", "Runs that one cycle can take", sum),
    Level("tocsin.scheduler.semaphoreAvailable", "permits_free", "Permits that nobody holds", sum),
    Level("tocsin.clock.skew", "clock_skew_s", "Seconds by which the server's clock is ahead of ours", _farthest),
)
SPREADS = (Distribution("tocsin.run.lateness", "lateness", "Seconds between due and begun"),)


class Levels(Struct, frozen=True):
    """The gauges of a worker now. An infinite value (the permits of an unbounded worker) is not exported."""

    oldest_overdue_s: float = 0.0
    degraded: bool = False
    ready: int = 0
    capacity_per_cycle: float = 0.0
    permits_free: float = 0.0
    clock_skew_s: float = 0.0


class Counters:
    """Counts what happened since the last flush. Parts add to it on the event loop: `tally.acquired += n`."""

    __slots__ = (
        *(count.field for count in COUNTS),
        *(spread.field for spread in SPREADS),
        "_totals",
        "handlers",
        "waits",
    )

    def __init__(self) -> None:
        self._totals: dict[str, tuple[int, int, int]] = {}
        # Drained and never replaced: the hot path keeps its `add`.
        self.lateness = Sample()
        self.handlers: dict[str, HandlerTally] = {}
        # How long runs waited for their first claim, by queue and by priority band.
        self.waits: dict[str, list[Sample]] = {}
        self.clear()

    def of_handler(self, name: str) -> HandlerTally:
        return self.handlers.setdefault(name, HandlerTally())

    def waits_of(self, queue: str) -> list[Sample]:
        if queue not in self.waits:
            self.waits[queue] = [Sample() for _ in PRIORITIES]
        return self.waits[queue]

    def clear(self) -> None:
        self.acquired = 0
        self.submission_failures = 0
        self.script_errors = 0
        self.script_reloads = 0
        self.eval_fallbacks = 0
        self.retry_exhausted = 0
        self.claims_lost = 0
        self.zombies = 0
        self.loop_blocked = 0
        self.loop_blocked_s = 0.0
        self.redis_error_count = 0
        self.lock_timeout_count = 0
        self.deserialization_error_count = 0
        self.push_error_count = 0
        self.cron_error_count = 0
        self.critical_error_count = 0
        # By breaker.
        self.trips: Counter[str] = Counter()
        self.blocked: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        # By success.
        self.recovery: Counter[bool] = Counter()
        # By location.
        self.contention: Counter[str] = Counter()
        # By kind.
        self.orphans: Counter[str] = Counter()

    def breaker(self, name: str, trips: int, blocked: int, recoveries: int) -> None:
        """Add the increase of a breaker's totals since the last call."""
        before = self._totals.get(name, (0, 0, 0))
        self._totals[name] = now = (trips, blocked, recoveries)
        for counted, old, new in zip((self.trips, self.blocked, self.recoveries), before, now, strict=True):
            counted[name] += max(0, new - old)


class Metrics:
    """The instruments of one meter. All workers of a process share one object, see `shared`."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("tocsin")
        self._watched: dict[object, Callable[[], Levels]] = {}
        self._recorded_zeros = False
        self._counters = [(count, meter.create_counter(count.name, "", count.about)) for count in COUNTS]
        self._handlers = HandlerMetrics(meter)
        self._histograms = [(spread, _histogram(meter, spread)) for spread in SPREADS]
        for level in LEVELS:
            meter.create_observable_gauge(level.name, [functools.partial(self._observe, level)], "", level.about)

    def flush(self, tally: Counters) -> None:
        """Record the counts and start at zero. The first call records zeros too, so that each series exists early."""
        for count, counter in self._counters:
            counted = getattr(tally, count.field)
            if not count.label:
                if counted or not self._recorded_zeros:
                    counter.add(counted)
            else:
                for value, n in _by_label(count, counted, zeros=not self._recorded_zeros).items():
                    counter.add(n, {count.label: value})
        for spread, histogram in self._histograms:
            for value in getattr(tally, spread.field).drain():
                # No run is early, even if a clock was set back.
                histogram.record(max(0.0, value))
        self._handlers.flush(tally.handlers)
        self._recorded_zeros = True
        tally.clear()

    def watch(self, levels: Callable[[], Levels]) -> Callable[[], None]:
        """Export these gauges until the returned function is called. `levels` is called on the exporter's thread."""
        key = object()
        self._watched[key] = levels

        def forget() -> None:
            self._watched.pop(key, None)

        return forget

    def _observe(self, level: Level, _: CallbackOptions) -> list[Observation]:
        readings = [float(getattr(levels(), level.field)) for levels in tuple(self._watched.values())]
        if not readings:
            return []
        value = level.together(readings)
        return [Observation(value)] if math.isfinite(value) else []


def _histogram(meter: Meter, spread: Distribution) -> Histogram:
    return meter.create_histogram(spread.name, "", spread.about, explicit_bucket_boundaries_advisory=BOUNDARIES)


def _by_label(count: Count, counted: Counter[str | bool], zeros: bool) -> Counter[str]:
    """Count undeclared values as `other`, so that labels stay bounded."""
    counts: Counter[str] = Counter()
    if zeros:
        counts.update({_text(value): 0 for value in count.values})
    for value, n in counted.items():
        counts[_text(value) if value in count.values else OTHER] += n
    return counts


def _text(value: str | bool) -> str:
    return str(value).lower()


class MetricsFlusher:
    """A part that flushes a tally each cycle, after `gather` has added the numbers that others count themselves."""

    name = "metrics"

    def __init__(self, metrics: Metrics, tally: Counters, gather: Callable[[Counters], None], every_s: float) -> None:
        self.wake = asyncio.Event()
        self._metrics = metrics
        self._tally = tally
        self._gather = gather
        self._every_s = every_s

    async def step(self) -> float:
        self.flush()
        return self._every_s

    def flush(self) -> None:
        """Flush. Also called at the end of a worker, for its last cycle."""
        self._gather(self._tally)
        self._metrics.flush(self._tally)


@functools.cache
def shared() -> Metrics:
    """The Metrics of this process. May be called before the program sets up its SDK."""
    return Metrics()
