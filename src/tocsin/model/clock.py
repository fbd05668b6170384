"""The only place that reads a clock.

Scripts use the server's time. A process must know it too, to sleep until a job is due, so it keeps the offset between
its monotonic clock and the server's clock and updates it from each claim's reply.
"""

from __future__ import annotations

import time
from typing import Protocol

from tocsin.model.durations import Millis


class Clock(Protocol):
    """The time as the store and the engine see it."""

    def override(self) -> Millis | None:
        """The time that scripts must use, or None for the server's own time."""

    def server_ms(self) -> float:
        """This process's estimate of the server's time."""

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        """Learn from a reply: `sent` and `received` are our monotonic time before and after the call."""

    def monotonic(self) -> float:
        """Seconds, for durations."""


class ServerClock:
    """Estimates server time from the last good observation and our monotonic clock."""

    def __init__(self, trust_s: float = 10.0) -> None:
        # After this long a newer observation replaces the kept one even if its round trip was longer.
        self._trust_s = trust_s
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000
        self._round_trip = float("inf")
        self._learnt = float("-inf")

    def override(self) -> Millis | None:
        return None

    def server_ms(self) -> float:
        return time.monotonic() * 1000 + self._offset_ms

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        round_trip = received - sent
        # The shorter the round trip, the more exactly we know when the server read its clock.
        if round_trip <= self._round_trip or received - self._learnt > self._trust_s:
            self._offset_ms = server_ms - (sent + received) / 2 * 1000
            self._round_trip = round_trip
            self._learnt = received

    def monotonic(self) -> float:
        return time.monotonic()


# Seconds, for durations. An alias and no wrapper: each run reads it, and one more call would double the cost.
monotonic = time.monotonic


def wall_ms() -> Millis:
    """This machine's own clock: for output to people and the age of signatures. No decision about a run uses it."""
    return int(time.time() * 1000)
