"""Bells and mail: the listener hears the bells of this worker's queues and reads its mail, instead of polling."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.store.transitions.fleet import BellReader
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.listen")

LONGEST_S = 5.0
# A worker without a permit leaves bells to others for this long. It remembers those that still ring then: its next
# permit may be for that queue.
LEFT_S = 0.1


class Mail(msgspec.Struct, frozen=True):
    """A message: cancel a run under this token, look at these partitions of queues, or lead if no worker does."""

    cancel: str = ""
    token: int = 0
    look: list[tuple[str, int]] = []
    elect: bool = False


class Claimer(Protocol):
    """What the listener needs of the fetcher."""

    wake: asyncio.Event

    def frees_soon(self) -> bool: ...


class Candidate(Protocol):
    """What the listener needs of the elector."""

    wake: asyncio.Event


class Listener:
    """One pass: one blocking read, then every bell that rang meanwhile. A bell makes its partition due."""

    name = "listen"

    def __init__(
        self,
        bells: BellReader,
        served: dict[str, ServedQueue],
        pool: RunnerPool,
        fetcher: Claimer,
        elector: Candidate | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        self._bells = bells
        self._served = served
        self._pool = pool
        self._fetcher = fetcher
        self._elector = elector
        self._seldom = LogThrottle()

    async def step(self) -> float:
        has_room = self._fetcher.frees_soon()
        heard = await self._bells.listen(LONGEST_S if has_room else LEFT_S, has_room)
        if isinstance(heard, dict):
            self._read(heard)
            return 0.0
        if heard is not None:
            self._hear([heard])
        if heard is not None or not has_room:
            # One blocking read hears only the first queue of those that rang.
            self._hear(await self._bells.take())
        return 0.0

    def _hear(self, bells: list[tuple[str, int]]) -> None:
        for queue, partition in bells:
            self._served[queue].mark_due(partition)
        if bells:
            self._fetcher.wake.set()

    def _read(self, message: dict[str, Any]) -> None:
        try:
            mail = msgspec.convert(message, Mail)
        except msgspec.ValidationError:
            mail = Mail()
        if mail.cancel:
            self._cancel(mail)
        elif mail.look:
            for queue, partition in mail.look:
                if queue in self._served and partition >= 0:
                    self._served[queue].mark_due_or_parked(partition)
            self._fetcher.wake.set()
        elif mail.elect:
            if self._elector is not None:
                self._elector.wake.set()
        else:
            self._complain(message)

    def _cancel(self, mail: Mail) -> None:
        for runner, unit in self._pool.running():
            if any(claim.token == mail.token and claim.member == mail.cancel for claim, _ in unit.all()):
                runner.stop("cancelled")

    def _complain(self, message: dict[str, Any]) -> None:
        """Limited, because another program may send any number of them."""
        if self._seldom():
            log.warning("mail or a bell that this version cannot read", message=repr(message)[:200])
