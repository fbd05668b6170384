"""The leader of a namespace cleans up in all queues, whichever it serves, at the defaults of orphan-cleanup."""

from __future__ import annotations

import asyncio
import re

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.waiting import Gate, eventually
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.patterns import TaskQueue, TaskScheduler
from tocsin.telemetry.metrics import Metrics
from tocsin.worker import Worker

pytestmark = pytest.mark.agents

TIMEOUT_S, ORPHAN_S, OVERDUE_S = 300, 600, 30


@pytest.fixture
async def gate():
    made = Gate()
    yield made
    made.open()


@pytest.fixture
async def held(tocsin_app, make_worker, gate) -> Worker:
    """A worker that lives, has an agent and a job inside their handlers, and does nothing about them."""
    tocsin_app.queue("mail", partitions=1)

    @tocsin_app.agent(every="1h", name="agent")
    async def agent():
        await gate.enter()

    @tocsin_app.job(queue="mail", name="send")
    async def send():
        await gate.enter()

    await tocsin_app.enqueue(send, id="job")
    worker = await make_worker()
    await worker.reconciler.step()
    await worker.fetcher.step()
    await eventually(lambda: len(gate.inside) == 2, "both run")
    return worker


async def live(clock, seconds: float, *workers: Worker) -> None:
    """The last ten seconds of them in beats, so that they believe in deadlines."""
    clock.advance(max(seconds - 10, 0))
    for _ in range(5):
        clock.advance("2s")
        for worker in workers:
            await asyncio.to_thread(worker.heart.beat)
        await asyncio.sleep(0)


async def clean_up(*workers: Worker) -> None:
    for worker in workers:
        await worker.parts.upkeep.elector.step()
        await worker.parts.upkeep.reaper.step()
        await worker.parts.upkeep.orphan_cleaner.step()


@pytest.mark.parametrize("leader", ["--queues mail", "TaskScheduler"])
async def test_a_leader_that_serves_other_queues_brings_back_overdue_agents(
    tocsin_app, tocsin_clock, make_worker, held, leader
):
    if leader == "TaskScheduler":
        tasks = await asyncio.to_thread(TaskQueue, tocsin_app, "tasks", lambda task: None)
        scheduler = await asyncio.to_thread(TaskScheduler, tasks, "one")
        other = await scheduler.worker(tocsin_app)
    else:
        other = await make_worker(queues=["mail"])
    assert AGENTS_QUEUE not in other.served
    waiting = held.served[AGENTS_QUEUE].queue.keys[0]["waiting"]
    await tocsin_app.store.client.zadd(waiting, {"stray": tocsin_clock.ms})
    await live(tocsin_clock, TIMEOUT_S + ORPHAN_S - 1, held, other)
    await clean_up(other)
    assert other.stats().leading
    assert (await tocsin_app.get("agent")).stage == "working"
    await live(tocsin_clock, 1, held, other)
    tocsin_clock.advance("1s")
    await clean_up(other)
    assert (await tocsin_app.get("agent")).stage == "waiting"
    assert await tocsin_app.store.client.zscore(waiting, "stray") is None
    await other.kill()


async def test_a_queue_that_is_registered_later_is_cleaned_too(tocsin_app, tocsin_clock, make_worker):
    worker = await make_worker(queues=["default"])
    await clean_up(worker)
    tocsin_app.queue("new", partitions=2)
    other = await make_worker(queues=["new"])
    for keys in other.served["new"].queue.keys:
        await tocsin_app.store.client.zadd(keys["waiting"], {"stray": tocsin_clock.ms})
    await clean_up(worker)
    assert worker.parts.upkeep.orphan_cleaner.cleaned["no_record"] == 2


async def test_jobs_come_back_after_recovery_overdue_ms_and_agents_after_the_orphan_threshold(
    tocsin_app, tocsin_clock, make_worker, held
):
    other = await make_worker()
    await live(tocsin_clock, TIMEOUT_S + OVERDUE_S, held, other)
    for _ in range(5):
        await clean_up(other)
    assert [(await tocsin_app.get(name)).stage for name in ("job", "agent")] == ["waiting", "working"]


async def test_runs_of_crashed_workers_are_counted_as_orphans(tocsin_app, tocsin_clock, make_worker, held):
    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider(metric_readers=[reader]).get_meter("test"))
    other = await make_worker(summary_s=1.0)
    await live(tocsin_clock, 10, other)
    await live(tocsin_clock, 10, other)
    await other.parts.upkeep.reaper.step()
    assert [(await tocsin_app.get(name)).stage for name in ("job", "agent")] == ["waiting", "waiting"]
    await other.telemetry.check.step()
    assert (other.stats().orphans, other.telemetry.check.snapshot.orphans_cleaned) == (2, 2)
    for _ in range(2):
        other.telemetry._gather(other.tally)
        metrics.flush(other.tally)
    [found] = [
        metric
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if re.fullmatch(r"tocsin\.cleanup\.orphans", metric.name)
    ]
    assert {point.attributes["kind"]: point.value for point in found.data.data_points if point.value} == {
        "dead_worker": 2
    }


async def test_another_leads_within_two_seconds_of_a_leader_that_leaves(live_app):
    @live_app.job
    async def job():
        pass

    workers = [await live_app.worker() for _ in range(3)]
    for worker in workers:
        await worker.start()
    try:
        await eventually(lambda: any(worker.stats().leading for worker in workers), "one leads")
        [first] = [worker for worker in workers if worker.stats().leading]
        others = [worker for worker in workers if worker is not first]
        # Each has looked, and would look again after forty seconds.
        await eventually(lambda: all("elect" in worker._tasks for worker in others), "the others follow")
        await first.stop(grace=0)
        await eventually(lambda: any(worker.stats().leading for worker in others), "another leads", within=2.0)
    finally:
        for worker in workers:
            await worker.kill()
