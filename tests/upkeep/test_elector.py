"""Elections: one leader at a time, that steps down by its own clock before another can follow."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server
from tocsin.model.errors import StoreUnavailable
from tocsin.store import calls
from tocsin.store.store import Store
from tocsin.store.transitions.leadership import LeaderKey, Term
from tocsin.testing import ManualClock
from tocsin.upkeep.elector import Elector

TTL_S = 120.0
Elect = Callable[..., Elector]


@pytest.fixture
def elect(store: Store) -> Elect:
    """An elector with a monotonic clock of its own."""

    def make(name: str, clock: ManualClock, **options: bool) -> Elector:
        return Elector(LeaderKey(store), lambda: name, clock, int(TTL_S * 1000), **options)

    return make


@pytest.fixture
def mine() -> ManualClock:
    return ManualClock()


async def term_ends(store: Store) -> None:
    await store.client.delete(store.keys.leader())


async def test_the_first_that_asks_leads_and_the_second_does_not(elect: Elect, mine: ManualClock):
    one, two = elect("one", mine), elect("two", mine)
    assert not one.leading()
    await one.step()
    await two.step()
    assert (one.leading(), two.leading()) == (True, False)


@pytest.mark.parametrize(
    ("after", "leads"), [("0s", True), ("40s", True), ("79999ms", True), ("80s", False), ("81s", False), ("1h", False)]
)
async def test_a_term_is_trusted_for_two_thirds(elect: Elect, mine: ManualClock, after: str, leads: bool):
    one = elect("one", mine)
    await one.step()
    mine.advance(after)
    assert one.leading() is leads


async def test_a_renewal_counts_anew(elect: Elect, mine: ManualClock):
    one = elect("one", mine)
    for _ in range(10):
        assert await one.step() == pytest.approx(TTL_S / 3)
        mine.advance("40s")
        assert one.leading()


async def test_a_follower_asks_again_when_the_term_may_be_over(elect: Elect, mine: ManualClock, store: Store):
    one, two = elect("one", mine), elect("two", mine)
    await one.step()
    assert await two.step() == pytest.approx(TTL_S / 3)
    await store.client.pexpire(store.keys.leader(), 10_000)
    assert 9 < await two.step() <= 10


class Slow(LeaderKey):
    """A server whose answer takes its time, on the elector's clock."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self._clock = clock
        self.takes_s = 0.0

    async def take(self, worker: str, ttl: int) -> Term:
        term = await super().take(worker, ttl)
        self._clock.advance(self.takes_s)
        return term


@pytest.mark.parametrize(
    ("takes_s", "leads_s", "rests_s"), [(10.0, 70.0, 30.0), (50.0, 30.0, 0.0), (79.0, 1.0, 0.0), (90.0, 0.0, 0.0)]
)
async def test_trust_and_rest_count_from_the_sending(
    store: Store, mine: ManualClock, takes_s: float, leads_s: float, rests_s: float
):
    terms = Slow(store, mine)
    terms.takes_s = takes_s
    one = Elector(terms, lambda: "one", mine, int(TTL_S * 1000))
    assert await one.step() == pytest.approx(rests_s)
    assert one.leading() is (leads_s > 0)
    mine.advance(max(0.0, leads_s - 0.001))
    assert one.leading() is (leads_s > 0)
    mine.advance(0.001)
    assert not one.leading()


async def test_a_stopped_leader_does_not_lead_when_it_wakes(elect: Elect, store: Store):
    """Two machines: the clock of the one that is stopped goes on, and its first look at it is enough."""
    here, there = ManualClock(), ManualClock()
    one, two = elect("one", here), elect("two", there)
    await one.step()
    here.advance("3m")
    await term_ends(store)
    await two.step()
    assert (one.leading(), two.leading()) == (False, True)
    await one.step()
    assert not one.leading()
    assert await store.client.get(store.keys.leader()) == b"two"


async def test_a_leader_that_lost_its_term_early_knows_at_its_next_look(elect: Elect, mine: ManualClock, store: Store):
    """A server that was emptied, or whose clock went ahead."""
    one, two = elect("one", mine), elect("two", mine)
    await one.step()
    await term_ends(store)
    await two.step()
    await one.step()
    assert (one.leading(), two.leading()) == (False, True)


async def test_a_leader_that_leaves_makes_room_at_once(elect: Elect, mine: ManualClock, store: Store):
    one, two = elect("one", mine), elect("two", mine)
    await one.step()
    await one.leave()
    assert not one.leading()
    await two.step()
    assert two.leading()


async def test_who_has_left_does_not_stand_again(elect: Elect, mine: ManualClock, store: Store):
    one = elect("one", mine)
    await one.step()
    await one.leave()
    await one.step()
    assert not one.leading()
    assert await store.client.get(store.keys.leader()) is None


async def test_a_follower_that_leaves_takes_nothing_from_the_leader(elect: Elect, mine: ManualClock, store: Store):
    one, two = elect("one", mine), elect("two", mine)
    await one.step()
    await two.step()
    await two.leave()
    assert one.leading()
    assert await store.client.get(store.keys.leader()) == b"one"


async def test_a_take_that_is_under_way_does_not_outlive_the_leaving(store: Store, mine: ManualClock):
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    class Held(LeaderKey):
        async def take(self, worker: str, ttl: int) -> Term:
            asked.set()
            await may_go_on.wait()
            return await super().take(worker, ttl)

    one = Elector(Held(store), lambda: "one", mine, int(TTL_S * 1000))
    taking = asyncio.ensure_future(one.step())
    await asked.wait()
    leaving = asyncio.ensure_future(one.leave())
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(taking, leaving)
    assert not one.leading()
    assert await store.client.get(store.keys.leader()) is None


async def test_a_new_incarnation_waits_for_the_term_of_the_old_one(store: Store, mine: ManualClock):
    names = ["w.1"]
    one = Elector(LeaderKey(store), lambda: names[-1], mine, int(TTL_S * 1000))
    await one.step()
    names.append("w.2")
    await one.step()
    assert not one.leading()
    await term_ends(store)
    await one.step()
    assert one.leading()


async def test_with_force_all_everybody_leads_and_nobody_is_elected(elect: Elect, mine: ManualClock, store: Store):
    one, two = elect("one", mine, force_all=True), elect("two", mine, force_all=True)
    for election in (one, two):
        await election.step()
        mine.advance("1h")
        assert election.leading()
        await election.leave()
    assert await store.client.get(store.keys.leader()) is None


async def test_a_change_is_told_once(elect: Elect, mine: ManualClock, store: Store):
    one, two = elect("one", mine), elect("two", mine)
    with capture_logs() as logs:
        await one.step()
        await one.step()
        await two.step()
        await term_ends(store)
        await two.step()
        await one.step()
        await one.step()
    assert [(said["event"], said["leader"]) for said in logs] == [
        ("leads the cleanup", "one"),
        ("leads the cleanup", "two"),
        ("leads the cleanup no more", "two"),
    ]


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = Store(url, prefix=f"t{secrets.token_hex(4)}:")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_with_the_server_away_a_leader_leads_no_longer_than_it_may(monkeypatch, mine: ManualClock):
    monkeypatch.setattr(calls, "PATIENCE_S", 0.0)
    with Server.valkey(aof=True) as server:
        async with opened(server.url) as store:
            one = Elector(LeaderKey(store), lambda: "one", mine, int(TTL_S * 1000))
            await one.step()
            server.kill()
            mine.advance("79s")
            with pytest.raises(StoreUnavailable):
                await one.step()
            assert one.leading()
            mine.advance("1s")
            with pytest.raises(StoreUnavailable):
                await one.step()
            assert not one.leading()
            with pytest.raises(StoreUnavailable):
                await one.leave()
            server.start()
            two = Elector(LeaderKey(store), lambda: "one", mine, int(TTL_S * 1000))
            await two.step()
            assert two.leading()


@pytest.mark.one_server(reason="the proxy stands before one server")
@pytest.mark.parametrize("when", CUTS)
async def test_a_reply_that_is_lost_makes_no_second_leader(valkey: Server, when: str, mine: ManualClock):
    async with Proxy(valkey) as proxy, opened(proxy.url) as store:
        one = Elector(LeaderKey(store), lambda: "one", mine, int(TTL_S * 1000))
        two = Elector(LeaderKey(store), lambda: "two", mine, int(TTL_S * 1000))
        proxy.cut(when, "term_take")
        await one.step()
        proxy.cut(when, "term_take")
        await two.step()
        assert proxy.cuts == 2
        assert (one.leading(), two.leading()) == (True, False)
