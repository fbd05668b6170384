"""What is odd in a fair queue stops nobody: garbage in its keys, runs that are held back, handlers nobody knows."""

from __future__ import annotations

import struct

import pytest

from tests.support.one_queue import Line
from tests.support.records import STRANGE
from tests.support.tenant_jobs import active, put_many
from tocsin.model.outcome import EDIT
from tocsin.store.transitions.claims import ClaimRequest

pytestmark = pytest.mark.parametrize("queue", ["fair"], indirect=True)


class TestGarbage:
    async def test_a_name_in_ready_without_a_record(self, line: Line):
        await line.put("a", tenant="t")
        await line.store.client.hdel(line.keys["jobs"], "a")
        await line.put("b", tenant="t")
        answer = await line.ask()
        assert ([claim.member for claim in answer.claims], answer.parked) == (["b"], 1)
        again = await line.ask()
        assert (again.claims, again.parked, again.next_due) == ([], 0, -1)

    @pytest.mark.parametrize("member", [b"t\0", b"t\0garbage", b"t\0" + b"9" * 13, b"t\0001\0002\0x", b"\xff\xfe"])
    async def test_a_name_in_ready_that_is_none(self, line: Line, member):
        await line.put("a", tenant="t")
        await line.store.client.zadd(line.keys["ready2"], {member: 0})
        await line.store.client.zadd(line.keys["turns2"], {b"\xff\xfe": 0})
        assert await line.names() == ["a"]
        assert (await line.ask()).next_due == -1

    @pytest.mark.parametrize(
        "raw",
        [b"", b"x", b"\xff" * 52, struct.pack(">I6d", 0, *[float("nan")] * 6), struct.pack(">I6d", 0, *[1e308] * 6)],
    )
    async def test_a_state_of_a_tenant_that_is_none(self, line: Line, raw):
        await line.store.client.hset(line.keys["tenants"], "t", raw)
        await put_many(line, "t", 2)
        [claim] = await line.claim(limit=1)
        await line.finish(claim)
        assert await line.names() == ["t1"]

    @pytest.mark.parametrize("spot", [b"", b"x", b"9t\0001\0002", b"2t", b"2t\0x\0y"])
    async def test_a_spot_that_is_none(self, line: Line, spot):
        await line.put("a", tenant="t")
        await line.store.client.hset(line.keys["spots"], "a", spot)
        assert await line.pause("a") in (1, 3)
        await line.put("a", mode=EDIT, tenant="t")
        await line.cancel("a")
        await line.delete("a")
        await line.put("b", tenant="t")
        assert "b" in await line.names()

    async def test_tenants_of_any_name(self, line: Line):
        names = ["", "\n", "{}", "ü", "\x01", "t\x01", "%", "a" * 250]
        for n, tenant in enumerate(names):
            await line.put(f"{n}", tenant=tenant)
            await line.put(f"{n}'", tenant=tenant)
        await line.set(tenant_max_active=1)
        claims = await line.claim()
        assert len(claims) == len(names)
        assert await active(line) == dict.fromkeys(names, 1)
        await line.finish_all(claims)
        assert len(await line.names()) == len(names)


class TestHeldBack:
    async def suspects(self, line: Line, tenant: str, count: int) -> None:
        await put_many(line, tenant, count)
        for _ in range(2):
            await line.claim()
            await line.recover()

    async def ask(self, line: Line, suspects: int, limit: int) -> tuple[list[str], int]:
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, limit, suspects=suspects)], 1e15)
        return [claim.member for claim in answer.claims], answer.next_due

    async def test_suspects_come_one_at_a_time_and_none_is_lost(self, line: Line):
        await self.suspects(line, "a", 3)
        assert await self.ask(line, 0, 10) == ([], line.now + 100)
        for n in range(3):
            assert (await self.ask(line, 1, 10))[0] == [f"a{n}"]
        assert await self.ask(line, 1, 10) == ([], -1)

    async def test_they_do_not_stop_their_own_tenant_nor_others(self, line: Line):
        await self.suspects(line, "a", 200)
        await line.put("b", tenant="b")
        line.clock.advance("1s")
        await line.put("a-good", tenant="c")
        names, _ = await self.ask(line, 0, 2)
        assert sorted(names) == ["a-good", "b"]

    @pytest.mark.parametrize("lost", [120, 900])
    async def test_a_tenant_gets_past_its_own(self, line: Line, lost: int):
        await self.suspects(line, "a", lost)
        line.clock.advance("1s")
        await line.put("good", tenant="a")
        await line.put("b", tenant="b")
        names, _ = await self.ask(line, 0, 20)
        assert sorted(names) == ["b", "good"]
        assert (await self.ask(line, 0, 20)) == ([], line.now + 100)


class TestParked:
    async def test_unknown_handlers_are_not_charged_and_come_back(self, line: Line):
        await line.set(tenant_max_active=9)
        await put_many(line, "a", 3, handler=STRANGE)
        await line.put("a-known", tenant="a")
        await line.put("b", tenant="b")
        assert await line.names() == ["a-known", "b"]
        assert await active(line) == {"a": 1, "b": 1}
        versed = line.worker("worker-3.1", STRANGE)
        assert await line.names(versed) == ["a0", "a1", "a2"]

    async def test_a_call_whose_reply_was_lost_charges_once(self, line: Line):
        await line.set(tenant_max_active=9)
        for tenant in "ab":
            await put_many(line, tenant, 3)
        args = [line.runs.owner, line.now, b"", 0, 1000, "1", 2]
        first = await line.raw("run_claim_ordered", args, seq=5)
        before = await line.dump()
        assert await line.raw("run_claim_ordered", args, seq=5) == first
        assert await line.dump() == before
        assert await active(line) == {"a": 1, "b": 1}
