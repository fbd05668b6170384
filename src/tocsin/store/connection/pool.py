"""Connections and pools: how many a client holds, and how long it waits for one, to connect, and for an answer.

This is the only file that uses private parts of redis-py's connections and pools.

A client holds at most `max_total` connections. Calls that find none free wait in line and are served in order as long
as the line moves: if no call is answered for `max_wait_s`, the wait ends with an error. Above `max_idle` a connection
is closed soon after its call. `min_idle` connections are kept ready: the store opens them when it opens, and its owner
calls `refill_idle_connections` now and then to replace lost ones.

With sentinels the numbers count for the primary; calls to the sentinels use other connections. In a cluster `max_total`
limits the calls under way to all nodes, `min_idle` and `max_idle` count for each primary, and only
`refill_idle_connections` closes idle connections (cluster.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis
import msgspec
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import ReadOnlyError, ResponseError

from tocsin.store.connection.call_limit import CallLimit

if TYPE_CHECKING:
    from redis.asyncio.cluster import ClusterNode

    from tocsin.store.scripts.reload import ScriptReloader

# Sends commands on one connection and returns their answers.
Send = Callable[[Sequence[tuple[Any, ...]]], Awaitable[list[Any]]]
# Connects a socket to a host and port.
Dial = Callable[[str, int], Awaitable[socket.socket]]

# Keep surplus connections for a moment: in a burst, waiting calls take them again at once.
LINGER_S = 0.1


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of redis.connection, with times in seconds."""

    max_total: int = 50
    max_idle: int = 10
    min_idle: int = 2
    max_wait_s: float = 5.0
    timeout_s: float = 3.0
    connect_timeout_s: float = 2.0

    @property
    def kept(self) -> int:
        """The number of connections to keep ready. Above max_idle they would be closed again."""
        return min(self.min_idle, self.max_idle)


class _Immediate:
    """Writes commands at once.

    redis-py starts a task for each write, for its timeout, and that task begins one turn of the event loop later. Under
    load a turn takes milliseconds, in which the server waits for commands that are ready. So we write what the socket
    accepts, and leave the rest to redis-py."""

    is_connected: bool
    _writer: Any

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        if self.is_connected and not isinstance(command, str) and not self._unsent():
            self._writer.writelines([command] if isinstance(command, bytes) else command)
            if not self._unsent():
                return
            command = []
        await super().send_packed_command(command, check_health)  # type: ignore[misc]

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack in C what redis-py packs in Python. redis-py itself packs commands whose name has two words."""
        plain = isinstance(args[0], str) and " " not in args[0]
        try:
            return [hiredis.pack_command(args)] if plain else super().pack_command(*args)  # type: ignore[misc]
        except TypeError:
            # An argument of a subclass, which redis-py can pack, or of a type that it refuses.
            return super().pack_command(*args)  # type: ignore[misc, no-any-return]

    def _unsent(self) -> int:
        return int(self._writer.transport.get_write_buffer_size())


class ImmediateConnection(_Immediate, Connection):
    pass


class ImmediateTlsConnection(_Immediate, SSLConnection):
    pass


class ImmediateUnixConnection(_Immediate, UnixDomainSocketConnection):
    pass


class _Dialled:
    """Uses a socket that `dial` connects. redis-py itself would connect to any address that the name resolves to."""

    host: str
    port: int
    socket_connect_timeout: float | None

    def __init__(self, *, dial: Dial, **options: Any) -> None:
        super().__init__(**options)
        self._dial = dial
        self._dialled: socket.socket | None = None

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self._dialled = await self._dial(self.host, self.port)
        await super()._connect()  # type: ignore[misc]

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = {**super()._connection_arguments(), "sock": self._dialled}  # type: ignore[misc]
        host = arguments.pop("host")
        del arguments["port"]
        return {**arguments, "server_hostname": host} if "ssl" in arguments else arguments


class DialledConnection(_Dialled, ImmediateConnection):
    pass


class DialledTlsConnection(_Dialled, ImmediateTlsConnection):
    pass


class BoundedPool(ConnectionPool):
    """A pool whose waiting calls are served in order.

    redis-py's BlockingConnectionPool takes a lock and sets a timer even when a connection is free, serves new calls
    before waiting ones, and fails calls of a burst that wait longer than its time limit."""

    def __init__(self, settings: ConnectionSettings, **options: Any) -> None:
        super().__init__(max_connections=settings.max_total, **options)
        self._settings = settings
        self._limit = CallLimit(settings.max_total, settings.max_wait_s)
        self._closing: asyncio.Task[None] | None = None

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        if not self._limit.take_free():
            await self._limit.take()
        connection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        try:
            if connection.should_reconnect():
                await connection.disconnect()
        finally:
            self._in_use_connections.remove(connection)
            self._available_connections.append(connection)
            # A connection that is closed here means that its call got no answer.
            self._limit.end(served=connection.is_connected)
        if len(self._available_connections) > self._settings.max_idle and self._closing is None:
            self._closing = asyncio.ensure_future(self._close_surplus())

    async def _close_surplus(self) -> None:
        await asyncio.sleep(LINGER_S)
        self._closing = None
        while len(self._available_connections) > self._settings.max_idle:
            await self._available_connections.pop(0).disconnect(nowait=True)

    async def aclose(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        await super().aclose()

    async def refill_idle_connections(self) -> None:
        """Open connections until min_idle are alive, as far as max_total allows. Raises the errors of connecting."""
        taken: list[Any] = []
        try:
            while len(taken) < self._settings.kept and self._limit.take_free():
                taken.append(self.get_available_connection())  # type: ignore[no-untyped-call]
            for connection in taken:
                await self.ensure_connection(connection)
        finally:
            for connection in taken:
                await self.release(connection)


class SentinelPool(SentinelConnectionPool, BoundedPool):
    async def refill_idle_connections(self) -> None:
        """First mark connections to a former primary for reconnecting: it may still answer."""
        former = self.master_address
        # If no sentinel answers, the primary may still be well.
        with contextlib.suppress(MasterNotFoundError):
            if await self.get_master_address() != former:  # type: ignore[no-untyped-call]
                for connection in self._in_use_connections:
                    connection.mark_for_reconnect()  # type: ignore[no-untyped-call]
        await super().refill_idle_connections()

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class SingleServerClient(Redis):
    """A client of one server at a time: at an address or socket, or the primary that the sentinels name."""

    # Set by the store. Scripts use it when the server has forgotten them.
    script_reloader: ScriptReloader

    async def refill_idle_connections(self) -> None:
        await self.connection_pool.refill_idle_connections()  # type: ignore[attr-defined]

    async def send_together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one batch. Returns an answer or error for each, and raises if not all were answered.

        Does the same as a pipeline of redis-py, without the tasks and turns of the event loop that it needs for
        transactions. All calls of workers pass here."""
        connection: Any = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            answers: list[Any] = await connection.retry.call_with_retry(
                lambda: send_together(connection, commands), lambda error: connection.disconnect(error=error)
            )
            return answers
        finally:
            await self.connection_pool.release(connection)

    @contextlib.asynccontextmanager
    async def pinned(self, key: str) -> AsyncIterator[Send]:
        """Reserve one connection, for commands that depend on earlier ones on the same connection."""
        connection: Any = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            yield functools.partial(send_in_order, connection)
        finally:
            await self.connection_pool.release(connection)


async def send_in_order(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands on one connection and return the answers. Raises the first error among them."""
    answers = await send_together(connection, commands)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


async def send_together(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands in one batch on one connection. Returns an answer or error for each."""
    packed = [chunk for command in commands for chunk in connection.pack_command(*command)]
    await connection.send_packed_command(packed)
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            answers.append(error)
            if isinstance(error, ReadOnlyError):
                # As redis-py does for single commands: reconnecting finds the new primary behind the name.
                connection.mark_for_reconnect()
    return answers


async def close_surplus_of_node(node: ClusterNode, most: int) -> None:
    """Close idle connections to a node of a cluster above `most`."""
    while len(node._free) > most:
        connection = node._free.popleft()
        node._connections.remove(connection)
        await connection.disconnect(nowait=True)
