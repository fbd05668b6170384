"""`run_until_idle`: everything that is due at the app's time has run when it returns."""

from __future__ import annotations

import asyncio

import pytest

from tocsin import Every, Retry
from tocsin.testing import run_until_idle


@pytest.fixture
def ran() -> list:
    return []


@pytest.fixture
def job(tocsin_app, ran):
    @tocsin_app.job
    async def job(what=None):
        ran.append(what)

    return job


async def test_it_says_how_many_runs_ended(tocsin_app, job):
    assert await run_until_idle(tocsin_app) == 0
    await tocsin_app.enqueue_many(job, [(n,) for n in range(5)])
    await tocsin_app.enqueue(job, "later", delay="1s")
    assert await run_until_idle(tocsin_app) == 5
    assert await run_until_idle(tocsin_app) == 0


async def test_everything_is_written_down_when_it_returns(tocsin_app, job):
    await tocsin_app.enqueue(job, id="j")
    await run_until_idle(tocsin_app)
    assert [job async for job in tocsin_app.jobs()] == []


async def test_what_runs_put_is_run_too(tocsin_app, ran):
    @tocsin_app.job
    async def chain(n):
        ran.append(n)
        if n:
            await tocsin_app.enqueue(chain, n - 1)

    await tocsin_app.enqueue(chain, 4)
    assert await run_until_idle(tocsin_app) == 5
    assert ran == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("concurrency", [0, 1, 3, 100])
async def test_any_number_of_permits_gets_through_everything(tocsin_app, tocsin_clock, job, ran, concurrency):
    tocsin_app.queue("other", partitions=5)
    await tocsin_app.enqueue_many(job, [(n,) for n in range(30)])
    await tocsin_app.enqueue_many(job, [(n,) for n in range(30, 40)], queue="other")
    await tocsin_app.schedule_many(job, [(f"s{n}", Every("1s"), (n,)) for n in range(40, 50)])
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app, concurrency=concurrency) == 50
    assert sorted(ran) == list(range(50))


async def test_permits_bound_what_runs_at_once(tocsin_app):
    inside = most = 0

    @tocsin_app.job
    async def job():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1

    await tocsin_app.enqueue_many(job, [() for _ in range(20)])
    assert await run_until_idle(tocsin_app, concurrency=2) == 20
    assert most == 2


async def test_only_the_queues_that_are_named_are_served(tocsin_app, job):
    tocsin_app.queue("other")
    await tocsin_app.enqueue(job, queue="other")
    await tocsin_app.enqueue(job)
    assert await run_until_idle(tocsin_app, queues=["other"]) == 1
    assert await run_until_idle(tocsin_app) == 1


async def test_a_run_may_move_the_clock_as_far_as_it_likes(tocsin_app, tocsin_clock, ran):
    """As if it took that long: what falls due meanwhile is run too."""

    @tocsin_app.job(name="slow")
    async def slow():
        tocsin_clock.advance("1h")

    @tocsin_app.job(name="later")
    async def later():
        ran.append(tocsin_clock.ms)

    await tocsin_app.enqueue(later, delay="30m")
    await tocsin_app.enqueue(slow)
    assert await run_until_idle(tocsin_app) == 2
    assert len(ran) == 1


async def test_retries_wait_for_the_clock(tocsin_app, tocsin_clock, ran):
    @tocsin_app.job(retry=Retry(2, "10s"))
    async def fails(run):
        ran.append(run.attempt)
        raise ValueError

    await tocsin_app.enqueue(fails)
    assert await run_until_idle(tocsin_app) == 1
    tocsin_clock.advance("10s")
    assert await run_until_idle(tocsin_app) == 1
    tocsin_clock.advance("19s")
    assert await run_until_idle(tocsin_app) == 0
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == [1, 2, 3]


async def test_threads_and_batches_are_waited_for(tocsin_app, ran):
    @tocsin_app.job
    def thread(n):
        ran.append(n)

    @tocsin_app.job(batch=10)
    async def batch(items):
        ran.extend(run.args[0] for run in items)

    for n in range(5):
        await tocsin_app.enqueue(thread, n)
        await tocsin_app.enqueue(batch, n + 5)
    assert await run_until_idle(tocsin_app) == 10
    assert sorted(ran) == list(range(10))


async def test_two_at_once_share_the_work(tocsin_app, job, ran):
    await tocsin_app.enqueue_many(job, [(n,) for n in range(200)])
    counts = await asyncio.gather(run_until_idle(tocsin_app, concurrency=5), run_until_idle(tocsin_app, concurrency=5))
    assert sum(counts) == 200
    assert sorted(ran) == list(range(200))


async def test_it_leaves_no_worker_behind(tocsin_app, job):
    from tocsin.store.transitions.fleet import Fleet

    await tocsin_app.enqueue(job)
    await run_until_idle(tocsin_app)
    assert await Fleet(tocsin_app.store).workers() == []


async def test_a_paused_queue_is_idle(tocsin_app, job):
    await tocsin_app.enqueue(job)
    await tocsin_app.pause_queue("default")
    assert await asyncio.wait_for(run_until_idle(tocsin_app), 5) == 0
