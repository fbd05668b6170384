"""Gates of several workers, on a server behind a proxy."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.proxy import Proxy
from tests.support.servers import Server
from tocsin.store.store import Store
from tocsin.store.transitions.host_outages import HostOutages
from tocsin.targets.host_gates import HostGates
from tocsin.testing import ManualClock

MakeGates = Callable[[], HostGates]


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey) as running:
        yield running


@pytest.fixture
async def store(proxy: Proxy, clock: ManualClock) -> AsyncIterator[Store]:
    opened = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def make_gates(store: Store, clock: ManualClock) -> MakeGates:
    """Of a worker each."""
    return lambda: HostGates(HostOutages(store), clock, permits=100, most_per_host=50)


@pytest.fixture
def gates(make_gates: MakeGates) -> HostGates:
    return make_gates()
