"""Numbers read from Redis, where another program may have written anything."""

from __future__ import annotations

import math
from typing import Any

from tocsin.model.durations import LATEST_MS, Millis

# The digits of a signed 64-bit number.
_MOST_DIGITS = 19


def is_whole(raw: bytes | None) -> bool:
    """Whether it is a number that Tocsin could have written: not negative, no fraction."""
    return raw is not None and raw.isdigit() and len(raw) <= _MOST_DIGITS


def whole(raw: bytes | None, otherwise: int = 0) -> int:
    """The number; `otherwise` for none and for garbage."""
    return int(raw) if raw is not None and is_whole(raw) else otherwise


def number(raw: Any) -> float | None:
    """None for none, for garbage, and for infinity."""
    try:
        found = math.nan if raw is None else float(raw)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def time_of(score: Any) -> Millis:
    """A score as a time that can be shown. Garbage may be anything, even infinite."""
    try:
        found = float(score)
    except ValueError:
        return 0
    return 0 if math.isnan(found) else int(min(max(found, 0.0), LATEST_MS))
