"""Reloads scripts that the server has forgotten, once for all calls that notice it at the same time.

A server forgets its scripts after a restart, a failover or SCRIPT FLUSH. NOSCRIPT means that nothing ran, and a call
that changes state carries session and seq, so it may be sent again. If reloading does not help, the call is sent with
the script's source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, ResponseError

from tocsin.model.clock import monotonic
from tocsin.model.errors import StoreUnavailable
from tocsin.store.connection.address import Address
from tocsin.store.connection.client import Client
from tocsin.store.connection.cluster import as_redis_error
from tocsin.store.connection.errors import translate
from tocsin.store.connection.shared_calls import SharedCalls
from tocsin.store.scripts.script import Script, all_scripts
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.store")

# Seconds between two warnings of the same kind about one script.
QUIET_S = 60.0

# A script's SHA, and the name of a node of the cluster or "" for a single server.
_ScriptOnNode: TypeAlias = tuple[str, str]


class ScriptReloader:
    """Loads the scripts of one store, and counts its loads and errors."""

    def __init__(self, address: Address) -> None:
        # Compare `loads` before and after a call to detect a reload.
        self.loads = 0
        self.loaded = 0
        self.reloaded = 0
        self.fallbacks = 0
        self.errors = 0
        self._address = address
        self._loaded_at: dict[_ScriptOnNode, int] = {}
        # The nodes that had all scripts at the start. A node that joined or took over later has forgotten nothing.
        self._nodes = {""}
        self._loading = SharedCalls()
        self._warned: dict[tuple[str, str], float] = {}

    async def load_all(self, client: Client) -> None:
        """Load all scripts. From then on NOSCRIPT means that the server has forgotten one."""
        scripts = all_scripts()
        if isinstance(client, RedisCluster):
            nodes = client.get_primaries()
            self._nodes |= {node.name for node in nodes}
            answers = await asyncio.gather(*(_load_on(node, client, scripts) for node in nodes))
        else:
            answers = [await _load_in_one(client, scripts)]
        refused = [next(filter(None, errors), None) for errors in zip(*answers, strict=True)]
        self.loaded = refused.count(None)
        if error := next(filter(None, refused), None):
            log.warning("scripts cannot be loaded", refused=len(scripts) - self.loaded, error=str(error))

    async def run_after_reload(
        self, what: Script, client: Client, keys: Sequence[str], args: Sequence[Any], seen: int
    ) -> Any:
        """Make a call again after NOSCRIPT. `seen`: the value of `loads` before the first try."""
        with as_redis_error():
            node = client.get_node_from_key(keys[0]) if isinstance(client, RedisCluster) else None
        script_on_node = what.sha, node.name if node else ""
        if self._loaded_at.get(script_on_node, 0) <= seen:
            # All calls share one load and its failure, so that a missing server is waited for only once.
            await self._loading.ask(script_on_node, lambda: self._load(what, client, node, script_on_node))
        try:
            return await client.evalsha(what.sha, len(keys), *keys, *args)
        except NoScriptError:
            self.fallbacks += 1
            self._warn("script is still unknown to the server and is sent in full, which is slower", what)
            return await client.eval(what.source, len(keys), *keys, *args)

    def count(self, error: Exception) -> None:
        """Count the failure of a call as an error, unless the server is merely unavailable."""
        if not isinstance(translate(error, self._address), StoreUnavailable):
            self.errors += 1

    async def _load(self, what: Script, client: Client, node: Any, script_on_node: _ScriptOnNode) -> None:
        where = {"target_nodes": node} if node else {}
        try:
            await client.execute_command("SCRIPT LOAD", what.source, **where)
        except ResponseError as error:
            self._warn("script cannot be loaded", what, error=str(error))
            return
        self.loads += 1
        self.reloaded += 1
        self._loaded_at[script_on_node] = self.loads
        if script_on_node[1] in self._nodes:
            self._warn("script was forgotten by the server and is loaded again", what)

    def _warn(self, event: str, what: Script, **facts: Any) -> None:
        now = monotonic()
        if now - self._warned.get((event, what.name), -QUIET_S) >= QUIET_S:
            self._warned[event, what.name] = now
            log.warning(event, script=what.name, **facts)


async def _load_in_one(client: Any, scripts: Sequence[Script]) -> list[Exception | None]:
    async with client.pipeline(transaction=False) as pipe:
        for what in scripts:
            pipe.script_load(what.source)
        answers = await pipe.execute(raise_on_error=False)
    return [answer if isinstance(answer, Exception) else None for answer in answers]


async def _load_on(node: Any, client: Any, scripts: Sequence[Script]) -> list[Exception | None]:
    """Load one script after the other: cluster pipelines cannot, and parallel calls would open many connections."""
    errors: list[Exception | None] = []
    for what in scripts:
        try:
            await client.execute_command("SCRIPT LOAD", what.source, target_nodes=node)
            errors.append(None)
        except ResponseError as error:
            errors.append(error)
    return errors
