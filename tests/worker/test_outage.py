"""The server goes away and comes back: nothing that ended is forgotten, and the worker goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server
from tests.support.waiting import Gate, eventually
from tocsin import Every, StoreUnavailable, Tocsin
from tocsin.model.clock import monotonic
from tocsin.resilience.breaker import BreakerState
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.settle import release_item


@pytest.fixture
def server():
    with Server.valkey(aof=True) as server:
        yield server


@pytest.fixture
async def app(server):
    async with Tocsin(server.url) as app:
        yield app


async def ended(handle) -> bool:
    return await handle.status() == "succeeded"


async def test_outcomes_are_kept_while_the_server_is_away_and_written_when_it_is_back(server, app, make_worker):
    gate = Gate()
    ran, door = [], threading.Event()

    @app.job
    async def on_loop(n):
        await gate.enter(n)
        ran.append(n)
        return n * 10

    @app.job
    def in_thread(n):
        door.wait(20)
        ran.append(n)
        return n * 10

    @app.job
    async def fails(n):
        await gate.enter(n)
        ran.append(n)
        raise ValueError("while it was away")

    handles = [await app.enqueue(on_loop, n, id=f"loop{n}") for n in range(3)]
    handles += [await app.enqueue(in_thread, n, id=f"thread{n}") for n in range(3, 5)]
    bad = await app.enqueue(fails, 5, id="bad")
    recurring = await app.schedule(on_loop, Every("1h"), 6, id="hourly")
    await app.fire("hourly")
    worker = await make_worker(app, start=True)
    await eventually(lambda: worker.stats().running == 7, "all are running")

    server.kill()
    gate.open()
    door.set()
    await eventually(lambda: len(ran) == 7, "all have ended")
    await asyncio.sleep(0)
    assert not worker.finisher.idle()

    server.start()
    for n, handle in enumerate(handles):
        assert await handle.result("20s") == n * 10

    async def dead() -> bool:
        return await bad.status() == "failed"

    await eventually(dead, "the failure is written too")
    await eventually(worker.finisher.idle, "nothing is left to write")
    assert sorted(ran) == list(range(7))
    assert await recurring.status() == "waiting"
    assert (await app.get("hourly")).succeeded == 1
    assert worker.stats().lost == 0


async def test_a_worker_finds_new_work_after_a_restart_of_the_server(server, app, make_worker):
    @app.job
    async def job(n):
        return n

    worker = await make_worker(app, start=True)
    assert await (await app.enqueue(job, 1, id="before")).result("10s") == 1
    for n in range(2, 4):
        server.restart()
        handle = await app.enqueue(job, n, id=f"after {n}")
        assert await handle.result("20s") == n
    assert worker.stats().ran == 3


async def test_a_server_that_is_away_is_not_taken_for_one_with_nothing_to_do(server, app, monkeypatch):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.05)

    @app.job
    async def job():
        return "ran"

    handle = await app.enqueue(job, id="held elsewhere")
    queue, ghost = await app.store.find_queue("default"), Runs(app.store, "ghost")
    partition = queue.partition_of(handle.id)
    [claimed] = await ghost.claim([ClaimRequest(queue, partition, 1)], lease=1e15)
    working = asyncio.create_task(app.work(until="idle"))
    server.kill()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(working), 0.5)
    server.start()
    await app.store.call(ghost.settle("release", queue, partition, [release_item(claimed.claims[0])]))
    await asyncio.wait_for(working, 20)
    assert await handle.result() == "ran"


async def test_a_call_waits_a_while_for_a_server_that_is_away(server, app):
    @app.job
    async def job():
        pass

    await app.enqueue(job)
    server.kill()
    enqueueing = asyncio.create_task(app.enqueue(job, id="patient"))
    await asyncio.sleep(0)
    server.start()
    handle = await asyncio.wait_for(enqueueing, 10)
    assert handle.new
    assert await handle.status() == "waiting"


async def test_a_call_gives_up_when_the_server_stays_away(server, app, monkeypatch):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.1)

    @app.job
    async def job():
        pass

    await app.enqueue(job)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await app.enqueue(job)
    with pytest.raises(StoreUnavailable):
        await app.get("x")
    server.start()
    assert (await app.enqueue(job)).new


async def test_a_worker_on_a_server_that_was_wiped_goes_on_with_what_comes(server, app, make_worker):
    gate = Gate()

    @app.job
    async def job(n):
        await gate.enter(n)
        return n

    await app.enqueue(job, 1, id="wiped")
    worker = await make_worker(app, start=True)
    await eventually(lambda: gate.inside, "it runs")
    with server.client() as client:
        client.flushall()
    gate.open()
    handle = await app.enqueue(job, 2, id="new")
    assert await handle.result("20s") == 2
    await eventually(worker.finisher.idle, "nothing is left to write")
    assert await app.get("wiped") is None


@pytest.mark.parametrize("which", ["acquisition_breaker", "redis_breaker"])
async def test_the_first_beat_after_an_outage_opens_the_way_although_a_late_answer_came(app, make_worker, which):
    worker = await make_worker(app)
    breaker = getattr(worker.parts, which)
    late = breaker.allow()
    while breaker.state is BreakerState.CLOSED:
        breaker.answered(breaker.allow(), [StoreUnavailable("away")])
    breaker.answered(late, [object()])
    await asyncio.to_thread(worker.heart.beat)
    await eventually(lambda: breaker.state is BreakerState.HALF_OPEN, "it may be probed")


async def test_data_that_is_gone_is_one_error_for_all_queues_and_one_for_the_worker(server, app, make_worker):
    ran = []
    for name in ("one", "two", "three"):
        app.queue(name)

    @app.job
    async def job(n):
        ran.append(n)

    worker = await make_worker(app, start=True)
    with capture_logs() as logs:
        with server.client() as client:
            client.flushall()
        for name in ("one", "two", "three", "default"):
            await app.enqueue_many(job, [(n,) for n in range(20)], queue=name)
        await eventually(lambda: len(ran) == 80, "all ran")
        await asyncio.to_thread(worker.heart.beat)
        await eventually(lambda: any("forgotten" in line["event"] for line in logs), "the beat was refused")
    errors = [line["event"] for line in logs if line["log_level"] in ("warning", "error")]
    assert errors == [
        "the server lost its data, or has other data than before: opening the queues again",
        "the server has forgotten this worker, and so lost data: beginning anew",
    ]


async def test_a_run_claimed_after_all_data_was_lost_and_before_the_next_beat_goes_back(server, app, make_worker):
    """The beat is refused and the worker begins anew, but nobody buries the name under which it claimed."""
    gate = Gate()

    @app.job
    async def job():
        await gate.enter()

    worker = await make_worker(app)
    former = worker.name
    with server.client() as client:
        client.flushall()
    await app.enqueue(job, id="a")

    async def is_inside() -> bool:
        await worker.fetcher.step()
        return bool(gate.inside)

    await eventually(is_inside, "it runs")
    await asyncio.to_thread(worker.heart.beat)
    await eventually(lambda: worker.name != former and not gate.inside, "it began anew")
    assert (await app.get("a")).owner == former

    async def is_back() -> bool:
        await worker.parts.upkeep.unheld_runs.step()
        return (await app.get("a")).stage == "waiting"

    await eventually(is_back, "it waits for a worker")


async def test_a_worker_that_was_buried_says_that_it_was_declared_dead(app, make_worker):
    worker = await make_worker(app)
    assert await Fleet(app.store).declare_dead(worker.name, b"1", 10_000)
    # Only a worker whose lease is over may be buried.
    worker.heart.lease.until = 1.0
    with capture_logs() as logs:
        await asyncio.to_thread(worker.heart.beat)
        await eventually(lambda: any("declared this worker dead" in line["event"] for line in logs), "it says so")


async def test_the_grace_period_is_not_longer_when_the_server_does_not_answer(server, app, make_worker):
    gate = Gate()

    @app.job(name="job")
    async def job():
        await gate.enter(1)

    worker = await make_worker(app, start=True)
    await app.enqueue(job)
    await eventually(lambda: gate.inside, "it runs")
    server.pause()
    worker.fetcher.served[0].look_in_turn()
    worker.fetcher.wake.set()
    await eventually(lambda: worker.fetcher.served[0].asked, "a claim is on its way")
    began = monotonic()
    stopping = asyncio.create_task(worker.stop(grace=2))
    await eventually(lambda: not gate.inside, "it is told to end")
    # Claims that are not answered are waited for, as part of the grace period.
    assert monotonic() - began < 3
    await stopping


async def test_a_worker_that_finds_the_server_away_while_it_stops_does_not_wait_for_it(server, app, make_worker):
    @app.job(name="job")
    async def job(): ...

    worker = await make_worker(app)
    server.kill()
    began = monotonic()
    stopping = asyncio.create_task(worker.stop(grace=0))
    await asyncio.to_thread(worker.heart.beat)
    await stopping
    assert monotonic() - began < 4
