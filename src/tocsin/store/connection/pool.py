"""How many connections a client holds, and how long it waits: for one, to connect, for an answer.

At most `max_total` connections. Calls that find none free wait in line and are served in order, as long as the line
moves: if no call was answered for `max_wait_s`, the wait ends with an error. Above `max_idle` a connection is closed
soon after it came back. `min_idle` of them stand ready: they are opened with the store and, where they were lost, by
`tend`, which the owner calls now and then.

Behind sentinels all of this counts for the primary; what asks the sentinels has connections of its own. In a cluster
`max_total` bounds the calls under way, whatever node they go to, `min_idle` and `max_idle` count for each primary, and
idle connections are closed by `tend` only (cluster.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import ReadOnlyError, ResponseError

from tocsin.store.connection.call_limit import CallLimit

if TYPE_CHECKING:
    from tocsin.store.scripts.reload import ScriptReloader


Ask = Callable[[Sequence[tuple[Any, ...]]], Awaitable[list[Any]]]

# A connection that came back may be wanted again at once: in a burst, by those who wait for one.
LINGER_S = 0.1


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The group redis.connection, in seconds."""

    max_total: int = 50
    max_idle: int = 10
    min_idle: int = 2
    max_wait_s: float = 5.0
    timeout_s: float = 3.0
    connect_timeout_s: float = 2.0

    @property
    def kept(self) -> int:
        """How many stand ready: what is above max_idle would not live long."""
        return min(self.min_idle, self.max_idle)


class BoundedPool(ConnectionPool):
    """redis-py's BlockingConnectionPool takes locks and sets a timer even when a connection is free, serves newcomers
    before those that wait, and fails a burst whose line is longer than its time limit."""

    def __init__(self, settings: ConnectionSettings, **options: Any) -> None:
        super().__init__(max_connections=settings.max_total, **options)
        self._settings = settings
        self._turns = CallLimit(settings.max_total, settings.max_wait_s)
        self._closing: asyncio.Task[None] | None = None

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        if not self._turns.take_free():
            await self._turns.take()
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
            # A call that was not answered leaves its connection closed.
            self._turns.end(served=connection.is_connected)
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

    async def tend(self) -> None:
        """Have min_idle live connections, as far as max_total allows. Raises what connecting raises."""
        taken: list[Any] = []
        try:
            while len(taken) < self._settings.kept and self._turns.take_free():
                taken.append(self.get_available_connection())  # type: ignore[no-untyped-call]
            for connection in taken:
                await self.ensure_connection(connection)
        finally:
            for connection in taken:
                await self.release(connection)


class SentinelPool(SentinelConnectionPool, BoundedPool):
    async def tend(self) -> None:
        """Also: be connected to the primary that the sentinels name now. The former may still answer."""
        former = self.master_address
        # Nobody to ask: the primary may be well.
        with contextlib.suppress(MasterNotFoundError):
            if await self.get_master_address() != former:  # type: ignore[no-untyped-call]
                for connection in self._in_use_connections:
                    connection.mark_for_reconnect()  # type: ignore[no-untyped-call]
        await super().tend()

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class SingleServerClient(Redis):
    """A client of one server at a time: its address, a socket, or the primary that the sentinels name."""

    # Given by the store: what a script does that the server has forgotten.
    healing: ScriptReloader

    async def tend(self) -> None:
        await self.connection_pool.tend()  # type: ignore[attr-defined]

    async def send_together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sent together; of each the answer, or the error that is one. Raises if not all of them came.

        What a pipeline of redis-py does, without the tasks and turns of the event loop that it takes for what may be a
        transaction: workers make each of their calls here."""
        connection: Any = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            answers: list[Any] = await connection.retry.call_with_retry(
                lambda: send_together(connection, commands), lambda error: connection.disconnect(error=error)
            )
            return answers
        finally:
            await self.connection_pool.release(connection)

    @contextlib.asynccontextmanager
    async def pinned(self, key: str) -> AsyncIterator[Ask]:
        """One connection, for commands of which one depends on what the connection did before."""
        connection: Any = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            yield functools.partial(ask_in_order, connection)
        finally:
            await self.connection_pool.release(connection)


async def ask_in_order(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers. Raises the first error among them."""
    answers = await send_together(connection, commands)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


async def send_together(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """On one connection, which is closed if not all answers came."""
    packed = [chunk for command in commands for chunk in connection.pack_command(*command)]
    await connection.send_packed_command(packed)
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            answers.append(error)
            if isinstance(error, ReadOnlyError):
                # As for single commands: the next one finds the new primary behind a name that moved.
                connection.mark_for_reconnect()
    return answers
