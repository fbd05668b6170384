"""The deadline sweep: one shared look at all deadlines, instead of a timer per run.

A run of a job is stopped at its deadline. A run that still goes on some time later is a zombie and is stopped again. An
agent may go on past its deadline, and has succeeded if it ends by itself: it is stopped only when it is a zombie, and
never without zombie cleanup.

Until a run is a zombie its claim is kept, so that no other worker starts it while it may yet end by itself. From then
on others may recover it, and the token refuses its late outcome. A thread cannot be stopped: after the stop it keeps
its claim and its permit, and counts as stuck.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import Struct

from tocsin.engine.finisher import Finisher
from tocsin.engine.incarnation import Incarnation
from tocsin.engine.runner_pool import UNSTARTED_S, Runner, RunnerPool
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.errors import ClaimLost, StoreError
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.sweep")

EVERY_S = 0.1
# A run that outlives its timeout extends its claim by this much at a time.
EXTENSION_S = 60.0
# How long a pass waits for the server to extend claims, and how soon a claim that was not extended is tried again: well
# before others recover it.
CALL_S = 1.0
AGAIN_S = 5.0
# A zombie that ends when it is stopped again has this long to be written before others recover it.
ENDING_S = 5.0


class OverrunLimits(Struct, frozen=True):
    """How long runs may take to end after their deadline."""

    # How many seconds past its deadline a run of this member is a zombie. None: no run ever is.
    zombie_after: Callable[[str], float] | None = None
    # How often a zombie is stopped again, and how many seconds a pass may spend on that; 0: no limit.
    interval_s: float = 300.0
    budget_s: float = 0.0
    # How far past its deadline a claim is recovered by others although its worker lives.
    recovered_s: float = 30.0
    agents_recovered_s: float = 600.0


class OverdueItem(Struct):
    """A unit past its deadline. Times are monotonic seconds."""

    # When to stop it, or stop it again: the first time as it becomes a zombie.
    stop_at: float
    # Until when to keep its claim, and when to extend it next.
    keep_until: float
    extend_at: float
    # Whether it was stopped.
    stopped: bool
    zombie: bool = False


class DeadlineSweep:
    """Stops runs past their deadline, releases units that do not start, cleans up zombies."""

    name = "sweep"

    def __init__(
        self,
        pool: RunnerPool,
        finisher: Finisher,
        incarnation: Incarnation,
        clock: Clock,
        limits: OverrunLimits | None = None,
        is_waking: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waking`: the event loop stood still until a moment ago."""
        self.wake = asyncio.Event()
        # Threads that outlive their timeout now; runs that became zombies since the start.
        self.stuck = 0
        self.zombies = 0
        self._late: dict[WorkItem, OverdueItem] = {}
        self._pool = pool
        self._finisher = finisher
        self._incarnation = incarnation
        self._clock = clock
        self._limits = limits or OverrunLimits()
        self._is_waking = is_waking

    async def step(self) -> float:
        now = self._clock.monotonic()
        for unit in self._pool.take_unstarted(now - UNSTARTED_S):
            self._finisher.release(unit)
        overdue = [(runner, unit) for runner, unit in self._pool.running() if unit.is_overdue(now)]
        if self._is_waking():
            # No run had a chance to end in time. Those that are done, or nearly done, may end first.
            overdue = [(runner, unit) for runner, unit in overdue if unit in self._late]
        known = [(runner, unit, self._late[unit]) for runner, unit in overdue if unit in self._late]
        # Stop all of them before the first await: a runner could be at another unit by then.
        self._late = {unit: self._late.get(unit) or self._begin_overdue(runner, unit, now) for runner, unit in overdue}
        self._stop_zombies(known, now)
        self.stuck = sum(late.stopped and not unit.handler.stoppable for unit, late in self._late.items())
        await self._keep_claims(known, now)
        return EVERY_S

    def _begin_overdue(self, runner: Runner, unit: WorkItem, now: float) -> OverdueItem:
        """Called when its deadline has just passed."""
        limits, stoppable, is_agent = self._limits, unit.handler.stoppable, unit.served.name == AGENTS_QUEUE
        recovered_s = limits.agents_recovered_s if is_agent else limits.recovered_s
        # As late as possible: people read in `working` until when the run should have ended.
        extend_at = max(now, unit.ends_at() + recovered_s - EXTENSION_S / 2)
        if not is_agent:
            self._stop(runner, unit)
            if not stoppable:
                return OverdueItem(stop_at=math.inf, keep_until=math.inf, extend_at=extend_at, stopped=True)
        if limits.zombie_after is None:
            return OverdueItem(stop_at=math.inf, keep_until=-math.inf, extend_at=extend_at, stopped=not is_agent)
        # A batch ends as a whole, so its most patient member decides.
        zombie_at = unit.ends_at() + max(limits.zombie_after(claim.member) for claim, _ in unit.all())
        keep_until = zombie_at + ENDING_S - recovered_s if stoppable else math.inf
        return OverdueItem(zombie_at, keep_until, extend_at, stopped=not is_agent)

    def _stop(self, runner: Runner, unit: WorkItem) -> None:
        runner.stop("timeout")
        if not unit.handler.stoppable:
            log.warning(
                "run is past its timeout and cannot be stopped: its permit stays taken until the thread ends",
                run=unit.claim.run_id,
                handler=unit.handler.name,
            )

    def _stop_zombies(self, known: list[tuple[Runner, WorkItem, OverdueItem]], now: float) -> None:
        budget = self._limits.budget_s
        for runner, unit, late in known:
            if late.stop_at > now:
                continue
            late.stop_at = now + self._limits.interval_s
            self._stop_again(runner, unit, late, now)
            if budget > 0 and self._clock.monotonic() - now >= budget:
                # The next pass continues with the others.
                return

    def _stop_again(self, runner: Runner, unit: WorkItem, late: OverdueItem, now: float) -> None:
        says = "run goes on although it was told to stop: it is told again, and others may recover it"
        if late.stopped:
            runner.cancel_again(unit)
        else:
            says = "agent is past its timeout by more than zombie-cleanup allows: it is told to stop"
            late.stopped = True
            self._stop(runner, unit)
        if not late.zombie:
            late.zombie = True
            self.zombies += 1
            past_s = round(now - unit.ends_at(), 1)
            log.warning(says, run=unit.claim.run_id, handler=unit.handler.name, past_s=past_s)

    async def _keep_claims(self, known: list[tuple[Runner, WorkItem, OverdueItem]], now: float) -> None:
        """One failure ends this for the pass: deadlines must be looked at even while the server is away."""
        for runner, unit, late in known:
            if not late.extend_at <= now < late.keep_until:
                continue
            late.extend_at = now + AGAIN_S
            try:
                async with asyncio.timeout(CALL_S):
                    held = await self._extend(runner, unit, min(EXTENSION_S, late.keep_until - now))
            except (StoreError, TimeoutError) as error:
                log.warning("cannot extend a run past its timeout", run=unit.claim.run_id, error=str(error))
                return
            late.extend_at = now + EXTENSION_S / 2 if held else math.inf

    async def _extend(self, runner: Runner, unit: WorkItem, by: float) -> bool:
        """Move its deadline in Redis while it lives, so that no other worker starts it. Whether any claim is still
        held."""
        held = False
        for claim, _ in unit.all():
            if runner.unit is not unit:
                # The unit has ended meanwhile.
                break
            try:
                await self._incarnation.runs.extend(unit.served.queue, claim, int(by * 1000))
                held = True
            except ClaimLost:
                if runner.unit is unit:
                    log.warning("run past its timeout was taken over by another worker", run=claim.run_id)
        return held
