"""Transactions on a cluster: the answers of one server, wherever the slot is."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from tests.support.servers import Cluster, Server, ask, cluster
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import Client, open_client
from tocsin.store.connection.cluster import ClusterClient as ClusterClient
from tocsin.store.connection.pool import ConnectionSettings

# One connection to each node: one that is not given back is missed by the next call.
ONE = ConnectionSettings(max_total=1, max_wait_s=1.0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3) as nodes:
        yield nodes


@pytest.fixture
async def client(nodes: Cluster) -> AsyncIterator[ClusterClient]:
    client = open_client(parse(nodes.url), ONE)
    assert isinstance(client, ClusterClient)
    await client.initialize()
    yield client
    await client.aclose()


async def ask_for_everything(client: Client) -> list[Any]:
    """All that the store reads, or writes, in transactions."""
    await client.delete("{t}z", "{t}h", "{t}l")
    await client.zadd("{t}z", {"a": 1.5, "b": 2})
    await client.hset("{t}h", "f", "v")
    async with client.pipeline(transaction=True) as pipe:
        pipe.zscore("{t}z", "a")
        pipe.zscore("{t}z", "nobody")
        pipe.zrank("{t}z", "b")
        pipe.zcard("{t}z")
        pipe.zcount("{t}z", "-inf", 2)
        pipe.zlexcount("{t}z", "-", "+")
        pipe.zrangebylex("{t}z", "-", "+", 0, 1)
        pipe.zrange("{t}z", 0, -1, withscores=True)
        pipe.hget("{t}h", "f")
        pipe.hmget("{t}h", ["f", "g"])
        pipe.rpush("{t}l", "x")
        pipe.expire("{t}l", 60)
        return list(await pipe.execute())


async def test_a_transaction_is_answered_as_by_one_server(client: ClusterClient, one_server: Server) -> None:
    alone = open_client(parse(one_server.url), ONE)
    assert await ask_for_everything(client) == await ask_for_everything(alone)
    await alone.aclose()


async def test_a_transaction_starts_no_threads(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    assert await ask_for_everything(client)


async def test_a_transaction_follows_a_slot_that_moved(client: ClusterClient, nodes: Cluster) -> None:
    slot = key_slot(b"moved")
    await client.zadd("moved", {"a": 1})
    await client.delete("moved")
    before = client.get_node_from_key("moved").name
    receiver = next(node for node in nodes.nodes if f"127.0.0.1:{node.port}" != before)
    with receiver.client() as plain:
        owner = ask(plain, "CLUSTER MYID")
    for node in [receiver, *nodes.nodes]:
        with node.client() as plain:
            ask(plain, "CLUSTER SETSLOT", slot, "NODE", owner)
    for _ in range(2):
        async with client.pipeline(transaction=True) as pipe:
            pipe.zscore("moved", "a")
            assert await pipe.execute() == [None]
    assert client.get_node_from_key("moved").name == f"127.0.0.1:{receiver.port}"


async def test_an_error_in_a_transaction_is_raised_and_leaves_no_answer_behind(client: ClusterClient) -> None:
    await client.set("text", "x")
    for _ in range(3):
        async with client.pipeline(transaction=True) as pipe:
            pipe.strlen("text")
            pipe.zscore("text", "a")
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                await pipe.execute()
    assert await client.get("text") == b"x"


async def test_a_transaction_without_commands_asks_nobody(client: ClusterClient) -> None:
    async with client.pipeline(transaction=True) as pipe:
        assert await pipe.execute() == []
