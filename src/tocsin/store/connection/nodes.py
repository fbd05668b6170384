"""The nodes of a cluster, for those that work on many partitions: one node that does not answer must not hold up what
is done on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.store import OpenQueue, Store

T = TypeVar("T")


def by_node(store: Store, items: Sequence[T], place: Callable[[T], tuple[OpenQueue, int]]) -> list[list[T]]:
    """The items whose partitions are on one node, together. All of them, where the server is not a cluster."""
    client = store.client
    if not isinstance(client, ClusterClient) or len(items) < 2:
        return [list(items)]
    groups: dict[str, list[T]] = {}
    for item in items:
        queue, partition = place(item)
        # It may have fewer partitions by now.
        key = queue.keys[min(partition, queue.partitions - 1)]["meta"]
        groups.setdefault(client.name_of_node(key), []).append(item)
    return list(groups.values())


async def each_by_itself(groups: Sequence[T], work: Callable[[T], Awaitable[float]]) -> float:
    """Work on each group without waiting for the others. The longest of their rests, or the first of their errors."""
    if len(groups) == 1:
        return await work(groups[0])
    longest = 0.0
    for rest in await asyncio.gather(*map(work, groups), return_exceptions=True):
        if isinstance(rest, BaseException):
            raise rest
        longest = max(longest, rest)
    return longest


def is_away(store: Store, queue: OpenQueue, partition: int) -> bool:
    """Whether the partition is on a node that does not answer: a pass over many partitions may leave it out."""
    client = store.client
    if not isinstance(client, ClusterClient) or not client.topology.away:
        return False
    return client.name_of_node(queue.keys[min(partition, queue.partitions - 1)]["meta"]) in client.topology.away


def when_back(store: Store, call: Callable[[], None]) -> Callable[[], None]:
    """Call it whenever a node that was away answers again, or another took its place: it may have lost its last writes.
    Returns what ends that."""
    client = store.client
    if not isinstance(client, ClusterClient):
        return lambda: None
    client.topology.listeners.add(call)
    return lambda: client.topology.listeners.discard(call)


def nodes_away(store: Store) -> tuple[str, ...]:
    """The primaries of a cluster that do not answer."""
    return tuple(sorted(store.client.topology.away)) if isinstance(store.client, ClusterClient) else ()
