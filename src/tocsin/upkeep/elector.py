"""Elects the leader: at most one worker at a time leads the cleanup of a namespace.

A term is a key that expires. A worker that finds no such key takes the term, and renews it after a third of its length.
The server decides when the term ends, so the leader trusts it for only two thirds of its length. It counts these on its
own monotonic clock, from before it sent the call that the server confirmed: the server cannot have started to count any
sooner. So a leader that was stopped, cut off or slow steps down by its own clock before another worker can be elected.
Setting the wall clock of its machine changes nothing.

A process can still be stopped between its check of the clock and its next call. Leadership therefore only saves work:
each repair is a script that is correct no matter which worker calls it, and how often.
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
# The rest between passes when there is no term to take.
IDLE_S = 3600.0


class Elector:
    """Each pass takes the term if it is free, and renews it if it is ours."""

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
        """`worker` returns its present name. `on_lead` is called when this worker becomes the leader."""
        self.wake = asyncio.Event()
        self._terms = terms
        self._worker = worker
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._force_all = force_all
        # Until when we trust our term, in monotonic seconds.
        self._trusted_until = -math.inf
        self._was_leading = False
        self._on_lead = on_lead
        self._resigned = False
        # A call that takes the term must not reach the server after the call that gives it up.
        self._calling = asyncio.Lock()

    def leading(self) -> bool:
        return self._force_all or self._clock.monotonic() < self._trusted_until

    async def step(self) -> float:
        async with self._calling:
            if self._force_all or self._resigned:
                return IDLE_S
            sent, worker = self._clock.monotonic(), self._worker()
            term = await self._terms.take(worker, self._ttl_ms)
            ours = term.holder == worker
            self._trusted_until = sent + self._ttl_ms * TRUST / 1000 if ours else -math.inf
        self._note_leader(ours, term.holder)
        again = self._ttl_ms * RENEW if ours else min(self._ttl_ms * RENEW, term.left)
        return max(0.0, sent + again / 1000 - self._clock.monotonic())

    async def leave(self) -> bool:
        """Give the term up and never take it again. True if it was ours: then wake the other workers, or nobody leads
        until their next pass. After StoreUnavailable the term expires by itself."""
        was_ours = self._was_leading and not self._force_all
        self._resigned = True
        self._trusted_until = -math.inf
        async with self._calling:
            self._trusted_until = -math.inf
            if not self._force_all:
                await self._terms.leave(self._worker())
        return was_ours

    def _note_leader(self, ours: bool, holder: str) -> None:
        if ours and not self._was_leading:
            self._on_lead()
        if ours != self._was_leading:
            log.info("leads the cleanup" if ours else "leads the cleanup no more", leader=holder)
        self._was_leading = ours
