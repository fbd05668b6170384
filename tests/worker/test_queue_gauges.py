"""The numbers of queues, read by a worker while somebody asks for them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.waiting import run_dry
from tocsin import Retry
from tocsin.store.views import queue_counts
from tocsin.store.views.queue_counts import QueueCountReader
from tocsin.telemetry.queue_metrics import QueueMetrics, QueueNumbers
from tocsin.worker import queue_gauges
from tocsin.worker.queue_gauges import QueueGauges


@pytest.mark.parametrize("order", ["due", "priority", "fair"])
async def test_what_is_put_and_claimed_counts_once_whoever_does_it(
    tocsin_app, other_app, tocsin_clock, make_worker, order
):
    tocsin_app.queue("line", order=order, partitions=2)

    @tocsin_app.job(queue="line", name="job")
    async def job(n):
        pass

    await tocsin_app.enqueue_many(job, [(n,) for n in range(10)])
    await tocsin_app.enqueue(job, 1, id="later", delay="1h")
    worker = await make_worker(queues=["line"], concurrency=4)
    another = QueueCountReader(other_app.store, [await other_app.store.find_queue("line")])
    await another.look()
    assert another.by_queue() == {"line": QueueNumbers(11, 0, 11, 0)}
    tocsin_clock.advance("3s")
    await run_dry(worker)
    await another.look()
    assert another.by_queue() == {"line": QueueNumbers(1, 0, 11, 10)}
    [samples] = worker.tally.waits.values()
    assert [sample.drain() for sample in samples] == [[], [], [3.0] * 10, [], []]


async def test_runs_that_are_claimed_are_active_and_only_the_first_claim_is_a_wait(
    tocsin_app, tocsin_clock, make_worker
):
    tocsin_app.queue("line", order="priority")

    @tocsin_app.job(queue="line", name="job", retry=Retry(1, "1s"))
    async def job(run):
        if run.attempt == 1:
            raise ValueError

    await tocsin_app.enqueue(job, id="j", priority="high")
    worker = await make_worker(queues=["line"])
    await worker.fetcher.step()
    counts = QueueCountReader(tocsin_app.store, [worker.served["line"].queue])
    await counts.look()
    assert counts.by_queue() == {"line": QueueNumbers(0, 1, 1, 1)}
    assert worker.tally.waits["line"][1].drain() == [0.0]
    await run_dry(worker)
    tocsin_clock.advance("2s")
    await run_dry(worker)
    await counts.look()
    assert counts.by_queue() == {"line": QueueNumbers(0, 0, 1, 2)}
    assert worker.tally.waits["line"][1].drain() == []


async def test_of_many_partitions_each_is_asked_in_its_turn(tocsin_app, make_worker, monkeypatch):
    monkeypatch.setattr(queue_counts, "AT_ONCE", 3)
    tocsin_app.queue("line", partitions=5)

    @tocsin_app.job(queue="line", name="job")
    async def job(n):
        pass

    await tocsin_app.enqueue_many(job, [(n,) for n in range(50)], delay="1h")
    counts = QueueCountReader(tocsin_app.store, [await tocsin_app.store.find_queue("line")])
    await counts.look()
    # Part of a queue is no number to show.
    assert counts.by_queue() == {}
    await counts.look()
    assert counts.by_queue() == {"line": QueueNumbers(50, 0, 50, 0)}


async def test_nothing_is_read_when_nobody_asks(tocsin_app, tocsin_clock):
    tocsin_app.queue("line", partitions=1)

    @tocsin_app.job(queue="line", name="job")
    async def job():
        pass

    await tocsin_app.enqueue(job, delay="1d")
    reader = InMemoryMetricReader()
    metrics = QueueMetrics(MeterProvider([reader]).get_meter("test"))
    counts = QueueCountReader(tocsin_app.store, [await tocsin_app.store.find_queue("line")])
    part = QueueGauges(counts, metrics, tocsin_clock, 1.0)
    part.begin()

    async def seen_after(put: int) -> int:
        for _ in range(put):
            await tocsin_app.enqueue(job, delay="1d")
        tocsin_clock.advance("1s")
        assert await part.step() == 1.0
        return counts.by_queue()["line"].depth

    await part.step()
    assert await seen_after(1) == 1
    reader.get_metrics_data()
    assert await seen_after(1) == 3
    tocsin_clock.advance(queue_gauges.ASKED_WITHIN_S)
    assert await seen_after(1) == 3
    part.end()
    assert reader.get_metrics_data() is None
