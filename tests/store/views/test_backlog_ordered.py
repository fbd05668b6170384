"""The backlog of ordered queues: what could start, for how long, and what their own limits hold."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER
from tocsin.model.job import Header, Spec
from tocsin.model.record import encode_record, handler_digest
from tocsin.store.transitions import queue_settings
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views import backlog_ordered
from tocsin.store.views.backlog import Backlog, BacklogReader

ordered = pytest.mark.parametrize("queue", ["priority", "fair"], indirect=True)
fair = pytest.mark.parametrize("queue", ["fair"], indirect=True)
every_order = pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)


@pytest.fixture
def ready(line: Line) -> BacklogReader:
    return BacklogReader(line.store, [line.queue])


async def put(line: Line, member: str, tenant: str = "acme", band: int = 2, delay: int = 0) -> None:
    header = Header(False, 60_000, handler_digest(HANDLER), band=band, tenant=tenant)
    await line.jobs.put(line.queue, PutItem(member, encode_record(header, Spec(HANDLER)), delay, relative=True))


async def limit(line: Line, **settings: str) -> None:
    await queue_settings.update(line.store, line.queue, settings, {}, operator=True)


@ordered
async def test_what_is_ready_counts_like_what_waits_and_is_due(line: Line, ready: BacklogReader):
    assert await ready.look() == Backlog()
    await put(line, "late", "other", band=4)
    line.clock.advance("3s")
    await put(line, "a", band=0)
    await put(line, "b", band=2)
    await put(line, "soon", delay=1000)
    await put(line, "later", delay=9000)
    assert await ready.look() == Backlog(3, False, 3.0, 5)
    line.clock.advance("2s")
    # One has fallen due meanwhile, and nobody has claimed since: it still waits.
    assert await ready.look() == Backlog(4, False, 5.0, 5)
    await line.claim(limit=2)
    assert await ready.look() == Backlog(2, False, 5.0, 3)


@ordered
async def test_a_paused_ordered_queue_has_nothing_ready(line: Line, ready: BacklogReader):
    await put(line, "a")
    line.clock.advance("2s")
    await line.jobs.pause_queue(line.queue, True)
    assert await ready.look() == Backlog(0, False, 0.0, 1)


@every_order
async def test_what_the_cap_holds_is_not_ready(line: Line, ready: BacklogReader):
    await limit(line, max_active="1")
    for member in "abc":
        await put(line, member)
    line.clock.advance("2s")
    assert await ready.look() == Backlog(3, False, 2.0, 3)
    [claim] = await line.claim()
    assert await ready.look() == Backlog(0, False, 0.0, 2)
    # Somebody takes one after the other, and the look comes between two of them.
    await line.finish(claim)
    [claim] = await line.claim()
    assert await line.claim() == []
    await line.finish(claim)
    assert await ready.look() == Backlog(0, False, 0.0, 1)
    # Nobody does: the cap holds nothing any more.
    line.clock.advance("1s")
    assert await ready.look() == Backlog(1, False, 3.0, 1)


@every_order
async def test_what_the_rate_holds_is_not_ready(line: Line, ready: BacklogReader):
    await limit(line, rate="1/m")
    for member in "ab":
        await put(line, member)
    assert len(await line.claim()) == 1
    assert len(await line.claim()) == 0
    line.clock.advance("59s")
    assert await ready.look() == Backlog(0, False, 0.0, 1)
    line.clock.advance("2s")
    assert await ready.look() == Backlog(1, False, 61.0, 1)


@fair
async def test_what_a_tenants_own_cap_holds_is_not_ready(line: Line, ready: BacklogReader):
    await limit(line, tenant_max_active="1")
    for n in range(3):
        await put(line, f"a{n}", "acme")
    line.clock.advance("4s")
    await line.claim()
    assert await ready.look() == Backlog(0, False, 0.0, 2)
    await put(line, "b", "other", band=4)
    line.clock.advance("1s")
    assert await ready.look() == Backlog(1, False, 1.0, 3)


@fair
async def test_of_many_tenants_who_rest_some_are_looked_at(line: Line, ready: BacklogReader, monkeypatch):
    monkeypatch.setattr(backlog_ordered, "TENANTS", 2)
    await limit(line, tenant_max_active="1")
    for tenant in "abcd":
        for n in range(3):
            await put(line, f"{tenant}{n}", tenant)
    assert len(await line.claim()) == 4
    for n in range(5):
        await put(line, f"e{n}", "e")
    # 8 are held: the first two of the four tenants have two each.
    assert await ready.look() == Backlog(5, True, 0.0, 13)


@fair
async def test_the_oldest_of_a_fair_queue_is_exact_for_some_tenants_a_band(
    line: Line, ready: BacklogReader, monkeypatch
):
    monkeypatch.setattr(backlog_ordered, "TENANTS", 2)
    await put(line, "z", "z")
    line.clock.advance("1s")
    await put(line, "a", "a")
    assert (await ready.look()).oldest_overdue_s == 1.0
    line.clock.advance("1s")
    await put(line, "b", "b")
    # Three tenants with equal tags: the two that come first by name are looked at.
    assert await ready.look() == Backlog(3, False, 1.0, 3)
