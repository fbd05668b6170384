"""Partition faults: a partition that fails by itself rests, and the others go on.

If a script fails in one partition and another partition was served a moment ago, the server is fine: a key of the
partition is garbled. Such a failure opens no breaker and ends no pass. The partition is asked again after a while, less
and less often. If no other partition is served, the failure counts as the server's, and goes to the breaker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreChanged, StoreError, StoreUnavailable
from tocsin.resilience.breaker import Breaker, Permit
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.faults")

# The server is fine if it has served another partition within this long.
SERVED_S = 10.0
SHORTEST_REST_S, LONGEST_REST_S = 1.0, 30.0
# How often a partition that goes on failing is logged.
LOG_EVERY_S = 60.0
# At most this many are named among the reasons for a worker's health.
MOST_NAMED = 5

# A queue's name and the number of one of its partitions.
Place = tuple[str, int]


class PartitionFault(Struct):
    """A failing partition: the server's error, and until when it rests, in monotonic seconds."""

    error: str
    times: int = 0
    until: float = 0.0
    next_log: float = -math.inf


class PartitionFaults:
    def __init__(self, clock: Clock) -> None:
        self.by_place: dict[Place, PartitionFault] = {}
        self._clock = clock
        # The partition that was served last, and the last one before it that is another; and when.
        self._last: tuple[Place | None, float] = (None, -math.inf)
        self._before: tuple[Place | None, float] = (None, -math.inf)

    def report(
        self, breaker: Breaker, permit: Permit, places: Sequence[Place], answers: Sequence[object]
    ) -> list[bool]:
        """Like `own`, and report the other answers to the breaker."""
        own = self.own(places, answers)
        breaker.answered(permit, [answer for answer, is_own in zip(answers, own, strict=True) if not is_own])
        return own

    def own(self, places: Sequence[Place], answers: Sequence[object]) -> list[bool]:
        """For each answer, whether it is a failure of its partition alone; such a partition rests from now on."""
        now = self._clock.monotonic()
        for place, answer in zip(places, answers, strict=True):
            if not isinstance(answer, StoreError):
                self._served(place, now)
        return [
            isinstance(answer, StoreError) and self._is_own(place, answer, now)
            for place, answer in zip(places, answers, strict=True)
        ]

    def add(self, place: Place, error: Exception) -> None:
        """This partition fails, whatever the others do."""
        now = self._clock.monotonic()
        fault = self.by_place.setdefault(place, PartitionFault(str(error)))
        fault.error, fault.times = str(error), fault.times + 1
        rest = min(SHORTEST_REST_S * 2 ** min(fault.times - 1, 10), LONGEST_REST_S)
        fault.until = now + rest
        if now >= fault.next_log:
            fault.next_log = now + LOG_EVERY_S
            log.error(
                "a partition fails while others are served, and rests",
                queue=place[0],
                partition=place[1],
                error=fault.error,
                times=fault.times,
            )

    def reasons(self) -> tuple[str, ...]:
        """The first few, for people."""
        first = list(self.by_place.items())[:MOST_NAMED]
        return tuple(f"partition {number} of queue {queue} fails: {fault.error}" for (queue, number), fault in first)

    def rests_for(self, place: Place) -> float:
        """Seconds until it may be asked again; 0 if it may be now."""
        fault = self.by_place.get(place)
        return 0.0 if fault is None else max(fault.until - self._clock.monotonic(), 0.0)

    def _served(self, place: Place, now: float) -> None:
        if self.by_place and self.by_place.pop(place, None) is not None:
            log.info("a partition is served again", queue=place[0], partition=place[1])
        if place != self._last[0]:
            self._before = self._last
        self._last = (place, now)

    def _is_own(self, place: Place, error: StoreError, now: float) -> bool:
        if isinstance(error, (StoreUnavailable, StoreChanged)):
            return False
        _, served = self._last if self._last[0] != place else self._before
        if now - served > SERVED_S:
            return False
        self.add(place, error)
        return True
