"""A server that lost what it had confirmed, or may have: the log says so, once, and what may follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server, Watched, sentinel
from tests.support.waiting import eventually
from tocsin import Tocsin
from tocsin.worker import Worker


@pytest.fixture
def watched() -> Iterator[Watched]:
    with sentinel() as watched:
        yield watched


@pytest.fixture
async def worker(watched: Watched, make_worker) -> AsyncIterator[Worker]:
    async with Tocsin(watched.url) as app:
        worker = await make_worker(app)
        await beat(worker)
        yield worker
        await worker.kill()


async def beat(worker: Worker) -> bool:
    seen = await asyncio.to_thread(worker.heart.beat)
    return seen is not None and seen.accepted


def in_step(watched: Watched) -> bool:
    with watched.primary.client() as primary, watched.replica.client() as replica:
        offset = replica.info("replication")["slave_repl_offset"]
        return bool(primary.info("replication")["master_repl_offset"] == offset)


def told(logs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Level and first words of what is more than information, without the outage itself."""
    lines = [line for line in logs if line["logger"] == "tocsin.heart" and line["log_level"] != "info"]
    return [(line["log_level"], line["event"].partition(":")[0]) for line in lines if "failed" not in line["event"]]


async def test_a_replica_that_takes_over(watched: Watched, worker: Worker) -> None:
    await eventually(lambda: in_step(watched), "the replica has all")
    with capture_logs() as logs:
        watched.primary.kill()
        await eventually(lambda: beat(worker), "the new primary is found", within=20)
        await beat(worker)
    assert told(logs) == [("warning", "a replica took over as the primary")]


async def test_a_replica_that_takes_over_without_the_last_writes(watched: Watched, worker: Worker) -> None:
    await eventually(lambda: in_step(watched), "the replica has all")
    with watched.primary.client() as plain:
        # Those that are connected stay so; the replica must connect anew, and may not.
        plain.config_set("requirepass", "secret")
        plain.client_kill_filter(_type="replica")
    for _ in range(3):
        assert await beat(worker)
    with capture_logs() as logs:
        watched.primary.kill()
        await eventually(lambda: beat(worker), "the new primary is found", within=20)
        await beat(worker)
    assert told(logs) == [("error", "the server has lost writes that it had confirmed")]
    [line] = [line for line in logs if "has lost writes" in line["event"]]
    assert (line["lost_s"], line["change"]) == (3 * 2.0, "a replica took over as the primary")


async def test_a_primary_that_loses_its_replicas(watched: Watched, worker: Worker) -> None:
    with capture_logs() as logs:
        watched.replica.kill()

        async def is_told() -> bool:
            return await beat(worker) and bool(told(logs))

        await eventually(is_told, "it is noticed")
        await beat(worker)
    assert told(logs) == [("warning", "the primary has lost all its replicas")]


async def test_a_server_that_is_restarted(make_worker) -> None:
    with Server.valkey(aof=True) as server:
        async with Tocsin(server.url) as app:
            worker = await make_worker(app)
            await beat(worker)
            assert not worker.parts.upkeep.unheld_runs._hurried
            with capture_logs() as logs:
                server.restart()
                assert await beat(worker)
                assert await beat(worker)
            assert told(logs) == [("warning", "the server was restarted, or another stands in its place")]
            await eventually(lambda: worker.parts.upkeep.unheld_runs._hurried, "all partitions are to be looked at")
            await worker.kill()
