"""Runs that come back from dead workers: they go before younger ones, a few at a time, and suspects one by one."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.store.transitions.claims import ClaimRequest, Runs


class Ghost:
    """Workers that die with whatever is due in a queue in their hands."""

    def __init__(self, app) -> None:
        self._runs, self._reaper = Runs(app.store, "ghost"), Runs(app.store, "reaper")

    async def claim(self, queue, count: int) -> None:
        [answer] = await self._runs.claim([ClaimRequest(queue, 0, count)], 1e15)
        assert len(answer.claims) == count

    async def die(self, queue, count: int, deaths: int) -> None:
        """The first time with what was claimed before."""
        for death in range(deaths):
            if death:
                await self.claim(queue, count)
            assert await self._reaper.recover(queue, 0, "ghost") == count


@pytest.fixture
def ghost(tocsin_app) -> Ghost:
    return Ghost(tocsin_app)


async def ask(worker, served) -> None:
    served.expect_all([0.0])
    await worker.fetcher.step()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def backlog(tocsin_app, make_worker, gate, ghost):
    """A worker with one permit that has fetched quick jobs ahead, while a ghost holds three that are older."""
    is_slow = False

    @tocsin_app.job(name="quick")
    async def quick(n):
        if is_slow:
            await gate.enter(n)

    worker = await make_worker(concurrency=1)
    served = worker.served["default"]
    await tocsin_app.enqueue_many(quick, [(n,) for n in range(200)])
    while worker.pool.ran < 200:
        await ask(worker, served)
        await eventually(lambda: not worker.pool.busy, "what was claimed has run")
        await worker.finisher.step()
    is_slow = True
    await tocsin_app.enqueue_many(quick, [(f"old{n}",) for n in range(3)])
    await ghost.claim(served.queue, 3)
    await tocsin_app.enqueue_many(quick, [(f"young{n}",) for n in range(20)])
    await ask(worker, served)
    await eventually(lambda: gate.inside, "the first has started")
    assert worker.pool.waiting > 0
    return worker


@pytest.mark.parametrize("deaths", [1, 2])
async def test_a_recovered_run_is_the_next_to_start_however_many_younger_ones_wait(
    tocsin_app, backlog, ghost, gate, deaths
):
    served = backlog.served["default"]
    await ghost.die(served.queue, 3, deaths)
    await ask(backlog, served)
    await backlog.finisher.step()
    # No more of them than permits: the others stay in line.
    assert (backlog.pool.recovered, backlog.pool.suspects) == (1, deaths - 1)
    gate.let_go(1)
    await eventually(lambda: gate.inside and gate.inside != ["young0"], "the next one has started")
    assert gate.inside == ["old0"]
    gate.let_go(1)
    await eventually(lambda: gate.inside and gate.inside != ["old0"], "the next one has started")
    assert (backlog.pool.recovered, backlog.pool.suspects) == (0, 0)


async def test_what_waits_behind_a_recovered_run_goes_back_when_its_time_is_over(backlog, ghost, tocsin_clock):
    served = backlog.served["default"]
    tocsin_clock.advance("200ms")
    await ghost.die(served.queue, 3, 1)
    await ask(backlog, served)
    tocsin_clock.advance("100ms")
    await backlog.sweep.step()
    assert (backlog.pool.waiting, backlog.pool.recovered) == (1, 1)


async def test_a_worker_gets_its_suspect_while_other_passes_ask_for_more(tocsin_app, make_worker, ghost, gate):
    @tocsin_app.job(name="held")
    async def held(n):
        await gate.enter(n)

    for name in "ab":
        tocsin_app.queue(name, partitions=1)
    worker = await make_worker(queues=["a", "b"], concurrency=0)
    # The first pass asks everywhere.
    await worker.fetcher.step()
    a, b = worker.served["a"], worker.served["b"]
    await tocsin_app.enqueue_many(held, [(n,) for n in range(2)], queue="b")
    await ghost.claim(b.queue, 2)
    await ghost.die(b.queue, 2, 2)

    async def begin(served) -> asyncio.Task[float]:
        served.expect_all([0.0])
        task = asyncio.ensure_future(worker.fetcher.step())
        await asyncio.sleep(0)
        assert served.asked
        return task

    in_flight = await begin(a)
    for served in (b, a, b, a):
        following = await begin(served)
        await in_flight
        in_flight = following
    await in_flight
    assert worker.pool.suspects == 1
    assert (a.busy, b.busy) == (0, 1)


@pytest.mark.parametrize(
    ("deaths", "batches"), [(1, [["first", "second", "third"]]), (2, [["first"], ["second", "third"]])]
)
async def test_recovered_runs_share_a_batch_and_a_suspect_has_its_own(tocsin_app, make_worker, ghost, deaths, batches):
    seen = []

    @tocsin_app.job(name="index", batch=10)
    async def index(runs):
        seen.append([run.args[0] for run in runs])

    worker = await make_worker(concurrency=10)
    served = worker.served["default"]
    await tocsin_app.enqueue(index, "first")
    await ghost.claim(served.queue, 1)
    await ghost.die(served.queue, 1, deaths)
    await tocsin_app.enqueue(index, "second")
    await tocsin_app.enqueue(index, "third")
    await ask(worker, served)
    assert (worker.pool.recovered, worker.pool.suspects) == (1, deaths - 1)
    await eventually(lambda: not worker.pool.busy, "what was claimed has run")
    assert sorted(seen) == batches
    assert (worker.pool.recovered, worker.pool.suspects) == (0, 0)


async def test_recovered_runs_that_share_a_batch_take_one_permit(tocsin_app, make_worker, ghost):
    seen = []

    @tocsin_app.job(name="index", batch=10)
    async def index(runs):
        seen.append([run.args[0] for run in runs])

    worker = await make_worker(concurrency=1)
    served = worker.served["default"]
    await tocsin_app.enqueue(index, "any")
    await ask(worker, served)
    await eventually(lambda: seen and not worker.pool.busy, "the worker has seen a batch")
    await tocsin_app.enqueue_many(index, [(n,) for n in range(10)])
    await ghost.claim(served.queue, 10)
    await ghost.die(served.queue, 10, 1)
    await ask(worker, served)
    await eventually(lambda: not worker.pool.busy, "what was claimed has run")
    assert seen[1:] == [list(range(10))]


async def test_recovered_runs_are_not_claimed_and_released_again_and_again(tocsin_app, make_worker, ghost):
    @tocsin_app.job(name="quick")
    async def quick(n):
        pass

    worker = await make_worker(concurrency=2)
    served = worker.served["default"]

    async def run(count: int) -> None:
        upto = worker.pool.ran + count
        while worker.pool.ran < upto:
            await ask(worker, served)
            await eventually(lambda: not worker.pool.busy, "what was claimed has run")
            await worker.finisher.step()

    async def claimed() -> int:
        return int(await tocsin_app.store.client.hget(served.queue.keys[0]["meta"], "claimed"))

    await tocsin_app.enqueue_many(quick, [(n,) for n in range(200)])
    await run(200)
    await tocsin_app.enqueue_many(quick, [(n,) for n in range(100)])
    await ghost.claim(served.queue, 100)
    await ghost.die(served.queue, 100, 1)
    before = await claimed()
    await run(100)
    # The first claim may bring all of them.
    assert await claimed() - before <= 200


@pytest.mark.parametrize("order", ["due", "priority", "fair"])
async def test_thousands_of_suspects_keep_nobody_from_running(tocsin_app, make_worker, gate, order):
    count, ran = 2200, []

    @tocsin_app.job(name="poison")
    async def poison(n):
        await gate.enter(n)

    @tocsin_app.job(name="healthy")
    async def healthy(n):
        ran.append(n)

    tocsin_app.queue("mail", order=order)
    await tocsin_app.enqueue_many(poison, [(n,) for n in range(count)], queue="mail")
    worker = await make_worker(queues=["mail"], concurrency=5)
    served = worker.served["mail"]
    dead, reaper = Runs(tocsin_app.store, "dead"), Runs(tocsin_app.store, "reaper")
    for _ in range(2):
        claimed = 0
        while claimed < count:
            [answer] = await dead.claim([ClaimRequest(served.queue, 0, 1000)], 1e15)
            claimed += len(answer.claims)
        assert await reaper.recover(served.queue, 0, "dead") == count
    await tocsin_app.enqueue_many(healthy, [(n,) for n in range(20)], queue="mail")

    async def all_ran() -> bool:
        await ask(worker, served)
        return len(ran) == 20

    await eventually(all_ran, "all others ran")
    assert (worker.pool.suspects, worker.pool.busy) == (1, 1)
