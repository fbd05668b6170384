"""The audit of ordered queues: places, spots, turns, counts and caps; broken by hand, found, mended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.records import record
from tests.support.servers import Server
from tocsin import Retry, Tocsin
from tocsin.inspection.doctor import Doctor, DoctorReport
from tocsin.inspection.inspector import Inspector
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.run import Claim
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions import queue_settings
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.settle import finish_item
from tocsin.store.views.audit import AuditReader

FOR_EVER = 1e15


class Bench:
    """An ordered queue of one partition, and hands to break it with."""

    def __init__(self, store: Store, queue: OpenQueue, jobs: Jobs, runs: Runs) -> None:
        self.store, self.queue, self.jobs, self.runs = store, queue, jobs, runs
        self.redis: Any = store.client
        self.keys = queue.keys[0]

    async def put(self, member: str, tenant: str = "acme", band: int = 2, due: int = 0) -> None:
        await self.jobs.put(self.queue, PutItem(member, record(band=band, tenant=tenant), due, relative=True))

    async def claim(self, limit: int = 1000) -> list[Claim]:
        [answer] = await self.runs.claim([ClaimRequest(self.queue, 0, limit)], FOR_EVER)
        return answer.claims  # type: ignore[union-attr]

    async def finish(self, claim: Claim) -> None:
        items = [finish_item(claim, 0, SUCCEEDED)]
        await self.store.call(self.runs.settle("finish", self.queue, 0, items))

    async def set(self, **settings: str) -> None:
        await queue_settings.update(self.store, self.queue, settings, {}, operator=True)

    async def report(self, *, repair: bool = False) -> DoctorReport:
        return await Doctor(AuditReader(self.store), Fleet(self.store), repair=repair, patience_s=0).run()

    async def kinds(self, *, repair: bool = False) -> dict[str, tuple[int, int]]:
        report = await self.report(repair=repair)
        return {found.kind: (found.count, found.mended) for found in report.findings if found.kind != "no-aof"}

    async def place_of(self, member: str) -> tuple[str, bytes]:
        """In which `ready` it stands, and as what."""
        for band in range(5):
            for place in await self.redis.zrange(self.keys[f"ready{band}"], 0, -1):
                if place.split(b"\0")[-1] == member.encode():
                    return self.keys[f"ready{band}"], place
        raise AssertionError(f"{member} is not ready")

    async def drain(self) -> list[str]:
        """Ids in the order in which they are claimed, one by one."""
        order = []
        while claims := await self.claim(1):
            order += [claim.member for claim in claims]
            await self.finish(claims[0])
        return order


@pytest.fixture
def bench(store: Store, queue: OpenQueue, jobs: Jobs, runs: Runs) -> Bench:
    return Bench(store, queue, jobs, runs)


async def fill(bench: Bench) -> None:
    """Some of two tenants in three bands, one that waits, one that is worked on and counts for its tenant's cap."""
    await bench.redis.hset(bench.keys["meta"], "tenant_max_active", 100)
    await bench.put("first", "acme", 0)
    await bench.claim(1)
    for n in range(3):
        await bench.put(f"acme {n}", "acme", n)
        await bench.put(f"other {n}", "other", n)
    await bench.put("later", "acme", due=60_000)


fair = pytest.mark.parametrize("queue", ["fair"], indirect=True)
ordered = pytest.mark.parametrize("queue", ["priority", "fair"], indirect=True)


@ordered
async def test_a_line_in_order_has_nothing_to_find_and_is_counted(bench: Bench) -> None:
    await fill(bench)
    assert await bench.kinds() == {}
    report = await bench.report(repair=True)
    [size] = report.queues
    assert (size.counts["ready"], size.counts["waiting"], size.counts["working"]) == (6, 1, 1)
    assert not report.wrong


# Each breaks the line, and says what should be found.


async def lose_a_record(bench: Bench) -> str:
    await bench.redis.hdel(bench.keys["jobs"], "acme 1")
    return "no-record"


async def wait_as_well(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["waiting"], {"acme 1": 9e12})
    return "two-stages"


async def pause_as_well(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["paused"], {"acme 1": 5})
    return "two-stages"


async def work_as_well(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["working"], {"acme 1": 9e12})
    return "two-stages"


@ordered
@pytest.mark.parametrize("damage", [lose_a_record, wait_as_well, pause_as_well, work_as_well])
async def test_a_job_that_is_ready_and_should_not_be(bench: Bench, damage: Callable[[Bench], Awaitable[str]]) -> None:
    await fill(bench)
    kind = await damage(bench)
    assert await bench.kinds() == {kind: (1, 0)}
    assert await bench.kinds(repair=True) == {kind: (1, 1)}
    assert await bench.kinds() == {}


@ordered
async def test_what_is_ready_and_paused_stays_paused(bench: Bench) -> None:
    await fill(bench)
    await pause_as_well(bench)
    await bench.kinds(repair=True)
    assert "acme 1" not in await bench.drain()
    assert await bench.redis.zscore(bench.keys["paused"], "acme 1") == 5


@pytest.mark.parametrize("queue", ["priority"], indirect=True)
async def test_a_job_in_two_bands_is_left_in_its_own(bench: Bench) -> None:
    await fill(bench)
    score = await bench.redis.zscore(bench.keys["ready1"], "acme 1")
    await bench.redis.zadd(bench.keys["ready0"], {"acme 1": score})
    assert await bench.kinds() == {"misplaced": (1, 0)}
    assert await bench.kinds(repair=True) == {"misplaced": (1, 1)}
    assert await bench.kinds() == {}
    assert await bench.redis.zscore(bench.keys["ready1"], "acme 1") == score
    assert sorted(await bench.drain()) == sorted(f"{t} {n}" for t in ("acme", "other") for n in range(3))


async def lose_a_place(bench: Bench) -> str:
    await bench.redis.zrem(*await bench.place_of("acme 1"))
    return "misplaced"


async def spoil_a_spot(bench: Bench) -> str:
    await bench.redis.zrem(*await bench.place_of("acme 1"))
    await bench.redis.hset(bench.keys["spots"], "acme 1", "7 nonsense")
    return "misplaced"


async def lose_a_spot(bench: Bench) -> str:
    await bench.redis.hdel(bench.keys["spots"], "acme 1")
    return "stray-place"


async def stand_twice(bench: Bench) -> str:
    _, place = await bench.place_of("acme 1")
    await bench.redis.zadd(bench.keys["ready2"], {place: 0})
    return "stray-place"


async def stand_without_a_job(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["ready1"], {b"acme\x000000000000001\x000000\x00nobody": 0})
    return "stray-place"


async def stand_as_nonsense(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["ready1"], {b"acme\x00nonsense": 0})
    return "stray-place"


async def stand_in_line_while_working(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["ready1"], {b"acme\x000000000000001\x000000\x00first": 0})
    return "stray-place"


async def lose_a_turn(bench: Bench) -> str:
    await bench.redis.zrem(bench.keys["turns1"], "other")
    return "passed-over"


async def count_too_many(bench: Bench) -> str:
    state = await bench.redis.hget(bench.keys["tenants"], "acme")
    await bench.redis.hset(bench.keys["tenants"], "acme", (7).to_bytes(4, "big") + state[4:])
    return "miscounted-tenant"


async def count_one_that_has_none(bench: Bench) -> str:
    await bench.redis.hset(bench.keys["tenants"], "gone", (1).to_bytes(4, "big") + bytes(48))
    return "miscounted-tenant"


async def lose_a_count(bench: Bench) -> str:
    await bench.redis.hdel(bench.keys["tenants"], "acme")
    return "miscounted-tenant"


async def rest_for_nothing(bench: Bench) -> str:
    for band in range(5):
        await bench.redis.zrem(bench.keys[f"turns{band}"], "other")
    await bench.redis.zadd(bench.keys["resting"], {"other": float("inf")})
    return "rests-in-vain"


FAIR = [
    lose_a_place, spoil_a_spot, lose_a_spot, stand_twice, stand_without_a_job, stand_as_nonsense,
    stand_in_line_while_working, lose_a_turn, count_too_many, count_one_that_has_none, lose_a_count, rest_for_nothing,
]  # fmt: skip


@fair
@pytest.mark.parametrize("damage", FAIR)
async def test_a_broken_fair_line_is_mended_and_serves_all(
    bench: Bench, damage: Callable[[Bench], Awaitable[str]]
) -> None:
    await fill(bench)
    kind = await damage(bench)
    assert await bench.kinds() == {kind: (1, 0)}
    assert await bench.kinds(repair=True) == {kind: (1, 1)}
    assert await bench.kinds() == {}
    assert sorted(await bench.drain()) == sorted(f"{t} {n}" for t in ("acme", "other") for n in range(3))


@fair
async def test_a_job_that_lost_its_spot_keeps_its_place(bench: Bench) -> None:
    for n in range(3):
        await bench.put(f"{n}")
    await bench.redis.hdel(bench.keys["spots"], "0")
    assert await bench.kinds(repair=True) == {"stray-place": (1, 1)}
    assert await bench.drain() == ["0", "1", "2"]


@fair
async def test_a_tenant_at_its_cap_rests_for_a_reason(bench: Bench) -> None:
    await bench.set(tenant_max_active="1")
    for n in range(3):
        await bench.put(f"{n}")
    [claim] = await bench.claim()
    assert await bench.redis.zscore(bench.keys["resting"], "acme") == float("inf")
    assert await bench.kinds() == {}
    # Its run is gone, and nobody told it.
    await bench.redis.zrem(bench.keys["working"], claim.member)
    await bench.redis.hdel(bench.keys["claims"], claim.member)
    await bench.redis.hdel(bench.keys["jobs"], claim.member)
    assert await bench.kinds(repair=True) == {"miscounted-tenant": (1, 1), "rests-in-vain": (1, 1)}
    assert await bench.drain() == ["1", "2"]


@pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)
async def test_a_cap_that_is_exceeded_is_wrong_unless_it_was_lowered_meanwhile(bench: Bench) -> None:
    await bench.set(max_active="3")
    for n in range(5):
        await bench.put(f"{n}")
    claims = await bench.claim()
    assert len(claims) == 3
    assert await bench.kinds() == {}
    await bench.set(max_active="2")
    report = await bench.report()
    assert not report.wrong
    assert [found.examples for found in report.findings if found.kind == "cap-lowered"] == [["3 of 2"]]
    # The new cap was kept once, and is exceeded afterwards.
    for claim in claims[:2]:
        await bench.finish(claim)
    [claim] = await bench.claim()
    assert await bench.kinds() == {}
    await bench.redis.hset(bench.keys["meta"], "max_active", 1)
    report = await bench.report(repair=True)
    assert report.wrong
    assert [found.kind for found in report.findings if found.level == "wrong"] == ["over-cap"]
    await bench.finish(claim)
    assert await bench.kinds() == {}


# Under load


@pytest.fixture
async def busy(valkey: Server) -> AsyncIterator[Tocsin]:
    """A fair queue with caps and rates, whose jobs are put, retried, moved and removed as fast as it goes."""
    app = Tocsin(valkey.url, prefix=f"t{secrets.token_hex(4)}:")
    app.queue("load", order="fair", max_active=20, tenant_max_active=3, tenant_rate="500/s", aging="1s")

    @app.job(queue="load", name="tests.work", retry=Retry(1, "1ms"))
    async def work(n: int) -> None:
        await asyncio.sleep(0)
        if n % 5 == 0:
            raise ValueError(n)

    stop = asyncio.Event()

    async def feed() -> None:
        for turn in itertools.count():
            ids = [f"{turn % 7}.{n}" for n in range(50)]
            bands = ("critical", "normal", "background")
            await app.enqueue_many(
                work, [(n,) for n in range(50)], ids=ids, tenant=f"t{turn % 7}", priority=bands[turn % 3],
                if_exists="replace", keep=0,
            )  # fmt: skip
            await app.pause(f"{turn % 7}.3", queue="load")
            await app.resume(f"{turn % 7}.3", queue="load")
            await app.remove(f"{(turn + 3) % 7}.9", queue="load")
            await app.queue_update("load", weights={f"t{turn % 7}": 1 + turn % 5}, tenant_max_active=2 + turn % 3)
            if stop.is_set():
                return

    async with app:
        feeding = asyncio.create_task(feed())
        working = asyncio.create_task(app.work(queues=["load"], grace=0))
        yield app
        stop.set()
        await feeding
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def test_a_busy_fair_queue_has_nothing_to_find(busy: Tocsin) -> None:
    inspector = Inspector(busy.store)
    for repair in (False, True) * 6:
        report = await Doctor(AuditReader(busy.store), Fleet(busy.store), repair=repair, patience_s=0).run()
        noticed = {found.kind for found in report.findings} - {"no-aof", "dead", "silent-worker", "bell"}
        assert noticed == set()
    [queue] = await inspector.queues()
    assert queue.counters["succeeded"] > 500
    assert queue.counters["retried"] > 100


@fair
async def test_a_tenant_whose_work_is_held_back_keeps_its_turn(bench: Bench) -> None:
    """Runs that may kill workers are given out one at a time; until then they stay in line."""
    await bench.put("suspect")
    for _ in range(2):
        await bench.claim()
        await bench.runs.recover(bench.queue, 0, "worker-1.1")
    await bench.put("plain")
    [answer] = await bench.runs.claim([ClaimRequest(bench.queue, 0, 10, suspects=0)], FOR_EVER)
    assert [claim.member for claim in answer.claims] == ["plain"]  # type: ignore[union-attr]
    assert await bench.kinds() == {}
    [answer] = await bench.runs.claim([ClaimRequest(bench.queue, 0, 10, suspects=1)], FOR_EVER)
    assert [claim.member for claim in answer.claims] == ["suspect"]  # type: ignore[union-attr]


@fair
async def test_of_two_places_without_a_spot_one_is_kept(bench: Bench) -> None:
    await bench.put("a")
    key, _ = await bench.place_of("a")
    await bench.redis.zadd(key, {b"acme\x000000000000001\x000000\x00a": 0})
    await bench.redis.hdel(bench.keys["spots"], "a")
    assert await bench.redis.zcard(key) == 2
    assert await bench.kinds() == {"stray-place": (2, 0)}
    assert await bench.kinds(repair=True) == {"stray-place": (2, 2)}
    assert await bench.kinds() == {}
    assert await bench.drain() == ["a"]
