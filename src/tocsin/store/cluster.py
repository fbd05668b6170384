"""Clients of a cluster, with what redis-py's lack: a line for a free connection, and idle ones within bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import redis
from redis import exceptions
from redis.asyncio import RedisCluster

from tocsin.store.pooling import ConnectionSettings
from tocsin.store.turns import Turns

if TYPE_CHECKING:
    from redis.asyncio.cluster import ClusterNode
    from redis.typing import EncodableT

    from tocsin.store.healing import Healing


@contextlib.contextmanager
def as_redis_error() -> Iterator[None]:
    """RedisClusterException (no node reachable, slots not covered) is no RedisError: a caller would miss it."""
    try:
        yield
    except exceptions.RedisClusterException as error:
        raise exceptions.ClusterError(str(error)) from error


class _KnownNodes:
    def get_node(self, host: str | None = None, port: int | None = None, node_name: str | None = None) -> Any:
        """Redirections ask by name; for a node that owns no slot yet redis-py would trip over None."""
        node = super().get_node(host, port, node_name)  # type: ignore[misc]
        if node is None and node_name is not None:
            raise exceptions.ClusterError(f"a slot is on its way to {node_name}, which is not known yet")
        return node


class BlockingCluster(_KnownNodes, redis.RedisCluster):
    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        with as_redis_error():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


class Cluster(_KnownNodes, RedisCluster):  # type: ignore[misc]
    """Waits in line for a free connection, as Pool does; redis-py's own raises at once."""

    # Given by the store: what a script does that the server has forgotten.
    healing: Healing

    def __init__(self, settings: ConnectionSettings, **options: Any) -> None:
        # Every fifth MOVED redis-py would close all connections, also those of calls under way.
        # The topology has connections of its own, hence one more.
        super().__init__(reinitialize_steps=0, max_connections=settings.max_total + 1, **options)
        self._settings = settings
        self._turns = Turns(settings.max_total, settings.max_wait_s)

    async def initialize(self, *args: Any, **kwargs: Any) -> RedisCluster:
        with as_redis_error():
            return await super().initialize(*args, **kwargs)

    async def execute_command(self, *args: EncodableT, **kwargs: Any) -> Any:
        await self._turns.take()
        served = True
        try:
            with as_redis_error():
                return await super().execute_command(*args, **kwargs)
        except BaseException as error:
            served = isinstance(error, exceptions.ResponseError)
            raise
        finally:
            self._turns.end(served=served)

    async def aclose(self) -> None:
        await super().aclose()
        # After a lost connection redis-py takes itself for closed and leaves the others open.
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    async def tend(self) -> None:
        """Have min_idle live connections to each primary and at most max_idle. Raises what connecting raises."""
        for node in self.get_primaries():
            await self._fill(node)
            await self._close_surplus(node)

    async def _fill(self, node: ClusterNode) -> None:
        taken: list[Any] = []
        try:
            while len(taken) < self._settings.kept and self._turns.take_free():
                taken.append(node.acquire_connection())
            for connection in taken:
                await _revive(connection)
        finally:
            for connection in taken:
                node.release(connection)
                self._turns.end(served=False)

    async def _close_surplus(self, node: ClusterNode) -> None:
        while len(node._free) > self._settings.max_idle:
            connection = node._free.popleft()
            node._connections.remove(connection)
            await connection.disconnect(nowait=True)


async def _revive(connection: Any) -> None:
    await connection.connect()
    # Nothing was asked for: it is the end that can be read.
    if await connection.can_read():
        await connection.disconnect(nowait=True)
        await connection.connect()
