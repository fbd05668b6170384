"""Deliveries that end as they are told."""

from __future__ import annotations

import pytest

from tocsin.engine.handlers import TryLater
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.host_gates import HostGates
from tocsin.testing import ManualClock

HOST, OTHER = "http://a:80", "http://b:80"
AWAY = DeliveryFailed("nobody there", sent=False)
SILENT = DeliveryFailed("no answer")


async def send(gates: HostGates, outcome: bool | BaseException = True, host: str = HOST) -> None:
    async with gates.delivery_to(host) as delivery:
        if isinstance(outcome, BaseException):
            raise outcome
        delivery.ok = outcome


async def fail(gates: HostGates, times: int = 5, error: BaseException = SILENT) -> None:
    for _ in range(times):
        with pytest.raises(type(error)):
            await send(gates, error)


async def sent_away(gates: HostGates) -> float:
    with pytest.raises(TryLater) as sent:
        await send(gates)
    return sent.value.delay


async def an_outage(gates: HostGates, clock: ManualClock) -> None:
    """Known to the fleet, and so old that it is time for a probe."""
    await fail(gates)
    await gates.step()
    clock.advance("30s")
