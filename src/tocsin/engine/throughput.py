"""How fast runs come to their end."""

from __future__ import annotations

import math

WINDOW_S = 0.02
# A longer one was not full of work.
LONGEST_S = 5 * WINDOW_S
# How much of the best pace counts after each window that was slower: the server, not the runs, may have made it so.
KEEP = 0.8
# More than was measured, so that the pace can be found out.
HEADROOM = 2.0


class Throughput:
    """Runs per second. Those that share a processor do not take place all at once, however short each of them is:
    fetched ahead by their number and their time alone, most of what was claimed would have to go back."""

    def __init__(self) -> None:
        # Not measured yet: no reason to hold back.
        self.rate = math.inf
        self._ran = 0
        self._at = -math.inf

    def look(self, ran: int, now: float) -> None:
        """How many have run by now."""
        took = now - self._at
        if took < WINDOW_S:
            return
        if took <= LONGEST_S:
            measured = HEADROOM * (ran - self._ran) / took
            self.rate = measured if self.rate == math.inf else max(measured, self.rate * KEEP)
        self._at, self._ran = now, ran
