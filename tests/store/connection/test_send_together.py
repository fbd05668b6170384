"""Several commands in one round trip: each has its answer, and a connection that is in doubt is not used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from tests.support.servers import Server
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_client
from tocsin.store.connection.pool import ConnectionSettings, SingleServerClient

# One connection: whoever comes next gets the one that was used before, if it is still good.
ONE = ConnectionSettings(max_total=1, max_wait_s=5.0)


@pytest.fixture
async def client(valkey: Server) -> AsyncIterator[SingleServerClient]:
    client = open_client(parse(valkey.url), ONE)
    assert isinstance(client, SingleServerClient)
    yield client
    await client.aclose()


async def test_answers_come_in_order_and_an_error_stands_in_its_place(client: SingleServerClient):
    first, wrong, last = await client.send_together([("ECHO", "a"), ("EVALSHA", "0" * 40, 0), ("ECHO", b"\xff")])
    assert (first, last) == (b"a", b"\xff")
    assert isinstance(wrong, ResponseError)
    assert await client.send_together([("ECHO", 7)]) == [b"7"]


async def test_if_some_answers_did_not_come_it_fails_and_the_next_has_a_new_connection(client: SingleServerClient):
    [before] = await client.send_together([("CLIENT", "ID")])
    with pytest.raises(RedisConnectionError):
        await client.send_together([("ECHO", "a"), ("QUIT",), ("ECHO", "b")])
    [after] = await client.send_together([("CLIENT", "ID")])
    assert after != before


async def test_who_gives_up_leaves_no_answer_for_the_next(client: SingleServerClient, valkey: Server):
    waiting = asyncio.create_task(client.send_together([("BLPOP", "nobody pushes", 5), ("ECHO", "too late")]))
    with valkey.client() as plain:
        while not plain.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await client.send_together([("ECHO", "mine")]) == [b"mine"]


async def test_a_server_that_became_a_replica_is_connected_to_anew():
    with Server.valkey() as server:
        client = open_client(parse(server.url), ONE)
        assert isinstance(client, SingleServerClient)
        [before, _] = await client.send_together([("CLIENT", "ID"), ("REPLICAOF", "127.0.0.1", "1")])
        refused, answered = await client.send_together([("SET", "a", "b"), ("ECHO", "c")])
        assert isinstance(refused, ReadOnlyError)
        assert answered == b"c"
        [after] = await client.send_together([("CLIENT", "ID")])
        assert after != before
        await client.aclose()


async def test_who_waits_for_a_connection_is_told_when_it_comes_back(client: SingleServerClient):
    held = await client.connection_pool.get_connection()
    waiting = asyncio.create_task(client.send_together([("ECHO", "a")]))
    await asyncio.sleep(0)
    await client.connection_pool.release(held)
    # Long before it would give up.
    async with asyncio.timeout(ONE.max_wait_s / 2):
        assert await waiting == [b"a"]
