"""Carrying: whoever dies between two steps leaves an entry, and anybody else finishes the work."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from tests.support.crashes import DyingStore, Killed
from tests.support.servers import Server
from tests.support.two_queues import MakeTwoQueues, Overtaken, Repeating, TwoQueues
from tocsin.model.outcome import FAILED
from tocsin.store.store import Store
from tocsin.store.transitions.dependencies import PAGE, Outbox
from tocsin.testing import ManualClock
from tocsin.upkeep.outbox_carrier import EVERY_S, OutboxCarrier

NOTHING = {"blocked": 0, "needs": 0, "watchers": 0, "outbox": 0}


async def killed_after(changes: int, yard: TwoQueues, work: Awaitable[None]) -> bool:
    """Whether it died on the way."""
    assert isinstance(yard.store, DyingStore)
    yard.store.left = changes
    try:
        await work
    except Killed:
        return True
    finally:
        yard.store.left = 10**9
    return False


@pytest.mark.parametrize("changes", range(8))
@pytest.mark.parametrize("ends", ["before", "after"])
async def test_a_program_that_dies_while_it_puts_a_dependent(make_yard: MakeTwoQueues, changes: int, ends: str) -> None:
    """Either it is not there, or it runs after both have ended; whether they end before or after it is carried."""
    program, worker = await make_yard(DyingStore), await make_yard()
    await program.put("one", "a")
    await program.put("four", "b")
    died = await killed_after(changes, program, program.put("four", "c", after=(("one", "a"), ("four", "b"))))
    there = await worker.stage("four", "c")
    assert died == (changes < 6)
    assert there == (None if changes < 3 else "blocked")
    if ends == "after":
        await worker.carry_everything()
    await worker.end("one", "a")
    await worker.end("four", "b")
    await worker.carry_everything()
    assert await worker.stage("four", "c") == ("waiting" if there else None)
    assert await worker.left() == NOTHING


@pytest.mark.parametrize("changes", range(2, 6))
async def test_an_upstream_that_ends_while_a_dependent_is_put_is_not_missed(
    make_yard: MakeTwoQueues, changes: int
) -> None:
    """And whose end was told, and which would be forgotten, before its dependent was there."""
    program, worker = await make_yard(Overtaken), await make_yard()
    await program.put("one", "a")
    await program.put("four", "b")

    async def end_it() -> None:
        await worker.end("one", "a")
        await worker.carry_everything()

    assert isinstance(program.store, Overtaken)
    # The first two let both be watched.
    program.store.left, program.store.meanwhile = changes, end_it
    await program.put("four", "c", after=(("four", "b"), ("one", "a")))
    await worker.end("four", "b")
    await worker.carry_everything()
    assert await worker.stage("four", "c") == "waiting"
    assert await worker.left() == NOTHING


@pytest.mark.parametrize("changes", range(8))
async def test_a_worker_that_dies_while_it_tells(make_yard: MakeTwoQueues, changes: int) -> None:
    """Of a success and of a failure that is told on along a chain."""
    victim, worker = await make_yard(DyingStore), await make_yard()
    await victim.put("one", "a")
    await victim.put("four", "b", after=(("one", "a"),))
    await victim.put("one", "x")
    await victim.put("four", "y", after=(("one", "x"),))
    await victim.put("one", "z", after=(("four", "y"),))
    await victim.end("one", "a")
    await victim.end("one", "x", bury=True)
    await killed_after(changes, victim, victim.carry_everything())
    await worker.carry_everything()
    assert await worker.stage("four", "b") == "waiting"
    assert [await worker.stage("four", "y"), await worker.stage("one", "z")] == ["cancelled", "cancelled"]
    assert await worker.left() == NOTHING


@pytest.mark.parametrize("bury", [False, True])
async def test_doing_each_step_twice_changes_nothing(make_yard: MakeTwoQueues, bury: bool) -> None:
    yard = await make_yard(Repeating)
    await yard.put("one", "a")
    await yard.put("four", "b", after=(("one", "a"),))
    await yard.put("one", "c", after=(("four", "b"), ("one", "a")), anyway=True)
    await yard.end("one", "a", bury=bury)
    await yard.carry_everything()
    assert await yard.stage("four", "b") == ("cancelled" if bury else "waiting")
    if not bury:
        assert await yard.stage("one", "c") == "blocked"
        await yard.end("four", "b", FAILED)
        await yard.carry_everything()
    assert await yard.stage("one", "c") == "waiting"
    assert await yard.left() == NOTHING


async def test_an_end_that_was_read_before_and_is_told_late_reaches_nobody_else(make_yard: MakeTwoQueues) -> None:
    """A carrier is stopped with an entry in its hands; meanwhile ids are used again."""
    slow, quick = await make_yard(), await make_yard()
    await quick.put("one", "a")
    await quick.put("one", "b", after=(("one", "a"),))
    await quick.end("one", "a", bury=True)
    entries = await Outbox(slow.store).page(slow.queues["one"], 0)
    watchers = await Outbox(slow.store).watchers(slow.queues["one"], 0, entries)
    await quick.carry_everything()
    assert await quick.stage("one", "b") == "cancelled"
    for member in ("a", "b"):
        where = quick.queues["one"]
        await quick.jobs.delete(where, member)
        await quick.store.client.zrem(where.keys[0]["done"], member)
        await quick.store.client.hdel(where.keys[0]["results"], member)
    await quick.put("one", "a")
    await quick.put("one", "b", after=(("one", "a"),))
    await slow.carrier.carry(slow.queues["one"], 0, entries)
    await Outbox(slow.store).end_watch(slow.queues["one"], [(entries[0], b"a", watchers[0])])
    await quick.carry_everything()
    assert await quick.stage("one", "b") == "blocked"
    await quick.end("one", "a")
    await quick.carry_everything()
    assert await quick.stage("one", "b") == "waiting"


async def test_who_asks_while_an_earlier_end_is_on_its_way_waits_for_the_job_that_is_there_now(
    make_yard: MakeTwoQueues,
) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    await yard.end("one", "a", bury=True)
    await yard.jobs.revive(yard.queues["one"], "a")
    await yard.put("one", "c", after=(("one", "a"),))
    assert [await yard.stage("one", member) for member in "bc"] == ["cancelled", "blocked"]
    await yard.end("one", "a")
    await yard.carry_everything()
    assert await yard.stage("one", "c") == "waiting"


async def test_more_than_a_page_is_carried_by_many_passes(make_yard: MakeTwoQueues) -> None:
    yard, count = await make_yard(), 2 * PAGE + 10
    for n in range(count):
        await yard.put("one", f"{n}")
    await yard.put("four", "all", after=tuple(("one", f"{n}") for n in range(count)))
    for n in range(count):
        await yard.end("one", f"{n}")
    yard.carrier.note_filled(yard.queues["one"], 0)
    passes = 1
    while await yard.carrier.carry_some():
        passes += 1
    assert passes >= 3
    assert await yard.stage("four", "all") == "waiting"
    assert await yard.left() == NOTHING


async def test_it_finds_what_others_left_and_rests_when_there_is_nothing(
    make_yard: MakeTwoQueues, clock: ManualClock
) -> None:
    left, yard = await make_yard(), await make_yard()
    assert await yard.carrier.step() == EVERY_S
    await left.put("one", "a")
    await left.put("four", "b", after=(("one", "a"),))
    await left.end("one", "a")
    before = (await yard.store.client.info("stats"))["total_commands_processed"]
    assert 0 < await yard.carrier.step() <= EVERY_S
    asked = (await yard.store.client.info("stats"))["total_commands_processed"] - before
    assert asked == 1, "nobody told it, and it looked a moment ago: only this test has asked"
    clock.advance(EVERY_S)
    while await yard.carrier.step() == 0:
        pass
    assert await yard.stage("four", "b") == "waiting"
    assert yard.rung == [("four", yard.queues["four"].partition_of("b"))]


async def test_an_entry_that_cannot_be_read_stops_nobody(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    await yard.store.client.zadd(yard.queues["one"].keys[0]["outbox"], {b"A\xff": 0, b"W\0x": 0, b"E\0b\0c\0d": 0})
    await yard.end("one", "a")
    yard.carrier.note_filled(yard.queues["one"], 0)
    while await yard.carrier.carry_some():
        pass
    assert await yard.stage("one", "b") == "waiting"


async def test_a_queue_that_is_no_more_counts_as_cancelled(make_yard: MakeTwoQueues, valkey: Server) -> None:
    yard, other = await make_yard(), await make_yard()
    await yard.put("four", "a")
    await yard.put("one", "b", after=(("four", "a"),))
    await Outbox(yard.store).renew(yard.queues["one"], [b"b"])
    await yard.store.client.hdel(yard.store.keys.fleet()["queues"], "four")
    fresh = Store(valkey.url, prefix=yard.store.keys.prefix, clock=yard.store.clock)
    await fresh.open()
    where = await fresh.find_queue("one")
    assert where is not None
    carrier = OutboxCarrier(fresh, fresh.clock, lambda queue, partition: None)
    carrier.note_filled(where, 0)
    while await carrier.carry_some():
        pass
    assert await other.stage("one", "b") == "cancelled"
    await fresh.close()


async def test_what_cannot_be_carried_yet_keeps_none_behind_it_waiting(make_yard: MakeTwoQueues) -> None:
    """More than a page of entries that nobody can read, which sort before all others."""
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    outbox = yard.queues["one"].keys[0]["outbox"]
    await yard.store.client.zadd(outbox, {f"A{n:03}": 0 for n in range(PAGE + 20)})
    await yard.end("one", "a")
    for _ in range(4):
        yard.carrier.note_filled(yard.queues["one"], 0)
        await yard.carrier.carry_some()
    assert await yard.stage("one", "b") == "waiting"
