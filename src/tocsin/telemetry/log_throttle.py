"""Log lines about what stays broken: each is said again after a while, not in every pass."""

from __future__ import annotations

import math
from collections.abc import Hashable

from tocsin.model.clock import monotonic

EVERY_S = 600.0
# So many are remembered; beyond that all are said anew.
MOST = 1000


class LogThrottle:
    """`if self._seldom(queue, partition): log.warning(...)`"""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._said: dict[tuple[Hashable, ...], float] = {}

    def __call__(self, *about: Hashable) -> bool:
        """Whether it was not said for a while, and is now."""
        now = monotonic()
        if now - self._said.get(about, -math.inf) < self._every_s:
            return False
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[about] = now
        return True
