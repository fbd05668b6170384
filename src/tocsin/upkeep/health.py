"""Health: whether a worker does what it should, in plain words, and four watchdogs for what goes wrong slowly.

A reading of the worker (`Snapshot`) goes in; state, reasons and signals come out. What fell due within the last cycle
is nobody's fault, so only work that has waited for longer speaks against the worker. One cycle is enough for DEGRADED,
three in a row for a signal.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreUnavailable
from tocsin.resilience.breaker import BreakerState
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.health")

# A signal needs so many cycles in a row, and is repeated so often while it lasts.
CYCLES = 3
WARN_EVERY_S = 60.0
# State changes are told no more often than this; the last one always is.
TELL_EVERY_S = 10.0


class HealthState(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"


class Snapshot(Struct, frozen=True, kw_only=True):
    """What one pass reads of a worker. Cumulative: the two `_cleaned`. Of the last cycle: acquired."""

    enabled: bool = True
    registered: int = 0
    active: int = 0
    scripts: int = 0
    ready: int = 0
    ready_is_estimate: bool = False
    oldest_overdue_s: float = 0.0
    # The average interval of what this worker runs; 0 if it has none.
    interval_s: float = 0.0
    # What one cycle can take, and permits; infinite for an unbounded worker.
    capacity_per_cycle: float = 0.0
    permits_free: float = 0.0
    permits_total: float = 0.0
    # Claimed and not started.
    backlog: int = 0
    acquired: int = 0
    acquisition_breaker: BreakerState = BreakerState.CLOSED
    redis_breaker: BreakerState = BreakerState.CLOSED
    zombies_cleaned: int = 0
    orphans_cleaned: int = 0
    queue_depth: int = 0
    stuck: int = 0
    # Seconds of the longest blockage of the event loop within the last minute.
    loop_blocked_s: float = 0.0
    # Permits that requests, messages and programs may hold; for how many seconds they held them all while others waited
    # and none ended; and runs that were handed back for want of one, in the last cycle.
    outside_limit: float = 0.0
    outside_still_s: float = 0.0
    outside_handed_back: int = 0
    # The server does not answer: ready, overdue and depth are from before.
    away: bool = False
    # The nodes of a cluster that do not answer, while others do.
    nodes_away: tuple[str, ...] = ()
    # The servers that are at their maxmemory.
    full: tuple[str, ...] = ()
    # Partitions that fail by themselves and rest, with what the server says.
    faults: tuple[str, ...] = ()
    # What an operator may want to do; no reason to call the worker degraded.
    advice: tuple[str, ...] = ()


class Health(Struct, frozen=True):
    """DEGRADED has at least one reason. HEALTHY may have one too: what an operator wants to see and asked for."""

    state: HealthState = HealthState.HEALTHY
    reasons: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        return self.state is HealthState.DEGRADED


class HealthLimits(Struct, frozen=True):
    """From where on it is too much. The first two are the alert thresholds of the seed."""

    ready_per_capacity: float = 10.0
    overdue_intervals: float = 2.0
    # What has been ready for less than this has not been missed.
    settled_s: float = 1.0
    # Of the slots that could have been filled in a cycle, less than this share is few.
    filled: float = 0.5
    # Of the permits, less than this share is few.
    permits_few: float = 0.1


DEFAULT_LIMITS = HealthLimits()


def assess(snapshot: Snapshot, limits: HealthLimits = DEFAULT_LIMITS) -> Health:
    """A worker that is disabled is not degraded: it does what it was told, and alerts are for what nobody wanted."""
    reasons = _out_of_order(snapshot)
    if not snapshot.enabled:
        return Health(_state(reasons), ("disabled by redis.scheduler.enabled: nothing is claimed", *reasons))
    if not snapshot.away:
        reasons += _behind(snapshot, limits)
    if snapshot.outside_still_s >= limits.settled_s:
        reasons.append(_hanging_outside(snapshot))
    return Health(_state(reasons), (*reasons, *_busy_outside(snapshot, limits), *snapshot.advice))


def _hanging_outside(s: Snapshot) -> str:
    return (
        f"requests, messages and programs hold all {s.outside_limit:.0f} permits that they may, and none has ended "
        f"for {s.outside_still_s:.0f} s: find the hosts that do not answer, and lower `http.max-timeout`"
    )


def _busy_outside(s: Snapshot, limits: HealthLimits) -> list[str]:
    """They come and go, but there are more of them than permits: nothing is wrong."""
    if not s.outside_handed_back or s.outside_still_s >= limits.settled_s:
        return []
    return [
        f"requests, messages and programs are at their limit of {s.outside_limit:.0f} permits: {s.outside_handed_back} "
        "runs were handed back within the last cycle, and come again"
    ]


def _state(reasons: list[str]) -> HealthState:
    return HealthState.DEGRADED if reasons else HealthState.HEALTHY


def _out_of_order(s: Snapshot) -> list[str]:
    reasons = []
    if s.away:
        reasons.append("the server is away")
    reasons += [f"node {name} of the cluster does not answer: what is on it stands still" for name in s.nodes_away]
    reasons += [f"{name} is at its maxmemory and refuses new jobs: raise maxmemory, or remove jobs" for name in s.full]
    reasons += s.faults
    breakers = {"acquisition": s.acquisition_breaker, "redis": s.redis_breaker}
    reasons += [
        f"the {name} breaker is {state}" for name, state in breakers.items() if state is not BreakerState.CLOSED
    ]
    if s.loop_blocked_s:
        reasons.append(
            f"the event loop was blocked for {s.loop_blocked_s:.1f} s within the last minute: the log has the stack"
        )
    if s.stuck:
        reasons.append(f"{s.stuck} runs are past their timeout in threads that cannot be stopped")
    return reasons


def _behind(s: Snapshot, limits: HealthLimits) -> list[str]:
    reasons = []
    # It may have taken more than was expected of it: quick handlers pass through a permit many times a cycle.
    capacity = max(s.capacity_per_cycle, s.acquired)
    if s.ready > limits.ready_per_capacity * capacity:
        reasons.append(
            f"backlog: {_ready(s)} jobs are ready, more than {limits.ready_per_capacity:g} times the "
            f"{_number(capacity)} that a cycle takes"
        )
    patience = max(limits.overdue_intervals * s.interval_s, limits.settled_s)
    if s.interval_s > 0 and s.oldest_overdue_s > patience:
        reasons.append(
            f"backlog: the oldest ready job waits for {s.oldest_overdue_s:.0f} s, more than "
            f"{limits.overdue_intervals:g} times the average interval of {s.interval_s:g} s"
        )
    if _slots_unfilled(s, limits):
        reasons.append(_slot_filling(s))
    return reasons


def _slots_unfilled(s: Snapshot, limits: HealthLimits) -> bool:
    """There are permits and work that has waited, and yet few were acquired."""
    fillable = min(s.permits_free, s.ready)
    return fillable >= 1 and s.oldest_overdue_s >= limits.settled_s and s.acquired < fillable * limits.filled


def _slot_filling(s: Snapshot) -> str:
    return f"slot filling: {s.acquired} acquired with {_number(s.permits_free)} permits free and {_ready(s)} jobs ready"


class Signal(StrEnum):
    PERMIT_LEAK_SUSPECT = "permit_leak_suspect"
    CAPACITY_SKEW = "capacity_skew"
    ZERO_PROGRESS = "zero_progress"
    REDIS_STALL = "redis_stall"


ACTIONS = {
    Signal.PERMIT_LEAK_SUSPECT: (
        "few permits are free, nothing runs and there is a backlog: "
        "dump the stacks of this process (py-spy dump --pid), consider a restart"
    ),
    Signal.CAPACITY_SKEW: (
        "permits are free and work is ready, but few runs are acquired: compare running and permits in `tocsin workers`"
    ),
    Signal.ZERO_PROGRESS: (
        "jobs of this worker are ready and none is acquired: look in the log for a heartbeat or passes that fail, "
        "and for a handler that blocks the event loop"
    ),
    Signal.REDIS_STALL: "a circuit breaker is not closed: check that the server can be reached and answers in time",
}


def suspicions(s: Snapshot, limits: HealthLimits = DEFAULT_LIMITS) -> set[Signal]:
    """Which signals' conditions hold in this reading."""
    found = set()
    if s.away or {s.acquisition_breaker, s.redis_breaker} != {BreakerState.CLOSED}:
        found.add(Signal.REDIS_STALL)
    if s.away or not s.enabled:
        return found
    few = s.permits_free < max(1.0, s.permits_total * limits.permits_few)
    # Permits that changed hands in this cycle are not lost: runs may end, or go back, as soon as they begin.
    if few and not s.active and not s.stuck and s.acquired < s.permits_total and (s.ready or s.backlog):
        found.add(Signal.PERMIT_LEAK_SUSPECT)
    if _slots_unfilled(s, limits):
        # Also when none was acquired: a worker that takes a few now and then has skew in every cycle.
        found.add(Signal.CAPACITY_SKEW)
        if not s.acquired:
            found.add(Signal.ZERO_PROGRESS)
    return found


class Watchdogs:
    """Signals that are raised after some cycles in a row, and fall with the first cycle that is otherwise."""

    def __init__(self, limits: HealthLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._cycles = dict.fromkeys(Signal, 0)
        self._warned = dict.fromkeys(Signal, -math.inf)

    @property
    def raised(self) -> tuple[Signal, ...]:
        return tuple(signal for signal, cycles in self._cycles.items() if cycles >= CYCLES)

    def look(self, snapshot: Snapshot, at: float) -> list[Signal]:
        """Take in a reading at `at` on the monotonic clock; those that are to be warned of now."""
        found = suspicions(snapshot, self._limits)
        self._cycles = {signal: cycles + 1 if signal in found else 0 for signal, cycles in self._cycles.items()}
        due = [signal for signal in self.raised if at - self._warned[signal] >= WARN_EVERY_S]
        self._warned |= dict.fromkeys(due, at)
        return due


def summary_line(snapshot: Snapshot, health: Health) -> str:
    """The fields of the seed in its order, with the reasons behind them where there are any."""
    s = snapshot
    line = (
        f"Scheduler health | health={health.state} | "
        f"[agents registered={s.registered} active=futures={s.active} scripts={s.scripts}] "
        f"[backlog ready={_ready(s)} oldest_overdue={s.oldest_overdue_s:.0f}s "
        f"capacity_per_cycle={_number(s.capacity_per_cycle)}] "
        f"[permits {_permits(s)}] "
        f"[cleanup zombies_cleaned={s.zombies_cleaned} orphans_cleaned={s.orphans_cleaned}] "
        f"queue_depth={s.queue_depth}"
    )
    return f"{line} | {'; '.join(health.reasons)}" if health.reasons else line


def _permits(s: Snapshot) -> str:
    if math.isinf(s.permits_total):
        return "unbounded"
    share = 100 * s.permits_free / s.permits_total if s.permits_total else 0.0
    return f"{s.permits_free:.0f}/{s.permits_total:.0f} ({share:.1f}%)"


def _ready(s: Snapshot) -> str:
    return f"~{s.ready}" if s.ready_is_estimate else str(s.ready)


def _number(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:.0f}"


Read = Callable[[], Snapshot | Awaitable[Snapshot]]


class HealthCheck:
    """One pass: read, assess, let the watchdogs look, tell what is new."""

    name = "health"

    def __init__(
        self, read: Read, clock: Clock, every_s: float, summary_s: float, limits: HealthLimits = DEFAULT_LIMITS
    ) -> None:
        """A summary each `summary_s`; none if that is 0 or less."""
        self.wake = asyncio.Event()
        self.snapshot = Snapshot()
        self.health = Health()
        self._read = read
        self._clock = clock
        self._every_s = every_s
        self._summary_s = summary_s
        self._limits = limits
        self._watchdogs = Watchdogs(limits)
        self._next_summary = clock.monotonic() + summary_s
        self._told = HealthState.HEALTHY
        self._next_telling = -math.inf
        self._unreadable = False

    @property
    def signals(self) -> tuple[Signal, ...]:
        return self._watchdogs.raised

    async def step(self) -> float:
        if await self._look():
            at = self._clock.monotonic()
            for signal in self._watchdogs.look(self.snapshot, at):
                log.warning("watchdog", signal=signal.value, action=ACTIONS[signal], **_facts(self.snapshot))
            self._tell_changes(at)
            self._tell_summary(at)
        return self._every_s

    async def _look(self) -> bool:
        """Whether there is a reading to go by. Health is asked for most when parts are broken: none may end it."""
        try:
            read = self._read()
            self.snapshot = await read if inspect.isawaitable(read) else read
            self.health = assess(self.snapshot, self._limits)
            self._unreadable = False
        except StoreUnavailable:
            self.snapshot = replace(self.snapshot, away=True)
            self.health = assess(self.snapshot, self._limits)
        except Exception as error:
            if not self._unreadable:
                log.error("health cannot be read", exc_info=error)
            self._unreadable = True
            self.health = Health(HealthState.DEGRADED, (f"health cannot be read: {type(error).__name__}: {error}",))
            return False
        return True

    def _tell_changes(self, at: float) -> None:
        if self.health.state is self._told or at < self._next_telling:
            return
        self._told, self._next_telling = self.health.state, at + TELL_EVERY_S
        if self.health.degraded:
            log.warning("worker is degraded", reasons=self.health.reasons)
        else:
            log.info("worker is healthy again")

    def _tell_summary(self, at: float) -> None:
        if self._summary_s <= 0 or at < self._next_summary:
            return
        self._next_summary = at + self._summary_s
        log.info(summary_line(self.snapshot, self.health), signals=[signal.value for signal in self.signals])


def _facts(s: Snapshot) -> dict[str, Any]:
    return {
        "ready": s.ready,
        "acquired": s.acquired,
        "running": s.active,
        "permits": _permits(s),
        "backlog": s.backlog,
        "breakers": f"acquisition {s.acquisition_breaker}, redis {s.redis_breaker}",
    }
