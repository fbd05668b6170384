"""Queues that share a worker: none starves, whatever the others have waiting. Polling is as good as off."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.engine.bells_and_mail import Listener
from tocsin.engine.fetcher import MOST_POLLED, Fetcher
from tocsin.engine.outcome_queue import MOST_UNWRITTEN
from tocsin.model.errors import InvalidArgument, InvalidConfig
from tocsin.store.store import Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.fleet import Fleet

NEVER_POLLS = 600.0


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def started() -> list[str]:
    return []


@pytest.fixture
def jobs(live_app, gate, started):
    """`bulk` waits at the gate, `other` does not."""
    live_app.queue("bulk")
    live_app.queue("other")

    @live_app.job(queue="bulk")
    async def bulk():
        started.append("bulk")
        await gate.enter()

    @live_app.job(queue="other")
    async def other():
        started.append("other")

    return bulk, other


async def test_a_bell_is_heard_while_all_permits_are_taken_and_the_next_one_is_for_that_queue(
    live_app, jobs, gate, started, make_worker, monkeypatch
):
    bulk, other = jobs
    rooms, has_room = [], Fetcher.frees_soon
    monkeypatch.setattr(Fetcher, "frees_soon", lambda self: rooms.append(has_room(self)) or rooms[-1])
    await live_app.enqueue_many(bulk, (() for _ in range(50)))
    worker = await make_worker(live_app, start=True, concurrency=4, poll_s=NEVER_POLLS)
    await eventually(lambda: len(gate.inside) == 4, "the backlog holds all permits")
    await live_app.enqueue(bulk)
    await eventually(lambda: not rooms[-1], "it listens without having a permit")
    await live_app.enqueue(other)
    await eventually(lambda: worker.served["other"].ripe, "the worker has heard the bell")
    gate.let_go(1)
    await eventually(lambda: len(started) > 4, "a permit was given to somebody")
    assert started[4] == "other"
    gate.open()


async def test_runs_fetched_ahead_do_not_stand_before_another_queue(live_app, started, make_worker):
    """The pool has a line for each queue."""
    for name in ("bulk", "other"):
        live_app.queue(name)

    @live_app.job(queue="bulk")
    async def bulk():
        started.append("bulk")
        await asyncio.sleep(0.002)

    @live_app.job(queue="other")
    async def other():
        started.append("other")

    await live_app.enqueue_many(bulk, (() for _ in range(3000)))
    worker = await make_worker(live_app, start=True, concurrency=2, poll_s=NEVER_POLLS)
    await eventually(lambda: worker.served["bulk"].busy > 20, "some are fetched ahead")
    for _ in range(5):
        ahead, before = len(worker.served["bulk"].line), len(started)
        assert ahead > 10
        await live_app.enqueue(other)
        await eventually(lambda before=before: "other" in started[before:], "it has started")
    assert len(started) < 2000


async def test_queues_share_the_permits_by_their_weights(tocsin_app, gate, make_worker):
    for name in "ab":
        tocsin_app.queue(name)

    @tocsin_app.job
    async def long():
        await gate.enter()

    for name in "ab":
        await tocsin_app.enqueue_many(long, (() for _ in range(30)), queue=name)
    worker = await make_worker(queues={"a": 3, "b": 1}, concurrency=8)
    for _ in range(10):
        await worker.fetcher.step()
    assert {name: served.busy for name, served in worker.served.items()} == {"a": 6, "b": 2}
    gate.let_go(4)
    await eventually(lambda: worker.pool.busy == 4, "four have ended")
    for _ in range(10):
        await worker.fetcher.step()
    assert {name: served.busy for name, served in worker.served.items()} == {"a": 6, "b": 2}


@pytest.mark.parametrize("weight", [0, -1, 1.5, "3", True])
async def test_a_weight_that_is_none_is_refused(tocsin_app, weight):
    tocsin_app.queue("mail")
    with pytest.raises(InvalidArgument, match="the weight of queue 'mail' must be from 1 to 1000"):
        await tocsin_app.worker(queues={"mail": weight})


async def test_one_pass_of_the_listener_hears_the_bells_of_all_queues(tocsin_app, make_worker):
    names = [f"q{number}" for number in range(20)]
    for name in names:
        tocsin_app.queue(name)
    worker = await make_worker(queues=names)
    for _ in range(20):
        await worker.fetcher.step()
    assert not worker.fetcher.agenda.ripe
    await Fleet(tocsin_app.store).ring_all([(name, 0) for name in names])
    await Listener(worker.bells, worker.served, worker.pool, worker.fetcher).step()
    assert {served.name for served in worker.fetcher.agenda.ripe} == set(names)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The queues that claims asked."""
    seen: list[str] = []
    claim = Runs.claim

    async def spy(self, wishes, lease, timeout=0):
        seen.extend(wish.queue.name for wish in wishes)
        return await claim(self, wishes, lease, timeout)

    monkeypatch.setattr(Runs, "claim", spy)
    return seen


async def test_an_idle_worker_polls_some_queues_at_a_time_each_in_its_turn(
    tocsin_app, make_worker, tocsin_clock, asked
):
    names = [f"q{number:02d}" for number in range(2 * MOST_POLLED + 10)]
    for name in names:
        tocsin_app.queue(name)
    worker = await make_worker(queues=names)
    while worker.fetcher.agenda.ripe:
        await worker.fetcher.step()
    polled: list[str] = []
    for _ in range(3):
        asked.clear()
        tocsin_clock.advance("1s")
        await asyncio.to_thread(worker.heart.beat)
        while True:
            before = len(asked)
            await worker.fetcher.step()
            if len(asked) == before:
                break
        assert len(set(asked)) == MOST_POLLED
        polled += asked
    assert set(polled) == set(names)


async def test_a_queue_that_exists_keeps_its_partitions_where_code_does_not_say_how_many(tocsin_app, other_app):
    tocsin_app.queue("wide", partitions=16)
    other_app.queue("wide")
    await (await tocsin_app.worker(queues=["wide"])).kill()
    worker = await other_app.worker(queues=["wide"])
    assert worker.served["wide"].queue.partitions == 16
    await worker.kill()


async def test_code_that_says_another_number_of_partitions_is_refused(tocsin_app, other_app):
    tocsin_app.queue("wide", partitions=16)
    other_app.queue("wide", partitions=4)
    await (await tocsin_app.worker(queues=["wide"])).kill()
    with pytest.raises(InvalidConfig, match="tocsin queues repartition wide 4"):
        await other_app.worker(queues=["wide"])


async def test_no_more_is_executed_than_can_be_written_down_soon(tocsin_app, make_worker, monkeypatch):
    """What is executed and not written down runs again after a crash."""
    ran = 0

    @tocsin_app.job
    async def quick():
        nonlocal ran
        ran += 1

    answers, call_all = asyncio.Event(), Store.call_all

    async def held(self, calls):
        answered = await call_all(self, calls)
        if any(call.script.name == "run_finish" for call in calls):
            await answers.wait()
        return answered

    monkeypatch.setattr(Store, "call_all", held)
    await tocsin_app.enqueue_many(quick, (() for _ in range(3 * MOST_UNWRITTEN)))
    worker = await make_worker(start=True, concurrency=10_000)
    await eventually(lambda: worker.pool.held, "it begins nothing more")
    unwritten = worker.stats().unwritten
    assert unwritten == ran == MOST_UNWRITTEN
    for _ in range(100):
        await asyncio.sleep(0)
    assert ran == unwritten
    answers.set()
    await eventually(lambda: ran == 3 * MOST_UNWRITTEN, "all have run")


async def test_a_batch_is_filled_from_several_partitions(tocsin_app, make_worker):
    tocsin_app.queue("wide", partitions=16)
    sizes = []

    @tocsin_app.job(queue="wide", batch=100)
    async def index(runs):
        sizes.append(len(runs))

    await tocsin_app.enqueue_many(index, ((n,) for n in range(250)))
    await make_worker(start=True, queues=["wide"])
    await eventually(lambda: sum(sizes) == 250, "all have run")
    assert sorted(sizes) == [50, 100, 100]
