"""Numbers as they stand in Redis, where somebody else may have written anything."""

from __future__ import annotations

import math
from typing import Any

from tocsin.model.durations import LATEST_MS, Millis

# As many digits as a signed number of 64 bits has.
_MOST_DIGITS = 19


def is_whole(raw: bytes | None) -> bool:
    """Whether it is a number that Tocsin could have written: not negative, no fraction."""
    return raw is not None and raw.isdigit() and len(raw) <= _MOST_DIGITS


def whole(raw: bytes | None, otherwise: int = 0) -> int:
    """`otherwise` for none and for garbage."""
    return int(raw) if raw is not None and is_whole(raw) else otherwise


def number(raw: Any) -> float | None:
    """None for none, for garbage, and for what is not finite."""
    try:
        found = math.nan if raw is None else float(raw)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def time_of(score: Any) -> Millis:
    """A score as a time that can be shown: garbage may be anything, also infinite."""
    try:
        found = float(score)
    except ValueError:
        return 0
    return 0 if math.isnan(found) else int(min(max(found, 0.0), LATEST_MS))
