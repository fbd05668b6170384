"""The election: at most one worker at a time leads the cleanup of a namespace.

A term is a key with an end. Whoever finds none takes it, and renews it after a third of its length. The end is the
server's to decide, so the leader trusts its term for two thirds only, counted on its own monotonic clock from before
it sent the call that was confirmed: the server cannot have begun to count any sooner. So a leader that was stopped,
cut off or slow has stepped down by its own clock before another can be elected, and a clock that is set anew on its
machine changes nothing.

What nobody can exclude is a stop between the look at the clock and the call that follows. Leading therefore only
spares work: each repair is a script that is right whoever calls it, and however often.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.elect")

RENEW = 1 / 3
TRUST = 2 / 3
# With no election to hold: how long to rest.
IDLE_S = 3600.0


class Elector:
    """One pass: take the term if it is free, renew it if it is ours."""

    name = "elect"

    def __init__(
        self,
        terms: LeaderKey,
        worker: Callable[[], str],
        clock: Clock,
        ttl_ms: Millis,
        *,
        force_all: bool = False,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        """`worker`: its present name. `on_lead`: called when this worker begins to lead."""
        self.wake = asyncio.Event()
        self._terms = terms
        self._worker = worker
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._force_all = force_all
        # Until when we trust our term, in monotonic seconds.
        self._until = -math.inf
        self._was_leading = False
        self._on_lead = on_lead
        self._left = False
        # A take that is under way must not arrive after the call that gives the term up.
        self._calling = asyncio.Lock()

    def leading(self) -> bool:
        return self._force_all or self._clock.monotonic() < self._until

    async def step(self) -> float:
        async with self._calling:
            if self._force_all or self._left:
                return IDLE_S
            sent, worker = self._clock.monotonic(), self._worker()
            term = await self._terms.take(worker, self._ttl_ms)
            ours = term.holder == worker
            self._until = sent + self._ttl_ms * TRUST / 1000 if ours else -math.inf
        self._tell(ours, term.holder)
        again = self._ttl_ms * RENEW if ours else min(self._ttl_ms * RENEW, term.left)
        return max(0.0, sent + again / 1000 - self._clock.monotonic())

    async def leave(self) -> bool:
        """Give the term up and stand no more. Whether it was ours: then the others should be told, or nobody leads
        until their next look. Raises StoreUnavailable: then it ends by itself."""
        was_ours = self._was_leading and not self._force_all
        self._left = True
        self._until = -math.inf
        async with self._calling:
            self._until = -math.inf
            if not self._force_all:
                await self._terms.leave(self._worker())
        return was_ours

    def _tell(self, ours: bool, holder: str) -> None:
        if ours and not self._was_leading:
            self._on_lead()
        if ours != self._was_leading:
            log.info("leads the cleanup" if ours else "leads the cleanup no more", leader=holder)
        self._was_leading = ours
