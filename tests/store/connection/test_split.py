"""A split: the old primary still answers, without its replicas, and the sentinels name another."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.servers import SERVICE, Server, Watched, ask, flavours, sentinel
from tests.support.waiting import until
from tocsin.model.errors import StoreUnavailable
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import leave_former_primary, open_blocking_client, open_client
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.connection.pool import ConnectionSettings, SingleServerClient

WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"
# One connection: the next call gets the same one, if it is still good.
ONE = ConnectionSettings(max_total=1)


async def by_command(client: SingleServerClient) -> Any:
    return await client.set("k", 1)


async def by_script(client: SingleServerClient) -> Any:
    return await client.eval(WRITE, 1, "k", "1")


async def with_others(client: SingleServerClient) -> Any:
    [answer] = await client.send_together([("EVAL", WRITE, 1, "k", "1")])
    if isinstance(answer, Exception):
        raise answer
    return answer


Write = Callable[[SingleServerClient], Awaitable[Any]]
ways = pytest.mark.parametrize("write", [by_command, by_script, with_others])


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[SingleServerClient]:
    client = open_client(parse(url), ONE)
    assert isinstance(client, SingleServerClient)
    yield client
    await client.aclose()


def split(watched: Watched, *, min_replicas: int = 1) -> None:
    """The sentinels have made the replica the primary, and the old one was not reached."""
    with watched.primary.client() as old, watched.replica.client() as new, watched.sentinel.client() as sentinels:
        ask(old, "CONFIG SET", "min-replicas-to-write", min_replicas)
        ask(new, "REPLICAOF", "NO", "ONE")
        ask(sentinels, "SENTINEL REMOVE", SERVICE)
        ask(sentinels, "SENTINEL MONITOR", SERVICE, "127.0.0.1", watched.replica.port, 1)
        until(lambda: old.info("replication")["connected_slaves"] == 0, "the old primary has lost its replica")


async def refused(write: Awaitable[Any], url: str) -> Exception:
    with pytest.raises(FAILURES) as caught:
        await write
    return translate(caught.value, parse(url))


@ways
async def test_after_a_split_a_client_leaves_the_old_primary(write: Write) -> None:
    with sentinel() as watched:
        async with connected(watched.url) as client:
            await write(client)
            split(watched)
            error = await refused(write(client), watched.url)
            assert type(error) is StoreUnavailable
            assert "another server may be the primary by now (Not enough good replicas to write" in str(error)
            assert await write(client)


def test_after_a_split_the_heartbeat_leaves_the_old_primary() -> None:
    with sentinel() as watched, contextlib.closing(open_blocking_client(parse(watched.url))) as client:
        client.set("k", 1)
        split(watched)
        with pytest.raises(FAILURES):
            client.set("k", 2)
        assert client.set("k", 3)


async def test_a_primary_that_the_sentinels_replaced_is_left_although_it_still_writes() -> None:
    with sentinel() as watched:
        async with connected(watched.url) as client:
            blocking = open_blocking_client(parse(watched.url))
            await client.set("k", "old")
            blocking.set("beat", "old")
            split(watched, min_replicas=0)
            await client.refill_idle_connections()
            await client.set("k", "new")
            leave_former_primary(blocking)
            blocking.set("beat", "new")
            blocking.close()
        with watched.primary.client() as old, watched.replica.client() as new:
            assert (old.mget("k", "beat"), new.mget("k", "beat")) == ([b"old"] * 2, [b"new"] * 2)


async def test_a_primary_is_used_on_while_no_sentinel_can_be_asked() -> None:
    with sentinel() as watched:
        async with connected(watched.url) as client:
            blocking = open_blocking_client(parse(watched.url))
            blocking.set("beat", 1)
            await client.set("k", 1)
            watched.sentinel.kill()
            await client.refill_idle_connections()
            assert await client.set("k", 2)
            leave_former_primary(blocking)
            assert blocking.set("beat", 2)
            blocking.close()


@ways
@pytest.mark.parametrize("flavour", flavours())
async def test_a_server_without_its_replicas_is_connected_to_anew(flavour: str, write: Write) -> None:
    """Its name may lead to another primary by now."""
    with Server(flavour, min_replicas_to_write=1) as server:
        async with connected(server.url) as client:
            before = await client.client_id()
            assert type(await refused(write(client), server.url)) is StoreUnavailable
            assert await client.client_id() != before
