"""A worker died: one of the others brings back its runs, and if that one dies too, the next."""

from __future__ import annotations

import asyncio

import pytest

from tocsin import Tocsin
from tocsin.testing import ManualClock
from tocsin.worker import Worker


async def watch(clock: ManualClock, seconds: float, *workers: Worker) -> None:
    """They beat every 2 s and see the others, but do nothing about what they see."""
    for worker in workers:
        worker._loop = asyncio.get_running_loop()
    for _ in range(int(seconds / 2)):
        clock.advance("2s")
        for worker in workers:
            await asyncio.to_thread(worker.heart.beat)
        await asyncio.sleep(0)


async def walks(app: Tocsin) -> int:
    """How often somebody looked through all runs at work."""
    stats = await app.store.client.info("commandstats")
    return int(stats.get("cmdstat_zscan", {"calls": 0})["calls"])


@pytest.fixture
async def dead(tocsin_app: Tocsin, make_worker) -> Worker:
    """It runs a job, and beats no more."""

    @tocsin_app.job(name="work", timeout="1h")
    async def work() -> None:
        await asyncio.Event().wait()

    dead = await make_worker()
    await tocsin_app.enqueue(work, id="job")
    await dead.fetcher.step()
    return dead


async def owner(app: Tocsin) -> str | None:
    job = await app.get("job")
    assert job is not None
    return job.owner


async def test_one_of_many_brings_back_the_runs_of_a_dead_worker(tocsin_app, make_worker, tocsin_clock, dead):
    others = [await make_worker() for _ in range(4)]
    await watch(tocsin_clock, 12, *others)
    before = await walks(tocsin_app)
    for _ in range(3):
        for other in others:
            await other.parts.upkeep.reaper.step()
        await watch(tocsin_clock, 2, *others)
    assert await owner(tocsin_app) is None
    assert sum(other.parts.upkeep.reaper.recovered for other in others) == 1
    assert await walks(tocsin_app) - before == 1


async def test_if_it_dies_on_the_way_another_takes_over(tocsin_app, make_worker, tocsin_clock, dead):
    first, second = [await make_worker() for _ in range(2)]
    await watch(tocsin_clock, 12, first, second)
    [(name, counter)] = first.parts.upkeep.reaper._dead.items()
    assert await first.parts.fleet.declare_dead(name, counter, 10_000)
    await watch(tocsin_clock, 8, second)
    await second.parts.upkeep.reaper.step()
    assert await owner(tocsin_app) == dead.name
    await watch(tocsin_clock, 4, second)
    await second.parts.upkeep.reaper.step()
    assert await owner(tocsin_app) is None
