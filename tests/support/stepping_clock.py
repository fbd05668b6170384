"""A clock on which each look takes a second, so that budgets of time end after so many looks."""

from __future__ import annotations

from typing import Any

from tocsin.testing import ManualClock


class SteppingClock:
    """Time passes with each look at its monotonic time; for everything else it is the other clock."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self._clock = clock or ManualClock()

    def monotonic(self) -> float:
        self._clock.advance("1s")
        return self._clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)
