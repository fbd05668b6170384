"""Each metric moves when what it counts happens, under its name."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.telemetry.handler_metrics import DURATION, HANDLER_COUNTS, MOST_RECORDED
from tocsin.telemetry.metrics import COUNTS, LEVELS, SPREADS, Counters, Levels, Metrics, MetricsFlusher
from tocsin.telemetry.sample import LARGEST_SAMPLE, Sample

Labels = tuple[tuple[str, object], ...]


class Told:
    """The metrics of a meter that remembers, and what it has been told so far."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = Metrics(MeterProvider([self.reader]).get_meter("tocsin"))
        self.tally = Counters()

    def points(self, name: str) -> dict[Labels, object]:
        data = self.reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        # The SDK itself lower-cases names.
        points = [point for metric in found if metric.name == name.lower() for point in metric.data.data_points]
        return {tuple(point.attributes.items()): point for point in points}

    def values(self, name: str) -> dict[Labels, float]:
        return {labels: point.value for labels, point in self.points(name).items()}

    def flush(self) -> None:
        self.metrics.flush(self.tally)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("tocsin.acquire.acquired", "acquired"),
        ("tocsin.acquire.submissionFailures", "submission_failures"),
        ("tocsin.scripts.errors", "script_errors"),
        ("tocsin.scripts.reloads", "script_reloads"),
        ("tocsin.scripts.evalFallbacks", "eval_fallbacks"),
        ("tocsin.schedule.retryExhausted", "retry_exhausted"),
        ("tocsin.claims.lost", "claims_lost"),
        ("tocsin.cleanup.zombies", "zombies"),
        ("tocsin.taskScheduler.redis_error_count", "redis_error_count"),
        ("tocsin.taskScheduler.lock_timeout_count", "lock_timeout_count"),
        ("tocsin.taskScheduler.deserialization_error_count", "deserialization_error_count"),
        ("tocsin.taskScheduler.push_error_count", "push_error_count"),
        ("tocsin.taskScheduler.cron_error_count", "cron_error_count"),
        ("tocsin.taskScheduler.critical_error_count", "critical_error_count"),
    ],
)
def test_what_parts_add_is_told_once(told: Told, name: str, field: str):
    told.flush()
    assert told.values(name) == {(): 0}
    setattr(told.tally, field, getattr(told.tally, field) + 3)
    told.flush()
    told.flush()
    assert told.values(name) == {(): 3}
    setattr(told.tally, field, 2)
    told.flush()
    assert told.values(name) == {(): 5}


@pytest.mark.parametrize("breaker", ["acquisition", "redis", "host"])
@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("tocsin.circuitBreaker.trip", lambda tally, breaker: tally.trips.update([breaker])),
        ("tocsin.circuitBreaker.blocked", lambda tally, breaker: tally.blocked.update([breaker])),
        ("tocsin.circuitBreaker.recovery", lambda tally, breaker: tally.recoveries.update([breaker])),
    ],
)
def test_breakers_are_told_apart(told: Told, name: str, add: Callable[[Counters, str], None], breaker: str):
    add(told.tally, breaker)
    told.flush()
    expected = {(("breaker", name),): 0 for name in ("acquisition", "redis", "host")}
    assert told.values(name) == expected | {(("breaker", breaker),): 1}


@pytest.mark.parametrize("success", [True, False])
def test_recoveries_are_tagged_with_their_success(told: Told, success: bool):
    told.tally.recovery[success] += 2
    told.flush()
    expected = {(("success", "true"),): 0, (("success", "false"),): 0}
    assert told.values("tocsin.schedule.recovery") == expected | {(("success", str(success).lower()),): 2}


def test_contention_is_counted_by_location_and_no_location_is_made_up(told: Told):
    told.tally.contention["finish"] += 2
    for n in range(100):
        told.tally.contention[f"job-{n}"] += 1
    told.flush()
    seen = {labels[0][1]: n for labels, n in told.values("tocsin.cas.contention").items()}
    # Only where a worker's calls can be refused: a series that never moves says nothing.
    assert set(seen) == {"finish", "plan", "retry", "release", "bury", "park", "advance", "extend", "beat", "other"}
    assert (seen.pop("finish"), seen.pop("other")) == (2, 100)
    assert set(seen.values()) == {0}


@pytest.mark.parametrize(
    ("name", "levels", "value"),
    [
        ("tocsin.scheduler.oldestOverdueSeconds", Levels(oldest_overdue_s=2.5), 2.5),
        ("tocsin.scheduler.degraded", Levels(degraded=True), 1),
        ("tocsin.scheduler.readyCount", Levels(ready=17), 17),
        ("tocsin.scheduler.capacityPerCycle", Levels(capacity_per_cycle=50), 50),
        ("tocsin.scheduler.semaphoreAvailable", Levels(permits_free=55), 55),
        ("tocsin.clock.skew", Levels(clock_skew_s=-3.5), -3.5),
    ],
)
def test_levels_are_read_when_they_are_asked_for(told: Told, name: str, levels: Levels, value: float):
    now = Levels()
    told.metrics.watch(lambda: now)
    assert told.values(name) == {(): 0}
    now = levels
    assert told.values(name) == {(): value}


def test_an_unbounded_worker_has_no_number_of_permits(told: Told, caplog: pytest.LogCaptureFixture):
    told.metrics.watch(lambda: Levels(permits_free=math.inf, ready=1))
    assert told.values("tocsin.scheduler.semaphoreAvailable") == {}
    assert told.values("tocsin.scheduler.readyCount") == {(): 1}
    # The SDK would complain at each reading.
    assert caplog.records == []


def test_workers_of_one_process_are_one_series(told: Told):
    told.metrics.watch(lambda: Levels(2.0, False, 5, 10, 1, 0.1))
    forget = told.metrics.watch(lambda: Levels(9.0, True, 7, 10, 2, -4.0))
    assert [told.values(level.name)[()] for level in LEVELS] == [9.0, 1, 12, 20, 3, -4.0]
    forget()
    assert [told.values(level.name)[()] for level in LEVELS] == [2.0, 0, 5, 10, 1, 0.1]


def test_nothing_is_shown_of_workers_that_have_ended(told: Told):
    told.metrics.watch(lambda: Levels(ready=5))()
    assert told.values("tocsin.scheduler.readyCount") == {}


@pytest.mark.parametrize("name", ["tocsin.run.lateness", "tocsin.run.duration"])
def test_times_are_spread_over_seconds(told: Told, name: str):
    for value in (0.004, 0.02, 0.02, 7.0, -1.0):
        told.tally.lateness.add(value)
        told.tally.of_handler("mail").duration.add(value)
    told.flush()
    [point] = told.points(name).values()
    buckets = dict(zip((*point.explicit_bounds, math.inf), point.bucket_counts, strict=True))
    assert {bound: n for bound, n in buckets.items() if n} == {0.001: 1, 0.005: 1, 0.025: 2, 10.0: 1}


@pytest.mark.parametrize("count", [1, LARGEST_SAMPLE, LARGEST_SAMPLE + 1, 1000, 12_345, 100_000])
def test_a_sample_is_bounded_and_even(count: int):
    sample = Sample()
    for n in range(1, count + 1):
        sample.add(float(n))
    values = sample.drain()
    assert len(values) <= LARGEST_SAMPLE
    if count <= LARGEST_SAMPLE:
        assert values == [float(n) for n in range(1, count + 1)]
    else:
        assert len(values) >= LARGEST_SAMPLE // 2
        assert len({b - a for a, b in itertools.pairwise(values)}) == 1
        assert sum(values) / len(values) == pytest.approx(count / 2, rel=0.05)
    assert sample.drain() == []


async def test_the_part_gathers_and_flushes_each_cycle(told: Told):
    def gather(tally: Counters) -> None:
        tally.claims_lost += 1

    told.tally.acquired += 4
    assert await MetricsFlusher(told.metrics, told.tally, gather, every_s=0.5).step() == 0.5
    assert told.values("tocsin.acquire.acquired") == {(): 4}
    assert told.values("tocsin.claims.lost") == {(): 1}


def test_of_the_totals_of_a_breaker_what_is_new_is_added(told: Told, caplog: pytest.LogCaptureFixture):
    redis, names = (("breaker", "redis"),), ("trip", "blocked", "recovery")
    for totals in [(1, 10, 0), (1, 10, 0), (3, 15, 2), (0, 0, 0), (1, 1, 1)]:
        told.tally.breaker("redis", *totals)
        told.flush()
    assert [told.values(f"tocsin.circuitBreaker.{name}")[redis] for name in names] == [4, 16, 3]
    assert caplog.records == []


@pytest.mark.parametrize("size", [1, 7, LARGEST_SAMPLE, 5 * LARGEST_SAMPLE])
def test_values_that_come_together_are_sampled_as_if_they_came_one_by_one(size: int):
    things = range(9 * LARGEST_SAMPLE + 5)
    one_by_one, together = Sample(), Sample()
    for thing in things:
        one_by_one.add(thing / 2)
    for first in range(0, len(things), size):
        together.add_all(things[first : first + size], lambda thing: thing / 2)
    assert together.drain() == one_by_one.drain() != []


def test_each_name_is_declared_once_and_without_a_unit(told: Told):
    names = [metric.name for metric in (*COUNTS, *LEVELS, *SPREADS, *HANDLER_COUNTS)] + [DURATION]
    assert len(set(names)) == len(names) == 34
    told.metrics.watch(Levels)
    told.tally.lateness.add(1.0)
    told.tally.of_handler("mail").duration.add(1.0)
    told.flush()
    data = told.reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    assert {metric.name for metric in metrics} == {name.lower() for name in names}
    assert {metric.unit for metric in metrics} == {""}


def test_prometheus_shows_the_names_in_lower_case():
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    metrics, tally = Metrics(provider.get_meter("tocsin")), Counters()
    metrics.watch(lambda: Levels(oldest_overdue_s=1.5))
    tally.trips["redis"] += 1
    tally.acquired += 2
    tally.lateness.add(0.5)
    metrics.flush(tally)
    lines = generate_latest(registry).decode().splitlines()
    # Without the labels that name the scope.
    shown = {line.partition("{")[0].partition(" ")[0]: line.rpartition(" ")[2] for line in lines if line[0] != "#"}
    assert shown["tocsin_scheduler_oldestoverdueseconds"] == "1.5"
    assert shown["tocsin_acquire_acquired_total"] == "2.0"
    assert shown["tocsin_run_lateness_count"] == "1.0"
    assert any('tocsin_circuitbreaker_trip_total{breaker="redis"' in line and line.endswith("1.0") for line in lines)


def test_without_the_sdk_nothing_is_told_and_nothing_fails():
    program = """
import sys
sys.modules["opentelemetry.sdk"] = None
from tocsin.telemetry import metrics
assert metrics.shared() is metrics.shared()
tally = metrics.Counters()
tally.acquired += 1
tally.lateness.add(1.0)
metrics.shared().watch(metrics.Levels)
metrics.shared().flush(tally)
assert tally.acquired == 0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_metrics_made_before_the_sdk_is_set_up_are_told_to_it():
    program = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tocsin.telemetry import metrics
metrics.shared().watch(lambda: metrics.Levels(ready=3))
reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
metrics.shared().flush(metrics.Counters())
names = {m.name for m in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics}
assert {"tocsin.scheduler.readycount", "tocsin.acquire.acquired"} <= names, names
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_runs_are_counted_by_handler_and_a_handler_is_there_before_its_first_run(told: Told):
    mail, _ = told.tally.of_handler("mail"), told.tally.of_handler("idle")
    mail.succeeded, mail.failed, mail.retried, mail.dead = 5, 3, 2, 1
    told.flush()
    told.flush()
    mail.failed = 4
    told.flush()
    found = {count.field: told.values(count.name) for count in HANDLER_COUNTS}
    by = (("handler", "mail"),), (("handler", "idle"),)
    assert found == {
        "succeeded": {by[0]: 5, by[1]: 0},
        "failed": {by[0]: 7, by[1]: 0},
        "retried": {by[0]: 2, by[1]: 0},
        "dead": {by[0]: 1, by[1]: 0},
    }


def test_many_busy_handlers_share_what_is_recorded_of_their_durations(told: Told):
    for number in range(100):
        for _ in range(500):
            told.tally.of_handler(f"handler {number}").duration.add(0.01)
    told.flush()
    counts = [point.count for point in told.points(DURATION).values()]
    assert len(counts) == 100
    assert MOST_RECORDED / 2 < sum(counts) <= MOST_RECORDED
