"""One partition that is garbled rests; the others are served, and no breaker opens for it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import run_dry
from tocsin.engine.refused_outcomes import MOST_TRIES
from tocsin.resilience.breaker import BreakerSettings, BreakerState

QUICK = BreakerSettings(failure_threshold=3, failure_window_ms=10_000, cooldown_ms=5000, half_open_duration_ms=1000)


@pytest.fixture
def ran():
    return []


@pytest.fixture
def job(tocsin_app, ran):
    """In queues of one partition each."""
    for name in ("broken", "other"):
        tocsin_app.queue(name, partitions=1)

    @tocsin_app.job(queue="other")
    async def job(x):
        ran.append(x)

    return job


async def garble(app, base: str) -> str:
    key = (await app.store.find_queue("broken")).keys[0][base]
    await app.store.client.delete(key)
    await app.store.client.set(key, "not ours")
    return key


async def look(worker) -> None:
    for served in worker.served.values():
        served.mark_due_or_parked(0)
    await worker.fetcher.step()


@pytest.mark.parametrize("base", ["meta", "sessions", "waiting", "working", "claims", "jobs", "parked"])
async def test_other_queues_are_served_while_one_is_garbled_and_it_is_served_again_when_it_is_mended(
    tocsin_app, tocsin_clock, make_worker, job, ran, base
):
    worker = await make_worker(queues=["broken", "other"], breaker=QUICK)
    await tocsin_app.enqueue(job, "early", queue="broken")
    key = await garble(tocsin_app, base)
    for n in range(10):
        await tocsin_app.enqueue(job, n)
        await look(worker)
        await run_dry(worker)
    # Where what is garbled is not looked at, its jobs run too.
    assert [x for x in ran if x != "early"] == list(range(10))
    assert worker.stats().acquisition_breaker.trips == worker.stats().redis_breaker.trips == 0
    await tocsin_app.store.client.delete(key)
    tocsin_clock.advance(40)
    await tocsin_app.store.reopen(await tocsin_app.store.find_queue("broken"))
    await tocsin_app.enqueue(job, "late", queue="broken", id="late")
    await look(worker)
    await run_dry(worker)
    assert "late" in ran
    assert not worker.fetcher.faults.by_place


async def test_a_garbled_partition_is_asked_less_and_less_often_whatever_rings(
    tocsin_app, tocsin_clock, make_worker, job
):
    worker = await make_worker(queues=["broken", "other"])
    await garble(tocsin_app, "claims")
    asked = []
    worker.fetcher._on_claims = lambda claims, took: asked.extend(
        tocsin_clock.monotonic() for claim in claims if claim.queue == "broken"
    )
    began = tocsin_clock.monotonic()
    with capture_logs() as logs:
        for _ in range(1000):
            await look(worker)
            tocsin_clock.advance("100ms")
    assert [round(at - began) for at in asked] == [0, 1, 3, 7, 15, 31, 61, 91]
    told = [line for line in logs if line["logger"] == "tocsin.faults"]
    assert [(line["queue"], line["partition"], "claims" in line["error"]) for line in told] == 2 * [("broken", 0, True)]


async def test_outcomes_of_a_garbled_partition_are_given_up_and_those_of_others_written(
    tocsin_app, make_worker, job, ran
):
    worker = await make_worker(queues=["broken", "other"], breaker=QUICK)
    await tocsin_app.enqueue(job, "lost", queue="broken")
    await tocsin_app.enqueue(job, "kept", id="kept")
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)
    await garble(tocsin_app, "sessions")
    for _ in range(1 + MOST_TRIES):
        await worker.finisher.step()
    assert worker.finisher.idle()
    assert await tocsin_app.handle("kept").status() == "succeeded"
    assert worker.parts.redis_breaker.state is BreakerState.CLOSED


async def test_a_worker_with_a_garbled_partition_says_so(tocsin_app, make_worker, job):
    worker = await make_worker(queues=["broken", "other"])
    key = await garble(tocsin_app, "claims")
    await look(worker)
    await worker.telemetry.check.step()
    health = worker.stats().health
    [reason] = [reason for reason in health.reasons if "broken" in reason]
    assert (str(health.state), reason.startswith("partition 0 of queue broken fails: "), key in reason) == (
        "DEGRADED",
        True,
        True,
    )


async def test_a_queue_whose_settings_are_garbled_ends_no_pass(tocsin_app, make_worker, job, ran):
    worker = await make_worker(queues=["broken", "other"])
    meta = (await tocsin_app.store.find_queue("broken")).keys[0]["meta"]
    await tocsin_app.store.client.hset(meta, mapping={"epoch": b"\xff", "order": b"\xff", "partitions": "nan"})
    for n in range(5):
        await tocsin_app.enqueue(job, n)
        await look(worker)
        await run_dry(worker)
        await worker.parts.upkeep.reaper.step()
    assert ran == list(range(5))
    [fault] = worker.fetcher.faults.by_place.values()
    assert "queue 'broken' has order b'\\xff'" in fault.error
