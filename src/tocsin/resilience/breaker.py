"""A circuit breaker: after too many failures, leave the other side alone for a while, then ask carefully.

CLOSED calls go through. `failure_threshold` failures within the window open it. With `in_a_row` so many failures
without a success between them open it too: calls that hang fail so slowly that the window never holds enough of them.
OPEN calls are blocked until the cooldown is over.
HALF_OPEN a few calls go through as probes. The first answer decides: success closes, failure opens for a full
cooldown. Without an answer by the half-open time, counted from the first probe, it opens again.

No timer moves it: what time has changed is found when somebody asks, and does not depend on how often that is.
For one event loop; it has no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NewType

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.errors import InvalidArgument, NodeUnavailable, StoreChanged, StoreError, StoreUnavailable

# So that one lost reply does not cost another cooldown, and a server that comes back is not stormed.
PROBES = 4

# Which period of the breaker a call belongs to. Each change of state begins a new one, and an answer to a call of
# an earlier one says nothing about now: it is ignored.
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
    """Quicker to trip and to try again than the acquisition breaker, whose settings these are."""
    return replace(
        s,
        failure_threshold=max(3, s.failure_threshold - 2),
        failure_window_ms=min(s.failure_window_ms, 5_000),
        cooldown_ms=max(1, s.cooldown_ms * 7 // 10),
        half_open_duration_ms=max(1, s.half_open_duration_ms * 6 // 10),
    )


class BreakerStatus(Struct, frozen=True):
    """`failures` are those in the window; `probe_in` is in seconds, 0 when a call may go now; the rest are totals."""

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
        # Failures since the last success; None: nobody counts them.
        self._in_a_row = 0 if in_a_row else None
        self._opened = 0.0
        self._probes = 0
        self._first_probe = 0.0
        self._trips = self._blocked = self._recoveries = 0
        # Calls failed, or the server did not answer, and none has succeeded since while the breaker was closed.
        self.failing = False
        self.away = False

    @property
    def state(self) -> BreakerState:
        self._catch_up(self._monotonic())
        return self._state

    def allow(self) -> Permit | None:
        """A permit to hand back with the answer; None: do not call. A call that gives no answer may keep it."""
        now = self._monotonic()
        self._catch_up(now)
        if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probes == PROBES):
            self._blocked += 1
            return None
        if self._state is BreakerState.HALF_OPEN:
            if not self._probes:
                # Not when the cooldown ended: nobody may have had a call to make.
                self._first_probe = now
            self._probes += 1
        return self._permit

    def succeeded(self, permit: Permit) -> None:
        # While closed, a success takes nothing out of the window: a server that fails every other call is as broken as
        # it looks.
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

    def forgive(self, permit: Permit) -> None:
        """A success that makes up for a failure: for another side on which some calls fail, whatever its state."""
        if permit == self._permit and self._failures:
            self._failures.popleft()

    def answered(self, permit: Permit, answers: Iterable[object]) -> None:
        """What came of the calls of one permit. That the server was wiped or replaced is an answer; that a script
        failed is not. One node that is away is no reason to stop what is done on the others of a cluster; the client
        leaves it alone by itself."""
        errors = [answer for answer in answers if isinstance(answer, StoreError)]
        if all(isinstance(error, StoreChanged | NodeUnavailable) for error in errors):
            self.succeeded(permit)
            # A late answer to a call from before it opened says nothing about the server now.
            if self._state is BreakerState.CLOSED:
                self.failing = self.away = False
        else:
            self.failed(permit)
            self.failing = True
            self.away = self.away or any(isinstance(error, StoreUnavailable) for error in errors)

    def probe_now(self) -> None:
        """The other side was heard of by another way: no need to wait for the rest of the cooldown."""
        self._catch_up(self._monotonic())
        if self._state is BreakerState.OPEN:
            self._enter(BreakerState.HALF_OPEN)

    def trip(self) -> None:
        """Open for a full cooldown, because others found the other side failing."""
        self._open(self._monotonic())

    def reset(self) -> None:
        """Closed at once, by a person who knows better. The totals stay."""
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
            # If none of them answers.
            return self._first_probe + self._half_open + self._cooldown - now
        return 0.0

    def _catch_up(self, now: float) -> None:
        """Do what time alone has changed since the last look."""
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
