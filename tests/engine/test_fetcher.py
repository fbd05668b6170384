"""The fetcher: how much it claims, for whom, and when it looks again."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.model.run import Claim
from tocsin.store.transitions.claims import ClaimRequest, Runs


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def two_queues(tocsin_app, gate):
    """Long jobs in the queues a and b."""
    for name in "ab":
        tocsin_app.queue(name, partitions=4)

    @tocsin_app.job(name="long")
    async def long(n):
        await gate.enter(n)

    return long


async def fetch(worker) -> None:
    """Ask every partition, pass after pass, until the permits or the jobs are used up."""
    for served in worker.served.values():
        served.expect_all([0.0] * served.queue.partitions)
    for _ in range(40):
        await worker.fetcher.step()


def busy(worker) -> dict[str, int]:
    return {name: served.busy for name, served in worker.served.items() if name != "default"}


async def test_two_queues_get_equal_shares_of_the_permits(tocsin_app, two_queues, make_worker):
    for name in "ab":
        await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue=name)
    worker = await make_worker(queues=["a", "b"], concurrency=10)
    await fetch(worker)
    assert busy(worker) == {"a": 5, "b": 5}


async def test_an_odd_number_of_permits_is_given_away_too(tocsin_app, two_queues, make_worker):
    for name in "ab":
        await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue=name)
    worker = await make_worker(queues=["a", "b"], concurrency=7)
    await fetch(worker)
    assert sorted(busy(worker).values()) == [3, 4]


async def test_a_share_that_is_not_used_passes_on(tocsin_app, two_queues, make_worker):
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue="a")
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(2)], queue="b")
    worker = await make_worker(queues=["a", "b"], concurrency=10)
    await fetch(worker)
    assert busy(worker) == {"a": 8, "b": 2}


async def test_a_queue_whose_neighbour_is_empty_gets_all_permits(tocsin_app, two_queues, make_worker):
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue="a")
    worker = await make_worker(queues=["a", "b"], concurrency=10)
    await fetch(worker)
    assert busy(worker) == {"a": 10, "b": 0}


async def test_a_queue_that_comes_late_gets_its_share_as_permits_come_free(tocsin_app, two_queues, gate, make_worker):
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue="a")
    worker = await make_worker(queues=["a", "b"], concurrency=10)
    await fetch(worker)
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue="b")
    await eventually(lambda: len(gate.inside) == 10, "all permits are taken")
    gate.let_go(6)
    await eventually(lambda: worker.pool.busy == 4, "six runs have ended")
    await fetch(worker)
    assert busy(worker) == {"a": 5, "b": 5}


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_an_unbounded_worker_takes_everything_that_is_due(tocsin_app, two_queues, gate, make_worker, concurrency):
    await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(300)], queue="a")
    worker = await make_worker(queues=["a"], concurrency=concurrency)
    await fetch(worker)
    await eventually(lambda: len(gate.inside) == 300, "all 300 run at once")


async def test_an_unbounded_worker_serves_all_its_queues_in_one_pass(tocsin_app, two_queues, make_worker):
    for name in "ab":
        await tocsin_app.enqueue_many(two_queues, [(n,) for n in range(30)], queue=name)
    worker = await make_worker(queues=["a", "b"], concurrency=0)
    await worker.fetcher.step()
    assert busy(worker) == {"a": 30, "b": 30}


async def test_long_jobs_are_not_hoarded(tocsin_app, other_app, make_worker):
    gates = []
    for app in (tocsin_app, other_app):
        gate = Gate()
        gates.append(gate)

        @app.job(name="long")
        async def long(gate=gate):
            await gate.enter()

    for _ in range(2):
        await tocsin_app.enqueue(long)
    first, second = await make_worker(concurrency=1), await make_worker(other_app, concurrency=1)
    await fetch(first)
    await fetch(second)
    await eventually(lambda: [len(gate.inside) for gate in gates] == [1, 1], "each worker runs one")


async def measured(app, worker, handler) -> None:
    """Let the worker learn that the handler is quick."""
    await app.enqueue_many(handler, [() for _ in range(60)])
    while worker.pool.ran < 60:
        await fetch(worker)
        await eventually(lambda: not worker.pool.busy, "the runs have ended")
        await worker.finisher.step()
    assert worker.served["default"].slowest() < 0.01


async def test_nothing_is_fetched_ahead_of_the_permits_for_a_handler_that_was_never_measured(tocsin_app, make_worker):
    @tocsin_app.job
    async def unknown():
        await asyncio.Event().wait()

    await tocsin_app.enqueue_many(unknown, [() for _ in range(50)])
    worker = await make_worker(concurrency=2)
    await fetch(worker)
    assert worker.pool.busy == 2


async def test_quick_runs_are_fetched_ahead(tocsin_app, make_worker):
    @tocsin_app.job
    async def quick():
        pass

    worker = await make_worker(concurrency=2)
    await measured(tocsin_app, worker, quick)
    before = worker.fetcher.claimed
    await tocsin_app.enqueue_many(quick, [() for _ in range(500)])
    worker.served["default"].expect_all([0.0])
    await worker.fetcher.step()
    assert worker.fetcher.claimed - before > 10


async def test_a_handler_that_turns_slow_is_no_longer_fetched_ahead(tocsin_app, make_worker):
    gate, slow = Gate(), False

    @tocsin_app.job
    async def fickle():
        if slow:
            await gate.enter()

    worker = await make_worker(concurrency=1)
    await measured(tocsin_app, worker, fickle)
    for handler in worker.served["default"].handlers:
        handler.mean = 1.0
    slow = True
    await tocsin_app.enqueue_many(fickle, [() for _ in range(50)])
    await fetch(worker)
    assert worker.pool.busy == 1


async def test_what_is_not_started_within_250_ms_goes_back_for_another_worker(
    tocsin_app, other_app, make_worker, tocsin_clock
):
    gate, slow = Gate(), False

    @tocsin_app.job(name="fickle")
    async def fickle():
        if slow:
            await gate.enter()

    worker = await make_worker(concurrency=1)
    await measured(tocsin_app, worker, fickle)
    slow = True
    await tocsin_app.enqueue_many(fickle, [() for _ in range(20)])
    due = tocsin_clock.now
    await fetch(worker)
    await eventually(lambda: gate.inside, "the first has started")
    waiting = worker.pool.waiting
    assert waiting > 0

    tocsin_clock.advance("240ms")
    await worker.sweep.step()
    assert worker.pool.waiting == waiting

    tocsin_clock.advance("11ms")
    await worker.sweep.step()
    await worker.finisher.step()
    assert worker.pool.busy == 1
    jobs = [job async for job in tocsin_app.jobs()]
    assert sorted(job.stage for job in jobs) == ["waiting"] * 19 + ["working"]
    assert {(job.due, job.attempt, job.recoveries) for job in jobs} == {(due, 1, 0)}

    taken: list[int] = []

    @other_app.job(name="fickle")
    async def again():
        taken.append(1)

    other = await make_worker(other_app, concurrency=100)
    await fetch(other)
    await eventually(lambda: len(taken) == 19, "another worker has run them")


async def test_a_run_that_was_recovered_never_waits_behind_others(tocsin_app, make_worker):
    """It may be what kills workers: it would take those that wait with it down as well."""
    gate, slow = Gate(), False

    @tocsin_app.job
    async def fickle():
        if slow:
            await gate.enter()

    worker = await make_worker(concurrency=1)
    await measured(tocsin_app, worker, fickle)
    slow = True
    await tocsin_app.enqueue_many(fickle, [() for _ in range(20)])
    queue = worker.served["default"].queue
    ghost = Runs(tocsin_app.store, "ghost", None)
    claimed = await ghost.claim([ClaimRequest(queue, partition, 20) for partition in range(queue.partitions)], 1e15)
    assert sum(len(answer.claims) for answer in claimed) == 20
    for partition in range(queue.partitions):
        await ghost.recover(queue, partition, "ghost")

    await fetch(worker)
    await eventually(lambda: gate.inside, "one of them runs")
    assert (worker.pool.busy, worker.pool.waiting) == (1, 0)
    await worker.finisher.step()
    jobs = [job async for job in tocsin_app.jobs()]
    assert sorted((job.stage, job.attempt, job.recoveries) for job in jobs) == [
        *[("waiting", 1, 1)] * 19,
        ("working", 1, 1),
    ]


async def test_the_fetcher_rests_until_the_next_job_is_due(tocsin_app, make_worker, tocsin_clock):
    @tocsin_app.job
    async def later():
        pass

    await tocsin_app.enqueue(later, delay="500ms")
    worker = await make_worker(poll_s=60.0)
    await worker.fetcher.step()
    assert await worker.fetcher.step() == pytest.approx(0.5)
    tocsin_clock.advance("499ms")
    assert await worker.fetcher.step() == pytest.approx(0.001)
    assert worker.fetcher.claimed == 0
    tocsin_clock.advance("1ms")
    await worker.fetcher.step()
    assert worker.fetcher.claimed == 1


async def test_a_bell_that_was_lost_is_made_up_for_by_polling_one_partition_at_a_time(
    tocsin_app, make_worker, tocsin_clock
):
    @tocsin_app.job
    async def quiet():
        pass

    tocsin_app.queue("default", partitions=16)
    worker = await make_worker(queues=["default"])
    await fetch(worker)
    await worker.fetcher.step()
    assert min(worker.served["default"].next_due) == float("inf")
    await tocsin_app.enqueue(quiet)
    for _ in range(16):
        tocsin_clock.advance("1s")
        await asyncio.to_thread(worker.heart.beat)
        await worker.fetcher.step()
    assert worker.fetcher.claimed == 1


async def test_a_worker_whose_lease_is_over_claims_nothing_until_its_heart_beats_again(
    tocsin_app, make_worker, tocsin_clock
):
    @tocsin_app.job
    async def job():
        pass

    worker = await make_worker()
    await tocsin_app.enqueue(job)
    tocsin_clock.advance("8001ms")
    assert await worker.fetcher.step() > 0
    assert worker.fetcher.claimed == 0
    await asyncio.to_thread(worker.heart.beat)
    await fetch(worker)
    assert worker.fetcher.claimed == 1


async def test_a_record_that_is_garbage_is_parked_and_the_others_run(tocsin_app, make_worker):
    ran = []

    @tocsin_app.job
    async def job(n):
        ran.append(n)

    worker = await make_worker(queues=["default"])
    handle = await tocsin_app.enqueue(job, 1, id="broken")
    await tocsin_app.enqueue(job, 2)
    queue = worker.served["default"].queue
    key = queue.keys[queue.partition_of("broken")]["jobs"]
    record = await tocsin_app.store.client.hget(key, "broken")
    await tocsin_app.store.client.hset(key, "broken", record[:45] + b"\xc1\xff\x00garbage")
    await fetch(worker)
    await eventually(lambda: ran == [2], "the other has run")
    await worker.finisher.step()
    assert await handle.status() == "parked"
    assert "cannot be read" in (await tocsin_app.get("broken")).failure.error


def test_a_claim_names_its_run():
    claim = Claim("q", 0, b"job\x1f12", 1, 12, 1, 0, False, 99, b"")
    assert (claim.run_id, claim.job_id) == ("job@12", "job")
