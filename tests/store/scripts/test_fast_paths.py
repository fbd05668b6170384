"""Claims and finishes have a fast path for what is usual. Whatever it does, the general path does the same."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.one_queue import Line
from tocsin.model import msgpack
from tocsin.model.outcome import FAILED, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.store.transitions.claims import ClaimRequest, Item
from tocsin.store.transitions.settle import finish_item
from tocsin.testing import ManualClock

EVERY = 5
OUTCOME = msgpack.encode(7)


async def state(line: Line) -> dict[str, Any]:
    """All that is kept of the queue's jobs, without the watcher that sends a finish the long way. A success that a
    record does not count yet, but the score does, counts here."""
    everything, prefix = await line.dump(), line.store.keys.prefix
    found = {base: everything.get(name.removeprefix(prefix)) for base, name in line.keys.items()}
    found["meta"].pop(b"epoch")
    found["waiting"] = {name: int(score) for name, score in found["waiting"] or []}
    jobs = await line.jobs.get_all(line.queue, 0, sorted(found["jobs"]))
    found["jobs"] = [replace(job, queue="") for job in jobs]
    assert found["jobs"]
    return {base: found[base] for base in found if base not in ("events", "sessions", "watchers")}


@pytest.fixture
async def twins(line: Line, clock: ManualClock) -> tuple[Line, Line]:
    """Two queues in the same state: jobs of several kinds, due at different times, some with a timeout of their own."""
    other = await line.store.open_queue(Queue("twin", order=line.queue.queue.order))
    both = line, Line(line.store, other, clock)
    for each in both:
        await each.put_all([f"one-{n}" for n in range(5)])
        await each.put_all([f"kept-{n}" for n in range(3)], keep=60)
        await each.put_all([f"slow-{n}" for n in range(3)], timeout=7000)
        await each.put_all([f"every-{n}" for n in range(4)], every=EVERY, timeout=9000)
        await each.put("later", 500)
    clock.advance("1s")
    return both


async def test_a_claim(twins):
    """A cap that holds nothing back sends a claim the long way."""
    line, other = twins
    [short] = await line.runs.claim([ClaimRequest(line.queue, 0, 9)], 1e15)
    [long] = await other.runs.claim([ClaimRequest(other.queue, 0, 9, max_active=10**6)], 1e15)
    assert len(short.claims) == 9
    assert [claim.member for claim in short.claims] == [claim.member for claim in long.claims]
    assert [claim.token for claim in short.claims] == [claim.token for claim in long.claims]
    assert (short.next_due, short.left, short.parked) == (long.next_due, long.left, long.parked)
    assert await state(line) == await state(other)
    assert len((await state(line))["claims"]) == 9


def ends(line: Line, claims: list[Any]) -> list[Item]:
    items = []
    for claim in claims:
        if claim.member.startswith("every"):
            items.append(
                finish_item(claim, line.now + 1000 * EVERY, FAILED if claim.member.endswith("0") else SUCCEEDED)
            )
        elif claim.member.startswith("kept"):
            items.append(finish_item(claim, 0, SUCCEEDED, keep=60, result=OUTCOME))
        else:
            items.append(finish_item(claim, 0, SUCCEEDED))
    return items


async def test_a_finish(twins):
    """A watcher of another job sends a finish the long way."""
    line, other = twins
    await other.store.client.zadd(other.keys["watchers"], {"another\0twin\0b\0life": 0})
    for each in twins:
        claims = await each.claim()
        assert len(claims) == 16
        assert await each.settle("finish", *ends(each, claims)) == []
    assert await state(line) == await state(other)


async def test_finishes_of_schedules_that_count_now_and_then(twins, clock):
    line, other = twins
    await other.store.client.zadd(other.keys["watchers"], {"another\0twin\0b\0life": 0})
    for _ in range(20):
        for each in twins:
            await each.settle("finish", *ends(each, await each.claim()))
        clock.advance(f"{EVERY}s")
    assert (await line.job("every-1")).attempts == 20
    assert await state(line) == await state(other)


@pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)
async def test_each_run_has_the_time_that_its_job_says(line: Line):
    timeouts = {"a": 7000, "b": 7000, "c": 60_000, "d": 7001, "e": 7000}
    for name, timeout in timeouts.items():
        await line.put(name, timeout=timeout)
    await line.claim()
    deadlines = dict(await line.store.client.zrange(line.keys["working"], 0, -1, withscores=True))
    assert deadlines == {name.encode(): line.now + timeout for name, timeout in timeouts.items()}
