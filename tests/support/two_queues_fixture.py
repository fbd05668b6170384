"""Processes of one namespace, with two queues. A conftest imports the fixture."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.support.servers import Server
from tests.support.two_queues import MakeYard, Yard
from tocsin.model.queue import Queue
from tocsin.store.store import Store
from tocsin.testing import ManualClock


@pytest.fixture
async def make_yard(valkey: Server, clock: ManualClock) -> AsyncIterator[MakeYard]:
    """Processes of one namespace."""
    prefix, opened = f"t{secrets.token_hex(4)}:", []

    async def make(kind: type[Store] = Store) -> Yard:
        store = kind(valkey.url, prefix=prefix, clock=clock)
        await store.open()
        opened.append(store)
        queues = [await store.open_queue(Queue(name, partitions=n)) for name, n in (("one", 1), ("four", 4))]
        return Yard(store, {queue.name: queue for queue in queues})

    yield make
    for store in opened:
        await store.close()
