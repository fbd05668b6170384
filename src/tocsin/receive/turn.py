"""The turn of one caller at one key: renewed while the work goes on, ended by an answer or given back."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError, TurnLost
from tocsin.receive.memory import Memory, TurnTaken

# A plain logger, as in any library: the receiver's program decides where its lines go.
log = logging.getLogger("tocsin.receive")

# Two renewals may fail before the lease is over.
_RENEWALS = 3


class Turn:
    """A context manager: leaving it without an answer, for any reason, gives the turn back.

    The answer is remembered under `memory_key`. Errors and log lines name `key`, which the caller knows.
    """

    def __init__(
        self,
        *,
        memory: Memory,
        key: str,
        memory_key: str,
        token: str,
        digest: bytes,
        lease_ms: Millis,
        keep_ms: Millis,
    ) -> None:
        self._memory = memory
        self._key = key
        self._memory_key = memory_key
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
        """Remember the answer. Raise TurnLost if another caller has the turn, or has answered."""
        self._over = True
        # Shielded: the work is done, so its answer is remembered even if the caller is cancelled.
        if not await asyncio.shield(self._remember(answer)):
            raise TurnLost(self._key)

    async def free(self) -> None:
        """Free the key for the next caller. Does nothing if the turn is over already."""
        if self._over:
            return
        self._over = True
        # Shielded: otherwise the next caller would wait for the end of the lease if the work was cancelled.
        await asyncio.shield(self._give_back())

    async def _remember(self, answer: bytes) -> bool:
        await self._stop_renewing()
        try:
            return await self._memory.answer(self._memory_key, self._token, self._digest, answer, self._keep_ms)
        except StoreError as error:
            # The work is done, so report success: a caller that gets an error would have the work done again. A caller
            # that gets the success does not ask again, unless its reply is lost too.
            log.warning("the answer for key %r is not remembered: %s", self._key, error)
            return True

    async def _give_back(self) -> None:
        await self._stop_renewing()
        try:
            await self._memory.free(self._memory_key, self._token)
        except StoreError as error:
            log.warning("key %r is free only when its lease is over: %s", self._key, error)

    async def _stop_renewing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None and not self._renewing.done():
            # A renewal under way could take a key again that is given back, or answered with a short keep.
            await asyncio.wait({self._renewing})

    def _arm(self) -> None:
        # A timer rather than a task: most work ends before it fires, and then no task is created.
        self._timer = asyncio.get_running_loop().call_later(self._lease_ms / 1000 / _RENEWALS, self._start_renewing)

    def _start_renewing(self) -> None:
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        try:
            held = await self._memory.take(self._memory_key, self._token, self._digest, self._lease_ms)
        except StoreError as error:
            log.warning("the lease of key %r is not renewed: %s", self._key, error)
        else:
            if not isinstance(held, TurnTaken):
                log.warning("another caller has taken the turn of key %r", self._key)
                return
        if not self._over:
            self._arm()
