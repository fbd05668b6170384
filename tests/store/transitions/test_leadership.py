"""The term: one holder at a time, for as long as it renews; a lost reply changes nothing."""

from __future__ import annotations

import secrets

import pytest

from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server
from tocsin.model.errors import StoreError
from tocsin.store.keys import Keys
from tocsin.store.store import Store
from tocsin.store.transitions.leadership import LeaderKey, Term

TTL = 120_000


@pytest.fixture
def terms(store: Store) -> LeaderKey:
    return LeaderKey(store)


@pytest.fixture
def key(store: Store) -> str:
    return store.keys.leader()


@pytest.mark.parametrize(
    ("prefix", "hash_tag", "name"),
    [
        ("", "", "cleanup-leader"),
        ("myapp:", "", "myapp:cleanup-leader"),
        ("", "ps", "cleanup-leader{ps}"),
        ("myapp:", "ps", "myapp:cleanup-leader{ps}"),
    ],
)
def test_the_key_has_the_name_that_operators_ask_for(prefix, hash_tag, name):
    assert Keys(prefix, hash_tag).leader() == name


async def test_a_free_term_is_taken_for_its_length(terms: LeaderKey, store: Store, key: str):
    assert await terms.take("w1", TTL) == Term("w1", TTL)
    assert await store.client.get(key) == b"w1"
    assert TTL - 5000 < await store.client.pttl(key) <= TTL


async def test_another_is_told_who_holds_it_and_for_how_long(terms: LeaderKey, store: Store, key: str):
    await terms.take("w1", TTL)
    await store.client.pexpire(key, 50_000)
    term = await terms.take("w2", TTL)
    assert term.holder == "w1"
    assert 45_000 < term.left <= 50_000
    assert await store.client.get(key) == b"w1"
    assert await store.client.pttl(key) <= 50_000


async def test_the_holder_renews_it(terms: LeaderKey, store: Store, key: str):
    await terms.take("w1", TTL)
    await store.client.pexpire(key, 1000)
    assert await terms.take("w1", TTL) == Term("w1", TTL)
    assert await store.client.pttl(key) > TTL - 5000


async def test_a_term_that_is_over_goes_to_whoever_asks_first(terms: LeaderKey, store: Store, key: str):
    await terms.take("w1", TTL)
    await store.client.delete(key)
    assert (await terms.take("w2", TTL)).holder == "w2"
    assert (await terms.take("w1", TTL)).holder == "w2"


async def test_a_name_without_an_end_gets_one(terms: LeaderKey, store: Store, key: str):
    await store.client.set(key, "by hand")
    assert await terms.take("w1", TTL) == Term("by hand", TTL)
    assert 0 < await store.client.pttl(key) <= TTL


@pytest.mark.parametrize(("leaver", "left"), [("w1", None), ("w2", b"w1"), ("w", b"w1"), ("", b"w1")])
async def test_only_its_holder_gives_it_up(terms: LeaderKey, store: Store, key: str, leaver: str, left: bytes | None):
    await terms.take("w1", TTL)
    await terms.leave(leaver)
    assert await store.client.get(key) == left


async def test_giving_up_what_nobody_holds_does_no_harm(terms: LeaderKey, store: Store, key: str):
    await terms.leave("w1")
    assert await store.client.get(key) is None


async def test_a_key_of_another_kind_is_an_error_of_ours(terms: LeaderKey, store: Store, key: str):
    await store.client.rpush(key, "x")
    with pytest.raises(StoreError):
        await terms.take("w1", TTL)


@pytest.mark.parametrize("when", CUTS)
async def test_calls_whose_reply_is_lost_are_repeated(valkey: Server, proxy: Proxy, when: str):
    store = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:")
    await store.open()
    try:
        terms = LeaderKey(store)
        proxy.cut(when, "term_take")
        assert await terms.take("w1", TTL) == Term("w1", TTL)
        proxy.cut(when, "term_take")
        assert (await terms.take("w2", TTL)).holder == "w1"
        proxy.cut(when, "term_leave")
        await terms.leave("w1")
        assert proxy.cuts == 3
        assert await store.client.get(store.keys.leader()) is None
    finally:
        await store.close()


async def test_a_leader_renews_on_a_full_server():
    with Server.valkey() as server:
        store = Store(server.url)
        await store.open()
        try:
            terms = LeaderKey(store)
            await terms.take("w1", TTL)
            await store.client.config_set("maxmemory", 1)
            assert await terms.take("w1", TTL) == Term("w1", TTL)
            await terms.leave("w1")
            assert await store.client.get("cleanup-leader") is None
        finally:
            await store.client.config_set("maxmemory", 0)
            await store.close()
