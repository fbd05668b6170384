"""Agents that no live worker declares any more: the leader parks them when they are long overdue.

They would stand in `waiting` for ever, and look like a backlog. Parked they show, can be removed, and are not lost: a
worker that declares one again claims it by its name, also from there. So it does no harm that a deployment may be under
way. While a live worker does not say which agents it declares, because of its version or because it has just started,
none is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidConfig, QueueRepartitioning
from tocsin.model.ids import EXTRA, digest
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.declared_agents import DeclaredAgentSets
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.strays import StrayReader
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.unregistered")

# Pages of overdue agents that one pass looks at.
MOST_PAGES = 20
# So many are named in the log.
MOST_NAMED = 20


class UnregisteredAgents:
    """One pass: those that are overdue by the threshold and that nobody declares."""

    name = "unregistered"

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        threshold_ms: Millis,
        every_s: float,
        *,
        leading: Callable[[], bool],
        owns: Callable[[str], bool] = lambda member: True,
    ) -> None:
        """`owns`: whether an agent is this worker's to touch."""
        self.wake = asyncio.Event()
        self.parked = 0
        self._store = store
        self._fleet = fleet
        self._declared = DeclaredAgentSets(store)
        self._strays = StrayReader(store)
        self._threshold_ms = threshold_ms
        self._every_s = every_s
        self._leading = leading
        self._owns = owns

    async def step(self) -> float:
        queue = await self._find_queue() if self._leading() else None
        if queue is not None:
            workers = await self._fleet.workers()
            known = await self._declared.by(workers)
            if known is not None:
                # Only now: one that has just started keeps its set first, and tells of it with its next beat.
                await self._declared.forget_others(workers)
                await self._walk(queue, known)
        return self._every_s

    async def _find_queue(self) -> OpenQueue | None:
        try:
            return await self._store.find_queue(AGENTS_QUEUE)
        except (InvalidConfig, QueueRepartitioning):
            return None

    async def _walk(self, queue: OpenQueue, known: frozenset[int]) -> None:
        line, before, at = queue.keys[0]["waiting"], await self._store.now() - self._threshold_ms, 0
        for _ in range(MOST_PAGES):
            page: Sequence[bytes] = await self._store.run_repeatable(
                lambda client, at=at: client.zrangebyscore(line, "-inf", before, at, LARGEST_BATCH)  # type: ignore
            )
            orphans = [member for member in page if self._is_nobodys(member, known)]
            parked = await self._park(queue, orphans) if orphans and self._leading() else 0
            if len(page) < LARGEST_BATCH:
                return
            at += len(page) - parked

    def _is_nobodys(self, member: bytes, known: frozenset[int]) -> bool:
        """An extra run is left to its agent: nobody would look for it among those that are parked."""
        name = member.decode(errors="replace")
        return EXTRA not in name and digest(member) not in known and self._owns(name)

    async def _park(self, queue: OpenQueue, members: Sequence[bytes]) -> int:
        parked = await self._strays.park(queue, 0, members, self._threshold_ms)
        self.parked += parked
        if parked:
            log.warning(
                "agents are parked: no worker declares them any more. Deploy them again, or remove them with "
                "`tocsin jobs remove --queue agents --stage parked`",
                count=parked,
                agents=[member.decode(errors="replace") for member in members[:MOST_NAMED]],
            )
        return parked
