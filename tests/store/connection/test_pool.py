"""Connections within their bounds, and waits that end: on real sockets, with an error that names the setting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Cluster, Server, Watched, available, cluster, sentinel
from tests.support.waiting import eventually
from tocsin.model.errors import StoreUnavailable
from tocsin.store.connection import pool
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_blocking_client
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.store import Store

SHORT = ConnectionSettings(max_total=2, max_wait_s=0.2, timeout_s=0.5, connect_timeout_s=0.5)
EXHAUSTED = r"exhausted.*redis\.connection\.pool\.max-wait-millis.*redis\.connection\.pool\.max-total"
NO_ANSWER = r"no answer within redis\.connection\.timeout"
NO_CONNECTION = r"(could not connect|no sentinel answered) within redis\.connection\.connect-timeout"
KINDS = ["unix", "tcp", "tls", "sentinel", "cluster"]


@pytest.fixture(scope="module")
def tcp() -> Iterator[Server]:
    with Server.valkey(tcp=True) as one:
        yield one


@pytest.fixture(scope="module")
def tls() -> Iterator[Server]:
    if "redis7" not in available():
        pytest.skip("redis-server 7 is not installed")
    with Server.redis7(tls=True) as one:
        yield one


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3) as several:
        yield several


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with sentinel() as pair:
        yield pair


class Place:
    """A way to connect, and the servers where its connections are seen."""

    def __init__(self, url: str, servers: list[Server]) -> None:
        self.url = url
        self._servers = servers
        self._others = {one for server in servers for one in self._unnamed(server)}

    def connections(self) -> list[int]:
        """By server, those of the store."""
        return [len(self._ours(server)) for server in self._servers]

    def blocked(self) -> int:
        blocked = 0
        for server in self._servers:
            with server.client() as plain:
                blocked += plain.info("clients")["blocked_clients"]
        return blocked

    def cut(self) -> None:
        for server in self._servers:
            with server.client() as plain:
                for ours in self._ours(server):
                    plain.client_kill_filter(_id=ours)

    def _ours(self, server: Server) -> set[str]:
        return self._unnamed(server) - self._others

    def _unnamed(self, server: Server) -> set[str]:
        """Without those of sentinels, which have a name, and the one that looked at the topology of a cluster."""
        with server.client() as plain:
            own = str(plain.client_id())
            found = plain.client_list(_type="normal")
        return {one["id"] for one in found if one["id"] != own and not one["name"] and one["cmd"] != "cluster|slots"}


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str) -> Place:
    if kind == "cluster":
        several = request.getfixturevalue("nodes")
        return Place(several.url, several.nodes)
    if kind == "sentinel":
        pair = request.getfixturevalue("watched")
        return Place(pair.url, [pair.primary])
    server = request.getfixturevalue({"unix": "valkey"}.get(kind, kind))
    return Place(server.url, [server])


every_kind = pytest.mark.parametrize("kind", KINDS)


@contextlib.asynccontextmanager
async def opened(url: str, settings: ConnectionSettings) -> AsyncIterator[Store]:
    store = Store(url, connections=settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def once(store: Store, *command: Any) -> Any:
    """Without the patience of store.read."""
    return await store.run_once(lambda c: c.execute_command(*command))


@contextlib.asynccontextmanager
async def all_in_use(store: Store, place: Place, n: int) -> AsyncIterator[None]:
    waiting = [asyncio.ensure_future(store.client.blpop(["bell{b}"], timeout=0)) for _ in range(n)]

    async def blocked() -> bool:
        return place.blocked() == n

    try:
        await eventually(blocked, "all of them wait")
        yield
    finally:
        # Through connections of its own: the store has none left.
        async with opened(place.url, ConnectionSettings(min_idle=0)) as ringer:
            await ringer.client.rpush("bell{b}", *range(n))
        await asyncio.gather(*waiting)


@every_kind
async def test_a_pool_that_stays_exhausted_is_told_after_max_wait(place: Place) -> None:
    # The two that block may do so for longer than max_wait.
    settings = ConnectionSettings(max_total=2, max_wait_s=0.2)
    async with opened(place.url, settings) as store:
        async with all_in_use(store, place, 2):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=EXHAUSTED):
                await once(store, "GET", "k")
            assert 0.15 < time.monotonic() - began < 2
        assert await once(store, "GET", "k") is None


@every_kind
async def test_min_idle_connections_are_opened_with_the_store_and_again_after_they_were_lost(place: Place) -> None:
    async with opened(place.url, ConnectionSettings(min_idle=3)) as store:
        assert set(place.connections()) == {3}
        place.cut()
        assert max(place.connections()) == 0

        async def reopened() -> bool:
            await store.refill_idle_connections()
            return set(place.connections()) == {3}

        await eventually(reopened, "it is open again")
    assert sum(place.connections()) == 0


@every_kind
async def test_idle_connections_above_max_idle_are_closed_after_a_burst(place: Place, kind: str) -> None:
    async with opened(place.url, ConnectionSettings(max_idle=4, min_idle=2)) as store:
        async with all_in_use(store, place, 20):
            assert max(place.connections()) >= 20

        async def closed() -> bool:
            if kind == "cluster":
                await store.refill_idle_connections()
            return max(place.connections()) == 4

        await eventually(closed, "it is closed")


async def test_a_connection_that_came_back_is_kept_a_moment_for_the_next_burst(
    tcp: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LINGER_S", 60)
    async with opened(tcp.url, ConnectionSettings(max_total=10, max_idle=1, min_idle=0)) as store:
        with tcp.client() as plain:
            before = plain.info("stats")["total_connections_received"]
            for _ in range(5):
                await asyncio.gather(*(store.client.get("k") for _ in range(50)))
            # One was open before.
            assert plain.info("stats")["total_connections_received"] - before == 9


@pytest.mark.parametrize(("settings", "expected"), [({"max_total": 1}, 1), ({"max_idle": 1}, 1), ({"max_idle": 0}, 0)])
async def test_what_stands_ready_is_within_the_other_bounds(tcp: Server, settings: Any, expected: int) -> None:
    place = Place(tcp.url, [tcp])
    async with opened(tcp.url, ConnectionSettings(min_idle=3, **settings)) as store:
        await eventually(lambda: _holds(place, expected), "as many connections are open")
        with tcp.client() as plain:
            before = plain.info("stats")["total_connections_received"]
            await store.refill_idle_connections()
            assert plain.info("stats")["total_connections_received"] == before


async def _holds(place: Place, n: int) -> bool:
    return place.connections() == [n]


@pytest.mark.parametrize("kind", ["tcp", "cluster"])
async def test_a_server_that_is_away_takes_no_connection_from_the_pool(kind: str) -> None:
    start = cluster(1) if kind == "cluster" else contextlib.nullcontext(None)
    with start as several, Server.valkey(tcp=True) as alone:
        server = several.nodes[0] if several else alone
        async with opened(several.url if several else alone.url, SHORT) as store:
            server.kill()
            for _ in range(5):
                with pytest.raises(StoreUnavailable):
                    await eventually(lambda: _tended(store), "idle connections were looked at")
            server.start()

            async def answers() -> bool:
                with contextlib.suppress(StoreUnavailable):
                    await asyncio.gather(once(store, "PING"), once(store, "PING"))
                    return True
                return False

            await eventually(answers, "the server answers")


async def _tended(store: Store) -> bool:
    """False: the ends of the connections were not noticed yet."""
    await store.refill_idle_connections()
    return False


# Half-open: what is connected and does not answer.


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_listener_that_never_answers_is_given_up_after_the_timeout(kind: str, tmp_path: Path) -> None:
    async with _silent(kind, tmp_path) as url:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=NO_ANSWER):
            await Store(url, connections=SHORT).open()
        with pytest.raises(StoreUnavailable, match=NO_ANSWER):
            await asyncio.to_thread(_beat, url)
        assert 0.3 < time.monotonic() - began < 3


@contextlib.asynccontextmanager
async def _silent(kind: str, folder: Path) -> AsyncIterator[str]:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    if kind == "unix":
        server = await asyncio.start_unix_server(silent, folder / "s")
        url = f"unix://{folder / 's'}"
    else:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield url


def _beat(url: str) -> None:
    try:
        with contextlib.closing(open_blocking_client(parse(url), SHORT)) as client:
            client.get("k")
    except FAILURES as error:
        raise translate(error, parse(url)) from error


@every_kind
async def test_a_server_that_froze_is_given_up_after_the_timeout(kind: str) -> None:
    with contextlib.ExitStack() as stack:
        url, server = _own(kind, stack)
        async with opened(url, SHORT) as store:
            server.pause()
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=NO_ANSWER):
                await once(store, "GET", "k")
            assert 0.15 < time.monotonic() - began < 2
            server.resume()

            async def answers() -> bool:
                with contextlib.suppress(StoreUnavailable):
                    await once(store, "GET", "k")
                    return True
                return False

            await eventually(answers, "the server answers")


def _own(kind: str, stack: contextlib.ExitStack) -> tuple[str, Server]:
    """A server that a test may freeze."""
    if kind == "cluster":
        several = stack.enter_context(cluster(1))
        return several.url, several.nodes[0]
    if kind == "sentinel":
        pair = stack.enter_context(sentinel())
        return pair.url, pair.primary
    if kind == "tls" and "redis7" not in available():
        pytest.skip("redis-server 7 is not installed")
    options = {"tls": True} if kind == "tls" else {"tcp": kind == "tcp"}
    server = stack.enter_context(Server("redis7" if kind == "tls" else "valkey", **options))  # type: ignore[arg-type]
    return server.url, server


# Black holes: what cannot be connected to, and does not say so.


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port whose backlog is full: Linux drops what further connections send."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:{port}",
        "rediss://127.0.0.1:{port}",
        "redis+sentinel://127.0.0.1:{port}/jobs",
        "redis+cluster://127.0.0.1:{port}",
    ],
)
async def test_a_connect_into_a_black_hole_is_given_up_after_the_connect_timeout(url: str, black_hole: int) -> None:
    url, settings = url.format(port=black_hole), ConnectionSettings(connect_timeout_s=0.2)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=NO_CONNECTION):
        await Store(url, connections=settings).open()
    with pytest.raises(StoreUnavailable, match=NO_CONNECTION):
        await asyncio.to_thread(_beat, url)
    assert 0.3 < time.monotonic() - began < 4


async def test_a_tls_handshake_that_is_not_answered_is_given_up_after_the_connect_timeout(tmp_path: Path) -> None:
    async with _silent("tcp", tmp_path) as url:
        settings = ConnectionSettings(connect_timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match=NO_CONNECTION):
            await Store(url.replace("redis:", "rediss:"), connections=settings).open()
