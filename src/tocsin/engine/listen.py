"""The listener: hears the bells of this worker's queues and its mail, so that it need not poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tocsin.engine.pool import Pool
from tocsin.engine.unit import Lane
from tocsin.store.fleet import Ear
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.listen")

LONGEST_S = 5.0


class Listener:
    """One pass: one blocking read. A bell makes its partition due; mail asks to cancel a run, or to look somewhere."""

    name = "listen"

    def __init__(self, ear: Ear, lanes: dict[str, Lane], pool: Pool, on_bell: Callable[[], None]) -> None:
        self.wake = asyncio.Event()
        self._ear = ear
        self._lanes = lanes
        self._pool = pool
        self._on_bell = on_bell

    async def step(self) -> float:
        # Without a free permit a bell is left for a worker that has one.
        bells = self._pool.free() >= 1
        heard = await self._ear.listen(LONGEST_S if bells else 0.25, bells)
        if isinstance(heard, tuple):
            queue, partition = heard
            self._lanes[queue].hear(partition)
            self._on_bell()
        elif heard is not None:
            self._read(heard)
        return 0.0

    def _read(self, message: dict[str, Any]) -> None:
        if message.get("cancel"):
            for runner, unit in self._pool.running():
                if any(
                    claim.token == message["token"] and claim.member == message["cancel"] for claim, _ in unit.all()
                ):
                    runner.stop("cancelled")
        elif message.get("look"):
            for queue, partition in message["look"]:
                if queue in self._lanes:
                    self._lanes[queue].look(partition)
            self._on_bell()
        else:
            log.warning("mail that this version cannot read", message=message)
