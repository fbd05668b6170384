"""A queue that is half-way to other partitions, or whose entry in the register is damaged, holds up no other queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tocsin import Tocsin
from tocsin.engine.handlers import Handler
from tocsin.model import msgpack
from tocsin.model.errors import QueueRepartitioning
from tocsin.store import queue_directory
from tocsin.store.repartition import repartition
from tocsin.store.transitions.fleet import HeartbeatReply
from tocsin.worker import Worker

DAMAGED = {
    "an order of a newer version": msgpack.encode({"order": "lifo", "partitions": 1}),
    "a size that is none": msgpack.encode({"order": "due", "partitions": "many"}),
    "no entry at all": b"\xc1garbage",
}
# The one in trouble is between the others in the register.
QUEUES = ["alpha", "beta", "zeta"]
TROUBLES = ["half-way", *DAMAGED]

MakeWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a queue that is half-way fails at once."""
    monkeypatch.setattr(queue_directory, "REPARTITION_PATIENCE_S", 0.0)


@pytest.fixture
def work(tocsin_app: Tocsin) -> Handler:
    for name in QUEUES:
        tocsin_app.queue(name, partitions=2)

    @tocsin_app.job(name="work", queue="alpha", timeout="1h")
    async def work() -> None: ...

    return work


def stop_half_way(done: int, total: int) -> None:
    raise KeyboardInterrupt


async def trouble(app: Tocsin, what: str) -> None:
    """In queue `beta`."""
    if what in DAMAGED:
        await app.store.client.hset(app.store.keys.fleet()["queues"], "beta", DAMAGED[what])
        return
    with pytest.raises(KeyboardInterrupt):
        await repartition.repartition(app.store, "beta", 3, stop_half_way)


async def claimed(app: Tocsin, worker: Worker, work: Handler) -> None:
    """One run in each queue, which the worker does not finish."""
    for name in QUEUES:
        await app.enqueue(work, queue=name, id=f"in {name}")
    while worker.fetcher.claimed < 3:
        await worker.fetcher.step()


async def owner(app: Tocsin, name: str) -> str | None:
    job = await app.get(f"in {name}", queue=name)
    assert job is not None
    return job.owner


async def bury(dead: Worker, witness: Worker) -> None:
    fleet, store = witness.parts.fleet, witness.store
    counter = await store.client.hget(store.keys.fleet()["beats"], dead.name)
    assert await fleet.declare_dead(dead.name, counter, 0)
    witness.parts.upkeep.reaper.on_heartbeat(HeartbeatReply(True, 0, buried=[dead.name]), 0.0)


@pytest.mark.parametrize("what", TROUBLES)
async def test_the_runs_of_a_dead_worker_are_brought_back_from_the_others(
    tocsin_app: Tocsin, other_app: Tocsin, work: Handler, make_worker: MakeWorker, what: str
) -> None:
    dead, witness = await make_worker(queues=QUEUES), await make_worker(other_app, queues=["default"])
    await claimed(tocsin_app, dead, work)
    await trouble(tocsin_app, what)
    await bury(dead, witness)
    await witness.parts.upkeep.reaper.step()
    assert [await owner(tocsin_app, name) for name in ("alpha", "zeta")] == [None, None]


async def test_what_a_dead_worker_held_in_a_moving_queue_is_brought_back_when_that_is_over(
    tocsin_app: Tocsin, other_app: Tocsin, work: Handler, make_worker: MakeWorker
) -> None:
    dead, witness = await make_worker(queues=QUEUES), await make_worker(other_app, queues=["default"])
    await claimed(tocsin_app, dead, work)
    await trouble(tocsin_app, "half-way")
    await bury(dead, witness)
    await witness.parts.upkeep.reaper.step()
    await repartition.repartition(tocsin_app.store, "beta", 3)
    assert await owner(tocsin_app, "beta") is not None
    await witness.parts.upkeep.reaper.step()
    assert await owner(tocsin_app, "beta") is None
    assert witness.parts.upkeep.reaper.recovered == 3


async def reads(found: AsyncIterator[Any]) -> bool:
    """Of a job that has not run yet."""
    return [each async for each in found] == []


CALLS: dict[str, Callable[[Tocsin], Awaitable[Any]]] = {
    "get": lambda app: app.get("in alpha"),
    "pause": lambda app: app.pause("in alpha"),
    "update": lambda app: app.update("in alpha", timeout="5m"),
    "cancel": lambda app: app.cancel("in alpha@0"),
    "remove": lambda app: app.remove("in alpha"),
    "why": lambda app: app.why("in alpha"),
    "runs": lambda app: reads(app.runs("in alpha")),
    "decisions": lambda app: reads(app.decisions("in alpha")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", TROUBLES)
@pytest.mark.parametrize("has_opened_it", [True, False])
async def test_calls_by_id_find_jobs_of_the_others(
    tocsin_app: Tocsin, other_app: Tocsin, work: Handler, call: str, what: str, has_opened_it: bool
) -> None:
    for name in ("alpha", "beta"):
        await tocsin_app.enqueue(work, queue=name, id=f"in {name}", delay="1h")
    await trouble(tocsin_app, what)
    assert await CALLS[call](tocsin_app if has_opened_it else other_app)


@pytest.mark.parametrize("call", ["get", "cancel"])
async def test_a_job_that_no_other_queue_has_may_be_in_the_one_that_is_moving(
    tocsin_app: Tocsin, other_app: Tocsin, work: Handler, call: str
) -> None:
    for name in ("alpha", "beta"):
        await tocsin_app.enqueue(work, queue=name, id=f"in {name}", delay="1h")
    await trouble(tocsin_app, "half-way")
    with pytest.raises(QueueRepartitioning):
        await (other_app.cancel("in beta@0") if call == "cancel" else other_app.get("in beta"))
