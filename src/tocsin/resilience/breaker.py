"""A circuit breaker: after too many failures it blocks calls to the other side for a while, then tries a few.

CLOSED: calls go through. `failure_threshold` failures within the window open the breaker. With `in_a_row`, that many
failures without a success in between open it too: hanging calls fail too slowly to fill the window.
OPEN: calls are blocked until the cooldown is over.
HALF_OPEN: a few calls go through as probes. The first answer decides: a success closes the breaker, a failure opens it
for a full cooldown. Without an answer within the half-open time after the first probe it opens again.

It needs no timer: each call first applies the changes that time has made, and the result does not depend on how often
it is called. Only for use on one event loop, because it has no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NewType

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.errors import InvalidArgument, NodeUnavailable, StoreChanged, StoreError, StoreUnavailable

# More than one, so that one lost reply does not cost another cooldown; few, to spare a server that is coming back.
PROBES = 4

# The period of the breaker that a call belongs to. Each change of state begins a new period, and the breaker ignores
# answers to calls of earlier periods, because they say nothing about the present.
Permit = NewType("Permit", int)


class BreakerState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class BreakerSettings(Struct, frozen=True):
    enabled: bool = True
    failure_threshold: int = 5
    failure_window_ms: int = 10_000
    cooldown_ms: int = 30_000
    half_open_duration_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in ("failure_threshold", "failure_window_ms", "cooldown_ms", "half_open_duration_ms"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} of a circuit breaker must be at least 1, not {getattr(self, name)!r}")


def redis_breaker_settings(s: BreakerSettings) -> BreakerSettings:
    """Derive the Redis breaker from the acquisition breaker's settings: it trips and tries again sooner."""
    return replace(
        s,
        failure_threshold=max(3, s.failure_threshold - 2),
        failure_window_ms=min(s.failure_window_ms, 5_000),
        cooldown_ms=max(1, s.cooldown_ms * 7 // 10),
        half_open_duration_ms=max(1, s.half_open_duration_ms * 6 // 10),
    )


class BreakerStatus(Struct, frozen=True):
    """`failures` counts those in the window. `probe_in`: seconds until a call may go, 0: now. The rest are totals."""

    state: BreakerState
    failures: int
    probe_in: float
    trips: int
    blocked: int
    recoveries: int


class Breaker:
    def __init__(self, settings: BreakerSettings, monotonic: Callable[[], float], *, in_a_row: bool = False) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._window = settings.failure_window_ms / 1000
        self._cooldown = settings.cooldown_ms / 1000
        self._half_open = settings.half_open_duration_ms / 1000
        self._state = BreakerState.CLOSED
        self._permit = Permit(1)
        self._failures: deque[float] = deque()
        # Failures since the last success; None if not counted.
        self._in_a_row = 0 if in_a_row else None
        self._opened = 0.0
        self._probes = 0
        self._first_probe = 0.0
        self._trips = self._blocked = self._recoveries = 0
        # Calls failed (failing) or the server did not answer (away), and no call has succeeded since while closed.
        self.failing = False
        self.away = False

    @property
    def state(self) -> BreakerState:
        self._catch_up(self._monotonic())
        return self._state

    def allow(self) -> Permit | None:
        """A permit to return with the answer; None: do not call. A call without an answer need not return it."""
        now = self._monotonic()
        self._catch_up(now)
        if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probes == PROBES):
            self._blocked += 1
            return None
        if self._state is BreakerState.HALF_OPEN:
            if not self._probes:
                # Counted from here, not from the end of the cooldown: there may have been no call to make since.
                self._first_probe = now
            self._probes += 1
        return self._permit

    def succeeded(self, permit: Permit) -> None:
        # While closed, a success removes no failure from the window: a server that fails every other call must open
        # the breaker.
        self._catch_up(self._monotonic())
        if permit != self._permit:
            return
        self._end_row()
        if self._state is BreakerState.HALF_OPEN:
            self._recoveries += 1
            self._close()

    def failed(self, permit: Permit) -> None:
        now = self._monotonic()
        self._catch_up(now)
        if permit != self._permit or not self._settings.enabled:
            return
        if self._state is BreakerState.HALF_OPEN:
            self._open(now)
            return
        self._failures.append(now)
        if self._in_a_row is not None:
            self._in_a_row += 1
        if max(len(self._failures), self._in_a_row or 0) >= self._settings.failure_threshold:
            self._open(now)

    def drop_oldest_failure(self, permit: Permit) -> None:
        """Let a success remove one failure, for hosts on which some calls always fail."""
        if permit == self._permit and self._failures:
            self._failures.popleft()

    def answered(self, permit: Permit, answers: Iterable[object]) -> None:
        """Record the answers to the calls of one permit. An error that the server was wiped or replaced counts as an
        answer, a failed script does not. One missing node of a cluster does not count as a failure, because work on
        the other nodes must go on; the client itself stops calling that node."""
        errors = [answer for answer in answers if isinstance(answer, StoreError)]
        if all(isinstance(error, StoreChanged | NodeUnavailable) for error in errors):
            self.succeeded(permit)
            # A late answer to a call from before the breaker opened says nothing about the server now.
            if self._state is BreakerState.CLOSED:
                self.failing = self.away = False
        else:
            self.failed(permit)
            self.failing = True
            self.away = self.away or any(isinstance(error, StoreUnavailable) for error in errors)

    def probe_now(self) -> None:
        """End the cooldown: there is other evidence that the other side is back."""
        self._catch_up(self._monotonic())
        if self._state is BreakerState.OPEN:
            self._enter(BreakerState.HALF_OPEN)

    def trip(self) -> None:
        """Open for a full cooldown, because other callers found the other side failing."""
        self._open(self._monotonic())

    def reset(self) -> None:
        """Close at once, on request of a person. The totals stay."""
        self._catch_up(self._monotonic())
        self._close()

    def status(self) -> BreakerStatus:
        now = self._monotonic()
        self._catch_up(now)
        return BreakerStatus(
            state=self._state,
            failures=len(self._failures),
            probe_in=self._probe_in(now),
            trips=self._trips,
            blocked=self._blocked,
            recoveries=self._recoveries,
        )

    def _probe_in(self, now: float) -> float:
        if self._state is BreakerState.OPEN:
            return self._opened + self._cooldown - now
        if self._probes == PROBES:
            # Assuming that no probe is answered.
            return self._first_probe + self._half_open + self._cooldown - now
        return 0.0

    def _catch_up(self, now: float) -> None:
        """Apply the changes that time alone has made since the last call."""
        while self._failures and now - self._failures[0] >= self._window:
            self._failures.popleft()
        if self._state is BreakerState.HALF_OPEN and self._probes and now >= self._first_probe + self._half_open:
            self._open(self._first_probe + self._half_open)
        if self._state is BreakerState.OPEN and now >= self._opened + self._cooldown:
            self._enter(BreakerState.HALF_OPEN)

    def _open(self, since: float) -> None:
        self._trips += 1
        self._opened = since
        self._enter(BreakerState.OPEN)

    def _close(self) -> None:
        self._failures.clear()
        self._enter(BreakerState.CLOSED)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._permit = Permit(self._permit + 1)
        self._probes = 0
        self._end_row()

    def _end_row(self) -> None:
        if self._in_a_row is not None:
            self._in_a_row = 0
