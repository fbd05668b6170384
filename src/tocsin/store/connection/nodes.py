"""Groups work on partitions by node of a cluster, so that a node that does not answer cannot hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.store import OpenQueue, Store

T = TypeVar("T")


def by_node(store: Store, items: Sequence[T], place: Callable[[T], tuple[OpenQueue, int]]) -> list[list[T]]:
    """The items grouped by the node of their partition. One group, if the server is not a cluster."""
    client = store.client
    if not isinstance(client, ClusterClient) or len(items) < 2:
        return [list(items)]
    groups: dict[str, list[T]] = {}
    for item in items:
        queue, partition = place(item)
        # The queue may have fewer partitions now.
        key = queue.keys[min(partition, queue.partitions - 1)]["meta"]
        groups.setdefault(client.name_of_node(key), []).append(item)
    return list(groups.values())


async def each_by_itself(groups: Sequence[T], work: Callable[[T], Awaitable[float]]) -> float:
    """Work on all groups at the same time. Returns their longest rest, or raises the first error."""
    if len(groups) == 1:
        return await work(groups[0])
    longest = 0.0
    for rest in await asyncio.gather(*map(work, groups), return_exceptions=True):
        if isinstance(rest, BaseException):
            raise rest
        longest = max(longest, rest)
    return longest


def is_away(store: Store, queue: OpenQueue, partition: int) -> bool:
    """Whether the partition's node does not answer. A pass over many partitions may leave it out."""
    client = store.client
    if not isinstance(client, ClusterClient) or not client.topology.away:
        return False
    return client.name_of_node(queue.keys[min(partition, queue.partitions - 1)]["meta"]) in client.topology.away


def when_back(store: Store, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` whenever a missing node answers again or was replaced: its last writes may be lost. Returns a
    function that ends this."""
    client = store.client
    if not isinstance(client, ClusterClient):
        return lambda: None
    client.topology.listeners.add(call)
    return lambda: client.topology.listeners.discard(call)


def nodes_away(store: Store) -> tuple[str, ...]:
    """The primaries of a cluster that do not answer."""
    return tuple(sorted(store.client.topology.away)) if isinstance(store.client, ClusterClient) else ()
