"""Clients of a cluster, with what redis-py's lack: a line for a free connection, bounds for idle ones, transactions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import redis
from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterPipeline

from tocsin.store.pooling import ConnectionSettings, ask_all
from tocsin.store.turns import Turns

if TYPE_CHECKING:
    from redis.asyncio.cluster import ClusterNode, PipelineCommand
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


class Pipeline(ClusterPipeline):
    """Commands that are sent together, each to the node of its key."""

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        with as_redis_error():
            return await super().execute(raise_on_error, allow_redirections)


class Transaction(Pipeline):
    """Commands on keys of one slot, executed at one moment. Each must have its key as its first argument.

    redis-py 8.1 starts a thread and an event loop for each command of a transaction, passes `keys` to callbacks that
    do not take it (ZSCORE ends in a TypeError), and without retries it never learns that a slot has moved."""

    cluster_client: Cluster

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        queued: list[PipelineCommand] = self._execution_strategy._command_queue  # type: ignore[attr-defined]
        # What was collected is sent once, whatever comes of it.
        await self.reset()  # type: ignore[no-untyped-call]
        answers = await self.cluster_client.ask_at_once([command.args for command in queued]) if queued else []
        return [self._parsed(command, answer) for command, answer in zip(queued, answers, strict=True)]

    def _parsed(self, command: PipelineCommand, answer: Any) -> Any:
        if isinstance(answer, exceptions.ResponseError):
            raise answer
        parse = self.cluster_client.response_callbacks.get(command.args[0])
        # `keys` is meant for a cache, which a cluster's client does not have.
        options = {name: value for name, value in command.kwargs.items() if name != "keys"}
        return answer if parse is None else parse(answer, **options)


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
        async with self._turn():
            return await super().execute_command(*args, **kwargs)

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Pipeline:
        # redis-py collects the commands of both in the same way if it takes them for a plain pipeline.
        return Transaction(self) if transaction else Pipeline(self)  # type: ignore[abstract]

    async def ask_at_once(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """In one transaction, on the node that has the key of the first; of each the answer, or the error that is one.
        Nothing was executed if it raises MovedError, which is followed once: the next call goes where the slot is."""
        async with self._turn():
            try:
                return await self._ask_at_once(commands)
            except exceptions.MovedError as moved:
                await self.nodes_manager.move_slot(moved)
                return await self._ask_at_once(commands)

    async def _ask_at_once(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        node: Any = self.get_node_from_key(commands[0][1])
        connection = node.acquire_connection()
        try:
            *queued, done = await ask_all(connection, [("MULTI",), *commands, ("EXEC",)])
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            # As for single commands: the next call looks at the topology first.
            self._initialize = True
            raise
        finally:
            try:
                await node.disconnect_if_needed(connection)
            finally:
                node.release(connection)
        if isinstance(done, Exception):
            # EXEC only says that it was aborted; the cause is the answer to one of those before.
            raise next((answer for answer in queued if isinstance(answer, Exception)), done)
        return done  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._turns.take()
        served = True
        try:
            with as_redis_error():
                yield
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
