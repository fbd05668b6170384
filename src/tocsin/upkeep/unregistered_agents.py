"""Parks agents that are long overdue and that no live worker declares any more. The leader does this.

Such agents would stay in `waiting` for ever and look like a backlog. Parked agents are visible, can be removed, and are
not lost: a worker that declares one again claims it by its name, also from `parked`. So parking does no harm during a
deployment. While a live worker does not say which agents it declares, because of its version or because it has just
started, no agent is parked.
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

# How many pages of overdue agents one pass reads.
MOST_PAGES = 20
# How many agents the log names.
MOST_NAMED = 20


class UnregisteredAgents:
    """Each pass parks the agents that are overdue by the threshold and that nobody declares."""

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
        """`owns` says whether this worker may touch an agent."""
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
            declared = await self._declared.by(workers)
            if declared is not None:
                # Remove unused sets only when every worker names its set: a worker that has just started stores its set
                # first, and names it with its next heartbeat.
                await self._declared.forget_others(workers)
                await self._walk(queue, declared)
        return self._every_s

    async def _find_queue(self) -> OpenQueue | None:
        try:
            return await self._store.find_queue(AGENTS_QUEUE)
        except (InvalidConfig, QueueRepartitioning):
            return None

    async def _walk(self, queue: OpenQueue, declared: frozenset[int]) -> None:
        waiting, before, at = queue.keys[0]["waiting"], await self._store.now() - self._threshold_ms, 0
        for _ in range(MOST_PAGES):
            page: Sequence[bytes] = await self._store.run_repeatable(
                lambda client, at=at: client.zrangebyscore(waiting, "-inf", before, at, LARGEST_BATCH)  # type: ignore
            )
            undeclared = [member for member in page if self._is_undeclared(member, declared)]
            parked = await self._park(queue, undeclared) if undeclared and self._leading() else 0
            if len(page) < LARGEST_BATCH:
                return
            at += len(page) - parked

    def _is_undeclared(self, member: bytes, declared: frozenset[int]) -> bool:
        """False for extra runs, because no worker claims those from `parked`."""
        name = member.decode(errors="replace")
        return EXTRA not in name and digest(member) not in declared and self._owns(name)

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
