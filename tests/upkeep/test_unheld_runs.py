"""The server has runs as claimed by a worker that does not have them: the worker hands them back, and only these."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.lost_writes import Snapshot
from tests.support.proxy import Proxy
from tests.support.waiting import Gate, eventually, run_dry
from tocsin import StoreUnavailable, Tocsin
from tocsin.engine.claim_planner import MANY
from tocsin.worker import Worker

BEAT_S = 2


async def fetch(worker: Worker) -> None:
    await asyncio.to_thread(worker.heart.beat)
    for served in worker.served.values():
        served.expect_all([0.0] * served.queue.partitions)
    await worker.fetcher.step()


async def write_outcomes(worker: Worker) -> None:
    await eventually(lambda: not worker.pool.busy, "all ended")
    while not worker.finisher.idle():
        await worker.finisher.step()


async def look_everywhere(worker: Worker) -> None:
    worker.parts.upkeep.unheld_runs.hurry()
    await worker.parts.upkeep.unheld_runs.step()


async def look_twice(worker: Worker, clock) -> None:
    await look_everywhere(worker)
    clock.advance(BEAT_S)
    await look_everywhere(worker)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def job(tocsin_app: Tocsin, gate: Gate):
    @tocsin_app.job(name="job")
    async def job():
        await gate.enter()

    return job


async def state(app: Tocsin, name: str) -> tuple[str, int, int]:
    found = await app.get(name)
    return found.stage.value, found.attempt, found.recoveries


async def test_a_run_whose_written_outcome_the_server_lost_goes_back_after_a_beat_and_runs_again(
    tocsin_app, tocsin_clock, make_worker, gate, job
):
    await tocsin_app.enqueue(job, id="a")
    worker, snapshot = await make_worker(), Snapshot(tocsin_app.store)
    await fetch(worker)
    await eventually(lambda: gate.inside, "it runs")
    await snapshot.take()
    gate.open()
    await write_outcomes(worker)
    assert await tocsin_app.get("a") is None
    await snapshot.put_back()

    with capture_logs() as logs:
        await look_everywhere(worker)
        tocsin_clock.advance(BEAT_S - 0.1)
        await look_everywhere(worker)
        assert await state(tocsin_app, "a") == ("working", 1, 0)
        tocsin_clock.advance(0.1)
        await look_everywhere(worker)
    assert await state(tocsin_app, "a") == ("waiting", 1, 0)
    assert [line["runs"] for line in logs if "not held by it" in line["event"]] == [1]
    await fetch(worker)
    await write_outcomes(worker)
    assert (await tocsin_app.get("a"), worker.pool.ran) == (None, 2)


async def test_runs_that_the_worker_has_stay_with_it(tocsin_app, tocsin_clock, make_worker, gate, job):
    """In line for a runner, inside a handler, ended and not written; and those of another worker."""
    await tocsin_app.enqueue(job, id="others")
    other, worker = await make_worker(), await make_worker()
    await fetch(other)
    await eventually(lambda: gate.inside, "the other has one")
    worker.pool.hold()
    await tocsin_app.enqueue(job, id="own")
    await fetch(worker)
    assert worker.pool.waiting == 1
    await look_twice(worker, tocsin_clock)
    worker.pool.go_on()
    await eventually(lambda: worker.running, "it runs")
    await look_twice(worker, tocsin_clock)
    gate.open()
    await eventually(lambda: not worker.pool.busy, "it ended")
    assert worker.finisher.outcomes.ended
    await look_twice(worker, tocsin_clock)
    await write_outcomes(worker)
    await write_outcomes(other)
    assert (worker.parts.upkeep.unheld_runs.released, worker.finisher.lost, other.finisher.lost) == (0, 0, 0)


@pytest.mark.one_server(reason="the proxy stands before one server")
async def test_a_claim_that_the_worker_has_not_heard_of_yet_is_left_alone(valkey, tocsin_clock, make_worker):
    ran = []
    async with Proxy(valkey) as proxy, Tocsin(proxy.url, prefix="unheld-reply:", clock=tocsin_clock) as app:

        @app.job(name="job")
        async def job():
            ran.append(1)

        await app.enqueue(job, id="a")
        worker = await make_worker(app)
        proxy.cut("after", "run_claim")
        with pytest.raises(StoreUnavailable):
            await fetch(worker)
        await look_twice(worker, tocsin_clock)
        assert await state(app, "a") == ("working", 1, 0)
        await fetch(worker)
        await write_outcomes(worker)
        assert (ran, worker.parts.upkeep.unheld_runs.released, worker.finisher.lost) == ([1], 0, 0)
        await worker.kill()


async def test_runs_of_a_worker_that_the_server_forgot_go_back_although_nobody_buries_its_name(
    tocsin_app, tocsin_clock, make_worker, gate, job
):
    await tocsin_app.enqueue(job, id="a")
    worker = await make_worker()
    await fetch(worker)
    await eventually(lambda: gate.inside, "it runs")
    former = worker.name
    await tocsin_app.store.client.hdel(tocsin_app.store.keys.fleet()["beats"], former)
    await asyncio.to_thread(worker.heart.beat)
    await eventually(lambda: worker.name != former and not worker.pool.busy, "it began anew")
    assert (await tocsin_app.get("a")).owner == former
    await look_twice(worker, tocsin_clock)
    assert await state(tocsin_app, "a") == ("waiting", 1, 0)


@pytest.mark.one_server
@pytest.mark.parametrize("runs", [1, 2 * MANY])
async def test_runs_claimed_in_a_former_name_go_back_when_the_claim_is_answered_and_run_once(
    valkey, tocsin_clock, make_worker, runs
):
    ran = []
    async with Proxy(valkey) as proxy, Tocsin(proxy.url, prefix=f"former-{runs}:", clock=tocsin_clock) as app:

        @app.job(name="job")
        async def job(n):
            ran.append(n)

        await app.enqueue_many(job, ([n] for n in range(runs)))
        worker = await make_worker(app, concurrency=runs)
        former, queue = worker.name, worker.served["default"].queue
        proxy.hold("run_claim")
        fetching = asyncio.create_task(fetch(worker))
        working = queue.keys[0]["working"]
        await eventually(lambda: app.store.client.zcard(working), "they are claimed, and the answer is on its way")
        await app.store.client.hdel(app.store.keys.fleet()["beats"], former)
        await asyncio.to_thread(worker.heart.beat)
        await eventually(lambda: worker.name != former and worker.heart.lease.until, "it has begun anew")
        proxy.let_go()
        await fetching
        assert (ran, worker.pool.busy, await app.store.client.zcard(working)) == ([], 0, 0)
        await run_dry(worker)
        assert (sorted(ran), worker.finisher.lost) == (list(range(runs)), 0)
        await worker.kill()


@pytest.mark.agents
async def test_an_agent_whose_outcome_the_server_lost_runs_again_before_its_next_tick(
    tocsin_app, tocsin_clock, make_worker, gate
):
    @tocsin_app.agent(every="1h", name="hourly")
    async def hourly() -> None:
        await gate.enter()

    worker, snapshot = await make_worker(queues=["agents"]), Snapshot(tocsin_app.store, "agents")
    await worker.reconciler.step()
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "it runs")
    await snapshot.take()
    gate.open()
    await write_outcomes(worker)
    await snapshot.put_back()
    await look_twice(worker, tocsin_clock)
    await worker.fetcher.step()
    await write_outcomes(worker)
    assert (gate.passed, worker.finisher.lost) == (2, 0)


async def test_a_started_worker_finds_by_itself_what_the_server_brought_back(live_app, make_worker, gate):
    @live_app.job(name="job")
    async def job():
        await gate.enter()

    await live_app.enqueue(job, id="a")
    worker, snapshot = await make_worker(live_app, start=True), Snapshot(live_app.store)
    await eventually(lambda: gate.inside, "it runs")
    await snapshot.take()
    gate.open()
    await eventually(lambda: gate.passed == 1 and worker.finisher.idle(), "its outcome is written")
    await snapshot.put_back()
    await eventually(lambda: gate.passed == 2, "it ran again, long before its deadline", within=60)


async def test_a_lost_claim_is_not_said_to_be_another_workers(tocsin_app, make_worker, gate, job):
    await tocsin_app.enqueue(job, id="a")
    worker, snapshot = await make_worker(), Snapshot(tocsin_app.store)
    await snapshot.take()
    await fetch(worker)
    await eventually(lambda: gate.inside, "it runs")
    await snapshot.put_back()
    gate.open()
    with capture_logs() as logs:
        await write_outcomes(worker)
    [said] = [line["event"] for line in logs if "claim lost" in line["event"]]
    assert said == "claim lost: its outcome was not written, because the claim is gone or another worker holds it"


async def looks(app: Tocsin, worker: Worker) -> tuple[int, float]:
    """How many one pass makes, and how many seconds it rests then."""
    client = app.store.client
    before = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    rest = await worker.parts.upkeep.unheld_runs.step()
    return (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] - before, rest


@pytest.mark.one_server(reason="counts the calls of one server")
async def test_an_idle_worker_with_many_queues_looks_twice_a_second_and_everywhere_soon_after_an_outage(
    tocsin_app, make_worker, job
):
    names = [f"queue-{n}" for n in range(100)]
    for name in names:
        tocsin_app.queue(name, partitions=1)
    worker = await make_worker(queues=names)
    assert [await looks(tocsin_app, worker) for _ in range(3)] == [(8, 4)] * 3
    worker._react_to_beat(None, 0.0)
    assert [await looks(tocsin_app, worker) for _ in range(3)] == [(50, 1), (50, 4), (8, 4)]


@pytest.mark.one_server(reason="counts the calls of one server")
async def test_a_worker_with_one_partition_looks_at_it_once_in_four_seconds(tocsin_app, make_worker, job):
    tocsin_app.queue("one", partitions=1)
    worker = await make_worker(queues=["one"])
    assert [await looks(tocsin_app, worker) for _ in range(3)] == [(1, 4)] * 3
