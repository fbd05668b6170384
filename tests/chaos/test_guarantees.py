"""What a server's own settings lose or repeat, as docs/operate/guarantees.md promises it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.servers import Server, ask, follow
from tests.support.waiting import until
from tocsin import Tocsin
from tocsin.model.errors import StoreUnavailable
from tocsin.worker import WorkerSettings


@pytest.fixture
def logged() -> Iterator[Server]:
    """A server that writes each change into its log before it answers."""
    with Server.valkey(aof=True) as server:
        yield server


@asynccontextmanager
async def shop(url: str, ran: list[str]) -> AsyncIterator[Tocsin]:
    async with Tocsin(url) as app:

        @app.job(name="work")
        async def work(what: str) -> None:
            ran.append(what)

        yield app


async def put(app: Tocsin, what: str, delay: str = "0s") -> None:
    await app.enqueue(app.declarations.catalog.by_name["work"], what, id=what, delay=delay)


def log_file(server: Server) -> Path:
    [file] = (server.folder / "appendonlydir").glob("*.incr.aof")
    return file


def lose_power(server: Server, size: int) -> None:
    """As if the last part of the log had never reached the disk."""
    server.kill()
    os.truncate(log_file(server), size)
    server.start()


async def test_a_killed_server_loses_nothing_that_it_confirmed(logged: Server) -> None:
    ran: list[str] = []
    async with shop(logged.url, ran) as app:
        for n in range(20):
            await put(app, f"job {n}")
        logged.restart()
        await app.work(until="idle")
        assert sorted(ran) == sorted(f"job {n}" for n in range(20))
        logged.restart()
        await app.work(until="idle")
        assert len(ran) == 20


async def test_power_that_fails_with_everysec_loses_the_last_puts_and_repeats_the_last_runs(logged: Server) -> None:
    ran: list[str] = []
    async with shop(logged.url, ran) as app:
        await put(app, "older")
        size = log_file(logged).stat().st_size
        await put(app, "newer")
        await app.work(until="idle")
        assert sorted(ran) == ["newer", "older"]
        lose_power(logged, size)
        ran.clear()
        await app.work(until="idle")
        assert ran == ["older"]
        assert await app.get("newer") is None


async def test_a_failover_to_a_replica_that_lags_loses_and_repeats_the_same() -> None:
    with Server.valkey(tcp=True, repl_diskless_sync_delay=0) as primary, Server.valkey(tcp=True) as replica:
        follow(replica, primary)
        ran: list[str] = []
        async with shop(primary.url, ran) as app:
            await put(app, "older")
            with primary.client() as client:
                assert client.wait(1, 5000) == 1
            # From here on nothing reaches the replica, and then it takes over.
            with replica.client() as client:
                ask(client, "REPLICAOF", "NO", "ONE")
            await put(app, "newer")
            await app.work(until="idle")
        primary.kill()
        ran.clear()
        async with shop(replica.url, ran) as app:
            await app.work(until="idle")
            assert ran == ["older"]


async def test_with_min_replicas_to_write_a_primary_without_its_replica_confirms_nothing() -> None:
    with Server.valkey(tcp=True, repl_diskless_sync_delay=0) as primary, Server.valkey(tcp=True) as replica:
        follow(replica, primary)
        ran: list[str] = []
        async with shop(primary.url, ran) as app:
            await put(app, "before", delay="1h")
            with primary.client() as client:
                ask(client, "CONFIG SET", "min-replicas-to-write", 1)
                replica.kill()
                until(lambda: client.info("replication")["connected_slaves"] == 0, "the primary misses its replica")
            with pytest.raises(StoreUnavailable, match="replicas"):
                await put(app, "during")
            with primary.client() as client:
                ask(client, "CONFIG SET", "min-replicas-to-write", 0)
            assert await app.get("during") is None
            await put(app, "after", delay="1h")
            assert {job.id async for job in app.jobs()} == {"before", "after"}


async def test_a_run_whose_worker_was_frozen_repeats_and_both_may_overlap(logged: Server) -> None:
    """The worker that wakes is refused: only one outcome counts."""
    ran: list[str] = []
    inside, quick = asyncio.Event(), WorkerSettings(beat_s=0.5, ttl_s=2.0)
    async with Tocsin(logged.url) as app:

        @app.job(name="work")
        async def work(what: str) -> None:
            ran.append(what)
            inside.set()
            await asyncio.sleep(0 if len(ran) > 1 else 3600)

        await app.enqueue(work, "once", id="once", keep="1h")
        frozen = await app.worker(settings=quick)
        await frozen.start()
        await inside.wait()
        # As SIGSTOP does to a process, for its heart alone.
        frozen.heart._stop.set()
        other = await app.worker(settings=quick)
        await other.start()
        handle = app.handle("once")
        assert await handle.result(timeout=30) is None
        assert ran == ["once", "once"]
        assert frozen.running == 1, "the first attempt is still at it"
        for worker in (frozen, other):
            await worker.kill()
