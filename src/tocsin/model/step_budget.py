"""How much work one look for a next time may take.

Rules come from users, and some hardly ever fit a date: to look for their next time blocks whoever asks, program and
worker alike. So each look has a budget. It is counted in steps, not in seconds: a busy machine must not refuse what an
idle one allows.
"""

from __future__ import annotations

# A step takes less than a microsecond: about 50 ms in all. What people write takes ten.
STEPS = 40_000
_USUAL = 50


class BudgetSpent(Exception):
    """The look was given up."""


class Budget:
    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetSpent

    def refill(self) -> None:
        """For one more look: many may take longer than one, but not each of them as long as one may."""
        self.left = min(STEPS, self.left + _USUAL)
