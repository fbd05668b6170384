"""The runner pool: a fixed number of runner coroutines, and for each queue a line of units. A run costs no task, no
timeout and no round trip.

Queues take turns. A queue that holds less than its share of the permits goes before those that hold theirs, however
much these have waiting. Any queue may use the permits that no other wants.

All runners together may use a part of each turn of the event loop, then they wait for the next: replies of the server
are read meanwhile, and it gets more work while the handlers run. To stop a run, the pool cancels the runner inside its
handler; the runner catches the cancellation if it was asked to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any, Protocol

from tocsin.engine.failure_reports import FailureReports
from tocsin.engine.handlers import NotStarted, TryLater
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.signals import Signals
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock, monotonic
from tocsin.model.run import SUSPECT

# How much of a turn of the event loop is for handlers.
TURN_S = 0.002
# A unit that has not started this long after its claim is released: another worker may have a permit.
UNSTARTED_S = 0.25
# How long running handlers may take to end when the pool closes.
CLOSE_S = 1.0
# The weight of a new measurement of a handler against the earlier ones.
WEIGHT = 0.1


class OutcomeSink(Protocol):
    """Where outcomes go: the finisher."""

    def succeeded(self, unit: WorkItem, result: Any) -> None: ...
    def failed(self, unit: WorkItem, error: BaseException) -> None: ...
    def stopped(self, unit: WorkItem, reason: str) -> None: ...
    def release(self, unit: WorkItem, delay: float = 0.0) -> None: ...


class Runner:
    """One permit: executes unit after unit."""

    def __init__(self, pool: RunnerPool) -> None:
        self.unit: WorkItem | None = None
        # Why the unit in the handler was asked to end; empty if it was not.
        self.reason = ""
        self._pool = pool
        self._waiter: asyncio.Future[None] | None = None
        self.task = asyncio.create_task(self._run(), name="tocsin runner", context=copy_context())

    def stop(self, reason: str) -> None:
        """Ask the current unit to end. Only a unit that can be cancelled is; any other is flagged and goes on."""
        unit = self.unit
        if unit is None or self.reason:
            return
        self.reason = reason
        unit.set_cancelled()
        if unit.handler.stoppable:
            self.task.cancel()

    def cancel_again(self, unit: WorkItem) -> None:
        """Ask this unit again if it goes on after it was asked: its handler swallowed the cancellation."""
        if self.unit is unit and self.reason and unit.handler.stoppable:
            self.task.cancel()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        pool = self._pool
        while True:
            ended = monotonic()
            while pool.waiting and (ended < pool.turn_end or pool.begins_turn(ended)):
                # This is no coroutine of its own: making one costs as much as a short handler.
                started: float | None = ended
                unit = pool.next_unit()
                if unit.deadline <= pool.turn_began and pool.is_too_late(unit):
                    del unit
                    continue
                self.unit = unit
                try:
                    result = await unit.handler.deliver(unit)
                except BaseException as error:
                    # Also SystemExit and KeyboardInterrupt: a handler must not end the worker.
                    if self._is_cancelled(error):
                        raise
                    started = started if self._failed(unit, error) else None
                else:
                    if self.reason:
                        self._uncancel()
                    pool.sink.succeeded(unit, result)
                    del result
                ended = monotonic()
                self.unit = None
                self.reason = ""
                pool.release_permit(unit, started, ended)
                # A runner at rest holds nothing of its last unit.
                del unit
            self._waiter = asyncio.get_running_loop().create_future()
            pool.idle.append(self)
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _is_cancelled(self, error: BaseException) -> bool:
        """Whether to end the runner itself, not the run in the handler."""
        if isinstance(error, GeneratorExit):
            # Raised by the handler only if the task is at work; otherwise its coroutine is being closed.
            return not _is_at_work(self.task)
        return isinstance(error, asyncio.CancelledError) and not self.reason and self.task.cancelling() > 0

    def _failed(self, unit: WorkItem, error: BaseException) -> bool:
        """Report what the handler raised. Returns whether the time it took says something about the handler."""
        pool, reason = self._pool, self.reason
        if isinstance(error, TryLater):
            if error.is_trouble:
                pool.failures.not_started(unit, error)
            pool.sink.release(unit, error.delay)
            return False
        if isinstance(error, NotStarted):
            pool.not_started += 1
            pool.failures.not_started(unit, error)
            pool.sink.release(unit)
            return True
        if reason:
            self._uncancel()
        if reason and (reason != "timeout" or isinstance(error, asyncio.CancelledError)):
            # The run was interrupted: whatever it raises now, that is no failure of its own.
            pool.sink.stopped(unit, reason)
        else:
            # Also an unasked cancellation: the handler awaited something that another task cancelled.
            pool.sink.failed(unit, error)
        return True

    def _uncancel(self) -> None:
        # Without this `cancelling()` stays above zero and the next asyncio.timeout() of this task misbehaves.
        while self.task.uncancel():
            pass


class RunnerPool:
    """Runners, and the units that wait for one."""

    def __init__(
        self,
        permits: float,
        sink: OutcomeSink,
        signals: Signals,
        clock: Clock,
        failures: FailureReports,
    ) -> None:
        """`permits`: how many units may run at a time; 0 or less: any number."""
        self.permits = permits if permits > 0 else math.inf
        self.sink = sink
        # Gets each run that is released because it could not be started here.
        self.failures = failures
        # Units that wait for a runner, in the lines of these queues; the first queue is next.
        self.waiting = 0
        self._turns: deque[ServedQueue] = deque()
        # The weights of all queues that have units here.
        self.weight_at_work = 0
        self.idle: deque[Runner] = deque()
        self.runners: list[Runner] = []
        self._signals = signals
        self._clock = clock
        # When this turn began, by the clock of the deadlines.
        self.turn_began = 0.0
        # The fetcher could not claim for lack of room: signal when this many units are left.
        self._signal_at: int | None = None
        self.busy = 0
        # How many of these were recovered before, including those that the intake is about to submit; and how many are
        # suspects.
        self.recovered = 0
        self.suspects = 0
        self.ran = 0
        # Permits given back so far.
        self.left = 0
        # Claimed, and released because no runner could begin them.
        self.not_started = 0
        # Until when runners may begin another unit in this turn of the event loop, and whether one had to stop then.
        self.turn_end = 0.0
        self._used_up = False
        # Begin nothing while too many outcomes are not written.
        self.held = False
        # How many runners this turn woke, and whether the next turn is scheduled.
        self._woken = 0
        self._turning = False

    def submit(self, units: list[WorkItem]) -> None:
        for unit in units:
            served = unit.served
            if not served.line:
                self._turns.append(served)
            if unit.recovered:
                self.suspects += unit.claim.recoveries >= SUSPECT
                _put_first(unit, served.line)
            else:
                served.line.append(unit)
            if not served.busy:
                self.weight_at_work += served.weight
            served.busy += 1
        self.busy += len(units)
        self.waiting += len(units)
        while len(self.runners) < min(self.permits, self.busy):
            self.runners.append(Runner(self))
        if not self._turning:
            self._turn()

    def begins_turn(self, now: float) -> bool:
        """Whether a runner that leaves its handler after the turn's end may go on: not before the next turn."""
        if self._turning or self.held:
            self._used_up = True
            return False
        self._begin_turn(now)
        return True

    def _turn(self) -> None:
        """Wake a runner for waiting units; twice as many as last time if those all stayed in their handlers."""
        self._turning = False
        if self.held:
            return
        if not self.waiting:
            self._woken = 0
            return
        self._woken = 1 if self._used_up else max(1, self._woken * 2)
        if self.idle:
            for _ in range(min(self._woken, self.waiting, len(self.idle))):
                self.idle.popleft().wake()
            self._begin_turn(monotonic())
        # Otherwise the first runner that leaves its handler begins the turn.

    def _begin_turn(self, now: float) -> None:
        self.turn_end = now + TURN_S
        self.turn_began = self._clock.monotonic()
        self._used_up = False
        self._turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def next_unit(self) -> WorkItem:
        """Take a unit out of its line. There must be one."""
        turns = self._turns
        served = turns[0] if len(turns) == 1 else self._whose_turn()
        unit = served.line.popleft()
        if not served.line:
            turns.popleft()
        self.waiting -= 1
        served.running += 1
        return unit

    def _whose_turn(self) -> ServedQueue:
        """Of several queues. If all hold their share of the permits, there are spare ones, and the first queue gets
        one."""
        turns, share = self._turns, self.permits / self.weight_at_work
        for _ in range(len(turns)):
            served = turns[0]
            if served.turn_left and served.running < share * served.weight:
                served.turn_left -= 1
                return served
            served.turn_left = served.weight
            turns.rotate(-1)
        return turns[0]

    def is_too_late(self, unit: WorkItem) -> bool:
        """Its deadline passed while it waited for a runner: release it. If its timeout is shorter than any wait here,
        the timeout begins with the handler instead; otherwise a busy worker would release such a run for ever."""
        if unit.taken >= self.turn_began - UNSTARTED_S:
            unit.deadline += self.turn_began - unit.taken
            return False
        unit.served.running -= 1
        self._give_back_permit(unit)
        self.sink.release(unit)
        return True

    def signal_room_at(self, busy: int) -> None:
        """Signal once when no more than this many units are left."""
        self._signal_at = busy

    def hold(self) -> None:
        """Begin nothing more until `go_on`. Running handlers end as usual."""
        self.held = True
        self.turn_end = 0.0

    def go_on(self) -> None:
        self.held = False
        if self.waiting and not self._turning:
            self._turn()

    def free(self) -> float:
        """Permits that no unit holds or waits for."""
        return max(0.0, self.permits - self.busy)

    def take_unstarted(self, taken_before: float) -> list[WorkItem]:
        """Take out the units that were claimed before then and have not started."""
        old: list[WorkItem] = []
        for served in list(self._turns):
            # Recovered units come first, whenever they were claimed.
            late = [unit for unit in served.line if unit.taken < taken_before]
            if late:
                old += late
                served.line = deque(unit for unit in served.line if unit.taken >= taken_before)
            if not served.line:
                self._turns.remove(served)
        self.waiting -= len(old)
        for unit in old:
            self._give_back_permit(unit)
        return old

    def running(self) -> Iterator[tuple[Runner, WorkItem]]:
        for runner in self.runners:
            if runner.unit is not None:
                yield runner, runner.unit

    def keys_in_hand(self, served: ServedQueue) -> set[bytes]:
        """The runs of a queue that are inside their handlers or wait for a runner."""
        units = [*served.line, *(unit for _, unit in self.running() if unit.served is served)]
        return {claim.key for unit in units for claim, _ in unit.all()}

    def handler_in(self, task: asyncio.Task[object] | None) -> str:
        """The handler that this task is executing; '' if it is no runner. May be called on another thread."""
        units = [runner.unit for runner in tuple(self.runners) if runner.task is task]
        return next((unit.handler.name for unit in units if unit is not None), "")

    def release_permit(self, unit: WorkItem, started: float | None = None, ended: float = 0.0) -> None:
        """A runner is done with a unit. `started`: when the handler began; None: its time says nothing about the
        handler."""
        if started is not None:
            handler, took = unit.handler, ended - started
            handler.mean += (took - handler.mean) * WEIGHT
            handler.tally.duration.add(took)
            self.ran += 1 if unit.others is None else unit.size()
        unit.served.running -= 1
        self._give_back_permit(unit)

    def _give_back_permit(self, unit: WorkItem) -> None:
        served = unit.served
        self.left += 1
        self.busy -= 1
        served.busy -= 1
        if not served.busy:
            self.weight_at_work -= served.weight
        if unit.recovered:
            self.recovered -= 1
            self.suspects -= unit.claim.recoveries >= SUSPECT
        if self._signal_at is not None and self.busy <= self._signal_at:
            self._signal_at = None
            self._signals.room_free()

    async def close(self) -> None:
        """End the runners and whatever still runs."""
        for runner in self.runners:
            # So that this cancellation does not count as the end of a stopped run.
            runner.reason = ""
            runner.task.cancel()
        ending = [runner.task for runner in self.runners]
        if ending:
            _, stubborn = await asyncio.wait(ending, timeout=CLOSE_S)
            for task in stubborn:
                # Its handler swallows cancellations, so ending the event loop would wait for it for ever.
                with contextlib.suppress(RuntimeError):
                    task.get_coro().close()
                task.cancel()
            await asyncio.wait(ending, timeout=CLOSE_S)
            for task in stubborn:
                if task.done() and not task.cancelled():
                    # asyncio found its coroutine closed. It logs that error unless somebody asks for it.
                    task.exception()
        self.runners.clear()
        self.idle.clear()


def _is_at_work(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        # The event loop is gone.
        return False


def _put_first(unit: WorkItem, line: deque[WorkItem]) -> None:
    """Put it before all units that were never recovered: it is older, and waits for the next permit only."""
    ahead = 0 if not line or not line[-1].recovered else len(line)
    while ahead < len(line) and line[ahead].recovered:
        ahead += 1
    line.insert(ahead, unit)
