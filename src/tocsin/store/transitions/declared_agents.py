"""Which agents the live workers declare.

A worker tells with each beat the name of its set of agents, and keeps what is in the set here: workers of one
deployment have the same. The names of agents are kept as digests: where two share one, the worst is that an agent
which nobody declares is taken for one that somebody does.
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
    """The same for the same agents. Empty for none."""
    ordered = sorted(agents)
    return hashlib.sha256("\0".join(ordered).encode()).hexdigest()[:16] if ordered else ""


class DeclaredAgentSets:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.keys.fleet()["declared"]

    async def keep(self, name: str, agents: Collection[str]) -> None:
        """Unless it is there already. Nothing for an empty set."""
        if not name or await self._store.run_repeatable(lambda c: c.hexists(self._key, name)):
            return
        digests = sorted(digest(agent.encode()) for agent in agents)
        await self._store.run_fleet_script(script("declared_note"), name, encode_digests(digests))

    async def by(self, workers: Sequence[WorkerRecord]) -> frozenset[int] | None:
        """The digests of all agents that these workers declare; None if one that runs agents does not say which."""
        told = {worker.about.agents for worker in workers if AGENTS_QUEUE in worker.about.queues}
        names = sorted(name for name in told if name)
        sets = await self._store.run_repeatable(lambda c: c.hmget(self._key, names)) if names else []
        if None in told or None in sets:
            return None
        return frozenset(number for packed in sets for number in decode_digests(packed))

    async def forget_others(self, workers: Sequence[WorkerRecord]) -> None:
        """Drop what none of these workers tells of."""
        used = {worker.about.agents for worker in workers}
        kept = await self._store.run_repeatable(lambda c: c.hkeys(self._key))
        unused = [name for name in (raw.decode(errors="replace") for raw in kept) if name not in used]
        if unused:
            await self._store.run_fleet_script(script("declared_forget"), msgpack.encode(unused[:LARGEST_BATCH]))
