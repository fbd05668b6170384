"""Dead letters, and jobs whose handler nobody knows."""

from __future__ import annotations

import pytest

from tocsin import Every, Retry
from tocsin.testing import run_until_idle


@pytest.fixture
def ignorant(stranger):
    """A program that knows a handler, but not ours."""

    @stranger.job(name="another")
    async def another():
        pass

    return stranger


@pytest.fixture
async def dead(tocsin_app, tocsin_clock, note):
    """Three dead jobs, each a second later than the one before."""
    for n in range(3):
        await tocsin_app.enqueue(note, n, id=f"d{n}", fail="bad")
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("1s")


async def test_dead_jobs_are_listed_with_their_errors_oldest_first(tocsin_app, dead):
    found = [(job.id, job.stage, job.failure.error) async for job in tocsin_app.dead()]
    assert found == [(f"d{n}", "dead", "ValueError: bad") for n in range(3)]


async def test_dead_jobs_are_listed_by_queue(tocsin_app, note, dead):
    tocsin_app.queue("mail")
    await tocsin_app.enqueue(note, id="m", fail="bad", queue="mail")
    await run_until_idle(tocsin_app)
    assert [job.id async for job in tocsin_app.dead(queue="mail")] == ["m"]


async def test_a_dead_job_gets_another_life_with_all_its_retries(tocsin_app, tocsin_clock):
    attempts, healed = [], False

    @tocsin_app.job(retry=Retry(1, "1s"))
    async def flaky(run):
        attempts.append((run.attempt, run.id))
        if not healed:
            raise ValueError
        return "healed"

    handle = await tocsin_app.enqueue(flaky, id="j")
    for _ in range(2):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("1m")
    assert await handle.status() == "failed"

    assert await tocsin_app.retry_dead("j")
    assert not await tocsin_app.retry_dead("j")
    await run_until_idle(tocsin_app)
    assert await handle.status() == "waiting"
    healed = True
    tocsin_clock.advance("1s")
    await run_until_idle(tocsin_app)
    assert [attempt for attempt, _ in attempts] == [1, 2, 1, 2]
    # It is the same run: receivers that have seen it know it.
    assert len({run_id for _, run_id in attempts}) == 1
    assert await handle.result() == "healed"
    assert [job async for job in tocsin_app.dead()] == []


async def test_a_dead_job_is_dropped(tocsin_app, dead):
    assert await tocsin_app.drop_dead("d1")
    assert not await tocsin_app.drop_dead("d1")
    assert [job.id async for job in tocsin_app.dead()] == ["d0", "d2"]


async def test_only_the_dead_are_dropped_or_revived_and_only_the_parked_unparked(tocsin_app, note, dead):
    await tocsin_app.enqueue(note, id="alive", delay="1h")
    for job_id in ("alive", "nobody"):
        assert not await tocsin_app.drop_dead(job_id)
        assert not await tocsin_app.retry_dead(job_id)
        assert not await tocsin_app.unpark(job_id)
    assert not await tocsin_app.unpark("d0")
    assert (await tocsin_app.get("alive")).stage == "waiting"


async def test_a_job_whose_handler_nobody_knows_is_parked_and_runs_when_somebody_does(
    tocsin_app, tocsin_clock, stranger, note, runs
):
    @stranger.job(name="other")
    async def other():
        return "ran"

    await tocsin_app.enqueue(note, "x", id="j")
    due = tocsin_clock.now
    ours = await stranger.enqueue(other, id="ours")
    assert await run_until_idle(stranger) == 1
    assert await ours.result() == "ran"
    job = await tocsin_app.get("j")
    assert (job.stage, job.due, job.attempt, job.recoveries) == ("parked", due, 1, 0)

    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 1
    assert (runs[0].due, runs[0].attempt) == (due, 1)


async def test_a_worker_without_any_handler_leaves_jobs_to_those_that_know_them(tocsin_app, stranger, note):
    await tocsin_app.enqueue(note, id="j")
    await run_until_idle(stranger)
    assert await run_until_idle(tocsin_app) == 1


async def test_a_parked_schedule_keeps_its_cadence(tocsin_app, tocsin_clock, ignorant, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    tocsin_clock.advance("1m")
    await run_until_idle(ignorant)
    assert (await tocsin_app.get("j")).stage == "parked"
    tocsin_clock.advance("30s")
    assert await run_until_idle(tocsin_app) == 1
    job = await tocsin_app.get("j")
    assert (job.stage, job.due_ms - tocsin_clock.ms) == ("waiting", 30_000)


async def test_an_unparked_job_is_tried_again_by_anybody(tocsin_app, ignorant, note):
    await tocsin_app.enqueue(note, id="j")
    await run_until_idle(ignorant)
    assert await tocsin_app.unpark("j")
    assert not await tocsin_app.unpark("j")
    assert (await tocsin_app.get("j")).stage == "waiting"
    await run_until_idle(ignorant)
    assert (await tocsin_app.get("j")).stage == "parked"


async def test_many_jobs_that_nobody_knows_do_not_keep_the_others_from_running(tocsin_app, stranger, note):
    seen = []

    @stranger.job(name="other")
    async def other(n):
        seen.append(n)

    await tocsin_app.enqueue_many(note, [() for _ in range(500)])
    await stranger.enqueue_many(other, [(n,) for n in range(50)], delay="1ms")
    tocsin_app.store.clock.advance("1s")
    assert await run_until_idle(stranger, concurrency=5) == 50
    assert sorted(seen) == list(range(50))
    assert await run_until_idle(tocsin_app) == 500
