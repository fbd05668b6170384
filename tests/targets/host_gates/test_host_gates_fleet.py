"""Breakers of hosts in a fleet: known to all workers, closed by one probe, and without the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from tests.support.gated_deliveries import AWAY, HOST, OTHER, SILENT, an_outage, fail, send, sent_away
from tests.support.proxy import Proxy
from tocsin.engine.handlers import TryLater
from tocsin.store.store import Store
from tocsin.store.transitions.host_outages import HostOutages
from tocsin.targets import host_gate
from tocsin.targets import host_gates as module
from tocsin.targets.host_gates import HostGates
from tocsin.testing import ManualClock

pytestmark = pytest.mark.one_server(reason="the proxy stands before one server")
MakeGates = Callable[[], HostGates]


async def test_others_learn_of_an_outage_within_a_second(gates: HostGates, make_gates: MakeGates, clock: ManualClock):
    other = make_gates()
    await send(other)
    await fail(gates)
    await gates.step()
    clock.advance("1s")
    assert await other.step() <= 1
    assert 29 <= await sent_away(other) <= 30
    assert other.trips == 0


async def test_a_worker_that_was_idle_knows_of_it_before_it_sends_anything(gates: HostGates, make_gates: MakeGates):
    await fail(gates)
    await gates.step()
    idle = make_gates()
    sent = await asyncio.gather(*(send(idle) for _ in range(9)), return_exceptions=True)
    assert [type(each) for each in sent] == [TryLater] * 9


async def test_one_probe_of_the_whole_fleet_is_sent(gates: HostGates, make_gates: MakeGates, clock: ManualClock):
    workers = [gates, *(make_gates() for _ in range(3))]
    await an_outage(gates, clock)
    async with gates.delivery_to(HOST):
        waits = [await sent_away(worker) for worker in workers for _ in range(3)]
    assert all(5 <= wait <= 6 for wait in waits)


async def test_a_probe_that_succeeds_lets_all_send_again(gates: HostGates, make_gates: MakeGates, clock: ManualClock):
    other = make_gates()
    await an_outage(gates, clock)
    async with other.delivery_to(HOST):
        await sent_away(gates)
    await other.step()
    await gates.step()
    await send(gates)
    await send(other)
    assert (gates.recoveries, other.recoveries) == (0, 1)


async def test_those_in_line_are_sent_away_when_others_find_the_host_failing(
    gates: HostGates, make_gates: MakeGates, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host_gate, "LONGEST_WAIT_S", 3600)
    other = make_gates()
    async with contextlib.AsyncExitStack() as inside:
        for _ in range(50):
            await inside.enter_async_context(gates.delivery_to(HOST))
        waiting = asyncio.create_task(send(gates))
        await asyncio.sleep(0)
        await fail(other)
        await other.step()
        await gates.step()
        with pytest.raises(TryLater):
            await asyncio.wait_for(waiting, 10)


async def test_a_probe_that_fails_begins_another_cooldown(gates: HostGates, make_gates: MakeGates, clock: ManualClock):
    other = make_gates()
    await an_outage(gates, clock)
    await fail(other, 1)
    await other.step()
    await gates.step()
    for worker in (gates, other):
        assert 29 <= await sent_away(worker) <= 31


async def test_a_probe_that_reached_nobody_is_no_attempt(gates: HostGates, clock: ManualClock):
    await fail(gates, 5, AWAY)
    await gates.step()
    for _ in range(3):
        clock.advance("31s")
        with pytest.raises(TryLater):
            await send(gates, AWAY)
        await gates.step()
    assert gates.trips == 4


async def test_a_probe_that_may_have_reached_somebody_is_an_attempt(gates: HostGates, clock: ManualClock):
    """Otherwise a request that its receiver never stands would be sent for ever, and keep all others out."""
    await an_outage(gates, clock)
    await fail(gates, 1, SILENT)


async def test_a_prober_that_is_killed_is_followed_by_another(
    gates: HostGates, make_gates: MakeGates, clock: ManualClock
):
    await an_outage(gates, clock)
    killed = make_gates()
    await killed.delivery_to(HOST).__aenter__()
    await sent_away(gates)
    clock.advance("5s")
    await send(gates)
    await gates.step()
    await send(make_gates())


async def test_a_probe_that_is_stopped_says_nothing(gates: HostGates, clock: ManualClock):
    await an_outage(gates, clock)
    await fail(gates, 1, asyncio.CancelledError())
    assert 5 <= await sent_away(gates) <= 6
    clock.advance("5s")
    await send(gates)


async def test_a_host_that_takes_its_time_to_answer_a_probe_is_heard(
    gates: HostGates, make_gates: MakeGates, store: Store, clock: ManualClock
):
    other = make_gates()
    await an_outage(gates, clock)
    async with gates.delivery_to(HOST):
        clock.advance("8s")
        async with other.delivery_to(HOST):
            pass
    await gates.step()
    await other.step()
    await send(gates)
    await send(other)
    assert await HostOutages(store).failing() == {}


async def test_a_worker_sends_one_probe_at_a_time(gates: HostGates, clock: ManualClock):
    """However long the host is silent: probes are not to pile up."""
    await an_outage(gates, clock)
    async with gates.delivery_to(HOST):
        clock.advance("1m")
        await sent_away(gates)


async def test_what_fails_is_known_also_of_hosts_that_were_not_met_yet(gates: HostGates, make_gates: MakeGates):
    await fail(gates)
    await gates.step()
    other = make_gates()
    await send(other, host=OTHER)
    with pytest.raises(TryLater):
        other.delivery_to(HOST)


async def test_what_a_worker_has_not_told_yet_is_newer_than_what_it_reads(gates: HostGates, clock: ManualClock):
    await fail(gates)
    clock.advance("2s")
    await send(gates, host=OTHER)
    await sent_away(gates)
    await gates.step()
    clock.advance("30s")
    await send(gates)
    clock.advance("2s")
    await send(gates, host=OTHER)
    await send(gates)


async def test_who_delivers_all_the_time_does_not_ask_for_each_delivery(
    gates: HostGates, store: Store, clock: ManualClock
):
    await send(gates)
    before = await looks(store)
    for n in range(1, 5):
        clock.advance("1s")
        await gates.step()
        await send(gates)
        assert await looks(store) == before + n


async def looks(store: Store) -> int:
    """How often what fails was read, by anybody."""
    return int((await store.client.info("commandstats"))["cmdstat_zrange"]["calls"])


async def test_a_worker_that_delivers_nothing_sends_no_commands(gates: HostGates, store: Store, clock: ManualClock):
    await send(gates)
    clock.advance("10s")
    assert await gates.step() > 60
    before = await looks(store)
    clock.advance("10s")
    await gates.step()
    assert await looks(store) == before
    gates.wake.clear()
    await send(gates)
    assert gates.wake.is_set()


# Without the server


async def test_without_the_server_a_worker_goes_by_its_own_breaker(
    gates: HostGates, proxy: Proxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FLEET_TIMEOUT_S", 0.05)
    await send(gates)
    proxy.cut_off()
    await fail(gates)
    assert 30 <= await sent_away(gates) <= 31
    clock.advance("30s")
    await fail(gates, 1)
    assert 30 <= await sent_away(gates) <= 31
    clock.advance("30s")
    await send(gates)
    await send(gates)
    assert (gates.trips, gates.recoveries) == (2, 1)


async def test_a_server_that_goes_away_in_an_outage_does_not_prolong_it(
    gates: HostGates, proxy: Proxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FLEET_TIMEOUT_S", 0.05)
    await an_outage(gates, clock)
    proxy.cut_off()
    await fail(gates, 1)
    await sent_away(gates)
    clock.advance("30s")
    await send(gates)
    await send(gates)


async def test_what_the_fleet_was_not_told_is_not_asked_of_it(gates: HostGates, proxy: Proxy, clock: ManualClock):
    await send(gates)
    proxy.cut_off()
    await fail(gates)
    proxy.mend()
    clock.advance("30s")
    await fail(gates, 1)
    await sent_away(gates)


async def test_what_the_fleet_could_not_be_told_it_is_told_later(
    gates: HostGates, make_gates: MakeGates, proxy: Proxy, clock: ManualClock
):
    await send(gates)
    proxy.cut_off()
    await fail(gates)
    proxy.mend()
    clock.advance("1s")
    await gates.step()
    await sent_away(make_gates())


@pytest.mark.parametrize("when", ["before", "after"])
async def test_replies_that_are_lost_change_nothing(
    gates: HostGates, make_gates: MakeGates, proxy: Proxy, clock: ManualClock, when: str
):
    await fail(gates)
    proxy.cut(when, "host_trip")
    await gates.step()
    clock.advance("30s")
    proxy.cut(when, "host_probe")
    await send(gates)
    proxy.cut(when, "host_close")
    await gates.step()
    assert proxy.cuts == 3
    await send(make_gates())
