"""Outcomes that the server has not confirmed: runs that a crash would repeat.

There may be no more than are written in a moment. Beyond that the pool begins nothing until half of them are written,
and the fetcher, whose permits stay taken, claims nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.engine.throughput import HEADROOM, Throughput
from tocsin.model.clock import Clock

MOMENT_S = 0.05
# However quick or slow the writing is.
FEWEST, MOST = 400, 5000


class UnwrittenOutcomes:
    def __init__(self, clock: Clock) -> None:
        self.count = 0
        # With so many `on_full` is called, with half as many `on_room`.
        self.most = MOST
        self.full = False
        self.on_full: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self._clock = clock
        self._written = 0
        self._pace = Throughput()

    def add(self) -> None:
        self.count += 1
        if self.count >= self.most and not self.full:
            self.full = True
            self.on_full()

    def wrote(self, count: int) -> None:
        """Or they were given up."""
        self.count -= count
        self._written += count
        self._pace.look(self._written, self._clock.monotonic())
        # The pace is what it may be, not what it was: it has headroom.
        most = self._pace.rate * MOMENT_S / HEADROOM
        self.most = int(min(max(most, FEWEST), MOST))
        if self.full and self.count <= self.most // 2:
            self.full = False
            self.on_room()


def _nothing() -> None:
    pass
