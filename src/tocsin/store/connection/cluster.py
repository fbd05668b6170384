"""The client of a cluster. It adds to redis-py's: waiting in line for a connection, limits for idle connections,
transactions, and calls to the other nodes while one is missing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode, ClusterPipeline

from tocsin.store.connection.blocking_cluster import BETWEEN_NODES, REDIRECTIONS, TRY_AGAIN_S
from tocsin.store.connection.call_limit import CallLimit
from tocsin.store.connection.demoted import Parser
from tocsin.store.connection.pool import (
    ConnectionSettings,
    ImmediateConnection,
    ImmediateTlsConnection,
    Send,
    close_surplus_of_node,
    send_in_order,
    send_together,
)
from tocsin.store.connection.topology import Topology, connection_of

if TYPE_CHECKING:
    from redis.asyncio.cluster import PipelineCommand
    from redis.typing import EncodableT

    from tocsin.store.scripts.reload import ScriptReloader

# How often to send a call again that executed nothing: while keys of its slot are being moved, and while a replica is
# taking over.
TRIES, TRIES_DOWN = 5, 15

_ELSEWHERE = (exceptions.MovedError, exceptions.AskError, exceptions.TryAgainError)


@contextlib.contextmanager
def as_redis_error() -> Iterator[None]:
    """Raise RedisClusterException (no node reachable, slots not covered) as a RedisError, which callers catch."""
    try:
        yield
    except exceptions.RedisClusterException as error:
        raise exceptions.ClusterError(str(error)) from error


class Pipeline(ClusterPipeline):
    """Commands that are sent together, each to the node of its key.

    redis-py's own pipeline (8.1) does not refresh the topology when a node does not answer."""

    cluster_client: ClusterClient

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        queued: list[PipelineCommand] = self._execution_strategy._command_queue  # type: ignore[attr-defined]
        # Reset first, so that the commands are sent only once, even if sending fails.
        await self.reset()  # type: ignore[no-untyped-call]
        answers = await self._send([command.args for command in queued]) if queued else []
        return [self._parsed(command, answer) for command, answer in zip(queued, answers, strict=True)]

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await self.cluster_client.send_together(commands)

    def _parsed(self, command: PipelineCommand, answer: Any) -> Any:
        if isinstance(answer, exceptions.ResponseError):
            raise answer
        return self.cluster_client.parsed(command.args, command.kwargs, answer)


class Transaction(Pipeline):
    """Commands on keys of one slot, executed atomically. The first argument of each must be its key.

    redis-py's own transaction (8.1) starts a thread and an event loop for each command, passes `keys` to callbacks that
    do not accept it (ZSCORE raises a TypeError), and without retries never notices that a slot has moved."""

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await self.cluster_client.send_transaction(commands)


class ClusterClient(RedisCluster):
    """A client that waits in line for a free connection, like BoundedPool; redis-py's own raises at once. If a node
    does not answer, or may no longer be the primary, the client refreshes its topology (topology.py)."""

    # Set by the store. Scripts use it when the server has forgotten them.
    script_reloader: ScriptReloader

    def __init__(self, settings: ConnectionSettings, *, logs: bool, **options: Any) -> None:
        # One more, because the topology uses the nodes' connections too.
        super().__init__(max_connections=settings.max_total + 1, **options)
        kind = ImmediateTlsConnection if options.get("ssl") else ImmediateConnection
        # RedisCluster() accepts neither of these as an argument.
        own = {"connection_class": kind, "parser_class": Parser}
        self.connection_kwargs |= own
        seeds = [ClusterNode(node.host, node.port, **self.connection_kwargs) for node in self.startup_nodes]
        self.topology = Topology(self.nodes_manager, seeds, logs)
        self._settings = settings
        self._limit = CallLimit(settings.max_total, settings.max_wait_s)
        self._opening = asyncio.Lock()

    async def initialize(self, *_: Any, **__: Any) -> ClusterClient:
        """Read the topology once. Later changes are found while calls go on."""
        if not self._initialize:
            return self
        async with self._opening:
            if self._initialize:
                await self.topology.open()
                await self.commands_parser.initialize(self.get_default_node())
                self._initialize = False
        return self

    def get_default_node(self) -> Any:
        primaries = self.get_primaries()
        return next((node for node in primaries if not self.topology.is_away(node)), next(iter(primaries), None))

    def name_of_node(self, key: str) -> str:
        """The name of the node that has the key's slot; '' if none has it."""
        owners = self.nodes_manager.slots_cache.get(self.keyslot(key))
        return owners[0].name if owners else ""

    async def execute_command(self, *args: EncodableT, **kwargs: Any) -> Any:
        async with self._permit():
            return await super().execute_command(*args, **kwargs)

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **kwargs: Any) -> Any:
        return self.parsed(args, kwargs, await self._send(target_node, args))

    def parsed(self, command: Sequence[Any], options: Mapping[str, Any], answer: Any) -> Any:
        """The answer as redis-py parses it. Drops the option `keys`, which is for a cache that cluster clients lack."""
        parse = self.response_callbacks.get(command[0])
        return answer if parse is None else parse(answer, **{name: options[name] for name in options if name != "keys"})

    async def _send(self, first: ClusterNode, command: tuple[Any, ...]) -> Any:
        """Send a command and follow redirections, up to a limit. redis-py's own code sends ASKING on any free
        connection, closes the connections of all calls when a node answers that the cluster is down, and cannot reach
        a node without slots."""
        node, asking = first, False
        for attempt in range(REDIRECTIONS):
            try:
                return await self._send_once(node, command, asking)
            except exceptions.AskError as ask:
                node, asking = self.topology.redirected(ask.host or node.host, ask.port), True
            except exceptions.MovedError as moved:
                node, asking = await self.topology.move_slot(moved, node), False
            except (exceptions.TryAgainError, exceptions.ClusterDownError) as error:
                if attempt >= TRIES and isinstance(error, exceptions.TryAgainError):
                    break
                if attempt >= TRIES_DOWN:
                    raise
                node, asking = first, False
                await asyncio.sleep(TRY_AGAIN_S if attempt else 0)
        raise self._of_node(first, exceptions.ClusterError(BETWEEN_NODES))

    async def _send_once(self, node: ClusterNode, command: tuple[Any, ...], asking: bool) -> Any:
        with self._watching(node):
            async with connection_of(node) as connection:
                *_, answer = await send_together(connection, [("ASKING",), command] if asking else [command])
            if isinstance(answer, Exception):
                raise answer
            return answer

    @contextlib.contextmanager
    def _watching(self, node: ClusterNode) -> Iterator[None]:
        """Wraps a call and passes its failure on to the topology."""
        if self.topology.is_away(node):
            raise self._of_node(node, exceptions.ConnectionError(f"{node.name} does not answer"))
        try:
            yield
        except (exceptions.MaxConnectionsError, exceptions.AuthenticationError):
            raise
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            self.topology.doubt(node)
            self._of_node(node, error)
            raise
        except (exceptions.ClusterDownError, exceptions.MasterDownError, exceptions.ReadOnlyError):
            self.topology.look_soon()
            raise

    def _of_node(self, node: ClusterNode, error: Exception) -> Exception:
        """Mark the error if other nodes answer: it becomes NodeUnavailable (see `translate`)."""
        error.of_one_node = self.topology.others_answer(node)  # type: ignore[attr-defined]
        return error

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Pipeline:
        # Transaction is a plain pipeline for redis-py too, which then collects the commands in the same way.
        return Transaction(self) if transaction else Pipeline(self)  # type: ignore[abstract]

    async def send_together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one batch per node. Returns an answer or error for each."""
        async with self._permit():
            await self.initialize()
            by_node: dict[ClusterNode, list[int]] = {}
            for at, command in enumerate(commands):
                node = self.nodes_manager.get_node_from_slot(await self._determine_slot(*command))
                by_node.setdefault(node, []).append(at)
            asking = [self._send_to_node(node, [commands[each] for each in which]) for node, which in by_node.items()]
            answers: dict[int, Any] = {}
            # Wait for all: none may use a connection after this permit has ended.
            for which, some in zip(
                by_node.values(), await asyncio.gather(*asking, return_exceptions=True), strict=True
            ):
                if isinstance(some, BaseException):
                    raise some
                answers.update(zip(which, some, strict=True))
            return [answers[at] for at in range(len(commands))]

    async def _send_to_node(self, node: ClusterNode, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._watching(node):
            async with connection_of(node) as connection:
                answers = await send_together(connection, commands)
        for at, answer in enumerate(answers):
            if isinstance(answer, _ELSEWHERE):
                answers[at] = await self._send(node, commands[at])
        return answers

    async def send_transaction(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands as one transaction to the node of the first command's key. Returns an answer or error for each.
        If the slot has moved, nothing was executed, so it tries once more at the new node. A MovedError that is raised
        means that nothing was executed, and the next call goes to the new node."""
        async with self._permit():
            await self.initialize()
            node: Any = self.get_node_from_key(commands[0][1])
            try:
                return await self._send_transaction(node, commands)
            except exceptions.MovedError as moved:
                return await self._send_transaction(await self.topology.move_slot(moved, node), commands)

    async def _send_transaction(self, node: ClusterNode, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._watching(node):
            async with connection_of(node) as connection:
                *queued, done = await send_together(connection, [("MULTI",), *commands, ("EXEC",)])
            if isinstance(done, Exception):
                # EXEC answers only that the transaction was aborted. The cause is the answer to an earlier command.
                raise next((answer for answer in queued if isinstance(answer, Exception)), done)
            return done  # type: ignore[no-any-return]

    async def names_of_nodes(self, keys: Sequence[str]) -> list[str]:
        """The name of the node of each key."""
        with as_redis_error():
            await self.initialize()
        return [self.name_of_node(key) for key in keys]

    @contextlib.asynccontextmanager
    async def pinned(self, key: str) -> AsyncIterator[Send]:
        """Reserve one connection to the key's node, for commands that depend on earlier ones on the same connection.
        After a MovedError the next call goes to the new node."""
        async with self._permit():
            await self.initialize()
            node: Any = self.get_node_from_key(key)
            try:
                with self._watching(node):
                    async with connection_of(node) as connection:
                        yield functools.partial(send_in_order, connection)
            except exceptions.MovedError as moved:
                await self.topology.move_slot(moved, node)
                raise

    @contextlib.asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        await self._limit.take()
        served = True
        try:
            with as_redis_error():
                yield
        except BaseException as error:
            served = isinstance(error, exceptions.ResponseError)
            if isinstance(error, exceptions.ClusterError):
                self.topology.look_soon()
            raise
        finally:
            self._limit.end(served=served)

    async def aclose(self) -> None:
        self._initialize = True
        await self.topology.close()

    async def refill_idle_connections(self) -> None:
        """Keep between min_idle and max_idle idle connections to each primary. Raises the errors of connecting."""
        for node in self.get_primaries():
            if not self.topology.is_away(node):
                await self._fill(node)
                await close_surplus_of_node(node, self._settings.max_idle)

    async def _fill(self, node: ClusterNode) -> None:
        taken: list[Any] = []
        try:
            while len(taken) < self._settings.kept and self._limit.take_free():
                taken.append(node.acquire_connection())
            for connection in taken:
                await _revive(connection)
        finally:
            for connection in taken:
                node.release(connection)
                self._limit.end(served=False)


async def _revive(connection: Any) -> None:
    await connection.connect()
    # No answer is expected here, so data to read means that the connection was closed.
    if await connection.can_read():
        await connection.disconnect(nowait=True)
        await connection.connect()
