"""The pytest plugin: a real embedded server for the whole run, and a namespace of its own for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

try:
    # pytest-asyncio's strict mode, its default, ignores async fixtures that are made with pytest.fixture.
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture  # type: ignore[assignment]

if TYPE_CHECKING:
    from tocsin.app import Tocsin
    from tocsin.store.embedded.server import EmbeddedServer
    from tocsin.testing.clock import ManualClock


@pytest.fixture(scope="session")
def tocsin_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that ends with the tests."""
    from tocsin.store.embedded.server import EmbeddedServer

    server = EmbeddedServer(tmp_path_factory.mktemp("tocsin"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def tocsin_clock() -> ManualClock:
    from tocsin.testing.clock import ManualClock

    return ManualClock()


@async_fixture
async def tocsin_app(tocsin_server: EmbeddedServer, tocsin_clock: ManualClock) -> AsyncIterator[Tocsin]:
    """An open app with an empty namespace, on the time of `tocsin_clock`."""
    from tocsin.app import Tocsin

    async with Tocsin(tocsin_server.url, prefix=f"test-{secrets.token_hex(4)}:", clock=tocsin_clock) as app:
        yield app
