"""Throughput: how many runs per second end."""

from __future__ import annotations

import math

WINDOW_S = 0.02
# A longer window was not full of work.
LONGEST_S = 5 * WINDOW_S
# How much of the best rate remains after each slower window: the server, not the runs, may have been the reason.
KEEP = 0.8
# The rate is set above the measurement, so that it can grow.
HEADROOM = 2.0


class Throughput:
    """Runs per second. Runs that share a processor do not happen all at once, however short each is: judged only by the
    number of permits and the time of a run, most of what was claimed ahead would have to be released."""

    def __init__(self) -> None:
        # Not measured yet: no limit.
        self.rate = math.inf
        self._ran = 0
        self._at = -math.inf

    def look(self, ran: int, now: float) -> None:
        """`ran`: how many have run in all."""
        took = now - self._at
        if took < WINDOW_S:
            return
        if took <= LONGEST_S:
            measured = HEADROOM * (ran - self._ran) / took
            self.rate = measured if self.rate == math.inf else max(measured, self.rate * KEEP)
        self._at, self._ran = now, ran
