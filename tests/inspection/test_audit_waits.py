"""The audit of blocked jobs: it is silent on what is in order, and finds who would wait for ever."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.lost_writes import Snapshot
from tests.support.two_queues import MakeTwoQueues, TwoQueues
from tocsin.inspection.doctor import Doctor
from tocsin.store.transitions.dependencies import Outbox
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader


async def kinds(yard: TwoQueues, *, repair: bool = False) -> dict[str, tuple[int, int]]:
    """kind -> found, mended; only what is wrong, or left over."""
    report = await Doctor(AuditReader(yard.store), Fleet(yard.store), repair=repair, patience_s=0).run()
    return {
        found.kind: (found.count, found.mended) for found in report.findings if found.kind not in ("no-aof", "dead")
    }


async def keys_of(yard: TwoQueues, queue: str, member: str) -> dict[str, str]:
    where = yard.queues[queue]
    return where.keys[where.partition_of(member)]


async def test_each_step_of_a_wait_is_in_order(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("four", "b", after=(("one", "a"),))
    await yard.put("one", "c", after=(("four", "b"),))
    await yard.jobs.pause(yard.queues["four"], "b")
    assert await kinds(yard, repair=True) == {}
    await Outbox(yard.store).renew(yard.queues["one"], [b"c"])
    assert await kinds(yard, repair=True) == {}
    await yard.end("one", "a", bury=True)
    assert await kinds(yard, repair=True) == {}
    await yard.carry_everything()
    assert await kinds(yard, repair=True) == {}


async def test_who_has_lost_what_it_waits_for_is_paused_for_a_person(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    await yard.store.client.hdel((await keys_of(yard, "one", "b"))["needs"], "b")
    assert await kinds(yard) == {"blocked-for-nothing": (1, 0)}
    assert await kinds(yard, repair=True) == {"blocked-for-nothing": (1, 1)}
    assert await kinds(yard) == {}
    assert await yard.stage("one", "b") == "paused"


async def test_what_is_left_of_a_wait_is_dropped(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    keys = await keys_of(yard, "one", "b")
    await yard.store.client.zrem(keys["blocked"], "b")
    await yard.store.client.zadd(keys["waiting"], {"b": 1_900_000_000_000})
    await yard.store.client.hset(keys["needs"], "nobody", b"\x93\xa11\x00\xa6line\0u")
    assert await kinds(yard, repair=True) == {"left-over": (2, 2)}
    assert await kinds(yard) == {}
    assert await yard.stage("one", "b") == "waiting"


async def test_a_name_without_a_record_leaves_with_its_wait(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("one", "b", after=(("one", "a"),))
    await yard.store.client.hdel((await keys_of(yard, "one", "b"))["jobs"], "b")
    assert await kinds(yard, repair=True) == {"no-record": (1, 1)}
    assert await kinds(yard) == {}


async def test_who_would_never_be_told_asks_anew(make_yard: MakeTwoQueues) -> None:
    """Somebody emptied the keys of the upstream: nobody knows of the wait, and the upstream is no more."""
    yard = await make_yard()
    await yard.put("four", "a")
    await yard.put("one", "b", after=(("four", "a"),))
    await yard.store.client.delete((await keys_of(yard, "four", "a"))["watchers"])
    await yard.jobs.delete(yard.queues["four"], "a")
    assert await kinds(yard) == {"unheard-wait": (1, 0)}
    assert await kinds(yard, repair=True) == {"unheard-wait": (1, 1)}
    assert await kinds(yard) == {}
    await yard.carry_everything()
    assert await yard.stage("one", "b") == "cancelled"


@pytest.mark.parametrize(("bury", "then"), [(False, "waiting"), (True, "cancelled")])
async def test_who_was_told_and_is_blocked_again_is_mended_at_once_without_a_worker(
    make_yard: MakeTwoQueues, bury: bool, then: str
) -> None:
    """The server of the dependent lost its last writes."""
    yard = await make_yard()
    await yard.put("one", "a")
    await yard.put("four", "b", after=(("one", "a"),))
    await yard.put("one", "c", after=(("four", "b"),))
    snapshot = Snapshot(yard.store, "four")
    await snapshot.take()
    await yard.end("one", "a", bury=bury)
    await yard.carry_everything()
    await snapshot.put_back()
    assert await kinds(yard) == {"unheard-wait": (1, 0)}
    assert await kinds(yard, repair=True) == {"unheard-wait": (1, 1)}
    assert await yard.stage("four", "b") == then
    # What waits for that one in turn was told when it was cancelled the first time.
    assert await yard.stage("one", "c") == ("cancelled" if bury else "blocked")
    assert await kinds(yard) == {}
    bell = yard.store.keys.bell("four")
    assert await yard.store.client.llen(bell) == (0 if bury else 1)


async def test_nothing_is_found_while_all_of_it_moves(make_yard: MakeTwoQueues) -> None:
    busy, auditor = await make_yard(), await make_yard()
    over = asyncio.Event()

    async def work() -> None:
        for n in range(30):
            await busy.put("one", f"a{n}")
            await busy.put("four", f"b{n}", after=(("one", f"a{n}"),))
            await busy.put("one", f"c{n}", after=(("four", f"b{n}"), ("one", f"a{n}")))
            await busy.end("one", f"a{n}", bury=n % 3 == 0)
            await busy.carry_everything()
        over.set()

    working, looks = asyncio.create_task(work()), 0
    while not over.is_set() or looks < 2:
        assert await kinds(auditor) == {}
        looks += 1
    await working
