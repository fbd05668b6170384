"""The metrics of a worker, as OpenTelemetry sees them."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.waiting import eventually, run_dry
from tocsin.engine.claim_planner import Batching
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import BreakerSettings
from tocsin.store.transitions.fleet import Fleet
from tocsin.telemetry.metrics import Metrics


@pytest.fixture
def seen():
    """Tell a worker's tally to a meter of our own and read it: values by name, summed over labels."""
    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider(metric_readers=[reader]).get_meter("test"))

    def read(worker) -> dict[str, float]:
        forget = metrics.watch(worker.telemetry._levels)
        worker.telemetry._gather(worker.tally)
        metrics.flush(worker.tally)
        found: dict[str, float] = {}
        for resource in reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.data.data_points
                    found[metric.name] = sum(getattr(p, "value", getattr(p, "count", 0)) for p in points)
        forget()
        return found

    return read


async def test_what_a_worker_does_moves_its_metrics(tocsin_app, tocsin_clock, make_worker, seen):
    @tocsin_app.job
    async def job():
        pass

    await tocsin_app.enqueue_many(job, [() for _ in range(7)])
    tocsin_clock.advance("3s")
    worker = await make_worker(concurrency=5)
    await worker.telemetry.check.step()
    found = seen(worker)
    assert (found["tocsin.scheduler.readycount"], found["tocsin.scheduler.oldestoverdueseconds"]) == (7, 3)
    assert (found["tocsin.scheduler.capacitypercycle"], found["tocsin.scheduler.semaphoreavailable"]) == (5, 5)
    assert found["tocsin.acquire.acquired"] == 0
    assert found["tocsin.scheduler.degraded"] == 1
    await run_dry(worker)
    await worker.telemetry.check.step()
    found = seen(worker)
    assert found["tocsin.acquire.acquired"] == 7
    assert found["tocsin.run.lateness"] == found["tocsin.run.duration"] == 7
    assert found["tocsin.scheduler.degraded"] == 0


async def test_what_goes_wrong_moves_them_too(tocsin_app, make_worker, seen):
    tocsin_app.queue("line", partitions=1)

    @tocsin_app.job(queue="line")
    async def job():
        pass

    await tocsin_app.enqueue(job)
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(failure_threshold=2))
    sessions = worker.queues[0].keys[0]["sessions"]
    await tocsin_app.store.client.set(sessions, "not ours")
    for _ in range(2):
        with pytest.raises(StoreError):
            await worker.fetcher.step()
    await worker.fetcher.step()
    await worker.telemetry.check.step()
    found = seen(worker)
    assert found["tocsin.scripts.errors"] == 2
    assert (found["tocsin.circuitbreaker.trip"], found["tocsin.circuitbreaker.blocked"]) == (1, 1)
    assert found["tocsin.scheduler.degraded"] == 1
    await tocsin_app.store.client.delete(sessions)
    worker.reset_breakers()
    await tocsin_app.store.client.script_flush()
    await run_dry(worker)
    assert seen(worker)["tocsin.scripts.reloads"] >= 1


@pytest.mark.parametrize(
    ("concurrency", "batch", "capacity"), [(100, 1000, 100), (100, 50, 50), (20, 50, 20), (0, 50, 50), (100, 1, 1)]
)
async def test_the_capacity_of_a_cycle_is_a_batch_as_far_as_there_are_permits(
    tocsin_app, make_worker, seen, concurrency, batch, capacity
):
    @tocsin_app.job
    async def job():
        pass

    worker = await make_worker(concurrency=concurrency, batching=Batching(size=batch))
    assert seen(worker)["tocsin.scheduler.capacitypercycle"] == capacity
    await worker.telemetry.check.step()
    assert worker.telemetry.check.snapshot.capacity_per_cycle == capacity


async def test_a_claim_that_was_lost_is_counted_where_it_was_refused(tocsin_app, tocsin_clock, make_worker, seen):
    @tocsin_app.job
    async def job():
        await asyncio.sleep(0)

    await tocsin_app.enqueue(job, id="j")
    worker = await make_worker()
    served = worker.served["default"]
    await worker.fetcher.step()
    partition = served.queue.partition_of("j")
    assert await worker.parts.incarnation.runs.recover(served.queue, partition, worker.name) == 1
    while worker.pool.busy or not worker.finisher.idle():
        await asyncio.sleep(0)
        await worker.finisher.step()
    found = seen(worker)
    assert (found["tocsin.claims.lost"], found["tocsin.cas.contention"]) == (1, 1)


async def test_an_extension_and_a_beat_that_are_refused_are_counted_too(tocsin_app, make_worker):
    inside, go_on = asyncio.Event(), asyncio.Event()

    @tocsin_app.job
    async def job(run):
        inside.set()
        await go_on.wait()
        await run.extend("5m")

    await tocsin_app.enqueue(job, id="j")
    worker = await make_worker()
    served = worker.served["default"]
    await worker.fetcher.step()
    await inside.wait()
    await worker.parts.incarnation.runs.recover(served.queue, served.queue.partition_of("j"), worker.name)
    go_on.set()
    await eventually(lambda: not worker.pool.busy, "the handler ends")
    assert worker.tally.contention["extend"] == 1
    fleet = Fleet(tocsin_app.store)
    [seen] = await fleet.workers()
    assert await fleet.declare_dead(seen.id, b"%d" % seen.counter, 10_000)
    await asyncio.to_thread(worker.heart.beat)
    await eventually(lambda: worker.tally.contention["beat"] == 1, "the refusal is counted")
