"""How runs of an AgentScheduler end: at their timeout, and when it is shut down."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.agent_scheduling import AGENTS, agent
from tests.support.waiting import eventually, run_dry
from tocsin import Tocsin, TocsinError

pytestmark = pytest.mark.agents


async def past_its_timeout_and_the_threshold(worker, clock) -> None:
    """Both passes: one meets the run, the next finds it a zombie."""
    clock.advance("40s")
    await worker.sweep.step()
    await worker.sweep.step()


async def test_a_run_past_its_timeout_is_cancelled_and_told_as_failed(
    scheduler, by_hand, tocsin_app, tocsin_clock, told, gate
):
    async def waits(agent):
        await gate.enter()

    scheduler.schedule(agent(timeout="10s", error_interval="5m"), waits, told)
    worker = await by_hand(scheduler)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "it runs")
    await past_its_timeout_and_the_threshold(worker, tocsin_clock)
    await eventually(lambda: not worker.pool.busy, "it has ended")
    await run_dry(worker)
    assert told.lines == [("started", "caching"), ("failed", "caching", "CancelledError()", 40_000.0)]
    job = await tocsin_app.get("caching", queue=AGENTS)
    assert job.failed == 1
    assert job.due_ms - tocsin_clock.ms == pytest.approx(300_000, rel=0.1)


async def test_a_thread_past_its_timeout_is_told_and_keeps_its_permit(scheduler, by_hand, tocsin_clock):
    runs, let_go = [], threading.Event()

    def stuck(agent, run):
        runs.append(run)
        assert let_go.wait(20)

    scheduler.schedule(agent(timeout="10s"), stuck)
    worker = await by_hand(scheduler)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    await eventually(lambda: runs, "it runs")
    await past_its_timeout_and_the_threshold(worker, tocsin_clock)
    assert (runs[0].cancelled, worker.pool.busy, worker.stats().stuck) == (True, 1, 1)
    let_go.set()
    await eventually(lambda: not worker.pool.busy, "the thread has ended")


async def test_shutdown_lets_runs_end_and_claims_nothing_more(scheduler, tocsin_app, gate):
    async def waits(agent):
        await gate.enter(agent.type)

    scheduler.schedule(agent(), waits)
    await scheduler.initialize()
    await eventually(lambda: gate.inside, "it runs")
    stopping = asyncio.create_task(scheduler.shutdown())
    await eventually(lambda: scheduler.stats().worker is None, "it stops")
    scheduler.schedule(agent("late"), waits)
    gate.open()
    await asyncio.wait_for(stopping, 10)
    assert gate.passed == 1
    assert (await tocsin_app.get("caching", queue=AGENTS)).succeeded == 1
    assert await tocsin_app.get("late", queue=AGENTS) is None


async def test_what_does_not_end_before_a_shutdown_is_run_by_another_at_its_due_time(
    make, tocsin_app, tocsin_clock, gate, told
):
    due, dues = tocsin_clock.now, []

    async def waits(agent):
        await gate.enter(agent.type)

    async def works(agent, run):
        dues.append((run.due, run.attempt))

    leaving, staying = make(), make()
    leaving.schedule(agent(), waits, told)
    staying.schedule(agent(), works)
    await leaving.initialize()
    await eventually(lambda: gate.inside, "it runs")
    await staying.initialize()
    tocsin_clock.advance("1s")
    await asyncio.wait_for(leaving.shutdown(grace=0), 10)
    await eventually(lambda: dues == [(due, 1)], "another runs it at once", within=5)
    assert [line[:3] for line in told.lines] == [("started", "caching"), ("failed", "caching", "CancelledError()")]


async def test_a_scheduler_is_initialized_once_and_may_be_again_after_its_shutdown(scheduler, tocsin_clock, notes):
    scheduler.schedule(agent(), notes)
    await scheduler.shutdown()
    await scheduler.initialize()
    with pytest.raises(TocsinError, match="initialized already"):
        await scheduler.initialize()
    await eventually(lambda: notes.ran == ["caching"], "it runs")
    await asyncio.gather(scheduler.shutdown(), scheduler.shutdown())
    tocsin_clock.advance("30s")
    await scheduler.initialize()
    await eventually(lambda: notes.ran == ["caching"] * 2, "it runs again")


async def test_a_scheduler_that_could_not_be_initialized_may_be_when_the_app_is_open(tocsin_server, make, notes):
    app = Tocsin(tocsin_server.url, prefix="late:")
    scheduler = make(app)
    scheduler.schedule(agent("late"), notes)
    with pytest.raises(TocsinError, match="not open"):
        await scheduler.initialize()
    async with app:
        await scheduler.initialize()
        await eventually(lambda: notes.ran, "it runs")
        await scheduler.shutdown()


async def test_stats_say_what_is_scheduled_registered_and_running(make, gate):
    async def waits(agent):
        await gate.enter(agent.type)

    scheduler = make(shard=lambda name: name != "foreign")
    for name in ("a", "b", "foreign"):
        scheduler.schedule(agent(name), waits)
    before = scheduler.stats()
    assert (before.scheduled, before.registered, before.running, before.worker) == (3, 0, 0, None)
    await scheduler.initialize()
    await eventually(lambda: len(gate.inside) == 2, "both run")
    stats = scheduler.stats()
    assert (stats.scheduled, stats.registered, stats.running, stats.worker.claimed) == (3, 2, 2, 2)
    await scheduler.shutdown(grace=0)
    assert scheduler.stats() == before
