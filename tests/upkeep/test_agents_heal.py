"""Agents come back by themselves: whatever was removed from Redis, moved, or changed by another program, a live worker
notices within one refresh. Intervals are an hour, so nothing else would bring them back in time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.support.waiting import Gate, eventually, run_dry
from tocsin import Every, Tocsin
from tocsin.store.keys import FLEET_KEYS, PARTITION_KEYS
from tocsin.testing import ManualClock
from tocsin.worker import Worker

pytestmark = pytest.mark.agents

REFRESH = "30s"
# Without its beat a worker begins anew, and the register is read when that happens: tests/upkeep/test_unheld_runs.py.
OF_THE_WORKER = {"workers", "beats", "queues"}
AGENTS = "agents"


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
async def worker(tocsin_app: Tocsin, make_worker, ran: list[str]) -> Worker:
    """It has run its three agents, which are due again in an hour."""
    for name in ("a", "b", "c"):

        async def refresh(name: str = name) -> None:
            ran.append(name)

        tocsin_app.agent(every="1h", name=name)(refresh)
    worker = await make_worker(queues=[AGENTS])
    await worker.reconciler.register()
    await run_dry(worker)
    assert sorted(ran) == ["a", "b", "c"]
    ran.clear()
    return worker


async def refresh(worker: Worker, clock: ManualClock) -> None:
    """What a worker does within one refresh period."""
    clock.advance(REFRESH)
    for _ in range(2):
        await asyncio.to_thread(worker.heart.beat)
        await run_dry(worker)
        await worker.reconciler.step()
    await run_dry(worker)


async def keys_of(app: Tocsin) -> dict[str, str]:
    queue = await app.store.find_queue(AGENTS)
    return {**queue.keys[0], **app.store.keys.fleet()}


@pytest.mark.parametrize("key", sorted({*PARTITION_KEYS, *FLEET_KEYS} - OF_THE_WORKER))
async def test_whatever_key_is_deleted_all_agents_run_on(tocsin_app, tocsin_clock, worker, ran, key):
    await tocsin_app.store.client.delete((await keys_of(tocsin_app))[key])
    await refresh(worker, tocsin_clock)
    stages = [(await tocsin_app.get(name, queue=AGENTS)).stage for name in ("a", "b", "c")]
    assert stages == ["waiting"] * 3
    ran.clear()
    tocsin_clock.advance("1h")
    await refresh(worker, tocsin_clock)
    assert sorted(set(ran)) == ["a", "b", "c"]


@pytest.mark.parametrize("key", sorted({*PARTITION_KEYS, *FLEET_KEYS} - OF_THE_WORKER))
async def test_whatever_key_is_deleted_while_an_agent_runs_it_runs_again(
    tocsin_app, tocsin_clock, make_worker, ran, key
):
    gate = Gate()

    @tocsin_app.agent(every="1h", name="a")
    async def a() -> None:
        ran.append("a")
        await gate.enter()

    worker = await make_worker(queues=[AGENTS])
    await worker.reconciler.register()
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "it runs")
    await tocsin_app.store.client.delete((await keys_of(tocsin_app))[key])
    gate.open()
    await eventually(lambda: not worker.pool.busy, "it has ended")
    await refresh(worker, tocsin_clock)
    assert (await tocsin_app.get("a", queue=AGENTS)).stage == "waiting"
    ran.clear()
    tocsin_clock.advance("1h")
    await refresh(worker, tocsin_clock)
    assert "a" in ran


@pytest.mark.parametrize("key", ["waiting", "jobs"])
async def test_one_agent_that_is_removed_runs_again_within_one_refresh(tocsin_app, tocsin_clock, worker, ran, key):
    client, name = tocsin_app.store.client, (await keys_of(tocsin_app))[key]
    await (client.zrem(name, "b") if key == "waiting" else client.hdel(name, "b"))
    await refresh(worker, tocsin_clock)
    assert ran == ["b"]


async def test_after_a_wipe_all_agents_run_within_one_refresh(tocsin_app, tocsin_clock, worker, ran):
    await tocsin_app.store.client.flushall()
    await refresh(worker, tocsin_clock)
    assert sorted(ran) == ["a", "b", "c"]


async def test_a_time_that_somebody_moves_back_is_noticed(tocsin_app, tocsin_clock, worker, ran):
    await tocsin_app.store.client.zadd((await keys_of(tocsin_app))["waiting"], {"b": tocsin_clock.ms + 20_000})
    await refresh(worker, tocsin_clock)
    assert ran == ["b"]


@pytest.mark.parametrize("by", ["this program", "another program"])
async def test_an_interval_that_becomes_shorter_is_noticed(
    tocsin_app, other_app, tocsin_clock, make_worker, worker, ran, by
):
    async def refresh_b() -> None:
        ran.append("b")

    if by == "this program":
        agent = tocsin_app.declarations.agents["b"]
        tocsin_app.declarations.agents["b"] = replace(agent, every=Every("10s"))
        await worker.reconciler.step()
    else:
        other_app.agent(every="10s", name="b")(refresh_b)
        await other_app.register_agents()
    for _ in range(3):
        await refresh(worker, tocsin_clock)
    assert "b" in ran


async def test_the_oldest_agents_are_asked_for_first_after_a_start(tocsin_app, tocsin_clock, make_worker, ran):
    names = [f"agent {n:02}" for n in range(20)]

    async def refresh(run) -> None:
        ran.append(run.job_id)

    for name in names:
        tocsin_app.agent(every="1h", name=name)(refresh)
    await tocsin_app.register_agents()
    # The last by name has waited longest.
    waiting = (await keys_of(tocsin_app))["waiting"]
    await tocsin_app.store.client.zadd(waiting, {name: tocsin_clock.ms - n * 1000 for n, name in enumerate(names)})
    worker = await make_worker(queues=[AGENTS], concurrency=1)
    await worker.reconciler.register()
    await run_dry(worker)
    assert ran == names[::-1]


async def test_two_workers_that_have_more_than_they_can_do_share_it_oldest_first(
    tocsin_app, tocsin_clock, make_worker, ran
):
    names = [f"agent {n:02}" for n in range(40)]
    by: dict[str, list[str]] = {}

    async def refresh(run) -> None:
        ran.append(run.job_id)

    for name in names:
        tocsin_app.agent(every="1h", name=name)(refresh)
    await tocsin_app.register_agents()
    waiting = (await keys_of(tocsin_app))["waiting"]
    await tocsin_app.store.client.zadd(waiting, {name: tocsin_clock.ms - n * 1000 for n, name in enumerate(names)})
    workers = [await make_worker(queues=[AGENTS], concurrency=2) for _ in range(2)]
    for worker in workers:
        await worker.reconciler.register()
    while len(ran) < len(names):
        for worker in workers:
            before = len(ran)
            await worker.fetcher.step()
            while worker.pool.busy or not worker.finisher.idle():
                await asyncio.sleep(0)
                await worker.finisher.step()
            by.setdefault(worker.name, []).extend(ran[before:])
    shares = [len(each) for each in by.values()]
    assert min(shares) >= len(names) / 3
    # Each is at most a few places away from where its age puts it.
    assert all(abs(ran.index(name) - place) <= 8 for place, name in enumerate(names[::-1]))
