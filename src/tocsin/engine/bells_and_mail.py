"""The listener: hears the bells of this worker's queues and its mail, so that it need not poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.store.transitions.fleet import BellReader
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.listen")

LONGEST_S = 5.0
# A worker without a permit leaves bells to the others for so long. Those that still ring then are for it to remember:
# its next permit may be for that queue.
LEFT_S = 0.1


class Mail(msgspec.Struct, frozen=True):
    """A message: cancel a run under this token, look at these partitions of queues, or lead if nobody does."""

    cancel: str = ""
    token: int = 0
    look: list[tuple[str, int]] = []
    elect: bool = False


class Listener:
    """One pass: one blocking read, and all bells that ring by then. A bell makes its partition due; mail asks to cancel
    a run, to look somewhere, or to lead the cleanup if nobody does."""

    name = "listen"

    def __init__(
        self,
        ear: BellReader,
        queues: dict[str, ServedQueue],
        pool: RunnerPool,
        has_room: Callable[[], bool],
        on_bell: Callable[[], None],
        on_election: Callable[[], None] = lambda: None,
    ) -> None:
        self.wake = asyncio.Event()
        self._ear = ear
        self._served = queues
        self._pool = pool
        self._has_room = has_room
        self._on_bell = on_bell
        self._seldom = LogThrottle()
        self._on_election = on_election

    async def step(self) -> float:
        has_room = self._has_room()
        heard = await self._ear.listen(LONGEST_S if has_room else LEFT_S, has_room)
        if isinstance(heard, dict):
            self._read(heard)
            return 0.0
        if heard is not None:
            self._hear([heard])
        if heard is not None or not has_room:
            # Whatever else rang: one blocking read hears the first queue of those that rang, and only that.
            self._hear(await self._ear.take())
        return 0.0

    def _hear(self, bells: list[tuple[str, int]]) -> None:
        for queue, partition in bells:
            self._served[queue].mark_due(partition)
        if bells:
            self._on_bell()

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
            self._on_bell()
        elif mail.elect:
            self._on_election()
        else:
            self._complain(message)

    def _cancel(self, mail: Mail) -> None:
        for runner, unit in self._pool.running():
            if any(claim.token == mail.token and claim.member == mail.cancel for claim, _ in unit.all()):
                runner.stop("cancelled")

    def _complain(self, message: dict[str, Any]) -> None:
        """Somebody else may send any number."""
        if self._seldom():
            log.warning("mail or a bell that this version cannot read", message=repr(message)[:200])
