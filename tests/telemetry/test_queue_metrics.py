"""The execution queue's metrics, as Prometheus reads them: its three queries find what they name."""

from __future__ import annotations

import re

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.telemetry.metrics import Counters
from tocsin.telemetry.queue_metrics import QueueMetrics, QueueNumbers


class Shown:
    """/metrics, as text."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(True, registry=self._registry, scope_info_enabled=False)
        self.metrics = QueueMetrics(MeterProvider([reader]).get_meter("tocsin"))

    def lines(self) -> list[str]:
        return [line for line in generate_latest(self._registry).decode().splitlines() if line[0] != "#"]

    def values(self) -> dict[str, float]:
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in self.lines()}


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_depth_active_and_totals_are_shown_by_queue(shown: Shown):
    shown.metrics.watch(lambda: {"mail": QueueNumbers(7, 3, 20, 13), "other": QueueNumbers()})
    assert shown.values() == {
        'queue_depth{queue="mail"}': 7,
        'queue_depth{queue="other"}': 0,
        'queue_active{queue="mail"}': 3,
        'queue_active{queue="other"}': 0,
        'queue_enqueue_total{queue="mail"}': 20,
        'queue_enqueue_total{queue="other"}': 0,
        'queue_schedule_total{queue="mail"}': 13,
        'queue_schedule_total{queue="other"}': 0,
    }


def test_workers_of_one_process_show_a_queue_once(shown: Shown):
    shown.metrics.watch(lambda: {"mail": QueueNumbers(7, 3, 20, 13)})
    forget = shown.metrics.watch(lambda: {"mail": QueueNumbers(6, 4, 21, 15)})
    assert shown.values()['queue_schedule_total{queue="mail"}'] == 15
    forget()
    assert shown.values()['queue_schedule_total{queue="mail"}'] == 13


def test_wait_times_are_spread_by_priority(shown: Shown):
    tally = Counters()
    for waited in (0.004, 3.0, -1.0):
        tally.waits_of("mail")[1].add(waited)
    tally.waits_of("mail")[4].add(5000.0)
    shown.metrics.flush(tally.waits)
    values = shown.values()
    assert values['queue_wait_time_count{priority="high",queue="mail"}'] == 3
    assert values['queue_wait_time_bucket{le="0.005",priority="high",queue="mail"}'] == 2
    assert values['queue_wait_time_bucket{le="5.0",priority="high",queue="mail"}'] == 3
    assert values['queue_wait_time_bucket{le="7200.0",priority="background",queue="mail"}'] == 1
    assert values['queue_wait_time_bucket{le="1800.0",priority="background",queue="mail"}'] == 0
    shown.metrics.flush(tally.waits)
    assert shown.values()['queue_wait_time_count{priority="high",queue="mail"}'] == 3


@pytest.mark.parametrize("name", ["queue_depth", "queue_schedule_total", "queue_wait_time_bucket"])
def test_the_names_in_the_seeds_queries_are_there(shown: Shown, name: str):
    tally = Counters()
    tally.waits_of("mail")[2].add(1.0)
    shown.metrics.flush(tally.waits)
    shown.metrics.watch(lambda: {"mail": QueueNumbers()})
    lines = shown.lines()
    assert any(re.match(rf"{name}\{{", line) for line in lines)
    # No unit has crept into a name, and no label but these.
    labels = {label for line in lines for label in re.findall(r'(\w+)="', line)}
    assert labels == {"queue", "priority", "le"}


def test_it_is_known_whether_anybody_asks(shown: Shown):
    assert shown.metrics.asked == 0
    shown.values()
    assert shown.metrics.asked > 0
