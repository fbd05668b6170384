"""The client of a cluster, with what redis-py's lacks: a line for a free connection, bounds for idle ones,
transactions, and calls that go on while a node is gone."""

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
from tocsin.store.connection.immediate import ImmediateConnection, ImmediateTlsConnection
from tocsin.store.connection.pool import Ask, ConnectionSettings, ask_in_order, send_together
from tocsin.store.connection.topology import Topology, connection_of

if TYPE_CHECKING:
    from redis.asyncio.cluster import PipelineCommand
    from redis.typing import EncodableT

    from tocsin.store.scripts.reload import ScriptReloader

# How often a call is sent again where nothing was executed: because keys of its slot are on their way, or because a
# replica is about to take over.
TRIES, TRIES_DOWN = 5, 15

_ELSEWHERE = (exceptions.MovedError, exceptions.AskError, exceptions.TryAgainError)


@contextlib.contextmanager
def as_redis_error() -> Iterator[None]:
    """RedisClusterException (no node reachable, slots not covered) is no RedisError: a caller would miss it."""
    try:
        yield
    except exceptions.RedisClusterException as error:
        raise exceptions.ClusterError(str(error)) from error


class Pipeline(ClusterPipeline):
    """Commands that are sent together, each to the node of its key.

    redis-py 8.1 does not look at the topology when a node does not answer a pipeline."""

    cluster_client: ClusterClient

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        queued: list[PipelineCommand] = self._execution_strategy._command_queue  # type: ignore[attr-defined]
        # What was collected is sent once, whatever comes of it.
        await self.reset()  # type: ignore[no-untyped-call]
        answers = await self._ask([command.args for command in queued]) if queued else []
        return [self._parsed(command, answer) for command, answer in zip(queued, answers, strict=True)]

    async def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await self.cluster_client.ask_together(commands)

    def _parsed(self, command: PipelineCommand, answer: Any) -> Any:
        if isinstance(answer, exceptions.ResponseError):
            raise answer
        return self.cluster_client.parsed(command.args, command.kwargs, answer)


class Transaction(Pipeline):
    """Commands on keys of one slot, executed at one moment. Each must have its key as its first argument.

    redis-py 8.1 starts a thread and an event loop for each command of a transaction, passes `keys` to callbacks that
    do not take it (ZSCORE ends in a TypeError), and without retries it never learns that a slot has moved."""

    async def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await self.cluster_client.ask_at_once(commands)


class ClusterClient(RedisCluster):
    """Waits in line for a free connection, as Pool does; redis-py's own raises at once. Calls that a node does not
    answer, or answers as one that may have lost its place, make the client look at the topology (topology.py)."""

    # Given by the store: what a script does that the server has forgotten.
    healing: ScriptReloader

    def __init__(self, settings: ConnectionSettings, *, tells: bool, **options: Any) -> None:
        # The topology has connections of its own, hence one more.
        super().__init__(max_connections=settings.max_total + 1, **options)
        kind = ImmediateTlsConnection if options.get("ssl") else ImmediateConnection
        # RedisCluster() takes neither.
        own = {"connection_class": kind, "parser_class": Parser}
        self.connection_kwargs |= own
        seeds = [ClusterNode(node.host, node.port, **self.connection_kwargs) for node in self.startup_nodes]
        self.topology = Topology(self.nodes_manager, seeds, tells)
        self._settings = settings
        self._turns = CallLimit(settings.max_total, settings.max_wait_s)
        self._opening = asyncio.Lock()

    async def initialize(self, *_: Any, **__: Any) -> ClusterClient:
        """Once: later changes are found beside the calls."""
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
        """Of the node that has the key's slot; '' if none has it."""
        owners = self.nodes_manager.slots_cache.get(self.keyslot(key))
        return owners[0].name if owners else ""

    async def execute_command(self, *args: EncodableT, **kwargs: Any) -> Any:
        async with self._turn():
            return await super().execute_command(*args, **kwargs)

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **kwargs: Any) -> Any:
        return self.parsed(args, kwargs, await self._ask(target_node, args))

    def parsed(self, command: Sequence[Any], options: Mapping[str, Any], answer: Any) -> Any:
        """As redis-py has it. `keys` is meant for a cache, which a cluster's client does not have."""
        parse = self.response_callbacks.get(command[0])
        return answer if parse is None else parse(answer, **{name: options[name] for name in options if name != "keys"})

    async def _ask(self, first: ClusterNode, command: tuple[Any, ...]) -> Any:
        """Follow redirections, for a while. redis-py's own sends ASKING on any free connection, closes the connections
        of all calls when a node says that the cluster is down, and knows no node without slots."""
        node, asking = first, False
        for turn in range(REDIRECTIONS):
            try:
                return await self._ask_once(node, command, asking)
            except exceptions.AskError as ask:
                node, asking = self.topology.redirected(ask.host or node.host, ask.port), True
            except exceptions.MovedError as moved:
                node, asking = await self.topology.move_slot(moved, node), False
            except (exceptions.TryAgainError, exceptions.ClusterDownError) as error:
                if turn >= TRIES and isinstance(error, exceptions.TryAgainError):
                    break
                if turn >= TRIES_DOWN:
                    raise
                node, asking = first, False
                await asyncio.sleep(TRY_AGAIN_S if turn else 0)
        raise self._of_node(first, exceptions.ClusterError(BETWEEN_NODES))

    async def _ask_once(self, node: ClusterNode, command: tuple[Any, ...], asking: bool) -> Any:
        with self._asked(node):
            async with connection_of(node) as connection:
                *_, answer = await send_together(connection, [("ASKING",), command] if asking else [command])
            if isinstance(answer, Exception):
                raise answer
            return answer

    @contextlib.contextmanager
    def _asked(self, node: ClusterNode) -> Iterator[None]:
        """Around a call: what its failure says about the node."""
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
        """Says that the rest of the cluster is there, if it is (see connect.py)."""
        error.of_one_node = self.topology.others_answer(node)  # type: ignore[attr-defined]
        return error

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Pipeline:
        # redis-py collects the commands of both in the same way if it takes them for a plain pipeline.
        return Transaction(self) if transaction else Pipeline(self)  # type: ignore[abstract]

    async def ask_together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """In one round trip for each node; of each the answer, or the error that is one."""
        async with self._turn():
            await self.initialize()
            places: dict[ClusterNode, list[int]] = {}
            for at, command in enumerate(commands):
                node = self.nodes_manager.get_node_from_slot(await self._determine_slot(*command))
                places.setdefault(node, []).append(at)
            asking = [self._ask_some(node, [commands[each] for each in which]) for node, which in places.items()]
            answers: dict[int, Any] = {}
            # All are waited for: none may hold a connection when this turn ends.
            for which, some in zip(places.values(), await asyncio.gather(*asking, return_exceptions=True), strict=True):
                if isinstance(some, BaseException):
                    raise some
                answers.update(zip(which, some, strict=True))
            return [answers[at] for at in range(len(commands))]

    async def _ask_some(self, node: ClusterNode, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._asked(node):
            async with connection_of(node) as connection:
                answers = await send_together(connection, commands)
        for at, answer in enumerate(answers):
            if isinstance(answer, _ELSEWHERE):
                answers[at] = await self._ask(node, commands[at])
        return answers

    async def ask_at_once(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """In one transaction, on the node that has the key of the first; of each the answer, or the error that is one.
        Nothing was executed if it raises MovedError, which is followed once: the next call goes where the slot is."""
        async with self._turn():
            await self.initialize()
            node: Any = self.get_node_from_key(commands[0][1])
            try:
                return await self._ask_at_once(node, commands)
            except exceptions.MovedError as moved:
                return await self._ask_at_once(await self.topology.move_slot(moved, node), commands)

    async def _ask_at_once(self, node: ClusterNode, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._asked(node):
            async with connection_of(node) as connection:
                *queued, done = await send_together(connection, [("MULTI",), *commands, ("EXEC",)])
            if isinstance(done, Exception):
                # EXEC only says that it was aborted; the cause is the answer to one of those before.
                raise next((answer for answer in queued if isinstance(answer, Exception)), done)
            return done  # type: ignore[no-any-return]

    async def names_of_nodes(self, keys: Sequence[str]) -> list[str]:
        """Of each key, which node has it."""
        with as_redis_error():
            await self.initialize()
        return [self.name_of_node(key) for key in keys]

    @contextlib.asynccontextmanager
    async def pinned(self, key: str) -> AsyncIterator[Ask]:
        """One connection to the node that has the key, for commands of which one depends on what the connection did
        before. After MovedError the next one goes where the slot is."""
        async with self._turn():
            await self.initialize()
            node: Any = self.get_node_from_key(key)
            try:
                with self._asked(node):
                    async with connection_of(node) as connection:
                        yield functools.partial(ask_in_order, connection)
            except exceptions.MovedError as moved:
                await self.topology.move_slot(moved, node)
                raise

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._turns.take()
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
            self._turns.end(served=served)

    async def aclose(self) -> None:
        self._initialize = True
        await self.topology.close()

    async def tend(self) -> None:
        """Have min_idle live connections to each primary and at most max_idle. Raises what connecting raises."""
        for node in self.get_primaries():
            if not self.topology.is_away(node):
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
