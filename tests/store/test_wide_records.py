"""Large records: what is read together stays bounded, and one of them does not slow all others down."""

from __future__ import annotations

import pytest
from line import Line, record

from tocsin.store.jobs import Put

LARGE = 500_000


async def put_later(line: Line, names: list[str], size: int = 0) -> None:
    """Due in a second."""
    puts = [Put(name, record(args=("x" * size,)), line.now + 1000) for name in names]
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
