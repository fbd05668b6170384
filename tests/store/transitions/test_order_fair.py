"""Queues of order fair: within a band each tenant in its turn, by weight, with caps and rates of its own."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from tests.support.one_queue import Line
from tests.support.tenant_jobs import active, put_each, put_many, tenants_of
from tocsin.model.outcome import EDIT, SUCCEEDED
from tocsin.model.run import Claim
from tocsin.store.transitions.settle import finish_item

pytestmark = pytest.mark.parametrize("queue", ["fair"], indirect=True)


class TestTurns:
    async def test_each_in_its_turn(self, line: Line):
        for tenant, count in (("a", 5), ("b", 2), ("c", 3)):
            await put_many(line, tenant, count)
        assert tenants_of(await line.names()) == "abcabcacaa"

    async def test_one_at_a_time_is_the_same_order(self, line: Line):
        for tenant, count in (("a", 5), ("b", 2), ("c", 3)):
            await put_many(line, tenant, count)
        names = [name for _ in range(10) for name in await line.names(limit=1)]
        assert tenants_of(names) == "abcabcacaa"

    async def test_a_tenant_is_served_first_come_first_served(self, line: Line):
        members = [f"a{n * 7919 % 3000}" for n in range(3000)]
        for page in range(3):
            await line.put_all(members[page * 1000 : page * 1000 + 1000], tenant="a")
        assert [name for _ in range(3) for name in await line.names()] == members

    async def test_by_weight(self, line: Line):
        await line.set(weights={"b": 3})
        for tenant in "ab":
            await put_many(line, tenant, 40)
        assert Counter(tenants_of(await line.names(limit=40))) == {"a": 10, "b": 30}

    async def test_by_cost(self, line: Line):
        await put_many(line, "a", 40, cost=3)
        await put_many(line, "b", 40)
        assert Counter(tenants_of(await line.names(limit=40))) == {"a": 10, "b": 30}

    async def test_a_weight_counts_from_the_next_turn_and_can_be_taken_back(self, line: Line):
        for tenant in "ab":
            await put_many(line, tenant, 200)
        assert Counter(tenants_of(await line.names(limit=40))) == {"a": 20, "b": 20}
        await line.set(weights={"b": 3})
        assert Counter(tenants_of(await line.names(limit=40))) == {"a": 10, "b": 30}
        await line.set(weights={"b": None})
        assert abs(Counter(tenants_of(await line.names(limit=40)))["a"] - 20) <= 1

    async def test_shares_of_a_hundred_tenants_and_a_heavy_one(self, line: Line):
        """Each within 5 % of its due over 10 000 runs."""
        await line.set(weights={"t000": 10})
        for n in range(101):
            await line.put_all([f"t{n:03}-{i}" for i in range(1000 if n == 0 else 100)], tenant=f"t{n:03}")
        served: Counter[str] = Counter()
        for _ in range(100):
            claims = await line.claim(limit=100)
            served.update(claim.member[:4] for claim in claims)
            await line.finish_all(claims)
        due = 10_000 / 110
        assert all(abs(served[f"t{n:03}"] / (due * (10 if n == 0 else 1)) - 1) <= 0.05 for n in range(101))

    async def test_bands_go_before_turns(self, line: Line):
        await put_many(line, "a", 2, band=3)
        await put_many(line, "b", 2, band=1)
        assert tenants_of(await line.names()) == "bbaa"

    async def test_aged_bands(self, line: Line):
        await line.set(aging="1s")
        await put_many(line, "a", 2, band=3)
        line.clock.advance("1500ms")
        await put_many(line, "b", 2, band=1)
        assert tenants_of(await line.names()) == "bbaa"
        await put_many(line, "c", 2, band=3)
        line.clock.advance("3500ms")
        await put_many(line, "d", 2, band=1)
        assert tenants_of(await line.names()) == "ccdd"


class TestNewcomer:
    async def test_waits_for_no_more_than_one_round(self, line: Line):
        for tenant in "abcd":
            await put_many(line, tenant, 5000)
        for _ in range(3):
            await line.claim(limit=777)
        await line.put("new", tenant="z")
        assert "new" in await line.names(limit=5)

    async def test_waits_no_longer_because_another_tenants_jobs_cost_much(self, line: Line):
        await put_many(line, "a", 10, cost=1000)
        await put_many(line, "b", 5000)
        await line.claim(limit=1)
        await line.put("new", tenant="z")
        assert "new" in await line.names(limit=3)
        await line.claim(limit=900)
        await line.put("another", tenant="y")
        assert "another" in await line.names(limit=3)

    async def test_newcomers_are_served_in_the_order_in_which_they_came(self, line: Line):
        """However many follow, and whatever they are called."""
        await line.put("first", tenant="z")
        came: list[str] = []
        for n in range(200):
            await line.put(f"{n}", tenant=f"a{n:03}")
            await line.put(f"{n}'", tenant=f"b{n:03}")
            came += await line.names(limit=1)
        assert "first" in came

    async def test_a_stream_of_newcomers_does_not_starve_who_was_there(self, line: Line):
        await put_many(line, "old", 10)
        came: list[str] = []
        for n in range(400):
            await line.put(f"{n}", tenant=f"a{n:03}")
            came += await line.names(limit=1)
        assert sum(name.startswith("old") for name in came) >= 3


class TestActsFromTheNextTurn:
    async def test_removal(self, line: Line):
        for tenant in "ab":
            await put_many(line, tenant, 3)
        for n in range(3):
            await line.delete(f"a{n}")
        assert tenants_of(await line.names()) == "bbb"
        await put_many(line, "a", 2)
        assert tenants_of(await line.names()) == "aa"

    async def test_those_who_removed_everything_do_not_hide_others(self, line: Line):
        """Also where their turns are more than the runs that are asked for."""
        for n in range(300):
            await line.put(f"x{n}", tenant=f"x{n:03}")
        await line.put("a", tenant="y")
        for n in range(300):
            await line.delete(f"x{n}")
        assert await line.names(limit=1) == ["a"]

    async def test_turns_are_exact_behind_those_who_left(self, line: Line):
        for tenant in "abcde":
            await put_many(line, tenant, 3)
        for tenant in "ab":
            for n in range(3):
                await line.delete(f"{tenant}{n}")
        assert tenants_of(await line.names(limit=3)) == "cde"

    async def test_priority(self, line: Line):
        await put_many(line, "a", 3)
        await put_many(line, "b", 3)
        await line.put("b2", mode=EDIT, tenant="b", band=0)
        assert await line.names() == ["b2", "a0", "b0", "a1", "b1", "a2"]

    @pytest.mark.parametrize("stage", ["ready", "waiting", "working", "paused"])
    async def test_another_tenant(self, line: Line, stage):
        """What it runs now is counted for the one that it was claimed for."""
        await line.set(tenant_max_active=9)
        await line.put("job", 1000 if stage == "waiting" else 0, tenant="a")
        claim = await line.take("job") if stage == "working" else None
        if stage == "paused":
            await line.pause("job")
        await line.put("job", mode=EDIT, tenant="b")
        assert await line.stage("job") == stage
        assert await active(line) == ({"a": 1} if claim else {})
        if claim:
            await line.release(claim)
        if stage == "paused":
            await line.resume("job")
        line.clock.advance("2s")
        assert await line.names() == ["job"]
        assert await active(line) == {"b": 1}


LEAVING = {
    "finish": lambda line, claim: line.finish(claim),
    "retry": lambda line, claim: line.retry(claim, 60_000),
    "release": lambda line, claim: line.release(claim),
    "bury": lambda line, claim: line.bury(claim),
    "park": lambda line, claim: line.park(claim),
    "recover": lambda line, claim: line.recover(claim_owner(line)),
    "overdue": lambda line, claim: overdue(line),
    "delete": lambda line, claim: wished(line, claim, line.delete("a0")),
    "cancel": lambda line, claim: wished(line, claim, line.cancel("a0")),
    "pause": lambda line, claim: wished(line, claim, line.pause("a0")),
    "put": lambda line, claim: wished(line, claim, line.put("a0", 60_000, mode=EDIT, tenant="b")),
    "audit": lambda line, claim: without_record(line),
}


def claim_owner(line: Line) -> str:
    return line.runs.owner


async def overdue(line: Line) -> None:
    line.clock.advance("2m")
    await line.recover("")


async def wished(line: Line, claim: Claim, wish) -> None:
    await wish
    await line.retry(claim, 60_000)


async def without_record(line: Line) -> None:
    await line.store.client.hdel(line.keys["jobs"], "a0")
    await line.raw("audit_mend", [b"\x91\xa2a0"])


class TestTenantCap:
    @pytest.mark.parametrize("how", LEAVING)
    async def test_who_rests_at_its_cap_comes_back_when_a_run_ends(self, line: Line, how):
        await line.set(tenant_max_active=1)
        await put_many(line, "a", 3)
        [claim] = await line.claim()
        assert await active(line) == {"a": 1}
        answer = await line.ask()
        assert (answer.claims, answer.next_due) == ([], -1)
        await LEAVING[how](line, claim)
        assert await active(line) == {}
        assert len(await line.names()) == 1
        assert await active(line) == {"a": 1}

    async def test_it_is_never_exceeded(self, line: Line):
        await line.set(tenant_max_active=2)
        for tenant in "abc":
            await put_many(line, tenant, 5, band=1)
            await line.put(f"{tenant}-high", tenant=tenant, band=0)
        claims = await line.claim()
        assert Counter(claim.member[0] for claim in claims) == {"a": 2, "b": 2, "c": 2}
        assert {claim.member for claim in claims} >= {"a-high", "b-high", "c-high"}
        assert await line.claim(line.other) == []
        await line.finish(claims[0])
        assert tenants_of(await line.names()) == claims[0].member[0]

    async def test_a_finish_tells_that_there_is_work_again(self, line: Line):
        await line.set(tenant_max_active=1)
        await put_many(line, "a", 2)
        [claim] = await line.claim()
        assert (await line.ask()).next_due == -1
        call = line.runs.settle("finish", line.queue, 0, [finish_item(claim, 0, SUCCEEDED)])
        assert (await line.store.call(call))[2] == line.now

    async def test_raised_and_lowered_live(self, line: Line):
        await line.set(tenant_max_active=1)
        await put_many(line, "a", 10)
        claims = await line.claim()
        assert await line.claim() == []
        await line.set(tenant_max_active=3)
        claims += await line.claim()
        assert len(claims) == 3
        await line.set(tenant_max_active=2)
        await line.finish(claims.pop())
        assert await line.claim() == []
        await line.finish(claims.pop())
        claims += await line.claim()
        assert len(claims) == 2
        await line.set(tenant_max_active=None)
        assert len(await line.claim()) == 6

    async def test_thousands_who_rest_stand_up(self, line: Line):
        await line.set(tenant_max_active=1)
        for page in range(3):
            tenants = [f"t{page}-{n}" for n in range(500)]
            await put_each(line, tenants)
            await put_each(line, tenants, "'")
        assert len(await line.claim()) == 1000
        assert len(await line.claim()) == 500
        assert await line.claim() == []
        assert await line.store.client.zcard(line.keys["resting"]) == 1500
        await line.set(tenant_max_active=2)
        assert await line.store.client.zcard(line.keys["resting"]) == 0
        assert len(await line.claim()) + len(await line.claim()) == 1500


class TestTenantRate:
    async def test_it_rests_until_its_time(self, line: Line):
        await line.set(tenant_rate="10/s")
        await put_many(line, "a", 10)
        assert await line.names() == ["a0"]
        answer = await line.ask()
        assert (answer.claims, answer.next_due) == ([], line.now + 100)
        await line.put("b", tenant="b")
        assert await line.names() == ["b"]
        line.clock.advance("99ms")
        assert await line.names() == []
        line.clock.advance("1ms")
        assert await line.names() == ["a1"]

    async def test_who_rests_when_the_clock_goes_back_an_hour_does_not_rest_that_hour(self, line: Line):
        await line.set(tenant_rate="10/s")
        await put_many(line, "a", 100)
        assert len(await line.claim()) == 1
        assert len(await line.claim()) == 0
        line.clock.move_to(line.clock.now - timedelta(hours=1))
        got = 0
        for _ in range(10):
            got += len(await line.claim())
            line.clock.advance("100ms")
        assert got == 10

    async def test_who_is_at_its_cap_rests_on_when_the_clock_goes_back(self, line: Line):
        await line.set(tenant_rate="10/s", tenant_max_active=1)
        await put_many(line, "a", 5)
        assert len(await line.claim()) == 1
        line.clock.advance("1s")
        assert len(await line.claim()) == 0
        line.clock.move_to(line.clock.now - timedelta(hours=1))
        assert len(await line.claim()) == 0

    async def test_over_a_while_it_is_the_rate(self, line: Line):
        await line.set(tenant_rate="50/s")
        for tenant in "ab":
            await put_many(line, tenant, 500)
        came: Counter[str] = Counter()
        for _ in range(200):
            came.update(tenants_of(await line.names()))
            line.clock.advance("10ms")
        assert came["a"] == came["b"]
        assert 100 <= came["a"] <= 105

    async def test_a_faster_one_holds_at_once(self, line: Line):
        await line.set(tenant_rate="1/h")
        await put_many(line, "a", 100)
        assert len(await line.claim()) == 1
        assert await line.claim() == []
        await line.set(tenant_rate="100/s")
        line.clock.advance("100ms")
        assert len(await line.claim()) >= 9
        await line.set(tenant_rate=None)
        assert len(await line.claim()) >= 80


class TestMemory:
    async def test_tenants_who_come_once_are_forgotten(self, line: Line):
        for page in range(40):
            await put_each(line, [f"{page}-{n}" for n in range(100)])
            claims = await line.claim()
            assert len(claims) == 100
            await line.finish_all(claims)
        assert await line.store.client.hlen(line.keys["tenants"]) < 600

    async def test_nothing_is_left_of_a_queue_that_is_empty(self, line: Line):
        for tenant in "abc":
            await put_many(line, tenant, 3)
        await line.finish_all(await line.claim())
        await line.claim()
        for key in ("spots", "resting", *(f"{name}{band}" for name in ("ready", "turns") for band in range(5))):
            assert not await line.store.client.exists(line.keys[key])

    async def test_a_tenant_cannot_shed_what_it_owes_by_coming_and_going(self, line: Line):
        """One job at a time is no way to more than one's share."""
        await put_many(line, "b", 300)
        served: Counter[str] = Counter()
        for n in range(200):
            if not await line.store.client.hexists(line.keys["jobs"], f"a{n}"):
                await line.put(f"a{n}", tenant="a")
            claims = await line.claim(limit=1)
            served.update(claim.member[0] for claim in claims)
            await line.finish_all(claims)
        assert abs(served["a"] - served["b"]) <= 100
