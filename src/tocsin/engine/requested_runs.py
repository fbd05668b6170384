"""Requested runs: how many runs the passes of a worker are asking for. Their permits are as good as taken."""

from __future__ import annotations

import itertools

from tocsin.model.clock import Clock

# Runs that one node of a cluster has not answered for this long must not keep permits from the other nodes.
SLOW_S = 0.25


class RequestedRuns:
    def __init__(self, clock: Clock, *, several_nodes: bool) -> None:
        """`several_nodes`: one may be slow, or away, while others answer."""
        self._clock = clock
        self._several_nodes = several_nodes
        self._keys = itertools.count()
        # When each request began, and for how many runs.
        self._asked: dict[int, tuple[float, int]] = {}

    def begin(self, count: int) -> int:
        """Returns a key for `end`."""
        key = next(self._keys)
        self._asked[key] = (self._clock.monotonic(), count)
        return key

    def end(self, key: int) -> None:
        self._asked.pop(key, None)

    def count(self) -> int:
        if not self._several_nodes:
            return sum(count for _, count in self._asked.values())
        since = self._clock.monotonic() - SLOW_S
        return sum(count for at, count in self._asked.values() if at >= since)
