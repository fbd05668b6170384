"""Passes of the finisher: how much each sends, of which partitions, and when one does not wait for the other."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import eventually
from tocsin.engine.finisher import PACE_S, SLOW_S
from tocsin.engine.outcome_queue import MOST_PER_PASS, MOST_UNWRITTEN
from tocsin.store.store import Store
from tocsin.store.transitions.claims import Runs


@pytest.fixture
def sent(monkeypatch) -> list[tuple[int, int]]:
    """Of each call: its partition, and how many outcomes it has."""
    seen: list[tuple[int, int]] = []
    settle = Runs.settle

    def spy(self, verb, queue, partition, items):
        seen.append((partition, len(items)))
        return settle(self, verb, queue, partition, items)

    monkeypatch.setattr(Runs, "settle", spy)
    return seen


@pytest.fixture
def quick(tocsin_app):
    tocsin_app.queue("default", partitions=16)

    @tocsin_app.job(name="quick")
    async def quick():
        pass

    return quick


@pytest.fixture
def ran(tocsin_app, quick, make_worker):
    """A worker that has run so many jobs, and told nobody yet; one that has run some before, if it is given."""

    async def run(count, worker=None):
        worker = worker or await make_worker(queues=["default"], concurrency=10_000)
        served, to = worker.served["default"], worker.pool.ran + count
        await tocsin_app.enqueue_many(quick, (() for _ in range(count)))
        while worker.pool.ran < to:
            served.forget_dues()
            await worker.fetcher.step()
            await eventually(lambda: not worker.pool.busy, "what was claimed has run")
        return worker

    return run


async def test_a_pass_sends_few_partitions_with_many_outcomes_each(ran, sent):
    worker = await ran(2 * MOST_PER_PASS)
    await worker.finisher.step()
    first = list(sent)
    assert MOST_PER_PASS <= sum(count for _, count in first) < 2 * MOST_PER_PASS
    assert len(first) < 16
    while not worker.finisher.idle():
        await worker.finisher.step()
    assert sum(count for _, count in sent) == 2 * MOST_PER_PASS
    assert sorted(partition for partition, _ in sent) == list(range(16))


async def test_those_that_wait_longest_are_next(ran, sent):
    worker = await ran(2 * MOST_PER_PASS)
    await worker.finisher.step()
    first = {partition for partition, _ in sent}
    await ran(2 * MOST_PER_PASS, worker)
    sent.clear()
    await worker.finisher.step()
    assert not first & {partition for partition, _ in sent}


@pytest.fixture
def answers(monkeypatch) -> asyncio.Event:
    """The server's answers are kept back until it is set."""
    let_through, call_all = asyncio.Event(), Store.call_all

    async def held(self, calls):
        answered = await call_all(self, calls)
        await let_through.wait()
        return answered

    monkeypatch.setattr(Store, "call_all", held)
    return let_through


@pytest.fixture
async def waits(ran, monkeypatch, request):
    """A worker of which one pass waits for its answer, and `request.param` outcomes for the next pass."""
    worker = await ran(MOST_PER_PASS + request.param)
    finisher = worker.finisher
    later = [finisher.outcomes.ended.pop() for _ in range(request.param)]
    answers = request.getfixturevalue("answers")
    passing = asyncio.create_task(finisher.step())
    await eventually(lambda: finisher.outcomes.in_flight, "the first pass has sent its calls")
    finisher.outcomes.ended.extend(later)
    passes = [passing]
    # Another one: it may have something to send, and then waits as well.
    worker.another = lambda: passes.append(asyncio.create_task(finisher.step()))
    yield worker
    answers.set()
    await asyncio.gather(*passes)


@pytest.mark.parametrize("waits", [100], indirect=True)
class TestWithFew:
    async def test_the_other_pass_waits_for_the_answer(self, waits):
        assert await waits.finisher.step() == PACE_S
        assert len(waits.finisher.outcomes.ended) == 100

    async def test_unless_that_takes_long(self, waits, tocsin_clock):
        tocsin_clock.advance(f"{SLOW_S * 1000:.0f}ms")
        waits.another()
        await eventually(lambda: not waits.finisher.outcomes.ended, "it goes on")


@pytest.mark.parametrize("waits", [MOST_UNWRITTEN - MOST_PER_PASS], indirect=True)
async def test_with_as_many_as_may_be_it_does_not_wait(waits):
    waits.another()
    await eventually(lambda: not waits.finisher.outcomes.ended, "it goes on")
