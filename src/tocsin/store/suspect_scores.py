"""Suspects stand apart: runs that were recovered twice are in `waiting` before all others, by their band and due time.

lua/lib/score.lua writes these scores and says why.
"""

from __future__ import annotations

import math

_BAND = 1 << 48
_FIRST = -(1 << 52)
_LAST = -(1 << 51)
# The bound of the scores of all others.
OTHERS = f"({_LAST}"
# All that stand apart.
APART = ("-inf", str(_LAST))


def is_apart(score: float) -> bool:
    return score <= _LAST


def not_before(score: float) -> float:
    """What a score in `waiting` says, whoever has it. Scores that are not ours may be anything, also -inf."""
    if not is_apart(score):
        return score
    return (score - _FIRST) % _BAND if math.isfinite(score) else 0.0


def of_band(band: int) -> tuple[str, str]:
    """The scores of those of a priority, in an ordered queue."""
    return str(_FIRST + band * _BAND), f"({_FIRST + (band + 1) * _BAND}"
