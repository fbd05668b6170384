"""The only place that reads a clock.

Scripts use the server's time. A process needs to know it too, to sleep until a job is due: it keeps
the offset between its monotonic clock and the server's, fresh from each claim's reply.
"""

from __future__ import annotations

import time
from typing import Protocol

from tocsin.model.durations import Millis


class Clock(Protocol):
    """What the store and the engine ask of time."""

    def override(self) -> Millis | None:
        """The `now` that scripts must use, or None for the server's own."""

    def server_ms(self) -> float:
        """The server's time as this process believes it to be."""

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        """Learn from a reply: the server's time, and our monotonic time before and after."""

    def monotonic(self) -> float:
        """Seconds, for durations."""


class ServerClock:
    """Server time from the last observations, monotonic in between."""

    def __init__(self, trust_s: float = 10.0) -> None:
        # An observation older than this gives way to a newer one even if that took longer.
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
        # The shortest round trip has the least doubt about when the server looked at its clock.
        if round_trip <= self._round_trip or received - self._learnt > self._trust_s:
            self._offset_ms = server_ms - (sent + received) / 2 * 1000
            self._round_trip = round_trip
            self._learnt = received

    def monotonic(self) -> float:
        return time.monotonic()


# Seconds, for durations. The function itself: it is read around each run, and a call more would cost as much again.
monotonic = time.monotonic


def wall_ms() -> Millis:
    """This machine's own idea of now: for people, and for the age of a signature. No run is decided by it."""
    return int(time.time() * 1000)
