"""Checks a worker's health once per cycle, and logs signals, changes of state and summaries."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreUnavailable
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.health import (
    ACTIONS,
    DEFAULT_LIMITS,
    Health,
    HealthLimits,
    HealthState,
    Signal,
    Snapshot,
    Watchdogs,
    assess,
    permits_text,
    summary_line,
)

log = get_logger("tocsin.health")

# Changes of state are logged no more often than this; the last one always is.
LOG_EVERY_S = 10.0

Read = Callable[[], Snapshot | Awaitable[Snapshot]]


class HealthCheck:
    """Each pass reads the worker, judges the reading, and logs what changed."""

    name = "health"

    def __init__(
        self, read: Read, clock: Clock, every_s: float, summary_s: float, limits: HealthLimits = DEFAULT_LIMITS
    ) -> None:
        """Logs a summary every `summary_s`; none if that is 0 or less."""
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
        self._logged = HealthState.HEALTHY
        self._next_log = -math.inf
        self._unreadable = False

    @property
    def signals(self) -> tuple[Signal, ...]:
        return self._watchdogs.raised

    async def step(self) -> float:
        if await self._take_reading():
            at = self._clock.monotonic()
            for signal in self._watchdogs.observe(self.snapshot, at):
                log.warning("watchdog", signal=signal.value, action=ACTIONS[signal], **_facts(self.snapshot))
            self._log_change(at)
            self._log_summary(at)
        return self._every_s

    async def _take_reading(self) -> bool:
        """False if the worker could not be read. Health matters most when parts are broken, so no error may end it."""
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

    def _log_change(self, at: float) -> None:
        if self.health.state is self._logged or at < self._next_log:
            return
        self._logged, self._next_log = self.health.state, at + LOG_EVERY_S
        if self.health.degraded:
            log.warning("worker is degraded", reasons=self.health.reasons)
        else:
            log.info("worker is healthy again")

    def _log_summary(self, at: float) -> None:
        if self._summary_s <= 0 or at < self._next_summary:
            return
        self._next_summary = at + self._summary_s
        log.info(summary_line(self.snapshot, self.health), signals=[signal.value for signal in self.signals])


def _facts(s: Snapshot) -> dict[str, Any]:
    return {
        "ready": s.ready,
        "acquired": s.acquired,
        "running": s.active,
        "permits": permits_text(s),
        "backlog": s.backlog,
        "breakers": f"acquisition {s.acquisition_breaker}, redis {s.redis_breaker}",
    }
