"""Runs whose deadline passes before their handler starts: they go back, and nothing has failed."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import Gate, eventually
from tocsin import StoreUnavailable, Tocsin


@pytest.fixture
async def proxy(valkey):
    async with Proxy(valkey) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy, tocsin_clock):
    async with Tocsin(proxy.url, prefix=f"late-{secrets.token_hex(4)}:", clock=tocsin_clock) as app:
        yield app


async def fetch(worker) -> None:
    await asyncio.to_thread(worker.heart.beat)
    for served in worker.served.values():
        served.expect_all([0.0] * served.queue.partitions)
    await worker.fetcher.step()


@pytest.mark.parametrize("cut_s", [290, 300, 320])
async def test_a_run_that_the_worker_hears_of_after_an_outage_is_released_and_runs_with_all_its_time(
    app, proxy, tocsin_clock, make_worker, cut_s
):
    gate = Gate()

    @app.job(name="job")
    async def job():
        await gate.enter()

    handle = await app.enqueue(job, id="late")
    worker = await make_worker(app)
    proxy.cut("after", "run_claim")
    with pytest.raises(StoreUnavailable):
        await fetch(worker)
    assert proxy.cuts == 1
    tocsin_clock.advance(cut_s)
    await fetch(worker)
    await eventually(lambda: not worker.pool.busy, "nothing runs")
    await worker.finisher.step()
    released = await app.get("late")
    assert (released.stage, released.attempt, released.recoveries) == ("waiting", 1, 0)
    assert not gate.most

    await fetch(worker)
    await eventually(lambda: gate.inside, "it runs")
    tocsin_clock.advance(299)
    await worker.sweep.step()
    gate.open()
    await eventually(lambda: not worker.pool.busy, "it has ended")
    await worker.finisher.step()
    assert await handle.status() == "succeeded"


async def test_a_run_that_the_worker_hears_of_after_a_short_outage_is_run(app, proxy, tocsin_clock, make_worker):
    @app.job(name="job")
    async def job():
        return "ran"

    handle = await app.enqueue(job, id="soon")
    worker = await make_worker(app)
    proxy.cut("after", "run_claim")
    with pytest.raises(StoreUnavailable):
        await fetch(worker)
    tocsin_clock.advance(10)
    await fetch(worker)
    await eventually(lambda: not worker.pool.busy, "it has ended")
    await worker.finisher.step()
    assert await handle.result() == "ran"


class Behind:
    """A worker with one permit, taken by a run at the first gate, and another run that waits for the permit."""

    def __init__(self, worker, first: Gate, second: Gate) -> None:
        self.worker = worker
        self.first = first
        self.second = second


@pytest.fixture
def behind(tocsin_app, make_worker):
    first, second = Gate(), Gate()

    @tocsin_app.job(name="first")
    async def enter_first():
        await first.enter()

    @tocsin_app.job(name="second")
    async def enter_second():
        await second.enter()

    async def make(timeout: str) -> Behind:
        await tocsin_app.enqueue(enter_first, id="first")
        worker = await make_worker(concurrency=1)
        await fetch(worker)
        await eventually(lambda: first.inside, "the permit is taken")
        # Only what is known to be quick is claimed ahead.
        for handler in worker.catalog:
            handler.mean = 0.001
        await tocsin_app.enqueue(enter_second, id="second", timeout=timeout)
        await fetch(worker)
        assert worker.pool.waiting == 1
        return Behind(worker, first, second)

    return make


async def test_a_run_whose_deadline_passed_while_it_waited_for_a_permit_is_released(tocsin_app, tocsin_clock, behind):
    both = await behind("2s")
    worker = both.worker
    tocsin_clock.advance(3)
    both.first.open()
    await eventually(lambda: not worker.pool.busy, "both have left the pool")
    assert worker.served["default"].busy == worker.served["default"].running == 0
    while not worker.finisher.idle():
        await worker.finisher.step()
    job = await tocsin_app.get("second")
    assert (both.second.most, job.stage, job.attempt, job.failure) == (0, "waiting", 1, None)


async def test_a_timeout_shorter_than_the_wait_for_a_permit_begins_with_the_handler(tocsin_clock, behind):
    both = await behind("50ms")
    tocsin_clock.advance(0.2)
    both.first.open()
    await eventually(lambda: both.second.inside, "the second has begun")
    tocsin_clock.advance(0.04)
    await both.worker.sweep.step()
    assert not both.worker.pool.runners[0].reason
    tocsin_clock.advance(0.01)
    await both.worker.sweep.step()
    assert both.worker.pool.runners[0].reason == "timeout"
