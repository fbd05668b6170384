"""Extra runs: finds the runs of this worker's agents that wait under ids of their own.

A worker claims agents by id. The extra runs of an agent (one that a person fired, or that its overlap rule made) have
ids that no timetable knows, so the queue is searched for them whenever a bell rang there.
"""

from __future__ import annotations

import math

from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.errors import StoreUnavailable
from tocsin.model.ids import EXTRA
from tocsin.resilience.breaker import Breaker, BreakerState
from tocsin.store.formats import not_before
from tocsin.store.store import LARGEST_BATCH, Store


class ExtraRunSearch:
    """Adds what it finds to the timetable of the queue."""

    def __init__(self, store: Store, breaker: Breaker, extra_attempts: float) -> None:
        """`extra_attempts`: how many pages more than one a search reads (`Batching.extra_attempts`)."""
        self._store = store
        self._breaker = breaker
        self._pages = 1 + math.ceil(extra_attempts)

    async def look(self, served: ServedQueue, now: float) -> None:
        """Say when the queue has work next, after a search if something happened there."""
        timetable = served.timetable
        assert timetable is not None
        served.follow()
        if timetable.curious and not served.asked:
            await self._search(served, timetable, now)
        served.plan(timetable.soonest())

    async def _search(self, served: ServedQueue, timetable: AgentTimetable, now: float) -> None:
        """While no agent is due, only these searches find out that the server does not answer, so the breaker hears of
        them. If the breaker opened because claims are refused, an answer to a search says nothing about claims."""
        breaker, permit = self._breaker, None
        if breaker.away or breaker.state is not BreakerState.HALF_OPEN:
            permit = breaker.allow()
            if permit is None:
                return
        timetable.curious = False
        try:
            await self._read_pages(served, timetable, now)
        except StoreUnavailable as error:
            if permit is not None:
                breaker.answered(permit, [error])
            raise
        if permit is not None:
            breaker.answered(permit, [])

    async def _read_pages(self, served: ServedQueue, timetable: AgentTimetable, now: float) -> None:
        """From where the last search ended. Search after search covers all that is due, even if most of it belongs to
        other workers."""
        line, at = served.queue.keys[0]["waiting"], timetable.looked_to
        timetable.looked_to = 0
        for _ in range(self._pages):
            page = await self._store.run_repeatable(
                lambda client, at=at: client.zrange(line, at, at + LARGEST_BATCH - 1, withscores=True)  # type: ignore
            )
            for member, score in page:
                name = member.decode(errors="replace")
                if EXTRA in name and score <= now and name in timetable:
                    timetable.expect(name, not_before(score))
            if len(page) < LARGEST_BATCH or page[-1][1] > now:
                return
            at += LARGEST_BATCH
        timetable.looked_to = at
