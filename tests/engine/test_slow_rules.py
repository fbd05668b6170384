"""Rules that take long to work out, many at once: the loop has time for others in between."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from tests.support.waiting import run_dry
from tocsin import Rrule
from tocsin.engine import finisher as finish
from tocsin.engine import intake
from tocsin.model import rrule
from tocsin.testing import run_until_idle

MANY = 20


@pytest.fixture
async def app(tocsin_app, tocsin_clock):
    """With jobs of as many rules, all due now."""

    @tocsin_app.job(name="job")
    async def job(): ...

    begin = tocsin_clock.now + timedelta(minutes=1)
    rows = [(f"{n}", Rrule(f"FREQ=DAILY;COUNT={1000 + n}", start=begin), ()) for n in range(MANY)]
    await tocsin_app.schedule_many(job, rows)
    tocsin_clock.advance("1m")
    return tocsin_app


async def test_others_get_their_turn_between_rules_that_a_worker_reads(app, make_worker, monkeypatch):
    monkeypatch.setattr(intake, "GIVE_WAY_S", 0.0)
    worker = await make_worker(app)
    rrule.parse.cache_clear()
    seen = set()

    async def look():
        while True:
            seen.add(rrule.parse.cache_info().misses)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    try:
        await worker.fetcher.step()
        while worker.fetcher.claimed < MANY:
            await worker.fetcher.step()
    finally:
        looking.cancel()
    assert seen >= set(range(1, MANY))


async def test_a_pass_that_takes_long_leaves_outcomes_to_the_next_and_loses_none(app, make_worker, monkeypatch):
    monkeypatch.setattr(finish, "GIVE_WAY_S", 0.0)
    worker = await make_worker(app)
    while worker.fetcher.claimed < MANY:
        await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)
    left = [len(worker.finisher.outcomes.ended)]
    while worker.finisher.outcomes.ended:
        assert await worker.finisher.step() < 60
        left.append(len(worker.finisher.outcomes.ended))
    assert [before - after for before, after in itertools.pairwise(left)] == [1] * MANY
    await run_dry(worker)
    assert sum([1 async for run in app.runs() if run.outcome == "succeeded"]) == MANY
    assert await run_until_idle(app) == 0
