"""Scripts that the server forgot: one load for a storm of calls, and the whole source where loading does not help."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.one_queue import FOR_EVER, Line
from tests.support.records import record
from tests.support.servers import Cluster, Server, ask, available, cluster
from tocsin.model import msgpack
from tocsin.model.errors import StoreChanged, StoreFull, StoreUnavailable, WrongKeyType
from tocsin.model.outcome import NEW
from tocsin.model.queue import Queue
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import Client, open_client
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.scripts import reload
from tocsin.store.scripts.reload import ScriptReloader
from tocsin.store.scripts.script import all_scripts, script
from tocsin.store.store import Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest
from tocsin.store.transitions.jobs import Jobs, PutItem

FORGOTTEN = "script was forgotten by the server and is loaded again"
IN_FULL = "script is still unknown to the server and is sent in full, which is slower"
NOT_LOADED = "script cannot be loaded"
# For a bell to ring.
ITEMS = msgpack.encode(["0"])


def forget(server: Server) -> None:
    with server.client() as plain:
        plain.script_flush()
        plain.config_resetstat()


def counted(server: Server, command: str) -> int:
    """How often since `forget`. Redis 6.2 counts all that begins with SCRIPT as one command."""
    with server.client() as plain:
        stats = plain.info("commandstats")
    found = stats.get(f"cmdstat_{command}") or stats.get(f"cmdstat_{command.partition('|')[0]}")
    return int(found["calls"]) if found else 0


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = Store(url, prefix=f"t{secrets.token_hex(4)}:")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def told(logs: list[Any], event: str) -> list[str]:
    found = [entry for entry in logs if entry["event"] == event]
    assert {entry["log_level"] for entry in found} <= {"warning"}
    return [entry["script"] for entry in found]


async def test_all_scripts_are_loaded_when_the_store_is_opened(store: Store):
    shas = [each.sha for each in all_scripts()]
    assert await store.client.script_exists(*shas) == [True] * len(shas)
    assert store.scripts.loaded == len(shas)
    assert (store.scripts.reloaded, store.scripts.fallbacks, store.scripts.errors) == (0, 0, 0)


async def test_a_storm_after_a_flush_loads_each_script_once(line: Line, any_server: Server):
    for storm in (1, 2):
        forget(any_server)
        puts = (line.put(f"{storm}-{n}") for n in range(150))
        bells = (script("bell_ring")(line.store.client, [line.store.keys.bell("b")], [ITEMS]) for n in range(50))
        with capture_logs() as logs:
            answers = await asyncio.gather(*puts, *bells)
        assert answers[:150] == [NEW] * 150
        assert counted(any_server, "script|load") == 2
        assert counted(any_server, "eval") == 0
        assert (line.store.scripts.reloaded, line.store.scripts.fallbacks) == (2 * storm, 0)
        # The second time within the minute nothing is said.
        assert sorted(told(logs, FORGOTTEN)) == (["bell_ring", "job_put"] if storm == 1 else [])
    assert line.store.scripts.errors == 0


async def test_a_storm_of_round_trips_for_several_partitions_loads_once(line: Line, any_server: Server):
    wide = await line.store.open_queue(Queue("wide", partitions=4))
    for n in range(40):
        await line.jobs.put(wide, PutItem(f"{n}", record(), line.now))
    forget(any_server)
    wishes = [ClaimRequest(wide, partition, 100) for partition in range(4)]
    first, second = await asyncio.gather(line.runs.claim(wishes, FOR_EVER), line.other.claim(wishes, FOR_EVER))
    claimed = [claim.member for answer in (*first, *second) for claim in answer.claims]
    assert sorted(map(int, claimed)) == list(range(40))
    assert counted(any_server, "script|load") == 1
    assert (line.store.scripts.reloaded, line.store.scripts.fallbacks) == (1, 0)


# A cluster: the node that forgot is told, once.


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3) as several:
        yield several


async def test_a_node_of_a_cluster_that_forgot_is_told_once(nodes: Cluster):
    async with opened(nodes.url) as store:
        queue = await store.open_queue(Queue("wide", partitions=12))
        assert store.scripts.loaded == len(all_scripts())
        assert [_known(node) for node in nodes.nodes] == [len(all_scripts())] * 3

        async def storm(name: str) -> list[int]:
            jobs = Jobs(store)
            puts = (jobs.put(queue, PutItem(f"{name}-{n}", record(), 0)) for n in range(200))
            assert [code for code, _ in await asyncio.gather(*puts)] == [NEW] * 200
            return [counted(node, "script|load") for node in nodes.nodes]

        for node in nodes.nodes:
            forget(node)
        assert await storm("all") == [1, 1, 1]
        forget(nodes.nodes[1])
        assert await storm("one") == [1, 1, 1]
        assert (store.scripts.reloaded, store.scripts.fallbacks) == (4, 0)


def _known(node: Server) -> int:
    with node.client() as plain:
        return sum(plain.script_exists(*(each.sha for each in all_scripts())))


# Where loading does not help.


@pytest.fixture(params=available())
def strict_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Its user `app` may call scripts but not load them."""
    with Server(request.param) as server:
        with server.client() as plain:
            ask(plain, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-script")
        yield server


@pytest.fixture
async def strict(strict_server: Server) -> AsyncIterator[Store]:
    with capture_logs() as logs:
        async with opened(f"unix://app:secret@{strict_server.socket}") as store:
            refused = [entry["refused"] for entry in logs if entry["event"] == "scripts cannot be loaded"]
            assert refused == [len(all_scripts())]
            yield store


async def test_a_call_is_sent_in_full_where_loading_does_not_help(
    strict: Store, strict_server: Server, monkeypatch: pytest.MonkeyPatch
):
    assert strict.scripts.loaded == 0
    jobs, queue = Jobs(strict), await strict.open_queue(Queue("line"))
    # EVAL loads it as well: each flush makes one more call fall back.
    fallbacks, later = strict.scripts.fallbacks, 0.0
    monkeypatch.setattr(reload, "monotonic", lambda: time.monotonic() + later)
    with capture_logs() as logs:
        for n in range(3):
            forget(strict_server)
            assert (await jobs.put(queue, PutItem(f"{n}", record(), 0)))[0] == NEW
            assert counted(strict_server, "eval") == 1
    assert strict.scripts.fallbacks - fallbacks == 3
    assert told(logs, IN_FULL) == told(logs, NOT_LOADED) == ["job_put"]
    later = reload.QUIET_S
    forget(strict_server)
    with capture_logs() as logs:
        await jobs.put(queue, PutItem("late", record(), 0))
    assert told(logs, IN_FULL) == ["job_put"]
    assert (strict.scripts.reloaded, strict.scripts.errors) == (0, 0)


# What fails while it is loaded.


class Forgetful:
    """Knows no script until one was loaded, and loads none before it is `willing`.

    A call with "slow" is answered after `slow` is set, but as it would have been before.
    """

    def __init__(self) -> None:
        self.loads = 0
        self.asked, self.willing = asyncio.Event(), asyncio.Event()
        self.called, self.slow = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                if b"EVALSHA" in data:
                    answer = b":1\r\n" if self.willing.is_set() else b"-NOSCRIPT No matching script\r\n"
                    self.called.set()
                    if b"slow" in data:
                        await self.slow.wait()
                    writer.write(answer)
                else:
                    self.loads += 1
                    self.asked.set()
                    await self.willing.wait()
                    writer.write(b"+OK\r\n")
        writer.close()


@pytest.fixture
async def forgetful() -> AsyncIterator[tuple[Forgetful, Client]]:
    known = Forgetful()
    async with await asyncio.start_server(known.serve, "127.0.0.1", 0) as server:
        address = parse(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client = open_client(address, ConnectionSettings(timeout_s=0.5))
        client.script_reloader = ScriptReloader(address)
        yield known, client
        await client.aclose()
        known.willing.set()
        known.slow.set()


async def test_a_call_that_hears_of_it_after_the_load_does_not_load_again(forgetful: tuple[Forgetful, Client]):
    known, client = forgetful
    slow = asyncio.ensure_future(script("bell_ring")(client, ["k"], ["slow"]))
    await known.called.wait()
    other = asyncio.ensure_future(script("bell_ring")(client, ["k"], [ITEMS]))
    await known.asked.wait()
    known.willing.set()
    assert await other == 1
    known.slow.set()
    assert await slow == 1
    assert known.loads == 1


async def test_a_server_that_freezes_while_it_loads_is_waited_for_once(forgetful: tuple[Forgetful, Client]):
    known, client = forgetful
    began = time.monotonic()
    calls = (script("bell_ring")(client, ["k"], [ITEMS]) for _ in range(20))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(answer).partition(" from")[0] for answer in answers} == {"Timeout reading"}
    assert time.monotonic() - began < 3
    assert known.loads == 1


async def test_a_call_that_is_given_up_does_not_take_the_load_from_others(forgetful: tuple[Forgetful, Client]):
    known, client = forgetful
    first, second = (asyncio.ensure_future(script("bell_ring")(client, ["k"], [ITEMS])) for _ in range(2))
    await known.asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    known.willing.set()
    assert await second == 1
    assert known.loads == 1


# What is counted as an error.


async def test_a_script_that_fails_is_counted(line: Line):
    wide = await line.store.open_queue(Queue("wide", partitions=3))
    for keys in wide.keys[:2]:
        await line.store.client.set(keys["waiting"], "not ours")
    answers = await line.runs.claim([ClaimRequest(wide, partition, 1) for partition in range(3)], FOR_EVER)
    assert [type(answer) for answer in answers] == [WrongKeyType, WrongKeyType, ClaimReply]
    assert line.store.scripts.errors == 2
    await line.store.client.set(line.keys["waiting"], "not ours")
    with pytest.raises(WrongKeyType, match="holds a string where Tocsin keeps a zset"):
        await line.put("a")
    assert line.store.scripts.errors == 3


async def test_a_partition_that_changed_is_no_error_of_a_script(line: Line):
    await line.store.client.hset(line.keys["meta"], "sealed", 1)
    with pytest.raises(StoreChanged):
        await line.put("a")
    assert line.store.scripts.errors == 0


async def test_a_server_that_is_full_or_away_is_no_error_of_a_script():
    with Server.valkey() as server:
        async with opened(server.url) as store:
            queue = await store.open_queue(Queue("line"))
            await store.client.config_set("maxmemory", 1)
            with pytest.raises(StoreFull):
                await Jobs(store).put(queue, PutItem("a", record(), 0))
            server.kill()
            with pytest.raises(StoreUnavailable):
                await store.run_once(lambda c: script("bell_ring")(c, ["bell"], [ITEMS]))
            assert store.scripts.errors == 0
