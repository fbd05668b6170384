"""Sample: keeps some hundred of the values that are measured once per run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

# In seconds. OpenTelemetry's default boundaries are meant for milliseconds.
BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Maximum values recorded per cycle. The SDK takes about 10 us for each.
LARGEST_SAMPLE = 100
_Thing = TypeVar("_Thing")


class Sample:
    """At most LARGEST_SAMPLE values of one cycle, evenly spaced among all of them.

    With more values the distribution stays right, but the count is too low.
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
            # Keep every second value, and from now on take values at twice the distance.
            del self._values[::2]
            self._stride *= 2
        self._skip = self._stride

    def add_all(self, things: Sequence[_Thing], measure: Callable[[_Thing], float]) -> None:
        """Like `add` for the measure of each thing, but measures only those whose value is kept."""
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
