"""Forgetting: what ended and is past its time goes, also where no run ends any more."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually
from tocsin import Tocsin
from tocsin.engine.handlers import Handler
from tocsin.store.store import OpenQueue
from tocsin.testing import ManualClock, run_until_idle
from tocsin.upkeep.outcome_expiry import EVERY_S, PARTITIONS, OutcomeExpiry


@pytest.fixture
def returns(tocsin_app: Tocsin) -> Handler:
    @tocsin_app.job
    async def returns() -> int:
        return 42

    return returns


def forgetter(app: Tocsin, *, leads: bool = True) -> OutcomeExpiry:
    return OutcomeExpiry(app.store, app.store.clock, leading=lambda: leads)


async def sizes(app: Tocsin, name: str = "default") -> tuple[int, int, int]:
    """How many are remembered, how many of these nobody named, and how many outcomes there are."""
    queue = await app.store.find_queue(name)
    assert queue is not None
    client = app.store.client
    done = [await client.zcard(keys["done"]) for keys in queue.keys]
    unnamed = [await client.zcard(keys["unnamed"]) for keys in queue.keys]
    return sum(done), sum(unnamed), sum([await client.hlen(keys["results"]) for keys in queue.keys])


async def changes(app: Tocsin) -> int:
    """How often anything was written to the server."""
    return int((await app.store.client.info("persistence"))["rdb_changes_since_last_save"])


async def until_done(part: OutcomeExpiry) -> int:
    """All of its passes until it rests. How many."""
    for passes in range(1, 100):
        if await part.step():
            return passes
    raise AssertionError("it never rests")


async def test_outcomes_go_when_their_time_is_over_without_new_traffic(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, returns: Handler
) -> None:
    handles = [await tocsin_app.enqueue(returns) for _ in range(20)]
    chosen = await tocsin_app.enqueue(returns, id="chosen")
    cancelled = await tocsin_app.enqueue(returns, delay="1h")
    await cancelled.cancel()
    await run_until_idle(tocsin_app)
    part = forgetter(tocsin_app)

    tocsin_clock.advance("9m")
    await until_done(part)
    assert await sizes(tocsin_app) == (22, 21, 22)

    tocsin_clock.advance("1m")
    await until_done(part)
    assert await sizes(tocsin_app) == (1, 0, 1)
    assert {await handle.status() for handle in (*handles, cancelled)} == {"unknown"}
    assert await chosen.result() == 42

    tocsin_clock.advance("1d")
    await until_done(part)
    assert await sizes(tocsin_app) == (0, 0, 0)


async def test_what_is_too_much_goes_too_the_oldest_first(tocsin_app: Tocsin, tocsin_clock: ManualClock) -> None:
    """Ends that no finish wrote, as of jobs that were cancelled with what they waited for."""
    tocsin_app.queue("mail", partitions=1)
    queue = await tocsin_app.store.open_queue(tocsin_app.declarations.known_queue("mail"))
    await remember(tocsin_app, queue, 102_500, tocsin_clock.ms + 600_000)
    await until_done(forgetter(tocsin_app))
    assert await sizes(tocsin_app, "mail") == (100_000, 100_000, 100_000)
    assert await tocsin_app.handle("2499").status() == "unknown"
    assert await tocsin_app.handle("2500").status() == "succeeded"


async def test_where_there_is_nothing_to_forget_nothing_is_written(tocsin_app: Tocsin, returns: Handler) -> None:
    await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    part = forgetter(tocsin_app)
    before = await changes(tocsin_app)
    assert [await part.step() for _ in range(5)] == [EVERY_S] * 5
    assert await changes(tocsin_app) == before


async def test_a_pass_looks_at_some_partitions_however_many_there_are(tocsin_app: Tocsin) -> None:
    for n in range(20):
        await tocsin_app.store.open_queue(tocsin_app.queue(f"q{n}", partitions=4))
    part = forgetter(tocsin_app)
    await part.step()

    async def reads() -> int:
        found = await tocsin_app.store.client.info("commandstats")
        return sum(each["calls"] for name, each in found.items() if name not in ("cmdstat_info", "cmdstat_hello"))

    for _ in range(2):
        before = await reads()
        assert await part.step() == EVERY_S
        assert await reads() - before <= 2 * PARTITIONS


async def test_all_partitions_have_their_turn(tocsin_app: Tocsin, tocsin_clock: ManualClock, returns: Handler) -> None:
    for n in range(10):
        tocsin_app.queue(f"q{n}", partitions=8)
        await tocsin_app.enqueue(returns, queue=f"q{n}")
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("11m")
    part = forgetter(tocsin_app)
    for _ in range(80 // PARTITIONS + 2):
        await until_done(part)
    assert part.forgotten == 10


async def test_only_the_leader_forgets(tocsin_app: Tocsin, tocsin_clock: ManualClock, returns: Handler) -> None:
    await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("11m")
    assert await forgetter(tocsin_app, leads=False).step() == EVERY_S
    assert await sizes(tocsin_app) == (1, 1, 1)


async def test_a_partition_that_is_broken_keeps_no_other_from_being_tidied(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, returns: Handler
) -> None:
    handles = [await tocsin_app.enqueue(returns) for _ in range(40)]
    await run_until_idle(tocsin_app)
    queue = await tocsin_app.store.find_queue("default")
    assert queue is not None
    broken = queue.keys[queue.partition_of(handles[0].id)]
    await tocsin_app.store.client.delete(broken["results"])
    await tocsin_app.store.client.set(broken["results"], "not a hash")
    tocsin_clock.advance("11m")
    await until_done(forgetter(tocsin_app))
    others = [keys for keys in queue.keys if keys is not broken]
    assert [await tocsin_app.store.client.zcard(keys["done"]) for keys in others] == [0] * len(others)


async def test_a_worker_forgets_by_itself(tocsin_app: Tocsin, tocsin_clock: ManualClock, returns: Handler) -> None:
    await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("11m")
    worker = await tocsin_app.worker()
    await worker.start()

    async def nothing_is_left() -> bool:
        return await sizes(tocsin_app) == (0, 0, 0)

    await eventually(nothing_is_left, "it was elected, and has looked")
    await worker.stop()


async def remember(app: Tocsin, queue: OpenQueue, count: int, until: int) -> None:
    """As jobs that nobody named leave it when they have ended, one a millisecond."""
    client, keys = app.store.client, queue.keys[0]
    for first in range(0, count, 20_000):
        some = range(first, min(first + 20_000, count))
        await client.zadd(keys["done"], {f"{n}": until for n in some})
        await client.zadd(keys["unnamed"], {f"{n}": n for n in some})
        await client.hset(keys["results"], mapping=dict.fromkeys(map(str, some), b"\x01" + bytes(8)))
