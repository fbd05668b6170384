"""Which agents the live workers declare.

Each beat of a worker has the name of its set of agents, and the set itself is kept here: all workers of a deployment
have the same one. The agents are kept as digests. If two agents share a digest, at worst an agent that nobody declares
counts as declared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence

from tocsin.model import msgpack
from tocsin.model.ids import digest
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.formats import decode_digests, encode_digests
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, Store
from tocsin.store.transitions.fleet import WorkerRecord


def set_name(agents: Iterable[str]) -> str:
    """Equal sets have equal names. Empty for no agents."""
    ordered = sorted(agents)
    return hashlib.sha256("\0".join(ordered).encode()).hexdigest()[:16] if ordered else ""


class DeclaredAgentSets:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.keys.fleet()["declared"]

    async def keep(self, name: str, agents: Collection[str]) -> None:
        """Store the set, unless it is there already or empty."""
        if not name or await self._store.run_repeatable(lambda c: c.hexists(self._key, name)):
            return
        digests = sorted(digest(agent.encode()) for agent in agents)
        await self._store.run_fleet_script(script("declared_note"), name, encode_digests(digests))

    async def by(self, workers: Sequence[WorkerRecord]) -> frozenset[int] | None:
        """The digests of all agents that these workers declare; None if one that runs agents does not say which."""
        names_of_sets = {worker.about.agents for worker in workers if AGENTS_QUEUE in worker.about.queues}
        names = sorted(name for name in names_of_sets if name)
        sets = await self._store.run_repeatable(lambda c: c.hmget(self._key, names)) if names else []
        if None in names_of_sets or None in sets:
            return None
        return frozenset(number for packed in sets for number in decode_digests(packed))

    async def forget_others(self, workers: Sequence[WorkerRecord]) -> None:
        """Drop the sets that none of these workers names."""
        used = {worker.about.agents for worker in workers}
        kept = await self._store.run_repeatable(lambda c: c.hkeys(self._key))
        unused = [name for name in (raw.decode(errors="replace") for raw in kept) if name not in used]
        if unused:
            await self._store.run_fleet_script(script("declared_forget"), msgpack.encode(unused[:LARGEST_BATCH]))
