"""A worker whose queue is given other partitions: what it holds is settled once, what it does not know of is run."""

from __future__ import annotations

import pytest

from tests.support.waiting import Gate, eventually, run_dry
from tocsin.model.errors import StoreUnavailable
from tocsin.store.repartition import repartition
from tocsin.upkeep.reaper import WorkerRecovery

MANY = 20


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def ran(tocsin_app, gate) -> list[int]:
    """The jobs that were started, and `work` to enqueue them with."""
    started: list[int] = []
    tocsin_app.queue("wide", partitions=4)

    @tocsin_app.job(name="work", queue="wide")
    async def work(n):
        started.append(n)
        await gate.enter(n)

    tocsin_app.work_handler = work
    return started


async def put(app, numbers) -> None:
    for n in numbers:
        await app.enqueue(app.work_handler, n, id=f"n{n}", keep=0)


async def counted(app, name: str) -> int:
    queue = await app.store.find_queue("wide")
    await app.store.queues.refresh_if_repartitioned(queue)
    metas = [keys["meta"] for keys in queue.keys[: queue.partitions]]
    return sum([int(await app.store.client.hget(meta, name) or 0) for meta in metas])


def lose_replies(store, monkeypatch) -> None:
    """The server does what it is asked, and nobody hears of it."""
    honest = store.call_all

    async def unheard(calls):
        await honest(calls)
        return [StoreUnavailable("the reply was lost") for _ in calls]

    monkeypatch.setattr(store, "call_all", unheard)


async def test_it_goes_on_in_the_new_partitions(tocsin_app, other_app, ran, gate, make_worker):
    worker = await make_worker(queues=["wide"], concurrency=100)
    gate.open()
    await put(tocsin_app, range(MANY))
    await run_dry(worker)
    for partitions in (7, 1, 16):
        await repartition.repartition(other_app.store, "wide", partitions)
        await put(tocsin_app, range(len(ran), len(ran) + MANY))
        worker.served["wide"].mark_due(0)
        await run_dry(worker)
        assert worker.served["wide"].queue.partitions == partitions
        await run_dry(worker)
    assert sorted(ran) == list(range(4 * MANY))
    assert await counted(tocsin_app, "succeeded") == 4 * MANY


async def test_runs_that_were_going_on_are_finished_where_their_jobs_are(tocsin_app, other_app, ran, gate, make_worker):
    worker = await make_worker(queues=["wide"], concurrency=100)
    await put(tocsin_app, range(MANY))
    await worker.fetcher.step()
    await eventually(lambda: len(gate.inside) == MANY, "all run")
    await repartition.repartition(other_app.store, "wide", 7)
    gate.open()
    await eventually(lambda: gate.passed == MANY, "all have ended")
    await run_dry(worker)
    await run_dry(worker)
    assert await counted(tocsin_app, "succeeded") == MANY
    assert sorted(ran) == list(range(MANY))
    assert worker.finisher.lost == 0


@pytest.mark.parametrize("after", [2, 9])
async def test_claims_that_it_did_not_hear_of_are_handed_back_and_run_once(
    tocsin_app, other_app, ran, gate, make_worker, after, monkeypatch
):
    worker = await make_worker(queues=["wide"], concurrency=100)
    gate.open()
    await put(tocsin_app, range(MANY))
    with monkeypatch.context() as deaf:
        lose_replies(worker.store, deaf)
        with pytest.raises(StoreUnavailable):
            await worker.fetcher.step()
    assert await counted(tocsin_app, "claimed") == MANY
    await repartition.repartition(other_app.store, "wide", after)
    worker.reset_breakers()
    for _ in range(3):
        worker.served["wide"].forget_dues()
        await run_dry(worker)
    assert sorted(ran) == list(range(MANY))
    assert await counted(tocsin_app, "succeeded") == MANY
    assert await counted(tocsin_app, "recovered") == 0
    assert not worker.parts.incarnation.runs.unanswered


@pytest.mark.parametrize("after", [2, 9])
async def test_outcomes_that_were_written_unheard_are_not_written_again(
    tocsin_app, other_app, ran, gate, make_worker, after, monkeypatch
):
    worker = await make_worker(queues=["wide"], concurrency=100)
    gate.open()
    await put(tocsin_app, range(MANY))
    await worker.fetcher.step()
    await eventually(lambda: gate.passed == MANY, "all have ended")
    with monkeypatch.context() as deaf:
        lose_replies(worker.store, deaf)
        with pytest.raises(StoreUnavailable):
            await worker.finisher.step()
    await repartition.repartition(other_app.store, "wide", after)
    worker.reset_breakers()
    await run_dry(worker)
    assert worker.finisher.idle()
    assert worker.finisher.lost == 0
    assert await counted(tocsin_app, "succeeded") == MANY


async def test_it_waits_patiently_while_the_queue_is_moving(tocsin_app, other_app, ran, gate, make_worker, monkeypatch):
    worker = await make_worker(queues=["wide"], concurrency=100)
    await put(tocsin_app, range(MANY))
    await worker.fetcher.step()
    await eventually(lambda: len(gate.inside) == MANY, "all run")
    moving = repartition.Repartition._move_jobs

    async def meanwhile(move):
        gate.open()
        await eventually(lambda: gate.passed == MANY, "all have ended")
        for _ in range(5):
            assert await worker.finisher.step() > 0
            worker.served["wide"].forget_dues()
            await worker.fetcher.step()
            assert worker.served["wide"].still
        await moving(move)

    monkeypatch.setattr(repartition.Repartition, "_move_jobs", meanwhile)
    await repartition.repartition(other_app.store, "wide", 3)
    await run_dry(worker)
    assert (worker.parts.acquisition_breaker.status().failures, worker.parts.redis_breaker.status().failures) == (0, 0)
    assert await counted(tocsin_app, "succeeded") == MANY
    worker.served["wide"].mark_due(0)
    await run_dry(worker)
    assert not worker.served["wide"].still


async def test_the_runs_of_a_dead_worker_are_brought_back_from_where_they_are(
    tocsin_app, other_app, ran, gate, make_worker
):
    worker = await make_worker(queues=["wide"], concurrency=100)
    await put(tocsin_app, range(MANY))
    await worker.fetcher.step()
    await eventually(lambda: len(gate.inside) == MANY, "all run")
    other = await make_worker(queues=["wide"], concurrency=100)
    await repartition.repartition(other_app.store, "wide", 9)
    await other.parts.upkeep.reaper._bring_back(
        worker.name, WorkerRecovery(1, tocsin_app.store.clock.monotonic(), set())
    )
    assert await counted(tocsin_app, "recovered") == MANY
