"""How many stand before a job: held against the order in which they are really claimed."""

from __future__ import annotations

import random

import pytest

from tests.support.records import HANDLER
from tocsin.model.job import Header, Spec
from tocsin.model.queue import Queue, settings_as_text
from tocsin.model.record import encode_record, handler_digest
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.queue_settings import update
from tocsin.store.views import position


def put(member: str, due: int, band: int = 2, tenant: str = "") -> PutItem:
    header = Header(
        recurring=False, timeout=60_000, handler=handler_digest(HANDLER), band=band, tenant=tenant
    )  # fmt: skip
    return PutItem(member, encode_record(header, Spec(HANDLER)), due)


async def line_of(store, queue, jobs, clock, member):
    job = await jobs.get(queue, member)
    return (await position.read_position(store, queue, job, clock.ms)).line


async def claim_one(runs, queue):
    [answer] = await runs.claim([ClaimRequest(queue, 0, 1)], 1e15)
    return answer.claims[0].member


@pytest.mark.parametrize(("order", "aging"), [("due", None), ("priority", None), ("priority", 1000), ("priority", 1)])
async def test_a_job_is_claimed_after_as_many_as_stood_before_it(store, jobs, runs, clock, order, aging):
    queue = await store.open_queue(Queue("q", order, partitions=1))
    if aging is not None:
        await update(store, queue, {"aging": str(aging)}, {}, operator=True)
    chance = random.Random(7)
    names = [f"job {n}" for n in range(60)]
    for name in names:
        # Few different times, so that many are of the same.
        await jobs.put(queue, put(name, clock.ms - chance.choice([0, 1, 2, 1000, 2000, 3000]), chance.randrange(5)))
    ahead = {name: (await line_of(store, queue, jobs, clock, name)).ahead for name in names}
    claimed = [await claim_one(runs, queue) for _ in names]
    assert [ahead[name] for name in claimed] == list(range(len(names)))


async def test_of_two_of_the_same_age_the_one_of_the_higher_priority_is_first(store, jobs, runs, clock):
    queue = await store.open_queue(Queue("q", "priority", partitions=1))
    await update(store, queue, {"aging": "1000"}, {}, operator=True)
    for name, band in (("lower", 3), ("higher", 2)):
        await jobs.put(queue, put(name, clock.ms, band))
        clock.advance("1s")
    ahead = {name: (await line_of(store, queue, jobs, clock, name)).ahead for name in ("higher", "lower")}
    assert ahead == {"higher": 0, "lower": 1}
    assert [await claim_one(runs, queue) for _ in ahead] == ["higher", "lower"]


async def test_in_a_fair_queue_a_tenant_is_served_after_as_many_turns_as_were_before_its_own(store, jobs, runs, clock):
    queue = await store.open_queue(Queue("q", "fair", partitions=1))
    for n, tenant in enumerate(["b", "a", "c", "a", "b", "a"]):
        await jobs.put(queue, put(f"job {n}", clock.ms, tenant=tenant))
    # None has been served: of those with the same tag the first by name.
    firsts = {"job 1": 0, "job 0": 1, "job 2": 2}
    lines = {name: await line_of(store, queue, jobs, clock, name) for name in firsts}
    assert {name: line.turns for name, line in lines.items()} == firsts
    assert {line.ahead for line in lines.values()} == {0}
    assert [await claim_one(runs, queue) for _ in firsts] == list(firsts)
    last = await line_of(store, queue, jobs, clock, "job 5")
    assert (last.ahead, last.above) == (1, 0)


@pytest.mark.parametrize("order", ["priority", "fair"])
async def test_one_that_fell_due_has_the_place_that_it_will_get(store, jobs, runs, clock, order):
    queue = await store.open_queue(Queue("q", order, partitions=1))
    await jobs.put(queue, put("late", clock.ms + 10))
    await jobs.put(queue, put("other", clock.ms + 20))
    await jobs.put(queue, put("earlier", clock.ms))
    await jobs.put(queue, put("higher", clock.ms, band=1))
    clock.advance("1s")
    await jobs.put(queue, put("later", clock.ms))
    line = await line_of(store, queue, jobs, clock, "late")
    assert line.entering == 1
    assert (line.ahead, line.above) == ((2, 0) if order == "priority" else (1, 1))
    assert [await claim_one(runs, queue) for _ in range(3)] == ["higher", "earlier", "late"]


async def test_rates_and_caps_are_read_as_the_claim_counts_them(store, jobs, runs, clock):
    queue = await store.open_queue(Queue("q", "fair", partitions=1))
    settings = {"max_active": 2, "rate": "1/s", "tenant_max_active": 1, "tenant_rate": "1/m"}
    await update(store, queue, settings_as_text(queue.queue, settings), {}, operator=True)
    for n in range(3):
        await jobs.put(queue, put(f"job {n}", clock.ms, tenant="acme"))
    job = await jobs.get(queue, "job 2")
    before = await position.read_position(store, queue, job, clock.ms)
    assert (before.limit.is_full, before.limit.held_until(clock.ms)) == (False, None)
    assert (before.tenant.is_full, before.tenant.held_until(clock.ms)) == (False, None)
    await claim_one(runs, queue)
    after = await position.read_position(store, queue, job, clock.ms)
    assert (after.limit.active, after.limit.held_until(clock.ms)) == (1, clock.ms + 1000)
    assert (after.tenant.is_full, after.tenant.held_until(clock.ms)) == (True, clock.ms + 60_000)
    assert [answer.next_due for answer in await runs.claim([ClaimRequest(queue, 0, 1)], 1e15)] == [clock.ms + 1000]


@pytest.mark.parametrize("order", ["due", "priority"])
async def test_suspects_stand_before_nobody_but_each_other(store, jobs, runs, clock, order):
    queue = await store.open_queue(Queue("q", order, partitions=1))
    names, reaper = [f"lost{n}" for n in range(3)], Runs(store, "reaper")
    for name in names:
        await jobs.put(queue, put(name, clock.ms))
    for _ in range(2):
        [answer] = await runs.claim([ClaimRequest(queue, 0, 10)], 1e15)
        assert len(answer.claims) == 3
        assert await reaper.recover(queue, 0, runs.owner) == 3
    clock.advance("1s")
    for name in ("first", "second"):
        await jobs.put(queue, put(name, clock.ms))
    lines = [await line_of(store, queue, jobs, clock, name) for name in ("first", "second")]
    assert [(line.ahead, line.entering) for line in lines] == [(0, 0), (1, 0)]
    if order == "due":
        assert [(await line_of(store, queue, jobs, clock, name)).ahead for name in names] == [0, 1, 2]
