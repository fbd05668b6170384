"""Passes of the fetcher side by side: which partitions each asks, and that nothing they claimed is lost."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.engine.claim_planner import MANY, PASSES
from tocsin.store.transitions.claims import ClaimRequest, Runs


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def asked(monkeypatch) -> list[list[ClaimRequest]]:
    """What each claim asked for."""
    seen: list[list[ClaimRequest]] = []
    claim = Runs.claim

    async def spy(self, wishes, lease, timeout=0):
        seen.append(list(wishes))
        return await claim(self, wishes, lease, timeout)

    monkeypatch.setattr(Runs, "claim", spy)
    return seen


@pytest.fixture
def long(tocsin_app, gate):
    tocsin_app.queue("default", partitions=16)

    @tocsin_app.job(name="long")
    async def long(n):
        await gate.enter(n)

    return long


async def test_with_nothing_in_hand_a_pass_asks_every_partition(tocsin_app, long, make_worker, asked):
    worker = await make_worker(queues=["default"])
    await worker.fetcher.step()
    assert sorted(wish.partition for wish in asked[0]) == list(range(16))


async def test_with_work_in_hand_it_leaves_partitions_to_the_other_passes(tocsin_app, long, make_worker, asked):
    worker = await make_worker(queues=["default"], concurrency=10_000)
    await tocsin_app.enqueue_many(long, ((n,) for n in range(2 * MANY)))
    await worker.fetcher.step()
    assert worker.pool.busy == 2 * MANY
    asked.clear()
    worker.served["default"].forget_dues()
    await asyncio.gather(*(worker.fetcher.step() for _ in range(PASSES)))
    each = [[wish.partition for wish in wishes] for wishes in asked]
    assert sorted(itertools.chain(*each)) == list(range(16))
    assert max(map(len, each)) == 3


async def test_a_pass_wakes_another_for_the_rest_unless_there_is_no_room(tocsin_app, long, make_worker, asked):
    worker = await make_worker(queues=["default"], concurrency=MANY)
    await tocsin_app.enqueue_many(long, ((n,) for n in range(3 * MANY)))
    fetcher, served = worker.fetcher, worker.served["default"]
    while worker.pool.busy < MANY:
        await fetcher.step()
    served.forget_dues()
    fetcher.wake.clear()
    asked.clear()
    assert await fetcher.step() > 0
    assert (asked, fetcher.wake.is_set()) == ([], False)
    worker.pool.permits = 2 * MANY
    await fetcher.step()
    assert (len(asked), fetcher.wake.is_set()) == (1, True)


async def test_the_partition_with_the_oldest_run_is_asked_first(tocsin_app, long, make_worker, tocsin_clock, asked):
    worker = await make_worker(queues=["default"], concurrency=3)
    await worker.fetcher.step()
    asked.clear()
    served, now = worker.served["default"], tocsin_clock.server_ms()
    served.expect_all([now - partition for partition in range(16)])
    await worker.fetcher.step()
    assert [wish.partition for wish in asked[0]] == [15, 14, 13]


async def test_a_partition_that_fails_takes_nothing_from_the_others(tocsin_app, long, gate, make_worker):
    worker = await make_worker(queues=["default"], concurrency=100)
    await tocsin_app.enqueue_many(long, ((n,) for n in range(64)))
    queue = worker.served["default"].queue
    await tocsin_app.store.client.set(queue.keys[15]["claims"], "no hash")
    await worker.fetcher.step()
    assert list(worker.fetcher.faults.by_place) == [("default", 15)]
    counts = [await tocsin_app.store.client.zcard(keys["working"]) for keys in queue.keys]
    assert all(counts[:15])
    assert not counts[15]
    await eventually(lambda: len(gate.inside) == sum(counts), "what was claimed runs")


async def test_a_pass_that_is_cancelled_hands_out_what_it_claimed(tocsin_app, long, gate, make_worker, monkeypatch):
    worker = await make_worker(queues=["default"], concurrency=1000)
    await tocsin_app.enqueue_many(long, ((n,) for n in range(2 * MANY)))
    passing = asyncio.create_task(worker.fetcher.step())
    learned = worker.served["default"].note_reply

    def cancel(*args):
        passing.cancel()
        learned(*args)

    monkeypatch.setattr(worker.served["default"], "note_reply", cancel)
    with pytest.raises(asyncio.CancelledError):
        await passing
    await eventually(lambda: len(gate.inside) == 2 * MANY, "what was claimed runs")
