"""A split of a cluster: an old primary still answers, alone, and the others have another in its place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from tests.support.servers import Cluster, Server, ask, cluster
from tests.support.waiting import until
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_blocking_client, open_client
from tocsin.store.connection.cluster import ClusterClient as Client
from tocsin.store.connection.errors import FAILURES

# On the first node.
KEY = next(key for n in itertools.count() if key_slot((key := f"k{n}").encode()) < 5000)
WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    # By default the old primary would serve nothing: it knows no other slots than its own.
    with cluster(3, spare=1, cluster_require_full_coverage="no") as nodes:
        yield nodes


def split(nodes: Cluster) -> None:
    """The first primary and the rest do not know each other any more, and the spare node has its slots."""
    with contextlib.ExitStack() as stack:
        old, *rest = (stack.enter_context(node.client()) for node in nodes.nodes)
        new = rest[-1]
        ask(old, "CONFIG SET", "min-replicas-to-write", 1)
        for other in rest:
            ask(other, "CLUSTER FORGET", ask(old, "CLUSTER MYID"))
        for other in rest:
            ask(old, "CLUSTER FORGET", ask(other, "CLUSTER MYID"))
        ask(new, "CLUSTER ADDSLOTSRANGE", 0, 16384 // 3 - 1)
        ask(new, "CLUSTER BUMPEPOCH")
        for other in rest:
            until(lambda other=other: len(ask(other, "CLUSTER SLOTS")) == 3, "the others know the new primary")
        assert len(ask(old, "CLUSTER SLOTS")) == 1


async def by_command(client: Client) -> Any:
    return await client.set(KEY, 1)


async def by_script(client: Client) -> Any:
    return await client.eval(WRITE, 1, KEY, "1")


async def in_a_transaction(client: Client) -> Any:
    async with client.pipeline(transaction=True) as pipe:
        pipe.set(KEY, 1)
        return await pipe.execute()


def has(server: Server) -> bool:
    with server.client() as plain:
        return bool(plain.info("keyspace").get("db0"))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    client = open_client(parse(url))
    assert isinstance(client, Client)
    await client.initialize()
    yield client
    await client.aclose()


async def test_a_client_leaves_the_old_primary(nodes: Cluster) -> None:
    writes: list[Callable[[Client], Awaitable[Any]]] = [by_command, by_script, in_a_transaction]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(nodes.url)) for _ in writes]
        split(nodes)
        for client, write in zip(clients, writes, strict=True):
            with pytest.raises(FAILURES, match="Not enough good replicas"):
                await write(client)
            async with asyncio.timeout(10):
                while client.name_of_node(KEY) != f"127.0.0.1:{nodes.nodes[3].port}":
                    await asyncio.sleep(0)
            assert await write(client)
    assert has(nodes.nodes[3])
    assert not has(nodes.nodes[0])


def test_the_heartbeat_leaves_the_old_primary(nodes: Cluster) -> None:
    with contextlib.closing(open_blocking_client(parse(nodes.url))) as client:
        client.get(KEY)
        split(nodes)

        def writes() -> bool:
            with contextlib.suppress(*FAILURES):
                return bool(client.set(KEY, 1))
            return False

        until(writes, "it finds the new primary")
    assert has(nodes.nodes[3])
