"""Which node of a cluster has which slot, and how a client learns of a change.

redis-py asks one node, chosen at random, while all calls wait; if a primary is gone, that may be the one it asks. It
then connects anew to every node, and it forgets the addresses that it was given. So a primary that dies would stop the
work on all the others.

Here only the first look is waited for. Later looks run beside the calls, and change only what has changed. They begin
when a node does not answer, or answers that it may not be the primary any more, and are repeated until each node that
was in doubt has answered or has lost its place to another. A node that does not answer a PING is *away*: calls to it
fail at once instead of waiting for a timeout.
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

# Between two looks while a node is in doubt.
AGAIN_S = 0.25
# A node that does not answer a PING within this long is away, and one that does not answer a look is left out of it.
PATIENCE_S = 1.0
# How many nodes a look asks.
MOST_ASKED = 5

_EPOCH = re.compile(rb"cluster_current_epoch:(\d+)")


class TopologyView(Struct, frozen=True):
    """The cluster as one node sees it. `epoch` grows with each election; a minority that was cut off is not `ok`."""

    ok: bool
    epoch: int
    slots: list[Any]
    host: str


class Topology:
    """What one client knows of its cluster. The tables are redis-py's own, which route the calls."""

    def __init__(self, manager: NodesManager, seeds: Sequence[ClusterNode], tells: bool) -> None:
        """`tells`: whether it logs; of several clients in a process one should."""
        # Names of primaries that do not answer.
        self.away: set[str] = set()
        # Called when a node that was away answers again, or another took its place.
        self.listeners: set[Callable[[], None]] = set()
        self._manager = manager
        self._seeds = seeds
        self._tells = tells
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stale = False
        self._closing: set[asyncio.Task[None]] = set()
        # The slots as they were adopted last; None: a redirection has changed the tables since.
        self._adopted: list[Any] | None = None

    async def open(self) -> None:
        """The first look. Raises what the nodes raise if none can be asked."""
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

    # What calls find out

    def is_away(self, node: ClusterNode) -> bool:
        return node.name in self.away

    def others_answer(self, node: ClusterNode) -> bool:
        """Whether some other primary is not away."""
        return any({other.name for other in self._manager.get_nodes_by_server_type(PRIMARY)} - self.away - {node.name})

    def doubt(self, node: ClusterNode) -> None:
        """The node did not answer a call."""
        if node.name not in self._probes:
            self._probes[node.name] = asyncio.ensure_future(self._probe(node))
        self.look_soon()

    def look_soon(self) -> None:
        """Something may have changed."""
        self._stale = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_until_sure())

    def redirected(self, host: str, port: int) -> ClusterNode:
        """The node that a redirection names; a node without slots is not in the tables yet."""
        known = self._manager.get_node(host=host, port=port)
        if known is None:
            known = ClusterNode(host, port, PRIMARY, **self._manager.connection_kwargs)
            self._manager.nodes_cache[known.name] = known
        return known

    async def move_slot(self, moved: exceptions.MovedError, answered: ClusterNode) -> ClusterNode:
        """Where the slot is now. Other slots may have moved along: a look follows."""
        # A node that does not know its own address leaves it out.
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
                # Once is not enough: our own event loop may have stood still.
                if misses == 2:
                    self.away.add(node.name)
                    self._warn(
                        "a node of the cluster does not answer: what is on it stands still until it is back, or "
                        "another takes its place",
                        node=node.name,
                    )
                await asyncio.sleep(AGAIN_S if misses >= 2 else 0)
        finally:
            self._probes.pop(node.name, None)
            was_away = node.name in self.away
            self.away.discard(node.name)
        if not self._has_slots(node):
            # Calls that still wait there would wait for their timeout.
            await node.disconnect()
        elif was_away:
            if self._tells:
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
            # Whatever the nodes were called when this client began, their names may lead to others by now.
            answers = await asyncio.gather(*map(_view_in_time, self._seeds), return_exceptions=True)
            views = [answer for answer in answers if isinstance(answer, TopologyView)]
        if views:
            self._adopt(_best(views))
            await self._leave_seeds()

    async def _leave_seeds(self) -> None:
        """Close what was opened to ask; a seed that is a node of the cluster under the same name is used on."""
        left = [node for node in self._seeds if self._manager.nodes_cache.get(node.name) is not node]
        await asyncio.gather(*(node.disconnect() for node in left), return_exceptions=True)

    def _to_ask(self) -> list[ClusterNode]:
        """Some that are not in doubt, replicas too: the one that takes over knows first."""
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
            self._let_go(node)
        self._tell_successors(succeeded, led)

    def _listed(self, nodes: dict[str, ClusterNode], asked: str, entry: list[Any], kind: str) -> ClusterNode:
        """The node of an entry of CLUSTER SLOTS. One that is known keeps its connections."""
        host, port = _text(entry[0]) or asked, int(entry[1])
        fresh = ClusterNode(host, port, kind, **self._manager.connection_kwargs)
        known = {node.name: node for node in self._seeds} | self._manager.nodes_cache
        node = nodes.setdefault(fresh.name, known.get(fresh.name, fresh))
        node.server_type = kind
        return node

    def _let_go(self, node: ClusterNode) -> None:
        """Of a node that left the cluster. Calls under way may end."""
        node.update_active_connections_for_reconnect()
        closing = asyncio.ensure_future(node.disconnect_free_connections())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _tell_successors(self, succeeded: Iterable[tuple[str, str]], led: set[str]) -> None:
        """A replica that took over; not a slot that was given to another primary."""
        for former, successor in sorted(succeeded):
            leads_still = self._manager.nodes_cache.get(former)
            if successor in led or (leads_still is not None and leads_still.server_type == PRIMARY):
                continue
            self._warn(
                "a replica took over from a node of the cluster: what it does not have of the last writes is lost, so "
                "runs that ended in the last moments may run again, and jobs that were put then may be missing",
                node=former,
                successor=successor,
            )
            self._call_listeners()

    def _warn(self, event: str, **facts: str) -> None:
        if self._tells:
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
    # The user of the address may have no right to it.
    said = info if isinstance(info, bytes) else b"cluster_state:ok"
    epoch = _EPOCH.search(said)
    return TopologyView(b"cluster_state:ok" in said, int(epoch[1]) if epoch else 0, slots, node.host)


async def _answers(node: ClusterNode) -> bool:
    """Whatever it says, unless it is still loading its data."""
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
