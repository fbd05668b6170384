"""The turn of one caller at one key: kept while the work goes on, ended by an answer or given back."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError, TurnLost
from tocsin.receive.memory import Memory, TurnTaken

# As every library in another's program logs: it is for that program to say where to.
log = logging.getLogger("tocsin.receive")

# Two renewals may fail before the lease is over.
_RENEWALS = 3


class Turn:
    """As a context: whoever leaves it without an answer, for whatever reason, gives the turn back.

    `place` is where it is remembered; `key` is what the caller calls it, in errors and log lines.
    """

    def __init__(
        self, memory: Memory, key: str, place: str, token: str, digest: bytes, lease_ms: Millis, keep_ms: Millis
    ) -> None:
        self._memory = memory
        self._key = key
        self._place = place
        self._token = token
        self._digest = digest
        self._lease_ms = lease_ms
        self._keep_ms = keep_ms
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.free()

    async def answer(self, answer: bytes) -> None:
        """Remember it. Raise TurnLost if another has the turn, or has answered."""
        self._over = True
        # Also when the caller is cancelled meanwhile: the work is done.
        if not await asyncio.shield(self._remember(answer)):
            raise TurnLost(self._key)

    async def free(self) -> None:
        """Let the next one try. Nothing happens if the turn is over already."""
        if self._over:
            return
        self._over = True
        # Also when the work was cancelled: else the next one would wait for the end of the lease.
        await asyncio.shield(self._give_back())

    async def _remember(self, answer: bytes) -> bool:
        await self._stop_renewing()
        try:
            return await self._memory.answer(self._place, self._token, self._digest, answer, self._keep_ms)
        except StoreError as error:
            # What was done is done. Whoever is told of a failure would have it done again; who is told of the success
            # will not ask again, unless that gets lost too.
            log.warning("the answer for key %r is not remembered: %s", self._key, error)
            return True

    async def _give_back(self) -> None:
        await self._stop_renewing()
        try:
            await self._memory.free(self._place, self._token)
        except StoreError as error:
            log.warning("key %r is free only when its lease is over: %s", self._key, error)

    async def _stop_renewing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None and not self._renewing.done():
            # One that is under way could take again what is given back, or was kept for a short time only.
            await asyncio.wait({self._renewing})

    def _arm(self) -> None:
        # A timer, because most work ends before it: then no task is made at all.
        self._timer = asyncio.get_running_loop().call_later(self._lease_ms / 1000 / _RENEWALS, self._start_renewing)

    def _start_renewing(self) -> None:
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            held = await self._memory.take(self._place, self._token, self._digest, self._lease_ms)
        except StoreError as error:
            log.warning("the lease of key %r is not renewed: %s", self._key, error)
        else:
            if not isinstance(held, TurnTaken):
                log.warning("the turn of key %r is lost to another", self._key)
                return
        if not self._over:
            self._arm()
