"""Jobs that wait for others go on, in order and once, in a queue that is given other partitions on the way."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.waiting import run_dry
from tocsin import Tocsin
from tocsin.app import dependencies
from tocsin.engine.handlers import Handler
from tocsin.model.clock import monotonic
from tocsin.model.queue import Queue
from tocsin.store.repartition import repartition
from tocsin.store.transitions.dependencies import Outbox
from tocsin.worker import Worker

CHAIN = 12
DIAMONDS = 6

Move = Callable[[int], Awaitable[Any]]


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def work(tocsin_app: Tocsin, ran: list[str]) -> Handler:
    for name in ("wide", "still"):
        tocsin_app.queue(name, partitions=4)

    @tocsin_app.job(name="work", queue="wide")
    async def work(name: str) -> None:
        ran.append(name)

    return work


@pytest.fixture
def move(tocsin_app: Tocsin, other_app: Tocsin) -> Move:
    """Another process gives the queue other partitions."""

    async def move(partitions: int) -> None:
        await repartition.repartition(other_app.store, "wide", partitions)

    return move


async def put_all(app: Tocsin, work: Handler) -> dict[str, list[str]]:
    """A chain and diamonds over two queues, of which one moves: what each waits for."""
    upstreams: dict[str, list[str]] = {}

    async def put(name: str, queue: str, *waits_for: str) -> None:
        upstreams[name] = list(waits_for)
        await app.enqueue(work, name, id=name, queue=queue, after=waits_for, keep=0)

    for n in range(CHAIN):
        await put(f"chain{n}", ("wide", "still")[n % 3 == 2], *([f"chain{n - 1}"] if n else []))
    for n in range(DIAMONDS):
        await put(f"top{n}", "wide")
        await put(f"left{n}", "wide", f"top{n}")
        await put(f"right{n}", "still", f"top{n}")
        await put(f"end{n}", "wide", f"left{n}", f"right{n}")
    return upstreams


async def run_all(app: Tocsin, worker: Worker, jobs: int, ran: list[str], clock: Any) -> None:
    """Pass by pass; what nobody told the worker of it finds when it looks around."""
    give_up = monotonic() + 20
    while len(ran) < jobs:
        assert monotonic() < give_up, f"{len(ran)} of {jobs} ran"
        for served in worker.served.values():
            served.forget_dues()
        await run_dry(worker)
        clock.advance("5s")
        while await worker.parts.upkeep.outbox_carrier.step() == 0:
            pass


async def assert_all_went_well(app: Tocsin, upstreams: dict[str, list[str]], ran: list[str]) -> None:
    assert sorted(ran) == sorted(upstreams)
    for name, waited_for in upstreams.items():
        assert all(ran.index(upstream) < ran.index(name) for upstream in waited_for), name
    for name in ("wide", "still"):
        queue = await app.store.open_queue(Queue(name, partitions=4))
        await app.store.queues.refresh_if_repartitioned(queue)
        bases = ("jobs", "blocked", "needs", "watchers", "outbox")
        left = [base for keys in queue.keys for base in bases if await app.store.client.exists(keys[base])]
        assert left == []


@pytest.mark.parametrize("partitions", [1, 7, 16])
async def test_after_all_were_put(tocsin_app, tocsin_clock, work, ran, move, make_worker, partitions):
    upstreams = await put_all(tocsin_app, work)
    await move(partitions)
    worker = await make_worker(queues=["wide", "still"], concurrency=50)
    await run_all(tocsin_app, worker, len(upstreams), ran, tocsin_clock)
    await assert_all_went_well(tocsin_app, upstreams, ran)


@pytest.mark.parametrize("partitions", [1, 7])
async def test_after_ends_were_written_and_before_they_are_carried(
    tocsin_app, tocsin_clock, work, ran, move, make_worker, partitions
):
    worker = await make_worker(queues=["wide", "still"], concurrency=50)
    upstreams = await put_all(tocsin_app, work)
    numbers = itertools.cycle([partitions, 4])
    while len(ran) < len(upstreams):
        for served in worker.served.values():
            served.forget_dues()
        await run_dry(worker)
        await move(next(numbers))
        await run_all(tocsin_app, worker, min(len(ran) + 1, len(upstreams)), ran, tocsin_clock)
    await run_all(tocsin_app, worker, len(upstreams), ran, tocsin_clock)
    while await worker.parts.upkeep.outbox_carrier.step() == 0:
        pass
    await assert_all_went_well(tocsin_app, upstreams, ran)


@pytest.mark.parametrize("step", ["watch", "block", "unblock", "end_watch"])
async def test_before_each_step_of_a_put_and_of_a_carrier(
    tocsin_app, tocsin_clock, work, ran, move, make_worker, step, monkeypatch
):
    """Each call of one kind finds a queue that has just been given other partitions."""
    honest, numbers = getattr(Outbox, step), iter(range(10**6))

    def moving(self: Outbox, *args: Any) -> Any:
        async def one() -> Any:
            await move((5, 2, 9)[next(numbers) % 3])
            return await honest(self, *args)

        async def each() -> Any:
            await move((5, 2, 9)[next(numbers) % 3])
            async for told in honest(self, *args):
                yield told

        return each() if step == "unblock" else one()

    monkeypatch.setattr(Outbox, step, moving)
    upstreams = await put_all(tocsin_app, work)
    worker = await make_worker(queues=["wide", "still"], concurrency=50)
    await run_all(tocsin_app, worker, len(upstreams), ran, tocsin_clock)
    await assert_all_went_well(tocsin_app, upstreams, ran)
    assert next(numbers) > 10


async def test_in_the_middle_of_a_bulk_put(tocsin_app, tocsin_clock, work, ran, move, make_worker, monkeypatch):
    monkeypatch.setattr(dependencies, "LARGEST_BATCH", 10)
    await tocsin_app.enqueue(work, "first", id="first")
    ids = [f"n{n}" for n in range(200)]

    async def rows() -> Any:
        for n, name in enumerate(ids):
            if n % 60 == 50:
                await move((7, 2, 5, 1)[n // 60])
            yield (name,)

    await tocsin_app.enqueue_many(work, rows(), ids=ids, after=["first"], keep=0)
    worker = await make_worker(queues=["wide"], concurrency=50)
    await run_all(tocsin_app, worker, 201, ran, tocsin_clock)
    await assert_all_went_well(tocsin_app, {"first": [], **{name: ["first"] for name in ids}}, ran)
