"""Large records: what is read together stays bounded, and one of them does not slow all others down."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER, record
from tocsin.model.outcome import EDIT
from tocsin.store.transitions.jobs import PutItem

LARGE = 500_000


async def put_later(line: Line, names: list[str], size: int = 0) -> None:
    """Due in a second."""
    puts = [PutItem(name, record(args=("x" * size,)), line.now + 1000) for name in names]
    for first in range(0, len(puts), 1000):
        await line.jobs.put_many(line.queue, puts[first : first + 1000])


@pytest.mark.parametrize("queue", ["priority", "fair"], indirect=True)
class TestInOrder:
    async def test_a_large_job_that_waits_does_not_keep_others_from_falling_due_together(self, line: Line):
        await put_later(line, ["large"], LARGE)
        await put_later(line, [f"{n:04}" for n in range(2000)])
        line.clock.advance("1s")
        assert [len(await line.claim()) for _ in range(3)] == [1000, 1000, 1]

    async def test_large_jobs_fall_due_a_few_at_a_time(self, line: Line):
        for n in range(20):
            await put_later(line, [f"{n:02}"], LARGE)
        line.clock.advance("1s")
        assert [len(await line.claim()) for _ in range(3)] == [9, 9, 2]


@pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)
async def test_a_partition_forgets_how_large_its_records_were_when_all_are_gone(line: Line):
    await line.put("large", args=("x" * LARGE,))
    await line.put("small")
    assert (await line.meta())["widest"] > LARGE
    for name in ("large", "small"):
        await line.delete(name)
    await line.put("next")
    assert (await line.meta())["widest"] < 1000


async def largest(line: Line) -> int:
    return max(map(len, (await line.store.client.hgetall(line.keys["jobs"])).values()), default=0)


async def work(line: Line, claims: int) -> None:
    """Runs go on, a few at a time, and as many jobs are put as end."""
    for _ in range(claims):
        for claim in await line.claim(limit=10):
            await line.finish(claim)
            await line.put(f"{claim.member}.", args=("x" * 100,))


@pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)
async def test_a_partition_forgets_how_large_its_records_were_while_jobs_go_on_being_there(line: Line):
    await line.put("large", args=("x" * LARGE,))
    await line.put_all([f"{n:03}" for n in range(200)], args=("x" * 100,))
    await work(line, 1)
    assert (await line.meta())["widest"] > LARGE
    await line.delete("large")
    await work(line, 30)
    assert (await line.meta())["widest"] < 1000
    assert await line.jobs.count(line.queue, ["dead", "parked"]) == {"dead": 0, "parked": 0}


class TestWhileARoundIsMade:
    """A large record that comes when the round over all records has passed its place counts all the same."""

    SIZE = 20_000

    @pytest.fixture
    async def half_way(self, line: Line) -> Line:
        """The largest is long gone, and claims have looked at some of the others."""
        await line.put("one", every=5, args=("x" * self.SIZE,))
        await line.put("large", args=("x" * LARGE,))
        await line.put_all([f"{n:03}" for n in range(300)], args=("x" * 100,))
        await line.delete("large")
        claim = await line.take("one")
        assert await self.seen(line) is not None
        await line.finish(claim, next_due=line.now + 3_600_000)
        return line

    async def seen(self, line: Line) -> int | None:
        """The largest of this round so far; None if it has not begun."""
        walk = await line.store.client.hget(line.keys["meta"], "walk")
        return int(walk.split(b":")[-1]) if walk else None

    async def go_on(self, line: Line) -> int:
        """For some rounds. What is read together is bounded at any time."""
        for _ in range(60):
            await work(line, 1)
            assert (await line.meta())["widest"] >= await largest(line)
        return (await line.meta())["widest"]

    async def test_one_that_is_put(self, half_way: Line):
        await half_way.put("later", 3_600_000, args=("x" * self.SIZE * 2,))
        assert await self.seen(half_way) > self.SIZE * 2
        assert self.SIZE * 2 < await self.go_on(half_way) < LARGE

    async def test_an_extra_run_of_one(self, half_way: Line):
        await half_way.fire("one", half_way.now + 7_200_000)
        assert await self.seen(half_way) is None
        await half_way.delete("one")
        assert self.SIZE < await self.go_on(half_way) < LARGE

    async def test_an_edit_of_a_working_job_that_holds_when_its_run_ends(self, half_way: Line):
        await half_way.put("edited", every=5)
        claim = await half_way.take("edited")
        await half_way.put("edited", 3_600_000, mode=EDIT, every=5, args=("x" * self.SIZE * 2,))
        assert self.SIZE < await self.go_on(half_way) < self.SIZE * 2
        await half_way.finish(claim, next_due=half_way.now + 5000)
        assert self.SIZE * 2 < await self.go_on(half_way) < LARGE

    async def test_another_server_begins_anew(self, half_way: Line):
        """Its records are in another order, so a cursor says nothing there."""
        client, key = half_way.store.client, half_way.keys["meta"]
        epoch, _, cursor, seen = (await client.hget(key, "walk")).decode().split(":")
        await client.hset(key, "walk", f"{epoch}:{'0' * 40}:{cursor}:{seen}")
        await half_way.claim(limit=1)
        assert b"0" * 40 not in await client.hget(key, "walk")


async def test_parked_jobs_come_by_the_thousand_though_a_record_was_large(line: Line):
    await line.put("large", 3_600_000, args=("x" * LARGE,))
    await line.put_all([f"{n:03}" for n in range(300)])
    assert (await line.ask(line.worker("w3", "tests.strange"))).parked == 300
    assert len(await line.claim(line.worker("w4", HANDLER))) == 300
