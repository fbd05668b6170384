"""Budget: a limit on the work of one search for a next time.

Rules come from users, and some match hardly any date. Searching for their next time blocks the program or worker, so
each search has a budget. It counts steps and not seconds, so that a busy machine refuses the same rules as an idle one.
"""

from __future__ import annotations

# A whole budget takes about 50 ms. Rules that people usually write take ten steps.
STEPS = 40_000
_USUAL = 50


class BudgetSpent(Exception):
    """The search took too many steps."""


class Budget:
    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetSpent

    def refill(self) -> None:
        """Add steps for one more search. A series of searches may take longer than one, but not a full budget each."""
        self.left = min(STEPS, self.left + _USUAL)
