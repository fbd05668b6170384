"""Breakers of hosts: opened by failures, known to the fleet, and closed by one probe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.gated_deliveries import AWAY, HOST, OTHER, SILENT, an_outage, fail, send, sent_away
from tocsin.engine.handlers import TryLater
from tocsin.model.delivery import DeliveryFailed
from tocsin.store.store import Store
from tocsin.store.transitions.host_outages import HostOutages
from tocsin.targets import host_gates as module
from tocsin.targets.host_gates import HostGates
from tocsin.testing import ManualClock

pytestmark = pytest.mark.one_server(reason="the proxy stands before one server")
MakeGates = Callable[[], HostGates]


async def test_a_host_is_left_alone_after_five_failures(gates: HostGates):
    await fail(gates, 4)
    await send(gates, False)
    assert 30 <= await sent_away(gates) <= 31
    await send(gates, host=OTHER)
    assert (gates.trips, gates.blocked, gates.recoveries) == (1, 1, 0)


async def test_an_answer_that_something_failed_is_a_failure(gates: HostGates):
    for _ in range(5):
        await send(gates, False)
    await sent_away(gates)


async def test_a_success_makes_up_for_a_failure(gates: HostGates):
    """A busy host on which a few requests fail, always, is not a host that fails."""
    for _ in range(20):
        await send(gates, False)
        await send(gates)
    await fail(gates, 4)
    await send(gates)


@pytest.mark.parametrize(
    "error", [DeliveryFailed("not allowed", final=True), ValueError("ours"), asyncio.CancelledError()]
)
async def test_what_is_not_the_hosts_fault_does_not_count(gates: HostGates, error: BaseException):
    await fail(gates, 9, error)
    await send(gates)


async def test_a_run_that_is_stopped_at_its_deadline_was_kept_waiting_by_the_host(gates: HostGates, clock: ManualClock):
    for _ in range(5):
        delivery = await gates.delivery_to(HOST, deadline=clock.monotonic() + 1).__aenter__()
        clock.advance("1s")
        await delivery.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    await sent_away(gates)


async def test_answers_of_before_the_outage_say_nothing_about_it(gates: HostGates, clock: ManualClock):
    async with gates.delivery_to(HOST):
        await fail(gates)
    await sent_away(gates)


async def test_who_is_let_in_as_the_breaker_opens_is_sent_away(gates: HostGates):
    inside = [gates.delivery_to(HOST) for _ in range(50)]
    for delivery in inside:
        await delivery.__aenter__()
    waiting = [asyncio.create_task(send(gates)) for _ in range(5)]
    await asyncio.sleep(0)
    for delivery in inside:
        await delivery.__aexit__(type(SILENT), SILENT, None)
    assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [TryLater] * 5
    assert gates.permits.held == 0


async def test_the_log_tells_once_that_a_host_fails_and_once_that_it_answers_again(
    gates: HostGates, clock: ManualClock
):
    with capture_logs() as told:
        await an_outage(gates, clock)
        with pytest.raises(TryLater):
            await send(gates, AWAY)
        await gates.step()
        await sent_away(gates)
        clock.advance("30s")
        await send(gates)
        await gates.step()
    assert [(entry["event"].partition(":")[0], entry["host"]) for entry in told] == [
        ("host fails", HOST),
        ("host answers again", HOST),
    ]


async def test_gates_at_rest_are_forgotten(gates: HostGates, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_IDLE_GATES", 3)
    with pytest.raises(DeliveryFailed):
        await send(gates, SILENT)
    for n in range(5):
        await send(gates, host=f"http://{n}:80")
    await gates.step()
    assert list(gates._gates) == [HOST]


async def test_probes_find_no_room_where_nobody_else_does(store: Store, clock: ManualClock):
    """Hosts that fail would otherwise hold, one probe each, what is left for others."""
    gates = HostGates(HostOutages(store), clock, permits=4, most_per_host=50, shared=True)
    await an_outage(gates, clock)
    inside = [gates.delivery_to(f"http://{n}:80") for n in range(3)]
    for delivery in inside:
        await delivery.__aenter__()
    assert await sent_away(gates) < 30
    assert gates.permits.held == 3
    await inside[0].__aexit__(None, None, None)
    await send(gates)
    assert gates.permits.held == 2


async def test_a_probe_that_is_not_made_holds_no_room(make_gates: MakeGates, clock: ManualClock):
    """The fleet lets one worker send it, and the other is told to wait."""
    one, two = make_gates(), make_gates()
    await an_outage(one, clock)
    await two.step()
    probe = one.delivery_to(HOST)
    await probe.__aenter__()
    await sent_away(two)
    assert (one.permits.held, two.permits.held) == (1, 0)
    await probe.__aexit__(None, None, None)
    assert one.permits.held == 0
