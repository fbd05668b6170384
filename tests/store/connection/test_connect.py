"""Every kind of address really connects; nothing is sent twice; errors come out as ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
from redis._parsers.base import BaseParser
from redis.crc import key_slot

from tests.support.foreign_server import Foreign
from tests.support.servers import Cluster, Server, Watched, ask, available, cluster, follow, sentinel
from tests.support.waiting import eventually
from tocsin.model.errors import (
    InvalidConfig,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import DEFAULTS, Client, open_blocking_client, open_client, open_waiting_client
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.connection.server_check import check_server

FLAVOURS = available()
needs_redis7 = pytest.mark.skipif("redis7" not in FLAVOURS, reason="redis-server 7 is not installed")
WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.valkey(tcp=True) as one:
        yield one


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3, spare=1) as several:
        yield several


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with sentinel(password="hunter2") as pair:
        yield pair


@pytest.fixture(params=["valkey-tcp", *FLAVOURS, "tls", "mutual-tls", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.param
    if name in ("sentinel", "cluster"):
        yield request.getfixturevalue({"sentinel": "watched", "cluster": "nodes"}[name]).url
    elif name == "valkey-tcp":
        yield request.getfixturevalue("server").url
    elif name in FLAVOURS:
        with Server(name, password="hunter2") as one:
            yield one.url + "?db=3"
    elif "redis7" not in FLAVOURS:
        pytest.skip("redis-server 7 is not installed")
    else:
        with Server.redis7(tls=True, tls_auth_clients="yes" if name == "mutual-tls" else "no") as one:
            key = f"&ssl_certfile={one.folder}/tls.crt&ssl_keyfile={one.folder}/tls.key"
            yield one.url + (key if name == "mutual-tls" else "")


@contextlib.asynccontextmanager
async def connected(url: str, opener: Callable[..., Client] = open_client, **options: Any) -> AsyncIterator[Client]:
    client = opener(parse(url), **options)
    try:
        yield client
    finally:
        await client.aclose()


async def outcome(call: Awaitable[Any], url: str) -> StoreError | None:
    """Our error for what redis-py raised."""
    try:
        await call
    except FAILURES as error:
        return translate(error, parse(url))
    return None


async def test_every_kind_of_address_connects(url: str) -> None:
    async with (
        connected(url, settings=ConnectionSettings(max_total=4)) as client,
        connected(url, open_waiting_client) as waiting,
    ):
        await check_server(client, parse(url))
        await asyncio.gather(*(client.set(f"k{n}", b"\xff%d" % n) for n in range(100)))
        assert await client.get("k7") == b"\xff7"
        await client.rpush("bell", "1")
        assert await waiting.blpop(["bell"], timeout=1) == (b"bell", b"1")


def test_every_kind_of_address_connects_from_a_thread_every_time(url: str) -> None:
    for n in range(10):
        with contextlib.closing(open_blocking_client(parse(url))) as client:
            assert client.incr("beat") == n + 1


async def test_a_new_connection_sends_nothing_but_the_command(server: Server) -> None:
    async with connected(server.url) as client:
        with server.client() as plain:
            plain.config_resetstat()
            await client.get("k")
            assert plain.info("commandstats").keys() == {"cmdstat_config|resetstat", "cmdstat_get"}


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_a_command_whose_reply_was_lost_is_not_sent_again(scheme: str) -> None:
    async with Foreign() as foreign:
        url = f"{scheme}://127.0.0.1:{foreign.port}"
        async with connected(url) as client:
            assert type(await outcome(client.evalsha("f" * 40, 1, "k"), url)) is StoreUnavailable
            assert foreign.dropped == [b"EVALSHA"]
            if scheme == "redis":
                pipeline = client.pipeline(transaction=False)
                pipeline.evalsha("f" * 40, 1, "k")
                assert type(await outcome(pipeline.execute(), url)) is StoreUnavailable
                assert foreign.dropped.pop() == b"EVALSHA"
        assert foreign.dropped == [b"EVALSHA"]

        def beat() -> None:
            with contextlib.closing(open_blocking_client(parse(url))) as blocking:
                blocking.evalsha("f" * 40, 1, "k")

        assert type(await outcome(asyncio.to_thread(beat), url)) is StoreUnavailable
        assert foreign.dropped == [b"EVALSHA", b"EVALSHA"]


@pytest.mark.parametrize("name", ["server", "nodes", "watched"])
async def test_a_call_waits_for_a_free_connection(request: pytest.FixtureRequest, name: str) -> None:
    url = request.getfixturevalue(name).url
    async with connected(url, settings=ConnectionSettings(max_total=2)) as client:
        assert await asyncio.gather(*(client.set(f"k{n}", n) for n in range(50))) == [True] * 50


async def test_a_frozen_server_is_given_up_but_a_blocking_read_goes_on() -> None:
    with Server.valkey() as server:
        async with connected(server.url) as client, connected(server.url, open_waiting_client) as waiting:
            bell = asyncio.ensure_future(waiting.blpop(["bell"], timeout=5))
            await eventually(lambda: _blocked(client), "it waits in a blocking call")
            server.pause()
            started = time.monotonic()
            assert type(await outcome(client.get("k"), server.url)) is StoreTimeout
            assert time.monotonic() - started < DEFAULTS.timeout_s + 1
            server.resume()
            await client.rpush("bell", "1")
            assert await bell == (b"bell", b"1")


async def _blocked(client: Client) -> bool:
    return bool((await client.info("clients"))["blocked_clients"])


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@127.0.0.1:1",
        "unix://:hunter2@/tmp/no-such-socket",
        "redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/jobs?sentinel_password=hunter2",
        "redis+cluster://:hunter2@127.0.0.1:1,127.0.0.1:2",
    ],
)
async def test_a_server_that_is_down_is_reported_quickly_and_without_the_password(url: str) -> None:
    started = time.monotonic()
    async with connected(url) as client:
        with pytest.raises(StoreUnavailable) as caught:
            await check_server(client, parse(url))
        error = await outcome(client.set("k", 1), url)
    assert type(error) is StoreUnavailable
    assert time.monotonic() - started < 1
    assert parse(url).shown in str(error)
    assert "hunter2" not in f"{error} {caught.value}"


def test_a_cluster_that_is_down_is_reported_to_the_thread_that_asks_it() -> None:
    address = parse("redis+cluster://127.0.0.1:1")
    with contextlib.closing(open_blocking_client(address)) as client, pytest.raises(FAILURES) as caught:
        client.get("k")
    assert type(translate(caught.value, address)) is StoreUnavailable


async def test_a_client_works_again_after_the_server_was_restarted() -> None:
    with Server.valkey(aof=True) as server:
        async with connected(server.url) as client:
            await client.set("k", 1)
            server.kill()
            assert type(await outcome(client.get("k"), server.url)) is StoreUnavailable
            server.start()
            assert await client.get("k") == b"1"


async def test_after_a_failover_the_new_primary_is_found() -> None:
    with sentinel() as watched:
        async with connected(watched.url) as client:
            blocking = open_blocking_client(parse(watched.url))
            await client.set("k", 1)
            assert blocking.set("beat", 1)
            watched.primary.kill()

            async def writes() -> bool:
                error = await outcome(client.set("k", 2), watched.url)
                assert error is None or type(error) is StoreUnavailable
                return error is None

            await eventually(writes, "it writes")
            assert blocking.set("beat", 2)
            blocking.close()
            with watched.replica.client() as promoted:
                assert promoted.mget("k", "beat") == [b"2", b"2"]


async def test_a_connection_to_a_demoted_server_is_dropped() -> None:
    """The host name may lead to the new primary meanwhile."""
    with Server.valkey(tcp=True, repl_diskless_sync_delay=0) as primary, Server.valkey() as demoted:
        async with connected(demoted.url, settings=ConnectionSettings(max_total=1)) as client:
            before = await client.client_id()
            follow(demoted, primary)
            assert type(await outcome(client.set("k", 1), demoted.url)) is StoreUnavailable
            assert await client.client_id() != before


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_script_on_a_demoted_server_may_be_tried_again(flavour: str) -> None:
    with Server(flavour, tcp=True) as primary, Server(flavour) as demoted, demoted.client() as plain:
        ask(plain, "REPLICAOF", "127.0.0.1", primary.port)
        async with connected(demoted.url) as client:
            assert type(await outcome(client.eval(WRITE, 1, "k", "v"), demoted.url)) is StoreUnavailable


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_full_server_is_store_full(flavour: str) -> None:
    with Server(flavour, maxmemory="2mb") as server:
        async with connected(server.url) as client:
            for n in range(4):
                error = await outcome(client.eval(WRITE, 1, f"k{n}", "v" * 1_000_000), server.url)
    assert type(error) is StoreFull
    assert "raise maxmemory" in str(error)


async def test_calls_under_way_survive_slots_that_move(nodes: Cluster) -> None:
    """With redis-py's default every fifth redirection closes all connections."""
    async with connected(nodes.url) as client:
        await client.initialize()
        bell = asyncio.ensure_future(client.blpop(["bell{b}"], timeout=2))
        await eventually(lambda: _somewhere_blocked(nodes), "it waits in a blocking call")
        slots = [n for n in range(6000, 6012) if n != key_slot(b"bell{b}")][:10]
        for slot in slots:
            _give(nodes, slot, to=2)
        for slot in slots:
            await client.eval("return 1", 1, _key_of(slot))
        await client.rpush("bell{b}", "1")
        assert await bell == (b"bell{b}", b"1")


async def _somewhere_blocked(nodes: Cluster) -> bool:
    counts = []
    for node in nodes.nodes:
        with node.client() as client:
            counts.append(client.info("clients")["blocked_clients"])
    return any(counts)


def _give(nodes: Cluster, slot: int, to: int) -> None:
    with nodes.nodes[to].client() as receiver:
        owner = ask(receiver, "CLUSTER MYID")
    for node in nodes.nodes[:3]:
        with node.client() as client:
            ask(client, "CLUSTER SETSLOT", slot, "NODE", owner)


def _key_of(slot: int) -> bytes:
    return next(key for n in range(1_000_000) if key_slot(key := b"k%d" % n) == slot)


async def test_a_slot_is_followed_on_its_way_to_a_node_that_has_none(nodes: Cluster) -> None:
    source, target = nodes.nodes[0], nodes.nodes[3]
    with source.client() as giving, target.client() as taking:
        ask(giving, "CLUSTER SETSLOT", 5, "MIGRATING", ask(taking, "CLUSTER MYID"))
        ask(taking, "CLUSTER SETSLOT", 5, "IMPORTING", ask(giving, "CLUSTER MYID"))
        async with connected(nodes.url) as client:
            # Through all free connections: ASKING counts for one command on the same one.
            for n in range(5):
                assert await client.set(_key_of(5), n)
                assert await client.get(_key_of(5)) == b"%d" % n
        with contextlib.closing(open_blocking_client(parse(nodes.url))) as blocking:
            assert blocking.getdel(_key_of(5)) == b"4"
        ask(giving, "CLUSTER SETSLOT", 5, "STABLE")
        ask(taking, "CLUSTER SETSLOT", 5, "STABLE")


ANSWERS = {
    "LOADING Redis is loading the dataset in memory": StoreUnavailable,
    "MASTERDOWN Link with MASTER is down": StoreUnavailable,
    "CLUSTERDOWN The cluster is down": StoreUnavailable,
    "TRYAGAIN Multiple keys request during rehashing of slot": StoreUnavailable,
    "MISCONF Redis is configured to save RDB snapshots": StoreUnavailable,
    "NOREPLICAS Not enough good replicas to write.": StoreUnavailable,
    "BUSY Redis is busy running a script.": StoreUnavailable,
    "UNBLOCKED force unblock from blocking operation": StoreUnavailable,
    "ERR max number of clients reached": StoreUnavailable,
    "NOPERM User app has no permissions to run the 'evalsha' command": StoreRefused,
    "DENIED Redis is running in protected mode": StoreRefused,
    "ERR DB index is out of range": StoreRefused,
    "WRONGTYPE Operation against a key holding the wrong kind of value": StoreError,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_the_server_answers_becomes_one_of_our_errors(answer: str) -> None:
    address, parser = parse("redis://:hunter2@h"), cast(Any, BaseParser)
    assert type(translate(parser.parse_error(answer), address)) is ANSWERS[answer]
    assert "hunter2" not in str(translate(parser.parse_error(f"{answer} hunter2"), address))


@needs_redis7
async def test_a_certificate_that_cannot_be_trusted_is_refused() -> None:
    with Server.redis7(tls=True) as server:
        other_name = server.url.replace("localhost", "127.0.0.1")
        for url in (server.url.partition("?")[0], other_name):
            async with connected(url) as client:
                with pytest.raises(StoreRefused, match="certificate"):
                    await check_server(client, parse(url))


def test_a_missing_certificate_file_is_named() -> None:
    with pytest.raises(InvalidConfig, match="/no/such/file"):
        open_client(parse("rediss://h?ssl_ca_certs=/no/such/file"))
