"""Throttles log lines about lasting problems, so that not each pass repeats them."""

from __future__ import annotations

import math
from collections.abc import Hashable

from tocsin.model.clock import monotonic

EVERY_S = 600.0
# Maximum lines remembered. Beyond it all are forgotten and may be logged again.
MOST = 1000


class LogThrottle:
    """`if self._seldom(queue, partition): log.warning(...)`"""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._said: dict[tuple[Hashable, ...], float] = {}

    def __call__(self, *about: Hashable) -> bool:
        """Whether to log about this now: the last time was at least `every_s` ago."""
        now = monotonic()
        if now - self._said.get(about, -math.inf) < self._every_s:
            return False
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[about] = now
        return True
