"""The slow net: what raw commands broke in `waiting` and `working` is mended, and no valid job is lost over it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.one_queue import Line
from tests.support.orphans import HOUR, YEAR_2500, Cleaner, score, state, zadd
from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server
from tocsin.model.queue import Queue
from tocsin.store.store import Store
from tocsin.testing import ManualClock


async def name_without_a_job(line: Line) -> str:
    await zadd(line, "waiting", "a", line.now + 5000)
    return "no_record"


async def work_without_a_job(line: Line) -> str:
    await zadd(line, "working", "a", line.now + 5000)
    return "no_record"


async def retry_without_a_record(line: Line) -> str:
    await line.put("a")
    await line.retry(await line.take("a"))
    await line.store.client.hdel(line.keys["jobs"], "a")
    return "no_record"


async def work_overdue(line: Line) -> str:
    await line.put("a", timeout=1000)
    await line.take("a")
    line.clock.advance("11m")
    return "recovered"


async def work_overdue_without_a_claim(line: Line) -> str:
    await work_overdue(line)
    await line.store.client.hdel(line.keys["claims"], "a")
    return "recovered"


async def work_overdue_with_a_spoilt_claim(line: Line) -> str:
    await work_overdue(line)
    await line.store.client.hset(line.keys["claims"], "a", "junk")
    return "claim"


async def wait_in_seconds(line: Line) -> str:
    await line.put("a", 5000, every=10)
    await zadd(line, "waiting", "a", line.now // 1000)
    return "score"


async def work_in_seconds(line: Line) -> str:
    await line.put("a")
    await line.take("a")
    await zadd(line, "working", "a", line.now // 1000)
    return "score"


Break = Callable[[Line], Awaitable[str]]

STRAYS: list[Break] = [
    name_without_a_job, work_without_a_job, retry_without_a_record, work_overdue, work_overdue_without_a_claim,
    work_overdue_with_a_spoilt_claim, wait_in_seconds, work_in_seconds,
]  # fmt: skip


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_a_stray_is_mended_once_counted_and_told(line: Line, cleaner: Cleaner, damage: Break):
    kind = await damage(line)
    with capture_logs() as logs:
        assert await cleaner.step() == 300.0
        after = await state(line)
        await cleaner.step()
    assert cleaner.done == {kind: 1}
    assert [(said["event"], said[kind]) for said in logs] == [("orphans cleaned up", 1)]
    assert await state(line) == after
    stage = "working" if damage is work_in_seconds else None if kind == "no_record" else "waiting"
    assert await line.stage("a") == stage
    assert cleaner.heard == ([] if kind == "no_record" else [("line", 0)])


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_who_does_not_lead_touches_nothing(line: Line, cleaner: Cleaner, damage: Break):
    await damage(line)
    before = await line.dump()
    cleaner.leading = lambda: False
    assert await cleaner.step() == 300.0
    assert await line.dump() == before
    assert cleaner.done == {}


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_what_belongs_to_another_shard_is_left_to_it(line: Line, cleaner: Cleaner, damage: Break):
    kind = await damage(line)
    before = await line.dump()
    asked: list[str] = []
    cleaner.own = lambda member: asked.append(member) is not None
    await cleaner.step()
    assert await line.dump() == before
    assert asked == ["a"]
    cleaner.own = lambda member: member == "a"
    await cleaner.step()
    assert cleaner.done == {kind: 1}


@pytest.mark.one_server(reason="the proxy stands before one server")
@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_a_lost_reply_mends_nothing_twice(valkey: Server, damage: Break, when: str, clock: ManualClock):
    async with Proxy(valkey) as proxy:
        store = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
        await store.open()
        try:
            line = Line(store, await store.open_queue(Queue("line", partitions=1)), clock)
            kind = await damage(line)
            cleaner = Cleaner(store, [line.queue], clock)
            proxy.cut(when, {"score": "audit_mend_score", "recovered": "run_recover"}.get(kind, "audit_mend"))
            await cleaner.step()
            assert proxy.cuts == 1
            assert cleaner.done == {kind: 1}
        finally:
            await store.close()


async def test_a_valid_job_in_any_stage_is_left_alone(line: Line, cleaner: Cleaner):
    for member in ("waiting", "paused", "held", "retried", "buried", "parked", "4711"):
        await line.put(member)
    await line.put("recurring", 5000, every=10)
    await line.put("strange", handler="of.another.worker")
    await line.put("far", YEAR_2500 - line.now)
    await line.spoil("waiting", b"written by a later version")
    await line.pause("paused")
    await line.take("held")
    await line.retry(await line.take("retried"), delay=9000)
    await line.bury(await line.take("buried"))
    await line.park(await line.take("parked"))
    await line.fire("recurring")
    before = await state(line)
    await cleaner.step()
    assert await state(line) == before
    assert cleaner.done == {}


# Overdue


@pytest.mark.parametrize(
    ("past", "step", "comes_back"),
    [
        (599_999, 0, False),
        (600_000, 0, True),
        (HOUR, 0, True),
        # The server's clock was set ahead by an hour since: so much more time has what was claimed before.
        (HOUR, HOUR, False),
        (HOUR + 599_999, HOUR, False),
        (HOUR + 600_000, HOUR, True),
        (24 * HOUR, None, False),
    ],
)
async def test_a_run_comes_back_when_it_is_past_its_deadline_by_the_threshold(
    line: Line, cleaner: Cleaner, past: int, step: int | None, comes_back: bool
):
    await line.put("a", timeout=1000)
    due = line.now
    await line.take("a")
    line.clock.advance((1000 + past) / 1000)
    cleaner.believes = step is not None
    cleaner.steps = b"%d %d %d" % (step, line.now, step) if step else b""
    await cleaner.step()
    assert await line.stage("a") == ("waiting" if comes_back else "working")
    if comes_back:
        again = await line.take("a", line.other)
        assert (again.due, again.attempt, again.recoveries) == (due, 1, 1)


async def test_a_job_that_waits_for_long_is_no_orphan(line: Line, cleaner: Cleaner):
    await line.put("a")
    line.clock.advance("2d")
    asked: list[str] = []
    cleaner.own = lambda member: asked.append(member) is None
    await cleaner.step()
    assert asked == []


async def test_an_old_holder_cannot_end_a_run_that_came_back(line: Line, cleaner: Cleaner):
    await line.put("a", timeout=1000)
    claim = await line.take("a")
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.finish(claim) == ["a"]
    assert await line.stage("a") == "waiting"


async def test_a_run_that_was_extended_meanwhile_stays(line: Line, cleaner: Cleaner, after_look):
    await line.put("a", timeout=1000)
    claim = await line.take("a")
    line.clock.advance("11m")
    after_look(lambda: line.runs.extend(line.queue, claim, 60_000))
    await cleaner.step()
    assert await score(line, "working", "a") == line.now + 60_000
    assert cleaner.done == {}


async def test_a_spoilt_claim_keeps_no_other_run_from_coming_back(line: Line, cleaner: Cleaner):
    for member in "abc":
        await line.put(member, timeout=1000)
        await line.take(member)
    await line.store.client.hset(line.keys["claims"], "b", "junk")
    line.clock.advance("11m")
    await cleaner.step()
    assert [await line.stage(member) for member in "abc"] == ["waiting"] * 3
    assert cleaner.done == {"recovered": 2, "claim": 1}


async def test_what_a_person_wished_meanwhile_is_obeyed(line: Line, cleaner: Cleaner):
    for member in ("paused", "removed"):
        await line.put(member, timeout=1000)
        await line.take(member)
    await line.pause("paused")
    await line.delete("removed")
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.stage("paused") == "paused"
    assert await line.stage("removed") is None
