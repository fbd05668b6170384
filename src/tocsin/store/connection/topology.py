"""Tracks which node of a cluster has which slot.

redis-py refreshes its table by asking one random node, possibly a dead one, while all calls wait. Then it connects to
every node again, and it forgets the addresses that it was given. So one dead primary would stop the work on all others.

Here calls wait only for the first look at the cluster. Later looks run beside the calls and change only the parts of
the table that differ. They start when a node does not answer, or may no longer be the primary. They repeat until each
node in doubt has answered or was replaced. A node that does not answer a PING is *away*: calls to it fail at once
instead of waiting for a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from redis import exceptions
from redis.asyncio.cluster import ClusterNode
from redis.cluster import PRIMARY, REPLICA

from tocsin.store.connection.pool import send_together
from tocsin.telemetry.logs import get_logger

if TYPE_CHECKING:
    from redis.asyncio.cluster import NodesManager

log = get_logger("tocsin.store")

# Seconds between two looks while a node is in doubt.
AGAIN_S = 0.25
# Seconds to wait for a node's answer: to a PING, after which it counts as away, and to a look, which then omits it.
PATIENCE_S = 1.0
# How many nodes a look asks.
MOST_ASKED = 5

_EPOCH = re.compile(rb"cluster_current_epoch:(\d+)")


class TopologyView(Struct, frozen=True):
    """The cluster as one node sees it. `epoch` grows with each election. A minority that was cut off is not `ok`."""

    ok: bool
    epoch: int
    slots: list[Any]
    host: str


class Topology:
    """Keeps one client's view of its cluster up to date, in redis-py's own tables, which route the calls."""

    def __init__(self, manager: NodesManager, seeds: Sequence[ClusterNode], logs: bool) -> None:
        """`logs`: whether to log changes. Only one of several clients in a process should."""
        # The names of primaries that do not answer.
        self.away: set[str] = set()
        # Called when a missing node answers again or was replaced.
        self.listeners: set[Callable[[], None]] = set()
        self._manager = manager
        self._seeds = seeds
        self._logs = logs
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stale = False
        self._closing: set[asyncio.Task[None]] = set()
        # The slots of the last adopted view; None if a redirection has changed the tables since.
        self._adopted: list[Any] | None = None

    async def open(self) -> None:
        """Take the first look. Raises ClusterError if no node answers."""
        answers = await asyncio.gather(*map(_view, self._seeds), return_exceptions=True)
        views = [answer for answer in answers if isinstance(answer, TopologyView)]
        if not views:
            error = next(answer for answer in answers if isinstance(answer, BaseException))
            raise exceptions.ClusterError(f"no node of the cluster can be asked: {error}") from error
        self._adopt(_best(views))
        await self._leave_seeds()
        if not self._manager.slots_cache:
            raise exceptions.ClusterError("slots are not covered by any node of the cluster")

    async def close(self) -> None:
        tasks = [task for task in (self._looking, *self._probes.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)
        self._probes.clear()
        nodes = [*self._manager.nodes_cache.values(), *self._seeds]
        await asyncio.gather(*(node.disconnect() for node in nodes), return_exceptions=True)

    # Called by the client

    def is_away(self, node: ClusterNode) -> bool:
        return node.name in self.away

    def others_answer(self, node: ClusterNode) -> bool:
        """Whether some other primary is not away."""
        return any({other.name for other in self._manager.get_nodes_by_server_type(PRIMARY)} - self.away - {node.name})

    def doubt(self, node: ClusterNode) -> None:
        """Check a node that did not answer a call."""
        if node.name not in self._probes:
            self._probes[node.name] = asyncio.ensure_future(self._probe(node))
        self.look_soon()

    def look_soon(self) -> None:
        """Start looks: something may have changed."""
        self._stale = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_until_sure())

    def redirected(self, host: str, port: int) -> ClusterNode:
        """The node that a redirection names. A node without slots is added to the tables."""
        known = self._manager.get_node(host=host, port=port)
        if known is None:
            known = ClusterNode(host, port, PRIMARY, **self._manager.connection_kwargs)
            self._manager.nodes_cache[known.name] = known
        return known

    async def move_slot(self, moved: exceptions.MovedError, answered: ClusterNode) -> ClusterNode:
        """The new node of a slot. Starts a look, because other slots may have moved too."""
        # A node that does not know its own address sends none.
        moved.host = moved.host or answered.host
        await self._manager.move_slot(moved)
        self._adopted = None
        self.look_soon()
        return self._manager.get_node_from_slot(moved.slot_id)

    # A node in doubt

    async def _probe(self, node: ClusterNode) -> None:
        misses = 0
        try:
            while self._has_slots(node) and not await _answers(node):
                misses += 1
                # One miss proves nothing: our own event loop may have stood still.
                if misses == 2:
                    self.away.add(node.name)
                    self._warn(
                        "a node of the cluster does not answer: work on it stands still until it is back, or "
                        "another takes its place",
                        node=node.name,
                    )
                await asyncio.sleep(AGAIN_S if misses >= 2 else 0)
        finally:
            self._probes.pop(node.name, None)
            was_away = node.name in self.away
            self.away.discard(node.name)
        if not self._has_slots(node):
            # Otherwise calls that still wait for it would wait for their timeout.
            await node.disconnect()
        elif was_away:
            if self._logs:
                log.info(
                    "a node of the cluster answers again; if it was restarted, its last writes may be lost",
                    node=node.name,
                )
            self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in list(self.listeners):
            listener()

    def _has_slots(self, node: ClusterNode) -> bool:
        known = self._manager.nodes_cache.get(node.name)
        return known is not None and known.server_type == PRIMARY

    # Looks

    async def _look_until_sure(self) -> None:
        while self._stale or self._probes:
            self._stale = False
            await self._look()
            if self._probes:
                await asyncio.sleep(AGAIN_S)

    async def _look(self) -> None:
        answers = await asyncio.gather(*map(_view_in_time, self._to_ask()), return_exceptions=True)
        views = [answer for answer in answers if isinstance(answer, TopologyView)]
        if not views:
            # Try the given addresses again: they may lead to other nodes now.
            answers = await asyncio.gather(*map(_view_in_time, self._seeds), return_exceptions=True)
            views = [answer for answer in answers if isinstance(answer, TopologyView)]
        if views:
            self._adopt(_best(views))
            await self._leave_seeds()

    async def _leave_seeds(self) -> None:
        """Close the seeds' connections, except those of seeds that are in the tables under the same name."""
        left = [node for node in self._seeds if self._manager.nodes_cache.get(node.name) is not node]
        await asyncio.gather(*(node.disconnect() for node in left), return_exceptions=True)

    def _to_ask(self) -> list[ClusterNode]:
        """Some nodes that are not in doubt. Replicas too, because the one that takes over knows first."""
        nodes = [node for node in self._manager.nodes_cache.values() if node.name not in self._probes]
        return random.sample(nodes, min(MOST_ASKED, len(nodes)))

    def _adopt(self, view: TopologyView) -> None:
        if view.slots == self._adopted or not view.slots:
            return
        manager = self._manager
        before = dict(manager.nodes_cache)
        led = {name for name, node in before.items() if node.server_type == PRIMARY}
        owners = manager.slots_cache
        nodes: dict[str, ClusterNode] = {}
        slots: dict[int, list[ClusterNode]] = {}
        for first, last, primary, *replicas in view.slots:
            listed = [self._listed(nodes, view.host, primary, PRIMARY)]
            listed += [self._listed(nodes, view.host, replica, REPLICA) for replica in replicas]
            slots.update(dict.fromkeys(range(int(first), int(last) + 1), listed))
        succeeded = {(owners[slot][0].name, listed[0].name) for slot, listed in slots.items() if slot in owners}
        manager.nodes_cache, manager.slots_cache, manager.startup_nodes = nodes, slots, dict(nodes)
        self._adopted = view.slots
        manager.default_node = next(node for node in nodes.values() if node.server_type == PRIMARY)
        for node in [node for name, node in before.items() if name not in nodes]:
            self._disconnect(node)
        self._report_successors(succeeded, led)

    def _listed(self, nodes: dict[str, ClusterNode], asked: str, entry: list[Any], kind: str) -> ClusterNode:
        """The node of an entry of CLUSTER SLOTS. A known node keeps its connections."""
        host, port = _text(entry[0]) or asked, int(entry[1])
        fresh = ClusterNode(host, port, kind, **self._manager.connection_kwargs)
        known = {node.name: node for node in self._seeds} | self._manager.nodes_cache
        node = nodes.setdefault(fresh.name, known.get(fresh.name, fresh))
        node.server_type = kind
        return node

    def _disconnect(self, node: ClusterNode) -> None:
        """Close the connections of a node that left the cluster. Calls under way may still end."""
        node.update_active_connections_for_reconnect()
        closing = asyncio.ensure_future(node.disconnect_free_connections())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _report_successors(self, succeeded: Iterable[tuple[str, str]], led: set[str]) -> None:
        """Report replicas that took over, but not slots that were given to another primary."""
        for former, successor in sorted(succeeded):
            former_node = self._manager.nodes_cache.get(former)
            if successor in led or (former_node is not None and former_node.server_type == PRIMARY):
                continue
            self._warn(
                "a replica took over from a node of the cluster: the last writes that it had not received are lost, so "
                "runs that ended in the last moments may run again, and jobs that were put then may be missing",
                node=former,
                successor=successor,
            )
            self._call_listeners()

    def _warn(self, event: str, **facts: str) -> None:
        if self._logs:
            log.warning(event, **facts)


def _best(views: Sequence[TopologyView]) -> TopologyView:
    return max(views, key=lambda view: (view.ok, view.epoch))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


async def _view_in_time(node: ClusterNode) -> TopologyView:
    async with asyncio.timeout(PATIENCE_S):
        return await _view(node)


async def _view(node: ClusterNode) -> TopologyView:
    slots, info = await _ask(node, [("CLUSTER SLOTS",), ("CLUSTER INFO",)])
    if isinstance(slots, Exception):
        raise slots
    # The user of the address may have no permission for CLUSTER INFO.
    said = info if isinstance(info, bytes) else b"cluster_state:ok"
    epoch = _EPOCH.search(said)
    return TopologyView(b"cluster_state:ok" in said, int(epoch[1]) if epoch else 0, slots, node.host)


async def _answers(node: ClusterNode) -> bool:
    """Whether the node answers a PING at all, and is not loading its data."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _ask(node, [("PING",)])
    except (exceptions.RedisError, OSError):
        return False
    return True


@contextlib.asynccontextmanager
async def connection_of(node: ClusterNode) -> AsyncIterator[Any]:
    connection = node.acquire_connection()
    try:
        await node.disconnect_if_needed(connection)
        yield connection
    finally:
        try:
            await node.disconnect_if_needed(connection)
        finally:
            node.release(connection)


async def _ask(node: ClusterNode, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    async with connection_of(node) as connection:
        return await send_together(connection, commands)
