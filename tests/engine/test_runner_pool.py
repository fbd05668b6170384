"""The pool: as many runs at once as there are permits, and a turn for everybody."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.model.clock import monotonic


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_no_more_runs_than_permits_are_inside_their_handlers(tocsin_app, make_worker, gate):
    @tocsin_app.job
    async def job():
        await gate.enter()

    await tocsin_app.enqueue_many(job, [() for _ in range(20)])
    await make_worker(start=True, concurrency=3)
    for passed in range(3, 18, 3):
        await eventually(lambda: len(gate.inside) == 3, "three runs are inside")
        gate.let_go(3)
        await eventually(lambda passed=passed: gate.passed >= passed, "they have passed")
    gate.open()
    await eventually(lambda: gate.passed == 20, "all have passed")
    assert gate.most == 3


async def test_an_unbounded_worker_runs_all_at_once(tocsin_app, make_worker, gate):
    @tocsin_app.job
    async def job():
        await gate.enter()

    await tocsin_app.enqueue_many(job, [() for _ in range(500)])
    worker = await make_worker(start=True, concurrency=0)
    await eventually(lambda: len(gate.inside) == 500, "all are inside")
    assert worker.stats().running == 500
    gate.open()
    await eventually(lambda: worker.stats().ran == 500 and not worker.stats().unwritten, "all have ended")


async def test_a_worker_with_few_permits_gets_through_many_jobs(tocsin_app, make_worker):
    ran = []

    @tocsin_app.job
    async def job(n):
        await asyncio.sleep(0)
        ran.append(n)

    await tocsin_app.enqueue_many(job, [(n,) for n in range(2000)])
    worker = await make_worker(start=True, concurrency=4)
    await eventually(lambda: len(ran) == 2000, "all have run")
    assert sorted(ran) == list(range(2000))
    await worker.stop()
    assert [job async for job in tocsin_app.jobs()] == []


async def test_runs_that_never_wait_leave_turns_to_others(tocsin_app, make_worker):
    turns, running = 0, True

    @tocsin_app.job
    async def busy():
        until = monotonic() + 0.001
        while monotonic() < until:
            pass

    async def others():
        nonlocal turns
        while running:
            turns += 1
            await asyncio.sleep(0)

    worker = await make_worker(concurrency=1)
    await tocsin_app.enqueue_many(busy, [() for _ in range(200)])
    busy.mean = 0.001
    worker.served["default"].handlers.add(busy)
    worker.served["default"].expect_all([0.0])
    await worker.fetcher.step()
    before, backlog = turns, worker.pool.waiting
    assert backlog > 60
    ticking = asyncio.create_task(others())
    await eventually(lambda: not worker.pool.busy, "all have run")
    running = False
    await ticking
    # Of each turn 2 ms are for handlers: at most two or three of these runs.
    assert turns - before >= backlog // 4


async def test_a_worker_shows_what_it_is_doing(tocsin_app, make_worker, gate):
    @tocsin_app.job
    async def job():
        await gate.enter()

    await tocsin_app.enqueue_many(job, [() for _ in range(5)])
    worker = await make_worker(start=True, concurrency=2)
    await eventually(lambda: len(gate.inside) == 2, "two are inside")
    stats = worker.stats()
    assert (stats.claimed, stats.running, stats.ran, stats.lost, stats.stuck) == (2, 2, 0, 0, 0)
    gate.open()
    await eventually(lambda: worker.stats().ran == 5, "all have ended")
    assert worker.stats().running == 0


setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="clean")


async def test_context_variables_of_a_thread_do_not_leak_into_the_next_run(tocsin_app, make_worker):
    seen = []

    @tocsin_app.job
    def job():
        seen.append(setting.get())
        setting.set("dirty")

    await tocsin_app.enqueue_many(job, [() for _ in range(3)])
    await make_worker(start=True, concurrency=1)
    await eventually(lambda: len(seen) == 3, "three runs")
    assert seen == ["clean"] * 3


async def test_context_variables_of_a_run_stay_with_its_runner_and_reach_no_other_and_not_the_worker(
    tocsin_app, make_worker, gate
):
    """One runner executes run after run in one context: that is the price of having no task per run."""
    seen = []

    @tocsin_app.job
    async def job(n):
        seen.append(setting.get())
        setting.set(f"set by {n}")
        await gate.enter(n)

    await tocsin_app.enqueue_many(job, [(n,) for n in range(3)])
    await make_worker(start=True, concurrency=3)
    await eventually(lambda: len(gate.inside) == 3, "three runs at once")
    assert seen == ["clean"] * 3
    assert setting.get() == "clean"
