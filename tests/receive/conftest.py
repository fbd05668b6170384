"""A memory of keys in each place it may be: every Redis, SQLite, PostgreSQL."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.once_work import OnceMaker
from tests.support.postgres import Postgres, binaries
from tests.support.servers import Server, flavours
from tocsin.receive import Once

MEMORIES = [*flavours(), "sqlite", "postgres"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_of() -> Iterator[Callable[[str], Server]]:
    """One server of each flavour, when it is asked for."""
    running: dict[str, Server] = {}
    with contextlib.ExitStack() as stack:

        def find(flavour: str) -> Server:
            if flavour not in running:
                running[flavour] = stack.enter_context(getattr(Server, flavour)())
            return running[flavour]

        yield find


@pytest.fixture(params=MEMORIES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a memory."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'keys.db'}"
    server = request.getfixturevalue("postgres" if request.param == "postgres" else "redis_of")
    return str(server.url if request.param == "postgres" else server(request.param).url)


@pytest.fixture
def name() -> str:
    """Keys of its own for each test."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
async def make_once(where: str, name: str) -> AsyncIterator[OnceMaker]:
    async with contextlib.AsyncExitStack() as stack:

        def make(**options: Any) -> Once:
            once = Once(where, name=name, **options)
            stack.push_async_callback(once.close)
            return once

        yield make


@pytest.fixture
def once(make_once: OnceMaker) -> Once:
    return make_once()
