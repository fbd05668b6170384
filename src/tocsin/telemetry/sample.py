"""Samples: what is measured once per run, and recorded some hundred times per cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

# Seconds. OpenTelemetry's own boundaries are meant for milliseconds.
BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# So many values of a cycle are recorded at most; each takes the SDK some 10 us.
LARGEST_SAMPLE = 100
_Thing = TypeVar("_Thing")


class Sample:
    """At most so many of the values of one cycle, evenly spaced among them.

    Up to LARGEST_SAMPLE values a cycle it is all of them. Beyond, the shape is right and the count is too low.
    """

    __slots__ = ("_skip", "_stride", "_values")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._values: list[float] = []
        self._stride = self._skip = 1

    def add(self, value: float) -> None:
        self._skip -= 1
        if self._skip:
            return
        self._values.append(value)
        if len(self._values) >= 2 * LARGEST_SAMPLE:
            # Every second one stays; the next is as far from the last as those are from each other.
            del self._values[::2]
            self._stride *= 2
        self._skip = self._stride

    def add_all(self, things: Sequence[_Thing], measure: Callable[[_Thing], float]) -> None:
        """As if the measure of each were added. Only those are measured that stay."""
        at = 0
        while (end := at + self._skip) <= len(things):
            room = 2 * LARGEST_SAMPLE - len(self._values)
            more = things[end - 1 :: self._stride][:room]
            at = end + (len(more) - 1) * self._stride
            self._values += map(measure, more)
            if len(self._values) >= 2 * LARGEST_SAMPLE:
                del self._values[::2]
                self._stride *= 2
            self._skip = self._stride
        self._skip -= len(things) - at

    def drain(self) -> list[float]:
        values = self._values
        self._clear()
        return values[::2] if len(values) > LARGEST_SAMPLE else values
