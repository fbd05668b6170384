"""A run that is stopped takes its connection with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from tests.support.one_delivery import Sender
from tests.support.raw_server import RawServer, saying, without_end
from tests.support.waiting import eventually
from tocsin import Http, RunCancelled, Stage, Tocsin
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock
from tocsin.worker import Worker

OK = b"HTTP/1.1 200 OK\r\n"
MOMENTS = {
    "before the answer": saying(),
    "within its body": without_end(OK + b"Content-Length: 100000\r\n\r\n", b"a", 0.01),
}


async def until(condition: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await condition.wait()


@pytest.fixture
async def worker(tocsin_app: Tocsin) -> AsyncIterator[Worker]:
    """Joined, and at rest: each pass is the test's."""
    made = await tocsin_app.worker()
    await asyncio.to_thread(made.heart.beat)
    yield made
    await made.stop(grace=0)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_cancelled_delivery_closes_its_connection(moment: str) -> None:
    async with Sender("127.0.0.1") as sender, RawServer(MOMENTS[moment]) as server:
        sending = asyncio.create_task(sender.send(Http.get(server.url)))
        await eventually(lambda: server.requests, "it is asked")
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await until(server.closed)


async def test_at_the_jobs_timeout(tocsin_app: Tocsin, tocsin_clock: ManualClock, worker: Worker) -> None:
    async with RawServer(saying()) as server:
        await tocsin_app.enqueue(Http.post(server.url, json=1, timeout=300), id="a", timeout="1m")
        await worker.fetcher.step()
        await eventually(lambda: server.requests, "it is asked")
        tocsin_clock.advance("61s")
        await worker.sweep.step()
        await until(server.closed)
        await asyncio.to_thread(worker.heart.beat)
        await worker.finisher.step()
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure is not None
    assert "timed out" in dead.failure.error


async def test_at_a_shutdown_and_the_run_is_handed_over(tocsin_server: EmbeddedServer) -> None:
    async with Tocsin(tocsin_server.url, prefix=f"test-{secrets.token_hex(4)}:") as app, RawServer(saying()) as server:
        worker = await app.worker()
        await worker.start()
        await app.enqueue(Http.post(server.url, json=1), id="a")
        await eventually(lambda: server.requests, "it is asked")
        assert await worker.stop(grace=0) == 1
        await until(server.closed)
        job = await app.get("a")
    assert job is not None
    assert (job.stage, job.attempt) == (Stage.WAITING, 1)


async def test_when_somebody_cancels_the_run(tocsin_server: EmbeddedServer) -> None:
    async with Tocsin(tocsin_server.url, prefix=f"test-{secrets.token_hex(4)}:") as app, RawServer(saying()) as server:
        working = asyncio.create_task(app.work())
        handle = await app.enqueue(Http.post(server.url, json=1), id="a")
        await eventually(lambda: server.requests, "it is asked")
        assert await handle.cancel()
        await until(server.closed)
        with pytest.raises(RunCancelled):
            await handle.result(timeout=10)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
