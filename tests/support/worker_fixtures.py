"""Workers whose passes a test calls itself, and apps for them. A conftest imports what its folder needs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from tocsin import Tocsin
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock
from tocsin.worker import Worker, WorkerSettings

MakeWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def make_worker(tocsin_app: Tocsin) -> AsyncIterator[MakeWorker]:
    """A worker that may claim but does nothing by itself; with start=True its loops run."""
    made: list[Worker] = []

    async def make(
        app: Tocsin | None = None, *, start: bool = False, queues: Iterable[str] | None = None, **settings: Any
    ) -> Worker:
        worker = await (app or tocsin_app).worker(queues=queues, settings=WorkerSettings(**settings))
        made.append(worker)
        if start:
            await worker.start()
        else:
            await asyncio.to_thread(worker.heart.beat)
        return worker

    yield make
    for worker in made:
        await worker.kill()


@pytest.fixture
async def other_app(
    tocsin_app: Tocsin, tocsin_server: EmbeddedServer, tocsin_clock: ManualClock
) -> AsyncIterator[Tocsin]:
    """Another program in the namespace of `tocsin_app`, with handlers of its own."""
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as app:
        yield app


@pytest.fixture
async def live_app(tocsin_server: EmbeddedServer) -> AsyncIterator[Tocsin]:
    """An app on the server's own time."""
    async with Tocsin(tocsin_server.url, prefix=f"live-{secrets.token_hex(4)}:") as app:
        yield app
