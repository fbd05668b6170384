"""A queue of one partition with everything that can be done to it, on each server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from line import Line

from proxy import Proxy
from servers import Server
from tocsin.store.store import OpenQueue, Store
from tocsin.testing import ManualClock


@pytest.fixture
def line(store: Store, queue: OpenQueue, clock: ManualClock) -> Line:
    return Line(store, queue, clock)


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey) as running:
        yield running
