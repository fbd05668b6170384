"""Scripts that the server forgot: loaded again once, however many calls find out at the same time.

A restart, a failover or SCRIPT FLUSH makes a server forget. NOSCRIPT means that nothing ran, and a call that changes
state carries session and seq, so it may be sent again. Where loading does not help, the call is sent with its source.
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

# Between two warnings of one kind about one script.
QUIET_S = 60.0

# A script on a node of a cluster, or on the one server there is.
_Place: TypeAlias = tuple[str, str]


class ScriptReloader:
    """What one store does about its scripts, and how often it had to."""

    def __init__(self, address: Address) -> None:
        # Who notes `loads` before a call knows afterwards whether a script was loaded since then.
        self.loads = 0
        self.loaded = 0
        self.reloaded = 0
        self.fallbacks = 0
        self.errors = 0
        self._address = address
        self._loaded_at: dict[_Place, int] = {}
        # The nodes that had all scripts. One that joined since, or took over from another, has forgotten nothing.
        self._nodes = {""}
        self._loading = SharedCalls()
        self._warned: dict[tuple[str, str], float] = {}

    async def load_all(self, client: Client) -> None:
        """So that NOSCRIPT means, from then on, that the server forgot."""
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
        """After NOSCRIPT: the answer of the call, whose caller had noted `seen` loads before."""
        with as_redis_error():
            node = client.get_node_from_key(keys[0]) if isinstance(client, RedisCluster) else None
        place = what.sha, node.name if node else ""
        if self._loaded_at.get(place, 0) <= seen:
            # One load for all that found out, and one failure: a server that is away is waited for once.
            await self._loading.ask(place, lambda: self._load(what, client, node, place))
        try:
            return await client.evalsha(what.sha, len(keys), *keys, *args)
        except NoScriptError:
            self.fallbacks += 1
            self._warn("script is still unknown to the server and is sent in full, which is slower", what)
            return await client.eval(what.source, len(keys), *keys, *args)

    def count(self, error: Exception) -> None:
        """A call of a script failed: an error, unless the server is merely not available."""
        if not isinstance(translate(error, self._address), StoreUnavailable):
            self.errors += 1

    async def _load(self, what: Script, client: Client, node: Any, place: _Place) -> None:
        where = {"target_nodes": node} if node else {}
        try:
            await client.execute_command("SCRIPT LOAD", what.source, **where)
        except ResponseError as error:
            self._warn("script cannot be loaded", what, error=str(error))
            return
        self.loads += 1
        self.reloaded += 1
        self._loaded_at[place] = self.loads
        if place[1] in self._nodes:
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
    """One by one: a cluster has no pipeline for it, and many at once would open as many connections."""
    errors: list[Exception | None] = []
    for what in scripts:
        try:
            await client.execute_command("SCRIPT LOAD", what.source, target_nodes=node)
            errors.append(None)
        except ResponseError as error:
            errors.append(error)
    return errors
