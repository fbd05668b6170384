"""A handler whose runs stay inside until they are let go, and workers that live but claim only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from tests.support.waiting import Gate
from tocsin import Tocsin
from tocsin.engine.handlers import Handler
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock
from tocsin.worker import Worker, WorkerSettings

MakeWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def make_worker(tocsin_app: Tocsin) -> AsyncIterator[MakeWorker]:
    """Its heart beats, unless it is to be a dead one; nothing else of it does anything by itself."""
    made: list[Worker] = []

    async def make(
        app: Tocsin | None = None, *, queues: Iterable[str] | None = None, beats: bool = True, **settings: Any
    ) -> Worker:
        worker = await (app or tocsin_app).worker(queues=queues, settings=WorkerSettings(beat_s=0.01, **settings))
        made.append(worker)
        await asyncio.to_thread(worker.heart.beat)
        if beats:
            worker.heart.start()
        return worker

    yield make
    for worker in made:
        await worker.kill()


@pytest.fixture
async def stranger(
    tocsin_app: Tocsin, tocsin_server: EmbeddedServer, tocsin_clock: ManualClock
) -> AsyncIterator[Tocsin]:
    """Another program in the same namespace, which knows none of the handlers of `tocsin_app`."""
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as app:
        yield app


@pytest.fixture
async def gate() -> Gate:
    return Gate()


@pytest.fixture
def mail(tocsin_app: Tocsin, gate: Gate) -> Handler:
    """A job of queue `mail`, in one partition; its runs stay inside until the gate opens."""
    tocsin_app.queue("mail", partitions=1)

    @tocsin_app.job(name="mail", queue="mail", timeout="30s")
    async def mail(fail: str = "") -> None:
        if fail:
            raise ValueError(fail)
        await gate.enter()

    return mail
