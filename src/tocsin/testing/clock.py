"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime

from tocsin.model.durations import Duration, Millis, epoch_ms, millis, moment

START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """Scripts, sleeps and timeouts of an app with this clock see its time and no other."""

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

    # What the store and the engine ask

    def override(self) -> Millis | None:
        return self._now

    def server_ms(self) -> float:
        return float(self._now)

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        """Nothing to learn: this is the time."""

    def monotonic(self) -> float:
        return (self._now - self._start) / 1000
