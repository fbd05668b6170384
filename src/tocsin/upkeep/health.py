"""Judges the health of a worker: a state with reasons in plain words, and four watchdogs for slow failures.

A reading of the worker (`Snapshot`) goes in; state, reasons and signals come out. A worker cannot have started work
that became due within the last cycle, so only work that has waited for longer counts against it. One bad cycle makes a
worker DEGRADED; three in a row raise a signal.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

from tocsin.resilience.breaker import BreakerState

# A signal is raised after so many bad cycles in a row, and logged again this often while it lasts.
CYCLES = 3
WARN_EVERY_S = 60.0


class HealthState(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"


class Snapshot(Struct, frozen=True, kw_only=True):
    """One reading of a worker. The two `_cleaned` count since its start, `acquired` counts the last cycle."""

    enabled: bool = True
    registered: int = 0
    active: int = 0
    scripts: int = 0
    ready: int = 0
    ready_is_estimate: bool = False
    oldest_overdue_s: float = 0.0
    # The average interval of the worker's agents; 0 if it has none.
    interval_s: float = 0.0
    # How many runs one cycle can take, and the permits; infinite for an unbounded worker.
    capacity_per_cycle: float = 0.0
    permits_free: float = 0.0
    permits_total: float = 0.0
    # Runs that are claimed and not started.
    backlog: int = 0
    acquired: int = 0
    acquisition_breaker: BreakerState = BreakerState.CLOSED
    redis_breaker: BreakerState = BreakerState.CLOSED
    zombies_cleaned: int = 0
    orphans_cleaned: int = 0
    queue_depth: int = 0
    stuck: int = 0
    # Seconds for which the event loop was blocked at most within the last minute.
    loop_blocked_s: float = 0.0
    # The permits that requests, messages and programs may hold; for how many seconds they have held all of them while
    # others waited and none ended; and how many runs the last cycle handed back because no such permit was free.
    outside_limit: float = 0.0
    outside_still_s: float = 0.0
    outside_handed_back: int = 0
    # The server does not answer, so ready, overdue and depth are from before.
    away: bool = False
    # The nodes of a cluster that do not answer, while others do.
    nodes_away: tuple[str, ...] = ()
    # The servers that are at their maxmemory.
    full: tuple[str, ...] = ()
    # Why single partitions fail and rest, in the server's words.
    faults: tuple[str, ...] = ()
    # Advice for the operator that does not make the worker degraded.
    advice: tuple[str, ...] = ()


class Health(Struct, frozen=True):
    """DEGRADED always has a reason. HEALTHY may have one too: a state that the operator asked for, or advice."""

    state: HealthState = HealthState.HEALTHY
    reasons: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        return self.state is HealthState.DEGRADED


class HealthLimits(Struct, frozen=True):
    """The limits of a healthy worker. The first two are the alert thresholds of the agents' document."""

    ready_per_capacity: float = 10.0
    overdue_intervals: float = 2.0
    # Jobs that became ready less than this ago do not count against the worker.
    settled_s: float = 1.0
    # A cycle is bad if it fills less than this share of the slots that it could fill.
    filled: float = 0.5
    # Free permits are few below this share of all.
    permits_few: float = 0.1


DEFAULT_LIMITS = HealthLimits()


def assess(snapshot: Snapshot, limits: HealthLimits = DEFAULT_LIMITS) -> Health:
    """Judge a reading. A disabled worker is not degraded: its operator disabled it, so nobody needs an alert."""
    reasons = _broken(snapshot)
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
    """Note that deliveries outnumber their permits. They do end, so the worker is healthy."""
    if not s.outside_handed_back or s.outside_still_s >= limits.settled_s:
        return []
    return [
        f"requests, messages and programs are at their limit of {s.outside_limit:.0f} permits: {s.outside_handed_back} "
        "runs were handed back within the last cycle, and will be claimed again"
    ]


def _state(reasons: list[str]) -> HealthState:
    return HealthState.DEGRADED if reasons else HealthState.HEALTHY


def _broken(s: Snapshot) -> list[str]:
    reasons = []
    if s.away:
        reasons.append("the server is away")
    reasons += [f"node {name} of the cluster does not answer: its jobs stand still" for name in s.nodes_away]
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
    # A worker may take more than its capacity, because quick handlers use a permit many times in a cycle.
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
    """True if the worker acquired few runs although permits were free and jobs had waited."""
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
    """Return the signals whose conditions hold in this reading."""
    found = set()
    if s.away or {s.acquisition_breaker, s.redis_breaker} != {BreakerState.CLOSED}:
        found.add(Signal.REDIS_STALL)
    if s.away or not s.enabled:
        return found
    few = s.permits_free < max(1.0, s.permits_total * limits.permits_few)
    # Permits that were used in this cycle are not lost: runs may end, or be handed back, as soon as they begin.
    if few and not s.active and not s.stuck and s.acquired < s.permits_total and (s.ready or s.backlog):
        found.add(Signal.PERMIT_LEAK_SUSPECT)
    if _slots_unfilled(s, limits):
        # Zero acquired is skew too, so a worker that takes a few now and then has skew in every cycle.
        found.add(Signal.CAPACITY_SKEW)
        if not s.acquired:
            found.add(Signal.ZERO_PROGRESS)
    return found


class Watchdogs:
    """Raises a signal after CYCLES bad cycles in a row, and drops it with the first good one."""

    def __init__(self, limits: HealthLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._cycles = dict.fromkeys(Signal, 0)
        self._warned = dict.fromkeys(Signal, -math.inf)

    @property
    def raised(self) -> tuple[Signal, ...]:
        return tuple(signal for signal, cycles in self._cycles.items() if cycles >= CYCLES)

    def observe(self, snapshot: Snapshot, at: float) -> list[Signal]:
        """Take a reading made at `at` on the monotonic clock. Returns the signals to log now."""
        found = suspicions(snapshot, self._limits)
        self._cycles = {signal: cycles + 1 if signal in found else 0 for signal, cycles in self._cycles.items()}
        due = [signal for signal in self.raised if at - self._warned[signal] >= WARN_EVERY_S]
        self._warned |= dict.fromkeys(due, at)
        return due


def summary_line(snapshot: Snapshot, health: Health) -> str:
    """The fields of the agents' document in its order, then the reasons."""
    s = snapshot
    line = (
        f"Scheduler health | health={health.state} | "
        f"[agents registered={s.registered} active=futures={s.active} scripts={s.scripts}] "
        f"[backlog ready={_ready(s)} oldest_overdue={s.oldest_overdue_s:.0f}s "
        f"capacity_per_cycle={_number(s.capacity_per_cycle)}] "
        f"[permits {permits_text(s)}] "
        f"[cleanup zombies_cleaned={s.zombies_cleaned} orphans_cleaned={s.orphans_cleaned}] "
        f"queue_depth={s.queue_depth}"
    )
    return f"{line} | {'; '.join(health.reasons)}" if health.reasons else line


def permits_text(s: Snapshot) -> str:
    if math.isinf(s.permits_total):
        return "unbounded"
    share = 100 * s.permits_free / s.permits_total if s.permits_total else 0.0
    return f"{s.permits_free:.0f}/{s.permits_total:.0f} ({share:.1f}%)"


def _ready(s: Snapshot) -> str:
    return f"~{s.ready}" if s.ready_is_estimate else str(s.ready)


def _number(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:.0f}"
