"""Replicas: makes sure that a failover cannot undo what was written to some nodes.

A server answers before its replicas have a write. A command that writes something in one place, and then removes it
from another, must not remove it while a failover could still undo the write: it would be in neither place.

A replica counts if its primary says that it follows. A primary drops a replica that hangs after `repl-timeout`, 60 s by
default. A replica that still gets its first copy of the data does not count, because it would not be promoted. Without
replicas there is nothing to wait for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tocsin.model.clock import monotonic
from tocsin.model.errors import StoreError
from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.scripts.script import script
from tocsin.store.store import Store
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.store")

# A command gives up when it had to begin again so often because nodes were replaced.
MOST_BEGINNINGS = 10
# Longer than a primary waits for a replica that hangs.
PATIENCE_S = 75.0
# How long one WAIT may take; less if redis.connection.timeout is shorter.
LOOK_S = 1.0

_FOLLOWER = re.compile(rb"^slave\d+:.*\bstate=online\b", re.MULTILINE)
# Changes when the process was started again, or was the replica of another meanwhile.
_IDENTITY = re.compile(rb"^(?:run_id|master_replid):(\w+)", re.MULTILINE)


class NodeReplaced(StoreError):
    """A failover or a restart: earlier writes may be lost."""


class _Look(msgspec.Struct, frozen=True):
    """One node: the keys that it has, its identity, how many replicas follow it, and how many of them have all
    writes."""

    keys: list[str]
    identity: bytes
    replicas: int = 0
    confirmed: int = 0


class Replicas:
    """Confirms what one command writes, from its first `confirm` on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identities: dict[str, bytes] = {}

    async def confirm(self, keys: Iterable[str]) -> None:
        """Wait until all replicas of the nodes with these keys have all earlier writes. Raises NodeReplaced if a key is
        no longer on the node that had it at its first confirmation; StoreError if a replica does not confirm."""
        for look in await self._confirmed(sorted(set(keys))):
            for key in look.keys:
                if self._identities.setdefault(key, look.identity) != look.identity:
                    raise NodeReplaced(f"the node that has {key} was replaced or started again")

    async def _confirmed(self, keys: list[str]) -> list[_Look]:
        wait_ms = max(1, int(1000 * min(LOOK_S, self._store.connections.timeout_s / 2)))
        give_up, warned = monotonic() + PATIENCE_S, False
        while True:
            looks: list[_Look] = await self._store.run_repeatable(lambda client: _look(client, keys, wait_ms))
            behind = [look for look in looks if look.confirmed < look.replicas]
            if not behind:
                return looks
            late = behind[0].replicas - behind[0].confirmed
            if monotonic() >= give_up:
                raise StoreError(
                    f"{late} of the {behind[0].replicas} replicas of the node that has {behind[0].keys[0]} did not "
                    f"confirm the last writes within {PATIENCE_S:g} s, so a failover could lose them: nothing is lost "
                    "now; see with INFO replication why the replicas lag, or take them off with REPLICAOF NO ONE, then "
                    "run the same command again, and it goes on"
                )
            if not warned:
                log.warning("waiting for replicas that lag", key=behind[0].keys[0], replicas=late)
                warned = True


async def _look(client: Any, keys: list[str], wait_ms: int) -> list[_Look]:
    if not isinstance(client, ClusterClient):
        return [await _look_at_node(client, keys, wait_ms)]
    by_node: dict[str, list[str]] = {}
    for key, name in zip(keys, await client.names_of_nodes(keys), strict=True):
        by_node.setdefault(name, []).append(key)
    return list(await asyncio.gather(*(_look_at_node(client, some, wait_ms) for some in by_node.values())))


async def _look_at_node(client: Any, keys: list[str], wait_ms: int) -> _Look:
    """WAIT only counts writes of its own connection, so write a mark to each key first."""
    mark = script("write_mark").source
    async with client.pinned(keys[0]) as ask:
        *_, server, replication = await ask(
            [*(("EVAL", mark, 1, key) for key in keys), ("INFO", "server"), ("INFO", "replication")]
        )
        identity = b" ".join(_IDENTITY.findall(server) + _IDENTITY.findall(replication))
        replicas = len(_FOLLOWER.findall(replication))
        if not replicas:
            return _Look(keys, identity)
        (confirmed,) = await ask([("WAIT", replicas, wait_ms)])
    return _Look(keys, identity, replicas, int(confirmed))
