"""Caps and rates of a queue: never exceeded, changed live, and an operator's word goes before the code's."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from tests.support.one_queue import FOR_EVER, Line
from tests.support.records import HANDLER
from tocsin.model import msgpack
from tocsin.model.errors import InvalidArgument, StoreError
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.queue import Queue, queue_from_code, settings_as_text
from tocsin.model.record import handler_digest
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.queue_settings import open_and_declare, settings_of
from tocsin.store.transitions.settle import bury_or_park_item, finish_item, release_item, retry_item

ORDERS = ["due", "priority", "fair"]
in_each_order = pytest.mark.parametrize("queue", ORDERS, indirect=True)


async def put_many(line: Line, count: int) -> None:
    for n in range(count):
        await line.put(f"{n:04}", tenant=f"t{n % 7}", band=n % 5)


@in_each_order
class TestCap:
    async def test_no_more_are_given_than_it_says(self, line: Line):
        await line.set(max_active=3)
        await put_many(line, 10)
        first = await line.ask()
        assert (len(first.claims), first.next_due, first.left) == (3, -1, 0)
        assert await line.claim(line.other) == []
        await line.finish(first.claims[0])
        assert len(await line.claim(line.other)) == 1

    async def test_fifty_claimers_do_not_exceed_it(self, line: Line):
        """Each claims and ends runs in all ways there are; what is held is counted from the replies."""
        cap, held, most = 7, set(), 0
        await line.set(max_active=cap)
        await put_many(line, 300)
        seen: list[int] = []

        def items(verb: str, claim):
            return {
                "finish": lambda: finish_item(claim, 0, SUCCEEDED),
                "retry": lambda: retry_item(claim, 0, b"\x91\xa3bad"),
                "release": lambda: release_item(claim),
            }.get(verb, lambda: bury_or_park_item(claim, b"\x91\xa3bad"))()

        async def work(n: int) -> None:
            nonlocal most
            chance = random.Random(n)
            runs = Runs(line.store, f"worker-{n}.1", [handler_digest(HANDLER)])
            for _ in range(6):
                [answer] = await runs.claim([ClaimRequest(line.queue, 0, chance.randint(1, 5))], FOR_EVER)
                assert not isinstance(answer, StoreError)
                held.update((claim.member, claim.token) for claim in answer.claims)
                most = max(most, len(held))
                await asyncio.sleep(0)
                verb = chance.choice(["finish", "finish", "finish", "retry", "release", "bury", "park", "recover"])
                held.difference_update((claim.member, claim.token) for claim in answer.claims)
                if verb == "recover":
                    await runs.recover(line.queue, 0, runs.owner)
                elif answer.claims:
                    call = runs.settle(verb, line.queue, 0, [items(verb, claim) for claim in answer.claims])
                    assert (await line.store.call(call))[1] == []

        async def watch() -> None:
            while True:
                seen.append(await line.store.client.zcard(line.keys["working"]))

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(work(n) for n in range(50)))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert 0 < most <= cap
        assert max(seen) <= cap
        assert await line.store.client.zcard(line.keys["working"]) == 0

    async def test_raised_and_lowered_live(self, line: Line):
        await line.set(max_active=2)
        await put_many(line, 10)
        claims = await line.claim()
        await line.set(max_active=5)
        claims += await line.claim()
        assert len(claims) == 5
        await line.set(max_active=3)
        for _ in range(2):
            await line.finish(claims.pop())
            assert await line.claim() == []
        await line.finish(claims.pop())
        assert len(await line.claim()) == 1
        await line.set(max_active=None)
        assert len(await line.claim()) == 4

    async def test_since_when_it_keeps_some_back_is_known(self, line: Line):
        await line.set(max_active=1)
        await line.put("a")
        [claim] = await line.claim()
        await line.ask()
        assert "capped" not in await line.meta()
        await line.put("b")
        await line.ask()
        since = line.now
        line.clock.advance("1s")
        await line.ask()
        assert (await line.meta())["capped"] == since
        await line.finish(claim)
        await line.ask()
        assert "capped" not in await line.meta()

    async def test_a_call_whose_reply_was_lost_takes_no_second_slot(self, line: Line):
        await line.set(max_active=2)
        await put_many(line, 5)
        name = "run_claim" if line.queue.queue.order == "due" else "run_claim_ordered"
        args = [line.runs.owner, line.now, b"", 0, 1000, "1", 10]
        first = await line.raw(name, args, seq=5)
        assert len(msgpack.decode(first[3])) == 2
        assert await line.raw(name, args, seq=5) == first
        assert await line.store.client.zcard(line.keys["working"]) == 2


@in_each_order
class TestRate:
    async def test_a_hundred_a_second(self, line: Line):
        """Evenly spaced; at most what falls due in a tenth of a second at once."""
        await line.set(rate="100/s")
        await put_many(line, 60)
        first = await line.ask()
        assert (len(first.claims), first.next_due, first.left) == (10, line.now + 10, 0)
        assert await line.claim() == []
        came = []
        for _ in range(30):
            line.clock.advance("10ms")
            came.append(len(await line.claim()))
        assert came == [1] * 30
        line.clock.advance("9ms")
        assert await line.claim() == []
        line.clock.advance("1ms")
        assert len(await line.claim()) == 1
        line.clock.advance("1h")
        assert len(await line.claim()) == 10

    @pytest.mark.parametrize(("rate", "ms"), [("5/10s", 2000), ("30/m", 2000), ("1/h", 3_600_000), ("3/s", 334)])
    async def test_slow_ones_give_one_at_a_time(self, line: Line, rate, ms):
        await line.set(rate=rate)
        await put_many(line, 3)
        answer = await line.ask()
        assert (len(answer.claims), answer.next_due) == (1, line.now + ms)
        line.clock.advance(ms / 1000 - 0.001)
        assert (await line.ask()).next_due == line.now + 1
        line.clock.advance("1ms")
        assert len(await line.claim()) == 1

    async def test_fast_ones_keep_their_rate_over_a_while(self, line: Line):
        await line.set(rate="777/s")
        await line.put_all([f"{n}" for n in range(1000)])
        await line.put_all([f"{n}" for n in range(1000, 2000)])
        came = 0
        for _ in range(200):
            came += len(await line.claim())
            line.clock.advance("10ms")
        assert abs(came - 2 * 777 - 77) <= 8

    async def test_with_a_cap_both_hold(self, line: Line):
        await line.set(rate="100/s", max_active=4)
        await put_many(line, 30)
        claims = await line.claim()
        assert len(claims) == 4
        line.clock.advance("1s")
        assert await line.claim() == []
        await line.finish_all(claims)
        assert len(await line.claim()) == 4
        await line.set(max_active=None)
        assert len(await line.claim()) == 6
        assert (await line.ask()).next_due == line.now + 10

    async def test_another_rate_holds_at_once(self, line: Line):
        """A slow one leaves much spent that a fast one would take long to earn."""
        await line.set(rate="1/h")
        await put_many(line, 30)
        assert len(await line.claim()) == 1
        await line.set(rate="100/s")
        assert len(await line.claim()) == 10
        await line.set(rate="1/h")
        assert await line.claim() == []
        await line.set(rate=None)
        assert len(await line.claim()) == 19

    async def test_a_clock_that_goes_back_does_not_stop_it(self, line: Line):
        await line.set(rate="100/s")
        await line.put_all([f"{n}" for n in range(50)])
        await line.claim()
        line.clock.move_to(line.clock.now - timedelta(hours=1))
        await line.put("now")
        assert len(await line.claim()) > 0

    async def test_what_cannot_start_spends_nothing(self, line: Line):
        await line.set(rate="1/s")
        assert await line.claim() == []
        await line.put("a")
        assert await line.names() == ["a"]


@in_each_order
class TestSettings:
    async def test_code_declares_until_an_operator_says_otherwise(self, line: Line):
        declared_queue = Queue("line", line.queue.queue.order, 1, {"max_active": "5"})
        await open_and_declare(line.store, declared_queue)
        assert await settings_of(line.store, line.queue) == {"max_active": "5"}
        await line.set(max_active=2)
        assert await settings_of(line.store, line.queue) == {"max_active": "2"}
        await again(line, declared_queue)
        assert await settings_of(line.store, line.queue) == {"max_active": "2"}
        await line.set(max_active=None)
        await again(line, declared_queue)
        assert await settings_of(line.store, line.queue) == {}

    async def test_code_may_change_what_no_operator_has_set(self, line: Line):
        await again(line, Queue("line", line.queue.queue.order, 1, {"max_active": "5", "rate": "10/s"}))
        await line.set(rate="20/s")
        await again(line, Queue("line", line.queue.queue.order, 1, {"max_active": "6", "rate": "10/s"}))
        assert await settings_of(line.store, line.queue) == {"max_active": "6", "rate": "20/s"}
        every, burst = await line.store.client.hmget(line.keys["meta"], "every", "burst")
        assert (float(every), float(burst)) == (50.0, 50.0)


async def again(line: Line, queue: Queue) -> None:
    """As a process that starts declares it."""
    line.queue.declared = {}
    await open_and_declare(line.store, queue)


@pytest.mark.parametrize("setting", ["max_active", "rate", "tenant_max_active", "tenant_rate"])
def test_what_is_counted_needs_one_partition(setting):
    value = 5 if "active" in setting else "5/s"
    with pytest.raises(InvalidArgument, match=r"needs a queue of one partition.*partitions=1"):
        queue_from_code("q", "fair", 4, {setting: value})
    with pytest.raises(InvalidArgument, match="needs a queue of one partition"):
        settings_as_text(Queue("q", "fair", 4), {setting: value})
    assert queue_from_code("q", "fair", None, {setting: value}).partitions == 1
    assert settings_as_text(Queue("q", "fair", 4), {setting: None}) == {setting: ""}


@pytest.mark.parametrize(
    ("order", "setting", "value"),
    [
        ("due", "aging", "1h"),
        ("due", "tenant_max_active", 5),
        ("due", "tenant_rate", "5/s"),
        ("priority", "tenant_max_active", 5),
        ("priority", "tenant_rate", "5/s"),
    ],
)
def test_settings_of_another_order_are_refused(order, setting, value):
    with pytest.raises(InvalidArgument, match=rf"{setting} is for queues of order .* 'q' has order '{order}'"):
        queue_from_code("q", order, 1, {setting: value})


@pytest.mark.parametrize("value", ["", "100", "0/s", "5/0s", "-1/s", "5/fortnight", 5, "1.5/s"])
def test_a_rate_that_is_none_is_refused(value):
    with pytest.raises(InvalidArgument, match="a rate is text like"):
        queue_from_code("q", "due", 1, {"rate": value})


@pytest.mark.parametrize("value", [0, -1, 2.5, "5", True])
def test_a_cap_that_is_none_is_refused(value):
    with pytest.raises(InvalidArgument, match="must be a whole number from 1"):
        queue_from_code("q", "due", 1, {"max_active": value})


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(InvalidArgument, match="max_active"):
        settings_as_text(Queue("q", "due", 1), {"max_activ": 5})
