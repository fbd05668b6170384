"""Breakers around claims and finishes, fed by what the server really answers."""

from __future__ import annotations

import asyncio

import pytest

from engine.waiting import run_dry
from logged import capture_logs
from tocsin.engine.finish import MOST_TRIES
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import BreakerSettings, State

QUICK = BreakerSettings(failure_threshold=3, failure_window_ms=10_000, cooldown_ms=5000, half_open_duration_ms=1000)


async def break_key(app, base: str) -> None:
    """A key that holds another type makes every script that writes to it fail."""
    [*_, keys] = [queue.keys for queue in app.store._queues.values() if queue.name == "line"]
    await app.store.client.delete(keys[0][base])
    await app.store.client.set(keys[0][base], "not ours")


async def mend_key(app, base: str) -> None:
    [*_, keys] = [queue.keys for queue in app.store._queues.values() if queue.name == "line"]
    await app.store.client.delete(keys[0][base])


@pytest.fixture
def line(tocsin_app):
    """One partition, so that one broken key breaks every claim; and a job for it."""
    tocsin_app.queue("line", partitions=1)
    ran = []

    @tocsin_app.job(queue="line")
    async def job(n):
        ran.append(n)

    job.ran = ran
    return job


async def fails(step) -> None:
    with pytest.raises(StoreError):
        await step()


async def test_claims_that_fail_open_the_breaker_and_then_nobody_asks(tocsin_app, tocsin_clock, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    assert worker.acquisition_breaker.state is State.OPEN
    calls = (await tocsin_app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    for _ in range(20):
        assert await worker.fetcher.step() > 0
    assert (await tocsin_app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"] == calls
    status = worker.stats().acquisition_breaker
    assert (status.state, status.trips, status.blocked) == (State.OPEN, 1, 20)


async def test_after_the_cooldown_one_good_claim_closes_it(tocsin_app, tocsin_clock, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    rest = await worker.fetcher.step()
    tocsin_clock.advance(rest)
    await run_dry(worker)
    assert line.ran == [1]
    status = worker.stats().acquisition_breaker
    assert (status.state, status.recoveries) == (State.CLOSED, 1)


async def test_a_person_may_close_both(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    worker.reset_breakers()
    await run_dry(worker)
    assert line.ran == [1]


async def test_a_breaker_that_is_switched_off_never_opens(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(10):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    await run_dry(worker)
    assert line.ran == [1]


async def claimed_and_ended(worker) -> None:
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)


async def test_a_finish_that_the_server_refuses_is_tried_once_a_pass_and_rescued(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1, id="j")
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    for _ in range(MOST_TRIES - 1):
        await fails(worker.finisher.step)
    await mend_key(tocsin_app, "sessions")
    await worker.finisher.step()
    assert worker.finisher.idle()
    assert await tocsin_app.get("j") is None
    assert worker.tally.recovery[True] == 1
    assert worker.tally.retry_exhausted == 0


async def test_after_three_tries_the_claim_is_given_up_and_comes_back_when_its_deadline_is_over(
    tocsin_app, tocsin_clock, make_worker, line
):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1, id="j")
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    with capture_logs() as logs:
        for _ in range(MOST_TRIES):
            await fails(worker.finisher.step)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] != []
    await mend_key(tocsin_app, "sessions")
    assert worker.finisher.idle()
    assert (worker.tally.retry_exhausted, worker.tally.recovery[False]) == (1, 1)
    # Released at once, it would run and be refused over and over.
    await worker.unheld.step()
    tocsin_clock.advance("3s")
    await worker.unheld.step()
    assert (await tocsin_app.get("j")).stage == "working"
    tocsin_clock.advance("1h")
    other = await make_worker(queues=["line"])
    assert await other.runs.recover(other.queues[0], 0, "", 30_000) == 1
    await run_dry(other)
    assert line.ran == [1, 1]


async def test_the_redis_breaker_derives_from_the_same_settings_and_holds_finishes_back(
    tocsin_app, tocsin_clock, make_worker, line
):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    for n in range(3):
        await tocsin_app.enqueue(line, n)
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.finisher.step)
    status = worker.stats().redis_breaker
    assert status.state is State.OPEN
    # 0.7 of five seconds.
    assert 3.4 < status.probe_in <= 3.5


async def test_a_worker_whose_breaker_is_open_shows_it(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await worker.vitals.check.step()
    health = worker.stats().health
    assert (str(health.state), health.reasons) == ("DEGRADED", ("the acquisition breaker is OPEN",))
    assert worker.about().health == "DEGRADED"
