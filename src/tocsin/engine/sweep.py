"""The sweep: one shared look at all deadlines, instead of a timer per run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tocsin.engine.finish import Finisher
from tocsin.engine.pool import Pool, Runner
from tocsin.engine.unit import Unit
from tocsin.model.clock import Clock
from tocsin.model.errors import ClaimLost, StoreError
from tocsin.store.runs import Runs

log = structlog.get_logger("tocsin.sweep")

EVERY_S = 0.1
# What is claimed and not started by then goes back: another worker may have a permit.
UNSTARTED_S = 0.25
# A thread that outlives its timeout keeps its claim by this much at a time.
EXTENSION_S = 60.0


class Sweep:
    """Stops runs that are past their deadline, hands back what does not start, keeps the claims of stuck threads."""

    name = "sweep"

    def __init__(self, pool: Pool, finisher: Finisher, runs: Callable[[], Runs], clock: Clock) -> None:
        self.wake = asyncio.Event()
        # Threads that outlive their timeout, and when their claim is to be extended next.
        self._stuck: dict[Unit, float] = {}
        self._pool = pool
        self._finisher = finisher
        self._runs = runs
        self._clock = clock

    async def step(self) -> float:
        now = self._clock.monotonic()
        for unit in self._pool.withdraw(now - UNSTARTED_S):
            self._finisher.release(unit)
        overdue = [(runner, unit) for runner, unit in self._pool.running() if unit.deadline <= now]
        for runner, unit in overdue:
            await self._past_deadline(runner, unit, now)
        alive = {unit for _, unit in overdue}
        self._stuck = {unit: at for unit, at in self._stuck.items() if unit in alive}
        return EVERY_S

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    async def _past_deadline(self, runner: Runner, unit: Unit, now: float) -> None:
        runner.stop("timeout")
        if unit.handler.stoppable:
            return
        if unit not in self._stuck:
            log.warning(
                "run is past its timeout and cannot be stopped: its permit stays taken until the thread ends",
                run=unit.claim.run_id,
                handler=unit.handler.name,
            )
            self._stuck[unit] = 0.0
        if self._stuck[unit] <= now:
            self._stuck[unit] = now + EXTENSION_S / 2
            await self._extend(unit)

    async def _extend(self, unit: Unit) -> None:
        """In Redis its deadline moves on while the thread lives, so that nobody starts it twice."""
        for claim, _ in unit.all():
            try:
                await self._runs().extend(unit.lane.queue, claim, int(EXTENSION_S * 1000))
            except ClaimLost:
                log.warning("stuck run was taken over by another worker", run=claim.run_id)
            except StoreError as error:
                log.warning("cannot extend a stuck run", run=claim.run_id, error=str(error))
