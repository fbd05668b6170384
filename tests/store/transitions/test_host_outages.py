"""Hosts that fail, as workers tell each other: one probe at a time, and calls that may be repeated."""

from __future__ import annotations

import secrets

import pytest

from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server
from tocsin.store.store import Store
from tocsin.store.transitions import host_outages as module
from tocsin.store.transitions.host_outages import HostOutage, HostOutages, HostProbe
from tocsin.testing import ManualClock

HOST = "https://example.org:443"
COOLDOWN, HALF_OPEN = 30_000, 5_000


@pytest.fixture
def hosts(store: Store) -> HostOutages:
    return HostOutages(store)


async def dump(store: Store) -> list[object]:
    keys = store.keys.fleet()
    return [
        await store.client.zrange(keys["hosts"], 0, -1, withscores=True),
        await store.client.hgetall(keys["outages"]),
    ]


async def test_a_host_that_fails_is_left_alone_for_the_cooldown(hosts: HostOutages, clock: ManualClock):
    assert await hosts.find(HOST) is None
    assert await hosts.trip(HOST, COOLDOWN) == clock.ms + COOLDOWN
    assert await hosts.failing() == {HOST: clock.ms + COOLDOWN}
    assert await hosts.find(HOST) == HostOutage(HOST, clock.ms, clock.ms + COOLDOWN)


async def test_who_finds_the_same_later_does_not_prolong_it(hosts: HostOutages, store: Store, clock: ManualClock):
    until = await hosts.trip(HOST, COOLDOWN)
    before = await dump(store)
    clock.advance("29s")
    assert await hosts.trip(HOST, COOLDOWN) == until
    assert await dump(store) == before


async def test_nobody_probes_before_the_time_is_over(hosts: HostOutages, clock: ManualClock):
    began = clock.ms
    until = await hosts.trip(HOST, COOLDOWN)
    clock.advance("29999ms")
    assert await hosts.probe(HOST, "a", HALF_OPEN) == HostProbe(False, until, began)


async def test_one_probe_is_let_through_when_the_time_is_over(hosts: HostOutages, clock: ManualClock):
    began = clock.ms
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    until = clock.ms + HALF_OPEN
    assert await hosts.probe(HOST, "a", HALF_OPEN) == HostProbe(True, until, began)
    assert await hosts.probe(HOST, "b", HALF_OPEN) == HostProbe(False, until, began)
    assert await hosts.failing() == {HOST: until}


async def test_a_probe_that_nobody_heard_of_again_gives_way_to_another(hosts: HostOutages, clock: ManualClock):
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    await hosts.probe(HOST, "a", HALF_OPEN)
    clock.advance("5s")
    assert (await hosts.probe(HOST, "b", HALF_OPEN)).go
    assert not (await hosts.probe(HOST, "a", HALF_OPEN)).go


async def test_the_same_probe_may_ask_again(hosts: HostOutages, store: Store, clock: ManualClock):
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    first = await hosts.probe(HOST, "a", HALF_OPEN)
    before = await dump(store)
    clock.advance("1s")
    assert await hosts.probe(HOST, "a", HALF_OPEN) == first
    assert await dump(store) == before


async def test_a_probe_that_fails_begins_another_cooldown_of_the_same_outage(hosts: HostOutages, clock: ManualClock):
    began = clock.ms
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    await hosts.probe(HOST, "a", HALF_OPEN)
    clock.advance("1s")
    until = await hosts.trip(HOST, COOLDOWN, "a")
    assert await hosts.find(HOST) == HostOutage(HOST, began, until) == HostOutage(HOST, began, clock.ms + COOLDOWN)
    clock.advance("1s")
    assert await hosts.trip(HOST, COOLDOWN, "a") == until


async def test_a_probe_that_failed_late_does_not_speak_for_the_one_after_it(hosts: HostOutages, clock: ManualClock):
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    await hosts.probe(HOST, "a", HALF_OPEN)
    clock.advance("5s")
    until = (await hosts.probe(HOST, "b", HALF_OPEN)).until
    assert await hosts.trip(HOST, COOLDOWN, "a") == until


async def test_a_probe_that_succeeds_ends_the_outage(hosts: HostOutages, store: Store, clock: ManualClock):
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    since = (await hosts.probe(HOST, "a", HALF_OPEN)).since
    assert await hosts.close(HOST, since)
    assert await dump(store) == [[], {}]
    assert not await hosts.close(HOST, since)
    assert await hosts.probe(HOST, "b", HALF_OPEN) == HostProbe(True)


async def test_a_probe_that_succeeds_late_ends_it_too(hosts: HostOutages, clock: ManualClock):
    """A host that takes longer than a probe may take would never be open to all again."""
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("30s")
    since = (await hosts.probe(HOST, "a", HALF_OPEN)).since
    clock.advance("5s")
    await hosts.probe(HOST, "b", HALF_OPEN)
    assert await hosts.close(HOST, since)


async def test_a_probe_of_an_earlier_outage_does_not_end_a_later_one(hosts: HostOutages, clock: ManualClock):
    earlier = clock.ms
    await hosts.trip(HOST, COOLDOWN)
    await hosts.close(HOST, earlier)
    clock.advance("1ms")
    await hosts.trip(HOST, COOLDOWN)
    assert not await hosts.close(HOST, earlier)
    assert HOST in await hosts.failing()


async def test_a_time_that_nobody_can_have_meant_closes_no_host(hosts: HostOutages, store: Store, clock: ManualClock):
    keys = store.keys.fleet()
    await store.client.zadd(keys["hosts"], {HOST: "inf", b"\xff\xfe": "1e300", "odd": "-inf"})
    await store.client.hset(keys["outages"], mapping={HOST: "1|a", b"\xff\xfe": b"\xff", "odd": b"9" * 5000 + b"|b"})
    assert await hosts.failing() == {"odd": 0}
    assert await hosts.probe(HOST, "a", HALF_OPEN) == HostProbe(True)
    assert (await hosts.probe("odd", "a", HALF_OPEN)).go
    assert await hosts.find("odd") is not None
    assert await hosts.trip(HOST, COOLDOWN) == clock.ms + COOLDOWN
    assert (await hosts.failing())[HOST] == clock.ms + COOLDOWN


async def test_hosts_that_nobody_has_anything_for_are_forgotten(hosts: HostOutages, store: Store, clock: ManualClock):
    for n in range(120):
        await hosts.trip(f"http://{n}:80", COOLDOWN)
    clock.advance("10m")
    await hosts.trip("http://a:80", COOLDOWN)
    assert len(await hosts.failing()) == 121
    clock.advance("30s")
    for name in ("b", "c"):
        await hosts.trip(f"http://{name}:80", COOLDOWN)
    assert sorted(await hosts.failing()) == ["http://a:80", "http://b:80", "http://c:80"]
    assert await store.client.hlen(store.keys.fleet()["outages"]) == 3


async def test_a_host_that_fails_again_after_long_has_another_outage(hosts: HostOutages, clock: ManualClock):
    await hosts.trip(HOST, COOLDOWN)
    clock.advance("11m")
    until = await hosts.trip(HOST, COOLDOWN)
    assert await hosts.find(HOST) == HostOutage(HOST, clock.ms, until)


async def test_no_more_are_known_than_each_worker_can_read(
    hosts: HostOutages, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MOST_HOSTS", 3)
    for name in "abcda":
        await hosts.trip(f"http://{name}:80", COOLDOWN)
        clock.advance("1ms")
    assert sorted(await hosts.failing()) == ["http://a:80", "http://c:80", "http://d:80"]
    assert await store.client.hlen(store.keys.fleet()["outages"]) == 3


async def test_an_outage_is_told_and_ended_on_a_full_server():
    with Server.valkey() as server:
        store = Store(server.url)
        await store.open()
        hosts = HostOutages(store)
        try:
            await store.client.config_set("maxmemory", 1)
            await hosts.trip(HOST, COOLDOWN)
            outage = await hosts.find(HOST)
            assert outage is not None
            assert await hosts.close(HOST, outage.since)
        finally:
            await store.client.config_set("maxmemory", 0)
            await store.close()


@pytest.mark.parametrize("when", CUTS)
async def test_calls_whose_reply_is_lost_are_repeated(proxy: Proxy, clock: ManualClock, when: str):
    store = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    hosts = HostOutages(store)
    try:
        proxy.cut(when, "host_trip")
        until = await hosts.trip(HOST, COOLDOWN)
        clock.advance("30s")
        proxy.cut(when, "host_probe")
        probe = await hosts.probe(HOST, "a", HALF_OPEN)
        assert probe == HostProbe(True, clock.ms + HALF_OPEN, until - COOLDOWN)
        proxy.cut(when, "host_trip")
        assert await hosts.trip(HOST, COOLDOWN, "a") == clock.ms + COOLDOWN
        proxy.cut(when, "host_close")
        await hosts.close(HOST, probe.since)
        assert proxy.cuts == 4
        assert await hosts.failing() == {}
    finally:
        await store.close()
