"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime

from tocsin.model.durations import Duration, Millis, epoch_ms, millis, moment

START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """Scripts, sleeps and timeouts of an app with this clock go by its time only."""

    def __init__(self, start: datetime = START) -> None:
        self._start = self._now = epoch_ms(start)

    @property
    def now(self) -> datetime:
        return moment(self._now)

    @property
    def ms(self) -> Millis:
        return self._now

    def advance(self, by: Duration) -> None:
        self._now += millis(by, "a step of the clock")

    def move_to(self, when: datetime) -> None:
        """Also backwards, as real clocks do."""
        self._now = epoch_ms(when)

    # Called by the store and the engine

    def override(self) -> Millis | None:
        return self._now

    def server_ms(self) -> float:
        return float(self._now)

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        """Ignore the server's time: this clock is the time."""

    def monotonic(self) -> float:
        return (self._now - self._start) / 1000
